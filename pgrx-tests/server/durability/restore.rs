//! A restore into a running server: nothing runs before it is whole, nothing fails, ids and settings are right.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use postgres::{Client, NoTls};
use queue_tests::installation::run;
use queue_tests::{Cluster, error, wait};

use crate::shared::{Sql, create, wait_asleep};

/// Much shorter than the default, so that a test need not wait for it.
const QUIET: &str = "pg_queue.restore_quiet = '1s'";

fn cluster() -> Cluster {
    Cluster::new().conf(QUIET).conf("max_prepared_transactions = 5").start()
}

/// A server whose database `app` has jobs in all states, and one of whose tables takes long to be restored.
struct Source {
    cluster: Cluster,
    /// An attempt that runs, with a lease of two seconds.
    running: i64,
    jobs: Vec<String>,
    rows: Vec<i64>,
}

/// All jobs but the one that runs, whose lease may end at any time.
const JOBS: &str = "
    SELECT concat_ws(' ', job_id, queue_name, state, attempt, error, result, payload, max_attempts, priority, run_at,
    progress)
    FROM queue.jobs WHERE queue_name <> 'paused' ORDER BY job_id";

/// What the server's clock says.
const NOW: &str = "SELECT extract(epoch FROM clock_timestamp())::float8";

/// Rows of the four logs.
const ROWS: [&str; 4] = ["attempt", "claim", "outcome", "note"];

fn rows(client: &mut Client) -> Vec<i64> {
    let count = |log| {
        let tables: Vec<String> = (0..10).map(|n| format!("SELECT FROM queue.{log}_{n}")).collect();
        format!("SELECT count(*) FROM ({}) AS all_of_them", tables.join(" UNION ALL "))
    };
    ROWS.iter().map(|log| client.value(&count(log))).collect()
}

impl Source {
    fn new() -> Self {
        let cluster = cluster();
        let mut client = cluster.create_database("app");
        // No lease ends before the dump is taken. The setting stays behind.
        client.run("ALTER DATABASE app SET pg_queue.worker = off");
        create(&mut client, "q", "max_attempts => 7, lease => '1 hour', backoff_base => '0', backoff_jitter => 0");
        create(&mut client, "dropped", "");
        client.run("SELECT queue.drop('dropped')");
        create(&mut client, "paused", "lease => '2 s'");
        // Beyond the first block of ids.
        client.run("BEGIN; SELECT count(*) FROM queue.enqueue_many('q', array_fill('1'::jsonb, '{20000}')); ROLLBACK");
        client.run("SELECT queue.enqueue('q', to_jsonb(n), priority => n % 3) FROM generate_series(1, 60) AS n");
        client.run("SELECT queue.complete(id, '\"fine\"') FROM queue.claim('q', 10)");
        client.run("SELECT queue.fail(id, 'oh') FROM queue.claim('q', 3)");
        client.run("SELECT queue.fail(id, 'later', retry_in => '1 day') FROM queue.claim('q', 2)");
        client.run("SELECT queue.fail(id, 'dead', fatal => true) FROM queue.claim('q', 2)");
        client.run("SELECT queue.cancel(job_id) FROM queue.jobs WHERE state = 'ready' LIMIT 2");
        client.run("SELECT queue.enqueue('q', '\"later\"', delay => '1 day')");
        client.run("SELECT queue.enqueue('paused')");
        let running = client.claim("paused");
        client.run(&format!("SELECT queue.progress({running}, '7')"));
        client.run("SELECT queue.pause('paused')");
        // What follows in a restore lasts longer than it has to be quiet.
        client.run(
            "CREATE SCHEMA zzz;
             CREATE FUNCTION zzz.takes_long(integer) RETURNS boolean LANGUAGE plpgsql AS
                 'BEGIN PERFORM pg_catalog.pg_sleep($1); RETURN true; END';
             CREATE TABLE zzz.slow (seconds integer);
             INSERT INTO zzz.slow VALUES (3);
             ALTER TABLE zzz.slow ADD CONSTRAINT slow CHECK (zzz.takes_long(seconds)) NOT VALID",
        );
        let (jobs, rows) = (client.column(JOBS), rows(&mut client));
        Self { cluster, running, jobs, rows }
    }

    /// Dumps the database into a file and returns its path.
    fn dump(&self, args: &[&str]) -> String {
        let file = self.cluster.dir().join("dump").display().to_string();
        run(self.cluster.command("pg_dump").args(args).args(["-f", &file, "app"]));
        file
    }

    /// The restored database has the same jobs, and they run. It was not whole before `since`.
    fn check(&self, copy: &mut Client, since: f64) {
        assert_eq!(copy.column::<String>(JOBS), self.jobs);
        let mut source = self.cluster.connect_to("app");
        source.run("BEGIN");
        let order = "SELECT job_id FROM queue.claim('q', 100, lease => '1 hour')";
        assert_eq!(copy.column::<i64>(order), source.column::<i64>(order), "they are claimed in the same order");
        source.run("ROLLBACK");
        // No id is handed out twice.
        let newest: i64 = copy.value("SELECT max(job_id) FROM queue.jobs");
        let new = copy.enqueue("q");
        assert!(new > newest, "{new} after {newest}");
        create(copy, "another", "");
        copy.enqueue("another");
        assert_eq!(copy.count("SELECT FROM queue.claim('another')"), 1);
        // What ran still runs, under a new lease, and is offered again when that is over.
        assert_eq!(copy.count("SELECT FROM queue.claim('paused')"), 0);
        copy.run("SELECT queue.resume('paused')");
        let again = wait::until("its lease has ended", || {
            copy.query_opt("SELECT id, progress::text FROM queue.claim('paused')", &[]).unwrap()
        });
        assert_eq!(again.get::<_, String>(1), "7");
        let sql =
            format!("SELECT extract(epoch FROM finished_at)::float8 FROM queue.attempts WHERE id = {}", self.running);
        let lease = copy.value::<f64>(&sql) - since;
        assert!(lease >= 2.0, "the lease of two seconds began anew, but it ended after {lease} s");
        assert_eq!(copy.failure(&format!("SELECT queue.complete({})", self.running)).code, "QJ001");
        copy.run(&format!("SELECT queue.complete({})", again.get::<_, i64>(0)));
        assert_eq!(copy.count("SELECT FROM queue.restoring"), 0);
    }
}

