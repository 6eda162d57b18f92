-- create_endpoint() and its relatives accept, refuse and show, as documented.
SET client_min_messages = error;
CREATE EXTENSION IF NOT EXISTS outbox;
RESET client_min_messages;
SELECT count(*) FROM outbox.endpoints;

-- Refusals, with their hints.  Secrets and tokens are in no message.
CREATE FUNCTION refused(statements text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    statement text;
    state text;
    hint text;
    detail text;
BEGIN
    FOREACH statement IN ARRAY statements LOOP
        BEGIN
            EXECUTE 'SELECT ' || statement;
            RAISE WARNING 'accepted: %', statement;
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, hint = PG_EXCEPTION_HINT,
                                    detail = PG_EXCEPTION_DETAIL;
            IF hint = '' THEN
                RAISE WARNING 'no hint: %', statement;
            END IF;
            RAISE INFO '%', concat_ws(E'\n    ', statement, state || ' ' || left(SQLERRM, 160),
                                      nullif(detail, ''), hint);
        END;
    END LOOP;
END
$$;

-- Names
SELECT refused(ARRAY[
    $s$outbox.create_endpoint(NULL, 'https://example.com/')$s$,
    $s$outbox.create_endpoint('', 'https://example.com/')$s$,
    $s$outbox.create_endpoint('a b', 'https://example.com/')$s$,
    $s$outbox.create_endpoint('a/b', 'https://example.com/')$s$,
    $s$outbox.create_endpoint(repeat('x', 64), 'https://example.com/')$s$]);

-- URLs
SELECT refused(ARRAY[
    $s$outbox.create_endpoint('e', NULL)$s$,
    $s$outbox.create_endpoint('e', '')$s$,
    $s$outbox.create_endpoint('e', 'example.com')$s$,
    $s$outbox.create_endpoint('e', '/hook')$s$,
    $s$outbox.create_endpoint('e', 'ftp://example.com/')$s$,
    $s$outbox.create_endpoint('e', 'file:///etc/passwd')$s$,
    $s$outbox.create_endpoint('e', 'gopher://example.com/')$s$,
    $s$outbox.create_endpoint('e', 'https:///path')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/' || repeat('x', 2048))$s$,
    $s$outbox.create_endpoint('e', 'https://')$s$,
    $s$outbox.create_endpoint('e', 'https://user:pa55@example.com/')$s$,
    $s$outbox.create_endpoint('e', 'https://user@example.com/')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com:0x/')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com:99999/')$s$,
    $s$outbox.create_endpoint('e', E'https://example.com/\r\nX: y')$s$,
    $s$outbox.create_endpoint('e', 'https://exa mple.com/')$s$,
    $s$outbox.create_endpoint('e', 'https:/x.y')$s$,
    $s$outbox.create_endpoint('e', 'https://' || repeat('x', 64) || '.example/')$s$,
    $s$outbox.create_endpoint('e', 'https://-a.example/')$s$,
    $s$outbox.create_endpoint('e', 'https://a..example/')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/<id>')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/"id"')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com\hook')$s$,
    $s$outbox.create_endpoint('e', 'https://localhost/')$s$,
    $s$outbox.create_endpoint('e', 'https://a.localhost/')$s$,
    $s$outbox.create_endpoint('e', 'http://example.com/')$s$]);

-- Literal addresses
SELECT refused(ARRAY[
    $s$outbox.create_endpoint('e', 'http://127.0.0.1/')$s$,
    $s$outbox.create_endpoint('e', 'https://127.0.0.1:8443/')$s$,
    $s$outbox.create_endpoint('e', 'https://2130706433/')$s$,
    $s$outbox.create_endpoint('e', 'https://0x7f.1/')$s$,
    $s$outbox.create_endpoint('e', 'https://0/')$s$,
    $s$outbox.create_endpoint('e', 'https://10.1.2.3/')$s$,
    $s$outbox.create_endpoint('e', 'https://172.31.255.255/')$s$,
    $s$outbox.create_endpoint('e', 'https://192.168.1.1/')$s$,
    $s$outbox.create_endpoint('e', 'https://169.254.169.254/latest/meta-data/')$s$,
    $s$outbox.create_endpoint('e', 'https://[::1]/')$s$,
    $s$outbox.create_endpoint('e', 'https://[::ffff:10.0.0.1]/')$s$,
    $s$outbox.create_endpoint('e', 'https://[fe80::1]/')$s$,
    $s$outbox.create_endpoint('e', 'https://[fd00::1]/')$s$,
    $s$outbox.create_endpoint('e', 'https://[64:ff9b::a00:1]/')$s$,
    $s$outbox.create_endpoint('e', 'https://224.0.0.1/')$s$,
    $s$outbox.create_endpoint('e', 'http://1.1.1.1/')$s$]);

