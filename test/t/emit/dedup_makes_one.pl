# Of several emits with one dedup_key, exactly one makes an event, also when they are concurrent.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

endpoint($node, $receiver, 'a', '/ok/a');

sub session
{
	return $node->background_psql('postgres', on_error_stop => 0);
}

# Waits until some session waits for another one's transaction.
sub somebody_waits
{
	return wait_sql($node,
		"SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'transactionid'");
}

sub events
{
	my ($topic) = @_;
	return $node->safe_psql('postgres',
		"SELECT count(*) FROM outbox.events WHERE topic = '$topic'");
}

my $first = emit($node, 'a.b', '1', "dedup_key => 'k'");
is(emit($node, 'a.b', '2', "dedup_key => 'k'"), $first, 'again: the first id');
isnt(emit($node, 'a.c', '3', "dedup_key => 'k'"), $first, 'another topic: another event');
is(events('a.b'), '1', 'one event');

# The second waits for the first, which commits
my ($one, $two) = (session(), session());
my $id = $one->query_safe("BEGIN; SELECT outbox.emit('wait.b', '1', dedup_key => 'commit')");
$id =~ s/^.*\n//s;
my $before = $node->safe_psql('postgres', 'SELECT last_value FROM outbox.events_seq');
$two->query_until(qr/start/, <<'SQL');
\echo start
SELECT outbox.emit('wait.b', '2', dedup_key => 'commit');
SQL
somebody_waits();
$one->query_safe('COMMIT');
like($two->query_safe('SELECT 1'), qr/\Q$id\E/, 'the session that waited gets the id of the first');
is($node->safe_psql('postgres', 'SELECT last_value FROM outbox.events_seq'),
	$before, 'and had drawn no number');

# ... and which rolls back
$id = $one->query_safe("BEGIN; SELECT outbox.emit('wait.b', '3', dedup_key => 'rollback')");
$id =~ s/^.*\n//s;
$two->query_until(qr/start/, <<'SQL');
\echo start
SELECT outbox.emit('wait.b', '4', dedup_key => 'rollback');
SQL
somebody_waits();
$one->query_safe('ROLLBACK');
unlike($two->query_safe('SELECT 1'), qr/\Q$id\E/, 'the session that waited emits when the first rolls back');
is( $node->safe_psql('postgres',
		"SELECT string_agg(payload::text, ',' ORDER BY seq) FROM outbox.events WHERE topic = 'wait.b'"),
	'1,4', 'one event each');

# REPEATABLE READ: a key that was used after its snapshot
$one->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');
emit($node, 'rr.b', '1', "dedup_key => 'k'");
$one->query(<<'SQL');
DO $$ BEGIN PERFORM outbox.emit('rr.b', '2', dedup_key => 'k');
EXCEPTION WHEN serialization_failure THEN PERFORM set_config('outbox_test.saw', '40001', false); END $$;
SQL
$one->query_safe('COMMIT');
is($one->query_safe("SELECT current_setting('outbox_test.saw', true)"), '40001', 'REPEATABLE READ: 40001');
is(events('rr.b'), '1', 'and one event');
$one->quit;
$two->quit;

# A scheduled event that is cancelled frees its key, and no other one
my @later = map { emit($node, 'later.b', '1', "dedup_key => '$_', deliver_at => now() + interval '1 h'") } 'gone', 'stays';
is(emit($node, 'later.b', '2', "dedup_key => 'gone'"), $later[0], 'a scheduled event has its key');
is($node->safe_psql('postgres', "SELECT outbox.cancel('$later[0]')"), 't', 'it is cancelled');
isnt(emit($node, 'later.b', '3', "dedup_key => 'gone'"), $later[0], 'and its key is free');
is(emit($node, 'later.b', '4', "dedup_key => 'stays'"), $later[1], 'the other key is not');
is(events('later.b'), '1', 'one event was emitted instead');
$node->safe_psql('postgres', "SELECT outbox.emit('later.b', '1', dedup_key => 'other' || n) FROM generate_series(1, 100) n");
is( $node->safe_psql('postgres', <<SQL), "t\n1", 'it goes as well, and no other key is looked at');
SET enable_seqscan = off;
BEGIN;
SELECT outbox.cancel('$later[1]');
SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_all_tables WHERE relid = 'outbox.dedup'::regclass;
COMMIT;
SQL

