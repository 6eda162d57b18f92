------------------------------------------------------------------------
-- Secrets of endpoints
------------------------------------------------------------------------

-- A table of their own: it is not part of a dump, and row-level security guards it.
-- Only a role that may truncate it reads it: the owner, and the role of the worker.
-- pg_read_all_data may not truncate, and sees no row.
-- Row-level security does not guard a TOAST table, which pg_read_all_data reads.  So
-- nothing is moved there, and long credentials are divided among several rows.
CREATE TABLE outbox.endpoint_secrets (
    endpoint_id     int4 NOT NULL,
    part            int2 NOT NULL DEFAULT 0,          -- above 0: more of the credentials, and nothing else
    secret          text,
    previous        text,
    previous_until  timestamptz,
    credentials     jsonb,                            -- NULL: none, or they did not come with a dump
    PRIMARY KEY (endpoint_id, part),
    CHECK (part > 0 OR secret IS NOT NULL)
) WITH (fillfactor = 70);
ALTER TABLE outbox.endpoint_secrets
    ALTER COLUMN secret SET STORAGE PLAIN,
    ALTER COLUMN previous SET STORAGE PLAIN,
    ALTER COLUMN credentials SET STORAGE PLAIN;
COMMENT ON TABLE outbox.endpoint_secrets IS
'Secrets that sign requests, which only the owner and the worker read, and which no dump has';
ALTER TABLE outbox.endpoint_secrets ENABLE ROW LEVEL SECURITY;
-- A sub-select, which is asked once and before any row: a condition of the reader's that
-- is cheaper than the policy's would else be judged first, and its time tells the value.
CREATE POLICY worker ON outbox.endpoint_secrets
USING ((SELECT has_table_privilege('outbox.endpoint_secrets', 'TRUNCATE')));

