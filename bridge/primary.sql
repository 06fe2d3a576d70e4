-- pg_queue for a database in which it cannot be installed: the half of a producer, and of a worker that does its work
-- here. A queue server beside it, with the extension pg_queue_bridge, takes what is called here. See docs/bridge.md.
--
-- It needs no extension and no superuser: CREATE on the database suffices. It may be run again at any time, which is
-- how it is updated. What it makes belongs to the role that runs it.
--
-- A call is a row in an outbox, in the caller's transaction. The queue server reads the outbox by logical replication.
--
-- Functions for producers and workers are SECURITY DEFINER without a search_path of their own, because setting one
-- costs more than the insert. So all names and operators in them are qualified, and all names of types that are no
-- keywords of SQL.
BEGIN;
SET LOCAL client_min_messages = warning;
SET LOCAL search_path = pg_catalog, pg_temp;

-- What is there already is used only if this script has made it for the same role. Otherwise its owner could run code
-- as the roles that call the functions, or as the role that runs this.
DO $$
DECLARE
    own constant oid := (SELECT r.oid FROM pg_roles AS r WHERE r.rolname = current_user);
    other record;
    name text;
BEGIN
    IF EXISTS (SELECT FROM pg_extension WHERE extname = 'pg_queue') THEN
        RAISE EXCEPTION 'pg_queue is installed in this database' USING ERRCODE = '55000',
            HINT = 'This script is for databases in which it cannot be.';
    END IF;
    FOR other IN
        SELECT 1 AS nth, format('schema "%s"', n.nspname) AS what, n.nspowner AS owner, n.nspname AS schema
        FROM pg_namespace AS n WHERE n.nspname IN ('queue', 'queue_bridge')
        UNION ALL
        SELECT 2, format('publication "%s"', p.pubname), p.pubowner, NULL FROM pg_publication AS p
        WHERE p.pubname = 'pg_queue' AND NOT (SELECT r.rolsuper FROM pg_roles AS r WHERE r.oid = p.pubowner)
        UNION ALL
        SELECT 3, format('relation %s', c.oid::regclass), c.relowner, NULL FROM pg_class AS c
        WHERE c.relnamespace::regnamespace::text IN ('queue', 'queue_bridge')
        UNION ALL
        SELECT 3, format('function %s', p.oid::regprocedure), p.proowner, NULL FROM pg_proc AS p
        WHERE p.pronamespace::regnamespace::text IN ('queue', 'queue_bridge')
        UNION ALL
        SELECT 3, format('type %s', t.oid::regtype), t.typowner, NULL FROM pg_type AS t
        WHERE t.typnamespace::regnamespace::text IN ('queue', 'queue_bridge')
        UNION ALL
        SELECT 3, format('operator %s', o.oid::regoperator), o.oprowner, NULL FROM pg_operator AS o
        WHERE o.oprnamespace::regnamespace::text IN ('queue', 'queue_bridge')
        ORDER BY 1, 2
    LOOP
        IF other.owner <> own THEN
            RAISE EXCEPTION '% belongs to role "%"', other.what, pg_get_userbyid(other.owner) USING ERRCODE = '42501',
                DETAIL = format('This script runs as "%s", and uses nothing of another role.', current_user),
                HINT = format('If it was made by this script, SET ROLE %I and run it again. Otherwise drop it.',
                              pg_get_userbyid(other.owner));
        ELSIF other.schema IS NOT NULL AND to_regprocedure('queue_bridge.version()') IS NULL THEN
            RAISE EXCEPTION '% was not made by this script', other.what USING ERRCODE = '42P06',
                DETAIL = format('It belongs to role "%s". This script needs the name.', pg_get_userbyid(other.owner)),
                HINT = format('Rename it: ALTER SCHEMA %I RENAME TO .... Or drop it, if nothing in it is needed.',
                              other.schema);
        END IF;
    END LOOP;
    FOR other IN
        SELECT format('trigger "%s" on %s', t.tgname, t.tgrelid::regclass) AS what FROM pg_trigger AS t
        JOIN pg_class AS c ON c.oid = t.tgrelid WHERE c.relnamespace::regnamespace::text = 'queue_bridge'
        UNION ALL
        SELECT format('rule "%s" on %s', r.rulename, r.ev_class::regclass) FROM pg_rewrite AS r
        JOIN pg_class AS c ON c.oid = r.ev_class
        WHERE c.relnamespace::regnamespace::text = 'queue_bridge' AND c.relkind IN ('r', 'p')
        UNION ALL
        SELECT format('%s, which is no table', c.oid::regclass) FROM pg_class AS c
        WHERE c.relnamespace::regnamespace::text = 'queue_bridge' AND c.relkind IN ('f', 'v', 'm')
        UNION ALL
        SELECT format('%s, a part of a table in schema queue_bridge', i.inhrelid::regclass) FROM pg_inherits AS i
        JOIN pg_class AS c ON c.oid = i.inhrelid JOIN pg_class AS p ON p.oid = i.inhparent
        WHERE p.relnamespace::regnamespace::text = 'queue_bridge' AND c.relnamespace <> p.relnamespace
    LOOP
        RAISE EXCEPTION 'there is %', other.what USING ERRCODE = '42501',
            DETAIL = 'It would run with the rights of the owner, or see what is written.', HINT = 'Drop it.';
    END LOOP;
    FOREACH name IN ARRAY ARRAY['queue', 'queue_bridge'] LOOP
        -- A plain CREATE SCHEMA fails if another session has just made it.
        IF to_regnamespace(name) IS NULL THEN
            EXECUTE format('CREATE SCHEMA %I', name);
        END IF;
    END LOOP;
END
$$;

CREATE OR REPLACE FUNCTION queue_bridge.version() RETURNS text IMMUTABLE LANGUAGE sql AS $$ SELECT '0.4.0'::text $$;
COMMENT ON FUNCTION queue_bridge.version IS 'The version of this script.';

-- Tables ------------------------------------------------------------------------------------------------

-- Columns never change, because two versions of the queue server read them. New arguments go into `options`.
-- Autovacuum is off: nothing is updated or deleted, and a partition is emptied as a whole.
CREATE TABLE IF NOT EXISTS queue_bridge.outbox (
    id      bigint NOT NULL,
    made_at timestamptz NOT NULL,
    ring    smallint NOT NULL,
    verb    "char" NOT NULL,
    target  text,
    ids     bigint[],
    body    jsonb,
    options jsonb
) PARTITION BY LIST (ring);
COMMENT ON TABLE queue_bridge.outbox IS
    'Calls for the queue server, in three partitions that are used in turn, an hour each.';
CREATE TABLE IF NOT EXISTS queue_bridge.outbox_0 PARTITION OF queue_bridge.outbox FOR VALUES IN (0)
    WITH (autovacuum_enabled = off);
CREATE TABLE IF NOT EXISTS queue_bridge.outbox_1 PARTITION OF queue_bridge.outbox FOR VALUES IN (1)
    WITH (autovacuum_enabled = off);
CREATE TABLE IF NOT EXISTS queue_bridge.outbox_2 PARTITION OF queue_bridge.outbox FOR VALUES IN (2)
    WITH (autovacuum_enabled = off);

CREATE TABLE IF NOT EXISTS queue_bridge.ring (
    ring smallint PRIMARY KEY, lsn pg_lsn, rows bigint, since timestamptz NOT NULL DEFAULT clock_timestamp(),
    emptied bigint NOT NULL DEFAULT 0);
COMMENT ON TABLE queue_bridge.ring IS
    'lsn, rows: how many rows a partition had when tidy last saw it, and where the WAL was. since: all rows that were '
    'removed are older, and all that are there are younger, unless the clock has gone back. emptied: how many rows '
    'were removed since the slot of the queue server was made.';

-- Ids of this database are in partition 0 or 1, those of jobs that the queue server makes in 2 or 3, others in 4. Which
-- of the two: see queue_bridge.turn.
CREATE TABLE IF NOT EXISTS queue_bridge.effect (
    job_id bigint NOT NULL, generation smallint NOT NULL, at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (job_id, generation)) PARTITION BY LIST (generation);
COMMENT ON TABLE queue_bridge.effect IS 'Jobs whose effects are committed: see queue.once.';
CREATE TABLE IF NOT EXISTS queue_bridge.effect_0 PARTITION OF queue_bridge.effect FOR VALUES IN (0);
CREATE TABLE IF NOT EXISTS queue_bridge.effect_1 PARTITION OF queue_bridge.effect FOR VALUES IN (1);
CREATE TABLE IF NOT EXISTS queue_bridge.effect_2 PARTITION OF queue_bridge.effect FOR VALUES IN (2);
CREATE TABLE IF NOT EXISTS queue_bridge.effect_3 PARTITION OF queue_bridge.effect FOR VALUES IN (3);
CREATE TABLE IF NOT EXISTS queue_bridge.effect_4 PARTITION OF queue_bridge.effect FOR VALUES IN (4);

CREATE TABLE IF NOT EXISTS queue_bridge.turn (
    place smallint PRIMARY KEY, node integer NOT NULL, newer smallint NOT NULL, begins bigint NOT NULL,
    ends bigint NOT NULL, since timestamptz, last_xid xid8, lsn pg_lsn, is_arrived boolean NOT NULL DEFAULT false,
    asked_at timestamptz);
COMMENT ON TABLE queue_bridge.turn IS
    'Two generations of effects for each number of a database in ids. newer: the partition of ids from begins on; '
    'older ids are in the other one; ids before ends are dropped. The older one is emptied when no smaller id than '
    'begins can come any more (since: none is given; last_xid, lsn, is_arrived: all were committed, and have arrived) '
    'and the queue server says that their jobs have completed or are forgotten.';

CREATE TABLE IF NOT EXISTS queue_bridge.bridge (
    slot text PRIMARY KEY, node integer NOT NULL, life integer NOT NULL, server text NOT NULL,
    contacts bigint NOT NULL, address text, failing jsonb);
ALTER TABLE queue_bridge.bridge ADD COLUMN IF NOT EXISTS seen_at timestamptz,
    ADD COLUMN IF NOT EXISTS is_copied boolean NOT NULL DEFAULT false,
    ADD COLUMN IF NOT EXISTS arrived jsonb;
COMMENT ON TABLE queue_bridge.bridge IS
    'The queue server: its slot, its database and source with the timeline, its last contact, from where it connects, '
    'which call it cannot carry out, whether it has copied all rows that were there before its slot, and how many rows '
    'of each partition have arrived since that slot was made.';

CREATE TABLE IF NOT EXISTS queue_bridge.known_queue (name text PRIMARY KEY, is_full boolean NOT NULL);
COMMENT ON TABLE queue_bridge.known_queue IS 'The queues and topics that the queue server lets this database use.';

CREATE TABLE IF NOT EXISTS queue_bridge.refused (
    id bigint NOT NULL, made_at timestamptz NOT NULL, verb "char" NOT NULL, target text, sqlstate text NOT NULL,
    message text NOT NULL, ids bigint[], body jsonb, options jsonb, PRIMARY KEY (id, made_at, verb));
COMMENT ON TABLE queue_bridge.refused IS
    'Calls that were committed here, and that the queue server cannot carry out. It has the whole call. Of those that '
    'were taken out of the outbox, ids, body and options are here.';

CREATE OR REPLACE FUNCTION queue_bridge.know() RETURNS void VOLATILE LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    names jsonb := (SELECT coalesce(jsonb_object_agg(k.name, 1), '{}') FROM queue_bridge.known_queue AS k
                    WHERE NOT k.is_full);
BEGIN
    EXECUTE format('CREATE OR REPLACE FUNCTION queue_bridge.takes(name text) RETURNS boolean IMMUTABLE LANGUAGE sql '
                   'AS %L', format('SELECT %L::pg_catalog.jsonb OPERATOR(pg_catalog.?) $1', names));
END
$$;
COMMENT ON FUNCTION queue_bridge.know IS
    'Makes the function takes, which is true for a queue that is in known_queue and is not full.';

CREATE SEQUENCE IF NOT EXISTS queue_bridge.id_seq;

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_publication WHERE pubname = 'pg_queue') THEN
        CREATE PUBLICATION pg_queue FOR TABLE queue_bridge.outbox
            WITH (publish = 'insert', publish_via_partition_root = true);
    ELSIF NOT EXISTS (SELECT FROM pg_publication_tables AS t WHERE t.pubname = 'pg_queue'
                      AND t.schemaname = 'queue_bridge' AND t.tablename = 'outbox') THEN
        RAISE EXCEPTION 'publication "pg_queue" does not publish the outbox' USING ERRCODE = '55000',
            HINT = 'ALTER PUBLICATION pg_queue ADD TABLE queue_bridge.outbox. Calls that were made meanwhile arrive '
                   'within a minute: the queue server sees the change, and reads the outbox again.';
    END IF;
END
$$;

-- Ids ---------------------------------------------------------------------------------------------------

