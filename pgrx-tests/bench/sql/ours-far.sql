-- {jobs} jobs in queue {queue}, 10,000 in a transaction, that fall due at random times of a year that begins in a year.
DO $$
BEGIN
    FOR filled IN 0 .. {jobs} - 1 BY 10000 LOOP
        PERFORM FROM queue.enqueue_batch('{queue}', (
            SELECT jsonb_agg(jsonb_build_object('run_at', now() + (1 + random()) * interval '1 year'))
            FROM generate_series(1, least(10000, {jobs} - filled))));
        COMMIT;
    END LOOP;
END $$
