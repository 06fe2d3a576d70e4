//! Data never runs. Whatever verb wrote a payload and whatever happens to its queue, a job is a command only if its
//! writer wrote it as one. Objects and settings of other roles do not change the meaning of a command.

use crate::security::permissions::{Roles, grant};
use crate::shared::*;

/// If this command ran, it would record its role.
const LOOT: &str = r#"{"command": "INSERT INTO loot VALUES (current_user)"}"#;

/// Makes a table that all roles may write to.
fn bed(database: &Database) -> Client {
    let mut client = database.connect();
    client.run("CREATE TABLE loot (who text); GRANT ALL ON loot TO public");
    client
}

/// Each verb that takes a payload, for a queue `q`. `{id}` is a claimed attempt, if the verb needs one.
const VERBS: [(&str, &str); 10] = [
    ("enqueue", "queue.enqueue('q', '{loot}')"),
    ("enqueue", "queue.enqueue('q', '{loot}', unique_key => 'k', on_duplicate => 'replace')"),
    ("enqueue_many", "queue.enqueue_many('q', ARRAY['{loot}'::jsonb])"),
    ("enqueue_batch", r#"queue.enqueue_batch('q', '[{"payload": {loot}}]')"#),
    ("enqueue_flow", "queue.enqueue_flow('q', payload => '{loot}', runs => true)"),
    ("enqueue_flow", r#"queue.enqueue_flow('f', '[{"queue": "q", "payload": {loot}}]')"#),
    ("schedule", "queue.schedule('s', 'q', '{loot}', every => '100 ms')"),
    ("advance", "queue.advance({id}, payload => '{loot}')"),
    ("publish", "queue.publish('t', '{loot}')"),
    ("publish_many", "queue.publish_many('t', ARRAY['{loot}'::jsonb])"),
];

fn call(verb: &str, id: i64) -> String {
    format!("SELECT {}", verb.replace("{loot}", LOOT).replace("{id}", &id.to_string()))
}

#[test]
fn the_list_of_verbs_that_take_payloads_is_complete() {
    let database = Database::new();
    let verbs: Vec<String> = database.connect().column(
        "SELECT DISTINCT proname::text FROM pg_proc
         WHERE pronamespace = 'queue'::regnamespace AND proname <> 'route'
         AND proargnames[1:pronargs] && '{payload,payloads,jobs,tasks}' ORDER BY 1",
    );
    let mut known: Vec<&str> = VERBS.iter().map(|(name, _)| *name).collect();
    known.sort_unstable();
    known.dedup();
    assert_eq!(verbs, known);
}

#[test]
fn a_queue_of_commands_refuses_data_from_each_verb() {
    let database = Database::new();
    let mut client = bed(&database);
    let roles = Roles::new(&database);
    let writer = roles.make("writer", "");
    create(&mut client, "q", "executor => 'sql', stages => '{one, two}'");
    create(&mut client, "f", "");
    client.run("SELECT queue.create_topic('t'), queue.pause('q')");
    for queue in ["q", "f", "t"] {
        grant(&mut client, queue, &writer, "manage");
    }
    client.run(&format!("SET ROLE {writer}"));
    client.run("SELECT queue.enqueue_sql('q', 'SELECT pg_sleep(600)', stage => 'one')");
    client.run("SELECT queue.resume('q')");
    let id: i64 = wait::until("it runs", || {
        client.column("SELECT id FROM queue.attempts WHERE state = 'running'").first().copied()
    });
    for (name, verb) in VERBS {
        if name.starts_with("publish") {
            client.run(&call(verb, id));
            continue;
        }
        let failure = client.refused(&call(verb, id), "22023");
        assert!(failure.hint.contains("queue.enqueue_sql"), "{verb}: {failure:?}");
    }
    client.refused("SELECT queue.bind('t', 'q')", "0A000");
    assert_eq!(client.count("SELECT FROM queue.jobs"), 1, "nothing was half done");
    assert_eq!(client.count("SELECT FROM queue.schedules"), 0);
}

#[test]
fn a_queue_with_data_cannot_get_an_executor() {
    let database = Database::new();
    let mut client = bed(&database);
    let beds: [(&str, &str); 8] = [
        ("ready", "SELECT queue.enqueue('q', '{loot}')"),
        ("delayed", "SELECT queue.enqueue('q', '{loot}', delay => '1 hour')"),
        ("running", "SELECT queue.enqueue('q', '{loot}'); SELECT queue.claim('q')"),
        ("retrying", "SELECT queue.enqueue('q', '{loot}'); SELECT queue.fail(id, 'x') FROM queue.claim('q')"),
        ("held", "SELECT queue.enqueue('q', '{loot}', after => ARRAY[(SELECT queue.enqueue('f'))])"),
        (
            "in a stage",
            "SELECT queue.alter('q', stages => '{a, b}'); SELECT queue.enqueue('q', '{loot}', stage => 'b')",
        ),
        ("of a schedule", "SELECT queue.schedule('s', 'q', '{loot}', every => '1 year')"),
        ("of a topic", "SELECT queue.bind('t', 'q')"),
    ];
    for (what, sql) in beds {
        create(&mut client, "q", "");
        create(&mut client, "f", "");
        client.run("SELECT queue.create_topic('t')");
        client.run(&sql.replace("{loot}", LOOT));
        for sql in [
            "SELECT queue.alter('q', executor => 'sql')",
            "SELECT queue.create('q', if_not_exists => true, executor => 'sql')",
        ] {
            let failure = client.failure(sql);
            assert_eq!(failure.code, "55000", "{what}: {failure:?}");
        }
        client.run("SELECT queue.drop(name, force => true) FROM unnest('{q,f,t}'::text[]) AS name");
    }
    // Data in an open transaction also counts. Without data the queue gets the executor, even if it has living
    // commands.
    create(&mut client, "q", "");
    let mut other = database.connect();
    other.run(&format!("BEGIN; SELECT queue.enqueue('q', '{LOOT}')"));
    client.refused("SELECT queue.alter('q', executor => 'sql')", "55000");
    other.run("ROLLBACK");
    client.run("SELECT queue.alter('q', executor => 'sql'), queue.pause('q')");
    let roles = Roles::new(&database);
    let writer = roles.make("writer", "");
    grant(&mut client, "q", &writer, "produce");
    client.run(&format!("SET ROLE {writer}; SELECT queue.enqueue_sql('q', 'SELECT 1'); RESET ROLE"));
    client.run(
        "SELECT queue.alter('q', reset => '{executor}'); SELECT queue.alter('q', executor => 'sql'), queue.resume('q')",
    );
    wait::until_true("the command has run", || client.count("SELECT FROM queue.jobs WHERE state = 'completed'") == 1);
}

/// Waits until this number of a queue's jobs are dead, and checks that nothing has run.
fn all_dead(client: &mut Client, queue: &str, count: usize, what: &str) {
    wait::until_true(&format!("{what}: they are dead"), || {
        let dead = format!("SELECT FROM queue.jobs WHERE queue_name = '{queue}' AND state = 'dead'");
        client.count(&dead) == count
    });
    let errors: Vec<String> = client.column(&format!(
        "SELECT DISTINCT split_part(error, E'\\n', 1) FROM queue.jobs WHERE queue_name = '{queue}' AND state = 'dead' \
            AND error <> 'x'"
    ));
    assert_eq!(errors, ["22023: the job is no command"], "{what}");
    assert_eq!(client.count("SELECT FROM loot"), 0, "{what}");
}

#[test]
fn data_in_a_queue_of_commands_dies_with_a_reason() {
    let database = Database::new();
    let mut client = bed(&database);
    let roles = Roles::new(&database);
    let (shop, worker) = (roles.make("shop", ""), roles.make("worker", ""));
    create(&mut client, "orders", "max_attempts => 1");
    create(&mut client, "graves", "executor => 'sql'");
    client.run("SELECT queue.alter('orders', dead_letter => 'graves')");
    for (queue, role, privilege) in
        [("orders", &shop, "produce"), ("orders", &worker, "consume"), ("graves", &shop, "produce")]
    {
        grant(&mut client, queue, role, privilege);
    }
    // Makes dead letters of data, of data for a procedure, and of a command.
    client.run(&format!("SET ROLE {shop}; SELECT queue.enqueue('orders', '{LOOT}'); RESET ROLE"));
    client.run(&format!(
        "SET ROLE {worker}; SELECT queue.fail(id, 'no', fatal => true) FROM queue.claim('orders'); RESET ROLE"
    ));
    all_dead(&mut client, "graves", 1, "a dead letter of data");
    create(&mut client, "commands", "executor => 'sql', max_attempts => 1, dead_letter => 'graves'");
    client.run(&format!(
        "SELECT queue.grant('commands', '{shop}', 'produce'); SET ROLE {shop};
         SELECT queue.enqueue_sql('commands', 'INSERT INTO loot SELECT ''x'' WHERE 1 / 0 = 1'); RESET ROLE"
    ));
    all_dead(&mut client, "graves", 2, "a dead letter of a command");
    client.run(&format!(
        "CREATE PROCEDURE refuse(job jsonb) LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''no''; END';
         SELECT queue.create('calls', executor => 'call', procedure => 'refuse', run_as => '{worker}',
         max_attempts => 1,
             dead_letter => 'graves'), queue.grant('calls', '{shop}', 'produce');
         SET ROLE {shop}; SELECT queue.enqueue('calls', '{LOOT}'); RESET ROLE"
    ));
    all_dead(&mut client, "graves", 3, "a dead letter of a call");
    // Older data is retried, and a session that has not noticed the executor adds data.
    create(&mut client, "late", "max_attempts => 1");
    grant(&mut client, "late", &shop, "manage");
    client.run(&format!("SET ROLE {shop}; SELECT queue.enqueue('late', '{LOOT}') FROM generate_series(1, 2)"));
    client.run(
        "SELECT queue.complete(id) FROM queue.claim('late'); SELECT queue.fail(id, 'x', fatal => true) \
        FROM queue.claim('late')",
    );
    client.run("RESET ROLE; BEGIN; SELECT queue.alter('late', executor => 'sql')");
    let mut other = database.connect();
    other.run(&format!("SET ROLE {shop}; SELECT queue.enqueue('late', '{LOOT}')"));
    client.run("COMMIT");
    all_dead(&mut client, "late", 2, "a session that did not know yet");
    client.run(&format!(
        "SET ROLE {shop}; SELECT queue.retry(job_id) FROM queue.jobs WHERE queue_name = 'late'; RESET ROLE"
    ));
    all_dead(&mut client, "late", 3, "a retry of data");
    // The binding was inserted into the tables by hand.
    client.run(
        "SELECT queue.create_topic('t'); INSERT INTO queue_internal.binding (topic_id, queue_id, pattern, on_full,
        bound_by)
                SELECT topic_id, queue_id, '#', 'keep', 'postgres' FROM queue_internal.topic, queue_internal.queue
                WHERE queue_name = 'late'",
    );
    client.run("SELECT queue.adopt()");
    grant(&mut client, "t", &shop, "produce");
    client.run(&format!(
        "SET ROLE {shop}; SELECT queue.publish('t', '{LOOT}'), \
        queue.publish('t', '{LOOT}', unique_key => 'k'); RESET ROLE"
    ));
    all_dead(&mut client, "late", 5, "a publish");
}

#[test]
fn a_payload_given_while_the_queue_runs_no_commands_is_data() {
    let database = Database::new();
    let mut client = bed(&database);
    let roles = Roles::new(&database);
    let (shop, mallory) = (roles.make("shop", ""), roles.make("mallory", ""));
    let verbs = [
        "queue.advance(id, 'b', payload => '{loot}') FROM queue.claim('q')",
        "queue.enqueue('q', '{loot}', unique_key => 'k', on_duplicate => 'replace')",
        "queue.enqueue_batch('q', '[{\"payload\": {loot}, \"unique_key\": \"k\", \"on_duplicate\": \"replace\"}]')",
        // While the job runs, another run is requested.
        "queue.enqueue('q', '{loot}', unique_key => 'k', on_duplicate => 'rerun') FROM queue.claim('q')",
    ];
    for verb in verbs {
        create(&mut client, "q", "executor => 'sql', stages => '{a, b}'");
        grant(&mut client, "q", &shop, "produce");
        grant(&mut client, "q", &mallory, "manage");
        client.run(&format!(
            "SELECT queue.pause('q'); SET ROLE {shop}; SELECT queue.enqueue_sql('q', 'SELECT 1', unique_key => 'k'); \
                SET ROLE {mallory}"
        ));
        client.run("SELECT queue.alter('q', reset => '{executor}'), queue.resume('q')");
        client.run(&format!("SELECT {}", verb.replace("{loot}", LOOT)));
        // Data keeps a queue from running commands. A job that is no command any more dies if it is to run
        // nevertheless.
        if verb.contains("rerun") {
            // The running job is a command. The requested run is data.
            client.run("SELECT queue.alter('q', executor => 'sql')");
            let id: i64 = client.value("SELECT id FROM queue.attempts WHERE state = 'running'");
            client.run(&format!("RESET ROLE; SELECT queue.release({id})"));
            all_dead(&mut client, "q", 1, verb);
        } else {
            let failure = client.failure("SELECT queue.alter('q', executor => 'sql')");
            assert_eq!(failure.code, "55000", "{verb}: {failure:?}");
        }
        client.run("RESET ROLE");
        assert_eq!(client.count("SELECT FROM loot"), 0, "{verb}");
        client.run("SELECT queue.drop('q', force => true)");
    }
}

#[test]
fn a_procedure_must_be_the_named_one_and_have_the_same_owner() {
    let database = Database::new();
    let mut client = bed(&database);
    let roles = Roles::new(&database);
    let (app, mallory) = (roles.make("app", ""), roles.make("mallory", ""));
    client.run(&format!(
        "CREATE SCHEMA shared; GRANT USAGE, CREATE ON SCHEMA shared TO {app}, {mallory}; SET ROLE {app};
         CREATE PROCEDURE shared.work(job jsonb) LANGUAGE sql AS $$ INSERT INTO public.loot VALUES ('work') $$;
         CREATE FUNCTION shared.say(job jsonb) RETURNS jsonb LANGUAGE sql AS $$ INSERT INTO public.loot
         VALUES ('work'); SELECT '1'::jsonb $$;
         RESET ROLE"
    ));
    for (kind, name) in [("PROCEDURE", "work"), ("FUNCTION", "say")] {
        create(
            &mut client,
            name,
            &format!("executor => 'call', procedure => 'shared.{name}', run_as => '{app}', max_attempts => 1"),
        );
        let returns = if kind == "PROCEDURE" { "" } else { "RETURNS void" };
        client.run(&format!("SET ROLE {mallory}"));
        for arguments in [
            "job text",
            "job json",
            "job varchar",
            "job anyelement",
            "job jsonb, more integer DEFAULT 1",
            "VARIADIC job jsonb[]",
            "job unknown",
        ] {
            // No role can make some of these objects.
            let _ = client.batch_execute(&format!(
                "CREATE {kind} shared.{name}({arguments}) {returns} LANGUAGE sql AS 'INSERT INTO public.loot \
                    VALUES (current_user)'"
            ));
        }
        client.run("RESET ROLE");
        let job: i64 = client.value(&format!("SELECT queue.enqueue('{name}', '{{}}')"));
        wait::until_true("it has ended", || ["completed", "dead"].contains(&client.state(job).as_str()));
        assert_eq!(
            client.state(job),
            "completed",
            "{}",
            client.value::<String>(&format!("SELECT coalesce(error, '') FROM queue.job({job})"))
        );
        assert_eq!(client.column::<String>("SELECT DISTINCT who FROM loot"), ["work"]);
        // The object gets another owner, or another object of the same name replaces it.
        let dies = |client: &mut Client, code: &str| {
            let job: i64 = client.value(&format!("SELECT queue.enqueue('{name}', '{{}}')"));
            wait::until_true("it is dead", || client.state(job) == "dead");
            let error: String = client.value(&format!("SELECT error FROM queue.job({job})"));
            assert!(error.starts_with(code), "{kind}: {error}");
            assert_eq!(client.column::<String>("SELECT DISTINCT who FROM loot"), ["work"]);
        };
        client.run(&format!("ALTER {kind} shared.{name}(jsonb) OWNER TO {mallory}"));
        dies(&mut client, "42501: ");
        client.run(&format!(
            "ALTER {kind} shared.{name}(jsonb) OWNER TO {app};
            ALTER {kind} shared.{name}(jsonb) RENAME TO other_{name};
             SET ROLE {mallory}; CREATE {kind} shared.{name}(job jsonb) {returns} LANGUAGE sql AS
             'INSERT INTO public.loot VALUES (current_user)'; RESET ROLE"
        ));
        let job: i64 = client.value(&format!("SELECT queue.enqueue('{name}', '{{}}')"));
        wait::until_true("the renamed one has run", || client.state(job) == "completed");
        assert_eq!(client.column::<String>("SELECT DISTINCT who FROM loot"), ["work"]);
        client.run(&format!("DROP {kind} shared.other_{name}(jsonb)"));
        dies(&mut client, "42883: ");
    }
}

#[test]
fn settings_that_change_the_meaning_of_commands_count_only_for_roles_that_the_setter_may_become() {
    let database = Database::new();
    let mut client = bed(&database);
    let roles = Roles::new(&database);
    let (boss, author) = (roles.make("boss", ""), roles.make("author", ""));
    create(&mut client, "sql", "executor => 'sql', max_attempts => 1");
    grant(&mut client, "sql", &boss, "manage");
    grant(&mut client, "sql", &author, "produce");
    client.run(&format!(
        "CREATE SCHEMA boss AUTHORIZATION {boss}; GRANT USAGE ON SCHEMA boss TO public; SET ROLE {boss};
         CREATE FUNCTION boss.now() RETURNS timestamptz LANGUAGE sql
             AS 'INSERT INTO public.loot VALUES (current_user); SELECT pg_catalog.now()'; RESET ROLE"
    ));
    let run = |client: &mut Client, settings: &str| -> String {
        client.run(&format!("SET ROLE {boss}; SELECT queue.alter('sql', settings => '{settings}'); SET ROLE {author}"));
        let job: i64 = client.value("SELECT queue.enqueue_sql('sql', 'SELECT now()')");
        client.run("RESET ROLE");
        wait::until_true("it has ended", || ["completed", "dead"].contains(&client.state(job).as_str()));
        client.value(&format!("SELECT state || ' ' || coalesce(error, '') FROM queue.job({job})"))
    };
    for name in [
        "search_path",
        "SEARCH_PATH",
        "role",
        "session_authorization",
        "row_security",
        "TimeZone",
        "DateStyle",
        "default_transaction_isolation",
        "default_transaction_read_only",
        "standard_conforming_strings",
        "quote_all_identifiers",
        "check_function_bodies",
        "my.setting",
        "transform_null_equals",
        "bytea_output",
        "xmloption",
        "lc_numeric",
        "default_tablespace",
        "temp_tablespaces",
        "default_table_access_method",
        "synchronous_commit",
        "session_replication_role",
        "local_preload_libraries",
        "plpgsql.variable_conflict",
        "pg_queue.notify_on",
        "default_text_search_config",
        "event_triggers",
    ] {
        if client.column::<i32>(&format!("SELECT 1 FROM pg_settings WHERE name = lower('{name}')")).is_empty()
            && !name.contains('.')
            && !["role", "session_authorization", "TimeZone", "DateStyle"].contains(&name)
        {
            continue;
        }
        let ended = run(&mut client, &format!(r#"{{"work_mem": "1MB", "{name}": "boss, pg_catalog"}}"#));
        assert!(ended.starts_with("dead 42501: "), "{name}: {ended}");
    }
    assert_eq!(client.count("SELECT FROM loot"), 0);
    let found = run(&mut client, r#"{"work_mem": "1MB", "Statement_Timeout": "1min", "enable_seqscan": false}"#);
    assert_eq!(found, "completed ");
    // All settings that choose plans or limit a plan's resources, including those of the next major version.
    let plans: String = client.value(
        "SELECT jsonb_object_agg(name, setting)::text FROM pg_settings WHERE context = 'user'
         AND category ~ '^(Query Tuning|Resource Usage) / ' AND category !~ 'Disk|Vacuum'",
    );
    assert!(plans.contains("enable_seqscan") && plans.contains("seq_page_cost") && plans.contains("geqo"), "{plans}");
    assert_eq!(run(&mut client, &plans), "completed ");
    // A role may change the commands that it could have written itself.
    client.run(&format!("GRANT {author} TO {boss}"));
    assert_eq!(run(&mut client, r#"{"search_path": "boss, pg_catalog"}"#), "completed ");
    assert_eq!(client.column::<String>("SELECT who FROM loot"), std::slice::from_ref(&author));
    client.run(&format!("REVOKE {author} FROM {boss}"));
}
