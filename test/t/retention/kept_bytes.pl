# What is kept for a tenant has no more bytes than its limit says, and the newest stay.
# To look at thousands of tenants with a limit takes a small part of the worker's time.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $node = outbox_node('main', conf => "outbox.retention = '2 s'\noutbox.attempts_retention = '2 s'\n");
my $receiver = OutboxTest::Receiver->new('main');
my $limit = 100_000;

# Events with payloads of about so many bytes that do not compress
sub events
{
	my ($tenant, $n, $bytes) = @_;
	my $words = int($bytes / 32) + 1;
	return split /\n/,
	  ask("SELECT outbox.emit('kept.n', jsonb_build_object('n', n, 'x', x), tenant => '$tenant') FROM generate_series(1, $n) n,"
		  . " (SELECT string_agg(md5(random()::text), '') x FROM generate_series(1, $words)) y");
}

# The log goes on, and with it what others emit
sub gone
{
	my ($name, @ids) = @_;
	my $list = "'" . join("', '", @ids) . "'";
	return wait_until
	{
		ask("SELECT count(outbox.emit('other.n', '{}')) FROM generate_series(1, 500)");
		ask("SELECT NOT EXISTS (SELECT FROM outbox.events WHERE id IN ($list))") eq 't'
	}
	$name;
}

sub rows
{
	my ($tenant) = @_;
	return "SELECT COALESCE(sum(retrying + blocked + dead), 0) FROM outbox.stats WHERE tenant = '$tenant'";
}

sub bytes
{
	my ($tenant) = @_;
	return "SELECT COALESCE(sum(pg_column_size(e.payload) + 256), 0) FROM outbox.kept_events e WHERE e.tenant = '$tenant'"
	  . " AND EXISTS (SELECT FROM outbox.parked p WHERE p.event_id = e.id AND p.status <> 'cancelled')";
}

endpoint($node, $receiver, 'all', '/ok/all', "topics => '{other.*}'");
endpoint($node, $receiver, $_, "/ok/$_", "topics => '{kept.*}', tenant => '$_'") foreach qw(big other);
ask("SELECT outbox.pause_endpoint('$_')") foreach qw(big other);

# Large ones first, then small ones: as many of the large ones go as is needed
my @large = events('big', 20, 20_000);
my @small = events('big', 40, 100);
my @others = events('other', 10, 20_000);
gone('what they have yet to get is kept', @large, @small, @others);
ok(wait_sql($node, 'SELECT (' . rows('big') . ') = 60'), 'all of it');
cmp_ok(ask(bytes('big')), '>', 3 * $limit, 'which is much more than the limit will be');
ask("SELECT outbox.set_tenant_limits('big', max_kept_bytes => $limit)");
is(ask("SELECT max_kept_bytes FROM outbox.tenant_limits('big')"), $limit, 'the limit is shown');
ok(wait_sql($node, 'SELECT (' . bytes('big') . ") <= $limit"), 'no more than the limit');
ok(wait_sql($node, 'SELECT (' . rows('big') . ') = 44'), 'and as much as that allows');
ok(wait_sql($node, 'SELECT (' . rows('other') . ') = 10'), 'all of another tenant');
ok(wait_sql($node, "SELECT count(*) = 44 FROM outbox.kept_events WHERE tenant = 'big'"), 'no copy of the others is left');
ok(wait_sql($node, "SELECT sum(value) = 16 FROM outbox.metrics() WHERE name = 'outbox_died_total' AND labels->>'reason' = 'backlog'"),
	'they are counted as dead');

# Larger ones come: the older ones go, small or not
my @new = events('big', 9, 30_000);
gone('they are kept in turn', @new);
ok(wait_sql($node, 'SELECT (' . bytes('big') . ") <= $limit"), 'and no more than the limit');
ok(wait_sql($node, 'SELECT (' . rows('big') . ') = 3'), 'three of them have room');

# A worker that starts knows as much, after it has looked
my $pid = worker_pid($node);
ask("SELECT pg_terminate_backend($pid)");
new_worker($node, $pid);
my @last = events('big', 2, 45_000);
gone('more of them', @last);
ok(wait_sql($node, 'SELECT (' . rows('big') . ') = 2'), 'a new worker gives up the older ones');
ask("SELECT outbox.resume_endpoint('$_')") foreach qw(big other);
$receiver->wait_delivered(1, path => '/ok/big', id => $_) foreach @last;
$receiver->wait_delivered(10, path => '/ok/other');
ok(wait_settled($node), 'all is done');
is(scalar(() = $receiver->delivered(path => '/ok/big')), 2, 'the newest are sent, and none that was given up');

# Many tenants, each with one event that waits
my $tenants = 2000;
my $url = $receiver->url('/ok/many');
ask("SELECT count(outbox.create_endpoint('many.' || n, '$url', topics => '{many.*}', tenant => 'm' || n)) FROM generate_series(1, $tenants) n");
ask("SELECT count(outbox.pause_endpoint('many.' || n)) FROM generate_series(1, $tenants) n");
my @many = split /\n/, ask("SELECT outbox.emit('many.n', '{}', tenant => 'm' || n) FROM generate_series(1, $tenants) n");
ask("SELECT count(outbox.emit('other.n', '{}')) FROM generate_series(1, 20000)");
gone('each keeps its event', @many);
ok(wait_sql($node, "SELECT sum(retrying) = $tenants FROM outbox.stats WHERE tenant LIKE 'm%'"), 'in a row');
ask("SELECT outbox.set_tenant_limits(max_kept_age => '1 h', max_kept_bytes => 1000000, max_kept => 100)");
$pid = worker_pid($node);
usleep(2_000_000);    # the settings are read
my ($cpu, $begun) = (cpu_ticks($pid), time);
usleep(4_000_000);    # time that is measured
my $part = (cpu_ticks($pid) - $cpu) / 100 / (time - $begun);
cmp_ok($part, '<', 0.2, 'to look at their limits is a small part of its time');
diag sprintf '%.0f %% of a core', 100 * $part;
is(ask("SELECT sum(retrying) FROM outbox.stats WHERE tenant LIKE 'm%'"), $tenants, 'and nothing is given up');
is(ask('SELECT sum(restarts) FROM outbox.workers'), '0', 'no worker ended with an error');
$node->stop;
done_testing();
