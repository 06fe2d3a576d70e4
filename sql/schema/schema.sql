-- CREATE EXTENSION sets this, too. It is repeated for people and tools that read this script.
SET LOCAL search_path TO pg_catalog, pg_temp;

-- The schema, and the first check: without shared memory there is no queue. A plain CREATE SCHEMA fails if the name is
-- taken, and makes the schema a member.
CREATE SCHEMA queue;
COMMENT ON SCHEMA queue IS 'Job queue: functions for producers and workers, views of jobs.';
-- A separate schema, so that schema queue has only what is for users. No role has USAGE on it. Views and functions
-- refer to its functions by oid, so only the privilege EXECUTE is checked.
CREATE SCHEMA queue_internal;
COMMENT ON SCHEMA queue_internal IS
    'Functions that the views of schema queue and the library of pg_queue call. It may change with any version.';

CREATE FUNCTION queue_internal.assert_loaded() RETURNS void
    LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_assert_loaded';
COMMENT ON FUNCTION queue_internal.assert_loaded() IS
    'Raises 55000, with the line to add, if pg_queue is not in shared_preload_libraries.';
SELECT queue_internal.assert_loaded();
