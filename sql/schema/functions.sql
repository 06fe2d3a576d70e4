-- The functions. None is STRICT: each function decides what NULL means. If an argument has a default, NULL means that
-- default. No two functions share a name, because drivers send parameters without types.

-- Queues ------------------------------------------------------------------------------------------------

-- For: manage '*'.
CREATE FUNCTION queue.create(
    queue_name text, if_not_exists boolean DEFAULT false,
    -- arguments of queue: made by `make generate`
    max_attempts integer DEFAULT NULL, lease interval DEFAULT NULL, backoff text DEFAULT NULL,
    backoff_base interval DEFAULT NULL, backoff_max interval DEFAULT NULL, backoff_jitter float8 DEFAULT NULL,
    retention interval DEFAULT NULL, dead_retention interval DEFAULT NULL, dead_letter text DEFAULT NULL,
    max_running integer DEFAULT NULL, max_running_per_group integer DEFAULT NULL, strict_order boolean DEFAULT NULL,
    rate_limit integer DEFAULT NULL, rate_limit_per_group integer DEFAULT NULL, rate_period interval DEFAULT NULL,
    rate_cost text DEFAULT NULL, fair_share text DEFAULT NULL, max_waiting bigint DEFAULT NULL,
    stages text[] DEFAULT NULL, notify boolean DEFAULT NULL, start_within interval DEFAULT NULL,
    executor text DEFAULT NULL, procedure text DEFAULT NULL, run_as text DEFAULT NULL, settings jsonb DEFAULT NULL
    -- end of arguments of queue
) RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_create';
COMMENT ON FUNCTION queue.create IS
'Creates a queue. if_not_exists: an existing queue is altered instead. executor sql: each job has a command and runs as
the role that enqueued it. executor call: procedure gets the payload of each job and runs as run_as. The options:'
-- queues in words: made by `make generate`
'
max_attempts (1 to 1000000; default 20): After this many counted attempts a failing job is dead.
lease (1 ms to 10 years; default 5 minutes): How long a claim lasts without a heartbeat.
backoff (constant, linear, exponential; default exponential): How the delay before a retry grows.
backoff_base (not negative; default 10 seconds): The delay after the first attempt.
backoff_max (not negative; default 1 day): The longest delay, before the jitter.
backoff_jitter (0 to 1; default 0.1): The delay is changed by up to this share of itself, in either direction.
retention (not negative, or ''-1''; default 1 day): How long completed and cancelled jobs are kept after their
end, with their attempts. ''0'' keeps none, ''-1'' keeps them for ever.
dead_retention (not negative, or ''-1''; default 90 days): The same for dead jobs, and for failed attempts of jobs
that have not ended.
dead_letter (another queue or topic, from which nothing leads back): Where a copy of each job that dies goes.
max_running (at least 1): At most this many of its jobs run at once, over all workers and stages.
max_running_per_group (at least 1): At most this many jobs of each group_key run at once.
strict_order (default false): Jobs of a group run one at a time. A failed job keeps the others of its group
waiting until it is completed, dead or cancelled.
rate_limit (at least 1): At most this many jobs start in any rate_period. A claim that is rolled back counts, too.
rate_limit_per_group (at least 1): At most this many jobs of each group_key start in any rate_period, in each
stage. A claim that is rolled back counts, too.
rate_period (positive; default 1 second): The length of the window in which rate_limit and rate_limit_per_group
count.
rate_cost (a jsonpath of a field of payload or headers): What a job counts for rate_limit and
rate_limit_per_group, such as $.headers.tokens: the number there, rounded up; 1 if there is none.
fair_share (jobs): Groups start jobs of the same priority in proportion to their weights.
max_waiting (at least 1): Enqueueing raises 53400 if more jobs would wait, due or not.
stages (1 to 32 names of 1 to 200 characters, each once): The stages that its jobs go through, in this order.
notify (default false): NOTIFY on channel pg_queue tells of new jobs.
start_within (positive): A job that no worker has claimed within this time expires.
executor (sql, call): Its jobs run in the server, and sessions do not claim from it.
procedure (of one jsonb): With executor call: the procedure or function that gets the payloads, as SQL names it.
The queue keeps its oid and its owner: an overload, a new one of this name, and one with another owner are not
called.
run_as (a role to which the caller may SET ROLE): With executor call: the role as which that runs.
settings (an object): Settings of the sessions in which the jobs run in the server. Some count only where their
setter may SET ROLE to the job''s role.
'
-- end of queues in words
'Errors: 42710 the queue exists, 22023 an option is out of range, 42704
there is no queue dead_letter or no role run_as, 42883 there is no such procedure, 42501 the user may not SET ROLE to
run_as.';

