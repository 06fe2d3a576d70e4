-- One call, with the same rows for one queue.
-- name: queue
SELECT queue.create('{queue}')
-- name: send
SELECT queue.enqueue_batch('q1', $1)
-- name: empty
SELECT queue.purge('{queue}')
