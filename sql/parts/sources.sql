------------------------------------------------------------------------
-- Servers that are followed, from then on: what the process of src/worker/source_keeper.c
-- asks of them, and the view of their states
------------------------------------------------------------------------

-- Called by the process of src/worker/source_keeper.c. A source that does not answer in its time
-- ends the round, and comes last in the next one.
CREATE FUNCTION outbox.keep_sources() RETURNS int4
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    f record;
    had outbox.followed;
    has text[];
    lost text;
    passed bool;
    asked timestamptz;
    total int4 := 0;
BEGIN
    FOR f IN SELECT o AS had, s.subconninfo, s.subpublications[1] AS publication FROM outbox.followed o JOIN pg_subscription s ON s.oid = o.subscription
             ORDER BY o.asked_at NULLS FIRST FOR UPDATE OF o SKIP LOCKED LOOP
        had := f.had;
        asked := clock_timestamp();
        BEGIN
            SELECT r INTO has FROM outbox.ask_source(f.subconninfo, format(
                'SELECT ARRAY[c.before::text, c.timeline, c.seen::text, c.lsn::text, s.wal_status, s.confirmed_flush_lsn::text,'
                ' (pg_current_wal_lsn() - s.confirmed_flush_lsn)::int8::text,'
                ' (pg_current_wal_lsn() - s.restart_lsn)::int8::text, s.safe_wal_size::text,'
                ' (SELECT p.oid FROM pg_publication p WHERE p.pubname = %2$L)::text, outbox.source_version(), c.had::text,'
                ' (SELECT e.created_at::text FROM outbox.emitted e ORDER BY e.xid DESC, e.seq DESC LIMIT 1)]'
                ' FROM outbox.check_in(%1$L, NULL) c LEFT JOIN pg_replication_slots s ON s.slot_name = %1$L',
                had.slot, f.publication)) r;
            -- A failed outbox.follow_anew() leaves no slot, and is called again.
            lost := CASE WHEN has[10] IS NULL THEN 'publication_lost'
                         WHEN has[5] IS NULL AND had.lost = 'restored' THEN 'restored'
                         WHEN has[5] IS NULL OR has[5] = 'lost' THEN 'slot_lost'
                         WHEN has[11] <> '1.0' THEN 'version_differs'
                         WHEN NOT outbox.same_history(had, has[1]::int8, has[12]::pg_lsn, has[2], has[10]::oid) THEN 'restored' END;
            -- The next process compares again, before it takes a row that comes behind missing ones.
            IF lost = 'publication_lost' THEN
                PERFORM pg_terminate_backend(w.pid) FROM pg_stat_subscription w WHERE w.subid = had.subscription;
            END IF;
            IF lost IS NULL THEN
                PERFORM outbox.ask_source(f.subconninfo, format(
                    'SELECT ARRAY[c.timeline] FROM outbox.check_in(%L, %s, %L) c', had.slot, had.round, outbox.taken_to(had)));
            END IF;
            passed := had.seen_lsn IS NULL OR has[6]::pg_lsn >= had.seen_lsn;
            UPDATE outbox.followed o
            SET asked_at = clock_timestamp(), answered_at = clock_timestamp(), lost = lost, refuses = false,
                late_since = CASE WHEN NOT passed THEN o.seen_at END,
                problem = CASE lost
                    WHEN 'publication_lost' THEN format(
                        'publication "%s" was dropped at the source; make it there with outbox.divide()',
                        f.publication)
                    WHEN 'slot_lost' THEN 'the source no longer has its replication slot; call outbox.follow() again'
                    WHEN 'version_differs' THEN format(
                        'its sql/source.sql has version %s, and this server knows 1.0; update the older of the two', left(has[11], 100))
                    WHEN 'restored' THEN CASE WHEN had.lost = 'restored' THEN o.problem
                        ELSE 'this server or the source was restored or promoted, or its publication made anew; it is followed anew' END
                    END,
                last_event_at = COALESCE(has[13]::timestamptz, o.last_event_at),
                behind = has[7]::int8, retained = has[8]::int8, room = has[9]::int8,
                round = o.round + (lost IS NULL)::int4,
                taken = CASE WHEN lost IS NULL AND passed THEN COALESCE(o.seen, o.taken) ELSE o.taken END,
                taken_at = CASE WHEN lost IS NULL AND passed THEN COALESCE(o.seen_at, o.taken_at) ELSE o.taken_at END,
                taken_lsn = CASE WHEN lost IS NULL AND passed THEN COALESCE(o.seen_lsn, o.taken_lsn) ELSE o.taken_lsn END,
                seen = CASE WHEN passed THEN has[3]::pg_snapshot ELSE o.seen END,
                seen_lsn = CASE WHEN passed THEN has[4]::pg_lsn ELSE o.seen_lsn END,
                seen_at = CASE WHEN passed THEN asked ELSE o.seen_at END
            WHERE o.name = had.name;
            -- Nothing leaves the source before it is known that it is here. What hinders that does not stop the count.
            IF lost IS NULL THEN
                BEGIN
                    SELECT total + r[1]::int4 INTO total FROM outbox.ask_source(f.subconninfo, format(
                        'SELECT ARRAY[outbox.tidy(%L)::text]', had.keep)) r;
                EXCEPTION WHEN OTHERS OR query_canceled THEN
                    UPDATE outbox.followed o SET problem = left(SQLERRM, 1000) WHERE o.name = had.name;
                    EXIT WHEN SQLSTATE = '57014';
                END;
            END IF;
        EXCEPTION WHEN OTHERS OR query_canceled THEN
            -- A source that cannot be reached has no word for it, or the word of its operating system.
            UPDATE outbox.followed o
            SET asked_at = clock_timestamp(), problem = left(SQLERRM, 1000),
                refuses = SQLSTATE !~ '^(08|57)' OR SQLERRM ~ 'FATAL' AND SQLERRM !~ 'starting up|shutting down|not yet accepting|recovery mode'
            WHERE o.name = had.name;
            EXIT WHEN SQLSTATE = '57014';
        END;
    END LOOP;
    RETURN total;
