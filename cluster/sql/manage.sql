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

-- Makes VERB for all servers. It runs on this server first, in the caller's transaction. `settled` is the SQLSTATE that
-- means that a server has the object already. It is an error only if all servers raise it. Any other error is raised
-- when all servers were asked. Long lines of the text are concatenated with ||, so that the functions equal the
-- released ones to the letter, and an upgrade leaves them alone.
CREATE FUNCTION queue_cluster.make_everywhere(verb text, settled text DEFAULT 'QQ000') RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $make$
DECLARE
    s record;
    shared text;
    given text;
BEGIN
    PERFORM queue_cluster.make_remote(verb);
    s := queue_cluster.shape(format('queue.%I', verb)::regproc);
    -- Limits are divided.
    SELECT string_agg(CASE WHEN verb IN ('create', 'alter')
                                AND p.proargnames[n] IN ('max_running', 'rate_limit', 'max_waiting')
                           THEN format('queue_cluster.share(%1$I.%2$I, node)::%3$s', verb, p.proargnames[n],
                                       format_type(p.proargtypes[n - 1], NULL))
                           ELSE format('%1$I.%2$I', verb, p.proargnames[n]) END, ', ' ORDER BY n)
    INTO given FROM pg_proc AS p, generate_series(1, p.pronargs) AS n WHERE p.oid = format('queue.%I', verb)::regproc;
    EXECUTE format($f$CREATE FUNCTION queue_cluster.%1$I(%2$s)
        RETURNS %3$s LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $body$
        DECLARE
            node integer;
            own CONSTANT integer := queue_cluster.home();
            answer %4$s;
            total %4$s;
            asked integer := 0;
            settled text;
            said text[] := '{}';
            code text;
        BEGIN
            FOR node IN SELECT own UNION ALL SELECT s.node_id FROM queue_cluster.server AS s $f$ ||
                $f$WHERE s.node_id <> own AND s.state <> 'removed' LOOP
                asked := asked + 1;
                BEGIN
                    IF node = own THEN
                        %5$s queue.%1$I(%6$s);
                    ELSE
                        %5$s queue_cluster.%7$I(node, %6$s);
                    END IF;
                    %8$s
                    said := said || format('%%s: done', queue_cluster.name_of(node));
                EXCEPTION WHEN OTHERS THEN
                    -- What is wrong with the call itself is wrong everywhere.
                    IF node = own AND SQLSTATE <> %9$L THEN
                        RAISE;
                    ELSIF SQLSTATE = %9$L THEN
                        settled := coalesce(settled, SQLERRM);
                        asked := asked - 1;
                    ELSE
                        code := coalesce(code, SQLSTATE);
                    END IF;
                    said := said || format('%%s: %%s', queue_cluster.name_of(node), SQLERRM);
                END;
            END LOOP;
            IF code IS NOT NULL THEN
                RAISE EXCEPTION 'not all servers have done it' USING ERRCODE = code, $f$ ||
                    $f$DETAIL = array_to_string(said, E'\n'),
                    HINT = 'Repeat the call until all have: it does no harm where it is done.';
            ELSIF asked = 0 AND settled IS NOT NULL THEN
                RAISE EXCEPTION '%%', settled USING ERRCODE = %9$L;
            END IF;
            %10$s
        END $body$ $f$, verb, s.declared, s.result,
        CASE WHEN s.is_void THEN 'bigint' ELSE s.result END,
        CASE WHEN s.is_void THEN 'PERFORM' ELSE 'answer :=' END, given, 'remote_' || verb,
        CASE WHEN s.is_void THEN '' WHEN verb = 'bind' THEN 'total := coalesce(total, answer);'
            ELSE 'total := coalesce(total, 0) + answer;' END,
        settled, CASE WHEN s.is_void THEN '' ELSE 'RETURN total;' END);
END
$make$;

CREATE FUNCTION queue_cluster.name_of(node integer) RETURNS text STABLE LANGUAGE sql
    RETURN coalesce((SELECT s.name FROM queue_cluster.server AS s WHERE s.node_id = node), 'this server');

SELECT queue_cluster.make_everywhere('create', '42710'), queue_cluster.make_everywhere('drop', '42704'),
       queue_cluster.make_everywhere('create_topic', '42710');
SELECT queue_cluster.make_everywhere(v) FROM unnest('{alter,pause,resume,purge,grant,revoke,bind,unbind}'::text[]) AS v;

-- A schedule is on the server that owns the slot of its name.
CREATE FUNCTION queue_cluster.make_by_name(verb text)
    RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $make$
DECLARE
    s record;
    given text;
