-- outbox.emit_change() makes an event of each row that is inserted, updated or deleted.
SET client_min_messages = error;
CREATE EXTENSION IF NOT EXISTS outbox;
RESET client_min_messages;

CREATE FUNCTION emitted() RETURNS TABLE (topic text, key text, payload jsonb)
LANGUAGE sql AS $$
    SELECT topic, key, payload FROM outbox.events
    WHERE xid = pg_catalog.pg_current_xact_id() ORDER BY seq
$$;

-- All columns: generated ones, odd names, values that are stored elsewhere; no
-- dropped ones.
CREATE TABLE orders (
    gone int,
    id int PRIMARY KEY,
    status text,
    total numeric DEFAULT 1.50,
    twice int GENERATED ALWAYS AS (id * 2) STORED,
    "Odd, ""name""" text,
    big text);
ALTER TABLE orders DROP COLUMN gone;
ALTER TABLE orders ALTER COLUMN big SET STORAGE EXTERNAL;
CREATE TRIGGER emit AFTER INSERT OR UPDATE OR DELETE ON orders
    FOR EACH ROW EXECUTE FUNCTION outbox.emit_change('order.changed', 'id');
BEGIN;
INSERT INTO orders (id, status, "Odd, ""name""") VALUES (1, 'new', 'x');
UPDATE orders SET status = 'paid', total = NULL;
UPDATE orders SET status = 'paid';
DELETE FROM orders;
SELECT * FROM emitted();
INSERT INTO orders (id, big) VALUES (2, repeat('x', 10000));
UPDATE orders SET big = repeat('x', 10000);
UPDATE orders SET status = 'big';
SELECT payload ->> 'op' AS op, length(payload #>> '{new,big}') AS new, length(payload #>> '{old,big}') AS old
  FROM emitted() WHERE key = '2';
ROLLBACK;
DROP TRIGGER emit ON orders;

-- Some columns: an UPDATE that changes none of them emits nothing.
CREATE TRIGGER emit AFTER INSERT OR UPDATE OR DELETE ON orders
    FOR EACH ROW EXECUTE FUNCTION outbox.emit_change('order.changed', 'status', 'total, "Odd, ""name""",total');
BEGIN;
INSERT INTO orders (id, status) VALUES (1, NULL), (2, ''), (3, 'k');
UPDATE orders SET status = 'changed';
UPDATE orders SET total = 2 WHERE id = 1;
UPDATE orders SET "Odd, ""name""" = 'y' WHERE id = 1;
SELECT * FROM emitted();
ROLLBACK;
DROP TRIGGER emit ON orders;

-- WHEN, COPY, ON CONFLICT, MERGE-like statements, savepoints
CREATE TRIGGER emit AFTER INSERT OR UPDATE ON orders
    FOR EACH ROW WHEN (NEW.status IS DISTINCT FROM 'draft')
    EXECUTE FUNCTION outbox.emit_change('order.changed', 'id', 'status');
BEGIN;
INSERT INTO orders (id, status) VALUES (1, 'draft'), (2, 'new');
COPY orders (id, status) FROM stdin;
3	copied
\.
INSERT INTO orders (id, status) VALUES (2, 'again'), (4, 'new')
    ON CONFLICT (id) DO UPDATE SET status = EXCLUDED.status;
SAVEPOINT s;
UPDATE orders SET status = 'undone';
ROLLBACK TO s;
SELECT * FROM emitted();
ROLLBACK;
DROP TABLE orders;

-- Partitions: the table is the one that the trigger was created on, whatever
-- the partition's columns are.
CREATE TABLE parts (id int, area text) PARTITION BY LIST (area);
CREATE TABLE parts_a (gone int, area text, id int);
ALTER TABLE parts_a DROP COLUMN gone;
ALTER TABLE parts ATTACH PARTITION parts_a FOR VALUES IN ('a');
CREATE TABLE parts_b PARTITION OF parts FOR VALUES IN ('b') PARTITION BY LIST (id);
CREATE TABLE parts_b_1 PARTITION OF parts_b DEFAULT;
CREATE TRIGGER emit AFTER INSERT OR UPDATE OR DELETE ON parts
    FOR EACH ROW EXECUTE FUNCTION outbox.emit_change('part.changed', 'id', 'area');
CREATE TRIGGER emit_too AFTER INSERT ON parts_b_1
    FOR EACH ROW EXECUTE FUNCTION outbox.emit_change('part.of_b', 'id');
BEGIN;
INSERT INTO parts VALUES (1, 'a'), (2, 'b');
UPDATE parts SET area = 'b' WHERE id = 1;
SELECT * FROM emitted();
ROLLBACK;
DROP TABLE parts;

-- A name that needs quotes, and a table whose only column is its key.
CREATE SCHEMA "Odd schema";
CREATE TABLE "Odd schema"."Odd.table" ("Id" uuid);
CREATE TRIGGER emit AFTER INSERT ON "Odd schema"."Odd.table"
    FOR EACH ROW EXECUTE FUNCTION outbox.emit_change('odd', 'Id', 'Id', '');
BEGIN;
INSERT INTO "Odd schema"."Odd.table" VALUES ('00000000-0000-4000-8000-00000000000a');
SELECT * FROM emitted();
ROLLBACK;

-- A role that changes the table needs no right, and one that attaches the trigger
-- needs EXECUTE. A cast runs as the role that changes the row.
CREATE ROLE regress_outbox_writer;
GRANT CREATE, USAGE ON SCHEMA "Odd schema" TO regress_outbox_writer;
GRANT INSERT ON "Odd schema"."Odd.table" TO regress_outbox_writer;
BEGIN;
SET LOCAL ROLE regress_outbox_writer;
CREATE TYPE "Odd schema".spy AS ENUM ('x');
CREATE FUNCTION "Odd schema".spy(s "Odd schema".spy) RETURNS json
    LANGUAGE sql AS $$ SELECT pg_catalog.to_json(current_user::text) $$;
CREATE CAST ("Odd schema".spy AS json) WITH FUNCTION "Odd schema".spy("Odd schema".spy);
CREATE TABLE "Odd schema".mine (id int, spy "Odd schema".spy);
INSERT INTO "Odd schema"."Odd.table" VALUES (NULL);
SAVEPOINT s;
CREATE TRIGGER emit AFTER INSERT ON "Odd schema".mine
    FOR EACH ROW EXECUTE FUNCTION outbox.emit_change('mine', 'id');
ROLLBACK TO s;
RESET ROLE;
GRANT USAGE ON SCHEMA outbox TO regress_outbox_writer;
GRANT EXECUTE ON FUNCTION outbox.emit_change() TO regress_outbox_writer;
SET LOCAL ROLE regress_outbox_writer;
CREATE TRIGGER emit AFTER INSERT ON "Odd schema".mine
    FOR EACH ROW EXECUTE FUNCTION outbox.emit_change('mine', 'id');
INSERT INTO "Odd schema".mine VALUES (1, 'x');
RESET ROLE;
SELECT * FROM emitted();
ROLLBACK;
DROP TABLE "Odd schema"."Odd.table";
DROP SCHEMA "Odd schema" CASCADE;
DROP ROLE regress_outbox_writer;

-- A row that no event can carry is an error, or its event does not have it.
SELECT setting::int AS max FROM pg_catalog.pg_settings WHERE name = 'outbox.max_payload_size' \gset
CREATE TABLE large (id int, tenant text, doc json);
CREATE TRIGGER emit AFTER INSERT OR UPDATE OR DELETE ON large
    FOR EACH ROW EXECUTE FUNCTION outbox.emit_change('large', 'id', '*', 'tenant', 'fail');
INSERT INTO large VALUES (1, NULL, '"\u0000"');
INSERT INTO large VALUES (1, NULL, to_json(repeat('x', :max)));
DROP TRIGGER emit ON large;
CREATE TRIGGER emit AFTER INSERT OR UPDATE OR DELETE ON large
    FOR EACH ROW EXECUTE FUNCTION outbox.emit_change('large', 'id', '*', '', 'omit');
BEGIN;
INSERT INTO large VALUES (1, NULL, '"\u0000"'), (2, 'acme', '"\ud800"'), (3, 'acme', '1');
INSERT INTO large VALUES (4, NULL, to_json(repeat('x', :max)));
INSERT INTO large VALUES (5, NULL, (repeat('[', 600) || repeat(']', 600))::json);
UPDATE large SET doc = '2' WHERE id IN (1, 3);
DELETE FROM large WHERE id IN (2, 3);
SELECT * FROM emitted();
ROLLBACK;
DROP TRIGGER emit ON large;
CREATE TRIGGER emit AFTER INSERT OR UPDATE ON large
    FOR EACH ROW EXECUTE FUNCTION outbox.emit_change('large', 'id', 'doc', 'tenant', 'omit');
BEGIN;
INSERT INTO large VALUES (1, 'acme', '"\u0000"');
UPDATE large SET tenant = 'globex';
SELECT tenant, payload FROM outbox.events WHERE xid = pg_catalog.pg_current_xact_id() ORDER BY seq;
ROLLBACK;

-- Any other error of a cast is one of the statement.
CREATE TYPE odd AS ENUM ('x');
CREATE FUNCTION odd(odd) RETURNS json LANGUAGE plpgsql AS $$ BEGIN RAISE 'no such row' USING ERRCODE = 'no_data_found'; END $$;
CREATE CAST (odd AS json) WITH FUNCTION odd(odd);
ALTER TABLE large ALTER COLUMN doc TYPE odd USING 'x';
INSERT INTO large VALUES (1, 'acme', 'x');
DROP TABLE large;
DROP TYPE odd CASCADE;

-- Errors come when it first fires.
CREATE TABLE t (id int, a text);
DO $do$
DECLARE
    arguments text;
    state text;
    hint text;
BEGIN
    FOREACH arguments IN ARRAY ARRAY[
        $s$$s$, $s$'t'$s$, $s$'t', 'id', 'a', 'b'$s$, $s$'t', 'id', 'a', 'a', 'a'$s$, $s$'t', 'id', 'a', 'a', 'omit', 'a'$s$, $s$'bad topic', 'id'$s$, $s$'outbox.t', 'id'$s$,
        $s$'t', 'ID'$s$, $s$'t', 'ctid'$s$, $s$'t', ''$s$,
        $s$'t', 'id', 'a,b'$s$, $s$'t', 'id', ''$s$, $s$'t', 'id', 'a,,id'$s$, $s$'t', 'id', 'a id'$s$]
    LOOP
        EXECUTE format('CREATE TRIGGER emit AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION outbox.emit_change(%s)', arguments);
        BEGIN
            INSERT INTO t VALUES (1, 'x');
            RAISE WARNING 'accepted: %', arguments;
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, hint = PG_EXCEPTION_HINT;
            RAISE INFO '(%): % % (%)', arguments, state, SQLERRM, CASE hint WHEN '' THEN 'no hint' ELSE 'hint' END;
        END;
        DROP TRIGGER emit ON t;
    END LOOP;
END $do$;
CREATE TRIGGER emit BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION outbox.emit_change('t', 'id');
INSERT INTO t VALUES (1, 'x');
DROP TRIGGER emit ON t;
CREATE TRIGGER emit AFTER INSERT ON t EXECUTE FUNCTION outbox.emit_change('t', 'id');
INSERT INTO t VALUES (1, 'x');
DROP TABLE t;
DROP FUNCTION emitted();
