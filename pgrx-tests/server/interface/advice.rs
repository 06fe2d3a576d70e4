//! What is said to somebody who makes a mistake: what is wrong, and what to write instead.

use queue_tests::Cluster;

use crate::security::permissions::{Roles, grant};
use crate::shared::{Database, Sql, create};

#[test]
fn a_call_that_does_not_fit_is_told_what_would() {
    let database = Database::new();
    let mut client = database.connect();
    create(&mut client, "emails", "");
    for (call, hint) in [
        ("queue.enqueue('emails', '{}', delay => 30)", "delay is an interval, not integer: write '30 seconds'"),
        ("queue.claim('emails', wait => 10)", "wait is an interval"),
        ("queue.enqueue('emails', json_build_object('to', 7))", "payload is jsonb, not json: add ::jsonb"),
        ("queue.enqueue('emails', '{}'::text)", "payload is jsonb, not text: add ::jsonb"),
        ("queue.enqueue('emails', uniqueKey => 'k')", "it has unique_key"),
        ("queue.create('q', max_retries => 3)", "it has max_attempts"),
        ("queue.claim('emails', \"limit\" => 3)", "it has max_jobs"),
        ("queue.enqueue('emails', after => 999)", "after is an array, bigint[]"),
        ("queue.complete_many(16)", "ids is an array"),
        ("queue.progress(16, 50)", "progress is jsonb, not integer"),
        ("queue.fail(16)", "queue.fail needs error, of type text"),
        ("queue.enque('emails')", "there is queue.enqueue"),
        ("enqueue('emails')", "write queue.enqueue(…)"),
    ] {
        let failure = client.failure(&format!("SELECT {call}"));
        assert_eq!(failure.code, "42883", "{call}: {failure:?}");
        assert!(failure.hint.contains(hint), "{call}: {failure:?}");
    }
    let failure = client.failure("CALL queue.wait('emails', 10)");
    assert!(failure.hint.contains("timeout is an interval"), "{failure:?}");
    let failure = client.failure("SELECT * FROM queue.job_s");
    assert!(failure.code == "42P01" && failure.hint.contains("there is queue.jobs"), "{failure:?}");
    // What is not ours is left alone, and so is a database without the extension.
    assert!(!client.failure("SELECT nowhere(1)").hint.contains("queue"));
    assert_eq!(client.failure("SELECT * FROM jobz").hint, "");
}

#[test]
fn each_function_is_known_with_its_arguments() {
    let database = Database::new();
    let mut client = database.connect();
    // A call with an argument that no function has tells the arguments that it has.
    let functions: Vec<String> = client.column(
        "SELECT DISTINCT proname::text FROM pg_proc WHERE pronamespace = 'queue'::regnamespace AND prokind IN ('f', 'p')
         AND pronargs > 0 ORDER BY 1",
    );
    for name in functions {
        let kind: String = client.value(&format!(
            "SELECT prokind::text FROM pg_proc WHERE pronamespace = 'queue'::regnamespace AND proname = '{name}' LIMIT 1"
        ));
        let verb = if kind == "p" { "CALL" } else { "SELECT" };
        let failure = client.failure(&format!("{verb} queue.\"{name}\"(zzzzzzzzzz => 1)"));
        assert!(
            failure.hint.contains(&format!("queue.{name} has no argument zzzzzzzzzz. It has: ")),
            "{name}: {failure:?}"
        );
        let first: String = client.value(&format!(
            "SELECT proargnames[1] FROM pg_proc WHERE pronamespace = 'queue'::regnamespace AND proname = '{name}' LIMIT 1"
        ));
        assert!(failure.hint.contains(&first), "{name}: {failure:?}");
    }
}

#[test]
fn a_misspelt_queue_is_told_the_one_that_may_be_meant() {
    let database = Database::new();
    let roles = Roles::new(&database);
    let mut client = database.connect();
    create(&mut client, "emails", "");
    create(&mut client, "secrets", "");
    let worker = roles.make("worker", "");
    grant(&mut client, "emails", &worker, "consume");
    for call in ["queue.enqueue('email')", "queue.pause('Emails')", "queue.claim('emials')", "queue.alter('e-mails')"] {
        let failure = client.failure(&format!("SELECT {call}"));
        assert!(failure.code == "42704" && failure.hint.contains("There is a queue \"emails\""), "{call}: {failure:?}");
    }
    assert!(client.failure("SELECT queue.enqueue('orders')").hint.contains("queue.create('orders')"));
    // Names of queues that the role may do nothing with are not told.
    client.run(&format!("SET ROLE {worker}"));
    assert!(client.failure("SELECT queue.claim('emial')").hint.contains("emails"));
    assert!(!client.failure("SELECT queue.claim('secret')").hint.contains("secrets"));
}

#[test]
fn a_role_without_a_privilege_is_told_which_it_takes() {
    let database = Database::new();
    let roles = Roles::new(&database);
    let mut client = database.connect();
    create(&mut client, "emails", "");
    let producer = roles.make("producer", "");
    grant(&mut client, "emails", &producer, "produce");
    client.run(&format!("SET ROLE {producer}"));
    for (statement, privilege) in [
        ("SELECT queue.claim('emails')", "consume"),
        ("CALL queue.wait('emails')", "consume"),
        ("SELECT * FROM queue.jobs", "observe"),
        ("SELECT queue.pause('emails')", "manage"),
        ("SELECT queue.create('mine')", "manage"),
    ] {
        let failure = client.failure(statement);
        assert_eq!(failure.code, "42501", "{statement}: {failure:?}");
        assert!(failure.hint.contains(&format!("'{privilege}')")), "{statement}: {failure:?}");
    }
}

#[test]
fn a_database_without_the_extension_has_no_advice() {
    let cluster = Cluster::new().start();
    let mut client = cluster.connect();
    let failure = client.failure("SELECT enqueue('emails')");
    assert!(!failure.hint.contains("queue.enqueue"), "{failure:?}");
}
