package OutboxTest::Explained;

# What the statements of a worker have read, by the plans that auto_explain writes into the server's log.

use strict;
use warnings;

use Exporter 'import';
use OutboxTest::Receiver;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(explained_conf judge log_plans skip_explained vacuum_without_statistics worst_plans);

my $offset = 0;
my %worst;

# Lines for the configuration of a server: autovacuum, which would make statistics, is off.
# Skips the test where PostgreSQL's package has no auto_explain.
sub explained_conf
{
	plan skip_all => 'auto_explain is not installed' if !OutboxTest::is_installed('auto_explain');
	return <<'CONF';
shared_preload_libraries = 'outbox, auto_explain'
autovacuum = off
log_line_prefix = '%m [%p] %b: '
auto_explain.log_min_duration = -1
auto_explain.log_analyze = on
auto_explain.log_timing = off
auto_explain.log_buffers = on
auto_explain.log_format = json
CONF
}

# Begins or ends to explain.
sub log_plans
{
	my ($node, $on) = @_;

	$node->append_conf('postgresql.conf', 'auto_explain.log_min_duration = ' . ($on ? 0 : -1));
	$node->reload;
	return;
}

# Adds what a node of a plan has read to the sum, and that of the nodes below it.
sub read_by
{
	my ($plan) = @_;
	my $loops = $plan->{'Actual Loops'} // 1;
	my $sum = 0;

	$sum = $loops * (($plan->{'Actual Rows'} // 0) + ($plan->{'Rows Removed by Filter'} // 0)
		  + ($plan->{'Rows Removed by Index Recheck'} // 0))
	  if defined $plan->{'Relation Name'} && $plan->{'Node Type'} =~ /Scan/;
	$sum += read_by($_) foreach @{ $plan->{Plans} // [] };
	return $sum;
}

# What was explained before does not matter.
sub skip_explained
{
	my ($node) = @_;

	$offset = -s $node->logfile;
	return;
}

# VACUUM of all tables, and no ANALYZE.
sub vacuum_without_statistics
{
	my ($node) = @_;

	$node->safe_psql('postgres', "SELECT format('VACUUM outbox.%I', relname) FROM pg_class"
		  . " WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'r' \\gexec");
	skip_explained($node);
	return;
}

# Judges the statements of the worker since the last call: none has read more rows than that.
sub judge
{
	my ($node, $what, $most_rows) = @_;
	# The last record may not be complete.
	my $log = slurp_file($node->logfile, $offset) =~ s/^\d[^\n]*\n?(?:\t[^\n]*\n?)*\z//mr;
	my $n = 0;
	my @rows;

	$offset += length $log;
	while ($log =~ /^\S+ \S+ \S+ \[\d+\] outbox worker[^\n]*: LOG:  duration: [\d.]+ ms  plan:\n((?:\t[^\n]*\n)+)/mg)
	{
		my $explained = $OutboxTest::Receiver::decode->($1);
		my $plan = $explained->{Plan};
		my ($read, $pages) = (read_by($plan), $plan->{'Shared Hit Blocks'} + $plan->{'Shared Read Blocks'});
		my $text = $explained->{'Query Text'} =~ s/\s+/ /gr;

		$n++;
		# The next scheduled event is behind those of the tenant that is being forgotten.
		my $most = $text =~ /^SELECT s.deliver_at, s.id FROM outbox.scheduled/ ? 3 * $most_rows : $most_rows;
		push @rows, "$read: $text" if $read > $most;
		$worst{$text} //= [ 0, 0, 0 ];
		$worst{$text}[0] = $read if $worst{$text}[0] < $read;
		$worst{$text}[1] = $pages if $worst{$text}[1] < $pages;
		$worst{$text}[2]++;
	}
	cmp_ok($n, '>', 0, "$what: $n statements were explained");
	is(join("\n", @rows), '', "$what: none has read more than $most_rows rows");
	return;
}

# The statements that were explained, with the most rows and pages of one call, and the number of calls.
sub worst_plans
{
	return map { sprintf '%6d rows %7d pages %7d times: %.200s', @{ $worst{$_} }, $_ }
	  sort { $worst{$b}[1] <=> $worst{$a}[1] } keys %worst;
}

1;
