# A view names a worker that does nothing, and a transaction that keeps the log from shrinking.
# Rows that are being counted are counted elsewhere, and nothing is called exact by a process that has not looked.
# It takes long, so only LONG=1 make test and make matrix run it.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main', conf => "max_prepared_transactions = 5\n");
my $receiver = OutboxTest::Receiver->new('main');

endpoint($node, $receiver, 'a', '/ok/a', "topics => '{a.*}'");
$receiver->wait_delivered(1, id => emit($node, 'a.x', '{}'));
ok(wait_sql($node, "SELECT pending_exact AND pending = 0 AND delivered = 1 FROM outbox.stats"), 'an exact number');
is(ask('SELECT state FROM outbox.status'), 'running', 'running');

# --- A worker that is stopped
my $pid = worker_pid($node);
kill 'STOP', $pid;
ask("SELECT outbox.pause_endpoint('a')");
is(ask('SELECT state, processing, pending_exact FROM outbox.stats'), 'paused|0|f', 'nothing is exact of a pause that it has not heard of');
ask("SELECT outbox.resume_endpoint('a')");
my $id = emit($node, 'a.x', '{}');
ok(wait_sql($node, 'SELECT NOT pending_exact FROM outbox.stats'), 'what it has published is not called exact any more');
ok(wait_sql($node, "SELECT state = 'stuck' AND reason ~ 'the worker does nothing since' FROM outbox.status"), 'the status says that it is stuck');
is(ask("SELECT count(*) FROM outbox.workers WHERE state = 'stuck' AND pid = $pid AND last_loop_at < now() - interval '9 s'"), 1, 'and so does its row');
is(ask("SELECT string_agg(labels ->> 'state', ' ') FROM outbox.metrics() WHERE name = 'outbox_state' AND value = 1"), 'stuck', 'and the metric');
kill 'CONT', $pid;
$receiver->wait_delivered(1, id => $id);
ok(wait_sql($node, "SELECT state = 'running' AND reason IS NULL FROM outbox.status"), 'running again');
ok(wait_sql($node, 'SELECT pending_exact AND delivered = 2 FROM outbox.stats'), 'with an exact number');

# What it has published of a pause is not of the next one: it may have sent between the two.
ask("SELECT outbox.pause_endpoint('a')");
ok(wait_sql($node, "SELECT state = 'paused' AND pending_exact FROM outbox.stats"), 'it has heard of a pause');
kill 'STOP', $pid;
ask("SELECT outbox.${_}_endpoint('a')") foreach qw(resume pause);
is(ask('SELECT state, pending_exact FROM outbox.stats'), 'paused|f', 'and not of the next one');
kill 'CONT', $pid;
ok(wait_sql($node, "SELECT state = 'paused' AND pending_exact FROM outbox.stats"), 'until it has');
ask("SELECT outbox.resume_endpoint('a')");
$receiver->control(path => '/ok/a', behave => '/status/500');
emit($node, 'a.x', '{}') foreach 1 .. 20;
ok(wait_sql($node, "SELECT state = 'backing_off' FROM outbox.stats"), 'an endpoint that backs off');
ask("SELECT outbox.pause_endpoint('a')");
ok(wait_sql($node, "SELECT state = 'paused' AND pending_exact FROM outbox.stats"), 'its worker hears of a pause, too');
$receiver->control(path => '/ok/a', behave => '/ok');
ask("SELECT outbox.resume_endpoint('a')");
ok(wait_sql($node, 'SELECT pending_exact AND delivered = 22 AND retrying = 0 FROM outbox.stats'), 'all goes on');

# --- No worker at all
ask('ALTER SYSTEM SET max_worker_processes = 1');
$node->restart;
is(ask('SELECT count(*) FROM outbox.stats WHERE pending_exact'), 0, 'without a worker nothing is exact');
ask('ALTER SYSTEM RESET max_worker_processes');
$node->restart;
ok(wait_sql($node, 'SELECT bool_and(pending_exact) FROM outbox.stats'), 'with one it is');

# --- Rows that are counted in slices after a restart
ask("SELECT outbox.pause_endpoint('a')");
ask(q{INSERT INTO outbox.parked (endpoint_id, seq, event_id, status, reason, attempts, parked_at)
	SELECT s.endpoint_id, -n, gen_random_uuid(), 'dead', 'max_attempts', 1, now()
	FROM outbox.endpoint_settings s, generate_series(1, 200000) n});