/// Waits until the database is not dormant.
fn wait_awake(client: &mut Client) {
    wait::until("it is awake", || match client.simple_query("SELECT queue.purge('no such queue')") {
        Ok(_) => unreachable!(),
        Err(e) if error::code(&e) == "42704" => Some(()),
        Err(e) => {
            assert_eq!(error::code(&e), "55000", "{e:?}");
            None
        }
    });
}

fn is_dormant(client: &mut Client) -> bool {
    let refused = client.failure("SELECT queue.purge('no such queue')");
    assert!(["42704", "55000"].contains(&refused.code.as_str()), "{refused:?}");
    refused.code == "55000"
}

/// A session that wants a job all the time. Returns what the logs had when it got one, and whether the restore
/// was over.
fn worker(cluster: &Cluster, is_over: Arc<AtomicBool>) -> JoinHandle<(Vec<i64>, bool)> {
    let mut config = cluster.config();
    config.dbname("copy");
    thread::spawn(move || {
        let mut client = config.connect(NoTls).unwrap();
        let start = Instant::now();
        loop {
            assert!(start.elapsed() < Duration::from_secs(60), "no job came");
            client.run("BEGIN");
            let claimed = client.query("SELECT FROM queue.claim('q', wait => '10 s')", &[]);
            let found = claimed.as_ref().is_ok_and(|claimed| !claimed.is_empty()).then(|| rows(&mut client));
            // The job is for the test.
            client.run("ROLLBACK");
            match (claimed, found) {
                (Ok(_), Some(rows)) => return (rows, is_over.load(Ordering::SeqCst)),
                (Ok(_), None) => {}
                // Not there yet: the extension, then the queue.
                (Err(e), _) if ["3F000", "42883", "42704"].contains(&error::code(&e)) => {}
                // Dropped this moment, to be restored.
                (Err(e), _) => assert!(error::message(&e).starts_with("could not open relation"), "{e:?}"),
            }
        }
    })
}

/// Restores into database `copy` of the cluster while a worker waits there for a job. `is_serial`: one table
/// after the other.
fn restore(source: &Source, target: &Cluster, prepare: &str, command: &mut Command, is_serial: bool) {
    target.connect().run("DROP DATABASE IF EXISTS copy WITH (FORCE)");
    target.connect().run("CREATE DATABASE copy");
    target.connect_to("copy").run(prepare);
    let already = target.log().len();
    let is_over = Arc::new(AtomicBool::new(false));
    let worker = worker(target, Arc::clone(&is_over));
    run(command);
    is_over.store(true, Ordering::SeqCst);
    // With several tables at a time, ours may be whole before the others are.
    let since = if is_serial { target.connect().value(NOW) } else { 0.0 };
    let (rows, was_over) = worker.join().unwrap();
    assert!(was_over || !is_serial, "a job was given out before the restore was over");
    assert_eq!(rows[0], source.rows[0], "attempts when the first job was given out");
    assert_eq!(rows[1], source.rows[1] + 1, "claims when the first job was given out");
    assert_eq!(rows[2..], source.rows[2..], "outcomes and notes when the first job was given out");
    let log = target.log().split_off(already);
    assert!(!log.contains("WARNING"), "{log}");
    source.check(&mut target.connect_to("copy"), since);
}

/// A client program that restores into database `copy`.
fn program(target: &Cluster, program: &str, args: &[&str]) -> Command {
    let mut command = target.command(program);
    command.args(["-d", "copy"]).args(args);
    command
}

#[test]
fn pg_restore_into_the_same_server() {
    let source = Source::new();
    let file = source.dump(&["-Fc"]);
    let server = &source.cluster;
    restore(&source, server, "", &mut program(server, "pg_restore", &["-e", &file]), true);
    // In the place of other queues.
    let used =
        "CREATE EXTENSION pg_queue; SELECT queue.create('q'); SELECT queue.pause('q'); SELECT queue.enqueue('q')";
    let args = ["-e", "--clean", "--if-exists", &file];
    restore(&source, server, used, &mut program(server, "pg_restore", &args), true);
}

#[test]
fn pg_restore_into_another_server_with_several_jobs() {
    let (source, target) = (Source::new(), cluster());
    let file = source.dump(&["-Fc"]);
    restore(&source, &target, "", &mut program(&target, "pg_restore", &["-e", "-j", "4", &file]), false);
}

#[test]
fn pg_restore_into_another_server_in_one_transaction() {
    let (source, target) = (Source::new(), cluster());
    let file = source.dump(&["-Fc"]);
    restore(&source, &target, "", &mut program(&target, "pg_restore", &["-e", "--single-transaction", &file]), true);
}

