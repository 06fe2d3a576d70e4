-- Throughput: what each queue did in each minute, from reclaimed segments (queue_internal.rollup) and from current
-- ones.

-- Rows are appended when a segment is reclaimed, and pruned by age; they are never updated. A minute of a lane has a
-- row for each segment that had attempts of it.
CREATE TABLE queue_internal.rollup (
    minute              timestamptz NOT NULL,
    segment_generation  bigint      NOT NULL,
    enqueued            bigint      NOT NULL,
    claimed             bigint      NOT NULL,
    completed           bigint      NOT NULL,
    failed              bigint      NOT NULL,
    timed_out           bigint      NOT NULL,
    died                bigint      NOT NULL,
    lane                integer     NOT NULL,
    wait                bytea,
    run                 bytea,
    expired             bigint
) USING heap;
ALTER TABLE queue_internal.rollup REPLICA IDENTITY FULL;
-- Not unique: a minute may be spread over several segments. Rows are read and pruned by time.
CREATE INDEX rollup_minute_idx ON queue_internal.rollup (minute);
-- Histograms are compact, so compressing them would only cost time.
ALTER TABLE queue_internal.rollup ALTER COLUMN wait SET STORAGE EXTERNAL, ALTER COLUMN run SET STORAGE EXTERNAL;
COMMENT ON TABLE queue_internal.rollup IS
    'What queues did in each minute: the sums over reclaimed segments. Read it through queue.throughput.';
COMMENT ON COLUMN queue_internal.rollup.minute IS 'The begin of the minute.';
COMMENT ON COLUMN queue_internal.rollup.segment_generation IS 'The generation of the segment that was summed up.';
COMMENT ON COLUMN queue_internal.rollup.enqueued IS 'Jobs enqueued in this minute, in the stage in which they began.';
COMMENT ON COLUMN queue_internal.rollup.claimed IS 'Attempts claimed by workers in this minute.';
COMMENT ON COLUMN queue_internal.rollup.completed IS
    'Attempts completed, or advanced to another stage, in this minute.';
COMMENT ON COLUMN queue_internal.rollup.failed IS 'Attempts failed in this minute.';
COMMENT ON COLUMN queue_internal.rollup.timed_out IS
    'Attempts whose lease expired or whose connection ended in this minute.';
COMMENT ON COLUMN queue_internal.rollup.died IS 'Attempts that were a job''s last and failed in this minute.';
COMMENT ON COLUMN queue_internal.rollup.lane IS 'The queue or stage, see queue_internal.lane.';
COMMENT ON COLUMN queue_internal.rollup.wait IS
    'Histogram of how long the attempts claimed in this minute had waited; null if there are none.';
COMMENT ON COLUMN queue_internal.rollup.run IS
    'Histogram of how long the attempts that ended in this minute had run; null if there are none.';
COMMENT ON COLUMN queue_internal.rollup.expired IS 'Jobs that expired in this minute; null: none.';
SELECT pg_catalog.pg_extension_config_dump('queue_internal.rollup', '');

-- What attempts that have started count for rates, in queues with a rate_limit_per_group or a rate_cost. Rows are
-- appended and pruned when a segment is reclaimed.
CREATE TABLE queue_internal.group_start (
    minute      timestamptz NOT NULL,
    group_hash  bigint      NOT NULL,
    claimed     bigint      NOT NULL,
    lane        integer     NOT NULL,
    beyond      bigint      NOT NULL
) USING heap;
ALTER TABLE queue_internal.group_start REPLICA IDENTITY FULL;
COMMENT ON TABLE queue_internal.group_start IS
    'What the attempts of each group that were claimed in each minute count, in reclaimed segments. Kept as long as it '
    'counts for a rate.';
COMMENT ON COLUMN queue_internal.group_start.minute IS 'The begin of the minute.';
COMMENT ON COLUMN queue_internal.group_start.group_hash IS 'The hash of the group''s key; 0: attempts in no group.';
COMMENT ON COLUMN queue_internal.group_start.claimed IS 'What they count: 1 each, or their costs.';
COMMENT ON COLUMN queue_internal.group_start.beyond IS 'By how much that is more than their number.';
COMMENT ON COLUMN queue_internal.group_start.lane IS 'The lane of the attempts.';
SELECT pg_catalog.pg_extension_config_dump('queue_internal.group_start', '');

