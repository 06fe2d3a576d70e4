//! An administrator changes roles, databases and the server while commands run.

use crate::shared::*;
use crate::sql_jobs::commands::{ended, enqueue_as};

/// Starts a server with a queue of commands, roles that write them, and a table in which each run records its role.
fn bed(cluster: Cluster, roles: &[&str]) -> (Cluster, Client) {
    let (cluster, mut client) = cluster.start_with_database("app");
    client.run("CREATE TABLE ran (what text, who text DEFAULT current_user); GRANT ALL ON ran TO public");
    create(&mut client, "sql", "executor => 'sql', backoff_base => '0', max_attempts => 3");
    for role in roles {
        client.run(&format!("CREATE ROLE {role} LOGIN; SELECT queue.grant('sql', '{role}', 'manage')"));
    }
    (cluster, client)
}

fn note(client: &mut Client, role: &str, what: &str) -> i64 {
    enqueue_as(client, role, &format!("INSERT INTO ran VALUES ('{what}')"), "")
}

fn running(client: &mut Client, job: i64) -> i32 {
    wait::until("it runs", || {
        client
            .column(&format!("SELECT pid FROM queue.executors WHERE state = 'running' AND job_id = {job}"))
            .first()
            .copied()
    })
}

#[test]
fn a_role_that_cannot_connect_holds_up_no_other_role() {
    let (cluster, mut client) = bed(Cluster::new(), &["poor", "rich"]);
    // The other role already has a process.
    let warm = note(&mut client, "rich", "warm");
    ended(&mut client, warm);
    client.run("SELECT queue.pause('sql')");
    let first = note(&mut client, "poor", "poor");
    let second = note(&mut client, "rich", "rich");
    let fault = cluster.fault("executor.came", "error");
    client.run("SELECT queue.resume('sql')");
    fault.wait_reached();
    fault.release();
    let fault = cluster.fault("executor.came", "error");
    assert_eq!(ended(&mut client, second).0, "completed", "it stands behind that of the other role");
    assert_eq!(client.count("SELECT FROM ran WHERE who = 'poor'"), 0);
    client.run("SET pg_queue.patience = 1");
    wait::until_true("the doctor says so", || {
        let sql = "SELECT FROM queue.doctor() WHERE name = 'executors' AND NOT ok AND detail LIKE '%\"poor\"%'";
        client.count(sql) == 1
    });
    let failures = "SELECT value FROM queue.metrics() WHERE name = 'pg_queue_executor_start_failures_total'";
    assert!(client.value::<f64>(failures) > 0.0);
    fault.release();
    assert_eq!(ended(&mut client, first).0, "completed");
    assert_eq!(client.value::<i32>(&format!("SELECT attempt FROM queue.job({first})")), 1, "nothing of it counts");
    assert_eq!(client.count("SELECT FROM queue.doctor() WHERE name = 'executors' AND NOT ok"), 0);
}

#[test]
fn a_role_that_may_not_connect_any_more_runs_nothing_more() {
    let (_cluster, mut client) = bed(Cluster::new(), &["a", "b"]);
    client.run("REVOKE CONNECT ON DATABASE app FROM public; GRANT CONNECT ON DATABASE app TO a, b");
    let mut gate = _cluster.connect_to("app");
    gate.run("SELECT pg_advisory_lock(1)");
    let first = enqueue_as(&mut client, "a", "SELECT pg_advisory_xact_lock(1); INSERT INTO ran VALUES ('first')", "");
    running(&mut client, first);
    let second = note(&mut client, "a", "second");
    client.run("REVOKE CONNECT ON DATABASE app FROM a");
    gate.run("SELECT pg_advisory_unlock(1)");
    let (state, _, error) = ended(&mut client, first);
    assert_eq!(state, "completed", "a session that is there goes on: {error}");
    // The second job may have been claimed earlier.
    ended(&mut client, second);
    let third = {
        client.run("GRANT CONNECT ON DATABASE app TO a; SELECT queue.pause('sql')");
        let third = note(&mut client, "a", "third");
        client.run("REVOKE CONNECT ON DATABASE app FROM a; SELECT queue.resume('sql')");
        third
    };
    let fourth = note(&mut client, "b", "fourth");
    let (state, _, error) = ended(&mut client, third);
    assert_eq!(state, "dead");
    assert!(error.starts_with("42501: role \"a\" may not connect to this database"), "{error}");
    assert_eq!(ended(&mut client, fourth).0, "completed");
    client.run("SET ROLE a");
    assert_eq!(client.failure("SELECT queue.enqueue_sql('sql', 'SELECT 1')").code, "42501", "told at the enqueue");
}

