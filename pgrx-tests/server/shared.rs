//! One server for all tests that neither stop it nor change its settings.
//! A test gets a queue of its own in database `app`, or a database of its own when it must not be disturbed.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use postgres::{Client, NoTls};
use queue_tests::Cluster;
pub use queue_tests::sql::{Failure, Sql, retry_dead, wait_asleep, wait_blocked};

static SERVER: LazyLock<Cluster> = LazyLock::new(|| {
    let server = Cluster::new()
        .conf("max_connections = 200")
        .conf("max_worker_processes = 80")
        .conf("max_prepared_transactions = 20")
        .conf("pg_queue.max_databases = 64")
        .conf("pg_queue.max_lanes = 1024")
        .conf("pg_queue.max_executors = 24")
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

/// A database of the test's own with the extension in it; dropped with the value. Also for a test of thousands of jobs,
/// which would slow down each look of the others at the jobs of the shared database.
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

    fn make(settings: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("d{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        server().create_database_with(&name, settings);
        Self { name }
    }

    /// Makes a queue in it, with these options of `queue.create`. Returns also a connection to it as superuser.
    pub fn with_queue(self, name: &str, options: &str) -> (Self, Client) {
        let mut client = self.connect();
        create(&mut client, name, options);
        (self, client)
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

/// Does the duties until the job is in this state.
pub fn becomes(client: &mut Client, job: i64, state: &str) {
    client.maintain_until(&format!("(SELECT state FROM queue.job({job})) = '{state}'"));
}

/// Does the duties, and checks that the job is in this state afterwards.
pub fn stays(client: &mut Client, job: i64, state: &str) {
    for _ in 0..3 {
        client.run("SELECT queue.maintain()");
        assert_eq!(client.state(job), state);
    }
}