#[test]
fn psql_into_another_server() {
    let (source, target) = (Source::new(), cluster());
    let file = source.dump(&[]);
    let args = ["-X", "-q", "-v", "ON_ERROR_STOP=1", "-o", "/dev/null", "-f", &file];
    restore(&source, &target, "", &mut program(&target, "psql", &args), true);
    let args = [&args[..], &["--single-transaction"]].concat();
    restore(&source, &target, "", &mut program(&target, "psql", &args), true);
}

#[test]
fn the_data_alone_into_a_database_whose_queues_are_empty() {
    let (source, target) = (Source::new(), cluster());
    let file = source.dump(&["-Fc", "--schema=queue", "--extension=pg_queue"]);
    let used = "CREATE EXTENSION pg_queue;
                SELECT queue.create('before');
                SELECT count(*) FROM queue.enqueue_many('before', array_fill('1'::jsonb, '{100}'));
                SELECT queue.drop('before', force => true);
                TRUNCATE queue.attempt_0; SELECT queue.adopt()";
    for (prepare, args) in [
        ("CREATE EXTENSION pg_queue", &["-e", "--data-only"][..]),
        // Somebody has used it before.
        (used, &["-e", "--data-only", "-j", "4"]),
        ("CREATE EXTENSION pg_queue", &["-e", "--data-only", "--disable-triggers"]),
        ("CREATE EXTENSION pg_queue", &["-e", "--data-only", "--single-transaction"]),
    ] {
        let args = [args, &[&*file]].concat();
        restore(&source, &target, prepare, &mut program(&target, "pg_restore", &args), !args.contains(&"-j"));
    }
    // As some do, to get around foreign keys.
    let mut command = program(&target, "pg_restore", &["-e", "--data-only", &file]);
    command.env("PGOPTIONS", "-c session_replication_role=replica");
    restore(&source, &target, "CREATE EXTENSION pg_queue", &mut command, true);
}

/// A dump that psql reads, cut after the rows of this table.
fn cut(file: &str, table: &str) -> (String, String) {
    let dump = std::fs::read_to_string(file).unwrap();
    let copy = dump.find(&format!("COPY {table} ")).unwrap();
    let end = copy + dump[copy..].find("\n\\.\n").unwrap() + 4;
    (dump[..end].to_owned(), dump[end..].to_owned())
}

#[test]
fn a_crash_between_two_tables_of_a_restore() {
    let (source, target) = (Source::new(), cluster());
    let (first, second) = cut(&source.dump(&[]), "queue.claim_0");
    for kill in [Cluster::stop_immediate, Cluster::kill_server] {
        target.connect().run("DROP DATABASE IF EXISTS copy WITH (FORCE)");
        target.connect().run("CREATE DATABASE copy");
        let printed = target.psql_in("copy", &first);
        assert!(!printed.contains("ERROR"), "{printed}");
        kill(&target);
        target.start_again();
        let already = target.log().len();
        let is_over = Arc::new(AtomicBool::new(false));
        let worker = worker(&target, Arc::clone(&is_over));
        let mut copy = target.connect_to("copy");
        assert!(is_dormant(&mut copy));
        // It is quiet, but the sequences are behind.
        let told = "stays dormant after a restore";
        wait::until("the worker says why it stays dormant", || target.log()[already..].contains(told).then_some(()));
        assert!(target.log()[already..].contains("SELECT queue.adopt()"), "{}", target.log());
        assert!(is_dormant(&mut copy));
        let printed = target.psql_in("copy", &second);
        assert!(!printed.contains("ERROR"), "{printed}");
        let since = copy.value(NOW);
        is_over.store(true, Ordering::SeqCst);
        let (_, was_over) = worker.join().unwrap();
        assert!(was_over, "a job was given out before the restore was over");
        assert_eq!(target.log()[already..].matches(told).count(), 1, "it says so once");
        source.check(&mut copy, since);
    }
}

#[test]
fn a_crash_after_a_restore_that_nobody_has_adopted() {
    let (source, target) = (Source::new(), cluster());
    target.append_conf("pg_queue.restore_quiet = '1h'");
    target.restart();
    target.connect().run("CREATE DATABASE copy");
    run(&mut program(&target, "psql", &["-X", "-q", "-o", "/dev/null", "-f", &source.dump(&[])]));
    for _ in 0..2 {
        target.stop_immediate();
        target.start_again();
        assert!(is_dormant(&mut target.connect_to("copy")));
    }
    let mut copy = target.connect_to("copy");
    let since = copy.value(NOW);
    copy.run("SELECT queue.adopt()");
    source.check(&mut copy, since);
    target.stop_immediate();
    target.start_again();
    assert!(!is_dormant(&mut target.connect_to("copy")), "what was adopted stays so");
}

