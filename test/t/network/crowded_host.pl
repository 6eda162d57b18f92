# A host that has many requests under way stays known to all endpoints that have it.
# libcurl's multi handles divide the requests to such a host, and each of them knows the
# addresses of names by itself.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

# Holds so many requests of an endpoint at the same host, until the path is told to answer.
sub hold
{
	my ($name, $n) = @_;
	ask("SELECT outbox.create_endpoint('$name', 'http://localhost:$receiver->{port}/hold/$name', topics => '{$name}', max_in_flight => 32, timeout => '60 s', max_attempts => 1)");
	emit_at_once($node, $name, $n, 'NULL');
	$receiver->wait_for($n, path => "/hold/$name");
	return;
}

sub answer
{
	my ($name) = @_;
	$receiver->control(path => "/hold/$name", behave => '/ok');
	endpoint_shows($node, $name, 'delivered = 1', "$name is answered");
	return;
}

# The handle of the first request has run where nearly all run.  It is the next one again
# when so many run there that its endpoint has to go elsewhere.
hold('first', 1);
hold("crowd$_", 32) foreach 1 .. 4;
hold('other', 1);
answer('first');
answer('other');
hold('last', 1);
emit($node, 'first', '{}');
endpoint_shows($node, 'first', 'delivered + dead = 2', 'its second event has ended');
is(ask("SELECT concat_ws(' ', delivered, failed_attempts, last_error) FROM outbox.stats WHERE endpoint = 'first'"),
	'2 0', 'a name that was found is found elsewhere, too');
$node->stop;
done_testing();
