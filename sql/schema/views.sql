-- The views: the logs read as one table.
--
-- Each user sees the rows of queues that the user may observe. The functions leave out the rest themselves; security
-- barriers keep it out of what is read from tables, so that no function in a condition sees it either. The barriers lie
-- as far down as possible, since conditions on payloads and errors do not pass them.

-- For: observe.
CREATE FUNCTION queue_internal.job_state(outcome "char", is_claimed boolean, is_held boolean, run_at timestamptz,
    has_failed boolean)
    RETURNS text LANGUAGE c COST 2 AS 'MODULE_PATHNAME', 'pg_queue_job_state';
COMMENT ON FUNCTION queue_internal.job_state IS 'The state of a job, by its newest attempt. For the views.';

-- For: observe.
CREATE FUNCTION queue_internal.attempt_state(outcome "char", is_claimed boolean, is_held boolean, run_at timestamptz,
    has_failed boolean)
    RETURNS text LANGUAGE c COST 2 AS 'MODULE_PATHNAME', 'pg_queue_attempt_state';
COMMENT ON FUNCTION queue_internal.attempt_state IS
    'The state of an attempt: how it has ended, else that of its job. For the views.';

CREATE VIEW queue.life WITH (security_barrier) AS
SELECT l.id, l.job_id, l.enqueued_at, l.lane, l.priority, l.attempt, l.max_attempts, l.run_at,
       NULL::jsonb AS payload, l.id AS payload_in,
       l.headers, l.group_key, l.unique_key, l.last_error, l.progress, l.claimed_at, l.lease_us, l.pid, l.claim_kind,
       l.worker,
       l.ended_at, l.outcome, l.next_id, l.result, l.error, l.is_newest, l.flow, l.task, l.after, l.upon, l.own_flow
FROM queue_internal.live() AS l
UNION ALL
SELECT h.id, h.job_id, h.enqueued_at, h.lane, h.priority, h.attempt, h.max_attempts, h.run_at, h.payload, NULL,
       h.headers, h.group_key, h.unique_key, h.last_error, h.progress, h.claimed_at, NULL, h.pid, h.claim_kind,
       h.worker, h.ended_at, h.outcome, h.next_id, h.result, h.error,
       h.next_id IS NULL AND NOT EXISTS (SELECT FROM queue.successor AS s WHERE s.id = h.id),
       h.flow, h.task, h.after, h.upon, h.own_flow
FROM queue.history AS h
-- What is still being copied is read in its segment.
WHERE h.generation <> ALL (ARRAY(
    SELECT d.generation FROM queue.segment_log AS d WHERE d.state = 'd' AND NOT EXISTS (
        SELECT FROM queue.segment_log AS c WHERE c.generation = d.generation AND c.state = 'h')))
  AND ((SELECT queue_internal.may_observe(0)) OR h.lane IN (SELECT o.lane FROM queue.observed AS o));
COMMENT ON VIEW queue.life IS
    'One row per attempt with its claim and outcome, as the logs and history have it. For the other views.';

-- For: observe.
CREATE VIEW queue.attempts AS
SELECT l.id, l.job_id, o.queue_name, l.attempt,
       queue_internal.attempt_state(
           l.outcome, l.claimed_at IS NOT NULL, o.is_held, l.run_at, l.last_error IS NOT NULL) AS state,
       CASE WHEN l.claim_kind <> 's' THEN l.claimed_at END AS claimed_at,
       l.ended_at AS finished_at, l.worker, l.error, o.stage
FROM queue.life AS l
JOIN queue.observed AS o ON o.lane = l.lane;
COMMENT ON VIEW queue.attempts IS 'One row per attempt: each run of a job, also one that has not begun.';
COMMENT ON COLUMN queue.attempts.id IS 'The attempt.';
COMMENT ON COLUMN queue.attempts.job_id IS 'The job.';
COMMENT ON COLUMN queue.attempts.queue_name IS 'The queue.';
COMMENT ON COLUMN queue.attempts.attempt IS 'Which run this is, from 1 in each stage; a release does not count.';
COMMENT ON COLUMN queue.attempts.state IS
    'held, scheduled, ready, retrying, running, or how it ended: completed, failed (and there is a next), dead, '
    'timed_out, released, suspended (it waits for other jobs), advanced (to another stage), cancelled, skipped, '
    'superseded (by one with another priority or time, or when it was held and is released).';