#[test]
fn a_dump_of_a_database_in_use_is_whole() {
    let cluster = cluster();
    let mut client = cluster.create_database("app");
    create(&mut client, "q", "");
    client.run("SELECT count(*) FROM queue.enqueue_many('q', array_fill('1'::jsonb, '{500}'))");
    let stop = Arc::new(AtomicBool::new(false));
    let load = |role: usize| {
        let (mut client, stop) = (cluster.connect_to("app"), Arc::clone(&stop));
        thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                match role {
                    0 => client.run("SELECT queue.enqueue_many('q', array_fill('1'::jsonb, '{7}'))"),
                    1 => client.run("SELECT queue.fail(id, 'no', retry_in => '0') FROM queue.claim('q', 2)"),
                    _ => client.run("SELECT queue.complete(id) FROM queue.claim('q', 3)"),
                }
            }
        })
    };
    let load: Vec<_> = (0..3).map(load).collect();
    let file = cluster.dir().join("dump").display().to_string();
    run(cluster.command("pg_dump").args(["-Fd", "-j", "2", "-f", &file, "app"]));
    stop.store(true, Ordering::Relaxed);
    load.into_iter().for_each(|thread| thread.join().unwrap());

    cluster.connect().run("CREATE DATABASE copy");
    run(&mut program(&cluster, "pg_restore", &["-e", "-j", "3", &file]));
    let mut copy = cluster.connect_to("copy");
    wait_awake(&mut copy);
    let unended = copy.value::<i64>("SELECT count(*) FROM queue.jobs WHERE state = 'ready'");
    let torn = "SELECT FROM queue.life WHERE outcome IS NOT NULL AND claimed_at IS NULL
                OR next_id IS NOT NULL AND NOT EXISTS (SELECT FROM queue.life AS n WHERE n.id = life.next_id)";
    assert_eq!(copy.count(torn), 0);
    let newest: i64 = copy.value("SELECT max(job_id) FROM queue.jobs");
    assert!(copy.enqueue("q") > newest);
    let mut claimed = 0;
    wait::until("all jobs are done", || {
        claimed += copy.count("SELECT queue.complete(id) FROM queue.claim('q', 1000)") as i64;
        (claimed == unended + 1).then_some(())
    });
}

#[test]
fn verbs_refuse_and_claims_find_nothing_while_the_tables_are_written() {
    let cluster = cluster();
    let mut client = cluster.create_database("app");
    create(&mut client, "q", "lease => '1 s'");
    create(&mut client, "empty", "");
    let job = client.enqueue("q");
    let attempt = client.claim("q");
    client.run("SELECT queue.enqueue('q'), queue.enqueue('q', delay => '500 ms')");
    let mut writer = cluster.connect_to("app");
    writer.run("BEGIN; UPDATE queue.attempt_0 SET priority = priority");
    let verbs = [
        "enqueue('q')",
        "enqueue_many('q', ARRAY['1'::jsonb])",
        "enqueue_batch('q', '[{}]')",
        "claim('q', completed => ARRAY[$])",
        "complete($)",
        "complete_many(ARRAY[$])",
        "fail($, 'no')",
        "fail_many(ARRAY[$], 'no')",
        "release($)",
        "release_many(ARRAY[$])",
        "extend($)",
        "extend_many(ARRAY[$])",
        "progress($, '1')",
        "cancel(#)",
        "retry(#)",
        "cancel_many(ARRAY[#])",
        "retry_many(ARRAY[#])",
        "reprioritize_many(ARRAY[#], 1)",
        "reschedule_many(ARRAY[#], now())",
        "end_batch('[{\"complete\": {\"id\": $}}]')",
        "reprioritize(#, 1)",
        "reschedule(#, now())",
        "forget(#)",
        "create('new')",
        "alter('q', lease => '1 s')",
        "pause('q')",
        "resume('q')",
        "purge('q')",
        "drop('empty')",
    ];
    for verb in verbs {
        let verb = verb.replace('$', &attempt.to_string()).replace('#', &job.to_string());
        let refused = client.failure(&format!("SELECT FROM queue.{verb}"));
        assert_eq!(refused.code, "55000", "{verb}: {refused:?}");
        assert_eq!(refused.message, "the queues of this database are being restored", "{verb}");
        assert!(refused.hint.contains("queue.adopt()"), "{verb}: {refused:?}");
    }
    for claim in ["claim('q')", "claim_any(ARRAY['empty', 'q'])"] {
        assert_eq!(client.count(&format!("SELECT FROM queue.{claim}")), 0);
    }
    for sleeper in ["SELECT FROM queue.claim('q', wait => '300 ms')", "CALL queue.wait('q', '300 ms')"] {
        let start = Instant::now();
        client.run(sleeper);
        assert!(start.elapsed() >= Duration::from_millis(300), "{sleeper}");
    }
    assert!(!client.value::<bool>("CALL queue.wait('q', '1 ms')"));
    // A lease ends meanwhile, a job falls due, and nobody does anything about it.
    assert_eq!(client.value::<i64>("SELECT sum(did)::bigint FROM queue.maintain()"), 0);
    for view in ["jobs", "attempts", "stats", "queues", "errors", "workers"] {
        client.run(&format!("SELECT * FROM queue.{view}"));
    }
    assert_eq!(client.state(job), "running");
    assert_eq!(client.failure("SELECT queue.adopt()").code, "55006");
    assert_eq!(writer.failure("PREPARE TRANSACTION 'p'").code, "0A000");

    writer.run("BEGIN; UPDATE queue.attempt_0 SET priority = priority; COMMIT");
    assert!(is_dormant(&mut client), "it is not yet quiet");
    client.run("SELECT queue.adopt()");
    assert!(!is_dormant(&mut client));
    assert_eq!(client.count("SELECT FROM queue.restoring"), 0);
    assert_eq!(client.claim("q") & 15, 0);
    wait::until("the lease that had ended is noticed, and the job that had fallen due", || {
        client.run("SELECT FROM queue.claim('q', 3)");
        (client
            .value::<i64>("SELECT count(DISTINCT job_id) FROM queue.attempts WHERE attempt = 2 OR state = 'running'")
            >= 3)
            .then_some(())
    });
}

