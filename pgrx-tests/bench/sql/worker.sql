-- A worker of pg_queue, whose claims return {columns}, wait for {wait} and complete the jobs before. Each reason is
-- that of an attempt that has not ended.
-- name: send
SELECT queue.enqueue($2, $1)
-- name: claim
SELECT {columns} FROM queue.claim($2, $1, wait => '{wait}')
-- name: next
SELECT {columns} FROM queue.claim($2, $1, wait => '{wait}', completed => $3)
-- name: complete
SELECT count(reason) FROM queue.complete_many($1)
