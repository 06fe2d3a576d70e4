ALTER TABLE jobs ADD COLUMN waits integer NOT NULL DEFAULT 0;
CREATE TABLE job_after (job bigint NOT NULL, after bigint NOT NULL);
CREATE INDEX ON job_after (after);
CREATE FUNCTION release() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE jobs SET waits = waits - 1, status = CASE WHEN waits = 1 THEN 'queued' ELSE 'held' END
    WHERE id IN (SELECT job FROM job_after WHERE after = NEW.id);
    RETURN NULL;
END $$;
CREATE TRIGGER release AFTER UPDATE OF status ON jobs
FOR EACH ROW WHEN (NEW.status = 'done') EXECUTE FUNCTION release();
