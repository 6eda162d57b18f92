# A broker of Kafka that was good and becomes hostile harms its own endpoint at most.
# It ends all connections, and names 10,000 brokers, or no instance can be made any more, or it
# floods the worker while events end that have no topic: threads and memory stay bounded, and
# the worker lives.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Beside;
use OutboxTest::Network;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'outbox_kafka was not built: it needs librdkafka-dev' unless is_installed('outbox_kafka');

my $node = outbox_node('main', conf => "outbox.sinks = 'webhook, kafka'\n");
my $worker;

sub threads { return scalar(() = glob("/proc/$worker/task/*")) }

sub endpoint
{
	my ($name, $behaviour, $topic) = @_;
	$worker = worker_pid($node);
	my ($port) = values %{ start_hostile('kafka', $behaviour)->{port} };
	ask("SELECT outbox.create_endpoint('$name', 'kafka://127.0.0.1:$port/$topic', '{$name}', max_in_flight => 2)");
	endpoint_shows($node, $name, "state = 'active'", "$behaviour: it is good at first");
}

# Its events without a key have no topic, and each ends in the next poll.
endpoint('keys', 'answers nothing without rest', '{key}');

# No thread can be made, so no instance can.
endpoint('alone', 'ends all connections, and each one that begins', 't');
my ($limit) = `prlimit --pid $worker --nproc --noheadings --output SOFT` =~ /(\S+)/;
my $memory = private_memory($worker);
system('prlimit', '--pid', $worker, '--nproc=1:') == 0 or die "prlimit failed\n";
emit($node, 'alone', '{}');
endpoint_shows($node, 'alone', "state = 'backing_off'", 'no other instance can be made');
ask(q{SELECT count(outbox.emit('keys', '{}')) FROM generate_series(1, 30000) n});
endpoint_shows($node, 'keys', 'dead = 30000', 'the worker polls again and again');
my $grown = private_memory($worker) - $memory;
cmp_ok($grown, '<', 20, sprintf 'its memory has grown by %.1f MB', $grown) unless $ENV{OUTBOX_MEMORY_CHECKER};    # which keeps what was freed
system('prlimit', '--pid', $worker, "--nproc=$limit:") == 0 or die "prlimit failed\n";
ask("SELECT outbox.drop_endpoint('alone', discard => true)");

# They end while a flood is seen.
ask(q{SELECT count(outbox.emit('keys', '{}', key => CASE n WHEN 2000 THEN 't' END)) FROM generate_series(1, 50000) n});
endpoint_shows($node, 'keys', "reason = 'its brokers keep threads of librdkafka busy with nothing'", 'a flood is seen');
note(ask("SELECT format('%s pending, %s dead', pending, dead) FROM outbox.stats WHERE endpoint = 'keys'"));

endpoint('flood', 'ends all connections, and names 10,000 brokers of no cluster', 't');
my $threads = threads();
my $most = 0;
emit($node, 'flood', '{}');
wait_until
{
	$most = threads() if threads() > $most;
	ask("SELECT reason = 'its brokers name more than 100 brokers' AND failed_attempts = 0 FROM outbox.stats WHERE endpoint = 'flood'") eq 't';
}
'it is given up' or diag(ask("SELECT to_jsonb(s) FROM outbox.stats s WHERE endpoint = 'flood'"));
cmp_ok($most, '<', 700, "$most threads at most");
all_of('its threads end', sub { return threads() > $threads ? threads() . " instead of $threads" : () });
ask("SELECT outbox.drop_endpoint('flood', discard => true)");

is(ask('SELECT restarts FROM outbox.workers'), '0', 'the worker has lived through all of it');
$node->stop;
done_testing();
