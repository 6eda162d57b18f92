# A REINDEX, a REPACK or a damaged row holds up only steps that need it, and the worker goes on.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main', streaming => 1);
my $receiver = OutboxTest::Receiver->new('main');
my $offset = 0;

# How often a process is seen waiting for a lock, within 2.5 s
ask(<<'SQL');
CREATE FUNCTION public.waits(worker int) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE n bigint := 0;
BEGIN
	FOR i IN 1 .. 100 LOOP
		n := n + (SELECT count(*) FROM pg_locks WHERE pid = worker AND NOT granted);
		PERFORM pg_sleep(0.025);
	END LOOP;
	RETURN n;
END $$
SQL
endpoint($node, $receiver, 'ok', '/ok/a', "topics => '{ok.*}'");
endpoint($node, $receiver, 'slow', '/slow/b?ms=3000', "topics => '{slow.*}'");
endpoint($node, $receiver, 'retry', '/ok/c', "topics => '{retry.*}', backoff_base => '20 ms', backoff_max => '20 ms'");
my $pid = worker_pid($node);
my $first = emit($node, 'ok.first', '{}');
wait_status($node, $first, 'delivered', 'it works');

# A tick is written under a lock on its table: VACUUM FULL would lose it.
my $ticks = 'SELECT count(*) FROM outbox.ticks';
my $shared = 'FROM outbox.positions WHERE endpoint_id < 0';
my $holder = $node->background_psql('postgres');
$holder->query_safe('BEGIN; LOCK TABLE outbox.ticks IN ACCESS EXCLUSIVE MODE');
my ($before, $number) = ($holder->query_safe($ticks), ask("SELECT COALESCE(max(number), 0) $shared"));
emit($node, 'ok.first', '{}');
ok(wait_sql($node, "SELECT max(number) > $number $shared"), 'ticks are locked: the shared position is written');
is($holder->query_safe($ticks), $before, 'without a tick');
$holder->query_safe('COMMIT');
$holder->quit;

# Nothing that the worker needs may be waited for: neither the log nor the retries
foreach my $what ('TABLE outbox.events_0', 'TABLE outbox.events_1', 'INDEX outbox.events_0_xid_seq_idx',
	'TABLE outbox.parked', 'TABLE outbox.kept_events', 'TABLE outbox.scheduled', 'TABLE outbox.positions_0')
{
	my $session = $node->background_psql('postgres');
	my $slow = emit($node, 'slow.n', '{}');

	$receiver->control(path => '/ok/c', behave => '/status/500');
	my $retry = emit($node, 'retry.n', '{}');
	wait_status($node, $retry, 'retrying', "$what: a delivery waits for its retry");
	$session->query_safe("BEGIN; REINDEX $what");
	$receiver->control(path => '/ok/c', behave => '/ok');
	# For as long as it took a waiting worker to end
	sleeps_meanwhile($pid, 40, "$what: and sleeps meanwhile",
		sub { is(ask("SELECT public.waits($pid)"), '0', "$what: the worker waits for no lock") });
	is(worker_pid($node), $pid, "$what: the worker lives while it is made anew");
	ok(wait_sql($node, "SELECT COALESCE(max(clock_timestamp() - last_loop_at), '0') < '1.5 s' FROM outbox.worker_slots()"),
		"$what: and its loop goes on");
	$session->query_safe('COMMIT');
	$session->quit;
	wait_status($node, $slow, 'delivered', "$what: what was in flight is delivered");
	is(scalar(() = $receiver->requests(id => $slow)), 1, "$what: once");
	wait_status($node, $retry, 'delivered', "$what: the retry as well");
}

# The same for tables that are not read each time
sub waits_for_nothing
{
	my ($name, $lock, $code) = @_;
	my $session = $node->background_psql('postgres');

	$session->query_safe("BEGIN; $lock");
	$code->();
	is(ask("SELECT public.waits($pid)"), '0', "$name: the worker waits for no lock");
	$session->query_safe('COMMIT');
	$session->quit;
	return;
}

# Memory has not all retries of an endpoint, and looks up the key of each event.
endpoint($node, $receiver, 'many', '/ok/many', "topics => '{many.*}', backoff_max => '1 h'");
ask(<<'SQL');
INSERT INTO outbox.parked (endpoint_id, seq, event_id, key, status, attempts, next_attempt_at, parked_at)
SELECT endpoint_id, -n, gen_random_uuid(), 'k', 'retrying', 1, now() + interval '30 min', now()
FROM outbox.endpoint_settings, generate_series(1, 20001) n WHERE name = 'many'
SQL
$pid = replace_worker($node);
my $keyed = emit($node, 'many.n', '{}', "key => 'first'");
$receiver->wait_delivered(1, id => $keyed);
waits_for_nothing('a new key', 'REINDEX TABLE outbox.parked', sub { $keyed = emit($node, 'many.n', '{}', "key => 'new'") });
$receiver->wait_delivered(1, id => $keyed);

