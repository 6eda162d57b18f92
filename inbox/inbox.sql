-- inbox: each event of a sender is accepted once, in the transaction that does the
-- work.  This file is the extension's script, and can be run as it is where extensions
-- may not be installed: psql -1 -v ON_ERROR_STOP=1 -f inbox/inbox.sql
-- It needs PostgreSQL 15 and the right to create a schema.  doc/inbox.md says how it is used.

SET LOCAL search_path TO pg_catalog, pg_temp;

CREATE SCHEMA inbox;
COMMENT ON SCHEMA inbox IS 'Which events of which sender have been accepted';

------------------------------------------------------------------------
-- Accepted ids, in three pieces that are filled in turn.
--
-- An id is inserted into one piece, and looked up in the one that was filled before.
-- The third piece is emptied by TRUNCATE, so nothing is deleted row by row and no dead
-- rows are left.  A unique index covers one piece only.  While transactions change from
-- one piece to the next, an id must not be accepted twice because two of them insert
-- into different pieces.  This is how that is prevented.
--
-- Phases.  inbox.rotation has one row, and in it a phase n = 3 * g + s.  Pieces are
-- numbered modulo 3.
--
--     s   inserts into    looks up in    then
--     0   g               g - 1          g + 1 is emptied
--     1   g               g - 1          g + 1 is empty; this lasts for the retention
--     2   g and g + 1     g - 1          the next phase inserts into g + 1 alone
--
-- Rule 1.  A transaction that accepts in phase n locks the table inbox.phase_<n % 2>
-- (ROW SHARE, until its end), and afterwards finds that n is still the committed phase.
-- A snapshot that is fixed cannot see that: such a transaction locks the row for a
-- moment, which fails with 40001 when the row has changed since its snapshot.
--
-- Rule 2.  The step from n to n + 1 is made by a transaction that has seen n committed,
-- and after that has found that no other transaction holds inbox.phase_<(n - 1) % 2>.
-- It goes on in phase n itself, and makes no second step.
--
-- Claim 1.  When n + 1 is committed, no transaction of phase n - 1 or earlier is left,
-- and none begins.  By rule 1 such a transaction had its lock before n was committed.
-- The step would have found that lock.  So at any time all transactions are in two
-- successive phases.
--
-- Claim 2.  Two transactions that both accept one id would have to be in phases a and b,
-- a <= b.  If b - a <= 1, both insert into one piece, as the table shows, and its unique
-- index lets the second one wait for the first.  The piece is not emptied in between:
-- phases 3 * g - 1 and 3 * g do not insert into g + 1.  If b - a >= 2, the first one had
-- ended before b was committed, so the second one, which has seen b, sees its
-- rows: into g or g - 1 of the second one, unless whole phases with s = 0 and s = 1
-- lie between them.  Together these last for the retention.
--
-- No step waits.  It locks with NOWAIT, or it gives up until
-- later.  No accept waits for a step: the piece that is emptied is not used in the
-- phases n and n - 1, by claim 1 the only ones.
------------------------------------------------------------------------

CREATE TABLE inbox.ids_0 (
    source      text COLLATE "C" NOT NULL,
    id          bytea NOT NULL,
    accepted_at timestamptz NOT NULL,
    PRIMARY KEY (source, id)
);
CREATE TABLE inbox.ids_1 (LIKE inbox.ids_0 INCLUDING ALL);
CREATE TABLE inbox.ids_2 (LIKE inbox.ids_0 INCLUDING ALL);
COMMENT ON TABLE inbox.ids_0 IS 'Accepted ids. The first byte of an id is 1 for a UUID of 16 bytes, 0 for text in UTF-8';
COMMENT ON TABLE inbox.ids_1 IS 'As inbox.ids_0';
COMMENT ON TABLE inbox.ids_2 IS 'As inbox.ids_0';

