-- On the queue server. Another source is connected in the same way.
CREATE EXTENSION pg_queue_bridge CASCADE;
SELECT queue.create('orders');
SELECT queue_bridge.connect('shop', 'host=primary dbname=shop user=taker password=taker');
SELECT queue_bridge.allow('shop', 'orders');
