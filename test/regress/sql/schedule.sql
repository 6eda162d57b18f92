-- outbox.emit() heeds deliver_at and dedup_key.
SET client_min_messages = error;
CREATE EXTENSION IF NOT EXISTS outbox;
RESET client_min_messages;

-- An event that is not due yet waits outside of the log, with all that it has.
BEGIN;
SELECT outbox.emit('order.due', '{"a": 1}', key => 'k', type => 't', headers => '{"x": "y"}',
                   deliver_at => '2100-01-01 00:00:00+00', expires_at => '2100-01-02 00:00:00+00') AS id \gset
SELECT outbox.emit_bytes('order.due', '\x01', 'text/plain', deliver_at => '2100-01-01 00:00:00+00') IS NOT NULL AS emitted;
SELECT id = :'id' AS first, topic, type, key, headers, payload, body, content_type,
       deliver_at = '2100-01-01 00:00:00+00' AS deliver_at, expires_at IS NOT NULL AS expires,
       xid = pg_catalog.pg_current_xact_id() AS xid, created_at BETWEEN now() AND clock_timestamp() AS created_at
  FROM outbox.scheduled WHERE xid = pg_catalog.pg_current_xact_id() ORDER BY id;
SELECT count(*) FROM outbox.events WHERE xid = pg_catalog.pg_current_xact_id();

-- A due event goes into the log at once.
SELECT outbox.emit('order.past', '1', deliver_at => now()) IS NOT NULL AS emitted,
       outbox.emit('order.past', '2', deliver_at => '-infinity') IS NOT NULL AS emitted,
       outbox.emit('order.past', '3', deliver_at => NULL) IS NOT NULL AS emitted;
SELECT payload FROM outbox.events WHERE xid = pg_catalog.pg_current_xact_id() ORDER BY seq;

-- Taken back before it is due.
SELECT outbox.cancel(:'id');
SELECT count(*) FROM outbox.scheduled WHERE id = :'id';
ROLLBACK;
SELECT count(*) FROM outbox.scheduled WHERE topic = 'order.due';

SET TimeZone = 'UTC';
SELECT outbox.emit('t', '1', deliver_at => 'infinity');
SELECT outbox.emit('t', '1', deliver_at => '2100-01-02 00:00:00+00', expires_at => '2100-01-01 00:00:00+00');
SELECT outbox.emit('t', '1', deliver_at => '2100-01-02 00:00:00+00', expires_at => '2100-01-02 00:00:00+00');
SELECT outbox.emit('outbox.t', '1', deliver_at => '2100-01-02 00:00:00+00');

-- One key, one event, for a topic.
BEGIN;
SELECT outbox.emit('a', '1', dedup_key => 'k') AS first,
       outbox.emit('b', '1', dedup_key => 'k') AS other \gset
SELECT outbox.emit('a', '2', dedup_key => 'k') = :'first' AS same,
       outbox.emit_bytes('a', '', 'text/plain', dedup_key => 'k') = :'first' AS same,
       :'other' <> :'first' AS another;
SAVEPOINT s;
SELECT outbox.emit('a', '3', dedup_key => 'undone') AS undone \gset
SELECT outbox.emit('a', '4', dedup_key => 'undone') = :'undone' AS same;
ROLLBACK TO s;
SELECT outbox.emit('a', '5', dedup_key => 'undone') <> :'undone' AS another;
SELECT outbox.emit('a', '6', dedup_key => repeat('k', 1024)) IS NOT NULL AS emitted;
SELECT outbox.emit('a', '7', dedup_key => 'later', deliver_at => '2100-01-01 00:00:00+00') AS later \gset
SELECT outbox.emit('a', '8', dedup_key => 'later') = :'later' AS same;
SELECT topic, payload FROM outbox.events WHERE xid = pg_catalog.pg_current_xact_id() ORDER BY seq;
SELECT topic, payload FROM outbox.scheduled WHERE xid = pg_catalog.pg_current_xact_id();

-- After outbox.dedup_window the key is free again.
UPDATE outbox.dedup SET created_at = clock_timestamp() - interval '86000 s' WHERE event_id = :'first';
SELECT outbox.emit('a', '9', dedup_key => 'k') = :'first' AS same;
UPDATE outbox.dedup SET created_at = clock_timestamp() - interval '86400 s' WHERE event_id = :'first';
SELECT outbox.emit('a', '10', dedup_key => 'k') AS second \gset
SELECT :'second' <> :'first' AS another, outbox.emit('a', '11', dedup_key => 'k') = :'second' AS same;
ROLLBACK;
SELECT outbox.emit('a', '1', dedup_key => '');
SELECT outbox.emit('a', '1', dedup_key => repeat('k', 1025));

-- Neither needs a right on a table.
CREATE ROLE regress_outbox_emitter;
GRANT USAGE ON SCHEMA outbox TO regress_outbox_emitter;
GRANT EXECUTE ON FUNCTION outbox.emit(text, text, text, text, jsonb, timestamptz, timestamptz, text, text) TO regress_outbox_emitter;
BEGIN;
SET LOCAL ROLE regress_outbox_emitter;
SELECT outbox.emit('a', '1', dedup_key => 'k') = outbox.emit('a', '1', dedup_key => 'k') AS same;
SELECT outbox.emit('a', '1', deliver_at => '2100-01-01 00:00:00+00') IS NOT NULL AS emitted, current_user;
ROLLBACK;
DROP OWNED BY regress_outbox_emitter;
DROP ROLE regress_outbox_emitter;

-- Waiting: refusals.
\set VERBOSITY terse
BEGIN;
SELECT outbox.emit('a', '1', deliver_at => '2100-01-01 00:00:00+00') AS id \gset
SAVEPOINT s;
SELECT outbox.wait_for(NULL);
ROLLBACK TO s;
SELECT outbox.wait_for(:'id', '-1 s');
ROLLBACK TO s;
DO $$ BEGIN PERFORM outbox.wait_for((SELECT id FROM outbox.scheduled WHERE xid = pg_catalog.pg_current_xact_id()));
EXCEPTION WHEN active_sql_transaction THEN RAISE INFO '25001'; END $$;
ROLLBACK;
SELECT outbox.wait_for('00000000-0000-4000-8000-000000000000');
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT outbox.wait_for('00000000-0000-4000-8000-000000000000');
ROLLBACK;
SELECT outbox.send_test('no_such_endpoint');
