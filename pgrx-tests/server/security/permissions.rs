//! What grants do in the catalogs, in dumps and to sessions that are under way; whose rights count where. Which
//! privilege each function and view asks for is the table in `privileges.rs`.

use std::sync::atomic::{AtomicU32, Ordering};

use postgres::{Client, NoTls};
use queue_tests::installation::output;
use queue_tests::{Cluster, error, wait};

use crate::shared::{Database, Failure, Sql, create};

const PRIVILEGES: [&str; 4] = ["produce", "consume", "observe", "manage"];

/// Roles of a test's own, dropped with the value; roles are the cluster's.
pub struct Roles<'a> {
    database: &'a Database,
    prefix: String,
}

impl<'a> Roles<'a> {
    pub fn new(database: &'a Database) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        Self { database, prefix: format!("perm{}", NUMBER.fetch_add(1, Ordering::Relaxed)) }
    }

    /// A role, made with these options.
    pub fn make(&self, name: &str, options: &str) -> String {
        let role = format!("{}_{name}", self.prefix);
        self.database.connect().run(&format!("CREATE ROLE {role} LOGIN {options}"));
        role
    }
}

impl Drop for Roles<'_> {
    fn drop(&mut self) {
        let mut client = self.database.connect();
        let sql = format!("SELECT rolname::text FROM pg_roles WHERE rolname LIKE '{}\\_%'", self.prefix);
        for role in client.column::<String>(&sql) {
            let _ = client.batch_execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));
        }
    }
}

pub fn grant(client: &mut Client, queue: &str, role: &str, privilege: &str) {
    client.run(&format!("SELECT queue.grant('{queue}', '{role}', '{privilege}')"));
}

/// A session of this user's.
fn session(database: &Database, role: &str) -> Client {
    let mut client = database.connect();
    client.run(&format!("SET SESSION AUTHORIZATION {role}"));
    client
}

/// What a statement comes to in a transaction that is rolled back: how many values, or how it fails.
fn attempt(client: &mut Client, role: &str, sql: &str) -> Result<i64, Failure> {
    client.run(&format!("BEGIN; SET LOCAL ROLE {role}"));
    let found = client.query_one(sql, &[]).map(|row| row.get(0)).map_err(|error| Failure::from(&error));
    client.run("ROLLBACK");
    found
}

#[test]
fn not_even_a_function_in_a_condition_sees_what_one_may_not_observe() {
    let database = Database::without_worker();
    let mut client = database.connect();
    create(&mut client, "q", "");
    create(&mut client, "other", "");
    for (queue, schedule, error) in [("q", "planned", "ours"), ("other", "elsewhere", "not yours")] {
        client.run(&format!("SELECT queue.schedule('{schedule}', '{queue}', every => '1 year')"));
        client.run(&format!("SELECT queue.enqueue_many('{queue}', ARRAY['1', '2', '3']::jsonb[])"));
        client.run(&format!("SELECT queue.fail(id, '{error}', fatal => true) FROM queue.claim('{queue}')"));
        client.claim(queue);
    }
    let roles = Roles::new(&database);
    let one = roles.make("one", "");
    grant(&mut client, "q", &one, "observe");
    let mut spy = session(&database, &one);
    spy.run(
        "CREATE TEMP TABLE seen (what text);
         CREATE FUNCTION pg_temp.spy(text) RETURNS boolean LANGUAGE plpgsql COST 0.0001 AS
             'BEGIN INSERT INTO seen VALUES ($1); RETURN true; END'",
    );
    for view in ["jobs", "attempts", "queues", "stats", "throughput", "errors", "workers", "schedules"] {
        spy.run(&format!(
            "SELECT count(*) FROM queue.{view} AS v WHERE pg_temp.spy(v::text) AND pg_temp.spy(v.queue_name)"
        ));
        assert!(spy.count("SELECT FROM seen WHERE what = 'q'") > 0, "queue.{view}");
        spy.run("UPDATE seen SET what = 'earlier' WHERE what = 'q'");
    }
    assert_eq!(spy.column::<String>("SELECT what FROM seen WHERE what ~ 'other|not yours|elsewhere'"), [""; 0]);
}

#[test]
fn payloads_that_lie_elsewhere_are_seen_with_their_jobs_alone() {
    let database = Database::without_worker();
    let mut client = database.connect();
    create(&mut client, "dead", "");
    create(&mut client, "q", "max_attempts => 2, backoff_base => '0', dead_letter => 'dead'");
    let roles = Roles::new(&database);
    let (of_q, of_dead) = (roles.make("of_q", ""), roles.make("of_dead", ""));
    grant(&mut client, "q", &of_q, "observe");
    grant(&mut client, "dead", &of_dead, "observe");
    // Large enough to be kept once: the second attempt refers to the row of the first.
    client.run("SELECT queue.enqueue('q', to_jsonb(repeat('x', 5000)))");
    let first = client.claim("q");
    client.run(&format!("SELECT queue.fail({first}, 'once')"));
    let payload = "SELECT coalesce(sum(length(payload::text)), 0)::bigint FROM queue.jobs";
    assert_eq!(attempt(&mut client, &of_q, payload).unwrap(), 5002);
    assert_eq!(attempt(&mut client, &of_dead, payload).unwrap(), 0);
    client.run("GRANT USAGE ON SCHEMA queue_internal TO PUBLIC");
    let direct = format!("SELECT count(queue_internal.payload_of({first}))");
    assert_eq!(attempt(&mut client, &of_q, &direct).unwrap(), 1);
    assert_eq!(attempt(&mut client, &of_dead, &direct).unwrap(), 0);
    let second = client.claim("q");
    client.run(&format!("SELECT queue.fail({second}, 'twice')"));
    assert_eq!(attempt(&mut client, &of_dead, payload).unwrap(), 5002, "the copy");
    assert_eq!(
        attempt(&mut client, &of_dead, &format!("SELECT count(queue_internal.payload_of({second}))")).unwrap(),
        0
    );
}

