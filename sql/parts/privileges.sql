------------------------------------------------------------------------
-- Privileges: at first only the owner has any.  doc/security.md lists the grants.
------------------------------------------------------------------------

-- Default privileges of the role that runs this script may have granted others
-- something. That is taken back, and so is EXECUTE from PUBLIC, except for the
-- functions that defaults and constraints of outbox.events call. So are grants on the
-- schema: a role that may create in it could plant a function that one of these calls.
DO $$
DECLARE
    grantee text;
    change text;
BEGIN
    FOR grantee IN
        SELECT DISTINCT COALESCE(quote_ident(r.rolname), 'PUBLIC')
        FROM (SELECT c.relacl, c.relowner FROM pg_class c
              WHERE c.relnamespace = 'outbox'::regnamespace
              UNION ALL
              SELECT p.proacl, p.proowner FROM pg_proc p
              WHERE p.pronamespace = 'outbox'::regnamespace
              UNION ALL
              SELECT n.nspacl, n.nspowner FROM pg_namespace n
              WHERE n.nspname = 'outbox') o (acl, owner)
        CROSS JOIN LATERAL aclexplode(o.acl) a
        LEFT JOIN pg_roles r ON r.oid = a.grantee
        WHERE a.grantee <> o.owner
    LOOP
        EXECUTE format('REVOKE ALL ON SCHEMA outbox FROM %s CASCADE', grantee);
        EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA outbox FROM %s', grantee);
        EXECUTE format('REVOKE ALL ON ALL SEQUENCES IN SCHEMA outbox FROM %s', grantee);
        IF grantee <> 'PUBLIC' THEN
            EXECUTE format('REVOKE ALL ON ALL FUNCTIONS IN SCHEMA outbox FROM %s', grantee);
        END IF;
    END LOOP;
    -- Default privileges may have taken it from PUBLIC.
    FOR change IN
        SELECT format(CASE WHEN p.proname IN ('current_piece', 'next_seq', 'current_epoch', 'log_xid', 'new_event_id', 'check_event')
                           THEN 'GRANT EXECUTE ON FUNCTION %s TO PUBLIC' ELSE 'REVOKE ALL ON FUNCTION %s FROM PUBLIC' END,
                      p.oid::regprocedure)
        FROM pg_proc p WHERE p.pronamespace = 'outbox'::regnamespace
    LOOP
        EXECUTE change;
    END LOOP;
END $$;
