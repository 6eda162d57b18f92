------------------------------------------------------------------------
-- Positions: how far each endpoint has read.
--
-- Rows are appended and never updated: the highest number of an endpoint counts.
-- Two tables are used in turn: when one is full, a worker truncates the other, and
-- copies the rows that count to it. A shared position is written only by the
-- process that made it. When that process ends, the endpoints that share the
-- position stay where it was.
------------------------------------------------------------------------

CREATE FUNCTION outbox.pending_seqs(pending bytea) RETURNS int8[]
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'outbox_pending_seqs_1_0';
COMMENT ON FUNCTION outbox.pending_seqs IS
'The numbers of the events that a position names as pending (NULL: it names none)';

CREATE FUNCTION outbox.is_pending(seq int8, pending bytea) RETURNS bool
LANGUAGE C IMMUTABLE CALLED ON NULL INPUT PARALLEL SAFE AS 'MODULE_PATHNAME', 'outbox_is_pending_1_0';
COMMENT ON FUNCTION outbox.is_pending IS 'True if a position names this event as pending (false where an argument is NULL)';

CREATE TABLE outbox.positions (
    piece           int2 NOT NULL,
    number          int8 NOT NULL,
    endpoint_id     int4 NOT NULL,   -- below 0: a position that idle endpoints of a worker share, 0: the totals
    shared          int4,            -- the shared position that counts for this endpoint
    generation      int8 NOT NULL,
    read_tick       int8 NOT NULL,
    read            pg_snapshot NOT NULL,
    read_seq_low    int8 NOT NULL,
    reading_tick    int8,
    reading         pg_snapshot,
    reading_seq_low int8,
    reading_seq_high int8,
    last_seq        int8 NOT NULL,
    pending         bytea,           -- before the position, and not yet settled: outbox.pending_seqs() reads it
    delivered       int8 NOT NULL,
    failed_attempts int8 NOT NULL,
    settled_at      timestamptz NOT NULL,
    counters        int8[],          -- they never go down; by the numbers of OutboxCounter (NULL: all 0)
    failing_since   timestamptz,     -- first failure since the last success
    failing_told    bool,            -- outbox.failing was emitted for that
    state_since     timestamptz,
    probes          int4,            -- failed ones in a row (NULL: it does not back off)
    PRIMARY KEY (endpoint_id, number, piece)
) PARTITION BY LIST (piece);
CREATE TABLE outbox.positions_0 PARTITION OF outbox.positions FOR VALUES IN (0);
CREATE TABLE outbox.positions_1 PARTITION OF outbox.positions FOR VALUES IN (1);
-- It is packed already, and ten times as fast to write as to compress.
ALTER TABLE outbox.positions ALTER COLUMN pending SET STORAGE EXTERNAL;
COMMENT ON TABLE outbox.positions IS 'How far each endpoint has read: appended, the highest number counts';
COMMENT ON TABLE outbox.positions_0 IS 'Positions: two tables are used in turn';
COMMENT ON TABLE outbox.positions_1 IS 'Positions: two tables are used in turn';

-- Ticks that were stored, about one a second while events flow. They turn a time
-- into a place in the log.
CREATE TABLE outbox.ticks (
    piece           int2 NOT NULL,
    tick            int8 NOT NULL,
    taken_at        timestamptz NOT NULL,
    snapshot        pg_snapshot NOT NULL,
    seq_low         int8 NOT NULL,
    seq_high        int8 NOT NULL,
    clock           int4 NOT NULL,   -- raised where taken_at is earlier than that of the tick before
    PRIMARY KEY (tick, piece)
) PARTITION BY LIST (piece);
CREATE INDEX ticks_time ON outbox.ticks (clock, taken_at, tick);
CREATE TABLE outbox.ticks_0 PARTITION OF outbox.ticks FOR VALUES IN (0);
CREATE TABLE outbox.ticks_1 PARTITION OF outbox.ticks FOR VALUES IN (1);
CREATE TABLE outbox.ticks_2 PARTITION OF outbox.ticks FOR VALUES IN (2);
COMMENT ON TABLE outbox.ticks IS 'Ticks that were stored: they turn a time into a place in the log';
COMMENT ON TABLE outbox.ticks_0 IS 'Ticks that belong to events_0';
COMMENT ON TABLE outbox.ticks_1 IS 'Ticks that belong to events_1';
COMMENT ON TABLE outbox.ticks_2 IS 'Ticks that belong to events_2';

------------------------------------------------------------------------
-- Parked: deliveries that are neither before nor behind a position
------------------------------------------------------------------------

