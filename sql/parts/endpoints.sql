------------------------------------------------------------------------
-- Endpoints: their settings, checks and functions. The worker writes only the state
-- of an endpoint, when its receiver asks to be disabled.
------------------------------------------------------------------------

-- The functions that change an endpoint read no table as a whole, however small it is, and a
-- change mostly leaves the indexes as they are.  SERIALIZABLE transactions that change
-- different endpoints would else have read rows that the other one writes.  Where there is no index
-- after all, the plan counts as costly, and would be compiled.
CREATE TABLE outbox.endpoint_settings (
    endpoint_id     int4 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name            text COLLATE "C" NOT NULL UNIQUE,
    tenant          text COLLATE "C",                 -- NULL: all events, with a tenant or without
    url             text NOT NULL,
    topics          text[] NOT NULL,
    filter          jsonpath,
    format          text NOT NULL,
    headers         jsonb,
    config          jsonb,
    credentials     text[],                           -- their names; outbox.endpoint_secrets has them
    ordering        text NOT NULL,
    on_exhausted    text NOT NULL,
    max_in_flight   int4 NOT NULL,
    rate_limit      float4,
    timeout         interval NOT NULL,
    connect_timeout interval NOT NULL,
    max_attempts    int4,
    max_age         interval NOT NULL,
    backoff_base    interval NOT NULL,
    backoff_max     interval NOT NULL,
    batch_size      int4 NOT NULL,
    batch_wait      interval NOT NULL,
    disable_after   interval,                         -- NULL: never
    state           text NOT NULL DEFAULT 'active',   -- active, paused, disabled
    state_since     timestamptz NOT NULL DEFAULT now(),
    reason          text,
    created_at      timestamptz NOT NULL DEFAULT now(),
    -- raised when url, topics, filter or format change: the worker notes the place
    -- in the log from which the new subscription holds
    version         int8 NOT NULL DEFAULT 1,
    -- raised with each seek, which sets the next two columns: where it begins
    generation      int8 NOT NULL DEFAULT 1,
    start_snapshot  pg_snapshot NOT NULL,
    start_seq_low   int8 NOT NULL,
    -- notes of applications, which the worker does not read
    label           text,
    metadata        jsonb,
    idempotency_key text COLLATE "C",                 -- of the call that created it
    secrets_set_at  timestamptz NOT NULL DEFAULT now(),
    updated_at      timestamptz NOT NULL DEFAULT now(),
    revision        int8 NOT NULL DEFAULT 1,          -- raised by outbox.audit_endpoint()
    challenge       text,                             -- how its receiver proves that it wants events (NULL: it need not)
    verified_at     timestamptz,                      -- when it did
    challenges      int4 NOT NULL DEFAULT 0,          -- how often it was asked for the proof, since it is to give one
    log_attempts    text                              -- NULL: as outbox.log_attempts says
) WITH (fillfactor = 70);
CREATE INDEX endpoint_settings_tenant_idx ON outbox.endpoint_settings (tenant);
CREATE UNIQUE INDEX endpoint_settings_idempotency_idx ON outbox.endpoint_settings (tenant, idempotency_key)
    WHERE idempotency_key IS NOT NULL;
COMMENT ON TABLE outbox.endpoint_settings IS 'Endpoints: the settings of users';

-- Changes of an endpoint's settings, and requests for its deliveries.  It holds
-- no secret: of a URL only the part up to the host, of headers and credentials only that they changed.
CREATE TABLE outbox.endpoint_audit (
    change_id       int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at              timestamptz NOT NULL DEFAULT clock_timestamp(),
    tenant          text COLLATE "C",
    endpoint        text COLLATE "C" NOT NULL,
    actor           text,
    role            text NOT NULL,
    action          text NOT NULL,
    before          jsonb NOT NULL,
    after           jsonb NOT NULL
);
CREATE INDEX endpoint_audit_tenant_idx ON outbox.endpoint_audit (tenant, change_id);
CREATE INDEX endpoint_audit_endpoint_idx ON outbox.endpoint_audit (endpoint, change_id);
CREATE INDEX endpoint_audit_unfollow_idx ON outbox.endpoint_audit (at) WHERE action = 'unfollow';
COMMENT ON TABLE outbox.endpoint_audit IS
'Changes of endpoints and requests for their deliveries: for 90 days, and the newest 10,000 of a tenant '
'(100,000 without one)';
COMMENT ON COLUMN outbox.endpoint_audit.change_id IS 'number of the change';
COMMENT ON COLUMN outbox.endpoint_audit.at IS 'time of the change';
COMMENT ON COLUMN outbox.endpoint_audit.tenant IS 'tenant of the endpoint or of the limits (NULL: none)';
COMMENT ON COLUMN outbox.endpoint_audit.endpoint IS 'name of the endpoint (empty: none)';
COMMENT ON COLUMN outbox.endpoint_audit.actor IS 'outbox.actor of the session (NULL: not set)';
COMMENT ON COLUMN outbox.endpoint_audit.role IS
'role of the session, the worker''s for a verdict of the receiver';
COMMENT ON COLUMN outbox.endpoint_audit.action IS 'create, alter, pause, resume, disable, verify, seek, drop, retry, resend, discard, replay, cancel_replay, cancel or test, and without an endpoint retention, limits, follow, unfollow or describe';
COMMENT ON COLUMN outbox.endpoint_audit.before IS 'changed settings, before';
COMMENT ON COLUMN outbox.endpoint_audit.after IS
'changed settings, after, or the request: its event or filter, and the number of deliveries';

