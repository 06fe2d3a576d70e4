-- Tables in place of those of absurd and DBOS, for docs/coming-from/durable.md.
CREATE SCHEMA absurd;
CREATE TABLE absurd.t_default (task_id uuid PRIMARY KEY, task_name text NOT NULL, params jsonb NOT NULL,
    max_attempts integer,
    cancellation jsonb, state text NOT NULL DEFAULT 'pending', last_attempt_run uuid, idempotency_key text);
CREATE TABLE absurd.r_default (run_id uuid PRIMARY KEY, task_id uuid NOT NULL, attempt integer NOT NULL,
    state text NOT NULL,
    available_at timestamptz NOT NULL, started_at timestamptz);
CREATE TABLE absurd.c_default (task_id uuid NOT NULL, checkpoint_name text NOT NULL);
INSERT INTO absurd.t_default (task_id, task_name, params, last_attempt_run)
VALUES ('00000000-0000-0000-0000-000000000001', 'charge', '{"order": 17}', '00000000-0000-0000-0000-000000000002');
INSERT INTO absurd.r_default
VALUES ('00000000-0000-0000-0000-000000000002', '00000000-0000-0000-0000-000000000001', 1, 'pending', now());
CREATE FUNCTION absurd.cancel_task(queue_name text, id uuid) RETURNS void LANGUAGE sql AS
    $$UPDATE absurd.t_default SET state = 'cancelled' WHERE task_id = id$$;

CREATE SCHEMA dbos;
CREATE TABLE dbos.queues (name text, concurrency int, partition_concurrency int, rate_limit_max int,
    rate_limit_period_sec float8,
    partition_rate_limit_max int, partition_rate_limit_period_sec float8);
CREATE TABLE dbos.workflow_status (workflow_uuid text PRIMARY KEY, status text, name text,
    created_at bigint NOT NULL, queue_name text,
    deduplication_id text, priority int NOT NULL DEFAULT 0, queue_partition_key text, parent_workflow_id text,
    serialization text,
    delay_until_epoch_ms bigint, workflow_timeout_ms bigint,
    workflow_deadline_epoch_ms bigint);
CREATE TABLE dbos.notifications (destination_uuid text, topic text, message text);
CREATE TABLE dbos.workflow_input (workflow_uuid text PRIMARY KEY, inputs text);
CREATE TABLE dbos.operation_outputs (workflow_uuid text, function_id int);
INSERT INTO dbos.queues VALUES ('mail', 5);
INSERT INTO dbos.workflow_status (workflow_uuid, status, name, created_at, queue_name, serialization)
VALUES ('a', 'ENQUEUED', 'send', 1, 'mail', 'portable_json'), ('b', 'PENDING', 'send', 1, 'mail', 'py_pickle');
INSERT INTO dbos.workflow_input VALUES ('a', '{"positionalArgs": [7], "namedArgs": {}}'), ('b', 'gASVIwAAAAAAAAB9');
