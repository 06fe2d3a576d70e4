-- Calls of other servers. PL/Proxy carries them, as the calling role, and each is a transaction of its own there.
--
-- For each verb of queue.* there is a function of the same signature here. For most verbs it is in C, and costs nothing
-- at home. If the call concerns only this server, it passes the call on to queue.VERB, else to away_VERB. That decides
-- which server gets the call. A function remote_VERB carries it there. All are made from the catalogue of queue.*.

CREATE FUNCTION queue_cluster.node_of(id bigint) RETURNS integer IMMUTABLE PARALLEL SAFE LANGUAGE sql
    RETURN ((id >> 46) & 127)::integer;
COMMENT ON FUNCTION queue_cluster.node_of IS 'The number of the server that made the id of a job or an attempt.';

CREATE FUNCTION queue_cluster.is_home(id bigint) RETURNS boolean STABLE PARALLEL SAFE LANGUAGE c
    AS 'MODULE_PATHNAME', 'pg_queue_cluster_is_home';
COMMENT ON FUNCTION queue_cluster.is_home IS 'True if this server made the id.';

CREATE FUNCTION queue_cluster.is_known(node_id integer) RETURNS boolean STABLE LANGUAGE sql
    RETURN EXISTS (SELECT FROM queue_cluster.server AS s WHERE s.node_id = is_known.node_id);
COMMENT ON FUNCTION queue_cluster.is_known IS 'True if this server exists or was removed.';

CREATE FUNCTION queue_cluster.rethrow(message text)
    RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- PL/Proxy has one SQLSTATE for all that is not an answer: of connections that fail, and of those that break.
    IF message ~ '^PL/Proxy function .*(PQconnect|connection|server closed|PQ|timeout)' THEN
        RAISE EXCEPTION '%', message USING ERRCODE = CASE WHEN message ~ 'PQconnect' THEN '08001' ELSE '08006' END,
            DETAIL = 'A call that had reached the server may have counted there.',
            HINT = 'A server that stays away is to be marked: queue_cluster.mark_down.';
    END IF;
    RAISE EXCEPTION '%', message USING ERRCODE = 'internal_error';
END
$$;
COMMENT ON FUNCTION queue_cluster.rethrow IS
    'Raises an error of PL/Proxy as what it is: 08001 or 08006 for a lost connection.';

-- Returns how a function of queue.* is declared and called. The functions below are made from it. `arguments` and
-- `given` name the arguments a1, a2 and so on, because PL/Proxy would take columns of the same name for them. `answer`
-- is a pattern of the statement that returns the result of a call.
CREATE FUNCTION queue_cluster.shape(
    verb regproc, OUT declared text, OUT result text, OUT arguments text, OUT given text, OUT outs text,
    OUT answer text, OUT is_set boolean, OUT is_void boolean, OUT is_row boolean, OUT rows text
) LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT pg_get_function_arguments(p.oid), pg_get_function_result(p.oid),
        (SELECT string_agg(format('a%s %s', n, format_type(t, NULL)), ', ' ORDER BY n)
         FROM unnest(p.proargtypes::oid[]) WITH ORDINALITY AS a (t, n)),
        (SELECT string_agg('a' || n, ', ' ORDER BY n) FROM generate_series(1, p.pronargs) AS n),
        (SELECT coalesce(string_agg(
                    format(', OUT %I %s', p.proargnames[n], format_type(p.proallargtypes[n], NULL)), '' ORDER BY n), '')
         FROM generate_subscripts(p.proallargtypes, 1) AS n WHERE p.proargmodes[n] = 'o'),
        CASE WHEN p.proretset THEN 'RETURN QUERY SELECT * FROM %s' WHEN p.prorettype = 'void'::regtype THEN 'PERFORM %s'
             WHEN p.proallargtypes IS NULL THEN 'RETURN %s'
             ELSE 'SELECT * INTO ' || (SELECT string_agg(quote_ident(p.proargnames[n]), ', ' ORDER BY n)
                  FROM generate_subscripts(p.proallargtypes, 1) AS n WHERE p.proargmodes[n] = 'o') || ' FROM %s' END,
        p.proretset, p.prorettype = 'void'::regtype, p.proretset OR p.proallargtypes IS NOT NULL,
        CASE WHEN p.proretset THEN 'ROWS ' || p.prorows ELSE '' END
    FROM pg_proc AS p WHERE p.oid = verb
$$;

-- VERB itself, in C.
CREATE FUNCTION queue_cluster.make_front(verb text, symbol text, further text DEFAULT '') RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $make$
DECLARE
    s record;
BEGIN
    s := queue_cluster.shape(format('queue.%I', verb)::regproc);
    EXECUTE format('CREATE FUNCTION queue_cluster.%I(%s%s) RETURNS %s LANGUAGE c %s AS %L, %L',
        verb, s.declared, further, s.result, s.rows, 'MODULE_PATHNAME', symbol);
