//! Where a worker works: a database of its own on the test's server, and how to connect to it.

use std::fmt::{Display, Formatter};
use std::fs::File;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use postgres::Client;
use postgres::types::{FromSqlOwned, ToSql};
use queue_tests::pooler::Pooler;
use queue_tests::{Cluster, KilledAtEnd, wait};

use crate::language::{Language, example};

/// A server with a place for each language and each way to connect.
pub struct Places {
    // The order matters: the pooler ends before its server.
    pub all: Vec<Place>,
    _pooler: Pooler,
    pub cluster: Cluster,
}

impl Places {
    /// Makes the places. Their leases are short, so that a test can wait until they end.
    pub fn new() -> Self {
        let cluster = Cluster::new().start();
        let pooler = Pooler::start(&cluster);
        let setup = std::fs::read_to_string(example("setup.sql")).expect("setup.sql");
        let mut all = Vec::new();
        for language in Language::all_here() {
            for is_pooled in [false, true] {
                let database = format!("{language:?}{}", if is_pooled { " pooled" } else { "" });
                let mut client = cluster.create_database(&database);
                client.batch_execute(&setup).expect("setup.sql");
                let short = "SELECT queue.alter('greetings', lease => '6 seconds', backoff_base => '100 ms')";
                client.execute(short, &[]).expect("the queue");
                all.push(Place { database, language, is_pooled, client: Mutex::new(client) });
            }
        }
        Self { all, _pooler: pooler, cluster }
    }

    /// Reconnects the tests themselves after a restart of the server.
    pub fn connect_again(&self) {
        for place in &self.all {
            let client = place.connect(&self.cluster);
            *place.client() = client;
        }
    }
}

/// A database for the workers of one language. All connect in the same way.
pub struct Place {
    database: String,
    language: Language,
    is_pooled: bool,
    client: Mutex<Client>,
}

impl Display for Place {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.database)
    }
}

impl Place {
    fn client(&self) -> MutexGuard<'_, Client> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enqueues a job with this payload and returns its id.
    pub fn enqueue(&self, payload: &str) -> i64 {
        self.ask("SELECT queue.enqueue('greetings', $1::text::jsonb)", &[&payload])
    }

    /// Opens another connection for the tests themselves.
    pub fn connect(&self, cluster: &Cluster) -> Client {
        cluster.connect_to(&self.database)
    }

    /// Runs statements.
    pub fn run(&self, sql: &str) {
        self.client().batch_execute(sql).unwrap_or_else(|error| panic!("{self}: {sql}: {error:?}"));
    }

    /// Returns the only value that a query finds.
    pub fn ask<T: FromSqlOwned>(&self, sql: &str, arguments: &[&(dyn ToSql + Sync)]) -> T {
        let row = self.client().query_one(sql, arguments);
        row.unwrap_or_else(|error| panic!("{self}: {sql}: {error:?}")).get(0)
    }

    /// Waits until the job has this state, for the first time or again.
    pub fn wait_state(&self, job: i64, state: &str) {
        wait::within(&format!("{self}: the job is {state}"), Duration::from_secs(60), || {
            let now: String = self.ask("SELECT state FROM queue.job($1)", &[&job]);
            (now == state).then_some(())
        });
    }

    /// Returns how many greetings the job has written.
    pub fn greetings(&self, job: i64) -> i64 {
        self.ask("SELECT count(*) FROM greeting WHERE job_id = $1", &[&job])
    }

    /// Returns the number of the job's current attempt.
    pub fn attempt(&self, job: i64) -> i32 {
        self.ask("SELECT attempt FROM queue.job($1)", &[&job])
    }

    /// Returns what the workers of this place have printed.
    pub fn said(&self, cluster: &Cluster) -> String {
        std::fs::read_to_string(self.log(cluster)).expect("the worker's log")
    }

    fn log(&self, cluster: &Cluster) -> PathBuf {
        cluster.dir().join(format!("{self}.log"))
    }

    /// Starts a worker in this place. Its output goes to a file in the cluster's folder, which is kept if the test
    /// fails.
    pub fn worker(&self, cluster: &Cluster) -> Worker {
        let mut command = self.language.worker();
        cluster.connect_env(&mut command);
        let port = if self.is_pooled { Pooler::PORT } else { 5432 };
        let path = std::env::join_paths(
            std::iter::once(cluster.bindir().to_owned())
                .chain(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())),
        );
        let url = format!("host='{}' port={port} user=postgres dbname='{}'", cluster.dir().display(), self.database);
        command
            .env("PATH", path.expect("folders without a colon"))
            .env("PGPORT", port.to_string())
            .env("PGDATABASE", &self.database)
            .env("DATABASE_URL", url);
        let said =
            File::options().create(true).append(true).open(self.log(cluster)).expect("a writable cluster folder");
        command.stdin(Stdio::null()).stdout(said.try_clone().expect("a second handle")).stderr(said);
        Worker { process: KilledAtEnd(command.spawn().expect("the worker starts")), name: self.to_string() }
    }
}

/// A worker's process.
pub struct Worker {
    process: KilledAtEnd,
    name: String,
}

impl Worker {
    pub fn pid(&self) -> i32 {
        self.process.id().try_into().expect("a process id")
    }

    /// True until the process has ended.
    pub fn runs(&mut self) -> bool {
        self.process.try_wait().expect("our child").is_none()
    }

    /// Waits for the end of the process after SIGTERM. It may take twice as long as examples/README.md says, since the
    /// machine may be busy. It must end by itself and successfully.
    pub fn wait_end(&mut self) {
        let limit = Duration::from_secs(10);
        let status: ExitStatus = wait::within(&format!("{}: the worker has ended", self.name), limit, || {
            self.process.try_wait().expect("our child")
        });
        assert!(status.success(), "{}: {status}", self.name);
    }
}
