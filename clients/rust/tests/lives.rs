//! Workers, connections and servers come to an end, and no job is lost or has its effect twice.

mod support;

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pg_queue_client::testing::Server;
use pg_queue_client::{Batch, Failure, Job, Options, Worker, enqueue, enqueue_many};
use serde_json::{Value, json};
use support::{Database, EFFECT, running, until};
use tokio::time::sleep;
use tokio_postgres::types::Type;

async fn effect(job: Job) -> Result<(), Failure> {
    let transaction = job.transaction().await?;
    transaction.execute_typed(EFFECT, &[(&job.job_id, Type::INT8), (&job.attempt, Type::INT4)]).await?;
    Ok(transaction.complete(()).await?)
}

/// What a worker's process does with a job: so many seconds, deaf or not, or even in the way of all else.
async fn slow(job: Job) -> Result<(), Failure> {
    job.save_progress("begun").await?;
    let time = Duration::from_secs_f64(job.payload["seconds"].as_f64().unwrap_or(0.0));
    if job.payload["deaf"] == json!(true) {
        tokio::task::block_in_place(|| std::thread::sleep(time));
    }
    if job.payload["blocks"] == json!(true) {
        std::thread::sleep(time);
    }
    sleep(time).await;
    effect(job).await
}

/// No test: the worker as a process of its own, which the tests start, stop and kill.
#[test]
fn process() {
    let Ok(options) = std::env::var("QUEUE_TEST_WORKER") else { return };
    let options: Value = serde_json::from_str(&options).unwrap();
    let mut worker = Worker::new(options["config"].as_str().unwrap()).unwrap().handler("a", slow).handler("b", slow);
    let seconds = |name: &str| options[name].as_f64().map(Duration::from_secs_f64);
    if let Some(count) = options["concurrency"].as_u64() {
        worker = worker.concurrency(count as usize);
    }
    if let Some(count) = options["prefetch"].as_u64() {
        worker = worker.prefetch(count as usize);
    }
    if let Some(time) = seconds("shutdown_timeout") {
        worker = worker.shutdown_timeout(time);
    }
    if let Some(time) = seconds("heartbeat") {
        worker = worker.heartbeat(time);
    }
    if let Some(time) = seconds("stall_timeout") {
        worker = worker.stall_timeout(time);
    }
    let threads = options["threads"].as_u64().unwrap_or(4) as usize;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build().unwrap();
    runtime.block_on(worker.run()).unwrap();
    // What is deaf would keep the runtime from its end.
    std::process::exit(0);
}

/// A worker's process, which does not outlive the test.
struct Process(Child);

impl Process {
    fn start(db: &Database, mut options: Value) -> Self {
        options["config"] = json!(db.config());
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["process", "--exact"]).env("QUEUE_TEST_WORKER", options.to_string());
        Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    fn signal(&self, name: &str) {
        assert!(Command::new("kill").args([name, &self.0.id().to_string()]).status().unwrap().success());
    }