-- Topics
SELECT refused(ARRAY[
    $s$outbox.create_endpoint('e', 'https://example.com/', topics => NULL)$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', topics => '{}')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', topics => '{NULL}')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', topics => '{""}')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', topics => '{order.}')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', topics => '{.order}')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', topics => '{order..paid}')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', topics => '{order.p*}')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', topics => '{order.**}')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', topics => '{order paid}')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', topics => '{order.created,order.#}')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', topics => ARRAY[repeat('x', 256)])$s$]);

-- Secrets
SELECT refused(ARRAY[
    $s$outbox.create_endpoint('e', 'https://example.com/', secret => '')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', secret => 'hunter2')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', secret => 'whsec_')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', secret => 'whsec_not base64')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', secret => 'whsec_' || encode(repeat('x', 23)::bytea, 'base64'))$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', secret => 'whsec_' || replace(encode(repeat('x', 76)::bytea, 'base64'), E'\n', ''))$s$]);

-- Headers
SELECT refused(ARRAY[
    $s$outbox.create_endpoint('e', 'https://example.com/', headers => '[]')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', headers => '"x"')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', headers => 'null')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', headers => '{"x": 1}')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', headers => '{"x": null}')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', headers => '{"x": {"y": "z"}}')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', headers => '{"x": ["y"]}')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', headers => '{"": "z"}')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', headers => '{"x y": "z"}')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', headers => '{"x": "a\r\nb"}')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', headers => '{"Host": "x"}')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', headers => '{"content-length": "1"}')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', headers => '{"Transfer-Encoding": "chunked"}')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', headers => '{"Webhook-Id": "x"}')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', headers => '{"outbox-topic": "x"}')$s$]);

-- Everything else
SELECT refused(ARRAY[
    $s$outbox.create_endpoint('e', 'https://example.com/', format => 'xml')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', ordering => 'fifo')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', on_exhausted => 'retry')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', max_in_flight => 0)$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', rate_limit => 0)$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', rate_limit => 'NaN')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', rate_limit => 'infinity')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', timeout => '0')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', timeout => '-1 s')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', timeout => '2 hours')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', connect_timeout => NULL)$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', max_attempts => 0)$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', max_age => '0')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', backoff_base => '0')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', backoff_base => '10 s', backoff_max => '9 s')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', start_at => NULL)$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', start_at => '')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', start_at => 'end')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', start_at => 'infinity')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', start_at => '-infinity')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', start_at => '9999-01-01')$s$]);
SELECT count(*) FROM outbox.endpoints;

-- Made: with the defaults, with everything, twice
SELECT outbox.create_endpoint('plain', 'https://example.com/hook?token=1', topics => '{regress.none}');
SELECT outbox.create_endpoint('full', 'https://203.0.114.7:8443/a/b', topics => '{regress.a,regress.*.b,regress.c.*}',
    format => 'raw', secret => 'whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3',
    headers => '{"Authorization": "Bearer x", "X-Tenant": "acme"}',
    ordering => 'strict', on_exhausted => 'block', max_in_flight => 1, rate_limit => 0.5,
    timeout => '1 s', connect_timeout => '500 ms', max_attempts => 7, max_age => '1 day',
    backoff_base => '100 ms', backoff_max => '100 ms', start_at => 'beginning');
SELECT outbox.create_endpoint('since', 'https://[2606:4700::1111]/', topics => '{regress.none}', start_at => '2020-01-01 00:00+00');
SELECT outbox.create_endpoint('today', 'https://example.com', topics => '{regress.none}', start_at => 'yesterday');
SELECT refused(ARRAY[$s$outbox.create_endpoint('plain', 'https://example.com/')$s$]);
SELECT outbox.create_endpoint('plain', 'https://example.org/', if_not_exists => true);
SELECT name, url, topics, format, ordering, on_exhausted, max_in_flight, rate_limit, timeout, connect_timeout,
       max_attempts, max_age, backoff_base, backoff_max, state, reason
  FROM outbox.endpoints ORDER BY name;
SELECT name, headers FROM outbox.endpoints WHERE headers IS NOT NULL;
SELECT outbox.endpoint_secret('full');
SELECT outbox.endpoint_secret('plain') ~ '^whsec_[A-Za-z0-9+/]{43}=$' AS generated;
SELECT outbox.endpoint_secret('plain') <> outbox.endpoint_secret('since') AS different;