-- The totals of the rollup, which remain when its minutes are pruned. Without them, a recount after a start would have
-- to read all minutes. Rows are appended with the rollup. From time to time the worker merges the rows of a lane into
-- one.
CREATE TABLE queue_internal.total (
    segment_generation  bigint  NOT NULL,
    enqueued            bigint  NOT NULL,
    claimed             bigint  NOT NULL,
    completed           bigint  NOT NULL,
    failed              bigint  NOT NULL,
    timed_out           bigint  NOT NULL,
    died                bigint  NOT NULL,
    lane                integer NOT NULL,
    expired             bigint
) USING heap;
ALTER TABLE queue_internal.total REPLICA IDENTITY FULL;
CREATE INDEX total_lane_idx ON queue_internal.total (lane);
COMMENT ON TABLE queue_internal.total IS 'What queues have done in reclaimed segments. Read it through queue.stats.';
COMMENT ON COLUMN queue_internal.total.segment_generation IS
    'The generation of the segment that was summed up; if there are several, the last one.';
COMMENT ON COLUMN queue_internal.total.enqueued IS 'Jobs enqueued.';
COMMENT ON COLUMN queue_internal.total.claimed IS 'Attempts claimed by workers.';
COMMENT ON COLUMN queue_internal.total.completed IS 'Attempts completed.';
COMMENT ON COLUMN queue_internal.total.failed IS 'Attempts failed.';
COMMENT ON COLUMN queue_internal.total.timed_out IS 'Attempts whose lease expired or whose connection ended.';
COMMENT ON COLUMN queue_internal.total.died IS 'Attempts that were a job''s last and failed.';
COMMENT ON COLUMN queue_internal.total.lane IS 'The queue or stage, see queue_internal.lane.';
COMMENT ON COLUMN queue_internal.total.expired IS 'Jobs that expired; null: none.';
SELECT pg_catalog.pg_extension_config_dump('queue_internal.total', '');

-- For: observe.
CREATE FUNCTION queue_internal.throughput_live()
    RETURNS TABLE (minute timestamptz, segment_generation bigint, enqueued bigint, claimed bigint, completed bigint,
                   failed bigint, timed_out bigint, died bigint, lane integer, wait bytea, run bytea,
                   expired bigint)
    STABLE LANGUAGE c ROWS 1000 AS 'MODULE_PATHNAME', 'pg_queue_throughput_live';
COMMENT ON FUNCTION queue_internal.throughput_live IS
'The rows that queue_internal.rollup will get from the segments that are not reclaimed yet. Each call sums them up. For
the views.';

-- For: observe.
CREATE FUNCTION queue_internal.times(histograms bytea[], OUT mean interval, OUT p50 interval, OUT p95 interval,
    OUT p99 interval)
    IMMUTABLE LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_times';
COMMENT ON FUNCTION queue_internal.times IS
'Mean and percentiles of the times in all of these histograms of queue_internal.rollup; null if they have none. For the
views. Errors: 22023 not a histogram.';

-- For: observe.
CREATE VIEW queue_internal.throughput_part WITH (security_barrier) AS
SELECT o.queue_name, o.stage, r.minute, r.enqueued, r.claimed, r.completed, r.failed, r.timed_out, r.died, r.wait,
       r.run, r.expired
FROM (SELECT minute, enqueued, claimed, completed, failed, timed_out, died, lane, wait, run, expired
      FROM queue_internal.rollup
      UNION ALL
      SELECT minute, enqueued, claimed, completed, failed, timed_out, died, lane, wait, run, expired
      FROM queue_internal.throughput_live()) AS r
JOIN queue_internal.observed AS o ON o.lane = r.lane;
COMMENT ON VIEW queue_internal.throughput_part IS
    'The rows of queue.throughput before the parts of a minute in several segments are added up. For queue.throughput '
    'and queue.throughput_by.';

-- One function call for each column, so that a query reads no histogram for columns that it does not select.
-- For: observe.
CREATE VIEW queue.throughput AS
SELECT queue_name, stage, minute, enqueued, claimed, completed, failed, timed_out, died,
       (queue_internal.times(wait)).mean AS wait_mean, (queue_internal.times(wait)).p50 AS wait_p50,
       (queue_internal.times(wait)).p95 AS wait_p95, (queue_internal.times(wait)).p99 AS wait_p99,
       (queue_internal.times(run)).mean AS run_mean, (queue_internal.times(run)).p50 AS run_p50,
       (queue_internal.times(run)).p95 AS run_p95, (queue_internal.times(run)).p99 AS run_p99, expired
