# Slots are shared fairly, memory and unsettled outcomes are bounded, and idle workers do nothing.
# It takes long, so only LONG=1 make test and make matrix run it.
use strict;
use warnings;

use List::Util qw(max);
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $node = outbox_node('main', conf => <<'CONF');
outbox.worker_max_in_flight = 16
outbox.max_payload_size = '1 MB'
CONF
my $receiver = OutboxTest::Receiver->new('main');
watch_machine();

sub emit_many
{
	my ($topic, $n) = @_;
	return ask("SELECT count(outbox.emit('$topic', '{}'::jsonb)) FROM generate_series(1, $n)");
}

sub delivered
{
	my ($endpoint) = @_;
	return ask("SELECT delivered FROM outbox.stats WHERE endpoint = '$endpoint'");
}

sub drop_all
{
	ask("SELECT outbox.drop_endpoint(name, discard => true) FROM outbox.endpoints");
	return;
}

# A slow and a fast endpoint share what there is
endpoint($node, $receiver, 'slow', '/slow/a?ms=200', "topics => '{slow.*}'");
endpoint($node, $receiver, 'fast', '/slow/b?ms=10', "topics => '{fast.*}'");
emit_many('slow.n', 4000);
$receiver->wait_for(16, path => '/slow/a');
emit_many('fast.n', 600);
my $start = time;
my $before = delivered('slow');
ok(wait_sql($node, "SELECT delivered = 600 FROM outbox.stats WHERE endpoint = 'fast'"), 'the fast one');
cmp_ok(seconds_since($start), '<', 30, 'flows');
usleep(1_000_000);
my $slow = (delivered('slow') - $before) / seconds_since($start);
cmp_ok($slow, '>', 10, "and so does the slow one, with $slow a second");
drop_all();

# The other way round: the fast one is busy first
endpoint($node, $receiver, 'fast', '/slow/d?ms=2', "topics => '{fast.*}'");
endpoint($node, $receiver, 'slow', '/slow/c?ms=200', "topics => '{slow.*}'");
emit_many('fast.n', 40000);
ok(wait_sql($node, "SELECT delivered > 100 FROM outbox.stats WHERE endpoint = 'fast'"), 'a busy one');
emit_many('slow.n', 100);
$start = time;
usleep(2_000_000);
($slow, my $busy) = split /\|/, ask("SELECT sum(delivered) FILTER (WHERE endpoint = 'slow'),"
	  . " sum(pending + processing) FILTER (WHERE endpoint = 'fast') > 0 FROM outbox.stats");
$slow /= seconds_since($start);
cmp_ok($slow, '>', 10, "leaves a slow one its share, $slow a second");
is($busy, 't', 'while it is busy');
drop_all();

# More hung endpoints than the total has room for
foreach my $e (1 .. 40)
{
	endpoint($node, $receiver, "hung$e", "/hang/$e", "topics => '{hung.*}', timeout => '1 h'");
}
emit_many('hung.n', 40);
wait_until
{
	40 <= keys %{ { map { $_->{path} => 1 } grep { $_->{path} =~ m{^/hang/} } $receiver->requests } }
}
'each gets a request';
endpoint($node, $receiver, 'healthy', '/ok/healthy', "topics => '{healthy.*}'");
emit_many('healthy.n', 200);
$receiver->wait_delivered(200, path => '/ok/healthy');
pass('forty hung endpoints do not stop a healthy one');
drop_all();
ask('ALTER SYSTEM SET outbox.worker_max_in_flight = 1024');
$node->reload;

# An endpoint that is behind, among many events that are not for it
endpoint($node, $receiver, 'rare', '/ok/rare', "topics => '{rare.*}'");
ask("SELECT outbox.pause_endpoint('rare')");
emit_many('common.n', 60000);
my $id = emit($node, 'rare.one', '{}');
usleep(500_000);
$start = time;
ask("SELECT outbox.resume_endpoint('rare')");
$receiver->wait_delivered(1, id => $id);
cmp_ok(seconds_since($start), '<', 10, 'an endpoint that is behind catches up as fast as it can read');
drop_all();

