-- What a parallel query reads that takes all processes that are free.
CREATE TABLE held AS SELECT n FROM generate_series(1, 20000) AS n;
ALTER TABLE held SET (parallel_workers = 64);
ANALYZE held
