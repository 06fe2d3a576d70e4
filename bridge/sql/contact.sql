-- How this server speaks with its sources: connect, allow, the regular contact, repair, disconnect. It always
-- connects to them, and they never to it.

-- A server that was restored, or whose standby was promoted, is another one. The timeline is the end.
CREATE FUNCTION queue_bridge.own_identity(source text) RETURNS text STABLE LANGUAGE sql
    SET search_path = pg_catalog, pg_temp AS $$
    SELECT concat_ws('/', c.system_identifier, d.oid, source, left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))
    FROM pg_control_system() AS c, pg_database AS d WHERE d.datname = current_database()
$$;
COMMENT ON FUNCTION queue_bridge.own_identity IS 'This database, as the receiver of a source, and its timeline.';

CREATE FUNCTION queue_bridge.own_next() RETURNS bigint STABLE LANGUAGE sql SET search_path = pg_catalog, pg_temp
    AS $$ SELECT (current_setting('pg_queue.node_id')::bigint << 46)
                 + (greatest(i.last_value - 16384, 1) << 4) FROM queue_internal.id_seq AS i $$;
COMMENT ON FUNCTION queue_bridge.own_next IS 'New jobs of this server have no smaller id.';

-- A completed job that is retried has had its effect. A refused call can make jobs yet.
CREATE FUNCTION queue_bridge.gone(asks jsonb) RETURNS jsonb VOLATILE LANGUAGE sql SET search_path = pg_catalog, pg_temp
    AS $$
    SELECT jsonb_agg(a.begins) FROM jsonb_array_elements(asks) AS a (begins)
    WHERE NOT EXISTS (
        SELECT FROM queue.jobs AS j
        WHERE (j.job_id # a.begins::bigint) >> 46 = 0 AND j.state <> 'completed'
          AND ((j.job_id - a.begins::bigint) & 70368744177663) >= 35184372088832
        UNION ALL
        SELECT FROM queue_bridge.refused AS r CROSS JOIN LATERAL unnest(coalesce(r.ids, ARRAY[r.id])) AS i (id)
        WHERE r.verb IN ('e', 'm', 'b', 'w') AND (i.id # a.begins::bigint) >> 46 = 0
          AND ((i.id - a.begins::bigint) & 70368744177663) >= 35184372088832)
$$;
COMMENT ON FUNCTION queue_bridge.gone IS 'Those of these ids before which no job is left that could have an effect.';

-- Calls that are put aside while it is held refer to the row, so its key stays free.
CREATE FUNCTION queue_bridge.locked_source(source text) RETURNS queue_bridge.source VOLATILE LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    s queue_bridge.source;
BEGIN
    SELECT o.* INTO s FROM queue_bridge.source AS o WHERE o.source = source AND o.subscription IS NOT NULL
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no source "%"', source USING ERRCODE = '42704', HINT = 'See queue_bridge.sources.';
    END IF;
    RETURN s;
END
$$;
COMMENT ON FUNCTION queue_bridge.locked_source IS
    'The row of a connected source, locked against changes by others. Errors: 42704 there is no such source.';

-- Makes the slot there and the subscription to it here. The slot has a new name each time: the old one may still be in
-- use. All rows that the outbox holds are copied.
CREATE FUNCTION queue_bridge.subscribe(source text) RETURNS void VOLATILE LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    s queue_bridge.source;
    name text := 'queue_bridge_' || source;
    facts jsonb;
    problem text;
    hint text;
    application text := current_setting('application_name');
BEGIN
    UPDATE queue_bridge.source AS o SET life = o.life + 1, slot = format('%s_%s', name, o.life + 1), contacts = 0
    WHERE o.source = source RETURNING o.* INTO s;
    facts := queue_bridge.ask(s.conninfo, $ask$
        SELECT jsonb_build_object(
            'major', current_setting('server_version_num')::integer / 10000,
            'wal_level', current_setting('wal_level'),
            'encoding', (SELECT pg_encoding_to_char(d.encoding) FROM pg_database AS d
                         WHERE d.datname = current_database()),
            'synchronous', current_setting('synchronous_standby_names'),
            'sender_timeout', current_setting('wal_sender_timeout'),
            'standby', pg_is_in_recovery(),
            'is_there', EXISTS (SELECT FROM pg_namespace AS n WHERE n.nspname = 'queue_bridge'),
            'may_replicate', EXISTS (
                SELECT FROM pg_roles AS r WHERE r.rolname = current_user AND (r.rolreplication OR r.rolsuper)
                UNION ALL
                SELECT FROM pg_roles AS r WHERE r.rolname = 'rds_replication' AND pg_has_role(r.oid, 'member')),
            'may_read', EXISTS (
                SELECT FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
                WHERE n.nspname = 'queue_bridge' AND c.relname = 'outbox'
                  AND has_schema_privilege(n.oid, 'usage') AND has_table_privilege(c.oid, 'select')),
            'is_published', EXISTS (
                SELECT FROM pg_publication_tables AS t WHERE t.pubname = 'pg_queue'
                AND t.schemaname = 'queue_bridge' AND t.tablename = 'outbox'),
            'free_slots', current_setting('max_replication_slots')::integer
                          -- Those of REPACK are counted apart.
                          - (SELECT count(*) FROM pg_replication_slots WHERE slot_name !~ '^pg_repack_'),
            'free_senders', current_setting('max_wal_senders')::integer - (SELECT count(*) FROM pg_stat_replication))
        $ask$);
    SELECT c.problem, c.hint INTO problem, hint FROM (VALUES
        ((facts ->> 'standby')::boolean, 'it is a standby', 'Name the primary in conninfo.'),
        -- From 19 on replica becomes logical by itself, when there is a slot.
        (facts ->> 'wal_level' = 'minimal' OR facts ->> 'wal_level' <> 'logical' AND (facts ->> 'major')::integer < 19,
         format('its wal_level is %s', facts ->> 'wal_level'),
         'Set wal_level to logical and restart it. docs/bridge.md says how each provider calls this.'),
        (NOT queue_bridge.converts(facts ->> 'encoding'), format('its encoding is %s', facts ->> 'encoding'),
         'Use a database in UTF8: text that PostgreSQL cannot convert would hold up all calls. docs/bridge.md has the '
         'other encodings that convert.'),
        (s.subscription IS NULL AND queue_bridge.is_synchronous(source, facts ->> 'synchronous'),
         format('its synchronous_standby_names is %s, so its commits would wait for this server',
                facts ->> 'synchronous'),
         'Name the standbys in synchronous_standby_names.'),
        (s.subscription IS NULL AND facts ->> 'sender_timeout' = '0',
         'its wal_sender_timeout is 0, so its shutdown could wait for this server without end',
         'ALTER ROLE … SET wal_sender_timeout there, for the role of conninfo.'),
        (NOT (facts ->> 'is_there')::boolean, 'it lacks the functions of bridge/primary.sql',
         'Run bridge/primary.sql there, and grant the role of conninfo USAGE by queue_bridge.admit.'),
        (NOT (facts ->> 'may_replicate')::boolean, 'the role of conninfo may not replicate',
         'ALTER ROLE … REPLICATION there. docs/bridge.md says what each provider grants instead.'),
        (NOT (facts ->> 'may_read')::boolean, 'the role of conninfo may not read its outbox',
         'SELECT queue_bridge.admit(ROLE) there.'),
        (NOT (facts ->> 'is_published')::boolean, 'its publication "pg_queue" does not publish the outbox',
         'Run bridge/primary.sql there again.'),
        ((facts ->> 'free_slots')::integer < 2, 'it has no two free replication slots',
         'Set max_replication_slots higher, or drop slots that are not in use.'),
        ((facts ->> 'free_senders')::integer < 2, 'it has no two free WAL senders', 'Set max_wal_senders higher.')
    ) AS c (is_so, problem, hint) WHERE c.is_so LIMIT 1;
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION 'source "%" cannot be connected: %', source, problem USING ERRCODE = '55000', HINT = hint;
    END IF;
    facts := queue_bridge.ask(s.conninfo, format('SELECT queue_bridge.assign(%L)', jsonb_build_object(
        'node', s.node_id, 'life', s.life, 'timeline', s.timeline, 'slot', s.slot,
        'server', queue_bridge.own_identity(source), 'port', current_setting('port'),
        'database', current_database(), 'next', queue_bridge.own_next())));
    -- One of this name is there if the transaction that made it has rolled back here.
    PERFORM queue_bridge.ask(s.conninfo, format(
        'SELECT to_jsonb(count(pg_drop_replication_slot(s.slot_name))) FROM pg_replication_slots AS s '
        'WHERE s.slot_name = %L AND s.database = current_database() AND NOT s.active', s.slot));
    -- It waits for transactions there that are open.
    PERFORM set_config('application_name', name, true);
    PERFORM queue_bridge.ask(s.conninfo, format(
        'SELECT to_jsonb(lsn::text) FROM pg_create_logical_replication_slot(%L, ''pgoutput''%s)', s.slot,
        CASE WHEN (facts ->> 'major')::integer >= 17 THEN ', failover => true' ELSE '' END),
        patience => NULL, reason => queue_bridge.reason_query(s.slot));
    PERFORM set_config('application_name', application, true);
    BEGIN
        IF s.subscription IS NOT NULL THEN
            PERFORM queue_bridge.unsubscribe(source);
        END IF;
        PERFORM queue_bridge.within(queue_bridge.connect_limit(s.conninfo) + interval '10 seconds', format(
            'CREATE SUBSCRIPTION %I CONNECTION %L PUBLICATION pg_queue '
            'WITH (create_slot = false, slot_name = %L, copy_data = true, streaming = true)',
            name, s.conninfo, s.slot));
    EXCEPTION WHEN OTHERS THEN
        PERFORM queue_bridge.ask(s.conninfo, format('SELECT to_jsonb(true) FROM pg_drop_replication_slot(%L)', s.slot));
        RAISE;
    END;
    DELETE FROM queue_bridge.arrived AS a WHERE a.subscription IS NOT DISTINCT FROM s.subscription
        OR a.subscription IN (SELECT p.oid FROM pg_subscription AS p WHERE p.subname = name);
    UPDATE queue_bridge.source AS o
    SET subscription = (SELECT p.oid FROM pg_subscription AS p WHERE p.subname = name
                        AND p.subdbid = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())),
        life = (facts ->> 'life')::integer, system = facts ->> 'system', timeline = (facts ->> 'timeline')::integer,
        answer = facts, problem = NULL, contact_at = clock_timestamp()
    WHERE o.source = source;
END
$$;
COMMENT ON FUNCTION queue_bridge.subscribe IS
    'Makes a slot at a source and a subscription to it. Errors: 55000 the source is not ready, with the reason.';

-- While a table is copied, DROP SUBSCRIPTION connects to the source, to drop the slot of the copy there. If the
-- connection fails, it drops the subscription all the same. So a source that does not answer gets an address where
-- nothing is.
CREATE FUNCTION queue_bridge.unsubscribe(source text) RETURNS void VOLATILE LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    name text := 'queue_bridge_' || source;
    conninfo text := (SELECT s.conninfo FROM queue_bridge.source AS s WHERE s.source = unsubscribe.source);
BEGIN
    -- It may have been dropped by hand.
    IF EXISTS (SELECT FROM pg_subscription AS s JOIN pg_database AS d ON d.oid = s.subdbid
               WHERE s.subname = name AND d.datname = current_database()) THEN
        EXECUTE format('ALTER SUBSCRIPTION %I DISABLE', name);
        EXECUTE format('ALTER SUBSCRIPTION %I SET (slot_name = NONE)', name);
        BEGIN
            PERFORM queue_bridge.within(queue_bridge.connect_limit(conninfo) + interval '10 seconds',
                                        format('DROP SUBSCRIPTION %I', name));
        EXCEPTION WHEN SQLSTATE '08001' THEN
            EXECUTE format('ALTER SUBSCRIPTION %I CONNECTION %L', name, 'host=/ port=1');
            EXECUTE format('DROP SUBSCRIPTION %I', name);
        END;
    END IF;
END
$$;
COMMENT ON FUNCTION queue_bridge.unsubscribe IS 'Drops the subscription to a source, not the slot there.';

-- A role outlives `disconnect`, and the sources of two databases can have one in common. So a role that is there is
-- used if it has no password, no members and nothing of its own.
CREATE FUNCTION queue_bridge.check_free(source text) RETURNS void STABLE LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    name text := 'queue_bridge_' || source;
    other record;
BEGIN
    FOR other IN
        SELECT format('subscription "%s"', name) AS what, pg_get_userbyid(s.subowner) AS owner,
               format('ALTER SUBSCRIPTION %1$I DISABLE; ALTER SUBSCRIPTION %1$I SET (slot_name = NONE); '
                      'DROP SUBSCRIPTION %1$I', name) AS remedy
        FROM pg_subscription AS s JOIN pg_database AS d ON d.oid = s.subdbid
        WHERE s.subname = name AND d.datname = current_database()
        UNION ALL
        SELECT format('relation %s', c.oid::regclass), pg_get_userbyid(c.relowner), 'Drop it'
        FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
        WHERE n.nspname = 'queue_bridge' AND c.relname = 'connected_' || source
        UNION ALL
        SELECT format('queue or topic "%s"', name), NULL, format('SELECT queue.drop(%L, force => true)', name)
        FROM (SELECT q.queue_name FROM queue.queues AS q
              UNION ALL SELECT t.topic_name FROM queue.topics AS t) AS n (name)
        WHERE n.name = name
        UNION ALL
        SELECT format('schedule "%s"', name), NULL, format('SELECT queue.unschedule(%L)', name)
        FROM queue.schedules AS s WHERE s.name = name
        UNION ALL
        SELECT format('role "%s", and others may use it', name), (
                   SELECT string_agg(pg_get_userbyid(m.member), ', ') FROM pg_auth_members AS m WHERE m.roleid = r.oid),
               format('DROP ROLE %I, or give the source another name', name)
        FROM pg_authid AS r
        WHERE r.rolname = name AND (
            r.rolsuper OR r.rolcreaterole OR r.rolcreatedb OR r.rolreplication OR r.rolbypassrls
            OR r.rolpassword IS NOT NULL
            OR EXISTS (SELECT FROM pg_auth_members AS m WHERE r.oid IN (m.roleid, m.member))
            OR EXISTS (SELECT FROM pg_shdepend AS d WHERE d.refclassid = 'pg_authid'::regclass
                       AND d.refobjid = r.oid AND d.deptype = 'o'))
    LOOP
        RAISE EXCEPTION 'there is a %', other.what USING ERRCODE = '42710',
            DETAIL = concat('Source "', source, '" needs the name.', ' It belongs to ' || other.owner || '.'),
            HINT = other.remedy || '.';
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_bridge.check_free IS
    'Checks that what connect makes is not there already. Errors: 42710 it is, with its owner.';

CREATE FUNCTION queue_bridge.connect(source text, conninfo text, node_id integer DEFAULT NULL)
    RETURNS void VOLATILE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    name text := 'queue_bridge_' || source;
    own integer := current_setting('pg_queue.node_id')::integer;
BEGIN
    node_id := coalesce(node_id, (SELECT max(n) FROM generate_series(1, 127) AS n
                                  WHERE n <> own AND n NOT IN (SELECT o.node_id FROM queue_bridge.source AS o)));
    -- Constraints check this, too. But their errors show the whole row, with the password in it.
    IF source IS NULL OR source !~ '^[a-z_][a-z0-9_]{0,39}$' THEN
        RAISE EXCEPTION 'invalid name of a source: "%"', source USING ERRCODE = '22023',
            HINT = 'Use 1 to 40 lower-case letters, digits and _, and no digit first.';
    ELSIF node_id IS NULL OR node_id NOT BETWEEN 0 AND 127 THEN
        RAISE EXCEPTION 'node_id must be between 0 and 127' USING ERRCODE = '22023',
            DETAIL = coalesce(format('It is %s.', node_id), 'All numbers are taken.');
    ELSIF node_id = own THEN
        RAISE EXCEPTION 'node_id % is the number of this server', node_id USING ERRCODE = '22023',
            HINT = 'Give each source a number of its own.';
    END IF;
    -- A source that was disconnected keeps its number: jobs with it may still be there.
    INSERT INTO queue_bridge.source AS o (source, node_id, conninfo, slot, life)
    VALUES (source, node_id, conninfo, '', 0)
    ON CONFLICT ON CONSTRAINT source_pkey DO UPDATE SET conninfo = excluded.conninfo WHERE o.subscription IS NULL;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'source "%" is connected', source USING ERRCODE = '42710',
            HINT = 'Use queue_bridge.repair for another address.';
    END IF;
    PERFORM queue_bridge.check_free(source);
    IF NOT EXISTS (SELECT FROM pg_roles AS r WHERE r.rolname = name) THEN
        EXECUTE format('CREATE ROLE %I LOGIN', name);
    END IF;
    EXECUTE format('GRANT USAGE ON SCHEMA queue, queue_bridge TO %I', name);
    EXECUTE format('GRANT EXECUTE ON FUNCTION queue_bridge.enqueue, queue_bridge.publish, '
                   'queue_bridge.complete, queue_bridge.complete_waiting TO %I', name);
    EXECUTE format('GRANT EXECUTE ON PROCEDURE queue_bridge.contact_job TO %I', name);
    -- It is no member of the extension and lies in its schema, so DROP EXTENSION fails while the subscription is there.
    EXECUTE format('CREATE VIEW queue_bridge.%I AS SELECT %L::text AS source', 'connected_' || source, source);
    -- Default privileges of the role that calls this.
    EXECUTE coalesce((
        SELECT format('REVOKE ALL ON %s FROM %s', c.oid::regclass, string_agg(
            DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END, ', '))
        FROM pg_class AS c CROSS JOIN LATERAL aclexplode(c.relacl) AS a
        WHERE c.oid = format('queue_bridge.%I', 'connected_' || source)::regclass AND a.grantee <> c.relowner
        GROUP BY c.oid), '');
    EXECUTE format('COMMENT ON VIEW queue_bridge.%I IS %L', 'connected_' || source,
                   format('SELECT queue_bridge.disconnect(%L) drops it. Until then it keeps the extension.', source));
    PERFORM queue.create(name, executor => 'call', procedure => 'queue_bridge.contact_job', run_as => name,
                         max_attempts => 1, lease => '5 minutes', retention => '10 minutes',
                         dead_retention => '1 hour');
    PERFORM queue.schedule(name, name, jsonb_build_object('source', source), every => '10 seconds', overlap => false);
    -- What is made there stays if this transaction rolls back. So it comes last.
    PERFORM queue_bridge.subscribe(source);
END
$$;
COMMENT ON FUNCTION queue_bridge.connect IS
'Connects a database in which bridge/primary.sql has run: makes a slot there, and here a subscription, a role
queue_bridge_SOURCE without a password, and a schedule that speaks with the source every 10 seconds. conninfo: how this
server connects to it, as a role that may replicate and to which queue_bridge.admit was granted there. node_id: the
number in the ids that are made there; NULL: the largest that is free. Errors: 55000 the source is not ready, with the
reason; 42710 it is connected; 22023 node_id is that of this server, or the name or node_id is out of range.';

CREATE FUNCTION queue_bridge.allow(source text, queue_name text, privileges text[] DEFAULT '{produce,consume}')
    RETURNS void VOLATILE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    is_topic boolean := EXISTS (SELECT FROM queue.topics AS t WHERE t.topic_name = queue_name);
    q record;
    privilege text;
BEGIN
    -- Without a lock: a contact that is under way may wait for the source.
    IF NOT EXISTS (SELECT FROM queue_bridge.source AS s WHERE s.source = source AND s.subscription IS NOT NULL) THEN
        RAISE EXCEPTION 'there is no source "%"', source USING ERRCODE = '42704', HINT = 'See queue_bridge.sources.';
    END IF;
    SELECT v.executor, v.retention, v.dead_retention INTO q FROM queue.queues AS v WHERE v.queue_name = queue_name;
    IF q.executor IS NOT NULL THEN
        RAISE EXCEPTION 'the jobs of queue "%" run in this server', queue_name USING ERRCODE = '42501',
            HINT = 'A source may not run code here. Use a queue without an executor.';
    END IF;
    IF least(q.retention, q.dead_retention) BETWEEN '0' AND '3 hours' THEN
        RAISE EXCEPTION 'queue "%" forgets its jobs too soon', queue_name USING ERRCODE = '55000',
            DETAIL = format('Its retention is %s, dead_retention %s. A repair recognises jobs that have arrived before '
                            'by what the queue remembers.', q.retention, q.dead_retention),
            HINT = format('SELECT queue.alter(%L, retention => ''1 day'', dead_retention => ''1 day'')', queue_name);
    END IF;
    FOREACH privilege IN ARRAY privileges LOOP
        CONTINUE WHEN is_topic AND privilege = 'consume';
        PERFORM queue.grant(queue_name, 'queue_bridge_' || source, privilege);
    END LOOP;
    IF 'produce' = ANY (privileges) OR 'manage' = ANY (privileges) THEN
        INSERT INTO queue_bridge.allowed VALUES (source, queue_name) ON CONFLICT DO NOTHING;
    END IF;
END
$$;
COMMENT ON FUNCTION queue_bridge.allow IS
'Lets a source use a queue or a topic. privileges: those of queue.grant; manage for cancel. Errors: 42704 there is no
such source, queue or topic; 42501 its jobs run in this server; 55000 its retention is below 3 hours.';

CREATE FUNCTION queue_bridge.deny(source text, queue_name text)
    RETURNS void VOLATILE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    privilege text;
BEGIN
    DELETE FROM queue_bridge.allowed AS a WHERE a.source = source AND a.target = queue_name;
    -- What is dropped has no grants.
    FOREACH privilege IN ARRAY ARRAY['produce', 'consume', 'manage'] LOOP
        PERFORM queue.revoke(n.name, 'queue_bridge_' || source, privilege)
        FROM (SELECT q.queue_name FROM queue.queues AS q UNION SELECT t.topic_name FROM queue.topics AS t) AS n (name)
        WHERE n.name = queue_name;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_bridge.deny IS 'Revokes what allow has granted. What arrives for the queue is refused then.';

CREATE TYPE queue_bridge.repaired AS (copied bigint, known bigint, renumbered bigint, phantoms bigint);
COMMENT ON TYPE queue_bridge.repaired IS 'What a repair found.';
COMMENT ON COLUMN queue_bridge.repaired.copied IS 'How many jobs and events the outbox of the source holds.';
COMMENT ON COLUMN queue_bridge.repaired.known IS 'Those of them that had arrived before.';
COMMENT ON COLUMN queue_bridge.repaired.renumbered IS 'Those whose id another job here has, so that they get another.';
COMMENT ON COLUMN queue_bridge.repaired.phantoms IS 'Jobs that came from the source and that it no longer has.';

-- Compares what has arrived with the outbox. Every statement sees what had arrived when it began, and reads the outbox
-- afterwards, so all of that is still there, unless the source has lost it.
CREATE FUNCTION queue_bridge.compare(source text, since jsonb) RETURNS queue_bridge.repaired VOLATILE LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    node integer := (SELECT s.node_id FROM queue_bridge.source AS s WHERE s.source = source);
    -- Of each partition of the outbox: no row in it is older.
    begins timestamptz[] := ARRAY(SELECT (since ->> n::text)::timestamptz FROM generate_series(0, 2) AS n);
    oldest timestamptz := (SELECT min(b.at) - interval '1 hour' FROM unnest(begins) AS b (at));
    found queue_bridge.repaired;
BEGIN
    WITH told AS MATERIALIZED (
        SELECT o.id, o.made_at FROM queue_bridge.outbox_of(source) AS o
    ), jobs AS MATERIALIZED (
        SELECT j.job_id, j.queue_name, j.state, j.enqueued_at AS made_at, j.headers #>> '{event,id}' AS event
        FROM queue.jobs AS j WHERE j.enqueued_at >= oldest
    ), arrived AS MATERIALIZED (
        SELECT j.job_id, j.queue_name, j.state, j.made_at, j.job_id AS id FROM jobs AS j
        WHERE (j.job_id >> 46) & 127 = node
        UNION ALL
        -- Renumbered. A job that had the key of a call was made at another time.
        SELECT j.job_id, j.queue_name, j.state, j.made_at, p.id FROM jobs AS j
        JOIN queue_bridge.passed AS p ON p.job_id = j.job_id AND p.made_at = j.made_at
        WHERE (p.id >> 46) & 127 = node
        UNION ALL
        SELECT j.job_id, j.queue_name, j.state, j.made_at, p.id FROM jobs AS j
        JOIN queue_bridge.passed AS p ON p.id::text = j.event AND p.made_at = j.made_at
        WHERE p.job_id IS NULL AND (p.id >> 46) & 127 = node
    ), lost AS (
        -- A source that writes its outbox by hand can give an id twice.
        INSERT INTO queue_bridge.phantom AS f (source, job_id, queue_name, made_at)
        SELECT DISTINCT ON (a.job_id) source, a.job_id, a.queue_name, a.made_at FROM arrived AS a
        WHERE a.made_at >= begins[1 + mod(floor(extract(epoch FROM a.made_at) / 3600)::bigint, 3)]
          AND NOT EXISTS (SELECT FROM told AS t WHERE t.id = a.id AND t.made_at = a.made_at)
          AND a.state <> 'cancelled'
        ON CONFLICT (job_id) DO UPDATE SET found_at = f.found_at RETURNING f.job_id
    ), checked AS (
        SELECT t.id, (t.id, t.made_at) IN (SELECT a.id, a.made_at FROM arrived AS a)
                     OR (t.id, t.made_at) IN (SELECT p.id, p.made_at FROM queue_bridge.passed AS p) AS is_known
        FROM told AS t
    )
    SELECT count(*), count(*) FILTER (WHERE c.is_known),
           count(*) FILTER (WHERE NOT c.is_known AND c.id IN (SELECT a.job_id FROM arrived AS a)),
           (SELECT count(*) FROM lost)
    INTO found FROM checked AS c;
    RETURN found;
END
$$;
COMMENT ON FUNCTION queue_bridge.compare IS
    'Compares what has arrived from a source with its outbox, and lists in queue_bridge.phantom what the source has '
    'lost.';

CREATE FUNCTION queue_bridge.repair(source text, conninfo text DEFAULT NULL, phantoms text DEFAULT 'keep')
    RETURNS queue_bridge.repaired VOLATILE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    found queue_bridge.repaired;
BEGIN
    IF phantoms NOT IN ('keep', 'cancel') OR phantoms IS NULL THEN
        RAISE EXCEPTION 'invalid value for phantoms: "%"', phantoms USING ERRCODE = '22023',
            HINT = 'Use ''keep'' or ''cancel''.';
    END IF;
    PERFORM queue_bridge.locked_source(source);
    UPDATE queue_bridge.source AS s SET conninfo = coalesce(conninfo, s.conninfo), repairs = s.repairs + 1
    WHERE s.source = source;
    PERFORM queue_bridge.subscribe(source);
    found := queue_bridge.compare(source, (SELECT s.answer -> 'rings' FROM queue_bridge.source AS s
                                           WHERE s.source = source));
    IF phantoms = 'cancel' THEN
        DELETE FROM queue_bridge.phantom AS p
        USING queue.cancel_many(ARRAY(
            SELECT f.job_id FROM queue_bridge.phantom AS f CROSS JOIN LATERAL queue.job(f.job_id) AS j
            WHERE f.source = source AND j.state IN ('ready', 'scheduled', 'retrying', 'held')),
            'its transaction was lost at the source') AS a
        CROSS JOIN LATERAL queue.job(a.id) AS j
        -- A flow is cancelled when its members have ended. Until then it is held.
        WHERE p.job_id = a.id AND (a.outcome = 'cancelled' OR a.outcome = 'cancelling' AND j.state = 'held');
    END IF;
    RETURN found;
END
$$;
COMMENT ON FUNCTION queue_bridge.repair IS
'Makes slot and subscription anew, and copies all that the outbox of the source holds. What has arrived before is passed
over. For a source that has failed over or was restored, or whose slot is lost. conninfo: the new address. phantoms:
what becomes of jobs that the source has lost: keep lists them in queue_bridge.phantom, cancel cancels those of the list
that wait. May be repeated. Returns what it found when it began to copy. Errors: 42704 there is no such source, 55000 it
is not ready.';

-- Both sides write their part before they know of the other's commit. So the source compares only the number that this
-- server has committed before.
CREATE FUNCTION queue_bridge.contact(source text) RETURNS text VOLATILE LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    s queue_bridge.source := queue_bridge.locked_source(source);
    answer jsonb;
    told bigint[];
    missing bigint;
    is_repaired boolean;
    problem text;
BEGIN
    IF queue_bridge.mend_arrivals() THEN
        s := queue_bridge.locked_source(source);
    END IF;
    told := ARRAY(SELECT r.refused_id FROM queue_bridge.refused AS r WHERE r.source = source AND NOT r.is_told
                  AND NOT r.is_waiting ORDER BY r.refused_id LIMIT 1000);
    answer := queue_bridge.ask(s.conninfo, format('SELECT queue_bridge.contact(%L)', jsonb_build_object(
        'slot', s.slot, 'server', queue_bridge.own_identity(source), 'contacts', s.contacts,
        'port', current_setting('port'), 'database', current_database(), 'next', queue_bridge.own_next(),
        'oldest', least((SELECT min(t.xact_start) FROM pg_stat_activity AS t),
                        (SELECT min(t.prepared) FROM pg_prepared_xacts AS t)),
        'arrived', queue_bridge.arrived_of(s.subscription),
        -- While rows are copied, jobs are still to come.
        -- Of the contact before, which has flushed it.
        'is_copied', s.answer -> 'is_copied',
        'gone', (SELECT queue_bridge.gone(s.answer -> 'asks') FROM queue_bridge.sources AS v
                 WHERE v.source = source AND v.state = 'streaming'),
        'known', (SELECT coalesce(jsonb_agg(jsonb_build_object('name', a.target, 'is_full', coalesce(
                      (SELECT sum(t.ready + t.scheduled + t.retrying) FROM queue.stats AS t
                       WHERE t.queue_name = a.target) >= q.max_waiting, false)) ORDER BY a.target), '[]')
                  FROM queue_bridge.allowed AS a
                  LEFT JOIN queue.queues AS q ON q.queue_name = a.target AND q.max_waiting IS NOT NULL
                  WHERE a.source = source
                    AND (EXISTS (SELECT FROM queue.queues AS v WHERE v.queue_name = a.target)
                         OR EXISTS (SELECT FROM queue.topics AS v WHERE v.topic_name = a.target))),
        'refused', (SELECT coalesce(jsonb_agg(jsonb_build_object('id', r.id, 'made_at', r.made_at, 'verb', r.verb,
                        'target', left(r.target, 200), 'sqlstate', r.code, 'message', left(r.message, 1000))), '[]')
                    FROM queue_bridge.refused AS r WHERE r.refused_id = ANY (told)))));
    missing := queue_bridge.missing(s, answer);
    problem := CASE
        WHEN answer ->> 'taken_by' IS NOT NULL
            THEN 'another queue server takes its jobs: ' || (answer ->> 'taken_by')
        WHEN answer ->> 'system' <> s.system THEN 'it is another server: queue_bridge.repair takes it as the source'
        WHEN (answer ->> 'timeline')::integer <> s.timeline THEN 'it has failed over'
        WHEN NOT (answer ->> 'is_assigned')::boolean THEN 'it has gone back in time'
        WHEN coalesce(answer ->> 'wal_status', 'lost') = 'lost' THEN 'its slot is lost'
        WHEN (answer ->> 'is_behind')::boolean THEN 'this server has gone back in time'
        WHEN answer ->> 'wiring' IS NULL
            THEN 'its publication "pg_queue" does not publish the outbox: run bridge/primary.sql there'
        WHEN answer ->> 'wiring' <> coalesce(s.answer ->> 'wiring', '') THEN 'its publication or its outbox was changed'
        WHEN s.answer ? 'is_stored' THEN 'its calls were stored here, because trigger "arrive" was disabled'
        WHEN missing > 0 THEN format('%s of its calls have not arrived', missing)
        WHEN answer ->> 'unlogged' IS NOT NULL
            THEN format('its table queue_bridge.%s is unlogged: ALTER TABLE … SET LOGGED', answer ->> 'unlogged')
        WHEN NOT queue_bridge.converts(answer ->> 'encoding') THEN format('its encoding is %s', answer ->> 'encoding')
        WHEN queue_bridge.is_synchronous(source, answer ->> 'synchronous')
            THEN 'its synchronous_standby_names makes its commits wait for this server: name the standbys there'
        WHEN answer ->> 'sender_timeout' = '0'
            THEN 'its wal_sender_timeout is 0, so its shutdown could wait for this server without end'
    END;
    -- What is not published, or not in the WAL, does not arrive by a repair either. If calls go on missing, repairs do
    -- not help, and take their time.
    is_repaired := problem IS NOT NULL AND answer ->> 'system' = s.system AND answer ->> 'wiring' IS NOT NULL
        AND (missing = 0 OR s.missed_at IS NULL
             OR s.missed_at < clock_timestamp() - current_setting('pg_queue.patience')::interval)
        AND (missing > 0 OR answer ->> 'unlogged' IS NULL) AND problem !~ '^its (encoding|synchronous|wal_sender)';
    IF answer ->> 'taken_by' IS NOT NULL THEN
        UPDATE queue_bridge.source AS o SET problem = problem WHERE o.source = source;
        RETURN problem;
    END IF;
    UPDATE queue_bridge.refused AS r SET is_told = true WHERE r.refused_id = ANY (told);
    DELETE FROM queue_bridge.passed AS p
    WHERE p.made_at < (answer ->> 'since')::timestamptz - interval '1 hour' AND (p.id >> 46) & 127 = s.node_id;
    DELETE FROM queue_bridge.ended AS e
    WHERE e.source = source AND e.made_at < (answer ->> 'since')::timestamptz - interval '1 hour';
    UPDATE queue_bridge.source AS o
    SET contacts = o.contacts + 1, contact_at = clock_timestamp(), problem = problem,
        missed_at = CASE WHEN is_repaired AND missing > 0 THEN clock_timestamp() ELSE o.missed_at END,
        answer = answer || jsonb_build_object('caught_up_at', (
            SELECT v.caught_up_at FROM queue_bridge.sources AS v WHERE v.source = source), 'is_copied', (
            SELECT bool_and(r.srsubstate = 'r') FROM pg_subscription_rel AS r WHERE r.srsubid = o.subscription)
            ) || queue_bridge.stopped(o)
    WHERE o.source = source;
    -- What repairs have left: their slots were in use then.
    IF answer ->> 'others' IS NOT NULL THEN
        PERFORM queue_bridge.ask(s.conninfo, format(
            'SELECT to_jsonb(count(pg_drop_replication_slot(slot_name))) FROM pg_replication_slots '
            'WHERE slot_name = ANY (%L) AND NOT active',
            ARRAY(SELECT o.name FROM jsonb_array_elements_text(answer -> 'others') AS o (name)
                  WHERE o.name ~ format('^queue_bridge_%s_[0-9]+$', source))));
    END IF;
    IF is_repaired THEN
        PERFORM queue_bridge.repair(source);
    END IF;
    PERFORM queue_bridge.retry_waiting(source);
    RETURN problem;
END
$$;
COMMENT ON FUNCTION queue_bridge.contact IS
'Speaks with a source: tells it queues and refused calls, lets it empty its outbox, and repairs what has come apart.
Then tries calls again that wait. Returns what it found wrong; null: nothing. The schedule queue_bridge_SOURCE calls it
every 10 seconds.';

CREATE PROCEDURE queue_bridge.contact_job(job jsonb) LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    last bigint;
    before bigint;
BEGIN
    -- A source may speak for itself only.
    IF 'queue_bridge_' || (job ->> 'source') = session_user THEN
        SELECT max(r.refused_id), count(*) INTO last, before FROM queue_bridge.refused AS r
        WHERE r.source = job ->> 'source' AND r.is_waiting;
        BEGIN
            PERFORM queue_bridge.contact(job ->> 'source');
        EXCEPTION WHEN OTHERS THEN
            UPDATE queue_bridge.source AS s SET problem = 'there is no contact: ' || SQLERRM
            WHERE s.source = job ->> 'source' AND s.subscription IS NOT NULL;
            -- These need none.
            PERFORM queue_bridge.retry_waiting(job ->> 'source');
        END;
        -- Until this commits, calls are put behind those that have succeeded. They do not wait for the schedule.
        IF before > (SELECT count(*) FROM queue_bridge.refused AS r
                     WHERE r.source = job ->> 'source' AND r.is_waiting AND r.refused_id <= last) THEN
            PERFORM queue.enqueue(session_user::text, job);
        END IF;
    END IF;
END
$$;
COMMENT ON PROCEDURE queue_bridge.contact_job IS 'What the schedule of a source runs.';

CREATE FUNCTION queue_bridge.disconnect(source text, force boolean DEFAULT false)
    RETURNS void VOLATILE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    s queue_bridge.source := queue_bridge.locked_source(source);
    name text := 'queue_bridge_' || source;
    target text;
BEGIN
    FOR target IN SELECT a.target FROM queue_bridge.allowed AS a WHERE a.source = source LOOP
        PERFORM queue_bridge.deny(source, target);
    END LOOP;
    PERFORM queue.unschedule(name);
    PERFORM queue.drop(name, force => true);
    PERFORM queue_bridge.unsubscribe(source);
    EXECUTE format('DROP VIEW IF EXISTS queue_bridge.%I', 'connected_' || source);
    UPDATE queue_bridge.source AS o SET subscription = NULL, conninfo = '', problem = NULL, answer = NULL
    WHERE o.source = source;
    BEGIN
        PERFORM queue_bridge.ask(s.conninfo, format('SELECT queue_bridge.leave(%L)', s.slot));
    EXCEPTION WHEN OTHERS THEN
        IF NOT force THEN
            RAISE;
        END IF;
        RAISE WARNING 'slot "%" of source "%" was not dropped: %', s.slot, source, SQLERRM
            USING HINT = format('SELECT pg_drop_replication_slot(%L) there, or it keeps all WAL.', s.slot);
    END;
END
$$;
COMMENT ON FUNCTION queue_bridge.disconnect IS
'Drops subscription, schedule and slot of a source. Its role, its number and its refused calls stay. force: also
if the source cannot be reached; then the slot stays there. Errors: 42704 there is no such source.';
