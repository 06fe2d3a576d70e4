//! Access: open addresses, proxies, passwords, requests from other sites, verbs without permission.

use postgres::NoTls;
use queue_tests::sql::Sql as _;
use queue_tests::{Cluster, wait};
use serde_json::json;

use crate::http::{Address, OURS};
use crate::place::{DATABASE, Web, output, place};

/// The verbs.
const VERBS: [&str; 17] = [
    "retry",
    "cancel",
    "reprioritize",
    "reschedule",
    "forget",
    "pause",
    "resume",
    "alter",
    "enqueue",
    "pause_schedule",
    "resume_schedule",
    "run_schedule",
    "cancel_many",
    "retry_many",
    "reprioritize_many",
    "retry_jobs",
    "cancel_jobs",
];

#[test]
fn an_address_that_is_open_to_all_needs_authentication() {
    let cluster = Cluster::new();
    for args in [
        &["--listen", "0.0.0.0:0"][..],
        &["--listen", "[::]:0"],
        &["--listen", "0.0.0.0:0", "--auth", "none"],
        &["--listen", "0.0.0.0:0", "--auth", "proxy"],
        &["--listen", "127.0.0.1:0", "--auth", "proxy"],
        &["--auth", "everybody"],
        &["--hide", "names"],
        &["--nonsense"],
    ] {
        let done = output(&cluster, args);
        assert_eq!(done.status.code(), Some(2), "{args:?}: {done:?}");
        assert!(!done.stderr.is_empty(), "{args:?}");
    }
}

