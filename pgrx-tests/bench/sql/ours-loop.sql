-- A worker's loop: the call that claims the next job completes the one before. Each reason is that of an attempt that
-- has not ended.
-- name: next
SELECT id, payload FROM queue.claim($2, $1, completed => $3)
-- name: complete
SELECT count(reason) FROM queue.complete_many($1)
-- name: complete-many
SELECT count(reason) FROM queue.complete_many($1)
