------------------------------------------------------------------------
-- Views
------------------------------------------------------------------------

CREATE FUNCTION outbox.newest_position(endpoint_id int4, generation int8) RETURNS outbox.positions
LANGUAGE C STABLE CALLED ON NULL INPUT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_newest_position_1_0';
COMMENT ON FUNCTION outbox.newest_position IS
'The newest stored position of an endpoint, of this generation, or with NULL of any, with the place of the shared one that it follows (NULL: there is none)';

-- The position of each endpoint, or, if it has none yet, where it begins.
CREATE VIEW outbox.endpoint_positions AS
SELECT s.endpoint_id, s.name, s.tenant,
       COALESCE(p.read, s.start_snapshot) AS read,
       p.reading,
       COALESCE(p.last_seq, 0) AS last_seq,
       COALESCE(GREATEST(p.read_seq_low, p.last_seq), s.start_seq_low) AS seq,
       COALESCE(p.reading_seq_low, p.read_seq_low, s.start_seq_low) AS seq_low,
       p.pending,
       COALESCE(p.delivered, 0) AS delivered,
       COALESCE(p.failed_attempts, 0) AS failed_attempts,
       -- The worker has the same list of reasons for which a dead delivery blocks.  For EXISTS,
       -- PostgreSQL might read the dead letters of all endpoints.
       s.ordering = 'strict' AND s.on_exhausted = 'block'
       AND (SELECT true FROM outbox.parked k WHERE k.endpoint_id = s.endpoint_id AND k.status = 'dead'
            AND k.reason = ANY (ARRAY['max_attempts', 'max_age', 'aborted by receiver']) LIMIT 1) IS NOT NULL AS stuck
FROM outbox.endpoint_settings s
LEFT JOIN LATERAL outbox.newest_position(s.endpoint_id, s.generation) p ON true;
COMMENT ON VIEW outbox.endpoint_positions IS
'Stored position of each endpoint, at most one settle interval old';
COMMENT ON COLUMN outbox.endpoint_positions.endpoint_id IS 'number of the endpoint';
COMMENT ON COLUMN outbox.endpoint_positions.name IS 'name of the endpoint';
COMMENT ON COLUMN outbox.endpoint_positions.tenant IS
'tenant that the endpoint belongs to (NULL: none, it gets the events of all tenants and of none)';
COMMENT ON COLUMN outbox.endpoint_positions.read IS 'snapshot: all that it sees was read';
COMMENT ON COLUMN outbox.endpoint_positions.reading IS
'snapshot: all that it sees was read up to last_seq (NULL: between two ticks)';
COMMENT ON COLUMN outbox.endpoint_positions.last_seq IS 'last event of reading that was read';
COMMENT ON COLUMN outbox.endpoint_positions.seq IS 'about where in the log that is';
COMMENT ON COLUMN outbox.endpoint_positions.seq_low IS
'numbers up to it were drawn before the later snapshot was taken';
COMMENT ON COLUMN outbox.endpoint_positions.pending IS
'events before the position that were on their way when it was stored, packed (NULL: none)';
COMMENT ON COLUMN outbox.endpoint_positions.delivered IS 'deliveries since the endpoint was created';
COMMENT ON COLUMN outbox.endpoint_positions.failed_attempts IS
'failed requests since the endpoint was created';
COMMENT ON COLUMN outbox.endpoint_positions.stuck IS
'all that waits, waits behind a dead delivery: ordering is strict, and on_exhausted block';

CREATE VIEW outbox.endpoints AS
SELECT s.name, s.tenant, outbox.shown(s.endpoint_id, s.url) AS url, s.topics, s.filter, s.format,
       outbox.shown(s.endpoint_id, s.headers) AS headers, s.config, s.credentials, s.ordering, s.on_exhausted, s.max_in_flight,
       s.rate_limit, s.timeout, s.connect_timeout, s.max_attempts, s.max_age, s.backoff_base,
       s.backoff_max, s.batch_size, s.batch_wait, s.disable_after,
       CASE WHEN s.state = 'active' AND s.challenge IS NOT NULL AND s.verified_at IS NULL THEN 'unverified' ELSE s.state END AS state,
       s.state_since, s.reason, s.created_at, s.label, s.metadata, s.updated_at, s.revision AS version, s.challenge, s.verified_at,
       s.log_attempts, CASE WHEN s.config ->> 'signature' = 'ed25519' THEN outbox.endpoint_public_key(s.name) END AS public_key
FROM outbox.endpoint_settings s;
COMMENT ON VIEW outbox.endpoints IS 'Endpoints and their settings, without the secret';
COMMENT ON COLUMN outbox.endpoints.name IS 'name of the endpoint';
COMMENT ON COLUMN outbox.endpoints.tenant IS 'tenant of the endpoint (NULL: none, it gets all events)';
COMMENT ON COLUMN outbox.endpoints.url IS 'where requests go (may hold a token)';
COMMENT ON COLUMN outbox.endpoints.topics IS 'topic patterns';
COMMENT ON COLUMN outbox.endpoints.filter IS 'jsonpath predicate that the payload must satisfy (NULL: none)';
COMMENT ON COLUMN outbox.endpoints.format IS 'standard, raw, cloudevents or cloudevents-binary';
COMMENT ON COLUMN outbox.endpoints.headers IS 'headers of each request (may hold tokens; NULL: none)';
COMMENT ON COLUMN outbox.endpoints.config IS 'options of the sink (NULL: none)';
COMMENT ON COLUMN outbox.endpoints.credentials IS 'names of its credentials (NULL: none)';
COMMENT ON COLUMN outbox.endpoints.ordering IS 'key, none or strict';
COMMENT ON COLUMN outbox.endpoints.on_exhausted IS 'effect of a dead event on its key: skip or block';
COMMENT ON COLUMN outbox.endpoints.max_in_flight IS 'requests in flight at most';
COMMENT ON COLUMN outbox.endpoints.rate_limit IS 'requests per second (NULL: no limit)';
COMMENT ON COLUMN outbox.endpoints.timeout IS 'time for a whole request';
COMMENT ON COLUMN outbox.endpoints.connect_timeout IS 'time for name lookup and connection';
COMMENT ON COLUMN outbox.endpoints.max_attempts IS 'attempts after which a delivery is dead (NULL: no limit)';
COMMENT ON COLUMN outbox.endpoints.max_age IS
'time after the first attempt at which a failed delivery is dead';
COMMENT ON COLUMN outbox.endpoints.backoff_base IS 'longest wait after the first failure';
COMMENT ON COLUMN outbox.endpoints.backoff_max IS 'longest wait ever';
COMMENT ON COLUMN outbox.endpoints.batch_size IS 'events in a request at most (1: no batches)';
COMMENT ON COLUMN outbox.endpoints.batch_wait IS 'longest wait of the oldest event of a batch for others';
COMMENT ON COLUMN outbox.endpoints.disable_after IS 'time of failures alone that disables it (NULL: never)';
COMMENT ON COLUMN outbox.endpoints.state IS 'active, unverified, paused or disabled, as stored';
COMMENT ON COLUMN outbox.endpoints.state_since IS 'when that state began';
COMMENT ON COLUMN outbox.endpoints.reason IS
'why it is paused or disabled (NULL: active)';
COMMENT ON COLUMN outbox.endpoints.created_at IS 'time of its creation';
COMMENT ON COLUMN outbox.endpoints.label IS 'name for people (NULL: none)';
COMMENT ON COLUMN outbox.endpoints.metadata IS 'notes of the application (NULL: none)';
COMMENT ON COLUMN outbox.endpoints.updated_at IS 'last change of a setting, a secret or the state';
COMMENT ON COLUMN outbox.endpoints.version IS 'number of changes, from 1';
COMMENT ON COLUMN outbox.endpoints.challenge IS
'proof that its receiver has to give: options or echo (NULL: none)';
COMMENT ON COLUMN outbox.endpoints.verified_at IS 'time of the proof (NULL: none)';
COMMENT ON COLUMN outbox.endpoints.log_attempts IS
'which requests are written to outbox.attempts: none, failures, all or answers (NULL: as outbox.log_attempts says)';
COMMENT ON COLUMN outbox.endpoints.public_key IS
'key that verifies its signatures (NULL: they are not ed25519, or the private key cannot be opened)';