#[test]
fn a_worker_that_sleeps_is_not_woken_before_the_end() {
    let cluster = cluster();
    cluster.append_conf("pg_queue.restore_quiet = '1h'");
    cluster.reload();
    let mut client = cluster.create_database("app");
    create(&mut client, "q", "");
    for sql in ["SELECT payload::text FROM queue.claim('q', wait => '20 s')", "CALL queue.wait('q', '20 s')"] {
        let mut sleeper = cluster.connect_to("app");
        sleeper.run("SET pg_queue.max_wait = '30 s'");
        let pid = sleeper.pid();
        let thread = thread::spawn(move || (sleeper.count(sql), Instant::now()));
        wait_asleep(&mut client, pid);
        // Its row comes by SQL.
        client.run(
            "INSERT INTO queue.attempt_0 (id, job_id, enqueued_at, lane, priority, attempt, payload)
             SELECT id + 16, id + 31, now(), (SELECT min(lane) FROM queue.lane), 0, 1, '7'
             FROM (SELECT coalesce(max(id), 16) AS id FROM queue.attempt_0) AS newest",
        );
        wait_asleep(&mut client, pid);
        assert!(!thread.is_finished());
        let before = Instant::now();
        client.run("SELECT queue.adopt()");
        let (rows, at) = thread.join().unwrap();
        assert_eq!(rows, 1, "{sql}");
        assert!(at > before && before.elapsed() < Duration::from_secs(10), "{sql}");
        client.run("SELECT queue.complete(id) FROM queue.claim('q', 10)");
    }
    // And what it asks for later wakes it as ever.
    let mut sleeper = cluster.connect_to("app");
    let pid = sleeper.pid();
    let thread = thread::spawn(move || sleeper.count("SELECT FROM queue.claim('q', wait => '10 s')"));
    wait_asleep(&mut client, pid);
    client.enqueue("q");
    assert_eq!(thread.join().unwrap(), 1);
}

#[test]
fn what_was_written_by_hand_counts_after_adoption() {
    let cluster = cluster();
    cluster.append_conf("pg_queue.restore_quiet = '1h'");
    cluster.reload();
    let mut client = cluster.create_database("app");
    // So that nobody finds the entries in memory out before this test has claimed.
    client.run("ALTER DATABASE app SET pg_queue.worker = off");
    let mut other = cluster.connect_to("app");
    create(&mut client, "q", "lease => '1 hour'");
    let jobs: Vec<i64> = (0..4).map(|_| client.enqueue("q")).collect();
    let (gone, kept) = (client.claim("q"), client.claim("q"));
    // Memory knows the others in this order, and this session the queue's settings.
    assert_eq!(other.value::<i32>("SELECT max_attempts FROM queue.claim('q') AS c, queue.release(c.id)"), 20);

    client.run(&format!("UPDATE queue.attempt_0 SET priority = -1 WHERE job_id = {}", jobs[3]));
    client.run(&format!("DELETE FROM queue.claim_0 WHERE id = {gone}"));
    client.run("UPDATE queue.queue SET max_attempts = 3; SELECT queue.adopt()");
    let rows = other.query("SELECT job_id, max_attempts FROM queue.claim('q', 10)", &[]).unwrap();
    let order: Vec<(i64, i32)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    // The one without its claim waits until the entry in memory is found out.
    assert_eq!(order[0], (jobs[3], 3));
    assert!(order.contains(&(jobs[2], 3)), "{order:?}");
    assert_eq!(order.len(), 2, "{order:?}");
    client.run("SELECT FROM queue.maintain()");
    assert_eq!(other.column::<i64>("SELECT job_id FROM queue.claim('q', 10)"), [jobs[0]]);
    client.run(&format!("SELECT queue.complete({kept})"));

    // All of it away.
    client.run("TRUNCATE queue.attempt_0, queue.claim_0, queue.outcome_0, queue.note_0; SELECT queue.adopt()");
    assert_eq!(client.count("SELECT FROM queue.claim('q')"), 0);
    client.run("SELECT FROM queue.maintain()");
    assert_eq!(client.count("SELECT FROM queue_internal.running_now()"), 0);
    assert!(client.enqueue("q") > jobs[3], "ids go on");
    assert_eq!(client.count("SELECT FROM queue.claim('q')"), 1);
    assert!(!cluster.log().contains("WARNING"), "{}", cluster.log());
}

#[test]
fn foreign_writes_that_come_to_nothing_are_soon_forgotten() {
    let cluster = cluster();
    let mut client = cluster.create_database("app");
    create(&mut client, "q", "");
    client.enqueue("q");
    let mut writer = cluster.connect_to("app");
    let touch = "UPDATE queue.attempt_0 SET priority = priority";

    writer.run(&format!("BEGIN; {touch}"));
    assert!(is_dormant(&mut client));
    writer.run("ROLLBACK");
    wait_awake(&mut client);

    assert!(writer.batch_execute("COPY queue.claim_0 FROM PROGRAM 'echo nonsense'").is_err());
    wait_awake(&mut client);

    // A part of a transaction; then once more in the same one.
    writer.run(&format!("BEGIN; SAVEPOINT a; {touch}; ROLLBACK TO a"));
    assert!(!is_dormant(&mut client));
    writer.run(&format!("SAVEPOINT b; {touch}; RELEASE b; {touch}"));
    assert!(is_dormant(&mut client));
    writer.run("COMMIT");
    assert_eq!(client.count("SELECT FROM queue.restoring"), 1, "one row, that of the second part");
    drop(writer);
    wait_awake(&mut client);
    assert_eq!(client.count("SELECT FROM queue.restoring"), 0);

    let mut writer = cluster.connect_to("app");
    writer.run(&format!("BEGIN; {touch}"));
    let pid = writer.pid();
    client.run(&format!("SELECT pg_terminate_backend({pid})"));
    wait_awake(&mut client);

    let mut writer = cluster.connect_to("app");
    writer.run(&format!("BEGIN; {touch}"));
    let pid = writer.pid();
    cluster.crash(pid);
    let mut client = cluster.connect_to("app");
    client.enqueue("q");
}

