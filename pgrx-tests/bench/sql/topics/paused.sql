SELECT queue.create_topic('orders');
SELECT queue.create('q' || n, retention => '0') FROM generate_series(1, 3) AS n;
SELECT queue.bind('orders', 'q' || n) FROM generate_series(1, 3) AS n
