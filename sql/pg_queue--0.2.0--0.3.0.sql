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

-- What only the views and the library call. They find it by oid: sessions that are at work see no difference.
CREATE SCHEMA queue_internal;
COMMENT ON SCHEMA queue_internal IS 'What the views of schema queue and the library of pg_queue call. It may change with any version.';
DO $move$
DECLARE
    moved text;
BEGIN
    FOREACH moved IN ARRAY ARRAY['assert_loaded()', 'claims_now()', 'derive_grants()', 'firings()', 'foreign_write()', 'kick()',
            'lease_expires_at(bigint)', 'life_of(bigint)', 'live()', 'may_observe(integer)', 'memory_use()', 'payload_of(bigint)',
            'recent_times()', 'running_now()', 'tallies(boolean)', 'throughput_live()', 'times(bytea[])']
    LOOP
        EXECUTE format('ALTER FUNCTION queue.%s SET SCHEMA queue_internal', moved);
    END LOOP;
END
$move$;

-- What the calls for many leave out.
COMMENT ON FUNCTION queue.complete_many IS
'The attempts succeeded. Returns those that counted; lost ones, and those that an open transaction is ending, are left out. Errors:
22023 not an attempt''s id, 55000 one is in a stage that is not the last.';
COMMENT ON FUNCTION queue.fail_many IS
'The attempts failed with the same error. Returns those that counted; the others as queue.complete_many. Errors: 22023.';
COMMENT ON FUNCTION queue.release_many IS
'Gives the attempts back. Returns those that counted; the others as queue.complete_many. Errors: 22023.';
COMMENT ON FUNCTION queue.extend_many IS
'Heartbeat for many; lost ones, and those that an open transaction is ending, are left out. Errors: 22023.';

-- Views are read-only.
CREATE FUNCTION queue_internal.read_only() RETURNS trigger
    LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_read_only';
COMMENT ON FUNCTION queue_internal.read_only IS 'Trigger on the views: raises that they cannot be written to, and what to do instead.';
REVOKE ALL ON FUNCTION queue_internal.read_only FROM PUBLIC;

CREATE FUNCTION queue.check(repair boolean DEFAULT false)
    RETURNS TABLE (name text, queue_name text, job_id bigint, attempt_id bigint, problem text, remedy text, is_repaired boolean)
    LANGUAGE c COST 1000000 ROWS 1 AS 'MODULE_PATHNAME', 'pg_queue_check';
COMMENT ON FUNCTION queue.claim IS
'Takes up to max_jobs jobs for this worker, under a lease (default: the job''s, else the queue''s) that starts at
commit. Use every row: LIMIT or WHERE on the call leaves jobs claimed that nobody works on. With wait, sleeps until there is
one, at most pg_queue.max_wait and just less than statement_timeout; not in a transaction that has written, nor at
REPEATABLE READ or above (a NOTICE says it once). While it sleeps it holds back vacuum''s
horizon; CALL queue.wait does not. stage: only of this one; NULL: of all, in the order of (priority, job_id) over
all of them. completed: finish these attempts first, leaving out lost ones.
session_bound: when this connection ends, its unfinished claims are offered again at once. Errors: 42704 no such
queue, 22023 an argument out of range or no such stage, 53400 shared memory is full.';
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
ALTER FUNCTION queue_internal.memory_use() ROWS 5;
COMMENT ON FUNCTION queue_internal.memory_use IS
'How much of the room that each setting reserves is in use, over all databases. For the metrics.';
COMMENT ON FUNCTION queue_internal.recent_times IS
'How long attempts that were claimed or ended in the last minute had waited and run, in seconds: quantiles of a sample,
at most the last thousand. For the metrics.';
COMMENT ON FUNCTION queue.metrics IS
'The metrics for exporters to Prometheus: a row for each name and labels. Reads no log; a condition on name
leaves out the cost of the others. Counters of queues go on over restarts and crashes.';
COMMENT ON FUNCTION queue.resume IS 'Ends a pause and wakes the sessions that wait. Errors: 42704.';
COMMENT ON FUNCTION queue_internal.tallies IS
'Per lane the figures of queue.stats. is_counted: they come from shared memory, without reading the logs; walk => true
reads the logs in any case. For the views.';
COMMENT ON COLUMN queue.permission.role_name IS
'The role; its members have the privilege, too. A role that does not exist counts for nothing; public: all roles.';
COMMENT ON FUNCTION queue.grant IS
'Lets a role, and its members, use a queue; ''*'': every queue that there is and will be. privilege: produce (enqueue),
consume (claim and end), observe (look), manage (all of these, and change the queue and its jobs, and grant). Needs the privilege
manage. Errors: 42704 no such queue or role, 22023 no such privilege, 22004 an argument is null, 42501.';
COMMENT ON FUNCTION queue_internal.derive_grants IS
'Derives the GRANTs on the extension''s schema, functions and views from queue.permission. Used by upgrade scripts.';
COMMENT ON FUNCTION queue_internal.foreign_write IS
'Statement trigger on all tables: only their owner may write to them by SQL, and no job is run meanwhile, where it matters. The
extension''s own writes are let through.';
COMMENT ON FUNCTION queue_internal.throughput_live IS
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

-- All locks that others would wait for, at once: a script that has some and waits for another would stop every session, and for
-- ever one whose transaction it waits for.
DO $locks$
DECLARE
    before text := current_setting('lock_timeout');
BEGIN
    LOOP
        BEGIN
            SET LOCAL lock_timeout = '100ms';
            LOCK TABLE queue.queue, queue.schedule, queue.queues, queue.lane, queue.attempt_0, queue.attempt_1, queue.attempt_2, queue.attempt_3, queue.attempt_4, queue.attempt_5,
                queue.attempt_6, queue.attempt_7, queue.attempt_8, queue.attempt_9, queue.history, queue.note_0, queue.note_1, queue.note_2, queue.note_3, queue.note_4, queue.note_5,
                queue.note_6, queue.note_7, queue.note_8, queue.note_9, queue.observed, queue.life, queue.attempts, queue.job_life,
                queue.jobs, queue.stats, queue.metric IN ACCESS EXCLUSIVE MODE;
            EXIT;
        EXCEPTION WHEN lock_not_available THEN
            PERFORM pg_sleep(0.2);
        END;
    END LOOP;
    PERFORM set_config('lock_timeout', before, true);
END
$locks$;

-- Jobs that wait for jobs.
ALTER TABLE queue.lane ADD COLUMN is_held boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN queue.lane.is_held IS 'Whether it is the queue''s lane of jobs that are after others; nothing is claimed from there.';
DO $after$
BEGIN
    FOR segment IN 0..9 LOOP
        EXECUTE format($sql$
            ALTER TABLE queue.note_%1$s ADD COLUMN job_id bigint, ADD COLUMN lane integer, ADD COLUMN upon "char";
            CREATE INDEX note_%1$s_job_idx ON queue.note_%1$s (job_id, id) WHERE job_id IS NOT NULL;
            ALTER TABLE queue.attempt_%1$s ADD COLUMN flow bigint, ADD COLUMN task text, ADD COLUMN after bigint[], ADD COLUMN upon "char",
                ADD COLUMN steps jsonb, ADD COLUMN run_as text, ADD COLUMN run_as_id bigint, ADD COLUMN own_flow jsonb;
            CREATE INDEX attempt_%1$s_flow_idx ON queue.attempt_%1$s (flow, id) WITH (deduplicate_items = off) WHERE flow IS NOT NULL;
            COMMENT ON COLUMN queue.attempt_%1$s.flow IS 'The job whose flow it is a member of.';
            COMMENT ON COLUMN queue.attempt_%1$s.task IS 'Its name in the flow.';
            COMMENT ON COLUMN queue.attempt_%1$s.after IS 'The jobs that it is after, or was while it was held.';
            COMMENT ON COLUMN queue.attempt_%1$s.upon IS
                'For what it waits, or waited: as in the notes.';
            COMMENT ON COLUMN queue.attempt_%1$s.steps IS 'The steps that the attempts before this one have done, each a field with its result.';
            COMMENT ON COLUMN queue.attempt_%1$s.own_flow IS 'What makes it a flow, which waits for its members: runs, fail_fast, the role that made it.';
            COMMENT ON TABLE queue.note_%1$s IS 'Log, segment %1$s: what must survive a crash about a running attempt, and what a held one is after.';
            COMMENT ON COLUMN queue.outcome_%1$s.outcome IS
                'c completed, f failed, d dead, t timed out, r released, w suspended, a advanced, x cancelled, s superseded, k skipped; m: no end, it runs on in another segment.';
            COMMENT ON COLUMN queue.note_%1$s.kind IS
                'p progress, c cancel requested, l lease longer than the claim''s, r another run asked for, s that was made, a after another job, n that has completed, e its flow is to end, t a step is done.';
            COMMENT ON COLUMN queue.note_%1$s.job_id IS 'After another job: that job; its own: the members of its flow; 0: the seal of its flow.';
            COMMENT ON COLUMN queue.note_%1$s.lane IS 'After another job: the lane that the attempt goes to; 0: it ends by itself.';
            COMMENT ON COLUMN queue.note_%1$s.upon IS 'After another job: c when all have completed, f when one has died, e when all have ended, o at its time unless they have ended.';
        $sql$, segment);
    END LOOP;
END
$after$;
ALTER TABLE queue.history ADD COLUMN flow bigint, ADD COLUMN task text, ADD COLUMN after bigint[], ADD COLUMN upon "char", ADD COLUMN steps jsonb,
    ADD COLUMN run_as text, ADD COLUMN run_as_id bigint, ADD COLUMN own_flow jsonb;
COMMENT ON COLUMN queue.history.flow IS 'The job whose flow it is a member of.';
COMMENT ON COLUMN queue.history.task IS 'Its name in the flow.';
COMMENT ON COLUMN queue.history.after IS 'The jobs that it was after.';
COMMENT ON COLUMN queue.history.upon IS 'For what it waited: see the attempts.';
COMMENT ON COLUMN queue.history.own_flow IS 'What makes it a flow: see the attempts.';
COMMENT ON COLUMN queue.history.steps IS 'The steps that were done, each a field with its result. Only of the last attempt of a job.';
COMMENT ON COLUMN queue.history.outcome IS
    'c completed, f failed, d dead, t timed out, r released, w suspended, a advanced, x cancelled, s superseded, k skipped.';