#[test]
fn what_writes_nothing_or_is_rolled_back_leaves_all_as_it_was() {
    let cluster = Cluster::new().conf("pg_queue.restore_quiet = '1h'").start();
    let mut client = cluster.create_database("app");
    create(&mut client, "q", "");
    create(&mut client, "empty", "");
    client.run("SELECT queue.enqueue('q') FROM generate_series(1, 10)");
    let mut writer = cluster.connect_to("app");
    let mut other = cluster.connect_to("app");
    let touch = "UPDATE queue.attempt_0 SET priority = priority";
    let nothing = "DELETE FROM queue.attempt_0 WHERE false";

    for sql in [
        nothing.to_owned(),
        format!("BEGIN; {nothing}; UPDATE queue.queue SET is_paused = true WHERE false; COMMIT"),
        format!("BEGIN; SELECT queue.enqueue('q'); {nothing}; COMMIT"),
        format!("BEGIN; {touch}; ROLLBACK"),
        format!("BEGIN; SELECT queue.enqueue('q'); SAVEPOINT a; {touch}; ROLLBACK TO a; {nothing}; COMMIT"),
        format!("BEGIN; {nothing}; ROLLBACK"),
        "BEGIN; TRUNCATE queue.note_5; ROLLBACK".into(),
        "BEGIN; ALTER TABLE queue.note_5 DISABLE TRIGGER ALL; ROLLBACK".into(),
        format!("DO $$ BEGIN BEGIN {touch}; RAISE division_by_zero; EXCEPTION WHEN OTHERS THEN END; END $$"),
    ] {
        writer.run(&sql);
        assert!(!is_dormant(&mut client), "{sql}");
        assert_eq!(client.count("SELECT FROM queue.restoring"), 0, "{sql}");
    }
    assert!(writer.batch_execute("UPDATE queue.attempt_0 SET priority = 1 / 0").is_err());
    assert!(!is_dormant(&mut client));
    // In the middle of a transaction, and of what goes on in it.
    writer.run(&format!("BEGIN; SAVEPOINT a; {touch}"));
    assert!(is_dormant(&mut client));
    writer.run("ROLLBACK TO a; SELECT queue.enqueue('q')");
    assert!(!is_dormant(&mut client));
    writer.run("COMMIT");

    // The last of several; what claims and sleepers missed meanwhile.
    writer.run(&format!("BEGIN; {nothing}"));
    other.run(
        "BEGIN; INSERT INTO queue.claim_0 SELECT (jsonb_populate_record(NULL::queue.claim_0,
             jsonb_build_object('id', id, 'claimed_at', now(), 'lease_us', 1, 'pid', 1, 'kind', 'w'))).*
             FROM queue.attempt_0",
    );
    let mut sleeper = cluster.connect_to("app");
    let pid = sleeper.pid();
    let thread = thread::spawn(move || sleeper.count("SELECT FROM queue.claim('q', 100, wait => '20 s')"));
    wait_asleep(&mut client, pid);
    writer.run("COMMIT");
    assert!(is_dormant(&mut client));
    other.run("ROLLBACK");
    assert_eq!(thread.join().unwrap(), 13);
    assert!(!is_dormant(&mut client));

    // A crash finds nothing, either.
    writer.run(nothing);
    other.run(&format!("BEGIN; {touch}"));
    cluster.kill_server();
    cluster.start_again();
    let mut client = cluster.connect_to("app");
    let mut writer = cluster.connect_to("app");
    let mut other = cluster.connect_to("app");
    assert!(!is_dormant(&mut client));

    // Not so where rows have come, or nobody counts them.
    writer.run(&format!("BEGIN; {touch}"));
    other.run("UPDATE queue.lane SET stage = stage");
    writer.run("ROLLBACK");
    assert!(is_dormant(&mut client));
    writer.run(nothing);
    assert!(is_dormant(&mut client));
    client.run("SELECT queue.adopt()");
    for sql in [
        format!("SET track_counts = off; {nothing}; RESET track_counts"),
        "TRUNCATE queue.note_5".into(),
        format!("BEGIN; {touch}; SAVEPOINT a; {nothing}; ROLLBACK TO a; COMMIT"),
        "ALTER TABLE queue.note_5 DISABLE TRIGGER ALL; ALTER TABLE queue.note_5 ENABLE ALWAYS TRIGGER foreign_write"
            .into(),
    ] {
        writer.run(&sql);
        assert!(is_dormant(&mut client), "{sql}");
        assert!(client.count("SELECT FROM queue.restoring") > 0, "{sql}");
        client.run("SELECT queue.adopt()");
    }
    assert!(!is_dormant(&mut client));
}

#[test]
fn it_says_who_has_written_to_what() {
    let cluster = Cluster::new().conf("pg_queue.restore_quiet = '1h'").start();
    let mut client = cluster.create_database("app");
    create(&mut client, "q", "");
    let mut writer = cluster.connect_to("app");
    writer.run("SET application_name = 'fix it'; CREATE ROLE mender SUPERUSER; SET SESSION AUTHORIZATION mender");
    writer.run("BEGIN; UPDATE queue.queue SET max_attempts = 3");
    let by = format!("process {} of role \"mender\" (application \"fix it\") on table queue.queue", writer.pid());
    let refused = client.failure("SELECT queue.enqueue('q')");
    assert!(refused.detail.contains(&by), "{refused:?}");
    let found: String = client.value("SELECT detail FROM queue.doctor() WHERE name = 'restore'");
    assert!(found.contains(&by), "{found}");
    assert!(cluster.log().contains(&by));
}