END $$;
COMMENT ON FUNCTION outbox.keep_sources IS
'Asks each source for its state, has it empty tables whose events were taken, and returns how many were emptied';

-- Called after it by another process, for each source that needs it. Events that were taken here before a call of
-- outbox.forget() are in a snapshot that was asked for later. Of that, events that are here and not forgotten are new.
CREATE FUNCTION outbox.forget_at_sources(source text DEFAULT NULL) RETURNS int8
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    page CONSTANT int4 := 2000;
    f record;
    landing text;
    which text;
    last text;
    n int4;
    ids uuid[];
    done jsonb[] := '{}';
    d jsonb;
    total int8 := 0;
BEGIN
    FOR f IN SELECT g.forget_id, g.tenant, g.key, o.name, o.taken, s.subconninfo, s.subpublications[1] AS publication
             FROM outbox.forgotten g JOIN outbox.followed o ON o.name = ANY (g.sources)
             JOIN pg_subscription s ON s.oid = o.subscription
             WHERE g.complete_at IS NOT NULL AND o.lost IS NULL AND o.taken_at > g.requested_at
             AND ($1 IS NULL OR o.name = $1) ORDER BY g.forget_id LOOP
        CONTINUE WHEN NOT outbox.lock_source('forget ' || f.name, 'outbox.followed'::regclass, false);
        BEGIN
            FOREACH landing IN ARRAY '{emitted,deferred}'::text[] LOOP
                which := outbox.shared_rows(f.subconninfo, f.publication, landing)
                    || format(' AND pg_visible_in_snapshot(e.xid, %L) AND e.tenant = %L', f.taken, f.tenant)
                    || COALESCE(' AND e.key = ' || quote_literal(f.key), '');
                last := NULL;
                LOOP
                    SELECT count(*), (array_agg(r[1]))[count(*)],
                           array_agg(r[1]::uuid) FILTER (
                               WHERE NOT EXISTS (SELECT FROM outbox.all_events k WHERE k.id = r[1]::uuid AND NOT k.forgotten)
                               AND NOT EXISTS (SELECT FROM outbox.scheduled k WHERE k.id = r[1]::uuid))
                    INTO n, last, ids
                    FROM outbox.ask_source(f.subconninfo, format(
                        'SELECT ARRAY[e.id]::text[] FROM outbox.%I e WHERE %s %s ORDER BY e.id LIMIT %s',
                        landing, which, COALESCE('AND e.id > ' || quote_literal(last), ''), page)) r;
                    SELECT total + r[1]::int8 INTO total FROM outbox.ask_source(f.subconninfo, format(
                        'SELECT ARRAY[outbox.remove_events(%L)::text]', COALESCE(ids, '{}'))) r;
                    EXIT WHEN n < page;
                END LOOP;
            END LOOP;
            IF f.key IS NULL THEN
                PERFORM outbox.ask_source(f.subconninfo, format('SELECT ARRAY[outbox.remove_dedup_keys(%L)::text]', f.tenant));
            END IF;
            done := done || jsonb_build_object('source', f.name, 'id', f.forget_id);
        EXCEPTION WHEN OTHERS THEN
            UPDATE outbox.followed o SET problem = left(SQLERRM, 1000) WHERE o.name = f.name;
        END;
    END LOOP;
    FOREACH d IN ARRAY done LOOP
        PERFORM outbox.forgotten_at(d ->> 'source', ARRAY[d ->> 'id']::int8[]);
    END LOOP;
    RETURN total;
