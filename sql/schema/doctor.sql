-- For monitoring: checks and metrics.

-- For: observe.
CREATE FUNCTION queue.doctor()
    RETURNS TABLE (name text, ok boolean, detail text, hint text)
    STABLE LANGUAGE c ROWS 17 AS 'MODULE_PATHNAME', 'pg_queue_doctor';
COMMENT ON FUNCTION queue.doctor IS
'Checks the extension. Returns a row for each check: what it has found and, if ok is false, what to do. Anything stuck
longer than pg_queue.patience is reported. It waits for no other session. A check that raises an error is not ok. It
also runs on a standby. Errors: 42501 without the privilege observe on every queue.';

-- For: manage '*'.
CREATE FUNCTION queue.check(repair boolean DEFAULT false)
    RETURNS TABLE (name text, queue_name text, job_id bigint, attempt_id bigint, problem text, remedy text,
                   is_repaired boolean)
    LANGUAGE c COST 1000000 ROWS 1 AS 'MODULE_PATHNAME', 'pg_queue_check';
COMMENT ON FUNCTION queue.check IS
'Compares the logs, history, settings and shared memory with each other. Returns a row for each fault, no row if there
is none. It reads all rows, and blocks no session. repair: does what remedy says. Errors: 42501 without the privilege
manage on every queue, 55000 during a restore; with repair also 25001 at REPEATABLE READ or above, 25006, 55006.';

-- For: observe.
CREATE FUNCTION queue_internal.memory_use()
    RETURNS TABLE (setting text, used bigint, size bigint)
    STABLE LANGUAGE c ROWS 5 AS 'MODULE_PATHNAME', 'pg_queue_memory_use';
COMMENT ON FUNCTION queue_internal.memory_use IS
    'How much of the memory that each setting reserves is in use, over all databases. For the metrics.';

-- For: observe.
CREATE FUNCTION queue_internal.recent_times()
    RETURNS TABLE (lane integer, kind text, quantile float8, seconds float8)
    STABLE LANGUAGE c COST 10000 ROWS 100 AS 'MODULE_PATHNAME', 'pg_queue_recent_times';
COMMENT ON FUNCTION queue_internal.recent_times IS
'How long the attempts that were claimed or ended in the last minute had waited and run: quantiles in seconds of a
sample of at most 1000 attempts. For the metrics.';

-- For: observe.
CREATE FUNCTION queue_internal.held_by_dead()
    RETURNS TABLE (lane integer, jobs bigint)
    STABLE LANGUAGE c COST 10000 ROWS 10 AS 'MODULE_PATHNAME', 'pg_queue_held_by_dead';
COMMENT ON FUNCTION queue_internal.held_by_dead IS
'How many held jobs wait for dead predecessors, for each lane of held jobs. A held job counts once for each dead
predecessor; counting stops at 10,000. For the metrics.';

-- The extension pg_queue_bridge, whose views cannot be named here, can be there or not.
-- For: observe.
CREATE FUNCTION queue_internal.bridge_sources(metric text) RETURNS TABLE (source text, value float8)
    STABLE ROWS 2 LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '10ms' AS $$
BEGIN
    IF metric IS NULL THEN
        RAISE 'metric cannot be null' USING ERRCODE = 'null_value_not_allowed';
    ELSIF EXISTS (SELECT FROM pg_extension WHERE extname = 'pg_queue_bridge') THEN
        RETURN QUERY EXECUTE $query$
            SELECT s.source, v.value FROM queue_bridge.sources AS s
            CROSS JOIN LATERAL (SELECT CASE $1
                WHEN 'pg_queue_bridge_connected' THEN (s.state IN ('streaming', 'copying'))::integer
                WHEN 'pg_queue_bridge_contact_age_seconds' THEN extract(epoch FROM clock_timestamp() - s.contact_at)
                WHEN 'pg_queue_bridge_lag_seconds' THEN extract(epoch FROM
                    clock_timestamp() - coalesce(s.caught_up_at, s.contact_at))
                WHEN 'pg_queue_bridge_renumbered_total' THEN s.renumbered
                WHEN 'pg_queue_bridge_lag_bytes' THEN s.lag_bytes WHEN 'pg_queue_bridge_refused' THEN s.refused
                WHEN 'pg_queue_bridge_late' THEN s.late WHEN 'pg_queue_bridge_phantoms' THEN s.phantoms
                WHEN 'pg_queue_bridge_waiting' THEN s.waiting
                WHEN 'pg_queue_bridge_repairs_total' THEN s.repairs END::float8 AS value) AS v
            WHERE v.value IS NOT NULL $query$ USING metric;
    END IF;