#[test]
fn views_cannot_be_written_to() {
    let cluster = cluster();
    let mut client = cluster.create_database("app");
    create(&mut client, "q", "");
    let views: Vec<String> = client
        .column("SELECT relname::text FROM pg_class WHERE relnamespace = 'queue'::regnamespace AND relkind = 'v'");
    assert!(views.len() > 10);
    client.run("CREATE ROLE anybody; GRANT USAGE ON SCHEMA queue TO anybody");
    for view in views {
        let column: String = client.value(&format!(
            "SELECT attname::text FROM pg_attribute WHERE attrelid = 'queue.{view}'::regclass AND attnum = 1"
        ));
        for sql in [
            format!("DELETE FROM queue.{view}"),
            format!("DELETE FROM queue.{view} WHERE false"),
            format!("UPDATE queue.{view} SET {column} = NULL WHERE false"),
            format!("INSERT INTO queue.{view} DEFAULT VALUES"),
            format!("COPY queue.{view} FROM PROGRAM 'true'"),
            format!("WITH gone AS (DELETE FROM queue.{view} RETURNING 1) SELECT FROM gone"),
        ] {
            let refused = client.failure(&sql);
            assert_eq!(refused.code, "0A000", "{sql}: {refused:?}");
            assert_eq!(refused.message, format!("view \"queue.{view}\" cannot be written to"), "{sql}");
            assert!(refused.hint.contains("queue"), "{sql}: {refused:?}");
        }
        client.run("SET ROLE anybody");
        assert_eq!(client.failure(&format!("DELETE FROM queue.{view}")).code, "42501");
        client.run("RESET ROLE");
    }
    assert!(!cluster.log().contains("is dormant"), "{}", cluster.log());
    assert_eq!(client.count("SELECT FROM queue.queues"), 1);
}

#[test]
fn a_session_that_has_restored_and_is_busy_with_other_tables_is_waited_for() {
    let cluster = cluster();
    let mut client = cluster.create_database("app");
    create(&mut client, "q", "");
    let mut writer = cluster.connect_to("app");
    writer.run("UPDATE queue.lane SET stage = stage");
    let start = Instant::now();
    let busy = thread::spawn(move || {
        writer.run("SELECT pg_sleep(3)");
        writer
    });
    wait_awake(&mut client);
    assert!(start.elapsed() >= Duration::from_secs(3));
    drop(busy.join().unwrap());
    assert_eq!(cluster.log().matches("which has restored and is still busy").count(), 1, "{}", cluster.log());
}

#[test]
fn ids_behind_the_rows_keep_it_dormant_until_adopt_sets_them() {
    let cluster = cluster();
    let mut client = cluster.create_database("app");
    create(&mut client, "q", "");
    client.enqueue("q");
    let id: i64 = 1_000_000 << 4;
    let row = |id: i64| {
        format!(
            "INSERT INTO queue.attempt_2 (id, job_id, enqueued_at, lane, priority, attempt, payload)
             VALUES ({}, {}, now(), (SELECT min(lane) FROM queue.lane), 0, 1, '7')",
            id + 2,
            id + 15
        )
    };
    // Another node's are no business of this one.
    client.run(&row((5 << 46) + id));
    wait_awake(&mut cluster.connect_to("app"));
    assert!(client.enqueue("q") < id);

    client.run(&row(id));
    client.run(
        "INSERT INTO queue.queue OVERRIDING SYSTEM VALUE SELECT (q).* FROM (
                    SELECT jsonb_populate_record(q, '{\"queue_id\": 900, \"queue_name\": \"restored\"}') AS q
                    FROM queue.queue AS q) AS r",
    );
    client.run("INSERT INTO queue.lane VALUES (700, 900)");
    let told = "stays dormant after a restore";
    wait::until("the worker says why", || cluster.log().contains(told).then_some(()));
    assert!(cluster.log().contains("queue.id_seq has reached"), "{}", cluster.log());
    assert!(is_dormant(&mut client));
    let mut strict = cluster.connect_to("app");
    strict.run("BEGIN ISOLATION LEVEL REPEATABLE READ");
    assert_eq!(strict.failure("SELECT queue.adopt()").code, "25001");
    client.run("SELECT queue.adopt()");
    assert!(client.enqueue("q") > id + 15);
    client.enqueue("restored");
    create(&mut client, "another", "");
    assert_eq!(client.value::<i32>("SELECT max(queue_id) FROM queue.queue"), 901);
    // Those of the queue that was restored, and of the one that was made.
    assert_eq!(client.value::<i32>("SELECT max(lane) FROM queue.lane"), 703);
    assert_eq!(cluster.log().matches(told).count(), 1);
}

