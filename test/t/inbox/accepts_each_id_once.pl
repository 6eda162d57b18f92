# The inbox accepts each id once under load and rotation, on a server that has nothing else of ours.
# A role that only owns the database installs it, as an extension or from the plain file.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init(extra => [ '--locale=C', '--encoding=UTF8' ]);
$node->append_conf('postgresql.conf', "max_prepared_transactions = 10\nlog_statement = none\n");
$node->start;
$node->safe_psql('postgres', 'CREATE ROLE provided LOGIN; CREATE ROLE consumer LOGIN; CREATE ROLE watcher LOGIN');
$node->safe_psql('postgres', "CREATE DATABASE $_ OWNER provided") foreach qw(extension plain restored);

# psql as a role.  Returns what it prints.
sub as_role
{
	my ($role, $dbname, $sql) = @_;
	my ($rc, $out, $err) = $node->psql($dbname, $sql, extra_params => [ '-U', $role, '-q' ], on_error_stop => 1);
	return $rc == 0 ? $out : $err;
}

# Default privileges may say that others get everything.
as_role('provided', $_, 'ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO consumer;'
	  . ' ALTER DEFAULT PRIVILEGES GRANT ALL ON FUNCTIONS TO consumer; ALTER DEFAULT PRIVILEGES GRANT ALL ON SCHEMAS TO consumer')
  foreach qw(extension plain);
is(as_role('provided', 'extension', 'CREATE EXTENSION inbox'), '', 'the owner of a database creates the extension');
is(as_role('provided', 'plain', "BEGIN;\n" . slurp_file("$top/inbox/inbox.sql") . 'COMMIT'), '', 'and runs the plain file');

