//! Privileges: of roles on the primary, and of a primary on the queue server.

use queue_tests::sql::Sql;

use crate::pair::{DATABASE, Pair, primary_sql};

#[test]
fn a_source_may_do_only_what_it_was_allowed() {
    let pair = Pair::new();
    let (mut app, mut server) = (pair.app(), pair.server());
    server.run("SELECT queue.create('secret'), queue.create('sql', executor => 'sql')");
    server.refused("SELECT queue_bridge.allow('shop', 'sql')", "42501");
    server.run("SELECT queue.create('brief', retention => '1 hour')");
    server.refused("SELECT queue_bridge.allow('shop', 'brief')", "55000");
    server.refused("SELECT queue_bridge.allow('none', 'q')", "42704");
    // The primary does not know the queue. Its owner can still write any row.
    app.refused("SELECT queue.enqueue('secret')", "42704");
    let mut owner = pair.primary_as("owner");
    let put = |owner: &mut postgres::Client, id: &str, queue: &str| {
        owner.run(&format!(
            "INSERT INTO queue_bridge.outbox
             SELECT {id}, clock_timestamp(), queue_bridge.ring_at(now()), 'e', '{queue}', NULL, '1', NULL"
        ));
    };
    put(&mut owner, "queue_bridge.new_id()", "secret");
    put(&mut owner, "queue_bridge.new_id()", "sql");
    // An id that the queue server gave, and an id of another source.
    let own = server.enqueue("q");
    put(&mut owner, &own.to_string(), "q");
    put(&mut owner, "(5::bigint << 46) + 31", "q");
    pair.wait_arrived();
    let codes = server.column::<String>("SELECT code FROM queue_bridge.refused ORDER BY refused_id");
    assert_eq!(codes, ["42501", "42501", "22023", "22023"]);
    assert_eq!(server.column::<i64>("SELECT job_id FROM queue.jobs"), [own]);
    // Requests the cancellation of a job of another queue.
    let other = server.enqueue("secret");
    app.run(&format!("SELECT queue.cancel({other})"));
    pair.wait_arrived();
    assert_eq!(server.state(other), "ready");
    // Queues can be taken from the source again.
    server.run("SELECT queue_bridge.deny('shop', 'q')");
    app.enqueue("q");
    pair.wait_arrived();
    assert_eq!(server.count("SELECT FROM queue_bridge.refused WHERE code = '42501'"), 4);
}

#[test]
fn a_repair_refuses_no_job_that_came_while_its_source_had_the_privilege() {
    let pair = Pair::new();
    let (mut app, mut server) = (pair.app(), pair.server());
    for sql in [
        "SELECT queue.enqueue('q')",
        "SELECT queue.enqueue('q', unique_key => 'k')",
        "SELECT count(*) FROM queue.enqueue_many('q', ARRAY['1', '2']::jsonb[])",
        "SELECT count(*) FROM queue.enqueue_batch('q', '[{}, {\"priority\": 1}]')",
        "SELECT queue.enqueue_flow('q', '[{\"task\": \"a\"}, {\"task\": \"b\", \"after\": [\"a\"]}]')",
    ] {
        app.run(sql);
    }
    pair.wait_arrived();
    let jobs = server.count("SELECT FROM queue.jobs");
    server.run("SELECT queue_bridge.deny('shop', 'q')");
    let late = app.enqueue("q");
    pair.wait_arrived();
    server.run("SELECT queue_bridge.repair('shop')");
    pair.wait_arrived();
    let refused = "SELECT id FROM queue_bridge.refused WHERE verb <> '?'";
    assert_eq!(server.column::<i64>(refused), [late]);
    assert_eq!(server.count("SELECT FROM queue.jobs"), jobs);
}

#[test]
fn only_a_source_writes_into_the_outbox_of_the_queue_server() {
    let pair = Pair::new();
    let mut server = pair.server();
    let failure = server.failure("INSERT INTO queue_bridge.outbox VALUES (1, now(), 0, 'e')");
    assert_eq!((failure.code.as_str(), failure.message.contains("from a source only")), ("42501", true));
    server.run("CREATE ROLE nobody LOGIN");
    let mut nobody = pair.server.connect_as(DATABASE, "nobody");
    for call in [
        "queue_bridge.connect('a', 'b')",
        "queue_bridge.contact('shop')",
        "queue_bridge.enqueue('q', '{1}', now(), '1', NULL, 'e', NULL)",
        "queue_bridge.retry_refused('shop')",
    ] {
        nobody.refused(&format!("SELECT {call}"), "42501");
    }
    nobody.refused("SELECT conninfo FROM queue_bridge.source", "42501");
    assert_eq!(nobody.column::<String>("SELECT source FROM queue_bridge.sources"), ["shop"]);
}

#[test]
fn a_role_needs_a_grant_on_the_primary_and_reads_no_outbox() {
    let pair = Pair::new();
    pair.primary.connect().run("CREATE ROLE nobody LOGIN");
    assert_eq!(pair.primary_as("nobody").failure("SELECT queue.enqueue('q')").code, "42501");
    let mut app = pair.app();
    for sql in ["SELECT FROM queue_bridge.outbox", "SELECT queue_bridge.new_id()", "TABLE queue_bridge.effect"] {
        app.refused(sql, "42501");
    }
    // A queue server's role that lacks a privilege gets an error that says so.
    let mut server = pair.server();
    pair.primary.connect().run("CREATE ROLE weak LOGIN");
    let weak = pair.conninfo().replace("taker", "weak");
    let failure = server.failure(&format!("SELECT queue_bridge.connect('weak', '{weak}')"));
    assert!(failure.message.contains("may not replicate"), "{failure:?}");
    pair.primary.connect().run("ALTER ROLE weak REPLICATION");
    let failure = server.failure(&format!("SELECT queue_bridge.connect('weak', '{weak}')"));
    assert!(failure.message.contains("may not read its outbox"), "{failure:?}");
}

