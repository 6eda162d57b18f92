# No attempt begins before its event was emitted, and no delivery is older than its event.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

$ENV{OUTBOX_SLOW_CLOCK} = 200;
$ENV{LD_PRELOAD} = shim('slow_clock');
my $node = outbox_node('main');
delete $ENV{LD_PRELOAD};
my $receiver = OutboxTest::Receiver->new('main');

# On a slow machine, many events are emitted between the begin of a round and its read
my $n = 500;
endpoint($node, $receiver, 'single', '/ok/single', "topics => '{n.*}'");
endpoint($node, $receiver, 'batch', '/ok/batch', "topics => '{n.*}', batch_size => 10");
$node->safe_psql('postgres',
	"DO \$\$ BEGIN FOR i IN 1..$n LOOP PERFORM outbox.emit('n.n', jsonb_build_object('n', i)); COMMIT; END LOOP; END \$\$");
wait_settled($node);
foreach my $endpoint (qw(single batch))
{
	my $of = "FROM outbox.events e JOIN outbox.attempts a ON a.event_id = e.id WHERE a.endpoint = '$endpoint'";
	is($node->safe_psql('postgres', "SELECT count(*) $of"), $n, "$endpoint: attempts");
	is($node->safe_psql('postgres', "SELECT count(*) $of AND a.started_at < e.created_at"), 0, "$endpoint: none before its event");
}
is($node->safe_psql('postgres', 'SELECT count(*) FROM outbox.deliveries WHERE delivered_at < created_at'), 0, 'no delivery before its event');

$node->stop;
done_testing();
