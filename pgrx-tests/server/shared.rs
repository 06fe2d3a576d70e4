//! One server for all tests that neither stop it nor change its settings, and short words for what they do.
//! A test gets a queue of its own in database `app`, or a database of its own when it must not be disturbed.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use postgres::types::FromSqlOwned;
use postgres::{Client, NoTls};
use queue_tests::{Cluster, error, wait};

static SERVER: LazyLock<Cluster> = LazyLock::new(|| {
    let server = Cluster::new()
        .conf("max_connections = 200")
        .conf("max_worker_processes = 80")
        .conf("max_prepared_transactions = 20")
        .conf("pg_queue.max_databases = 64")
        .conf("pg_queue.max_lanes = 1024")
        .conf("pg_queue.max_ready = 512")
        .start();
    server.create_database("app");
    server
});

/// The server. It runs until the test binary ends.
pub fn server() -> &'static Cluster {
    &SERVER
}

/// A new connection to the database that most tests share.
pub fn connect() -> Client {
    server().connect_to("app")
}

/// A queue of the test's own in the shared database, with these options of `queue.create`, and a connection.
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

/// A database of the test's own with the extension in it; dropped with the value.
pub struct Database {
    pub name: String,
}

impl Database {
    /// A database in which nobody does the worker's duties but `queue.maintain()`.
    pub fn without_worker() -> Self {
        Self::make("ALTER DATABASE $ SET pg_queue.worker = off")
    }

    /// A database as any.
    pub fn new() -> Self {
        Self::make("")
    }

    /// The extension comes last, so that its worker knows the settings.
    fn make(settings: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("d{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let mut client = connect();
        client.run(&format!("CREATE DATABASE {name}"));
        client.run(&settings.replace('$', &name));
        let database = Self { name };
        database.connect().run("CREATE EXTENSION pg_queue");
        database
    }

    /// A connection to it as superuser.
    pub fn connect(&self) -> Client {
        server().connect_to(&self.name)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // The database and its workers would only be in the way; the server does not outlive the tests.
        if let Ok(mut client) = server().config().connect(NoTls) {
            let _ = client.batch_execute(&format!("DROP DATABASE {} WITH (FORCE)", self.name));
        }
    }
}

/// What the server said of a statement that failed.
#[derive(Debug)]
pub struct Failure {
    pub code: String,
    pub message: String,
    pub detail: String,
    pub hint: String,
}

impl From<&postgres::Error> for Failure {
    fn from(e: &postgres::Error) -> Self {
        assert!(e.as_db_error().is_some(), "not an error of the server: {e:?}");
        let owned = |text: Option<&str>| text.unwrap_or_default().to_owned();
        Self {
            code: error::code(e).to_owned(),
            message: error::message(e).to_owned(),
            detail: owned(error::detail(e)),
            hint: owned(error::hint(e)),
        }
    }
}

/// Short words for a test's statements. All panic, naming the statement, when it does not do as expected.
pub trait Sql {
    /// Runs statements.
    fn run(&mut self, sql: &str);
    /// The first column of all rows.
    fn column<T: FromSqlOwned>(&mut self, sql: &str) -> Vec<T>;
    /// The only value of the only row.
    fn value<T: FromSqlOwned>(&mut self, sql: &str) -> T;
    /// How the statement fails.
    fn failure(&mut self, sql: &str) -> Failure;
    /// Claims a job that is there and tells the attempt's id.
    fn claim(&mut self, queue: &str) -> i64;
    /// Enqueues a job and tells its id.
    fn enqueue(&mut self, queue: &str) -> i64;
    /// How many rows the statement returns.
    fn count(&mut self, sql: &str) -> usize;
    /// The process at the other end.
    fn pid(&mut self) -> i32;
    /// The state of a job.
    fn state(&mut self, job_id: i64) -> String;
    /// Waits until the background worker, or `queue.maintain()`, has made this condition true.
    fn maintain_until(&mut self, condition: &str);
}

impl Sql for Client {
    fn run(&mut self, sql: &str) {
        self.batch_execute(sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    }

    fn column<T: FromSqlOwned>(&mut self, sql: &str) -> Vec<T> {
        let rows = self.query(sql, &[]).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
        rows.iter().map(|row| row.try_get(0).unwrap_or_else(|e| panic!("{sql}: {e:?}"))).collect()
    }

    fn value<T: FromSqlOwned>(&mut self, sql: &str) -> T {
        let mut values = self.column(sql);
        assert_eq!(values.len(), 1, "{sql}: rows");
        values.remove(0)
    }

    fn failure(&mut self, sql: &str) -> Failure {
        match self.simple_query(sql) {
            Ok(answer) => panic!("{sql}: no error, but {answer:?}"),
            Err(e) => Failure::from(&e),
        }
    }

    fn claim(&mut self, queue: &str) -> i64 {
        self.value(&format!("SELECT id FROM queue.claim('{queue}')"))
    }

    fn enqueue(&mut self, queue: &str) -> i64 {
        self.value(&format!("SELECT queue.enqueue('{queue}')"))
    }

    fn count(&mut self, sql: &str) -> usize {
        self.query(sql, &[]).unwrap_or_else(|e| panic!("{sql}: {e:?}")).len()
    }

    fn pid(&mut self) -> i32 {
        self.value("SELECT pg_backend_pid()")
    }

    fn state(&mut self, job_id: i64) -> String {
        self.value(&format!("SELECT state FROM queue.job({job_id})"))
    }

    fn maintain_until(&mut self, condition: &str) {
        wait::until(condition, || {
            self.run("SELECT FROM queue.maintain()");
            self.value::<bool>(&format!("SELECT {condition}")).then_some(())
        });
    }
}

/// Waits until this session sleeps inside a claim or `queue.wait`.
pub fn wait_asleep(client: &mut Client, pid: i32) {
    let sql = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE pid = {pid} AND state = 'active' AND wait_event_type = 'Extension'"
    );
    wait::until("the session sleeps", || (client.value::<i64>(&sql) == 1).then_some(()));
}

/// Waits until this session waits for another one's transaction.
pub fn wait_blocked(client: &mut Client, pid: i32) {
    let sql = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {pid} AND wait_event_type = 'Lock'");
    wait::until("the session waits", || (client.value::<i64>(&sql) == 1).then_some(()));
}
