# A process that dies between any two steps that the sources name loses no event.
# Each place is tried once here.  "make torture" tries them over and over, in each way.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::CrashPoints;
use PostgreSQL::Test::Utils;
use Test::More;

my $build = OutboxTest::CrashPoints::build();
my $test = OutboxTest::CrashPoints->new($build);
my @points = OutboxTest::CrashPoints::points($build);

# A few errors or exits in a row are paced by the launcher.  A crash of the
# server makes it forget.
my $n = 0;
foreach my $point (@points)
{
	my ($name, $throws) = @$point;
	my $how = $throws ? (qw(error kill exit kill))[ $n++ % 4 ] : 'kill';
	$test->die_at($name, $how);
}

# Asked to end while a transaction commits, a worker stores what it has all the same.
my $before = -s $test->{node}->logfile;
$test->die_at('settle.written', 'term');
ok(wait_sql($test->{node}, "SELECT state = 'running' FROM outbox.status"), 'another worker');
unlike(slurp_file($test->{node}->logfile, $before), qr/FATAL: .*outbox worker/, 'the one before has ended by itself');
$test->judge;
note($test->table);
done_testing();
