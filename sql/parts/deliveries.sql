------------------------------------------------------------------------
-- Endpoints: what users set. Written by the functions below; the worker only
-- ever writes the state, when a receiver asks to be disabled.
------------------------------------------------------------------------

CREATE TABLE outbox.endpoint_settings (
    endpoint_id     int4 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name            text COLLATE "C" NOT NULL UNIQUE,
    url             text NOT NULL,
    topics          text[] NOT NULL,
    filter          jsonpath,
    format          text NOT NULL,
    headers         jsonb,
    ordering        text NOT NULL,
    on_exhausted    text NOT NULL,
    max_in_flight   int4 NOT NULL,
    rate_limit      float4,
    timeout         interval NOT NULL,
    connect_timeout interval NOT NULL,
    max_attempts    int4,
    max_age         interval NOT NULL,
    backoff_base    interval NOT NULL,
    backoff_max     interval NOT NULL,
    batch_size      int4 NOT NULL,
    batch_wait      interval NOT NULL,
    state           text NOT NULL DEFAULT 'active',   -- active, paused, disabled
    state_since     timestamptz NOT NULL DEFAULT now(),
    reason          text,
    created_at      timestamptz NOT NULL DEFAULT now(),
    -- raised when topics or url change: the worker notes from which place in
    -- the log the new subscription holds
    version         int8 NOT NULL DEFAULT 1,
    -- where it begins; raised with each seek
    generation      int8 NOT NULL DEFAULT 1,
    start_snapshot  pg_snapshot NOT NULL,
    start_seq_low   int8 NOT NULL
);

-- In a table of their own, not part of a dump, and behind row-level security,
-- so that only those read it who may do everything with it: the owner, and a
-- worker that is another role. Not pg_read_all_data: it may not truncate.
CREATE TABLE outbox.endpoint_secrets (
    endpoint_id     int4 PRIMARY KEY,
    secret          text NOT NULL,
    previous        text,
    previous_until  timestamptz
);
ALTER TABLE outbox.endpoint_secrets ENABLE ROW LEVEL SECURITY;
CREATE POLICY worker ON outbox.endpoint_secrets
USING (has_table_privilege('outbox.endpoint_secrets', 'TRUNCATE'));
-- Statistics are samples of the column, and pg_statistic is a table that
-- pg_read_all_data reads.
ALTER TABLE outbox.endpoint_secrets ALTER COLUMN secret SET STATISTICS 0;
ALTER TABLE outbox.endpoint_secrets ALTER COLUMN previous SET STATISTICS 0;
ALTER TABLE outbox.endpoint_settings ALTER COLUMN url SET STATISTICS 0;
ALTER TABLE outbox.endpoint_settings ALTER COLUMN headers SET STATISTICS 0;

-- Which topics an endpoint was subscribed to at which place in the log: an
-- event is judged by the highest version that begins before it.
CREATE TABLE outbox.subscriptions (
    endpoint_id     int4 NOT NULL,
    version         int8 NOT NULL,
    topics          text[] NOT NULL,
    filter          jsonpath,
    done            pg_snapshot NOT NULL,
    under           pg_snapshot,
    last_seq        int8 NOT NULL,
    PRIMARY KEY (endpoint_id, version)
);

------------------------------------------------------------------------
-- How far each endpoint has read. Appended, never updated: the highest number
-- counts. Two tables in turn; a worker writes what counts to the other one and
-- truncates the full one. A shared position is written by the process that made
-- it and by no other: whoever follows it when that ends, stands where it stood.
------------------------------------------------------------------------

CREATE TABLE outbox.positions (
    piece           int2 NOT NULL,
    number          int8 NOT NULL,
    endpoint_id     int4 NOT NULL,   -- below 0: one that the idle endpoints of a worker share
    shared          int4,            -- the one that this endpoint shares
    generation      int8 NOT NULL,
    done_tick       int8 NOT NULL,
    done            pg_snapshot NOT NULL,
    done_seq_low    int8 NOT NULL,
    under_tick      int8,
    under           pg_snapshot,
    under_seq_low   int8,
    under_seq_high  int8,
    last_seq        int8 NOT NULL,
    pending         int8[],          -- before the position, and not yet settled
    delivered       int8 NOT NULL,
    failed_attempts int8 NOT NULL,
    settled_at      timestamptz NOT NULL,
    PRIMARY KEY (endpoint_id, number, piece)
) PARTITION BY LIST (piece);
CREATE TABLE outbox.positions_0 PARTITION OF outbox.positions FOR VALUES IN (0);
CREATE TABLE outbox.positions_1 PARTITION OF outbox.positions FOR VALUES IN (1);

