# Nothing that a lesser user creates runs as the owner of the extension or as the worker.
# Nor does it stop another user's work.  Four roles try: one that owns things of its own
# and may create what it likes in the database, and the three of doc/security.md.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('planted', extension => 0, conf => <<'CONF');
outbox.retention = '2s'
outbox.attempts_retention = '2s'
CONF
my $receiver = OutboxTest::Receiver->new('planted');
my ($rc, $out, $err);
my $refused = 0;

sub sql
{
	my ($dbname, $sql, $role) = @_;
	return $node->psql($dbname, "\\set VERBOSITY verbose\n$sql", extra_params => [ '-q', $role ? ('-U', $role) : () ]);
}

$node->safe_psql('postgres', <<'SQL');
CREATE ROLE mallory LOGIN;
GRANT CREATE ON DATABASE postgres TO mallory;
GRANT CREATE ON SCHEMA public TO mallory;
SQL

# --- Before the extension: a schema of that role, or something in it

my %squat = (
	'the schema' => 'CREATE SCHEMA outbox AUTHORIZATION mallory',
	map { my ($what, $create) = @$_;
		($what => "CREATE SCHEMA outbox; GRANT CREATE ON SCHEMA outbox TO mallory; SET ROLE mallory; $create") }
	  [ 'a table', 'CREATE TABLE outbox.parked (a int)' ],
	  [ 'a view', 'CREATE VIEW outbox.mine AS SELECT 1' ],
	  [ 'a sequence', 'CREATE SEQUENCE outbox.mine' ],
	  [ 'a type', "CREATE TYPE outbox.mine AS ENUM ('a')" ],
	  [ 'a function', "CREATE FUNCTION outbox.new_event_id() RETURNS uuid LANGUAGE sql AS 'SELECT gen_random_uuid()'" ],
	  [ 'an operator', 'CREATE OPERATOR outbox.= (FUNCTION = texteq, LEFTARG = text, RIGHTARG = text)' ],
	  [ 'a collation', 'CREATE COLLATION outbox.mine FROM "C"' ]);
sql('postgres', 'CREATE DATABASE squat');
foreach my $what (sort keys %squat)
{
	($rc, $out, $err) = sql('squat', $squat{$what});
	is($err, '', "$what is there before");
	($rc, $out, $err) = sql('squat', 'CREATE EXTENSION outbox');
	like($err, qr/55000: schema outbox, or something in it, belongs to role "mallory".*HINT/s, "$what: refused");
	is($node->safe_psql('squat', q{SELECT count(*) FROM pg_proc WHERE proname = 'emit'}), '0', 'nothing is made');
	$refused++;
	sql('squat', 'DROP SCHEMA outbox CASCADE');
}

# The administrator's own schema can be used.  Objects in the way stay as they are.
sql('squat', "CREATE SCHEMA outbox; CREATE FUNCTION outbox.new_event_id() RETURNS uuid LANGUAGE sql AS 'SELECT gen_random_uuid()'");
($rc, $out, $err) = sql('squat', 'CREATE EXTENSION outbox');
like($err, qr/42723: function "new_event_id" already exists/, 'nothing is replaced');
sql('squat', 'DROP FUNCTION outbox.new_event_id()');

# Default privileges give no role anything.
($rc, $out, $err) = sql('squat', <<'SQL');
CREATE ROLE favourite;
ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO favourite, PUBLIC;
ALTER DEFAULT PRIVILEGES GRANT ALL ON SEQUENCES TO favourite, PUBLIC;
ALTER DEFAULT PRIVILEGES GRANT ALL ON FUNCTIONS TO favourite, PUBLIC;
CREATE EXTENSION outbox;
SQL
is($err, '', 'a schema of the administrator');
is( $node->safe_psql('squat', <<'SQL'),
SELECT string_agg(DISTINCT name || ' ' || a.grantee::regrole || ' ' || a.privilege_type, ', ')
FROM (SELECT relname, relacl, relowner FROM pg_class WHERE relnamespace = 'outbox'::regnamespace
	UNION ALL SELECT proname, proacl, proowner FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace) o (name, acl, owner),
	aclexplode(acl) a WHERE a.grantee <> owner AND a.grantee IS DISTINCT FROM to_regrole('outbox_worker')
SQL
	'check_event - EXECUTE, current_epoch - EXECUTE, current_piece - EXECUTE, log_xid - EXECUTE, new_event_id - EXECUTE, next_seq - EXECUTE',
	'default privileges give no role anything');

