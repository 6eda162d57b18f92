# The server dies again and again, at random points and in random ways, under
# load and with failing receivers; now and then the receiver dies, too.  ROUNDS
# says how often (default 20), SEED repeats a run.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $rounds = $ENV{ROUNDS} || 20;
my $seed = $ENV{SEED} || time;
alarm 60 + 60 * $rounds;
srand $seed;
diag("SEED=$seed ROUNDS=$rounds");

my $node = outbox_node('main', conf => "checkpoint_timeout = 30s\n");
my $receiver = OutboxTest::Receiver->new('main', fsync => 1);
my $log = PostgreSQL::Test::Utils::tempdir() . '/producer';
my $quick = "backoff_base => '20 ms', backoff_max => '200 ms'";
my @paths = qw(/ok/a /fail/b /slow/c);

endpoint($node, $receiver, 'ok', '/ok/a', $quick);
endpoint($node, $receiver, 'fails', '/fail/b?rate=0.1', $quick);
endpoint($node, $receiver, 'slow', '/slow/c?ms=20', $quick);

my %way = (
	'kill everything' => sub { kill_everything($node) },
	'kill the postmaster' => sub { $node->kill9 },
	'immediate' => sub { $node->stop('immediate') },
	'fast' => sub { $node->stop('fast') },
	'kill the worker' => sub { kill 'KILL', worker_pid($node) },
	'terminate the worker' => sub { kill 'TERM', worker_pid($node) },
	'kill the receiver' => sub { $receiver->stop('KILL'); $receiver->start });
my @ways = sort keys %way;
my $crashes = 0;

foreach my $round (1 .. $rounds)
{
	my $way = $ways[ int rand @ways ];
	my $async = $round % 2;
	my $producer = start_producer(
		$node, $log,
		seconds => 120,
		rate => 400,
		keys => 4,
		seed => $seed + $round,
		topic => "crash.r$round",
		set => 'SET synchronous_commit = ' . ($async ? 'off' : 'on'));
	my $before = () = $receiver->delivered;

	$receiver->wait_delivered($before + 50);
	usleep(rand 1_000_000);
	$way{$way}->();
	stop_producer($producer);
	$crashes++;
	start_again($node) unless defined $node->{_pid};
	ok(worker_pid($node), "round $round: $way" . ($async ? ', async' : ''));

	# Judged now and then, because a backlog must drain between crashes as well
	# as after the last.
	next unless $round % 10 == 0 || $round == $rounds;
	check_history(
		$node, $receiver, $log,
		endpoints => \@paths,
		async_commit => 1,
		max_duplicates => $crashes * 3 * (32 + 0.6 * 400),
		name => "the history of $round rounds is clean") or last;
}

$node->stop;
done_testing();
