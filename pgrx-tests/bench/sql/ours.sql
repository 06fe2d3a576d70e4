-- pg_queue, by a call for each step. The floor tells how many, not which; so does this.
-- name: set-up
SELECT queue.create('bench', {options})
-- name: send
SELECT queue.enqueue($2, $1)
-- name: send-many
SELECT count(*) FROM queue.enqueue_many($2, $1)
-- name: claim
SELECT id, payload FROM queue.claim($2, $1)
-- name: complete
SELECT queue.complete($1)
-- name: complete-many
SELECT count(*) FROM queue.complete_many($1)
