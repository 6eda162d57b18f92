------------------------------------------------------------------------
-- Copies: a log that was written elsewhere, and its adoption
------------------------------------------------------------------------

CREATE FUNCTION outbox.claim_log(epoch int8 DEFAULT NULL) RETURNS void
LANGUAGE C VOLATILE AS 'MODULE_PATHNAME', 'outbox_claim_log_1_0';
COMMENT ON FUNCTION outbox.claim_log IS
'Makes the log belong to this system and database, if it belongs to none yet, or with this epoch whatever it belonged to before';

CREATE FUNCTION outbox.log_owner() RETURNS text
LANGUAGE C VOLATILE AS 'MODULE_PATHNAME', 'outbox_log_owner_1_0';
COMMENT ON FUNCTION outbox.log_owner IS 'The owner of the log, in one of the words that adopt() compares';

-- Where a subscription writes to a table of outbox, the publisher's rows would be
-- taken for rows of this database.
CREATE FUNCTION outbox.refuse_subscribed() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    target text;
BEGIN
    SELECT r.srrelid::regclass::text INTO target
    FROM pg_subscription_rel r JOIN pg_class c ON c.oid = r.srrelid
    WHERE c.relnamespace = 'outbox'::regnamespace AND c.relname NOT IN ('emitted', 'deferred') ORDER BY c.relname LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'a subscription writes to %', target
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Run ALTER SUBSCRIPTION ... REFRESH PUBLICATION: with outbox in '
                         'shared_preload_libraries it leaves out the tables of outbox.';
    END IF;
END $$;
COMMENT ON FUNCTION outbox.refuse_subscribed IS
'Raises an error (55000) where tables of outbox are targets of a subscription';

-- The second guard, for a subscription that was made while the library was not
-- loaded. The first is in src/server/subscription.c.
CREATE FUNCTION outbox.skip_replicated() RETURNS trigger
LANGUAGE C VOLATILE AS 'MODULE_PATHNAME', 'outbox_skip_replicated_1_0';
COMMENT ON FUNCTION outbox.skip_replicated IS
'Trigger of all tables: skips a row that a subscription brings, and refuses a TRUNCATE that it brings (55000)';

DO $$
DECLARE
    t text;
BEGIN
    FOR t IN SELECT c.relname FROM pg_class c
             WHERE c.relnamespace = 'outbox'::regnamespace
             AND c.relkind = 'r' AND c.relname NOT IN ('emitted', 'deferred')
    LOOP
        EXECUTE format('CREATE TRIGGER skip_replicated_row BEFORE INSERT OR UPDATE OR DELETE ON outbox.%I'
                       ' FOR EACH ROW EXECUTE FUNCTION outbox.skip_replicated()', t);
        EXECUTE format('ALTER TABLE outbox.%I ENABLE REPLICA TRIGGER skip_replicated_row', t);
        EXECUTE format('CREATE TRIGGER refuse_replicated_truncate BEFORE TRUNCATE ON outbox.%I'
                       ' FOR EACH STATEMENT EXECUTE FUNCTION outbox.skip_replicated()', t);
        EXECUTE format('ALTER TABLE outbox.%I ENABLE REPLICA TRIGGER refuse_replicated_truncate', t);
    END LOOP;
END $$;