COMMENT ON COLUMN queue.attempts.claimed_at IS 'When a worker claimed it.';
COMMENT ON COLUMN queue.attempts.finished_at IS 'When it ended.';
COMMENT ON COLUMN queue.attempts.worker IS 'The name the worker gave.';
COMMENT ON COLUMN queue.attempts.error IS 'Why it failed, timed out, was cancelled or skipped.';
COMMENT ON COLUMN queue.attempts.stage IS 'The stage it is of; NULL in a queue without stages.';

CREATE VIEW queue.job_life AS
SELECT l.id AS attempt_id, l.job_id, o.queue_name, o.stage,
       queue_internal.job_state(
           l.outcome, l.claimed_at IS NOT NULL, o.is_held, l.run_at, l.last_error IS NOT NULL) AS state,
       -- Not before all conditions are met, of those rows that are wanted.
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
       CASE l.upon WHEN 'c' THEN 'completed' WHEN 'f' THEN 'failed' WHEN 'e' THEN 'ended'
                                WHEN 'o' THEN 'overdue' END AS upon,
       l.own_flow IS NOT NULL AS is_flow
FROM queue.life AS l
JOIN queue.observed AS o ON o.lane = l.lane
WHERE l.is_newest;
COMMENT ON VIEW queue.job_life IS 'queue.jobs with the id of the newest attempt. For queue.job and the other views.';
COMMENT ON COLUMN queue.job_life.claimed_at IS 'When a worker claimed the newest attempt.';

-- For: observe.
CREATE VIEW queue.jobs AS
SELECT job_id, queue_name, stage, state, payload, priority, attempt, max_attempts, run_at, enqueued_at, claimed_at,
       finished_at, lease_expires_at, worker, error, result, progress, unique_key, group_key, headers,
       flow, task, after, upon
FROM queue.job_life;
COMMENT ON VIEW queue.jobs IS
    'One row per job. A condition on job_id reads everything: use queue.job(job_id) for one job.';
COMMENT ON COLUMN queue.jobs.job_id IS 'The job.';
COMMENT ON COLUMN queue.jobs.queue_name IS 'The queue.';
COMMENT ON COLUMN queue.jobs.stage IS 'The stage it is at; NULL in a queue without stages, and while it is held.';
COMMENT ON COLUMN queue.jobs.state IS
    'held (waits for other jobs), scheduled (waits for its time), ready, running, retrying (waits after a failure), '
    'completed, dead (no attempts left), cancelled, skipped (its condition can no longer be met).';
COMMENT ON COLUMN queue.jobs.payload IS
    'What the producer gave. It is read when the row is: at the end of a cursor, or of a look at very many jobs, '
    'it can be NULL because nothing of the job is kept any more.';
COMMENT ON COLUMN queue.jobs.priority IS 'Smaller runs first.';
COMMENT ON COLUMN queue.jobs.attempt IS 'Which run it is at, from 1 in each stage; a release does not count.';
COMMENT ON COLUMN queue.jobs.max_attempts IS 'After how many runs it is dead: its own, else the queue''s.';
COMMENT ON COLUMN queue.jobs.run_at IS 'Not before this time; NULL: at once.';
COMMENT ON COLUMN queue.jobs.enqueued_at IS 'When the producer enqueued it.';
COMMENT ON COLUMN queue.jobs.claimed_at IS 'When a worker claimed the newest attempt.';
COMMENT ON COLUMN queue.jobs.finished_at IS 'When the newest attempt ended; NULL while the job lives.';
COMMENT ON COLUMN queue.jobs.lease_expires_at IS 'Until when the worker has it; NULL unless it runs.';
COMMENT ON COLUMN queue.jobs.worker IS 'The name the worker gave.';
COMMENT ON COLUMN queue.jobs.error IS 'How the newest attempt, or the one before it, failed.';
COMMENT ON COLUMN queue.jobs.result IS 'What the worker gave to queue.complete.';
COMMENT ON COLUMN queue.jobs.progress IS 'What the worker reported last.';
COMMENT ON COLUMN queue.jobs.unique_key IS 'The key it has, or had.';
COMMENT ON COLUMN queue.jobs.group_key IS 'The group it belongs to.';
COMMENT ON COLUMN queue.jobs.headers IS 'What the producer gave beside the payload.';
COMMENT ON COLUMN queue.jobs.flow IS 'The job whose flow it is a member of.';
COMMENT ON COLUMN queue.jobs.task IS 'Its name in the flow.';
COMMENT ON COLUMN queue.jobs.after IS 'The jobs that it is after, or was while it was held.';
COMMENT ON COLUMN queue.jobs.upon IS
    'For what it waits, or waited: completed, failed, ended, overdue; NULL: for no other job.';