CREATE VIEW outbox.log_size AS
SELECT l.bytes, m.min_seq, m.oldest_at, CASE WHEN q.is_called THEN q.last_value ELSE 0 END AS max_seq
FROM (SELECT pg_total_relation_size('outbox.events_0')
             + pg_total_relation_size('outbox.events_1')
             + pg_total_relation_size('outbox.events_2') AS bytes) l
CROSS JOIN outbox.events_seq q
LEFT JOIN (SELECT e.seq AS min_seq, e.created_at AS oldest_at
           FROM outbox.events e ORDER BY e.seq LIMIT 1) m ON true;
COMMENT ON VIEW outbox.log_size IS 'How large the log is, and from where to where it goes';
COMMENT ON COLUMN outbox.log_size.bytes IS 'size of the log with its indexes, in bytes';
COMMENT ON COLUMN outbox.log_size.min_seq IS 'lowest number in the log (NULL: the log is empty)';
COMMENT ON COLUMN outbox.log_size.oldest_at IS 'when that event was emitted (NULL: the log is empty)';
COMMENT ON COLUMN outbox.log_size.max_seq IS 'highest number that was drawn (0: none)';

-- A function, so that PostgreSQL does not take the view for dear enough to compile it.
CREATE FUNCTION outbox.parked_counts(endpoint_id int4, OUT retrying int8, OUT blocked int8, OUT dead int8)
LANGUAGE plpgsql STABLE SECURITY DEFINER COST 1 SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    SELECT count(*) FILTER (WHERE k.status = 'retrying'), count(*) FILTER (WHERE k.status = 'blocked'),
           count(*) FILTER (WHERE k.status = 'dead')
    INTO retrying, blocked, dead FROM outbox.parked k WHERE k.endpoint_id = $1;
END $$;
COMMENT ON FUNCTION outbox.parked_counts IS 'How many parked deliveries of an endpoint have which status';

-- Until a worker has heard of a change of the state, its figures are of the former one.
-- The clock is asked in a part of its own: a view that calls a volatile function is computed
-- for all endpoints, also where a page of them is asked for.
CREATE VIEW outbox.endpoint_figures AS
SELECT s.endpoint_id, s.name AS endpoint, s.tenant, p.seq AS read_seq,
       CASE WHEN w.known THEN t.state ELSE w.state END AS state,
       CASE WHEN w.known THEN t.state_since ELSE s.state_since END AS state_since,
       CASE WHEN w.known OR (s.state <> 'active' AND t.state = 'held') THEN t.reason
            WHEN w.state = 'unverified' THEN 'its receiver has not been asked whether it wants events' ELSE s.reason END AS reason,
       t.pending,
       COALESCE(t.pending_exact AND (s.state = 'active' OR t.state NOT IN ('active', 'backing_off') AND t.state_since >= s.state_since),
                false) AS pending_exact,
       COALESCE(t.processing, 0) AS processing,
       COALESCE(t.retrying, k.retrying) AS retrying, COALESCE(t.blocked, k.blocked) AS blocked,
       COALESCE(t.dead, k.dead) AS dead,
       COALESCE(t.delivered, p.delivered) AS delivered,
       COALESCE(t.failed_attempts, p.failed_attempts) AS failed_attempts,
       t.oldest_pending_age,
       CASE WHEN s.state = 'active' THEN t.next_attempt_at END AS next_attempt_at,
       COALESCE(t.rate_per_s, 0) AS rate_per_s,
       t.latency_p50_ms, t.latency_p95_ms, t.latency_p99_ms, t.last_success_at, t.last_error
FROM outbox.endpoint_settings s
JOIN outbox.endpoint_positions p USING (endpoint_id)
LEFT JOIN LATERAL (SELECT e.*, clock_timestamp() - e.oldest_pending_at AS oldest_pending_age
                   FROM outbox.endpoint_stats(s.endpoint_id) e) t ON true
-- what a worker publishes is not counted; LIMIT, or else PostgreSQL would call it before it asks that
LEFT JOIN LATERAL (SELECT c.* FROM outbox.parked_counts(s.endpoint_id) c WHERE t.retrying IS NULL LIMIT 1) k ON true
CROSS JOIN LATERAL (
    SELECT u.state, COALESCE(CASE u.state WHEN 'active' THEN t.state NOT IN ('paused', 'disabled', 'unverified')
                                          WHEN 'unverified' THEN t.state IN ('held', 'unverified') END, false) AS known
    FROM (SELECT CASE WHEN s.state = 'active' AND s.challenge IS NOT NULL AND s.verified_at IS NULL THEN 'unverified'
                      ELSE s.state END AS state) u) w;
COMMENT ON VIEW outbox.endpoint_figures IS 'outbox.stats without its parts that need the size of the log';
COMMENT ON COLUMN outbox.endpoint_figures.endpoint_id IS 'number of the endpoint';
COMMENT ON COLUMN outbox.endpoint_figures.read_seq IS 'about where in the log it has read to';
COMMENT ON COLUMN outbox.endpoint_figures.endpoint IS 'as in outbox.stats';
COMMENT ON COLUMN outbox.endpoint_figures.tenant IS 'as in outbox.stats';
COMMENT ON COLUMN outbox.endpoint_figures.state IS 'as in outbox.stats';
COMMENT ON COLUMN outbox.endpoint_figures.state_since IS 'as in outbox.stats';
COMMENT ON COLUMN outbox.endpoint_figures.reason IS 'as in outbox.stats';
COMMENT ON COLUMN outbox.endpoint_figures.pending IS 'as in outbox.stats (NULL: no worker knows)';
COMMENT ON COLUMN outbox.endpoint_figures.pending_exact IS 'as in outbox.stats';
COMMENT ON COLUMN outbox.endpoint_figures.processing IS 'as in outbox.stats';
COMMENT ON COLUMN outbox.endpoint_figures.retrying IS 'as in outbox.stats';
COMMENT ON COLUMN outbox.endpoint_figures.blocked IS 'as in outbox.stats';
COMMENT ON COLUMN outbox.endpoint_figures.dead IS 'as in outbox.stats';
COMMENT ON COLUMN outbox.endpoint_figures.delivered IS 'as in outbox.stats';
COMMENT ON COLUMN outbox.endpoint_figures.failed_attempts IS 'as in outbox.stats';
COMMENT ON COLUMN outbox.endpoint_figures.oldest_pending_age IS 'as in outbox.stats';
COMMENT ON COLUMN outbox.endpoint_figures.next_attempt_at IS 'as in outbox.stats';
COMMENT ON COLUMN outbox.endpoint_figures.rate_per_s IS 'as in outbox.stats';
COMMENT ON COLUMN outbox.endpoint_figures.latency_p50_ms IS 'as in outbox.stats';
COMMENT ON COLUMN outbox.endpoint_figures.latency_p95_ms IS 'as in outbox.stats';
COMMENT ON COLUMN outbox.endpoint_figures.latency_p99_ms IS 'as in outbox.stats';
COMMENT ON COLUMN outbox.endpoint_figures.last_success_at IS 'as in outbox.stats';
COMMENT ON COLUMN outbox.endpoint_figures.last_error IS 'as in outbox.stats';

CREATE VIEW outbox.stats AS
SELECT f.endpoint, f.tenant, f.state, f.state_since, f.reason,
       COALESCE(f.pending, CASE WHEN l.bytes IS NOT NULL THEN GREATEST(l.max_seq - f.read_seq, 0) END) AS pending,
       f.pending_exact, f.processing, f.retrying, f.blocked, f.dead, f.delivered, f.failed_attempts, f.oldest_pending_age,
       CASE WHEN l.bytes IS NULL THEN NULL
            WHEN l.min_seq IS NULL OR f.read_seq >= l.max_seq THEN 0
            ELSE (l.bytes::float8 * (l.max_seq - GREATEST(f.read_seq, l.min_seq - 1))
                  / (l.max_seq - l.min_seq + 1))::int8
            END AS retained_bytes,
       f.next_attempt_at, f.rate_per_s, f.latency_p50_ms, f.latency_p95_ms, f.latency_p99_ms, f.last_success_at, f.last_error
