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

-- The index of groups ---------------------------------------------------------------------------------------
-- It gets what has to wait for its group, when it has to, and not every attempt that has one. Since it is dropped from
-- the attempts, this waits for transactions that have enqueued or looked; but so that nobody waits for it for longer
-- than a moment.
DO $parked$
DECLARE
    n integer;
    tries integer := 0;
    timeout text := current_setting('lock_timeout');
BEGIN
    SET LOCAL lock_timeout = '100ms';
    LOOP
        BEGIN
            LOCK TABLE queue.attempt_0, queue.attempt_1, queue.attempt_2, queue.attempt_3, queue.attempt_4,
                       queue.attempt_5, queue.attempt_6, queue.attempt_7, queue.attempt_8, queue.attempt_9;
            EXIT;
        EXCEPTION WHEN lock_not_available THEN
            tries := tries + 1;
            IF tries = 600 THEN
                RAISE EXCEPTION 'the tables of pg_queue are being used all the time'
                    USING ERRCODE = 'lock_not_available',
                          HINT = 'End long transactions, or stop producers and workers for a moment, and try again.';
            END IF;
            PERFORM pg_sleep(0.5);
        END;
    END LOOP;
    PERFORM set_config('lock_timeout', timeout, true);
    FOR n IN 0..9 LOOP
        EXECUTE format($sql$
            DROP INDEX queue.attempt_%1$s_group_idx;
            CREATE TABLE queue.parked_%1$s (
                lane            integer     NOT NULL,
                group_hash      bigint      NOT NULL,
                priority        integer     NOT NULL,
                job_id          bigint      NOT NULL
            ) USING heap;
            CREATE INDEX parked_%1$s_idx ON queue.parked_%1$s (lane, group_hash, priority, job_id) WITH (deduplicate_items = off);
            COMMENT ON TABLE queue.parked_%1$s IS 'Always empty: its index is of those attempts of segment %1$s that had to wait for others of their group.';
            COMMENT ON COLUMN queue.parked_%1$s.lane IS 'That of the attempt.';
            COMMENT ON COLUMN queue.parked_%1$s.group_hash IS 'That of the attempt.';
            COMMENT ON COLUMN queue.parked_%1$s.priority IS 'That of the attempt.';
            COMMENT ON COLUMN queue.parked_%1$s.job_id IS 'That of the attempt.';
        $sql$, n);
    END LOOP;
END
$parked$;
