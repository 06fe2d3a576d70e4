//! The launcher keeps one worker in each database with the extension, recovers from everything, and blocks nothing.

use crate::shared::*;

/// The limit for something immediate. It is much longer than that takes, and much shorter than any pause or time-out
/// (Postgres waits 5 s for the other users of a database).
const AT_ONCE: Duration = Duration::from_secs(3);

/// Returns the process id of this database's worker.
fn worker(client: &mut Client, database: &str) -> Option<i32> {
    let sql = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'pg_queue worker' AND datname = $1
               AND application_name = 'pg_queue worker (' || datname || ')'";
    let rows = client.query(sql, &[&database]).unwrap();
    assert!(rows.len() <= 1, "{} workers in {database}", rows.len());
    rows.first().map(|row| row.get(0))
}

/// Returns the databases with a worker, in order.
fn workers(client: &mut Client) -> Vec<String> {
    let sql = "SELECT datname::text FROM pg_stat_activity WHERE backend_type = 'pg_queue worker' ORDER BY 1";
    let rows = client.query(sql, &[]).unwrap();
    rows.iter().filter_map(|row| row.get(0)).collect()
}

fn launcher(client: &mut Client) -> Option<i32> {
    let sql = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'pg_queue launcher'";
    client.query_opt(sql, &[]).unwrap().map(|row| row.get(0))
}

fn has_worker_within(limit: Duration, client: &mut Client, database: &str) -> i32 {
    wait::within(&format!("{database} has a worker"), limit, || worker(client, database))
}

fn has_worker(client: &mut Client, database: &str) -> i32 {
    has_worker_within(wait::DEFAULT_LIMIT, client, database)
}

/// Waits for a worker other than this process.
fn has_another(client: &mut Client, database: &str, not: i32) -> i32 {
    wait::within(&format!("{database} has another worker"), AT_ONCE, || {
        worker(client, database).filter(|&pid| pid != not)
    })
}

fn has_none(client: &mut Client, database: &str) {
    wait::until_true(&format!("{database} has no worker"), || worker(client, database).is_none());
}

/// Returns how many workers have logged their start. That is the last step of a start.
fn starts_logged(cluster: &Cluster, database: &str) -> usize {
    cluster.log().matches(&format!("worker of database \"{database}\" has started")).count()
}

/// Runs a command that waits for other users of a database. Asserts that it did not have to wait.
fn run_at_once(client: &mut Client, sql: &str) {
    let start = Instant::now();
    client.run(sql);
    assert!(start.elapsed() < AT_ONCE, "{sql} took {:?}", start.elapsed());
}

/// Starts a server with the extension in database `app` and waits for its worker. Also returns a connection to
/// `postgres`.
fn with_app(cluster: Cluster) -> (Cluster, Client) {
    let cluster = cluster.start();
    drop(cluster.create_database("app"));
    let mut client = cluster.connect();
    has_worker_within(AT_ONCE, &mut client, "app");
    wait::until_true("the worker has said so", || starts_logged(&cluster, "app") == 1);
    (cluster, client)
}

#[test]
fn the_worker_comes_and_goes_with_the_extension() {
    let (cluster, mut client) = with_app(Cluster::new());
    let mut app = cluster.connect_to("app");
    let first = has_worker(&mut client, "app");

    app.run("BEGIN; DROP EXTENSION pg_queue; ROLLBACK");
    app.run("DROP EXTENSION pg_queue");
    has_none(&mut client, "app");
    assert!(cluster.log().contains("worker of database \"app\" has stopped: the extension was dropped"));

    app.run("BEGIN; CREATE EXTENSION pg_queue; ROLLBACK");
    app.run("CREATE EXTENSION pg_queue");
    let second = has_another(&mut client, "app", first);

    // The same worker serves the new extension.
    app.run("BEGIN; DROP EXTENSION pg_queue; CREATE EXTENSION pg_queue; COMMIT");
    app.run("DROP EXTENSION pg_queue");
    has_none(&mut client, "app");
    app.run("CREATE EXTENSION pg_queue");
    has_another(&mut client, "app", second);
}

