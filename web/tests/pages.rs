//! The answers behind the pages: exact numbers, all states, on a primary and a standby, in bounded time.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::time::Instant;

use queue_tests::EARLIER;
use queue_tests::sql::Sql as _;
use serde_json::{Value, json};

use crate::http::OURS;
use crate::place::{Web, command, encoded, output, place};

/// A name that is markup, a script, a path and SQL.
const STRANGE: &str = "<img src=x onerror=alert(1)>'\"/%2F?&#;--\u{202e}é\u{1f600}";

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

#[test]
fn numbers_and_names_are_exact() {
    let (cluster, mut client) = place();
    let name = quoted(STRANGE);
    client.run(&format!("SELECT queue.create({name}, max_waiting => 9007199254740993)"));
    let payload = "{\"big\": 12345678901234567890123, \"exact\": 9007199254740993, \"small\": \
        0.1000000000000000055511151231257827}";
    let job: i64 = client.value(&format!(
        "SELECT queue.enqueue({name}, '{payload}', unique_key => {name}, headers => jsonb_build_object('h', {name}))"
    ));
    let web = Web::start(&cluster, &[]);
    let shown = web.get(&format!("/api/job?job={job}")).ok();
    for number in ["12345678901234567890123", "9007199254740993", "0.1000000000000000055511151231257827"] {
        assert!(shown["payload"].as_str().unwrap().contains(number), "{shown}");
    }
    assert_eq!(shown["job"]["queue"], STRANGE);
    assert_eq!(shown["job"]["unique_key"], STRANGE);
    let whole = web.get(&format!("/api/document?job={job}&what=payload"));
    assert!(whole.body.contains("12345678901234567890123"), "{whole:?}");
    assert!(whole.header("content-disposition").unwrap().starts_with("attachment"));
    assert_eq!(whole.header("content-type"), Some("application/json"));
    let queue = web.get(&format!("/api/queue?queue={}", encoded(STRANGE)));
    assert!(queue.body.contains("\"max_waiting\":\"9007199254740993\""), "{queue:?}");
    let list = web.get(&format!("/api/jobs?queue={}&state=ready", encoded(STRANGE))).ok();
    assert_eq!(list[0]["job_id"], job);
    assert!(list[0]["payload"].as_str().unwrap().contains("9007199254740993"));
}

#[test]
fn the_next_page_of_a_list_begins_after_the_last_row() {
    let (cluster, mut client) = place();
    client.run("SELECT queue.create('q', max_attempts => 1)");
    client.run("SELECT queue.enqueue('q', to_jsonb(n)) FROM generate_series(1, 130) AS n");
    client.wait_counted();
    client.run("SELECT queue.fail(id, concat('no ', payload), fatal => true) FROM queue.claim('q', 120)");
    let web = Web::start(&cluster, &[]);
    let (mut seen, mut beyond) = (Vec::new(), String::new());
    loop {
        let page = web.get(&format!("/api/jobs?queue=q&state=dead&beyond={beyond}")).ok();
        let rows = page.as_array().unwrap().clone();
        seen.extend(rows.iter().filter_map(|row| row["job_id"].as_i64()));
        match rows.last().and_then(|row| row["here"].as_str()) {
            Some(here) => beyond = encoded(here),
            None => break,
        }
    }
    let mut once = seen.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!((seen.len(), once.len()), (120, 120));
    let found = web
        .get(&format!("/api/search?queue=q&filter={}&states={}", encoded("$.payload == 7"), encoded("[\"dead\"]")))
        .ok();
    assert_eq!(found[0]["error"], "no 7");
    assert_eq!(web.get(&format!("/api/count?queue=q&states={}", encoded("[\"dead\"]"))).ok()["jobs"], 120);
    assert!(
        web.get(&format!("/api/search?queue=q&filter={}", encoded("$.. nonsense"))).refused(400).contains("jsonpath")
    );
    let groups = web.get("/api/errors").ok();
    assert_eq!((groups.as_array().unwrap().len(), &groups[0]["is_complete"]), (120, &json!(true)));
    assert_eq!(web.get("/api/jobs?queue=q&state=gone").status, 400);
    assert_eq!(web.get("/api/jobs?queue=gone&state=dead").status, 404);
    assert_eq!(web.get("/api/jobs").status, 400);
    assert_eq!(web.get("/api/job?job=1e3").status, 400);
    let hour = web.get("/api/activity?queue=q").ok();
    let died: i64 = hour.as_array().unwrap().iter().map(|row| row[6].as_i64().unwrap()).sum();
    assert_eq!(died, 120, "{hour}");
    for span in ["day", "quarter"] {
        web.get(&format!("/api/activity?queue=q&span={span}&tz=Europe%2FBerlin")).ok();
    }
    assert_eq!(web.get("/api/activity?span=hour&tz=Nowhere").status, 400);
}