-- Moments in the log, about one a second while events flow: turns a time into
-- a place.
CREATE TABLE outbox.ticks (
    piece           int2 NOT NULL,
    tick            int8 NOT NULL,
    taken_at        timestamptz NOT NULL,
    snapshot        pg_snapshot NOT NULL,
    seq_low         int8 NOT NULL,
    seq_high        int8 NOT NULL,
    PRIMARY KEY (tick, piece)
) PARTITION BY LIST (piece);
CREATE TABLE outbox.ticks_0 PARTITION OF outbox.ticks FOR VALUES IN (0);
CREATE TABLE outbox.ticks_1 PARTITION OF outbox.ticks FOR VALUES IN (1);
CREATE TABLE outbox.ticks_2 PARTITION OF outbox.ticks FOR VALUES IN (2);

------------------------------------------------------------------------
-- Exceptions: deliveries that are neither before nor behind a position.
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
    redelivery      int2 NOT NULL DEFAULT 0, -- asked for by hand: 1 retry, 2 replay
    batch           int8,            -- deliveries of the same number are tried again together
    PRIMARY KEY (endpoint_id, seq)
);
CREATE INDEX parked_seq_idx ON outbox.parked (seq, endpoint_id);
CREATE INDEX parked_followers_idx ON outbox.parked (endpoint_id, key, seq)
    WHERE status = 'blocked';
-- The worker holds a bounded part of this table in memory, and looks the rest up.
CREATE INDEX parked_due_idx ON outbox.parked (endpoint_id, next_attempt_at, seq)
    WHERE status = 'retrying';
CREATE INDEX parked_heads_idx ON outbox.parked (endpoint_id, key, seq)
    WHERE status = 'retrying';
CREATE INDEX parked_blockers_idx ON outbox.parked (endpoint_id, key)
    WHERE status = 'dead'
    AND reason = ANY (ARRAY['max_attempts', 'max_age', 'aborted by receiver']);
CREATE INDEX parked_cancelled_idx ON outbox.parked (endpoint_id, seq)
    WHERE status = 'cancelled';

-- What operators ask for, one row per delivery. The worker alone changes
-- outbox.parked: nobody's open transaction can make it wait.
CREATE TABLE outbox.commands (
    command_id      int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    endpoint_id     int4 NOT NULL,
    action          text NOT NULL,   -- retry, discard, cancel, due
    seq             int8 NOT NULL,
    failed_at       timestamptz,     -- it was an error, and is tried again
    retry_at        timestamptz,
    error           text
);

-- Parts of the log that are read again for one endpoint, and how far that is.
CREATE TABLE outbox.replays (
    replay_id       int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    endpoint_id     int4 NOT NULL,
    topics          text[],
    from_time       timestamptz NOT NULL,
    to_time         timestamptz NOT NULL,
    done            pg_snapshot NOT NULL,
    done_seq_low    int8 NOT NULL,
    under           bool NOT NULL DEFAULT false,
    last_seq        int8 NOT NULL DEFAULT 0,
    target          pg_snapshot NOT NULL,
    target_seq_low  int8 NOT NULL,
    target_seq_high int8 NOT NULL,
    events          int8 NOT NULL DEFAULT 0,
    started_at      timestamptz NOT NULL DEFAULT now(),
    finished_at     timestamptz
);

-- Events that outlive their piece of the log because a parked delivery needs
-- them. They are copied while the log still has them: such a row counts for
-- nothing until its piece is emptied.
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
    headers     jsonb,
    payload     jsonb,
    body        bytea,
    content_type text,
    PRIMARY KEY (seq, epoch)
);
CREATE INDEX kept_events_id_idx ON outbox.kept_events (id);

------------------------------------------------------------------------
-- Attempts: appended in batches, three tables in turn.
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
    error           text,
    response_body   text,
    -- numbers start over when an event is sent once more
    PRIMARY KEY (seq, endpoint_id, attempt, started_at, piece)
) PARTITION BY LIST (piece);
CREATE TABLE outbox.attempt_log_0 PARTITION OF outbox.attempt_log FOR VALUES IN (0);
CREATE TABLE outbox.attempt_log_1 PARTITION OF outbox.attempt_log FOR VALUES IN (1);
CREATE TABLE outbox.attempt_log_2 PARTITION OF outbox.attempt_log FOR VALUES IN (2);

-- Which pieces are in use, and since when.
CREATE TABLE outbox.pieces (
    log         text COLLATE "C" PRIMARY KEY,    -- events, attempts
    piece       int2 NOT NULL,
    since       timestamptz NOT NULL
);
INSERT INTO outbox.pieces VALUES
    ('events', 0, now()),
    ('attempts', 0, now());
