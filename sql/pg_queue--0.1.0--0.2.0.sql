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
    view text;
BEGIN
    SET LOCAL lock_timeout = '100ms';
    LOOP
        BEGIN
            -- Those views that are made anew below, and before the tables, as who reads them does.
            FOREACH view IN ARRAY ARRAY['jobs', 'attempts', 'queues', 'stats', 'errors', 'workers', 'schedules',
                                        'throughput_part', 'job_life', 'life'] LOOP
                EXECUTE format('ALTER VIEW queue.%I RESET (security_barrier)', view);
            END LOOP;
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

-- Privileges on queues ----------------------------------------------------------------------------------
CREATE TABLE queue.permission (
    queue_id    integer NOT NULL,
    role_name   text    COLLATE "C" NOT NULL,
    privilege   text    COLLATE "C" NOT NULL
                CONSTRAINT permission_privilege_check CHECK (privilege IN ('produce', 'consume', 'observe', 'manage')),
    CONSTRAINT permission_pkey PRIMARY KEY (queue_id, role_name, privilege)
);
COMMENT ON TABLE queue.permission IS
    'What was granted on queues. Change it through queue.grant and revoke only. Names, not oids: so a dump can be restored where a role is missing.';
COMMENT ON COLUMN queue.permission.queue_id IS '0: every queue that there is and will be.';
COMMENT ON COLUMN queue.permission.role_name IS 'Whose members have it too. A role that does not exist counts for nobody; public: everybody.';
COMMENT ON COLUMN queue.permission.privilege IS 'produce, consume, observe, manage.';
SELECT pg_catalog.pg_extension_config_dump('queue.permission', '');

CREATE FUNCTION queue.grant(queue_name text, role_name text, privilege text)
    RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_grant';
COMMENT ON FUNCTION queue.grant IS
'Lets a role, and its members, use a queue; ''*'': every queue that there is and will be. privilege: produce (enqueue),
consume (claim and end), observe (look), manage (all of these, and change the queue and its jobs, and grant). Whoever manages the
queue may do this. Errors: 42704 no such queue or role, 22023 no such privilege, 22004 an argument is null, 42501.';

CREATE FUNCTION queue.revoke(queue_name text, role_name text, privilege text)
    RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_revoke';
COMMENT ON FUNCTION queue.revoke IS
'Takes back what queue.grant has given with the same arguments; nothing when there is nothing. Counts from the next call
of every session on. The role may be gone. Errors: 42704 no such queue, 22023 no such privilege, 22004, 42501.';

CREATE FUNCTION queue.may_observe(queue_id integer) RETURNS boolean STABLE
    LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_may_observe';
COMMENT ON FUNCTION queue.may_observe IS 'Whether the current user may observe a queue; 0: every queue. For the views.';

CREATE VIEW queue.observed WITH (security_barrier) AS
SELECT n.lane, n.stage, q.queue_id, q.queue_name, q.max_attempts, q.stages
FROM queue.lane AS n JOIN queue.queue AS q ON q.queue_id = n.queue_id
WHERE queue.may_observe(q.queue_id);
COMMENT ON VIEW queue.observed IS 'The lanes of the queues that the current user may observe. For the other views.';

CREATE FUNCTION queue.derive_grants() RETURNS void
    LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_derive_grants';
COMMENT ON FUNCTION queue.derive_grants IS
'Makes the GRANTs on the extension''s schema, functions and views what queue.permission wants. Used by upgrade scripts.';

-- Our own script is no restore: the table was made by it, and whoever writes to it from now on is seen.
CREATE TRIGGER foreign_write BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON queue.permission
    FOR EACH STATEMENT EXECUTE FUNCTION queue.foreign_write();
ALTER TABLE queue.permission ENABLE ALWAYS TRIGGER foreign_write;

REVOKE ALL ON FUNCTION queue.grant, queue.revoke, queue.may_observe, queue.derive_grants FROM PUBLIC;

CREATE OR REPLACE VIEW queue.throughput_part WITH (security_barrier) AS
SELECT o.queue_name, o.stage, r.minute, r.enqueued, r.claimed, r.completed, r.failed, r.timed_out, r.died, r.wait, r.run
FROM (SELECT minute, enqueued, claimed, completed, failed, timed_out, died, lane, wait, run FROM queue.rollup
      UNION ALL
      SELECT minute, enqueued, claimed, completed, failed, timed_out, died, lane, wait, run FROM queue.throughput_live()) AS r
