------------------------------------------------------------------------
-- The launcher and its workers
------------------------------------------------------------------------

-- A worker that failed is started again at once.  Warns if outbox is not preloaded.
CREATE FUNCTION outbox.wake_launcher() RETURNS void
    AS 'MODULE_PATHNAME', 'outbox_wake_launcher_1_0'
    LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;
COMMENT ON FUNCTION outbox.wake_launcher IS
'Makes sure, when this transaction commits, that this database has a worker';

-- A database that may get a worker has at least one row, and so has the database
-- that asks.  pid and started_at are NULL without a process.  restarts counts ends
-- with an error since the server started.  unmatched is the database's.  memory is
-- used by events, bodies and answers at present.  The other numbers count from
-- the start of the worker.  No rows when outbox is not preloaded.
CREATE FUNCTION outbox.worker_slots(
    OUT dboid oid,
    OUT worker int4,
    OUT pid int4,
    OUT state text,
    OUT reason text,
    OUT started_at timestamptz,
    OUT restarts int8,
    OUT last_loop_at timestamptz,
    OUT endpoints int8,
    OUT in_flight int8,
    OUT delivered int8,
    OUT unmatched int8,
    OUT memory int8,
    OUT resident int8,
    OUT resident_limit int8)
    RETURNS SETOF record
    AS 'MODULE_PATHNAME', 'outbox_worker_status_1_0'
    LANGUAGE C VOLATILE STRICT PARALLEL SAFE ROWS 10;
COMMENT ON FUNCTION outbox.worker_slots IS
'One row for each worker that a database of the server has, should have or may get';

-- The source of outbox.held_steps.  No rows when outbox is not preloaded.
CREATE FUNCTION outbox.step_holds(
    OUT worker int4,
    OUT step text,
    OUT endpoint_id int4,
    OUT reason text,
    OUT sqlstate text,
    OUT last_error text,
    OUT failures int8,
    OUT since timestamptz,
    OUT next_try_at timestamptz)
    RETURNS SETOF record
    AS 'MODULE_PATHNAME', 'outbox_step_holds_1_0'
    LANGUAGE C VOLATILE STRICT PARALLEL SAFE ROWS 5;
COMMENT ON FUNCTION outbox.step_holds IS
'One row for each step of a worker of this database that failed and is on hold';

CREATE FUNCTION outbox.wake_workers() RETURNS void
LANGUAGE C VOLATILE AS 'MODULE_PATHNAME', 'outbox_wake_workers_1_0';
COMMENT ON FUNCTION outbox.wake_workers IS 'Wakes the workers when this transaction commits';

CREATE FUNCTION outbox.make_room() RETURNS void
LANGUAGE C VOLATILE AS 'MODULE_PATHNAME', 'outbox_make_room_1_0';
COMMENT ON FUNCTION outbox.make_room IS 'Gives up a part of outbox.reserve if the disk is full';

-- Which endpoints were made, changed or dropped. Each worker reads the rows of the
-- transactions that it has not seen, so a change of an endpoint costs the same whatever the
-- number of endpoints. For the limits of a tenant there is -1 - hash (0 to 1023), which is for the
-- endpoints of each tenant with this hash. Rows that all workers have seen are deleted by
-- one of them.
CREATE TABLE outbox.endpoint_changes (
    xid             xid8 NOT NULL,
    endpoint_id     int4 NOT NULL,
    PRIMARY KEY (xid, endpoint_id)
);
COMMENT ON TABLE outbox.endpoint_changes IS 'Endpoints whose settings the workers have to read again (0: all, below 0: all of some tenants)';

-- To be called by whatever changes the settings or secrets of an endpoint.  PL/pgSQL keeps
-- its plans, where a function in SQL makes them in each call.
CREATE FUNCTION outbox.endpoint_changed(endpoint_id int4) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    INSERT INTO outbox.endpoint_changes VALUES (pg_current_xact_id(), $1) ON CONFLICT DO NOTHING;
    PERFORM outbox.wake_workers();
END $$;
COMMENT ON FUNCTION outbox.endpoint_changed IS
'Makes the workers read the settings of an endpoint (0: of all, below 0: of some tenants) when this transaction commits';

CREATE FUNCTION outbox.endpoint_stats(endpoint_id int4,
    OUT state text, OUT state_since timestamptz, OUT reason text,
    OUT pending int8, OUT pending_exact bool, OUT processing int8,
    OUT retrying int8, OUT blocked int8, OUT dead int8,
    OUT delivered int8, OUT failed_attempts int8,
    OUT oldest_pending_at timestamptz, OUT next_attempt_at timestamptz,
    OUT rate_per_s float8, OUT latency_p50_ms float8,
    OUT latency_p95_ms float8, OUT latency_p99_ms float8,
    OUT last_success_at timestamptz, OUT last_error text) RETURNS record
LANGUAGE C VOLATILE STRICT AS 'MODULE_PATHNAME', 'outbox_endpoint_stats_1_0';
COMMENT ON FUNCTION outbox.endpoint_stats IS
'Published figures of an endpoint (NULL: nothing since the server started)';

-- endpoint_id and tenant are NULL for figures that are summed over all of these endpoints, or of
-- all other tenants, or counted in the database.
CREATE FUNCTION outbox.metric_series(ids int4[], tenants text[], top int4, top_tenants int4,
    OUT endpoint_id int4,
    OUT tenant text,
    OUT metric text,
    OUT label text,
    OUT value float8)
    RETURNS SETOF record
    AS 'MODULE_PATHNAME', 'outbox_metric_series_1_0'
    LANGUAGE C VOLATILE STRICT PARALLEL SAFE ROWS 500;
COMMENT ON FUNCTION outbox.metric_series IS
'Series for outbox.metrics(): endpoints that need attention most, tenants that get or fail most, and the sums';
