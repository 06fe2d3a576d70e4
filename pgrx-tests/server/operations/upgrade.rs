//! Upgrades: the script makes an earlier version equal to a fresh installation, and jobs go on. Before that, the
//! earlier version works with the new library.

use queue_tests::EARLIER;

use crate::security::permissions::Roles;
use crate::shared::*;

/// Everything that the extension consists of, one line each: its content, definition, comment and privileges. The lines
/// are sorted and have names but no oids.
const SNAPSHOT: &str = r#"
WITH member AS (
    SELECT d.classid, d.objid FROM pg_depend AS d
    WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
      AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'pg_queue')
), relation AS (
    -- What belongs to a member's schema belongs to the extension: indexes, partitions, sequences of columns.
    SELECT c.* FROM pg_class AS c WHERE c.relnamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace)
), line AS (
    SELECT 'member ' || i.type || ' ' || i.identity AS line
    FROM member, pg_identify_object(classid, objid, 0) AS i
  UNION ALL
    SELECT 'comment ' || i.type || ' ' || i.identity || ': ' || c.description
    FROM pg_description AS c, pg_identify_object(c.classoid, c.objoid, c.objsubid) AS i
    WHERE i.schema IN ('queue', 'queue_internal') OR i.identity IN ('queue', 'queue_internal')
  UNION ALL
    SELECT 'function ' || pg_get_functiondef(p.oid) FROM pg_proc AS p
    WHERE p.pronamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace)
  UNION ALL
    SELECT format('function %s may %s by %s of %s', p.oid::regprocedure, a.privilege_type,
                  CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END, a.grantor::regrole)
    FROM pg_proc AS p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) AS a
    WHERE p.pronamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace)
  UNION ALL
    SELECT format('relation %s %s %s %s %s replica %s', r.relkind, r.oid::regclass, r.relpersistence, r.reloptions,
                  pg_get_partkeydef(r.oid), r.relreplident)
    FROM relation AS r
  UNION ALL
    SELECT format('relation %s may %s by %s of %s', r.oid::regclass, a.privilege_type,
                  CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END, a.grantor::regrole)
    FROM relation AS r, aclexplode(coalesce(r.relacl,
    acldefault(CASE r.relkind WHEN 'S' THEN 's' ELSE 'r' END::"char", r.relowner))) AS a
    WHERE r.relkind IN ('r', 'p', 'v', 'S')
  UNION ALL
    SELECT format('schema %s may %s by %s', n.nspname, a.privilege_type,
                  CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END)
    FROM pg_namespace AS n, aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner))) AS a
    WHERE n.nspname IN ('queue', 'queue_internal')
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
    FROM pg_constraint AS c WHERE c.connamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace)
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

/// A session in this database, in which it has replaced the extension by the earlier version.
fn go_back(database: &Database) -> Client {
    database.connect().run(&format!("DROP EXTENSION pg_queue; CREATE EXTENSION pg_queue VERSION '{EARLIER}'"));
    let mut client = database.connect();
    // To compile the plan of two views takes longer on a busy machine than what is tested here.
    client.run("SET jit = off");
    client
}

/// Everything that the views show of all jobs, except leases of running jobs.
const JOBS: &str = "
    SELECT to_jsonb(j) - 'lease_expires_at' || coalesce((
               SELECT jsonb_build_object('attempts', jsonb_agg(to_jsonb(a) ORDER BY a.id))
               FROM queue.attempts AS a WHERE a.job_id = j.job_id), '{}')
    FROM queue.jobs AS j ORDER BY job_id";

