# No record goes to another cluster of Kafka with the number of a producer of the former one.
# A broker is made anew at the same address while the worker lives, with records in flight.  Another
# producer is begun before anything is sent to it.  A broker that only comes back keeps its producer.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Network;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'outbox_kafka was not built: it needs librdkafka-dev' unless is_installed('outbox_kafka');

my $node = outbox_node('main', conf => "outbox.sinks = 'webhook, kafka'\n");
my $dir = PostgreSQL::Test::Utils::tempdir('remade');
my $pid = OutboxTest::Network::start("$dir/ready", 'python3', "$top/test/kafka/remade.py", '--ready', "$dir/ready", '--journal', "$dir/journal", 'broker');
my ($port) = slurp_file("$dir/ready") =~ /^(\d+)/;
my $sent = 0;

# Requests with records: [ cluster, number of the producer ]
sub requests
{
	return map { [ (split /\t/)[ 2, 3 ] ] } lines_of("$dir/journal", qr/\trecords\t/);
}

# The numbers that a cluster gave to producers
sub given
{
	my ($cluster) = @_;
	return map { (split /\t/)[3] } lines_of("$dir/journal", qr/\tinit\t$cluster\t/);
}

# The broker becomes one of this cluster, with the first request that has records.
sub emit_to
{
	my ($cluster, $time, $name) = @_;

	append_to_file("$dir/journal.new", "clust-$cluster $time");
	rename "$dir/journal.new", "$dir/journal.cluster";
	$node->safe_psql('postgres', q{SELECT count(outbox.emit('bus', '{}', key => 'k' || n)) FROM generate_series(1, 5) n});
	$sent += 5;
	return endpoint_shows($node, 'bus', "delivered = $sent", "$name: all are delivered");
}

append_to_file("$dir/journal.cluster", 'clust-1 0');
$node->safe_psql('postgres', "SELECT outbox.create_endpoint('bus', 'kafka://127.0.0.1:$port/t', '{bus}', timeout => '60 s')");
endpoint_shows($node, 'bus', "state = 'active'", 'the link comes up');
my $rounds = 3;
foreach my $round (1 .. $rounds)
{
	emit_to($round, 1, "cluster $round, made anew") if $round > 1;
	emit_to($round, 2, "cluster $round, back again");
	emit_to($round, 3, "cluster $round, once more");
}

# Each request has a number that its own cluster has given
my %gave = map { my $c = $_; map { ("clust-$c $_" => 1) } given("clust-$c") } 1 .. $rounds;
my @foreign = grep { !$gave{"$_->[0] $_->[1]"} } requests();
is(join(', ', map { "producer $_->[1] in $_->[0]" } @foreign), '', 'no request has the number of a producer of another cluster');
cmp_ok(scalar(requests()), '>=', 2 * $rounds - 1, 'there were requests in each');
foreach my $cluster (1 .. $rounds)
{
	my %used = map { ($_->[1] => 1) } grep { $_->[0] eq "clust-$cluster" } requests();
	is(scalar(keys %used), 1, "cluster $cluster: its producer stays while connections come and go");
}
is(stat_of($node, 'bus', 'failed_attempts'), 0, 'no attempt has failed');
is($node->safe_psql('postgres', 'SELECT restarts FROM outbox.workers'), '0', 'in one worker');
$node->stop;
done_testing();
