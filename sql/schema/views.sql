-- The views: they read the logs as one table.
--
-- Each user sees the rows of queues that the user may observe. The functions leave out all other rows. Where views read
-- tables, security barriers exclude those rows, so that no function in a condition sees them either. The barriers are
-- as far down as possible, because conditions on payloads and errors are not pushed below them.

-- For: observe.
CREATE FUNCTION queue_internal.job_state(outcome "char", is_claimed boolean, is_held boolean, run_at timestamptz,
    has_failed boolean)
    RETURNS text LANGUAGE c COST 2 AS 'MODULE_PATHNAME', 'pg_queue_job_state';
COMMENT ON FUNCTION queue_internal.job_state IS 'The state of a job, from its newest attempt. For the views.';

-- For: observe.
CREATE FUNCTION queue_internal.attempt_state(outcome "char", is_claimed boolean, is_held boolean, run_at timestamptz,
    has_failed boolean)
    RETURNS text LANGUAGE c COST 2 AS 'MODULE_PATHNAME', 'pg_queue_attempt_state';
COMMENT ON FUNCTION queue_internal.attempt_state IS
    'The state of an attempt: how it has ended, else the state of its job. For the views.';

CREATE VIEW queue_internal.life WITH (security_barrier) AS
SELECT l.id, l.job_id, l.enqueued_at, l.lane, l.priority, l.attempt, l.max_attempts, l.run_at,
       NULL::jsonb AS payload, l.id AS payload_in,
       l.headers, l.group_key, l.unique_key, l.last_error, l.progress, l.claimed_at, l.lease_us, l.pid, l.claim_kind,
       l.worker,
       l.ended_at, l.outcome, l.next_id, l.result, l.error, l.is_newest, l.flow, l.task, l.after, l.upon, l.own_flow,
       l.start_by, l.timing
FROM queue_internal.live() AS l
UNION ALL
SELECT h.id, h.job_id, h.enqueued_at, h.lane, h.priority, h.attempt, h.max_attempts, h.run_at, h.payload, NULL,
       h.headers, h.group_key, h.unique_key, h.last_error, h.progress, h.claimed_at, NULL, h.pid, h.claim_kind,
       h.worker, h.ended_at, h.outcome, h.next_id, h.result, h.error,
       h.next_id IS NULL AND NOT EXISTS (SELECT FROM queue_internal.successor AS s WHERE s.id = h.id),
       h.flow, h.task, h.after, h.upon, h.own_flow, NULL::timestamptz, h.timing
FROM queue_internal.history AS h
-- Rows that are still being copied are read in their segment.
WHERE h.generation <> ALL (ARRAY(
    SELECT d.generation FROM queue_internal.segment_log AS d WHERE d.state IN ('m', 'd') AND NOT EXISTS (
        SELECT FROM queue_internal.segment_log AS c WHERE c.generation = d.generation AND c.state = 'h')))
  AND ((SELECT queue_internal.may_observe(0)) OR h.lane IN (SELECT o.lane FROM queue_internal.observed AS o));
COMMENT ON VIEW queue_internal.life IS
    'One row for each attempt in the logs and in history, with its claim and outcome. For the other views.';
COMMENT ON COLUMN queue_internal.life.own_flow IS 'Makes the job a flow: see the attempts.';

-- For: observe.
CREATE VIEW queue.attempts AS
SELECT l.id, l.job_id, o.queue_name, l.attempt,
       queue_internal.attempt_state(
           l.outcome, l.claimed_at IS NOT NULL, o.is_held, l.run_at, l.last_error IS NOT NULL) AS state,
       CASE WHEN l.claim_kind <> 's' THEN l.claimed_at END AS claimed_at,
       l.ended_at AS finished_at, l.worker, l.error, o.stage
FROM queue_internal.life AS l
JOIN queue_internal.observed AS o ON o.lane = l.lane;
COMMENT ON VIEW queue.attempts IS
    'One row for each attempt, that is, each run of a job. It includes runs that have not begun.';
COMMENT ON COLUMN queue.attempts.id IS 'The attempt.';
COMMENT ON COLUMN queue.attempts.job_id IS 'The job.';
COMMENT ON COLUMN queue.attempts.queue_name IS 'The queue.';
COMMENT ON COLUMN queue.attempts.attempt IS 'The number of this run, from 1 in each stage; a release does not count.';
COMMENT ON COLUMN queue.attempts.state IS
    'held, scheduled, ready, retrying, running, or how it ended: completed, failed (there is a next attempt), dead, '
    'timed_out, released, suspended (it waits for other jobs), advanced (to another stage), cancelled, skipped, '
    'expired, superseded (by an attempt with another priority or time, or by the one that its release made).';
COMMENT ON COLUMN queue.attempts.claimed_at IS 'When a worker claimed it.';
COMMENT ON COLUMN queue.attempts.finished_at IS 'When it ended.';
COMMENT ON COLUMN queue.attempts.worker IS 'The name that the worker gave.';
COMMENT ON COLUMN queue.attempts.error IS 'Why it failed, timed out, was cancelled, was skipped or was released.';
COMMENT ON COLUMN queue.attempts.stage IS 'Its stage; NULL in a queue without stages.';

