# Views and functions answer a session the same, whatever its settings are.
# Each setting of a database, a role and the server is set to something odd.  Then each view is read, and each
# function of pg_proc is called.
# It takes long, so only LONG=1 make test and make matrix run it.
use strict;
use warnings;

use OutboxTest qw(:DEFAULT !ask);
use OutboxTest::Calls;
use OutboxTest::OddSettings;
use Test::More;

my $node = outbox_node('main', conf => "max_prepared_transactions = 10\n");
my $receiver = OutboxTest::Receiver->new('main');

prepare_calls($node, $receiver);
$node->safe_psql('postgres', 'CREATE ROLE reader SUPERUSER LOGIN; CREATE ROLE calm SUPERUSER LOGIN');
make_odd_settings($node);
my $settings = $node->safe_psql('postgres', 'SELECT count(*) FROM odd');
my ($all, $stable);

# These say what the session may do and for how long, and how it wants to see names.
my @its_own = qw(default_transaction_read_only default_transaction_isolation role session_authorization transaction_timeout statement_timeout
  lock_timeout idle_in_transaction_session_timeout idle_session_timeout exit_on_error max_stack_depth temp_file_limit client_encoding
  default_transaction_deferrable allow_system_table_mods quote_all_identifiers restrict_nonsystem_relation_kind);
$node->safe_psql('postgres', "SELECT set_one('ROLE reader IN DATABASE postgres', name, calm) FROM odd WHERE name IN ('" . join("', '", @its_own) . "')");
$node->safe_psql('postgres', q{SELECT set_one('ROLE calm IN DATABASE postgres', name, calm) FROM odd});

# Each column and each answer has a line of its own.
sub hash { return "pg_catalog.md5(pg_catalog.string_agg(pg_catalog.record_send(ROW($_[0])), '' ORDER BY pg_catalog.record_send(ROW($_[0]))))" }

my $script = "SET client_min_messages = error;\n\\set VERBOSITY sqlstate\n";
foreach (split /\n/, $node->safe_psql('postgres', <<'SQL'))
SELECT c.relname, string_agg(quote_ident(a.attname), ' ' ORDER BY a.attnum)
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind = 'v' GROUP BY 1 ORDER BY 1
SQL
{
	my ($view, @columns) = split /[| ]/;
	$script .= 'SELECT ' . join(" || '\n' || ", map { "'\@$view.$_ ' || coalesce(" . hash("v.$_") . ", '')" } @columns) . " FROM outbox.$view v;\n";
}
my $n = 0;
foreach my $function (functions($node))
{
	my $call = call_of($function);
	my $name = "$n-$function->{name}";

	next if $function->{name} =~ /^(?:follow|unfollow|take_over|follow_anew|wait_for)$/;
	$n++;
	# What a call changes is seen in the settings and in the log
	$script .= "\\warn \@$name\nBEGIN;\nSELECT '\@$name ' || pg_catalog.count(f) || coalesce(" . hash('f') . ", '') FROM $call f;\n";
	$script .= "SELECT '\@$name.log ' || pg_catalog.count(e) || coalesce(" . hash('e.topic, e.payload, e.key, e.headers, e.expires_at') . ", '') FROM outbox.all_events e;\n"
	  . "SELECT '\@$name.settings ' || " . hash('s.name, s.topics, s.filter, s.headers, s.timeout, s.max_age, s.backoff_base, s.rate_limit, s.config') . " FROM outbox.endpoint_settings s;\n"
	  if $call =~ /emit|endpoint|send_test/;
	$script .= "ROLLBACK;\n";
}

# Each line of an answer by its name, with the SQLSTATE of an error
sub answers
{
	my ($role) = @_;
	my (undef, $out, $error) = $node->psql('postgres', $script, on_error_stop => 0, extra_params => [ '-U', $role ]);
	my %answer = map { /^@(\S+) (.*)/ ? ($1 => $2) : () } split /\n/, $out;
	my $name = 'views';

	foreach (split /\n/, $error)
	{
		$name = $1 if /^@(.*)/;
		$answer{"$name.error"} = ($answer{"$name.error"} // '') . "$1 " if /ERROR: +(\w+)/ && $1 ne '25P02';
	}
	return \%answer;
}

# What a session with odd settings is told, and one without is told neither just before nor just after
sub differences
{
	my ($before, $odd, $after) = map { answers($_) } qw(calm reader calm);
	my %names = (%$before, %$odd);
	my $same = sub { my ($x, $y, $name) = @_; return ($x->{$name} // '') eq ($y->{$name} // '') };

	$all = keys %$before;
	$stable = grep { $same->($before, $after, $_) } keys %$before;
	return map { "$_: " . ($odd->{$_} // 'nothing') } grep { $same->($before, $after, $_) && !$same->($before, $odd, $_) } sort keys %names;
}

sub ask { return $node->safe_psql('postgres', $_[0], extra_params => [ '-U', 'calm' ]) }

# Gives the settings their first or last odd values, compares, and takes the values back.
sub compare
{
	my ($whose, $last, $upto) = @_;

	ask("SELECT set_one('$whose', name, values[CASE WHEN $last THEN array_length(values, 1) ELSE 1 END])"
		  . " FROM (SELECT * FROM odd ORDER BY name LIMIT $upto) o");
	my @found = differences();
	ask("ALTER $whose RESET ALL");
	return @found;
}

# The first setting that makes a difference
sub setting_of
{
	my ($whose, $last) = @_;
	my ($low, $high) = (0, $settings);

	while ($high - $low > 1)
	{
		my $half = int(($low + $high) / 2);
		if (compare($whose, $last, $half)) { $high = $half }
		else { $low = $half }
	}
	return ask("SELECT name FROM odd ORDER BY name OFFSET $high - 1 LIMIT 1");
}

is(join("\n", differences()), '', 'no difference for a session with the same settings');
cmp_ok($stable, '>', 0.9 * $all, "$stable of $all answers do not change by themselves");
foreach my $whose ('DATABASE postgres', 'ROLE reader')
{
	foreach my $last ('false', 'true')
	{
		is(join("\n", compare($whose, $last, $settings)), '', "$whose, " . ($last eq 'true' ? 'the last' : 'the first') . ' values')
		  or diag('beginning with ' . setting_of($whose, $last));
	}
}

# Those of the server that no session can have, but for logins, logs, waits and what would keep ALTER SYSTEM from working
foreach my $last ('false', 'true')
{
	my $odd = ask(<<"SQL");
SELECT format('ALTER SYSTEM SET %I = %L;', name, CASE vartype WHEN 'bool' THEN CASE setting WHEN 'on' THEN 'off' ELSE 'on' END
	WHEN 'enum' THEN enumvals[CASE WHEN $last THEN array_length(enumvals, 1) ELSE 1 END] ELSE CASE WHEN $last THEN max_val ELSE min_val END END)
FROM pg_settings WHERE context = 'sighup' AND vartype <> 'string'
AND name !~ '^(outbox|ssl|log_|pre_auth|post_auth|authentication|recovery|restart|allow_alter|db_user|krb|gss|max_slot)'
SQL
	$node->psql('postgres', $odd, on_error_stop => 0, extra_params => [ '-U', 'calm' ]);
	$node->reload;
	wait_sql($node, "SELECT current_setting('autovacuum') = 'off'");
	is(join("\n", differences()), '', 'the server, ' . ($last eq 'true' ? 'the last' : 'the first') . ' values') or diag($odd);
	ask('ALTER SYSTEM RESET ALL');
	$node->reload;
	wait_sql($node, "SELECT current_setting('autovacuum') = 'on'");
}
$node->stop;
done_testing();
