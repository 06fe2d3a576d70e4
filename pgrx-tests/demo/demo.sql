-- The extension is there.
SELECT extname, extversion FROM pg_extension WHERE extname = 'pg_queue';