-- For: manage.
CREATE FUNCTION queue.alter(
    queue_name text, reset text[] DEFAULT NULL,
    -- arguments of queue: made by `make generate`
    max_attempts integer DEFAULT NULL, lease interval DEFAULT NULL, backoff text DEFAULT NULL,
    backoff_base interval DEFAULT NULL, backoff_max interval DEFAULT NULL, backoff_jitter float8 DEFAULT NULL,
    retention interval DEFAULT NULL, dead_retention interval DEFAULT NULL, dead_letter text DEFAULT NULL,
    max_running integer DEFAULT NULL, max_running_per_group integer DEFAULT NULL, strict_order boolean DEFAULT NULL,
    rate_limit integer DEFAULT NULL, rate_limit_per_group integer DEFAULT NULL, rate_period interval DEFAULT NULL,
    rate_cost text DEFAULT NULL, fair_share text DEFAULT NULL, max_waiting bigint DEFAULT NULL,
    stages text[] DEFAULT NULL, notify boolean DEFAULT NULL, start_within interval DEFAULT NULL,
    executor text DEFAULT NULL, procedure text DEFAULT NULL, run_as text DEFAULT NULL, settings jsonb DEFAULT NULL
    -- end of arguments of queue
) RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_alter';
COMMENT ON FUNCTION queue.alter IS
'Changes options of a queue. NULL leaves an option as it is; reset sets the named options to their defaults. stages:
the new list; jobs stay in their stage. Errors: 42704 there is no such queue, or nothing has the name dead_letter;
22023 an option is out of range; 55000 a stage that the new list drops has living jobs; 55006 an open transaction has
enqueued into a stage that the new list drops. For executor, procedure, run_as and settings: as queue.create.';

-- For: manage.
CREATE FUNCTION queue.drop(queue_name text, force boolean DEFAULT false, if_exists boolean DEFAULT false)
    RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_drop';
COMMENT ON FUNCTION queue.drop IS
'Drops a queue or a topic. if_exists: raises a NOTICE instead of an error if there is none. Errors: 42704 there is no
such queue, 55000 it has living jobs. With force, they are dropped with the queue.';

-- For: manage.
CREATE FUNCTION queue.pause(queue_name text)
    RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_pause';
COMMENT ON FUNCTION queue.pause IS
    'Claims from this queue find nothing until queue.resume. Running jobs and producers go on. Errors: 42704.';

-- For: manage.
CREATE FUNCTION queue.resume(queue_name text)
    RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_resume';
COMMENT ON FUNCTION queue.resume IS 'Ends a pause and wakes the waiting sessions. Errors: 42704.';

-- For: manage.
CREATE FUNCTION queue.weigh(queue_name text, group_key text, weight float8 DEFAULT NULL)
    RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_weigh';
COMMENT ON FUNCTION queue.weigh IS
'Sets the weight of a group, 0.01 to 100; NULL: 1 again. In a queue with fair_share a group with the weight 2 starts
twice as many jobs as one with the weight 1 while both have jobs of the same priority waiting. It counts from the next
claim after the commit, for all jobs that wait. A queue keeps up to 10,000 weights. Needs manage. Errors: 22004 a name
is NULL, 22023 a value is out of range, 42704, 42501, 53400 too many weights.';

-- For: consume.
CREATE FUNCTION queue.throttle(queue_name text, period interval, group_key text DEFAULT NULL)
    RETURNS timestamptz LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_throttle';
COMMENT ON FUNCTION queue.throttle IS
'Keeps all workers from starting jobs of the queue, or of a group, for this long (0 to 1 day): for instance because a
service has answered 429. It counts immediately, waits for no commit, and is not undone by a rollback. Running jobs go
on. Of two throttles the later one counts; ''0'' ends it. Returns until when, NULL if jobs may start now. It is in
memory: a crash, a promotion, and too many queues or groups end it, that of a group also a change of the limits;
queue.pause lasts. Errors: 22004, 22023
period is out of range, 42704, 42501, 53400 memory has no room, 55000 group_key in a queue without limits of groups and
fair shares.';

-- For: observe.
CREATE FUNCTION queue.groups(
    queue_name text, max_groups integer DEFAULT NULL,
    OUT stage text, OUT group_key text, OUT weight float8, OUT running bigint, OUT next_job_id bigint,
    OUT waits_since timestamptz, OUT ahead bigint, OUT throttled_until timestamptz
) RETURNS SETOF record LANGUAGE c ROWS 50 AS 'MODULE_PATHNAME', 'pg_queue_groups';
COMMENT ON FUNCTION queue.groups IS
'Returns the groups of a queue that have waiting jobs, at most max_groups (1 to 1,000, default 50) of each stage, those
first whose turn comes first: weight, how many of its jobs run, its next job and since when that is ready, how many
groups come before it, and until when it is throttled. Groups that may start nothing now come last. Memory must know
the groups: a queue whose groups neither have limits nor fair shares returns nothing. Errors: 42704, 42501, 22023.';

-- For: manage.
CREATE FUNCTION queue.purge(queue_name text)
    RETURNS bigint LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_purge';
COMMENT ON FUNCTION queue.purge IS
'Cancels all waiting jobs of the queue, due or not. Running jobs go on. Returns how many it has cancelled. Errors:
42704.';

-- Producing ---------------------------------------------------------------------------------------------

