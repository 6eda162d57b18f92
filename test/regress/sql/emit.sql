-- outbox.emit(), outbox.emit_bytes() and a direct INSERT write and refuse as documented.
SET client_min_messages = error;
CREATE EXTENSION IF NOT EXISTS outbox;
RESET client_min_messages;

-- An untyped literal is no ambiguity, and neither are the types that drivers
-- and constructors bring.
BEGIN;
SELECT outbox.emit('order.created', '{"orderId": 1}', key => 'order:1') IS NOT NULL AS emitted;
SELECT outbox.emit('order.created', '{"orderId": 2}'::jsonb) IS NOT NULL AS emitted;
SELECT outbox.emit('order.created', json_build_object('orderId', 3)) IS NOT NULL AS emitted;
SELECT outbox.emit('order.created', '{"orderId": 4}'::varchar) IS NOT NULL AS emitted;
SELECT outbox.emit('order.created', to_jsonb(5), 'order:5', 'order.created.v1',
                   '{"X-Tenant": "acme"}', NULL, '2100-01-01 00:00:00+00') IS NOT NULL AS emitted;
PREPARE p AS SELECT outbox.emit($1, $2, key => $3) IS NOT NULL AS emitted;
EXECUTE p('order.created', '{"orderId": 6}', NULL);
SELECT parameter_types FROM pg_catalog.pg_prepared_statements WHERE name = 'p';
DEALLOCATE p;
SELECT outbox.emit_bytes('file.stored', '\x00ff', 'application/octet-stream') IS NOT NULL AS emitted;
SELECT outbox.emit_bytes('file.stored', '', 'text/plain', key => 'f') IS NOT NULL AS emitted;
SELECT topic, type, key, headers, payload, body, content_type, expires_at IS NOT NULL AS expires
  FROM outbox.events WHERE xid = pg_catalog.pg_current_xact_id() ORDER BY seq;

-- The stamps: the top-level transaction also in a subtransaction, numbers that
-- rise, ids of version 7 that sort as they were emitted.
SAVEPOINT s;
SELECT outbox.emit('in.savepoint', 'null') IS NOT NULL AS emitted;
RELEASE s;
SELECT count(outbox.emit('many', to_jsonb(i))) FROM generate_series(1, 3000) i;
SELECT bool_and(xid = pg_catalog.pg_current_xact_id()) AS xid,
       bool_and(seq > before) AS seq,
       bool_and(id > before_id) AS id,
       bool_and(id::text ~ '^.{14}7.{4}[89ab]') AS version,
       bool_and(created_at BETWEEN now() AND clock_timestamp()) AS created_at,
       bool_and(abs(extract(epoch FROM created_at) * 1000 -
                    ('x' || lpad(left(replace(id::text, '-', ''), 12), 16, '0'))::bit(64)::int8) < 2) AS time
  FROM (SELECT *, lag(seq, 1, 0::int8) OVER w AS before,
               lag(id, 1, '00000000-0000-0000-0000-000000000000') OVER w AS before_id
          FROM outbox.events WHERE xid = pg_catalog.pg_current_xact_id()
        WINDOW w AS (ORDER BY seq)) e;
ROLLBACK;
SELECT count(*) FROM outbox.events WHERE topic = 'many';

-- Refusals, with their hints.
DO $$
DECLARE
    statement text;
    state text;
    hint text;
    detail text;
