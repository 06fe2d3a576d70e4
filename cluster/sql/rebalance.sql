-- Adding and removing servers, and moving their slots.

-- The locks for changes of the map. No other role can take them.
CREATE FUNCTION queue_cluster.lock_map()
    RETURNS void VOLATILE LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_cluster_lock_map';
COMMENT ON FUNCTION queue_cluster.lock_map IS
    'Waits until no other transaction changes the map, and locks out others until the transaction ends.';
CREATE FUNCTION queue_cluster.take_slot(slot integer)
    RETURNS boolean VOLATILE LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_cluster_take_slot';
COMMENT ON FUNCTION queue_cluster.take_slot IS
    'Locks out producers of a slot until the transaction ends. False: a producer holds the slot.';

-- A server's copy of the map, and its updates.
CREATE FUNCTION queue_cluster.tell()
    RETURNS jsonb STABLE LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT jsonb_build_object('servers', (SELECT coalesce(jsonb_agg(to_jsonb(s)), '[]') FROM queue_cluster.server AS s),
                              'slots', (SELECT coalesce(
                                  jsonb_agg(jsonb_build_array(o.slot, o.node_id, o.version)), '[]')
                                        FROM queue_cluster.slot AS o))
$$;
COMMENT ON FUNCTION queue_cluster.tell IS 'This server''s copy of both tables.';

CREATE FUNCTION queue_cluster.learn(map jsonb)
    RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    servers bigint;
    slots bigint;
BEGIN
    -- One change of the map after the other. Its transaction has no lock on any other server.
    PERFORM queue_cluster.lock_map();
    -- Of two rows of one version, which two administrators have made at once, all servers take the same.
    INSERT INTO queue_cluster.server AS o
    SELECT s.* FROM jsonb_populate_recordset(NULL::queue_cluster.server, map -> 'servers') AS s
    ON CONFLICT (node_id) DO UPDATE SET name = excluded.name, conninfo = excluded.conninfo, state = excluded.state,
            identity = excluded.identity, version = excluded.version
        WHERE (o.version, o.state, o.conninfo, o.name, o.identity)
            < (excluded.version, excluded.state, excluded.conninfo, excluded.name, excluded.identity);
    GET DIAGNOSTICS servers = ROW_COUNT;
    INSERT INTO queue_cluster.slot AS o
    SELECT (s ->> 0)::integer, (s ->> 1)::integer, (s ->> 2)::bigint FROM jsonb_array_elements(map -> 'slots') AS s
    ORDER BY 1
    ON CONFLICT (slot) DO UPDATE SET node_id = excluded.node_id, version = excluded.version, closed_until = NULL
        WHERE o.version < excluded.version;
    GET DIAGNOSTICS slots = ROW_COUNT;
    RETURN servers + slots;
END
$$;
COMMENT ON FUNCTION queue_cluster.learn IS 'Takes over the newer rows of a copy. Returns how many.';

CREATE FUNCTION queue_cluster.carry_tell(node integer) RETURNS jsonb LANGUAGE plproxy AS
    'CONNECT queue_cluster.conninfo(node); SELECT queue_cluster.tell();';
CREATE FUNCTION queue_cluster.carry_learn(node integer, map jsonb) RETURNS bigint LANGUAGE plproxy AS
    'CONNECT queue_cluster.conninfo(node); SELECT queue_cluster.learn(map);';
