------------------------------------------------------------------------
-- Figures of tables that may be locked.
--
-- A view locks the tables that it names when it is planned, and would wait while one of
-- them is rebuilt.  outbox.status and outbox.stats must answer at that very
-- time.  So these functions read the tables, wait 0.1 s, and then return NULL.  SECURITY
-- DEFINER, because PostgreSQL checks the privileges of the caller.  Sizes it shows to all.
------------------------------------------------------------------------

CREATE FUNCTION outbox.log_size_now(OUT bytes int8, OUT min_seq int8, OUT oldest_at timestamptz, OUT max_seq int8)
LANGUAGE plpgsql STABLE SECURITY DEFINER COST 1 SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms'
AS $$
BEGIN
    SELECT pg_total_relation_size('outbox.events_0') + pg_total_relation_size('outbox.events_1')
           + pg_total_relation_size('outbox.events_2'),
           m.seq, m.created_at, CASE WHEN q.is_called THEN q.last_value ELSE 0 END
    INTO log_size_now.bytes, log_size_now.min_seq, log_size_now.oldest_at, log_size_now.max_seq
    FROM outbox.events_seq q
    LEFT JOIN (SELECT e.seq, e.created_at FROM outbox.events e ORDER BY e.seq LIMIT 1) m ON true;
    RAISE EXCEPTION USING ERRCODE = 'OB000', MESSAGE = 'the locks are given back';
EXCEPTION
    WHEN lock_not_available OR SQLSTATE 'OB000' THEN NULL;
END $$;
COMMENT ON FUNCTION outbox.log_size_now IS
'How large the log is, in bytes, from and to which number it goes, and when its oldest event was emitted (NULL: it is '
'empty, or one of its tables is locked). It keeps no lock of the log';

CREATE FUNCTION outbox.size_now(tables text[]) RETURNS int8
LANGUAGE plpgsql STABLE COST 1 SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms'
AS $$
BEGIN
    RETURN (SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c
            WHERE c.relnamespace = 'outbox'::regnamespace AND c.relname = ANY (tables));
EXCEPTION
    WHEN lock_not_available THEN RETURN NULL;
END $$;
COMMENT ON FUNCTION outbox.size_now IS
'Size of tables of outbox with their indexes, in bytes (NULL: one of them is locked)';

CREATE FUNCTION outbox.farthest_behind(max_seq int8) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER COST 1 SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms'
AS $$
BEGIN
    -- What a replay has yet to read is kept as well.
    RETURN (SELECT b.name
            FROM (SELECT p.name, p.seq FROM outbox.endpoint_positions p
                  UNION ALL
                  SELECT s.name, GREATEST(r.read_seq_low, CASE WHEN r.reading THEN r.last_seq END)
                  FROM outbox.replays r JOIN outbox.endpoint_settings s USING (endpoint_id)
                  WHERE r.finished_at IS NULL) b
            WHERE b.seq < max_seq ORDER BY b.seq, b.name LIMIT 1);
EXCEPTION
    WHEN lock_not_available THEN RETURN NULL;
END $$;
COMMENT ON FUNCTION outbox.farthest_behind IS
'The endpoint that has read least of the log, also for a replay (NULL: none is behind, or a table is locked)';

CREATE FUNCTION outbox.kept_for(log text) RETURNS interval
LANGUAGE plpgsql STABLE SECURITY DEFINER COST 1 SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms'
AS $$
BEGIN
    RETURN COALESCE((SELECT r.keep FROM outbox.retention_here r WHERE r.log = kept_for.log),
                    current_setting(CASE kept_for.log WHEN 'events' THEN 'outbox.retention'
                                    ELSE 'outbox.attempts_retention' END)::interval);
EXCEPTION
    WHEN lock_not_available THEN RETURN NULL;
END $$;
COMMENT ON FUNCTION outbox.kept_for IS
'How long this database keeps events or attempts, at least (NULL: the table is locked)';

-- The oldest transaction that has a lock on a piece whose time is over or on many positions, or
-- has changed an endpoint.  The worker waits for none of these locks.
CREATE FUNCTION outbox.retention_held() RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER COST 1 SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms'
AS $$
DECLARE
    overdue oid[];
