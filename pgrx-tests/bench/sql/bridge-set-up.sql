-- The queue server, and what its source may use.
CREATE EXTENSION pg_queue_bridge CASCADE;

SELECT queue.create('q', retention => '1 day'), queue.create('wake'), queue.create('mark'),
    queue.create('late', backoff => 'constant', backoff_base => '0', max_attempts => 100);

SELECT queue_bridge.connect('shop', 'host={primary} port=5432 user=postgres dbname=postgres');

SELECT queue_bridge.allow('shop', name, '{produce,consume}') FROM unnest('{q,wake,mark,late}'::text[]) AS name;

SELECT queue_bridge.contact('shop')
