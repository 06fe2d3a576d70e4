SELECT (SELECT count(DISTINCT n) FROM ran), count(*) FILTER (WHERE status = 'succeeded'),
       count(*) FILTER (WHERE status = 'failed'), count(*),
       (pgstattuple('cron.job_run_details')).dead_tuple_count, pg_total_relation_size('cron.job_run_details')
FROM cron.job_run_details
