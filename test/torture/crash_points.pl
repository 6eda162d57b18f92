# A process that dies between any two steps loses no event, in each way and ROUNDS times.
# The default of ROUNDS is 2.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::CrashPoints;
use Test::More;

my $rounds = $ENV{ROUNDS} || 2;
alarm 600 + 600 * $rounds;

my $build = OutboxTest::CrashPoints::build();
my $test = OutboxTest::CrashPoints->new($build);
my @points = OutboxTest::CrashPoints::points($build);

foreach my $round (1 .. $rounds)
{
	foreach my $point (@points)
	{
		my ($name, $throws) = @$point;

		# After a crash of the server the launcher does not pace the next.
		foreach my $how ($throws ? qw(error kill exit kill) : 'kill')
		{
			$test->die_at($name, $how);
		}
	}
}
$test->judge;
diag($test->table);
done_testing();