#[test]
fn a_role_can_be_dropped_while_its_job_runs() {
    let (_cluster, mut client) = bed(Cluster::new(), &["a", "b"]);
    let first = enqueue_as(&mut client, "a", "SELECT pg_sleep(600)", "");
    let pid = running(&mut client, first);
    client.run("SELECT queue.pause('sql')");
    let second = note(&mut client, "a", "second");
    client.run("DROP OWNED BY a; DROP ROLE a; SELECT queue.resume('sql')");
    let third = note(&mut client, "b", "third");
    assert_eq!(ended(&mut client, third).0, "completed");
    let (state, _, error) = ended(&mut client, second);
    assert_eq!(state, "dead");
    assert!(error.starts_with("42704: role \"a\" does not exist"), "{error}");
    client.run(&format!("SELECT queue.cancel({first})"));
    wait::until_true("it is cancelled", || client.state(first) == "cancelled");
    wait::until_true("its process has left", || {
        client.count(&format!("SELECT FROM pg_stat_activity WHERE pid = {pid}")) == 0
    });
}

#[test]
fn a_database_that_allows_no_connections_keeps_its_jobs() {
    let (cluster, mut client) = bed(Cluster::new(), &["a"]);
    let mut other = cluster.connect();
    other.run("ALTER DATABASE app ALLOW_CONNECTIONS false");
    let job = note(&mut client, "a", "waited");
    wait::until_true("the worker has left", || {
        client.count("SELECT FROM pg_stat_activity WHERE backend_type = 'pg_queue worker'") == 0
    });
    assert_eq!(client.state(job), "ready");
    other.run("ALTER DATABASE app ALLOW_CONNECTIONS true");
    assert_eq!(ended(&mut client, job).0, "completed");
    assert_eq!(client.value::<i32>(&format!("SELECT attempt FROM queue.job({job})")), 1);
}

#[test]
fn settings_of_a_role_cannot_keep_the_process_from_its_work() {
    let (_cluster, mut client) = bed(Cluster::new(), &["a"]);
    client.run(
        "ALTER ROLE a SET idle_in_transaction_session_timeout = 1; ALTER ROLE a SET lock_timeout = 1;
         ALTER ROLE a SET default_transaction_isolation = 'serializable'; ALTER ROLE a SET synchronous_commit = off;
         ALTER ROLE a SET client_min_messages = error; ALTER ROLE a SET row_security = off;
         ALTER ROLE a SET datestyle = 'German';
         ALTER ROLE a SET bytea_output = escape; ALTER ROLE a SET quote_all_identifiers = on",
    );
    // Since PostgreSQL 19 this setting cannot be switched off.
    if client.value::<i32>("SELECT current_setting('server_version_num')::integer") < 190_000 {
        client.run("ALTER ROLE a SET standard_conforming_strings = off");
    }
    for n in 0..3 {
        let job = note(&mut client, "a", &n.to_string());
        let (state, _, error) = ended(&mut client, job);
        assert_eq!(state, "completed", "{error}");
    }
    // A read-only command runs. Recording its outcome is no write of the command.
    client.run("ALTER ROLE a SET default_transaction_read_only = on");
    wait::until_true("no process is left", || client.count("SELECT FROM queue.executors") == 0);
    let reads = enqueue_as(&mut client, "a", "SELECT 1", "");
    let (state, _, error) = ended(&mut client, reads);
    assert_eq!(state, "completed", "{error}");
    let writes = note(&mut client, "a", "writes");
    let (state, _, error) = ended(&mut client, writes);
    assert_eq!(state, "dead");
    assert!(error.starts_with("25006: "), "{error}");
    client.run("ALTER ROLE a RESET ALL; ALTER ROLE a SET statement_timeout = 50");
    wait::until_true("no process is left", || client.count("SELECT FROM queue.executors") == 0);
    let slow = enqueue_as(&mut client, "a", "SELECT pg_sleep(600)", "");
    assert!(ended(&mut client, slow).2.starts_with("57014: "));
    let quick = note(&mut client, "a", "quick");
    assert_eq!(ended(&mut client, quick).0, "completed");
}

