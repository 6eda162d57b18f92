# Positions are found by index, and reading the views holds up nothing that is done to them.
# A transaction on a standby that has read them is not ended by routine work.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main', streaming => 1);
my $receiver = OutboxTest::Receiver->new('main');

endpoint($node, $receiver, 'a', '/ok/a', "topics => '{a.*}'");
endpoint($node, $receiver, 'idle', '/ok/idle', "topics => '{idle}'");
my $id = emit($node, 'a.one', '{}');
$receiver->wait_delivered(1, id => $id);
ok(wait_settled($node), 'delivered');
$node->backup('backup');

my @views = split /\n/, ask("SELECT 'SELECT count(*) FROM ' || oid::regclass FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'v' ORDER BY 1");
push @views, 'SELECT count(*) FROM outbox.metrics()', "SELECT count(*) FROM outbox.deliveries_page('a')";
cmp_ok(scalar @views, '>', 15, 'there are views');

# --- A transaction that has read views holds no lock of the positions

my $reader = $node->background_psql('postgres');
foreach my $view (@views)
{
	$reader->query_safe('BEGIN');
	$reader->query_safe($view);
	# Views that show events name the pieces of the log or of attempts, which are emptied in turn.
	my $emptied = $view =~ /attempts|events|dead_letters|deliveries|outgoing|dump|ticks/ ? '^outbox.position' : '^outbox.(position|events_[0-9]|ticks|attempt_)';
	is($reader->query_safe("SELECT string_agg(relation::regclass::text, ' ') FROM pg_locks WHERE pid = pg_backend_pid() AND relation::regclass::text ~ '$emptied'"),
		'', "$view: no lock is kept");
	$reader->query_safe('ROLLBACK');
}

# --- Nor on a standby, where the replay of a TRUNCATE would cancel it

my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->append_conf('postgresql.conf', "max_standby_streaming_delay = 1s\nhot_standby_feedback = off\n");
$standby->start;
$node->wait_for_catchup($standby);
my $far = $standby->background_psql('postgres');
$far->query_safe('BEGIN');
$far->query_safe($_) foreach grep { !/attempts|events|dead_letters|deliveries|ticks|dump/ } @views;
my $piece = ask('SELECT piece FROM outbox.positions ORDER BY number DESC LIMIT 1');
my $other = 1 - $piece;
ask("TRUNCATE outbox.positions_$other");
$node->wait_for_catchup($standby);
is($far->query_safe("SELECT count(*) FROM outbox.stats"), 2, 'a transaction on a standby outlives the TRUNCATE of positions');
$far->query_safe('COMMIT');

# VACUUM cuts no table off either, however many rows at its end are gone
$far->query_safe('BEGIN');
$far->query_safe($_) foreach @views;
ask("BEGIN; INSERT INTO outbox.parked (endpoint_id, seq, event_id, status, reason, attempts, parked_at)"
	  . " SELECT endpoint_id, -n, gen_random_uuid(), 'dead', 'max_attempts', 1, now() FROM outbox.endpoint_settings, generate_series(1, 20000) n; ROLLBACK");
ask('VACUUM outbox.parked');
$node->wait_for_catchup($standby);
is($far->query_safe("SELECT count(*) FROM outbox.dead_letters"), 0, 'nor does VACUUM end a transaction that has read all views');
$far->query_safe('COMMIT');
is(ask("SELECT string_agg(relname, ' ') FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'r' AND relname <> 'kept_events' AND 'vacuum_truncate=off' <> ALL (coalesce(reloptions, '{}'))"),
	'', 'which is so for each table but the one with copies of payloads');
is($standby->safe_psql('postgres', "SELECT string_agg(endpoint || delivered, ' ' ORDER BY endpoint) FROM outbox.stats"), 'a1 idle0', 'and it shows figures');

# --- An old snapshot does not see the rows that came after it, and those that it saw are gone

