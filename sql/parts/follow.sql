------------------------------------------------------------------------
-- Following servers that cannot have the extension (sql/source.sql, doc/follow.md)
------------------------------------------------------------------------

-- Where the rows of a source arrive. They become events, and the tables stay empty. Text
-- without constraints: nothing but the trigger judges a row, which sets aside the rows that it refuses.
CREATE TABLE outbox.emitted (
    source       text,   -- NULL: that of the subscription which brings the row
    id           text,
    xid          text,
    created_at   text,
    deliver_at   text,
    topic        text,
    type         text,
    key          text,
    tenant       text,
    expires_at   text,
    headers      text,
    payload      text,
    body         text,
    content_type text
);
CREATE TABLE outbox.deferred (LIKE outbox.emitted);
COMMENT ON TABLE outbox.emitted IS 'Where events of a source arrive: always empty';
COMMENT ON TABLE outbox.deferred IS 'Where events of a source with a deliver_at arrive: always empty';

CREATE FUNCTION outbox.take() RETURNS trigger
LANGUAGE C VOLATILE AS 'MODULE_PATHNAME', 'outbox_take_1_0';
COMMENT ON FUNCTION outbox.take IS 'Trigger of outbox.emitted and outbox.deferred: makes an event of a row that a source has';
CREATE TRIGGER take BEFORE INSERT ON outbox.emitted FOR EACH ROW EXECUTE FUNCTION outbox.take();
CREATE TRIGGER take BEFORE INSERT ON outbox.deferred FOR EACH ROW EXECUTE FUNCTION outbox.take();
ALTER TABLE outbox.emitted ENABLE ALWAYS TRIGGER take;
ALTER TABLE outbox.deferred ENABLE ALWAYS TRIGGER take;

CREATE TABLE outbox.followed (
    name         text COLLATE "C" PRIMARY KEY,
    subscription oid UNIQUE NOT NULL,
    slot         text NOT NULL,
    keep         interval NOT NULL,      -- how long the source keeps events that were taken
    followed_at  timestamptz NOT NULL DEFAULT now(),
    -- The rows that are here. A server that was restored or promoted may have fewer than before.
    taken        pg_snapshot NOT NULL,   -- of the source: all that it sees is here
    taken_at     timestamptz NOT NULL,   -- it was asked for after this time
    taken_lsn    pg_lsn NOT NULL,        -- all that was committed before this place is here
    seen         pg_snapshot,            -- the next one, when the slot has passed seen_lsn
    seen_lsn     pg_lsn,
    seen_at      timestamptz,
    round        int8 NOT NULL,          -- calls of keep_sources(): the source has this one or the one before
    timelines    text[] NOT NULL,        -- of this server and of the source
    publication  oid,                    -- at the source. PostgreSQL 18 skips events while it is missing
    -- The last answer of the source
    asked_at     timestamptz,
    answered_at  timestamptz,
    problem      text,                   -- NULL: none
    refuses      bool NOT NULL DEFAULT false, -- the problem is the source's answer
    lost         text,                   -- the state that it is in since (NULL: it can be followed)
    anew_at      timestamptz,            -- it failed to be followed anew: not before (NULL: at once)
    late_since   timestamptz,            -- events of this time were not taken a round later (NULL: all were)
    last_event_at timestamptz,           -- its newest event
    behind       int8,                   -- bytes of WAL that are not taken yet
    retained     int8,                   -- bytes of WAL that the slot retains
    room         int8                    -- bytes that it may still retain (NULL: no limit)
);
COMMENT ON TABLE outbox.followed IS 'Servers that outbox.follow() follows';

CREATE TABLE outbox.refused_events (
    refused_id int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    source     text,
    refused_at timestamptz NOT NULL DEFAULT now(),
    event      jsonb NOT NULL,
    error      text NOT NULL
);
COMMENT ON TABLE outbox.refused_events IS 'Rows of sources that cannot be events, and why';

-- One row for each time that a source is followed after it had removed events too early.
CREATE TABLE outbox.missed_events (
    missed_id  int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    source     text NOT NULL,
    noticed_at timestamptz NOT NULL DEFAULT now(),
    at_least   int8 NOT NULL,    -- events that were not taken here
    at_most    int8,             -- NULL: not known
    first_at   timestamptz,      -- they were committed between these times of the source (NULL: not known)
    last_at    timestamptz
);
COMMENT ON TABLE outbox.missed_events IS 'How many events sources had removed before they were taken here';

