------------------------------------------------------------------------
-- Forgetting a tenant, or its events of one key: their content is removed, and nothing of it is sent.
--
-- An event is forgotten if it has neither payload nor body.  That is so once a worker
-- has emptied its row.  Until then, an event that the snapshot of an open request sees counts
-- as forgotten.
------------------------------------------------------------------------

CREATE TABLE outbox.forgotten (
    forget_id       int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant          text COLLATE "C" NOT NULL,
    key             text COLLATE "C",           -- NULL: all of the tenant; 'forgotten' once complete, here and at the sources
    snapshot        pg_snapshot NOT NULL,       -- events that it sees were emitted before
    upto            int8 NOT NULL,              -- that has no higher number
    requested_at    timestamptz NOT NULL,
    endpoints       int8 NOT NULL,
    events          int8 NOT NULL DEFAULT 0,
    attempts        int8 NOT NULL DEFAULT 0,
    deliveries      int8 NOT NULL DEFAULT 0,
    scheduled       int8 NOT NULL DEFAULT 0,
    dedup_keys      int8 NOT NULL DEFAULT 0,
    complete_at     timestamptz,
    sources         text[] NOT NULL DEFAULT '{}', -- of outbox.followed: the ones that may still have it
    files           jsonb                       -- the file of each table at that time
);
CREATE INDEX forgotten_open_idx ON outbox.forgotten (tenant) WHERE complete_at IS NULL;
CREATE INDEX forgotten_order_idx ON outbox.forgotten (forget_id) WHERE complete_at IS NULL;
COMMENT ON TABLE outbox.forgotten IS 'Tenants whose events outbox.forget() removed, and how far that is';

-- Without SET, so that PostgreSQL puts it into the statement that calls it.
CREATE FUNCTION outbox.forgets(f outbox.forgotten, tenant text, key text, epoch int8, xid xid8) RETURNS bool
LANGUAGE sql STABLE PARALLEL UNSAFE
RETURN f.complete_at IS NULL AND f.tenant = tenant AND (f.key IS NULL OR f.key = key)
    AND pg_visible_in_snapshot(outbox.log_xid(epoch, xid), f.snapshot);
COMMENT ON FUNCTION outbox.forgets IS
'True if this call of outbox.forget() is open and means this event, whether its row is empty yet or not';

-- No statistics of secrets and forgotten content: they are samples of the columns, which
-- pg_read_all_data reads, and no removal of a row removes.
DO $$
DECLARE
    c record;
BEGIN
    FOR c IN SELECT a.attrelid::regclass AS relation, a.attname
             FROM pg_attribute a JOIN pg_class r ON r.oid = a.attrelid
             WHERE r.relnamespace = 'outbox'::regnamespace AND r.relkind IN ('r', 'p')
             AND (r.relname ~ '^(events|attempt_log)(_[0-9])?$' OR r.relname IN (
                  'kept_events', 'scheduled', 'parked', 'dedup', 'endpoint_secrets', 'endpoint_settings', 'endpoint_audit'))
             AND a.attname = ANY ('{key,headers,payload,body,content_type,dedup_key,error,response_headers,response_body,last_error,
                                    secret,previous,credentials,url,label,metadata,before,after}')
    LOOP
        EXECUTE format('ALTER TABLE ONLY %s ALTER COLUMN %I SET STATISTICS 0', c.relation, c.attname);
    END LOOP;
END $$;

-- A row that is updated or deleted leaves its bytes in the file of its table.  They are
-- gone when the table gets another file.  An empty index has one page.
CREATE VIEW outbox.content_files AS
SELECT r.relname::text AS relation, pg_relation_filenode(r.oid) AS file
FROM pg_class r
WHERE r.relnamespace = 'outbox'::regnamespace AND r.relkind = 'r'
AND (r.relname ~ '^(events|attempt_log)_[0-9]$'
     OR r.relname IN ('kept_events', 'scheduled', 'parked', 'dedup', 'endpoint_settings', 'endpoint_secrets',
                      'endpoint_audit', 'subscriptions', 'forgotten', 'refused_events'))
