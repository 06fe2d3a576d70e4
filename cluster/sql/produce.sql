-- Enqueueing. A job without a key stays at home, in the caller's transaction. A job with a key goes to the owner of the
-- key's slot. Invariant: a server enqueues a job with a key only while a shared lock on the slot, held to the end of
-- the transaction, shows that it owns the slot. A slot changes its owner under the same lock, exclusive
-- (rebalance.sql).

-- The locks are the library's own, because any role could take any advisory lock.
CREATE FUNCTION queue_cluster.hold_slot(slot integer)
    RETURNS boolean VOLATILE LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_cluster_hold_slot';
COMMENT ON FUNCTION queue_cluster.hold_slot IS
    'Keeps a slot on this server until the transaction ends. False: it is being given away. '
    'Errors: 42501 the role may do nothing on any queue.';

-- A snapshot from before the lock does not show that the slot has moved since. Then this function raises 40001. The row
-- lock blocks no other session.
CREATE FUNCTION queue_cluster.owner_now(wanted integer)
    RETURNS integer LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT s.node_id FROM queue_cluster.slot AS s
    WHERE s.slot = wanted AND (s.closed_until IS NULL OR s.closed_until < clock_timestamp()) FOR KEY SHARE
$$;

CREATE FUNCTION queue_cluster.hold(key text) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    wanted CONSTANT integer := queue_cluster.slot_of(key);
    owner integer;
BEGIN
    IF key IS NULL THEN
        RETURN;
    END IF;
    -- Nobody waits for another's transaction.
    IF queue_cluster.hold_slot(wanted) THEN
        IF current_setting('transaction_isolation') = 'read committed' THEN
            SELECT s.node_id INTO owner FROM queue_cluster.slot AS s
            WHERE s.slot = wanted AND (s.closed_until IS NULL OR s.closed_until < clock_timestamp());
        ELSE
            owner := queue_cluster.owner_now(wanted);
        END IF;
        IF owner = queue_cluster.home() THEN
            RETURN;
        END IF;
    END IF;
    RAISE EXCEPTION 'the keys of slot % are not at home on this server now', wanted USING ERRCODE = '55006',
        DETAIL = 'They are being moved, or were, and not all servers know it yet.',
        HINT = 'Repeat the call. If it stays so: SELECT * FROM queue_cluster.sync().';
END
$$;
COMMENT ON FUNCTION queue_cluster.hold IS
    'Keeps the slot of a key on this server until the transaction ends. '
    'Errors: 55006 the slot is on another server, or being moved; 42501.';

-- As hold, for the usual case, in which it is quick. Like conninfo it sets no search_path.
CREATE FUNCTION queue_cluster.try_hold(key text) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    wanted CONSTANT integer := queue_cluster.slot_of(key);
BEGIN
    IF pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.=) 'read committed'::pg_catalog.text
       AND wanted IS NOT NULL AND queue_cluster.hold_slot(wanted) THEN
        RETURN (SELECT s.node_id FROM queue_cluster.slot AS s WHERE s.slot OPERATOR(pg_catalog.=) wanted
                AND (s.closed_until IS NULL OR s.closed_until OPERATOR(pg_catalog.<) pg_catalog.clock_timestamp()));
    END IF;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION queue_cluster.try_hold IS
    'The server that owns the slot of a key. If it is this one, it keeps the slot until the transaction ends. '
    'NULL: not known; call hold.';

CREATE FUNCTION queue_cluster.target(key text, flow bigint, after bigint[]) RETURNS integer
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

CREATE FUNCTION queue_cluster.accept_enqueue_batch(queue_name text, jobs jsonb) RETURNS SETOF bigint
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

CREATE FUNCTION queue_cluster.enqueue_batch(queue_name text, jobs jsonb) RETURNS SETOF bigint
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
COMMENT ON FUNCTION queue_cluster.enqueue_batch IS
'queue.enqueue_batch, with the jobs of each key on its owner. All or none of the jobs of one server; '
'those of this server are in the caller''s
transaction. Returns the ids in order. Errors: as queue.enqueue_batch, '
'where the number of the job is that among its server''s; 55006, 0A000, 08xxx.';

-- A retry of a job with a key takes the key again, so its server must own the key.
CREATE FUNCTION queue_cluster.accept_retry(job_id bigint, run_at timestamptz) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM queue_cluster.hold(coalesce(j.group_key, j.unique_key)) FROM queue.job(accept_retry.job_id) AS j;
    PERFORM queue.retry(job_id, run_at);
END
$$;
CREATE FUNCTION queue_cluster.retry(job_id bigint, run_at timestamptz DEFAULT NULL) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    node CONSTANT integer := queue_cluster.node_of(job_id);
BEGIN
    IF node = queue_cluster.home() OR node IS NULL OR NOT queue_cluster.is_known(node) THEN
        PERFORM queue_cluster.accept_retry(job_id, run_at);
    ELSE
        PERFORM queue_cluster.remote_retry(node, job_id, run_at);
    END IF;
END
$$;
COMMENT ON FUNCTION queue_cluster.retry IS
'queue.retry on the server of the job. Errors: as there; 55006 the job has a key that has another owner by now: '
'enqueue it anew.';

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
