# Each step of the runbook that changes something names the button of the console for it.
# A step that takes a superuser says so. The console calls the same functions, and has the buttons that the documents name.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $runbook = slurp_file("$OutboxTest::top/doc/runbook.md");
my $manual = slurp_file("$OutboxTest::top/doc/console.md");
my $console = join '', map { slurp_file($_) } glob("$OutboxTest::top/console/outbox_console/*.py $OutboxTest::top/console/outbox_console/templates/*");
my $actions = slurp_file("$OutboxTest::top/console/outbox_console/actions.py");

# The chapters of doc/console.md by the anchors of their headings.
my %chapter = map { my ($title, $text) = split /\n/, $_, 2; (lc($title) =~ s/[^a-z0-9_ -]//gr =~ s/ /-/gr => $text) }
  split /^#+ /m, $manual;

# A step: the text since the last block, and the block.
my @wrong;
foreach my $section (grep { /```sql/ } split /^## /m, $runbook)
{
	my ($title) = $section =~ /(.*)/;
	my (@steps, $said);

	push @wrong, "$title: no link to the console" unless $section =~ /\]\(console\.md#/;
	push @steps, [$1, $2, $3] while $section =~ /\G(.*?)^```sql(.*?)\n(.*?)^```$/gsm;
	foreach my $step (@steps)
	{
		my ($before, $superuser, $sql) = @$step;
		my ($first) = $sql =~ /(.*)/;
		my ($function) = $sql =~ /^SELECT outbox\.(\w+)\(/;

		$said = $before if $before =~ /\S/;
		push @wrong, "$first: it is not said that it takes a superuser" if $superuser && $said !~ /superuser/;
		next if $superuser || !$function || $function eq 'wait_for';
		push @wrong, "$first: no button" if $before !~ /\[\*[^\]]+\*\]\(console\.md#[\w-]+\)[^\n]*\n\n\z/;
		push @wrong, "$first: the console does not call outbox.$function()" if $actions !~ /outbox\.$function\(|call\("$function"/;
	}
}
# In words, too.  divide() and grant_follow() are for another server, set_secrets() is rotate_secret() of many endpoints, and pages only read.
my %elsewhere = map { $_ => 1 } qw(divide grant_follow set_secrets topic_in filter_matches wait_for deliveries_page attempts_page);
push @wrong, map { "the console does not call outbox.$_()" } grep { !$elsewhere{$_} && $actions !~ /outbox\.$_\(|call\("$_"/ } $runbook =~ /outbox\.(\w+)\(/g;
is(join("\n", @wrong), '', 'each step has its button, and the console calls the same function');

@wrong = ();
foreach my $link ($runbook =~ /\[\*([^\]]+)\*\]\(console\.md#[\w-]+\)/g)
{
	push @wrong, "$link: the console has no such button or screen" if $console !~ /[">]\Q$link\E["<]/;
}
while ($runbook =~ /\[\*([^\]]+)\*\]\(console\.md#([\w-]+)\)/g)
{
	my ($name, $anchor) = ($1, $2);
	push @wrong, "$name: doc/console.md has no chapter $anchor" unless defined $chapter{$anchor};
	push @wrong, "$name: the chapter $anchor does not name it" if ($chapter{$anchor} // '') !~ /\*\Q$name\E\*/ && lc($name) =~ s/ /-/gr ne $anchor;
}
is(join("\n", @wrong), '', 'each button is in the console, and in the chapter of its manual to which the link leads');

# The other way round: what the manual names is there.
is(join(', ', grep { $console !~ /[">]\Q$_\E["< ]/ } map { /^\| (\*.*?) \|/gm ? $1 =~ /\*([^*]+)\*/g : () } split /\n/, $manual), '',
	'the console has each button that its manual names');
done_testing();
