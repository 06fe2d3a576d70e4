-- name: set-up
SELECT queue.create_topic('orders')
-- name: queue
SELECT queue.create('{queue}'), queue.bind('orders', '{queue}', 'order.*')
-- name: send
SELECT job_id FROM queue.publish('orders', $1, 'order.placed')
-- name: empty
SELECT queue.purge('{queue}')
