# What a broker of Kafka costs is counted over all instances of librdkafka that it makes begin.
# It is another cluster each time, or refuses each batch as too large, and librdkafka cannot end what
# had the partition -1: there are few instances, so few threads.  If one is flooded, all of them end.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Network;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'outbox_kafka was not built: it needs librdkafka-dev' unless is_installed('outbox_kafka');

my $node = outbox_node('main', conf => "outbox.sinks = 'webhook, kafka'\n");
my $worker = worker_pid($node);

sub threads { return scalar(() = glob("/proc/$worker/task/*")) }

# The key 'a' leads to partition 0 of 2.
sub endpoint_at
{
	my ($name, $behaviour) = @_;
	my ($port) = values %{ start_hostile('kafka', $behaviour)->{port} };
	ask("SELECT outbox.create_endpoint('$name', 'kafka://127.0.0.1:$port/t', '{$name}')");
	endpoint_shows($node, $name, "state = 'active'", "$behaviour: it is good at first");
}

# The most threads that there are beyond those of before, until the condition holds.  Where nothing bounds
# them, until there are many.
sub most_threads
{
	my ($threads, $condition, $name) = @_;
	my $most = 0;

	wait_until
	{
		$most = threads() - $threads if threads() - $threads > $most;
		$most > 100 || ask("SELECT $condition") eq 't';
	}
	$name;
	note("$name: $most threads at most");
	return $most;
}

# 6 instances, of which each keeps 4 threads and the one that waits for them
my $threads = threads();
endpoint_at('other', 'has the partition -1, and is another cluster each time');
emit($node, 'other', '{}', "key => 'a'");
my $most = most_threads($threads, "reason = 'former instances of librdkafka do not end' FROM outbox.stats WHERE endpoint = 'other'", 'another cluster each time');
cmp_ok($most, '<=', 36, 'another cluster each time: there are few instances');
endpoint_shows($node, 'other', "state = 'backing_off' AND reason = 'former instances of librdkafka do not end' AND failed_attempts = 0", 'its endpoint waits');

$threads = threads();
endpoint_at('large', 'has the partition -1, and says that everything is too large');
ask(q{SELECT count(outbox.emit('large', '{}', key => 'a')) FROM generate_series(1, 50) n});
$most = most_threads($threads, "dead = 50 OR retrying > 0 FROM outbox.stats WHERE endpoint = 'large'", 'batches that are too large');
cmp_ok($most, '<=', 36, 'batches that are too large: there are few instances');

endpoint_at('single', 'says that everything is too large, and floods single records');
emit($node, 'single', '{}', "key => 'a'");
endpoint_shows($node, 'single', "state = 'backing_off' AND reason = 'its brokers keep threads of librdkafka busy with nothing' AND failed_attempts = 0", 'a flood of the instance for single records is one of its endpoint');

is(ask('SELECT restarts FROM outbox.workers'), '0', 'the worker has lived through all of it');
$node->stop;
done_testing();