EXCEPTION WHEN lock_not_available THEN
    RETURN;
END
$$;
COMMENT ON FUNCTION queue_internal.bridge_sources IS
    'A metric of the databases whose jobs come here, as queue_bridge.sources says it.';

-- For: observe.
CREATE FUNCTION queue_internal.topics_now()
    RETURNS TABLE (topic_id integer, topic_name text, published bigint, copies bigint, unrouted bigint, dropped bigint,
                   filter_errors bigint)
    STABLE ROWS 10 SECURITY DEFINER LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET lock_timeout = '10ms' AS $$
BEGIN
    RETURN QUERY SELECT t.topic_id, t.topic_name, coalesce(c.published, 0), coalesce(c.copies, 0),
                        coalesce(c.unrouted, 0), coalesce(c.dropped, 0), coalesce(c.filter_errors, 0)
                 FROM queue_internal.topic AS t LEFT JOIN queue_internal.topic_counts() AS c ON c.topic_id = t.topic_id;
EXCEPTION WHEN lock_not_available THEN
    RETURN;
END
$$;
COMMENT ON FUNCTION queue_internal.topics_now IS
    'All topics with their counts; none while a session has locked their table. For the metrics.';

-- For: observe.
CREATE FUNCTION queue_internal.schedules_now()
    RETURNS TABLE (queue_id integer, name text, queue_name text, next_run_at timestamptz)
    STABLE ROWS 10 SECURITY DEFINER LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp SET lock_timeout = '10ms' AS $$
BEGIN
    RETURN QUERY SELECT s.queue_id, s.schedule_name, coalesce(q.queue_name, t.topic_name), f.next_run_at
                 FROM queue_internal.schedule AS s LEFT JOIN queue_internal.queue AS q ON q.queue_id = s.queue_id
                 LEFT JOIN queue_internal.topic AS t ON t.topic_id = s.queue_id
                 LEFT JOIN queue_internal.firings() AS f ON f.schedule_id = s.schedule_id;
EXCEPTION WHEN lock_not_available THEN
    RETURN;
END
$$;
COMMENT ON FUNCTION queue_internal.schedules_now IS
    'All schedules; none while a session has locked a table of them. For the metrics.';

-- One part of the UNION for each source. A source whose metrics are excluded by the condition on name is not read.
-- For: observe.
CREATE VIEW queue_internal.metric AS
SELECT v.name::text AS name,
       jsonb_strip_nulls(jsonb_build_object('queue', s.queue_name, 'stage', s.stage, 'state', v.state)) AS labels,
       CASE v.state WHEN 'ready' THEN s.ready WHEN 'scheduled' THEN s.scheduled WHEN 'retrying' THEN s.retrying
                    WHEN 'running' THEN s.running WHEN 'dead' THEN s.dead WHEN 'held' THEN s.held
       ELSE CASE v.name
           WHEN 'pg_queue_oldest_ready_age_seconds' THEN coalesce(extract(epoch FROM s.oldest_ready_age), 0)
           WHEN 'pg_queue_enqueued_total' THEN s.enqueued WHEN 'pg_queue_claimed_total' THEN s.claimed
           WHEN 'pg_queue_completed_total' THEN s.completed WHEN 'pg_queue_failed_total' THEN s.failed
           WHEN 'pg_queue_timed_out_total' THEN s.timed_out WHEN 'pg_queue_died_total' THEN s.died
           WHEN 'pg_queue_expired_total' THEN s.expired
       END END::float8 AS value,
       v.type::text AS type, v.help::text AS help
