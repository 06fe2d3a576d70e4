-- Views over all servers. Each row is as in the view of queue.*, with the server's name as the last column. Conditions
-- are not sent to the servers. To read little, use queue_cluster.job and search.

DO $each_view$
DECLARE
    made text;
    template CONSTANT text := $template$
        CREATE FUNCTION queue_cluster.carry_view_{view}(node integer) RETURNS SETOF queue.{view}
            LANGUAGE plproxy ROWS 1000 AS
            'CONNECT queue_cluster.conninfo(node); SELECT * FROM queue.{view};';

        CREATE FUNCTION queue_cluster.view_{view}(node integer) RETURNS SETOF queue.{view}
            LANGUAGE plpgsql ROWS 1000 SET search_path = pg_catalog, pg_temp AS $body$
        BEGIN
            IF node = queue_cluster.home() THEN
                RETURN QUERY SELECT * FROM queue.{view};
            ELSE
                RETURN QUERY SELECT * FROM queue_cluster.carry_view_{view}(node);
            END IF;
        EXCEPTION WHEN internal_error THEN
            PERFORM queue_cluster.rethrow(SQLERRM);
        END $body$;

        CREATE VIEW queue_cluster.{view} AS
            SELECT v.*, queue_cluster.name_of(n) AS server
            FROM queue_cluster.reachable() AS n, queue_cluster.view_{view}(n) AS v;
        GRANT SELECT ON queue_cluster.{view} TO PUBLIC;
        COMMENT ON VIEW queue_cluster.{view} IS 'queue.{view} of all servers that are not marked down.';
    $template$;
BEGIN
    FOR made IN SELECT v FROM unnest('{jobs,attempts,stats,throughput,workers,schedules,queues}'::text[]) AS v
                WHERE to_regclass('queue_cluster.' || v) IS NULL LOOP
        PERFORM queue_cluster.make_from(template, jsonb_build_object('view', quote_ident(made)));
    END LOOP;
END
$each_view$;

-- Functions for administrators.
CREATE FUNCTION queue_cluster.grants()
    RETURNS jsonb STABLE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT coalesce(jsonb_agg(format('%s on %s to %s', p.privilege, coalesce(q.queue_name, '*'), p.role_name)
                                      ORDER BY q.queue_name, p.role_name, p.privilege), '[]')
            FROM queue_internal.permission AS p LEFT JOIN queue_internal.queue AS q USING (queue_id)
            WHERE p.queue_id = 0 OR q.queue_id IS NOT NULL);
END
$$;
COMMENT ON FUNCTION queue_cluster.grants IS 'The privileges on the queues of this server.';
CREATE FUNCTION queue_cluster.carry_tell_digest(node integer) RETURNS jsonb LANGUAGE plproxy AS
    'CONNECT queue_cluster.conninfo(node); SELECT queue_cluster.digest();';
CREATE FUNCTION queue_cluster.digest()
    RETURNS jsonb STABLE LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT jsonb_build_object(
        'node_id', queue_cluster.home(),
        'identity', queue_cluster.identity(),
        'version', (SELECT e.extversion FROM pg_extension AS e WHERE e.extname = 'pg_queue_cluster'),
        -- Only superusers may read it, and they call queue_cluster.check.
        'grants', CASE WHEN has_schema_privilege('queue_internal', 'USAGE') THEN queue_cluster.grants() END,
        'map', (SELECT md5(string_agg(m.line, ',' ORDER BY m.line)) FROM (
            SELECT s::text AS line FROM queue_cluster.server AS s UNION ALL
            SELECT (o.slot, o.node_id, o.version)::text FROM queue_cluster.slot AS o) AS m),
        -- Limits differ: each server has its part.
        'queues', (SELECT coalesce(jsonb_object_agg(
            q.queue_name, to_jsonb(q) - '{created_at,max_running,rate_limit,max_waiting}'::text[]), '{}')
                FROM queue.queues AS q),
        'slots', (SELECT count(*) FROM queue_cluster.slot AS o WHERE o.node_id = queue_cluster.home()))
$$;
COMMENT ON FUNCTION queue_cluster.digest IS
    'The state of a server that queue_cluster.check compares. It shows the queues that the caller may observe.';

CREATE FUNCTION queue_cluster.check(OUT server text, OUT problem text, OUT hint text) RETURNS SETOF record
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s queue_cluster.server;
    own CONSTANT jsonb := queue_cluster.digest();
    found jsonb;
    queue text;