CREATE TABLE outbox.parked (
    endpoint_id     int4 NOT NULL,
    seq             int8 NOT NULL,
    event_id        uuid NOT NULL,
    key             text COLLATE "C",
    status          text NOT NULL,   -- retrying, blocked, dead, cancelled
    reason          text,
    attempts        int4 NOT NULL,
    first_attempt_at timestamptz,
    next_attempt_at timestamptz,
    last_status_code int4,
    last_error      text,
    parked_at       timestamptz NOT NULL,
    redelivery      int2 NOT NULL DEFAULT 0, -- an operator asked for it: 1 retry, 2 replay, 3 resend
    batch           int8,            -- deliveries with the same number are tried again together
    PRIMARY KEY (endpoint_id, seq)
);
COMMENT ON TABLE outbox.parked IS 'Deliveries that wait for a retry, are blocked, or were given up';
CREATE INDEX parked_seq_idx ON outbox.parked (seq, endpoint_id);
CREATE INDEX parked_followers_idx ON outbox.parked (endpoint_id, key, seq)
    WHERE status = 'blocked';
-- The worker holds a bounded part of this table in memory, and reads the rest when it is due.
CREATE INDEX parked_due_idx ON outbox.parked (endpoint_id, next_attempt_at, seq)
    WHERE status = 'retrying';
-- Whether something of a key waits for a retry.
CREATE INDEX parked_heads_idx ON outbox.parked (endpoint_id, key, seq)
    WHERE status = 'retrying' AND key IS NOT NULL;
-- The dead letters of an event, and so of a tenant.
CREATE INDEX parked_dead_idx ON outbox.parked (event_id) WHERE status = 'dead';
CREATE INDEX parked_blockers_idx ON outbox.parked (endpoint_id, key)
    WHERE status = 'dead'
    AND reason = ANY (ARRAY['max_attempts', 'max_age', 'aborted by receiver']);
CREATE INDEX parked_cancelled_idx ON outbox.parked (endpoint_id, seq)
    WHERE status = 'cancelled';

-- Requests of operators, one row per delivery. Only the worker changes
-- outbox.parked, so that no open transaction of an operator can make it wait.
CREATE TABLE outbox.commands (
    command_id      int8 GENERATED ALWAYS AS IDENTITY,
    endpoint_id     int4 NOT NULL,
    action          text NOT NULL,   -- retry, resend, discard, cancel, due, probe, forget, limit
    seq             int8 NOT NULL,   -- 0 with probe
    failed_at       timestamptz,     -- first failure, after which it is tried again
    retry_at        timestamptz,
    error           text,
    asked_by        xid8 NOT NULL DEFAULT pg_current_xact_id(),
    PRIMARY KEY (endpoint_id, command_id)
);
CREATE INDEX commands_delivery_idx ON outbox.commands (seq, endpoint_id);
CREATE INDEX commands_retry_idx ON outbox.commands (retry_at) WHERE retry_at IS NOT NULL;
CREATE INDEX commands_forget_idx ON outbox.commands (endpoint_id) WHERE action = 'forget';
CREATE INDEX commands_aside_idx ON outbox.commands (endpoint_id, seq) WHERE retry_at IS NOT NULL;
COMMENT ON TABLE outbox.commands IS
'Requests of operators that the worker has not carried out yet, one row per delivery, or per endpoint to '
'probe';

-- Parts of the log that are read again for one endpoint, and how far each is read.
CREATE TABLE outbox.replays (
    replay_id       int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    endpoint_id     int4 NOT NULL,
    topics          text[],
    from_time       timestamptz NOT NULL,
    to_time         timestamptz NOT NULL,
    read            pg_snapshot NOT NULL,
    read_seq_low    int8 NOT NULL,
    reading         bool NOT NULL DEFAULT false,
    last_seq        int8 NOT NULL DEFAULT 0,
    target          pg_snapshot NOT NULL,
    target_seq_high int8 NOT NULL,
    events          int8 NOT NULL DEFAULT 0,
    expected        int8,                 -- as they were counted at the call (NULL: too many to count)
    started_at      timestamptz NOT NULL DEFAULT now(),
    finished_at     timestamptz,
    cancelled       bool NOT NULL DEFAULT false
);
CREATE INDEX replays_endpoint_idx ON outbox.replays (endpoint_id, replay_id);
CREATE INDEX replays_open_idx ON outbox.replays (endpoint_id, replay_id) WHERE finished_at IS NULL;
CREATE INDEX replays_ended_idx ON outbox.replays (finished_at) WHERE finished_at IS NOT NULL;
COMMENT ON TABLE outbox.replays IS
'Parts of the log that are read again for one endpoint, and how far each is read';