FROM outbox.endpoint_figures f CROSS JOIN outbox.log_size_now() l;
COMMENT ON VIEW outbox.stats IS
'State and figures of each endpoint, at a cost that does not depend on the size of the log';
COMMENT ON COLUMN outbox.stats.endpoint IS 'name of the endpoint';
COMMENT ON COLUMN outbox.stats.tenant IS 'tenant of the endpoint (NULL: none, it gets all events)';
COMMENT ON COLUMN outbox.stats.state IS 'active, unverified, paused, held, backing_off or disabled';
COMMENT ON COLUMN outbox.stats.state_since IS 'when that state began';
COMMENT ON COLUMN outbox.stats.reason IS
'why it is not active, or why an active one waits (NULL: neither)';
COMMENT ON COLUMN outbox.stats.pending IS
'events that wait for their first attempt and are not blocked (NULL: not known)';
COMMENT ON COLUMN outbox.stats.pending_exact IS 'false: pending is an estimate or a former value, or the worker does not know of a pause yet';
COMMENT ON COLUMN outbox.stats.processing IS 'deliveries in flight';
COMMENT ON COLUMN outbox.stats.retrying IS
'deliveries that wait for another attempt, after a failure, outbox.retry(), resend(), replay() or '
'send_test(), or for their first one after their piece of the log was emptied';
COMMENT ON COLUMN outbox.stats.blocked IS
'deliveries that wait behind another one of their key and have a row for it. With ordering strict and a dead '
'one that blocks, all that wait';
COMMENT ON COLUMN outbox.stats.dead IS 'deliveries that were given up, and neither retried nor discarded';
COMMENT ON COLUMN outbox.stats.delivered IS 'deliveries since the endpoint was created';
COMMENT ON COLUMN outbox.stats.failed_attempts IS
'failed attempts since the endpoint was created, one for each event of a batch';
COMMENT ON COLUMN outbox.stats.oldest_pending_age IS
'age of the oldest event that is pending or processing (NULL: none, or not known)';
COMMENT ON COLUMN outbox.stats.retained_bytes IS
'estimate of the part of the log that it has yet to read, in bytes (NULL: the log is locked)';
COMMENT ON COLUMN outbox.stats.next_attempt_at IS
'when the next retry, probe, or request after a Retry-After is due (NULL: none)';
COMMENT ON COLUMN outbox.stats.rate_per_s IS 'deliveries per second in the last minute';
COMMENT ON COLUMN outbox.stats.latency_p50_ms IS
'median time from emit to 2xx, in ms, of first attempts of the last five minutes (NULL: none)';
COMMENT ON COLUMN outbox.stats.latency_p95_ms IS '95th percentile, in ms';
COMMENT ON COLUMN outbox.stats.latency_p99_ms IS '99th percentile, in ms';
COMMENT ON COLUMN outbox.stats.last_success_at IS
'last successful request (NULL: none since the worker started)';
COMMENT ON COLUMN outbox.stats.last_error IS 'last failure in words (NULL: none since the worker started)';

-- The log, and the events that are kept for parked deliveries. A row of another log
-- is not an event of this one, and may have the same number as one. An event may be
-- in the log and kept at the same time: the kept row counts when the log has none.
-- Both tables are read in the order of seq without a sort, so that the newest events
-- are found in constant time. For that the parts of the UNION have no conditions.
CREATE VIEW outbox.all_events AS
SELECT id, seq, xid, epoch, created_at, expires_at, topic, COALESCE(type, topic) AS type, key, tenant, headers,
       payload, body, content_type, test_of,
       (payload IS NULL AND body IS NULL)
       OR EXISTS (SELECT FROM outbox.forgotten f WHERE outbox.forgets(f, a.tenant, a.key, a.epoch, a.xid)) AS forgotten
FROM (SELECT id, seq, xid, epoch, created_at, expires_at, topic, type, key, tenant, headers,
             payload, body, content_type, NULL::int4 AS test_of, false AS kept FROM outbox.events
      UNION ALL
      SELECT id, seq, xid, epoch, created_at, expires_at, topic, type, key, tenant, headers,
             payload, body, content_type, test_of, true FROM outbox.kept_events) a
WHERE outbox.log_xid(epoch, xid) IS NOT NULL
AND NOT (kept AND EXISTS (SELECT 1 FROM outbox.events e WHERE e.seq = a.seq AND e.epoch = a.epoch));
COMMENT ON VIEW outbox.all_events IS
'Events of the log and events that are kept for parked deliveries, with their payloads';
COMMENT ON COLUMN outbox.all_events.id IS 'id of the event';
COMMENT ON COLUMN outbox.all_events.seq IS 'number in the log';
COMMENT ON COLUMN outbox.all_events.xid IS 'transaction that emitted it';
COMMENT ON COLUMN outbox.all_events.epoch IS 'origin that it was written in';
COMMENT ON COLUMN outbox.all_events.created_at IS 'when it was emitted, or with deliver_at entered the log';
COMMENT ON COLUMN outbox.all_events.expires_at IS 'not delivered after this time (NULL: no limit)';
COMMENT ON COLUMN outbox.all_events.topic IS 'topic';
COMMENT ON COLUMN outbox.all_events.type IS 'type, or the topic where none was given';
COMMENT ON COLUMN outbox.all_events.key IS 'key (NULL: none)';
COMMENT ON COLUMN outbox.all_events.tenant IS 'tenant (NULL: none)';
COMMENT ON COLUMN outbox.all_events.headers IS 'headers (NULL: none)';
COMMENT ON COLUMN outbox.all_events.payload IS 'payload (NULL: there is a body)';
COMMENT ON COLUMN outbox.all_events.body IS 'bytes (NULL: there is a payload)';
COMMENT ON COLUMN outbox.all_events.content_type IS 'media type of body (NULL: there is a payload)';
COMMENT ON COLUMN outbox.all_events.test_of IS
'number of the endpoint that outbox.send_test() made it for (NULL: no test)';
COMMENT ON COLUMN outbox.all_events.forgotten IS
'true once outbox.forget() concerns it: its content is removed, or soon will be';

CREATE VIEW outbox.log_deliveries AS
SELECT e.id AS event_id, e.seq, e.topic, e.type, e.key, e.tenant, p.name AS endpoint, p.endpoint_id,
       CASE WHEN e.forgotten THEN 'forgotten'
            WHEN k.status IS NOT NULL THEN k.status
            -- its row is there until it is delivered, and a seek is not about it
            WHEN e.test_of IS NOT NULL THEN 'delivered'
            -- read and not acknowledged: under way, or behind an event of its key
            WHEN outbox.is_pending(e.seq, p.pending)
                 THEN CASE WHEN p.stuck THEN 'blocked' ELSE 'processing' END
            WHEN pg_visible_in_snapshot(x.xid, p.read)
                 OR (p.reading IS NOT NULL AND e.seq <= p.last_seq
                     AND pg_visible_in_snapshot(x.xid, p.reading)) THEN 'delivered'
            WHEN p.stuck THEN 'blocked'
            ELSE 'pending' END AS status,
       CASE WHEN NOT e.forgotten THEN k.reason END AS reason,
       COALESCE(k.attempts, a.attempts, 0) AS attempts,
       k.next_attempt_at,
       -- Where only failures are logged, the last attempt of a delivery that was made is not there.
       CASE WHEN k.status IS NOT NULL OR a.delivered_at IS NOT NULL THEN COALESCE(k.last_status_code, a.last_status_code) END AS last_status_code,
       CASE WHEN k.status IS NOT NULL OR a.delivered_at IS NOT NULL THEN COALESCE(k.last_error, a.last_error) END AS last_error,
       e.created_at,
       CASE WHEN k.status IS NULL THEN a.delivered_at END AS delivered_at,
       e.test_of IS NOT NULL AS test
FROM outbox.all_events e
CROSS JOIN LATERAL (SELECT outbox.log_xid(e.epoch, e.xid) AS xid) x
JOIN outbox.endpoint_positions p ON p.tenant IS NULL OR p.tenant = e.tenant
CROSS JOIN LATERAL (SELECT v.version, v.topics, v.filter FROM outbox.subscriptions v
                    WHERE v.endpoint_id = p.endpoint_id
                    AND NOT (pg_visible_in_snapshot(x.xid, v.read)
                             OR (v.reading IS NOT NULL AND e.seq <= v.last_seq
                                 AND pg_visible_in_snapshot(x.xid, v.reading)))
                    ORDER BY v.version DESC LIMIT 1) v