BEGIN
    IF NOT EXISTS (SELECT FROM queue_cluster.server AS o WHERE o.node_id = queue_cluster.home()) THEN
        RETURN QUERY VALUES ('this server',
            format('its node number, %s, is none of the cluster''s', queue_cluster.home()),
            'Set pg_queue.node_id back, or add the server: queue_cluster.add_server.');
    ELSIF NOT EXISTS (SELECT FROM queue_cluster.server AS o
                      WHERE o.node_id = queue_cluster.home() AND o.identity = queue_cluster.identity()) THEN
        RETURN QUERY VALUES ('this server',
            format('its node number, %s, is that of another server', queue_cluster.home()),
            'Set pg_queue.node_id back. If it is that server, restored from a dump: '
            'queue_cluster.add_server, with its name, on another one.');
    END IF;
    FOR s IN SELECT * FROM queue_cluster.server AS o WHERE o.state <> 'removed' AND o.node_id <> queue_cluster.home()
        ORDER BY o.node_id LOOP
        server := s.name;
        IF s.state = 'down' THEN
            problem := 'it is marked down';
            hint := 'Its jobs, keys and schedules wait. Promote its standby or start it, then queue_cluster.mark_up.';
            RETURN NEXT;
            CONTINUE;
        END IF;
        BEGIN
            found := queue_cluster.carry_tell_digest(s.node_id);
        EXCEPTION WHEN internal_error THEN
            problem := 'it cannot be reached: ' || SQLERRM;
            hint := 'If it stays away: queue_cluster.mark_down. '
                    'Then what needs it fails at once, and all else goes on.';
            RETURN NEXT;
            CONTINUE;
        END;
        IF (found ->> 'node_id')::integer <> s.node_id THEN
            problem := format('its node number is %s and not %s', found ->> 'node_id', s.node_id);
            hint := 'The connection leads to another server, or pg_queue.node_id was changed there: set it back.';
            RETURN NEXT;
        ELSIF (found ->> 'identity')::uuid <> s.identity THEN
            problem := 'it is another server than the one that was added';
            hint := 'If it was restored from a dump: queue_cluster.add_server, with its name. '
                    'Else the connection leads to the wrong one.';
            RETURN NEXT;
        END IF;
        IF found ->> 'map' IS DISTINCT FROM own ->> 'map' THEN
            problem := 'it knows another map';
            hint := 'SELECT * FROM queue_cluster.sync().';
            RETURN NEXT;
        END IF;
        IF found ->> 'version' IS DISTINCT FROM own ->> 'version' THEN
            problem := format('it has version %s of pg_queue_cluster, and this one %s', found ->> 'version',
                own ->> 'version');
            hint := 'ALTER EXTENSION pg_queue UPDATE; ALTER EXTENSION pg_queue_cluster UPDATE on the older one. '
                    'Until then calls may fail with 42883.';
            RETURN NEXT;
        END IF;
        IF found -> 'grants' IS DISTINCT FROM own -> 'grants' THEN
            problem := format('its privileges differ: %s',
                (SELECT string_agg(g || CASE WHEN own -> 'grants' ? g THEN ' here' ELSE ' there' END, ', ')
                 FROM (SELECT g FROM jsonb_array_elements_text((own -> 'grants') || (found -> 'grants')) AS g
                       GROUP BY g HAVING count(*) = 1 ORDER BY g LIMIT 5) AS x));
            hint := 'Repeat queue_cluster.grant or revoke: '
                    'where a role has none its calls are refused, and nothing is stolen.';
            RETURN NEXT;
        END IF;
        FOR queue IN SELECT jsonb_object_keys((own -> 'queues') || (found -> 'queues')) ORDER BY 1 LOOP
            IF own -> 'queues' -> queue IS DISTINCT FROM found -> 'queues' -> queue THEN
                problem := format('queue "%s" is %s there', queue,
                    CASE WHEN found -> 'queues' ? queue
                         THEN CASE WHEN own -> 'queues' ? queue THEN 'different' ELSE 'and not here, but' END
                         ELSE 'missing' END);
                hint := 'Repeat queue_cluster.create, alter or drop. '
                        'Of a queue that is to be on one server this is right.';
                RETURN NEXT;
            END IF;
        END LOOP;
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_cluster.check IS
'What is wrong with the cluster as this server sees it: servers that are away, maps that differ, '
'queues that not all have; and what to do. No row: nothing.';
