//! PgBouncer in transaction mode between the dashboard and its server. It may give each transaction another connection.

use std::thread::scope;

use queue_tests::pooler::Pooler;
use queue_tests::sql::Sql as _;
use serde_json::json;

use crate::http::OURS;
use crate::place::{Web, place};

#[test]
fn behind_a_pooler_each_viewer_keeps_their_role() {
    let (cluster, mut client) = place();
    client.run("CREATE ROLE ada LOGIN; CREATE ROLE bob LOGIN");
    client.run("SELECT queue.create('mail', max_attempts => 1), queue.create('bills', max_attempts => 1)");
    client.run("SELECT queue.grant('mail', 'ada', 'manage'), queue.grant('bills', 'bob', 'manage')");
    for queue in ["mail", "bills"] {
        client.run(&format!("SELECT queue.enqueue('{queue}') FROM generate_series(1, 300)"));
        client.run(&format!("SELECT queue.fail(id, 'no', fatal => true) FROM queue.claim('{queue}', 200)"));
    }
    let pooler = Pooler::start(&cluster);
    let database = format!("host={} port={} dbname=app", cluster.dir().display(), Pooler::PORT);
    let socket = format!("unix:{}", cluster.dir().join("web").display());
    let args = ["--database", &database, "--auth", "proxy", "--listen", &socket, "--allow-actions"];
    let web = Web::start(&cluster, &args);
    let people = [("ada", "mail", "bills"), ("bob", "bills", "mail")];
    // Both viewers share a few connections. Each sees and changes only their own queue.
    scope(|threads| {
        for (name, own, other) in people {
            let web = &web;
            threads.spawn(move || {
                let get = |path: &str| web.send("GET", path, &[("x-remote-user", name)], "");
                let mut events = web.events(&[("x-remote-user", name)]);
                for n in 0..40 {
                    let seen = get(&format!("/api/overview?n={n}")).ok();
                    assert_eq!(seen["queues"].as_array().map(Vec::len), Some(1), "{seen}");
                    assert_eq!(seen["queues"][0]["queue"], own);
                    assert_eq!(
                        get(&format!("/api/jobs?queue={own}&state=dead&n={n}")).ok().as_array().map(Vec::len),
                        Some(50)
                    );
                    get(&format!("/api/queue?queue={other}&n={n}")).refused(404);
                }
                for page in ["workers", "schedules", "topics", "errors", "activity", "doctor", "audit"] {
                    assert!(matches!(get(&format!("/api/{page}")).status, 200 | 403), "{page}");
                }
                for _ in 0..3 {
                    assert_eq!(events.next().expect("an event").1["queues"][0]["queue"], own);
                }
                let act = |verb: &str, body| web.act(verb, &body, &[("x-remote-user", name)]);
                assert!(act("pause", json!({ "queue": other })).status >= 400);
                act("pause", json!({ "queue": own })).ok();
                let done = act("retry_many", json!({ "queue": own, "states": ["dead"], "max_jobs": 150 })).ok();
                let ids = done["job_ids"].as_array().expect("ids").clone();
                assert_eq!(ids.len(), 150);
                // The answer leaves out a job that does not exist.
                let some = json!([ids[0], 999_999_999_983_i64, ids[1]]);
                assert_eq!(act("retry_jobs", json!({ "job_ids": some })).ok()["job_ids"], json!([ids[0], ids[1]]));
                act("resume", json!({ "queue": own })).ok();
            });
        }
    });
    // The pooler's connections keep no state of a viewer.
    let left = "SELECT count(*) FROM pg_stat_activity WHERE datname = 'app' AND application_name LIKE 'pg_queue_web/%'";
    assert_eq!(client.value::<i64>(left), 0);
    for queue in ["mail", "bills"] {
        let dead = format!("SELECT count(*) FROM queue.jobs WHERE queue_name = '{queue}' AND state = 'dead'");
        assert_eq!(client.value::<i64>(&dead), 50, "{queue}");
    }
    // This pooler asks for no password, so a password proves nothing.
    let web = Web::start(&cluster, &["--database", &database, "--auth", "password"]);
    let login = json!({ "user": "ada", "password": "any" }).to_string();
    web.send("POST", "/login", &OURS, &login).refused(503);
    drop(web);
    drop(pooler);
}
