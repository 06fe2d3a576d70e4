//! Checks the dashboard's SQL in pg_stat_statements after each page and each verb. It calls and reads only functions
//! and views of the reference.

use std::collections::BTreeSet;
use std::path::Path;

use queue_tests::Cluster;
use queue_tests::sql::Sql as _;
use serde_json::json;

use crate::browser::Browser;
use crate::place::{DATABASE, Web};
use crate::scene::scene;

/// Statements that begin and end a transaction.
const FRAME: [&str; 7] = [
    "START TRANSACTION READ ONLY",
    "START TRANSACTION ISOLATION LEVEL READ COMMITTED",
    "COMMIT",
    "ROLLBACK",
    "SAVEPOINT one",
    "RELEASE one",
    "ROLLBACK TO one",
];

/// Postgres' own functions that each transaction calls first, and that pages use to make JSON.
const OF_POSTGRES: [&str; 32] = [
    "array_agg",
    "array_position",
    "array",
    "bool_and",
    "clock_timestamp",
    "coalesce",
    "concat",
    "count",
    "extract",
    "filter",
    "host",
    "json_agg",
    "json_build_array",
    "json_build_object",
    "json_object_agg",
    "jsonb_array_elements_text",
    "jsonb_pretty",
    "left",
    "length",
    "max",
    "now",
    "octet_length",
    "pg_is_in_recovery",
    "round",
    "row_number",
    "row_to_json",
    "set_config",
    "split_part",
    "sum",
    "unnest",
    "as",
    "in",
];

/// Returns the functions of docs/functions.md and the views of docs/views.md.
fn public() -> BTreeSet<String> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tree").join("docs");
    let headings = |page: &str, mark: &str| -> Vec<String> {
        let text = std::fs::read_to_string(docs.join(page)).expect("a page of the reference");
        let lines = text.lines().filter_map(|line| line.strip_prefix(mark)?.strip_suffix('`'));
        lines.map(str::to_owned).collect()
    };
    let all: BTreeSet<String> =
        headings("functions.md", "### `queue.").into_iter().chain(headings("views.md", "## `queue.")).collect();
    assert!(all.len() > 70 && all.contains("job_steps") && all.contains("executors"), "{all:?}");
    all
}

/// Returns the names that a statement calls or reads: those of the schema, and all other names before a parenthesis.
fn names(statement: &str) -> (BTreeSet<String>, BTreeSet<String>) {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.');
    let (mut ours, mut others) = (BTreeSet::new(), BTreeSet::new());
    let mut rest = statement;
    while let Some(begin) = rest.find(|c: char| c.is_ascii_alphabetic()) {
        rest = &rest[begin..];
        let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let (word, behind) = rest.split_at(end);
        if let Some(name) = word.strip_prefix("queue.") {
            ours.insert(name.to_owned());
        } else if behind.trim_start().starts_with('(') {
            others.insert(word.to_ascii_lowercase());
        }
        rest = behind;
    }
    (ours, others)
}