#[test]
fn a_change_counts_from_the_next_statement_on() {
    let database = Database::without_worker();
    let mut client = database.connect();
    create(&mut client, "q", "");
    let roles = Roles::new(&database);
    let (role, group) = (roles.make("user", ""), roles.make("group", ""));
    let mut user = session(&database, &role);
    let enqueue = "SELECT queue.enqueue('q')";
    let denied = |user: &mut Client| {
        let failure = user.failure("SAVEPOINT s; SELECT queue.enqueue('q')");
        assert_eq!(failure.code, "42501", "{failure:?}");
        user.run("ROLLBACK TO s");
    };
    // Something that keeps the schema and the function open to it.
    grant(&mut client, "*", &group, "observe");
    create(&mut client, "mine", "");
    grant(&mut client, "mine", &role, "produce");
    user.run("BEGIN");
    denied(&mut user);
    grant(&mut client, "q", &role, "produce");
    user.run(enqueue);
    client.run(&format!("SELECT queue.revoke('q', '{role}', 'produce')"));
    denied(&mut user);
    // By membership, which comes and goes.
    grant(&mut client, "q", &group, "produce");
    denied(&mut user);
    client.run(&format!("GRANT {group} TO {role}"));
    user.run(enqueue);
    client.run(&format!("REVOKE {group} FROM {role}"));
    denied(&mut user);
    client.run(&format!("ALTER ROLE {role} NOINHERIT; GRANT {group} TO {role}"));
    denied(&mut user);
    user.run(&format!("SET LOCAL ROLE {group}"));
    user.run(enqueue);
    user.run("RESET ROLE");
    denied(&mut user);
    client.run(&format!("ALTER ROLE {role} SUPERUSER"));
    user.run(enqueue);
    client.run(&format!("ALTER ROLE {role} NOSUPERUSER"));
    denied(&mut user);
    user.run("ROLLBACK");
    // In the granting transaction itself, and when it is rolled back.
    let mut manager = session(&database, &role);
    grant(&mut client, "q", &role, "manage");
    manager
        .run(&format!("BEGIN; SELECT queue.revoke('q', '{group}', 'produce'), queue.revoke('q', '{role}', 'manage')"));
    manager.run("ROLLBACK");
    manager.run(&format!("BEGIN; SAVEPOINT before; SELECT queue.revoke('q', '{role}', 'manage')"));
    denied(&mut manager);
    manager.run("ROLLBACK TO before; SELECT queue.enqueue('q'); COMMIT");
}

#[test]
fn the_rights_of_a_function_s_owner_count_within_it() {
    let database = Database::without_worker();
    let mut client = database.connect();
    create(&mut client, "q", "");
    let roles = Roles::new(&database);
    let (owner, caller) = (roles.make("owner", ""), roles.make("caller", ""));
    grant(&mut client, "q", &owner, "produce");
    client.run(&format!(
        "CREATE SCHEMA shop AUTHORIZATION {owner}; GRANT USAGE ON SCHEMA shop TO {caller};
         SET ROLE {owner};
         CREATE FUNCTION shop.sell() RETURNS bigint LANGUAGE sql SECURITY DEFINER AS 'SELECT queue.enqueue(''q'')';
         CREATE TABLE shop.ordered (n integer); GRANT INSERT ON shop.ordered TO {caller};
         CREATE FUNCTION shop.on_order() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
             'BEGIN PERFORM queue.enqueue(''q''); RETURN NULL; END';
         CREATE TRIGGER ordered AFTER INSERT ON shop.ordered FOR EACH ROW EXECUTE FUNCTION shop.on_order();
         RESET ROLE"
    ));
    let mut user = session(&database, &caller);
    user.run("SELECT shop.sell(), shop.sell(); INSERT INTO shop.ordered VALUES (1)");
    assert_eq!(user.failure("SELECT queue.enqueue('q')").code, "42501");
    assert_eq!(client.count("SELECT FROM queue.jobs"), 3);
    client.run("DROP SCHEMA shop CASCADE");
}

#[test]
fn attempts_of_other_queues_are_left_alone() {
    let database = Database::without_worker();
    let mut client = database.connect();
    create(&mut client, "mine", "");
    create(&mut client, "theirs", "");
    let roles = Roles::new(&database);
    let role = roles.make("worker", "");
    grant(&mut client, "mine", &role, "consume");
    client.run("SELECT queue.enqueue_many('mine', ARRAY['1', '2']::jsonb[]); SELECT queue.enqueue('theirs')");
    let (mine, theirs) = (client.claim("mine"), client.claim("theirs"));
    let mut worker = session(&database, &role);
    let calls = [
        format!("complete_many(ARRAY[{mine}, {theirs}])"),
        format!("fail_many(ARRAY[{mine}, {theirs}], 'x')"),
        format!("release_many(ARRAY[{mine}, {theirs}])"),
        format!("extend_many(ARRAY[{mine}, {theirs}])"),
        format!(r#"end_batch('[{{"complete": {{"id": {mine}}}}}, {{"fail": {{"id": {theirs}, "error": "x"}}}}]')"#),
        format!(
            r#"end_batch('[{{"complete": {{"id": {mine}}}}}, {{"advance": {{"id": {theirs}, "payload": 1e400}}}},
                {{"release": {{"id": {theirs}}}}}]')"#
        ),
        format!("claim('mine', completed => ARRAY[{mine}, {theirs}])"),
        "claim_any(ARRAY['mine', 'theirs'])".to_owned(),
    ];
    for call in &calls {
        let failure = worker.failure(&format!("SELECT FROM queue.{call}"));
        assert_eq!(failure.code, "42501", "{call}: {failure:?}");
        assert!(failure.message.contains("queue \"theirs\""), "{call}: {failure:?}");
    }
    // As an error that is caught, too: nothing was held back.
    worker.run("BEGIN");
    for call in &calls {
        worker.run(&format!(
            "DO $$ BEGIN PERFORM FROM queue.{call}; EXCEPTION WHEN insufficient_privilege THEN NULL; END $$"
        ));
        client.run(&format!("BEGIN; SELECT queue.complete({mine}), queue.complete({theirs}); ROLLBACK"));
    }
    worker.run("COMMIT");
    assert_eq!(client.count("SELECT FROM queue.jobs WHERE state = 'running'"), 2);
    // Nor does it hear what became of them.
    client.run(&format!("SELECT queue.complete({theirs})"));
    assert_eq!(worker.failure(&format!("SELECT queue.complete({theirs})")).code, "42501");
    worker.run(&format!("SELECT queue.complete({mine})"));
    assert_eq!(worker.failure(&format!("SELECT queue.complete({mine})")).code, "QJ001");
    client.run("SELECT queue.enqueue('theirs')");
    let lost = client.claim("theirs");
    client.run("SELECT queue.drop('theirs', force => true)");
    assert_eq!(worker.failure(&format!("SELECT queue.complete({lost})")).code, "QJ001");
}

