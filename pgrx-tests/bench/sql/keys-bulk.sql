SELECT count(*) FROM queue.enqueue_batch('bulk',
    (SELECT jsonb_agg(jsonb_build_object('unique_key', n::text)) FROM generate_series(1, {keys}) AS n))
