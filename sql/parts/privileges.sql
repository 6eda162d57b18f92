------------------------------------------------------------------------
-- Only the owner may do anything.  doc/security.md lists what to grant.
------------------------------------------------------------------------

-- Nor may anybody to whom whoever runs this script has given default privileges.
DO $$
DECLARE
    f pg_catalog.regprocedure;
    grantee pg_catalog.text;
BEGIN
    FOR grantee IN
        SELECT DISTINCT COALESCE(pg_catalog.quote_ident(r.rolname), 'PUBLIC')
        FROM (SELECT c.relacl, c.relowner FROM pg_catalog.pg_class c
              WHERE c.relnamespace OPERATOR(pg_catalog.=) 'outbox'::pg_catalog.regnamespace
              UNION ALL
              SELECT p.proacl, p.proowner FROM pg_catalog.pg_proc p
              WHERE p.pronamespace OPERATOR(pg_catalog.=) 'outbox'::pg_catalog.regnamespace) o (acl, owner)
        CROSS JOIN LATERAL pg_catalog.aclexplode(o.acl) a
        LEFT JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) a.grantee
        WHERE a.grantee OPERATOR(pg_catalog.<>) o.owner
    LOOP
        EXECUTE pg_catalog.format('REVOKE ALL ON ALL TABLES IN SCHEMA outbox FROM %s', grantee);
        EXECUTE pg_catalog.format('REVOKE ALL ON ALL SEQUENCES IN SCHEMA outbox FROM %s', grantee);
        IF grantee OPERATOR(pg_catalog.<>) 'PUBLIC' THEN
            EXECUTE pg_catalog.format('REVOKE ALL ON ALL FUNCTIONS IN SCHEMA outbox FROM %s', grantee);
        END IF;
    END LOOP;
    FOR f IN SELECT p.oid FROM pg_catalog.pg_proc p
             WHERE p.pronamespace OPERATOR(pg_catalog.=) 'outbox'::pg_catalog.regnamespace
             AND p.proname NOT IN ('current_piece', 'next_seq', 'current_epoch', 'log_xid', 'new_event_id', 'check_event')
    LOOP
        EXECUTE pg_catalog.format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', f);
    END LOOP;
END $$;