#[test]
fn without_executors_jobs_wait_until_there_are_some() {
    let (cluster, mut client) = bed(Cluster::new().conf("pg_queue.max_executors = 0"), &["a"]);
    let job = note(&mut client, "a", "waited");
    let sql = "SELECT FROM queue.doctor() WHERE name = 'executors' AND NOT ok AND hint LIKE '%pg_queue.max_executors%'";
    assert_eq!(client.count(sql), 1);
    assert_eq!(client.state(job), "ready");
    cluster.append_conf("pg_queue.max_executors = 1");
    cluster.reload();
    assert_eq!(client.state(job), "ready", "that takes a start");
    drop(client);
    cluster.restart();
    let mut client = cluster.connect_to("app");
    assert_eq!(ended(&mut client, job).0, "completed");
    assert_eq!(client.count(sql), 0);
}

#[test]
fn a_command_that_ends_its_own_process_dies_of_it() {
    let (_cluster, mut client) = bed(Cluster::new(), &["a"]);
    // The cases run one after the other. The last one ends all processes of its role. Its request takes effect when the
    // process next checks.
    for (command, code) in [
        ("SELECT pg_terminate_backend(pg_backend_pid()), pg_sleep(600)", "57P01"),
        ("SELECT pg_cancel_backend(pg_backend_pid()), pg_sleep(600)", "57014"),
        (
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = 'a'; SELECT pg_sleep(600)",
            "57P01",
        ),
    ] {
        let job = enqueue_as(&mut client, "a", command, "");
        let (state, _, error) = ended(&mut client, job);
        assert!(state == "dead" && error.starts_with(code), "{command}: {state} {error}");
    }
    let last = note(&mut client, "a", "last");
    let (state, _, error) = ended(&mut client, last);
    assert!(state == "completed", "{state} {error}");
}

#[test]
fn a_standby_runs_nothing_until_it_is_promoted() {
    let (primary, mut client) = bed(Cluster::new(), &["a"]);
    let mut gate = primary.connect_to("app");
    gate.run("SELECT pg_advisory_lock(1)");
    let busy = enqueue_as(&mut client, "a", "SELECT pg_advisory_xact_lock(1); INSERT INTO ran VALUES ('busy')", "");
    running(&mut client, busy);
    let standby = primary.standby();
    let waits = note(&mut client, "a", "on the primary");
    gate.run("SELECT pg_advisory_unlock(1)");
    ended(&mut client, busy);
    ended(&mut client, waits);
    client.run("SELECT queue.pause('sql')");
    let later = note(&mut client, "a", "later");
    client.run("SELECT queue.resume('sql'); SELECT pg_advisory_lock(1)");
    ended(&mut client, later);
    let cut = enqueue_as(&mut client, "a", "SELECT pg_advisory_xact_lock(1); INSERT INTO ran VALUES ('cut off')", "");
    running(&mut client, cut);
    standby.wait_replayed(&primary);
    let mut other = standby.connect_to("app");
    assert_eq!(other.count("SELECT FROM queue.executors"), 0);
    assert_eq!(other.count("SELECT FROM pg_stat_activity WHERE backend_type = 'pg_queue executor'"), 0);
    drop((gate, client, other));
    primary.stop_immediate();
    standby.promote();
    let mut client = standby.connect_to("app");
    assert_eq!(ended(&mut client, cut).0, "completed");
    let ran: Vec<String> = client.column("SELECT what FROM ran ORDER BY what");
    assert_eq!(ran, ["busy", "cut off", "later", "on the primary"], "each once");
}

