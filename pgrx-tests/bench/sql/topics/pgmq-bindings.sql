SELECT pgmq.create('q' || n) FROM generate_series(1, 3) AS n;
SELECT pgmq.bind_topic('#', 'q2');
SELECT pgmq.bind_topic('#.sold', 'q3');
SELECT count(pgmq.bind_topic('shop.' || n || '.*', 'q1')) FROM generate_series(1, {bindings} - 2) AS n;
ANALYZE
