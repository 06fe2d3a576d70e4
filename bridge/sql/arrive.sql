-- What arrives from a source: each row of its outbox is a call, which a trigger carries out. No row is stored.
--
-- The search_path of a worker of logical replication is empty, and that of other sessions is not trusted. So all names
-- and operators that are not found in pg_catalog first are qualified.

CREATE FUNCTION queue_bridge.subscription() RETURNS oid VOLATILE LANGUAGE c
    AS 'MODULE_PATHNAME', 'pg_queue_bridge_subscription';
COMMENT ON FUNCTION queue_bridge.subscription IS
    'The subscription whose changes this session applies; null: none. Errors: 55000 the queues are being restored.';

CREATE FUNCTION queue_bridge.is_streamed(subscription oid, relation oid) RETURNS boolean VOLATILE LANGUAGE c
    AS 'MODULE_PATHNAME', 'pg_queue_bridge_is_streamed';
COMMENT ON FUNCTION queue_bridge.is_streamed IS
    'Whether the subscription has copied the table and streams its changes. Errors: 22004 an argument is null.';

CREATE FUNCTION queue_bridge.enqueue(
    queue_name text, ids bigint[], made_at timestamptz, body jsonb, options jsonb, form text, passed bigint[]
) RETURNS SETOF bigint VOLATILE LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_bridge_enqueue';
COMMENT ON FUNCTION queue_bridge.enqueue IS
'Enqueues jobs with the ids and the time that a source gave them. form: e (body is a payload), m (payloads), b (jobs),
w (a flow: its id, then those of its tasks, in order; the tasks are among the options). passed: null if none of the ids
can have arrived before; otherwise those of them that have arrived and made no job. Returns the job of each id; null:
it has arrived before. Only roles of sources may execute it. Errors: as queue.enqueue and queue.enqueue_flow; 22023 an
id is none of a source.';

CREATE FUNCTION queue_bridge.enqueue_new(
    queue_name text, id bigint, made_at timestamptz, payload jsonb, options jsonb, source text, looks boolean
) RETURNS bigint VOLATILE LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_bridge_enqueue_new';
COMMENT ON FUNCTION queue_bridge.enqueue_new IS
'Enqueues a job with the id and the time that a source gave it, as the role of the source. looks: it may have arrived
before. Returns the id, or that of the job that has its unique_key; null: it has arrived before. Errors: as
queue.enqueue; 22023 the id is none of a source, 23505 another job has the id, 42501 the user is no member of the
role.';

CREATE FUNCTION queue_bridge.publish(topic text, ids bigint[], made_at timestamptz, body jsonb, options jsonb)
    RETURNS void VOLATILE LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_bridge_publish';
COMMENT ON FUNCTION queue_bridge.publish IS
    'Publishes an event with the id and the time that a source gave it. Only roles of sources may execute it. '
    'Errors: as queue.publish.';

CREATE FUNCTION queue_bridge.complete_waiting(id bigint, result jsonb) RETURNS boolean VOLATILE LANGUAGE c
    AS 'MODULE_PATHNAME', 'pg_queue_bridge_complete_waiting';
COMMENT ON FUNCTION queue_bridge.complete_waiting IS
    'Completes the job of an attempt that has lost its lease, failed or was released, because the effects of the '
    'attempt are committed at its source. False: it has not ended so, or its job does not wait for a worker, or the '
    'user may not consume it, or id is null. Only roles of sources may execute it. Errors: 55006 another open '
    'transaction is changing the job.';

CREATE TABLE queue_bridge.outbox (
    id      bigint NOT NULL,
    made_at timestamptz NOT NULL,
    ring    smallint,
    verb    "char" NOT NULL,
    target  text,
    ids     bigint[],
    body    jsonb,
    options jsonb
);
COMMENT ON TABLE queue_bridge.outbox IS 'Where the rows of all sources arrive. It stays empty.';
COMMENT ON COLUMN queue_bridge.outbox.id IS 'The job, attempt or event.';
COMMENT ON COLUMN queue_bridge.outbox.made_at IS 'When it was called there.';
COMMENT ON COLUMN queue_bridge.outbox.ring IS 'The partition there.';
COMMENT ON COLUMN queue_bridge.outbox.verb IS 'See queue_bridge.refused.';
COMMENT ON COLUMN queue_bridge.outbox.target IS 'The queue or topic.';
COMMENT ON COLUMN queue_bridge.outbox.ids IS 'Several jobs or attempts; null: one, which is id.';
COMMENT ON COLUMN queue_bridge.outbox.body IS 'The payload, the payloads, the jobs, the result.';
COMMENT ON COLUMN queue_bridge.outbox.options IS 'The other arguments.';