#[test]
fn a_prepared_transaction_may_create_and_drop_the_extension() {
    let cluster = Cluster::new().conf("max_prepared_transactions = 2").start();
    let mut client = cluster.connect();
    client.run("CREATE DATABASE app");
    let mut app = cluster.connect_to("app");
    app.run("BEGIN; CREATE EXTENSION pg_queue; PREPARE TRANSACTION 'created'");
    app.run("COMMIT PREPARED 'created'");
    has_worker_within(AT_ONCE, &mut client, "app");
    app.run("BEGIN; DROP EXTENSION pg_queue; PREPARE TRANSACTION 'dropped'");
    app.run("COMMIT PREPARED 'dropped'");
    has_none(&mut client, "app");
    app.refused("COMMIT PREPARED 'nothing'", "42704");
}

#[test]
fn a_terminated_launcher_or_worker_is_replaced_and_the_launcher_finds_its_workers() {
    let (_cluster, mut client) = with_app(Cluster::new());
    let (pid, mut worker) = (launcher(&mut client).unwrap(), has_worker(&mut client, "app"));
    client.execute("SELECT pg_terminate_backend($1)", &[&pid]).unwrap();
    wait::until("there is another launcher", || launcher(&mut client).filter(|&new| new != pid));
    assert_eq!(has_worker(&mut client, "app"), worker);
    // At once, again and again.
    for _ in 0..5 {
        client.execute("SELECT pg_terminate_backend($1)", &[&worker]).unwrap();
        worker = has_another(&mut client, "app", worker);
    }
}

#[test]
fn a_cancel_does_not_end_an_idle_worker() {
    let (cluster, mut client) = with_app(Cluster::new());
    let (launching, working) = (launcher(&mut client).unwrap(), has_worker(&mut client, "app"));
    client.execute("SELECT pg_cancel_backend($1), pg_cancel_backend($2)", &[&launching, &working]).unwrap();
    // Both processes act on later events, so they have survived the cancel.
    drop(cluster.create_database("other"));
    has_worker(&mut client, "other");
    cluster.connect_to("app").run("DROP EXTENSION pg_queue");
    has_none(&mut client, "app");
    assert_eq!(launcher(&mut client), Some(launching));
    assert!(!cluster.log().contains("ERROR"), "{}", cluster.log());
}

#[test]
fn everything_is_back_after_a_crash() {
    let (cluster, mut client) = with_app(Cluster::new());
    cluster.crash(has_worker(&mut client, "app"));
    client = cluster.connect();
    has_worker(&mut client, "app");
    cluster.crash(launcher(&mut client).unwrap());
    client = cluster.connect();
    has_worker(&mut client, "app");
    cluster.restart_immediate();
    client = cluster.connect();
    has_worker(&mut client, "app");
    cluster.restart_killed();
    has_worker(&mut cluster.connect(), "app");
}

#[test]
fn a_stop_is_quick_and_orderly() {
    let (cluster, _client) = with_app(Cluster::new());
    let start = Instant::now();
    cluster.stop_fast();
    assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
    let log = cluster.log();
    assert!(log.contains("worker of database \"app\" has stopped\n"), "{log}");
    // The stop may have ended clients' sessions with Postgres's own messages.
    let is_ours = |line: &&str| line.contains("pg_queue") && (line.contains("FATAL") || line.contains("ERROR"));
    assert_eq!(log.lines().find(is_ours), None);
}

#[test]
fn each_database_has_its_own_worker() {
    let (cluster, mut client) = with_app(Cluster::new());
    drop(cluster.create_database("one"));
    drop(cluster.create_database("with 'quotes'"));
    client.run("CREATE DATABASE without");
    client.run("CREATE DATABASE copy TEMPLATE one");
    wait::until_true("all have their workers", || workers(&mut client) == ["app", "copy", "one", "with 'quotes'"]);
}

#[test]
fn a_database_that_takes_no_connections_has_no_worker() {
    let (cluster, mut client) = with_app(Cluster::new());
    client.run("ALTER DATABASE app IS_TEMPLATE true");
    has_none(&mut client, "app");
    client.run("ALTER DATABASE app IS_TEMPLATE false");
    has_worker_within(AT_ONCE, &mut client, "app");
    client.run("ALTER DATABASE app ALLOW_CONNECTIONS false");
    has_none(&mut client, "app");
    cluster.restart();
    client = cluster.connect();
    client.run("ALTER DATABASE app ALLOW_CONNECTIONS true");
    has_worker_within(AT_ONCE, &mut client, "app");
    assert!(!cluster.log().contains("FATAL:  database"), "{}", cluster.log());
}

