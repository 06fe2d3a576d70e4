\echo Use "ALTER EXTENSION pg_queue UPDATE TO '0.4.0'" to load this file. \quit

-- Made by `make generate` from sql/schema and the transition: do not edit.

SET LOCAL search_path TO pg_catalog, pg_temp;

DO $library$
BEGIN
    PERFORM queue_internal.assert_loaded();
    IF string_to_array(current_setting('pg_queue.library_version'), '.')::integer[] < '{0,4,0}'::integer[] THEN
        RAISE EXCEPTION 'the server has loaded a library of pg_queue that is older than 0.4.0'
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Restart the server, then run ALTER EXTENSION pg_queue UPDATE again.';
    END IF;
END
$library$;

DO $locks$
DECLARE
    before text := current_setting('lock_timeout');
BEGIN
    LOOP
        BEGIN
            SET LOCAL lock_timeout = '100ms';
            LOCK TABLE queue.job_life, queue.jobs, queue.attempts IN ACCESS EXCLUSIVE MODE;
            EXIT;
        EXCEPTION WHEN lock_not_available THEN
            PERFORM pg_sleep(0.2);
        END;
    END LOOP;
    PERFORM set_config('lock_timeout', before, true);
END
$locks$;

-- One moment has one name: when a worker claimed the attempt.
ALTER VIEW queue.job_life RENAME COLUMN started_at TO claimed_at;
ALTER VIEW queue.jobs RENAME COLUMN started_at TO claimed_at;
ALTER TYPE queue.listed_job RENAME ATTRIBUTE started_at TO claimed_at;

-- Verbs for many take ids, and say what became of each.
DROP FUNCTION queue.complete_many(bigint[]);
DROP FUNCTION queue.fail_many(bigint[], text, interval, boolean);
DROP FUNCTION queue.release_many(bigint[], interval);
DROP FUNCTION queue.extend_many(bigint[], interval);
DROP FUNCTION queue.cancel_many(text, jsonpath, text[], text, integer, integer, jsonb);
DROP FUNCTION queue.retry_many(text, jsonpath, text[], timestamptz, integer, integer, jsonb);
DROP FUNCTION queue.reprioritize_many(text, integer, jsonpath, text[], integer, integer, jsonb);
DROP FUNCTION queue.retry_dead(text, text, integer);

-- Columns of tables, and of views that are for other views, had the words of others of that name, unless a statement
-- explains them: those named below. They are not for users.
DO $words$
DECLARE
    relation regclass;
    attribute name;
BEGIN
    FOR relation, attribute IN
        SELECT a.attrelid::regclass, a.attname FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid
        WHERE c.relnamespace = 'queue'::regnamespace AND a.attnum > 0 AND NOT a.attisdropped
          AND (regexp_replace(c.relname, '_\d$', '') || '.' || a.attname) <> ALL ('{
              attempt.after,attempt.flow,attempt.priority,attempt.run_at,attempt.task,
              group_start.claimed,group_start.minute,history.flow,history.own_flow,history.task,
              rollup.claimed,rollup.died,rollup.failed,rollup.minute,rollup.timed_out,
              schedule.headers,schedule.payload,topic.created_at}')
          AND (c.relkind = 'r' OR c.relname IN ('life', 'job_life', 'observed', 'throughput_part'))
          AND (col_description(a.attrelid, a.attnum) = replace(a.attname, '_', ' ') OR EXISTS (
              SELECT FROM pg_attribute AS b JOIN pg_class AS d ON d.oid = b.attrelid
              WHERE d.relnamespace = 'queue'::regnamespace AND d.relkind IN ('v', 'c') AND d.oid <> c.oid
                AND b.attname = a.attname
                AND col_description(b.attrelid, b.attnum) = col_description(a.attrelid, a.attnum)))
    LOOP
        EXECUTE format('COMMENT ON COLUMN %s.%I IS NULL', relation, attribute);
    END LOOP;
END
$words$;

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
CREATE FUNCTION queue.complete_many(ids bigint[])
    RETURNS SETOF queue.answer LANGUAGE c ROWS 100 AS 'MODULE_PATHNAME', 'pg_queue_complete_many';

