-- Kinds of calls with unique keys. A blank line is between statements of one call.
-- name: set-up
SELECT queue.create(q, lease => '1 day')
FROM unnest('{plain, fresh, life, hot, there, waiting, running, bulk}'::text[]) AS q;
CREATE SEQUENCE n;

SELECT queue.enqueue('there', unique_key => 'k'), queue.enqueue('running', unique_key => 'k');

SELECT FROM queue.claim('running')
-- name: enqueue without a key
SELECT queue.enqueue('plain')
-- name: enqueue, a new key
SELECT queue.enqueue('fresh', unique_key => nextval('n')::text)
-- name: enqueue, claim, complete without a key
SELECT queue.enqueue('life')

SELECT queue.complete(id) FROM queue.claim('life')
-- name: enqueue, claim, complete, one hot key
SELECT queue.enqueue('hot', unique_key => 'k')

SELECT queue.complete(id) FROM queue.claim('hot')
-- name: skip, the job is there
SELECT queue.enqueue('there', unique_key => 'k')
-- name: replace a waiting job, one hot key
SELECT queue.enqueue('waiting', unique_key => 'k', on_duplicate => 'replace')
-- name: rerun of a running job, one hot key
SELECT queue.enqueue('running', unique_key => 'k', on_duplicate => 'rerun')
