-- The table with a status column and SKIP LOCKED, as articles on "Postgres as a queue" recommend it. With IN
-- instead of an array, some plans run the inner query again for each row and claim more than the limit.
-- {limit}: a parameter or a number. {condition}: which jobs. {columns}: what a claim returns.
-- name: set-up
CREATE TABLE jobs (
    id bigserial PRIMARY KEY,
    status text NOT NULL DEFAULT 'queued',
    priority integer NOT NULL DEFAULT 0,
    attempt integer NOT NULL DEFAULT 0,
    max_attempts integer NOT NULL DEFAULT 20,
    payload jsonb NOT NULL,
    run_at timestamptz NOT NULL DEFAULT now(),
    locked_at timestamptz,
    locked_by integer,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    error text
);
CREATE INDEX jobs_queued_idx ON jobs (priority, id) WHERE status = 'queued';

-- name: send
INSERT INTO jobs (payload) VALUES ($1) RETURNING id
-- name: send-many
INSERT INTO jobs (payload) SELECT unnest($1::jsonb[]) RETURNING id
-- name: claim
UPDATE jobs SET status = 'running', attempt = attempt + 1, locked_at = now(), locked_by = pg_backend_pid(),
                updated_at = now()
WHERE id = ANY (ARRAY(SELECT id FROM jobs WHERE status = 'queued' AND run_at <= now() AND {condition}
                      ORDER BY priority, id LIMIT {limit} FOR UPDATE SKIP LOCKED))
RETURNING {columns}
-- name: complete
UPDATE jobs SET status = 'done', updated_at = now() WHERE id = $1 AND status = 'running'
-- name: complete-many
UPDATE jobs SET status = 'done', updated_at = now() WHERE id = ANY ($1) AND status = 'running'
