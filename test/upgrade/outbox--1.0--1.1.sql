/* outbox--1.0--1.1.sql: what an upgrade looks like; only the test of upgrades has this version. */
\echo Use "ALTER EXTENSION outbox UPDATE TO '1.1'" to load this file. \quit

SET LOCAL search_path TO pg_catalog, pg_temp;
SELECT outbox.require_library('1.1');
CREATE TEMPORARY TABLE granted AS SELECT * FROM outbox.purposes_granted();

-- An object that every emitter needs.
CREATE FUNCTION outbox.emit(topic text, payload jsonb, key date) RETURNS uuid
LANGUAGE sql VOLATILE
RETURN outbox.emit(topic, payload, key::text);
COMMENT ON FUNCTION outbox.emit(text, jsonb, date) IS 'As emit(text, jsonb, …), for a key that is a date';
REVOKE ALL ON FUNCTION outbox.emit(text, jsonb, date) FROM PUBLIC;

-- The same arguments, another contract: another symbol, and grants are kept.
CREATE OR REPLACE FUNCTION outbox.emit(topic text, payload jsonb,
    key text DEFAULT NULL,
    type text DEFAULT NULL,
    headers jsonb DEFAULT NULL,
    deliver_at timestamptz DEFAULT NULL,
    expires_at timestamptz DEFAULT NULL,
    dedup_key text DEFAULT NULL,
    tenant text DEFAULT NULL)
RETURNS uuid
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_emit_jsonb_1_1';

CREATE FUNCTION outbox.emit_note(topic text, note text) RETURNS uuid
LANGUAGE C VOLATILE STRICT
AS 'MODULE_PATHNAME', 'outbox_emit_note_1_1';
COMMENT ON FUNCTION outbox.emit_note(text, text) IS 'Appends an event whose body is a text';
REVOKE ALL ON FUNCTION outbox.emit_note(text, text) FROM PUBLIC;

-- A table that the worker writes.
ALTER TABLE outbox.parked ADD COLUMN note text;

-- The worker that found itself too new looks again.
SELECT outbox.endpoint_changed(0);

-- Roles that had all of a purpose have its new objects, too.
SELECT outbox.grant_to(g.role, g.purpose) FROM pg_temp.granted g;
DROP TABLE pg_temp.granted;