# What both have made: tables, views, functions with their bodies, triggers, comments, and who may do what
sub made
{
	return $node->safe_psql($_[0], <<'SQL');
SET search_path = pg_catalog;
SELECT relname, relkind, relacl, reloptions, obj_description(oid, 'pg_class'),
	CASE relkind WHEN 'v' THEN pg_get_viewdef(oid) WHEN 'i' THEN pg_get_indexdef(oid) END,
	(SELECT string_agg(format('%s %s %s %s', attname, format_type(atttypid, atttypmod), attnotnull, col_description(attrelid, attnum)), ',' ORDER BY attnum)
		FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0)
FROM pg_class c WHERE relnamespace = 'inbox'::regnamespace ORDER BY 1;
SELECT oid::regprocedure, pg_get_functiondef(oid), proacl, proowner::regrole, obj_description(oid, 'pg_proc')
FROM pg_proc WHERE pronamespace = 'inbox'::regnamespace ORDER BY 1::text;
SELECT nspacl, nspowner::regrole FROM pg_namespace WHERE nspname = 'inbox';
SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgrelid = 'inbox.rotation'::regclass;
SQL
}
my $made = made('extension');
like($made, qr/ids_2.*inbox\.accept\(text,text\)/s, 'it has objects');
is(made('plain'), $made, 'the plain file makes the very same ones');
unlike($made, qr/consumer|[{,]=/, 'none of which another role may use at first');
is( $node->safe_psql('extension', "SELECT count(*) FROM pg_proc p JOIN pg_language l ON l.oid = prolang"
		  . " WHERE pronamespace = 'inbox'::regnamespace AND (lanname NOT IN ('sql', 'plpgsql') OR prosecdef AND proconfig IS NULL)"),
	'0', 'no library, and a search_path where another role is taken');
like(as_role('consumer', 'extension', "SELECT inbox.accept('a', 'a')"), qr/permission denied/, 'a role without grants is refused');

# The grants of doc/inbox.md
my $doc = slurp_file("$top/doc/inbox.md");
my ($grants) = $doc =~ /^```sql grants\n(.*?)^```$/ms;
$grants =~ s/^CREATE ROLE.*\n//mg;
is(as_role('provided', $_, $grants), '', "$_: the grants of the document") foreach qw(extension plain);
foreach my $dbname (qw(extension plain))
{
	is(as_role('consumer', $dbname, "SELECT inbox.accept('shop', 'a'), inbox.accept('shop', gen_random_uuid()), inbox.accept_offset('t', 0, 1)"),
		't|t|t', "$dbname: the consumer accepts");
	like(as_role('consumer', $dbname, "SELECT inbox.verify('whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw', 'a', '1', $_, 'v1,')"), qr/^f$/, 'and verifies')
	  foreach "'x'", "'x'::bytea";
	like(as_role('consumer', $dbname, $_), qr/permission denied/, "but not: $_")
	  foreach 'SELECT * FROM inbox.ids_1', 'SELECT * FROM inbox.accepted', 'DELETE FROM inbox.rotation', "SELECT inbox.set_retention('1 hour')",
	  'SELECT inbox.rotate()', "SELECT inbox.forget_offsets('t')";
	is(as_role('watcher', $dbname, 'SELECT count(*) FROM inbox.accepted; SELECT count(*) FROM inbox.offsets; SELECT state FROM inbox.status'),
		"2\n1\nfilling", 'the watcher reads the views');
	like(as_role('watcher', $dbname, "SELECT inbox.accept('shop', 'a')"), qr/permission denied/, 'and does not accept');
}

# Many accepts in a transaction: few locks, and no reading in sequence, also when VACUUM has found the pieces empty
my $got = as_role('consumer', 'extension', <<'SQL');
BEGIN;
SELECT count(*) FILTER (WHERE inbox.accept('many', n::text)) FROM generate_series(1, 10000) n;
SELECT count(*) < 20 FROM pg_locks WHERE pid = pg_backend_pid();
SELECT count(*) FILTER (WHERE inbox.accept('many', n::text)) FROM generate_series(1, 10000) n;
COMMIT;
SQL
is($got, "10000\nt\n0", '10,000 accepts in a transaction take a few locks');
$node->safe_psql('extension', 'VACUUM ANALYZE inbox.ids_0, inbox.ids_1, inbox.ids_2, inbox.rotation');
is( $node->safe_psql('extension', <<'SQL'), "1000\n0", 'and none reads a piece in sequence');
BEGIN;
SELECT count(*) FILTER (WHERE inbox.accept('indexed', n::text)) FROM generate_series(1, 1000) n;
SELECT sum(seq_tup_read) FROM pg_stat_xact_all_tables WHERE schemaname = 'inbox';
COMMIT;
SQL

# A prepared transaction is waited for by the second session, and by the rotation.
my $second = $node->background_psql('extension', on_error_stop => 0);
foreach my $end ('COMMIT', 'ROLLBACK')
{
	my $begun = $node->safe_psql('extension', "BEGIN; SELECT inbox.accept('prepared', '$end'); PREPARE TRANSACTION 'p'");
	$second->query_until(qr/start/, "\\echo start\nSELECT 'second ' || inbox.accept('prepared', '$end');\n");
	wait_sql($node, "SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'transactionid'");
	$node->safe_psql('extension', "$end PREPARED 'p'");
	like($second->query_safe('SELECT 1'), $end eq 'COMMIT' ? qr/second f/ : qr/second t/, "the second session waits for $end PREPARED");
}
$second->quit;
$node->safe_psql('extension', "BEGIN; SELECT inbox.accept('prepared', 'late'); PREPARE TRANSACTION 'p'");
my $due = "UPDATE inbox.rotation SET next_step = '-infinity' \\g /dev/null\nSELECT inbox.rotate()";
is($node->safe_psql('extension', "$due;\nSELECT inbox.rotate()"), "opened\nwaits", 'the rotation waits for a prepared transaction');
is($node->safe_psql('extension', 'SELECT waits_for FROM inbox.status'), '{0}', 'and says so');
$node->safe_psql('extension', "COMMIT PREPARED 'p'");
is($node->safe_psql('extension', "SELECT inbox.rotate(); SELECT inbox.rotate(); SELECT inbox.accept('prepared', 'late')"),
	"changed\nemptied\nf", 'until its end');
is($node->safe_psql('extension', "$due;\nSELECT inbox.rotate()"), "opened\nchanged", 'two steps later');
# One accept() in ten makes the step that is due, in its own transaction.  With this seed the first few do not.
my $no_step = 'SET seed = 0.5';
$node->safe_psql('extension', "$no_step; BEGIN; SELECT inbox.accept('prepared', 'empties'); PREPARE TRANSACTION 'p'");
is($node->safe_psql('extension', "SELECT inbox.rotate();\n$due"), "emptied\nwaits", 'a piece that is full waits, too');
is($node->safe_psql('extension', 'SELECT state, waits_for FROM inbox.status'), 'filling|{0}', 'and says so');
$node->safe_psql('extension', "COMMIT PREPARED 'p'");
is($node->safe_psql('extension', "SELECT inbox.rotate();\nSELECT inbox.rotate();\nSELECT inbox.rotate()"), "opened\nchanged\nemptied", 'until its end');

# One step in a transaction.  A session that has the later piece only waits for one that has accepted into both.
is($node->safe_psql('extension', "BEGIN;\n$due;\nSELECT inbox.rotate();\nROLLBACK;\n$due"), "opened\nuncommitted\nopened", 'a transaction makes one step');
my ($one, $old) = map { $node->background_psql('extension', on_error_stop => 0) } 1, 2;

$one->query_safe("$no_step; BEGIN; SELECT inbox.accept('twice', 'a')");
is($node->safe_psql('extension', 'SELECT inbox.rotate()'), 'changed', 'a transaction that has both pieces holds up nothing');
$second = $node->background_psql('extension', on_error_stop => 0);
$second->query_until(qr/start/, "\\echo start\nSELECT 'second ' || inbox.accept('twice', 'a');\n");
ok(wait_sql($node, "SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'transactionid'"), 'another one that has the later piece waits for it');
$one->query_safe('COMMIT');
like($second->query_safe('SELECT 1'), qr/second f/, 'and is refused');
is($node->safe_psql('extension', 'SELECT inbox.rotate()'), 'emptied', 'then the oldest piece is emptied');

# A snapshot from before a change of pieces
$old->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class');
is($node->safe_psql('extension', "$no_step;\n$due;\nSELECT inbox.rotate(); SELECT inbox.accept('old', 'a')"), "opened\nchanged\nt", 'the pieces change');
$old->query("DO \$\$ BEGIN IF inbox.accept('old', 'a') THEN RAISE 'twice'; END IF;"
	  . " EXCEPTION WHEN OTHERS THEN PERFORM set_config('test.saw', SQLSTATE, false); END \$\$");
$old->query_safe('COMMIT');
is($old->query_safe("SELECT current_setting('test.saw', true)"), '40001', 'an older snapshot: 40001');
$_->quit foreach $one, $second, $old;
is($node->safe_psql('extension', 'SELECT inbox.rotate()'), 'emptied', 'and no lock is left');

# A reader of the oldest piece holds up that it is emptied, and nothing else.
$node->safe_psql('extension', "$due;\nSELECT inbox.rotate()");
my $reader = $node->background_psql('extension');
$reader->query_safe('BEGIN; SELECT count(*) FROM inbox.accepted');
is( $node->safe_psql('extension', "SELECT state FROM inbox.status; SET statement_timeout = '10 s';"
		  . " SELECT inbox.rotate(); SELECT inbox.accept('beside', 'a reader')"),
	"emptying\nwaits\nt", 'accept() does not wait for a reader, nor for a piece');
$reader->query_safe('COMMIT');
$reader->quit;
is($node->safe_psql('extension', 'SELECT inbox.rotate()'), 'emptied', 'afterwards it is emptied');

# Sessions that accept the same ids, at each isolation level, while the pieces change without a pause
$node->safe_psql('extension', <<'SQL');
CREATE TABLE work (id int, level text, at timestamptz DEFAULT clock_timestamp());
GRANT INSERT ON work TO consumer;
CREATE TABLE turned (steps int);
CREATE TABLE ended (yes boolean);
CREATE PROCEDURE turn() LANGUAGE plpgsql AS $$
DECLARE
	step text;
	steps int := 0;
	newest int;
	phase int8;
	drawn int := 0;
	seen int8 := 0;
BEGIN
	WHILE NOT EXISTS (SELECT FROM ended) LOOP
		-- An id comes again within the next 60.  Between two turns there are more, also where this process rests, and
		-- no transaction that has drawn its id before a turn is left at the next one: each holds this lock.
		PERFORM pg_advisory_xact_lock(1);
		SELECT r.phase, (SELECT max(w.id) FROM work w) INTO phase, newest FROM inbox.rotation r;
		IF phase <> seen THEN
			seen := phase;
			drawn := COALESCE(newest, 0);
		END IF;
		UPDATE inbox.rotation SET next_step = '-infinity' WHERE newest >= drawn + 34;
		COMMIT;
		step := inbox.rotate();
		COMMIT;
		steps := steps + (step IN ('opened', 'changed', 'emptied'))::int;
	END LOOP;
	INSERT INTO turned VALUES (steps);
END $$;
UPDATE inbox.rotation SET phase = 1;
TRUNCATE inbox.ids_0, inbox.ids_1, inbox.ids_2;
CREATE SEQUENCE ids;
SQL
my $script = $node->basedir . '/accept.sql';
append_to_file($script, <<'SQL');
\set level random(1, 3)
\set rollback random(1, 5) = 1
\set back random(0, 40)
BEGIN;
\if :level = 2
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ;
\elif :level = 3
SET TRANSACTION ISOLATION LEVEL SERIALIZABLE;
\endif
SELECT 1;
SELECT pg_advisory_xact_lock_shared(1);
SELECT greatest(nextval('ids') - :back, 1) AS id \gset
INSERT INTO work SELECT :id, :level WHERE inbox.accept('load', :id::text);
\if :rollback
ROLLBACK;
\else
COMMIT;
\endif
SQL
$node->safe_psql('extension', 'GRANT USAGE ON SEQUENCE ids TO consumer');
my $turning = $node->background_psql('extension', on_error_stop => 0);
$turning->query_until(qr/start/, "\\echo start\nCALL turn();\n");
$node->command_ok(
	[ 'pgbench', '-n', '-U', 'consumer', '-h', $node->host, '-p', $node->port, '-f', $script, '--max-tries=20', '-c', 12, '-t', 100, 'extension' ],
	'sessions at each isolation level');
$node->safe_psql('extension', 'INSERT INTO ended VALUES (true)');
$turning->quit;
cmp_ok($node->safe_psql('extension', 'SELECT sum(steps) FROM turned') || 0, '>=', 3, 'the pieces changed meanwhile');
my ($ids, $levels) = split /\|/, $node->safe_psql('extension', 'SELECT count(DISTINCT id), count(DISTINCT level) FROM work');
cmp_ok($ids, '>', 300, "many ids ($ids)");
is($levels, '3', 'at each level');
is($node->safe_psql('extension', 'SELECT count(*) FROM (SELECT FROM work GROUP BY id HAVING count(*) > 1) s'), '0', 'each has one effect');
unlike(slurp_file($node->logfile), qr/deadlock detected|the next step of the rotation failed/, 'no deadlock, and no step that failed');

# What stays behind of a turn
is($node->safe_psql('extension', 'SELECT sum(n_dead_tup) < 1000 FROM pg_stat_user_tables WHERE schemaname = \'inbox\' AND relname = \'rotation\''), 't', 'few dead rows');

$node->safe_psql('extension', 'DROP TABLE work, turned, ended; DROP PROCEDURE turn; DROP SEQUENCE ids');

# A dump by the owner, into a database of its own
my $dump = $node->basedir . '/dump';
foreach my $dbname (qw(extension plain))
{
	$node->safe_psql($dbname, "SELECT inbox.set_retention('20 days')");
	$node->safe_psql($dbname, "$due; SELECT inbox.accept('dumped', 'a')") if $dbname eq 'plain';
	my $before = $node->safe_psql($dbname, 'SELECT * FROM inbox.accepted ORDER BY 1, 2; SELECT * FROM inbox.offsets; SELECT phase, retention FROM inbox.rotation');
	$node->command_ok([ 'pg_dump', '-Fc', '-U', 'provided', '-f', "$dump.$dbname", $node->connstr($dbname) ], "$dbname: its owner dumps it");
	$node->command_ok([ 'pg_restore', '-U', 'provided', '-d', $node->connstr('restored'), "$dump.$dbname" ], 'and restores it');
	is($node->safe_psql('restored', 'SELECT * FROM inbox.accepted ORDER BY 1, 2; SELECT * FROM inbox.offsets; SELECT phase, retention FROM inbox.rotation'),
		$before, 'the same ids, offsets and phase');
	my $id = $node->safe_psql($dbname, "SELECT format('%L, %L', source, id) FROM inbox.accepted LIMIT 1");
	is($node->safe_psql('restored', "SELECT inbox.accept($id), inbox.accept('restored', 'new')"), 'f|t', 'which go on');
	is(as_role('provided', 'restored', $dbname eq 'extension' ? 'DROP EXTENSION inbox' : 'SET client_min_messages = error; DROP SCHEMA inbox CASCADE'), '', 'it is dropped');
	is($node->safe_psql('restored', "SELECT count(*) FROM pg_namespace WHERE nspname = 'inbox'"), '0', 'and leaves nothing');
}

# The data alone, by a tool that lets no trigger run that is not to run always
$node->safe_psql('postgres', 'CREATE DATABASE copied OWNER provided');
as_role('provided', 'copied', 'CREATE EXTENSION inbox');
{
	local $ENV{PGOPTIONS} = '-c session_replication_role=replica';
	$node->command_ok([ 'pg_restore', '-a', '-d', $node->connstr('copied'), "$dump.extension" ], 'the data alone are copied');
}
is($node->safe_psql('copied', 'SELECT phase, retention FROM inbox.rotation'),
	$node->safe_psql('extension', 'SELECT phase, retention FROM inbox.rotation'), 'with the phase');
is($node->safe_psql('copied', 'SELECT bool_or(inbox.accept(source, id)) FROM inbox.accepted'), 'f', 'so that no id is accepted twice');

# A schema of that name that is there already
as_role('provided', 'restored', 'CREATE SCHEMA inbox');
like(as_role('provided', 'restored', 'CREATE EXTENSION inbox'), qr/schema "inbox" already exists/, 'a schema of that name is left alone');
$node->stop;
done_testing();
