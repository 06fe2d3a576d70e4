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
            LOCK TABLE queue.job_life, queue.jobs, queue.queue, queue.rollup,
                queue.total, queue.attempt_0, queue.attempt_1, queue.attempt_2,
                queue.attempt_3, queue.attempt_4, queue.attempt_5, queue.attempt_6,
                queue.attempt_7, queue.attempt_8, queue.attempt_9, queue.throughput_part,
                queue.throughput, queue.activity_part, queue.life, queue.attempts,
                queue.flows, queue.queues, queue.stats, queue.metric IN ACCESS EXCLUSIVE MODE;
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

-- Jobs have a time by which they must start.
-- These functions have other arguments or results now. Views read some of them, and roles may have grants on others, so
-- they stay until the new ones are there.
ALTER FUNCTION queue.create(
    text, integer, interval, text, interval, interval, float8, interval, interval, text, integer, integer, boolean,
    integer, interval, bigint, text[], boolean, boolean, text, text, text, jsonb, integer) RENAME TO former_create;
ALTER FUNCTION queue.former_create(
    text, integer, interval, text, interval, interval, float8, interval, interval, text, integer, integer, boolean,
    integer, interval, bigint, text[], boolean, boolean, text, text, text, jsonb, integer) SET SCHEMA queue_internal;
ALTER FUNCTION queue.alter(
    text, integer, interval, text, interval, interval, float8, interval, interval, text, integer, integer, boolean,
    integer, interval, bigint, text[], boolean, text[], text, text, text, jsonb, integer) RENAME TO former_alter;
ALTER FUNCTION queue.former_alter(
    text, integer, interval, text, interval, interval, float8, interval, interval, text, integer, integer, boolean,
    integer, interval, bigint, text[], boolean, text[], text, text, text, jsonb, integer) SET SCHEMA queue_internal;
ALTER FUNCTION queue.claim(text, integer, interval, interval, text, text, boolean, bigint[]) RENAME TO former_claim;
ALTER FUNCTION queue.former_claim(text, integer, interval, interval, text, text, boolean, bigint[])
    SET SCHEMA queue_internal;
ALTER FUNCTION queue.claim_any(text[], integer, interval, interval, text, text, boolean, bigint[])
    RENAME TO former_claim_any;
ALTER FUNCTION queue.former_claim_any(text[], integer, interval, interval, text, text, boolean, bigint[])
    SET SCHEMA queue_internal;
ALTER FUNCTION queue.suspend(bigint, bigint[], text, jsonb) RENAME TO former_suspend;
ALTER FUNCTION queue.former_suspend(bigint, bigint[], text, jsonb) SET SCHEMA queue_internal;
ALTER FUNCTION queue.throughput_by(interval, timestamptz) RENAME TO former_throughput_by;
ALTER FUNCTION queue.former_throughput_by(interval, timestamptz) SET SCHEMA queue_internal;
ALTER FUNCTION queue_internal.live() RENAME TO former_live;
ALTER FUNCTION queue_internal.life_of(bigint) RENAME TO former_life_of;
ALTER FUNCTION queue_internal.tallies(boolean) RENAME TO former_tallies;
ALTER FUNCTION queue_internal.minutes_now() RENAME TO former_minutes_now;
ALTER FUNCTION queue_internal.throughput_live() RENAME TO former_throughput_live;
ALTER TABLE queue.queue ADD COLUMN start_within interval;
ALTER TABLE queue.rollup ADD COLUMN expired bigint;
ALTER TABLE queue.total ADD COLUMN expired bigint;
ALTER TYPE queue.listed_job ADD ATTRIBUTE start_by timestamptz;
ALTER TYPE queue.activity_period ADD ATTRIBUTE expired bigint;
ALTER TABLE queue.attempt_0 ADD COLUMN start_by timestamptz;
CREATE INDEX attempt_0_start_by_idx ON queue.attempt_0 (start_by, id)
    WITH (deduplicate_items = off) WHERE start_by < 'infinity';
ALTER TABLE queue.attempt_1 ADD COLUMN start_by timestamptz;
CREATE INDEX attempt_1_start_by_idx ON queue.attempt_1 (start_by, id)
    WITH (deduplicate_items = off) WHERE start_by < 'infinity';
ALTER TABLE queue.attempt_2 ADD COLUMN start_by timestamptz;
CREATE INDEX attempt_2_start_by_idx ON queue.attempt_2 (start_by, id)
    WITH (deduplicate_items = off) WHERE start_by < 'infinity';
ALTER TABLE queue.attempt_3 ADD COLUMN start_by timestamptz;
CREATE INDEX attempt_3_start_by_idx ON queue.attempt_3 (start_by, id)
    WITH (deduplicate_items = off) WHERE start_by < 'infinity';
ALTER TABLE queue.attempt_4 ADD COLUMN start_by timestamptz;
CREATE INDEX attempt_4_start_by_idx ON queue.attempt_4 (start_by, id)
    WITH (deduplicate_items = off) WHERE start_by < 'infinity';
ALTER TABLE queue.attempt_5 ADD COLUMN start_by timestamptz;
CREATE INDEX attempt_5_start_by_idx ON queue.attempt_5 (start_by, id)
    WITH (deduplicate_items = off) WHERE start_by < 'infinity';
ALTER TABLE queue.attempt_6 ADD COLUMN start_by timestamptz;
CREATE INDEX attempt_6_start_by_idx ON queue.attempt_6 (start_by, id)
    WITH (deduplicate_items = off) WHERE start_by < 'infinity';
ALTER TABLE queue.attempt_7 ADD COLUMN start_by timestamptz;
CREATE INDEX attempt_7_start_by_idx ON queue.attempt_7 (start_by, id)
    WITH (deduplicate_items = off) WHERE start_by < 'infinity';
ALTER TABLE queue.attempt_8 ADD COLUMN start_by timestamptz;
CREATE INDEX attempt_8_start_by_idx ON queue.attempt_8 (start_by, id)
    WITH (deduplicate_items = off) WHERE start_by < 'infinity';
ALTER TABLE queue.attempt_9 ADD COLUMN start_by timestamptz;
CREATE INDEX attempt_9_start_by_idx ON queue.attempt_9 (start_by, id)
    WITH (deduplicate_items = off) WHERE start_by < 'infinity';

COMMENT ON SCHEMA queue IS 'Job queue: functions for producers and workers, views of jobs.';

COMMENT ON SCHEMA queue_internal IS
    'Functions that the views of schema queue and the library of pg_queue call. It may change with any version.';

COMMENT ON FUNCTION queue_internal.assert_loaded() IS
    'Raises 55000, with the line to add, if pg_queue is not in shared_preload_libraries.';

COMMENT ON COLUMN queue.queue.procedure_id IS
    'The oid of the procedure. An overload, or a new procedure of the same name, is not called.';

COMMENT ON COLUMN queue.queue.procedure_owner IS
    'The owner of the procedure when the option was set. If the procedure belongs to another role, it is not called.';

COMMENT ON COLUMN queue.queue.settings_by IS
    'The role that set settings. Settings that affect the meaning of a command count only for jobs of roles to which '
    'it may SET ROLE.';

COMMENT ON COLUMN queue.queue.run_as_id IS 'The oid of that role. A new role of the same name does not count.';

COMMENT ON TABLE queue.queue IS
    'One row for each queue: its settings. Change it only through queue.create, alter, drop, pause and resume.';

COMMENT ON COLUMN queue.queue.queue_id IS
    'Never used twice, so that a queue that was dropped and created again never meets its old rows.';

COMMENT ON TABLE queue.lane IS 'A lane is a queue (stage is null) or one of its stages. Attempts wait in lanes.';

COMMENT ON COLUMN queue.lane.is_held IS 'True for the queue''s lane of held jobs. Nothing is claimed from it.';

COMMENT ON TABLE queue.timeline IS
    'WAL timelines on which ids were assigned. After a promotion, on a new timeline, the counter of ids jumps ahead. '
    'Not dumped.';

COMMENT ON COLUMN queue.timeline.system IS
    'The server''s system identifier: other servers have timelines with the same numbers.';

COMMENT ON SEQUENCE queue.id_seq IS 'The counts from which ids are made, assigned in blocks.';

-- Apart from the tables, so that an upgrade renews the comments, too.
DO $each_log$
DECLARE
    n integer;
