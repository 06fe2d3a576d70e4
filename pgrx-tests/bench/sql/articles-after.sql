-- {jobs} jobs in the articles' table, and {edges}: what is after what. A trigger counts down.
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
INSERT INTO jobs (payload) SELECT '1' FROM generate_series(1, {jobs});
INSERT INTO job_after (job, after) {edges};
UPDATE jobs SET status = 'held', waits = n FROM (SELECT job, count(*) AS n FROM job_after GROUP BY job) a
WHERE id = job;

VACUUM ANALYZE jobs;

VACUUM ANALYZE job_after