-- For: produce.
CREATE FUNCTION queue.enqueue(
    queue_name text, payload jsonb DEFAULT '{}',
    -- arguments of enqueue: made by `make generate`
    priority integer DEFAULT 0, delay interval DEFAULT NULL, run_at timestamptz DEFAULT NULL,
    unique_key text DEFAULT NULL, on_duplicate text DEFAULT 'skip', version timestamptz DEFAULT NULL,
    unique_for interval DEFAULT NULL, group_key text DEFAULT NULL, stage text DEFAULT NULL,
    max_attempts integer DEFAULT NULL, lease interval DEFAULT NULL, headers jsonb DEFAULT NULL,
    after bigint[] DEFAULT NULL, upon text DEFAULT 'completed', flow bigint DEFAULT NULL, task text DEFAULT NULL,
    start_by timestamptz DEFAULT NULL, start_within interval DEFAULT NULL, max_delay interval DEFAULT NULL
    -- end of arguments of enqueue
) RETURNS bigint LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_enqueue';
COMMENT ON FUNCTION queue.enqueue IS
'Adds a job; the job exists if and only if the transaction commits. Give delay or run_at, not both. If a living job has
the unique_key: skip leaves it alone, replace and rerun give it the contents of this call if it waits and run it once
more with them if it runs, error raises 23505. Returns the job''s id; if nothing was added, the id of the existing job.
The options:'
-- jobs in words: made by `make generate`
'
priority (any integer; default 0): A job with a smaller priority runs first.
delay (not negative): The job does not run before this time has passed.
run_at (finite): The job does not run before this time, which may be past. Not together with delay.
unique_key (up to 1,024 bytes): A queue has at most one living job with this key.
on_duplicate (skip, replace, rerun, error; default skip): What happens if a living job has the key: the call does
nothing, the job gets its contents, the job runs once more, or the call is an error.
version (any, with a key): A call whose version is not larger than the known version of the key does nothing, and
returns the job''s id.
unique_for (not negative, with a key): The key stays taken for this time from now, even if the job has ended.
group_key (up to 1,024 bytes): The group in which the queue''s limits per group count the job.
stage (one of the queue''s): The stage in which a new job begins. Another run of a job under its key begins in the
first stage.
max_attempts (1 to 1000000): After this many counted attempts the job is dead.
lease (1 ms to 10 years): How long a claim of the job lasts without a heartbeat.
headers (an object): An object that is kept beside the payload, for instance with a trace id.
after (up to 100 ids of jobs of any queues): The job is held until these jobs have ended as upon says.
upon (completed, any, failed, ended, overdue; default completed): What the job waits for, of the jobs in after:
that all have completed, that one has completed, that one is dead, that all have ended in any way, or that they
have not ended by run_at or the end of delay.
flow (a flow that waits, or a job that runs): The job becomes a member of this flow, which waits for it.
task (up to 1,024 bytes): The job''s name in its flow.
start_by (finite): If no worker has claimed the job before this time, the job expires.
start_within (positive): If no worker has claimed the job within this time, which begins at run_at or at the end
of delay, the job expires. Not together with start_by.
max_delay (positive, with a key): Calls under the key put the waiting job off at most this long after the first of
them.
'
-- end of jobs in words
'Errors: 42704 there is no such queue; 22023 an argument is out of range, or there is no such stage; 23505 the key is
taken; 53400 shared memory is full; P0002 there is no such predecessor or flow; 42501 the user has neither produce
nor observe on a predecessor''s queue, or the flow is another role''s and the user may not consume from its queue;
55000 the flow takes no members.';

-- For: produce.
CREATE FUNCTION queue.enqueue_many(
    queue_name text, payloads jsonb[],
    -- arguments of enqueue: made by `make generate`
    priority integer DEFAULT 0, delay interval DEFAULT NULL, run_at timestamptz DEFAULT NULL,
    unique_key text DEFAULT NULL, on_duplicate text DEFAULT 'skip', version timestamptz DEFAULT NULL,
    unique_for interval DEFAULT NULL, group_key text DEFAULT NULL, stage text DEFAULT NULL,
    max_attempts integer DEFAULT NULL, lease interval DEFAULT NULL, headers jsonb DEFAULT NULL,
    after bigint[] DEFAULT NULL, upon text DEFAULT 'completed', flow bigint DEFAULT NULL, task text DEFAULT NULL,
    start_by timestamptz DEFAULT NULL, start_within interval DEFAULT NULL, max_delay interval DEFAULT NULL
    -- end of arguments of enqueue
) RETURNS SETOF bigint LANGUAGE c ROWS 100 AS 'MODULE_PATHNAME', 'pg_queue_enqueue_many';
COMMENT ON FUNCTION queue.enqueue_many IS
'Adds one job for each payload, all with the same options, written as a batch. Returns the jobs'' ids in order.
Errors: as queue.enqueue; 22004 names the payload that is null.';

-- For: produce.
CREATE FUNCTION queue.enqueue_batch(queue_name text, jobs jsonb)
    RETURNS SETOF bigint LANGUAGE c ROWS 100 AS 'MODULE_PATHNAME', 'pg_queue_enqueue_batch';
COMMENT ON FUNCTION queue.enqueue_batch IS
'Adds one job for each object of a JSON array. The fields are payload and the options of queue.enqueue. In a queue of
commands, each object has the field command, and its payload holds arguments, autocommit, settings and result_rows.
Returns the jobs'' ids in order. Errors: 22023 names the job (from 0) and the field; nothing is added then.';