JOIN queue.observed AS o ON o.lane = r.lane;

CREATE OR REPLACE VIEW queue.schedules WITH (security_barrier) AS
SELECT s.schedule_name AS name, q.queue_name, s.cron, s.every, s.timezone, f.next_run_at, f.last_run_at, f.last_job_id,
       s.is_paused, s.missed, s.starts_at, s.ends_at, s.overlap, s.priority, s.max_attempts, s.group_key, s.payload,
       s.headers, s.created_at
FROM queue.schedule AS s
LEFT JOIN queue.queue AS q ON q.queue_id = s.queue_id
LEFT JOIN queue.firings() AS f ON f.schedule_id = s.schedule_id
WHERE queue.may_observe(s.queue_id);

CREATE OR REPLACE VIEW queue.life WITH (security_barrier) AS
SELECT l.id, l.job_id, l.enqueued_at, l.lane, l.priority, l.attempt, l.max_attempts, l.run_at,
       NULL::jsonb AS payload, l.id AS payload_in,
       l.headers, l.group_key, l.unique_key, l.last_error, l.progress, l.claimed_at, l.lease_us, l.pid, l.claim_kind, l.worker,
       l.ended_at, l.outcome, l.next_id, l.result, l.error, l.is_newest
FROM queue.live() AS l
UNION ALL
SELECT h.id, h.job_id, h.enqueued_at, h.lane, h.priority, h.attempt, h.max_attempts, h.run_at, h.payload, NULL,
       h.headers, h.group_key, h.unique_key, h.last_error, h.progress, h.claimed_at, NULL, h.pid, h.claim_kind, h.worker,
       h.ended_at, h.outcome, h.next_id, h.result, h.error,
       h.next_id IS NULL AND NOT EXISTS (SELECT FROM queue.successor AS s WHERE s.id = h.id)
FROM queue.history AS h
-- What is still being copied is read in its segment.
WHERE h.generation <> ALL (ARRAY(
    SELECT d.generation FROM queue.segment_log AS d WHERE d.state = 'd' AND NOT EXISTS (
        SELECT FROM queue.segment_log AS c WHERE c.generation = d.generation AND c.state = 'h')))
  AND ((SELECT queue.may_observe(0)) OR h.lane IN (SELECT o.lane FROM queue.observed AS o));

CREATE OR REPLACE VIEW queue.attempts AS
SELECT l.id, l.job_id, o.queue_name, l.attempt,
       CASE WHEN l.outcome IS NOT NULL THEN
                CASE l.outcome WHEN 'c' THEN 'completed' WHEN 'f' THEN 'failed' WHEN 'd' THEN 'dead' WHEN 't' THEN 'timed_out'
                               WHEN 'r' THEN 'released' WHEN 'a' THEN 'advanced' WHEN 'x' THEN 'cancelled' ELSE 'superseded' END
            WHEN l.claimed_at IS NOT NULL THEN 'running'
            WHEN l.run_at > clock_timestamp() THEN CASE WHEN l.last_error IS NULL THEN 'scheduled' ELSE 'retrying' END
            ELSE 'ready' END AS state,
       CASE WHEN l.claim_kind <> 's' THEN l.claimed_at END AS claimed_at,
       l.ended_at AS finished_at, l.worker, l.error, o.stage
FROM queue.life AS l
JOIN queue.observed AS o ON o.lane = l.lane;

CREATE OR REPLACE VIEW queue.job_life AS
SELECT l.id AS attempt_id, l.job_id, o.queue_name, o.stage,
       CASE WHEN l.outcome = 'c' THEN 'completed'
            WHEN l.outcome = 'x' THEN 'cancelled'
            WHEN l.outcome IS NOT NULL THEN 'dead'
            WHEN l.claimed_at IS NOT NULL THEN 'running'
            WHEN l.run_at > clock_timestamp() THEN CASE WHEN l.last_error IS NULL THEN 'scheduled' ELSE 'retrying' END
            ELSE 'ready' END AS state,
       -- Not before all conditions are met, of those rows that are wanted.
       coalesce(l.payload, queue.payload_of(l.payload_in)) AS payload,
       l.priority, l.attempt, coalesce(l.max_attempts, o.max_attempts) AS max_attempts, l.run_at, l.enqueued_at,
       CASE WHEN l.claim_kind <> 's' THEN l.claimed_at END AS started_at,
       l.ended_at AS finished_at,
       CASE WHEN l.outcome IS NULL AND l.claimed_at IS NOT NULL
            THEN coalesce(queue.lease_expires_at(l.id), l.claimed_at + l.lease_us * interval '1 microsecond') END AS lease_expires_at,
       l.worker, coalesce(l.error, l.last_error) AS error, l.result, l.progress, l.unique_key, l.group_key, l.headers
