-- {schema} is the cluster's or the queue's own. {key}: an option of the enqueue, or nothing.
-- name: send
SELECT {schema}.enqueue('{queue}', $1{key})
-- name: send-many
SELECT {schema}.enqueue_many('{queue}', array_fill($1::jsonb, '{{batch}}'))
-- name: claim
SELECT id FROM {schema}.claim('{queue}')
-- name: claim-many
SELECT id FROM {schema}.claim('{queue}', {batch})
-- name: complete
SELECT {schema}.complete($1)
-- name: complete-many
SELECT count(*) FROM {schema}.complete_many($1)
