------------------------------------------------------------------------
-- Grants: the privileges of each kind of role, in one call.
------------------------------------------------------------------------

-- Each privilege of a purpose: which one, on which kind of object, its name, and in
-- which columns (empty: all).  The functions that the views call are here, because
-- PostgreSQL wants EXECUTE on them from the reader.
CREATE FUNCTION outbox.privileges_of(purpose text,
    OUT privilege text, OUT kind text, OUT object text, OUT columns text) RETURNS SETOF record
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    IF $1 IS NULL THEN
        RAISE EXCEPTION 'purpose must not be null'
            USING ERRCODE = 'null_value_not_allowed',
                  HINT = 'Use ''emit'', ''watch'', ''operate'', ''portal'', ''work'' or ''dump''.';
    ELSIF $1 NOT IN ('emit', 'watch', 'operate', 'portal', 'work', 'dump') THEN
        RAISE EXCEPTION 'unknown purpose "%"', $1
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Use ''emit'', ''watch'', ''operate'', ''portal'', ''work'' or ''dump''.';
    END IF;
    RETURN QUERY
    WITH wanted (purpose) AS (SELECT $1 UNION SELECT 'watch' WHERE $1 = 'operate'),
    functions (purpose, names) AS (VALUES
        ('emit', '{emit,emit_bytes}'::name[]),
        ('watch', '{metrics,worker_slots,step_holds,endpoint_stats,parked_counts,topic_in,filter_matches,forgets,
                    log_size_now,size_now,farthest_behind,kept_for,retention_held,scheduled_now,events_taken,
                    is_pending,newest_position,run_attempts,deliveries_page,figures,tenant_usage,asyncapi}'),
        ('operate', '{create_endpoint,alter_endpoint,drop_endpoint,pause_endpoint,resume_endpoint,seek_endpoint,
                      rotate_secret,endpoint_secret,endpoint_public_key,set_secrets,retry,resend,discard,replay,cancel_replay,cancel,wait_for,send_test,
                      set_retention,set_event_type,drop_event_type,shown,attempt_cause,attempts_page,delivery_request,portal_limits,set_portal_limits,
                      tenant_limits,set_tenant_limits,forget,follow,follow_service,unfollow}'),
        ('portal', '{portal_endpoints,portal_create_endpoint,portal_alter_endpoint,portal_pause_endpoint,
                     portal_resume_endpoint,portal_drop_endpoint,portal_secret,portal_rotate_secret,
                     portal_deliveries,portal_delivery,portal_attempts,portal_retry,portal_replay,
                     portal_replays,portal_cancel_replay,portal_send_test,portal_figures,
                     portal_event_types,portal_asyncapi,portal_limits,portal_changes}'),
        ('work', '{order_key,is_pending,pending_seqs,stored_credentials,newest_position,figures_sum,note_change,forgets}')),
    relations (purpose, privileges, names, columns) AS (VALUES
        ('emit', '{SELECT,INSERT}'::text[], '{outgoing}'::name[], ''),
        ('emit', '{INSERT}', '{events}',
         '(id, topic, type, key, tenant, expires_at, headers, payload, body, content_type)'),
        ('watch', '{SELECT}', '{status,stats,deliveries,workers,held_steps,set_aside,sources,replay_progress,forget_progress,event_types}', ''),
        ('operate', '{SELECT}', '{endpoints,endpoint_audit,dead_letters,attempts,all_events,scheduled,refused_events,missed_events}', ''))
    SELECT 'USAGE', 'SCHEMA', 'outbox', ''
    UNION ALL
    SELECT 'EXECUTE', 'FUNCTION', p.oid::regprocedure::text, ''
    FROM wanted JOIN functions f USING (purpose)
    JOIN pg_proc p ON p.pronamespace = 'outbox'::regnamespace AND p.proname = ANY (f.names)
    UNION ALL
    SELECT unnest(r.privileges), 'TABLE', c.oid::regclass::text, r.columns
    FROM wanted JOIN relations r USING (purpose)
    JOIN pg_class c ON c.relnamespace = 'outbox'::regnamespace AND c.relname = ANY (r.names)
    UNION ALL
    SELECT unnest('{SELECT,INSERT,UPDATE,DELETE,TRUNCATE}'::text[]), 'TABLE', c.oid::regclass::text, ''
    FROM pg_class c
    WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind IN ('r', 'p') AND $1 = 'work'
    UNION ALL
    SELECT 'SELECT', 'TABLE', c.oid::regclass::text, '' FROM pg_class c
    WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind = 'v' AND $1 = 'work'
    UNION ALL
    SELECT 'SELECT', 'SEQUENCE', 'outbox.events_seq', '' WHERE $1 = 'work'
    UNION ALL
    SELECT 'SELECT', CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, c.oid::regclass::text, ''
    FROM pg_extension x CROSS JOIN unnest(x.extconfig) config JOIN pg_class c ON c.oid = config
    WHERE x.extname = 'outbox' AND $1 = 'dump';
END $$;
COMMENT ON FUNCTION outbox.privileges_of IS
'Privileges that grant_to() grants for a purpose';

