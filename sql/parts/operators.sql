------------------------------------------------------------------------
-- Requests of operators: retry, discard, replay, cancel, wait, test
------------------------------------------------------------------------

-- Repeated requests are one command.
CREATE FUNCTION outbox.is_asked(endpoint_id int4, action text, seq int8) RETURNS bool
LANGUAGE C VOLATILE STRICT AS 'MODULE_PATHNAME', 'outbox_is_asked_1_0';
COMMENT ON FUNCTION outbox.is_asked IS 'True if the last command that waits for this delivery is the same';

-- Writes a command to the worker for each parked delivery that the arguments select.
-- NULL: any event, any topic, any time.  Returns how many.
CREATE FUNCTION outbox.command(action text, statuses text[], endpoint text,
    event uuid, topics text[], since timestamptz) RETURNS int8
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    id CONSTANT int4 := outbox.find_endpoint(endpoint);
    seqs int8[];
    n int8;
    new_ones int8;
BEGIN
    PERFORM outbox.check_topics(topics);
    -- The number leads to its row among millions. An event that is gone has only its dead letters.
    IF event IS NOT NULL THEN
        seqs := ARRAY(SELECT e.seq FROM outbox.all_events e WHERE e.id = event
                      UNION SELECT d.seq FROM outbox.parked d WHERE d.event_id = event AND d.status = 'dead');
    END IF;
    -- One of the two branches is empty before it is read, so one plan serves for both. The row of an event is
    -- found by its number and not among those of the endpoint, which PostgreSQL may take for a few.
    seqs := ARRAY(SELECT k.seq
        FROM (SELECT * FROM outbox.parked WHERE event IS NULL AND endpoint_id = id
              UNION ALL SELECT p.* FROM unnest(seqs) q
              CROSS JOIN LATERAL (SELECT * FROM outbox.parked WHERE endpoint_id = id AND seq = q LIMIT 1) p
              WHERE p.event_id = event) k
        WHERE k.status = ANY (statuses)
        AND (since IS NULL OR k.parked_at >= since)
        AND (topics IS NULL OR (SELECT outbox.topic_in(e.topic, topics) FROM outbox.all_events e
                                WHERE e.seq = k.seq AND e.id = k.event_id LIMIT 1)));
    n := cardinality(seqs);
    INSERT INTO outbox.commands (endpoint_id, action, seq)
    SELECT id, command.action, c FROM unnest(seqs) c WHERE NOT outbox.is_asked(id, command.action, c) ORDER BY c;
    GET DIAGNOSTICS new_ones = ROW_COUNT;
    IF action = 'retry' THEN
        PERFORM outbox.probe(id);
        PERFORM outbox.note_inactive(id) WHERE n > 0;
    END IF;
    PERFORM outbox.note_change(s.tenant, s.name, action, '{}', jsonb_strip_nulls(jsonb_build_object(
        'event', event, 'topics', command.topics, 'since', since, 'deliveries', n)))
    FROM outbox.endpoint_settings s WHERE s.endpoint_id = id AND new_ones > 0;
    PERFORM outbox.wake_workers();
    RETURN n;
END $$;
COMMENT ON FUNCTION outbox.command IS
'Writes a command for each parked delivery that the arguments select, and returns how many';

CREATE FUNCTION outbox.retry(endpoint text, event uuid DEFAULT NULL,
    topics text[] DEFAULT NULL, since timestamptz DEFAULT NULL) RETURNS int8
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$ SELECT outbox.command('retry', '{dead,retrying}', $1, $2, $3, $4) $$;
COMMENT ON FUNCTION outbox.retry IS
'Makes deliveries that are dead, or wait for a retry, due now with fresh attempts, and returns how many';

CREATE FUNCTION outbox.discard(endpoint text, event uuid DEFAULT NULL,
    topics text[] DEFAULT NULL, since timestamptz DEFAULT NULL) RETURNS int8
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$ SELECT outbox.command('discard', '{dead}', $1, $2, $3, $4) $$;
COMMENT ON FUNCTION outbox.discard IS 'Gives dead deliveries up for good, and returns how many';

-- Where more events than "most" follow from_time, they are not counted: their filter may take long.
CREATE FUNCTION outbox.start_replay(endpoint text, from_time timestamptz, to_time timestamptz, topics text[],
    most int4) RETURNS int8
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    id int4 := outbox.find_endpoint(endpoint);
    p record;
    s record;
    start record;
    low int8;
    first int8;
    n int8;