    async fn ended(&mut self) -> ExitStatus {
        let end = Instant::now() + Duration::from_secs(40);
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < end, "the worker's process has not ended");
            sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn begun(db: &Database, id: i64) {
    until("it runs", async || {
        let progress: Option<Value> = db.one("SELECT progress FROM queue.job($1)", &[&id]).await;
        (progress == Some(json!("begun"))).then_some(())
    })
    .await;
}

async fn given_back(db: &Database, id: i64) {
    let sql = "SELECT state = 'ready' AND attempt = 1 FROM queue.job($1)";
    assert!(db.one::<bool>(sql, &[&id]).await);
}

const SLEEPS: &str = "SELECT count(*) > 0 FROM pg_stat_activity
    WHERE query ~ 'claim_any' AND state = 'active' AND pid <> pg_backend_pid() AND datname = current_database()";

#[tokio::test]
async fn sigterm_ends_an_idle_worker_at_once() {
    let db = Database::new().await;
    let mut worker = Process::start(&db, json!({}));
    db.wait_true("it waits", SLEEPS).await;
    let begun = Instant::now();
    worker.signal("-TERM");
    assert!(worker.ended().await.success());
    assert!(begun.elapsed() < Duration::from_secs(5), "the wait of ten seconds was not cancelled");
}

#[tokio::test]
async fn sigterm_finishes_what_runs_and_gives_back_the_rest() {
    let db = Database::new().await;
    let ids = enqueue_many(&db.client, "a", vec![json!({"seconds": 1}); 4], Options::new()).await.unwrap();
    let mut worker = Process::start(&db, json!({"concurrency": 1, "prefetch": 3}));
    begun(&db, ids[0]).await;
    worker.signal("-TERM");
    assert!(worker.ended().await.success());
    assert_eq!(db.state(ids[0]).await, "completed");
    for id in &ids[1..] {
        given_back(&db, *id).await;
    }
}

#[tokio::test]
async fn what_does_not_end_in_time_is_given_back() {
    for (deaf, twice) in [(false, false), (true, false), (false, true), (true, true)] {
        let db = Database::new().await;
        let job = json!({"seconds": 60, "deaf": deaf});
        let id = enqueue(&db.client, "a", job, Options::new()).await.unwrap();
        // A second SIGTERM ends the wait.
        let mut worker = Process::start(&db, json!({"shutdown_timeout": if twice { 50.0 } else { 0.2 }}));
        begun(&db, id).await;
        worker.signal("-TERM");
        if twice {
            db.wait_true("it claims no more", &format!("SELECT NOT ({SLEEPS})")).await; // two signals at once are one
            worker.signal("-TERM");
        }
        assert!(worker.ended().await.success());
        given_back(&db, id).await;
    }
}

#[tokio::test]
async fn a_killed_workers_jobs_run_again() {
    let db = Database::new().await;
    let id = enqueue(&db.client, "b", json!({"seconds": 1}), Options::new()).await.unwrap(); // a lease of one second
    let mut worker = Process::start(&db, json!({"heartbeat": 0.1}));
    begun(&db, id).await;
    worker.signal("-KILL");
    worker.ended().await;
    let _other = Process::start(&db, json!({}));
    db.wait_state(id, "completed").await;
    assert_eq!(db.one::<i32>("SELECT attempt FROM effect", &[]).await, 2);
}

#[tokio::test]
async fn a_worker_without_progress_ends_its_process() {
    let db = Database::new().await;
    let id = enqueue(&db.client, "a", json!({"seconds": 60, "deaf": true}), Options::new()).await.unwrap();
    let mut worker = Process::start(&db, json!({"concurrency": 1, "heartbeat": 0.1, "stall_timeout": 0.5}));
    begun(&db, id).await;
    // As long as it holds its lease it may be deaf.
    assert!(worker.0.try_wait().unwrap().is_none());
    db.client.execute("SELECT queue.cancel($1, force => true)", &[&id]).await.unwrap();
    assert_eq!(worker.ended().await.code(), Some(70));
    // One that is in the way of all else is not waited for.
    let id = enqueue(&db.client, "a", json!({"seconds": 60, "blocks": true}), Options::new()).await.unwrap();
    let mut worker = Process::start(&db, json!({"threads": 1, "stall_timeout": 0.5}));
    begun(&db, id).await;
    assert_eq!(worker.ended().await.code(), Some(70));
}

const TERMINATE: &str = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
    WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND datname = current_database()";

#[tokio::test]
async fn connections_that_end_under_running_handlers() {
    let db = Database::new().await;
    let ids = enqueue_many(&db.client, "b", 0..300, Options::new()).await.unwrap();
    let worker = db.worker().concurrency(4).prefetch(4).heartbeat(Duration::from_millis(200)).handler("b", effect);
    running(worker, async {
        for share in [30, 90, 150] {
            until("some have been done", async || (db.effects().await.len() > share).then_some(())).await;
            db.client.query(TERMINATE, &[]).await.unwrap();
        }
        db.wait_true("all are completed", "SELECT bool_and(state = 'completed') FROM queue.jobs").await;
    })
    .await;
    assert_eq!(db.effects().await, ids);
}

/// The claims take completions along when their connections end: each is told once more, and counts once. What was claimed on
/// such a connection is given back, so that no lease has to end.
#[tokio::test]
async fn connections_that_end_while_completions_are_gathered() {
    let db = Database::new().await;
    let ids = enqueue_many(&db.client, "a", 0..4000, Options::new()).await.unwrap();
    let worker = db.worker().concurrency(20).prefetch(100).session_bound().handler("a", |_| async { Ok(()) });
    running(worker, async {
        let sql = "SELECT count(*) FROM queue.jobs WHERE state = 'completed'";
        for share in [300, 1200, 2500] {
            until("some have been done", async || (db.one::<i64>(sql, &[]).await > share).then_some(())).await;
            db.client.query(TERMINATE, &[]).await.unwrap();
        }
        until("all are completed", async || {
            let left: i64 = db.one("SELECT count(*) FROM queue.jobs WHERE finished_at IS NULL", &[]).await;
            (left == 0).then_some(())
        })
        .await;
    })
    .await;
    let done: i64 = db.one("SELECT count(*) FROM queue.attempts WHERE state = 'completed'", &[]).await;
    assert_eq!(done, ids.len() as i64);
}

/// A lease that is over when its completion comes: the worker says that it was lost, and the job runs again.
#[tokio::test]
async fn a_lease_that_is_lost_while_completions_are_gathered() {
    let db = Database::new().await;
    let ids = enqueue_many(&db.client, "a", 0..20, Options::new()).await.unwrap();
    let lost = Arc::new(std::sync::Mutex::new(Vec::new()));
    let (seen, held) = (lost.clone(), Arc::new(AtomicBool::new(true)));
    let (waits, first) = (held.clone(), ids[0]);
    let worker = db
        .worker()
        .concurrency(20)
        .heartbeat(Duration::from_secs(60))
        .on_event(move |event| {
            if event.kind == pg_queue_client::EventKind::Lost {
                seen.lock().unwrap().push(event.job_id);
            }
        })
        .handler("a", move |job| {
            let waits = waits.clone();
            async move {
                while waits.load(Ordering::SeqCst) {
                    sleep(Duration::from_millis(5)).await;
                }
                drop(job);
                Ok(())
            }
        });
    running(worker, async {
        db.wait_true("all run", "SELECT bool_and(state = 'running') FROM queue.jobs").await;
        db.client.execute("SELECT queue.cancel($1, force => true)", &[&first]).await.unwrap();
        held.store(false, Ordering::SeqCst);
        db.wait_true("all have ended", "SELECT bool_and(finished_at IS NOT NULL) FROM queue.jobs").await;
        until("it is told", async || (*lost.lock().unwrap() == [first]).then_some(())).await;
    })
    .await;
    assert_eq!(db.state(first).await, "cancelled");
}

#[tokio::test]
async fn a_backend_that_is_killed_takes_all_others_along() {
    let mut db = Database::alone().await;
    let id = enqueue(&db.client, "a", json!({}), Options::new()).await.unwrap();
    let worker = db.worker().handler("a", |job: Job| async move {
        let transaction = job.transaction().await?;
        transaction.execute_typed(EFFECT, &[(&job.job_id, Type::INT8), (&job.attempt, Type::INT4)]).await?;
        if job.attempt == 1 {
            let pid: i32 = transaction.query_typed_one("SELECT pg_backend_pid()", &[]).await?.get(0);
            assert!(Command::new("kill").args(["-9", &pid.to_string()]).status()?.success());
        }
        Ok(transaction.complete(()).await?)
    });
    running(worker, async {
        until("the server has gone down", async || db.client.query("SELECT 1", &[]).await.err()).await;
        db.again().await;
        db.wait_state(id, "completed").await;
    })
    .await;
    assert_eq!(db.one::<i32>("SELECT attempt FROM effect", &[]).await, 2);
}

#[tokio::test]
async fn a_restart_under_load() {
    for mode in ["fast", "immediate"] {
        let mut db = Database::alone().await;
        let ids = enqueue_many(&db.client, "b", 0..400, Options::new()).await.unwrap();
        let all = |batch: Batch| async move {
            let transaction = batch.transaction().await?;
            for job in batch.iter() {
                let values = [(&job.job_id as _, Type::INT8), (&job.attempt as _, Type::INT4)];
                transaction.execute_typed(EFFECT, &values).await?;
            }
            transaction.complete().await
        };
        let worker = db.worker().concurrency(8).prefetch(10);
        let worker = if mode == "fast" { worker.handler("b", effect) } else { worker.batch_handler("b", 4, all) };
        running(worker, async {
            until("some have been done", async || (db.effects().await.len() > 50).then_some(())).await;
            db.server.stop(mode);
            db.server.start_again();
            db.again().await;
            db.wait_true("all are completed", "SELECT bool_and(state = 'completed') FROM queue.jobs").await;
        })
        .await;
        assert_eq!(db.effects().await, ids);
    }
}

#[tokio::test]
async fn several_hosts_and_a_promotion() {
    let primary = Database::alone().await;
    let standby = Server::with_settings(&[("hot_standby", "on")]);
    primary.server.base_backup(&standby);
    let hosts = format!("{},{}", standby.dir().display(), primary.server.dir().display());
    let config = format!("host={hosts} user=postgres dbname={}", primary.name);
    let worker = Worker::new(&config).unwrap().handler("a", |_| async { Ok(()) });
    running(worker, async {
        let id = enqueue(&primary.client, "a", json!({}), Options::new()).await.unwrap();
        primary.wait_state(id, "completed").await;
        primary.server.stop("immediate");
        standby.promote();
        let client = standby.connect(&primary.name).await.unwrap();
        let id = enqueue(&client, "a", json!({}), Options::new()).await.unwrap();
        until("the new primary's job is done", async || {
            let state: String = client.query_one("SELECT state FROM queue.job($1)", &[&id]).await.unwrap().get(0);
            (state == "completed").then_some(())
        })
        .await;
    })
    .await;
}

/// All processes of a server stand still: its connections are there, and nobody answers. The last of these is the
/// server's first, which stops first and goes on last: it would start others, and remove those that have ended, meanwhile.
struct Silence(Vec<String>);

impl Silence {
    async fn of(server: &Server) -> Self {
        let file = std::fs::read_to_string(server.data().join("postmaster.pid")).unwrap();
        let first = file.lines().next().unwrap();
        let read = |name: &str| std::fs::read_to_string(format!("/proc/{first}/{name}")).unwrap();
        signal("-STOP", &[first.to_owned()]);
        until("it stands still", async || read("stat").contains(") T ").then_some(())).await;
        let mut processes: Vec<String> =
            read(&format!("task/{first}/children")).split_whitespace().map(str::to_owned).collect();
        signal("-STOP", &processes);
        processes.push(first.to_owned());
        Self(processes)
    }
}

fn signal(name: &str, processes: &[String]) {
    assert!(Command::new("kill").arg(name).args(processes).status().unwrap().success());
}

impl Drop for Silence {
    fn drop(&mut self) {
        signal("-CONT", &self.0);
    }
}

#[tokio::test]
async fn a_worker_ends_without_a_server_that_answers() {
    let db = Database::alone().await;
    for is_busy in [false, true] {
        let id = enqueue(
            &db.client,
            "a",
            json!({ "seconds": 60 }),
            Options::new().delay(Duration::from_secs(if is_busy { 0 } else { 3600 })),
        )
        .await
        .unwrap();
        let mut worker = Process::start(&db, json!({ "concurrency": 2, "heartbeat": 0.1 }));
        db.wait_true("it waits", SLEEPS).await;
        if is_busy {
            begun(&db, id).await;
        }
        let _silence = Silence::of(&db.server).await;
        worker.signal("-TERM");
        worker.signal("-INT");
        assert!(worker.ended().await.success());
    }
}

/// A pooler in front of the server, which ends with the test; not before.
struct Pooler {
    child: Child,
    file: PathBuf,
}

impl Pooler {
    const PORT: u16 = 6432;

