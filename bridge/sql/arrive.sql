-- What arrives from a source: each row of its outbox is a call, which a trigger carries out. No row is stored.
--
-- The search_path of a worker of logical replication is empty, and that of other sessions is not trusted. So all names
-- and operators that are not found in pg_catalog first are qualified.

CREATE FUNCTION queue_bridge.arrival(relation oid, ring integer) RETURNS oid VOLATILE LANGUAGE c
    AS 'MODULE_PATHNAME', 'pg_queue_bridge_arrival';
COMMENT ON FUNCTION queue_bridge.arrival IS
    'Counts a row that arrives from a partition of an outbox; the commit writes the numbers into the relation. Returns '
    'the subscription whose changes this session applies; null: none. Errors: 22004 relation is null, 55000 the queues '
    'are being restored.';

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

-- Carries out a call as the role of its source. What becomes of an error is decided by what it means for the call:
-- another try of the same call would fail in the same way (refused), or it can succeed once another transaction or this
-- one has ended, or a limit has room (put aside for a while), or no call would succeed now. The last is raised, and
-- PostgreSQL tries again.
--
-- A call that could succeed a moment later holds up the calls behind it for a second. While a call of the source waits,
-- all others are put aside immediately, so thousands of them hold up nothing either.
CREATE FUNCTION queue_bridge.deliver(source text, node_id integer, call queue_bridge.outbox, looks boolean)
    RETURNS boolean VOLATILE LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    all_ids bigint[] := coalesce(call.ids, ARRAY[call.id]);
    carried queue_bridge.outbox := call;
    timeout text := current_setting('lock_timeout');
    is_patient boolean := NOT EXISTS (SELECT FROM queue_bridge.refused AS f WHERE f.source = source AND f.is_waiting);
    give_up_at timestamptz := clock_timestamp() + interval '1 second';
    passed bigint[] := '{}';
    answer jsonb;
    code text;
    is_waiting boolean;
    has_gone_on boolean;
    n integer;
BEGIN
    IF looks THEN
        passed := ARRAY(SELECT p.id FROM queue_bridge.passed AS p
                        WHERE p.id = ANY (all_ids) AND p.made_at = call.made_at);
        IF call.verb = 'p' AND passed <> '{}' THEN
            RETURN true;
        END IF;
    END IF;
    -- A restored dump inserts old rows once more, so older rows are looked for, too.
    IF call.verb IN ('c', 'x') AND (looks OR call.made_at < clock_timestamp() - interval '1 minute')
       AND EXISTS (SELECT FROM queue_bridge.ended AS e WHERE e.source = source AND e.id = call.id
                   AND e.made_at = call.made_at AND e.verb = call.verb) THEN
        RETURN true;
    END IF;
    IF call.verb IN ('s', 'x') THEN
        carried.id := coalesce((
            SELECT p.job_id FROM queue_bridge.passed AS p
            WHERE p.id = call.id AND p.job_id IS NOT NULL ORDER BY p.made_at DESC LIMIT 1), call.id);
    ELSIF call.verb IN ('e', 'm', 'b', 'w', 'p')
       AND EXISTS (SELECT FROM unnest(all_ids) AS i (id) WHERE ((i.id >> 46) & 127) IS DISTINCT FROM node_id) THEN
        PERFORM queue_bridge.put_aside(source, call, false, jsonb_build_object(
            'code', '22023', 'message', format('an id does not have the number of source "%s"', source)));
        RETURN false;
    END IF;
    PERFORM set_config('lock_timeout', CASE WHEN is_patient THEN '1s' ELSE '10ms' END, true);
    LOOP
        answer := queue_bridge.carry_out_as(source, 'queue_bridge.carry_out'::regproc, carried, passed, looks);
        code := answer ->> 'code';
        -- A conflict, a deadlock, a lack of room, an object in use, a lock.
        is_waiting := coalesce(code IN ('40001', '40P01', '53200', '53400', '55006', '55P03'), false);
        EXIT WHEN NOT is_waiting OR NOT is_patient OR clock_timestamp() > give_up_at;
        PERFORM pg_sleep(0.02);
    END LOOP;
    PERFORM set_config('lock_timeout', timeout, true);
    IF code !~ '^(22|54)' AND NOT is_waiting
       AND code NOT IN ('0A000', '23505', '42501', '42704', '55000', 'P0002', 'QJ001') THEN
        PERFORM queue_bridge.note_failure(source, call.id, code, answer ->> 'message');
        RAISE EXCEPTION USING ERRCODE = code, MESSAGE = answer ->> 'message', DETAIL = answer ->> 'detail',
            HINT = concat_ws(' ', nullif(answer ->> 'hint', ''),
                format('It is the call with id %s of source "%s". SELECT queue_bridge.refuse(%L, %s) puts it aside.',
                       call.id, source, source, call.id));
    END IF;
    -- An end or a cancellation that has arrived before finds a job that has gone on; jobs that have arrived before are
    -- there, though the source has lost its privilege since.
    has_gone_on := looks AND (
        call.verb IN ('c', 'f', 'r') AND code IN ('P0002', 'QJ001')
        OR call.verb IN ('s', 'x') AND code IN ('P0002', '55000')
        OR call.verb IN ('e', 'm', 'b', 'w') AND code = '42501'
           AND NOT EXISTS (SELECT FROM unnest(all_ids) AS i (id) WHERE NOT EXISTS (SELECT FROM queue.job(i.id))));
    IF code IS NOT NULL AND NOT has_gone_on THEN
        PERFORM queue_bridge.put_aside(source, call, is_waiting, answer);
    ELSIF call.verb = 'x' OR call.verb = 'c' AND code IS NULL AND answer <> '{}' THEN
        INSERT INTO queue_bridge.ended VALUES (source, call.id, call.made_at, call.verb) ON CONFLICT DO NOTHING;
    ELSIF code IS NULL AND answer <> '{}' THEN
        INSERT INTO queue_bridge.passed (id, made_at, job_id)
        SELECT o.key::bigint, call.made_at, o.value::bigint FROM jsonb_each_text(answer) AS o ON CONFLICT DO NOTHING;
        -- The others of them found the job that has their key.
        n := (SELECT count(*) FROM jsonb_each_text(answer) AS o CROSS JOIN LATERAL queue.job(o.value::bigint) AS j
              WHERE j.headers ? 'primary_id' AND j.enqueued_at = call.made_at);
        IF n > 0 THEN
            UPDATE queue_bridge.source AS s SET renumbered = s.renumbered + n WHERE s.source = source;
        END IF;
    END IF;
    RETURN code IS NULL;
