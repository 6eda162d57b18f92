# An application sees the same of sql/source.sql as of the extension: results, errors, grants.
# The input of pg_regress is the same for both, and so is what it has to print.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = PostgreSQL::Test::Utils::tempdir('source');
my $node = PostgreSQL::Test::Cluster->new('main');
$node->init(extra => [ '--locale=C', '--encoding=UTF8' ]);
$node->start;

# As on a server of a provider: the role that has the database is no superuser.
$node->safe_psql('postgres', 'CREATE ROLE provided LOGIN CREATEROLE');
$node->safe_psql('postgres', "CREATE DATABASE $_ OWNER provided") foreach qw(source real);
my ($rc, $out, $err) =
  $node->psql('source', "\\i $top/sql/source.sql", extra_params => [ '-q', '-U', 'provided' ], on_error_stop => 1);
is($rc, 0, 'its owner installs it');
is("$out$err", '', 'without a word');
$node->safe_psql('real', 'SET client_min_messages = error; CREATE EXTENSION outbox');

sub regress
{
	my ($dbname, @more) = @_;
	my $log = "$dir/$dbname";

	mkdir $log or die "$log: $!";
	my $same = PostgreSQL::Test::Utils::run_log([ $ENV{PG_REGRESS}, '--bindir=', '--use-existing', '--host=' . $node->host,
			'--port=' . $node->port, "--dbname=$dbname", "--inputdir=$top/test/regress", "--outputdir=$log", @more, 'application' ]);
	ok($same, "$dbname: what application.sql prints") or diag(-e "$log/regression.diffs" ? slurp_file("$log/regression.diffs") : '');
	return;
}
regress('real');
regress('source', '--user=provided');

# What emit.sql has refused, with the whole error
my ($refusals) = slurp_file("$top/test/regress/sql/emit.sql") =~ /^(DO \$\$\n.*?^\$\$;\n)/ms or die 'emit.sql';
sub refused
{
	my ($dbname, $user) = @_;
	my (undef, undef, $said) = $node->psql($dbname, $refusals, extra_params => [ '-q', '-U', $user ]);

	# The place in a function of sql/source.sql
	return $said =~ s/^psql:<stdin>:\d+: //gmr;
}
my $real = refused('real', $node->safe_psql('real', 'SELECT current_user'));
cmp_ok(scalar(() = $real =~ /^INFO:/mg), '>', 30, 'the extension refuses much');
is(refused('source', 'provided'), $real, 'and sql/source.sql refuses the same');

# What can be called, and what has columns
sub surface
{
	return $node->safe_psql($_[0], <<'SQL');
SELECT p.oid::regprocedure || ' ' || pg_get_function_arguments(p.oid) || ' ' || pg_get_function_result(p.oid)
FROM pg_proc p WHERE pronamespace = 'outbox'::regnamespace AND proname IN ('emit', 'emit_bytes', 'emit_change', 'new_event_id', 'grant_emit')
ORDER BY 1;
SELECT attrelid::regclass || ' ' || attname || ' ' || format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = 'outbox.outgoing'::regclass AND attnum > 0 ORDER BY attnum;
SQL
}
is(surface('source'), surface('real'), 'functions and view have the same signatures');

# Calls of PL/pgSQL are most of the time of an emit.
is($node->safe_psql('source', "SET track_functions = 'all'; SELECT outbox.emit('order.created', '{\"n\": 1}'::jsonb, key => 'k', type => 'order', tenant => 't') \\g /dev/null\n"
	  . "SELECT pg_stat_force_next_flush(); SELECT string_agg(funcname || ' ' || calls, ', ') FROM pg_stat_user_functions WHERE schemaname = 'outbox'"),
	"\nappend 1", 'an event without headers is one call of a function');

# It is not put beside the extension
($rc, $out, $err) = $node->psql('real', "\\i $top/sql/source.sql", on_error_stop => 1);
isnt($rc, 0, 'a database with the extension refuses it');
like($err, qr/schema "outbox" already exists/, 'and says why');
done_testing();
