package OutboxTest::Disks;

# Small disks in memory, for tests of full ones.  "use" of this module, before all others,
# runs the test again in a mount namespace of its own, with which the disks vanish, and in there
# as the same user again.  It has to be the first, because others turn the output around.
#
#   use OutboxTest::Disks (tables => 64, wal => 64);    # names, and MB

use strict;
use warnings;

use File::Path qw(make_path);
use File::Temp qw(tempdir);

sub import
{
	my ($class, %size) = @_;

	return if $ENV{OUTBOX_TEST_DISKS};
	my $why = 'no namespace for a disk of its own (unshare -r -m)';
	if (system('unshare -r -m true 2>/dev/null') != 0)
	{
		print STDERR "# NOT TESTED on a full disk: $why\n";
		print "1..0 # SKIP $why\n";
		exit;
	}
	make_path($ENV{TESTDATADIR});
	$ENV{OUTBOX_TEST_DISKS} = tempdir('disks_XXXX', DIR => $ENV{TESTDATADIR});
	my @mounts = map { "mkdir '$_'\nmount -t tmpfs -o size=$size{$_}m tmpfs '$_'" } sort keys %size;
	my $inside = join "\n", 'set -e', 'old=$PWD', 'cd "$OUTBOX_TEST_DISKS"', @mounts, 'cd "$old"',
	  "exec unshare --map-user=$> --map-group=@{[ $) + 0 ]} \"\$@\"";
	exec 'unshare', '-r', '-m', 'sh', '-c', $inside, 'sh', $^X, $0 or die "unshare: $!\n";
}

# Where a disk is
sub path
{
	my ($disk) = @_;
	return "$ENV{OUTBOX_TEST_DISKS}/$disk";
}

# Takes all that is left of a disk.
sub fill
{
	my ($disk) = @_;

	open(my $fh, '>:raw', path($disk) . '/ballast') or die path($disk) . "/ballast: $!\n";
	1 while syswrite($fh, "\0" x 8192);
	close $fh;
	return;
}

# Gives it back.
sub free
{
	my ($disk) = @_;

	unlink path($disk) . '/ballast' or die path($disk) . "/ballast: $!\n";
	return;
}

1;