CREATE VIEW queue_internal.job_life AS
SELECT l.id AS attempt_id, l.job_id, o.queue_name, o.stage,
       queue_internal.job_state(
           l.outcome, l.claimed_at IS NOT NULL, o.is_held, l.run_at, l.last_error IS NOT NULL) AS state,
       -- The function is called after all conditions, and only for the selected rows.
       coalesce(l.payload, queue_internal.payload_of(l.payload_in)) AS payload,
       l.priority, l.attempt, coalesce(l.max_attempts, o.max_attempts) AS max_attempts, l.run_at, l.enqueued_at,
       CASE WHEN l.claim_kind <> 's' THEN l.claimed_at END AS claimed_at,
       l.ended_at AS finished_at,
       CASE WHEN l.outcome IS NULL AND l.claimed_at IS NOT NULL
            THEN coalesce(queue_internal.lease_expires_at(l.id),
                          l.claimed_at + l.lease_us * interval '1 microsecond')
       END AS lease_expires_at,
       l.worker, coalesce(l.error, l.last_error) AS error, l.result, l.progress, l.unique_key, l.group_key, l.headers,
       l.flow, l.task, l.after,
       CASE l.upon WHEN 'c' THEN 'completed' WHEN 'y' THEN 'any' WHEN 'f' THEN 'failed' WHEN 'e' THEN 'ended'
                                WHEN 'o' THEN 'overdue' END AS upon,
       l.own_flow IS NOT NULL AS is_flow, nullif(l.start_by, 'infinity') AS start_by, l.timing
FROM queue_internal.life AS l
JOIN queue_internal.observed AS o ON o.lane = l.lane
WHERE l.is_newest;
COMMENT ON VIEW queue_internal.job_life IS
    'The rows of queue.jobs, with the id of the newest attempt. For queue.job and the other views.';
COMMENT ON COLUMN queue_internal.job_life.claimed_at IS 'When a worker claimed the newest attempt.';
COMMENT ON COLUMN queue_internal.job_life.is_flow IS 'True for a flow.';

-- For: observe.
CREATE VIEW queue.jobs AS
SELECT job_id, queue_name, stage, state, payload, priority, attempt, max_attempts, run_at, enqueued_at, claimed_at,
       finished_at, lease_expires_at, worker, error, result, progress, unique_key, group_key, headers,
       flow, task, after, upon, start_by, timing
FROM queue_internal.job_life;
COMMENT ON VIEW queue.jobs IS
    'One row for each job. A condition on job_id reads all jobs: use queue.job(job_id) for one job.';
COMMENT ON COLUMN queue.jobs.job_id IS 'The job.';
COMMENT ON COLUMN queue.jobs.queue_name IS 'The queue.';
COMMENT ON COLUMN queue.jobs.stage IS 'The current stage; NULL in a queue without stages, and while the job is held.';
COMMENT ON COLUMN queue.jobs.state IS
    'held (waits for other jobs), scheduled (waits for its time), ready, running, retrying (waits after a failure), '
    'completed, dead (no attempts left), cancelled, skipped (its condition can no longer be met), expired (no worker '
    'had claimed it before start_by).';
COMMENT ON COLUMN queue.jobs.payload IS
    'The payload that the producer gave. It is read when the row is fetched. Late in a cursor, or in a query over '
    'very many jobs, it can be NULL because the job is not kept any more.';
COMMENT ON COLUMN queue.jobs.priority IS 'Smaller runs first.';
COMMENT ON COLUMN queue.jobs.attempt IS
    'The number of its current run, from 1 in each stage; a release does not count.';
COMMENT ON COLUMN queue.jobs.max_attempts IS 'After how many runs it is dead: its own number, else the queue''s.';
COMMENT ON COLUMN queue.jobs.run_at IS 'It does not run before this time; NULL: it may run immediately.';
COMMENT ON COLUMN queue.jobs.enqueued_at IS 'When the producer enqueued it.';
COMMENT ON COLUMN queue.jobs.claimed_at IS 'When a worker claimed the newest attempt.';
COMMENT ON COLUMN queue.jobs.finished_at IS 'When the newest attempt ended; NULL while the job is alive.';
COMMENT ON COLUMN queue.jobs.lease_expires_at IS 'When the worker''s lease expires; NULL if the job does not run.';
COMMENT ON COLUMN queue.jobs.worker IS 'The name that the worker gave.';
COMMENT ON COLUMN queue.jobs.error IS 'How the newest attempt, or the one before it, failed.';
COMMENT ON COLUMN queue.jobs.result IS 'The result that the worker gave to queue.complete.';
COMMENT ON COLUMN queue.jobs.progress IS 'The progress that the worker reported last.';
COMMENT ON COLUMN queue.jobs.unique_key IS 'The key it has, or had.';
COMMENT ON COLUMN queue.jobs.group_key IS 'The group it belongs to.';
COMMENT ON COLUMN queue.jobs.headers IS 'The headers that the producer gave.';
COMMENT ON COLUMN queue.jobs.flow IS 'The flow that it is a member of.';
COMMENT ON COLUMN queue.jobs.task IS 'Its name in the flow.';
COMMENT ON COLUMN queue.jobs.after IS 'Its predecessors, also after it was released.';
COMMENT ON COLUMN queue.jobs.upon IS
    'The condition on its predecessors: completed, any, failed, ended, overdue; NULL if it has none.';
COMMENT ON COLUMN queue.jobs.start_by IS
    'If no worker has claimed it before this time, it expires; NULL if it never does. NULL, too, for jobs that have '
    'ended and are in history.';
COMMENT ON COLUMN queue.jobs.timing IS
    'What the producer gave of start_by, start_within and max_delay, as an object. With max_delay it has '
    'delayed_since, the time of the first call that put the job off. NULL: the producer gave none of them.';

-- For: observe.
CREATE FUNCTION queue.job(job_id bigint) RETURNS SETOF queue.jobs STABLE ROWS 1
    LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_job';
COMMENT ON FUNCTION queue.job IS
    'One job by its id; no row if there is none. It is fast with any number of jobs. Errors: 22023 not a job''s id.';

