# A template gives an endpoint's payloads another shape, in every format and batch.
# It makes the same bytes each time.  What is missing is null or kills the event, and neither size nor work is without a bound.
use strict;
use warnings;

use Digest::SHA;
use Encode ();
use JSON::PP;
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('templates');
my $receiver = OutboxTest::Receiver->new('templates');
my $json = JSON::PP->new->utf8->canonical;

sub create
{
	my ($name, $config, $more, $path) = @_;
	my $text = $json->encode($config) =~ s/'/''/gr;

	ask("SELECT outbox.create_endpoint('$name', '" . $receiver->url($path // "/ok/$name")
		  . "', topics => '{$name.*}', config => '$text'" . ($more ? ", $more" : '') . ')');
	return;
}

sub got
{
	my ($name, $n) = @_;
	return OutboxTest::Receiver::wait_found($n, "requests for $name", sub { grep { $_->{path} =~ m{/$name$} } $receiver->requests });
}

# What is not settled yet is under way, and is not sent again.
sub replayed
{
	my ($name) = @_;

	wait_settled($node);
	return ask("SELECT outbox.replay('$name', now() - interval '1 hour')");
}

# The payload that a template makes of an event.
my $n = 0;
sub made
{
	my ($template, $payload, $more) = @_;
	my $name = 'made' . ++$n;

	create($name, { payload => $template }, q[format => 'raw']);
	ask("SELECT outbox.emit('$name.paid', " . ($payload =~ /^\(/ ? $payload : "'" . ($payload =~ s/'/''/gr) . "'") . ($more ? ", $more" : '') . ')');
	my ($r) = got($name, 1);
	is($r->{headers}{'content-type'}, 'application/json', 'it is JSON') if $n == 1;
	return Encode::encode('UTF-8', $r->{body});
}

my $order = '{"order": 4711, "total": 12.50, "paid": true, "note": null, "who": {"name": "Zoë \"Z\" \\\\", "a-b": 1},'
  . ' "items": [{"name": "x"}, {"name": "y,]}"}], "empty": [], "": 0}';

foreach (
	[ { text => 'Order {$.order} for {$.total}' }, '{"text": "Order 4711 for 12.50"}', 'values in a text' ],
	[ { a => '{$.order}', b => '{$.paid}', c => '{$.note}' }, '{"a": 4711, "b": true, "c": null}', 'values by themselves' ],
	[ { a => '{$.who.name}', b => 'Hi {$.who.name}!' }, '{"a": "Zoë \"Z\" \\\\", "b": "Hi Zoë \"Z\" \\\\!"}', 'strings stay escaped' ],
	[ { a => '{$.who."a-b"}' }, '{"a": 1}', 'a name in quotes' ],
	[ [ '{$.items[1].name}', '{$.items[last].name}', '{$.items[0]}' ], '["y,]}", "y,]}", {"name": "x"}]', 'subscripts' ],
	[ { a => '{$.items}', b => 'as text {$.items[0]}' }, '{"a": [{"name": "x"}, {"name": "y,]}"}], "b": "as text {\"name\": \"x\"}"}', 'containers' ],
	[ { a => '{$.no}', b => '<{$.no}>', c => '{$.items[2]}', d => '{$.order.x}', e => '{$.empty[last]}', f => '{$.note}', g => '<{$.note}>' },
		'{"a": null, "b": "<>", "c": null, "d": null, "e": null, "f": null, "g": "<>"}', 'what is missing' ],
	[ { a => '{{$.order}}', '{$.order}' => '}}{{' }, '{"a": "{$.order}", "{$.order}": "}{"}', 'braces, and names of members' ],
	[ { a => '', b => [], c => 1.50, d => { e => JSON::PP::null } }, '{"a": "", "b": [], "c": 1.5, "d": {"e": null}}', 'constants' ])
{
	my ($template, $expected, $what) = @$_;

	is(made($template, $order), $expected, $what);
}
is(made({ all => '{$}' }, '(7)::text::jsonb'), '{"all": 7}', 'a payload that is a number');
is(made({ all => '{$}', a => '{$.a}' }, '"text"'), '{"a": null, "all": "text"}', 'and a text');

# Parts of the event that are no part of the payload
create('parts', { payload => { id => '{id}', what => '{topic} {type}', key => '{key}', in => 'at {time}', whose => '{tenant}', data => '{$}' } }, q[format => 'raw']);
my $id = ask(q[SELECT outbox.emit('parts.paid', '{"n": 1}', key => 'a"b', type => 'Paid')]);
my ($r) = got('parts', 1);
like($r->{body}, qr/^\{"id": "$id", "in": "at [0-9T:.-]+Z", "key": "a\\"b", "data": \{"n": 1\}, "what": "parts.paid Paid", "whose": null\}$/, 'its id, topic, type, key and time');

# Bytes have no parts
create('bytes', { payload => { a => '{$.a}', id => '{topic}' } }, q[format => 'raw']);
ask(q[SELECT outbox.emit_bytes('bytes.sent', '\x00ff', 'application/pdf')]);
($r) = got('bytes', 1);
is("$r->{headers}{'content-type'} $r->{body}", 'application/json {"a": null, "id": "bytes.sent"}', 'of bytes');

# The examples of doc/wire.md
sub masked { return $_[0] =~ s/"\d{4}-[0-9T:.-]+Z"/"(time)"/r =~ s/"[0-9a-f-]{36}"/"(id)"/r; }
my ($section) = slurp_file("$OutboxTest::top/doc/wire.md") =~ /^### A payload of another shape\n(.*?)^\| place/ms;
my ($sql) = $section =~ /```sql\n(.*?)```/s;
my $here = $receiver->url('');
ask($sql =~ s{http://127\.0\.0\.1:8080}{$here}gr);
my %says = $section =~ /^\| `(\w+)` \| `(.*)` \|$/mg;
is_deeply({ map { $_ => masked((got($_, 1))[0]{body}) } keys %says }, { map { $_ => masked($says{$_}) } keys %says }, 'what receivers of the document get');
is(keys %says, 3, 'three of them');

# The same bytes in each attempt, also after a restart
create('again', { payload => { a => '{$.a}', at => '{time}' } }, q[format => 'raw']);
ask(q[SELECT outbox.emit('again.x', '{"a": {"b": [1, 2.0]}}')]);
got('again', 1);
replayed('again');
got('again', 2);
replace_worker($node);
replayed('again');
my %bodies = map { $_->{sha256} => 1 } got('again', 3);
is(scalar keys %bodies, 1, 'three deliveries, one body');

# ----- every format, alone and in batches, with a filter, another signature, method and query

my %format = (
	standard => qr/^\{"type":"Paid","timestamp":"[^"]+","data":\{"n": 7\}\}$/,
	raw => qr/^\{"n": 7\}$/,
	cloudevents => qr/^\{"specversion":"1.0".*"data":\{"n": 7\}\}$/,
	'cloudevents-binary' => qr/^\{"n": 7\}$/,
	'standard, batches' => qr/^\[\{"id":"[^"]+","type":"Paid",.*"data":\{"n": 7\}\}\]$/,
	'cloudevents, batches' => qr/^\[\{"specversion":"1.0".*"data":\{"n": 7\}\}\]$/);
foreach my $case (sort keys %format)
{
	my ($format, $batches) = split /, /, $case;
	my $name = "sweep_$format" . ($batches ? '_batch' : '');

	create($name,
		{
			payload => { n => '{$.number}' }, payload_missing => 'dead', signature => 'github', outbox_headers => 'none',
			method => 'PATCH', query => $batches ? 'i={id}' : 't={topic}&k={key}'
		},
		"format => '$format', filter => '\$.number == 7'" . ($batches ? ', batch_size => 5' : ''));
	my $secret = ask("SELECT outbox.endpoint_secret('$name')");
	ask("SELECT outbox.emit('$name.paid', '{\"number\": $_}', key => 'k', type => 'Paid') FROM generate_series(1, 1)") foreach 6, 7;
	($r) = got($name, 1);
	like($r->{body}, $format{$case}, "$case: the shape is the payload");
	is($r->{headers}{'x-hub-signature-256'}, 'sha256=' . Digest::SHA::hmac_sha256_hex($r->{body}, $secret), "$case: signed");
	is("$r->{method} $r->{target}", "PATCH /ok/$name?" . ($batches ? "i=$r->{headers}{'x-github-delivery'}" : "t=$name.paid&k=k"), "$case: method and query");
	is(grep({ /^ce-/ } keys %{ $r->{headers} }) > 0, $format eq 'cloudevents-binary', "$case: its attributes");
}
wait_settled($node);
is(ask(q[SELECT count(*) FROM outbox.deliveries WHERE endpoint ~ '^sweep' AND status <> 'delivered']), 0, 'what the filters leave out is not sent');

# ----- what kills an event, and only this one

create('whole', { payload => { a => '{$.a}', b => '{$.b}' }, payload_missing => 'dead' }, q[format => 'raw']);
ask(q[SELECT outbox.emit('whole.x', '{"a": 1}', key => 'k'), outbox.emit('whole.x', '{"a": 1, "b": null}', key => 'k')]);
($r) = got('whole', 1);
is($r->{body}, '{"a": 1, "b": null}', 'null is not missing, and the event behind a dead one is sent');
is(ask(q[SELECT reason || ': ' || last_error FROM outbox.dead_letters WHERE endpoint = 'whole']),
	'invalid event: the event has nothing for {$.b} of the template', 'the event that lacks a part is dead');
create('cut', { payload => { a => '{$.' . chr(228) x 40 . '}' }, payload_missing => 'dead' });
ask(q[SELECT outbox.emit('cut.x', '{"a": 1}')]);
ok(wait_sql($node, q[SELECT dead = 1 FROM outbox.stats WHERE endpoint = 'cut']), 'one that lacks a part with a long name, too');
my $words = pack 'H*', ask(q[SELECT encode(last_error::bytea, 'hex') FROM outbox.dead_letters WHERE endpoint = 'cut']);
is(eval { Encode::decode('UTF-8', $words, Encode::FB_CROAK) },
	'the event has nothing for {$.' . chr(228) x 30 . ' of the template', 'of which the error has whole characters');
ask(q[SELECT outbox.alter_endpoint('whole', config => '{"payload": {"a": "{$.a}"}}'), outbox.retry('whole')]);
is((got('whole', 2))[1]{body}, '{"a": 1}', 'until the template is another one');

create('paced', { payload => { a => '{$.a}' }, payload_missing => 'dead' }, q[format => 'raw', rate_limit => 0.001]);
ask(q[SELECT outbox.emit('paced.x', '{"b": 1}'), outbox.emit('paced.x', '{"a": 1}')]);
is((got('paced', 1))[0]{body}, '{"a": 1}', 'a dead one does not count for rate_limit: no request was made of it');

create('wide', { payload => [ ('{$.a}') x 300 ] }, q[format => 'raw']);
ask(q[SELECT outbox.emit('wide.x', jsonb_build_object('a', repeat('x', 8000))), outbox.emit('wide.x', jsonb_build_object('b', repeat('x', 500000), 'a', 1)), outbox.emit('wide.x', '{"a": 1}')]);
($r) = got('wide', 1);
is($r->{body}, '[' . join(', ', (1) x 300) . ']', 'a small one is sent');
is(ask(q[SELECT string_agg(last_error, '; ' ORDER BY seq) FROM outbox.dead_letters WHERE endpoint = 'wide']),
	'the template makes a payload of more than 2 MB; the payload is too long for so many paths in the template', 'large ones have bounds');

# ----- what is refused

foreach (
	[ '{"payload": "text {$.a}"}', qr/no object or array/ ],
	[ '{"payload": {"a": "{$.a"}}', qr/a place in the template/ ],
	[ '{"payload": {"a": "{$.a[*]}"}}', qr/a place in the template/ ],
	[ '{"payload": {"a": "{$.a ? (@ > 1)}"}}', qr/a place in the template/ ],
	[ '{"payload": {"a": "{$..a}"}}', qr/a place in the template/ ],
	[ '{"payload": {"a": "{$.1}"}}', qr/a place in the template/ ],
	[ '{"payload": {"a": "{nothing}"}}', qr/a place in the template/ ],
	[ '{"payload": {"a": "}"}}', qr/a place in the template/ ],
	[ '{"payload": {"a": "{"}}', qr/a place in the template/ ],
	[ '{"payload": {"a": "{$.\"a"}}', qr/a place in the template/ ],
	[ '{"payload": {"a": "' . ('x' x 4096) . '"}}', qr/template of the payload is too long/ ],
	[ '{"payload": {}, "payload_missing": "skip"}', qr/payload_missing is not valid/ ],
	[ '{"payload_missing": "dead"}', qr/payload_missing is not valid/ ],
	[ '{"query": {}}', qr/invalid value/ ])
{
	my ($config, $expected) = @$_;
	my (undef, undef, $error) = $node->psql('postgres', "SELECT outbox.create_endpoint('bad', 'http://127.0.0.1:9/', config => '$config')");

	like($error, $expected, 'refused: ' . substr $config, 0, 50);
	like($error, qr/HINT: /, 'with a hint');
}

done_testing();