BEGIN
    FOR n IN 0..9 LOOP
        EXECUTE format($sql$
            COMMENT ON TABLE queue.attempt_%1$s IS 'Log, segment %1$s: a job may run.';
            COMMENT ON TABLE queue.parked_%1$s IS
                'Always empty. Its index has the attempts of segment %1$s that had to wait for others of their group.';
            COMMENT ON TABLE queue.claim_%1$s IS 'Log, segment %1$s: an attempt was taken.';
            COMMENT ON TABLE queue.outcome_%1$s IS 'Log, segment %1$s: an attempt ended.';
            COMMENT ON TABLE queue.note_%1$s IS
                'Log, segment %1$s: what must survive a crash about a running attempt, and the predecessors of a held '
                'one.';
            COMMENT ON COLUMN queue.attempt_%1$s.id IS
                'The attempt. The low four bits are the segment in which it was made.';
            COMMENT ON COLUMN queue.attempt_%1$s.job_id IS 'The job. The low four bits are 15.';
            COMMENT ON COLUMN queue.attempt_%1$s.enqueued_at IS 'When the job was enqueued.';
            COMMENT ON COLUMN queue.attempt_%1$s.lane IS
                'The queue or stage, see queue.lane. 0: the row only keeps the payload, for other rows that refer to '
                'it.';
            COMMENT ON COLUMN queue.attempt_%1$s.priority IS 'Smaller runs first.';
            COMMENT ON COLUMN queue.attempt_%1$s.attempt IS 'The number of this run, from 1; a release does not count.';
            COMMENT ON COLUMN queue.attempt_%1$s.max_attempts IS 'Null: the queue''s.';
            COMMENT ON COLUMN queue.attempt_%1$s.run_at IS
                'It does not run before this time; null: it may run immediately.';
            COMMENT ON COLUMN queue.attempt_%1$s.group_hash IS
                'The hash of the group''s key; null if it is in no group.';
            COMMENT ON COLUMN queue.attempt_%1$s.payload_of IS
                'The attempt whose row holds the payload; null: this one.';
            COMMENT ON COLUMN queue.attempt_%1$s.lease IS 'Null: the queue''s.';
            COMMENT ON COLUMN queue.attempt_%1$s.last_error IS 'How the attempt before this one failed.';
            COMMENT ON COLUMN queue.attempt_%1$s.progress IS
                'The progress that the attempt before this one had reported.';
            COMMENT ON COLUMN queue.attempt_%1$s.unique_key IS 'At most one living job of the queue has this key.';
            COMMENT ON COLUMN queue.attempt_%1$s.version IS
                'The version that was enqueued under the key, as the producer counts.';
            COMMENT ON COLUMN queue.attempt_%1$s.asked IS
                'The number of the call under the key that gave this payload; ascending. Null: the call that made the '
                'attempt.';
            COMMENT ON COLUMN queue.attempt_%1$s.flow IS 'The job whose flow it is a member of.';
            COMMENT ON COLUMN queue.attempt_%1$s.task IS 'Its name in the flow.';
            COMMENT ON COLUMN queue.attempt_%1$s.after IS 'Its predecessors, also after it was released.';
            COMMENT ON COLUMN queue.attempt_%1$s.upon IS 'The condition on which it waits, or waited: as in the notes.';
            COMMENT ON COLUMN queue.attempt_%1$s.steps IS
                'The steps that earlier attempts have done: a field for each, with its result.';
            COMMENT ON COLUMN queue.attempt_%1$s.run_as IS
                'The role that wrote the payload as a command; null: the payload is data.';
            COMMENT ON COLUMN queue.attempt_%1$s.run_as_id IS 'The oid of that role.';
            COMMENT ON COLUMN queue.attempt_%1$s.own_flow IS
                'Makes the job a flow, which waits for its members: runs, fail_fast, open, and the role that made it.';
            COMMENT ON COLUMN queue.attempt_%1$s.start_by IS
                'If no worker has claimed it before this time, it expires. Infinity: it never does, although its queue '
                'has a start_within. Null: it never does, and a held one gets the time at its release.';
            COMMENT ON COLUMN queue.parked_%1$s.lane IS 'The lane of the attempt.';
            COMMENT ON COLUMN queue.parked_%1$s.group_hash IS 'The hash of the attempt''s group.';
            COMMENT ON COLUMN queue.parked_%1$s.priority IS 'The priority of the attempt.';
            COMMENT ON COLUMN queue.parked_%1$s.job_id IS 'The job of the attempt.';
            COMMENT ON COLUMN queue.claim_%1$s.kind IS
                'w: a worker; b: a worker, bound to its connection; s: the system, which ended it before it ran; m: '
                'not a claim, the attempt now waits in another segment.';
            COMMENT ON COLUMN queue.outcome_%1$s.outcome IS
                'c completed, f failed, d dead, t timed out, r released, w suspended, a advanced, x cancelled, s '
                'superseded, k skipped, e expired; m: not an end, the attempt now runs in another segment.';
            COMMENT ON COLUMN queue.outcome_%1$s.next_id IS 'The attempt that goes on with the job.';
            COMMENT ON COLUMN queue.note_%1$s.kind IS
                'p progress, c cancel requested, l a lease longer than the claim''s, r another run requested, s that '
                'run was made, a the attempt has a predecessor, n that predecessor has completed, e its flow is to '
                'end, t a step is done.';
            COMMENT ON COLUMN queue.note_%1$s.asked IS
                'Another run: ascends with each call under the key. An attempt whose number is not smaller has served '
                'it.';
            COMMENT ON COLUMN queue.note_%1$s.lease IS 'Another run: its lease.';
            COMMENT ON COLUMN queue.note_%1$s.max_attempts IS 'Another run: after how many attempts the job is dead.';
            COMMENT ON COLUMN queue.note_%1$s.body IS
                'Another run: its payload. The columns behind it belong to the other run, too.';
            COMMENT ON COLUMN queue.note_%1$s.run_at IS
                'Predecessor: when the suspended job goes on at the latest. Another run: its time.';
            COMMENT ON COLUMN queue.note_%1$s.run_as IS
                'Another run: the role that wrote its payload as a command; null: the payload is data.';
            COMMENT ON COLUMN queue.note_%1$s.run_as_id IS 'The oid of that role.';
            COMMENT ON COLUMN queue.note_%1$s.job_id IS
                'Predecessor: that job. The attempt''s own job: the members of its flow. 0: the seal of its flow.';
            COMMENT ON COLUMN queue.note_%1$s.lane IS
                'Predecessor: the lane to which the attempt is released. 0: it ends by itself.';
            COMMENT ON COLUMN queue.note_%1$s.upon IS
                'Predecessor: c when all have completed, y when one has, f when one has died, e when all have ended, '
                'o at its own time unless they have ended.';
        $sql$, n);
    END LOOP;
END
$each_log$;

-- Apart from the tables, so that an upgrade renews the comments, too.
DO $each_key$
DECLARE
    n integer;
BEGIN
    FOR n IN 0..1 LOOP
        EXECUTE format($sql$
            COMMENT ON TABLE queue.key_%1$s IS
                'What is kept about unique keys, half %1$s. For each key, the newest row in both halves counts.';
            COMMENT ON COLUMN queue.key_%1$s.entry IS 'Ascending number of the row.';
            COMMENT ON COLUMN queue.key_%1$s.job_id IS 'The job that was enqueued under the key.';
            COMMENT ON COLUMN queue.key_%1$s.expires_at IS 'Until when the row counts.';
            COMMENT ON COLUMN queue.key_%1$s.taken_until IS
                'Until when the key is taken, even if the job has ended (unique_for).';
            COMMENT ON COLUMN queue.key_%1$s.version IS 'The newest version that was accepted.';
        $sql$, n);
    END LOOP;
END
$each_key$;

COMMENT ON TYPE queue.claimed_job IS 'What a worker gets: an attempt and everything that it needs to run it.';

COMMENT ON COLUMN queue.claimed_job.id IS
    'The attempt: the id for complete, fail, release, extend, progress and advance.';

COMMENT ON COLUMN queue.claimed_job.job_id IS
    'The job: the id for cancel, retry and the views. It stays the same over retries.';

COMMENT ON COLUMN queue.claimed_job.queue_name IS 'The queue from which it was claimed.';

COMMENT ON COLUMN queue.claimed_job.stage IS 'The current stage; null in a queue without stages.';

COMMENT ON COLUMN queue.claimed_job.payload IS 'The payload that the producer gave.';

COMMENT ON COLUMN queue.claimed_job.headers IS 'The headers that the producer gave.';

COMMENT ON COLUMN queue.claimed_job.progress IS 'The progress that the last attempt had reported.';

COMMENT ON COLUMN queue.claimed_job.lease_expires_at IS 'When the lease expires, unless the worker extends it.';

COMMENT ON TABLE queue.segment_log IS
    'The states of the segments of the logs. For each segment, the newest row counts.';

COMMENT ON COLUMN queue.segment_log.entry IS 'Ascending number of the row.';

COMMENT ON COLUMN queue.segment_log.generation IS 'The number of this filling of the segment; it is never used twice.';

COMMENT ON COLUMN queue.segment_log.state IS
    'f free, o open, c closed, m its living jobs are moved out, d drained and being copied to history, h copied to '
    'history, e being emptied.';

COMMENT ON COLUMN queue.segment_log.at IS 'Since when it has this state.';

COMMENT ON COLUMN queue.segment_log.copied_to IS 'History has the attempts up to this id.';

COMMENT ON TABLE queue.successor IS 'Ended attempts that queue.retry has given a next attempt.';

COMMENT ON COLUMN queue.successor.retried_at IS 'When it was retried.';

COMMENT ON TABLE queue.history IS
    'Ended attempts that have left the segments: one child table for each day on which they expire. Read them through '
    'queue.jobs and queue.attempts.';

COMMENT ON COLUMN queue.history.generation IS
    'The generation of the segment that had the attempt. The row counts once that segment is copied completely.';

COMMENT ON COLUMN queue.history.lane IS 'The queue or stage, see queue.lane.';

COMMENT ON COLUMN queue.history.max_attempts IS 'Null: the queue''s.';

COMMENT ON COLUMN queue.history.outcome IS
    'c completed, f failed, d dead, t timed out, r released, w suspended, a advanced, x cancelled, s superseded, '
    'k skipped, e expired.';

COMMENT ON COLUMN queue.history.claim_kind IS
    'w: a worker; b: a worker, bound to its connection; s: the system, which ended it before it ran.';

COMMENT ON COLUMN queue.history.payload IS 'Only in the last attempt of a job.';

COMMENT ON COLUMN queue.history.lease IS 'Null: the queue''s.';

COMMENT ON COLUMN queue.history.after IS 'Its predecessors.';

COMMENT ON COLUMN queue.history.upon IS 'The condition on which it waited: see the attempts.';

COMMENT ON COLUMN queue.history.own_flow IS 'Makes the job a flow: see the attempts.';

COMMENT ON COLUMN queue.history.steps IS
    'The steps that were done: a field for each, with its result. Only in the last attempt of a job.';

COMMENT ON COLUMN queue.history.version IS 'The version that was enqueued under the key, as the producer counts.';

COMMENT ON TABLE queue.permission IS
    'The privileges that were granted on queues. Change it only through queue.grant and revoke. It has names, not '
    'oids, so that a dump can be restored where a role is missing.';

COMMENT ON COLUMN queue.permission.queue_id IS '0: every existing and future queue.';

COMMENT ON COLUMN queue.permission.role_name IS
    'The role; its members have the privilege, too. A role that does not exist is ignored. public: all roles.';

COMMENT ON FUNCTION queue.grant IS
'Grants a role, and its members, a privilege on a queue; ''*'': on every existing and future queue. privilege: produce
(enqueue), consume (claim and end), observe (read), manage (all of these, and change the queue and its jobs, and
grant). Needs the privilege manage. Errors: 42704 there is no such queue or role, 22023 there is no such privilege,
22004 an argument is null, 42501.';

COMMENT ON FUNCTION queue.revoke IS
'Revokes what queue.grant has granted with the same arguments; does nothing if that was not granted. It takes effect
with the next call of every session. The role need not exist any more. Errors: 42704 there is no such queue, 22023
there is no such privilege, 22004, 42501.';

COMMENT ON COLUMN queue.observed.is_held IS 'True for the queue''s lane of held jobs.';

-- The functions. None is STRICT: each function decides what NULL means. If an argument has a default, NULL means that
-- default. No two functions share a name, because drivers send parameters without types.

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
    rate_limit_per_group integer DEFAULT NULL, start_within interval DEFAULT NULL
) RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_create';

COMMENT ON FUNCTION queue.create IS
'Creates a queue. Defaults: max_attempts 20, lease 5 minutes, backoff exponential from 10 seconds to 1 day with jitter
0.1, retention 1 day, dead_retention 90 days. stages: up to 32 names; each job goes through them in this order, see
queue.advance. dead_letter: the queue or topic that gets a copy of each job that dies. if_not_exists: an existing
queue is altered instead. executor: the jobs run in the server. With sql, each job has a command and runs as the role
that enqueued it. With call, procedure gets the payload of each job and runs as run_as. settings: the settings of the
sessions in which jobs run in the server. Errors: 42710 the queue exists, 22023 an option is out of range, 42704
there is no queue dead_letter or no role run_as, 42883 there is no such procedure, 42501 the user may not SET ROLE to
run_as.';

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
    rate_limit_per_group integer DEFAULT NULL, start_within interval DEFAULT NULL
) RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_alter';

COMMENT ON FUNCTION queue.alter IS
'Changes options of a queue. NULL leaves an option as it is; reset sets the named options to their defaults. stages:
the new list; jobs stay in their stage. Errors: 42704 there is no such queue, or nothing has the name dead_letter;
22023 an option is out of range; 55000 a stage that the new list drops has living jobs; 55006 an open transaction has
enqueued into a stage that the new list drops. For executor, procedure, run_as and settings: as queue.create.';

COMMENT ON FUNCTION queue.drop IS
'Drops a queue or a topic. if_exists: raises a NOTICE instead of an error if there is none. Errors: 42704 there is no
such queue, 55000 it has living jobs. With force, they are dropped with the queue.';

COMMENT ON FUNCTION queue.pause IS
    'Claims from this queue find nothing until queue.resume. Running jobs and producers go on. Errors: 42704.';

COMMENT ON FUNCTION queue.resume IS 'Ends a pause and wakes the waiting sessions. Errors: 42704.';

COMMENT ON FUNCTION queue.purge IS
'Cancels all waiting jobs of the queue, due or not. Running jobs go on. Returns how many it has cancelled. Errors:
42704.';

