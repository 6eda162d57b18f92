# An hour in which 20,000 receivers are down does not take a worker above its bound of memory.
# MINUTES says how long it is.  Another endpoint gets an event every ten seconds.  Then 1,000
# receivers hang with payloads of 10 MB.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::MemoryBound;
use Test::More;
use Time::HiRes qw(time);

my $minutes = $ENV{MINUTES} || 60;
alarm $minutes * 60 + 1800;
my $node = outbox_node('main', conf => "synchronous_commit = off\nshared_buffers = 256MB\nmax_wal_size = 4GB\noutbox.max_payload_size = 12MB\n");
my $end;
my $emitted = 0;

use_bound($node);
shape(
	'20,000 down, of 5,000 tenants',
	receivers => ['down'],
	endpoints => 20_000,
	tenants => 5000,
	events => 1_000_000,
	keys => 3,
	well => 200 + 6 * $minutes,
	seconds => $minutes * 60 + 1200,
	until => sub {
		$end //= time + $minutes * 60;
		if ($emitted < 6 * $minutes && time > $end - $minutes * 60 + 10 * $emitted)
		{
			emit($node, 'well', '{}');
			$emitted++;
		}
		return $emitted == 6 * $minutes;
	});
my $large;
shape(
	'1,000 that hang, with payloads of 10 MB',
	receivers => ['hangs'],
	endpoints => 1000,
	events => 20,
	bytes => 10_000_000,
	payload => 12,
	seconds => 1200,
	until => sub {
		$large //= time + 60;
		return time > $large;
	});
is($node->safe_psql('postgres', 'SELECT sum(restarts) FROM outbox.worker_slots()'), 0, 'no worker ended with an error');
$node->stop;
done_testing();