#[test]
fn commands_that_need_a_database_alone_do_not_meet_its_worker() {
    let (_cluster, mut client) = with_app(Cluster::new());
    run_at_once(&mut client, "CREATE DATABASE copy TEMPLATE app");
    has_worker_within(AT_ONCE, &mut client, "app");
    has_worker_within(AT_ONCE, &mut client, "copy");

    run_at_once(&mut client, "ALTER DATABASE copy RENAME TO renamed");
    has_worker_within(AT_ONCE, &mut client, "renamed");

    client.run("SET allow_in_place_tablespaces = on");
    client.run("CREATE TABLESPACE elsewhere LOCATION ''");
    run_at_once(&mut client, "ALTER DATABASE renamed SET TABLESPACE elsewhere");
    has_worker_within(AT_ONCE, &mut client, "renamed");

    run_at_once(&mut client, "DROP DATABASE renamed");
    run_at_once(&mut client, "CREATE DATABASE renamed TEMPLATE app");
    has_worker_within(AT_ONCE, &mut client, "renamed");
    run_at_once(&mut client, "DROP DATABASE renamed WITH (FORCE)");
    assert_eq!(workers(&mut client), ["app"]);
}

#[test]
fn a_database_can_be_copied_from_within_and_by_two_sessions_together() {
    let (cluster, mut client) = with_app(Cluster::new());
    client.run("CREATE DATABASE other");
    let mut within = cluster.connect_to("app");
    run_at_once(&mut within, "CREATE DATABASE from_within TEMPLATE app");
    drop(within);
    let makers: Vec<_> = ["left", "right"]
        .into_iter()
        .map(|name| {
            let mut client = cluster.connect_to("other");
            std::thread::spawn(move || run_at_once(&mut client, &format!("CREATE DATABASE \"{name}\" TEMPLATE app")))
        })
        .collect();
    makers.into_iter().for_each(|maker| maker.join().unwrap());
    for name in ["app", "from_within", "left", "right"] {
        has_worker_within(AT_ONCE, &mut client, name);
    }
}

#[test]
fn the_worker_comes_back_when_a_command_that_ended_it_fails() {
    let (cluster, mut client) = with_app(Cluster::new());
    let first = has_worker(&mut client, "app");
    // Postgres waits 5 s for this session, as for any other, and gives up.
    let other = cluster.connect_to("app");
    client.refused("DROP DATABASE app", "55006");
    drop(other);
    let second = has_another(&mut client, "app", first);

    // This time the worker itself does not end.
    cluster.signal("STOP", second);
    client.run("SET statement_timeout = '500ms'");
    client.refused("DROP DATABASE app", "57014");
    cluster.signal("CONT", second);
    has_another(&mut client, "app", second);
}

#[test]
fn commands_that_cannot_succeed_leave_the_worker_alone() {
    let (cluster, mut client) = with_app(Cluster::new());
    let pid = has_worker(&mut client, "app");
    client.run("CREATE ROLE nobody LOGIN; CREATE ROLE maker LOGIN CREATEDB");
    let commands = [
        "DROP DATABASE app",
        "DROP DATABASE app WITH (FORCE)",
        "ALTER DATABASE app RENAME TO mine",
        "ALTER DATABASE app SET TABLESPACE pg_default",
        "ALTER DATABASE app SET work_mem = '1MB'",
        "CREATE DATABASE mine TEMPLATE app",
    ];
    for user in ["nobody", "maker"] {
        let mut client = cluster.config().user(user).connect(NoTls).unwrap();
        for command in commands {
            client.refused(command, "42501");
        }
    }
    client.refused("BEGIN; DROP DATABASE app", "25001");
    client.run("ROLLBACK");
    cluster.connect_to("app").refused("DROP DATABASE app", "55006");
    assert_eq!(worker(&mut client, "app"), Some(pid));
    assert_eq!(starts_logged(&cluster, "app"), 1);
}