COMMENT ON FUNCTION queue.complete_many IS
'The attempts succeeded. Returns what became of each: completed; lost, busy, or refused (its stage is not the last).
Errors: 22023 not an attempt''s id.';

-- For: consume.
CREATE FUNCTION queue.fail_many(ids bigint[], error text, retry_in interval DEFAULT NULL, fatal boolean DEFAULT false)
    RETURNS SETOF queue.answer LANGUAGE c ROWS 100 AS 'MODULE_PATHNAME', 'pg_queue_fail_many';

COMMENT ON FUNCTION queue.fail_many IS
'The attempts failed with the same error. Returns what became of each: '
'failed (and there is a next one), dead, cancelled; lost or busy.
Errors: as queue.fail for the other arguments, 22023 not an attempt''s id.';

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
CREATE FUNCTION queue.extend_many(ids bigint[], lease interval DEFAULT NULL)
    RETURNS TABLE (id bigint, outcome text, reason text, lease_expires_at timestamptz, is_cancelled boolean)
    LANGUAGE c ROWS 100 AS 'MODULE_PATHNAME', 'pg_queue_extend_many';

COMMENT ON FUNCTION queue.extend_many IS
'Heartbeat for many. Returns what became of each: '
'extended, with until when its lease runs and whether the job is to be cancelled; lost
or busy (an open transaction is ending it), and why. Errors: 22023.';

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
CREATE FUNCTION queue.reprioritize_many(job_ids bigint[], priority integer)
    RETURNS SETOF queue.answer LANGUAGE c ROWS 100 AS 'MODULE_PATHNAME', 'pg_queue_reprioritize_jobs';

COMMENT ON FUNCTION queue.reprioritize_many IS
'queue.reprioritize for many. Returns what became of each: reprioritized; '
'missing, busy, refused (it does not wait), full. Errors: 22023
not a job''s id, 42501.';

-- For: manage.
CREATE FUNCTION queue.reschedule_many(job_ids bigint[], run_at timestamptz)
    RETURNS SETOF queue.answer LANGUAGE c ROWS 100 AS 'MODULE_PATHNAME', 'pg_queue_reschedule_jobs';

COMMENT ON FUNCTION queue.reschedule_many IS
'queue.reschedule for many. Returns what became of each: rescheduled; missing, busy, refused (it does not wait), full. '
'Errors: 22023 not
a job''s id or a time that is infinite, 42501.';

COMMENT ON COLUMN queue.throughput.stage IS 'The stage; NULL in a queue without stages.';

COMMENT ON COLUMN queue.throughput.enqueued IS 'Jobs enqueued in this minute, in the stage in which they came in.';

COMMENT ON COLUMN queue.throughput.claimed IS 'Attempts that workers claimed in this minute.';

COMMENT ON COLUMN queue.throughput.completed IS 'Attempts completed or advanced in this minute.';

COMMENT ON COLUMN queue.throughput.failed IS 'Attempts that their worker failed in this minute.';

COMMENT ON COLUMN queue.throughput.died IS 'Attempts that were a job''s last and ended badly in this minute.';

COMMENT ON COLUMN queue.throughput.wait_mean IS
    'How long the attempts claimed in this minute had been ready, on average; NULL: none.';

COMMENT ON COLUMN queue.throughput.run_mean IS
    'How long the attempts completed, advanced, failed or timed out in this minute had run, on average; NULL: none.';

COMMENT ON COLUMN queue.topics.dropped IS 'Jobs that were not made, since their queue was full (on_full drop).';

COMMENT ON COLUMN queue.bindings.filter IS 'The jsonpath that has to be true; NULL: none.';

COMMENT ON COLUMN queue.bindings.binding_id IS 'Of several of a queue that match, the smallest gives the options.';

COMMENT ON COLUMN queue.schedules.queue_name IS
    'The queue it enqueues into, or the topic that it publishes on; NULL when that is gone.';

COMMENT ON COLUMN queue.schedules.cron IS 'The expression; NULL where every is given.';

