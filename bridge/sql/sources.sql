-- The sources: databases without pg_queue, whose jobs come here.
--
-- CREATE EXTENSION sets this anyway. It is repeated for readers and checkers of this script.
SET LOCAL search_path TO pg_catalog, pg_temp;

-- What is there and not of this extension is never used. The extension hangs on dblink. Whoever may drop the schema of
-- dblink could drop all of it.
DO $$
DECLARE
    other record;
BEGIN
    SELECT n.nspname AS name, pg_get_userbyid(n.nspowner) AS owner INTO other
    FROM pg_catalog.pg_namespace AS n WHERE n.nspname = 'queue_bridge';
    IF FOUND THEN
        RAISE EXCEPTION 'schema "%" exists already', other.name USING ERRCODE = '42P06',
            DETAIL = pg_catalog.format('It belongs to role "%s", and pg_queue_bridge needs the name.', other.owner),
            HINT = pg_catalog.format('Rename it: ALTER SCHEMA %I RENAME TO …. Drop it if nothing in it is needed.',
                                     other.name);
    END IF;
    SELECT n.nspname AS name, r.rolname AS owner INTO other
    FROM pg_catalog.pg_extension AS e JOIN pg_catalog.pg_namespace AS n ON n.oid = e.extnamespace
    JOIN pg_catalog.pg_database AS d ON d.datname = pg_catalog.current_database()
    -- The schema public belongs to the owner of the database.
    JOIN pg_catalog.pg_roles AS r
        ON r.oid = CASE pg_get_userbyid(n.nspowner) WHEN 'pg_database_owner' THEN d.datdba ELSE n.nspowner END
    WHERE e.extname = 'dblink' AND NOT r.rolsuper;
    IF FOUND THEN
        RAISE EXCEPTION 'extension dblink lies in schema "%", which role "%" may drop', other.name, other.owner
            USING ERRCODE = '55000', DETAIL = 'pg_queue_bridge would be dropped with it.',
            HINT = 'CREATE SCHEMA dblink; then CREATE EXTENSION dblink SCHEMA dblink, or ALTER EXTENSION dblink SET '
                   'SCHEMA dblink if it is there.';
    END IF;
END
$$;

-- A plain CREATE SCHEMA makes the schema a member of the extension.
CREATE SCHEMA queue_bridge;
COMMENT ON SCHEMA queue_bridge IS 'Jobs of databases in which pg_queue cannot be installed.';

-- Invariant: `node_id` is neither this server's pg_queue.node_id nor that of another source. So an id of a source's job
-- is never that of another job.
CREATE TABLE queue_bridge.source (
    source       text PRIMARY KEY CHECK (source ~ '^[a-z_][a-z0-9_]{0,39}$'),
    node_id      integer NOT NULL UNIQUE CHECK (node_id BETWEEN 0 AND 127),
    conninfo     text NOT NULL,
    slot         text NOT NULL,
    subscription oid,
    system       text,
    timeline     integer,
    life         integer NOT NULL,
    contacts     bigint NOT NULL DEFAULT 0,
    contact_at   timestamptz,
    problem      text,
    answer       jsonb,
    refusing     bigint[] NOT NULL DEFAULT '{}',
    repairs      integer NOT NULL DEFAULT 0,
    renumbered   bigint NOT NULL DEFAULT 0,
    missed_at    timestamptz,
    tried_to     bigint NOT NULL DEFAULT 0
);
COMMENT ON TABLE queue_bridge.source IS 'The sources. Change it through connect, repair and disconnect only.';
COMMENT ON COLUMN queue_bridge.source.source IS 'Its name. Its role and its subscription are queue_bridge_NAME.';
COMMENT ON COLUMN queue_bridge.source.node_id IS 'The number in all ids that are made there.';
COMMENT ON COLUMN queue_bridge.source.conninfo IS
    'How this server connects to it. It may hold a password. Empty: it is disconnected.';
COMMENT ON COLUMN queue_bridge.source.slot IS 'The replication slot there.';
COMMENT ON COLUMN queue_bridge.source.subscription IS 'The subscription here; null: it is disconnected.';
COMMENT ON COLUMN queue_bridge.source.system IS 'The system identifier of the server that it was at the last contact.';
COMMENT ON COLUMN queue_bridge.source.timeline IS 'The timeline there. After a failover it is another one.';
COMMENT ON COLUMN queue_bridge.source.life IS
    'Grows with each repair, and is a part of the ids made there since. So does the sum of it and the timeline there.';
