//! A throw-away server with its own data directory and socket. It is removed when the test is over.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use postgres::{Client, Config, NoTls};

use crate::installation::{Installation, as_account, clean, installation, output, printed};
use crate::scratch::{self, Medium};
use crate::wait;

/// All clusters use this port. Each has its socket in a folder of its own, and none listens on the network.
const PORT: u16 = 5432;

/// The role that initdb made.
const SUPERUSER: &str = "postgres";

/// Settings of every cluster. A test's own settings follow, and the last value of a setting counts.
const CONF: &str = "
listen_addresses = ''
shared_preload_libraries = 'pg_queue'
max_worker_processes = 20
shared_buffers = '16MB'
fsync = off
wal_keep_size = '256MB'
timezone = 'UTC'
log_timezone = 'UTC'
log_line_prefix = '%m [%p] %b %d %e '
";

/// A database in each cluster that has pg_queue and nothing else. A copy of it takes a quarter of the time of CREATE
/// EXTENSION. As a template it has no worker.
const WITH_EXTENSION: &str = "with_extension";

/// A private server, removed on drop. Nothing is shared with other clusters, so tests may run in parallel.
///
/// ```no_run
/// let cluster = queue_tests::Cluster::new().conf("max_connections = 20").start();
/// let mut client = cluster.connect();
/// client.execute("SELECT 1", &[]).unwrap();
/// ```
///
/// If the thread that drops it is panicking, its folder is kept, and the end of the server's log is printed.
#[derive(Debug)]
pub struct Cluster {
    /// The installation whose programs made and run this cluster.
    installation: &'static Installation,
    /// Holds the socket, the log and `data`.
    dir: PathBuf,
}

impl Default for Cluster {
    fn default() -> Self {
        Self::new()
    }
}

impl Cluster {
    /// Makes a new cluster of the installation under test. It is not started, and lies in memory if there is room.
    pub fn new() -> Self {
        Self::of(installation())
    }

    /// Makes a new cluster with these lines in postgresql.conf, such as `"fsync = on"`. It is not started.
    pub fn with(settings: &[&str]) -> Self {
        settings.iter().fold(Self::new(), |cluster, line| cluster.conf(line))
    }

    /// Makes a new cluster of this installation. It is not started.
    pub fn of(installation: &'static Installation) -> Self {
        Self::on(Medium::Memory, installation)
    }

    /// Makes a cluster on disk with fsync on, for the demo and the benchmark.
    pub fn on_disk() -> Self {
        Self::on(Medium::Disk, installation()).conf("fsync = on")
    }

    fn on(medium: Medium, installation: &'static Installation) -> Self {
        let template = scratch::template(medium, installation, |dir| Self::make_template(installation, dir));
        let cluster = Self { installation, dir: scratch::new_folder(medium) };
        let mut copy = Command::new("cp");
        copy.arg("-a").arg(template.join("data")).arg(cluster.data());
        output(as_account(&mut copy));
        // Settings for a whole run of tests, such as `debug_discard_caches = 1`. The test's own settings follow.
        cluster.append_conf(&std::env::var("QUEUE_TESTS_CONF").unwrap_or_default());
        cluster.append_conf_of_place();
        cluster
    }

    /// Makes the template of all clusters of the installation in this folder. initdb takes a second, a copy takes a
    /// twentieth of that.
    fn make_template(installation: &'static Installation, dir: PathBuf) {
        let cluster = std::mem::ManuallyDrop::new(Self { installation, dir });
        let options = ["-A", "trust", "-U", SUPERUSER, "-E", "UTF8", "--locale=C", "--no-sync"];
        output(installation.command("initdb").args(options).arg("-D").arg(cluster.data()));
        cluster.append_conf(CONF);
        cluster.append_conf_of_place();
        if !installation.has_extension() {
            cluster.append_conf("shared_preload_libraries = ''");
            return;
        }
        cluster.start_again();
        run(&mut cluster.connect(), &format!("CREATE DATABASE {WITH_EXTENSION} IS_TEMPLATE true"));
        run(&mut cluster.connect_to(WITH_EXTENSION), "CREATE EXTENSION pg_queue");
        cluster.stop_fast();
    }

