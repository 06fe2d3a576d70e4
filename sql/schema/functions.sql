-- The functions. None is STRICT: each says itself what NULL means, which is "the default" wherever there
-- is one. No two share a name, because drivers send parameters without types.

-- Queues ------------------------------------------------------------------------------------------------

-- For: manage '*'.
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
existing queue is altered instead. executor: its jobs run in the server: '
'sql, each has a command and runs as the role that
enqueued it; call, the payload of each is handed to procedure, which runs as run_as. '
'settings: of the sessions they run in.
Errors: 42710 it exists, 22023 an option out of range, 42704 no queue dead_letter or no role run_as, '
'42883 no such procedure,
42501 no right to SET ROLE to run_as.';

-- For: manage.
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
option out of range, 55000 a stage that is not in the new list has live jobs, '
'55006 a producer of jobs of it is too late; as
queue.create for executor and what belongs to it.';

-- For: manage.
CREATE FUNCTION queue.drop(queue_name text, force boolean DEFAULT false, if_exists boolean DEFAULT false)
    RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_drop';
COMMENT ON FUNCTION queue.drop IS
'Removes a queue. if_exists: without one, there is a NOTICE. '
'Errors: 42704 no such queue, 55000 it has live jobs (unless forced:
then they go with it).';

-- For: manage.
CREATE FUNCTION queue.pause(queue_name text)
    RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_pause';
COMMENT ON FUNCTION queue.pause IS
'Claims from this queue find nothing until queue.resume; running jobs go on, producers too. Errors: 42704.';

-- For: manage.
CREATE FUNCTION queue.resume(queue_name text)
    RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_resume';
COMMENT ON FUNCTION queue.resume IS 'Ends a pause and wakes the sessions that wait. Errors: 42704.';

-- For: manage.
CREATE FUNCTION queue.purge(queue_name text)
    RETURNS bigint LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_purge';
COMMENT ON FUNCTION queue.purge IS
'Cancels all jobs of the queue that wait, due or not; running ones go on. Returns how many. Errors: 42704.';

-- Producing ---------------------------------------------------------------------------------------------

-- For: produce.
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
at most one of the two. stage: where it begins; NULL: in the first. '
'With unique_key (at most 1024 bytes), one job of the queue lives under it: if there is one,
on_duplicate skip leaves it alone, replace and rerun give it this call''s contents if it waits and run it once more
with them if it runs, error raises 23505. version: a call that is not newer than the one known does nothing.
unique_for: the key stays taken for so long, even if the job has ended. after: the job is held until these jobs (100 at
most) have ended as upon says: all have completed, one has failed (is dead), all have ended, or it is overdue: they have
not ended by its own time. It is skipped when that can no longer happen. flow: the job is a member of that one, which
waits for it (see queue.enqueue_flow); task: its name there. Returns the job''s id; if nothing was
added, the id of the job that is there. Errors: 42704 no such queue, 22023 an argument out of range or no such stage, '
'23505 the key is taken,
53400 shared memory is full, P0002 no such job to be after, or no such flow, '
'42501 neither produce nor observe on its queue, or the
flow is another role''s and the user may not consume its queue, 55000 the flow takes no members.';

-- For: produce.
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

-- For: produce.
CREATE FUNCTION queue.enqueue_batch(queue_name text, jobs jsonb)
    RETURNS SETOF bigint LANGUAGE c ROWS 100 AS 'MODULE_PATHNAME', 'pg_queue_enqueue_batch';
COMMENT ON FUNCTION queue.enqueue_batch IS
'Adds a job per object of a JSON array; the fields are payload and the options of queue.enqueue. '
'In a queue of commands each has
command, and in its payload what belongs to that: arguments, autocommit, settings, result_rows. '
'Returns the jobs'' ids in order.
Errors: 22023 names the job (from 0) and the field; nothing is added then.';

-- For: produce.
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
'Adds a job that is a command, to a queue with executor sql: it runs in the server as the current user. '
'One statement runs
at the top level; several are one transaction or, with autocommit, one each. '
'arguments: an array of the values of $1, $2 and
so on. settings: of the session. result_rows: how many rows the result gets. '
'The others are those of queue.enqueue. Errors:
as queue.enqueue; 42601 the command is no SQL, 55000 the queue runs no commands, '
'42501 no job runs as the current user.';

