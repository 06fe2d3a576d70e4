-- Queues, roles and topics are on all servers, a schedule is on one. A call for all servers goes to each in turn, and
-- can be repeated until it has succeeded on all.

CREATE FUNCTION queue_cluster.share(total bigint, node integer)
    RETURNS bigint STABLE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    servers integer;
    place integer;
BEGIN
    SELECT count(*), count(*) FILTER (WHERE s.node_id < node) INTO servers, place
    FROM queue_cluster.server AS s WHERE s.state <> 'removed';
    IF total > 0 AND total < servers THEN
        RAISE EXCEPTION 'a limit of % cannot be shared by % servers', total, servers USING ERRCODE = '22023',
            HINT = 'Each server has its part of a limit. '
                   'Keep such a queue on one server: make it there with queue.create.';
    END IF;
    RETURN CASE WHEN total > 0 AND servers > 0 THEN total / servers + (place < total % servers)::integer ELSE total END;
END
$$;
COMMENT ON FUNCTION queue_cluster.share IS
    'A server''s part of a limit. The parts add up to the limit. '
    'Errors: 22023 the limit is smaller than the number of servers.';

CREATE FUNCTION queue_cluster.name_of(node integer) RETURNS text STABLE LANGUAGE sql
    RETURN coalesce((SELECT s.name FROM queue_cluster.server AS s WHERE s.node_id = node), 'this server');

CREATE FUNCTION queue_cluster.reachable()
    RETURNS SETOF integer STABLE ROWS 4 LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    away text;
BEGIN
    SELECT string_agg(s.name, ', ') INTO away FROM queue_cluster.server AS s WHERE s.state = 'down';
    IF away IS NOT NULL THEN
        RAISE NOTICE 'what is on % is left out: marked down', away;
    END IF;
    RETURN QUERY SELECT n FROM (SELECT queue_cluster.home() AS n UNION SELECT queue_cluster.others()) AS all_nodes
        ORDER BY n;
END
$$;
COMMENT ON FUNCTION queue_cluster.reachable IS
    'The servers that are not marked down, including this one. A notice names the others.';