FROM queue.life AS l
JOIN queue.observed AS o ON o.lane = l.lane
WHERE l.is_newest;

CREATE OR REPLACE VIEW queue.queues WITH (security_barrier) AS
SELECT queue_name, is_paused, max_attempts, lease, backoff, backoff_base, backoff_max, backoff_jitter, retention, dead_retention,
       dead_letter, max_running, max_running_per_group, strict_order, rate_limit, rate_period, max_waiting, stages, notify, created_at
FROM queue.queue
WHERE queue.may_observe(queue_id);

CREATE OR REPLACE VIEW queue.stats AS
SELECT o.queue_name, o.stage,
       coalesce(t.ready, 0) AS ready, coalesce(t.scheduled, 0) AS scheduled, coalesce(t.retrying, 0) AS retrying,
       coalesce(t.running, 0) AS running, coalesce(t.dead, 0) AS dead,
       clock_timestamp() - t.oldest_ready_at AS oldest_ready_age,
       coalesce(t.enqueued, 0) AS enqueued, coalesce(t.claimed, 0) AS claimed, coalesce(t.completed, 0) AS completed,
       coalesce(t.failed, 0) AS failed, coalesce(t.timed_out, 0) AS timed_out, coalesce(t.died, 0) AS died
FROM queue.observed AS o
LEFT JOIN queue.tallies() AS t ON t.lane = o.lane
-- Of former stages, and of jobs outside stages where there are some now, only what there is or was.
WHERE t.lane IS NOT NULL OR o.stage = ANY (o.stages) OR o.stage IS NULL AND o.stages IS NULL;

CREATE OR REPLACE VIEW queue.errors AS
-- What may be of interest, read once.
WITH l AS MATERIALIZED (
    SELECT l.job_id, l.lane, l.error, coalesce(l.error, l.last_error) AS last_error, l.ended_at,
           l.is_newest AND (l.outcome IS NOT NULL OR l.claimed_at IS NULL) AS is_open
    FROM queue.life AS l
    WHERE l.outcome IN ('f', 'd', 't') AND l.error IS NOT NULL
       OR l.outcome IS NULL AND l.claimed_at IS NULL AND l.last_error IS NOT NULL)
SELECT o.queue_name, j.last_error AS error, count(DISTINCT j.job_id) AS jobs, min(f.ended_at) AS first_seen,
       max(f.ended_at) AS last_seen, min(j.job_id) AS example_job_id
FROM l AS j
-- Of a job that waits, the attempt that failed may be kept no more.
LEFT JOIN l AS f ON f.job_id = j.job_id AND f.error = j.last_error AND f.ended_at IS NOT NULL
JOIN queue.observed AS o ON o.lane = j.lane
WHERE j.is_open
GROUP BY o.queue_name, j.last_error;

DO $comments$
DECLARE
    relation regclass;
    attribute name;
BEGIN
    -- Columns named alike mean the same; those that no statement above explained get the words of the others.
    FOR relation, attribute IN
        SELECT a.attrelid::regclass, a.attname FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid
        WHERE c.relnamespace = 'queue'::regnamespace AND c.relkind IN ('v', 'r') AND a.attnum > 0 AND NOT a.attisdropped
          AND col_description(a.attrelid, a.attnum) IS NULL
    LOOP
        EXECUTE format('COMMENT ON COLUMN %s.%I IS %L', relation, attribute, coalesce((
            SELECT min(col_description(b.attrelid, b.attnum)) FROM pg_attribute AS b JOIN pg_class AS d ON d.oid = b.attrelid
            WHERE d.relnamespace = 'queue'::regnamespace AND b.attname = attribute AND col_description(b.attrelid, b.attnum) IS NOT NULL
              AND d.relkind IN ('v', 'c')), replace(attribute::text, '_', ' ')));
    END LOOP;