CREATE OR REPLACE VIEW queue.observed WITH (security_barrier) AS
SELECT n.lane, n.stage, q.queue_id, q.queue_name, q.max_attempts, q.stages, n.is_held
FROM queue.lane AS n JOIN queue.queue AS q ON q.queue_id = n.queue_id
WHERE queue_internal.may_observe(q.queue_id);
COMMENT ON COLUMN queue.observed.is_held IS 'Whether it is the queue''s lane of jobs that are after others.';

DROP FUNCTION queue.enqueue(text, jsonb, integer, interval, timestamptz, text, text, timestamptz, interval, text, text, integer, interval, jsonb);
CREATE FUNCTION queue.enqueue(
    queue_name text, payload jsonb DEFAULT '{}', priority integer DEFAULT 0,
    delay interval DEFAULT NULL, run_at timestamptz DEFAULT NULL,
    unique_key text DEFAULT NULL, on_duplicate text DEFAULT 'skip',
    version timestamptz DEFAULT NULL, unique_for interval DEFAULT NULL,
    group_key text DEFAULT NULL, stage text DEFAULT NULL, max_attempts integer DEFAULT NULL,
    lease interval DEFAULT NULL, headers jsonb DEFAULT NULL,
    after bigint[] DEFAULT NULL, upon text DEFAULT 'completed', flow bigint DEFAULT NULL, task text DEFAULT NULL
) RETURNS bigint LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_enqueue';
COMMENT ON FUNCTION queue.enqueue IS
'Adds a job; it exists if and only if the transaction commits. Smaller priority runs first; delay or run_at,
at most one of the two. stage: where it begins; NULL: in the first. With unique_key (at most 1024 bytes), one job of the queue lives under it: if there is one,
on_duplicate skip leaves it alone, replace and rerun give it this call''s contents if it waits and run it once more
with them if it runs, error raises 23505. version: a call that is not newer than the one known does nothing.
unique_for: the key stays taken for so long, even if the job has ended. after: the job is held until these jobs (100 at
most) have ended as upon says: all have completed, one has failed (is dead), all have ended, or it is overdue: they have
not ended by its own time. It is skipped when that can no longer happen. flow: the job is a member of that one, which
waits for it (see queue.enqueue_flow); task: its name there. Returns the job''s id; if nothing was
added, the id of the job that is there. Errors: 42704 no such queue, 22023 an argument out of range or no such stage, 23505 the key is taken,
53400 shared memory is full, P0002 no such job to be after, or no such flow, 42501 neither produce nor observe on its queue, or the
flow is another role''s and the user may not consume its queue, 55000 the flow takes no members.';
DROP FUNCTION queue.enqueue_many(text, jsonb[], integer, interval, timestamptz, text, text, timestamptz, interval, text, text, integer, interval, jsonb);
CREATE FUNCTION queue.enqueue_many(
    queue_name text, payloads jsonb[], priority integer DEFAULT 0,
    delay interval DEFAULT NULL, run_at timestamptz DEFAULT NULL,
    unique_key text DEFAULT NULL, on_duplicate text DEFAULT 'skip',
    version timestamptz DEFAULT NULL, unique_for interval DEFAULT NULL,
    group_key text DEFAULT NULL, stage text DEFAULT NULL, max_attempts integer DEFAULT NULL,
    lease interval DEFAULT NULL, headers jsonb DEFAULT NULL,
    after bigint[] DEFAULT NULL, upon text DEFAULT 'completed', flow bigint DEFAULT NULL, task text DEFAULT NULL
) RETURNS SETOF bigint LANGUAGE c ROWS 100 AS 'MODULE_PATHNAME', 'pg_queue_enqueue_many';
COMMENT ON FUNCTION queue.enqueue_many IS
'Adds a job per payload, all with the same options, written as a batch. Returns the jobs'' ids in order.
Errors: as queue.enqueue; 22004 names the payload that is null.';
REVOKE ALL ON FUNCTION queue.enqueue, queue.enqueue_many FROM PUBLIC;
-- New functions begin here.
CREATE FUNCTION queue.enqueue_flow(
    queue_name text, tasks jsonb DEFAULT '[]', payload jsonb DEFAULT '{}', runs boolean DEFAULT false,
    open boolean DEFAULT false, fail_fast boolean DEFAULT false, priority integer DEFAULT 0,
    delay interval DEFAULT NULL, run_at timestamptz DEFAULT NULL,
    unique_key text DEFAULT NULL, on_duplicate text DEFAULT 'skip',
    version timestamptz DEFAULT NULL, unique_for interval DEFAULT NULL,
    group_key text DEFAULT NULL, stage text DEFAULT NULL, max_attempts integer DEFAULT NULL,
    lease interval DEFAULT NULL, headers jsonb DEFAULT NULL,
    after bigint[] DEFAULT NULL, upon text DEFAULT 'completed', flow bigint DEFAULT NULL, task text DEFAULT NULL,
    command text DEFAULT NULL
) RETURNS bigint LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_enqueue_flow';
COMMENT ON FUNCTION queue.enqueue_flow IS
'Adds a flow: a job that waits for its members, which are added by flow => its id, or as tasks: an array of objects with the
fields of queue.enqueue_batch, task (a name), queue (this one by default), and after (names of other tasks). It is held
until all members have completed; upon: otherwise, as in queue.enqueue. Then it goes to its queue (runs), or ends by
itself. open: members may be added until queue.seal; else it may end as soon as this transaction is committed. fail_fast: the
first death among its members cancels the others, and then the flow is dead. command: what runs when they have, in a queue of
commands, as for queue.schedule. Returns the flow''s id. Errors: as queue.enqueue; 22023 tasks in a circle, or after no task of
the call, or data where a command is needed.';
CREATE FUNCTION queue.seal(job_id bigint) RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_seal';
COMMENT ON FUNCTION queue.seal IS
'Lets an open flow end when its members have. Counts when the transaction commits; a second call does nothing. Errors: P0002 no
such job, 55000 it is no flow that waits, 42501 the user has not made it and
may not consume its queue, 22023 not a job''s id.';
CREATE FUNCTION queue.resolve(job_id bigint, result jsonb DEFAULT NULL) RETURNS void
    LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_resolve';
COMMENT ON FUNCTION queue.resolve IS
'Completes a flow that ends by itself, whatever it waits for: an event that jobs are after, as an approval. Counts when the
transaction commits. Errors: P0002 no such job, 55000 it is no flow that waits or goes to a worker, 55006 another open
transaction is changing it, 42501 neither consume nor manage on its queue, 22023 not a job''s id.';
CREATE FUNCTION queue.reject(job_id bigint, error text) RETURNS void
    LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_reject';
COMMENT ON FUNCTION queue.reject IS
'Ends a flow that ends by itself as dead, with this error. Errors: as queue.resolve; 22004 error is null.';
CREATE FUNCTION queue.suspend(id bigint, after bigint[] DEFAULT NULL, upon text DEFAULT 'ended', progress jsonb DEFAULT NULL)
    RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_suspend';
COMMENT ON FUNCTION queue.suspend IS
'The attempt ends, and its job is held until these jobs have ended as upon says: ended, completed or failed. NULL: the members
of its own flow (queue.enqueue(…, flow => job_id)). Then it runs on, as the same attempt; progress: as queue.progress. A
job that is to be cancelled is cancelled instead. Errors: as queue.complete; 22023, P0002 and 42501 as queue.enqueue has
them for after.';
CREATE FUNCTION queue.inputs(id bigint)
    RETURNS TABLE (job_id bigint, queue_name text, task text, state text, result jsonb, error text, finished_at timestamptz)
    LANGUAGE c STABLE ROWS 10 AS 'MODULE_PATHNAME', 'pg_queue_inputs';
COMMENT ON FUNCTION queue.inputs IS
'What became of the jobs that the attempt''s job was after, and of the members of its flow. Results and errors are of queues
that the user may consume or observe; all but the id is null for a job that is known no more. Errors: 22023 not an
attempt''s id, P0002 no such attempt, 42501 neither consume nor observe on its queue.';
CREATE FUNCTION queue.step(id bigint, name text) RETURNS jsonb LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_step';
COMMENT ON FUNCTION queue.step IS
'The result of a step that this attempt, or one of the job before it, has noted by queue.step_done; NULL: it is not done. Errors: as queue.complete;
22023 the name has no, or more than 1024, bytes.';
CREATE FUNCTION queue.step_done(id bigint, name text, result jsonb DEFAULT 'null') RETURNS void
    LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_step_done';
COMMENT ON FUNCTION queue.step_done IS
'Notes that a step is done, with its result, for this attempt and the next ones of the job. Counts when the transaction
commits. Errors: as queue.step.';
CREATE FUNCTION queue.job_steps(job_id bigint) RETURNS TABLE (name text, result jsonb)
    LANGUAGE c STABLE ROWS 10 AS 'MODULE_PATHNAME', 'pg_queue_job_steps';
COMMENT ON FUNCTION queue.job_steps IS
'The steps that a job has done. Errors: P0002 no such job, 42501 neither observe nor consume on its queue, 22023 not a job''s id.';
REVOKE ALL ON FUNCTION queue.enqueue_flow, queue.seal, queue.resolve, queue.reject, queue.suspend, queue.inputs, queue.step, queue.step_done,
    queue.job_steps FROM PUBLIC;

CREATE OR REPLACE VIEW queue.attempts AS
SELECT l.id, l.job_id, o.queue_name, l.attempt,
       CASE WHEN l.outcome IS NOT NULL THEN
                CASE l.outcome WHEN 'c' THEN 'completed' WHEN 'f' THEN 'failed' WHEN 'd' THEN 'dead' WHEN 't' THEN 'timed_out'
                               WHEN 'r' THEN 'released' WHEN 'w' THEN 'suspended' WHEN 'a' THEN 'advanced' WHEN 'x' THEN 'cancelled' WHEN 'k' THEN 'skipped'
                               ELSE 'superseded' END
            WHEN l.claimed_at IS NOT NULL THEN 'running'
            WHEN o.is_held THEN 'held'
            WHEN l.run_at > clock_timestamp() THEN CASE WHEN l.last_error IS NULL THEN 'scheduled' ELSE 'retrying' END
            ELSE 'ready' END AS state,
       CASE WHEN l.claim_kind <> 's' THEN l.claimed_at END AS claimed_at,
       l.ended_at AS finished_at, l.worker, l.error, o.stage
