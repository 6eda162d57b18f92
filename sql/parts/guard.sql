/* outbox--1.0.sql: the objects of the extension; src/README.md says how they belong together. */
\echo Use "CREATE EXTENSION outbox" to load this file. \quit

-- Who owns the schema may drop what is in it, so it must not be somebody's who
-- made it beforehand; nor may anything of theirs be in it.
DO $$
DECLARE
    stranger pg_catalog.text;
BEGIN
    SELECT r.rolname INTO stranger
    FROM (SELECT n.nspowner AS owner FROM pg_catalog.pg_namespace n
          WHERE n.nspname OPERATOR(pg_catalog.=) 'outbox'
          UNION ALL
          SELECT o.refobjid
          FROM pg_catalog.pg_depend d
          JOIN pg_catalog.pg_shdepend o ON o.classid OPERATOR(pg_catalog.=) d.classid
                                       AND o.objid OPERATOR(pg_catalog.=) d.objid
          WHERE d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_namespace'::pg_catalog.regclass
          AND d.refobjid OPERATOR(pg_catalog.=) 'outbox'::pg_catalog.regnamespace
          AND o.dbid OPERATOR(pg_catalog.=) (SELECT b.oid FROM pg_catalog.pg_database b
                                             WHERE b.datname OPERATOR(pg_catalog.=) pg_catalog.current_database())
          AND o.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_authid'::pg_catalog.regclass
          AND o.deptype OPERATOR(pg_catalog.=) 'o') x
    JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) x.owner
    WHERE NOT r.rolsuper LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'schema outbox, or something in it, belongs to role "%"', stranger
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Drop the schema, or rename it: the extension makes its own.';
    END IF;
END $$;

-- Every script begins with this: the server may have loaded an earlier library.
CREATE FUNCTION outbox.require_library(version pg_catalog.text) RETURNS pg_catalog.void
LANGUAGE C VOLATILE STRICT
AS 'MODULE_PATHNAME', 'outbox_require_library_1_0';
COMMENT ON FUNCTION outbox.require_library(pg_catalog.text) IS
'Error 55000 when the server has loaded a library of outbox that is older than this version';
REVOKE ALL ON FUNCTION outbox.require_library(pg_catalog.text) FROM PUBLIC;
SELECT outbox.require_library('1.0');
