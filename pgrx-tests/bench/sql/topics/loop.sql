-- A call for each queue, in one transaction.
-- name: queue
SELECT queue.create('{queue}')
-- name: send
SELECT queue.enqueue('q1', $1, headers => '{headers}'),
       queue.enqueue('q2', $1, headers => '{headers}'),
       queue.enqueue('q3', $1, headers => '{headers}'),
       queue.enqueue('q4', $1, headers => '{headers}'),
       queue.enqueue('q5', $1, headers => '{headers}'),
       queue.enqueue('q6', $1, headers => '{headers}'),
       queue.enqueue('q7', $1, headers => '{headers}'),
       queue.enqueue('q8', $1, headers => '{headers}')
-- name: empty
SELECT queue.purge('{queue}')
