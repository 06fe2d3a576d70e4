-- What connect and the contacts look for at a source and at its subscription.

-- All others have byte sequences that no character has, and PostgreSQL finds that only when it sends them.
CREATE FUNCTION queue_bridge.converts(encoding text) RETURNS boolean IMMUTABLE LANGUAGE sql AS $$
    SELECT $1 IN ('UTF8', 'LATIN1', 'LATIN2', 'LATIN4', 'LATIN5', 'LATIN6', 'LATIN7', 'LATIN8', 'LATIN9', 'LATIN10',
                  'ISO_8859_5', 'WIN866', 'WIN1256', 'KOI8R', 'KOI8U')
$$;
COMMENT ON FUNCTION queue_bridge.converts IS 'True if every text of a database with this encoding can be sent as UTF8.';

-- The sender's application_name is the name of the subscription.
CREATE FUNCTION queue_bridge.is_synchronous(source text, setting text) RETURNS boolean IMMUTABLE LANGUAGE sql AS $$
    SELECT $2 ~ '[*]' OR lower($2) ~ format('(^|[^a-z0-9_])queue_bridge_%s($|[^a-z0-9_])', $1)
$$;
COMMENT ON FUNCTION queue_bridge.is_synchronous IS
    'True if this value of synchronous_standby_names makes commits of a source wait for this server.';

CREATE FUNCTION queue_bridge.reason_query(slot text) RETURNS text IMMUTABLE LANGUAGE sql AS $$
    SELECT format($query$
        SELECT to_jsonb(string_agg(w.told, ', ')) FROM (
            SELECT format('pid %%s (%%s, since %%s)', a.pid, a.datname, coalesce(a.xact_start, a.backend_start)) AS told
            FROM pg_replication_slots AS s CROSS JOIN LATERAL unnest(pg_blocking_pids(s.active_pid)) AS b (pid)
            JOIN pg_stat_activity AS a ON a.pid = b.pid WHERE s.slot_name = %1$L
            UNION ALL
            SELECT format('prepared transaction "%%s" (%%s, since %%s)', x.gid, x.database, x.prepared)
            FROM pg_replication_slots AS s JOIN pg_locks AS l ON l.pid = s.active_pid AND NOT l.granted
            JOIN pg_prepared_xacts AS x ON x.transaction = l.transactionid WHERE s.slot_name = %1$L) AS w
    $query$, $1)
$$;
COMMENT ON FUNCTION queue_bridge.reason_query IS 'A query that says for whom the making of a slot waits.';

-- This transaction may stay open for long, and nobody sees what it writes. So other sessions see its name.
CREATE FUNCTION queue_bridge.tell_reason(conninfo text, reason text) RETURNS void VOLATILE LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    told text := queue_bridge.ask(conninfo, reason, name => 'queue_bridge_reason') #>> '{}';
BEGIN
    RAISE NOTICE 'the source waits for transactions there: %', told
        USING HINT = 'A slot begins when all transactions that are open there have ended, prepared ones too.';
    PERFORM set_config('application_name', left(format('%s: %s', current_setting('application_name'), told), 63), true);
EXCEPTION WHEN OTHERS THEN
    NULL;
END
$$;
COMMENT ON FUNCTION queue_bridge.tell_reason IS 'Says for whom a source waits, in a notice and in application_name.';

-- What fails before the first line of `arrive`, such as the conversion of a row, is in the server's log only.
CREATE FUNCTION queue_bridge.stopped(s queue_bridge.source) RETURNS jsonb VOLATILE LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    errors bigint;
    failed_at timestamptz := s.answer ->> 'failed_at';
BEGIN
    -- PostgreSQL 19 counts some errors in columns of other names.
    SELECT sum(c.value::bigint) INTO errors
    FROM pg_stat_subscription_stats AS t, jsonb_each_text(to_jsonb(t)) AS c
    WHERE t.subid = s.subscription AND c.key LIKE '%error_count';
    -- PostgreSQL starts the process again every few seconds, so it may be there by chance.
    IF errors > (s.answer ->> 'errors')::bigint OR NOT EXISTS (
        SELECT FROM pg_stat_subscription AS a WHERE a.subid = s.subscription AND a.relid IS NULL AND a.pid IS NOT NULL)
    THEN
        failed_at := clock_timestamp();
    END IF;
    RETURN jsonb_build_object('errors', errors, 'failed_at', failed_at, 'stopped_since', CASE
        WHEN failed_at > clock_timestamp() - interval '1 minute'
        THEN coalesce((s.answer ->> 'stopped_since')::timestamptz, clock_timestamp()) END);
END
$$;
COMMENT ON FUNCTION queue_bridge.stopped IS
    'How many errors the subscription has had, and since when no minute has passed without one or with a connection.';