BEGIN
    FOREACH statement IN ARRAY ARRAY[
        $s$outbox.emit(NULL, '1')$s$,
        $s$outbox.emit('', '1')$s$,
        $s$outbox.emit('order.', '1')$s$,
        $s$outbox.emit('order created', '1')$s$,
        $s$outbox.emit('order.*', '1')$s$,
        $s$outbox.emit(repeat('x', 256), '1')$s$,
        $s$outbox.emit('outbox.test', '1')$s$,
        $s$outbox.emit('t', NULL)$s$,
        $s$outbox.emit('t', NULL::jsonb)$s$,
        $s$outbox.emit('t', '{"orderId": 1')$s$,
        $s$outbox.emit('t', '')$s$,
        $s$outbox.emit('t', '"\u0000"'::json)$s$,
        $s$outbox.emit('t', repeat('[', 513) || repeat(']', 513))$s$,
        $s$outbox.emit('t', (repeat('{"a":', 513) || '1' || repeat('}', 513))::jsonb)$s$,
        $s$outbox.emit('t', repeat('[', 100000) || repeat(']', 100000))$s$,
        $s$outbox.emit('t', '1', key => '')$s$,
        $s$outbox.emit('t', '1', key => repeat('k', 1025))$s$,
        $s$outbox.emit('t', '1', tenant => '')$s$,
        $s$outbox.emit('t', '1', tenant => repeat('t', 256))$s$,
        $s$outbox.emit('t', '1', tenant => E'a\nb')$s$,
        $s$outbox.emit('t', '1', type => '')$s$,
        $s$outbox.emit('t', '1', type => repeat('t', 256))$s$,
        $s$outbox.emit('t', '1', type => E'a\r\nX-Injected: b')$s$,
        $s$outbox.emit('t', '1', headers => '[]')$s$,
        $s$outbox.emit('t', '1', headers => '"x"')$s$,
        $s$outbox.emit('t', '1', headers => '{"x": 1}')$s$,
        $s$outbox.emit('t', '1', headers => '{"x": null}')$s$,
        $s$outbox.emit('t', '1', headers => '{"x": {"y": "z"}}')$s$,
        $s$outbox.emit('t', '1', headers => '{"": "z"}')$s$,
        $s$outbox.emit('t', '1', headers => '{"x y": "z"}')$s$,
        $s$outbox.emit('t', '1', headers => '{"x": "a\r\nb"}')$s$,
        $s$outbox.emit('t', '1', headers => '{"HOST": "x"}')$s$,
        $s$outbox.emit('t', '1', headers => '{"content-type": "x"}')$s$,
        $s$outbox.emit('t', '1', headers => '{"Webhook-Id": "x"}')$s$,
        $s$outbox.emit('t', '1', headers => '{"authorization": "x"}')$s$,
        $s$outbox.emit('t', '1', headers => jsonb_build_object('x', repeat('x', 8192)))$s$,
        $s$outbox.emit('t', '1', headers => (SELECT jsonb_object_agg('x' || n, '') FROM generate_series(1, 30) n))$s$,
        $s$outbox.emit_bytes('t', NULL, 'text/plain')$s$,
        $s$outbox.emit_bytes('t', '', NULL)$s$,
        $s$outbox.emit_bytes('t', '', '')$s$,
        $s$outbox.emit_bytes('t', '', ' ')$s$,
        $s$outbox.emit_bytes('t', '', E'text/plain\n')$s$]
    LOOP
        BEGIN
            EXECUTE 'SELECT ' || statement;
            RAISE WARNING 'accepted: %', statement;
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, hint = PG_EXCEPTION_HINT,
                                    detail = PG_EXCEPTION_DETAIL;
            IF hint = '' THEN
                RAISE WARNING 'no hint: %', statement;
            END IF;
            RAISE INFO '%', concat_ws(E'\n    ', statement, state || ' ' || left(SQLERRM, 120),
                                      nullif(detail, ''), hint);
        END;
    END LOOP;
END
$$;

-- Just within the limits.
BEGIN;
SELECT outbox.emit(repeat('x', 255), '1', key => repeat('k', 1024), type => repeat('t', 255),
                   headers => jsonb_build_object('x', repeat('x', 8191))) IS NOT NULL AS emitted;

SELECT outbox.emit('t', repeat('[', 512) || repeat(']', 512)) IS NOT NULL AS emitted;
SELECT outbox.emit('t', repeat('[{"a":', 256) || '1' || repeat('}]', 256)) IS NOT NULL AS emitted;

