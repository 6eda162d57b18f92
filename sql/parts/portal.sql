------------------------------------------------------------------------
-- Portal: functions for the customers of an application.
--
-- Each function takes the tenant first.  An object of another tenant, or of none,
-- does not exist for it.  A role that may call these functions names any tenant: it is
-- the application's, which knows its customer.
------------------------------------------------------------------------

CREATE TABLE outbox.portal_limits_here (
    tenant          text COLLATE "C" PRIMARY KEY,  -- '': all tenants without a row of their own
    max_endpoints   int4,
    settings        text[],
    max_calls       int4,                          -- in an hour
    spent           float8 NOT NULL DEFAULT 0,     -- calls of the last hour, as of counted_at
    counted_at      timestamptz NOT NULL DEFAULT now(),
    challenge       text                           -- of endpoints whose URL they choose
);
COMMENT ON TABLE outbox.portal_limits_here IS
'Limits of tenants, where outbox.set_portal_limits() set any (NULL: as for all tenants), and their calls';

CREATE FUNCTION outbox.portal_limits(tenant text) RETURNS jsonb
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox.check_tenant(tenant);
    RETURN (
        SELECT jsonb_build_object(
            'max_endpoints', COALESCE(own.max_endpoints, common.max_endpoints, 10),
            'settings', COALESCE(own.settings, common.settings, '{url,topics,filter,format,headers,rate_limit,label,metadata}'),
            'max_calls', COALESCE(own.max_calls, common.max_calls, 600),
            'challenge', NULLIF(COALESCE(own.challenge, common.challenge), 'none'))
        FROM (SELECT) one
        LEFT JOIN outbox.portal_limits_here own ON own.tenant = portal_limits.tenant
        LEFT JOIN outbox.portal_limits_here common ON common.tenant = '');
END $$;
COMMENT ON FUNCTION outbox.portal_limits IS
'How many endpoints a tenant may have, which settings it may choose, how many calls in an hour may change '
'something, and which challenge its receivers have to answer (NULL: a tenant without limits of its own)';

