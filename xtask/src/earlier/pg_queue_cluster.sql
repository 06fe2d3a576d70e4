-- What is made of functions and views of schema queue is made anew where these have changed.
DROP VIEW queue_cluster.queues;
DO $changed$
DECLARE
    made regprocedure;
BEGIN
    FOR made IN
        SELECT p.oid FROM pg_proc AS p
        WHERE p.pronamespace = 'queue_cluster'::regnamespace
          AND regexp_replace(p.proname, '^(away|remote|carry|view|carry_view)_', '')
              = ANY ('{extend_many,create,queues}')
    LOOP
        EXECUTE format('DROP FUNCTION %s', made);
    END LOOP;
END
$changed$;
