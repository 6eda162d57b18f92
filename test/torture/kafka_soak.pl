# Under a steady load to Kafka for MINUTES, memory, threads and files of the worker do not grow.
# The default is 30 minutes: 500 events a second (RATE) to an Apache Kafka that is killed and
# started again at a third and at half of the time.  A second endpoint's broker is never there.
# The last sixth of the time must look like the first.  Prints both, and slopes.
use strict;
use warnings;

use List::Util qw(max);
use OutboxTest;
use OutboxTest::Kafka;
use OutboxTest::Trend qw(first_and_last);
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $missing = OutboxTest::Kafka::missing();
plan skip_all => $missing if $missing;
my $minutes = $ENV{MINUTES} || 30;
my $rate = $ENV{RATE} || 500;
my $sample_every = $minutes >= 10 ? 15 : $minutes * 1.5;
alarm $minutes * 60 + 600;

my $kafka = OutboxTest::Kafka->new(jars => $OutboxTest::Kafka::jars, conf => "log.retention.check.interval.ms=30000\n");
$kafka->topic('soak', 3, '--config', 'segment.bytes=16000000', '--config', 'retention.bytes=32000000');

# The retention ends within the first sixth, so that each piece of the log has been
# emptied once when the comparison begins.
my $kept = max(1, int($minutes * 60 / 12));
my $node = outbox_node(
	'main', conf => <<CONF);
outbox.sinks = 'webhook, kafka'
outbox.retention = ${kept}s
outbox.attempts_retention = ${kept}s
autovacuum_naptime = 10s
fsync = on
CONF

ask("SELECT outbox.create_endpoint('soak', 'kafka://@{[$kafka->address]}/{topic}', '{soak}', timeout => '5 min')");
ask("SELECT outbox.create_endpoint('gone', 'kafka://127.0.0.1:9/gone', '{gone}')");
endpoint_shows($node, 'soak', "state = 'active'", 'the link comes up');
endpoint_shows($node, 'gone', "state = 'backing_off'", 'and the other one does not');
my $producer = start_producer(
	$node, PostgreSQL::Test::Utils::tempdir() . '/producer',
	topic => 'soak',
	seconds => $minutes * 60,
	rate => $rate,
	sessions => 2,
	keys => 200);
my $worker = worker_pid($node);
my $start = time;
my $delivered = 0;
my @killed_at = map { $minutes * 60 / $_ } 3, 2;
my @samples;

usleep($sample_every * 1_000_000);    # a moment to get going
while (time - $start < $minutes * 60)
{
	my $since = time;
	my $before = stat_of($node, 'soak', 'delivered');

	if (@killed_at && $since - $start > $killed_at[0])
	{
		shift @killed_at;
		$kafka->stop('KILL');
		endpoint_shows($node, 'soak', "state = 'backing_off'", 'Kafka was killed');
		$kafka->start(1);
		endpoint_shows($node, 'soak', "state = 'active' AND pending < 100", 'and is there again');
	}
	usleep($sample_every * 1_000_000);
	$delivered = stat_of($node, 'soak', 'delivered');
	my %s = (
		minute => (time - $start) / 60,
		'deliveries per second' => ($delivered - $before) / (time - $since),
		'waiting' => stat_of($node, 'soak', 'pending + processing'),
		'RssAnon MB' => private_memory($worker),
		'threads' => scalar(() = glob "/proc/$worker/task/*"),
		'open files' => scalar(() = glob "/proc/$worker/fd/*"),
		'log MB' => ask("SELECT log_bytes / 1048576.0 FROM outbox.status"));
	push @samples, \%s;
	note(join ', ', map { sprintf '%s %.2f', $_, $s{$_} } sort keys %s);
}
is(worker_pid($node), $worker, 'the same worker from the beginning to the end');
stop_producer($producer);

diag("$minutes minutes, $rate events/s");
my ($first, $last) = first_and_last($minutes, @samples);

# Generous, because others may be at work on this machine.  What is emitted is its matter too.
cmp_ok($last->{'waiting'}, '<', $first->{'waiting'} + $rate, 'no more waits than is emitted in a second');
cmp_ok($last->{'RssAnon MB'}, '<', $first->{'RssAnon MB'} + 8, 'no more memory');
cmp_ok($last->{'threads'}, '<', $first->{'threads'} + 3, 'nor threads');
cmp_ok($last->{'open files'}, '<', $first->{'open files'} + 8, 'nor open files');
cmp_ok($last->{'log MB'}, '<', 3 * $first->{'log MB'} + 16, 'the log is shortened');
ok(wait_settled($node), 'everything is delivered in the end');
is(stat_of($node, 'soak', 'failed_attempts'), 0, 'no attempt has failed');
is($kafka->count('soak'), stat_of($node, 'soak', 'delivered'), 'and each event is in Kafka once');

$kafka->stop('KILL');
$node->stop;
done_testing();