COMMENT ON FUNCTION queue.enqueue IS
'Adds a job; the job exists if and only if the transaction commits. A smaller priority runs first. Give delay or
run_at, not both. stage: where the job begins; NULL: in the first stage. unique_key (at most 1024 bytes): the queue
has at most one living job with this key. If there is one, on_duplicate decides. skip leaves it alone. replace and
rerun give it the contents of this call if it waits, and run it once more with them if it runs. error raises 23505.
version: a call whose version is not newer than the known one does nothing. unique_for: the key stays taken for this
time, even if the job has ended. after: the job is held until these jobs (at most 100) have ended as upon says: all
have completed, one has completed (any), one has failed (is dead), all have ended, or overdue: they have not ended at
this job''s own time. It is skipped if that can no longer happen. flow: the job becomes a member of this flow, which
waits for it (see queue.enqueue_flow); task: its name there. Returns the job''s id; if nothing was added, the id of
the existing job.
Errors: 42704 there is no such queue; 22023 an argument is out of range, or there is no such stage; 23505 the key is
taken; 53400 shared memory is full; P0002 there is no such predecessor or flow; 42501 the user has neither produce
nor observe on a predecessor''s queue, or the flow is another role''s and the user may not consume from its queue;
55000 the flow takes no members.';

COMMENT ON FUNCTION queue.enqueue_many IS
'Adds one job for each payload, all with the same options, written as a batch. Returns the jobs'' ids in order.
Errors: as queue.enqueue; 22004 names the payload that is null.';

COMMENT ON FUNCTION queue.enqueue_batch IS
'Adds one job for each object of a JSON array. The fields are payload and the options of queue.enqueue. In a queue of
commands, each object has the field command, and its payload holds arguments, autocommit, settings and result_rows.
Returns the jobs'' ids in order. Errors: 22023 names the job (from 0) and the field; nothing is added then.';

COMMENT ON FUNCTION queue.enqueue_sql IS
'Adds a job that is a command to a queue with executor sql. The command runs in the server as the current user. One
statement runs at the top level. Several statements run in one transaction or, with autocommit, in one transaction
each. arguments: an array with the values of $1, $2 and so on. settings: the settings of the session. result_rows:
how many rows the result gets. The other arguments are those of queue.enqueue. Errors: as queue.enqueue; 42601 the
command is not SQL, 55000 the queue does not run commands, 42501 no job may run as the current user.';

COMMENT ON FUNCTION queue.enqueue_flow IS
'Adds a flow: a job that waits for its members. Members are added with flow => its id, or as tasks: an array of
objects with the fields of queue.enqueue_batch, task (a name), queue (default: this queue), and after (names of other
tasks). The flow is held until all members have completed; upon: another condition, as in queue.enqueue. Then it goes
to its queue (runs), or ends by itself. open: members may be added until queue.seal; otherwise the flow may end as
soon as this transaction is committed. fail_fast: the first dead member cancels the others, and then the flow is
dead. command: what runs after the members, in a queue of commands, as for queue.schedule. Returns the flow''s id.
Errors: as queue.enqueue; 22023 the tasks form a cycle, after names no task of the call, or data is given where a
command is needed.';

COMMENT ON FUNCTION queue.seal IS
'Lets an open flow end when its members have ended. It takes effect when the transaction commits; a second call does
nothing. Errors: P0002 there is no such job, 55000 it is not a waiting flow, 42501 the user has not made it and may
not consume from its queue, 22023 not a job''s id.';

COMMENT ON FUNCTION queue.resolve IS
'Completes a flow that ends by itself, whatever it waits for. So it serves as an event for jobs that are after it, for
instance an approval. It takes effect when the transaction commits. Errors: P0002 there is no such job, 55000 it is
not a waiting flow, or it goes to a worker, 55006 another open transaction is changing it, 42501 the user has neither
consume nor manage on its queue, 22023 not a job''s id.';

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
    stage text DEFAULT NULL, worker text DEFAULT NULL, session_bound boolean DEFAULT false,
    completed bigint[] DEFAULT NULL, linger interval DEFAULT NULL
) RETURNS SETOF queue.claimed_job LANGUAGE c ROWS 10 AS 'MODULE_PATHNAME', 'pg_queue_claim';

COMMENT ON FUNCTION queue.claim IS
'Claims up to max_jobs jobs for this worker. Their lease (default: the job''s, else the queue''s) starts at commit.
Use every row: LIMIT or WHERE on the call leaves jobs claimed that no worker runs. wait: sleeps until there is a job,
for at most pg_queue.max_wait and a little less than statement_timeout. It does not sleep in a transaction that has
written, nor at REPEATABLE READ or above; a NOTICE says so once. A sleeping claim holds back vacuum''s horizon; CALL
queue.wait does not. stage: claims from this stage only; NULL: from all stages, in the order of (priority, job_id)
over all of them. completed: completes these attempts first. For each attempt that could not be completed, there is a
row without a job_id, whose headers have outcome and reason as queue.answer. session_bound: when this connection
ends, its unfinished jobs are immediately offered to other workers. linger: with fewer than max_jobs ready jobs the
call sleeps on for more, until the first of them has been ready for this time; it needs wait, and one queue without
stages or with a stage. Errors: 42704 there is no such queue, 22023 an argument is out of range or there is no such
stage, 53400 shared memory is full.';

-- For: consume.
CREATE FUNCTION queue.claim_any(
    queue_names text[], max_jobs integer DEFAULT 1, wait interval DEFAULT '0', lease interval DEFAULT NULL,
    stage text DEFAULT NULL, worker text DEFAULT NULL, session_bound boolean DEFAULT false,
    completed bigint[] DEFAULT NULL, linger interval DEFAULT NULL
) RETURNS SETOF queue.claimed_job LANGUAGE c ROWS 10 AS 'MODULE_PATHNAME', 'pg_queue_claim_any';

COMMENT ON FUNCTION queue.claim_any IS
'As queue.claim, from the first of up to 8 queues that has jobs. stage: each of the queues must have it. Errors: as
queue.claim; 53400 the call would wait for more than 64 lanes (a queue has one lane, and one for each stage).';

COMMENT ON FUNCTION queue.current_job IS
    'In the command of a job that runs in the server: that job, as queue.claim returns it. Elsewhere no row.';

COMMENT ON PROCEDURE queue.wait IS
'Sleeps until the queue may have a job, for at most timeout and pg_queue.max_wait. Returns whether it has one. It
holds no snapshot and no lock while it sleeps. Errors: 25001 inside a transaction block or function, 42704 there is
no such queue.';

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

COMMENT ON FUNCTION queue.release IS
'Gives the attempt back. The job keeps its place, and the attempt is not counted. delay: the job waits this long.
Errors: as queue.complete.';

-- For: consume.
CREATE FUNCTION queue.release_many(ids bigint[], delay interval DEFAULT '0')
    RETURNS SETOF queue.answer LANGUAGE c ROWS 100 AS 'MODULE_PATHNAME', 'pg_queue_release_many';

COMMENT ON FUNCTION queue.release_many IS
    'Gives the attempts back. Returns the outcome of each: released, cancelled; or lost, busy. Errors: 22023.';

-- For: consume.
CREATE FUNCTION queue.end_batch(ends json)
    RETURNS SETOF queue.answer LANGUAGE c ROWS 100 AS 'MODULE_PATHNAME', 'pg_queue_end_batch';

COMMENT ON FUNCTION queue.end_batch IS
'Ends many attempts, each in its own way. ends: an array of objects. Each has one field, complete, fail, release,
advance or suspend, with the id and the arguments of that function. Returns the outcome of each, as queue.attempts
names it; or lost, busy, refused. Refused attempts cannot end this way, for instance with a result that jsonb cannot
hold: their worker still has them. Errors: 22023 names the element (from 0) that is not such an object; nothing is
ended then.';

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

COMMENT ON FUNCTION queue.progress IS
'Stores what the attempt has done; the job''s next attempt gets it back. It takes effect when the transaction commits.
Errors: as queue.complete, 22004 progress is null.';

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

COMMENT ON FUNCTION queue.inputs IS
'The outcomes of the jobs that the attempt''s job was after, and of the members of its flow. Results and errors are
shown only for queues that the user may consume from or observe. If a job is no longer known, all columns but its id
are null. Errors: 22023 not an attempt''s id, P0002 there is no such attempt, 42501 the user has neither consume nor
observe on its queue.';

COMMENT ON FUNCTION queue.step IS
'The result of a step that this attempt, or an earlier attempt of the job, has stored by queue.step_done; NULL: the
step is not done. Errors: as queue.complete; 22023 the name is empty or has more than 1024 bytes.';

COMMENT ON FUNCTION queue.step_done IS
'Stores that a step is done, and its result, for this attempt and the next ones of the job. It takes effect when the
transaction commits. Errors: as queue.step.';

COMMENT ON FUNCTION queue.cancel IS
'Cancels a waiting job. A running job is asked to stop (returns ''cancelling''): its worker sees is_cancelled at its
next extend, and the job is not retried. With force, a running job ends now, and its worker has lost the lease.
Errors: P0002 there is no such job, 55000 it has ended, 55006 another open transaction is changing it, 22023 not a
job''s id.';

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

COMMENT ON FUNCTION queue.reprioritize IS
    'Gives a waiting job another priority. Errors: as queue.retry; also 55000 if the job has ended.';

-- For: manage.
CREATE FUNCTION queue.reprioritize_many(job_ids bigint[], priority integer)
    RETURNS SETOF queue.answer LANGUAGE c ROWS 100 AS 'MODULE_PATHNAME', 'pg_queue_reprioritize_jobs';

COMMENT ON FUNCTION queue.reprioritize_many IS
'queue.reprioritize for many jobs. Returns the outcome of each: reprioritized; or missing, busy, refused (it does not
wait), full. Errors: 22023 not a job''s id, 42501.';

COMMENT ON FUNCTION queue.reschedule IS
    'Lets a waiting job run at another time. Errors: as queue.retry; also 55000 if the job has ended.';

-- For: manage.
CREATE FUNCTION queue.reschedule_many(job_ids bigint[], run_at timestamptz)
    RETURNS SETOF queue.answer LANGUAGE c ROWS 100 AS 'MODULE_PATHNAME', 'pg_queue_reschedule_jobs';

COMMENT ON FUNCTION queue.reschedule_many IS
'queue.reschedule for many jobs. Returns the outcome of each: rescheduled; or missing, busy, refused (it does not
wait), full. Errors: 22023 not a job''s id, or the time is infinite; 42501.';

COMMENT ON FUNCTION queue.forget IS
'Erases payload, headers, result, progress and errors of an ended job, for privacy. The next VACUUM of the log tables
removes the old versions of its rows. Errors: P0002 there is no such job, 55000 it has not ended, 55006 another open
transaction is in the way, 25001 at REPEATABLE READ.';

COMMENT ON FUNCTION queue.maintain IS
    'Runs one tick of the background worker in the foreground. Returns each duty and how much it did.';

COMMENT ON FUNCTION queue_internal.running_now IS
    'The attempts that are taken, as shared memory knows them. For the views.';

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
For the views.';

