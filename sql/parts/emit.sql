------------------------------------------------------------------------
-- Emitting.  The permission is EXECUTE, which at first only the owner has.
------------------------------------------------------------------------

CREATE FUNCTION outbox.emit(topic text, payload jsonb,
    key text DEFAULT NULL,
    type text DEFAULT NULL,
    headers jsonb DEFAULT NULL,
    deliver_at timestamptz DEFAULT NULL,
    expires_at timestamptz DEFAULT NULL,
    dedup_key text DEFAULT NULL,
    tenant text DEFAULT NULL)
RETURNS uuid
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_emit_jsonb_1_0';
COMMENT ON FUNCTION outbox.emit(text, jsonb, text, text, jsonb, timestamptz, timestamptz, text, text) IS
'Appends an event that is delivered if this transaction commits, and returns its id';

CREATE FUNCTION outbox.emit(topic text, payload json,
    key text DEFAULT NULL,
    type text DEFAULT NULL,
    headers jsonb DEFAULT NULL,
    deliver_at timestamptz DEFAULT NULL,
    expires_at timestamptz DEFAULT NULL,
    dedup_key text DEFAULT NULL,
    tenant text DEFAULT NULL)
RETURNS uuid
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_emit_text_1_0';
COMMENT ON FUNCTION outbox.emit(text, json, text, text, jsonb, timestamptz, timestamptz, text, text) IS
'As emit(text, jsonb, ...), for a payload of type json, which is stored and sent as jsonb';

CREATE FUNCTION outbox.emit(topic text, payload text,
    key text DEFAULT NULL,
    type text DEFAULT NULL,
    headers jsonb DEFAULT NULL,
    deliver_at timestamptz DEFAULT NULL,
    expires_at timestamptz DEFAULT NULL,
    dedup_key text DEFAULT NULL,
    tenant text DEFAULT NULL)
RETURNS uuid
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_emit_text_1_0';
COMMENT ON FUNCTION outbox.emit(text, text, text, text, jsonb, timestamptz, timestamptz, text, text) IS
'As emit(text, jsonb, ...), for JSON in a text, or in an untyped literal or parameter';

CREATE FUNCTION outbox.emit_bytes(topic text, body bytea, content_type text,
    key text DEFAULT NULL,
    type text DEFAULT NULL,
    headers jsonb DEFAULT NULL,
    deliver_at timestamptz DEFAULT NULL,
    expires_at timestamptz DEFAULT NULL,
    dedup_key text DEFAULT NULL,
    tenant text DEFAULT NULL)
RETURNS uuid
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_emit_bytes_1_0';
COMMENT ON FUNCTION outbox.emit_bytes(text, bytea, text, text, text, jsonb, timestamptz, timestamptz, text, text) IS
'As emit(), for a body that is sent byte for byte with the given content type';

-- A key of any other type, without a cast.  key has no default here: a call without one is
-- for the functions above, and so is a key that is an untyped literal or parameter, because
-- PostgreSQL prefers text for these.
CREATE FUNCTION outbox.emit(topic text, payload jsonb,
    key anynonarray,
    type text DEFAULT NULL,
    headers jsonb DEFAULT NULL,
    deliver_at timestamptz DEFAULT NULL,
    expires_at timestamptz DEFAULT NULL,
    dedup_key text DEFAULT NULL,
    tenant text DEFAULT NULL)
RETURNS uuid
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_emit_jsonb_1_0';
COMMENT ON FUNCTION outbox.emit(text, jsonb, anynonarray, text, jsonb, timestamptz, timestamptz, text, text) IS
'As emit(text, jsonb, ...), for a key of another type: its text, whatever the settings of the session';

CREATE FUNCTION outbox.emit(topic text, payload json,
    key anynonarray,
    type text DEFAULT NULL,
    headers jsonb DEFAULT NULL,
    deliver_at timestamptz DEFAULT NULL,
    expires_at timestamptz DEFAULT NULL,
    dedup_key text DEFAULT NULL,
    tenant text DEFAULT NULL)
RETURNS uuid
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_emit_text_1_0';
COMMENT ON FUNCTION outbox.emit(text, json, anynonarray, text, jsonb, timestamptz, timestamptz, text, text) IS
'As emit(text, json, ...), for a key of another type: its text, whatever the settings of the session';