-- bits 52..46 the number of this database; bits 45..38 the life, which grows with each failover and each repair;
-- bits 37..4 the sequence, which goes on in the bits of the life; bits 3..0 are 15 for a job, 14 for an event.
--
-- The number and the life are constants in the function, which `assign` makes anew, so that no call reads a table.
DO $$
BEGIN
    IF to_regprocedure('queue_bridge.base()') IS NULL THEN
        CREATE FUNCTION queue_bridge.base() RETURNS bigint STABLE LANGUAGE plpgsql AS $base$
        BEGIN
            RAISE EXCEPTION 'no queue server is connected to this database' USING ERRCODE = '55000',
                HINT = 'SELECT queue_bridge.connect(...) on the queue server.';
        END
        $base$;
    END IF;
    -- A promoted standby may lack the last values of the sequence. Where the function is not allowed, or storage is
    -- shared, each repair changes the life nevertheless.
    BEGIN
        PERFORM pg_walfile_name(pg_current_wal_insert_lsn());
        CREATE OR REPLACE FUNCTION queue_bridge.timeline() RETURNS integer VOLATILE LANGUAGE sql AS $timeline$
            SELECT ('x'::pg_catalog.text OPERATOR(pg_catalog.||) pg_catalog.substr(pg_catalog.pg_walfile_name(
                pg_catalog.pg_current_wal_insert_lsn()), 1, 8))::pg_catalog.bit(32)::pg_catalog.int4
        $timeline$;
    EXCEPTION WHEN insufficient_privilege OR feature_not_supported OR undefined_function THEN
        CREATE OR REPLACE FUNCTION queue_bridge.timeline() RETURNS integer VOLATILE LANGUAGE sql AS 'SELECT 0';
    END;
END
$$;

-- As new_id, on any timeline. Not in SQL, so that no caller has its expression in its own.
CREATE OR REPLACE FUNCTION queue_bridge.computed_id() RETURNS bigint VOLATILE LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (queue_bridge.base() & -70368744177664)
        | ((queue_bridge.base() + ((queue_bridge.timeline() & 255)::bigint << 38)
            + (nextval('queue_bridge.id_seq') << 4) + 15) & 70368744177663);
END
$$;

-- A session prepares each expression anew in each transaction, and each function in it costs a hundredth of an insert.
-- So new_id has the sum for the timeline of now as a constant.
CREATE OR REPLACE FUNCTION queue_bridge.make_new_id() RETURNS void VOLATILE LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    base bigint := queue_bridge.base();
    timeline integer := queue_bridge.timeline();
BEGIN
    EXECUTE format('CREATE OR REPLACE FUNCTION queue_bridge.new_id() RETURNS bigint VOLATILE LANGUAGE sql '
                   'AS %L', format(
        'SELECT CASE WHEN %s THEN %s::pg_catalog.int8 OPERATOR(pg_catalog.|) ('
        '((pg_catalog.nextval(''queue_bridge.id_seq''::pg_catalog.regclass) OPERATOR(pg_catalog.<<) 4) '
        'OPERATOR(pg_catalog.+) %s::pg_catalog.int8) OPERATOR(pg_catalog.&) 70368744177663::pg_catalog.int8) '
        'ELSE queue_bridge.computed_id() END',
        CASE timeline WHEN 0 THEN 'true' ELSE format(
            'pg_catalog.starts_with(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), %L)',
            lpad(upper(to_hex(timeline)), 8, '0')) END,
        base & -70368744177664, (base & 70368744177663) + ((timeline & 255)::bigint << 38) + 15));
END
$$;
COMMENT ON FUNCTION queue_bridge.make_new_id IS 'Makes the function new_id, of the number, the life and the timeline.';

DO $$
BEGIN
    PERFORM queue_bridge.make_new_id();
EXCEPTION WHEN object_not_in_prerequisite_state THEN
    -- No queue server is connected, and base says so.
    CREATE OR REPLACE FUNCTION queue_bridge.new_id() RETURNS bigint VOLATILE LANGUAGE sql
        AS 'SELECT queue_bridge.base()';
END
$$;
COMMENT ON FUNCTION queue_bridge.new_id IS 'The id of a new job. Errors: 55000 no queue server is connected.';

-- Writing to the outbox ---------------------------------------------------------------------------------

-- What is longer as text, or nested deeper, cannot be read on the queue server, and would hold up all calls behind it.
-- A value that is stored in less than 6,000 bytes without compression is neither: a level takes 8 bytes, and a number
-- like 1e131071, which has the longest text for its size, 14.
CREATE OR REPLACE FUNCTION queue_bridge.max_payload() RETURNS bigint IMMUTABLE LANGUAGE sql
    AS 'SELECT 67108864::pg_catalog.int8';
COMMENT ON FUNCTION queue_bridge.max_payload IS 'How many bytes a value may have as text: what the queue server takes.';

CREATE OR REPLACE FUNCTION queue_bridge.check_size(value jsonb, what text) RETURNS void STABLE LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    bytes text;
BEGIN
    IF pg_column_size(value) < 6000 AND pg_column_compression(value) IS NULL OR value IS NULL THEN
        RETURN;
    ELSIF jsonb_path_exists(value, 'strict $.**{1000} ? (@.type() == "array" || @.type() == "object")') THEN
        RAISE EXCEPTION '% is nested deeper than 1000 levels', what USING ERRCODE = '22023',
            HINT = 'Store deeper values as a string, or in a table of your own.';
    END IF;
    BEGIN
        bytes := octet_length(value::text);
    EXCEPTION WHEN program_limit_exceeded OR out_of_memory THEN
        bytes := 'more than 1000000000';
    END;
    IF bytes ~ '^more' OR bytes::bigint > queue_bridge.max_payload() THEN
        RAISE EXCEPTION '% must have at most % bytes as text', what, queue_bridge.max_payload() USING ERRCODE = '22023',
            DETAIL = format('It has %s.', bytes), HINT = 'Store it in a table of your own, and enqueue its key.';
    END IF;
END
$$;
COMMENT ON FUNCTION queue_bridge.check_size IS
    'Checks that the queue server can read a value. Errors: 22023 its text is too long, or it is nested too deep.';

CREATE OR REPLACE FUNCTION queue_bridge.put(
    id bigint, verb "char", target text, body jsonb, options jsonb, ids bigint[] DEFAULT NULL
) RETURNS void VOLATILE LANGUAGE plpgsql AS $$
DECLARE
    -- The partition goes by this clock and not by that of the transaction, which may have begun hours ago.
    made_at pg_catalog.timestamptz := pg_catalog.clock_timestamp();
BEGIN
    IF pg_catalog.pg_column_size(body) OPERATOR(pg_catalog.>=) 6000
       OR pg_catalog.pg_column_size(options) OPERATOR(pg_catalog.>=) 6000
       OR pg_catalog.pg_column_compression(body) IS NOT NULL THEN
        PERFORM queue_bridge.check_size(body, 'payload or result'), queue_bridge.check_size(options, 'options');
    END IF;
    INSERT INTO queue_bridge.outbox (id, made_at, ring, verb, target, ids, body, options)
    VALUES (put.id, made_at, queue_bridge.ring_at(made_at), put.verb, put.target, put.ids, put.body, put.options);
END
$$;

CREATE OR REPLACE FUNCTION queue_bridge.ring_at(made_at timestamptz) RETURNS smallint STABLE LANGUAGE sql AS $$
    SELECT pg_catalog.mod(pg_catalog.floor(
        pg_catalog.date_part('epoch', $1) OPERATOR(pg_catalog./) 3600)::pg_catalog.int8, 3)::pg_catalog.int2
$$;

-- What known_queue says, as a constant: `contact` makes it anew when that changes.
DO $$
BEGIN
    IF to_regprocedure('queue_bridge.takes(text)') IS NULL THEN
        PERFORM queue_bridge.know();
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION queue_bridge.check_target(name text) RETURNS void STABLE LANGUAGE plpgsql AS $$
DECLARE
    is_full boolean;
BEGIN
    SELECT k.is_full INTO is_full FROM queue_bridge.known_queue AS k WHERE k.name OPERATOR(pg_catalog.=) $1;
    IF is_full THEN
        RAISE EXCEPTION 'queue "%" is full', name USING ERRCODE = '53400',
            DETAIL = 'The queue server said so at its last contact.';
    ELSIF name IS NULL THEN
        RAISE EXCEPTION 'queue_name cannot be null' USING ERRCODE = '22004';
    ELSIF pg_catalog.octet_length(name) OPERATOR(pg_catalog.>) 1024 THEN
        RAISE EXCEPTION 'queue "%..." does not exist', pg_catalog.left(name, 63) USING ERRCODE = '42704';
    ELSIF is_full IS NULL AND EXISTS (SELECT FROM queue_bridge.known_queue) THEN
        RAISE EXCEPTION 'queue "%" does not exist', name USING ERRCODE = '42704',
            DETAIL = 'Or the queue server does not let this database use it.',
            HINT = 'SELECT queue_bridge.allow(...) on the queue server, which tells this database within 10 s.';
    END IF;
END
$$;

-- Checks and converts options: a delay becomes a time here, in the caller's zone. The queue server checks them once
-- more; a wrong one that is not found here is refused there. Most calls have few options, so this looks what there is.
CREATE OR REPLACE FUNCTION queue_bridge.checked(options jsonb, is_flow boolean DEFAULT false)
    RETURNS jsonb STABLE LANGUAGE plpgsql AS $$
DECLARE
    o pg_catalog.jsonb := pg_catalog.jsonb_strip_nulls(CASE
        WHEN options OPERATOR(pg_catalog.@>) '{"on_duplicate": "skip", "upon": "completed"}'::pg_catalog.jsonb
        THEN options OPERATOR(pg_catalog.-) '{on_duplicate,upon}'::pg_catalog.text[] ELSE options END);
    made_at pg_catalog.timestamptz;
    delay interval;
BEGIN
    -- Nothing inside headers is stripped.
    IF o OPERATOR(pg_catalog.?) 'headers'::pg_catalog.text THEN
        o := pg_catalog.jsonb_set(o, '{headers}', options OPERATOR(pg_catalog.->) 'headers'::pg_catalog.text);
    END IF;
    IF o OPERATOR(pg_catalog.@>) '{"priority": 0}'::pg_catalog.jsonb THEN
        o := o OPERATOR(pg_catalog.-) 'priority'::pg_catalog.text;
    END IF;
    IF o OPERATOR(pg_catalog.?|) '{delay,run_at}'::pg_catalog.text[] THEN
        delay := o OPERATOR(pg_catalog.->>) 'delay'::pg_catalog.text;
        IF delay IS NOT NULL AND o OPERATOR(pg_catalog.?) 'run_at'::pg_catalog.text THEN
            RAISE EXCEPTION 'delay and run_at cannot be given together' USING ERRCODE = '22023',
                HINT = 'Give one of the two.';
        ELSIF delay IS NOT NULL THEN
            made_at := pg_catalog.clock_timestamp();
            IF made_at OPERATOR(pg_catalog.+) delay OPERATOR(pg_catalog.<) made_at THEN
                RAISE EXCEPTION 'delay cannot be negative' USING ERRCODE = '22023',
                    DETAIL = pg_catalog.format('It is %s.', delay);
            END IF;
            o := o OPERATOR(pg_catalog.-) 'delay'::pg_catalog.text OPERATOR(pg_catalog.||)
                pg_catalog.jsonb_build_object('run_at', made_at OPERATOR(pg_catalog.+) delay);
        END IF;
        made_at := o OPERATOR(pg_catalog.->>) 'run_at'::pg_catalog.text;
        IF NOT pg_catalog.isfinite(made_at) THEN
            RAISE EXCEPTION 'run_at must be finite' USING ERRCODE = '22023',
                HINT = 'Leave run_at out to run the job immediately.';
        END IF;
        -- A text means a time of this session, with its zone and its DateStyle.
        o := o OPERATOR(pg_catalog.||) pg_catalog.jsonb_build_object('run_at', made_at);
    END IF;
    IF o OPERATOR(pg_catalog.-) '{priority,run_at,after,flow}'::pg_catalog.text[]
       OPERATOR(pg_catalog.<>) '{}'::pg_catalog.jsonb
    THEN
        o := queue_bridge.checked_further(o, is_flow);
    END IF;
    RETURN CASE WHEN o OPERATOR(pg_catalog.<>) '{}'::pg_catalog.jsonb THEN o END;
END
$$;

CREATE OR REPLACE FUNCTION queue_bridge.checked_further(o jsonb, is_flow boolean)
    RETURNS jsonb STABLE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    told text;
    name text;
    span interval;
    moment timestamptz;
    number bigint;
