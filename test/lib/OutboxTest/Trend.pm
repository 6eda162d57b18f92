package OutboxTest::Trend;

# What a long run measures again and again: its beginning beside its end.

use strict;
use warnings;

use Exporter 'import';
use List::Util qw(sum);
use Test::More;

our @EXPORT_OK = qw(first_and_last);

sub mean { return sum(@_) / @_ }

# Least squares: by how much it grows in an hour.
sub slope
{
	my ($what, @samples) = @_;
	my $x = mean(map { $_->{minute} / 60 } @samples);
	my $y = mean(map { $_->{$what} } @samples);
	my $square = sum map { ($_->{minute} / 60 - $x)**2 } @samples;
	return sum(map { ($_->{minute} / 60 - $x) * ($_->{$what} - $y) } @samples) / ($square || 1);
}

# Each sample has the minute and numbers.  Returns the means of the first sixth of the time
# and of the last, and prints them with the slopes.
sub first_and_last
{
	my ($minutes, @samples) = @_;
	my @first = grep { $_->{minute} <= $samples[0]{minute} + $minutes / 6 } @samples;
	my @last = grep { $_->{minute} > $samples[-1]{minute} - $minutes / 6 } @samples;
	my (%first, %last);

	diag(sprintf 'the first %.1f minutes, the last, and the slope', $minutes / 6);
	foreach my $what (sort grep { $_ ne 'minute' } keys %{ $samples[0] })
	{
		$first{$what} = mean(map { $_->{$what} } @first);
		$last{$what} = mean(map { $_->{$what} } @last);
		diag(sprintf '  %-22s %10.2f %10.2f   %+.2f per hour', $what, $first{$what}, $last{$what}, slope($what, @samples));
	}
	return (\%first, \%last);
}

1;