COMMENT ON COLUMN queue_bridge.source.contacts IS
    'The number of contacts. The source keeps a copy, which shows whether this server has gone back in time.';
COMMENT ON COLUMN queue_bridge.source.contact_at IS 'When this server last spoke with it.';
COMMENT ON COLUMN queue_bridge.source.problem IS 'Why there is no contact; null: there is.';
COMMENT ON COLUMN queue_bridge.source.answer IS 'What it answered last.';
COMMENT ON COLUMN queue_bridge.source.refusing IS 'Ids of calls to be put aside when they arrive: see refuse.';
COMMENT ON COLUMN queue_bridge.source.repairs IS 'How often slot and subscription were made anew.';
COMMENT ON COLUMN queue_bridge.source.renumbered IS
    'How many of its jobs got another id, because another job had theirs.';
COMMENT ON COLUMN queue_bridge.source.missed_at IS 'When fewer calls had arrived than it has made, and a repair began.';
COMMENT ON COLUMN queue_bridge.source.tried_to IS
    'The waiting call up to which the last contact tried calls again before its time was over; 0: it tried all.';

CREATE TABLE queue_bridge.allowed (
    source text NOT NULL REFERENCES queue_bridge.source ON DELETE CASCADE,
    target text NOT NULL,
    PRIMARY KEY (source, target)
);
COMMENT ON TABLE queue_bridge.allowed IS
    'On which queues and topics a source may produce. Change it through allow and deny.';
COMMENT ON COLUMN queue_bridge.allowed.source IS 'The source.';
COMMENT ON COLUMN queue_bridge.allowed.target IS 'The queue or topic.';

CREATE TABLE queue_bridge.passed (
    id      bigint NOT NULL,
    made_at timestamptz NOT NULL,
    job_id  bigint,
    PRIMARY KEY (id, made_at)
);
CREATE INDEX passed_made_at_idx ON queue_bridge.passed (made_at);
COMMENT ON TABLE queue_bridge.passed IS
    'What has arrived without becoming a job with its own id: events, jobs whose unique key was taken, and jobs '
    'whose id '
    'another job has. For rows that arrive once more.';
COMMENT ON COLUMN queue_bridge.passed.id IS 'The id that the source gave.';
COMMENT ON COLUMN queue_bridge.passed.made_at IS 'When the source gave it.';
COMMENT ON COLUMN queue_bridge.passed.job_id IS 'The job that it is here; null for an event.';

CREATE TABLE queue_bridge.ended (
    source  text NOT NULL REFERENCES queue_bridge.source ON DELETE CASCADE,
    id      bigint NOT NULL,
    made_at timestamptz NOT NULL,
    verb    "char" NOT NULL,
    PRIMARY KEY (source, id, made_at, verb)
);
COMMENT ON TABLE queue_bridge.ended IS
    'Cancellations that have arrived, and completions of jobs that waited. For rows that arrive once more: if the '
    'job was retried since, it could be ended again. All other ends name an attempt, and that has ended.';
COMMENT ON COLUMN queue_bridge.ended.source IS 'The source.';
COMMENT ON COLUMN queue_bridge.ended.id IS 'The job, or the attempt.';
COMMENT ON COLUMN queue_bridge.ended.made_at IS 'When it was called there.';
COMMENT ON COLUMN queue_bridge.ended.verb IS 'x cancel, c complete.';

-- One row a transaction. Each contact adds them up.
CREATE TABLE queue_bridge.arrived (
    subscription oid NOT NULL,
    ring         integer NOT NULL,
    rows         bigint NOT NULL
);
COMMENT ON TABLE queue_bridge.arrived IS
    'How many rows have arrived. It is compared with how many the source has made.';
COMMENT ON COLUMN queue_bridge.arrived.subscription IS 'The subscription. A repair makes another one, and copies all.';
COMMENT ON COLUMN queue_bridge.arrived.ring IS 'The partition of the outbox.';
COMMENT ON COLUMN queue_bridge.arrived.rows IS 'The number of rows.';

