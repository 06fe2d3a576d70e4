-- PgQ: a tick for every call of the ticker.
-- name: set-up
SELECT pgq.create_queue('soak'), pgq.register_consumer('soak', 'worker');
SELECT pgq.set_queue_config('soak', 'ticker_max_lag', '0'), pgq.set_queue_config('soak', 'ticker_max_count', '1'),
       pgq.set_queue_config('soak', 'rotation_period', '{rotation} s')
-- name: send
SELECT pgq.insert_event('soak', 'job', $1)
-- name: claim
SELECT coalesce(pgq.next_batch('soak', 'worker'), 0)
-- name: next
SELECT ev_id, 1::bigint, (ev_data::jsonb ->> 'job')::bigint, ev_data FROM pgq.get_batch_events($1)
-- name: complete
SELECT 1 - pgq.finish_batch($1)::bigint
-- name: schema
pgq
-- name: logs
true
