-- From templates the script makes each verb and view that is missing. So this drops those whose function or view of
-- schema queue has changed.
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