-- For: observe.
CREATE FUNCTION queue_internal.live()
    RETURNS TABLE (id bigint, job_id bigint, enqueued_at timestamptz, lane integer, priority integer, attempt integer,
                   max_attempts integer, run_at timestamptz, payload_of bigint, headers jsonb, group_key text,
                   unique_key text, last_error text,
                   progress jsonb, claimed_at timestamptz, lease_us bigint, pid integer, claim_kind "char", worker text,
                   ended_at timestamptz, outcome "char", next_id bigint, result jsonb, error text, is_newest boolean,
                   flow bigint, task text, after bigint[], upon "char", own_flow jsonb,
                   start_by timestamptz)
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
                   start_by timestamptz)
    LANGUAGE c STABLE ROWS 2 AS 'MODULE_PATHNAME', 'pg_queue_life_of';

COMMENT ON FUNCTION queue_internal.life_of IS
'All attempts of a job, each with its claim and outcome, in the segments and in history. It uses indexes. Errors:
22023 not a job''s id.';

COMMENT ON FUNCTION queue.job_steps IS
'The steps that a job has done. Errors: P0002 there is no such job, 42501 the user has neither observe nor consume on
its queue, 22023 not a job''s id.';

COMMENT ON FUNCTION queue_internal.payload_of IS
    'The payload in an attempt''s row; null if the row is gone. It uses an index. For the views.';

COMMENT ON FUNCTION queue_internal.kick IS
    'Lets the launcher check this database when the transaction commits. Used by the install script.';

COMMENT ON TABLE queue.rollup IS
    'What queues did in each minute: the sums over reclaimed segments. Read it through queue.throughput.';

COMMENT ON COLUMN queue.rollup.enqueued IS 'Jobs enqueued in this minute, in the stage in which they began.';

COMMENT ON COLUMN queue.rollup.timed_out IS 'Attempts whose lease expired or whose connection ended in this minute.';

COMMENT ON COLUMN queue.rollup.lane IS 'The queue or stage, see queue.lane.';

COMMENT ON COLUMN queue.rollup.wait IS
    'Histogram of how long the attempts claimed in this minute had waited; null if there are none.';

COMMENT ON COLUMN queue.rollup.run IS
    'Histogram of how long the attempts that ended in this minute had run; null if there are none.';

COMMENT ON COLUMN queue.rollup.expired IS 'Jobs that expired in this minute; null: none.';

COMMENT ON TABLE queue.group_start IS
    'How many attempts of each group were claimed in each minute, in reclaimed segments. Kept as long as it counts '
    'for a rate_limit_per_group.';

COMMENT ON COLUMN queue.group_start.group_hash IS 'The hash of the group''s key.';

COMMENT ON COLUMN queue.group_start.lane IS 'The lane of the attempts.';

COMMENT ON TABLE queue.total IS 'What queues have done in reclaimed segments. Read it through queue.stats.';

COMMENT ON COLUMN queue.total.segment_generation IS
    'The generation of the segment that was summed up; if there are several, the last one.';

COMMENT ON COLUMN queue.total.timed_out IS 'Attempts whose lease expired or whose connection ended.';

COMMENT ON COLUMN queue.total.lane IS 'The queue or stage, see queue.lane.';

COMMENT ON COLUMN queue.total.expired IS 'Jobs that expired; null: none.';

-- For: observe.
CREATE FUNCTION queue_internal.throughput_live()
    RETURNS TABLE (minute timestamptz, segment_generation bigint, enqueued bigint, claimed bigint, completed bigint,
                   failed bigint, timed_out bigint, died bigint, lane integer, wait bytea, run bytea,
                   expired bigint)
    STABLE LANGUAGE c ROWS 1000 AS 'MODULE_PATHNAME', 'pg_queue_throughput_live';

COMMENT ON FUNCTION queue_internal.throughput_live IS
'The rows that queue.rollup will get from the segments that are not reclaimed yet. Each call sums them up. For the
views.';

COMMENT ON FUNCTION queue_internal.times IS
'Mean and percentiles of the times in all of these histograms of queue.rollup; null if they have none. For the views.
Errors: 22023 not a histogram.';

-- For: observe.
CREATE OR REPLACE VIEW queue.throughput_part WITH (security_barrier) AS
SELECT o.queue_name, o.stage, r.minute, r.enqueued, r.claimed, r.completed, r.failed, r.timed_out, r.died, r.wait,
       r.run, r.expired
FROM (SELECT minute, enqueued, claimed, completed, failed, timed_out, died, lane, wait, run, expired FROM queue.rollup
      UNION ALL
      SELECT minute, enqueued, claimed, completed, failed, timed_out, died, lane, wait, run, expired
      FROM queue_internal.throughput_live()) AS r
JOIN queue.observed AS o ON o.lane = r.lane;

COMMENT ON VIEW queue.throughput_part IS
    'The rows of queue.throughput before the parts of a minute in several segments are added up. For queue.throughput '
    'and queue.throughput_by.';

-- One function call for each column, so that a query reads no histogram for columns that it does not select.
-- For: observe.
CREATE OR REPLACE VIEW queue.throughput AS
SELECT queue_name, stage, minute, enqueued, claimed, completed, failed, timed_out, died,
       (queue_internal.times(wait)).mean AS wait_mean, (queue_internal.times(wait)).p50 AS wait_p50,
       (queue_internal.times(wait)).p95 AS wait_p95, (queue_internal.times(wait)).p99 AS wait_p99,
       (queue_internal.times(run)).mean AS run_mean, (queue_internal.times(run)).p50 AS run_p50,
       (queue_internal.times(run)).p95 AS run_p95, (queue_internal.times(run)).p99 AS run_p99, expired
FROM (SELECT queue_name, stage, minute, sum(enqueued)::bigint AS enqueued, sum(claimed)::bigint AS claimed,
             sum(completed)::bigint AS completed, sum(failed)::bigint AS failed, sum(timed_out)::bigint AS timed_out,
             sum(died)::bigint AS died, array_agg(wait) AS wait, array_agg(run) AS run,
             coalesce(sum(expired), 0)::bigint AS expired
      FROM queue.throughput_part GROUP BY queue_name, stage, minute) AS g;

COMMENT ON VIEW queue.throughput IS
    'What each queue and stage did in each minute. Minutes without events have no row; minutes before '
    'pg_queue.statistics_retention are gone.';

COMMENT ON COLUMN queue.throughput.stage IS 'The stage; NULL in a queue without stages.';

COMMENT ON COLUMN queue.throughput.enqueued IS 'Jobs enqueued in this minute, in the stage in which they began.';

COMMENT ON COLUMN queue.throughput.claimed IS 'Attempts that workers claimed in this minute.';

COMMENT ON COLUMN queue.throughput.completed IS 'Attempts completed or advanced in this minute.';

COMMENT ON COLUMN queue.throughput.failed IS 'Attempts that their worker failed in this minute.';

COMMENT ON COLUMN queue.throughput.timed_out IS
    'Attempts whose lease expired or whose connection ended in this minute.';

COMMENT ON COLUMN queue.throughput.died IS 'Attempts that were a job''s last and ended badly in this minute.';

COMMENT ON COLUMN queue.throughput.wait_mean IS
    'How long the attempts claimed in this minute had been ready, on average; NULL if there are none.';

COMMENT ON COLUMN queue.throughput.wait_p50 IS 'Half of these attempts had waited at most this long, within 1.6 %.';

COMMENT ON COLUMN queue.throughput.wait_p95 IS '95 % of these attempts had waited at most this long, within 1.6 %.';

COMMENT ON COLUMN queue.throughput.wait_p99 IS '99 % of these attempts had waited at most this long, within 1.6 %.';

COMMENT ON COLUMN queue.throughput.run_mean IS
    'How long the attempts completed, advanced, failed or timed out in this minute had run, on average; NULL if there '
    'are none.';

COMMENT ON COLUMN queue.throughput.run_p50 IS 'Half of these attempts had run at most this long, within 1.6 %.';

COMMENT ON COLUMN queue.throughput.run_p95 IS '95 % of these attempts had run at most this long, within 1.6 %.';

COMMENT ON COLUMN queue.throughput.run_p99 IS '99 % of these attempts had run at most this long, within 1.6 %.';

COMMENT ON COLUMN queue.throughput.expired IS 'Jobs that expired in this minute.';

-- Each period has many histograms, so they are merged once for all columns.
-- For: observe.
CREATE FUNCTION queue.throughput_by(period interval DEFAULT '1 hour', since timestamptz DEFAULT NULL)
    RETURNS TABLE (queue_name text, stage text, starts_at timestamptz, enqueued bigint, claimed bigint,
                   completed bigint, failed bigint, timed_out bigint, died bigint,
                   wait_mean interval, wait_p50 interval, wait_p95 interval, wait_p99 interval,
                   run_mean interval, run_p50 interval, run_p95 interval, run_p99 interval, expired bigint)
    STABLE ROWS 1000 LANGUAGE sql
BEGIN ATOMIC
    SELECT g.queue_name, g.stage, g.starts_at, g.enqueued, g.claimed, g.completed, g.failed, g.timed_out, g.died,
           w.mean, w.p50, w.p95, w.p99, r.mean, r.p50, r.p95, r.p99, g.expired
    FROM (SELECT p.queue_name, p.stage,
                 -- Periods are counted from midnight of a Monday in the session's time zone. Periods of a day or more
                 -- follow its calendar. Shorter periods follow the clock, which does not jump.
                 CASE WHEN coalesce(throughput_by.period, '1 hour') >= interval '1 day'
                      THEN date_bin(throughput_by.period, p.minute::timestamp, timestamp '2000-01-03')::timestamptz
                      ELSE date_bin(coalesce(throughput_by.period, '1 hour'), p.minute,
                                    timestamp '2000-01-03'::timestamptz)
                 END AS starts_at,
                 sum(p.enqueued)::bigint AS enqueued, sum(p.claimed)::bigint AS claimed,
                 sum(p.completed)::bigint AS completed, sum(p.failed)::bigint AS failed,
                 sum(p.timed_out)::bigint AS timed_out, sum(p.died)::bigint AS died,
                 array_agg(p.wait) AS wait, array_agg(p.run) AS run, coalesce(sum(p.expired), 0)::bigint AS expired
          FROM queue.throughput_part AS p
          WHERE p.minute >= coalesce(throughput_by.since, '-infinity')
          GROUP BY 1, 2, 3) AS g
    CROSS JOIN LATERAL queue_internal.times(g.wait) AS w
    CROSS JOIN LATERAL queue_internal.times(g.run) AS r;
END;

COMMENT ON FUNCTION queue.throughput_by IS
'queue.throughput in longer periods, such as hours and days. Counts are exact, and percentiles as good as those of a
minute. since: leaves out the minutes before it. Errors: 0A000 a period of months, 22008 a period that is not
positive.';

-- For: observe.
CREATE FUNCTION queue_internal.minutes_now()
    RETURNS TABLE (lane integer, since timestamptz, known_from timestamptz, minute timestamptz, enqueued bigint,
                   claimed bigint, completed bigint, failed bigint, timed_out bigint, died bigint, expired bigint)
    VOLATILE LANGUAGE c ROWS 1000 AS 'MODULE_PATHNAME', 'pg_queue_minutes_now';

COMMENT ON FUNCTION queue_internal.minutes_now IS
'What memory has counted in each minute of the last hour, by lane. A row without a minute says since when memory has
counted. For the views.';

-- For: observe.
CREATE OR REPLACE VIEW queue.activity_part WITH (security_barrier) AS
WITH memory AS MATERIALIZED (SELECT * FROM queue_internal.minutes_now())
SELECT o.queue_name, o.stage, m.minute, m.enqueued, m.claimed, m.completed, m.failed, m.timed_out, m.died,
       m.minute > m.since AS is_complete, m.expired
