-- Tables in place of those of BullMQ's PostgreSQL backend, for docs/coming-from/brokers.md.
CREATE SCHEMA bullmq;
CREATE TABLE bullmq.meta (queue text NOT NULL, field text NOT NULL, value text, PRIMARY KEY (queue, field));
CREATE TABLE bullmq.job (queue text NOT NULL, id text NOT NULL, seq bigint NOT NULL, name text NOT NULL,
    state text NOT NULL,
    data jsonb NOT NULL DEFAULT '{}', opts jsonb NOT NULL DEFAULT '{}', priority integer NOT NULL DEFAULT 0,
    max_attempts integer NOT NULL DEFAULT 1, attempts_made integer NOT NULL DEFAULT 0, process_at_ms bigint,
    dedup_id text,
    scheduler_id text, parent_id text, PRIMARY KEY (queue, id));
INSERT INTO bullmq.meta VALUES ('mail', 'version', '6'), ('mail', 'paused', '1');
INSERT INTO bullmq.job (queue, id, seq, name, state, data)
VALUES ('mail', '1', 1, 'welcome', 'waiting', '{"to": 1}'), ('mail', '2', 2, 'welcome', 'active', '{"to": 2}');
