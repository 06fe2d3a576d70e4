//! `queue.doctor()` finds each real problem, names its cause, and reports ok when the problem is over.

use crate::shared::*;

const CHECKS: [&str; 28] = [
    "library",
    "launcher",
    "worker",
    "worker_slots",
    "executors",
    "restore",
    "triggers",
    "tables",
    "memory",
    "segments",
    "consistency",
    "leases",
    "schedules",
    "time_zones",
    "unclaimed",
    "expiring",
    "dead",
    "held",
    "topics",
    "copies",
    "prepared",
    "xmin_horizon",
    "autovacuum",
    "wraparound",
    "jit",
    "roles",
    "cluster",
    "bridge",
];

/// The row of a check.
#[derive(Debug)]
pub struct Finding {
    pub name: String,
    pub is_ok: bool,
    pub detail: String,
    pub hint: Option<String>,
}

fn findings(client: &mut Client) -> Vec<Finding> {
    let rows = client.query("SELECT name, ok, detail, hint FROM queue.doctor()", &[]).unwrap();
    let found: Vec<Finding> = rows
        .iter()
        .map(|row| Finding { name: row.get(0), is_ok: row.get(1), detail: row.get(2), hint: row.get(3) })
        .collect();
    assert_eq!(found.iter().map(|f| f.name.as_str()).collect::<Vec<_>>(), CHECKS);
    for finding in &found {
        assert!(!finding.detail.is_empty() && (!finding.is_ok || finding.hint.is_none()), "{finding:?}");
    }
    found
}

pub fn finding(client: &mut Client, name: &str) -> Finding {
    findings(client).into_iter().find(|f| f.name == name).unwrap()
}

/// Waits until the check reports a problem with these words. Returns its hint.
#[track_caller]
pub fn until_ill(client: &mut Client, name: &str, words: &[&str]) -> String {
    let found = wait_for(client, name, |found| !found.is_ok && words.iter().all(|word| found.detail.contains(word)));
    found.hint.unwrap_or_else(|| panic!("{name} has no hint: {}", found.detail))
}

#[track_caller]
pub fn until_well(client: &mut Client, name: &str) {
    wait_for(client, name, |found| found.is_ok);
}

