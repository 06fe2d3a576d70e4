-- What the demo shows when all is done: psql prints each query with its result.
\set ECHO queries
\pset footer off

SELECT round(ts_rank_cd(tsv, query, 1)::numeric, 4) AS rank, path
FROM document, websearch_to_tsquery('english', 'free software warranty') AS query
WHERE tsv @@ query ORDER BY rank DESC, path LIMIT 5;

SELECT indexed_by, count(*) FROM document GROUP BY indexed_by ORDER BY indexed_by;

SELECT job_id, attempt, state, worker, error FROM queue.attempts
WHERE job_id IN (SELECT job_id FROM queue.attempts WHERE attempt > 1) ORDER BY job_id, attempt;

SELECT error, jobs, first_seen::time(0), last_seen::time(0), example_job_id FROM queue.errors;

\x on
SELECT * FROM queue.stats;