-- For: produce.
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
'Adds a flow: a job that waits for its members, which are added by flow => its id, or as tasks: '
'an array of objects with the
fields of queue.enqueue_batch, task (a name), queue (this one by default), and after (names of other tasks). It is held
until all members have completed; upon: otherwise, as in queue.enqueue. Then it goes to its queue (runs), or ends by
itself. open: members may be added until queue.seal; else it may end as soon as this transaction is committed. '
'fail_fast: the
first death among its members cancels the others, and then the flow is dead. '
'command: what runs when they have, in a queue of
commands, as for queue.schedule. Returns the flow''s id. '
'Errors: as queue.enqueue; 22023 tasks in a circle, or after no task of
the call, or data where a command is needed.';

-- For: produce, consume.
CREATE FUNCTION queue.seal(job_id bigint) RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_seal';
COMMENT ON FUNCTION queue.seal IS
'Lets an open flow end when its members have. Counts when the transaction commits; a second call does nothing. '
'Errors: P0002 no
such job, 55000 it is no flow that waits, 42501 the user has not made it and
may not consume its queue, 22023 not a job''s id.';

-- For: consume, manage.
CREATE FUNCTION queue.resolve(job_id bigint, result jsonb DEFAULT NULL) RETURNS void
    LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_resolve';
COMMENT ON FUNCTION queue.resolve IS
'Completes a flow that ends by itself, whatever it waits for: an event that jobs are after, as an approval. '
'Counts when the
transaction commits. Errors: P0002 no such job, 55000 it is no flow that waits or goes to a worker, 55006 another open
transaction is changing it, 42501 neither consume nor manage on its queue, 22023 not a job''s id.';

-- For: consume, manage.
CREATE FUNCTION queue.reject(job_id bigint, error text) RETURNS void
    LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_reject';
COMMENT ON FUNCTION queue.reject IS
'Ends a flow that ends by itself as dead, with this error. Errors: as queue.resolve; 22004 error is null.';

-- What becomes of many -----------------------------------------------------------------------------------

CREATE TYPE queue.answer AS (id bigint, outcome text, reason text);
COMMENT ON TYPE queue.answer IS
    'What a verb for many returns: a row for each id, in no order. Ids that are null are left out.';
COMMENT ON COLUMN queue.answer.id IS 'The id that the verb was given: of an attempt, or of a job.';
COMMENT ON COLUMN queue.answer.outcome IS
    'How an attempt has ended: completed, failed, dead, released, advanced, suspended, cancelled. '
    'What was done with a job: cancelled, cancelling, retried, reprioritized, rescheduled. '
    'Or nothing was done: lost (the lease), missing (no such job), busy (another open transaction has it), '
    'refused (as its state does not allow it), full (shared memory: try again in a new transaction).';
COMMENT ON COLUMN queue.answer.reason IS 'Why nothing was done, for people; else NULL.';

-- Consuming ---------------------------------------------------------------------------------------------

-- For: consume.
CREATE FUNCTION queue.claim(
    queue_name text, max_jobs integer DEFAULT 1, wait interval DEFAULT '0', lease interval DEFAULT NULL,
    stage text DEFAULT NULL, worker text DEFAULT NULL, session_bound boolean DEFAULT false,
    completed bigint[] DEFAULT NULL
) RETURNS SETOF queue.claimed_job LANGUAGE c ROWS 10 AS 'MODULE_PATHNAME', 'pg_queue_claim';
COMMENT ON FUNCTION queue.claim IS
'Takes up to max_jobs jobs for this worker, under a lease (default: the job''s, else the queue''s) that starts at
commit. Use every row: LIMIT or WHERE on the call leaves jobs claimed that nobody works on. '
'With wait, sleeps until there is
one, at most pg_queue.max_wait and just less than statement_timeout; not in a transaction that has written, nor at
REPEATABLE READ or above (a NOTICE says it once). While it sleeps it holds back vacuum''s
horizon; CALL queue.wait does not. stage: only of this one; NULL: of all, in the order of (priority, job_id) over
all of them. completed: finish these attempts first; for each that could not be, there is a row without a job_id, '
'whose headers have
outcome and reason as queue.answer.
session_bound: when this connection ends, its unfinished claims are offered again at once. Errors: 42704 no such
queue, 22023 an argument out of range or no such stage, 53400 shared memory is full.';

