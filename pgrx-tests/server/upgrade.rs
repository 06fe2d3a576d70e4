//! Upgrades: every released version is brought up to date by its scripts, and is then what a fresh installation is.

use postgres::Client;

use crate::shared::{Database, Sql};

/// The versions that were released, oldest first, each with its scripts below `sql/`.
const RELEASED: [&str; 1] = ["0.1.0"];

/// Everything that the extension consists of, a line each: what is in it, how it is defined, what it says of itself
/// and who may do what with it. Names only, no oids; in the order of the lines.
const SNAPSHOT: &str = r#"
WITH member AS (
    SELECT d.classid, d.objid FROM pg_depend AS d
    WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
      AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'pg_queue')
), relation AS (
    -- What belongs to a member's schema belongs to the extension: indexes, partitions, sequences of columns.
    SELECT c.* FROM pg_class AS c WHERE c.relnamespace = 'queue'::regnamespace
), line AS (
    SELECT 'member ' || i.type || ' ' || i.identity AS line
    FROM member, pg_identify_object(classid, objid, 0) AS i
  UNION ALL
    SELECT 'comment ' || i.type || ' ' || i.identity || ': ' || c.description
    FROM pg_description AS c, pg_identify_object(c.classoid, c.objoid, c.objsubid) AS i
    WHERE i.schema = 'queue' OR i.identity = 'queue'
  UNION ALL
    SELECT 'function ' || pg_get_functiondef(p.oid) FROM pg_proc AS p
    WHERE p.pronamespace = 'queue'::regnamespace
  UNION ALL
    SELECT format('function %s may %s by %s of %s', p.oid::regprocedure, a.privilege_type,
                  CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END, a.grantor::regrole)
    FROM pg_proc AS p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) AS a
    WHERE p.pronamespace = 'queue'::regnamespace
  UNION ALL
    SELECT format('relation %s %s %s %s %s replica %s', r.relkind, r.oid::regclass, r.relpersistence, r.reloptions,
                  pg_get_partkeydef(r.oid), r.relreplident)
    FROM relation AS r
  UNION ALL
    SELECT format('relation %s may %s by %s of %s', r.oid::regclass, a.privilege_type,
                  CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END, a.grantor::regrole)
    FROM relation AS r, aclexplode(coalesce(r.relacl, acldefault(CASE r.relkind WHEN 'S' THEN 's' ELSE 'r' END::"char", r.relowner))) AS a
    WHERE r.relkind IN ('r', 'p', 'v', 'S')
  UNION ALL
    SELECT format('schema may %s by %s', a.privilege_type,
                  CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END)
    FROM pg_namespace AS n, aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner))) AS a WHERE n.nspname = 'queue'
  UNION ALL
    SELECT format('column %s %s %s %s %s %s %s %s %s', a.attrelid::regclass, a.attnum, a.attname,
                  format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attstorage, a.attidentity, a.attgenerated,
                  (SELECT pg_get_expr(d.adbin, d.adrelid) FROM pg_attrdef AS d
                   WHERE d.adrelid = a.attrelid AND d.adnum = a.attnum))
    FROM relation AS r JOIN pg_attribute AS a ON a.attrelid = r.oid
    WHERE a.attnum > 0 AND r.relkind IN ('r', 'p', 'v', 'c')
  UNION ALL
    SELECT 'index ' || pg_get_indexdef(r.oid) FROM relation AS r WHERE r.relkind IN ('i', 'I')
  UNION ALL
    SELECT format('constraint %s %s %s', c.conrelid::regclass, c.conname, pg_get_constraintdef(c.oid))
    FROM pg_constraint AS c WHERE c.connamespace = 'queue'::regnamespace
  UNION ALL
    SELECT format('trigger %s %s', pg_get_triggerdef(t.oid), t.tgenabled)
    FROM relation AS r JOIN pg_trigger AS t ON t.tgrelid = r.oid WHERE NOT t.tgisinternal
  UNION ALL
    SELECT format('rule %s', pg_get_ruledef(w.oid)) FROM relation AS r JOIN pg_rewrite AS w ON w.ev_class = r.oid
  UNION ALL
    SELECT format('sequence %s %s', s.seqrelid::regclass, to_jsonb(s) - 'seqrelid')
    FROM relation AS r JOIN pg_sequence AS s ON s.seqrelid = r.oid
  UNION ALL
    SELECT format('dumped %s %s', c.oid::regclass, c.condition)
    FROM pg_extension AS e, unnest(e.extconfig, e.extcondition) AS c (oid, condition) WHERE e.extname = 'pg_queue'
)
SELECT line COLLATE "C" FROM line ORDER BY 1"#;

fn snapshot(client: &mut Client) -> Vec<String> {
    client.column(SNAPSHOT)
}

/// A database with the extension as it was released in this version; nobody does the worker's duties.
fn database(version: &str) -> Database {
    let database = Database::without_worker();
    database.connect().run(&format!("DROP EXTENSION pg_queue; CREATE EXTENSION pg_queue VERSION '{version}'"));
    database
}

#[test]
fn upgraded_equals_fresh() {
    let fresh = snapshot(&mut Database::without_worker().connect());
    assert!(fresh.len() > 500, "{fresh:#?}");
    for version in RELEASED {
        let database = database(version);
        let mut client = database.connect();
        client.run("ALTER EXTENSION pg_queue UPDATE");
        let upgraded = snapshot(&mut client);
        let missing: Vec<_> = fresh.iter().filter(|line| !upgraded.contains(line)).collect();
        let left: Vec<_> = upgraded.iter().filter(|line| !fresh.contains(line)).collect();
        assert!(missing.is_empty() && left.is_empty(), "from {version}: missing {missing:#?}, left over {left:#?}");
    }
}
