# Requests that succeeded are stored many to a row, and shown one by one.
# It takes long, so only LONG=1 make test and make matrix run it.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# A settle collects many outcomes, however slow the machine is
my $node = outbox_node('main', conf => "outbox.settle_interval = '1000 ms'\nrestart_after_crash = on\nautovacuum = off\n");
my $receiver = OutboxTest::Receiver->new('main');
my $quick = "backoff_base => '50 ms', backoff_max => '100 ms'";

# How many attempts of an endpoint are in runs
sub in_runs
{
	my ($endpoint) = @_;
	return ask("SELECT COALESCE(sum(octet_length(entries)) / 26, 0)::int8 FROM outbox.attempt_runs JOIN outbox.endpoint_settings e USING (endpoint_id) WHERE e.name = '$endpoint'");
}

# What the receiver saw is what the view shows: event, number of the attempt, status
sub shows
{
	my ($endpoint, $path) = @_;
	my @seen;

	foreach my $request ($receiver->requests(path => $path))
	{
		push @seen, "$_|$request->{headers}{'outbox-attempt'}|$request->{status}"
		  foreach $request->{batch} ? map { $_->{id} } @{ $request->{batch} } : $request->{id};
	}
	return is(ask("SELECT event_id, attempt, status_code FROM outbox.attempts WHERE endpoint = '$endpoint' ORDER BY event_id::text COLLATE \"C\", attempt"),
		join("\n", sort @seen), "$endpoint: the view has each request");
}

# --- Each request has a row in the view

my $n = 300;
my %path = (
	single => '/ok/single',
	keyed => '/ok/keyed',
	batch => '/ok/batch',
	accepted => '/fail/accepted',
	uneven => '/fail/uneven',
	flaky => '/flaky/f',
	broken => '/status/500/b');
endpoint($node, $receiver, 'single', $path{single}, "topics => '{all}', max_in_flight => 1");
endpoint($node, $receiver, 'keyed', $path{keyed}, "topics => '{all}'");
endpoint($node, $receiver, 'batch', $path{batch}, "topics => '{all}', batch_size => 7");
endpoint($node, $receiver, 'accepted', "$path{accepted}?rate=0.5&status=202", "topics => '{all}'");
endpoint($node, $receiver, 'uneven', "$path{uneven}?rate=0.3&status=500", "topics => '{all}', $quick");
endpoint($node, $receiver, 'flaky', "$path{flaky}?first=1", "topics => '{few}', $quick");
endpoint($node, $receiver, 'broken', $path{broken}, "topics => '{bad}', max_attempts => 2, $quick");
ask("SELECT count(outbox.emit('all', jsonb_build_object('n', i), key => (i % 50)::text)) FROM generate_series(1, $n) i");
ask("SELECT count(outbox.emit('few', jsonb_build_object('n', i))) FROM generate_series(1, 40) i");
emit($node, 'bad', '{}') foreach 1 .. 2;
ok(wait_settled($node), 'all is settled');
shows($_, $path{$_}) foreach sort keys %path;
cmp_ok(in_runs($_), '>', $n / 2, "$_: most are in runs") foreach qw(single keyed batch accepted);
cmp_ok(in_runs('flaky'), '>', 0, 'second attempts are, too');
is(in_runs('broken'), 0, 'but no failure');
is(ask('SELECT count(*) FROM outbox.attempt_log WHERE error IS NOT NULL'), scalar(grep { $_->{status} == 500 } $receiver->requests), 'failures are rows');
is(ask("SELECT count(DISTINCT r.status_code) FROM outbox.attempt_runs r"), 2, 'a run has one status');
cmp_ok(ask('SELECT count(*) FROM outbox.attempt_runs'), '<', 5 * $n / 8 + 40 / 8, 'and eight attempts at least');

# Of an endpoint that answers 200 to many and then 202 to as many, in one settle
endpoint($node, $receiver, 'turns', '/ok/turns', "topics => '{turns}'");
foreach my $turn (1 .. 3)
{
	foreach my $status (200, 202)
	{
		$receiver->control(path => '/ok/turns', behave => "/status/$status");
		ask("SELECT count(outbox.emit('turns', '{}')) FROM generate_series(1, 10)");
		$receiver->wait_for($turn * 20 - ($status == 200 ? 10 : 0), path => '/ok/turns');
	}
	wait_settled($node);
}
shows('turns', '/ok/turns');

