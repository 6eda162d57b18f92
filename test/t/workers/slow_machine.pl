# Work that becomes due while a slow worker goes to sleep is done.
# Nothing else wakes it here.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

$ENV{OUTBOX_SLOW_CLOCK} = 3000;
$ENV{LD_PRELOAD} = shim('slow_clock');
my $node = outbox_node('slow', conf => "outbox.wakeup_interval = '60 s'\n");
delete $ENV{LD_PRELOAD};
my $receiver = OutboxTest::Receiver->new('slow');

# Each token comes by time alone, when everything else is done.
endpoint($node, $receiver, 'rated', '/ok/rated', 'rate_limit => 10');
$node->safe_psql('postgres', "SELECT count(outbox.emit('a.b', '{}')) FROM generate_series(1, 50)");
is(scalar(() = $receiver->wait_delivered(50, path => '/ok/rated')), 50, 'all events of an endpoint with a rate limit');
done_testing();