#[test]
fn the_script_may_be_run_again_and_refuses_a_database_with_pg_queue() {
    let pair = Pair::new();
    let mut app = pair.app();
    let before = app.enqueue("q");
    pair.primary_as("owner").run(&primary_sql());
    let after = app.enqueue("q");
    assert!(after > before);
    pair.wait_arrived();
    assert_eq!(pair.server().column::<i64>("SELECT job_id FROM queue.jobs ORDER BY 1"), [before, after]);
    let message = pair.server().failure(&primary_sql()).message;
    assert_eq!(message, "pg_queue is installed in this database");
}

#[test]
fn the_script_waits_for_no_producer_and_keeps_the_owner() {
    let pair = Pair::new();
    // Opens a producer's and a worker's transaction.
    let mut open = pair.app();
    open.run("BEGIN; SELECT queue.once(queue.enqueue('q'))");
    let run = |role: &str| {
        let script = format!("SET lock_timeout = '2s'; SET ROLE owner;{}", primary_sql());
        pair.primary_as(role).batch_execute(&script)
    };
    run("owner").expect("it waits for nothing");
    pair.app().enqueue("q");
    // A superuser, a member of the owning role, and the owner itself.
    let mut postgres = pair.primary.connect_to(DATABASE);
    postgres
        .run("CREATE ROLE member LOGIN IN ROLE owner; CREATE ROLE other LOGIN; GRANT CREATE ON DATABASE shop TO other");
    for role in ["postgres", "member", "owner"] {
        run(role).unwrap_or_else(|error| panic!("{role}: {error:?}"));
        let owners = "SELECT DISTINCT pg_get_userbyid(o) FROM (
            SELECT proowner AS o, pronamespace AS n FROM pg_proc UNION ALL SELECT relowner, relnamespace FROM pg_class
            UNION ALL SELECT typowner, typnamespace FROM pg_type) AS o
            WHERE n IN ('queue'::regnamespace, 'queue_bridge'::regnamespace)";
        assert_eq!(postgres.column::<String>(owners), ["owner"], "{role}");
        pair.app().enqueue("q");
    }
    // Other roles get an error that names the owner, even if they could do it.
    for role in ["other", "member", "postgres"] {
        let failure = pair.primary_as(role).failure(&primary_sql());
        assert_eq!((failure.code.as_str(), failure.message.contains("role \"owner\"")), ("42501", true), "{failure:?}");
        assert!(failure.hint.contains("SET ROLE owner"), "{failure:?}");
    }
    open.run("COMMIT");
    pair.wait_arrived();
    assert_eq!(pair.server().count("SELECT FROM queue.jobs"), 5);
    assert_eq!(pair.contact(), None);
}

#[test]
fn names_may_have_any_characters() {
    let pair = Pair::new();
    let mut server = pair.server();
    let mut postgres = pair.primary.connect_to(DATABASE);
    for name in ["o'rly \"x\" \\ %s $1 $$ {}", "é🐘 ünï", "a.b", " ", &"é".repeat(31)] {
        let [text, role] = [('\'', "''"), ('"', "\"\"")].map(|(quote, quoted)| name.replace(quote, quoted));
        postgres.run(&format!("CREATE ROLE \"{role}\" LOGIN"));
        postgres.run(&format!("SELECT queue_bridge.admit('{text}'), queue_bridge.grant('{text}')"));
        server.run(&format!("SELECT queue.create('{text}'); SELECT queue_bridge.allow('shop', '{text}')"));
        assert_eq!(pair.contact(), None);
        let mut app = pair.primary_as(name);
        app.run(&format!("SELECT queue.enqueue('{text}', unique_key => '{text}', group_key => '{text}')"));
        app.run(&format!("SELECT queue.enqueue('{text}', stage => '{text}')"));
        app.refused("SELECT queue.enqueue('')", "42704");
        pair.wait_arrived();
        assert_eq!(server.count(&format!("SELECT FROM queue.jobs WHERE queue_name = '{text}'")), 1, "{name}");
        assert_eq!(pair.contact(), None);
        let told = format!("SELECT FROM queue_bridge.refused WHERE target = '{text}' AND sqlstate = '22023'");
        assert_eq!(postgres.count(&told), 1, "{name}");
    }
    // Roles and slots are named after the source, so its name must be plain. Error messages do not show the password.
    let connect = |arguments: &str| format!("SELECT queue_bridge.connect({arguments}, 'password=secret', 5)");
    for source in ["", "Shop", "é", "a b", "1", &"x".repeat(41)] {
        let failure = server.failure(&connect(&format!("'{source}'")));
        assert_eq!((failure.code.as_str(), failure.detail.as_str()), ("22023", ""), "{source}");
    }
    for wrong in ["NULL", "'a'"] {
        let failure = server.failure(&connect(wrong).replace('5', "128"));
        assert!(failure.code == "22023" && !format!("{failure:?}").contains("secret"), "{failure:?}");
    }
    let longest = "x".repeat(40);
    server.run("SELECT queue_bridge.disconnect('shop')");
    server.run(&connect(&format!("'{longest}'")).replace("password=secret", &pair.conninfo()));
    server.run(&format!("SELECT queue_bridge.disconnect('{longest}')"));
}
