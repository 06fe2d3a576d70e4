-- Whether all that a source has made has arrived. Both sides count, so a change of the publication, of the outbox or of
-- the trigger here loses no call in silence.

CREATE FUNCTION queue_bridge.arrived_of(subscription oid) RETURNS jsonb VOLATILE LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    IF (SELECT count(*) FROM queue_bridge.arrived AS a WHERE a.subscription = subscription) > 100 THEN
        WITH old AS (
            DELETE FROM queue_bridge.arrived AS a WHERE a.subscription = subscription RETURNING a.ring, a.rows)
        INSERT INTO queue_bridge.arrived SELECT subscription, o.ring, sum(o.rows) FROM old AS o GROUP BY o.ring;
    END IF;
    RETURN (SELECT jsonb_object_agg(n.ring, (SELECT coalesce(sum(a.rows), 0) FROM queue_bridge.arrived AS a
                                             WHERE a.subscription = subscription AND a.ring = n.ring))
            FROM generate_series(0, 2) AS n (ring));
END
$$;
COMMENT ON FUNCTION queue_bridge.arrived_of IS 'How many rows of each partition have arrived by a subscription.';

-- The source says how many rows it had made at a position of its WAL. When the slot has passed that position, all of
-- these rows have arrived. Rows that came later can hide others that are missing, but not for longer than two hours:
-- the source counts a partition once more before it empties it.
CREATE FUNCTION queue_bridge.missing(s queue_bridge.source, answer jsonb) RETURNS bigint VOLATILE LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    arrived jsonb := queue_bridge.arrived_of(s.subscription);
BEGIN
    IF (answer ->> 'taken_lsn')::pg_lsn < (s.answer ->> 'made_lsn')::pg_lsn
       OR (s.answer ->> 'is_copied')::boolean IS NOT TRUE THEN
        RETURN 0;
    END IF;
    RETURN (SELECT coalesce(sum(m.rows::bigint - (arrived ->> m.ring)::bigint), 0)
            FROM jsonb_each_text(s.answer -> 'made') AS m (ring, rows)
            WHERE m.rows::bigint > (arrived ->> m.ring)::bigint);
END
$$;
COMMENT ON FUNCTION queue_bridge.missing IS
    'How many rows that the source had made at the last contact have not arrived, although all of its WAL has.';

-- ENABLE TRIGGER ALL makes the trigger one that replication does not fire. Then rows are stored, and nothing is called.
CREATE FUNCTION queue_bridge.mend_arrivals() RETURNS boolean VOLATILE LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    enabled "char" := (SELECT t.tgenabled FROM pg_trigger AS t
                       WHERE t.tgrelid = 'queue_bridge.outbox'::regclass AND t.tgname = 'arrive');
BEGIN
    IF enabled = 'A' AND pg_relation_size('queue_bridge.outbox') = 0 THEN
        RETURN false;
    END IF;
    LOCK TABLE queue_bridge.outbox;
    ALTER TABLE queue_bridge.outbox ENABLE ALWAYS TRIGGER arrive;
    IF EXISTS (SELECT FROM queue_bridge.outbox) THEN
        -- They are still in the outboxes of the sources, which are copied once more.
        UPDATE queue_bridge.source AS s SET answer = coalesce(s.answer, '{}') || '{"is_stored": true}';
    END IF;
    TRUNCATE queue_bridge.outbox;
    RETURN true;
END
$$;
COMMENT ON FUNCTION queue_bridge.mend_arrivals IS
    'Enables the trigger that carries out calls, if it is not, and has all sources repaired if rows were stored.';
