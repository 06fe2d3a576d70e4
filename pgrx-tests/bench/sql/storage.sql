-- {schema} and {logs}: see Tables. The history's own children come and go.
WITH RECURSIVE history (oid) AS (
    SELECT to_regclass('queue.history')::oid
    UNION ALL SELECT inhrelid FROM pg_inherits JOIN history ON inhparent = history.oid
), tables AS (
    SELECT c.oid, {logs} AS is_log, EXISTS (SELECT FROM history h WHERE h.oid = c.oid) AS is_history
    FROM pg_class c WHERE c.relkind = 'r' AND c.relnamespace = '{schema}'::regnamespace
)