-- The error ends this transaction, so another server keeps the note.
CREATE FUNCTION queue_bridge.note_failure(source text, id bigint, code text, message text)
    RETURNS void VOLATILE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_bridge.ask(
        (SELECT s.conninfo FROM queue_bridge.source AS s WHERE s.source = note_failure.source),
        format('SELECT queue_bridge.failed(%L)', jsonb_build_object('id', id, 'code', code, 'message', message)));
EXCEPTION WHEN OTHERS THEN
    -- The error itself is raised, and logged.
    NULL;
END
$$;
COMMENT ON FUNCTION queue_bridge.note_failure IS
    'Tells a source which of its calls fails. It says so at the next contact, and queue_bridge.sources shows it.';

-- Carries out a call as the role of its source. Which errors are final is decided by what they mean for the call:
-- another try of the same call would fail in the same way. All others are raised, and PostgreSQL tries again.
CREATE FUNCTION queue_bridge.deliver(source text, node_id integer, call queue_bridge.outbox, looks boolean)
    RETURNS boolean VOLATILE LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    all_ids bigint[] := coalesce(call.ids, ARRAY[call.id]);
    before text := current_setting('role');
    passed bigint[];
    others bigint[] := '{}';
    other_ids bigint[] := '{}';
    job bigint;
    n integer := 0;
    code text;
    told text;
    why text;
