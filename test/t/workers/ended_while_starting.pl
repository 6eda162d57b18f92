# A worker that is terminated while it starts ends where it holds no lock and is in no library.
# PostgreSQL's own handler for background workers ends the process inside the handler:
# under a lock, or inside malloc(), whose broken lists then crash the whole server.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $order = PostgreSQL::Test::Utils::tempdir() . '/order';

$ENV{OUTBOX_EARLY_TERM} = $order;
$ENV{LD_PRELOAD} = shim('early_term');
my $node = outbox_node('main');
delete $ENV{LD_PRELOAD};
my $receiver = OutboxTest::Receiver->new('main');

endpoint($node, $receiver, 'all', '/ok/all');
my $pid = worker_pid($node);
PostgreSQL::Test::Utils::append_to_file($order, '');
$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
ok(wait_until { !-e $order } 'a worker that starts is terminated');
ok(new_worker($node, $pid), 'another one follows');
ok(-e "$order.returned", 'the handler had returned');
my $id = emit($node, 'a.b', '{}');
is(scalar(() = $receiver->wait_delivered(1, id => $id)), 1, 'events are delivered');
done_testing();