-- Events that outlive their piece of the log because a parked delivery needs them.
-- They are copied while the log still has them. A copy does not count until the
-- piece is emptied.
CREATE TABLE outbox.kept_events (
    seq         int8 NOT NULL,
    xid         xid8 NOT NULL,
    epoch       int8 NOT NULL,
    id          uuid NOT NULL,
    created_at  timestamptz NOT NULL,
    expires_at  timestamptz,
    topic       text NOT NULL,
    type        text,
    key         text,
    tenant      text COLLATE "C",
    headers     jsonb,
    payload     jsonb,
    body        bytea,
    content_type text,
    test_of     int4,            -- the only endpoint that it is for (NULL: an event of the log)
    PRIMARY KEY (seq, epoch)
);
COMMENT ON TABLE outbox.kept_events IS
'Events that outlive their piece of the log because a parked delivery needs them';
CREATE INDEX kept_events_id_idx ON outbox.kept_events (id);
CREATE INDEX kept_events_test_idx ON outbox.kept_events (test_of) WHERE test_of IS NOT NULL;
CREATE INDEX kept_events_tenant_seq_idx ON outbox.kept_events (tenant, seq) WHERE tenant IS NOT NULL;

------------------------------------------------------------------------
-- Attempts: appended in batches, to three tables in turn
------------------------------------------------------------------------

CREATE TABLE outbox.attempt_log (
    seq             int8 NOT NULL,
    started_at      timestamptz NOT NULL,
    event_id        uuid NOT NULL,
    endpoint_id     int4 NOT NULL,
    attempt         int4 NOT NULL,
    duration_ms     float4 NOT NULL,
    status_code     int2,
    piece           int2 NOT NULL,
    cause           int2 NOT NULL,   -- as outbox.attempt_cause() names it, ten times the redelivery, and 100 over HTTP/2
    lookup_ms       float4,          -- these four: NULL, there was none, or it is not kept
    connect_ms      float4,
    tls_ms          float4,
    first_byte_ms   float4,
    error           text,
    response_headers text,           -- lines "name: value"
    response_body   text,
    -- attempt starts at 1 again when an event is sent again
    PRIMARY KEY (seq, endpoint_id, attempt, started_at, piece)
) PARTITION BY LIST (piece);
CREATE TABLE outbox.attempt_log_0 PARTITION OF outbox.attempt_log FOR VALUES IN (0);
CREATE TABLE outbox.attempt_log_1 PARTITION OF outbox.attempt_log FOR VALUES IN (1);
CREATE TABLE outbox.attempt_log_2 PARTITION OF outbox.attempt_log FOR VALUES IN (2);
COMMENT ON TABLE outbox.attempt_log IS 'Requests that were made, as outbox.attempts shows them';
COMMENT ON TABLE outbox.attempt_log_0 IS 'Requests: three tables are used in turn';
COMMENT ON TABLE outbox.attempt_log_1 IS 'Requests: three tables are used in turn';
COMMENT ON TABLE outbox.attempt_log_2 IS 'Requests: three tables are used in turn';

-- Successful attempts of one endpoint that one transaction wrote, in rows of up to 75.
-- The first attempt's event and time are in columns, and the others' are relative to them.
CREATE TABLE outbox.attempt_runs (
    seq_low         int8 NOT NULL,
    seq_high        int8 NOT NULL,   -- at most seq_low + 4095
    started_at      timestamptz NOT NULL,
    endpoint_id     int4 NOT NULL,
    attempt         int4 NOT NULL,
    status_code     int2,
    piece           int2 NOT NULL,
    cause           int2 NOT NULL,
    entries         bytea NOT NULL,  -- outbox.run_attempts() reads it
    PRIMARY KEY (endpoint_id, seq_low, seq_high, started_at, attempt, cause, piece)
) PARTITION BY LIST (piece);
CREATE TABLE outbox.attempt_runs_0 PARTITION OF outbox.attempt_runs FOR VALUES IN (0);
CREATE TABLE outbox.attempt_runs_1 PARTITION OF outbox.attempt_runs FOR VALUES IN (1);
CREATE TABLE outbox.attempt_runs_2 PARTITION OF outbox.attempt_runs FOR VALUES IN (2);
COMMENT ON TABLE outbox.attempt_runs IS 'Requests that succeeded, many to a row, as outbox.attempts shows them';
COMMENT ON TABLE outbox.attempt_runs_0 IS 'Requests, many to a row: three tables are used in turn';
COMMENT ON TABLE outbox.attempt_runs_1 IS 'Requests, many to a row: three tables are used in turn';
COMMENT ON TABLE outbox.attempt_runs_2 IS 'Requests, many to a row: three tables are used in turn';

