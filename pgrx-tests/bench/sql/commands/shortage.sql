-- Jobs that are all due in one second.
SELECT count(*) FROM queue.enqueue_batch('sql',
    (SELECT jsonb_agg(jsonb_build_object('command', 'INSERT INTO ran VALUES ($1)', 'payload',
                jsonb_build_object('arguments', jsonb_build_array(n)), 'run_at', now() + interval '1 second'))
     FROM generate_series(1, {jobs}) AS n))
