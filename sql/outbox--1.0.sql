/* outbox--1.0.sql: the objects of the extension; src/README.md says how they belong together. */
\echo Use "CREATE EXTENSION outbox" to load this file. \quit

-- Who owns the schema may drop what is in it, so it must not be somebody's who
-- made it beforehand; nor may anything of theirs be in it.
DO $$
DECLARE
    stranger pg_catalog.text;
BEGIN
    SELECT r.rolname INTO stranger
    FROM (SELECT n.nspowner AS owner FROM pg_catalog.pg_namespace n
          WHERE n.nspname OPERATOR(pg_catalog.=) 'outbox'
          UNION ALL
          SELECT o.refobjid
          FROM pg_catalog.pg_depend d
          JOIN pg_catalog.pg_shdepend o ON o.classid OPERATOR(pg_catalog.=) d.classid
                                       AND o.objid OPERATOR(pg_catalog.=) d.objid
          WHERE d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_namespace'::pg_catalog.regclass
          AND d.refobjid OPERATOR(pg_catalog.=) 'outbox'::pg_catalog.regnamespace
          AND o.dbid OPERATOR(pg_catalog.=) (SELECT b.oid FROM pg_catalog.pg_database b
                                             WHERE b.datname OPERATOR(pg_catalog.=) pg_catalog.current_database())
          AND o.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_authid'::pg_catalog.regclass
          AND o.deptype OPERATOR(pg_catalog.=) 'o') x
    JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) x.owner
    WHERE NOT r.rolsuper LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'schema outbox, or something in it, belongs to role "%"', stranger
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Drop the schema, or rename it: the extension makes its own.';
    END IF;
END $$;

-- Every script begins with this: the server may have loaded an earlier library.
CREATE FUNCTION outbox.require_library(version pg_catalog.text) RETURNS pg_catalog.void
LANGUAGE C VOLATILE STRICT
AS 'MODULE_PATHNAME', 'outbox_require_library_1_0';
COMMENT ON FUNCTION outbox.require_library(pg_catalog.text) IS
'Error 55000 when the server has loaded a library of outbox that is older than this version';
REVOKE ALL ON FUNCTION outbox.require_library(pg_catalog.text) FROM PUBLIC;
SELECT outbox.require_library('1.0');

------------------------------------------------------------------------
-- Stamps and checks: what the columns of outbox.events are filled with.
--
-- PostgreSQL asks the inserting user for EXECUTE on what a DEFAULT or a CHECK
-- calls, so these are PUBLIC's; USAGE on the schema guards them.  They reveal
-- nothing, and the worst that they can do is to skip numbers and ring the worker.
------------------------------------------------------------------------

CREATE FUNCTION outbox.current_piece() RETURNS pg_catalog.int2
LANGUAGE C VOLATILE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'outbox_column_piece_1_0';
COMMENT ON FUNCTION outbox.current_piece() IS
'The piece of the log that new events go to (default of outbox.events.piece)';

CREATE FUNCTION outbox.next_seq() RETURNS pg_catalog.int8
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_column_seq_1_0';
COMMENT ON FUNCTION outbox.next_seq() IS
'The next number of the log, drawn once the transaction has its id (default of outbox.events.seq); wakes the worker at commit';

CREATE FUNCTION outbox.current_epoch() RETURNS pg_catalog.int8
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_column_epoch_1_0';
COMMENT ON FUNCTION outbox.current_epoch() IS
'The epoch of the log in this system and database; 0 before it has one, -1 in a copy before outbox.adopt() (default of outbox.events.epoch)';

CREATE FUNCTION outbox.log_xid(epoch pg_catalog.int8, xid pg_catalog.xid8) RETURNS pg_catalog.xid8
LANGUAGE C STABLE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_log_xid_1_0';
COMMENT ON FUNCTION outbox.log_xid(pg_catalog.int8, pg_catalog.xid8) IS
'Where an event with this epoch and xid lies among the snapshots of this log: its xid when it was written here; 3, before all others, when it came with a log that was adopted here, and was not undelivered; the highest xid there is when it was written in a copy that was not adopted yet; NULL: it is no part of this log';

CREATE FUNCTION outbox.new_event_id() RETURNS pg_catalog.uuid
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_column_id_1_0';
COMMENT ON FUNCTION outbox.new_event_id() IS
'A new event id: UUID version 7 (RFC 9562), increasing within a session (default of outbox.events.id)';

CREATE FUNCTION outbox.check_event(seq pg_catalog.int8, topic pg_catalog.text, type pg_catalog.text, key pg_catalog.text,
    headers pg_catalog.jsonb, payload pg_catalog.jsonb, body pg_catalog.bytea, content_type pg_catalog.text)
RETURNS pg_catalog.bool
LANGUAGE C STABLE CALLED ON NULL INPUT PARALLEL RESTRICTED
AS 'MODULE_PATHNAME', 'outbox_check_event_1_0';
COMMENT ON FUNCTION outbox.check_event(pg_catalog.int8, pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.jsonb, pg_catalog.jsonb, pg_catalog.bytea, pg_catalog.text) IS
'True when these columns make a valid event, otherwise an error that says why not (constraint of outbox.events). Topics that begin with "outbox." are refused unless the current user may truncate outbox.events: a restored dump may hold events of outbox itself. outbox.max_payload_size holds where this transaction drew seq, not for rows that a restore or a subscription brings';

CREATE FUNCTION outbox.fill_id() RETURNS pg_catalog.trigger
LANGUAGE C
AS 'MODULE_PATHNAME', 'outbox_fill_id_1_0';
COMMENT ON FUNCTION outbox.fill_id() IS
'Trigger of outbox.events: a new id where NULL was inserted';
REVOKE ALL ON FUNCTION outbox.fill_id() FROM PUBLIC;

------------------------------------------------------------------------
-- The log
------------------------------------------------------------------------

-- Whose log this is.  The first row is made when the log is first used, never by
-- this script: a restored copy brings the rows of its original.  One row is not
-- adopted by another: the log belongs to the system and database that it names,
-- and everywhere else it is a copy, and held.
CREATE TABLE outbox.origins (
    epoch             pg_catalog.int8 PRIMARY KEY,
    system_identifier pg_catalog.int8 NOT NULL,
    database_oid      pg_catalog.oid NOT NULL,
    adopted_by        pg_catalog.int8,
    first             pg_catalog.bool NOT NULL,
    instance_name     pg_catalog.text NOT NULL,
    created_at        pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.now()
);
COMMENT ON TABLE outbox.origins IS 'The systems and databases that this log was written in';
COMMENT ON COLUMN outbox.origins.epoch IS 'Random number that the events written there carry';
COMMENT ON COLUMN outbox.origins.system_identifier IS 'pg_control_system().system_identifier of the cluster';
COMMENT ON COLUMN outbox.origins.database_oid IS 'pg_database.oid of the database';
COMMENT ON COLUMN outbox.origins.adopted_by IS 'Epoch of the copy that this log was adopted by; NULL: it was not';
COMMENT ON COLUMN outbox.origins.instance_name IS 'outbox.instance_name when the row was made';
COMMENT ON COLUMN outbox.origins.first IS 'No other log came before: events of epoch 0 are its own';
COMMENT ON COLUMN outbox.origins.created_at IS 'When the row was made';

-- CACHE 1: numbers that a session keeps for later would turn the order of the
-- events upside down.
CREATE SEQUENCE outbox.events_seq AS pg_catalog.int8 CACHE 1;
COMMENT ON SEQUENCE outbox.events_seq IS 'Numbers the events; must keep CACHE 1';

-- Columns of fixed width and without NULLs come first: they are cheap to reach,
-- and nothing is lost to alignment.
CREATE TABLE outbox.events (
    id           pg_catalog.uuid NOT NULL DEFAULT outbox.new_event_id(),
    seq          pg_catalog.int8 NOT NULL DEFAULT outbox.next_seq(),
    xid          pg_catalog.xid8 NOT NULL DEFAULT pg_catalog.pg_current_xact_id(),
    epoch        pg_catalog.int8 NOT NULL DEFAULT outbox.current_epoch(),
    created_at   pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    piece        pg_catalog.int2 NOT NULL DEFAULT outbox.current_piece(),
    topic        pg_catalog.text,
    type         pg_catalog.text,
    key          pg_catalog.text,
    expires_at   pg_catalog.timestamptz,
    headers      pg_catalog.jsonb,
    payload      pg_catalog.jsonb,
    body         pg_catalog.bytea,
    content_type pg_catalog.text,
    PRIMARY KEY (id, piece),
    CONSTRAINT events_valid CHECK (outbox.check_event(seq, topic, type, key, headers, payload, body, content_type))
) PARTITION BY LIST (piece);
CREATE INDEX events_seq_idx ON outbox.events (seq);
CREATE INDEX events_xid_seq_idx ON outbox.events (xid, seq);

-- USING heap whatever default_table_access_method says.
CREATE TABLE outbox.events_0 PARTITION OF outbox.events FOR VALUES IN (0) USING heap;
CREATE TABLE outbox.events_1 PARTITION OF outbox.events FOR VALUES IN (1) USING heap;
CREATE TABLE outbox.events_2 PARTITION OF outbox.events FOR VALUES IN (2) USING heap;

COMMENT ON TABLE outbox.events IS
'The log: one row per event, never updated, dropped a piece at a time. A writer may name id, topic, type, key, expires_at, headers and payload (or body and content_type); all else is the log''s own';
COMMENT ON TABLE outbox.events_0 IS 'A piece of the log; the pieces are used in turn';
COMMENT ON TABLE outbox.events_1 IS 'A piece of the log; the pieces are used in turn';
COMMENT ON TABLE outbox.events_2 IS 'A piece of the log; the pieces are used in turn';
COMMENT ON COLUMN outbox.events.id IS 'Event id, sent as webhook-id; unique within a piece; NULL or left out: a new UUID version 7';
COMMENT ON COLUMN outbox.events.seq IS 'Position in the log; the order of two events only where their emits were serialised, for example by a row lock';
COMMENT ON COLUMN outbox.events.xid IS 'Transaction that emitted the event';
COMMENT ON COLUMN outbox.events.epoch IS 'Origin that the event was written in (outbox.origins); 0: before there was one; -1: in a copy, before outbox.adopt()';
COMMENT ON COLUMN outbox.events.created_at IS 'When the event was emitted (wall clock, not start of the transaction); with a deliver_at, when it entered the log';
COMMENT ON COLUMN outbox.events.piece IS 'Piece of the log that holds the row';
COMMENT ON COLUMN outbox.events.topic IS 'What happened, like order.created: segments of letters, digits, "_" and "-" joined by dots, at most 255 bytes';
COMMENT ON COLUMN outbox.events.type IS 'Name of the event contract, at most 255 bytes; NULL: the topic';
COMMENT ON COLUMN outbox.events.key IS 'Events of one key are delivered in order, at most 1024 bytes; NULL: no order';
COMMENT ON COLUMN outbox.events.expires_at IS 'Not delivered after this time; NULL: no limit';
COMMENT ON COLUMN outbox.events.headers IS 'Headers to send along: flat object of strings, at most 8192 bytes; NULL: none';
COMMENT ON COLUMN outbox.events.payload IS 'Payload as JSON, at most outbox.max_payload_size bytes as text and 512 objects and arrays in one another; NULL: there is a body';
COMMENT ON COLUMN outbox.events.body IS 'Bytes to send as they are, at most outbox.max_payload_size; NULL: there is a payload';
COMMENT ON COLUMN outbox.events.content_type IS 'Media type of body; NULL: there is a payload';

-- Some writers send NULL for a column that they do not set.  In a restore no id
-- is NULL, and the trigger does nothing.
CREATE TRIGGER fill_id BEFORE INSERT ON outbox.events
FOR EACH ROW WHEN (NEW.id IS NULL) EXECUTE FUNCTION outbox.fill_id();
COMMENT ON TRIGGER fill_id ON outbox.events IS 'A new id where NULL was inserted';

------------------------------------------------------------------------
-- Emitting.  EXECUTE is the permission: nobody has it but the owner.
------------------------------------------------------------------------

CREATE FUNCTION outbox.emit(topic pg_catalog.text, payload pg_catalog.jsonb,
    key pg_catalog.text DEFAULT NULL,
    type pg_catalog.text DEFAULT NULL,
    headers pg_catalog.jsonb DEFAULT NULL,
    deliver_at pg_catalog.timestamptz DEFAULT NULL,
    expires_at pg_catalog.timestamptz DEFAULT NULL,
    dedup_key pg_catalog.text DEFAULT NULL)
RETURNS pg_catalog.uuid
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_emit_jsonb_1_0';
COMMENT ON FUNCTION outbox.emit(pg_catalog.text, pg_catalog.jsonb, pg_catalog.text, pg_catalog.text, pg_catalog.jsonb, pg_catalog.timestamptz, pg_catalog.timestamptz, pg_catalog.text) IS
'Appends an event that is delivered if this transaction commits; returns its id. topic and payload must not be NULL (22004), other arguments may. deliver_at: not before this time; expires_at: not after; dedup_key: emitted again with the same topic within outbox.dedup_window, nothing is emitted and the first event''s id returned (concurrent emits wait for each other; 40001 when this transaction''s snapshot is older than the first event). Invalid arguments: 22023; payload above outbox.max_payload_size, or more than 512 objects and arrays in one another: 54000; topic that begins with "outbox.": 42939';

CREATE FUNCTION outbox.emit(topic pg_catalog.text, payload pg_catalog.json,
    key pg_catalog.text DEFAULT NULL,
    type pg_catalog.text DEFAULT NULL,
    headers pg_catalog.jsonb DEFAULT NULL,
    deliver_at pg_catalog.timestamptz DEFAULT NULL,
    expires_at pg_catalog.timestamptz DEFAULT NULL,
    dedup_key pg_catalog.text DEFAULT NULL)
RETURNS pg_catalog.uuid
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_emit_json_1_0';
COMMENT ON FUNCTION outbox.emit(pg_catalog.text, pg_catalog.json, pg_catalog.text, pg_catalog.text, pg_catalog.jsonb, pg_catalog.timestamptz, pg_catalog.timestamptz, pg_catalog.text) IS
'As emit(text, jsonb, …), for a payload of type json; stored and sent as jsonb';

CREATE FUNCTION outbox.emit(topic pg_catalog.text, payload pg_catalog.text,
    key pg_catalog.text DEFAULT NULL,
    type pg_catalog.text DEFAULT NULL,
    headers pg_catalog.jsonb DEFAULT NULL,
    deliver_at pg_catalog.timestamptz DEFAULT NULL,
    expires_at pg_catalog.timestamptz DEFAULT NULL,
    dedup_key pg_catalog.text DEFAULT NULL)
RETURNS pg_catalog.uuid
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_emit_text_1_0';
COMMENT ON FUNCTION outbox.emit(pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.jsonb, pg_catalog.timestamptz, pg_catalog.timestamptz, pg_catalog.text) IS
'As emit(text, jsonb, …), for a payload that is JSON in a text (not JSON: 22P02); also what an untyped literal or parameter comes to';

CREATE FUNCTION outbox.emit_bytes(topic pg_catalog.text, body pg_catalog.bytea, content_type pg_catalog.text,
    key pg_catalog.text DEFAULT NULL,
    type pg_catalog.text DEFAULT NULL,
    headers pg_catalog.jsonb DEFAULT NULL,
    deliver_at pg_catalog.timestamptz DEFAULT NULL,
    expires_at pg_catalog.timestamptz DEFAULT NULL,
    dedup_key pg_catalog.text DEFAULT NULL)
RETURNS pg_catalog.uuid
LANGUAGE C VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_emit_bytes_1_0';
COMMENT ON FUNCTION outbox.emit_bytes(pg_catalog.text, pg_catalog.bytea, pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.jsonb, pg_catalog.timestamptz, pg_catalog.timestamptz, pg_catalog.text) IS
'Appends an event whose body is sent byte for byte with the given content type, which must not be NULL; otherwise as emit()';

REVOKE ALL ON FUNCTION
    outbox.emit(pg_catalog.text, pg_catalog.jsonb, pg_catalog.text, pg_catalog.text, pg_catalog.jsonb, pg_catalog.timestamptz, pg_catalog.timestamptz, pg_catalog.text),
    outbox.emit(pg_catalog.text, pg_catalog.json, pg_catalog.text, pg_catalog.text, pg_catalog.jsonb, pg_catalog.timestamptz, pg_catalog.timestamptz, pg_catalog.text),
    outbox.emit(pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.jsonb, pg_catalog.timestamptz, pg_catalog.timestamptz, pg_catalog.text),
    outbox.emit_bytes(pg_catalog.text, pg_catalog.bytea, pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.jsonb, pg_catalog.timestamptz, pg_catalog.timestamptz, pg_catalog.text)
FROM PUBLIC;

-- Not SECURITY DEFINER: it needs no right to write the log, and a cast to JSON
-- that the owner of some type wrote must not run as the owner of outbox.
CREATE FUNCTION outbox.emit_change() RETURNS pg_catalog.trigger
LANGUAGE C VOLATILE
AS 'MODULE_PATHNAME', 'outbox_emit_change_1_0';
COMMENT ON FUNCTION outbox.emit_change() IS
'AFTER … FOR EACH ROW trigger that emits {"op","table","new","old"}. Arguments: topic, key column (NULL or empty in a row: no key), optionally the columns to carry with commas between them (default: all). An UPDATE that changes none of these emits nothing. Whoever may execute this function may attach it; whoever changes the table needs no right on outbox. Errors, when it first fires: 22023 wrong arguments, 42703 no such column';

------------------------------------------------------------------------
-- Events that have to wait for their time, and keys that stand for an event.
------------------------------------------------------------------------