# Times: to one endpoint at a time, each request begins when the one before has ended.
# A duration has six digits.
is(ask(q{SELECT count(*), count(DISTINCT started_at) FROM outbox.attempts WHERE endpoint = 'single' AND duration_ms > 0}), "$n|$n", 'times in µs');
is( ask(q{SELECT count(*) FROM (SELECT started_at, duration_ms, lag(started_at + make_interval(secs => duration_ms / 1000)) OVER (ORDER BY seq) AS before
	FROM outbox.attempts WHERE endpoint = 'single') a WHERE started_at < before - interval '0.1 ms'}),
	0, 'none overlaps with the one before');
is(ask('SELECT count(*) FROM outbox.attempts a JOIN outbox.events e ON e.id = a.event_id WHERE e.seq <> a.seq OR a.started_at < e.created_at OR a.started_at > clock_timestamp()'),
	0, 'event and time belong together');
is(ask('SELECT count(*) FROM (SELECT FROM outbox.attempts GROUP BY event_id, endpoint, attempt, started_at HAVING count(*) > 1) d'), 0, 'none is there twice');

# The other views find them
my $of_view = q{SELECT a.event_id, a.endpoint, max(a.attempt) AS attempts, (array_agg(a.status_code ORDER BY a.started_at DESC))[1] AS last_status_code,
	min(a.started_at + make_interval(secs => a.duration_ms::float4 / 1000)) FILTER (WHERE a.error IS NULL) AS delivered_at FROM outbox.attempts a GROUP BY 1, 2};
is(ask("SELECT count(*) FROM outbox.deliveries d JOIN ($of_view) a USING (event_id, endpoint) WHERE (d.attempts, d.last_status_code) = (a.attempts, a.last_status_code)"
	  . " AND d.delivered_at IS NOT DISTINCT FROM a.delivered_at"), 5 * $n + 42 + 60, 'outbox.deliveries');
is(ask("SELECT count(*) FROM outbox.deliveries_page('keyed', page_size => 1000) d JOIN ($of_view) a USING (event_id, endpoint) WHERE d.delivered_at = a.delivered_at"),
	$n, 'outbox.deliveries_page()');
foreach my $endpoint (qw(keyed flaky broken))
{
	my $columns = 'event_id, seq, endpoint, tenant, attempt, started_at, duration_ms, status_code, error, response_body';
	is(ask("SELECT $columns FROM outbox.attempts_page('$endpoint', page_size => 1000) ORDER BY seq DESC, started_at DESC"),
		ask("SELECT $columns FROM outbox.attempts WHERE endpoint = '$endpoint' ORDER BY seq DESC, started_at DESC"), "outbox.attempts_page(): $endpoint");
}
my $one = ask("SELECT event_id FROM outbox.attempts WHERE endpoint = 'keyed' ORDER BY seq OFFSET 123 LIMIT 1");
is(ask("SELECT event_id, attempt FROM outbox.attempts_page('keyed', event => '$one')"), "$one|1", 'one event');
my $sizes = join ' + ', map { ("pg_total_relation_size('outbox.attempt_runs_$_')", "pg_total_relation_size('outbox.attempt_log_$_')") } 0 .. 2;
is(ask("SELECT attempts_bytes = $sizes FROM outbox.status"), 't', 'attempts_bytes has both kinds of tables');

# --- Few at a time, and far apart

endpoint($node, $receiver, 'rare', '/ok/rare', "topics => '{rare}'");
emit_at_once($node, 'rare', 7, 'NULL');
ok(wait_settled($node), 'seven');
is(in_runs('rare'), 0, 'seven at once: rows');
$_ = ask("SELECT outbox.pause_endpoint('rare')");
ask("SELECT count(outbox.emit(CASE WHEN i % 300 = 0 THEN 'rare' ELSE 'none' END, '{}')) FROM generate_series(1, 12000) i");
$_ = ask("SELECT outbox.resume_endpoint('rare')");
ok(wait_settled($node), 'one of 300 events');
shows('rare', '/ok/rare');
is(in_runs('rare') > 0 && ask("SELECT max(seq_high - seq_low) > 2000 AND max(seq_high - seq_low) < 4096 FROM outbox.attempt_runs"), 't', 'a run ends before it is too long');
is(ask("SELECT count(*) FROM outbox.deliveries WHERE endpoint = 'rare' AND delivered_at IS NOT NULL"), 47, 'each is found');