END
$make$;

-- remote_VERB(node, …): the call of `target`, by default queue.VERB, on that server; lost connections are 08xxx.
CREATE FUNCTION queue_cluster.make_remote(verb text, target text DEFAULT NULL) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $make$
DECLARE
    s record;
    result text;
BEGIN
    s := queue_cluster.shape(format('queue.%I', verb)::regproc);
    result := s.result;
    EXECUTE format($f$CREATE FUNCTION queue_cluster.%1$I(node integer, %2$s%3$s) RETURNS %4$s LANGUAGE plproxy AS
        'CONNECT queue_cluster.conninfo(node); SELECT %7$s%5$s(%6$s);'$f$,
        'carry_' || verb, s.arguments, s.outs, s.result, coalesce(target, format('queue.%I', verb)), s.given,
        CASE WHEN s.is_row THEN '* FROM ' ELSE '' END);
    EXECUTE format($f$CREATE FUNCTION queue_cluster.%1$I(node integer, %2$s%3$s) RETURNS %4$s LANGUAGE plpgsql AS $body$
        #variable_conflict use_column
        BEGIN
            %5$s;
        EXCEPTION WHEN internal_error THEN
            PERFORM queue_cluster.rethrow(SQLERRM);
        END $body$ $f$,
        'remote_' || verb, s.arguments, s.outs, s.result,
        format(s.answer, format('queue_cluster.%I(node, %s)', 'carry_' || verb, s.given)));
END
$make$;

-- VERB, for verbs whose first argument is the id of a job or an attempt. It runs at home if the id is of this server,
-- or of none.
CREATE FUNCTION queue_cluster.make_by_id(verb text) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $make$
DECLARE
    s record;
BEGIN
    PERFORM queue_cluster.make_remote(verb);
    s := queue_cluster.shape(format('queue.%I', verb)::regproc);
    EXECUTE format($f$CREATE FUNCTION queue_cluster.%1$I(%2$s%3$s) RETURNS %4$s LANGUAGE plpgsql AS $body$
        #variable_conflict use_column
        BEGIN
            IF queue_cluster.is_known(queue_cluster.node_of(a1)) THEN
                %5$s;
            ELSE
                %6$s;
            END IF;
        END $body$ SET search_path = pg_catalog, pg_temp$f$,
        'away_' || verb, s.arguments, s.outs, s.result,
        format(s.answer, format('queue_cluster.%I(queue_cluster.node_of(a1), %s)', 'remote_' || verb, s.given)),
        format(s.answer, format('queue.%I(%s)', verb, s.given)));
    PERFORM queue_cluster.make_front(verb, 'pg_queue_cluster_by_id');
END
$make$;

-- VERB, for verbs whose first argument is an array of ids of attempts or jobs. Each server gets its ids in one call.
CREATE FUNCTION queue_cluster.make_by_ids(verb text) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $make$
DECLARE
    s record;
    further text;
BEGIN
    PERFORM queue_cluster.make_remote(verb);
    s := queue_cluster.shape(format('queue.%I', verb)::regproc);
    further := substr(s.given, length('a1') + 1);
    EXECUTE format($f$CREATE FUNCTION queue_cluster.%1$I(%2$s)
        RETURNS %3$s LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $body$
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
                    RETURN QUERY SELECT * FROM queue.%4$I(part.ids%5$s);
                ELSE
                    RETURN QUERY SELECT * FROM queue_cluster.%6$I(part.node, part.ids%5$s);
                END IF;
            END LOOP;
        END $body$ $f$,
        'away_' || verb, s.arguments, s.result, verb, further, 'remote_' || verb);
    PERFORM queue_cluster.make_front(verb, 'pg_queue_cluster_by_ids');
END
$make$;

-- Existing functions stay: an upgrade drops those that change.
DO $each_verb$
DECLARE
    verb text;
BEGIN
    FOREACH verb IN ARRAY ARRAY['complete', 'fail', 'release', 'extend', 'progress', 'advance', 'suspend', 'inputs',
        'step', 'step_done', 'cancel', 'reprioritize', 'reschedule', 'forget', 'job', 'job_attempts', 'members',
        'job_steps', 'seal', 'resolve', 'reject'] LOOP
        IF to_regproc('queue_cluster.' || verb) IS NULL THEN
            PERFORM queue_cluster.make_by_id(verb);
        END IF;
    END LOOP;
    FOREACH verb IN ARRAY ARRAY['complete_many', 'fail_many', 'release_many', 'extend_many', 'cancel_many',
        'reprioritize_many', 'reschedule_many'] LOOP
        IF to_regproc('queue_cluster.' || verb) IS NULL THEN
            PERFORM queue_cluster.make_by_ids(verb);
        END IF;
    END LOOP;
END
$each_verb$;
