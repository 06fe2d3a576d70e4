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
