-- Tables in place of those of pg_cron, pg_timetable and pgAgent, for the examples of docs/coming-from/pg-cron.md.
CREATE ROLE reports LOGIN;
CREATE SCHEMA cron;
CREATE TABLE cron.job (
    jobid bigint PRIMARY KEY,
    schedule text NOT NULL,
    command text NOT NULL,
    nodename text NOT NULL DEFAULT 'localhost',
    nodeport integer NOT NULL DEFAULT current_setting('port')::int,
    database text NOT NULL DEFAULT current_database(),
    username text NOT NULL DEFAULT current_user,
    active boolean NOT NULL DEFAULT true,
    jobname text
);
CREATE TABLE cron.job_run_details (jobid bigint, status text);
INSERT INTO cron.job (jobid, jobname, schedule, command, active, username) VALUES
    (1, 'nightly', '30 2 * * *', 'CALL make_report()', true, 'reports'),
    (2, 'billing', '0 3 $ * *', 'CALL bill()', true, 'reports'),
    (3, 'poll', '30 seconds', 'CALL poll()', false, 'reports'),
    (4, NULL, '0 4 * * *', 'VACUUM', true, 'reports'),
    (5, 'start', '@reboot', 'CALL warm_up()', true, 'reports');

CREATE SCHEMA timetable;
CREATE TABLE timetable.chain (
    chain_id bigint PRIMARY KEY, chain_name text, run_at text, max_instances integer, timeout integer DEFAULT 0,
    live boolean,
    self_destruct boolean DEFAULT false, exclusive_execution boolean DEFAULT false, client_name text, on_error text
);
CREATE TABLE timetable.task (
    task_id bigint, chain_id bigint, task_order float8, kind text, command text, run_as text,
    database_connection text,
    ignore_error boolean DEFAULT false, autonomous boolean DEFAULT false, timeout integer DEFAULT 0,
    live boolean DEFAULT true
);
CREATE TABLE timetable.parameter (task_id bigint, order_id integer, value jsonb);
INSERT INTO timetable.chain (chain_id, chain_name, run_at, live) VALUES
    (1, 'month', '0 1 1 * *', true), (2, 'clean', '@every 2 hours', true), (3, 'mail', '* * * * *', true);
INSERT INTO timetable.task (task_id, chain_id, task_order, kind, command, run_as, autonomous, ignore_error) VALUES
    (1, 1, 10, 'SQL', 'CALL load()', 'reports', true, true),
    (2, 1, 20, 'SQL', 'CALL aggregate()', 'reports', false, false),
    (3, 2, 10, 'SQL', 'DELETE FROM old', 'reports', false, false),
    (4, 2, 20, 'SQL', 'ANALYZE old', 'reports', false, false),
    (5, 3, 10, 'BUILTIN', 'SendMail', NULL, false, false);

CREATE SCHEMA pgagent;
CREATE TABLE pgagent.pga_job (jobid integer, jobname text, jobenabled boolean DEFAULT true);
CREATE TABLE pgagent.pga_jobstep (
    jstjobid integer, jstname text, jstenabled boolean DEFAULT true, jstkind "char", jstcode text, jstonerror "char",
    jstconnstr text DEFAULT '', jstdbname name DEFAULT current_database()
);
CREATE TABLE pgagent.pga_schedule (
    jscid integer, jscjobid integer, jscenabled boolean DEFAULT true, jscstart timestamptz DEFAULT now(),
    jscend timestamptz,
    jscminutes boolean[], jschours boolean[], jscweekdays boolean[], jscmonthdays boolean[], jscmonths boolean[]
);
CREATE TABLE pgagent.pga_exception (jexid integer, jexscid integer, jexdate date, jextime time);
INSERT INTO pgagent.pga_job VALUES (1, 'weekly');
INSERT INTO pgagent.pga_jobstep (jstjobid, jstname, jstkind, jstcode, jstonerror) VALUES
    (1, 'a load', 's', 'CALL load()', 'i'), (1, 'b sum', 's', 'CALL aggregate()', 'f');
-- Saturdays and Sundays, 3:00 and 3:30.
INSERT INTO pgagent.pga_schedule (jscid, jscjobid, jscminutes, jschours, jscweekdays, jscmonthdays, jscmonths)
SELECT 1, 1, array_agg(n IN (1, 31) ORDER BY n), array_agg(n = 4 ORDER BY n) FILTER (WHERE n <= 24),
    array_agg(n IN (1, 7) ORDER BY n) FILTER (WHERE n <= 7), array_agg(false) FILTER (WHERE n <= 32),
    array_agg(false) FILTER (WHERE n <= 12)
FROM generate_series(1, 60) AS n;
