-- A table as in the articles, with 100,000 jobs that wait and three that run, for docs/coming-from/skip-locked.md.
CREATE TABLE jobs (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue text NOT NULL DEFAULT 'default',
    payload jsonb NOT NULL DEFAULT '{}',
    priority integer NOT NULL DEFAULT 0,
    status text NOT NULL DEFAULT 'queued',    -- queued, running, done, failed
    run_at timestamptz NOT NULL DEFAULT now(),
    attempts integer NOT NULL DEFAULT 0,
    max_attempts integer NOT NULL DEFAULT 5,
    locked_by text,
    locked_at timestamptz,
    last_error text,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX jobs_queued ON jobs (queue, priority, id) WHERE status = 'queued';

INSERT INTO jobs (queue, payload, priority, run_at, attempts, status)
SELECT CASE WHEN n % 10 = 0 THEN 'reports' ELSE 'mail' END, jsonb_build_object('n', n), n % 3,
    now() + CASE WHEN n % 20 = 7 THEN interval '1 day' ELSE '0' END, n % 2,
    CASE WHEN n <= 3 THEN 'running' ELSE 'queued' END
FROM generate_series(1, 100003) AS n;
