# Apache Kafka gets every event once and in the order of its key, also when it is killed or hangs.
# Webhooks go on beside it meanwhile.  What is too large together is sent alone.  A broker that
# advertises a private address is not connected to.  "make clients" fetches Kafka, and runs this.
use strict;
use warnings;

use JSON::PP;
use OutboxTest;
use OutboxTest::Kafka;
use PostgreSQL::Test::Utils;
use Test::More;

my $kafka = OutboxTest::Kafka->new(
	jars => OutboxTest::Kafka::needed(),
	listeners => { HIDDEN => 'PLAINTEXT' },
	advertise => { HIDDEN => '10.255.255.1' });
my $node = outbox_node('main', conf => "outbox.sinks = 'webhook, kafka'\n");
my $receiver = OutboxTest::Receiver->new('main');
my $log = PostgreSQL::Test::Utils::tempdir('log') . '/producer';
my $round = 0;

# Emits to an endpoint until it is told to stop.
sub load
{
	my ($endpoint, %option) = @_;
	return start_producer($node, "$log.$endpoint", topic => "$endpoint." . ++$round, rate => 200, keys => 10, %option);
}

# A load of webhooks, all of which arrive while Kafka is as it is.  How long they take is
# printed, because nothing but the machine bounds it.
sub webhooks
{
	my ($when) = @_;
	my $before = stat_of($node, 'web', 'delivered');
	my $first = $round + 1;
	my (%sent, @took);

	stop_producer(load('web', seconds => 5), 1);
	endpoint_shows($node, 'web', "delivered > $before + 100 AND pending + processing + retrying = 0", "webhooks go on $when");
	foreach my $event (map { decode_json($_) } split /\n/, slurp_file("$log.web"))
	{
		$sent{ $event->{id} } = $event->{wall} if $event->{outcome} eq 'unknown' && $event->{key} =~ /^web\.$first-/;
	}
	@took = sort { $a <=> $b } map { 1000 * ($_->{wall} - $sent{ $_->{id} }) } grep { $sent{ $_->{id} } } $receiver->delivered(path => '/ok/web');
	diag(sprintf 'webhooks %s: p50 %.1f ms, p99 %.1f ms of %d', $when, $took[ @took / 2 ], $took[ @took * 0.99 ], scalar @took);
	return;
}

ask("SELECT outbox.create_endpoint('bus', 'kafka://@{[$kafka->address]}/shop.{topic.1}', '{bus.*}', format => 'raw', timeout => '5 min')");
endpoint($node, $receiver, 'web', '/ok/web', "topics => '{web.*}'");
endpoint_shows($node, 'bus', "state = 'active'", 'the link comes up');

# A topic that is missing
my $producer = load('bus');
endpoint_shows($node, 'bus', "reason = 'Kafka refuses topic shop.bus: it does not exist'", 'a topic that is missing is named');
$kafka->topic('shop.bus', 4);
endpoint_shows($node, 'bus', 'delivered > 100', 'events flow');
webhooks('beside a Kafka that is well');

# Killed in the middle
$kafka->stop('KILL');
endpoint_shows($node, 'bus', "state = 'backing_off'", 'a broker that was killed is shown');
webhooks('beside a broker that was killed');
$kafka->start(1);
stop_producer($producer);
$kafka->check($node, "$log.bus", 'shop.bus', name => 'killed');
is(stat_of($node, 'bus', 'failed_attempts'), 0, 'no attempt has failed');