FROM memory AS m
JOIN queue.observed AS o ON o.lane = m.lane
WHERE m.minute IS NOT NULL
UNION ALL
SELECT o.queue_name, o.stage, r.minute, r.enqueued, r.claimed, r.completed, r.failed, r.timed_out, r.died, false,
       r.expired
FROM queue.rollup AS r
JOIN queue.observed AS o ON o.lane = r.lane
LEFT JOIN memory AS m ON m.lane = r.lane AND m.minute IS NULL
WHERE m.known_from IS NULL OR r.minute < m.known_from;

COMMENT ON VIEW queue.activity_part IS
    'Minutes of queues: those of the last hour from memory, earlier ones as far as segments were summed up. For '
    'queue.activity.';

COMMENT ON COLUMN queue.activity_part.timed_out IS
    'Attempts whose lease expired or whose connection ended in this minute.';

COMMENT ON COLUMN queue.activity_part.is_complete IS
    'True if memory has counted the whole minute. False: it has only what was summed up so far.';

COMMENT ON COLUMN queue.activity_part.expired IS 'Jobs that expired in this minute; null: none.';

COMMENT ON COLUMN queue.activity_period.starts_at IS 'When the period begins.';

COMMENT ON COLUMN queue.activity_period.enqueued IS 'Jobs enqueued in the period, in the stage in which they began.';

COMMENT ON COLUMN queue.activity_period.claimed IS 'Attempts that workers claimed in the period.';

COMMENT ON COLUMN queue.activity_period.completed IS 'Attempts completed, or advanced to another stage, in the period.';

COMMENT ON COLUMN queue.activity_period.failed IS 'Attempts that their worker failed in the period.';

COMMENT ON COLUMN queue.activity_period.timed_out IS
    'Attempts whose lease expired or whose connection ended in the period.';

COMMENT ON COLUMN queue.activity_period.died IS 'Attempts that were a job''s last and ended badly in the period.';

COMMENT ON COLUMN queue.activity_period.is_complete IS
    'True if memory has counted the whole period. False: it has only what was summed up so far.';

COMMENT ON COLUMN queue.activity_period.expired IS 'Jobs that expired in the period.';

-- For: observe.
CREATE OR REPLACE FUNCTION queue.activity(queue_name text DEFAULT NULL, since timestamptz DEFAULT NULL,
    period interval DEFAULT '1 minute')
    RETURNS SETOF queue.activity_period
    VOLATILE ROWS 1000 LANGUAGE sql
BEGIN ATOMIC
    SELECT p.queue_name, p.stage,
           CASE WHEN coalesce(activity.period, '1 minute') >= interval '1 day'
                THEN date_bin(activity.period, p.minute::timestamp, timestamp '2000-01-03')::timestamptz
                ELSE date_bin(coalesce(activity.period, '1 minute'), p.minute, timestamp '2000-01-03'::timestamptz)
           END,
           sum(p.enqueued)::bigint, sum(p.claimed)::bigint, sum(p.completed)::bigint, sum(p.failed)::bigint,
           sum(p.timed_out)::bigint, sum(p.died)::bigint, bool_and(p.is_complete),
           coalesce(sum(p.expired), 0)::bigint
    FROM queue.activity_part AS p
    WHERE p.minute >= coalesce(activity.since, clock_timestamp() - interval '1 hour')
      AND (activity.queue_name IS NULL OR p.queue_name = activity.queue_name)
    GROUP BY 1, 2, 3
    ORDER BY 1, 2, 3;
END;

COMMENT ON FUNCTION queue.activity IS
'What queues did in each period, without reading the logs: for the last hour from memory, before that as far as it was
summed up. queue_name null: all queues. since null: the last hour. is_complete: memory has counted the whole period.
Errors: 0A000 a period of months, 22008 a period that is not positive.';

COMMENT ON TABLE queue.topic IS 'One row for each topic. Change it only through queue.create_topic and queue.drop.';

COMMENT ON COLUMN queue.topic.topic_id IS
    'Topics and queues share a sequence, because queue.permission has the privileges on both.';

COMMENT ON COLUMN queue.topic.topic_name IS 'Its name. No queue has the same name.';

COMMENT ON TABLE queue.binding IS
    'Which queues get which events of a topic. Change it only through queue.bind and queue.unbind.';

COMMENT ON COLUMN queue.binding.filter IS 'A jsonpath as text; null if there is none.';

COMMENT ON COLUMN queue.binding.group_path IS
    'The jsonpath of the group''s key, as text; null: the publisher''s group.';

COMMENT ON FUNCTION queue.create_topic IS
'Creates a topic. It stores nothing: events that are published on it go to the queues that are bound to it. queue.drop
removes it; queue.grant and revoke decide which roles may publish (produce) and bind (observe). Errors: 42710 a topic
or queue has that name, 22023 the name is out of range.';

COMMENT ON FUNCTION queue.bind IS
'Subscribes a queue to a topic. The queue gets a job for each event whose key matches the pattern and for which the
filter is true. pattern: words with dots between them; * is one word, # any number of words. filter: a predicate over
an object with the fields topic, key, headers and payload, as ''$.payload.total > 1000''. group_key: a path in the
same object. The other options replace those of the publisher. on_full: what happens if the queue has reached
max_waiting: keep (it gets the job nevertheless), drop (it gets no job), error (the publisher gets 53400). A second
call with the same pattern and filter changes the options. Needs observe on the topic and manage on the queue.
Returns the binding''s id. Errors: 42704 there is no such topic or queue, 22023 a pattern or an option is out of
range, 0A000 the queue runs commands, 42501.';

COMMENT ON FUNCTION queue.unbind IS
'Ends a queue''s bindings to a topic: those with a pattern, or all (NULL). Existing jobs stay. Returns how many
bindings it has ended. Needs manage on the queue, or on the topic. Errors: 42704, 42501.';

COMMENT ON FUNCTION queue.publish IS
'Adds a job to each queue that has a matching binding to the topic, in the caller''s transaction. Each queue gets one
job, and either all of them get it or none. The options are those of queue.enqueue; unique_key counts in each queue
by itself. The jobs'' headers have the field event: topic, key, id (the same in all jobs) and published_at.
mandatory: if no binding matches, raises P0002 instead of doing nothing. Returns the jobs. Needs produce on the
topic, and no privilege on the queues. Errors: as queue.enqueue; 42704 there is no such topic, 22023 the key is out
of range, 53400 a queue is full and its binding has on_full error.';

COMMENT ON FUNCTION queue.publish_many IS
'Publishes one event for each payload, with the key at the same place (NULL: the empty key for all), written as a
batch. Returns how many jobs were made. Errors: as queue.publish; 22004 names the payload that is null, 22023 the
numbers of keys and payloads differ.';

COMMENT ON FUNCTION queue.route IS
'Returns which queues would get a job for this event, and by which binding; makes no job. Needs observe on the topic.
Errors: 42704 there is no such topic, 22023 the key is out of range, 42501.';

COMMENT ON FUNCTION queue_internal.topic_counts IS
    'The counts of what was published since the server started, by topic. For the views.';

COMMENT ON VIEW queue.topics IS
    'The topics that the current user may observe. The counts are of committed transactions since the server started, '
    'and only of the first 64 topics that were published on.';

COMMENT ON COLUMN queue.topics.published IS 'How many events were published.';

COMMENT ON COLUMN queue.topics.copies IS 'How many jobs were made from these events.';

COMMENT ON COLUMN queue.topics.unrouted IS 'How many events matched no binding.';

COMMENT ON COLUMN queue.topics.dropped IS 'How many jobs were not made because their queue was full (on_full drop).';

COMMENT ON COLUMN queue.topics.filter_errors IS
    'How often a filter''s result was neither true nor false. It counts as false.';

COMMENT ON VIEW queue.bindings IS 'Which queues get which events of the topics that the current user may observe.';

COMMENT ON COLUMN queue.bindings.pattern IS 'The keys that match: * is one word, # any number of words.';

COMMENT ON COLUMN queue.bindings.filter IS 'The jsonpath that has to be true; NULL if there is none.';

COMMENT ON COLUMN queue.bindings.priority IS
    'The priority of its jobs; null: the publisher''s. The same holds for delay and group_key.';

COMMENT ON COLUMN queue.bindings.max_attempts IS 'After how many attempts its jobs are dead; null: the queue''s.';

COMMENT ON COLUMN queue.bindings.lease IS 'How long a claim of its jobs lasts; null: the queue''s.';

COMMENT ON COLUMN queue.bindings.stage IS 'The stage in which its jobs begin; null: the first.';

COMMENT ON COLUMN queue.bindings.on_full IS 'What happens if the queue has reached max_waiting: keep, drop, error.';

COMMENT ON COLUMN queue.bindings.bound_by IS 'The role that made it, or last changed it.';

COMMENT ON COLUMN queue.bindings.binding_id IS
    'The binding. If several bindings of a queue match, the one with the smallest id gives the options.';

COMMENT ON TABLE queue.schedule IS
    'One row for each schedule: its settings. Change it only through queue.schedule, unschedule, pause_schedule and '
    'resume_schedule.';

COMMENT ON COLUMN queue.schedule.schedule_id IS
    'Never used twice, so that a schedule that was dropped and created again never meets its old firings.';

COMMENT ON COLUMN queue.schedule.headers IS 'Headers of its jobs, in addition to schedule and slot.';

COMMENT ON COLUMN queue.schedule.anchor IS 'The time from which every is counted if there is no starts_at.';

COMMENT ON COLUMN queue.schedule.planned_from IS
    'Slots up to this time do not belong to this plan: it was made, changed or resumed then.';

COMMENT ON COLUMN queue.schedule.run_as IS
    'The role that wrote the payload as a command and as which the jobs run; null: the payload is data.';

COMMENT ON COLUMN queue.schedule.version IS 'How often this row was changed.';

-- Apart from the tables, so that an upgrade renews the comments, too.
DO $each_firing$
DECLARE
    n integer;
BEGIN
    FOR n IN 0..1 LOOP
        EXECUTE format($sql$
            COMMENT ON TABLE queue.firing_%1$s IS 'Half %1$s of the log of firings: a slot of a schedule was handled.';
            COMMENT ON COLUMN queue.firing_%1$s.schedule_id IS 'The schedule.';
            COMMENT ON COLUMN queue.firing_%1$s.turn IS 'Larger in the half that is written now.';
            COMMENT ON COLUMN queue.firing_%1$s.slot IS 'The planned time. Slots up to it do not fire any more.';
            COMMENT ON COLUMN queue.firing_%1$s.fired_at IS
                'When the schedule''s last job up to this slot was enqueued.';
            COMMENT ON COLUMN queue.firing_%1$s.job_id IS 'That job.';
            COMMENT ON COLUMN queue.firing_%1$s.kind IS
                'r: the slot''s job was enqueued; s: the slot was skipped; c: the row was copied from the other half; '
                'o: missed slots up to fired_at still have to run, and later slots up to this one are skipped.';
        $sql$, n);
    END LOOP;
END
$each_firing$;

COMMENT ON FUNCTION queue.schedule IS
'Enqueues a job at each slot of a plan: a cron expression, or every (100 ms or more); give one of the two. A schedule
of the same name is replaced. If its plan stays the same, it keeps its slots. command: its jobs are commands, in a
queue with executor sql; then payload holds arguments, autocommit, settings and result_rows. Returns the next slot;
null if there is none, or if the schedule is paused. Errors: 22023 an argument is out of range (with the place of a
fault in the expression), or data is given for a queue of commands; 42704 there is no such queue; 42601, 55000, 42501
as queue.enqueue_sql.';