-- For: observe.
CREATE FUNCTION queue.job(job_id bigint) RETURNS SETOF queue.jobs STABLE ROWS 1
    LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_job';
COMMENT ON FUNCTION queue.job IS
    'One job by its id, fast at any depth; no row when there is none. Errors: 22023 not a job''s id.';

-- For: observe.
CREATE FUNCTION queue.job_attempts(job_id bigint)
    RETURNS SETOF queue.attempts STABLE ROWS 2 LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_job_attempts';
COMMENT ON FUNCTION queue.job_attempts IS
'The attempts of a job, fast at any depth: those of queue.attempts that are of it; no row when there is none. '
'Errors: 22023 not a
job''s id.';

-- For: produce, consume, observe.
CREATE PROCEDURE queue.await(
    job_id bigint, timeout interval DEFAULT '30 seconds', INOUT state text DEFAULT NULL, INOUT result jsonb DEFAULT NULL
)
    LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_await';
COMMENT ON PROCEDURE queue.await IS
'Sleeps until the job has ended, at most timeout; says what it is doing then, as queue.job does, and its result. '
'Holds no
snapshot and no lock meanwhile. The result is NULL for a user that may only produce. Errors: 25001 inside a transaction
block or function, P0002 no such job, 25006 on a standby, 22023, 55000 its queue was dropped.';

-- For: observe.
CREATE FUNCTION queue.members(job_id bigint, state text DEFAULT NULL, beyond bigint DEFAULT NULL,
    max_jobs integer DEFAULT 100)
    RETURNS SETOF queue.jobs STABLE ROWS 100 LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_members';
COMMENT ON FUNCTION queue.members IS
'The members of a flow, in the order of their ids: those in this state, at most max_jobs, '
'from behind the job beyond on. Errors:
22023 not a job''s id.';

CREATE TYPE queue.listed_job AS (
    job_id bigint, queue_name text, stage text, state text, payload jsonb, priority integer, attempt integer,
    max_attempts integer, run_at timestamptz, enqueued_at timestamptz, claimed_at timestamptz, finished_at timestamptz,
    lease_expires_at timestamptz, worker text, error text, result jsonb, progress jsonb, unique_key text,
    group_key text, headers jsonb, flow bigint, task text, after bigint[], upon text, here jsonb, rows_read bigint
);
COMMENT ON TYPE queue.listed_job IS
    'What queue.list and queue.search return: queue.jobs, where to go on, and how many rows were read so far.';
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
    'Where the next call goes on, as its beyond; null: this is not the last row, or that was all.';
COMMENT ON COLUMN queue.listed_job.rows_read IS 'How many rows the call had read by then.';

-- For: observe.
CREATE FUNCTION queue.list(queue_name text, state text, stage text DEFAULT NULL, beyond jsonb DEFAULT NULL,
    max_jobs integer DEFAULT 50)
    RETURNS SETOF queue.listed_job
    VOLATILE ROWS 50 LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_list';
COMMENT ON FUNCTION queue.list IS
'A page of a queue''s jobs in a state, by indexes: those that run, wait or are held in the order of their turn, '
'the others from
the latest end on. beyond: what here has in the last row of the page before; '
'a last row without a job says that there may be
more behind what was read. Errors: 42704, 22023 no such state or stage, not a position.';

-- For: observe.
CREATE FUNCTION queue.search(
    queue_name text, filter jsonpath DEFAULT NULL, states text[] DEFAULT NULL, beyond jsonb DEFAULT NULL,
    max_jobs integer DEFAULT 50, max_rows integer DEFAULT 20000
)
    RETURNS SETOF queue.listed_job
    VOLATILE ROWS 50 LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_search';