BEGIN
    IF from_time IS NULL OR to_time IS NULL THEN
        RAISE EXCEPTION '% must not be null', CASE WHEN from_time IS NULL THEN 'from_time' ELSE 'to_time' END
            USING ERRCODE = 'null_value_not_allowed', COLUMN = CASE WHEN from_time IS NULL THEN 'from_time' ELSE 'to_time' END,
                  HINT = 'Pass the times of the first and the last event.';
    ELSIF from_time > to_time OR NOT isfinite(from_time) OR NOT isfinite(to_time) THEN
        RAISE EXCEPTION 'invalid times: from % to %', from_time, to_time
            USING ERRCODE = 'invalid_parameter_value', COLUMN = CASE WHEN isfinite(from_time) > isfinite(to_time) THEN 'to_time' ELSE 'from_time' END,
                  HINT = 'Both must be finite, and from_time not later than to_time.';
    END IF;
    PERFORM outbox.check_topics(topics);
    SELECT q.endpoint_id, COALESCE(q.reading, q.read) AS passed INTO p
    FROM outbox.endpoint_positions q WHERE q.endpoint_id = id;
    SELECT * INTO start FROM outbox.resolve_start(NULL, LEAST(from_time, clock_timestamp()));
    SELECT q.* INTO s FROM outbox.endpoint_settings q WHERE q.endpoint_id = id;

    low := CASE WHEN most IS NULL THEN 0 ELSE start.seq_low END;
    IF NOT EXISTS (SELECT FROM outbox.events e WHERE most IS NOT NULL AND e.tenant = s.tenant AND e.seq > low
                   OFFSET most LIMIT 1) THEN
        -- One of the two branches is empty before it is read, and the index of tenants serves the other one.
        -- The worker counts in the same way: a waiting delivery is sent again, whatever it waits for.
        SELECT count(*), min(e.seq) INTO n, first
        FROM (SELECT * FROM outbox.events WHERE s.tenant IS NULL
              UNION ALL SELECT * FROM outbox.events WHERE tenant = s.tenant) e
        WHERE e.seq > low AND e.created_at BETWEEN from_time AND to_time
        AND (topics IS NULL OR outbox.topic_in(e.topic, topics))
        AND (e.payload IS NOT NULL OR e.body IS NOT NULL)
        AND NOT EXISTS (SELECT FROM outbox.forgotten f WHERE outbox.forgets(f, e.tenant, e.key, e.epoch, e.xid))
        AND outbox.topic_in(e.topic, s.topics)
        AND outbox.filter_matches(e.payload, s.filter)
        AND pg_visible_in_snapshot(outbox.log_xid(e.epoch, e.xid), p.passed)
        AND NOT EXISTS (SELECT 1 FROM outbox.parked k WHERE k.endpoint_id = p.endpoint_id AND k.seq = e.seq
                        AND k.status IN ('dead', 'cancelled'));
        -- The clock of a source may be ahead.
        IF first <= start.seq_low THEN
            SELECT t.snapshot, t.seq_low INTO start
            FROM (SELECT c.tick, c.snapshot, c.seq_low FROM outbox.ticks c WHERE c.seq_high < first
                  UNION ALL SELECT -1, '3:3:', 0) t ORDER BY t.tick DESC LIMIT 1;
        END IF;
    END IF;
    IF n IS DISTINCT FROM 0 AND (SELECT count(*) FROM outbox.replays r WHERE r.endpoint_id = id AND r.finished_at IS NULL) >= 100 THEN
        RAISE EXCEPTION 'endpoint "%" has 100 replays that have not ended', endpoint
            USING ERRCODE = 'program_limit_exceeded',
                  HINT = 'Ask again when one has ended. While the endpoint is paused or fails, none does.';
    ELSIF n IS DISTINCT FROM 0 THEN
        -- Of the ones that have ended only the newest are listed.  In this order only the index of
        -- endpoints has them.
        DELETE FROM outbox.replays r
        WHERE r.replay_id IN (
            SELECT o.replay_id FROM outbox.replays o
            WHERE o.endpoint_id >= id AND (o.endpoint_id, o.replay_id) < (id, (
                SELECT q.replay_id FROM outbox.replays q
                WHERE q.endpoint_id >= id AND (q.endpoint_id, q.replay_id) <= (id, 9223372036854775807)
                ORDER BY q.endpoint_id DESC, q.replay_id DESC OFFSET 98 LIMIT 1))
            AND o.finished_at IS NOT NULL ORDER BY o.endpoint_id, o.replay_id LIMIT 2 FOR UPDATE SKIP LOCKED);
        INSERT INTO outbox.replays (endpoint_id, topics, from_time, to_time, read, read_seq_low,
            target, target_seq_high, expected)
        VALUES (p.endpoint_id, topics, from_time, to_time, start.snapshot, start.seq_low, p.passed,
            (SELECT h.seq_low FROM outbox.position_now('outbox.events_seq'::regclass::oid) h), n);
        PERFORM outbox.note_change(s.tenant, s.name, 'replay', '{}', jsonb_strip_nulls(jsonb_build_object(
            'replay', currval('outbox.replays_replay_id_seq'), 'from_time', from_time, 'to_time', to_time,
            'topics', topics, 'deliveries', n)));
        PERFORM outbox.note_inactive(id);
        PERFORM outbox.wake_workers();
    END IF;
    RETURN n;
