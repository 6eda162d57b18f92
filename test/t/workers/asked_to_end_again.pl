# A worker that is asked to end several times stores everything, as one that is asked once.
# The postmaster sends each signal to the process and to its group, and the second one may come
# late.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');
my $delivered = 0;
my $again = 0;

endpoint($node, $receiver, 'a', '/ok/a');
foreach my $round (1 .. 5)
{
	emit_at_once($node, 'a', 200, 'NULL');
	$delivered += 200;
	ok(wait_sql($node, "SELECT delivered = $delivered FROM outbox.stats"), "$round: delivered");
	my $worker = worker_pid($node);
	for ($again = 0; kill('TERM', $worker) && $again < 100_000; $again++)
	{
		usleep(100);
	}
	ok(process_is_gone($worker), 'it has ended');
	ok(wait_sql($node, "SELECT state = 'running' FROM outbox.status"), 'and another one runs');
}
cmp_ok($again, '>', 1, 'each was asked several times');
is(ask("SELECT sum((f ->> 'delivered')::int) FROM outbox.figures('a') f"), $delivered, 'the figures have all');
$node->stop;
unlike(slurp_file($node->logfile), qr/terminating background worker "outbox worker"/, 'none ended before its work was stored');
done_testing();
