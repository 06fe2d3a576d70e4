-- Sizes of the tables in {schema}, and the dead rows in {logs}: those that must not have any and must not grow, as a
-- condition on `c`, a row of pg_class. {dead}: the count of these rows, or NaN. The history's own children come and go.
WITH RECURSIVE history (oid) AS (
    SELECT to_regclass('queue_internal.history')::oid
    UNION ALL SELECT inhrelid FROM pg_inherits JOIN history ON inhparent = history.oid
), tables AS (
    SELECT c.oid, {logs} AS is_log, EXISTS (SELECT FROM history h WHERE h.oid = c.oid) AS is_history
    FROM pg_class c WHERE c.relkind = 'r' AND c.relnamespace = '{schema}'::regnamespace
), sized AS MATERIALIZED (
    SELECT *, pg_total_relation_size(oid) AS size FROM tables
)
SELECT coalesce(sum(size) FILTER (WHERE is_log), 0)::float8,
       coalesce(sum(size) FILTER (WHERE is_history), 0)::float8,
       coalesce(sum(size), 0)::float8,
       coalesce(sum(pg_stat_get_dead_tuples(oid)) FILTER (WHERE is_log), 0)::float8,
       {dead}
FROM sized