COMMENT ON FUNCTION queue.search IS
'A queue''s jobs for which filter is true, or finds something, in an object of job_id, stage, state, payload, priority,
attempt, max_attempts, worker, error, result, progress, unique_key, group_key, headers, flow, task, is_flow; '
'NULL: all of these states. Reads max_rows rows at most, and for half a second. '
'The last row says by here how to go on, also if it
has no job. states: of these, in this order; NULL: of all. Errors:
42704, 22023 no such state, not a position.';

CREATE TYPE queue.error_group AS (
    queue_name text, error text, jobs bigint, dead bigint, retrying bigint, first_died_at timestamptz,
    last_died_at timestamptz, example_job_id bigint, is_complete boolean
);
COMMENT ON TYPE queue.error_group IS 'What queue.error_groups returns.';
COMMENT ON COLUMN queue.error_group.queue_name IS 'The queue.';
COMMENT ON COLUMN queue.error_group.error IS 'The error text of their last failure.';
COMMENT ON COLUMN queue.error_group.jobs IS 'How many jobs.';
COMMENT ON COLUMN queue.error_group.dead IS 'Of these: are dead.';
COMMENT ON COLUMN queue.error_group.retrying IS 'Of these: wait for a retry.';
COMMENT ON COLUMN queue.error_group.first_died_at IS 'When the first of the dead ones died.';
COMMENT ON COLUMN queue.error_group.last_died_at IS 'When the last of the dead ones died.';
COMMENT ON COLUMN queue.error_group.example_job_id IS 'The newest of the jobs.';
COMMENT ON COLUMN queue.error_group.is_complete IS 'Whether all dead and retrying jobs of the queue were looked at.';

-- For: observe.
CREATE FUNCTION queue.error_groups(queue_name text DEFAULT NULL, max_jobs integer DEFAULT 10000)
    RETURNS SETOF queue.error_group
    VOLATILE ROWS 100 LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_error_groups';
COMMENT ON FUNCTION queue.error_groups IS
'By error text, the jobs that died last and those that are retried next: of each queue at most max_jobs of both. '
'queue_name
null: all queues. is_complete: these were all of the queue. Errors: 42704, 22023.';

-- For: observe.
CREATE VIEW queue.flows AS
SELECT f.job_id, f.queue_name, f.task, f.state, coalesce(m.members, 0) AS members, coalesce(m.held, 0) AS held,
       coalesce(m.scheduled, 0) AS scheduled, coalesce(m.ready, 0) AS ready, coalesce(m.running, 0) AS running,
       coalesce(m.completed, 0) AS completed, coalesce(m.dead, 0) AS dead, coalesce(m.cancelled, 0) AS cancelled,
       coalesce(m.skipped, 0) AS skipped,
       CASE WHEN m.members > 0
            THEN (m.completed + m.dead + m.cancelled + m.skipped)::float8 / m.members
       END AS share_ended,
       f.enqueued_at, f.finished_at
FROM queue.job_life AS f
LEFT JOIN (SELECT j.flow, count(*) AS members, count(*) FILTER (WHERE j.state = 'held') AS held,
                  count(*) FILTER (WHERE j.state IN ('scheduled', 'retrying')) AS scheduled,
                  count(*) FILTER (WHERE j.state = 'ready') AS ready,
                  count(*) FILTER (WHERE j.state = 'running') AS running,
                  count(*) FILTER (WHERE j.state = 'completed') AS completed,
                  count(*) FILTER (WHERE j.state = 'dead') AS dead,
                  count(*) FILTER (WHERE j.state = 'cancelled') AS cancelled,
                  count(*) FILTER (WHERE j.state = 'skipped') AS skipped
           FROM queue.job_life AS j WHERE j.flow IS NOT NULL GROUP BY j.flow) AS m ON m.flow = f.job_id
WHERE f.is_flow;
COMMENT ON VIEW queue.flows IS
    'One row per flow: how many of its members are in which state. Reads all jobs: look now and then.';
