-- Tables in place of those of pg-boss, graphile-worker, River and Oban, for docs/coming-from/libraries.md.
CREATE SCHEMA pgboss;
CREATE TYPE pgboss.job_state AS ENUM ('created', 'retry', 'active', 'completed', 'cancelled', 'failed');
CREATE TABLE pgboss.queue (name text PRIMARY KEY, policy text NOT NULL, retry_limit int NOT NULL DEFAULT 2,
    retry_delay int NOT NULL DEFAULT 0, retry_backoff bool NOT NULL DEFAULT false, dead_letter text);
CREATE TABLE pgboss.job (id uuid DEFAULT gen_random_uuid(), name text NOT NULL, priority int NOT NULL DEFAULT 0,
    data jsonb,
    state pgboss.job_state NOT NULL DEFAULT 'created', retry_limit int NOT NULL DEFAULT 2,
    retry_count int NOT NULL DEFAULT 0,
    expire_seconds int NOT NULL DEFAULT 900, singleton_key text, group_id text,
    start_after timestamptz NOT NULL DEFAULT now(), created_on timestamptz NOT NULL DEFAULT now(),
    started_on timestamptz,
    keep_until timestamptz NOT NULL DEFAULT now() + interval '14 days', policy text,
    blocked boolean NOT NULL DEFAULT false,
    blocking boolean NOT NULL DEFAULT false, PRIMARY KEY (name, id)) PARTITION BY LIST (name);
CREATE TABLE pgboss.job_common PARTITION OF pgboss.job DEFAULT;
INSERT INTO pgboss.queue VALUES ('mail', 'standard');
INSERT INTO pgboss.job (name, data, priority, state, started_on, policy)
VALUES ('mail', '{"to": 1}', 0, 'created', NULL, 'standard'), ('mail', '{"to": 2}', 5, 'retry', now(), 'standard'),
    ('mail', '{"to": 3}', 0, 'active', now(), 'standard');

CREATE SCHEMA graphile_worker;
CREATE TABLE graphile_worker._private_tasks (id int PRIMARY KEY, identifier text NOT NULL UNIQUE);
CREATE TABLE graphile_worker._private_job_queues (id int PRIMARY KEY, queue_name text NOT NULL UNIQUE,
    locked_at timestamptz);
CREATE TABLE graphile_worker._private_jobs (id bigint PRIMARY KEY, job_queue_id int, task_id int NOT NULL,
    payload json NOT NULL DEFAULT '{}', priority smallint NOT NULL DEFAULT 0,
    run_at timestamptz NOT NULL DEFAULT now(),
    attempts smallint NOT NULL DEFAULT 0, max_attempts smallint NOT NULL DEFAULT 25, last_error text, key text UNIQUE,
    locked_at timestamptz, flags jsonb);
INSERT INTO graphile_worker._private_tasks VALUES (1, 'resize');
INSERT INTO graphile_worker._private_job_queues VALUES (1, 'customer 7', NULL);
INSERT INTO graphile_worker._private_jobs (id, task_id, job_queue_id, payload, attempts, key, locked_at)
VALUES (1, 1, 1, '{"file": 1}', 1, 'file 1', NULL), (2, 1, NULL, '{"file": 2}', 25, NULL, NULL), (3, 1, NULL, '{}',
    1, NULL, now());

CREATE TYPE river_job_state AS ENUM
    ('available', 'cancelled', 'completed', 'discarded', 'pending', 'retryable', 'running', 'scheduled');
CREATE TABLE river_job (id bigserial PRIMARY KEY, state river_job_state NOT NULL DEFAULT 'available',
    attempt smallint NOT NULL DEFAULT 0, max_attempts smallint NOT NULL,
    scheduled_at timestamptz NOT NULL DEFAULT now(),
    priority smallint NOT NULL DEFAULT 1, args jsonb NOT NULL, kind text NOT NULL,
    metadata jsonb NOT NULL DEFAULT '{}',
    queue text NOT NULL DEFAULT 'default');
INSERT INTO river_job (state, attempt, max_attempts, args, kind)
VALUES ('available', 0, 25, '{"n": 1}', 'sort'), ('retryable', 3, 25, '{"n": 2}', 'sort'), ('running', 1, 25,
    '{"n": 3}', 'sort');

CREATE TYPE oban_job_state AS ENUM
    ('available', 'suspended', 'scheduled', 'executing', 'retryable', 'completed', 'discarded', 'cancelled');
CREATE TABLE oban_jobs (id bigserial PRIMARY KEY, state oban_job_state NOT NULL DEFAULT 'available',
    queue text NOT NULL DEFAULT 'default', worker text NOT NULL, args jsonb NOT NULL DEFAULT '{}',
    meta jsonb DEFAULT '{}',
    errors jsonb[] NOT NULL DEFAULT '{}', attempt int NOT NULL DEFAULT 0, max_attempts int NOT NULL DEFAULT 20,
    priority int NOT NULL DEFAULT 0, scheduled_at timestamp NOT NULL DEFAULT timezone('UTC', now()));
INSERT INTO oban_jobs (queue, worker, args, state, attempt)
VALUES ('events', 'MyApp.Worker', '{"id": 1}', 'available', 0), ('events', 'MyApp.Worker', '{"id": 2}', 'retryable',
    2),
    ('events', 'MyApp.Worker', '{"id": 3}', 'executing', 1);

CREATE TABLE procrastinate_jobs (id bigserial PRIMARY KEY, queue_name varchar(128) NOT NULL,
    task_name varchar(128) NOT NULL,
    priority integer DEFAULT 0 NOT NULL, lock text, queueing_lock text, args jsonb DEFAULT '{}' NOT NULL,
    status text DEFAULT 'todo' NOT NULL, scheduled_at timestamptz, attempts integer DEFAULT 0 NOT NULL);
INSERT INTO procrastinate_jobs (queue_name, task_name, args, status, lock)
VALUES ('sums', 'add', '{"a": 1}', 'todo', 'x'), ('sums', 'add', '{"a": 2}', 'doing', NULL);

CREATE TABLE pgqueuer (id bigserial PRIMARY KEY, priority int NOT NULL,
    execute_after timestamptz NOT NULL DEFAULT now(),
    status text NOT NULL, entrypoint text NOT NULL, dedupe_key text, payload bytea, headers jsonb,
    attempts int NOT NULL DEFAULT 0);
INSERT INTO pgqueuer (priority, status, entrypoint, payload) VALUES (1, 'queued', 'fetch', 'page'), (0, 'picked',
    'fetch', 'one');