#[test]
fn commands_of_a_superuser_run_while_the_setting_allows_them() {
    let (cluster, mut client) = bed(Cluster::new().conf("pg_queue.superuser_jobs = on"), &[]);
    let job = note(&mut client, "postgres", "super");
    assert_eq!(ended(&mut client, job).0, "completed");
    assert_eq!(client.column::<String>("SELECT who FROM ran"), ["postgres"]);
    client.run("SELECT queue.pause('sql')");
    let second = note(&mut client, "postgres", "not any more");
    client.run("ALTER SYSTEM SET pg_queue.superuser_jobs = off");
    cluster.reload();
    wait::until_true("all know", || client.value::<String>("SHOW pg_queue.superuser_jobs") == "off");
    client.refused("SELECT queue.enqueue_sql('sql', 'SELECT 1')", "42501");
    client.run("SELECT queue.resume('sql')");
    let (state, _, error) = ended(&mut client, second);
    assert_eq!(state, "dead");
    assert!(error.starts_with("42501: role \"postgres\" is a superuser"), "{error}");
    // An ordinary role cannot turn the setting on for itself.
    client.run("CREATE ROLE plain LOGIN; SET ROLE plain");
    client.refused("SET pg_queue.superuser_jobs = on", "42501");
}

#[test]
fn a_process_that_has_grown_or_has_run_many_jobs_is_replaced() {
    let (_cluster, mut client) = bed(Cluster::new().conf("pg_queue.max_executors = 1"), &["a"]);
    // The compiled body stays as long as the process lives and takes 140 MB.
    client.run(
        "DO $do$ BEGIN EXECUTE 'CREATE FUNCTION large() RETURNS integer LANGUAGE plpgsql AS $$ BEGIN '
             || repeat('PERFORM 1;', 20000) || ' RETURN pg_backend_pid(); END $$'; END $do$;
         CREATE FUNCTION pid() RETURNS jsonb LANGUAGE sql AS 'SELECT to_jsonb(pg_backend_pid())'",
    );
    let pid = |client: &mut Client, job: i64| -> i32 {
        ended(client, job);
        client.value(&format!("SELECT result::integer FROM queue.job({job})"))
    };
    let job = enqueue_as(&mut client, "a", "SELECT to_jsonb(large())", "");
    let before = pid(&mut client, job);
    client.run("SET ROLE a");
    client.run(
        "SELECT count(*) FROM queue.enqueue_batch('sql', \
            (SELECT jsonb_agg('{\"command\": \"SELECT 1\"}'::jsonb) FROM generate_series(1, 63)))",
    );
    client.run("RESET ROLE");
    let job = enqueue_as(&mut client, "a", "SELECT pid()", "");
    let after = pid(&mut client, job);
    assert_ne!(before, after, "it had more than 64 MB");
    client.run("SET ROLE a");
    client.run(
        "SELECT count(*) FROM queue.enqueue_batch('sql', \
            (SELECT jsonb_agg('{\"command\": \"SELECT 1\"}'::jsonb) FROM generate_series(1, 1000)))",
    );
    client.run("RESET ROLE");
    let job = enqueue_as(&mut client, "a", "SELECT pid()", "");
    assert_ne!(pid(&mut client, job), after, "it had run 1,000 jobs");
    let metric = |client: &mut Client, name: &str| -> f64 {
        client.value(&format!("SELECT value FROM queue.metrics() WHERE name = 'pg_queue_executor_{name}'"))
    };
    assert!(metric(&mut client, "starts_total") >= 3.0);
    assert!(metric(&mut client, "dispatches_total") >= 3.0);
    assert!(metric(&mut client, "dispatch_seconds_total") > 0.0);
    assert_eq!(metric(&mut client, "short_seconds"), 0.0);
}