-- For: observe.
CREATE FUNCTION queue.job_attempts(job_id bigint)
    RETURNS SETOF queue.attempts STABLE ROWS 2 LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_job_attempts';
COMMENT ON FUNCTION queue.job_attempts IS
'The attempts of a job, as queue.attempts shows them; no row if there are none. It is fast with any number of jobs.
Errors: 22023 not a job''s id.';

-- For: produce, consume, observe.
CREATE PROCEDURE queue.await(
    job_id bigint, timeout interval DEFAULT '30 seconds', INOUT state text DEFAULT NULL, INOUT result jsonb DEFAULT NULL
)
    LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_await';
COMMENT ON PROCEDURE queue.await IS
'Sleeps until the job has ended, for at most timeout. Returns the job''s state at that moment, as queue.job shows it,
and its result. It holds no snapshot and no lock while it sleeps. The result is NULL for a user that may only
produce. Errors: 25001 inside a transaction block or function, P0002 there is no such job, 25006 on a standby, 22023,
55000 its queue was dropped.';

-- For: observe.
CREATE FUNCTION queue.members(job_id bigint, state text DEFAULT NULL, beyond bigint DEFAULT NULL,
    max_jobs integer DEFAULT 100)
    RETURNS SETOF queue.jobs STABLE ROWS 100 LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_members';
COMMENT ON FUNCTION queue.members IS
'The members of a flow in this state, in the order of their ids: at most max_jobs, beginning behind the job beyond.
Errors: 22023 not a job''s id.';

CREATE TYPE queue.listed_job AS (
    job_id bigint, queue_name text, stage text, state text, payload jsonb, priority integer, attempt integer,
    max_attempts integer, run_at timestamptz, enqueued_at timestamptz, claimed_at timestamptz, finished_at timestamptz,
    lease_expires_at timestamptz, worker text, error text, result jsonb, progress jsonb, unique_key text,
    group_key text, headers jsonb, flow bigint, task text, after bigint[], upon text, here jsonb, rows_read bigint,
    start_by timestamptz, timing jsonb
);
COMMENT ON TYPE queue.listed_job IS
    'What queue.search returns: the columns of queue.jobs, the position for the next call, and how many '
    'rows were read so far.';
DO $each_listed$
DECLARE
    attribute name;
    words text;
BEGIN
    FOR attribute, words IN
        SELECT a.attname, col_description(b.attrelid, b.attnum)
        FROM pg_attribute AS a JOIN pg_attribute AS b ON b.attrelid = 'queue.jobs'::regclass AND b.attname = a.attname
        WHERE a.attrelid = 'queue.listed_job'::regclass
          AND col_description(a.attrelid, a.attnum) IS DISTINCT FROM col_description(b.attrelid, b.attnum)
    LOOP
        EXECUTE format('COMMENT ON COLUMN queue.listed_job.%I IS %L', attribute, words);
    END LOOP;
END
$each_listed$;
COMMENT ON COLUMN queue.listed_job.here IS
    'The position at which the next call goes on, as its beyond. Null if this is not the last row, or if there are no '
    'more jobs.';
COMMENT ON COLUMN queue.listed_job.rows_read IS 'How many rows the call had read when it found the job.';

-- For: observe.
CREATE FUNCTION queue.search(
    queue_name text, filter jsonpath DEFAULT NULL, states text[] DEFAULT NULL, stage text DEFAULT NULL,
    beyond jsonb DEFAULT NULL, max_jobs integer DEFAULT 50, max_rows integer DEFAULT 20000
)
    RETURNS SETOF queue.listed_job
    VOLATILE ROWS 50 LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_search';
COMMENT ON FUNCTION queue.search IS
'A page of a queue''s jobs, read by indexes: those in these states, state after state; NULL: in all. Jobs that run, wait
or are held come in the order of their turn; the others begin with the latest end. filter: only jobs for which it is
true, or finds something. It reads an object of job_id, stage, state, payload, priority, attempt, max_attempts, worker,
error, result, progress, unique_key, group_key, headers, flow, task, is_flow, timing. stage: only jobs in this stage. A
call reads for at most half a second, and at most max_rows rows. beyond: the value of here in the last row of the
previous page, even if that row has no job; a page whose last row has no here is the last. Errors: 42704, 22023 there is
no such state or stage, or beyond is not a position.';

CREATE TYPE queue.error_group AS (
    queue_name text, error text, jobs bigint, dead bigint, retrying bigint, first_died_at timestamptz,
    last_died_at timestamptz, example_job_id bigint, is_complete boolean
);
COMMENT ON TYPE queue.error_group IS 'What queue.error_groups returns.';
COMMENT ON COLUMN queue.error_group.queue_name IS 'The queue.';
COMMENT ON COLUMN queue.error_group.error IS 'The error text of the last failure of these jobs.';
COMMENT ON COLUMN queue.error_group.jobs IS 'How many jobs have this error.';
COMMENT ON COLUMN queue.error_group.dead IS 'How many of these jobs are dead.';
COMMENT ON COLUMN queue.error_group.retrying IS 'How many of these jobs wait for a retry.';
COMMENT ON COLUMN queue.error_group.first_died_at IS 'When the first of the dead jobs died.';
COMMENT ON COLUMN queue.error_group.last_died_at IS 'When the last of the dead jobs died.';
COMMENT ON COLUMN queue.error_group.example_job_id IS 'The newest of the jobs.';
COMMENT ON COLUMN queue.error_group.is_complete IS 'True if all dead and retrying jobs of the queue were read.';

-- For: observe.
CREATE FUNCTION queue.error_groups(queue_name text DEFAULT NULL, max_jobs integer DEFAULT 10000)
    RETURNS SETOF queue.error_group
    VOLATILE ROWS 100 LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_error_groups';