COMMENT ON COLUMN queue.flows.job_id IS 'The flow.';
COMMENT ON COLUMN queue.flows.queue_name IS 'Its queue.';
COMMENT ON COLUMN queue.flows.task IS 'Its name in the flow that it is a member of.';
COMMENT ON COLUMN queue.flows.state IS 'As in queue.jobs.';
COMMENT ON COLUMN queue.flows.enqueued_at IS 'When the producer enqueued it.';
COMMENT ON COLUMN queue.life.own_flow IS 'What makes it a flow: see the attempts.';
COMMENT ON COLUMN queue.flows.members IS 'Its members that are known.';
COMMENT ON COLUMN queue.flows.held IS 'Of these: wait for other jobs.';
COMMENT ON COLUMN queue.flows.scheduled IS 'Of these: wait for their time, first or after a failure.';
COMMENT ON COLUMN queue.flows.ready IS 'Of these: can be claimed now.';
COMMENT ON COLUMN queue.flows.running IS 'Of these: a worker has them.';
COMMENT ON COLUMN queue.flows.completed IS 'Of these: have completed.';
COMMENT ON COLUMN queue.flows.dead IS 'Of these: are dead, and hold the flow up until they are retried.';
COMMENT ON COLUMN queue.flows.cancelled IS 'Of these: were cancelled.';
COMMENT ON COLUMN queue.flows.skipped IS 'Of these: were skipped.';
COMMENT ON COLUMN queue.flows.share_ended IS 'The share of its members that have ended, 0 to 1; NULL: it has none.';
COMMENT ON COLUMN queue.flows.finished_at IS 'When the flow itself ended.';
COMMENT ON COLUMN queue.job_life.is_flow IS 'Whether it is a flow.';

-- For: observe.
CREATE VIEW queue.queues WITH (security_barrier) AS
SELECT queue_name, is_paused, max_attempts, lease, backoff, backoff_base, backoff_max, backoff_jitter, retention,
       dead_retention, dead_letter, max_running, max_running_per_group, strict_order, rate_limit, rate_period,
       max_waiting, stages, notify, created_at, executor, procedure, run_as, settings, rate_limit_per_group
FROM queue.queue
WHERE queue_internal.may_observe(queue_id);
COMMENT ON VIEW queue.queues IS 'The settings of every queue.';
COMMENT ON COLUMN queue.queues.queue_name IS 'Its name.';
COMMENT ON COLUMN queue.queues.is_paused IS 'Whether claims find nothing, by queue.pause.';
COMMENT ON COLUMN queue.queues.max_attempts IS 'After how many attempts a failing job is dead.';
COMMENT ON COLUMN queue.queues.lease IS 'How long a claim lasts without a heartbeat.';
COMMENT ON COLUMN queue.queues.backoff IS 'How the delay before a retry grows: constant, linear, exponential.';
COMMENT ON COLUMN queue.queues.backoff_base IS 'The delay after the first attempt.';
COMMENT ON COLUMN queue.queues.backoff_max IS 'The longest delay, before the jitter.';
COMMENT ON COLUMN queue.queues.backoff_jitter IS 'By up to which share of itself a delay is moved, either way.';
COMMENT ON COLUMN queue.queues.retention IS
    'How long completed and cancelled jobs are kept; 0: not at all, -1: for ever.';
COMMENT ON COLUMN queue.queues.dead_retention IS 'How long dead jobs are kept; 0: not at all, -1: for ever.';
COMMENT ON COLUMN queue.queues.dead_letter IS 'The queue that gets a copy of each job that dies; null: none.';
COMMENT ON COLUMN queue.queues.max_running IS 'How many of its jobs run at once at most; null: no limit.';
COMMENT ON COLUMN queue.queues.max_running_per_group IS 'How many jobs of a group run at once at most; null: no limit.';
COMMENT ON COLUMN queue.queues.strict_order IS 'Whether the jobs of a group run one by one in their order.';
COMMENT ON COLUMN queue.queues.rate_limit IS 'How many jobs begin in a rate_period at most; null: no limit.';
COMMENT ON COLUMN queue.queues.rate_period IS 'The period of rate_limit and rate_limit_per_group.';
COMMENT ON COLUMN queue.queues.max_waiting IS
    'How many jobs wait at most before enqueueing is refused; null: no limit.';