BEGIN
    IF jsonb_typeof(o -> 'headers') <> 'object' THEN
        RAISE EXCEPTION 'headers must be a JSON object' USING ERRCODE = '22023',
            HINT = 'Leave headers out if there are none.';
    END IF;
    IF o ? 'start_by' AND o ? 'start_within' THEN
        RAISE EXCEPTION 'start_by and start_within cannot be given together' USING ERRCODE = '22023',
            HINT = 'Give one of the two.';
    ELSIF o ? 'start_by' THEN
        moment := o ->> 'start_by';
        IF NOT isfinite(moment) THEN
            RAISE EXCEPTION 'start_by must be finite' USING ERRCODE = '22023',
                HINT = 'Leave start_by out for a job that may start at any time.';
        ELSIF (o ->> 'run_at')::timestamptz >= moment THEN
            RAISE EXCEPTION 'the job would expire before it may start' USING ERRCODE = '22023',
                HINT = 'Give a later start_by, or an earlier run_at.';
        END IF;
        -- As run_at.
        o := o || jsonb_build_object('start_by', moment);
    END IF;
    FOREACH name IN ARRAY ARRAY['start_within', 'max_delay'] LOOP
        span := o ->> name;
        IF span <= '0' THEN
            RAISE EXCEPTION '% must be positive', name USING ERRCODE = '22023', DETAIL = format('It is %s.', span),
                HINT = format('For instance %s => ''30 minutes''. NULL is no limit.', name);
        END IF;
    END LOOP;
    FOREACH name IN ARRAY ARRAY['unique_key', 'group_key', 'stage', 'task'] LOOP
        IF octet_length(o ->> name) > 1024 THEN
            RAISE EXCEPTION '% must have at most 1024 bytes', name USING ERRCODE = '22023',
                DETAIL = format('It has %s.', octet_length(o ->> name)),
                HINT = 'Use a hash of it, for instance sha256(...).';
        END IF;
    END LOOP;
    IF o ?| '{on_duplicate,version,unique_for,max_delay,max_attempts,lease,upon}' THEN
        told := o ->> 'on_duplicate';
        IF told = 'error' THEN
            RAISE EXCEPTION 'on_duplicate => ''error'' is not possible here' USING ERRCODE = '0A000',
                DETAIL = 'Whether the key is taken is decided by the queue server, after the commit.',
                HINT = 'Use ''skip'', ''replace'' or ''rerun''.';
        ELSIF told NOT IN ('skip', 'replace', 'rerun') THEN
            RAISE EXCEPTION 'invalid value for on_duplicate: "%"', told USING ERRCODE = '22023',
                HINT = 'Use ''skip'', ''replace'', ''rerun'' or ''error''.';
        ELSIF told = 'skip' THEN
            o := o - 'on_duplicate';
        END IF;
        FOREACH name IN ARRAY ARRAY['version', 'unique_for', 'on_duplicate', 'max_delay'] LOOP
            IF o ? name AND NOT o ? 'unique_key' THEN
                RAISE EXCEPTION '% needs a unique_key', name USING ERRCODE = '22023',
                    HINT = 'Give the job a unique_key.';
            END IF;
        END LOOP;
        -- As run_at.
        IF o ? 'version' THEN
            o := o || jsonb_build_object('version', (o ->> 'version')::timestamptz);
        END IF;
        number := o ->> 'max_attempts';
        IF number NOT BETWEEN 1 AND 1000000 THEN
            RAISE EXCEPTION 'max_attempts must be between 1 and 1000000' USING ERRCODE = '22023',
                DETAIL = format('It is %s.', number);
        END IF;
        span := o ->> 'lease';
        IF span NOT BETWEEN '1 millisecond' AND '3653 days' THEN
            RAISE EXCEPTION 'lease must be between 1 millisecond and 10 years' USING ERRCODE = '22023',
                DETAIL = format('It is %s.', span);
        END IF;
        IF o ->> 'upon' = 'completed' THEN
            o := o - 'upon';
        ELSIF o ->> 'upon' NOT IN ('any', 'failed', 'ended', 'overdue') THEN
            RAISE EXCEPTION 'invalid value for upon: "%"', o ->> 'upon' USING ERRCODE = '22023',
                HINT = 'Use ''completed'', ''any'', ''failed'', ''ended'' or ''overdue''.';
        ELSIF o ->> 'upon' = 'overdue' AND NOT o ? 'run_at' THEN
            RAISE EXCEPTION 'upon => ''overdue'' needs delay or run_at' USING ERRCODE = '22023';
        ELSIF o ? 'upon' AND NOT o ? 'after' AND NOT is_flow THEN
            RAISE EXCEPTION 'upon needs after' USING ERRCODE = '22023', HINT = 'Name the jobs, or leave upon out.';
        END IF;
    END IF;
    RETURN o;
END
$$;

-- Producing ---------------------------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION queue.enqueue(
    queue_name text, payload jsonb DEFAULT '{}',
    -- arguments of enqueue: made by `make generate`
    priority integer DEFAULT 0, delay interval DEFAULT NULL, run_at timestamptz DEFAULT NULL,
    unique_key text DEFAULT NULL, on_duplicate text DEFAULT 'skip', version timestamptz DEFAULT NULL,
    unique_for interval DEFAULT NULL, group_key text DEFAULT NULL, stage text DEFAULT NULL,
    max_attempts integer DEFAULT NULL, lease interval DEFAULT NULL, headers jsonb DEFAULT NULL,
    after bigint[] DEFAULT NULL, upon text DEFAULT 'completed', flow bigint DEFAULT NULL, task text DEFAULT NULL,
    start_by timestamptz DEFAULT NULL, start_within interval DEFAULT NULL, max_delay interval DEFAULT NULL
    -- end of arguments of enqueue
) RETURNS bigint VOLATILE LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_column
DECLARE
    job_id bigint := queue_bridge.new_id();
    made_at pg_catalog.timestamptz := pg_catalog.clock_timestamp();
    options pg_catalog.jsonb;
BEGIN
    -- The usual case is one expression and no query.
    IF (queue_bridge.takes(queue_name) AND
        -- defaults of enqueue: made by `make generate`
        priority OPERATOR(pg_catalog.=) 0 AND delay IS NULL AND run_at IS NULL AND unique_key IS NULL AND
        on_duplicate OPERATOR(pg_catalog.=) 'skip'::pg_catalog.text AND version IS NULL AND unique_for IS NULL AND
        group_key IS NULL AND stage IS NULL AND max_attempts IS NULL AND lease IS NULL AND headers IS NULL AND
        after IS NULL AND upon OPERATOR(pg_catalog.=) 'completed'::pg_catalog.text AND flow IS NULL AND
        task IS NULL AND start_by IS NULL AND start_within IS NULL AND max_delay IS NULL
        -- end of defaults of enqueue
        AND pg_catalog.pg_column_size(payload) OPERATOR(pg_catalog.<) 6000
        AND pg_catalog.pg_column_compression(payload) IS NULL) IS NOT TRUE THEN
        IF queue_bridge.takes(queue_name) IS NOT TRUE THEN
            PERFORM queue_bridge.check_target(queue_name);
        END IF;
        options := queue_bridge.checked(pg_catalog.jsonb_build_object(
        -- fields of enqueue: made by `make generate`
        'priority', priority, 'delay', delay, 'run_at', run_at, 'unique_key', unique_key,
        'on_duplicate', on_duplicate, 'version', version, 'unique_for', unique_for, 'group_key', group_key,
        'stage', stage, 'max_attempts', max_attempts, 'lease', lease, 'headers', headers, 'after', after,
        'upon', upon, 'flow', flow, 'task', task, 'start_by', start_by, 'start_within', start_within,
        'max_delay', max_delay
        -- end of fields of enqueue
        ));
        IF pg_catalog.pg_column_size(payload) OPERATOR(pg_catalog.>=) 6000
           OR pg_catalog.pg_column_size(options) OPERATOR(pg_catalog.>=) 6000
           OR pg_catalog.pg_column_compression(payload) IS NOT NULL THEN
            PERFORM queue_bridge.check_size(payload, 'payload'), queue_bridge.check_size(options, 'options');
        END IF;
    END IF;
    -- As `put` does, without another call.
    INSERT INTO queue_bridge.outbox (id, made_at, ring, verb, target, body, options)
    VALUES (job_id, made_at, queue_bridge.ring_at(made_at), 'e', queue_name, coalesce(payload, '{}'), options);
    RETURN job_id;
END
$$;
COMMENT ON FUNCTION queue.enqueue IS
'Adds a job; the job exists if and only if the transaction commits. It is in the queue server a moment after the commit.
Returns its id. The arguments are those of queue.enqueue there, but for on_duplicate => ''error''. With a unique_key the
queue server decides whether there is a job with this id. Errors: 42704 there is no such queue, 53400 it is full, 22023
an argument is out of range, 0A000 on_duplicate is error, 55000 no queue server is connected.';

CREATE OR REPLACE FUNCTION queue.enqueue_many(
    queue_name text, payloads jsonb[],
    -- arguments of enqueue: made by `make generate`
    priority integer DEFAULT 0, delay interval DEFAULT NULL, run_at timestamptz DEFAULT NULL,
    unique_key text DEFAULT NULL, on_duplicate text DEFAULT 'skip', version timestamptz DEFAULT NULL,
    unique_for interval DEFAULT NULL, group_key text DEFAULT NULL, stage text DEFAULT NULL,
    max_attempts integer DEFAULT NULL, lease interval DEFAULT NULL, headers jsonb DEFAULT NULL,
    after bigint[] DEFAULT NULL, upon text DEFAULT 'completed', flow bigint DEFAULT NULL, task text DEFAULT NULL,
    start_by timestamptz DEFAULT NULL, start_within interval DEFAULT NULL, max_delay interval DEFAULT NULL
    -- end of arguments of enqueue
) RETURNS SETOF bigint VOLATILE LANGUAGE plpgsql ROWS 100 SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    options jsonb := queue_bridge.checked(jsonb_build_object(
        -- fields of enqueue: made by `make generate`
        'priority', priority, 'delay', delay, 'run_at', run_at, 'unique_key', unique_key,
        'on_duplicate', on_duplicate, 'version', version, 'unique_for', unique_for, 'group_key', group_key,
        'stage', stage, 'max_attempts', max_attempts, 'lease', lease, 'headers', headers, 'after', after,
        'upon', upon, 'flow', flow, 'task', task, 'start_by', start_by, 'start_within', start_within,
        'max_delay', max_delay
        -- end of fields of enqueue
        ));
    hole integer := array_position(payloads, NULL);
BEGIN
    PERFORM queue_bridge.check_target(queue_name);
    IF payloads IS NULL OR hole IS NOT NULL THEN
        RAISE EXCEPTION '% cannot be null', 'payloads' || coalesce('[' || hole || ']', '') USING ERRCODE = '22004';
    END IF;
    RETURN QUERY SELECT queue_bridge.put_many('m', queue_name, payloads, options);
END
$$;
COMMENT ON FUNCTION queue.enqueue_many IS
'Adds one job for each payload, all with the same options. Returns the jobs'' ids in order. Errors: as queue.enqueue;
22004 names the payload that is null.';

CREATE OR REPLACE FUNCTION queue_bridge.put_many(verb "char", target text, jobs jsonb[], options jsonb)
    RETURNS SETOF bigint VOLATILE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    -- What one row holds is decoded at once by the sender and by the receiver.
    max_jobs constant integer := 1000;
    max_bytes constant bigint := 1000000;
    first integer := 1;
    bytes bigint := 0;
    sizes integer[];
    ids bigint[];
BEGIN
    -- Its elements may begin at any number, and lie in several dimensions.
    IF array_lower(jobs, 1) <> 1 OR array_ndims(jobs) > 1 THEN
        jobs := ARRAY(SELECT unnest(jobs));
    END IF;
    PERFORM queue_bridge.check_size(j.job, 'payload') FROM unnest(jobs) AS j (job)
    WHERE pg_column_size(j.job) >= 6000 OR pg_column_compression(j.job) IS NOT NULL;
    sizes := ARRAY(SELECT octet_length(j.job::text) FROM unnest(jobs) AS j (job));
    FOR n IN 1 .. cardinality(jobs) LOOP
        bytes := bytes + sizes[n];
        IF n = cardinality(jobs) OR n - first + 1 = max_jobs OR bytes + sizes[n + 1] > max_bytes THEN
            ids := ARRAY(SELECT queue_bridge.new_id() FROM generate_series(first, n));
            PERFORM queue_bridge.put(ids[1], verb, target, to_jsonb(jobs[first:n]), options, ids);
            RETURN QUERY SELECT unnest(ids);
            first := n + 1;
            bytes := 0;
        END IF;
    END LOOP;
END
$$;

CREATE OR REPLACE FUNCTION queue.enqueue_batch(queue_name text, jobs jsonb)
    RETURNS SETOF bigint VOLATILE LANGUAGE plpgsql ROWS 100 SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    checked jsonb[] := '{}';
    job jsonb;
BEGIN
    PERFORM queue_bridge.check_target(queue_name);
    IF jsonb_typeof(jobs) IS DISTINCT FROM 'array' THEN
        RAISE EXCEPTION 'jobs must be a JSON array of objects' USING ERRCODE = '22023',
            HINT = 'For instance: ''[{"payload": {"to": 7}, "priority": 1}]''.';
    END IF;
    FOR job IN SELECT j.value FROM jsonb_array_elements(jobs) AS j LOOP
        IF jsonb_typeof(job) <> 'object' THEN
            RAISE EXCEPTION 'jobs[%] must be an object', cardinality(checked) USING ERRCODE = '22023',
                HINT = 'For instance: ''[{"payload": {"to": 7}, "priority": 1}]''.';
        ELSIF job ? 'command' THEN
            RAISE EXCEPTION 'jobs[%]: a job of this database cannot be a command', cardinality(checked)
                USING ERRCODE = '0A000', HINT = 'Enqueue it on the queue server.';
        END IF;
        checked := checked || (coalesce(queue_bridge.checked(job - 'payload'), '{}')
                               || jsonb_build_object('payload', coalesce(job -> 'payload', '{}')));
    END LOOP;
    RETURN QUERY SELECT queue_bridge.put_many('b', queue_name, checked, NULL);
END
$$;
COMMENT ON FUNCTION queue.enqueue_batch IS
'Adds one job for each object of a JSON array. The fields are payload and the options of queue.enqueue. Returns the
jobs'' ids in order. Errors: as queue.enqueue.';

