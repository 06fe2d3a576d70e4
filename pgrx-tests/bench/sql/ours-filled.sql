-- {jobs} jobs that wait, 10,000 in a transaction.
DO $$
BEGIN
    FOR filled IN 0 .. {jobs} - 1 BY 10000 LOOP
        PERFORM FROM queue.enqueue_many('bench', array_fill({payload}, ARRAY[least(10000, {jobs} - filled)]));
        COMMIT;
    END LOOP;
END $$