-- A name is taken until its transaction is rolled back
BEGIN;
SELECT outbox.create_endpoint('gone', 'https://example.com/', topics => '{regress.none}');
ROLLBACK;
SELECT count(*) FROM outbox.endpoints WHERE name = 'gone';

-- Changed: only the named options. reset brings a default back
SELECT outbox.alter_endpoint('full', max_in_flight => 5, timeout => '2 s');
SELECT outbox.alter_endpoint('full', reset => '{rate_limit,headers,ordering,max_attempts,topics,format,on_exhausted,connect_timeout,max_age,backoff_base,backoff_max}');
SELECT topics, format, headers, ordering, on_exhausted, max_in_flight, rate_limit, timeout,
       connect_timeout, max_attempts, max_age, backoff_base, backoff_max
  FROM outbox.endpoints WHERE name = 'full';
SELECT outbox.alter_endpoint('full', topics => '{regress.a}', secret => 'whsec_YWJjZGVmZ2hpamtsbW5vcHFyc3R1dnd4');
SELECT outbox.alter_endpoint('full');
SELECT outbox.alter_endpoint('full', reset => NULL);
SELECT topics FROM outbox.endpoints WHERE name = 'full';
SELECT outbox.endpoint_secret('full');
SELECT refused(ARRAY[
    $s$outbox.alter_endpoint('nobody', timeout => '1 s')$s$,
    $s$outbox.alter_endpoint(NULL, timeout => '1 s')$s$,
    $s$outbox.alter_endpoint('full', reset => '{url}')$s$,
    $s$outbox.alter_endpoint('full', max_in_flight => 3, reset => '{max_in_flight}')$s$,
    $s$outbox.alter_endpoint('full', reset => '{timeout,colour}')$s$,
    $s$outbox.alter_endpoint('full', reset => '{NULL}')$s$,
    $s$outbox.alter_endpoint('full', url => 'https://user:pa55@example.com/')$s$,
    $s$outbox.alter_endpoint('full', url => 'https://10.0.0.1/')$s$,
    $s$outbox.alter_endpoint('full', topics => '{order.}')$s$,
    $s$outbox.alter_endpoint('full', headers => '{"x": 1}')$s$,
    $s$outbox.alter_endpoint('full', secret => 'hunter2')$s$,
    $s$outbox.alter_endpoint('full', max_in_flight => 0)$s$,
    $s$outbox.alter_endpoint('full', backoff_base => '2 h')$s$,
    $s$outbox.alter_endpoint('full', format => 'xml')$s$]);

-- Batches: two formats have them
SELECT refused(ARRAY[
    $s$outbox.create_endpoint('e', 'https://example.com/', batch_size => 0)$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', batch_size => 1001)$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', batch_size => NULL)$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', batch_size => 2, format => 'raw')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', batch_size => 2, format => 'cloudevents-binary')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', batch_wait => '-1 ms')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', batch_wait => '2 h')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', batch_wait => NULL)$s$]);
SELECT outbox.alter_endpoint('full', format => 'cloudevents', batch_size => 100, batch_wait => '250 ms');
SELECT refused(ARRAY[
    $s$outbox.alter_endpoint('full', format => 'raw')$s$,
    $s$outbox.alter_endpoint('full', format => 'cloudevents-binary')$s$,
    $s$outbox.alter_endpoint('full', batch_size => 0)$s$,
    $s$outbox.alter_endpoint('full', batch_wait => '-1 s')$s$]);
SELECT format, batch_size, batch_wait FROM outbox.endpoints WHERE name = 'full';
SELECT outbox.alter_endpoint('full', format => 'raw', reset => '{batch_size,batch_wait}');
SELECT refused(ARRAY[$s$outbox.alter_endpoint('full', batch_size => 2)$s$]);
SELECT format, batch_size, batch_wait FROM outbox.endpoints WHERE name = 'full';
SELECT outbox.alter_endpoint('full', reset => '{format}');

-- Paused, moved, resumed
SELECT outbox.pause_endpoint('full');
SELECT outbox.pause_endpoint('full');
SELECT name, state, reason = 'paused by ' || quote_ident(session_user) AS reason FROM outbox.endpoints WHERE name = 'full';
SELECT endpoint, state FROM outbox.stats WHERE endpoint = 'full';
SELECT outbox.seek_endpoint('full', 'now');
SELECT outbox.seek_endpoint('full', 'beginning');
SELECT outbox.seek_endpoint('full', '2020-01-01 00:00+00');
SELECT refused(ARRAY[
    $s$outbox.seek_endpoint('full', NULL)$s$,
    $s$outbox.seek_endpoint('full', 'tomorrow')$s$,
    $s$outbox.seek_endpoint('full', 'there')$s$,
    $s$outbox.seek_endpoint('nobody', 'now')$s$,
    $s$outbox.pause_endpoint('nobody')$s$,
    $s$outbox.pause_endpoint(NULL)$s$,
    $s$outbox.resume_endpoint('nobody')$s$]);