CREATE TABLE inbox.phase_0 (none int PRIMARY KEY);
CREATE TABLE inbox.phase_1 (LIKE inbox.phase_0 INCLUDING ALL);
COMMENT ON TABLE inbox.phase_0 IS 'Empty. A transaction that accepts in an even phase locks it';
COMMENT ON TABLE inbox.phase_1 IS 'Empty. A transaction that accepts in an odd phase locks it';

CREATE TABLE inbox.rotation (
    one        boolean PRIMARY KEY DEFAULT true CHECK (one),
    phase      int8 NOT NULL DEFAULT 1,
    since      timestamptz NOT NULL DEFAULT clock_timestamp(),
    retention  interval NOT NULL DEFAULT '14 days',
    next_step  timestamptz NOT NULL DEFAULT clock_timestamp() + interval '14 days',
    changed_by xid8 NOT NULL DEFAULT pg_current_xact_id()
) WITH (fillfactor = 50);
COMMENT ON TABLE inbox.rotation IS
'One row: the phase, since when its piece is filled, when the next step is due, and the transaction that made the last one';
INSERT INTO inbox.rotation DEFAULT VALUES;

-- A dump of the extension brings the row along, and CREATE EXTENSION has made one.
CREATE FUNCTION inbox.replace_rotation() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    DELETE FROM inbox.rotation;
    NEW.changed_by := pg_current_xact_id();
    RETURN NEW;
END $$;
COMMENT ON FUNCTION inbox.replace_rotation IS 'Trigger: the row that a restore brings takes the place of the one that is there';
CREATE TRIGGER replace BEFORE INSERT ON inbox.rotation
    FOR EACH ROW EXECUTE FUNCTION inbox.replace_rotation();
-- Also where session_replication_role is replica: with another phase, ids are not found.
ALTER TABLE inbox.rotation ENABLE ALWAYS TRIGGER replace;

CREATE FUNCTION inbox.rotate() RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    r inbox.rotation;
    moment timestamptz := clock_timestamp();
BEGIN
    SELECT * INTO STRICT r FROM inbox.rotation WHERE one;

    -- The phase has to be committed, see rule 2.
    IF r.changed_by = pg_current_xact_id_if_assigned() THEN
        RETURN 'uncommitted';
    END IF;
    IF moment BETWEEN r.since AND r.next_step THEN
        RETURN 'not due';
    END IF;

    -- The locks of a block that ends with an error are released.
    BEGIN
        IF r.phase % 2 = 1 THEN
            LOCK TABLE inbox.phase_0 IN EXCLUSIVE MODE NOWAIT;
        ELSE
            LOCK TABLE inbox.phase_1 IN EXCLUSIVE MODE NOWAIT;
        END IF;
        RAISE SQLSTATE 'IB001';
    EXCEPTION
        WHEN SQLSTATE 'IB001' THEN NULL;
        WHEN lock_not_available THEN RETURN 'waits';
    END;

    BEGIN
        -- One session makes the step, the others do not wait for it.
        PERFORM FROM inbox.rotation
        WHERE one AND phase = r.phase AND moment NOT BETWEEN since AND next_step
        FOR NO KEY UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            RETURN 'busy';
        END IF;

        -- A clock that was ahead had set the times.  Ids are rather kept for too long.
        IF r.since > moment THEN
            UPDATE inbox.rotation
            SET since = moment, next_step = CASE phase % 3 WHEN 1 THEN moment + retention ELSE next_step END
            WHERE one;
            RETURN 'clock';
        END IF;

        IF r.phase % 3 = 0 THEN
            CASE (r.phase / 3 + 1) % 3
            WHEN 0 THEN
                LOCK TABLE inbox.ids_0 IN ACCESS EXCLUSIVE MODE NOWAIT;
                TRUNCATE inbox.ids_0;
            WHEN 1 THEN
                LOCK TABLE inbox.ids_1 IN ACCESS EXCLUSIVE MODE NOWAIT;
                TRUNCATE inbox.ids_1;
            ELSE
                LOCK TABLE inbox.ids_2 IN ACCESS EXCLUSIVE MODE NOWAIT;
                TRUNCATE inbox.ids_2;
            END CASE;
        END IF;

        UPDATE inbox.rotation SET
            phase = phase + 1,
            since = CASE phase % 3 WHEN 2 THEN moment ELSE since END,
            next_step = CASE phase % 3 WHEN 0 THEN since + retention ELSE '-infinity' END,
            changed_by = pg_current_xact_id()
        WHERE one;
        RETURN CASE r.phase % 3 WHEN 0 THEN 'emptied' WHEN 1 THEN 'opened' ELSE 'changed' END;
    EXCEPTION
        WHEN lock_not_available OR object_in_use THEN RETURN 'waits';
    END;