#[test]
fn a_job_is_shown_with_its_relatives_and_history() {
    let (cluster, mut client) = place();
    client.run("SELECT queue.create('q', max_attempts => 3)");
    let flow: i64 =
        client.value("SELECT queue.enqueue_flow('q', '[{\"task\": \"a\"}, {\"task\": \"b\", \"after\": [\"a\"]}]')");
    let id = client.claim("q");
    client.run(&format!(
        "SELECT queue.step_done({id}, 'charge', '{{\"receipt\": 7}}'), \
        queue.progress({id}, '{{\"done\": 3, \"total\": 9}}')"
    ));
    client.run(&format!("SELECT queue.fail({id}, 'mailbox full', retry_in => '1 hour')"));
    let [first, second]: [i64; 2] =
        client.column("SELECT job_id FROM queue.jobs WHERE flow IS NOT NULL ORDER BY job_id").try_into().unwrap();
    let web = Web::start(&cluster, &[]);
    let shown = web.get(&format!("/api/job?job={first}")).ok();
    assert_eq!(shown["job"]["state"], "retrying");
    assert_eq!(shown["job"]["flow"], flow);
    assert_eq!(shown["steps"][0]["name"], "charge");
    assert!(shown["progress"].as_str().unwrap().contains("\"total\": 9"));
    let states: Vec<&str> =
        shown["attempts"].as_array().unwrap().iter().map(|a| a["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["retrying", "failed"]);
    assert_eq!(shown["attempts"][1]["error"], "mailbox full");
    let waits = web.get(&format!("/api/job?job={second}")).ok();
    assert_eq!((&waits["job"]["state"], &waits["after"][0]["job_id"]), (&json!("held"), &json!(first)));
    let whole = web.get(&format!("/api/job?job={flow}")).ok();
    assert_eq!(whole["members"].as_array().unwrap().len(), 2);
    let flows = web.get("/api/flows?queue=q").ok();
    assert_eq!((&flows[0]["job_id"], &flows[0]["members"]), (&json!(flow), &json!({ "held": 1, "retrying": 1 })));
}

#[test]
fn schedules_topics_and_the_doctor_are_shown() {
    let (cluster, mut client) = place();
    client.run(
        "SELECT queue.create('q'); SELECT queue.schedule('nightly', 'q', cron => '30 2 * * *', \
        timezone => 'Europe/Berlin')",
    );
    client.run("SELECT queue.create_topic('t'); SELECT queue.bind('t', 'q', 'a.*')");
    let web = Web::start(&cluster, &[]);
    let schedule = web.get("/api/schedules").ok();
    assert_eq!(schedule[0]["upcoming"].as_array().unwrap().len(), 5);
    assert_eq!(schedule[0]["timezone"], "Europe/Berlin");
    let topics = web.get("/api/topics").ok();
    assert_eq!((&topics["topics"][0]["topic"], &topics["bindings"][0]["pattern"]), (&json!("t"), &json!("a.*")));
    assert!(web.get("/api/doctor").ok().as_array().unwrap().len() > 10);
    assert_eq!(web.get("/api/workers").ok()["executors"], json!([]));
}

#[test]
fn a_standby_is_shown_and_not_changed() {
    let (cluster, mut client) = place();
    client.run("SELECT queue.create('q', max_attempts => 1); SELECT queue.schedule('s', 'q', every => '1 hour')");
    client.run("SELECT queue.enqueue('q') FROM generate_series(1, 70)");
    client.run("SELECT queue.step_done(id, 'one', '1'), queue.fail(id, 'no', fatal => true) FROM queue.claim('q', 3)");
    let job: i64 = client.value("SELECT job_id FROM queue.jobs WHERE state = 'ready' LIMIT 1");
    let scene = crate::scene::scene(&mut client);
    let jobs: Vec<(i64, i64)> = client
        .query("SELECT j.job_id, (SELECT count(*) FROM queue.job_steps(j.job_id)) FROM queue.jobs AS j", &[])
        .unwrap()
        .iter()
        .map(|row| (row.get(0), row.get(1)))
        .collect();
    let standby = cluster.standby();
    standby.wait_replayed(&cluster);
    let web = Web::start(&standby, &["--allow-actions"]);
    let seen = web.get("/api/overview").ok();
    let lane = seen["lanes"].as_array().unwrap().iter().find(|lane| lane["queue"] == "q").unwrap();
    assert_eq!((&seen["is_standby"], &lane["ready"], &lane["dead"]), (&json!(true), &json!(67), &json!(3)));
    assert_eq!(web.get("/api/jobs?queue=q&state=ready").ok().as_array().unwrap().len(), 50);
    for path in [
        "queue?queue=q",
        "jobs?queue=q&state=dead",
        "search?queue=q",
        "count?queue=q",
        "errors",
        "schedules",
        "activity",
        "doctor",
        "topics",
        "workers",
        "flows?queue=q",
    ] {
        web.get(&format!("/api/{path}")).ok();
    }
    for (job, steps) in jobs {
        let shown = web.get(&format!("/api/job?job={job}")).ok();
        assert_eq!(shown["steps"].as_array().map(Vec::len), Some(steps as usize), "{shown}");
    }
    assert_eq!(web.get(&format!("/api/job?job={}", scene.running)).ok()["steps"][0]["name"], "extract");
    assert_eq!(web.get(&format!("/api/job?job={}", scene.flow)).ok()["members"].as_array().map(Vec::len), Some(3));
    let refused = web.act("cancel", &json!({ "job_id": job }), &[]);
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (409, &json!("25006")));
}

/// There are more queues than the page can show.
#[test]
fn a_page_shows_queues_with_jobs_first_and_counts_all() {
    let cluster = queue_tests::Cluster::new().conf("pg_queue.max_lanes = 4096").conf("pg_queue.max_ready = 16").start();
    let mut client = cluster.create_database(crate::place::DATABASE);
    client.run("SELECT queue.create('q' || lpad(n::text, 5, '0')) FROM generate_series(1, 1300) AS n");
    client.run("SELECT queue.enqueue('q01299') FROM generate_series(1, 5); SELECT queue.enqueue('q00001')");
    client.wait_counted();
    client.run("SELECT queue.fail(id, 'no', fatal => true) FROM queue.claim('q01299', 2)");
    let web = Web::start(&cluster, &[]);
    let seen = web.get("/api/overview").ok();
    let names = |list: &str| -> Vec<String> {
        let rows = seen[list].as_array().unwrap().iter();
        rows.map(|row| row["queue"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!((seen["lanes"].as_array().map(Vec::len), &seen["queue_count"]), (Some(1000), &json!(1300)));
    assert_eq!((&seen["total"]["ready"], &seen["total"]["dead"]), (&json!(4), &json!(2)));
    let shown = names("lanes");
    assert!(shown.is_sorted() && shown.contains(&"q01299".to_owned()) && !shown.contains(&"q01298".to_owned()));
    assert_eq!(shown, names("queues"), "the settings are those of the queues that are shown");
    let other = web.get("/api/lanes?queue=q01298").ok();
    assert_eq!((other[0]["ready"].clone(), other[0]["queue"].clone()), (json!(0), json!("q01298")));
    let died: i64 = web
        .get("/api/activity")
        .ok()
        .as_array()
        .unwrap()
        .iter()
        .filter(|row| row[0].is_null())
        .map(|row| row[6].as_i64().unwrap())
        .sum();
    assert_eq!(died, 2, "the sums are of all");
    web.get("/api/errors").ok();
    web.get("/api/queue?queue=q01298").ok();
}

/// With long payloads the answers for lists, a job and searches stay short and quick.
#[test]
fn long_payloads_do_not_slow_down_other_answers() {
    let (cluster, mut client) = place();
    client.run("SELECT queue.create('q', max_attempts => 1)");
    client.run(
        "SELECT queue.enqueue('q', jsonb_build_object('to', n, 'text', repeat(md5(n::text), 100000))) \
            FROM generate_series(1, 30) AS n",
    );
    client.run("SELECT queue.fail(id, repeat('no ', 300000), fatal => true) FROM queue.claim('q', 10)");
    let web = Web::start(&cluster, &[]);
    for (path, rows) in [("jobs?queue=q&state=ready", 20), ("jobs?queue=q&state=dead", 10)] {
        let answer = web.get(&format!("/api/{path}"));
        assert_eq!(answer.ok().as_array().map(Vec::len), Some(rows), "{path}");
        assert!(answer.body.len() < 60_000, "{path}: {}", answer.body.len());
    }
    // A search ends after half a second and returns where to go on.
    let (mut found, mut beyond) = (0, String::new());
    loop {
        let part = web.get(&format!("/api/search?queue=q&beyond={beyond}")).ok();
        let rows = part.as_array().unwrap();
        found += rows.iter().filter(|row| row["job_id"].is_i64()).count();
        match rows.last().and_then(|row| row["here"].as_str()) {
            Some(here) => beyond = encoded(here),
            None => break,
        }
    }
    assert_eq!(found, 30);
    let job: i64 = client.value("SELECT job_id FROM queue.jobs WHERE state = 'dead' LIMIT 1");
    let shown = web.get(&format!("/api/job?job={job}"));
    assert!(shown.body.len() < 60_000 && shown.ok()["payload"].is_null(), "{}", shown.body.len());
    assert!(shown.ok()["bytes"]["payload"].as_i64().is_some_and(|n| n > 30_000));
    assert!(web.get("/api/errors").body.len() < 10_000);
    let whole = web.get(&format!("/api/document?job={job}&what=payload"));
    assert_eq!(whole.json()["text"].as_str().map(str::len), Some(3_200_000));
}

#[test]
fn each_request_is_bounded_in_time() {
    let (cluster, mut client) = place();
    client.run("SELECT queue.create('q')");
    client.run("SELECT queue.enqueue('q')");
    let web = Web::start(&cluster, &["--connections", "2"]);
    web.get("/api/overview").ok();
    // A long lock blocks neither the pages nor the connections for long.
    let mut other = cluster.connect_to("app");
    other.run("BEGIN; LOCK queue_internal.queue");
    let begun = Instant::now();
    let codes: Vec<Value> = ["queue?queue=q", "schedules", "errors", "jobs?queue=q&state=dead"]
        .iter()
        .map(|path| web.get(&format!("/api/{path}")))
        .filter(|answer| answer.status != 200)
        .map(|answer| answer.json()["error"]["code"].clone())
        .collect();
    assert!(codes.iter().any(|code| code == "55P03" || code == "57014"), "{codes:?}");
    // Each request had at most two seconds, and none waited for another. The limit here is generous for busy machines.
    assert!(begun.elapsed().as_secs() < 60, "{:?}", begun.elapsed());
    other.run("ROLLBACK");
    web.get("/api/queue?queue=q").ok();
    let left = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pg_queue_web%' AND state <> 'idle'";
    assert_eq!(client.value::<i64>(left), 0);
    // Settings of a transaction end with it.
    let leftover = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pg_queue_web/%'";
    assert_eq!(client.value::<i64>(leftover), 0);
}

#[test]
fn each_database_has_its_own_answers() {
    let (cluster, mut client) = place();
    client.run("SELECT queue.create('here')");
    cluster.create_database("other").run("SELECT queue.create('there')");
    let web = Web::start(&cluster, &["--database", "dbname=app", "--database", "dbname=other"]);
    assert_eq!(web.get("/api/session").ok()["databases"], json!(["app", "other"]));
    for (path, queue) in
        [("/api/overview", "here"), ("/api/overview?db=app", "here"), ("/api/overview?db=other", "there")]
    {
        assert_eq!(web.get(path).ok()["queues"][0]["queue"], queue, "{path}");
    }
    assert_eq!(web.get("/api/overview?db=postgres").status, 404);
}

#[test]
fn a_database_without_the_extension_says_so() {
    let (cluster, _client) = place();
    let web = Web::start(&cluster, &["--database", "dbname=postgres"]);
    let told = web.get("/api/overview").json();
    assert!(told["error"]["message"].as_str().unwrap().contains("has no extension pg_queue"), "{told}");
    assert!(told["error"]["hint"].as_str().unwrap().contains("CREATE EXTENSION pg_queue"), "{told}");
    let once = output(&cluster, &["--once", "--database", "dbname=postgres"]);
    let said = String::from_utf8(once.stderr).unwrap();
    assert!(!once.status.success() && said.contains("CREATE EXTENSION pg_queue"), "{said}");
}

/// The files come from a new release. The database still has the SQL of the old release.
#[test]
fn an_older_extension_is_reported_before_a_query_fails() {
    let cluster = queue_tests::Cluster::new().start();
    cluster.connect().run("CREATE DATABASE app");
    let mut client = cluster.connect_to(crate::place::DATABASE);
    client.run(&format!("CREATE EXTENSION pg_queue VERSION '{EARLIER}'"));
    let web = Web::start(&cluster, &[]);
    for page in ["overview", "queue?queue=q", "doctor"] {
        let told = web.get(&format!("/api/{page}"));
        assert_eq!(told.status, 503, "{told:?}");
        let error = &told.json()["error"];
        let expected = format!("the extension pg_queue is {EARLIER}, and this dashboard needs 0.4");
        assert_eq!(error["message"], expected.as_str(), "{page}");
        assert!(error["hint"].as_str().unwrap().contains("ALTER EXTENSION pg_queue UPDATE"), "{error}");
    }
    let once = output(&cluster, &["--once"]);
    let said = String::from_utf8(once.stderr).unwrap();
    assert!(!once.status.success() && said.contains("ALTER EXTENSION pg_queue UPDATE"), "{said}");
    client.run("ALTER EXTENSION pg_queue UPDATE");
    web.get("/api/overview").ok();
}

#[test]
fn an_error_names_the_missing_object() {
    let (cluster, _client) = place();
    // The port is in use until the listener is dropped.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let taken = output(&cluster, &["--listen", &format!("127.0.0.1:{port}")]);
    let said = String::from_utf8(taken.stderr).unwrap();
    assert!(said.contains(&format!("cannot listen at 127.0.0.1:{port}: ")), "{said}");
    drop(listener);
    let nowhere = output(&cluster, &["--listen", "unix:/nonexistent/web"]);
    let said = String::from_utf8(nowhere.stderr).unwrap();
    assert!(said.contains("cannot listen at /nonexistent/web: "), "{said}");
    let database = format!("host=127.0.0.1 port={port} password=secret-word");
    let gone = output(&cluster, &["--once", "--database", &database]);
    let said = String::from_utf8(gone.stderr).unwrap();
    assert!(said.contains(&format!("no connection to 127.0.0.1, port {port}: ")), "{said}");
    assert!(!said.contains("secret-word"), "{said}");
    // Viewers must not learn where the database is.
    let web = Web::start(&cluster, &["--database", &database, "--auth", "password"]);
    let body = json!({ "user": "ada", "password": "right" }).to_string();
    let refused = web.send("POST", "/login", &OURS, &body);
    assert!(refused.status >= 400 && !refused.body.contains(&port.to_string()), "{refused:?}");
}

#[test]
fn once_prints_the_overview() {
    let (cluster, mut client) = place();
    client.run("SELECT queue.create('mail\u{7}'), queue.create('orders', stages => '{check,send}')");
    client.run("SELECT queue.enqueue('mail\u{7}') FROM generate_series(1, 3)");
    client.run("SELECT id FROM queue.claim('mail\u{7}', worker => 'w \u{1b}[31m')");
    client.run("SELECT queue.create('a name of a queue that is longer than its column')");
    let done = output(&cluster, &["--once"]);
    let text = String::from_utf8(done.stdout).unwrap();
    assert!(done.status.success(), "{text}");
    let words = |start: &str| -> Vec<String> {
        let line = text.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{start} in {text}"));
        line.split_whitespace().map(str::to_owned).collect()
    };
    assert_eq!(words("mail")[..3], ["mail", "2", "1"]);
    assert!(text.contains("\na name of a queue that is lon…  "), "{text}");
    assert_eq!(words("orders / check")[..4], ["orders", "/", "check", "0"]);
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
    let mut gone = command(&cluster, &["--once"]);
    let failed = gone.env("PGPORT", "1").output().unwrap();
    assert!(!failed.status.success() && !failed.stderr.is_empty(), "{failed:?}");
}

#[test]
fn variables_of_libpq_are_read_as_libpq_reads_them() {
    let (cluster, _client) = place();
    let said = |name: &str, value: &[u8]| {
        let done = command(&cluster, &["--once"]).env(name, OsStr::from_bytes(value)).output().unwrap();
        (done.status.success(), String::from_utf8(done.stderr).unwrap())
    };
    for mode in ["disable", "prefer", "require", "verify-full"] {
        // A socket of this machine has no TLS.
        assert_eq!(said("PGSSLMODE", mode.as_bytes()), (true, String::new()), "{mode}");
    }
    for (name, value, why) in [
        ("PGSSLMODE", &b"verify"[..], "PGSSLMODE: verify is no sslmode"),
        ("PGPORT", b"abc", "PGPORT: abc is no port"),
        ("PGUSER", b"\xff", "PGUSER is not UTF-8"),
    ] {
        let (is_well, said) = said(name, value);
        assert!(!is_well && said.contains(why), "{said}");
    }
}