BEGIN
    PERFORM queue_cluster.make_remote(verb);
    s := queue_cluster.shape(format('queue.%I', verb)::regproc);
    given := regexp_replace(s.given, 'a(\d+)', '$\1', 'g');
    EXECUTE format($f$CREATE FUNCTION queue_cluster.%1$I(%2$s)
        RETURNS %3$s LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $body$
        DECLARE
            node CONSTANT integer := queue_cluster.target($1, NULL, NULL);
        BEGIN
            %6$s
            IF node = queue_cluster.home() THEN
                PERFORM queue_cluster.hold($1);
                %4$s;
            ELSE
                %5$s;
            END IF;
        END $body$ $f$, verb, s.declared, s.result,
        format(s.answer, format('queue.%I(%s)', verb, given)),
        format(s.answer, format('queue_cluster.%I(node, %s)', 'remote_' || verb, given)),
        CASE verb WHEN 'schedule' THEN $x$
            IF queue_cluster.target(schedule.group_key, NULL, NULL) <> node AND schedule.group_key IS NOT NULL THEN
                RAISE EXCEPTION 'the schedule and its group are on different servers' USING ERRCODE = '0A000',
                    HINT = 'Give the schedule a name whose owner is that of the group: queue_cluster.owner.';
            END IF;$x$ ELSE '' END);
END
$make$;
SELECT queue_cluster.make_by_name(v)
    FROM unnest('{schedule,unschedule,pause_schedule,resume_schedule,run_schedule,upcoming}'::text[]) AS v;

-- Makes VERB for pages over all servers, one after the other. A position names its server. The text has || as above.
CREATE FUNCTION queue_cluster.make_paged(verb text)
    RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $make$
DECLARE
    s record;
    given text;
BEGIN
    PERFORM queue_cluster.make_remote(verb);
    s := queue_cluster.shape(format('queue.%I', verb)::regproc);
    SELECT string_agg(CASE p.proargnames[n] WHEN 'beyond' THEN 'at' WHEN 'max_jobs' THEN 'left_over'
                           ELSE format('%I.%I', verb, p.proargnames[n]) END, ', ' ORDER BY n)
    INTO given FROM pg_proc AS p, generate_series(1, p.pronargs) AS n WHERE p.oid = format('queue.%I', verb)::regproc;
    EXECUTE format($f$CREATE FUNCTION queue_cluster.%1$I(%2$s)
        RETURNS %3$s LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $body$
        #variable_conflict use_variable
        DECLARE
            nodes CONSTANT integer[] := ARRAY(SELECT queue_cluster.reachable());
            place integer := 1;
            at jsonb;
            left_over integer := %1$I.max_jobs;
            r record;
        BEGIN
            IF %1$I.beyond IS NOT NULL THEN
                IF jsonb_typeof(%1$I.beyond -> 'node') IS DISTINCT FROM 'number' THEN
                    RAISE EXCEPTION 'not a position of queue_cluster.%1$s' USING ERRCODE = '22023';
                END IF;
                -- A server that is marked down meanwhile is passed over.
                place := coalesce(array_position(nodes, (%1$I.beyond ->> 'node')::integer),
                                  (SELECT count(*)::integer + 1 FROM unnest(nodes) AS n $f$ ||
                                  $f$WHERE n < (%1$I.beyond ->> 'node')::integer));
                at := nullif(%1$I.beyond -> 'at', 'null');
            END IF;
            WHILE place <= cardinality(nodes) LOOP
                FOR r IN EXECUTE CASE WHEN nodes[place] = queue_cluster.home() THEN %5$L $f$ ||
                    $f$ELSE format(%6$L, nodes[place]) END USING %4$s LOOP
                    left_over := left_over - (r.job_id IS NOT NULL)::integer;
                    -- The last of a page that is full says where the next one begins.
                    IF r.here IS NOT NULL THEN
                        r.here := jsonb_build_object('node', nodes[place], 'at', r.here);
                    ELSIF left_over <= 0 AND place < cardinality(nodes) THEN
                        r.here := jsonb_build_object('node', nodes[place + 1], 'at', NULL);
                    END IF;
                    RETURN NEXT r;
                    IF r.job_id IS NULL THEN
                        RETURN;
                    END IF;
                END LOOP;
                IF left_over <= 0 THEN
                    RETURN;
                END IF;
                place := place + 1;
                at := NULL;
            END LOOP;
        END $body$ $f$, verb, s.declared, s.result, given,
        format('SELECT * FROM queue.%I(%s)', verb,
            (SELECT string_agg('$' || n, ', ' ORDER BY n) FROM pg_proc AS p, generate_series(1, p.pronargs) AS n
             WHERE p.oid = format('queue.%I', verb)::regproc)),
        format('SELECT * FROM queue_cluster.%I(%%s, %s)', 'remote_' || verb,
            (SELECT string_agg('$' || n, ', ' ORDER BY n) FROM pg_proc AS p, generate_series(1, p.pronargs) AS n
             WHERE p.oid = format('queue.%I', verb)::regproc)));
END
$make$;

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

DO $each_page$
BEGIN
    IF to_regproc('queue_cluster.search') IS NULL THEN
        PERFORM queue_cluster.make_paged('search');
    END IF;
END
$each_page$;