# Nor does the schema, whether the extension makes it or finds it.  A role that could
# create a function in it would have the functions of the extension call it.
sql('squat', 'DROP EXTENSION outbox; DROP SCHEMA outbox');
foreach my $granted (
	[ 'the schema that it makes', 'ALTER DEFAULT PRIVILEGES GRANT ALL ON SCHEMAS TO favourite, PUBLIC' ],
	[ 'one that it finds', <<'SQL' ])
ALTER DEFAULT PRIVILEGES REVOKE ALL ON SCHEMAS FROM favourite, PUBLIC;
CREATE SCHEMA outbox;
GRANT ALL ON SCHEMA outbox TO PUBLIC;
GRANT ALL ON SCHEMA outbox TO favourite WITH GRANT OPTION;
SET ROLE favourite;
GRANT CREATE ON SCHEMA outbox TO mallory
SQL
{
	my ($what, $grant) = @$granted;
	($rc, $out, $err) = sql('squat', "$grant;\nRESET ROLE;\nCREATE EXTENSION outbox");
	is($err, '', "$what: made");
	is($node->safe_psql('squat', "SELECT rolname FROM pg_roles WHERE NOT rolsuper AND rolname !~ '^pg_|^outbox_worker'"
			  . " AND (has_schema_privilege(rolname, 'outbox', 'CREATE') OR has_schema_privilege(rolname, 'outbox', 'USAGE'))"),
		'', "$what gives no role anything");
	sql('squat', 'DROP EXTENSION outbox; DROP SCHEMA IF EXISTS outbox');
}

# Where an administrator lets a role create objects in it later, a function that fits
# the arguments of a call better is still not called.
($rc, $out, $err) = sql('squat', <<'SQL');
CREATE EXTENSION outbox;
GRANT ALL ON SCHEMA outbox TO favourite;
SET ROLE favourite;
CREATE FUNCTION outbox.position_now(s regclass, OUT snapshot pg_snapshot, OUT seq_low int8, OUT committed pg_snapshot)
LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'called by %', current_user; END $$;
RESET ROLE;
SELECT outbox.create_endpoint('a', 'https://a.example/', tenant => 'acme');
SELECT outbox.seek_endpoint('a', 'now');
SELECT outbox.replay('a', now() - interval '1 day');
SELECT outbox.forget('acme');
SELECT outbox.adopt();
SQL
unlike($err, qr/called by/, 'what is planted in it later is not called');
sql('postgres', 'DROP DATABASE squat');

# --- A schema full of things that are named like what outbox uses.  Each role that
# --- calls one is noted.

($rc, $out, $err) = sql('postgres', <<'SQL', 'mallory');
CREATE SCHEMA evil;
GRANT USAGE ON SCHEMA evil TO PUBLIC;
CREATE TABLE evil.caught (what text, victim name);
GRANT INSERT ON evil.caught TO PUBLIC;
CREATE FUNCTION evil.note(what text) RETURNS bool LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO evil.caught VALUES ($1, current_user);
	RETURN true;
END $$;
SQL
is($err, '', 'mallory has a schema');

# Every function that the bodies of outbox's name, with every signature; and the
# operators, for the types that they are used with.
my $functions = <<'SQL';
DO $do$
DECLARE
	f record;
	n int := 0;
