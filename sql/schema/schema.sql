-- CREATE EXTENSION sets this anyway; repeated for readers and checkers of this script.
SET LOCAL search_path TO pg_catalog, pg_temp;

-- The schema, and the check that comes before everything: without shared memory there is no queue.
-- A plain CREATE SCHEMA fails if the name is taken, and makes the schema a member.
CREATE SCHEMA queue;
COMMENT ON SCHEMA queue IS 'Job queue: functions for producers and workers, views to look at jobs.';
-- Apart, so that what a user sees in the other is for users. Nobody is let at it: views and functions have found by oid
-- what they call, and only that it may be executed is asked for.
CREATE SCHEMA queue_internal;
COMMENT ON SCHEMA queue_internal IS
    'What the views of schema queue and the library of pg_queue call. It may change with any version.';

CREATE FUNCTION queue_internal.assert_loaded() RETURNS void
    LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_assert_loaded';
COMMENT ON FUNCTION queue_internal.assert_loaded() IS
    'Raises 55000 with the line to add when pg_queue is not in shared_preload_libraries.';
SELECT queue_internal.assert_loaded();