COMMENT ON FUNCTION queue.unschedule IS
    'Removes a schedule; the jobs that it has enqueued stay. Errors: 42704 there is no such schedule.';

COMMENT ON FUNCTION queue.pause_schedule IS
'No slot fires until queue.resume_schedule; the slots in between do not count as missed. Errors: 42704 there is no
such schedule.';

COMMENT ON FUNCTION queue.resume_schedule IS 'Ends a pause: later slots fire. Errors: 42704 there is no such schedule.';

COMMENT ON FUNCTION queue.run_schedule IS
'Enqueues a schedule''s job now, in this transaction, even if the schedule is paused. The plan does not change, and
queue.schedules does not show this job. Returns the job''s id. Errors: 42704 there is no such schedule, or its queue
is gone.';

COMMENT ON FUNCTION queue.upcoming IS
'The next planned slots of a schedule, even if it is paused: at most runs, 0 to 10000. Errors: 42704 there is no such
schedule, 22023 runs is out of range.';

COMMENT ON FUNCTION queue_internal.firings IS 'The last and the next firing of each schedule. For the view.';

COMMENT ON VIEW queue.schedules IS 'One row for each schedule.';

COMMENT ON COLUMN queue.schedules.queue_name IS
    'The queue into which it enqueues, or the topic on which it publishes; NULL if that is gone.';

COMMENT ON COLUMN queue.schedules.cron IS 'The cron expression; NULL if every is given.';

COMMENT ON COLUMN queue.schedules.every IS 'The time between two slots; NULL if cron is given.';

COMMENT ON COLUMN queue.schedules.timezone IS 'The time zone of the plan.';

COMMENT ON COLUMN queue.schedules.next_run_at IS
    'The first slot that was not handled yet; in the past while it is overdue. NULL if none is left, or if the '
    'schedule is paused.';

COMMENT ON COLUMN queue.schedules.last_run_at IS 'When it last enqueued a slot''s job.';

COMMENT ON COLUMN queue.schedules.last_job_id IS 'The id of that job. Jobs of queue.run_schedule do not count.';

COMMENT ON COLUMN queue.schedules.is_paused IS 'True if no slot fires.';

COMMENT ON COLUMN queue.schedules.missed IS 'What happens to missed slots: skip, once (one run for all of them), all.';

COMMENT ON COLUMN queue.schedules.starts_at IS 'No slot is before it; every is counted from it.';

COMMENT ON COLUMN queue.schedules.overlap IS 'False: a slot is skipped if the last slot''s job is still alive.';

COMMENT ON COLUMN queue.schedules.priority IS 'The priority of its jobs.';

COMMENT ON COLUMN queue.schedules.max_attempts IS 'After how many attempts a job is dead; NULL: the queue''s.';

COMMENT ON COLUMN queue.schedules.group_key IS 'The group of its jobs; NULL if they have none.';

COMMENT ON COLUMN queue.schedules.headers IS 'Headers of its jobs, in addition to schedule and slot.';

COMMENT ON COLUMN queue.schedules.created_at IS 'When it was made. Replacing it does not change this.';

COMMENT ON TABLE queue.restoring IS
    'Transactions that have written to the tables by SQL. While there are any, no job runs. Not dumped.';

COMMENT ON COLUMN queue.restoring.written_at IS 'When it began to write.';

COMMENT ON COLUMN queue.restoring.pid IS 'The process of the transaction.';

COMMENT ON FUNCTION queue_internal.foreign_write IS
'Statement trigger on all tables. Only their owner may write to them by SQL, and while it does so, no job runs where
that matters. The trigger ignores the extension''s own writes.';

COMMENT ON FUNCTION queue_internal.read_only IS
    'Trigger on the views: raises an error that says that they are read-only, and what to do instead.';

COMMENT ON FUNCTION queue.adopt IS
'Ends a restore by hand. From the commit on, the contents of the tables count, and sequences are set behind them.
Errors: 55006 another transaction writes to the tables by SQL, 25001 at REPEATABLE READ or above.';

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

CREATE OR REPLACE VIEW queue.life WITH (security_barrier) AS
SELECT l.id, l.job_id, l.enqueued_at, l.lane, l.priority, l.attempt, l.max_attempts, l.run_at,
       NULL::jsonb AS payload, l.id AS payload_in,
       l.headers, l.group_key, l.unique_key, l.last_error, l.progress, l.claimed_at, l.lease_us, l.pid, l.claim_kind,
       l.worker,
       l.ended_at, l.outcome, l.next_id, l.result, l.error, l.is_newest, l.flow, l.task, l.after, l.upon, l.own_flow,
       l.start_by
FROM queue_internal.live() AS l
UNION ALL
SELECT h.id, h.job_id, h.enqueued_at, h.lane, h.priority, h.attempt, h.max_attempts, h.run_at, h.payload, NULL,
       h.headers, h.group_key, h.unique_key, h.last_error, h.progress, h.claimed_at, NULL, h.pid, h.claim_kind,
       h.worker, h.ended_at, h.outcome, h.next_id, h.result, h.error,
       h.next_id IS NULL AND NOT EXISTS (SELECT FROM queue.successor AS s WHERE s.id = h.id),
       h.flow, h.task, h.after, h.upon, h.own_flow, NULL::timestamptz
FROM queue.history AS h
-- Rows that are still being copied are read in their segment.
WHERE h.generation <> ALL (ARRAY(
    SELECT d.generation FROM queue.segment_log AS d WHERE d.state IN ('m', 'd') AND NOT EXISTS (
        SELECT FROM queue.segment_log AS c WHERE c.generation = d.generation AND c.state = 'h')))
  AND ((SELECT queue_internal.may_observe(0)) OR h.lane IN (SELECT o.lane FROM queue.observed AS o));

COMMENT ON VIEW queue.life IS
    'One row for each attempt in the logs and in history, with its claim and outcome. For the other views.';

-- For: observe.
CREATE OR REPLACE VIEW queue.attempts AS
SELECT l.id, l.job_id, o.queue_name, l.attempt,
       queue_internal.attempt_state(
           l.outcome, l.claimed_at IS NOT NULL, o.is_held, l.run_at, l.last_error IS NOT NULL) AS state,
       CASE WHEN l.claim_kind <> 's' THEN l.claimed_at END AS claimed_at,
       l.ended_at AS finished_at, l.worker, l.error, o.stage
FROM queue.life AS l
JOIN queue.observed AS o ON o.lane = l.lane;

COMMENT ON VIEW queue.attempts IS
    'One row for each attempt, that is, each run of a job. It includes runs that have not begun.';

COMMENT ON COLUMN queue.attempts.attempt IS 'The number of this run, from 1 in each stage; a release does not count.';

COMMENT ON COLUMN queue.attempts.state IS
    'held, scheduled, ready, retrying, running, or how it ended: completed, failed (there is a next attempt), dead, '
    'timed_out, released, suspended (it waits for other jobs), advanced (to another stage), cancelled, skipped, '
    'expired, superseded (by an attempt with another priority or time, or by the one that its release made).';

COMMENT ON COLUMN queue.attempts.worker IS 'The name that the worker gave.';

COMMENT ON COLUMN queue.attempts.error IS 'Why it failed, timed out, was cancelled or was skipped.';

COMMENT ON COLUMN queue.attempts.stage IS 'Its stage; NULL in a queue without stages.';

CREATE OR REPLACE VIEW queue.job_life AS
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
       l.own_flow IS NOT NULL AS is_flow, nullif(l.start_by, 'infinity') AS start_by
FROM queue.life AS l
JOIN queue.observed AS o ON o.lane = l.lane
WHERE l.is_newest;

COMMENT ON VIEW queue.job_life IS
    'The rows of queue.jobs, with the id of the newest attempt. For queue.job and the other views.';

COMMENT ON COLUMN queue.job_life.claimed_at IS 'When a worker claimed the newest attempt.';

-- For: observe.
CREATE OR REPLACE VIEW queue.jobs AS
SELECT job_id, queue_name, stage, state, payload, priority, attempt, max_attempts, run_at, enqueued_at, claimed_at,
       finished_at, lease_expires_at, worker, error, result, progress, unique_key, group_key, headers,
       flow, task, after, upon, start_by
FROM queue.job_life;

COMMENT ON VIEW queue.jobs IS
    'One row for each job. A condition on job_id reads all jobs: use queue.job(job_id) for one job.';

COMMENT ON COLUMN queue.jobs.stage IS 'The current stage; NULL in a queue without stages, and while the job is held.';

COMMENT ON COLUMN queue.jobs.state IS
    'held (waits for other jobs), scheduled (waits for its time), ready, running, retrying (waits after a failure), '
    'completed, dead (no attempts left), cancelled, skipped (its condition can no longer be met), expired (no worker '
    'had claimed it before start_by).';

COMMENT ON COLUMN queue.jobs.payload IS
    'The payload that the producer gave. It is read when the row is fetched. Late in a cursor, or in a query over '
    'very many jobs, it can be NULL because the job is not kept any more.';

COMMENT ON COLUMN queue.jobs.attempt IS
    'The number of its current run, from 1 in each stage; a release does not count.';

COMMENT ON COLUMN queue.jobs.max_attempts IS 'After how many runs it is dead: its own number, else the queue''s.';

COMMENT ON COLUMN queue.jobs.run_at IS 'It does not run before this time; NULL: it may run immediately.';

COMMENT ON COLUMN queue.jobs.claimed_at IS 'When a worker claimed the newest attempt.';

COMMENT ON COLUMN queue.jobs.finished_at IS 'When the newest attempt ended; NULL while the job is alive.';

COMMENT ON COLUMN queue.jobs.lease_expires_at IS 'When the worker''s lease expires; NULL if the job does not run.';

COMMENT ON COLUMN queue.jobs.worker IS 'The name that the worker gave.';

COMMENT ON COLUMN queue.jobs.result IS 'The result that the worker gave to queue.complete.';

COMMENT ON COLUMN queue.jobs.progress IS 'The progress that the worker reported last.';

COMMENT ON COLUMN queue.jobs.unique_key IS 'The key it has, or had.';

COMMENT ON COLUMN queue.jobs.headers IS 'The headers that the producer gave.';

COMMENT ON COLUMN queue.jobs.flow IS 'The flow of which it is a member.';

COMMENT ON COLUMN queue.jobs.after IS 'Its predecessors, also after it was released.';

COMMENT ON COLUMN queue.jobs.upon IS
    'The condition on its predecessors: completed, any, failed, ended, overdue; NULL if it has none.';

COMMENT ON COLUMN queue.jobs.start_by IS
    'If no worker has claimed it before this time, it expires; NULL if it never does. NULL, too, for jobs that have '
    'ended and are in history.';

COMMENT ON FUNCTION queue.job IS
    'One job by its id; no row if there is none. It is fast with any number of jobs. Errors: 22023 not a job''s id.';

COMMENT ON FUNCTION queue.job_attempts IS
'The attempts of a job, as queue.attempts shows them; no row if there are none. It is fast with any number of jobs.
Errors: 22023 not a job''s id.';

COMMENT ON PROCEDURE queue.await IS
'Sleeps until the job has ended, for at most timeout. Returns the job''s state at that moment, as queue.job shows it,
and its result. It holds no snapshot and no lock while it sleeps. The result is NULL for a user that may only
produce. Errors: 25001 inside a transaction block or function, P0002 there is no such job, 25006 on a standby, 22023,
55000 its queue was dropped.';

