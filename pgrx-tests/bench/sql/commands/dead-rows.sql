-- Dead rows in the logs.
SELECT sum((pgstattuple(oid)).dead_tuple_count)::bigint FROM pg_class
WHERE relnamespace = 'queue_internal'::regnamespace AND relkind = 'r'
  AND relname ~ '^(attempt|claim|outcome|note|history)_'
