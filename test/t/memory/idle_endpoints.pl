# An endpoint that is idle costs next to nothing, and a restart of the worker writes nothing for it.
# All idle endpoints follow one stored position.  What is counted is rows.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $n = 1200;    # more than two settles let follow the shared position
my $bytes = 1700;    # of memory for each of them
my $memory;
my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');
my $newest = '(SELECT DISTINCT ON (endpoint_id) * FROM outbox.positions WHERE endpoint_id > 0'
  . ' ORDER BY endpoint_id, number DESC) p JOIN outbox.endpoint_settings USING (endpoint_id)';

sub last_number { return ask('SELECT max(number) FROM outbox.positions') }

# True if these endpoints follow a shared position, with rows after this one
sub follow_since
{
	my ($number, $where) = @_;
	return wait_sql($node, "SELECT count(*) > 0 AND bool_and(shared IS NOT NULL AND number > $number) FROM $newest WHERE $where");
}

sub restart_worker
{
	my $pid = worker_pid($node);

	ask("SELECT pg_terminate_backend($pid)");
	return new_worker($node, $pid);
}

sub delivered
{
	my ($endpoint, $path) = @_;

	return $receiver->wait_delivered(1, path => $path, id => emit($node, "$endpoint.n", '{}'));
}

# What is used in the worker's memory contexts, in bytes
sub memory
{
	my $pid = worker_pid($node);
	my $from = -s $node->logfile;
	my $used;

	ask("SELECT pg_log_backend_memory_contexts($pid)");
	wait_until
	{
		($used) = slurp_file($node->logfile, $from) =~ /Grand total: .*; (\d+) used/;
		return $used;
	}
	'the worker logs what it has allocated';
	return $used;
}

sub takes_little
{
	my ($when) = @_;
	my $each;

	wait_until
	{
		$each = (memory() - $memory) / $n;
		return $each < $bytes;
	}
	"an idle endpoint takes less than $bytes bytes";
	cmp_ok($each, '<', $bytes, sprintf '%s, an idle endpoint takes little memory: %d bytes', $when, $each);
	return;
}

endpoint($node, $receiver, 'clock', '/ok/clock', "topics => '{clock.*}'");
endpoint($node, $receiver, 'absent', '/ok/absent', "topics => '{absent.*}'");
delivered('absent', '/ok/absent');
$memory = memory();
ask("SELECT count(outbox.create_endpoint('idle' || i, '" . $receiver->url('/ok/idle')
	  . "', topics => '{idle.*}', tenant => 't' || i)) FROM generate_series(1, $n) i");
ok(wait_sql($node, "SELECT count(*) = $n FROM outbox.stats WHERE endpoint LIKE 'idle%' AND pending_exact"), "$n endpoints are known");
my $at_once = (memory() - $memory) / $n;
cmp_ok($at_once, '<', 1.3 * $bytes, sprintf 'at once, an endpoint takes little memory: %d bytes', $at_once);
ok(wait_sql($node, "SELECT count(*) = $n + 2 FROM $newest WHERE shared IS NOT NULL"), "$n idle endpoints follow a shared position");
takes_little('when they are created');

# Endpoints that are idle begin to follow it a second later, together.  So when
# 'clock' follows it again, the others would have new rows.
my $before = last_number();
restart_worker();
delivered('clock', '/ok/clock');
ok(follow_since($before, "name = 'clock'"), 'after a restart, an endpoint is served, and idle again');
is(ask("SELECT count(*) FROM $newest WHERE number > $before AND name <> 'clock'"),
	0, 'the restart has written nothing for those that are idle');
takes_little('after a restart');

# They follow a position that moves on, and are served from it.
ask("SELECT outbox.emit('idle.n', '{}', tenant => 't7')");
$receiver->wait_delivered(1, path => '/ok/idle');
ok(follow_since($before, "name = 'idle7'"), 'one of them gets an event, and follows the position again');

# The shared position leaves behind what a restart finds unable to read with it.
my $pid = worker_pid($node);
kill 'STOP', $pid;
ask("SELECT outbox.pause_endpoint('absent')");
kill 'TERM', $pid;
kill 'CONT', $pid;
new_worker($node, $pid);
my $id = emit($node, 'absent.n', '{}');
$before = last_number();
delivered('clock', '/ok/clock');
ok(follow_since($before, "name = 'clock'"), 'the shared position has passed an event of a paused endpoint');
restart_worker();
ask("SELECT outbox.resume_endpoint('absent')");
$receiver->wait_delivered(1, path => '/ok/absent', id => $id);
is(scalar($receiver->delivered(path => '/ok/absent', id => $id)), 1, 'the event is delivered once the endpoint is resumed');

