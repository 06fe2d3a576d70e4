//! Processes that die, servers that stop and databases that are dropped while commands run.

use queue_tests::installation::output;

use crate::shared::*;

/// Starts a server with a queue of commands, a role that writes them, and a counter.
fn bed(cluster: Cluster, options: &str) -> (Cluster, Client) {
    let (cluster, mut client) = cluster.start_with_database("app");
    client
        .run("CREATE ROLE writer LOGIN; CREATE TABLE t (n bigint); INSERT INTO t VALUES (0); GRANT ALL ON t TO public");
    create(&mut client, "sql", &format!("executor => 'sql', backoff_base => '0'{options}"));
    client.run("SELECT queue.grant('sql', 'writer', 'manage')");
    (cluster, client)
}

fn running(client: &mut Client) -> i32 {
    wait::until("a job runs", || {
        client.column("SELECT pid FROM queue.executors WHERE state = 'running'").first().copied()
    })
}

#[test]
fn the_effects_of_a_command_happen_exactly_once_whatever_is_killed() {
    // `make soak-sql` has 100,000 jobs and 40 rounds.
    let mut jobs =
        random::number("QUEUE_SQL_JOBS").map_or(2_000, |jobs| i64::try_from(jobs).expect("a number of jobs"));
    let rounds = if jobs > 2_000 { 40 } else { 6 };
    let settings = Cluster::with(&["fsync = on", "pg_queue.max_executors = 8", "max_worker_processes = 16"]);
    let (cluster, mut client) = bed(settings, ", max_attempts => 100");
    client.run("SET ROLE writer");
    let enqueue = |client: &mut Client, count: i64| {
        client.run(&format!(
            "SELECT count(*) FROM queue.enqueue_batch('sql', \
                (SELECT jsonb_agg('{{\"command\": \"UPDATE t SET n = n + 1\"}}'::jsonb) \
                FROM generate_series(1, {count})))"
        ));
    };
    enqueue(&mut client, jobs);
    let first = jobs;
    let mut random =
        random::Random::new(random::seed("the_effects_of_a_command_happen_exactly_once_whatever_is_killed"));
    for round in 0..rounds {
        let mut client = cluster.connect_to("app");
        wait::until_true("some more have run", || {
            client.value::<i64>("SELECT n FROM t") >= round * first / (rounds + 2) + random.below(100) as i64
        });
        if round % 2 == 0 {
            wait::until("a process is killed", || {
                let pids: Vec<i32> = client.column("SELECT pid FROM queue.executors");
                // All jobs may have run, so that the processes have ended.
                if pids.is_empty() {
                    client.run("SET ROLE writer");
                    enqueue(&mut client, 1);
                    client.run("RESET ROLE");
                    jobs += 1;
                }
                let pid = pids.get(random.below(pids.len().max(1) as u64) as usize)?;
                cluster.crash_if_there(*pid).then_some(())
            });
        } else {
            cluster.restart_immediate();
        }
    }
    let mut client = cluster.connect_to("app");
    wait::until_none_left("all have run", || {
        client
            .value("SELECT (ready + running + retrying + scheduled)::bigint FROM queue.stats WHERE queue_name = 'sql'")
    });
    assert_eq!(client.value::<i64>("SELECT n FROM t"), jobs);
    assert_eq!(client.value::<i64>("SELECT count(*) FROM queue.jobs WHERE state = 'completed'"), jobs);
    println!("{jobs} jobs; {0} processes killed with SIGKILL, {0} stops of the server at once", rounds / 2);
}

#[test]
fn a_server_that_stops_gives_its_jobs_back_and_a_process_that_is_ended_has_failed() {
    let (cluster, mut client) = bed(Cluster::new(), ", max_attempts => 2");
    client.run("SET ROLE writer; SELECT queue.enqueue_sql('sql', 'SELECT pg_sleep(600)'); RESET ROLE");
    let pid = running(&mut client);
    client.run(&format!("SELECT pg_terminate_backend({pid})"));
    wait::until("another has it", || {
        client
            .column::<i32>("SELECT pid FROM queue.executors WHERE state = 'running'")
            .first()
            .filter(|&&p| p != pid)
            .copied()
    });
    let states: Vec<String> = client.column("SELECT state FROM queue.attempts ORDER BY id");
    assert_eq!(states, ["failed", "running"]);
    drop(client);
    cluster.stop_fast();
    cluster.start_again();
    let mut client = cluster.connect_to("app");
    running(&mut client);
    let states: Vec<String> = client.column("SELECT state || attempt FROM queue.attempts ORDER BY id");
    assert_eq!(states, ["failed1", "released2", "running2"], "a stop of the server does not count");
}

#[test]
fn a_database_can_be_dropped_while_its_jobs_run() {
    let (cluster, mut client) = bed(Cluster::new(), "");
    client.run("SET ROLE writer; SELECT queue.enqueue_sql('sql', 'SELECT pg_sleep(600)')");
    running(&mut client);
    drop(client);
    let mut other = cluster.connect();
    other.run("DROP DATABASE app");
    assert_eq!(other.count("SELECT FROM pg_stat_activity WHERE backend_type = 'pg_queue executor'"), 0);
}

