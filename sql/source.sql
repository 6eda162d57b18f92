-- outbox on a server that cannot load its library: psql -f sql/source.sql.  It is plain SQL,
-- and needs no superuser: the owner of the database runs it.
--
-- It has the functions that an application calls: emit, emit_bytes, emit_change, the view
-- outbox.outgoing, COPY into outbox.events, and grant_emit.  They take and refuse the
-- same as the extension's.  The events are delivered by another server, which has the
-- extension and follows this one: doc/follow.md.  In tests of an application nothing
-- follows, and events stay until they are deleted: doc/testing.md.
--
-- It can be run again, and one of a newer version over an older one: events, grants and
-- publications stay.  All of it is one transaction.

BEGIN;
SET LOCAL client_min_messages = warning;
SET LOCAL lock_timeout = '10s';   -- emits wait behind a lock that this waits for

DO $$
DECLARE
    stranger text;
BEGIN
    IF EXISTS (SELECT FROM pg_namespace n WHERE n.nspname = 'outbox') AND to_regprocedure('outbox.source_version()') IS NULL THEN
        RAISE EXCEPTION 'schema "outbox" already exists'
            USING ERRCODE = 'duplicate_schema',
                  HINT = 'It is not of sql/source.sql. A database with the extension needs nothing of this file.';
    END IF;
    -- Objects of another role would run as the role that runs this script.
    SELECT r.rolname INTO stranger
    FROM (SELECT n.nspowner AS owner FROM pg_namespace n WHERE n.nspname = 'outbox'
          UNION ALL SELECT c.relowner FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'outbox'
          UNION ALL SELECT p.proowner FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = 'outbox') o
    JOIN pg_roles r ON r.oid = o.owner
    WHERE r.rolname <> current_user AND NOT r.rolsuper LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'schema outbox, or something in it, belongs to role "%"', stranger
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'If that role has run this script before, run it as that role. Else drop the schema, or rename it.';
    END IF;
    PERFORM set_config('source_sql.functions', ARRAY(SELECT p.oid FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
                                                     WHERE n.nspname = 'outbox')::text, true);
END $$;
CREATE SCHEMA IF NOT EXISTS outbox;

-- The pieces of outbox.emitted.  New events go into the one that is open: those of emit() into
-- emitted_N, and rows that are inserted into inserted_N, which has a trigger.  A piece that was
-- closed is emptied when every follower has taken its events, and then it is free.
CREATE TABLE IF NOT EXISTS outbox.pieces (
    piece        int2 PRIMARY KEY,
    opened_at    timestamptz,   -- NULL: it is free
    closed_at    timestamptz,
    closed_xmax  xid8,          -- transactions that may still have written into it are below
    done_lsn     pg_lsn         -- they had ended before this place in the WAL
);
INSERT INTO outbox.pieces VALUES (0, clock_timestamp()), (1, NULL), (2, NULL) ON CONFLICT DO NOTHING;

-- For rows that are inserted
CREATE OR REPLACE FUNCTION outbox.current_piece() RETURNS int2
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN (SELECT p.piece + 10 FROM outbox.pieces p WHERE p.opened_at IS NOT NULL AND p.closed_at IS NULL);
END $$;

-- The table that applications know is outbox.events.  Its rows are in outbox.emitted, which
-- is published under this name: a follower has its own outbox.events.
CREATE SEQUENCE IF NOT EXISTS outbox.events_seq;
CREATE TABLE IF NOT EXISTS outbox.events (
    id           uuid NOT NULL,
    seq          int8 NOT NULL,
    xid          xid8 NOT NULL DEFAULT pg_current_xact_id(),
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    piece        int2 NOT NULL DEFAULT outbox.current_piece(),
    topic        text,
    type         text,
    key          text,
    tenant       text,
    expires_at   timestamptz,
    headers      jsonb,
    payload      jsonb,
    body         bytea,
    content_type text,
    PRIMARY KEY (id, piece)
) PARTITION BY LIST (piece);
CREATE TABLE IF NOT EXISTS outbox.emitted PARTITION OF outbox.events DEFAULT PARTITION BY LIST (piece);
CREATE TABLE IF NOT EXISTS outbox.emitted_0 PARTITION OF outbox.emitted FOR VALUES IN (0);
CREATE TABLE IF NOT EXISTS outbox.emitted_1 PARTITION OF outbox.emitted FOR VALUES IN (1);
CREATE TABLE IF NOT EXISTS outbox.emitted_2 PARTITION OF outbox.emitted FOR VALUES IN (2);
CREATE TABLE IF NOT EXISTS outbox.inserted_0 PARTITION OF outbox.emitted FOR VALUES IN (10);
CREATE TABLE IF NOT EXISTS outbox.inserted_1 PARTITION OF outbox.emitted FOR VALUES IN (11);
CREATE TABLE IF NOT EXISTS outbox.inserted_2 PARTITION OF outbox.emitted FOR VALUES IN (12);

-- Events with a deliver_at.  The follower lets them wait.
CREATE TABLE IF NOT EXISTS outbox.scheduled (
    id           uuid PRIMARY KEY,
    deliver_at   timestamptz NOT NULL,
    xid          xid8 NOT NULL DEFAULT pg_current_xact_id(),
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    topic        text NOT NULL,
    type         text,
    key          text,
    tenant       text,
    expires_at   timestamptz,
    headers      jsonb,
    payload      jsonb,
    body         bytea,
    content_type text,
    dedup_key    text
) PARTITION BY RANGE (id);
CREATE TABLE IF NOT EXISTS outbox.deferred PARTITION OF outbox.scheduled FOR VALUES FROM (MINVALUE) TO (MAXVALUE);

CREATE TABLE IF NOT EXISTS outbox.dedup (
    topic        text COLLATE "C" NOT NULL,
    dedup_key    text COLLATE "C" NOT NULL,
    tenant       text COLLATE "C" NOT NULL,
    event_id     uuid NOT NULL,
    created_at   timestamptz NOT NULL,
    PRIMARY KEY (topic, dedup_key, tenant)
);
DO $$ BEGIN
    IF to_regclass('outbox.dedup_created_at') IS NULL THEN   -- where it is there, nothing waits for transactions that have emitted
        CREATE INDEX dedup_created_at ON outbox.dedup (created_at);
    END IF;
END $$;


-- The rest of the log is not to be read.  So no condition of the reader's may be judged before
-- this one: nothing passes OFFSET 0.  The row is one value there, so that the planner estimates
-- nothing from statistics of its columns either.
CREATE OR REPLACE VIEW outbox.outgoing AS
SELECT (o.event).id, (o.event).topic, (o.event).type, (o.event).key, (o.event).tenant, (o.event).expires_at,
       (o.event).headers, (o.event).payload, (o.event).body, (o.event).content_type
FROM (SELECT e AS event FROM outbox.events e WHERE e.xid = pg_current_xact_id_if_assigned() OFFSET 0) o;

