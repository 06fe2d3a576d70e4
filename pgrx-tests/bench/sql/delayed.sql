-- {jobs} jobs in queue {queue}, 10,000 in a transaction, that fall due at random times within {span} microseconds from
-- {from}.
DO $$
BEGIN
    FOR filled IN 0 .. {jobs} - 1 BY 10000 LOOP
        PERFORM FROM queue.enqueue_batch('{queue}', (
            SELECT jsonb_agg(jsonb_build_object('payload', jsonb_build_object('due', due),
                                                'run_at', to_timestamp(due / 1e6)))
            FROM (SELECT {from}::bigint + floor(random() * {span}::bigint)::bigint
                  FROM generate_series(1, least(10000, {jobs} - filled))) AS times (due)));
        COMMIT;
    END LOOP;
END $$
