-- What an application's own migrations do.
CREATE EXTENSION pg_queue;
SELECT queue.create('greetings');
CREATE TABLE greeting (job_id bigint PRIMARY KEY, text text NOT NULL);
