# When disk, memory, file descriptors, connections or processes run out, no event is lost.
# Under load: PostgreSQL goes on, and delivery resumes when there is enough again.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = PostgreSQL::Test::Utils::tempdir('resources');
my $shim = shim('shortage');
my $orders = "$dir/orders";

# Written in place: the servers have the file mapped.
sub shortage
{
	my ($disk, $pid, $every, $calls) = @_;

	open(my $fh, -e $orders ? '+<:raw' : '>:raw', $orders) or die "$orders: $!\n";
	print $fh pack('q3', $disk, $pid // 0, $every // 1);
	print $fh pack('q2', 0, 0) unless -s $orders;
	seek($fh, 32, 0) && print $fh pack('q', $calls // 0);
	close $fh;
	return;
}

# How many allocations have failed
sub failed
{
	return (unpack 'q5', slurp_file($orders))[3];
}

shortage(0);
$ENV{OUTBOX_SHORTAGE} = $orders;
$ENV{LD_PRELOAD} = $shim;
my $node = outbox_node('main', conf => <<'CONF');
max_connections = 20
max_worker_processes = 4
max_parallel_workers = 0
restart_after_crash = off
CONF
delete $ENV{LD_PRELOAD};
my $receiver = OutboxTest::Receiver->new('main');
my $log = "$dir/producer";
my $postmaster = $node->{_pid};

sub goes_on
{
	my ($name) = @_;
	ok($receiver->wait_new(50, '/ok/a'), "$name: deliveries go on");
	ok(wait_sql($node, "SELECT state = 'running' FROM outbox.status"), "$name: a worker runs");
	return;
}

# Waits until the server's log has a further line of that kind.
sub wait_log
{
	my ($pattern, $name) = @_;
	my $from = -s $node->logfile;
	return sub {
		return ok((wait_until { slurp_file($node->logfile, $from) =~ $pattern } $name), $name);
	};
}

endpoint($node, $receiver, 'ok', '/ok/a', 'max_in_flight => 16');
endpoint($node, $receiver, 'fails', '/fail/b?rate=0.2',
	"max_in_flight => 16, backoff_base => '20 ms', backoff_max => '200 ms'");
my $producer = start_producer($node, $log, rate => 200, keys => 8);
goes_on('at first');

# The disk: emitters get an error, the worker tries again until there is room
my $emitters = wait_log(qr/ERROR:  could not extend file.*No space left.*\n(?:.*HINT.*\n)?.*STATEMENT:.*outbox\.emit/, 'the disk is full: emit() says so');
shortage(1);
$emitters->();
ok( wait_sql($node, "SELECT count(*) > 0 FROM outbox.held_steps WHERE last_error ~ 'No space left'"),
	'the worker cannot write what it did: that is on hold');
ok(wait_sql($node, "SELECT state IN ('no_worker', 'running') FROM outbox.status"), 'views answer');
shortage(0);
goes_on('there is room again');

# The memory: of the worker one allocation in so many fails
foreach my $every (3, 20, 300, 3000)
{
	my $out = wait_log(qr/out of memory/, 'the log says so');
	my $before = failed();

	# A worker that dies of it is followed by another, here without the usual delay.
	ok((wait_until
		{
			ask('SELECT outbox.wake_launcher()');
			shortage(0, worker_pid($node), $every);
			failed() >= $before + 5
		}
		'allocations fail'), "of $every allocations one fails");
	$out->() if $every == 3;
	shortage(0);
	ask('SELECT outbox.wake_launcher()');
	goes_on("memory again after one of $every");
}

# The memory within libcurl: it may then never end a request.  With fewer allocations than one, none fails.
my $ended = wait_log(qr/libcurl could not go on/, 'the worker ends');
shortage(0, worker_pid($node), 1 << 60, 1);
$ended->();
shortage(0);
ask('SELECT outbox.wake_launcher()');
goes_on('memory again in libcurl');

# File descriptors: fewer than there are requests
my $pid = worker_pid($node);
my $open = () = glob "/proc/$pid/fd/*";
system('prlimit', '--pid', $pid, '--nofile=' . ($open + 2) . ':' . ($open + 2)) == 0
  or die "prlimit failed\n";
endpoint($node, $receiver, 'many', '/slow/many?ms=200', "topics => '{many.*}', max_in_flight => 100, ordering => 'none'");
ask("SELECT count(outbox.emit('many.n', '{}'::jsonb)) FROM generate_series(1, 300)");
ok( wait_sql($node, "SELECT count(*) FILTER (WHERE status = 'delivered') = 300 FROM outbox.deliveries WHERE endpoint = 'many'"),
	'few descriptors: everything arrives, with fewer requests at a time');
goes_on('few descriptors');
ask("SELECT outbox.drop_endpoint('many', discard => true)");
ask('SELECT pg_terminate_backend(pid) FROM outbox.workers');
new_worker($node, $pid);

# Connections: all taken, and the worker has to start anew
my $session = $node->background_psql('postgres');
my @taken;
$pid = worker_pid($node);
stop_producer($producer);
while (@taken < 40)
{
	my $another = eval { $node->background_psql('postgres') } or last;
	push @taken, $another;
}
isnt($node->psql('postgres', 'SELECT 1'), 0, 'all connections are taken');
$session->query_safe("SELECT pg_terminate_backend($pid)");
my $id = $session->query_safe(q{SELECT outbox.emit('load.taken', '{}'::jsonb)});
$receiver->wait_delivered(1, id => $id, path => '/ok/a');
pass('delivered nevertheless, by a new worker');
$_->quit foreach @taken;
$session->quit;
my $restarts = ask('SELECT restarts FROM outbox.workers');
check_history($node, $receiver, $log, endpoints => [ '/ok/a', '/fail/b' ],
	max_duplicates => ($restarts + 2) * 2 * (16 + 100),
	name => "nothing lost, and the order kept, through $restarts restarts of the worker");
is($node->{_pid}, $postmaster, 'one postmaster all the time');
unlike(slurp_file($node->logfile), qr/PANIC|terminated by signal|reinitializing/, 'and no crash');

# A request that libcurl forgets, with its timeout
my $other = OutboxTest::Receiver->new('other');
endpoint($node, $other, 'alone', '/ok/alone', "topics => '{alone}', timeout => '1 s', max_attempts => 1");
ok(wait_settled($node), 'nothing is under way');
shortage(0, worker_pid($node), 1 << 60, -1);
$id = emit($node, 'alone', '{}');
$other->wait_delivered(1, id => $id);
wait_status($node, $id, 'delivered', 'what libcurl has forgotten is sent all the same');

# Processes: one for the launcher, one for logical replication, none for a worker
$node->append_conf('postgresql.conf', 'max_worker_processes = 2');
$node->restart;
ok( wait_sql($node, "SELECT state = 'no_worker' AND reason ~ 'max_worker_processes' FROM outbox.status"),
	'no process for a worker: outbox.status says so');
$id = emit($node, 'load.process', '{}');
like($id, qr/-/, 'emit works');
$node->append_conf('postgresql.conf', 'max_worker_processes = 4');
$node->restart;
$receiver->wait_delivered(1, id => $id, path => '/ok/a');
pass('and the event is delivered when there is one');
$node->stop;
done_testing();