# --- The same event again

my $before = ask("SELECT count(*) FROM outbox.attempts WHERE endpoint = 'keyed'");
ask("SELECT outbox.replay('keyed', now() - interval '1 hour')");
ok(wait_sql($node, "SELECT count(*) = 2 * $before FROM outbox.attempts WHERE endpoint = 'keyed'"), 'a replay: each event has two requests');
ok(wait_sql($node, "SELECT bool_and(finished_at IS NOT NULL) FROM outbox.replay_progress"), 'which ends');
is(ask("SELECT count(*) FROM outbox.attempts_page('keyed', event => '$one')"), 2, 'and both are found');

# --- A dump

my $all = 'SELECT a::text FROM outbox.attempts a ORDER BY 1';
my $dump = PostgreSQL::Test::Utils::tempdir() . '/dump';
$node->command_ok([ 'pg_dump', '-Fc', '-f', $dump, $node->connstr('postgres') ], 'pg_dump');
ask('CREATE DATABASE other');
$node->command_ok([ 'pg_restore', '--exit-on-error', '-d', $node->connstr('other'), $dump ], 'pg_restore');
is(ask($all, 'other'), ask($all), 'the copy shows the same');

# --- Forgetting: what succeeded held nothing of the tenant

endpoint($node, $receiver, 'tenants', '/ok/tenants', "topics => '{tenants}'");
emit_at_once($node, 'tenants', 100, 'NULL', ", tenant => 'acme'");
ok(wait_settled($node), 'events of a tenant');
cmp_ok(in_runs('tenants'), '>', 0, 'some are in runs');
my $of_acme = "SELECT a::text FROM outbox.attempts a WHERE endpoint = 'tenants' ORDER BY 1";
my $shown = ask($of_acme);
ask("SELECT outbox.forget('acme')");
ok(wait_sql($node, 'SELECT bool_and(complete_at IS NOT NULL) FROM outbox.forget_progress'), 'forgotten');
is(ask($of_acme), $shown, 'event, time and status of a success stay');
unlike(ask('SELECT rewrite FROM outbox.forget_progress'), qr/runs/, 'runs need not be rewritten');

# --- Damage is reported, and reads no other memory

my $run = "(SELECT min(seq_low) FROM outbox.attempt_runs r JOIN outbox.endpoint_settings s USING (endpoint_id) WHERE s.name = 'batch')";
my $low = ask("SELECT $run");
ask('CREATE TABLE saved AS SELECT * FROM outbox.attempt_runs');
foreach my $damage (
	[ 'cut' => "entries = substr(entries, 1, octet_length(entries) - 1)" ],
	[ 'empty' => "entries = ''" ],
	[ 'too long' => "entries = decode(repeat('00', 76 * 26), 'hex')" ],
	[ 'huge' => "entries = decode(repeat('00', 26 * 100000), 'hex')" ],
	[ 'other order' => "entries = substr(entries, 1, 26) || substr(entries, 53, 26) || substr(entries, 27, 26)" ],
	[ 'begins later' => "entries = substr(entries, 27)" ],
	[ 'too far' => "entries = overlay(entries PLACING '\\xffff' FROM octet_length(entries) - 25)" ],
	[ 'no duration' => "entries = overlay(entries PLACING '\\x7fc00000' FROM 7)" ],
	[ 'no time' => "started_at = 'infinity'" ])
{
	my ($what, $set) = @$damage;
	ask("UPDATE outbox.attempt_runs r SET $set FROM outbox.endpoint_settings s WHERE s.endpoint_id = r.endpoint_id AND s.name = 'batch' AND r.seq_low = $low");
	my (undef, undef, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\nSELECT count(event_id) FROM outbox.attempts WHERE attempt > 0 AND duration_ms >= 0");
	like($err, qr/XX001.*$low.*HINT/s, "$what: XX001");
	$node->psql('postgres', "SELECT * FROM outbox.deliveries_page('batch', page_size => 1000)");
	ask('TRUNCATE outbox.attempt_runs; INSERT INTO outbox.attempt_runs SELECT * FROM saved');
}
is( ask(q{
CREATE FUNCTION try(seq int8, low int8, at timestamptz, entries bytea) RETURNS int8 LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT count(*) FROM outbox.run_attempts(0, low, at, entries)) + (SELECT count(*) FROM outbox.run_attempts(seq, low, at, entries));
EXCEPTION WHEN data_corrupted THEN
    RETURN -1;
END $$;
SELECT setseed(0.5);
SELECT count(*) FILTER (WHERE t > 0) > 0, count(*) FILTER (WHERE t < 0) > 0
FROM (SELECT try((random() * 5000)::int8, CASE WHEN i % 3 = 0 THEN 9223372036854775807 - (random() * 5000)::int8 ELSE 1 END,
                 CASE WHEN i % 5 = 0 THEN '-infinity' WHEN i % 7 = 0 THEN '4714-11-24 00:00:00+00 BC'::timestamptz ELSE now() END,
                 CASE WHEN i % 2 = 0 THEN decode(repeat('0000', 1), 'hex') ELSE ''::bytea END
                 || (SELECT string_agg(decode(lpad(to_hex((random() * 255 * ((i + k) % 3))::int4 % 256), 2, '0'), 'hex'), '')
                     FROM generate_series(1, (random() * 3)::int4 * 26 + CASE WHEN i % 2 = 0 THEN 24 ELSE i % 20 END) k)) AS t
      FROM generate_series(1, 3000) i) r}),
	"\nt|t", 'random bytes: attempts or an error');
