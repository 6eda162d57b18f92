# An endpoint that backs off because some events always fail still delivers the others.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

sub backs_off
{
	my ($name, $path, $n, $key, $more) = @_;

	endpoint($node, $receiver, $name, $path, "topics => '{$name}', backoff_base => '50 ms', backoff_max => '100 ms'$more");
	$node->safe_psql('postgres', "SELECT count(outbox.emit('$name', jsonb_build_object('n', n), key => $key)) FROM generate_series(1, $n) n");
	return endpoint_shows($node, $name, "state = 'backing_off'", "$name: backing off");
}

my $poison = join ',', 1 .. 40;
foreach my $case ([ 'single', 'NULL', '' ], [ 'keys', '(n % 25)::text', '' ], [ 'batches', 'NULL', ', batch_size => 5' ])
{
	my ($name, $key, $more) = @$case;

	backs_off($name, "/poison/$name?n=$poison", 40, $key, $more);
	wait_status($node, emit($node, $name, '{"n": 41}'), 'delivered', "$name: what does not fail is delivered");
}

# Whatever the next events of the log wait for, there are probes, and everything is delivered in the end.
foreach my $case ([ 'hot', q('k'), '' ], [ 'lanes', '(n % 25)::text', '' ], [ 'strict', 'NULL', q(, ordering => 'strict', max_attempts => 5) ])
{
	my ($name, $key, $more) = @$case;

	$receiver->control(path => "/ok/$name", behave => '/status/500');
	backs_off($name, "/ok/$name", 2000, "CASE WHEN n > 30 THEN $key END", $more);
	my $before = scalar(() = $receiver->requests(path => "/ok/$name"));
	ok(wait_until { $receiver->requests(path => "/ok/$name") > $before + 10 } "$name: probes");
	$receiver->control(path => "/ok/$name", behave => '');
	endpoint_shows($node, $name, 'pending + processing + retrying + blocked = 0', "$name: nothing is left");
}

$node->stop;
done_testing();
