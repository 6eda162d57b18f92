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