FROM queue.life AS l
JOIN queue.observed AS o ON o.lane = l.lane;
COMMENT ON COLUMN queue.attempts.state IS
    'held, scheduled, ready, retrying, running, or how it ended: completed, failed, dead, timed_out, released, suspended, advanced, cancelled, skipped, superseded.';
-- A function cannot be given more columns: the new one takes its name when no view has the old one.
CREATE FUNCTION queue_internal.live_now()
    RETURNS TABLE (id bigint, job_id bigint, enqueued_at timestamptz, lane integer, priority integer, attempt integer, max_attempts integer,
                   run_at timestamptz, payload_of bigint, headers jsonb, group_key text, unique_key text, last_error text,
                   progress jsonb, claimed_at timestamptz, lease_us bigint, pid integer, claim_kind "char", worker text,
                   ended_at timestamptz, outcome "char", next_id bigint, result jsonb, error text, is_newest boolean,
                   flow bigint, task text, after bigint[], upon "char", own_flow jsonb)
    LANGUAGE c STABLE ROWS 100000 AS 'MODULE_PATHNAME', 'pg_queue_live';
COMMENT ON FUNCTION queue_internal.live_now IS 'All attempts in the segments, each with its claim and outcome. For the views.';
CREATE OR REPLACE VIEW queue.life WITH (security_barrier) AS
SELECT l.id, l.job_id, l.enqueued_at, l.lane, l.priority, l.attempt, l.max_attempts, l.run_at,
       NULL::jsonb AS payload, l.id AS payload_in,
       l.headers, l.group_key, l.unique_key, l.last_error, l.progress, l.claimed_at, l.lease_us, l.pid, l.claim_kind, l.worker,
       l.ended_at, l.outcome, l.next_id, l.result, l.error, l.is_newest, l.flow, l.task, l.after, l.upon, l.own_flow
FROM queue_internal.live_now() AS l
UNION ALL
SELECT h.id, h.job_id, h.enqueued_at, h.lane, h.priority, h.attempt, h.max_attempts, h.run_at, h.payload, NULL,
       h.headers, h.group_key, h.unique_key, h.last_error, h.progress, h.claimed_at, NULL, h.pid, h.claim_kind, h.worker,
       h.ended_at, h.outcome, h.next_id, h.result, h.error,
       h.next_id IS NULL AND NOT EXISTS (SELECT FROM queue.successor AS s WHERE s.id = h.id),
       h.flow, h.task, h.after, h.upon, h.own_flow
FROM queue.history AS h
-- What is still being copied is read in its segment.
WHERE h.generation <> ALL (ARRAY(
    SELECT d.generation FROM queue.segment_log AS d WHERE d.state = 'd' AND NOT EXISTS (
        SELECT FROM queue.segment_log AS c WHERE c.generation = d.generation AND c.state = 'h')))
  AND ((SELECT queue_internal.may_observe(0)) OR h.lane IN (SELECT o.lane FROM queue.observed AS o));
CREATE OR REPLACE VIEW queue.job_life AS
SELECT l.id AS attempt_id, l.job_id, o.queue_name, o.stage,
       CASE WHEN l.outcome = 'c' THEN 'completed'
            WHEN l.outcome = 'x' THEN 'cancelled'
            WHEN l.outcome = 'k' THEN 'skipped'
            WHEN l.outcome IS NOT NULL THEN 'dead'
            WHEN l.claimed_at IS NOT NULL THEN 'running'
            WHEN o.is_held THEN 'held'
            WHEN l.run_at > clock_timestamp() THEN CASE WHEN l.last_error IS NULL THEN 'scheduled' ELSE 'retrying' END
            ELSE 'ready' END AS state,
       -- Not before all conditions are met, of those rows that are wanted.
       coalesce(l.payload, queue_internal.payload_of(l.payload_in)) AS payload,
       l.priority, l.attempt, coalesce(l.max_attempts, o.max_attempts) AS max_attempts, l.run_at, l.enqueued_at,
       CASE WHEN l.claim_kind <> 's' THEN l.claimed_at END AS started_at,
       l.ended_at AS finished_at,
       CASE WHEN l.outcome IS NULL AND l.claimed_at IS NOT NULL
            THEN coalesce(queue_internal.lease_expires_at(l.id), l.claimed_at + l.lease_us * interval '1 microsecond') END AS lease_expires_at,
       l.worker, coalesce(l.error, l.last_error) AS error, l.result, l.progress, l.unique_key, l.group_key, l.headers,
       l.flow, l.task, l.after,
       CASE l.upon WHEN 'c' THEN 'completed' WHEN 'f' THEN 'failed' WHEN 'e' THEN 'ended'
                                WHEN 'o' THEN 'overdue' END AS upon,
       l.own_flow IS NOT NULL AS is_flow
FROM queue.life AS l
JOIN queue.observed AS o ON o.lane = l.lane
WHERE l.is_newest;
CREATE OR REPLACE VIEW queue.jobs AS
SELECT job_id, queue_name, stage, state, payload, priority, attempt, max_attempts, run_at, enqueued_at, started_at,
       finished_at, lease_expires_at, worker, error, result, progress, unique_key, group_key, headers,
       flow, task, after, upon
FROM queue.job_life;
COMMENT ON COLUMN queue.jobs.flow IS 'The job whose flow it is a member of.';
COMMENT ON COLUMN queue.jobs.task IS 'Its name in the flow.';
COMMENT ON COLUMN queue.jobs.after IS 'The jobs that it is after, or was while it was held.';
COMMENT ON COLUMN queue.jobs.upon IS 'For what it waits, or waited: completed, failed, ended, overdue; null: for no other job.';
COMMENT ON COLUMN queue.job_life.flow IS 'The job whose flow it is a member of.';
COMMENT ON COLUMN queue.job_life.task IS 'Its name in the flow.';
COMMENT ON COLUMN queue.job_life.after IS 'The jobs that it is after, or was while it was held.';
COMMENT ON COLUMN queue.job_life.upon IS 'For what it waits, or waited: completed, failed, ended, overdue; null: for no other job.';
COMMENT ON COLUMN queue.life.flow IS 'The job whose flow it is a member of.';
COMMENT ON COLUMN queue.life.task IS 'Its name in the flow.';
COMMENT ON COLUMN queue.life.after IS 'The jobs that it is after, or was while it was held.';
COMMENT ON COLUMN queue.life.upon IS 'For what it waits, or waited: completed, failed, ended, overdue; null: for no other job.';
DROP FUNCTION queue_internal.live();
ALTER FUNCTION queue_internal.live_now() RENAME TO live;
DROP FUNCTION queue_internal.life_of(bigint);
CREATE FUNCTION queue_internal.life_of(job_id bigint)
    RETURNS TABLE (id bigint, of_job bigint, enqueued_at timestamptz, lane integer, priority integer, attempt integer, max_attempts integer,
                   run_at timestamptz, payload jsonb, headers jsonb, group_key text, unique_key text, last_error text,
                   progress jsonb, claimed_at timestamptz, lease_us bigint, pid integer, claim_kind "char", worker text,
                   ended_at timestamptz, outcome "char", next_id bigint, result jsonb, error text, is_newest boolean,
                   flow bigint, task text, after bigint[], upon "char", own_flow jsonb)
    LANGUAGE c STABLE ROWS 2 AS 'MODULE_PATHNAME', 'pg_queue_life_of';
COMMENT ON FUNCTION queue_internal.life_of IS
'All attempts of a job, each with its claim and outcome, in the segments and in history. By index. Errors: 22023 not a job''s id.';
REVOKE ALL ON FUNCTION queue_internal.live, queue_internal.life_of FROM PUBLIC;
CREATE FUNCTION queue.members(job_id bigint, state text DEFAULT NULL, beyond bigint DEFAULT NULL, max_jobs integer DEFAULT 100)
    RETURNS SETOF queue.jobs STABLE ROWS 100 LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_members';
COMMENT ON FUNCTION queue.members IS
'The members of a flow, in the order of their ids: those in this state, at most max_jobs, from behind the job beyond on. Errors:
22023 not a job''s id.';

CREATE VIEW queue.flows AS
SELECT f.job_id, f.queue_name, f.task, f.state, coalesce(m.members, 0) AS members, coalesce(m.held, 0) AS held,
       coalesce(m.scheduled, 0) AS scheduled, coalesce(m.ready, 0) AS ready, coalesce(m.running, 0) AS running,
       coalesce(m.completed, 0) AS completed, coalesce(m.dead, 0) AS dead, coalesce(m.cancelled, 0) AS cancelled,
       coalesce(m.skipped, 0) AS skipped,
       CASE WHEN m.members > 0 THEN (m.completed + m.dead + m.cancelled + m.skipped)::float8 / m.members END AS share_ended,
       f.enqueued_at, f.finished_at
FROM queue.job_life AS f
LEFT JOIN (SELECT j.flow, count(*) AS members, count(*) FILTER (WHERE j.state = 'held') AS held,
                  count(*) FILTER (WHERE j.state IN ('scheduled', 'retrying')) AS scheduled,
                  count(*) FILTER (WHERE j.state = 'ready') AS ready, count(*) FILTER (WHERE j.state = 'running') AS running,
                  count(*) FILTER (WHERE j.state = 'completed') AS completed, count(*) FILTER (WHERE j.state = 'dead') AS dead,
                  count(*) FILTER (WHERE j.state = 'cancelled') AS cancelled, count(*) FILTER (WHERE j.state = 'skipped') AS skipped
           FROM queue.job_life AS j WHERE j.flow IS NOT NULL GROUP BY j.flow) AS m ON m.flow = f.job_id
WHERE f.is_flow;
COMMENT ON VIEW queue.flows IS 'One row per flow: how many of its members are in which state. Reads all jobs: look now and then.';
COMMENT ON COLUMN queue.flows.job_id IS 'The job.';
COMMENT ON COLUMN queue.flows.queue_name IS 'The queue.';
COMMENT ON COLUMN queue.flows.task IS 'Its name in the flow.';
COMMENT ON COLUMN queue.flows.state IS
    'held (waits for other jobs), scheduled (waits for its time), ready, running, retrying (waits after a failure), completed, dead (no attempts left), cancelled, skipped (its condition can no longer be met).';
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
COMMENT ON COLUMN queue.flows.share_ended IS 'The share of its members that have ended, from 0 to 1; null: it has none.';
COMMENT ON COLUMN queue.flows.finished_at IS 'When the flow itself ended.';
COMMENT ON COLUMN queue.job_life.is_flow IS 'Whether it is a flow.';
-- Flows end here.
REVOKE ALL ON FUNCTION queue.members FROM PUBLIC;