-- For: produce.
CREATE FUNCTION queue.enqueue_sql(
    queue_name text, command text, arguments jsonb DEFAULT NULL, autocommit boolean DEFAULT false,
    settings jsonb DEFAULT NULL, result_rows integer DEFAULT 0,
    -- arguments of enqueue: made by `make generate`
    priority integer DEFAULT 0, delay interval DEFAULT NULL, run_at timestamptz DEFAULT NULL,
    unique_key text DEFAULT NULL, on_duplicate text DEFAULT 'skip', version timestamptz DEFAULT NULL,
    unique_for interval DEFAULT NULL, group_key text DEFAULT NULL, stage text DEFAULT NULL,
    max_attempts integer DEFAULT NULL, lease interval DEFAULT NULL, headers jsonb DEFAULT NULL,
    after bigint[] DEFAULT NULL, upon text DEFAULT 'completed', flow bigint DEFAULT NULL, task text DEFAULT NULL,
    start_by timestamptz DEFAULT NULL, start_within interval DEFAULT NULL, max_delay interval DEFAULT NULL
    -- end of arguments of enqueue
) RETURNS bigint LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_enqueue_sql';
COMMENT ON FUNCTION queue.enqueue_sql IS
'Adds a job that is a command to a queue with executor sql. The command runs in the server as the current user. One
statement runs at the top level. Several statements run in one transaction or, with autocommit, in one transaction
each. arguments: an array with the values of $1, $2 and so on. settings: the settings of the session. result_rows:
how many rows the result gets. The other arguments are those of queue.enqueue. Errors: as queue.enqueue; 42601 the
command is not SQL, 55000 the queue does not run commands, 42501 no job may run as the current user.';

-- For: produce.
CREATE FUNCTION queue.enqueue_flow(
    queue_name text, tasks jsonb DEFAULT '[]', payload jsonb DEFAULT '{}', runs boolean DEFAULT false,
    open boolean DEFAULT false, fail_fast boolean DEFAULT false, command text DEFAULT NULL,
    -- arguments of flow: made by `make generate`
    priority integer DEFAULT 0, delay interval DEFAULT NULL, run_at timestamptz DEFAULT NULL,
    unique_key text DEFAULT NULL, on_duplicate text DEFAULT 'skip', version timestamptz DEFAULT NULL,
    unique_for interval DEFAULT NULL, group_key text DEFAULT NULL, stage text DEFAULT NULL,
    max_attempts integer DEFAULT NULL, lease interval DEFAULT NULL, headers jsonb DEFAULT NULL,
    after bigint[] DEFAULT NULL, upon text DEFAULT 'completed', flow bigint DEFAULT NULL, task text DEFAULT NULL,
    start_by timestamptz DEFAULT NULL, start_within interval DEFAULT NULL
    -- end of arguments of flow
) RETURNS bigint LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_enqueue_flow';
COMMENT ON FUNCTION queue.enqueue_flow IS
'Adds a flow: a job that waits for its members. Members are added with flow => its id, or as tasks: an array of
objects with the fields of queue.enqueue_batch, task (a name), queue (default: this queue), and after (names of other
tasks). The flow is held until all members have completed; upon: another condition, as in queue.enqueue. Then it goes
to its queue (runs), or ends by itself. open: members may be added until queue.seal; otherwise the flow may end as
soon as this transaction is committed. fail_fast: the first dead member cancels the others, and then the flow is
dead. command: what runs after the members, in a queue of commands, as for queue.schedule. Returns the flow''s id.
Errors: as queue.enqueue; 22023 the tasks form a cycle, after names no task of the call, or data is given where a
command is needed.';

-- For: produce, consume.
CREATE FUNCTION queue.seal(job_id bigint) RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_seal';
COMMENT ON FUNCTION queue.seal IS
'Lets an open flow end when its members have ended. It takes effect when the transaction commits; a second call does
nothing. Errors: P0002 there is no such job, 55000 it is not a waiting flow, 42501 the user has not made it and may
not consume from its queue, 22023 not a job''s id.';

-- For: consume, manage.
CREATE FUNCTION queue.resolve(job_id bigint, result jsonb DEFAULT NULL) RETURNS void
    LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_resolve';
COMMENT ON FUNCTION queue.resolve IS
'Completes a flow that ends by itself, whatever it waits for. So it serves as an event for jobs that are after it, for
instance an approval. It takes effect when the transaction commits. Errors: P0002 there is no such job, 55000 it is
not a waiting flow, or it goes to a worker, 55006 another open transaction is changing it, 42501 the user has neither
consume nor manage on its queue, 22023 not a job''s id.';

-- For: consume, manage.
CREATE FUNCTION queue.reject(job_id bigint, error text) RETURNS void
    LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_reject';
COMMENT ON FUNCTION queue.reject IS
    'Ends a flow that ends by itself as dead, with this error. Errors: as queue.resolve; 22004 error is null.';

-- Answers of verbs for many ------------------------------------------------------------------------------

CREATE TYPE queue.answer AS (id bigint, outcome text, reason text);
COMMENT ON TYPE queue.answer IS
    'What a verb for many returns: a row for each id, in no particular order. Null ids are ignored.';
COMMENT ON COLUMN queue.answer.id IS 'The given id: of an attempt, or of a job.';
COMMENT ON COLUMN queue.answer.outcome IS
    'How the attempt has ended: completed, failed, dead, released, advanced, suspended, cancelled. Or what was done '
    'with the job: cancelled, cancelling, retried, reprioritized, rescheduled. Or why nothing was done: lost (the '
    'lease), missing (there is no such job), busy (another open transaction has it), refused (its state does not '
    'allow it), full (shared memory: try again in a new transaction).';
COMMENT ON COLUMN queue.answer.reason IS 'Why nothing was done, for people; NULL if something was done.';

-- Consuming ---------------------------------------------------------------------------------------------

