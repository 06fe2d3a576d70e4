ALTER VIEW queue_cluster.jobs RENAME COLUMN started_at TO claimed_at;

-- What is made of functions of schema queue is made anew where these have changed.
DO $changed$
DECLARE
    made regprocedure;
BEGIN
    FOR made IN
        SELECT p.oid FROM pg_proc AS p
        WHERE p.pronamespace = 'queue_cluster'::regnamespace
          AND regexp_replace(p.proname, '^(away|remote|carry)_', '')
              = ANY ('{complete_many,fail_many,release_many,extend_many,cancel_many,reprioritize_many,search,suspend}')
    LOOP
        EXECUTE format('DROP FUNCTION %s', made);
    END LOOP;
END
$changed$;
DROP FUNCTION queue_cluster.complete_away(bigint[]);
