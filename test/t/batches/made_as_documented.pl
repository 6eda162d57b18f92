# A batch has the events that belong together, is sent when it should be, and looks as documented.
use strict;
use warnings;

use Encode ();
use Digest::SHA qw(sha256);
use JSON::PP;
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');
my $quick = "backoff_base => '10 ms', backoff_max => '50 ms'";

sub sizes
{
	my (%match) = @_;
	return map { scalar @{ $_->{batch} } } $receiver->requests(%match);
}

# As doc/wire.md says: the hash of the members' ids as a UUID of version 8.
sub batch_id
{
	my (@ids) = @_;
	my $hash = unpack 'H*', substr sha256(join '', map { s/-//gr =~ s/(..)/chr hex $1/ger } @ids), 0, 16;

	substr($hash, 12, 1) = '8';
	substr($hash, 16, 1) = sprintf '%x', hex(substr($hash, 16, 1)) & 3 | 8;
	return $hash =~ s/(.{8})(.{4})(.{4})(.{4})(.{12})/$1-$2-$3-$4-$5/r;
}

# Format standard
endpoint($node, $receiver, 'plain', '/ok/plain',
	q{topics => '{plain}', batch_size => 100, max_in_flight => 1, headers => '{"x-own": "o"}'});
is(ask("SELECT batch_size, batch_wait FROM outbox.endpoints"), '100|00:00:00', 'outbox.endpoints shows the settings');
emit_at_once($node, 'plain', 250, 'NULL');
my @events = $receiver->wait_events(250, path => '/ok/plain', delivered => 1);
is_deeply([ map { $_->{n} } @events ], [ 1 .. 250 ], '250 events: each once, in the order of the log');
is(join(' ', sizes(path => '/ok/plain')), '100 100 50', 'in batches of 100');
my ($request) = $receiver->requests(path => '/ok/plain');
my %headers = %{ $request->{headers} };
is($headers{'content-type'}, 'application/json', 'Content-Type');
is($request->{signature}, 'valid', 'signed');
is($request->{id}, batch_id(map { $_->{id} } @{ $request->{batch} }), 'webhook-id is the hash of the ids');
is($headers{'idempotency-key'}, qq("$request->{id}"), 'Idempotency-Key');
is($headers{'outbox-attempt'}, '1', 'outbox-attempt');
is($headers{'x-own'}, 'o', "the endpoint's own headers");
is(join(' ', grep { /^outbox-/ } sort keys %headers), 'outbox-attempt', 'nothing that belongs to one event');
ok(wait_settled($node), 'all is settled');
is(ask("SELECT count(*), min(attempt), max(attempt), min(status_code), count(error) FROM outbox.attempts"),
	'250|1|1|200|0', 'outbox.attempts: a row for each event');
ok(wait_sql($node, "SELECT (delivered, failed_attempts, pending, processing) = (250, 0, 0, 0) FROM outbox.stats"),
	'outbox.stats counts events');
is(ask("SELECT count(*) FROM outbox.deliveries WHERE status = 'delivered' AND delivered_at > created_at"),
	250, 'outbox.deliveries, too');

# One event alone is a batch of one.  Its members are shown in full.
my $id = ask(<<'SQL');
SELECT outbox.emit('plain', '{"n": 1.50, "s": "Zoë \"\\"}', key => 'k "1" ü', type => 'T "x" ü', headers => '{"x-a": "ü \"q\""}')
SQL
my ($one) = $receiver->wait_events(1, id => $id);
my $item = decode_json(Encode::encode('UTF-8', $one->{request}{body}))->[0];
my $created = ask("SELECT to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"') FROM outbox.events WHERE id = '$id'");
is_deeply(
	$item,
	{
		id => $id, type => "T \"x\" \x{fc}", timestamp => $created, topic => 'plain',
		key => "k \"1\" \x{fc}", headers => { 'x-a' => "\x{fc} \"q\"" },
		data => { n => 1.5, s => "Zo\x{eb} \"\\" }
	},
	'one event is a batch of one, with everything about it');
like($one->{request}{body}, qr/"data":\{"n": 1\.50, /, 'the payload is untouched');
is($one->{request}{id}, batch_id($id), 'and has the id of a batch');
my $bytes = ask(q{SELECT outbox.emit_bytes('plain', '\x00ff', 'application/x-b')});
($one) = $receiver->wait_events(1, id => $bytes);
$item = decode_json($one->{request}{body})->[0];
is(join('|', map { "$_=" . ($item->{$_} // 'null') } qw(type key headers content_type data_base64)),
	'type=plain|key=null|headers=null|content_type=application/x-b|data_base64=AP8=', 'bytes; what is not there is null');
ok(!exists $item->{data}, 'and no data');

# The bound on the body
endpoint($node, $receiver, 'large', '/ok/large', q{topics => '{large}', batch_size => 1000, max_in_flight => 1});
ask("SELECT outbox.pause_endpoint('large')");
ask("SELECT count(outbox.emit('large', jsonb_build_object('n', n, 'x', repeat('x', CASE n WHEN 7 THEN 1048000 ELSE 300000 END)))) FROM generate_series(1, 12) n");
ask("SELECT outbox.resume_endpoint('large')");
@events = $receiver->wait_events(12, path => '/ok/large', delivered => 1);
is_deeply([ map { $_->{n} } @events ], [ 1 .. 12 ], 'large events, each once');
my @large = $receiver->requests(path => '/ok/large');
is(join(' ', sizes(path => '/ok/large')), '3 3 1 3 2', 'no body is larger than 1 MB');
is(scalar(grep { $_->{length} > 1048576 && @{ $_->{batch} } > 1 } @large), 0, 'to the byte');

# batch_wait: a batch goes when it is full
endpoint($node, $receiver, 'full', '/ok/full', q{topics => '{full}', batch_size => 10, batch_wait => '1 h'});
emit($node, 'full', qq({"n": $_})) foreach 1 .. 9;
nothing_arrives($receiver, 'nine of ten wait', 1, path => '/ok/full');
ok(wait_sql($node, "SELECT pending = 9 FROM outbox.stats WHERE endpoint = 'full'"), 'pending says so');
emit($node, 'full', '{"n": 10}');
@events = $receiver->wait_events(10, path => '/ok/full');
is(join(' ', sizes(path => '/ok/full')), '10', 'the tenth sends them');
emit($node, 'full', qq({"n": $_}), q{key => 'k'}) foreach 1 .. 10;
$receiver->wait_events(20, path => '/ok/full');
is(join(' ', sizes(path => '/ok/full')), '10 10', 'followers of one key make a batch full as well');
emit($node, 'full', '{"n": 21}');
nothing_arrives($receiver, 'one more waits', 1, path => '/ok/full');
my $pid = worker_pid($node);
ask("SELECT pg_terminate_backend($pid)");
new_worker($node, $pid);
nothing_arrives($receiver, 'also through a restart', 1, path => '/ok/full');
ask("SELECT outbox.alter_endpoint('full', batch_wait => '10 ms')");
$receiver->wait_events(21, path => '/ok/full', delivered => 1);
pass('with another batch_wait it goes');
wait_settled($node);
ask("SELECT outbox.drop_endpoint('full')");

# … also one of a thousand events of few keys, of which most wait behind another
foreach my $ordering (qw(key strict none))
{
	endpoint($node, $receiver, "few_$ordering", "/ok/few_$ordering",
		"topics => '{few_$ordering}', batch_size => 1000, batch_wait => '1 h', ordering => '$ordering'");
	emit_at_once($node, "few_$ordering", 1000, "'k' || n % 3");
	$receiver->wait_events(1000, path => "/ok/few_$ordering", delivered => 1);
	is(join(' ', sizes(path => "/ok/few_$ordering")), '1000', "ordering $ordering: a thousand of three keys");
}

# One that is behind, and whose events are a few among many, reads on until a batch is full.
endpoint($node, $receiver, 'rare', '/ok/rare', q{topics => '{rare}', batch_size => 100, max_in_flight => 1});
pause($node, 'rare');
ask("SELECT count(outbox.emit(CASE WHEN n % 100 = 0 THEN 'rare' ELSE 'common' END, '{}')) FROM generate_series(1, 30000) n");
ask("SELECT outbox.resume_endpoint('rare')");
$receiver->wait_events(300, path => '/ok/rare', delivered => 1);
is(join(' ', sizes(path => '/ok/rare')), '100 100 100', 'a batch waits for events that have yet to be read');

# … or when its oldest member has waited
endpoint($node, $receiver, 'wait', '/ok/wait', q{topics => '{wait}', batch_size => 1000, batch_wait => '5 s'});
ask(join ';', map { "SELECT outbox.emit('wait', '{\"n\": $_}'::jsonb, key => 'k' || $_ % 3)" } 1 .. 5);
@events = $receiver->wait_events(5, path => '/ok/wait', delivered => 1);
is(join(' ', sizes(path => '/ok/wait')), '5', 'what comes within batch_wait goes together');
is_deeply([ map { $_->{n} } @events ], [ 1 .. 5 ], 'in order');
my ($waited) = $receiver->requests(path => '/ok/wait');
my $emitted = ask("SELECT extract(epoch FROM min(created_at)) FROM outbox.events WHERE topic = 'wait'");
cmp_ok($waited->{wall} - $emitted, '>=', 4.95, 'not before the oldest has waited');

# A key: in order, in one batch at a time
endpoint($node, $receiver, 'keys', '/slow/keys?ms=50', q{topics => '{keys}', batch_size => 20});
emit_at_once($node, 'keys', 300, "'k' || n % 3");
$receiver->wait_events(300, path => '/slow/keys', delivered => 1);
foreach my $k (0 .. 2)
{
	my @n = map { $_->{n} } $receiver->events(path => '/slow/keys', key => "k$k");
	is_deeply(\@n, [ sort { $a <=> $b } @n ], "key $k in order");
	is(scalar @n, 100, 'each once');
}
my %busy;
my $overlaps = 0;
foreach my $r ($receiver->requests(path => '/slow/keys'))
{
	foreach my $key (keys %{ { map { $_->{key} => 1 } @{ $r->{batch} } } })
	{
		$overlaps++ if $busy{$key} && $busy{$key} > $r->{mono};
		$busy{$key} = $r->{answered};
	}
}
is($overlaps, 0, 'never in two requests at once');
is(ask("SELECT count(*) FROM outbox.parked"), 0, 'nothing was parked for it');

# The other orderings
endpoint($node, $receiver, 'strict', '/slow/strict?ms=20',
	q{topics => '{strict}', batch_size => 20, ordering => 'strict'});
emit_at_once($node, 'strict', 100, "'k' || n % 7");
@events = $receiver->wait_events(100, path => '/slow/strict', delivered => 1);
is_deeply([ map { $_->{n} } @events ], [ 1 .. 100 ], 'strict: the order of the log');
is((sort { $b <=> $a } map { $_->{open} } $receiver->requests(path => '/slow/strict'))[0], 1, 'one request at a time');
is((sort { $b <=> $a } sizes(path => '/slow/strict'))[0], 20, 'of 20 events');
endpoint($node, $receiver, 'none', '/slow/none?ms=300',
	q{topics => '{none}', batch_size => 20, ordering => 'none', max_in_flight => 3});
emit_at_once($node, 'none', 200, "'k'");
$receiver->wait_events(200, path => '/slow/none', delivered => 1);
is((sort { $b <=> $a } map { $_->{open} } $receiver->requests(path => '/slow/none'))[0], 3,
	'none: keys mean nothing, and max_in_flight counts requests');

# rate_limit counts requests
endpoint($node, $receiver, 'rate', '/ok/rate', q{topics => '{rate}', batch_size => 10, rate_limit => 10});
emit_at_once($node, 'rate', 200, 'NULL');
$receiver->wait_events(200, path => '/ok/rate', delivered => 1);
ok(wait_sql($node, "SELECT count(*) >= 200 AND max(started_at) - min(started_at) > '1.5 s' FROM outbox.attempts WHERE endpoint = 'rate'"),
	'rate_limit: 20 requests at 10 a second');
cmp_ok(scalar(() = $receiver->requests(path => '/ok/rate')), '<', 30, 'with ten events each');

# What need not be sent does not hold the others
endpoint($node, $receiver, 'dead', '/ok/dead', q{topics => '{dead}', batch_size => 50, filter => '$.n > 0'});
ask("SELECT outbox.pause_endpoint('dead')");
my $expired = emit($node, 'dead', '{"n": 1}', "key => 'k', expires_at => clock_timestamp() - interval '1 s'");
my $odd = emit($node, 'dead', '{"n": "x"}', "key => 'k'");
emit($node, 'dead', qq({"n": $_}), "key => 'k'") foreach 3 .. 6;
my $cancelled = emit($node, 'dead', '{"n": 7}', "key => 'k'");
is(ask("SELECT outbox.cancel('$cancelled')"), 't', 'cancel()');
emit($node, 'dead', '{"n": 8}', "key => 'k'");
my $last = emit($node, 'dead', '{"n": 9}', "expires_at => clock_timestamp() - interval '1 s'");
ask("SELECT outbox.resume_endpoint('dead')");
$receiver->wait_events(5, path => '/ok/dead', delivered => 1);
is(join(' ', map { $_->{n} } $receiver->events(path => '/ok/dead')), '3 4 5 6 8', 'the others are delivered, in order');
wait_status($node, $_, 'dead', 'it is dead') foreach $expired, $odd, $last;
wait_status($node, $cancelled, 'cancelled', 'it is cancelled');

# Bad rows that came past the checks, in one batch with good ones
endpoint($node, $receiver, 'bad', '/ok/bad', q{topics => '{bad}', batch_size => 50});
ask("SELECT outbox.pause_endpoint('bad')");
ask("ALTER TABLE outbox.events DROP CONSTRAINT events_valid");
ask(q{INSERT INTO outbox.events (topic, key, payload) VALUES ('bad', 'k', '{"n": 1}'), ('bad', '', '{"n": 2}')});
ask(q{INSERT INTO outbox.events (topic, key, payload, headers) VALUES ('bad', 'k', '{"n": 3}', '{"webhook-id": "x"}'), ('bad', 'k', '{"n": 4}', NULL)});
ask("SELECT outbox.resume_endpoint('bad')");
$receiver->wait_events(2, path => '/ok/bad', delivered => 1);
is(join(' ', map { $_->{n} } $receiver->events(path => '/ok/bad')), '1 4', 'the good ones are delivered');
ok(wait_sql($node, "SELECT string_agg(reason || ':' || last_error, ',' ORDER BY seq) = 'invalid event:invalid key,invalid event:invalid header' FROM outbox.dead_letters WHERE endpoint = 'bad'"),
	'the others are dead, with their reasons');

# From singles to batches and back, with a backlog
endpoint($node, $receiver, 'alter', '/slow/alter?ms=25', "topics => '{alter}', $quick");
$receiver->control(path => '/slow/alter', behave => '/hold');
ask("SELECT count(outbox.emit('alter', jsonb_build_object('n', n), key => 'k' || n % 10)) FROM generate_series(1, 1000) n");
$receiver->wait_for(10, path => '/slow/alter');
ask("SELECT outbox.alter_endpoint('alter', batch_size => 10)");
$receiver->control(path => '/slow/alter', behave => '/slow?ms=25');
wait_until { scalar(grep { $_->{batch} } $receiver->requests(path => '/slow/alter')) } 'batches';
ask("SELECT outbox.alter_endpoint('alter', reset => '{batch_size}')");
$receiver->wait_events(1000, path => '/slow/alter', delivered => 1);
ok(wait_settled($node), 'from singles to batches and back: all is settled');
my %seen;
$seen{ $_->{id} }++ foreach $receiver->events(path => '/slow/alter');
is(scalar keys %seen, 1000, 'each was sent');
is(scalar(grep { $_ > 1 } values %seen), 0, 'once');

is(ask('SELECT sum(restarts) FROM outbox.worker_slots()'), 0, 'no worker ended with an error');
is(scalar(grep { $_->{signature} ne 'valid' } $receiver->requests), 0, 'every request was signed');

$node->stop;
done_testing();
