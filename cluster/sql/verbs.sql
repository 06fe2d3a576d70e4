-- Makes the verbs from templates. A template is the text of the functions of one verb, with placeholders like {verb}.
-- The list at the end of this file says which verb is made from which template.
--
-- An upgrade makes the verbs that are missing, and leaves the others as they are. So its transition must drop all
-- functions of a verb if the template or queue.VERB has changed.

-- Fills a template and executes it. Each object of `texts` maps names of placeholders to texts. The placeholders of the
-- first object are replaced first. So a text may contain placeholders of a later object. The texts are SQL: the caller
-- quotes identifiers and literals. Only the owner may execute this function.
CREATE FUNCTION queue_cluster.make_from(template text, VARIADIC texts jsonb[]) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    filled text := template;
    placeholder record;
BEGIN
    FOR placeholder IN
        SELECT p.key, p.value FROM unnest(texts) WITH ORDINALITY AS t (texts, n), jsonb_each_text(t.texts) AS p
        WHERE p.value IS NOT NULL ORDER BY t.n
    LOOP
        filled := replace(filled, '{' || placeholder.key || '}', placeholder.value);
    END LOOP;
    IF filled ~ '\{[a-z_]+\}' THEN
        RAISE EXCEPTION 'placeholder % of a template has no text', substring(filled FROM '\{[a-z_]+\}');
    END IF;
    EXECUTE filled;
END
$$;

-- Returns the texts of the placeholders that describe queue.VERB:
--
-- verb: the verb, as a part of other names. name: the same as an identifier, in double quotes if it is a keyword
-- declared: the arguments with names, types and defaults
-- named: the arguments with names and types
-- numbered: the arguments with types, named a1, a2 and so on. PL/Proxy would take columns for arguments of their names
-- given: the numbered arguments in a call. further: all but the first of them, each after a comma
-- places: the arguments in a call, as $1, $2 and so on
-- accept_given, away_given: the arguments of accept_VERB or away_VERB in a call
-- shared: the arguments of VERB in a call of server `node`, which gets its part of each limit
-- result, rows: the type of the result, and how many rows the planner expects of a set
-- answer: what stands before a call to return its result. leave: what stands behind, if more code follows
-- columns: what stands between SELECT and a call
CREATE FUNCTION queue_cluster.shape(verb text) RETURNS jsonb
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT to_jsonb(i) || jsonb_build_object(
        'verb', substring(verb FROM '^[a-z_]+$'), 'name', quote_ident(verb),
        'declared', pg_get_function_arguments(p.oid), 'named', i.named || o.outs, 'numbered', i.numbered || o.outs,
        'result', pg_get_function_result(p.oid), 'rows', CASE WHEN p.proretset THEN 'ROWS ' || p.prorows ELSE '' END,
        'answer', CASE WHEN p.proretset THEN 'RETURN QUERY SELECT * FROM'
                       WHEN p.prorettype = 'void'::regtype THEN 'PERFORM'
                       WHEN p.proallargtypes IS NULL THEN 'RETURN'
                       ELSE format('SELECT * INTO %s FROM', o.names) END,
        'leave', CASE WHEN p.proretset THEN 'RETURN;' ELSE '' END,
        'columns', CASE WHEN p.proretset OR p.proallargtypes IS NOT NULL THEN '* FROM ' ELSE '' END)
    FROM pg_proc AS p,
        LATERAL (
            SELECT string_agg(format('%I %s', a.name, a.type), ', ' ORDER BY a.n) AS named,
                string_agg(format('a%s %s', a.n, a.type), ', ' ORDER BY a.n) AS numbered,
                string_agg('a' || a.n, ', ' ORDER BY a.n) AS given,
                coalesce(string_agg(', a' || a.n, '' ORDER BY a.n) FILTER (WHERE a.n > 1), '') AS further,
                string_agg('$' || a.n, ', ' ORDER BY a.n) AS places,
                string_agg(format('%I.%I', 'accept_' || verb, a.name), ', ' ORDER BY a.n) AS accept_given,
                string_agg(format('%I.%I', 'away_' || verb, a.name), ', ' ORDER BY a.n) AS away_given,
                string_agg(format(CASE WHEN a.name IN ('max_running', 'rate_limit', 'max_waiting')
                                       THEN 'queue_cluster.share(%1$I.%2$I, node)::%3$s' ELSE '%1$I.%2$I' END,
                                  verb, a.name, a.type), ', ' ORDER BY a.n) AS shared
            FROM (SELECT t.n, p.proargnames[t.n] AS name, format_type(t.type, NULL) AS type
                  FROM unnest(p.proargtypes::oid[]) WITH ORDINALITY AS t (type, n)) AS a) AS i,
        LATERAL (
            SELECT coalesce(string_agg(format(', OUT %I %s', p.proargnames[n], format_type(p.proallargtypes[n], NULL)),
                                       '' ORDER BY n), '') AS outs,
                string_agg(quote_ident(p.proargnames[n]), ', ' ORDER BY n) AS names
            FROM generate_subscripts(p.proallargtypes, 1) AS n WHERE p.proargmodes[n] = 'o') AS o
    WHERE p.oid = format('queue.%I', verb)::regproc
