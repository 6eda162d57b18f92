# Many keys, a large backlog, many scheduled events and many endpoints stay within bounds.
# There are a few thousand of each here, and as many as promised in test/torture/scale.pl.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Scale;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');
OutboxTest::Scale::use_node($node, $receiver);

many_keys(2000, 2000);
back_again(20_000, 4);
many_scheduled(50_000);
many_endpoints(100, 20);
exact_rate(40, 120);
bad_neighbours();
is($node->safe_psql('postgres', 'SELECT sum(restarts) FROM outbox.worker_slots()'),
	0, 'no worker ended with an error');

$node->stop;
done_testing();