END $$;
COMMENT ON FUNCTION outbox.start_replay IS
'As outbox.replay(), but returns NULL where it would have to count more events than this';

CREATE FUNCTION outbox.replay(endpoint text, from_time timestamptz,
    to_time timestamptz DEFAULT now(), topics text[] DEFAULT NULL) RETURNS int8
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off
AS $$ SELECT outbox.start_replay($1, $2, $3, $4, NULL) $$;
COMMENT ON FUNCTION outbox.replay IS
'Sends events that were emitted between two times to the endpoint again, and returns how many';

CREATE FUNCTION outbox.cancel_replay(endpoint text, replay int8) RETURNS bool
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    id CONSTANT int4 := outbox.find_endpoint(endpoint);
BEGIN
    IF replay IS NULL THEN
        RAISE EXCEPTION 'replay must not be null'
            USING ERRCODE = 'null_value_not_allowed', COLUMN = 'replay', HINT = 'Use the number of a replay that is listed.';
    END IF;
    UPDATE outbox.replays r SET finished_at = clock_timestamp(), cancelled = true
    WHERE r.replay_id = replay AND r.endpoint_id = id AND r.finished_at IS NULL;
    IF FOUND THEN
        PERFORM outbox.note_change(s.tenant, s.name, 'cancel_replay', '{}', jsonb_build_object('replay', replay))
        FROM outbox.endpoint_settings s WHERE s.endpoint_id = id;
        PERFORM outbox.wake_workers();
    ELSIF NOT EXISTS (SELECT 1 FROM outbox.replays r WHERE r.replay_id = replay AND r.endpoint_id = id) THEN
        RAISE EXCEPTION 'endpoint "%" has no replay of this number', endpoint
            USING ERRCODE = 'undefined_object', COLUMN = 'replay', HINT = 'Use the number of a replay that is listed.';
    ELSE
        RETURN false;
    END IF;
    RETURN true;
END $$;
COMMENT ON FUNCTION outbox.cancel_replay IS
'Ends a replay where it is, and returns true if it had not ended. Events that it has come to are sent';

CREATE FUNCTION outbox.cancel(event uuid, endpoint text DEFAULT NULL) RETURNS bool
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    names text[] := ARRAY[endpoint];
    n int8;
    its_topic text;
    its_key text;
