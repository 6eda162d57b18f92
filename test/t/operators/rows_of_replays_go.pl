# The rows of replays go with their endpoint, ended ones after the retention, or beyond a hundred.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

sub replayed
{
	my ($endpoint, $times) = @_;

	foreach (1 .. $times)
	{
		is(ask("SELECT outbox.replay('$endpoint', now() - interval '1 hour', topics => '{order.a}')"), '1', "$endpoint: replayed");
		ok(wait_sql($node, 'SELECT bool_and(finished_at IS NOT NULL) FROM outbox.replays'), 'to its end');
		ok(wait_settled($node), 'settled');
	}
	return;
}

endpoint($node, $receiver, $_, "/ok/$_", "topics => '{order.*}'") foreach qw(a b c);
my $id = emit($node, 'order.a', '{}');
$receiver->wait_delivered(1, path => "/ok/$_") foreach qw(a b c);
ok(wait_settled($node), 'settled');
replayed($_, 2) foreach qw(a b c);
is(ask('SELECT count(*) FROM outbox.replays'), '6', 'a row for each');

# Overlapping ones: each has the number that its call had returned, also where events wait for
# the one before.  What the endpoint has not come to is sent once.
endpoint($node, $receiver, 'over', '/over', "topics => '{over.*}', backoff_base => '1 h', backoff_max => '1 h'");
emit($node, 'over.a', $_) foreach 1 .. 40;
ok(wait_settled($node), 'settled');
$receiver->control(path => '/over', behave => '/status/500');
my $over = "SELECT outbox.replay('over', now() - interval '1 hour')";
is(ask($over), 40, 'the first');
ok(wait_sql($node, "SELECT retrying = 40 FROM outbox.stats WHERE endpoint = 'over'"), 'its events wait');
ask("SELECT outbox.cancel((SELECT event_id FROM outbox.deliveries WHERE endpoint = 'over' ORDER BY seq LIMIT 1))");
ok(wait_sql($node, "SELECT retrying = 39 FROM outbox.stats WHERE endpoint = 'over'"), 'one is cancelled');
ask("SELECT outbox.pause_endpoint('over')");
emit($node, 'over.b', 41);
is(ask($over), 39, 'the second') foreach 1, 2;
ok(wait_sql($node, "SELECT string_agg(events::text, ',' ORDER BY started_at) = '40,39,39' AND bool_and(finished_at IS NOT NULL)"
	  . " FROM outbox.replay_progress WHERE endpoint = 'over'"), 'progress has the same numbers')
  or diag ask("SELECT * FROM outbox.replay_progress WHERE endpoint = 'over'");
$receiver->control(path => '/over', behave => '/ok');
ask("SELECT outbox.resume_endpoint('over'), outbox.retry('over')");
ok(wait_settled($node), 'settled');
is(scalar(grep { $_->{path} eq '/over' && $_->{status} == 200 } $receiver->requests), 40 + 39 + 1, 'each is sent once for all of them');
ask("SELECT outbox.drop_endpoint('over')");
ok(wait_sql($node, 'SELECT count(*) = 6 FROM outbox.replays'), 'and they go with their endpoint');

# By the worker that served it, and by one that finds it at its start
ask("SELECT outbox.drop_endpoint('a')");
ok(wait_sql($node, "SELECT count(*) = 4 FROM outbox.replays"), 'the rows of a dropped endpoint go') or diag ask('TABLE outbox.replays');
ask("BEGIN; SELECT pg_terminate_backend(" . worker_pid($node) . "); SELECT outbox.drop_endpoint('b'); COMMIT");
ok(wait_sql($node, "SELECT count(*) = 2 FROM outbox.replays"), 'also where the worker is another one');

