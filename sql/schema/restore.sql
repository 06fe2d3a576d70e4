-- Restores: how the extension notices that SQL writes the tables, and how that ends.

CREATE TABLE queue_internal.restoring (
    written_at  timestamptz NOT NULL,
    pid         integer     NOT NULL
);
-- Here, and on other tables without a primary key: a publication of all tables would otherwise refuse updates and
-- deletes.
ALTER TABLE queue_internal.restoring REPLICA IDENTITY FULL;
CREATE INDEX restoring_written_at_idx ON queue_internal.restoring (written_at);
COMMENT ON TABLE queue_internal.restoring IS
    'Transactions that have written to the tables by SQL. While there are any, no job runs. Not dumped.';
COMMENT ON COLUMN queue_internal.restoring.written_at IS 'When it began to write.';
COMMENT ON COLUMN queue_internal.restoring.pid IS 'The process of the transaction.';

CREATE FUNCTION queue_internal.foreign_write() RETURNS trigger
    LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_foreign_write';
COMMENT ON FUNCTION queue_internal.foreign_write IS
'Statement trigger on all tables. Only their owner may write to them by SQL, and while it does so, no job runs where
that matters. The trigger ignores the extension''s own writes.';

CREATE FUNCTION queue_internal.read_only() RETURNS trigger
    LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_read_only';
COMMENT ON FUNCTION queue_internal.read_only IS
    'Trigger on the views: raises an error that says that they are read-only, and what to do instead.';

-- For: manage '*'.
CREATE FUNCTION queue.adopt() RETURNS void
    LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_adopt';
COMMENT ON FUNCTION queue.adopt IS
'Ends a restore by hand. From the commit on, the contents of the tables count, and sequences are set behind them.
Errors: 55006 another transaction writes to the tables by SQL, 25001 at REPEATABLE READ or above.';
