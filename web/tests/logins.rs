//! Logins and sessions: wrong passwords do not delay right ones, and an ended session shows nothing.

use std::sync::atomic::{AtomicBool, Ordering};

use postgres::Client;
use queue_tests::sql::Sql as _;
use queue_tests::{Cluster, wait};
use serde_json::json;

use crate::http::{Answer, OURS};
use crate::place::{Web, place};

/// Starts a dashboard with `--auth password` and a queue `q`. Role `ada`, with the password `right`, may observe it.
fn with_passwords() -> (Cluster, Client, Web) {
    let (cluster, mut client) = place();
    client.run("CREATE ROLE ada LOGIN PASSWORD 'right'; CREATE ROLE program LOGIN NOINHERIT; GRANT ada TO program");
    client.run("SELECT queue.create('q'); SELECT queue.grant('q', 'ada', 'observe')");
    let hba = cluster.data().join("pg_hba.conf");
    let trusting = std::fs::read_to_string(&hba).unwrap();
    std::fs::write(
        &hba,
        format!("local all program trust\nlocal all postgres trust\nlocal all all scram-sha-256\n{trusting}"),
    )
    .unwrap();
    cluster.reload();
    let web = Web::start(&cluster, &["--database", "user=program dbname=app", "--auth", "password"]);
    (cluster, client, web)
}

fn login(web: &Web, user: &str, password: &str) -> Answer {
    web.send("POST", "/login", &OURS, &json!({ "user": user, "password": password }).to_string())
}

/// Returns the cookie of a new session of `ada`.
fn entered(web: &Web) -> String {
    let entered = login(web, "ada", "right");
    entered.ok();
    entered.header("set-cookie").unwrap().split(';').next().unwrap().to_owned()
}

#[test]
fn wrong_passwords_do_not_delay_a_right_one() {
    let (_cluster, _client, web) = with_passwords();
    let (stop, wrong) = (AtomicBool::new(false), std::sync::atomic::AtomicUsize::new(0));
    std::thread::scope(|threads| {
        for n in 0..60 {
            let (web, stop, wrong) = (&web, &stop, &wrong);
            threads.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let refused = login(web, ["ada", "nobody"][n % 2], &format!("wrong {n}"));
                    assert!(refused.status >= 400, "{refused:?}");
                    wrong.fetch_add(usize::from(refused.status == 401), Ordering::Relaxed);
                }
            });
        }
        // The first correct login comes while some threads still wait for their first answer. The second comes between
        // their later attempts.
        let first = login(&web, "ada", "right");
        wait::until("each has been wrong twice", || (wrong.load(Ordering::Relaxed) > 120).then_some(()));
        let second = login(&web, "ada", "right");
        stop.store(true, Ordering::Relaxed);
        first.ok();
        second.ok();
    });
}

#[test]
fn waiting_logins_are_limited() {
    let (_cluster, _client, web) = with_passwords();
    let refused = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|threads| {
        for n in 0..200 {
            let (web, refused) = (&web, &refused);
            threads.spawn(move || match login(web, &format!("nobody {n}"), "wrong").status {
                429 => drop(refused.fetch_add(1, Ordering::Relaxed)),
                status => assert_eq!(status, 401),
            });
        }
    });
    assert!(refused.load(Ordering::Relaxed) > 0);
    // Long names and passwords do not reach the database. The log has only their beginning.
    let before = web.log().len();
    login(&web, &"n".repeat(5_000), "wrong").refused(401);
    login(&web, "ada", &"p".repeat(5_000)).refused(401);
    assert_eq!(login(&web, "ada", &"p".repeat(10_000)).status, 413);
    web.wait_audit(&["\"user\":\"ada\"", "refused"]);
    assert!(web.log().len() < before + 2_000);
}

#[test]
fn the_sessions_of_one_user_are_limited() {
    let (_cluster, _client, web) = with_passwords();
    let first = entered(&web);
    let mut stream = web.events(&[("cookie", &first)]);
    assert_eq!(stream.next().unwrap().0, "overview");
    let others: Vec<_> = (0..20).map(|_| entered(&web)).collect();
    let with = |cookie: &str| web.send("GET", "/api/overview", &[("cookie", cookie)], "");
    with(&others[19]).ok();
    with(&first).refused(401);
    while stream.next().is_some() {}
}

#[test]
fn streams_end_with_the_session_and_with_the_role() {
    let (_cluster, mut client, web) = with_passwords();
    let (cookie, other) = (entered(&web), entered(&web));
    let mut stream = web.events(&[("cookie", &cookie)]);
    let mut stays = web.events(&[("cookie", &other)]);
    assert_eq!(stream.next().unwrap().0, "overview");
    web.send("POST", "/logout", &[OURS[0], OURS[1], ("cookie", &cookie)], "{}").ok();
    while stream.next().is_some() {}
    // The other session of the user stays open.
    for _ in 0..2 {
        assert_eq!(stays.next().unwrap().0, "overview");
    }
    client.run("ALTER ROLE ada NOLOGIN");
    let last = std::iter::from_fn(|| stays.next()).last().unwrap();
    assert_eq!(last.0, "trouble");
    assert!(last.1.to_string().contains("may not log in any more"), "{last:?}");
    assert_eq!(web.events_or(&[("cookie", &other)]).err(), Some(403));
}

#[test]
fn a_role_that_is_locked_out_gets_no_cached_answer() {
    let (_cluster, mut client, web) = with_passwords();
    let cookie = entered(&web);
    let paths = [
        "/api/activity?span=quarter&queue=q",
        "/api/activity?queue=q",
        "/api/topics",
        "/api/errors?queue=q",
        "/api/workers",
    ];
    let get = |path: &str| web.send("GET", path, &[("cookie", &cookie)], "");
    for (locked, open) in [
        ("ALTER ROLE ada NOLOGIN", "ALTER ROLE ada LOGIN"),
        ("ALTER ROLE ada VALID UNTIL '2001-01-01'", "ALTER ROLE ada VALID UNTIL 'infinity'"),
        ("REVOKE ada FROM program", "GRANT ada TO program"),
    ] {
        wait::until("she may look again", || (get(paths[0]).status == 200).then_some(()));
        paths.iter().for_each(|path| drop(get(path).ok()));
        client.run(locked);
        wait::until("she may look no more", || (get(paths[0]).status == 403).then_some(()));
        paths.iter().for_each(|path| drop(get(path).refused(403)));
        client.run(open);
    }
}
