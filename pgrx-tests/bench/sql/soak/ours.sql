-- name: set-up
SELECT queue.create('soak'), queue.create('soak-held')
-- name: send
SELECT queue.enqueue($2, $1, priority => $3, delay => $4::float8 * interval '1 second')
-- name: retry
SELECT count(reason) FROM queue.fail_many($1, 'not yet', retry_in => '{retry_ms} ms')
-- name: kill
SELECT count(reason) FROM queue.fail_many($1, 'never', fatal => true)
-- name: schema
queue
-- name: logs
c.relname ~ '^(attempt|claim|outcome|note)_[0-9]+$'
