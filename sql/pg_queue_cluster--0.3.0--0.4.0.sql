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
              = ANY ('{complete_many,fail_many,release_many,extend_many,cancel_many,reprioritize_many,search}')
    LOOP
        EXECUTE format('DROP FUNCTION %s', made);
    END LOOP;
END
$changed$;
DROP FUNCTION queue_cluster.complete_away(bigint[]);

-- Those that are there already stay: an upgrade drops what changes.
DO $each_verb$
DECLARE
    verb text;
BEGIN
    FOREACH verb IN ARRAY ARRAY['complete', 'fail', 'release', 'extend', 'progress', 'advance', 'suspend', 'inputs', 'step', 'step_done',
        'cancel', 'reprioritize', 'reschedule', 'forget', 'job', 'job_attempts', 'members', 'job_steps', 'seal', 'resolve', 'reject'] LOOP
        IF to_regproc('queue_cluster.' || verb) IS NULL THEN
            PERFORM queue_cluster.make_by_id(verb);
        END IF;
    END LOOP;
    FOREACH verb IN ARRAY ARRAY['complete_many', 'fail_many', 'release_many', 'extend_many', 'cancel_many', 'reprioritize_many', 'reschedule_many'] LOOP
        IF to_regproc('queue_cluster.' || verb) IS NULL THEN
            PERFORM queue_cluster.make_by_ids(verb);
        END IF;
    END LOOP;
END
$each_verb$;

CREATE FUNCTION queue_cluster.retry_many(job_ids bigint[], run_at timestamptz DEFAULT NULL) RETURNS SETOF queue.answer ROWS 100
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
        EXCEPTION WHEN no_data_found OR object_not_in_prerequisite_state OR unique_violation OR object_in_use OR configuration_limit_exceeded THEN
            answer.outcome := CASE SQLSTATE WHEN 'P0002' THEN 'missing' WHEN '55006' THEN 'busy' WHEN '53400' THEN 'full' ELSE 'refused' END;
            answer.reason := SQLERRM;
        END;
        RETURN NEXT answer;
    END LOOP;
END
$$;

COMMENT ON FUNCTION queue_cluster.retry_many IS 'queue_cluster.retry for many. Returns what became of each, as queue.retry_many. Errors: as there, 08xxx.';

-- Completes attempts, and returns those that could not be completed as queue.claim does.
CREATE FUNCTION queue_cluster.complete_away(ids bigint[]) RETURNS SETOF queue.claimed_job ROWS 1
    LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT jsonb_populate_record(NULL::queue.claimed_job,
        jsonb_build_object('id', a.id, 'headers', jsonb_build_object('outcome', a.outcome, 'reason', a.reason)))
    FROM queue_cluster.complete_many(ids) AS a WHERE a.outcome <> 'completed'
$$;

CREATE FUNCTION queue_cluster.id_of_end(one json) RETURNS bigint STABLE LANGUAGE c
    AS 'MODULE_PATHNAME', 'pg_queue_cluster_id_of_end';