-- One at a time: a join with many parked deliveries of others would read the whole log
-- rather than its end
LEFT JOIN LATERAL (SELECT * FROM outbox.parked q
                   WHERE q.endpoint_id = p.endpoint_id AND q.seq = e.seq AND q.event_id = e.id LIMIT 1) k ON true
LEFT JOIN LATERAL (SELECT (array_agg(l.attempt ORDER BY l.started_at DESC))[1] AS attempts,
                          (array_agg(l.status_code::int4 ORDER BY l.started_at DESC))[1] AS last_status_code,
                          (array_agg(l.error ORDER BY l.started_at DESC))[1] AS last_error,
                          min(l.started_at + make_interval(secs => l.duration_ms / 1000))
                              FILTER (WHERE l.status_code BETWEEN 200 AND 299 AND l.error IS NULL) AS delivered_at
                   FROM (SELECT o.attempt, o.started_at, o.duration_ms, o.status_code, o.error
                         FROM outbox.attempt_log o WHERE o.seq = e.seq AND o.endpoint_id = p.endpoint_id
                         UNION ALL
                         SELECT r.attempt, o.started_at, o.duration_ms, r.status_code, NULL
                         FROM outbox.attempt_runs r
                         CROSS JOIN LATERAL outbox.run_attempts(e.seq, r.seq_low, r.started_at, r.entries) o
                         WHERE r.endpoint_id = p.endpoint_id AND r.seq_low BETWEEN e.seq - 4095 AND e.seq
                         AND r.seq_high >= e.seq) l) a ON true
-- No endpoint subscribes to a test event, which is shown at its one endpoint. No
-- endpoint subscribes to events that a seek skipped, some of which may have been
-- replayed. Events that it skipped before the place that it left are in its row.
WHERE (e.test_of IS NOT NULL
       OR cardinality(v.topics) = 0
       OR (outbox.topic_in(e.topic, v.topics)
           -- a delivery with a row has passed the filter, which may be expensive
           AND (k.status IS NOT NULL OR (e.payload IS NULL AND e.body IS NULL) OR outbox.filter_matches(e.payload, v.filter) IS NOT FALSE)))
-- PostgreSQL takes a CASE for likely, and an OR with IS NULL for so rare that it would
-- sort the whole log rather than read its end
AND CASE WHEN e.test_of IS NULL THEN true ELSE e.test_of = p.endpoint_id END
AND (cardinality(v.topics) > 0
     OR k.status IS NOT NULL OR a.delivered_at IS NOT NULL)
AND CASE WHEN EXISTS (SELECT 1 FROM outbox.subscriptions w
                      WHERE w.endpoint_id = p.endpoint_id AND w.version > v.version
                      AND outbox.is_pending(e.seq, w.skipped))
         THEN k.status IS NOT NULL OR a.delivered_at IS NOT NULL ELSE true END
AND x.xid IS NOT NULL;
COMMENT ON VIEW outbox.log_deliveries IS
'outbox.deliveries without scheduled events, and with the numbers of endpoints';

-- The ORDER BY lets PostgreSQL read the end of the log alone for the newest deliveries.
CREATE VIEW outbox.deliveries AS
(SELECT event_id, seq, topic, type, key, tenant, endpoint, status, reason, attempts, next_attempt_at,
        last_status_code, last_error, created_at, delivered_at, test
 FROM outbox.log_deliveries ORDER BY seq DESC)
UNION ALL
SELECT e.id, NULL, e.topic, COALESCE(e.type, e.topic), e.key, e.tenant, s.name,
       CASE WHEN EXISTS (SELECT FROM outbox.forgotten f WHERE outbox.forgets(f, e.tenant, e.key, e.epoch, e.xid))
            THEN 'forgotten' ELSE 'scheduled' END,
       CASE WHEN e.failed_at IS NOT NULL THEN 'set aside' END, 0,
       COALESCE(e.retry_at, e.deliver_at), NULL, e.error, e.created_at, NULL, false
FROM outbox.scheduled e
JOIN outbox.endpoint_settings s ON (s.tenant IS NULL OR s.tenant = e.tenant)
                               AND outbox.topic_in(e.topic, s.topics)
                               AND outbox.filter_matches(e.payload, s.filter) IS NOT FALSE
WHERE outbox.log_xid(e.epoch, e.xid) IS NOT NULL;
COMMENT ON VIEW outbox.deliveries IS
'State of each event at each endpoint that subscribed to it when it was emitted, at most one settle interval '
'old';
COMMENT ON COLUMN outbox.deliveries.event_id IS 'id of the event, its webhook-id';
COMMENT ON COLUMN outbox.deliveries.seq IS 'number in the log (NULL: scheduled)';
COMMENT ON COLUMN outbox.deliveries.topic IS 'topic';
COMMENT ON COLUMN outbox.deliveries.type IS 'type, or the topic where none was given';
COMMENT ON COLUMN outbox.deliveries.key IS 'key (NULL: none)';
COMMENT ON COLUMN outbox.deliveries.tenant IS 'tenant of the event (NULL: none)';
COMMENT ON COLUMN outbox.deliveries.endpoint IS 'name of the endpoint';
COMMENT ON COLUMN outbox.deliveries.status IS
'scheduled, pending, processing, delivered, retrying, blocked, dead, cancelled or forgotten';
COMMENT ON COLUMN outbox.deliveries.reason IS
'of dead: max_attempts, max_age, expired, aborted by receiver, invalid event, filter failed, backlog, event '
'is gone or unreadable. Of scheduled: set aside. Of cancelled: cancelled, discarded or backlog. NULL: any other '
'status';
COMMENT ON COLUMN outbox.deliveries.attempts IS
'attempts since it was last emitted, retried, resent or replayed, without failed probes (0 once they are '
'forgotten or if they are not logged)';
COMMENT ON COLUMN outbox.deliveries.next_attempt_at IS
'when the next attempt, or a scheduled event, is due (NULL: neither)';
COMMENT ON COLUMN outbox.deliveries.last_status_code IS
'HTTP status of the last attempt (NULL: no answer, not logged, or forgotten)';
COMMENT ON COLUMN outbox.deliveries.last_error IS 'last failure in words (NULL: none, or forgotten)';
COMMENT ON COLUMN outbox.deliveries.created_at IS 'when the event was emitted, or with deliver_at entered the log';
COMMENT ON COLUMN outbox.deliveries.delivered_at IS
'when the receiver answered 2xx (NULL: not yet, or forgotten)';
COMMENT ON COLUMN outbox.deliveries.test IS 'true if outbox.send_test() made the event';

-- Joined by id, for which both sides have an index: by seq, PostgreSQL would read the log back
-- to the newest dead letters, since it does not know that they are old.  It takes a BETWEEN for
-- likely enough, also without statistics.
CREATE VIEW outbox.dead_letters AS
SELECT k.event_id, k.seq, e.topic, e.type, e.key, e.tenant, s.name AS endpoint, k.status, k.reason,
       k.attempts, k.last_status_code, k.last_error, e.created_at, k.parked_at, e.headers,
       e.payload, e.body, e.content_type
FROM outbox.parked k
JOIN outbox.endpoint_settings s USING (endpoint_id)
JOIN outbox.all_events e ON e.id = k.event_id AND e.seq BETWEEN k.seq AND k.seq
WHERE k.status = 'dead' AND NOT e.forgotten;
COMMENT ON VIEW outbox.dead_letters IS 'Deliveries that were given up, with the event';
COMMENT ON COLUMN outbox.dead_letters.event_id IS 'id of the event, its webhook-id';
COMMENT ON COLUMN outbox.dead_letters.seq IS 'number in the log';
COMMENT ON COLUMN outbox.dead_letters.topic IS 'topic';
COMMENT ON COLUMN outbox.dead_letters.type IS 'type, or the topic where none was given';
COMMENT ON COLUMN outbox.dead_letters.key IS 'key (NULL: none)';
COMMENT ON COLUMN outbox.dead_letters.tenant IS 'tenant of the event (NULL: none)';
COMMENT ON COLUMN outbox.dead_letters.endpoint IS 'name of the endpoint';
COMMENT ON COLUMN outbox.dead_letters.status IS 'dead';
COMMENT ON COLUMN outbox.dead_letters.reason IS 'as in outbox.deliveries';
COMMENT ON COLUMN outbox.dead_letters.attempts IS 'attempts that counted, without probes';
COMMENT ON COLUMN outbox.dead_letters.last_status_code IS 'HTTP status of the last attempt (NULL: no answer)';
COMMENT ON COLUMN outbox.dead_letters.last_error IS 'last failure in words';
COMMENT ON COLUMN outbox.dead_letters.created_at IS 'when the event was emitted, or with deliver_at entered the log';
COMMENT ON COLUMN outbox.dead_letters.parked_at IS 'when it died';
COMMENT ON COLUMN outbox.dead_letters.headers IS 'headers (NULL: none)';
COMMENT ON COLUMN outbox.dead_letters.payload IS 'payload (NULL: there is a body)';
COMMENT ON COLUMN outbox.dead_letters.body IS 'bytes (NULL: there is a payload)';
COMMENT ON COLUMN outbox.dead_letters.content_type IS 'media type of body (NULL: there is a payload)';

