# Requests are UTF-8, whatever the encoding of the database is.
# An event that cannot be written in UTF-8 becomes a dead letter with the reason, and
# holds up no other event.
use strict;
use warnings;

use Encode ();
use JSON::PP;
use MIME::Base64 ();
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my @formats = qw(standard raw cloudevents cloudevents-binary);
my $node = outbox_node('encodings', extension => 0);
my $receiver = OutboxTest::Receiver->new('encodings');

my $json = JSON::PP->new;
my $latin1 = 'latin1';
foreach ([ $latin1, 'LATIN1' ], [ 'ascii', 'SQL_ASCII' ], [ 'euc', 'EUC_JP' ])
{
	my ($dbname, $encoding) = @$_;
	$node->safe_psql('postgres',
		"CREATE DATABASE $dbname ENCODING '$encoding' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0");
	$node->safe_psql($dbname, 'CREATE EXTENSION outbox');
	endpoint($node, $receiver, $_, "/ok/$dbname/$_", "format => '$_'", $dbname)
	  foreach @formats;
}

# Sends the same to both: the client speaks UTF-8, and so does psql's input.
sub emit_in
{
	my ($dbname, $sql) = @_;
	return $node->safe_psql($dbname, "SET client_encoding = 'UTF8'; SELECT $sql");
}

sub text { return Encode::encode('UTF-8', $_[0]) }
sub untext { return Encode::decode('UTF-8', $_[0]) }

sub check_event
{
	my ($dbname, $id) = @_;

	foreach my $format (@formats)
	{
		my ($r) = $receiver->wait_for(1, path => "/ok/$dbname/$format", id => $id);
		my %h = %{ $r->{headers} };
		my $body = JSON::PP->new->decode($r->{body});
		my $data = $format =~ /^(?:raw|cloudevents-binary)$/ ? $body : $body->{data};
		is_deeply($data, { name => "Zo\x{eb} \x{fc}" }, "$dbname, $format: the payload is UTF-8");
		is($r->{key}, "Zo\x{eb}", 'the key, too');
		is($h{'outbox-type'}, 'Gr%C3%BCn', 'the type, percent-encoded');
		is($h{city}, "K\x{f6}ln", 'a header');
		is($r->{signature}, 'valid', 'and it is signed');
		is($body->{type}, "Gr\x{fc}n", 'the type in the body')
		  if $format =~ /^(?:standard|cloudevents)$/;
		is_deeply([ @$body{qw(subject partitionkey city)} ],
			[ "Zo\x{eb}", "Zo\x{eb}", "K\x{f6}ln" ], 'attributes')
		  if $format eq 'cloudevents';
		is_deeply([ @h{qw(ce-subject ce-type ce-city)} ],
			[ 'Zo%C3%AB', 'Gr%C3%BCn', 'K%C3%B6ln' ], 'attributes')
		  if $format eq 'cloudevents-binary';
	}
	return;
}

my $event = text(qq~outbox.emit('city', '{"name": "Zo\x{eb} \x{fc}"}', key => 'Zo\x{eb}',~
	  . qq~ type => 'Gr\x{fc}n', headers => '{"city": "K\x{f6}ln"}')~);
check_event($_, emit_in($_, $event)) foreach $latin1, 'ascii', 'euc';

# Credentials
foreach my $dbname ($latin1, 'ascii', 'euc')
{
	my $login = text(qq~{"username": "Zo\x{eb}", "password": "K\x{f6}ln"}~);
	emit_in($dbname, "outbox.create_endpoint('login', '" . $receiver->url("/ok/login/$dbname") . "', '{login}', credentials => '$login')");
	emit_in($dbname, "outbox.emit('login', '{}')");
	my ($r) = $receiver->wait_for(1, path => "/ok/login/$dbname");
	is($r->{headers}{authorization}, 'Basic ' . MIME::Base64::encode(text("Zo\x{eb}:K\x{f6}ln"), ''), "$dbname: so are a name and a password");
}

# The URL, and the config
foreach my $dbname ($latin1, 'ascii', 'euc')
{
	my $url = text($receiver->url("/ok/caf\x{e9}/$dbname"));
	my $config = text($json->encode({ token_url => $receiver->url("/status/200/token_$dbname?body={%22access_token%22:%22t%22}"), client_id => 'me', scope => "Zo\x{eb}" }));
	emit_in($dbname, "outbox.create_endpoint('sent', '$url', '{sent}', config => '$config', credentials => '{\"client_secret\": \"x\"}')");
	emit_in($dbname, "outbox.emit('sent', '{}')");
	ok(OutboxTest::Receiver::wait_found(1, 'requests', sub { grep { lc $_->{path} eq "/ok/caf%c3%a9/$dbname" } $receiver->requests }), "$dbname: so is the URL");
	my ($r) = $receiver->wait_for(1, path => "/status/200/token_$dbname");
	like($r->{body}, qr/&scope=Zo%C3%AB$/, "$dbname: and the config");
}