COMMENT ON FUNCTION queue.error_groups IS
'The jobs that died last and the jobs that are retried next, grouped by error text. For each queue, it reads at most
max_jobs of both. queue_name null: all queues. is_complete: all such jobs of the queue were read. Errors: 42704,
22023.';

CREATE TYPE queue.lane_load AS (
    queue_name text, stage text, ready bigint, due_soon bigint, running bigint, oldest_age interval, arrivals float8,
    ends float8, run_mean interval, drain_time interval, needed bigint, throttled_until timestamptz
);
COMMENT ON TYPE queue.lane_load IS 'What queue.load returns.';
COMMENT ON COLUMN queue.lane_load.queue_name IS 'The queue.';
COMMENT ON COLUMN queue.lane_load.stage IS 'The stage; null in a queue without stages.';
COMMENT ON COLUMN queue.lane_load.ready IS 'Jobs that can be claimed now.';
COMMENT ON COLUMN queue.lane_load.due_soon IS 'Jobs that will be ready within target_age.';
COMMENT ON COLUMN queue.lane_load.running IS 'Jobs that a worker runs.';
COMMENT ON COLUMN queue.lane_load.oldest_age IS
    'For how long the oldest ready job has been ready; null if no job is.';
COMMENT ON COLUMN queue.lane_load.arrivals IS
    'Jobs that become ready, each second: the greatest of those enqueued in the last minute, enqueued in the last five '
    'and claimed in the last five.';
COMMENT ON COLUMN queue.lane_load.ends IS 'Attempts that ended, each second, in the last minute.';
COMMENT ON COLUMN queue.lane_load.run_mean IS
    'How long a worker had an attempt, on average over those that ended within 15 minutes; null if none has. '
    'Attempts that still run do not count.';
COMMENT ON COLUMN queue.lane_load.drain_time IS
    'In which time no job will be ready any more, if all goes on like this; null: never. '
    'Jobs that run for long are not considered.';
COMMENT ON COLUMN queue.lane_load.needed IS
    'How many jobs have to run at once, and may; never below the running jobs that have lasted longer than run_mean.';
COMMENT ON COLUMN queue.lane_load.throttled_until IS
    'Until when no job starts, by queue.throttle; null: jobs may start. Throttled groups do not count.';

-- For: observe.
CREATE FUNCTION queue.load(queue_name text DEFAULT NULL, target_age interval DEFAULT '30 seconds')
    RETURNS SETOF queue.lane_load
    VOLATILE ROWS 100 LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_load';
COMMENT ON FUNCTION queue.load IS
'How many jobs of each queue and stage have to run at once so that a job waits at most target_age: the number by which
workers are scaled. Reads memory, and the index of scheduled jobs. queue_name null: all queues. No rows on a standby.
Errors: 42704, 22023 target_age is not positive.';

-- For: observe.
CREATE VIEW queue.flows AS
SELECT f.job_id, f.queue_name, f.task, f.state, coalesce(m.members, 0) AS members, coalesce(m.held, 0) AS held,
       coalesce(m.scheduled, 0) AS scheduled, coalesce(m.ready, 0) AS ready, coalesce(m.running, 0) AS running,
       coalesce(m.completed, 0) AS completed, coalesce(m.dead, 0) AS dead, coalesce(m.cancelled, 0) AS cancelled,
       coalesce(m.skipped, 0) AS skipped,
       CASE WHEN m.members > 0
            THEN (m.completed + m.dead + m.cancelled + m.skipped + m.expired)::float8 / m.members
       END AS share_ended,
       f.enqueued_at, f.finished_at, coalesce(m.expired, 0) AS expired
FROM queue_internal.job_life AS f
LEFT JOIN (SELECT j.flow, count(*) AS members, count(*) FILTER (WHERE j.state = 'held') AS held,
                  count(*) FILTER (WHERE j.state IN ('scheduled', 'retrying')) AS scheduled,
                  count(*) FILTER (WHERE j.state = 'ready') AS ready,
                  count(*) FILTER (WHERE j.state = 'running') AS running,
                  count(*) FILTER (WHERE j.state = 'completed') AS completed,
                  count(*) FILTER (WHERE j.state = 'dead') AS dead,
                  count(*) FILTER (WHERE j.state = 'cancelled') AS cancelled,
                  count(*) FILTER (WHERE j.state = 'skipped') AS skipped,
                  count(*) FILTER (WHERE j.state = 'expired') AS expired
           FROM queue_internal.job_life AS j WHERE j.flow IS NOT NULL GROUP BY j.flow) AS m ON m.flow = f.job_id
WHERE f.is_flow;
COMMENT ON VIEW queue.flows IS
    'One row for each flow: how many of its members are in which state. It reads all jobs, so do not query it often.';
COMMENT ON COLUMN queue.flows.job_id IS 'The flow.';
COMMENT ON COLUMN queue.flows.queue_name IS 'Its queue.';
COMMENT ON COLUMN queue.flows.task IS 'Its name in the flow that it is a member of.';
COMMENT ON COLUMN queue.flows.state IS 'Its state, as in queue.jobs.';
COMMENT ON COLUMN queue.flows.enqueued_at IS 'When the producer enqueued it.';
COMMENT ON COLUMN queue.flows.members IS 'How many members are known.';
COMMENT ON COLUMN queue.flows.held IS 'How many members wait for other jobs.';
COMMENT ON COLUMN queue.flows.scheduled IS
    'How many members wait for their time, before the first attempt or after a failure.';