$$;

DO $each_verb$
DECLARE
    made record;

    -- Each verb has these functions. remote_VERB(node, …) calls {target} on that server. It raises 08xxx if the
    -- connection is lost.
    remote CONSTANT text := $template$
        CREATE FUNCTION queue_cluster.carry_{verb}(node integer, {numbered}) RETURNS {result} LANGUAGE plproxy AS
            'CONNECT queue_cluster.conninfo(node); SELECT {columns}{target}({given});';

        CREATE FUNCTION queue_cluster.remote_{verb}(node integer, {numbered}) RETURNS {result}
            LANGUAGE plpgsql AS $body$
        #variable_conflict use_column
        BEGIN
            {answer} queue_cluster.carry_{verb}(node, {given});
        EXCEPTION WHEN internal_error THEN
            PERFORM queue_cluster.rethrow(SQLERRM);
        END $body$;
    $template$;

    -- The first argument is the id of a job or an attempt. The call runs at home if the id is of this server, or of
    -- none.
    by_id CONSTANT text := $template$
        CREATE FUNCTION queue_cluster.away_{verb}({numbered}) RETURNS {result}
            LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $body$
        #variable_conflict use_column
        BEGIN
            IF queue_cluster.is_known(queue_cluster.node_of(a1)) THEN
                {answer} queue_cluster.remote_{verb}(queue_cluster.node_of(a1), {given});
            ELSE
                {answer} queue.{name}({given});
            END IF;
        END $body$;

        CREATE FUNCTION queue_cluster.{name}({declared}) RETURNS {result}
            LANGUAGE c {rows} AS 'MODULE_PATHNAME', 'pg_queue_cluster_by_id';
    $template$;

    -- The first argument is an array of ids of attempts or jobs. Each server gets its ids in one call.
    by_ids CONSTANT text := $template$
        CREATE FUNCTION queue_cluster.away_{verb}({numbered}) RETURNS {result}
            LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $body$
        #variable_conflict use_column
        DECLARE
            own integer := queue_cluster.home();
            part record;
        BEGIN
            -- Those of no server go to this one, which says what is wrong with them, before any other is called.
            FOR part IN
                SELECT n.node, array_agg(n.i) AS ids
                FROM (SELECT i, CASE WHEN queue_cluster.is_known(queue_cluster.node_of(i))
                                     THEN queue_cluster.node_of(i) ELSE own END AS node
                      FROM unnest(a1) AS i) AS n
                GROUP BY n.node ORDER BY n.node <> own, n.node
            LOOP
                IF part.node = own THEN
                    {answer} queue.{name}(part.ids{further});
                ELSE
                    {answer} queue_cluster.remote_{verb}(part.node, part.ids{further});
                END IF;
            END LOOP;
        END $body$;

        CREATE FUNCTION queue_cluster.{name}({declared}) RETURNS {result}
            LANGUAGE c {rows} AS 'MODULE_PATHNAME', 'pg_queue_cluster_by_ids';
    $template$;

    -- accept_VERB enqueues on this server if the key is at home here. away_VERB is called if the job has a key, a flow
    -- or predecessors, and sends the call to their server.
    keyed CONSTANT text := $template$
        CREATE FUNCTION queue_cluster.accept_{verb}({named}) RETURNS {result} LANGUAGE plpgsql AS $body$
        #variable_conflict use_column
        DECLARE
            key CONSTANT text := coalesce(accept_{verb}.group_key, accept_{verb}.unique_key);
        BEGIN
            IF accept_{verb}.group_key IS NOT NULL
               AND (accept_{verb}.version IS NOT NULL OR accept_{verb}.unique_for IS NOT NULL) THEN
                RAISE EXCEPTION 'a job of a group remembers no key' USING ERRCODE = '0A000',
                    DETAIL = 'A key with version or unique_for is remembered where the key belongs, '
                             'and the job is where its group is.',
                    HINT = 'Leave out group_key, or version and unique_for.';
            END IF;
            IF key IS NOT NULL
               AND (queue_cluster.try_hold(key) OPERATOR(pg_catalog.=) queue_cluster.home()) IS NOT TRUE THEN
                PERFORM queue_cluster.hold(key);
            END IF;
            {answer} queue.{name}({accept_given});
        END $body$;

        CREATE FUNCTION queue_cluster.away_{verb}({named}) RETURNS {result} LANGUAGE plpgsql AS $body$
        #variable_conflict use_column
        DECLARE
            node integer;
        BEGIN
            IF away_{verb}.flow IS NULL AND away_{verb}.after IS NULL
               AND (away_{verb}.group_key IS NULL
                    OR away_{verb}.version IS NULL AND away_{verb}.unique_for IS NULL) THEN
                node := queue_cluster.try_hold(coalesce(away_{verb}.group_key, away_{verb}.unique_key));
                IF node OPERATOR(pg_catalog.=) queue_cluster.home() THEN
                    {answer} queue.{name}({away_given});
                    {leave}
                END IF;
            END IF;
            IF node IS NULL THEN
                node := queue_cluster.target(coalesce(away_{verb}.group_key, away_{verb}.unique_key),
                                             away_{verb}.flow, away_{verb}.after);
            END IF;
            IF node OPERATOR(pg_catalog.=) queue_cluster.home() THEN
                {answer} queue_cluster.accept_{verb}({away_given});
            ELSE
                {answer} queue_cluster.remote_{verb}(node, {away_given});
            END IF;
        END $body$;

        CREATE FUNCTION queue_cluster.{name}({declared}) RETURNS {result}
            LANGUAGE c {rows} AS 'MODULE_PATHNAME', '{symbol}';
    $template$;

    -- As in queue.*, with the argument `steal`. The call is passed on to away_VERB only if it finds nothing at home, or
    -- completes jobs of other servers.
    claim CONSTANT text := $template$
        CREATE FUNCTION queue_cluster.away_{verb}(queues {type}, max_jobs integer, wait interval, lease interval,
                stages {type}, worker_name text, disconnect interval, completed bigint[], results json,
                linger interval, steal boolean)
            RETURNS {result} LANGUAGE plpgsql ROWS 10 SET search_path = pg_catalog, pg_temp AS $body$
        #variable_conflict use_variable
        DECLARE
            until CONSTANT timestamptz := queue_cluster.deadline(wait);
            left_to_wait interval;
            node integer;
        BEGIN
            IF EXISTS (SELECT FROM unnest(completed) AS i WHERE NOT queue_cluster.is_home(i)) THEN
                -- Without the parentheses PL/pgSQL would end the condition at the first THEN.
                IF results IS NOT NULL AND cardinality(completed) <>
                       (CASE json_typeof(results) WHEN 'array' THEN json_array_length(results) ELSE 0 END) THEN
                    -- The verb raises the error.
                    RETURN QUERY SELECT * FROM queue.{name}(queues, completed => completed, results => results);
                END IF;
                RETURN QUERY SELECT * FROM queue_cluster.complete_away(completed, results);
                SELECT coalesce(array_agg(i.id ORDER BY i.n), '{}'),
                       CASE WHEN results IS NOT NULL
                            THEN coalesce(json_agg(results -> (i.n - 1)::integer ORDER BY i.n), '[]') END
                INTO completed, results
                FROM unnest(completed) WITH ORDINALITY AS i (id, n) WHERE queue_cluster.is_home(i.id);
                RETURN QUERY SELECT * FROM queue_cluster.{name}(queues, max_jobs, wait, lease, stages, worker_name,
                    disconnect, completed, results, linger, steal);
                RETURN;
            END IF;
            LOOP
                FOR node IN SELECT n FROM queue_cluster.steals_from() AS n LOOP
                    BEGIN
                        RETURN QUERY SELECT * FROM queue_cluster.remote_{verb}(node, queues, max_jobs, '0', lease,
                            stages, worker_name, NULL, NULL, NULL, NULL);
                        IF FOUND THEN
                            -- Where there is too much there may be more: thieves that go by chance alone find few
                            -- servers out of many.
                            PERFORM set_config('pg_queue_cluster.found_at', node::text, false);
                            RETURN;
                        END IF;
                    EXCEPTION
                        -- A server that is away, or has no such queue or no such role (yet), has nothing to steal: work
                        -- at home goes on. What is wrong is said by queue_cluster.check.
                        WHEN connection_exception OR sqlclient_unable_to_establish_sqlconnection OR connection_failure
                             OR undefined_object OR insufficient_privilege OR undefined_function OR admin_shutdown
                             OR crash_shutdown OR cannot_connect_now THEN
                            NULL;
                    END;
                END LOOP;
                left_to_wait := until - clock_timestamp();
                IF left_to_wait IS NULL OR left_to_wait <= '0' THEN
                    RETURN;
                END IF;
                RETURN QUERY SELECT * FROM queue.{name}(queues, max_jobs, least(left_to_wait, queue_cluster.nap()),
                    lease, stages, worker_name, disconnect, NULL);
                IF FOUND THEN
                    RETURN;
                END IF;
            END LOOP;
        END $body$;

        CREATE FUNCTION queue_cluster.{name}({declared}, steal boolean DEFAULT true) RETURNS {result}
            LANGUAGE c {rows} AS 'MODULE_PATHNAME', 'pg_queue_cluster_claim';
    $template$;

    -- The verb is for all servers. It runs on this server first, in the caller's transaction. The SQLSTATE {settled}
    -- means that a server has the object already. It is an error only if all servers raise it. Any other error is
    -- raised when all servers were asked.
    everywhere CONSTANT text := $template$
        CREATE FUNCTION queue_cluster.{name}({declared}) RETURNS {result}
            LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $body$
        DECLARE
            node integer;
            own CONSTANT integer := queue_cluster.home();
            answer bigint;
            total bigint;
            asked integer := 0;
            settled text;
            said text[] := '{}';
            code text;
        BEGIN
            FOR node IN SELECT own UNION ALL
                SELECT s.node_id FROM queue_cluster.server AS s WHERE s.node_id <> own AND s.state <> 'removed'
            LOOP
                asked := asked + 1;
                BEGIN
                    IF node = own THEN
                        {take} queue.{name}({shared});
                    ELSE
                        {take} queue_cluster.remote_{verb}(node, {shared});
                    END IF;
                    {sum}
                    said := said || format('%s: done', queue_cluster.name_of(node));
                EXCEPTION WHEN OTHERS THEN
                    -- What is wrong with the call itself is wrong everywhere.
                    IF node = own AND SQLSTATE <> '{settled}' THEN
                        RAISE;
                    ELSIF SQLSTATE = '{settled}' THEN
                        settled := coalesce(settled, SQLERRM);
                        asked := asked - 1;
                    ELSE
                        code := coalesce(code, SQLSTATE);
                    END IF;
                    said := said || format('%s: %s', queue_cluster.name_of(node), SQLERRM);
                END;
            END LOOP;
            IF code IS NOT NULL THEN
                RAISE EXCEPTION 'not all servers have done it' USING ERRCODE = code,
                    DETAIL = array_to_string(said, E'\n'),
                    HINT = 'Repeat the call until all have: it does no harm where it is done.';
            ELSIF asked = 0 AND settled IS NOT NULL THEN
                RAISE EXCEPTION '%', settled USING ERRCODE = '{settled}';
            END IF;
            {end}
        END $body$;
    $template$;
    -- A verb for all servers returns nothing, or the sum of their answers.
    silent CONSTANT jsonb := '{"settled": "QQ000", "take": "PERFORM", "sum": "", "end": ""}';
    counted CONSTANT jsonb := '{"settled": "QQ000", "take": "answer :=", "end": "RETURN total;",
                                "sum": "total := coalesce(total, 0) + answer;"}';

    -- A schedule is on the server that owns the slot of its name, the first argument.
    by_name CONSTANT text := $template$
        CREATE FUNCTION queue_cluster.{name}({declared}) RETURNS {result}
            LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $body$
        DECLARE
            node CONSTANT integer := queue_cluster.target($1, NULL, NULL);
        BEGIN
            {check}
            IF node = queue_cluster.home() THEN
                PERFORM queue_cluster.hold($1);
                {answer} queue.{name}({places});
            ELSE
                {answer} queue_cluster.remote_{verb}(node, {places});
            END IF;
        END $body$;
    $template$;
    -- The check of `schedule`.
    same_server CONSTANT text := $check$
            IF queue_cluster.target(schedule.group_key, NULL, NULL) <> node AND schedule.group_key IS NOT NULL THEN
                RAISE EXCEPTION 'the schedule and its group are on different servers' USING ERRCODE = '0A000',
                    HINT = 'Give the schedule a name whose owner is that of the group: queue_cluster.owner.';
            END IF;$check$;

    -- The pages of one server follow those of the other. A position names its server.
    search CONSTANT text := $template$
        CREATE FUNCTION queue_cluster.search({declared}) RETURNS {result}
            LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $body$
        #variable_conflict use_variable
        DECLARE
            nodes CONSTANT integer[] := ARRAY(SELECT queue_cluster.reachable());
            place integer := 1;
            at jsonb;
            left_over integer := search.max_jobs;
            r record;
        BEGIN
            IF search.beyond IS NOT NULL THEN
                IF jsonb_typeof(search.beyond -> 'node') IS DISTINCT FROM 'number' THEN
                    RAISE EXCEPTION 'not a position of queue_cluster.search' USING ERRCODE = '22023';
                END IF;
                -- A server that is marked down meanwhile is passed over.
                place := coalesce(array_position(nodes, (search.beyond ->> 'node')::integer),
                                  (SELECT count(*)::integer + 1 FROM unnest(nodes) AS n
                                   WHERE n < (search.beyond ->> 'node')::integer));
                at := nullif(search.beyond -> 'at', 'null');
            END IF;
            WHILE place <= cardinality(nodes) LOOP
                FOR r IN EXECUTE CASE WHEN nodes[place] = queue_cluster.home()
                                      THEN 'SELECT * FROM queue.search({places})'
                                      ELSE format('SELECT * FROM queue_cluster.remote_search(%s, {places})',
                                                  nodes[place]) END
                    USING search.queue_name, search.filter, search.states, search.stage, at, left_over, search.max_rows
                LOOP
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
        END $body$;
    $template$;

    -- The other server executes accept_VERB in place of queue.VERB.
    to_accept CONSTANT jsonb := '{"target": "queue_cluster.accept_{verb}"}';
