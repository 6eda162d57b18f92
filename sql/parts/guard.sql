/* outbox--1.0.sql: the objects of the extension, joined from the parts in sql/parts. */
\echo Use "CREATE EXTENSION outbox" to load this file. \quit

-- The functions that this script and its tables and views call are
-- PostgreSQL's own: a name without a schema is found in pg_catalog or not at all.
-- The objects of outbox are all written with their schema.  The functions whose
-- bodies are parsed when they are called have a search_path of their own.
SET LOCAL search_path TO pg_catalog, pg_temp;

-- The owner of a schema may drop its objects.  A schema that was made before
-- is accepted only if a superuser owns it and everything in it.
DO $$
DECLARE
    stranger text;
BEGIN
    SELECT r.rolname INTO stranger
    FROM (SELECT n.nspowner AS owner FROM pg_namespace n WHERE n.nspname = 'outbox'
          UNION ALL
          SELECT o.refobjid
          FROM pg_depend d
          JOIN pg_shdepend o ON o.classid = d.classid AND o.objid = d.objid
          WHERE d.refclassid = 'pg_namespace'::regclass
          AND d.refobjid = 'outbox'::regnamespace
          AND o.dbid = (SELECT b.oid FROM pg_database b WHERE b.datname = current_database())
          AND o.refclassid = 'pg_authid'::regclass
          AND o.deptype = 'o') x
    JOIN pg_roles r ON r.oid = x.owner
    WHERE NOT r.rolsuper LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'schema outbox, or something in it, belongs to role "%"', stranger
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Drop the schema, or rename it: the extension makes its own.';
    END IF;
END $$;

-- Every script begins with this call: the server may have loaded an earlier library.
CREATE FUNCTION outbox.require_library(version text) RETURNS void
LANGUAGE C VOLATILE STRICT
AS 'MODULE_PATHNAME', 'outbox_require_library_1_0';
COMMENT ON FUNCTION outbox.require_library IS
'Raises an error (55000) when the server has loaded a library of outbox that is older than this version';
SELECT outbox.require_library('1.0');
