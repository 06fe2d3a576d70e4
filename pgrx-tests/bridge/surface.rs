//! The functions of the primary compared with those of the queue server, set-up, and disconnecting.

use queue_tests::sql::Sql;
use queue_tests::{Cluster, wait};

use crate::pair::{DATABASE, Pair, primary_sql, released_primary_sqls};

#[test]
fn a_call_has_the_arguments_that_it_has_on_the_queue_server() {
    let pair = Pair::apart("");
    let sql = "SELECT format('%s(%s)', p.proname, pg_get_function_arguments(p.oid)) FROM pg_proc AS p
               WHERE p.pronamespace = 'queue'::regnamespace ORDER BY 1";
    let there = pair.server().column::<String>(sql);
    let here = pair.primary.connect_to(DATABASE).column::<String>(sql);
    // `once` exists only here, and `cancel` has no answer to return.
    let other = |signature: &str| {
        signature.starts_with("once") || signature == "cancel(job_id bigint, reason text DEFAULT NULL::text)"
    };
    let plain = |signature: &String| signature.replace(", OUT queue_name text, OUT job_id bigint", "");
    let known: Vec<String> = there.iter().map(plain).collect();
    // Functions of the primary return columns as tables.
    let bare = |signature: &str| signature.split(", OUT ").next().unwrap_or_default().trim_end_matches(')').to_owned();
    let known: Vec<String> = known.iter().map(|signature| bare(signature)).collect();
    for signature in here.iter().filter(|signature| !other(signature)) {
        assert!(known.contains(&bare(signature)), "{signature} differs on the queue server");
    }
    let name = |signature: &String| signature.split('(').next().unwrap_or_default().to_owned();
    let here: Vec<String> = here.iter().map(name).collect();
    for name in there.iter().map(name) {
        assert!(here.contains(&name), "{name} is not on the primary");
    }
}

#[test]
fn functions_that_only_the_queue_server_answers_say_so() {
    let pair = Pair::new();
    let mut app = pair.app();
    for call in [
        "SELECT id, payload FROM queue.claim('q', max_jobs => 5, wait => '10 seconds') WHERE job_id > 0",
        "SELECT outcome FROM queue.cancel_many('{31}', reason => 'none')",
        "SELECT state FROM queue.job(31)",
        "SELECT lease_expires_at FROM queue.extend(16)",
        "SELECT queue.enqueue_sql('q', 'SELECT 1')",
        "SELECT queue.create('r', max_running => 1)",
        "CALL queue.wait('q', '1 second')",
    ] {
        let failure = app.refused(call, "0A000");
        assert!(failure.message.ends_with("is answered by the queue server"), "{failure:?}");
        let hint = failure.hint;
        assert!(hint.contains("port 5432, database \"shop\""), "{hint}");
    }
    // Calls all such functions, also after a second run of the script.
    pair.primary_as("owner").run(&primary_sql());
    let calls = "SELECT format('%s queue.%I(%s)', CASE p.prokind WHEN 'p' THEN 'CALL' ELSE 'SELECT' END, p.proname,
            (SELECT string_agg(format('NULL::%s', t.type::regtype), ', ') FROM unnest(p.proargtypes) AS t (type)))
        FROM pg_proc AS p WHERE p.pronamespace = 'queue'::regnamespace AND p.prosrc LIKE '%queue_bridge.absent(%'";
    let calls = pair.primary.connect_to(DATABASE).column::<String>(calls);
    assert!(calls.len() > 50, "{calls:?}");
    for call in calls {
        app.refused(&call, "0A000");
    }
}

#[test]
fn the_script_has_the_version_of_the_extension() {
    let pair = Pair::apart("");
    let version: String = pair.server().value("SELECT extversion FROM pg_extension WHERE extname = 'pg_queue_bridge'");
    assert_eq!(pair.primary.connect_to(DATABASE).value::<String>("SELECT queue_bridge.version()"), version);
}