CREATE OR REPLACE FUNCTION outbox.insert_outgoing() RETURNS trigger
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        RAISE EXCEPTION 'an event that was emitted does not change'
            USING ERRCODE = 'insufficient_privilege',
                  HINT = 'Emit another event, or roll back to a savepoint before it.';
    END IF;
    NEW.id := COALESCE(NEW.id, outbox.new_event_id());
    INSERT INTO outbox.events (id, topic, type, key, tenant, expires_at, headers, payload, body, content_type)
    VALUES (NEW.id, NEW.topic, NEW.type, NEW.key, NEW.tenant, NEW.expires_at, NEW.headers, NEW.payload, NEW.body,
            NEW.content_type);
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER insert_outgoing INSTEAD OF INSERT OR UPDATE OR DELETE ON outbox.outgoing
FOR EACH ROW EXECUTE FUNCTION outbox.insert_outgoing();

-- A UUID version 7: the milliseconds in six bytes, the 7, their 4096 parts, then random bits.  The
-- function becomes a part of the statement that calls it.
CREATE OR REPLACE FUNCTION outbox.event_id(us int8) RETURNS uuid
LANGUAGE sql VOLATILE
AS $$
SELECT encode(overlay(uuid_send(gen_random_uuid())
                      PLACING int8send((us / 1000 << 16) | (7 << 12) | (us % 1000 * 4096 / 1000)) FROM 1),
              'hex')::uuid
$$;

CREATE OR REPLACE FUNCTION outbox.new_event_id() RETURNS uuid
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    us constant int8 := date_part('epoch', clock_timestamp()) * 1000000;
BEGIN
    RETURN outbox.event_id(us);
END $$;

------------------------------------------------------------------------
-- The rules for an event, with the errors of the real ones.  The callers of these functions
-- set search_path: to set it in each again takes longer than the check.
------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION outbox.check_length(what text, value text, most int) RETURNS void
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    IF value = '' THEN
        RAISE EXCEPTION '% of an event must not be empty', what
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = format('Pass 1 to %s bytes. An optional value can be left out.', most);
    ELSIF octet_length(value) > most THEN
        RAISE EXCEPTION '% of an event is too long', what
            USING ERRCODE = 'invalid_parameter_value',
                  DETAIL = format('It has %s bytes; at most %s are allowed.', octet_length(value), most),
                  HINT = 'Pass a shorter value. Longer data belongs in the payload.';
    END IF;
END $$;

CREATE OR REPLACE FUNCTION outbox.has_control(value text) RETURNS bool
LANGUAGE sql IMMUTABLE
AS $$ SELECT value ~ E'[\\u0001-\\u001F\\u007F-\\u009F]' $$;

CREATE OR REPLACE FUNCTION outbox.check_line(what text, value text) RETURNS void
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    IF outbox.has_control(value) THEN
        RAISE EXCEPTION 'invalid %: it has a control character', what
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'It is sent as an HTTP header. Remove line breaks, tabs and other control characters.';
    END IF;
END $$;

CREATE OR REPLACE FUNCTION outbox.check_tenant(tenant text) RETURNS void
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    problem text := CASE
        WHEN tenant = '' THEN 'it is empty'
        WHEN octet_length(tenant) > 255 THEN 'it is too long'
        WHEN outbox.has_control(tenant) THEN 'it has a control character'
    END;
BEGIN
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION 'invalid tenant: %', problem
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'A tenant is the name or number of a customer: 1 to 255 bytes, no control characters. '
                         'NULL: none.';
    END IF;
END $$;

CREATE OR REPLACE FUNCTION outbox.is_topic(topic text) RETURNS bool
LANGUAGE sql IMMUTABLE
AS $$ SELECT topic ~ '^[A-Za-z0-9_-]+([.][A-Za-z0-9_-]+)*$' $$;

CREATE OR REPLACE FUNCTION outbox.check_topic(topic text) RETURNS void
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    problem text := CASE
        WHEN topic = '' THEN 'it is empty'
        WHEN octet_length(topic) > 255 THEN 'it is longer than 255 bytes'
        WHEN outbox.is_topic(topic) THEN NULL
        -- The first error, from the left.
        WHEN topic ~ '^([A-Za-z0-9_-]+[.])*([.]|$)' THEN 'it has an empty segment'
        ELSE 'it has a character other than ASCII letters, digits, "_", "-" and "."'
    END;
BEGIN
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION 'invalid topic "%": %', left(topic, 100), problem
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'A topic is made of letters, digits, "_" and "-", in segments joined by dots, '
                         'like "order.created".';
    ELSIF starts_with(topic, 'outbox.') THEN
        RAISE EXCEPTION 'topic "%" is reserved', left(topic, 100)
            USING ERRCODE = 'reserved_name',
                  HINT = 'Topics that begin with "outbox." belong to outbox itself. Choose another name.';
    END IF;
END $$;

CREATE OR REPLACE FUNCTION outbox.check_headers(headers jsonb) RETURNS void
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    flat constant text := 'Pass a flat object of strings, like {"X-Tenant": "acme"}.';
    n int;
    total int := 0;
    name text;
    value jsonb;
    folded text;
    names text[] := '{}';
    problem text;