    /// Removes the database with pg_queue, since pg_upgrade needs a new cluster as its target. The cluster is not
    /// started.
    pub fn as_of_initdb(self) -> Self {
        self.start_again();
        let mut client = self.connect();
        run(&mut client, &format!("ALTER DATABASE {WITH_EXTENSION} IS_TEMPLATE false"));
        run(&mut client, &format!("DROP DATABASE {WITH_EXTENSION}"));
        self.stop_fast();
        self
    }

    /// Adds a line to postgresql.conf, such as `"fsync = on"`. Call it before [`Cluster::start`].
    pub fn conf(self, line: &str) -> Self {
        self.append_conf(line);
        self
    }

    /// Starts the server and waits until it takes connections. Panics with the log if it does not start.
    pub fn start(self) -> Self {
        self.start_again();
        self
    }

    /// Starts the server and creates a database with pg_queue in it. Also returns a connection to it as superuser.
    pub fn start_with_database(self, name: &str) -> (Self, Client) {
        let cluster = self.start();
        let client = cluster.create_database(name);
        (cluster, client)
    }

    /// Starts the server with pg_queue in database `postgres`. Also returns a connection to it as superuser.
    pub fn start_with_extension(self) -> (Self, Client) {
        let cluster = self.start();
        let mut client = cluster.connect();
        run(&mut client, "CREATE EXTENSION pg_queue");
        (cluster, client)
    }

    /// Starts a server that was stopped or killed and waits until it takes connections.
    pub fn start_again(&self) {
        if let Err(log) = self.try_start() {
            panic!("the server did not start:\n{log}");
        }
    }

    /// Starts the server, or returns the log of the failed start.
    pub fn try_start(&self) -> Result<(), String> {
        let already = self.log().len();
        // Without a log file the server would inherit our pipe, and a read from the pipe would never end.
        let done = self.pg_ctl("start").arg("-l").arg(self.log_file()).output().expect("pg_ctl");
        if done.status.success() { Ok(()) } else { Err(self.log().split_off(already)) }
    }

    /// Stops the server (mode fast) and starts it again.
    pub fn restart(&self) {
        self.stop_fast();
        self.start_again();
    }

    /// Stops the server (mode immediate) and starts it again: a crash recovery.
    pub fn restart_immediate(&self) {
        self.stop_immediate();
        self.start_again();
    }

    /// Kills all processes of the server with SIGKILL and starts it again: see [`Cluster::kill_server`].
    pub fn restart_killed(&self) {
        self.kill_server();
        self.start_again();
    }

    /// Stops the server as an administrator would: sessions end, a checkpoint is written.
    pub fn stop_fast(&self) {
        output(self.pg_ctl("stop").args(["-m", "fast"]));
    }

    /// Stops the server without a checkpoint: the next start is a crash recovery.
    pub fn stop_immediate(&self) {
        output(self.pg_ctl("stop").args(["-m", "immediate"]));
    }

    /// Kills all processes of the server with SIGKILL, the postmaster first, and waits until they have ended. No
    /// process can clean up. [`Cluster::start_again`] is possible afterwards.
    pub fn kill_server(&self) {
        let postmaster = self.postmaster_pid();
        let mut processes = self.processes();
        processes.push(postmaster);
        self.kill9(postmaster);
        for &pid in &processes {
            // Most processes notice the postmaster's death and end by themselves, but not during a long computation.
            signal("KILL", pid);
        }
        wait::until_true("all processes of the server have ended", || {
            processes.retain(|&pid| signal("0", pid));
            processes.is_empty()
        });
    }

