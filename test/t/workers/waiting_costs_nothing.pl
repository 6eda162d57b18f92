# Endpoints that wait for an operator, a receiver or a setting take no time of the worker.
# It takes long, so only LONG=1 make test and make matrix run it.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $count = 2000;
my $node = outbox_node('main', conf => "outbox.max_connections = 200\n");
my $receiver = OutboxTest::Receiver->new('main');

sub make
{
	my ($name, $path, $more) = @_;
	my $url = $receiver->url($path);
	ask("SELECT count(outbox.create_endpoint('$name' || n, '$url', '{$name}', $more)) FROM generate_series(1, $count) n");
	return;
}

# An event for each that is not delivered: $status is what it comes to.
sub waits
{
	my ($name, $status) = @_;
	ask("SELECT outbox.emit('$name', '{}')");
	ok(wait_sql($node, "SELECT count(*) = $count FROM outbox.stats WHERE endpoint ~ '^$name' AND $status"), "$name: each has an event that waits");
	return;
}

# 400 ticks are a core for this time.  Of some tries the best one counts: a busy machine is late with what was before.
sub costs_nothing
{
	my ($name) = @_;
	my $pid = worker_pid($node);
	my $ticks;
	sleep 2;
	foreach (1 .. 5)
	{
		my $before = cpu_ticks($pid);
		sleep 4;
		$ticks = cpu_ticks($pid) - $before;
		last if $ticks < 40;
	}
	cmp_ok($ticks, '<', 40, "$name: and takes no time meanwhile");
	ask("SELECT count(outbox.drop_endpoint(name, discard => true)) FROM outbox.endpoints WHERE name ~ '^$name'");
	ok(wait_sql($node, 'SELECT count(*) = 0 FROM outbox.parked'), "$name: dropped");
	return;
}

make('strict', '/status/500/strict', "ordering => 'strict', max_attempts => 1, on_exhausted => 'block'");
waits('strict', 'dead = 1');
waits('strict', 'dead = 1 AND blocked = 1');
costs_nothing('strict');

make('token', '/status/500/token', "credentials => '{\"token\": \"t\"}', max_attempts => 9, backoff_base => '1 hour', backoff_max => '1 hour'");
ask("SELECT outbox.emit('token', '{}') FROM generate_series(1, 30)");
waits('token', "state = 'backing_off'");
costs_nothing('token');

make('off', '/status/500/off', "max_attempts => 99, backoff_base => '1 s', backoff_max => '1 s'");
waits('off', 'failed_attempts > 0');
ask('ALTER SYSTEM SET outbox.enabled = off');
$node->reload;
ok(wait_sql($node, 'SELECT sum(processing) = 0 FROM outbox.stats'), 'off: nothing is sent any more');
costs_nothing('off');
$node->stop;
done_testing();