BEGIN
    IF event IS NULL THEN
        RAISE EXCEPTION 'event must not be null'
            USING ERRCODE = 'null_value_not_allowed',
                  HINT = 'Pass what outbox.emit() returned; outbox.deliveries has it as event_id.';
    END IF;
    IF endpoint IS NULL THEN
        DELETE FROM outbox.scheduled e WHERE e.id = event RETURNING e.topic, e.dedup_key INTO its_topic, its_key;
        IF FOUND THEN
            -- The event is gone, so its dedup_key is free again.
            DELETE FROM outbox.dedup d WHERE d.topic = its_topic AND d.dedup_key = its_key AND d.event_id = event;
            RETURN true;
        END IF;
    ELSIF EXISTS (SELECT 1 FROM outbox.scheduled e WHERE e.id = event) THEN
        RAISE EXCEPTION 'event "%" is scheduled, and no endpoint has it yet', event
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Cancel it for all endpoints, or wait until it is due.';
    END IF;
    IF NOT EXISTS (SELECT 1 FROM outbox.all_events e WHERE e.id = event) THEN
        RAISE EXCEPTION 'event "%" does not exist', event
            USING ERRCODE = 'undefined_object',
                  HINT = 'It may have been delivered and forgotten since; see outbox.retention.';
    END IF;
    IF endpoint IS NOT NULL THEN
        PERFORM outbox.find_endpoint(endpoint);
    ELSE
        names := ARRAY(SELECT s.name FROM outbox.endpoint_settings s);
    END IF;
    WITH added AS (
        INSERT INTO outbox.commands (endpoint_id, action, seq)
        SELECT s.endpoint_id, 'cancel', d.seq
        FROM outbox.deliveries d JOIN outbox.endpoint_settings s ON s.name = d.endpoint
        WHERE d.event_id = event AND d.endpoint = ANY (names)
        AND d.status IN ('pending', 'retrying', 'blocked')
        -- a delivery that the worker is sending, and that has no row, cannot be taken back
        AND (EXISTS (SELECT 1 FROM outbox.parked k WHERE k.endpoint_id = s.endpoint_id AND k.seq = d.seq)
             OR NOT EXISTS (SELECT 1 FROM outbox.endpoint_positions p
                            WHERE p.endpoint_id = s.endpoint_id AND outbox.is_pending(d.seq, p.pending)))
        RETURNING endpoint_id)
    SELECT count(outbox.note_change(s.tenant, s.name, 'cancel', '{}', jsonb_build_object('event', event))::text) INTO n
    FROM added a JOIN outbox.endpoint_settings s USING (endpoint_id);
    PERFORM outbox.wake_workers();
    RETURN n > 0;
END $$;
COMMENT ON FUNCTION outbox.cancel IS
'Takes an event back from an endpoint (NULL: from all) where it still waits, and returns true if it did '
'anywhere';

-- Reads the deliveries again and again, each time with a new snapshot.
CREATE FUNCTION outbox.wait_for(event uuid, timeout interval DEFAULT '10 s')
RETURNS bool
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
    until timestamptz;
    asked timestamptz;
    emitted_by xid8;
    delivered bool;
    failed bool;
BEGIN
    IF event IS NULL OR timeout IS NULL THEN
        RAISE EXCEPTION '% must not be null', CASE WHEN event IS NULL THEN 'event' ELSE 'timeout' END
            USING ERRCODE = 'null_value_not_allowed',
                  HINT = 'Pass what outbox.emit() returned, and a timeout like ''10 s''.';
    ELSIF timeout NOT BETWEEN interval '0' AND interval '1 year' THEN
        RAISE EXCEPTION 'invalid timeout %', timeout
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Use ''0'' to read once, or a time to wait, at most 1 year.';
    END IF;
    PERFORM outbox.refuse_snapshot('outbox.wait_for()');
    SELECT e.xid INTO emitted_by
    FROM (SELECT a.id, a.xid FROM outbox.all_events a
          UNION ALL SELECT s.id, s.xid FROM outbox.scheduled s) e
    WHERE e.id = event;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'event "%" does not exist', event
            USING ERRCODE = 'undefined_object',
                  HINT = 'Its transaction may not have committed yet, or it may have been delivered and '
                         'forgotten since; see outbox.retention.';
    ELSIF emitted_by = pg_current_xact_id_if_assigned() THEN
        RAISE EXCEPTION 'event "%" was emitted by this transaction', event
            USING ERRCODE = 'active_sql_transaction',
                  HINT = 'Commit first, then wait: it is delivered after the commit.';
    END IF;

    until := clock_timestamp() + timeout;
    LOOP
        asked := clock_timestamp();
        SELECT COALESCE(bool_and(d.status = 'delivered'), true),
               COALESCE(bool_or(d.status IN ('dead', 'cancelled', 'forgotten')), false)
        INTO delivered, failed
        FROM outbox.deliveries d WHERE d.event_id = event;
        IF delivered OR failed OR clock_timestamp() >= until THEN
            RETURN delivered;
        END IF;
        -- sleeps at least 15 ms, and at least as long as the query took
        PERFORM pg_sleep(LEAST(extract(epoch FROM until - clock_timestamp()),
                               GREATEST(extract(epoch FROM clock_timestamp() - asked), 0.015)));
    END LOOP;
END $$;
COMMENT ON FUNCTION outbox.wait_for IS
'Waits until an event is delivered to each endpoint that subscribes to it, and returns true if it was';

