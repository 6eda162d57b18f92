# An endpoint that has nothing to do takes little memory, and is examined again when it has.
# Nothing else wakes the worker here: what is due by itself must be enough.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main', conf => "outbox.wakeup_interval = '60 s'\noutbox.worker_max_connections = 10\n");
my $receiver = OutboxTest::Receiver->new('main');

# kB that are the worker's own
sub own_memory
{
	return 1024 * private_memory(worker_pid($node));
}

# How many sockets the worker has open
sub sockets
{
	return scalar grep { (readlink($_) // '') =~ /^socket:/ } glob('/proc/' . worker_pid($node) . '/fd/*');
}

# Memory of idle endpoints
endpoint($node, $receiver, 'first', '/ok/first', "topics => '{first}'");
ask("SELECT outbox.emit('first', '{}')");
ok(wait_settled($node), 'settled');
my $before = own_memory();
ask("SELECT count(outbox.create_endpoint('idle.' || i, '" . $receiver->url('/ok/idle') . "', topics => ARRAY['idle.' || i],"
	  . " tenant => 't' || i)) FROM generate_series(1, 2000) i");
ok(wait_sql($node, "SELECT count(*) = 2001 FROM outbox.stats WHERE pending_exact"), '2000 endpoints');
my $each = (own_memory() - $before) / 2000;
note("$each kB for each idle endpoint");
cmp_ok($each, '<', 10, 'kB for each idle endpoint')
  unless $ENV{OUTBOX_MEMORY_CHECKER};    # which takes memory of its own for each piece

# Each of them is found when an event comes
ask("SELECT count(outbox.emit('idle.' || i, '{}', tenant => 't' || i)) FROM generate_series(1, 2000) i");
ok($receiver->wait_delivered(2000, path => '/ok/idle'), 'each endpoint gets its event');
ok(wait_sql($node, "SELECT sum(delivered) = 2001 FROM outbox.stats"), 'and all are counted');
ask("SELECT count(outbox.drop_endpoint(name, discard => true)) FROM outbox.endpoints WHERE name LIKE 'idle.%'");

# A rate of requests: tokens come by time alone
endpoint($node, $receiver, 'rated', '/ok/rated', "topics => '{rated}', rate_limit => 1000");
ask("SELECT count(outbox.emit('rated', '{}')) FROM generate_series(1, 4000)");
my $begun = time;
ok($receiver->wait_delivered(4000, path => '/ok/rated'), 'all events of an endpoint with a rate limit');
cmp_ok(time - $begun, '<', 55, 'without a pause until something else wakes the worker');

# A retry that is due by itself
endpoint($node, $receiver, 'retried', '/flaky/retried?first=1', "topics => '{retried}', backoff_base => '1500 ms', backoff_max => '1500 ms'");
ask("SELECT outbox.emit('retried', '{}')");
ok(wait_sql($node, "SELECT failed_attempts = 1 FROM outbox.stats WHERE endpoint = 'retried'"), 'it has failed once');
ok($receiver->wait_delivered(1, path => '/flaky/retried'), 'and is sent when it is due');

# A request that fails while it is started, because nothing listens there
my $nobody = PostgreSQL::Test::Cluster::get_free_port();
ask("SELECT outbox.create_endpoint('nobody', 'http://127.0.0.1:$nobody/', topics => '{nobody}', max_attempts => 1)");
$begun = time;
ask("SELECT outbox.emit('nobody', '{}')");
ok(wait_sql($node, "SELECT dead = 1 FROM outbox.stats WHERE endpoint = 'nobody'"), 'a failure at once');
cmp_ok(time - $begun, '<', 30, 'is noticed at once');
ask("SELECT outbox.drop_endpoint('nobody', discard => true)");

# Connections that are not used are closed when there are too many
my $sockets = sockets();
ask("SELECT count(outbox.create_endpoint('host.' || i, 'http://host-' || i || '.localhost:$receiver->{port}/ok/host',"
	  . " topics => ARRAY['host.' || i])) FROM generate_series(1, 60) i");
foreach my $round (1 .. 2)
{
	foreach my $i (1 .. 60)
	{
		ask("SELECT outbox.emit('host.$i', '{}')");
		$receiver->wait_delivered(60 * ($round - 1) + $i, path => '/ok/host');
	}
}
is(scalar(() = $receiver->delivered(path => '/ok/host')), 120, '60 hosts, each of them twice');
cmp_ok(sockets() - $sockets, '<=', 12, 'connections that are open');
ask("SELECT count(outbox.drop_endpoint(name, discard => true)) FROM outbox.endpoints WHERE name LIKE 'host.%'");

# The same where the hosts are divided among several of libcurl's handles
ask('ALTER SYSTEM SET outbox.worker_max_connections = 256');
$node->restart;
ok(wait_sql($node, "SELECT state = 'running' FROM outbox.status"), 'running');
$sockets = sockets();
ask("SELECT count(outbox.create_endpoint('many.' || i, 'http://many-' || i || '.localhost:$receiver->{port}/ok/many',"
	  . " topics => '{many}')) FROM generate_series(1, 400) i");
foreach my $round (1 .. 2)
{
	ask("SELECT outbox.emit('many', '{}')");
	ok($receiver->wait_delivered(400 * $round, path => '/ok/many'), '400 hosts');
}
ok(wait_until { sockets() - $sockets <= 258 } 'connections that are open');
ask("SELECT count(outbox.drop_endpoint(name, discard => true)) FROM outbox.endpoints WHERE name LIKE 'many.%'");

# What was published of an endpoint does not stay from before it had rested
ok(wait_sql($node, "SELECT bool_and(processing = 0 AND pending = 0 AND retrying = 0) FROM outbox.stats"), 'nothing is left in the views');
ok(pause($node, 'rated'), 'the worker knows that it is paused');
ask("SELECT count(outbox.emit('rated', '{}')) FROM generate_series(1, 10)");
ok(wait_sql($node, "SELECT pending = 10 AND state = 'paused' FROM outbox.stats WHERE endpoint = 'rated'"), 'a paused one counts');

# Two changes soon after each other: the second is published when its time has come
ask("SELECT outbox.emit('rated', '{}');\nSELECT pg_sleep(0.03);\nSELECT outbox.emit('rated', '{}');");
ok(wait_sql($node, "SELECT pending = 12 FROM outbox.stats WHERE endpoint = 'rated'"), 'both are seen');
ask("SELECT outbox.resume_endpoint('rated')");
ok($receiver->wait_delivered(4012, path => '/ok/rated'), 'and goes on');
done_testing();