#[test]
fn a_producer_need_not_be_a_worker() {
    let database = Database::without_worker();
    let mut client = database.connect();
    create(&mut client, "q", "");
    let roles = Roles::new(&database);
    let role = roles.make("producer", "");
    grant(&mut client, "q", &role, "produce");
    let mut producer = session(&database, &role);
    let rerun = "SELECT queue.enqueue('q', '2', unique_key => 'k', on_duplicate => 'rerun')";
    let job: i64 = producer.value("SELECT queue.enqueue('q', '1', unique_key => 'k')");
    assert_eq!(producer.value::<i64>(rerun), job, "while it waits");
    let attempt = client.claim("q");
    assert_eq!(producer.value::<i64>(rerun), job, "while it runs");
    client.run(&format!("SELECT queue.complete({attempt})"));
    assert_eq!(client.value::<String>("SELECT payload::text FROM queue.claim('q')"), "2");
    // A worker need not be let at the queue that its dead jobs are copied to; the role that says where they go must be.
    create(&mut client, "graves", "");
    let (worker, manager) = (roles.make("worker", ""), roles.make("manager", ""));
    grant(&mut client, "q", &worker, "consume");
    grant(&mut client, "q", &manager, "manage");
    let failure = session(&database, &manager).failure("SELECT queue.alter('q', dead_letter => 'graves')");
    assert!(failure.code == "42501" && failure.message.contains("graves"), "{failure:?}");
    grant(&mut client, "graves", &manager, "produce");
    session(&database, &manager).run("SELECT queue.alter('q', dead_letter => 'graves')");
    client.run("SELECT queue.purge('q'); SELECT queue.enqueue('q')");
    session(&database, &worker).run("SELECT queue.fail(id, 'x', fatal => true) FROM queue.claim('q')");
    assert_eq!(client.count("SELECT FROM queue.claim('graves')"), 1);
}

#[test]
fn whoever_creates_a_queue_manages_it() {
    let database = Database::without_worker();
    let mut client = database.connect();
    let roles = Roles::new(&database);
    let (app, other, chief) = (roles.make("app", ""), roles.make("other", ""), roles.make("chief", ""));
    let create_mine = "SELECT queue.create('mine')";
    assert_eq!(session(&database, &app).failure(create_mine).code, "42501");
    grant(&mut client, "*", &app, "produce");
    assert_eq!(session(&database, &app).failure(create_mine).code, "42501");
    client.run(&format!("GRANT EXECUTE ON FUNCTION queue.create TO {app}"));
    let mut app_user = session(&database, &app);
    app_user.run(create_mine);
    app_user.run(&format!(
        "SELECT queue.pause('mine'), queue.alter('mine', lease => '1 s'), queue.grant('mine', '{other}', 'produce')"
    ));
    app_user.run("SELECT queue.create('mine', max_attempts => 3, if_not_exists => true)");
    session(&database, &other).run("SELECT queue.enqueue('mine')");
    create(&mut client, "theirs", "");
    for denied in [
        "create('theirs', if_not_exists => true)",
        "pause('theirs')",
        "grant('theirs', current_user::text, 'consume')",
        "grant('*', current_user::text, 'consume')",
        "revoke('*', current_user::text, 'produce')",
        "maintain()",
        "create('fourth', dead_letter => 'locked')",
    ] {
        client.run("SELECT queue.create('locked', if_not_exists => true)");
        client.run(&format!("SELECT queue.revoke('*', '{app}', 'produce')"));
        let failure = app_user.failure(&format!("SELECT FROM queue.{denied}"));
        assert_eq!(failure.code, "42501", "{denied}: {failure:?}");
    }
    // A role that may execute it by a GRANT still may, when others were let at it by queue.grant and are no more.
    grant(&mut client, "*", &chief, "manage");
    client.run(&format!("SELECT queue.revoke('*', '{chief}', 'manage')"));
    app_user.run("SELECT queue.create('second')");
    grant(&mut client, "*", &chief, "manage");
    let mut chief_user = session(&database, &chief);
    chief_user.run("SELECT queue.create('third'); SELECT queue.pause('theirs'); SELECT FROM queue.maintain()");
    chief_user.run(&format!("SELECT queue.grant('*', '{other}', 'manage'), queue.drop('third'), queue.adopt()"));
    let rows = "SELECT concat_ws(' ', queue_name, privilege) FROM queue.permission JOIN queue.queue USING (queue_id)
                WHERE role_name = '{}' ORDER BY 1";
    assert_eq!(client.column::<String>(&rows.replace("{}", &app)), ["mine manage", "second manage"]);
    assert_eq!(client.column::<String>(&rows.replace("{}", &chief)), [""; 0]);
    // What was granted on a queue goes with it.
    app_user.run("SELECT queue.drop('mine', force => true), queue.drop('second')");
    assert_eq!(client.column::<String>(&rows.replace("{}", &app)), [""; 0]);
    assert_eq!(app_user.failure("SELECT queue.enqueue('theirs')").code, "42501");
}