-- The event does not enter the log, where every endpoint would read it. It is kept
-- as for a parked delivery, and its delivery is parked.
CREATE FUNCTION outbox.send_test(name text, topic text DEFAULT 'outbox.test', payload jsonb DEFAULT NULL)
RETURNS uuid
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    id int4;
    e outbox.kept_events;
    waiting int8;
    dead int8;
BEGIN
    SELECT s.endpoint_id, s.tenant INTO id, e.tenant
    FROM outbox.endpoint_settings s WHERE s.name = send_test.name FOR KEY SHARE;
    PERFORM outbox.require_endpoint(name, FOUND);
    IF starts_with(topic, 'outbox.') AND topic <> 'outbox.test' THEN
        RAISE EXCEPTION 'topic "%" is reserved', topic
            USING ERRCODE = 'reserved_name', COLUMN = 'topic',
                  HINT = 'Use a topic of yours, or leave the argument out.';
    END IF;
    SELECT count(*) FILTER (WHERE k.status <> 'dead'), count(*) FILTER (WHERE k.status = 'dead') INTO waiting, dead
    FROM outbox.kept_events t JOIN outbox.parked k ON k.endpoint_id = t.test_of AND k.seq = t.seq
    WHERE t.test_of = id AND k.status IN ('retrying', 'blocked', 'dead');
    IF waiting >= 10 THEN
        RAISE EXCEPTION '10 test events wait for endpoint "%"', name
            USING ERRCODE = 'program_limit_exceeded',
                  HINT = 'Send another when one was delivered, or is dead. While the endpoint is paused, none is sent.';
    END IF;
    -- Dead letters of ten tests are enough.
    INSERT INTO outbox.commands (endpoint_id, action, seq)
    SELECT id, 'discard', t.seq
    FROM outbox.kept_events t JOIN outbox.parked k ON k.endpoint_id = t.test_of AND k.seq = t.seq
    WHERE t.test_of = id AND k.status = 'dead' AND NOT outbox.is_asked(id, 'discard', t.seq)
    ORDER BY t.seq LIMIT GREATEST(dead - 9, 0);
    e.xid := pg_current_xact_id();
    e.epoch := outbox.current_epoch();
    e.id := outbox.new_event_id();
    e.created_at := clock_timestamp();
    e.topic := topic;
    e.payload := COALESCE(payload, (SELECT t.example FROM outbox.event_types t WHERE t.topic = e.topic),
                          jsonb_build_object('endpoint', name, 'message', 'A test event: nothing happened.'));
    e.headers := '{"outbox-test": "true"}';
    e.test_of := id;
    PERFORM outbox.check_event(0, e.topic, NULL, NULL, e.tenant, NULL, e.payload, NULL, NULL);
    e.seq := outbox.next_seq();     -- which no error gives back
    INSERT INTO outbox.kept_events VALUES (e.*);
    INSERT INTO outbox.parked (endpoint_id, seq, event_id, status, attempts, next_attempt_at, parked_at)
    VALUES (id, e.seq, e.id, 'retrying', 0, e.created_at, e.created_at);
    INSERT INTO outbox.commands (endpoint_id, action, seq) VALUES (id, 'due', e.seq);
    PERFORM outbox.note_change(e.tenant, name, 'test', '{}', jsonb_build_object('event', e.id));
    PERFORM outbox.probe(id);
    PERFORM outbox.note_inactive(id);
    PERFORM outbox.wake_workers();
    RETURN e.id;
END $$;
COMMENT ON FUNCTION outbox.send_test(text, text, jsonb) IS
'Sends one event to this endpoint alone, on topic outbox.test or on the one that is given, and returns its id';

CREATE FUNCTION outbox.send_test(name text, topic text, payload text) RETURNS uuid
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    parsed jsonb;
    detail text;
BEGIN
    BEGIN
        parsed := payload;
    EXCEPTION
        WHEN data_exception THEN
            GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
            RAISE EXCEPTION '%', SQLERRM
                USING ERRCODE = SQLSTATE, COLUMN = 'payload', DETAIL = detail, HINT = 'A payload is JSON that the type jsonb can hold.';
    END;
    RETURN outbox.send_test(name, topic, parsed);
END $$;
COMMENT ON FUNCTION outbox.send_test(text, text, text) IS
'As send_test(text, text, jsonb), for JSON in a text, or in an untyped literal or parameter';

-- jsonb is stricter than json
CREATE FUNCTION outbox.send_test(name text, topic text, payload json) RETURNS uuid
LANGUAGE sql VOLATILE CALLED ON NULL INPUT PARALLEL UNSAFE
RETURN outbox.send_test(name, topic, payload::text);
COMMENT ON FUNCTION outbox.send_test(text, text, json) IS
'As send_test(text, text, jsonb), for a payload of type json';