SELECT outbox.endpoint_secret('nobody') IS NULL AS no_secret;

-- To a time, in whatever form the session shows it
SELECT outbox.seek_endpoint('full', now() - interval '1 hour');
SELECT refused(ARRAY[
    $s$outbox.seek_endpoint('full', NULL::timestamptz)$s$,
    $s$outbox.seek_endpoint('full', 'infinity'::timestamptz)$s$,
    $s$outbox.seek_endpoint('full', '9999-01-01 00:00+00'::timestamptz)$s$]);
SET TimeZone = 'Asia/Kolkata';
DO $do$
DECLARE
    style text;
BEGIN
    FOREACH style IN ARRAY '{"ISO, MDY","SQL, DMY","Postgres, MDY","German, DMY"}'::text[] LOOP
        PERFORM set_config('DateStyle', style, true);
        PERFORM outbox.seek_endpoint('full', now() - interval '1 hour');
        PERFORM outbox.seek_endpoint('full', (now() - interval '1 hour')::text);
        PERFORM outbox.create_endpoint('kolkata', 'https://example.com/', start_at => (now() - interval '1 hour')::text);
        PERFORM outbox.drop_endpoint('kolkata', discard => true);
    END LOOP;
END $do$;
RESET TimeZone;

-- Dropped: not while something is undelivered.  It is paused, so nothing is sent.
SELECT outbox.emit('regress.a', '1') IS NOT NULL AS emitted;
SELECT topic, endpoint, status, attempts FROM outbox.deliveries WHERE topic LIKE 'regress.%';
SELECT refused(ARRAY[
    $s$outbox.drop_endpoint('full')$s$,
    $s$outbox.drop_endpoint('full', discard => NULL)$s$,
    $s$outbox.drop_endpoint('nobody')$s$,
    $s$outbox.drop_endpoint(NULL)$s$]);
SELECT outbox.drop_endpoint('nobody', if_exists => true);
SELECT outbox.drop_endpoint('full', discard => true);
SELECT outbox.endpoint_secret('full') IS NULL AS no_secret;
SELECT outbox.drop_endpoint(name) FROM outbox.endpoints ORDER BY name;
SELECT count(*) FROM outbox.endpoints;
SELECT count(*) FROM outbox.deliveries;

-- The views, and their sources
SELECT c.relname AS view, a.attname AS column, format_type(a.atttypid, a.atttypmod) AS type
  FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
 WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind = 'v'
   AND c.relname IN ('status', 'endpoints', 'stats', 'deliveries', 'dead_letters', 'attempts', 'workers')
 ORDER BY c.relname, a.attnum;

-- PUBLIC may do nothing
SELECT p.oid::regprocedure AS function FROM pg_proc p
 WHERE p.pronamespace = 'outbox'::regnamespace AND has_function_privilege('public', p.oid, 'EXECUTE')
 ORDER BY 1;
SELECT c.relname FROM pg_class c
 WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind IN ('r', 'v', 'p')
   AND (has_table_privilege('public', c.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, TRIGGER')
        OR has_any_column_privilege('public', c.oid, 'SELECT, INSERT, UPDATE'))
 ORDER BY 1;
SELECT has_schema_privilege('public', 'outbox', 'USAGE') AS usage;

-- Everything has a comment
SELECT p.oid::regprocedure AS function FROM pg_proc p
 WHERE p.pronamespace = 'outbox'::regnamespace AND obj_description(p.oid, 'pg_proc') IS NULL
 ORDER BY 1;
SELECT c.relname AS view FROM pg_class c
 WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind = 'v' AND obj_description(c.oid, 'pg_class') IS NULL
 ORDER BY 1;

-- Every setting has a description, and counts in a unit if it is a size or a time
SELECT name FROM pg_settings
 WHERE name LIKE 'outbox.%'
   AND (short_desc = '' OR (context NOT IN ('sighup', 'postmaster') AND name NOT IN ('outbox.actor', 'outbox.require_event_types'))
        OR (name ~ '(interval|retention|window|size)$' AND unit IS NULL))
 ORDER BY name;

-- Filters
SELECT refused(ARRAY[
    $s$outbox.create_endpoint('e', 'https://example.com/', filter => '$.items[*] ? (@.x > 1)')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', filter => '($.x > 1).type()')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', filter => '$x > 1')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', filter => '$.a[*] ? (@ > $x) == 1')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', filter => 'exists($.**)')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', filter => '$.a like_regex "x"')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', filter => '$.total > $.limit')$s$,
    $s$outbox.create_endpoint('e', 'https://example.com/', filter => '$.paid / $.total < 0.5')$s$]);