ask(<<'SQL');
CREATE TABLE public.seen (dead int8, metric float8);
CREATE PROCEDURE public.look() LANGUAGE plpgsql AS $$
DECLARE
	s record;
	started timestamptz := (SELECT started_at FROM outbox.workers);
BEGIN
	LOOP
		SELECT t.dead, t.pending_exact AND w.started_at > started AND w.started_at < clock_timestamp() - interval '3 s' AS exact INTO s FROM outbox.stats t LEFT JOIN outbox.workers w ON true;
		INSERT INTO public.seen SELECT s.dead, value FROM outbox.metrics() WHERE name = 'outbox_deliveries' AND labels ->> 'status' = 'dead';
		EXIT WHEN s.exact;
		COMMIT;
	END LOOP;
END $$;
SQL
ask('SELECT pg_terminate_backend(pid) FROM outbox.workers');
ok(wait_sql($node, "SELECT dead = 200000 FROM outbox.stats"), 'all are counted');
ask('TRUNCATE public.seen');
$pid = worker_pid($node);
my $looks = $node->background_psql('postgres');
$looks->query_until(qr/begun/, "\\echo begun\nCALL public.look();\n");
ask("SELECT pg_terminate_backend($pid)");
$looks->quit;
cmp_ok(ask('SELECT count(*) FROM public.seen'), '>', 1, 'they were looked at meanwhile');
is(ask('SELECT min(dead), max(dead), COALESCE(min(metric), 200000), COALESCE(max(metric), 200000) FROM public.seen'), '200000|200000|200000|200000', 'no figure dips');
ask("TRUNCATE outbox.parked; SELECT outbox.resume_endpoint('a')");

# --- A transaction that has read a view
ask("UPDATE outbox.pieces SET since = now() - interval '30 days'");
is(ask('SELECT count(*) FROM outbox.status WHERE reason IS NOT NULL'), 0, 'nothing holds the log');
my $reader = $node->background_psql('postgres');
$reader->query('BEGIN; SELECT count(*) FROM outbox.deliveries;');
my $holder = $reader->query('SELECT pg_backend_pid()');
ok(wait_sql($node, "SELECT reason ~ '^retention overdue, held by pid $holder, since 20' AND retained_by IS NULL FROM outbox.status"), 'the status names the session')
  or diag ask('SELECT reason FROM outbox.status');
is(ask("SELECT value FROM outbox.metrics() WHERE name = 'outbox_retention_held'"), 1, 'the metric shows it');
$reader->query('ROLLBACK');
ok(wait_sql($node, 'SELECT reason IS NULL FROM outbox.status'), 'until it ends');
$reader->query('BEGIN; SELECT count(*) FROM outbox.attempts;');
$reader->query("PREPARE TRANSACTION 'forgotten'");
$reader->quit;
ok(wait_sql($node, "SELECT reason ~ '^retention overdue, held by the prepared transaction ''forgotten'', since 20' FROM outbox.status"), 'a prepared one is named');
ask("ROLLBACK PREPARED 'forgotten'");
ok(wait_sql($node, 'SELECT reason IS NULL FROM outbox.status'), 'until it ends');

# Rotation locks the settings of endpoints against changes, not against readers.
$reader = $node->background_psql('postgres');
$reader->query('BEGIN; LOCK TABLE outbox.endpoint_settings IN ROW SHARE MODE');
my $writer = $node->background_psql('postgres');
$holder = $writer->query("BEGIN; SELECT outbox.pause_endpoint('a') \\g /dev/null\nSELECT pg_backend_pid()");
ok(wait_sql($node, "SELECT reason ~ '^retention overdue, held by pid $holder, since 20' FROM outbox.status"), 'a session that has changed an endpoint is named');
$writer->quit;
ok(wait_sql($node, 'SELECT reason IS NULL FROM outbox.status'), 'one that has read them is not');
$reader->quit;

