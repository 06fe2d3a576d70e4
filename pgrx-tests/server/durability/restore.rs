//! A restore into a running server. No job runs before the restore is complete, nothing fails, and ids and settings are
//! right.

use std::process::Command;
use std::sync::Arc;
use std::thread::JoinHandle;

use queue_tests::installation::run;

use crate::shared::*;

/// Much shorter than the default, so that tests need not wait.
const QUIET: &str = "pg_queue.restore_quiet = '1s'";

/// A server that wakes soon after a restore. It is not started.
pub fn cluster() -> Cluster {
    Cluster::new().conf(QUIET).conf("max_prepared_transactions = 5")
}

/// A server whose database `app` has jobs in all states, and a table that takes long to restore.
pub struct Source {
    cluster: Cluster,
    /// A running attempt with a lease of two seconds.
    running: i64,
    jobs: Vec<String>,
    rows: Vec<i64>,
}

/// All jobs except the running one, whose lease may end at any time.
const JOBS: &str = "
    SELECT concat_ws(' ', job_id, queue_name, state, attempt, error, result, payload, max_attempts, priority, run_at,
    progress)
    FROM queue.jobs WHERE queue_name <> 'paused' ORDER BY job_id";

/// Reads the server's clock.
const NOW: &str = "SELECT extract(epoch FROM clock_timestamp())::float8";

/// The four logs.
const ROWS: [&str; 4] = ["attempt", "claim", "outcome", "note"];

pub fn rows(client: &mut Client) -> Vec<i64> {
    let count = |log| {
        let tables: Vec<String> = (0..10).map(|n| format!("SELECT FROM queue_internal.{log}_{n}")).collect();
        format!("SELECT count(*) FROM ({}) AS all_of_them", tables.join(" UNION ALL "))
    };
    ROWS.iter().map(|log| client.value(&count(log))).collect()
}

impl Source {
    fn new() -> Self {
        let (cluster, mut client) = cluster().start_with_database("app");
        // With the worker off no lease ends before the dump. The dump does not contain this setting.
        client.switch_worker_off();
        create(&mut client, "q", "max_attempts => 7, lease => '1 hour', backoff_base => '0', backoff_jitter => 0");
        create(&mut client, "dropped", "");
        client.run("SELECT queue.drop('dropped')");
        create(&mut client, "paused", "lease => '2 s'");
        // Uses ids beyond the first block.
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
        client.run("SELECT queue.pause('paused'), queue.weigh('paused', 'g', 3)");
        // The later part of a restore takes longer than the quiet time.
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

    /// Dumps the database into a file. Returns the file's path.
    fn dump(&self, args: &[&str]) -> String {
        let file = self.cluster.dir().join("dump").display().to_string();
        run(self.cluster.command("pg_dump").args(args).args(["-f", &file, "app"]));
        file
    }

    /// Asserts that the restored database has the same jobs and that they run. No lease of the copy may have begun
    /// before `since`.
    fn check(&self, copy: &mut Client, since: f64) {
        assert_eq!(copy.column::<String>(JOBS), self.jobs);
        let mut source = self.cluster.connect_to("app");
        source.run("BEGIN");
        let order = "SELECT job_id FROM queue.claim('q', 100, lease => '1 hour')";
        assert_eq!(copy.column::<i64>(order), source.column::<i64>(order), "they are claimed in the same order");
        source.run("ROLLBACK");
        // No id is used twice.
        let newest: i64 = copy.value("SELECT max(job_id) FROM queue.jobs");
        let new = copy.enqueue("q");
        assert!(new > newest, "{new} after {newest}");
        create(copy, "another", "");
        copy.enqueue("another");
        assert_eq!(copy.count("SELECT FROM queue.claim('another')"), 1);
        // The running job still runs, under a new lease, and is offered again when that lease expires.
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
        copy.refused(&format!("SELECT queue.complete({})", self.running), "QJ001");
        copy.run(&format!("SELECT queue.complete({})", again.get::<_, i64>(0)));
        assert_eq!(copy.count("SELECT FROM queue_internal.restoring"), 0);
        assert_eq!(copy.value::<f64>("SELECT weight FROM queue_internal.weight"), 3.0);
    }
}

/// Waits until the database is not dormant.
pub fn wait_awake(client: &mut Client) {
    wait::until("it is awake", || match client.simple_query("SELECT queue.purge('no such queue')") {
        Ok(_) => unreachable!(),
        Err(e) if error::code(&e) == "42704" => Some(()),
        Err(e) => {
            assert_eq!(error::code(&e), "55000", "{e:?}");
            None
        }
    });
}

pub fn is_dormant(client: &mut Client) -> bool {
    let refused = client.failure("SELECT queue.purge('no such queue')");
    assert!(["42704", "55000"].contains(&refused.code.as_str()), "{refused:?}");
    refused.code == "55000"
}

/// Claims in a loop. Returns the logs' row counts at the first claimed job, and whether the restore was over.
pub fn worker(cluster: &Cluster, is_over: Arc<AtomicBool>) -> JoinHandle<(Vec<i64>, bool)> {
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
            // Gives the job back, because the test needs it.
            client.run("ROLLBACK");
            match (claimed, found) {
                (Ok(_), Some(rows)) => return (rows, is_over.load(Ordering::SeqCst)),
                (Ok(_), None) => {}
                // The extension or the queue does not exist yet.
                (Err(e), _) if ["3F000", "42883", "42704"].contains(&error::code(&e)) => {}
                // The restore has just dropped the relation, to make it again.
                (Err(e), _) => assert!(error::message(&e).starts_with("could not open relation"), "{e:?}"),
            }
        }
    })
}