-- For: consume.
CREATE FUNCTION queue.claim(
    queue_name text, max_jobs integer DEFAULT 1, wait interval DEFAULT '0', lease interval DEFAULT NULL,
    stage text DEFAULT NULL, worker text DEFAULT NULL, disconnect interval DEFAULT NULL,
    completed bigint[] DEFAULT NULL, results json DEFAULT NULL, linger interval DEFAULT NULL
) RETURNS SETOF queue.claimed_job LANGUAGE c ROWS 10 AS 'MODULE_PATHNAME', 'pg_queue_claim';
COMMENT ON FUNCTION queue.claim IS
'Claims up to max_jobs jobs for this worker. Their lease (default: the job''s, else the queue''s) starts at commit.
Use every row: LIMIT or WHERE on the call leaves jobs claimed that no worker runs. wait: sleeps until there is a job,
for at most pg_queue.max_wait and a little less than statement_timeout. It does not sleep in a transaction that has
written, nor at REPEATABLE READ or above; a NOTICE says so once. A sleeping claim holds back vacuum''s horizon; CALL
queue.wait does not. stage: claims from this stage only; NULL: from all stages, in the order of (priority, job_id) over
all of them. completed: completes these attempts first. For each attempt that could not be completed, there is a row
without a job_id, whose headers have outcome and reason as queue.answer. results: an array with the result of each of
these attempts; null: it has none. disconnect: if this connection breaks, the leases of its jobs end after this time at
the latest, unless they are extended meanwhile. 0: if it ends in any way, its jobs are immediately offered to other
workers. NULL: its jobs keep their leases. linger: with fewer than max_jobs ready jobs the call sleeps on for more,
until the first of them has been ready for this time; it needs wait, and one queue without stages or with a stage.
Errors: 42704 there is no such queue, 22023 an argument is out of range or there is no such stage, 53400 shared memory
is full.';

-- For: consume.
CREATE FUNCTION queue.claim_any(
    queue_names text[], max_jobs integer DEFAULT 1, wait interval DEFAULT '0', lease interval DEFAULT NULL,
    stages text[] DEFAULT NULL, worker text DEFAULT NULL, disconnect interval DEFAULT NULL,
    completed bigint[] DEFAULT NULL, results json DEFAULT NULL, linger interval DEFAULT NULL
) RETURNS SETOF queue.claimed_job LANGUAGE c ROWS 10 AS 'MODULE_PATHNAME', 'pg_queue_claim_any';
COMMENT ON FUNCTION queue.claim_any IS
'As queue.claim, from the first of up to 8 queues that has jobs. stages: one for each name, only jobs of this stage;
NULL: of all stages. A queue may be named once for each of its stages. Errors: as queue.claim; 53400 the call would wait
for more than 64 lanes (a queue has one lane, and one for each stage).';

-- For: produce, consume, observe, manage.
CREATE FUNCTION queue.current_job() RETURNS SETOF queue.claimed_job
    LANGUAGE c ROWS 1 AS 'MODULE_PATHNAME', 'pg_queue_current_job';
COMMENT ON FUNCTION queue.current_job IS
    'In the command of a job that runs in the server: that job, as queue.claim returns it. Elsewhere no row.';

-- For: consume.
CREATE PROCEDURE queue.wait(queue_name text, timeout interval DEFAULT '30 seconds', INOUT has_jobs boolean DEFAULT NULL)
    LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_wait';
COMMENT ON PROCEDURE queue.wait IS
'Sleeps until the queue may have a job, for at most timeout and pg_queue.max_wait. Returns whether it has one. It
holds no snapshot and no lock while it sleeps. Errors: 25001 inside a transaction block or function, 42704 there is
no such queue.';

-- For: consume.
CREATE FUNCTION queue.complete(id bigint, result jsonb DEFAULT NULL)
    RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_complete';
COMMENT ON FUNCTION queue.complete IS
'Ends the attempt as completed, if and only if the transaction commits. Errors: QJ001 the lease is lost (timed out,
cancelled, already ended; the detail says which), 55006 another open transaction is ending the attempt, 22023 not an
attempt''s id, 55000 it is not in the last stage: see queue.advance.';

-- For: consume.
CREATE FUNCTION queue.complete_many(ids bigint[])
    RETURNS SETOF queue.answer LANGUAGE c ROWS 100 AS 'MODULE_PATHNAME', 'pg_queue_complete_many';
COMMENT ON FUNCTION queue.complete_many IS
'Ends the attempts as completed. Returns the outcome of each: completed; or lost, busy, refused (its stage is not the
last). Errors: 22023 not an attempt''s id.';

-- For: consume.
CREATE FUNCTION queue.fail(id bigint, error text, retry_in interval DEFAULT NULL, fatal boolean DEFAULT false)
    RETURNS timestamptz LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_fail';
COMMENT ON FUNCTION queue.fail IS
'Ends the attempt as failed. Returns when the job runs again, by retry_in or the queue''s backoff. NULL: the job is
dead (fatal, or this was the last attempt), or it was to be cancelled. The error is cut at pg_queue.max_error_length.
Errors: as queue.complete.';

-- For: consume.
CREATE FUNCTION queue.fail_many(ids bigint[], error text, retry_in interval DEFAULT NULL, fatal boolean DEFAULT false)
    RETURNS SETOF queue.answer LANGUAGE c ROWS 100 AS 'MODULE_PATHNAME', 'pg_queue_fail_many';
COMMENT ON FUNCTION queue.fail_many IS
'Ends the attempts as failed, with the same error. Returns the outcome of each: failed (there is a next attempt),
dead, cancelled; or lost, busy. Errors: as queue.fail for the other arguments, 22023 not an attempt''s id.';

