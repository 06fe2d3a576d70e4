-- CREATE EXTENSION sets this, too. It is repeated for people and tools that read this script.
SET LOCAL search_path TO pg_catalog, pg_temp;

-- What is there and not of this extension is never used.
DO $$
DECLARE
    other record;
BEGIN
    SELECT n.nspname AS name, pg_get_userbyid(n.nspowner) AS owner INTO other
    FROM pg_catalog.pg_namespace AS n WHERE n.nspname IN ('queue', 'queue_internal') LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'schema "%" exists already', other.name USING ERRCODE = '42P06',
            DETAIL = pg_catalog.format('It belongs to role "%s", and pg_queue needs the name.', other.owner),
            HINT = pg_catalog.format('Rename it: ALTER SCHEMA %I RENAME TO …. Drop it if nothing in it is needed.',
                                     other.name);
    END IF;
END
$$;

-- The schema, and the first check: without shared memory there is no queue. A plain CREATE SCHEMA makes the schema a
-- member.
CREATE SCHEMA queue;
COMMENT ON SCHEMA queue IS 'Job queue: functions for producers and workers, views of jobs.';
-- A separate schema, so that schema queue has only what is for users. No role has USAGE on it. Views and functions
-- refer to its objects by oid, so only the privileges EXECUTE and SELECT are checked.
CREATE SCHEMA queue_internal;
COMMENT ON SCHEMA queue_internal IS
    'The tables of pg_queue, and functions and views for its library and for schema queue. It may change with any '
    'version.';

CREATE FUNCTION queue_internal.assert_loaded() RETURNS void
    LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_assert_loaded';
COMMENT ON FUNCTION queue_internal.assert_loaded() IS
    'Raises 55000, with the line to add, if pg_queue is not in shared_preload_libraries.';
SELECT queue_internal.assert_loaded();