COMMENT ON COLUMN queue.queues.stages IS 'The stages that its jobs go through, in this order; null: none.';
COMMENT ON COLUMN queue.queues.notify IS 'Whether there is a NOTIFY when it gets jobs.';
COMMENT ON COLUMN queue.queues.created_at IS 'When it was created.';
COMMENT ON COLUMN queue.queues.executor IS 'How its jobs run in the server: sql, call; null: workers claim them.';
COMMENT ON COLUMN queue.queues.procedure IS 'With executor call: the procedure or function that gets their payloads.';
COMMENT ON COLUMN queue.queues.run_as IS 'With executor call: the role as which it runs.';
COMMENT ON COLUMN queue.queues.settings IS 'Settings of the sessions in which they run in the server.';
COMMENT ON COLUMN queue.queues.rate_limit_per_group IS
    'How many jobs of a group begin in a rate_period at most; null: no limit.';

-- For: observe.
CREATE VIEW queue.stats AS
-- Read once.
WITH tallies AS MATERIALIZED (SELECT * FROM queue_internal.tallies())
SELECT o.queue_name, o.stage,
       coalesce(t.ready, 0) AS ready, coalesce(t.scheduled, 0) AS scheduled, coalesce(t.retrying, 0) AS retrying,
       coalesce(t.running, 0) AS running, coalesce(t.dead, 0) + coalesce(h.dead, 0) AS dead,
       clock_timestamp() - t.oldest_ready_at AS oldest_ready_age,
       coalesce(t.enqueued, 0) + coalesce(h.enqueued, 0) AS enqueued,
       coalesce(t.claimed, 0) AS claimed, coalesce(t.completed, 0) + coalesce(h.completed, 0) AS completed,
       coalesce(t.failed, 0) + coalesce(h.failed, 0) AS failed, coalesce(t.timed_out, 0) AS timed_out,
       coalesce(t.died, 0) + coalesce(h.died, 0) AS died,
       coalesce(h.held, 0) AS held
FROM queue.observed AS o
LEFT JOIN tallies AS t ON t.lane = o.lane
-- Held jobs count where jobs come in, and so do flows that end by themselves.
LEFT JOIN (SELECT l.queue_id, sum(t.ready + t.scheduled + t.retrying)::bigint AS held,
                  sum(t.enqueued)::bigint AS enqueued, sum(t.dead)::bigint AS dead,
                  sum(t.completed)::bigint AS completed, sum(t.failed)::bigint AS failed,
                  sum(t.died)::bigint AS died
           FROM queue.observed AS l JOIN tallies AS t ON t.lane = l.lane
           WHERE l.is_held GROUP BY l.queue_id) AS h
    ON h.queue_id = o.queue_id AND o.stage IS NOT DISTINCT FROM o.stages[1]
-- Of former stages, and of jobs outside stages where there are some now, only what there is or was.
WHERE NOT o.is_held AND (t.lane IS NOT NULL OR o.stage = ANY (o.stages) OR o.stage IS NULL AND o.stages IS NULL);
COMMENT ON VIEW queue.stats IS
    'Per queue and stage: how many jobs are in which state now, and totals since the queue was created. '
    'Cheap at any depth: reads memory, and the jobs that are scheduled, retrying or dead.';
COMMENT ON COLUMN queue.stats.queue_name IS 'The queue.';
COMMENT ON COLUMN queue.stats.stage IS 'The stage; NULL in a queue without stages.';
COMMENT ON COLUMN queue.stats.ready IS 'Jobs that can be claimed now.';
COMMENT ON COLUMN queue.stats.scheduled IS 'Jobs that wait for their time.';
COMMENT ON COLUMN queue.stats.retrying IS 'Jobs that wait for their time after a failure.';
COMMENT ON COLUMN queue.stats.running IS 'Jobs that a worker has.';
COMMENT ON COLUMN queue.stats.dead IS 'Dead jobs that were not retried since.';
COMMENT ON COLUMN queue.stats.oldest_ready_age IS
    'How long the oldest ready job has been ready; NULL when none is. '
    'Looks at 10,000 attempts at most, of each priority in the order of enqueueing.';
