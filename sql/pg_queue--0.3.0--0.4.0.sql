\echo Use "ALTER EXTENSION pg_queue UPDATE TO '0.4.0'" to load this file. \quit

-- Made by `make generate` from sql/schema and the transition: do not edit.

SET LOCAL search_path TO pg_catalog, pg_temp;

DO $library$
BEGIN
    PERFORM queue_internal.assert_loaded();
    IF string_to_array(current_setting('pg_queue.library_version'), '.')::integer[] < '{0,4,0}'::integer[] THEN
        RAISE EXCEPTION 'the server has loaded a library of pg_queue that is older than 0.4.0'
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Restart the server, then run ALTER EXTENSION pg_queue UPDATE again.';
    END IF;
END
$library$;

DO $locks$
DECLARE
    before text := current_setting('lock_timeout');
BEGIN
    LOOP
        BEGIN
            SET LOCAL lock_timeout = '100ms';
            LOCK TABLE queue.job_life, queue.jobs IN ACCESS EXCLUSIVE MODE;
            EXIT;
        EXCEPTION WHEN lock_not_available THEN
            PERFORM pg_sleep(0.2);
        END;
    END LOOP;
    PERFORM set_config('lock_timeout', before, true);
END
$locks$;

-- One moment has one name: when a worker claimed the attempt.
ALTER VIEW queue.job_life RENAME COLUMN started_at TO claimed_at;
ALTER VIEW queue.jobs RENAME COLUMN started_at TO claimed_at;
ALTER TYPE queue.listed_job RENAME ATTRIBUTE started_at TO claimed_at;

DO $each_column$
DECLARE
    attribute name;
BEGIN
    FOR attribute IN
        SELECT a.attname FROM pg_attribute AS a JOIN pg_attribute AS b ON b.attname = a.attname
        WHERE a.attrelid = 'queue.binding'::regclass AND b.attrelid = 'queue.bindings'::regclass AND a.attnum > 0
          AND col_description(a.attrelid, a.attnum) IS NULL
    LOOP
        EXECUTE format('COMMENT ON COLUMN queue.binding.%I IS %L', attribute, (
            SELECT col_description(attrelid, attnum) FROM pg_attribute
            WHERE attrelid = 'queue.bindings'::regclass AND attname = attribute));
    END LOOP;
END
$each_column$;

CREATE OR REPLACE VIEW queue.job_life AS
SELECT l.id AS attempt_id, l.job_id, o.queue_name, o.stage,
       CASE WHEN l.outcome = 'c' THEN 'completed'
            WHEN l.outcome = 'x' THEN 'cancelled'
            WHEN l.outcome = 'k' THEN 'skipped'
            WHEN l.outcome IS NOT NULL THEN 'dead'
            WHEN l.claimed_at IS NOT NULL THEN 'running'
            WHEN o.is_held THEN 'held'
            WHEN l.run_at > clock_timestamp() THEN CASE WHEN l.last_error IS NULL THEN 'scheduled' ELSE 'retrying' END
            ELSE 'ready' END AS state,
       -- Not before all conditions are met, of those rows that are wanted.
       coalesce(l.payload, queue_internal.payload_of(l.payload_in)) AS payload,
       l.priority, l.attempt, coalesce(l.max_attempts, o.max_attempts) AS max_attempts, l.run_at, l.enqueued_at,
       CASE WHEN l.claim_kind <> 's' THEN l.claimed_at END AS claimed_at,
       l.ended_at AS finished_at,
       CASE WHEN l.outcome IS NULL AND l.claimed_at IS NOT NULL
            THEN coalesce(queue_internal.lease_expires_at(l.id), l.claimed_at + l.lease_us * interval '1 microsecond') END AS lease_expires_at,
       l.worker, coalesce(l.error, l.last_error) AS error, l.result, l.progress, l.unique_key, l.group_key, l.headers,
       l.flow, l.task, l.after,
       CASE l.upon WHEN 'c' THEN 'completed' WHEN 'f' THEN 'failed' WHEN 'e' THEN 'ended'
                                WHEN 'o' THEN 'overdue' END AS upon,
       l.own_flow IS NOT NULL AS is_flow
FROM queue.life AS l
JOIN queue.observed AS o ON o.lane = l.lane
WHERE l.is_newest;

COMMENT ON COLUMN queue.job_life.claimed_at IS 'When a worker claimed the newest attempt.';

