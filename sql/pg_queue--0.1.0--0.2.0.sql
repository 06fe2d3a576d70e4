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

-- Monitoring ---------------------------------------------------------------------------------------------

-- Columns that had no words of their own, or others'.
COMMENT ON COLUMN queue.queues.queue_name IS 'Its name.';
COMMENT ON COLUMN queue.queues.is_paused IS 'Whether claims find nothing, by queue.pause.';
COMMENT ON COLUMN queue.queues.max_attempts IS 'After how many attempts a failing job is dead.';
COMMENT ON COLUMN queue.queues.lease IS 'How long a claim lasts without a heartbeat.';
COMMENT ON COLUMN queue.queues.backoff IS 'How the delay before a retry grows: constant, linear, exponential.';
COMMENT ON COLUMN queue.queues.backoff_base IS 'The delay after the first attempt.';
COMMENT ON COLUMN queue.queues.backoff_max IS 'The longest delay, before the jitter.';
COMMENT ON COLUMN queue.queues.backoff_jitter IS 'By up to which share of itself a delay is moved, either way.';
COMMENT ON COLUMN queue.queues.retention IS 'How long completed and cancelled jobs are kept; 0: not at all, negative: for ever.';
COMMENT ON COLUMN queue.queues.dead_retention IS 'How long dead jobs are kept; 0: not at all, negative: for ever.';
COMMENT ON COLUMN queue.queues.dead_letter IS 'The queue that gets a copy of each job that dies; null: none.';
COMMENT ON COLUMN queue.queues.max_running IS 'How many of its jobs run at once at most; null: no limit.';
COMMENT ON COLUMN queue.queues.max_running_per_group IS 'How many jobs of a group run at once at most; null: no limit.';
COMMENT ON COLUMN queue.queues.strict_order IS 'Whether the jobs of a group run one by one in their order.';
COMMENT ON COLUMN queue.queues.rate_limit IS 'How many jobs begin in a rate_period at most; null: no limit.';
COMMENT ON COLUMN queue.queues.rate_period IS 'The period of rate_limit.';
COMMENT ON COLUMN queue.queues.max_waiting IS 'How many jobs wait at most before enqueueing is refused; null: no limit.';
COMMENT ON COLUMN queue.queues.stages IS 'The stages that its jobs go through, in this order; null: none.';
COMMENT ON COLUMN queue.queues.notify IS 'Whether there is a NOTIFY when it gets jobs.';
COMMENT ON COLUMN queue.queues.created_at IS 'When it was created.';
COMMENT ON COLUMN queue.stats.queue_name IS 'The queue.';
COMMENT ON COLUMN queue.stats.stage IS 'The stage; null in a queue without stages.';
COMMENT ON COLUMN queue.stats.ready IS 'Jobs that can be claimed now.';
COMMENT ON COLUMN queue.stats.scheduled IS 'Jobs that wait for their time.';
COMMENT ON COLUMN queue.stats.retrying IS 'Jobs that wait for their time after a failure.';
COMMENT ON COLUMN queue.stats.running IS 'Jobs that a worker has.';
COMMENT ON COLUMN queue.stats.dead IS 'Dead jobs that were not retried since.';
COMMENT ON COLUMN queue.errors.queue_name IS 'The queue.';
COMMENT ON COLUMN queue.workers.client_addr IS 'Where it is connected from; null for a local socket, or when it is gone.';
COMMENT ON COLUMN queue.workers.client_port IS 'The port there; null when it is gone.';
COMMENT ON COLUMN queue.workers.application_name IS 'What the connection calls itself.';
COMMENT ON COLUMN queue.workers.queue_name IS 'The queue.';
COMMENT ON COLUMN queue.workers.oldest_claimed_at IS 'When it claimed the oldest of them.';
COMMENT ON COLUMN queue.history.max_attempts IS 'Null: as the queue says.';
DO $comments$
DECLARE
    n integer;
    attribute name;