-- Each row has as much of each value as fits a page, whatever the encoding: 1500
-- characters for all of them.  The name of a file is in the first row.
CREATE FUNCTION outbox.store_credentials(endpoint_id int4, credentials jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    size int4 := 1500 / GREATEST((SELECT count(*) FROM jsonb_object_keys(store_credentials.credentials)), 1);
    stored jsonb := credentials;
    number int2 := 0;
BEGIN
    DELETE FROM outbox.endpoint_secrets k WHERE k.endpoint_id = store_credentials.endpoint_id AND k.part > 0;
    IF credentials IS NULL THEN
        UPDATE outbox.endpoint_secrets k SET credentials = NULL
        WHERE k.endpoint_id = store_credentials.endpoint_id AND k.credentials IS NOT NULL;
        RETURN;
    END IF;
    LOOP
        SELECT jsonb_object_agg(v.key, CASE jsonb_typeof(v.value)
                   WHEN 'string' THEN to_jsonb(substr(v.value #>> '{}', number * size + 1, size)) ELSE v.value END)
        INTO stored
        FROM jsonb_each(store_credentials.credentials) v
        WHERE number = 0 OR (jsonb_typeof(v.value) = 'string' AND length(v.value #>> '{}') > number * size);
        IF number = 0 THEN
            UPDATE outbox.endpoint_secrets k SET credentials = stored
            WHERE k.endpoint_id = store_credentials.endpoint_id AND k.part = 0;
        ELSE
            EXIT WHEN stored IS NULL;
            INSERT INTO outbox.endpoint_secrets (endpoint_id, part, credentials)
            VALUES (store_credentials.endpoint_id, number, stored);
        END IF;
        number := number + 1;
    END LOOP;
END $$;
COMMENT ON FUNCTION outbox.store_credentials IS
'Replaces the stored credentials of an endpoint that has a secret (NULL: it has no more)';

CREATE FUNCTION outbox.stored_credentials(endpoint_id int4) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
SELECT jsonb_object_agg(c.key, CASE WHEN c.is_text THEN to_jsonb(c.value) ELSE c.value::jsonb END)
FROM (SELECT v.key, bool_and(jsonb_typeof(v.value) = 'string') AS is_text,
             string_agg(v.value #>> '{}', '' ORDER BY k.part) AS value
      FROM outbox.endpoint_secrets k
      CROSS JOIN LATERAL jsonb_each(CASE WHEN jsonb_typeof(k.credentials) = 'object' THEN k.credentials END) v
      WHERE k.endpoint_id = $1
      GROUP BY v.key) c
$$;
COMMENT ON FUNCTION outbox.stored_credentials IS
'The credentials of an endpoint as they are stored, for roles that read outbox.endpoint_secrets (NULL: none)';

CREATE FUNCTION outbox.new_secret(config jsonb DEFAULT NULL, given text DEFAULT NULL) RETURNS text
LANGUAGE C VOLATILE AS 'MODULE_PATHNAME', 'outbox_new_secret_1_0';
COMMENT ON FUNCTION outbox.new_secret IS
'The given secret, or (NULL) a new one, of the form that config says: whsec_ and the base64 of 32 random bytes (given: '
'24 to 75), whsk_ and that of a private and its public key, or any text (22023: the given one has another form)';

-- With outbox.secret_key_file, secrets are sealed before they are stored: the values
-- of headers and credentials, the part of a URL behind its host, and the secret that signs.
-- Errors: 22023 the value looks like a sealed one, 55000 the key file cannot be used.
-- A value is a text, or an object of texts: headers (header) or credentials (credential).
CREATE FUNCTION outbox.seal(endpoint_id int4, field text, value anyelement, again bool DEFAULT false) RETURNS anyelement
LANGUAGE C VOLATILE STRICT AS 'MODULE_PATHNAME', 'outbox_seal_1_0';
COMMENT ON FUNCTION outbox.seal IS
'A value as it is to be stored: sealed if outbox.secret_key_file is set, else as it is; or (again) a stored value, '
'sealed with the first key (NULL: it cannot be opened)';

CREATE FUNCTION outbox.unseal(endpoint_id int4, field text, value text) RETURNS text
LANGUAGE C STABLE STRICT AS 'MODULE_PATHNAME', 'outbox_unseal_1_0';
COMMENT ON FUNCTION outbox.unseal IS 'A stored value in clear (55000: it cannot be opened)';

CREATE FUNCTION outbox.shown(endpoint_id int4, value anyelement) RETURNS anyelement
LANGUAGE C STABLE STRICT AS 'MODULE_PATHNAME', 'outbox_shown_1_0';
COMMENT ON FUNCTION outbox.shown IS
'The URL (text) or the headers (jsonb) of an endpoint in clear, or as stored if they cannot be opened';

CREATE FUNCTION outbox.rotate_secret(name text,
    grace interval DEFAULT '24 hours',
    secret text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_variable
DECLARE
    s outbox.endpoint_settings := outbox.lock_endpoint(name);
    former text;
BEGIN
    IF grace IS NULL THEN
        RAISE EXCEPTION 'grace must not be null'
            USING ERRCODE = 'null_value_not_allowed', COLUMN = 'grace',
                  HINT = 'Use 0 to 1 year, or leave it out for 24 hours.';
    ELSIF grace NOT BETWEEN interval '0' AND interval '1 year' THEN
        RAISE EXCEPTION 'invalid grace %', grace
            USING ERRCODE = 'invalid_parameter_value', COLUMN = 'grace',
                  HINT = 'Use 0 to 1 year. After a leak use 0, which ends the former secret at once.';
    END IF;
    secret := outbox.new_secret(s.config, secret);
    SELECT k.secret INTO former FROM outbox.endpoint_secrets k
    WHERE k.endpoint_id = s.endpoint_id AND k.part = 0;
    BEGIN
        former := outbox.unseal(s.endpoint_id, 'secret', former);
    EXCEPTION WHEN object_not_in_prerequisite_state THEN
        -- The key of the former secret is lost. It can be forgotten, but not sign any more.
        IF grace > interval '0' THEN
            RAISE;
        END IF;
    END;
    IF former = secret THEN
        RAISE EXCEPTION 'this is the present secret of endpoint "%"', name
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Pass another secret, or none to have one generated.';
    END IF;
    INSERT INTO outbox.endpoint_secrets AS k (endpoint_id, secret)
    VALUES (s.endpoint_id, outbox.seal(s.endpoint_id, 'secret', secret))
    ON CONFLICT (endpoint_id, part) DO UPDATE
    SET secret = EXCLUDED.secret,
        previous = CASE WHEN grace > interval '0' THEN outbox.seal(s.endpoint_id, 'previous', former) END,
        previous_until = CASE WHEN grace > interval '0' THEN clock_timestamp() + grace END;
    UPDATE outbox.endpoint_settings e SET secrets_set_at = clock_timestamp() WHERE e.endpoint_id = s.endpoint_id;
END $$;
COMMENT ON FUNCTION outbox.rotate_secret IS
'Gives the endpoint another secret, while requests carry both signatures during grace';

-- After a recovery from a dump, which has no secrets, for all endpoints at once.
CREATE FUNCTION outbox.set_secrets(secrets jsonb) RETURNS int8
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_variable
DECLARE
    unknown text;
    n int8;
BEGIN
    IF secrets IS NULL THEN
        RAISE EXCEPTION 'secrets must not be null'
            USING ERRCODE = 'null_value_not_allowed', COLUMN = 'secrets',
                  HINT = 'Pass the name of each endpoint with its secret, like {"warehouse": "whsec_..."}.';
    ELSIF jsonb_typeof(secrets) <> 'object'
       OR EXISTS (SELECT 1 FROM jsonb_each(CASE jsonb_typeof(secrets) WHEN 'object' THEN secrets END) g
                  WHERE jsonb_typeof(g.value) <> 'string') THEN
        RAISE EXCEPTION 'secrets must be an object of strings'
            USING ERRCODE = 'invalid_parameter_value', COLUMN = 'secrets',
                  HINT = 'Pass the name of each endpoint with its secret, like {"warehouse": "whsec_..."}.';
    END IF;
    PERFORM outbox.new_secret((SELECT e.config FROM outbox.endpoint_settings e WHERE e.name = g.key), g.value) FROM jsonb_each_text(secrets) g;
    PERFORM outbox.make_room();
    PERFORM FROM outbox.endpoint_settings e WHERE e.name IN (SELECT jsonb_object_keys(secrets)) ORDER BY e.endpoint_id FOR UPDATE;
    SELECT g.key INTO unknown FROM jsonb_each(secrets) g
    WHERE NOT EXISTS (SELECT 1 FROM outbox.endpoint_settings e WHERE e.name = g.key) LIMIT 1;
    IF FOUND THEN
        PERFORM outbox.require_endpoint(unknown, false);
    END IF;
    INSERT INTO outbox.endpoint_secrets AS k (endpoint_id, secret)
    SELECT e.endpoint_id, outbox.seal(e.endpoint_id, 'secret', g.value)
    FROM jsonb_each_text(secrets) g JOIN outbox.endpoint_settings e ON e.name = g.key
    ON CONFLICT (endpoint_id, part) DO UPDATE SET secret = EXCLUDED.secret, previous = NULL, previous_until = NULL;
    UPDATE outbox.endpoint_settings e SET secrets_set_at = clock_timestamp()
    WHERE e.name IN (SELECT jsonb_object_keys(secrets));
    GET DIAGNOSTICS n = ROW_COUNT;
    PERFORM outbox.endpoint_changed(0);
    RETURN n;
END $$;
COMMENT ON FUNCTION outbox.set_secrets IS
'Gives endpoints these secrets, by their names, in place of any they have, and returns how many';

CREATE FUNCTION outbox.endpoint_secret(name text) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN (SELECT outbox.unseal(k.endpoint_id, 'secret', k.secret)
            FROM outbox.endpoint_secrets k
            WHERE k.endpoint_id = (SELECT e.endpoint_id FROM outbox.endpoint_settings e WHERE e.name = $1)
            AND k.part = 0);
END $$;
COMMENT ON FUNCTION outbox.endpoint_secret IS
'The secret that requests to the endpoint are signed with (NULL: none, or no such endpoint)';

-- A key that cannot be opened must not make the view outbox.endpoints fail.
CREATE FUNCTION outbox.endpoint_public_key(name text) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    secret text;
BEGIN
    secret := outbox.endpoint_secret(name);
    RETURN CASE WHEN left(secret, 5) = 'whsk_'
                THEN 'whpk_' || encode(substring(decode(rpad(substr(secret, 6), 88, '='), 'base64') FROM 33), 'base64') END;
EXCEPTION WHEN object_not_in_prerequisite_state THEN
    RETURN NULL;
END $$;
COMMENT ON FUNCTION outbox.endpoint_public_key IS
'outbox.endpoints.public_key of an endpoint';

CREATE FUNCTION outbox.reseal_secrets(OUT sealed int8, OUT kept int8, OUT unopened int8)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    s record;
    k record;
    former record;
BEGIN
    -- This raises an error where the file of keys cannot be used.
    IF outbox.seal(0, 'secret', text 'x') = 'x' THEN
        RAISE EXCEPTION 'secrets cannot be sealed: outbox.secret_key_file is not set'
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'outbox.secret_key_file must name a file that belongs to the server''s user, has mode 0600, and has a key in base64 on each line.';
    END IF;
    sealed := 0;
    kept := 0;
    unopened := 0;
    FOR s IN SELECT e.endpoint_id, e.url, e.headers FROM outbox.endpoint_settings e
             ORDER BY e.endpoint_id FOR UPDATE
    LOOP
        -- Locked, because a worker forgets former secrets.
        SELECT o.secret, o.previous, NULL::jsonb AS credentials INTO former
        FROM outbox.endpoint_secrets o WHERE o.endpoint_id = s.endpoint_id AND o.part = 0 FOR UPDATE;
        former.credentials := outbox.stored_credentials(s.endpoint_id);
        SELECT outbox.seal(s.endpoint_id, 'url', s.url, true) AS url,
               outbox.seal(s.endpoint_id, 'header', s.headers, true) AS headers,
               outbox.seal(s.endpoint_id, 'secret', former.secret, true) AS secret,
               outbox.seal(s.endpoint_id, 'previous', former.previous, true) AS previous,
               outbox.seal(s.endpoint_id, 'credential', former.credentials, true) AS credentials INTO k;
        IF k.url IS NULL OR (k.headers IS NULL AND s.headers IS NOT NULL)
           OR (k.secret IS NULL AND former.secret IS NOT NULL)
           OR (k.previous IS NULL AND former.previous IS NOT NULL)
           OR (k.credentials IS NULL AND former.credentials IS NOT NULL) THEN
            unopened := unopened + 1;
        ELSIF (k.url, k.headers, k.secret, k.previous, k.credentials)
              IS NOT DISTINCT FROM (s.url, s.headers, former.secret, former.previous, former.credentials) THEN
            kept := kept + 1;
        ELSE
            sealed := sealed + 1;
            UPDATE outbox.endpoint_settings e SET url = k.url, headers = k.headers, revision = 0 -- which says that it is no change
            WHERE e.endpoint_id = s.endpoint_id;
            UPDATE outbox.endpoint_secrets o SET secret = k.secret, previous = k.previous
            WHERE o.endpoint_id = s.endpoint_id AND o.part = 0;
            PERFORM outbox.store_credentials(s.endpoint_id, k.credentials);
        END IF;
    END LOOP;
    PERFORM outbox.endpoint_changed(0);
END $$;
COMMENT ON FUNCTION outbox.reseal_secrets IS
'Seals the secrets of all endpoints with the first key of outbox.secret_key_file';
