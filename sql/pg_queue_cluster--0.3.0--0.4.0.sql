\echo Use "ALTER EXTENSION pg_queue_cluster UPDATE TO '0.4.0'" to load this file. \quit

-- Made by `make generate` from cluster/sql and the transition: do not edit.

SET LOCAL search_path TO pg_catalog, pg_temp;

ALTER VIEW queue_cluster.jobs RENAME COLUMN started_at TO claimed_at;

-- What is made of functions of schema queue is made anew where these have changed.
DO $changed$
DECLARE
    made regprocedure;
BEGIN
    FOR made IN
        SELECT p.oid FROM pg_proc AS p
        WHERE p.pronamespace = 'queue_cluster'::regnamespace
          AND regexp_replace(p.proname, '^(away|remote|carry)_', '')
              = ANY ('{complete_many,fail_many,release_many,extend_many,cancel_many,reprioritize_many,search,suspend}')
    LOOP
        EXECUTE format('DROP FUNCTION %s', made);
    END LOOP;
END
$changed$;
DROP FUNCTION queue_cluster.complete_away(bigint[]);

COMMENT ON COLUMN queue_cluster.server.node_id IS
    'The server''s pg_queue.node_id. All ids that the server makes contain it.';

COMMENT ON COLUMN queue_cluster.server.name IS 'The server''s name.';

COMMENT ON COLUMN queue_cluster.server.conninfo IS
    'How the other servers connect to it, without a user: they connect as the calling role. '
    'All roles can read this, so it must not contain a password.';

COMMENT ON COLUMN queue_cluster.server.state IS
    'up; draining: it gets no more slots, and gives away its own; down: the others do not call it; removed.';

COMMENT ON COLUMN queue_cluster.server.identity IS
    'Its queue_cluster.identity(). It shows a server that it has the number of another one.';

COMMENT ON COLUMN queue_cluster.server.version IS 'The copy of a row with the larger version counts.';

COMMENT ON COLUMN queue_cluster.slot.version IS 'Grows with each change of the owner.';

COMMENT ON COLUMN queue_cluster.slot.closed_until IS
    'Until then the owner enqueues nothing under the slot''s keys, so that they become idle and it can move. '
    'Only on this server.';

COMMENT ON FUNCTION queue_cluster.home IS 'The number of the server to which this session is connected.';

COMMENT ON FUNCTION queue_cluster.conninfo IS
    'How to connect to a server. Errors: 08001 it is marked down; 42704 it does not exist.';

COMMENT ON FUNCTION queue_cluster.identity IS 'Which server this is. A standby has the identity of its primary.';

COMMENT ON FUNCTION queue_cluster.node_of IS 'The number of the server that made the id of a job or an attempt.';

COMMENT ON FUNCTION queue_cluster.is_home IS 'True if this server made the id.';

COMMENT ON FUNCTION queue_cluster.is_known IS 'True if this server exists or was removed.';

