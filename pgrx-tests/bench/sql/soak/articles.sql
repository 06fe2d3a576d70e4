-- Other plans than by the index look good to a planner that has seen the table while it was small.
-- name: settings
SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off
-- name: send-many
INSERT INTO jobs (payload, priority, run_at) SELECT $1, $3, now() + coalesce($4::float8, 0) * interval '1 second'
WHERE $2::text IS NOT NULL RETURNING id
-- name: retry
UPDATE jobs SET status = 'queued', error = 'not yet', run_at = now() + interval '{retry_ms} ms', updated_at = now()
WHERE id = ANY ($1) AND status = 'running'
-- name: kill
UPDATE jobs SET status = 'dead', error = 'never', updated_at = now() WHERE id = ANY ($1) AND status = 'running'
-- name: schema
public
-- name: logs
c.relname = 'jobs'