#[test]
fn a_database_is_left_alone_as_long_as_the_transaction_that_renames_it() {
    let (cluster, mut client) = with_app(Cluster::new());
    client.run("BEGIN; ALTER DATABASE app RENAME TO renamed");
    assert_eq!(workers(&mut client), [""; 0]);
    drop(cluster.create_database("other"));
    let mut watcher = cluster.connect();
    has_worker(&mut watcher, "other");
    assert_eq!(workers(&mut watcher), ["other"]);
    client.run("ROLLBACK");
    has_worker_within(AT_ONCE, &mut client, "app");
    client.run("BEGIN; ALTER DATABASE app RENAME TO renamed; COMMIT");
    has_worker_within(AT_ONCE, &mut client, "renamed");
}

#[test]
fn settings_of_the_database_reach_its_worker() {
    let (cluster, mut client) = with_app(Cluster::new());
    let first = has_worker(&mut client, "app");
    client.run("ALTER DATABASE app SET pg_queue.worker = off");
    let second = has_another(&mut client, "app", first);
    // Without duties the worker still watches its database.
    cluster.connect_to("app").run("DROP EXTENSION pg_queue");
    has_none(&mut client, "app");
    cluster.connect_to("app").run("CREATE EXTENSION pg_queue");
    let third = has_another(&mut client, "app", second);
    cluster.reload();
    assert_eq!(worker(&mut client, "app"), Some(third));
}

#[test]
fn too_few_worker_slots_are_reported_once_and_shared() {
    // The launchers of pg_queue and of logical replication take two of the slots.
    let cluster = Cluster::new().conf("max_worker_processes = 4").start();
    let mut client = cluster.connect();
    for name in ["one", "two", "three"] {
        drop(cluster.create_database(name));
    }
    wait::until_true("the log tells that there are too few", || cluster.log().contains("max_worker_processes"));
    let served = wait::until("two have a worker", || Some(workers(&mut client)).filter(|all| all.len() == 2));
    let left_out = ["one", "two", "three"].into_iter().find(|name| !served.iter().any(|with| with == name)).unwrap();
    assert!(cluster.log().contains(&format!("could not start the pg_queue worker of database \"{left_out}\"")));

    cluster.connect_to(&served[0]).run("DROP EXTENSION pg_queue");
    has_worker_within(AT_ONCE, &mut client, left_out);
    assert_eq!(cluster.log().matches("could not start the pg_queue worker").count(), 1);
}

#[test]
fn an_idle_worker_leaves_no_trace() {
    // The settings make sure that nothing else writes: no snapshots for standbys, no autovacuum.
    let (cluster, mut client) =
        with_app(Cluster::with(&["wal_level = minimal", "max_wal_senders = 0", "autovacuum = off"]));
    let pids = [has_worker(&mut client, "app"), launcher(&mut client).unwrap()];
    client.run("CHECKPOINT");
    let mut traces = || {
        let sql = "SELECT pg_current_wal_insert_lsn()::text, pg_snapshot_xmax(pg_current_snapshot())::text";
        let row = client.query_one(sql, &[]).unwrap();
        (row.get::<_, String>(0), row.get::<_, String>(1), cluster.log(), pids.map(wake_ups))
    };
    // The processes may still be about to fall asleep.
    let before = wait::until("nothing moves for a moment", || {
        let before = traces();
        std::thread::sleep(Duration::from_secs(1));
        (traces() == before).then_some(before)
    });
    // Nothing may happen during this time.
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(traces(), before);
}

/// Returns how often a process has gone to sleep. 0 if the system does not report it.
fn wake_ups(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

#[test]
fn a_standby_is_silent_until_it_is_promoted() {
    let (primary, _client) = with_app(Cluster::new());
    let standby = primary.standby();
    let mut client = standby.connect();
    assert_eq!((launcher(&mut client), workers(&mut client)), (None, Vec::new()));
    assert!(!standby.log().contains("pg_queue worker"), "{}", standby.log());
    primary.stop_immediate();
    standby.promote();
    has_worker(&mut client, "app");
}

#[test]
fn errors_pass_through_the_hooks_unchanged() {
    let cluster = Cluster::new().start();
    let sql = "DO $$ BEGIN RAISE 'm' USING ERRCODE = 'QJ001', DETAIL = 'd', HINT = 'h'; END $$";
    let error = cluster.connect().batch_execute(sql).unwrap_err();
    let parts = (error::code(&error), error::message(&error), error::detail(&error), error::hint(&error));
    assert_eq!(parts, ("QJ001", "m", Some("d"), Some("h")));
    assert!(error.as_db_error().unwrap().where_().is_some(), "{error:?}");
}