sub move
{
	ask(<<SQL);
BEGIN;
LOCK outbox.positions_$piece, outbox.positions_$other;
INSERT INTO outbox.positions_$other SELECT DISTINCT ON (endpoint_id) $other, number, endpoint_id, shared, generation, read_tick, read,
	read_seq_low, reading_tick, reading, reading_seq_low, reading_seq_high, last_seq, pending, delivered, failed_attempts,
	settled_at, counters, failing_since, failing_told, state_since, probes
FROM outbox.positions ORDER BY endpoint_id, number DESC ON CONFLICT DO NOTHING;
TRUNCATE outbox.positions_$piece;
COMMIT;
SQL
}
my $old = $node->background_psql('postgres');
$old->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ');
$old->query_safe('SELECT 1');
move();
is($old->query_safe("SELECT status FROM outbox.deliveries WHERE event_id = '$id'"), 'delivered', 'a delivery is one in an old snapshot, too');
$old->query_safe('ROLLBACK');

# --- Nor does it see the position of an endpoint that began to follow the others since.  Both are then read as of one moment

my $keeps = $node->background_psql('postgres', on_error_stop => 1);
$keeps->query_safe('BEGIN; LOCK outbox.positions IN SHARE MODE');
$receiver->wait_delivered(1, id => emit($node, 'a.unstored', '{}'));
endpoint($node, $receiver, 'fresh', '/ok/fresh', "topics => '{fresh}'");
$old->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ');
$old->query_safe('SELECT 1');
$keeps->query_safe('COMMIT');
$keeps->quit;
ok( wait_sql($node,
		"SELECT shared IS NOT NULL FROM outbox.positions WHERE endpoint_id = (SELECT endpoint_id FROM outbox.endpoint_settings WHERE name = 'fresh') ORDER BY number DESC LIMIT 1"),
	'it follows the others');
is($old->query_safe("SELECT p.seq >= s.start_seq_low FROM outbox.endpoint_positions p JOIN outbox.endpoint_settings s USING (name) WHERE name = 'fresh'"),
	't', 'its position is not before its start');
$old->query_safe('ROLLBACK');
ask("SELECT outbox.drop_endpoint('fresh')");

# --- An endpoint that has no stored position yet, where PostgreSQL would read in parallel

my $parallel = $node->pg_version >= 16 ? 'debug_parallel_query' : 'force_parallel_mode';
is(ask("BEGIN; SELECT outbox.create_endpoint('begins', '" . $receiver->url('/ok/begins') . "') \\g /dev/null\nSET LOCAL $parallel = on; SELECT count(read) FROM outbox.endpoint_positions; ROLLBACK"),
	3, 'each has a position, also in a parallel query');

# --- A start reads the newest row of each

my $in_use = 'SELECT piece FROM outbox.positions ORDER BY number DESC LIMIT 1';

sub fill
{
	ask(<<SQL);
INSERT INTO outbox.positions SELECT ($in_use), -n, p.endpoint_id, p.shared, p.generation, p.read_tick, p.read, p.read_seq_low, p.reading_tick,
	p.reading, p.reading_seq_low, p.reading_seq_high, p.last_seq, p.pending, p.delivered, p.failed_attempts, p.settled_at, p.counters,
	p.failing_since, p.failing_told, p.state_since, p.probes
FROM (SELECT DISTINCT ON (endpoint_id) * FROM outbox.positions ORDER BY endpoint_id, number DESC) p, generate_series(1, 15000) n
SQL
}
# A standby that is read, and says so, so that the rows stay
$standby->append_conf('postgresql.conf', "hot_standby_feedback = on\nwal_receiver_status_interval = 1s\n");
$standby->reload;
ok(wait_sql($node, 'SELECT bool_or(backend_xmin IS NOT NULL) FROM pg_stat_activity WHERE backend_type = \'walsender\''), 'a standby is read');
$node->stop;
$node->start;
ok(wait_sql($node, 'SELECT bool_or(backend_xmin IS NOT NULL) FROM pg_stat_activity WHERE backend_type = \'walsender\''), 'and connected again');
fill();
my $rows = ask('SELECT count(*) FROM outbox.positions');
cmp_ok($rows, '>', 40000, 'there are many rows');
my $reads = "SELECT COALESCE(sum(seq_tup_read), 0) + COALESCE(sum(idx_tup_fetch), 0) FROM pg_stat_user_tables WHERE relname LIKE 'positions_%'";
ask("SELECT pg_stat_reset_single_table_counters(oid) FROM pg_class WHERE relname IN ('positions_0', 'positions_1')");
replace_worker($node);
$id = emit($node, 'a.two', '{}');
$receiver->wait_delivered(1, id => $id);
ok(wait_settled($node), 'a worker starts, and delivers');
replace_worker($node);    # statistics are reported at the latest when it ends
cmp_ok(ask($reads), '<', 2000, 'and has read a small part of them');
cmp_ok(ask('SELECT count(*) FROM outbox.positions'), '>=', $rows, 'which are not emptied while a standby is read');