FROM (VALUES
    ('pg_queue_jobs', 'ready', 'gauge', 'Jobs in this state now.'),
    ('pg_queue_jobs', 'scheduled', 'gauge', 'Jobs in this state now.'),
    ('pg_queue_jobs', 'retrying', 'gauge', 'Jobs in this state now.'),
    ('pg_queue_jobs', 'running', 'gauge', 'Jobs in this state now.'),
    ('pg_queue_jobs', 'dead', 'gauge', 'Jobs in this state now.'),
    ('pg_queue_jobs', 'held', 'gauge', 'Jobs in this state now.'),
    ('pg_queue_oldest_ready_age_seconds', NULL, 'gauge', 'How long the oldest ready job has been ready; 0: none is.'),
    ('pg_queue_enqueued_total', NULL, 'counter', 'Jobs enqueued since the queue was created.'),
    ('pg_queue_claimed_total', NULL, 'counter', 'Attempts claimed by workers since the queue was created.'),
    ('pg_queue_completed_total', NULL, 'counter',
        'Attempts completed, or advanced to another stage, since the queue was created.'),
    ('pg_queue_failed_total', NULL, 'counter', 'Attempts failed since the queue was created.'),
    ('pg_queue_timed_out_total', NULL, 'counter',
        'Attempts whose lease or connection ended since the queue was created.'),
    ('pg_queue_died_total', NULL, 'counter',
        'Attempts that were a job''s last and failed, since the queue was created.'),
    ('pg_queue_expired_total', NULL, 'counter',
        'Jobs that no worker had claimed in time, since the queue was created.')
) AS v (name, state, type, help)
CROSS JOIN queue.stats AS s
-- On a standby this would have to read the logs.
WHERE NOT pg_is_in_recovery()
UNION ALL
SELECT v.name,
       jsonb_strip_nulls(jsonb_build_object('queue', o.queue_name, 'stage', o.stage, 'quantile', r.quantile::text)),
       r.seconds, 'gauge', v.help
FROM (VALUES
    ('pg_queue_wait_seconds', 'wait',
        'How long attempts claimed in the last minute had been ready: quantiles of a sample.'),
    ('pg_queue_run_seconds', 'run', 'How long attempts that ended in the last minute had run: quantiles of a sample.')
) AS v (name, kind, help)
JOIN queue_internal.recent_times() AS r ON r.kind = v.kind
JOIN queue_internal.observed_now AS o ON o.lane = r.lane
UNION ALL
SELECT v.name, jsonb_strip_nulls(jsonb_build_object('queue', l.queue_name, 'stage', l.stage)),
       CASE v.name WHEN 'pg_queue_needed' THEN l.needed
                   WHEN 'pg_queue_run_mean_seconds' THEN extract(epoch FROM l.run_mean)
                   ELSE coalesce(greatest(extract(epoch FROM l.throttled_until - clock_timestamp()), 0), 0)
       END::float8, 'gauge', v.help
FROM (VALUES
    ('pg_queue_needed', 'How many jobs have to run at once so that a job waits at most 30 seconds.'),
    ('pg_queue_run_mean_seconds', 'How long workers had the attempts that ended in the last 15 minutes, on average.'),
    ('pg_queue_throttled_seconds', 'For how long no job starts, by queue.throttle; 0: jobs may start.')
) AS v (name, help)
CROSS JOIN queue.load() AS l
WHERE v.name <> 'pg_queue_run_mean_seconds' OR l.run_mean IS NOT NULL
UNION ALL
SELECT 'pg_queue_is_paused', jsonb_build_object('queue', q.queue_name), q.is_paused::integer, 'gauge',
       '1 while claims from the queue find nothing, by queue.pause.'
FROM queue_internal.observed_now AS q
WHERE q.stage IS NULL AND NOT q.is_held
UNION ALL
SELECT 'pg_queue_held_by_dead', jsonb_build_object('queue', q.queue_name), coalesce(h.jobs, 0), 'gauge',
       'Held jobs that wait for dead ones; counted up to 10000.'
FROM queue_internal.observed_now AS q
LEFT JOIN queue_internal.held_by_dead() AS h ON h.lane = q.lane
-- Each queue has one lane of held jobs.
WHERE q.is_held AND NOT pg_is_in_recovery()
UNION ALL
SELECT 'pg_queue_workers_busy', jsonb_build_object('queue', q.queue_name),
       count(DISTINCT r.pid), 'gauge', 'Connections that have jobs of the queue.'
FROM queue_internal.observed_now AS q
LEFT JOIN queue_internal.running_now() AS r ON r.lane = q.lane
GROUP BY q.queue_name
UNION ALL
SELECT 'pg_queue_workers_idle', jsonb_build_object('queue', q.queue_name),
       count(DISTINCT w.pid) FILTER (WHERE w.pid NOT IN (
           SELECT r.pid FROM queue_internal.running_now() AS r WHERE r.pid IS NOT NULL)), 'gauge',
       'Connections that wait for jobs of the queue and have no job.'
