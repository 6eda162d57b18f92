# A cast that the owner of a type wrote does not run as the owner of sql/source.sql.
# outbox.emit_change() runs as that owner there, because any role that changes a row emits.
use strict;
use warnings;

use OutboxTest qw(:DEFAULT !ask);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init(extra => [ '--locale=C', '--encoding=UTF8' ]);
$node->start;
$node->safe_psql('postgres', 'CREATE ROLE provided LOGIN; CREATE ROLE mallory LOGIN');
$node->safe_psql('postgres', 'CREATE DATABASE shop OWNER provided');

sub sql
{
	my ($sql, $user) = @_;
	my ($rc, $out, $err) = $node->psql('shop', $sql, extra_params => [ '-q', '-U', $user ], on_error_stop => 1);
	is($rc, 0, "$user: no error") or diag($err);
	return ($out, $err);
}

sql("\\i $top/sql/source.sql", 'provided');
sql('GRANT USAGE ON SCHEMA outbox TO mallory; GRANT EXECUTE ON FUNCTION outbox.emit_change() TO mallory', 'provided');

# Rights to make temporary objects are enough.
my (undef, $said) = sql(<<'SQL', 'mallory');
CREATE TYPE pg_temp.mood AS ENUM ('fine', 'sad');
CREATE TYPE pg_temp.span AS RANGE (subtype = int);
CREATE TYPE pg_temp.pair AS (mood pg_temp.mood, n int);
CREATE TYPE pg_temp.plain AS (n int);
CREATE DOMAIN pg_temp.count AS int;
DO $do$
DECLARE
    type text;
    target text;
BEGIN
    FOREACH type IN ARRAY '{mood,span,pair,plain}'::text[] LOOP
        FOREACH target IN ARRAY '{json,jsonb,text}'::text[] LOOP
            EXECUTE format('CREATE FUNCTION pg_temp.%s(pg_temp.%s) RETURNS %1$s LANGUAGE plpgsql AS '
                           '$$ BEGIN RAISE WARNING ''%2$s as %%'', current_user; RETURN ''"planted"''; END $$', target, type);
            EXECUTE format('CREATE CAST (pg_temp.%2$s AS %1$s) WITH FUNCTION pg_temp.%1$s(pg_temp.%2$s)', target, type);
        END LOOP;
    END LOOP;
END $do$;
CREATE TEMP TABLE goods (key pg_temp.mood, tenant pg_temp.pair, mood pg_temp.mood, moods pg_temp.mood[], span pg_temp.span,
    pair pg_temp.pair, plain pg_temp.plain, count pg_temp.count, nothing pg_temp.mood, "an ""odd"" %s" text);
CREATE TRIGGER changes AFTER INSERT OR UPDATE OR DELETE ON goods
FOR EACH ROW EXECUTE FUNCTION outbox.emit_change('goods', 'key', '*', 'tenant');
INSERT INTO goods VALUES ('fine', '(sad,1)', 'sad', '{fine,sad}', '[1,3)', '(fine,2)', '(3)', 4, NULL, 'text');
UPDATE goods SET key = 'sad', tenant = '(fine,1)';
DELETE FROM goods;
SQL
is(join(' ', sort grep { /provided/ } split /\n/, $said), '', 'no cast runs as the owner of outbox');
is($node->safe_psql('shop', q{SELECT string_agg(concat_ws(' ', payload ->> 'op', key, tenant), ', ' ORDER BY seq) FROM outbox.events}),
	'insert fine (sad,1), delete fine (sad,1), insert sad (fine,1), delete sad (fine,1)', 'key and tenant are the values');
is($node->safe_psql('shop', q{SELECT payload -> 'new' FROM outbox.events ORDER BY seq LIMIT 1}),
	$node->safe_psql('shop', q~SELECT '{"key": "fine", "tenant": "(sad,1)", "mood": "sad", "moods": "{fine,sad}", "span": "[1,3)", "pair": "(fine,2)", "plain": {"n": 3}, "count": 4, "nothing": null, "an \"odd\" %s": "text"}'::jsonb~),
	'and so are the others');

# The owner's own casts are its own affair.
(undef, $said) = sql(<<'SQL', 'provided');
CREATE TYPE pg_temp.mood AS ENUM ('fine');
CREATE FUNCTION pg_temp.as_json(pg_temp.mood) RETURNS json LANGUAGE sql RETURN '{"is": "fine"}'::json;
CREATE CAST (pg_temp.mood AS json) WITH FUNCTION pg_temp.as_json(pg_temp.mood);
CREATE TEMP TABLE goods (id bool, mood pg_temp.mood);
CREATE TRIGGER changes AFTER INSERT ON goods FOR EACH ROW EXECUTE FUNCTION outbox.emit_change('own', 'id');
INSERT INTO goods VALUES (true, 'fine');
SQL
is($node->safe_psql('shop', q{SELECT concat_ws(' ', key, payload -> 'new' -> 'mood') FROM outbox.events WHERE topic = 'own'}),
	't {"is": "fine"}', 'its key is as with the extension');
done_testing();
