//! Two roles with a queue each: neither role sees, guesses, streams or changes data of the other queue. Hidden payloads
//! stay hidden.

use postgres::Client;
use queue_tests::Cluster;
use queue_tests::sql::Sql as _;
use serde_json::{Value, json};

use crate::place::{Web, encoded, place};

/// A word in all data of the queue `bills`.
const SECRET: &str = "s3cr3t";

/// Makes queues `mail` and `bills`, the roles `ada` and `bob` that manage one each, and jobs in all states in `bills`.
/// Returns the dashboard and the jobs.
fn two(cluster: &Cluster, client: &mut Client) -> (Web, Vec<i64>) {
    client.run("CREATE ROLE ada; CREATE ROLE bob; CREATE ROLE program LOGIN NOINHERIT; GRANT ada, bob TO program");
    client.run("SELECT queue.create('mail'), queue.create('bills', max_attempts => 1)");
    client.run("SELECT queue.grant('mail', 'ada', 'manage'), queue.grant('bills', 'bob', 'manage')");
    client.run("SELECT queue.enqueue('mail', '{\"to\": 1}')");
    let payload = format!("{{\"iban\": \"{SECRET}\"}}");
    let enqueue = |client: &mut Client, more: &str| {
        client.value::<i64>(&format!("SELECT queue.enqueue('bills', '{payload}', headers => '{payload}'{more})"))
    };
    let mut jobs = Vec::new();
    for how in ["queue.complete($, '{\"x\": \"s3cr3t\"}')", "queue.fail($, 's3cr3t')"] {
        jobs.push(enqueue(client, ""));
        let id = client.claim("bills");
        client.run(&format!(
            "SELECT queue.progress({id}, '{{\"at\": \"s3cr3t\"}}'), queue.step_done({id}, 'one', '\"s3cr3t\"')"
        ));
        client.run(&format!("SELECT {}", how.replace('$', &id.to_string())));
    }
    jobs.push(enqueue(client, ""));
    client.run("SELECT id FROM queue.claim('bills', worker => 's3cr3t')");
    jobs.push(enqueue(client, ", delay => '1 hour', unique_key => 's3cr3t', group_key => 's3cr3t'"));
    jobs.push(enqueue(client, ""));
    client.run(&format!("SELECT queue.schedule('s3cr3t', 'bills', '{payload}', every => '1 hour')"));
    let socket = format!("unix:{}", cluster.dir().join("web").display());
    let args = ["--database", "user=program dbname=app", "--auth", "proxy", "--listen", &socket, "--allow-actions"];
    let args = if cluster.dir().join("hide").exists() {
        [&args[..], &["--hide", "payload", "--show-payload-to", "bob"]].concat()
    } else {
        args.to_vec()
    };
    (Web::start(cluster, &args), jobs)
}

/// Returns the paths of all requests that read the queue `bills` and these jobs.
fn paths(jobs: &[i64]) -> Vec<String> {
    let mut paths: Vec<String> =
        ["overview", "schedules", "workers", "errors", "topics", "audit", "activity", "doctor"]
            .iter()
            .map(|what| format!("/api/{what}"))
            .collect();
    for what in ["queue", "activity", "errors", "flows", "search", "count"] {
        paths.push(format!("/api/{what}?queue=bills"));
    }
    for state in
        ["ready", "scheduled", "retrying", "running", "held", "dead", "completed", "cancelled", "skipped", "expired"]
    {
        paths.push(format!("/api/jobs?queue=bills&state={state}"));
    }
    for job in jobs {
        paths.push(format!("/api/job?job={job}"));
        for what in ["payload", "result", "headers", "progress"] {
            paths.push(format!("/api/document?job={job}&what={what}"));
        }
    }
    paths
}

#[test]
fn a_role_does_not_see_the_queue_of_another_role() {
    let (cluster, mut client) = place();
    let (web, jobs) = two(&cluster, &mut client);
    // An action that `ada` must not see in the audit.
    let done = web.act("cancel", &json!({ "job_id": jobs[4], "reason": SECRET }), &[("x-remote-user", "bob")]);
    assert_eq!(done.ok()["answer"], "cancelled");
    let mut told = 0;
    for path in paths(&jobs) {
        let answer = web.get_as("ada", &path);
        assert!(!answer.body.contains(SECRET) && !answer.body.contains("bills\""), "{path}: {answer:?}");
        told += usize::from(web.get_as("bob", &path).body.contains(SECRET));
    }
    assert!(told > 12, "bob sees his data at the same paths: {told}");
    // The answers for a hidden job and for a job that does not exist are equal.
    let (other, nowhere) =
        (web.get_as("ada", &format!("/api/job?job={}", jobs[0])), web.get_as("ada", "/api/job?job=999999999983"));
    assert_eq!(
        other.refused(404).replace(&jobs[0].to_string(), "#"),
        nowhere.refused(404).replace("999999999983", "#")
    );
    let unknown = |name: &str| web.get_as("ada", &format!("/api/queue?queue={name}")).refused(404).replace(name, "#");
    assert_eq!(unknown("bills"), unknown("nowhere"));
    let mut events = web.events(&[("x-remote-user", "ada")]);
    let mut others = web.events(&[("x-remote-user", "bob")]);
    for _ in 0..3 {
        let (_, data) = events.next().unwrap();
        assert!(!data.to_string().contains("bills") && !data.to_string().contains(SECRET), "{data}");
        assert_eq!(data["lanes"][0]["queue"], "mail");
        assert!(others.next().unwrap().1.to_string().contains("bills"));
    }
    // The events after a revoke lack the queue.
    client.run("SELECT queue.revoke('bills', 'bob', 'manage'), queue.grant('mail', 'bob', 'observe')");
    while others.next().unwrap().1.to_string().contains("bills") {}
}

