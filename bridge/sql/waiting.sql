-- Calls that were put aside: what each of them names, which calls come behind it, and the next try.
--
-- Invariant: of two calls of a source that name the same job, attempt, flow, unique key, group or topic, the one that
-- was committed first is carried out first. Other calls may overtake one that waits.

CREATE FUNCTION queue_bridge.complete_waiting(id bigint, result jsonb) RETURNS boolean VOLATILE LANGUAGE c
    AS 'MODULE_PATHNAME', 'pg_queue_bridge_complete_waiting';
COMMENT ON FUNCTION queue_bridge.complete_waiting IS
    'Completes the job of an attempt that has lost its lease, failed or was released, because the effects of the '
    'attempt are committed at its source. False: it has not ended so, or its job does not wait for a worker, or the '
    'user may not consume it, or id is null. Only roles of sources may execute it. Errors: 55006 another open '
    'transaction is changing the job.';

-- The effects are committed, so no other attempt is needed. If another worker has the job, its once says false.
CREATE FUNCTION queue_bridge.complete(id bigint, ids bigint[], result jsonb)
    RETURNS boolean VOLATILE LANGUAGE plpgsql AS $$
DECLARE
    answer record;
    has_waited boolean := false;
BEGIN
    IF ids IS NULL THEN
        BEGIN
            PERFORM queue.complete(id, result);
        EXCEPTION WHEN SQLSTATE 'QJ001' THEN
            IF NOT queue_bridge.complete_waiting(id, result) THEN
                RAISE;
            END IF;
            RETURN true;
        END;
        RETURN false;
    END IF;
    FOR answer IN SELECT a.* FROM queue.complete_many(ids) AS a LOOP
        CASE answer.outcome
            WHEN 'lost' THEN
                has_waited := queue_bridge.complete_waiting(answer.id, NULL) OR has_waited;
            WHEN 'busy', 'full' THEN
                RAISE EXCEPTION '%', answer.reason USING
                    ERRCODE = CASE answer.outcome WHEN 'busy' THEN '55006' ELSE '53400' END,
                    DETAIL = format('It is attempt %s.', answer.id);
            ELSE
        END CASE;
    END LOOP;
    RETURN has_waited;
END
$$;
COMMENT ON FUNCTION queue_bridge.complete IS
    'Completes one attempt, or several, with effects that are committed at the source. Returns true if one had ended '
    'and its job waited. Only roles of sources may execute it. Errors: as queue.complete; 55006, 53400 one of '
    'several attempts cannot be completed yet.';

-- Returns the jobs that got another id than the source gave, or none, by that id; or the error.
CREATE FUNCTION queue_bridge.carry_out(call queue_bridge.outbox, passed bigint[], looks boolean)
    RETURNS jsonb VOLATILE LANGUAGE plpgsql AS $$
DECLARE
    all_ids bigint[] := coalesce(call.ids, ARRAY[call.id]);
    others jsonb := '{}';
    job bigint;
    n integer := 0;
    code text;
    told text;
    why text;
    advice text;
BEGIN
    IF NOT isfinite(call.made_at) THEN
        RAISE EXCEPTION 'made_at must be finite' USING ERRCODE = '22023';
    END IF;
    CASE call.verb
        WHEN 'e', 'm', 'b', 'w' THEN
            FOR job IN SELECT * FROM queue_bridge.enqueue(call.target, all_ids, call.made_at, call.body, call.options,
                                                          call.verb::text, CASE WHEN looks THEN passed END) LOOP
                n := n + 1;
                IF job <> all_ids[n] THEN
                    others := others || jsonb_build_object(all_ids[n]::text, job);
                END IF;
            END LOOP;
        WHEN 's' THEN
            PERFORM queue.seal(call.id);
        WHEN 'p' THEN
            PERFORM queue_bridge.publish(call.target, all_ids, call.made_at, call.body, call.options);
            others := (SELECT jsonb_object_agg(i.id, NULL) FROM unnest(all_ids) AS i (id));
        WHEN 'c' THEN
            IF queue_bridge.complete(call.id, call.ids, call.body) THEN
                others := jsonb_build_object(call.id, NULL);
            END IF;
        WHEN 'f' THEN
            PERFORM queue.fail(call.id, call.options ->> 'error', (call.options ->> 'retry_in')::interval,
                               coalesce((call.options ->> 'fatal')::boolean, false));
        WHEN 'r' THEN
            PERFORM queue.release(call.id, coalesce(call.options ->> 'delay', '0')::interval,
                                  call.options ->> 'reason');
        WHEN 'x' THEN
            PERFORM queue.cancel(call.id, call.options ->> 'reason');
        ELSE
            RAISE EXCEPTION 'unknown verb "%"', call.verb USING ERRCODE = '0A000',
                HINT = 'ALTER EXTENSION pg_queue_bridge UPDATE: the SQL on the primary is newer.';
    END CASE;
    RETURN others;
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, told = MESSAGE_TEXT, why = PG_EXCEPTION_DETAIL,
        advice = PG_EXCEPTION_HINT;
    RETURN jsonb_build_object('code', code, 'message', told, 'detail', why, 'hint', advice);