COMMENT ON COLUMN queue.flows.ready IS 'How many members can be claimed now.';
COMMENT ON COLUMN queue.flows.running IS 'How many members a worker runs.';
COMMENT ON COLUMN queue.flows.completed IS 'How many members have completed.';
COMMENT ON COLUMN queue.flows.dead IS 'How many members are dead. They block the flow until they are retried.';
COMMENT ON COLUMN queue.flows.cancelled IS 'How many members were cancelled.';
COMMENT ON COLUMN queue.flows.skipped IS 'How many members were skipped.';
COMMENT ON COLUMN queue.flows.expired IS 'How many members have expired.';
COMMENT ON COLUMN queue.flows.share_ended IS
    'The share of its members that have ended, 0 to 1; NULL if it has no members.';
COMMENT ON COLUMN queue.flows.finished_at IS 'When the flow itself ended.';

-- For: observe.
CREATE VIEW queue.queues WITH (security_barrier) AS
SELECT queue_name, is_paused, max_attempts, lease, backoff, backoff_base, backoff_max, backoff_jitter, retention,
       dead_retention, dead_letter, max_running, max_running_per_group, strict_order, rate_limit, rate_period,
       max_waiting, stages, notify, created_at, executor, procedure, run_as, settings, rate_limit_per_group,
       start_within, fair_share, rate_cost
FROM queue_internal.queue
WHERE queue_internal.may_observe(queue_id);
COMMENT ON VIEW queue.queues IS 'The settings of every queue.';
COMMENT ON COLUMN queue.queues.queue_name IS 'Its name.';
COMMENT ON COLUMN queue.queues.is_paused IS 'True if claims find nothing, because of queue.pause.';
COMMENT ON COLUMN queue.queues.max_attempts IS 'After how many attempts a failing job is dead.';
COMMENT ON COLUMN queue.queues.lease IS 'How long a claim lasts without a heartbeat.';
COMMENT ON COLUMN queue.queues.backoff IS 'How the delay before a retry grows: constant, linear, exponential.';
COMMENT ON COLUMN queue.queues.backoff_base IS 'The delay after the first attempt.';
COMMENT ON COLUMN queue.queues.backoff_max IS 'The longest delay, before the jitter.';
COMMENT ON COLUMN queue.queues.backoff_jitter IS 'By which share of itself a delay varies at most, up or down.';
COMMENT ON COLUMN queue.queues.retention IS
    'How long completed and cancelled jobs are kept; 0: not at all, -1: for ever.';
COMMENT ON COLUMN queue.queues.dead_retention IS 'How long dead jobs are kept; 0: not at all, -1: for ever.';
COMMENT ON COLUMN queue.queues.dead_letter IS
    'The queue or topic that gets a copy of each job that dies; null if there is none.';
COMMENT ON COLUMN queue.queues.max_running IS 'How many of its jobs run at the same time at most; null: no limit.';
COMMENT ON COLUMN queue.queues.max_running_per_group IS
    'How many jobs of a group run at the same time at most; null: no limit.';
COMMENT ON COLUMN queue.queues.strict_order IS 'True if the jobs of a group run one by one in their order.';
COMMENT ON COLUMN queue.queues.rate_limit IS 'How many jobs start in a rate_period at most; null: no limit.';
COMMENT ON COLUMN queue.queues.rate_period IS 'The period of rate_limit and rate_limit_per_group.';
COMMENT ON COLUMN queue.queues.max_waiting IS
    'How many jobs wait at most before enqueueing is refused; null: no limit.';
COMMENT ON COLUMN queue.queues.stages IS 'The stages that its jobs go through, in this order; null if there are none.';
COMMENT ON COLUMN queue.queues.notify IS 'True if it sends a NOTIFY when it gets jobs.';
COMMENT ON COLUMN queue.queues.created_at IS 'When it was created.';
COMMENT ON COLUMN queue.queues.executor IS 'How its jobs run in the server: sql, call; null: workers claim them.';
COMMENT ON COLUMN queue.queues.procedure IS 'With executor call: the procedure or function that gets the payloads.';
COMMENT ON COLUMN queue.queues.run_as IS 'With executor call: the role as which the procedure runs.';
COMMENT ON COLUMN queue.queues.settings IS 'Settings of the sessions in which its jobs run in the server.';
COMMENT ON COLUMN queue.queues.rate_limit_per_group IS
    'How many jobs of a group start in a rate_period at most; null: no limit.';
COMMENT ON COLUMN queue.queues.start_within IS
    'How long its jobs may wait to be claimed before they expire; null: for ever.';
COMMENT ON COLUMN queue.queues.fair_share IS
    'jobs: groups start jobs of the same priority in proportion to their weights; null: they do not.';
COMMENT ON COLUMN queue.queues.rate_cost IS
    'The jsonpath of what a job counts for rate_limit and rate_limit_per_group; null: each counts as 1.';

-- What monitoring reads names no table of ours in a view: a query locks all tables that it names, and would wait while
-- another session has locked one. These functions leave out what they cannot read, and so they are plpgsql. They are
-- the owner's, and a view filters their rows.
-- For: observe.
CREATE FUNCTION queue_internal.lanes_now()
    RETURNS TABLE (lane integer, stage text, queue_id integer, queue_name text, stages text[], is_held boolean,
                   is_paused boolean)
    STABLE ROWS 100 SECURITY DEFINER LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET lock_timeout = '10ms' AS $$
BEGIN
    RETURN QUERY SELECT n.lane, n.stage, q.queue_id, q.queue_name, q.stages, n.is_held, q.is_paused
                 FROM queue_internal.lane AS n JOIN queue_internal.queue AS q ON q.queue_id = n.queue_id;
EXCEPTION WHEN lock_not_available THEN
    RETURN;
END
$$;
COMMENT ON FUNCTION queue_internal.lanes_now IS
    'The lanes of all queues; none while a session has locked the tables of queues. For the views.';

