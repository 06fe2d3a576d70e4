-- The three inserts that pg_queue makes for a job, on plain tables of the same shape: columns, keys and storage options
-- are those of the extension, and a sequence costs next to nothing. A client claims what it has sent.
-- name: set-up
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

-- name: send
INSERT INTO attempt (id, job_id, enqueued_at, lane, priority, attempt, payload)
VALUES (nextval('attempt_id'), currval('attempt_id'), now(), 1, 0, 1, $1) RETURNING id
-- name: send-many
INSERT INTO attempt (id, job_id, enqueued_at, lane, priority, attempt, payload)
SELECT id, id, now(), 1, 0, 1, payload
FROM (SELECT nextval('attempt_id') AS id, payload FROM unnest($1::jsonb[]) payload) j RETURNING id
-- name: claim
INSERT INTO claim VALUES ($1, now(), 300000000, pg_backend_pid(), 'w')
-- name: claim-many
INSERT INTO claim SELECT id, now(), 300000000, pg_backend_pid(), 'w' FROM unnest($1::bigint[]) id
-- name: complete
INSERT INTO outcome VALUES ($1, now(), 'c')
-- name: complete-many
INSERT INTO outcome SELECT id, now(), 'c' FROM unnest($1::bigint[]) id
