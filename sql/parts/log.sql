------------------------------------------------------------------------
-- Stamps and checks: the values of the columns of outbox.events.
--
-- The role that inserts needs EXECUTE on functions that a DEFAULT or a CHECK
-- calls.  So PUBLIC may execute these functions, and USAGE on the schema guards
-- them.  They reveal nothing.  At worst they skip numbers and wake the worker.
------------------------------------------------------------------------

CREATE FUNCTION outbox.current_piece() RETURNS int2
LANGUAGE C VOLATILE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'outbox_column_piece_1_0';
COMMENT ON FUNCTION outbox.current_piece IS
'The piece of the log that new events go to (default of outbox.events.piece)';

CREATE FUNCTION outbox.next_seq() RETURNS int8
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_column_seq_1_0';
COMMENT ON FUNCTION outbox.next_seq IS
'Draws the next number of the log (default of outbox.events.seq) and wakes the worker at commit';

CREATE FUNCTION outbox.current_epoch() RETURNS int8
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_column_epoch_1_0';
COMMENT ON FUNCTION outbox.current_epoch IS
'The epoch of the log here: 0 before it has one, -1 in a copy before outbox.adopt()';

-- Returns the xid where the event was written in this log.  Returns 3, which is
-- before all others, where it came with a log that was adopted here and was
-- already delivered.  Returns the highest xid there is where it was written in a
-- copy that is not adopted yet.  Returns NULL where it is no part of this log.
CREATE FUNCTION outbox.log_xid(epoch int8, xid xid8) RETURNS xid8
LANGUAGE C STABLE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_log_xid_1_0';
COMMENT ON FUNCTION outbox.log_xid IS
'The xid that places an event among the snapshots of this log (NULL: it is no part of this log)';

CREATE FUNCTION outbox.new_event_id() RETURNS uuid
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_column_id_1_0';
COMMENT ON FUNCTION outbox.new_event_id IS
'A new event id: a UUID version 7 (RFC 9562), increasing within a session';

-- A topic that begins with "outbox." is allowed to a role that may truncate
-- outbox.events, because a restored dump may hold events of outbox itself.
-- outbox.max_payload_size is checked where this transaction drew seq, or draws it later
-- (0), and not for rows that a restore or a subscription brings.
CREATE FUNCTION outbox.check_event(seq int8, topic text, type text, key text, tenant text,
    headers jsonb, payload jsonb, body bytea, content_type text)
RETURNS bool
LANGUAGE C STABLE CALLED ON NULL INPUT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_check_event_1_0';
COMMENT ON FUNCTION outbox.check_event IS
'True if these columns make a valid event, otherwise an error that says why (constraint of outbox.events)';

CREATE FUNCTION outbox.fill_id() RETURNS trigger
LANGUAGE C
AS 'MODULE_PATHNAME', 'outbox_fill_id_1_0';
COMMENT ON FUNCTION outbox.fill_id IS 'Trigger of outbox.events: a new id where NULL was inserted';

------------------------------------------------------------------------
-- The log
------------------------------------------------------------------------