AND (pg_relation_size(r.oid) > 0 OR (r.reltoastrelid <> 0 AND pg_relation_size(r.reltoastrelid) > 0)
     OR EXISTS (SELECT 1 FROM pg_index i
                WHERE i.indrelid = r.oid
                AND pg_relation_size(i.indexrelid) > current_setting('block_size')::int8));
COMMENT ON VIEW outbox.content_files IS
'Tables with content that outbox.forget() removes, unless they were never used, and their files';
COMMENT ON COLUMN outbox.content_files.relation IS 'name of the table';
COMMENT ON COLUMN outbox.content_files.file IS 'number of its file: another one after VACUUM FULL and after TRUNCATE';

CREATE VIEW outbox.forget_progress AS
WITH c AS MATERIALIZED (SELECT t.relation, t.file FROM outbox.content_files t)
SELECT f.tenant, f.key, f.requested_at, f.endpoints, f.events, f.attempts, f.deliveries, f.scheduled, f.dedup_keys,
       CASE WHEN f.sources = '{}' THEN f.complete_at END AS complete_at,
       CASE WHEN f.complete_at IS NOT NULL AND f.sources = '{}' THEN
           ARRAY(SELECT 'outbox.' || c.relation FROM c
                 WHERE (f.files ->> c.relation)::oid = c.file ORDER BY c.relation) END AS rewrite,
       f.sources
FROM outbox.forgotten f;
COMMENT ON VIEW outbox.forget_progress IS 'Calls of outbox.forget(), and their progress';
COMMENT ON COLUMN outbox.forget_progress.tenant IS 'tenant that is forgotten';
COMMENT ON COLUMN outbox.forget_progress.key IS
'key that is forgotten, and the word forgotten once it is (NULL: the whole tenant)';
COMMENT ON COLUMN outbox.forget_progress.requested_at IS 'when outbox.forget() was called';
COMMENT ON COLUMN outbox.forget_progress.endpoints IS 'endpoints of the tenant that it dropped';
COMMENT ON COLUMN outbox.forget_progress.events IS 'events that were emptied so far';
COMMENT ON COLUMN outbox.forget_progress.attempts IS
'attempts with an error or an answer that were emptied so far';
COMMENT ON COLUMN outbox.forget_progress.deliveries IS 'deliveries that workers were asked to cancel so far';
COMMENT ON COLUMN outbox.forget_progress.scheduled IS 'scheduled events that were removed so far';
COMMENT ON COLUMN outbox.forget_progress.dedup_keys IS 'deduplication keys that were removed so far';
COMMENT ON COLUMN outbox.forget_progress.complete_at IS
'when a whole pass found nothing more to remove (NULL: it goes on)';
COMMENT ON COLUMN outbox.forget_progress.rewrite IS
'tables whose files may still hold the bytes of removed rows until VACUUM FULL, or retention, rewrites them '
'(NULL: it goes on)';
COMMENT ON COLUMN outbox.forget_progress.sources IS 'sources that may still have some of it';

CREATE FUNCTION outbox.lock_tenant(tenant text, requests oid) RETURNS void
LANGUAGE C VOLATILE STRICT AS 'MODULE_PATHNAME', 'outbox_lock_tenant_1_0';
COMMENT ON FUNCTION outbox.lock_tenant IS
'Keeps scheduled events of the tenant from entering the log until the transaction ends';