#[test]
fn each_answer_has_headers_that_forbid_foreign_content() {
    let (cluster, _client) = place();
    let web = Web::start(&cluster, &[]);
    for path in [
        "/",
        "/assets/main.js",
        "/assets/nothing",
        "/api/overview",
        "/api/nothing",
        "/nothing",
        "/api/session",
        "/health",
    ] {
        let answer = web.get(path);
        let policy = answer.header("content-security-policy").unwrap_or_else(|| panic!("{path}"));
        for part in [
            "default-src 'none'",
            "script-src 'self'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "base-uri 'none'",
        ] {
            assert!(policy.contains(part), "{path}: {policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{path}");
        assert_eq!(answer.header("x-frame-options"), Some("DENY"), "{path}");
        assert_eq!(answer.header("referrer-policy"), Some("no-referrer"), "{path}");
        assert_eq!(answer.header("access-control-allow-origin"), None, "{path}");
    }
    assert_eq!(web.get("/api/overview").header("cache-control"), Some("no-store"));
    let page = web.get("/");
    let tag = page.header("etag").unwrap();
    assert_eq!(web.send("GET", "/", &[("if-none-match", tag)], "").status, 304);
}

#[test]
fn a_request_for_an_unknown_host_is_refused() {
    let (cluster, _client) = place();
    let web = Web::start(&cluster, &["--host", "queues.lan"]);
    for host in ["evil.example", "evil.example:80", "localhost.evil.example", "", "127.0.0.1.evil.example:8432"] {
        for path in ["/", "/api/overview", "/api/events"] {
            assert_eq!(web.send("GET", path, &[("host", host)], "").status, 421, "{host} {path}");
        }
    }
    for host in ["localhost:1", "127.0.0.1", "[::1]:9", "queues.lan"] {
        web.send("GET", "/api/overview", &[("host", host)], "").ok();
    }
}

#[test]
fn without_allow_actions_no_verb_is_accepted() {
    let (cluster, mut client) = place();
    client.run("SELECT queue.create('q')");
    let job = client.enqueue("q");
    let web = Web::start(&cluster, &[]);
    for verb in VERBS {
        let answer = web.act(verb, &json!({ "queue": "q", "job_id": job, "states": ["ready"] }), &[]);
        assert_eq!(answer.status, 405, "{verb}");
        assert_eq!(answer.header("allow"), Some("GET, HEAD"));
    }
    for method in ["PUT", "DELETE", "PATCH"] {
        assert_eq!(web.send(method, "/api/overview", &OURS, "").status, 405, "{method}");
    }
    assert_eq!(client.state(job), "ready");
    assert!(web.get("/api/session").ok()["allow_actions"] == false);
}

#[test]
fn other_sites_change_nothing() {
    let (cluster, mut client) = place();
    client.run("SELECT queue.create('q')");
    let job = client.enqueue("q");
    let web = Web::start(&cluster, &["--allow-actions"]);
    let Address::Tcp(own) = &*web else { unreachable!() };
    let (origin, body) = (format!("http://{own}"), json!({ "job_id": job }).to_string());
    let cancel = |headers: &[(&str, &str)]| web.send("POST", "/api/act/cancel", headers, &body);
    // A form of another site can send neither the page's header nor JSON.
    cancel(&[("content-type", "application/x-www-form-urlencoded")]).refused(403);
    cancel(&[("content-type", "text/plain"), ("x-pg-queue-web", "1")]).refused(403);
    cancel(&[("content-type", "application/json")]).refused(403);
    cancel(&[]).refused(403);
    let with = |more: (&'static str, &str)| {
        let more = (more.0, more.1.to_owned());
        let headers = [OURS[0], OURS[1], (more.0, more.1.as_str())];
        cancel(&headers).status
    };
    for foreign in ["http://evil.example", "null", "http://localhost.evil.example", "http://127.0.0.1:1", ""] {
        assert_eq!(with(("origin", foreign)), 403, "{foreign}");
    }
    for site in ["cross-site", "same-site", "none"] {
        assert_eq!(with(("sec-fetch-site", site)), 403, "{site}");
    }
    // A browser asks before it sends the header, and the dashboard does not allow it.
    let asked = [("origin", "http://evil.example"), ("access-control-request-method", "POST")];
    let preflight = web.send("OPTIONS", "/api/act/cancel", &asked, "");
    assert!(preflight.status >= 400 && preflight.header("access-control-allow-origin").is_none(), "{preflight:?}");
    assert_eq!(client.state(job), "ready");
    assert_eq!(with(("origin", &origin)), 200);
    assert_eq!(client.state(job), "cancelled");
}

#[test]
fn a_proxy_names_the_viewer() {
    let (cluster, mut client) = place();
    client.run("CREATE ROLE ada; CREATE ROLE program LOGIN NOINHERIT; GRANT ada TO program; CREATE ROLE eve");
    client.run("SELECT queue.create('q'), queue.create('hidden'); SELECT queue.grant('q', 'ada', 'observe')");
    let secret = cluster.dir().join("secret");
    std::fs::write(&secret, "0123456789abcdef\n").unwrap();
    let roles = cluster.dir().join("roles");
    std::fs::write(&roles, "# people\nada@example.org ada\neve@example.org eve\nnobody none\n").unwrap();
    let args = ["--database", "user=program dbname=app", "--auth", "proxy", "--proxy-secret", secret.to_str().unwrap()];
    let web = Web::start(&cluster, &[&args[..], &["--roles", roles.to_str().unwrap()]].concat());
    let key = ("x-proxy-secret", "0123456789abcdef");
    let as_user = |name| web.send("GET", "/api/overview", &[key, ("x-remote-user", name)], "");
    let seen = as_user("ada@example.org").ok();
    assert_eq!(seen["queues"].as_array().unwrap().len(), 1);
    assert_eq!(seen["queues"][0]["queue"], "q");
    // The role exists, but the program is not a member of it.
    assert!(as_user("eve@example.org").refused(403).contains("eve"));
    for name in ["", "nobody", "ada", "postgres", "program", "mallory"] {
        as_user(name).refused(403);
    }
    for headers in [
        &[("x-remote-user", "ada@example.org")][..],
        &[("x-remote-user", "ada@example.org"), ("x-proxy-secret", "0123456789abcdee")],
        &[("x-remote-user", "ada@example.org"), ("x-proxy-secret", "")],
        &[key, ("x-remote-user", "ada@example.org"), ("x-remote-user", "eve@example.org")],
        &[key],
    ] {
        for path in ["/api/overview", "/api/events", "/api/audit", "/api/session"] {
            assert_eq!(web.send("GET", path, headers, "").status, 403, "{headers:?}");
        }
    }
}

#[test]
fn a_viewer_cannot_have_the_role_none() {
    let (cluster, mut client) = place();
    client.run("SELECT queue.create('q')");
    let socket = cluster.dir().join("web");
    let listen = format!("unix:{}", socket.display());
    // SET ROLE none would return to the program's own role, a superuser.
    let web = Web::start(&cluster, &["--auth", "proxy", "--listen", &listen]);
    for name in ["none", "NONE", "None"] {
        web.send("GET", "/api/overview", &[("x-remote-user", name)], "").refused(403);
    }
    web.send("GET", "/api/overview", &[("x-remote-user", "postgres")], "").ok();
    web.send("GET", "/api/overview", &[("x-remote-user", "postgres; RESET ROLE")], "").refused(403);
}

#[test]
fn the_database_checks_passwords() {
    let (cluster, mut client) = place();
    client.run("CREATE ROLE ada LOGIN PASSWORD 'right'; CREATE ROLE program LOGIN NOINHERIT; GRANT ada TO program");
    client.run("CREATE ROLE carl LOGIN PASSWORD 'right'; GRANT carl TO program");
    client.run("SELECT queue.create('q'); SELECT queue.grant('q', 'ada', 'observe')");
    let hba = cluster.data().join("pg_hba.conf");
    let trusting = std::fs::read_to_string(&hba).unwrap();
    std::fs::write(&hba, format!("local all ada scram-sha-256\n{trusting}")).unwrap();
    cluster.reload();
    let args = ["--database", "user=program dbname=app", "--auth", "password"];
    let web = Web::start(&cluster, &args);
    let login = |user: &str, password: &str| {
        web.send("POST", "/login", &OURS, &json!({ "user": user, "password": password }).to_string())
    };
    assert_eq!(web.get("/api/overview").status, 401);
    assert_eq!(web.get("/api/events").status, 401);
    assert_eq!(web.get("/api/session").ok()["user"], json!(null));
    for (user, password) in [("ada", "wrong"), ("ada", ""), ("", "right"), ("nobody here", "right\u{1}")] {
        login(user, password).refused(401);
    }
    // The server accepts any password for this role, so a password proves nothing.
    assert!(login("carl", "whatever").refused(503).contains("does not ask for passwords"));
    let entered = login("ada", "right");
    entered.ok();
    let cookie = entered.header("set-cookie").unwrap();
    assert!(
        cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict") && !cookie.contains("Secure"),
        "{cookie}"
    );
    let kept = cookie.split(';').next().unwrap().to_owned();
    let with = |path: &str| web.send("GET", path, &[("cookie", &kept)], "");
    assert_eq!(with("/api/session").ok()["role"], "ada");
    assert_eq!(with("/api/overview").ok()["queues"][0]["queue"], "q");
    // If a role may not connect to the database any more, its open session ends too.
    client.run("ALTER ROLE ada NOLOGIN");
    let locked_out = || wait::until("locked out", || Some(with("/api/overview")).filter(|answer| answer.status == 403));
    assert!(locked_out().refused(403).contains("may not log in any more"));
    let let_in = || wait::until("let in", || (with("/api/overview").status == 200).then_some(()));
    client.run("ALTER ROLE ada LOGIN");
    let_in();
    client.run("ALTER ROLE ada VALID UNTIL '2001-01-01'");
    locked_out();
    client.run("ALTER ROLE ada VALID UNTIL 'infinity'");
    let_in();
    // A request from another site lacks the page's header, so it cannot end the session.
    assert_eq!(web.send("POST", "/logout", &[("cookie", &kept)], "").status, 403);
    web.send("POST", "/logout", &[OURS[0], OURS[1], ("cookie", &kept)], "{}").ok();
    assert_eq!(with("/api/overview").status, 401);
    let log = web.log();
    assert!(!log.contains("right") && !log.contains("wrong"), "{log}");
    // With https the cookie is bound to the host.
    let web = Web::start(&cluster, &[&args[..], &["--https"]].concat());
    let entered = web.send("POST", "/login", &OURS, &json!({ "user": "ada", "password": "right" }).to_string());
    let cookie = entered.header("set-cookie").unwrap();
    assert!(cookie.starts_with("__Host-") && cookie.contains("; Secure") && cookie.contains("Path=/;"), "{cookie}");
}

#[test]
fn the_dashboard_can_be_served_below_a_path() {
    let (cluster, _client) = place();
    let web = Web::start(&cluster, &["--prefix", "/queues/", "--frame-ancestors", "'self'"]);
    assert_eq!(web.get("/queues").status, 308);
    let page = web.get("/queues/");
    assert!(page.body.contains("<!doctype html>"), "{page:?}");
    assert!(page.header("content-security-policy").unwrap().contains("frame-ancestors 'self'"));
    assert_eq!(page.header("x-frame-options"), None);
    web.get("/queues/api/overview").ok();
    assert_eq!(web.get("/api/overview").status, 404);
}

#[test]
fn without_viewers_the_dashboard_sends_no_statement() {
    let (cluster, mut client) = place();
    client.run("SELECT queue.create('q')");
    let mut web = Web::start(&cluster, &[]);
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pg_queue_web%'";
    assert_eq!(client.value::<i64>(sessions), 0, "the dashboard connects for its first viewer");
    let mut looks = [web.events(&[]), web.events(&[]), web.events(&[])];
    for events in &mut looks {
        let (kind, data) = events.next().unwrap();
        assert_eq!((kind.as_str(), &data["queues"][0]["queue"]), ("overview", &json!("q")), "{data}");
    }
    // One database session serves all three streams.
    assert_eq!(client.value::<i64>(sessions), 1);
    client.run("SELECT queue.create('new')");
    for events in &mut looks {
        while events.next().unwrap().1["queues"][0]["queue"] != "new" {}
    }
    drop(looks);
    let last = "SELECT max(query_start)::text FROM pg_stat_activity WHERE application_name LIKE 'pg_queue_web%'";
    // A running poll may end. After it no poll runs for two seconds.
    wait::until("nothing runs", || {
        let before: Option<String> = client.value(last);
        client.run("SELECT pg_sleep(2.5)");
        (client.value::<Option<String>>(last) == before).then_some(())
    });
    assert!(web.terminate(), "it ends when it is asked to");
}

#[test]
fn the_dashboard_recovers_from_a_restart_of_the_server() {
    let (cluster, _client) = place();
    let mut web = Web::start(&cluster, &[]);
    let mut events = web.events(&[]);
    assert_eq!(events.next().unwrap().0, "overview");
    cluster.stop_fast();
    let trouble = std::iter::from_fn(|| events.next()).find(|(kind, _)| kind == "trouble").unwrap();
    assert!(!trouble.1["error"]["message"].as_str().unwrap().is_empty());
    assert!(web.get("/api/overview").status >= 500);
    cluster.start_again();
    while events.next().unwrap().0 != "overview" {}
    wait::until("it answers", || (web.get("/api/overview").status == 200).then_some(()));
    // Open streams do not delay the end of the program.
    assert!(web.terminate());
    while events.next().is_some() {}
}

#[test]
fn requests_to_a_server_that_hangs_are_refused_in_time() {
    let (cluster, mut client) = place();
    client.run("SELECT queue.create('q')");
    drop(client);
    let mut web = Web::start(&cluster, &["--connections", "2", "--allow-actions"]);
    let mut events = web.events(&[]);
    assert_eq!(events.next().unwrap().0, "overview");
    // All processes except the postmaster stop. Connections stay open and get no answer.
    let held: Vec<i32> = cluster.processes().into_iter().filter(|pid| cluster.signal_if_there("STOP", *pid)).collect();
    assert!(!held.is_empty());
    let trouble = std::iter::from_fn(|| events.next()).find(|(kind, _)| kind == "trouble").expect("a word of it");
    assert!(trouble.1["error"]["message"].as_str().unwrap().contains("does not answer"), "{trouble:?}");
    let refused = web.get("/api/queue?queue=q");
    assert!(matches!(refused.status, 503 | 504), "{refused:?}");
    let refused = web.act("pause", &json!({ "queue": "q" }), &[]);
    assert!(matches!(refused.status, 503 | 504), "{refused:?}");
    for pid in held {
        cluster.signal_if_there("CONT", pid);
    }
    while events.next().unwrap().0 != "overview" {}
    wait::until("it answers", || (web.get("/api/queue?queue=q").status == 200).then_some(()));
    assert!(web.terminate());
}

#[test]
fn no_answer_and_no_log_has_the_password_of_the_connection() {
    let cluster = Cluster::new().start();
    drop(cluster.config().dbname(DATABASE).connect(NoTls));
    let web = Web::start(&cluster, &["--database", "host=127.0.0.1 port=1 user=x password=verysecret dbname=app"]);
    let answer = web.get("/api/overview");
    assert_eq!(answer.status, 503);
    assert!(!answer.body.contains("verysecret") && !web.log().contains("verysecret"), "{answer:?}");
}
