//! Errors for mistakes: what is wrong, and what to write instead.

use crate::interface::stumbles::{listening, taken};
use crate::security::permissions::{Roles, grant};
use crate::shared::*;

#[test]
fn a_call_that_matches_no_function_gets_a_hint_with_the_right_call() {
    let (_database, mut client) = Database::new().with_queue("emails", "");
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
        ("queue.enque('emails')", "use queue.enqueue"),
        ("enqueue('emails')", "write queue.enqueue(…)"),
        (
            "queue.enqueue('emails', '{}', interval '1 h')",
            "In order its arguments are queue_name, payload, priority, delay",
        ),
        ("queue.cancel(31, true)", "In order its arguments are job_id, reason, force"),
        ("queue.claim(ARRAY['emails'])", "use queue.claim_any"),
        ("queue.complete(ARRAY[16])", "use queue.complete_many"),
        ("queue.grant('emails', 'a', ARRAY['produce', 'consume'])", "SELECT queue.grant(…) FROM unnest(…)"),
        ("queue.enqueue('emails', delay => now() + interval '1 h')", "for a point in time use run_at"),
        ("queue.stats('emails')", "queue.stats is a view: SELECT * FROM queue.stats"),
        // Names that other queues use.
        ("queue.send('emails', '{}')", "use queue.enqueue"),
        ("queue.read('emails', 30, 1)", "use queue.claim"),
        ("queue.unpause('emails')", "use queue.resume"),
        ("queue.enqueue('emails', queue_name => 'emails')", "queue_name is given twice"),
        ("queue.cancel_many('emails', ARRAY[31])", "FROM unnest(…)"),
        ("queue.create_schedule('nightly')", "use queue.schedule"),
        ("queue.frobnicate('emails')", "psql's \\df queue.* lists all"),
        ("queue.set_vt(16, 30)", "use queue.extend"),
        ("queue.enqueue('emails', countdown => 10)", "it has delay"),
        ("queue.complete(job_id => 31)", "it has id, the column id of a claim"),
    ] {
        let failure = client.refused(&format!("SELECT {call}"), "42883");
        assert!(failure.hint.contains(hint), "{call}: {failure:?}");
    }
    let failure = client.failure("CALL queue.wait('emails', 10)");
    assert!(failure.hint.contains("timeout is an interval"), "{failure:?}");
    let failure = client.failure("SELECT * FROM queue.job_s");
    assert!(failure.code == "42P01" && failure.hint.contains("there is queue.jobs"), "{failure:?}");
    for (statement, code, hint) in [
        ("SELECT * FROM jobs", "42P01", "It is in schema queue: write queue.jobs."),
        ("SELECT * FROM queue.enqueue", "42P01", "queue.enqueue is a function"),
        ("SELECT count(*) FROM queue.emails", "42P01", "its jobs are in queue.jobs, by queue_name"),
        ("queue.enqueue('emails')", "42601", "SELECT queue.enqueue(…)"),
        ("DO $$ BEGIN queue.enqueue('emails'); END $$", "42601", "PERFORM queue.enqueue(…)"),
    ] {
        let failure = client.failure(statement);
        assert!(failure.code == code && failure.hint.contains(hint), "{statement}: {failure:?}");
    }
    // Other errors get no advice, and neither does a database without the extension.
    assert!(!client.failure("SELECT nowhere(1)").hint.contains("queue"));
    for statement in ["SELECT * FROM jobz", "SELECT id FROM queue.jobs", "SELECT '[1]'::bigint[]", "SELEC limit => 3"] {
        assert_eq!(client.failure(statement).hint, "", "{statement}");
    }
}

