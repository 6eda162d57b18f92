# A worker that is terminated, cancelled or killed under load loses no event.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# What a settle wrote is durable soon, so that the bound on duplicates is tight.
my $node = outbox_node(
	'main', conf => <<'CONF');
restart_after_crash = on
wal_writer_delay = 10ms
CONF
my $receiver = OutboxTest::Receiver->new('main', fsync => 1);
my $log = PostgreSQL::Test::Utils::tempdir() . '/producer';
my $quick = "backoff_base => '20 ms', backoff_max => '200 ms'";

endpoint($node, $receiver, 'ok', '/ok/a', $quick);
endpoint($node, $receiver, 'fails', '/fail/b?rate=0.05', $quick);
endpoint($node, $receiver, 'slow', '/slow/c?ms=20', $quick);

my $producer = start_producer($node, $log, rate => 300, keys => 8);
my $progress = sub { return $receiver->wait_new($_[0]) };

# An endpoint that catches up delivers more in a settle interval than 300 a second.
sub keeps_up
{
	return wait_sql($node,
		"SELECT bool_and(pending_exact AND pending <= 20) FROM outbox.stats WHERE endpoint <> 'slow'")
	  || fail('it keeps up');
}

$progress->(300);
my $pid = worker_pid($node);

# SIGTERM: back within seconds, PostgreSQL goes on
my $postmaster_start =
  $node->safe_psql('postgres', 'SELECT pg_postmaster_start_time()');
foreach my $round (1 .. 4)
{
	keeps_up();
	$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
	$pid = new_worker($node, $pid);
	ok($pid, "terminated, round $round: another worker comes");
	ok($progress->(200), 'and delivers');
}

# The worker ignores a cancel
foreach my $round (1 .. 5)
{
	keeps_up();
	$pid = worker_pid($node);
	$node->safe_psql('postgres', "SELECT pg_cancel_backend($pid)");
	$progress->(30);
}
ok($progress->(100), 'cancelled: it goes on');
is( $node->safe_psql('postgres', 'SELECT pg_postmaster_start_time()'),
	$postmaster_start, 'PostgreSQL was not restarted');
unlike(
	PostgreSQL::Test::Utils::slurp_file($node->logfile),
	qr/all server processes terminated/,
	'and did not restart itself');

# The launcher is replaceable as well
my $launcher = $node->safe_psql('postgres',
	"SELECT pid FROM pg_stat_activity WHERE backend_type LIKE 'outbox%launcher%'");
ok($launcher, 'there is a launcher');
$node->safe_psql('postgres', "SELECT pg_terminate_backend($launcher)");
wait_sql($node,
	"SELECT count(*) = 1 FROM pg_stat_activity"
	  . " WHERE backend_type LIKE 'outbox%launcher%' AND pid <> $launcher");
ok($progress->(100), 'the launcher terminated: deliveries go on');

# SIGKILL: PostgreSQL restarts itself, and everything goes on
foreach my $round (1 .. 2)
{
	keeps_up();
	$pid = worker_pid($node);
	kill 'KILL', $pid or die "SIGKILL: $!";
	wait_until { process_is_gone($pid) } 'it is gone';
	$pid = new_worker($node, $pid);
	ok($progress->(200), "killed, round $round: it delivers again");
}

stop_producer($producer);

# Per death and endpoint: what is in flight, on a slow machine all that may be; at 300 a second,
# what a settle interval of 10 ms brings; and when the server dies, what 3 * wal_writer_delay
# bring.  A cancel that meets a statement is a death as well.
my $in_flight = 32;
my $broken = () = PostgreSQL::Test::Utils::slurp_file($node->logfile) =~ /ERROR:  canceling statement/g;
check_history(
	$node, $receiver, $log,
	endpoints => [ '/ok/a', '/fail/b', '/slow/c' ],
	max_duplicates => (6 + $broken) * 3 * ($in_flight + 3) + 2 * 3 * 9);

# Asked to end, it stores what was answered and not settled yet
$node->safe_psql('postgres', 'ALTER SYSTEM SET outbox.settle_interval = 1000');
$node->reload;
ok(wait_sql($node, "SELECT current_setting('outbox.settle_interval') = '1s'"), 'settled once a second');
endpoint($node, $receiver, 'once', '/ok/once', "topics => '{once.*}'");
my $last = emit($node, 'once.last', '{}');
ok(wait_sql($node, "SELECT delivered = 1 FROM outbox.stats WHERE endpoint = 'once'"), 'the worker knows of an answer');
$pid = worker_pid($node);
$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
new_worker($node, $pid);
$receiver->wait_delivered(1, id => emit($node, 'once.more', '{}'), path => '/ok/once');
is(scalar(() = $receiver->requests(id => $last, path => '/ok/once')), 1, 'terminated: what was answered is not sent again');

$node->stop;
done_testing();