# An endpoint with a full window comes to the events before one that was cancelled.
endpoint($node, $receiver, 'far', '/ok/far', "topics => '{far.*}', max_in_flight => 64");
$receiver->control(path => '/ok/far', behave => '/hold');
my @far = split /\n/, ask("SELECT outbox.emit('far.n', '{}') FROM generate_series(1, 1500)");
ask("SELECT outbox.cancel('$far[-1]')");
wait_status($node, $far[-1], 'cancelled', 'one is cancelled before it is read');
waits_for_nothing('a cancelled event', 'REINDEX TABLE outbox.parked', sub {
	$receiver->control(path => '/ok/far', behave => '/ok');
	$receiver->wait_delivered(500, path => '/ok/far');
});
$receiver->wait_delivered(@far - 1, path => '/ok/far');
is(scalar(() = $receiver->requests(id => $far[-1])), 0, 'it is not sent');

# The event of a retry is kept, because its piece of the log was emptied.
$receiver->control(path => '/ok/c', behave => '/status/500');
my $kept = emit($node, 'retry.n', '{}');
wait_status($node, $kept, 'retrying', 'a delivery waits for its retry');
ask("SELECT outbox.set_retention(events => '1 s')");
ok( wait_sql($node, "SELECT EXISTS (SELECT FROM outbox.kept_events WHERE id = '$kept') AND NOT EXISTS (SELECT FROM outbox.events WHERE id = '$kept')"),
	'its event is kept, and not in the log any more');
ask("SELECT outbox.set_retention(reset => '{events}')");
waits_for_nothing('a kept event', 'REINDEX TABLE outbox.kept_events', sub { $receiver->control(path => '/ok/c', behave => '/ok') });
wait_status($node, $kept, 'delivered', 'its retry is sent');

# Settings have changed.  First the list of forget() cannot be read, and then they cannot.
my $changed;
$holder = $node->background_psql('postgres');
$holder->query_safe('BEGIN; LOCK TABLE outbox.forgotten IN ACCESS EXCLUSIVE MODE');
ask("SELECT outbox.alter_endpoint('retry', label => 'changed')");
waits_for_nothing('changed settings', 'LOCK TABLE outbox.endpoint_secrets IN ACCESS EXCLUSIVE MODE', sub {
	$holder->query_safe('COMMIT');
	$changed = emit($node, 'ok.changed', '{}');
});
$holder->quit;
$receiver->wait_delivered(1, id => $changed);
ok(wait_sql($node, 'SELECT count(*) = 0 FROM outbox.held_steps'), 'then no step is on hold');

# Any table may be made anew while events flow
SKIP:
{
	skip 'PostgreSQL before 19 has no REPACK', 3 if $node->pg_version < 19;
	my @ids;

	foreach my $table (split /\n/, ask("SELECT oid::regclass FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'r'"))
	{
		foreach my $how ('', '(CONCURRENTLY)')
		{
			push @ids, emit($node, 'ok.repack', '{}');
			ask("REPACK $how $table");
		}
	}
	$receiver->wait_delivered(1, id => $_) foreach @ids;
	is(scalar(grep { scalar(() = $receiver->requests(id => $_)) != 1 } @ids), 0, 'REPACK: each event is delivered once');
	is(worker_pid($node), $pid, 'REPACK: by the same worker');
	ok(wait_sql($node, 'SELECT count(*) = 0 FROM outbox.held_steps'), 'REPACK: no step stays on hold');
}
is(ask("SELECT reason FROM outbox.status"), '', 'nothing is on hold');
unlike(PostgreSQL::Test::Utils::slurp_file($node->logfile), qr/ERROR:  (?!.*statement|canceling autovacuum task)|outbox step .* failed/, 'no error in the log');

