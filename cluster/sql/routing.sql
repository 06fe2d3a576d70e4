-- Calls of other servers. PL/Proxy carries them, as the calling role, and each is a transaction of its own there.
--
-- For each verb of queue.* there is a function of the same signature here. For most verbs it is in C, and costs nothing
-- at home. If the call concerns only this server, it passes the call on to queue.VERB, else to away_VERB. That decides
-- which server gets the call. A function remote_VERB carries it there. Most are made from templates (verbs.sql).

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