CREATE OR REPLACE VIEW queue.stats AS
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
LEFT JOIN (SELECT l.queue_id, sum(t.ready + t.scheduled + t.retrying)::bigint AS held, sum(t.enqueued)::bigint AS enqueued,
                  sum(t.dead)::bigint AS dead, sum(t.completed)::bigint AS completed, sum(t.failed)::bigint AS failed,
                  sum(t.died)::bigint AS died
           FROM queue.observed AS l JOIN tallies AS t ON t.lane = l.lane
           WHERE l.is_held GROUP BY l.queue_id) AS h
    ON h.queue_id = o.queue_id AND o.stage IS NOT DISTINCT FROM o.stages[1]
-- Of former stages, and of jobs outside stages where there are some now, only what there is or was.
WHERE NOT o.is_held AND (t.lane IS NOT NULL OR o.stage = ANY (o.stages) OR o.stage IS NULL AND o.stages IS NULL);
COMMENT ON COLUMN queue.jobs.state IS
    'held (waits for other jobs), scheduled (waits for its time), ready, running, retrying (waits after a failure), completed, dead (no attempts left), cancelled, skipped (its condition can no longer be met).';
COMMENT ON COLUMN queue.job_life.state IS
    'held (waits for other jobs), scheduled (waits for its time), ready, running, retrying (waits after a failure), completed, dead (no attempts left), cancelled, skipped (its condition can no longer be met).';
CREATE PROCEDURE queue.await(
    job_id bigint, timeout interval DEFAULT '30 seconds', INOUT state text DEFAULT NULL, INOUT result jsonb DEFAULT NULL
)
    LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_await';
COMMENT ON PROCEDURE queue.await IS
'Sleeps until the job has ended, at most timeout; says what it is doing then, as queue.job does, and its result. Holds no
snapshot and no lock meanwhile. The result is NULL for a user that may only produce. Errors: 25001 inside a transaction
block or function, P0002 no such job, 25006 on a standby, 22023, 55000 its queue was dropped.';
REVOKE ALL ON PROCEDURE queue.await FROM PUBLIC;
COMMENT ON COLUMN queue.stats.held IS 'Jobs that wait for other jobs; in the stage in which jobs come in.';

CREATE FUNCTION queue_internal.held_by_dead()
    RETURNS TABLE (lane integer, jobs bigint)
    STABLE LANGUAGE c COST 10000 ROWS 10 AS 'MODULE_PATHNAME', 'pg_queue_held_by_dead';
COMMENT ON FUNCTION queue_internal.held_by_dead IS
'How many held jobs wait for dead ones, one for each dead one, by the lanes in which they are held; 10,000 at most in all.
For the metrics.';
REVOKE ALL ON FUNCTION queue_internal.held_by_dead FROM PUBLIC;

-- Jobs that run in the server.
ALTER TABLE queue.queue ADD COLUMN executor text CONSTRAINT queue_executor_check CHECK (executor IN ('sql', 'call')),
    ADD COLUMN procedure text, ADD COLUMN run_as text, ADD COLUMN run_as_id bigint, ADD COLUMN settings jsonb,
    ADD COLUMN rate_limit_per_group integer, ADD COLUMN procedure_id bigint, ADD COLUMN procedure_owner text,
    ADD COLUMN procedure_owner_id bigint, ADD COLUMN settings_by text, ADD COLUMN settings_by_id bigint;
COMMENT ON COLUMN queue.queue.procedure_id IS 'The oid of the procedure: an overload, or a new one of its name, is not meant.';
COMMENT ON COLUMN queue.queue.procedure_owner IS 'The owner of the procedure when it was named: it is not run when it is another role''s.';
COMMENT ON COLUMN queue.queue.procedure_owner_id IS 'The oid of that role.';
COMMENT ON COLUMN queue.queue.settings_by IS 'The role that has set settings: those that decide what a command means count for roles alone to which it may SET ROLE.';
COMMENT ON COLUMN queue.queue.settings_by_id IS 'The oid of that role.';
-- What has started of groups, where these have a rate. Appended when a segment is reclaimed, and pruned then.
CREATE TABLE queue.group_start (
    minute      timestamptz NOT NULL,
    group_hash  bigint      NOT NULL,
    claimed     bigint      NOT NULL,
    lane        integer     NOT NULL
) USING heap;
ALTER TABLE queue.group_start REPLICA IDENTITY FULL;
COMMENT ON TABLE queue.group_start IS 'How much of each group was claimed in each minute, of segments that were reclaimed, as long as it counts for a rate_limit_per_group.';
COMMENT ON COLUMN queue.group_start.minute IS 'The begin of the minute.';
COMMENT ON COLUMN queue.group_start.group_hash IS 'That of the attempts.';
COMMENT ON COLUMN queue.group_start.claimed IS 'Attempts claimed by workers in this minute.';
COMMENT ON COLUMN queue.group_start.lane IS 'That of the attempts.';
SELECT pg_catalog.pg_extension_config_dump('queue.group_start', '');

COMMENT ON COLUMN queue.queue.run_as_id IS 'The oid of that role: a new one of the same name is not meant.';
ALTER TABLE queue.schedule ADD COLUMN run_as text, ADD COLUMN run_as_id bigint;
COMMENT ON COLUMN queue.schedule.run_as IS 'The role that wrote the payload as a command, as which its jobs run; null: it is data.';
COMMENT ON COLUMN queue.schedule.run_as_id IS 'The oid of that role.';
COMMENT ON COLUMN queue.history.run_as IS 'The role that wrote the payload as a command; null: it is data.';
COMMENT ON COLUMN queue.history.run_as_id IS 'The oid of that role.';
DO $run_as$
BEGIN
    FOR segment IN 0..9 LOOP
        EXECUTE format($sql$
            ALTER TABLE queue.note_%1$s ADD COLUMN run_as text, ADD COLUMN run_as_id bigint;
            COMMENT ON COLUMN queue.attempt_%1$s.run_as IS 'The role that wrote the payload as a command; null: it is data.';
            COMMENT ON COLUMN queue.attempt_%1$s.run_as_id IS 'The oid of that role.';
            COMMENT ON COLUMN queue.note_%1$s.run_as IS 'Another run: the role that wrote its payload as a command; null: it is data.';
            COMMENT ON COLUMN queue.note_%1$s.run_as_id IS 'The oid of that role.';
        $sql$, segment);
    END LOOP;
END
$run_as$;
DROP FUNCTION queue.schedule(text, text, jsonb, text, interval, text, text, timestamptz, timestamptz, boolean, integer, integer, text, jsonb);
CREATE FUNCTION queue.schedule(
    name text, queue_name text, payload jsonb DEFAULT '{}', cron text DEFAULT NULL, every interval DEFAULT NULL,
    timezone text DEFAULT 'UTC', missed text DEFAULT 'once',
    starts_at timestamptz DEFAULT NULL, ends_at timestamptz DEFAULT NULL, overlap boolean DEFAULT true,
    priority integer DEFAULT 0, max_attempts integer DEFAULT NULL, group_key text DEFAULT NULL,
    headers jsonb DEFAULT NULL, command text DEFAULT NULL
) RETURNS timestamptz LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_schedule';
COMMENT ON FUNCTION queue.schedule IS
'Enqueues a job at each slot of a plan: a cron expression, or every so often (100 ms or more), one of the two. A schedule
of the same name is replaced; while its plan stays the same, so do its slots. command: makes its jobs commands, in a queue with
executor sql; then payload has what belongs to it: arguments, autocommit, settings, result_rows. Returns the next slot; null
when there is none, or it is paused. Errors: 22023 an argument out of range, with the place in a wrong expression, or data for a
queue of commands; 42704 no such queue; 42601, 55000, 42501 as queue.enqueue_sql.';
REVOKE ALL ON FUNCTION queue.schedule FROM PUBLIC;
COMMENT ON FUNCTION queue.enqueue_batch IS
'Adds a job per object of a JSON array; the fields are payload and the options of queue.enqueue. In a queue of commands each has
command, and in its payload what belongs to that: arguments, autocommit, settings, result_rows. Returns the jobs'' ids in order.
Errors: 22023 names the job (from 0) and the field; nothing is added then.';
DROP FUNCTION queue.drop(text, boolean);
CREATE FUNCTION queue.drop(queue_name text, force boolean DEFAULT false, if_exists boolean DEFAULT false)
    RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_drop';
