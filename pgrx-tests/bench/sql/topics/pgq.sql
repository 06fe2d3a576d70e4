-- name: set-up
SELECT pgq.create_queue('orders');
SELECT pgq.set_queue_config('orders', 'ticker_max_lag', '0'), pgq.set_queue_config('orders', 'ticker_max_count', '1')
-- name: queue
SELECT pgq.register_consumer('orders', '{queue}')
-- name: send
SELECT pgq.insert_event('orders', 'order.placed', $1)
-- name: tick
SELECT pgq.ticker('orders')
-- name: claim
SELECT coalesce(pgq.next_batch('orders', $1), 0)
-- name: next
SELECT ev_id, ev_data FROM pgq.get_batch_events($1)
-- name: complete
SELECT 1 - pgq.finish_batch($1)::bigint