-- The worker parks the delivery, as a replay does, so that its event is kept in time.
CREATE FUNCTION outbox.resend(endpoint text, event uuid) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_variable
DECLARE
    id int4 := outbox.find_endpoint(endpoint);
    d record;
BEGIN
    IF event IS NULL THEN
        RAISE EXCEPTION 'event must not be null'
            USING ERRCODE = 'null_value_not_allowed', COLUMN = 'event',
                  HINT = 'Pass its event_id, by which deliveries are listed.';
    END IF;
    SELECT v.seq, v.status INTO d FROM outbox.deliveries v WHERE v.event_id = event AND v.endpoint = resend.endpoint;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'endpoint "%" never had event "%"', endpoint, event
            USING ERRCODE = 'undefined_object', COLUMN = 'event',
                  HINT = 'It did not subscribe to the event, or the event is older than what is kept.';
    ELSIF d.status IN ('dead', 'retrying') THEN
        -- If it has been sent since it was looked at, that is enough.
        PERFORM outbox.retry(endpoint, event);
        RETURN;
    ELSIF d.status <> 'delivered' THEN
        RAISE EXCEPTION 'event "%" is not delivered to endpoint "%", it is %', event, endpoint, d.status
            USING ERRCODE = 'object_not_in_prerequisite_state', COLUMN = 'event',
                  HINT = 'Only what was delivered, or has failed, can be sent again.';
    END IF;
    INSERT INTO outbox.commands (endpoint_id, action, seq)
    SELECT id, 'resend', d.seq WHERE NOT outbox.is_asked(id, 'resend', d.seq);
    PERFORM outbox.note_change(s.tenant, s.name, 'resend', '{}', jsonb_build_object('event', event))
    FROM outbox.endpoint_settings s WHERE FOUND AND s.endpoint_id = id;
    PERFORM outbox.note_inactive(id);
    PERFORM outbox.wake_workers();
END $$;
COMMENT ON FUNCTION outbox.resend IS 'Sends an event again that was delivered to the endpoint, or that failed there';

-- NULL leaves a value as it is.
CREATE FUNCTION outbox.set_retention(events interval DEFAULT NULL, attempts interval DEFAULT NULL,
    reset text[] DEFAULT '{}') RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    given record;
    option text;
BEGIN
    FOREACH option IN ARRAY COALESCE(reset, '{}') LOOP
        IF option IS NULL OR option NOT IN ('events', 'attempts') THEN
            RAISE EXCEPTION 'unknown option "%" in reset', option
                USING ERRCODE = 'invalid_parameter_value',
                      HINT = 'Use events, attempts, or both.';
        ELSIF (option = 'events' AND events IS NOT NULL) OR (option = 'attempts' AND attempts IS NOT NULL) THEN
            RAISE EXCEPTION 'option "%" has a new value and is in reset', option
                USING ERRCODE = 'invalid_parameter_value',
                      HINT = 'Pass the value, or name the option in reset to use the setting of the server again.';
        END IF;
    END LOOP;
    PERFORM outbox.make_room();
    FOR given IN SELECT g.log, g.keep FROM (VALUES ('events', events), ('attempts', attempts)) g (log, keep)
                 WHERE g.keep IS NOT NULL LOOP
        IF NOT date_part('epoch', given.keep) BETWEEN 1 AND 2147483647 THEN
            RAISE EXCEPTION 'invalid retention of %: %', given.log, given.keep
                USING ERRCODE = 'invalid_parameter_value',
                      HINT = 'It must be between 1 second and 68 years.';
        END IF;
        INSERT INTO outbox.retention_here AS r VALUES (given.log, given.keep)
        ON CONFLICT (log) DO UPDATE SET keep = EXCLUDED.keep;
    END LOOP;
    DELETE FROM outbox.retention_here r WHERE r.log = ANY (reset);
    PERFORM outbox.note_change(NULL, '', 'retention', '{}', jsonb_strip_nulls(jsonb_build_object(
        'events', events, 'attempts', attempts, 'reset', NULLIF(reset, '{}'))));
    PERFORM outbox.endpoint_changed(0);
END $$;
COMMENT ON FUNCTION outbox.set_retention IS
'How long this database keeps events and attempts, in place of outbox.retention and outbox.attempts_retention';
