package OutboxTest::OddSettings;

# Odd values of all settings of PostgreSQL that a database or a role can carry: in a table, with functions
# that give them to one.

use strict;
use warnings;

use Exporter 'import';
use OutboxTest;

our @EXPORT = qw(make_odd_settings);

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

# The values of now are "calm".
sub make_odd_settings
{
	my ($node) = @_;
	return $node->safe_psql('postgres', <<"SQL");
CREATE TABLE odd (name text PRIMARY KEY, calm text, values text[]);
CREATE ROLE stranger;
CREATE SCHEMA evil;
CREATE FUNCTION evil.now() RETURNS timestamptz LANGUAGE sql AS 'SELECT ''epoch''::timestamptz';
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
SQL
}

1;
