-- 100,000 jobs wait, 10,000 in a transaction. As a rule a hundred that follow each other have the same text.
DO $$
BEGIN
    FOR filled IN 1 .. 10 LOOP
        PERFORM FROM queue.enqueue_batch('bench', (
            SELECT jsonb_agg(jsonb_build_object('payload', {payload}, '{option}', {mark}))
            FROM generate_series(1, 10000) AS p));
        COMMIT;
    END LOOP;
END $$

-- All groups are met, so that each job that must wait is where it waits.
BEGIN;
SELECT count(*) FROM queue.claim('bench', 1000);
ROLLBACK