-- For: consume.
CREATE FUNCTION queue.claim_any(
    queue_names text[], max_jobs integer DEFAULT 1, wait interval DEFAULT '0', lease interval DEFAULT NULL,
    stage text DEFAULT NULL, worker text DEFAULT NULL, session_bound boolean DEFAULT false,
    completed bigint[] DEFAULT NULL
) RETURNS SETOF queue.claimed_job LANGUAGE c ROWS 10 AS 'MODULE_PATHNAME', 'pg_queue_claim_any';
COMMENT ON FUNCTION queue.claim_any IS
'As queue.claim, from the first of up to 8 queues that has jobs; stage: each of them must have it. '
'Errors: as queue.claim;
53400 more than 64 lanes to wait for (a queue has one, and one for each stage).';

-- For: produce, consume, observe, manage.
CREATE FUNCTION queue.current_job() RETURNS SETOF queue.claimed_job
    LANGUAGE c ROWS 1 AS 'MODULE_PATHNAME', 'pg_queue_current_job';
COMMENT ON FUNCTION queue.current_job IS
'In the command of a job that runs in the server: that job, as queue.claim returns one. Elsewhere no row.';

-- For: consume.
CREATE PROCEDURE queue.wait(queue_name text, timeout interval DEFAULT '30 seconds', INOUT has_jobs boolean DEFAULT NULL)
    LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_wait';
COMMENT ON PROCEDURE queue.wait IS
'Sleeps until the queue may have a job, at most timeout and pg_queue.max_wait, and says whether it has. Holds no
snapshot and no lock meanwhile. Errors: 25001 inside a transaction block or function, 42704 no such queue.';

-- For: consume.
CREATE FUNCTION queue.complete(id bigint, result jsonb DEFAULT NULL)
    RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_complete';
COMMENT ON FUNCTION queue.complete IS
'The attempt succeeded; counts if and only if the transaction commits. Errors: QJ001 the lease is lost (timed out,
cancelled, already ended; the detail says which), 55006 another open transaction is ending it, 22023 not an
attempt''s id, 55000 it is in a stage that is not the last: see queue.advance.';

-- For: consume.
CREATE FUNCTION queue.complete_many(ids bigint[])
    RETURNS SETOF queue.answer LANGUAGE c ROWS 100 AS 'MODULE_PATHNAME', 'pg_queue_complete_many';
COMMENT ON FUNCTION queue.complete_many IS
'The attempts succeeded. Returns what became of each: completed; lost, busy, or refused (its stage is not the last).
Errors: 22023 not an attempt''s id.';

-- For: consume.
CREATE FUNCTION queue.fail(id bigint, error text, retry_in interval DEFAULT NULL, fatal boolean DEFAULT false)
    RETURNS timestamptz LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_fail';
COMMENT ON FUNCTION queue.fail IS
'The attempt failed. Returns when the job runs again, by retry_in or the queue''s backoff; NULL: it is dead (fatal,
or that was the last attempt) or was to be cancelled. The error is cut at pg_queue.max_error_length. Errors: as
queue.complete.';

-- For: consume.
CREATE FUNCTION queue.fail_many(ids bigint[], error text, retry_in interval DEFAULT NULL, fatal boolean DEFAULT false)
    RETURNS SETOF queue.answer LANGUAGE c ROWS 100 AS 'MODULE_PATHNAME', 'pg_queue_fail_many';
COMMENT ON FUNCTION queue.fail_many IS
'The attempts failed with the same error. Returns what became of each: '
'failed (and there is a next one), dead, cancelled; lost or busy.
Errors: as queue.fail for the other arguments, 22023 not an attempt''s id.';

-- For: consume.
CREATE FUNCTION queue.release(id bigint, delay interval DEFAULT '0')
    RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_release';
COMMENT ON FUNCTION queue.release IS
'Gives the attempt back: the job keeps its place, the attempt is not counted. With delay it waits that long.
Errors: as queue.complete.';

-- For: consume.
CREATE FUNCTION queue.release_many(ids bigint[], delay interval DEFAULT '0')
    RETURNS SETOF queue.answer LANGUAGE c ROWS 100 AS 'MODULE_PATHNAME', 'pg_queue_release_many';
COMMENT ON FUNCTION queue.release_many IS
'Gives the attempts back. Returns what became of each: released, cancelled; lost or busy. Errors: 22023.';

-- For: consume.
CREATE FUNCTION queue.end_batch(ends json)
    RETURNS SETOF queue.answer LANGUAGE c ROWS 100 AS 'MODULE_PATHNAME', 'pg_queue_end_batch';