/// Restores into the cluster's database `copy` while a worker waits there for a job. `is_serial`: the tables are
/// restored one after the other.
pub fn restore(source: &Source, target: &Cluster, prepare: &str, command: &mut Command, is_serial: bool) {
    target.connect().run("DROP DATABASE IF EXISTS copy WITH (FORCE)");
    target.connect().run("CREATE DATABASE copy");
    target.connect_to("copy").run(prepare);
    let already = target.log().len();
    let is_over = Arc::new(AtomicBool::new(false));
    let worker = worker(target, Arc::clone(&is_over));
    run(command);
    is_over.store(true, Ordering::SeqCst);
    // If tables are restored in parallel, the queue's tables may be complete before others.
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

/// Returns a client program that restores into database `copy`.
fn program(target: &Cluster, program: &str, args: &[&str]) -> Command {
    let mut command = target.command(program);
    command.args(["-d", "copy"]).args(args);
    command
}

#[test]
fn pg_restore_restores_into_the_same_server() {
    let source = Source::new();
    let file = source.dump(&["-Fc"]);
    let server = &source.cluster;
    restore(&source, server, "", &mut program(server, "pg_restore", &["-e", &file]), true);
    // The restore replaces a database with other queues.
    let used =
        "CREATE EXTENSION pg_queue; SELECT queue.create('q'); SELECT queue.pause('q'); SELECT queue.enqueue('q')";
    let args = ["-e", "--clean", "--if-exists", &file];
    restore(&source, server, used, &mut program(server, "pg_restore", &args), true);
}

#[test]
fn pg_restore_restores_into_another_server_with_several_jobs() {
    let (source, target) = (Source::new(), cluster().start());
    let file = source.dump(&["-Fc"]);
    restore(&source, &target, "", &mut program(&target, "pg_restore", &["-e", "-j", "4", &file]), false);
}

#[test]
fn pg_restore_restores_into_another_server_in_one_transaction() {
    let (source, target) = (Source::new(), cluster().start());
    let file = source.dump(&["-Fc"]);
    restore(&source, &target, "", &mut program(&target, "pg_restore", &["-e", "--single-transaction", &file]), true);
}

#[test]
fn psql_restores_a_dump_into_another_server() {
    let (source, target) = (Source::new(), cluster().start());
    let file = source.dump(&[]);
    let args = ["-X", "-q", "-v", "ON_ERROR_STOP=1", "-o", "/dev/null", "-f", &file];
    restore(&source, &target, "", &mut program(&target, "psql", &args), true);
    let args = [&args[..], &["--single-transaction"]].concat();
    restore(&source, &target, "", &mut program(&target, "psql", &args), true);
}

#[test]
fn pg_restore_restores_data_into_a_database_with_empty_queues() {
    let (source, target) = (Source::new(), cluster().start());
    let file = source.dump(&["-Fc", "--schema=queue_internal", "--extension=pg_queue"]);
    let used = "CREATE EXTENSION pg_queue;
                SELECT queue.create('before');
                SELECT count(*) FROM queue.enqueue_many('before', array_fill('1'::jsonb, '{100}'));
                SELECT queue.drop('before', force => true);
                TRUNCATE queue_internal.attempt_0; SELECT queue.adopt()";
    for (prepare, args) in [
        ("CREATE EXTENSION pg_queue", &["-e", "--data-only"][..]),
        // The database was used before.
        (used, &["-e", "--data-only", "-j", "4"]),
        ("CREATE EXTENSION pg_queue", &["-e", "--data-only", "--disable-triggers"]),
        ("CREATE EXTENSION pg_queue", &["-e", "--data-only", "--single-transaction"]),
    ] {
        let args = [args, &[&*file]].concat();
        restore(&source, &target, prepare, &mut program(&target, "pg_restore", &args), !args.contains(&"-j"));
    }
    // Some administrators restore with this setting to avoid foreign keys.
    let mut command = program(&target, "pg_restore", &["-e", "--data-only", &file]);
    command.env("PGOPTIONS", "-c session_replication_role=replica");
    restore(&source, &target, "CREATE EXTENSION pg_queue", &mut command, true);
}

/// Splits a dump for psql after the rows of this table.
fn cut(file: &str, table: &str) -> (String, String) {
    let dump = std::fs::read_to_string(file).unwrap();
    let copy = dump.find(&format!("COPY {table} ")).unwrap();
    let end = copy + dump[copy..].find("\n\\.\n").unwrap() + 4;
    (dump[..end].to_owned(), dump[end..].to_owned())
}

#[test]
fn a_restore_that_a_crash_interrupts_between_two_tables_can_be_finished() {
    let (source, target) = (Source::new(), cluster().start());
    let (first, second) = cut(&source.dump(&[]), "queue_internal.claim_0");
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
        // The restore has stopped, but the database's sequences are behind its rows.
        let told = "stays dormant after a restore";
        wait::until_true("the worker says why it stays dormant", || target.log()[already..].contains(told));
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
fn a_restored_database_stays_dormant_over_crashes_until_it_is_adopted() {
    let (source, target) = (Source::new(), cluster().start());
    target.append_conf("pg_queue.restore_quiet = '1h'");
    target.restart();
    target.connect().run("CREATE DATABASE copy");
    run(&mut program(&target, "psql", &["-X", "-q", "-o", "/dev/null", "-f", &source.dump(&[])]));
    for _ in 0..2 {
        target.restart_immediate();
        assert!(is_dormant(&mut target.connect_to("copy")));
    }
    let mut copy = target.connect_to("copy");
    let since = copy.value(NOW);
    copy.run("SELECT queue.adopt()");
    source.check(&mut copy, since);
    target.restart_immediate();
    assert!(!is_dormant(&mut target.connect_to("copy")), "what was adopted stays so");
}

#[test]
fn a_restored_job_keeps_the_time_by_which_it_must_start() {
    let cluster = cluster().start();
    // With the worker off the late job does not end. The dump does not contain this setting.
    let mut client = cluster.create_database_with("app", "ALTER DATABASE $ SET pg_queue.worker = off");
    create(&mut client, "q", "start_within => '1 day'");
    let late: i64 = client.value("SELECT queue.enqueue('q', start_within => '10 ms')");
    let kept = client.enqueue("q");
    let times = "SELECT start_by::text FROM queue.jobs ORDER BY job_id";
    let known = client.column::<String>(times);
    wait::until_true("its time has come", || {
        let sql = format!("SELECT start_by <= clock_timestamp() FROM queue.job({late})");
        client.value::<bool>(&sql)
    });
    let mut copy = restore_copy(&cluster, "app");
    assert_eq!(client.state(late), "ready", "nobody has ended it before the dump");
    wait_awake(&mut copy);
    assert_eq!(copy.column::<i64>("SELECT job_id FROM queue.claim('q', 10)"), [kept]);
    wait::until_true("it has expired", || copy.state(late) == "expired");
    assert_eq!(copy.column::<String>(times), known);
    integrity::check(&mut copy);
}

#[test]
fn a_dump_of_a_database_in_use_is_whole() {
    let (cluster, mut client) = cluster().start_with_database("app");
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
    let torn = "SELECT FROM queue_internal.life WHERE outcome IS NOT NULL AND claimed_at IS NULL
                OR next_id IS NOT NULL AND NOT EXISTS (SELECT FROM queue_internal.life AS n WHERE n.id = life.next_id)";
    assert_eq!(copy.count(torn), 0);
    let newest: i64 = copy.value("SELECT max(job_id) FROM queue.jobs");
    assert!(copy.enqueue("q") > newest);
    let mut claimed = 0;
    wait::until_true("all jobs are done", || {
        claimed += copy.count("SELECT queue.complete(id) FROM queue.claim('q', 1000)") as i64;
        claimed == unended + 1
    });
}

#[test]
fn a_standby_that_is_promoted_in_the_middle_of_a_restore_is_dormant() {
    let (primary, mut client) = cluster().conf("pg_queue.restore_quiet = '1h'").start_with_database("app");
    create(&mut client, "q", "");
    let standby = primary.standby();
    standby.wait_replayed(&primary);
    // The session reads before the restore begins.
    let mut looker = standby.connect_to("app");
    looker.refused("SELECT FROM queue.claim('q')", "25006");
    looker.count("SELECT FROM queue_internal.running_now()");
    client.run("UPDATE queue_internal.queue SET notify = notify");
    standby.wait_replayed(&primary);
    primary.stop_immediate();
    standby.promote();
    wait::until_true("it is a primary", || !looker.value::<bool>("SELECT pg_is_in_recovery()"));
    assert!(is_dormant(&mut looker));
    looker.run("SELECT queue.adopt()");
    looker.enqueue("q");
}

#[test]
fn pg_upgrade_keeps_everything_and_starts_no_job() {
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
    // The logs also have the commands that started the servers. Their paths may contain any word.
    let quiet = "log=$(find \"$1\" -name pg_upgrade_server.log -exec grep -v '^command: ' {} +)
        echo \"$log\" | grep -q 'starting PostgreSQL' && ! echo \"$log\" | grep pg_queue";
    run(Command::new("sh").args(["-c", quiet, "sh"]).arg(logs));
    source.cluster.start_again();
    let since = source.cluster.connect().value(NOW);
    target.start_again();
    // The upgrade has brought this setting of the database.
    target.connect().run("ALTER DATABASE app RESET pg_queue.worker");
    let mut client = target.connect_to("app");
    assert!(!is_dormant(&mut client));
    assert_eq!(
        client.value::<i64>("SELECT count(*) FROM pg_trigger WHERE tgname = 'foreign_write' AND tgenabled = 'A'"),
        client.value::<i64>(
            "SELECT count(*) FROM pg_class WHERE relnamespace = 'queue_internal'::regnamespace AND relkind = 'r'"
        )
    );
    source.check(&mut client, since);
}

#[test]
fn a_restored_job_that_falls_due_later_starts_at_its_time() {
    let (cluster, mut client) = cluster().start_with_database("app");
    create(&mut client, "q", "");
    // The lane's cursor says that no job falls due.
    client.run("SELECT FROM queue.claim('q'); SELECT FROM queue.maintain()");
    client.run(
        "INSERT INTO queue_internal.attempt_0 (id, job_id, enqueued_at, lane, priority, attempt, run_at)
         SELECT 16, 31, now(), lane, 0, 1, now() + '2 s' FROM queue_internal.lane WHERE NOT is_held",
    );
    client.run("SELECT pg_catalog.setval('queue_internal.id_seq', 1)");
    wait_awake(&mut cluster.connect_to("app"));
    let sql = "SELECT a.job_id, clock_timestamp() >= a.run_at
        FROM queue.claim('q', wait => '20 s'), queue_internal.attempt_0 AS a";
    let row = client.query_one(sql, &[]).unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, bool>(1)), (31, true));
}
