-- Schedules of pg_cron that are due each minute. This begins when a minute does, and ends just before the next.
CREATE EXTENSION pg_cron;
CREATE EXTENSION pgstattuple;
CREATE TABLE ran (n integer, at timestamptz DEFAULT clock_timestamp());

SELECT pg_sleep(60 - extract(second FROM clock_timestamp()) + 1);

SELECT cron.schedule('s' || n, '* * * * *', format('INSERT INTO ran VALUES (%s)', n))
FROM generate_series(1, {schedules}) AS n;

SELECT pg_sleep(55 - extract(second FROM clock_timestamp()))
