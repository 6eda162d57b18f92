------------------------------------------------------------------------
-- Emitting.  EXECUTE is the permission: nobody has it but the owner.
------------------------------------------------------------------------

CREATE FUNCTION outbox.emit(topic text, payload jsonb,
    key text DEFAULT NULL,
    type text DEFAULT NULL,
    headers jsonb DEFAULT NULL,
    deliver_at timestamptz DEFAULT NULL,
    expires_at timestamptz DEFAULT NULL,
    dedup_key text DEFAULT NULL)
RETURNS uuid
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_emit_jsonb_1_0';
COMMENT ON FUNCTION outbox.emit(text, jsonb, text, text, jsonb, timestamptz, timestamptz, text) IS
'Appends an event that is delivered if this transaction commits; returns its id. topic and payload must not '
'be NULL (22004), other arguments may. deliver_at: not before this time; expires_at: not after; dedup_key: '
'emitted again with the same topic within outbox.dedup_window, nothing is emitted and the first event''s id '
'returned (concurrent emits wait for each other; 40001 when this transaction''s snapshot is older than the '
'first event). Invalid arguments: 22023; payload above outbox.max_payload_size, or more than 512 objects and '
'arrays in one another: 54000; topic that begins with "outbox.": 42939';

CREATE FUNCTION outbox.emit(topic text, payload json,
    key text DEFAULT NULL,
    type text DEFAULT NULL,
    headers jsonb DEFAULT NULL,
    deliver_at timestamptz DEFAULT NULL,
    expires_at timestamptz DEFAULT NULL,
    dedup_key text DEFAULT NULL)
RETURNS uuid
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_emit_json_1_0';
COMMENT ON FUNCTION outbox.emit(text, json, text, text, jsonb, timestamptz, timestamptz, text) IS
'As emit(text, jsonb, …), for a payload of type json; stored and sent as jsonb';

CREATE FUNCTION outbox.emit(topic text, payload text,
    key text DEFAULT NULL,
    type text DEFAULT NULL,
    headers jsonb DEFAULT NULL,
    deliver_at timestamptz DEFAULT NULL,
    expires_at timestamptz DEFAULT NULL,
    dedup_key text DEFAULT NULL)
RETURNS uuid
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_emit_text_1_0';
COMMENT ON FUNCTION outbox.emit(text, text, text, text, jsonb, timestamptz, timestamptz, text) IS
'As emit(text, jsonb, …), for a payload that is JSON in a text (not JSON: 22P02); also what an untyped '
'literal or parameter comes to';

CREATE FUNCTION outbox.emit_bytes(topic text, body bytea, content_type text,
    key text DEFAULT NULL,
    type text DEFAULT NULL,
    headers jsonb DEFAULT NULL,
    deliver_at timestamptz DEFAULT NULL,
    expires_at timestamptz DEFAULT NULL,
    dedup_key text DEFAULT NULL)
RETURNS uuid
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_emit_bytes_1_0';
COMMENT ON FUNCTION outbox.emit_bytes IS
'Appends an event whose body is sent byte for byte with the given content type, which must not be NULL; '
'otherwise as emit()';

-- Not SECURITY DEFINER: it needs no right to write the log, and a cast to JSON
-- that the owner of some type wrote must not run as the owner of outbox.
CREATE FUNCTION outbox.emit_change() RETURNS trigger
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'outbox_emit_change_1_0';
COMMENT ON FUNCTION outbox.emit_change IS
'AFTER … FOR EACH ROW trigger that emits {"op","table","new","old"}. Arguments: topic, key column (NULL or '
'empty in a row: no key), optionally the columns to carry with commas between them (default: all). An UPDATE '
'that changes none of these emits nothing. Whoever may execute this function may attach it; whoever changes '
'the table needs no right on outbox. Errors, when it first fires: 22023 wrong arguments, 42703 no such '
'column';

------------------------------------------------------------------------
-- Events that have to wait for their time, and keys that stand for an event.
------------------------------------------------------------------------

CREATE TABLE outbox.scheduled (
    id           uuid PRIMARY KEY,
    deliver_at   timestamptz NOT NULL,
    xid          xid8 NOT NULL,
    epoch        int8 NOT NULL,
    created_at   timestamptz NOT NULL,
    topic        text NOT NULL,
    type         text,
    key          text,
    expires_at   timestamptz,
    headers      jsonb,
    payload      jsonb,
    body         bytea,
    content_type text,
    dedup_key    text,
    failed_at    timestamptz,
    retry_at     timestamptz,
    error        text
);
CREATE INDEX scheduled_due_idx ON outbox.scheduled (deliver_at, id);
COMMENT ON TABLE outbox.scheduled IS
'Events that were emitted with a deliver_at: each enters the log, as a row of outbox.events with the same '
'id, when it is due';
COMMENT ON COLUMN outbox.scheduled.id IS 'Event id, also in the log';
COMMENT ON COLUMN outbox.scheduled.deliver_at IS 'When the event enters the log';
COMMENT ON COLUMN outbox.scheduled.xid IS
'Transaction that emitted the event; in the log it has that of the worker';
COMMENT ON COLUMN outbox.scheduled.epoch IS
'Origin that the event was emitted in (outbox.origins); 0: before there was one; -1: in a copy, before '
'outbox.adopt()';
COMMENT ON COLUMN outbox.scheduled.created_at IS
'When the event was emitted; in the log it is when it entered the log';
COMMENT ON COLUMN outbox.scheduled.topic IS 'As in outbox.events';
COMMENT ON COLUMN outbox.scheduled.type IS 'As in outbox.events';
COMMENT ON COLUMN outbox.scheduled.key IS 'As in outbox.events';
COMMENT ON COLUMN outbox.scheduled.expires_at IS 'As in outbox.events; later than deliver_at';
COMMENT ON COLUMN outbox.scheduled.headers IS 'As in outbox.events';
COMMENT ON COLUMN outbox.scheduled.payload IS 'As in outbox.events';
COMMENT ON COLUMN outbox.scheduled.body IS 'As in outbox.events';
COMMENT ON COLUMN outbox.scheduled.content_type IS 'As in outbox.events';
COMMENT ON COLUMN outbox.scheduled.dedup_key IS
'The key in outbox.dedup that stands for it; cancelled, it is free again';
COMMENT ON COLUMN outbox.scheduled.failed_at IS
'When the event could not enter the log for the first time; NULL: it was not tried yet';
COMMENT ON COLUMN outbox.scheduled.retry_at IS 'When that is tried again';
COMMENT ON COLUMN outbox.scheduled.error IS 'Why the event could not enter the log';

-- Text in an index is ordered by its bytes: an order of the database's locale
-- changes with the system's libraries, and what was stored is then not found.
CREATE TABLE outbox.dedup (
    topic        text COLLATE "C" NOT NULL,
    dedup_key    text COLLATE "C" NOT NULL,
    event_id     uuid NOT NULL,
    created_at   timestamptz NOT NULL,
    PRIMARY KEY (topic, dedup_key)
);
COMMENT ON TABLE outbox.dedup IS
'Deduplication keys; they count for outbox.dedup_window and are removed some time after, at most an eighth '
'of it as a rule';
COMMENT ON COLUMN outbox.dedup.topic IS 'Topic of the event; a key counts within its topic';
COMMENT ON COLUMN outbox.dedup.dedup_key IS 'Key that was given to emit(), 1 to 1024 bytes';
COMMENT ON COLUMN outbox.dedup.event_id IS 'Event that was emitted with it';
COMMENT ON COLUMN outbox.dedup.created_at IS 'When the key was first used; the window begins here';