COMMENT ON FUNCTION queue.members IS
'The members of a flow in this state, in the order of their ids: at most max_jobs, beginning behind the job beyond.
Errors: 22023 not a job''s id.';

COMMENT ON TYPE queue.listed_job IS
    'What queue.list and queue.search return: the columns of queue.jobs, the position for the next call, and how many '
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

COMMENT ON FUNCTION queue.list IS
'A page of a queue''s jobs in a state, read by indexes. Jobs that run, wait or are held come in the order of their
turn; the others begin with the latest end. beyond: the value of here in the last row of the previous page. A last
row without a job says that more jobs may follow. Errors: 42704, 22023 there is no such state or stage, or beyond is
not a position.';

-- For: observe.
CREATE OR REPLACE FUNCTION queue.search(
    queue_name text, filter jsonpath DEFAULT NULL, states text[] DEFAULT NULL, beyond jsonb DEFAULT NULL,
    max_jobs integer DEFAULT 50, max_rows integer DEFAULT 20000
)
    RETURNS SETOF queue.listed_job
    VOLATILE ROWS 50 LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_search';

COMMENT ON FUNCTION queue.search IS
'A queue''s jobs for which filter is true, or finds something. The filter reads an object of job_id, stage, state,
payload, priority, attempt, max_attempts, worker, error, result, progress, unique_key, group_key, headers, flow,
task, is_flow. filter NULL: all jobs in these states. It reads for at most half a second, and at most max_rows rows.
The last row''s here says where the next call goes on, even if that row has no job. states: jobs in these states, in
this order; NULL: in all. Errors: 42704, 22023 there is no such state, or beyond is not a position.';

COMMENT ON COLUMN queue.error_group.error IS 'The error text of the last failure of these jobs.';

COMMENT ON COLUMN queue.error_group.jobs IS 'How many jobs have this error.';

COMMENT ON COLUMN queue.error_group.dead IS 'How many of these jobs are dead.';

COMMENT ON COLUMN queue.error_group.retrying IS 'How many of these jobs wait for a retry.';

COMMENT ON COLUMN queue.error_group.first_died_at IS 'When the first of the dead jobs died.';

COMMENT ON COLUMN queue.error_group.last_died_at IS 'When the last of the dead jobs died.';

COMMENT ON COLUMN queue.error_group.is_complete IS 'True if all dead and retrying jobs of the queue were read.';

COMMENT ON FUNCTION queue.error_groups IS
'The jobs that died last and the jobs that are retried next, grouped by error text. For each queue, it reads at most
max_jobs of both. queue_name null: all queues. is_complete: all such jobs of the queue were read. Errors: 42704,
22023.';

CREATE TYPE queue.lane_load AS (
    queue_name text, stage text, ready bigint, due_soon bigint, running bigint, oldest_age interval, arrivals float8,
    ends float8, run_mean interval, drain_time interval, needed bigint
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
    'How long a worker has an attempt, on average over 15 minutes; null if none has ended.';

COMMENT ON COLUMN queue.lane_load.drain_time IS
    'In which time no job will be ready any more, if all goes on like this; null: never.';

COMMENT ON COLUMN queue.lane_load.needed IS 'How many jobs have to run at once, and may.';

-- For: observe.
CREATE FUNCTION queue.load(queue_name text DEFAULT NULL, target_age interval DEFAULT '30 seconds')
    RETURNS SETOF queue.lane_load
    VOLATILE ROWS 100 LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_load';

COMMENT ON FUNCTION queue.load IS
'How many jobs of each queue and stage have to run at once so that a job waits at most target_age: the number by which
workers are scaled. Reads memory, and the index of scheduled jobs. queue_name null: all queues. No rows on a standby.
Errors: 42704, 22023 target_age is not positive.';

-- For: observe.
CREATE OR REPLACE VIEW queue.flows AS
SELECT f.job_id, f.queue_name, f.task, f.state, coalesce(m.members, 0) AS members, coalesce(m.held, 0) AS held,
       coalesce(m.scheduled, 0) AS scheduled, coalesce(m.ready, 0) AS ready, coalesce(m.running, 0) AS running,
       coalesce(m.completed, 0) AS completed, coalesce(m.dead, 0) AS dead, coalesce(m.cancelled, 0) AS cancelled,
       coalesce(m.skipped, 0) AS skipped,
       CASE WHEN m.members > 0
            THEN (m.completed + m.dead + m.cancelled + m.skipped + m.expired)::float8 / m.members
       END AS share_ended,
       f.enqueued_at, f.finished_at, coalesce(m.expired, 0) AS expired
FROM queue.job_life AS f
LEFT JOIN (SELECT j.flow, count(*) AS members, count(*) FILTER (WHERE j.state = 'held') AS held,
                  count(*) FILTER (WHERE j.state IN ('scheduled', 'retrying')) AS scheduled,
                  count(*) FILTER (WHERE j.state = 'ready') AS ready,
                  count(*) FILTER (WHERE j.state = 'running') AS running,
                  count(*) FILTER (WHERE j.state = 'completed') AS completed,
                  count(*) FILTER (WHERE j.state = 'dead') AS dead,
                  count(*) FILTER (WHERE j.state = 'cancelled') AS cancelled,
                  count(*) FILTER (WHERE j.state = 'skipped') AS skipped,
                  count(*) FILTER (WHERE j.state = 'expired') AS expired
           FROM queue.job_life AS j WHERE j.flow IS NOT NULL GROUP BY j.flow) AS m ON m.flow = f.job_id
WHERE f.is_flow;

COMMENT ON VIEW queue.flows IS
    'One row for each flow: how many of its members are in which state. It reads all jobs, so do not query it often.';

COMMENT ON COLUMN queue.flows.job_id IS 'The flow.';

COMMENT ON COLUMN queue.flows.queue_name IS 'Its queue.';

COMMENT ON COLUMN queue.flows.task IS 'Its name in the flow of which it is a member.';

COMMENT ON COLUMN queue.flows.state IS 'Its state, as in queue.jobs.';

COMMENT ON COLUMN queue.life.own_flow IS 'Makes the job a flow: see the attempts.';

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

COMMENT ON COLUMN queue.job_life.is_flow IS 'True for a flow.';

-- For: observe.
CREATE OR REPLACE VIEW queue.queues WITH (security_barrier) AS
SELECT queue_name, is_paused, max_attempts, lease, backoff, backoff_base, backoff_max, backoff_jitter, retention,
       dead_retention, dead_letter, max_running, max_running_per_group, strict_order, rate_limit, rate_period,
       max_waiting, stages, notify, created_at, executor, procedure, run_as, settings, rate_limit_per_group,
       start_within
FROM queue.queue
WHERE queue_internal.may_observe(queue_id);

COMMENT ON COLUMN queue.queues.is_paused IS 'True if claims find nothing, because of queue.pause.';

COMMENT ON COLUMN queue.queues.backoff_jitter IS 'By which share of itself a delay varies at most, up or down.';

COMMENT ON COLUMN queue.queues.dead_letter IS
    'The queue or topic that gets a copy of each job that dies; null if there is none.';

COMMENT ON COLUMN queue.queues.max_running IS 'How many of its jobs run at the same time at most; null: no limit.';

COMMENT ON COLUMN queue.queues.max_running_per_group IS
    'How many jobs of a group run at the same time at most; null: no limit.';

COMMENT ON COLUMN queue.queues.strict_order IS 'True if the jobs of a group run one by one in their order.';

COMMENT ON COLUMN queue.queues.rate_limit IS 'How many jobs start in a rate_period at most; null: no limit.';

COMMENT ON COLUMN queue.queues.stages IS 'The stages that its jobs go through, in this order; null if there are none.';

COMMENT ON COLUMN queue.queues.notify IS 'True if it sends a NOTIFY when it gets jobs.';

COMMENT ON COLUMN queue.queues.procedure IS 'With executor call: the procedure or function that gets the payloads.';

COMMENT ON COLUMN queue.queues.run_as IS 'With executor call: the role as which the procedure runs.';

COMMENT ON COLUMN queue.queues.settings IS 'Settings of the sessions in which its jobs run in the server.';

COMMENT ON COLUMN queue.queues.rate_limit_per_group IS
    'How many jobs of a group start in a rate_period at most; null: no limit.';

COMMENT ON COLUMN queue.queues.start_within IS
    'How long its jobs may wait to be claimed before they expire; null: for ever.';

-- For: observe.
CREATE OR REPLACE VIEW queue.stats AS
-- Materialized, so that it is read once.
WITH tallies AS MATERIALIZED (SELECT * FROM queue_internal.tallies())
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
FROM queue.observed AS o
LEFT JOIN tallies AS t ON t.lane = o.lane
-- Held jobs count in the stage in which jobs begin, and so do flows that end by themselves.
LEFT JOIN (SELECT l.queue_id, sum(t.ready + t.scheduled + t.retrying)::bigint AS held,
                  sum(t.enqueued)::bigint AS enqueued, sum(t.dead)::bigint AS dead,
                  sum(t.completed)::bigint AS completed, sum(t.failed)::bigint AS failed,
                  sum(t.died)::bigint AS died, sum(t.expired)::bigint AS expired
           FROM queue.observed AS l JOIN tallies AS t ON t.lane = l.lane
           WHERE l.is_held GROUP BY l.queue_id) AS h
    ON h.queue_id = o.queue_id AND o.stage IS NOT DISTINCT FROM o.stages[1]
-- Former stages are shown only if they have or had jobs. The same holds for jobs outside stages in a queue that now has
-- stages.
WHERE NOT o.is_held AND (t.lane IS NOT NULL OR o.stage = ANY (o.stages) OR o.stage IS NULL AND o.stages IS NULL);

COMMENT ON VIEW queue.stats IS
    'For each queue and stage: how many jobs are in which state now, and totals since the queue was created. Cheap '
    'with any number of ready jobs: it reads memory, and only the jobs that are scheduled, retrying or dead.';

COMMENT ON COLUMN queue.stats.stage IS 'The stage; NULL in a queue without stages.';

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

COMMENT ON VIEW queue.errors IS
    'For each queue and error text: the jobs that died of this error or wait for a retry after it.';

COMMENT ON COLUMN queue.errors.jobs IS 'How many jobs have this error.';

COMMENT ON COLUMN queue.errors.first_seen IS
    'When one of these jobs first failed with this error, among the attempts that are kept; NULL if none is kept.';

COMMENT ON COLUMN queue.errors.last_seen IS
    'When one of these jobs last failed with this error; NULL as for first_seen.';

COMMENT ON COLUMN queue.errors.example_job_id IS 'One of the jobs, to read with queue.job.';

COMMENT ON FUNCTION queue_internal.claims_now IS
    'The claims of the attempts that workers have now: from memory and by index. For the view.';

COMMENT ON VIEW queue.workers IS
    'For each worker and queue: what runs. pid and client are those of the connection that claimed.';

COMMENT ON COLUMN queue.workers.worker IS 'The name that the worker gave.';

COMMENT ON COLUMN queue.workers.pid IS
    'The process that claimed. After a restart of the server, it is a number from before the restart.';

COMMENT ON COLUMN queue.workers.client_addr IS
    'The client''s address; NULL for a local socket, or if the connection is gone.';

COMMENT ON COLUMN queue.workers.client_port IS
    'The client''s port, -1 for a local socket; NULL if the connection is gone.';

COMMENT ON COLUMN queue.workers.application_name IS 'The application_name of the connection.';

COMMENT ON COLUMN queue.workers.oldest_claimed_at IS 'When it claimed the oldest of these attempts.';

COMMENT ON COLUMN queue.workers.oldest_claim IS 'How long ago it claimed the oldest of these attempts.';

COMMENT ON FUNCTION queue_internal.executors_now IS
    'The processes that run jobs in the server now, from memory. For the view.';

COMMENT ON FUNCTION queue_internal.executor_counts IS
    'Counts of the starts of such processes since the server started, over all databases. For the metrics.';

COMMENT ON VIEW queue.executors IS 'The processes that run jobs in the server, and what each is doing.';

COMMENT ON COLUMN queue.executors.job_id IS 'The job that it runs; NULL if it runs none.';

COMMENT ON COLUMN queue.executors.since IS 'Since when it has been in this state.';

COMMENT ON COLUMN queue.executors.command IS
    'The first line of what it runs, as pg_stat_activity shows it to the user; NULL if it runs nothing.';

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

COMMENT ON COLUMN queue.storage.bytes IS 'Disk space in bytes, with indexes.';

COMMENT ON FUNCTION queue.doctor IS
'Checks the extension. Returns a row for each check: what it has found and, if ok is false, what to do. Anything stuck
longer than pg_queue.patience is reported. It waits for no other session. A check that raises an error is not ok. It
also runs on a standby. Errors: 42501 without the privilege observe on every queue.';

COMMENT ON FUNCTION queue.check IS
'Compares the logs, history, settings and shared memory with each other. Returns a row for each fault, no row if there
is none. It reads all rows, and blocks no session. repair: does what remedy says. Errors: 42501 without the privilege
manage on every queue, 55000 during a restore; with repair also 25001 at REPEATABLE READ or above, 25006, 55006.';

COMMENT ON FUNCTION queue_internal.memory_use IS
    'How much of the memory that each setting reserves is in use, over all databases. For the metrics.';

COMMENT ON FUNCTION queue_internal.recent_times IS
'How long the attempts that were claimed or ended in the last minute had waited and run: quantiles in seconds of a
sample of at most 1000 attempts. For the metrics.';

COMMENT ON FUNCTION queue_internal.held_by_dead IS
'How many held jobs wait for dead predecessors, for each lane of held jobs. A held job counts once for each dead
predecessor; counting stops at 10,000. For the metrics.';

-- The extension pg_queue_bridge, whose views cannot be named here, can be there or not.
-- For: observe.
CREATE FUNCTION queue_internal.bridge_sources(metric text) RETURNS TABLE (source text, value float8)
    STABLE ROWS 2 LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF metric IS NULL THEN
        RAISE 'metric cannot be null' USING ERRCODE = 'null_value_not_allowed';
    ELSIF EXISTS (SELECT FROM pg_extension WHERE extname = 'pg_queue_bridge') THEN
        RETURN QUERY EXECUTE $query$
            SELECT s.source, v.value FROM queue_bridge.sources AS s
            CROSS JOIN LATERAL (SELECT CASE $1
                WHEN 'pg_queue_bridge_connected' THEN (s.state IN ('streaming', 'copying'))::integer
                WHEN 'pg_queue_bridge_contact_age_seconds' THEN extract(epoch FROM clock_timestamp() - s.contact_at)
                WHEN 'pg_queue_bridge_lag_seconds' THEN extract(epoch FROM
                    clock_timestamp() - coalesce(s.caught_up_at, s.contact_at))
                WHEN 'pg_queue_bridge_renumbered_total' THEN s.renumbered
                WHEN 'pg_queue_bridge_lag_bytes' THEN s.lag_bytes WHEN 'pg_queue_bridge_refused' THEN s.refused
                WHEN 'pg_queue_bridge_late' THEN s.late WHEN 'pg_queue_bridge_phantoms' THEN s.phantoms
                WHEN 'pg_queue_bridge_repairs_total' THEN s.repairs END::float8 AS value) AS v
            WHERE v.value IS NOT NULL $query$ USING metric;
    END IF;
END
$$;

COMMENT ON FUNCTION queue_internal.bridge_sources IS
    'A metric of the databases whose jobs come here, as queue_bridge.sources says it.';

-- One part of the UNION for each source. A source whose metrics are excluded by the condition on name is not read.
-- For: observe.
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
           WHEN 'pg_queue_expired_total' THEN s.expired
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
    ('pg_queue_completed_total', NULL, 'counter',
        'Attempts completed, or advanced to another stage, since the queue was created.'),
    ('pg_queue_failed_total', NULL, 'counter', 'Attempts failed since the queue was created.'),
    ('pg_queue_timed_out_total', NULL, 'counter',
        'Attempts whose lease or connection ended since the queue was created.'),
    ('pg_queue_died_total', NULL, 'counter',
        'Attempts that were a job''s last and failed, since the queue was created.'),
    ('pg_queue_expired_total', NULL, 'counter',
        'Jobs that no worker had claimed in time, since the queue was created.')
) AS v (name, state, type, help)
CROSS JOIN queue.stats AS s
-- On a standby this would have to read the logs.
WHERE NOT pg_is_in_recovery()
UNION ALL
SELECT v.name,
       jsonb_strip_nulls(jsonb_build_object('queue', o.queue_name, 'stage', o.stage, 'quantile', r.quantile::text)),
       r.seconds, 'gauge', v.help