CREATE OR REPLACE FUNCTION queue_bridge.checked_tasks(tasks jsonb) RETURNS jsonb STABLE LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    checked jsonb[] := '{}';
    places jsonb;
    sorted jsonb := '{}';
    further jsonb;
    wrong record;
    task jsonb;
    told text;
BEGIN
    IF jsonb_typeof(tasks) <> 'array' THEN
        RAISE EXCEPTION 'tasks must be a JSON array of objects' USING ERRCODE = '22023',
            HINT = 'For instance: ''[{"task": "a"}, {"task": "b", "after": ["a"]}]''.';
    ELSIF jsonb_array_length(tasks) > 10000 THEN
        RAISE EXCEPTION 'a call can have at most 10000 tasks' USING ERRCODE = '22023',
            HINT = 'Add further members with queue.enqueue_many(..., flow => ...) in the same transaction.';
    END IF;
    FOR task IN SELECT t.value FROM jsonb_array_elements(tasks) AS t LOOP
        told := CASE
            WHEN jsonb_typeof(task) <> 'object' THEN 'it must be an object'
            WHEN task ->> 'unique_key' IS NOT NULL THEN 'a task cannot have a unique_key'
            WHEN jsonb_typeof(coalesce(task -> 'after', 'null')) NOT IN ('array', 'null')
                 OR jsonb_typeof(task -> 'after') = 'array' AND task @? '$.after[*] ? (@.type() != "string")'
            THEN 'field "after" must be an array of names of tasks'
        END;
        IF told IS NOT NULL THEN
            RAISE EXCEPTION 'tasks[%]: %', cardinality(checked), told USING ERRCODE = '22023';
        ELSIF task ->> 'command' IS NOT NULL THEN
            RAISE EXCEPTION 'tasks[%]: a job of this database cannot be a command', cardinality(checked)
                USING ERRCODE = '0A000', HINT = 'Enqueue it on the queue server.';
        ELSIF task ->> 'queue' IS NOT NULL THEN
            PERFORM queue_bridge.check_target(task ->> 'queue');
        END IF;
        IF task -> 'after' = '[]' THEN
            task := task - 'after';
        END IF;
        checked := checked || (coalesce(queue_bridge.checked(task - '{payload,command,queue}'::text[]), '{}')
                               || jsonb_strip_nulls(jsonb_build_object('queue', task -> 'queue'))
                               || jsonb_build_object('payload', coalesce(task -> 'payload', '{}')));
    END LOOP;
    SELECT t.n - 1 AS place, format('there are two tasks "%s"', t.value ->> 'task') AS message INTO wrong
    FROM (SELECT t.*, row_number() OVER (PARTITION BY t.value ->> 'task' ORDER BY t.n) AS nth
          FROM unnest(checked) WITH ORDINALITY AS t (value, n)) AS t
    WHERE t.nth > 1 AND t.value ? 'task' ORDER BY t.n LIMIT 1;
    IF NOT FOUND THEN
        places := (SELECT coalesce(jsonb_object_agg(t.value ->> 'task', t.n), '{}')
                   FROM unnest(checked) WITH ORDINALITY AS t (value, n) WHERE t.value ? 'task');
        SELECT t.n - 1 AS place, format('it is after "%s", which is no task of the call', a.name) AS message INTO wrong
        FROM unnest(checked) WITH ORDINALITY AS t (value, n)
        CROSS JOIN LATERAL jsonb_array_elements_text(t.value -> 'after') AS a (name)
        WHERE NOT places ? a.name ORDER BY t.n LIMIT 1;
    END IF;
    IF FOUND THEN
        RAISE EXCEPTION 'tasks[%]: %', wrong.place, wrong.message USING ERRCODE = '22023';
    END IF;
    -- Tasks that stand behind their predecessors form no circle.
    IF EXISTS (SELECT FROM unnest(checked) WITH ORDINALITY AS t (value, n)
               CROSS JOIN LATERAL jsonb_array_elements_text(t.value -> 'after') AS a (name)
               WHERE (places ->> a.name)::bigint >= t.n) THEN
        LOOP
            further := (SELECT jsonb_object_agg(t.value ->> 'task', true) FROM unnest(checked) AS t (value)
                        WHERE t.value ? 'task' AND NOT sorted ? (t.value ->> 'task')
                          AND NOT EXISTS (SELECT FROM jsonb_array_elements_text(t.value -> 'after') AS a (name)
                                          WHERE NOT sorted ? a.name));
            EXIT WHEN further IS NULL;
            sorted := sorted || further;
        END LOOP;
        IF EXISTS (SELECT FROM unnest(checked) AS t (value) WHERE NOT sorted ? (t.value ->> 'task')) THEN
            RAISE EXCEPTION 'tasks are after each other in a circle' USING ERRCODE = '22023',
                HINT = 'Leave out one of the names in the fields after.';
        END IF;
    END IF;
    RETURN to_jsonb(checked);
END
$$;

CREATE OR REPLACE FUNCTION queue.enqueue_flow(
    queue_name text, tasks jsonb DEFAULT '[]', payload jsonb DEFAULT '{}', runs boolean DEFAULT false,
    open boolean DEFAULT false, fail_fast boolean DEFAULT false, command text DEFAULT NULL,
    -- arguments of flow: made by `make generate`
    priority integer DEFAULT 0, delay interval DEFAULT NULL, run_at timestamptz DEFAULT NULL,
    unique_key text DEFAULT NULL, on_duplicate text DEFAULT 'skip', version timestamptz DEFAULT NULL,
    unique_for interval DEFAULT NULL, group_key text DEFAULT NULL, stage text DEFAULT NULL,
    max_attempts integer DEFAULT NULL, lease interval DEFAULT NULL, headers jsonb DEFAULT NULL,
    after bigint[] DEFAULT NULL, upon text DEFAULT 'completed', flow bigint DEFAULT NULL, task text DEFAULT NULL,
    start_by timestamptz DEFAULT NULL, start_within interval DEFAULT NULL
    -- end of arguments of flow
) RETURNS bigint VOLATILE LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    options jsonb := queue_bridge.checked(jsonb_build_object(
        -- fields of flow: made by `make generate`
        'priority', priority, 'delay', delay, 'run_at', run_at, 'unique_key', unique_key,
        'on_duplicate', on_duplicate, 'version', version, 'unique_for', unique_for, 'group_key', group_key,
        'stage', stage, 'max_attempts', max_attempts, 'lease', lease, 'headers', headers, 'after', after,
        'upon', upon, 'flow', flow, 'task', task, 'start_by', start_by, 'start_within', start_within
        -- end of fields of flow
        ),
        is_flow => true);
    checked jsonb := coalesce(queue_bridge.checked_tasks(tasks), '[]');
    ids bigint[];
BEGIN
    PERFORM queue_bridge.check_target(queue_name);
    IF command IS NOT NULL THEN
        RAISE EXCEPTION 'a job of this database cannot be a command' USING ERRCODE = '0A000',
            HINT = 'Enqueue it on the queue server.';
    ELSIF upon = 'any' AND fail_fast THEN
        RAISE EXCEPTION 'upon => ''any'' cannot be combined with fail_fast' USING ERRCODE = '22023',
            HINT = 'Leave out one of the two.';
    ELSIF options ? 'on_duplicate' THEN
        RAISE EXCEPTION 'a flow cannot be replaced' USING ERRCODE = '22023', HINT = 'Use on_duplicate => ''skip''.';
    END IF;
    -- The flow and its tasks are one row, because they are carried out or refused together.
    ids := ARRAY(SELECT queue_bridge.new_id() FROM generate_series(0, jsonb_array_length(checked)));
    PERFORM queue_bridge.put(ids[1], 'w', queue_name, coalesce(payload, '{}'), coalesce(options, '{}')
        || jsonb_build_object('runs', runs, 'open', open, 'fail_fast', fail_fast, 'tasks', checked), ids);
    RETURN ids[1];
END
$$;
COMMENT ON FUNCTION queue.enqueue_flow IS
'Adds a flow and its members, together. Returns the flow''s id. Errors: as queue.enqueue; 22023 a task is wrong, tasks
form a cycle; 0A000 command.';

CREATE OR REPLACE FUNCTION queue.seal(job_id bigint) RETURNS void VOLATILE LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_bridge.check_id(job_id, 15, 15, 'job_id');
    PERFORM queue_bridge.put(job_id, 's', NULL, NULL, NULL);
END
$$;
COMMENT ON FUNCTION queue.seal IS
    'Lets an open flow end when its members have ended. The queue server learns of it after the commit. Errors: 22023 '
    'not a job''s id.';

CREATE OR REPLACE FUNCTION queue.publish(
    topic text, payload jsonb DEFAULT '{}', key text DEFAULT '', mandatory boolean DEFAULT false,
    -- arguments of publish: made by `make generate`
    priority integer DEFAULT 0, delay interval DEFAULT NULL, run_at timestamptz DEFAULT NULL,
    unique_key text DEFAULT NULL, on_duplicate text DEFAULT 'skip', version timestamptz DEFAULT NULL,
    unique_for interval DEFAULT NULL, group_key text DEFAULT NULL, headers jsonb DEFAULT NULL,
    after bigint[] DEFAULT NULL, upon text DEFAULT 'completed', flow bigint DEFAULT NULL, task text DEFAULT NULL,
    start_by timestamptz DEFAULT NULL, start_within interval DEFAULT NULL, max_delay interval DEFAULT NULL
    -- end of arguments of publish
) RETURNS bigint VOLATILE LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    event_id bigint := queue_bridge.new_id() - 1;
BEGIN
    PERFORM queue_bridge.check_target(topic);
    IF mandatory THEN
        RAISE EXCEPTION 'mandatory is not possible here' USING ERRCODE = '0A000',
            DETAIL = 'Which queues get an event is decided by the queue server, after the commit.';
    ELSIF octet_length(key) > 1024 THEN
        RAISE EXCEPTION 'key must have at most 1024 bytes' USING ERRCODE = '22023',
            DETAIL = format('It has %s.', octet_length(key));
    END IF;
    PERFORM queue_bridge.put(event_id, 'p', topic, coalesce(payload, '{}'), queue_bridge.checked(jsonb_build_object(
        'key', nullif(key, ''),
        -- fields of publish: made by `make generate`
        'priority', priority, 'delay', delay, 'run_at', run_at, 'unique_key', unique_key,
        'on_duplicate', on_duplicate, 'version', version, 'unique_for', unique_for, 'group_key', group_key,
        'headers', headers, 'after', after, 'upon', upon, 'flow', flow, 'task', task, 'start_by', start_by,
        'start_within', start_within, 'max_delay', max_delay
        -- end of fields of publish
        )));
    RETURN event_id;
END
$$;
COMMENT ON FUNCTION queue.publish IS
'Publishes an event: each queue of the queue server that has a matching binding gets a job. Returns the event''s id,
which is in the header event of the jobs. Errors: as queue.enqueue; 0A000 mandatory.';

CREATE OR REPLACE FUNCTION queue.publish_many(
    topic text, payloads jsonb[], keys text[] DEFAULT NULL, mandatory boolean DEFAULT false,
    -- arguments of publish: made by `make generate`
    priority integer DEFAULT 0, delay interval DEFAULT NULL, run_at timestamptz DEFAULT NULL,
    unique_key text DEFAULT NULL, on_duplicate text DEFAULT 'skip', version timestamptz DEFAULT NULL,
    unique_for interval DEFAULT NULL, group_key text DEFAULT NULL, headers jsonb DEFAULT NULL,
    after bigint[] DEFAULT NULL, upon text DEFAULT 'completed', flow bigint DEFAULT NULL, task text DEFAULT NULL,
    start_by timestamptz DEFAULT NULL, start_within interval DEFAULT NULL, max_delay interval DEFAULT NULL
    -- end of arguments of publish
) RETURNS SETOF bigint VOLATILE LANGUAGE plpgsql ROWS 100 SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF cardinality(keys) <> cardinality(payloads) THEN
        RAISE EXCEPTION 'keys must have as many elements as payloads' USING ERRCODE = '22023',
            DETAIL = format('Keys: %s, payloads: %s.', cardinality(keys), cardinality(payloads));
    ELSIF payloads IS NULL OR array_position(payloads, NULL) IS NOT NULL THEN
        RAISE EXCEPTION '% cannot be null', 'payloads' || coalesce('[' || array_position(payloads, NULL) || ']', '')
            USING ERRCODE = '22004';
    END IF;
    RETURN QUERY SELECT queue.publish(topic, e.payload, coalesce(e.key, ''), mandatory,
        -- names of publish: made by `make generate`
        priority, delay, run_at, unique_key, on_duplicate, version, unique_for, group_key, headers, after, upon, flow,
        task, start_by, start_within, max_delay
        -- end of names of publish
        )
    FROM ROWS FROM (unnest(payloads), unnest(keys)) AS e (payload, key);
END
$$;
COMMENT ON FUNCTION queue.publish_many IS
'Publishes one event for each payload, with the key at the same place, all with the same options. Returns the events''
ids in order. Errors: as queue.publish; 22004 names the payload that is null, 22023 the numbers of keys and payloads
differ.';

-- Generations of effects --------------------------------------------------------------------------------

-- Ids of a database grow, and begin anew after 256 lives. So of two of them the one behind is less than half of the
-- circle away.
CREATE OR REPLACE FUNCTION queue_bridge.is_before(id bigint, other bigint) RETURNS boolean IMMUTABLE LANGUAGE sql AS $$
    SELECT (($1 OPERATOR(pg_catalog.-) $2) OPERATOR(pg_catalog.&) 70368744177663::pg_catalog.int8)
        OPERATOR(pg_catalog.>=) 35184372088832::pg_catalog.int8