#[test]
fn a_value_in_the_wrong_place_gets_a_hint_with_the_right_argument() {
    let (_database, mut client) = Database::new().with_queue("emails", "");
    client.run("SELECT queue.create_topic('users')");
    for (call, code, hint) in [
        ("queue.enqueue(NULL)", "22004", "Give queue_name a value"),
        ("queue.complete(NULL)", "22004", "finds no job returns no row"),
        ("queue.cancel(2)", "22023", "Use what queue.enqueue returned"),
        ("queue.schedule('s', 'emails', cron => '')", "22023", "'0 3 * * *'"),
        ("queue.enqueue_flow('emails', '[{\"task\": \"a\", \"after\": [\"b\"]}]')", "22023", "the field task"),
        ("queue.enqueue('emails', upon => 'failed')", "22023", "after => ARRAY[4711]"),
        ("queue.enqueue_batch('emails', '[{\"upon\": \"ended\"}]')", "22023", "after => ARRAY[4711]"),
        ("queue.publish('users', upon => 'overdue', delay => '1 h')", "22023", "after => ARRAY[4711]"),
        ("queue.enqueue_flow('emails', tasks => '[{\"upon\": \"failed\"}]')", "22023", "after => ARRAY[4711]"),
        ("queue.enqueue_flow('emails', tasks => '[{\"name\": \"a\"}]')", "22023", "A task may have: queue, payload"),
        ("queue.enqueue_batch('emails', '[{\"delay\": 30}]')", "22023", "\"delay\": \"30 seconds\""),
        ("queue.enqueue_batch('emails', '[{\"run_at\": \"soon\"}]')", "22023", "\"run_at\": \"2030-01-31"),
    ] {
        let failure = client.refused(&format!("SELECT {call}"), code);
        assert!(failure.hint.contains(hint), "{call}: {failure:?}");
    }
    for (value, shown) in
        [("30", "It is 30."), ("\"x\"", "It is \"x\"."), ("[1]", "It is an array."), ("true", "It is true.")]
    {
        let failure = client.failure(&format!("SELECT queue.enqueue_batch('emails', '[{{\"lease\": {value}}}]')"));
        assert_eq!(failure.detail, shown);
    }
    let long = "y".repeat(500);
    let failure = client.failure(&format!("SELECT queue.enqueue_batch('emails', '[{{\"delay\": \"{long}\"}}]')"));
    assert!(failure.detail.len() < 150 && failure.detail.contains('…'), "{failure:?}");
    // An empty array names no jobs. A program without results passes one.
    client.run("SELECT queue.enqueue('emails', upon => 'failed', after => '{}')");
}

#[test]
fn a_call_without_effect_raises_a_notice() {
    let database = Database::new();
    let (mut client, told) = listening(&database.name);
    create(&mut client, "emails", "");
    client.run("SELECT queue.create_topic('users')");
    let mut notices = |statement: &str| {
        client.run(statement);
        taken(&told)
    };
    for (call, said) in [
        ("queue.alter('emails')", "queue \"emails\" was not changed, as no option was given"),
        ("queue.unbind('users', 'emails')", "queue \"emails\" is not bound to topic \"users\""),
        ("queue.bind('users', 'emails', filter => '$.total > 5')", "filter asks for $.total, which no event has"),
        ("queue.bind('users', 'emails', filter => 'exists($ ? (@.a > 1)) && $.totals == 1')", "asks for $.totals"),
        ("queue.bind('users', 'emails', group_key => '$.tenant')", "group_key asks for $.tenant, which no event has"),
        ("queue.search('emails', '$.to == 7')", "filter asks for $.to, which no job has"),
        ("queue.search('emails', '$.payload.to == 7 && $.to == 7')", "filter asks for $.to, which no job has"),
    ] {
        let told = notices(&format!("SELECT {call}"));
        assert!(told.len() == 1 && told[0].contains(said), "{call}: {told:?}");
    }
    for call in [
        "queue.alter('emails', max_attempts => 3)",
        "queue.alter('emails', reset => ARRAY['max_attempts'])",
        "queue.bind('users', 'emails', '#', '$.payload.total > 5 && $.key == \"$.\\\"total\"', \
            group_key => '$.headers.tenant')",
        "queue.bind('users', 'emails', 'all', '$.*.total > 5 || $[0] == 1 || $ == 2')",
        "queue.unbind('users', 'emails')",
        "queue.search('emails', '$.payload.to == 7 && $.is_flow == false && $.job_id > 1')",
        "queue.search('emails')",
        "queue.cancel_many('{}')",
    ] {
        assert_eq!(notices(&format!("SELECT {call}")), [""; 0], "{call}");
    }
}

