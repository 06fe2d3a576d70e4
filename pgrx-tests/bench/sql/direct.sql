-- What is done, the extension's way and the kept plan's.
-- name: enqueue
SELECT count(queue.enqueue('direct', {payload})) FROM generate_series(1, {calls})

SELECT count(plan_enqueue(1, {payload})) FROM generate_series(1, {calls})
-- name: claim (the whole of it against its insert)
INSERT INTO given SELECT (queue.claim('direct')).id FROM generate_series(1, {calls})

SELECT count(*) FROM (SELECT plan_claim(id) FROM given OFFSET 0) AS done
-- name: complete
SELECT count(*) FROM (SELECT queue.complete(id) FROM given OFFSET 0) AS done

SELECT count(*) FROM (SELECT plan_complete(id) FROM given OFFSET 0) AS done