-- Returns how a function of queue.* is declared and called. The functions below are made from it. `arguments` and
-- `given` name the arguments a1, a2 and so on, because PL/Proxy would take columns of the same name for them. `answer`
-- is a pattern of the statement that returns the result of a call.
CREATE OR REPLACE FUNCTION queue_cluster.shape(
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

-- remote_VERB(node, …): the call of `target`, by default queue.VERB, on that server; lost connections are 08xxx.
CREATE OR REPLACE FUNCTION queue_cluster.make_remote(verb text, target text DEFAULT NULL) RETURNS void
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

-- VERB, for verbs whose first argument is an array of ids of attempts or jobs. Each server gets its ids in one call.
CREATE OR REPLACE FUNCTION queue_cluster.make_by_ids(verb text) RETURNS void
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

COMMENT ON FUNCTION queue_cluster.hold_slot IS
    'Keeps a slot on this server until the transaction ends. False: it is being given away. '
    'Errors: 42501 the role may do nothing on any queue.';

COMMENT ON FUNCTION queue_cluster.hold IS
    'Keeps the slot of a key on this server until the transaction ends. '
    'Errors: 55006 the slot is on another server, or being moved; 42501.';

COMMENT ON FUNCTION queue_cluster.try_hold IS
    'The server that owns the slot of a key. If it is this one, it keeps the slot until the transaction ends. '
    'NULL: not known; call hold.';

CREATE OR REPLACE FUNCTION queue_cluster.target(key text, flow bigint, after bigint[]) RETURNS integer
    STABLE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    nodes integer[];
BEGIN
    SELECT array_agg(DISTINCT n) INTO nodes FROM (
        SELECT queue_cluster.node_of(flow) AS n
        UNION ALL SELECT queue_cluster.node_of(a) FROM unnest(after) AS a
        UNION ALL SELECT s.node_id FROM queue_cluster.slot AS s WHERE s.slot = queue_cluster.slot_of(key)) AS all_nodes
    WHERE queue_cluster.is_known(n);
    IF cardinality(nodes) > 1 THEN
        RAISE EXCEPTION 'the job would have to be on several servers' USING ERRCODE = '0A000',
            DETAIL = format('Its key, its flow and what it is after are on the servers %s.',
                array_to_string(nodes, ', ')),
            HINT = 'A job is on the server of its key, and can be after jobs of that server only.';
    END IF;
    IF key IS NOT NULL AND NOT EXISTS (SELECT FROM queue_cluster.slot) THEN
        RAISE EXCEPTION 'this server belongs to no cluster' USING ERRCODE = '55000',
            HINT = 'See queue_cluster.add_server.';
    END IF;
    -- What no server knows is for this one to refuse.
    RETURN coalesce(nodes[1], queue_cluster.home());
END
$$;

COMMENT ON FUNCTION queue_cluster.target IS
    'The server for a job with this key, flow and predecessors. Errors: 0A000 they are on several servers; 55000.';

-- accept_VERB enqueues on this server if the key is at home here. away_VERB is called if the job has a key, a flow or
-- predecessors, and sends the call to their server. The texts have || as in `make_everywhere`.
CREATE OR REPLACE FUNCTION queue_cluster.make_keyed(verb text, symbol text) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $make$
DECLARE
    s record;
    names text;
    plain text;
    routes CONSTANT text := '(coalesce(x.group_key, x.unique_key), x.flow, x.after)';
    body text;
BEGIN
    s := queue_cluster.shape(format('queue.%I', verb)::regproc);
    SELECT string_agg(format('%I %s', p.proargnames[n], format_type(p.proargtypes[n - 1], NULL)), ', ' ORDER BY n)
               || s.outs,
           string_agg('x.' || quote_ident(p.proargnames[n]), ', ' ORDER BY n)
    INTO names, plain
    FROM pg_proc AS p, generate_series(1, p.pronargs) AS n WHERE p.oid = format('queue.%I', verb)::regproc;
    body := CASE WHEN s.is_set THEN 'RETURN QUERY SELECT * FROM' ELSE 'RETURN' END;
    EXECUTE format($f$CREATE FUNCTION queue_cluster.%1$I(%2$s) RETURNS %3$s LANGUAGE plpgsql AS $body$
        #variable_conflict use_column
        DECLARE
            key CONSTANT text := coalesce(%4$I.group_key, %4$I.unique_key);
        BEGIN
            IF %4$I.group_key IS NOT NULL AND (%4$I.version IS NOT NULL OR %4$I.unique_for IS NOT NULL) THEN
                RAISE EXCEPTION 'a job of a group remembers no key' USING ERRCODE = '0A000',
                    DETAIL = 'A key with version or unique_for is remembered where the key belongs, $f$ ||
                    $f$and the job is where its group is.',
                    HINT = 'Leave out group_key, or version and unique_for.';
            END IF;
            IF key IS NOT NULL AND $f$ ||
                $f$(queue_cluster.try_hold(key) OPERATOR(pg_catalog.=) queue_cluster.home()) IS NOT TRUE THEN
                PERFORM queue_cluster.hold(key);
            END IF;
            %5$s queue.%6$I(%7$s);
        END $body$ $f$,
        'accept_' || verb, names, s.result, 'accept_' || verb, body, verb,
        replace(plain, 'x.', quote_ident('accept_' || verb) || '.'));
    PERFORM queue_cluster.make_remote(verb, format('queue_cluster.%I', 'accept_' || verb));
    EXECUTE format($f$CREATE FUNCTION queue_cluster.%1$I(%2$s) RETURNS %3$s LANGUAGE plpgsql AS $body$
        #variable_conflict use_column
        DECLARE
            node integer;
        BEGIN
            IF %9$I.flow IS NULL AND %9$I.after IS NULL AND $f$ ||
                $f$(%9$I.group_key IS NULL OR %9$I.version IS NULL AND %9$I.unique_for IS NULL) THEN
                node := queue_cluster.try_hold(coalesce(%9$I.group_key, %9$I.unique_key));
                IF node OPERATOR(pg_catalog.=) queue_cluster.home() THEN
                    %5$s queue.%10$I(%7$s);
                    %11$s
                END IF;
            END IF;
            IF node IS NULL THEN
                node := queue_cluster.target%4$s;
            END IF;
            IF node OPERATOR(pg_catalog.=) queue_cluster.home() THEN
                %5$s queue_cluster.%6$I(%7$s);
            ELSE
                %5$s queue_cluster.%8$I(node, %7$s);
            END IF;
        END $body$ $f$,
        'away_' || verb, names, s.result, replace(routes, 'x.', quote_ident('away_' || verb) || '.'), body,
        'accept_' || verb, replace(plain, 'x.', quote_ident('away_' || verb) || '.'), 'remote_' || verb,
        'away_' || verb, verb, CASE WHEN s.is_set THEN 'RETURN;' ELSE '' END);
    PERFORM queue_cluster.make_front(verb, symbol);
END
$make$;

CREATE OR REPLACE FUNCTION queue_cluster.accept_enqueue_batch(queue_name text, jobs jsonb) RETURNS SETOF bigint
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF jobs @? '$[*] ? (exists(@.group_key) && (exists(@.version) || exists(@.unique_for)))' THEN
        RAISE EXCEPTION 'a job of a group remembers no key' USING ERRCODE = '0A000',
            HINT = 'Leave out group_key, or version and unique_for.';
    END IF;
    PERFORM queue_cluster.hold(k.key) FROM (
        SELECT DISTINCT coalesce(j ->> 'group_key', j ->> 'unique_key') AS key
        FROM jsonb_array_elements(jobs) AS j) AS k;
    RETURN QUERY SELECT * FROM queue.enqueue_batch(queue_name, jobs);
END
$$;

CREATE OR REPLACE FUNCTION queue_cluster.enqueue_batch(queue_name text, jobs jsonb) RETURNS SETOF bigint
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    own CONSTANT integer := queue_cluster.home();
    ids bigint[] := '{}';
    found bigint[];
    part record;
BEGIN
    IF jsonb_typeof(jobs) IS DISTINCT FROM 'array'
       OR NOT jobs @? '$[*] ? (exists(@.unique_key) || exists(@.group_key) || exists(@.flow) || exists(@.after))' THEN
        RETURN QUERY SELECT * FROM queue.enqueue_batch(queue_name, jobs);
        RETURN;
    END IF;
    -- This server's first: if its part is refused, no other has begun.
    FOR part IN
        SELECT t.node, array_agg(t.n ORDER BY t.n) AS places, jsonb_agg(t.job ORDER BY t.n) AS jobs
        FROM (SELECT j.n, j.job, queue_cluster.target(
                     coalesce(j.job ->> 'group_key', j.job ->> 'unique_key'), (j.job ->> 'flow')::bigint,
                     CASE jsonb_typeof(j.job -> 'after') WHEN 'array' THEN
                         ARRAY(SELECT a::bigint FROM jsonb_array_elements_text(j.job -> 'after') AS a) END) AS node
              FROM jsonb_array_elements(enqueue_batch.jobs) WITH ORDINALITY AS j (job, n)) AS t
        GROUP BY t.node ORDER BY t.node <> own, t.node
    LOOP
        IF part.node = own THEN
            found := ARRAY(SELECT * FROM queue_cluster.accept_enqueue_batch(queue_name, part.jobs));
        ELSE
            found := ARRAY(SELECT * FROM queue_cluster.remote_enqueue_batch(part.node, queue_name, part.jobs));
        END IF;
        FOR n IN 1 .. cardinality(part.places) LOOP
            ids[part.places[n]] := found[n];
        END LOOP;
    END LOOP;
    RETURN QUERY SELECT unnest(ids);
END
$$;

CREATE FUNCTION queue_cluster.retry_many(job_ids bigint[], run_at timestamptz DEFAULT NULL)
    RETURNS SETOF queue.answer ROWS 100
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    answer queue.answer;
BEGIN
    FOREACH answer.id IN ARRAY job_ids LOOP
        CONTINUE WHEN answer.id IS NULL;
        answer.outcome := 'retried';
        answer.reason := NULL;
        BEGIN
            PERFORM queue_cluster.retry(answer.id, run_at);
        EXCEPTION WHEN no_data_found OR object_not_in_prerequisite_state OR unique_violation OR object_in_use
            OR configuration_limit_exceeded THEN
            answer.outcome := CASE SQLSTATE WHEN 'P0002' THEN 'missing' WHEN '55006' THEN 'busy'
                WHEN '53400' THEN 'full' ELSE 'refused' END;
            answer.reason := SQLERRM;
        END;
        RETURN NEXT answer;
    END LOOP;
END
$$;

COMMENT ON FUNCTION queue_cluster.retry_many IS
    'queue_cluster.retry for many. Returns what became of each, as queue.retry_many. Errors: as there, 08xxx.';

COMMENT ON FUNCTION queue_cluster.steals_from IS
    'The servers that a claim asks in one round if it finds nothing at home: '
    'the one where this session last found a job, and two random ones.';

COMMENT ON FUNCTION queue_cluster.nap IS
    'How long a waiting claim waits at home before it asks the other servers again: '
    'the setting pg_queue_cluster.nap, by default 500 ms.';

-- Completes attempts. Returns those that could not be completed, as queue.claim does.
CREATE FUNCTION queue_cluster.complete_away(ids bigint[]) RETURNS SETOF queue.claimed_job ROWS 1
    LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT jsonb_populate_record(NULL::queue.claimed_job,
        jsonb_build_object('id', a.id, 'headers', jsonb_build_object('outcome', a.outcome, 'reason', a.reason)))
    FROM queue_cluster.complete_many(ids) AS a WHERE a.outcome <> 'completed'
$$;

CREATE FUNCTION queue_cluster.id_of_end(one json) RETURNS bigint STABLE LANGUAGE c
    AS 'MODULE_PATHNAME', 'pg_queue_cluster_id_of_end';

COMMENT ON FUNCTION queue_cluster.id_of_end IS
    'The id of the attempt in an element of queue_cluster.end_batch. NULL: the element names none.';

DO $each_remote$
BEGIN
    IF to_regproc('queue_cluster.remote_end_batch') IS NULL THEN
        PERFORM queue_cluster.make_remote('end_batch');
    END IF;
END
$each_remote$;

CREATE FUNCTION queue_cluster.end_batch(ends json) RETURNS SETOF queue.answer ROWS 100
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    own CONSTANT integer := queue_cluster.home();
    part record;
BEGIN
    -- Those of no server go to this one, which says what is wrong with them, before any other is called.
    FOR part IN
        SELECT n.node, json_agg(n.one ORDER BY n.place) AS ends
        FROM (SELECT e.one, e.place,
                     CASE WHEN queue_cluster.is_known(queue_cluster.node_of(e.id))
                          THEN queue_cluster.node_of(e.id) ELSE own END AS node
              FROM (SELECT o.one, o.place, queue_cluster.id_of_end(o.one) AS id
                    FROM json_array_elements(
                             CASE json_typeof(end_batch.ends) WHEN 'array' THEN end_batch.ends ELSE '[null]' END)
                         WITH ORDINALITY AS o (one, place)) AS e) AS n
        GROUP BY n.node ORDER BY n.node <> own, n.node
    LOOP
        IF part.node = own THEN
            RETURN QUERY SELECT * FROM queue.end_batch(part.ends);
        ELSE
            RETURN QUERY SELECT * FROM queue_cluster.remote_end_batch(part.node, part.ends);
        END IF;
    END LOOP;
END
$$;

COMMENT ON FUNCTION queue_cluster.end_batch IS
'queue.end_batch, for attempts of all servers: each server gets its own, in one call, '
'which is no part of the caller''s transaction
unless it is this server. Errors: as there.';

-- claim and claim_any: as in queue.*, with the argument `steal`. The call is passed on to away_VERB only if it finds
-- nothing at home, or completes jobs of other servers.
CREATE OR REPLACE FUNCTION queue_cluster.make_claim(verb text)
    RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $make$
DECLARE
    s record;
BEGIN
    IF to_regproc('queue_cluster.' || verb) IS NULL THEN
        PERFORM queue_cluster.make_remote(verb);
        PERFORM queue_cluster.make_front(verb, 'pg_queue_cluster_claim', ', steal boolean DEFAULT true');
    END IF;
    s := queue_cluster.shape(format('queue.%I', verb)::regproc);
    EXECUTE format($f$CREATE OR REPLACE FUNCTION queue_cluster.%1$I(queues %2$s, max_jobs integer, wait interval,
            lease interval, stage_name text, worker_name text, session_bound boolean, completed bigint[], steal boolean)
        RETURNS %3$s LANGUAGE plpgsql ROWS 10 SET search_path = pg_catalog, pg_temp AS $body$
        #variable_conflict use_variable
        DECLARE
            until CONSTANT timestamptz := queue_cluster.deadline(wait);
            left_to_wait interval;
            node integer;
        BEGIN
            IF EXISTS (SELECT FROM unnest(completed) AS i WHERE NOT queue_cluster.is_home(i)) THEN
                RETURN QUERY SELECT * FROM queue_cluster.complete_away(
                    ARRAY(SELECT i FROM unnest(completed) AS i WHERE NOT queue_cluster.is_home(i)));
                RETURN QUERY SELECT * FROM queue_cluster.%4$I(queues, max_jobs, wait, lease, stage_name, worker_name,
                    session_bound, ARRAY(SELECT i FROM unnest(completed) AS i WHERE queue_cluster.is_home(i)), steal);
                RETURN;
            END IF;
            LOOP
                FOR node IN SELECT n FROM queue_cluster.steals_from() AS n LOOP
                    BEGIN
                        RETURN QUERY SELECT * FROM queue_cluster.%5$I(node, queues, max_jobs, '0', lease, stage_name,
                            worker_name, false, NULL);
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
                RETURN QUERY SELECT * FROM queue.%4$I(queues, max_jobs, least(left_to_wait, queue_cluster.nap()), lease,
                    stage_name, worker_name, false, NULL);
                IF FOUND THEN
                    RETURN;
                END IF;
            END LOOP;
        END $body$ $f$,
        'away_' || verb, CASE verb WHEN 'claim' THEN 'text' ELSE 'text[]' END, s.result, verb, 'remote_' || verb);
END
$make$;

DO $each_claim$
BEGIN
    PERFORM queue_cluster.make_claim('claim'), queue_cluster.make_claim('claim_any');
END
$each_claim$;

-- Queues, roles and topics are on all servers, a schedule is on one. A call for all servers goes to each in turn, and
-- can be repeated until it has succeeded on all.

CREATE OR REPLACE FUNCTION queue_cluster.share(total bigint, node integer)
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
CREATE OR REPLACE FUNCTION queue_cluster.make_everywhere(verb text, settled text DEFAULT 'QQ000') RETURNS void
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

-- A schedule is on the server that owns the slot of its name.
CREATE OR REPLACE FUNCTION queue_cluster.make_by_name(verb text)
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

-- Makes VERB for pages over all servers, one after the other. A position names its server. The text has || as above.
CREATE OR REPLACE FUNCTION queue_cluster.make_paged(verb text)
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

CREATE OR REPLACE FUNCTION queue_cluster.reachable()
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
DECLARE
    verb text;
BEGIN
    FOREACH verb IN ARRAY ARRAY['list', 'search'] LOOP
        IF to_regproc('queue_cluster.' || verb) IS NULL THEN
            PERFORM queue_cluster.make_paged(verb);
        END IF;
    END LOOP;
END
$each_page$;

-- Views over all servers. Each row is as in the view of queue.*, with the server's name as the last column. Conditions
-- are not sent to the servers. To read little, use queue_cluster.job, list and search.

CREATE OR REPLACE FUNCTION queue_cluster.make_view(view text)
    RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $make$
BEGIN
    EXECUTE format($f$CREATE FUNCTION queue_cluster.%1$I(node integer)
        RETURNS SETOF queue.%2$I LANGUAGE plproxy ROWS 1000 AS
        'CONNECT queue_cluster.conninfo(node); SELECT * FROM queue.%2$I;'$f$, 'carry_view_' || view, view);
    EXECUTE format($f$CREATE FUNCTION queue_cluster.%1$I(node integer)
        RETURNS SETOF queue.%2$I LANGUAGE plpgsql ROWS 1000
        SET search_path = pg_catalog, pg_temp AS $body$
        BEGIN
            IF node = queue_cluster.home() THEN
                RETURN QUERY SELECT * FROM queue.%2$I;
            ELSE
                RETURN QUERY SELECT * FROM queue_cluster.%3$I(node);
            END IF;
        EXCEPTION WHEN internal_error THEN
            PERFORM queue_cluster.rethrow(SQLERRM);
        END $body$ $f$, 'view_' || view, view, 'carry_view_' || view);
    EXECUTE format($f$CREATE VIEW queue_cluster.%1$I AS
        SELECT v.*, queue_cluster.name_of(n) AS server FROM queue_cluster.reachable() AS n,
            queue_cluster.%2$I(n) AS v$f$,
        view, 'view_' || view);
    EXECUTE format('GRANT SELECT ON queue_cluster.%I TO PUBLIC', view);
    EXECUTE format('COMMENT ON VIEW queue_cluster.%1$I IS %2$L', view,
        format('queue.%s of all servers that are not marked down.', view));
END
$make$;

-- Functions for administrators.
CREATE OR REPLACE FUNCTION queue_cluster.grants()
    RETURNS jsonb STABLE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT coalesce(jsonb_agg(format('%s on %s to %s', p.privilege, coalesce(q.queue_name, '*'), p.role_name)
                                      ORDER BY q.queue_name, p.role_name, p.privilege), '[]')
            FROM queue.permission AS p LEFT JOIN queue.queue AS q USING (queue_id)
            WHERE p.queue_id = 0 OR q.queue_id IS NOT NULL);