BEGIN
    FOR n IN 0..9 LOOP
        EXECUTE format($sql$
            COMMENT ON COLUMN queue.note_%1$s.lease IS 'Another run: its lease.';
            COMMENT ON COLUMN queue.note_%1$s.max_attempts IS 'Another run: after how many attempts it is dead.';
        $sql$, n);
    END LOOP;
    -- The table's columns mean what the view's do.
    FOR attribute IN
        SELECT attname FROM pg_attribute WHERE attrelid = 'queue.queues'::regclass AND attnum > 0
    LOOP
        EXECUTE format('COMMENT ON COLUMN queue.queue.%I IS %L', attribute, (
            SELECT col_description(attrelid, attnum) FROM pg_attribute
            WHERE attrelid = 'queue.queues'::regclass AND attname = attribute));
    END LOOP;
END
$comments$;

-- Who has what is asked of memory, and no more of all the logs.
CREATE FUNCTION queue.claims_now() RETURNS TABLE (lane integer, pid integer, claimed_at timestamptz, worker text)
    LANGUAGE c ROWS 100 AS 'MODULE_PATHNAME', 'pg_queue_claims_now';
COMMENT ON FUNCTION queue.claims_now IS 'The claims of the attempts that workers have, this moment: from memory, and by index. For the view.';

CREATE OR REPLACE VIEW queue.workers AS
SELECT c.worker, c.pid, s.client_addr, s.client_port, s.application_name, q.queue_name,
       count(*) AS running, min(c.claimed_at) AS oldest_claimed_at, clock_timestamp() - min(c.claimed_at) AS oldest_claim
FROM queue.claims_now() AS c
JOIN queue.lane AS n ON n.lane = c.lane
JOIN queue.queue AS q ON q.queue_id = n.queue_id
LEFT JOIN pg_catalog.pg_stat_activity AS s ON s.pid = c.pid
GROUP BY c.worker, c.pid, s.client_addr, s.client_port, s.application_name, q.queue_name;
REVOKE ALL ON FUNCTION queue.claims_now FROM PUBLIC;

-- Dearer, it would have the plans of the views compiled at each look.
ALTER FUNCTION queue.payload_of(bigint) COST 20;

CREATE FUNCTION queue.doctor()
    RETURNS TABLE (name text, ok boolean, detail text, hint text)
    STABLE LANGUAGE c ROWS 16 AS 'MODULE_PATHNAME', 'pg_queue_doctor';
COMMENT ON FUNCTION queue.doctor IS
'Looks whether all is well: a row for each check, with what it has seen and, where ok is false, what to do. What stands
still counts after pg_queue.patience. Waits for nobody; a check that fails is not ok. Also on a standby.';

CREATE FUNCTION queue.memory_use()
    RETURNS TABLE (setting text, used bigint, size bigint)
    STABLE LANGUAGE c ROWS 4 AS 'MODULE_PATHNAME', 'pg_queue_memory_use';
COMMENT ON FUNCTION queue.memory_use IS
'How many of what each setting sizes are in use, over all databases. For the metrics.';

CREATE FUNCTION queue.recent_times()
    RETURNS TABLE (lane integer, kind text, quantile float8, seconds float8)
    STABLE LANGUAGE c COST 10000 ROWS 100 AS 'MODULE_PATHNAME', 'pg_queue_recent_times';
COMMENT ON FUNCTION queue.recent_times IS
'How long attempts had waited and run, in seconds, that were claimed or ended in the last minute: quantiles of a sample,
at most the last thousand. For the metrics.';

