# PostgreSQL's own regression tests print the same with the library loaded and without.
# They are in what "test/bin/postgresql 15-cassert" makes, and run with assertions there.
use strict;
use warnings;

use File::Basename qw(basename dirname);
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

chomp(my $bindir = qx{$ENV{PG_CONFIG} --bindir});
chomp(my $pgxs = qx{$ENV{PG_CONFIG} --pgxs});
my $input = dirname($pgxs) . '/../test/regress';
plan skip_all => 'this PostgreSQL has no regression tests: try PG_CONFIG=$(test/bin/postgresql 15-cassert)' unless -e "$input/parallel_schedule";
alarm 3600;

my $dir = PostgreSQL::Test::Utils::tempdir();
my %conf = (without => '', with => "shared_preload_libraries = 'outbox'\n");

# Both run in the same place, because some tests print where they are.  Returns what each
# test came to.
sub run_them
{
	my ($name) = @_;
	my @command = ("$input/pg_regress", "--inputdir=$input", "--bindir=$bindir", "--dlpath=$input", "--outputdir=$dir/run", "--temp-instance=$dir/run/server", "--temp-config=$dir/$name.conf", '--schedule', "$input/parallel_schedule");

	mkdir "$dir/run" or die "$dir: $!";
	append_to_file("$dir/$name.conf", "fsync = off\n$conf{$name}");
	my $out = qx{@{[join ' ', map { "'$_'" } @command]} 2>&1};
	my @came_to = map { /(?:^(not ok|ok)\b.* [-+] (\S+)|^(?:test)? +(\S+) +\.\.\. (ok|FAILED))/ ? ($2 // $3) . ' ' . ($1 // $4) : () } split /\n/, $out;
	note(scalar(@came_to) . " tests $name the library, of which " . scalar(grep { !/ ok$/ || / not ok$/ } @came_to) . ' fail');
	rename "$dir/run", "$dir/$name" or die "$dir: $!";
	cmp_ok(scalar(@came_to), '>', 150, "they run $name the library") || diag($out);
	unlike(slurp_file("$dir/$name/log/postmaster.log"), qr/PANIC|TRAP|was terminated by signal/, "$name the library: no process has crashed");
	return join "\n", sort @came_to;
}

my $without = run_them('without');
is(run_them('with'), $without, 'each test comes to the same with the library');
like(slurp_file("$dir/with/log/postmaster.log"), qr/outbox/, 'the library was loaded');
my $difference = qx{diff -r '$dir/without/results' '$dir/with/results' 2>&1};
is($difference, '', 'and prints the same');
done_testing();
