# Every test has its promise in its first line, and mutants name tests that exist.
# Also: each name is given once, because logs have no folders, and the public CI runs the commands of .ci/run.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

# Of processes, rows and events, in plain words.
my $persons = qr/\b(?:who|whom|whoever|nobody|somebody|anybody|everybody|someone|anyone|everyone|no one|he|him|his)\b/i;

my @tests = grep { !m{/role_} } glob "$top/test/t/*/*.pl $top/test/torture/*.pl";
my @mutants = glob "$top/test/mutants/*.patch";
my (@unclear, %names);

cmp_ok(scalar @tests, '>', 80, 'the tests are there');
cmp_ok(scalar @mutants, '>', 50, 'and the mutants');

foreach my $file (@tests)
{
	my ($name) = $file =~ m{([^/]+)$};
	my ($first) = slurp_file($file) =~ /\A(.*)/;

	push @{ $names{$name} }, $file;
	push @unclear, "$name: $first"
	  if $first !~ /^# \S.{20,98}\.$/ || $first =~ /[.!?;] / || $first =~ $persons;
}
is(join("\n", @unclear), '', 'the first line of each test is one plain sentence');
is(join(' ', map { @$_ > 1 ? @$_ : () } values %names), '', 'no two tests have one name');

@unclear = ();
foreach my $file (@mutants)
{
	my ($name) = $file =~ m{([^/]+)\.patch$};
	my ($words) = slurp_file($file) =~ /\A((?:# .*\n)+?)# tests: /;

	push @unclear, $name if ($words // '') !~ /\.\n\z/ || $words =~ $persons || $name =~ $persons;
}
is("@unclear", '', 'each mutant says what is taken out');

my $printed = qx{python3 "$top/test/bin/promises"};
is($?, 0, 'test/bin/promises: each mutant names tests that exist');
is(join(' ', grep { index($printed, " $_ |") < 0 } map { m{/(?:t|torture)/(.+)\.pl$} } @tests), '', 'it prints each test');

# The workflow of a public CI
my $workflow = "$top/.github/workflows/ci.yml";
my $ci = join "\n", slurp_file("$top/.ci/run") =~ /^part (make) --no-print-directory( .*)$/mg;
my $public = join "\n", slurp_file($workflow) =~ /^ *- run: (make)( .*)$/mg;
is($public, $ci, 'the public CI runs the commands of .ci/run');
cmp_ok(scalar(() = $ci =~ /^make$/mg), '>=', 3, 'which are at least three');
SKIP:
{
	skip 'no YAML for Python', 1 if system('python3 -c "import yaml" 2>/dev/null') != 0;
	is(system('python3', '-c', 'import sys, yaml; sys.exit("jobs" not in yaml.safe_load(open(sys.argv[1])))', $workflow),
		0, 'and it is YAML');
}
done_testing();
