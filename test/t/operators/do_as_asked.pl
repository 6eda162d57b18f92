# Retry, discard, cancel and filters do as operators ask, also for a role with EXECUTE alone.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');
my $slowly = "backoff_base => '1 h', backoff_max => '1 h'";

sub refused
{
	my ($sql) = @_;
	my (undef, undef, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\n$sql");
	return $err;
}

sub status
{
	my ($id, $endpoint) = @_;
	return ask("SELECT status || COALESCE(':' || reason, '') FROM outbox.deliveries"
		  . " WHERE event_id = '$id'" . ($endpoint ? " AND endpoint = '$endpoint'" : ''));
}

sub becomes
{
	my ($id, $status, $name) = @_;
	return ok(wait_sql($node,
			"SELECT status || COALESCE(':' || reason, '') = '$status' FROM outbox.deliveries WHERE event_id = '$id'"),
		$name);
}

sub restart_worker
{
	my $pid = worker_pid($node);
	ask("SELECT pg_terminate_backend($pid)");
	return new_worker($node, $pid);
}

# retry: dead ones and waiting ones, by event, topic and time
endpoint($node, $receiver, 'a', '/ok/a', "topics => '{a.*}', max_attempts => 1, $slowly");
endpoint($node, $receiver, 'b', '/ok/b', "topics => '{b.*}', $slowly");
$receiver->control(path => "/ok/$_", behave => '/status/500') foreach qw(a b);
my @dead = map { emit($node, 'a.' . ($_ > 2 ? 'late' : 'one'), "{\"n\": $_}") } 1 .. 4;
my @waiting = map { emit($node, 'b.one', "{\"n\": $_}") } 1 .. 2;
becomes($_, 'dead:max_attempts', 'dead') foreach @dead;
becomes($_, 'retrying', 'waiting') foreach @waiting;
$receiver->control(path => "/ok/$_", behave => '/ok') foreach qw(a b);
is(ask("SELECT outbox.retry('a', '$dead[0]')"), 1, 'retry of one event');
$receiver->wait_delivered(1, id => $dead[0]);
becomes($dead[0], 'delivered', 'delivered');
is((($receiver->delivered(id => $dead[0]))[0]{headers}{'outbox-redelivery'}), 'retry', 'and marked');
is(ask("SELECT outbox.retry('a', topics => '{a.late}')"), 2, 'of a topic');
$receiver->wait_delivered(1, id => $_) foreach @dead[ 2, 3 ];
becomes($_, 'delivered', 'delivered') foreach @dead[ 2, 3 ];
is(ask("SELECT outbox.retry('a', since => now() + interval '1 h')"), 0, 'since a time');
is(ask("SELECT outbox.retry('b')"), 2, 'and of what waits for a retry');
# The receiver has them a moment before the worker has noted it.
becomes($_, 'delivered', 'delivered') foreach @waiting;
is(ask("SELECT outbox.retry('b')"), 0, 'nothing is left to retry');
is(status($dead[1]), 'dead:max_attempts', 'the others stay');

# "since" is when it died, and not when it failed first.
endpoint($node, $receiver, 'l', '/status/500/l', "topics => '{l.*}', $slowly");
my $late = emit($node, 'l.one', '{}');
becomes($late, 'retrying', 'failed once');
my $failed = ask('SELECT clock_timestamp()');
ask("SELECT outbox.alter_endpoint('l', max_attempts => 1)");
is(ask("SELECT outbox.retry('l', '$late')"), 1, 'it is to fail for the last time');
becomes($late, 'dead:max_attempts', 'dead');
is(ask("SELECT parked_at > '$failed' FROM outbox.dead_letters WHERE event_id = '$late'"), 't', 'later than it failed first');
is(ask("SELECT outbox.discard('l', since => '$failed')"), 1, 'and since then');

# It counts anew from the retry on, while it waits and when it is delivered.
my $attempts = "SELECT status || ' ' || attempts FROM outbox.deliveries WHERE event_id = ";
endpoint($node, $receiver, 'n', '/ok/n', "topics => '{n.*}', max_attempts => 3, backoff_base => '1 ms', backoff_max => '1 ms'");
my $good = emit($node, 'n.one', '{}');
becomes($good, 'delivered', 'delivered');
$receiver->control(path => '/ok/n', behave => '/status/500');
my $tried = emit($node, 'n.one', '{}');
becomes($tried, 'dead:max_attempts', 'dead');
is(ask("$attempts'$tried'"), 'dead 3', 'three attempts');
ask("SELECT outbox.pause_endpoint('n')");
my (undef, undef, $notice) = $node->psql('postgres', "SELECT outbox.retry('n')");
like($notice, qr/NOTICE: .*"n" is paused, and sends nothing until it is resumed/, 'a paused one: retry() says so');
ok(wait_sql($node, "$attempts'$tried'", 'retrying 0'), 'none since the retry');
foreach my $call ("resend('n', '$good')", "send_test('n')", "replay('n', now() - interval '1 h')")
{
	(undef, undef, $notice) = $node->psql('postgres', "BEGIN; SELECT outbox.$call; ROLLBACK");
	like($notice, qr/NOTICE: .*"n" is paused/, "$call says so, too");
}
$receiver->control(path => '/ok/n', behave => '/ok');
ask("SELECT outbox.resume_endpoint('n')");
becomes($tried, 'delivered', 'delivered');
ok(wait_sql($node, "$attempts'$tried'", 'delivered 1'), 'one attempt since the retry');
(undef, undef, $notice) = $node->psql('postgres', "SELECT outbox.resend('n', '$tried')");
unlike($notice, qr/NOTICE/, 'an active one: there is nothing to say');
like(refused("SELECT outbox.retry('nobody')"), qr/42704.*HINT/s, 'no such endpoint');

# In a transaction that is rolled back: nothing
ask("BEGIN; SELECT outbox.retry('a'); ROLLBACK");
nothing_arrives($receiver, 'rolled back: nothing is sent', 0.5, path => '/ok/a');

# discard
is(ask("SELECT outbox.discard('a')"), 1, 'discard');
becomes($dead[1], 'cancelled:discarded', 'it is shown as such');
ok(wait_sql($node, "SELECT dead = 0 FROM outbox.stats WHERE endpoint = 'a'"), 'and no longer counted');
is(ask('SELECT count(*) FROM outbox.dead_letters'), 0, 'nor a dead letter');
is(ask("SELECT outbox.retry('a')"), 0, 'nor retried');
is(ask("SELECT outbox.discard('b')"), 0, 'nothing to discard');

# cancel: retrying, blocked, pending
$receiver->control(path => '/ok/b', behave => '/status/500');
my $head = emit($node, 'b.head', '{"n": 1}', "key => 'k'");
my @behind = map { emit($node, 'b.behind', "{\"n\": $_}", "key => 'k'") } 2 .. 4;
becomes($head, 'retrying', 'a head waits');
becomes($_, 'blocked', 'and followers') foreach @behind;
$receiver->control(path => '/ok/b', behave => '/ok');
is(ask("SELECT outbox.cancel('$behind[0]')"), 't', 'cancel a blocked one');
becomes($behind[0], 'cancelled:cancelled', 'cancelled');
ok( wait_sql(
		$node, "SELECT shared IS NOT NULL FROM outbox.positions JOIN outbox.endpoint_settings"
		  . " USING (endpoint_id) WHERE name = 'b' ORDER BY number DESC LIMIT 1"),
	'the endpoint is idle by now');

# While outbox is disabled, nothing else keeps the endpoint busy.  There is time to
# forget the event before its followers are read.
ask('ALTER SYSTEM SET outbox.enabled = off');
ask("ALTER SYSTEM SET outbox.settle_interval = '500 ms'");
$node->reload;
ok(wait_sql($node, "SELECT state = 'disabled' FROM outbox.status"), 'disabled');
ok(wait_sql($node, "SELECT last_loop_at < clock_timestamp() - interval '150 ms' FROM outbox.workers"),
	'and at rest: what it does next is told at once');
is(ask("SELECT outbox.cancel('$head', 'b')"), 't', 'cancel the head');
becomes($head, 'cancelled:cancelled', 'the head is cancelled');
ask('ALTER SYSTEM RESET outbox.enabled');
$node->reload;
$receiver->wait_delivered(1, id => $_) foreach @behind[ 1, 2 ];
ask('ALTER SYSTEM RESET outbox.settle_interval');
$node->reload;
is(scalar(() = $receiver->delivered(key => 'k')), 2, 'its followers go on')
  or diag(ask("SELECT s::text FROM outbox.stats s WHERE endpoint = 'b'"),
	ask("SELECT string_agg(d::text, E'\\n') FROM outbox.deliveries d WHERE key = 'k'"),
	ask("SELECT string_agg(a::text, E'\\n') FROM outbox.attempts a WHERE endpoint = 'b'"),
	ask('SELECT w::text FROM outbox.worker_slots() w'));
is(scalar(() = $receiver->requests(id => $behind[0])), 0, 'and what was cancelled is not sent');
becomes($behind[1], 'delivered', 'delivered');
is(ask("SELECT outbox.cancel('$behind[1]')"), 'f', 'too late for one that was delivered');
ok(wait_sql($node, "SELECT (blocked, retrying) = (0, 0) FROM outbox.stats WHERE endpoint = 'b'"), 'counters agree');
ask("SELECT outbox.pause_endpoint('b')");
my @pending = map { emit($node, 'b.pending', "{\"n\": $_}", "key => 'k'") } 1 .. 3;
is(ask("SELECT outbox.cancel('$pending[1]')"), 't', 'cancel a pending one');
becomes($pending[1], 'cancelled:cancelled', 'cancelled');
ok(restart_worker(), 'another worker');
ask("SELECT outbox.resume_endpoint('b')");
$receiver->wait_delivered(1, id => $_) foreach @pending[ 0, 2 ];
is(scalar(() = $receiver->requests(id => $pending[1])), 0, 'the cancelled one is not sent, by the next worker either');
like(refused("SELECT outbox.cancel('00000000-0000-7000-8000-000000000000')"), qr/42704.*HINT/s, 'no such event');

# Filters
like(refused("SELECT outbox.create_endpoint('f', 'https://example.com/', filter => '\$.total')"),
	qr/22023.*HINT.*exists\(\$\."total"\)/s, 'what is no predicate is refused, with a hint');
like(refused("SELECT outbox.create_endpoint('f', 'https://example.com/', filter => '\$.items[*] ? (\@.n > 1)')"),
	qr/22023.*HINT.*exists/s, 'so is a path with a filter');
endpoint($node, $receiver, 'f', '/ok/f', "topics => '{f.*}', filter => '\$.total > 100'");
my $unmatched = ask('SELECT unmatched FROM outbox.status');
my %id = map { $_ => emit($node, 'f.one', "{\"total\": $_}") } qw(50 150 250);
$receiver->wait_delivered(1, id => $id{$_}) foreach qw(150 250);
ok(wait_settled($node), 'settled');
is(scalar(() = $receiver->requests(id => $id{50})), 0, 'what does not match is not sent');
is(ask("SELECT count(*) FROM outbox.deliveries WHERE endpoint = 'f'"), 2, 'and is no delivery');
ok(wait_sql($node, "SELECT unmatched = $unmatched + 1 FROM outbox.status"), 'but counted as unmatched');

# Neither true nor false
my $odd = emit($node, 'f.odd', '{"total": "much"}');
my $none = emit($node, 'f.none', '[]');
becomes($odd, 'dead:filter failed', 'a filter that fails: dead');
is(ask("SELECT reason FROM outbox.dead_letters WHERE event_id = '$odd'"), 'filter failed', 'and why');
is(scalar(() = $receiver->requests(id => $odd)), 0, 'it was not sent');
is(ask("SELECT outbox.retry('f', '$odd')"), 1, 'retried by hand');
$receiver->wait_delivered(1, id => $odd);
becomes($odd, 'delivered', 'it is sent');

# Nor is one sent behind a head that fails, where it would wait with a row
endpoint($node, $receiver, 'i', '/flaky/i?first=2',
	"topics => '{i.*}', filter => '\$.total > 100', backoff_base => '50 ms', backoff_max => '100 ms'");
my @lane = split /\n/, ask("SELECT outbox.emit('i.one', jsonb_build_object('total', t), key => 'k')"
	  . " FROM unnest(ARRAY['150', '\"much\"', '151']::jsonb[]) t");
$receiver->wait_delivered(1, id => $lane[2]);
becomes($lane[1], 'dead:filter failed', 'behind a head that fails: dead as well');
is(scalar(() = $receiver->requests(id => $lane[1])), 0, 'and not sent');

# A replay takes only events for which the present filter is true
my %before = map { $_ => emit($node, 'r.one', "{\"total\": $_}") } qw(50 150 "much");
endpoint($node, $receiver, 'r', '/ok/r', "topics => '{r.*}', filter => '\$.total > 100'");
is(ask("SELECT outbox.replay('r', now() - interval '1 h')"), 1, 'a replay counts what passes the filter, not what it fails for');
$receiver->wait_delivered(1, id => $before{150});
ok(wait_sql($node, 'SELECT finished_at IS NOT NULL FROM outbox.replay_progress'), 'replayed');
is(ask('SELECT events FROM outbox.replay_progress'), 1, 'and begins as many deliveries');
ok(wait_settled($node), 'settled');
is(scalar(() = $receiver->requests(path => '/ok/r')), 1, 'the others are not sent');

# A replay that is under way waits for its endpoint, and can be ended there, also where a worker has
# so many endpoints that its memory has few retries of each
ask("SELECT count(outbox.create_endpoint('one' || n, '@{[$receiver->url('/ok/one')]}', topics => '{one.*}')) FROM generate_series(1, 300) n");
endpoint($node, $receiver, 'y', '/ok/y', "topics => '{y.*}', timeout => '5 s'");
ask(q{SELECT count(outbox.emit('y.one', '{}')) FROM generate_series(1, 2000)});
$receiver->wait_delivered(2000, path => '/ok/y');
ok(wait_settled($node), 'settled');
$receiver->control(path => '/ok/y', behave => '/hang');
is(ask("SELECT outbox.replay('y', now() - interval '1 h')"), 2000, 'all are to be sent again');
my $progress = "FROM outbox.replay_progress WHERE endpoint = 'y' ORDER BY replay_id DESC LIMIT 1";
ok(wait_sql($node, "SELECT events >= 256 AND finished_at IS NULL $progress"), 'the replay is under way');
is(ask("SELECT outbox.cancel_replay('y', replay_id) $progress"), 't', 'it is ended');
my $begun = ask("SELECT events $progress");
cmp_ok($begun, '<', 1000, 'where it is');
ask("SELECT outbox.alter_endpoint('y', url => '@{[$receiver->url('/ok/z')]}')");
ok(wait_settled($node), 'settled');
is(scalar(() = $receiver->delivered(path => '/ok/z')), $begun, 'what it has begun is sent, and no more');
is(ask("SELECT events || ' ' || cancelled $progress"), "$begun true", 'and it stays where it was');
is(ask("SELECT outbox.replay('y', now() - interval '1 h')"), 2000, 'another one');
$receiver->wait_delivered(2000 + $begun, path => '/ok/z');
ok(wait_sql($node, "SELECT finished_at IS NOT NULL AND NOT cancelled AND events = 2000 $progress"), 'sends all of them');
ask("SELECT count(outbox.drop_endpoint('one' || n, discard => true)) FROM generate_series(1, 300) n");

# Altered: it holds from the position on, and outbox.deliveries agrees
ask("SELECT outbox.alter_endpoint('f', filter => '\$.total < 100')");
ok( wait_sql($node, "SELECT count(*) = 2 FROM outbox.subscriptions JOIN outbox.endpoint_settings"
	  . " USING (endpoint_id) WHERE name = 'f'"), 'the new filter is stored');
my %new = map { $_ => emit($node, 'f.two', "{\"total\": $_}") } qw(50 150);
$receiver->wait_delivered(1, id => $new{50});
ok(wait_settled($node), 'settled');
is(scalar(() = $receiver->requests(id => $new{150})), 0, 'the new filter holds');
is( ask("SELECT string_agg(payload->>'total', ' ' ORDER BY d.seq) FROM outbox.deliveries d"
	  . " JOIN outbox.events e ON e.id = d.event_id WHERE endpoint = 'f' AND d.topic IN ('f.one', 'f.two')"),
	'150 250 50', 'each event is judged by the filter of its place in the log');
ask("SELECT outbox.alter_endpoint('f', reset => '{filter}')");
my $any = emit($node, 'f.three', '{"total": 150}');
$receiver->wait_delivered(1, id => $any);
ok(wait_settled($node), 'settled');
ok(restart_worker(), 'another worker');
is(scalar(() = $receiver->delivered(id => $any)), 1, 'reset: no filter');

# The role that the functions are granted to
ask(<<'SQL');
CREATE ROLE operator LOGIN;
GRANT USAGE ON SCHEMA outbox TO operator;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA outbox TO operator;
CREATE ROLE stranger LOGIN;
SQL
my $url = $receiver->url('/ok/o');
my $as = 'SET SESSION AUTHORIZATION operator;';
ask("$as SELECT outbox.create_endpoint('o', '$url', topics => '{o.*}')");
my $first = ask("$as SELECT outbox.emit('o.one', '{}'::jsonb)");
$receiver->wait_delivered(1, id => $first);
ask("$as SELECT outbox.alter_endpoint('o', max_attempts => 1, backoff_base => '1 h')");
ask("$as SELECT outbox.seek_endpoint('o', 'beginning')");
$receiver->wait_delivered(2, id => $first);
pass('alter_endpoint, seek_endpoint by a role without any table');
$receiver->control(path => '/ok/o', behave => '/status/500');
my $bad = ask("$as SELECT outbox.emit('o.two', '{}'::jsonb)");
becomes($bad, 'dead:max_attempts', 'dead');
$receiver->control(path => '/ok/o', behave => '/ok');
is(ask("$as SELECT outbox.retry('o')"), 1, 'retry');
$receiver->wait_delivered(1, id => $bad);
becomes($bad, 'delivered', 'delivered');
is(ask("$as SELECT outbox.discard('o')"), 0, 'discard');
ask("$as SELECT outbox.pause_endpoint('o')");
my $gone = ask("$as SELECT outbox.emit('o.three', '{}'::jsonb)");
is(ask("$as SELECT outbox.cancel('$gone')"), 't', 'cancel');
becomes($gone, 'cancelled:cancelled', 'cancelled');
ask("$as SELECT outbox.resume_endpoint('o')");
my $old = ask("$as SELECT outbox.endpoint_secret('o')");
my ($rc, undef, $err) = $node->psql('postgres', "$as SELECT outbox.rotate_secret('o')");
is($err, '', 'rotate_secret');
isnt(ask("$as SELECT outbox.endpoint_secret('o')"), $old, 'another secret');
($rc, undef, $err) = $node->psql('postgres', "$as SELECT outbox.drop_endpoint('o', discard => true)");
is($err, '', 'drop_endpoint');
like(refused("$as SELECT * FROM outbox.endpoint_secrets"), qr/42501/, 'but it reads no table');
like(refused("SET SESSION AUTHORIZATION stranger; SELECT outbox.retry('a')"), qr/42501/,
	'and a stranger may do nothing');
# What memory has and has not sent is taken back like any other, also while its endpoint is paused
endpoint($node, $receiver, 'u', '/ok/u', "topics => '{u.*}', max_in_flight => 1, max_attempts => 1000, backoff_base => '200 ms', backoff_max => '200 ms', timeout => '4 s'");
$receiver->control(path => '/ok/u', behave => '/status/500');
my @loaded = split /\n/, ask("SELECT outbox.emit('u.one', '{}'::jsonb, key => k) FROM unnest('{a,a,b,b}'::text[]) k");
becomes($loaded[$_], 'retrying', 'waits for a retry') foreach 0, 2;
becomes($loaded[$_], 'blocked', 'waits behind it') foreach 1, 3;
$receiver->control(path => '/ok/u', behave => '/hold');
OutboxTest::Receiver::wait_found(1, 'a request that is held', sub { grep { $_->{path} eq '/ok/u' && !defined $_->{status} } $receiver->requests });
ask("SELECT outbox.pause_endpoint('u')");
my ($sent) = map { $_->{headers}{'webhook-id'} } (grep { $_->{path} eq '/ok/u' } $receiver->requests)[-1];
foreach my $id (grep { $_ ne $sent } @loaded)
{
	is(ask("SELECT outbox.cancel('$id', 'u')"), 't', 'taken back');
	becomes($id, 'cancelled:cancelled', 'it is');
}
$receiver->control(path => '/ok/u');
ask("SELECT outbox.resume_endpoint('u')");
becomes($sent, 'delivered', 'the one that was sent is delivered');
ok(wait_sql($node, "SELECT retrying = 0 AND blocked = 0 AND pending = 0 FROM outbox.stats WHERE endpoint = 'u'"), 'and the counts are right');
ask("SELECT outbox.drop_endpoint('u')");

# Several commands for one delivery, given at once
my $same = worker_pid($node);
endpoint($node, $receiver, 'm', '/ok/m', "topics => '{m.*}', on_exhausted => 'block', $slowly");
endpoint($node, $receiver, 'x', '/ok/x', "topics => '{x.*}', on_exhausted => 'block', max_attempts => 1, $slowly");
$receiver->control(path => "/ok/$_", behave => '/status/500') foreach qw(m x);
my ($retrying, $again) = map { emit($node, 'm.one', "{\"n\": $_}") } 1 .. 2;
my ($dead_head, $follower, $alone) = map { emit($node, 'x.one', '{}', $_) } ("key => 'k'", "key => 'k'", "key => 'l'");
becomes($_, 'retrying', 'waits') foreach $retrying, $again;
becomes($_, 'dead:max_attempts', 'dead') foreach $dead_head, $alone;
becomes($follower, 'blocked', 'blocked');
is(ask("SELECT outbox.cancel('$retrying'), outbox.cancel('$retrying')"), 't|t', 'cancelled twice');
ask("BEGIN; SELECT outbox.cancel('$again', 'm'); SELECT outbox.retry('m'); SELECT outbox.cancel('$again'); COMMIT");
becomes($_, 'cancelled:cancelled', 'cancelled once') foreach $retrying, $again;
ask("BEGIN; SELECT outbox.discard('x', '$alone'); SELECT outbox.discard('x', '$alone'); COMMIT");
becomes($alone, 'cancelled:discarded', 'discarded once');
$receiver->control(path => '/ok/x', behave => '/hold');
ask("BEGIN; SELECT outbox.retry('x'); SELECT outbox.cancel('$follower', 'x'); SELECT outbox.discard('x'); COMMIT");
becomes($follower, 'cancelled:cancelled', 'cancelled');
$receiver->control(path => '/ok/x', behave => '/status/500');
becomes($dead_head, 'cancelled:discarded', 'and its head is discarded, as was asked last');
ok(wait_sql($node, "SELECT bool_and(s.dead = d.dead AND s.blocked = 0 AND s.retrying = 0) FROM outbox.stats s JOIN"
	  . " (SELECT endpoint, count(*) FILTER (WHERE status = 'dead') AS dead FROM outbox.deliveries GROUP BY 1) d USING (endpoint)"
	  . " WHERE endpoint IN ('m', 'x')"), 'and the counts are right');
is(worker_pid($node), $same, 'by the same worker');
is(ask('SELECT sum(restarts) FROM outbox.worker_slots()'), 0, 'no worker ended with an error');

$node->stop;
done_testing();