#[test]
fn an_older_script_followed_by_this_one_gives_the_same_schema() {
    let primary = Cluster::new().conf("shared_preload_libraries = ''").conf("wal_level = logical").start();
    primary.connect().run("CREATE ROLE owner LOGIN; CREATE ROLE taker; CREATE ROLE app");
    // Returns the sorted lines of the schema after these scripts have run.
    let set_up = |name: &str, scripts: &[&str]| {
        primary.connect().run(&format!("CREATE DATABASE {name} OWNER owner TEMPLATE template0"));
        let mut owner = primary.connect_as(name, "owner");
        for (n, script) in scripts.iter().enumerate() {
            owner.run(script);
            if n == 0 {
                owner.run("SELECT queue_bridge.admit('taker'), queue_bridge.grant('app', '{produce,consume,manage}')");
            }
        }
        let dump = primary.pg_dump(&["--schema-only", name]);
        // Newer versions of pg_dump print a random word.
        let mut lines: Vec<_> = dump.lines().filter(|line| !line.starts_with('\\')).map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    };
    let now = primary_sql();
    let fresh = set_up("fresh", &[&now]);
    assert!(fresh.len() > 500, "{fresh:?}");
    // The last case runs the current script twice.
    for (n, before) in released_primary_sqls().iter().chain([&now]).enumerate() {
        assert_eq!(set_up(&format!("updated{n}"), &[before, &now]), fresh);
    }
}

#[test]
fn a_primary_that_is_not_ready_says_why() {
    let pair = Pair::apart("max_replication_slots = 1");
    let mut server = pair.server();
    let connect = format!("SELECT queue_bridge.connect('shop', '{}')", pair.conninfo());
    assert!(server.failure(&connect).message.contains("no two free replication slots"));
    pair.primary.append_conf("max_replication_slots = 10");
    // From 19 on, a server with wal_level replica becomes logical by itself.
    let version: i32 = pair.primary.connect().value("SELECT current_setting('server_version_num')::integer");
    let (too_low, suffices) = if version < 190_000 { ("replica", "logical") } else { ("minimal", "replica") };
    pair.primary.append_conf(&format!("wal_level = {too_low}"));
    pair.primary.append_conf("max_wal_senders = 0");
    pair.primary.restart();
    assert!(server.failure(&connect).message.contains(&format!("its wal_level is {too_low}")));
    pair.app().refused("SELECT queue.enqueue('q')", "55000");
    pair.primary.append_conf("max_wal_senders = 10");
    pair.primary.append_conf(&format!("wal_level = {suffices}"));
    pair.primary.restart();
    server.run(&connect);
    server.refused(&connect, "42710");
}

#[test]
fn the_schedule_speaks_with_the_primary_by_itself() {
    let pair = Pair::apart("");
    let mut server = pair.server();
    server.run("SELECT queue.create('q')");
    pair.connect();
    server.run("SELECT queue_bridge.allow('shop', 'q'), queue.resume_schedule('queue_bridge_shop')");
    let plan = "'queue_bridge_shop', 'queue_bridge_shop', '{\"source\": \"shop\"}', every => '1 second'";
    server.run(&format!("SELECT queue.schedule({plan})"));
    let mut owner = pair.primary_as("owner");
    wait::until("the primary knows the queue", || {
        (owner.count("SELECT FROM queue_bridge.known_queue WHERE name = 'q'") > 0).then_some(())
    });
    let failed = "SELECT FROM queue.jobs WHERE queue_name = 'queue_bridge_shop' AND state = 'dead'";
    assert_eq!(server.count(failed), 0);
    let lag = owner.query_one("SELECT bytes, is_active FROM queue_bridge.lag()", &[]).expect("the lag");
    assert!(lag.get::<_, i64>(0) >= 0 && lag.get::<_, bool>(1));
}