#[test]
fn the_extension_can_be_dropped_and_made_anew_while_jobs_run() {
    let (_cluster, mut client) = bed(Cluster::new(), "");
    client.run("SET ROLE writer; SELECT queue.enqueue_sql('sql', 'SELECT pg_sleep(1)'); RESET ROLE");
    running(&mut client);
    client.run("DROP EXTENSION pg_queue CASCADE");
    client.run("CREATE EXTENSION pg_queue");
    create(&mut client, "sql", "executor => 'sql'");
    client.run("SELECT queue.grant('sql', 'writer', 'produce'); SET ROLE writer");
    client.run("SELECT queue.enqueue_sql('sql', 'UPDATE t SET n = 7')");
    client.run("RESET ROLE");
    wait::until_true("it has run", || client.value::<i64>("SELECT n FROM t") == 7);
}

#[test]
fn a_process_without_work_leaves() {
    let (_cluster, mut client) = bed(Cluster::new(), "");
    client.run("SET ROLE writer; SELECT queue.enqueue_sql('sql', 'SELECT 1'); RESET ROLE");
    wait::until_true("it is idle", || client.count("SELECT FROM queue.executors WHERE state = 'idle'") == 1);
    wait::until_true("it has left", || client.count("SELECT FROM queue.executors") == 0);
}

#[test]
fn one_queue_does_not_keep_all_processes_from_another() {
    let (_cluster, mut client) = bed(Cluster::new().conf("pg_queue.max_executors = 1"), "");
    create(&mut client, "other", "executor => 'sql'");
    client.run("CREATE ROLE second LOGIN; SELECT queue.grant('other', 'second', 'produce'); SET ROLE writer");
    client.run(
        "SELECT queue.enqueue_batch('sql', (SELECT jsonb_agg('{\"command\": \"SELECT pg_sleep(0.05)\"}'::jsonb) \
            FROM generate_series(1, 2000)))",
    );
    client.run("SET ROLE second; SELECT queue.enqueue_sql('other', 'UPDATE t SET n = 7'); RESET ROLE");
    wait::until_true("the other queue's has run", || client.value::<i64>("SELECT n FROM t") == 7);
    let left: i64 = client.value("SELECT ready FROM queue.stats WHERE queue_name = 'sql'");
    assert!(left > 0, "and not only when the first had nothing left");
}

#[test]
fn a_process_that_never_starts_is_requested_again() {
    let (cluster, mut client) = bed(Cluster::new(), "");
    let fault = cluster.fault("executor.started", "error");
    client.run("SET ROLE writer; SELECT queue.enqueue_sql('sql', 'UPDATE t SET n = n + 1'); RESET ROLE");
    fault.wait_reached();
    fault.release();
    wait::until_true("another one has run it", || client.value::<i64>("SELECT n FROM t") == 1);
}

#[test]
fn restored_jobs_and_schedules_run_as_the_role_of_the_same_name_and_die_without_one() {
    let (source, mut client) = bed(Cluster::new(), "");
    client.run("CREATE ROLE handler LOGIN; CREATE ROLE lost LOGIN; GRANT SELECT, UPDATE ON t TO public");
    client.run("CREATE FUNCTION handle(job jsonb) RETURNS void LANGUAGE sql AS 'UPDATE t SET n = n + 10'");
    create(&mut client, "call", "executor => 'call', procedure => 'handle', run_as => 'handler'");
    client.run("SELECT queue.grant('sql', 'lost', 'produce'), queue.pause('sql'), queue.pause('call')");
    let add = "'UPDATE t SET n = n + 1'";
    client.run("SET ROLE lost");
    let lost: i64 = client.value(&format!("SELECT queue.enqueue_sql('sql', {add})"));
    client.run(&format!("SET ROLE writer; SELECT queue.enqueue_sql('sql', {add})"));
    client.run(&format!("SELECT queue.schedule('s', 'sql', command => {add}, every => '1 year'); RESET ROLE"));
    client.run("SELECT queue.enqueue('call')");
    let file = source.dir().join("app.dump").display().to_string();
    output(source.command("pg_dump").args(["-Fc", "-f", &file, "app"]));

    let target = Cluster::new().conf("pg_queue.restore_quiet = '1s'").start();
    let mut client = target.connect();
    // The roles have other oids than in the source, and one is missing.
    client.run("CREATE ROLE between; CREATE ROLE handler LOGIN; CREATE ROLE another; CREATE ROLE writer LOGIN");
    client.run("CREATE DATABASE app");
    // The grants to the missing role fail.
    let _ = target.command("pg_restore").args(["-d", "app", &file]).output().expect("pg_restore");
    let mut client = target.connect_to("app");
    wait::until_true("the restore is over", || client.batch_execute("SELECT queue.adopt()").is_ok());
    client.run("SELECT queue.resume('sql'), queue.resume('call'), queue.run_schedule('s')");
    wait::until_empty("all have ended", || {
        client.column(
            "SELECT j::text FROM queue.jobs AS j WHERE state NOT IN ('completed', 'dead')
             UNION ALL SELECT e::text FROM queue.executors AS e, queue.jobs AS j
             WHERE j.state NOT IN ('completed', 'dead')
             UNION ALL SELECT d::text FROM queue.doctor() AS d, queue.jobs AS j WHERE NOT d.ok
             AND j.state NOT IN ('completed', 'dead')",
        )
    });
    assert_eq!(client.value::<i64>("SELECT n FROM t"), 12, "the command, the schedule's, and the handler");
    let error: String = client.value(&format!("SELECT error FROM queue.job({lost})"));
    assert!(error.starts_with("42704: role \"lost\" does not exist"), "{error}");
}