BEGIN
    -- MATERIALIZED: kept_for(), which waits for a lock, is called once for each piece.
    WITH late AS MATERIALIZED (SELECT q.log, q.piece FROM outbox.pieces q
                               WHERE q.since + outbox.kept_for(q.log) / 2 + interval '1 min' < clock_timestamp())
    SELECT array_agg(c.oid) INTO overdue
    FROM late p
    JOIN pg_class c ON c.relnamespace = 'outbox'::regnamespace AND c.relname = ANY (
        CASE p.log WHEN 'events' THEN ARRAY[format('events_%s', (p.piece + 1) % 3), format('ticks_%s', (p.piece + 1) % 3),
                                            'endpoint_settings']
        ELSE ARRAY[format('attempt_log_%s', (p.piece + 1) % 3), format('attempt_runs_%s', (p.piece + 1) % 3)] END);
    -- While the worker cannot move to the other table, the one in use grows. It has the newest position of the totals.
    IF (SELECT pg_relation_size(c.oid) > 64 * 1024 * 1024 FROM pg_class c
        WHERE c.relnamespace = 'outbox'::regnamespace
        AND c.relname = (SELECT 'positions_' || p.piece FROM outbox.newest_position(0, NULL) p)) THEN
        overdue := overdue || '{outbox.positions_0,outbox.positions_1}'::regclass[]::oid[];
    END IF;
    IF overdue IS NULL THEN
        RETURN NULL;
    END IF;
    RETURN (
        SELECT format('retention overdue, held by %s, since %s',
                      COALESCE('pid ' || l.pid, 'the prepared transaction ' || quote_literal(x.gid)), t.since)
        FROM pg_locks l
        LEFT JOIN pg_stat_activity a ON a.pid = l.pid
        LEFT JOIN (SELECT k.virtualtransaction, g.gid, g.prepared FROM pg_locks k
                   JOIN pg_prepared_xacts g ON g.transaction = k.transactionid
                   WHERE k.locktype = 'transactionid' AND k.pid IS NULL) x
               ON l.pid IS NULL AND x.virtualtransaction = l.virtualtransaction
        CROSS JOIN LATERAL (SELECT COALESCE(a.xact_start, x.prepared) AS since) t
        WHERE l.locktype = 'relation' AND l.granted AND l.relation = ANY (overdue)
        AND NOT (l.relation = 'outbox.endpoint_settings'::regclass AND l.mode IN ('AccessShareLock', 'RowShareLock'))
        AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
        AND t.since < clock_timestamp() - interval '5 s'
        ORDER BY t.since LIMIT 1);
EXCEPTION
    WHEN lock_not_available THEN RETURN NULL;
END $$;
COMMENT ON FUNCTION outbox.retention_held IS
'The transaction that keeps old events, attempts or positions from being removed (NULL: none, an endpoint that '
'has to read them, or the table is locked)';

CREATE FUNCTION outbox.scheduled_now(OUT events int8, OUT next_due_at timestamptz, OUT sources text)
LANGUAGE plpgsql STABLE SECURITY DEFINER COST 1 SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms'
AS $$
BEGIN
    BEGIN
        -- Without those in outbox.set_aside: their time has come.
        -- many are not worth reading all, so their number is then an estimate
        SELECT CASE WHEN count(*) <= 10000 THEN count(*)
                    ELSE (SELECT GREATEST(10001, c.reltuples::int8) FROM pg_class c
                          WHERE c.oid = 'outbox.scheduled'::regclass) END
        INTO events FROM (SELECT FROM outbox.scheduled s WHERE s.failed_at IS NULL LIMIT 10001) e;
        SELECT min(e.deliver_at) INTO next_due_at FROM outbox.scheduled e WHERE e.failed_at IS NULL;
    EXCEPTION
        WHEN lock_not_available THEN events := NULL;
    END;
    SELECT concat('not streaming: ', string_agg(concat('source ', f.name, ' (', f.state, ')'), ', '), '; see outbox.sources')
    INTO sources FROM outbox.sources f WHERE f.state <> 'streaming' HAVING count(*) > 0;
EXCEPTION
    WHEN lock_not_available THEN NULL;
END $$;
COMMENT ON FUNCTION outbox.scheduled_now IS
'How many events are not due yet, when the next is, and which sources do not stream (NULL: none, or a table is locked)';