# A damaged row: a chunk of the payload is missing
SKIP:
{
	skip 'pg_surgery is not there', 13
	  unless ask("SELECT count(*) FROM pg_available_extensions WHERE name = 'pg_surgery'");
	ask('CREATE EXTENSION pg_surgery');
	ask("SELECT outbox.pause_endpoint('ok')");
	my @ids = split /\n/, ask(<<'SQL');
SELECT outbox.emit('ok.large', jsonb_build_object('n', n, 'x',
	(SELECT string_agg(md5(n || '.' || i), '') FROM generate_series(1, 500) i))) FROM generate_series(1, 3) n
SQL
	my $piece = ask("SELECT tableoid::regclass FROM outbox.events WHERE id = '$ids[1]'");
	my $toast = ask("SELECT reltoastrelid::regclass FROM pg_class WHERE oid = '$piece'::regclass");
	my $chunks = ask("SELECT count(DISTINCT chunk_id) FROM $toast");
	my $tids = ask("SELECT array_agg(ctid) FROM $toast"
		  . " WHERE chunk_id = (SELECT DISTINCT chunk_id FROM $toast ORDER BY 1 OFFSET $chunks - 2 LIMIT 1)");
	ask("SELECT heap_force_kill('$toast'::regclass, '$tids'::tid[])");
	# The worker reads for another endpoint all the time, also at the moment when a hold ends.
	my $offset_before = -s $node->logfile;
	my $producer = start_producer($node, PostgreSQL::Test::Utils::tempdir() . '/producer', rate => 500, topic => 'slow.n', seconds => 20);
	ask("SELECT outbox.resume_endpoint('ok')");
	$receiver->wait_delivered(1, id => $_) foreach @ids[ 0, 2 ];
	stop_producer($producer);
	my $holds = () = PostgreSQL::Test::Utils::slurp_file($node->logfile, $offset_before) =~ /step "read" for endpoint \d+ failed/g;
	is($holds, 1, 'a damaged row: reading fails once for it');
	pass('a damaged row: those before and after it are delivered');
	ok(wait_sql($node, "SELECT count(*) = 1 FROM outbox.parked WHERE event_id = '$ids[1]' AND status = 'dead' AND reason = 'unreadable'"),
		'its delivery is dead, and says why');
	ok(wait_sql($node, 'SELECT count(*) = 0 FROM outbox.held_steps'), 'reading goes on');
	my $last = emit($node, 'ok.last', '{}');
	$receiver->wait_delivered(1, id => $last);
	ask("SELECT outbox.retry('ok')");
	ok(wait_sql($node, "SELECT count(*) = 1 FROM outbox.parked WHERE event_id = '$ids[1]' AND status = 'dead' AND attempts = 0"),
		'tried again, it is dead again');
	$last = emit($node, 'ok.last', '{}');
	$receiver->wait_delivered(1, id => $last);

	# The same for an endpoint that reads with the head: no event is counted twice
	ok(wait_sql($node, "SELECT shared IS NOT NULL FROM outbox.positions JOIN outbox.endpoint_settings"
			  . " USING (endpoint_id) WHERE name = 'ok' ORDER BY number DESC LIMIT 1"), 'it reads with the head');
	my $damaged = ask(<<'SQL');
BEGIN;
SELECT outbox.emit('ok.large', jsonb_build_object('x', (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 500) i))) AS id \gset
SELECT reltoastrelid::regclass AS toast FROM outbox.events e JOIN pg_class c ON c.oid = e.tableoid WHERE e.id = :'id' \gset
SELECT array_agg(ctid) AS tids FROM :toast WHERE chunk_id = (SELECT max(chunk_id) FROM :toast) \gset
SELECT heap_force_kill(:'toast'::regclass, :'tids'::tid[]) \g /dev/null
COMMIT;
SELECT :'id';
SQL
	ok(wait_sql($node, "SELECT count(*) = 1 FROM outbox.parked WHERE event_id = '$damaged' AND status = 'dead' AND reason = 'unreadable'"),
		'its delivery is dead as well');
	$last = emit($node, 'ok.last', '{}');
	$receiver->wait_delivered(1, id => $last);
	endpoint_shows($node, 'ok', 'pending = 0 AND dead = 2', 'and nothing is pending');

	# The same with its settings, until they are repaired
	my $change = "outbox.endpoint_changed(endpoint_id) FROM outbox.endpoint_settings WHERE name = 'ok'";
	ask(<<"SQL");
BEGIN;
UPDATE outbox.endpoint_settings SET revision = revision + 1,
	headers = (SELECT jsonb_object_agg('x' || i, md5(i::text)) FROM generate_series(1, 500) i) WHERE name = 'ok';
SELECT reltoastrelid::regclass AS toast FROM pg_class WHERE oid = 'outbox.endpoint_settings'::regclass \\gset
SELECT array_agg(ctid) AS tids FROM :toast \\gset
SELECT heap_force_kill(:'toast'::regclass, :'tids'::tid[]) \\g /dev/null
SELECT $change \\g /dev/null
COMMIT;
SQL
	ok(wait_sql($node, "SELECT count(*) = 1 FROM outbox.held_steps WHERE step = 'reload' AND endpoint = 'ok'"), 'its settings cannot be read');
	ask("SET session_replication_role = replica; UPDATE outbox.endpoint_settings SET headers = NULL WHERE name = 'ok'; RESET session_replication_role; SELECT $change");
	$last = emit($node, 'ok.last', '{}');
	$receiver->wait_delivered(1, id => $last);
	is(ask("SELECT count(*) FROM outbox.held_steps WHERE step = 'reload'"), 0, 'when it reads on, they are not on hold');
	is(worker_pid($node), $pid, 'the worker is still the same');
}
$node->stop;
done_testing();