$$;

CREATE OR REPLACE FUNCTION queue_bridge.make_generation() RETURNS void VOLATILE LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE format('CREATE OR REPLACE FUNCTION queue_bridge.generation(job_id bigint) RETURNS smallint IMMUTABLE '
                   'LANGUAGE sql AS %L', format('SELECT (CASE %s ELSE 4 END)::pg_catalog.int2', coalesce((
        SELECT string_agg(format(
            'WHEN (($1 OPERATOR(pg_catalog.>>) 46) OPERATOR(pg_catalog.&) 127::pg_catalog.int8) '
            'OPERATOR(pg_catalog.=) %s::pg_catalog.int8 THEN '
            'CASE WHEN queue_bridge.is_before($1, %s) THEN -1 WHEN queue_bridge.is_before($1, %s) THEN %s ELSE %s END',
            t.node, t.ends, t.begins, 2 * t.place + 1 - t.newer, t.newer), ' ' ORDER BY t.place)
        FROM queue_bridge.turn AS t), 'WHEN false THEN 4')));
END
$$;
COMMENT ON FUNCTION queue_bridge.make_generation IS
    'Makes the function generation, which says in which partition of queue_bridge.effect a job is; -1: it is dropped.';

DO $$
BEGIN
    IF to_regprocedure('queue_bridge.generation(bigint)') IS NULL THEN
        PERFORM queue_bridge.make_generation();
    END IF;
END
$$;

-- One step of each turn. told: next, no smaller id is given by the queue server; oldest, when the oldest of its open
-- transactions began; gone, values of begins before which no job lives. Returns those for which that is asked.
CREATE OR REPLACE FUNCTION queue_bridge.turn_generations(told jsonb, confirmed pg_lsn) RETURNS jsonb VOLATILE
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    -- Calls under way see a new generation before they see its ids.
    headroom constant bigint := 16 * 100000;
    t queue_bridge.turn;
    next bigint;
    asks jsonb := '[]';
BEGIN
    FOR t IN SELECT * FROM queue_bridge.turn LOOP
        next := CASE t.place WHEN 0 THEN queue_bridge.new_id() ELSE (told ->> 'next')::bigint END;
        CONTINUE WHEN (next >> 46) & 127 <> t.node;
        IF t.since IS NULL THEN
            IF NOT queue_bridge.is_before(next, t.begins) THEN
                UPDATE queue_bridge.turn AS u SET since = clock_timestamp(), last_xid = pg_current_xact_id()
                WHERE u.place = t.place;
            END IF;
        ELSIF t.lsn IS NULL THEN
            IF t.since < clock_timestamp() - interval '1 day'
               AND pg_snapshot_xmin(pg_current_snapshot()) > t.last_xid
               AND (told ->> 'oldest')::timestamptz > t.since + interval '1 hour' THEN
                UPDATE queue_bridge.turn AS u SET lsn = pg_current_wal_insert_lsn() WHERE u.place = t.place;
            END IF;
        ELSIF NOT t.is_arrived THEN
            UPDATE queue_bridge.turn AS u SET is_arrived = true WHERE u.place = t.place AND confirmed >= t.lsn;
        ELSIF coalesce(told -> 'gone', '[]') @> to_jsonb(t.begins) THEN
            BEGIN
                EXECUTE format('LOCK TABLE queue_bridge.effect_%s NOWAIT', 2 * t.place + 1 - t.newer);
                EXECUTE format('TRUNCATE queue_bridge.effect_%s', 2 * t.place + 1 - t.newer);
                UPDATE queue_bridge.turn AS u
                SET newer = 2 * t.place + 1 - t.newer, ends = t.begins, begins = next + headroom, since = NULL,
                    last_xid = NULL, lsn = NULL, is_arrived = false, asked_at = NULL
                WHERE u.place = t.place;
                PERFORM queue_bridge.make_generation();
            EXCEPTION WHEN lock_not_available THEN
                NULL;
            END;
        ELSIF coalesce(t.asked_at < clock_timestamp() - interval '1 hour', true) THEN
            asks := asks || to_jsonb(t.begins);
            UPDATE queue_bridge.turn AS u SET asked_at = clock_timestamp() WHERE u.place = t.place;
        END IF;
    END LOOP;
    RETURN asks;
END
$$;
COMMENT ON FUNCTION queue_bridge.turn_generations IS
    'Empties the older generation of queue_bridge.effect when none of its jobs can run any more.';

-- Working -----------------------------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION queue_bridge.check_id(id bigint, nibble_from integer, nibble_to integer, what text)
    RETURNS void IMMUTABLE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF id IS NULL THEN
        RAISE EXCEPTION '% cannot be null', what USING ERRCODE = '22004';
    ELSIF id <= 15 OR id >= 1::bigint << 53 OR (id & 15) NOT BETWEEN nibble_from AND nibble_to THEN
        RAISE EXCEPTION '% is not the id of %', id, CASE what WHEN 'id' THEN 'an attempt' ELSE 'a job' END
            USING ERRCODE = '22023', HINT = format('Use the column "%s" that queue.claim returned.', what);
    END IF;
END
$$;

-- Otherwise a role that guesses the next ids could take the effects of jobs that are still to come.
CREATE OR REPLACE FUNCTION queue_bridge.check_made(job_id bigint) RETURNS void VOLATILE LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT queue_bridge.is_before(job_id, (queue_bridge.base() & -70368744177664)
        | ((queue_bridge.base() + ((queue_bridge.timeline() & 255)::bigint << 38)
            + ((SELECT s.last_value FROM queue_bridge.id_seq AS s) << 4) + 16) & 70368744177663)) THEN
        RAISE EXCEPTION '% is the id of no job of this database', job_id USING ERRCODE = '22023',
            DETAIL = 'This database has given smaller ids only.',
            HINT = 'Use the column "job_id" that queue.claim returned.';
    END IF;
END
$$;
COMMENT ON FUNCTION queue_bridge.check_made IS 'Errors: 22023 this database has not given the id to a job yet.';

CREATE OR REPLACE FUNCTION queue.once(job_id bigint) RETURNS boolean VOLATILE LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_variable
DECLARE
    generation smallint := queue_bridge.generation(job_id);
BEGIN
    PERFORM queue_bridge.check_id(job_id, 15, 15, 'job_id');
    IF generation OPERATOR(pg_catalog.=) (-1)::pg_catalog.int2 THEN
        RETURN false;
    ELSIF generation OPERATOR(pg_catalog.<=) 1::pg_catalog.int2 THEN
        PERFORM queue_bridge.check_made(job_id);
    END IF;
    INSERT INTO queue_bridge.effect (job_id, generation) VALUES (job_id, generation) ON CONFLICT DO NOTHING;
    -- The partition may have been emptied between the look and the lock.
    RETURN FOUND AND queue_bridge.generation(job_id) OPERATOR(pg_catalog.=) generation;
END
$$;
COMMENT ON FUNCTION queue.once IS
'Returns true for one transaction that commits, and false for all others with this job. So effects in the transaction
happen once, however often the job runs. Waits for another transaction that has called it for this job and is open.
False, too, for a job that has completed long ago and whose effect is forgotten.
Errors: 22023 not a job''s id, or one that this database has not given yet.';

CREATE OR REPLACE FUNCTION queue.once_many(job_ids bigint[]) RETURNS SETOF bigint VOLATILE LANGUAGE plpgsql ROWS 100
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    own queue_bridge.effect[];
BEGIN
    PERFORM queue_bridge.check_id(i.id, 15, 15, 'job_id') FROM unnest(job_ids) AS i (id);
    PERFORM queue_bridge.check_made(i.id) FROM unnest(job_ids) AS i (id) WHERE queue_bridge.generation(i.id) <= 1;
    -- In order, so that two calls with the same jobs wait for each other and not in a circle.
    WITH made AS (
        INSERT INTO queue_bridge.effect AS e (job_id, generation)
        SELECT i.id, queue_bridge.generation(i.id) FROM (SELECT DISTINCT unnest(job_ids) AS id ORDER BY id) AS i
        WHERE queue_bridge.generation(i.id) >= 0 ON CONFLICT DO NOTHING RETURNING e.*
    ) SELECT array_agg(m::queue_bridge.effect) INTO own FROM made AS m;
    -- As in once: another statement, which knows of generations that this one has waited for.
    RETURN QUERY SELECT o.job_id FROM unnest(own) AS o WHERE queue_bridge.generation(o.job_id) = o.generation;
END
$$;
COMMENT ON FUNCTION queue.once_many IS 'As queue.once, for several jobs. Returns those for which it is true.';

CREATE OR REPLACE FUNCTION queue.complete(id bigint, result jsonb DEFAULT NULL)
    RETURNS void VOLATILE LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    PERFORM queue_bridge.check_id(id, 0, 9, 'id');
    PERFORM queue_bridge.put(id, 'c', NULL, result, NULL);
END
$$;
COMMENT ON FUNCTION queue.complete IS
'Ends the attempt as completed, if and only if the transaction commits. The queue server learns of it a moment after the
commit. If the lease was lost before, it lists the attempt as late. Errors: 22023 not an attempt''s id.';

CREATE OR REPLACE FUNCTION queue.complete_many(ids bigint[]) RETURNS void VOLATILE LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_bridge.check_id(i.id, 0, 9, 'id') FROM unnest(ids) AS i (id);
    -- One row holds so many.
    PERFORM queue_bridge.put(ids[n], 'c', NULL, NULL, NULL, ids[n:n + 9999])
    FROM generate_series(array_lower(ids, 1), array_upper(ids, 1), 10000) AS n;
END
$$;
COMMENT ON FUNCTION queue.complete_many IS
    'As queue.complete, for several attempts. An attempt that has lost its lease is passed over.';

CREATE OR REPLACE FUNCTION queue.fail(
    id bigint, error text, retry_in interval DEFAULT NULL, fatal boolean DEFAULT false)
    RETURNS void VOLATILE LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_bridge.check_id(id, 0, 9, 'id');
    PERFORM queue_bridge.put(id, 'f', NULL, NULL, jsonb_strip_nulls(
        jsonb_build_object('error', error, 'retry_in', retry_in, 'fatal', nullif(fatal, false))));
END
$$;
COMMENT ON FUNCTION queue.fail IS
    'Ends the attempt as failed, if and only if the transaction commits. Errors: as queue.complete.';

CREATE OR REPLACE FUNCTION queue.release(id bigint, delay interval DEFAULT '0', reason text DEFAULT NULL)
    RETURNS void VOLATILE LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_bridge.check_id(id, 0, 9, 'id');
    PERFORM queue_bridge.put(id, 'r', NULL, NULL, jsonb_strip_nulls(
        jsonb_build_object('delay', delay, 'reason', reason)));
END
$$;
COMMENT ON FUNCTION queue.release IS
    'Gives the attempt back, if and only if the transaction commits. Errors: as queue.complete.';

CREATE OR REPLACE FUNCTION queue.cancel(job_id bigint, reason text DEFAULT NULL)
    RETURNS void VOLATILE LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_bridge.check_id(job_id, 15, 15, 'job_id');
    PERFORM queue_bridge.put(job_id, 'x', NULL, NULL, jsonb_strip_nulls(jsonb_build_object('reason', reason)));
END
$$;
COMMENT ON FUNCTION queue.cancel IS
    'Asks the queue server to cancel the job, if and only if the transaction commits. Errors: 22023 not a job''s id.';

-- The queue server --------------------------------------------------------------------------------------

-- Empties the partition that is next in the ring, in two steps with a contact or more between them. The partition is
-- locked, so all its rows are committed, and their commits come before `lsn`. When the slot has passed that position,
-- all of them have arrived, provided that those from before the slot were copied: the slot goes on while they are not.
-- But rows that were not published do not arrive, so the queue server's own number of rows decides.
-- No session inserts into it: its hour has been over for an hour.
CREATE OR REPLACE FUNCTION queue_bridge.tidy() RETURNS boolean VOLATILE LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    now constant timestamptz := clock_timestamp();
    next smallint := (queue_bridge.ring_at(now) + 1) % 3;
    is_empty boolean := pg_relation_size(('queue_bridge.outbox_' || next)::regclass) = 0;
    seen queue_bridge.ring;
    arrived bigint := (SELECT (b.arrived ->> next::text)::bigint FROM queue_bridge.bridge AS b);
    rows_now bigint;
    is_recent boolean;
