# An endpoint that cannot be loaded again costs the others nothing, however many they are.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main', conf => "outbox.wakeup_interval = '60s'\n");
my $receiver = OutboxTest::Receiver->new('main');
my $url = $receiver->url('/ok/idle');

ask(<<"SQL");
CREATE FUNCTION public.obstacle() RETURNS trigger LANGUAGE plpgsql AS \$\$ BEGIN RAISE EXCEPTION 'an obstacle'; END \$\$;
SELECT count(outbox.create_endpoint('idle' || n, '$url', '{idle}', tenant => 't' || n / 4)) FROM generate_series(1, 10000) n;
SQL
endpoint($node, $receiver, 'fine', '/ok/fine', "topics => '{fine}'");
endpoint($node, $receiver, 'bad', '/status/500/bad', "topics => '{bad}', max_attempts => 1");
ok(wait_sql($node, "SELECT count(*) = 10002 FROM outbox.stats WHERE state = 'active' AND pending_exact"), 'known to the worker');

# CPU of the worker, in ticks, for events that come one by one
sub cpu_of_events
{
	my $pid = worker_pid($node);
	my $before = cpu_ticks($pid);
	foreach (1 .. 400)
	{
		my $id = emit($node, 'fine', '{}');
		$receiver->wait_delivered(1, id => $id);
	}
	return cpu_ticks($pid) - $before;
}

my $alone = cpu_of_events();
ask('CREATE TRIGGER obstacle BEFORE INSERT ON outbox.parked FOR EACH ROW EXECUTE FUNCTION public.obstacle()');
emit($node, 'bad', '{}');
ok(wait_sql($node, "SELECT count(*) = 1 FROM outbox.held_steps WHERE step = 'settle' AND endpoint = 'bad' AND failures >= 3"), 'an outcome of one cannot be stored');
ask("SELECT outbox.alter_endpoint('bad', ordering => 'none')");
my $beside = cpu_of_events();
cmp_ok($beside, '<', 2 * $alone + 30, "while it waits to be loaded again, events of another cost the same ($beside ticks, and $alone before)");
ask('DROP TRIGGER obstacle ON outbox.parked');
$node->reload;
ok(wait_sql($node, "SELECT dead = 1 FROM outbox.stats WHERE endpoint = 'bad'"), 'it is stored when it can be');
my $id = emit($node, 'bad', '{}');
wait_status($node, $id, 'dead', 'and the endpoint is loaded again');
$node->stop;
done_testing();