#[test]
fn a_role_without_grants_gets_a_hint_and_a_dropped_role_loses_access() {
    let (cluster, mut client) = place();
    client.run("CREATE ROLE eve; CREATE ROLE ada; CREATE ROLE program LOGIN NOINHERIT; GRANT eve, ada TO program");
    client.run("SELECT queue.create('mail'); SELECT queue.grant('mail', 'ada', 'manage')");
    let job = client.enqueue("mail");
    let socket = format!("unix:{}", cluster.dir().join("web").display());
    let args = ["--database", "user=program dbname=app", "--auth", "proxy", "--listen", &socket, "--allow-actions"];
    let web = Web::start(&cluster, &args);
    for path in [
        "overview",
        "queue?queue=mail",
        "jobs?queue=mail&state=ready",
        "errors",
        "schedules",
        "workers",
        "audit",
        "doctor",
    ] {
        let answer = web.get_as("eve", &format!("/api/{path}"));
        answer.refused(403);
        assert!(
            answer.json()["error"]["hint"].as_str().unwrap_or_default().contains("queue.grant"),
            "{path}: {answer:?}"
        );
    }
    assert_eq!(web.act("cancel", &json!({ "job_id": job }), &[("x-remote-user", "eve")]).status, 403);
    let mut of_eve = web.events(&[("x-remote-user", "eve")]);
    assert_eq!(of_eve.next().unwrap().0, "trouble");
    // The test drops role `ada` while a stream of it is open.
    let mut events = web.events(&[("x-remote-user", "ada")]);
    assert_eq!(events.next().unwrap().0, "overview");
    client.run("DROP OWNED BY ada; DROP ROLE ada");
    let out = std::iter::from_fn(|| events.next()).find(|(kind, _)| kind == "trouble").expect("a word of it");
    assert!(!out.1.to_string().contains("mail"), "{out:?}");
    for path in ["overview?", "queue?queue=mail", &format!("job?job={job}")] {
        web.get_as("ada", &format!("/api/{path}&n=1")).refused(403);
    }
    // A new role with the same name has only its own grants.
    client.run("CREATE ROLE ada; GRANT ada TO program");
    assert!(matches!(web.get_as("ada", "/api/queue?queue=mail&n=2").status, 403 | 404));
    assert_eq!(client.state(job), "ready");
}

#[test]
fn a_role_does_not_change_the_queue_of_another_role() {
    let (cluster, mut client) = place();
    let (web, jobs) = two(&cluster, &mut client);
    // Each statement computes `lease_expires_at` anew.
    let jobs_now = "SELECT (to_jsonb(j) - 'lease_expires_at')::text FROM queue.jobs AS j ORDER BY job_id";
    let state = |client: &mut Client| client.column::<String>(jobs_now);
    let before = state(&mut client);
    let now = "2030-01-01T00:00:00Z";
    let mut tries = vec![
        ("pause", json!({ "queue": "bills" })),
        ("resume", json!({ "queue": "bills" })),
        ("alter", json!({ "queue": "bills", "max_attempts": 3 })),
        ("enqueue", json!({ "queue": "bills", "payload": "{}" })),
        ("pause_schedule", json!({ "schedule": SECRET })),
        ("resume_schedule", json!({ "schedule": SECRET })),
        ("run_schedule", json!({ "schedule": SECRET })),
        ("cancel_many", json!({ "queue": "bills", "states": ["ready"] })),
        ("retry_many", json!({ "queue": "bills", "states": ["dead"] })),
        ("reprioritize_many", json!({ "queue": "bills", "states": ["ready"], "priority": 1 })),
    ];
    for job in &jobs {
        tries.push(("retry", json!({ "job_id": job })));
        tries.push(("cancel", json!({ "job_id": job, "force": true })));
        tries.push(("reprioritize", json!({ "job_id": job, "priority": 1 })));
        tries.push(("reschedule", json!({ "job_id": job, "run_at": now })));
        tries.push(("forget", json!({ "job_id": job })));
    }
    for (verb, body) in &tries {
        let answer = web.act(verb, body, &[("x-remote-user", "ada")]);
        assert!(matches!(answer.status, 403 | 404), "{verb} {body}: {answer:?}");
        assert!(!answer.body.contains("iban"), "{answer:?}");
    }
    let kept = web.act("retry_jobs", &json!({ "job_ids": jobs }), &[("x-remote-user", "ada")]);
    assert_eq!(kept.status, 403, "{kept:?}");
    assert_eq!(state(&mut client), before);
    assert!(!client.value::<bool>("SELECT is_paused FROM queue.queues WHERE queue_name = 'bills'"));
    web.wait_audit(&["\"verb\":\"pause\"", "\"user\":\"ada\"", "42501"]);
}