FROM queue_internal.observed_now AS q
LEFT JOIN queue_internal.sleepers_now() AS w ON w.lane = q.lane
GROUP BY q.queue_name
UNION ALL
SELECT v.name, jsonb_build_object('topic', t.topic_name),
       CASE v.name WHEN 'pg_queue_published_total' THEN t.published
                   WHEN 'pg_queue_published_copies_total' THEN t.copies
                   WHEN 'pg_queue_published_unrouted_total' THEN t.unrouted
                   WHEN 'pg_queue_published_dropped_total' THEN t.dropped
       ELSE t.filter_errors END::float8, 'counter', v.help
FROM (VALUES
    ('pg_queue_published_total', 'Events that were published on the topic.'),
    ('pg_queue_published_copies_total', 'Jobs that were made of them.'),
    ('pg_queue_published_unrouted_total', 'Events that no binding has matched.'),
    ('pg_queue_published_dropped_total', 'Jobs that were not made, since the queue was full.'),
    ('pg_queue_published_filter_errors_total', 'Filters whose answer was neither true nor false.')
) AS v (name, help)
CROSS JOIN queue_internal.topics_now() AS t
WHERE queue_internal.may_observe(t.topic_id)
UNION ALL
SELECT 'pg_queue_schedule_late_seconds',
       jsonb_strip_nulls(jsonb_build_object('schedule', s.name, 'queue', s.queue_name)),
       greatest(extract(epoch FROM clock_timestamp() - s.next_run_at), 0)::float8, 'gauge',
       'By how much the schedule''s next slot is overdue; 0: it is not.'
FROM queue_internal.schedules_now() AS s
WHERE queue_internal.may_observe(s.queue_id)
UNION ALL
SELECT 'pg_queue_log_segments', jsonb_build_object('state', v.word),
       s.counted + CASE v.state WHEN 'f' THEN 10 - s.used ELSE 0 END, 'gauge',
       'Segments of the logs that are doing this, of ten.'
FROM (VALUES ('f'::"char", 'free'), ('o', 'open'), ('c', 'closed'), ('m', 'moving'), ('d', 'drained'), ('h', 'copied'),
             ('e', 'emptying')) AS v (state, word)
CROSS JOIN LATERAL (SELECT count(*) FILTER (WHERE l.state = v.state) AS counted, count(*) AS used
                    FROM queue_internal.segments_now() AS l) AS s
-- Segments that were never used are not in the log. Two always are.
WHERE s.used > 0
UNION ALL
SELECT 'pg_queue_storage_bytes', jsonb_build_object('part', v.part),
       v.bytes, 'gauge', 'Disk space with indexes, in bytes: of the logs, of history, of the rest.'
FROM (SELECT CASE WHEN c.relname ~ '^(attempt|claim|outcome|note)_[0-9]$' THEN 'logs'
                  WHEN c.relname ~ '^history' THEN 'history' ELSE 'other' END AS part,
             sum(b.bytes)::float8 AS bytes, bool_and(b.bytes IS NOT NULL) AS is_whole
      FROM pg_class AS c CROSS JOIN LATERAL (SELECT queue_internal.bytes_of(c.oid) AS bytes OFFSET 0) AS b
      WHERE c.relnamespace = 'queue_internal'::regnamespace AND c.relkind = 'r' GROUP BY 1) AS v
-- A sum without a table that a session has locked would say too little.
WHERE v.is_whole
UNION ALL
SELECT v.name, jsonb_build_object('setting', m.setting),
       CASE v.name WHEN 'pg_queue_memory_used' THEN m.used ELSE m.size END::float8, 'gauge', v.help
FROM (VALUES
    ('pg_queue_memory_used', 'How many of what the setting sizes are in use, over all databases.'),
    ('pg_queue_memory_size', 'How many of what the setting sizes there can be, over all databases.')
) AS v (name, help)
CROSS JOIN queue_internal.memory_use() AS m
UNION ALL
SELECT 'pg_queue_check_ok', jsonb_build_object('check', d.name), d.ok::integer, 'gauge',
       '1 where queue.doctor() finds that all is well.'
FROM queue.doctor() AS d
WHERE queue_internal.may_observe(0)
UNION ALL
SELECT 'pg_queue_executor_processes', jsonb_build_object('state', v.state),
       (SELECT count(*) FROM queue_internal.executors_now() AS e WHERE (e.state = 'idle') = (v.state = 'idle'))::float8,
       'gauge', 'Processes that run jobs in the server.'
