//! The effects of grants in the catalogs, in dumps and on running sessions, and whose privileges count where.
//! `privileges.rs` has the table of privileges for each function and view.

use std::sync::atomic::AtomicU32;

use crate::shared::*;

const PRIVILEGES: [&str; 4] = ["produce", "consume", "observe", "manage"];

/// Roles of one test. They are dropped with the value, because roles belong to the whole cluster.
pub struct Roles<'a> {
    database: &'a Database,
    prefix: String,
}

impl<'a> Roles<'a> {
    pub fn new(database: &'a Database) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        Self { database, prefix: format!("perm{}", NUMBER.fetch_add(1, Ordering::Relaxed)) }
    }

    /// Makes a role with these options.
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

/// Opens a session of this role.
pub fn session(database: &Database, role: &str) -> Client {
    let mut client = database.connect();
    client.run(&format!("SET SESSION AUTHORIZATION {role}"));
    client
}

/// Runs a statement in a transaction that is rolled back. Returns the number of values, or the error.
pub fn attempt(client: &mut Client, role: &str, sql: &str) -> Result<i64, Failure> {
    client.run(&format!("BEGIN; SET LOCAL ROLE {role}"));
    let found = client.query_one(sql, &[]).map(|row| row.get(0)).map_err(|error| Failure::from(&error));
    client.run("ROLLBACK");
    found
}

#[test]
fn a_function_in_a_condition_sees_no_job_that_the_role_may_not_observe() {
    let (database, mut client) = Database::without_worker().with_queue("q", "");
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
fn shared_payloads_are_shown_only_with_jobs_that_the_role_may_observe() {
    let (database, mut client) = Database::without_worker().with_queue("dead", "");
    create(&mut client, "q", "max_attempts => 2, backoff_base => '0', dead_letter => 'dead'");
    let roles = Roles::new(&database);
    let (of_q, of_dead) = (roles.make("of_q", ""), roles.make("of_dead", ""));
    grant(&mut client, "q", &of_q, "observe");
    grant(&mut client, "dead", &of_dead, "observe");
    // The payload is so large that it is stored once. The second attempt refers to the row of the first.
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
fn a_changed_privilege_counts_in_the_next_statement() {
    let (database, mut client) = Database::without_worker().with_queue("q", "");
    let roles = Roles::new(&database);
    let (role, group) = (roles.make("user", ""), roles.make("group", ""));
    let mut user = session(&database, &role);
    let enqueue = "SELECT queue.enqueue('q')";
    let denied = |user: &mut Client| {
        user.refused("SAVEPOINT s; SELECT queue.enqueue('q')", "42501");
        user.run("ROLLBACK TO s");
    };
    // With this grant the role can still use the schema and the function.
    grant(&mut client, "*", &group, "observe");
    create(&mut client, "mine", "");
    grant(&mut client, "mine", &role, "produce");
    user.run("BEGIN");
    denied(&mut user);
    grant(&mut client, "q", &role, "produce");
    user.run(enqueue);
    client.run(&format!("SELECT queue.revoke('q', '{role}', 'produce')"));
    denied(&mut user);
    // A membership is granted and revoked.
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
    // A revoke counts in its own transaction and not after its rollback.
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
    let (database, mut client) = Database::without_worker().with_queue("q", "");
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
    user.refused("SELECT queue.enqueue('q')", "42501");
    assert_eq!(client.count("SELECT FROM queue.jobs"), 3);
    client.run("DROP SCHEMA shop CASCADE");
}

#[test]
fn attempts_of_other_queues_are_not_changed() {
    let (database, mut client) = Database::without_worker().with_queue("mine", "");
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
        let failure = worker.refused(&format!("SELECT FROM queue.{call}"), "42501");
        assert!(failure.message.contains("queue \"theirs\""), "{call}: {failure:?}");
    }
    // The same holds if the error is caught: the refused call has held nothing back.
    worker.run("BEGIN");
    for call in &calls {
        worker.run(&format!(
            "DO $$ BEGIN PERFORM FROM queue.{call}; EXCEPTION WHEN insufficient_privilege THEN NULL; END $$"
        ));
        client.run(&format!("BEGIN; SELECT queue.complete({mine}), queue.complete({theirs}); ROLLBACK"));
    }
    worker.run("COMMIT");
    assert_eq!(client.count("SELECT FROM queue.jobs WHERE state = 'running'"), 2);
    // The answer does not say what happened to the other queue's attempts.
    client.run(&format!("SELECT queue.complete({theirs})"));
    worker.refused(&format!("SELECT queue.complete({theirs})"), "42501");
    worker.run(&format!("SELECT queue.complete({mine})"));
    worker.refused(&format!("SELECT queue.complete({mine})"), "QJ001");
    client.run("SELECT queue.enqueue('theirs')");
    let lost = client.claim("theirs");
    client.run("SELECT queue.drop('theirs', force => true)");
    worker.refused(&format!("SELECT queue.complete({lost})"), "QJ001");
}

#[test]
fn a_producer_need_not_be_a_worker() {
    let (database, mut client) = Database::without_worker().with_queue("q", "");
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
    // A worker needs no privilege on the dead-letter queue. The role that sets `dead_letter` does.
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
fn the_creator_of_a_queue_manages_it() {
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
        app_user.refused(&format!("SELECT FROM queue.{denied}"), "42501");
    }
    // A role keeps a GRANT by hand when another role loses its `queue.grant`.
    grant(&mut client, "*", &chief, "manage");
    client.run(&format!("SELECT queue.revoke('*', '{chief}', 'manage')"));
    app_user.run("SELECT queue.create('second')");
    grant(&mut client, "*", &chief, "manage");
    let mut chief_user = session(&database, &chief);
    chief_user.run("SELECT queue.create('third'); SELECT queue.pause('theirs'); SELECT FROM queue.maintain()");
    chief_user.run(&format!("SELECT queue.grant('*', '{other}', 'manage'), queue.drop('third'), queue.adopt()"));
    let rows = "SELECT concat_ws(' ', queue_name, privilege) FROM queue_internal.permission
        JOIN queue_internal.queue USING (queue_id)
                WHERE role_name = '{}' ORDER BY 1";
    assert_eq!(client.column::<String>(&rows.replace("{}", &app)), ["mine manage", "second manage"]);
    assert_eq!(client.column::<String>(&rows.replace("{}", &chief)), [""; 0]);
    // Grants on a queue are dropped with it.
    app_user.run("SELECT queue.drop('mine', force => true), queue.drop('second')");
    assert_eq!(client.column::<String>(&rows.replace("{}", &app)), [""; 0]);
    app_user.refused("SELECT queue.enqueue('theirs')", "42501");
}

#[test]
fn grant_and_revoke_refuse_wrong_arguments_with_a_reason() {
    let (database, mut client) = Database::without_worker().with_queue("q", "");
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
    // A repeated grant changes nothing.
    grant(&mut client, "q", &role, "produce");
    grant(&mut client, "q", &role, "produce");
    assert_eq!(client.count("SELECT FROM queue_internal.permission"), 1);
    let denied = session(&database, &role).failure("SELECT queue.enqueue('q'), queue.claim('q')");
    assert_eq!(denied.code, "42501");
    grant(&mut client, "*", &role, "consume");
    client.run("SELECT queue.create('it''s')");
    let denied = session(&database, &role).failure("SELECT queue.enqueue('it''s')");
    assert_eq!(denied.message, "permission denied for queue \"it's\"");
    assert_eq!(denied.detail, "This needs the privilege produce.");
    let hint = denied.hint;
    assert_eq!(hint, format!("A role that manages it can run SELECT queue.grant('it''s', '{role}', 'produce')."));
    // A superuser may grant to PUBLIC.
    let nobody = roles.make("nobody", "");
    grant(&mut client, "q", "public", "produce");
    session(&database, &nobody).run("SELECT queue.enqueue('q')");
    client.run("SELECT queue.revoke('q', 'public', 'produce')");
    assert_eq!(session(&database, &nobody).failure("SELECT queue.enqueue('q')").code, "42501");
    // The role's name needs quotes.
    let name = format!("{} \"'; x", roles.prefix);
    client.run(&format!("CREATE ROLE \"{}\"", name.replace('"', "\"\"")));
    grant(&mut client, "q", &name.replace('\'', "''"), "manage");
    client.run(&format!("DROP OWNED BY \"{0}\"; DROP ROLE \"{0}\"", name.replace('"', "\"\"")));
    assert_eq!(client.count(&format!("SELECT FROM queue_internal.permission WHERE role_name <> '{role}'")), 0);
}

/// The roles other than the owner with access to the extension's objects according to the catalogs, and the rights that
/// are recorded as the extension's own.
const LET: &str = "
    SELECT format('%s %s %s', i.identity, a.privilege_type, coalesce(r.rolname, a.grantee::text)) FROM (
        SELECT 'pg_proc'::regclass, oid, coalesce(proacl, acldefault('f', proowner)), proowner FROM pg_proc
        WHERE pronamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace)
        UNION ALL SELECT 'pg_class'::regclass, oid, relacl, relowner FROM pg_class
        WHERE relnamespace IN ('queue'::regnamespace, 'queue_internal'::regnamespace)
        UNION ALL SELECT 'pg_namespace'::regclass, oid, nspacl, nspowner FROM pg_namespace
        WHERE nspname IN ('queue', 'queue_internal')
    ) AS o (class, oid, acl, owner), aclexplode(o.acl) AS a LEFT JOIN pg_roles AS r ON r.oid = a.grantee,
    pg_identify_object(o.class, o.oid, 0) AS i
    WHERE a.grantee <> o.owner ORDER BY 1";

pub const RECORDED: &str = "
    SELECT format('%s %s %s', i.identity, a.privilege_type, coalesce(r.rolname, a.grantee::text))
    FROM pg_init_privs AS p, aclexplode(p.initprivs) AS a LEFT JOIN pg_roles AS r ON r.oid = a.grantee,
    pg_identify_object(p.classoid, p.objoid, 0) AS i
    WHERE (i.schema IN ('queue', 'queue_internal') OR i.identity IN ('queue', 'queue_internal'))
    AND r.rolname IS DISTINCT FROM 'postgres' ORDER BY 1";

#[test]
fn the_catalogs_follow_the_rows() {
    let (database, mut client) = Database::without_worker().with_queue("q", "");
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
    assert_eq!(client.failure(&format!("DROP ROLE {a}")).code, "2BP01");
    client.run("SELECT queue.drop('q')");
    assert_eq!(check(&mut client), nothing);
    // A role that is dropped with all its grants and created again has no privileges.
    grant(&mut client, "r", &a, "manage");
    grant(&mut client, "r", &b, "consume");
    client.run(&format!("DROP OWNED BY {a}; DROP ROLE {a}; CREATE ROLE {a} LOGIN"));
    assert!(check(&mut client).iter().all(|line| line.ends_with(&b)));
    assert_eq!(session(&database, &a).failure("SELECT queue.pause('r')").code, "42501");
    // A user without rights over a role cannot revoke its grants.
    let stranger = roles.make("stranger", "");
    assert_eq!(session(&database, &stranger).failure(&format!("DROP OWNED BY {b}")).code, "42501");
    assert_eq!(client.count("SELECT FROM queue_internal.permission"), 1);
    let before = client.column::<String>(LET);
    client.run(&format!("REASSIGN OWNED BY {b} TO postgres"));
    assert_eq!(client.column::<String>(LET), before);
    // In 17 and later this also passes on the recorded rights, until the next change.
    if client.value::<bool>("SELECT current_setting('server_version_num')::integer < 170000") {
        check(&mut client);
    }
    // The next change restores privileges that were revoked by hand.
    client.run(&format!("REVOKE EXECUTE ON FUNCTION queue.complete FROM {b}"));
    grant(&mut client, "r", &b, "observe");
    assert!(check(&mut client).iter().any(|line| line.starts_with("queue.complete(")));
}

/// Each session grants on a queue of its own to a role of its own, and makes, grants and drops queues meanwhile.
#[test]
fn many_grant_and_drop_at_once() {
    let database = Database::without_worker();
    let mut client = database.connect();
    let roles = Roles::new(&database);
    let names: Vec<String> = (0..8).map(|n| roles.make(&n.to_string(), "")).collect();
    let passing = roles.make("passing", "");
    for n in 0..8 {
        create(&mut client, &format!("q{n}"), "");
    }
    std::thread::scope(|scope| {
        for (n, name) in names.iter().enumerate() {
            let (mut client, passing) = (database.connect(), &passing);
            scope.spawn(move || {
                for round in 0..15 {
                    for privilege in PRIVILEGES {
                        grant(&mut client, &format!("q{n}"), name, privilege);
                    }
                    client.run(&format!("SELECT queue.revoke('q{n}', '{name}', 'manage')"));
                    let brief = format!("q{n}_{round}");
                    create(&mut client, &brief, "");
                    grant(&mut client, &brief, passing, "consume");
                    client.run(&format!("SELECT queue.drop('{brief}')"));
                }
            });
        }
    });
    assert_eq!(client.count("SELECT FROM queue_internal.permission"), 24);
    assert_eq!(client.column::<String>(LET), client.column::<String>(RECORDED));
    for name in &names {
        let has = format!("SELECT has_function_privilege('{name}', 'queue.enqueue_batch(text, jsonb)', 'EXECUTE')");
        assert!(client.value::<bool>(&has));
    }
    assert!(!client.value::<bool>(&format!("SELECT has_schema_privilege('{passing}', 'queue', 'usage')")));
}

#[test]
fn a_manager_of_all_queues_does_the_duties_with_the_owner_s_rights() {
    let (cluster, mut client) =
        Cluster::with(&["pg_queue.segment_age = 1", "pg_queue.reclaim_delay = 0"]).start_with_database("app");
    client.run("ALTER DATABASE app SET pg_queue.worker = off; CREATE ROLE chief");
    grant(&mut client, "*", "chief", "manage");
    let mut chief = cluster.connect_to("app");
    chief.run("SET SESSION AUTHORIZATION chief");
    create(&mut chief, "q", "");
    wait::until_true("it has made history", || {
        chief.run("SELECT queue.enqueue('q')");
        chief.run("SELECT queue.complete(id) FROM queue.claim('q')");
        chief.run("SELECT FROM queue.maintain()");
        client.count("SELECT FROM queue_internal.history LIMIT 1") == 1
    });
    let owners =
        "SELECT DISTINCT relowner::regrole::text FROM pg_class WHERE relnamespace = 'queue_internal'::regnamespace";
    assert_eq!(client.column::<String>(owners), ["postgres"]);
}

#[test]
fn what_was_granted_by_hand_stays_as_it_was() {
    let database = Database::new();
    let mut client = database.connect();
    client.run("CREATE ROLE maker_by_hand; CREATE ROLE granter_by_hand; CREATE ROLE other_by_hand");
    create(&mut client, "q", "");
    // As docs/permissions.md says, the role manages the queues that it creates. It can be dropped once its queues are
    // gone.
    client.run("GRANT USAGE ON SCHEMA queue TO maker_by_hand; GRANT EXECUTE ON FUNCTION queue.create TO maker_by_hand");
    let mut maker = session(&database, "maker_by_hand");
    for _ in 0..2 {
        maker.run("SELECT queue.create('mine')");
        maker.run("SELECT queue.drop('mine')");
    }
    // A role with a grant option keeps it.
    client.run("GRANT EXECUTE ON FUNCTION queue.complete TO granter_by_hand WITH GRANT OPTION");
    client.run("SELECT queue.grant('q', 'other_by_hand', 'consume')");
    let may_grant = "SELECT has_function_privilege('granter_by_hand', 'queue.complete(bigint, jsonb)', \
        'EXECUTE WITH GRANT OPTION')";
    assert!(client.value::<bool>(may_grant));
    drop(maker);
    client.run("DROP OWNED BY maker_by_hand, granter_by_hand, other_by_hand");
    client.run("DROP ROLE maker_by_hand; DROP ROLE granter_by_hand; DROP ROLE other_by_hand");
}
