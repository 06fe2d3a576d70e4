CREATE SEQUENCE attempt_id CACHE 100;
CREATE TABLE attempt (
    id bigint PRIMARY KEY,
    job_id bigint NOT NULL,
    enqueued_at timestamptz NOT NULL,
    lane integer NOT NULL,
    priority integer NOT NULL,
    attempt integer NOT NULL,
    max_attempts integer,
    run_at timestamptz,
    payload jsonb
) WITH (autovacuum_enabled = off);
CREATE INDEX ON attempt (lane, priority, id);
CREATE TABLE claim (
    id bigint PRIMARY KEY,
    claimed_at timestamptz NOT NULL,
    lease_us bigint NOT NULL,
    pid integer NOT NULL,
    kind "char" NOT NULL
) WITH (autovacuum_enabled = off);
CREATE TABLE outcome (
    id bigint PRIMARY KEY,
    ended_at timestamptz NOT NULL,
    outcome "char" NOT NULL
) WITH (autovacuum_enabled = off);