-- The rows of outbox.attempt_log are a member of their own, so that they are read in the
-- order of their index.
CREATE VIEW outbox.attempts AS
SELECT l.event_id, l.seq, s.name AS endpoint, s.tenant, l.attempt, l.started_at,
       l.duration_ms::numeric::float8 AS duration_ms, l.status_code::int4 AS status_code,
       l.error, l.response_body, outbox.attempt_cause(l.cause) AS cause,
       l.lookup_ms::numeric::float8 AS lookup_ms, l.connect_ms::numeric::float8 AS connect_ms,
       l.tls_ms::numeric::float8 AS tls_ms, l.first_byte_ms::numeric::float8 AS first_byte_ms, l.response_headers
FROM (SELECT a.event_id, a.seq, a.endpoint_id, a.attempt, a.started_at, a.duration_ms, a.status_code,
             a.error, a.response_body, a.cause, a.lookup_ms, a.connect_ms, a.tls_ms, a.first_byte_ms, a.response_headers
      FROM outbox.attempt_log a
      UNION ALL
      SELECT a.event_id, a.seq, r.endpoint_id, r.attempt, a.started_at, a.duration_ms, r.status_code,
             NULL, NULL, r.cause, NULL, NULL, NULL, NULL, NULL
      FROM outbox.attempt_runs r
      CROSS JOIN LATERAL outbox.run_attempts(0, r.seq_low, r.started_at, r.entries) a) l
LEFT JOIN outbox.endpoint_settings s USING (endpoint_id);
COMMENT ON VIEW outbox.attempts IS
'Requests that were made, for outbox.attempts_retention, with a row for each event of a batch';
COMMENT ON COLUMN outbox.attempts.event_id IS 'id of the event';
COMMENT ON COLUMN outbox.attempts.seq IS 'number in the log';
COMMENT ON COLUMN outbox.attempts.endpoint IS 'name of the endpoint (NULL: it was dropped)';
COMMENT ON COLUMN outbox.attempts.tenant IS 'tenant of the endpoint (NULL: none, or it was dropped)';
COMMENT ON COLUMN outbox.attempts.attempt IS 'number of the attempt, from 1 (a probe repeats a number, and so does the request after one that was broken off)';
COMMENT ON COLUMN outbox.attempts.started_at IS 'when the request was made';
COMMENT ON COLUMN outbox.attempts.duration_ms IS 'its duration in ms';
COMMENT ON COLUMN outbox.attempts.status_code IS 'HTTP status (NULL: no answer)';
COMMENT ON COLUMN outbox.attempts.error IS 'the failure in words (NULL: delivered)';
COMMENT ON COLUMN outbox.attempts.response_body IS
'first bytes of the answer''s body, up to outbox.log_answer_size (NULL: empty, not kept, or with another event of the batch)';
COMMENT ON COLUMN outbox.attempts.cause IS 'first, retry, replay, resend or test';
COMMENT ON COLUMN outbox.attempts.lookup_ms IS 'how long the name was looked up (NULL: it was not, or is not kept, as for the next three)';
COMMENT ON COLUMN outbox.attempts.connect_ms IS 'how long it took to connect (NULL also: a connection was there, or none was made)';
COMMENT ON COLUMN outbox.attempts.tls_ms IS 'how long the handshake of TLS took';
COMMENT ON COLUMN outbox.attempts.first_byte_ms IS 'from the beginning of the request to that of the answer';
COMMENT ON COLUMN outbox.attempts.response_headers IS
'headers of the answer, a line for each, up to 2 kB (NULL: no answer, not kept, or with another event of the batch)';

CREATE VIEW outbox.held_steps AS
SELECT h.worker, h.step, s.name AS endpoint, s.tenant, h.reason, h.sqlstate, h.last_error, h.failures, h.since, h.next_try_at
FROM outbox.step_holds() h LEFT JOIN outbox.endpoint_settings s USING (endpoint_id);
COMMENT ON VIEW outbox.held_steps IS
'Steps of workers of this database that failed and are on hold, while everything else goes on';
COMMENT ON COLUMN outbox.held_steps.worker IS 'number of the worker in the database, from 1';
COMMENT ON COLUMN outbox.held_steps.step IS 'which step';
COMMENT ON COLUMN outbox.held_steps.endpoint IS
'endpoint that it failed for (NULL: the whole step, or it was dropped)';
COMMENT ON COLUMN outbox.held_steps.tenant IS 'tenant of the endpoint (NULL: none, or the whole step)';
COMMENT ON COLUMN outbox.held_steps.reason IS
'locked, privilege, missing, constraint, data, resources, cancelled, stuck or error';
COMMENT ON COLUMN outbox.held_steps.sqlstate IS 'SQLSTATE of the last error';
COMMENT ON COLUMN outbox.held_steps.last_error IS 'message of the last error';
COMMENT ON COLUMN outbox.held_steps.failures IS 'failures in a row';
COMMENT ON COLUMN outbox.held_steps.since IS 'time of the first of them';
COMMENT ON COLUMN outbox.held_steps.next_try_at IS 'when it is tried again';

CREATE VIEW outbox.replay_progress AS
SELECT s.name AS endpoint, s.tenant, r.topics, r.from_time, r.to_time, r.events, r.started_at, r.finished_at,
       r.replay_id, r.cancelled, r.expected
FROM outbox.replays r JOIN outbox.endpoint_settings s USING (endpoint_id);
COMMENT ON VIEW outbox.replay_progress IS 'Replays, and how far each of them is';
COMMENT ON COLUMN outbox.replay_progress.endpoint IS 'name of the endpoint';
COMMENT ON COLUMN outbox.replay_progress.tenant IS 'tenant of the endpoint (NULL: none, it gets all events)';
COMMENT ON COLUMN outbox.replay_progress.topics IS 'topic patterns (NULL: any topic)';
COMMENT ON COLUMN outbox.replay_progress.from_time IS 'emitted at this time or later';
COMMENT ON COLUMN outbox.replay_progress.to_time IS 'and at this time or earlier';
COMMENT ON COLUMN outbox.replay_progress.events IS 'events that it has come to and sends';
COMMENT ON COLUMN outbox.replay_progress.started_at IS 'when outbox.replay() was called';
COMMENT ON COLUMN outbox.replay_progress.finished_at IS
'when all of its deliveries had begun, or it was cancelled (NULL: it goes on)';
COMMENT ON COLUMN outbox.replay_progress.replay_id IS 'number of the replay, for outbox.cancel_replay()';
COMMENT ON COLUMN outbox.replay_progress.cancelled IS 'true if outbox.cancel_replay() ended it';
COMMENT ON COLUMN outbox.replay_progress.expected IS 'events that the call counted (NULL: too many)';

CREATE VIEW outbox.set_aside AS
SELECT 'scheduled' AS what, e.id AS event_id, NULL::text AS endpoint, e.tenant, NULL::text AS action,
       e.error, e.failed_at, e.retry_at
FROM outbox.scheduled e WHERE e.failed_at IS NOT NULL
UNION ALL
SELECT 'command', (SELECT k.event_id FROM outbox.parked k
                   WHERE k.endpoint_id = c.endpoint_id AND k.seq = c.seq LIMIT 1),
       s.name, s.tenant, c.action, c.error, c.failed_at, c.retry_at
FROM outbox.commands c LEFT JOIN outbox.endpoint_settings s USING (endpoint_id)
WHERE c.failed_at IS NOT NULL AND c.retry_at IS NOT NULL -- as commands_aside_idx has it
UNION ALL
SELECT 'source', CASE WHEN r.event ->> 'id' ~ '^[0-9a-f-]{36}$' THEN (r.event ->> 'id')::uuid END,
       NULL, r.event ->> 'tenant', NULL, r.error, r.refused_at, NULL