    /// Stops all present sessions until the value is dropped: they neither answer nor die, as on a hanging disk. The
    /// postmaster goes on and accepts new sessions.
    pub fn freeze_sessions(&self) -> Frozen<'_> {
        let mut client = self.connect();
        let own = client.query_one("SELECT pg_backend_pid()", &[]).expect("its pid").get::<_, i32>(0);
        let sessions = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> $1";
        for row in client.query(sessions, &[&own]).expect("the sessions") {
            self.signal_if_there("STOP", row.get(0));
        }
        Frozen(self)
    }

    /// Sends SIGKILL to one process of the server. After any but the postmaster's, the server restarts itself:
    /// see [`Cluster::wait_ready`].
    pub fn kill9(&self, pid: i32) {
        assert!(signal("KILL", pid), "there is no process {pid} to kill");
    }

    /// Sends a signal, such as `"STOP"`, to a process of the server.
    pub fn signal(&self, name: &str, pid: i32) {
        assert!(signal(name, pid), "there is no process {pid} to signal");
    }

    /// Does what [`Cluster::signal`] does, but returns false if the process has ended by itself.
    pub fn signal_if_there(&self, name: &str, pid: i32) -> bool {
        self.processes().contains(&pid) && signal(name, pid)
    }

    /// Returns the postmaster's process id. Panics if there is no running or killed server.
    pub fn postmaster_pid(&self) -> i32 {
        let file = self.data().join("postmaster.pid");
        let text = std::fs::read_to_string(file).expect("postmaster.pid of a running server");
        text.lines().next().and_then(|pid| pid.parse().ok()).expect("a pid in postmaster.pid")
    }

    /// Returns the processes that work in the server's data directory. Empty without /proc.
    pub fn processes(&self) -> Vec<i32> {
        let data = self.data();
        let Ok(all) = std::fs::read_dir("/proc") else {
            return Vec::new();
        };
        all.flatten()
            .filter(|entry| std::fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd == data))
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .collect()
    }

    /// Waits until the server answers a query, for instance after a crash of one of its processes.
    ///
    /// The server needs a moment to notice a crash. After a test has killed a process, it must first wait until a
    /// connection ends. Otherwise this may return before the restart.
    pub fn wait_ready(&self) {
        wait::until("the server answers", || self.config().connect(NoTls).ok()?.simple_query("SELECT 1").ok());
    }

    /// Kills a process with SIGKILL and waits until the server has restarted itself and answers.
    pub fn crash(&self, pid: i32) {
        assert!(self.crash_if_there(pid), "there is no process {pid} to kill");
    }

    /// Does what [`Cluster::crash`] does, but returns false if the process has ended by itself.
    pub fn crash_if_there(&self, pid: i32) -> bool {
        // The witness is an open connection: the server ends all of them before it restarts.
        let mut witness = self.connect();
        let started = start_time(pid);
        if started.is_none() || !signal("KILL", pid) {
            return false;
        }
        // A process that has just ended can get signals without effect until its parent has collected it. Then the
        // server goes on to accept connections, because it did not see the process killed.
        let killed = format!("(PID {pid}) was terminated by signal 9");
        let has_crashed = wait::until("the server has noticed the crash", || {
            if witness.simple_query("").is_err() {
                return Some(true);
            }
            let is_gone = start_time(pid) != started && self.config().connect(NoTls).is_ok();
            (is_gone && !self.log().contains(&killed) && witness.simple_query("").is_ok()).then_some(false)
        });
        self.wait_ready();
        has_crashed
    }

    /// Waits until the server has restarted itself after a fault point has killed this process, and answers.
    pub fn wait_crashed(&self, pid: i32) {
        // The postmaster accepts no connection after it has collected a killed process.
        wait::until_true("the postmaster has noticed the crash", || start_time(pid).is_none());
        self.wait_ready();
    }

    /// Opens a connection to database `postgres` as superuser.
    pub fn connect(&self) -> Client {
        self.connect_to("postgres")
    }

    /// Opens a connection to the database as superuser.
    pub fn connect_to(&self, database: &str) -> Client {
        self.connect_as(database, SUPERUSER)
    }

    /// Opens a connection to the database as this role.
    pub fn connect_as(&self, database: &str, role: &str) -> Client {
        let tried = self.config().dbname(database).user(role).connect(NoTls);
        tried.unwrap_or_else(|error| panic!("could not connect to {database} as {role}: {error:?}"))
    }

    /// Creates a database with pg_queue in it and opens a connection to it as superuser.
    pub fn create_database(&self, name: &str) -> Client {
        self.create_database_with(name, "")
    }

    /// Does what [`Cluster::create_database`] does, with settings such as `ALTER DATABASE $ SET pg_queue.worker = off`.
    /// They hold before the first worker starts.
    pub fn create_database_with(&self, name: &str, settings: &str) -> Client {
        let mut client = self.connect();
        let name_quoted = format!("\"{name}\"");
        run(&mut client, &format!("CREATE DATABASE {name_quoted} TEMPLATE {WITH_EXTENSION} ALLOW_CONNECTIONS false"));
        run(&mut client, &settings.replace('$', &name_quoted));
        run(&mut client, &format!("ALTER DATABASE {name_quoted} ALLOW_CONNECTIONS true"));
        self.connect_to(name)
    }

    /// Returns the connection settings for database `postgres` as superuser, for tests that need another user, database
    /// or client.
    pub fn config(&self) -> Config {
        let mut config = Config::new();
        config.host_path(&self.dir).port(PORT).user(SUPERUSER).dbname("postgres");
        config
    }

    /// Adds lines to postgresql.conf. They take effect at [`Cluster::reload`] or a restart.
    pub fn append_conf(&self, lines: &str) {
        let path = self.data().join("postgresql.conf");
        let mut file = File::options().append(true).open(path).expect("postgresql.conf");
        writeln!(file, "{lines}").expect("a writable postgresql.conf");
    }

    /// Tells the server to read postgresql.conf again and waits until a new session sees it.
    pub fn reload(&self) {
        let loaded = || -> String {
            let row = self.connect().query_one("SELECT pg_conf_load_time()::text", &[]);
            row.expect("the load time").get(0)
        };
        let before = loaded();
        output(&mut self.pg_ctl("reload"));
        wait::until_true("the settings are loaded", || loaded() != before);
    }

    /// Returns the server's whole log.
    pub fn log(&self) -> String {
        let bytes = std::fs::read(self.log_file()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns the cluster's folder. The server's account may write there, and files for its programs belong there.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the path of the data directory.
    pub fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// Returns the folder of the server's programs.
    pub fn bindir(&self) -> &'static Path {
        &self.installation.bindir
    }

    /// Copies the running server into a streaming standby and waits until it streams. The standby has the
    /// settings of its primary.
    pub fn standby(&self) -> Cluster {
        let standby = Cluster { installation: self.installation, dir: scratch::new_folder(Medium::Memory) };
        output(
            self.command("pg_basebackup")
                .args(["--write-recovery-conf", "--checkpoint=fast", "--wal-method=stream", "--no-sync", "-D"])
                .arg(standby.data()),
        );
        standby.append_conf_of_place();
        standby.start_again();
        let mut client = self.connect();
        wait::until("the standby streams", || {
            let sql = "SELECT FROM pg_stat_replication WHERE application_name = $1 AND state = 'streaming'";
            client.query_opt(sql, &[&standby.name()]).expect("the standbys")
        });
        standby
    }

    /// Waits until this standby has replayed everything that its primary has flushed.
    pub fn wait_replayed(&self, primary: &Cluster) {
        let sql = "SELECT pg_current_wal_flush_lsn()::text";
        let target: String = primary.connect().query_one(sql, &[]).expect("the position").get(0);
        let mut client = self.connect();
        wait::until_true("the standby has replayed the primary's log", || {
            let sql = "SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn";
            let there: bool = client.query_one(sql, &[&target]).expect("the position").get(0);
            there
        });
    }

    /// Makes a standby a primary and waits until it is one.
    pub fn promote(&self) {
        output(&mut self.pg_ctl("promote"));
    }

    /// Runs SQL with psql in database `postgres` and goes on after errors. Returns everything that psql printed, errors
    /// with SQLSTATE, DETAIL and HINT.
    pub fn psql(&self, sql: &str) -> String {
        self.psql_in("postgres", sql)
    }

    /// Does what [`Cluster::psql`] does, in another database.
    pub fn psql_in(&self, database: &str, sql: &str) -> String {
        // psql reads a file. With two pipes, psql and this process could wait for each other.
        let script = self.dir.join(format!("psql-{:?}.sql", std::thread::current().id()));
        std::fs::write(&script, sql).expect("a writable cluster folder");
        let mut psql = self.command("psql");
        psql.args(["-X", "-q", "-v", "VERBOSITY=verbose", "-d", database]);
        psql.stdin(File::open(&script).expect("the file just written"));
        let printed = printed(psql);
        std::fs::remove_file(script).expect("the file just read");
        printed
    }

    /// Runs pg_dump with these arguments and returns what it prints.
    pub fn pg_dump(&self, args: &[&str]) -> String {
        output(self.command("pg_dump").args(args))
    }

    /// Returns a command for a client program of the server, such as `"pgbench"`, that connects to this cluster.
    pub fn command(&self, program: &str) -> Command {
        let mut command = self.installation.command(program);
        self.connect_env(&mut command);
        command.stdin(Stdio::null());
        command
    }

    /// Makes any other program connect to this cluster.
    pub fn connect_env(&self, command: &mut Command) {
        clean(command);
        command.env("PGHOST", &self.dir).env("PGPORT", PORT.to_string()).env("PGUSER", SUPERUSER);
    }

    /// Stops the server, as a crash would, and keeps its folder. Returns the folder.
    pub fn keep(self) -> PathBuf {
        let _ = self.pg_ctl("stop").args(["-m", "immediate"]).output();
        let _ = std::fs::write(self.dir.join("keep"), "");
        let dir = self.dir.clone();
        std::mem::forget(self);
        dir
    }

    /// Returns the cluster's name in process titles. A standby has it in pg_stat_replication too.
    fn name(&self) -> String {
        format!("cluster-{}", self.dir.file_name().expect("a name").display())
    }

    /// Adds the settings that a copy must not inherit.
    fn append_conf_of_place(&self) {
        self.append_conf(&format!("unix_socket_directories = '{}'", self.dir.display()));
        self.append_conf(&format!("cluster_name = '{}'", self.name()));
    }

    fn log_file(&self) -> PathBuf {
        self.dir.join("log")
    }

    fn pg_ctl(&self, action: &str) -> Command {
        let mut command = self.installation.command("pg_ctl");
        command.args([action, "-s", "-D"]).arg(self.data());
        if action != "reload" {
            command.args(["-w", "-t", "60"]);
        }
        command
    }
}

