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