END $$;
COMMENT ON FUNCTION outbox.forget_at_sources IS
'Removes at a source, or (NULL) at each, the events that outbox.forget() has removed here, and returns their number';

-- Called after it by the same process. It takes the longer the more is missing here. Meanwhile no other
-- subscription of the server can start: so a source that hangs, or fails, waits ten times as long.
CREATE FUNCTION outbox.follow_anew(source text DEFAULT NULL) RETURNS int8
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    f record;
    begun timestamptz;
    total int8 := 0;
BEGIN
    FOR f IN SELECT o.name, o.keep, s.subconninfo, s.subpublications[1] AS publication, s.subenabled
             FROM outbox.followed o JOIN pg_subscription s ON s.oid = o.subscription
             WHERE o.lost = 'restored' AND s.subenabled AND ($1 IS NULL OR (o.name = $1 AND COALESCE(o.anew_at <= now(), true))) LOOP
        CONTINUE WHEN NOT outbox.lock_source(f.name, 'outbox.followed'::regclass, false);
        begun := clock_timestamp();
        BEGIN
            total := total + outbox.take_over(f.name, f.subconninfo, f.publication, f.keep, '10 s', false);
            RAISE LOG 'outbox follows source "%" anew: this server or the source was restored or promoted', f.name;
        EXCEPTION WHEN OTHERS OR query_canceled THEN
            RAISE LOG 'outbox could not follow source "%" anew yet: %', f.name, left(SQLERRM, 1000);
            UPDATE outbox.followed o SET problem = left(SQLERRM, 1000), anew_at = clock_timestamp() + 10 * (clock_timestamp() - begun)
            WHERE o.name = f.name;
        END;
    END LOOP;
    RETURN total;
END $$;
COMMENT ON FUNCTION outbox.follow_anew IS 'Takes over again from a source, or (NULL) from each, whose history, or that of this server, is another one than before';

CREATE FUNCTION outbox.events_taken(subscription oid) RETURNS int8
LANGUAGE C VOLATILE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'outbox_events_taken_1_0';
COMMENT ON FUNCTION outbox.events_taken IS 'How many events came by a subscription since the server started (NULL: they are not counted)';