FROM (SELECT queue_name, stage, minute, sum(enqueued)::bigint AS enqueued, sum(claimed)::bigint AS claimed,
             sum(completed)::bigint AS completed, sum(failed)::bigint AS failed, sum(timed_out)::bigint AS timed_out,
             sum(died)::bigint AS died, array_agg(wait) AS wait, array_agg(run) AS run,
             coalesce(sum(expired), 0)::bigint AS expired
      FROM queue_internal.throughput_part GROUP BY queue_name, stage, minute) AS g;
COMMENT ON VIEW queue.throughput IS
    'What each queue and stage did in each minute. Minutes without events have no row; minutes before '
    'pg_queue.statistics_retention are gone.';
COMMENT ON COLUMN queue.throughput.queue_name IS 'The queue.';
COMMENT ON COLUMN queue.throughput.stage IS 'The stage; NULL in a queue without stages.';
COMMENT ON COLUMN queue.throughput.minute IS 'The begin of the minute.';
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
          FROM queue_internal.throughput_part AS p
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
CREATE VIEW queue_internal.activity_part WITH (security_barrier) AS
WITH memory AS MATERIALIZED (SELECT * FROM queue_internal.minutes_now())
SELECT o.queue_name, o.stage, m.minute, m.enqueued, m.claimed, m.completed, m.failed, m.timed_out, m.died,
       m.minute > m.since AS is_complete, m.expired
FROM memory AS m
JOIN queue_internal.observed AS o ON o.lane = m.lane
WHERE m.minute IS NOT NULL
UNION ALL
SELECT o.queue_name, o.stage, r.minute, r.enqueued, r.claimed, r.completed, r.failed, r.timed_out, r.died, false,
       r.expired
FROM queue_internal.rollup AS r
JOIN queue_internal.observed AS o ON o.lane = r.lane
LEFT JOIN memory AS m ON m.lane = r.lane AND m.minute IS NULL
WHERE m.known_from IS NULL OR r.minute < m.known_from;
COMMENT ON VIEW queue_internal.activity_part IS
    'Minutes of queues: those of the last hour from memory, earlier ones as far as segments were summed up. For '
    'queue.activity.';
COMMENT ON COLUMN queue_internal.activity_part.queue_name IS 'The queue.';
COMMENT ON COLUMN queue_internal.activity_part.stage IS 'The stage; null in a queue without stages.';
COMMENT ON COLUMN queue_internal.activity_part.minute IS 'The begin of the minute.';
COMMENT ON COLUMN queue_internal.activity_part.enqueued IS 'Jobs enqueued in this minute.';
COMMENT ON COLUMN queue_internal.activity_part.claimed IS 'Attempts claimed by workers in this minute.';
COMMENT ON COLUMN queue_internal.activity_part.completed IS 'Attempts completed in this minute.';
COMMENT ON COLUMN queue_internal.activity_part.failed IS 'Attempts failed in this minute.';
COMMENT ON COLUMN queue_internal.activity_part.timed_out IS
    'Attempts whose lease expired or whose connection ended in this minute.';
COMMENT ON COLUMN queue_internal.activity_part.died IS 'Attempts that were a job''s last and failed in this minute.';
COMMENT ON COLUMN queue_internal.activity_part.is_complete IS
    'True if memory has counted the whole minute. False: it has only what was summed up so far.';
COMMENT ON COLUMN queue_internal.activity_part.expired IS 'Jobs that expired in this minute; null: none.';

CREATE TYPE queue.activity_period AS (
    queue_name text, stage text, starts_at timestamptz, enqueued bigint, claimed bigint, completed bigint,
    failed bigint, timed_out bigint, died bigint, is_complete boolean, expired bigint
);
COMMENT ON TYPE queue.activity_period IS 'What queue.activity returns.';
COMMENT ON COLUMN queue.activity_period.queue_name IS 'The queue.';
COMMENT ON COLUMN queue.activity_period.stage IS 'The stage; null in a queue without stages.';
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
CREATE FUNCTION queue.activity(queue_name text DEFAULT NULL, since timestamptz DEFAULT NULL,
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
    FROM queue_internal.activity_part AS p
    WHERE p.minute >= coalesce(activity.since, clock_timestamp() - interval '1 hour')
      AND (activity.queue_name IS NULL OR p.queue_name = activity.queue_name)
    GROUP BY 1, 2, 3
    ORDER BY 1, 2, 3;
END;
COMMENT ON FUNCTION queue.activity IS
'What queues did in each period, without reading the logs: for the last hour from memory, before that as far as it was
summed up. queue_name null: all queues. since null: the last hour. is_complete: memory has counted the whole period.
Errors: 0A000 a period of months, 22008 a period that is not positive.';