# --- Without it they are, once

$standby->stop;
wait_until
{
	emit($node, 'a.more', '{}');
	ask("SELECT count(*) < 1000 FROM outbox.positions WHERE piece = ($in_use)") eq 't';
}
'they are moved when no standby is read';
$receiver->wait_delivered(1, id => emit($node, 'a.moved', '{}'));
ok(wait_settled($node), 'and go on in the other table');

# --- The table that they were moved from has them for those with an older snapshot, like pg_dump

$old = $node->background_psql('postgres');
$old->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ');
$old->query_safe('SELECT 1');
my $from = ask($in_use);
fill();
# As if a worker had written all rows of one to the table that it had left
ask("DELETE FROM outbox.positions WHERE piece <> $from AND endpoint_id = (SELECT endpoint_id FROM outbox.endpoint_settings WHERE name = 'idle');"
	  . " UPDATE outbox.positions SET piece = 1 - piece WHERE endpoint_id = (SELECT endpoint_id FROM outbox.endpoint_settings WHERE name = 'idle')");
$receiver->wait_delivered(1, id => emit($node, 'a.late', '{}'));
ok(wait_settled($node), 'the newest row is in the table in use');
replace_worker($node);
$id = emit($node, 'a.three', '{}');
$receiver->wait_delivered(1, id => $id);
wait_status($node, $id, 'delivered', 'delivered, and shown as that');
wait_until
{
	emit($node, 'a.more', '{}');
	ask($in_use) ne $from;
}
'they are moved again';
is(ask("SELECT count(DISTINCT endpoint_id) FROM outbox.positions WHERE piece <> $from AND endpoint_id > 0"), 2, 'from whichever table they are in');
cmp_ok(ask("SELECT count(*) FROM outbox.positions WHERE piece <> $from"), '<', 1000, 'into a table that was emptied');
is($old->query_safe('SELECT count(DISTINCT endpoint_id) FROM outbox.positions WHERE endpoint_id > 0'), 2, 'an old snapshot sees the positions of both endpoints');
$old->query_safe('ROLLBACK');
$old->quit;

# --- Figures are not counted by reading all that waits

my $many = 50_000;
ask("INSERT INTO outbox.scheduled (id, deliver_at, xid, epoch, created_at, topic, payload) SELECT gen_random_uuid(), now() + interval '1 day',"
	  . " pg_current_xact_id(), outbox.current_epoch(), now(), 'a.later', '{}' FROM generate_series(1, $many)");
ask("INSERT INTO outbox.refused_events (source, event, error) SELECT 's', '{}', 'e' FROM generate_series(1, $many)");
ask("BEGIN; INSERT INTO outbox.commands (endpoint_id, action, seq) SELECT 0, 'retry', n FROM generate_series(1, $many) n;"
	  . ' SELECT count(*) FROM outbox.metrics(); SELECT count(*) FROM outbox.metrics(); ROLLBACK');
ok(wait_sql($node, "SELECT bool_and(n_tup_ins >= $many) FROM pg_stat_user_tables WHERE relname IN ('commands', 'refused_events', 'scheduled')"), 'much waits');
is(ask("SELECT string_agg(relname || ' ' || seq_tup_read + COALESCE(idx_tup_fetch, 0), ', ') FROM pg_stat_user_tables WHERE relname IN ('commands', 'refused_events', 'scheduled') AND seq_tup_read + COALESCE(idx_tup_fetch, 0) > 1.5 * $many"),
	'', 'and two calls of metrics() do not read it all');
is(ask("SELECT string_agg(labels ->> 'what' || value, ' ' ORDER BY 1) FROM outbox.metrics() WHERE name = 'outbox_set_aside'"),
	'command0 scheduled0 source10001', 'more than 10000 are not counted');

$node->stop;
done_testing();