ask('DROP TABLE saved');
is(ask("SELECT count(*) FROM outbox.attempts WHERE endpoint = 'batch'"), $n, 'repaired');

# --- A crash in between: what is shown twice was sent twice

ask("SELECT outbox.alter_endpoint('keyed', topics => '{all, crash}')");
ask("SELECT outbox.pause_endpoint('keyed')");
ask("SELECT count(outbox.emit('crash', jsonb_build_object('n', i), key => (i % 50)::text)) FROM generate_series(1, 3000) i");
ask("SELECT outbox.resume_endpoint('keyed')");
$receiver->wait_new(1000, '/ok/keyed');
kill_everything($node);
start_again($node);
ok(wait_settled($node), 'after a crash: all is delivered');
is( ask(q{SELECT count(*) FROM outbox.events e WHERE topic IN ('all', 'crash') AND NOT EXISTS
	(SELECT FROM outbox.attempts_page('keyed', event => e.id) a WHERE a.event_id = e.id AND a.status_code = 200)}),
	0, 'each event has the request that delivered it');
is(ask('SELECT count(*) FROM (SELECT FROM outbox.attempts GROUP BY event_id, endpoint, attempt, started_at HAVING count(*) > 1) d'), 0, 'none is there twice');

# --- Retention empties both kinds of tables together

my $piece = ask("SELECT piece FROM outbox.pieces WHERE log = 'attempts'");
my $next = ($piece + 1) % 3;
my $locker = $node->background_psql('postgres');
$locker->query_safe('BEGIN');
$locker->query_safe("LOCK TABLE outbox.attempt_runs_$next IN SHARE MODE");
ask("SELECT outbox.set_retention(attempts => '2 s')");
my $begun = ask('SELECT clock_timestamp()');
ok(wait_sql($node, "SELECT clock_timestamp() - '$begun' > interval '4 s'"), 'while the table of runs is locked');
is(ask("SELECT piece FROM outbox.pieces WHERE log = 'attempts'"), $piece, 'no piece is emptied');
is(ask("SELECT count(*) FROM outbox.held_steps WHERE step <> 'reload'"), 0, 'and nothing has waited for the lock but the settings');
$locker->query_safe('COMMIT');
$locker->quit;
ok(wait_sql($node, 'SELECT NOT EXISTS (SELECT FROM outbox.attempt_log) AND NOT EXISTS (SELECT FROM outbox.attempt_runs)'), 'then both are emptied');
is(ask('SELECT count(*) FROM outbox.attempts'), 0, 'and nothing is shown');

$node->stop;
done_testing();