CREATE FUNCTION outbox.ask_source(conninfo text, query text, most int4 DEFAULT 1000000) RETURNS SETOF text[]
LANGUAGE C VOLATILE AS 'MODULE_PATHNAME', 'outbox_ask_source_1_0';
COMMENT ON FUNCTION outbox.ask_source IS
'The rows of a query of one column, text[], at another server (08006: it cannot be reached; 54000: they have more bytes)';

CREATE FUNCTION outbox.lock_source(name text, of oid, wait bool) RETURNS bool
LANGUAGE C VOLATILE STRICT AS 'MODULE_PATHNAME', 'outbox_lock_source_1_0';
COMMENT ON FUNCTION outbox.lock_source IS
'Locks the name of a source until the transaction ends (false: another one has it), by a lock that no role can take otherwise';

CREATE FUNCTION outbox.refuse_snapshot(function text, in_block bool DEFAULT false) RETURNS void
LANGUAGE C VOLATILE AS 'MODULE_PATHNAME', 'outbox_refuse_snapshot_1_0';
COMMENT ON FUNCTION outbox.refuse_snapshot IS 'Refuses a call at another level than READ COMMITTED and, with in_block, inside BEGIN and COMMIT, which ROLLBACK would not undo at a source (25001)';

CREATE FUNCTION outbox.refuse_copy(function text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF outbox.log_owner() NOT IN ('us', 'nobody') THEN
        RAISE EXCEPTION '% cannot be called in a copy', function
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'SELECT outbox.adopt() first. Until then the slot at the source is that of the original.';
    END IF;
END $$;
COMMENT ON FUNCTION outbox.refuse_copy IS 'Refuses a call in a copy that was not adopted (55000)';

-- A publication may have a share of the events only.
CREATE FUNCTION outbox.shared_rows(conninfo text, publication text, landing text) RETURNS text
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
SELECT COALESCE(r[1], 'true') FROM outbox.ask_source(conninfo, format(
    'SELECT ARRAY[(SELECT t.rowfilter FROM pg_publication_tables t'
    ' WHERE t.pubname = %L AND t.schemaname = ''outbox'' AND t.tablename = %L)]', publication, landing)) r
$$;
COMMENT ON FUNCTION outbox.shared_rows IS 'The condition for rows of a table that a publication has';

-- In the order of the source's numbers. Earlier rows are known by the snapshot 'taken', and
-- else by their ids. The source first says where each page begins and ends, also in its index: a page
-- is an answer, which is in memory as a whole.
CREATE FUNCTION outbox.copy_source(name text, conninfo text, publication text, snapshot pg_snapshot, taken pg_snapshot) RETURNS int8
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    landing text;
    place text;
    which text;
    page text[];
    n int8;
    total int8 := 0;
BEGIN
    FOREACH landing IN ARRAY '{emitted,deferred}'::text[] LOOP
        place := CASE landing WHEN 'emitted' THEN 'e.seq' ELSE 'e.id' END;
        which := format('pg_visible_in_snapshot(e.xid, %L)', snapshot);
        IF taken IS NOT NULL THEN
            which := format('%s AND e.xid >= %L AND NOT pg_visible_in_snapshot(e.xid, %L)', which, pg_snapshot_xmin(taken), taken);
        END IF;
        which := which || ' AND ' || outbox.shared_rows(conninfo, publication, landing);
        FOR page IN SELECT r FROM outbox.ask_source(conninfo, format(
            'SELECT ARRAY[(array_agg(p.place ORDER BY p.n))[1]::text, (array_agg(p.place ORDER BY p.n DESC))[1]::text,'
            ' min(p.xid)::text, max(p.xid)::text]'
            ' FROM (SELECT %1$s AS place, e.xid, row_number() OVER o AS n,'
            '       sum(COALESCE(octet_length(e.payload::text), 2 * octet_length(e.body))) OVER o AS bytes'
            '       FROM outbox.%2$I e WHERE %3$s WINDOW o AS (ORDER BY %1$s)) p'
            ' GROUP BY (p.n - 1) / 2000, p.bytes / 8000000 ORDER BY min(p.n)', place, landing, which), NULL) r LOOP
            EXECUTE format(
                'WITH page AS MATERIALIZED (SELECT r, n FROM outbox.ask_source($1, $2, NULL) WITH ORDINALITY p (r, n)),'
                ' taken AS (INSERT INTO outbox.%I'
                ' SELECT $3, r[1], r[2], r[3], r[4], r[5], r[6], r[7], r[8], r[9], r[10], r[11], r[12], r[13] FROM page'
                ' WHERE NOT EXISTS (SELECT FROM outbox.all_events k WHERE k.id = r[1]::uuid)'
                ' AND NOT EXISTS (SELECT FROM outbox.scheduled k WHERE k.id = r[1]::uuid)'
                ' AND NOT EXISTS (SELECT FROM outbox.refused_events k WHERE k.source = $3 AND k.event ->> ''id'' = r[1])'
                ' AND NOT EXISTS (SELECT FROM outbox.forgotten g WHERE g.tenant = r[8] AND (g.key IS NULL OR g.key = r[7])'
                ' AND $3 = ANY (g.sources) AND r[3]::timestamptz <= g.requested_at) ORDER BY n)'
                ' SELECT count(*) FROM page', landing)
            INTO n
            USING conninfo,
                format('SELECT ARRAY[e.id, e.xid, e.created_at, %s, e.topic, e.type, e.key, e.tenant, e.expires_at,'
                       ' e.headers, e.payload, e.body, e.content_type]::text[] FROM outbox.%I e'
                       ' WHERE %s BETWEEN %L AND %L AND e.xid BETWEEN %L AND %L AND %s ORDER BY %3$s',
                       CASE landing WHEN 'emitted' THEN 'NULL' ELSE 'e.deliver_at' END, landing, place, page[1], page[2],
                       page[3], page[4], which),
                name;
            total := total + n;
        END LOOP;
    END LOOP;
    RETURN total;
END $$;
COMMENT ON FUNCTION outbox.copy_source IS
'Makes events of the rows that a source had when the snapshot was taken, and returns how many rows it read';

-- A slot begins when each transaction that has a number there, in any database, has ended. The
-- source is asked again after 1, 2, 4 ... seconds: the caller learns which transaction it waits for.
-- From 17 on standbys of the source may have the slot, too.
CREATE FUNCTION outbox.create_source_slot(name text, conninfo text, slot text, failover bool, timeout interval) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    ends CONSTANT timestamptz := clock_timestamp() + timeout;
    ms int4 := 1000;
    oldest text;
BEGIN
    LOOP
        BEGIN
            PERFORM outbox.ask_source(conninfo, format(
                'SELECT ARRAY[s.slot_name::text] FROM set_config(''lock_timeout'', %L, true) c,'
                ' LATERAL pg_create_logical_replication_slot(left(%L, 63 + length(c)), ''pgoutput''%s) s',
                GREATEST(LEAST(ms, (extract(epoch FROM ends - clock_timestamp()) * 1000)::int4), 1)::text, slot,
                CASE WHEN failover THEN ', failover => true' END));
            RETURN;
        EXCEPTION WHEN lock_not_available THEN
            ms := LEAST(ms, 1000000) * 2;
        END;
        SELECT r[1] INTO oldest FROM outbox.ask_source(conninfo,
            'SELECT ARRAY[COALESCE(''prepared transaction "'' || p.gid || ''"'','
            ' concat(''a transaction of process '', l.pid, '', role '' || a.usename, '', database '' || a.datname))'
            ' || COALESCE('', since '' || COALESCE(p.prepared, a.xact_start), '''')]'
            ' FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid'
            ' LEFT JOIN pg_prepared_xacts p ON p.transaction = l.transactionid'
            ' WHERE l.locktype = ''transactionid'' AND l.mode = ''ExclusiveLock'' AND l.granted'
            ' ORDER BY age(l.transactionid) DESC LIMIT 1') r;
        IF clock_timestamp() >= ends THEN
            RAISE EXCEPTION 'source "%" has a transaction that stays open', name
                USING ERRCODE = 'lock_not_available', DETAIL = oldest,
                      HINT = 'A slot begins when it has ended. End it there, or pass a longer timeout.';
        END IF;
        RAISE NOTICE 'outbox.follow() waits for a transaction of source "%" to end', name
            USING DETAIL = oldest;
    END LOOP;
END $$;
COMMENT ON FUNCTION outbox.create_source_slot IS
'Makes a replication slot at a source (55P03: a transaction there stays open for longer than the timeout)';

-- After pg_upgrade, or pg_dump and pg_restore, it has its name and another oid.
CREATE FUNCTION outbox.drop_subscription(name text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    subscription text;
BEGIN
    FOR subscription IN
        SELECT s.subname FROM pg_subscription s JOIN pg_database d ON d.oid = s.subdbid AND d.datname = current_database()
        WHERE s.oid = (SELECT f.subscription FROM outbox.followed f WHERE f.name = $1)
        OR s.subname = 'outbox_' || $1 AND starts_with(s.subslotname, 'outbox_' || $1 || '_') LOOP
        EXECUTE format('ALTER SUBSCRIPTION %I DISABLE', subscription);
        EXECUTE format('ALTER SUBSCRIPTION %I SET (slot_name = NONE)', subscription);
        EXECUTE format('DROP SUBSCRIPTION %I', subscription);
    END LOOP;
END $$;
COMMENT ON FUNCTION outbox.drop_subscription IS 'Drops the subscription of a source, and not its slot there';

-- When the subscription has ended, its sender ends soon. If it does not, it sends to another
-- server, a copy of this one: 'force' ends it.
CREATE FUNCTION outbox.drop_source_slot(conninfo text, slot text, force bool) RETURNS int4
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    tries int4 := 0;
    version int4;
BEGIN
    WHILE EXISTS (SELECT FROM outbox.ask_source(conninfo, format(
                      'SELECT ARRAY[slot_name::text, CASE WHEN %L THEN pg_terminate_backend(active_pid) END::text]'
                      ' FROM pg_replication_slots WHERE slot_name = %L AND active', force, slot))) AND tries < 50 LOOP
        tries := tries + 1;
        PERFORM pg_sleep(0.1);
    END LOOP;
    SELECT r[1] INTO version FROM outbox.ask_source(conninfo, format(
        'SELECT ARRAY[current_setting(''server_version_num''), pg_drop_replication_slot(s.slot_name)::text]'
        ' FROM (SELECT) one LEFT JOIN pg_replication_slots s ON s.slot_name = %L', slot)) r;
    RETURN version;
END $$;
COMMENT ON FUNCTION outbox.drop_source_slot IS
'Drops a replication slot at a source (55006: it is in use), and returns the version number of the source''s server';

-- certain: the events that were committed behind it are not here (NULL: not known). The source keeps the numbers for
-- 30 days. A source that was restored or promoted has other places in its WAL from some place on.
CREATE FUNCTION outbox.note_missed(name text, conninfo text, publication text, taken pg_lsn, certain pg_lsn, since timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    m outbox.missed_events;
BEGIN
    SELECT COALESCE(r[1]::int8, 0), r[2]::int8, r[3]::timestamptz, r[4]::timestamptz INTO m.at_least, m.at_most, m.first_at, m.last_at
    FROM outbox.ask_source(conninfo, format(
        'SELECT ARRAY[sum(r.events) FILTER (WHERE r.begins >= %L), sum(r.events),'
        ' CASE WHEN bool_and(r.begun_at IS NOT NULL) THEN min(r.begun_at) END,'
        ' CASE WHEN bool_and(r.ended_at IS NOT NULL) THEN max(r.ended_at) END]::text[]'
        ' FROM outbox.removed r WHERE r.publication = %L AND (r.ends > %L OR r.ends IS NULL)',
        certain, publication, COALESCE(taken, '0/0'))) r;
    IF since <= clock_timestamp() - interval '30 days' THEN
        m.at_most := NULL;
    ELSIF m.at_most IS NULL THEN
        RETURN;
    END IF;
    INSERT INTO outbox.missed_events (source, at_least, at_most, first_at, last_at)
    VALUES (name, m.at_least, m.at_most, m.first_at, m.last_at);
    RAISE WARNING 'source "%" had removed % events before they were taken here', name,
        CASE WHEN m.at_least = m.at_most THEN m.at_least::text
             WHEN m.at_most IS NULL AND m.at_least = 0 THEN 'an unknown number of'
             WHEN m.at_most IS NULL THEN 'at least ' || m.at_least
             ELSE format('%s to %s', m.at_least, m.at_most) END
        USING DETAIL = format('They were committed between %s and %s.', COALESCE(m.first_at::text, 'an unknown time'),
                              COALESCE(m.last_at::text, 'now')),
              HINT = 'outbox.missed_events has these figures. Emit again what receivers still need.';
END $$;
COMMENT ON FUNCTION outbox.note_missed IS 'Stores and reports how many events a source had removed before they were taken here';

-- A transaction and its place in the WAL are stored together, also at a standby of this server.
CREATE FUNCTION outbox.taken_to(f outbox.followed) RETURNS pg_lsn
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
SELECT GREATEST(f.taken_lsn, (SELECT pg_replication_origin_progress(o.roname, true) FROM pg_replication_origin o
                              WHERE o.roname = 'pg_' || f.subscription))
$$;
COMMENT ON FUNCTION outbox.taken_to IS 'All that a source has committed before this place in its WAL is here';

-- Begins anew: a slot, then rows of the source that are not here, then the rows that the slot brings.
-- The subscription belongs to the owner of the extension, whichever superuser follows.
CREATE FUNCTION outbox.take_over(name text, conninfo text, publication text, keep interval, timeout interval, force bool) RETURNS int8
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    slot CONSTANT text := COALESCE((SELECT o.slot FROM outbox.followed o WHERE o.name = name),   -- also after pg_upgrade
        format('outbox_%s_%s', name, left(md5(concat(
            (SELECT c.system_identifier FROM pg_control_system() c),
            (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))), 8)));
    subscription CONSTANT text := 'outbox_' || name;
    begun CONSTANT timestamptz := clock_timestamp();
    f outbox.followed;
    reached pg_lsn;
    said text[];
    same bool;
    subscribed bool;
    failover bool;
    n int8;
BEGIN
    SELECT * INTO f FROM outbox.followed o WHERE o.name = name FOR UPDATE;
    reached := outbox.taken_to(f);
    subscribed := EXISTS (SELECT FROM pg_subscription s WHERE s.oid = f.subscription);
    PERFORM outbox.drop_subscription(name);
    failover := outbox.drop_source_slot(conninfo, slot, force) >= 170000;
    PERFORM outbox.ask_source(conninfo, 'SELECT ARRAY[outbox.renew()::text]');
    -- Until all is here, the source has a count that no follower has. If this call is cut off, the former subscription is
    -- there again, and the new slot has its name, but begins behind rows that are not here: it takes none by it.
    IF f.name IS NOT NULL THEN
        PERFORM outbox.ask_source(conninfo, format(
            'SELECT ARRAY[m.timeline] FROM outbox.check_in(%1$L, NULL) c,'
            ' LATERAL outbox.check_in(%1$L, LEAST(c.before, -1 - c.before), CASE WHEN c.had IS NOT NULL THEN LEAST(c.had, %2$L) END) m',
            slot, reached));
    END IF;
    PERFORM outbox.create_source_slot(name, conninfo, slot, failover, timeout);
    BEGIN
        -- Transactions that commit from here on come by the slot, and so do some earlier ones.
        SELECT r INTO said FROM outbox.ask_source(conninfo, format(
            'SELECT ARRAY[GREATEST(c.before, -1 - c.before), c.timeline, c.seen, (SELECT p.oid FROM pg_publication p WHERE p.pubname = %L),'
            ' c.had, c.had_ended, c.begins]::text[] FROM outbox.check_in(%L, NULL) c', publication, slot)) r;
        -- The numbers of transactions, and places in the WAL, count for the history that they are of.
        same := f.timelines[2] = said[2] AND said[1]::int8 >= f.round - 1;
        IF f.name IS NOT NULL THEN
            PERFORM outbox.note_missed(name, conninfo, publication,
                CASE WHEN same THEN reached WHEN said[5] IS NOT NULL THEN LEAST(reached, said[5]::pg_lsn) END,
                CASE WHEN same AND subscribed THEN reached END, f.taken_at);
        -- A follower of another share may have had events of this one removed.
        ELSIF said[5] IS NOT NULL OR publication <> 'outbox' THEN
            PERFORM outbox.note_missed(name, conninfo, publication, said[5]::pg_lsn, said[6]::pg_lsn, NULL);
        END IF;
        -- From 17 on a subscription without the option would take it from the slot.
        EXECUTE format('CREATE SUBSCRIPTION %I CONNECTION %L PUBLICATION %I'
                       ' WITH (slot_name = %L, create_slot = false, copy_data = false%s)', subscription, conninfo, publication, slot,
                       CASE WHEN failover AND current_setting('server_version_num')::int4 >= 170000 THEN ', failover = true' END);
        -- The source says which tables it publishes. Rows of no other table are its own.
        IF EXISTS (SELECT FROM pg_subscription s JOIN pg_subscription_rel r ON r.srsubid = s.oid
                   WHERE s.subname = subscription AND s.subdbid = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
                   AND r.srrelid <> ALL ('{outbox.emitted,outbox.deferred}'::regclass[])) THEN
            RAISE EXCEPTION 'source "%" cannot be followed: its publication "%" has other tables than outbox.divide() puts into it', name, publication
                USING ERRCODE = 'object_not_in_prerequisite_state', COLUMN = 'conninfo',
                      HINT = 'Take them out there with ALTER PUBLICATION ... DROP TABLE, or drop the publication, and SELECT outbox.divide(1).';
        END IF;
        -- Behind the subscription, by which the events are counted. Of another publication other rows are here.
        n := outbox.copy_source(name, conninfo, publication, said[3]::pg_snapshot,
                                CASE WHEN same AND f.publication = said[4]::oid THEN f.taken END);
        -- It may have had a place of another history.
        PERFORM outbox.ask_source(conninfo, format('SELECT ARRAY[c.timeline] FROM outbox.check_in(%L, %s, %L) c', slot, said[1], said[7]));
        DELETE FROM outbox.followed o WHERE o.name = name;
        INSERT INTO outbox.followed (name, subscription, slot, keep, taken, taken_at, taken_lsn, round, timelines, publication)
        SELECT name, s.oid, slot, keep, said[3]::pg_snapshot, begun, said[7]::pg_lsn, said[1]::int8 + 1,
               ARRAY[left(pg_walfile_name(pg_current_wal_insert_lsn()), 8), left(said[2], 100)], said[4]::oid
        FROM pg_subscription s
        WHERE s.subname = subscription AND s.subdbid = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database());
        PERFORM outbox.endpoint_changed(0);
    EXCEPTION WHEN OTHERS OR query_canceled THEN
        PERFORM outbox.ask_source(conninfo, format('SELECT ARRAY[pg_drop_replication_slot(%L)::text]', slot));
        RAISE;
    END;
    RETURN n;
END $$;
COMMENT ON FUNCTION outbox.take_over IS
'Makes events of rows that a source has and this server has not, and subscribes to the next ones';

-- True if both have the history that they had at the last round. The slot knows no difference: it
-- goes on behind rows that this server has had once, even if it has them no more.
CREATE FUNCTION outbox.same_history(f outbox.followed, before int8, had pg_lsn, timeline text, publication oid) RETURNS bool
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
SELECT f.round - before IN (0, 1) AND COALESCE(had <= outbox.taken_to(f), true)
   AND f.timelines = ARRAY[left(pg_walfile_name(pg_current_wal_insert_lsn()), 8), timeline] AND f.publication = $5
$$;
COMMENT ON FUNCTION outbox.same_history IS
'Neither this server nor the source was restored or promoted since the last round, and no publication was made anew';

-- Called once by each process that brings rows (src/emit/take.c).
CREATE FUNCTION outbox.source_of(subscription oid, OUT name text, OUT taken pg_snapshot, OUT same bool)
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
SELECT f.name, f.taken, COALESCE(outbox.same_history(f, r[1]::int8, r[2]::pg_lsn, r[3], r[4]::oid), false)
FROM outbox.followed f JOIN pg_subscription s ON s.oid = f.subscription,
     LATERAL outbox.ask_source(s.subconninfo, format(
         'SELECT ARRAY[c.before, c.had, c.timeline, (SELECT p.oid FROM pg_publication p WHERE p.pubname = %L)]::text[]'
         ' FROM outbox.check_in(%L, NULL) c', s.subpublications[1], f.slot)) r
WHERE f.subscription = $1
$$;
COMMENT ON FUNCTION outbox.source_of IS
'The source that a subscription brings events of, how much of it is here, and whether that is still true';

-- ids: of outbox.forgotten (NULL: all)
CREATE FUNCTION outbox.forgotten_at(source text, ids int8[]) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
UPDATE outbox.forgotten f
SET sources = array_remove(f.sources, source),
    key = CASE WHEN f.key IS NULL OR f.complete_at IS NULL OR f.sources <> ARRAY[source] THEN f.key ELSE 'forgotten' END,
    complete_at = CASE WHEN f.complete_at IS NOT NULL THEN clock_timestamp() END
WHERE source = ANY (f.sources) AND (ids IS NULL OR f.forget_id = ANY (ids))
$$;
COMMENT ON FUNCTION outbox.forgotten_at IS
'Stores that a source has removed all that outbox.forget() was asked for';

-- Runs as its caller, because a connection string may name files of this server, and any address. An operator may not
-- ask a source: outbox.follow_service() does that for it.
CREATE FUNCTION outbox.follow(name text, conninfo text, publication text DEFAULT 'outbox',
    keep interval DEFAULT '1 day', timeout interval DEFAULT '1 minute') RETURNS int8
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    query text;
    has text[];
    version text;
    problem text;
    cure text;
    n int8;
BEGIN
    IF NOT has_function_privilege('outbox.ask_source(text,text,int4)', 'EXECUTE') THEN
        RETURN outbox.follow_service(name, conninfo, publication, keep, timeout);
    END IF;
    -- A second call for the same source waits, and finds that it is followed. The view shows who has the lock.
    PERFORM outbox.lock_source(name, 'outbox.followed'::regclass, true);
    PERFORM outbox.refuse_copy('outbox.follow()');
    IF name IS NULL OR name !~ '^[a-z][a-z0-9_]{0,30}$' THEN
        RAISE EXCEPTION 'invalid name of a source: %', COALESCE(quote_literal(name), 'null')
            USING ERRCODE = CASE WHEN name IS NULL THEN 'null_value_not_allowed' ELSE 'invalid_parameter_value' END, COLUMN = 'name',
                  HINT = 'Use a small letter, and then up to 30 small letters, digits and "_".';
    ELSIF conninfo ~* 'password[[:space:]]*=|://[^/@]*:[^/@]*@' THEN
        RAISE EXCEPTION 'conninfo must not contain a password'
            USING ERRCODE = 'invalid_parameter_value', COLUMN = 'conninfo',
                  DETAIL = 'It would be stored as plain text, also in dumps and backups of this server.',
                  HINT = 'Use passfile=..., or service=... with a file that the server may read.';
    ELSIF keep IS NULL OR keep < '0' THEN
        RAISE EXCEPTION 'invalid keep: %', COALESCE(keep::text, 'null')
            USING ERRCODE = CASE WHEN keep IS NULL THEN 'null_value_not_allowed' ELSE 'invalid_parameter_value' END, COLUMN = 'keep',
                  HINT = 'Pass how long the source keeps events that were taken, like ''1 day''.';
    ELSIF timeout IS NULL OR timeout NOT BETWEEN '0' AND '1 day' THEN
        RAISE EXCEPTION 'invalid timeout: %', COALESCE(timeout::text, 'null')
            USING ERRCODE = CASE WHEN timeout IS NULL THEN 'null_value_not_allowed' ELSE 'invalid_parameter_value' END, COLUMN = 'timeout',
                  HINT = 'Pass how long to wait for transactions that are open at the source, up to ''1 day''.';
    ELSIF EXISTS (SELECT FROM outbox.followed f JOIN pg_subscription s ON s.oid = f.subscription
                  WHERE f.name = name AND f.lost IS NULL) THEN
        RAISE EXCEPTION 'source "%" is followed already', name
            USING ERRCODE = 'duplicate_object', COLUMN = 'name',
                  HINT = 'outbox.sources shows its state. outbox.unfollow() ends it.';
    END IF;

    -- The role, the network and the attribute REPLICATION are checked by connecting. A statement of
    -- one line is shown in the context of an error.
    query := format(
        'SELECT ARRAY[pg_postmaster_start_time()::text, current_setting(''wal_level''),'
        ' (SELECT p.proname FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace'
        '  WHERE n.nspname = ''outbox'' AND p.proname = ''source_version'')::text,'
        ' (SELECT p.pubname FROM pg_publication p WHERE p.pubname = %1$L)::text,'
        ' CASE WHEN EXISTS (SELECT FROM pg_publication p WHERE p.pubname = %1$L AND p.pubinsert AND p.pubviaroot'
        '                   AND NOT p.pubupdate AND NOT p.pubdelete AND NOT p.pubtruncate)'
        '  THEN (SELECT string_agg(concat_ws('' '', t.tablename, t.attnames), '','' ORDER BY t.tablename)'
        '        FROM pg_publication_tables t WHERE t.pubname = %1$L) END,'
        ' current_setting(''server_encoding''),'
        ' CASE WHEN current_setting(''max_replication_slots'')::int4 <= (SELECT count(*) FROM pg_replication_slots) THEN ''full'' END,'
        ' (SELECT current_user FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace'
        '  WHERE n.nspname = ''outbox'' AND c.relname = ''emitted'''
        '  AND NOT (has_schema_privilege(n.oid, ''USAGE'') AND has_table_privilege(c.oid, ''SELECT'')))::text]',
        publication);
    SELECT r INTO has FROM outbox.ask_source(conninfo, query) r;
    IF has[1] = pg_postmaster_start_time()::text THEN
        problem := 'it is this server';
        cure := 'Emit here. A follower is another server than its source.';
    ELSIF has[2] <> 'logical' THEN
        problem := format('its wal_level is %s', has[2]);
        cure := 'Set wal_level = logical there, or what the service has in its place, and restart it.';
    ELSIF has[3] IS NULL THEN
        problem := 'it has no schema outbox of sql/source.sql';
        cure := 'Run psql -f sql/source.sql in its database.';
    ELSIF has[4] IS NULL THEN
        problem := format('it has no publication "%s"', publication);
        cure := 'SELECT outbox.divide(1) makes the publication outbox there, and outbox.divide(2) makes outbox_1_of_2 and outbox_2_of_2.';
    ELSIF current_setting('server_encoding') NOT IN ('UTF8', 'SQL_ASCII', has[6]) THEN
        problem := format('its encoding is %s, and that of this database %s', has[6], current_setting('server_encoding'));
        cure := 'Follow from a database with the encoding UTF8.';
    ELSIF has[7] IS NOT NULL THEN
        problem := 'it has no replication slot left';
        cure := 'Drop a slot that is not needed, or raise max_replication_slots there.';
    ELSIF has[8] IS NOT NULL THEN
        problem := format('role "%s" may not read its events', has[8]);
        cure := format('Run SELECT outbox.grant_follow(%L) there.', has[8]);
    ELSE
        SELECT r[1] INTO version FROM outbox.ask_source(conninfo, 'SELECT ARRAY[outbox.source_version()]') r;
        IF version <> '1.0' THEN
            problem := format('its sql/source.sql has version %s, and this server knows 1.0', left(version, 100));
            cure := 'Update the older of the two.';
        ELSIF has[5] IS DISTINCT FROM
            'deferred {id,deliver_at,xid,created_at,topic,type,key,tenant,expires_at,headers,payload,body,content_type},'
            'emitted {id,xid,created_at,topic,type,key,tenant,expires_at,headers,payload,body,content_type}' THEN
            problem := format('its publication "%s" is not as outbox.divide() makes it', publication);
            cure := 'Pass the name of one that SELECT outbox.divide(1) there returns.';
        END IF;
    END IF;
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION 'source "%" cannot be followed: %', name, problem
            USING ERRCODE = 'object_not_in_prerequisite_state', COLUMN = 'conninfo', HINT = cure;
    END IF;

    PERFORM outbox.refuse_snapshot('outbox.follow()', in_block => true);
    PERFORM outbox.claim_log();   -- so that a copy of this database is known
    n := outbox.take_over(name, conninfo, publication, keep, timeout, true);
    PERFORM outbox.note_change(NULL, '', 'follow', '{}', jsonb_build_object('source', name, 'publication', publication));
    RETURN n;
END $$;
COMMENT ON FUNCTION outbox.follow IS
'Makes events of the rows that are emitted at another server, from now on, and of present ones, and returns '
'the number of these';

-- The string is judged, and not the caller. session_user is another role where PostgreSQL runs code of the caller
-- in another session: an expression of an index in ANALYZE, a trigger.
CREATE FUNCTION outbox.follow_service(name text, conninfo text, publication text, keep interval, timeout interval) RETURNS int8
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF conninfo !~ '^service=[A-Za-z0-9_.-]+$' THEN
        RAISE EXCEPTION 'only a superuser may follow with another connection string than service=...'
            USING ERRCODE = 'insufficient_privilege', COLUMN = 'conninfo',
                  HINT = 'Ask for an entry in pg_service.conf of this server, and pass its name, like ''service=shop''.';
    END IF;
    RETURN outbox.follow(name, conninfo, publication, keep, timeout);
END $$;
COMMENT ON FUNCTION outbox.follow_service IS
'outbox.follow() for an operator: a source that an entry of pg_service.conf names (42501: another connection string)';

-- The slot at the source retains WAL there, so it goes before the subscription is forgotten.
CREATE FUNCTION outbox.unfollow(name text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    f record;
BEGIN
    PERFORM outbox.lock_source(name, 'outbox.followed'::regclass, true);
    SELECT o.slot, o.lost, outbox.taken_to(o) AS reached, s.subname, s.subconninfo INTO f
    FROM outbox.followed o LEFT JOIN pg_subscription s ON s.oid = o.subscription OR s.subslotname = o.slot WHERE o.name = name;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'source "%" is not followed', name
            USING ERRCODE = 'undefined_object', COLUMN = 'name',
                  HINT = 'outbox.sources lists those that are.';
    END IF;
    PERFORM outbox.refuse_snapshot('outbox.unfollow()', in_block => true);
    PERFORM outbox.refuse_copy('outbox.unfollow()');
    PERFORM outbox.drop_subscription(name);
    BEGIN
        IF f.subname IS NULL THEN
            RAISE undefined_object USING MESSAGE = 'its subscription, with the address, was dropped';
        END IF;
        -- If it is followed again later, events that are missing then can be counted.
        IF f.lost IS NULL THEN
            PERFORM outbox.ask_source(f.subconninfo, format('SELECT ARRAY[c.timeline] FROM outbox.check_in(%L, NULL, %L) c',
                                                            f.slot, f.reached));
        END IF;
        PERFORM outbox.drop_source_slot(f.subconninfo, f.slot, true);
    EXCEPTION WHEN OTHERS THEN
        RAISE WARNING 'the replication slot "%" may still retain WAL at the source: %', f.slot, SQLERRM
            USING HINT = format('Run SELECT pg_drop_replication_slot(%L) there.', f.slot);
    END;
    DELETE FROM outbox.followed o WHERE o.name = name;
    PERFORM outbox.note_change(NULL, '', 'unfollow', '{}', jsonb_build_object('source', name));
    PERFORM outbox.forgotten_at(name, NULL);
    PERFORM outbox.endpoint_changed(0);
END $$;
COMMENT ON FUNCTION outbox.unfollow IS
'Ends following a source: nothing more is taken from it, and its replication slot there is dropped (42704: it is not followed)';
