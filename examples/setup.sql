-- What the example workers work on: a queue, and the table that its jobs write into.
CREATE TABLE greeting (job_id bigint NOT NULL, text text NOT NULL);
SELECT queue.create('greetings', lease => '1 minute');