CREATE FUNCTION outbox.check_role(role text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF role IS NULL THEN
        RAISE EXCEPTION 'role must not be null'
            USING ERRCODE = 'null_value_not_allowed',
                  HINT = 'Pass the name of a role, as pg_roles.rolname shows it.';
    ELSIF NOT EXISTS (SELECT 1 FROM pg_roles r WHERE r.rolname = role) THEN
        RAISE EXCEPTION 'role "%" does not exist', role
            USING ERRCODE = 'undefined_object',
                  HINT = 'Create it first. Pass its name as pg_roles.rolname shows it, without quotation marks.';
    END IF;
END $$;
COMMENT ON FUNCTION outbox.check_role IS 'Refuses a role that does not exist (42704; 22004: NULL)';

-- Not SECURITY DEFINER: PostgreSQL decides which role may grant.
CREATE FUNCTION outbox.grant_to(role text, purpose text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    p record;
BEGIN
    PERFORM outbox.check_role(role);
    FOR p IN SELECT * FROM outbox.privileges_of(purpose) LOOP
        EXECUTE format('GRANT %s %s ON %s %s TO %I', p.privilege, p.columns, p.kind, p.object, role);
    END LOOP;
END $$;
COMMENT ON FUNCTION outbox.grant_to IS
'Grants a role the privileges of a purpose: emit; watch, views without payloads, URLs, headers and answers; operate, all '
'views, endpoints and their secrets; portal, functions for customers; work, for outbox.worker_role; dump (42704: no such role)';

-- A row binds the role of its name. It also binds the role of its oid, which was renamed, in this cluster or where no role
-- has the name (src/emit/emit_topics.c). So it stays for the other one. A role that may grant, but not write this table,
-- leaves the rows of the role there.
CREATE FUNCTION outbox.bind_emit(role text, topics text[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    c CONSTANT record := pg_control_system();
BEGIN
    IF topics IS NULL AND NOT has_table_privilege('outbox.emit_topics', 'DELETE') THEN
        RETURN;
    END IF;
    WITH bound AS (
        SELECT t.role AS of_row, r.rolname, r.oid, t.topics
        FROM outbox.emit_topics t JOIN pg_roles r ON r.rolname = t.role OR (r.oid = t.role_oid AND (
            t.cluster = c.system_identifier OR NOT EXISTS (SELECT FROM pg_roles o WHERE o.rolname = t.role)))),
    former AS (
        DELETE FROM outbox.emit_topics t
        WHERE t.role IN (SELECT b.of_row FROM bound b WHERE b.rolname = bind_emit.role) RETURNING t.role)
    INSERT INTO outbox.emit_topics
    SELECT b.rolname, b.oid, b.topics, c.system_identifier
    FROM former f JOIN bound b ON b.of_row = f.role WHERE b.rolname <> bind_emit.role
    UNION ALL
    SELECT r.rolname, r.oid, bind_emit.topics, c.system_identifier FROM pg_roles r
    WHERE r.rolname = bind_emit.role AND bind_emit.topics IS NOT NULL
    ON CONFLICT DO NOTHING;
END $$;
COMMENT ON FUNCTION outbox.bind_emit IS 'Stores the topics that a role may emit (NULL: all)';

CREATE FUNCTION outbox.grant_emit(role text, topics text[] DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox.check_role(role);
    PERFORM outbox.check_topics(topics);
    PERFORM outbox.bind_emit(role, topics);
    PERFORM outbox.grant_to(role, 'emit');
END $$;
COMMENT ON FUNCTION outbox.grant_emit IS
'Lets a role emit, by function, through outbox.outgoing and by COPY: topics that one of the patterns matches (NULL: all)';

CREATE FUNCTION outbox.revoke_all(role text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox.check_role(role);
    PERFORM outbox.bind_emit(role, NULL);
    EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA outbox FROM %I', role);
    EXECUTE format('REVOKE ALL ON ALL SEQUENCES IN SCHEMA outbox FROM %I', role);
    EXECUTE format('REVOKE ALL ON ALL FUNCTIONS IN SCHEMA outbox FROM %I', role);
    EXECUTE format('REVOKE ALL ON SCHEMA outbox FROM %I', role);
END $$;
COMMENT ON FUNCTION outbox.revoke_all IS 'Takes back all that a role was granted in the schema outbox';

-- An update of the extension may bring objects that a purpose needs.  So an update
-- script keeps the result of this in the beginning, and calls grant_to() with it in the
-- end.  A role that has only some privileges of a purpose is left as it is.
CREATE FUNCTION outbox.purposes_granted(OUT role text, OUT purpose text) RETURNS SETOF record
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
SELECT r.rolname, u.purpose
FROM pg_namespace n
CROSS JOIN LATERAL aclexplode(n.nspacl) a
JOIN pg_roles r ON r.oid = a.grantee
CROSS JOIN unnest('{emit,watch,operate,portal,work,dump}'::text[]) u (purpose)
WHERE n.nspname = 'outbox' AND a.grantee <> n.nspowner
AND NOT EXISTS (
    -- a right that it has by another role may be taken from it there
    SELECT 1 FROM outbox.privileges_of(u.purpose) p
    WHERE NOT EXISTS (
        SELECT FROM aclexplode(CASE p.kind
            WHEN 'SCHEMA' THEN n.nspacl
            WHEN 'FUNCTION' THEN (SELECT f.proacl FROM pg_proc f WHERE f.oid = p.object::regprocedure)
            ELSE (SELECT c.relacl FROM pg_class c WHERE p.columns = '' AND c.oid = p.object::regclass) END) g
        WHERE g.grantee = r.oid AND g.privilege_type = p.privilege)
    AND CASE WHEN p.columns = '' THEN true ELSE NOT EXISTS (
        SELECT FROM pg_attribute c CROSS JOIN LATERAL aclexplode(c.attacl) g
        WHERE c.attrelid = p.object::regclass AND g.grantee = r.oid AND g.privilege_type = p.privilege) END)
$$;
COMMENT ON FUNCTION outbox.purposes_granted IS
'Which role has all that a purpose needs: emit, watch, operate, portal, work or dump';
