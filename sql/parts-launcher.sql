------------------------------------------------------------------------
-- The launcher and its workers
------------------------------------------------------------------------

CREATE FUNCTION outbox.preloaded() RETURNS pg_catalog.bool
    AS 'MODULE_PATHNAME', 'outbox_preloaded'
    LANGUAGE C VOLATILE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION outbox.preloaded() IS
    'Whether outbox is in shared_preload_libraries: without it events are kept, but nothing delivers them.';
REVOKE ALL ON FUNCTION outbox.preloaded() FROM PUBLIC;

CREATE FUNCTION outbox.wake_launcher() RETURNS pg_catalog.void
    AS 'MODULE_PATHNAME', 'outbox_wake_launcher'
    LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;
COMMENT ON FUNCTION outbox.wake_launcher() IS
    'Makes sure, when this transaction commits, that this database has a worker, without waiting out the delay after a failure. Warns when outbox is not preloaded.';
REVOKE ALL ON FUNCTION outbox.wake_launcher() FROM PUBLIC;

CREATE FUNCTION outbox.worker_slots(
    OUT dboid pg_catalog.oid,
    OUT pid pg_catalog.int4,
    OUT state pg_catalog.text,
    OUT reason pg_catalog.text,
    OUT started_at pg_catalog.timestamptz,
    OUT restarts pg_catalog.int8,
    OUT last_loop_at pg_catalog.timestamptz,
    OUT endpoints pg_catalog.int8,
    OUT in_flight pg_catalog.int8,
    OUT delivered pg_catalog.int8,
    OUT unmatched pg_catalog.int8)
    RETURNS SETOF pg_catalog.record
    AS 'MODULE_PATHNAME', 'outbox_worker_status'
    LANGUAGE C VOLATILE STRICT PARALLEL SAFE ROWS 10;
COMMENT ON FUNCTION outbox.worker_slots() IS
    'One row for each database of the server that has a worker or may get one. state: no_worker, starting, running, disabled, held or version_mismatch; reason: why it is not running, NULL when there is nothing to say; pid and started_at are NULL without a worker; restarts: after errors, since the server started; the other numbers since the worker started. No rows when outbox is not preloaded.';
REVOKE ALL ON FUNCTION outbox.worker_slots() FROM PUBLIC;

-- The last line of the install script:
-- SELECT outbox.wake_launcher();