COMMENT ON FUNCTION queue.end_batch IS
'Ends many attempts, each in its own way. '
'ends: an array of objects with one field, complete, fail, release, advance or suspend,
which has the id and the arguments of that function. Returns what became of each: as queue.attempts calls it; '
'lost, busy, or refused
(it cannot end so, as with a result that jsonb cannot hold: its worker still has it). '
'Errors: 22023 names the element, from 0, that is
no such object; nothing is ended then.';

-- For: consume.
CREATE FUNCTION queue.extend(id bigint, lease interval DEFAULT NULL,
                             OUT lease_expires_at timestamptz, OUT is_cancelled boolean)
    LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_extend';
COMMENT ON FUNCTION queue.extend IS
'Heartbeat: the lease (default: the claim''s) starts anew, now. Says until when it runs and whether the job is to be
cancelled. Not transactional; writes nothing unless the lease is longer than any before. Errors: as queue.complete.';

-- For: consume.
CREATE FUNCTION queue.extend_many(ids bigint[], lease interval DEFAULT NULL)
    RETURNS TABLE (id bigint, outcome text, reason text, lease_expires_at timestamptz, is_cancelled boolean)
    LANGUAGE c ROWS 100 AS 'MODULE_PATHNAME', 'pg_queue_extend_many';
COMMENT ON FUNCTION queue.extend_many IS
'Heartbeat for many. Returns what became of each: '
'extended, with until when its lease runs and whether the job is to be cancelled; lost
or busy (an open transaction is ending it), and why. Errors: 22023.';

-- For: consume.
CREATE FUNCTION queue.progress(id bigint, progress jsonb)
    RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_progress';
COMMENT ON FUNCTION queue.progress IS
'Remembers what the attempt has done; the next attempt gets it back. Counts when the transaction commits.
Errors: as queue.complete, 22004 progress is null.';

-- For: consume.
CREATE FUNCTION queue.advance(id bigint, stage text DEFAULT NULL, payload jsonb DEFAULT NULL,
    delay interval DEFAULT '0')
    RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_advance';
COMMENT ON FUNCTION queue.advance IS
'The attempt is done in its stage, and its job goes on in another; counts when the transaction commits. stage: any of
the queue''s; NULL: the next of them. payload: the new one; NULL keeps it. '
'The job keeps its id, place, headers and group;
attempts count from 1. A job that is to be cancelled is cancelled instead. '
'Errors: as queue.complete; 22023 no such stage
or a negative delay, 55000 there is no next stage.';

-- For: consume.
CREATE FUNCTION queue.suspend(id bigint, after bigint[] DEFAULT NULL, upon text DEFAULT 'ended',
    progress jsonb DEFAULT NULL)
    RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_suspend';
COMMENT ON FUNCTION queue.suspend IS
'The attempt ends, and its job is held until these jobs have ended as upon says: ended, completed or failed. '
'NULL: the members
of its own flow (queue.enqueue(…, flow => job_id)). Then it runs on, as the same attempt; progress: as queue.progress. A
job that is to be cancelled is cancelled instead. Errors: as queue.complete; 22023, P0002 and 42501 as queue.enqueue has
them for after.';

-- For: consume, observe.
CREATE FUNCTION queue.inputs(id bigint)
    RETURNS TABLE (job_id bigint, queue_name text, task text, state text, result jsonb, error text,
                   finished_at timestamptz)
    LANGUAGE c STABLE ROWS 10 AS 'MODULE_PATHNAME', 'pg_queue_inputs';
COMMENT ON FUNCTION queue.inputs IS
'What became of the jobs that the attempt''s job was after, and of the members of its flow. '
'Results and errors are of queues
that the user may consume or observe; all but the id is null for a job that is known no more. Errors: 22023 not an
attempt''s id, P0002 no such attempt, 42501 neither consume nor observe on its queue.';

-- For: consume.
CREATE FUNCTION queue.step(id bigint, name text) RETURNS jsonb LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_step';
COMMENT ON FUNCTION queue.step IS
'The result of a step that this attempt, or one of the job before it, has noted by queue.step_done; '
'NULL: it is not done. Errors: as queue.complete;
22023 the name has no, or more than 1024, bytes.';

-- For: consume.
CREATE FUNCTION queue.step_done(id bigint, name text, result jsonb DEFAULT 'null') RETURNS void
    LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_step_done';
COMMENT ON FUNCTION queue.step_done IS
'Notes that a step is done, with its result, for this attempt and the next ones of the job. Counts when the transaction
commits. Errors: as queue.step.';

-- Managing jobs -----------------------------------------------------------------------------------------