#[test]
fn a_command_runs_as_the_viewer_that_has_enqueued_it() {
    let (cluster, mut client) = place();
    client.run("CREATE ROLE ada LOGIN; CREATE ROLE program LOGIN SUPERUSER");
    client.run("SELECT queue.create('sql', executor => 'sql'); SELECT queue.grant('sql', 'ada', 'manage')");
    let socket = format!("unix:{}", cluster.dir().join("web").display());
    let args = ["--database", "user=program dbname=app", "--auth", "proxy", "--listen", &socket, "--allow-actions"];
    let web = Web::start(&cluster, &args);
    let command = "SELECT session_user::text || ' ' || current_user::text AS who";
    let job = web.act("enqueue", &json!({ "queue": "sql", "command": command }), &[("x-remote-user", "ada")]).ok();
    let job = job["answer"].as_i64().unwrap();
    client.maintain_until(&format!("(SELECT state = 'completed' FROM queue.job({job}))"));
    assert!(client.value::<String>(&format!("SELECT result::text FROM queue.job({job})")).contains("ada ada"));
}

#[test]
fn hidden_payloads_stay_hidden() {
    let (cluster, mut client) = place();
    std::fs::write(cluster.dir().join("hide"), "").unwrap();
    client.run("CREATE ROLE cyd");
    let (web, jobs) = two(&cluster, &mut client);
    client
        .run("GRANT cyd TO program; SELECT queue.grant('bills', 'cyd', 'manage'), queue.grant('*', 'cyd', 'observe')");
    // Workers, keys and errors are shown. Payloads, results, headers and progress are not.
    let carried =
        |body: &str| body.contains("iban") || body.contains(&format!("\\\"{SECRET}")) || body.contains("at\\\"");
    for path in paths(&jobs) {
        let answer = web.get_as("cyd", &path);
        assert!(!carried(&answer.body), "{path}: {answer:?}");
        if path.contains("/document") {
            answer.refused(403);
        }
    }
    let job: Value = web.get_as("cyd", &format!("/api/job?job={}", jobs[0])).ok();
    for field in ["payload", "result", "headers", "progress", "bytes"] {
        assert_eq!(job[field], Value::Null, "{field}");
    }
    assert_eq!(job["steps"][0], json!({ "name": "one", "result": null }));
    // A filter and the count of its jobs could reveal payloads.
    for filter in [format!("$.payload.iban starts with \"{}\"", &SECRET[..1]), "$".to_owned()] {
        for what in ["search", "count"] {
            web.get_as("cyd", &format!("/api/{what}?queue=bills&filter={}", encoded(&filter))).refused(403);
        }
        for verb in ["cancel_many", "retry_many", "reprioritize_many"] {
            let body = json!({ "queue": "bills", "states": ["ready"], "filter": filter, "priority": 1 });
            web.act(verb, &body, &[("x-remote-user", "cyd")]).refused(403);
        }
    }
    let field =
        format!("/api/search?queue=bills&field=error&op=equals&value={}", encoded("x\" || $.payload.iban == \"s3cr3t"));
    assert_eq!(web.get_as("cyd", &field).ok(), json!([]));
    let found = web.get_as("cyd", "/api/search?queue=bills&field=error&op=contains&value=3cr3").ok();
    assert_eq!(found[0]["job_id"], jobs[1]);
    // A command could read payloads and put them into its error.
    let command = json!({ "queue": "bills", "command": "SELECT 1" });
    web.act("enqueue", &command, &[("x-remote-user", "cyd")]).refused(403);
    // Role `bob` may see payloads. Cached answers for `bob` do not go to `cyd`.
    let path = format!("/api/job?job={}", jobs[0]);
    assert!(web.get_as("bob", &path).body.contains("iban") && !web.get_as("cyd", &path).body.contains("iban"));
    let used = json!({ "queue": "bills", "states": ["held"], "filter": "$.payload.iban == \"x\"" });
    web.act("cancel_many", &used, &[("x-remote-user", "bob")]).ok();
    assert!(!web.get_as("cyd", "/api/audit").body.contains("iban"));
}