BEGIN
    IF NOT is_empty THEN
        BEGIN
            EXECUTE format('LOCK TABLE queue_bridge.outbox_%s NOWAIT', next);
        EXCEPTION WHEN lock_not_available THEN
            RETURN false;
        END;
        SELECT r.* INTO seen FROM queue_bridge.ring AS r WHERE r.ring = next;
        -- Rows of the coming day were made before the clock went back. A clock that was wrong by more does not count.
        EXECUTE format('SELECT count(*), coalesce(bool_or(o.made_at > $1 - interval ''1 hour'' '
                       'AND o.made_at < $1 + interval ''1 day''), false) FROM queue_bridge.outbox_%s AS o', next)
        INTO rows_now, is_recent USING now;
        IF seen.rows IS DISTINCT FROM rows_now THEN
            UPDATE queue_bridge.ring AS r SET lsn = pg_current_wal_insert_lsn(), rows = rows_now WHERE r.ring = next;
            RETURN false;
        ELSIF is_recent OR coalesce(arrived < seen.emptied + rows_now, true) OR EXISTS (
            SELECT FROM queue_bridge.bridge AS b
            LEFT JOIN pg_replication_slots AS s ON s.slot_name = b.slot AND s.database = current_database()
            WHERE NOT b.is_copied OR coalesce(s.confirmed_flush_lsn < seen.lsn, true)) THEN
            RETURN false;
        END IF;
        EXECUTE format('TRUNCATE queue_bridge.outbox_%s', next);
    END IF;
    UPDATE queue_bridge.ring AS r
    SET lsn = NULL, rows = NULL, emptied = CASE WHEN is_empty THEN r.emptied ELSE arrived END,
        since = greatest(now, CASE WHEN r.since < now + interval '1 day' THEN r.since END)
    WHERE r.ring = next AND (NOT is_empty OR r.lsn IS NOT NULL
                             OR r.since NOT BETWEEN now - interval '1 hour' AND now + interval '1 day');
    RETURN NOT is_empty;
END
$$;
COMMENT ON FUNCTION queue_bridge.tidy IS
    'Empties a partition of the outbox that has arrived and is an hour old. True if it did. The queue server calls it.';

-- Large partitions are counted by tidy only, when no row is added to them any more.
CREATE OR REPLACE FUNCTION queue_bridge.made() RETURNS jsonb VOLATILE LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    max_bytes constant bigint := 4000000;
    made jsonb := '{}';
    rows_now bigint;
    r queue_bridge.ring;
BEGIN
    FOR r IN SELECT * FROM queue_bridge.ring LOOP
        rows_now := r.rows;
        IF rows_now IS NULL AND pg_relation_size(('queue_bridge.outbox_' || r.ring)::regclass) <= max_bytes THEN
            EXECUTE format('SELECT count(*) FROM queue_bridge.outbox_%s', r.ring) INTO rows_now;
        END IF;
        made := made || jsonb_build_object(r.ring::text, r.emptied + rows_now);
    END LOOP;
    RETURN made;
END
$$;
COMMENT ON FUNCTION queue_bridge.made IS
    'How many rows each partition of the outbox has got since the slot of the queue server was made; null: it is '
    'large.';

-- What determines whether rows of the outbox are published. A change that was undone makes another text, too.
CREATE OR REPLACE FUNCTION queue_bridge.wiring() RETURNS text STABLE LANGUAGE sql
    SET search_path = pg_catalog, pg_temp AS $$
    SELECT concat_ws(' ', p.oid, p.xmin, r.oid, r.xmin, 'queue_bridge.outbox'::regclass::oid, (
        SELECT string_agg(concat(c.oid, c.relpersistence), ' ' ORDER BY c.oid) FROM pg_inherits AS i
        JOIN pg_class AS c ON c.oid = i.inhrelid WHERE i.inhparent = 'queue_bridge.outbox'::regclass))
    FROM pg_publication AS p JOIN pg_publication_tables AS t ON t.pubname = p.pubname
    LEFT JOIN pg_publication_rel AS r ON r.prpubid = p.oid AND r.prrelid = 'queue_bridge.outbox'::regclass
    WHERE p.pubname = 'pg_queue' AND p.pubinsert AND t.schemaname = 'queue_bridge' AND t.tablename = 'outbox'
$$;
COMMENT ON FUNCTION queue_bridge.wiring IS 'Changes when the publication or the outbox does; null: none is published.';

CREATE OR REPLACE FUNCTION queue_bridge.facts() RETURNS jsonb VOLATILE LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    system text;
BEGIN
    BEGIN
        system := (SELECT c.system_identifier FROM pg_control_system() AS c);
    EXCEPTION WHEN insufficient_privilege OR feature_not_supported THEN
        system := '';
    END;
    RETURN jsonb_build_object('version', queue_bridge.version(), 'system', system, 'timeline', queue_bridge.timeline(),
                              'major', current_setting('server_version_num')::integer / 10000,
                              'synchronous', current_setting('synchronous_standby_names'),
                              'sender_timeout', current_setting('wal_sender_timeout'), 'encoding', (
        SELECT pg_encoding_to_char(d.encoding) FROM pg_database AS d WHERE d.datname = current_database()),
                              'wiring', queue_bridge.wiring(), 'unlogged', (
        SELECT c.relname FROM pg_class AS c
        WHERE c.relnamespace = 'queue_bridge'::regnamespace AND c.relpersistence = 'u' LIMIT 1));
END
$$;

CREATE OR REPLACE FUNCTION queue_bridge.address_of(told jsonb) RETURNS text STABLE LANGUAGE sql
    SET search_path = pg_catalog, pg_temp AS $$
    SELECT format('%s, port %s, database "%s"', coalesce(host(inet_client_addr()), 'this machine'), told ->> 'port',
                  told ->> 'database')
$$;

-- Two queue servers would both take all jobs. So another one is let in only if this one was silent for a minute, or is
-- the older half of a failover: the same database and source on an earlier timeline.
CREATE OR REPLACE FUNCTION queue_bridge.taken_by(told jsonb) RETURNS text STABLE LANGUAGE sql
    SET search_path = pg_catalog, pg_temp AS $$
    SELECT b.address FROM queue_bridge.bridge AS b
    WHERE b.seen_at BETWEEN clock_timestamp() - interval '1 minute' AND clock_timestamp() + interval '1 minute'
      AND b.server <> told ->> 'server'
      AND NOT (left(b.server, -8) = left(told ->> 'server', -8)
               AND right(b.server, 8) COLLATE "C" < right(told ->> 'server', 8))
      AND EXISTS (SELECT FROM pg_replication_slots AS s
                  WHERE s.slot_name = b.slot AND s.database = current_database())
$$;
COMMENT ON FUNCTION queue_bridge.taken_by IS
    'Where another queue server connects from, which is at work; null: none is.';

CREATE OR REPLACE FUNCTION queue_bridge.take_out(id bigint, reason text DEFAULT 'taken out by hand') RETURNS bigint
    VOLATILE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    taken bigint;
BEGIN
    WITH gone AS (
        DELETE FROM queue_bridge.outbox AS o WHERE o.id = id
        RETURNING o.id, o.made_at, o.verb, o.target, '22023', reason, o.ids, o.body, o.options)
    INSERT INTO queue_bridge.refused SELECT g.* FROM gone AS g ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS taken = ROW_COUNT;
    RETURN taken;
END
$$;
COMMENT ON FUNCTION queue_bridge.take_out IS
    'Moves a call out of the outbox into queue_bridge.refused, as the owner. For a call that the queue server cannot '
    'even read: queue_bridge.repair there begins behind it. Returns how many were moved.';

-- Calls that were written into the outbox past the functions can be unreadable. Nothing behind them would arrive.
CREATE OR REPLACE FUNCTION queue_bridge.take_out_unreadable() RETURNS void VOLATILE LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    call queue_bridge.outbox;
BEGIN
    FOR call IN SELECT o.* FROM queue_bridge.outbox AS o
                WHERE pg_column_size(o.body) >= 6000 OR pg_column_size(o.options) >= 6000
                   OR pg_column_compression(o.body) IS NOT NULL OR pg_column_compression(o.options) IS NOT NULL LOOP
        BEGIN
            PERFORM queue_bridge.check_size(call.body, 'payload or result'),
                    queue_bridge.check_size(call.options, 'options');
        EXCEPTION WHEN invalid_parameter_value THEN
            PERFORM queue_bridge.take_out(call.id, SQLERRM);
        END;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_bridge.take_out_unreadable IS 'Takes calls out that the queue server cannot read.';

-- From here on ids have this number and this life.
CREATE OR REPLACE FUNCTION queue_bridge.assign(told jsonb) RETURNS jsonb VOLATILE LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    node bigint := told ->> 'node';
    -- The life grows with the timeline. A server that is on an earlier one must not go back to ids of the later one.
    life bigint := (told ->> 'life')::bigint + greatest((told ->> 'timeline')::bigint - queue_bridge.timeline(), 0);
    taken_by text := queue_bridge.taken_by(told);
BEGIN
    IF taken_by IS NOT NULL THEN
        RAISE EXCEPTION 'another queue server takes the jobs of this database' USING ERRCODE = '55000',
            DETAIL = format('It is seen from here as: %s.', taken_by),
            HINT = 'SELECT queue_bridge.disconnect(...) there. If it is gone for good, try again in a minute.';
    END IF;
    EXECUTE format('CREATE OR REPLACE FUNCTION queue_bridge.base() RETURNS bigint IMMUTABLE LANGUAGE sql AS %L',
                   format('SELECT %s::pg_catalog.int8', (node << 46) + ((life & 255) << 38)));
    PERFORM queue_bridge.make_new_id();
    PERFORM queue_bridge.take_out_unreadable();
    DELETE FROM queue_bridge.bridge;
    INSERT INTO queue_bridge.bridge
    VALUES (told ->> 'slot', node, life, told ->> 'server', 0, queue_bridge.address_of(told), NULL, clock_timestamp());
    -- A restored dump can lack these rows, and has positions of another server in them. Its functions can be of others.
    INSERT INTO queue_bridge.ring (ring) VALUES (0), (1), (2)
    ON CONFLICT (ring) DO UPDATE SET lsn = NULL, rows = NULL, emptied = 0;
    -- All ids that there are already are in the first generation.
    INSERT INTO queue_bridge.turn (place, node, newer, begins, ends)
    SELECT n.place, (n.next >> 46) & 127, n.place, n.next - (1::bigint << 39), n.next - (1::bigint << 39)
    FROM (VALUES (0, queue_bridge.new_id()), (2, (told ->> 'next')::bigint)) AS n (place, next)
    ON CONFLICT (place) DO UPDATE
    SET since = NULL, last_xid = NULL, lsn = NULL, is_arrived = false, asked_at = NULL;
    PERFORM queue_bridge.make_generation(), queue_bridge.know();
    RETURN queue_bridge.facts() || jsonb_build_object(
        'life', life, 'rings', (SELECT jsonb_object_agg(r.ring, r.since) FROM queue_bridge.ring AS r));
END
$$;
COMMENT ON FUNCTION queue_bridge.assign IS
    'The queue server says here which number ids have, and which slot is its own.';

CREATE OR REPLACE FUNCTION queue_bridge.contact(told jsonb) RETURNS jsonb VOLATILE LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    own queue_bridge.bridge;
    slot record;
    made jsonb;
    has_changed boolean;
    is_assigned boolean;
    is_behind boolean;
    taken_by text := queue_bridge.taken_by(told);
BEGIN
    IF taken_by IS NOT NULL THEN
        RETURN queue_bridge.facts() || jsonb_build_object('taken_by', taken_by);
    END IF;
    SELECT b.* INTO own FROM queue_bridge.bridge AS b WHERE b.slot = told ->> 'slot' FOR UPDATE;
    -- Here the number is one behind. If it is further behind, this database is a copy of an earlier time.
    is_assigned := coalesce(own.contacts >= (told ->> 'contacts')::bigint - 1, false);
    is_behind := own.server <> told ->> 'server' OR own.contacts > (told ->> 'contacts')::bigint;
    UPDATE queue_bridge.bridge AS b SET server = told ->> 'server', contacts = (told ->> 'contacts')::bigint,
        address = queue_bridge.address_of(told), seen_at = clock_timestamp(), arrived = told -> 'arrived',
        is_copied = coalesce((told ->> 'is_copied')::boolean AND is_assigned AND NOT is_behind, false)
    WHERE b.slot = own.slot;
    SELECT s.wal_status, s.confirmed_flush_lsn, s.active INTO slot FROM pg_replication_slots AS s
    WHERE s.slot_name = told ->> 'slot' AND s.database = current_database();
    DELETE FROM queue_bridge.known_queue AS k
    WHERE NOT EXISTS (SELECT FROM jsonb_to_recordset(told -> 'known') AS t (name text) WHERE t.name = k.name);
    has_changed := FOUND;
    INSERT INTO queue_bridge.known_queue AS k
    SELECT t.name, t.is_full FROM jsonb_to_recordset(told -> 'known') AS t (name text, is_full boolean)
    ON CONFLICT (name) DO UPDATE SET is_full = excluded.is_full WHERE k.is_full <> excluded.is_full;
    IF has_changed OR FOUND THEN
        PERFORM queue_bridge.know();
    END IF;
    INSERT INTO queue_bridge.refused
    SELECT t.* FROM jsonb_to_recordset(told -> 'refused')
        AS t (id bigint, made_at timestamptz, verb "char", target text, sqlstate text, message text)
    ON CONFLICT DO NOTHING;
    PERFORM queue_bridge.tidy();
    made := queue_bridge.made();
    RETURN queue_bridge.facts() || jsonb_build_object(
        'is_assigned', is_assigned,
        -- Their commits come before this position.
        'made', made, 'made_lsn', pg_current_wal_insert_lsn(), 'taken_lsn', slot.confirmed_flush_lsn,
        'is_behind', is_behind,
        'asks', CASE WHEN NOT is_behind THEN queue_bridge.turn_generations(told, slot.confirmed_flush_lsn) END,
        'wal_status', slot.wal_status,
        'is_active', slot.active,
        -- PostgreSQL tries again every few seconds.
        'failing', CASE WHEN (own.failing ->> 'at')::timestamptz > now() - interval '1 minute' THEN own.failing END,
        'lag_bytes', greatest(pg_current_wal_insert_lsn() - slot.confirmed_flush_lsn, 0),
        -- Null until the clock is again where it was.
        'since', (SELECT min(r.since) FROM queue_bridge.ring AS r HAVING max(r.since) <= clock_timestamp()),
        'others', (SELECT jsonb_agg(s.slot_name) FROM pg_replication_slots AS s
                   WHERE s.slot_name ~ '^queue_bridge_' AND s.database = current_database()
                     AND s.slot_name <> told ->> 'slot' AND NOT s.active));
