\echo Use "ALTER EXTENSION pg_queue UPDATE" to load this file. \quit

-- From 0.1.0 to 0.2.0. What comes out is what CREATE EXTENSION makes of 0.2.0; the tests compare the two.
SET LOCAL search_path TO pg_catalog, pg_temp;

-- The server runs the library that it loaded when it started.
DO $library$
BEGIN
    PERFORM queue.assert_loaded();
    IF current_setting('pg_queue.library_version', true) IS NULL THEN
        RAISE EXCEPTION 'the server has loaded a library of pg_queue that is older than 0.2.0'
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Restart the server, then run ALTER EXTENSION pg_queue UPDATE again.';
    END IF;
END
$library$;
