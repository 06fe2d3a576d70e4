INSERT INTO jobs (payload) SELECT {payload} FROM generate_series(1, {jobs});

VACUUM ANALYZE jobs
