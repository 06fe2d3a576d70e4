//! For tests of applications: which jobs were enqueued, letting time pass, and temporary servers.
//!
//! The functions take a client and read what its transaction sees, even before it commits.

use std::fs;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::Value;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error, GenericClient, NoTls};

use crate::sql::interval;

/// A job that has not ended.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Enqueued {
    /// Its id.
    pub job_id: i64,
    /// `ready`, `scheduled`, `retrying`, `held` or `running`.
    pub state: String,
    /// Its payload.
    pub payload: Value,
    /// Its priority.
    pub priority: i32,
}

/// Returns the living jobs of the queue whose payload contains this one, the oldest first.
pub async fn enqueued<C: GenericClient + Sync>(
    client: &C,
    queue: &str,
    payload: Option<&Value>,
) -> Result<Vec<Enqueued>, Error> {
    let sql = "SELECT job_id, state, payload, priority FROM queue.jobs WHERE queue_name = $1 AND finished_at IS NULL
        AND ($2 IS NULL OR payload @> $2) ORDER BY job_id";
    let rows = client.query_typed(sql, &[(&queue, Type::TEXT), (&payload, Type::JSONB)]).await?;
    let job = |row: &tokio_postgres::Row| Enqueued {
        job_id: row.get(0),
        state: row.get(1),
        payload: row.get(2),
        priority: row.get(3),
    };
    Ok(rows.iter().map(job).collect())
}

/// Panics unless there are exactly this many such jobs. Returns them.
pub async fn assert_enqueued<C: GenericClient + Sync>(
    client: &C,
    queue: &str,
    payload: &Value,
    count: usize,
) -> Result<Vec<Enqueued>, Error> {
    let found = enqueued(client, queue, Some(payload)).await?;
    if found.len() != count {
        let all = enqueued(client, queue, None).await?;
        let all: Vec<String> = all.iter().take(10).map(|job| format!("{} {}", job.state, job.payload)).collect();
        let all = if all.is_empty() { "none".to_owned() } else { all.join(", ") };
        panic!("queue {queue} should have {count} jobs with payload {payload}: {} found. It has: {all}", found.len());
    }
    Ok(found)
}

/// Lets time pass for jobs that wait for their time, by moving it earlier by this much. Returns the jobs that became
/// due.
pub async fn advance_time<C: GenericClient + Sync>(client: &C, by: Duration) -> Result<Vec<i64>, Error> {
    let sql = "SELECT j.job_id, j.run_at - $1::interval <= clock_timestamp() AS is_due
        FROM queue.jobs AS j, LATERAL (SELECT queue.reschedule(j.job_id, j.run_at - $1::interval)) AS r
        WHERE j.state IN ('scheduled', 'retrying') ORDER BY j.job_id";
    let rows = client.query_typed(sql, &[(&interval(by), Type::TEXT)]).await?;
    Ok(rows.iter().filter(|row| row.get(1)).map(|row| row.get(0)).collect())
}

/// A temporary server with `pg_queue` in a folder of its own. It listens only on a socket in that folder. It ends when
/// this value is dropped, and when this process ends.
///
/// The variable `PG_CONFIG`, else the `PATH`, names the installation. If root starts it, it runs as the account
/// `postgres`.
#[derive(Debug)]
pub struct Server {
    dir: PathBuf,
    bindir: PathBuf,
    account: Option<(u32, u32)>,
    count: AtomicU32,
    /// A process that ends the server when this one has ended.
    watch: Child,
}

/// Ends the server, and removes its folder, when its program has ended: then nobody has the other end of the pipe.
const WATCH: &str = r#"trap '' HUP INT TERM; read -r line
"$1/pg_ctl" -D "$2/data" stop --wait --timeout=20 --mode=immediate; rm -rf "$2""#;

impl Server {
    /// Starts a server. Panics if that fails.
    pub fn start() -> Self {
        Self::with_settings(&[])
    }