END
$$;
COMMENT ON FUNCTION queue_bridge.contact IS 'What the queue server tells and asks every 10 seconds.';

CREATE OR REPLACE FUNCTION queue_bridge.failed(told jsonb) RETURNS jsonb VOLATILE LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE queue_bridge.bridge AS b SET failing = told || jsonb_build_object('at', clock_timestamp(), 'since', CASE
        WHEN b.failing -> 'id' = told -> 'id' AND (b.failing ->> 'at')::timestamptz > now() - interval '1 minute'
        THEN b.failing -> 'since' ELSE to_jsonb(clock_timestamp()) END);
    RETURN to_jsonb(FOUND);
END
$$;
COMMENT ON FUNCTION queue_bridge.failed IS 'The queue server says here that a call fails. It tries again.';

CREATE OR REPLACE FUNCTION queue_bridge.leave(slot text) RETURNS jsonb VOLATILE LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- The sender has lost its receiver, and notices that soon.
    FOR n IN 1 .. 100 LOOP
        EXIT WHEN NOT EXISTS (SELECT FROM pg_replication_slots AS s WHERE s.slot_name = leave.slot AND s.active);
        PERFORM pg_sleep(0.1);
    END LOOP;
    PERFORM pg_drop_replication_slot(s.slot_name) FROM pg_replication_slots AS s WHERE s.slot_name = leave.slot;
    RETURN to_jsonb(FOUND);
END
$$;
COMMENT ON FUNCTION queue_bridge.leave IS 'Drops the slot of the queue server.';

CREATE OR REPLACE FUNCTION queue_bridge.lag(OUT bytes bigint, OUT is_active boolean) STABLE LANGUAGE sql
    SET search_path = pg_catalog, pg_temp AS $$
    SELECT greatest(pg_current_wal_insert_lsn() - s.confirmed_flush_lsn, 0)::bigint, coalesce(s.active, false)
    FROM queue_bridge.bridge AS b
    LEFT JOIN pg_replication_slots AS s ON s.slot_name = b.slot AND s.database = current_database()
$$;
COMMENT ON FUNCTION queue_bridge.lag IS 'How much WAL the queue server has not taken yet, and whether it is connected.';

-- What only the queue server can answer ----------------------------------------------------------------

CREATE OR REPLACE FUNCTION queue_bridge.absent(name text) RETURNS void STABLE LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    address text := (SELECT b.address FROM queue_bridge.bridge AS b);
BEGIN
    RAISE EXCEPTION 'queue.% is answered by the queue server', name USING ERRCODE = '0A000',
        DETAIL = 'This database has the functions of producers, and those that end jobs.',
        HINT = coalesce('Connect to the queue server, which is seen from here as: ' || address || '.',
                        'Connect to a queue server: none is connected to this database.');
END
$$;

DO $$
DECLARE
    old regprocedure;
    old_type regtype;
    declaration text;