-- Each hundredth row removes up to 200 of the oldest, also of rows without a tenant, and reads no more of
-- the table than finds them.  Rows that another transaction has locked are not waited for.
CREATE FUNCTION outbox.note_change(tenant text, endpoint text, action text, before jsonb, after jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off SET enable_sort = off
AS $$
#variable_conflict use_variable
DECLARE
    a record;
BEGIN
    INSERT INTO outbox.endpoint_audit AS c (tenant, endpoint, actor, role, action, before, after)
    VALUES (tenant, endpoint, left(NULLIF(current_setting('outbox.actor', true), ''), 255),
            CASE current_setting('role') WHEN 'none' THEN session_user ELSE current_setting('role') END, action, before, after)
    RETURNING c.change_id, c.tenant INTO a;
    IF a.change_id % 100 = 0 THEN
        DELETE FROM outbox.endpoint_audit d
        WHERE d.change_id IN (
            SELECT o.change_id FROM outbox.endpoint_audit o
            WHERE o.change_id <= (SELECT max(f.change_id) FROM (
                SELECT c.change_id FROM outbox.endpoint_audit c ORDER BY c.change_id LIMIT 200) f)
            AND o.at < clock_timestamp() - interval '90 days' FOR UPDATE SKIP LOCKED);
        DELETE FROM outbox.endpoint_audit d
        WHERE d.change_id IN (
            SELECT o.change_id FROM outbox.endpoint_audit o
            WHERE o.tenant = a.tenant AND o.change_id <= (
                SELECT n.change_id FROM outbox.endpoint_audit n
                WHERE n.tenant = a.tenant ORDER BY n.change_id DESC OFFSET 10000 LIMIT 1) FOR UPDATE SKIP LOCKED);
        DELETE FROM outbox.endpoint_audit d
        WHERE a.tenant IS NULL AND d.change_id IN (
            SELECT o.change_id FROM outbox.endpoint_audit o
            WHERE o.tenant IS NULL AND o.change_id <= (
                SELECT n.change_id FROM outbox.endpoint_audit n
                WHERE n.tenant IS NULL ORDER BY n.tenant DESC, n.change_id DESC OFFSET 100000 LIMIT 1)
            LIMIT 200 FOR UPDATE SKIP LOCKED);
    END IF;
END $$;
COMMENT ON FUNCTION outbox.note_change IS
'Notes a change of an endpoint, or a request, in outbox.endpoint_audit, by outbox.actor and the role of the '
'session';

-- A restore inserts rows that an earlier transaction made: its trigger says so.
CREATE FUNCTION outbox.audit_endpoint() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off SET enable_sort = off
SET extra_float_digits = 1 SET plan_cache_mode = force_generic_plan   -- a plan of its own would show the URL and headers
AS $$
DECLARE
    hidden CONSTANT text[] := '{endpoint_id,name,tenant,state_since,created_at,updated_at,revision,version,'
                              'start_snapshot,start_seq_low,idempotency_key,challenges}';
    a outbox.endpoint_audit;
BEGIN
    IF TG_OP = 'UPDATE' AND NEW.revision <> OLD.revision THEN
        NEW.revision := OLD.revision;   -- outbox.reseal_secrets() changes no value
        IF to_jsonb(NEW) - '{url,headers}'::text[] = to_jsonb(OLD) - '{url,headers}'::text[]
           AND outbox.shown(OLD.endpoint_id, NEW.url) = outbox.shown(OLD.endpoint_id, OLD.url)
           AND outbox.shown(OLD.endpoint_id, NEW.headers) IS NOT DISTINCT FROM outbox.shown(OLD.endpoint_id, OLD.headers) THEN
            RETURN NEW;
        END IF;
    END IF;
    SELECT COALESCE(jsonb_object_agg(c.key, c.before) FILTER (WHERE c.before <> 'null'), '{}'),
           COALESCE(jsonb_object_agg(c.key, c.after) FILTER (WHERE c.after <> 'null'), '{}'), count(*)
    INTO a.before, a.after, a.change_id
    FROM (SELECT CASE key WHEN 'secrets_set_at' THEN 'secrets' ELSE key END AS key,
                 CASE WHEN key = 'url' THEN to_jsonb(substring(o.value #>> '{}' FROM '^[^:]+:/{0,2}[^/?#]*'))
                      WHEN key IN ('headers', 'secrets_set_at') AND o.value <> 'null' THEN '"set"' ELSE o.value END AS before,
                 CASE WHEN key = 'url' THEN to_jsonb(substring(n.value #>> '{}' FROM '^[^:]+:/{0,2}[^/?#]*'))
                      WHEN key IN ('headers', 'secrets_set_at') AND n.value <> 'null' THEN '"changed"' ELSE n.value END AS after
          FROM jsonb_each(CASE WHEN TG_OP <> 'INSERT' THEN to_jsonb(OLD) - hidden END) o
          FULL JOIN jsonb_each(CASE WHEN TG_OP <> 'DELETE' THEN to_jsonb(NEW) - hidden END) n USING (key)
          WHERE o.value IS DISTINCT FROM n.value) c;
    IF a.change_id = 0 THEN
        RETURN NEW;
    END IF;
    IF TG_OP = 'UPDATE' AND OLD.created_at = now() THEN
        -- more settings of a new endpoint, by the same transaction
        UPDATE outbox.endpoint_audit c SET after = c.after - ARRAY(SELECT jsonb_object_keys(a.before)) || a.after
        WHERE c.change_id = (SELECT n.change_id FROM outbox.endpoint_audit n
                             WHERE n.endpoint = NEW.name AND n.action = 'create' ORDER BY n.change_id DESC LIMIT 1);
        RETURN NEW;
    ELSIF TG_OP = 'UPDATE' THEN
        NEW.updated_at := clock_timestamp();
        NEW.revision := OLD.revision + 1;
    END IF;
    PERFORM outbox.note_change(COALESCE(NEW.tenant, OLD.tenant), COALESCE(NEW.name, OLD.name),
            CASE WHEN TG_OP = 'INSERT' THEN 'create' WHEN TG_OP = 'DELETE' THEN 'drop'
                 WHEN a.after ? 'generation' THEN 'seek'
                 WHEN a.after ->> 'state' = 'active' THEN 'resume' WHEN a.after ->> 'state' = 'paused' THEN 'pause'
                 WHEN a.after ? 'state' THEN 'disable' WHEN a.after ? 'verified_at' THEN 'verify' ELSE 'alter' END,
            a.before - 'generation', a.after - 'generation');
    RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
END $$;
COMMENT ON FUNCTION outbox.audit_endpoint IS
'Trigger of outbox.endpoint_settings: notes the change in outbox.endpoint_audit, with its time and number';
CREATE TRIGGER created AFTER INSERT ON outbox.endpoint_settings
FOR EACH ROW WHEN (NEW.created_at = now()) EXECUTE FUNCTION outbox.audit_endpoint();
COMMENT ON TRIGGER created ON outbox.endpoint_settings IS 'Notes the new endpoint';
CREATE TRIGGER changed BEFORE UPDATE OR DELETE ON outbox.endpoint_settings
FOR EACH ROW EXECUTE FUNCTION outbox.audit_endpoint();
COMMENT ON TRIGGER changed ON outbox.endpoint_settings IS 'Notes the change, with its time and number';

-- Which topics an endpoint was subscribed to at which place in the log. For an
-- event the highest version that begins before it counts.
CREATE TABLE outbox.subscriptions (
    endpoint_id     int4 NOT NULL,
    version         int8 NOT NULL,
    topics          text[] NOT NULL,
    filter          jsonpath,
    read            pg_snapshot NOT NULL,
    reading         pg_snapshot,
    last_seq        int8 NOT NULL,
    -- of a seek: the events before this place that the endpoint had read and not
    -- delivered, like outbox.positions.pending (NULL: none)
    skipped         bytea,
    PRIMARY KEY (endpoint_id, version)
);
COMMENT ON TABLE outbox.subscriptions IS
'Which topics an endpoint was subscribed to, from which place in the log on';

------------------------------------------------------------------------
-- Checks when an endpoint is created or changed
------------------------------------------------------------------------

CREATE FUNCTION outbox.check_tenant(tenant text, required bool DEFAULT false) RETURNS text
LANGUAGE C IMMUTABLE AS 'MODULE_PATHNAME', 'outbox_check_tenant_1_0';
COMMENT ON FUNCTION outbox.check_tenant IS
'The tenant, or an error if none can have this name (22023; 22004: NULL, and it is required)';

CREATE FUNCTION outbox.check_topics(topics text[]) RETURNS void
LANGUAGE C IMMUTABLE STRICT AS 'MODULE_PATHNAME', 'outbox_check_topics_1_0';
COMMENT ON FUNCTION outbox.check_topics IS 'Refuses topic patterns that can match nothing (22023)';

CREATE FUNCTION outbox.credential_names(credentials jsonb) RETURNS text[]
LANGUAGE C STABLE STRICT AS 'MODULE_PATHNAME', 'outbox_credential_names_1_0';
COMMENT ON FUNCTION outbox.credential_names IS
'The names in credentials, or an error if they are not a flat object of strings and files (22023)';

-- Loads the library of a sink into this session, and asks it.
-- A NULL url counts as a webhook's, and so does one whose sink cannot be loaded, but
-- without the format cloudevents-binary.
CREATE FUNCTION outbox.sink_properties(url text, OUT format text, OUT max_in_flight int4, OUT timeout interval,
    OUT binary_mode bool)
LANGUAGE C STABLE CALLED ON NULL INPUT AS 'MODULE_PATHNAME', 'outbox_sink_properties_1_0';
COMMENT ON FUNCTION outbox.sink_properties IS
'Defaults of an endpoint with this URL, and whether it may have the format cloudevents-binary';

-- 'shown' is the URL in clear, where it can be opened.
CREATE FUNCTION outbox.check_options(url text DEFAULT NULL, shown text DEFAULT NULL, filter jsonpath DEFAULT NULL,
    headers jsonb DEFAULT NULL, config jsonb DEFAULT NULL, credentials text[] DEFAULT NULL) RETURNS void
LANGUAGE C VOLATILE CALLED ON NULL INPUT AS 'MODULE_PATHNAME', 'outbox_check_options_1_0';
COMMENT ON FUNCTION outbox.check_options IS
'Refuses a URL and headers that no endpoint can have, a filter that is no predicate, names a variable or may take more '
'than linear time, and a config, or names of credentials, that the sink of the URL does not take (22023; 55000: its '
'library is missing)';

CREATE FUNCTION outbox.keeps_credentials(old_url text, old_config jsonb, url text, config jsonb) RETURNS bool
LANGUAGE C VOLATILE CALLED ON NULL INPUT AS 'MODULE_PATHNAME', 'outbox_keeps_credentials_1_0';
COMMENT ON FUNCTION outbox.keeps_credentials IS
'True if the sink of these URLs sends credentials to no other servers with the new URL and config, and as well protected';

CREATE FUNCTION outbox.topic_in(topic text, patterns text[]) RETURNS bool
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'outbox_topic_in_1_0';
COMMENT ON FUNCTION outbox.topic_in IS
'True if one of the patterns matches the topic (NULL where an argument is)';

-- Two tenants may use the same key: an endpoint that gets events of both must not
-- mistake it for one.
CREATE FUNCTION outbox.order_key(tenant text, key text) RETURNS text
LANGUAGE C IMMUTABLE CALLED ON NULL INPUT PARALLEL SAFE AS 'MODULE_PATHNAME', 'outbox_order_key_1_0';
COMMENT ON FUNCTION outbox.order_key IS
'The key that orders an event of this tenant with this key: outbox.parked.key (NULL: the event has no key)';

CREATE FUNCTION outbox.filter_matches(payload jsonb, filter jsonpath) RETURNS bool
LANGUAGE C STABLE CALLED ON NULL INPUT AS 'MODULE_PATHNAME', 'outbox_filter_matches_1_0';
COMMENT ON FUNCTION outbox.filter_matches IS
'True if the payload matches the filter or there is none (NULL: neither true nor false)';

-- Returns the place in the log that start_at means: now, beginning or a timestamp
-- (22023 otherwise). A timestamp means the latest stored tick before it, which is
-- about a second. No tick is known from before the adoption of the log, nor in a
-- copy that is not adopted (55000). With replayed_from the result is where a replay
-- from that time begins, or the beginning if no tick is known.
-- Takes the lock that keeps the log from being shortened until the place is stored.
CREATE FUNCTION outbox.resolve_start(start_at text, replayed_from timestamptz,
    OUT snapshot pg_snapshot, OUT seq_low int8)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
AS $$
DECLARE
    at timestamptz := replayed_from;
    last outbox.ticks;
    next outbox.ticks;
BEGIN
    IF start_at IS NULL AND replayed_from IS NULL THEN
        RAISE EXCEPTION 'start_at must not be null'
            USING ERRCODE = 'null_value_not_allowed',
                  HINT = 'Use ''now'', ''beginning'' or a timestamp.';
    END IF;
    LOCK TABLE outbox.endpoint_settings IN ROW EXCLUSIVE MODE;
    IF outbox.current_epoch() < 0 THEN
        RAISE EXCEPTION 'this log is a copy that was not adopted, and has no places to start at'
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'SELECT outbox.adopt() first. Undelivered events are then sent, '
                         'unless their endpoint is paused or dropped before.';
    END IF;
    IF start_at = 'now' THEN
        SELECT p.snapshot, p.seq_low INTO snapshot, seq_low
        FROM outbox.position_now('outbox.events_seq'::regclass::oid) p;
        RETURN;
    ELSIF start_at = 'beginning' THEN
        snapshot := '3:3:';
        seq_low := 0;
        RETURN;
    END IF;
    IF replayed_from IS NULL THEN
        BEGIN
            -- A text as this session shows times means that time.  Read back as another
            -- would read it, IST of India is that of Israel.
            at := start_at::timestamp::timestamptz;
            IF at::text <> start_at THEN
                at := start_at::timestamptz;
            END IF;
        EXCEPTION WHEN data_exception THEN
            at := NULL;
        END;
    END IF;
    IF at IS NULL OR NOT isfinite(at) THEN
        RAISE EXCEPTION 'invalid start_at "%"', start_at
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Use ''now'', ''beginning'' or a timestamp.';
    ELSIF replayed_from IS NULL AND at > clock_timestamp() THEN
        RAISE EXCEPTION 'start_at "%" is in the future', start_at
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Use ''now'', ''beginning'' or a timestamp in the past.';
    END IF;
    -- The newest tick that has no event before it which was emitted later than the
    -- given time.  Times follow the log until the clock is set back, and then again.
    -- Between two ticks with that between them the time of each event counts.
    SELECT min(t.clock) INTO next.clock FROM outbox.ticks t;
    LOOP
        SELECT * INTO last FROM outbox.ticks t WHERE (t.clock, t.taken_at) <= (next.clock, at)
        ORDER BY t.clock DESC, t.taken_at DESC, t.tick DESC LIMIT 1;
        SELECT * INTO next FROM outbox.ticks t
        WHERE (t.clock, t.taken_at, t.tick) > (last.clock, last.taken_at, last.tick)
        ORDER BY t.clock, t.taken_at, t.tick LIMIT 1;
        EXIT WHEN NOT FOUND OR next.taken_at > at
            OR EXISTS (SELECT FROM outbox.events e
                       WHERE e.seq > last.seq_low AND e.seq <= next.seq_high AND e.created_at >= at);
    END LOOP;
    snapshot := last.snapshot;
    seq_low := last.seq_low;
    IF seq_low IS NULL AND replayed_from IS NULL
       AND EXISTS (SELECT 1 FROM outbox.origins o WHERE o.adopted_by IS NOT NULL) THEN
        RAISE EXCEPTION 'start_at "%" is earlier than the adoption of this log', start_at
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Use ''beginning'' to go back to the first event that is kept, '
                         'or outbox.replay(), which reads the time of each event.';
    ELSIF seq_low IS NULL THEN
        snapshot := '3:3:';
        seq_low := 0;
    END IF;
END $$;
COMMENT ON FUNCTION outbox.resolve_start IS 'The place in the log that start_at means';

-- Every setting of an endpoint is checked here, whatever function changes it.
CREATE FUNCTION outbox.check_settings(s outbox.endpoint_settings) RETURNS outbox.endpoint_settings
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    shown CONSTANT text := COALESCE(outbox.shown(s.endpoint_id, s.url), s.url);
    sink CONSTANT record := outbox.sink_properties(shown);
    problem text;
    hint text;
    state text;
    field text;
BEGIN
    s.format := COALESCE(s.format, sink.format);
    s.max_in_flight := COALESCE(s.max_in_flight, sink.max_in_flight);
    s.timeout := COALESCE(s.timeout, sink.timeout);
    s.disable_after := NULLIF(s.disable_after, interval '0');
    s.credentials := NULLIF(s.credentials, '{}');
    SELECT CASE WHEN c.value IS NULL THEN CASE c.field WHEN 'name' THEN 'the name of an endpoint' ELSE c.field END || ' must not be null' ELSE format(c.problem, c.value) END,
           c.hint, CASE WHEN c.value IS NULL THEN 'null_value_not_allowed' ELSE 'invalid_parameter_value' END, c.field
    INTO problem, hint, state, field
    FROM (VALUES
        (s.name ~ '^[A-Za-z0-9_.-]{1,63}$',
         'name', 'invalid endpoint name "%s"', s.name,
         'Use 1 to 63 letters, digits, "_", "-" or ".".'),
        (s.url IS NOT NULL, 'url', NULL, NULL, 'Write the URL as https://host/path.'),
        (s.topics IS NOT NULL, 'topics', NULL, NULL, 'Use topics => ''{*}'' to subscribe to everything.'),
        -- the length of a sealed URL was checked when it was given
        (length(s.url) <= 2048 OR s.url ~ '^[^:]*:/*[^/?#]*/sealed:1:',
         'url', 'url is %s characters long', length(s.url)::text, 'Use at most 2048.'),
        (s.format IN ('standard', 'raw', 'cloudevents', 'cloudevents-binary'),
         'format', 'unknown format "%s"', s.format,
         'Use ''standard'', ''raw'', ''cloudevents'' or ''cloudevents-binary''.'),
        (s.ordering IN ('key', 'none', 'strict'),
         'ordering', 'unknown ordering "%s"', s.ordering, 'Use ''key'', ''none'' or ''strict''.'),
        (s.on_exhausted IN ('skip', 'block'),
         'on_exhausted', 'unknown on_exhausted "%s"', s.on_exhausted, 'Use ''skip'' or ''block''.'),
        (s.max_in_flight BETWEEN 1 AND CASE WHEN s.url ~* '^https?:' THEN 1024 ELSE 10000 END,
         'max_in_flight', 'invalid max_in_flight %s', s.max_in_flight::text,
         CASE WHEN s.url ~* '^https?:' THEN 'Use 1 to 1024 requests.' ELSE 'Use 1 to 10000 events.' END),
        (s.rate_limit IS NULL OR s.rate_limit BETWEEN real '0.0001' AND 1000000,
         'rate_limit', 'invalid rate_limit %s', s.rate_limit::text,
         'Use requests per second, 0.0001 to 1000000; NULL: no limit.'),
        (s.max_attempts IS NULL OR s.max_attempts >= 1,
         'max_attempts', 'invalid max_attempts %s', s.max_attempts::text, 'Use at least 1; NULL: until max_age.'),
        (s.timeout BETWEEN interval '1 ms' AND interval '1 hour',
         'timeout', 'invalid timeout %s', s.timeout::text, 'Use 1 ms to 1 hour.'),
        (s.connect_timeout BETWEEN interval '1 ms' AND interval '1 hour',
         'connect_timeout', 'invalid connect_timeout %s', s.connect_timeout::text, 'Use 1 ms to 1 hour.'),
        (s.max_age BETWEEN interval '1 ms' AND interval '3653 days',
         'max_age', 'invalid max_age %s', s.max_age::text, 'Use 1 ms to 10 years.'),
        (s.backoff_base BETWEEN interval '1 ms' AND interval '1 day',
         'backoff_base', 'invalid backoff_base %s', s.backoff_base::text, 'Use 1 ms to 1 day.'),
        (s.backoff_max BETWEEN s.backoff_base AND interval '30 days',
         'backoff_max', 'invalid backoff_max %s', s.backoff_max::text,
         format('Use at least backoff_base (%s) and at most 30 days.', s.backoff_base)),
        (s.batch_size BETWEEN 1 AND 1000,
         'batch_size', 'invalid batch_size %s', s.batch_size::text, 'Use 1 to 1000 events.'),
        (s.batch_size = 1 OR s.format IN ('standard', 'cloudevents'),
         'batch_size', 'format "%s" has no batches, and batch_size is ' || s.batch_size, s.format,
         'Use format ''standard'' or ''cloudevents'', or batch_size 1.'),
        (s.batch_size = 1 OR COALESCE(s.config ->> 'query' !~ '[{](topic|type|key|tenant)[}]', true),
         'batch_size', 'a batch has no topic, type, key or tenant for the query in config, and batch_size is %s', s.batch_size::text,
         'Use {id} in the query, which is the id of the batch, or batch_size 1.'),
        (s.url !~* '^https?:' OR NOT COALESCE(s.credentials && '{username,token,client_secret}', false)
         OR NOT COALESCE(jsonb_path_exists(s.headers, '$.keyvalue() ? (@.key like_regex "^authorization$" flag "i")', silent => true), false),
         'credentials', 'there are the header Authorization and credentials, of which one is to be sent%s', '',
         'Leave out the header, or username, token and client_secret.'),
        (s.format <> 'cloudevents-binary' OR s.url ~* '^https?:'
         OR sink.binary_mode,
         'format', 'the sink of this URL has no format "%s"', s.format,
         'Use format ''raw'', ''standard'' or ''cloudevents''.'),
        (s.batch_size = 1 OR s.url ~* '^https?:',
         'batch_size', 'batch_size is %s, and batches are for webhooks only', s.batch_size::text,
         'Use batch_size 1. A sink puts events together by itself where that is of use.'),
        (s.batch_wait BETWEEN interval '0' AND interval '1 hour',
         'batch_wait', 'invalid batch_wait %s', s.batch_wait::text, 'Use 0 (a batch is sent at once) to 1 hour.'),
        (s.batch_wait = interval '0' OR s.batch_size > 1,
         'batch_wait', 'batch_wait is %s, and batch_size is 1: one event has no others to wait for',
         s.batch_wait::text, 'Use batch_wait 0, or a batch_size of 2 to 1000.'),
        (s.disable_after IS NULL OR s.disable_after BETWEEN interval '1 ms' AND interval '3653 days',
         'disable_after', 'invalid disable_after %s', s.disable_after::text, 'Use 1 ms to 10 years; 0: never.'),
        (s.challenge IS NULL OR s.challenge IN ('options', 'echo'),
         'challenge', 'unknown challenge "%s"', s.challenge, 'Use ''options'' or ''echo''; NULL: none.'),
        (s.challenge IS NULL OR s.url ~* '^https?:',
         'challenge', 'challenge is "%s", and the endpoint is no webhook', s.challenge, 'Leave out the challenge: it is for webhooks only.'),
        (s.challenge IS DISTINCT FROM 'options' OR current_setting('outbox.webhook_origin', true) <> '',
         'challenge', 'challenge is "%s", and outbox.webhook_origin is empty', s.challenge,
         'Set outbox.webhook_origin to the name by which receivers know this server, or use ''echo''.'),
        (s.log_attempts IS NULL OR s.log_attempts IN ('none', 'failures', 'all', 'answers'),
         'log_attempts', 'unknown log_attempts "%s"', s.log_attempts,
         'Use ''none'', ''failures'', ''all'' or ''answers''; NULL: as outbox.log_attempts says.'),
        (s.label IS NULL OR length(s.label) BETWEEN 1 AND 255,
         'label', 'label is %s characters long', length(s.label)::text, 'Use 1 to 255.'),
        (s.metadata IS NULL OR jsonb_typeof(s.metadata) = 'object',
         'metadata', 'metadata must be a JSON object, and not %s', jsonb_typeof(s.metadata), 'Write it like {"account": 4711}.'),
        (s.metadata IS NULL OR octet_length(s.metadata::text) <= 4096,
         'metadata', 'metadata has %s bytes', octet_length(s.metadata::text)::text, 'Use at most 4096.'))
        c (valid, field, problem, value, hint)
    WHERE c.valid IS NOT TRUE LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION '%', problem USING ERRCODE = state, HINT = hint, COLUMN = field;
    END IF;
    PERFORM outbox.check_tenant(s.tenant);
    PERFORM outbox.check_options(s.url, shown, s.filter, s.headers, s.config, s.credentials);
    PERFORM outbox.check_topics(s.topics);
    RETURN s;
END $$;
COMMENT ON FUNCTION outbox.check_settings IS
'The settings as they are stored, with the defaults of the sink in place of NULL, or an error where no endpoint can have them (22023; 22004: NULL)';

-- Every function that takes the name of an endpoint calls this after it has looked for it.
CREATE FUNCTION outbox.require_endpoint(name text, is_there bool, tenant text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF name IS NULL THEN
        RAISE EXCEPTION 'the name of an endpoint must not be null'
            USING ERRCODE = 'null_value_not_allowed', COLUMN = 'endpoint',
                  HINT = 'Pass its name, as it is listed.';
    ELSIF NOT is_there THEN
        RAISE EXCEPTION 'endpoint "%" does not exist', name
            USING ERRCODE = 'undefined_object', COLUMN = 'endpoint',
                  HINT = CASE WHEN tenant IS NULL THEN 'SELECT name FROM outbox.endpoints lists them.'
                              ELSE 'Use the name of an endpoint that is listed.' END;
    END IF;
END $$;
COMMENT ON FUNCTION outbox.require_endpoint IS
'Raises an error where no endpoint, or none of the tenant, was found by this name (42704; 22004: the name is NULL)';

CREATE FUNCTION outbox.find_endpoint(name text) RETURNS int4
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    id int4;
BEGIN
    SELECT e.endpoint_id INTO id FROM outbox.endpoint_settings e WHERE e.name = find_endpoint.name;
    PERFORM outbox.require_endpoint(name, FOUND);
    PERFORM outbox.make_room();
    RETURN id;
END $$;
COMMENT ON FUNCTION outbox.find_endpoint IS 'The number of an endpoint (42704: no such endpoint)';

-- The request holds, but is not carried out yet.
CREATE FUNCTION outbox.note_inactive(id int4) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    s record;
BEGIN
    SELECT e.name, e.state, e.challenge IS NOT NULL AND e.verified_at IS NULL AS unverified INTO s
    FROM outbox.endpoint_settings e WHERE e.endpoint_id = id;
    IF s.state = 'active' AND s.unverified THEN
        RAISE NOTICE 'endpoint "%" is unverified, and sends nothing until its receiver has answered the challenge', s.name;
    ELSIF s.state <> 'active' THEN
        RAISE NOTICE 'endpoint "%" is %, and sends nothing until it is resumed', s.name, s.state;
    END IF;
END $$;
COMMENT ON FUNCTION outbox.note_inactive IS 'Says so (NOTICE) when an endpoint is paused, disabled or unverified';

-- The settings of an endpoint, locked for a change.
CREATE FUNCTION outbox.lock_endpoint(name text) RETURNS outbox.endpoint_settings
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    s outbox.endpoint_settings;
BEGIN
    PERFORM outbox.make_room();
    SELECT * INTO s FROM outbox.endpoint_settings e WHERE e.name = lock_endpoint.name FOR UPDATE;
    PERFORM outbox.require_endpoint(name, FOUND);
    PERFORM outbox.endpoint_changed(s.endpoint_id);
    RETURN s;
END $$;
COMMENT ON FUNCTION outbox.lock_endpoint IS
'The settings of an endpoint, locked until the transaction ends (42704: no such endpoint)';

-- The worker forgets why it would wait: backoff of the endpoint, or Retry-After.  The
-- caller wakes it.
CREATE FUNCTION outbox.probe(endpoint_id int4) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    INSERT INTO outbox.commands (endpoint_id, action, seq)
    SELECT $1, 'probe', 0 WHERE NOT outbox.is_asked($1, 'probe', 0);
END $$;
COMMENT ON FUNCTION outbox.probe IS 'Has the worker send a request to the endpoint at once, if anything waits for it';

------------------------------------------------------------------------
-- Creating, changing and dropping an endpoint
--
-- Generic plans where a secret is an argument: a plan that auto_explain logs
-- then shows the parameter, and not its value.
------------------------------------------------------------------------

CREATE FUNCTION outbox.create_endpoint(
    name text,
    url text,
    topics text[] DEFAULT '{*}',
    filter jsonpath DEFAULT NULL,
    format text DEFAULT NULL,
    secret text DEFAULT NULL,
    headers jsonb DEFAULT NULL,
    ordering text DEFAULT 'key',
    on_exhausted text DEFAULT 'skip',
    max_in_flight int4 DEFAULT NULL,
    rate_limit float4 DEFAULT NULL,
    timeout interval DEFAULT NULL,
    connect_timeout interval DEFAULT '5 s',
    max_attempts int4 DEFAULT NULL,
    max_age interval DEFAULT '3 days',
    backoff_base interval DEFAULT '1 s',
    backoff_max interval DEFAULT '1 h',
    batch_size int4 DEFAULT 1,
    batch_wait interval DEFAULT '0',
    disable_after interval DEFAULT '5 days',
    start_at text DEFAULT 'now',
    if_not_exists bool DEFAULT false,
    tenant text DEFAULT NULL,
    config jsonb DEFAULT NULL,
    credentials jsonb DEFAULT NULL,
    label text DEFAULT NULL,
    metadata jsonb DEFAULT NULL,
    challenge text DEFAULT NULL,
    log_attempts text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_variable
DECLARE
    s outbox.endpoint_settings;
BEGIN
    s := ROW(NULL, name, tenant, url, topics, filter, format, headers, config,
             outbox.credential_names(credentials), ordering, on_exhausted, max_in_flight,
             rate_limit, timeout, connect_timeout, max_attempts, max_age, backoff_base,
             backoff_max, batch_size, batch_wait, disable_after, 'active', now(), NULL, now(), 1, 1, NULL, NULL,
             label, metadata, NULL, now(), now(), 1, challenge, NULL, 0, log_attempts);
    s := outbox.check_settings(s);
    PERFORM outbox.check_listed(topics);
    secret := outbox.new_secret(s.config, secret);

    PERFORM outbox.refuse_subscribed();
    PERFORM outbox.claim_log();
    SELECT p.snapshot, p.seq_low INTO s.start_snapshot, s.start_seq_low
    FROM outbox.resolve_start(start_at, NULL) p;
    s.endpoint_id := nextval('outbox.endpoint_settings_endpoint_id_seq');
    -- A sealed value is sealed for this number of an endpoint.
    s.url := outbox.seal(s.endpoint_id, 'url', s.url);
    s.headers := outbox.seal(s.endpoint_id, 'header', s.headers);
    INSERT INTO outbox.endpoint_settings OVERRIDING SYSTEM VALUE SELECT s.*
    ON CONFLICT ON CONSTRAINT endpoint_settings_name_key DO NOTHING;
    IF NOT FOUND THEN
        IF if_not_exists AND EXISTS (SELECT 1 FROM outbox.endpoint_settings e
                                     WHERE e.name = s.name AND e.tenant IS NOT DISTINCT FROM s.tenant) THEN
            RAISE NOTICE 'endpoint "%" already exists, skipping', s.name;
            RETURN;
        END IF;
        RAISE EXCEPTION 'endpoint "%" already exists', s.name
            USING ERRCODE = 'duplicate_object', COLUMN = 'name',
                  HINT = CASE WHEN if_not_exists THEN 'It belongs to another tenant, or to none. Use another name.'
                              ELSE 'Use another name, outbox.alter_endpoint(), or if_not_exists => true.' END;
    END IF;
    INSERT INTO outbox.endpoint_secrets (endpoint_id, secret)
    VALUES (s.endpoint_id, outbox.seal(s.endpoint_id, 'secret', secret));
    IF s.credentials IS NOT NULL THEN
        PERFORM outbox.store_credentials(s.endpoint_id, outbox.seal(s.endpoint_id, 'credential', credentials));
    END IF;
    INSERT INTO outbox.subscriptions (endpoint_id, version, topics, filter, read, reading, last_seq)
    VALUES (s.endpoint_id, 1, s.topics, s.filter, s.start_snapshot, NULL, 0);
    PERFORM outbox.endpoint_changed(s.endpoint_id);
END $$;
COMMENT ON FUNCTION outbox.create_endpoint IS
'Subscribes a URL to topics, from the events of this transaction on unless start_at says otherwise';

-- They are written in the declaration of create_endpoint(), or are the sink's.
CREATE FUNCTION outbox.default_settings() RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET "IntervalStyle" = 'postgres'
AS $$
DECLARE
    defaults text;
    result jsonb;
BEGIN
    SELECT string_agg(format('%L, %s', a.argument, d.expression), ', ') INTO defaults
    FROM pg_proc p CROSS JOIN unnest(p.proargnames) WITH ORDINALITY a (argument, number)
    JOIN pg_attribute c ON c.attrelid = 'outbox.endpoint_settings'::regclass AND c.attname = a.argument
    CROSS JOIN LATERAL pg_get_function_arg_default(p.oid, a.number::int4) d (expression)
    WHERE p.oid = 'outbox.create_endpoint'::regproc AND d.expression IS NOT NULL AND a.argument <> 'tenant';
    EXECUTE format('SELECT jsonb_build_object(%s)', defaults) INTO result;
    RETURN result;
END $$;
COMMENT ON FUNCTION outbox.default_settings IS 'The options of an endpoint that have a default, with it (null: the sink''s, or none)';

-- A null in 'given' changes nothing.
CREATE FUNCTION outbox.change_endpoint(name text, given jsonb, reset text[], url text,
    credentials jsonb DEFAULT NULL, secret text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_variable
DECLARE
    old outbox.endpoint_settings := outbox.lock_endpoint(name);
    s outbox.endpoint_settings;
    defaults jsonb;
    option text;
    asks bool;
BEGIN
    given := given - ARRAY(SELECT g.key FROM jsonb_each(given) g WHERE g.value = 'null');
    s := jsonb_populate_record(old, given);
    s.url := COALESCE(url, s.url);
    IF reset <> '{}' THEN
        defaults := outbox.default_settings();
    END IF;
    FOREACH option IN ARRAY COALESCE(reset, '{}') LOOP
        IF given ? option THEN
            RAISE EXCEPTION 'option "%" has a new value and is in reset', option
                USING ERRCODE = 'invalid_parameter_value',
                      HINT = 'Pass the value, or name the option in reset to bring its default back.';
        ELSIF NOT COALESCE(defaults ? option, false) THEN
            RAISE EXCEPTION 'unknown option "%" in reset', option
                USING ERRCODE = 'invalid_parameter_value',
                      HINT = format('Options with a default: %s.',
                                    (SELECT string_agg(k, ', ' ORDER BY k) FROM jsonb_object_keys(defaults) k));
        END IF;
        s := jsonb_populate_record(s, jsonb_build_object(option, defaults -> option));
    END LOOP;
    s := outbox.check_settings(s);
    PERFORM outbox.check_listed(s.topics) WHERE given ? 'topics';
    PERFORM outbox.new_secret(s.config, COALESCE(secret, CASE WHEN s.config ->> 'signature' IS DISTINCT FROM old.config ->> 'signature'
                                                              THEN outbox.endpoint_secret(name) END));
    -- No function shows credentials.  So none sends them to a server of the caller's either.
    IF credentials IS NULL AND s.credentials IS NOT NULL
       AND (url IS NOT NULL OR s.config IS DISTINCT FROM old.config)
       AND outbox.keeps_credentials(outbox.shown(s.endpoint_id, old.url), old.config,
                                    outbox.shown(s.endpoint_id, s.url), s.config) IS NOT TRUE THEN
        RAISE EXCEPTION 'the credentials of endpoint "%" are not for this URL and config', name
            USING ERRCODE = 'invalid_parameter_value', COLUMN = 'credentials',
                  HINT = 'Pass credentials with the new URL or config, the same or others, or reset => ''{credentials}''.';
    END IF;
    IF url IS NOT NULL AND url IS DISTINCT FROM outbox.shown(s.endpoint_id, old.url) THEN
        s.url := outbox.seal(s.endpoint_id, 'url', url);
    ELSE
        s.url := old.url;
    END IF;
    IF given ? 'headers' THEN
        -- As they are shown, they are no others: sealed again, they would be a change.
        s.headers := CASE WHEN s.headers = outbox.shown(s.endpoint_id, old.headers) THEN old.headers
                          ELSE outbox.seal(s.endpoint_id, 'header', s.headers) END;
    END IF;
    -- A proof is one of the URL, given in one way, for a rate.
    asks := s.url IS DISTINCT FROM old.url OR s.challenge IS DISTINCT FROM old.challenge
        OR (s.challenge = 'options' AND COALESCE(s.rate_limit > old.rate_limit, old.rate_limit IS NOT NULL));
    IF asks THEN
        s.verified_at := NULL;
        s.challenges := 0;
    END IF;
    IF (s.url, s.topics, s.filter::text, s.format)
       IS DISTINCT FROM (old.url, old.topics, old.filter::text, old.format) OR (asks AND s.challenge IS NOT NULL) THEN
        s.version := s.version + 1;
    END IF;
    UPDATE outbox.endpoint_settings e
    SET url = s.url, topics = s.topics, filter = s.filter, format = s.format, headers = s.headers,
        ordering = s.ordering, on_exhausted = s.on_exhausted, max_in_flight = s.max_in_flight,
        rate_limit = s.rate_limit, timeout = s.timeout, connect_timeout = s.connect_timeout,
        max_attempts = s.max_attempts, max_age = s.max_age, backoff_base = s.backoff_base,
        backoff_max = s.backoff_max, batch_size = s.batch_size, batch_wait = s.batch_wait,
        disable_after = s.disable_after, config = s.config, credentials = s.credentials,
        label = s.label, metadata = s.metadata, version = s.version,
        log_attempts = s.log_attempts, challenge = s.challenge, verified_at = s.verified_at, challenges = s.challenges,
        state_since = CASE WHEN asks AND s.challenge IS NOT NULL AND e.state = 'active' THEN clock_timestamp() ELSE e.state_since END,
        secrets_set_at = CASE WHEN secret IS NULL AND credentials IS NULL THEN e.secrets_set_at ELSE clock_timestamp() END
    WHERE e.endpoint_id = s.endpoint_id;
    IF (s.url, s.config) IS DISTINCT FROM (old.url, old.config) THEN
        PERFORM outbox.probe(s.endpoint_id);
    END IF;
    IF secret IS NOT NULL THEN
        INSERT INTO outbox.endpoint_secrets AS k (endpoint_id, secret)
        VALUES (s.endpoint_id, outbox.seal(s.endpoint_id, 'secret', secret))
        ON CONFLICT (endpoint_id, part) DO UPDATE SET secret = EXCLUDED.secret, previous = NULL, previous_until = NULL;
    END IF;
    -- Credentials are replaced as a whole.  An endpoint of a dump has no secret either.
    IF s.credentials IS NULL THEN
        PERFORM outbox.store_credentials(s.endpoint_id, NULL) WHERE old.credentials IS NOT NULL;
    ELSIF credentials IS NOT NULL THEN
        INSERT INTO outbox.endpoint_secrets (endpoint_id, secret)
        VALUES (s.endpoint_id, outbox.seal(s.endpoint_id, 'secret', outbox.new_secret(s.config)))
        ON CONFLICT (endpoint_id, part) DO NOTHING;
        PERFORM outbox.store_credentials(s.endpoint_id, outbox.seal(s.endpoint_id, 'credential', credentials));
        PERFORM outbox.probe(s.endpoint_id);
    END IF;
END $$;
COMMENT ON FUNCTION outbox.change_endpoint IS 'Carries out alter_endpoint(), with the options as one object';

CREATE FUNCTION outbox.alter_endpoint(
    name text,
    url text DEFAULT NULL,
    topics text[] DEFAULT NULL,
    filter jsonpath DEFAULT NULL,
    format text DEFAULT NULL,
    secret text DEFAULT NULL,
    headers jsonb DEFAULT NULL,
    ordering text DEFAULT NULL,
    on_exhausted text DEFAULT NULL,
    max_in_flight int4 DEFAULT NULL,
    rate_limit float4 DEFAULT NULL,
    timeout interval DEFAULT NULL,
    connect_timeout interval DEFAULT NULL,
    max_attempts int4 DEFAULT NULL,
    max_age interval DEFAULT NULL,
    backoff_base interval DEFAULT NULL,
    backoff_max interval DEFAULT NULL,
    batch_size int4 DEFAULT NULL,
    batch_wait interval DEFAULT NULL,
    disable_after interval DEFAULT NULL,
    reset text[] DEFAULT '{}',
    config jsonb DEFAULT NULL,
    credentials jsonb DEFAULT NULL,
    label text DEFAULT NULL,
    metadata jsonb DEFAULT NULL,
    challenge text DEFAULT NULL,
    log_attempts text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan SET extra_float_digits = 1 -- for rate_limit as JSON
AS $$
BEGIN
    IF 'null' IN (headers, config, metadata) THEN
        RAISE EXCEPTION '% must be a JSON object',
            CASE WHEN headers = 'null' THEN 'headers' WHEN config = 'null' THEN 'config' ELSE 'metadata' END
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Pass an object, or name the option in reset to bring its default back.';
    END IF;
    PERFORM outbox.change_endpoint(name, jsonb_build_object(
        'topics', topics, 'filter', filter, 'format', format, 'headers', headers, 'ordering', ordering,
        'on_exhausted', on_exhausted, 'max_in_flight', max_in_flight, 'rate_limit', rate_limit,
        'timeout', timeout, 'connect_timeout', connect_timeout, 'max_attempts', max_attempts,
        'max_age', max_age, 'backoff_base', backoff_base, 'backoff_max', backoff_max,
        'batch_size', batch_size, 'batch_wait', batch_wait, 'disable_after', disable_after,
        'config', config, 'credentials', outbox.credential_names(credentials), 'label', label, 'metadata', metadata,
        'challenge', challenge, 'log_attempts', log_attempts),
        reset, url, credentials, secret);
END $$;
COMMENT ON FUNCTION outbox.alter_endpoint IS
'Changes settings: NULL leaves one as it is, reset names options that go back to their default';

CREATE FUNCTION outbox.pause_endpoint(name text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
AS $$
DECLARE
    s outbox.endpoint_settings := outbox.lock_endpoint(name);
BEGIN
    -- also where its tenant paused it: from now on, the tenant does not resume it
    UPDATE outbox.endpoint_settings e
    SET state = 'paused', reason = 'paused by ' || quote_ident(session_user),
        state_since = CASE e.state WHEN 'paused' THEN e.state_since ELSE clock_timestamp() END
    WHERE e.endpoint_id = s.endpoint_id AND (e.state <> 'paused' OR e.reason = 'paused by its tenant');
END $$;
COMMENT ON FUNCTION outbox.pause_endpoint IS 'Sends nothing more to the endpoint until it is resumed';

CREATE FUNCTION outbox.resume_endpoint(name text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
AS $$
DECLARE
    s outbox.endpoint_settings := outbox.lock_endpoint(name);
BEGIN
    UPDATE outbox.endpoint_settings e
    SET state = 'active', state_since = clock_timestamp(), reason = NULL
    WHERE e.endpoint_id = s.endpoint_id AND e.state <> 'active';
    UPDATE outbox.endpoint_settings e SET challenges = 0
    WHERE e.endpoint_id = s.endpoint_id AND e.verified_at IS NULL AND e.challenges > 0;
    PERFORM outbox.probe(s.endpoint_id);
END $$;
COMMENT ON FUNCTION outbox.resume_endpoint IS
'Goes on where a paused or disabled endpoint stopped, and sends a request at once where it is backing off or unverified';

CREATE FUNCTION outbox.seek_endpoint(name text, start_at text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
AS $$
DECLARE
    s outbox.endpoint_settings := outbox.lock_endpoint(name);
BEGIN
    SELECT p.snapshot, p.seq_low INTO s.start_snapshot, s.start_seq_low
    FROM outbox.resolve_start(start_at, NULL) p;

    -- From its present position to the new place it subscribes to nothing.  Nor is it
    -- to get events that wait before its position, unless the new place is before that.
    INSERT INTO outbox.subscriptions (endpoint_id, version, topics, filter, read, reading, last_seq, skipped)
    SELECT p.endpoint_id, s.version + 1, '{}', NULL, p.read, p.reading, p.last_seq, p.pending
    FROM outbox.endpoint_positions p WHERE p.endpoint_id = s.endpoint_id
    UNION ALL SELECT s.endpoint_id, s.version + 2, s.topics, s.filter, s.start_snapshot, NULL, 0, NULL;
    UPDATE outbox.endpoint_settings e
    SET start_snapshot = s.start_snapshot, start_seq_low = s.start_seq_low,
        generation = e.generation + 1, version = e.version + 2
    WHERE e.endpoint_id = s.endpoint_id;
END $$;
COMMENT ON FUNCTION outbox.seek_endpoint(text, text) IS
'Moves the endpoint to another place in the log: now, beginning or a timestamp';

CREATE FUNCTION outbox.seek_endpoint(name text, start_at timestamptz) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp SET "DateStyle" = 'ISO' SET "TimeZone" = 'UTC'
AS $$
SELECT outbox.seek_endpoint(name, start_at::text)
$$;
COMMENT ON FUNCTION outbox.seek_endpoint(text, timestamptz) IS 'Moves the endpoint to the place in the log of this time';

CREATE FUNCTION outbox.drop_endpoint(name text, discard bool DEFAULT false,
    if_exists bool DEFAULT false) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    s outbox.endpoint_settings;
    p record;
    low int8;
    late xid8[];
    undelivered bool;
    too_many bool := false;  -- to judge each by the filter, which may take long
BEGIN
    BEGIN
        s := outbox.lock_endpoint(name);
    EXCEPTION WHEN undefined_object THEN
        IF if_exists IS NOT TRUE THEN
            RAISE;
        END IF;
        RAISE NOTICE 'endpoint "%" does not exist, skipping', name;
        RETURN;
    END;
    IF NOT COALESCE(discard, false) THEN
        IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
            RAISE EXCEPTION 'an endpoint cannot be dropped at isolation level % without "discard"',
                upper(current_setting('transaction_isolation'))
                USING ERRCODE = 'active_sql_transaction',
                      HINT = 'Use READ COMMITTED: it has to see what was emitted a moment ago. Or give its events up with "discard".';
        END IF;
        SELECT * INTO p FROM outbox.endpoint_positions q WHERE q.endpoint_id = s.endpoint_id;
        undelivered := p.pending IS NOT NULL
            OR EXISTS (SELECT 1 FROM outbox.parked k WHERE k.endpoint_id = s.endpoint_id AND k.status <> 'cancelled');
        IF NOT undelivered THEN
            -- Unread events have higher numbers, or are of a transaction that was open then, and may be large. Rows are compared
            -- so that one index alone serves.
            low := LEAST(p.seq, p.seq_low);
            late := ARRAY(SELECT pg_snapshot_xip(p.read) UNION SELECT pg_snapshot_xip(p.reading));
            SELECT count(*) > 1000 INTO too_many
            FROM (SELECT FROM unnest(late) x (xid) CROSS JOIN LATERAL (
                      SELECT FROM outbox.events q WHERE (q.xid, q.seq) > (x.xid, 0) AND (q.xid, q.seq) <= (x.xid, low) OFFSET 0) l
                  LIMIT 1001) n;
        END IF;
        IF NOT (undelivered OR too_many) THEN
            SELECT m.n > 1000 INTO too_many
            FROM (SELECT e.payload, row_number() OVER () AS n
                  FROM (SELECT l.* FROM unnest(late) x (xid) CROSS JOIN LATERAL (
                            SELECT * FROM outbox.events q WHERE (q.xid, q.seq) > (x.xid, 0) AND (q.xid, q.seq) <= (x.xid, low) OFFSET 0) l
                        UNION ALL (SELECT * FROM outbox.events WHERE s.tenant IS NULL AND seq > low OFFSET 0)
                        UNION ALL (SELECT * FROM outbox.events q WHERE q.tenant IS NOT NULL AND (q.tenant, q.seq) > (s.tenant, low)
                                   AND q.tenant <= s.tenant OFFSET 0)) e
                  WHERE NOT pg_visible_in_snapshot(outbox.log_xid(e.epoch, e.xid), p.read)
                  AND NOT (p.reading IS NOT NULL AND e.seq <= p.last_seq
                           AND pg_visible_in_snapshot(outbox.log_xid(e.epoch, e.xid), p.reading))
                  AND (e.payload IS NOT NULL OR e.body IS NOT NULL)
                  AND (s.tenant IS NULL OR s.tenant = e.tenant) AND outbox.topic_in(e.topic, s.topics)) m
            WHERE m.n > 1000 OR outbox.filter_matches(m.payload, s.filter) IS NOT FALSE LIMIT 1;
            undelivered := FOUND;
        END IF;
        IF undelivered OR too_many THEN
            RAISE EXCEPTION 'endpoint "%" still has undelivered events', name
                USING ERRCODE = 'object_in_use',
                      HINT = CASE WHEN too_many THEN 'More than 1000 events follow its position, or are of transactions that were open there. '
                                                     'Wait until its position has moved on, '
                                  ELSE 'Wait until none is pending, retrying, blocked or dead, ' END
                             || 'or give them up with "discard".';
        END IF;
    END IF;
    DELETE FROM outbox.endpoint_settings e WHERE e.endpoint_id = s.endpoint_id;
END $$;
COMMENT ON FUNCTION outbox.drop_endpoint IS
'Removes an endpoint that has nothing undelivered, or, with discard, any endpoint';