CREATE VIEW queue_internal.observed_now WITH (security_barrier) AS
-- A function's columns have no collation of their own. The name of a queue has one.
SELECT n.lane, n.stage, n.queue_id, n.queue_name COLLATE "C" AS queue_name, n.stages, n.is_held, n.is_paused
FROM queue_internal.lanes_now() AS n
WHERE queue_internal.may_observe(n.queue_id);
COMMENT ON VIEW queue_internal.observed_now IS
    'As queue_internal.observed, but it waits for no lock. For the views of monitoring.';

-- For: observe.
CREATE VIEW queue.stats AS
-- Materialized, so that each is read once.
WITH tallies AS MATERIALIZED (SELECT * FROM queue_internal.tallies()),
     observed AS MATERIALIZED (SELECT * FROM queue_internal.observed_now)
SELECT o.queue_name, o.stage,
       coalesce(t.ready, 0) AS ready, coalesce(t.scheduled, 0) AS scheduled, coalesce(t.retrying, 0) AS retrying,
       coalesce(t.running, 0) AS running, coalesce(t.dead, 0) + coalesce(h.dead, 0) AS dead,
       clock_timestamp() - t.oldest_ready_at AS oldest_ready_age,
       coalesce(t.enqueued, 0) + coalesce(h.enqueued, 0) AS enqueued,
       coalesce(t.claimed, 0) AS claimed, coalesce(t.completed, 0) + coalesce(h.completed, 0) AS completed,
       coalesce(t.failed, 0) + coalesce(h.failed, 0) AS failed, coalesce(t.timed_out, 0) AS timed_out,
       coalesce(t.died, 0) + coalesce(h.died, 0) AS died,
       coalesce(h.held, 0) AS held,
       coalesce(t.expired, 0) + coalesce(h.expired, 0) AS expired
FROM observed AS o
LEFT JOIN tallies AS t ON t.lane = o.lane
-- Held jobs count in the stage in which jobs begin, and so do flows that end by themselves.
LEFT JOIN (SELECT l.queue_id, sum(t.ready + t.scheduled + t.retrying)::bigint AS held,
                  sum(t.enqueued)::bigint AS enqueued, sum(t.dead)::bigint AS dead,
                  sum(t.completed)::bigint AS completed, sum(t.failed)::bigint AS failed,
                  sum(t.died)::bigint AS died, sum(t.expired)::bigint AS expired
           FROM observed AS l JOIN tallies AS t ON t.lane = l.lane
           WHERE l.is_held GROUP BY l.queue_id) AS h
    ON h.queue_id = o.queue_id AND o.stage IS NOT DISTINCT FROM o.stages[1]
-- Former stages are shown only if they have or had jobs. The same holds for jobs outside stages in a queue that now has
-- stages.
WHERE EXISTS (SELECT FROM tallies) AND NOT o.is_held
  AND (t.lane IS NOT NULL OR o.stage = ANY (o.stages) OR o.stage IS NULL AND o.stages IS NULL);
COMMENT ON VIEW queue.stats IS
    'For each queue and stage: how many jobs are in which state now, and totals since the queue was created. Cheap '
    'with any number of ready jobs: it reads memory, and only the jobs that are scheduled, retrying or dead. No rows '
    'while a session keeps a lock on one of the logs.';
COMMENT ON COLUMN queue.stats.queue_name IS 'The queue.';
COMMENT ON COLUMN queue.stats.stage IS 'The stage; NULL in a queue without stages.';
COMMENT ON COLUMN queue.stats.ready IS 'Jobs that can be claimed now.';
COMMENT ON COLUMN queue.stats.scheduled IS 'Jobs that wait for their time.';
COMMENT ON COLUMN queue.stats.retrying IS 'Jobs that wait for their time after a failure.';
COMMENT ON COLUMN queue.stats.running IS 'Jobs that a worker runs.';
COMMENT ON COLUMN queue.stats.dead IS 'Dead jobs that were not retried.';
COMMENT ON COLUMN queue.stats.oldest_ready_age IS
    'For how long the oldest ready job has been ready; NULL if no job is. It reads at most 10,000 attempts, of each '
    'priority in the order of enqueueing.';
COMMENT ON COLUMN queue.stats.enqueued IS 'How many jobs were enqueued, ever, in the stage in which they began.';
COMMENT ON COLUMN queue.stats.claimed IS 'How many attempts workers have claimed, ever.';
COMMENT ON COLUMN queue.stats.completed IS 'How many attempts were completed or advanced, ever.';
COMMENT ON COLUMN queue.stats.failed IS
    'How many attempts their workers have failed, ever. If a job was being cancelled, its attempt counts neither here '
    'nor as completed.';
COMMENT ON COLUMN queue.stats.timed_out IS 'Attempts whose lease expired or whose connection ended, ever.';
COMMENT ON COLUMN queue.stats.held IS 'Jobs that wait for predecessors, in the stage in which jobs begin.';
COMMENT ON COLUMN queue.stats.expired IS 'How many jobs have expired, ever.';
COMMENT ON COLUMN queue.stats.died IS 'Attempts that were a job''s last and ended badly, ever.';

-- For: observe.
CREATE VIEW queue.errors AS
-- The attempts that matter here, read once.
WITH l AS MATERIALIZED (
    SELECT l.job_id, l.lane, l.error, coalesce(l.error, l.last_error) AS last_error, l.ended_at,
           l.is_newest AND (l.outcome IS NOT NULL OR l.claimed_at IS NULL) AS is_open
    FROM queue_internal.life AS l
    WHERE l.outcome IN ('f', 'd', 't') AND l.error IS NOT NULL
       OR l.outcome IS NULL AND l.claimed_at IS NULL AND l.last_error IS NOT NULL)