BEGIN
    FOR made IN
        SELECT v.verb, l.template, l.texts
        FROM (VALUES
            ('{complete,fail,release,extend,progress,charge,advance,suspend,inputs,step,step_done,cancel,reprioritize,'
             'reschedule,forget,job,job_attempts,members,job_steps,seal,resolve,reject}'::text[], by_id, '{}'::jsonb),
            ('{complete_many,fail_many,release_many,extend_many,cancel_many,reprioritize_many,reschedule_many}',
             by_ids, '{}'),
            ('{enqueue,enqueue_many}', keyed, to_accept || '{"symbol": "pg_queue_cluster_enqueue"}'),
            ('{enqueue_sql,enqueue_flow}', keyed, to_accept || '{"symbol": "pg_queue_cluster_enqueue_flow"}'),
            ('{publish,publish_many}', keyed, to_accept || '{"symbol": "pg_queue_cluster_publish"}'),
            ('{claim}', claim, '{"type": "text"}'),
            ('{claim_any}', claim, '{"type": "text[]"}'),
            ('{create,create_topic}', everywhere, silent || '{"settled": "42710"}'),
            ('{drop}', everywhere, silent || '{"settled": "42704"}'),
            ('{alter,pause,resume,grant,revoke}', everywhere, silent),
            ('{purge,unbind}', everywhere, counted),
            ('{bind}', everywhere, counted || '{"sum": "total := coalesce(total, answer);"}'),
            ('{schedule}', by_name, jsonb_build_object('check', same_server)),
            ('{unschedule,pause_schedule,resume_schedule,run_schedule,upcoming}', by_name, '{"check": ""}'),
            ('{search}', search, '{}'),
            -- The functions of these verbs themselves are written by hand (produce.sql, consume.sql).
            ('{enqueue_batch,retry}', '', to_accept),
            ('{end_batch}', '', '{}')) AS l (verbs, template, texts), unnest(l.verbs) AS v (verb)
        WHERE to_regproc('queue_cluster.remote_' || v.verb) IS NULL
    LOOP
        PERFORM queue_cluster.make_from(remote || made.template, '{"target": "queue.{name}"}' || made.texts,
                                        queue_cluster.shape(made.verb));
    END LOOP;
END
$each_verb$;
