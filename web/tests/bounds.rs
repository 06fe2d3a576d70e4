//! Limits of what one viewer or a stranger can use: memory, connections, streams, statements.

use std::io::{ErrorKind, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};

use queue_tests::sql::Sql as _;
use queue_tests::{Cluster, wait};
use serde_json::json;

use crate::http::{OURS, Stream};
use crate::place::{Web, encoded, place};

/// Starts a dashboard at a socket, for a proxy that names roles. Roles `eve` and `bob` have a queue each.
fn shared(cluster: &Cluster, client: &mut postgres::Client, args: &[&str]) -> Web {
    for name in ["eve", "bob"] {
        client.run(&format!(
            "CREATE ROLE {name}; SELECT queue.create('{name}s'), queue.grant('{name}s', '{name}', 'manage')"
        ));
    }
    let listen = format!("unix:{}", cluster.dir().join("web").display());
    Web::start(cluster, &[&["--auth", "proxy", "--listen", &listen], args].concat())
}

/// Returns a jsonpath that runs until the time limit of a request.
fn endless(name: &str) -> String {
    format!("{}@ == \"{name}\"{}", "exists($.** ? (".repeat(8), "))".repeat(8))
}

/// Returns true if the peer closes the connection before a read times out.
fn is_closed(stream: &mut dyn Stream) -> bool {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => true,
        Err(e) => !matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
    }
}

#[test]
fn the_audit_keeps_a_bounded_part_of_each_request() {
    let (cluster, mut client) = place();
    let web = shared(&cluster, &mut client, &["--allow-actions"]);
    let long = "x".repeat(1_000_000);
    let reason = json!({ "queue": "q", "job_id": 17, "states": ["ready"], "reason": long[..900_000] });
    let names =
        json!({ "queue": long[..400_000], "job_id": long[..400_000], "nonsense": long[..1_000], "states": ["ready"] });
    let eve = [("x-remote-user", "eve")];
    web.act("nonsense", &json!({ "queue": "eves" }), &eve).refused(404);
    web.act("pause", &json!({ "queue": "bobs" }), &[("x-remote-user", "bob")]).ok();
    let before = web.megabytes();
    for verb in ["nonsense", "pause", "cancel", "cancel_many", &"y".repeat(10_000)] {
        for body in [&reason, &names] {
            for _ in 0..25 {
                assert!(web.act(verb, body, &eve).status >= 400);
            }
        }
    }
    let after = web.megabytes();
    assert!(after < before + 40, "{before} MB, {after} MB");
    let audit = web.get_as("eve", "/api/audit").ok();
    assert!(audit.to_string().len() < 1_500_000 && audit.as_array().unwrap().len() == 200);
    for deed in audit.as_array().unwrap() {
        let is_unknown = !["pause", "cancel", "cancel_many"].contains(&deed["verb"].as_str().unwrap());
        assert!(!is_unknown || deed["queue"].is_null() && deed["reason"].is_null(), "{deed}");
    }
    assert_eq!(web.get_as("bob", "/api/audit").ok()[0]["verb"], "pause", "the audit keeps the actions of others");
}

#[test]
fn incomplete_requests_block_no_other_and_time_out() {
    let (cluster, _client) = place();
    let web = Web::start_with_files(&cluster, &["--allow-actions"], 200);
    let mut half: Vec<_> = (0..300)
        .map(|n| {
            let mut stream = web.connect();
            let part =
                ["", "GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ", "POST /api/act/pause HTTP/1.1\r\nHost: "][n % 3];
            drop(stream.write_all(part.as_bytes()));
            stream
        })
        .collect();
    assert_eq!(web.get("/health").status, 200);
    web.get("/api/session").ok();
    for stream in &mut half {
        assert!(is_closed(stream.as_mut()), "a half request is given up");
    }
}

#[test]
fn a_request_without_its_body_times_out() {
    let (cluster, _client) = place();
    let web = Web::start(&cluster, &["--allow-actions"]);
    let slow = web.send("POST", "/api/act/pause", &[OURS[0], OURS[1], ("content-length", "100")], "{\"queue\":");
    slow.refused(408);
    let long = "x".repeat(1_100_000);
    assert_eq!(web.act("pause", &json!({ "queue": long }), &[]).status, 413);
}

#[test]
fn the_streams_of_one_viewer_are_limited() {
    let (cluster, mut client) = place();
    let web = shared(&cluster, &mut client, &[]);
    let eve = [("x-remote-user", "eve")];
    let mut open: Vec<_> = (0..50).map(|_| web.events(&eve)).collect();
    assert_eq!(web.events_or(&eve).err(), Some(429));
    assert!(web.events(&[("x-remote-user", "bob")]).next().is_some());
    drop(open.pop());
    wait::until("the share has come back", || web.events_or(&eve).ok());
}

#[test]
fn searches_of_one_viewer_do_not_delay_others() {
    let (cluster, mut client) = place();
    let web = shared(&cluster, &mut client, &[]);
    client.run("SELECT queue.enqueue('eves', '{\"a\": [1, 2, 3], \"b\": {\"c\": {\"d\": [1, 2, 3]}}}')");
    let stop = AtomicBool::new(false);
    std::thread::scope(|threads| {
        for n in 0..40 {
            let (web, stop) = (&web, &stop);
            threads.spawn(move || {
                for round in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let path = format!(
                        "/api/search?queue=eves&states=[\"ready\"]&filter={}",
                        encoded(&endless(&format!("{n} {round}")))
                    );
                    // Half of the clients leave before the answer.
                    if n % 2 == 0 {
                        web.send_and_go(&path, &[("x-remote-user", "eve")]);
                        std::thread::sleep(std::time::Duration::from_millis(20));
                    } else {
                        assert!(web.get_as("eve", &path).status >= 400);
                    }
                }
            });
        }
        for n in 0..10 {
            let answer = web.get_as("bob", &format!("/api/queue?queue=bobs&n={n}"));
            stop.store(answer.status != 200 || n == 9, Ordering::Relaxed);
            answer.ok();
        }
    });
}

#[test]
fn the_cache_of_answers_is_bounded() {
    let (cluster, mut client) = place();
    let web = shared(&cluster, &mut client, &[]);
    client.run(
        "SELECT queue.create('q' || n) FROM generate_series(1, 50) AS n; \
        SELECT queue.grant(queue_name, 'eve', 'observe') FROM queue.queues",
    );
    let ask = |n: usize| {
        // The same chart with many values of its fields, and with fields that do not exist.
        let zone = format!("{:b}", n + 0x1000).replace('0', "u").replace('1', "U");
        let path = format!("/api/activity?span=day&tz=UTC%2B{}%3A{}&nonsense={zone}", n % 12, n / 12 % 60);
        web.get_as("eve", &path).ok();
    };
    (0..20).for_each(ask);
    let before = web.megabytes();
    (20..400).for_each(ask);
    let after = web.megabytes();
    assert!(after < before + 30, "{before} MB, {after} MB");
}

#[test]
fn numbers_of_a_body_keep_all_digits() {
    let (cluster, mut client) = place();
    client.run("SELECT queue.create('q')");
    let web = Web::start(&cluster, &["--allow-actions"]);
    for number in ["1970670598291982290", "123456789012345678901234567890.10", "-9007199254740993"] {
        let body = format!("{{\"queue\": \"q\", \"payload\": {{\"n\": {number}}}}}");
        web.send("POST", "/api/act/enqueue", &OURS, &body).ok();
        let kept: String = client.value("SELECT payload ->> 'n' FROM queue.jobs ORDER BY job_id DESC LIMIT 1");
        assert_eq!(kept, number);
    }
}