CREATE TABLE outbox.scheduled (
    id           pg_catalog.uuid PRIMARY KEY,
    deliver_at   pg_catalog.timestamptz NOT NULL,
    xid          pg_catalog.xid8 NOT NULL,
    epoch        pg_catalog.int8 NOT NULL,
    created_at   pg_catalog.timestamptz NOT NULL,
    topic        pg_catalog.text NOT NULL,
    type         pg_catalog.text,
    key          pg_catalog.text,
    expires_at   pg_catalog.timestamptz,
    headers      pg_catalog.jsonb,
    payload      pg_catalog.jsonb,
    body         pg_catalog.bytea,
    content_type pg_catalog.text,
    dedup_key    pg_catalog.text,
    failed_at    pg_catalog.timestamptz,
    retry_at     pg_catalog.timestamptz,
    error        pg_catalog.text
);
CREATE INDEX scheduled_due_idx ON outbox.scheduled (deliver_at, id);
COMMENT ON TABLE outbox.scheduled IS
'Events that were emitted with a deliver_at: each enters the log, as a row of outbox.events with the same id, when it is due';
COMMENT ON COLUMN outbox.scheduled.id IS 'Event id, also in the log';
COMMENT ON COLUMN outbox.scheduled.deliver_at IS 'When the event enters the log';
COMMENT ON COLUMN outbox.scheduled.xid IS 'Transaction that emitted the event; in the log it has that of the worker';
COMMENT ON COLUMN outbox.scheduled.epoch IS 'Origin that the event was emitted in (outbox.origins); 0: before there was one; -1: in a copy, before outbox.adopt()';
COMMENT ON COLUMN outbox.scheduled.created_at IS 'When the event was emitted; in the log it is when it entered the log';
COMMENT ON COLUMN outbox.scheduled.topic IS 'As in outbox.events';
COMMENT ON COLUMN outbox.scheduled.type IS 'As in outbox.events';
COMMENT ON COLUMN outbox.scheduled.key IS 'As in outbox.events';
COMMENT ON COLUMN outbox.scheduled.expires_at IS 'As in outbox.events; later than deliver_at';
COMMENT ON COLUMN outbox.scheduled.headers IS 'As in outbox.events';
COMMENT ON COLUMN outbox.scheduled.payload IS 'As in outbox.events';
COMMENT ON COLUMN outbox.scheduled.body IS 'As in outbox.events';
COMMENT ON COLUMN outbox.scheduled.content_type IS 'As in outbox.events';
COMMENT ON COLUMN outbox.scheduled.dedup_key IS 'The key in outbox.dedup that stands for it; cancelled, it is free again';
COMMENT ON COLUMN outbox.scheduled.failed_at IS 'When the event could not enter the log for the first time; NULL: it was not tried yet';
COMMENT ON COLUMN outbox.scheduled.retry_at IS 'When that is tried again';
COMMENT ON COLUMN outbox.scheduled.error IS 'Why the event could not enter the log';

-- Text in an index is ordered by its bytes: an order of the database's locale
-- changes with the system's libraries, and what was stored is then not found.
CREATE TABLE outbox.dedup (
    topic        pg_catalog.text COLLATE "C" NOT NULL,
    dedup_key    pg_catalog.text COLLATE "C" NOT NULL,
    event_id     pg_catalog.uuid NOT NULL,
    created_at   pg_catalog.timestamptz NOT NULL,
    PRIMARY KEY (topic, dedup_key)
);
COMMENT ON TABLE outbox.dedup IS
'Deduplication keys; they count for outbox.dedup_window and are removed some time after, at most an eighth of it as a rule';
COMMENT ON COLUMN outbox.dedup.topic IS 'Topic of the event; a key counts within its topic';
COMMENT ON COLUMN outbox.dedup.dedup_key IS 'Key that was given to emit(), 1 to 1024 bytes';
COMMENT ON COLUMN outbox.dedup.event_id IS 'Event that was emitted with it';
COMMENT ON COLUMN outbox.dedup.created_at IS 'When the key was first used; the window begins here';

------------------------------------------------------------------------
-- The launcher and its workers
------------------------------------------------------------------------

CREATE FUNCTION outbox.preloaded() RETURNS pg_catalog.bool
    AS 'MODULE_PATHNAME', 'outbox_preloaded_1_0'
    LANGUAGE C VOLATILE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION outbox.preloaded() IS
    'Whether outbox is in shared_preload_libraries: without it events are kept, but nothing delivers them.';
REVOKE ALL ON FUNCTION outbox.preloaded() FROM PUBLIC;

CREATE FUNCTION outbox.wake_launcher() RETURNS pg_catalog.void
    AS 'MODULE_PATHNAME', 'outbox_wake_launcher_1_0'
    LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;
COMMENT ON FUNCTION outbox.wake_launcher() IS
    'Makes sure, when this transaction commits, that this database has a worker, without waiting out the delay after a failure. Warns when outbox is not preloaded.';
REVOKE ALL ON FUNCTION outbox.wake_launcher() FROM PUBLIC;

CREATE FUNCTION outbox.worker_slots(
    OUT dboid pg_catalog.oid,
    OUT worker pg_catalog.int4,
    OUT pid pg_catalog.int4,
    OUT state pg_catalog.text,
    OUT reason pg_catalog.text,
    OUT started_at pg_catalog.timestamptz,
    OUT restarts pg_catalog.int8,
    OUT last_loop_at pg_catalog.timestamptz,
    OUT endpoints pg_catalog.int8,
    OUT in_flight pg_catalog.int8,
    OUT delivered pg_catalog.int8,
    OUT unmatched pg_catalog.int8,
    OUT memory pg_catalog.int8)
    RETURNS SETOF pg_catalog.record
    AS 'MODULE_PATHNAME', 'outbox_worker_status_1_0'
    LANGUAGE C VOLATILE STRICT PARALLEL SAFE ROWS 10;
COMMENT ON FUNCTION outbox.worker_slots() IS
    'One row for each worker that a database of the server has or should have; for one that may get one, and for the one that asks, at least one row. state: no_worker, starting, running, disabled, held or version_mismatch; reason: why it is not running, NULL when there is nothing to say; pid and started_at are NULL without a process; restarts: after errors, since the server started; unmatched: of the database; memory: bytes of events, bodies and answers, at present; the other numbers since the worker started. No rows when outbox is not preloaded.';
REVOKE ALL ON FUNCTION outbox.worker_slots() FROM PUBLIC;

CREATE FUNCTION outbox.step_holds(
    OUT worker pg_catalog.int4,
    OUT step pg_catalog.text,
    OUT endpoint_id pg_catalog.int4,
    OUT reason pg_catalog.text,
    OUT sqlstate pg_catalog.text,
    OUT last_error pg_catalog.text,
    OUT failures pg_catalog.int8,
    OUT since pg_catalog.timestamptz,
    OUT next_try_at pg_catalog.timestamptz)
    RETURNS SETOF pg_catalog.record
    AS 'MODULE_PATHNAME', 'outbox_step_holds_1_0'
    LANGUAGE C VOLATILE STRICT PARALLEL SAFE ROWS 5;
COMMENT ON FUNCTION outbox.step_holds() IS
    'One row for each step of a worker of this database that failed and is on hold, as outbox.held_steps shows it. No rows when outbox is not preloaded.';
REVOKE ALL ON FUNCTION outbox.step_holds() FROM PUBLIC;

------------------------------------------------------------------------
-- Endpoints: what users set. Written by the functions below; the worker only
-- ever writes the state, when a receiver asks to be disabled.
------------------------------------------------------------------------

CREATE TABLE outbox.endpoint_settings (
    endpoint_id     pg_catalog.int4 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name            pg_catalog.text COLLATE "C" NOT NULL UNIQUE,
    url             pg_catalog.text NOT NULL,
    topics          pg_catalog.text[] NOT NULL,
    filter          pg_catalog.jsonpath,
    format          pg_catalog.text NOT NULL,
    headers         pg_catalog.jsonb,
    ordering        pg_catalog.text NOT NULL,
    on_exhausted    pg_catalog.text NOT NULL,
    max_in_flight   pg_catalog.int4 NOT NULL,
    rate_limit      pg_catalog.float4,
    timeout         pg_catalog.interval NOT NULL,
    connect_timeout pg_catalog.interval NOT NULL,
    max_attempts    pg_catalog.int4,
    max_age         pg_catalog.interval NOT NULL,
    backoff_base    pg_catalog.interval NOT NULL,
    backoff_max     pg_catalog.interval NOT NULL,
    batch_size      pg_catalog.int4 NOT NULL,
    batch_wait      pg_catalog.interval NOT NULL,
    state           pg_catalog.text NOT NULL DEFAULT 'active',   -- active, paused, disabled
    state_since     pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.now(),
    reason          pg_catalog.text,
    created_at      pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.now(),
    -- raised when topics or url change: the worker notes from which place in
    -- the log the new subscription holds
    version         pg_catalog.int8 NOT NULL DEFAULT 1,
    -- where it begins; raised with each seek
    generation      pg_catalog.int8 NOT NULL DEFAULT 1,
    start_snapshot  pg_catalog.pg_snapshot NOT NULL,
    start_seq_low   pg_catalog.int8 NOT NULL
);

-- In a table of their own, not part of a dump, and behind row-level security,
-- so that only those read it who may do everything with it: the owner, and a
-- worker that is another role. Not pg_read_all_data: it may not truncate.
CREATE TABLE outbox.endpoint_secrets (
    endpoint_id     pg_catalog.int4 PRIMARY KEY,
    secret          pg_catalog.text NOT NULL,
    previous        pg_catalog.text,
    previous_until  pg_catalog.timestamptz
);
ALTER TABLE outbox.endpoint_secrets ENABLE ROW LEVEL SECURITY;
CREATE POLICY worker ON outbox.endpoint_secrets
USING (pg_catalog.has_table_privilege('outbox.endpoint_secrets', 'TRUNCATE'));
-- Statistics are samples of the column, and pg_statistic is a table that
-- pg_read_all_data reads.
ALTER TABLE outbox.endpoint_secrets ALTER COLUMN secret SET STATISTICS 0;
ALTER TABLE outbox.endpoint_secrets ALTER COLUMN previous SET STATISTICS 0;
ALTER TABLE outbox.endpoint_settings ALTER COLUMN url SET STATISTICS 0;
ALTER TABLE outbox.endpoint_settings ALTER COLUMN headers SET STATISTICS 0;

-- Which topics an endpoint was subscribed to at which place in the log: an
-- event is judged by the highest version that begins before it.
CREATE TABLE outbox.subscriptions (
    endpoint_id     pg_catalog.int4 NOT NULL,
    version         pg_catalog.int8 NOT NULL,
    topics          pg_catalog.text[] NOT NULL,
    filter          pg_catalog.jsonpath,
    done            pg_catalog.pg_snapshot NOT NULL,
    under           pg_catalog.pg_snapshot,
    last_seq        pg_catalog.int8 NOT NULL,
    PRIMARY KEY (endpoint_id, version)
);

------------------------------------------------------------------------
-- How far each endpoint has read. Appended, never updated: the highest number
-- counts. Two tables in turn; a worker writes what counts to the other one and
-- truncates the full one. A shared position is written by the process that made
-- it and by no other: whoever follows it when that ends, stands where it stood.
------------------------------------------------------------------------

CREATE TABLE outbox.positions (
    piece           pg_catalog.int2 NOT NULL,
    number          pg_catalog.int8 NOT NULL,
    endpoint_id     pg_catalog.int4 NOT NULL,   -- below 0: one that the idle endpoints of a worker share
    shared          pg_catalog.int4,            -- the one that this endpoint shares
    generation      pg_catalog.int8 NOT NULL,
    done_tick       pg_catalog.int8 NOT NULL,
    done            pg_catalog.pg_snapshot NOT NULL,
    done_seq_low    pg_catalog.int8 NOT NULL,
    under_tick      pg_catalog.int8,
    under           pg_catalog.pg_snapshot,
    under_seq_low   pg_catalog.int8,
    under_seq_high  pg_catalog.int8,
    last_seq        pg_catalog.int8 NOT NULL,
    pending         pg_catalog.int8[],          -- before the position, and not yet settled
    delivered       pg_catalog.int8 NOT NULL,
    failed_attempts pg_catalog.int8 NOT NULL,
    settled_at      pg_catalog.timestamptz NOT NULL,
    PRIMARY KEY (endpoint_id, number, piece)
) PARTITION BY LIST (piece);
CREATE TABLE outbox.positions_0 PARTITION OF outbox.positions FOR VALUES IN (0);
CREATE TABLE outbox.positions_1 PARTITION OF outbox.positions FOR VALUES IN (1);

-- Moments in the log, about one a second while events flow: turns a time into
-- a place.
CREATE TABLE outbox.ticks (
    piece           pg_catalog.int2 NOT NULL,
    tick            pg_catalog.int8 NOT NULL,
    taken_at        pg_catalog.timestamptz NOT NULL,
    snapshot        pg_catalog.pg_snapshot NOT NULL,
    seq_low         pg_catalog.int8 NOT NULL,
    seq_high        pg_catalog.int8 NOT NULL,
    PRIMARY KEY (tick, piece)
) PARTITION BY LIST (piece);
CREATE TABLE outbox.ticks_0 PARTITION OF outbox.ticks FOR VALUES IN (0);
CREATE TABLE outbox.ticks_1 PARTITION OF outbox.ticks FOR VALUES IN (1);
CREATE TABLE outbox.ticks_2 PARTITION OF outbox.ticks FOR VALUES IN (2);

------------------------------------------------------------------------
-- Exceptions: deliveries that are neither before nor behind a position.
------------------------------------------------------------------------

CREATE TABLE outbox.parked (
    endpoint_id     pg_catalog.int4 NOT NULL,
    seq             pg_catalog.int8 NOT NULL,
    event_id        pg_catalog.uuid NOT NULL,
    key             pg_catalog.text COLLATE "C",
    status          pg_catalog.text NOT NULL,   -- retrying, blocked, dead, cancelled
    reason          pg_catalog.text,
    attempts        pg_catalog.int4 NOT NULL,
    first_attempt_at pg_catalog.timestamptz,
    next_attempt_at pg_catalog.timestamptz,
    last_status_code pg_catalog.int4,
    last_error      pg_catalog.text,
    parked_at       pg_catalog.timestamptz NOT NULL,
    redelivery      pg_catalog.int2 NOT NULL DEFAULT 0, -- asked for by hand: 1 retry, 2 replay
    batch           pg_catalog.int8,            -- deliveries of the same number are tried again together
    PRIMARY KEY (endpoint_id, seq)
);
CREATE INDEX parked_seq_idx ON outbox.parked (seq, endpoint_id);
CREATE INDEX parked_followers_idx ON outbox.parked (endpoint_id, key, seq)
    WHERE status OPERATOR(pg_catalog.=) 'blocked';
-- The worker holds a bounded part of this table in memory, and looks the rest up.
CREATE INDEX parked_due_idx ON outbox.parked (endpoint_id, next_attempt_at, seq)
    WHERE status OPERATOR(pg_catalog.=) 'retrying';
CREATE INDEX parked_heads_idx ON outbox.parked (endpoint_id, key, seq)
    WHERE status OPERATOR(pg_catalog.=) 'retrying';
CREATE INDEX parked_blockers_idx ON outbox.parked (endpoint_id, key)
    WHERE status OPERATOR(pg_catalog.=) 'dead'
    AND reason OPERATOR(pg_catalog.=) ANY (ARRAY['max_attempts', 'max_age', 'aborted by receiver']);
CREATE INDEX parked_cancelled_idx ON outbox.parked (endpoint_id, seq)
    WHERE status OPERATOR(pg_catalog.=) 'cancelled';

-- What operators ask for, one row per delivery. The worker alone changes
-- outbox.parked: nobody's open transaction can make it wait.
CREATE TABLE outbox.commands (
    command_id      pg_catalog.int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    endpoint_id     pg_catalog.int4 NOT NULL,
    action          pg_catalog.text NOT NULL,   -- retry, discard, cancel, due
    seq             pg_catalog.int8 NOT NULL,
    failed_at       pg_catalog.timestamptz,     -- it was an error, and is tried again
    retry_at        pg_catalog.timestamptz,
    error           pg_catalog.text
);

-- Parts of the log that are read again for one endpoint, and how far that is.
CREATE TABLE outbox.replays (
    replay_id       pg_catalog.int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    endpoint_id     pg_catalog.int4 NOT NULL,
    topics          pg_catalog.text[],
    from_time       pg_catalog.timestamptz NOT NULL,
    to_time         pg_catalog.timestamptz NOT NULL,
    done            pg_catalog.pg_snapshot NOT NULL,
    done_seq_low    pg_catalog.int8 NOT NULL,
    under           pg_catalog.bool NOT NULL DEFAULT false,
    last_seq        pg_catalog.int8 NOT NULL DEFAULT 0,
    target          pg_catalog.pg_snapshot NOT NULL,
    target_seq_low  pg_catalog.int8 NOT NULL,
    target_seq_high pg_catalog.int8 NOT NULL,
    events          pg_catalog.int8 NOT NULL DEFAULT 0,
    started_at      pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.now(),
    finished_at     pg_catalog.timestamptz
);

-- Events that outlive their piece of the log because a parked delivery needs
-- them. They are copied while the log still has them: such a row counts for
-- nothing until its piece is emptied.
CREATE TABLE outbox.kept_events (
    seq         pg_catalog.int8 NOT NULL,
    xid         pg_catalog.xid8 NOT NULL,
    epoch       pg_catalog.int8 NOT NULL,
    id          pg_catalog.uuid NOT NULL,
    created_at  pg_catalog.timestamptz NOT NULL,
    expires_at  pg_catalog.timestamptz,
    topic       pg_catalog.text NOT NULL,
    type        pg_catalog.text,
    key         pg_catalog.text,
    headers     pg_catalog.jsonb,
    payload     pg_catalog.jsonb,
    body        pg_catalog.bytea,
    content_type pg_catalog.text,
    PRIMARY KEY (seq, epoch)
);
CREATE INDEX kept_events_id_idx ON outbox.kept_events (id);

------------------------------------------------------------------------
-- Attempts: appended in batches, three tables in turn.
------------------------------------------------------------------------

CREATE TABLE outbox.attempt_log (
    seq             pg_catalog.int8 NOT NULL,
    started_at      pg_catalog.timestamptz NOT NULL,
    event_id        pg_catalog.uuid NOT NULL,
    endpoint_id     pg_catalog.int4 NOT NULL,
    attempt         pg_catalog.int4 NOT NULL,
    duration_ms     pg_catalog.float4 NOT NULL,
    status_code     pg_catalog.int2,
    piece           pg_catalog.int2 NOT NULL,
    error           pg_catalog.text,
    response_body   pg_catalog.text,
    -- numbers start over when an event is sent once more
    PRIMARY KEY (seq, endpoint_id, attempt, started_at, piece)
) PARTITION BY LIST (piece);
CREATE TABLE outbox.attempt_log_0 PARTITION OF outbox.attempt_log FOR VALUES IN (0);
CREATE TABLE outbox.attempt_log_1 PARTITION OF outbox.attempt_log FOR VALUES IN (1);
CREATE TABLE outbox.attempt_log_2 PARTITION OF outbox.attempt_log FOR VALUES IN (2);

-- Which pieces are in use, and since when.
CREATE TABLE outbox.pieces (
    log         pg_catalog.text COLLATE "C" PRIMARY KEY,    -- events, attempts
    piece       pg_catalog.int2 NOT NULL,
    since       pg_catalog.timestamptz NOT NULL
);
INSERT INTO outbox.pieces VALUES
    ('events', 0, pg_catalog.now()),
    ('attempts', 0, pg_catalog.now());

------------------------------------------------------------------------
-- Checks and helpers of the functions below
------------------------------------------------------------------------

