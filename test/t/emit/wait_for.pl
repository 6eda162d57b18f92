# outbox.wait_for(), outbox.send_test() and outbox.emit_change() keep their promises with a worker.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

endpoint($node, $receiver, 'ok', '/ok/a', "topics => '{order.*}'");
endpoint($node, $receiver, 'slow', '/hold/b', "topics => '{order.slow}', timeout => '10 min'");
endpoint($node, $receiver, 'dead', '/status/500/c', "topics => '{order.dead}', max_attempts => 1");
endpoint($node, $receiver, 'all', '/ok/all', "topics => '{*,outbox.*}'");

# wait_for
my $id = emit($node, 'order.one', '{}');
is(ask("SELECT outbox.wait_for('$id')"), 't', 'delivered');
is(ask("SELECT count(*) FROM outbox.deliveries WHERE event_id = '$id' AND status <> 'delivered'"),
	'0', 'everywhere');
$id = emit($node, 'order.slow', '{}');
is(ask("SELECT outbox.wait_for('$id', '10 ms')"), 'f', 'not in this time');
is(ask("SELECT outbox.wait_for('$id', '0')"), 'f', 'nor when asked once');
$receiver->wait_for(1, path => '/hold/b');
my $start = time;
$receiver->control(path => '/hold/b', behave => '/slow?ms=3000');
is(ask("SELECT outbox.wait_for('$id', '1 min')"), 't', 'but later');
cmp_ok(time - $start, '>', 2.9, 'when the slowest has it');
$id = emit($node, 'order.dead', '{}');
$start = time;
is(ask("SELECT outbox.wait_for('$id', '60 s')"), 'f', 'dead somewhere');
cmp_ok(time - $start, '<', 30, 'which it does not wait for');
ask("SELECT outbox.alter_endpoint('all', topics => '{outbox.*}')");
$id = emit($node, 'nobody.listens', '{}');
is(ask("SELECT outbox.wait_for('$id', '0')"), 't', 'no endpoint subscribes')
  if wait_sql($node, "SELECT count(*) = 0 FROM outbox.deliveries WHERE event_id = '$id'");
($id, my $due) = split /\n/, ask(<<'SQL');
SELECT outbox.emit('order.due', '{}', deliver_at => clock_timestamp() + interval '4 s') AS id \gset
SELECT :'id';
SELECT outbox.wait_for(:'id', '10 ms');
SQL
is($due, 'f', 'not due yet');
is(ask("SELECT outbox.wait_for('$id', '1 min')"), 't', 'due');

# It can be interrupted, and refuses to wait in the transaction of the emit
ask("SELECT outbox.pause_endpoint('ok')");
$id = emit($node, 'order.paused', '{}');
my ($rc, $out, $err) = $node->psql('postgres',
	"SET statement_timeout = '300 ms'; SELECT outbox.wait_for('$id', '1 hour')");
like($err, qr/statement timeout/, 'it can be interrupted');
ask("SELECT outbox.resume_endpoint('ok')");
is(ask("SELECT outbox.wait_for('$id')"), 't', 'and asked again');
($rc, $out, $err) = $node->psql('postgres', <<'SQL');
\set VERBOSITY sqlstate
BEGIN;
SELECT outbox.emit('order.mine', '{}') AS id \gset
SELECT outbox.wait_for(:'id');
SQL
like($err, qr/25001/, 'in the emitting transaction: 25001');

# A role that may wait needs no more than EXECUTE
ask(<<'SQL');
CREATE ROLE waiter LOGIN;
GRANT USAGE ON SCHEMA outbox TO waiter;
GRANT EXECUTE ON FUNCTION outbox.wait_for(uuid, interval) TO waiter;
SQL
is( $node->safe_psql('postgres', "SELECT outbox.wait_for('$id')",
		extra_params => [ '-U', 'waiter' ]),
	't', 'with EXECUTE alone');

