# Whatever value a setting of a database or a role has, the worker delivers all the same.
# Every setting that such a level can carry is set to something odd.  Retries and
# scheduled events are tried, too.
use strict;
use warnings;

use OutboxTest qw(:DEFAULT !ask);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = outbox_node('main');
my $receiver = OutboxTest::Receiver->new('main');

# The session of the test sees none of it: its role has the values of now, for this
# database, which go before those of the database and of all roles.
my $boot = $node->safe_psql('postgres', 'SELECT current_user');
$node->safe_psql('postgres', <<"SQL");
CREATE ROLE tester SUPERUSER LOGIN;
CREATE ROLE stranger;
CREATE SCHEMA evil;
CREATE FUNCTION evil.now() RETURNS timestamptz LANGUAGE sql AS 'SELECT ''epoch''::timestamptz';
CREATE TABLE odd (name text PRIMARY KEY, calm text, values text[]);
SQL

sub ask
{
	my ($sql) = @_;
	return $node->safe_psql('postgres', $sql, extra_params => [ '-U', 'tester' ]);
}

# Settings that are left out, because an odd value would stop the test itself: a wait
# before the worker's code begins, the level of the server log, and where the server
# has its libraries (since 18 those of PostgreSQL itself, so that no session begins).
# With assertions a server can also be told to forget its caches all the time, and is
# a hundred times slower then.
my @left_out = qw(post_auth_delay log_min_messages dynamic_library_path debug_discard_caches);

# Settings that are texts, with a value that is odd and valid
my %text = (
	'DateStyle' => ['German, DMY'],
	'TimeZone' => ['Asia/Kathmandu'],
	'client_encoding' => ['LATIN1'],
	'createrole_self_grant' => ['set, inherit'],
	'default_table_access_method' => ['nowhere'],
	'default_tablespace' => ['nowhere'],
	'default_text_search_config' => ['pg_catalog.german'],
	'lc_messages' => ['C'],
	'lc_monetary' => ['C.UTF-8'],
	'lc_numeric' => ['C.UTF-8'],
	'lc_time' => ['C.UTF-8'],
	'restrict_nonsystem_relation_kind' => ['view, foreign-table'],
	'role' => ['stranger'],
	'search_path' => ['evil, pg_catalog'],
	'session_authorization' => ['stranger'],
	'temp_tablespaces' => ['nowhere'],
	'timezone_abbreviations' => ['India']);

$node->safe_psql('postgres', <<"SQL");
INSERT INTO odd
SELECT name, current_setting(name),
	CASE vartype
		WHEN 'bool' THEN ARRAY[CASE setting WHEN 'on' THEN 'off' ELSE 'on' END]
		WHEN 'enum' THEN ARRAY(SELECT v FROM unnest(enumvals) v WHERE v <> setting)
		WHEN 'string' THEN '{}'
		WHEN 'integer' THEN ARRAY(SELECT v FROM unnest(ARRAY[min_val, (min_val::int8 + 1)::text, max_val]) v WHERE v <> setting)
		ELSE ARRAY(SELECT v FROM unnest(ARRAY[min_val, max_val]) v WHERE v <> setting)
	END
FROM pg_settings
WHERE context IN ('user', 'superuser', 'superuser-backend', 'backend')
	AND name NOT LIKE 'outbox.%' AND name NOT IN ('@{[join "', '", @left_out]}');
INSERT INTO odd VALUES ('role', 'none', '{}'), ('session_authorization', 'tester', '{}')
	ON CONFLICT DO NOTHING;
@{[map { "UPDATE odd SET values = ARRAY['$text{$_}[0]'] WHERE name = '$_';\n" } sort keys %text]}
DELETE FROM odd WHERE values = '{}';
-- PostgreSQL (from 17 on) ends a session that has not begun within this time, before a library could change it.  On a busy
-- machine that takes longer than 1 ms.
UPDATE odd SET values = array_replace(values, '1', '100') WHERE name = 'transaction_timeout';
CREATE FUNCTION set_one(whose text, name text, value text) RETURNS text LANGUAGE plpgsql AS \$\$
BEGIN
	IF name IN ('DateStyle', 'search_path', 'temp_tablespaces', 'createrole_self_grant', 'restrict_nonsystem_relation_kind') THEN
		EXECUTE format('ALTER %s SET %I = %s', whose, name,
			coalesce((SELECT string_agg(quote_literal(trim(v, ' "')), ', ') FROM unnest(string_to_array(value, ',')) v), ''''''));
	ELSE
		EXECUTE format('ALTER %s SET %I = %L', whose, name, value);
	END IF;
	RETURN NULL;
