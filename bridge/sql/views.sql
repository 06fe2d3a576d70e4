-- What can be seen.

CREATE VIEW queue_bridge.sources WITH (security_barrier) AS
SELECT s.source, s.node_id,
       CASE WHEN NOT coalesce(p.subenabled, false) THEN 'disabled'
            WHEN a.pid IS NULL THEN 'disconnected'
            WHEN NOT coalesce(r.is_ready, false) THEN 'copying'
            ELSE 'streaming' END AS state,
       coalesce(s.problem, CASE
           WHEN w.refused_at < now() - current_setting('pg_queue.patience')::interval
           THEN format('call %s waits since %s: %s (%s)%s', w.id, w.refused_at, w.message, w.code, '. ' || w.hint)
           WHEN (s.answer #>> '{failing,since}')::timestamptz < now() - current_setting('pg_queue.patience')::interval
           THEN format('call %s fails since %s: %s (%s)', s.answer #>> '{failing,id}', s.answer #>> '{failing,since}',
                       s.answer #>> '{failing,message}', s.answer #>> '{failing,code}')
           WHEN (s.answer ->> 'stopped_since')::timestamptz < now() - current_setting('pg_queue.patience')::interval
           THEN format('no call arrives since %s: the subscription is disconnected, with %s errors so far. The log of '
                       'this server has the last one', s.answer ->> 'stopped_since', s.answer ->> 'errors')
           END, (
           SELECT format('no call arrives since %s: the subscription waits for a lock of pid %s. The source cannot '
                         'shut down before its wal_sender_timeout', l.waitstart,
                         array_to_string(pg_blocking_pids(a.pid), ', '))
           FROM pg_locks AS l WHERE l.pid = a.pid AND NOT l.granted
           AND l.waitstart < now() - current_setting('pg_queue.patience')::interval LIMIT 1), (
           SELECT 'it waits for transactions there' || substr(b.application_name, 14 + length(s.source))
           FROM pg_stat_activity AS b
           WHERE starts_with(b.application_name, format('queue_bridge_%s: ', s.source)) LIMIT 1)) AS problem,
       s.contact_at,
       (s.answer ->> 'lag_bytes')::bigint AS lag_bytes,
       coalesce(a.latest_end_time, (s.answer ->> 'caught_up_at')::timestamptz) AS caught_up_at,
       s.answer ->> 'wal_status' AS wal_status,
       (SELECT count(*) FROM queue_bridge.refused AS f
        WHERE f.source = s.source AND f.code <> 'QJ001' AND NOT f.is_waiting) AS refused,
       (SELECT count(*) FROM queue_bridge.refused AS f WHERE f.source = s.source AND f.code = 'QJ001') AS late,
       (SELECT count(*) FROM queue_bridge.phantom AS f WHERE f.source = s.source) AS phantoms,
       s.repairs,
       s.renumbered,
       s.answer ->> 'version' AS version,
       (SELECT count(*) FROM queue_bridge.refused AS f WHERE f.source = s.source AND f.is_waiting) AS waiting
FROM queue_bridge.source AS s
LEFT JOIN pg_subscription AS p ON p.oid = s.subscription
LEFT JOIN pg_stat_subscription AS a ON a.subid = s.subscription AND a.relid IS NULL AND a.pid IS NOT NULL
LEFT JOIN LATERAL (SELECT bool_and(t.srsubstate = 'r') AS is_ready FROM pg_subscription_rel AS t
                   WHERE t.srsubid = s.subscription) AS r ON true
LEFT JOIN LATERAL (SELECT f.* FROM queue_bridge.refused AS f WHERE f.source = s.source AND f.is_waiting
                   ORDER BY f.refused_id LIMIT 1) AS w ON true
WHERE s.subscription IS NOT NULL;
COMMENT ON VIEW queue_bridge.sources IS 'The sources, and how their jobs arrive.';
COMMENT ON COLUMN queue_bridge.sources.source IS 'Its name.';
COMMENT ON COLUMN queue_bridge.sources.node_id IS 'The number in all ids that are made there.';
COMMENT ON COLUMN queue_bridge.sources.state IS
    'streaming; copying: after connect or repair, the outbox is read as a whole; disconnected: PostgreSQL tries '
    'again and '
    'again, see the server''s log; disabled.';
COMMENT ON COLUMN queue_bridge.sources.problem IS
    'What the last contact found wrong: the source itself, or a call that fails or waits, or a subscription that '
    'stands or is locked out, for longer than pg_queue.patience; or for which transactions of the source a repair '
    'waits; null: nothing.';
COMMENT ON COLUMN queue_bridge.sources.contact_at IS 'When this server last spoke with it.';
COMMENT ON COLUMN queue_bridge.sources.lag_bytes IS
    'How much WAL of the source had not been taken at the last contact.';
COMMENT ON COLUMN queue_bridge.sources.caught_up_at IS 'Up to when its WAL has been taken, as PostgreSQL reports it.';
COMMENT ON COLUMN queue_bridge.sources.wal_status IS 'The state of its slot, as in pg_replication_slots.';
COMMENT ON COLUMN queue_bridge.sources.refused IS 'Calls that could not be carried out: see queue_bridge.refused.';
COMMENT ON COLUMN queue_bridge.sources.late IS
    'Attempts that were ended there after their lease was lost: see queue_bridge.refused.';
COMMENT ON COLUMN queue_bridge.sources.phantoms IS
    'Jobs of transactions that the source no longer has: see queue_bridge.phantom.';
COMMENT ON COLUMN queue_bridge.sources.repairs IS 'How often slot and subscription were made anew.';
COMMENT ON COLUMN queue_bridge.sources.renumbered IS
    'How many of its jobs got another id, because another job had theirs.';
COMMENT ON COLUMN queue_bridge.sources.version IS 'The version of bridge/primary.sql that has run there.';
COMMENT ON COLUMN queue_bridge.sources.waiting IS
    'Calls that cannot be carried out yet, and that each contact tries again: see queue_bridge.refused.';

SELECT queue_internal.close('pg_queue_bridge');
GRANT USAGE ON SCHEMA queue_bridge TO PUBLIC;
GRANT SELECT ON queue_bridge.sources TO PUBLIC;