#[test]
fn grant_and_revoke_say_what_is_wrong() {
    let database = Database::without_worker();
    let mut client = database.connect();
    create(&mut client, "q", "");
    let roles = Roles::new(&database);
    let role = roles.make("one", "");
    for function in ["grant", "revoke"] {
        let mut code = |arguments: &str| client.failure(&format!("SELECT queue.{function}({arguments})")).code;
        assert_eq!(code("'none', 'postgres', 'produce'"), "42704");
        assert_eq!(code("'q', 'postgres', 'PRODUCE'"), "22023");
        assert_eq!(code("NULL, 'postgres', 'produce'"), "22004");
        assert_eq!(code("'q', NULL, 'produce'"), "22004");
        assert_eq!(code("'q', 'postgres', NULL"), "22004");
    }
    let unknown = client.failure("SELECT queue.grant('q', 'no such role', 'produce')");
    assert_eq!((unknown.code.as_str(), unknown.message.as_str()), ("42704", "role \"no such role\" does not exist"));
    client.run("SELECT queue.revoke('q', 'no such role', 'produce')");
    // Twice is once.
    grant(&mut client, "q", &role, "produce");
    grant(&mut client, "q", &role, "produce");
    assert_eq!(client.count("SELECT FROM queue.permission"), 1);
    let denied = session(&database, &role).failure("SELECT queue.enqueue('q'), queue.claim('q')");
    assert_eq!(denied.code, "42501");
    grant(&mut client, "*", &role, "consume");
    client.run("SELECT queue.create('it''s')");
    let denied = session(&database, &role).failure("SELECT queue.enqueue('it''s')");
    assert_eq!(denied.message, "permission denied for queue \"it's\"");
    assert_eq!(denied.detail, "This needs the privilege produce.");
    assert_eq!(
        denied.hint,
        format!("A role that manages it can run SELECT queue.grant('it''s', '{role}', 'produce').")
    );
    // Everybody, where somebody wants that.
    let nobody = roles.make("nobody", "");
    grant(&mut client, "q", "public", "produce");
    session(&database, &nobody).run("SELECT queue.enqueue('q')");
    client.run("SELECT queue.revoke('q', 'public', 'produce')");
    assert_eq!(session(&database, &nobody).failure("SELECT queue.enqueue('q')").code, "42501");
    // Names that need quotes.
    let name = format!("{} \"'; x", roles.prefix);
    client.run(&format!("CREATE ROLE \"{}\"", name.replace('"', "\"\"")));
    grant(&mut client, "q", &name.replace('\'', "''"), "manage");
    client.run(&format!("DROP OWNED BY \"{0}\"; DROP ROLE \"{0}\"", name.replace('"', "\"\"")));
    assert_eq!(client.count(&format!("SELECT FROM queue.permission WHERE role_name <> '{role}'")), 0);
}

/// Which roles are let at the extension's objects besides their owner, by the catalogs; and what is recorded as coming
/// with it.
const LET: &str = "
    SELECT format('%s %s %s', i.identity, a.privilege_type, coalesce(r.rolname, a.grantee::text)) FROM (
        SELECT 'pg_proc'::regclass, oid, coalesce(proacl, acldefault('f', proowner)), proowner FROM pg_proc
        WHERE pronamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace)
        UNION ALL SELECT 'pg_class'::regclass, oid, relacl, relowner FROM pg_class
        WHERE relnamespace = 'queue'::regnamespace
        UNION ALL SELECT 'pg_namespace'::regclass, oid, nspacl, nspowner FROM pg_namespace
        WHERE nspname IN ('queue', 'queue_internal')
    ) AS o (class, oid, acl, owner), aclexplode(o.acl) AS a LEFT JOIN pg_roles AS r ON r.oid = a.grantee,
    pg_identify_object(o.class, o.oid, 0) AS i
    WHERE a.grantee <> o.owner ORDER BY 1";
const RECORDED: &str = "
    SELECT format('%s %s %s', i.identity, a.privilege_type, coalesce(r.rolname, a.grantee::text))
    FROM pg_init_privs AS p, aclexplode(p.initprivs) AS a LEFT JOIN pg_roles AS r ON r.oid = a.grantee,
    pg_identify_object(p.classoid, p.objoid, 0) AS i
    WHERE (i.schema IN ('queue', 'queue_internal') OR i.identity IN ('queue', 'queue_internal'))
    AND r.rolname IS DISTINCT FROM 'postgres' ORDER BY 1";

#[test]
fn the_catalogs_follow_the_rows() {
    let database = Database::without_worker();
    let mut client = database.connect();
    create(&mut client, "q", "");
    create(&mut client, "r", "");
    let roles = Roles::new(&database);
    let (a, b) = (roles.make("a", ""), roles.make("b", ""));
    let nothing: [&str; 0] = [];
    assert_eq!(client.column::<String>(LET), nothing, "nothing is granted to PUBLIC");
    let check = |client: &mut Client| {
        let let_in = client.column::<String>(LET);
        assert_eq!(let_in, client.column::<String>(RECORDED));
        let_in
    };
    grant(&mut client, "q", &a, "produce");
    let of_a = check(&mut client);
    assert_eq!(of_a.len(), 11, "{of_a:?}");
    grant(&mut client, "r", &a, "produce");
    assert_eq!(check(&mut client), of_a);
    grant(&mut client, "*", &b, "manage");
    assert!(check(&mut client).len() > 50);
    client.run(&format!("SELECT queue.revoke('*', '{b}', 'manage'), queue.revoke('r', '{a}', 'produce')"));
    assert_eq!(check(&mut client), of_a);
    let refused = client.failure(&format!("DROP ROLE {a}"));
    assert_eq!(refused.code, "2BP01");
    client.run("SELECT queue.drop('q')");
    assert_eq!(check(&mut client), nothing);
    // One that goes with all that was granted to it, and comes back, has nothing.
    grant(&mut client, "r", &a, "manage");
    grant(&mut client, "r", &b, "consume");
    client.run(&format!("DROP OWNED BY {a}; DROP ROLE {a}; CREATE ROLE {a} LOGIN"));
    assert!(check(&mut client).iter().all(|line| line.ends_with(&b)));
    assert_eq!(session(&database, &a).failure("SELECT queue.pause('r')").code, "42501");
    // A user without rights over a role does not take them from it.
    let stranger = roles.make("stranger", "");
    assert_eq!(session(&database, &stranger).failure(&format!("DROP OWNED BY {b}")).code, "42501");
    assert_eq!(client.count("SELECT FROM queue.permission"), 1);
    let before = client.column::<String>(LET);
    client.run(&format!("REASSIGN OWNED BY {b} TO postgres"));
    assert_eq!(client.column::<String>(LET), before);
    // From 17 on that hands over what is recorded, too, until the next change.
    if client.value::<bool>("SELECT current_setting('server_version_num')::integer < 170000") {
        check(&mut client);
    }
    // What was revoked by hand comes back with the next change.
    client.run(&format!("REVOKE EXECUTE ON FUNCTION queue.complete FROM {b}"));
    grant(&mut client, "r", &b, "observe");
    assert!(check(&mut client).iter().any(|line| line.starts_with("queue.complete(")));
}