CREATE FUNCTION outbox.emit(topic text, payload text,
    key anynonarray,
    type text DEFAULT NULL,
    headers jsonb DEFAULT NULL,
    deliver_at timestamptz DEFAULT NULL,
    expires_at timestamptz DEFAULT NULL,
    dedup_key text DEFAULT NULL,
    tenant text DEFAULT NULL)
RETURNS uuid
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_emit_text_1_0';
COMMENT ON FUNCTION outbox.emit(text, text, anynonarray, text, jsonb, timestamptz, timestamptz, text, text) IS
'As emit(text, text, ...), for a key of another type: its text, whatever the settings of the session';

CREATE FUNCTION outbox.emit_bytes(topic text, body bytea, content_type text,
    key anynonarray,
    type text DEFAULT NULL,
    headers jsonb DEFAULT NULL,
    deliver_at timestamptz DEFAULT NULL,
    expires_at timestamptz DEFAULT NULL,
    dedup_key text DEFAULT NULL,
    tenant text DEFAULT NULL)
RETURNS uuid
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_emit_bytes_1_0';
COMMENT ON FUNCTION outbox.emit_bytes(text, bytea, text, anynonarray, text, jsonb, timestamptz, timestamptz, text, text) IS
'As emit_bytes(text, bytea, text, ...), for a key of another type: its text, whatever the settings of the session';

-- Not SECURITY DEFINER: the function needs no right to write the log.  And a cast
-- to JSON that the owner of a type wrote must not run as the owner of outbox.
CREATE FUNCTION outbox.emit_change() RETURNS trigger
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'outbox_emit_change_1_0';
COMMENT ON FUNCTION outbox.emit_change IS
'AFTER ... FOR EACH ROW trigger that emits a change of the row (topic, key column, columns to carry, tenant '
'column, fail or omit)';

-- The view that an ORM maps.  Most ORMs read back the row that they inserted, and want a key
-- of one column, no partitions, and the right to read their rows.  A row of another
-- log may have the same xid.
-- The rest of the log is not to be read.  So no condition of the reader's may be judged
-- before these, whatever it costs: nothing passes OFFSET 0.  The row is one value there,
-- so that the planner estimates nothing from statistics of its columns either.
CREATE VIEW outbox.outgoing AS
SELECT (o.event).id, (o.event).topic, (o.event).type, (o.event).key, (o.event).tenant, (o.event).expires_at,
       (o.event).headers, (o.event).payload, (o.event).body, (o.event).content_type
FROM (SELECT e AS event FROM outbox.events e
      WHERE e.xid = pg_current_xact_id_if_assigned()
      AND (e.epoch = outbox.current_epoch() OR outbox.log_xid(e.epoch, e.xid) = e.xid)
      OFFSET 0) o;
CREATE FUNCTION outbox.insert_outgoing() RETURNS trigger
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'outbox_insert_outgoing_1_0';
COMMENT ON FUNCTION outbox.insert_outgoing IS
'Trigger of outbox.outgoing: an INSERT emits, UPDATE and DELETE are refused (42501)';
CREATE TRIGGER insert_outgoing INSTEAD OF INSERT OR UPDATE OR DELETE ON outbox.outgoing
FOR EACH ROW EXECUTE FUNCTION outbox.insert_outgoing();
COMMENT ON TRIGGER insert_outgoing ON outbox.outgoing IS 'An INSERT emits';
COMMENT ON VIEW outbox.outgoing IS
'Events that this transaction has emitted, without scheduled ones; an INSERT emits. For an ORM to map';
COMMENT ON COLUMN outbox.outgoing.id IS 'id of the event (NULL or left out: a new one)';
COMMENT ON COLUMN outbox.outgoing.topic IS 'as the argument of emit';
COMMENT ON COLUMN outbox.outgoing.type IS 'as the argument of emit';
COMMENT ON COLUMN outbox.outgoing.key IS 'as the argument of emit';
COMMENT ON COLUMN outbox.outgoing.tenant IS 'as the argument of emit';
COMMENT ON COLUMN outbox.outgoing.expires_at IS 'as the argument of emit';
COMMENT ON COLUMN outbox.outgoing.headers IS 'as the argument of emit';
COMMENT ON COLUMN outbox.outgoing.payload IS 'as the argument of emit (NULL: there is a body)';
COMMENT ON COLUMN outbox.outgoing.body IS 'as the argument of emit_bytes (NULL: there is a payload)';
COMMENT ON COLUMN outbox.outgoing.content_type IS 'as the argument of emit_bytes (NULL: there is a payload)';