CREATE OR REPLACE VIEW queue.jobs AS
SELECT job_id, queue_name, stage, state, payload, priority, attempt, max_attempts, run_at, enqueued_at, claimed_at,
       finished_at, lease_expires_at, worker, error, result, progress, unique_key, group_key, headers,
       flow, task, after, upon
FROM queue.job_life;

COMMENT ON COLUMN queue.jobs.claimed_at IS 'When a worker claimed the newest attempt.';

COMMENT ON COLUMN queue.listed_job.claimed_at IS 'When a worker claimed the newest attempt.';

CREATE OR REPLACE VIEW queue.storage WITH (security_barrier) AS
SELECT t.part, t.name, s.state, s.since, sum(pg_stat_get_live_tuples(t.oid))::bigint AS rows,
       sum(pg_stat_get_dead_tuples(t.oid))::bigint AS dead_rows, sum(pg_total_relation_size(t.oid))::bigint AS bytes
FROM (SELECT c.oid, n.segment,
             CASE WHEN n.segment IS NOT NULL THEN 'log' WHEN c.relname ~ '^history_' THEN 'history' ELSE 'other' END AS part,
             coalesce('segment ' || n.segment, c.relname::text) AS name
      FROM pg_class AS c
      CROSS JOIN LATERAL (SELECT substring(c.relname, '^(?:attempt|claim|outcome|note|parked)_([0-9])$')::integer AS segment) AS n
      WHERE c.relnamespace = 'queue'::regnamespace AND c.relkind = 'r') AS t
LEFT JOIN (SELECT DISTINCT ON (l.segment) l.segment, l.at AS since,
                  CASE l.state WHEN 'f' THEN 'free' WHEN 'o' THEN 'open' WHEN 'c' THEN 'closed' WHEN 'm' THEN 'moving'
                               WHEN 'd' THEN 'drained' WHEN 'h' THEN 'copied' WHEN 'e' THEN 'emptying' END AS state
           FROM queue.segment_log AS l ORDER BY l.segment, l.entry DESC) AS s ON s.segment = t.segment
WHERE queue_internal.may_observe(0)
GROUP BY t.part, t.name, s.state, s.since;

COMMENT ON VIEW queue.storage IS
'What of the disk the queues take: a row for each segment of the logs, for each day of history, and for each other table. Needs observe
on all queues.';

COMMENT ON COLUMN queue.storage.part IS 'log, history, other.';

COMMENT ON COLUMN queue.storage.name IS 'segment 0 to 9, or the name of a table.';

COMMENT ON COLUMN queue.storage.state IS
    'Of a segment: open (filled now), closed, moving (the living move out), drained (being copied to history), copied, emptying, free. Null: free since ever, or no segment.';

COMMENT ON COLUMN queue.storage.since IS 'Since when it is in this state.';

COMMENT ON COLUMN queue.storage.rows IS 'How many rows there are, as the server''s statistics know; they begin at 0 after a crash.';

COMMENT ON COLUMN queue.storage.dead_rows IS 'How many of these only vacuum can remove: of the logs none, but for work that was rolled back.';

COMMENT ON COLUMN queue.storage.bytes IS 'On the disk, with indexes.';

DO $each_column$
DECLARE
    relation regclass;
    attribute name;
BEGIN
    -- Columns named alike mean the same; those that no statement above explained get the words of the others.
    FOR relation, attribute IN
        SELECT a.attrelid::regclass, a.attname FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid
        WHERE c.relnamespace = 'queue'::regnamespace AND c.relkind IN ('v', 'r') AND a.attnum > 0 AND NOT a.attisdropped
          AND col_description(a.attrelid, a.attnum) IS NULL
    LOOP
        EXECUTE format('COMMENT ON COLUMN %s.%I IS %L', relation, attribute, coalesce((
            SELECT min(col_description(b.attrelid, b.attnum)) FROM pg_attribute AS b JOIN pg_class AS d ON d.oid = b.attrelid
            WHERE d.relnamespace = 'queue'::regnamespace AND b.attname = attribute AND col_description(b.attrelid, b.attnum) IS NOT NULL
              AND d.relkind IN ('v', 'c')
              AND d.relname NOT IN ('activity_part', 'activity_period', 'bindings', 'error_group', 'listed_job', 'storage', 'topics')
              -- What is said there is of queues, and of their table.
              AND (d.relname = 'queues') = (relation = 'queue.queue'::regclass)), replace(attribute::text, '_', ' ')));
    END LOOP;