FROM outbox.refused_events r;
COMMENT ON VIEW outbox.set_aside IS
'Scheduled events and operators'' commands that failed, and why (each is tried again, and nothing else waits '
'for it), and rows of sources that cannot be events';
COMMENT ON COLUMN outbox.set_aside.what IS 'scheduled, command or source';
COMMENT ON COLUMN outbox.set_aside.event_id IS 'the event (NULL: its delivery is gone)';
COMMENT ON COLUMN outbox.set_aside.endpoint IS 'endpoint of a command (NULL: a scheduled event)';
COMMENT ON COLUMN outbox.set_aside.tenant IS 'tenant of the event, or of the endpoint (NULL: none)';
COMMENT ON COLUMN outbox.set_aside.action IS
'retry, resend, discard, cancel, due, probe, forget or limit (NULL: a scheduled event)';
COMMENT ON COLUMN outbox.set_aside.error IS 'why';
COMMENT ON COLUMN outbox.set_aside.failed_at IS 'time of the first failure';
COMMENT ON COLUMN outbox.set_aside.retry_at IS 'when it is tried again';

CREATE VIEW outbox.status AS
SELECT CASE WHEN pg_is_in_recovery() THEN 'standby'
            WHEN w.dboid IS NULL THEN 'not_preloaded'
            WHEN w.state IS NULL OR w.state = 'starting' THEN 'no_worker'
            ELSE w.state END AS state,
       CASE WHEN pg_is_in_recovery() THEN concat('its primary delivers',
                 CASE WHEN w.dboid IS NULL THEN '; outbox is not in shared_preload_libraries here' END)
            WHEN w.dboid IS NULL
                 THEN 'outbox is not in shared_preload_libraries: events are kept, nothing is delivered'
            WHEN w.pid IS NULL AND (SELECT d.datistemplate FROM pg_database d WHERE d.datname = current_database())
                 THEN 'no worker serves a template database (IS_TEMPLATE)'
            WHEN w.state = 'starting' THEN COALESCE(w.reason, 'the worker is starting')
            ELSE COALESCE(w.reason, NULLIF(concat_ws('; ', r.reason, h.reason, c.sources), '')) END AS reason,
       l.bytes AS log_bytes,
       outbox.size_now('{attempt_log_0,attempt_log_1,attempt_log_2,attempt_runs_0,attempt_runs_1,attempt_runs_2}') AS attempts_bytes,
       outbox.size_now('{parked,kept_events}') AS parked_bytes,
       l.oldest_at AS oldest_retained_at,
       CASE WHEN r.reason IS NULL THEN outbox.farthest_behind(l.max_seq) END AS retained_by,
       current_setting('outbox.enabled')::bool AS enabled,
       x.extversion AS version,
       w.unmatched,
       COALESCE(h.n, 0) AS held_steps,
       h.since AS held_since,
       h.next_try_at AS held_until,
       outbox.kept_for('events') AS retention,
       outbox.kept_for('attempts') AS attempts_retention,
       c.events AS scheduled,
       c.next_due_at
FROM outbox.log_size_now() l
CROSS JOIN outbox.scheduled_now() c
CROSS JOIN outbox.retention_held() r (reason)
CROSS JOIN pg_extension x
LEFT JOIN (SELECT ws.* FROM outbox.worker_slots() ws
           JOIN pg_database d ON d.oid = ws.dboid
           WHERE d.datname = current_database()
           ORDER BY array_position(ARRAY['stuck', 'running', 'disabled', 'held', 'version_mismatch', 'starting'], ws.state),
                    ws.worker LIMIT 1) w ON true
LEFT JOIN (SELECT count(*) AS n, min(t.since) AS since, min(t.next_try_at) AS next_try_at,
                  concat('on hold: ', string_agg(DISTINCT concat(t.step, ' (', t.reason, ')'), ', '),
                         -- A worker's own locks are not shown: it holds none for long.
                         CASE WHEN bool_or(t.reason = 'locked') THEN (
                          -- PostgreSQL grants no lock that conflicts with one that is waited for.
                          SELECT string_agg(DISTINCT CASE WHEN l.granted THEN format('; process %s has locked outbox.%s', l.pid, c.relname)
                                                          ELSE format('; process %s waits for a lock of outbox.%s, which process %s has',
                                                                      l.pid, c.relname, array_to_string(pg_blocking_pids(l.pid), ', ')) END, '')
                          FROM pg_locks l JOIN pg_class c ON c.oid = l.relation JOIN pg_database d ON d.oid = l.database
                          WHERE c.relnamespace = 'outbox'::regnamespace AND d.datname = current_database()
                          AND c.relkind IN ('r', 'p')
                          AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
                          AND l.pid NOT IN (SELECT w.pid FROM outbox.worker_slots() w WHERE w.pid IS NOT NULL)) END,
                         '; see outbox.held_steps') AS reason
           FROM outbox.step_holds() t
           -- a lock that is waited for less than a second is not worth a report
           WHERE t.reason <> 'locked'
           OR t.since < clock_timestamp() - '1 second'::interval
           HAVING count(*) > 0) h ON true
WHERE x.extname = 'outbox';
COMMENT ON VIEW outbox.status IS
'Whether this database delivers, and why not, the size of the log, and the endpoint that retains it (NULL '
'also for tables that are locked)';
COMMENT ON COLUMN outbox.status.state IS
'running, stuck (a worker that runs does nothing for 10 s), held, disabled, no_worker, not_preloaded, '
'version_mismatch or standby (its primary delivers)';
COMMENT ON COLUMN outbox.status.reason IS
'why it is not running, which steps are on hold, which sources do not stream, or which transaction keeps old '
'events, attempts or positions (NULL: none of these)';
COMMENT ON COLUMN outbox.status.log_bytes IS 'size of the log with its indexes, in bytes';
COMMENT ON COLUMN outbox.status.attempts_bytes IS 'size of outbox.attempts with its index, in bytes';
COMMENT ON COLUMN outbox.status.parked_bytes IS
'size of dead letters and waiting retries, with their events that the log has no more, in bytes';
COMMENT ON COLUMN outbox.status.oldest_retained_at IS
'when the oldest event of the log was emitted (NULL: the log is empty)';
COMMENT ON COLUMN outbox.status.retained_by IS
'name of the endpoint that is farthest behind, also with a replay (NULL: none is, or a transaction holds '
'the log instead)';
COMMENT ON COLUMN outbox.status.enabled IS 'the setting outbox.enabled';
COMMENT ON COLUMN outbox.status.version IS 'version of the extension''s objects';
COMMENT ON COLUMN outbox.status.unmatched IS
'counter: events that no endpoint subscribes to, since a worker last started where none was (NULL: there was '
'none)';
COMMENT ON COLUMN outbox.status.held_steps IS
'rows of outbox.held_steps, without steps that wait for a lock for less than a second';
COMMENT ON COLUMN outbox.status.held_since IS 'since when the oldest of them is on hold (NULL: none is)';
COMMENT ON COLUMN outbox.status.held_until IS 'when the next of them is tried again (NULL: none is)';
COMMENT ON COLUMN outbox.status.retention IS 'how long events are kept, at least';
COMMENT ON COLUMN outbox.status.attempts_retention IS 'how long attempts are kept, at least';
COMMENT ON COLUMN outbox.status.scheduled IS
'events whose deliver_at has not come (above 10000: an estimate)';
COMMENT ON COLUMN outbox.status.next_due_at IS 'when the next of them is due (NULL: there are none)';

CREATE VIEW outbox.workers AS
SELECT w.pid, d.datname, w.worker, w.state, w.reason, w.started_at, w.endpoints, w.in_flight, w.delivered,
       w.restarts, w.last_loop_at, w.memory, w.resident, w.resident_limit
