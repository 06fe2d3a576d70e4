-- Jobs carry a text in the option {option}: a job's own, or one of a few in turn. Sessions take 1,000 numbers at once,
-- so that they are not in each other's way.
-- name: set-up
SELECT queue.create('bench', {options});
CREATE SEQUENCE numbers CACHE 1000
-- name: send
SELECT queue.enqueue($2, $1, {option} => {value})
-- name: send-many
SELECT count(*) FROM queue.enqueue_batch($2, (SELECT jsonb_agg(jsonb_build_object('payload', p, '{option}', {mark}))
                                              FROM unnest($1::jsonb[]) AS p))