END
$each_column$;

DO $each_view$
DECLARE
    relation regclass;
BEGIN
    FOR relation IN
        SELECT oid FROM pg_catalog.pg_class
        WHERE relnamespace = 'queue'::regnamespace AND relkind = 'v'
          AND NOT EXISTS (SELECT FROM pg_catalog.pg_trigger WHERE tgrelid = pg_class.oid AND tgname = 'read_only')
        ORDER BY relname
    LOOP
        -- For each statement, so that one which finds no row is told as well; only with the other does it fire.
        EXECUTE format($sql$
            CREATE TRIGGER read_only BEFORE INSERT OR UPDATE OR DELETE ON %1$s
                FOR EACH STATEMENT EXECUTE FUNCTION queue_internal.read_only();
            CREATE TRIGGER read_only_row INSTEAD OF INSERT OR UPDATE OR DELETE ON %1$s
                FOR EACH ROW EXECUTE FUNCTION queue_internal.read_only();
        $sql$, relation);
    END LOOP;
END
$each_view$;

-- On each table, whatever is granted, also to pg_write_all_data. The tables of history that are made later get it as well.
DO $each_table$
DECLARE
    relation regclass;
BEGIN
    FOR relation IN
        SELECT oid FROM pg_catalog.pg_class
        WHERE relnamespace = 'queue'::regnamespace AND relkind IN ('r', 'p')
          AND NOT EXISTS (SELECT FROM pg_catalog.pg_trigger WHERE tgrelid = pg_class.oid AND tgname = 'foreign_write')
        ORDER BY relname
    LOOP
        -- Always: some restore with session_replication_role = replica.
        EXECUTE format($sql$
            CREATE TRIGGER foreign_write BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON %1$s
                FOR EACH STATEMENT EXECUTE FUNCTION queue_internal.foreign_write();
            ALTER TABLE %1$s ENABLE ALWAYS TRIGGER foreign_write;
        $sql$, relation);
    END LOOP;
END
$each_table$;

-- No role may do anything with what this transaction has made but its owner: neither by ALTER DEFAULT PRIVILEGES of the role that runs
-- this script, nor as PUBLIC. What was there before keeps its grants. A member of the extension is new if the row that says so is.
DO $each_grant$
DECLARE
    opened record;
BEGIN
    FOR opened IN
        WITH made AS (
            SELECT classid, objid FROM pg_catalog.pg_depend
            WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e' AND age(xmin) <= 0
              AND refobjid = (SELECT oid FROM pg_catalog.pg_extension WHERE extname = 'pg_queue')
        )
        SELECT c.oid::regclass::text AS object, CASE WHEN c.relkind = 'S' THEN 'SEQUENCE' ELSE 'TABLE' END AS kind,
               CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END AS grantee
        FROM made JOIN pg_catalog.pg_class AS c ON made.classid = 'pg_class'::regclass AND c.oid = made.objid,
             pg_catalog.aclexplode(c.relacl) AS a
        WHERE a.grantee <> c.relowner
        UNION
        SELECT p.oid::regprocedure::text, 'ROUTINE', CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END
        FROM made JOIN pg_catalog.pg_proc AS p ON made.classid = 'pg_proc'::regclass AND p.oid = made.objid,
             pg_catalog.aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) AS a
        WHERE a.grantee <> p.proowner
        UNION
        SELECT t.oid::regtype::text, 'TYPE', CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END
        FROM made JOIN pg_catalog.pg_type AS t ON made.classid = 'pg_type'::regclass AND t.oid = made.objid,
             pg_catalog.aclexplode(t.typacl) AS a
        WHERE a.grantee NOT IN (t.typowner, 0)
        UNION
        SELECT quote_ident(n.nspname), 'SCHEMA', CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END
        FROM made JOIN pg_catalog.pg_namespace AS n ON made.classid = 'pg_namespace'::regclass AND n.oid = made.objid,
             pg_catalog.aclexplode(n.nspacl) AS a
        WHERE a.grantee <> n.nspowner
    LOOP
        EXECUTE format('REVOKE ALL ON %s %s FROM %s', opened.kind, opened.object, opened.grantee);
    END LOOP;
END
$each_grant$;

-- For the roles to whom something was granted, on what is new.
SELECT queue_internal.derive_grants();
