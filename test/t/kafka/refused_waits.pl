# Whatever Kafka refuses a producer for, its events wait, and go when it does not any more.
# It may not let a producer begin, may have lost what it knew of it, or may not take what it
# sends.  Against librdkafka's mock broker.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Kafka;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

plan skip_all => 'outbox_kafka was not built: it needs librdkafka-dev' unless is_installed('outbox_kafka');

my ($broker, $mock) = OutboxTest::Kafka::mock_broker();

my $node = outbox_node('main', conf => "outbox.sinks = 'webhook, kafka'\n");
my ($produce, $begin) = (0, 22);    # the numbers of requests in Kafka's protocol

# An endpoint for which each failed attempt would be a dead letter
sub create
{
	my ($name) = @_;
	$mock->("topic $name 3");
	return ask("SELECT outbox.create_endpoint('$name', 'kafka://$broker/$name', '{$name}', format => 'raw', timeout => '60 s', max_attempts => 1)");
}

# A user that may write nothing: the brokers refuse it a number as a producer.  Each endpoint may have
# one producer first, so it is tried again after one second and after two more.
$mock->("error $begin 31 31 31");
my $since = time;
create($_) foreach qw(one two);
my %id = map { $_ => emit($node, $_, '{}', "key => 'k'") } qw(one two);
foreach my $name (qw(one two))
{
	ok( wait_until(
			sub { slurp_file($node->logfile) =~ /endpoint "$name" sends nothing: Kafka refuses this producer: Broker: Cluster authorization failed/ },
			'the log'),
		"$name: a user that may write nothing is named");
	wait_status($node, $id{$name}, 'delivered', "$name: when it may, they go");
	endpoint_shows($node, $name, "state = 'active' AND reason IS NULL AND failed_attempts = 0", 'and no attempt has failed');
}
cmp_ok(time - $since, '>', 2.9, 'tried again twice, and not all the time');

# A user from whom every right is taken, and given back, with nothing to send meanwhile
$mock->("error $begin" . ' 31' x 300);
create('idle');
ask("SELECT outbox.alter_endpoint('idle', timeout => '59 s')");    # brokers of its own
endpoint_shows($node, 'idle', "state = 'backing_off' AND reason ~ '^Kafka refuses this producer: '", 'without an event it is named as well');
$mock->("clear $begin");
endpoint_shows($node, 'idle', "state = 'active' AND reason IS NULL", 'and tried again');

# An error after which librdkafka sends nothing more: another producer takes its place
$mock->("error $produce" . ' 45' x 300);
emit($node, 'one', '{}', "key => 'k'");
endpoint_shows($node, 'one', "state = 'backing_off' AND reason = 'Kafka refuses this producer: Broker: Broker received an out of order sequence number'", 'an error that ends a producer is named');
$mock->("clear $produce");
endpoint_shows($node, 'one', "state = 'active' AND delivered = 2 AND failed_attempts = 0", 'with another producer its event goes');

# Errors that say nothing of the event
my %refused = (33 => 'SASL', 34 => 'SASL', 35 => 'API version', 43 => 'Message format', 58 => 'SASL');
foreach my $code (sort keys %refused)
{
	$mock->("error $produce" . " $code" x 300);
	my $id = emit($node, 'two', '{}', "key => 'k'");
	endpoint_shows($node, 'two', "state = 'backing_off' AND reason ~ '^Kafka refuses topic two: Broker: .*$refused{$code}'", "error $code is named");
	$mock->("clear $produce");
	wait_status($node, $id, 'delivered', 'and its event goes later');
}
endpoint_shows($node, 'two', "state = 'active' AND failed_attempts = 0", 'no attempt has failed');

$node->stop;
unlike(slurp_file($node->logfile), qr/PANIC|was terminated by signal/, 'no process has crashed');
done_testing();
