-- A thousand jobs of another queue in each of the first seven young segments. Then the eighth is open, and grows.
SELECT queue.create('others')

DO $$
BEGIN
    FOR segment IN 1 .. 7 LOOP
        PERFORM FROM queue.enqueue_many('others', array_fill('{}'::jsonb, ARRAY[1000]));
        COMMIT;
        WHILE (SELECT count(*) FROM queue_internal.segment_log WHERE state = 'o') < segment + 2 LOOP
            PERFORM pg_sleep(0.02);
            COMMIT;
        END LOOP;
    END LOOP;
END $$