-- The system and database that the log belongs to.  The first row is made when
-- the log is first used and not by this script, because a restored copy brings
-- the rows of its original.  In one row adopted_by is NULL: the log belongs to the
-- system and database of that row.  Anywhere else it is a copy, and is held.
CREATE TABLE outbox.origins (
    epoch             int8 PRIMARY KEY,
    system_identifier int8 NOT NULL,
    database_oid      oid NOT NULL,
    adopted_by        int8,
    first             bool NOT NULL,
    instance_name     text NOT NULL,
    created_at        timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE outbox.origins IS 'The systems and databases that this log was written in';
COMMENT ON COLUMN outbox.origins.epoch IS 'Random number that the events written there carry';
COMMENT ON COLUMN outbox.origins.system_identifier IS 'pg_control_system().system_identifier of the cluster';
COMMENT ON COLUMN outbox.origins.database_oid IS 'pg_database.oid of the database';
COMMENT ON COLUMN outbox.origins.adopted_by IS 'Epoch of the copy that adopted this log (NULL: none did)';
COMMENT ON COLUMN outbox.origins.instance_name IS 'outbox.instance_name when the row was made';
COMMENT ON COLUMN outbox.origins.first IS 'True if no other log came before: events of epoch 0 are its own';
COMMENT ON COLUMN outbox.origins.created_at IS 'When the row was made';

-- Rows are never removed. When they are all the same, the log is held.
CREATE FUNCTION outbox.origins_changed() RETURNS trigger
LANGUAGE C AS 'MODULE_PATHNAME', 'outbox_origins_changed_1_0';
COMMENT ON FUNCTION outbox.origins_changed IS
'Trigger of outbox.origins and outbox.emit_topics: sessions and workers read them again';
CREATE TRIGGER changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON outbox.origins
FOR EACH STATEMENT EXECUTE FUNCTION outbox.origins_changed();
COMMENT ON TRIGGER changed ON outbox.origins IS 'Sessions and workers read it again';
ALTER TABLE outbox.origins ENABLE ALWAYS TRIGGER changed;

-- Not dumped.  A dump that is restored into the database that it came from, or into a
-- physical copy of it, brings snapshots of transactions of another system.
CREATE TABLE outbox.own_epochs (
    epoch int8 PRIMARY KEY
);
COMMENT ON TABLE outbox.own_epochs IS
'Epochs of the logs that were written in these tables, and not restored into them';

-- CACHE 1, because numbers that a session caches for later would be out of order.
CREATE SEQUENCE outbox.events_seq AS int8 CACHE 1;
COMMENT ON SEQUENCE outbox.events_seq IS 'Numbers the events (must keep CACHE 1)';

-- Columns of fixed width and without NULLs come first: they are cheap to reach,
-- and nothing is lost to alignment.
CREATE TABLE outbox.events (
    id           uuid NOT NULL DEFAULT outbox.new_event_id(),
    seq          int8 NOT NULL DEFAULT outbox.next_seq(),
    xid          xid8 NOT NULL DEFAULT pg_current_xact_id(),
    epoch        int8 NOT NULL DEFAULT outbox.current_epoch(),
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    piece        int2 NOT NULL DEFAULT outbox.current_piece(),
    topic        text,
    type         text,
    key          text,
    tenant       text COLLATE "C",
    expires_at   timestamptz,
    headers      jsonb,
    payload      jsonb,
    body         bytea,
    content_type text,
    PRIMARY KEY (id, piece),
    CONSTRAINT events_valid CHECK (outbox.check_event(seq, topic, type, key, tenant, headers, payload, body,
        content_type))
) PARTITION BY LIST (piece);
CREATE INDEX events_seq_idx ON outbox.events (seq);
CREATE INDEX events_xid_seq_idx ON outbox.events (xid, seq);
-- emit() writes nothing to it where there is no tenant.
CREATE INDEX events_tenant_seq_idx ON outbox.events (tenant, seq) WHERE tenant IS NOT NULL;

-- USING heap, in case default_table_access_method is another one.
CREATE TABLE outbox.events_0 PARTITION OF outbox.events FOR VALUES IN (0) USING heap;
CREATE TABLE outbox.events_1 PARTITION OF outbox.events FOR VALUES IN (1) USING heap;
CREATE TABLE outbox.events_2 PARTITION OF outbox.events FOR VALUES IN (2) USING heap;

COMMENT ON TABLE outbox.events IS
'The log: one row per event, updated by outbox.forget() only, removed a piece at a time. Writable: id, topic, type, key, '
'tenant, expires_at, headers, payload, body, content_type';
COMMENT ON TABLE outbox.events_0 IS 'A piece of the log: the pieces are used in turn';
COMMENT ON TABLE outbox.events_1 IS 'A piece of the log: the pieces are used in turn';
COMMENT ON TABLE outbox.events_2 IS 'A piece of the log: the pieces are used in turn';
COMMENT ON COLUMN outbox.events.id IS
'Event id, sent as webhook-id, unique within a piece (NULL or left out: a new UUID version 7)';
COMMENT ON COLUMN outbox.events.seq IS
'Position in the log: the order of two events only where their emits were serialised, for example by a row '
'lock';
COMMENT ON COLUMN outbox.events.xid IS 'Transaction that emitted the event';
COMMENT ON COLUMN outbox.events.epoch IS
'Origin that the event was written in (0: before there was one, -1: in a copy, before outbox.adopt())';
COMMENT ON COLUMN outbox.events.created_at IS
'When the event was emitted, by the wall clock (with a deliver_at: when it entered the log)';
COMMENT ON COLUMN outbox.events.piece IS 'Piece of the log that holds the row';
COMMENT ON COLUMN outbox.events.topic IS
'The kind of event, like order.created: segments of letters, digits, "_" and "-" joined by dots, at most 255 '
'bytes';
COMMENT ON COLUMN outbox.events.type IS 'Name of the event contract, at most 255 bytes (NULL: the topic)';
COMMENT ON COLUMN outbox.events.key IS
'Events of one key are delivered in order, at most 1024 bytes (NULL: no order)';
COMMENT ON COLUMN outbox.events.tenant IS
'Customer that the event belongs to, 1 to 255 bytes: its endpoints and the endpoints without a tenant get it '
'(NULL: none, and only endpoints without a tenant get it)';
COMMENT ON COLUMN outbox.events.expires_at IS 'Not delivered after this time (NULL: no limit)';
COMMENT ON COLUMN outbox.events.headers IS
'Headers to send along: flat object of strings, at most 8192 bytes (NULL: none)';
COMMENT ON COLUMN outbox.events.payload IS
'Payload as JSON, at most outbox.max_payload_size bytes as text and 512 objects and arrays in one another '
'(NULL: there is a body)';
COMMENT ON COLUMN outbox.events.body IS
'Bytes to send as they are, at most outbox.max_payload_size (NULL: there is a payload)';
COMMENT ON COLUMN outbox.events.content_type IS 'Media type of body (NULL: there is a payload)';

-- Some writers send NULL for a column that they do not set.  In a restore no id
-- is NULL, and the trigger does nothing.
CREATE TRIGGER fill_id BEFORE INSERT ON outbox.events
FOR EACH ROW WHEN (NEW.id IS NULL) EXECUTE FUNCTION outbox.fill_id();
COMMENT ON TRIGGER fill_id ON outbox.events IS 'A new id where NULL was inserted';

-- The transaction that asks may have written to the log.  snapshot and seq_low are
-- the end without its events, and committed is a snapshot that has them.
CREATE FUNCTION outbox.position_now(sequence oid,
    OUT snapshot pg_snapshot, OUT seq_low int8,
    OUT committed pg_snapshot) RETURNS record
LANGUAGE C VOLATILE STRICT AS 'MODULE_PATHNAME', 'outbox_position_now_1_0';
COMMENT ON FUNCTION outbox.position_now IS 'The end of the log at this moment';