BEGIN
	FOR f IN
		SELECT p.proname, pg_get_function_identity_arguments(p.oid) AS args, p.prorettype::regtype AS result,
			(SELECT string_agg('$' || i, ', ') FROM generate_series(1, p.pronargs) i) AS pass, where_from
		FROM pg_proc p, (VALUES ('evil'), ('public')) w (where_from)
		WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind = 'f' AND NOT p.proretset AND p.provariadic = 0
		AND EXISTS (SELECT FROM regexp_split_to_table(current_setting('my.names'), ' ') s WHERE s = p.proname)
		AND NOT p.prorettype = ANY (ARRAY['internal', 'cstring', 'trigger', 'record', 'void', 'anyelement', 'anyarray']::regtype[])
		AND NOT p.proargtypes::oid[] && ARRAY['internal', 'cstring', '"any"', 'anyelement', 'anyarray', 'anynonarray', 'anyenum', 'anyrange', 'anycompatible', 'anymultirange', 'record']::regtype[]::oid[]
	LOOP
		EXECUTE format('CREATE FUNCTION %I.%I(%s) RETURNS %s LANGUAGE plpgsql AS $f$ BEGIN PERFORM evil.note(%L); RETURN pg_catalog.%I(%s); END $f$',
			f.where_from, f.proname, f.args, f.result, f.where_from || '.' || f.proname, f.proname, f.pass);
		n := n + 1;
	END LOOP;
	FOR f IN
		SELECT o.oprname, o.oprleft::regtype AS l, o.oprright::regtype AS r, o.oprresult::regtype AS result, where_from,
			row_number() OVER () AS number
		FROM pg_operator o, (VALUES ('evil'), ('public')) w (where_from)
		WHERE o.oprnamespace = 'pg_catalog'::regnamespace
		AND o.oprname IN ('=', '<>', '<', '<=', '>', '>=', '~', '!~', '||', '+', '-', '*', '/')
		AND o.oprleft = ANY (ARRAY['text', 'int2', 'int4', 'int8', 'float4', 'float8', 'uuid', 'xid8', 'timestamptz', 'interval', 'bool', 'oid', 'name']::regtype[])
		AND o.oprright = ANY (ARRAY['text', 'int2', 'int4', 'int8', 'float4', 'float8', 'uuid', 'xid8', 'timestamptz', 'interval', 'bool', 'oid', 'name']::regtype[])
	LOOP
		EXECUTE format('CREATE FUNCTION %I.op_%s(%s, %s) RETURNS %s LANGUAGE plpgsql AS $f$ BEGIN PERFORM evil.note(%L); RETURN $1 OPERATOR(pg_catalog.%s) $2; END $f$',
			f.where_from, f.number, f.l, f.r, f.result, format('%s.%s (%s, %s)', f.where_from, f.oprname, f.l, f.r), f.oprname);
		EXECUTE format('CREATE OPERATOR %I.%s (FUNCTION = %I.op_%s, LEFTARG = %s, RIGHTARG = %s)',
			f.where_from, f.oprname, f.where_from, f.number, f.l, f.r);
		n := n + 1;
	END LOOP;
	RAISE NOTICE 'planted %', n;
