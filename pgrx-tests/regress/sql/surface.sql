-- All that a user can name: functions with their arguments, defaults and results, what claims return, views and
-- their columns, settings. A change here is a change of the contract.
\pset format unaligned
\pset tuples_only on

SELECT CASE prokind WHEN 'p' THEN 'procedure ' ELSE '' END || proname || '('
           -- The defaults without their types, which are the arguments'.
           || regexp_replace(replace(pg_get_function_arguments(oid), ' DEFAULT ', ' = '), '::[a-z ]+(\[\])?', '', 'g')
           || ')'
           || CASE prokind WHEN 'f' THEN E'\n    -> ' || pg_get_function_result(oid) ELSE '' END
FROM pg_proc WHERE pronamespace = 'queue'::regnamespace ORDER BY proname;

SELECT 'type ' || t.typname || E'\n    '
       || string_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod), E'\n    ' ORDER BY a.attnum)
FROM pg_type AS t JOIN pg_class AS c ON c.oid = t.typrelid JOIN pg_attribute AS a ON a.attrelid = c.oid
WHERE t.typnamespace = 'queue'::regnamespace AND c.relkind = 'c' GROUP BY t.typname ORDER BY t.typname;

SELECT 'view ' || c.relname || E'\n    '
       || string_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod), E'\n    ' ORDER BY a.attnum)
FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid
WHERE c.relnamespace = 'queue'::regnamespace AND c.relkind = 'v' AND a.attnum > 0
GROUP BY c.relname ORDER BY c.relname;

SELECT name || ' = ' || boot_val || coalesce(' ' || unit, '') || ' (' || context || ')'
FROM pg_settings WHERE name LIKE 'pg_queue.%' ORDER BY name;
