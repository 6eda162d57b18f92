# Several workers of one database keep order and lose nothing while their number changes.
# They are terminated and killed, and endpoints come, change and go, all under load.
use strict;
use warnings;

use List::Util qw(max);
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $node = outbox_node(
	'main', conf => <<'CONF');
max_worker_processes = 16
restart_after_crash = on
wal_writer_delay = 10ms
CONF
my $receiver = OutboxTest::Receiver->new('main');
my $dir = PostgreSQL::Test::Utils::tempdir();
my $quick = "backoff_base => '20 ms', backoff_max => '200 ms'";
my $endpoints = 7;

endpoint($node, $receiver, 'strict', '/slow/strict?ms=2', "ordering => 'strict', $quick");
endpoint($node, $receiver, 'narrow', '/slow/narrow?ms=10', "max_in_flight => 3, $quick");
endpoint($node, $receiver, 'fails', '/fail/fails?rate=0.05', $quick);
endpoint($node, $receiver, 'slow', '/slow/slow?ms=40', $quick);
endpoint($node, $receiver, $_, "/ok/$_", $quick) foreach qw(a b c);

my $delivered = 'SELECT COALESCE(sum(delivered), 0) FROM outbox.stats';
my $progress = sub {
	my ($more) = @_;
	my $goal = ask($delivered) + $more;
	return wait_sql($node, "SELECT ($delivered) >= $goal");
};

# So many workers, and all endpoints served, as evenly as it goes
sub divided
{
	my ($n, $how) = @_;
	my $begin = time;

	ok( wait_sql(
			$node, "SELECT count(*) = $n AND sum(endpoints) = $endpoints AND max(endpoints) - min(endpoints) <= 1"
			  . " FROM outbox.workers WHERE pid IS NOT NULL AND state = 'running'"),
		"$n share the endpoints: $how");
	note(sprintf('%s: after %.2f s', $how, time - $begin));
	return;
}

sub set_workers
{
	my ($n) = @_;
	ask("ALTER SYSTEM SET outbox.workers_per_database = $n");
	$node->reload;
	divided($n, "the number is now $n");
	return;
}

# One at a time means one at a time, whichever worker sends
sub never_two_at_once
{
	my ($how) = @_;
	is(max(map { $_->{open} } $receiver->requests(path => '/slow/strict')),
		1, "$how: never two requests to the strict endpoint");
	cmp_ok(max(map { $_->{open} } $receiver->requests(path => '/slow/narrow')),
		'<=', 3, "$how: max_in_flight holds over all workers");
	return;
}

# The number changes: nothing is lost, and only what takes longer than half a second is sent twice
my $log = "$dir/calm";
my $producer = start_producer($node, $log, rate => 40, keys => 6);
divided(1, 'at first');
$progress->(200);
foreach my $n (3, 2, 1, 4)
{
	set_workers($n);
	ok($progress->(200), "$n workers deliver");
}
stop_producer($producer);
wait_settled($node);
my ($moved, $early) = split /\|/,
  ask(q(SELECT count(*), count(*) FILTER (WHERE duration_ms < 499) FROM outbox.attempts WHERE error ~ 'changed or moved'));
is($early, 0, "$moved requests were broken off, none before half a second");
check_history($node, $receiver, $log, max_duplicates => $moved, name => 'the number changed, the history is clean');
never_two_at_once('the number changed');
my %once = map { ("$_->{path} $_->{id}" => 1) } $receiver->delivered;
ok(wait_sql($node, "SELECT ($delivered) = " . keys %once), 'deliveries were counted once');

# Endpoints come, change and go meanwhile
$log = "$dir/rough";
$producer = start_producer($node, $log, rate => 40, keys => 6, topic => 'rough.test', seed => 2);
$progress->(100);
foreach my $round (1 .. 3)
{
	endpoint($node, $receiver, "guest$round", "/ok/guest$round", $quick);
	$endpoints++;
	divided(4, "guest $round has come");
	ask("SELECT outbox.alter_endpoint('a', max_in_flight => $round + 8)");
	ask("SELECT outbox.alter_endpoint('b', ordering => '" . (qw(none key))[ $round % 2 ] . "')");
	ask("SELECT outbox.drop_endpoint('guest$round', discard => true)") if $round > 1;
	$endpoints-- if $round > 1;
	$progress->(100);
}

# One is terminated, again and again: the others take over what it had
foreach my $round (1 .. 4)
{
	my $pid = ask('SELECT pid FROM outbox.workers WHERE endpoints > 0 ORDER BY started_at LIMIT 1');
	my $begin = time;

	ask("SELECT pg_terminate_backend($pid)");
	ok( wait_sql(
			$node, "SELECT sum(endpoints) = $endpoints FROM outbox.workers WHERE pid IS NOT NULL AND pid <> $pid"),
		"terminated, round $round: its endpoints are served");
	note(sprintf('its endpoints were served after %.2f s', time - $begin));
	ok($progress->(100), 'and get their events');
}
divided(4, 'all are back');
is(ask('SELECT sum(restarts) FROM outbox.workers'), 0, 'a worker that is told to end makes no error');
never_two_at_once('workers were terminated');

# The server restarts itself when one is killed
my $pid = ask('SELECT pid FROM outbox.workers WHERE endpoints > 0 ORDER BY started_at DESC LIMIT 1');
kill 'KILL', $pid;
ok(wait_until { process_is_gone($pid) } 'killed');
wait_until
{
	my ($rc, $out) = eval { $node->psql('postgres', 'SELECT count(*) FROM outbox.workers WHERE endpoints > 0') };
	return defined $rc && $rc == 0 && $out >= 2;
}
'workers are back';
divided(4, 'after a crash');
$progress->(200);
stop_producer($producer);
never_two_at_once('one was killed');

# 'b' had no order for a while, and guests were dropped
check_history(
	$node, $receiver, $log,
	endpoints => [qw(/slow/strict /slow/narrow /fail/fails /slow/slow /ok/a /ok/c)],
	max_duplicates => 5 * 7 * 64, name => 'workers ended, the history is clean');

done_testing();
