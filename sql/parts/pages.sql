------------------------------------------------------------------------
-- Pages: the newest deliveries and requests, at a cost that does not grow with the log.
--
-- A page names its rows first and then reads them.  Plans are made once in a session,
-- for tables of any size: they use indexes also where a table is empty at that time.
------------------------------------------------------------------------

-- The endpoints of a page: one, or all of a tenant.
CREATE FUNCTION outbox.page_endpoints(endpoint text, tenant text, status text, page_size int4) RETURNS int4[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
    ids int4[];
BEGIN
    PERFORM outbox.check_tenant(tenant);
    IF page_size IS NULL OR page_size NOT BETWEEN 1 AND 1000 THEN
        RAISE EXCEPTION 'invalid page_size %', COALESCE(page_size::text, 'NULL')
            USING ERRCODE = 'invalid_parameter_value', COLUMN = 'page_size', HINT = 'Use 1 to 1000 rows.';
    ELSIF status NOT IN ('pending', 'processing', 'delivered', 'retrying', 'blocked', 'dead', 'cancelled', 'forgotten') THEN
        RAISE EXCEPTION 'unknown status "%"', status
            USING ERRCODE = 'invalid_parameter_value', COLUMN = 'status',
                  HINT = 'Use pending, processing, delivered, retrying, blocked, dead, cancelled or forgotten; NULL: any.';
    ELSIF endpoint IS NULL AND tenant IS NULL THEN
        RAISE EXCEPTION 'endpoint and tenant are both null'
            USING ERRCODE = 'null_value_not_allowed', HINT = 'Pass the name of an endpoint, or a tenant, or both.';
    END IF;
    IF endpoint IS NULL THEN
        SELECT COALESCE(array_agg(s.endpoint_id), '{}') INTO ids
        FROM outbox.endpoint_settings s WHERE s.tenant = page_endpoints.tenant;
    ELSE
        SELECT ARRAY[s.endpoint_id] INTO ids FROM outbox.endpoint_settings s
        WHERE s.name = endpoint AND (page_endpoints.tenant IS NULL OR s.tenant = page_endpoints.tenant);
        PERFORM outbox.require_endpoint(endpoint, FOUND, tenant);
    END IF;
    RETURN ids;
END $$;
COMMENT ON FUNCTION outbox.page_endpoints IS
'Numbers of the endpoints that a page is about (42704: no such endpoint, or not one of the tenant)';

CREATE TYPE outbox.delivery AS (
    event_id uuid, seq int8, topic text, type text, key text, tenant text, endpoint text, status text, reason text,
    attempts int4, next_attempt_at timestamptz, last_status_code int4, last_error text,
    created_at timestamptz, delivered_at timestamptz, test bool, cursor text);
COMMENT ON TYPE outbox.delivery IS 'A row of outbox.deliveries_page(): a row of outbox.deliveries, and its cursor';

CREATE TYPE outbox.attempt AS (
    event_id uuid, seq int8, endpoint text, tenant text, attempt int4, started_at timestamptz,
    duration_ms float8, status_code int4, error text, response_body text, cause text,
    lookup_ms float8, connect_ms float8, tls_ms float8, first_byte_ms float8, response_headers text, cursor text);
COMMENT ON TYPE outbox.attempt IS 'A row of outbox.attempts_page(): a row of outbox.attempts, and its cursor';

-- Numbers follow times, within moments: an event gets its number first, then its time.  So a time is found by halving,
-- among the events of one tenant, or all.
CREATE FUNCTION outbox.page_bound(tenant text, at timestamptz, margin interval, OUT last int8, OUT next int8)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_sort = off
AS $$
#variable_conflict use_variable
DECLARE
    -- Events of a server that is followed come late, with the times that they had there, and since the clock was
    -- set back, times come again: while the log has such events, there is no bound.
    high int8 := (SELECT (SELECT max(v.seq) FROM outbox.events v)
                  WHERE NOT EXISTS (SELECT FROM outbox.followed)
                  AND NOT EXISTS (SELECT FROM outbox.endpoint_audit c WHERE c.action = 'unfollow' AND c.at >= (
                      SELECT v.created_at FROM outbox.events v ORDER BY v.seq LIMIT 1))
                  AND (SELECT min(t.clock) = max(t.clock) FROM outbox.ticks t) IS NOT FALSE);
    middle int8;
    e record;
BEGIN
    last := 0;
    next := 9223372036854775807;
    WHILE last < high LOOP
        middle := last + (high - last) / 2;
        -- as in outbox.page_rows()
        SELECT n.seq, n.created_at INTO e
        FROM ((SELECT v.seq, v.created_at FROM outbox.events v
               WHERE tenant IS NULL AND v.seq > middle ORDER BY v.seq LIMIT 1)
              UNION ALL
              (SELECT v.seq, v.created_at FROM outbox.events v
               WHERE tenant IS NOT NULL AND (v.tenant, v.seq) > (page_bound.tenant, middle) AND v.tenant <= page_bound.tenant
               ORDER BY v.tenant, v.seq LIMIT 1)) n;
        IF e.created_at + margin <= at THEN
            last := LEAST(e.seq, high);
        ELSE
            high := middle;
            next := COALESCE(e.seq, next);
        END IF;
    END LOOP;
END $$;
COMMENT ON FUNCTION outbox.page_bound IS
'About the numbers of the last event of the log, of a tenant or (NULL) of all, that was emitted up to this time, within the margin, and of '
'the next one: test events, and events that the log has no more, are between and before them';

-- The rows that a page may have: events and endpoints, the newest event first, or one event.
-- "stopped" is a cursor, where there may be more, and "start" has the event, endpoint and time of the row before.
CREATE FUNCTION outbox.page_rows(event uuid, endpoints int4[], status text, before text, page_size int4, topics text[],
    from_time timestamptz, to_time timestamptz, OUT seqs int8[], OUT ids int4[], OUT stopped text, OUT start int8[])
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_sort = off
AS $$
#variable_conflict use_variable
DECLARE
    -- Each event is compared with so many patterns.  An endpoint has those that it had before, too.
    patterns CONSTANT int8 := GREATEST(cardinality(endpoints), 1) * COALESCE(cardinality(topics), 0)
        + (SELECT COALESCE(sum(cardinality(p.topics)), 0)
           FROM (SELECT v.topics FROM outbox.subscriptions v WHERE v.endpoint_id = ANY (endpoints)
                 UNION ALL SELECT s.topics FROM outbox.endpoint_settings s WHERE s.endpoint_id = ANY (endpoints)) p);
    -- Events of the log are read in parts, each four times as large as the one before, until
    -- one has a row: at most 85,000 for one endpoint, and so many fewer for several, or for many
    -- patterns, that a page compares no more topics.  And deliveries, to find out their status.
    last CONSTANT int4 := LEAST(64000 / GREATEST(cardinality(endpoints), 1), 1000000 / GREATEST(patterns, 1));
    -- the first of them is the last one of the page before
    events int4 := LEAST(1000, GREATEST(4000000 / GREATEST(patterns, 1), 2));
    most CONSTANT int4 := GREATEST(page_size, CASE WHEN topics IS NULL THEN 100 ELSE 1000 END);
    low int8 := -1;
    owner text;
BEGIN
    IF (CASE WHEN before ~ '^[0-9]{1,19}:[0-9]{1,10}:[0-9]{1,19}$'
             THEN 9223372036854775807 < ANY (string_to_array(before, ':')::numeric[]) ELSE before IS NOT NULL END) THEN
        RAISE EXCEPTION 'invalid cursor'        -- its content is not for each caller
            USING ERRCODE = 'invalid_parameter_value', COLUMN = 'before',
                  HINT = 'Pass the cursor of the page before, as it is, or none for the first page.';
    END IF;
    start := COALESCE(string_to_array(before, ':')::int8[], ARRAY[9223372036854775807, 0, 0]);
    IF cardinality(endpoints) = 0 THEN
        RETURN;     -- a tenant without endpoints has no deliveries
    ELSIF event IS NOT NULL THEN
        SELECT array_agg(e.seq ORDER BY e.seq DESC, i.id), array_agg(i.id ORDER BY e.seq DESC, i.id) INTO seqs, ids
        FROM (SELECT n.seq FROM outbox.all_events n WHERE n.id = event OFFSET 0) e  -- or the log is read in the order of seq
        CROSS JOIN unnest(endpoints) i (id)
        WHERE e.seq <= start[1] AND (e.seq < start[1] OR i.id > start[2] OR (i.id = start[2] AND start[3] > 0));
        RETURN;
    END IF;
    -- Endpoints of a tenant get only its events.  Whether a topic matches is asked of all
    -- subscriptions of an endpoint, and outbox.log_deliveries knows which of them holds.
    SELECT s.tenant INTO owner FROM outbox.endpoint_settings s WHERE s.endpoint_id = endpoints[1];
    IF to_time IS NOT NULL THEN
        start := LEAST(start, ARRAY[(outbox.page_bound(owner, to_time, interval '-1 s')).next, 2147483647, 0]);
    END IF;
    IF from_time IS NOT NULL THEN
        low := (outbox.page_bound(owner, from_time, interval '1 s')).last;
    END IF;
    IF status IN ('retrying', 'dead', 'cancelled') THEN
        SELECT array_agg(c.seq ORDER BY c.seq DESC, c.id), array_agg(c.id ORDER BY c.seq DESC, c.id)
        INTO seqs, ids
        FROM (SELECT k.seq, i.id
              FROM unnest(endpoints) i (id)
              CROSS JOIN LATERAL (SELECT p.seq FROM outbox.parked p
                                  WHERE p.endpoint_id = i.id AND p.status = page_rows.status AND p.seq <= start[1] AND p.seq > low
                                  AND (p.seq < start[1] OR i.id > start[2])
                                  ORDER BY p.seq DESC LIMIT most) k
              ORDER BY k.seq DESC, i.id LIMIT most) c;
    END IF;
    WHILE status IS NULL OR status NOT IN ('retrying', 'dead', 'cancelled') LOOP
        -- One of the two branches is empty before it is read.  As "e.tenant = owner", PostgreSQL might
        -- walk the whole log by seq where a tenant has few events.  In this order only the index
        -- of tenants has them.
        WITH near AS MATERIALIZED (
            (SELECT e.seq, e.topic, e.test_of FROM outbox.all_events e
             WHERE owner IS NULL AND e.seq <= start[1] AND e.seq > low ORDER BY e.seq DESC LIMIT events)
            UNION ALL
            (SELECT e.seq, e.topic, e.test_of FROM outbox.all_events e
             WHERE owner IS NOT NULL AND (e.tenant, e.seq) <= (owner, start[1]) AND e.tenant >= owner AND (e.tenant, e.seq) > (owner, low)
             ORDER BY e.tenant DESC, e.seq DESC LIMIT events)),
        subscriber AS MATERIALIZED (
            SELECT i.id, (SELECT array_agg(DISTINCT t.topic)
                          FROM (SELECT unnest(v.topics) FROM outbox.subscriptions v WHERE v.endpoint_id = i.id
                                UNION ALL SELECT unnest(s.topics) FROM outbox.endpoint_settings s
                                WHERE s.endpoint_id = i.id) t (topic)) AS topics
            FROM unnest(endpoints) i (id))
        SELECT array_agg(c.seq ORDER BY c.seq DESC, c.id), array_agg(c.id ORDER BY c.seq DESC, c.id),
               (SELECT concat(min(n.seq), ':2147483647:0') FROM near n HAVING count(*) = events)
        INTO seqs, ids, stopped
        FROM (SELECT n.seq, u.id FROM near n CROSS JOIN subscriber u
              WHERE (n.seq < start[1] OR u.id > start[2] OR (u.id = start[2] AND start[3] > 0))
              AND (topics IS NULL OR outbox.topic_in(n.topic, topics))
              AND CASE WHEN n.test_of IS NULL THEN outbox.topic_in(n.topic, u.topics) ELSE n.test_of = u.id END
              ORDER BY n.seq DESC, u.id LIMIT most) c;
        EXIT WHEN seqs IS NOT NULL OR stopped IS NULL OR events >= last;
        start := string_to_array(stopped, ':');
        events := LEAST(events * 4, last);
    END LOOP;
    IF cardinality(seqs) = most THEN
        stopped := concat(seqs[most], ':', ids[most], ':0');
    END IF;
END $$;
COMMENT ON FUNCTION outbox.page_rows IS
'Which deliveries a page may have, and the cursor behind them (NULL: there are no others; 22023: no cursor)';

-- Where an endpoint wants few of the events, or few deliveries have the status that is
-- asked for, a page ends before it is full, with a row that has only a cursor.
CREATE FUNCTION outbox.deliveries_page(endpoint text DEFAULT NULL, tenant text DEFAULT NULL,
    status text DEFAULT NULL, before text DEFAULT NULL, page_size int4 DEFAULT 20, topics text[] DEFAULT NULL,
    from_time timestamptz DEFAULT NULL, to_time timestamptz DEFAULT NULL, event uuid DEFAULT NULL)
RETURNS SETOF outbox.delivery
LANGUAGE plpgsql STABLE SECURITY DEFINER ROWS 20
SET search_path = pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
    wanted CONSTANT text := status;
    endpoints CONSTANT int4[] := outbox.page_endpoints(endpoint, tenant, wanted, page_size);
    page record;
    n int8;
    shown int8 := 0;
    done int4 := 0;
    part int4 := page_size;     -- the first rows mostly fill the page
BEGIN
    PERFORM outbox.check_topics(topics);
    SELECT * INTO page FROM outbox.page_rows(event, endpoints, wanted, before, page_size, topics, from_time, to_time);
    WHILE shown < page_size AND done < cardinality(page.seqs) LOOP
        RETURN QUERY
        SELECT d.event_id, d.seq, d.topic, d.type, d.key, d.tenant, d.endpoint, d.status, d.reason, d.attempts,
               d.next_attempt_at, d.last_status_code, d.last_error, d.created_at, d.delivered_at,
               d.test, concat(c.seq, ':', c.id, ':0')
        FROM unnest(page.seqs[done + 1:done + part], page.ids[done + 1:done + part]) WITH ORDINALITY c (seq, id, number)
        JOIN outbox.log_deliveries d ON d.seq = c.seq AND d.endpoint_id = c.id
        WHERE (wanted IS NULL OR d.status = wanted) AND (topics IS NULL OR outbox.topic_in(d.topic, topics))
        AND (from_time IS NULL OR d.created_at >= from_time) AND (to_time IS NULL OR d.created_at <= to_time)
        ORDER BY c.number LIMIT page_size - shown;
        GET DIAGNOSTICS n = ROW_COUNT;
        shown := shown + n;
        done := done + part;
        part := part * 4;
    END LOOP;
    IF shown < page_size AND page.stopped IS NOT NULL THEN
        RETURN NEXT ROW(NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
                        NULL, page.stopped)::outbox.delivery;
    END IF;
END $$;
COMMENT ON FUNCTION outbox.deliveries_page IS
'The newest deliveries of an endpoint, or of all endpoints of a tenant, or the ones before a cursor';

-- Requests are found by their events, so that writing them needs no index of endpoints.
CREATE FUNCTION outbox.attempts_page(endpoint text DEFAULT NULL, tenant text DEFAULT NULL,
    event uuid DEFAULT NULL, before text DEFAULT NULL, page_size int4 DEFAULT 20)
RETURNS SETOF outbox.attempt
LANGUAGE plpgsql STABLE SECURITY DEFINER ROWS 20
SET search_path = pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
    endpoints CONSTANT int4[] := outbox.page_endpoints(endpoint, tenant, NULL, page_size);
    page record;
    n int8;
    shown int8 := 0;
    done int4 := 0;
    part int4 := page_size;
BEGIN
    SELECT * INTO page FROM outbox.page_rows(event, endpoints, NULL, before, page_size, NULL, NULL, NULL);
    WHILE shown < page_size AND done < cardinality(page.seqs) LOOP
        RETURN QUERY
        SELECT l.event_id, l.seq, s.name, s.tenant, l.attempt, l.started_at, l.duration_ms::numeric::float8,
               l.status_code::int4, l.error, l.response_body, outbox.attempt_cause(l.cause), l.lookup_ms::numeric::float8,
               l.connect_ms::numeric::float8, l.tls_ms::numeric::float8, l.first_byte_ms::numeric::float8, l.response_headers, concat(c.seq, ':', c.id, ':', x.at)
        FROM unnest(page.seqs[done + 1:done + part], page.ids[done + 1:done + part]) WITH ORDINALITY c (seq, id, number)
        JOIN outbox.endpoint_settings s ON s.endpoint_id = c.id
        CROSS JOIN LATERAL outbox.delivery_attempts(c.seq, c.id) l
        CROSS JOIN LATERAL (SELECT (extract(epoch FROM l.started_at) * 1000000)::int8 AS at) x
        WHERE c.seq < page.start[1] OR c.id > page.start[2] OR x.at < page.start[3]
        ORDER BY c.number, l.started_at DESC LIMIT page_size - shown;
        GET DIAGNOSTICS n = ROW_COUNT;
        shown := shown + n;
        done := done + part;
        part := part * 4;
    END LOOP;
    IF shown < page_size AND page.stopped IS NOT NULL THEN
        RETURN NEXT ROW(NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, page.stopped)::outbox.attempt;
    END IF;
END $$;
COMMENT ON FUNCTION outbox.attempts_page IS
'Requests for the newest events to an endpoint, or to all endpoints of a tenant, or the ones before a cursor';

-- Workers make a request with the same functions, from the same settings.
CREATE FUNCTION outbox.shown_request(endpoint_id int4, seq int8, event uuid, attempt int4, redelivery int4, at timestamptz,
    OUT line text, OUT headers text, OUT body text, OUT bytes bytea, OUT problem text)
LANGUAGE C VOLATILE STRICT AS 'MODULE_PATHNAME', 'outbox_shown_request_1_0';
COMMENT ON FUNCTION outbox.shown_request IS
'The request of an event to an endpoint by its present settings, without secrets, or why there can be none';

-- What has changed since is known for as long as outbox.endpoint_audit has it.  Of more than a hundred
-- changes one is taken to be of the request.
CREATE FUNCTION outbox.request_of(endpoint text, event uuid, event_seq int8, status text) RETURNS jsonb
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
AS $$
#variable_conflict use_variable
DECLARE
    s outbox.endpoint_settings;
    k outbox.parked;
    last record;
    waits bool;
    r record;
    of_requests CONSTANT text[] := '{url,format,headers,config,credentials,batch_size}';
    sent_as text;
BEGIN
    SELECT * INTO s FROM outbox.endpoint_settings n WHERE n.name = endpoint;
    SELECT * INTO k FROM outbox.parked p WHERE p.endpoint_id = s.endpoint_id AND p.seq = event_seq;
    SELECT a.attempt, a.cause, a.started_at, a.status_code INTO last
    FROM outbox.delivery_attempts(event_seq, s.endpoint_id) a ORDER BY a.started_at DESC LIMIT 1;
    waits := COALESCE(k.status IN ('retrying', 'blocked'), status IN ('pending', 'processing', 'blocked'), false);
    sent_as := CASE WHEN waits THEN 'next'
                    WHEN last.attempt IS NULL THEN 'unknown'
                    WHEN s.updated_at > last.started_at AND EXISTS (
                        SELECT FROM (SELECT *, row_number() OVER () AS n
                                     FROM (SELECT * FROM outbox.endpoint_audit a
                                           WHERE a.endpoint = s.name AND a.tenant IS NOT DISTINCT FROM s.tenant
                                           ORDER BY a.change_id DESC LIMIT 101) newest) c
                        WHERE c.at > last.started_at AND (c.n > 100 OR c.before ?| of_requests OR c.after ?| of_requests)) THEN 'changed'
                    ELSE 'sent' END;
    SELECT * INTO r FROM outbox.shown_request(s.endpoint_id, event_seq, event,
        CASE WHEN waits THEN COALESCE(k.attempts, 0) + 1 ELSE COALESCE(last.attempt, GREATEST(k.attempts, 1)) END,
        CASE WHEN waits OR last.attempt IS NULL THEN COALESCE(k.redelivery, 0) ELSE last.cause / 10 % 10 END,
        CASE WHEN waits THEN COALESCE(k.next_attempt_at, now()) ELSE COALESCE(last.started_at, now()) END);
    -- one that asks for HTTP/2 may be answered over HTTP/1.1
    IF NOT waits AND last.status_code IS NOT NULL THEN
        r.line := regexp_replace(r.line, 'HTTP/[0-9.]+$', CASE WHEN last.cause >= 100 THEN 'HTTP/2' ELSE 'HTTP/1.1' END);
    END IF;
    RETURN jsonb_build_object(
        'as', sent_as, 'batch', s.batch_size > 1, 'line', r.line, 'headers', outbox.header_object(r.headers), 'body', r.body,
        'body_base64', translate(encode(r.bytes, 'base64'), E'\n', ''), 'problem', COALESCE(r.problem, CASE WHEN event_seq IS NULL THEN 'the event is gone' END));
END $$;
COMMENT ON FUNCTION outbox.request_of IS
'The newest request, or the next one, of an event that has this number, and this status at the endpoint (NULL: none)';

CREATE FUNCTION outbox.delivery_request(endpoint text, event uuid) RETURNS jsonb
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
AS $$
BEGIN
    PERFORM outbox.require_endpoint(endpoint, EXISTS (SELECT FROM outbox.endpoint_settings s WHERE s.name = endpoint));
    IF event IS NULL THEN
        RAISE EXCEPTION 'event must not be null'
            USING ERRCODE = 'null_value_not_allowed', COLUMN = 'event',
                  HINT = 'Pass the id of an event. outbox.deliveries has the ids.';
    END IF;
    -- An application may use an id twice.  The page has the newest of its events.
    RETURN (SELECT outbox.request_of(endpoint, event, COALESCE(d.seq, (SELECT max(e.seq) FROM outbox.all_events e WHERE e.id = event)), d.status)
            FROM (SELECT) one LEFT JOIN LATERAL (
                SELECT p.seq, p.status FROM outbox.deliveries_page(endpoint, event => event) p WHERE p.event_id = event LIMIT 1) d ON true);
END $$;
COMMENT ON FUNCTION outbox.delivery_request IS
'The newest request of an event to an endpoint, or the next one, without secrets';