BEGIN
    IF looks THEN
        passed := ARRAY(SELECT p.id FROM queue_bridge.passed AS p
                        WHERE p.id = ANY (all_ids) AND p.made_at = call.made_at);
        IF call.verb = 'p' AND passed <> '{}' THEN
            RETURN true;
        END IF;
    END IF;
    IF call.verb IN ('s', 'x') THEN
        SELECT p.job_id INTO job FROM queue_bridge.passed AS p
        WHERE p.id = call.id AND p.job_id IS NOT NULL ORDER BY p.made_at DESC LIMIT 1;
    END IF;
    PERFORM set_config('role', 'queue_bridge_' || source, true);
    BEGIN
        IF call.verb IN ('e', 'm', 'b', 'w', 'p')
           AND EXISTS (SELECT FROM unnest(all_ids) AS i (id) WHERE ((i.id >> 46) & 127) IS DISTINCT FROM node_id) THEN
            RAISE EXCEPTION 'an id does not have the number of source "%"', source USING ERRCODE = '22023';
        ELSIF NOT isfinite(call.made_at) THEN
            RAISE EXCEPTION 'made_at must be finite' USING ERRCODE = '22023';
        END IF;
        CASE call.verb
            WHEN 'e', 'm', 'b', 'w' THEN
                FOR job IN SELECT * FROM queue_bridge.enqueue(call.target, all_ids, call.made_at, call.body,
                                                              call.options, call.verb::text, passed) LOOP
                    n := n + 1;
                    IF job <> all_ids[n] THEN
                        other_ids := other_ids || all_ids[n];
                        others := others || job;
                    END IF;
                END LOOP;
            WHEN 's' THEN
                PERFORM queue.seal(coalesce(job, call.id));
            WHEN 'p' THEN
                PERFORM queue_bridge.publish(call.target, all_ids, call.made_at, call.body, call.options);
                other_ids := all_ids;
                others := ARRAY[NULL::bigint];
            WHEN 'c' THEN
                IF call.ids IS NULL THEN
                    -- The effects are committed, so no other attempt is needed. If another worker has the job, its once
                    -- says false.
                    BEGIN
                        PERFORM queue.complete(call.id, call.body);
                    EXCEPTION WHEN SQLSTATE 'QJ001' THEN
                        IF NOT queue_bridge.complete_waiting(call.id, call.body) THEN
                            RAISE;
                        END IF;
                    END;
                ELSE
                    PERFORM queue_bridge.complete_waiting(a.id, NULL)
                    FROM queue.complete_many(call.ids) AS a WHERE a.outcome = 'lost';
                END IF;
            WHEN 'f' THEN
                PERFORM queue.fail(call.id, call.options ->> 'error', (call.options ->> 'retry_in')::interval,
                                   coalesce((call.options ->> 'fatal')::boolean, false));
            WHEN 'r' THEN
                PERFORM queue.release(call.id, coalesce(call.options ->> 'delay', '0')::interval);
            WHEN 'x' THEN
                PERFORM queue.cancel(coalesce(job, call.id), call.options ->> 'reason');
            ELSE
                RAISE EXCEPTION 'unknown verb "%"', call.verb USING ERRCODE = '0A000',
                    HINT = 'ALTER EXTENSION pg_queue_bridge UPDATE: the SQL on the primary is newer.';
        END CASE;
    EXCEPTION WHEN OTHERS THEN
        GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, told = MESSAGE_TEXT, why = PG_EXCEPTION_DETAIL;
        IF code !~ '^22' AND code NOT IN ('0A000', '23505', '42501', '42704', '54000', '55000', 'P0002', 'QJ001') THEN
            PERFORM set_config('role', before, true);
            PERFORM queue_bridge.note_failure(source, call.id, code, told);
            RAISE EXCEPTION USING ERRCODE = code, MESSAGE = told, DETAIL = why, HINT = format(
                'It is the call with id %s of source "%s". SELECT queue_bridge.refuse(%L, %s) puts it aside.',
                call.id, source, source, call.id);
        END IF;
    END;
    PERFORM set_config('role', before, true);
    -- An end or a cancellation that has arrived before finds a job that has gone on.
    IF code IS NOT NULL AND (NOT looks OR call.verb IN ('e', 'm', 'b', 'w', 'p')) THEN
        INSERT INTO queue_bridge.refused (source, id, made_at, verb, target, ids, body, options, code, message, detail)
        VALUES (source, call.id, call.made_at, call.verb, call.target, call.ids, call.body, call.options, code, told,
                nullif(why, ''))
        -- It is listed already if retry_refused delivers it.
        ON CONFLICT ON CONSTRAINT refused_source_id_made_at_verb_key DO UPDATE
        SET code = excluded.code, message = excluded.message, detail = excluded.detail;
    ELSIF other_ids <> '{}' THEN
        INSERT INTO queue_bridge.passed (id, made_at, job_id)
        SELECT o.id, call.made_at, o.job_id FROM unnest(other_ids, others) AS o (id, job_id)
        ON CONFLICT DO NOTHING;
        -- The others of them found the job that has their key.
        n := (SELECT count(*) FROM unnest(others) AS o (job_id) CROSS JOIN LATERAL queue.job(o.job_id) AS j
              WHERE j.headers ? 'primary_id' AND j.enqueued_at = call.made_at);
        IF n > 0 THEN
            UPDATE queue_bridge.source AS s SET renumbered = s.renumbered + n WHERE s.source = source;
        END IF;
    END IF;
    RETURN code IS NULL;
END
$$;
COMMENT ON FUNCTION queue_bridge.deliver IS
'Carries out a call of a source. What can never succeed goes to queue_bridge.refused, and the answer is false; anything
else is raised. looks: it may have arrived before.';

CREATE FUNCTION queue_bridge.arrive() RETURNS trigger VOLATILE LANGUAGE plpgsql AS $$
DECLARE
    own oid := queue_bridge.subscription();
    job bigint;
    looks boolean;
    s record;