#[test]
fn adoption_counts_with_the_commit_and_not_for_what_comes_after() {
    let cluster = cluster();
    cluster.append_conf("pg_queue.restore_quiet = '1h'");
    cluster.reload();
    let mut client = cluster.create_database("app");
    let mut other = cluster.connect_to("app");
    create(&mut client, "q", "");
    let touch = "UPDATE queue.lane SET stage = stage";
    // At the end of a script that restores in one transaction.
    client.run(&format!("BEGIN; {touch}; SELECT queue.adopt()"));
    assert!(is_dormant(&mut other));
    client.run("COMMIT");
    assert!(!is_dormant(&mut other));
    client.run(touch);
    client.run("BEGIN; SELECT queue.adopt(); ROLLBACK");
    assert!(is_dormant(&mut other));
    client.run(&format!("BEGIN; SELECT queue.adopt(); {touch}; COMMIT"));
    assert!(is_dormant(&mut other));
    assert_eq!(other.count("SELECT FROM queue.restoring"), 1);
    client.run("BEGIN; SELECT queue.adopt()");
    other.run(touch);
    client.run("COMMIT");
    assert!(is_dormant(&mut other));
    client.run("SELECT queue.adopt()");
    // In a database that is not dormant it reads everything anew.
    client.run("SELECT queue.enqueue('q'); SELECT queue.adopt()");
    assert_eq!(client.count("SELECT FROM queue.claim('q', 2)"), 1);
}

#[test]
fn the_extension_s_own_sql_is_not_foreign() {
    let cluster = cluster();
    let mut client = cluster.create_database("app");
    create(&mut client, "q", "");
    client.run("SELECT queue.alter('q', lease => '1 s'), queue.pause('q'), queue.resume('q')");
    let job = client.enqueue("q");
    client.run("SELECT queue.complete(id) FROM queue.claim('q')");
    client.run(&format!("SELECT queue.forget({job})"));
    client.run("SELECT queue.drop('q', force => true)");
    assert!(!is_dormant(&mut client));
    assert!(!cluster.log().contains("is dormant"), "{}", cluster.log());
    client.run("SELECT FROM queue.maintain()");
    let refused = client.failure("SELECT queue_internal.foreign_write()");
    assert_eq!(refused.code, "0A000", "{refused:?}");
}

#[test]
fn a_standby_that_is_promoted_in_the_middle_of_a_restore_is_dormant() {
    let primary = cluster();
    primary.append_conf("pg_queue.restore_quiet = '1h'");
    primary.reload();
    let mut client = primary.create_database("app");
    create(&mut client, "q", "");
    let standby = primary.standby();
    standby.wait_replayed(&primary);
    // It has read what there is before the restore begins.
    let mut looker = standby.connect_to("app");
    assert_eq!(looker.failure("SELECT FROM queue.claim('q')").code, "25006");
    looker.count("SELECT FROM queue_internal.running_now()");
    client.run("UPDATE queue.queue SET notify = notify");
    standby.wait_replayed(&primary);
    primary.stop_immediate();
    standby.promote();
    wait::until("it is a primary", || (!looker.value::<bool>("SELECT pg_is_in_recovery()")).then_some(()));
    assert!(is_dormant(&mut looker));
    looker.run("SELECT queue.adopt()");
    looker.enqueue("q");
}

#[test]
fn pg_upgrade_keeps_everything_and_wakes_nothing() {
    let (source, target) = (Source::new(), Cluster::new().conf(QUIET).as_of_initdb());
    source.cluster.stop_fast();
    let bindir = target.bindir().display().to_string();
    let mut upgrade = target.command("pg_upgrade");
    upgrade
        .current_dir(target.dir())
        .args(["-b", &bindir, "-B", &bindir, "-U", "postgres", "--retain", "-s"])
        .arg(target.dir());
    upgrade.arg("-d").arg(source.cluster.data()).arg("-D").arg(target.data());
    let done = upgrade.output().unwrap();
    let printed = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{printed}");
    let logs = target.data().join("pg_upgrade_output.d");
    // The commands that started the servers are there too, with paths that may contain any name.
    let quiet = "log=$(find \"$1\" -name pg_upgrade_server.log -exec grep -v '^command: ' {} +)
        echo \"$log\" | grep -q 'starting PostgreSQL' && ! echo \"$log\" | grep pg_queue";
    run(Command::new("sh").args(["-c", quiet, "sh"]).arg(logs));
    source.cluster.start_again();
    let since = source.cluster.connect().value(NOW);
    target.start_again();
    // This setting of the database has come with it.
    target.connect().run("ALTER DATABASE app RESET pg_queue.worker");
    let mut client = target.connect_to("app");
    assert!(!is_dormant(&mut client));
    assert_eq!(
        client.value::<i64>("SELECT count(*) FROM pg_trigger WHERE tgname = 'foreign_write' AND tgenabled = 'A'"),
        client
            .value::<i64>("SELECT count(*) FROM pg_class WHERE relnamespace = 'queue'::regnamespace AND relkind = 'r'")
    );
    source.check(&mut client, since);
}

#[test]
fn a_restored_job_that_falls_due_later_is_started_then() {
    let cluster = cluster();
    let mut client = cluster.create_database("app");
    create(&mut client, "q", "");
    // The cursor knows that nothing falls due.
    client.run("SELECT FROM queue.claim('q'); SELECT FROM queue.maintain()");
    client.run(
        "INSERT INTO queue.attempt_0 (id, job_id, enqueued_at, lane, priority, attempt, run_at)
         SELECT 16, 31, now(), lane, 0, 1, now() + '2 s' FROM queue.lane WHERE NOT is_held",
    );
    client.run("SELECT pg_catalog.setval('queue.id_seq', 1)");
    wait_awake(&mut cluster.connect_to("app"));
    let sql =
        "SELECT a.job_id, clock_timestamp() >= a.run_at FROM queue.claim('q', wait => '20 s'), queue.attempt_0 AS a";
    let row = client.query_one(sql, &[]).unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, bool>(1)), (31, true));
}
