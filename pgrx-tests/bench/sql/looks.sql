-- Each block is a transaction. For each of 90 days a job takes the way through the segments: each gets its table.
SELECT queue.create('q' || n, retention => make_interval(days => n)) FROM generate_series(1, 90) AS n;

SELECT queue.enqueue('q' || n, '1') FROM generate_series(1, 90) AS n;

SELECT queue.complete(id) FROM generate_series(1, 90) AS n, queue.claim('q' || n);

DO $$
BEGIN
    WHILE EXISTS (SELECT FROM queue_internal.attempt_0) LOOP
        PERFORM FROM queue.maintain();
        COMMIT;
    END LOOP;
END $$;

-- The other jobs are put beside them.
DO $$
DECLARE
    day record;
    first bigint := {first};
BEGIN
    FOR day IN
        SELECT inhrelid::regclass AS day, lane
        FROM pg_inherits JOIN queue_internal.history AS h ON h.tableoid = inhrelid
        WHERE inhparent = 'queue_internal.history'::regclass
    LOOP
        EXECUTE format(
            'INSERT INTO %s (id, job_id, generation, enqueued_at, claimed_at, ended_at, lane, priority, attempt, pid,
                             outcome, claim_kind, payload)
             SELECT n << 4, n << 4 | 15, 1, now(), now(), now(), %s, 0, 1, 1, ''c'', ''w'', ''{"to": 7}''
             FROM generate_series(%s, %s) AS n', day.day, day.lane, first, first + {each} - 1);
        first := first + {each};
    END LOOP;
END $$;

VACUUM;

SELECT queue.create('young', max_attempts => 1);

-- Jobs that are not in history yet, one in ten of them dead.
SELECT count(*) FROM queue.enqueue_many('young', array_fill('{"to": 7}'::jsonb, '{100000}'));

SELECT count(*) FROM queue.fail_many(ARRAY(SELECT id FROM queue.claim('young', 10000)), 'it failed');