CREATE FUNCTION outbox.check_url(url pg_catalog.text) RETURNS pg_catalog.void
LANGUAGE C VOLATILE STRICT AS 'MODULE_PATHNAME', 'outbox_check_url_1_0';
CREATE FUNCTION outbox.check_topics(topics pg_catalog.text[]) RETURNS pg_catalog.void
LANGUAGE C IMMUTABLE STRICT AS 'MODULE_PATHNAME', 'outbox_check_topics_1_0';
CREATE FUNCTION outbox.check_filter(filter pg_catalog.jsonpath) RETURNS pg_catalog.void
LANGUAGE C IMMUTABLE STRICT AS 'MODULE_PATHNAME', 'outbox_check_filter_1_0';
CREATE FUNCTION outbox.filter_matches(payload pg_catalog.jsonb, filter pg_catalog.jsonpath) RETURNS pg_catalog.bool
LANGUAGE C STABLE CALLED ON NULL INPUT AS 'MODULE_PATHNAME', 'outbox_filter_matches_1_0';
CREATE FUNCTION outbox.check_secret(secret pg_catalog.text) RETURNS pg_catalog.void
LANGUAGE C IMMUTABLE STRICT AS 'MODULE_PATHNAME', 'outbox_check_secret_1_0';
CREATE FUNCTION outbox.check_headers(headers pg_catalog.jsonb) RETURNS pg_catalog.void
LANGUAGE C IMMUTABLE STRICT AS 'MODULE_PATHNAME', 'outbox_check_headers_1_0';
CREATE FUNCTION outbox.new_secret() RETURNS pg_catalog.text
LANGUAGE C VOLATILE AS 'MODULE_PATHNAME', 'outbox_new_secret_1_0';
-- With outbox.secret_key_file secrets are sealed before they are stored: the
-- values of headers, what a URL has behind its host, and what signs.
CREATE FUNCTION outbox.seal(endpoint_id pg_catalog.int4, field pg_catalog.text, value pg_catalog.text) RETURNS pg_catalog.text
LANGUAGE C VOLATILE STRICT AS 'MODULE_PATHNAME', 'outbox_seal_1_0';
CREATE FUNCTION outbox.seal(endpoint_id pg_catalog.int4, headers pg_catalog.jsonb) RETURNS pg_catalog.jsonb
LANGUAGE C VOLATILE STRICT AS 'MODULE_PATHNAME', 'outbox_seal_headers_1_0';
CREATE FUNCTION outbox.unseal(endpoint_id pg_catalog.int4, field pg_catalog.text, value pg_catalog.text) RETURNS pg_catalog.text
LANGUAGE C STABLE STRICT AS 'MODULE_PATHNAME', 'outbox_unseal_1_0';
CREATE FUNCTION outbox.reseal(endpoint_id pg_catalog.int4, field pg_catalog.text, value pg_catalog.text) RETURNS pg_catalog.text
LANGUAGE C VOLATILE STRICT AS 'MODULE_PATHNAME', 'outbox_reseal_1_0';
CREATE FUNCTION outbox.reseal(endpoint_id pg_catalog.int4, headers pg_catalog.jsonb) RETURNS pg_catalog.jsonb
LANGUAGE C VOLATILE STRICT AS 'MODULE_PATHNAME', 'outbox_reseal_headers_1_0';
CREATE FUNCTION outbox.shown(endpoint_id pg_catalog.int4, url pg_catalog.text) RETURNS pg_catalog.text
LANGUAGE C STABLE STRICT AS 'MODULE_PATHNAME', 'outbox_shown_url_1_0';
CREATE FUNCTION outbox.shown(endpoint_id pg_catalog.int4, headers pg_catalog.jsonb) RETURNS pg_catalog.jsonb
LANGUAGE C STABLE STRICT AS 'MODULE_PATHNAME', 'outbox_shown_headers_1_0';
CREATE FUNCTION outbox.can_seal() RETURNS pg_catalog.void
LANGUAGE C VOLATILE AS 'MODULE_PATHNAME', 'outbox_can_seal_1_0';
CREATE FUNCTION outbox.claim_log() RETURNS pg_catalog.void
LANGUAGE C VOLATILE AS 'MODULE_PATHNAME', 'outbox_claim_log_1_0';
CREATE FUNCTION outbox.log_owner() RETURNS pg_catalog.text
LANGUAGE C VOLATILE AS 'MODULE_PATHNAME', 'outbox_log_owner_1_0';
CREATE FUNCTION outbox.new_epoch() RETURNS pg_catalog.int8
LANGUAGE C VOLATILE AS 'MODULE_PATHNAME', 'outbox_new_epoch_1_0';
CREATE FUNCTION outbox.take_log(epoch pg_catalog.int8) RETURNS pg_catalog.void
LANGUAGE C VOLATILE STRICT AS 'MODULE_PATHNAME', 'outbox_take_log_1_0';
CREATE FUNCTION outbox.topic_in(topic pg_catalog.text, patterns pg_catalog.text[]) RETURNS pg_catalog.bool
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'outbox_topic_in_1_0';
CREATE FUNCTION outbox.position_now(sequence pg_catalog.oid,
    OUT snapshot pg_catalog.pg_snapshot, OUT seq_low pg_catalog.int8,
    OUT committed pg_catalog.pg_snapshot) RETURNS pg_catalog.record
LANGUAGE C VOLATILE STRICT AS 'MODULE_PATHNAME', 'outbox_position_now_1_0';
CREATE FUNCTION outbox.endpoints_changed() RETURNS pg_catalog.void
LANGUAGE C VOLATILE AS 'MODULE_PATHNAME', 'outbox_endpoints_changed_1_0';
CREATE FUNCTION outbox.endpoint_stats(endpoint_id pg_catalog.int4,
    OUT state pg_catalog.text, OUT state_since pg_catalog.timestamptz, OUT reason pg_catalog.text,
    OUT pending pg_catalog.int8, OUT pending_exact pg_catalog.bool, OUT processing pg_catalog.int8,
    OUT retrying pg_catalog.int8, OUT blocked pg_catalog.int8, OUT dead pg_catalog.int8,
    OUT delivered pg_catalog.int8, OUT failed_attempts pg_catalog.int8,
    OUT oldest_pending_at pg_catalog.timestamptz, OUT next_attempt_at pg_catalog.timestamptz,
    OUT rate_per_s pg_catalog.float8, OUT latency_p50_ms pg_catalog.float8,
    OUT latency_p95_ms pg_catalog.float8, OUT latency_p99_ms pg_catalog.float8,
    OUT last_success_at pg_catalog.timestamptz, OUT last_error pg_catalog.text) RETURNS pg_catalog.record
LANGUAGE C VOLATILE STRICT AS 'MODULE_PATHNAME', 'outbox_endpoint_stats_1_0';

COMMENT ON FUNCTION outbox.check_url(pg_catalog.text) IS 'Refuses a URL that no endpoint can have (22023)';
COMMENT ON FUNCTION outbox.check_topics(pg_catalog.text[]) IS 'Refuses topic patterns that can match nothing (22023)';
COMMENT ON FUNCTION outbox.check_filter(pg_catalog.jsonpath) IS 'Refuses a jsonpath that is no predicate, names a variable, or can take more than time in proportion to the payload (22023)';
COMMENT ON FUNCTION outbox.filter_matches(pg_catalog.jsonb, pg_catalog.jsonpath) IS 'Is the predicate true of the payload? NULL filter: true; NULL payload (bytes): false; NULL: it is neither true nor false';
COMMENT ON FUNCTION outbox.check_secret(pg_catalog.text) IS 'Refuses what is not whsec_ and the base64 of 24 to 64 bytes (22023)';
COMMENT ON FUNCTION outbox.check_headers(pg_catalog.jsonb) IS 'Refuses what is not a flat object of at most 15 strings without control characters, and names that belong to outbox or HTTP (22023)';
COMMENT ON FUNCTION outbox.new_secret() IS 'A new secret: whsec_ and the base64 of 32 random bytes';
COMMENT ON FUNCTION outbox.seal(pg_catalog.int4, pg_catalog.text, pg_catalog.text) IS 'A value as it is to be stored: sealed when outbox.secret_key_file is set, else as it is. 22023: it looks like a sealed one; 55000: the key file cannot be used';
COMMENT ON FUNCTION outbox.seal(pg_catalog.int4, pg_catalog.jsonb) IS 'The same for the values of headers';
COMMENT ON FUNCTION outbox.unseal(pg_catalog.int4, pg_catalog.text, pg_catalog.text) IS 'A stored value in clear (55000: it cannot be opened)';
COMMENT ON FUNCTION outbox.reseal(pg_catalog.int4, pg_catalog.text, pg_catalog.text) IS 'A stored value sealed with the first key, unless it is already; NULL: it cannot be opened';
COMMENT ON FUNCTION outbox.reseal(pg_catalog.int4, pg_catalog.jsonb) IS 'The same for the values of headers';
COMMENT ON FUNCTION outbox.shown(pg_catalog.int4, pg_catalog.text) IS 'The URL of an endpoint in clear; as stored, where it cannot be opened';
COMMENT ON FUNCTION outbox.shown(pg_catalog.int4, pg_catalog.jsonb) IS 'The headers of an endpoint in clear; as stored, where one cannot be opened';
COMMENT ON FUNCTION outbox.can_seal() IS 'Refuses to go on without a key that seals (55000)';
COMMENT ON FUNCTION outbox.claim_log() IS 'Makes the log this system''s and database''s, if nobody''s yet';
COMMENT ON FUNCTION outbox.log_owner() IS 'Whose log this is: nobody, us, another, or another instance';
COMMENT ON FUNCTION outbox.new_epoch() IS 'A random number above 0';
COMMENT ON FUNCTION outbox.take_log(pg_catalog.int8) IS 'Makes the log this system''s and database''s, whoever it was before, with this epoch';
COMMENT ON FUNCTION outbox.topic_in(pg_catalog.text, pg_catalog.text[]) IS 'Does one of the patterns match the topic?';
COMMENT ON FUNCTION outbox.position_now(pg_catalog.oid) IS 'The end of the log, for a transaction that may have written to it; committed: the same with this transaction in it';
COMMENT ON FUNCTION outbox.endpoints_changed() IS 'Rings the worker when this transaction commits';
COMMENT ON FUNCTION outbox.endpoint_stats(pg_catalog.int4) IS 'What the worker published about an endpoint; NULL: nothing since the server started';

-- Turns start_at into a place in the log. Takes the lock that keeps the log
-- from being shortened until the place is stored.
CREATE FUNCTION outbox.place(start_at pg_catalog.text, replayed_from pg_catalog.timestamptz,
    OUT snapshot pg_catalog.pg_snapshot, OUT seq_low pg_catalog.int8)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    at timestamptz := replayed_from;
BEGIN
    LOCK TABLE outbox.endpoint_settings IN ROW EXCLUSIVE MODE;
    IF outbox.current_epoch() < 0 THEN
        RAISE EXCEPTION 'this log is a copy that was not adopted: no place in it can be named'
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'SELECT outbox.adopt() first; what is undelivered is then sent, unless its endpoint is paused or dropped before.';
    END IF;
    IF start_at = 'now' THEN
        SELECT p.snapshot, p.seq_low INTO snapshot, seq_low
        FROM outbox.position_now('outbox.events_seq'::regclass) p;
        RETURN;
    ELSIF start_at = 'beginning' THEN
        snapshot := '3:3:';
        seq_low := 0;
        RETURN;
    END IF;
    IF replayed_from IS NULL THEN
        BEGIN
            at := start_at::timestamptz;
        EXCEPTION WHEN data_exception THEN
            at := NULL;
        END;
    END IF;
    IF at IS NULL OR NOT isfinite(at) THEN
        RAISE EXCEPTION 'invalid start_at "%"', start_at
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Use ''now'', ''beginning'' or a timestamp.';
    ELSIF replayed_from IS NULL AND at > clock_timestamp() THEN
        RAISE EXCEPTION 'start_at "%" is in the future', start_at
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Use ''now'', ''beginning'' or a timestamp in the past.';
    END IF;
    -- The newest tick before which nothing was emitted later than that. Times do
    -- not follow the log where the clock was set back: what was emitted between
    -- two such ticks has its own.
    SELECT t.snapshot, t.seq_low INTO snapshot, seq_low
    FROM outbox.ticks t
    WHERE t.taken_at <= at AND t.tick < COALESCE((
        SELECT min(q.tick)
        FROM (SELECT c.tick, c.taken_at, c.seq_high, lag(c.taken_at) OVER w AS before, lag(c.seq_low) OVER w AS low
              FROM outbox.ticks c WINDOW w AS (ORDER BY c.tick)) q
        WHERE q.taken_at > at
        OR (q.taken_at < q.before
            AND EXISTS (SELECT 1 FROM outbox.events e
                        WHERE e.seq > q.low AND e.seq <= q.seq_high AND e.created_at >= at))), t.tick + 1)
    ORDER BY t.tick DESC LIMIT 1;
    IF NOT FOUND AND replayed_from IS NULL AND EXISTS (SELECT 1 FROM outbox.origins o WHERE o.adopted_by IS NOT NULL) THEN
        RAISE EXCEPTION 'start_at "%" is earlier than the adoption of this log', start_at
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Use ''beginning'' to go back to the first event that is kept, or outbox.replay(), which looks at the time of each event.';
    ELSIF NOT FOUND THEN
        snapshot := '3:3:';
        seq_low := 0;
    END IF;
END $$;
COMMENT ON FUNCTION outbox.place(pg_catalog.text, pg_catalog.timestamptz) IS 'The place in the log that start_at stands for: now, beginning or a timestamp (22023 otherwise). A timestamp means: at the latest noted moment before it, about a second. Before the adoption of the log no moment is known: 55000, as in a copy that was not adopted. replayed_from: the place for a replay from that time, instead of start_at; where no moment is known, the beginning';

-- Every setting of an endpoint is checked here, whoever changes it.
CREATE FUNCTION outbox.check_settings(s outbox.endpoint_settings) RETURNS pg_catalog.void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    problem text;
    hint text;
BEGIN
    IF s.name IS NULL OR s.name !~ '^[A-Za-z0-9_.-]{1,63}$' THEN
        problem := format('invalid endpoint name "%s"', COALESCE(s.name::text, 'NULL'));
        hint := 'Use 1 to 63 letters, digits, "_", "-" or ".".';
    ELSIF s.url IS NULL THEN
        problem := 'url must not be NULL';
        hint := 'Write the URL as https://host/path.';
    ELSIF s.topics IS NULL THEN
        problem := 'topics must not be NULL';
        hint := 'Use topics => ''{*}'' to subscribe to everything.';
    -- a sealed one was judged when it was given
    ELSIF length(s.url) > 2048 AND s.url !~ '^[^:]*:/*[^/?#]*/sealed:1:' THEN
        problem := format('url is %s characters long', length(s.url));
        hint := 'Use at most 2048.';
    ELSIF s.format IS NULL OR s.format NOT IN ('standard', 'raw', 'cloudevents', 'cloudevents-binary') THEN
        problem := format('unknown format "%s"', COALESCE(s.format::text, 'NULL'));
        hint := 'Use ''standard'', ''raw'', ''cloudevents'' or ''cloudevents-binary''.';
    ELSIF s.ordering IS NULL OR s.ordering NOT IN ('key', 'none', 'strict') THEN
        problem := format('unknown ordering "%s"', COALESCE(s.ordering::text, 'NULL'));
        hint := 'Use ''key'', ''none'' or ''strict''.';
    ELSIF s.on_exhausted IS NULL OR s.on_exhausted NOT IN ('skip', 'block') THEN
        problem := format('unknown on_exhausted "%s"', COALESCE(s.on_exhausted::text, 'NULL'));
        hint := 'Use ''skip'' or ''block''.';
    ELSIF s.max_in_flight IS NULL OR s.max_in_flight NOT BETWEEN 1 AND 1024 THEN
        problem := format('invalid max_in_flight %s', COALESCE(s.max_in_flight::text, 'NULL'));
        hint := 'Use 1 to 1024 requests.';
    ELSIF s.rate_limit IS NOT NULL AND s.rate_limit NOT BETWEEN real '0.0001' AND 1000000 THEN
        problem := format('invalid rate_limit %s', s.rate_limit);
        hint := 'Use requests per second, 0.0001 to 1000000; NULL: no limit.';
    ELSIF s.max_attempts IS NOT NULL AND s.max_attempts < 1 THEN
        problem := format('invalid max_attempts %s', s.max_attempts);
        hint := 'Use at least 1; NULL: until max_age.';
    ELSIF s.timeout IS NULL OR s.timeout NOT BETWEEN interval '1 ms' AND interval '1 hour' THEN
        problem := format('invalid timeout %s', COALESCE(s.timeout::text, 'NULL'));
        hint := 'Use 1 ms to 1 hour.';
    ELSIF s.connect_timeout IS NULL OR s.connect_timeout NOT BETWEEN interval '1 ms' AND interval '1 hour' THEN
        problem := format('invalid connect_timeout %s', COALESCE(s.connect_timeout::text, 'NULL'));
        hint := 'Use 1 ms to 1 hour.';
    ELSIF s.max_age IS NULL OR s.max_age NOT BETWEEN interval '1 ms' AND interval '10 years' THEN
        problem := format('invalid max_age %s', COALESCE(s.max_age::text, 'NULL'));
        hint := 'Use 1 ms to 10 years.';
    ELSIF s.backoff_base IS NULL OR s.backoff_base NOT BETWEEN interval '1 ms' AND interval '1 day' THEN
        problem := format('invalid backoff_base %s', COALESCE(s.backoff_base::text, 'NULL'));
        hint := 'Use 1 ms to 1 day.';
    ELSIF s.backoff_max IS NULL OR s.backoff_max NOT BETWEEN s.backoff_base AND interval '30 days' THEN
        problem := format('invalid backoff_max %s', COALESCE(s.backoff_max::text, 'NULL'));
        hint := format('Use at least backoff_base (%s) and at most 30 days.', s.backoff_base);
    ELSIF s.batch_size IS NULL OR s.batch_size NOT BETWEEN 1 AND 1000 THEN
        problem := format('invalid batch_size %s', COALESCE(s.batch_size::text, 'NULL'));
        hint := 'Use 1 to 1000 events.';
    ELSIF s.batch_size > 1 AND s.format NOT IN ('standard', 'cloudevents') THEN
        problem := format('format "%s" has no batches, and batch_size is %s', s.format, s.batch_size);
        hint := 'Use format ''standard'' or ''cloudevents'', or batch_size 1.';
    ELSIF s.batch_wait IS NULL OR s.batch_wait NOT BETWEEN interval '0' AND interval '1 hour' THEN
        problem := format('invalid batch_wait %s', COALESCE(s.batch_wait::text, 'NULL'));
        hint := 'Use 0 (what is there goes at once) to 1 hour.';
    ELSIF s.batch_wait > interval '0' AND s.batch_size = 1 THEN
        problem := format('batch_wait is %s, and batch_size is 1: one event has no others to wait for', s.batch_wait);
        hint := 'Use batch_wait 0, or a batch_size of 2 to 1000.';
    END IF;
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION '%', problem USING ERRCODE = 'invalid_parameter_value', HINT = hint;
    END IF;
    PERFORM outbox.check_url(s.url);
    PERFORM outbox.check_topics(s.topics);
    PERFORM outbox.check_filter(s.filter);
    PERFORM outbox.check_headers(s.headers);