COMMENT ON COLUMN queue.stats.enqueued IS 'Jobs, ever, in the stage in which they came in.';
COMMENT ON COLUMN queue.stats.claimed IS 'Attempts that workers claimed, ever.';
COMMENT ON COLUMN queue.stats.completed IS 'Attempts completed or advanced, ever.';
COMMENT ON COLUMN queue.stats.failed IS
    'Attempts that their worker failed, ever; those of jobs that were being cancelled count as neither of these two.';
COMMENT ON COLUMN queue.stats.timed_out IS 'Attempts whose lease or connection ended, ever.';
COMMENT ON COLUMN queue.stats.held IS 'Jobs that are after others, in the stage in which jobs come in.';
COMMENT ON COLUMN queue.stats.died IS 'Attempts that were a job''s last and ended badly, ever.';

-- For: observe.
CREATE VIEW queue.errors AS
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
COMMENT ON VIEW queue.errors IS
    'Per queue and error text: the jobs that are dead of it or wait for another attempt after it.';
COMMENT ON COLUMN queue.errors.queue_name IS 'The queue.';
COMMENT ON COLUMN queue.errors.error IS 'The error text of the job''s last failure.';
COMMENT ON COLUMN queue.errors.jobs IS 'How many jobs.';
COMMENT ON COLUMN queue.errors.first_seen IS
    'When one of these jobs first failed with this error, of the attempts that are kept; NULL: none is.';
COMMENT ON COLUMN queue.errors.last_seen IS 'When one of these jobs last failed with this error; NULL as first_seen.';
COMMENT ON COLUMN queue.errors.example_job_id IS 'One of the jobs, to look at with queue.job.';

-- For: observe.
CREATE FUNCTION queue_internal.claims_now()
    RETURNS TABLE (lane integer, pid integer, claimed_at timestamptz, worker text)
    LANGUAGE c ROWS 100 AS 'MODULE_PATHNAME', 'pg_queue_claims_now';
COMMENT ON FUNCTION queue_internal.claims_now IS
    'The claims of the attempts that workers have, this moment: from memory, and by index. For the view.';

-- For: observe.
CREATE VIEW queue.workers AS
SELECT c.worker, c.pid, s.client_addr, s.client_port, s.application_name, o.queue_name,
       count(*) AS running, min(c.claimed_at) AS oldest_claimed_at,
       clock_timestamp() - min(c.claimed_at) AS oldest_claim
FROM queue_internal.claims_now() AS c
JOIN queue.observed AS o ON o.lane = c.lane
LEFT JOIN pg_catalog.pg_stat_activity AS s ON s.pid = c.pid
GROUP BY c.worker, c.pid, s.client_addr, s.client_port, s.application_name, o.queue_name;
COMMENT ON VIEW queue.workers IS
    'Per worker and queue: what runs. pid and client are those of the connection that claimed.';
COMMENT ON COLUMN queue.workers.worker IS 'The name the worker gave.';
COMMENT ON COLUMN queue.workers.pid IS
    'The process that claimed; after a restart of the server, a number from before it.';
COMMENT ON COLUMN queue.workers.client_addr IS
    'Where it is connected from; NULL for a local socket, or when it is gone.';
COMMENT ON COLUMN queue.workers.client_port IS 'The port there, -1 for a local socket; NULL when it is gone.';
COMMENT ON COLUMN queue.workers.application_name IS 'What the connection calls itself.';
COMMENT ON COLUMN queue.workers.queue_name IS 'The queue.';
COMMENT ON COLUMN queue.workers.oldest_claimed_at IS 'When it claimed the oldest of them.';
COMMENT ON COLUMN queue.workers.running IS 'How many attempts it runs.';
COMMENT ON COLUMN queue.workers.oldest_claim IS 'How long ago that was.';

-- For: observe.
CREATE FUNCTION queue_internal.executors_now()
    RETURNS TABLE (pid integer, role_name text, lane integer, state text, job_id bigint, since timestamptz)
    LANGUAGE c ROWS 10 AS 'MODULE_PATHNAME', 'pg_queue_executors_now';
COMMENT ON FUNCTION queue_internal.executors_now IS
    'The processes that run jobs in the server, this moment, from memory. For the view.';

-- For: observe.
CREATE FUNCTION queue_internal.executor_counts()
    RETURNS TABLE (starts bigint, failures bigint, dispatches bigint, dispatch_us bigint, short_us bigint)
    LANGUAGE c ROWS 1 AS 'MODULE_PATHNAME', 'pg_queue_executor_counts';