-- For: manage.
CREATE FUNCTION queue.cancel(job_id bigint, reason text DEFAULT NULL, force boolean DEFAULT false)
    RETURNS text LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_cancel';
COMMENT ON FUNCTION queue.cancel IS
'A waiting job is cancelled. A running one is asked to stop (''cancelling'': its worker sees is_cancelled at its next
extend; it is not retried) or, with force, ended now: its worker has lost the lease. Errors: P0002 no such job, 55000
it has ended, 55006 another open transaction is changing it, 22023 not a job''s id.';

-- For: manage.
CREATE FUNCTION queue.retry(job_id bigint, run_at timestamptz DEFAULT NULL)
    RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_retry';
COMMENT ON FUNCTION queue.retry IS
'An ended job runs once more, attempts counted from 1; a waiting one runs now. At run_at when given. Errors: P0002 no
such job, 55000 it is running, 55006 another open transaction is changing it or holds its key, 23505 another live job
has its key, 22023 not a job''s id.';

-- For: manage.
CREATE FUNCTION queue.retry_many(job_ids bigint[], run_at timestamptz DEFAULT NULL)
    RETURNS SETOF queue.answer LANGUAGE c ROWS 100 AS 'MODULE_PATHNAME', 'pg_queue_retry_jobs';
COMMENT ON FUNCTION queue.retry_many IS
'queue.retry for many; queue.search finds their ids. Returns what became of each: retried; '
'missing, busy, refused (it is running, or its
key is taken), full. Errors: 22023 not a job''s id, 42501.';

-- For: manage.
CREATE FUNCTION queue.cancel_many(job_ids bigint[], reason text DEFAULT NULL, force boolean DEFAULT false)
    RETURNS SETOF queue.answer LANGUAGE c ROWS 100 AS 'MODULE_PATHNAME', 'pg_queue_cancel_jobs';
COMMENT ON FUNCTION queue.cancel_many IS
'queue.cancel for many; queue.search finds their ids. Returns what became of each: cancelled, cancelling; '
'missing, busy, refused (it
has ended), full. Errors: 22023 not a job''s id, 42501.';

-- For: manage.
CREATE FUNCTION queue.reprioritize(job_id bigint, priority integer)
    RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_reprioritize';
COMMENT ON FUNCTION queue.reprioritize IS
    'Gives a waiting job another priority. Errors: as queue.retry; 55000 also when it has ended.';

-- For: manage.
CREATE FUNCTION queue.reprioritize_many(job_ids bigint[], priority integer)
    RETURNS SETOF queue.answer LANGUAGE c ROWS 100 AS 'MODULE_PATHNAME', 'pg_queue_reprioritize_jobs';
COMMENT ON FUNCTION queue.reprioritize_many IS
'queue.reprioritize for many. Returns what became of each: reprioritized; '
'missing, busy, refused (it does not wait), full. Errors: 22023
not a job''s id, 42501.';

-- For: manage.
CREATE FUNCTION queue.reschedule(job_id bigint, run_at timestamptz)
    RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_reschedule';
COMMENT ON FUNCTION queue.reschedule IS
    'Lets a waiting job run at another time. Errors: as queue.retry; 55000 also when it has ended.';

-- For: manage.
CREATE FUNCTION queue.reschedule_many(job_ids bigint[], run_at timestamptz)
    RETURNS SETOF queue.answer LANGUAGE c ROWS 100 AS 'MODULE_PATHNAME', 'pg_queue_reschedule_jobs';
COMMENT ON FUNCTION queue.reschedule_many IS
'queue.reschedule for many. Returns what became of each: rescheduled; missing, busy, refused (it does not wait), full. '
'Errors: 22023 not
a job''s id or a time that is infinite, 42501.';

-- For: manage.
CREATE FUNCTION queue.forget(job_id bigint)
    RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_forget';
COMMENT ON FUNCTION queue.forget IS
'Erases payload, headers, result, progress and errors of an ended job, for privacy. The old versions of its rows go
with the next VACUUM of the log tables. Errors: P0002 no such job, 55000 it has not ended, 55006 another open
transaction is in the way, 25001 at REPEATABLE READ.';

-- Looking and maintenance -------------------------------------------------------------------------------

-- For: manage '*'.
CREATE FUNCTION queue.maintain() RETURNS TABLE (duty text, did bigint)
    LANGUAGE c ROWS 10 AS 'MODULE_PATHNAME', 'pg_queue_maintain';
