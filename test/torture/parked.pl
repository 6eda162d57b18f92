# A worker delivers within 2 s of its start, and within 64 MB, beside millions of parked deliveries.
# There are ROWS (5,000,000) of each kind.  64 MB is what it may have above an idle worker.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Parked;
use Test::More;
use Time::HiRes qw(time);

my $n = $ENV{ROWS} || 5_000_000;
my $node = outbox_node('main',
	conf => "shared_buffers = 256MB\nmax_wal_size = 16GB\nsynchronous_commit = off\nautovacuum = off\nfsync = off\n");
my $receiver = OutboxTest::Receiver->new('main');
my $idle = private_memory(worker_pid($node));

OutboxTest::Parked::fill($node, $receiver, $n);
OutboxTest::Parked::go($node);
foreach my $what ('after the server', 'alone')
{
	my $old = worker_pid($node);
	my $id = $node->safe_psql('postgres',
		"SELECT pg_terminate_backend($old); SELECT outbox.emit('dead.free', '{}', key => 'free')");
	my $begun = time;
	my $pid = new_worker($node, $old);

	$receiver->wait_delivered(1, id => (split /\n/, $id)[1]);
	my $first = time - $begun;
	my $peak = OutboxTest::Parked::peak($pid, sub { OutboxTest::Parked::counted($node, $n) }, 600);

	cmp_ok($first, '<', 2, "$what: s to the first delivery");
	cmp_ok($peak - $idle, '<', 64, "$what: MB above what an idle worker has");
	diag(sprintf('%d rows of each kind: %.0f MB, %.2f s to the first delivery, %.1f s until all are counted',
			$n, $peak - $idle, $first, time - $begun));
}
$node->stop;
done_testing();