FROM (VALUES ('busy'), ('idle')) AS v (state)
UNION ALL
SELECT v.name, '{}',
       CASE v.name WHEN 'pg_queue_executor_starts_total' THEN c.starts
                   WHEN 'pg_queue_executor_start_failures_total' THEN c.failures
                   WHEN 'pg_queue_executor_dispatches_total' THEN c.dispatches
                   WHEN 'pg_queue_executor_dispatch_seconds_total' THEN c.dispatch_us / 1e6
       ELSE c.short_us / 1e6 END::float8, v.type, v.help
FROM (VALUES
    ('pg_queue_executor_starts_total', 'counter',
        'Processes that were asked for to run jobs in the server, over all databases.'),
    ('pg_queue_executor_start_failures_total', 'counter',
        'Those of them that the server had no room for, or that could not connect.'),
    ('pg_queue_executor_dispatches_total', 'counter', 'Jobs for which a process was told or started.'),
    ('pg_queue_executor_dispatch_seconds_total', 'counter',
        'From when it was told or asked for to when it had the job, of all of them.'),
    ('pg_queue_executor_short_seconds', 'gauge', 'For how long the server has had no room for a process; 0: it has.')
) AS v (name, type, help)
CROSS JOIN queue_internal.executor_counts() AS c
UNION ALL
SELECT v.name, jsonb_build_object('source', s.source), s.value, v.type, v.help
FROM (VALUES
    ('pg_queue_bridge_connected', 'gauge', '1 while calls of this source arrive.'),
    ('pg_queue_bridge_contact_age_seconds', 'gauge', 'How long ago this server last spoke with the source.'),
    ('pg_queue_bridge_lag_bytes', 'gauge', 'How much WAL of the source had not been taken at the last contact.'),
    ('pg_queue_bridge_lag_seconds', 'gauge',
        'Up to when WAL of the source has been taken, as an age. A quiet source reports every half minute.'),
    ('pg_queue_bridge_refused', 'gauge', 'Calls of the source that could not be carried out.'),
    ('pg_queue_bridge_waiting', 'gauge', 'Calls of the source that cannot be carried out yet, and are tried again.'),
    ('pg_queue_bridge_late', 'gauge', 'Attempts that were ended there after their lease was lost.'),
    ('pg_queue_bridge_phantoms', 'gauge', 'Jobs of transactions that the source no longer has.'),
    ('pg_queue_bridge_repairs_total', 'counter', 'How often slot and subscription were made anew.'),
    ('pg_queue_bridge_renumbered_total', 'counter',
        'Jobs of the source that got another id, because another job had theirs.')
) AS v (name, type, help)
CROSS JOIN LATERAL queue_internal.bridge_sources(v.name) AS s
WHERE queue_internal.may_observe(0)
UNION ALL
SELECT 'pg_queue_extension_info',
       jsonb_build_object('version', (SELECT extversion FROM pg_extension WHERE extname = 'pg_queue'),
                          'library_version', current_setting('pg_queue.library_version'),
                          'timezone_version', current_setting('pg_queue.timezone_version', true)),
       1, 'gauge', 'Always 1; its labels say which versions there are.';
COMMENT ON VIEW queue_internal.metric IS 'The rows of queue.metrics().';
COMMENT ON COLUMN queue_internal.metric.name IS 'The metric, as Prometheus names it.';
COMMENT ON COLUMN queue_internal.metric.labels IS 'The labels: a JSON object whose values are strings.';
COMMENT ON COLUMN queue_internal.metric.value IS 'Its current value.';
COMMENT ON COLUMN queue_internal.metric.type IS 'gauge or counter.';
COMMENT ON COLUMN queue_internal.metric.help IS 'What the metric means.';

-- For: observe.
CREATE FUNCTION queue.metrics()
    RETURNS TABLE (name text, labels jsonb, value float8, type text, help text)
    STABLE ROWS 200 LANGUAGE sql
BEGIN ATOMIC
    SELECT m.name, m.labels, m.value, m.type, m.help FROM queue_internal.metric AS m;
END;
COMMENT ON FUNCTION queue.metrics IS
'The metrics for Prometheus exporters: a row for each name and set of labels. It does not read the logs. With a
condition on name, the other metrics cost nothing. The counters of queues survive restarts and crashes.';

DO $each_view$
DECLARE
    relation regclass;
