-- The states of the segments, and the history of ended attempts.

CREATE TABLE queue_internal.segment_log (
    entry       bigint      NOT NULL CONSTRAINT segment_log_pkey PRIMARY KEY,
    segment     integer     NOT NULL CONSTRAINT segment_log_segment_check CHECK (segment BETWEEN 0 AND 9),
    generation  bigint      NOT NULL,
    state       "char"      NOT NULL
                CONSTRAINT segment_log_state_check CHECK (state IN ('f', 'o', 'c', 'm', 'd', 'h', 'e')),
    at          timestamptz NOT NULL,
    copied_to   bigint
) USING heap;
INSERT INTO queue_internal.segment_log (entry, segment, generation, state, at)
VALUES (1, 0, 1, 'o', pg_catalog.now()), (2, 8, 2, 'o', pg_catalog.now());
COMMENT ON TABLE queue_internal.segment_log IS
    'The states of the segments of the logs. For each segment, the newest row counts.';
COMMENT ON COLUMN queue_internal.segment_log.entry IS 'Ascending number of the row.';
COMMENT ON COLUMN queue_internal.segment_log.segment IS '0 to 7: young; 8 and 9: the halves of old.';
COMMENT ON COLUMN queue_internal.segment_log.generation IS
    'The number of this filling of the segment; it is never used twice.';
COMMENT ON COLUMN queue_internal.segment_log.state IS
    'f free, o open, c closed, m its living jobs are moved out, d drained and being copied to history, h copied to '
    'history, e being emptied.';
COMMENT ON COLUMN queue_internal.segment_log.at IS 'Since when it has this state.';
COMMENT ON COLUMN queue_internal.segment_log.copied_to IS 'History has the attempts up to this id.';

CREATE TABLE queue_internal.successor (
    id          bigint      NOT NULL CONSTRAINT successor_pkey PRIMARY KEY,
    next_id     bigint      NOT NULL,
    retried_at  timestamptz NOT NULL
) USING heap;
COMMENT ON TABLE queue_internal.successor IS 'Ended attempts that queue.retry has given a next attempt.';
COMMENT ON COLUMN queue_internal.successor.id IS 'The ended attempt.';
COMMENT ON COLUMN queue_internal.successor.next_id IS 'The attempt that goes on with the job.';
COMMENT ON COLUMN queue_internal.successor.retried_at IS 'When it was retried.';

CREATE TABLE queue_internal.history (
    id              bigint      NOT NULL,
    job_id          bigint      NOT NULL,
    generation      bigint      NOT NULL,
    enqueued_at     timestamptz NOT NULL,
    claimed_at      timestamptz,
    ended_at        timestamptz NOT NULL,
    lane            integer     NOT NULL,
    priority        integer     NOT NULL,
    attempt         integer     NOT NULL,
    max_attempts    integer,
    pid             integer,
    outcome         "char"      NOT NULL,
    claim_kind      "char",
    run_at          timestamptz,
    next_id         bigint,
    payload         jsonb,
    headers         jsonb,
    group_key       text COLLATE "C",
    unique_key      text COLLATE "C",
    worker          text,
    error           text,
    last_error      text,
    result          jsonb,
    progress        jsonb,
    lease           interval,
    version         timestamptz,
    flow            bigint,
    task            text,
    after           bigint[],
    upon            "char",
    steps           jsonb,
    run_as          text,
    run_as_id       bigint,
    own_flow        jsonb,
    timing          jsonb
) USING heap;
ALTER TABLE queue_internal.history REPLICA IDENTITY FULL;
-- This table has no rows. The table of each day is made like this one, and so gets these indexes.
CREATE INDEX history_job_id_idx ON queue_internal.history (job_id) WITH (deduplicate_items = off);
CREATE INDEX history_id_idx ON queue_internal.history (id)
    WHERE ((id OPERATOR(pg_catalog.>>) 4) OPERATOR(pg_catalog.&) 4398046511103::pg_catalog.int8)
          OPERATOR(pg_catalog.<>)
          ((job_id OPERATOR(pg_catalog.>>) 4) OPERATOR(pg_catalog.&) 4398046511103::pg_catalog.int8);
CREATE INDEX history_lane_idx ON queue_internal.history (lane)
    WHERE outcome OPERATOR(pg_catalog.=) 'd' OR outcome OPERATOR(pg_catalog.=) 't' AND next_id IS NULL;
CREATE INDEX history_flow_idx ON queue_internal.history (flow) WITH (deduplicate_items = off) WHERE flow IS NOT NULL;
COMMENT ON TABLE queue_internal.history IS
    'Ended attempts that have left the segments: one child table for each day on which they expire. Read them through '
    'queue.jobs and queue.attempts.';
COMMENT ON COLUMN queue_internal.history.generation IS
    'The generation of the segment that had the attempt. The row counts once that segment is copied completely.';
COMMENT ON COLUMN queue_internal.history.claimed_at IS 'When it was claimed.';
COMMENT ON COLUMN queue_internal.history.ended_at IS 'When it ended.';
COMMENT ON COLUMN queue_internal.history.lane IS 'The queue or stage, see queue_internal.lane.';
COMMENT ON COLUMN queue_internal.history.max_attempts IS 'Null: the queue''s.';
COMMENT ON COLUMN queue_internal.history.outcome IS
    'c completed, f failed, d dead, t timed out, r released, w suspended, a advanced, x cancelled, s superseded, '
    'k skipped, e expired.';
COMMENT ON COLUMN queue_internal.history.claim_kind IS
    'w: a worker; b: a worker, bound to its connection; s: the system, which ended it before it ran.';
COMMENT ON COLUMN queue_internal.history.next_id IS 'The attempt that goes on with the job.';
COMMENT ON COLUMN queue_internal.history.payload IS 'Only in the last attempt of a job.';
COMMENT ON COLUMN queue_internal.history.lease IS 'Null: the queue''s.';
COMMENT ON COLUMN queue_internal.history.flow IS 'The job whose flow it is a member of.';
COMMENT ON COLUMN queue_internal.history.task IS 'Its name in the flow.';
COMMENT ON COLUMN queue_internal.history.after IS 'Its predecessors.';
COMMENT ON COLUMN queue_internal.history.upon IS 'The condition on which it waited: see the attempts.';
COMMENT ON COLUMN queue_internal.history.own_flow IS 'Makes the job a flow: see the attempts.';
COMMENT ON COLUMN queue_internal.history.timing IS 'What the producer gave of start_by and others: see the attempts.';
COMMENT ON COLUMN queue_internal.history.steps IS
    'The steps that were done: a field for each, with its result. Only in the last attempt of a job.';
COMMENT ON COLUMN queue_internal.history.run_as IS 'The role that wrote the payload as a command; null: it is data.';
COMMENT ON COLUMN queue_internal.history.run_as_id IS 'The oid of that role.';
COMMENT ON COLUMN queue_internal.history.version IS
    'The version that was enqueued under the key, as the producer counts.';

DO $dump$
BEGIN
    PERFORM pg_catalog.pg_extension_config_dump('queue_internal.segment_log'::regclass, 'WHERE entry > 2');
    PERFORM pg_catalog.pg_extension_config_dump('queue_internal.successor'::regclass, '');
    PERFORM pg_catalog.pg_extension_config_dump('queue_internal.history'::regclass, '');
END
$dump$;