END
$$;

COMMENT ON FUNCTION queue_cluster.grants IS 'The privileges on the queues of this server.';

CREATE OR REPLACE FUNCTION queue_cluster.digest()
    RETURNS jsonb STABLE LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT jsonb_build_object(
        'node_id', queue_cluster.home(),
        'identity', queue_cluster.identity(),
        'version', (SELECT e.extversion FROM pg_extension AS e WHERE e.extname = 'pg_queue_cluster'),
        -- Only superusers may read it, and they call queue_cluster.check.
        'grants', CASE WHEN has_table_privilege('queue.permission', 'SELECT') THEN queue_cluster.grants() END,
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

CREATE OR REPLACE FUNCTION queue_cluster.check(OUT server text, OUT problem text, OUT hint text) RETURNS SETOF record
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

COMMENT ON FUNCTION queue_cluster.lock_map IS
    'Waits until no other transaction changes the map, and locks out others until the transaction ends.';

COMMENT ON FUNCTION queue_cluster.take_slot IS
    'Locks out producers of a slot until the transaction ends. False: a producer holds the slot.';

-- A server's copy of the map, and its updates.
CREATE OR REPLACE FUNCTION queue_cluster.tell()
    RETURNS jsonb STABLE LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT jsonb_build_object('servers', (SELECT coalesce(jsonb_agg(to_jsonb(s)), '[]') FROM queue_cluster.server AS s),
                              'slots', (SELECT coalesce(
                                  jsonb_agg(jsonb_build_array(o.slot, o.node_id, o.version)), '[]')
                                        FROM queue_cluster.slot AS o))
$$;

CREATE OR REPLACE FUNCTION queue_cluster.learn(map jsonb)
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

-- Writes a row of a server, here and everywhere. It takes effect immediately, even if the caller's transaction rolls
-- back.
CREATE OR REPLACE FUNCTION queue_cluster.put_server(
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

CREATE OR REPLACE FUNCTION queue_cluster.add_server(name text, conninfo text)
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

COMMENT ON FUNCTION queue_cluster.drain IS
    'Makes a server give away its slots at the next rebalance, and get none. Errors: 42704.';

COMMENT ON FUNCTION queue_cluster.mark_down IS
    'Makes the others no longer call a server. Calls that need it fail immediately with 08001, views leave it out. '
    'Errors: 42704.';

COMMENT ON FUNCTION queue_cluster.mark_up IS 'Makes the others call a server again, and ends a drain. Errors: 42704.';

COMMENT ON FUNCTION queue_cluster.is_owed IS
    'True if another run was requested after an attempt (on_duplicate replace or rerun) and is not made yet.';

COMMENT ON FUNCTION queue_cluster.occupied IS
    'The slots of the living jobs and schedules on this server. Reads all living jobs once.';

-- The rows about remembered keys move with their slots: the new owner gets them before it is the owner. A copy that is
-- left behind, or that came too early, does no harm: a server that is not the owner does not read such a row. If there
-- are two rows, the larger values count.
CREATE OR REPLACE FUNCTION queue_cluster.memories(slots integer[])
    RETURNS jsonb VOLATILE LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(jsonb_agg(to_jsonb(k)), '[]') FROM (
        SELECT DISTINCT ON (q.queue_name, m.unique_key)
            queue_cluster.slot_of(m.unique_key) AS slot, q.queue_name, m.unique_key, m.job_id, m.expires_at,
            m.taken_until, m.version
        FROM (SELECT * FROM queue.key_0 UNION ALL SELECT * FROM queue.key_1) AS m JOIN queue.queue AS q USING (queue_id)
        WHERE queue_cluster.slot_of(m.unique_key) = ANY (slots)
        ORDER BY q.queue_name, m.unique_key, m.entry DESC) AS k
    WHERE k.expires_at > clock_timestamp()
$$;

COMMENT ON FUNCTION queue_cluster.remember IS
    'Takes over what another server remembers of a key. False: it was known here. '
    'Errors: 42704 there is no such queue; 55006 the key is in use here.';

CREATE OR REPLACE FUNCTION queue_cluster.remember_all(memories jsonb)
    RETURNS bigint VOLATILE LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT count(*) FILTER (WHERE queue_cluster.remember(
        m.queue_name, m.unique_key, m.job_id, m.expires_at, m.taken_until, m.version))
    FROM jsonb_to_recordset(memories) AS m (queue_name text, unique_key text, job_id bigint, expires_at timestamptz,
        taken_until timestamptz, version timestamptz)
$$;

COMMENT ON FUNCTION queue_cluster.close IS
    'Closes slots that this server owns for a time: nothing is enqueued under their keys. 0: opens them again. '
    'Their producers get 55006.';

CREATE OR REPLACE FUNCTION queue_cluster.give(slots integer[], nodes integer[])
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

-- Returns which server must give which slots, and to which server. A server that is marked down gives none.
CREATE OR REPLACE FUNCTION queue_cluster.surplus(OUT node_id integer, OUT slots integer[], OUT nodes integer[])
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

CREATE OR REPLACE FUNCTION queue_cluster.rebalance(wait interval DEFAULT '0', OUT moved integer, OUT waiting integer)
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

CREATE OR REPLACE FUNCTION queue_cluster.remove_server(name text)
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

