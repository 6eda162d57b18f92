# Each pair of library and SQL objects of different versions works, or is refused in words.
# Under load nothing is lost, and the upgrade brings delivery back.  The next version is
# made by this test, in a PostgreSQL of its own.
use strict;
use warnings;

use OutboxTest;
use OutboxTest::Build;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# Version 1.0 is what was installed for all tests.
my $build = OutboxTest::Build->new(PostgreSQL::Test::Utils::tempdir('upgrade') . '/build');
my $old_library = "$build->{tree}/outbox-1.0.so";
OutboxTest::Build::run('cp', $build->{library}, $old_library);
my $node = outbox_node('main', build => $build);
my $receiver = OutboxTest::Receiver->new('main');
my $log = PostgreSQL::Test::Utils::tempdir() . '/producer';

endpoint($node, $receiver, 'ok', '/ok/a');
endpoint($node, $receiver, 'slow', '/slow/b?ms=20', 'max_in_flight => 4');
my $producer = start_producer($node, $log, rate => 100, keys => 4);

sub state_is
{
	my ($state, $reason, $name) = @_;
	return ok(
		wait_sql($node, "SELECT state = '$state' AND coalesce(reason, '') ~ '$reason' FROM outbox.status"),
		$name);
}

sub refused
{
	my ($sql, $sqlstate, $words, $name, $dbname) = @_;
	my ($rc, undef, $err) =
	  $node->psql($dbname // 'postgres', "\\set VERBOSITY verbose\n$sql");
	like($err, qr/ERROR:  $sqlstate: .*$words/s, $name);
	return;
}

sub goes_on
{
	my ($name) = @_;
	ok($receiver->wait_new(50), "$name: deliveries go on");
	return;
}

# Every function in C has a symbol that says of which version its contract is.
is( ask("SELECT string_agg(p.oid::regprocedure::text, ' ') FROM pg_depend d JOIN pg_proc p ON p.oid = d.objid"
		  . " WHERE d.classid = 'pg_proc'::regclass AND d.refclassid = 'pg_extension'::regclass"
		  . " AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'outbox')"
		  . " AND d.deptype = 'e' AND p.probin IS NOT NULL AND p.prosrc !~ '^outbox_[a-z_]+_[0-9]+_[0-9]+\$'"),
	'', 'all symbols carry a version');

# A declaration that does not fit is refused before an argument is read.
ask(<<'SQL');
CREATE FUNCTION too_few(text, jsonb) RETURNS uuid LANGUAGE c AS '$libdir/outbox', 'outbox_emit_jsonb_1_0';
CREATE FUNCTION too_narrow(OUT a int, OUT b int) RETURNS SETOF record LANGUAGE c AS '$libdir/outbox', 'outbox_worker_status_1_0';
SQL
refused("SELECT too_few('a.b', '{}')", 55000, 'HINT:.*ALTER EXTENSION', 'too few arguments');
refused('SELECT * FROM too_narrow()', 55000, 'HINT:.*ALTER EXTENSION', 'too few columns');
ask('DROP FUNCTION too_few, too_narrow');

# So is a table that is not of this version.
refused("BEGIN; ALTER TABLE outbox.scheduled ADD COLUMN more int; SELECT outbox.emit('a.b', '{}'::jsonb); ROLLBACK",
	55000, 'scheduled.*HINT:.*ALTER EXTENSION', 'another table');

# New files are installed, and the server still has the old library.
my $pid = worker_pid($node);
$build->change('src/base/outbox.h', 'OUTBOX_VERSION "1.0"', 'OUTBOX_VERSION "1.1"');
$build->change('outbox.control', "default_version = '1.0'", "default_version = '1.1'");
$build->add('test/upgrade/next.c', 'src');
$build->add('test/upgrade/outbox--1.0--1.1.sql', 'sql');
$build->install_again('OUTBOX_VERSION');
ask("CREATE ROLE app LOGIN; SELECT outbox.grant_emit('app'); CREATE ROLE partly LOGIN;"
	  . ' GRANT USAGE ON SCHEMA outbox TO partly; GRANT SELECT, INSERT ON outbox.outgoing TO partly');
my $new_library = "$build->{tree}/outbox.so";
refused('ALTER EXTENSION outbox UPDATE', 55000, 'HINT:  Restart the server',
	'old library, new script: the update is refused');
ask('CREATE DATABASE fresh');
refused('CREATE EXTENSION outbox', 55000, 'HINT:  Restart the server',
	'and so is CREATE EXTENSION', 'fresh');
is(ask('SELECT version FROM outbox.status'), '1.0', 'nothing has changed');
goes_on('old library, old objects');
is(worker_pid($node), $pid, 'the worker noticed nothing');

# The server is restarted: new library, old objects.
$node->restart;
state_is('version_mismatch', 'version 1.0, older than the library, which is of 1.1: ALTER EXTENSION',
	'new library, old objects: the worker says so');
my $kept = emit($node, 'load.kept', '{}');
nothing_arrives($receiver, 'and sends nothing', 0.5);
like($kept, qr/-/, 'while events are kept');
refused("SELECT outbox.require_library('1.2')", 55000, 'HINT:  Restart the server',
	'a version that does not exist');

# An update that is rolled back leaves all as it was.
ask('BEGIN; ALTER EXTENSION outbox UPDATE; ROLLBACK');
state_is('version_mismatch', 'older', 'an update that was rolled back');

# The update, under load.
ask('ALTER EXTENSION outbox UPDATE');
state_is('running', '', 'after ALTER EXTENSION UPDATE a worker runs');
is(ask('SELECT version FROM outbox.status'), '1.1', 'the objects are of version 1.1');
$receiver->wait_delivered(1, path => '/ok/a', id => $kept);
goes_on('new library, new objects');
is(ask("SELECT count(*) FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace AND proname IN ('emit', 'emit_bytes')"
	  . " AND NOT has_function_privilege('app', oid, 'EXECUTE')"), '0', 'a role that may emit may call what is new');
is(ask("SELECT has_function_privilege('partly', 'outbox.emit(text, jsonb, date)', 'EXECUTE')"), 'f',
	'one that had a part of the privileges has no more');
my $id = ask("SELECT outbox.emit_note('load.note', 'hello')");
$receiver->wait_delivered(1, path => '/ok/a', id => $id);
pass('what the new version brought works');
ask('CREATE EXTENSION outbox', 'fresh');
is(ask('SELECT version FROM outbox.status', 'fresh'), '1.1', 'a new database gets the new version');

# Objects change under a running worker: first not for good, then for good.
$pid = worker_pid($node);
PostgreSQL::Test::Utils::append_to_file("$build->{extensions}/outbox--1.1--1.2.sql",
	"ALTER TABLE outbox.parked ADD COLUMN more pg_catalog.text;\nSELECT outbox.endpoint_changed(0);\n");
PostgreSQL::Test::Utils::append_to_file("$build->{extensions}/outbox--1.2--1.1.sql",
	"ALTER TABLE outbox.parked DROP COLUMN more;\nSELECT outbox.endpoint_changed(0);\n");
ask("BEGIN; ALTER EXTENSION outbox UPDATE TO '1.2'; SELECT pg_sleep(0.2); ROLLBACK");
goes_on('an update under the worker that was rolled back');
is(worker_pid($node), $pid, 'it is the same worker');
ask("ALTER EXTENSION outbox UPDATE TO '1.2'");
state_is('version_mismatch', 'version 1.2, newer than the library that the server has loaded, which is of 1.1: restart',
	'an update under the worker: it ends, and the next one says why');
ask("ALTER EXTENSION outbox UPDATE TO '1.1'");
state_is('running', '', 'and back');
goes_on('and back');

# The library goes back, the objects do not.
$build->use_library($old_library);
$node->restart;
state_is('version_mismatch', 'newer', 'old library, new objects: the worker says so');
refused("SELECT outbox.emit('load.refused', '{}'::jsonb)", 42883, 'outbox_emit_jsonb_1_1',
	'what it does not have is refused');
$kept = ask("SELECT outbox.emit('load.kept', '{}'::text)");
like($kept, qr/-/, 'what it has works');
$build->use_library($new_library);
$node->restart;
state_is('running', '', 'the new library again');
$receiver->wait_delivered(1, path => '/ok/a', id => $kept);
pass('what was kept meanwhile is delivered');
goes_on('the new library again');

# Workers ended seven times, with at most so much in flight or not settled.
stop_producer($producer);
check_history($node, $receiver, $log, endpoints => [ '/ok/a', '/slow/b' ],
	max_duplicates => 7 * 2 * (32 + 60),
	name => 'through all of it nothing was lost, and the order kept');
$node->stop;
done_testing();