-- For: consume.
CREATE FUNCTION queue.release(id bigint, delay interval DEFAULT '0', reason text DEFAULT NULL)
    RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_release';
COMMENT ON FUNCTION queue.release IS
'Gives the attempt back. The job keeps its place, and the attempt is not counted. delay: the job waits this long.
reason: kept as the error of the attempt and the last error of the job. Errors: as queue.complete.';

-- For: consume.
CREATE FUNCTION queue.release_many(ids bigint[], delay interval DEFAULT '0', reason text DEFAULT NULL)
    RETURNS SETOF queue.answer LANGUAGE c ROWS 100 AS 'MODULE_PATHNAME', 'pg_queue_release_many';
COMMENT ON FUNCTION queue.release_many IS
    'Gives the attempts back. Returns the outcome of each: released, cancelled; or lost, busy. Errors: 22023.';

-- For: consume.
CREATE FUNCTION queue.end_batch(ends json)
    RETURNS SETOF queue.answer LANGUAGE c ROWS 100 AS 'MODULE_PATHNAME', 'pg_queue_end_batch';
COMMENT ON FUNCTION queue.end_batch IS
'Ends many attempts, each in its own way, and extends others. ends: an array of objects. Each has one field, complete,
fail, release, advance, suspend or extend, with the id and the arguments of that function. A release may also have
throttle, "queue" or "group": what no worker starts jobs of during its delay. Returns the outcome of each,
as queue.attempts names it; extended, or cancelling if the job is to be cancelled; or lost, busy, refused. Refused
attempts cannot end this way, for instance with a result that jsonb cannot hold: their worker still has them. Errors:
22023 names the element (from 0) that is not such an object; nothing is ended then.';

-- For: consume.
CREATE FUNCTION queue.extend(id bigint, lease interval DEFAULT NULL,
                             OUT lease_expires_at timestamptz, OUT is_cancelled boolean)
    LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_extend';
COMMENT ON FUNCTION queue.extend IS
'Heartbeat: the lease (default: that of the claim) starts anew now. Returns when it expires and whether the job is to
be cancelled. It is not transactional, and writes only if the lease is longer than any before. Errors: as
queue.complete.';

-- For: consume.
CREATE FUNCTION queue.extend_many(ids bigint[], lease interval DEFAULT NULL)
    RETURNS TABLE (id bigint, outcome text, reason text, lease_expires_at timestamptz, is_cancelled boolean)
    LANGUAGE c ROWS 100 AS 'MODULE_PATHNAME', 'pg_queue_extend_many';
COMMENT ON FUNCTION queue.extend_many IS
'Heartbeat for many attempts. Returns the outcome of each: extended, with the time at which its lease expires and
whether the job is to be cancelled; or lost, busy (an open transaction is ending it), with the reason. Errors: 22023.';

-- For: consume.
CREATE FUNCTION queue.progress(id bigint, progress jsonb)
    RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_progress';
COMMENT ON FUNCTION queue.progress IS
'Stores what the attempt has done; the job''s next attempt gets it back. It takes effect when the transaction commits.
Errors: as queue.complete, 22004 progress is null.';

-- For: consume.
CREATE FUNCTION queue.charge(id bigint, used integer)
    RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_charge';
COMMENT ON FUNCTION queue.charge IS
'Says how much of the rates of its queue a running attempt has used so far, at least 0. Less than the rate_cost with
which it began makes room from that start on; more counts as a start now, even beyond the limit. It counts immediately,
and is not undone by a rollback. A crash loses it: then the rate_cost counts. Errors: QJ001, 42501, 55006 as
queue.extend, 22004, 22023 used is negative, 53400 memory has no room, 55000 the queue has no rate, or no rate_cost.';

-- For: consume.
CREATE FUNCTION queue.advance(id bigint, stage text DEFAULT NULL, payload jsonb DEFAULT NULL,
    delay interval DEFAULT '0')
    RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_advance';
COMMENT ON FUNCTION queue.advance IS
'Ends the attempt in its stage; the job goes on in another stage. It takes effect when the transaction commits. stage:
any stage of the queue; NULL: the next one. payload: the new payload; NULL keeps the old one. The job keeps its id,
place, headers and group; its attempts are counted from 1 again. If the job is to be cancelled, it is cancelled
instead. Errors: as queue.complete; 22023 there is no such stage, or the delay is negative; 55000 there is no next
stage.';

-- For: consume.
CREATE FUNCTION queue.suspend(id bigint, after bigint[] DEFAULT NULL, upon text DEFAULT 'ended',
    progress jsonb DEFAULT NULL, until timestamptz DEFAULT NULL)
    RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_suspend';
COMMENT ON FUNCTION queue.suspend IS
'Ends the attempt; the job is held until these jobs have ended as upon says: ended, completed, any or failed. after
NULL: the members of its own flow (queue.enqueue(…, flow => job_id)). Then the job goes on with the same attempt
number. until: it goes on at this time at the latest, however the others fare; queue.inputs tells which have ended.
progress: as queue.progress. If the job is to be cancelled, it is cancelled instead. Errors: as queue.complete;
22023, P0002 and 42501 as queue.enqueue raises them for after; 22023 until is infinite.';

-- For: consume, observe.
CREATE FUNCTION queue.inputs(id bigint)
    RETURNS TABLE (job_id bigint, queue_name text, task text, state text, result jsonb, error text,
                   finished_at timestamptz)
    LANGUAGE c STABLE ROWS 10 AS 'MODULE_PATHNAME', 'pg_queue_inputs';