END
$$;
COMMENT ON FUNCTION queue_bridge.carry_out IS
    'Carries out a call of a source with the rights of the user. passed: the ids that have arrived before. looks: it '
    'may have arrived before. Returns the jobs with another id than the source gave, by that id, null for an event and '
    'for the completion of a job that waited; or code, message, detail and hint of an error.';

CREATE FUNCTION queue_bridge.carry_out_as(
    source text, function regproc, call queue_bridge.outbox, passed bigint[], looks boolean
) RETURNS jsonb VOLATILE LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_bridge_carry_out';
COMMENT ON FUNCTION queue_bridge.carry_out_as IS
    'Calls the function, which is queue_bridge.carry_out, as the role of a source. Errors: 42704 there is no such '
    'role, 42501 the user is no member of it.';

-- Hashes, because an index takes no long texts. A false match makes a call wait without need.
CREATE FUNCTION queue_bridge.names(source text, call queue_bridge.outbox)
    RETURNS bigint[] IMMUTABLE LANGUAGE plpgsql AS $$
DECLARE
    named text[] := ARRAY(SELECT 'id ' || i.id FROM unnest(coalesce(call.ids, ARRAY[call.id])) AS i (id));
    options jsonb;
    name text;
BEGIN
    IF call.verb = 'p' THEN
        named := named || ('topic ' || call.target);
    END IF;
    FOR options IN
        SELECT call.options
        UNION ALL SELECT jsonb_path_query(call.options, 'lax $.tasks[*]') WHERE call.verb = 'w'
        UNION ALL SELECT jsonb_path_query(call.body, 'lax $[*]') WHERE call.verb = 'b'
    LOOP
        -- PL/pgSQL appends one element in place, and copies the array for several.
        FOREACH name IN ARRAY ARRAY['key ' || (options ->> 'unique_key'), 'group ' || (options ->> 'group_key'),
                                    'id ' || (options ->> 'flow')]
            || ARRAY(SELECT 'id ' || (a.id #>> '{}') FROM jsonb_path_query(options, 'lax $.after[*]') AS a (id))
        LOOP
            named := array_append(named, name);
        END LOOP;
    END LOOP;
    RETURN ARRAY(SELECT DISTINCT hashtextextended(source || ' ' || n.name, 0) FROM unnest(named) AS n (name)
                 WHERE n.name IS NOT NULL);
END
$$;
COMMENT ON FUNCTION queue_bridge.names IS
    'What a call names: jobs, attempts and flows by their ids, unique keys, groups, and the topic of an event.';

-- The table is seldom analyzed, and the planner would rather read all of it.
CREATE FUNCTION queue_bridge.ahead(names bigint[]) RETURNS bigint STABLE LANGUAGE sql SET enable_seqscan = off AS $$
    SELECT f.id FROM queue_bridge.refused AS f WHERE f.names && $1 LIMIT 1
$$;
COMMENT ON FUNCTION queue_bridge.ahead IS 'The id of a waiting call with one of these names.';

CREATE FUNCTION queue_bridge.put_aside(source text, call queue_bridge.outbox, is_waiting boolean, error jsonb)
    RETURNS void VOLATILE LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
    INSERT INTO queue_bridge.refused (source, id, made_at, verb, target, ids, body, options, code, message, detail,
                                      hint, names)
    VALUES (source, call.id, call.made_at, call.verb, call.target, call.ids, call.body, call.options, error ->> 'code',
            error ->> 'message', nullif(error ->> 'detail', ''), nullif(error ->> 'hint', ''),
            CASE WHEN is_waiting THEN queue_bridge.names(source, call) END)
    -- It is listed already if it is tried again.
    ON CONFLICT ON CONSTRAINT refused_source_id_made_at_verb_key DO UPDATE
    SET code = excluded.code, message = excluded.message, detail = excluded.detail, hint = excluded.hint,
        names = excluded.names, tried_at = excluded.tried_at;
END
$$;
COMMENT ON FUNCTION queue_bridge.put_aside IS 'Lists a call that is not carried out now, with the error.';

-- One walk over the waiting calls in their order. A call is tried if no call before it has failed that names the same.
-- The names of failed calls are in a hash table of three arrays, whose elements PL/pgSQL reads and writes in place.
--
-- A walk that ends early is continued by the next contact. That walk does not try the calls that the first one has
-- tried, but counts them as failed. So thousands of calls that fail keep no other from its turn.
CREATE FUNCTION queue_bridge.retry_waiting(source text) RETURNS bigint VOLATILE LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    node_id integer;
    tried_to bigint;
    give_up_at timestamptz;
    heads integer[] := array_fill(NULL::integer, ARRAY[65536]);
    blocked bigint[];
    nexts integer[];
    n integer := 0;
    slot integer;
    at integer;
    name bigint;
    one queue_bridge.refused;
    walked_to bigint := 0;
    is_free boolean;
    is_waiting boolean;
    is_late boolean := false;
    done bigint[] := '{}';
BEGIN
    SELECT s.node_id, s.tried_to INTO node_id, tried_to FROM queue_bridge.source AS s WHERE s.source = source;
    LOOP
        FOR one IN SELECT r.* FROM queue_bridge.refused AS r
                   WHERE r.source = source AND r.is_waiting AND r.refused_id > walked_to ORDER BY r.refused_id
        LOOP
            is_free := true;
            FOREACH name IN ARRAY one.names LOOP
                at := heads[1 + (name & 65535)];
                WHILE blocked[at] <> name LOOP
                    at := nexts[at];
                END LOOP;
                is_free := at IS NULL;
                EXIT WHEN NOT is_free;
            END LOOP;
            is_waiting := true;
            IF is_free AND one.refused_id > tried_to THEN
                give_up_at := coalesce(give_up_at, clock_timestamp() + interval '5 seconds');
                is_late := clock_timestamp() > give_up_at;
                EXIT WHEN is_late;
                BEGIN
                    IF queue_bridge.deliver(source, node_id, ROW(one.id, one.made_at, 0, one.verb, one.target, one.ids,
                                            one.body, one.options)::queue_bridge.outbox,
                                            one.verb IN ('e', 'm', 'b', 'w', 'p')) THEN
                        done := done || one.refused_id;
                        is_waiting := false;
                    ELSE
                        is_waiting := (SELECT r.is_waiting FROM queue_bridge.refused AS r
                                       WHERE r.refused_id = one.refused_id);
                    END IF;
                EXCEPTION WHEN OTHERS THEN
                    UPDATE queue_bridge.refused AS r
                    SET code = SQLSTATE, message = SQLERRM, tried_at = clock_timestamp()
                    WHERE r.refused_id = one.refused_id;
                END;
            END IF;
            IF is_waiting THEN
                FOREACH name IN ARRAY one.names LOOP
                    n := n + 1;
                    slot := 1 + (name & 65535);
                    blocked[n] := name;
                    nexts[n] := heads[slot];
                    heads[slot] := n;
                END LOOP;
            END IF;
            walked_to := one.refused_id;
        END LOOP;
        -- Calls that have come behind them meanwhile.
        EXIT WHEN NOT FOUND OR is_late;
    END LOOP;
    DELETE FROM queue_bridge.refused AS r WHERE r.refused_id = ANY (done);
    tried_to := CASE WHEN is_late THEN walked_to ELSE 0 END;
    UPDATE queue_bridge.source AS s SET tried_to = tried_to WHERE s.source = source AND s.tried_to <> tried_to;
    RETURN cardinality(done);
END
$$;
COMMENT ON FUNCTION queue_bridge.retry_waiting IS
    'Carries out calls of a source that wait, in their order, for five seconds at most. Returns how many succeeded.';
