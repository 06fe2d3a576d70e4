-- Runs once, in the new database, as the superuser.
CREATE EXTENSION IF NOT EXISTS pg_queue;
CREATE ROLE app LOGIN PASSWORD 'app';
ALTER DATABASE app OWNER TO app;
SELECT queue.grant('*', 'app', 'manage');

-- What an application's own migrations do, as the application's role.
SET ROLE app;
SELECT queue.create('greetings');
CREATE TABLE greeting (job_id bigint PRIMARY KEY, text text NOT NULL);
