//! Limits on the length of texts that one role gives and other roles see.

use std::collections::HashSet;

use postgres::types::Type;

use crate::shared::*;

/// Arguments that name an existing object or take one of a few words. Any other value is refused.
const NAMED: &[&str] = &[
    "backoff",
    "dead_letter",
    "executor",
    "missed",
    "on_duplicate",
    "on_full",
    "overlap",
    "privilege",
    "procedure",
    "queue_names",
    "reset",
    "role_name",
    "run_as",
    "stage",
    "state",
    "states",
    "timezone",
    "upon",
];
/// Arguments that are a job's own data or are not stored.
const NOT_SHOWN: &[&str] = &["command", "error_like"];

/// A call with a long text as `$1`, and the argument that gets it. It must fail with `22023`.
const REFUSED: &[(&str, &str, &str)] = &[
    ("alter", "fair_share", "queue.alter('q', fair_share => $1)"),
    ("alter", "rate_cost", "queue.alter('q', rate_cost => $1)"),
    ("alter", "stages", "queue.alter('q', stages => ARRAY[$1])"),
    ("bind", "pattern", "queue.bind('t', 'q', $1)"),
    ("claim", "worker", "queue.claim('q', worker => $1)"),
    ("claim_any", "stages", "queue.claim_any('{q}', stages => ARRAY[$1])"),
    ("claim_any", "worker", "queue.claim_any('{q}', worker => $1)"),
    ("create", "queue_name", "queue.create($1)"),
    ("create", "fair_share", "queue.create('new', fair_share => $1)"),
    ("create", "rate_cost", "queue.create('new', rate_cost => $1)"),
    ("create", "stages", "queue.create('new', stages => ARRAY[$1])"),
    ("create_topic", "topic", "queue.create_topic($1)"),
    ("enqueue", "group_key", "queue.enqueue('q', group_key => $1)"),
    ("enqueue", "task", "queue.enqueue('q', flow => 17, task => $1)"),
    ("enqueue", "unique_key", "queue.enqueue('q', unique_key => $1)"),
    ("enqueue_batch", "group_key", "queue.enqueue_batch('q', jsonb_build_array(jsonb_build_object('group_key', $1)))"),
    ("enqueue_batch", "task", "queue.enqueue_batch('q', jsonb_build_array(jsonb_build_object('task', $1)))"),
    (
        "enqueue_batch",
        "unique_key",
        "queue.enqueue_batch('q', jsonb_build_array(jsonb_build_object('unique_key', $1)))",
    ),
    ("enqueue_flow", "group_key", "queue.enqueue_flow('q', group_key => $1)"),
    ("enqueue_flow", "task", "queue.enqueue_flow('q', task => $1)"),
    ("enqueue_flow", "tasks", "queue.enqueue_flow('q', jsonb_build_array(jsonb_build_object('task', $1)))"),
    ("enqueue_flow", "unique_key", "queue.enqueue_flow('q', unique_key => $1)"),
    ("enqueue_many", "group_key", "queue.enqueue_many('q', '{1}', group_key => $1)"),
    ("enqueue_many", "task", "queue.enqueue_many('q', '{1}', task => $1)"),
    ("enqueue_many", "unique_key", "queue.enqueue_many('q', '{1}', unique_key => $1)"),
    ("enqueue_sql", "group_key", "queue.enqueue_sql('sql', 'SELECT 1', group_key => $1)"),
    ("enqueue_sql", "task", "queue.enqueue_sql('sql', 'SELECT 1', task => $1)"),
    ("enqueue_sql", "unique_key", "queue.enqueue_sql('sql', 'SELECT 1', unique_key => $1)"),
    ("publish", "group_key", "queue.publish('t', '1', group_key => $1)"),
    ("publish", "key", "queue.publish('t', '1', $1)"),
    ("publish", "task", "queue.publish('t', '1', flow => 17, task => $1)"),
    ("publish", "unique_key", "queue.publish('t', '1', unique_key => $1)"),
    ("publish_many", "keys", "queue.publish_many('t', '{1}', ARRAY[$1])"),
    ("route", "key", "queue.route('t', $1)"),
    ("schedule", "cron", "queue.schedule('s', 'q', cron => $1)"),
    ("schedule", "group_key", "queue.schedule('s', 'q', every => '1 hour', group_key => $1)"),
    ("schedule", "name", "queue.schedule($1, 'q', every => '1 hour')"),
    ("step_done", "name", "queue.step_done(17, $1)"),
    ("throttle", "group_key", "queue.throttle('q', '1 s', $1)"),
    ("weigh", "group_key", "queue.weigh('q', $1, 2)"),
];

