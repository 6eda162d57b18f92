# An event with deliver_at is delivered at its time, once, in the order of the times.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main', conf => <<'CONF');
max_prepared_transactions = 10
outbox.wakeup_interval = 60s
CONF
my $receiver = OutboxTest::Receiver->new('main');

endpoint($node, $receiver, 'a', '/ok/a', "topics => '{order.*}'");
endpoint($node, $receiver, 'b', '/ok/b',
	"topics => '{order.*}', filter => '\$.n > 1'");
endpoint($node, $receiver, 'other', '/ok/other', "topics => '{invoice.*}'");

sub count
{
	my ($table) = @_;
	return $node->safe_psql('postgres', "SELECT count(*) FROM outbox.$table");
}

# Before, at, and after its time
my ($id, $due, $shown) = split /\n/, $node->safe_psql('postgres', <<'SQL');
SELECT outbox.emit('order.due', '{"n": 1}', key => 'k', deliver_at => clock_timestamp() + interval '5 s') AS id \gset
SELECT :'id';
SELECT extract(epoch FROM deliver_at) FROM outbox.scheduled;
SELECT endpoint, status, seq IS NULL, attempts, key, type, next_attempt_at > now()
FROM outbox.deliveries WHERE event_id = :'id';
SQL
is($shown,
	'a|scheduled|t|0|k|order.due|t',
	'outbox.deliveries shows it, where it is subscribed to');
my $now = emit($node, 'order.now', '{"n": 1}', "key => 'k'");
$receiver->wait_delivered(1, path => '/ok/a', id => $now);
my ($request) = $receiver->wait_delivered(1, path => '/ok/a', id => $id);
my $late = $request->{wall} - $due;
cmp_ok($late, '>=', 0, 'it is not sent before its time');
cmp_ok($late, '<', 30, 'and then it is, without waiting for wakeup_interval');
wait_status($node, $id, 'delivered', 'delivered, under the same id');
is(count('scheduled'), '0', 'and scheduled no more');
is( $node->safe_psql('postgres',
		"SELECT topic, key, payload, seq > 0 FROM outbox.events WHERE id = '$id'"),
	'order.due|k|{"n": 1}|t',
	'it is in the log');

# The earliest comes first, whatever the order of the emits.  Equal times come in the
# order of the emits
$node->safe_psql('postgres', <<'SQL');
WITH t AS MATERIALIZED (SELECT clock_timestamp() + interval '4 s' AS due)
SELECT outbox.emit('order.rank', jsonb_build_object('n', 1, 'rank', rank), key => 'rank',
                   deliver_at => due + least(rank, 5) * interval '50 ms')
FROM t, unnest(ARRAY[3, 5, 1, 6, 4, 7, 2]) rank;
SQL
my @ranks = map { $_->{body} =~ /"rank": ?(\d)/ } $receiver->wait_delivered(7, path => '/ok/a', topic => 'order.rank');
is("@ranks", '1 2 3 4 5 6 7', 'in the order of their times');

# Not before the commit, and never after a rollback
my $session = $node->background_psql('postgres', on_error_stop => 0);
$session->query_safe(<<'SQL');
BEGIN;
SELECT outbox.emit('order.held', '{"n": 2}', deliver_at => clock_timestamp() + interval '100 ms');
SQL
$node->safe_psql('postgres', <<'SQL');
BEGIN;
SELECT outbox.emit('order.never', '{"n": 2}', deliver_at => clock_timestamp() + interval '100 ms');
ROLLBACK;
SQL
nothing_arrives($receiver, 'nothing before the commit', 0.7);
$session->query_safe('COMMIT');
$receiver->wait_delivered(1, path => "/ok/$_", topic => 'order.held') foreach 'a', 'b';
pass('overdue when it is committed: sent at once');
$session->quit;

# COMMIT PREPARED
$id = $node->safe_psql('postgres', <<'SQL');
BEGIN;
SELECT outbox.emit('order.prepared', '{"n": 1}', deliver_at => clock_timestamp() + interval '100 ms');
PREPARE TRANSACTION 'p';
SQL
nothing_arrives($receiver, 'nothing while it is prepared', 0.5);
$node->safe_psql('postgres', "COMMIT PREPARED 'p'");
$receiver->wait_delivered(1, path => '/ok/a', id => $id);
pass('COMMIT PREPARED: sent');

# A restart, and a crash
my @ids = map {
	emit($node, 'order.later', '{"n": 1}',
		"deliver_at => clock_timestamp() + interval '$_ s'")
} 1, 3600;
$node->restart;
$receiver->wait_delivered(1, path => '/ok/a', id => $ids[0]);
pass('after a restart');
my $overdue = emit($node, 'order.later', '{"n": 1}',
	"deliver_at => clock_timestamp() + interval '500 ms'");
