-- To the end of the minute; no run begins afterwards.
SELECT pg_sleep(58 - extract(second FROM clock_timestamp()));

UPDATE cron.job SET active = false;

SELECT pg_sleep(30)
