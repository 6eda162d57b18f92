/* outbox--1.0--1.1.sql: what an upgrade looks like; only the test of upgrades has this version. */
\echo Use "ALTER EXTENSION outbox UPDATE TO '1.1'" to load this file. \quit

SELECT outbox.require_library('1.1');

-- The same arguments, another contract: another symbol, and grants are kept.
CREATE OR REPLACE FUNCTION outbox.emit(topic pg_catalog.text, payload pg_catalog.jsonb,
    key pg_catalog.text DEFAULT NULL,
    type pg_catalog.text DEFAULT NULL,
    headers pg_catalog.jsonb DEFAULT NULL,
    deliver_at pg_catalog.timestamptz DEFAULT NULL,
    expires_at pg_catalog.timestamptz DEFAULT NULL,
    dedup_key pg_catalog.text DEFAULT NULL)
RETURNS pg_catalog.uuid
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_emit_jsonb_1_1';

CREATE FUNCTION outbox.emit_note(topic pg_catalog.text, note pg_catalog.text) RETURNS pg_catalog.uuid
LANGUAGE C VOLATILE STRICT
AS 'MODULE_PATHNAME', 'outbox_emit_note_1_1';
COMMENT ON FUNCTION outbox.emit_note(pg_catalog.text, pg_catalog.text) IS 'Appends an event whose body is a text';
REVOKE ALL ON FUNCTION outbox.emit_note(pg_catalog.text, pg_catalog.text) FROM PUBLIC;

-- A table that the worker writes.
ALTER TABLE outbox.parked ADD COLUMN note pg_catalog.text;

-- The worker that found itself too new looks again.
SELECT outbox.endpoints_changed();
