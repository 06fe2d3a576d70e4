\echo Use "ALTER EXTENSION pg_queue UPDATE" to load this file. \quit

-- From 0.2.0 to 0.3.0. The result is what CREATE EXTENSION makes of 0.3.0; the tests compare the two.
SET LOCAL search_path TO pg_catalog, pg_temp;

-- The server runs the library that it loaded when it started.
DO $library$
BEGIN
    PERFORM queue.assert_loaded();
    IF string_to_array(current_setting('pg_queue.library_version'), '.')::integer[] < '{0,3,0}'::integer[] THEN
        RAISE EXCEPTION 'the server has loaded a library of pg_queue that is older than 0.3.0'
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Restart the server, then run ALTER EXTENSION pg_queue UPDATE again.';
    END IF;
END
$library$;

-- Views are read-only.
CREATE FUNCTION queue.read_only() RETURNS trigger
    LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_read_only';
COMMENT ON FUNCTION queue.read_only IS 'Trigger on the views: raises that they cannot be written to, and what to do instead.';
REVOKE ALL ON FUNCTION queue.read_only FROM PUBLIC;

DO $read_only$
DECLARE
    relation regclass;
BEGIN
    FOR relation IN
        SELECT oid FROM pg_catalog.pg_class WHERE relnamespace = 'queue'::regnamespace AND relkind = 'v' ORDER BY relname
    LOOP
        -- For each statement, so that one which finds no row is told as well; only with the other does it fire.
        EXECUTE format($sql$
            CREATE TRIGGER read_only BEFORE INSERT OR UPDATE OR DELETE ON %1$s
                FOR EACH STATEMENT EXECUTE FUNCTION queue.read_only();
            CREATE TRIGGER read_only_row INSTEAD OF INSERT OR UPDATE OR DELETE ON %1$s
                FOR EACH ROW EXECUTE FUNCTION queue.read_only();
        $sql$, relation);
    END LOOP;
END
$read_only$;

CREATE FUNCTION queue.check(repair boolean DEFAULT false)
    RETURNS TABLE (name text, queue_name text, job_id bigint, attempt_id bigint, problem text, remedy text, is_repaired boolean)
    LANGUAGE c COST 1000000 ROWS 1 AS 'MODULE_PATHNAME', 'pg_queue_check';
COMMENT ON FUNCTION queue.check IS
'Compares everything with everything: the logs, history, settings and shared memory. A row for each fault; none: all is
well. Reads all rows, and blocks no session. repair: does what remedy says. Errors: 42501 without the privilege manage on
every queue, 55000 during a restore; with repair 25001 at REPEATABLE READ or above, 25006, 55006.';
REVOKE ALL ON FUNCTION queue.check FROM PUBLIC;