# send_test: to this endpoint alone, whatever its topics
$id = ask("SELECT outbox.send_test('ok')");
is(ask("SELECT outbox.wait_for('$id')"), 't', 'a test event is delivered');
my ($request) = $receiver->requests(id => $id);
is($request->{headers}{'outbox-topic'}, 'outbox.test', 'its topic');
is($request->{signature}, 'valid', 'it is signed');
is($request->{headers}{'outbox-test'}, 'true', 'it says that it is a test');
is($request->{path}, '/ok/a', 'it goes where it was asked for');
is( ask("SELECT endpoint, status FROM outbox.deliveries WHERE event_id = '$id'"),
	'ok|delivered', 'outbox.deliveries shows it');
is(ask("SELECT status_code FROM outbox.attempts WHERE event_id = '$id'"), '200', 'and outbox.attempts');
my $next = emit($node, 'order.next', '{}');
$receiver->wait_delivered(1, path => '/ok/a', id => $next);
is(scalar(() = $receiver->requests(id => $id)), 1,
	'no other endpoint got it, not even one that subscribes to outbox.*');
$id = ask("SELECT outbox.send_test('dead')");
is(ask("SELECT outbox.wait_for('$id')"), 'f', 'one that fails is dead');
is( ask("SELECT endpoint, topic, last_status_code FROM outbox.dead_letters WHERE event_id = '$id'"),
	'dead|outbox.test|500', 'and visible');
$node->safe_psql('postgres', "BEGIN; SELECT outbox.send_test('ok'); ROLLBACK");
nothing_arrives($receiver, 'rolled back: not sent', 0.5, topic => 'outbox.test', path => '/ok/a');

# emit_change
ask(<<'SQL');
CREATE TABLE orders (id int PRIMARY KEY, status text, note text);
CREATE TRIGGER emit AFTER INSERT OR UPDATE OR DELETE ON orders FOR EACH ROW
EXECUTE FUNCTION outbox.emit_change('order.changed', 'id', 'status');
CREATE ROLE clerk LOGIN;
GRANT SELECT, INSERT, UPDATE, DELETE ON orders TO clerk;
SQL
$node->safe_psql('postgres', <<'SQL', extra_params => [ '-U', 'clerk' ]);
INSERT INTO orders VALUES (1, 'new');
UPDATE orders SET note = 'x';
UPDATE orders SET status = 'paid';
DELETE FROM orders;
SQL
my @got = $receiver->wait_delivered(3, path => '/ok/a', topic => 'order.changed');
is_deeply(
	[ map { JSON::PP::decode_json($_->{body})->{data} } @got ],
	[
		{ op => 'insert', table => 'public.orders', new => { status => 'new' } },
		{
			op => 'update',
			table => 'public.orders',
			new => { status => 'paid' },
			old => { status => 'new' }
		},
		{ op => 'delete', table => 'public.orders', old => { status => 'paid' } }
	],
	'a role without any right on outbox');

# The triggers of many rows run one after the other, and can be interrupted
ask(<<'SQL');
CREATE TABLE many (id int);
CREATE CONSTRAINT TRIGGER emit AFTER INSERT ON many DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
EXECUTE FUNCTION outbox.emit_change('many', 'id');
SQL
my $drawn = ask('SELECT last_value FROM outbox.events_seq');
($rc, $out, $err) = $node->psql('postgres', <<'SQL', on_error_stop => 0);
BEGIN;
INSERT INTO many SELECT n FROM generate_series(1, 100000) n;
SET LOCAL statement_timeout = '100 ms';
SET CONSTRAINTS ALL IMMEDIATE;
ROLLBACK;
SQL
like($err, qr/statement timeout/, 'emit_change() for many rows can be interrupted');
cmp_ok(ask('SELECT last_value FROM outbox.events_seq') - $drawn, '<', 100000, 'before the last of them');

$node->stop;
done_testing();
