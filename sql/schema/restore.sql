-- Restores: what tells that the tables are being written by SQL, until that is over.

CREATE TABLE queue.restoring (
    written_at  timestamptz NOT NULL,
    pid         integer     NOT NULL
);
-- Here, and wherever else rows are updated or deleted without a primary key: a publication of all tables would refuse
-- it.
ALTER TABLE queue.restoring REPLICA IDENTITY FULL;
CREATE INDEX restoring_written_at_idx ON queue.restoring (written_at);
COMMENT ON TABLE queue.restoring IS
    'Transactions that have written to the tables by SQL: while there are any, no job is run. Not dumped.';
COMMENT ON COLUMN queue.restoring.written_at IS 'When it began to.';
COMMENT ON COLUMN queue.restoring.pid IS 'Its process.';

CREATE FUNCTION queue_internal.foreign_write() RETURNS trigger
    LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_foreign_write';
COMMENT ON FUNCTION queue_internal.foreign_write IS
'Statement trigger on all tables: only their owner may write to them by SQL, and no job is run meanwhile, '
'where it matters. The
extension''s own writes are let through.';

CREATE FUNCTION queue_internal.read_only() RETURNS trigger
    LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_read_only';
COMMENT ON FUNCTION queue_internal.read_only IS
    'Trigger on the views: raises that they cannot be written to, and what to do instead.';

-- For: manage '*'.
CREATE FUNCTION queue.adopt() RETURNS void
    LANGUAGE c AS 'MODULE_PATHNAME', 'pg_queue_adopt';
COMMENT ON FUNCTION queue.adopt IS
'Ends a restore by hand: what is in the tables counts from the commit on, and sequences are set behind it. Errors:
55006 another transaction writes to the tables by SQL, 25001 at REPEATABLE READ or above.';