-- A part for each source: one that has nothing of what is asked for is not read.
CREATE VIEW queue.metric AS
SELECT v.name::text AS name,
       jsonb_strip_nulls(jsonb_build_object('queue', s.queue_name, 'stage', s.stage, 'state', v.state)) AS labels,
       CASE v.state WHEN 'ready' THEN s.ready WHEN 'scheduled' THEN s.scheduled WHEN 'retrying' THEN s.retrying
                    WHEN 'running' THEN s.running WHEN 'dead' THEN s.dead
       ELSE CASE v.name
           WHEN 'pg_queue_oldest_ready_age_seconds' THEN coalesce(extract(epoch FROM s.oldest_ready_age), 0)
           WHEN 'pg_queue_enqueued_total' THEN s.enqueued WHEN 'pg_queue_claimed_total' THEN s.claimed
           WHEN 'pg_queue_completed_total' THEN s.completed WHEN 'pg_queue_failed_total' THEN s.failed
           WHEN 'pg_queue_timed_out_total' THEN s.timed_out WHEN 'pg_queue_died_total' THEN s.died
       END END::float8 AS value,
       v.type::text AS type, v.help::text AS help
FROM (VALUES
    ('pg_queue_jobs', 'ready', 'gauge', 'Jobs in this state now.'),
    ('pg_queue_jobs', 'scheduled', 'gauge', 'Jobs in this state now.'),
    ('pg_queue_jobs', 'retrying', 'gauge', 'Jobs in this state now.'),
    ('pg_queue_jobs', 'running', 'gauge', 'Jobs in this state now.'),
    ('pg_queue_jobs', 'dead', 'gauge', 'Jobs in this state now.'),
    ('pg_queue_oldest_ready_age_seconds', NULL, 'gauge', 'How long the oldest ready job has been ready; 0: none is.'),
    ('pg_queue_enqueued_total', NULL, 'counter', 'Jobs enqueued since the queue was created.'),
    ('pg_queue_claimed_total', NULL, 'counter', 'Attempts claimed by workers since the queue was created.'),
    ('pg_queue_completed_total', NULL, 'counter', 'Attempts completed, or advanced to another stage, since the queue was created.'),
    ('pg_queue_failed_total', NULL, 'counter', 'Attempts failed since the queue was created.'),
    ('pg_queue_timed_out_total', NULL, 'counter', 'Attempts whose lease or connection ended since the queue was created.'),
    ('pg_queue_died_total', NULL, 'counter', 'Attempts that were a job''s last and failed, since the queue was created.')
) AS v (name, state, type, help)
CROSS JOIN queue.stats AS s
-- There it would have to read the logs.
WHERE NOT pg_is_in_recovery()
UNION ALL
SELECT v.name, jsonb_strip_nulls(jsonb_build_object('queue', q.queue_name, 'stage', n.stage, 'quantile', r.quantile::text)),
       r.seconds, 'gauge', v.help
FROM (VALUES
    ('pg_queue_wait_seconds', 'wait', 'How long attempts claimed in the last minute had been ready: quantiles of a sample.'),
    ('pg_queue_run_seconds', 'run', 'How long attempts that ended in the last minute had run: quantiles of a sample.')
) AS v (name, kind, help)
JOIN queue.recent_times() AS r ON r.kind = v.kind
JOIN queue.lane AS n ON n.lane = r.lane
JOIN queue.queue AS q ON q.queue_id = n.queue_id
UNION ALL
SELECT 'pg_queue_is_paused', jsonb_build_object('queue', q.queue_name), q.is_paused::integer, 'gauge',
       '1 while claims from the queue find nothing, by queue.pause.'
FROM queue.queue AS q
UNION ALL
SELECT 'pg_queue_workers_busy', jsonb_build_object('queue', q.queue_name),
       (SELECT count(DISTINCT r.pid) FROM queue.running_now() AS r JOIN queue.lane AS n ON n.lane = r.lane
        WHERE n.queue_id = q.queue_id), 'gauge', 'Connections that have jobs of the queue.'
FROM queue.queue AS q
UNION ALL
SELECT 'pg_queue_schedule_late_seconds',
       jsonb_strip_nulls(jsonb_build_object('schedule', s.name, 'queue', s.queue_name)),
       greatest(extract(epoch FROM clock_timestamp() - s.next_run_at), 0)::float8, 'gauge',
       'By how much the schedule''s next slot is overdue; 0: it is not.'
