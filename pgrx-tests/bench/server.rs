//! A server for one contender. So nobody else pays for its dead rows, WAL, dirty pages and background processes. An
//! idle server costs nothing.

use std::cell::RefCell;
use std::fmt::Display;
use std::thread;
use std::time::{Duration, Instant};

use postgres::{Client, NoTls};
use queue_tests::Cluster;

use crate::error::Result;
use crate::{client, cpu};

/// Settings of a small machine in production. Only the amount of WAL causes checkpoints: a timed checkpoint would hit
/// one contender's turn.
const CONF: &str = "
synchronous_commit = off
shared_buffers = '512MB'
max_wal_size = '4GB'
checkpoint_timeout = '1h'
";

/// A running server and a connection for observing it.
pub struct Server {
    pub cluster: Cluster,
    observer: RefCell<Client>,
}

impl Server {
    /// Starts a server with pg_queue, and with these lines in its postgresql.conf.
    pub fn with_extension(lines: &str) -> Result<Self> {
        let server = Self::start(Cluster::on_disk().conf(lines));
        server.execute("CREATE EXTENSION pg_queue")?;
        Ok(server)
    }

    /// Starts a server without pg_queue, with these lines.
    pub fn plain(lines: &str) -> Self {
        Self::start(Cluster::on_disk().conf("shared_preload_libraries = ''").conf(lines))
    }

    /// Starts a server with this extension. `None` if it is not installed.
    pub fn with_peer(extension: &str) -> Result<Option<Self>> {
        if extension == "pg_queue" {
            return Self::with_extension("").map(Some);
        }
        let server = Self::plain("");
        let is_there = server.has(extension)?;
        if is_there {
            server.execute(&format!("CREATE EXTENSION {extension}"))?;
        }
        Ok(is_there.then_some(server))
    }

    /// Returns true if this extension could be created.
    pub fn has(&self, extension: &str) -> Result<bool> {
        let found = "SELECT FROM pg_available_extensions WHERE name = $1";
        Ok(self.observer.borrow_mut().query_opt(found, &[&extension])?.is_some())
    }

    fn start(cluster: Cluster) -> Self {
        let cluster = cluster.conf(CONF).start();
        let observer = RefCell::new(cluster.connect());
        Self { cluster, observer }
    }

    /// Runs statements that prepare the server. An empty line separates two transactions.
    pub fn execute(&self, sql: &str) -> Result<()> {
        let mut client = self.observer.borrow_mut();
        Ok(sql.split("\n\n").try_for_each(|transaction| client.batch_execute(transaction))?)
    }

    /// Runs such statements, with these values in place of `{name}`.
    pub fn execute_with(&self, sql: &str, values: &[(&str, &dyn Display)]) -> Result<()> {
        let put =
            |sql: String, (name, value): &(&str, &dyn Display)| sql.replace(&format!("{{{name}}}"), &value.to_string());
        self.execute(&values.iter().fold(sql.to_owned(), put))
    }

    /// A connection by the usual driver.
    pub fn connect(&self) -> Result<Client> {
        Ok(self.cluster.config().connect(NoTls)?)
    }

    /// Returns a session with an open snapshot: vacuum removes no row that dies from now on.
    pub fn snapshot(&self) -> Result<Client> {
        let mut session = self.connect()?;
        session.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")?;
        Ok(session)
    }

    /// Returns a connection for turns. Its commits wait for the disk or not.
    pub fn client(&self, is_durable: bool) -> Result<client::Client> {
        let mut client = client::Client::connect(&self.cluster.config())?;
        let setting = if is_durable { "on" } else { "off" };
        client.batch_execute(&format!("SET synchronous_commit = {setting}"))?;
        Ok(client)
    }

    /// Prints the last lines of the server's log after an error.
    pub fn print_log_end(&self, who: &str) {
        let log = self.cluster.log();
        let lines: Vec<&str> = log.lines().collect();
        eprintln!(
            "\n{who} failed; the end of its server's log:\n{}",
            lines[lines.len().saturating_sub(20)..].join("\n")
        );
    }

    /// Returns the CPU time that the server has used since its start, in seconds.
    pub fn cpu_seconds(&self) -> f64 {
        cpu::server_seconds(self.cluster.postmaster_pid())
    }

    /// Returns the number that a query returns.
    pub fn number(&self, sql: &str) -> Result<i64> {
        Ok(self.observer.borrow_mut().query_one(sql, &[])?.try_get(0)?)
    }

    /// Waits until the server has no work left. Otherwise it would work during another contender's turn.
    pub fn settle(&self) {
        const LOOK: Duration = Duration::from_millis(100);
        const AT_MOST: Duration = Duration::from_secs(5);
        let start = Instant::now();
        let mut used = self.cpu_seconds();
        while start.elapsed() < AT_MOST {
            thread::sleep(LOOK);
            let now = self.cpu_seconds();
            if now - used < 0.01 {
                break;
            }
            used = now;
        }
    }
}

/// What the servers have used.
#[derive(Clone, Copy, Default)]
pub struct Cost {
    pub cpu_seconds: f64,
    pub wal_bytes: i64,
    pub transaction_ids: i64,
}

impl Cost {
    /// Returns what these servers have used since their start.
    pub fn of(servers: &[&Server]) -> Result<Self> {
        let mut sum = Self::default();
        for server in servers {
            sum.cpu_seconds += server.cpu_seconds();
            sum.wal_bytes += server.number("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint")?;
            sum.transaction_ids += server.number("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")?;
        }
        Ok(sum)
    }

    pub fn since(self, before: Self) -> Self {
        Self {
            cpu_seconds: self.cpu_seconds - before.cpu_seconds,
            wal_bytes: self.wal_bytes - before.wal_bytes,
            transaction_ids: self.transaction_ids - before.transaction_ids,
        }
    }
}