kill_everything($node);
start_again($node);
$receiver->wait_delivered(1, path => '/ok/a', id => $overdue);
pass('after a crash');
is(count('scheduled'), '1', 'the one that is not due still waits');

# Cancelled
is($node->safe_psql('postgres', "SELECT outbox.cancel('$ids[1]')"), 't', 'cancelled');
is(count('scheduled'), '0', 'and gone');

# A session that is about to cancel one holds up no other
$session = $node->background_psql('postgres', on_error_stop => 0);
@ids = map {
	emit($node, 'order.locked', '{"n": 1}',
		"deliver_at => clock_timestamp() + interval '6 s'")
} 1 .. 2;
$session->query_safe("BEGIN; SELECT outbox.cancel('$ids[0]')");
my $pid = worker_pid($node);
$receiver->wait_delivered(1, path => '/ok/a', id => $ids[1]);
is(scalar(() = $receiver->requests(id => $ids[0])), 0, 'a locked one waits, the others go');
$session->query_safe('ROLLBACK');
$session->quit;
$receiver->wait_delivered(1, path => '/ok/a', id => $ids[0]);
is(worker_pid($node), $pid, 'and the worker goes on');

# Large ones, and bytes
$node->safe_psql('postgres', <<'SQL');
SELECT outbox.emit_bytes('order.bytes', decode(repeat('00ff', 200000), 'hex'), 'image/png',
                         deliver_at => clock_timestamp() + interval '200 ms');
SELECT outbox.emit('order.large', jsonb_build_object('n', 1, 'x', repeat('x', 900000)),
                   deliver_at => clock_timestamp() + interval '200 ms') FROM generate_series(1, 10);
SQL
$receiver->wait_delivered(10, path => '/ok/a', topic => 'order.large');
pass('ten large ones');
$receiver->wait_delivered(1, path => '/ok/a', topic => 'order.bytes');
is( $node->safe_psql('postgres',
		"SELECT length(body), content_type FROM outbox.events WHERE topic = 'order.bytes'"),
	'400000|image/png',
	'bytes stay what they were');

# Many at once, under a snapshot that keeps their dead rows: each exactly once, in
# order
$session = $node->background_psql('postgres', on_error_stop => 0);
$session->query_safe(
	'BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM outbox.scheduled');
$node->safe_psql('postgres', <<'SQL');
WITH t AS MATERIALIZED (SELECT clock_timestamp() + interval '4 s' AS due)
SELECT count(outbox.emit('many.one', to_jsonb(i), deliver_at => due)) FROM t, generate_series(1, 20000) i;
SELECT count(outbox.emit('many.one', '0'::jsonb, deliver_at => now() + interval '1 day'))
FROM generate_series(1, 1000) i;
SQL
ok( wait_sql(
		$node, "SELECT count(*) = 20000 FROM outbox.events WHERE topic = 'many.one'"),
	'20,000 that are due at the same time');
is( $node->safe_psql(
		'postgres', <<'SQL'),
SELECT count(DISTINCT payload), bool_and(payload > previous)
FROM (SELECT payload, lag(payload, 1, '0') OVER (ORDER BY seq) AS previous
      FROM outbox.events WHERE topic = 'many.one') e
SQL
	'20000|t', 'each once, in the order of their emits');
is(count('scheduled'), '1000', 'the others wait');
$session->query_safe('COMMIT');
$session->quit;

# outbox.enabled = off
$node->append_conf('postgresql.conf', "outbox.enabled = off\n");
$node->reload;
wait_sql($node, "SELECT state = 'disabled' FROM outbox.status");
$id = emit($node, 'order.disabled', '{"n": 1}',
	"deliver_at => clock_timestamp() + interval '100 ms'");
nothing_arrives($receiver, 'disabled: nothing', 0.5);
$node->append_conf('postgresql.conf', "outbox.enabled = on\n");
$node->reload;
$receiver->wait_delivered(1, path => '/ok/a', id => $id);
pass('enabled again');

# Rows that came from another database are not this one's to send
$node->safe_psql('postgres', <<'SQL');
INSERT INTO outbox.scheduled (id, deliver_at, xid, epoch, created_at, topic, payload)
VALUES (gen_random_uuid(), now() + interval '300 ms', pg_current_xact_id(), 1, now(), 'order.foreign', '{"n": 1}');
SELECT outbox.emit('order.own', '{"n": 1}', deliver_at => clock_timestamp() + interval '100 ms');
SQL
$receiver->wait_delivered(1, path => '/ok/a', topic => 'order.own');
nothing_arrives($receiver, 'an event of another epoch is not sent', 0.7);
is( $node->safe_psql('postgres',
		"SELECT count(*) FROM outbox.scheduled WHERE topic = 'order.foreign'"),
	'1', 'and stays where it is');

$node->stop;
done_testing();