-- The limit of the payload is on the text that is sent, inclusive.
SELECT setting::int AS max FROM pg_catalog.pg_settings WHERE name = 'outbox.max_payload_size' \gset
SELECT outbox.emit('t', to_jsonb(repeat('x', :max - 2))) IS NOT NULL AS emitted;
SELECT outbox.emit_bytes('t', convert_to(repeat('x', :max), 'UTF8'), 'text/plain') IS NOT NULL AS emitted;
SAVEPOINT s;
\set VERBOSITY sqlstate
SELECT outbox.emit('t', to_jsonb(repeat('x', :max - 1)));
ROLLBACK TO s;
SELECT outbox.emit_bytes('t', convert_to(repeat('x', :max + 1), 'UTF8'), 'text/plain');
ROLLBACK TO s;
-- A short number can be a long text.
SELECT outbox.emit('t', (SELECT jsonb_agg(1e100000) FROM generate_series(1, :max / 100000 + 1)));
ROLLBACK TO s;
INSERT INTO outbox.events (topic, payload) VALUES ('t', to_jsonb(repeat('x', :max - 1)));
ROLLBACK TO s;
INSERT INTO outbox.events (topic, payload) VALUES ('t', (repeat('[', 513) || repeat(']', 513))::jsonb);
ROLLBACK TO s;
\set VERBOSITY default
-- More than a text can hold, before the point and behind it: none of it is printed.
SELECT outbox.emit('t', '[' || repeat('1e131000,', 9000) || '-1e131000]');
ROLLBACK TO s;
SELECT outbox.emit('t', '[' || repeat('0e-16383,', 70000) || '1e-16383]');
ROLLBACK TO s;
-- As many numbers as the limit allows, and one more.
DO $$
DECLARE
    bytes int := pg_size_bytes(current_setting('outbox.max_payload_size'));
    n text;
    copies int;
BEGIN
    FOREACH n IN ARRAY ARRAY[0, 9, -9, 9999, 10000, -0.1, 0.00001, -1e252, 9e255, 1e256, -1e-63, 1e-64, 0e-64] LOOP
        copies := bytes / (length(n) + 2);
        PERFORM outbox.emit('t', '[' || repeat(n || ',', copies - 1) || n || ']');
        BEGIN
            PERFORM outbox.emit('t', '[' || repeat(n || ',', copies) || n || ']');
            RAISE WARNING 'more than % of % are accepted', copies, n;
        EXCEPTION WHEN program_limit_exceeded THEN
            NULL;
        END;
    END LOOP;
END $$;
ROLLBACK;

-- A direct INSERT is as good: the same stamps, the same checks, ids of one's own.
BEGIN;
INSERT INTO outbox.events (topic, payload) VALUES ('a', '1'), ('b', '2');
INSERT INTO outbox.events (id, topic, payload, key, type, headers, expires_at)
VALUES (NULL, 'c', '3', NULL, NULL, NULL, NULL);
INSERT INTO outbox.events (id, topic, body, content_type)
VALUES ('00000000-0000-4000-8000-000000000001', 'd', '\x01', 'text/plain') RETURNING id;
SELECT topic, id IS NOT NULL AS id, seq > 0 AS seq, xid = pg_catalog.pg_current_xact_id() AS xid,
       created_at BETWEEN now() AND clock_timestamp() AS created_at
  FROM outbox.events WHERE xid = pg_catalog.pg_current_xact_id() ORDER BY seq;
ROLLBACK;
\set VERBOSITY sqlstate
INSERT INTO outbox.events (topic, payload) VALUES (NULL, '1');
\set VERBOSITY default
INSERT INTO outbox.events (topic, payload) VALUES ('no topic', '1');
INSERT INTO outbox.events (topic) VALUES ('a');
INSERT INTO outbox.events (topic, payload, body) VALUES ('a', '1', '');
INSERT INTO outbox.events (topic, payload, content_type) VALUES ('a', '1', 'text/plain');
INSERT INTO outbox.events (topic, body) VALUES ('a', '');
INSERT INTO outbox.events (topic, payload, headers) VALUES ('a', '1', '{"Host": "x"}');