#[test]
fn a_source_that_is_disconnected_leaves_nothing_on_either_side() {
    let pair = Pair::new();
    let (mut app, mut server) = (pair.app(), pair.server());
    app.enqueue("q");
    pair.wait_arrived();
    server.run("SELECT queue_bridge.disconnect('shop')");
    assert_eq!(server.count("SELECT FROM pg_subscription"), 0);
    assert_eq!(server.count("SELECT FROM queue.queues"), 1);
    assert_eq!(pair.primary.connect().count("SELECT FROM pg_replication_slots"), 0);
    // The source can be connected again. It gets the calls made meanwhile.
    app.enqueue("q");
    pair.connect();
    server.run("SELECT queue_bridge.allow('shop', 'q'); SELECT queue_bridge.retry_refused('shop')");
    pair.wait_streaming();
    server.run("SELECT queue_bridge.retry_refused('shop')");
    assert_eq!(server.count("SELECT FROM queue.jobs"), 2);
    pair.primary.stop_fast();
    server.refused("SELECT queue_bridge.disconnect('shop')", "08001");
    server.run("SELECT queue_bridge.disconnect('shop', force => true)");
    assert_eq!(server.count("SELECT FROM queue_bridge.sources"), 0);
}

#[test]
fn the_extension_stays_while_a_source_is_connected() {
    let pair = Pair::new();
    let mut server = pair.server();
    let failure = server.failure("DROP EXTENSION pg_queue_bridge");
    assert_eq!((failure.code.as_str(), failure.detail.contains("queue_bridge.connected_shop")), ("2BP01", true));
    server.refused("DROP EXTENSION pg_queue", "2BP01");
    // After DROP … CASCADE the subscription stays, and the doctor reports it.
    let doctor = "SELECT detail FROM queue.doctor() WHERE name = 'bridge' AND NOT ok";
    server.run("BEGIN; DROP EXTENSION pg_queue_bridge CASCADE");
    let said = "Subscription \"queue_bridge_shop\" is there without the extension.";
    assert_eq!(server.value::<String>(doctor), said);
    server.run("ROLLBACK; SELECT queue_bridge.disconnect('shop'); DROP EXTENSION pg_queue_bridge");
    assert_eq!(server.count(doctor), 0);
    assert_eq!(server.count("SELECT FROM pg_subscription"), 0);
}

/// Returns the commands of docs/bridge.md in order.
fn commands() -> Vec<String> {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/bridge.md")).expect("the page");
    page.split("\n```sh\n").skip(1).filter_map(|rest| Some(rest.split_once("\n```\n")?.0.to_owned())).collect()
}

#[test]
fn the_page_does_what_it_says() {
    let pair = Pair::apart("");
    // Removes what `apart` has prepared, because the page does all of it.
    pair.primary
        .connect_to(DATABASE)
        .run("DROP SCHEMA queue, queue_bridge CASCADE; DROP PUBLICATION IF EXISTS pg_queue");
    pair.server().run("DROP EXTENSION pg_queue_bridge");
    let all = commands();
    assert!(all.len() >= 5);
    let has_lines = all[0..2].iter().map(|block| block.lines().filter(|line| !line.is_empty()).count()).sum::<usize>();
    assert!(has_lines <= 12, "set up in at most twelve lines");
    let path = format!("{}:{}", pair.primary.bindir().display(), std::env::var("PATH").unwrap_or_default());
    for block in all {
        let done = std::process::Command::new("bash")
            .args(["-eu", "-c", &block])
            .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
            .env("PATH", &path)
            .env("PSQLRC", "/dev/null")
            .env("PRIMARY", pair.conninfo().replace("taker", "owner"))
            .env(
                "QUEUE_SERVER",
                format!("host={} port=5432 user=postgres dbname={DATABASE}", pair.server.dir().display()),
            )
            .env("TAKER", pair.conninfo())
            .output()
            .expect("bash");
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success() && !said.contains("ERROR"), "{block}\n{said}");
    }
    let mut server = pair.server();
    wait::until("the job is completed", || {
        (server.count("SELECT FROM queue.jobs WHERE queue_name = 'orders' AND state = 'completed'") == 1).then_some(())
    });
    assert_eq!(pair.primary.connect_to(DATABASE).value::<String>("SELECT total::text FROM orders"), "20.99");
}