FROM queue.schedules AS s
UNION ALL
SELECT 'pg_queue_log_segments', jsonb_build_object('state', v.word),
       (SELECT count(*) FROM (SELECT DISTINCT ON (l.segment) l.state FROM queue.segment_log AS l
                              ORDER BY l.segment, l.entry DESC) AS l WHERE l.state = v.state)
           -- Those that were never used are not in the log.
           + CASE v.state WHEN 'f' THEN 10 - (SELECT count(DISTINCT l.segment) FROM queue.segment_log AS l) ELSE 0 END,
       'gauge', 'Segments of the logs that are doing this, of ten.'
FROM (VALUES ('f'::"char", 'free'), ('o', 'open'), ('c', 'closed'), ('m', 'moving'), ('d', 'drained'), ('h', 'copied'),
             ('e', 'emptying')) AS v (state, word)
UNION ALL
SELECT 'pg_queue_storage_bytes', jsonb_build_object('part', v.part),
       coalesce((SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class AS c
                 WHERE c.relnamespace = 'queue'::regnamespace AND c.relkind = 'r'
                   AND v.part = CASE WHEN c.relname ~ '^(attempt|claim|outcome|note)_[0-9]$' THEN 'logs'
                                     WHEN c.relname ~ '^history' THEN 'history' ELSE 'other' END), 0)::float8,
       'gauge', 'Disk space with indexes, in bytes: of the logs, of history, of the rest.'
FROM (VALUES ('logs'), ('history'), ('other')) AS v (part)
UNION ALL
SELECT v.name, jsonb_build_object('setting', m.setting),
       CASE v.name WHEN 'pg_queue_memory_used' THEN m.used ELSE m.size END::float8, 'gauge', v.help
FROM (VALUES
    ('pg_queue_memory_used', 'How many of what the setting sizes are in use, over all databases.'),
    ('pg_queue_memory_size', 'How many of what the setting sizes there can be, over all databases.')
) AS v (name, help)
CROSS JOIN queue.memory_use() AS m
UNION ALL
SELECT 'pg_queue_check_ok', jsonb_build_object('check', d.name), d.ok::integer, 'gauge',
       '1 where queue.doctor() finds that all is well.'
FROM queue.doctor() AS d
UNION ALL
SELECT 'pg_queue_extension_info',
       jsonb_build_object('version', (SELECT extversion FROM pg_extension WHERE extname = 'pg_queue'),
                          'library_version', current_setting('pg_queue.library_version')),
       1, 'gauge', 'Always 1; its labels say which versions there are.';
COMMENT ON VIEW queue.metric IS 'What queue.metrics() returns. For it.';
COMMENT ON COLUMN queue.metric.name IS 'The metric, as Prometheus names it.';
COMMENT ON COLUMN queue.metric.labels IS 'An object of texts.';
COMMENT ON COLUMN queue.metric.value IS 'What it is now.';
COMMENT ON COLUMN queue.metric.type IS 'gauge or counter.';
COMMENT ON COLUMN queue.metric.help IS 'What the metric means.';

CREATE FUNCTION queue.metrics()
    RETURNS TABLE (name text, labels jsonb, value float8, type text, help text)
    STABLE ROWS 200 LANGUAGE sql
BEGIN ATOMIC
    SELECT m.name, m.labels, m.value, m.type, m.help FROM queue.metric AS m;
END;
COMMENT ON FUNCTION queue.metrics IS
'What there is to measure, for exporters to Prometheus: a row for each name and labels. Reads no log; a condition on name
leaves out the cost of the others. Counters go on over restarts and crashes.';

REVOKE ALL ON FUNCTION queue.doctor, queue.memory_use, queue.recent_times, queue.metrics FROM PUBLIC;