-- The ones that have entered the log before the lock are seen by the snapshot.
-- 'key' NULL: the whole tenant.  So a key that is NULL by mistake must not come here.
CREATE FUNCTION outbox.forget_events(tenant text, key text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    ids int4[];
    here record;
BEGIN
    PERFORM outbox.refuse_snapshot('outbox.forget()');
    IF tenant IS NULL THEN
        RAISE EXCEPTION 'tenant must not be null'
            USING ERRCODE = 'null_value_not_allowed',
                  HINT = 'Pass the name of the tenant, as emit() gets it.';
    ELSIF outbox.current_epoch() < 0 THEN
        RAISE EXCEPTION 'this log is a copy that was not adopted, and nothing can be forgotten in it'
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'SELECT outbox.adopt() first. Undelivered events are then sent, '
                         'unless their endpoint is paused or dropped before.';
    END IF;
    PERFORM outbox.check_tenant(tenant);
    IF key = '' THEN
        RAISE EXCEPTION 'key must not be empty'
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Pass the key of the events, as emit() gets it, or leave it out: then the whole tenant is forgotten.';
    END IF;
    PERFORM outbox.lock_tenant(tenant, 'outbox.forgotten'::regclass);
    IF NOT EXISTS (SELECT 1 FROM outbox.endpoint_settings s WHERE s.tenant = forget_events.tenant)
       AND NOT EXISTS (SELECT 1 FROM outbox.events e WHERE e.tenant = forget_events.tenant)
       AND NOT EXISTS (SELECT 1 FROM outbox.kept_events k WHERE k.tenant = forget_events.tenant)
       AND NOT EXISTS (SELECT 1 FROM outbox.scheduled e WHERE e.tenant = forget_events.tenant)
       AND NOT EXISTS (SELECT 1 FROM outbox.dedup d WHERE d.tenant = forget_events.tenant)
       AND NOT EXISTS (SELECT 1 FROM outbox.refused_events r WHERE r.event ->> 'tenant' = forget_events.tenant) THEN
        RAISE EXCEPTION 'tenant "%" has no endpoints and no events', tenant
            USING ERRCODE = 'undefined_object',
                  HINT = 'The name must be the one that emit() and create_endpoint() got; ''Acme'' is not ''acme''.';
    END IF;
    PERFORM outbox.claim_log();
    WITH gone AS (DELETE FROM outbox.endpoint_settings s WHERE s.tenant = forget_events.tenant AND key IS NULL RETURNING s.endpoint_id)
    SELECT COALESCE(array_agg(g.endpoint_id), '{}') INTO ids FROM gone g;
    PERFORM outbox.endpoint_changed(id) FROM unnest(ids) i (id);
    DELETE FROM outbox.endpoint_secrets k WHERE k.endpoint_id = ANY (ids);
    DELETE FROM outbox.subscriptions v WHERE v.endpoint_id = ANY (ids);
    SELECT * INTO here FROM outbox.position_now('outbox.events_seq'::regclass::oid);
    INSERT INTO outbox.forgotten (tenant, key, snapshot, upto, requested_at, endpoints, sources)
    SELECT tenant, key, here.snapshot, q.seq_low, clock_timestamp(), cardinality(ids),
           ARRAY(SELECT o.name FROM outbox.followed o ORDER BY o.name)
    FROM outbox.position_now('outbox.events_seq'::regclass::oid) q;
    DELETE FROM outbox.refused_events r
    WHERE r.event ->> 'tenant' = forget_events.tenant AND (key IS NULL OR r.event ->> 'key' = key);
    DELETE FROM outbox.endpoint_audit a WHERE a.tenant = forget_events.tenant AND key IS NULL;
    PERFORM outbox.wake_workers();
END $$;
COMMENT ON FUNCTION outbox.forget_events IS
'Does the work of forget()';

CREATE FUNCTION outbox.forget(tenant text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox.forget_events(tenant, NULL);
END $$;
COMMENT ON FUNCTION outbox.forget(text) IS
'Drops the endpoints of a tenant, and has the workers remove the content of its events: outbox.forget_progress shows '
'the progress';

CREATE FUNCTION outbox.forget(tenant text, key text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF key IS NULL THEN
        RAISE EXCEPTION 'key must not be null'
            USING ERRCODE = 'null_value_not_allowed', COLUMN = 'key',
                  HINT = 'Pass the key of the events, as emit() gets it, or call forget() with the tenant alone: '
                         'then the whole tenant is forgotten.';
    END IF;
    PERFORM outbox.forget_events(tenant, key);
END $$;
COMMENT ON FUNCTION outbox.forget(text, text) IS
'Has the workers remove the content of the events of a tenant that have this key: outbox.forget_progress shows the '
'progress';