# Transactions that are short, and overlap: none of them is long enough to be named
sub keep_for
{
	my ($retention) = @_;
	ask("ALTER SYSTEM SET outbox.retention = '$retention'");
	$node->reload;
	return;
}
keep_for('2 s');
my @readers = map { $node->background_psql('postgres') } 0, 1;
my $read = 'BEGIN; SELECT count(*) FROM outbox.events';
my $turn = 0;
$readers[0]->query($read);
ok( (wait_until {
			$readers[++$turn % 2]->query($read);
			$readers[($turn + 1) % 2]->query('ROLLBACK');
			ask("SELECT s.reason ~ '^on hold: .*retention \\(locked\\)' AND h.last_error ~ '^\"outbox.events_[012]\" is locked' AND h.since < now() - interval '3 s'"
				  . " FROM outbox.status s, outbox.held_steps h WHERE h.step = 'retention'") eq 't'
		}
		'a report'),
	'the status says that the table is locked, and which one');
$_->quit foreach @readers;
ok(wait_sql($node, 'SELECT reason IS NULL FROM outbox.status'), 'until none has it');
keep_for('7 d');

# --- Positions cannot be moved to the other table
$reader = $node->background_psql('postgres');
$holder = $reader->query("BEGIN; SELECT count(*) FROM outbox.positions \\g /dev/null\nSELECT pg_backend_pid()");
is(ask('SELECT reason IS NULL FROM outbox.status'), 't', 'few of them are worth no word');
ask(<<'SQL');
INSERT INTO outbox.positions SELECT p.piece, -n, p.endpoint_id, p.shared, p.generation, p.read_tick, p.read, p.read_seq_low, p.reading_tick, p.reading,
	p.reading_seq_low, p.reading_seq_high, p.last_seq, p.pending, p.delivered, p.failed_attempts, p.settled_at, p.counters, p.failing_since, p.failing_told,
	p.state_since, p.probes
FROM (SELECT * FROM outbox.positions ORDER BY endpoint_id DESC, number DESC LIMIT 1) p, generate_series(1, 500000) n
SQL
cmp_ok(ask("SELECT pg_relation_size('outbox.positions_0') + pg_relation_size('outbox.positions_1')"), '>', 64 * 1024 * 1024, 'there are many');
ok(wait_sql($node, "SELECT reason ~ '^retention overdue, held by pid $holder, since 20' FROM outbox.status"), 'a session that has read them is named');
$reader->quit;

# --- A replay keeps what it has yet to read, though its endpoint is at the end of the log
ask("SELECT count(outbox.emit('z', '{}')) FROM generate_series(1, 5000)");
endpoint($node, $receiver, 'z', '/ok/z', "topics => '{z}', rate_limit => 0.01");
$receiver->wait_delivered(1, path => '/ok/z', id => emit($node, 'z', '{}'));
ask("SELECT outbox.replay('z', now() - interval '1 h'), outbox.resume_endpoint('a')");
ok(wait_sql($node, "SELECT retained_by = 'z' AND (SELECT count(*) = 1 FROM outbox.replays WHERE finished_at IS NULL AND last_seq > 0) FROM outbox.status"),
	'its endpoint is named, and no other one') or diag ask('SELECT retained_by FROM outbox.status');
ask("SELECT outbox.drop_endpoint('z', discard => true)");

# --- The numbers of endpoints go up to 2^31
ask("ALTER SEQUENCE outbox.endpoint_settings_endpoint_id_seq RESTART WITH 2147483647");
endpoint($node, $receiver, 'last', '/ok/last', "topics => '{last.*}'");
$receiver->wait_delivered(1, id => emit($node, 'last.x', '{}'));
ok(wait_sql($node, "SELECT delivered = 1 FROM outbox.stats WHERE endpoint = 'last'"), 'the last one works');
my ($launcher) = ask("SELECT pid FROM pg_stat_activity WHERE backend_type = 'outbox launcher'");
my $ticks = cpu_ticks($launcher);
ask('DROP EXTENSION outbox');
ok(wait_sql($node, "SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type LIKE 'outbox worker%'"), 'its worker ends');
ask('SET client_min_messages = error; CREATE EXTENSION outbox');
worker_pid($node);
endpoint($node, $receiver, 'anew', '/ok/anew', "topics => '{anew.*}'");
$receiver->wait_delivered(1, id => emit($node, 'anew.x', '{}'));
cmp_ok(cpu_ticks($launcher) - $ticks, '<', 300, 'the launcher does not count to 2^31');

$node->stop;
done_testing();