/// Makes queues with jobs in every state. Returns the running attempt.
fn fill(client: &mut Client) -> i64 {
    create(client, "q", "lease => '1 hour', max_attempts => 3, backoff => 'constant', backoff_base => '1 hour'");
    create(client, "stages", "stages => '{a, b}', max_running => 2");
    create(client, "groups", "max_running_per_group => 1, strict_order => true, dead_letter => 'q'");
    for statement in [
        "SELECT queue.enqueue('q', to_jsonb(n), priority => n % 3, headers => '{\"h\": 1}') \
            FROM generate_series(1, 30) AS n",
        "SELECT queue.complete(id, '\"fine\"') FROM queue.claim('q', 5)",
        "SELECT queue.fail(id, 'oh') FROM queue.claim('q', 3)",
        "SELECT queue.fail(id, 'dead', fatal => true) FROM queue.claim('q', 2)",
        "SELECT queue.cancel(job_id) FROM queue.jobs WHERE state = 'ready' AND queue_name = 'q' LIMIT 2",
        "SELECT queue.enqueue('q', '\"later\"', delay => '1 hour')",
        "SELECT queue.enqueue('q', '\"key\"', unique_key => 'k', delay => '1 hour')",
        "SELECT queue.enqueue('stages', to_jsonb(n)) FROM generate_series(1, 4) AS n",
        "SELECT queue.advance(id) FROM queue.claim('stages', 2)",
        "SELECT queue.enqueue('groups', to_jsonb(n), group_key => 'g') FROM generate_series(1, 3) AS n",
        "SELECT queue.fail(id, 'held', retry_in => '1 hour') FROM queue.claim('groups')",
        "SELECT queue.schedule('hourly', 'q', cron => '@hourly', priority => 9)",
    ] {
        client.run(statement);
    }
    let running = client.claim("q");
    client.run(&format!("SELECT queue.progress({running}, '\"half\"')"));
    running
}

/// Checks that the jobs of `fill` go on as if nothing had happened.
fn go_on(client: &mut Client, running: i64) {
    client.run(&format!("SELECT queue.complete({running})"));
    client.refused(&format!("SELECT queue.complete({running})"), "QJ001");
    // Of 30 jobs, 5 have completed, 3 failed, 2 died, 2 were cancelled, and one has just ended.
    let rest = "SELECT id FROM queue.claim('q', 100) WITH ORDINALITY AS c ORDER BY c.ordinality";
    let rest: Vec<i64> = client.column(rest);
    assert_eq!(rest.len(), 17);
    let sql = "SELECT id FROM queue.complete_many($1) WHERE outcome = 'completed' AND reason IS NULL";
    let completed: Vec<i64> = client.query(sql, &[&rest]).unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(completed, rest);
    assert_eq!(client.count("SELECT FROM queue.claim('groups')"), 0, "its group is held");
    assert_eq!(client.count("SELECT FROM queue.claim('stages', 4)"), 2, "no more may run at once");
    let key: i64 = client.value("SELECT job_id FROM queue.jobs WHERE unique_key = 'k'");
    assert_eq!(client.value::<i64>("SELECT queue.enqueue('q', unique_key => 'k')"), key);
    client.run(&format!("SELECT queue.retry({key})"));
    assert_eq!(client.value::<i64>("SELECT job_id FROM queue.claim('q')"), key);
    assert_eq!(client.count("SELECT queue.retry(job_id) FROM queue.jobs WHERE queue_name = 'q' AND state = 'dead'"), 2);
    let ran: i64 = client.value("SELECT queue.run_schedule('hourly')");
    let order: Vec<i64> = client.column("SELECT job_id FROM queue.claim('q', 10)");
    assert_eq!((order.len(), order[2]), (3, ran));
    for view in ["jobs", "attempts", "queues", "stats", "throughput", "errors", "workers", "schedules"] {
        client.run(&format!("SELECT * FROM queue.{view}"));
    }
}

#[test]
fn upgraded_equals_fresh() {
    let fresh = snapshot(&mut Database::without_worker().connect());
    assert!(fresh.len() > 500, "{fresh:#?}");
    let database = Database::without_worker();
    let mut client = go_back(&database);
    client.run("ALTER EXTENSION pg_queue UPDATE");
    let upgraded = snapshot(&mut client);
    let missing: Vec<_> = fresh.iter().filter(|line| !upgraded.contains(line)).collect();
    let left: Vec<_> = upgraded.iter().filter(|line| !fresh.contains(line)).collect();
    assert!(missing.is_empty() && left.is_empty(), "missing {missing:#?}, left over {left:#?}");
}