COMMENT ON COLUMN queue.schedules.every IS 'The time from slot to slot; NULL where cron is given.';

COMMENT ON COLUMN queue.schedules.next_run_at IS
    'The first slot that was not dealt with, in the past while it is overdue; NULL: none is left, or it is paused.';

COMMENT ON COLUMN queue.schedules.last_job_id IS 'That job; not one of queue.run_schedule.';

COMMENT ON COLUMN queue.schedules.priority IS 'The priority of its jobs.';

COMMENT ON COLUMN queue.schedules.max_attempts IS
    'After how many attempts a job of it is dead; NULL: as its queue says.';

COMMENT ON COLUMN queue.schedules.group_key IS 'The group of its jobs; NULL: none.';

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

-- For: observe.
CREATE OR REPLACE VIEW queue.attempts AS
SELECT l.id, l.job_id, o.queue_name, l.attempt,
       queue_internal.attempt_state(
           l.outcome, l.claimed_at IS NOT NULL, o.is_held, l.run_at, l.last_error IS NOT NULL) AS state,
       CASE WHEN l.claim_kind <> 's' THEN l.claimed_at END AS claimed_at,
       l.ended_at AS finished_at, l.worker, l.error, o.stage
FROM queue.life AS l
JOIN queue.observed AS o ON o.lane = l.lane;

COMMENT ON COLUMN queue.attempts.state IS
    'held, scheduled, ready, retrying, running, or how it ended: completed, failed (and there is a next), dead, '
    'timed_out, released, suspended (it waits for other jobs), advanced (to another stage), cancelled, skipped, '
    'superseded (by one with another priority or time, or when it was held and is released).';

COMMENT ON COLUMN queue.attempts.error IS 'Why it failed, timed out, was cancelled or skipped.';

COMMENT ON COLUMN queue.attempts.stage IS 'The stage it is of; NULL in a queue without stages.';

CREATE OR REPLACE VIEW queue.job_life AS
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

COMMENT ON COLUMN queue.job_life.claimed_at IS 'When a worker claimed the newest attempt.';

-- For: observe.
CREATE OR REPLACE VIEW queue.jobs AS
SELECT job_id, queue_name, stage, state, payload, priority, attempt, max_attempts, run_at, enqueued_at, claimed_at,
       finished_at, lease_expires_at, worker, error, result, progress, unique_key, group_key, headers,
       flow, task, after, upon
FROM queue.job_life;

COMMENT ON COLUMN queue.jobs.stage IS 'The stage it is at; NULL in a queue without stages, and while it is held.';

COMMENT ON COLUMN queue.jobs.payload IS
    'What the producer gave. It is read when the row is: at the end of a cursor, or of a look at very many jobs, '
    'it can be NULL because nothing of the job is kept any more.';

COMMENT ON COLUMN queue.jobs.attempt IS 'Which run it is at, from 1 in each stage; a release does not count.';

COMMENT ON COLUMN queue.jobs.max_attempts IS 'After how many runs it is dead: its own, else the queue''s.';

COMMENT ON COLUMN queue.jobs.run_at IS 'Not before this time; NULL: at once.';

COMMENT ON COLUMN queue.jobs.claimed_at IS 'When a worker claimed the newest attempt.';

COMMENT ON COLUMN queue.jobs.finished_at IS 'When the newest attempt ended; NULL while the job lives.';

COMMENT ON COLUMN queue.jobs.lease_expires_at IS 'Until when the worker has it; NULL unless it runs.';

COMMENT ON COLUMN queue.jobs.unique_key IS 'The key it has, or had.';

COMMENT ON COLUMN queue.jobs.upon IS
    'For what it waits, or waited: completed, failed, ended, overdue; NULL: for no other job.';

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

