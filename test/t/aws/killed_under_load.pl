# A worker, or a service of AWS, that is killed under load loses no event, nor the order of a key.
# A worker is terminated and killed, and the stand-in of a FIFO queue is killed, in turn.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Aws;
use PostgreSQL::Test::Utils;
use Test::More;

OutboxTest::Aws::needed();
my $in_flight = 20;
my $aws = OutboxTest::Aws->new;
my $node = outbox_node('main', conf => <<'CONF');
outbox.sinks = 'webhook, aws'
restart_after_crash = on
wal_writer_delay = 10ms
CONF
my $log = PostgreSQL::Test::Utils::tempdir('log') . '/producer';
my $deaths = 0;

sub shows
{
	my ($condition, $name) = @_;
	return ok(wait_sql($node, "SELECT $condition FROM outbox.stats WHERE endpoint = 'queue'"), $name);
}

# True when so many more are in the queue
sub goes_on
{
	my ($what) = @_;
	my $before = $aws->stored('q.fifo');
	return ok(wait_until(sub { $aws->stored('q.fifo') >= $before + 100 }, 'entries'), "$what: it goes on");
}

$node->safe_psql('postgres', 'SELECT ' . $aws->create_endpoint('queue', 'sqs', 'q.fifo', "max_in_flight => $in_flight, timeout => '60 s'"));
my $producer = start_producer($node, $log, rate => 200, keys => 10);
goes_on('at first');
foreach my $round (1 .. 3)
{
	my $worker = worker_pid($node);
	shows('pending <= 20', "round $round: it keeps up");
	$node->safe_psql('postgres', "SELECT pg_terminate_backend($worker)");
	$worker = new_worker($node, $worker);
	goes_on("round $round, a worker was terminated");

	shows('pending <= 20', '... and keeps up');
	kill 'KILL', $worker or die "SIGKILL: $!";
	wait_until { process_is_gone($worker) } 'it is gone';
	new_worker($node, $worker);
	goes_on("round $round, a worker was killed");

	$aws->signal('KILL');
	shows("state = 'backing_off' AND reason ~ '^SQS: '", "round $round, the service was killed: that is shown");
	$aws->start;
	goes_on("round $round, the service is back");
	$deaths += 3;
}
stop_producer($producer);
shows('failed_attempts = 0', 'no attempt has failed') if ok(wait_settled($node), 'all is settled');

# What is in flight, and what was delivered and not yet durable
$aws->check($node, $log, 'q.fifo', max_duplicates => $deaths * 2 * ($in_flight + 20), name => 'nothing is lost, and each key is in order');
my @repeated = grep { $_->{duplicate} } $aws->stored('q.fifo');
note(scalar(@repeated) . " of " . $aws->stored('q.fifo') . " entries are repeated, which the queue has seen by their id");
$node->stop;
done_testing();