CREATE FUNCTION outbox.attempt_cause(cause int4) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (ARRAY['first', 'retry', 'replay', 'resend', 'test'])[cause % 10 + 1];
COMMENT ON FUNCTION outbox.attempt_cause IS 'What caused a request, in a word';

-- Of lines with the same name, the values are joined, as RFC 9110 says.
-- In SQL it would be planned in each call.
CREATE FUNCTION outbox.header_object(lines text) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE STRICT SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN (SELECT jsonb_object_agg(h.name, h.value)
            FROM (SELECT lower(split_part(l.line, ':', 1)) AS name,
                         string_agg(substr(l.line, strpos(l.line, ':') + 2), ', ' ORDER BY l.n) AS value
                  FROM string_to_table(lines, E'\n') WITH ORDINALITY l (line, n) GROUP BY 1) h);
END $$;
COMMENT ON FUNCTION outbox.header_object IS 'Lines "name: value" as an object';

CREATE FUNCTION outbox.run_attempts(event_seq int8, seq_low int8, run_at timestamptz, entries bytea,
    OUT seq int8, OUT started_at timestamptz, OUT event_id uuid, OUT duration_ms float4) RETURNS SETOF record
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE ROWS 50 AS 'MODULE_PATHNAME', 'outbox_run_attempts_1_0';
COMMENT ON FUNCTION outbox.run_attempts IS
'The attempts for an event, or (0) for all, that a row of outbox.attempt_runs holds (XX001: it is damaged)';

-- It has no settings of its own, so it is planned as a part of the statement that calls it.
CREATE FUNCTION outbox.delivery_attempts(event_seq int8, id int4)
RETURNS TABLE (event_id uuid, seq int8, attempt int4, started_at timestamptz, duration_ms float4, status_code int2, error text,
               response_body text, cause int2, lookup_ms float4, connect_ms float4, tls_ms float4, first_byte_ms float4, response_headers text)
LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT o.event_id, o.seq, o.attempt, o.started_at, o.duration_ms, o.status_code, o.error, o.response_body, o.cause,
           o.lookup_ms, o.connect_ms, o.tls_ms, o.first_byte_ms, o.response_headers
    FROM outbox.attempt_log o WHERE o.seq = event_seq AND o.endpoint_id = id
    UNION ALL
    SELECT o.event_id, o.seq, r.attempt, o.started_at, o.duration_ms, r.status_code, NULL, NULL, r.cause, NULL, NULL, NULL, NULL, NULL
    FROM outbox.attempt_runs r CROSS JOIN LATERAL outbox.run_attempts(event_seq, r.seq_low, r.started_at, r.entries) o
    WHERE r.endpoint_id = id AND r.seq_low BETWEEN event_seq - 4095 AND event_seq AND r.seq_high >= event_seq;
END;
COMMENT ON FUNCTION outbox.delivery_attempts IS 'The requests for an event to an endpoint';

-- Which pieces are in use, and since when.
CREATE TABLE outbox.pieces (
    log         text COLLATE "C" PRIMARY KEY,    -- events, attempts
    piece       int2 NOT NULL,
    since       timestamptz NOT NULL
);
COMMENT ON TABLE outbox.pieces IS 'Which piece of the log and of the attempts is in use, and since when';

-- The worker only reads it, so that an open transaction cannot make it wait.
CREATE TABLE outbox.retention_here (
    log         text COLLATE "C" PRIMARY KEY,    -- events, attempts
    keep        interval NOT NULL
);
COMMENT ON TABLE outbox.retention_here IS
'How long this database keeps events and attempts, where outbox.set_retention() said so';

-- Space for functions that give back space, on a disk that is full.
CREATE MATERIALIZED VIEW outbox.reserve AS SELECT repeat('x', 8000) AS filler FROM generate_series(1, 256)
WITH NO DATA;
ALTER MATERIALIZED VIEW outbox.reserve ALTER COLUMN filler SET STORAGE PLAIN;
REFRESH MATERIALIZED VIEW outbox.reserve;
COMMENT ON MATERIALIZED VIEW outbox.reserve IS 'Space that outbox gives up when the disk is full';

INSERT INTO outbox.pieces VALUES
    ('events', 0, now()),
    ('attempts', 0, now());