FROM (VALUES
    ('pg_queue_wait_seconds', 'wait',
        'How long attempts claimed in the last minute had been ready: quantiles of a sample.'),
    ('pg_queue_run_seconds', 'run', 'How long attempts that ended in the last minute had run: quantiles of a sample.')
) AS v (name, kind, help)
JOIN queue_internal.recent_times() AS r ON r.kind = v.kind
JOIN queue.observed AS o ON o.lane = r.lane
UNION ALL
SELECT v.name, jsonb_strip_nulls(jsonb_build_object('queue', l.queue_name, 'stage', l.stage)),
       CASE v.name WHEN 'pg_queue_needed' THEN l.needed ELSE extract(epoch FROM l.run_mean) END::float8, 'gauge', v.help
FROM (VALUES
    ('pg_queue_needed', 'How many jobs have to run at once so that a job waits at most 30 seconds.'),
    ('pg_queue_run_mean_seconds', 'How long workers had the attempts that ended in the last 15 minutes, on average.')
) AS v (name, help)
CROSS JOIN queue.load() AS l
WHERE v.name = 'pg_queue_needed' OR l.run_mean IS NOT NULL
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
           -- Segments that were never used are not in the log.
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
    ('pg_queue_executor_starts_total', 'counter',
        'Processes that were asked for to run jobs in the server, over all databases.'),
    ('pg_queue_executor_start_failures_total', 'counter',
        'Those of them that the server had no room for, or that could not connect.'),
    ('pg_queue_executor_dispatches_total', 'counter', 'Jobs for which a process was told or started.'),
    ('pg_queue_executor_dispatch_seconds_total', 'counter',
        'From when it was told or asked for to when it had the job, of all of them.'),
    ('pg_queue_executor_short_seconds', 'gauge', 'For how long the server has had no room for a process; 0: it has.')
) AS v (name, type, help)
CROSS JOIN queue_internal.executor_counts() AS c
UNION ALL
SELECT v.name, jsonb_build_object('source', s.source), s.value, v.type, v.help
FROM (VALUES
    ('pg_queue_bridge_connected', 'gauge', '1 while calls of this source arrive.'),
    ('pg_queue_bridge_contact_age_seconds', 'gauge', 'How long ago this server last spoke with the source.'),
    ('pg_queue_bridge_lag_bytes', 'gauge', 'How much WAL of the source had not been taken at the last contact.'),
    ('pg_queue_bridge_lag_seconds', 'gauge',
        'Up to when WAL of the source has been taken, as an age. A quiet source reports every half minute.'),
    ('pg_queue_bridge_refused', 'gauge', 'Calls of the source that could not be carried out.'),
    ('pg_queue_bridge_late', 'gauge', 'Attempts that were ended there after their lease was lost.'),
    ('pg_queue_bridge_phantoms', 'gauge', 'Jobs of transactions that the source no longer has.'),
    ('pg_queue_bridge_repairs_total', 'counter', 'How often slot and subscription were made anew.'),
    ('pg_queue_bridge_renumbered_total', 'counter',
        'Jobs of the source that got another id, because another job had theirs.')
) AS v (name, type, help)
CROSS JOIN LATERAL queue_internal.bridge_sources(v.name) AS s
WHERE queue_internal.may_observe(0)
UNION ALL
SELECT 'pg_queue_extension_info',
       jsonb_build_object('version', (SELECT extversion FROM pg_extension WHERE extname = 'pg_queue'),
                          'library_version', current_setting('pg_queue.library_version'),
                          'timezone_version', current_setting('pg_queue.timezone_version', true)),
       1, 'gauge', 'Always 1; its labels say which versions there are.';

COMMENT ON VIEW queue.metric IS 'The rows of queue.metrics().';

COMMENT ON COLUMN queue.metric.labels IS 'The labels: a JSON object whose values are strings.';

COMMENT ON COLUMN queue.metric.value IS 'Its current value.';

COMMENT ON FUNCTION queue.metrics IS
'The metrics for Prometheus exporters: a row for each name and set of labels. It does not read the logs. With a
condition on name, the other metrics cost nothing. The counters of queues survive restarts and crashes.';

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
        -- A statement that finds no row gets the error, too, so there is a trigger for each statement. It fires only if
        -- there is also a trigger for each row.
        EXECUTE format($sql$
            CREATE TRIGGER read_only BEFORE INSERT OR UPDATE OR DELETE ON %1$s
                FOR EACH STATEMENT EXECUTE FUNCTION queue_internal.read_only();
            CREATE TRIGGER read_only_row INSTEAD OF INSERT OR UPDATE OR DELETE ON %1$s
                FOR EACH ROW EXECUTE FUNCTION queue_internal.read_only();
        $sql$, relation);
    END LOOP;
END
$each_view$;

-- The trigger is on each table, so that no grant allows writes, not even membership in pg_write_all_data. Tables of
-- history that are made later get it, too.
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
        -- ALWAYS, because some restores run with session_replication_role = replica.
        EXECUTE format($sql$
            CREATE TRIGGER foreign_write BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON %1$s
                FOR EACH STATEMENT EXECUTE FUNCTION queue_internal.foreign_write();
            ALTER TABLE %1$s ENABLE ALWAYS TRIGGER foreign_write;
        $sql$, relation);
    END LOOP;
END
$each_table$;

-- Only the owner may use the objects that this transaction has made: neither PUBLIC nor ALTER DEFAULT PRIVILEGES of the
-- role that runs this script grant anything. Older objects keep their grants. A member of the extension is new if its
-- row in pg_depend is.
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

-- The functions that the transition has renamed hand their grants to the new functions of their names.
DO $former$
DECLARE
    former record;
    grantee text;
BEGIN
    FOR former IN
        SELECT p.oid::regprocedure AS name, p.proacl, p.proowner, n.oid::regprocedure AS new
        FROM pg_proc AS p JOIN pg_proc AS n ON n.proname = substr(p.proname, 8)
        WHERE p.pronamespace = 'queue_internal'::regnamespace AND p.proname LIKE 'former\_%'
          AND n.pronamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace)
    LOOP
        FOR grantee IN
            SELECT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END
            FROM aclexplode(former.proacl) AS a WHERE a.grantee <> former.proowner
        LOOP
            EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %s', former.new, grantee);
        END LOOP;
        EXECUTE format('DROP FUNCTION %s', former.name);
    END LOOP;
END
$former$;
