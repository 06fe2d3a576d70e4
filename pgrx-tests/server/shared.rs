//! One server for all tests that neither stop it nor change its settings. A test gets its own queue in database `app`,
//! or its own database if other tests must not disturb it. Each file imports all of this module, including the names of
//! other crates that most files use.

pub use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;
use std::sync::atomic::AtomicU32;
pub use std::sync::atomic::{AtomicBool, Ordering};
pub use std::sync::{Barrier, Mutex};
pub use std::thread;
pub use std::thread::JoinHandle;
pub use std::time::{Duration, Instant};

use postgres::types::FromSqlOwned;
pub use postgres::{Client, NoTls};
use queue_tests::installation::run;
pub use queue_tests::random::{self, Random};
pub use queue_tests::sql::{Failure, Sql, retry_dead, wait_asleep, wait_blocked};
pub use queue_tests::{Cluster, Fault, StopAtEnd, error, integrity, wait};

static SERVER: LazyLock<Cluster> = LazyLock::new(|| {
    let server = Cluster::with(&[
        "max_connections = 200",
        "max_worker_processes = 80",
        "max_prepared_transactions = 20",
        "pg_queue.max_databases = 64",
        "pg_queue.max_lanes = 1024",
        "pg_queue.max_executors = 24",
        "pg_queue.max_ready = 512",
    ])
    .start();
    server.create_database("app");
    server
});

/// Returns the server. It runs until the test binary ends.
pub fn server() -> &'static Cluster {
    &SERVER
}

/// Opens a connection to the database that most tests share.
pub fn connect() -> Client {
    server().connect_to("app")
}

/// Makes a queue for one test in the shared database, with these options of `queue.create`. Returns a connection and
/// the queue's name.
pub fn queue(options: &str) -> (Client, String) {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let name = format!("q{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    let mut client = connect();
    create(&mut client, &name, options);
    (client, name)
}

/// Makes a queue with these options of `queue.create`, such as `"max_attempts => 1"`.
pub fn create(client: &mut Client, name: &str, options: &str) {
    let comma = if options.is_empty() { "" } else { ", " };
    client.run(&format!("SELECT queue.create('{name}'{comma}{options})"));
}

/// A database with the extension for one test. It is dropped with the value. A test with thousands of jobs uses one
/// too, because they would slow down other tests in the shared database.
pub struct Database {
    pub name: String,
}

impl Database {
    /// Makes a database in which only `queue.maintain()` does the worker's duties.
    pub fn without_worker() -> Self {
        Self::make("ALTER DATABASE $ SET pg_queue.worker = off")
    }

    /// Makes a database with a worker.
    pub fn new() -> Self {
        Self::make("")
    }

    fn make(settings: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("d{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        server().create_database_with(&name, settings);
        Self { name }
    }

    /// Makes a queue in it with these options of `queue.create`. Also returns a connection to it as superuser.
    pub fn with_queue(self, name: &str, options: &str) -> (Self, Client) {
        let mut client = self.connect();
        create(&mut client, name, options);
        (self, client)
    }

    /// Opens a connection to it as superuser.
    pub fn connect(&self) -> Client {
        server().connect_to(&self.name)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // The server does not outlive the tests, so a database that cannot be dropped does no harm.
        if let Ok(mut client) = server().config().connect(NoTls) {
            let _ = client.batch_execute(&format!("DROP DATABASE {} WITH (FORCE)", self.name));
        }
    }
}

/// For how many seconds the lease of this attempt still lasts, by memory.
pub fn lease_left(client: &mut Client, id: i64) -> f64 {
    client
        .value(&format!("SELECT extract(epoch FROM queue_internal.lease_expires_at({id}) - clock_timestamp())::float8"))
}

/// For how many seconds the lease of this running job still lasts, by the view.
pub fn lease_left_of_job(client: &mut Client, job_id: i64) -> f64 {
    client.value(&format!(
        "SELECT extract(epoch FROM lease_expires_at - clock_timestamp())::float8 FROM queue.job({job_id})"
    ))
}

/// Dumps this database, and restores it into database `copy` of the same server. Returns a connection to the copy,
/// which is dormant at first.
pub fn restore_copy(cluster: &Cluster, database: &str) -> Client {
    let file = cluster.dir().join("dump").display().to_string();
    run(cluster.command("pg_dump").args(["-Fc", "-f", &file, database]));
    cluster.connect().run("CREATE DATABASE copy TEMPLATE template0");
    run(cluster.command("pg_restore").args(["-e", "-d", "copy", &file]));
    cluster.connect_to("copy")
}

/// Runs a statement in this session. Returns when the session sleeps. The thread returns the rows' first column.
pub fn asleep<T: FromSqlOwned + Send + 'static>(
    observer: &mut Client,
    mut session: Client,
    sql: impl Into<String>,
) -> JoinHandle<Vec<T>> {
    let (pid, sql) = (session.pid(), sql.into());
    let running = thread::spawn(move || session.column(&sql));
    wait_asleep(observer, pid);
    running
}

/// Runs a statement in this session. Returns when it waits for another transaction. The thread returns the first row's
/// value, or the failure.
pub fn blocked<T: FromSqlOwned + Send + 'static>(
    observer: &mut Client,
    mut session: Client,
    sql: impl Into<String>,
) -> JoinHandle<Result<T, Failure>> {
    let (pid, sql) = (session.pid(), sql.into());
    let running =
        thread::spawn(move || session.query_one(&sql, &[]).map(|row| row.get(0)).map_err(|e| Failure::from(&e)));
    wait_blocked(observer, pid);
    running
}

/// Does the duties until the job is in this state.
pub fn becomes(client: &mut Client, job: i64, state: &str) {
    client.maintain_until(&format!("(SELECT state FROM queue.job({job})) = '{state}'"));
}

/// Does the duties and checks that the job still has this state.
pub fn stays(client: &mut Client, job: i64, state: &str) {
    for _ in 0..3 {
        client.run("SELECT queue.maintain()");
        assert_eq!(client.state(job), state);
    }
}