COMMENT ON FUNCTION queue.maintain IS
'One tick of the background worker, in the foreground: each duty and how much it did.';

-- For: observe.
CREATE FUNCTION queue_internal.running_now()
    RETURNS TABLE (id bigint, lane integer, state text, pid integer, lease_expires_at timestamptz,
                   is_session_bound boolean, is_cancelled boolean)
    LANGUAGE c ROWS 100 AS 'MODULE_PATHNAME', 'pg_queue_running_now';
COMMENT ON FUNCTION queue_internal.running_now IS 'The attempts that shared memory knows as taken. For the views.';

-- For: observe.
CREATE FUNCTION queue_internal.lease_expires_at(id bigint) RETURNS timestamptz
    LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_lease_expires_at';
COMMENT ON FUNCTION queue_internal.lease_expires_at IS
    'When the lease of a running attempt ends; null when shared memory does not know. For the views.';

-- For: observe.
CREATE FUNCTION queue_internal.tallies(walk boolean DEFAULT false)
    RETURNS TABLE (lane integer, ready bigint, scheduled bigint, retrying bigint, running bigint, dead bigint,
                   oldest_ready_at timestamptz, enqueued bigint, claimed bigint, completed bigint, failed bigint,
                   timed_out bigint, died bigint, is_counted boolean)
    LANGUAGE c ROWS 100 AS 'MODULE_PATHNAME', 'pg_queue_tallies';
COMMENT ON FUNCTION queue_internal.tallies IS
'Per lane the figures of queue.stats. is_counted: they come from shared memory, without reading the logs; walk => true
reads the logs in any case. For the views.';

-- For: observe.
CREATE FUNCTION queue_internal.live()
    RETURNS TABLE (id bigint, job_id bigint, enqueued_at timestamptz, lane integer, priority integer, attempt integer,
                   max_attempts integer, run_at timestamptz, payload_of bigint, headers jsonb, group_key text,
                   unique_key text, last_error text,
                   progress jsonb, claimed_at timestamptz, lease_us bigint, pid integer, claim_kind "char", worker text,
                   ended_at timestamptz, outcome "char", next_id bigint, result jsonb, error text, is_newest boolean,
                   flow bigint, task text, after bigint[], upon "char", own_flow jsonb)
    LANGUAGE c STABLE ROWS 100000 AS 'MODULE_PATHNAME', 'pg_queue_live';
COMMENT ON FUNCTION queue_internal.live IS
    'All attempts in the segments, each with its claim and outcome. For the views.';

CREATE FUNCTION queue_internal.life_of(job_id bigint)
    RETURNS TABLE (id bigint, of_job bigint, enqueued_at timestamptz, lane integer, priority integer, attempt integer,
                   max_attempts integer,
                   run_at timestamptz, payload jsonb, headers jsonb, group_key text, unique_key text, last_error text,
                   progress jsonb, claimed_at timestamptz, lease_us bigint, pid integer, claim_kind "char", worker text,
                   ended_at timestamptz, outcome "char", next_id bigint, result jsonb, error text, is_newest boolean,
                   flow bigint, task text, after bigint[], upon "char", own_flow jsonb)
    LANGUAGE c STABLE ROWS 2 AS 'MODULE_PATHNAME', 'pg_queue_life_of';
COMMENT ON FUNCTION queue_internal.life_of IS
'All attempts of a job, each with its claim and outcome, in the segments and in history. By index. '
'Errors: 22023 not a job''s id.';

-- For: consume, observe.
CREATE FUNCTION queue.job_steps(job_id bigint) RETURNS TABLE (name text, result jsonb)
    LANGUAGE c STABLE ROWS 10 AS 'MODULE_PATHNAME', 'pg_queue_job_steps';
COMMENT ON FUNCTION queue.job_steps IS
'The steps that a job has done. Errors: P0002 no such job, 42501 neither observe nor consume on its queue, '
'22023 not a job''s id.';

-- For: observe.
CREATE FUNCTION queue_internal.payload_of(id bigint) RETURNS jsonb STABLE
    LANGUAGE c COST 20 AS 'MODULE_PATHNAME', 'pg_queue_payload_of';
COMMENT ON FUNCTION queue_internal.payload_of IS
    'The payload in an attempt''s row; null when it is gone. By index. For the views.';

CREATE FUNCTION queue_internal.kick() RETURNS void
    LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_kick';
COMMENT ON FUNCTION queue_internal.kick IS
    'Tells the launcher, at commit, to look at this database. Used by the install script.';