-- A delivery with a key is parked as blocked: it waits behind the others of its key.
CREATE FUNCTION outbox.adopted_status(s outbox.endpoint_settings, key text, payload jsonb,
    OUT status text, OUT reason text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN outbox.filter_matches(payload, s.filter) IS NULL THEN 'dead'
                WHEN s.ordering = 'key' AND key IS NOT NULL THEN 'blocked' ELSE 'retrying' END,
           CASE WHEN outbox.filter_matches(payload, s.filter) IS NULL THEN 'filter failed' END
$$;
COMMENT ON FUNCTION outbox.adopted_status IS 'How adopt() parks a delivery that was not finished';

-- Returns the highest number of the log.  All events up to it are committed, and later ones
-- have higher numbers.
CREATE FUNCTION outbox.close_log(keep_locks boolean) RETURNS int8
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    newest int8;
BEGIN
    LOCK TABLE outbox.events, outbox.scheduled IN SHARE ROW EXCLUSIVE MODE;
    SELECT GREATEST((SELECT max(e.seq) FROM outbox.events e), (SELECT max(k.seq) FROM outbox.kept_events k), 0)
    INTO newest;
    PERFORM setval('outbox.events_seq', newest) FROM outbox.events_seq s WHERE s.last_value < newest;
    IF NOT keep_locks THEN
        RAISE EXCEPTION USING ERRCODE = 'OB000', MESSAGE = 'the locks are given back';
    END IF;
    RETURN newest;
EXCEPTION WHEN SQLSTATE 'OB000' THEN
    RETURN newest;
END $$;
COMMENT ON FUNCTION outbox.close_log IS
'Locks the log, for a moment or until the transaction ends, and returns its highest number';

-- Positions are snapshots, and a snapshot says nothing about the transactions of
-- another system. But the events of a copy are all committed, so their numbers are
-- in the order that was promised. Therefore:
--
-- - Events that some endpoint has not read are rewritten as if this transaction had
--   emitted them. They keep their numbers.
-- - The new position of each endpoint is a number, up to which it has read.
-- - The few events below that number that it has not read are parked.
--
-- It is one transaction, so whatever ends it leaves the copy held as it was.  Emitting
-- sessions wait only while it holds the locks of the log: for a moment at first, for a
-- moment before each round of events that were emitted meanwhile, and for the last round.
CREATE FUNCTION outbox.adopt() RETURNS int8
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
DECLARE
    owner text;
    own xid8;
    new_epoch int8 := hashtextextended(gen_random_uuid()::text, 0) & 9223372036854775807;
    top int8;
    newest int8;
    last_round boolean;
    round int4 := 0;
    here record;
    lowest int8;
    ids int4[];
    fars int8[];
    tick int8;
    number int8;
    due int8;
    n int8;
BEGIN
    IF pg_is_in_recovery() THEN
        RAISE EXCEPTION 'outbox.adopt() cannot be called during recovery'
            USING ERRCODE = 'read_only_sql_transaction',
                  HINT = 'A standby needs no adoption. When it is promoted, it goes on where the primary was.';
    END IF;
    PERFORM outbox.refuse_snapshot('outbox.adopt()');
    PERFORM outbox.refuse_subscribed();
    LOCK TABLE outbox.origins IN SHARE ROW EXCLUSIVE MODE;
    owner := outbox.log_owner();
    IF owner = 'us' THEN
        RAISE EXCEPTION 'there is nothing to adopt: this log belongs to this database'
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Only a copy has to be adopted. SELECT state, reason FROM outbox.status '
                         'shows whether this is one.';
    ELSIF owner = 'nobody' THEN
        RAISE EXCEPTION 'there is nothing to adopt: this log has not been used yet'
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Create an endpoint: SELECT outbox.create_endpoint(...).';
    END IF;

    -- Earlier events are committed from here on, also by sessions that took the log
    -- for their own, and a later event has a higher number.  It has epoch -1, or that
    -- of the log where only outbox.instance_name is another one.
    newest := outbox.close_log(false);
    SELECT GREATEST((SELECT e.seq FROM outbox.events e WHERE e.epoch <> -1 AND e.seq <= newest
                     ORDER BY e.seq DESC LIMIT 1),
                    (SELECT max(k.seq) FROM outbox.kept_events k WHERE k.epoch <> -1), 0) INTO top;
    LOCK TABLE outbox.kept_events, outbox.endpoint_settings, outbox.positions, outbox.parked, outbox.replays,
        outbox.forgotten IN SHARE ROW EXCLUSIVE MODE;
    own := pg_current_xact_id();
    IF owner = 'not known' THEN
        -- Of a missing row the epoch of its events is known. The newest of them
        -- is the log's, unless it has its row.
        WITH seen AS (
            SELECT e.epoch, max(e.at) AS at, max(e.seq) AS seq
            FROM (SELECT l.epoch, l.created_at AS at, l.seq FROM outbox.events l
                  UNION ALL SELECT k.epoch, k.created_at, k.seq FROM outbox.kept_events k
                  UNION ALL SELECT s.epoch, s.created_at, 0 FROM outbox.scheduled s) e
            WHERE e.epoch > 0 AND NOT EXISTS (SELECT 1 FROM outbox.origins o WHERE o.epoch = e.epoch)
            GROUP BY e.epoch)
        INSERT INTO outbox.origins (epoch, system_identifier, database_oid, adopted_by, first, instance_name)
        SELECT s.epoch, 0, 0, NULLIF(n.epoch, s.epoch), true, ''
        FROM seen s,
             (SELECT COALESCE((SELECT o.epoch FROM outbox.origins o WHERE o.adopted_by IS NULL
                               ORDER BY o.created_at DESC LIMIT 1),
                              (SELECT c.epoch FROM seen c ORDER BY c.seq DESC, c.at DESC LIMIT 1)) AS epoch) n;
        UPDATE outbox.origins o SET first = true
        WHERE NOT o.first AND NOT EXISTS (SELECT 1 FROM outbox.origins p WHERE p.adopted_by = o.epoch);
        -- Events that were emitted while it was held are a copy's until claim_log().
        UPDATE outbox.origins SET system_identifier = 0 WHERE adopted_by IS NULL;
    END IF;

    -- Calls of forget() before the copy was made: their snapshots say nothing
    -- about the xids here, so the events that they see are emptied now.  The workers do the rest.
    UPDATE outbox.events e
    SET key = NULL, headers = NULL, payload = NULL, body = NULL, content_type = NULL
    FROM outbox.forgotten f
    WHERE outbox.forgets(f, e.tenant, e.key, e.epoch, e.xid) AND (e.payload IS NOT NULL OR e.body IS NOT NULL);
    UPDATE outbox.kept_events k
    SET key = NULL, headers = NULL, payload = NULL, body = NULL, content_type = NULL
    FROM outbox.forgotten f
    WHERE outbox.forgets(f, k.tenant, k.key, k.epoch, k.xid) AND (k.payload IS NOT NULL OR k.body IS NOT NULL);
    DELETE FROM outbox.scheduled e USING outbox.forgotten f WHERE outbox.forgets(f, e.tenant, e.key, e.epoch, e.xid);
    UPDATE outbox.forgotten SET snapshot = '3:3:' WHERE complete_at IS NULL;

    -- Kept copies of events that the log still has: the events get another epoch.
    DELETE FROM outbox.kept_events k USING outbox.events e WHERE e.seq = k.seq AND e.epoch = k.epoch;

    -- Events that were emitted here before the sequence was restored have numbers
    -- among the copy's. They get numbers after these.
    UPDATE outbox.events e SET seq = m.seq
    FROM (SELECT l.relation, l.row, nextval('outbox.events_seq') AS seq
          FROM (SELECT q.tableoid AS relation, q.ctid AS row FROM outbox.events q
                WHERE q.epoch = -1 AND q.seq <= top ORDER BY q.seq) l) m
    WHERE e.tableoid = m.relation AND e.ctid = m.row;

    -- A seek that no worker has carried out yet
    DELETE FROM outbox.parked k USING outbox.endpoint_settings s
    WHERE k.endpoint_id = s.endpoint_id AND s.generation > 1 AND k.status <> 'cancelled'
    AND NOT EXISTS (SELECT 1 FROM outbox.positions q
                    WHERE q.endpoint_id = s.endpoint_id AND q.generation = s.generation)
    AND EXISTS (SELECT 1 FROM outbox.events e WHERE e.seq = k.seq
                AND NOT pg_visible_in_snapshot(outbox.log_xid(e.epoch, e.xid), s.start_snapshot));

    -- Deliveries that an endpoint has read and not finished
    INSERT INTO outbox.parked (endpoint_id, seq, event_id, key, status, reason, attempts, next_attempt_at,
        parked_at)
    SELECT p.endpoint_id, e.seq, e.id, outbox.order_key(e.tenant, e.key), v.*, 0, now(), now()
    FROM outbox.endpoint_positions p JOIN outbox.endpoint_settings s USING (endpoint_id)
    CROSS JOIN LATERAL unnest(outbox.pending_seqs(p.pending)) q (seq)
    JOIN outbox.all_events e ON e.seq = q.seq
    CROSS JOIN LATERAL outbox.adopted_status(s, e.key, e.payload) v
    ON CONFLICT DO NOTHING;

    -- The rest of a replay
    INSERT INTO outbox.parked (endpoint_id, seq, event_id, key, status, reason, attempts, next_attempt_at,
        redelivery, parked_at)
    SELECT r.endpoint_id, e.seq, e.id, outbox.order_key(e.tenant, e.key), v.*, 0, now(), 2, now()
    FROM outbox.replays r JOIN outbox.endpoint_settings s USING (endpoint_id)
    JOIN outbox.endpoint_positions p USING (endpoint_id)
    JOIN outbox.events e ON e.created_at BETWEEN r.from_time AND r.to_time
    CROSS JOIN LATERAL (SELECT outbox.log_xid(e.epoch, e.xid) AS xid) x
    CROSS JOIN LATERAL outbox.adopted_status(s, e.key, e.payload) v
    WHERE r.finished_at IS NULL
    AND pg_visible_in_snapshot(x.xid, r.target) AND NOT pg_visible_in_snapshot(x.xid, r.read)
    AND NOT (r.reading AND e.seq <= r.last_seq)
    AND (pg_visible_in_snapshot(x.xid, p.read)
         OR (p.reading IS NOT NULL AND e.seq <= p.last_seq AND pg_visible_in_snapshot(x.xid, p.reading)))
    AND (r.topics IS NULL OR outbox.topic_in(e.topic, r.topics))
    AND (s.tenant IS NULL OR s.tenant = e.tenant) AND outbox.topic_in(e.topic, s.topics)
    AND outbox.filter_matches(e.payload, s.filter)
    ON CONFLICT DO NOTHING;
    UPDATE outbox.replays SET finished_at = now() WHERE finished_at IS NULL;

    -- How far each endpoint has read, in the order of numbers: one pass over the log finds
    -- it for all of them.  Snapshots are numbered in their order, and each event has the
    -- number of the first one that sees it.  The events before that which an endpoint has
    -- not read, because their transaction committed late, are parked.  They are found as a
    -- worker finds them (src/log/README.md).  OFFSET 0: by their index, since a pass over
    -- the log, which seems cheaper where it is small, would be one for each endpoint.
    WITH p AS MATERIALIZED (
        SELECT q.read::text AS read, q.reading::text AS reading, q.last_seq, q.seq, q.seq_low,
               array_agg(q.endpoint_id) AS endpoints
        FROM outbox.endpoint_positions q GROUP BY 1, 2, 3, 4, 5),
    s AS MATERIALIZED (
        SELECT t.snapshot, pg_snapshot_xmax(t.snapshot::pg_snapshot) AS xmax,
               row_number() OVER (ORDER BY pg_snapshot_xmax(t.snapshot::pg_snapshot),
                   (SELECT count(*) FROM pg_snapshot_xip(t.snapshot::pg_snapshot)) DESC, t.snapshot) AS n
        FROM (SELECT p.read FROM p UNION SELECT p.reading FROM p) t (snapshot) WHERE t.snapshot IS NOT NULL),
    listed AS (
        SELECT l.xid, min(l.n) AS first, max(l.n) FILTER (WHERE l.n - l.before = l.least) + 1 AS next
        FROM (SELECT k.*, min(k.n - k.before) OVER (PARTITION BY k.xid) AS least
              FROM (SELECT x.xid, s.n, row_number() OVER (PARTITION BY x.xid ORDER BY s.n) AS before
                    FROM s CROSS JOIN LATERAL pg_snapshot_xip(s.snapshot::pg_snapshot) x (xid)) k) l
        GROUP BY l.xid),
    seen AS (
        SELECT CASE WHEN l.first = e.n THEN l.next ELSE e.n END AS n, e.seq
        FROM (SELECT i.xid, i.seq, width_bucket(i.xid, (SELECT array_agg(s.xmax ORDER BY s.n) FROM s)) + 1 AS n
              FROM (SELECT outbox.log_xid(q.epoch, q.xid) AS xid, q.seq FROM outbox.events q
                    WHERE q.epoch <> -1 AND q.seq <= top) i
              WHERE i.xid IS NOT NULL) e
        LEFT JOIN listed l ON l.xid = e.xid),
    r AS MATERIALIZED (
        SELECT s.snapshot, max(max(u.seq)) OVER (ORDER BY u.n) AS far
        FROM (SELECT seen.n, seen.seq FROM seen UNION ALL SELECT s.n, 0 FROM s) u
        LEFT JOIN s USING (n) GROUP BY u.n, s.snapshot),
    f AS MATERIALIZED (
        SELECT p.read::pg_snapshot AS read, p.reading::pg_snapshot AS reading, p.last_seq, p.endpoints,
               COALESCE(p.reading, p.read)::pg_snapshot AS latest, LEAST(p.seq, p.seq_low) AS low,
               GREATEST(a.far, CASE WHEN p.reading IS NOT NULL THEN LEAST(p.last_seq, b.far) END) AS far
        FROM p JOIN r a ON a.snapshot = p.read LEFT JOIN r b ON b.snapshot = p.reading),
    late AS (
        INSERT INTO outbox.parked (endpoint_id, seq, event_id, key, status, reason, attempts, next_attempt_at,
            parked_at)
        SELECT s.endpoint_id, e.seq, e.id, outbox.order_key(e.tenant, e.key), v.*, 0, now(), now()
        FROM f
        CROSS JOIN LATERAL (
            SELECT l.* FROM pg_snapshot_xip(f.latest) x (xid)
            CROSS JOIN LATERAL (SELECT * FROM outbox.events q WHERE q.xid = x.xid AND q.seq <= f.far OFFSET 0) l
            UNION ALL
            SELECT l.* FROM pg_snapshot_xip(f.read) x (xid)
            CROSS JOIN LATERAL (SELECT * FROM outbox.events q WHERE q.xid = x.xid AND q.seq > f.last_seq
                                AND q.seq <= f.far OFFSET 0) l
            WHERE f.reading IS NOT NULL
            UNION ALL
            SELECT q.* FROM outbox.events q WHERE q.seq > f.low AND q.seq <= f.far) e
        CROSS JOIN LATERAL (SELECT outbox.log_xid(e.epoch, e.xid) AS xid) x
        JOIN outbox.endpoint_settings s ON s.endpoint_id = ANY (f.endpoints)
        CROSS JOIN LATERAL outbox.adopted_status(s, e.key, e.payload) v
        WHERE e.epoch <> -1 AND NOT pg_visible_in_snapshot(x.xid, f.read)
        AND NOT (f.reading IS NOT NULL AND e.seq <= f.last_seq AND pg_visible_in_snapshot(x.xid, f.reading))
        AND (s.tenant IS NULL OR s.tenant = e.tenant) AND outbox.topic_in(e.topic, s.topics)
        AND outbox.filter_matches(e.payload, s.filter) IS NOT FALSE
        ON CONFLICT DO NOTHING)
    SELECT array_agg(i.id), array_agg(f.far), COALESCE(min(f.far), top)
    INTO ids, fars, lowest
    FROM f CROSS JOIN LATERAL unnest(f.endpoints) i (id);

    UPDATE outbox.kept_events k SET epoch = new_epoch, xid = own WHERE k.epoch = -1;
    SELECT count(*) INTO n FROM outbox.parked k JOIN outbox.endpoint_settings s USING (endpoint_id)
    WHERE k.status IN ('retrying', 'blocked');

    -- Undelivered events become events of this log, and are counted.  The events of a
    -- round are the ones that were committed when the locks were taken, after the events
    -- of the round before.  The last round keeps the locks: no event may be written after it
    -- without the new epoch.
    LOOP
        round := round + 1;
        last_round := round = 20 OR round > 1
            AND (SELECT count(*) FROM (SELECT FROM outbox.events e WHERE e.seq > lowest LIMIT 5001) c) <= 5000;
        -- A restore with --disable-triggers has enabled them all, without their modes. These locks stay, too, and an
        -- emit locks dedup before the log.
        FOR here IN SELECT g.tgrelid::regclass AS relation, g.tgname, m.mode
                    FROM pg_trigger g JOIN pg_class c ON c.oid = g.tgrelid AND c.relnamespace = 'outbox'::regnamespace
                    CROSS JOIN LATERAL (SELECT CASE
                        WHEN g.tgname IN ('skip_replicated_row', 'refuse_replicated_truncate') THEN 'REPLICA'
                        WHEN g.tgname = 'changed' AND c.relname IN ('origins', 'emit_topics') THEN 'ALWAYS'
                        WHEN g.tgname = 'take' AND c.relname IN ('emitted', 'deferred') THEN 'ALWAYS' END AS mode) m
                    WHERE last_round AND g.tgenabled::text <> left(m.mode, 1)
                    ORDER BY c.relname <> 'dedup', g.tgrelid LOOP
            EXECUTE format('ALTER TABLE %s ENABLE %s TRIGGER %I', here.relation, here.mode, here.tgname);
        END LOOP;
        newest := outbox.close_log(last_round);
        UPDATE outbox.scheduled e SET epoch = new_epoch, xid = own
        WHERE e.epoch <> new_epoch AND outbox.log_xid(e.epoch, e.xid) IS NOT NULL;

        -- Events of one topic, of a tenant and of all ('' is none), are counted between two
        -- places where endpoints have stopped: how many are there and later.
        WITH p AS MATERIALIZED (
            SELECT v.far, dense_rank() OVER (ORDER BY v.far) AS place, s.endpoint_id, s.tenant, s.topics
            FROM unnest(ids, fars) v (id, far) JOIN outbox.endpoint_settings s ON s.endpoint_id = v.id),
        u AS MATERIALIZED (
            UPDATE outbox.events e SET epoch = new_epoch, xid = own
            WHERE e.seq > lowest AND e.seq <= newest AND e.epoch <> new_epoch
            AND outbox.log_xid(e.epoch, e.xid) IS NOT NULL
            RETURNING e.seq, e.tenant, e.topic),
        g AS (
            SELECT CASE WHEN grouping(l.tenant) = 1 THEN '' ELSE l.tenant END AS tenant, l.topic, l.place,
                   count(*) AS n
            FROM (SELECT u.tenant, u.topic, width_bucket(u.seq - 1, (SELECT array_agg(DISTINCT p.far) FROM p)) AS place
                  FROM u) l
            GROUP BY GROUPING SETS ((l.tenant, l.topic, l.place), (l.topic, l.place))),
        h AS MATERIALIZED (
            SELECT w.tenant, w.topic, array_agg(w.place ORDER BY w.place) AS places, array_agg(w.n ORDER BY w.place) AS n
            FROM (SELECT g.tenant, g.topic, g.place, sum(g.n) OVER (PARTITION BY g.tenant, g.topic ORDER BY g.place DESC) AS n
                  FROM g WHERE g.tenant IS NOT NULL) w
            GROUP BY w.tenant, w.topic)
        SELECT COALESCE((SELECT sum(h.n[width_bucket(p.place::int4 - 1, h.places) + 1])
                         FROM p JOIN h ON h.tenant = COALESCE(p.tenant, '') WHERE outbox.topic_in(h.topic, p.topics)), 0)
             - (SELECT count(*) FROM p JOIN outbox.parked k ON k.endpoint_id = p.endpoint_id
                JOIN u ON u.seq = k.seq AND u.seq > p.far
                WHERE (p.tenant IS NULL OR p.tenant = u.tenant) AND outbox.topic_in(u.topic, p.topics))
        INTO due;
        n := n + due;
        EXIT WHEN last_round;
        lowest := GREATEST(lowest, newest);
    END LOOP;
    PERFORM outbox.claim_log(new_epoch);

    -- The position of each endpoint, in snapshots of this system. Endpoints that have
    -- nothing left share one. Events that this transaction may still emit have higher
    -- numbers than any known now.
    SELECT * INTO here FROM outbox.position_now('outbox.events_seq'::regclass::oid);
    SELECT COALESCE(max(e.seq), 0) INTO newest FROM outbox.events e WHERE e.xid = own;
    SELECT GREATEST((SELECT max(GREATEST(q.read_tick, q.reading_tick)) FROM outbox.positions q),
                    (SELECT max(t.tick) FROM outbox.ticks t), 0) INTO tick;
    SELECT COALESCE(max(q.number), 0) INTO number FROM outbox.positions q;
    WITH former AS (DELETE FROM outbox.positions q
                    RETURNING q.endpoint_id, q.number, q.delivered, q.failed_attempts, q.counters)
    INSERT INTO outbox.positions (piece, number, endpoint_id, shared, generation, read_tick, read, read_seq_low,
        reading_tick, reading, reading_seq_low, reading_seq_high, last_seq, delivered, failed_attempts,
        settled_at, counters)
    SELECT 0, number + row_number() OVER (ORDER BY p.id), p.id, CASE WHEN p.id > 0 AND p.far >= newest THEN -1 END,
           COALESCE(s.generation, 0), tick + 1, here.snapshot, here.seq_low,
           tick + 2, here.committed, here.seq_low, 9223372036854775807, p.far,
           COALESCE(f.delivered, 0), COALESCE(f.failed_attempts, 0), clock_timestamp(), f.counters
    FROM (SELECT u.id, u.far FROM unnest(ids, fars) u(id, far) UNION ALL SELECT -1, here.seq_low
          -- the totals of the database
          UNION ALL SELECT 0, here.seq_low) p
    LEFT JOIN outbox.endpoint_settings s ON s.endpoint_id = p.id
    LEFT JOIN (SELECT DISTINCT ON (g.endpoint_id) g.endpoint_id, g.delivered, g.failed_attempts, g.counters
               FROM former g ORDER BY g.endpoint_id, g.number DESC) f
        ON f.endpoint_id = p.id;
    UPDATE outbox.endpoint_settings SET start_snapshot = here.committed, start_seq_low = here.seq_low;
    DELETE FROM outbox.subscriptions;
    INSERT INTO outbox.subscriptions (endpoint_id, version, topics, filter, read, reading, last_seq)
    SELECT s.endpoint_id, s.version, s.topics, s.filter, '3:3:', NULL, 0 FROM outbox.endpoint_settings s;
    DELETE FROM outbox.ticks;
    INSERT INTO outbox.ticks (piece, tick, taken_at, snapshot, seq_low, seq_high, clock)
    SELECT 0, tick + 1, clock_timestamp(), here.committed, here.seq_low, here.seq_low, -1;

    -- Subscriptions of the database that this one is a copy of
    FOR here IN DELETE FROM outbox.followed f USING pg_subscription s, pg_database d
                WHERE s.oid = f.subscription AND d.oid = s.subdbid AND d.datname <> current_database() RETURNING f.name LOOP
        PERFORM outbox.note_change(NULL, '', 'unfollow', '{}', jsonb_build_object('source', here.name));
    END LOOP;
    -- No source of the original removes anything for this database.
    PERFORM outbox.forgotten_at(n.name, NULL)
    FROM (SELECT DISTINCT unnest(f.sources) AS name FROM outbox.forgotten f) n
    WHERE NOT EXISTS (SELECT FROM outbox.followed o WHERE o.name = n.name);
    PERFORM outbox.endpoint_changed(0);
    PERFORM outbox.wake_launcher();
    RETURN n;
END $$;
COMMENT ON FUNCTION outbox.adopt IS
'Makes the log of a copy belong to this database, delivers the undelivered events, and returns their number';