COMMENT ON FUNCTION queue.inputs IS
'The outcomes of the jobs that the attempt''s job was after, and of the members of its flow. Results and errors are
shown only for queues that the user may consume from or observe. If a job is no longer known, all columns but its id
are null. Errors: 22023 not an attempt''s id, P0002 there is no such attempt, 42501 the user has neither consume nor
observe on its queue.';

-- For: consume.
CREATE FUNCTION queue.step(id bigint, name text) RETURNS jsonb LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_step';
COMMENT ON FUNCTION queue.step IS
'The result of a step that this attempt, or an earlier attempt of the job, has stored by queue.step_done; NULL: the
step is not done. Errors: as queue.complete; 22023 the name is empty or has more than 1024 bytes.';

-- For: consume.
CREATE FUNCTION queue.step_done(id bigint, name text, result jsonb DEFAULT 'null') RETURNS void
    LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_step_done';
COMMENT ON FUNCTION queue.step_done IS
'Stores that a step is done, and its result, for this attempt and the next ones of the job. It takes effect when the
transaction commits. Errors: as queue.step.';

-- Managing jobs -----------------------------------------------------------------------------------------

-- For: manage.
CREATE FUNCTION queue.cancel(job_id bigint, reason text DEFAULT NULL, force boolean DEFAULT false)
    RETURNS text LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_cancel';
COMMENT ON FUNCTION queue.cancel IS
'Cancels a waiting job. A running job is asked to stop (returns ''cancelling''): its worker sees is_cancelled at its
next extend, and the job is not retried. With force, a running job ends now, and its worker has lost the lease.
Errors: P0002 there is no such job, 55000 it has ended, 55006 another open transaction is changing it, 22023 not a
job''s id.';

-- For: manage.
CREATE FUNCTION queue.retry(job_id bigint, run_at timestamptz DEFAULT NULL)
    RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_retry';
COMMENT ON FUNCTION queue.retry IS
'An ended job runs once more, with attempts counted from 1; a waiting job runs now. If run_at is given, it runs then.
Errors: P0002 there is no such job, 55000 it is running, 55006 another open transaction is changing it or holds its
key, 23505 another living job has its key, 22023 not a job''s id.';

-- For: manage.
CREATE FUNCTION queue.retry_many(job_ids bigint[], run_at timestamptz DEFAULT NULL)
    RETURNS SETOF queue.answer LANGUAGE c ROWS 100 AS 'MODULE_PATHNAME', 'pg_queue_retry_jobs';
COMMENT ON FUNCTION queue.retry_many IS
'queue.retry for many jobs; queue.search finds their ids. Returns the outcome of each: retried; or missing, busy,
refused (it is running, or its key is taken), full. Errors: 22023 not a job''s id, 42501.';

-- For: manage.
CREATE FUNCTION queue.cancel_many(job_ids bigint[], reason text DEFAULT NULL, force boolean DEFAULT false)
    RETURNS SETOF queue.answer LANGUAGE c ROWS 100 AS 'MODULE_PATHNAME', 'pg_queue_cancel_jobs';
COMMENT ON FUNCTION queue.cancel_many IS
'queue.cancel for many jobs; queue.search finds their ids. Returns the outcome of each: cancelled, cancelling; or
missing, busy, refused (it has ended), full. Errors: 22023 not a job''s id, 42501.';

-- For: manage.
CREATE FUNCTION queue.reprioritize(job_id bigint, priority integer)
    RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_reprioritize';
COMMENT ON FUNCTION queue.reprioritize IS
    'Gives a waiting job another priority. Errors: as queue.retry; also 55000 if the job has ended.';

-- For: manage.
CREATE FUNCTION queue.reprioritize_many(job_ids bigint[], priority integer)
    RETURNS SETOF queue.answer LANGUAGE c ROWS 100 AS 'MODULE_PATHNAME', 'pg_queue_reprioritize_jobs';
COMMENT ON FUNCTION queue.reprioritize_many IS
'queue.reprioritize for many jobs. Returns the outcome of each: reprioritized; or missing, busy, refused (it does not
wait), full. Errors: 22023 not a job''s id, 42501.';

-- For: manage.
CREATE FUNCTION queue.reschedule(job_id bigint, run_at timestamptz)
    RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_reschedule';
COMMENT ON FUNCTION queue.reschedule IS
    'Lets a waiting job run at another time. Errors: as queue.retry; also 55000 if the job has ended.';

-- For: manage.
CREATE FUNCTION queue.reschedule_many(job_ids bigint[], run_at timestamptz)
    RETURNS SETOF queue.answer LANGUAGE c ROWS 100 AS 'MODULE_PATHNAME', 'pg_queue_reschedule_jobs';
COMMENT ON FUNCTION queue.reschedule_many IS
'queue.reschedule for many jobs. Returns the outcome of each: rescheduled; or missing, busy, refused (it does not
wait), full. Errors: 22023 not a job''s id, or the time is infinite; 42501.';

-- For: manage.
CREATE FUNCTION queue.forget(job_id bigint)
    RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_forget';
COMMENT ON FUNCTION queue.forget IS
'Erases payload, headers, result, progress and errors of an ended job, for privacy. The next VACUUM of the log tables
removes the old versions of its rows. Errors: P0002 there is no such job, 55000 it has not ended, 55006 another open
transaction is in the way, 25001 at REPEATABLE READ.';