/// Like `REFUSED`, for texts that the call shortens to `pg_queue.max_error_length`.
const CUT: &[(&str, &str, &str)] = &[
    ("cancel", "reason", "queue.cancel(queue.enqueue('q'), $1)"),
    ("cancel_many", "reason", "queue.cancel_many(ARRAY(SELECT job_id FROM queue.search('q')), $1)"),
    ("fail", "error", "queue.fail((SELECT id FROM queue.claim('q')), $1)"),
    ("fail_many", "error", "queue.fail_many(ARRAY(SELECT id FROM queue.claim('q')), $1)"),
    ("release", "reason", "queue.release((SELECT id FROM queue.claim('q')), reason => $1)"),
    ("release_many", "reason", "queue.release_many(ARRAY(SELECT id FROM queue.claim('q')), reason => $1)"),
    ("reject", "error", "queue.reject(queue.enqueue_flow('q', open => true), $1)"),
];

#[test]
fn texts_that_other_roles_see_are_limited_in_length() {
    let database = Database::new();
    let mut client = database.connect();
    client.run(
        "SELECT queue.create('q', max_attempts => 1), queue.create('sql', executor => 'sql'), queue.create_topic('t')",
    );
    // A superuser's commands are refused for another reason.
    let author = format!("{}_author", database.name);
    client.run(&format!("CREATE ROLE {author} LOGIN; SELECT queue.grant('sql', '{author}', 'produce')"));
    let long = "ä".repeat(20_000);
    for (verb, _, call) in REFUSED {
        client.run(&format!("SET ROLE {}", if *verb == "enqueue_sql" { &author } else { "NONE" }));
        let refused = client.query_typed(&format!("SELECT {call}"), &[(&long, Type::TEXT)]).expect_err(call);
        assert_eq!(error::code(&refused), "22023", "{call}");
    }
    client.run("RESET ROLE");
    for (_, _, call) in CUT {
        client.run("SELECT queue.enqueue('q')");
        client.query_typed(&format!("SELECT {call}"), &[(&long, Type::TEXT)]).expect(call);
        let bytes: Option<i32> = client.value("SELECT max(octet_length(error)) FROM queue.jobs");
        assert_eq!(bytes, Some(8192), "{call}");
        client.run("SELECT queue.purge('q')");
    }
    // Each argument must be in one of the lists.
    let known: HashSet<(&str, &str)> = REFUSED.iter().chain(CUT).map(|(verb, name, _)| (*verb, *name)).collect();
    let arguments = client.query(
        "SELECT DISTINCT proname::text, name FROM pg_proc,
            LATERAL unnest(proargnames[:pronargs], proargtypes::oid[]) AS a (name, type)
         WHERE pronamespace = 'queue'::regnamespace AND type IN ('text'::regtype, 'text[]'::regtype, 'name'::regtype)",
        &[],
    );
    for row in arguments.unwrap() {
        let (verb, name): (String, String) = (row.get(0), row.get(1));
        let has_to_be_there =
            matches!(name.as_str(), "queue_name" | "topic" | "name") && !known.contains(&(&verb, &name));
        let is_one_of_many = ["create", "schedule", "step_done", "create_topic"].contains(&verb.as_str());
        assert!(
            known.contains(&(&verb, &name))
                || has_to_be_there && !is_one_of_many
                || NAMED.contains(&name.as_str())
                || NOT_SHOWN.contains(&name.as_str())
                || matches!((verb.as_str(), name.as_str()), ("schedule", "queue_name") | ("unbind", "pattern"))
                || verb.ends_with("_many") && known.contains(&(verb.trim_end_matches("_many"), &name)),
            "what becomes of a long text in {name} of {verb}?"
        );
    }
}

#[test]
fn a_group_of_an_event_is_cut() {
    let database = Database::new();
    let mut client = database.connect();
    client.run(
        "SELECT queue.create('q', max_running_per_group => 1), queue.create_topic('t'); \
        SELECT queue.bind('t', 'q', group_key => '$.payload.who')",
    );
    client.run("SELECT queue.publish('t', jsonb_build_object('who', repeat('ä', 20000)))");
    assert_eq!(client.value::<i32>("SELECT octet_length(group_key) FROM queue.jobs"), 1024);
    client.run("SELECT queue.publish('t', jsonb_build_object('who', repeat('ä', 2000000)))");
    client.run("SELECT queue.publish('t', jsonb_build_object('who', array_agg(n))) FROM generate_series(1, 200) n");
    client.run("SELECT queue.publish('t', jsonb_build_object('who', array_agg(n))) FROM generate_series(1, 200000) n");
    let lengths = client.column::<i32>("SELECT coalesce(octet_length(group_key), 0) FROM queue.jobs ORDER BY job_id");
    assert_eq!(lengths, [1024, 1024, 892, 0], "a large array names no group");
}

#[test]
fn a_worker_s_name_has_200_characters() {
    let database = Database::new();
    let mut client = database.connect();
    client.run("SELECT queue.create('q'); SELECT queue.enqueue('q')");
    assert_eq!(client.value::<i64>("SELECT count(*) FROM queue.claim('q', worker => repeat('ä', 200))"), 1);
    assert_eq!(client.value::<i32>("SELECT length(worker) FROM queue.workers"), 200);
}