# Nor does a worker move a position that an endpoint follows which it could not load.
sub pending_is
{
	my ($pending) = @_;
	return ask("UPDATE outbox.positions SET pending = $pending"
		  . " WHERE endpoint_id = (SELECT endpoint_id FROM outbox.endpoint_settings WHERE name = 'absent')");
}
$before = last_number();
delivered('absent', '/ok/absent');
ok(follow_since($before, "name = 'absent'"), 'it is idle again');
pending_is("'\\x80'");
$before = last_number();
restart_worker();
ok(wait_sql($node, "SELECT count(*) = 1 FROM outbox.held_steps WHERE step = 'reload' AND endpoint = 'absent'"), 'its position cannot be read');
$id = emit($node, 'absent.n', '{}');
delivered('clock', '/ok/clock');
ok(follow_since($before, "name <> 'absent'"), 'the others go on meanwhile, and follow a new row');
pending_is('NULL');
$node->reload;
$receiver->wait_delivered(1, path => '/ok/absent', id => $id);
is(scalar($receiver->delivered(path => '/ok/absent', id => $id)), 1, 'once it can be read, it gets what it missed');

# A worker wakes those that follow a row which it does not move.
kill 'STOP', worker_pid($node);    # it may just have woken it, and would write its row again
ask(<<'SQL');
INSERT INTO outbox.positions (piece, number, endpoint_id, generation, read_tick, read, read_seq_low,
	last_seq, delivered, failed_attempts, settled_at)
SELECT piece, -1, -9999, generation, read_tick, read, read_seq_low, last_seq, delivered, failed_attempts, settled_at
FROM outbox.positions WHERE endpoint_id < 0 ORDER BY number DESC LIMIT 1;
UPDATE outbox.positions SET shared = -9999
WHERE endpoint_id = (SELECT endpoint_id FROM outbox.endpoint_settings WHERE name = 'idle9');
SQL
$before = last_number();
kill_everything($node);
start_again($node);
ok(follow_since($before, "name = 'idle9'"), 'the row of a worker that is gone is not followed any more');

# What is counted of an endpoint, and what is parked, outlasts its rest.
sub counts_are
{
	my ($delivered, $name) = @_;

	ok( wait_sql($node, "SELECT (delivered, failed_attempts, dead) = ($delivered, 2, 1) FROM outbox.stats WHERE endpoint = 'absent'"), $name);
	return;
}
$before = last_number();
my $were = ask("SELECT delivered FROM outbox.stats WHERE endpoint = 'absent'");
ask("SELECT outbox.alter_endpoint('absent', max_attempts => 1)");
$receiver->control(path => '/ok/absent', behave => '/status/500');
wait_status($node, emit($node, 'absent.n', '{}'), 'dead', 'one event dies');
my $retried = emit($node, 'absent.n', '{}');
wait_status($node, $retried, 'dead', 'and another one');
$receiver->control(path => '/ok/absent', behave => '/ok');
ask("SELECT outbox.retry('absent', '$retried')");
counts_are($were + 1, 'it is sent again, and is delivered');
ok(follow_since($before, "name = 'absent'"), 'and it is idle');
$node->restart;
foreach my $n (2 .. 3)
{
	$before = last_number();
	delivered('absent', '/ok/absent');
	counts_are($were + $n, 'the counts go on');
	ok(follow_since($before, "name = 'absent'"), 'and it is idle again');
}

# All have something to do at once, and then nothing.
$before = last_number();
ask("SELECT count(outbox.emit('idle.all', '{}', tenant => 't' || i)) FROM generate_series(1, $n) i");
ok(follow_since($before, "name LIKE 'idle%'"), 'all get an event, and all follow the position again');
is(ask("SELECT sum(delivered) FROM outbox.stats WHERE endpoint LIKE 'idle%'"), $n + 1, 'each event was delivered');
is($node->safe_psql('postgres', 'SELECT sum(restarts) FROM outbox.worker_slots()'), 0, 'no worker ended with an error');

$node->stop;
done_testing();
