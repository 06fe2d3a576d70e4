-- An error shows all that a client can rely on: SQLSTATE, message, detail and hint.
DO $$ BEGIN
    RAISE EXCEPTION 'nothing to do' USING ERRCODE = '55000', DETAIL = 'The queue is empty.', HINT = 'Come back later.';
END $$;
SELECT extname FROM pg_extension WHERE extname = 'pg_queue';