#[test]
fn a_claim_that_cannot_wait_raises_one_notice() {
    let (database, mut client) = Database::new().with_queue("emails", "");
    client.run("CREATE TABLE sent (a int)");
    const CLAIM: &str = "SELECT * FROM queue.claim('emails', wait => '10 s')";
    for (begin, why) in [
        ("BEGIN; INSERT INTO sent VALUES (1)", "because its transaction has written"),
        ("BEGIN ISOLATION LEVEL REPEATABLE READ", "because its transaction reads by one snapshot"),
    ] {
        let (mut client, told) = listening(&database.name);
        client.run(begin);
        client.run(CLAIM);
        let first = taken(&told);
        assert!(first.len() == 1 && first[0].contains(why), "{first:?}");
        client.run(CLAIM);
        assert_eq!(taken(&told), [""; 0]);
        client.run("ROLLBACK");
    }
    // A call without a wait, a call that finds a job, and a call that completes a job are not mistakes.
    let (mut client, told) = listening(&database.name);
    client
        .run("BEGIN; INSERT INTO sent VALUES (1); SELECT * FROM queue.claim('emails'); SELECT queue.enqueue('emails')");
    client.run("COMMIT; BEGIN; INSERT INTO sent VALUES (1)");
    let attempt: i64 = client.value("SELECT id FROM queue.claim('emails', wait => '10 s')");
    client.run("COMMIT");
    client.run(&format!("SELECT * FROM queue.claim('emails', wait => '10 s', completed => ARRAY[{attempt}])"));
    assert_eq!(taken(&told), [""; 0]);
}

#[test]
fn advice_knows_the_arguments_of_each_function() {
    let database = Database::new();
    let mut client = database.connect();
    // If no function has the argument, the error lists the arguments that exist.
    let functions: Vec<String> = client.column(
        "SELECT DISTINCT proname::text FROM pg_proc WHERE pronamespace = 'queue'::regnamespace AND prokind IN ('f', 'p')
         AND pronargs > 0 ORDER BY 1",
    );
    for name in functions {
        let kind: String = client.value(&format!(
            "SELECT prokind::text FROM pg_proc WHERE pronamespace = 'queue'::regnamespace \
                AND proname = '{name}' LIMIT 1"
        ));
        let verb = if kind == "p" { "CALL" } else { "SELECT" };
        let failure = client.failure(&format!("{verb} queue.\"{name}\"(zzzzzzzzzz => 1)"));
        assert!(
            failure.hint.contains(&format!("queue.{name} has no argument zzzzzzzzzz. It has: ")),
            "{name}: {failure:?}"
        );
        let first: String = client.value(&format!(
            "SELECT proargnames[1] FROM pg_proc WHERE pronamespace = 'queue'::regnamespace \
                AND proname = '{name}' LIMIT 1"
        ));
        assert!(failure.hint.contains(&first), "{name}: {failure:?}");
    }
}

#[test]
fn a_misspelt_queue_gets_a_hint_with_the_probable_name() {
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
    client.run("SELECT queue.create_topic('users')");
    assert!(client.failure("SELECT queue.publish('user')").hint.contains("There is a topic \"users\""));
    assert!(client.failure("SELECT queue.publish('orders')").hint.contains("queue.create_topic('orders')"));
    assert!(client.failure("SELECT queue.bind('emails', 'users')").hint.contains("the topic first, then the queue"));
    assert!(client.failure("SELECT queue.enqueue('{\"to\": 7}')").hint.contains("The second is the payload"));
    let swapped = client.failure(&format!("SELECT queue.grant('{worker}', 'emails', 'consume')"));
    assert!(swapped.hint.contains("give the queue first, then the role"), "{swapped:?}");
    assert!(client.failure("SELECT queue.grant('emails', 'nobody_here', 'consume')").hint.contains("CREATE ROLE"));
    // Queues and topics without any right of the role are not named.
    client.run(&format!("SET ROLE {worker}"));
    assert!(client.failure("SELECT queue.claim('emial')").hint.contains("emails"));
    assert!(!client.failure("SELECT queue.claim('secret')").hint.contains("secrets"));
    client.run(&format!("RESET ROLE; SELECT queue.grant('emails', '{worker}', 'produce'); SET ROLE {worker}"));
    let failure = client.failure("SELECT queue.publish('user')");
    assert!(failure.code == "42704" && !failure.hint.contains("users"), "{failure:?}");
}

