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
