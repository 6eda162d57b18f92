-- The calls and views of an application: emit, insert, read back, roll back, and be refused.
-- follow/source_is_like_extension runs this once more with sql/source.sql in the place of the extension.
\set SHOW_CONTEXT never
SET client_min_messages = error;
SELECT to_regnamespace('outbox') IS NULL AS missing \gset
\if :missing
CREATE EXTENSION outbox;
\endif
SET TimeZone = 'UTC';
CREATE ROLE regress_outbox_app;
GRANT regress_outbox_app TO CURRENT_USER;
SELECT outbox.grant_emit('regress_outbox_app');
GRANT EXECUTE ON FUNCTION outbox.emit_change() TO regress_outbox_app;
GRANT CREATE ON SCHEMA public TO regress_outbox_app;
SET ROLE regress_outbox_app;

-- Events of this transaction, and none of the one before.
BEGIN;
SELECT outbox.emit('order.created', '{"order": 1}', key => 'customer-7') IS NOT NULL AS emitted;
SELECT outbox.emit('order.created', '{"order": 2}'::jsonb, 'customer-7', 'order.created.v1',
                   '{"X-Tenant": "acme"}', NULL, '2100-01-01') IS NOT NULL AS emitted;
SELECT outbox.emit('order.created', json_build_object('order', 3)) IS NOT NULL AS emitted;
SELECT outbox.emit('order.created', 'null') IS NOT NULL AS emitted;
SELECT outbox.emit_bytes('label.printed', '\x255044462d', 'application/pdf', key => 'label') IS NOT NULL AS emitted;
SELECT topic, type, key, expires_at, headers, payload, body, content_type FROM outbox.outgoing ORDER BY id;
ROLLBACK;

-- Keys of other types, and parameters without types.
BEGIN;
SELECT outbox.emit('key.number', '1', key => 42) IS NOT NULL AS emitted;
SELECT outbox.emit('key.number', '2'::jsonb, key => 9223372036854775807) IS NOT NULL AS emitted;
SELECT outbox.emit('key.number', '3'::json, 42::smallint) IS NOT NULL AS emitted;
SELECT outbox.emit('key.uuid', '4', key => '00000000-0000-4000-8000-000000000001'::uuid) IS NOT NULL AS emitted;
SELECT outbox.emit_bytes('key.number', '', 'text/plain', key => 42) IS NOT NULL AS emitted;
SELECT outbox.emit('key.none', '5', key => NULL) IS NOT NULL AS emitted;
SELECT outbox.emit('key.numeric', '6', key => 4.50) IS NOT NULL AS emitted;
SELECT outbox.emit('key.name', '7', key => 'a'::name), outbox.emit('key.char', '8', key => 'b '::char(3)) \g /dev/null
SELECT outbox.emit('key.bool', '9', key => true) IS NOT NULL AS emitted;
-- The text of a value does not depend on the session.
SET LOCAL DateStyle = 'SQL, DMY';
SET LOCAL TimeZone = 'Asia/Kolkata';
SELECT outbox.emit('key.date', '10', key => date '2026-01-02') IS NOT NULL AS emitted;
SELECT outbox.emit_bytes('key.time', '', 'text/plain', key => timestamptz '2026-01-02 03:04:05+00') IS NOT NULL AS emitted;
SELECT topic, key, payload FROM outbox.outgoing ORDER BY id;
PREPARE p AS SELECT outbox.emit($1, $2, key => $3) IS NOT NULL AS emitted;
EXECUTE p('order.prepared', '{"order": 4}', NULL);
SELECT parameter_types FROM pg_catalog.pg_prepared_statements WHERE name = 'p';
DEALLOCATE p;
COMMIT;
SELECT count(*) FROM outbox.outgoing;
BEGIN;
SELECT count(*) FROM outbox.outgoing;
ROLLBACK;

-- The JSON null is no header.
BEGIN;
SELECT outbox.emit('headers', '1', headers => 'null') IS NOT NULL AS emitted;
INSERT INTO outbox.outgoing (topic, payload, headers) VALUES ('headers', '2', 'null');
SELECT payload, headers FROM outbox.outgoing ORDER BY id;
ROLLBACK;

-- An id that is made before.
BEGIN;
SELECT outbox.new_event_id() AS id \gset
INSERT INTO outbox.outgoing (id, topic, payload) VALUES (:'id', 'order.kept', '1') RETURNING id = :'id' AS same, substr(id::text, 15, 1) AS version;
ROLLBACK;

-- Savepoints.
BEGIN;
SELECT outbox.emit('order.kept', '1') IS NOT NULL AS emitted;
SAVEPOINT s;
SELECT outbox.emit('order.undone', '2') IS NOT NULL AS emitted;
ROLLBACK TO s;
SELECT outbox.emit('order.kept', '3') IS NOT NULL AS emitted;
RELEASE s;
SELECT topic, payload FROM outbox.outgoing ORDER BY id;
ROLLBACK;