CREATE FUNCTION queue_cluster.probe(conninfo text) RETURNS jsonb LANGUAGE plproxy AS
    'CONNECT conninfo; SELECT pg_catalog.jsonb_build_object(''node_id'', queue_cluster.home(), '
    '''version'', (SELECT e.extversion FROM pg_catalog.pg_extension AS e WHERE e.extname = ''pg_queue_cluster''),
        ''identity'', queue_cluster.identity(),
        ''servers'', (SELECT pg_catalog.count(*) FROM queue_cluster.server));';

CREATE FUNCTION queue_cluster.carry_learn_by(conninfo text, map jsonb) RETURNS bigint LANGUAGE plproxy AS
    'CONNECT conninfo; SELECT queue_cluster.learn(map);';

-- This server is updated like the others, by a separate transaction. So a caller that then asks other servers locks no
-- row, and what the others learn is committed here.
CREATE FUNCTION queue_cluster.sync(OUT server text, OUT state text, OUT learnt bigint, OUT problem text)
    RETURNS SETOF record LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    own CONSTANT integer := queue_cluster.home();
    s queue_cluster.server;
BEGIN
    -- First all that any server knows, then all of that to each.
    FOR s IN SELECT * FROM queue_cluster.server AS o WHERE o.node_id IN (SELECT queue_cluster.others()) LOOP
        BEGIN
            PERFORM queue_cluster.carry_learn(own, queue_cluster.carry_tell(s.node_id));
        EXCEPTION WHEN internal_error OR connection_exception OR sqlclient_unable_to_establish_sqlconnection THEN
            NULL;
        END;
    END LOOP;
    FOR s IN SELECT * FROM queue_cluster.server AS o ORDER BY o.node_id LOOP
        server := s.name;
        state := s.state;
        learnt := NULL;
        problem := NULL;
        IF s.node_id = own THEN
            learnt := 0;
        ELSIF s.state IN ('up', 'draining') THEN
            BEGIN
                learnt := queue_cluster.carry_learn(s.node_id, queue_cluster.tell());
            EXCEPTION WHEN internal_error OR connection_exception OR sqlclient_unable_to_establish_sqlconnection THEN
                problem := SQLERRM;
            END;
        END IF;
        RETURN NEXT;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_cluster.sync IS
'Brings the copies of all servers that can be reached to the newest state that any of them has. Harmless at any time. '
'Returns how many rows each has learnt;
problem: why it could not.';

-- Writes a row of a server, here and everywhere. It takes effect immediately, even if the caller's transaction rolls
-- back.
CREATE FUNCTION queue_cluster.put_server(
    node_id integer, name text, conninfo text, state text, identity uuid)
    RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    next_version bigint;
    own text;
BEGIN
    SELECT coalesce(max(s.version), 0) + 1 INTO next_version FROM queue_cluster.server AS s
        WHERE s.node_id = put_server.node_id;
    -- The first row of all is that of this server.
    own := coalesce((SELECT s.conninfo FROM queue_cluster.server AS s WHERE s.node_id = queue_cluster.home()),
        put_server.conninfo);
    PERFORM queue_cluster.carry_learn_by(own, jsonb_build_object(
        'servers', jsonb_build_array(jsonb_build_object('node_id', put_server.node_id, 'name', put_server.name,
            'conninfo', put_server.conninfo, 'state', put_server.state, 'identity', put_server.identity,
            'version', next_version)),
        'slots', CASE WHEN EXISTS (SELECT FROM queue_cluster.slot) THEN '[]'
                      ELSE (SELECT jsonb_agg(jsonb_build_array(n, put_server.node_id, 1))
                            FROM generate_series(0, 1023) AS n) END));
    PERFORM queue_cluster.sync();
EXCEPTION WHEN internal_error THEN
    PERFORM queue_cluster.rethrow(SQLERRM);
END
$$;

CREATE FUNCTION queue_cluster.change_server(name text, state text)
    RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s queue_cluster.server;
BEGIN
    SELECT * INTO s FROM queue_cluster.server AS o WHERE o.name = change_server.name AND o.state <> 'removed';
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no server "%"', name USING ERRCODE = '42704';
    END IF;
    PERFORM queue_cluster.put_server(s.node_id, s.name, s.conninfo, change_server.state, s.identity);
END
$$;

CREATE FUNCTION queue_cluster.add_server(name text, conninfo text)
    RETURNS integer LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found jsonb;
    node integer;
    other queue_cluster.server;
BEGIN
    BEGIN
        found := queue_cluster.probe(conninfo);
    EXCEPTION WHEN internal_error THEN
        PERFORM queue_cluster.rethrow(SQLERRM);
    END;
    node := (found ->> 'node_id')::integer;
    SELECT * INTO other FROM queue_cluster.server AS s WHERE s.node_id = node;
    IF other.name <> add_server.name AND other.state <> 'removed' THEN
        RAISE EXCEPTION 'servers "%" and "%" have the same node number %', other.name, name, node
            USING ERRCODE = '42710', HINT = 'Give each server its own pg_queue.node_id before its first job.';
    ELSIF EXISTS (SELECT FROM queue_cluster.server AS s WHERE s.name = add_server.name AND s.node_id <> node) THEN
        RAISE EXCEPTION 'server "%" has another node number', name USING ERRCODE = '42710';
    ELSIF found ->> 'version' <> (SELECT e.extversion FROM pg_extension AS e WHERE e.extname = 'pg_queue_cluster') THEN
        RAISE EXCEPTION 'server "%" has another version of pg_queue_cluster', name USING ERRCODE = '55000',
            HINT = 'ALTER EXTENSION pg_queue_cluster UPDATE on all servers first.';
    ELSIF NOT EXISTS (SELECT FROM queue_cluster.server) AND node <> queue_cluster.home() THEN
        RAISE EXCEPTION 'this server is in no cluster yet' USING ERRCODE = '55000', HINT = 'Add this one first.';
    ELSIF other.node_id IS NULL AND (found ->> 'servers')::bigint > 0 THEN
        RAISE EXCEPTION 'server "%" is in another cluster', name USING ERRCODE = '55000',
            HINT = 'If it is not any more: DROP EXTENSION pg_queue_cluster there, and create it again.';
    END IF;
    PERFORM queue_cluster.put_server(node, add_server.name, add_server.conninfo, 'up', (found ->> 'identity')::uuid);
    RETURN node;
END
$$;
COMMENT ON FUNCTION queue_cluster.add_server IS
'Adds a server to the cluster of this one, or changes how it is reached; '
'the first that is added is this server itself. It owns no keys before rebalance. Returns its node number.
Errors: 42710 a server has that node number, 55000 another version or another cluster, 08001 it cannot be reached.';

CREATE FUNCTION queue_cluster.drain(name text)
    RETURNS void LANGUAGE sql AS $$ SELECT queue_cluster.change_server(name, 'draining') $$;
COMMENT ON FUNCTION queue_cluster.drain IS
    'Makes a server give away its slots at the next rebalance, and get none. Errors: 42704.';
CREATE FUNCTION queue_cluster.mark_down(name text)
    RETURNS void LANGUAGE sql AS $$ SELECT queue_cluster.change_server(name, 'down') $$;
COMMENT ON FUNCTION queue_cluster.mark_down IS
    'Makes the others no longer call a server. Calls that need it fail immediately with 08001, views leave it out. '
    'Errors: 42704.';
CREATE FUNCTION queue_cluster.mark_up(name text)
    RETURNS void LANGUAGE sql AS $$ SELECT queue_cluster.change_server(name, 'up') $$;
COMMENT ON FUNCTION queue_cluster.mark_up IS 'Makes the others call a server again, and ends a drain. Errors: 42704.';

CREATE FUNCTION queue_cluster.is_owed(id bigint)
    RETURNS boolean VOLATILE LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_cluster_is_owed';
COMMENT ON FUNCTION queue_cluster.is_owed IS
    'True if another run was requested after an attempt (on_duplicate replace or rerun) and is not made yet.';
DO $notes$
BEGIN
    EXECUTE (SELECT 'CREATE VIEW queue_cluster.rerun AS ' || pg_catalog.string_agg(
        pg_catalog.format('SELECT id FROM queue_internal.note_%s WHERE asked IS NOT NULL', n), ' UNION ' ORDER BY n)
        FROM pg_catalog.generate_series(0, 9) AS n);
END
$notes$;
COMMENT ON VIEW queue_cluster.rerun IS 'The attempts after which another run was requested.';

CREATE FUNCTION queue_cluster.occupied(OUT slot integer)
    RETURNS SETOF integer VOLATILE LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT queue_cluster.slot_of(coalesce(l.group_key, l.unique_key)) FROM queue_internal.live() AS l
    WHERE coalesce(l.group_key, l.unique_key) IS NOT NULL
      AND (l.outcome IS NULL OR l.id IN (SELECT r.id FROM queue_cluster.rerun AS r) AND queue_cluster.is_owed(l.id))
    UNION SELECT queue_cluster.slot_of(s.schedule_name) FROM queue_internal.schedule AS s
$$;
COMMENT ON FUNCTION queue_cluster.occupied IS
    'The slots of the living jobs and schedules on this server. Reads all living jobs once.';

-- The rows about remembered keys move with their slots: the new owner gets them before it is the owner. A copy that is
-- left behind, or that came too early, does no harm: a server that is not the owner does not read such a row. If there
-- are two rows, the larger values count.
CREATE FUNCTION queue_cluster.memories(slots integer[])
    RETURNS jsonb VOLATILE LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(jsonb_agg(to_jsonb(k)), '[]') FROM (
        SELECT DISTINCT ON (q.queue_name, m.unique_key)
            queue_cluster.slot_of(m.unique_key) AS slot, q.queue_name, m.unique_key, m.job_id, m.expires_at,
            m.taken_until, m.version
        FROM (SELECT * FROM queue_internal.key_0 UNION ALL SELECT * FROM queue_internal.key_1) AS m
        JOIN queue_internal.queue AS q USING (queue_id)
        WHERE queue_cluster.slot_of(m.unique_key) = ANY (slots)
        ORDER BY q.queue_name, m.unique_key, m.entry DESC) AS k
    WHERE k.expires_at > clock_timestamp()
$$;
COMMENT ON FUNCTION queue_cluster.memories IS
    'What this server remembers of the keys of slots, beyond the ends of their jobs (version, unique_for).';

CREATE FUNCTION queue_cluster.remember(queue_name text, unique_key text, job_id bigint, expires_at timestamptz,
    taken_until timestamptz, version timestamptz)
    RETURNS boolean LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_cluster_remember';
COMMENT ON FUNCTION queue_cluster.remember IS
    'Takes over what another server remembers of a key. False: it was known here. '
    'Errors: 42704 there is no such queue; 55006 the key is in use here.';

CREATE FUNCTION queue_cluster.remember_all(memories jsonb)
    RETURNS bigint VOLATILE LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT count(*) FILTER (WHERE queue_cluster.remember(
        m.queue_name, m.unique_key, m.job_id, m.expires_at, m.taken_until, m.version))
    FROM jsonb_to_recordset(memories) AS m (queue_name text, unique_key text, job_id bigint, expires_at timestamptz,
        taken_until timestamptz, version timestamptz)
$$;
CREATE FUNCTION queue_cluster.carry_remember(node integer, memories jsonb) RETURNS bigint LANGUAGE plproxy AS
    'CONNECT queue_cluster.conninfo(node); SELECT queue_cluster.remember_all(memories);';

CREATE FUNCTION queue_cluster.close(slots integer[], pause interval)
    RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    changed bigint;
BEGIN
    PERFORM queue_cluster.lock_map();
    UPDATE queue_cluster.slot AS o SET closed_until = CASE WHEN pause > '0' THEN clock_timestamp() + pause END
    WHERE o.slot = ANY (slots) AND o.node_id = queue_cluster.home() AND (pause > '0' OR o.closed_until IS NOT NULL);
    GET DIAGNOSTICS changed = ROW_COUNT;
    RETURN changed;
END
$$;
COMMENT ON FUNCTION queue_cluster.close IS
    'Closes slots that this server owns for a time: nothing is enqueued under their keys. 0: opens them again. '
    'Their producers get 55006.';
CREATE FUNCTION queue_cluster.carry_close(node integer, slots integer[], pause interval)
    RETURNS bigint LANGUAGE plproxy AS
    'CONNECT queue_cluster.conninfo(node); SELECT queue_cluster.close(slots, pause);';

CREATE FUNCTION queue_cluster.give(slots integer[], nodes integer[])
    RETURNS jsonb LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    free integer[];
    taker record;
    memories jsonb;
    given jsonb;
    problems text[] := '{}';
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'slots are given away at READ COMMITTED only' USING ERRCODE = '25001';
    END IF;
    PERFORM queue_cluster.lock_map();
    -- A look before: producers of a slot that stays need not be refused. Those that a producer holds are left for
    -- later.
    free := ARRAY(SELECT s FROM unnest(slots) AS s WHERE s NOT IN (SELECT queue_cluster.occupied()));
    free := ARRAY(SELECT o.slot FROM queue_cluster.slot AS o
                  WHERE o.slot = ANY (free) AND o.node_id = queue_cluster.home()
                  AND queue_cluster.take_slot(o.slot));
    IF free <> '{}' THEN
        free := ARRAY(SELECT s FROM unnest(free) AS s WHERE s NOT IN (SELECT queue_cluster.occupied()));
    END IF;
    FOR taker IN SELECT w.node, array_agg(w.slot) AS slots FROM unnest(slots, nodes) AS w (slot, node)
        WHERE w.slot = ANY (free) GROUP BY w.node LOOP
        memories := queue_cluster.memories(taker.slots);
        CONTINUE WHEN memories = '[]';
        BEGIN
            PERFORM queue_cluster.carry_remember(taker.node, memories);
        EXCEPTION WHEN OTHERS THEN
            problems := problems
                || format('%s does not take what is remembered: %s', queue_cluster.name_of(taker.node), SQLERRM);
            free := ARRAY(SELECT s FROM unnest(free) AS s
                WHERE s NOT IN (SELECT (m ->> 'slot')::integer FROM jsonb_array_elements(memories) AS m));
        END;
    END LOOP;
    WITH moved AS (
        UPDATE queue_cluster.slot AS o SET node_id = w.node, version = o.version + 1, closed_until = NULL
        FROM unnest(slots, nodes) AS w (slot, node)
        WHERE o.slot = w.slot AND o.slot = ANY (free) AND o.node_id = queue_cluster.home()
        RETURNING o.slot, o.node_id, o.version)
    SELECT coalesce(jsonb_agg(jsonb_build_array(m.slot, m.node_id, m.version)), '[]') INTO given FROM moved AS m;
    RETURN jsonb_build_object('servers', '[]'::jsonb, 'slots', given, 'problems', problems);
END
$$;
COMMENT ON FUNCTION queue_cluster.give IS
    'Gives slots that this server owns and that have no living jobs here to other servers. '
    'Returns the changed rows, and why other slots have not moved.';
CREATE FUNCTION queue_cluster.carry_give(node integer, slots integer[], nodes integer[])
    RETURNS jsonb LANGUAGE plproxy AS
    'CONNECT queue_cluster.conninfo(node); SELECT queue_cluster.give(slots, nodes);';

-- Returns which server must give which slots, and to which server. A server that is marked down gives none.
CREATE FUNCTION queue_cluster.surplus(OUT node_id integer, OUT slots integer[], OUT nodes integer[])
    RETURNS SETOF record VOLATILE LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    WITH takers AS (
        SELECT s.node_id, row_number() OVER (ORDER BY s.node_id) - 1 AS place, count(*) OVER () AS servers
        FROM queue_cluster.server AS s WHERE s.state = 'up'),
    wanted AS (
        SELECT t.node_id, 1024 / t.servers + (t.place < 1024 % t.servers)::integer AS slots FROM takers AS t),
    held AS (
        SELECT o.slot, o.node_id, row_number() OVER (PARTITION BY o.node_id ORDER BY o.slot) AS place,
               coalesce(w.slots, 0) AS keeps
        FROM queue_cluster.slot AS o LEFT JOIN wanted AS w USING (node_id)),
    spare AS (
        SELECT h.slot, h.node_id, row_number() OVER (ORDER BY h.slot) AS n
        FROM held AS h JOIN queue_cluster.server AS s USING (node_id)
        WHERE h.place > h.keeps AND s.state IN ('up', 'draining')),
    room AS (
        SELECT w.node_id, row_number() OVER (ORDER BY g, w.node_id) AS n
        FROM wanted AS w, generate_series(1, greatest(0,
            w.slots - (SELECT count(*) FROM queue_cluster.slot AS o WHERE o.node_id = w.node_id))) AS g)
    SELECT s.node_id, array_agg(s.slot), array_agg(r.node_id)
    FROM spare AS s JOIN room AS r USING (n) GROUP BY s.node_id ORDER BY s.node_id
$$;

CREATE FUNCTION queue_cluster.rebalance(wait interval DEFAULT '0', OUT moved integer, OUT waiting integer)
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    until CONSTANT timestamptz := clock_timestamp() + coalesce(wait, '0');
    patience interval;
    donor record;
    given jsonb;
    stay integer[];
    problems jsonb;
BEGIN
    moved := 0;
    PERFORM queue_cluster.sync();
    LOOP
        waiting := 0;
        problems := '[]';
        patience := until - clock_timestamp();
        FOR donor IN SELECT * FROM queue_cluster.surplus() LOOP
            -- This server, too, is called as another: what it gives away has to be committed before the others learn
            -- it.
            given := queue_cluster.carry_give(donor.node_id, donor.slots, donor.nodes);
            moved := moved + jsonb_array_length(given -> 'slots');
            problems := problems || (given -> 'problems');
            stay := ARRAY(SELECT s FROM unnest(donor.slots) AS s
                WHERE s NOT IN (SELECT (g ->> 0)::integer FROM jsonb_array_elements(given -> 'slots') AS g));
            waiting := waiting + cardinality(stay);
            -- Closed for a few seconds only, again and again: if this call breaks off, they are soon open.
            IF stay <> '{}' AND wait > '0' THEN
                PERFORM queue_cluster.carry_close(donor.node_id, stay,
                    CASE WHEN patience > '0' THEN least(patience, '3 s') ELSE '0' END);
            END IF;
        END LOOP;
        PERFORM queue_cluster.sync();
        EXIT WHEN waiting = 0 OR patience <= '0';
        PERFORM pg_sleep(0.02);
    END LOOP;
    IF problems <> '[]' THEN
        RAISE NOTICE '%', (SELECT string_agg(DISTINCT p, '; ') FROM jsonb_array_elements_text(problems) AS p);
    END IF;
EXCEPTION WHEN internal_error THEN
    PERFORM queue_cluster.rethrow(SQLERRM);
END
$$;
COMMENT ON FUNCTION queue_cluster.rebalance IS
'Gives each server that is up its part of the slots. A slot moves when no job lives under its keys '
'and no schedule has its name; the others wait for the
next call: repeat it until waiting is 0. Producers of a key that is just moving get 55006, for a moment. '
'With wait the slots that are not idle are closed for so
long at most, and move as soon as they are: their producers get 55006 until then. '
'Errors: 08xxx a server cannot be reached: nothing is lost, repeat it.';

CREATE FUNCTION queue_cluster.carry_living(node integer) RETURNS bigint LANGUAGE plproxy AS
    'CONNECT queue_cluster.conninfo(node); '
    'SELECT pg_catalog.count(*) FROM queue_internal.live() AS l WHERE l.outcome IS NULL;';
CREATE FUNCTION queue_cluster.remove_server(name text)
    RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s queue_cluster.server;
    living bigint;
BEGIN
    PERFORM queue_cluster.sync();
    SELECT * INTO s FROM queue_cluster.server AS o WHERE o.name = remove_server.name AND o.state <> 'removed';
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no server "%"', name USING ERRCODE = '42704';
    ELSIF EXISTS (SELECT FROM queue_cluster.slot AS o WHERE o.node_id = s.node_id) THEN
        RAISE EXCEPTION 'server "%" owns keys', name USING ERRCODE = '55000',
            HINT = 'queue_cluster.drain, then rebalance until nothing waits.';
    END IF;
    living := queue_cluster.carry_living(s.node_id);
    IF living > 0 THEN
        RAISE EXCEPTION 'server "%" has % jobs that live', name, living USING ERRCODE = '55000',
            HINT = 'Let workers run them: others steal what is ready.';
    END IF;
    PERFORM queue_cluster.change_server(name, 'removed');
EXCEPTION WHEN internal_error THEN
    PERFORM queue_cluster.rethrow(SQLERRM);
END
$$;
COMMENT ON FUNCTION queue_cluster.remove_server IS
    'Removes a server that owns no keys and has no living jobs. Its ended jobs can be read while it runs. '
    'Errors: 42704; 55000 it still owns keys or has living jobs.';

-- All roles may call the verbs, which check the caller's privileges on queues. The other functions are the owner's.
CREATE FUNCTION queue_cluster.make_grants() RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    verb regprocedure;
BEGIN
    PERFORM queue_internal.close('pg_queue_cluster');
    GRANT USAGE ON SCHEMA queue_cluster TO PUBLIC;
    GRANT SELECT ON ALL TABLES IN SCHEMA queue_cluster TO PUBLIC;
    REVOKE SELECT ON queue_cluster.rerun FROM PUBLIC;
    FOR verb IN SELECT p.oid FROM pg_proc AS p WHERE p.pronamespace = 'queue_cluster'::regnamespace
                AND p.proname <> ALL ('{
                         lock_map,take_slot,learn,is_owed,remember,remember_all,carry_remember,memories,close,
                         carry_close,surplus,carry_learn,carry_learn_by,put_server,probe,sync,change_server,add_server,
                         drain,mark_down,mark_up,remove_server,rebalance,give,carry_give,carry_tell,carry_living,
                         occupied,shape}')
                AND p.proname NOT LIKE 'make\_%' LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO PUBLIC', verb);
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_cluster.make_grants IS
    'Takes all privileges back, those of default privileges too, and grants what all roles may.';
SELECT queue_cluster.make_grants();