END $$;
COMMENT ON FUNCTION outbox.check_settings(outbox.endpoint_settings) IS 'Refuses settings that no endpoint can have (22023)';

-- The settings of an endpoint, locked for a change.
CREATE FUNCTION outbox.lock_endpoint(name pg_catalog.text) RETURNS outbox.endpoint_settings
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    s outbox.endpoint_settings;
BEGIN
    SELECT * INTO s FROM outbox.endpoint_settings e WHERE e.name = lock_endpoint.name FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'endpoint "%" does not exist', name
            USING ERRCODE = 'undefined_object',
                  HINT = 'SELECT name FROM outbox.endpoints lists them.';
    END IF;
    PERFORM outbox.endpoints_changed();
    RETURN s;
END $$;
COMMENT ON FUNCTION outbox.lock_endpoint(pg_catalog.text) IS 'The settings of an endpoint, locked until the transaction ends (42704: there is none)';

------------------------------------------------------------------------
-- Endpoints
--
-- Generic plans where a secret is an argument: a plan that auto_explain logs
-- has the parameter then, and not its value.
------------------------------------------------------------------------

CREATE FUNCTION outbox.create_endpoint(
    name pg_catalog.text,
    url pg_catalog.text,
    topics pg_catalog.text[] DEFAULT '{*}',
    filter pg_catalog.jsonpath DEFAULT NULL,
    format pg_catalog.text DEFAULT 'standard',
    secret pg_catalog.text DEFAULT NULL,
    headers pg_catalog.jsonb DEFAULT NULL,
    ordering pg_catalog.text DEFAULT 'key',
    on_exhausted pg_catalog.text DEFAULT 'skip',
    max_in_flight pg_catalog.int4 DEFAULT 32,
    rate_limit pg_catalog.float4 DEFAULT NULL,
    timeout pg_catalog.interval DEFAULT '15 s',
    connect_timeout pg_catalog.interval DEFAULT '5 s',
    max_attempts pg_catalog.int4 DEFAULT NULL,
    max_age pg_catalog.interval DEFAULT '3 days',
    backoff_base pg_catalog.interval DEFAULT '1 s',
    backoff_max pg_catalog.interval DEFAULT '1 h',
    batch_size pg_catalog.int4 DEFAULT 1,
    batch_wait pg_catalog.interval DEFAULT '0',
    start_at pg_catalog.text DEFAULT 'now',
    if_not_exists pg_catalog.bool DEFAULT false) RETURNS pg_catalog.void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_variable
DECLARE
    s outbox.endpoint_settings;
BEGIN
    s := ROW(NULL, name, url, topics, filter, format, headers, ordering, on_exhausted, max_in_flight,
             rate_limit, timeout, connect_timeout, max_attempts, max_age, backoff_base,
             backoff_max, batch_size, batch_wait, 'active', now(), NULL, now(), 1, 1, NULL, NULL);
    PERFORM outbox.check_settings(s);
    PERFORM outbox.check_secret(secret);
    IF start_at IS NULL THEN
        RAISE EXCEPTION 'start_at must not be NULL'
            USING ERRCODE = 'null_value_not_allowed',
                  HINT = 'Use ''now'', ''beginning'' or a timestamp.';
    END IF;

    PERFORM outbox.refuse_subscribed();
    PERFORM outbox.claim_log();
    SELECT p.snapshot, p.seq_low INTO s.start_snapshot, s.start_seq_low
    FROM outbox.place(start_at, NULL) p;
    -- What is sealed is sealed for this number.
    s.endpoint_id := nextval('outbox.endpoint_settings_endpoint_id_seq');
    s.url := outbox.seal(s.endpoint_id, 'url', s.url);
    s.headers := outbox.seal(s.endpoint_id, s.headers);
    INSERT INTO outbox.endpoint_settings (endpoint_id, name, url, topics, filter, format, headers, ordering,
        on_exhausted, max_in_flight, rate_limit, timeout, connect_timeout, max_attempts,
        max_age, backoff_base, backoff_max, batch_size, batch_wait, start_snapshot, start_seq_low)
    OVERRIDING SYSTEM VALUE
    VALUES (s.endpoint_id, s.name, s.url, s.topics, s.filter, s.format, s.headers, s.ordering, s.on_exhausted,
        s.max_in_flight, s.rate_limit, s.timeout, s.connect_timeout, s.max_attempts,
        s.max_age, s.backoff_base, s.backoff_max, s.batch_size, s.batch_wait, s.start_snapshot, s.start_seq_low)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        IF if_not_exists THEN
            RAISE NOTICE 'endpoint "%" already exists, skipping', s.name;
            RETURN;
        END IF;
        RAISE EXCEPTION 'endpoint "%" already exists', s.name
            USING ERRCODE = 'duplicate_object',
                  HINT = 'Use another name, outbox.alter_endpoint(), or if_not_exists => true.';
    END IF;
    INSERT INTO outbox.endpoint_secrets (endpoint_id, secret)
    VALUES (s.endpoint_id, outbox.seal(s.endpoint_id, 'secret', COALESCE(secret, outbox.new_secret())));
    INSERT INTO outbox.subscriptions (endpoint_id, version, topics, filter, done, under, last_seq)
    VALUES (s.endpoint_id, 1, s.topics, s.filter, s.start_snapshot, NULL, 0);
    PERFORM outbox.endpoints_changed();
END $$;
COMMENT ON FUNCTION outbox.create_endpoint(pg_catalog.text, pg_catalog.text, pg_catalog.text[], pg_catalog.jsonpath, pg_catalog.text, pg_catalog.text, pg_catalog.jsonb, pg_catalog.text, pg_catalog.text, pg_catalog.int4, pg_catalog.float4, pg_catalog.interval, pg_catalog.interval, pg_catalog.int4, pg_catalog.interval, pg_catalog.interval, pg_catalog.interval, pg_catalog.int4, pg_catalog.interval, pg_catalog.text, pg_catalog.bool) IS
'Subscribes a URL to topics. Events of this transaction are delivered to it, too. rate_limit: requests per second; secret NULL: generated; max_attempts NULL: until max_age after the first attempt; batch_size: events per request at most (above 1 with format standard or cloudevents only); batch_wait: how long the oldest of them may wait for others. Errors: 22023 invalid argument, 42710 the name exists';

CREATE FUNCTION outbox.alter_endpoint(
    name pg_catalog.text,
    url pg_catalog.text DEFAULT NULL,
    topics pg_catalog.text[] DEFAULT NULL,
    filter pg_catalog.jsonpath DEFAULT NULL,
    format pg_catalog.text DEFAULT NULL,
    secret pg_catalog.text DEFAULT NULL,
    headers pg_catalog.jsonb DEFAULT NULL,
    ordering pg_catalog.text DEFAULT NULL,
    on_exhausted pg_catalog.text DEFAULT NULL,
    max_in_flight pg_catalog.int4 DEFAULT NULL,
    rate_limit pg_catalog.float4 DEFAULT NULL,
    timeout pg_catalog.interval DEFAULT NULL,
    connect_timeout pg_catalog.interval DEFAULT NULL,
    max_attempts pg_catalog.int4 DEFAULT NULL,
    max_age pg_catalog.interval DEFAULT NULL,
    backoff_base pg_catalog.interval DEFAULT NULL,
    backoff_max pg_catalog.interval DEFAULT NULL,
    batch_size pg_catalog.int4 DEFAULT NULL,
    batch_wait pg_catalog.interval DEFAULT NULL,
    reset pg_catalog.text[] DEFAULT '{}') RETURNS pg_catalog.void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_variable
DECLARE
    old outbox.endpoint_settings := outbox.lock_endpoint(name);
    s outbox.endpoint_settings := old;
    option text;
    given text[] := array_remove(ARRAY[
        CASE WHEN topics IS NOT NULL THEN 'topics' END,
        CASE WHEN filter IS NOT NULL THEN 'filter' END,
        CASE WHEN format IS NOT NULL THEN 'format' END,
        CASE WHEN headers IS NOT NULL THEN 'headers' END,
        CASE WHEN ordering IS NOT NULL THEN 'ordering' END,
        CASE WHEN on_exhausted IS NOT NULL THEN 'on_exhausted' END,
        CASE WHEN max_in_flight IS NOT NULL THEN 'max_in_flight' END,
        CASE WHEN rate_limit IS NOT NULL THEN 'rate_limit' END,
        CASE WHEN timeout IS NOT NULL THEN 'timeout' END,
        CASE WHEN connect_timeout IS NOT NULL THEN 'connect_timeout' END,
        CASE WHEN max_attempts IS NOT NULL THEN 'max_attempts' END,
        CASE WHEN max_age IS NOT NULL THEN 'max_age' END,
        CASE WHEN backoff_base IS NOT NULL THEN 'backoff_base' END,
        CASE WHEN backoff_max IS NOT NULL THEN 'backoff_max' END,
        CASE WHEN batch_size IS NOT NULL THEN 'batch_size' END,
        CASE WHEN batch_wait IS NOT NULL THEN 'batch_wait' END], NULL);
BEGIN
    s.url := COALESCE(url, s.url);
    s.topics := COALESCE(topics, s.topics);
    s.filter := COALESCE(filter, s.filter);
    s.format := COALESCE(format, s.format);
    s.headers := COALESCE(headers, s.headers);
    s.ordering := COALESCE(ordering, s.ordering);
    s.on_exhausted := COALESCE(on_exhausted, s.on_exhausted);
    s.max_in_flight := COALESCE(max_in_flight, s.max_in_flight);
    s.rate_limit := COALESCE(rate_limit, s.rate_limit);
    s.timeout := COALESCE(timeout, s.timeout);
    s.connect_timeout := COALESCE(connect_timeout, s.connect_timeout);
    s.max_attempts := COALESCE(max_attempts, s.max_attempts);
    s.max_age := COALESCE(max_age, s.max_age);
    s.backoff_base := COALESCE(backoff_base, s.backoff_base);
    s.backoff_max := COALESCE(backoff_max, s.backoff_max);
    s.batch_size := COALESCE(batch_size, s.batch_size);
    s.batch_wait := COALESCE(batch_wait, s.batch_wait);
    FOREACH option IN ARRAY COALESCE(reset, '{}') LOOP
        IF option = ANY (given) THEN
            RAISE EXCEPTION 'option "%" has a new value and is in reset', option
                USING ERRCODE = 'invalid_parameter_value',
                      HINT = 'Pass the value, or name the option in reset to bring its default back.';
        END IF;
        CASE option
            WHEN 'topics' THEN s.topics := '{*}';
            WHEN 'filter' THEN s.filter := NULL;
            WHEN 'format' THEN s.format := 'standard';
            WHEN 'headers' THEN s.headers := NULL;
            WHEN 'ordering' THEN s.ordering := 'key';
            WHEN 'on_exhausted' THEN s.on_exhausted := 'skip';
            WHEN 'max_in_flight' THEN s.max_in_flight := 32;
            WHEN 'rate_limit' THEN s.rate_limit := NULL;
            WHEN 'timeout' THEN s.timeout := '15 s';
            WHEN 'connect_timeout' THEN s.connect_timeout := '5 s';
            WHEN 'max_attempts' THEN s.max_attempts := NULL;
            WHEN 'max_age' THEN s.max_age := '3 days';
            WHEN 'backoff_base' THEN s.backoff_base := '1 s';
            WHEN 'backoff_max' THEN s.backoff_max := '1 h';
            WHEN 'batch_size' THEN s.batch_size := 1;
            WHEN 'batch_wait' THEN s.batch_wait := '0';
            ELSE
                RAISE EXCEPTION 'unknown option "%" in reset', option
                    USING ERRCODE = 'invalid_parameter_value',
                          HINT = 'Options with a default: topics, filter, format, headers, ordering, on_exhausted, max_in_flight, rate_limit, timeout, connect_timeout, max_attempts, max_age, backoff_base, backoff_max, batch_size, batch_wait.';
        END CASE;
    END LOOP;
    PERFORM outbox.check_settings(s);
    PERFORM outbox.check_secret(secret);
    IF url IS NOT NULL AND url IS DISTINCT FROM outbox.shown(s.endpoint_id, old.url) THEN
        s.url := outbox.seal(s.endpoint_id, 'url', url);
    ELSE
        s.url := old.url;
    END IF;
    IF headers IS NOT NULL THEN
        s.headers := outbox.seal(s.endpoint_id, headers);
    END IF;
    IF (s.url, s.topics, s.filter::text, s.format) IS DISTINCT FROM (old.url, old.topics, old.filter::text, old.format) THEN
        s.version := s.version + 1;
    END IF;
    UPDATE outbox.endpoint_settings e
    SET url = s.url, topics = s.topics, filter = s.filter, format = s.format, headers = s.headers,
        ordering = s.ordering, on_exhausted = s.on_exhausted, max_in_flight = s.max_in_flight,
        rate_limit = s.rate_limit, timeout = s.timeout, connect_timeout = s.connect_timeout,
        max_attempts = s.max_attempts, max_age = s.max_age, backoff_base = s.backoff_base,
        backoff_max = s.backoff_max, batch_size = s.batch_size, batch_wait = s.batch_wait,
        version = s.version
    WHERE e.endpoint_id = s.endpoint_id;
    IF secret IS NOT NULL THEN
        INSERT INTO outbox.endpoint_secrets AS k (endpoint_id, secret)
        VALUES (s.endpoint_id, outbox.seal(s.endpoint_id, 'secret', secret))
        ON CONFLICT (endpoint_id) DO UPDATE SET secret = EXCLUDED.secret, previous = NULL, previous_until = NULL;
    END IF;
END $$;
COMMENT ON FUNCTION outbox.alter_endpoint(pg_catalog.text, pg_catalog.text, pg_catalog.text[], pg_catalog.jsonpath, pg_catalog.text, pg_catalog.text, pg_catalog.jsonb, pg_catalog.text, pg_catalog.text, pg_catalog.int4, pg_catalog.float4, pg_catalog.interval, pg_catalog.interval, pg_catalog.int4, pg_catalog.interval, pg_catalog.interval, pg_catalog.interval, pg_catalog.int4, pg_catalog.interval, pg_catalog.text[]) IS
'Changes settings; NULL: unchanged; reset: names of settings that go back to their default. A change of topics or filter holds for events from the endpoint''s present position on. Errors: 22023 invalid argument, or one that is in reset as well, 42704 no such endpoint';

CREATE FUNCTION outbox.pause_endpoint(name pg_catalog.text) RETURNS pg_catalog.void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    s outbox.endpoint_settings := outbox.lock_endpoint(name);
BEGIN
    UPDATE outbox.endpoint_settings e
    SET state = 'paused', state_since = clock_timestamp(), reason = 'paused by ' || quote_ident(session_user)
    WHERE e.endpoint_id = s.endpoint_id AND e.state <> 'paused';
END $$;
COMMENT ON FUNCTION outbox.pause_endpoint(pg_catalog.text) IS 'Sends nothing more to the endpoint until it is resumed; its events wait. 42704: no such endpoint';

CREATE FUNCTION outbox.resume_endpoint(name pg_catalog.text) RETURNS pg_catalog.void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    s outbox.endpoint_settings := outbox.lock_endpoint(name);
BEGIN
    UPDATE outbox.endpoint_settings e
    SET state = 'active', state_since = clock_timestamp(), reason = NULL
    WHERE e.endpoint_id = s.endpoint_id AND e.state <> 'active';
END $$;
COMMENT ON FUNCTION outbox.resume_endpoint(pg_catalog.text) IS 'Goes on where a paused or disabled endpoint stopped. 42704: no such endpoint';

CREATE FUNCTION outbox.seek_endpoint(name pg_catalog.text, start_at pg_catalog.text) RETURNS pg_catalog.void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    s outbox.endpoint_settings := outbox.lock_endpoint(name);
BEGIN
    IF start_at IS NULL THEN
        RAISE EXCEPTION 'start_at must not be NULL'
            USING ERRCODE = 'null_value_not_allowed',
                  HINT = 'Use ''now'', ''beginning'' or a timestamp.';
    END IF;
    SELECT p.snapshot, p.seq_low INTO s.start_snapshot, s.start_seq_low
    FROM outbox.place(start_at, NULL) p;

    -- From where it stands to the new place it subscribes to nothing
    INSERT INTO outbox.subscriptions (endpoint_id, version, topics, filter, done, under, last_seq)
    SELECT p.endpoint_id, s.version + 1, '{}', NULL, p.done, p.under, p.last_seq
    FROM outbox.endpoint_positions p WHERE p.endpoint_id = s.endpoint_id
    UNION ALL SELECT s.endpoint_id, s.version + 2, s.topics, s.filter, s.start_snapshot, NULL, 0;
    UPDATE outbox.endpoint_settings e
    SET start_snapshot = s.start_snapshot, start_seq_low = s.start_seq_low,
        generation = e.generation + 1, version = e.version + 2
    WHERE e.endpoint_id = s.endpoint_id;
END $$;
COMMENT ON FUNCTION outbox.seek_endpoint(pg_catalog.text, pg_catalog.text) IS 'Moves the endpoint to a place in the log: now skips a backlog, which outbox.deliveries does not show any more, or only as far as it is replayed and has its request in outbox.attempts; beginning or a timestamp goes back, and what was parked beyond it is forgotten and read again. Errors: 22023 invalid start_at, 42704 no such endpoint';

CREATE FUNCTION outbox.rotate_secret(name pg_catalog.text,
    grace pg_catalog.interval DEFAULT '24 hours',
    secret pg_catalog.text DEFAULT NULL) RETURNS pg_catalog.void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_variable
DECLARE
    s outbox.endpoint_settings := outbox.lock_endpoint(name);
    former text;
BEGIN
    IF grace IS NULL OR grace NOT BETWEEN interval '0' AND interval '1 year' THEN
        RAISE EXCEPTION 'invalid grace %', COALESCE(grace::text, 'NULL')
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Use 0 to 1 year; 0 ends the former secret at once, which is right for one that was leaked.';
    END IF;
    PERFORM outbox.check_secret(secret);
    SELECT k.secret INTO former FROM outbox.endpoint_secrets k WHERE k.endpoint_id = s.endpoint_id;
    BEGIN
        former := outbox.unseal(s.endpoint_id, 'secret', former);
    EXCEPTION WHEN object_not_in_prerequisite_state THEN
        -- Its key is lost: it can be forgotten, and sign no more.
        IF grace > interval '0' THEN
            RAISE;
        END IF;
    END;
    IF former = secret THEN
        RAISE EXCEPTION 'this is the present secret of endpoint "%"', name
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Pass another one, or none to have it generated.';
    END IF;
    INSERT INTO outbox.endpoint_secrets AS k (endpoint_id, secret)
    VALUES (s.endpoint_id, outbox.seal(s.endpoint_id, 'secret', COALESCE(secret, outbox.new_secret())))
    ON CONFLICT (endpoint_id) DO UPDATE
    SET secret = EXCLUDED.secret,
        previous = CASE WHEN grace > interval '0' THEN outbox.seal(s.endpoint_id, 'previous', former) END,
        previous_until = CASE WHEN grace > interval '0' THEN clock_timestamp() + grace END;
