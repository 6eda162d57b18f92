# A record whose time is over while the worker is held up has not failed.
# The machine may be suspended, or the worker's process stopped, for longer than the timeout.
# Then librdkafka gives up records that it could not send.  Against librdkafka's mock broker.
use strict;
use warnings;

use List::Util qw(uniq);
use OutboxTest;
use OutboxTest::Kafka;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'outbox_kafka was not built: it needs librdkafka-dev' unless is_installed('outbox_kafka');
plan skip_all => 'there is no kcat to read with' if system('kcat -V > /dev/null 2>&1') != 0;

my ($broker, $mock) = OutboxTest::Kafka::mock_broker();

my $node = outbox_node('main', conf => "outbox.sinks = 'webhook, kafka'\n");

# Failures of 30 events would open a breaker, and each of them is dead at once.
foreach my $name (qw(answered waits))
{
	$mock->("topic $name 1");
	ask("SELECT outbox.create_endpoint('$name', 'kafka://$broker/$name', '{$name}', format => 'raw', timeout => '10 s', max_attempts => 1)");
	emit($node, $name, '{"n": 0}', "key => 'k0'");
	endpoint_shows($node, $name, 'delivered = 1', "$name: the topic is known");
}

# The broker answers later than the worker stops, and a topic has no leader.
my $worker = worker_pid($node);
$mock->('rtt 4000');
$mock->('leaderless waits');
ask("SELECT count(outbox.emit(t, jsonb_build_object('n', n), key => 'k' || n % 30)) FROM unnest('{answered,waits}'::text[]) t, generate_series(1, 60) n");
ok(wait_sql($node, 'SELECT sum(in_flight) = 60 FROM outbox.workers'), 'records of all keys are under way');
kill 'STOP', $worker;
$mock->('rtt 0');
$mock->('led waits');
sleep 13;    # longer than the timeout
kill 'CONT', $worker;

foreach my $name (qw(answered waits))
{
	endpoint_shows($node, $name, "delivered = 61 AND dead = 0 AND failed_attempts = 0 AND state = 'active'", "$name: all are delivered, and nothing has failed");
	my %order;
	push @{ $order{ $_->[0] } }, $_->[1] foreach map { [/^(\S+)\t.*"n": ?(\d+)/] } split /\n/, qx{kcat -C -q -e -X broker.address.family=v4 -b $broker -t $name -o beginning -f '%k\\t%s\\n'};
	is(join(', ', map { "$_: @{[uniq @{ $order{$_} }]}" } sort keys %order),
		join(', ', map { "k$_: " . join(' ', ($_ == 0 ? (0, 30, 60) : ($_, $_ + 30))) } sort { "k$a" cmp "k$b" } 0 .. 29),
		"$name: Kafka has all, in the order of their keys");
}
is(ask("SELECT sum(value) FROM outbox.metrics() WHERE name = 'outbox_breaker_openings_total'"), '0', 'no breaker has opened');

$mock->('leaderless waits');
emit($node, 'waits', '{"n": 61}', "key => 'k1'");
endpoint_shows($node, 'waits', "dead = 1 AND last_error ~ '^Kafka: .*timed out'", 'where the worker could have sent, it has failed');
is(worker_pid($node), $worker, 'it is the same worker');
$node->stop;
done_testing();
