-- Statements that are sent as psql sends them, three times each.
-- name: jobs: count of a queue's dead
SELECT count(*) FROM queue.jobs WHERE queue_name = 'young' AND state = 'dead'
-- name: jobs: ten of a queue's dead
SELECT * FROM queue.jobs WHERE queue_name = 'young' AND state = 'dead' LIMIT 10
-- name: jobs: all of a small queue
SELECT * FROM queue.jobs WHERE queue_name = 'q1'
-- name: errors
SELECT * FROM queue.errors
-- name: retry_many: one thousand dead
SELECT * FROM queue.retry_many(ARRAY(
    SELECT job_id FROM queue.search('young', states => '{dead}', max_jobs => 1000))) WHERE reason IS NULL