END $$;
COMMENT ON FUNCTION outbox.rotate_secret(pg_catalog.text, pg_catalog.interval, pg_catalog.text) IS 'Gives the endpoint another secret (NULL: generated). For the time of grace requests carry both signatures; then, or at once with 0, only the new one. Rotated again within grace: the secret before the last is forgotten at once. Errors: 22023 invalid argument, 42704 no such endpoint, 55000 the secret cannot be sealed, or the former one not be opened';

CREATE FUNCTION outbox.endpoint_secret(name pg_catalog.text) RETURNS pg_catalog.text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT outbox.unseal(k.endpoint_id, 'secret', k.secret)
    FROM outbox.endpoint_secrets k JOIN outbox.endpoint_settings e USING (endpoint_id)
    WHERE e.name = $1
$$;
COMMENT ON FUNCTION outbox.endpoint_secret(pg_catalog.text) IS 'The secret that requests to the endpoint are signed with; NULL: none is set, or no such endpoint. 55000: it is sealed and cannot be opened';

CREATE FUNCTION outbox.reseal_secrets(OUT sealed pg_catalog.int8, OUT kept pg_catalog.int8, OUT unopened pg_catalog.int8)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    s record;
    k record;
    former record;
BEGIN
    PERFORM outbox.can_seal();
    sealed := 0;
    kept := 0;
    unopened := 0;
    FOR s IN SELECT e.endpoint_id, e.url, e.headers FROM outbox.endpoint_settings e ORDER BY e.endpoint_id FOR UPDATE
    LOOP
        -- locked, for a worker forgets former secrets
        SELECT o.secret, o.previous INTO former FROM outbox.endpoint_secrets o WHERE o.endpoint_id = s.endpoint_id FOR UPDATE;
        SELECT outbox.reseal(s.endpoint_id, 'url', s.url) AS url,
               outbox.reseal(s.endpoint_id, s.headers) AS headers,
               outbox.reseal(s.endpoint_id, 'secret', former.secret) AS secret,
               outbox.reseal(s.endpoint_id, 'previous', former.previous) AS previous INTO k;
        IF k.url IS NULL OR (k.headers IS NULL AND s.headers IS NOT NULL)
           OR (k.secret IS NULL AND former.secret IS NOT NULL) OR (k.previous IS NULL AND former.previous IS NOT NULL) THEN
            unopened := unopened + 1;
        ELSIF (k.url, k.headers, k.secret, k.previous)
              IS NOT DISTINCT FROM (s.url, s.headers, former.secret, former.previous) THEN
            kept := kept + 1;
        ELSE
            sealed := sealed + 1;
            UPDATE outbox.endpoint_settings e SET url = k.url, headers = k.headers WHERE e.endpoint_id = s.endpoint_id;
            UPDATE outbox.endpoint_secrets o SET secret = k.secret, previous = k.previous WHERE o.endpoint_id = s.endpoint_id;
        END IF;
    END LOOP;
    PERFORM outbox.endpoints_changed();
END $$;
COMMENT ON FUNCTION outbox.reseal_secrets() IS 'Seals the secrets of all endpoints with the first key of outbox.secret_key_file. How many endpoints were sealed anew, how many had it already (kept), and how many have a value that no key opens, and were left alone. 55000: the file is not set, or cannot be used';

------------------------------------------------------------------------
-- Views
------------------------------------------------------------------------

-- Where each endpoint is: its newest position, or the shared one, or where it
-- begins.
CREATE VIEW outbox.endpoint_positions AS
SELECT s.endpoint_id, s.name,
       CASE WHEN p.number IS NULL THEN s.start_snapshot WHEN p.shared IS NOT NULL THEN h.done ELSE p.done END AS done,
       CASE WHEN p.number IS NULL THEN NULL WHEN p.shared IS NOT NULL THEN h.under ELSE p.under END AS under,
       CASE WHEN p.number IS NULL THEN 0 WHEN p.shared IS NOT NULL THEN h.last_seq ELSE p.last_seq END AS last_seq,
       CASE WHEN p.number IS NULL THEN s.start_seq_low
            WHEN p.shared IS NOT NULL THEN GREATEST(h.done_seq_low, h.last_seq)
            ELSE GREATEST(p.done_seq_low, p.last_seq) END AS seq,
       COALESCE(p.pending, '{}') AS pending,
       COALESCE(p.delivered, 0) AS delivered,
       COALESCE(p.failed_attempts, 0) AS failed_attempts,
       -- for which reasons a dead delivery blocks, the worker knows as well
       s.ordering OPERATOR(pg_catalog.=) 'strict' AND s.on_exhausted OPERATOR(pg_catalog.=) 'block'
       AND s.endpoint_id OPERATOR(pg_catalog.=) ANY (
           SELECT k.endpoint_id FROM outbox.parked k JOIN outbox.endpoint_settings o USING (endpoint_id)
           WHERE o.ordering OPERATOR(pg_catalog.=) 'strict' AND o.on_exhausted OPERATOR(pg_catalog.=) 'block'
           AND k.status OPERATOR(pg_catalog.=) 'dead'
           AND k.reason OPERATOR(pg_catalog.=) ANY (ARRAY['max_attempts', 'max_age', 'aborted by receiver'])) AS stuck
FROM outbox.endpoint_settings s
LEFT JOIN LATERAL (SELECT * FROM outbox.positions q
                   WHERE q.endpoint_id OPERATOR(pg_catalog.=) s.endpoint_id
                   AND q.generation OPERATOR(pg_catalog.=) s.generation
                   ORDER BY q.number DESC LIMIT 1) p ON true
LEFT JOIN LATERAL (SELECT * FROM outbox.positions q
                   WHERE q.endpoint_id OPERATOR(pg_catalog.=) p.shared
                   ORDER BY q.number DESC LIMIT 1) h ON true;
COMMENT ON VIEW outbox.endpoint_positions IS 'Stored position of each endpoint, at most one settle interval old';

CREATE VIEW outbox.endpoints AS
SELECT s.name, outbox.shown(s.endpoint_id, s.url) AS url, s.topics, s.filter, s.format,
       outbox.shown(s.endpoint_id, s.headers) AS headers, s.ordering, s.on_exhausted, s.max_in_flight,
       s.rate_limit, s.timeout, s.connect_timeout, s.max_attempts, s.max_age, s.backoff_base,
       s.backoff_max, s.batch_size, s.batch_wait, s.state, s.state_since, s.reason, s.created_at
FROM outbox.endpoint_settings s;
COMMENT ON VIEW outbox.endpoints IS 'Endpoints and their settings, without the secret';

CREATE VIEW outbox.log_size AS
SELECT l.bytes, m.min_seq, m.oldest_at, q.last_value AS max_seq
FROM (SELECT pg_catalog.pg_total_relation_size('outbox.events_0') OPERATOR(pg_catalog.+)
             pg_catalog.pg_total_relation_size('outbox.events_1') OPERATOR(pg_catalog.+)
             pg_catalog.pg_total_relation_size('outbox.events_2') AS bytes) l
CROSS JOIN outbox.events_seq q
LEFT JOIN (SELECT e.seq AS min_seq, e.created_at AS oldest_at
           FROM outbox.events e ORDER BY e.seq LIMIT 1) m ON true;
COMMENT ON VIEW outbox.log_size IS 'How large the log is, and from where to where it goes';

CREATE VIEW outbox.stats AS
SELECT s.name AS endpoint,
       CASE WHEN s.state OPERATOR(pg_catalog.<>) 'active' THEN s.state
            ELSE COALESCE(t.state, s.state) END AS state,
       CASE WHEN s.state OPERATOR(pg_catalog.<>) 'active' THEN s.state_since
            ELSE COALESCE(t.state_since, s.state_since) END AS state_since,
       COALESCE(t.reason, s.reason) AS reason,
       COALESCE(t.pending, GREATEST(l.max_seq OPERATOR(pg_catalog.-) p.seq, 0)) AS pending,
       COALESCE(t.pending_exact, false) AS pending_exact,
       COALESCE(t.processing, 0) AS processing,
       COALESCE(t.retrying, (SELECT pg_catalog.count(*) FROM outbox.parked k
                             WHERE k.endpoint_id OPERATOR(pg_catalog.=) s.endpoint_id
                             AND k.status OPERATOR(pg_catalog.=) 'retrying')) AS retrying,
       COALESCE(t.blocked, (SELECT pg_catalog.count(*) FROM outbox.parked k
                            WHERE k.endpoint_id OPERATOR(pg_catalog.=) s.endpoint_id
                            AND k.status OPERATOR(pg_catalog.=) 'blocked')) AS blocked,
       COALESCE(t.dead, (SELECT pg_catalog.count(*) FROM outbox.parked k
                         WHERE k.endpoint_id OPERATOR(pg_catalog.=) s.endpoint_id
                         AND k.status OPERATOR(pg_catalog.=) 'dead')) AS dead,
       COALESCE(t.delivered, p.delivered) AS delivered,
       COALESCE(t.failed_attempts, p.failed_attempts) AS failed_attempts,
       pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) t.oldest_pending_at AS oldest_pending_age,
       CASE WHEN l.min_seq IS NULL OR p.seq OPERATOR(pg_catalog.>=) l.max_seq THEN 0
            ELSE (l.bytes::pg_catalog.float8 OPERATOR(pg_catalog.*)
                  (l.max_seq OPERATOR(pg_catalog.-) GREATEST(p.seq, l.min_seq OPERATOR(pg_catalog.-) 1))
                  OPERATOR(pg_catalog./)
                  (l.max_seq OPERATOR(pg_catalog.-) l.min_seq OPERATOR(pg_catalog.+) 1))::pg_catalog.int8
            END AS retained_bytes,
       t.next_attempt_at,
       COALESCE(t.rate_per_s, 0) AS rate_per_s,
       t.latency_p50_ms, t.latency_p95_ms, t.latency_p99_ms, t.last_success_at, t.last_error
FROM outbox.endpoint_settings s
JOIN outbox.endpoint_positions p USING (endpoint_id)
CROSS JOIN outbox.log_size l
LEFT JOIN LATERAL outbox.endpoint_stats(s.endpoint_id) t ON true;
COMMENT ON VIEW outbox.stats IS 'How each endpoint is doing; in constant time, whatever the size of the log';

-- The log, and what was kept of it for parked deliveries. A row of another log
-- is none of it, and may have the number of one that is. What the log still has
-- may have been copied already: the copy counts when its piece is empty.
CREATE VIEW outbox.all_events AS
SELECT id, seq, xid, epoch, created_at, expires_at, topic, COALESCE(type, topic) AS type, key, headers,
       payload, body, content_type FROM outbox.events
WHERE outbox.log_xid(epoch, xid) IS NOT NULL
UNION ALL
SELECT id, seq, xid, epoch, created_at, expires_at, topic, COALESCE(type, topic) AS type, key, headers,
       payload, body, content_type FROM outbox.kept_events k
WHERE outbox.log_xid(epoch, xid) IS NOT NULL
AND NOT EXISTS (SELECT 1 FROM outbox.events e WHERE e.seq OPERATOR(pg_catalog.=) k.seq
                AND e.epoch OPERATOR(pg_catalog.=) k.epoch);
COMMENT ON VIEW outbox.all_events IS 'Events of the log and those that are kept for parked deliveries';

CREATE VIEW outbox.deliveries AS
SELECT e.id AS event_id, e.seq, e.topic, e.type, e.key, p.name AS endpoint,
       CASE WHEN k.status IS NOT NULL THEN k.status
            WHEN e.seq OPERATOR(pg_catalog.=) ANY (p.pending)
                 THEN CASE WHEN p.stuck THEN 'blocked' ELSE 'processing' END
            WHEN pg_catalog.pg_visible_in_snapshot(x.xid, p.done)
                 OR (p.under IS NOT NULL AND e.seq OPERATOR(pg_catalog.<=) p.last_seq
                     AND pg_catalog.pg_visible_in_snapshot(x.xid, p.under)) THEN 'delivered'
            WHEN p.stuck THEN 'blocked'
            ELSE 'pending' END AS status,
       k.reason,
       COALESCE(k.attempts, a.attempts, 0) AS attempts,
       k.next_attempt_at,
       COALESCE(k.last_status_code, a.last_status_code) AS last_status_code,
       COALESCE(k.last_error, a.last_error) AS last_error,
       e.created_at,
       CASE WHEN k.status IS NULL THEN a.delivered_at END AS delivered_at
FROM outbox.all_events e
CROSS JOIN LATERAL (SELECT outbox.log_xid(e.epoch, e.xid) AS xid) x
CROSS JOIN outbox.endpoint_positions p
CROSS JOIN LATERAL (SELECT v.topics, v.filter FROM outbox.subscriptions v
                    WHERE v.endpoint_id OPERATOR(pg_catalog.=) p.endpoint_id
                    AND NOT (pg_catalog.pg_visible_in_snapshot(x.xid, v.done)
                             OR (v.under IS NOT NULL AND e.seq OPERATOR(pg_catalog.<=) v.last_seq
                                 AND pg_catalog.pg_visible_in_snapshot(x.xid, v.under)))
                    ORDER BY v.version DESC LIMIT 1) v
LEFT JOIN outbox.parked k ON k.endpoint_id OPERATOR(pg_catalog.=) p.endpoint_id
                         AND k.seq OPERATOR(pg_catalog.=) e.seq
                         AND k.event_id OPERATOR(pg_catalog.=) e.id
LEFT JOIN LATERAL (SELECT pg_catalog.max(l.attempt) AS attempts,
                          (pg_catalog.array_agg(l.status_code::pg_catalog.int4 ORDER BY l.started_at DESC))[1] AS last_status_code,
                          (pg_catalog.array_agg(l.error ORDER BY l.started_at DESC))[1] AS last_error,
                          pg_catalog.min(l.started_at OPERATOR(pg_catalog.+)
                              pg_catalog.make_interval(secs => l.duration_ms OPERATOR(pg_catalog./) 1000))
                              FILTER (WHERE l.status_code BETWEEN 200 AND 299 AND l.error IS NULL) AS delivered_at
                   FROM outbox.attempt_log l
                   WHERE l.seq OPERATOR(pg_catalog.=) e.seq
                   AND l.endpoint_id OPERATOR(pg_catalog.=) p.endpoint_id) a ON true
-- nobody subscribes to a test event: it is there for one endpoint; or, any more,
-- to what was skipped: some of it may have been replayed
WHERE (e.topic OPERATOR(pg_catalog.=) 'outbox.test'
       OR pg_catalog.cardinality(v.topics) OPERATOR(pg_catalog.=) 0
       OR (outbox.topic_in(e.topic, v.topics)
           -- what has a row was judged, at an expense perhaps
           AND (k.status IS NOT NULL OR outbox.filter_matches(e.payload, v.filter) IS NOT FALSE)))
AND (e.topic OPERATOR(pg_catalog.<>) 'outbox.test'
     OR k.status IS NOT NULL OR a.attempts IS NOT NULL)
AND (pg_catalog.cardinality(v.topics) OPERATOR(pg_catalog.>) 0
     OR k.status IS NOT NULL OR a.delivered_at IS NOT NULL)
AND x.xid IS NOT NULL
UNION ALL
SELECT e.id, NULL, e.topic, COALESCE(e.type, e.topic), e.key, s.name, 'scheduled',
       CASE WHEN e.failed_at IS NOT NULL THEN 'set aside' END, 0,
       COALESCE(e.retry_at, e.deliver_at), NULL, e.error, e.created_at, NULL
FROM outbox.scheduled e
JOIN outbox.endpoint_settings s ON outbox.topic_in(e.topic, s.topics)
                               AND outbox.filter_matches(e.payload, s.filter) IS NOT FALSE
WHERE outbox.log_xid(e.epoch, e.xid) IS NOT NULL;
COMMENT ON VIEW outbox.deliveries IS 'What became of each event of the log at each endpoint that subscribed to it when it was emitted; at most one settle interval old. attempts and delivered_at come from outbox.attempts and are NULL or 0 once those are forgotten. Events that wait for their deliver_at are shown as scheduled at the endpoints that subscribe to them now';

CREATE VIEW outbox.dead_letters AS
SELECT e.id AS event_id, e.seq, e.topic, e.type, e.key, s.name AS endpoint, k.status, k.reason,
       k.attempts, k.last_status_code, k.last_error, e.created_at, k.parked_at, e.headers,
       e.payload, e.body, e.content_type
FROM outbox.parked k
JOIN outbox.endpoint_settings s USING (endpoint_id)
JOIN outbox.all_events e ON e.seq OPERATOR(pg_catalog.=) k.seq AND e.id OPERATOR(pg_catalog.=) k.event_id
WHERE k.status OPERATOR(pg_catalog.=) 'dead';
COMMENT ON VIEW outbox.dead_letters IS 'Deliveries that were given up, with the event';

CREATE VIEW outbox.attempts AS
SELECT l.event_id, s.name AS endpoint, l.attempt, l.started_at,
       l.duration_ms::pg_catalog.float8 AS duration_ms, l.status_code::pg_catalog.int4 AS status_code,
       l.error, l.response_body
FROM outbox.attempt_log l LEFT JOIN outbox.endpoint_settings s USING (endpoint_id);
COMMENT ON VIEW outbox.attempts IS 'Requests that were made, a batch once for each event in it, for outbox.attempts_retention; which ones says outbox.log_attempts';

CREATE VIEW outbox.held_steps AS
SELECT h.worker, h.step, s.name AS endpoint, h.reason, h.sqlstate, h.last_error, h.failures, h.since, h.next_try_at
FROM outbox.step_holds() h LEFT JOIN outbox.endpoint_settings s USING (endpoint_id);
COMMENT ON VIEW outbox.held_steps IS 'Steps of this database''s workers that failed and are tried again later; everything else goes on. endpoint: the one that it failed for; NULL: the whole step';

CREATE VIEW outbox.set_aside AS
SELECT 'scheduled' AS what, e.id AS event_id, NULL::pg_catalog.text AS endpoint, NULL::pg_catalog.text AS action,
       e.error, e.failed_at, e.retry_at
FROM outbox.scheduled e WHERE e.failed_at IS NOT NULL
UNION ALL
SELECT 'command', (SELECT k.event_id FROM outbox.parked k WHERE k.endpoint_id OPERATOR(pg_catalog.=) c.endpoint_id
                   AND k.seq OPERATOR(pg_catalog.=) c.seq LIMIT 1),
       s.name, c.action, c.error, c.failed_at, c.retry_at
FROM outbox.commands c LEFT JOIN outbox.endpoint_settings s USING (endpoint_id)
WHERE c.failed_at IS NOT NULL;
COMMENT ON VIEW outbox.set_aside IS 'Scheduled events and operators'' commands that could not be carried out, and why; each is tried again at retry_at, and nothing else waits for it';

