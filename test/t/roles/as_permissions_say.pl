# Each role may do to each object of the schema as test/permissions.txt says, and no more.
# Every function, table, view, column and sequence is tried as PUBLIC and as each of
# the four roles of doc/security.md.
#
# "make permissions" writes that file anew, to be read line by line before it is
# committed.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $file = "$top/test/permissions.txt";
my $node = outbox_node('roles');

# The GRANT lists are those of doc/security.md.
$node->safe_psql('postgres', $_) foreach documented_roles();
$node->safe_psql('postgres', <<'SQL');
CREATE ROLE anybody;
CREATE ROLE nobody;
GRANT USAGE ON SCHEMA outbox TO anybody;
SQL

# The roles that the columns of the file stand for, and the roles that try what these
# may do.  PUBLIC's rights need a role that sees into the schema.
my @who = qw(PUBLIC emit watch operate portal);
my %role = (PUBLIC => 'public', emit => 'app', watch => 'watcher', operate => 'operator', portal => 'portal');
my %tries = (%role, PUBLIC => 'anybody');

my %letter = (
	SELECT => 'r', INSERT => 'a', UPDATE => 'w', DELETE => 'd', TRUNCATE => 'D',
	REFERENCES => 'x', TRIGGER => 't', EXECUTE => 'X', USAGE => 'U', CREATE => 'C');
my @table = qw(SELECT INSERT UPDATE DELETE TRUNCATE REFERENCES TRIGGER);
my @column = qw(SELECT INSERT UPDATE REFERENCES);