COMMENT ON FUNCTION queue_cluster.id_of_end IS 'The id of the attempt that an element of queue_cluster.end_batch is about; NULL: it names none.';

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
        FROM (SELECT e.one, e.place, CASE WHEN queue_cluster.is_known(queue_cluster.node_of(e.id)) THEN queue_cluster.node_of(e.id) ELSE own END AS node
              FROM (SELECT o.one, o.place, queue_cluster.id_of_end(o.one) AS id
                    FROM json_array_elements(CASE json_typeof(end_batch.ends) WHEN 'array' THEN end_batch.ends ELSE '[null]' END)
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
'queue.end_batch, for attempts of all servers: each server gets its own, in one call, which is no part of the caller''s transaction
unless it is this server. Errors: as there.';

-- claim and claim_any: those of queue.*, and whether to steal. Only if that has found nothing at home, or is to complete jobs of other
-- servers, it is passed on to away_VERB.
CREATE OR REPLACE FUNCTION queue_cluster.make_claim(verb text) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $make$
DECLARE
    s record;
BEGIN
    IF to_regproc('queue_cluster.' || verb) IS NULL THEN
        PERFORM queue_cluster.make_remote(verb);
        PERFORM queue_cluster.make_front(verb, 'pg_queue_cluster_claim', ', steal boolean DEFAULT true');
    END IF;
    s := queue_cluster.shape(format('queue.%I', verb)::regproc);
    EXECUTE format($f$CREATE OR REPLACE FUNCTION queue_cluster.%1$I(queues %2$s, max_jobs integer, wait interval, lease interval, stage_name text,
            worker_name text, session_bound boolean, completed bigint[], steal boolean)
        RETURNS %3$s LANGUAGE plpgsql ROWS 10 SET search_path = pg_catalog, pg_temp AS $body$
        #variable_conflict use_variable
        DECLARE
            until CONSTANT timestamptz := queue_cluster.deadline(wait);
            left_to_wait interval;
            node integer;
        BEGIN
            IF EXISTS (SELECT FROM unnest(completed) AS i WHERE NOT queue_cluster.is_home(i)) THEN
                RETURN QUERY SELECT * FROM queue_cluster.complete_away(ARRAY(SELECT i FROM unnest(completed) AS i WHERE NOT queue_cluster.is_home(i)));
                RETURN QUERY SELECT * FROM queue_cluster.%4$I(queues, max_jobs, wait, lease, stage_name, worker_name, session_bound,
                    ARRAY(SELECT i FROM unnest(completed) AS i WHERE queue_cluster.is_home(i)), steal);
                RETURN;
            END IF;
            LOOP
                FOR node IN SELECT n FROM queue_cluster.steals_from() AS n LOOP
                    BEGIN
                        RETURN QUERY SELECT * FROM queue_cluster.%5$I(node, queues, max_jobs, '0', lease, stage_name, worker_name, false, NULL);
                        IF FOUND THEN
                            -- Where there is too much there may be more: thieves that go by chance alone find few servers out of many.
                            PERFORM set_config('pg_queue_cluster.found_at', node::text, false);
                            RETURN;
                        END IF;
                    EXCEPTION
                        -- A server that is away, or has no such queue or no such role (yet), has nothing to steal: work at home goes on.
                        -- What is wrong is said by queue_cluster.check.
                        WHEN connection_exception OR sqlclient_unable_to_establish_sqlconnection OR connection_failure
                             OR undefined_object OR insufficient_privilege OR undefined_function OR admin_shutdown OR crash_shutdown OR cannot_connect_now THEN
                            NULL;
                    END;
                END LOOP;
                left_to_wait := until - clock_timestamp();
                IF left_to_wait IS NULL OR left_to_wait <= '0' THEN
                    RETURN;
                END IF;
                RETURN QUERY SELECT * FROM queue.%4$I(queues, max_jobs, least(left_to_wait, queue_cluster.nap()), lease, stage_name, worker_name, false, NULL);
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

-- Pages over all servers, one after the other. A position says on which it is.
CREATE OR REPLACE FUNCTION queue_cluster.make_paged(verb text) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $make$
DECLARE
    s record;
    given text;
BEGIN
    PERFORM queue_cluster.make_remote(verb);
    s := queue_cluster.shape(format('queue.%I', verb)::regproc);
    SELECT string_agg(CASE p.proargnames[n] WHEN 'beyond' THEN 'at' WHEN 'max_jobs' THEN 'left_over'
                           ELSE format('%I.%I', verb, p.proargnames[n]) END, ', ' ORDER BY n)
    INTO given FROM pg_proc AS p, generate_series(1, p.pronargs) AS n WHERE p.oid = format('queue.%I', verb)::regproc;
    EXECUTE format($f$CREATE FUNCTION queue_cluster.%1$I(%2$s) RETURNS %3$s LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $body$
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
                                  (SELECT count(*)::integer + 1 FROM unnest(nodes) AS n WHERE n < (%1$I.beyond ->> 'node')::integer));
                at := nullif(%1$I.beyond -> 'at', 'null');
            END IF;
            WHILE place <= cardinality(nodes) LOOP
                FOR r IN EXECUTE CASE WHEN nodes[place] = queue_cluster.home() THEN %5$L ELSE format(%6$L, nodes[place]) END USING %4$s LOOP
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
        format('SELECT * FROM queue.%I(%s)', verb, (SELECT string_agg('$' || n, ', ' ORDER BY n) FROM pg_proc AS p, generate_series(1, p.pronargs) AS n WHERE p.oid = format('queue.%I', verb)::regproc)),
        format('SELECT * FROM queue_cluster.%I(%%s, %s)', 'remote_' || verb, (SELECT string_agg('$' || n, ', ' ORDER BY n) FROM pg_proc AS p, generate_series(1, p.pronargs) AS n WHERE p.oid = format('queue.%I', verb)::regproc)));
END
$make$;

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