    /// Starts a server with these settings. Panics if that fails.
    pub fn with_settings(settings: &[(&str, &str)]) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let config = std::env::var("PG_CONFIG").unwrap_or_else(|_| "pg_config".to_owned());
        let answer = Command::new(&config).arg("--bindir").output();
        let answer = answer.unwrap_or_else(|error| panic!("{config} does not run: {error}")).stdout;
        let bindir = PathBuf::from(String::from_utf8_lossy(&answer).trim());
        let memory = Path::new("/dev/shm");
        let name = format!("pg_queue-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let mut dir = memory.join(&name);
        if !has_room(memory) || fs::create_dir(&dir).is_err() {
            dir = std::env::temp_dir().join(name);
            fs::create_dir(&dir).unwrap_or_else(|error| panic!("{} cannot be made: {error}", dir.display()));
        }
        let account = account();
        if let Some((user, group)) = account {
            std::os::unix::fs::chown(&dir, Some(user), Some(group)).expect("root may give its folder away");
        }
        let mut watch = command_of(account, "sh");
        watch.args(["-c", WATCH, "sh"]).args([&bindir, &dir]).process_group(0).stdin(Stdio::piped());
        let watch = watch.spawn().expect("there is a shell");
        let server = Self { dir, bindir, account, count: AtomicU32::new(0), watch };
        server.call("initdb", &["--no-sync", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C"]);
        let dir = server.dir.display().to_string();
        let mine = [
            ("listen_addresses", ""),
            // PGPORT of the environment would count otherwise.
            ("port", "5432"),
            ("unix_socket_directories", &dir),
            ("shared_preload_libraries", "pg_queue"),
            ("max_worker_processes", "50"),
            ("shared_buffers", "16MB"),
            ("fsync", "off"),
        ];
        let path = server.data().join("postgresql.conf");
        let mut file = fs::OpenOptions::new().append(true).open(path).expect("initdb has made it");
        for (name, value) in mine.iter().chain(settings) {
            writeln!(file, "{name} = '{value}'").expect("there is room for a line");
        }
        server.start_again();
        server
    }

    /// Returns the folder with its socket.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns its data directory.
    pub fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// Starts the server after `stop`, and waits until it accepts connections.
    pub fn start_again(&self) {
        self.call("pg_ctl", &["start", "--wait", "--silent", &format!("--log={}", self.dir.join("log").display())]);
    }

    /// Stops the server. Mode `immediate` stops it as a crash does.
    pub fn stop(&self, mode: &str) {
        self.call("pg_ctl", &["stop", "--wait", "--silent", &format!("--mode={mode}")]);
    }

    /// Makes the other server a standby of this one, and starts it.
    pub fn base_backup(&self, standby: &Server) {
        standby.stop("fast");
        let kept = fs::read(standby.data().join("postgresql.conf")).expect("initdb has made it");
        fs::remove_dir_all(standby.data()).expect("it is ours");
        let source = format!("--dbname={}", self.config("postgres"));
        standby.call("pg_basebackup", &["--write-recovery-conf", "--checkpoint=fast", &source]);
        fs::write(standby.data().join("postgresql.conf"), kept).expect("the backup has one");
        standby.start_again();
    }

    /// Promotes a standby, and waits until it is promoted.
    pub fn promote(&self) {
        self.call("pg_ctl", &["promote", "--wait", "--silent"]);
    }

    /// Returns the connection string of a database.
    pub fn config(&self, database: &str) -> String {
        format!("host={} port=5432 user=postgres dbname={database}", self.dir.display())
    }

    /// Connects to a database. The connection lives as long as the client.
    pub async fn connect(&self, database: &str) -> Result<Client, Error> {
        let (client, connection) = tokio_postgres::connect(&self.config(database), NoTls).await?;
        tokio::spawn(connection); // its errors are those of the client's calls
        Ok(client)
    }

    /// Makes a database with the extension, and returns its name.
    pub async fn create_database(&self) -> Result<String, Error> {
        let name = format!("test{}", self.count.fetch_add(1, Ordering::Relaxed));
        self.connect("postgres").await?.batch_execute(&format!("CREATE DATABASE {name}")).await?;
        self.connect(&name).await?.batch_execute("CREATE EXTENSION pg_queue").await?;
        Ok(name)
    }

    /// Runs a program of the server as its account. The server must not inherit the pipes of this process.
    fn call(&self, program: &str, arguments: &[&str]) {
        let mut command = command_of(self.account, self.bindir.join(program));
        let status = command
            .arg("-D")
            .arg(self.data())
            .args(arguments)
            .status()
            .unwrap_or_else(|error| panic!("{program} does not run: {error}"));
        if !status.success() {
            let log = fs::read_to_string(self.dir.join("log")).unwrap_or_default();
            panic!("{program} has failed: {log}");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Forked processes may keep the pipe open.
        self.watch.stdin.take().map(|mut pipe| pipe.write_all(b"\n"));
        let _ = self.watch.wait();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Returns a command that runs as this account, without the pipes of this process.
fn command_of(account: Option<(u32, u32)>, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if let Some((user, group)) = account {
        command.uid(user).gid(group);
    }
    command
}

/// Returns whether a few servers have room there. Containers may have little of it.
fn has_room(memory: &Path) -> bool {
    let asked = Command::new("df").args(["--output=avail", "-k"]).arg(memory).stderr(Stdio::null()).output();
    let text = asked.map(|answer| String::from_utf8_lossy(&answer.stdout).into_owned()).unwrap_or_default();
    text.lines().nth(1).and_then(|line| line.trim().parse::<u64>().ok()).is_some_and(|kilobytes| kilobytes > 2 << 20)
}

/// Returns user and group for a server that root starts, because Postgres refuses to run as root.
fn account() -> Option<(u32, u32)> {
    use std::os::unix::fs::MetadataExt as _;
    if fs::metadata("/proc/self").ok()?.uid() != 0 {
        return None;
    }
    let accounts = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let line = accounts.lines().find(|line| line.starts_with("postgres:"));
    let mut fields =
        line.unwrap_or_else(|| panic!("root has no account `postgres` to run a server as")).split(':').skip(2);
    let mut number = || fields.next().and_then(|field| field.parse().ok()).expect("passwd has two numbers");
    Some((number(), number()))
}