EXCEPTION WHEN OTHERS THEN
	RETURN format('%s = %s: %s', name, value, SQLERRM);
END \$\$;
-- One of the values of each: the first, or the last.
CREATE FUNCTION set_all(whose text, last bool) RETURNS text LANGUAGE sql AS \$\$
	SELECT string_agg(set_one(whose, name, values[CASE WHEN last THEN array_length(values, 1) ELSE 1 END]), E'\\n') FROM odd
\$\$;
SELECT set_one('ROLE tester IN DATABASE postgres', name, calm) FROM odd;
SQL
my $settings = ask('SELECT count(*) FROM odd');
cmp_ok($settings, '>', 150, "$settings settings");

endpoint($node, $receiver, 'all', '/flaky/a?first=1',
	"topics => '{odd.*}', filter => '\$.at > 1', backoff_base => '20 ms', backoff_max => '50 ms'");
endpoint($node, $receiver, 'dead', '/status/500/dead', "topics => '{dead.*}', max_attempts => 1");
$receiver->wait_delivered(1, id => emit($node, 'odd.calm', '{"at": 1.5}'));

# A worker starts with what is set now, and does its work.
sub goes_on
{
	my ($name) = @_;
	my $old = ask("SELECT pid FROM outbox.workers WHERE pid IS NOT NULL AND datname = 'postgres'");
	my $failures = ask('SELECT coalesce(sum(restarts), 0) FROM outbox.workers');
	ask("SELECT pg_terminate_backend($old)") if $old;
	my ($id, $later, $dead) = split /\|/, ask(
		"SELECT outbox.emit('odd.now', '{\"at\": 1.5}', key => 'k'),"
		  . " outbox.emit('odd.later', '{\"at\": 1.5}', deliver_at => clock_timestamp() + interval '100 ms'),"
		  . " outbox.emit('dead.one', '{}')");
	my $done = wait_until
	{
		ask("SELECT (SELECT count(*) = 2 AND bool_and(status = 'delivered') FROM outbox.deliveries WHERE event_id IN ('$id', '$later'))"
			  . " AND (SELECT count(*) = 1 AND bool_and(reason = 'max_attempts') FROM outbox.dead_letters WHERE event_id = '$dead')"
			  . " AND (SELECT count(*) >= 4 FROM outbox.attempts WHERE event_id IN ('$id', '$later'))") eq 't';
	}
	$name, 20;
	ok($done, "$name: delivered, tried again, moved when it was due, dead");
	my $other = ask("SELECT pid FROM outbox.workers WHERE pid IS NOT NULL AND datname = 'postgres'");
	isnt($other, $old, "$name: by a worker that started with them");
	is(ask('SELECT coalesce(sum(restarts), 0) FROM outbox.workers'), $failures, "$name: which had no error");
	return;
}

my @refused;
foreach my $whose ('DATABASE postgres', "ROLE \"$boot\"", 'ROLE ALL')
{
	foreach my $last ('false', 'true')
	{
		my $refused = ask("SELECT set_all('$whose', $last)");
		push @refused, split /\n/, $refused;
		goes_on("$whose, " . ($last eq 'true' ? 'the last' : 'the first') . ' values');
		ask("ALTER $whose RESET ALL");
	}
}
my %refused = map { /^(\S+) =/; ($1 => 1) } @refused;
note("refused by PostgreSQL: $_") foreach sort @refused;
cmp_ok(scalar(keys %refused), '<', 10, 'nearly all of them could be set');

# Those that are known to have stopped a worker, each on its own
foreach my $name (qw(role session_authorization restrict_nonsystem_relation_kind exit_on_error temp_file_limit))
{
	next unless ask("SELECT count(*) FROM odd WHERE name = '$name'");
	my $refused = ask("SELECT set_one('DATABASE postgres', name, values[1]) FROM odd WHERE name = '$name'");
	goes_on($name) unless $refused;
	ask('ALTER DATABASE postgres RESET ALL');
}

$node->stop;
done_testing();
