# Everything at once and at random, for some seconds (or MINUTES, in make
# torture): see test/lib/OutboxTest/Storm.pm.  SEED repeats the decisions.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Storm;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $seconds = $ENV{MINUTES} ? $ENV{MINUTES} * 60 : 10;
alarm $seconds * 2 + 300;

my $storm = OutboxTest::Storm->new(seed => $ENV{SEED} || int time);
my $producer = $storm->produce(mixed => '', rate => 250, sessions => 4, keys => 5);
my $end = time + $seconds;
my $strike_at = time + 1;

while (time < $end)
{
	if (time > $strike_at)
	{
		my $what = $storm->strike;
		ok($what, $what // 'a worker comes back') or last;
		$strike_at = time + rand 3;
	}
	$storm->change;
	usleep(rand 100_000);
}
stop_producer($producer);
diag(join ', ', map { "$storm->{done}{$_} x $_" } sort keys %{ $storm->{done} });
diag(join ', ', map { "$storm->{faults}{$_} x $_" } sort keys %{ $storm->{faults} });
$storm->calm;
$storm->judge('nothing is lost, made up, out of order, or repeated without a death');

$storm->node->stop;
done_testing();
1;