#[track_caller]
fn wait_for(client: &mut Client, name: &str, is_it: impl Fn(&Finding) -> bool) -> Finding {
    let deadline = Instant::now() + wait::DEFAULT_LIMIT;
    loop {
        let found = finding(client, name);
        if is_it(&found) {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain; it says {found:?}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// Makes a session report within a second what other sessions report after minutes.
pub fn impatient(mut client: Client) -> Client {
    client.run("SET pg_queue.patience = '1s'");
    client
}

#[test]
fn all_is_well_on_a_fresh_server() {
    let (_cluster, mut client) = Cluster::new().start_with_database("app");
    wait::until_true("all is well", || findings(&mut client).iter().all(|f| f.is_ok));
    create(&mut client, "q", "");
    client.run("SELECT count(*) FROM queue.enqueue_many('q', array_fill('1'::jsonb, '{1000}'))");
    client.run("SELECT queue.complete(id) FROM queue.claim('q', 100)");
    let ill: Vec<Finding> = findings(&mut client).into_iter().filter(|f| !f.is_ok).collect();
    assert!(ill.is_empty(), "{ill:?}");
}

#[test]
fn doctor_leaves_nothing_behind_in_any_transaction() {
    let database = Database::new();
    let mut client = database.connect();
    for begin in [
        "BEGIN",
        "BEGIN READ ONLY",
        "BEGIN ISOLATION LEVEL REPEATABLE READ",
        "BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE",
    ] {
        client.run(begin);
        findings(&mut client);
        let locks: i64 = client.value(
            "SELECT count(*) FROM pg_locks AS l JOIN pg_class AS c ON c.oid = l.relation
             WHERE l.pid = pg_backend_pid() AND c.relnamespace = 'queue_internal'::regnamespace",
        );
        assert_eq!(locks, 0, "{begin}");
        assert!(client.value::<Option<String>>("SELECT pg_current_xact_id_if_assigned()::text").is_none(), "{begin}");
        assert_eq!(client.value::<String>("SHOW lock_timeout"), "0");
        client.run("COMMIT");
    }
    // The caller's search_path does not matter.
    client.run(
        "CREATE SCHEMA trap; CREATE FUNCTION trap.format(text,
            VARIADIC text[]) RETURNS text LANGUAGE sql AS 'SELECT 1/0';
         CREATE VIEW trap.pg_locks AS SELECT 1/0 AS pid; SET search_path = trap, pg_catalog",
    );
    findings(&mut client);
}

#[test]
fn the_doctor_reports_a_library_that_is_not_preloaded_or_has_another_version() {
    let (cluster, mut client) = Cluster::new().start_with_database("app");
    for (version, advice) in [("0.1.9", "ALTER EXTENSION pg_queue UPDATE"), ("99.0.0", "Install the library")] {
        client.run(&format!("UPDATE pg_extension SET extversion = '{version}' WHERE extname = 'pg_queue'"));
        let hint = until_ill(&mut client, "library", &[version]);
        assert!(hint.contains(advice), "{hint}");
    }
    let version: String = client.value("SHOW pg_queue.library_version");
    client.run(&format!("UPDATE pg_extension SET extversion = '{version}' WHERE extname = 'pg_queue'"));
    until_well(&mut client, "library");
    drop(client);

    cluster.append_conf("shared_preload_libraries = ''");
    cluster.restart();
    let mut client = cluster.connect_to("app");
    let hint = until_ill(&mut client, "library", &["not in shared_preload_libraries"]);
    assert!(hint.contains("shared_preload_libraries = 'pg_queue'"), "{hint}");
    // Checks that need no memory still run.
    assert!(finding(&mut client, "autovacuum").is_ok && !finding(&mut client, "worker").is_ok);
    drop(client);
    cluster.append_conf("shared_preload_libraries = 'pg_queue'");
    cluster.restart();
    let mut client = cluster.connect_to("app");
    until_well(&mut client, "library");
    until_well(&mut client, "worker");
}

#[test]
fn the_doctor_reports_a_missing_launcher() {
    let (_cluster, mut client) = Cluster::new().start_with_database("app");
    until_well(&mut client, "launcher");
    // The postmaster starts it again after a second.
    client.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'pg_queue launcher'");
    until_ill(&mut client, "launcher", &["No launcher"]);
    until_well(&mut client, "launcher");
}

#[test]
fn the_doctor_reports_a_worker_that_is_off_stuck_or_failing() {
    let cluster = Cluster::new().start();
    let mut client = impatient(cluster.create_database("app"));
    create(&mut client, "q", "");
    until_well(&mut client, "worker");

    client.switch_worker_off();
    let hint = until_ill(&mut client, "worker", &["pg_queue.worker is off"]);
    assert!(hint.contains("RESET pg_queue.worker"), "{hint}");
    client.run("ALTER DATABASE app RESET pg_queue.worker");
    until_well(&mut client, "worker");

    let pid: i32 = client.value("SELECT pid FROM pg_stat_activity WHERE backend_type = 'pg_queue worker'");
    // With these jobs the worker always has something to do soon.
    client.run("SELECT queue.enqueue('q', delay => make_interval(secs => n)) FROM generate_series(0.5, 60, 0.5) AS n");
    cluster.signal("STOP", pid);
    until_ill(&mut client, "worker", &[&pid.to_string(), "silent"]);
    cluster.signal("CONT", pid);
    until_well(&mut client, "worker");

    // The worker gives up on a lock after two seconds, so its duty fails. The test's own session waits longer.
    let mut other = cluster.connect_to("app");
    other.run("BEGIN; LOCK TABLE queue_internal.attempt_0");
    client.run("SET lock_timeout = '1min'");
    wait::until_true("checks say what they cannot see", || {
        let found = findings(&mut client);
        found.iter().any(|f| !f.is_ok && f.detail.contains("lock timeout"))
    });
    until_ill(&mut client, "worker", &["Its duty", "fails"]);
    other.run("ROLLBACK");
    until_well(&mut client, "worker");
    assert!(findings(&mut client).iter().all(|f| !f.detail.contains("lock timeout")));
}

#[test]
fn the_doctor_reports_a_database_without_a_slot_for_its_worker() {
    // The launchers of pg_queue and of logical replication take one slot each.
    let (cluster, mut first) = Cluster::new().conf("max_worker_processes = 3").start_with_database("first");
    until_well(&mut first, "worker");
    until_well(&mut first, "worker_slots");
    let mut second = cluster.create_database("second");
    let hint = until_ill(&mut first, "worker_slots", &["\"second\""]);
    assert!(hint.contains("max_worker_processes"), "{hint}");
    until_ill(&mut second, "worker", &["no free slot"]);
    first.run("DROP EXTENSION pg_queue");
    until_well(&mut second, "worker_slots");
    until_well(&mut second, "worker");
}

#[test]
fn the_doctor_reports_tables_that_were_written_by_sql() {
    let database = Database::new();
    let mut client = database.connect();
    let mut other = database.connect();
    create(&mut other, "q", "");
    other.run("BEGIN; UPDATE queue_internal.lane SET stage = stage");
    until_ill(&mut client, "restore", &["dormant", "1 such transactions are open"]);
    other.run("COMMIT");
    let hint = until_ill(&mut client, "restore", &["dormant", &other.pid().to_string(), "0 such transactions"]);
    assert!(hint.contains("queue.adopt()"), "{hint}");
    client.run("SELECT queue.adopt()");
    until_well(&mut client, "restore");
}

#[test]
fn the_doctor_reports_nearly_full_memory() {
    let settings =
        ["pg_queue.max_running = 10", "pg_queue.max_keys = 10", "pg_queue.max_lanes = 2", "pg_queue.max_databases = 2"];
    let (cluster, mut client) = Cluster::with(&settings).start_with_database("app");
    create(&mut client, "q", "");
    until_well(&mut client, "memory");
    client.run("SELECT FROM queue.enqueue_many('q', array_fill('1'::jsonb, '{9}'))");
    client.run("SELECT FROM queue.claim('q', 8)");
    until_well(&mut client, "memory");
    let ninth = client.claim("q");
    let hint = until_ill(
        &mut client,
        "memory",
        &["9 of 10 (pg_queue.max_running)", "\"app\" uses the most of them: 9", "\"q\" has 9 running"],
    );
    assert!(hint.contains("restart"), "{hint}");
    client.run(&format!("SELECT queue.complete({ninth})"));
    until_well(&mut client, "memory");

    let mut other = cluster.connect_to("app");
    other.run("BEGIN; SELECT queue.enqueue('q', unique_key => n::text) FROM generate_series(1, 9) AS n");
    until_ill(
        &mut client,
        "memory",
        &["9 of 10 (pg_queue.max_keys)", "\"app\" uses the most of them: 9", "\"q\" has 9 unique keys"],
    );
    other.run("ROLLBACK");
    until_well(&mut client, "memory");

    let mut second = cluster.create_database("second");
    until_ill(&mut client, "memory", &["2 of 2 (pg_queue.max_databases)"]);
    second.run("DROP EXTENSION pg_queue");
    until_well(&mut client, "memory");

    create(&mut client, "r", "");
    client.run("SELECT queue.enqueue('r')");
    client.claim("r");
    until_ill(&mut client, "memory", &["2 of 2 (pg_queue.max_lanes)"]);
    client.run("SELECT queue.drop('r', force => true)");
    until_well(&mut client, "memory");
}

/// Fills the open segment and waits until another one is open.
fn turn(client: &mut Client) {
    assert!(turns(client), "the ring is full");
}

/// Does what `turn` does, but returns false if no segment is free.
fn turns(client: &mut Client) -> bool {
    const OPEN: &str = "SELECT max(generation) FROM queue_internal.segment_log WHERE state = 'o' AND segment < 8";
    let before: i64 = client.value(OPEN);
    client.pass_through("q", 1000);
    wait::until("the ring turns, or is full", || {
        if client.value::<i64>(OPEN) > before {
            return Some(true);
        }
        finding(client, "segments").detail.contains("No segment was free").then_some(false)
    })
}

#[test]
fn the_doctor_names_sessions_that_hold_up_segments() {
    let settings = ["pg_queue.segment_rows = 1000", "pg_queue.segment_age = '1s'", "pg_queue.reclaim_delay = 0"];
    let cluster = Cluster::with(&settings).start();
    let mut client = impatient(cluster.create_database("app"));
    create(&mut client, "q", "retention => '0'");
    let mut other = cluster.connect_to("app");
    let pid = other.pid().to_string();

    // A session reads a segment.
    other.run("BEGIN; SELECT FROM queue_internal.claim_0 LIMIT 1");
    turn(&mut client);
    let words = ["Segment 0", "waiting to be emptied", &pid, "SELECT FROM queue_internal.claim_0"];
    until_ill(&mut client, "segments", &words);
    other.run("COMMIT");
    until_well(&mut client, "segments");

    // A session holds a lock as a dump does.
    other.run("BEGIN; LOCK TABLE pg_extension IN ACCESS SHARE MODE");
    turn(&mut client);
    until_ill(&mut client, "segments", &["waiting to be emptied", &pid, "LOCK TABLE pg_extension"]);
    other.run("COMMIT");
    until_well(&mut client, "segments");

    // A session locks history.
    client.run("SELECT queue.alter('q', retention => '1 day')");
    other.run("BEGIN; LOCK TABLE queue_internal.history IN SHARE MODE");
    turn(&mut client);
    until_ill(&mut client, "segments", &["copied to history", &pid]);
    other.run("COMMIT");
    until_well(&mut client, "segments");
    client.run("SELECT queue.alter('q', retention => '0')");

    // An open transaction has enqueued into all segments.
    other.run("BEGIN");
    // The number of turns depends on how often the ring turns by itself.
    loop {
        other.run("SELECT queue.enqueue('q', delay => '1 second')");
        if !turns(&mut client) {
            break;
        }
    }
    until_ill(&mut client, "segments", &["No segment was free", &pid]);
    other.run("ROLLBACK");
    until_well(&mut client, "segments");

    cluster.append_conf("pg_queue.reclaim = off");
    cluster.reload();
    until_ill(&mut client, "segments", &["pg_queue.reclaim is off"]);
    cluster.append_conf("pg_queue.reclaim = on");
    cluster.reload();
    until_well(&mut client, "segments");
}

#[test]
fn the_doctor_reports_overdue_leases_and_schedules() {
    let database = Database::without_worker();
    let mut client = impatient(database.connect());
    create(&mut client, "q", "");
    client.run("SELECT FROM queue.maintain()");
    client.run("SELECT queue.enqueue('q')");
    client.run("SELECT FROM queue.claim('q', lease => '1 ms')");
    client.run("SELECT queue.schedule('nightly', 'q', every => '500 ms')");
    until_ill(&mut client, "leases", &["1 leases have expired"]);
    until_ill(&mut client, "schedules", &["\"nightly\" is late"]);
    client.run("SELECT FROM queue.maintain()");
    assert!(finding(&mut client, "leases").is_ok && finding(&mut client, "schedules").is_ok);
    client.run("SELECT queue.pause_schedule('nightly')");
    until_well(&mut client, "schedules");
}

#[test]
fn the_doctor_reports_transactions_that_stay_open() {
    let cluster = Cluster::with(&["wal_level = logical", "max_prepared_transactions = 2"]).start();
    let mut client = impatient(cluster.create_database("app"));
    create(&mut client, "q", "");
    until_well(&mut client, "prepared");
    until_well(&mut client, "xmin_horizon");

    client.run("SELECT pg_create_logical_replication_slot('left_over', 'pgoutput')");
    until_ill(&mut client, "xmin_horizon", &["slot left_over"]);
    client.run("SELECT pg_drop_replication_slot('left_over')");
    until_well(&mut client, "xmin_horizon");

    let mut other = cluster.connect_to("app");
    other.run("BEGIN; SELECT queue.enqueue('q'); PREPARE TRANSACTION 'forgotten'");
    let hint = until_ill(&mut client, "prepared", &["'forgotten' of postgres holds jobs"]);
    assert!(hint.contains("ROLLBACK PREPARED"), "{hint}");
    // The transactions stay open for more than twelve times the patience.
    other.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT");
    let pid = format!("Process {} of postgres", other.pid());
    let mut visitor = visitor(&cluster, &mut client);
    wait::until_true("both are found", || {
        let found = finding(&mut client, "xmin_horizon");
        found.detail.contains(&pid) && found.detail.contains("'forgotten'")
    });
    let hint = until_ill(&mut client, "xmin_horizon", &[]);
    assert!(hint.contains("The queues are not affected"), "{hint}");
    until_ill(&mut visitor, "xmin_horizon", &["'forgotten'", "pg_read_all_stats"]);
    client.run("COMMIT PREPARED 'forgotten'");
    until_well(&mut client, "prepared");
    other.run("COMMIT");
    until_well(&mut client, "xmin_horizon");
}

/// Connects as a role that may only observe.
fn visitor(cluster: &Cluster, client: &mut Client) -> Client {
    client.run("CREATE ROLE visitor LOGIN; SELECT queue.grant('*', 'visitor', 'observe')");
    impatient(cluster.connect_as("app", "visitor"))
}

#[test]
fn the_doctor_reports_roles_that_do_not_exist_any_more() {
    let (_cluster, mut client) = Cluster::new().start_with_database("app");
    client.run("SELECT queue.create('q'); CREATE ROLE leaver; SELECT queue.grant('q', 'leaver', 'consume')");
    assert!(finding(&mut client, "roles").is_ok);
    client.run("ALTER ROLE leaver RENAME TO someone");
    let found = finding(&mut client, "roles");
    assert_eq!((found.is_ok, found.detail.as_str()), (false, "There is no role \"leaver\"."));
    client.run("SELECT queue.revoke('q', 'leaver', 'consume')");
    assert!(finding(&mut client, "roles").is_ok);
}

#[test]
fn a_role_with_observe_sees_nearly_all_checks() {
    let (cluster, mut client) = Cluster::new().start_with_database("app");
    wait::until_true("all is well", || findings(&mut client).iter().all(|f| f.is_ok));
    let mut visitor = visitor(&cluster, &mut client);
    let found = findings(&mut visitor);
    let ill: Vec<_> = found.iter().filter(|f| !f.is_ok).collect();
    assert!(ill.is_empty(), "{ill:?}");
    let blind: Vec<_> = found.iter().filter(|f| f.detail.contains("pg_read_all_stats")).map(|f| &f.name).collect();
    assert_eq!(blind, ["xmin_horizon"]);
    client.run("GRANT pg_monitor TO visitor");
    assert!(findings(&mut visitor).iter().all(|f| !f.detail.contains("pg_read_all_stats")));
}

#[test]
fn the_doctor_reports_changed_storage_settings() {
    let database = Database::new();
    let mut client = database.connect();
    until_well(&mut client, "autovacuum");
    client.run("ALTER TABLE queue_internal.note_3 RESET (autovacuum_enabled)");
    client.run("ALTER TABLE queue_internal.queue SET (autovacuum_enabled = false)");
    until_ill(&mut client, "autovacuum", &["is on for queue_internal.note_3", "is off for queue_internal.queue"]);
    client.run("ALTER TABLE queue_internal.note_3 SET (autovacuum_enabled = off)");
    client.run("ALTER TABLE queue_internal.queue RESET (autovacuum_enabled)");
    until_well(&mut client, "autovacuum");
}

#[test]
fn the_doctor_reports_a_server_without_autovacuum_and_old_rows() {
    let (cluster, mut client) =
        Cluster::with(&["autovacuum = off", "autovacuum_freeze_max_age = 100000"]).start_with_database("app");
    until_ill(&mut client, "autovacuum", &["switched off"]);
    until_well(&mut client, "wraparound");
    // An automatic vacuum cannot help while this transaction is open.
    let mut other = cluster.connect_to("app");
    other.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT");
    client.run("CREATE TEMP TABLE t (n integer)");
    client.run(
        "DO $$ BEGIN FOR n IN 1..210000 LOOP BEGIN INSERT INTO t VALUES (n); EXCEPTION WHEN division_by_zero THEN END;
             IF n % 10000 = 0 THEN COMMIT; END IF; END LOOP; END $$",
    );
    until_ill(&mut client, "wraparound", &["The oldest row of queue_internal.", "transactions ago"]);
    other.run("COMMIT");
    client.run("VACUUM (FREEZE)");
    until_well(&mut client, "wraparound");
    cluster.append_conf("autovacuum = on");
    cluster.reload();
    until_well(&mut client, "autovacuum");
}

#[test]
fn the_doctor_reports_settings_under_which_plans_are_compiled() {
    let mut client = server().connect_to("app");
    until_well(&mut client, "jit");
    client.run("SET jit_above_cost = 100");
    // A server without LLVM never compiles plans.
    if !client.value::<bool>("SELECT pg_jit_available()") {
        return assert!(finding(&mut client, "jit").is_ok);
    }
    let hint = until_ill(&mut client, "jit", &["is compiled"]);
    assert!(hint.contains("SET jit = off"), "{hint}");
    client.run("SET jit = off");
    until_well(&mut client, "jit");
}

#[test]
fn the_doctor_works_on_a_standby() {
    let (cluster, mut client) = Cluster::new().start_with_database("app");
    create(&mut client, "q", "");
    client.run("SELECT queue.enqueue('q')");
    wait::until_true("all is well", || findings(&mut client).iter().all(|f| f.is_ok));
    let standby = cluster.standby();
    standby.wait_replayed(&cluster);
    let mut client = standby.connect_to("app");
    let ill: Vec<Finding> = findings(&mut client).into_iter().filter(|f| !f.is_ok).collect();
    assert!(ill.is_empty(), "{ill:?}");
    standby.promote();
    until_well(&mut client, "launcher");
    until_well(&mut client, "worker");
}