# After the retention, with the next replay
ask("UPDATE outbox.replays SET finished_at = finished_at - interval '6 days'");
replayed('c', 1);
is(ask('SELECT count(*) FROM outbox.replays'), '3', 'those within the retention stay');
ask("UPDATE outbox.replays SET finished_at = finished_at - interval '3 days' WHERE finished_at < now() - interval '1 day'");
is(ask("SELECT outbox.replay('c', now() - interval '1 hour')"), '1', 'one more');
ok(wait_sql($node, "SELECT count(*) = 2 AND bool_and(finished_at > now() - interval '1 day') FROM outbox.replays"), 'and older ones go')
  or diag ask('TABLE outbox.replays');

# Many that have ended are not read again with each change of settings, nor is one that is asked for
my $many = 5000;
my $scans = "SELECT sum(idx_scan) FROM pg_stat_user_indexes WHERE relname = 'replays'";
my $read = "SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname = 'replays'";
ask('INSERT INTO outbox.replays (endpoint_id, from_time, to_time, read, read_seq_low, target, target_seq_high, finished_at)'
	  . " SELECT endpoint_id, now(), now(), '3:3:', 0, '3:3:', 0, now() FROM outbox.endpoint_settings, generate_series(1, $many) WHERE name = 'c'");
my $before = ask($read);
foreach my $n (1 .. 5)
{
	my $counted = ask($scans);
	ask("SELECT outbox.alter_endpoint('c', max_in_flight => $n)");
	ok(wait_sql($node, "SELECT ($scans) > $counted FROM outbox.emit('order.more', '{}')"), "change $n is read");
}
cmp_ok(ask($read) - $before, '<', $many, 'ended ones are not read with each change');

# Each call removes two of the oldest beyond the newest hundred, until there are so many
my $rows = ask('SELECT count(*) FROM outbox.replays');
my $oldest = ask('SELECT min(replay_id) FROM outbox.replays');
replayed('c', 1);
is(ask('SELECT count(*) FROM outbox.replays'), $rows - 1, 'one more, and two fewer');
is(ask("SELECT count(*) FROM outbox.replays WHERE replay_id = $oldest"), '0', 'the oldest');
ask("DELETE FROM outbox.replays WHERE target_seq_high = 0 AND replay_id < (SELECT max(replay_id) - 105 FROM outbox.replays)");
replayed('c', 1) foreach 1 .. 8;
is(ask('SELECT count(*) FROM outbox.replays'), '100', 'a hundred are left');
ask('DELETE FROM outbox.replays WHERE target_seq_high = 0');

# With a second worker, which began with another retention
ask('ALTER SYSTEM SET outbox.workers_per_database = 2');
ask("ALTER SYSTEM SET outbox.retention = '1 min'");
$node->reload;
endpoint($node, $receiver, $_, "/ok/$_") foreach qw(d e);
ok(wait_sql($node, "SELECT count(*) = 2 AND bool_and(endpoints > 0) FROM outbox.workers WHERE state = 'running'"), 'two workers with endpoints');
ask("SELECT outbox.set_retention(events => '1 day')");
$id = emit($node, 'order.b', '{}');
foreach my $endpoint (qw(c d e))
{
	$receiver->wait_delivered(1, path => "/ok/$endpoint", id => $id);
	ok(wait_settled($node), 'settled');
	is(ask("SELECT outbox.replay('$endpoint', now() - interval '1 hour', topics => '{order.b}')"), '1', "$endpoint: replayed");
}
my $ended = "SELECT count(*) FILTER (WHERE finished_at < now() - interval '30 min') || ' ' || count(*) FROM outbox.replays"
  . " WHERE topics = '{order.b}' AND finished_at IS NOT NULL";
ok(wait_sql($node, $ended, '0 3'), 'to their ends');
ok(wait_settled($node), 'settled');
ask("UPDATE outbox.replays SET finished_at = finished_at - interval '1 hour' WHERE topics = '{order.b}'");
is(ask("SELECT outbox.replay('$_', now() - interval '1 hour', topics => '{order.b}')"), '1', "$_: and again") foreach qw(c d e);
ok(wait_sql($node, $ended, '3 6'), 'no worker deletes rows by the retention that it began with');

$node->stop;
done_testing();