#[test]
fn a_role_without_a_privilege_gets_a_hint_with_the_missing_one() {
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
        ("SELECT queue.schedule('nightly', 'emails', every => '1 h')", "manage"),
    ] {
        let failure = client.refused(statement, "42501");
        assert!(failure.hint.contains(&format!("'{privilege}')")), "{statement}: {failure:?}");
        assert!(!failure.hint.contains("'nightly'"), "{failure:?}");
    }
    for statement in ["SELECT queue_internal.may_observe(1)", "SELECT * FROM queue_internal.queue"] {
        let failure = client.refused(statement, "42501");
        assert!(failure.hint.contains("views of schema queue"), "{failure:?}");
    }
}

#[test]
fn calls_that_this_transaction_cannot_run_get_a_hint() {
    let (database, mut client) = Database::new().with_queue("emails", "");
    client.run("SELECT queue.enqueue('emails')");
    let id: i64 = client.value("SELECT id FROM queue.claim('emails')");
    let complete = format!("SELECT queue.complete({id})");
    client.run(&format!("BEGIN; {complete}"));
    let busy = database.connect().failure(&complete);
    assert!(busy.code == "55006" && busy.hint.contains("when that transaction has ended"), "{busy:?}");
    let twice = client.failure(&complete);
    assert!(twice.code == "QJ001" && twice.hint.contains("End each attempt once"), "{twice:?}");
    client.run("ROLLBACK; BEGIN READ ONLY");
    let refused = client.failure("SELECT queue.enqueue('emails')");
    assert!(refused.code == "25006" && refused.hint.contains("READ WRITE"), "{refused:?}");
}

#[test]
fn the_hint_for_a_login_role_is_the_whole_command() {
    let database = Database::new();
    let roles = Roles::new(&database);
    let mut owner = database.connect();
    create(&mut owner, "it''s", "");
    let role = roles.make("mailer", "");
    let mut client = server().connect_as(&database.name, &role);
    assert!(
        client.failure("SELECT queue.claim('it''s')").hint.contains("SELECT queue.grant('QUEUE', 'ROLE', 'produce')")
    );
    grant(&mut owner, "it''s", &role, "observe");
    for (call, privilege) in [("queue.enqueue('it''s')", "produce"), ("queue.claim('it''s', 5)", "consume")] {
        let failure = client.failure(&format!("SELECT {call}"));
        let command = format!("queue.grant('QUEUE', '{role}', '{privilege}')");
        assert!(failure.hint.contains(&command), "{command}: {failure:?}");
    }
    let failure = client.failure("SELECT queue.create('mine')");
    assert!(failure.hint.contains(&format!("queue.grant('*', '{role}', 'manage')")), "{failure:?}");
}

#[test]
fn a_database_without_the_extension_has_no_advice() {
    let cluster = Cluster::new().start();
    let mut client = cluster.connect();
    let failure = client.failure("SELECT enqueue('emails')");
    assert!(!failure.hint.contains("queue.enqueue"), "{failure:?}");
    for statement in ["SELECT queue.enqueue('emails')", "SELECT * FROM queue.jobs", "CALL queue.wait('emails')"] {
        let failure = client.failure(statement);
        assert!(failure.hint.contains("CREATE EXTENSION pg_queue"), "{statement}: {failure:?}");
    }
    for statement in ["SELECT other.enqueue('emails')", "SELECT * FROM queue.nothing", "SELECT * FROM jobs"] {
        assert_eq!(client.failure(statement).hint, "", "{statement}");
    }
}