SELECT o.queue_name, j.last_error AS error, count(DISTINCT j.job_id) AS jobs, min(f.ended_at) AS first_seen,
       max(f.ended_at) AS last_seen, min(j.job_id) AS example_job_id
FROM l AS j
-- If a job waits, its failed attempt may not be kept any more.
LEFT JOIN l AS f ON f.job_id = j.job_id AND f.error = j.last_error AND f.ended_at IS NOT NULL
JOIN queue_internal.observed AS o ON o.lane = j.lane
WHERE j.is_open
GROUP BY o.queue_name, j.last_error;
COMMENT ON VIEW queue.errors IS
    'For each queue and error text: the jobs that died of this error or wait for a retry after it.';
COMMENT ON COLUMN queue.errors.queue_name IS 'The queue.';
COMMENT ON COLUMN queue.errors.error IS 'The error text of the job''s last failure.';
COMMENT ON COLUMN queue.errors.jobs IS 'How many jobs have this error.';
COMMENT ON COLUMN queue.errors.first_seen IS
    'When one of these jobs first failed with this error, among the attempts that are kept; NULL if none is kept.';
COMMENT ON COLUMN queue.errors.last_seen IS
    'When one of these jobs last failed with this error; NULL as for first_seen.';
COMMENT ON COLUMN queue.errors.example_job_id IS 'One of the jobs, to read with queue.job.';

-- For: observe.
CREATE FUNCTION queue_internal.claims_now()
    RETURNS TABLE (lane integer, pid integer, claimed_at timestamptz, worker text)
    LANGUAGE c ROWS 100 AS 'MODULE_PATHNAME', 'pg_queue_claims_now';
COMMENT ON FUNCTION queue_internal.claims_now IS
    'The claims of the attempts that workers have now: from memory and by index. For the view.';

-- For: observe.
CREATE FUNCTION queue_internal.sleepers_now()
    RETURNS TABLE (lane integer, pid integer, since timestamptz)
    LANGUAGE c ROWS 100 AS 'MODULE_PATHNAME', 'pg_queue_sleepers_now';
COMMENT ON FUNCTION queue_internal.sleepers_now IS
    'The connections that sleep until there is a job, and the lanes that they wait for: from memory. For the view.';

-- For: observe.
CREATE VIEW queue.workers AS
WITH busy AS (
    SELECT c.worker, c.pid, o.queue_name, count(*) AS running, min(c.claimed_at) AS oldest_claimed_at
    FROM queue_internal.claims_now() AS c
    JOIN queue_internal.observed AS o ON o.lane = c.lane
    GROUP BY c.worker, c.pid, o.queue_name),
asleep AS (
    SELECT w.pid, o.queue_name, min(w.since) AS waiting_since
    FROM queue_internal.sleepers_now() AS w
    JOIN queue_internal.observed AS o ON o.lane = w.lane
    GROUP BY w.pid, o.queue_name)
SELECT k.worker, coalesce(k.pid, s.pid) AS pid, s.client_addr, s.client_port, s.application_name, k.queue_name,
       coalesce(k.running, 0) AS running, k.oldest_claimed_at,
       clock_timestamp() - k.oldest_claimed_at AS oldest_claim, k.waiting_since
FROM (busy FULL JOIN asleep USING (pid, queue_name)) AS k
FULL JOIN pg_catalog.pg_stat_activity AS s ON s.pid = k.pid
-- The packages call their connections so, and every role sees these names. The background worker's has a parenthesis.
WHERE k.pid IS NOT NULL
   OR s.application_name LIKE 'pg\_queue worker%' AND s.application_name NOT LIKE 'pg\_queue worker (%'
      AND s.datname = current_database() AND NOT pg_is_in_recovery();
COMMENT ON VIEW queue.workers IS
    'For each worker and queue: what runs, and whether it waits for jobs. pid and client are those of the connection.';
COMMENT ON COLUMN queue.workers.worker IS 'The name that the worker gave with its claim; NULL if it runs nothing.';
COMMENT ON COLUMN queue.workers.pid IS
    'The process that claimed or waits. After a restart of the server, it is a number from before the restart.';
COMMENT ON COLUMN queue.workers.client_addr IS
    'The client''s address; NULL for a local socket, or if the connection is gone.';
COMMENT ON COLUMN queue.workers.client_port IS
    'The client''s port, -1 for a local socket; NULL if the connection is gone.';
COMMENT ON COLUMN queue.workers.application_name IS
    'The application_name of the connection. That of the packages begins with ''pg_queue worker''.';
COMMENT ON COLUMN queue.workers.queue_name IS
    'The queue. NULL: a connection of a package that has no job and waits for none of the queues that you may observe.';
COMMENT ON COLUMN queue.workers.oldest_claimed_at IS
    'When it claimed the oldest of these attempts; NULL if it runs none.';
COMMENT ON COLUMN queue.workers.running IS 'How many attempts it runs; 0: it is idle.';
COMMENT ON COLUMN queue.workers.oldest_claim IS
    'How long ago it claimed the oldest of these attempts; NULL if it runs none.';
COMMENT ON COLUMN queue.workers.waiting_since IS
    'Since when the connection has slept in its claim or queue.wait; NULL if it does not wait for the queue now.';

-- For: observe.
CREATE FUNCTION queue_internal.executors_now()
    RETURNS TABLE (pid integer, role_name text, lane integer, state text, job_id bigint, since timestamptz)
    LANGUAGE c ROWS 10 AS 'MODULE_PATHNAME', 'pg_queue_executors_now';
COMMENT ON FUNCTION queue_internal.executors_now IS
    'The processes that run jobs in the server now, from memory. For the view.';

