-- CREATE EXTENSION sets this anyway; repeated for readers and checkers of this script.
SET LOCAL search_path TO pg_catalog, pg_temp;

-- The schema, and the check that comes before everything: without shared memory there is no queue.
-- A plain CREATE SCHEMA fails if the name is taken, and makes the schema a member.
CREATE SCHEMA queue;
COMMENT ON SCHEMA queue IS 'Job queue: functions for producers and workers, views to look at jobs.';

CREATE FUNCTION queue.assert_loaded() RETURNS void
    LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_assert_loaded';
COMMENT ON FUNCTION queue.assert_loaded() IS
    'Raises 55000 with the line to add when pg_queue is not in shared_preload_libraries.';
SELECT queue.assert_loaded();