END
$$;
COMMENT ON FUNCTION queue_bridge.deliver IS
'Carries out a call of a source, and returns true. What can never succeed, and what cannot succeed yet, goes to
queue_bridge.refused, and the answer is false; anything else is raised. looks: it may have arrived before.';

CREATE FUNCTION queue_bridge.arrive() RETURNS trigger VOLATILE LANGUAGE plpgsql AS $$
DECLARE
    own oid := queue_bridge.arrival('queue_bridge.arrived'::regclass, NEW.ring);
    job bigint;
    looks boolean;
    ahead bigint;
    s record;
BEGIN
    SELECT o.source, o.node_id, NEW.id = ANY (o.refusing) AS is_put_aside,
           EXISTS (SELECT FROM queue_bridge.refused AS f WHERE f.source = o.source AND f.is_waiting) AS has_waiting
    INTO s FROM queue_bridge.source AS o WHERE o.subscription = own;
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
        PERFORM queue_bridge.put_aside(s.source, NEW, false, '{"code": "57014", "message": "put aside by refuse"}');
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
    IF s.has_waiting THEN
        ahead := queue_bridge.ahead(queue_bridge.names(s.source, NEW));
        IF ahead IS NOT NULL THEN
            PERFORM queue_bridge.put_aside(s.source, NEW, true, jsonb_build_object(
                'code', '55006', 'message', format('it comes after call %s, which waits', ahead)));
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
    UPDATE queue_bridge.refused AS r SET names = NULL, code = '57014', message = 'put aside by refuse'
    WHERE r.source = refuse.source AND r.id = refuse.id AND r.is_waiting;
    IF FOUND THEN
        RETURN;
    END IF;
    UPDATE queue_bridge.source AS s SET refusing = array_append(array_remove(s.refusing, refuse.id), refuse.id)
    WHERE s.source = refuse.source;
END
$$;
COMMENT ON FUNCTION queue_bridge.refuse IS
'Puts aside the next call with this id that arrives: it goes to queue_bridge.refused, and the calls behind it go on. For
a call that fails again and again; queue_bridge.sources and the server''s log name it. A call that waits is refused, and
no contact tries it again. retry_refused delivers it later.
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
               WHERE r.source = source AND NOT r.is_waiting
                 AND (refused_ids IS NULL OR r.refused_id = ANY (refused_ids))
               ORDER BY r.refused_id FOR UPDATE
    LOOP
        SELECT queue_bridge.deliver(s.source, s.node_id, ROW(one.id, one.made_at, 0, one.verb, one.target, one.ids,
                                    one.body, one.options)::queue_bridge.outbox,
                                    one.verb IN ('e', 'm', 'b', 'w', 'p'))
        INTO is_done FROM queue_bridge.source AS s WHERE s.source = source;
        succeeded := succeeded + is_done::integer;
        DELETE FROM queue_bridge.refused AS r
        WHERE r.refused_id = one.refused_id AND (is_done OR r.code = 'QJ001');
    END LOOP;
    RETURN succeeded;
END
$$;
COMMENT ON FUNCTION queue_bridge.retry_refused IS
'Carries out refused calls of a source once more: those with these refused_ids, or all. What is refused again
stays listed, except an end that comes too late. Calls that wait are tried by each contact, and not here. Returns how
many succeeded.';
