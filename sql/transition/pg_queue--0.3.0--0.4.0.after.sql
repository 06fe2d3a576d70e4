-- The functions that the transition has renamed hand their grants to the new functions of their names.
DO $former$
DECLARE
    former record;
    grantee text;
BEGIN
    FOR former IN
        SELECT p.oid::regprocedure AS name, p.proacl, p.proowner, n.oid::regprocedure AS new
        FROM pg_proc AS p JOIN pg_proc AS n ON n.proname = substr(p.proname, 8)
        WHERE p.pronamespace = 'queue_internal'::regnamespace AND p.proname LIKE 'former\_%'
          AND n.pronamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace)
    LOOP
        FOR grantee IN
            SELECT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END
            FROM aclexplode(former.proacl) AS a WHERE a.grantee <> former.proowner
        LOOP
            EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %s', former.new, grantee);
        END LOOP;
        EXECUTE format('DROP FUNCTION %s', former.name);
    END LOOP;
END
$former$;