END
$comments$;

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
COMMENT ON COLUMN queue.queues.retention IS 'How long completed and cancelled jobs are kept; 0: not at all, -1: for ever.';
COMMENT ON COLUMN queue.queues.dead_retention IS 'How long dead jobs are kept; 0: not at all, -1: for ever.';
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
COMMENT ON COLUMN queue.errors.first_seen IS 'When one of these jobs failed so for the first time, of the attempts that are kept; null: none is.';
COMMENT ON COLUMN queue.errors.last_seen IS 'When one of these jobs failed so the last time; null as first_seen.';
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
SELECT c.worker, c.pid, s.client_addr, s.client_port, s.application_name, o.queue_name,
       count(*) AS running, min(c.claimed_at) AS oldest_claimed_at, clock_timestamp() - min(c.claimed_at) AS oldest_claim
FROM queue.claims_now() AS c
JOIN queue.observed AS o ON o.lane = c.lane
LEFT JOIN pg_catalog.pg_stat_activity AS s ON s.pid = c.pid
GROUP BY c.worker, c.pid, s.client_addr, s.client_port, s.application_name, o.queue_name;
REVOKE ALL ON FUNCTION queue.claims_now FROM PUBLIC;

-- Dearer, it would have the plans of the views compiled at each look.
ALTER FUNCTION queue.payload_of(bigint) COST 20;

CREATE FUNCTION queue.doctor()
    RETURNS TABLE (name text, ok boolean, detail text, hint text)
    STABLE LANGUAGE c ROWS 17 AS 'MODULE_PATHNAME', 'pg_queue_doctor';
COMMENT ON FUNCTION queue.doctor IS
'Looks whether all is well: a row for each check, with what it has seen and, where ok is false, what to do. What stands
still counts after pg_queue.patience. Waits for nobody; a check that fails is not ok. Also on a standby. Errors:
42501 for who may not observe every queue.';

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
SELECT v.name, jsonb_strip_nulls(jsonb_build_object('queue', o.queue_name, 'stage', o.stage, 'quantile', r.quantile::text)),
       r.seconds, 'gauge', v.help
FROM (VALUES
    ('pg_queue_wait_seconds', 'wait', 'How long attempts claimed in the last minute had been ready: quantiles of a sample.'),
    ('pg_queue_run_seconds', 'run', 'How long attempts that ended in the last minute had run: quantiles of a sample.')
) AS v (name, kind, help)
JOIN queue.recent_times() AS r ON r.kind = v.kind
JOIN queue.observed AS o ON o.lane = r.lane
UNION ALL
SELECT 'pg_queue_is_paused', jsonb_build_object('queue', q.queue_name), q.is_paused::integer, 'gauge',
       '1 while claims from the queue find nothing, by queue.pause.'
FROM queue.queue AS q
WHERE queue.may_observe(q.queue_id)
UNION ALL
SELECT 'pg_queue_workers_busy', jsonb_build_object('queue', q.queue_name),
       (SELECT count(DISTINCT r.pid) FROM queue.running_now() AS r JOIN queue.lane AS n ON n.lane = r.lane
        WHERE n.queue_id = q.queue_id), 'gauge', 'Connections that have jobs of the queue.'
FROM queue.queue AS q
WHERE queue.may_observe(q.queue_id)
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
WHERE queue.may_observe(0)
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

-- A job that is retried keeps what it was enqueued with.
ALTER TABLE queue.history ADD COLUMN lease interval, ADD COLUMN version timestamptz;
COMMENT ON COLUMN queue.history.lease IS 'Null: as the queue says.';
COMMENT ON COLUMN queue.history.version IS 'Of what was enqueued under the key, as the producer counts.';

-- Where rows are updated or deleted without a primary key a publication of all tables would refuse it.
DO $identity$
DECLARE
    name text;
BEGIN
    FOR name IN
        SELECT c.oid::regclass::text FROM pg_catalog.pg_class AS c
        WHERE c.relnamespace = 'queue'::regnamespace AND c.relkind = 'r'
          AND c.relname ~ '^(history|restoring|rollup|total|note_[0-9])'
    LOOP
        EXECUTE format('ALTER TABLE %s REPLICA IDENTITY FULL', name);
    END LOOP;
END
$identity$;

