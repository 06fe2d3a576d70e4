-- The queues of a database in a terminal, again and again, until Ctrl-C:
--
--     psql -d app -f queue-top.sql
--     psql -d app -v seconds=5 -v errors=10 -f queue-top.sql
--
-- seconds: the time from look to look; 2. errors: how many error texts are shown; none, since each look at them reads
-- all of the logs and of history. The rest is cheap at any depth. Rates are those since the last look: each look leaves
-- its totals in a setting of the session. Needs the privilege observe on the queues that are to be shown.

\set QUIET on
\pset pager off
\pset format unaligned
\pset tuples_only on
\if :{?seconds} \else \set seconds 2 \endif

WITH last AS MATERIALIZED (
    SELECT nullif(current_setting('queue_top.last', true), '')::jsonb AS totals
), stats AS MATERIALIZED (
    SELECT concat_ws(' / ', queue_name, stage) AS lane, s.*, clock_timestamp() AS at FROM queue.stats AS s
), look AS MATERIALIZED (
    SELECT stats.*, extract(epoch FROM at - (was ->> 'at')::timestamptz) AS seconds, was
    FROM last, stats, LATERAL (SELECT totals -> lane AS was) AS w
), kept AS MATERIALIZED (
    SELECT set_config('queue_top.last', jsonb_object_agg(lane, jsonb_build_object('at', at, 'enqueued', enqueued,
        'completed', completed, 'failed', failed + timed_out))::text, false)
    FROM look
), line (part, rank, text) AS (
    SELECT 0, 0, format('%-30s %9s %8s %9s %9s %7s %9s %9s %8s  %s', 'QUEUE', 'ready', 'running', 'scheduled',
        'retrying', 'dead', 'in/s', 'done/s', 'failed/s', 'oldest')
    FROM kept
  UNION ALL
    SELECT 1, row_number() OVER (ORDER BY ready + running DESC, lane),
        format('%-30s %9s %8s %9s %9s %7s %9s %9s %8s  %s', left(lane, 30), ready, running, scheduled, retrying, dead,
            coalesce(round((enqueued - (was ->> 'enqueued')::bigint) / seconds, 1)::text, '-'),
            coalesce(round((completed - (was ->> 'completed')::bigint) / seconds, 1)::text, '-'),
            coalesce(round((failed + timed_out - (was ->> 'failed')::bigint) / seconds, 1)::text, '-'),
            date_trunc('second', oldest_ready_age))
    FROM look
  UNION ALL
    SELECT 2, 0, format('%-30s %-20s %8s %8s  %s', 'RUNNING, the longest first', 'queue', 'pid', 'jobs', 'oldest')
  UNION ALL
    SELECT 3, row_number() OVER (ORDER BY oldest_claim DESC),
        format('%-30s %-20s %8s %8s  %s', left(worker, 30), left(queue_name, 20), pid, running,
            date_trunc('second', oldest_claim))
    FROM (SELECT * FROM queue.workers WHERE running > 0 ORDER BY oldest_claim DESC LIMIT 15) AS worker
\if :{?errors}
  UNION ALL
    SELECT 4, 0, format('%-20s %9s %20s  %s', 'ERRORS', 'jobs', 'last seen', 'text')
  UNION ALL
    SELECT 5, row_number() OVER (ORDER BY jobs DESC, error),
        format('%-20s %9s %20s  %s', left(queue_name, 20), jobs,
            to_char(last_seen, 'YYYY-MM-DD HH24:MI:SS'), left(error, 80))
    FROM (SELECT * FROM queue.errors ORDER BY jobs DESC, error LIMIT :errors) AS error
\endif
)
-- Names and error texts are others': no control characters of theirs reach the terminal.
SELECT concat(
    CASE WHEN part = 0 THEN E'\x1b[H\x1b[2J' || date_trunc('second', now()) || E'\n\n' WHEN rank = 0 THEN E'\n' END,
    regexp_replace(text, '[[:cntrl:]]', ' ', 'g'))
FROM line ORDER BY part, rank
\watch :seconds