-- For: observe.
CREATE FUNCTION queue_internal.executor_counts()
    RETURNS TABLE (starts bigint, failures bigint, dispatches bigint, dispatch_us bigint, short_us bigint)
    LANGUAGE c ROWS 1 AS 'MODULE_PATHNAME', 'pg_queue_executor_counts';
COMMENT ON FUNCTION queue_internal.executor_counts IS
    'Counts of the starts of such processes since the server started, over all databases. For the metrics.';

-- For: observe.
CREATE VIEW queue.executors AS
SELECT e.pid, e.role_name, o.queue_name, e.state, e.job_id, e.since,
       CASE e.state WHEN 'running' THEN split_part(s.query, E'\n', 1) END AS command
FROM queue_internal.executors_now() AS e
JOIN queue_internal.observed AS o ON o.lane = e.lane
LEFT JOIN pg_catalog.pg_stat_activity AS s ON s.pid = e.pid;
COMMENT ON VIEW queue.executors IS 'The processes that run jobs in the server, and what each is doing.';
COMMENT ON COLUMN queue.executors.pid IS 'The process.';
COMMENT ON COLUMN queue.executors.role_name IS 'The role as which it is connected.';
COMMENT ON COLUMN queue.executors.queue_name IS 'The queue that it serves, or served last.';
COMMENT ON COLUMN queue.executors.state IS 'running, looking (for the next job), idle.';
COMMENT ON COLUMN queue.executors.job_id IS 'The job that it runs; NULL if it runs none.';
COMMENT ON COLUMN queue.executors.since IS 'Since when it has been in this state.';
COMMENT ON COLUMN queue.executors.command IS
    'The first line of what it runs, as pg_stat_activity shows it to the user; NULL if it runs nothing.';

-- For: observe.
CREATE FUNCTION queue_internal.segments_now() RETURNS TABLE (segment integer, state "char", since timestamptz)
    STABLE ROWS 10 SECURITY DEFINER LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET lock_timeout = '10ms' AS $$
BEGIN
    RETURN QUERY SELECT DISTINCT ON (l.segment) l.segment::integer, l.state, l.at FROM queue_internal.segment_log AS l
                 ORDER BY l.segment, l.entry DESC;
EXCEPTION WHEN lock_not_available THEN
    RETURN;
END
$$;
COMMENT ON FUNCTION queue_internal.segments_now IS
    'The last entry of each segment in the log of segments; none while a session has locked it. For the views.';

-- For: observe.
CREATE FUNCTION queue_internal.bytes_of(relation regclass) RETURNS bigint
    STABLE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '10ms' AS $$
BEGIN
    RETURN pg_total_relation_size(relation);
EXCEPTION WHEN lock_not_available THEN
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION queue_internal.bytes_of IS
    'The disk space of a table with its indexes; NULL while a session has locked one of them. For the views.';

-- For: observe.
CREATE VIEW queue.storage WITH (security_barrier) AS
SELECT t.part, t.name, s.state, s.since, sum(pg_stat_get_live_tuples(t.oid))::bigint AS rows,
       sum(pg_stat_get_dead_tuples(t.oid))::bigint AS dead_rows,
       CASE WHEN bool_and(t.bytes IS NOT NULL) THEN sum(t.bytes)::bigint END AS bytes
FROM (SELECT c.oid, queue_internal.bytes_of(c.oid) AS bytes, n.segment,
             CASE WHEN n.segment IS NOT NULL THEN 'log'
                  WHEN c.relname ~ '^history_' THEN 'history' ELSE 'other' END AS part,
             coalesce('segment ' || n.segment, c.relname::text) AS name
      FROM pg_class AS c
      CROSS JOIN LATERAL (
          SELECT substring(c.relname, '^(?:attempt|claim|outcome|note|parked)_([0-9])$')::integer AS segment) AS n
      WHERE c.relnamespace = 'queue_internal'::regnamespace AND c.relkind = 'r') AS t
LEFT JOIN (SELECT l.segment, l.since,
                  CASE l.state WHEN 'f' THEN 'free' WHEN 'o' THEN 'open' WHEN 'c' THEN 'closed' WHEN 'm' THEN 'moving'
                               WHEN 'd' THEN 'drained' WHEN 'h' THEN 'copied' WHEN 'e' THEN 'emptying' END AS state
           FROM queue_internal.segments_now() AS l) AS s ON s.segment = t.segment
WHERE queue_internal.may_observe(0)
GROUP BY t.part, t.name, s.state, s.since;
COMMENT ON VIEW queue.storage IS
    'The disk space of the queues: a row for each segment of the logs, for each day of history, and for each other '
    'table. Needs observe on all queues.';
COMMENT ON COLUMN queue.storage.part IS 'Log, history, other.';
COMMENT ON COLUMN queue.storage.name IS
    'segment 0 to segment 9, which are sets of tables; else the table of a day of history, or another table.';
COMMENT ON COLUMN queue.storage.state IS
    'The state of a segment: open (being filled), closed, moving (living jobs are moved out), drained (being copied '
    'to history), copied, emptying, free; NULL if it was never used, or for other tables.';
COMMENT ON COLUMN queue.storage.since IS 'Since when it has been in this state.';
COMMENT ON COLUMN queue.storage.rows IS
    'How many rows there are, according to the server''s statistics; these begin at 0 after a crash.';
COMMENT ON COLUMN queue.storage.dead_rows IS
    'How many rows only VACUUM can remove. The logs have none, apart from work that was rolled back.';
COMMENT ON COLUMN queue.storage.bytes IS
    'Disk space in bytes, with indexes; NULL while a session has locked one of the tables, for instance by REINDEX.';