CREATE VIEW outbox.status AS
SELECT CASE WHEN NOT outbox.preloaded() THEN 'not_preloaded'
            WHEN w.state IS NULL OR w.state OPERATOR(pg_catalog.=) 'starting' THEN 'no_worker'
            ELSE w.state END AS state,
       CASE WHEN NOT outbox.preloaded() THEN 'outbox is not in shared_preload_libraries: events are kept, nothing is delivered'
            WHEN w.state OPERATOR(pg_catalog.=) 'starting' THEN COALESCE(w.reason, 'the worker is starting')
            ELSE COALESCE(w.reason, h.reason) END AS reason,
       l.bytes AS log_bytes,
       l.oldest_at AS oldest_retained_at,
       (SELECT p.name FROM outbox.endpoint_positions p
        WHERE p.seq OPERATOR(pg_catalog.<) l.max_seq ORDER BY p.seq, p.name LIMIT 1) AS retained_by,
       pg_catalog.current_setting('outbox.enabled')::pg_catalog.bool AS enabled,
       x.extversion AS version,
       w.unmatched,
       COALESCE(h.n, 0) AS held_steps,
       h.since AS held_since,
       h.next_try_at AS held_until
FROM outbox.log_size l
CROSS JOIN pg_catalog.pg_extension x
LEFT JOIN (SELECT ws.* FROM outbox.worker_slots() ws
           JOIN pg_catalog.pg_database d ON d.oid OPERATOR(pg_catalog.=) ws.dboid
           WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()
           ORDER BY pg_catalog.array_position(ARRAY['running', 'disabled', 'held', 'version_mismatch', 'starting'],
                                              ws.state), ws.worker LIMIT 1) w ON true
LEFT JOIN (SELECT pg_catalog.count(*) AS n, pg_catalog.min(t.since) AS since, pg_catalog.min(t.next_try_at) AS next_try_at,
                  pg_catalog.concat('on hold: ', pg_catalog.string_agg(DISTINCT pg_catalog.concat(t.step, ' (', t.reason, ')'), ', '),
                                    '; see outbox.held_steps') AS reason
           FROM outbox.step_holds() t
           -- a lock that was not to be had for a moment is nothing to be told
           WHERE t.reason OPERATOR(pg_catalog.<>) 'locked'
           OR t.since OPERATOR(pg_catalog.<) (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) '1 second'::pg_catalog.interval)
           HAVING pg_catalog.count(*) OPERATOR(pg_catalog.>) 0) h ON true
WHERE x.extname OPERATOR(pg_catalog.=) 'outbox';
COMMENT ON VIEW outbox.status IS 'Whether this database delivers, and why not; how large the log is and which endpoint retains it. With several workers: running when one of them is. held_steps: how many steps failed and are on hold, since when, and when the next of them is tried again; outbox.held_steps has the rest. unmatched: events since there is a worker that no endpoint subscribes to';

CREATE VIEW outbox.workers AS
SELECT w.pid, d.datname, w.worker, w.state, w.reason, w.started_at, w.endpoints, w.in_flight, w.delivered, w.restarts,
       w.last_loop_at, w.memory
FROM outbox.worker_slots() w
JOIN pg_catalog.pg_database d ON d.oid OPERATOR(pg_catalog.=) w.dboid
WHERE w.pid IS NOT NULL OR w.restarts OPERATOR(pg_catalog.>) 0;
COMMENT ON VIEW outbox.workers IS 'Workers of all databases of this server, also those that wait to be started again (pid is NULL, reason says why); worker: its number in the database, from 1; endpoints: those that it serves; delivered since the worker started, restarts after errors, since the server started';

------------------------------------------------------------------------
-- Getting things back
------------------------------------------------------------------------

-- Hands a command for each parked delivery that is meant to the worker.
CREATE FUNCTION outbox.command(action pg_catalog.text, statuses pg_catalog.text[], endpoint pg_catalog.text,
    event pg_catalog.uuid, topics pg_catalog.text[], since pg_catalog.timestamptz) RETURNS pg_catalog.int8
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    id int4;
    n int8;
BEGIN
    SELECT s.endpoint_id INTO id FROM outbox.endpoint_settings s WHERE s.name = endpoint;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'endpoint "%" does not exist', endpoint
            USING ERRCODE = 'undefined_object',
                  HINT = 'SELECT name FROM outbox.endpoints lists them.';
    END IF;
    PERFORM outbox.check_topics(topics);
    INSERT INTO outbox.commands (endpoint_id, action, seq)
    SELECT k.endpoint_id, command.action, k.seq
    FROM outbox.parked k
    WHERE k.endpoint_id = id AND k.status = ANY (statuses)
    AND (event IS NULL OR k.event_id = event)
    AND (since IS NULL OR k.parked_at >= since)
    AND (topics IS NULL OR EXISTS (SELECT 1 FROM outbox.all_events e
                                   WHERE e.seq = k.seq AND e.id = k.event_id AND outbox.topic_in(e.topic, topics)))
    ORDER BY k.seq;
    GET DIAGNOSTICS n = ROW_COUNT;
    PERFORM outbox.endpoints_changed();
    RETURN n;
END $$;
COMMENT ON FUNCTION outbox.command(pg_catalog.text, pg_catalog.text[], pg_catalog.text, pg_catalog.uuid, pg_catalog.text[], pg_catalog.timestamptz) IS 'Hands an action for each parked delivery that is meant to the worker; how many they are';

CREATE FUNCTION outbox.retry(endpoint pg_catalog.text, event pg_catalog.uuid DEFAULT NULL,
    topics pg_catalog.text[] DEFAULT NULL, since pg_catalog.timestamptz DEFAULT NULL) RETURNS pg_catalog.int8
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ SELECT outbox.command('retry', '{dead,retrying}', $1, $2, $3, $4) $$;
COMMENT ON FUNCTION outbox.retry(pg_catalog.text, pg_catalog.uuid, pg_catalog.text[], pg_catalog.timestamptz) IS
'Makes dead deliveries, and those that wait for a retry, due now, with fresh attempts, when this transaction commits; how many they are. NULL: any event, any topic, any time (since: given up or first failed then or later). Errors: 42704 no such endpoint, 22023 invalid pattern';

CREATE FUNCTION outbox.discard(endpoint pg_catalog.text, event pg_catalog.uuid DEFAULT NULL,
    topics pg_catalog.text[] DEFAULT NULL, since pg_catalog.timestamptz DEFAULT NULL) RETURNS pg_catalog.int8
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ SELECT outbox.command('discard', '{dead}', $1, $2, $3, $4) $$;
COMMENT ON FUNCTION outbox.discard(pg_catalog.text, pg_catalog.uuid, pg_catalog.text[], pg_catalog.timestamptz) IS
'Gives dead deliveries up for good, when this transaction commits; how many they are. outbox.deliveries goes on showing them, as cancelled with the reason discarded, while their events are kept. NULL: any event, any topic, any time. Errors: 42704 no such endpoint, 22023 invalid pattern';

CREATE FUNCTION outbox.replay(endpoint pg_catalog.text, from_time pg_catalog.timestamptz,
    to_time pg_catalog.timestamptz DEFAULT pg_catalog.now(), topics pg_catalog.text[] DEFAULT NULL) RETURNS pg_catalog.int8
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    p record;
    start record;
    target record;
    n int8;
BEGIN
    IF from_time IS NULL OR to_time IS NULL OR from_time > to_time
       OR NOT isfinite(from_time) OR NOT isfinite(to_time) THEN
        RAISE EXCEPTION 'invalid times: from % to %', from_time, to_time
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Both must be finite, and from_time not later than to_time.';
    END IF;
    PERFORM outbox.check_topics(topics);
    SELECT q.* INTO p FROM outbox.endpoint_positions q WHERE q.name = endpoint;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'endpoint "%" does not exist', endpoint
            USING ERRCODE = 'undefined_object',
                  HINT = 'SELECT name FROM outbox.endpoints lists them.';
    END IF;
    SELECT * INTO start FROM outbox.place(NULL, LEAST(from_time, clock_timestamp()));
    SELECT * INTO target FROM outbox.position_now('outbox.events_seq'::regclass);
    SELECT count(*) INTO n
    FROM outbox.events e JOIN outbox.endpoint_settings s ON s.endpoint_id = p.endpoint_id
    WHERE e.seq > 0 AND e.created_at BETWEEN from_time AND to_time
    AND (topics IS NULL OR outbox.topic_in(e.topic, topics))
    AND outbox.topic_in(e.topic, s.topics)
    AND outbox.filter_matches(e.payload, s.filter) IS NOT FALSE
    AND e.seq <> ALL (p.pending)
    AND (pg_visible_in_snapshot(outbox.log_xid(e.epoch, e.xid), p.done)
         OR (p.under IS NOT NULL AND e.seq <= p.last_seq
             AND pg_visible_in_snapshot(outbox.log_xid(e.epoch, e.xid), p.under)))
    AND NOT EXISTS (SELECT 1 FROM outbox.parked k WHERE k.endpoint_id = p.endpoint_id AND k.seq = e.seq);
    IF n > 0 THEN
        INSERT INTO outbox.replays (endpoint_id, topics, from_time, to_time, done, done_seq_low,
            target, target_seq_low, target_seq_high)
        VALUES (p.endpoint_id, topics, from_time, to_time, start.snapshot, start.seq_low,
            target.snapshot, target.seq_low,
            (SELECT q.last_value FROM outbox.events_seq q));
        PERFORM outbox.endpoints_changed();
    END IF;
    RETURN n;
END $$;
COMMENT ON FUNCTION outbox.replay(pg_catalog.text, pg_catalog.timestamptz, pg_catalog.timestamptz, pg_catalog.text[]) IS
'Sends events that were emitted between two times, and that the endpoint has left behind, to it again, when this transaction commits, or for the first time where they were skipped or are from before its start_at; how many they are. Only what the log still holds. outbox.replays shows how far it is. Errors: 42704 no such endpoint, 22023 invalid times or pattern';

CREATE FUNCTION outbox.cancel(event pg_catalog.uuid, endpoint pg_catalog.text DEFAULT NULL) RETURNS pg_catalog.bool
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    n int8;
    its_topic text;
    its_key text;
BEGIN
    IF event IS NULL THEN
        RAISE EXCEPTION 'event must not be NULL'
            USING ERRCODE = 'null_value_not_allowed',
                  HINT = 'Pass what outbox.emit() returned; outbox.deliveries has it as event_id.';
    END IF;
    IF endpoint IS NULL THEN
        DELETE FROM outbox.scheduled e WHERE e.id = event RETURNING e.topic, e.dedup_key INTO its_topic, its_key;
        IF FOUND THEN
            -- Nothing is left that its dedup_key could stand for.
            DELETE FROM outbox.dedup d WHERE d.topic = its_topic AND d.dedup_key = its_key AND d.event_id = event;
            RETURN true;
        END IF;
    ELSIF EXISTS (SELECT 1 FROM outbox.scheduled e WHERE e.id = event) THEN
        RAISE EXCEPTION 'event "%" is scheduled, and not yet any endpoint''s', event
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Cancel it for all endpoints, or wait until it is due.';
    END IF;
    IF NOT EXISTS (SELECT 1 FROM outbox.all_events e WHERE e.id = event) THEN
        RAISE EXCEPTION 'event "%" does not exist', event
            USING ERRCODE = 'undefined_object',
                  HINT = 'It may have been delivered and forgotten since; see outbox.retention.';
    END IF;
    IF endpoint IS NOT NULL AND NOT EXISTS (SELECT 1 FROM outbox.endpoint_settings s WHERE s.name = endpoint) THEN
        RAISE EXCEPTION 'endpoint "%" does not exist', endpoint
            USING ERRCODE = 'undefined_object',
                  HINT = 'SELECT name FROM outbox.endpoints lists them.';
    END IF;
    INSERT INTO outbox.commands (endpoint_id, action, seq)
    SELECT s.endpoint_id, 'cancel', d.seq
    FROM outbox.deliveries d JOIN outbox.endpoint_settings s ON s.name = d.endpoint
    WHERE d.event_id = event AND (cancel.endpoint IS NULL OR d.endpoint = cancel.endpoint)
    AND d.status IN ('pending', 'retrying', 'blocked')
    -- what the worker has in its hands, and no row of, cannot be taken back
    AND (EXISTS (SELECT 1 FROM outbox.parked k WHERE k.endpoint_id = s.endpoint_id AND k.seq = d.seq)
         OR NOT EXISTS (SELECT 1 FROM outbox.endpoint_positions p
                        WHERE p.endpoint_id = s.endpoint_id AND d.seq = ANY (p.pending)));
    GET DIAGNOSTICS n = ROW_COUNT;
    PERFORM outbox.endpoints_changed();
    RETURN n > 0;
END $$;
COMMENT ON FUNCTION outbox.cancel(pg_catalog.uuid, pg_catalog.text) IS
'Takes an event back from an endpoint (NULL: from all) where it still waits; true if it did anywhere. A request that is made before this transaction commits is not undone. An event that waits for its deliver_at is taken back from all, and gone; its dedup_key is free again. Errors: 42704 no such event or endpoint, 55000 scheduled and an endpoint given, 22004 event is NULL';

-- Looks again and again, each time with a snapshot of its own.
CREATE FUNCTION outbox.wait_for(event pg_catalog.uuid, timeout pg_catalog.interval DEFAULT '10 s')
RETURNS pg_catalog.bool
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    until timestamptz;
    asked timestamptz;
    emitted_by xid8;
    delivered bool;
    failed bool;
BEGIN
    IF event IS NULL OR timeout IS NULL THEN
        RAISE EXCEPTION 'event and timeout must not be NULL'
            USING ERRCODE = 'null_value_not_allowed',
                  HINT = 'Pass what outbox.emit() returned, and a timeout like ''10 s''.';
    ELSIF timeout < interval '0' THEN
        RAISE EXCEPTION 'invalid timeout %', timeout
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Use ''0'' to look once, or a time to wait.';
    ELSIF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        RAISE EXCEPTION 'outbox.wait_for() cannot be used at isolation level %',
            upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'active_sql_transaction',
                  HINT = 'This transaction would never see the event delivered: use READ COMMITTED.';
    END IF;
    SELECT e.xid INTO emitted_by
    FROM (SELECT a.id, a.xid FROM outbox.all_events a
          UNION ALL SELECT s.id, s.xid FROM outbox.scheduled s) e
    WHERE e.id = event;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'event "%" does not exist', event
            USING ERRCODE = 'undefined_object',
                  HINT = 'Its transaction may not have committed yet, or it may have been delivered and forgotten since; see outbox.retention.';
    ELSIF emitted_by = pg_current_xact_id_if_assigned() THEN
        RAISE EXCEPTION 'event "%" was emitted by this transaction', event
            USING ERRCODE = 'active_sql_transaction',
                  HINT = 'It is delivered after the commit: commit first, then wait.';
    END IF;

    until := clock_timestamp() + timeout;
    LOOP
        asked := clock_timestamp();
        SELECT COALESCE(bool_and(d.status = 'delivered'), true),
               COALESCE(bool_or(d.status IN ('dead', 'cancelled')), false)
        INTO delivered, failed
        FROM outbox.deliveries d WHERE d.event_id = event;
        IF delivered OR failed OR clock_timestamp() >= until THEN
            RETURN delivered;
        END IF;
        -- at least 15 ms, and no more than half of the time at work
        PERFORM pg_sleep(LEAST(extract(epoch FROM until - clock_timestamp()),
                               GREATEST(extract(epoch FROM clock_timestamp() - asked), 0.015)));
    END LOOP;
END $$;
COMMENT ON FUNCTION outbox.wait_for(pg_catalog.uuid, pg_catalog.interval) IS
'Waits until an event is delivered to every endpoint that subscribes to it: true, also when there is none. false: it is dead or cancelled somewhere, or the timeout is over. Errors: 25001 in the transaction that emitted it, or at isolation level REPEATABLE READ or SERIALIZABLE; 42704 no such event; 22004 NULL; 22023 negative timeout. The calling statement holds its snapshot while it waits';

-- The event is not in the log, where every endpoint would read it, but where
-- events are kept for parked deliveries; and it is one.
CREATE FUNCTION outbox.send_test(name pg_catalog.text) RETURNS pg_catalog.uuid
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    s outbox.endpoint_settings;
    e outbox.kept_events;
BEGIN
    SELECT * INTO s FROM outbox.endpoint_settings t WHERE t.name = send_test.name FOR KEY SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'endpoint "%" does not exist', name
            USING ERRCODE = 'undefined_object',
                  HINT = 'SELECT name FROM outbox.endpoints lists them.';
    END IF;
    e.xid := pg_current_xact_id();
    e.seq := outbox.next_seq();
    e.epoch := outbox.current_epoch();
    e.id := outbox.new_event_id();
    e.created_at := clock_timestamp();
    e.topic := 'outbox.test';
    e.payload := jsonb_build_object('endpoint', s.name, 'message', 'A test event: nothing happened.');
    INSERT INTO outbox.kept_events VALUES (e.*);
    INSERT INTO outbox.parked (endpoint_id, seq, event_id, status, attempts, next_attempt_at, parked_at)
    VALUES (s.endpoint_id, e.seq, e.id, 'retrying', 0, e.created_at, e.created_at);
    INSERT INTO outbox.commands (endpoint_id, action, seq) VALUES (s.endpoint_id, 'due', e.seq);
    PERFORM outbox.endpoints_changed();
    RETURN e.id;
END $$;
COMMENT ON FUNCTION outbox.send_test(pg_catalog.text) IS
'Sends one event on topic outbox.test to this endpoint alone, whatever its topics and filter, when this transaction commits; returns its id: outbox.wait_for() waits for it, outbox.attempts shows the answer. A failure is retried like any other. 42704: no such endpoint';

------------------------------------------------------------------------
-- Dropping an endpoint: it looks at what is undelivered
------------------------------------------------------------------------

CREATE FUNCTION outbox.drop_endpoint(name pg_catalog.text, discard pg_catalog.bool DEFAULT false,
    if_exists pg_catalog.bool DEFAULT false) RETURNS pg_catalog.void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    s outbox.endpoint_settings;
    p record;