BEGIN
    FOR relation IN
        SELECT oid FROM pg_catalog.pg_class
        WHERE relnamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace) AND relkind = 'v'
          AND NOT EXISTS (SELECT FROM pg_catalog.pg_trigger WHERE tgrelid = pg_class.oid AND tgname = 'read_only')
        ORDER BY relname
    LOOP
        -- A statement that finds no row gets the error, too, so there is a trigger for each statement. It fires only if
        -- there is also a trigger for each row.
        EXECUTE format($sql$
            CREATE TRIGGER read_only BEFORE INSERT OR UPDATE OR DELETE ON %1$s
                FOR EACH STATEMENT EXECUTE FUNCTION queue_internal.read_only();
            CREATE TRIGGER read_only_row INSTEAD OF INSERT OR UPDATE OR DELETE ON %1$s
                FOR EACH ROW EXECUTE FUNCTION queue_internal.read_only();
        $sql$, relation);
    END LOOP;
END
$each_view$;

-- The trigger is on each table, so that no grant allows writes, not even membership in pg_write_all_data. Tables of
-- history that are made later get it, too.
DO $each_table$
DECLARE
    relation regclass;
BEGIN
    FOR relation IN
        SELECT oid FROM pg_catalog.pg_class
        WHERE relnamespace = 'queue_internal'::regnamespace AND relkind IN ('r', 'p')
          AND NOT EXISTS (SELECT FROM pg_catalog.pg_trigger WHERE tgrelid = pg_class.oid AND tgname = 'foreign_write')
        ORDER BY relname
    LOOP
        -- ALWAYS, because some restores run with session_replication_role = replica.
        EXECUTE format($sql$
            CREATE TRIGGER foreign_write BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON %1$s
                FOR EACH STATEMENT EXECUTE FUNCTION queue_internal.foreign_write();
            ALTER TABLE %1$s ENABLE ALWAYS TRIGGER foreign_write;
        $sql$, relation);
    END LOOP;
END
$each_table$;

-- A member of the extension is new if its row in pg_depend is. Older members keep their grants.
CREATE FUNCTION queue_internal.close(extension text) RETURNS void LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    opened record;
BEGIN
    FOR opened IN
        WITH made AS (
            SELECT d.classid, d.objid FROM pg_depend AS d
            WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e' AND age(d.xmin) <= 0
              AND d.refobjid = (SELECT e.oid FROM pg_extension AS e WHERE e.extname = close.extension)
        ), members AS (
            SELECT CASE WHEN c.relkind = 'S' THEN 'SEQUENCE' ELSE 'TABLE' END AS kind, c.oid::regclass::text AS object,
                   c.relowner AS owner, c.relacl AS acl
            FROM made JOIN pg_class AS c ON made.classid = 'pg_class'::regclass AND c.oid = made.objid
            UNION ALL
            SELECT 'ROUTINE', p.oid::regprocedure::text, p.proowner, coalesce(p.proacl, acldefault('f', p.proowner))
            FROM made JOIN pg_proc AS p ON made.classid = 'pg_proc'::regclass AND p.oid = made.objid
            UNION ALL
            SELECT 'TYPE', t.oid::regtype::text, t.typowner, t.typacl
            FROM made JOIN pg_type AS t ON made.classid = 'pg_type'::regclass AND t.oid = made.objid
            UNION ALL
            SELECT 'SCHEMA', quote_ident(n.nspname), n.nspowner, n.nspacl
            FROM made JOIN pg_namespace AS n ON made.classid = 'pg_namespace'::regclass AND n.oid = made.objid
        )
        SELECT DISTINCT m.kind, m.object,
               CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END AS grantee
        FROM members AS m CROSS JOIN LATERAL aclexplode(m.acl) AS a
        -- PUBLIC may use types.
        WHERE a.grantee <> m.owner AND (m.kind <> 'TYPE' OR a.grantee <> 0)
    LOOP
        EXECUTE format('REVOKE ALL ON %s %s FROM %s', opened.kind, opened.object, opened.grantee);
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_internal.close IS
'Revokes all privileges on the members of an extension that this transaction has made, except the owner''s: neither
PUBLIC nor ALTER DEFAULT PRIVILEGES of the role that runs the script grant anything. For the scripts of pg_queue and of
the extensions that need it.';

DO $each_grant$
BEGIN
    PERFORM queue_internal.close('pg_queue');
END
$each_grant$;

SELECT queue_internal.kick();