#[test]
fn the_dashboard_uses_public_sql_only() {
    let cluster = Cluster::new()
        .conf("shared_preload_libraries = 'pg_queue, pg_stat_statements'")
        .conf("pg_stat_statements.track = 'top'")
        .start();
    let mut client = cluster.create_database(DATABASE);
    client.run("CREATE EXTENSION pg_stat_statements; CREATE ROLE dashboard LOGIN SUPERUSER");
    let scene = scene(&mut client);
    let web = Web::start(&cluster, &["--database", "user=dashboard dbname=app", "--allow-actions"]);

    // Opens each page and clicks on everything.
    let browser = Browser::open(&web.site(), "#/");
    browser.wait_shown("reporter-1");
    let mut pages = vec!["errors", "schedules", "workers", "flows?queue=reports", "topics", "doctor", "audit"]
        .into_iter()
        .map(str::to_owned)
        .collect::<Vec<_>>();
    for state in
        ["ready", "scheduled", "retrying", "running", "held", "dead", "completed", "cancelled", "skipped", "expired"]
    {
        pages.push(format!("queue?queue=mail&state={state}"));
    }
    pages.push("queue?queue=orders".to_owned());
    pages.push("queue?queue=mail&state=dead&field=error&op=starts&value=connection".to_owned());
    for job in [scene.dead, scene.running, scene.scheduled, scene.flow, scene.completed] {
        pages.push(format!("job?job={job}"));
    }
    for page in &pages {
        browser.go(&format!("#/{page}"));
        browser.wait_script("it has looked", "return !document.body.innerText.includes('Looking …')");
    }
    // Requests that buttons send.
    for path in [
        "count?queue=mail&states=%5B%22dead%22%5D",
        "errors?more=1",
        "activity?span=quarter",
        "overview",
        "latency?queue=mail&span=hour",
    ] {
        web.get(&format!("/api/{path}")).ok();
    }
    web.get(&format!("/api/document?job={}&what=payload", scene.dead)).ok();
    let all = [
        ("retry", json!({ "job_id": scene.dead })),
        ("reprioritize", json!({ "job_id": scene.dead, "priority": 2 })),
        ("reschedule", json!({ "job_id": scene.scheduled, "run_at": "2999-01-01T00:00:00Z" })),
        ("cancel", json!({ "job_id": scene.scheduled })),
        ("forget", json!({ "job_id": scene.scheduled })),
        ("pause", json!({ "queue": "mail" })),
        ("resume", json!({ "queue": "mail" })),
        ("alter", json!({ "queue": "mail", "max_running": 3 })),
        ("enqueue", json!({ "queue": "mail", "payload": "1" })),
        ("pause_schedule", json!({ "schedule": "nightly" })),
        ("resume_schedule", json!({ "schedule": "nightly" })),
        ("run_schedule", json!({ "schedule": "nightly" })),
        ("reprioritize_many", json!({ "queue": "mail", "states": ["ready"], "priority": 2 })),
        ("retry_many", json!({ "queue": "mail", "states": ["dead"] })),
        ("cancel_many", json!({ "queue": "mail", "states": ["ready"] })),
        ("retry_jobs", json!({ "job_ids": [scene.scheduled, scene.running] })),
        ("cancel_jobs", json!({ "job_ids": [scene.scheduled] })),
    ];
    for (verb, body) in all {
        web.act(verb, &body, &[]).ok();
    }

    let of_dashboard =
        "FROM pg_stat_statements AS s JOIN pg_roles AS r ON r.oid = s.userid WHERE r.rolname = 'dashboard'";
    let statements: Vec<String> = client.column(&format!("SELECT query {of_dashboard}"));
    assert!(statements.len() > 35, "{}", statements.len());
    let (public, mut asked) = (public(), BTreeSet::new());
    for statement in &statements {
        if FRAME.contains(&statement.as_str()) {
            continue;
        }
        assert!(["SELECT", "WITH"].iter().any(|word| statement.starts_with(word)), "{statement}");
        let (ours, others) = names(statement);
        let hidden: Vec<&String> = ours.iter().filter(|name| !public.contains(*name)).collect();
        assert!(hidden.is_empty(), "{hidden:?} is not public: {statement}");
        // Casts and clauses, such as `int(` or `AND (`, are not functions.
        let called: Vec<String> = client.column(&format!(
            "SELECT DISTINCT proname::text FROM pg_proc WHERE proname = ANY ('{{{}}}') \
                AND pronamespace = 'pg_catalog'::regnamespace",
            others.iter().map(String::as_str).collect::<Vec<_>>().join(",")
        ));
        let strange: Vec<&String> = called.iter().filter(|name| !OF_POSTGRES.contains(&name.as_str())).collect();
        assert!(strange.is_empty(), "{strange:?}: {statement}");
        let nobodys: Vec<&String> = others.iter().filter(|name| name.contains('.')).collect();
        assert!(nobodys.is_empty(), "{nobodys:?}: {statement}");
        asked.extend(ours);
    }
    // The test must have called all of these functions.
    for name in [
        "stats",
        "queues",
        "workers",
        "executors",
        "activity",
        "search",
        "job",
        "job_attempts",
        "job_steps",
        "members",
        "error_groups",
        "schedules",
        "upcoming",
        "topics",
        "bindings",
        "doctor",
        "metrics",
        "throughput_by",
        "retry",
        "cancel",
        "forget",
        "alter",
        "enqueue",
        "retry_many",
        "cancel_many",
        "reprioritize_many",
        "run_schedule",
    ] {
        assert!(asked.contains(name), "{name} was not asked: {asked:?}");
    }
    // On a server of this size no statement comes near the time limit.
    let longest: f64 = client.value(&format!("SELECT max(max_exec_time) {of_dashboard}"));
    assert!(longest < 2_000.0, "{longest} ms");
}