-- Looking and maintenance -------------------------------------------------------------------------------

-- For: manage '*'.
CREATE FUNCTION queue.maintain() RETURNS TABLE (duty text, did bigint)
    LANGUAGE c ROWS 10 AS 'MODULE_PATHNAME', 'pg_queue_maintain';
COMMENT ON FUNCTION queue.maintain IS
    'Runs one tick of the background worker in the foreground. Returns each duty and how much it did.';

-- For: observe.
CREATE FUNCTION queue_internal.running_now()
    RETURNS TABLE (id bigint, lane integer, state text, pid integer, lease_expires_at timestamptz,
                   is_cancelled boolean)
    LANGUAGE c ROWS 100 AS 'MODULE_PATHNAME', 'pg_queue_running_now';
COMMENT ON FUNCTION queue_internal.running_now IS
    'The attempts that are taken, as shared memory knows them. For the views.';

-- For: observe.
CREATE FUNCTION queue_internal.lease_expires_at(id bigint) RETURNS timestamptz
    LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_lease_expires_at';
COMMENT ON FUNCTION queue_internal.lease_expires_at IS
    'When the lease of a running attempt expires; null if shared memory does not know. For the views.';

-- For: observe.
CREATE FUNCTION queue_internal.tallies(walk boolean DEFAULT false)
    RETURNS TABLE (lane integer, ready bigint, scheduled bigint, retrying bigint, running bigint, dead bigint,
                   oldest_ready_at timestamptz, enqueued bigint, claimed bigint, completed bigint, failed bigint,
                   timed_out bigint, died bigint, is_counted boolean, expired bigint)
    LANGUAGE c ROWS 100 AS 'MODULE_PATHNAME', 'pg_queue_tallies';
COMMENT ON FUNCTION queue_internal.tallies IS
'The numbers of queue.stats, by lane. is_counted: they come from shared memory. walk => true always reads the logs.
A row without a lane says that the numbers are there: there is none while a session keeps a lock on one of the logs.
For the views.';

-- For: observe.
CREATE FUNCTION queue_internal.live()
    RETURNS TABLE (id bigint, job_id bigint, enqueued_at timestamptz, lane integer, priority integer, attempt integer,
                   max_attempts integer, run_at timestamptz, payload_of bigint, headers jsonb, group_key text,
                   unique_key text, last_error text,
                   progress jsonb, claimed_at timestamptz, lease_us bigint, pid integer, claim_kind "char", worker text,
                   ended_at timestamptz, outcome "char", next_id bigint, result jsonb, error text, is_newest boolean,
                   flow bigint, task text, after bigint[], upon "char", own_flow jsonb,
                   start_by timestamptz, timing jsonb)
    LANGUAGE c STABLE ROWS 100000 AS 'MODULE_PATHNAME', 'pg_queue_live';
COMMENT ON FUNCTION queue_internal.live IS
    'All attempts in the segments, each with its claim and outcome. For the views.';

CREATE FUNCTION queue_internal.life_of(job_id bigint)
    RETURNS TABLE (id bigint, of_job bigint, enqueued_at timestamptz, lane integer, priority integer, attempt integer,
                   max_attempts integer,
                   run_at timestamptz, payload jsonb, headers jsonb, group_key text, unique_key text, last_error text,
                   progress jsonb, claimed_at timestamptz, lease_us bigint, pid integer, claim_kind "char", worker text,
                   ended_at timestamptz, outcome "char", next_id bigint, result jsonb, error text, is_newest boolean,
                   flow bigint, task text, after bigint[], upon "char", own_flow jsonb,
                   start_by timestamptz, timing jsonb)
    LANGUAGE c STABLE ROWS 2 AS 'MODULE_PATHNAME', 'pg_queue_life_of';
COMMENT ON FUNCTION queue_internal.life_of IS
'All attempts of a job, each with its claim and outcome, in the segments and in history. It uses indexes. Errors:
22023 not a job''s id.';

-- For: consume, observe.
CREATE FUNCTION queue.job_steps(job_id bigint) RETURNS TABLE (name text, result jsonb)
    LANGUAGE c STABLE ROWS 10 AS 'MODULE_PATHNAME', 'pg_queue_job_steps';
COMMENT ON FUNCTION queue.job_steps IS
'The steps that a job has done. Errors: P0002 there is no such job, 42501 the user has neither observe nor consume on
its queue, 22023 not a job''s id.';

-- For: observe.
CREATE FUNCTION queue.text_length(value jsonb) RETURNS bigint IMMUTABLE PARALLEL SAFE
    LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_text_length';
COMMENT ON FUNCTION queue.text_length IS
'How many bytes a JSON value has as text, without writing the text. A value that is stored small can be long: see
pg_queue.max_payload.';

-- For: observe.
CREATE FUNCTION queue_internal.payload_of(id bigint) RETURNS jsonb STABLE
    LANGUAGE c COST 20 AS 'MODULE_PATHNAME', 'pg_queue_payload_of';
COMMENT ON FUNCTION queue_internal.payload_of IS
    'The payload in an attempt''s row; null if the row is gone. It uses an index. For the views.';

CREATE FUNCTION queue_internal.kick() RETURNS void
    LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_kick';
COMMENT ON FUNCTION queue_internal.kick IS
    'Lets the launcher check this database when the transaction commits. Used by the install script.';