BEGIN
    BEGIN
        s := outbox.lock_endpoint(name);
    EXCEPTION WHEN undefined_object THEN
        IF if_exists IS NOT TRUE THEN
            RAISE;
        END IF;
        RAISE NOTICE 'endpoint "%" does not exist, skipping', name;
        RETURN;
    END;
    IF NOT COALESCE(discard, false) THEN
        SELECT * INTO p FROM outbox.endpoint_positions q WHERE q.endpoint_id = s.endpoint_id;
        IF EXISTS (SELECT 1 FROM outbox.parked k WHERE k.endpoint_id = s.endpoint_id AND k.status <> 'cancelled')
           OR cardinality(p.pending) > 0
           OR EXISTS (SELECT 1 FROM outbox.events e
                      WHERE (e.xid >= pg_snapshot_xmin(p.done) OR outbox.current_epoch() < 0)
                      AND NOT pg_visible_in_snapshot(outbox.log_xid(e.epoch, e.xid), p.done)
                      AND NOT (p.under IS NOT NULL AND e.seq <= p.last_seq
                               AND pg_visible_in_snapshot(outbox.log_xid(e.epoch, e.xid), p.under))
                      AND outbox.topic_in(e.topic, s.topics)
                      AND outbox.filter_matches(e.payload, s.filter) IS NOT FALSE) THEN
            RAISE EXCEPTION 'endpoint "%" still has undelivered events', name
                USING ERRCODE = 'object_in_use',
                      HINT = 'Wait until outbox.stats shows none pending, retrying, blocked or dead, or give them up with discard => true.';
        END IF;
    END IF;
    DELETE FROM outbox.endpoint_settings e WHERE e.endpoint_id = s.endpoint_id;
END $$;
COMMENT ON FUNCTION outbox.drop_endpoint(pg_catalog.text, pg_catalog.bool, pg_catalog.bool) IS 'Removes an endpoint. 55006: something is undelivered, unless discard; 42704: no such endpoint, unless if_exists';

------------------------------------------------------------------------
-- Copies: what came with a log that was written elsewhere becomes ours
------------------------------------------------------------------------

-- The subscription's publisher writes there: what is here would not be ours.
CREATE FUNCTION outbox.refuse_subscribed() RETURNS pg_catalog.void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    target text;
BEGIN
    SELECT r.srrelid::regclass::text INTO target
    FROM pg_subscription_rel r JOIN pg_class c ON c.oid = r.srrelid
    WHERE c.relnamespace = 'outbox'::regnamespace ORDER BY c.relname LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'a subscription writes to %', target
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Run ALTER SUBSCRIPTION … REFRESH PUBLICATION: with outbox in shared_preload_libraries it leaves out the tables of outbox.';
    END IF;
END $$;
COMMENT ON FUNCTION outbox.refuse_subscribed() IS 'Refuses to go on where tables of outbox are targets of a subscription (55000)';

-- The second guard, for a subscription that was made while the library was not
-- loaded: see src/server/subscription.c.
CREATE FUNCTION outbox.keep_out() RETURNS pg_catalog.trigger
LANGUAGE C VOLATILE AS 'MODULE_PATHNAME', 'outbox_keep_out_1_0';
COMMENT ON FUNCTION outbox.keep_out() IS 'Passes over rows that a subscription brings, and refuses to empty a table for it (55000)';
DO $$
DECLARE
    t pg_catalog.text;
BEGIN
    FOR t IN SELECT c.relname FROM pg_catalog.pg_class c
             WHERE c.relnamespace OPERATOR(pg_catalog.=) 'outbox'::pg_catalog.regnamespace
             AND c.relkind OPERATOR(pg_catalog.=) 'r'
    LOOP
        EXECUTE pg_catalog.format('CREATE TRIGGER keep_out BEFORE INSERT OR UPDATE OR DELETE ON outbox.%I'
                                  ' FOR EACH ROW EXECUTE FUNCTION outbox.keep_out()', t);
        EXECUTE pg_catalog.format('ALTER TABLE outbox.%I ENABLE REPLICA TRIGGER keep_out', t);
        EXECUTE pg_catalog.format('CREATE TRIGGER keep BEFORE TRUNCATE ON outbox.%I'
                                  ' FOR EACH STATEMENT EXECUTE FUNCTION outbox.keep_out()', t);
        EXECUTE pg_catalog.format('ALTER TABLE outbox.%I ENABLE REPLICA TRIGGER keep', t);
    END LOOP;
END $$;

-- Whoever has a key waits behind the others of it that are parked.
CREATE FUNCTION outbox.parked_as(s outbox.endpoint_settings, key pg_catalog.text, payload pg_catalog.jsonb,
    OUT status pg_catalog.text, OUT reason pg_catalog.text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN outbox.filter_matches(payload, s.filter) IS NULL THEN 'dead'
                WHEN s.ordering = 'key' AND key IS NOT NULL THEN 'blocked' ELSE 'retrying' END,
           CASE WHEN outbox.filter_matches(payload, s.filter) IS NULL THEN 'filter failed' END
$$;
COMMENT ON FUNCTION outbox.parked_as(outbox.endpoint_settings, pg_catalog.text, pg_catalog.jsonb) IS 'How a delivery that was not finished is parked when a copy is adopted';

-- Positions are snapshots, and a snapshot says nothing about the transactions of
-- another system. But the events of a copy are all committed, so that the order
-- of their numbers is the one that was promised. What some endpoint has yet to
-- read is therefore rewritten as if this transaction had emitted it, with the
-- numbers it has; each endpoint's position says up to which of them it has read;
-- the few below that it has not are parked.
CREATE FUNCTION outbox.adopt() RETURNS pg_catalog.int8
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    owner text;
    own xid8;
    new_epoch int8 := outbox.new_epoch();
    top int8;
    here record;
    place record;
    far int8;
    lowest int8;
    newest int8;
    ids int4[] := '{}';
    fars int8[] := '{}';
    tick int8;
    number int8;
    n int8;
BEGIN
    IF pg_is_in_recovery() THEN
        RAISE EXCEPTION 'outbox.adopt() cannot be called during recovery'
            USING ERRCODE = 'read_only_sql_transaction',
                  HINT = 'A standby needs no adoption: promoted, it goes on where the primary was.';
    ELSIF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        RAISE EXCEPTION 'outbox.adopt() cannot be called at isolation level %',
            upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'active_sql_transaction',
                  HINT = 'It has to see what was committed a moment ago: use READ COMMITTED.';
    END IF;
    PERFORM outbox.refuse_subscribed();
    LOCK TABLE outbox.origins IN SHARE ROW EXCLUSIVE MODE;
    owner := outbox.log_owner();
    IF owner = 'us' THEN
        RAISE EXCEPTION 'there is nothing to adopt: this log is this database''s own'
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Only a copy has to be adopted: SELECT state, reason FROM outbox.status shows whether this is one.';
    ELSIF owner = 'nobody' THEN
        RAISE EXCEPTION 'there is nothing to adopt: this log has not been used yet'
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Create an endpoint: SELECT outbox.create_endpoint(…).';
    END IF;

    -- Emitters wait from here on, and so does whoever changes an endpoint. An
    -- event that is written without the new epoch must not come after this.
    LOCK TABLE outbox.events, outbox.scheduled, outbox.kept_events, outbox.endpoint_settings,
        outbox.positions, outbox.parked, outbox.replays IN SHARE ROW EXCLUSIVE MODE;
    own := pg_current_xact_id();

    -- Copies of events that are still in the log. These get another epoch.
    DELETE FROM outbox.kept_events k USING outbox.events e WHERE e.seq = k.seq AND e.epoch = k.epoch;

    -- Numbers of events that were emitted here before the sequence was restored
    -- lie among those of the copy: they come after them.
    SELECT GREATEST((SELECT e.seq FROM outbox.events e WHERE e.epoch <> -1 ORDER BY e.seq DESC LIMIT 1),
                    (SELECT max(k.seq) FROM outbox.kept_events k WHERE k.epoch <> -1), 0) INTO top;
    PERFORM setval('outbox.events_seq', top) FROM outbox.events_seq s WHERE s.last_value < top;
    UPDATE outbox.events e SET seq = m.seq
    FROM (SELECT l.relation, l.row, nextval('outbox.events_seq') AS seq
          FROM (SELECT q.tableoid AS relation, q.ctid AS row FROM outbox.events q
                WHERE q.epoch = -1 AND q.seq <= top ORDER BY q.seq) l) m
    WHERE e.tableoid = m.relation AND e.ctid = m.row;

    -- A seek that no worker has seen yet
    DELETE FROM outbox.parked k USING outbox.endpoint_settings s
    WHERE k.endpoint_id = s.endpoint_id AND s.generation > 1 AND k.status <> 'cancelled'
    AND NOT EXISTS (SELECT 1 FROM outbox.positions q
                    WHERE q.endpoint_id = s.endpoint_id AND q.generation = s.generation)
    AND EXISTS (SELECT 1 FROM outbox.events e WHERE e.seq = k.seq
                AND NOT pg_visible_in_snapshot(outbox.log_xid(e.epoch, e.xid), s.start_snapshot));

    -- What an endpoint has read, and not finished
    INSERT INTO outbox.parked (endpoint_id, seq, event_id, key, status, reason, attempts, next_attempt_at, parked_at)
    SELECT p.endpoint_id, e.seq, e.id, e.key, v.*, 0, now(), now()
    FROM outbox.endpoint_positions p JOIN outbox.endpoint_settings s USING (endpoint_id)
    JOIN outbox.all_events e ON e.seq = ANY (p.pending)
    CROSS JOIN LATERAL outbox.parked_as(s, e.key, e.payload) v
    ON CONFLICT DO NOTHING;

    -- What is left of a replay
    INSERT INTO outbox.parked (endpoint_id, seq, event_id, key, status, reason, attempts, next_attempt_at, redelivery, parked_at)
    SELECT r.endpoint_id, e.seq, e.id, e.key, v.*, 0, now(), 2, now()
    FROM outbox.replays r JOIN outbox.endpoint_settings s USING (endpoint_id)
    JOIN outbox.endpoint_positions p USING (endpoint_id)
    JOIN outbox.events e ON e.created_at BETWEEN r.from_time AND r.to_time
    CROSS JOIN LATERAL (SELECT outbox.log_xid(e.epoch, e.xid) AS xid) x
    CROSS JOIN LATERAL outbox.parked_as(s, e.key, e.payload) v
    WHERE r.finished_at IS NULL
    AND pg_visible_in_snapshot(x.xid, r.target) AND NOT pg_visible_in_snapshot(x.xid, r.done)
    AND NOT (r.under AND e.seq <= r.last_seq)
    AND (pg_visible_in_snapshot(x.xid, p.done)
         OR (p.under IS NOT NULL AND e.seq <= p.last_seq AND pg_visible_in_snapshot(x.xid, p.under)))
    AND (r.topics IS NULL OR outbox.topic_in(e.topic, r.topics))
    AND outbox.topic_in(e.topic, s.topics) AND outbox.filter_matches(e.payload, s.filter) IS NOT FALSE
    ON CONFLICT DO NOTHING;
    UPDATE outbox.replays SET finished_at = now() WHERE finished_at IS NULL;

    -- How far in the order of numbers; and what lies before that, unread,
    -- because its transaction committed late
    lowest := top;
    FOR place IN
        SELECT p.done::text::pg_snapshot AS done, p.under::text::pg_snapshot AS under, p.last_seq,
               array_agg(p.endpoint_id) AS endpoints
        FROM outbox.endpoint_positions p
        GROUP BY p.done::text, p.under::text, p.last_seq
    LOOP
        SELECT e.seq INTO far FROM outbox.events e
        CROSS JOIN LATERAL (SELECT outbox.log_xid(e.epoch, e.xid) AS xid) x
        WHERE pg_visible_in_snapshot(x.xid, place.done)
        OR (place.under IS NOT NULL AND e.seq <= place.last_seq AND pg_visible_in_snapshot(x.xid, place.under))
        ORDER BY e.seq DESC LIMIT 1;
        far := COALESCE(far, 0);
        INSERT INTO outbox.parked (endpoint_id, seq, event_id, key, status, reason, attempts, next_attempt_at, parked_at)
        SELECT s.endpoint_id, e.seq, e.id, e.key, v.*, 0, now(), now()
        FROM outbox.events e
        CROSS JOIN LATERAL (SELECT outbox.log_xid(e.epoch, e.xid) AS xid) x
        JOIN outbox.endpoint_settings s ON s.endpoint_id = ANY (place.endpoints)
        CROSS JOIN LATERAL outbox.parked_as(s, e.key, e.payload) v
        WHERE e.xid >= pg_snapshot_xmin(place.done) AND e.seq <= far
        AND NOT pg_visible_in_snapshot(x.xid, place.done)
        AND NOT (place.under IS NOT NULL AND e.seq <= place.last_seq AND pg_visible_in_snapshot(x.xid, place.under))
        AND outbox.topic_in(e.topic, s.topics) AND outbox.filter_matches(e.payload, s.filter) IS NOT FALSE
        ON CONFLICT DO NOTHING;
        lowest := LEAST(lowest, far);
        ids := ids || place.endpoints;
        fars := fars || array_fill(far, ARRAY[cardinality(place.endpoints)]);
    END LOOP;

    -- What is undelivered is ours
    UPDATE outbox.events e SET epoch = new_epoch, xid = own
    WHERE e.seq > lowest AND outbox.log_xid(e.epoch, e.xid) IS NOT NULL;
    UPDATE outbox.scheduled e SET epoch = new_epoch, xid = own WHERE outbox.log_xid(e.epoch, e.xid) IS NOT NULL;
    UPDATE outbox.kept_events k SET epoch = new_epoch, xid = own WHERE k.epoch = -1;
    PERFORM outbox.take_log(new_epoch);

    -- The place of each endpoint, in snapshots of this system. Who has nothing
    -- left shares one. Events of this transaction that are yet to
    -- come have higher numbers than any that is known now.
    SELECT * INTO here FROM outbox.position_now('outbox.events_seq'::regclass);
    SELECT COALESCE(max(e.seq), 0) INTO newest FROM outbox.events e WHERE e.xid = own;
    SELECT GREATEST((SELECT max(GREATEST(q.done_tick, q.under_tick)) FROM outbox.positions q),
                    (SELECT max(t.tick) FROM outbox.ticks t), 0) INTO tick;
    SELECT COALESCE(max(q.number), 0) INTO number FROM outbox.positions q;
    WITH former AS (DELETE FROM outbox.positions q
                    RETURNING q.endpoint_id, q.number, q.delivered, q.failed_attempts)
    INSERT INTO outbox.positions (piece, number, endpoint_id, shared, generation, done_tick, done, done_seq_low,
        under_tick, under, under_seq_low, under_seq_high, last_seq, delivered, failed_attempts, settled_at)
    SELECT 0, number + row_number() OVER (ORDER BY p.id), p.id, CASE WHEN p.id > 0 AND p.far >= newest THEN -1 END,
           COALESCE(s.generation, 0), tick + 1, here.snapshot, here.seq_low,
           tick + 2, here.committed, here.seq_low, 9223372036854775807, p.far,
           COALESCE(f.delivered, 0), COALESCE(f.failed_attempts, 0), clock_timestamp()
    FROM (SELECT u.id, u.far FROM unnest(ids, fars) u(id, far) UNION ALL SELECT -1, here.seq_low) p
    LEFT JOIN outbox.endpoint_settings s ON s.endpoint_id = p.id
    LEFT JOIN LATERAL (SELECT g.delivered, g.failed_attempts FROM former g WHERE g.endpoint_id = p.id
                       ORDER BY g.number DESC LIMIT 1) f ON true;
    UPDATE outbox.endpoint_settings SET start_snapshot = here.committed, start_seq_low = here.seq_low;
    DELETE FROM outbox.subscriptions;
    INSERT INTO outbox.subscriptions (endpoint_id, version, topics, filter, done, under, last_seq)
    SELECT s.endpoint_id, s.version, s.topics, s.filter, '3:3:', NULL, 0 FROM outbox.endpoint_settings s;
    DELETE FROM outbox.ticks;
    INSERT INTO outbox.ticks (piece, tick, taken_at, snapshot, seq_low, seq_high)
    SELECT 0, tick + 1, clock_timestamp(), here.committed, here.seq_low, here.seq_low;

    SELECT count(*) INTO n
    FROM unnest(ids, fars) p(id, far) JOIN outbox.endpoint_settings s ON s.endpoint_id = p.id
    JOIN outbox.events e ON e.xid = own AND e.seq > p.far
    WHERE outbox.topic_in(e.topic, s.topics) AND outbox.filter_matches(e.payload, s.filter) IS NOT FALSE
    AND NOT EXISTS (SELECT 1 FROM outbox.parked k WHERE k.endpoint_id = p.id AND k.seq = e.seq);
    n := n + (SELECT count(*) FROM outbox.parked k JOIN outbox.endpoint_settings s USING (endpoint_id)
              WHERE k.status IN ('retrying', 'blocked'));
    PERFORM outbox.endpoints_changed();
    PERFORM outbox.wake_launcher();
    RETURN n;
END $$;
COMMENT ON FUNCTION outbox.adopt() IS
'Makes the log of a copy (dump, template, pg_upgrade, another outbox.instance_name) this database''s own, and delivers what was undelivered in it, when this transaction commits; returns how many deliveries that are, scheduled events not counted. Emitters wait until then. Errors: 55000 nothing to adopt, or a subscription writes to tables of outbox; 25001 at isolation level REPEATABLE READ or SERIALIZABLE; 25006 during recovery';

------------------------------------------------------------------------
-- Only the owner may do anything.  doc/security.md lists what to grant.
------------------------------------------------------------------------

-- Nor may anybody to whom whoever runs this script has given default privileges.
DO $$
DECLARE
    f pg_catalog.regprocedure;
    grantee pg_catalog.text;
BEGIN
    FOR grantee IN
        SELECT DISTINCT COALESCE(pg_catalog.quote_ident(r.rolname), 'PUBLIC')
        FROM (SELECT c.relacl, c.relowner FROM pg_catalog.pg_class c
              WHERE c.relnamespace OPERATOR(pg_catalog.=) 'outbox'::pg_catalog.regnamespace
              UNION ALL
              SELECT p.proacl, p.proowner FROM pg_catalog.pg_proc p
              WHERE p.pronamespace OPERATOR(pg_catalog.=) 'outbox'::pg_catalog.regnamespace) o (acl, owner)
        CROSS JOIN LATERAL pg_catalog.aclexplode(o.acl) a
        LEFT JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) a.grantee
        WHERE a.grantee OPERATOR(pg_catalog.<>) o.owner
    LOOP
        EXECUTE pg_catalog.format('REVOKE ALL ON ALL TABLES IN SCHEMA outbox FROM %s', grantee);
        EXECUTE pg_catalog.format('REVOKE ALL ON ALL SEQUENCES IN SCHEMA outbox FROM %s', grantee);
        IF grantee OPERATOR(pg_catalog.<>) 'PUBLIC' THEN
            EXECUTE pg_catalog.format('REVOKE ALL ON ALL FUNCTIONS IN SCHEMA outbox FROM %s', grantee);
        END IF;
    END LOOP;
    FOR f IN SELECT p.oid FROM pg_catalog.pg_proc p
             WHERE p.pronamespace OPERATOR(pg_catalog.=) 'outbox'::pg_catalog.regnamespace
             AND p.proname NOT IN ('current_piece', 'next_seq', 'current_epoch', 'log_xid', 'new_event_id', 'check_event')
    LOOP
        EXECUTE pg_catalog.format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', f);
    END LOOP;
END $$;

------------------------------------------------------------------------
-- What a dump holds: everything but the secrets, and which piece is in use.
------------------------------------------------------------------------

