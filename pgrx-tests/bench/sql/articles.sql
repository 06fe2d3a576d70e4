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