-- NULL leaves a value as it is.
CREATE FUNCTION outbox.set_portal_limits(tenant text DEFAULT NULL, max_endpoints int4 DEFAULT NULL,
    settings text[] DEFAULT NULL, reset bool DEFAULT false, max_calls int4 DEFAULT NULL,
    challenge text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    setting text;
BEGIN
    PERFORM outbox.check_tenant(tenant);
    IF max_endpoints < 0 THEN
        RAISE EXCEPTION 'invalid max_endpoints %', max_endpoints
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Use 0, which forbids new endpoints, or more.';
    ELSIF max_calls < 0 THEN
        RAISE EXCEPTION 'invalid max_calls %', max_calls
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Use 0, which forbids all changes, or more.';
    ELSIF challenge NOT IN ('options', 'echo', 'none') THEN
        RAISE EXCEPTION 'unknown challenge "%"', challenge
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Use ''options'', ''echo'' or ''none''.';
    ELSIF challenge = 'options' AND current_setting('outbox.webhook_origin', true) = '' THEN
        RAISE EXCEPTION 'challenge is "options", and outbox.webhook_origin is empty'
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Set outbox.webhook_origin to the name by which receivers know this server, or use ''echo''.';
    END IF;
    FOREACH setting IN ARRAY COALESCE(settings, '{}') LOOP
        PERFORM outbox.check_portal_setting(setting);
    END LOOP;
    IF reset THEN
        DELETE FROM outbox.portal_limits_here l WHERE l.tenant = COALESCE(set_portal_limits.tenant, '');
    END IF;
    IF num_nonnulls(max_endpoints, settings, max_calls, challenge) > 0 THEN
        INSERT INTO outbox.portal_limits_here AS l (tenant, max_endpoints, settings, max_calls, challenge)
        VALUES (COALESCE(tenant, ''), max_endpoints, settings, max_calls, challenge)
        ON CONFLICT ON CONSTRAINT portal_limits_here_pkey DO UPDATE
        SET max_endpoints = COALESCE(EXCLUDED.max_endpoints, l.max_endpoints),
            settings = COALESCE(EXCLUDED.settings, l.settings),
            max_calls = COALESCE(EXCLUDED.max_calls, l.max_calls),
            challenge = COALESCE(EXCLUDED.challenge, l.challenge);
    END IF;
    PERFORM outbox.note_change(tenant, '', 'limits', '{}', jsonb_strip_nulls(jsonb_build_object(
        'max_endpoints', max_endpoints, 'settings', settings, 'max_calls', max_calls, 'challenge', challenge,
        'reset', NULLIF(reset, false))));
END $$;
COMMENT ON FUNCTION outbox.set_portal_limits IS
'Limits the use of the portal by a tenant (tenant NULL: by all that have no limits of their own)';

CREATE FUNCTION outbox.check_portal_setting(setting text, allowed text[] DEFAULT NULL) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    options text[];
BEGIN
    SELECT array_agg(a.argument ORDER BY a.number) INTO options
    FROM pg_proc p CROSS JOIN unnest(p.proargnames) WITH ORDINALITY a (argument, number)
    JOIN pg_attribute c ON c.attrelid = 'outbox.endpoint_settings'::regclass AND c.attname = a.argument
    WHERE p.oid = 'outbox.alter_endpoint'::regproc AND a.argument NOT IN ('name', 'challenge');
    IF setting IS NULL OR setting <> ALL (COALESCE(allowed, options)) THEN
        RAISE EXCEPTION '%', format(CASE WHEN setting = ANY (options) THEN 'setting "%s" is not for tenants to choose'
                                         ELSE 'unknown setting "%s"' END, setting)
            USING ERRCODE = 'invalid_parameter_value', COLUMN = COALESCE(NULLIF(setting, ''), 'settings'),
                  HINT = COALESCE('Use some of: ' || NULLIF(array_to_string(COALESCE(allowed, options), ', '), '') || '.', 'Ask the operator.');
    END IF;
END $$;
COMMENT ON FUNCTION outbox.check_portal_setting IS 'Refuses a name that is no setting of an endpoint, or none that is allowed (22023)';

------------------------------------------------------------------------
-- Checks
------------------------------------------------------------------------

-- Sinks are for the operator: they may be in its own network, or need its credentials.
CREATE FUNCTION outbox.check_portal(url text, topics text[]) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF url !~* '^https?:' THEN
        RAISE EXCEPTION 'the endpoint of a tenant must be a webhook'
            USING ERRCODE = 'invalid_parameter_value', COLUMN = 'url', HINT = 'Use a URL that begins with https://.';
    ELSIF octet_length(array_to_string(topics, ',')) > 8192 THEN
        RAISE EXCEPTION 'the patterns have % bytes', octet_length(array_to_string(topics, ','))
            USING ERRCODE = 'program_limit_exceeded', COLUMN = 'topics',
                  HINT = 'Use at most 8192 bytes, commas included. A pattern like "order.*" stands for many topics.';
    END IF;
END $$;
COMMENT ON FUNCTION outbox.check_portal IS
'Refuses a URL of another sink than HTTP (22023), and more patterns than a tenant may give (54000)';

-- The rows that calls leave behind are bounded by their number.  The calls of a tenant run one after
-- the other: the lock is one of a row, which no other role can take.
CREATE FUNCTION outbox.portal_spend(tenant text, calls int4 DEFAULT 1) RETURNS jsonb
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
    limits CONSTANT jsonb := outbox.portal_limits(outbox.check_tenant(tenant, true));
    most CONSTANT int4 := limits -> 'max_calls';
    spent float8;
BEGIN
    INSERT INTO outbox.portal_limits_here AS here (tenant, spent, counted_at) VALUES (tenant, calls, clock_timestamp())
    ON CONFLICT ON CONSTRAINT portal_limits_here_pkey DO UPDATE
    SET spent = GREATEST(LEAST(here.spent, most) - most / 3600.0
                         * GREATEST(extract(epoch FROM clock_timestamp() - here.counted_at), 0), 0) + calls,
        counted_at = clock_timestamp()
    RETURNING here.spent INTO spent;
    IF spent > most THEN
        RAISE EXCEPTION 'tenant "%" may change something % times in an hour', tenant, most
            USING ERRCODE = 'configuration_limit_exceeded',
                  HINT = COALESCE('Try again in ' || ceil((spent - most) * 3600 / NULLIF(most, 0)) || ' s.', 'Ask the operator.');
    END IF;
    RETURN limits;
END $$;
COMMENT ON FUNCTION outbox.portal_spend IS
'Counts a call of a tenant that changes something, or as many calls as it stands for, and returns the limits of the tenant '
'(53400: too many calls)';

-- A challenge is a request to a server that may be a stranger's.  So many follow at most, and each
-- counts as a call.
CREATE FUNCTION outbox.portal_spend_challenges(tenant text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- Not more than the tenant has in an hour: else no endpoint could be created with fewer.
    PERFORM outbox.portal_spend(tenant, LEAST(9, (outbox.portal_limits(tenant) ->> 'max_calls')::int4 - 1));
END $$;
COMMENT ON FUNCTION outbox.portal_spend_challenges IS
'Counts the requests of a call that has a receiver asked for its proof (53400: too many calls)';

-- The row is locked, so that the endpoint is still the tenant's when it is changed.
CREATE FUNCTION outbox.portal_own(tenant text, name text, undoes bool DEFAULT false, version int8 DEFAULT NULL)
RETURNS outbox.endpoint_settings
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
AS $$
DECLARE
    s outbox.endpoint_settings;
BEGIN
    PERFORM outbox.portal_spend(tenant);
    SELECT * INTO s FROM outbox.endpoint_settings e
    WHERE e.name = portal_own.name AND e.tenant = portal_own.tenant FOR UPDATE;
    PERFORM outbox.require_endpoint(name, FOUND, tenant);
    -- A tenant does not undo an operator's decision, neither by going on nor by making
    -- the endpoint anew.
    IF undoes AND s.state = 'paused' AND s.reason IS DISTINCT FROM 'paused by its tenant' THEN
        RAISE EXCEPTION 'endpoint "%" was paused by the operator', name
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Ask the operator to resume it.';
    ELSIF version <> s.revision THEN
        RAISE EXCEPTION 'endpoint "%" has version %, and not %', name, s.revision, version
            USING ERRCODE = 'OX412', COLUMN = 'version', HINT = 'It was changed meanwhile. Read it again.';
    END IF;
    RETURN s;
END $$;
COMMENT ON FUNCTION outbox.portal_own IS
'The endpoint of a tenant, locked, for a call that is counted (42704: it has none of this name; 55000: the operator '
'paused it, and the call undoes that; OX412: it has another version)';

-- The text of 1e131000 has 131,001 characters, so a few kB with such numbers are hundreds of MB.
CREATE FUNCTION outbox.check_portal_numbers(value jsonb, argument text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF EXISTS (SELECT FROM jsonb_path_query(value, 'strict $.** ? (@.type() == "number")', silent => true) n
               WHERE abs(n::numeric) > 1e50 OR scale(n::numeric) > 50) THEN
        RAISE EXCEPTION 'a number in % has too many digits', argument
            USING ERRCODE = 'invalid_parameter_value', COLUMN = argument, HINT = 'Write it as a string.';
    END IF;
END $$;
COMMENT ON FUNCTION outbox.check_portal_numbers IS 'Refuses numbers with more digits than a tenant may give (22023)';

-- The settings as alter_endpoint() takes them. A setting that is null goes back to its default.
CREATE FUNCTION outbox.portal_settings(limits jsonb, settings jsonb, OUT given outbox.endpoint_settings, OUT reset text[])
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    setting text;
    value jsonb;
    allowed CONSTANT text[] := ARRAY(SELECT jsonb_array_elements_text(limits -> 'settings'));
BEGIN
    IF settings IS NULL OR jsonb_typeof(settings) <> 'object' THEN
        RAISE EXCEPTION 'settings must be a JSON object'
            USING ERRCODE = 'invalid_parameter_value', COLUMN = 'settings', HINT = 'Write it like {"topics": ["order.*"]}.';
    ELSIF pg_column_size(settings) > 32768 THEN
        RAISE EXCEPTION 'the settings take % bytes', pg_column_size(settings)
            USING ERRCODE = 'program_limit_exceeded', COLUMN = 'settings', HINT = 'Use at most 32768 bytes for all of them.';
    END IF;
    PERFORM outbox.check_portal_numbers(settings, 'settings');
    FOR setting, value IN SELECT * FROM jsonb_each(settings) LOOP
        IF setting <> ALL (allowed) THEN
            PERFORM outbox.check_portal_setting(setting, allowed);
        END IF;
        -- PostgreSQL compiles a regular expression where it reads it, which can take seconds.
        IF setting = 'filter'
           AND regexp_replace(value #>> '{}', E'"([^"\\\\]|\\\\.)*"', '', 'g') ~* E'like_regex|[/\\\\]' THEN
            RAISE EXCEPTION 'invalid filter "%": it has a regular expression, or "/" or a backslash outside of quotes',
                left(value #>> '{}', 1000)
                USING ERRCODE = 'invalid_parameter_value', COLUMN = 'filter',
                      HINT = 'A filter compares parts of the payload with constants, like ''$.total > 100''.';
        -- A file would be one of the operator's.
        ELSIF setting = 'credentials' AND value <> 'null'
              AND (jsonb_typeof(value) <> 'object'
                   OR jsonb_path_exists(value, 'strict $.* ? (@.type() != "string")', silent => true)) THEN
            RAISE EXCEPTION 'credentials must be a JSON object of strings'
                USING ERRCODE = 'invalid_parameter_value', COLUMN = 'credentials',
                      HINT = 'Write each as it is, like {"credentials": {"token": "value"}}.';
        ELSIF setting = 'url' AND value = 'null' THEN
            RAISE EXCEPTION 'setting "url" has no default'
                USING ERRCODE = 'invalid_parameter_value', COLUMN = 'url', HINT = 'Pass a URL, or leave "url" out: then it stays.';
        END IF;
        BEGIN
            IF jsonb_path_exists(value, 'strict $[*] ? (@.type() != "string")', silent => true)
               AND setting = 'topics' THEN
                RAISE EXCEPTION 'a pattern must be a string' USING ERRCODE = 'invalid_parameter_value';
            END IF;
            given := jsonb_populate_record(given, jsonb_build_object(
                setting, CASE setting WHEN 'credentials' THEN to_jsonb(outbox.credential_names(NULLIF(value, 'null'))) ELSE value END));
        EXCEPTION
            WHEN data_exception OR syntax_error OR statement_too_complex THEN
                RAISE EXCEPTION 'invalid %', setting
                    USING ERRCODE = 'invalid_parameter_value', COLUMN = setting, DETAIL = SQLERRM,
                          HINT = (SELECT format('Write it like {"%s": %s}.', setting,
                                                CASE a.atttypid
                                                    WHEN 'text[]'::regtype THEN '["order.*"]'
                                                    WHEN 'jsonpath'::regtype THEN '"$.total > 100"'
                                                    WHEN 'text'::regtype THEN '"text"'
                                                    WHEN 'jsonb'::regtype THEN '{"name": "value"}' ELSE '10' END)
                                  FROM pg_attribute a
                                  WHERE a.attrelid = 'outbox.endpoint_settings'::regclass AND a.attname = setting);
        END;
    END LOOP;
    PERFORM outbox.check_portal(settings ->> 'url', given.topics);
    SELECT COALESCE(array_agg(s.key), '{}') INTO reset FROM jsonb_each(settings) s WHERE s.value = 'null';
END $$;
COMMENT ON FUNCTION outbox.portal_settings IS
'The settings that a tenant gave (22023: no such setting, or one that it may not choose; 54000: too many patterns)';

-- Hints of an operator's functions are for operators.
CREATE FUNCTION outbox.portal_hint(field text, hint text) RETURNS text
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN hint !~ '^$|outbox[.]|=>' THEN hint ELSE
       CASE field WHEN 'url' THEN 'Use a URL that begins with https://, with an address that is public.'
                  WHEN 'name' THEN 'Use another name, or none: then one is made.'
                  WHEN 'credentials' THEN 'Pass "credentials" with it, the same or others, or null.'
                  WHEN 'payload' THEN 'Use a smaller payload, with fewer objects and arrays in one another.'
                  WHEN 'topic' THEN 'Use a topic of the catalogue.'
                  WHEN '' THEN 'Ask the operator.'
                  ELSE 'Use another value.' END END;
COMMENT ON FUNCTION outbox.portal_hint IS 'The hint of an error about this field, as a customer gets it';

-- Operators, their roles and their settings stay unnamed.
CREATE FUNCTION outbox.portal_reason(reason text) RETURNS text
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN reason ~ '^paused by (?!its tenant$)' THEN 'paused by the operator'
            WHEN reason ~ '^(a )?sealed|^outbox[.]|^\w+: (the file |outbox[.])' THEN 'held by the operator'
            WHEN strpos(reason, 'outbox.') > 0
            THEN replace(replace(regexp_replace(reason, ', and (not in )?outbox[.]allowed_networks( does not name it)?', ''),
                                 'goes to addresses in outbox.allowed_networks only', 'is not allowed'),
                         'outbox.max_backlog_size', 'the operator allows')
            ELSE reason END;
COMMENT ON FUNCTION outbox.portal_reason IS 'Why an endpoint is in its state, or how an attempt failed, as a customer gets it';

-- A private key signs for the operator: a customer gets the public one.
CREATE FUNCTION outbox.portal_key(name text) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    secret text;
BEGIN
    secret := outbox.endpoint_secret(name);
    RETURN CASE WHEN left(secret, 5) = 'whsk_' THEN jsonb_build_object('secret', NULL, 'public_key', outbox.endpoint_public_key(name))
                ELSE jsonb_build_object('secret', secret, 'public_key', NULL) END;
EXCEPTION WHEN object_not_in_prerequisite_state THEN
    RAISE EXCEPTION '%', SQLERRM USING ERRCODE = SQLSTATE, HINT = 'Ask the operator.';
END $$;
COMMENT ON FUNCTION outbox.portal_key IS
'The key that verifies requests of an endpoint whose tenant was checked';

CREATE FUNCTION outbox.portal_change(tenant text, name text, settings jsonb, url text, limits jsonb) RETURNS jsonb
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_variable
DECLARE
    p record;
    common CONSTANT text[] := '{topics,filter,format,headers,rate_limit,config,credentials,label,metadata}';
    s outbox.endpoint_settings;
    challenge CONSTANT text := limits ->> 'challenge';
    credentials CONSTANT jsonb := NULLIF(settings -> 'credentials', 'null');
    field text;
    hint text;
BEGIN
    SELECT * INTO p FROM outbox.portal_settings(limits, settings);
    BEGIN
        IF url IS NOT NULL THEN
            PERFORM outbox.check_portal(url, NULL);
            -- First all that may fail: no error gives back the number that create_endpoint() draws.
            IF challenge IS NOT NULL THEN
                PERFORM outbox.portal_spend_challenges(tenant);
            END IF;
            IF settings - common <> '{}' THEN
                s := jsonb_populate_record(p.given, outbox.default_settings() - ARRAY(SELECT jsonb_object_keys(jsonb_strip_nulls(settings))));
                s.name := name;
                s.url := url;
                PERFORM outbox.check_settings(s);
            END IF;
            -- NULL is the default of all these but the topics
            PERFORM outbox.create_endpoint(name, url, tenant => tenant, topics => COALESCE((p.given).topics, '{*}'),
                                           filter => (p.given).filter, format => (p.given).format,
                                           headers => (p.given).headers, rate_limit => (p.given).rate_limit,
                                           config => (p.given).config, credentials => credentials,
                                           label => (p.given).label, metadata => (p.given).metadata,
                                           challenge => challenge);
            settings := settings - common;
        ELSIF settings ?| '{topics,filter}'
              AND (SELECT count(*) FROM outbox.subscriptions v JOIN outbox.endpoint_settings e USING (endpoint_id)
                   WHERE e.name = portal_change.name) >= 100 THEN
            RAISE EXCEPTION 'topics and filter of endpoint "%" have changed 100 times', name
                USING ERRCODE = 'program_limit_exceeded',
                      HINT = 'Create another endpoint. What this one was subscribed to is kept as long as its events.';
        END IF;
        IF settings ? 'url' THEN
            -- As it is shown, it is no other URL, so no other server has to prove anything.  Asked in an IF of its own,
            -- because other calls need no statement for it.
            IF settings ->> 'url' = (SELECT e.url FROM outbox.endpoints e WHERE e.name = portal_change.name) THEN
                settings := settings - 'url';
            END IF;
        END IF;
        PERFORM outbox.change_endpoint(name, settings - 'url' || jsonb_build_object(
                                           'credentials', (p.given).credentials,
                                           'challenge', CASE WHEN settings ? 'url' THEN challenge END),
                                       p.reset, settings ->> 'url', credentials) WHERE settings <> '{}';
    EXCEPTION
        WHEN data_exception OR duplicate_object OR object_not_in_prerequisite_state THEN
            GET STACKED DIAGNOSTICS field = COLUMN_NAME, hint = PG_EXCEPTION_HINT;
            IF field = 'secret' THEN
                field := 'config';
                hint := 'Create another endpoint with this signature: the secret of this one does not fit.';
            ELSIF hint = outbox.portal_hint(field, hint) THEN
                RAISE;
            END IF;
            RAISE EXCEPTION '%', regexp_replace(SQLERRM, 'plain http is allowed .*', 'plain http is not allowed')
                USING ERRCODE = SQLSTATE, COLUMN = field, HINT = outbox.portal_hint(field, hint);
    END;
    IF url IS NULL AND settings ?| '{url,rate_limit}' THEN
        PERFORM outbox.portal_spend_challenges(tenant) FROM outbox.endpoint_settings e
        WHERE e.name = portal_change.name AND e.challenge IS NOT NULL AND e.verified_at IS NULL;
    END IF;
    RETURN outbox.portal_endpoints(tenant, name);
END $$;
COMMENT ON FUNCTION outbox.portal_change IS
'Creates an endpoint with this URL, or (NULL) changes settings of one whose tenant was checked, and returns it';

------------------------------------------------------------------------
-- Endpoints of a tenant
------------------------------------------------------------------------

-- One form of an endpoint for all functions of the portal.  Times are in UTC and intervals in
-- seconds.  Its settings can be given to outbox.portal_alter_endpoint() again.  Its plan takes
-- longer to make than to run, so a session makes it once.
CREATE FUNCTION outbox.portal_endpoints(tenant text, name text DEFAULT NULL) RETURNS SETOF jsonb
LANGUAGE plpgsql STABLE SECURITY DEFINER ROWS 10 SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET jit = off SET "TimeZone" = 'UTC' SET extra_float_digits = 1
AS $$
#variable_conflict use_column
DECLARE
    chosen CONSTANT jsonb := outbox.portal_limits(outbox.check_tenant($1, true)) -> 'settings';
BEGIN
    RETURN QUERY
    SELECT to_jsonb(e) - ('{tenant,credentials}'::text[] || CASE WHEN NOT chosen ? 'config' THEN 'config' END)
        || CASE WHEN chosen ? 'credentials' THEN jsonb_build_object('credential_names', e.credentials) ELSE '{}' END
        || (SELECT jsonb_object_agg(i.key, COALESCE(date_part('epoch', i.value), 0))
            FROM (VALUES ('timeout', e.timeout), ('connect_timeout', e.connect_timeout), ('max_age', e.max_age),
                         ('backoff_base', e.backoff_base), ('backoff_max', e.backoff_max), ('batch_wait', e.batch_wait),
                         ('disable_after', e.disable_after)) i (key, value))
        || jsonb_build_object(
            'state', t.state, 'state_since', t.state_since, 'reason', outbox.portal_reason(t.reason),
            -- an estimate counts the events of other tenants
            'pending', CASE WHEN t.pending_exact THEN t.pending END,
            'retrying', t.retrying, 'blocked', t.blocked, 'dead', t.dead, 'delivered', t.delivered,
            'failed_attempts', t.failed_attempts, 'next_attempt_at', t.next_attempt_at,
            'last_success_at', t.last_success_at, 'last_error', outbox.portal_reason(t.last_error),
            'former_secret_until', (SELECT k.previous_until FROM outbox.endpoint_secrets k
                                    WHERE k.endpoint_id = t.endpoint_id AND k.part = 0 AND k.previous_until > clock_timestamp()
                                    -- there is a signature, and it has a place for another one
                                    AND COALESCE(e.config ->> 'signature_header', CASE e.config ->> 'signature' WHEN 'none' THEN '' ELSE 'its' END) <> ''
                                    AND COALESCE(e.config ->> 'signature_next', CASE WHEN e.config ->> 'signature' IN ('github', 'shopify', 'slack', 'none')
                                                                                     THEN '' ELSE 'its' END) <> ''))
    FROM outbox.endpoints e JOIN outbox.endpoint_figures t ON t.endpoint = e.name
    WHERE e.tenant = $1 AND t.tenant = $1 AND ($2 IS NULL OR e.name = $2)
    ORDER BY e.name;
    IF $2 IS NOT NULL THEN
        PERFORM outbox.require_endpoint($2, FOUND, $1);
    END IF;
END $$;
COMMENT ON FUNCTION outbox.portal_endpoints IS
'The endpoints of a tenant, or one of them, with their settings and how they are doing';

CREATE FUNCTION outbox.portal_create_endpoint(tenant text, url text, settings jsonb DEFAULT '{}',
    name text DEFAULT NULL, idempotency_key text DEFAULT NULL) RETURNS jsonb
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_variable
DECLARE
    called text := COALESCE(name, 'ep-' || replace(outbox.new_event_id()::text, '-', ''));
    earlier text;
    limits CONSTANT jsonb := outbox.portal_spend(tenant);
    most CONSTANT int4 := limits -> 'max_endpoints';
    created jsonb;
BEGIN
    PERFORM outbox.refuse_snapshot('outbox.portal_create_endpoint()');
    IF url IS NULL THEN
        RAISE EXCEPTION 'url must not be null'
            USING ERRCODE = 'null_value_not_allowed', COLUMN = 'url', HINT = 'Write the URL as https://host/path.';
    ELSIF octet_length(idempotency_key) NOT BETWEEN 1 AND 255 THEN
        RAISE EXCEPTION 'idempotency_key has % bytes', octet_length(idempotency_key)
            USING ERRCODE = 'invalid_parameter_value', COLUMN = 'idempotency_key', HINT = 'Use 1 to 255.';
    ELSIF settings ? 'url' THEN
        RAISE EXCEPTION 'the URL is in settings, too'
            USING ERRCODE = 'invalid_parameter_value', COLUMN = 'url', HINT = 'Pass it once.';
    END IF;
    -- One at a time since the call was counted, so that two do not both become the last one
    SELECT e.name INTO earlier FROM outbox.endpoint_settings e
    WHERE e.tenant = portal_create_endpoint.tenant AND e.idempotency_key = portal_create_endpoint.idempotency_key;
    IF FOUND THEN
        RETURN outbox.portal_endpoints(tenant, earlier) || outbox.portal_key(earlier);
    END IF;
    IF (SELECT count(*) FROM outbox.endpoint_settings e WHERE e.tenant = portal_create_endpoint.tenant) >= most THEN
        RAISE EXCEPTION 'tenant "%" may have % endpoints at most', tenant, most
            USING ERRCODE = 'program_limit_exceeded', HINT = 'Drop one that is not used.';
    END IF;
    IF EXISTS (SELECT FROM outbox.endpoint_settings e WHERE e.name = called) THEN
        RAISE EXCEPTION 'endpoint "%" already exists', called
            USING ERRCODE = 'duplicate_object', COLUMN = 'name', HINT = outbox.portal_hint('name', '');
    END IF;
    created := outbox.portal_change(tenant, called, settings, url, limits);
    UPDATE outbox.endpoint_settings e SET idempotency_key = portal_create_endpoint.idempotency_key
    WHERE e.name = called AND portal_create_endpoint.idempotency_key IS NOT NULL;
    RETURN created || outbox.portal_key(called);
END $$;
COMMENT ON FUNCTION outbox.portal_create_endpoint IS
'Creates an endpoint of a tenant, within its limits, and returns it with its secret';

CREATE FUNCTION outbox.portal_alter_endpoint(tenant text, name text, settings jsonb, version int8 DEFAULT NULL)
RETURNS jsonb
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    s outbox.endpoint_settings := outbox.portal_own(tenant, name, version => version);
BEGIN
    RETURN outbox.portal_change(tenant, name, settings, NULL, outbox.portal_limits(tenant));
END $$;
COMMENT ON FUNCTION outbox.portal_alter_endpoint IS
'Changes settings that a tenant may choose of its endpoint (null: back to the default), and returns it';

CREATE FUNCTION outbox.portal_pause_endpoint(tenant text, name text) RETURNS jsonb
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
AS $$
DECLARE
    s outbox.endpoint_settings := outbox.portal_own(tenant, name);
BEGIN
    IF s.state <> 'paused' THEN
        PERFORM outbox.lock_endpoint(name);
        UPDATE outbox.endpoint_settings e
        SET state = 'paused', reason = 'paused by its tenant', state_since = clock_timestamp()
        WHERE e.endpoint_id = s.endpoint_id;
    END IF;
    RETURN outbox.portal_endpoints(tenant, name);
END $$;
COMMENT ON FUNCTION outbox.portal_pause_endpoint IS
'Sends nothing more to an endpoint of a tenant until it is resumed, and returns it';

CREATE FUNCTION outbox.portal_resume_endpoint(tenant text, name text) RETURNS jsonb
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
AS $$
DECLARE
    s outbox.endpoint_settings;
BEGIN
    s := outbox.portal_own(tenant, name, true);
    IF s.challenge IS NOT NULL AND s.verified_at IS NULL THEN
        PERFORM outbox.portal_spend_challenges(tenant);
    END IF;
    PERFORM outbox.resume_endpoint(name);
    RETURN outbox.portal_endpoints(tenant, name);
END $$;
COMMENT ON FUNCTION outbox.portal_resume_endpoint IS
'Goes on with an endpoint that its tenant paused or that was disabled, and returns it (55000: the operator paused it)';

CREATE FUNCTION outbox.portal_drop_endpoint(tenant text, name text, discard bool DEFAULT false) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
AS $$
BEGIN
    PERFORM outbox.portal_own(tenant, name, true);
    PERFORM outbox.drop_endpoint(name, discard);
END $$;
COMMENT ON FUNCTION outbox.portal_drop_endpoint IS
'Removes an endpoint of a tenant that has nothing undelivered, or, with discard, any of its endpoints '
'(55000: the operator paused it)';

-- One query, and no lock: a read-only transaction may call it, and it returns
-- the secret of the endpoint whose tenant was compared.
CREATE FUNCTION outbox.portal_secret(tenant text, name text) RETURNS jsonb
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    result jsonb;
BEGIN
    PERFORM outbox.check_tenant(tenant, true);
    SELECT outbox.portal_key(e.name) INTO result FROM outbox.endpoint_settings e
    WHERE e.name = portal_secret.name AND e.tenant = portal_secret.tenant;
    PERFORM outbox.require_endpoint(name, FOUND, tenant);
    RETURN result;
END $$;
COMMENT ON FUNCTION outbox.portal_secret IS 'The secret, or the public key, that requests to an endpoint of a tenant are verified with';

CREATE FUNCTION outbox.portal_rotate_secret(tenant text, name text, grace interval DEFAULT '24 hours', version int8 DEFAULT NULL)
RETURNS jsonb
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
AS $$
BEGIN
    PERFORM outbox.portal_own(tenant, name, version => version);
    PERFORM outbox.rotate_secret(name, grace);
    RETURN outbox.portal_endpoints(tenant, name) || outbox.portal_key(name);
EXCEPTION WHEN object_not_in_prerequisite_state THEN
    RAISE EXCEPTION '%', SQLERRM USING ERRCODE = SQLSTATE, HINT = 'Ask the operator.';
END $$;
COMMENT ON FUNCTION outbox.portal_rotate_secret IS
'Gives an endpoint of a tenant another secret, and returns it with that, while requests carry both signatures during grace';

CREATE FUNCTION outbox.portal_noted(change jsonb) RETURNS jsonb
LANGUAGE sql STABLE
RETURN (SELECT COALESCE(jsonb_object_agg(c.key, CASE
            WHEN c.key IN ('timeout', 'connect_timeout', 'max_age', 'backoff_base', 'backoff_max', 'batch_wait', 'disable_after')
            THEN to_jsonb(date_part('epoch', (c.value #>> '{}')::interval))
            WHEN c.key IN ('from_time', 'to_time', 'since', 'verified_at') THEN to_jsonb((c.value #>> '{}')::timestamptz)
            WHEN c.key = 'reason' THEN to_jsonb(outbox.portal_reason(c.value #>> '{}'))
            ELSE c.value END), '{}')
        FROM jsonb_each(change) c);
COMMENT ON FUNCTION outbox.portal_noted IS
'An entry of outbox.endpoint_audit for a customer, with intervals in seconds, and times in the session''s time zone';

-- A page reads so many rows at most, whatever endpoint it is for, and ends behind so many bytes of text.
CREATE FUNCTION outbox.portal_changes(tenant text, endpoint text DEFAULT NULL, before text DEFAULT NULL,
    page_size int4 DEFAULT 20) RETURNS jsonb
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET "TimeZone" = 'UTC' SET jit = off
SET enable_seqscan = off SET plan_cache_mode = force_generic_plan SET extra_float_digits = 1
AS $$
#variable_conflict use_variable
DECLARE
    most CONSTANT int4 := 1000;
    longest CONSTANT int4 := 500000;
    own CONSTANT text := outbox.check_tenant(tenant, true);
    caller CONSTANT text := CASE current_setting('role') WHEN 'none' THEN session_user ELSE current_setting('role') END;
    chosen CONSTANT jsonb := outbox.portal_limits(own) -> 'settings';
    hidden CONSTANT text[] := ARRAY(SELECT h.name FROM unnest('{replay,config,credentials}'::text[]) h (name) WHERE NOT chosen ? h.name);
    last CONSTANT int8 := CASE WHEN before ~ '^[0-9]{1,16}$' THEN outbox.portal_cipher(before::int8, 26, true) END;
    c outbox.endpoint_audit;
    done int4 := 0;
    shown jsonb[] := '{}';
    size int4 := 0;
    goes_on bool := false;
BEGIN
    PERFORM outbox.page_endpoints(endpoint, own, NULL, page_size);
    IF last IS NULL AND before IS NOT NULL THEN
        RAISE EXCEPTION 'invalid cursor'
            USING ERRCODE = 'invalid_parameter_value', COLUMN = 'before',
                  HINT = 'Pass the cursor of the page before, as it is, or none for the first page.';
    END IF;
    FOR c IN SELECT * FROM outbox.endpoint_audit a WHERE a.tenant = own AND a.change_id < COALESCE(last, 9223372036854775807)
             ORDER BY a.change_id DESC LIMIT most
    LOOP
        done := done + 1;
        IF c.endpoint <> '' AND (endpoint IS NULL OR c.endpoint = endpoint) THEN
            shown := array_append(shown, jsonb_build_object(
                'at', c.at, 'endpoint', c.endpoint, 'actor', CASE WHEN c.role = caller THEN c.actor END, 'action', c.action,
                'before', outbox.portal_noted(c.before - hidden), 'after', outbox.portal_noted(c.after - hidden)));
            size := size + octet_length(shown[cardinality(shown)]::text);
        END IF;
        goes_on := done = most OR cardinality(shown) = page_size OR size >= longest;
        EXIT WHEN goes_on;
    END LOOP;
    RETURN jsonb_build_object('changes', to_jsonb(shown),
        'cursor', CASE WHEN goes_on THEN outbox.portal_cipher(c.change_id, 26, false)::text END);
END $$;
COMMENT ON FUNCTION outbox.portal_changes IS
'Changes of the endpoints of a tenant, or of one, and requests for their deliveries: the newest, or the ones before a cursor';

------------------------------------------------------------------------
-- Deliveries of a tenant
------------------------------------------------------------------------

-- The numbers of a cursor count the events and endpoints of all tenants, and that of a replay counts
-- their replays.  So a customer gets them enciphered: a Feistel network of four rounds, with SHA-256
-- of the log's epoch.
CREATE FUNCTION outbox.portal_cipher(number int8, bits int4, opens bool) RETURNS int8
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    mask CONSTANT int8 := (1::int8 << bits) - 1;
    high int8 := (number >> bits) & mask;
    low int8 := number & mask;
    kept int8;
    mixed int8;
BEGIN
    FOR round IN 1 .. 4 LOOP
        kept := CASE WHEN opens THEN high ELSE low END;
        mixed := ('x' || left(encode(sha256(convert_to(concat_ws(' ', 'cursor', outbox.current_epoch(),
            CASE WHEN opens THEN 5 - round ELSE round END, kept), 'UTF8')), 'hex'), 8))::bit(32)::int8 & mask;
        IF opens THEN
            high := low # mixed;
            low := kept;
        ELSE
            low := high # mixed;
            high := kept;
        END IF;
    END LOOP;
    RETURN (high << bits) | low;
END $$;
COMMENT ON FUNCTION outbox.portal_cipher IS 'A number of twice so many bits as a customer gets it, or (opens) as it is';

CREATE FUNCTION outbox.portal_cursor(cursor text, opens bool) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    parts int8[];
BEGIN
    IF cursor IS NULL THEN
        RETURN NULL;
    ELSIF opens AND cursor !~ '^[0-9a-f]{16}-[0-9a-f]{16}-[0-9]{1,18}$' THEN
        RETURN '';      -- no cursor, as outbox.page_rows() says
    END IF;
    parts := CASE WHEN opens THEN ARRAY[('x' || split_part(cursor, '-', 1))::bit(64)::int8,
                                        ('x' || split_part(cursor, '-', 2))::bit(64)::int8, split_part(cursor, '-', 3)::int8]
                  ELSE string_to_array(cursor, ':')::int8[] END;
    FOR part IN 1 .. 2 LOOP
        parts[part] := outbox.portal_cipher(parts[part], 32, opens);
    END LOOP;
    RETURN CASE WHEN opens THEN array_to_string(parts, ':')
                ELSE concat(lpad(to_hex(parts[1]), 16, '0'), '-', lpad(to_hex(parts[2]), 16, '0'), '-', parts[3]) END;
END $$;
COMMENT ON FUNCTION outbox.portal_cursor IS 'A cursor as a customer gets it, or (opens) as a page takes it';

CREATE FUNCTION outbox.portal_deliveries(tenant text, endpoint text DEFAULT NULL, status text DEFAULT NULL,
    before text DEFAULT NULL, page_size int4 DEFAULT 20, topics text[] DEFAULT NULL,
    from_time timestamptz DEFAULT NULL, to_time timestamptz DEFAULT NULL, event uuid DEFAULT NULL) RETURNS jsonb
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET "TimeZone" = 'UTC' SET jit = off
SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_variable
DECLARE
    own CONSTANT text := outbox.check_tenant(tenant, true);
    deliveries jsonb;
    cursor text;
    searched timestamptz;
BEGIN
    SELECT COALESCE(jsonb_agg((to_jsonb(d) - '{seq,tenant,cursor,n}'::text[])
                              || jsonb_build_object('last_error', outbox.portal_reason(d.last_error)) ORDER BY d.n)
                    FILTER (WHERE d.event_id IS NOT NULL), '[]'),
           -- a page that is not full, and has no row without an event, is the last one
           CASE WHEN count(*) >= page_size OR bool_or(d.event_id IS NULL) THEN (array_agg(d.cursor ORDER BY d.n DESC))[1] END
    INTO deliveries, cursor
    FROM outbox.deliveries_page(endpoint, own, status, outbox.portal_cursor(before, true), page_size, topics,
                                from_time, to_time, event) WITH ORDINALITY d (
        event_id, seq, topic, type, key, tenant, endpoint, status, reason, attempts, next_attempt_at,
        last_status_code, last_error, created_at, delivered_at, test, cursor, n);
    SELECT e.created_at INTO searched FROM outbox.all_events e
    WHERE e.seq = split_part(cursor, ':', 1)::int8 AND e.tenant = own;
    RETURN jsonb_build_object('deliveries', deliveries, 'searched_to', searched, 'cursor', outbox.portal_cursor(cursor, false));
END $$;
COMMENT ON FUNCTION outbox.portal_deliveries IS
'The newest deliveries of a tenant, or the ones before a cursor, with the time of the event up to which they '
'were searched';

CREATE FUNCTION outbox.portal_attempts(tenant text, endpoint text DEFAULT NULL, event uuid DEFAULT NULL,
    before text DEFAULT NULL, page_size int4 DEFAULT 20) RETURNS jsonb
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET "TimeZone" = 'UTC' SET jit = off
SET extra_float_digits = 1
AS $$
#variable_conflict use_variable
DECLARE
    result jsonb;
BEGIN
    SELECT jsonb_build_object(
        'attempts', COALESCE(jsonb_agg((to_jsonb(a) - '{seq,tenant,cursor,n}'::text[]) || jsonb_build_object(
            'error', outbox.portal_reason(a.error), 'response_headers', outbox.header_object(a.response_headers),
            -- a number of an attempt comes again after a resend, and all events of a batch have one time
            'id', concat_ws('-', a.event_id, a.endpoint, (extract(epoch FROM a.started_at) * 1000000)::int8, a.attempt)) ORDER BY a.n)
            FILTER (WHERE a.event_id IS NOT NULL), '[]'),
        'cursor', CASE WHEN count(*) >= page_size OR bool_or(a.event_id IS NULL)
                       THEN outbox.portal_cursor((array_agg(a.cursor ORDER BY a.n DESC))[1], false) END)
    INTO result
    FROM outbox.attempts_page(endpoint, outbox.check_tenant(tenant, true), event, outbox.portal_cursor(before, true), page_size)
         WITH ORDINALITY a (event_id, seq, endpoint, tenant, attempt, started_at, duration_ms, status_code, error,
                            response_body, cause, lookup_ms, connect_ms, tls_ms, first_byte_ms, response_headers, cursor, n);
    RETURN result;
END $$;
COMMENT ON FUNCTION outbox.portal_attempts IS
'Requests for the newest events of a tenant, or to one of its endpoints, or the ones before a cursor';

CREATE FUNCTION outbox.portal_delivery(tenant text, endpoint text, event uuid) RETURNS jsonb
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET "TimeZone" = 'UTC' SET jit = off
SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_variable
DECLARE
    own CONSTANT text := outbox.check_tenant(tenant, true);
    d outbox.delivery;
    content jsonb;
    attempts jsonb;
    waits jsonb;
BEGIN
    PERFORM outbox.require_endpoint(endpoint, endpoint IS NOT NULL, own);
    IF event IS NULL THEN
        RAISE EXCEPTION 'event must not be null'
            USING ERRCODE = 'null_value_not_allowed', COLUMN = 'event', HINT = 'Use the id of an event that is listed.';
    END IF;
    SELECT * INTO d FROM outbox.deliveries_page(endpoint, own, event => event);
    IF d.event_id IS NULL THEN
        RAISE EXCEPTION 'endpoint "%" never had event "%"', endpoint, event
            USING ERRCODE = 'undefined_object', COLUMN = 'event',
                  HINT = 'It did not subscribe to the event, or the event is older than what is kept.';
    END IF;
    SELECT jsonb_build_object('headers', e.headers, 'payload', e.payload, 'body_base64', translate(encode(e.body, 'base64'), E'\n', ''),
                              'content_type', e.content_type, 'expires_at', e.expires_at)
    INTO content FROM outbox.all_events e WHERE e.id = event AND e.seq = d.seq AND e.tenant = own AND NOT e.forgotten;
    SELECT jsonb_agg(a.value - '{event_id,endpoint}'::text[] ORDER BY a.number) INTO attempts
    FROM jsonb_array_elements(outbox.portal_attempts(tenant, endpoint, event, page_size => 1000) -> 'attempts')
         WITH ORDINALITY a (value, number);
    SELECT jsonb_build_object('endpoint_state', t.state, 'endpoint_reason', outbox.portal_reason(t.reason)) INTO waits
    FROM outbox.endpoint_figures t WHERE t.endpoint = portal_delivery.endpoint;
    RETURN (to_jsonb(d) - '{seq,tenant,cursor}'::text[]) || waits || jsonb_build_object(
        'last_error', outbox.portal_reason(d.last_error), 'event', content, 'request', outbox.request_of(endpoint, event, d.seq, d.status), 'attempts', COALESCE(attempts, '[]'));
END $$;
COMMENT ON FUNCTION outbox.portal_delivery IS
'The delivery of an event to an endpoint of a tenant, with its content, the newest request or the next one, and what '
'came of the newest thousand requests';

CREATE FUNCTION outbox.portal_retry(tenant text, endpoint text, event uuid DEFAULT NULL,
    since timestamptz DEFAULT NULL, topics text[] DEFAULT NULL) RETURNS jsonb
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
AS $$
DECLARE
    n int8 := 1;
BEGIN
    PERFORM outbox.portal_own(tenant, endpoint);
    PERFORM outbox.check_portal(NULL, topics);
    IF event IS NULL THEN
        n := outbox.retry(endpoint, NULL, topics, since);
    ELSE
        PERFORM outbox.resend(endpoint, event);
    END IF;
    RETURN jsonb_build_object('deliveries', n);
END $$;
COMMENT ON FUNCTION outbox.portal_retry IS
'Sends again to an endpoint of a tenant: an event that was delivered or failed, or (NULL) all that failed, and returns how many';

CREATE FUNCTION outbox.portal_replay(tenant text, endpoint text, from_time timestamptz,
    to_time timestamptz DEFAULT now(), topics text[] DEFAULT NULL) RETURNS jsonb
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    s outbox.endpoint_settings := outbox.portal_own(tenant, endpoint);
    n int8;
BEGIN
    PERFORM outbox.check_portal(NULL, topics);
    n := outbox.start_replay(endpoint, from_time, to_time, topics, CASE WHEN s.filter IS NULL THEN 10000 ELSE 1000 END);
    RETURN jsonb_build_object('expected', n, 'replay_id', CASE WHEN n IS DISTINCT FROM 0 THEN
        outbox.portal_cipher(currval('outbox.replays_replay_id_seq'), 26, false) END);
EXCEPTION WHEN object_not_in_prerequisite_state THEN
    RAISE EXCEPTION '%', SQLERRM USING ERRCODE = SQLSTATE, HINT = 'Ask the operator.';
END $$;
COMMENT ON FUNCTION outbox.portal_replay IS
'Sends events that were emitted between two times to an endpoint of a tenant again, and returns the replay, and how '
'many (null: they are too many to count)';

CREATE FUNCTION outbox.portal_replays(tenant text, endpoint text) RETURNS SETOF jsonb
LANGUAGE plpgsql STABLE SECURITY DEFINER ROWS 10 SET search_path = pg_catalog, pg_temp SET "TimeZone" = 'UTC' SET jit = off
AS $$
#variable_conflict use_variable
DECLARE
    id CONSTANT int4 := (outbox.page_endpoints(endpoint, outbox.check_tenant(tenant, true), NULL, 1))[1];
BEGIN
    PERFORM outbox.require_endpoint(endpoint, endpoint IS NOT NULL, tenant);
    RETURN QUERY
    SELECT jsonb_build_object('replay_id', outbox.portal_cipher(r.replay_id, 26, false), 'endpoint', endpoint,
                              'topics', r.topics, 'from_time', r.from_time, 'to_time', r.to_time, 'events', r.events,
                              'expected', r.expected, 'started_at', r.started_at,
                              'finished_at', r.finished_at, 'cancelled', r.cancelled)
    -- in this order only the index of endpoints has them: the newest replays may all be of others
    FROM outbox.replays r WHERE (r.endpoint_id, r.replay_id) <= (id, 9223372036854775807) AND r.endpoint_id >= id
    ORDER BY r.endpoint_id DESC, r.replay_id DESC LIMIT 100;
END $$;
COMMENT ON FUNCTION outbox.portal_replays IS
'The newest hundred replays of an endpoint of a tenant, and how far each of them is';

CREATE FUNCTION outbox.portal_cancel_replay(tenant text, endpoint text, replay int8) RETURNS jsonb
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox.portal_own(tenant, endpoint);
    RETURN jsonb_build_object('cancelled', outbox.cancel_replay(endpoint, outbox.portal_cipher(replay, 26, true)));
END $$;
COMMENT ON FUNCTION outbox.portal_cancel_replay IS
'Ends a replay of an endpoint of a tenant where it is, and says whether it had not ended';

CREATE FUNCTION outbox.portal_send_test(tenant text, name text, topic text DEFAULT 'outbox.test',
    payload jsonb DEFAULT NULL) RETURNS jsonb
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    field text;
    hint text;
BEGIN
    PERFORM outbox.portal_own(tenant, name);
    PERFORM outbox.check_portal_numbers(payload, 'payload');
    -- It is kept as long as its attempts, and a piece of the log.
    IF octet_length(payload::text) > 8192 THEN
        RAISE EXCEPTION 'the payload has % bytes', octet_length(payload::text)
            USING ERRCODE = 'program_limit_exceeded', COLUMN = 'payload', HINT = 'Use at most 8192 bytes for a test.';
    END IF;
    RETURN jsonb_build_object('event_id', outbox.send_test(name, topic, payload));
EXCEPTION
    WHEN data_exception OR program_limit_exceeded OR statement_too_complex THEN
        GET STACKED DIAGNOSTICS field = COLUMN_NAME, hint = PG_EXCEPTION_HINT;
        IF hint = outbox.portal_hint(field, hint) THEN
            RAISE;
        END IF;
        RAISE EXCEPTION '%', SQLERRM USING ERRCODE = SQLSTATE, COLUMN = field, HINT = outbox.portal_hint(field, hint);
END $$;
COMMENT ON FUNCTION outbox.portal_send_test IS
'Sends one event to this endpoint of a tenant alone, and returns its id';

CREATE FUNCTION outbox.portal_figures(tenant text, endpoint text DEFAULT NULL, bucket interval DEFAULT '1 hour',
    from_time timestamptz DEFAULT now() - interval '1 day', to_time timestamptz DEFAULT now()) RETURNS SETOF jsonb
LANGUAGE plpgsql STABLE SECURITY DEFINER ROWS 100 SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY SELECT outbox.figures(endpoint, outbox.check_tenant(tenant, true), bucket, from_time, to_time);
END $$;
COMMENT ON FUNCTION outbox.portal_figures IS
'Figures of an endpoint of a tenant or (NULL) of all of them from one time to another, as outbox.figures()';

------------------------------------------------------------------------
-- Topics that a tenant may subscribe to
------------------------------------------------------------------------

-- The catalogue is the operator's, and the same for all tenants.
CREATE FUNCTION outbox.portal_event_types(tenant text) RETURNS SETOF jsonb
LANGUAGE plpgsql STABLE SECURITY DEFINER ROWS 100 SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox.check_tenant(tenant, true);
    RETURN QUERY
    SELECT jsonb_build_object('topic', t.topic, 'description', t.description, 'schema', t.schema, 'example', t.example,
                              'version', t.version, 'deprecated', t.deprecated)
    FROM outbox.event_types t ORDER BY t.topic;
END $$;
COMMENT ON FUNCTION outbox.portal_event_types IS
'The topics that outbox.event_types lists, each with its description, schema, example and version, and whether it is deprecated';

CREATE FUNCTION outbox.portal_asyncapi(tenant text, title text DEFAULT NULL, version text DEFAULT '1.0.0') RETURNS jsonb
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox.check_tenant(tenant, true);
    RETURN outbox.asyncapi(COALESCE(title, 'Events'), version);
END $$;
COMMENT ON FUNCTION outbox.portal_asyncapi IS 'The same as a document of AsyncAPI 3.0, as outbox.asyncapi() makes it';