fn run(client: &mut Client, sql: &str) {
    client.batch_execute(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
}

/// Sends a signal with the shell's own `kill`, since not every machine has the program. Signal 0 only checks whether
/// the process exists.
fn signal(name: &str, pid: i32) -> bool {
    let mut shell = Command::new("sh");
    shell.args(["-c", "kill -s \"$1\" \"$2\"", "sh", name, &pid.to_string()]).stderr(Stdio::null());
    shell.status().is_ok_and(|status| status.success())
}

impl Drop for Cluster {
    /// Never panics: it also runs while a test fails.
    fn drop(&mut self) {
        let _ = self.pg_ctl("stop").args(["-m", "immediate"]).output();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<_> = log.lines().collect();
            let end = lines[lines.len().saturating_sub(40)..].join("\n");
            eprintln!("--- the cluster is kept in {}, its log ends:\n{end}\n---", self.dir.display());
            let _ = std::fs::write(self.dir.join("keep"), "");
        } else {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}

/// Returns the start time of a process in kernel ticks, which distinguishes processes with the same number. `None` if
/// it has ended.
fn start_time(pid: i32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may contain blanks. The state follows, and the start time is nineteen fields later.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    let state = fields.next()?;
    (state != "Z").then(|| fields.nth(18).map(str::to_owned)).flatten()
}

/// See [`Cluster::freeze_sessions`].
pub struct Frozen<'a>(&'a Cluster);

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        for pid in self.0.processes() {
            self.0.signal_if_there("CONT", pid);
        }
    }
}