# Many at once: the same keys by several sessions, some of which roll back
my $script = $node->basedir . '/dedup.sql';
append_to_file($script, <<'SQL');
\set k random(1, 200)
\set rollback random(1, 4) = 1
BEGIN;
INSERT INTO seen SELECT :k, outbox.emit('many.b', to_jsonb(:k), dedup_key => 'k' || :k);
\if :rollback
ROLLBACK;
\else
COMMIT;
\endif
SQL
$node->safe_psql('postgres', 'CREATE TABLE seen (k int, id uuid)');
$node->command_ok(
	[
		'pgbench', '-n', '-h', $node->host, '-p', $node->port, '-f', $script,
		'-c', '8', '-t', '400', 'postgres'
	],
	'eight sessions');
is( $node->safe_psql(
		'postgres', 'SELECT count(*) FROM (SELECT k FROM seen GROUP BY k HAVING count(DISTINCT id) <> 1) s'),
	'0', 'all of them got the same id for the same key');
is( $node->safe_psql(
		'postgres',
		"SELECT count(*) FROM (SELECT payload FROM outbox.events WHERE topic = 'many.b'"
		  . " GROUP BY payload HAVING count(*) <> 1) s"),
	'0', 'and each key has one event');
is( $node->safe_psql(
		'postgres',
		"SELECT count(*) FROM seen s WHERE NOT EXISTS (SELECT FROM outbox.events e WHERE e.id = s.id)"),
	'0', 'which exists');
wait_settled($node);
is(scalar(() = $receiver->requests(topic => 'many.b')), events('many.b'), 'each is sent once');

# SERIALIZABLE transactions with different keys do not conflict, whatever else they do
$_->query_safe('BEGIN ISOLATION LEVEL SERIALIZABLE') for $one, $two;
for my $n (1, 2)
{
	$one->query_safe("SELECT outbox.emit('serial.b', '1', dedup_key => 'one-$n')");
	$two->query_safe("SELECT outbox.emit('serial.b', '2', dedup_key => 'two-$n')");
}
$_->query('COMMIT') for $one, $two;
is(events('serial.b'), '4', 'SERIALIZABLE: keys that never meet');

# Keys whose time is over count no more, and are removed
is( $node->safe_psql('postgres', 'SELECT count(*) > 100 FROM outbox.dedup'),
	't', 'keys are kept');
$node->append_conf('postgresql.conf', "outbox.dedup_window = 1s\n");
$node->reload;
wait_sql($node, "SELECT setting = '1' FROM pg_settings WHERE name = 'outbox.dedup_window'");
wait_sql($node, "SELECT clock_timestamp() > pg_conf_load_time() + interval '1 s'");
isnt(emit($node, 'a.b', '5', "dedup_key => 'k'"), $first, 'the key is free again');
ok(wait_sql($node, 'SELECT count(*) = 0 FROM outbox.dedup'), 'the worker removes old keys');
emit($node, 'a.b', '6', "dedup_key => 'x'");
ok(wait_sql($node, 'SELECT count(*) = 0 FROM outbox.dedup'), 'and does so again');

# VACUUM found the table empty: in a transaction with many keys each is still
# looked for by its index.
$node->append_conf('postgresql.conf', "outbox.dedup_window = 1h\n");
$node->reload;
$node->safe_psql('postgres', 'VACUUM ANALYZE outbox.dedup');
is( $node->safe_psql('postgres', <<'SQL'),
BEGIN;
SELECT count(outbox.emit('a.bulk', '{}'::jsonb, dedup_key => n::text))
FROM generate_series(1, 1000) n \g /dev/null
SELECT seq_tup_read FROM pg_stat_xact_all_tables WHERE relid = 'outbox.dedup'::regclass;
COMMIT;
SQL
	'0', 'a thousand keys in a transaction: the table is not walked for each');

$node->stop;
done_testing();
