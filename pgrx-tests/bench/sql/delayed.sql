-- Enqueues jobs $2 into queue $1 that fall due at random times within $4 microseconds from $3 on.
SELECT count(*) FROM queue.enqueue_batch($1, (
    SELECT jsonb_agg(jsonb_build_object('payload', jsonb_build_object('due', due), 'run_at', to_timestamp(due / 1e6)))
    FROM (SELECT $3::bigint + floor(random() * $4::bigint)::bigint FROM generate_series(1, $2)) AS times (due)))