#[test]
fn several_grant_at_once() {
    let database = Database::without_worker();
    let mut client = database.connect();
    let roles = Roles::new(&database);
    let names: Vec<String> = (0..8).map(|n| roles.make(&n.to_string(), "")).collect();
    for n in 0..8 {
        create(&mut client, &format!("q{n}"), "");
    }
    std::thread::scope(|scope| {
        for (n, name) in names.iter().enumerate() {
            let mut client = database.connect();
            scope.spawn(move || {
                for _ in 0..5 {
                    for privilege in PRIVILEGES {
                        grant(&mut client, &format!("q{n}"), name, privilege);
                    }
                    client.run(&format!("SELECT queue.revoke('q{n}', '{name}', 'manage')"));
                }
            });
        }
    });
    assert_eq!(client.count("SELECT FROM queue.permission"), 24);
    assert_eq!(client.column::<String>(LET), client.column::<String>(RECORDED));
    for name in &names {
        let has = format!("SELECT has_function_privilege('{name}', 'queue.enqueue_batch(text, jsonb)', 'EXECUTE')");
        assert!(client.value::<bool>(&has));
    }
}

#[test]
fn a_dump_is_restored_where_roles_are_missing() {
    const QUIET: &str = "pg_queue.restore_quiet = '1s'";
    let source = Cluster::new().start();
    let mut client = source.create_database("app");
    client.run("CREATE ROLE known LOGIN; CREATE ROLE missing LOGIN; CREATE ROLE gone LOGIN; CREATE ROLE maker LOGIN");
    create(&mut client, "q", "");
    create(&mut client, "unused", "");
    for (queue, role, privilege) in [
        ("q", "known", "produce"),
        ("*", "missing", "manage"),
        ("q", "gone", "consume"),
        ("unused", "gone", "manage"),
        ("*", "known", "observe"),
    ] {
        grant(&mut client, queue, role, privilege);
    }
    client.run("DROP OWNED BY gone; DROP ROLE gone; SELECT queue.enqueue('q')");
    // This one was made by hand, and so is the dumper's.
    client.run("GRANT USAGE ON SCHEMA queue TO maker; GRANT EXECUTE ON FUNCTION queue.create TO maker");
    grant(&mut client, "*", "missing", "produce");
    let dump = source.pg_dump(&["app"]);
    let of_queue: Vec<&str> =
        dump.lines().filter(|line| line.starts_with("GRANT") || line.starts_with("REVOKE")).collect();
    assert_eq!(of_queue.len(), 2, "{of_queue:#?}");
    assert!(of_queue.iter().all(|line| line.contains("maker")), "{of_queue:#?}");
    let file = source.dir().join("dump").display().to_string();
    output(source.command("pg_dump").args(["-Fc", "-f", &file, "app"]));

    let target = Cluster::new().conf(QUIET).start();
    let mut client = target.connect();
    client.run("CREATE ROLE known LOGIN; CREATE ROLE maker LOGIN");
    client.run("CREATE DATABASE app");
    let restore = ["--exit-on-error", "--single-transaction", "-d", "app", &file];
    output(target.command("pg_restore").args(restore));
    let mut client = target.connect_to("app");
    let is_awake = |client: &mut Client| {
        wait::until("the restore is over", || client.batch_execute("SELECT queue.enqueue('q')").ok());
    };
    is_awake(&mut client);
    assert_eq!(client.count("SELECT FROM queue.permission"), 4);
    client.run("SET SESSION AUTHORIZATION known; SELECT queue.enqueue('q')");
    assert_eq!(client.count("SELECT FROM queue.jobs WHERE state = 'ready'"), 3);
    assert_eq!(client.failure("SELECT FROM queue.claim('q')").code, "42501");
    client.run(
        "RESET SESSION AUTHORIZATION; SET SESSION AUTHORIZATION maker; SELECT queue.create('fresh'); \
        SELECT queue.pause('fresh')",
    );
    client.run("RESET SESSION AUTHORIZATION");
    // The role comes later: with the next change, or queue.adopt, it is let at what its rows say.
    client.run(
        "CREATE ROLE missing LOGIN; SELECT queue.adopt(); SET SESSION AUTHORIZATION missing; SELECT queue.pause('q')",
    );
    client.run("RESET SESSION AUTHORIZATION");
    // By now the rows let this one at the schema.
    let dump = target.pg_dump(&["app"]);
    let by_hand: Vec<&str> = dump.lines().filter(|line| line.starts_with("GRANT")).collect();
    assert!(by_hand.len() == 1 && by_hand[0].contains("FUNCTION queue.\"create\""), "{by_hand:?}");

    // And what comes out of pg_upgrade's kind of dump, or of a copy, is the same.
    let recorded = client.column::<String>(RECORDED);
    drop(client);
    target.connect().run("CREATE DATABASE copy TEMPLATE app");
    assert_eq!(target.connect_to("copy").column::<String>(RECORDED), recorded);
}

#[test]
fn who_manages_all_does_the_duties_with_the_owner_s_rights() {
    let cluster = Cluster::new().conf("pg_queue.segment_age = 1").conf("pg_queue.reclaim_delay = 0").start();
    let mut client = cluster.create_database("app");
    client.run("ALTER DATABASE app SET pg_queue.worker = off; CREATE ROLE chief");
    grant(&mut client, "*", "chief", "manage");
    let mut chief = cluster.connect_to("app");
    chief.run("SET SESSION AUTHORIZATION chief");
    create(&mut chief, "q", "");
    wait::until("it has made history", || {
        chief.run("SELECT queue.enqueue('q')");
        chief.run("SELECT queue.complete(id) FROM queue.claim('q')");
        chief.run("SELECT FROM queue.maintain()");
        (client.count("SELECT FROM queue.history LIMIT 1") == 1).then_some(())
    });
    let owners = "SELECT DISTINCT relowner::regrole::text FROM pg_class WHERE relnamespace = 'queue'::regnamespace";
    assert_eq!(client.column::<String>(owners), ["postgres"]);
}