END $$;
COMMENT ON FUNCTION inbox.rotate IS
'Makes the next step of the rotation, if one is due: opened, changed or emptied. Otherwise says why not: not due, waits (for transactions or readers), busy (another session makes it), uncommitted (this transaction has made one), clock (times that were ahead are set right). accept() calls it by itself';

CREATE FUNCTION inbox.accept(source text, id text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    -- The collation of the arguments is the caller's, which may compare in its own way.
    sender text COLLATE "C" := accept.source;
    event  text COLLATE "C" := accept.id;
    r      inbox.rotation;
    n      int8;
    key    bytea;
    moment timestamptz := clock_timestamp();
BEGIN
    IF sender IS NULL OR event IS NULL THEN
        RAISE EXCEPTION '% of an event must not be null', CASE WHEN sender IS NULL THEN 'the source' ELSE 'the id' END
            USING ERRCODE = 'null_value_not_allowed',
                  HINT = 'Pass the name of the sender and the id that it gave the event. A request without an id cannot be accepted once.';
    END IF;
    IF sender = '' OR event = '' THEN
        RAISE EXCEPTION '% of an event must not be empty', CASE sender WHEN '' THEN 'the source' ELSE 'the id' END
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = CASE sender WHEN '' THEN 'Pass the name of the sender. Events of all senders without a name would share their ids.'
                                     ELSE 'All events with an empty id would be taken for one. Look where the id comes from.' END;
    END IF;

    -- Text that is a UUID is the same id as that UUID.
    key := CASE WHEN event ~ '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$'
           THEN E'\\x01'::bytea || uuid_send(event::uuid)
           ELSE E'\\x00'::bytea || convert_to(event, 'UTF8') END;
    IF octet_length(sender) > 255 OR octet_length(key) > 1025 THEN
        RAISE EXCEPTION '% of an event is too long', CASE WHEN octet_length(sender) > 255 THEN 'the source' ELSE 'the id' END
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'A source has at most 255 bytes, an id 1024. For a longer id, pass a hash of it.';
    END IF;

    LOOP
        -- Rule 1.  The transaction that has made a step stays in the phase before it.
        SELECT * INTO STRICT r FROM inbox.rotation WHERE one;
        n := r.phase - CASE WHEN r.changed_by = pg_current_xact_id_if_assigned() THEN 1 ELSE 0 END;
        IF n % 2 = 0 THEN
            LOCK TABLE inbox.phase_0 IN ROW SHARE MODE;
        ELSE
            LOCK TABLE inbox.phase_1 IN ROW SHARE MODE;
        END IF;
        IF current_setting('transaction_isolation') <> 'read committed' THEN
            -- 40001, or the phase is the committed one.  If another session is making a
            -- step, it still is.  Steps need not wait for the end of this transaction.
            BEGIN
                PERFORM FROM inbox.rotation WHERE one FOR SHARE SKIP LOCKED;
                RAISE SQLSTATE 'IB001';
            EXCEPTION
                WHEN SQLSTATE 'IB001' THEN NULL;
            END;
        END IF;

        -- The snapshot of each INSERT is newer than the lock, and sees the phase once more.
        CASE n / 3 % 3
        WHEN 0 THEN
            INSERT INTO inbox.ids_0 (source, id, accepted_at)
            SELECT sender, key, moment FROM inbox.rotation p
            WHERE p.one AND p.phase = r.phase
            AND NOT EXISTS (SELECT FROM inbox.ids_2 o WHERE o.source = sender AND o.id = key)
            ON CONFLICT (source, id) DO NOTHING;
        WHEN 1 THEN
            INSERT INTO inbox.ids_1 (source, id, accepted_at)
            SELECT sender, key, moment FROM inbox.rotation p
            WHERE p.one AND p.phase = r.phase
            AND NOT EXISTS (SELECT FROM inbox.ids_0 o WHERE o.source = sender AND o.id = key)
            ON CONFLICT (source, id) DO NOTHING;
        ELSE
            INSERT INTO inbox.ids_2 (source, id, accepted_at)
            SELECT sender, key, moment FROM inbox.rotation p
            WHERE p.one AND p.phase = r.phase
            AND NOT EXISTS (SELECT FROM inbox.ids_1 o WHERE o.source = sender AND o.id = key)
            ON CONFLICT (source, id) DO NOTHING;
        END CASE;
        EXIT WHEN FOUND;

        -- It was accepted before, or the phase has changed.
        PERFORM FROM inbox.rotation WHERE one AND phase = r.phase;
        IF FOUND THEN
            RETURN false;
        END IF;
    END LOOP;

    IF n % 3 = 2 THEN
        CASE (n / 3 + 1) % 3
        WHEN 0 THEN
            INSERT INTO inbox.ids_0 (source, id, accepted_at) VALUES (sender, key, moment)
            ON CONFLICT (source, id) DO NOTHING;
        WHEN 1 THEN
            INSERT INTO inbox.ids_1 (source, id, accepted_at) VALUES (sender, key, moment)
            ON CONFLICT (source, id) DO NOTHING;
        ELSE
            INSERT INTO inbox.ids_2 (source, id, accepted_at) VALUES (sender, key, moment)
            ON CONFLICT (source, id) DO NOTHING;
        END CASE;
        IF NOT FOUND THEN
            RETURN false;
        END IF;
    END IF;

    -- A step that is due is tried by one call in ten.  While it cannot be made, the others
    -- do not pay for the try.
    IF moment NOT BETWEEN r.since AND r.next_step AND random() < 0.1 THEN
        BEGIN
            PERFORM inbox.rotate();
        EXCEPTION
            WHEN serialization_failure THEN NULL;
            WHEN OTHERS THEN
                RAISE LOG 'inbox: the next step of the rotation failed: %', SQLERRM;
        END;
    END IF;
    RETURN true;
END $$;
COMMENT ON FUNCTION inbox.accept(text, text) IS
'True if this event of this source is seen for the first time: do its work in this transaction. False if a committed transaction has accepted it. Waits for another transaction that is just accepting it';

CREATE FUNCTION inbox.accept(source text, id uuid) RETURNS boolean
LANGUAGE sql
RETURN inbox.accept($1, $2::text);
COMMENT ON FUNCTION inbox.accept(text, uuid) IS 'As accept(text, text), for the same ids: a UUID and its text are one id';

------------------------------------------------------------------------
-- Kafka: one row for each partition
------------------------------------------------------------------------

CREATE TABLE inbox.partition_offsets (
    source      text COLLATE "C" NOT NULL CHECK (octet_length(source) BETWEEN 1 AND 255),
    partition   int4 NOT NULL,
    "offset"    int8 NOT NULL,
    accepted_at timestamptz NOT NULL,
    PRIMARY KEY (source, partition)
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE inbox.partition_offsets IS 'The highest offset that was accepted of each partition';

CREATE FUNCTION inbox.accept_offset(source text, partition int4, "offset" int8) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_column
BEGIN
    IF accept_offset.source IS NULL OR accept_offset.partition IS NULL OR accept_offset."offset" IS NULL THEN
        RAISE EXCEPTION '% of an event must not be null',
            CASE WHEN accept_offset.source IS NULL THEN 'the source' WHEN accept_offset.partition IS NULL THEN 'the partition' ELSE 'the offset' END
            USING ERRCODE = 'null_value_not_allowed',
                  HINT = 'Pass the topic, and the partition and the offset of the record.';
    END IF;
    IF octet_length(accept_offset.source) NOT BETWEEN 1 AND 255 THEN
        RAISE EXCEPTION 'the source of an event must have 1 to 255 bytes'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Pass the topic.';
    END IF;
    IF accept_offset.partition < 0 OR accept_offset."offset" < 0 THEN
        RAISE EXCEPTION '% of an event must not be negative', CASE WHEN accept_offset.partition < 0 THEN 'the partition' ELSE 'the offset' END
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Pass what the record has. A negative number is a special value of the client.';
    END IF;
    INSERT INTO inbox.partition_offsets AS o (source, partition, "offset", accepted_at)
    VALUES (accept_offset.source, accept_offset.partition, accept_offset."offset", clock_timestamp())
    ON CONFLICT (source, partition) DO UPDATE
    SET "offset" = EXCLUDED."offset", accepted_at = EXCLUDED.accepted_at
    WHERE o."offset" < EXCLUDED."offset";
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION inbox.accept_offset IS
'True if the offset is higher than all that were accepted of this partition: do the work in this transaction. Only for a partition that is read in order';

CREATE FUNCTION inbox.forget_offsets(source text) RETURNS int8
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    n int8;
BEGIN
    IF forget_offsets.source IS NULL THEN
        RAISE EXCEPTION 'the source must not be null'
            USING ERRCODE = 'null_value_not_allowed', HINT = 'Pass the topic whose offsets begin anew.';
    END IF;
    DELETE FROM inbox.partition_offsets WHERE source = forget_offsets.source COLLATE "C";
    GET DIAGNOSTICS n = ROW_COUNT;
    RETURN n;
END $$;
COMMENT ON FUNCTION inbox.forget_offsets IS
'Forgets the offsets of a topic that was made anew, whose offsets begin at 0. Returns the number of partitions';

------------------------------------------------------------------------
-- Retention and views
------------------------------------------------------------------------

CREATE FUNCTION inbox.set_retention(retention interval) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF set_retention.retention IS NULL THEN
        RAISE EXCEPTION 'the retention must not be null'
            USING ERRCODE = 'null_value_not_allowed', HINT = 'Pass an interval, such as ''14 days''.';
    END IF;
    -- A month has as many days as the calendar says, so '1 mon -29 days' may be no time at all
    IF set_retention.retention NOT BETWEEN '1 hour' AND '10 years'
       OR LEAST(extract(year FROM set_retention.retention), extract(month FROM set_retention.retention),
                extract(day FROM set_retention.retention), extract(hour FROM set_retention.retention),
                extract(minute FROM set_retention.retention), extract(second FROM set_retention.retention)) < 0 THEN
        RAISE EXCEPTION 'the retention must be from 1 hour to 10 years, without negative parts'
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Ids have to be kept for longer than the sender may send an event again.';
    END IF;
    UPDATE inbox.rotation SET
        retention = set_retention.retention,
        next_step = CASE phase % 3 WHEN 1 THEN since + set_retention.retention ELSE next_step END
    WHERE one;
END $$;
COMMENT ON FUNCTION inbox.set_retention IS
'For how long an accepted id is refused at least; at most twice as long. 14 days unless this is called';

-- The piece that waits to be emptied is not shown.  An id that two pieces have is shown once.
CREATE VIEW inbox.accepted WITH (security_barrier) AS
SELECT a.source,
       CASE get_byte(a.id, 0) WHEN 1 THEN encode(substring(a.id FROM 2), 'hex')::uuid::text
       ELSE convert_from(substring(a.id FROM 2), 'UTF8') END AS id,
       a.accepted_at
FROM (SELECT i.* FROM inbox.ids_0 i
      WHERE (SELECT r.phase % 3 = 2 OR (r.phase / 3 + 1) % 3 <> 0 FROM inbox.rotation r WHERE r.one)
      AND NOT EXISTS (SELECT FROM inbox.ids_2 o WHERE o.source = i.source AND o.id = i.id
                      AND (SELECT r.phase % 3 = 2 OR (r.phase / 3 + 1) % 3 <> 2 FROM inbox.rotation r WHERE r.one))
      UNION ALL
      SELECT i.* FROM inbox.ids_1 i
      WHERE (SELECT r.phase % 3 = 2 OR (r.phase / 3 + 1) % 3 <> 1 FROM inbox.rotation r WHERE r.one)
      AND NOT EXISTS (SELECT FROM inbox.ids_0 o WHERE o.source = i.source AND o.id = i.id
                      AND (SELECT r.phase % 3 = 2 OR (r.phase / 3 + 1) % 3 <> 0 FROM inbox.rotation r WHERE r.one))
      UNION ALL
      SELECT i.* FROM inbox.ids_2 i
      WHERE (SELECT r.phase % 3 = 2 OR (r.phase / 3 + 1) % 3 <> 2 FROM inbox.rotation r WHERE r.one)
      AND NOT EXISTS (SELECT FROM inbox.ids_1 o WHERE o.source = i.source AND o.id = i.id
                      AND (SELECT r.phase % 3 = 2 OR (r.phase / 3 + 1) % 3 <> 1 FROM inbox.rotation r WHERE r.one))) a;
COMMENT ON VIEW inbox.accepted IS 'The ids that are refused because they were accepted';
COMMENT ON COLUMN inbox.accepted.source IS 'Name of the sender';
COMMENT ON COLUMN inbox.accepted.id IS 'Id that the sender gave the event';
COMMENT ON COLUMN inbox.accepted.accepted_at IS 'When accept() was called';

CREATE VIEW inbox.offsets WITH (security_barrier) AS
SELECT source, partition, "offset", accepted_at FROM inbox.partition_offsets;
COMMENT ON VIEW inbox.offsets IS 'The highest offset that was accepted of each partition';
COMMENT ON COLUMN inbox.offsets.source IS 'Name of the topic';
COMMENT ON COLUMN inbox.offsets.partition IS 'Number of the partition';
COMMENT ON COLUMN inbox.offsets."offset" IS 'The highest offset that was accepted';
COMMENT ON COLUMN inbox.offsets.accepted_at IS 'When it was accepted';

CREATE VIEW inbox.status WITH (security_barrier) AS
SELECT r.retention,
       CASE r.phase % 3 WHEN 0 THEN 'emptying' WHEN 1 THEN 'filling' ELSE 'changing' END AS state,
       r.since,
       CASE r.phase % 3 WHEN 1 THEN r.next_step END AS changes_at,
       ARRAY(SELECT DISTINCT COALESCE(l.pid, 0) FROM pg_locks l
             WHERE (r.phase % 3 <> 1 OR r.next_step < clock_timestamp()) AND l.granted AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
             AND l.mode = 'RowShareLock'
             AND l.relation = CASE r.phase % 2 WHEN 1 THEN 'inbox.phase_0' ELSE 'inbox.phase_1' END::regclass
             ORDER BY 1) AS waits_for,
       pg_total_relation_size('inbox.ids_0') + pg_total_relation_size('inbox.ids_1')
           + pg_total_relation_size('inbox.ids_2') AS bytes
FROM inbox.rotation r;
COMMENT ON VIEW inbox.status IS 'The rotation of the pieces in which ids are kept';
COMMENT ON COLUMN inbox.status.retention IS 'For how long an id is refused at least';
COMMENT ON COLUMN inbox.status.state IS
'filling: ids go to one piece; changing: they go to the next one as well; emptying: the oldest piece is to be emptied';
COMMENT ON COLUMN inbox.status.since IS 'When the present piece began to be filled';
COMMENT ON COLUMN inbox.status.changes_at IS 'When state filling ends, by the next accept() or rotate()';
COMMENT ON COLUMN inbox.status.waits_for IS
'Processes whose transactions the next step waits for; 0 is a prepared transaction';
COMMENT ON COLUMN inbox.status.bytes IS 'Size of the pieces on disk';

------------------------------------------------------------------------
-- Signatures of Standard Webhooks
------------------------------------------------------------------------

-- RFC 2104.  The four bytes that bit_send begins with are the length.
CREATE FUNCTION inbox.hmac_sha256(key bytea, message bytea) RETURNS bytea
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN (
    SELECT sha256(substring(bit_send(k.bits # ('x' || repeat('5c', 64))::bit(512)) FROM 5)
                  || sha256(substring(bit_send(k.bits # ('x' || repeat('36', 64))::bit(512)) FROM 5) || message))
    FROM (SELECT ('x' || rpad(encode(CASE WHEN octet_length(key) > 64 THEN sha256(key) ELSE key END, 'hex'), 128, '0'))::bit(512)) k (bits));
COMMENT ON FUNCTION inbox.hmac_sha256 IS 'HMAC-SHA256, NULL if an argument is';

CREATE FUNCTION inbox.verify(secrets text[], id text, "timestamp" text, body bytea, signatures text,
    tolerance interval DEFAULT '5 minutes') RETURNS boolean
LANGUAGE plpgsql PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    secret   text COLLATE "C";
    key      bytea;
    keys     bytea[] := '{}';
    expected bytea;
    given    text;
    valid    boolean := false;
BEGIN
    IF cardinality(secrets) NOT BETWEEN 1 AND 10 OR array_ndims(secrets) > 1 THEN
        RAISE EXCEPTION 'there must be 1 to 10 secrets'
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Pass the present secret, and during a rotation the former one, too, in one list.';
    ELSIF secrets IS NULL OR array_position(secrets, NULL) IS NOT NULL OR body IS NULL OR tolerance IS NULL THEN
        RAISE EXCEPTION '% must not be null',
            CASE WHEN body IS NULL THEN 'the body' WHEN tolerance IS NULL THEN 'the tolerance' ELSE 'a secret' END
            USING ERRCODE = 'null_value_not_allowed',
                  HINT = CASE WHEN body IS NOT NULL AND tolerance IS NULL THEN 'Leave it out, or pass an interval like ''5 minutes''.'
                                     ELSE 'Pass the secrets of the sender and the body as it came. An empty body is empty, and not null.' END;
    ELSIF tolerance NOT BETWEEN '0' AND '1000 years' THEN
        RAISE EXCEPTION 'invalid tolerance %', tolerance
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Use 0 to 1000 years, like ''5 minutes''.';
    END IF;
    FOREACH secret IN ARRAY secrets LOOP
        key := NULL;
        IF starts_with(secret, 'whsec_') THEN
            BEGIN
                key := decode(rpad(substring(secret FROM 7), (length(secret) - 3) / 4 * 4, '='), 'base64');
            EXCEPTION
                WHEN data_exception THEN NULL;
            END;
        END IF;
        IF key IS NULL OR octet_length(key) NOT BETWEEN 24 AND 75 THEN
            RAISE EXCEPTION 'a secret is not one of Standard Webhooks'
                USING ERRCODE = 'invalid_parameter_value',
                      HINT = 'It begins with whsec_, and goes on with the base64 of 24 to 75 bytes.';
        END IF;
        keys := keys || key;
    END LOOP;

    -- A missing or malformed part makes a request invalid.
    IF id IS NULL OR signatures IS NULL OR verify.timestamp IS NULL OR verify.timestamp COLLATE "C" !~ '^[0-9]{1,10}$' THEN
        RETURN false;
    END IF;
    IF clock_timestamp() NOT BETWEEN to_timestamp(verify.timestamp::float8) - tolerance
                                 AND to_timestamp(verify.timestamp::float8) + tolerance THEN
        RETURN false;
    END IF;

    -- Hashes are compared that begin with the key, which no sender of forged requests
    -- knows.  So the time that a comparison takes says nothing about the signature.
    -- A request has one signature for each secret of the sender.
    FOREACH key IN ARRAY keys LOOP
        expected := convert_to('v1,' || encode(inbox.hmac_sha256(key, convert_to(id || '.' || verify.timestamp || '.', 'UTF8') || body), 'base64'), 'UTF8');
        FOREACH given IN ARRAY (string_to_array(signatures COLLATE "C", ' '))[1:10] LOOP
            valid := (sha256(key || convert_to(given, 'UTF8')) = sha256(key || expected)) OR valid;
        END LOOP;
    END LOOP;
    RETURN valid;
END $$;
COMMENT ON FUNCTION inbox.verify(text[], text, text, bytea, text, interval) IS
'True if one of the signatures of a Standard Webhooks request was made with one of the secrets, and its time is within the tolerance. Missing headers may be NULL, which is false';

CREATE FUNCTION inbox.verify(secret text, id text, "timestamp" text, body bytea, signatures text,
    tolerance interval DEFAULT '5 minutes') RETURNS boolean
LANGUAGE sql PARALLEL SAFE
RETURN inbox.verify(ARRAY[$1], $2, $3, $4, $5, $6);
COMMENT ON FUNCTION inbox.verify(text, text, text, bytea, text, interval) IS 'The same with one secret';

CREATE FUNCTION inbox.verify(secrets text[], id text, "timestamp" text, body text, signatures text,
    tolerance interval DEFAULT '5 minutes') RETURNS boolean
LANGUAGE sql PARALLEL SAFE
RETURN inbox.verify($1, $2, $3, convert_to($4, 'UTF8'), $5, $6);
COMMENT ON FUNCTION inbox.verify(text[], text, text, text, text, interval) IS 'The same with a body of text, which is signed as UTF-8';

CREATE FUNCTION inbox.verify(secret text, id text, "timestamp" text, body text, signatures text,
    tolerance interval DEFAULT '5 minutes') RETURNS boolean
LANGUAGE sql PARALLEL SAFE
RETURN inbox.verify(ARRAY[$1], $2, $3, convert_to($4, 'UTF8'), $5, $6);
COMMENT ON FUNCTION inbox.verify(text, text, text, text, text, interval) IS 'The same with one secret and a body of text';

------------------------------------------------------------------------
-- Privileges: at first only the owner has any.  doc/inbox.md lists the grants.
------------------------------------------------------------------------

-- Default privileges of the role that runs this may have granted others something.
DO $$
DECLARE
    grantee text;
BEGIN
    FOR grantee IN
        SELECT DISTINCT COALESCE(quote_ident(r.rolname), 'PUBLIC')
        FROM (SELECT c.relacl, c.relowner FROM pg_class c WHERE c.relnamespace = 'inbox'::regnamespace
              UNION ALL
              SELECT COALESCE(p.proacl, acldefault('f', p.proowner)), p.proowner FROM pg_proc p
              WHERE p.pronamespace = 'inbox'::regnamespace
              UNION ALL
              SELECT n.nspacl, n.nspowner FROM pg_namespace n WHERE n.nspname = 'inbox') o (acl, owner)
        CROSS JOIN LATERAL aclexplode(o.acl) a
        LEFT JOIN pg_roles r ON r.oid = a.grantee
        WHERE a.grantee <> o.owner
    LOOP
        EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA inbox FROM %s', grantee);
        EXECUTE format('REVOKE ALL ON ALL FUNCTIONS IN SCHEMA inbox FROM %s', grantee);
        EXECUTE format('REVOKE ALL ON SCHEMA inbox FROM %s', grantee);
    END LOOP;
END $$;