COMMENT ON FUNCTION queue_internal.executor_counts IS
'What became of the starts of such processes since the start of the server, over all databases. For the metrics.';

-- For: observe.
CREATE VIEW queue.executors AS
SELECT e.pid, e.role_name, o.queue_name, e.state, e.job_id, e.since,
       CASE e.state WHEN 'running' THEN split_part(s.query, E'\n', 1) END AS command
FROM queue_internal.executors_now() AS e
JOIN queue.observed AS o ON o.lane = e.lane
LEFT JOIN pg_catalog.pg_stat_activity AS s ON s.pid = e.pid;
COMMENT ON VIEW queue.executors IS 'The processes that run jobs in the server: what each is doing.';
COMMENT ON COLUMN queue.executors.pid IS 'The process.';
COMMENT ON COLUMN queue.executors.role_name IS 'The role as which it is connected.';
COMMENT ON COLUMN queue.executors.queue_name IS 'The queue that it serves, or served last.';
COMMENT ON COLUMN queue.executors.state IS 'running, looking (for the next job), idle.';
COMMENT ON COLUMN queue.executors.job_id IS 'The job that it runs; NULL: none.';
COMMENT ON COLUMN queue.executors.since IS 'Since when it is in this state.';
COMMENT ON COLUMN queue.executors.command IS
    'The first line of what it runs, as pg_stat_activity shows it to the user; NULL: nothing.';

-- For: observe.
CREATE VIEW queue.storage WITH (security_barrier) AS
SELECT t.part, t.name, s.state, s.since, sum(pg_stat_get_live_tuples(t.oid))::bigint AS rows,
       sum(pg_stat_get_dead_tuples(t.oid))::bigint AS dead_rows, sum(pg_total_relation_size(t.oid))::bigint AS bytes
FROM (SELECT c.oid, n.segment,
             CASE WHEN n.segment IS NOT NULL THEN 'log'
                  WHEN c.relname ~ '^history_' THEN 'history' ELSE 'other' END AS part,
             coalesce('segment ' || n.segment, c.relname::text) AS name
      FROM pg_class AS c
      CROSS JOIN LATERAL (
          SELECT substring(c.relname, '^(?:attempt|claim|outcome|note|parked)_([0-9])$')::integer AS segment) AS n
      WHERE c.relnamespace = 'queue'::regnamespace AND c.relkind = 'r') AS t
LEFT JOIN (SELECT DISTINCT ON (l.segment) l.segment, l.at AS since,
                  CASE l.state WHEN 'f' THEN 'free' WHEN 'o' THEN 'open' WHEN 'c' THEN 'closed' WHEN 'm' THEN 'moving'
                               WHEN 'd' THEN 'drained' WHEN 'h' THEN 'copied' WHEN 'e' THEN 'emptying' END AS state
           FROM queue.segment_log AS l ORDER BY l.segment, l.entry DESC) AS s ON s.segment = t.segment
WHERE queue_internal.may_observe(0)
GROUP BY t.part, t.name, s.state, s.since;
COMMENT ON VIEW queue.storage IS
'What of the disk the queues take: a row for each segment of the logs, for each day of history, '
'and for each other table. Needs observe
on all queues.';
COMMENT ON COLUMN queue.storage.part IS 'Log, history, other.';
COMMENT ON COLUMN queue.storage.name IS
    'Segment 0 to segment 9, which each stand for a set of tables; the table of a day of history; another table.';
COMMENT ON COLUMN queue.storage.state IS
    'Of a segment: open (filled now), closed, moving (the living are moved out), drained (copied to history), copied, '
    'emptying, free; NULL: never used, or no segment.';
COMMENT ON COLUMN queue.storage.since IS 'Since when it is in this state.';
COMMENT ON COLUMN queue.storage.rows IS
    'How many rows there are, as the server''s statistics know; they begin at 0 after a crash.';
COMMENT ON COLUMN queue.storage.dead_rows IS
    'How many rows only vacuum can remove: none in the logs, but for work that was rolled back.';
COMMENT ON COLUMN queue.storage.bytes IS 'On the disk, with indexes.';

