# The promises of scale hold: 100,000 keys, a million waiting, a million scheduled, 1,000 endpoints.
# test/t/limits/large_numbers.pl does the same with a few thousand.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Scale;
use Test::More;

alarm 3600;
$PostgreSQL::Test::Utils::timeout_default = 600;
my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');
OutboxTest::Scale::use_node($node, $receiver);

many_keys(100_000, 10_000);
back_again(1_000_000, 10);
many_scheduled(1_000_000);
many_endpoints(1000, 20);
exact_rate(200, 4000);
bad_neighbours();
is($node->safe_psql('postgres', 'SELECT sum(restarts) FROM outbox.worker_slots()'),
	0, 'no worker ended with an error');

$node->stop;
done_testing();
