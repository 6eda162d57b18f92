# No event is lost or out of order when the server dies again and again at random points.
# The load is mixed: commits, rollbacks, savepoints, prepared transactions, asynchronous
# commits, keys, scheduled events, retries, replays, alters.  See
# test/lib/OutboxTest/Storm.pm.  ROUNDS says how often the server dies (default 20),
# EVENTS how many events are emitted in all (default 4,000 a round), SEED repeats the
# decisions.  One endpoint leads to Apache Kafka where "make clients" has fetched it, and its
# broker dies, too.  Ends with the checker's table.
use strict;
use warnings;

use List::Util qw(sum);
use OutboxTest;
use OutboxTest::Kafka;
use OutboxTest::Storm;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $rounds = $ENV{ROUNDS} || 20;
my $per_round = ($ENV{EVENTS} || $rounds * 4000) / $rounds;
alarm 300 + 60 * $rounds;

# Every event goes to 'all', some to the others too, so that the receiver keeps
# up.  Its journal leaves out what the checker does not read.
my $missing = OutboxTest::Kafka::missing();
diag("WITHOUT KAFKA: $missing") if $missing;
my $kafka = $missing ? undef : OutboxTest::Kafka->new(jars => $OutboxTest::Kafka::jars);
my $storm = OutboxTest::Storm->new(
	kafka => $kafka,
	seed => $ENV{SEED} || int time,
	brief => 1,
	conf => "checkpoint_timeout = 30s\nmax_wal_size = 256MB\n",
	must => { all => [qw(a b c d e f g h i j)], some => ['a'], limited => ['b'],
		loose => ['c'], slow => ['d'], batch => ['e'], bus => ['f'] });
my $begun = time;
my $emitted = sub {
	my ($out) = $storm->ask('SELECT last_value FROM outbox.events_seq');
	return $out // 0;
};
my $round = 0;

ROUND: while ($round < $rounds)
{
	$round++;
	my $began = time;

	# A transaction of many events, and many transactions of few
	my @producers = (
		$storm->produce(mixed => '', rate => 200, sessions => 3, keys => 5),
		$storm->produce(bulk => 200, rate => 3000, sessions => 1, keys => 20));
	my $goal = $round * $per_round;
	my $deadline = time + 60;

	do
	{
		$storm->change if rand() < 0.7;
		usleep(rand 100_000);
	} while ($emitted->() < $goal && time < $deadline);
	usleep(rand 500_000);
	my $way = $storm->strike;
	ok($way, sprintf 'round %d: %s, %.1f s', $round, $way // 'no worker', time - $began) or last;
	$storm->heal;

	# What is under way is let go and settled now and then, because a backlog
	# must drain between crashes as well as after the last.
	foreach my $producer (@producers)
	{
		stop_producer($producer) or last ROUND;
	}
	next unless $round % 50 == 0 || $round == $rounds;
	$storm->calm or last;
	next unless $round % 150 == 0 || $round == $rounds;
	$storm->judge("the history of $round rounds is clean") or last;
}

diag(sprintf '%d rounds, %d deaths in %.0f s: %s', $round, sum(values %{ $storm->{faults} }),
	time - $begun, join ', ', map { "$storm->{faults}{$_} x $_" } sort keys %{ $storm->{faults} });
$storm->node->stop;
done_testing();
