-- Claiming: first at home. Other servers are asked only if no job is found at home.

CREATE FUNCTION queue_cluster.steals_from() RETURNS SETOF integer VOLATILE ROWS 3 LANGUAGE sql BEGIN ATOMIC
    SELECT n FROM queue_cluster.others() AS n
    ORDER BY n::text = pg_catalog.current_setting('pg_queue_cluster.found_at', true) DESC NULLS LAST,
        pg_catalog.random()
    LIMIT 3;
END;
COMMENT ON FUNCTION queue_cluster.steals_from IS
    'The servers that a claim asks in one round if it finds nothing at home: '
    'the one where this session last found a job, and two random ones.';

CREATE FUNCTION queue_cluster.nap() RETURNS interval STABLE LANGUAGE sql
    RETURN coalesce(nullif(pg_catalog.current_setting('pg_queue_cluster.nap', true), ''), '500 ms')::interval;
COMMENT ON FUNCTION queue_cluster.nap IS
    'How long a waiting claim waits at home before it asks the other servers again: '
    'the setting pg_queue_cluster.nap, by default 500 ms.';

-- Returns when a waiting call must return. It is before statement_timeout, which would end the call with an error.
CREATE FUNCTION queue_cluster.deadline(wait interval) RETURNS timestamptz STABLE LANGUAGE sql
    RETURN pg_catalog.statement_timestamp() + least(wait, pg_catalog.current_setting('pg_queue.max_wait')::interval,
        nullif(pg_catalog.current_setting('statement_timeout')::interval, '0') - interval '100 ms');

-- Completes the attempts of other servers. Returns those that could not be completed, as queue.claim does.
CREATE FUNCTION queue_cluster.complete_away(ids bigint[], results json) RETURNS SETOF queue.claimed_job ROWS 1
    LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT jsonb_populate_record(NULL::queue.claimed_job,
        jsonb_build_object('id', a.id, 'headers', jsonb_build_object('outcome', a.outcome, 'reason', a.reason)))
    FROM queue_cluster.end_batch(
        (SELECT json_agg(json_build_object('complete', json_build_object(
             'id', i.id, 'result', results -> (i.n - 1)::integer)) ORDER BY i.n)
         FROM unnest(ids) WITH ORDINALITY AS i (id, n) WHERE NOT queue_cluster.is_home(i.id))) AS a
    WHERE a.outcome <> 'completed'
$$;

CREATE FUNCTION queue_cluster.id_of_end(one json) RETURNS bigint STABLE LANGUAGE c
    AS 'MODULE_PATHNAME', 'pg_queue_cluster_id_of_end';
COMMENT ON FUNCTION queue_cluster.id_of_end IS
    'The id of the attempt in an element of queue_cluster.end_batch. NULL: the element names none.';

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

COMMENT ON FUNCTION queue_cluster.claim IS
'queue.claim from this server; if it has no job, from another one, '
'which is asked again after each nap while the call waits. A claim that is stolen is
no part of the caller''s transaction: after a rollback it stays until its lease is over. '
'disconnect does not shorten the lease of a stolen job: '
'the connection to its server is not the caller''s. steal false, disconnect ''0'' or linger: never.
Errors: as queue.claim.';
COMMENT ON FUNCTION queue_cluster.claim_any IS
    'As queue_cluster.claim, from the first of several queues. Errors: as queue.claim_any.';
