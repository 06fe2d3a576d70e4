-- {jobs} jobs in queue {queue}, 10,000 in a transaction, that must start at random times within {span} microseconds
-- from {from}.
DO $$
BEGIN
    FOR filled IN 0 .. {jobs} - 1 BY 10000 LOOP
        PERFORM FROM queue.enqueue_batch('{queue}', (
            SELECT jsonb_agg(jsonb_build_object('payload', 1, 'start_by', start_by))
            FROM (SELECT to_timestamp(({from}::bigint + floor(random() * {span}::bigint)) / 1e6)
                  FROM generate_series(1, least(10000, {jobs} - filled))) AS times (start_by)));
        COMMIT;
    END LOOP;
END $$
