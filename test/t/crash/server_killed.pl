# A server that dies under load loses no committed event, in whatever way it dies.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# What a settle wrote is durable soon, so that the bound on duplicates is tight.
my $node = outbox_node('main', conf => "wal_writer_delay = 10ms\n");
my $receiver = OutboxTest::Receiver->new('main', fsync => 1);
my $log = PostgreSQL::Test::Utils::tempdir() . '/producer';
my $quick = "backoff_base => '20 ms', backoff_max => '200 ms'";
my @ways = (qw(kill immediate fast postmaster kill immediate));

endpoint($node, $receiver, 'ok', '/ok/a', $quick);
endpoint($node, $receiver, 'fails', '/fail/b?rate=0.05', $quick);
endpoint($node, $receiver, 'slow', '/slow/c?ms=20', $quick);

my $producer = start_producer($node, $log, rate => 400, keys => 8);
foreach my $way (@ways)
{
	# What piled up while it was down is sent faster than it is emitted.
	ok(wait_sql($node, "SELECT max(pending + processing) < 40 FROM outbox.stats WHERE endpoint <> 'slow'"),
		"$way: up to date before");
	$receiver->wait_new(200 + int(rand 300));
	if ($way eq 'kill') { kill_everything($node) }
	elsif ($way eq 'postmaster') { $node->kill9 }
	else { $node->stop($way) }
	ok(start_again($node), "$way: the server starts again");
}
$receiver->wait_new(300);
stop_producer($producer);

# Per crash and endpoint: what is in flight, on a slow machine all that may be; at 400 a second,
# what a settle interval of 10 ms, 3 * wal_writer_delay and two flushes bring.  With
# a memory checker all of that takes twice as long.
check_history(
	$node, $receiver, $log,
	endpoints => [ '/ok/a', '/fail/b', '/slow/c' ],
	max_duplicates => @ways * 3 * (32 + 0.06 * 400) * ($ENV{OUTBOX_MEMORY_CHECKER} ? 2 : 1));

# smart, with nothing to do: ends although an endpoint hangs
endpoint($node, $receiver, 'hang', '/hang/d', "topics => '{hang}'");
emit($node, 'hang', '{}');
$receiver->wait_for(1, path => '/hang/d');
$node->stop('smart');
pass('a smart shutdown does not wait for a request that hangs');
$receiver->control(path => '/hang/d', behave => '/ok');
$node->start;
$receiver->wait_delivered(1, path => '/hang/d');
pass('it is sent again afterwards');

$node->stop;
done_testing();