# It hangs for 90 s, which is longer than the timeout of one endpoint, and than librdkafka waits for
# an answer
$kafka->topic('short', 4);
ask("SELECT outbox.create_endpoint('short', 'kafka://@{[$kafka->address]}/short', '{short.*}', format => 'raw', timeout => '2 s', backoff_base => '500 ms', backoff_max => '1 s')");
my @producers = map { load($_, rate => 50) } qw(bus short);
my $before = stat_of($node, 'bus', 'delivered');
endpoint_shows($node, 'short', 'delivered > 100', 'events flow to an endpoint that has little patience');
endpoint_shows($node, 'bus', "delivered > $before + 100", 'and to the other');
my $stopped = time;
$kafka->signal('STOP', 1);
webhooks('beside a broker that hangs');
endpoint_shows($node, 'bus', "state = 'active' AND reason ~ '^no answer from broker'", 'the reason names the broker');
endpoint_shows($node, 'short', "state = 'backing_off' OR failed_attempts > 0", 'the endpoint with little patience has given up what was in flight');
wait_until { time - $stopped >= 90 } 'it hangs for long enough', 100;
webhooks('beside a broker that has hung for 90 s');
$kafka->signal('CONT', 1);
# In these, each of the 40 keys had a record under way for 2 s each time, and all may be stored
my $given_up = 40 * (2 + int((time - $stopped) / 2));
stop_producer($_) foreach @producers;
$kafka->check($node, "$log.bus", 'shop.bus', name => 'hung');
is(stat_of($node, 'bus', 'failed_attempts'), 0, 'no attempt has failed');
endpoint_shows($node, 'bus', "state = 'active' AND reason IS NULL", 'and nothing is wrong any more');
$kafka->check($node, "$log.short", 'short', name => 'hung for longer than the timeout', max_duplicates => $given_up);
check_history($node, $receiver, "$log.web", endpoints => ['/ok/web'], name => 'the history of the webhooks is clean');

# Too large together, and one by itself
$kafka->topic('sizes', 1, '--config', 'max.message.bytes=2000');
ask("SELECT outbox.create_endpoint('sizes', 'kafka://@{[$kafka->address]}/sizes', '{sizes}', format => 'raw', timeout => '60 s')");
endpoint_shows($node, 'sizes', "state = 'active'", 'the link comes up');
emit_at_once($node, 'sizes', 200, "'k' || n % 100");
my $id = emit($node, 'sizes', '{"n": 0, "text": "' . 'x' x 3000 . '"}', "key => 'large'");
wait_status($node, $id, 'dead', 'a record that is too large is dead');
like(ask("SELECT reason || ': ' || last_error FROM outbox.dead_letters WHERE endpoint = 'sizes'"), qr/^aborted by receiver: Kafka: .*too large/, 'with the words of Kafka');
endpoint_shows($node, 'sizes', 'delivered = 200 AND failed_attempts = 1', 'and the others are delivered, each at the first attempt');
is(join(' ', sort { $a <=> $b } map { $_->{n} } $kafka->records('sizes')), join(' ', 1 .. 200), 'each once');

# Records that are invalid because they have no key, in batches with others that are not
$kafka->topic('compact', 1, '--config', 'cleanup.policy=compact');
ask("SELECT outbox.create_endpoint('compact', 'kafka://@{[$kafka->address]}/compact', '{compact}', format => 'raw', timeout => '60 s', max_attempts => 1)");
endpoint_shows($node, 'compact', "state = 'active'", 'the link comes up');
emit_at_once($node, 'compact', 200, "CASE WHEN n % 50 > 0 THEN 'k' || n END");
endpoint_shows($node, 'compact', 'delivered = 196 AND dead = 4', 'records without a key are dead in a compacted topic, and no other one fails in their company');
is(ask("SELECT DISTINCT reason || ': ' || last_error FROM outbox.dead_letters WHERE endpoint = 'compact'"),
	'aborted by receiver: Kafka: Broker: Broker failed to validate record', 'with the words of Kafka');

# A broker that names a private address as its own
ask("SELECT outbox.create_endpoint('hidden', 'kafka://@{[$kafka->address('HIDDEN')]}/shop.bus', '{hidden}', timeout => '4 min')");
emit($node, 'hidden', '{}');
endpoint_shows($node, 'hidden', "reason ~ 'address 10.255.255.1 is private, and not in outbox.allowed_networks'", 'an advertised address that is private is refused');
is(stat_of($node, 'hidden', 'failed_attempts'), 0, 'and that is no failure of the event');

$kafka->stop('TERM');
$node->stop;
unlike(slurp_file($node->logfile), qr/PANIC|was terminated by signal/, 'no process has crashed');
done_testing();