-- Comments in other words.
COMMENT ON FUNCTION queue.doctor IS
'Checks whether all is well: a row for each check, with what it has seen and, where ok is false, what to do. What stands
still counts after pg_queue.patience. Waits for no other session; a check that fails is not ok. Also on a standby.
Errors: 42501 without the privilege observe on every queue.';
COMMENT ON FUNCTION queue.memory_use IS
'How much of the room that each setting reserves is in use, over all databases. For the metrics.';
COMMENT ON FUNCTION queue.recent_times IS
'How long attempts that were claimed or ended in the last minute had waited and run, in seconds: quantiles of a sample,
at most the last thousand. For the metrics.';
COMMENT ON FUNCTION queue.metrics IS
'The metrics for exporters to Prometheus: a row for each name and labels. Reads no log; a condition on name
leaves out the cost of the others. Counters go on over restarts and crashes.';
COMMENT ON FUNCTION queue.resume IS 'Ends a pause and wakes the sessions that wait. Errors: 42704.';
COMMENT ON FUNCTION queue.enqueue IS
'Adds a job; it exists if and only if the transaction commits. Smaller priority runs first; delay or run_at,
at most one of the two. stage: where it begins; NULL: in the first. With unique_key (at most 1024 bytes), one job of the queue lives under it: if there is one,
on_duplicate skip leaves it alone, replace and rerun give it this call''s contents if it waits and run it once more
with them if it runs, error raises 23505. version: a call that is not newer than the one known does nothing.
unique_for: the key stays taken for so long, even if the job has ended. Returns the job''s id; if nothing was
added, the id of the job that is there. Errors: 42704 no such queue, 22023 an argument out of range or no such stage, 23505 the key is taken,
53400 shared memory is full.';
COMMENT ON FUNCTION queue.tallies IS
'Per lane the figures of queue.stats. is_counted: they come from shared memory, without reading the logs; walk => true
reads the logs in any case. For the views.';
COMMENT ON COLUMN queue.permission.role_name IS
'The role; its members have the privilege, too. A role that does not exist counts for nothing; public: all roles.';
COMMENT ON FUNCTION queue.grant IS
'Lets a role, and its members, use a queue; ''*'': every queue that there is and will be. privilege: produce (enqueue),
consume (claim and end), observe (look), manage (all of these, and change the queue and its jobs, and grant). Needs the privilege
manage. Errors: 42704 no such queue or role, 22023 no such privilege, 22004 an argument is null, 42501.';
COMMENT ON FUNCTION queue.derive_grants IS
'Derives the GRANTs on the extension''s schema, functions and views from queue.permission. Used by upgrade scripts.';
COMMENT ON FUNCTION queue.foreign_write IS
'Statement trigger on the tables: no job is run while they are written by SQL. The extension''s own writes do not fire it.';
COMMENT ON FUNCTION queue.throughput_live IS
'The rows that queue.rollup will get from the segments that are not reclaimed yet, summed up at each call. For the views.';
COMMENT ON COLUMN queue.firing_0.kind IS 'r: the slot''s job was enqueued; s: the slot was skipped; c: a row of the other half, copied; o: not the slot, but missed slots up to fired_at are still to be run, and those from there to the slot are skipped.';
COMMENT ON COLUMN queue.firing_1.kind IS 'r: the slot''s job was enqueued; s: the slot was skipped; c: a row of the other half, copied; o: not the slot, but missed slots up to fired_at are still to be run, and those from there to the slot are skipped.';
COMMENT ON COLUMN queue.throughput.wait_p50 IS 'Half of them had waited at most this long, within 1.6 %.';
COMMENT ON COLUMN queue.throughput.wait_p95 IS '95 % of them had waited at most this long, within 1.6 %.';
COMMENT ON COLUMN queue.throughput.wait_p99 IS '99 % of them had waited at most this long, within 1.6 %.';
COMMENT ON COLUMN queue.throughput.run_p50 IS 'Half of them had run at most this long, within 1.6 %.';
COMMENT ON COLUMN queue.throughput.run_p95 IS '95 % of them had run at most this long, within 1.6 %.';
COMMENT ON COLUMN queue.throughput.run_p99 IS '99 % of them had run at most this long, within 1.6 %.';
COMMENT ON VIEW queue.attempts IS 'One row per attempt: each run of a job, also one that has not begun.';
COMMENT ON COLUMN queue.errors.first_seen IS
'When one of these jobs first failed with this error, of the attempts that are kept; null: none is.';
COMMENT ON COLUMN queue.errors.last_seen IS 'When one of these jobs last failed with this error; null as first_seen.';

DO $comments$
BEGIN
    FOR segment IN 0..9 LOOP
        EXECUTE format($sql$
            COMMENT ON COLUMN queue.attempt_%1$s.asked IS
                'Number of the call under the key that gave this payload; ascends. Null: the call that made the attempt.';
            COMMENT ON COLUMN queue.claim_%1$s.kind IS
                'w: a worker; b: a worker, bound to its connection; s: the system, to end it unrun; m: no claim, it waits in another segment now.';
        $sql$, segment);
    END LOOP;
END
$comments$;