FROM outbox.worker_slots() w
JOIN pg_database d ON d.oid = w.dboid
WHERE w.pid IS NOT NULL OR w.restarts > 0 OR w.state IN ('held', 'version_mismatch');
COMMENT ON VIEW outbox.workers IS
'Workers of all databases of this server, also ones that wait to be started again';
COMMENT ON COLUMN outbox.workers.pid IS 'process id (NULL: it waits to be started again, or is held)';
COMMENT ON COLUMN outbox.workers.datname IS 'database that it serves';
COMMENT ON COLUMN outbox.workers.worker IS 'its number in the database, from 1';
COMMENT ON COLUMN outbox.workers.state IS
'starting, running, stuck, disabled, held, version_mismatch, or no_worker without a process';
COMMENT ON COLUMN outbox.workers.reason IS 'why it is not running (NULL: nothing to say)';
COMMENT ON COLUMN outbox.workers.started_at IS 'when the process started';
COMMENT ON COLUMN outbox.workers.endpoints IS 'endpoints that it serves';
COMMENT ON COLUMN outbox.workers.in_flight IS 'requests in flight';
COMMENT ON COLUMN outbox.workers.delivered IS 'deliveries since the process started';
COMMENT ON COLUMN outbox.workers.restarts IS 'counter: ends with an error, since the server started';
COMMENT ON COLUMN outbox.workers.last_loop_at IS 'when its loop last went round (NULL: not yet)';
COMMENT ON COLUMN outbox.workers.memory IS
'bytes that events, bodies and answers take of outbox.worker_memory';
COMMENT ON COLUMN outbox.workers.resident IS
'bytes of the process alone, up to a second or an event old (NULL: the system does not say)';
COMMENT ON COLUMN outbox.workers.resident_limit IS
'bound of these bytes, with so many endpoints and requests, and these settings (NULL: not known yet)';

-- The list of outbox.metrics().
CREATE VIEW outbox.metric_names AS
SELECT * FROM (VALUES
    (1, 'outbox_info', 'gauge', 'version', '1, with the version of the extension'),
    (2, 'outbox_time_seconds', 'gauge', NULL::text, 'Time of the database server. It stands still when an exporter repeats old figures'),
    (3, 'outbox_state', 'gauge', 'state', '1 for the state of the database, 0 for the others'),
    (4, 'outbox_workers', 'gauge', NULL::text, 'Processes of workers of the database'),
    (5, 'outbox_worker_restarts_total', 'counter', 'worker', 'Ends of a worker with an error, since the server started'),
    (6, 'outbox_worker_idle_seconds', 'gauge', 'worker', 'Time since the loop of a worker last went round'),
    (7, 'outbox_worker_in_flight', 'gauge', 'worker', 'Requests of a worker in flight'),
    (8, 'outbox_worker_memory_bytes', 'gauge', 'worker', 'What a worker takes of outbox.worker_memory'),
    (9, 'outbox_held_steps', 'gauge', NULL::text, 'Rows of outbox.held_steps, without short waits for locks'),
    (10, 'outbox_set_aside', 'gauge', 'what', 'Rows of outbox.set_aside (above 10000: 10001)'),
    (42, 'outbox_retention_held', 'gauge', NULL::text, '1 while a transaction keeps old events or attempts from being removed'),
    (11, 'outbox_log_bytes', 'gauge', NULL::text, 'Size of the log with its indexes'),
    (12, 'outbox_attempts_bytes', 'gauge', NULL::text, 'Size of outbox.attempts with its index'),
    (13, 'outbox_parked_bytes', 'gauge', NULL::text, 'Size of dead letters and of deliveries that wait for a retry, with kept events'),
    (14, 'outbox_oldest_retained_seconds', 'gauge', NULL::text, 'Age of the oldest event of the log'),
    (15, 'outbox_scheduled_events', 'gauge', NULL::text, 'Events that are not due yet (above 10000: an estimate)'),
    (16, 'outbox_scheduled_due_in_seconds', 'gauge', NULL::text, 'Time until the next scheduled event is due, negative when it is late'),
    (17, 'outbox_emitted_total', 'counter', NULL::text, 'Numbers drawn for events, also by transactions that rolled back'),
    (18, 'outbox_deduplicated_total', 'counter', NULL::text, 'Emits that a dedup_key suppressed'),
    (19, 'outbox_unmatched_total', 'counter', NULL::text, 'Events that no endpoint subscribes to'),
    (20, 'outbox_delivered_total', 'counter', NULL::text, 'Deliveries'),
    (21, 'outbox_failed_attempts_total', 'counter', 'class', 'Failed attempts, one for each event of a failed batch'),
    (22, 'outbox_died_total', 'counter', 'reason', 'Deliveries that died'),
    (23, 'outbox_cancelled_total', 'counter', NULL::text, 'Deliveries that were cancelled'),
    (24, 'outbox_breaker_openings_total', 'counter', NULL::text, 'Times that an endpoint began to back off'),
    (25, 'outbox_endpoints', 'gauge', 'state', 'Endpoints, by state'),
    (26, 'outbox_deliveries', 'gauge', 'status', 'Deliveries that are not done, by status. stopped: they wait where nothing is sent'),
    (27, 'outbox_oldest_pending_seconds', 'gauge', NULL::text, 'Age of the oldest event that waits for its first attempt where something is sent'),
    (28, 'outbox_endpoint_state', 'gauge', 'state', '1, with the state of the endpoint'),
    (29, 'outbox_endpoint_state_seconds', 'gauge', NULL::text, 'Time since that state began'),
    (30, 'outbox_endpoint_deliveries', 'gauge', 'status', 'Deliveries of the endpoint that are not done, by status'),
    (31, 'outbox_endpoint_oldest_pending_seconds', 'gauge', NULL::text, 'Age of the oldest event that waits for its first attempt'),
    (32, 'outbox_endpoint_retained_bytes', 'gauge', NULL::text, 'Part of the log that the endpoint has yet to read, estimated'),
    (33, 'outbox_endpoint_last_success_seconds', 'gauge', NULL::text, 'Time since a request last succeeded'),
    (34, 'outbox_endpoint_latency_seconds', 'gauge', 'quantile', 'Time from emit to 2xx of first attempts, over five minutes'),
    (35, 'outbox_endpoint_delivered_total', 'counter', NULL::text, 'Deliveries of the endpoint'),
    (36, 'outbox_endpoint_failed_attempts_total', 'counter', 'class', 'Failed attempts of the endpoint'),
    (37, 'outbox_endpoint_died_total', 'counter', 'reason', 'Deliveries of the endpoint that died'),
    (38, 'outbox_endpoint_cancelled_total', 'counter', NULL::text, 'Deliveries of the endpoint that were cancelled'),
    (39, 'outbox_endpoint_breaker_openings_total', 'counter', NULL::text, 'Times that the endpoint began to back off'),
    (40, 'outbox_worker_resident_bytes', 'gauge', 'worker', 'Memory that the process of a worker has for itself'),
    (41, 'outbox_worker_resident_limit_bytes', 'gauge', 'worker', 'What that is to stay below'),
    (43, 'outbox_source_streaming', 'gauge', 'source', '1 while the events of a source come, or are on their way, else 0'),
    (44, 'outbox_source_lost', 'gauge', 'source', '1 while a source waits for outbox.follow() to be called again'),
    (45, 'outbox_source_behind_bytes', 'gauge', 'source', 'WAL of a source that is not taken yet'),
    (46, 'outbox_source_retained_bytes', 'gauge', 'source', 'WAL that its slot retains at a source'),
    (47, 'outbox_source_room_bytes', 'gauge', 'source', 'WAL that its slot may still retain, where that is limited'),
    (48, 'outbox_source_answered_seconds', 'gauge', 'source', 'Time since a source last answered, or was followed'),
    (49, 'outbox_source_behind_seconds', 'gauge', 'source', 'Age of events of a source that are not taken yet, or 0'),
    (50, 'outbox_source_missed_events', 'gauge', 'source', 'Events that a source had removed before they were taken'),
    (51, 'outbox_source_taken_total', 'counter', 'source', 'Events that were taken from a source, since it is followed and the server started'),
    (52, 'outbox_tenant_delivered_per_second', 'gauge', NULL::text, 'Deliveries to the endpoints of a tenant, or without the label of all others, over the last minute'),
    (53, 'outbox_tenant_failed_attempts_per_second', 'gauge', NULL::text, 'Failed attempts of the same, over the last minute'),
    (54, 'outbox_tenant_deliveries', 'gauge', 'status', 'Deliveries of the same that are not done, by status'),
    (55, 'outbox_tenant_oldest_pending_seconds', 'gauge', NULL::text, 'Age of the oldest event of the same that waits for its first attempt')) v (number, metric, type, label, help);