/// What a role may plant that may create things in `public` and in its own temporary schema.
const TRAPS: &str = "
    CREATE FUNCTION public.trap() RETURNS void LANGUAGE plpgsql AS
        'BEGIN RAISE EXCEPTION ''trapped as %'', current_user; END';
    CREATE FUNCTION public.now() RETURNS timestamptz LANGUAGE sql AS 'SELECT public.trap(); SELECT NULL::timestamptz';
    CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS
    'SELECT public.trap(); SELECT NULL::timestamptz';
    CREATE FUNCTION public.max(integer) RETURNS integer LANGUAGE sql AS 'SELECT public.trap(); SELECT 1';
    CREATE FUNCTION public.unnest(text[]) RETURNS SETOF text LANGUAGE sql AS 'SELECT public.trap(); SELECT ''x''';
    CREATE FUNCTION public.concat(text, name) RETURNS text LANGUAGE sql AS 'SELECT public.trap(); SELECT ''x''';
    CREATE FUNCTION public.setval(regclass, bigint) RETURNS bigint LANGUAGE sql AS
    'SELECT public.trap(); SELECT 1::bigint';
    CREATE TABLE public.queue (queue_id integer, queue_name text);
    CREATE TABLE public.permission (queue_id integer, role_name text, privilege text);
    CREATE TYPE public.regclass AS ENUM ('x');
    CREATE TYPE public.jsonb AS ENUM ('x');
    DO $traps$
    DECLARE
        operator text;
        type_name text;
    BEGIN
        FOREACH type_name IN ARRAY ARRAY['integer', 'bigint', 'text', 'oid', '\"char\"', 'name', 'boolean',
        'timestamptz', 'pg_catalog.jsonb'] LOOP
            EXECUTE format('CREATE FUNCTION public.trapped(%1$s, %1$s) RETURNS boolean LANGUAGE sql AS
                            ''SELECT public.trap(); SELECT true''', type_name);
            FOREACH operator IN ARRAY ARRAY['=', '<>', '<', '>', '<=', '>=', '~~', '&', '>>', '+', '-', '*', '||'] LOOP
                EXECUTE format('CREATE OPERATOR public.%s (FUNCTION = public.trapped, LEFTARG = %s, RIGHTARG = %2$s)',
                               operator, type_name);
            END LOOP;
        END LOOP;
        -- Of these two there is none that fits as well.
        CREATE FUNCTION public.trapped(integer, bigint) RETURNS boolean LANGUAGE sql AS
        'SELECT public.trap(); SELECT true';
        CREATE OPERATOR public.= (FUNCTION = public.trapped, LEFTARG = integer, RIGHTARG = bigint);
        CREATE FUNCTION public.trapped(text, name) RETURNS boolean LANGUAGE sql AS 'SELECT public.trap(); SELECT true';
        CREATE OPERATOR public.= (FUNCTION = public.trapped, LEFTARG = text, RIGHTARG = name);
    END
    $traps$;";

/// Settings under which what is planted comes before all else.
const HOSTILE: &str = "SET search_path = pg_temp, public, queue, pg_catalog";

#[test]
fn what_others_have_planted_is_never_run() {
    let cluster = Cluster::new()
        .conf("pg_queue.segment_age = 1")
        .conf("pg_queue.reclaim_delay = 0")
        .conf("pg_queue.restore_quiet = 1")
        .start();
    let mut client = cluster.connect();
    client.run("CREATE DATABASE app");
    client.run("CREATE ROLE somebody");
    client.run("ALTER DATABASE app SET search_path = pg_temp, public, queue, pg_catalog");
    let mut client = cluster.connect_to("app");
    client.run(&format!("SET search_path = public; {TRAPS}; {HOSTILE}"));
    assert_eq!(client.failure("SELECT now()").message, "trapped as postgres", "the trap snaps");
    assert_eq!(client.failure("SELECT 1 = 1").message, "trapped as postgres", "the trap snaps");
    // The old version, the upgrade script, and the new one.
    client.run("CREATE EXTENSION pg_queue VERSION '0.3.0'");
    client.run("GRANT EXECUTE ON FUNCTION queue.enqueue TO somebody; ALTER EXTENSION pg_queue UPDATE");
    client.run("DROP EXTENSION pg_queue; CREATE EXTENSION pg_queue");
    client.run("GRANT TEMP ON DATABASE app TO somebody; SELECT queue.grant('*', 'somebody', 'manage')");
    for who in ["postgres", "somebody"] {
        let mut user = cluster.connect_to("app");
        user.run(&format!("SET SESSION AUTHORIZATION {who}; {HOSTILE}"));
        for table in
            ["queue", "permission", "lane", "history", "schedule", "attempt_0", "pg_proc", "pg_class", "pg_namespace"]
        {
            user.run(&format!("CREATE TEMP TABLE {table} (id bigint)"));
        }
        for sql in [
            "SELECT queue.create('graves')",
            "SELECT queue.create('q', stages => '{a, b}', max_running => 5, rate_limit => 100, \
                dead_letter => 'graves')",
            "SELECT queue.create('q', lease => '1 s', if_not_exists => true)",
            "SELECT queue.alter('q', stages => '{a, b, c}'), queue.pause('q'), queue.resume('q')",
            "SELECT queue.alter('q', reset => '{stages}')",
            "SELECT queue.grant('q', 'somebody', 'observe'), queue.revoke('q', 'somebody', 'observe')",
            "SELECT queue.enqueue('q', unique_key => 'k', version => '2020-01-01', unique_for => '1 hour')",
            "SELECT queue.enqueue('q', unique_key => 'k', on_duplicate => 'replace', version => '2021-01-01')",
            "SELECT queue.enqueue_batch('q', '[{}, {}, {\"group_key\": \"g\"}, {}, {}]')",
            "SELECT queue.complete(id) FROM queue.claim('q')",
            "SELECT queue.fail(id, 'x', fatal => true) FROM queue.claim('q')",
            "SELECT queue.extend(id, '1 hour'), queue.progress(id, '1') FROM queue.claim('q')",
            "SELECT queue.schedule('s', 'q', every => '1 hour'), queue.pause_schedule('s'), queue.resume_schedule('s')",
            "SELECT queue.run_schedule('s')",
            "SELECT queue.retry_many(ARRAY(SELECT job_id FROM queue.search('q', '$.error starts with \"x\"', \
                '{dead}')))",
            "SELECT queue.cancel_many('{}'), queue.reprioritize_many('{}', 1), \
                queue.reschedule_many('{}', '2100-01-01')",
            "SELECT queue.end_batch(pg_catalog.json_build_array(pg_catalog.json_build_object('release',
                pg_catalog.json_build_object('id', id, 'delay', '0'))))
             FROM queue.claim('q')",
            "SELECT queue.cancel(job_id) FROM queue.jobs WHERE state OPERATOR(pg_catalog.=) 'ready' LIMIT 1",
            "SELECT queue.reprioritize(job_id, 3) FROM queue.jobs WHERE state OPERATOR(pg_catalog.=) 'ready' LIMIT 1",
            "SELECT queue.forget(job_id), queue.retry(job_id) FROM queue.jobs \
                WHERE state OPERATOR(pg_catalog.=) 'completed'",
            "SELECT * FROM queue.throughput_by()",
            "SELECT * FROM queue.upcoming('s')",
            "SELECT * FROM queue.maintain()",
        ] {
            user.run(sql);
        }
        for view in ["jobs", "attempts", "queues", "stats", "throughput", "errors", "workers", "schedules"] {
            user.run(&format!("SELECT * FROM queue.{view}"));
        }
        user.run(
            "SELECT queue.unschedule('s'), queue.purge('q'), queue.drop('q', force => true), \
            queue.drop('graves', force => true)",
        );
        user.run("SELECT queue.adopt()");
    }
    // The worker's duties, in the midst of it: they fire, expire, copy, empty and drop.
    client.run(
        "SELECT queue.create('q', rate_limit => 1000, rate_period => '1 s', notify => true, \
        backoff_base => '0', lease => '1 s')",
    );
    client.run("SELECT queue.schedule('s', 'q', every => '1 s'); SELECT queue.enqueue('q')");
    assert_eq!(client.count("SELECT FROM queue.claim('q')"), 1);
    for done in [
        "queue.schedules WHERE last_job_id IS NOT NULL",
        "queue.attempts WHERE state OPERATOR(pg_catalog.=) 'timed_out'",
        "queue.rollup",
        "queue.history",
    ] {
        wait::until(done, || {
            client.run(
                "SELECT queue.enqueue('q', delay => '0.1 s'), \
                queue.enqueue('q', unique_key => 'k', unique_for => '1 s')",
            );
            client.run("SELECT queue.complete(id) FROM queue.claim('q')");
            (client.count(&format!("SELECT FROM {done} LIMIT 1")) == 1).then_some(())
        });
    }
    // The two above.
    assert_eq!(cluster.log().matches("ERROR:  trapped as").count(), 2, "{}", cluster.log());
}

#[test]
fn queues_are_made_granted_and_dropped_by_many_at_once() {
    let database = Database::new();
    database.connect().run("CREATE ROLE grantee_of_many");
    std::thread::scope(|scope| {
        for n in 0..6 {
            let mut client = database.connect();
            scope.spawn(move || {
                for round in 0..25 {
                    let queue = format!("q_{n}_{round}");
                    client.run(&format!("SELECT queue.create('{queue}')"));
                    client.run(&format!("SELECT queue.grant('{queue}', 'grantee_of_many', 'consume')"));
                    client.run(&format!("SELECT queue.drop('{queue}')"));
                }
            });
        }
    });
    let mut client = database.connect();
    assert_eq!(client.count("SELECT FROM queue.permission"), 0);
    assert!(!client.value::<bool>("SELECT has_schema_privilege('grantee_of_many', 'queue', 'usage')"));
    client.run("DROP ROLE grantee_of_many");
}

#[test]
fn what_was_granted_by_hand_stays_as_it_was() {
    let database = Database::new();
    let mut client = database.connect();
    client.run("CREATE ROLE maker_by_hand; CREATE ROLE granter_by_hand; CREATE ROLE other_by_hand");
    create(&mut client, "q", "");
    // As docs/permissions.md says: it manages what it creates. The role can go on when the queue is gone.
    client.run("GRANT USAGE ON SCHEMA queue TO maker_by_hand; GRANT EXECUTE ON FUNCTION queue.create TO maker_by_hand");
    let mut maker = session(&database, "maker_by_hand");
    for _ in 0..2 {
        maker.run("SELECT queue.create('mine')");
        maker.run("SELECT queue.drop('mine')");
    }
    // A role that may grant it on still may.
    client.run("GRANT EXECUTE ON FUNCTION queue.complete TO granter_by_hand WITH GRANT OPTION");
    client.run("SELECT queue.grant('q', 'other_by_hand', 'consume')");
    let may_grant = "SELECT has_function_privilege('granter_by_hand', 'queue.complete(bigint, jsonb)', \
        'EXECUTE WITH GRANT OPTION')";
    assert!(client.value::<bool>(may_grant));
    drop(maker);
    client.run("DROP OWNED BY maker_by_hand, granter_by_hand, other_by_hand");
    client.run("DROP ROLE maker_by_hand; DROP ROLE granter_by_hand; DROP ROLE other_by_hand");
}

/// The owner of the extension's tables is not to get the rights of those that run its functions, and not of the worker.
/// A session of the role `keeper`, which was superuser when it made the extension in the database `app`, and is no
/// more.
fn demoted_owner(cluster: &Cluster) -> Client {
    let mut client = cluster.connect();
    client.run("CREATE ROLE keeper SUPERUSER LOGIN");
    client.run("CREATE DATABASE app OWNER keeper");
    let mut keeper = cluster.config().dbname("app").user("keeper").connect(NoTls).unwrap();
    keeper.run("CREATE EXTENSION pg_queue; SELECT queue.create('q')");
    client.run("ALTER ROLE keeper NOSUPERUSER");
    keeper
}

#[test]
fn an_owner_s_trigger_runs_with_the_owner_s_rights() {
    let cluster = Cluster::new().start();
    let mut keeper = demoted_owner(&cluster);
    keeper.run(
        "CREATE TABLE seen (by_whom text);
         CREATE FUNCTION evil() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN INSERT INTO public.seen VALUES (current_user); RETURN NULL; END $$;
         CREATE TRIGGER evil AFTER UPDATE ON queue.queue FOR EACH STATEMENT EXECUTE FUNCTION evil()",
    );
    let mut chief = cluster.connect_to("app");
    wait::until("it is awake again", || chief.batch_execute("SELECT queue.adopt(); SELECT queue.pause('q')").ok());
    assert_eq!(chief.column::<String>("SELECT DISTINCT by_whom FROM seen"), ["keeper"]);
}

#[test]
fn an_owner_s_trigger_and_its_caller_leave_each_other_s_search_path_alone() {
    let cluster = Cluster::new().start();
    let mut keeper = demoted_owner(&cluster);
    keeper.run(
        "CREATE TABLE public.seen (path text);
         CREATE FUNCTION evil() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             INSERT INTO public.seen VALUES (current_setting('search_path'));
             PERFORM set_config('search_path', 'evil', false);
             RETURN NULL;
         END $$;
         CREATE TRIGGER evil AFTER UPDATE ON queue.queue FOR EACH STATEMENT EXECUTE FUNCTION evil()",
    );
    let mut chief = cluster.connect_to("app");
    wait::until("it is awake again", || chief.batch_execute("SELECT queue.adopt(); SELECT queue.resume('q')").ok());
    chief.run("TRUNCATE public.seen; SET search_path = public, queue; SELECT queue.pause('q')");
    assert_eq!(chief.value::<String>("SHOW search_path"), "public, queue");
    assert_eq!(chief.column::<String>("SELECT path FROM public.seen"), ["pg_catalog, pg_temp"]);
}

#[test]
fn an_owner_s_deferred_trigger_is_refused() {
    const TABLES: [&str; 4] = ["queue", "lane", "schedule", "permission"];
    let cluster = Cluster::new().start();
    let mut client = cluster.connect();
    let mut keeper = demoted_owner(&cluster);
    keeper.run(
        "CREATE FUNCTION evil() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN ALTER ROLE keeper SUPERUSER; END IF;
             RETURN NULL;
         END $$",
    );
    let mut chief = cluster.connect_to("app");
    chief.run("CREATE ROLE friend");
    let verbs = [
        "SELECT queue.create('other')",
        "SELECT queue.pause('q')",
        "SELECT queue.alter('q', stages => '{a, b}')",
        "SELECT queue.schedule('s', 'q', every => '1 hour')",
        "SELECT queue.grant('q', 'friend', 'observe')",
        "SELECT queue.revoke('q', 'friend', 'observe')",
        "SELECT queue.unschedule('s')",
        "SELECT queue.adopt()",
        "SELECT queue.drop('other')",
    ];
    for table in TABLES {
        keeper.run(&format!(
            "CREATE CONSTRAINT TRIGGER evil AFTER INSERT OR UPDATE OR DELETE ON queue.{table}
             DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION evil()"
        ));
    }
    wait::until("it is awake again", || chief.batch_execute("SELECT queue.adopt(); SELECT queue.claim('q')").ok());
    let refused = verbs.map(|verb| chief.batch_execute(verb).map_err(|e| error::code(&e).to_owned()));
    assert_eq!(client.count("SELECT FROM pg_roles WHERE rolname = 'keeper' AND rolsuper"), 0);
    assert_eq!(
        refused.iter().filter(|answer| answer.as_ref().is_err_and(|code| code == "42501")).count(),
        5,
        "{refused:?}"
    );
    for table in TABLES {
        keeper.run(&format!("DROP TRIGGER evil ON queue.{table}"));
    }
    verbs.into_iter().for_each(|verb| chief.run(verb));
}

#[test]
fn a_database_in_another_encoding_is_refused() {
    let cluster = Cluster::new().start();
    cluster.connect().run("CREATE DATABASE old ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0");
    let failure = cluster.connect_to("old").failure("CREATE EXTENSION pg_queue");
    assert_eq!((failure.code.as_str(), failure.detail.contains("LATIN1")), ("0A000", true), "{failure:?}");
}

#[test]
fn an_owner_s_index_is_filled_with_the_owner_s_rights() {
    let cluster = Cluster::new().start();
    let mut client = cluster.connect();
    let mut keeper = demoted_owner(&cluster);
    keeper.run(
        "CREATE FUNCTION evil() RETURNS void LANGUAGE plpgsql AS
             $$ BEGIN IF (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN ALTER ROLE keeper SUPERUSER;
             END IF; END $$;
         CREATE FUNCTION harmless(x bigint) RETURNS bigint IMMUTABLE LANGUAGE plpgsql AS
             $$ BEGIN PERFORM public.evil(); RETURN x; END $$;
         CREATE INDEX ON queue.outcome_0 (harmless(id)); CREATE INDEX ON queue.claim_0 (harmless(id));
         CREATE INDEX ON queue.outcome_0 ((id + harmless(1)));
         SELECT queue.enqueue('q')",
    );
    let mut chief = cluster.connect_to("app");
    chief.run("SELECT FROM queue.claim('q', lease => '1 s')");
    wait::until("the worker has ended the attempt", || {
        (chief.count("SELECT FROM queue.attempts WHERE state = 'timed_out'") > 0).then_some(())
    });
    assert_eq!(client.count("SELECT FROM pg_roles WHERE rolname = 'keeper' AND rolsuper"), 0);
    assert_eq!(chief.column::<String>("SELECT current_user::text"), ["postgres"]);
}

#[test]
fn who_was_renamed_and_is_dropped_leaves_nothing_in_a_dump() {
    let cluster = Cluster::new().start();
    let mut client = cluster.create_database("app");
    create(&mut client, "q", "");
    client.run("CREATE ROLE carl");
    grant(&mut client, "q", "carl", "consume");
    client.run("ALTER ROLE carl RENAME TO carla; DROP OWNED BY carla; DROP ROLE carla");
    let gone = "SELECT FROM pg_init_privs AS p, aclexplode(p.initprivs) AS a
                WHERE a.grantee <> 0 AND NOT EXISTS (SELECT FROM pg_roles AS r WHERE r.oid = a.grantee)";
    assert_eq!(client.count(gone), 0);
}
