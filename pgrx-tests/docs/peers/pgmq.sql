-- Tables in place of those of pgmq, for docs/coming-from/pgmq.md.
CREATE SCHEMA pgmq;
CREATE TABLE pgmq.meta (queue_name varchar UNIQUE NOT NULL, is_partitioned boolean NOT NULL,
    is_unlogged boolean NOT NULL,
    created_at timestamptz DEFAULT now() NOT NULL);
INSERT INTO pgmq.meta VALUES ('Emails', false, false);
CREATE TABLE pgmq.q_emails (
    msg_id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    read_ct int DEFAULT 0 NOT NULL,
    enqueued_at timestamptz DEFAULT now() NOT NULL,
    last_read_at timestamptz,
    vt timestamptz NOT NULL,
    message jsonb,
    headers jsonb
);
CREATE INDEX q_emails_vt_idx ON pgmq.q_emails (vt);

INSERT INTO pgmq.q_emails (vt, message) SELECT now(), jsonb_build_object('n', n) FROM generate_series(1, 100000) AS n;
INSERT INTO pgmq.q_emails (vt, message, headers) VALUES (now() + interval '1 hour', '{"n": "late"}',
    '{"trace": "b7ad6b71"}');
UPDATE pgmq.q_emails SET read_ct = 1, vt = now() + interval '10 minutes' WHERE msg_id <= 3;    -- three are being read
UPDATE pgmq.q_emails SET read_ct = 2 WHERE msg_id = 4;                            -- one was read, not archived
