-- name: queue
SELECT pgmq.create('{queue}'); SELECT pgmq.bind_topic('order.*', '{queue}')
-- name: send
SELECT pgmq.send_topic('order.placed', $1)
-- name: claim
SELECT msg_id, message FROM pgmq.read($2, 60, $1)
-- name: complete
SELECT cardinality($1::bigint[]) - count(*) FROM pgmq.delete($2, $1::bigint[])
-- name: empty
SELECT pgmq.purge_queue('{queue}')