#[test]
fn jobs_in_flight_are_not_affected_by_an_upgrade() {
    let database = Database::new();
    let mut client = go_back(&database);
    let running = fill(&mut client);
    // Opens two transactions: one has claimed and added a job, one has read. The upgrade may wait for them. No other
    // session waits for the upgrade.
    create(&mut client, "open", "");
    client.enqueue("open");
    let mut worker = database.connect();
    worker.run("BEGIN");
    let open = worker.claim("open");
    worker.enqueue("open");
    let mut reader = database.connect();
    reader.run("BEGIN; SELECT FROM queue.jobs; SELECT FROM queue.stats");
    let before: Vec<serde_json::Value> = client.column(JOBS);
    let mut other = database.connect();
    let mut other = thread::scope(|scope| {
        let upgrade = scope.spawn(move || {
            other.run("ALTER EXTENSION pg_queue UPDATE");
            other
        });
        client.run("SET statement_timeout = '20 s'");
        assert_eq!(client.column::<serde_json::Value>(JOBS), before);
        create(&mut client, "meanwhile", "");
        client.enqueue("meanwhile");
        let meanwhile = client.claim("meanwhile");
        client.run(&format!("SELECT queue.complete({meanwhile})"));
        reader.run("SELECT FROM queue.jobs; COMMIT");
        worker.run(&format!("SELECT queue.complete({open}); COMMIT"));
        upgrade.join().unwrap()
    });
    let same = format!("SELECT * FROM ({JOBS}) AS j (job) WHERE job->>'queue_name' NOT IN ('open', 'meanwhile')");
    let of_fill = |job: &&serde_json::Value| !["open", "meanwhile"].contains(&job["queue_name"].as_str().unwrap());
    assert!(client.column::<serde_json::Value>(&same).iter().eq(before.iter().filter(of_fill)));
    assert_eq!(client.value::<i64>("SELECT completed FROM queue.stats WHERE queue_name = 'open'"), 1);
    assert_eq!(other.count("SELECT FROM queue.claim('open', 2)"), 1);
    go_on(&mut client, running);
    // The background worker goes on too.
    create(&mut client, "lease", "lease => '10 ms', backoff_base => '0'");
    client.enqueue("lease");
    let first = client.claim("lease");
    let second = wait::until("the lease has ended", || {
        client.column::<i64>("SELECT id FROM queue.claim('lease', lease => '1 hour')").pop()
    });
    assert_ne!(first, second);
    // A queue of the old version can now get an executor.
    let roles = Roles::new(&database);
    let writer = roles.make("writer", "");
    client.run(&format!(
        "SELECT queue.alter('meanwhile', executor => 'sql'), queue.grant('meanwhile', '{writer}', 'produce')"
    ));
    client.run(&format!("SET ROLE {writer}"));
    let job: i64 = client.value("SELECT queue.enqueue_sql('meanwhile', 'SELECT 1')");
    client.run("RESET ROLE");
    wait::until_true("it has run", || client.state(job) == "completed");
}

#[test]
fn granted_views_stay_readable_through_an_upgrade() {
    const LOOKS: [&str; 4] = [
        "SELECT FROM queue.jobs",
        "SELECT FROM queue.stats",
        "SELECT FROM queue.throughput_by()",
        "SELECT FROM queue.queues",
    ];
    let database = Database::without_worker();
    let mut client = go_back(&database);
    create(&mut client, "q", "");
    client.enqueue("q");
    let roles = Roles::new(&database);
    let (before, after) = (roles.make("before", ""), roles.make("after", ""));
    // The library also derives the GRANTs for the old version's objects.
    client.run(&format!("SELECT queue.grant('q', '{before}', 'observe')"));
    let mut looker = database.connect();
    looker.run(&format!("SET ROLE {before}"));
    let looks = LOOKS.map(|sql| looker.prepare(sql).unwrap());
    let look = |looker: &mut Client| looks.each_ref().map(|look| looker.query(look, &[]).unwrap().len());
    let seen = look(&mut looker);
    assert_eq!((seen[0], seen[3]), (1, 1));
    client.run("ALTER EXTENSION pg_queue UPDATE");
    assert_eq!(look(&mut looker), seen, "with its plans of before");
    client.run(&format!("SELECT queue.grant('q', '{after}', 'observe')"));
    for role in [&before, &after] {
        client.run(&format!("SET ROLE {role}"));
        assert_eq!(LOOKS.map(|sql| client.count(sql)), seen, "{role}");
        client.refused("SELECT queue_internal.live()", "42501");
        client.run("RESET ROLE");
    }
    client.run(&format!("SELECT queue.revoke('q', '{before}', 'observe'), queue.revoke('q', '{after}', 'observe')"));
    let left = "SELECT FROM pg_proc, aclexplode(proacl) AS a WHERE pronamespace = 'queue_internal'::regnamespace \
        AND a.grantee <> proowner";
    assert_eq!(client.count(left), 0);
}