-- Privileges: EXECUTE on emit is enough, and reserved topics are the owner's.
CREATE ROLE regress_outbox_emitter;
SET ROLE regress_outbox_emitter;
SELECT outbox.emit('a', '1');
RESET ROLE;
GRANT USAGE ON SCHEMA outbox TO regress_outbox_emitter;
SET ROLE regress_outbox_emitter;
SELECT outbox.emit('a', '1');
INSERT INTO outbox.events (topic, payload) VALUES ('a', '1');
SELECT count(*) FROM outbox.events;
RESET ROLE;
GRANT EXECUTE ON FUNCTION outbox.emit(text, text, text, text, jsonb, timestamptz, timestamptz, text, text) TO regress_outbox_emitter;
GRANT INSERT (id, topic, payload, body, content_type, key, type, headers, expires_at), SELECT (id)
   ON outbox.events TO regress_outbox_emitter;
BEGIN;
SET ROLE regress_outbox_emitter;
SELECT outbox.emit('a', '1') IS NOT NULL AS emitted;
INSERT INTO outbox.events (topic, payload) VALUES ('a', '1');
INSERT INTO outbox.events (id, topic, payload) VALUES (NULL, 'a', '1') RETURNING id IS NOT NULL AS inserted;
SAVEPOINT s;
INSERT INTO outbox.events (topic, payload) VALUES ('outbox.test', '1');
ROLLBACK TO s;
INSERT INTO outbox.events (topic, payload, xid) VALUES ('a', '1', '3');
ROLLBACK TO s;
INSERT INTO outbox.events (topic, payload, seq) VALUES ('a', '1', 3);
ROLLBACK TO s;
RESET ROLE;
INSERT INTO outbox.events (topic, payload) VALUES ('outbox.test', '1');
ROLLBACK;

-- The JSON null is no header.
BEGIN;
SELECT outbox.emit('headers', '1', headers => 'null') IS NOT NULL AS emitted;
INSERT INTO outbox.events (topic, payload, headers) VALUES ('headers', '2', 'null');
SELECT payload, headers FROM outbox.outgoing ORDER BY payload;
ROLLBACK;

-- Where nothing can be written.
BEGIN READ ONLY;
SELECT outbox.emit('a', '1');
ROLLBACK;
BEGIN READ ONLY;
SELECT outbox.emit_bytes('a', '', 'text/plain');
ROLLBACK;

-- The privileges of a role for an application.
DROP OWNED BY regress_outbox_emitter;
SELECT outbox.grant_emit('regress_outbox_emitter');
\set SHOW_CONTEXT never
SELECT outbox.grant_emit('regress_outbox_no_role');
SELECT outbox.grant_emit(NULL);
\set SHOW_CONTEXT errors
SELECT * FROM outbox.purposes_granted();

-- A key that is not text.
BEGIN;
SET ROLE regress_outbox_emitter;
SELECT outbox.emit('keyed', '1', key => 42::smallint) IS NOT NULL AS emitted;
SELECT outbox.emit('keyed', '2', key => 42) IS NOT NULL AS emitted;
SELECT outbox.emit('keyed', '3'::json, key => 42::bigint) IS NOT NULL AS emitted;
SELECT outbox.emit('keyed', '4'::jsonb, -7, 'typed') IS NOT NULL AS emitted;
SELECT outbox.emit('keyed', '5', '6c84fb90-12c4-11e1-840d-7b25c5ee775a'::uuid) IS NOT NULL AS emitted;
SELECT outbox.emit('keyed', '6'::text, '42'::varchar) IS NOT NULL AS emitted;
SELECT outbox.emit('keyed', '7', '42') IS NOT NULL AS emitted;
SELECT outbox.emit('keyed', '8', NULL::bigint) IS NOT NULL AS emitted;
SELECT outbox.emit('keyed', '9', NULL) IS NOT NULL AS emitted;
SELECT outbox.emit_bytes('keyed', '', 'text/plain', 43, dedup_key => 'once') IS NOT NULL AS emitted;
SELECT outbox.emit_bytes('keyed', '', 'text/plain', '6C84FB90-12c4-11e1-840d-7b25c5ee775a'::uuid) IS NOT NULL AS emitted;
PREPARE emit_untyped AS SELECT outbox.emit($1, $2, key => $3) IS NOT NULL AS emitted;
EXECUTE emit_untyped('keyed', '10', '44');
SELECT payload, key, type, content_type FROM outbox.outgoing ORDER BY payload, key;
ROLLBACK;
SET ROLE regress_outbox_emitter;
-- PostgreSQL 19 words the hint in another way.
\set VERBOSITY terse
SELECT outbox.emit('keyed', '1', key => '{1,2}'::int[]);
\set VERBOSITY default
RESET ROLE;

