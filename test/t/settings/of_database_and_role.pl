# Settings of the database and of the role stop neither the worker nor the emitting sessions.
use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');
my @hostile = (
	"default_transaction_read_only = 'on'",
	"default_transaction_isolation = 'serializable'",
	"default_transaction_deferrable = 'on'",
	"statement_timeout = '1ms'",
	"lock_timeout = '1ms'",
	"idle_in_transaction_session_timeout = '1ms'",
	"idle_session_timeout = '1ms'",
	"synchronous_commit = 'off'",
	"session_replication_role = 'replica'",
	'search_path = evil, pg_catalog',
	"DateStyle = 'German'",
	"IntervalStyle = 'sql_standard'",
	"TimeZone = 'Asia/Kathmandu'",
	"extra_float_digits = '-15'",
	"bytea_output = 'escape'",
	"xmloption = 'document'",
	"row_security = 'off'",
	"check_function_bodies = 'off'",
	"quote_all_identifiers = 'on'",
	"transform_null_equals = 'on'",
	"enable_seqscan = 'off'",
	"enable_indexscan = 'off'",
	"log_statement = 'all'",
	"work_mem = '64kB'");

# Objects named like PostgreSQL's own, which are found first by names without a schema
$node->safe_psql('postgres', <<'SQL');
CREATE SCHEMA evil;
CREATE TABLE evil.trap (what text);
CREATE FUNCTION evil.now() RETURNS timestamptz LANGUAGE sql AS
	$$INSERT INTO evil.trap VALUES ('now'); SELECT 'epoch'::timestamptz$$;
CREATE FUNCTION evil.equal(bigint, bigint) RETURNS boolean LANGUAGE plpgsql AS
	$$BEGIN INSERT INTO evil.trap VALUES ('='); RETURN false; END$$;
CREATE OPERATOR evil.= (FUNCTION = evil.equal, LEFTARG = bigint, RIGHTARG = bigint);
CREATE OPERATOR evil.> (FUNCTION = evil.equal, LEFTARG = bigint, RIGHTARG = bigint);
CREATE FUNCTION evil.count(anyelement) RETURNS bigint LANGUAGE plpgsql AS
	$$BEGIN INSERT INTO evil.trap VALUES ('count'); RETURN 0; END$$;
SQL

endpoint($node, $receiver, 'all', '/flaky/a?first=1',
	"backoff_base => '20 ms', backoff_max => '100 ms'");
my $user = $node->safe_psql('postgres', 'SELECT current_user');
foreach my $of ('DATABASE postgres', "ROLE \"$user\"")
{
	# One session, because the settings hold from the next on.
	$node->safe_psql('postgres',
		join(';', map { "ALTER $of SET $_" } @hostile));

	my $calm = '-c statement_timeout=0 -c lock_timeout=0'
	  . ' -c idle_in_transaction_session_timeout=0 -c idle_session_timeout=0'
	  . ' -c default_transaction_read_only=off -c search_path=public';

	local $ENV{PGOPTIONS} = $calm;
	my $pid = worker_pid($node);
	$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
	ok(new_worker($node, $pid), "$of: a worker starts");

	# Emitting sessions keep the settings that do not stop them
	my $id = emit($node, 'hostile.one', '{"at": 1.5}', "key => 'k'");
	$receiver->wait_delivered(1, id => $id);
	pass("$of: delivered, after a retry");
	$id = $node->safe_psql('postgres', <<'SQL');
SET search_path = evil, pg_catalog;
SELECT outbox.emit('hostile.path', '{}'::jsonb, key => 'k');
SQL
	$receiver->wait_delivered(1, id => $id);
	my @got = $receiver->requests(id => $id);
	like(
		JSON::PP::decode_json($got[0]{body})->{timestamp},
		qr/^\d{4}-\d\d-\d\dT/,
		"$of: dates are ISO 8601");
	ok(wait_settled($node), "$of: settled");
	ok( wait_sql(
			$node,
			"SELECT pg_catalog.count(*) OPERATOR(pg_catalog.>=) 2 FROM outbox.attempts"
			  . " WHERE event_id OPERATOR(pg_catalog.=) '$id'"),
		"$of: attempts are written");

	# The checks hold under session_replication_role = replica
	my (undef, undef, $err) =
	  $node->psql('postgres', "SELECT outbox.emit('no topic!', '{}'::jsonb)");
	like($err, qr/topic/, "$of: a bad topic is refused");

	$node->safe_psql('postgres',
		"SET default_transaction_read_only = off; ALTER $of RESET ALL");
}
is($node->safe_psql('postgres', 'SELECT count(*) FROM evil.trap'),
	'0', 'nothing fell into the trap');

# Settings of the extension's own
my ($rc, undef, $err);
foreach my $row (
	split /\n/,
	$node->safe_psql(
		'postgres', "SELECT name, short_desc, unit FROM pg_settings WHERE name LIKE 'outbox.%'"))
{
	my ($name, $desc) = split /\|/, $row;
	ok($desc, "$name has a description");
}
$node->safe_psql('postgres', 'ALTER SYSTEM SET outbox.enabled = off');
$node->reload;
ok(wait_sql($node, "SELECT state = 'disabled' FROM outbox.status"), 'disabled');
my $id = emit($node, 'hostile.two', '{}');
nothing_arrives($receiver, 'outbox.enabled = off: nothing is sent', 0.5, id => $id);
$node->safe_psql('postgres', 'ALTER SYSTEM RESET outbox.enabled');
$node->reload;
$receiver->wait_delivered(1, id => $id);
pass('on again: delivered');

# An unreachable network
$node->safe_psql('postgres', "ALTER SYSTEM SET outbox.allowed_networks = ''");
$node->reload;
wait_sql($node, "SELECT current_setting('outbox.allowed_networks') = ''");
($rc, undef, $err) = $node->psql('postgres',
	"SELECT outbox.create_endpoint('loop', 'http://127.0.0.1:1/')");
isnt($rc, 0, 'a loopback address is refused');
like($err, qr/HINT:.*outbox\.allowed_networks/, 'and the hint names the setting');
$id = emit($node, 'hostile.three', '{}');
ok( wait_sql(
		$node, "SELECT last_error ~ 'allowed_networks' FROM outbox.deliveries"
		  . " WHERE event_id = '$id'"),
	'an existing endpoint is refused at connect time');
is(scalar(() = $receiver->requests(id => $id)), 0, 'nothing was sent');

# Not preloaded
$node->adjust_conf('postgresql.conf', 'shared_preload_libraries', "''");
$node->restart;
$id = emit($node, 'hostile.four', '{}');
like($id, qr/-/, 'emit works without the library being preloaded');
is($node->safe_psql('postgres', 'SELECT state FROM outbox.status'),
	'not_preloaded', 'outbox.status says so');
$node->safe_psql('postgres', 'DROP EXTENSION outbox CASCADE');
(undef, undef, $err) = $node->psql('postgres', 'CREATE EXTENSION outbox');
like($err, qr/WARNING:.*preload/, 'CREATE EXTENSION warns');

$node->stop;
done_testing();