# What is not settled is bounded.  A settle that fails before anything is sent would stop the sending at once.
endpoint($node, $receiver, 'unsettled', '/slow/unsettled?ms=10', "topics => '{unsettled.*}'");
my $locker = $node->background_psql('postgres');
$locker->query_safe('BEGIN');
emit_many('unsettled.n', 8000);
$receiver->wait_for(1, path => '/slow/unsettled');
$locker->query_safe("LOCK TABLE outbox.positions IN SHARE MODE");
my $before_lock = () = $receiver->requests(path => '/slow/unsettled');
my ($n, $last) = ($before_lock, -1);
while ($n > $last)
{
	$last = $n;
	usleep(1_500_000);
	$n = () = $receiver->requests(path => '/slow/unsettled');
}
cmp_ok($n - $before_lock, '<=', 4 * 500 + 64, "while settling is held up, sending stops ($before_lock, then $n)");
cmp_ok($n, '<', 8000, 'before all is sent');
$locker->query_safe('COMMIT');
$receiver->wait_delivered(8000, path => '/slow/unsettled');
ok(wait_settled($node), 'released: everything goes on');
is(scalar(() = $receiver->requests(path => '/slow/unsettled')), 8000, 'each once');
$locker->quit;
drop_all();

# Large events
endpoint($node, $receiver, 'large', '/slow/large?ms=30', "topics => '{large.*}'");
my $pid = worker_pid($node);

my $idle = private_memory($pid);
my $most = $idle;
ask("SELECT outbox.pause_endpoint('large')");
ask("SELECT count(outbox.emit('large.n', jsonb_build_object('x', repeat('x', 900000))))"
	  . ' FROM generate_series(1, 300)');
ask("SELECT outbox.resume_endpoint('large')");
my $end = time + 2 * $OutboxTest::timeout;
while ((() = $receiver->delivered(path => '/slow/large')) < 300 && time < $end)
{
	$most = max($most, private_memory($pid));
	usleep(10_000);
}
is(scalar(() = $receiver->delivered(path => '/slow/large')), 300, 'large events: all delivered');
cmp_ok($most - $idle, '<', 150, sprintf('within bounds (%.0f MB above %.0f MB)', $most - $idle, $idle));

# At the head of the log: the endpoint reads the events as they come
$most = $idle = private_memory($pid);
ask("SELECT count(outbox.emit('large.n', jsonb_build_object('x', repeat('x', 900000))))"
	  . ' FROM generate_series(1, 200)');
$end = time + 2 * $OutboxTest::timeout;
while ((() = $receiver->delivered(path => '/slow/large')) < 500 && time < $end)
{
	$most = max($most, private_memory($pid));
	usleep(10_000);
}
is(scalar(() = $receiver->delivered(path => '/slow/large')), 500, 'read with the head: all delivered');
cmp_ok($most - $idle, '<', 150, sprintf('within bounds (%.0f MB above %.0f MB)', $most - $idle, $idle));

# Disabled: it does nothing, and takes nothing
endpoint($node, $receiver, 'off', '/ok/off', "topics => '{off.*}'");
ask('ALTER SYSTEM SET outbox.enabled = off');
$node->reload;
ok(wait_sql($node, "SELECT state = 'disabled' FROM outbox.status"), 'disabled');
sleeps_meanwhile(
	$pid, 10,
	'disabled: the worker sleeps',
	sub {
		foreach my $n (qw(one two))
		{
			emit($node, "off.$n", '{}');
			usleep(1_000_000);
		}
	});
is(scalar(() = $receiver->requests(path => '/ok/off')), 0, 'nothing is sent');
ask('ALTER SYSTEM RESET outbox.enabled');
$node->reload;
$receiver->wait_delivered(2, path => '/ok/off');
pass('on again: delivered');
sleeps_meanwhile($pid, 10, 'idle: the worker sleeps, too', sub { usleep(2_000_000) });

# What is due with the next settle does not keep the worker awake until then
ask('ALTER SYSTEM SET outbox.settle_interval = 1000');
$node->reload;
sleeps_meanwhile(
	$pid, 20,
	'a settle is waited for: the worker sleeps',
	sub {
		foreach my $n (1 .. 2)
		{
			emit($node, 'off.one', '{}');
			$receiver->wait_delivered(2 + $n, path => '/ok/off');
			usleep(1_200_000);
		}
	});
is(ask('SELECT sum(restarts) FROM outbox.worker_slots()'), 0, 'no worker ended with an error');

$node->stop;
done_testing();