# The default of the CloudEvents source, where the database has a name like that
my $odd = text("Stra\x{df}e 1");
$node->safe_psql('postgres', qq{CREATE DATABASE "$odd"});
$node->safe_psql($odd, 'CREATE EXTENSION outbox');
endpoint($node, $receiver, 'odd', '/ok/odd', q{format => 'cloudevents'}, $odd);
emit($node, 'odd', '{}', undef, $odd);
my ($request) = $receiver->wait_for(1, path => '/ok/odd');
is(decode_json($request->{body})->{source}, '/outbox/Stra%C3%9Fe%201',
	'the name of the database, percent-encoded, is the source');

# LATIN1 has no such character: the emitter is told
my ($rc, $out, $err) = $node->psql($latin1,
	text(qq~SET client_encoding = 'UTF8'; SELECT outbox.emit('city', '{"name": "\x{20ac}"}')~));
like($err, qr/has no equivalent in encoding "LATIN1"/, 'what the database cannot store is refused');

# A control character is one by its code point: 0x85 is U+0085 here
foreach ("emit('city', '{}', type => 'a' || chr(133))", "emit('city', '{}', headers => jsonb_build_object('x', chr(133)))",
	"create_endpoint('c1', 'https://example.com/' || chr(133))",
	"create_endpoint('c1', 'https://example.com/', headers => jsonb_build_object('x', chr(133)))")
{
	($rc, $out, $err) = $node->psql($latin1, "SELECT outbox.$_");
	like($err, qr/a control character/, "LATIN1: $_");
}

# What a receiver answers is made fit for the database
endpoint($node, $receiver, 'fails', '/status/500/' . $latin1,
	"topics => '{fail.*}', max_attempts => 1", $latin1);
$receiver->control(path => "/status/500/$latin1",
	behave => "/status/500?body=" . join('', map { sprintf '%%%02X', ord } split //, text("\x{fc} \x{20ac}")));
my $id = $node->safe_psql($latin1, q{SELECT outbox.emit('fail.once', '{}')});
ok( wait_sql($node, "SELECT count(*) = 1 FROM outbox.dead_letters WHERE event_id = '$id'", 't', $latin1),
	'a failure is recorded in LATIN1');

# Bytes that are no text here, and ones that have no place in UTF-8, in headers and a body
my %kept = ($latin1 => [ "\x{fc}\x{ff}z", "a\x{fc}\x{c3}\x{a9}\x{a9}\x{a1}\x{ff}?b" ], ascii => [ '??z', "a?\x{e9}????b" ], euc => [ '??z', 'a???????b' ]);
foreach my $dbname (sort keys %kept)
{
	my $body = "a\xfc\xc3\xa9\xa9\xa1\xff\0b";
	endpoint($node, $receiver, 'answers', "/ok/answers/$dbname", "topics => '{answers}', tenant => 'acme', max_attempts => 1", $dbname);
	$receiver->control(path => "/ok/answers/$dbname",
		behave => '/raw?status=500&then=close&hex=' . unpack('H*', "HTTP/1.1 500 No\r\nX-Odd: \xfc\xffz\r\nContent-Length: 9\r\n\r\n$body"));
	my $failed = emit_in($dbname, "outbox.emit('answers', '{}', tenant => 'acme')");
	ok(wait_sql($node, "SELECT count(*) = 1 FROM outbox.dead_letters WHERE event_id = '$failed'", 't', $dbname), "$dbname: odd bytes in an answer");
	my $shown = decode_json(emit_in($dbname, "outbox.portal_delivery('acme', 'answers', '$failed')"));
	is_deeply([ $shown->{attempts}[0]{response_headers}{'x-odd'}, $shown->{attempts}[0]{response_body} ], $kept{$dbname}, "$dbname: a client that speaks UTF-8 can read them");
	is($shown->{request}{as}, 'sent', "$dbname: with the request");
}

# In SQL_ASCII anything goes in: what is no UTF-8 is dead
my $worker = worker_pid($node, 'ascii');
my %bad = (
	payload => q{outbox.emit('bad.payload', E'{"name": "\xfc"}'::jsonb)},
	key => q{outbox.emit('bad.key', '{}'::jsonb, key => E'\xfc')},
	type => q{outbox.emit('bad.type', '{}'::jsonb, type => E'\xfc')},
	header => q{outbox.emit('bad.header', '{}'::jsonb, headers => E'{"tenant": "\xfc"}'::jsonb)},
	content_type =>
	  q{outbox.emit_bytes('bad.content_type', '', E'text/\xfc')});
my %bad_id = map { $_ => $node->safe_psql('ascii', "SELECT $bad{$_}") } sort keys %bad;
my $after = emit_in('ascii', $event);
foreach my $what (sort keys %bad_id)
{
	ok( wait_sql(
			$node,
			"SELECT count(*) = 4 AND bool_and(reason = 'invalid event' AND last_error ~ 'UTF-8|^invalid ')"
			  . " FROM outbox.dead_letters WHERE event_id = '$bad_id{$what}'", 't', 'ascii'),
		"a $what that is no UTF-8 is dead in every format");
	note($node->safe_psql('ascii',
		"SELECT DISTINCT last_error FROM outbox.dead_letters WHERE event_id = '$bad_id{$what}'"));
	is(scalar(() = $receiver->requests(id => $bad_id{$what})), 0, 'and never sent');
}
check_event('ascii', $after);
is(worker_pid($node, 'ascii'), $worker, 'the worker went on');

$node->stop;
done_testing();