COMMENT ON VIEW outbox.metric_names IS 'The figures that outbox.metrics() can show';
COMMENT ON COLUMN outbox.metric_names.number IS 'their order';
COMMENT ON COLUMN outbox.metric_names.metric IS 'name of the figure';
COMMENT ON COLUMN outbox.metric_names.type IS 'counter, which never goes down, or gauge';
COMMENT ON COLUMN outbox.metric_names.label IS 'the label that it has besides endpoint or tenant (NULL: none)';
COMMENT ON COLUMN outbox.metric_names.help IS 'help text';

-- For Prometheus: one query has everything. With thousands of endpoints, the ones that
-- need attention most have series of their own, and all are in the sums. SECURITY
-- DEFINER, so that EXECUTE on this function is all that a scraper needs.
CREATE FUNCTION outbox.metrics(top int4 DEFAULT 20, top_tenants int4 DEFAULT 0,
    OUT name text, OUT type text, OUT help text, OUT labels jsonb, OUT value float8)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE SECURITY DEFINER ROWS 500 SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
AS $$
#variable_conflict use_column
BEGIN
    IF $1 IS NULL THEN
        RAISE EXCEPTION 'top must not be null'
            USING ERRCODE = 'null_value_not_allowed',
                  HINT = 'Use 0 for the sums alone, or leave it out for 20 endpoints.';
    ELSIF $1 < 0 THEN
        RAISE EXCEPTION 'invalid top %', $1
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Use 0 for the sums alone, or leave it out for 20 endpoints.';
    ELSIF $2 IS NULL OR $2 < 0 THEN
        RAISE EXCEPTION '%', COALESCE('invalid top_tenants ' || $2, 'top_tenants must not be null')
            USING ERRCODE = CASE WHEN $2 IS NULL THEN 'null_value_not_allowed' ELSE 'invalid_parameter_value' END,
                  HINT = 'Leave it out for no figures of tenants.';
    END IF;
    RETURN QUERY
    WITH series AS MATERIALIZED (
        SELECT r.* FROM (
            SELECT COALESCE(array_agg(s.endpoint_id ORDER BY s.tenant), '{}') AS ids,
                   COALESCE(array_agg(s.tenant ORDER BY s.tenant), '{}') AS tenants
            FROM (SELECT n.endpoint_id, CASE WHEN top_tenants > 0 THEN n.tenant END AS tenant
                  FROM outbox.endpoint_settings n) s) a
        CROSS JOIN LATERAL outbox.metric_series(a.ids, a.tenants, top, top_tenants) r),
    status AS MATERIALIZED (
        SELECT s.state, s.log_bytes, s.attempts_bytes, s.parked_bytes, s.oldest_retained_at, s.version,
               s.held_steps, s.scheduled, s.next_due_at
        FROM outbox.status s),
    workers AS MATERIALIZED (
        SELECT w.* FROM outbox.worker_slots() w
        JOIN pg_database d ON d.oid = w.dboid WHERE d.datname = current_database()),
    size AS MATERIALIZED (SELECT * FROM outbox.log_size_now()),
    samples (metric, owner, label, value) AS (
        SELECT s.metric, COALESCE(e.name, s.tenant), s.label, s.value
        FROM series s LEFT JOIN outbox.endpoint_settings e USING (endpoint_id)
        UNION ALL
        SELECT 'outbox_endpoint_retained_bytes', p.name, NULL,
               CASE WHEN l.min_seq IS NULL OR p.seq >= l.max_seq THEN 0
                    ELSE l.bytes::float8 * (l.max_seq - GREATEST(p.seq, l.min_seq - 1)) / (l.max_seq - l.min_seq + 1)
               END
        FROM (SELECT DISTINCT s.endpoint_id FROM series s WHERE s.endpoint_id IS NOT NULL) t
        CROSS JOIN LATERAL (SELECT q.name, q.seq FROM outbox.endpoint_positions q
                            WHERE q.endpoint_id = t.endpoint_id) p
        JOIN size l ON l.bytes IS NOT NULL
        UNION ALL
        SELECT 'outbox_info', NULL, s.version, 1 FROM status s
        UNION ALL
        SELECT 'outbox_time_seconds', NULL, NULL, EXTRACT(epoch FROM clock_timestamp())
        UNION ALL
        SELECT 'outbox_state', NULL, v.state, (v.state = s.state)::int4
        FROM status s, unnest('{running,stuck,held,disabled,no_worker,not_preloaded,version_mismatch,standby}'::text[]) v(state)
        UNION ALL
        SELECT v.metric, NULL, NULL, v.value
        FROM status s, size l, outbox.events_seq q, LATERAL (VALUES
            ('outbox_log_bytes', s.log_bytes::float8),
            ('outbox_attempts_bytes', s.attempts_bytes),
            ('outbox_parked_bytes', s.parked_bytes),
            ('outbox_oldest_retained_seconds', EXTRACT(epoch FROM clock_timestamp() - s.oldest_retained_at)),
            ('outbox_emitted_total', CASE WHEN s.state = 'standby' THEN NULL WHEN q.is_called THEN q.last_value ELSE 0 END),
            ('outbox_scheduled_events', s.scheduled),
            ('outbox_scheduled_due_in_seconds', EXTRACT(epoch FROM s.next_due_at - clock_timestamp())),
            ('outbox_held_steps', s.held_steps),
            ('outbox_retention_held', (outbox.retention_held() IS NOT NULL)::int4)) v(metric, value)
        WHERE v.value IS NOT NULL
        UNION ALL
        SELECT 'outbox_set_aside', NULL, v.what, (SELECT count(*) FROM (SELECT FROM outbox.set_aside a WHERE a.what = v.what LIMIT 10001) s)
        FROM unnest('{scheduled,command,source}'::text[]) v(what)
        UNION ALL
        SELECT v.metric, NULL, f.name, v.value
        FROM outbox.sources f, LATERAL (VALUES
            ('outbox_source_streaming', (f.state IN ('streaming', 'behind', 'copying'))::int4::float8),
            ('outbox_source_lost', (f.state IN ('slot_lost', 'publication_lost', 'gone'))::int4),
            ('outbox_source_behind_bytes', f.behind),
            ('outbox_source_retained_bytes', f.retained),
            ('outbox_source_room_bytes', f.room),
            ('outbox_source_answered_seconds', EXTRACT(epoch FROM clock_timestamp() - COALESCE(f.answered_at, f.followed_at))),
            ('outbox_source_behind_seconds', COALESCE(EXTRACT(epoch FROM clock_timestamp() - f.late_since), 0)),
            ('outbox_source_missed_events', f.missed),
            ('outbox_source_taken_total', f.taken)) v(metric, value)
        WHERE v.value IS NOT NULL AND NOT pg_is_in_recovery()
        UNION ALL
        SELECT 'outbox_workers', NULL, NULL, count(*) FILTER (WHERE w.pid IS NOT NULL) FROM workers w
        UNION ALL
        SELECT v.metric, NULL, w.worker::text, v.value
        FROM workers w, LATERAL (VALUES
            ('outbox_worker_restarts_total', w.restarts::float8),
            ('outbox_worker_idle_seconds', GREATEST(EXTRACT(epoch FROM clock_timestamp() - w.last_loop_at), 0)),
            ('outbox_worker_in_flight', w.in_flight),
            ('outbox_worker_memory_bytes', w.memory),
            ('outbox_worker_resident_bytes', w.resident),
            ('outbox_worker_resident_limit_bytes', w.resident_limit)) v(metric, value)
        WHERE v.value IS NOT NULL AND (w.pid IS NOT NULL OR v.metric = 'outbox_worker_restarts_total'))
    SELECT m.metric, m.type, m.help,
           CASE WHEN v.owner IS NULL THEN '{}'
                ELSE jsonb_build_object(CASE WHEN starts_with(m.metric, 'outbox_tenant_') THEN 'tenant' ELSE 'endpoint' END, v.owner) END
           || CASE WHEN v.label IS NULL THEN '{}' ELSE jsonb_build_object(m.label, v.label) END,
           v.value
    FROM outbox.metric_names m JOIN samples v USING (metric)
    ORDER BY m.number, v.owner, v.label;
END $$;
COMMENT ON FUNCTION outbox.metrics IS
'Figures for Prometheus, one row per sample: the database, all endpoints summed, the "top" endpoints that '
'need attention most, and the "top_tenants" that get most and that fail most';
