# Rules of the log hold in the one order of steps that would break each of them.
# No load would bring these orders about every time.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $node = outbox_node('main', conf => "outbox.wakeup_interval = '60 s'\ndeadlock_timeout = '60 s'\n");
my $receiver = OutboxTest::Receiver->new('main');
my $log = PostgreSQL::Test::Utils::tempdir() . '/producer';

sub in
{
	my ($session, $sql) = @_;
	my $result = $session->query_safe($sql);
	return $result;
}

# Where many commit, the worker reads a little later and is not woken: the last event
# is still seen in a moment.  Only the last event is for an endpoint, so that no
# request wakes the worker by its end.
endpoint($node, $receiver, 'last', '/ok/last', "topics => '{rest.last}'");
my $in_time = 0;
foreach my $round (1 .. 10)
{
	my $last = ask(("SELECT outbox.emit('rest.other', '{}'::jsonb) \\g /dev/null\n" x 200)
		. "SELECT outbox.emit('rest.last', '{}'::jsonb)");
	wait_until { scalar(() = $receiver->delivered(id => $last)) } 'the last one', 30 or last;
	$in_time++;
}
is($in_time, 10, 'the last event of a busy moment does not wait for wakeup_interval');
ok(wait_sql($node, "SELECT clock_timestamp() - last_loop_at > '2 s' FROM outbox.workers"),
	'the worker sleeps');
my $alone = ask("SELECT outbox.emit('rest.last', '{}'::jsonb)");
ok( wait_until { scalar(() = $receiver->delivered(id => $alone)) }
	'a session that emits then wakes it', 30);
wait_settled($node);
ask("SELECT outbox.drop_endpoint('last')");

endpoint($node, $receiver, 'all', '/ok/a', "backoff_base => '1 s', backoff_max => '1 s'");

# A transaction that is older than the log's first origin makes no second one.
ask('CREATE DATABASE older');
$node->safe_psql('older', 'CREATE EXTENSION outbox');
my $old = $node->background_psql('older', on_error_stop => 0);
in($old, 'BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');
$node->safe_psql('older', "SELECT outbox.create_endpoint('first', '" . $receiver->url('/ok/first') . "')");
$old->query("\\set VERBOSITY sqlstate\nSELECT outbox.claim_log();");
like($old->{stderr}, qr/ERROR:  40001/, 'a log that another transaction has used first: 40001');
$old->{stderr} = '';
in($old, 'COMMIT');
$old->quit;
is($node->safe_psql('older', 'SELECT count(*) FROM outbox.origins'), 1, 'it has one origin');
ask('DROP DATABASE older');

# A tick must list a transaction that has its xid and its numbers, although no
# newer one has completed: GetSnapshotData() would not.
my ($older, $newer) = map { $node->background_psql('postgres') } 1 .. 2;
in($older, 'BEGIN');
my $first = in($older, "SELECT outbox.emit('tick.older', '{}'::jsonb)");
in($newer, 'BEGIN');
my $second = in($newer, "SELECT outbox.emit('tick.newer', '{}'::jsonb)");
in($older, 'COMMIT');
$receiver->wait_delivered(1, id => $first);
in($newer, 'COMMIT');
$receiver->wait_delivered(1, id => $second);
is(scalar(() = $receiver->delivered(id => $second)), 1,
	'the newest transaction was open when the tick was taken: nothing is lost');

# A session that draws a number has its xid already: under load, with ticks all the time
my $producer = start_producer($node, $log, seconds => 3, rate => 500, sessions => 8, keys => 8);
stop_producer($producer, 1);
check_history($node, $receiver, $log, endpoints => ['/ok/a']);

# A wake-up that comes while the worker waits for a lock inside a transaction
$receiver->control(path => '/ok/a', behave => '/status/500');
my $parked = emit($node, 'wake.parked', '{}');
wait_status($node, $parked, 'retrying', 'a parked delivery');
in($older, 'BEGIN');
in($older, "SELECT 1 FROM outbox.parked WHERE event_id = '$parked' FOR UPDATE");
$receiver->control(path => '/ok/a', behave => '/ok');
my $pid = worker_pid($node);
my $waits = "SELECT count(*) > 0 FROM pg_locks WHERE pid = $pid AND NOT granted";
ok(wait_until { ask($waits) eq 't' } 'the worker waits for its row');
my $id = emit($node, 'wake.meanwhile', '{}');
usleep(100_000);

# One that is forgotten is made up for after wakeup_interval (60 s).
my $released = time;
in($older, 'COMMIT');
my ($sent) = $receiver->wait_delivered(1, id => $id);
cmp_ok($sent->{wall} - $released, '<', 10, 'an event that was emitted meanwhile is not forgotten');
ok(wait_settled($node), 'settled');

# Asked to end while it waits for a lock: it ends, and that is no error
$receiver->control(path => '/ok/a', behave => '/status/500');
$parked = emit($node, 'wake.again', '{}');
wait_status($node, $parked, 'retrying', 'another one');
in($older, 'BEGIN');
in($older, "SELECT 1 FROM outbox.parked WHERE event_id = '$parked' FOR UPDATE");
$receiver->control(path => '/ok/a', behave => '/ok');
ok(wait_until { ask($waits) eq 't' } 'the worker waits for its row again');
ask("SELECT pg_terminate_backend($pid)");
ok(new_worker($node, $pid), 'terminated: another one comes');
in($older, 'COMMIT');
ok(wait_settled($node), 'settled by that one');
is(ask('SELECT sum(restarts) FROM outbox.worker_slots()'), 0, 'a worker that is told to end makes no error');

# Only this log's own events are sent
my $foreign = ask("INSERT INTO outbox.events (topic, payload, epoch)"
	  . " VALUES ('epoch.foreign', '{}', 12345) RETURNING id");
my $own = emit($node, 'epoch.own', '{}');
$receiver->wait_delivered(1, id => $own);
is(scalar(() = $receiver->requests(id => $foreign)), 0, 'an event of another epoch is not sent');
is(ask("SELECT count(*) FROM outbox.deliveries WHERE event_id = '$foreign'"), 0, 'nor is it a delivery');

# The sequence keeps no numbers for later
my $file = $node->logfile;
my $offset = -s $file;
ask('ALTER SEQUENCE outbox.events_seq CACHE 10');
$pid = worker_pid($node);
ask("SELECT pg_terminate_backend($pid)");
ok( wait_until {
		PostgreSQL::Test::Utils::slurp_file($file, $offset) =~
		  /ERROR:.*events_seq was altered.*HINT:.*CACHE 1/s
	}
	'a sequence with a cache: the worker says so');
$id = emit($node, 'cache.one', '{}');
nothing_arrives($receiver, 'and sends nothing', 1, id => $id);
ask('ALTER SEQUENCE outbox.events_seq CACHE 1');
$receiver->wait_delivered(1, id => $id);
pass('without the cache it goes on');

$_->quit foreach $older, $newer;
$node->stop;
done_testing();