-- The view for ORMs.
BEGIN;
SELECT outbox.emit('of_another_transaction', '1') IS NOT NULL AS emitted;
COMMIT;
BEGIN;
SET ROLE regress_outbox_emitter;
SELECT count(*) FROM outbox.outgoing;
INSERT INTO outbox.outgoing (id, topic, payload) VALUES ('11111111-1111-7111-8111-111111111111', 'mapped', '{"a": 1}')
RETURNING *;
INSERT INTO outbox.outgoing (id, topic, type, key, expires_at, headers, payload, body, content_type)
VALUES (DEFAULT, 'mapped', NULL, DEFAULT, NULL, NULL, '2', NULL, NULL), (NULL, 'mapped', 't', 'k', NULL, '{"a": "b"}', '3', NULL, NULL)
RETURNING id IS NOT NULL AS has_id, topic, type, key, headers, payload;
SAVEPOINT s;
INSERT INTO outbox.outgoing (topic, body, content_type) VALUES ('mapped', 'bytes', 'text/plain');
ROLLBACK TO s;
SELECT outbox.emit('called', '4') IS NOT NULL AS emitted;
SELECT outbox.emit('later', '5', deliver_at => now() + interval '1 day') IS NOT NULL AS emitted;
SELECT topic, payload FROM outbox.outgoing ORDER BY payload;
SELECT topic FROM outbox.outgoing WHERE id = '11111111-1111-7111-8111-111111111111';
SAVEPOINT s;
INSERT INTO outbox.outgoing (topic, payload) VALUES ('not a topic', '1');
ROLLBACK TO s;
INSERT INTO outbox.outgoing (topic, payload) VALUES ('outbox.test', '1');
ROLLBACK TO s;
UPDATE outbox.outgoing SET payload = '5';
ROLLBACK TO s;
DELETE FROM outbox.outgoing;
ROLLBACK TO s;
INSERT INTO outbox.outgoing (id, topic, payload) VALUES ('11111111-1111-7111-8111-111111111111', 'mapped', '1')
ON CONFLICT (id) DO NOTHING;
ROLLBACK TO s;
SELECT id FROM outbox.events;
ROLLBACK TO s;
COPY outbox.events (topic, key, payload) FROM STDIN;
copied	k	{"a": 1}
copied	k	{"a": 2}
\.
SELECT key, payload FROM outbox.outgoing WHERE topic = 'copied';
ROLLBACK;
SELECT count(*) FROM outbox.outgoing;

SELECT outbox.revoke_all('regress_outbox_emitter');
SELECT * FROM outbox.purposes_granted();
SET ROLE regress_outbox_emitter;
SELECT outbox.emit('a', '1');
RESET ROLE;
DROP OWNED BY regress_outbox_emitter;
DROP ROLE regress_outbox_emitter;

-- Another extension is found by the same backend.
BEGIN;
SET LOCAL client_min_messages = error;
SELECT outbox.emit('a', '1') IS NOT NULL AS emitted;
DROP EXTENSION outbox;
CREATE EXTENSION outbox;
SELECT outbox.emit('b', '1') IS NOT NULL AS emitted;
SELECT topic, seq FROM outbox.events;
ROLLBACK;
BEGIN;
SELECT outbox.emit('c', '1') IS NOT NULL AS emitted;
SELECT topic FROM outbox.events WHERE topic = 'c';
ROLLBACK;
