-- Two topics: three bindings of each match the events.
SELECT queue.create('q' || n) FROM generate_series(1, 3) AS n;
SELECT queue.create_topic('few'), queue.create_topic('many');
SELECT queue.bind('few', 'q1', 'shop.*.*'), queue.bind('few', 'q2'), queue.bind('few', 'q3', '#.sold');
SELECT queue.bind('many', 'q2'), queue.bind('many', 'q3', '#.sold');
SELECT count(queue.bind('many', 'q1', 'shop.' || n || '.*')) FROM generate_series(1, {bindings} - 2) AS n