# What there is: kind, name, the name to ask with; of a column also its relation.
my @objects = (
	[ 'schema', 'outbox', 'outbox', undef ],
	map { my ($kind, $name, $column) = split /\|/; [ $kind, $name, $name, length($column // q{}) ? $column : undef ] }
	  split /\n/, $node->safe_psql('postgres', <<'SQL'));
SET search_path = '';
SELECT 'function', p.name FROM (SELECT oid::pg_catalog.regprocedure::text AS name
	FROM pg_catalog.pg_proc WHERE pronamespace = 'outbox'::pg_catalog.regnamespace) p ORDER BY p.name;
SELECT CASE c.relkind WHEN 'S' THEN 'sequence' WHEN 'v' THEN 'view' ELSE 'table' END,
	c.oid::pg_catalog.regclass, a.attname
FROM pg_catalog.pg_class c
JOIN (SELECT attrelid, 0 AS attnum, NULL AS attname FROM pg_catalog.pg_attribute WHERE attnum = 1
	UNION ALL
	SELECT attrelid, attnum, attname FROM pg_catalog.pg_attribute WHERE attnum > 0 AND NOT attisdropped) a
	ON a.attrelid = c.oid AND (c.relkind <> 'S' OR a.attnum = 0)
WHERE c.relnamespace = 'outbox'::pg_catalog.regnamespace AND c.relkind NOT IN ('i', 'I', 'c')
ORDER BY 1, c.relname, a.attnum;
SQL

my $cells = 0;

# One query for all privileges of all objects.
sub ask_privileges
{
	my (@questions, %may);

	foreach my $o (@objects)
	{
		my ($kind, undef, $name, $column) = @$o;
		my @privileges =
			$kind eq 'schema' ? qw(USAGE CREATE)
		  : $kind eq 'function' ? ('EXECUTE')
		  : $kind eq 'sequence' ? qw(USAGE SELECT UPDATE)
		  : defined $column ? @column : @table;
		my $function =
			$kind =~ /table|view/ ? (defined $column ? 'has_column_privilege' : 'has_table_privilege')
		  : "has_${kind}_privilege";

		foreach my $privilege (@privileges)
		{
			foreach my $who (@who)
			{
				push @questions, sprintf "('%s', '%s', %s('%s', '%s', %s'%s'))",
				  $who, join(' ', $name, $column // (), $privilege), $function, $role{$who}, $name,
				  (defined $column ? "'$column', " : ''), $privilege;
			}
		}
	}
	foreach my $row (split /\n/, $node->safe_psql('postgres', 'VALUES ' . join(",\n", @questions)))
	{
		my ($who, $what, $answer) = split /\|/, $row;
		$may{$who}{$what} = $answer eq 't' ? 1 : 0;
		$cells++;
	}
	return \%may;
}

# A line per object.  A column has one where it differs from its table.
sub matrix
{
	my ($may) = @_;
	my $format = "%-7s %-7s %-7s %-7s %-7s %s";
	my @lines = (
		'# Which role may do what with the objects of schema outbox; the letters are those of psql\'s \dp:',
		'# r SELECT, a INSERT, w UPDATE, d DELETE, D TRUNCATE, x REFERENCES, t TRIGGER, X EXECUTE, U USAGE, C CREATE.',
		'# A column has a line where it differs from its table. Written by "make permissions", to be read before it is committed.',
		sprintf($format, @who, ''));
	my %of_table;

	foreach my $o (@objects)
	{
		my ($kind, $title, $name, $column) = @$o;
		my %cell;

		foreach my $who (@who)
		{
			$cell{$who} = join '', map { $letter{$_} }
			  grep { $may->{$who}{ join(' ', $name, $column // (), $_) } } @table, qw(EXECUTE USAGE CREATE);
		}
		if (defined $column)
		{
			next unless grep {
				(my $same = $of_table{$_}) =~ tr/dDt//d;
				$same ne $cell{$_}
			} @who;
			$title = "  column $column";
		}
		else
		{
			%of_table = %cell;
			$title = "$kind $title";
		}
		push @lines, sprintf $format, (map { $cell{$_} eq '' ? '-' : $cell{$_} } @who), $title;
	}
	s/ +$// foreach @lines;
	return join "\n", @lines, '';
}

my $may = ask_privileges();
my $now = matrix($may);
if ($ENV{ACCEPT})
{
	unlink $file;
	append_to_file($file, $now);
}
my $reviewed = slurp_file($file);
if (!is($now, $reviewed, 'permissions are those of test/permissions.txt'))
{
	my %old = map { $_ => 1 } split /\n/, $reviewed;
	my %new = map { $_ => 1 } split /\n/, $now;
	diag(join "\n",
		'Run "make permissions", and read what it changes in test/permissions.txt:',
		(map { "- $_" } grep { !$new{$_} } split /\n/, $reviewed),
		(map { "+ $_" } grep { !$old{$_} } split /\n/, $now));
}

# What must be true whatever the file says
sub nobody_may
{
	my ($who, $pattern, $name) = @_;
	my @found = grep { $may->{$who}{$_} && $_ =~ $pattern } sort keys %{ $may->{$who} };
	is("@found", '', $name);
	return;
}
nobody_may($_, qr/ (?:UPDATE|DELETE|TRUNCATE|REFERENCES|TRIGGER|CREATE)$/, "$_: changes nothing, and attaches nothing")
  foreach @who;
nobody_may($_, qr/^outbox\.endpoint_secrets /, "$_: no secret") foreach @who;
nobody_may($_, qr/ SELECT$/, "$_: reads nothing") foreach qw(PUBLIC portal);
nobody_may('emit', qr/^(?!outbox\.outgoing).* SELECT$/, 'emit: reads what its transaction emits, and nothing else');
nobody_may('watch', qr/(?:payload|body|headers|url|content_type|filter|secret\w*|previous) SELECT$/,
	'watch: no payload, answer, header or URL');
nobody_may($_, qr/ INSERT$/, "$_: writes nothing") foreach qw(PUBLIC watch operate portal);
nobody_may('emit', qr/^outbox\.(?!events \w+ |outgoing ).* INSERT$/, 'emit: writes into the log alone');
nobody_may('emit', qr/^outbox\.events (?:seq|xid|epoch|created_at|piece) INSERT$/, 'emit: not what is the log\'s own');
my $stamps = qr/^outbox\.(?:current_piece|next_seq|current_epoch|log_xid|new_event_id|check_event)\(/;
nobody_may('PUBLIC', qr/^(?!$stamps).* EXECUTE$/, 'PUBLIC: what defaults and checks call');
nobody_may('portal', qr/^outbox\.(?!portal_|\Qcurrent_\E|next_seq|log_xid|new_event_id|check_event).* EXECUTE$/,
	'portal: calls only what takes a tenant');
nobody_may('emit', qr/^outbox\.(?!emit(?:_bytes)?\()(?!\Qcurrent_\E|next_seq|log_xid|new_event_id|check_event).* EXECUTE$/, 'emit: calls nothing else');
nobody_may('watch', qr/^outbox\.\w*(?:endpoint|secret|retry|discard|cancel|emit|wait_for|replay|seek)(?!_stats).* EXECUTE$/,
	'watch: operates nothing');

# Tried, as the role itself: refused is SQLSTATE 42501; whatever else goes wrong,
# or does not, is allowed.  Nothing of it stays.
$node->safe_psql('postgres', <<'SQL');
CREATE FUNCTION public.try(role name, statement text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE pg_catalog.format('SET LOCAL ROLE %I', role);
	EXECUTE statement;
	RAISE EXCEPTION 'undo' USING ERRCODE = 'XX999';
EXCEPTION
	WHEN insufficient_privilege THEN RETURN 'refused';
	WHEN object_not_in_prerequisite_state OR feature_not_supported OR wrong_object_type THEN RETURN 'impossible';
	WHEN OTHERS THEN RETURN 'allowed';
END $$;
GRANT CREATE ON SCHEMA public TO anybody, app, watcher, operator, portal;
SQL

my %columns;
push @{ $columns{ $_->[2] } }, $_->[3] foreach grep { defined $_->[3] } @objects;

# No argument is a constant.  With a constant NULL, PostgreSQL would neither call a
# strict function nor check the privilege.
sub call
{
	my ($function) = @_;
	my ($arguments) = $function =~ /\((.*)\)$/;
	my @types = split /,/, $arguments;

	return "CREATE TEMP TABLE t (a int);"
	  . " CREATE TRIGGER t BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION $function"
	  if $function =~ /\.(?:fill_id|emit_change)\(/;
	return "SELECT $function" unless @types;
	my $n = 0;
	my $values = join ', ', map { $n++; "NULL::$_ AS a$n" } @types;
	$n = 0;
	my $names = join ', ', map { $n++; "a.a$n" } @types;
	$function =~ s/\(.*//;
	return "SELECT $function($names) FROM (SELECT $values OFFSET 0) a";
}

sub statement
{
	my ($kind, $name, $column, $privilege) = @_;
	my @columns = defined $column ? ($column) : @{ $columns{$name} // [] };

	return "CREATE TABLE outbox.mine (a int)" if $kind eq 'schema' && $privilege eq 'CREATE';
	return call($name) if $kind eq 'function';
	return $privilege eq 'USAGE' ? "SELECT nextval('$name')"
	  : $privilege eq 'UPDATE' ? "SELECT setval('$name', 1)"
	  : "SELECT last_value FROM $name"
	  if $kind eq 'sequence';
	return undef if $kind eq 'schema' || $privilege eq 'REFERENCES';
	return (defined $column ? "SELECT $column FROM $name LIMIT 0" : "SELECT x FROM $name x LIMIT 0")
	  if $privilege eq 'SELECT';
	return "INSERT INTO $name (" . join(', ', @columns) . ') OVERRIDING SYSTEM VALUE SELECT '
	  . join(', ', map { 'NULL' } @columns) . ' WHERE false'
	  if $privilege eq 'INSERT';
	return "UPDATE $name SET " . join(', ', map { "$_ = DEFAULT" } @columns) . ' WHERE false'
	  if $privilege eq 'UPDATE';
	return "DELETE FROM $name WHERE false" if $privilege eq 'DELETE';
	return "TRUNCATE $name" if $privilege eq 'TRUNCATE';
	return "CREATE TRIGGER mine BEFORE INSERT ON $name FOR EACH STATEMENT"
	  . ' EXECUTE FUNCTION pg_catalog.suppress_redundant_updates_trigger()';
}

my (@tries, @expected);
foreach my $o (@objects)
{
	my ($kind, undef, $name, $column) = @$o;
	foreach my $privilege (@table, qw(EXECUTE USAGE CREATE))
	{
		my $what = join ' ', $name, $column // (), $privilege;
		next unless exists $may->{PUBLIC}{$what};
		my $sql = statement($kind, $name, $column, $privilege) // next;

		foreach my $who (@who)
		{
			push @tries, [ $tries{$who}, $sql ];
			push @expected, [ "$who: $what", $may->{$who}{$what} ];
		}
		push @tries, [ 'nobody', $sql ];
		push @expected, [ "without USAGE on the schema: $what", 0 ];
	}
}
my @results = split /\n/, $node->safe_psql('postgres',
	join('', map { "SELECT public.try('$_->[0]', \$try\$$_->[1]\$try\$);\n" } @tries));
is(scalar @results, scalar @tries, 'everything was tried');
my ($tried, @wrong) = (0);
foreach my $i (0 .. $#tries)
{
	next if $results[$i] eq 'impossible';
	$tried++;
	push @wrong, "$expected[$i][0]: $results[$i] ($tries[$i][1])"
	  if ($results[$i] eq 'allowed' ? 1 : 0) != $expected[$i][1];
}
is(join("\n", @wrong), '', 'what is tried goes as the privileges say');
is( join(' ', grep { $results[$_] eq 'impossible' && $expected[$_][1] } 0 .. $#tries), '',
	'and what is granted can be tried');
cmp_ok($tried, '>', 1000, 'enough was tried');

shown_in_security($cells, 'permission cells');
note("$tried of them tried");

# --- The worker's role: the privileges that doc/security.md lists are enough, and with
# --- fewer the worker says so and does nothing

$node->safe_psql('postgres', <<'SQL');
CREATE ROLE weak;
ALTER SYSTEM SET outbox.worker_role = 'weak';
SELECT pg_reload_conf();
SQL

# A worker that is held has no process.  It is started again after a reload.
sub begin_anew
{
	$node->safe_psql('postgres', "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type LIKE 'outbox worker%'");
	$node->reload;
}
begin_anew();
my $held = q{SELECT state = 'held' AND reason LIKE 'the role of the worker, "weak", lacks a privilege: %' FROM outbox.status};
ok(wait_sql($node, $held), 'a role without any grant: held, and says why');
$node->safe_psql('postgres', "GRANT USAGE ON SCHEMA outbox TO weak;"
	  . " GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON ALL TABLES IN SCHEMA outbox TO weak;"
	  . " GRANT SELECT ON SEQUENCE outbox.events_seq TO weak;"
	  . " GRANT EXECUTE ON FUNCTION outbox.order_key, outbox.is_pending, outbox.pending_seqs, outbox.stored_credentials, outbox.newest_position, outbox.forgets TO weak; REVOKE TRUNCATE ON outbox.positions_1 FROM weak");
begin_anew();
ok(wait_sql($node, $held), 'one privilege less: held');
$node->safe_psql('postgres', 'GRANT TRUNCATE ON outbox.positions_1 TO weak; REVOKE USAGE ON SCHEMA outbox FROM weak');
begin_anew();
ok(wait_sql($node, $held), 'not even the schema: held');
$node->safe_psql('postgres', 'GRANT USAGE ON SCHEMA outbox TO weak');
ok(wait_sql($node, q{SELECT state = 'running' FROM outbox.status}), 'all of it: it begins by itself');

# A trigger that the owner itself has attached runs as the role.
my $receiver = OutboxTest::Receiver->new('roles');
$node->safe_psql('postgres', <<'SQL');
CREATE TABLE public.worked_as (who name);
GRANT INSERT ON public.worked_as TO PUBLIC;
CREATE FUNCTION public.who() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO public.worked_as VALUES (current_user), (session_user);
	RETURN NULL;
END $$;
CREATE TRIGGER who AFTER INSERT ON outbox.parked FOR EACH ROW EXECUTE FUNCTION public.who();
SQL
endpoint($node, $receiver, 'fails', '/status/500/a', q{max_attempts => 1});
wait_status($node, emit($node, 'role.fails', '{}'), 'dead', 'a delivery is recorded');
is($node->safe_psql('postgres', 'SELECT DISTINCT who FROM public.worked_as'), 'weak', 'the worker is that role');

$node->stop;
done_testing();