BEGIN
    SELECT o.source, o.node_id, NEW.id = ANY (o.refusing) AS is_put_aside INTO s
    FROM queue_bridge.source AS o WHERE o.subscription = own;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'rows arrive in queue_bridge.outbox by replication from a source only' USING ERRCODE = '42501',
            HINT = 'See queue_bridge.connect.';
    END IF;
    -- While the table is copied, anything may have arrived before. After that a row arrives once: the position of the
    -- subscription and the effects of the row commit together. But a dump that is restored there inserts old rows once
    -- more, so older rows are looked for, too.
    looks := NOT queue_bridge.is_streamed(own, TG_RELID) OR NEW.verb IN ('e', 'm', 'b', 'w', 'p')
        AND NEW.made_at < clock_timestamp() - interval '1 minute';
    IF s.is_put_aside THEN
        INSERT INTO queue_bridge.refused (source, id, made_at, verb, target, ids, body, options, code, message)
        VALUES (s.source, NEW.id, NEW.made_at, NEW.verb, NEW.target, NEW.ids, NEW.body, NEW.options, '57014',
                'put aside by queue_bridge.refuse')
        ON CONFLICT DO NOTHING;
        UPDATE queue_bridge.source AS o SET refusing = array_remove(o.refusing, NEW.id) WHERE o.source = s.source;
        RETURN NULL;
    -- A refused call waits for retry_refused, also when it arrives once more. A job may have another id here.
    ELSIF looks THEN
        IF EXISTS (SELECT FROM queue_bridge.refused AS f WHERE f.source = s.source AND f.id = NEW.id
                   AND f.made_at = NEW.made_at AND f.verb = NEW.verb)
           OR NEW.verb = 'e' AND EXISTS (
               SELECT FROM queue_bridge.passed AS p WHERE p.id = NEW.id AND p.made_at = NEW.made_at) THEN
            RETURN NULL;
        END IF;
    END IF;
    -- Most rows are one job. `deliver` would do the same, by three times as many statements. If this fails, `deliver`
    -- fails too, and says of what, or it makes the job under another id.
    IF NEW.verb = 'e' AND (NEW.id >> 46) & 127 = s.node_id AND isfinite(NEW.made_at)
       AND NEW.options ->> 'unique_key' IS NULL THEN
        BEGIN
            -- An assignment costs less than PERFORM, which is a query.
            job := queue_bridge.enqueue_new(NEW.target, NEW.id, NEW.made_at, NEW.body, NEW.options, s.source, looks);
            RETURN NULL;
        EXCEPTION WHEN OTHERS THEN
            NULL;
        END;
    END IF;
    PERFORM queue_bridge.deliver(s.source, s.node_id, NEW, looks);
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION queue_bridge.arrive IS 'Carries out the call in a row that arrives, and does not store the row.';
CREATE TRIGGER arrive BEFORE INSERT ON queue_bridge.outbox FOR EACH ROW EXECUTE FUNCTION queue_bridge.arrive();
ALTER TABLE queue_bridge.outbox ENABLE ALWAYS TRIGGER arrive;

CREATE FUNCTION queue_bridge.refuse(source text, id bigint) RETURNS void VOLATILE LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_bridge.locked_source(source);
    UPDATE queue_bridge.source AS s SET refusing = array_append(array_remove(s.refusing, refuse.id), refuse.id)
    WHERE s.source = refuse.source;
END
$$;
COMMENT ON FUNCTION queue_bridge.refuse IS
'Puts aside the next call with this id that arrives: it goes to queue_bridge.refused, and the calls behind it go on. For
a call that fails again and again; queue_bridge.sources and the server''s log name it. retry_refused delivers it later.
Errors: 42704 there is no such source.';

CREATE FUNCTION queue_bridge.retry_refused(source text, refused_ids bigint[] DEFAULT NULL)
    RETURNS bigint VOLATILE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    one queue_bridge.refused;
    is_done boolean;
    succeeded bigint := 0;
BEGIN
    -- In the order of arrival: a flow comes before its members, and those before it is sealed.
    FOR one IN SELECT r.* FROM queue_bridge.refused AS r
               WHERE r.source = source AND (refused_ids IS NULL OR r.refused_id = ANY (refused_ids))
               ORDER BY r.refused_id FOR UPDATE
    LOOP
        SELECT queue_bridge.deliver(s.source, s.node_id, ROW(one.id, one.made_at, 0, one.verb, one.target, one.ids,
                                    one.body, one.options)::queue_bridge.outbox, true)
        INTO is_done FROM queue_bridge.source AS s WHERE s.source = source;
        succeeded := succeeded + is_done::integer;
        DELETE FROM queue_bridge.refused AS r
        WHERE r.refused_id = one.refused_id AND (is_done OR one.verb IN ('c', 'f', 'r'));
    END LOOP;
    RETURN succeeded;
END
$$;
COMMENT ON FUNCTION queue_bridge.retry_refused IS
'Carries out refused calls of a source once more: those with these refused_ids, or all. What is refused again
stays listed, except an end that comes too late. Returns how many succeeded.';
