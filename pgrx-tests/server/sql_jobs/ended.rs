//! Commands whose job ends before they do, and commands that end the server.

use crate::shared::*;
use crate::sql_jobs::commands::enqueue_as;

/// Makes a queue of commands, and a table that commands may write to.
fn prepare(client: &mut Client) {
    let options = "executor => 'sql', max_attempts => 1, stages => ARRAY['first', 'second']";
    create(client, "sql", options);
    client.run(
        "CREATE TABLE t (way text);
         CREATE ROLE ender LOGIN; GRANT INSERT ON t TO ender; GRANT CREATE, USAGE ON SCHEMA public TO ender;
         SELECT queue.grant('sql', 'ender', 'manage')",
    );
}

fn wait_idle(client: &mut Client) {
    wait::until_true("no command runs", || {
        let busy = "SELECT FROM queue.executors WHERE job_id IS NOT NULL";
        let waiting = "SELECT FROM queue.jobs WHERE queue_name = 'sql' AND state IN ('ready', 'running')";
        client.count(busy) == 0 && client.count(waiting) == 0
    });
}

/// Each way in which a command can end its own job.
const WAYS: &[(&str, &str)] = &[
    ("complete", "SELECT queue.complete(id) FROM queue.current_job()"),
    ("release", "SELECT queue.release(id, delay => '1 hour') FROM queue.current_job()"),
    ("fail", "SELECT queue.fail(id, 'no') FROM queue.current_job()"),
    ("fatal", "SELECT queue.fail(id, 'no', fatal => true) FROM queue.current_job()"),
    ("advance", "SELECT queue.advance(id, 'second', delay => '1 hour') FROM queue.current_job()"),
    (
        "suspend",
        "SELECT queue.suspend(id) FROM (SELECT id, queue.enqueue('other', flow => job_id) AS member
        FROM queue.current_job()) AS j
                 WHERE member IS NOT NULL",
    ),
    ("cancel", "SELECT queue.cancel(job_id, force => true) FROM queue.current_job()"),
];

#[test]
fn writes_of_a_command_in_a_transaction_after_the_end_of_its_job_are_undone() {
    let (_cluster, mut client) = Cluster::new().start_with_database("app");
    prepare(&mut client);
    client.run("SELECT queue.create('other'), queue.grant('other', 'ender', 'produce')");
    for (way, end) in WAYS {
        let stage = if *way == "advance" { "first" } else { "second" };
        let later = format!("INSERT INTO t VALUES ('{way}')");
        enqueue_as(
            &mut client,
            "ender",
            &format!("{end}; {later}; {later}; SELECT 1"),
            &format!("autocommit => true, stage => '{stage}'"),
        );
        let body = format!("BEGIN {}; COMMIT; {later}; COMMIT; END", end.replacen("SELECT", "PERFORM", 1));
        client
            .run(&format!("SET ROLE ender; CREATE PROCEDURE do_{way}() LANGUAGE plpgsql AS $$ {body} $$; RESET ROLE"));
        enqueue_as(&mut client, "ender", &format!("CALL do_{way}()"), &format!("stage => '{stage}'"));
    }
    wait_idle(&mut client);
    assert_eq!(client.column::<String>("SELECT way FROM t"), Vec::<String>::new());
    let states = "SELECT state FROM queue.jobs WHERE queue_name = 'sql' ORDER BY job_id";
    let states: Vec<String> = client.column(states);
    let errors: Vec<Option<String>> =
        client.column("SELECT error FROM queue.jobs WHERE queue_name = 'sql' ORDER BY job_id");
    let pairs: Vec<&[String]> = states.chunks(2).collect();
    assert!(pairs.iter().all(|pair| pair[0] == pair[1]), "{states:?}");
    let first: Vec<&str> = pairs.iter().map(|pair| pair[0].as_str()).collect();
    assert_eq!(first, ["completed", "scheduled", "dead", "dead", "scheduled", "held", "cancelled"], "{errors:?}");
    // If the command writes in the transaction in which it ends its job, the end and the write both count.
    let job = enqueue_as(
        &mut client,
        "ender",
        "SELECT queue.complete(id) FROM queue.current_job(); INSERT INTO t VALUES ('same')",
        "stage => 'second'",
    );
    wait_idle(&mut client);
    assert_eq!(client.state(job), "completed");
    assert_eq!(client.column::<String>("SELECT way FROM t"), ["same"]);
}

#[test]
fn writes_of_a_command_are_undone_if_another_session_has_ended_its_job() {
    // A fault point holds the command at its end, so no signal comes in time. Its lease expires, or another session
    // ends the job.
    for (way, end) in [("lease", ""), ("cancel", "SELECT queue.cancel($, force => true)")] {
        let (_database, mut client) =
            Database::new().with_queue("sql", "executor => 'sql', max_attempts => 1, lease => '2 s'");
        client.run(&format!(
            "CREATE TABLE t (way text); CREATE ROLE ender_{way} LOGIN; GRANT INSERT ON t TO ender_{way};
             SELECT queue.grant('sql', 'ender_{way}', 'manage')"
        ));
        let fault = server().fault("executor.stepped", "wait");
        client.run(&format!("SET ROLE ender_{way}"));
        let command = "SELECT 1; INSERT INTO t VALUES ('later'); SELECT 2";
        let job: i64 =
            client.value(&format!("SELECT queue.enqueue_sql('sql', $cmd${command}$cmd$, autocommit => true)"));
        client.run("RESET ROLE");
        fault.wait_reached();
        if !end.is_empty() {
            client.run(&end.replace('$', &job.to_string()));
        }
        wait::until_true("the job has ended", || ["dead", "cancelled"].contains(&client.state(job).as_str()));
        drop(fault);
        wait::until_true("the process has nothing to do", || {
            client.count("SELECT FROM queue.executors WHERE job_id IS NOT NULL") == 0
        });
        assert_eq!(client.count("SELECT FROM t"), 0, "{way}");
        client.run(&format!("DROP OWNED BY ender_{way}; DROP ROLE ender_{way}"));
    }
}

#[test]
fn a_command_that_ends_the_server_does_so_twice_at_most() {
    // Only the claim makes itself durable, because WAL is written seldom.
    let (cluster, mut client) = Cluster::new().conf("wal_writer_delay = '10 s'").start_with_database("app");
    prepare(&mut client);
    client.run("GRANT pg_execute_server_program TO ender; SELECT queue.pause('sql')");
    let job = enqueue_as(&mut client, "ender", "COPY (SELECT 1) TO PROGRAM 'kill -9 $PPID'", "stage => 'second'");
    // The command may end the server before this statement has its answer.
    drop(client.batch_execute("SELECT queue.resume('sql')"));
    wait::until("the job is dead", || {
        let mut client = cluster.config().dbname("app").connect(NoTls).ok()?;
        let state = client.query_one(&format!("SELECT state FROM queue.job({job})"), &[]).ok()?;
        (state.get::<_, String>(0) == "dead").then_some(())
    });
    let crashes = cluster.log().matches("was terminated by signal 9").count();
    assert!((1..=2).contains(&crashes), "the command has ended the server {crashes} times");
}
