# No input makes the readers of foreign text crash or break their promises.
# The fuzz targets run under libFuzzer, for FUZZ_SECONDS (60) each.  What it finds is
# kept, and belongs into test/fuzz/corpus once it is repaired.
use strict;
use warnings;

use File::Basename qw(basename);
use IPC::Run ();
use Test::More;

my $top = $ENV{OUTBOX_TOP} || '.';
my $seconds = $ENV{FUZZ_SECONDS} || 60;
my @targets = glob("$top/build/fuzz/*");

if (!@targets)
{
	diag('NOT FUZZED: no clang with libFuzzer');
	plan(skip_all => 'no clang with libFuzzer');
}
foreach my $target (@targets)
{
	my $name = basename($target);
	my $work = "$top/tmp_check/fuzz_$name";
	my $out = '';

	system('mkdir', '-p', $work) == 0 or die "mkdir: $?";
	my $fine = IPC::Run::run(
		[
			$target, "-max_total_time=$seconds", '-max_len=4096', '-timeout=10', '-print_final_stats=1',
			"-artifact_prefix=$work/", $work, "$top/test/fuzz/corpus/$name"
		],
		'>', \$out, '2>&1');
	my ($seed) = $out =~ /Seed: (\d+)/;
	my ($runs) = $out =~ /number_of_executed_units: (\d+)/;

	ok($fine, sprintf '%s: %s runs, seed %s', $name, $runs // 'no', $seed // '?') or diag(substr $out, -4000);
}
done_testing();