-- A dump brings the name to another cluster.  The oid stays the role's when it is renamed, and says nothing
-- in another cluster.
CREATE TABLE outbox.emit_topics (
    role            text COLLATE "C" PRIMARY KEY,
    role_oid        oid NOT NULL,
    topics          text[] NOT NULL,
    cluster         int8 NOT NULL
);
COMMENT ON TABLE outbox.emit_topics IS
'Roles that emit some topics only, with the patterns of outbox.grant_emit(): they bind the members of the role, too';
CREATE TRIGGER changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON outbox.emit_topics
FOR EACH STATEMENT EXECUTE FUNCTION outbox.origins_changed();
COMMENT ON TRIGGER changed ON outbox.emit_topics IS 'Sessions read it again';
ALTER TABLE outbox.emit_topics ENABLE ALWAYS TRIGGER changed;

------------------------------------------------------------------------
-- Events with a deliver_at, and deduplication keys
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
    tenant       text COLLATE "C",
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
CREATE INDEX scheduled_aside_idx ON outbox.scheduled (failed_at) WHERE failed_at IS NOT NULL;
COMMENT ON TABLE outbox.scheduled IS
'Events with a deliver_at: each enters the log, as a row of outbox.events with the same id, when it is due';
COMMENT ON COLUMN outbox.scheduled.id IS 'Event id, also in the log';
COMMENT ON COLUMN outbox.scheduled.deliver_at IS 'When the event enters the log';
COMMENT ON COLUMN outbox.scheduled.xid IS
'Transaction that emitted the event (in the log it has the worker''s)';
COMMENT ON COLUMN outbox.scheduled.epoch IS
'Origin that the event was emitted in (0: before there was one, -1: in a copy, before outbox.adopt())';
COMMENT ON COLUMN outbox.scheduled.created_at IS
'When the event was emitted (in the log: when it entered the log)';
COMMENT ON COLUMN outbox.scheduled.topic IS 'As in outbox.events';
COMMENT ON COLUMN outbox.scheduled.type IS 'As in outbox.events';
COMMENT ON COLUMN outbox.scheduled.key IS 'As in outbox.events';
COMMENT ON COLUMN outbox.scheduled.tenant IS 'As in outbox.events';
COMMENT ON COLUMN outbox.scheduled.expires_at IS 'As in outbox.events, later than deliver_at';
COMMENT ON COLUMN outbox.scheduled.headers IS 'As in outbox.events';
COMMENT ON COLUMN outbox.scheduled.payload IS 'As in outbox.events';
COMMENT ON COLUMN outbox.scheduled.body IS 'As in outbox.events';
COMMENT ON COLUMN outbox.scheduled.content_type IS 'As in outbox.events';
COMMENT ON COLUMN outbox.scheduled.dedup_key IS
'The key in outbox.dedup that stands for it, until outbox.cancel() frees it';
COMMENT ON COLUMN outbox.scheduled.failed_at IS
'When it first failed to enter the log (NULL: it did not fail)';
COMMENT ON COLUMN outbox.scheduled.retry_at IS 'When that is tried again (NULL: it did not fail)';
COMMENT ON COLUMN outbox.scheduled.error IS 'Why it failed (NULL: it did not fail)';

-- Text in an index is ordered by its bytes.  The order of a locale may change with
-- a library of the system, and stored keys are then not found.
CREATE TABLE outbox.dedup (
    topic        text COLLATE "C" NOT NULL,
    dedup_key    text COLLATE "C" NOT NULL,
    tenant       text COLLATE "C" NOT NULL DEFAULT '',
    event_id     uuid NOT NULL,
    created_at   timestamptz NOT NULL,
    PRIMARY KEY (topic, dedup_key, tenant)
);
COMMENT ON TABLE outbox.dedup IS
'Deduplication keys: they count for outbox.dedup_window and are removed some time after';
COMMENT ON COLUMN outbox.dedup.topic IS 'Topic of the event: a key counts within its topic and its tenant';
COMMENT ON COLUMN outbox.dedup.dedup_key IS 'Key that was given to emit(), 1 to 1024 bytes';
COMMENT ON COLUMN outbox.dedup.tenant IS 'Tenant of the event (empty: none)';
COMMENT ON COLUMN outbox.dedup.event_id IS 'Event that was emitted with it';
COMMENT ON COLUMN outbox.dedup.created_at IS 'When the key was first used, which is when its window begins';