-- Ids: UUIDs of version 7 that rise, also within a statement.
BEGIN;
SELECT count(outbox.emit('many', to_jsonb(i))) FROM generate_series(1, 1000) i;
SELECT count(*), bool_and(id > before) AS rises, bool_and(id::text ~ '^.{14}7.{4}[89ab]') AS version,
       bool_and(abs(extract(epoch FROM now()) * 1000 -
                    ('x' || lpad(left(replace(id::text, '-', ''), 12), 16, '0'))::bit(64)::int8) < 60000) AS time
  FROM (SELECT id, lag(id, 1, '00000000-0000-0000-0000-000000000000') OVER (ORDER BY (payload #>> '{}')::int) AS before
          FROM outbox.outgoing) e;
ROLLBACK;

-- INSERT as an ORM does it, and COPY.
BEGIN;
INSERT INTO outbox.outgoing (topic, payload) VALUES ('a', '1'), ('b', '2') RETURNING topic, id IS NOT NULL AS id;
INSERT INTO outbox.outgoing (id, topic, payload, key, type, headers, expires_at, body, content_type)
VALUES (NULL, 'c', '3', NULL, NULL, NULL, NULL, NULL, NULL) RETURNING topic, payload;
INSERT INTO outbox.outgoing (id, topic, body, content_type)
VALUES ('00000000-0000-4000-8000-000000000001', 'd', '\x01', 'text/plain') RETURNING *;
COPY outbox.events (topic, payload, key) FROM stdin;
e	{"n": 1}	k
e	{"n": 2}	k
\.
SELECT topic, key, payload, body, content_type FROM outbox.outgoing ORDER BY topic, payload;
\set VERBOSITY sqlstate
SAVEPOINT s;
INSERT INTO outbox.outgoing (id, topic, payload) VALUES ('00000000-0000-4000-8000-000000000001', 'd', '1');
ROLLBACK TO s;
INSERT INTO outbox.outgoing (id, topic, payload) VALUES ('00000000-0000-4000-8000-000000000001', 'd', '1')
    ON CONFLICT (id) DO NOTHING;
\set VERBOSITY default
ROLLBACK;
INSERT INTO outbox.outgoing (topic, payload) VALUES ('no topic', '1');
INSERT INTO outbox.outgoing (topic) VALUES ('a');
INSERT INTO outbox.outgoing (topic, payload, body) VALUES ('a', '1', '');
INSERT INTO outbox.outgoing (topic, payload, content_type) VALUES ('a', '1', 'text/plain');
INSERT INTO outbox.outgoing (topic, body) VALUES ('a', '');
INSERT INTO outbox.outgoing (topic, payload, headers) VALUES ('a', '1', '{"Host": "x"}');
INSERT INTO outbox.outgoing (topic, payload, headers) VALUES ('a', '1', '{"X-Tenant": "a", "x_tenant": "b"}');
INSERT INTO outbox.outgoing (topic, payload, created_at) VALUES ('a', '1', now());
INSERT INTO outbox.events (topic, payload, xid) VALUES ('a', '1', '3');
SELECT count(payload) FROM outbox.events;
UPDATE outbox.outgoing SET topic = 'a';
DELETE FROM outbox.outgoing;

-- Once within a topic, and later.
BEGIN;
SELECT outbox.emit('order.paid', '1', dedup_key => 'payment-1') AS first \gset
SELECT outbox.emit('order.paid', '2', dedup_key => 'payment-1') = :'first' AS same;
SELECT outbox.emit('order.refunded', '3', dedup_key => 'payment-1') = :'first' AS same;
SELECT outbox.emit('order.due', '4', deliver_at => 'now') IS NOT NULL AS emitted;
SELECT topic, payload FROM outbox.outgoing WHERE topic <> 'order.later' ORDER BY id;
ROLLBACK;
SELECT outbox.emit('order.paid', '1', deliver_at => 'infinity');
SELECT outbox.emit('order.paid', '1', deliver_at => '2100-01-02', expires_at => '2100-01-01');
SELECT outbox.emit('order.paid', '1', dedup_key => '');

-- Too large.
\set VERBOSITY sqlstate
BEGIN;
SELECT outbox.emit('t', to_jsonb(repeat('x', 1048574))) IS NOT NULL AS emitted;
SELECT outbox.emit_bytes('t', convert_to(repeat('x', 1048576), 'UTF8'), 'text/plain') IS NOT NULL AS emitted;
ROLLBACK;
SELECT outbox.emit('t', to_jsonb(repeat('x', 1048575)));
SELECT outbox.emit_bytes('t', convert_to(repeat('x', 1048577), 'UTF8'), 'text/plain');
SELECT outbox.emit('t', repeat('[', 513) || repeat(']', 513));

-- Where nothing can be written.
\set VERBOSITY default
BEGIN READ ONLY;
SELECT outbox.emit('a', '1');
ROLLBACK;
BEGIN READ ONLY;
SELECT outbox.emit_bytes('a', '', 'text/plain');
ROLLBACK;

-- Rows that announce themselves, whatever the formats of the session.
SET DateStyle = 'German';
SET TimeZone = 'Asia/Tokyo';
SET IntervalStyle = 'iso_8601';
SET bytea_output = 'escape';
CREATE TABLE regress_parcel (id int PRIMARY KEY, status text, "Weight, net" numeric, at timestamptz, took interval,
                             label bytea);
CREATE TRIGGER announce AFTER INSERT OR UPDATE OR DELETE ON regress_parcel FOR EACH ROW
    EXECUTE FUNCTION outbox.emit_change('parcel', 'id');
CREATE TRIGGER announce_some AFTER INSERT OR UPDATE OR DELETE ON regress_parcel FOR EACH ROW
    EXECUTE FUNCTION outbox.emit_change('parcel.status', 'at', 'status, "Weight, net"');
BEGIN;
INSERT INTO regress_parcel VALUES (1, 'packed', 1.50, '2026-01-02 03:04:05.678+00', '1 day 2 hours', '\x00ff');
INSERT INTO regress_parcel (id) VALUES (2);
UPDATE regress_parcel SET took = NULL WHERE id = 1;
UPDATE regress_parcel SET "Weight, net" = 1.5 WHERE id = 1;
UPDATE regress_parcel SET id = 3 WHERE id = 2;
DELETE FROM regress_parcel;
SELECT topic, key, payload FROM outbox.outgoing ORDER BY id;
ROLLBACK;
CREATE TRIGGER wrong AFTER INSERT ON regress_parcel FOR EACH ROW
    EXECUTE FUNCTION outbox.emit_change('parcel', 'none');
INSERT INTO regress_parcel (id) VALUES (1);
DROP TRIGGER wrong ON regress_parcel;
CREATE TRIGGER wrong AFTER INSERT ON regress_parcel FOR EACH ROW
    EXECUTE FUNCTION outbox.emit_change('parcel');
INSERT INTO regress_parcel (id) VALUES (1);
DROP TRIGGER wrong ON regress_parcel;
CREATE TRIGGER wrong BEFORE INSERT ON regress_parcel FOR EACH ROW
    EXECUTE FUNCTION outbox.emit_change('parcel', 'id');
INSERT INTO regress_parcel (id) VALUES (1);
DROP TABLE regress_parcel;

-- A tenant, and a row that goes from one to another.
CREATE TABLE regress_invoice (id int PRIMARY KEY, total int, customer text);
CREATE TRIGGER tell AFTER INSERT OR UPDATE OR DELETE ON regress_invoice FOR EACH ROW
    EXECUTE FUNCTION outbox.emit_change('invoice', 'id', 'total', 'customer');
BEGIN;
INSERT INTO regress_invoice VALUES (1, 10, 'acme'), (2, 20, NULL), (3, 30, '');
UPDATE regress_invoice SET total = 11 WHERE id = 1;
UPDATE regress_invoice SET customer = 'globex' WHERE id = 1;
UPDATE regress_invoice SET id = 4, total = 12, customer = NULL WHERE id = 1;
UPDATE regress_invoice SET customer = '' WHERE id = 2;
DELETE FROM regress_invoice WHERE id = 4;
SELECT tenant, key, payload FROM outbox.outgoing ORDER BY id;
ROLLBACK;

-- A row that no event can carry.
ALTER TABLE regress_invoice ADD COLUMN doc json;
DROP TRIGGER tell ON regress_invoice;
CREATE TRIGGER tell AFTER INSERT OR UPDATE OR DELETE ON regress_invoice FOR EACH ROW
    EXECUTE FUNCTION outbox.emit_change('invoice', 'id', 'total,doc', '', 'leave');
INSERT INTO regress_invoice VALUES (1);
DROP TRIGGER tell ON regress_invoice;
CREATE TRIGGER tell AFTER INSERT OR UPDATE OR DELETE ON regress_invoice FOR EACH ROW
    EXECUTE FUNCTION outbox.emit_change('invoice', 'id', 'total,doc', 'customer', 'omit');
BEGIN;
INSERT INTO regress_invoice VALUES (1, 10, 'acme', '"\u0000"');
UPDATE regress_invoice SET doc = '1';
INSERT INTO regress_invoice VALUES (2, 20, NULL, to_json(repeat('x', 1048576)));
DELETE FROM regress_invoice WHERE id = 2;
SELECT tenant, key, payload FROM outbox.outgoing ORDER BY id;
ROLLBACK;
DROP TABLE regress_invoice;
SELECT outbox.emit('a', '1', tenant => '');
SELECT outbox.emit('a', '1', tenant => repeat('x', 256));
INSERT INTO outbox.outgoing (topic, payload, tenant) VALUES ('a', '1', E'a\tb');

-- A role without a grant.
RESET ROLE;
CREATE ROLE regress_outbox_other;
GRANT regress_outbox_other TO CURRENT_USER;
SET ROLE regress_outbox_other;
SELECT outbox.emit('a', '1');
RESET ROLE;
GRANT USAGE ON SCHEMA outbox TO regress_outbox_other;
SET ROLE regress_outbox_other;
SELECT outbox.emit('a', '1');
INSERT INTO outbox.outgoing (topic, payload) VALUES ('a', '1');
SELECT count(*) FROM outbox.outgoing;
RESET ROLE;
DROP OWNED BY regress_outbox_app, regress_outbox_other;
DROP ROLE regress_outbox_app, regress_outbox_other;