BEGIN
    FOR old IN SELECT p.oid FROM pg_proc AS p
               WHERE p.pronamespace = 'queue'::regnamespace AND p.prosrc LIKE '%queue_bridge.absent(%' LOOP
        EXECUTE format('DROP ROUTINE %s', old);
    END LOOP;
    FOR old_type IN SELECT c.reltype FROM pg_class AS c
                    WHERE c.relnamespace = 'queue_bridge'::regnamespace AND c.relkind = 'c' LOOP
        EXECUTE format('DROP TYPE %s', old_type);
    END LOOP;
    FOREACH declaration IN ARRAY ARRAY[
-- absent: made by `make generate`
    'TYPE queue_bridge.activity_period AS (queue_name text, stage text, starts_at timestamptz, enqueued bigint,
      claimed bigint, completed bigint, failed bigint, timed_out bigint, died bigint, is_complete boolean, expired
      bigint)',
    'TYPE queue_bridge.answer AS (id bigint, outcome text, reason text)',
    'TYPE queue_bridge.attempts AS (id bigint, job_id bigint, queue_name text, attempt integer, state text, claimed_at
      timestamp with time zone, finished_at timestamp with time zone, worker text, error text, stage text)',
    'TYPE queue_bridge.claimed_job AS (id bigint, job_id bigint, queue_name text, stage text, payload jsonb, headers
      jsonb, attempt integer, max_attempts integer, priority integer, unique_key text, group_key text, progress jsonb,
      last_error text, enqueued_at timestamptz, lease_expires_at timestamptz)',
    'TYPE queue_bridge.error_group AS (queue_name text, error text, jobs bigint, dead bigint, retrying bigint,
      first_died_at timestamptz, last_died_at timestamptz, example_job_id bigint, is_complete boolean)',
    'TYPE queue_bridge.jobs AS (job_id bigint, queue_name text, stage text, state text, payload jsonb, priority
      integer, attempt integer, max_attempts integer, run_at timestamp with time zone, enqueued_at timestamp with time
      zone, claimed_at timestamp with time zone, finished_at timestamp with time zone, lease_expires_at timestamp with
      time zone, worker text, error text, result jsonb, progress jsonb, unique_key text, group_key text, headers
      jsonb, flow bigint, task text, after bigint[], upon text, start_by timestamp with time zone, timing jsonb)',
    'TYPE queue_bridge.lane_load AS (queue_name text, stage text, ready bigint, due_soon bigint, running bigint,
      oldest_age interval, arrivals float8, ends float8, run_mean interval, drain_time interval, needed bigint,
      throttled_until timestamptz)',
    'TYPE queue_bridge.listed_job AS (job_id bigint, queue_name text, stage text, state text, payload jsonb, priority
      integer, attempt integer, max_attempts integer, run_at timestamptz, enqueued_at timestamptz, claimed_at
      timestamptz, finished_at timestamptz, lease_expires_at timestamptz, worker text, error text, result jsonb,
      progress jsonb, unique_key text, group_key text, headers jsonb, flow bigint, task text, after bigint[], upon
      text, here jsonb, rows_read bigint, start_by timestamptz, timing jsonb)',
    'FUNCTION queue.activity(queue_name text DEFAULT NULL, since timestamptz DEFAULT NULL, period interval DEFAULT ''1
      minute'') RETURNS SETOF queue_bridge.activity_period',
    'FUNCTION queue.adopt() RETURNS void',
    'FUNCTION queue.advance(id bigint, stage text DEFAULT NULL, payload jsonb DEFAULT NULL, delay interval DEFAULT
      ''0'') RETURNS void',
    'FUNCTION queue.alter(queue_name text, reset text[] DEFAULT NULL, max_attempts integer DEFAULT NULL, lease
      interval DEFAULT NULL, backoff text DEFAULT NULL, backoff_base interval DEFAULT NULL, backoff_max interval
      DEFAULT NULL, backoff_jitter float8 DEFAULT NULL, retention interval DEFAULT NULL, dead_retention interval
      DEFAULT NULL, dead_letter text DEFAULT NULL, max_running integer DEFAULT NULL, max_running_per_group integer
      DEFAULT NULL, strict_order boolean DEFAULT NULL, rate_limit integer DEFAULT NULL, rate_limit_per_group integer
      DEFAULT NULL, rate_period interval DEFAULT NULL, rate_cost text DEFAULT NULL, fair_share text DEFAULT NULL,
      max_waiting bigint DEFAULT NULL, stages text[] DEFAULT NULL, notify boolean DEFAULT NULL, start_within interval
      DEFAULT NULL, executor text DEFAULT NULL, procedure text DEFAULT NULL, run_as text DEFAULT NULL, settings jsonb
      DEFAULT NULL) RETURNS void',
    'PROCEDURE queue.await(job_id bigint, timeout interval DEFAULT ''30 seconds'', INOUT state text DEFAULT NULL,
      INOUT result jsonb DEFAULT NULL)',
    'FUNCTION queue.bind(topic text, queue_name text, pattern text DEFAULT ''#'', filter jsonpath DEFAULT NULL,
      priority integer DEFAULT NULL, delay interval DEFAULT NULL, group_key jsonpath DEFAULT NULL, max_attempts
      integer DEFAULT NULL, lease interval DEFAULT NULL, stage text DEFAULT NULL, on_full text DEFAULT ''keep'')
      RETURNS bigint',
    'FUNCTION queue.cancel_many(job_ids bigint[], reason text DEFAULT NULL, force boolean DEFAULT false) RETURNS SETOF
      queue_bridge.answer',
    'FUNCTION queue.charge(id bigint, used integer) RETURNS void',
    'FUNCTION queue.check(repair boolean DEFAULT false) RETURNS TABLE (name text, queue_name text, job_id bigint,
      attempt_id bigint, problem text, remedy text, is_repaired boolean)',
    'FUNCTION queue.claim(queue_name text, max_jobs integer DEFAULT 1, wait interval DEFAULT ''0'', lease interval
      DEFAULT NULL, stage text DEFAULT NULL, worker text DEFAULT NULL, disconnect interval DEFAULT NULL, completed
      bigint[] DEFAULT NULL, results json DEFAULT NULL, linger interval DEFAULT NULL) RETURNS SETOF
      queue_bridge.claimed_job',
    'FUNCTION queue.claim_any(queue_names text[], max_jobs integer DEFAULT 1, wait interval DEFAULT ''0'', lease
      interval DEFAULT NULL, stages text[] DEFAULT NULL, worker text DEFAULT NULL, disconnect interval DEFAULT NULL,
      completed bigint[] DEFAULT NULL, results json DEFAULT NULL, linger interval DEFAULT NULL) RETURNS SETOF
      queue_bridge.claimed_job',
    'FUNCTION queue.create(queue_name text, if_not_exists boolean DEFAULT false, max_attempts integer DEFAULT NULL,
      lease interval DEFAULT NULL, backoff text DEFAULT NULL, backoff_base interval DEFAULT NULL, backoff_max interval
      DEFAULT NULL, backoff_jitter float8 DEFAULT NULL, retention interval DEFAULT NULL, dead_retention interval
      DEFAULT NULL, dead_letter text DEFAULT NULL, max_running integer DEFAULT NULL, max_running_per_group integer
      DEFAULT NULL, strict_order boolean DEFAULT NULL, rate_limit integer DEFAULT NULL, rate_limit_per_group integer
      DEFAULT NULL, rate_period interval DEFAULT NULL, rate_cost text DEFAULT NULL, fair_share text DEFAULT NULL,
      max_waiting bigint DEFAULT NULL, stages text[] DEFAULT NULL, notify boolean DEFAULT NULL, start_within interval
      DEFAULT NULL, executor text DEFAULT NULL, procedure text DEFAULT NULL, run_as text DEFAULT NULL, settings jsonb
      DEFAULT NULL) RETURNS void',
    'FUNCTION queue.create_topic(topic text, if_not_exists boolean DEFAULT false) RETURNS void',
    'FUNCTION queue.current_job() RETURNS SETOF queue_bridge.claimed_job',
    'FUNCTION queue.doctor() RETURNS TABLE (name text, ok boolean, detail text, hint text)',
    'FUNCTION queue.drop(queue_name text, force boolean DEFAULT false, if_exists boolean DEFAULT false) RETURNS void',
    'FUNCTION queue.end_batch(ends json) RETURNS SETOF queue_bridge.answer',
    'FUNCTION queue.enqueue_sql(queue_name text, command text, arguments jsonb DEFAULT NULL, autocommit boolean
      DEFAULT false, settings jsonb DEFAULT NULL, result_rows integer DEFAULT 0, priority integer DEFAULT 0, delay
      interval DEFAULT NULL, run_at timestamptz DEFAULT NULL, unique_key text DEFAULT NULL, on_duplicate text DEFAULT
      ''skip'', version timestamptz DEFAULT NULL, unique_for interval DEFAULT NULL, group_key text DEFAULT NULL, stage
      text DEFAULT NULL, max_attempts integer DEFAULT NULL, lease interval DEFAULT NULL, headers jsonb DEFAULT NULL,
      after bigint[] DEFAULT NULL, upon text DEFAULT ''completed'', flow bigint DEFAULT NULL, task text DEFAULT NULL,
      start_by timestamptz DEFAULT NULL, start_within interval DEFAULT NULL, max_delay interval DEFAULT NULL) RETURNS
      bigint',
    'FUNCTION queue.error_groups(queue_name text DEFAULT NULL, max_jobs integer DEFAULT 10000) RETURNS SETOF
      queue_bridge.error_group',
    'FUNCTION queue.extend(id bigint, lease interval DEFAULT NULL) RETURNS TABLE (lease_expires_at timestamptz,
      is_cancelled boolean)',
    'FUNCTION queue.extend_many(ids bigint[], lease interval DEFAULT NULL) RETURNS TABLE (id bigint, outcome text,
      reason text, lease_expires_at timestamptz, is_cancelled boolean)',
    'FUNCTION queue.fail_many(ids bigint[], error text, retry_in interval DEFAULT NULL, fatal boolean DEFAULT false)
      RETURNS SETOF queue_bridge.answer',
    'FUNCTION queue.forget(job_id bigint) RETURNS void',
    'FUNCTION queue.grant(queue_name text, role_name text, privilege text) RETURNS void',
    'FUNCTION queue.groups(queue_name text, max_groups integer DEFAULT NULL) RETURNS TABLE (stage text, group_key
      text, weight float8, running bigint, next_job_id bigint, waits_since timestamptz, ahead bigint, throttled_until
      timestamptz)',
    'FUNCTION queue.inputs(id bigint) RETURNS TABLE (job_id bigint, queue_name text, task text, state text, result
      jsonb, error text, finished_at timestamptz)',
    'FUNCTION queue.job(job_id bigint) RETURNS SETOF queue_bridge.jobs',
    'FUNCTION queue.job_attempts(job_id bigint) RETURNS SETOF queue_bridge.attempts',
    'FUNCTION queue.job_steps(job_id bigint) RETURNS TABLE (name text, result jsonb)',
    'FUNCTION queue.load(queue_name text DEFAULT NULL, target_age interval DEFAULT ''30 seconds'') RETURNS SETOF
      queue_bridge.lane_load',
    'FUNCTION queue.maintain() RETURNS TABLE (duty text, did bigint)',
    'FUNCTION queue.members(job_id bigint, state text DEFAULT NULL, beyond bigint DEFAULT NULL, max_jobs integer
      DEFAULT 100) RETURNS SETOF queue_bridge.jobs',
    'FUNCTION queue.metrics() RETURNS TABLE (name text, labels jsonb, value float8, type text, help text)',
    'FUNCTION queue.pause(queue_name text) RETURNS void',
    'FUNCTION queue.pause_schedule(name text) RETURNS void',
    'FUNCTION queue.progress(id bigint, progress jsonb) RETURNS void',
    'FUNCTION queue.purge(queue_name text) RETURNS bigint',
    'FUNCTION queue.reject(job_id bigint, error text) RETURNS void',
    'FUNCTION queue.release_many(ids bigint[], delay interval DEFAULT ''0'', reason text DEFAULT NULL) RETURNS SETOF
      queue_bridge.answer',
    'FUNCTION queue.reprioritize(job_id bigint, priority integer) RETURNS void',
    'FUNCTION queue.reprioritize_many(job_ids bigint[], priority integer) RETURNS SETOF queue_bridge.answer',
    'FUNCTION queue.reschedule(job_id bigint, run_at timestamptz) RETURNS void',
    'FUNCTION queue.reschedule_many(job_ids bigint[], run_at timestamptz) RETURNS SETOF queue_bridge.answer',
    'FUNCTION queue.resolve(job_id bigint, result jsonb DEFAULT NULL) RETURNS void',
    'FUNCTION queue.resume(queue_name text) RETURNS void',
    'FUNCTION queue.resume_schedule(name text) RETURNS void',
    'FUNCTION queue.retry(job_id bigint, run_at timestamptz DEFAULT NULL) RETURNS void',
    'FUNCTION queue.retry_many(job_ids bigint[], run_at timestamptz DEFAULT NULL) RETURNS SETOF queue_bridge.answer',
    'FUNCTION queue.revoke(queue_name text, role_name text, privilege text) RETURNS void',
    'FUNCTION queue.route(topic text, key text DEFAULT '''', payload jsonb DEFAULT ''{}'', headers jsonb DEFAULT NULL)
      RETURNS TABLE (queue_name text, binding_id bigint, pattern text)',
    'FUNCTION queue.run_schedule(name text) RETURNS bigint',
    'FUNCTION queue.schedule(name text, queue_name text, payload jsonb DEFAULT ''{}'', cron text DEFAULT NULL, every
      interval DEFAULT NULL, timezone text DEFAULT ''UTC'', missed text DEFAULT ''once'', starts_at timestamptz
      DEFAULT NULL, ends_at timestamptz DEFAULT NULL, overlap boolean DEFAULT true, priority integer DEFAULT 0,
      max_attempts integer DEFAULT NULL, group_key text DEFAULT NULL, headers jsonb DEFAULT NULL, command text DEFAULT
      NULL, start_within interval DEFAULT NULL) RETURNS timestamptz',
    'FUNCTION queue.search(queue_name text, filter jsonpath DEFAULT NULL, states text[] DEFAULT NULL, stage text
      DEFAULT NULL, beyond jsonb DEFAULT NULL, max_jobs integer DEFAULT 50, max_rows integer DEFAULT 20000) RETURNS
      SETOF queue_bridge.listed_job',
    'FUNCTION queue.step(id bigint, name text) RETURNS jsonb',
    'FUNCTION queue.step_done(id bigint, name text, result jsonb DEFAULT ''null'') RETURNS void',
    'FUNCTION queue.suspend(id bigint, after bigint[] DEFAULT NULL, upon text DEFAULT ''ended'', progress jsonb
      DEFAULT NULL, until timestamptz DEFAULT NULL) RETURNS void',
    'FUNCTION queue.text_length(value jsonb) RETURNS bigint',
    'FUNCTION queue.throttle(queue_name text, period interval, group_key text DEFAULT NULL) RETURNS timestamptz',
    'FUNCTION queue.throughput_by(period interval DEFAULT ''1 hour'', since timestamptz DEFAULT NULL) RETURNS TABLE
      (queue_name text, stage text, starts_at timestamptz, enqueued bigint, claimed bigint, completed bigint, failed
      bigint, timed_out bigint, died bigint, wait_mean interval, wait_p50 interval, wait_p95 interval, wait_p99
      interval, run_mean interval, run_p50 interval, run_p95 interval, run_p99 interval, expired bigint)',
    'FUNCTION queue.unbind(topic text, queue_name text, pattern text DEFAULT NULL) RETURNS bigint',
    'FUNCTION queue.unschedule(name text) RETURNS void',
    'FUNCTION queue.upcoming(name text, runs integer DEFAULT 10) RETURNS SETOF timestamptz',
    'PROCEDURE queue.wait(queue_name text, timeout interval DEFAULT ''30 seconds'', INOUT has_jobs boolean DEFAULT
      NULL)',
    'FUNCTION queue.weigh(queue_name text, group_key text, weight float8 DEFAULT NULL) RETURNS void'
-- end of absent
    ] LOOP
        EXECUTE 'CREATE ' || declaration || CASE WHEN declaration NOT LIKE 'TYPE%' THEN
            format(' LANGUAGE plpgsql SECURITY DEFINER AS %L', format(
                'BEGIN PERFORM queue_bridge.absent(%L); END',
                substring(declaration FROM 'queue[.]([a-z0-9_]+)'))) ELSE '' END;
    END LOOP;
END
$$;

-- Rights ------------------------------------------------------------------------------------------------

-- Without a key, so that a dump of the data can be restored after `admit` and `grant`.
CREATE TABLE IF NOT EXISTS queue_bridge.permission (role_name text NOT NULL, privileges text[] NOT NULL);
COMMENT ON TABLE queue_bridge.permission IS
    'Which role may do what here: produce, consume, manage, and receive for the queue server. The GRANTs follow from '
    'it. Change it through admit, grant and revoke only.';

-- Default privileges of the owner count for nothing, and neither do grants by hand.
CREATE OR REPLACE FUNCTION queue_bridge.derive_grants() RETURNS void VOLATILE LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    statement text;
BEGIN
    FOR statement IN
        WITH own AS (
            SELECT format('SCHEMA %I', n.nspname) AS object, n.nspowner AS owner, n.nspacl AS acl
            FROM pg_namespace AS n WHERE n.nspname IN ('queue', 'queue_bridge')
            UNION ALL
            SELECT format('%s %s', CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, c.oid::regclass),
                   c.relowner, c.relacl
            FROM pg_class AS c WHERE c.relnamespace::regnamespace::text IN ('queue', 'queue_bridge')
            UNION ALL
            SELECT format('ROUTINE %s', p.oid::regprocedure), p.proowner,
                   coalesce(p.proacl, acldefault('f', p.proowner))
            FROM pg_proc AS p WHERE p.pronamespace::regnamespace::text IN ('queue', 'queue_bridge')
        )
        SELECT DISTINCT format('REVOKE ALL ON %s FROM %s CASCADE', o.object,
                               CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END)
        FROM own AS o CROSS JOIN LATERAL aclexplode(o.acl) AS a
        WHERE a.grantee <> o.owner AND (a.grantee = 0 OR EXISTS (SELECT FROM pg_roles AS r WHERE r.oid = a.grantee))
    LOOP
        EXECUTE statement;
    END LOOP;
    FOR statement IN
        WITH verb AS (
            SELECT format('ROUTINE %s', p.oid::regprocedure) AS object, CASE
                WHEN p.proname IN ('once', 'once_many', 'complete', 'complete_many', 'fail', 'release') THEN 'consume'
                WHEN p.proname IN ('seal', 'cancel') THEN 'manage'
                WHEN p.proname ~ '^(enqueue(_many|_batch|_flow)?|publish(_many)?)$' THEN 'produce' END AS privilege
            FROM pg_proc AS p WHERE p.pronamespace::regnamespace::text = 'queue'
        )
        SELECT format('GRANT %s TO %I', g.what, r.rolname)
        FROM queue_bridge.permission AS m JOIN pg_roles AS r ON r.rolname = m.role_name
        CROSS JOIN LATERAL (
            SELECT 'EXECUTE ON ' || v.object FROM verb AS v
            -- A verb that only the queue server has says so.
            WHERE v.privilege = ANY (m.privileges) OR v.privilege IS NULL AND m.privileges <> '{receive}'
            UNION ALL
            SELECT 'USAGE ON SCHEMA queue' WHERE m.privileges <> '{receive}'
            UNION ALL
            SELECT u.what FROM unnest(ARRAY[
                'USAGE ON SCHEMA queue_bridge', 'SELECT ON queue_bridge.outbox',
                'EXECUTE ON FUNCTION queue_bridge.contact, queue_bridge.assign, queue_bridge.leave, queue_bridge.failed'
            ]) AS u (what) WHERE 'receive' = ANY (m.privileges)) AS g (what)
    LOOP
        EXECUTE statement;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_bridge.derive_grants IS
    'Makes the GRANTs in schemas queue and queue_bridge those that queue_bridge.permission says. Revokes all others.';

CREATE OR REPLACE FUNCTION queue_bridge.permit(role_name text, privileges text[]) RETURNS void VOLATILE LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    IF to_regrole(quote_ident(permit.role_name)) IS NULL THEN
        RAISE EXCEPTION 'role "%" does not exist', permit.role_name USING ERRCODE = '42704';
    END IF;
    DELETE FROM queue_bridge.permission AS m
    WHERE m.role_name = permit.role_name AND m.privileges <@ permit.privileges;
    INSERT INTO queue_bridge.permission (role_name, privileges) VALUES (permit.role_name, permit.privileges);
    PERFORM queue_bridge.derive_grants();
END
$$;

CREATE OR REPLACE FUNCTION queue_bridge.check_privileges(privileges text[]) RETURNS void IMMUTABLE LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    wrong text := (SELECT coalesce(p.name, 'null') FROM unnest(privileges) AS p (name)
                   WHERE p.name IS NULL OR p.name NOT IN ('produce', 'consume', 'manage') LIMIT 1);
BEGIN
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION 'there is no privilege "%"', wrong USING ERRCODE = '22023',
            HINT = 'Use ''produce'', ''consume'' or ''manage''.';
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION queue_bridge.admit(role_name text) RETURNS void VOLATILE LANGUAGE sql
    SET search_path = pg_catalog, pg_temp AS $$ SELECT queue_bridge.permit(role_name, '{receive}') $$;
COMMENT ON FUNCTION queue_bridge.admit IS
'Grants the role of the queue server what it needs here, except REPLICATION: each provider has its own way. Errors:
42704 there is no such role.';

CREATE OR REPLACE FUNCTION queue_bridge.grant(role_name text, privileges text[] DEFAULT '{produce,consume}')
    RETURNS void VOLATILE LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT queue_bridge.check_privileges(privileges);
    SELECT queue_bridge.permit(role_name, privileges)
$$;
COMMENT ON FUNCTION queue_bridge.grant IS
'Lets a role use this database''s functions, for all queues that the queue server lets it use. produce: enqueue and
publish; consume: once, complete, fail, release, of any job of this source; manage: seal and cancel. Errors: 42704 there
is no such role, 22023 no such privilege.';

CREATE OR REPLACE FUNCTION queue_bridge.revoke(role_name text, privileges text[] DEFAULT '{produce,consume,manage}')
    RETURNS void VOLATILE LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT queue_bridge.check_privileges(privileges);
    UPDATE queue_bridge.permission AS m
    SET privileges = ARRAY(SELECT p FROM unnest(m.privileges) AS p WHERE p <> ALL (revoke.privileges))
    WHERE m.role_name = revoke.role_name;
    DELETE FROM queue_bridge.permission AS m WHERE m.privileges = '{}';
    SELECT queue_bridge.derive_grants()
$$;
COMMENT ON FUNCTION queue_bridge.revoke IS
    'Takes back what grant has given. The role need not exist any more. Errors: 22023 no such privilege.';

SELECT queue_bridge.derive_grants();
COMMIT;