SELECT pg_catalog.pg_extension_config_dump('outbox.origins', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.events_seq', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.events_0', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.events_1', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.events_2', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.kept_events', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.scheduled', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.dedup', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.endpoint_settings', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.endpoint_settings_endpoint_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.subscriptions', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.positions_0', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.positions_1', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.ticks_0', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.ticks_1', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.ticks_2', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.parked', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.replays', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.replays_replay_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.commands', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.commands_command_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.attempt_log_0', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.attempt_log_1', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.attempt_log_2', '');

SELECT outbox.wake_launcher();

------------------------------------------------------------------------
-- What the columns of the views mean, in the words of doc/sql-reference.md, and
-- what the tables are that nobody but the worker writes.
------------------------------------------------------------------------

COMMENT ON TABLE outbox.endpoint_settings IS 'Endpoints: what users set; written by create_endpoint() and its relatives';
COMMENT ON TABLE outbox.endpoint_secrets IS 'What requests are signed with: read by the owner only, not part of a dump';
COMMENT ON TABLE outbox.subscriptions IS 'Which topics an endpoint was subscribed to from which place in the log on';
COMMENT ON TABLE outbox.positions IS 'How far each endpoint has read: appended, the highest number counts';
COMMENT ON TABLE outbox.positions_0 IS 'Positions; two tables are used in turn';
COMMENT ON TABLE outbox.positions_1 IS 'Positions; two tables are used in turn';
COMMENT ON TABLE outbox.ticks IS 'Moments in the log: turns a time into a place';
COMMENT ON TABLE outbox.ticks_0 IS 'Moments that belong to events_0';
COMMENT ON TABLE outbox.ticks_1 IS 'Moments that belong to events_1';
COMMENT ON TABLE outbox.ticks_2 IS 'Moments that belong to events_2';
COMMENT ON TABLE outbox.parked IS 'Deliveries that are neither before nor behind a position: waiting for a retry, blocked, given up';
COMMENT ON TABLE outbox.commands IS 'What operators asked for and the worker has yet to do, one row per delivery';
COMMENT ON TABLE outbox.replays IS 'Parts of the log that are read again for one endpoint, and how far that is';
COMMENT ON TABLE outbox.kept_events IS 'Events that outlive their piece of the log because a parked delivery needs them; some of them may be in the log still, and count there';
COMMENT ON TABLE outbox.attempt_log IS 'Requests that were made; outbox.attempts shows them';
COMMENT ON TABLE outbox.attempt_log_0 IS 'Requests; three tables are used in turn';
COMMENT ON TABLE outbox.attempt_log_1 IS 'Requests; three tables are used in turn';
COMMENT ON TABLE outbox.attempt_log_2 IS 'Requests; three tables are used in turn';
COMMENT ON TABLE outbox.pieces IS 'Which piece of the log and of the attempts is in use, and since when';

COMMENT ON COLUMN outbox.status.state IS 'running, held, disabled, no_worker, not_preloaded or version_mismatch';
COMMENT ON COLUMN outbox.status.reason IS 'why it is not running, or which steps are on hold, in words; NULL: nothing to say';
COMMENT ON COLUMN outbox.status.log_bytes IS 'size of the log with its indexes, in bytes';
COMMENT ON COLUMN outbox.status.oldest_retained_at IS 'when the oldest event of the log was emitted; NULL: the log is empty';
COMMENT ON COLUMN outbox.status.retained_by IS 'name of the endpoint that is farthest behind; NULL: none is behind';
COMMENT ON COLUMN outbox.status.enabled IS 'the setting outbox.enabled';
COMMENT ON COLUMN outbox.status.version IS 'version of the extension''s objects';
COMMENT ON COLUMN outbox.status.unmatched IS 'events since there is a worker that no endpoint subscribes to; NULL: there was none';
COMMENT ON COLUMN outbox.status.held_steps IS 'how many rows outbox.held_steps has, those left out that wait for a lock for less than a second';
COMMENT ON COLUMN outbox.status.held_since IS 'since when the oldest of them is on hold; NULL: none is';
COMMENT ON COLUMN outbox.status.held_until IS 'when the next of them is tried again; NULL: none is on hold';
COMMENT ON COLUMN outbox.held_steps.worker IS 'number of the worker in the database, from 1';
COMMENT ON COLUMN outbox.held_steps.step IS 'which step';
COMMENT ON COLUMN outbox.held_steps.endpoint IS 'name of the endpoint that it failed for; NULL: the whole step';
COMMENT ON COLUMN outbox.held_steps.reason IS 'locked, privilege, missing, constraint, data, resources, cancelled or error';
COMMENT ON COLUMN outbox.held_steps.sqlstate IS 'SQLSTATE of the last error';
COMMENT ON COLUMN outbox.held_steps.last_error IS 'message of the last error';
COMMENT ON COLUMN outbox.held_steps.failures IS 'failures in a row';
COMMENT ON COLUMN outbox.held_steps.since IS 'time of the first of them';
COMMENT ON COLUMN outbox.held_steps.next_try_at IS 'when it is tried again';
COMMENT ON COLUMN outbox.set_aside.what IS 'scheduled or command';
COMMENT ON COLUMN outbox.set_aside.event_id IS 'the event; NULL: the delivery that a command was meant for is gone';
COMMENT ON COLUMN outbox.set_aside.endpoint IS 'the endpoint that a command was meant for; NULL: a scheduled event';
COMMENT ON COLUMN outbox.set_aside.action IS 'retry, discard, cancel or due; NULL: a scheduled event';
COMMENT ON COLUMN outbox.set_aside.error IS 'why';
COMMENT ON COLUMN outbox.set_aside.failed_at IS 'time of the first failure';
COMMENT ON COLUMN outbox.set_aside.retry_at IS 'when it is tried again';

COMMENT ON COLUMN outbox.endpoints.name IS 'name of the endpoint';
COMMENT ON COLUMN outbox.endpoints.url IS 'where requests go; may hold a token in its path or query';
COMMENT ON COLUMN outbox.endpoints.topics IS 'topic patterns that it subscribes to';
COMMENT ON COLUMN outbox.endpoints.filter IS 'predicate over the payload that must be true, as jsonpath; NULL: none';
COMMENT ON COLUMN outbox.endpoints.format IS 'standard, raw, cloudevents or cloudevents-binary';
COMMENT ON COLUMN outbox.endpoints.headers IS 'headers that are sent with each request; may hold tokens; NULL: none';
COMMENT ON COLUMN outbox.endpoints.ordering IS 'key, none or strict';
COMMENT ON COLUMN outbox.endpoints.on_exhausted IS 'what a dead event means for its key: skip or block';
COMMENT ON COLUMN outbox.endpoints.max_in_flight IS 'requests in flight at most';
COMMENT ON COLUMN outbox.endpoints.rate_limit IS 'requests per second; NULL: no limit';
COMMENT ON COLUMN outbox.endpoints.timeout IS 'time for a whole request';
COMMENT ON COLUMN outbox.endpoints.connect_timeout IS 'time for the name lookup and the connection';
COMMENT ON COLUMN outbox.endpoints.max_attempts IS 'attempts after which a delivery is dead; NULL: no limit';
COMMENT ON COLUMN outbox.endpoints.max_age IS 'time after the first attempt from which on a failed delivery is dead';
COMMENT ON COLUMN outbox.endpoints.backoff_base IS 'upper bound of the wait after the first failure';
COMMENT ON COLUMN outbox.endpoints.backoff_max IS 'upper bound of any wait';
COMMENT ON COLUMN outbox.endpoints.batch_size IS 'events in a request at most; 1: no batches';
COMMENT ON COLUMN outbox.endpoints.batch_wait IS 'how long the oldest event of a batch may wait for others';
COMMENT ON COLUMN outbox.endpoints.state IS 'active, paused or disabled, as stored';
COMMENT ON COLUMN outbox.endpoints.state_since IS 'when that state began';
COMMENT ON COLUMN outbox.endpoints.reason IS 'why it is paused or disabled; NULL: active';
COMMENT ON COLUMN outbox.endpoints.created_at IS 'when the endpoint was created';

COMMENT ON COLUMN outbox.stats.endpoint IS 'name of the endpoint';
COMMENT ON COLUMN outbox.stats.state IS 'active, paused, held, backing_off or disabled';
COMMENT ON COLUMN outbox.stats.state_since IS 'when that state began';
COMMENT ON COLUMN outbox.stats.reason IS 'why it is not active; of an active one: outbox.worker_memory is used up, when that holds it back; else NULL';
COMMENT ON COLUMN outbox.stats.pending IS 'events that wait for their first attempt and are not blocked';
COMMENT ON COLUMN outbox.stats.pending_exact IS 'false: pending is an estimate, because counting lags behind or no worker runs; while a worker counts, retrying, blocked and dead are too low';
COMMENT ON COLUMN outbox.stats.processing IS 'deliveries in flight';
COMMENT ON COLUMN outbox.stats.retrying IS 'deliveries that failed and wait for their next attempt';
COMMENT ON COLUMN outbox.stats.blocked IS 'deliveries that wait behind another one of their key and have a row for it; with ordering strict and a dead one that blocks, all that wait';
COMMENT ON COLUMN outbox.stats.dead IS 'deliveries that were given up and not dealt with';
COMMENT ON COLUMN outbox.stats.delivered IS 'deliveries since the endpoint was created';
COMMENT ON COLUMN outbox.stats.failed_attempts IS 'failed attempts since the endpoint was created, one for each event of a failed batch';
COMMENT ON COLUMN outbox.stats.oldest_pending_age IS 'age of the oldest event that waits for its first attempt or is in flight; NULL: none, or not known';
COMMENT ON COLUMN outbox.stats.retained_bytes IS 'part of the log that the endpoint has yet to read, in bytes, estimated';
COMMENT ON COLUMN outbox.stats.next_attempt_at IS 'when the next retry or, while backing off, the next probe is due; NULL: none';
COMMENT ON COLUMN outbox.stats.rate_per_s IS 'deliveries per second, over the last minute';
COMMENT ON COLUMN outbox.stats.latency_p50_ms IS 'median of the time from emit to 2xx, in ms: first attempts of the last five minutes; NULL: none';
COMMENT ON COLUMN outbox.stats.latency_p95_ms IS '95th percentile of the same, in ms';
COMMENT ON COLUMN outbox.stats.latency_p99_ms IS '99th percentile of the same, in ms';
COMMENT ON COLUMN outbox.stats.last_success_at IS 'when a request last succeeded; NULL: not since the worker started';
COMMENT ON COLUMN outbox.stats.last_error IS 'the last failure in words; NULL: none since the worker started';

COMMENT ON COLUMN outbox.deliveries.event_id IS 'id of the event, sent as webhook-id';
COMMENT ON COLUMN outbox.deliveries.seq IS 'number of the event in the log; NULL: scheduled';
COMMENT ON COLUMN outbox.deliveries.topic IS 'topic of the event';
COMMENT ON COLUMN outbox.deliveries.type IS 'type of the event; its topic where none was given';
COMMENT ON COLUMN outbox.deliveries.key IS 'key of the event; NULL: none';
COMMENT ON COLUMN outbox.deliveries.endpoint IS 'name of the endpoint';
COMMENT ON COLUMN outbox.deliveries.status IS 'scheduled, pending, processing, delivered, retrying, blocked, dead or cancelled';
COMMENT ON COLUMN outbox.deliveries.reason IS 'of dead: max_attempts, max_age, expired, aborted by receiver, invalid event, filter failed, backlog, event is gone or unreadable; of scheduled: set aside; of cancelled: cancelled or discarded; NULL: any other status';
COMMENT ON COLUMN outbox.deliveries.attempts IS 'requests made, since outbox.retry() if that was called; 0 once they are forgotten, see outbox.attempts_retention';
COMMENT ON COLUMN outbox.deliveries.next_attempt_at IS 'when the next attempt is due, or a scheduled event; NULL: neither retrying nor scheduled';
COMMENT ON COLUMN outbox.deliveries.last_status_code IS 'HTTP status of the last attempt; NULL: no answer, or forgotten';
COMMENT ON COLUMN outbox.deliveries.last_error IS 'the last failure in words; NULL: none, or forgotten';
COMMENT ON COLUMN outbox.deliveries.created_at IS 'when the event was emitted';
COMMENT ON COLUMN outbox.deliveries.delivered_at IS 'when the receiver answered 2xx; NULL: not yet, or forgotten';

COMMENT ON COLUMN outbox.dead_letters.event_id IS 'id of the event, sent as webhook-id';
COMMENT ON COLUMN outbox.dead_letters.seq IS 'number of the event in the log';
COMMENT ON COLUMN outbox.dead_letters.topic IS 'topic of the event';
COMMENT ON COLUMN outbox.dead_letters.type IS 'type of the event; its topic where none was given';
COMMENT ON COLUMN outbox.dead_letters.key IS 'key of the event; NULL: none';
COMMENT ON COLUMN outbox.dead_letters.endpoint IS 'name of the endpoint';
COMMENT ON COLUMN outbox.dead_letters.status IS 'dead';
COMMENT ON COLUMN outbox.dead_letters.reason IS 'max_attempts, max_age, expired, aborted by receiver, invalid event, filter failed, backlog, event is gone or unreadable';
COMMENT ON COLUMN outbox.dead_letters.attempts IS 'attempts that counted; probes of an endpoint that is backing off do not';
COMMENT ON COLUMN outbox.dead_letters.last_status_code IS 'HTTP status of the last attempt; NULL: no answer';
COMMENT ON COLUMN outbox.dead_letters.last_error IS 'the last failure in words';
COMMENT ON COLUMN outbox.dead_letters.created_at IS 'when the event was emitted';
COMMENT ON COLUMN outbox.dead_letters.parked_at IS 'when the delivery first failed or was blocked';
COMMENT ON COLUMN outbox.dead_letters.headers IS 'headers of the event; NULL: none';
COMMENT ON COLUMN outbox.dead_letters.payload IS 'payload of the event; NULL: there is a body';
COMMENT ON COLUMN outbox.dead_letters.body IS 'bytes of the event; NULL: there is a payload';
COMMENT ON COLUMN outbox.dead_letters.content_type IS 'media type of body; NULL: there is a payload';

COMMENT ON COLUMN outbox.attempts.event_id IS 'id of the event';
COMMENT ON COLUMN outbox.attempts.endpoint IS 'name of the endpoint; NULL: it was dropped';
COMMENT ON COLUMN outbox.attempts.attempt IS 'number of the attempt, from 1; probes do not count and repeat a number';
COMMENT ON COLUMN outbox.attempts.started_at IS 'when the request was made';
COMMENT ON COLUMN outbox.attempts.duration_ms IS 'how long it took, in ms';
COMMENT ON COLUMN outbox.attempts.status_code IS 'HTTP status; NULL: no answer';
COMMENT ON COLUMN outbox.attempts.error IS 'the failure in words; NULL: delivered';
COMMENT ON COLUMN outbox.attempts.response_body IS 'first 1024 bytes of the answer''s body; NULL: delivered, empty, or it is with the first event of the batch';

COMMENT ON COLUMN outbox.workers.pid IS 'process id of the worker; NULL: it waits to be started again';
COMMENT ON COLUMN outbox.workers.datname IS 'database that it serves';
COMMENT ON COLUMN outbox.workers.worker IS 'number of the worker in its database, from 1';
COMMENT ON COLUMN outbox.workers.state IS 'starting, running, disabled, held, version_mismatch, or no_worker without a process';
COMMENT ON COLUMN outbox.workers.reason IS 'why it is not running, in words; NULL: nothing to say';
COMMENT ON COLUMN outbox.workers.started_at IS 'when the process started';
COMMENT ON COLUMN outbox.workers.endpoints IS 'endpoints that it serves';
COMMENT ON COLUMN outbox.workers.in_flight IS 'requests in flight';
COMMENT ON COLUMN outbox.workers.delivered IS 'deliveries since the process started';
COMMENT ON COLUMN outbox.workers.restarts IS 'times that this worker ended with an error, since the server started';
COMMENT ON COLUMN outbox.workers.last_loop_at IS 'when its loop last went round; NULL: not yet';
COMMENT ON COLUMN outbox.workers.memory IS 'bytes that events, bodies of requests and answers take of outbox.worker_memory at present';

COMMENT ON COLUMN outbox.endpoint_positions.endpoint_id IS 'number of the endpoint';
COMMENT ON COLUMN outbox.endpoint_positions.name IS 'name of the endpoint';
COMMENT ON COLUMN outbox.endpoint_positions.done IS 'snapshot: what it sees has been read';
COMMENT ON COLUMN outbox.endpoint_positions.under IS 'snapshot: what it sees has been read as far as last_seq; NULL: between two ticks';
COMMENT ON COLUMN outbox.endpoint_positions.last_seq IS 'last event that was read of under';
COMMENT ON COLUMN outbox.endpoint_positions.seq IS 'about where in the log that is';
COMMENT ON COLUMN outbox.endpoint_positions.pending IS 'events before the position that were on their way when it was stored';
COMMENT ON COLUMN outbox.endpoint_positions.delivered IS 'deliveries since the endpoint was created';
COMMENT ON COLUMN outbox.endpoint_positions.failed_attempts IS 'failed requests since the endpoint was created';
COMMENT ON COLUMN outbox.endpoint_positions.stuck IS 'all that waits, waits behind a dead delivery: ordering is strict, and on_exhausted block';

COMMENT ON COLUMN outbox.log_size.bytes IS 'size of the log with its indexes, in bytes';
COMMENT ON COLUMN outbox.log_size.min_seq IS 'lowest number in the log; NULL: the log is empty';
COMMENT ON COLUMN outbox.log_size.oldest_at IS 'when that event was emitted; NULL: the log is empty';
COMMENT ON COLUMN outbox.log_size.max_seq IS 'highest number that was drawn';

COMMENT ON COLUMN outbox.all_events.id IS 'id of the event';
COMMENT ON COLUMN outbox.all_events.seq IS 'number of the event in the log';
COMMENT ON COLUMN outbox.all_events.xid IS 'transaction that emitted it';
COMMENT ON COLUMN outbox.all_events.epoch IS 'origin that it was written in';
COMMENT ON COLUMN outbox.all_events.created_at IS 'when it was emitted';
COMMENT ON COLUMN outbox.all_events.expires_at IS 'not delivered after this time; NULL: no limit';
COMMENT ON COLUMN outbox.all_events.topic IS 'topic';
COMMENT ON COLUMN outbox.all_events.type IS 'type; the topic where none was given';
COMMENT ON COLUMN outbox.all_events.key IS 'key; NULL: none';
COMMENT ON COLUMN outbox.all_events.headers IS 'headers; NULL: none';
COMMENT ON COLUMN outbox.all_events.payload IS 'payload; NULL: there is a body';
COMMENT ON COLUMN outbox.all_events.body IS 'bytes; NULL: there is a payload';
COMMENT ON COLUMN outbox.all_events.content_type IS 'media type of body; NULL: there is a payload';