    fn start(server: &Server, mode: &str) -> Self {
        let (dir, port, file) = (server.dir().display(), Self::PORT, server.dir().join("pgbouncer.ini"));
        let text = format!(
            "[databases]\n* = host={dir} port=5432 user=postgres\n[pgbouncer]\nlisten_port = {port}\n\
             unix_socket_dir = {dir}\nauth_type = any\npool_mode = {mode}\ndefault_pool_size = 8\n\
             server_round_robin = 1\nserver_reset_query_always = 1\nmax_client_conn = 50\n"
        );
        std::fs::write(&file, text).unwrap();
        Self { child: Self::spawn(&file), file }
    }

    fn spawn(file: &Path) -> Child {
        let programs = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer", "/usr/local/bin/pgbouncer"];
        let program = programs.into_iter().find(|program| Path::new(program).exists());
        let program =
            program.expect("there is no PgBouncer: run `make clients`, or as root: apt-get install pgbouncer");
        let is_root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
        let mut command = Command::new(program);
        command.arg("--quiet").args(is_root.then_some("--user=postgres")).arg(file);
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    /// It is killed and comes back.
    fn restart(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        std::fs::remove_file(self.file.with_file_name(format!(".s.PGSQL.{}", Self::PORT))).unwrap();
        self.child = Self::spawn(&self.file);
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let ended = self.child.try_wait().unwrap();
        let _ = self.child.kill();
        let _ = self.child.wait();
        assert!(ended.is_none() || std::thread::panicking(), "PgBouncer has ended by itself");
    }
}

#[tokio::test]
async fn behind_pgbouncer() {
    for mode in ["transaction", "session"] {
        let db = Database::alone().await;
        let mut pooler = Pooler::start(&db.server, mode);
        let config = format!("{} port={}", db.config(), Pooler::PORT);
        let connects = async || tokio_postgres::connect(&config, tokio_postgres::NoTls).await.is_ok().then_some(());
        until("it takes connections", connects).await;
        let ids = enqueue_many(&db.client, "b", 0..100, Options::new()).await.unwrap();
        let mut worker = Worker::new(&config).unwrap().concurrency(3).heartbeat(Duration::from_millis(100));
        if mode == "session" {
            worker = worker.session_bound();
        }
        let forever = |job: Job| async move {
            std::future::pending::<()>().await;
            drop(job);
            Ok(())
        };
        let worker = worker.handler("b", effect).handler("a", forever);
        let stopped = running(worker, async {
            until("some have been done", async || (db.effects().await.len() > 30).then_some(())).await;
            pooler.restart();
            until("all have been done", async || (db.effects().await.len() == 100).then_some(())).await;
            let id = enqueue(&db.client, "a", json!({}), Options::new()).await.unwrap();
            db.wait_state(id, "running").await;
            db.client.execute("SELECT queue.cancel($1)", &[&id]).await.unwrap();
            db.wait_state(id, "cancelled").await;
            Instant::now()
        })
        .await;
        assert!(stopped.elapsed() < Duration::from_secs(5), "the waiting claim was not cancelled");
        assert_eq!(db.effects().await, ids);
    }
}