CREATE VIEW outbox.sources AS
SELECT f.name,
       CASE WHEN s.oid IS NULL THEN 'gone'
            WHEN EXISTS (SELECT FROM pg_locks l WHERE l.locktype = 'object' AND l.granted
                         AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
                         AND l.classid = 'outbox.followed'::regclass AND l.objid = (hashtext(f.name)::int8 & 4294967295)::oid) THEN 'copying'
            WHEN f.lost IS NOT NULL THEN f.lost
            WHEN NOT s.subenabled THEN 'disabled'
            WHEN w.pid IS NULL AND f.refuses THEN 'refused'
            WHEN w.pid IS NULL THEN 'disconnected'
            WHEN f.late_since IS NOT NULL THEN 'behind'
            ELSE 'streaming' END AS state,
       CASE WHEN s.oid IS NULL THEN 'its subscription was dropped; call outbox.follow() again'
            WHEN f.problem IS NOT NULL THEN f.problem
            WHEN NOT s.subenabled THEN 'subscription ' || s.subname || ' is disabled'
            WHEN w.pid IS NULL THEN 'no process receives: the log of this server says why' END AS reason,
       f.followed_at, s.subpublications[1] AS publication, f.keep, f.slot, f.asked_at, f.answered_at, f.last_event_at, f.behind, f.retained, f.room, w.last_msg_receipt_time AS heard_at,
       f.late_since, outbox.events_taken(f.subscription) AS taken,
       (SELECT count(*) FROM outbox.refused_events r WHERE r.source = f.name) AS refused,
       (SELECT COALESCE(sum(COALESCE(m.at_most, GREATEST(m.at_least, 1))), 0)::int8 FROM outbox.missed_events m WHERE m.source = f.name) AS missed
FROM outbox.followed f
LEFT JOIN pg_subscription s ON s.oid = f.subscription
-- From 16 on several processes may apply.
LEFT JOIN (SELECT p.subid, max(p.pid) AS pid, max(p.last_msg_receipt_time) AS last_msg_receipt_time
           FROM pg_stat_subscription p WHERE p.relid IS NULL GROUP BY p.subid) w ON w.subid = f.subscription;
COMMENT ON VIEW outbox.sources IS 'Servers whose events are delivered here, and whether their events come';
COMMENT ON COLUMN outbox.sources.name IS 'name that `outbox.follow()` was given';
COMMENT ON COLUMN outbox.sources.state IS '`streaming`, `behind`, `copying`, `disconnected`, `refused`, `disabled`, `slot_lost`, `publication_lost`, `version_differs`, `restored` or `gone`';
COMMENT ON COLUMN outbox.sources.reason IS 'why it does not stream, or does not answer (NULL: it does)';
COMMENT ON COLUMN outbox.sources.followed_at IS 'when `outbox.follow()` was called, or it was followed anew';
COMMENT ON COLUMN outbox.sources.publication IS 'the publication that brings its events (NULL: the state is `gone`)';
COMMENT ON COLUMN outbox.sources.keep IS 'how long the source keeps events';
COMMENT ON COLUMN outbox.sources.slot IS 'its replication slot at the source';
COMMENT ON COLUMN outbox.sources.asked_at IS 'when the source was asked last, every 30 s (NULL: not yet)';
COMMENT ON COLUMN outbox.sources.answered_at IS 'when it said the next four (NULL: not yet)';
COMMENT ON COLUMN outbox.sources.last_event_at IS 'time of its newest event, by its clock (NULL: it had none)';
COMMENT ON COLUMN outbox.sources.behind IS 'bytes of WAL at the source that are not taken yet';
COMMENT ON COLUMN outbox.sources.retained IS 'bytes of WAL that the slot retains at the source';
COMMENT ON COLUMN outbox.sources.room IS 'bytes that it may still retain (NULL: `max_slot_wal_keep_size` sets no limit)';
COMMENT ON COLUMN outbox.sources.heard_at IS 'when the source was heard last (NULL: not connected)';
COMMENT ON COLUMN outbox.sources.late_since IS 'events of this time are not taken yet, though the source was asked since (NULL: all are)';
COMMENT ON COLUMN outbox.sources.taken IS 'events that were taken since `followed_at`, or since a later start of this server (NULL: it counts for 256 sources, and this is one more)';
COMMENT ON COLUMN outbox.sources.refused IS 'rows in `outbox.refused_events`';
COMMENT ON COLUMN outbox.sources.missed IS 'events that the source had removed before they were taken, at most (`outbox.missed_events`)';
