-- Opens connections to sources, asks the sources, and closes the connections.
--
-- Invariant: a call that waits for a source can be cancelled. It has a time limit, except while the source makes a
-- slot.

CREATE FUNCTION queue_bridge.within(patience interval, command text, VARIADIC arguments text[] DEFAULT '{}')
    RETURNS void VOLATILE LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_bridge_within';
COMMENT ON FUNCTION queue_bridge.within IS
    'Runs a command that connects to a source, and gives it up after a time. patience: null: there is no limit. '
    'Errors: 08001 the time is over.';

CREATE FUNCTION queue_bridge.connect_timeout(conninfo text) RETURNS integer IMMUTABLE LANGUAGE sql
    SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN n > 0 THEN greatest(n, 2) END
    FROM coalesce(substring(conninfo FROM 'connect_timeout\s*=\s*''?(-?\d{1,6})')::integer, 10) AS n
$$;
COMMENT ON FUNCTION queue_bridge.connect_timeout IS
    'For how many seconds a connection string lets each address be tried; null: without a limit.';

-- From PostgreSQL 16 on dblink ignores connect_timeout. A name often has two addresses. Commas divide hosts; one
-- elsewhere makes the limit longer.
CREATE FUNCTION queue_bridge.connect_limit(conninfo text) RETURNS interval IMMUTABLE LANGUAGE sql
    SET search_path = pg_catalog, pg_temp AS $$
    SELECT make_interval(secs => 2 * queue_bridge.connect_timeout(conninfo)
                                 * (1 + length(conninfo) - length(replace(conninfo, ',', ''))))
$$;
COMMENT ON FUNCTION queue_bridge.connect_limit IS
    'How long a connection may take to be made, with all hosts of its string; null: without a limit.';

-- A machine that is gone does not acknowledge what is sent to it. tcp_user_timeout notices that while a connection is
-- made, too: so a host with several addresses gets each of them tried. The keepalives notice it while the source is to
-- speak. Without client_encoding, dblink would set it by a query, and wait for the answer.
CREATE FUNCTION queue_bridge.with_timeout(conninfo text) RETURNS text STABLE LANGUAGE sql
    SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN conninfo !~ '^postgres(ql)?://'
                THEN concat_ws(' ', string_agg(o.name || '=' || o.value, ' '), conninfo)
                ELSE concat_ws(CASE WHEN conninfo ~ '[?]' THEN '&' ELSE '?' END, conninfo,
                               string_agg(o.name || '=' || o.value, '&')) END
    FROM (VALUES ('connect_timeout', '10'), ('keepalives_idle', '30'),
                 ('tcp_user_timeout', (1000 * queue_bridge.connect_timeout(conninfo))::text),
                 ('client_encoding', getdatabaseencoding())) AS o (name, value)
    WHERE conninfo !~ o.name AND o.value IS NOT NULL
$$;
COMMENT ON FUNCTION queue_bridge.with_timeout IS 'A connection string that gives up, unless it says when itself.';

CREATE FUNCTION queue_bridge.dblink() RETURNS text STABLE LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT format('%I.dblink', n.nspname) FROM pg_extension AS e
    JOIN pg_namespace AS n ON n.oid = e.extnamespace WHERE e.extname = 'dblink'
$$;
COMMENT ON FUNCTION queue_bridge.dblink IS 'How the names of all functions of dblink begin: it can be in any schema.';

CREATE FUNCTION queue_bridge.close_connection(name text) RETURNS void VOLATILE LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    is_open boolean;
BEGIN
    EXECUTE format('SELECT coalesce($1 = ANY (%s_get_connections()), false)', queue_bridge.dblink())
    INTO is_open USING name;
    IF is_open THEN
        EXECUTE format('SELECT %s_disconnect($1)', queue_bridge.dblink()) USING name;
    END IF;
END
$$;
COMMENT ON FUNCTION queue_bridge.close_connection IS 'Closes a connection of this session, if it is open.';

CREATE FUNCTION queue_bridge.open_connection(name text, conninfo text) RETURNS void VOLATILE LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- A session that was cancelled has left its connection.
    PERFORM queue_bridge.close_connection(name);
    PERFORM queue_bridge.within(
        queue_bridge.connect_limit(conninfo), format('SELECT %s_connect($1, $2)', queue_bridge.dblink()),
        name, queue_bridge.with_timeout(conninfo));
END
$$;
COMMENT ON FUNCTION queue_bridge.open_connection IS
    'Opens a connection to a source. Errors: 08001 the source cannot be reached, or does not answer.';

CREATE FUNCTION queue_bridge.send(name text, command text) RETURNS void VOLATILE LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    is_sent integer;
BEGIN
    EXECUTE format('SELECT %s_send_query($1, $2)', queue_bridge.dblink()) INTO is_sent USING name, command;
    IF is_sent <> 1 THEN
        RAISE EXCEPTION 'the connection was lost' USING ERRCODE = '08006';
    END IF;