-- In 0.1.0 whoever might execute a function, or read a view, might use it for all queues. Nobody is locked out: these get
-- the privilege that it needs now, which may be for more functions than they had. Who might not use the schema could do
-- nothing, whatever default privileges had given him.
DO $privileges$
DECLARE
    role_name text;
    privilege text;
BEGIN
    FOR role_name, privilege IN
        SELECT coalesce(r.rolname::text, 'public'), o.privilege
        FROM (VALUES ('produce', ARRAY['enqueue', 'enqueue_many', 'enqueue_batch']),
                     ('consume', ARRAY['claim', 'claim_any', 'wait', 'complete', 'complete_many', 'fail', 'fail_many', 'release',
                                       'release_many', 'extend', 'extend_many', 'progress', 'advance']),
                     ('observe', ARRAY['jobs', 'attempts', 'queues', 'stats', 'throughput', 'errors', 'workers', 'schedules',
                                       'job', 'throughput_by', 'upcoming']),
                     ('manage', ARRAY['create', 'alter', 'drop', 'pause', 'resume', 'purge', 'cancel', 'retry', 'retry_dead',
                                      'reprioritize', 'reschedule', 'forget', 'schedule', 'unschedule', 'pause_schedule',
                                      'resume_schedule', 'run_schedule', 'maintain', 'adopt'])) AS o (privilege, names)
        JOIN (SELECT p.proname, p.proowner, a.grantee FROM pg_catalog.pg_proc AS p, pg_catalog.aclexplode(p.proacl) AS a
              WHERE p.pronamespace = 'queue'::regnamespace
              UNION ALL
              SELECT c.relname, c.relowner, a.grantee FROM pg_catalog.pg_class AS c, pg_catalog.aclexplode(c.relacl) AS a
              WHERE c.relnamespace = 'queue'::regnamespace AND c.relkind = 'v' AND a.privilege_type = 'SELECT'
             ) AS g (name, owner, grantee) ON g.name::text = ANY (o.names) AND g.grantee <> g.owner
        LEFT JOIN pg_catalog.pg_roles AS r ON r.oid = g.grantee
        WHERE (r.rolname IS NOT NULL OR g.grantee = 0)
          AND pg_catalog.has_schema_privilege(coalesce(r.rolname, 'public'), 'queue', 'USAGE')
        GROUP BY 1, 2 ORDER BY 1, 2
    LOOP
        INSERT INTO queue.permission (queue_id, role_name, privilege) VALUES (0, role_name, privilege);
        -- A notice would not be shown: Postgres raises the level for scripts.
        RAISE WARNING 'role % keeps what it was granted: queue.grant(''*'', %, %)', role_name, quote_literal(role_name),
            quote_literal(privilege);
    END LOOP;
END
$privileges$;

-- Views and the verbs act with the rights of who owns the tables; an update by another superuser makes no exception.
DO $owner$
DECLARE
    owner name;
    statement text;
BEGIN
    SELECT pg_catalog.pg_get_userbyid(relowner) INTO owner FROM pg_catalog.pg_class WHERE oid = 'queue.queue'::regclass;
    FOR statement IN
        SELECT format('ALTER %s %s', CASE c.relkind WHEN 'v' THEN 'VIEW' WHEN 'S' THEN 'SEQUENCE' WHEN 'c' THEN 'TYPE' ELSE 'TABLE' END,
                      c.oid::regclass)
        FROM pg_catalog.pg_class AS c
        WHERE c.relnamespace = 'queue'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'S', 'c')
          AND pg_catalog.pg_get_userbyid(c.relowner) <> owner
          -- Those that belong to a table go with it.
          AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend AS d WHERE d.classid = 'pg_catalog.pg_class'::regclass AND d.objid = c.oid
                                                                AND c.relkind = 'S' AND d.deptype IN ('a', 'i'))
        UNION ALL
        SELECT format('ALTER ROUTINE %s', p.oid::regprocedure) FROM pg_catalog.pg_proc AS p
        WHERE p.pronamespace = 'queue'::regnamespace AND pg_catalog.pg_get_userbyid(p.proowner) <> owner
    LOOP
        EXECUTE format('%s OWNER TO %I', statement, owner);
    END LOOP;
END
$owner$;

-- Last: GRANTs on all that is here by now.
SELECT queue.derive_grants();
