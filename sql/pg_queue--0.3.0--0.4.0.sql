\echo Use "ALTER EXTENSION pg_queue UPDATE TO '0.4.0'" to load this file. \quit

-- Made by `make generate` from sql/schema and the transition: do not edit.

SET LOCAL search_path TO pg_catalog, pg_temp;

DO $each_column$
DECLARE
    attribute name;
BEGIN
    FOR attribute IN
        SELECT a.attname FROM pg_attribute AS a JOIN pg_attribute AS b ON b.attname = a.attname
        WHERE a.attrelid = 'queue.binding'::regclass AND b.attrelid = 'queue.bindings'::regclass AND a.attnum > 0
          AND col_description(a.attrelid, a.attnum) IS NULL
    LOOP
        EXECUTE format('COMMENT ON COLUMN queue.binding.%I IS %L', attribute, (
            SELECT col_description(attrelid, attnum) FROM pg_attribute
            WHERE attrelid = 'queue.bindings'::regclass AND attname = attribute));
    END LOOP;
END
$each_column$;

DO $each_column$
DECLARE
    relation regclass;
    attribute name;
BEGIN
    -- Columns named alike mean the same; those that no statement above explained get the words of the others.
    FOR relation, attribute IN
        SELECT a.attrelid::regclass, a.attname FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid
        WHERE c.relnamespace = 'queue'::regnamespace AND c.relkind IN ('v', 'r') AND a.attnum > 0 AND NOT a.attisdropped
          AND col_description(a.attrelid, a.attnum) IS NULL
    LOOP
        EXECUTE format('COMMENT ON COLUMN %s.%I IS %L', relation, attribute, coalesce((
            SELECT min(col_description(b.attrelid, b.attnum)) FROM pg_attribute AS b JOIN pg_class AS d ON d.oid = b.attrelid
            WHERE d.relnamespace = 'queue'::regnamespace AND b.attname = attribute AND col_description(b.attrelid, b.attnum) IS NOT NULL
              AND d.relkind IN ('v', 'c')
              AND d.relname NOT IN ('activity_part', 'activity_period', 'bindings', 'error_group', 'listed_job', 'topics')
              -- What is said there is of queues, and of their table.
              AND (d.relname = 'queues') = (relation = 'queue.queue'::regclass)), replace(attribute::text, '_', ' ')));
    END LOOP;
END
$each_column$;

DO $each_view$
DECLARE
    relation regclass;
BEGIN
    FOR relation IN
        SELECT oid FROM pg_catalog.pg_class
        WHERE relnamespace = 'queue'::regnamespace AND relkind = 'v'
          AND NOT EXISTS (SELECT FROM pg_catalog.pg_trigger WHERE tgrelid = pg_class.oid AND tgname = 'read_only')
        ORDER BY relname
    LOOP
        -- For each statement, so that one which finds no row is told as well; only with the other does it fire.
        EXECUTE format($sql$
            CREATE TRIGGER read_only BEFORE INSERT OR UPDATE OR DELETE ON %1$s
                FOR EACH STATEMENT EXECUTE FUNCTION queue_internal.read_only();
            CREATE TRIGGER read_only_row INSTEAD OF INSERT OR UPDATE OR DELETE ON %1$s
                FOR EACH ROW EXECUTE FUNCTION queue_internal.read_only();
        $sql$, relation);
    END LOOP;
END
$each_view$;

-- On each table, whatever is granted, also to pg_write_all_data. The tables of history that are made later get it as well.
DO $each_table$
DECLARE
    relation regclass;
BEGIN
    FOR relation IN
        SELECT oid FROM pg_catalog.pg_class
        WHERE relnamespace = 'queue'::regnamespace AND relkind IN ('r', 'p')
          AND NOT EXISTS (SELECT FROM pg_catalog.pg_trigger WHERE tgrelid = pg_class.oid AND tgname = 'foreign_write')
        ORDER BY relname
    LOOP
        -- Always: some restore with session_replication_role = replica.
        EXECUTE format($sql$
            CREATE TRIGGER foreign_write BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON %1$s
                FOR EACH STATEMENT EXECUTE FUNCTION queue_internal.foreign_write();
            ALTER TABLE %1$s ENABLE ALWAYS TRIGGER foreign_write;
        $sql$, relation);
    END LOOP;
END
$each_table$;

-- No role may do anything with what this transaction has made but its owner: neither by ALTER DEFAULT PRIVILEGES of the role that runs
-- this script, nor as PUBLIC. What was there before keeps its grants. A member of the extension is new if the row that says so is.
DO $each_grant$
DECLARE
    opened record;
BEGIN
    FOR opened IN
        WITH made AS (
            SELECT classid, objid FROM pg_catalog.pg_depend
            WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e' AND age(xmin) <= 0
              AND refobjid = (SELECT oid FROM pg_catalog.pg_extension WHERE extname = 'pg_queue')
        )
        SELECT c.oid::regclass::text AS object, CASE WHEN c.relkind = 'S' THEN 'SEQUENCE' ELSE 'TABLE' END AS kind,
               CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END AS grantee
        FROM made JOIN pg_catalog.pg_class AS c ON made.classid = 'pg_class'::regclass AND c.oid = made.objid,
             pg_catalog.aclexplode(c.relacl) AS a
        WHERE a.grantee <> c.relowner
        UNION
        SELECT p.oid::regprocedure::text, 'ROUTINE', CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END
        FROM made JOIN pg_catalog.pg_proc AS p ON made.classid = 'pg_proc'::regclass AND p.oid = made.objid,
             pg_catalog.aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) AS a
        WHERE a.grantee <> p.proowner
        UNION
        SELECT t.oid::regtype::text, 'TYPE', CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END
        FROM made JOIN pg_catalog.pg_type AS t ON made.classid = 'pg_type'::regclass AND t.oid = made.objid,
             pg_catalog.aclexplode(t.typacl) AS a
        WHERE a.grantee NOT IN (t.typowner, 0)
        UNION
        SELECT quote_ident(n.nspname), 'SCHEMA', CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END
        FROM made JOIN pg_catalog.pg_namespace AS n ON made.classid = 'pg_namespace'::regclass AND n.oid = made.objid,
             pg_catalog.aclexplode(n.nspacl) AS a
        WHERE a.grantee <> n.nspowner
    LOOP
        EXECUTE format('REVOKE ALL ON %s %s FROM %s', opened.kind, opened.object, opened.grantee);
    END LOOP;
END
$each_grant$;

-- For the roles to whom something was granted, on what is new.
SELECT queue_internal.derive_grants();