END
$$;
COMMENT ON FUNCTION queue_bridge.send IS 'Sends a query. Errors: 08006 the connection is lost.';

-- dblink waits for a result without looking for interrupts. So it is asked again and again whether there is one.
CREATE FUNCTION queue_bridge.wait_for_result(
    name text, patience interval, conninfo text DEFAULT NULL, reason text DEFAULT NULL
) RETURNS void VOLATILE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    dblink text := queue_bridge.dblink();
    since timestamptz := clock_timestamp();
    pause float8 := 0.0002;
    is_busy integer;
BEGIN
    LOOP
        EXECUTE format('SELECT %s_is_busy($1)', dblink) INTO is_busy USING name;
        EXIT WHEN is_busy = 0;
        IF reason IS NOT NULL AND clock_timestamp() > since + interval '1 second' THEN
            PERFORM queue_bridge.tell_reason(conninfo, reason);
            reason := NULL;
        END IF;
        IF clock_timestamp() > since + patience THEN
            RAISE EXCEPTION 'no answer within %', patience USING ERRCODE = '08006';
        END IF;
        PERFORM pg_sleep(pause);
        pause := least(2 * pause, 0.05);
    END LOOP;
END
$$;
COMMENT ON FUNCTION queue_bridge.wait_for_result IS
    'Waits for the next result of a query that was sent. patience: how long; null: without a limit. conninfo, reason: '
    'after a second, another connection asks this query, which says what is waited for. Errors: 08006 there is none.';

CREATE FUNCTION queue_bridge.ask(
    conninfo text, command text, patience interval DEFAULT '1 minute', name text DEFAULT 'queue_bridge',
    reason text DEFAULT NULL
) RETURNS jsonb VOLATILE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    answer jsonb;
BEGIN
    PERFORM queue_bridge.open_connection(name, conninfo);
    BEGIN
        PERFORM queue_bridge.send(name, command);
        PERFORM queue_bridge.wait_for_result(name, patience, conninfo, reason);
        EXECUTE format('SELECT answer FROM %s_get_result($1) AS t (answer jsonb)', queue_bridge.dblink())
        INTO answer USING name;
        PERFORM queue_bridge.close_connection(name);
    EXCEPTION WHEN OTHERS THEN
        PERFORM queue_bridge.close_connection(name);
        RAISE;
    END;
    RETURN answer;
END
$$;
COMMENT ON FUNCTION queue_bridge.ask IS
    'The answer of a database to a query of one row and one column. patience: how long to wait for it; null: for ever. '
    'name: of the connection. reason: a query that says there what is waited for. Errors: 08001 the database cannot be '
    'reached, 08006 there is no answer.';

-- The rows of jobs and events, one for each id. Older rows may be there already. An outbox can be long, so it is not
-- read in one answer.
CREATE FUNCTION queue_bridge.outbox_of(source text)
    RETURNS TABLE (id bigint, made_at timestamptz) VOLATILE LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    name CONSTANT text := 'queue_bridge_outbox';
    patience CONSTANT interval := '1 minute';
    dblink text := queue_bridge.dblink();
    command text;
    is_empty boolean;
BEGIN
    PERFORM queue_bridge.open_connection(name, (
        SELECT s.conninfo FROM queue_bridge.source AS s WHERE s.source = outbox_of.source));
    BEGIN
        FOREACH command IN ARRAY ARRAY['BEGIN READ ONLY', $ask$
            DECLARE ids NO SCROLL CURSOR FOR
            SELECT i.id, o.made_at FROM queue_bridge.outbox AS o, unnest(coalesce(o.ids, ARRAY[o.id])) AS i (id)
            WHERE o.verb IN ('e', 'm', 'b', 'w', 'p')
            $ask$] LOOP
            PERFORM queue_bridge.send(name, command);
            -- The command's tag, and the end.
            FOR n IN 1..2 LOOP
                PERFORM queue_bridge.wait_for_result(name, patience);
                EXECUTE format('SELECT FROM %s_get_result($1) AS t (tag text)', dblink) USING name;
            END LOOP;
        END LOOP;
        LOOP
            PERFORM queue_bridge.send(name, 'FETCH 10000 FROM ids');
            FOR n IN 1..2 LOOP
                PERFORM queue_bridge.wait_for_result(name, patience);
                RETURN QUERY EXECUTE format(
                    'SELECT t.* FROM %s_get_result($1) AS t (id bigint, made_at timestamptz)', dblink) USING name;
                is_empty := n = 1 AND NOT FOUND OR n = 2 AND is_empty;
            END LOOP;
            EXIT WHEN is_empty;
        END LOOP;
        PERFORM queue_bridge.close_connection(name);
    EXCEPTION WHEN OTHERS THEN
        PERFORM queue_bridge.close_connection(name);
        RAISE;
    END;
END
$$;
COMMENT ON FUNCTION queue_bridge.outbox_of IS
    'The ids of jobs and events in the outbox of a source. Errors: as ask.';