#[test]
fn grants_by_hand_stay_and_new_objects_are_granted_to_no_role() {
    let database = Database::without_worker();
    let roles = Roles::new(&database);
    let creator = roles.make("creator", "");
    let mut client = go_back(&database);
    client
        .run(&format!("GRANT EXECUTE ON FUNCTION queue.create TO {creator}; GRANT USAGE ON SCHEMA queue TO {creator}"));
    // With the savepoint the script's objects get another transaction id than the command.
    client.run(&format!(
        "BEGIN; ALTER DEFAULT PRIVILEGES GRANT EXECUTE ON FUNCTIONS TO {creator};
         ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO {creator};
         SAVEPOINT a; ALTER EXTENSION pg_queue UPDATE; RELEASE a;
         ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM {creator};
         ALTER DEFAULT PRIVILEGES REVOKE ALL ON TABLES FROM {creator}; COMMIT"
    ));
    let held: Vec<String> = client.column(&format!(
        "SELECT p.proname::text FROM pg_proc AS p, aclexplode(p.proacl) AS a WHERE a.grantee = '{creator}'::regrole
         UNION ALL SELECT c.relname::text FROM pg_class AS c, aclexplode(c.relacl) AS a
         WHERE a.grantee = '{creator}'::regrole"
    ));
    assert_eq!(held, ["create"]);
    client.run(&format!("SET ROLE {creator}; SELECT queue.create('mine'); RESET ROLE"));
    let open = "SELECT FROM pg_proc WHERE pronamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace)
                AND (proacl IS NULL OR EXISTS (SELECT FROM aclexplode(proacl) AS a WHERE a.grantee = 0))";
    assert_eq!(client.count(open), 0);
}

#[test]
fn an_update_names_all_objects_that_depend_on_what_it_drops() {
    let database = Database::without_worker();
    let roles = Roles::new(&database);
    let maker = roles.make("maker", "");
    let mut client = go_back(&database);
    client.run(&format!("CREATE SCHEMA theirs AUTHORIZATION {maker}; GRANT USAGE ON SCHEMA queue TO {maker}"));
    client.run(&format!("GRANT EXECUTE ON FUNCTION queue.extend_many TO {maker}; SET ROLE {maker}"));
    client.run(
        "CREATE VIEW theirs.beats AS SELECT id FROM queue.extend_many('{}');
         CREATE FUNCTION theirs.beat(ids bigint[]) RETURNS bigint LANGUAGE sql
         RETURN (SELECT count(*) FROM queue.extend_many(ids))",
    );
    client.run("RESET ROLE");
    let refused = client.refused("ALTER EXTENSION pg_queue UPDATE", "2BP01");
    for named in ["view theirs.beats of role", "function theirs.beat(bigint[]) of role", &maker] {
        assert!(refused.detail.contains(named), "{refused:?}");
    }
    client.run("DROP SCHEMA theirs CASCADE; ALTER EXTENSION pg_queue UPDATE");
}

#[test]
fn an_old_version_works_with_the_new_library() {
    let database = Database::without_worker();
    let mut client = go_back(&database);
    let running = fill(&mut client);
    // No duty fails.
    client.run("SELECT FROM queue.maintain()");
    go_on(&mut client, running);
    create(&mut client, "beat", "");
    client.enqueue("beat");
    let beat = "SELECT id FROM queue.extend_many(ARRAY(SELECT id FROM queue.claim('beat')))";
    assert_eq!(client.column::<i64>(beat).len(), 1, "its rows have a column less");
    assert_eq!(client.value::<String>("SELECT extversion FROM pg_extension WHERE extname = 'pg_queue'"), EARLIER);
}

#[test]
fn a_dump_of_an_old_version_is_restored_into_the_new_one() {
    let database = Database::without_worker();
    let mut client = go_back(&database);
    let running = fill(&mut client);
    let before: Vec<serde_json::Value> = client.column(JOBS);
    let dump = server().pg_dump(&[&database.name]);
    let copy = Database::without_worker();
    copy.connect().run("DROP EXTENSION pg_queue");
    server().psql_in(&copy.name, &dump);
    let mut client = copy.connect();
    client.run("SELECT queue.adopt()");
    assert_eq!(client.column::<serde_json::Value>(JOBS), before);
    go_on(&mut client, running);
    let versions =
        "SELECT extversion = default_version FROM pg_extension JOIN pg_available_extensions ON name = extname
                    WHERE extname = 'pg_queue'";
    assert!(client.value::<bool>(versions));
}