END $do$;
SQL
my $script = join('', map { slurp_file($_) } glob("$top/sql/parts/*.sql"));
my %named = map { $_ => 1 } $script =~ /\b([a-z_0-9]+)\(/g;
($rc, $out, $err) = sql('postgres', "SET my.names = '" . join(' ', sort keys %named) . "';\n$functions", 'mallory');
my ($planted) = $err =~ /planted (\d+)/;
cmp_ok($planted // 0, '>', 400, 'functions and operators are planted') or diag($err);

my $hostile_path = 'SET search_path = evil, public, pg_temp, pg_catalog';
is((sql('postgres', "$hostile_path; SELECT 1 = 1, now()", 'mallory'))[2], '', 'and work');
cmp_ok($node->safe_psql('postgres', 'SELECT count(*) FROM evil.caught'), '>', 0, 'a role that looks there is caught');
$node->safe_psql('postgres', 'TRUNCATE evil.caught');

# The administrator creates the extension with that path.
($rc, $out, $err) = sql('postgres', "$hostile_path;\nCREATE EXTENSION outbox");
is($err, '', 'CREATE EXTENSION with such a search_path');
is($node->safe_psql('postgres', 'SELECT * FROM evil.caught'), '', 'the script asks for nothing there');
is( $node->safe_psql('postgres', <<'SQL'),
SELECT string_agg(DISTINCT d.refclassid::regclass || ' ' || d.refobjid, ', ')
FROM pg_depend m
JOIN pg_depend d ON d.classid = m.classid AND d.objid = m.objid AND d.deptype = 'n'
WHERE m.refclassid = 'pg_extension'::regclass AND m.deptype = 'e'
AND m.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'outbox')
AND d.refobjid >= 16384
AND NOT (d.refclassid = 'pg_namespace'::regclass AND d.refobjid = 'outbox'::regnamespace)
AND NOT EXISTS (SELECT FROM pg_type t WHERE d.refclassid = 'pg_type'::regclass AND t.oid = d.refobjid
	AND t.typnamespace = 'outbox'::regnamespace)
AND NOT EXISTS (SELECT FROM pg_depend e WHERE e.deptype = 'e' AND e.classid = d.refclassid AND e.objid = d.refobjid
	AND e.refclassid = 'pg_extension'::regclass AND e.refobjid = m.refobjid)
SQL
	'', 'no object of outbox depends on anything but outbox and PostgreSQL');

$node->safe_psql('postgres', $_) foreach documented_roles();
$node->safe_psql('postgres', <<'SQL');
ALTER ROLE app LOGIN; ALTER ROLE watcher LOGIN; ALTER ROLE operator LOGIN; ALTER ROLE portal LOGIN;
CREATE ROLE customer LOGIN;
GRANT USAGE ON SCHEMA outbox TO mallory;
GRANT EXECUTE ON FUNCTION outbox.emit_change() TO mallory;
CREATE ROLE signaller LOGIN; GRANT pg_signal_backend TO signaller;
CREATE ROLE landlord LOGIN; ALTER DATABASE postgres OWNER TO landlord;
GRANT CREATE ON SCHEMA public TO app, watcher, operator, landlord;
SQL
my $owner = $node->safe_psql('postgres', 'SELECT current_user');
endpoint($node, $receiver, 'good', '/ok/good');
endpoint($node, $receiver, 'bad', '/status/500/bad', q{topics => '{*.bad}', max_attempts => 2, backoff_base => '10 ms', backoff_max => '10 ms'});
my $worker = worker_pid($node);

# --- Attaching something to what is outbox's

my @tables = split /\n/, $node->safe_psql('postgres',
	"SELECT oid::regclass FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind IN ('r', 'p')");
my @attach = (
	'CREATE TRIGGER mine BEFORE INSERT ON %s FOR EACH STATEMENT EXECUTE FUNCTION suppress_redundant_updates_trigger()',
	'CREATE RULE mine AS ON INSERT TO %s DO ALSO SELECT evil.note($$rule$$)',
	'CREATE INDEX mine ON %s ((evil.note($$index$$)))',
	'CREATE STATISTICS evil.mine ON (evil.note($$statistics$$)), tableoid FROM %s',
	'CREATE POLICY mine ON %s USING (evil.note($$policy$$))',
	'ALTER TABLE %s ADD COLUMN mine bool DEFAULT evil.note($$default$$)',
	'ALTER TABLE %s ADD CHECK (evil.note($$check$$))',
	'ALTER TABLE %s DISABLE ROW LEVEL SECURITY',
	'ALTER TABLE %s OWNER TO CURRENT_USER',
	'ALTER TABLE %s SET SCHEMA evil',
	'ALTER TABLE %s REPLICA IDENTITY FULL',
	'CREATE TABLE public.heir () INHERITS (%s)',
	'CREATE TABLE public.piece PARTITION OF %s FOR VALUES IN (7)',
	'CREATE TABLE public.refers (a bigint REFERENCES %s)',
	'CREATE PUBLICATION mine FOR TABLE %s',
	'COMMENT ON TABLE %s IS $$mine$$',
	'LOCK TABLE %s IN ACCESS EXCLUSIVE MODE',
	'LOCK TABLE %s IN SHARE MODE',
	'LOCK TABLE ONLY %s IN ROW EXCLUSIVE MODE',
	'DROP TABLE %s CASCADE',
	'CREATE CAST (%s AS json) WITH INOUT',
	'COPY %s TO STDOUT',
	'COPY %s FROM PROGRAM $$true$$');
my @attach_once = (
	"CREATE EVENT TRIGGER mine ON ddl_command_start EXECUTE FUNCTION evil.note()",
	"CREATE OR REPLACE FUNCTION outbox.new_event_id() RETURNS uuid LANGUAGE sql AS 'SELECT NULL::uuid'",
	"CREATE FUNCTION outbox.emit(text) RETURNS uuid LANGUAGE sql AS 'SELECT NULL::uuid'",
	'CREATE OPERATOR outbox.= (FUNCTION = texteq, LEFTARG = text, RIGHTARG = text)',
	'ALTER FUNCTION outbox.retry SET search_path = evil',
	'ALTER FUNCTION outbox.retry SECURITY INVOKER',
	'ALTER FUNCTION outbox.retry OWNER TO CURRENT_USER',
	'DROP FUNCTION outbox.retry',
	'ALTER VIEW outbox.stats OWNER TO CURRENT_USER',
	'CREATE RULE mine AS ON INSERT TO outbox.stats DO INSTEAD NOTHING',
	'CREATE TRIGGER mine INSTEAD OF INSERT ON outbox.stats FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()',
	'ALTER SCHEMA outbox RENAME TO inbox',
	'ALTER SCHEMA outbox OWNER TO CURRENT_USER',
	'DROP SCHEMA outbox CASCADE',
	'DROP EXTENSION outbox CASCADE',
	"ALTER EXTENSION outbox UPDATE TO '2.0'",
	'ALTER EXTENSION outbox DROP FUNCTION outbox.new_event_id()',
	'ALTER EXTENSION outbox ADD SCHEMA evil',
	'CREATE PUBLICATION mine FOR ALL TABLES',
	"CREATE CAST (uuid AS json) WITH INOUT",
	"CREATE CAST (timestamptz AS json) WITH INOUT",
	'DROP POLICY worker ON outbox.endpoint_secrets',
	'SELECT pg_reload_conf()');
my (@survived, @tries);
foreach my $role (qw(mallory app watcher operator landlord))
{
	push @tries, map { [ $role, $_ ] } @attach_once;
	foreach my $table (@tables)
	{
		push @tries, map { [ $role, sprintf $_, $table ] } @attach;
	}
}
$node->safe_psql('postgres', <<'SQL');
CREATE SCHEMA attempts;
CREATE FUNCTION attempts.try(role name, statement text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE pg_catalog.format('SET LOCAL ROLE %I', role);
	EXECUTE statement;
	RAISE EXCEPTION 'undo' USING ERRCODE = 'XX999';
EXCEPTION WHEN OTHERS THEN RETURN SQLSTATE || ' ' || SQLERRM;
END $$;
SQL
my @answers = split /\n/, $node->safe_psql('postgres',
	"SET lock_timeout = '10s';\n" . join('', map { "SELECT attempts.try('$_->[0]', \$try\$$_->[1]\$try\$);\n" } @tries));
is(scalar @answers, scalar @tries, 'all of it was tried');

# Refused because of the role, or because no role can do this.
foreach my $i (0 .. $#tries)
{
	my ($role, $sql) = @{ $tries[$i] };
	my $fine = $answers[$i] =~ /^42501 /
	  || ($sql =~ /PARTITION OF|INHERITS/ && $answers[$i] =~ /^42809 .*(?:is not partitioned|cannot inherit from partition)|^42P17 /)
	  || ($sql =~ /REFERENCES/ && $answers[$i] =~ /^(?:42804|42830|42703|42P16|42704) /)
	  || ($sql =~ /AS json|uuid/ && $answers[$i] =~ /^42501|^42710/)
	  || ($sql =~ /event trigger/i && $answers[$i] =~ /^42(?:501|883)/)
	  || ($sql =~ /^COPY .* TO STDOUT|DROP POLICY/ && $answers[$i] =~ /^(?:0A000|42704|42809) /)
	  || ($sql =~ /INSTEAD OF/ && $answers[$i] =~ /^42501/);
	push @survived, "$role: $sql: $answers[$i]" unless $fine;
	$refused++;
}
is(join("\n", @survived), '', 'no role attaches anything to what is outbox\'s');

# --- Settings, and signals

my @settings = split /\n/, $node->safe_psql('postgres', "SELECT name FROM pg_settings WHERE name LIKE 'outbox.%' AND name <> 'outbox.actor'");
cmp_ok(scalar @settings, '>', 15, 'there are settings');
foreach my $role (qw(app operator landlord))
{
	my @ways = ('SET %s = DEFAULT', 'ALTER ROLE CURRENT_USER SET %s = DEFAULT',
		$role eq 'landlord' ? ('ALTER DATABASE postgres SET %s = DEFAULT') : (),
		"SELECT set_config('%s', '1', false)", "SELECT set_config('%s', 'off', false)");
	foreach my $way (@ways)
	{
		foreach my $setting (@settings)
		{
			my $statement = sprintf $way, $setting;
			$statement =~ s/DEFAULT/'1'/;
			push @tries, [ $role, $statement ];
		}
	}
}
my @set = grep { $_->[1] =~ /^(?:SET|ALTER (?:ROLE|DATABASE)|SELECT set_config)/ } @tries;
@answers = split /\n/, $node->safe_psql('postgres',
	join('', map { "SELECT attempts.try('$_->[0]', \$try\$$_->[1]\$try\$);\n" } @set));
is(join("\n", map { "$set[$_][0]: $set[$_][1]: $answers[$_]" }
		grep { $answers[$_] !~ /^(?:55P02|42501|22023) / } 0 .. $#set),
	'', 'no role changes a setting, for itself or for a database');
$refused += @set;
foreach my $role (qw(mallory app watcher operator landlord))
{
	($rc, $out, $err) = sql('postgres', 'ALTER SYSTEM SET outbox.enabled = off', $role);
	like($err, qr/42501/, "$role: no ALTER SYSTEM");
	$refused++;
}

my $launcher = $node->safe_psql('postgres',
	"SELECT pid FROM pg_stat_activity WHERE backend_type LIKE 'outbox%' AND pid <> $worker LIMIT 1");
foreach my $role (qw(mallory app watcher operator landlord signaller))
{
	foreach my $call (map { ("pg_cancel_backend($_)", "pg_terminate_backend($_)") } grep { $_ } $worker, $launcher)
	{
		($rc, $out, $err) = sql('postgres', "SELECT $call", $role);
		like($err, qr/42501/, "$role: no $call");
		$refused++;
	}
}
is(worker_pid($node), $worker, 'the worker runs on');

# --- Callers with hostile paths, temporary objects included

my $trap = <<"SQL";
$hostile_path;
SET plan_cache_mode = force_custom_plan;
SET default_transaction_isolation = 'read committed';
CREATE TEMP TABLE endpoint_settings (name text, url text);
CREATE TEMP TABLE events (id uuid);
CREATE DOMAIN pg_temp.text AS pg_catalog.text CHECK (evil.note('temporary text'));
CREATE DOMAIN pg_temp.timestamptz AS pg_catalog.timestamptz CHECK (evil.note('temporary timestamptz'));
CREATE DOMAIN pg_temp.int8 AS pg_catalog.int8 CHECK (evil.note('temporary int8'));
CREATE DOMAIN pg_temp.int4 AS pg_catalog.int4 CHECK (evil.note('temporary int4'));
CREATE DOMAIN pg_temp.bool AS pg_catalog.bool CHECK (evil.note('temporary bool'));
SQL
$node->safe_psql('postgres', 'GRANT TEMPORARY ON DATABASE postgres TO operator, app, portal');
my $event = emit($node, 'planted.bad', '{}');
my $url = $receiver->url('/ok/mine');
my $again = join ";\n",
  "SELECT outbox.create_endpoint('mine', '$url')",
  "SELECT outbox.create_endpoint('mine', '$url', if_not_exists => true)",
  "SELECT outbox.alter_endpoint('mine', topics => '{mine.*}', reset => '{filter}')",
  "SELECT outbox.pause_endpoint('mine')", "SELECT outbox.resume_endpoint('mine')",
  "SELECT outbox.seek_endpoint('mine', 'beginning')",
  "SELECT outbox.seek_endpoint('mine', '2026-01-01')",
  "SELECT outbox.rotate_secret('mine')",
  "SELECT outbox.rotate_secret('mine', secret => 'whsec_' OPERATOR(pg_catalog.||) pg_catalog.repeat('A', 40))",
  "SELECT outbox.endpoint_secret('mine')",
  "SELECT outbox.retry('bad')", "SELECT outbox.retry('bad', topics => '{*}')",
  "SELECT outbox.discard('bad', since => '2026-01-01')",
  "SELECT outbox.replay('good', '2026-01-01', topics => '{*}')",
  "SELECT outbox.wait_for('$event', '0')", "SELECT outbox.cancel('$event')",
  "SELECT outbox.set_event_type('mine.a', 'It is mine.', '{}', '{\"a\": 1}')", 'TABLE outbox.event_types',
  "SELECT outbox.send_test('mine')", "SELECT outbox.send_test('mine', 'mine.a')",
  "SELECT outbox.drop_event_type('mine.a')", "SELECT outbox.drop_event_type('mine.a', if_exists => true)",
  (map { "TABLE outbox.$_" } qw(status stats deliveries workers endpoints dead_letters attempts)),
  "SELECT outbox.drop_endpoint('mine', discard => true, if_exists => true)",
  "SELECT outbox.drop_endpoint('mine', if_exists => true)";
($rc, $out, $err) = sql('postgres', "$trap$again", 'operator');
my @errors = grep { /ERROR/ && !/55006|55000/ } split /\n/, $err;
is(join("\n", @errors), '', 'an operator with a hostile search_path');
my $portal = join ";\n",
  qq(SELECT outbox.portal_create_endpoint('acme', '$url', '{"topics": ["mine.*"], "rate_limit": 5, "headers": {"a": "b"}}', 'acme.mine')),
  qq(SELECT outbox.portal_alter_endpoint('acme', 'acme.mine', '{"rate_limit": null, "filter": "\$.a > 1"}')),
  (map { "SELECT outbox.portal_$_('acme', 'acme.mine')" }
	  qw(pause_endpoint resume_endpoint secret rotate_secret send_test endpoints deliveries attempts)),
  "SELECT outbox.portal_deliveries('acme', status => 'dead')", "SELECT outbox.portal_limits('acme')",
  "SELECT outbox.portal_event_types('acme')",
  "SELECT outbox.portal_replay('acme', 'acme.mine', '2026-01-01', topics => '{*}')",
  "SELECT outbox.portal_drop_endpoint('acme', 'acme.mine', discard => true)";
($rc, $out, $err) = sql('postgres', "$trap$portal", 'portal');
@errors = grep { /ERROR/ } split /\n/, $err;
is(join("\n", @errors), '', 'a portal with a hostile search_path');
($rc, $out, $err) = sql('postgres', <<"SQL", 'app');
$trap
SELECT outbox.emit('planted.a', '{}'::jsonb, key => 'k', type => 't', headers => '{"x": "y"}', dedup_key => 'd');
SELECT outbox.emit('planted.a', '{}'::jsonb, dedup_key => 'd');
SELECT outbox.emit('planted.a', '{}'::json, deliver_at => pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) '0.3 s'::interval);
SELECT outbox.emit('planted.a', '{}', expires_at => 'infinity');
SELECT outbox.emit_bytes('planted.a', '', 'text/plain');
INSERT INTO outbox.events (topic, payload) VALUES ('planted.a', '{}');
SQL
is($err, '', 'an emitter with one');

# --- Triggers of that role's own tables, types and casts

($rc, $out, $err) = sql('postgres', <<'SQL', 'mallory');
CREATE TYPE evil.price AS ENUM ('1', '13', '14', '15', '16', '17');
CREATE FUNCTION evil.price_json(evil.price) RETURNS json LANGUAGE plpgsql AS $$
BEGIN
	PERFORM evil.note('cast');
	IF $1 = '13'::evil.price THEN
		RAISE EXCEPTION 'bad luck';
	ELSIF $1 = '14'::evil.price THEN
		DROP TRIGGER changes ON evil.goods;
	ELSIF $1 = '15'::evil.price THEN
		INSERT INTO evil.goods VALUES (DEFAULT, '15', 'deeper');
	ELSIF $1 = '16'::evil.price THEN
		RESET SESSION AUTHORIZATION;
	ELSIF $1 = '17'::evil.price THEN
		SET LOCAL search_path = evil;
		SET LOCAL ROLE NONE;
	END IF;
	RETURN '{"cast": true}';
END $$;
CREATE CAST (evil.price AS json) WITH FUNCTION evil.price_json(evil.price);
CREATE DOMAIN evil.label AS text CHECK (evil.note('domain'));
CREATE TABLE evil.goods (id int DEFAULT (evil.note('default'))::int, price evil.price, label evil.label,
	upper text GENERATED ALWAYS AS (pg_catalog.upper(label)) STORED);
CREATE FUNCTION evil.indexed(text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN PERFORM evil.note('index'); RETURN $1; END $$;
CREATE INDEX ON evil.goods (evil.indexed(label));
CREATE TRIGGER changes AFTER INSERT OR UPDATE OR DELETE ON evil.goods
	FOR EACH ROW EXECUTE FUNCTION outbox.emit_change('planted.goods', 'label');
GRANT INSERT, SELECT, UPDATE, DELETE ON evil.goods TO customer;
SQL
is($err, '', 'mallory attaches emit_change to a table of its own');
foreach my $amount (1, 13 .. 17)
{
	($rc, $out, $err) = sql('postgres', "INSERT INTO evil.goods VALUES (DEFAULT, '$amount', 'l')", 'customer');
	is($rc, 0, "a cast that runs, $amount") if $amount == 1 || $amount > 15;
	isnt($err, '', "a cast that fails, $amount") if $amount > 12 && $amount < 16;
}
($rc, $out, $err) = sql('postgres', "UPDATE evil.goods SET label = 'm'; DELETE FROM evil.goods", 'customer');
is($err, '', 'updates and deletes');

# The log is read, delivered, retried and shortened, by each role that may.
my $piece = $node->safe_psql('postgres', q{SELECT piece FROM outbox.pieces WHERE log = 'events'});
foreach my $n (1 .. 5)
{
	emit($node, "planted.$_", '{"n": 1}', "key => 'k'") foreach 1 .. 5;
}
wait_settled($node);
ok(wait_sql($node, "SELECT piece <> $piece FROM outbox.pieces WHERE log = 'events'"), 'the log is rotated');
is(worker_pid($node), $worker, 'the worker is the same');
cmp_ok(scalar(() = $receiver->requests(path => '/ok/good')), '>', 20, 'it was at work');

is( $node->safe_psql('postgres', <<'SQL'),
SELECT string_agg(DISTINCT what || ' as ' || victim, ', ') FROM evil.caught
WHERE victim NOT IN ('mallory', 'customer', 'app', 'operator', 'watcher')
SQL
	'', 'nothing that was planted ran as another role');
is( $node->safe_psql('postgres', q{SELECT string_agg(DISTINCT victim, ' ' ORDER BY victim) FROM evil.caught WHERE what IN ('cast', 'domain')}),
	'customer', 'casts and domains run as the role that changes the row');
shown_in_security($refused, 'attempts of lesser roles refused');

$node->stop;
done_testing();