COMMENT ON FUNCTION queue.drop IS
'Removes a queue. if_exists: without one, there is a NOTICE. Errors: 42704 no such queue, 55000 it has live jobs (unless forced:
then they go with it).';
REVOKE ALL ON FUNCTION queue.drop FROM PUBLIC;
DROP FUNCTION queue.create(text, integer, interval, text, interval, interval, float8, interval, interval, text, integer, integer, boolean, integer, interval, bigint, text[], boolean, boolean);
CREATE FUNCTION queue.create(
    queue_name text,
    max_attempts integer DEFAULT NULL, lease interval DEFAULT NULL, backoff text DEFAULT NULL,
    backoff_base interval DEFAULT NULL, backoff_max interval DEFAULT NULL, backoff_jitter float8 DEFAULT NULL,
    retention interval DEFAULT NULL, dead_retention interval DEFAULT NULL, dead_letter text DEFAULT NULL,
    max_running integer DEFAULT NULL, max_running_per_group integer DEFAULT NULL, strict_order boolean DEFAULT NULL,
    rate_limit integer DEFAULT NULL, rate_period interval DEFAULT NULL, max_waiting bigint DEFAULT NULL,
    stages text[] DEFAULT NULL, notify boolean DEFAULT NULL, if_not_exists boolean DEFAULT false,
    executor text DEFAULT NULL, procedure text DEFAULT NULL, run_as text DEFAULT NULL, settings jsonb DEFAULT NULL,
    rate_limit_per_group integer DEFAULT NULL
) RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_create';
COMMENT ON FUNCTION queue.create IS
'Makes a queue. Defaults: max_attempts 20, lease 5 minutes, backoff exponential from 10 seconds to 1 day with
jitter 0.1, retention 1 day, dead_retention 90 days. stages: up to 32 names, which each job goes through in this
order; see queue.advance. dead_letter: the queue or topic that gets a copy of each job that dies. With if_not_exists an
existing queue is altered instead. executor: its jobs run in the server: sql, each has a command and runs as the role that
enqueued it; call, the payload of each is handed to procedure, which runs as run_as. settings: of the sessions they run in.
Errors: 42710 it exists, 22023 an option out of range, 42704 no queue dead_letter or no role run_as, 42883 no such procedure,
42501 no right to SET ROLE to run_as.';
DROP FUNCTION queue.alter(text, integer, interval, text, interval, interval, float8, interval, interval, text, integer, integer, boolean, integer, interval, bigint, text[], boolean, text[]);
CREATE FUNCTION queue.alter(
    queue_name text,
    max_attempts integer DEFAULT NULL, lease interval DEFAULT NULL, backoff text DEFAULT NULL,
    backoff_base interval DEFAULT NULL, backoff_max interval DEFAULT NULL, backoff_jitter float8 DEFAULT NULL,
    retention interval DEFAULT NULL, dead_retention interval DEFAULT NULL, dead_letter text DEFAULT NULL,
    max_running integer DEFAULT NULL, max_running_per_group integer DEFAULT NULL, strict_order boolean DEFAULT NULL,
    rate_limit integer DEFAULT NULL, rate_period interval DEFAULT NULL, max_waiting bigint DEFAULT NULL,
    stages text[] DEFAULT NULL, notify boolean DEFAULT NULL, reset text[] DEFAULT NULL,
    executor text DEFAULT NULL, procedure text DEFAULT NULL, run_as text DEFAULT NULL, settings jsonb DEFAULT NULL,
    rate_limit_per_group integer DEFAULT NULL
) RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_alter';
COMMENT ON FUNCTION queue.alter IS
'Changes options of a queue; NULL leaves one as it is, reset puts the named ones back to their defaults.
stages: the new list; jobs stay in their stage. Errors: 42704 no such queue, or none of the name dead_letter, 22023 an
option out of range, 55000 a stage that is not in the new list has live jobs, 55006 a producer of jobs of it is too late; as
queue.create for executor and what belongs to it.';
COMMENT ON FUNCTION queue.forget IS
'Erases payload, headers, result, progress and errors of an ended job, for privacy. The old versions of its rows go
with the next VACUUM of the log tables. Errors: P0002 no such job, 55000 it has not ended, 55006 another open
transaction is in the way, 25001 at REPEATABLE READ.';
REVOKE ALL ON FUNCTION queue.create, queue.alter FROM PUBLIC;
CREATE OR REPLACE VIEW queue.queues WITH (security_barrier) AS
SELECT queue_name, is_paused, max_attempts, lease, backoff, backoff_base, backoff_max, backoff_jitter, retention, dead_retention,
       dead_letter, max_running, max_running_per_group, strict_order, rate_limit, rate_period, max_waiting, stages, notify, created_at,
       executor, procedure, run_as, settings, rate_limit_per_group
FROM queue.queue
WHERE queue_internal.may_observe(queue_id);
COMMENT ON COLUMN queue.queues.executor IS 'How its jobs run in the server: sql, call; null: workers claim them.';
COMMENT ON COLUMN queue.queues.procedure IS 'With executor call: the procedure or function that gets their payloads.';
COMMENT ON COLUMN queue.queues.run_as IS 'With executor call: the role as which it runs.';
COMMENT ON COLUMN queue.queues.settings IS 'Settings of the sessions in which they run in the server.';
COMMENT ON COLUMN queue.queues.rate_limit_per_group IS 'How many jobs of a group begin in a rate_period at most; null: no limit.';
COMMENT ON COLUMN queue.queues.rate_period IS 'The period of rate_limit and rate_limit_per_group.';
DO $comments$
DECLARE
    attribute text;
BEGIN
    FOREACH attribute IN ARRAY ARRAY['executor', 'procedure', 'run_as', 'settings', 'rate_limit_per_group', 'rate_period'] LOOP
        EXECUTE format('COMMENT ON COLUMN queue.queue.%I IS %L', attribute, (
            SELECT col_description(attrelid, attnum) FROM pg_attribute
            WHERE attrelid = 'queue.queues'::regclass AND attname = attribute));
    END LOOP;
END
$comments$;

CREATE FUNCTION queue.enqueue_sql(
    queue_name text, command text, arguments jsonb DEFAULT NULL, autocommit boolean DEFAULT false,
    settings jsonb DEFAULT NULL, result_rows integer DEFAULT 0, priority integer DEFAULT 0,
    delay interval DEFAULT NULL, run_at timestamptz DEFAULT NULL,
    unique_key text DEFAULT NULL, on_duplicate text DEFAULT 'skip',
    version timestamptz DEFAULT NULL, unique_for interval DEFAULT NULL,
    group_key text DEFAULT NULL, stage text DEFAULT NULL, max_attempts integer DEFAULT NULL,
    lease interval DEFAULT NULL, headers jsonb DEFAULT NULL,
    after bigint[] DEFAULT NULL, upon text DEFAULT 'completed', flow bigint DEFAULT NULL, task text DEFAULT NULL
) RETURNS bigint LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_enqueue_sql';
COMMENT ON FUNCTION queue.enqueue_sql IS
'Adds a job that is a command, to a queue with executor sql: it runs in the server as the current user. One statement runs
at the top level; several are one transaction or, with autocommit, one each. arguments: an array of the values of $1, $2 and
so on. settings: of the session. result_rows: how many rows the result gets. The others are those of queue.enqueue. Errors:
as queue.enqueue; 42601 the command is no SQL, 55000 the queue runs no commands, 42501 no job runs as the current user.';

CREATE FUNCTION queue.current_job() RETURNS SETOF queue.claimed_job
    LANGUAGE c ROWS 1 AS 'MODULE_PATHNAME', 'pg_queue_current_job';
COMMENT ON FUNCTION queue.current_job IS
'In the command of a job that runs in the server: that job, as queue.claim returns one. Elsewhere no row.';

CREATE FUNCTION queue_internal.executors_now()
    RETURNS TABLE (pid integer, role_name text, lane integer, state text, job_id bigint, since timestamptz)
    LANGUAGE c ROWS 10 AS 'MODULE_PATHNAME', 'pg_queue_executors_now';
COMMENT ON FUNCTION queue_internal.executors_now IS 'The processes that run jobs in the server, this moment, from memory. For the view.';

CREATE FUNCTION queue_internal.executor_counts()
    RETURNS TABLE (starts bigint, failures bigint, dispatches bigint, dispatch_us bigint, short_us bigint)
    LANGUAGE c ROWS 1 AS 'MODULE_PATHNAME', 'pg_queue_executor_counts';
COMMENT ON FUNCTION queue_internal.executor_counts IS
'What became of the starts of such processes since the start of the server, over all databases. For the metrics.';

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
COMMENT ON COLUMN queue.executors.job_id IS 'The job. Null: it runs none.';
COMMENT ON COLUMN queue.executors.since IS 'Since when it is in this state.';
COMMENT ON COLUMN queue.executors.command IS 'The first line of what it runs, as pg_stat_activity shows it to this user.';

REVOKE ALL ON FUNCTION queue.enqueue_sql, queue.current_job, queue_internal.executors_now, queue_internal.executor_counts FROM PUBLIC;

-- Topics: named places that keep nothing. What is published there becomes one job in each queue that is bound to it.

