-- Other plans than by the index are forbidden.
-- name: settings
SET enable_seqscan = off; SET enable_bitmapscan = off
