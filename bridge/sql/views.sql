-- What can be seen.

CREATE VIEW queue_bridge.sources WITH (security_barrier) AS
SELECT s.source, s.node_id,
       CASE WHEN NOT coalesce(p.subenabled, false) THEN 'disabled'
            WHEN a.pid IS NULL THEN 'disconnected'
            WHEN NOT coalesce(r.is_ready, false) THEN 'copying'
            ELSE 'streaming' END AS state,
       coalesce(s.problem, CASE
           WHEN (s.answer #>> '{failing,since}')::timestamptz < now() - current_setting('pg_queue.patience')::interval
           THEN format('call %s fails since %s: %s (%s)', s.answer #>> '{failing,id}', s.answer #>> '{failing,since}',
                       s.answer #>> '{failing,message}', s.answer #>> '{failing,code}') END) AS problem,
       s.contact_at,
       (s.answer ->> 'lag_bytes')::bigint AS lag_bytes,
       coalesce(a.latest_end_time, (s.answer ->> 'caught_up_at')::timestamptz) AS caught_up_at,
       s.answer ->> 'wal_status' AS wal_status,
       (SELECT count(*) FROM queue_bridge.refused AS f WHERE f.source = s.source AND f.code <> 'QJ001') AS refused,
       (SELECT count(*) FROM queue_bridge.refused AS f WHERE f.source = s.source AND f.code = 'QJ001') AS late,
       (SELECT count(*) FROM queue_bridge.phantom AS f WHERE f.source = s.source) AS phantoms,
       s.repairs,
       s.renumbered,
       s.answer ->> 'version' AS version
FROM queue_bridge.source AS s
LEFT JOIN pg_subscription AS p ON p.oid = s.subscription
LEFT JOIN pg_stat_subscription AS a ON a.subid = s.subscription AND a.relid IS NULL AND a.pid IS NOT NULL
LEFT JOIN LATERAL (SELECT bool_and(t.srsubstate = 'r') AS is_ready FROM pg_subscription_rel AS t
                   WHERE t.srsubid = s.subscription) AS r ON true
WHERE s.subscription IS NOT NULL;
COMMENT ON VIEW queue_bridge.sources IS 'The sources, and how their jobs arrive.';
COMMENT ON COLUMN queue_bridge.sources.source IS 'Its name.';
COMMENT ON COLUMN queue_bridge.sources.node_id IS 'The number in all ids that are made there.';
COMMENT ON COLUMN queue_bridge.sources.state IS
    'streaming; copying: after connect or repair, the outbox is read as a whole; disconnected: PostgreSQL tries '
    'again and '
    'again, see the server''s log; disabled.';
COMMENT ON COLUMN queue_bridge.sources.problem IS
    'What the last contact found wrong: the source itself, or a call that fails for longer than pg_queue.patience; '
    'null: nothing.';
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

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA queue_bridge FROM PUBLIC;
REVOKE ALL ON ALL PROCEDURES IN SCHEMA queue_bridge FROM PUBLIC;
GRANT USAGE ON SCHEMA queue_bridge TO PUBLIC;
GRANT SELECT ON queue_bridge.sources TO PUBLIC;
