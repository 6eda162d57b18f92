# The events of a Kafka endpoint lead to 1,000 different topics an hour at most.
# An event that would lead to another one is tried again later, and nothing else waits for it.
# Against librdkafka's mock broker, which makes each topic that it is asked for.
# It takes long, so only LONG=1 make test and make matrix run it.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Kafka;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'outbox_kafka was not built: it needs librdkafka-dev' unless is_installed('outbox_kafka');
plan skip_all => 'there is no kcat to read with' if system('kcat -V > /dev/null 2>&1') != 0;

my ($broker, $mock) = OutboxTest::Kafka::mock_broker();
my $node = outbox_node('main', conf => "outbox.sinks = 'webhook, kafka'\n");

# An endpoint that tries again soon
sub create
{
	my ($name, $topic) = @_;
	ask("SELECT outbox.create_endpoint('$name', 'kafka://$broker/$topic', '{$name}', timeout => '10 min', backoff_base => '100 ms', backoff_max => '200 ms')");
	return endpoint_shows($node, $name, "state = 'active'", "$name: the link comes up");
}

# The topics that the broker has
sub topics
{
	my ($prefix) = @_;
	my @topics = qx{kcat -L -b $broker -m 10} =~ /topic "($prefix[^"]*)"/g;
	return @topics;
}

# The threads of the worker that each are one of librdkafka's instances
sub instances
{
	return grep { (eval { slurp_file("$_/comm") } // '') =~ /^rdk:main/ } glob '/proc/' . worker_pid($node) . '/task/*';
}

create('many', 'many.{type}');
ask("SELECT count(outbox.emit('many', jsonb_build_object('n', n), type => 't' || n)) FROM generate_series(1, 1000) n");
endpoint_shows($node, 'many', 'delivered = 1000 AND failed_attempts = 0', 'events go to 1,000 topics');

my $one_more = emit($node, 'many', '{"n": 1001}', "type => 't1001', key => 'k'");
my $behind = emit($node, 'many', '{"n": 1002}', "type => 't1', key => 'k'");
my $error = 'events have led to 1000 topics within an hour, and "many.t1001" is another one';
endpoint_shows($node, 'many', "failed_attempts > 1 AND last_error = '$error'", 'one that leads to another topic fails, and is tried again');
ask("SELECT count(outbox.emit('many', jsonb_build_object('n', n), type => 't' || n, key => 'k' || n)) FROM generate_series(1, 1000) n");
endpoint_shows($node, 'many', "delivered = 2000 AND dead = 0 AND state = 'active'", 'all others go on');
is(ask("SELECT string_agg(status, ' ' ORDER BY status) FROM outbox.deliveries WHERE event_id IN ('$one_more', '$behind')"), 'blocked retrying', 'those of its key wait behind it');
is(scalar(topics('many')), 1000, 'the broker was asked for no other topic');

create('others', 'others.{topic}.{type}');
my $other = emit($node, 'others', '{}', "type => 'x'");
wait_status($node, $other, 'delivered', 'another endpoint has topics of its own');
create('same', 'same');
ask("SELECT count(outbox.emit('same', '{}', type => 't' || n)) FROM generate_series(1, 1010) n");
endpoint_shows($node, 'same', 'delivered = 1010 AND failed_attempts = 0', 'one with one topic counts nothing');

# librdkafka keeps each topic that it has had.  After 3,000, another instance takes its place:
# 1,001 of these endpoints, and 1,000 of each of two others.
my ($instance, @more) = instances();
is(scalar(@more), 0, 'all these endpoints have one instance');
foreach my $name (qw(second third))
{
	my $sent = 0;

	create($name, "$name.{type}");
	# A hundred at a time: while a topic is new, librdkafka reads the metadata of all again and again, and the broker
	# takes minutes for a thousand.
	while ($sent < 1000)
	{
		ask("SELECT count(outbox.emit('$name', jsonb_build_object('n', n), type => 't' || n, key => 'k' || n)) FROM generate_series($sent + 1, $sent + 100) n");
		$sent += 100;
		wait_until(sub { stat_of($node, $name, "delivered = $sent AND failed_attempts = 0") eq 't' }, "$sent of $name", 120) or last;
	}
	is($sent, 1000, "1,000 topics of the endpoint $name");
}
ok(wait_until(sub { my @now = instances(); @now == 1 && $now[0] ne $instance }, 'another instance'), 'another instance has them, and that one has ended');

# Topics that are new to that instance only cost it as much, and are not held against the brokers.
($instance) = instances();
foreach my $name (qw(second third))
{
	for (my $sent = 0; $sent < 1000; $sent += 100)
	{
		ask("SELECT count(outbox.emit('$name', '{}', type => 't' || n, key => 'k' || n)) FROM generate_series($sent + 1, $sent + 100) n");
		wait_until(sub { stat_of($node, $name, "delivered = 1100 + $sent AND failed_attempts = 0") eq 't' }, "$sent more of $name", 120) or last;
	}
}
is(join(' ', instances()), $instance, 'it keeps the topics that its endpoints had before');
unlike(slurp_file($node->logfile), qr/busy with nothing/, 'and is not ended for what they cost');

ask("SELECT outbox.alter_endpoint('many', timeout => '61 s')");
wait_status($node, $one_more, 'delivered', 'an endpoint that is altered counts anew');
wait_status($node, $behind, 'delivered', 'and its key goes on');
is(scalar(topics('many')), 1001, 'the topic is there now');
done_testing();