-- For: observe.
CREATE OR REPLACE FUNCTION queue.search(
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

COMMENT ON COLUMN queue.flows.job_id IS 'The flow.';

COMMENT ON COLUMN queue.flows.queue_name IS 'Its queue.';

COMMENT ON COLUMN queue.flows.task IS 'Its name in the flow that it is a member of.';

COMMENT ON COLUMN queue.flows.state IS 'As in queue.jobs.';

COMMENT ON COLUMN queue.flows.share_ended IS 'The share of its members that have ended, 0 to 1; NULL: it has none.';

COMMENT ON COLUMN queue.stats.stage IS 'The stage; NULL in a queue without stages.';

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

COMMENT ON COLUMN queue.errors.first_seen IS
    'When one of these jobs first failed with this error, of the attempts that are kept; NULL: none is.';

COMMENT ON COLUMN queue.errors.last_seen IS 'When one of these jobs last failed with this error; NULL as first_seen.';

COMMENT ON COLUMN queue.workers.pid IS
    'The process that claimed; after a restart of the server, a number from before it.';

COMMENT ON COLUMN queue.workers.client_addr IS
    'Where it is connected from; NULL for a local socket, or when it is gone.';

COMMENT ON COLUMN queue.workers.client_port IS 'The port there, -1 for a local socket; NULL when it is gone.';

COMMENT ON COLUMN queue.workers.oldest_claim IS 'How long ago that was.';

COMMENT ON COLUMN queue.executors.job_id IS 'The job that it runs; NULL: none.';

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

DO $each_view$
DECLARE
    relation regclass;
BEGIN
    FOR relation IN
        SELECT oid FROM pg_catalog.pg_class
        WHERE relnamespace = 'queue'::regnamespace AND relkind = 'v'
          AND NOT EXISTS (SELECT FROM pg_catalog.pg_trigger WHERE tgrelid = pg_class.oid AND tgname = 'read_only')
        ORDER BY relname
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
$each_view$;

-- On each table, whatever is granted, also to pg_write_all_data. The tables of history that are made later get it as
-- well.
DO $each_table$
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
$each_table$;

-- No role may do anything with what this transaction has made but its owner: neither by ALTER DEFAULT PRIVILEGES of the
-- role that runs this script, nor as PUBLIC. What was there before keeps its grants. A member of the extension is new
-- if the row that says so is.
DO $each_grant$
DECLARE
    opened record;
BEGIN
    FOR opened IN
        WITH made AS (
            SELECT classid, objid FROM pg_catalog.pg_depend
            WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e' AND age(xmin) <= 0
              AND refobjid = (SELECT oid FROM pg_catalog.pg_extension WHERE extname = 'pg_queue')
        )
        SELECT c.oid::regclass::text AS object, CASE WHEN c.relkind = 'S' THEN 'SEQUENCE' ELSE 'TABLE' END AS kind,
               CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END AS grantee
        FROM made JOIN pg_catalog.pg_class AS c ON made.classid = 'pg_class'::regclass AND c.oid = made.objid,
             pg_catalog.aclexplode(c.relacl) AS a
        WHERE a.grantee <> c.relowner
        UNION
        SELECT p.oid::regprocedure::text, 'ROUTINE',
               CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END
        FROM made JOIN pg_catalog.pg_proc AS p ON made.classid = 'pg_proc'::regclass AND p.oid = made.objid,
             pg_catalog.aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) AS a
        WHERE a.grantee <> p.proowner
        UNION
        SELECT t.oid::regtype::text, 'TYPE',
               CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END
        FROM made JOIN pg_catalog.pg_type AS t ON made.classid = 'pg_type'::regclass AND t.oid = made.objid,
             pg_catalog.aclexplode(t.typacl) AS a
        WHERE a.grantee NOT IN (t.typowner, 0)
        UNION
        SELECT quote_ident(n.nspname), 'SCHEMA',
               CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END
        FROM made JOIN pg_catalog.pg_namespace AS n ON made.classid = 'pg_namespace'::regclass AND n.oid = made.objid,
             pg_catalog.aclexplode(n.nspacl) AS a
        WHERE a.grantee <> n.nspowner
    LOOP
        EXECUTE format('REVOKE ALL ON %s %s FROM %s', opened.kind, opened.object, opened.grantee);
    END LOOP;
END
$each_grant$;

-- For the roles to whom something was granted, on what is new.
SELECT queue_internal.derive_grants();