CREATE TABLE queue_bridge.refused (
    refused_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    source  text NOT NULL REFERENCES queue_bridge.source ON DELETE CASCADE,
    id      bigint NOT NULL,
    made_at timestamptz NOT NULL,
    verb    "char" NOT NULL,
    target  text,
    ids     bigint[],
    body    jsonb,
    options jsonb,
    code    text NOT NULL,
    message text NOT NULL,
    detail  text,
    refused_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    is_told boolean NOT NULL DEFAULT false,
    hint    text,
    names   bigint[],
    is_waiting boolean GENERATED ALWAYS AS (names IS NOT NULL) STORED,
    tried_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (source, id, made_at, verb)
);
CREATE INDEX refused_waiting_idx ON queue_bridge.refused (source, refused_id) WHERE is_waiting;
CREATE INDEX refused_names_idx ON queue_bridge.refused USING gin (names);
COMMENT ON TABLE queue_bridge.refused IS
    'Calls that the source has committed and that were put aside. Those that can never be carried out: see '
    'queue_bridge.retry_refused. Those that cannot be carried out yet: each contact tries them again.';
COMMENT ON COLUMN queue_bridge.refused.refused_id IS
    'A number for retry_refused. Calls have them in the order of their arrival.';
COMMENT ON COLUMN queue_bridge.refused.source IS 'The source.';
COMMENT ON COLUMN queue_bridge.refused.id IS 'The job, attempt or event.';
COMMENT ON COLUMN queue_bridge.refused.made_at IS 'When it was called there.';
COMMENT ON COLUMN queue_bridge.refused.verb IS
    'e enqueue, m enqueue_many, b enqueue_batch, w enqueue_flow, s seal, p publish, c complete, f fail, r release, '
    'x cancel.';
COMMENT ON COLUMN queue_bridge.refused.target IS 'The queue or topic.';
COMMENT ON COLUMN queue_bridge.refused.ids IS
    'The jobs of enqueue_many and enqueue_batch, the attempts of complete_many.';
COMMENT ON COLUMN queue_bridge.refused.body IS 'The payload, the payloads, the jobs, the result.';
COMMENT ON COLUMN queue_bridge.refused.options IS 'The other arguments.';
COMMENT ON COLUMN queue_bridge.refused.code IS
    'The SQLSTATE. QJ001: an attempt was ended there after its lease was lost; another attempt may have run.';
COMMENT ON COLUMN queue_bridge.refused.message IS 'The error.';
COMMENT ON COLUMN queue_bridge.refused.detail IS 'Its detail.';
COMMENT ON COLUMN queue_bridge.refused.refused_at IS 'When it arrived.';
COMMENT ON COLUMN queue_bridge.refused.is_told IS 'True if the source knows.';
COMMENT ON COLUMN queue_bridge.refused.hint IS 'Its hint.';
COMMENT ON COLUMN queue_bridge.refused.is_waiting IS
    'True if each contact tries it again: another open transaction, a limit or another waiting call is in its way.';
COMMENT ON COLUMN queue_bridge.refused.names IS
    'What a waiting call names, as hashes: see queue_bridge.names. Later calls that name one of these wait, too. Null: '
    'it does not wait.';
COMMENT ON COLUMN queue_bridge.refused.tried_at IS 'When it was last tried.';

CREATE TABLE queue_bridge.phantom (
    source     text NOT NULL REFERENCES queue_bridge.source ON DELETE CASCADE,
    job_id     bigint PRIMARY KEY,
    queue_name text NOT NULL,
    made_at    timestamptz NOT NULL,
    found_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE queue_bridge.phantom IS
    'Jobs of transactions that a source no longer has: a failover or a restore lost them after the jobs had arrived. '
    'A repair finds them. Delete the rows that you have dealt with.';
COMMENT ON COLUMN queue_bridge.phantom.source IS 'The source.';
COMMENT ON COLUMN queue_bridge.phantom.job_id IS 'The job.';
COMMENT ON COLUMN queue_bridge.phantom.queue_name IS 'Its queue.';
COMMENT ON COLUMN queue_bridge.phantom.made_at IS 'When it was enqueued at the source.';
COMMENT ON COLUMN queue_bridge.phantom.found_at IS 'When a repair found it.';

-- A dump has what is known of the sources. The subscriptions in it are made anew by the first contact.
SELECT pg_extension_config_dump('queue_bridge.source', '');
SELECT pg_extension_config_dump('queue_bridge.allowed', '');
SELECT pg_extension_config_dump('queue_bridge.passed', '');
SELECT pg_extension_config_dump('queue_bridge.ended', '');
SELECT pg_extension_config_dump('queue_bridge.refused', '');
SELECT pg_extension_config_dump('queue_bridge.refused_refused_id_seq', '');
SELECT pg_extension_config_dump('queue_bridge.phantom', '');
-- A restored subscription is another one.
SELECT pg_extension_config_dump('queue_bridge.arrived', 'WHERE false');
