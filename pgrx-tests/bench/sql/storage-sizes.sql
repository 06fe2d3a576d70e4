SELECT coalesce(sum(size) FILTER (WHERE is_log), 0)::bigint,
       coalesce(sum(size) FILTER (WHERE is_history), 0)::bigint, coalesce(sum(size), 0)::bigint,
       coalesce(sum(pg_stat_get_dead_tuples(oid)) FILTER (WHERE is_log), 0)::bigint
FROM (SELECT *, pg_total_relation_size(oid) AS size FROM tables OFFSET 0) sized