SELECT outbox.check_options(filter => '$.n % 3 == 0 && $.sum - $.list.size() < 10 && $.paid < 0.5 * $.total');
SELECT outbox.check_options(filter => '$.a == "$\"x ** **"');

-- A filter takes n steps, and not n * m
CREATE FUNCTION problem(filter text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    PERFORM outbox.check_options(filter => filter::jsonpath);
    RETURN 'accepted';
EXCEPTION WHEN invalid_parameter_value THEN
    RETURN regexp_replace(SQLERRM, '^invalid filter .*": ', '');
END $$;
SELECT f AS filter, problem(f) AS lax, problem('strict ' || f) AS strict
FROM unnest(ARRAY[
    '$.a == 1', '1 < $.a[*]', '$.a[*] starts with "x"', 'exists($.a ? (@.x == 1 && @.y > 2))', '$.a[*] ? (@ > 1) == 2',
    '$.a[last].b[0].* == null', '$.a[0 to last] == true', '$.list.size() > 1 || $.a.type() == "object"', '1 == 1', '$.a == -1',
    'exists($.a[*] ? (exists(@.b[*] ? (@.x[*] == 1)) || !(@.c == 1) || (@.d == 1) is unknown))',
    '$ == $', '$.a == $.b', '$[0].a == $[1].a', '$.a.size() == $.b.size()', '$.a ? (@ > 1) == $.b ? (@ > 1)',
    '$.a[*] == $.b', '$.a == $.b[0 to 1]', '$.* == $.b', '$.a[*] == $.b[*]', 'exists($.c ? (@.a == @.b))', 'exists($.c ? (@.a[*] == @.b))',
    '$.a + $.b > $.c', '$.a - $.b * 2 > $.c[*]', '2 * ($.a + 1) == 1', '2 * 3 * $.a == 1', '$.a * $.b == 1', '$.a * 2 % 3 == 0', '7 % $.a == 1', '$.a / 2 == 1',
    '-$.a == 1', '$.a + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1 > 0', '$.a + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1 > 0', '$.a > 1e38', '$.a > 1e131000', 'exists($.a[*] ? (@ + 1 == 2))',
    '$.a[0, 0] == 1', '$.a[$.b] == 1', '$.a[last - 1] == 1', '$.** == 1', '$.a.keyvalue().key == "b"', '$.a.abs() == 1', '$.a.double() == 1', '$.a.datetime() == "x"',
    '$.a[*] like_regex "x"', 'exists($.a[*] ? (@ like_regex "x"))', 'exists($.a[*] ? (@.x == $.b))', 'exists($.a[*] ? (exists($.b)))',
    '"a".type() == "string"', '(1).size() == 1', '($.a > 1).type() == "null"', '($.a + 1).size() == 1']) f;
DROP FUNCTION problem(text);

DROP FUNCTION refused(text[]);

-- The given values are stored, however the session writes values
SELECT outbox.create_endpoint('exact', 'https://example.com/');
DO $$
DECLARE
    style text;
    digits int;
    long interval := '1 mon -1 day +02:03:04.567891';
BEGIN
    FOREACH style IN ARRAY '{postgres,postgres_verbose,sql_standard,iso_8601}'::text[] LOOP
        FOREACH digits IN ARRAY '{-15,0,3}'::int[] LOOP
            PERFORM set_config('IntervalStyle', style, true), set_config('extra_float_digits', digits::text, true);
            PERFORM outbox.alter_endpoint('exact', max_age => long, rate_limit => 0.12345678, topics => '{"a.*",b}',
                                          filter => '$.a == "x\"y"', headers => '{"a": "b"}', reset => '{max_attempts}');
            IF NOT EXISTS (SELECT 1 FROM outbox.endpoints e
                           WHERE e.name = 'exact' AND e.max_age::text = long::text AND e.rate_limit = real '0.12345678'
                           AND e.topics = '{"a.*",b}' AND e.filter::text = ('$.a == "x\"y"'::jsonpath)::text) THEN
                RAISE EXCEPTION 'stored otherwise with % and %', style, digits;
            END IF;
            PERFORM outbox.alter_endpoint('exact', reset => '{max_age,rate_limit,topics,filter}');
        END LOOP;
    END LOOP;
END $$;
SELECT outbox.alter_endpoint('exact', config => 'null');
SELECT outbox.drop_endpoint('exact');