CREATE TABLE queue.topic (
    topic_id    integer     NOT NULL CONSTRAINT topic_pkey PRIMARY KEY,
    topic_name  text        COLLATE "C" NOT NULL CONSTRAINT topic_topic_name_key UNIQUE
                            CONSTRAINT topic_topic_name_check CHECK (length(topic_name) BETWEEN 1 AND 200),
    created_at  timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE queue.topic IS 'One row per topic. Change it through queue.create_topic and queue.drop only.';
COMMENT ON COLUMN queue.topic.topic_id IS 'From the sequence of queue_id: what is granted on a topic stands beside what is granted on queues.';
COMMENT ON COLUMN queue.topic.topic_name IS 'Its name, which no queue has.';
COMMENT ON COLUMN queue.topic.created_at IS 'When it was created.';

CREATE TABLE queue.binding (
    binding_id  integer     NOT NULL GENERATED BY DEFAULT AS IDENTITY (SEQUENCE NAME queue.binding_id_seq)
                            CONSTRAINT binding_pkey PRIMARY KEY,
    topic_id    integer     NOT NULL,
    queue_id    integer     NOT NULL,
    pattern     text        COLLATE "C" NOT NULL,
    filter      text        COLLATE "C",
    priority    integer,
    delay       interval,
    group_path  text        COLLATE "C",
    max_attempts integer,
    lease       interval,
    stage       text,
    on_full     text        NOT NULL CONSTRAINT binding_on_full_check CHECK (on_full IN ('keep', 'drop', 'error')),
    bound_by    text        NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX binding_topic_id_idx ON queue.binding (topic_id, queue_id, pattern, (coalesce(filter, '')));
CREATE INDEX binding_queue_id_idx ON queue.binding (queue_id);
COMMENT ON TABLE queue.binding IS 'Which queues get what of a topic. Change it through queue.bind and queue.unbind only.';
COMMENT ON COLUMN queue.binding.topic_id IS 'The topic.';
COMMENT ON COLUMN queue.binding.queue_id IS 'The queue that gets jobs.';
COMMENT ON COLUMN queue.binding.filter IS 'A jsonpath as text; null: none.';
COMMENT ON COLUMN queue.binding.group_path IS 'The jsonpath of the group''s key, as text; null: what the publisher says.';

SELECT pg_catalog.pg_extension_config_dump('queue.topic', '');
SELECT pg_catalog.pg_extension_config_dump('queue.binding', '');
SELECT pg_catalog.pg_extension_config_dump('queue.binding_id_seq', '');

CREATE FUNCTION queue.create_topic(topic text, if_not_exists boolean DEFAULT false)
    RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_create_topic';
COMMENT ON FUNCTION queue.create_topic IS
'Makes a topic. It keeps nothing: what is published there goes to the queues that are bound to it. queue.drop removes it,
queue.grant and revoke say which role may publish (produce) and bind (observe). Errors: 42710 there is a topic or a queue of
that name, 22023 a name out of range.';

CREATE FUNCTION queue.bind(
    topic text, queue_name text, pattern text DEFAULT '#', filter jsonpath DEFAULT NULL, priority integer DEFAULT NULL,
    delay interval DEFAULT NULL, group_key jsonpath DEFAULT NULL, max_attempts integer DEFAULT NULL,
    lease interval DEFAULT NULL, stage text DEFAULT NULL, on_full text DEFAULT 'keep'
) RETURNS bigint LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_bind';
COMMENT ON FUNCTION queue.bind IS
'Subscribes a queue to a topic: it gets a job for each event whose key matches the pattern (words with dots between
them; * is one word, # any number) and for which the filter is true: a predicate over an object with the fields topic, key,
headers and payload, as ''$.payload.total > 1000''. The other options count in place of the publisher''s; group_key is a path
in the same object. on_full: what max_waiting of the queue means: keep (nothing), drop (the queue gets no job), error (the
publisher gets 53400). The same pattern and filter once more: its options are changed. Needs observe on the topic and manage
on the queue. Returns the binding''s id. Errors: 42704 no such topic or queue, 22023 a pattern or an option out of range,
0A000 the queue runs commands, 42501.';

CREATE FUNCTION queue.unbind(topic text, queue_name text, pattern text DEFAULT NULL)
    RETURNS bigint LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_unbind';
COMMENT ON FUNCTION queue.unbind IS
'Ends a queue''s bindings to a topic: those of a pattern, or all (NULL). The jobs that are there stay. Returns how many
bindings there were. Needs manage on the queue, or on the topic. Errors: 42704, 42501.';

CREATE FUNCTION queue.publish(
    topic text, payload jsonb DEFAULT '{}', key text DEFAULT '', priority integer DEFAULT 0, delay interval DEFAULT NULL,
    run_at timestamptz DEFAULT NULL, unique_key text DEFAULT NULL, on_duplicate text DEFAULT 'skip',
    version timestamptz DEFAULT NULL, unique_for interval DEFAULT NULL, group_key text DEFAULT NULL,
    headers jsonb DEFAULT NULL, mandatory boolean DEFAULT false,
    after bigint[] DEFAULT NULL, upon text DEFAULT 'completed', flow bigint DEFAULT NULL, task text DEFAULT NULL,
    OUT queue_name text, OUT job_id bigint
) RETURNS SETOF record LANGUAGE c ROWS 8 AS 'MODULE_PATHNAME', 'pg_queue_publish';
COMMENT ON FUNCTION queue.publish IS
'Adds a job to each queue that is bound to the topic and whose binding matches, one to each queue, all or none, in the
caller''s transaction. The options are those of queue.enqueue; unique_key counts in each queue by itself. The jobs'' headers
have the field event: topic, key, id (the same in all) and published_at. mandatory: if no binding matches, it raises P0002
instead of doing nothing. Returns the jobs. Needs produce on the topic, and nothing on the queues. Errors: as queue.enqueue;
42704 no such topic, 22023 a key out of range, 53400 a binding with on_full error and no room.';

CREATE FUNCTION queue.publish_many(topic text, payloads jsonb[], keys text[] DEFAULT NULL, headers jsonb DEFAULT NULL, priority integer DEFAULT 0)
    RETURNS bigint LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_publish_many';
COMMENT ON FUNCTION queue.publish_many IS
'Publishes an event per payload, with the key of the same place (NULL: all with the empty key), written as a batch. Returns how
many jobs were made. Errors: as queue.publish; 22004 names the payload that is null, 22023 another number of keys.';

CREATE FUNCTION queue.route(topic text, key text DEFAULT '', payload jsonb DEFAULT '{}', headers jsonb DEFAULT NULL,
    OUT queue_name text, OUT binding_id bigint, OUT pattern text
) RETURNS SETOF record STABLE LANGUAGE c ROWS 8 AS 'MODULE_PATHNAME', 'pg_queue_route';
COMMENT ON FUNCTION queue.route IS
'Returns which queues would get a job for such an event, and by which binding; makes none. Needs observe on the topic.
Errors: 42704 no such topic, 22023 a key out of range, 42501.';

CREATE FUNCTION queue_internal.topic_counts(
    OUT topic_id integer, OUT published bigint, OUT copies bigint, OUT unrouted bigint, OUT dropped bigint,
    OUT filter_errors bigint
) RETURNS SETOF record LANGUAGE c ROWS 10 AS 'MODULE_PATHNAME', 'pg_queue_topic_counts';
COMMENT ON FUNCTION queue_internal.topic_counts IS 'What was published since the start of the server, by topic. For the views.';

CREATE VIEW queue.topics WITH (security_barrier) AS
SELECT t.topic_name, (SELECT count(*) FROM queue.binding AS b WHERE b.topic_id = t.topic_id) AS bindings,
       coalesce(c.published, 0) AS published, coalesce(c.copies, 0) AS copies, coalesce(c.unrouted, 0) AS unrouted,
       coalesce(c.dropped, 0) AS dropped, coalesce(c.filter_errors, 0) AS filter_errors, t.created_at
FROM queue.topic AS t
LEFT JOIN queue_internal.topic_counts() AS c ON c.topic_id = t.topic_id
WHERE queue_internal.may_observe(t.topic_id);
COMMENT ON VIEW queue.topics IS
    'The topics that the current user may observe. Counts are of committed transactions, since the start of the server; of the 64 topics that were published to first.';
COMMENT ON COLUMN queue.topics.topic_name IS 'Its name.';
COMMENT ON COLUMN queue.topics.bindings IS 'How many bindings it has.';
COMMENT ON COLUMN queue.topics.published IS 'Events that were published.';
COMMENT ON COLUMN queue.topics.copies IS 'Jobs that were made of them.';
COMMENT ON COLUMN queue.topics.unrouted IS 'Events that no binding has matched.';
COMMENT ON COLUMN queue.topics.dropped IS 'Jobs that were not made since the queue was full (on_full drop).';
COMMENT ON COLUMN queue.topics.filter_errors IS 'Filters whose answer was neither true nor false: they count as false.';
COMMENT ON COLUMN queue.topics.created_at IS 'When it was created.';

CREATE VIEW queue.bindings WITH (security_barrier) AS
SELECT t.topic_name, q.queue_name, b.pattern, b.filter, b.priority, b.delay, b.group_path AS group_key, b.max_attempts, b.lease,
       b.stage, b.on_full, b.bound_by, b.created_at, b.binding_id::bigint AS binding_id
FROM queue.binding AS b
JOIN queue.topic AS t ON t.topic_id = b.topic_id
JOIN queue.queue AS q ON q.queue_id = b.queue_id
WHERE queue_internal.may_observe(t.topic_id);
COMMENT ON VIEW queue.bindings IS 'Which queues get what of the topics that the current user may observe.';
COMMENT ON COLUMN queue.bindings.topic_name IS 'The topic.';
COMMENT ON COLUMN queue.bindings.queue_name IS 'The queue that gets jobs.';
COMMENT ON COLUMN queue.bindings.pattern IS 'Which keys it gets: * is one word, # any number of them.';
COMMENT ON COLUMN queue.bindings.filter IS 'The jsonpath that has to be true; null: none.';
COMMENT ON COLUMN queue.bindings.priority IS 'Of its jobs; null: as the publisher says. So with the following, up to stage.';
COMMENT ON COLUMN queue.bindings.delay IS 'How long its jobs wait.';
COMMENT ON COLUMN queue.bindings.group_key IS 'The jsonpath of the group''s key.';
COMMENT ON COLUMN queue.bindings.max_attempts IS 'After how many attempts they are dead; null: as the queue says.';
COMMENT ON COLUMN queue.bindings.lease IS 'How long a claim of them lasts; null: as the queue says.';
COMMENT ON COLUMN queue.bindings.stage IS 'Where they begin; null: in the first.';
COMMENT ON COLUMN queue.bindings.on_full IS 'What max_waiting of the queue means: keep, drop, error.';
COMMENT ON COLUMN queue.bindings.bound_by IS 'The role that has made it, or changed it last.';
COMMENT ON COLUMN queue.bindings.created_at IS 'When it was made.';
COMMENT ON COLUMN queue.bindings.binding_id IS 'Of several that match, the one with the smallest number gives the options.';

DO $comments$
DECLARE
    attribute name;
BEGIN
    FOR attribute IN
        SELECT a.attname FROM pg_attribute AS a JOIN pg_attribute AS b ON b.attname = a.attname
        WHERE a.attrelid = 'queue.binding'::regclass AND b.attrelid = 'queue.bindings'::regclass AND a.attnum > 0
          AND col_description(a.attrelid, a.attnum) IS NULL
    LOOP
        EXECUTE format('COMMENT ON COLUMN queue.binding.%I IS %L', attribute, (
            SELECT col_description(attrelid, attnum) FROM pg_attribute
            WHERE attrelid = 'queue.bindings'::regclass AND attname = attribute));
    END LOOP;
END
$comments$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA queue, queue_internal FROM PUBLIC;

CREATE OR REPLACE VIEW queue.schedules WITH (security_barrier) AS
SELECT s.schedule_name AS name, coalesce(q.queue_name, t.topic_name) AS queue_name, s.cron, s.every, s.timezone, f.next_run_at, f.last_run_at, f.last_job_id,
       s.is_paused, s.missed, s.starts_at, s.ends_at, s.overlap, s.priority, s.max_attempts, s.group_key, s.payload,
       s.headers, s.created_at
FROM queue.schedule AS s
LEFT JOIN queue.queue AS q ON q.queue_id = s.queue_id
LEFT JOIN queue.topic AS t ON t.topic_id = s.queue_id
LEFT JOIN queue_internal.firings() AS f ON f.schedule_id = s.schedule_id
WHERE queue_internal.may_observe(s.queue_id);
COMMENT ON COLUMN queue.schedules.queue_name IS 'The queue it enqueues into, or the topic that it publishes on; null when that is gone.';

CREATE OR REPLACE VIEW queue.metric AS
SELECT v.name::text AS name,
       jsonb_strip_nulls(jsonb_build_object('queue', s.queue_name, 'stage', s.stage, 'state', v.state)) AS labels,
       CASE v.state WHEN 'ready' THEN s.ready WHEN 'scheduled' THEN s.scheduled WHEN 'retrying' THEN s.retrying
                    WHEN 'running' THEN s.running WHEN 'dead' THEN s.dead WHEN 'held' THEN s.held
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
    ('pg_queue_jobs', 'held', 'gauge', 'Jobs in this state now.'),
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
JOIN queue_internal.recent_times() AS r ON r.kind = v.kind
JOIN queue.observed AS o ON o.lane = r.lane
UNION ALL
SELECT 'pg_queue_is_paused', jsonb_build_object('queue', q.queue_name), q.is_paused::integer, 'gauge',
       '1 while claims from the queue find nothing, by queue.pause.'
FROM queue.queue AS q
WHERE queue_internal.may_observe(q.queue_id)
UNION ALL
SELECT 'pg_queue_held_by_dead', jsonb_build_object('queue', q.queue_name), coalesce(h.jobs, 0), 'gauge',
       'Held jobs that wait for dead ones; counted up to 10000.'
FROM queue.queue AS q
LEFT JOIN (SELECT n.queue_id, sum(d.jobs)::float8 AS jobs FROM queue_internal.held_by_dead() AS d
           JOIN queue.lane AS n ON n.lane = d.lane GROUP BY n.queue_id) AS h ON h.queue_id = q.queue_id
WHERE queue_internal.may_observe(q.queue_id) AND NOT pg_is_in_recovery()
UNION ALL
SELECT 'pg_queue_workers_busy', jsonb_build_object('queue', q.queue_name),
       (SELECT count(DISTINCT r.pid) FROM queue_internal.running_now() AS r JOIN queue.lane AS n ON n.lane = r.lane
        WHERE n.queue_id = q.queue_id), 'gauge', 'Connections that have jobs of the queue.'
FROM queue.queue AS q
WHERE queue_internal.may_observe(q.queue_id)
UNION ALL
SELECT v.name, jsonb_build_object('topic', t.topic_name), v.value::float8, 'counter', v.help
FROM queue.topics AS t
CROSS JOIN LATERAL (VALUES
    ('pg_queue_published_total', t.published, 'Events that were published on the topic.'),
    ('pg_queue_published_copies_total', t.copies, 'Jobs that were made of them.'),
    ('pg_queue_published_unrouted_total', t.unrouted, 'Events that no binding has matched.'),
    ('pg_queue_published_dropped_total', t.dropped, 'Jobs that were not made, since the queue was full.'),
    ('pg_queue_published_filter_errors_total', t.filter_errors, 'Filters whose answer was neither true nor false.')
) AS v (name, value, help)
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
CROSS JOIN queue_internal.memory_use() AS m
UNION ALL
SELECT 'pg_queue_check_ok', jsonb_build_object('check', d.name), d.ok::integer, 'gauge',
       '1 where queue.doctor() finds that all is well.'
FROM queue.doctor() AS d
WHERE queue_internal.may_observe(0)
UNION ALL
SELECT 'pg_queue_executor_processes', jsonb_build_object('state', v.state),
       (SELECT count(*) FROM queue_internal.executors_now() AS e WHERE (e.state = 'idle') = (v.state = 'idle'))::float8,
       'gauge', 'Processes that run jobs in the server.'
FROM (VALUES ('busy'), ('idle')) AS v (state)
UNION ALL
SELECT v.name, '{}',
       CASE v.name WHEN 'pg_queue_executor_starts_total' THEN c.starts
                   WHEN 'pg_queue_executor_start_failures_total' THEN c.failures
                   WHEN 'pg_queue_executor_dispatches_total' THEN c.dispatches
                   WHEN 'pg_queue_executor_dispatch_seconds_total' THEN c.dispatch_us / 1e6
       ELSE c.short_us / 1e6 END::float8, v.type, v.help
FROM (VALUES
    ('pg_queue_executor_starts_total', 'counter', 'Processes that were asked for to run jobs in the server, over all databases.'),
    ('pg_queue_executor_start_failures_total', 'counter', 'Those of them that the server had no room for, or that could not connect.'),
    ('pg_queue_executor_dispatches_total', 'counter', 'Jobs for which a process was told or started.'),
    ('pg_queue_executor_dispatch_seconds_total', 'counter', 'From when it was told or asked for to when it had the job, of all of them.'),
    ('pg_queue_executor_short_seconds', 'gauge', 'For how long the server has had no room for a process; 0: it has.')
) AS v (name, type, help)
CROSS JOIN queue_internal.executor_counts() AS c
UNION ALL
SELECT 'pg_queue_extension_info',
       jsonb_build_object('version', (SELECT extversion FROM pg_extension WHERE extname = 'pg_queue'),
                          'library_version', current_setting('pg_queue.library_version'),
                          'timezone_version', current_setting('pg_queue.timezone_version', true)),
       1, 'gauge', 'Always 1; its labels say which versions there are.';

CREATE FUNCTION queue.job_attempts(job_id bigint)
    RETURNS SETOF queue.attempts STABLE ROWS 2 LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_job_attempts';
COMMENT ON FUNCTION queue.job_attempts IS
'The attempts of a job, fast at any depth: those of queue.attempts that are of it; no row when there is none. Errors: 22023 not a
job''s id.';

CREATE TYPE queue.listed_job AS (
    job_id bigint, queue_name text, stage text, state text, payload jsonb, priority integer, attempt integer,
    max_attempts integer, run_at timestamptz, enqueued_at timestamptz, started_at timestamptz, finished_at timestamptz,
    lease_expires_at timestamptz, worker text, error text, result jsonb, progress jsonb, unique_key text, group_key text,
    headers jsonb, flow bigint, task text, after bigint[], upon text, here jsonb, rows_read bigint
);
COMMENT ON TYPE queue.listed_job IS
    'What queue.list and queue.search return: queue.jobs, where to go on, and how many rows were read so far.';
COMMENT ON COLUMN queue.listed_job.job_id IS 'The job.';
COMMENT ON COLUMN queue.listed_job.queue_name IS 'The queue.';
COMMENT ON COLUMN queue.listed_job.stage IS 'The stage it is at; null in a queue without stages.';
COMMENT ON COLUMN queue.listed_job.state IS
    'held (waits for other jobs), scheduled (waits for its time), ready, running, retrying (waits after a failure), completed, dead (no attempts left), cancelled, skipped (its condition can no longer be met).';
COMMENT ON COLUMN queue.listed_job.payload IS 'What the producer gave.';
COMMENT ON COLUMN queue.listed_job.priority IS 'Smaller runs first.';
COMMENT ON COLUMN queue.listed_job.attempt IS 'Which run it is at, from 1 in each stage.';
COMMENT ON COLUMN queue.listed_job.max_attempts IS 'After how many runs it is dead.';
COMMENT ON COLUMN queue.listed_job.run_at IS 'Not before this time; null: at once.';
COMMENT ON COLUMN queue.listed_job.enqueued_at IS 'When the producer enqueued it.';
COMMENT ON COLUMN queue.listed_job.started_at IS 'When a worker claimed the newest attempt.';
COMMENT ON COLUMN queue.listed_job.finished_at IS 'When the newest attempt ended.';
COMMENT ON COLUMN queue.listed_job.lease_expires_at IS 'Until when the worker has it.';
COMMENT ON COLUMN queue.listed_job.worker IS 'The name the worker gave.';
COMMENT ON COLUMN queue.listed_job.error IS 'How the newest attempt, or the one before it, failed.';
COMMENT ON COLUMN queue.listed_job.result IS 'What the worker gave to queue.complete.';
COMMENT ON COLUMN queue.listed_job.progress IS 'What the worker reported last.';
COMMENT ON COLUMN queue.listed_job.unique_key IS 'The key it holds.';
COMMENT ON COLUMN queue.listed_job.group_key IS 'The group it belongs to.';
COMMENT ON COLUMN queue.listed_job.headers IS 'What the producer gave beside the payload.';
COMMENT ON COLUMN queue.listed_job.flow IS 'The job whose flow it is a member of.';
COMMENT ON COLUMN queue.listed_job.task IS 'Its name in the flow.';
COMMENT ON COLUMN queue.listed_job.after IS 'The jobs that it is after, or was while it was held.';
COMMENT ON COLUMN queue.listed_job.upon IS 'For what it waits, or waited: completed, failed, ended, overdue; null: for no other job.';
COMMENT ON COLUMN queue.listed_job.here IS 'Where the next call goes on, as its beyond; null: this is not the last row, or that was all.';
COMMENT ON COLUMN queue.listed_job.rows_read IS 'How many rows the call had read by then.';

CREATE FUNCTION queue.list(queue_name text, state text, stage text DEFAULT NULL, beyond jsonb DEFAULT NULL, max_jobs integer DEFAULT 50)
    RETURNS SETOF queue.listed_job
    VOLATILE ROWS 50 LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_list';
COMMENT ON FUNCTION queue.list IS
'A page of a queue''s jobs in a state, by indexes: those that run, wait or are held in the order of their turn, the others from
the latest end on. beyond: what here has in the last row of the page before; a last row without a job says that there may be
more behind what was read. Errors: 42704, 22023 no such state or stage, not a position.';

CREATE FUNCTION queue.search(
    queue_name text, filter jsonpath, states text[] DEFAULT NULL, beyond jsonb DEFAULT NULL, max_jobs integer DEFAULT 50,
    max_rows integer DEFAULT 20000
)
    RETURNS SETOF queue.listed_job
    VOLATILE ROWS 50 LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_search';
COMMENT ON FUNCTION queue.search IS
'A queue''s jobs for which filter is true, or finds something, in an object of job_id, stage, state, payload, priority,
attempt, max_attempts, worker, error, result, progress, unique_key, group_key, headers, flow, task, is_flow. Reads max_rows rows at
most, and for half a second; a last row without a job says by here how to go on. states: of these, in this order. Errors:
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

CREATE FUNCTION queue.error_groups(queue_name text DEFAULT NULL, max_jobs integer DEFAULT 10000)
    RETURNS SETOF queue.error_group
    VOLATILE ROWS 100 LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_error_groups';
COMMENT ON FUNCTION queue.error_groups IS
'By error text, the jobs that died last and those that are retried next: of each queue at most max_jobs of both. queue_name
null: all queues. is_complete: these were all of the queue. Errors: 42704, 22023.';

CREATE FUNCTION queue.cancel_many(
    queue_name text, filter jsonpath DEFAULT NULL, states text[] DEFAULT '{held,scheduled,retrying,ready}', reason text DEFAULT NULL,
    max_jobs integer DEFAULT 10000, max_rows integer DEFAULT 100000, beyond jsonb DEFAULT NULL
)
    RETURNS TABLE (job_id bigint, here jsonb) VOLATILE ROWS 1000 LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_cancel_many';
COMMENT ON FUNCTION queue.cancel_many IS
'queue.cancel for the jobs of a queue that filter finds, as queue.search does; null: all in these states. At most max_jobs
jobs, and max_rows rows read; a last row without a job says by here how to go on. Jobs that other transactions have are left
out. Errors: 42704, 22023, 53400 shared memory is full.';

CREATE FUNCTION queue.retry_many(
    queue_name text, filter jsonpath DEFAULT NULL, states text[] DEFAULT '{dead}', run_at timestamptz DEFAULT NULL,
    max_jobs integer DEFAULT 10000, max_rows integer DEFAULT 100000, beyond jsonb DEFAULT NULL
)
    RETURNS TABLE (job_id bigint, here jsonb) VOLATILE ROWS 1000 LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_retry_many';
COMMENT ON FUNCTION queue.retry_many IS
'queue.retry for the jobs of a queue that filter finds, with bounds as in queue.cancel_many. Left out are also jobs whose key
another has. Errors: 42704, 22023, 53400 shared memory is full.';

CREATE FUNCTION queue.reprioritize_many(
    queue_name text, priority integer, filter jsonpath DEFAULT NULL, states text[] DEFAULT '{held,scheduled,retrying,ready}',
    max_jobs integer DEFAULT 10000, max_rows integer DEFAULT 100000, beyond jsonb DEFAULT NULL
)
    RETURNS TABLE (job_id bigint, here jsonb) VOLATILE ROWS 1000 LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_reprioritize_many';
COMMENT ON FUNCTION queue.reprioritize_many IS
'queue.reprioritize for the waiting jobs of a queue that filter finds, with bounds as in queue.cancel_many. Errors: 42704,
22023, 53400 shared memory is full.';

CREATE FUNCTION queue_internal.minutes_now()
    RETURNS TABLE (lane integer, since timestamptz, known_from timestamptz, minute timestamptz, enqueued bigint, claimed bigint,
                   completed bigint, failed bigint, timed_out bigint, died bigint)
    VOLATILE LANGUAGE c ROWS 1000 AS 'MODULE_PATHNAME', 'pg_queue_minutes_now';
COMMENT ON FUNCTION queue_internal.minutes_now IS
'What memory has counted in each minute of the last hour, by lane; a row without a minute says from when on. For the views.';

CREATE VIEW queue.activity_part WITH (security_barrier) AS
WITH memory AS MATERIALIZED (SELECT * FROM queue_internal.minutes_now())
SELECT o.queue_name, o.stage, m.minute, m.enqueued, m.claimed, m.completed, m.failed, m.timed_out, m.died,
       m.minute > m.since AS is_complete
FROM memory AS m
JOIN queue.observed AS o ON o.lane = m.lane
WHERE m.minute IS NOT NULL
UNION ALL
SELECT o.queue_name, o.stage, r.minute, r.enqueued, r.claimed, r.completed, r.failed, r.timed_out, r.died, false
FROM queue.rollup AS r
JOIN queue.observed AS o ON o.lane = r.lane
LEFT JOIN memory AS m ON m.lane = r.lane AND m.minute IS NULL
WHERE m.known_from IS NULL OR r.minute < m.known_from;
COMMENT ON VIEW queue.activity_part IS
    'Minutes of queues: of the last hour by memory, before that as far as segments were summed up. For queue.activity.';
COMMENT ON COLUMN queue.activity_part.queue_name IS 'The queue.';
COMMENT ON COLUMN queue.activity_part.stage IS 'The stage; null in a queue without stages.';
COMMENT ON COLUMN queue.activity_part.minute IS 'The begin of the minute.';
COMMENT ON COLUMN queue.activity_part.enqueued IS 'Jobs enqueued in this minute.';
COMMENT ON COLUMN queue.activity_part.claimed IS 'Attempts claimed by workers in this minute.';
COMMENT ON COLUMN queue.activity_part.completed IS 'Attempts completed in this minute.';
COMMENT ON COLUMN queue.activity_part.failed IS 'Attempts failed in this minute.';
COMMENT ON COLUMN queue.activity_part.timed_out IS 'Attempts whose lease or connection ended in this minute.';
COMMENT ON COLUMN queue.activity_part.died IS 'Attempts that were a job''s last and failed in this minute.';
COMMENT ON COLUMN queue.activity_part.is_complete IS 'Whether memory has known all of it; else it is what was summed up so far.';

CREATE TYPE queue.activity_period AS (
    queue_name text, stage text, starts_at timestamptz, enqueued bigint, claimed bigint, completed bigint, failed bigint,
    timed_out bigint, died bigint, is_complete boolean
);
COMMENT ON TYPE queue.activity_period IS 'What queue.activity returns.';
COMMENT ON COLUMN queue.activity_period.queue_name IS 'The queue.';
COMMENT ON COLUMN queue.activity_period.stage IS 'The stage; null in a queue without stages.';
COMMENT ON COLUMN queue.activity_period.starts_at IS 'Its begin.';
COMMENT ON COLUMN queue.activity_period.enqueued IS 'Jobs enqueued in it, in the stage in which they came in.';
COMMENT ON COLUMN queue.activity_period.claimed IS 'Attempts that workers claimed in it.';
COMMENT ON COLUMN queue.activity_period.completed IS 'Attempts completed, or advanced to another stage, in it.';
COMMENT ON COLUMN queue.activity_period.failed IS 'Attempts that their worker failed in it.';
COMMENT ON COLUMN queue.activity_period.timed_out IS 'Attempts whose lease or connection ended in it.';
COMMENT ON COLUMN queue.activity_period.died IS 'Attempts that were the last of their job and ended badly in it.';
COMMENT ON COLUMN queue.activity_period.is_complete IS 'Whether memory has known all of it; else it is what was summed up so far.';

CREATE FUNCTION queue.activity(queue_name text DEFAULT NULL, since timestamptz DEFAULT NULL, period interval DEFAULT '1 minute')
    RETURNS SETOF queue.activity_period
    VOLATILE ROWS 1000 LANGUAGE sql
BEGIN ATOMIC
    SELECT p.queue_name, p.stage,
           CASE WHEN coalesce(activity.period, '1 minute') >= interval '1 day'
                THEN date_bin(activity.period, p.minute::timestamp, timestamp '2000-01-03')::timestamptz
                ELSE date_bin(coalesce(activity.period, '1 minute'), p.minute, timestamp '2000-01-03'::timestamptz)
           END,
           sum(p.enqueued)::bigint, sum(p.claimed)::bigint, sum(p.completed)::bigint, sum(p.failed)::bigint,
           sum(p.timed_out)::bigint, sum(p.died)::bigint, bool_and(p.is_complete)
    FROM queue.activity_part AS p
    WHERE p.minute >= coalesce(activity.since, clock_timestamp() - interval '1 hour')
      AND (activity.queue_name IS NULL OR p.queue_name = activity.queue_name)
    GROUP BY 1, 2, 3
    ORDER BY 1, 2, 3;
END;
COMMENT ON FUNCTION queue.activity IS
'What queues did in each period, without a look at the logs: of the last hour by memory, before that as far as it was summed
up. queue_name null: all queues. since null: of the last hour. is_complete: memory has known all of the period. Errors: 0A000
a period of months, 22008 a period that is not positive.';
REVOKE ALL ON FUNCTION queue.job_attempts, queue.list, queue.search, queue.error_groups, queue.cancel_many, queue.retry_many,
    queue.reprioritize_many, queue_internal.minutes_now, queue.activity FROM PUBLIC;

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
                FOR EACH STATEMENT EXECUTE FUNCTION queue_internal.read_only();
            CREATE TRIGGER read_only_row INSTEAD OF INSERT OR UPDATE OR DELETE ON %1$s
                FOR EACH ROW EXECUTE FUNCTION queue_internal.read_only();
        $sql$, relation);
    END LOOP;
END
$read_only$;

-- Of no use here, where no rows are: the table of each day is made like this one, and so gets them.
CREATE INDEX history_job_id_idx ON queue.history (job_id) WITH (deduplicate_items = off);
CREATE INDEX history_id_idx ON queue.history (id)
    WHERE ((id OPERATOR(pg_catalog.>>) 4) OPERATOR(pg_catalog.&) 4398046511103::pg_catalog.int8)
          OPERATOR(pg_catalog.<>) ((job_id OPERATOR(pg_catalog.>>) 4) OPERATOR(pg_catalog.&) 4398046511103::pg_catalog.int8);
CREATE INDEX history_lane_idx ON queue.history (lane)
    WHERE outcome OPERATOR(pg_catalog.=) 'd' OR outcome OPERATOR(pg_catalog.=) 't' AND next_id IS NULL;
CREATE INDEX history_flow_idx ON queue.history (flow) WITH (deduplicate_items = off) WHERE flow IS NOT NULL;
DROP INDEX queue.lane_queue_id_idx;
CREATE UNIQUE INDEX lane_queue_id_idx ON queue.lane (queue_id, stage COLLATE "C");
-- On each table, whatever is granted, also to pg_write_all_data. The tables of history that are made later get it as well.
DO $triggers$
DECLARE
    relation regclass;
BEGIN
    FOR relation IN
        SELECT oid FROM pg_catalog.pg_class
        WHERE relnamespace = 'queue'::regnamespace AND relkind IN ('r', 'p')
          AND NOT EXISTS (SELECT FROM pg_catalog.pg_trigger WHERE tgrelid = pg_class.oid AND tgname = 'foreign_write')
        ORDER BY relname
    LOOP
        -- Always: some restore with session_replication_role = replica.
        EXECUTE format($sql$
            CREATE TRIGGER foreign_write BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON %1$s
                FOR EACH STATEMENT EXECUTE FUNCTION queue_internal.foreign_write();
            ALTER TABLE %1$s ENABLE ALWAYS TRIGGER foreign_write;
        $sql$, relation);
    END LOOP;
END
$triggers$;

-- A lane of held jobs for each queue.
INSERT INTO queue.lane (queue_id, is_held) SELECT queue_id, true FROM queue.queue;
SELECT queue_internal.derive_grants();