BEGIN
    IF jsonb_typeof(headers) <> 'object' THEN
        RAISE EXCEPTION 'headers of an event must be a JSON object'
            USING ERRCODE = 'invalid_parameter_value', HINT = flat;
    END IF;
    SELECT count(*) INTO n FROM jsonb_object_keys(headers);
    IF n > 29 THEN
        RAISE EXCEPTION 'an event has too many headers'
            USING ERRCODE = 'invalid_parameter_value',
                  DETAIL = format('It has %s; at most %s are allowed.', n, 29),
                  HINT = 'Leave some out, or put them in the payload.';
    END IF;
    FOR name, value IN SELECT * FROM jsonb_each(headers) LOOP
        -- Receivers behind CGI see no difference between "_" and "-".
        folded := translate(lower(name COLLATE "C"), '_', '-');
        problem := CASE
            WHEN name = '' THEN 'it is empty'
            WHEN name !~ '^[A-Za-z0-9!#$%&''*+.^_`|~-]*$' THEN 'it has a character that header names cannot have'
            WHEN folded IN ('host', 'content-length', 'transfer-encoding', 'connection', 'expect', 'keep-alive',
                            'proxy-connection', 'te', 'trailer', 'upgrade') THEN 'it belongs to the HTTP connection'
            WHEN folded IN ('content-type', 'user-agent', 'idempotency-key') THEN 'it is set by outbox itself'
            WHEN folded ~ '^(webhook-|outbox-|ce-)' THEN
                'the prefixes "webhook-", "outbox-" and "ce-" belong to outbox itself'
            WHEN folded IN ('authorization', 'proxy-authorization', 'cookie') THEN
                'credentials can be set on an endpoint only'
        END;
        IF problem IS NOT NULL THEN
            RAISE EXCEPTION 'invalid header "%": %', left(name, 100), problem
                USING ERRCODE = 'invalid_parameter_value',
                      HINT = 'Choose another name. "X-" and a name of your own is always free.';
        ELSIF folded = ANY (names) THEN
            RAISE EXCEPTION 'invalid header "%": another one has the same name', left(name, 100)
                USING ERRCODE = 'invalid_parameter_value',
                      HINT = 'In a name, case makes no difference, and neither does "_" for "-". Leave one of '
                             'them out.';
        ELSIF jsonb_typeof(value) <> 'string' THEN
            RAISE EXCEPTION 'value of header "%" must be a string', left(name, 100)
                USING ERRCODE = 'invalid_parameter_value', HINT = flat;
        ELSIF outbox.has_control(value #>> '{}') THEN
            RAISE EXCEPTION 'invalid value of header "%": it has a control character', left(name, 100)
                USING ERRCODE = 'invalid_parameter_value',
                      HINT = 'Remove line breaks, tabs and other control characters.';
        END IF;
        names := names || folded;
        total := total + octet_length(name) + octet_length(value #>> '{}');
    END LOOP;
    IF total > 8192 THEN
        RAISE EXCEPTION 'headers of an event are too long'
            USING ERRCODE = 'invalid_parameter_value',
                  DETAIL = format('Names and values have %s bytes; at most %s are allowed.', total, 8192),
                  HINT = 'Long values belong in the payload.';
    END IF;
END $$;

CREATE OR REPLACE FUNCTION outbox.check_size(what text, bytes int) RETURNS void
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    IF bytes > 1048576 THEN
        RAISE EXCEPTION '% of an event is too large', what
            USING ERRCODE = 'program_limit_exceeded',
                  DETAIL = format('It has %s bytes; outbox.max_payload_size allows %s.', bytes, 1048576),
                  HINT = 'Send a reference to the data instead of the data, or raise outbox.max_payload_size.';
    END IF;
END $$;

CREATE OR REPLACE FUNCTION outbox.check_event(topic text, type text, key text, tenant text, headers jsonb, payload jsonb, body bytea,
    content_type text, deliver_at timestamptz DEFAULT NULL, expires_at timestamptz DEFAULT NULL,
    dedup_key text DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    bytes constant int4 := octet_length(payload::text);
BEGIN
    IF topic IS NULL THEN
        RAISE EXCEPTION 'topic of an event must not be null'
            USING ERRCODE = 'null_value_not_allowed',
                  HINT = 'Pass the name of what happened, like ''order.created''.';
    END IF;
    PERFORM outbox.check_topic(topic);
    -- The source could not send it, and nothing behind it.
    IF current_setting('server_encoding') <> 'UTF8' THEN
        PERFORM convert_to(concat(type, key, tenant, headers, payload, content_type, dedup_key), 'UTF8');
    END IF;
    IF type IS NOT NULL THEN
        PERFORM outbox.check_length('type', type, 255), outbox.check_line('type', type);
    END IF;
    PERFORM outbox.check_length('key', key, 1024);
    IF tenant IS NOT NULL THEN
        PERFORM outbox.check_tenant(tenant);
    END IF;
    IF headers <> 'null' THEN
        PERFORM outbox.check_headers(headers);
    END IF;
    IF deliver_at = 'infinity' THEN
        RAISE EXCEPTION 'deliver_at of an event must not be infinity'
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Pass a time in the future, or emit the event when it is to be delivered.';
    ELSIF expires_at <= deliver_at THEN
        PERFORM set_config('DateStyle', 'ISO', true);
        RAISE EXCEPTION 'expires_at of an event must be after deliver_at'
            USING ERRCODE = 'invalid_parameter_value',
                  DETAIL = format('It would expire at %s, and be delivered from %s on.', expires_at, deliver_at),
                  HINT = 'Pass a later expires_at, or leave it out.';
    END IF;
    IF dedup_key IS NOT NULL THEN
        PERFORM outbox.check_length('dedup_key', dedup_key, 1024);
    END IF;

    IF payload IS NOT NULL AND body IS NOT NULL THEN
        RAISE EXCEPTION 'an event has either a payload or a body, not both'
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Set payload for JSON, or body and content_type for anything else.';
    ELSIF payload IS NOT NULL THEN
        IF content_type IS NOT NULL THEN
            RAISE EXCEPTION 'content_type of an event with a payload must be null'
                USING ERRCODE = 'invalid_parameter_value',
                      HINT = 'A payload is JSON. Set body and content_type for anything else.';
        ELSIF bytes > 1024
            AND jsonb_path_exists(payload, 'strict $.**{512} ? (@.type() == "array" || @.type() == "object")') THEN
            RAISE EXCEPTION 'payload of an event is nested too deeply'
                USING ERRCODE = 'program_limit_exceeded',
                      DETAIL = 'At most 512 levels of nested objects and arrays are allowed.',
                      HINT = 'Send a flatter payload, or bytes with outbox.emit_bytes().';
        END IF;
        PERFORM outbox.check_size('payload', bytes);
    ELSIF body IS NOT NULL THEN
        IF content_type IS NULL THEN
            RAISE EXCEPTION 'content_type of an event with a body must not be null'
                USING ERRCODE = 'null_value_not_allowed',
                      HINT = 'Pass the media type of the bytes, like ''application/octet-stream''.';
        END IF;
        PERFORM outbox.check_length('content_type', content_type, 255),
                outbox.check_line('content_type', content_type);
        IF rtrim(content_type, ' ') = '' THEN
            RAISE EXCEPTION 'invalid content_type: it has only spaces'
                USING ERRCODE = 'invalid_parameter_value',
                      HINT = 'Pass the media type of the bytes, like ''application/octet-stream''.';
        END IF;
        PERFORM outbox.check_size('body', octet_length(body));
    ELSE
        RAISE EXCEPTION 'payload of an event must not be null'
            USING ERRCODE = 'null_value_not_allowed',
                  HINT = 'Pass JSON, or bytes and their content type. The JSON null is ''null''::jsonb.';
    END IF;
END $$;

-- True for most events in a database of UTF-8.  check_event() takes all of them, and its calls take
-- longer: this function becomes a part of the statement that calls it.
CREATE OR REPLACE FUNCTION outbox.is_plain(topic text, type text, key text, tenant text, headers jsonb, payload jsonb, body bytea,
    content_type text)
RETURNS bool
LANGUAGE sql STABLE
AS $$
SELECT current_setting('server_encoding') = 'UTF8' AND outbox.is_topic(topic) AND octet_length(topic) <= 255 AND NOT starts_with(topic, 'outbox.')
   AND (key IS NULL OR octet_length(key) BETWEEN 1 AND 1024)
   AND (type IS NULL OR octet_length(type) BETWEEN 1 AND 255 AND NOT outbox.has_control(type))
   AND (tenant IS NULL OR octet_length(tenant) BETWEEN 1 AND 255 AND NOT outbox.has_control(tenant))
   AND octet_length(payload::text) <= 1024 AND headers IS NULL AND body IS NULL AND content_type IS NULL
$$;

-- As the owner of the tables: a role that may insert needs no other privilege.
CREATE OR REPLACE FUNCTION outbox.check_row() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    NEW.id := COALESCE(NEW.id, outbox.new_event_id());
    NEW.seq := COALESCE(NEW.seq, nextval('outbox.events_seq'));   -- a dump has it
    IF outbox.is_plain(NEW.topic, NEW.type, NEW.key, NEW.tenant, NEW.headers, NEW.payload, NEW.body,
                       NEW.content_type) IS NOT TRUE THEN
        PERFORM outbox.check_event(NEW.topic, NEW.type, NEW.key, NEW.tenant, NEW.headers, NEW.payload, NEW.body,
                                   NEW.content_type);
    END IF;
    RETURN NEW;
END $$;
-- Where they are there, nothing waits for transactions that have emitted.
DO $$ BEGIN
    IF to_regclass('outbox.events_xid_idx') IS NULL THEN
        CREATE INDEX events_xid_idx ON outbox.events (xid, seq);
        CREATE TRIGGER check_row BEFORE INSERT ON outbox.inserted_0 FOR EACH ROW EXECUTE FUNCTION outbox.check_row();
        CREATE TRIGGER check_row BEFORE INSERT ON outbox.inserted_1 FOR EACH ROW EXECUTE FUNCTION outbox.check_row();
        CREATE TRIGGER check_row BEFORE INSERT ON outbox.inserted_2 FOR EACH ROW EXECUTE FUNCTION outbox.check_row();
    END IF;
END $$;

------------------------------------------------------------------------
-- Emitting
------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION outbox.append(function text, topic text, payload jsonb, body bytea, content_type text, key text,
    type text, headers jsonb, deliver_at timestamptz, expires_at timestamptz, dedup_key text, tenant text)
RETURNS uuid
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    us constant int8 := date_part('epoch', clock_timestamp()) * 1000000;
    id constant uuid := outbox.event_id(us);
    taken uuid;
BEGIN
    IF deliver_at IS NOT NULL OR dedup_key IS NOT NULL OR current_setting('transaction_read_only') <> 'off'
        OR outbox.is_plain(topic, type, key, tenant, headers, payload, body, content_type) IS NOT TRUE THEN
        IF current_setting('transaction_read_only')::bool THEN
            RAISE EXCEPTION 'cannot execute % in a read-only transaction', function
                USING ERRCODE = 'read_only_sql_transaction',
                      HINT = CASE WHEN pg_is_in_recovery()
                                  THEN 'This server is a standby, or a read replica. Connect to the primary.'
                                  ELSE 'Begin it as READ WRITE, or see what has set default_transaction_read_only.' END;
        END IF;
        headers := nullif(headers, 'null');
        PERFORM outbox.check_event(topic, type, key, tenant, headers, payload, body, content_type, deliver_at,
                                   expires_at, dedup_key);
        IF dedup_key IS NOT NULL THEN
            INSERT INTO outbox.dedup AS d VALUES (topic, dedup_key, COALESCE(tenant, ''), id, clock_timestamp())
            ON CONFLICT ON CONSTRAINT dedup_pkey DO UPDATE
                SET event_id = CASE WHEN d.created_at <= clock_timestamp() - interval '1 day'
                                    THEN EXCLUDED.event_id ELSE d.event_id END,
                    created_at = CASE WHEN d.created_at <= clock_timestamp() - interval '1 day'
                                      THEN EXCLUDED.created_at ELSE d.created_at END
            RETURNING event_id INTO taken;
            IF taken <> id THEN
                RETURN taken;
            END IF;
        END IF;
        IF deliver_at > clock_timestamp() THEN
            INSERT INTO outbox.scheduled (id, deliver_at, topic, type, key, tenant, expires_at, headers, payload, body,
                                          content_type, dedup_key)
            VALUES (id, deliver_at, topic, type, key, tenant, expires_at, headers, payload, body, content_type,
                    dedup_key);
            RETURN id;
        END IF;
    END IF;
    -- The piece as in outbox.current_piece(), without the call of a function for each event.
    INSERT INTO outbox.events (id, seq, piece, topic, type, key, tenant, expires_at, headers, payload, body, content_type)
    VALUES (id, nextval('outbox.events_seq'),
            (SELECT p.piece FROM outbox.pieces p WHERE p.opened_at IS NOT NULL AND p.closed_at IS NULL),
            topic, type, key, tenant, expires_at, headers, payload, body, content_type);
    RETURN id;
END $$;

CREATE OR REPLACE FUNCTION outbox.emit(topic text, payload jsonb,
    key text DEFAULT NULL,
    type text DEFAULT NULL,
    headers jsonb DEFAULT NULL,
    deliver_at timestamptz DEFAULT NULL,
    expires_at timestamptz DEFAULT NULL,
    dedup_key text DEFAULT NULL,
    tenant text DEFAULT NULL)
RETURNS uuid
LANGUAGE sql VOLATILE
AS $$ SELECT outbox.append('outbox.emit()', $1, $2, NULL, NULL, $3, $4, $5, $6, $7, $8, $9) $$;

CREATE OR REPLACE FUNCTION outbox.emit(topic text, payload text,
    key text DEFAULT NULL,
    type text DEFAULT NULL,
    headers jsonb DEFAULT NULL,
    deliver_at timestamptz DEFAULT NULL,
    expires_at timestamptz DEFAULT NULL,
    dedup_key text DEFAULT NULL,
    tenant text DEFAULT NULL)
RETURNS uuid
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    parsed jsonb;
    said text;
BEGIN
    BEGIN
        parsed := payload::jsonb;
    EXCEPTION
        WHEN data_exception THEN
            GET STACKED DIAGNOSTICS said = PG_EXCEPTION_DETAIL;
            RAISE EXCEPTION '%', SQLERRM
                USING ERRCODE = SQLSTATE, DETAIL = said,
                      HINT = 'A payload is JSON that the type jsonb can hold. '
                             'Use outbox.emit_bytes() to send anything else.';
        WHEN statement_too_complex THEN
            RAISE EXCEPTION '%', SQLERRM
                USING ERRCODE = SQLSTATE,
                      HINT = 'A payload may have at most 512 levels of nested objects and arrays.';
    END;
    RETURN outbox.append('outbox.emit()', topic, parsed, NULL, NULL, key, type, headers, deliver_at, expires_at,
                         dedup_key, tenant);
END $$;

CREATE OR REPLACE FUNCTION outbox.emit(topic text, payload json,
    key text DEFAULT NULL,
    type text DEFAULT NULL,
    headers jsonb DEFAULT NULL,
    deliver_at timestamptz DEFAULT NULL,
    expires_at timestamptz DEFAULT NULL,
    dedup_key text DEFAULT NULL,
    tenant text DEFAULT NULL)
RETURNS uuid
LANGUAGE sql VOLATILE
AS $$ SELECT outbox.emit($1, $2::text, $3, $4, $5, $6, $7, $8, $9) $$;

CREATE OR REPLACE FUNCTION outbox.emit_bytes(topic text, body bytea, content_type text,
    key text DEFAULT NULL,
    type text DEFAULT NULL,
    headers jsonb DEFAULT NULL,
    deliver_at timestamptz DEFAULT NULL,
    expires_at timestamptz DEFAULT NULL,
    dedup_key text DEFAULT NULL,
    tenant text DEFAULT NULL)
RETURNS uuid
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF body IS NULL THEN
        RAISE EXCEPTION 'body of an event must not be null'
            USING ERRCODE = 'null_value_not_allowed',
                  HINT = 'Pass the bytes to send. They may be empty.';
    END IF;
    RETURN outbox.append('outbox.emit_bytes()', topic, NULL, body, content_type, key, type, headers, deliver_at,
                         expires_at, dedup_key, tenant);
END $$;

-- A key of another type: its text, whatever the settings of the session.
CREATE OR REPLACE FUNCTION outbox.key_text(key anyelement) RETURNS text
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
SET DateStyle = 'ISO, MDY'
SET IntervalStyle = 'postgres'
SET TimeZone = 'UTC'
SET extra_float_digits = 1
SET bytea_output = 'hex'
SET lc_monetary = 'C'
SET quote_all_identifiers = off
AS $$ SELECT CASE pg_typeof($1) WHEN 'boolean'::regtype THEN left($1::text, 1) ELSE $1::text END $$;

DO $$
DECLARE
    payload_type text;
    options constant text :=
        'type text DEFAULT NULL, headers jsonb DEFAULT NULL, deliver_at timestamptz DEFAULT NULL, '
        'expires_at timestamptz DEFAULT NULL, dedup_key text DEFAULT NULL, tenant text DEFAULT NULL) '
        'RETURNS uuid LANGUAGE sql VOLATILE';
BEGIN
    FOREACH payload_type IN ARRAY '{jsonb,json,text}'::text[] LOOP
        EXECUTE format('CREATE OR REPLACE FUNCTION outbox.emit(topic text, payload %s, key anynonarray, %s AS %L', payload_type,
                       options, 'SELECT outbox.emit($1, $2, outbox.key_text($3), $4, $5, $6, $7, $8, $9)');
    END LOOP;
    EXECUTE format('CREATE OR REPLACE FUNCTION outbox.emit_bytes(topic text, body bytea, content_type text, key anynonarray, %s AS %L',
                   options, 'SELECT outbox.emit_bytes($1, $2, $3, outbox.key_text($4), $5, $6, $7, $8, $9, $10)');
END $$;

-- The columns that a trigger's third argument names, as they are stored.
CREATE OR REPLACE FUNCTION outbox.carried(list text, record jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
SELECT CASE WHEN list IS NULL OR list = '*' OR record IS NULL THEN record ELSE jsonb_object_agg(name, record -> name) END
FROM (SELECT COALESCE(replace(m[1], '""', '"'), m[2]) AS name
      FROM regexp_matches(list, '[[:space:]]*(?:"((?:[^"]|"")*)"|([^,"[:space:]]+))[[:space:]]*(?:,|$)', 'g') AS m) n
$$;

-- emit_change() runs as the owner of outbox, and a cast to JSON that the owner of a type wrote must not.
-- So columns of other types of another owner than rows, arrays and domains of harmless ones are carried
-- as their text.
CREATE OR REPLACE FUNCTION outbox.row_query(relation oid) RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
WITH RECURSIVE parts AS (
    SELECT a.attnum, a.atttypid AS type FROM pg_attribute a WHERE a.attrelid = relation AND a.attnum > 0
    UNION
    SELECT p.attnum, m.type
    FROM parts p JOIN pg_type t ON t.oid = p.type
    CROSS JOIN LATERAL (SELECT unnest(ARRAY[t.typelem, t.typbasetype])
                        UNION ALL SELECT a.atttypid FROM pg_attribute a WHERE a.attrelid = t.typrelid AND a.attnum > 0) m (type)),
strange AS (
    SELECT DISTINCT p.attnum FROM parts p JOIN pg_type t ON t.oid = p.type JOIN pg_roles r ON r.oid = t.typowner
    WHERE t.typtype NOT IN ('c', 'd') AND t.typcategory <> 'A' AND NOT r.rolsuper AND r.rolname <> current_user)
SELECT 'SELECT to_jsonb(r) FROM (SELECT '
    || string_agg(format(CASE WHEN s.attnum IS NULL THEN '($1).%1$I'
                              ELSE 'CASE num_nulls(($1).%1$I) WHEN 0 THEN format(''%%s'', ($1).%1$I) END AS %1$I' END, a.attname), ', ')
    || ') r'
FROM pg_attribute a LEFT JOIN strange s USING (attnum)
WHERE a.attrelid = relation AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated <> 'v' AND EXISTS (SELECT FROM strange)
$$;

-- Times are in UTC, and all else is written as in a session with the defaults.
CREATE OR REPLACE FUNCTION outbox.emit_change() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET DateStyle = 'ISO, MDY'
SET IntervalStyle = 'postgres'
SET TimeZone = 'UTC'
SET extra_float_digits = 1
SET bytea_output = 'hex'
SET lc_monetary = 'C'
SET quote_all_identifiers = off
AS $$
DECLARE
    changed jsonb := jsonb_build_object('op', lower(TG_OP));
    before jsonb;
    after jsonb;
    key text;
    tenant text;
    former text;
    former_key text;
    missing text;
    query text;
    -- A cast to text could be one of a type's owner, too.
    text_of CONSTANT text := 'SELECT format(''%%s'', ($1).%I)';
    tenant_column CONSTANT text := NULLIF(TG_ARGV[3], '');
BEGIN
    IF TG_WHEN <> 'AFTER' OR TG_LEVEL <> 'ROW' THEN
        RAISE EXCEPTION 'outbox.emit_change() must be called by an AFTER ... FOR EACH ROW trigger'
            USING ERRCODE = 'trigger_protocol_violated',
                  HINT = 'CREATE TRIGGER ... AFTER INSERT OR UPDATE OR DELETE ON ... FOR EACH ROW '
                         'EXECUTE FUNCTION outbox.emit_change(''order.changed'', ''id'');';
    ELSIF TG_NARGS NOT BETWEEN 2 AND 5 THEN
        RAISE EXCEPTION 'outbox.emit_change() takes a topic, a key column, and optionally a list of columns, '
                        'a tenant column and fail or omit, not % arguments', TG_NARGS
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'EXECUTE FUNCTION outbox.emit_change(''order.changed'', ''id'', ''status,total'')';
    ELSIF TG_ARGV[4] NOT IN ('fail', 'omit') THEN
        RAISE EXCEPTION 'invalid last argument of outbox.emit_change(): "%"', TG_ARGV[4]
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Use ''fail'': a row that no event can carry is an error; or ''omit'': its event does not '
                         'have the row.';
    END IF;
    SELECT n INTO missing
    FROM (SELECT TG_ARGV[1] AS n
          UNION ALL SELECT jsonb_object_keys(outbox.carried(TG_ARGV[2], '{}')) WHERE TG_NARGS >= 3
          UNION ALL SELECT tenant_column WHERE tenant_column IS NOT NULL) names
    WHERE NOT EXISTS (SELECT 1 FROM pg_attribute a WHERE a.attrelid = TG_RELID AND a.attnum > 0
                      AND NOT a.attisdropped AND a.attgenerated <> 'v' AND a.attname = n) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'table "%" has no column "%" that outbox.emit_change() could use', TG_TABLE_NAME, missing
            USING ERRCODE = 'undefined_column',
                  HINT = 'Write a name as it is stored, in the same case. Put a name with commas or blanks in '
                         'double quotes. System columns and virtual columns cannot be used.';
    END IF;
    IF TG_OP <> 'DELETE' THEN
        EXECUTE format(text_of, TG_ARGV[1]) INTO key USING NEW;
    END IF;
    IF TG_OP <> 'INSERT' THEN
        EXECUTE format(text_of, TG_ARGV[1]) INTO former_key USING OLD;
    END IF;
    IF tenant_column IS NOT NULL AND TG_OP <> 'DELETE' THEN
        EXECUTE format(text_of, tenant_column) INTO tenant USING NEW;
    END IF;
    IF tenant_column IS NOT NULL AND TG_OP <> 'INSERT' THEN
        EXECUTE format(text_of, tenant_column) INTO former USING OLD;
    END IF;
    key := nullif(key, '');
    former_key := nullif(former_key, '');
    tenant := nullif(tenant, '');
    former := nullif(former, '');
    -- The trigger of a partition is a copy of its parent's.
    WITH RECURSIVE t AS (
        SELECT tgrelid, tgparentid FROM pg_trigger WHERE tgrelid = TG_RELID AND tgname = TG_NAME
        UNION ALL
        SELECT p.tgrelid, p.tgparentid FROM t JOIN pg_trigger p ON p.oid = t.tgparentid)
    SELECT changed || jsonb_build_object('table', format('%I.%I', s.nspname, c.relname)) INTO changed
    FROM t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace s ON s.oid = c.relnamespace
    WHERE t.tgparentid = 0;
    BEGIN
        -- PostgreSQL's own types, which have lower numbers, have no such casts.
        IF EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = TG_RELID AND a.atttypid >= 16384) THEN
            query := outbox.row_query(TG_RELID);
        END IF;
        IF query IS NULL THEN
            before := CASE WHEN TG_OP <> 'INSERT' THEN to_jsonb(OLD) END;
            after := CASE WHEN TG_OP <> 'DELETE' THEN to_jsonb(NEW) END;
        ELSE
            IF TG_OP <> 'INSERT' THEN
                EXECUTE query INTO before USING OLD;
            END IF;
            IF TG_OP <> 'DELETE' THEN
                EXECUTE query INTO after USING NEW;
            END IF;
        END IF;
        before := outbox.carried(TG_ARGV[2], before);
        after := outbox.carried(TG_ARGV[2], after);
        -- As text, because 1.0 is not 1.00 here.
        IF TG_OP = 'UPDATE' AND before::text = after::text AND former IS NOT DISTINCT FROM tenant THEN
            RETURN NULL;
        END IF;
        before := CASE WHEN TG_OP <> 'INSERT' THEN jsonb_build_object('old', before) END;
        after := CASE WHEN TG_OP <> 'DELETE' THEN jsonb_build_object('new', after) END;
        IF TG_ARGV[4] = 'omit' THEN
            PERFORM outbox.check_size('payload', octet_length((changed || COALESCE(after, '{}') || COALESCE(before, '{}'))::text));
        END IF;
    EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
        IF TG_ARGV[4] IS DISTINCT FROM 'omit' THEN
            RAISE;
        END IF;
        RAISE WARNING 'an event has only the key of its row: %', SQLERRM
            USING HINT = 'Receivers have to read the row, or the trigger has to carry fewer columns.';
        before := jsonb_build_object('omitted', SQLERRM);
        after := before;
    END;
    -- A tenant learns that a row of its has gone, and no other tenant sees that row.
    IF TG_OP = 'UPDATE' AND former IS DISTINCT FROM tenant THEN
        PERFORM outbox.emit(TG_ARGV[0], changed || '{"op": "delete"}' || before, key => former_key, tenant => former);
        PERFORM outbox.emit(TG_ARGV[0], changed || '{"op": "insert"}' || after, key => key, tenant => tenant);
        RETURN NULL;
    END IF;
    PERFORM outbox.emit(TG_ARGV[0], changed || COALESCE(after, '{}') || COALESCE(before, '{}'),
                        key => CASE WHEN TG_OP = 'DELETE' THEN former_key ELSE key END,
                        tenant => CASE WHEN TG_OP = 'DELETE' THEN former ELSE tenant END);
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION outbox.grant_emit(role text, topics text[] DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    f regprocedure;
BEGIN
    IF topics IS NOT NULL THEN
        RAISE EXCEPTION 'a role cannot be bound to topics at a server without the library'
            USING ERRCODE = 'feature_not_supported',
                  HINT = 'Leave topics out. The follower refuses topics that are not in its catalogue.';
    END IF;
    EXECUTE format('GRANT USAGE ON SCHEMA outbox TO %I', role);
    EXECUTE format('GRANT SELECT, INSERT ON outbox.outgoing TO %I', role);
    EXECUTE format('GRANT INSERT (id, topic, type, key, tenant, expires_at, headers, payload, body, content_type) '
                   'ON outbox.events TO %I', role);
    FOR f IN SELECT p.oid FROM pg_proc p
             WHERE p.pronamespace = 'outbox'::regnamespace AND p.proname IN ('append', 'emit', 'emit_bytes', 'key_text') LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', f, role);
    END LOOP;
END $$;

------------------------------------------------------------------------
-- For the server that follows
------------------------------------------------------------------------

-- Makes publications, each with a share of the events, and returns their names.  One share is the
-- publication outbox.  Else events of a tenant are in one share, and events without a tenant by key.
CREATE OR REPLACE FUNCTION outbox.divide(shares int4) RETURNS SETOF text
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET client_min_messages = error   -- that wal_level is not logical is said by outbox.follow()
AS $$
#variable_conflict use_variable
DECLARE
    name text;
    share text;
BEGIN
    IF shares IS NULL OR shares NOT BETWEEN 1 AND 100 THEN
        RAISE EXCEPTION 'invalid number of shares: %', COALESCE(shares::text, 'null')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Pass how many followers divide the events, up to 100.';
    END IF;
    FOR i IN 1 .. shares LOOP
        name := CASE shares WHEN 1 THEN 'outbox' ELSE format('outbox_%s_of_%s', i, shares) END;
        share := CASE WHEN shares > 1 THEN
            format('WHERE ((coalesce(hashtext(tenant), hashtext(key), uuid_hash(id)) & 2147483647) %% %s = %s)', shares, i - 1) END;
        IF NOT EXISTS (SELECT FROM pg_publication p WHERE p.pubname = name) THEN
            EXECUTE format('CREATE PUBLICATION %I FOR TABLE'
                ' outbox.emitted (id, xid, created_at, topic, type, key, tenant, expires_at, headers, payload, body, content_type) %s,'
                ' outbox.deferred (id, xid, created_at, deliver_at, topic, type, key, tenant, expires_at, headers, payload, body,'
                ' content_type) %2$s WITH (publish = ''insert'', publish_via_partition_root = true)', name, share);
        END IF;
        RETURN NEXT name;
    END LOOP;
END $$;
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_publication_rel r WHERE r.prrelid = 'outbox.emitted'::regclass) THEN
        PERFORM outbox.divide(1);
    END IF;
END $$;

-- The form of these tables, for a follower.  It is compared for equality.
CREATE OR REPLACE FUNCTION outbox.source_version() RETURNS text
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$ SELECT '1.0' $$;

-- Where the WAL was at a time, and what was committed then. A follower that has taken the WAL up to
-- such a place has all of it.
CREATE TABLE IF NOT EXISTS outbox.marks (
    mark         int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    begins       pg_lsn NOT NULL,        -- transactions that 'seen' does not see commit behind this place
    ends         pg_lsn NOT NULL,        -- those that it sees have committed before this one
    seen         pg_snapshot NOT NULL
);

-- How many events between two marks were removed here, for 30 days. A follower that had not taken
-- them says so (outbox.follow() there).
CREATE TABLE IF NOT EXISTS outbox.removed (
    removed_id   int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    removed_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    publication  text NOT NULL,          -- that has had them
    begun_at     timestamptz,            -- they were committed after this time (NULL: not known)
    ended_at     timestamptz,            -- and before this one
    begins       pg_lsn,                 -- the same in the WAL
    ends         pg_lsn,
    events       int8 NOT NULL
);

-- Counts the rows of a landing table that a condition selects. An event belongs to the first mark
-- that sees its transaction.
CREATE OR REPLACE FUNCTION outbox.count_removed(landing text, which text) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    p record;
BEGIN
    FOR p IN SELECT t.pubname, COALESCE(t.rowfilter, 'true') AS share FROM pg_publication_tables t
             WHERE t.schemaname = 'outbox' AND t.tablename = landing LOOP
        EXECUTE format(
            'INSERT INTO outbox.removed (publication, begun_at, ended_at, begins, ends, events)'
            ' SELECT %L, b.at, m.at, b.begins, m.ends, c.n'
            ' FROM (SELECT CASE WHEN p.xid < p.all_seen[p.place] THEN p.marks[p.place]'
            '              ELSE (SELECT min(k.mark) FROM outbox.marks k'
            '                    WHERE k.mark >= p.marks[p.place] AND pg_visible_in_snapshot(p.xid, k.seen)) END AS mark, sum(p.n) AS n'
            '       FROM (SELECT a.all_seen, a.marks, t.xid, t.n, width_bucket(t.xid, a.none_seen) + 1 AS place'
            '             FROM (SELECT array_agg(pg_snapshot_xmin(k.seen) ORDER BY k.mark) AS all_seen,'
            '                          array_agg(pg_snapshot_xmax(k.seen) ORDER BY k.mark) AS none_seen,'
            '                          array_agg(k.mark ORDER BY k.mark) AS marks FROM outbox.marks k) a,'
            '             (SELECT e.xid, count(*) AS n FROM outbox.%I e WHERE %s AND %s GROUP BY e.xid) t) p'
            '       GROUP BY 1) c'
            ' LEFT JOIN outbox.marks m ON m.mark = c.mark'
            ' LEFT JOIN LATERAL (SELECT k.* FROM outbox.marks k WHERE k.mark < m.mark ORDER BY k.mark DESC LIMIT 1) b ON true',
            p.pubname, landing, which, p.share);
    END LOOP;
END $$;

-- Called by a follower from time to time: empties pieces whose events every follower has durably
-- taken, and which were closed longer ago than 'keep', and opens another one.  A follower's slot
-- that the server has given up holds nothing back.  Returns how many pieces were emptied.
CREATE OR REPLACE FUNCTION outbox.tidy(keep interval DEFAULT '1 day') RETURNS int4
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '200ms'
AS $$
#variable_conflict use_variable
DECLARE
    p outbox.pieces;
    taken pg_lsn;
    late_query text;
    late bool;
    deferred text;
    emptied int4 := 0;
    free int2;
BEGIN
    -- One call at a time. Any role could take an advisory lock.
    BEGIN
        LOCK TABLE outbox.pieces IN SHARE UPDATE EXCLUSIVE MODE NOWAIT;
    EXCEPTION WHEN lock_not_available THEN
        RETURN 0;
    END;
    -- A slot that is not made yet begins when this transaction has ended: its follower counts the events that go now.
    PERFORM pg_current_xact_id();
    -- A follower that begins anew has a new slot, or none yet, and takes older events before it says so.
    SELECT CASE WHEN bool_and(s.confirmed_flush_lsn IS NOT NULL) THEN LEAST(min(s.confirmed_flush_lsn),
        (SELECT min(f.taken) FROM outbox.followers f WHERE f.round < 0 AND f.ended IS NULL)) END INTO taken
    FROM pg_replication_slots s
    WHERE s.database = current_database() AND starts_with(s.slot_name, 'outbox_') AND s.wal_status IS DISTINCT FROM 'lost';
    UPDATE outbox.pieces SET done_lsn = pg_current_wal_insert_lsn()
    WHERE closed_at IS NOT NULL AND done_lsn IS NULL AND pg_snapshot_xmin(pg_current_snapshot()) >= closed_xmax;

    FOR p IN SELECT * FROM outbox.pieces q WHERE q.done_lsn <= taken AND q.closed_at <= clock_timestamp() - keep LOOP
        -- A transaction that had found the piece open may have written later.
        late_query := format('SELECT EXISTS (SELECT FROM outbox.emitted_%1$s WHERE xid >= $1 UNION ALL'
                             ' SELECT FROM outbox.inserted_%1$s WHERE xid >= $1)', p.piece);
        EXECUTE late_query INTO late USING p.closed_xmax;
        IF late THEN
            UPDATE outbox.pieces SET closed_xmax = pg_snapshot_xmax(pg_current_snapshot()), done_lsn = NULL
            WHERE piece = p.piece;
            CONTINUE;
        END IF;
        deferred := format('e.xid < %L AND e.deliver_at <= %L', p.closed_xmax, p.closed_at);
        BEGIN
            -- Before the lock: a piece may have many rows.
            PERFORM outbox.count_removed('emitted', format('e.piece IN (%s, %s)', p.piece, p.piece + 10)),
                    outbox.count_removed('deferred', deferred);
            EXECUTE format('LOCK TABLE outbox.emitted_%1$s, outbox.inserted_%1$s IN ACCESS EXCLUSIVE MODE', p.piece);
            EXECUTE late_query INTO late USING p.closed_xmax;
            IF late THEN
                RAISE lock_not_available;
            END IF;
            EXECUTE format('TRUNCATE outbox.emitted_%1$s, outbox.inserted_%1$s', p.piece);
            UPDATE outbox.pieces SET opened_at = NULL, closed_at = NULL, closed_xmax = NULL, done_lsn = NULL
            WHERE piece = p.piece;
            EXECUTE 'DELETE FROM outbox.deferred e WHERE ' || deferred;
            emptied := emptied + 1;
        EXCEPTION WHEN lock_not_available THEN
            NULL;   -- a transaction writes or reads there: the next call tries again
        END;
    END LOOP;

    SELECT q.piece INTO free FROM outbox.pieces q WHERE q.opened_at IS NULL LIMIT 1;
    IF FOUND AND taken IS NOT NULL THEN
        UPDATE outbox.pieces SET closed_at = clock_timestamp(), closed_xmax = pg_snapshot_xmax(pg_current_snapshot())
        WHERE closed_at IS NULL AND opened_at <= clock_timestamp() - keep / 2;
        IF FOUND THEN
            UPDATE outbox.pieces SET opened_at = clock_timestamp() WHERE piece = free;
        END IF;
    END IF;
    -- The last mark before the oldest event is one that is needed.
    DELETE FROM outbox.marks m WHERE m.mark < (
        SELECT max(o.mark) FROM outbox.marks o WHERE o.at <= (SELECT min(q.opened_at) FROM outbox.pieces q));
    DELETE FROM outbox.removed r WHERE r.removed_at <= clock_timestamp() - interval '30 days';
    DELETE FROM outbox.followers f
    WHERE f.said_at <= clock_timestamp() - interval '30 days' AND NOT EXISTS (SELECT FROM pg_replication_slots s WHERE s.slot_name = f.slot);
    DELETE FROM outbox.dedup d WHERE d.ctid = ANY (ARRAY(
        SELECT o.ctid FROM outbox.dedup o WHERE o.created_at <= now() - interval '1 day'
        ORDER BY o.created_at LIMIT 10000 FOR UPDATE SKIP LOCKED));
    RETURN emptied;
END $$;

-- The last call of each follower.  It counts its calls in its own database.  So a follower, or a
-- source, that was restored from a backup has another count than the other one.
CREATE TABLE IF NOT EXISTS outbox.followers (
    slot         text PRIMARY KEY,
    round        int8 NOT NULL,          -- below 0: it begins anew
    said_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- All that was committed before this place is taken.  While it begins anew, no later piece is emptied.
    taken        pg_lsn,
    ended        pg_lsn                  -- and nothing behind this one (NULL: it goes on)
);

-- Stores the count of a follower, and how far it has taken the WAL (NULL: stores nothing.  Without a
-- count it has ended).  Returns what it stored before, this server and its timeline, a snapshot,
-- and a place in the WAL before and one behind the commits that the snapshot sees.
CREATE OR REPLACE FUNCTION outbox.check_in(slot text, round int8, taken pg_lsn DEFAULT NULL, OUT before int8, OUT had pg_lsn, OUT had_ended pg_lsn,
    OUT timeline text, OUT seen pg_snapshot, OUT begins pg_lsn, OUT lsn pg_lsn)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    -- A service makes a server read-only while its disk is full, maybe of WAL that this slot retains: it has to go on.
    marks bool := NOT current_setting('transaction_read_only')::bool;
BEGIN
    -- One after the other: marks have the order of their snapshots.
    BEGIN
        LOCK TABLE outbox.marks IN SHARE UPDATE EXCLUSIVE MODE NOWAIT;
    EXCEPTION WHEN lock_not_available THEN
        marks := false;
    END;
    begins := pg_current_wal_insert_lsn();
    seen := pg_current_snapshot();
    lsn := pg_current_wal_insert_lsn();
    timeline := concat_ws(' ', CASE WHEN has_function_privilege('pg_control_system()', 'EXECUTE')
                                    THEN (SELECT c.system_identifier FROM pg_control_system() c) END, left(pg_walfile_name(lsn), 8));
    SELECT f.round, f.taken, f.ended INTO before, had, had_ended FROM outbox.followers f WHERE f.slot = slot;
    before := COALESCE(before, 0);
    IF marks THEN
        INSERT INTO outbox.marks (begins, ends, seen) VALUES (begins, lsn, seen);
    END IF;
    IF round IS NOT NULL OR taken IS NOT NULL THEN
        INSERT INTO outbox.followers AS f (slot, round, taken, ended)
        VALUES (slot, COALESCE(round, before), taken, CASE WHEN round IS NULL THEN lsn END)
        ON CONFLICT ON CONSTRAINT followers_pkey DO UPDATE
            SET round = EXCLUDED.round, said_at = EXCLUDED.said_at, taken = EXCLUDED.taken, ended = EXCLUDED.ended;
    END IF;
END $$;

-- Called by a follower that begins.  After pg_dump and pg_restore rows have numbers of transactions,
-- and places in the WAL, of another server.  This one reaches them much later.
CREATE OR REPLACE FUNCTION outbox.renew() RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    next constant xid8 := pg_snapshot_xmax(pg_current_snapshot());
BEGIN
    DELETE FROM outbox.marks m WHERE pg_snapshot_xmax(m.seen) > next;
    UPDATE outbox.emitted e SET xid = pg_current_xact_id() WHERE e.xid >= next;
    UPDATE outbox.deferred e SET xid = pg_current_xact_id() WHERE e.xid >= next;
    UPDATE outbox.pieces p SET closed_xmax = pg_current_xact_id(), done_lsn = NULL
    WHERE p.closed_xmax > next OR p.done_lsn > pg_current_wal_insert_lsn();
END $$;

-- Called by a follower: it has taken these events, and forgets them (outbox.forget() there).
CREATE OR REPLACE FUNCTION outbox.remove_events(ids uuid[]) RETURNS int8
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
AS $$
#variable_conflict use_variable
DECLARE
    emitted int8;
    deferred int8;
BEGIN
    IF cardinality(ids) = 0 THEN
        RETURN 0;
    END IF;
    DELETE FROM outbox.emitted e WHERE e.id = ANY (ids);
    GET DIAGNOSTICS emitted = ROW_COUNT;
    DELETE FROM outbox.deferred e WHERE e.id = ANY (ids);
    GET DIAGNOSTICS deferred = ROW_COUNT;
    DELETE FROM outbox.dedup d WHERE d.event_id = ANY (ids);
    RETURN emitted + deferred;
END $$;

-- Called after it, for a whole tenant: the event of such a key has left this server.
CREATE OR REPLACE FUNCTION outbox.remove_dedup_keys(tenant text) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET lock_timeout = '10s'
AS $$
DELETE FROM outbox.dedup d
WHERE d.tenant = $1 AND NOT EXISTS (SELECT FROM outbox.emitted e WHERE e.id = d.event_id)
AND NOT EXISTS (SELECT FROM outbox.deferred e WHERE e.id = d.event_id)
$$;

-- The role needs the attribute REPLICATION, or its substitute at the service, too.
CREATE OR REPLACE FUNCTION outbox.grant_follow(role text) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA outbox TO %I', role);
    EXECUTE format('GRANT SELECT ON outbox.emitted, outbox.deferred, outbox.removed TO %I', role);
    EXECUTE format('GRANT EXECUTE ON FUNCTION outbox.tidy(interval), outbox.check_in(text, int8, pg_lsn), outbox.source_version(), outbox.renew(),'
                   ' outbox.remove_events(uuid[]), outbox.remove_dedup_keys(text) TO %I', role);
END $$;

-- New functions: existing ones keep their grants.  Roles that emit or follow may call the new ones.
-- A role that has functions by default only has no right to the schema.
DO $$
DECLARE
    f regprocedure;
    role name;
BEGIN
    FOR f IN SELECT p.oid FROM pg_proc p
             WHERE p.pronamespace = 'outbox'::regnamespace
             AND p.oid <> ALL (current_setting('source_sql.functions')::oid[]) LOOP
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', f);
        IF f IN ('outbox.new_event_id()'::regprocedure, 'outbox.key_text(anyelement)'::regprocedure,
                 'outbox.current_piece()'::regprocedure) THEN
            EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO PUBLIC', f);
        END IF;
    END LOOP;
    FOR f, role IN SELECT DISTINCT p.oid, r.rolname FROM pg_proc p, LATERAL aclexplode(p.proacl) a JOIN pg_roles r ON r.oid = a.grantee
                   WHERE p.oid IN ('outbox.tidy(interval)'::regprocedure, 'outbox.key_text(anyelement)'::regprocedure)
                   AND a.grantee <> p.proowner AND has_schema_privilege(r.oid, 'outbox', 'USAGE') LOOP
        IF f = 'outbox.tidy(interval)'::regprocedure THEN
            PERFORM outbox.grant_follow(role);
        ELSE
            PERFORM outbox.grant_emit(role);
        END IF;
    END LOOP;
END $$;
COMMIT;
