//! A dashboard for a test: the program on a free port, and a cluster with its database.

use std::io::{BufRead, BufReader, Read};
use std::ops::Deref;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use postgres::Client;
use queue_tests::{Cluster, KilledAtEnd, wait};

use crate::http::Address;

pub const DATABASE: &str = "app";

/// A running dashboard. It ends with the test.
pub struct Web {
    process: KilledAtEnd,
    address: Address,
    log: Arc<Mutex<String>>,
}

/// Returns the program with these arguments, for database `app` unless they name another one.
pub fn command(cluster: &Cluster, args: &[&str]) -> Command {
    // Measurements may use another build.
    let built = std::env::var_os("PG_QUEUE_WEB").unwrap_or_else(|| env!("CARGO_BIN_EXE_pg_queue_web").into());
    let mut command = Command::new(built);
    cluster.connect_env(&mut command);
    command.env("PGDATABASE", DATABASE).args(args).stdin(Stdio::null());
    command
}

/// Runs the program to its end.
pub fn output(cluster: &Cluster, args: &[&str]) -> Output {
    command(cluster, args).output().expect("the program runs")
}

impl Web {
    pub fn start(cluster: &Cluster, args: &[&str]) -> Self {
        Self::start_as(command(cluster, args), args.contains(&"--listen"))
    }

    /// Starts the dashboard with a limit of open files.
    pub fn start_with_files(cluster: &Cluster, args: &[&str], files: usize) -> Self {
        let bare = command(cluster, args);
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -n {files}; exec \"$0\" \"$@\"")]);
        command.arg(bare.get_program()).args(bare.get_args()).stdin(Stdio::null());
        command.envs(bare.get_envs().filter_map(|(name, value)| Some((name, value?))));
        Self::start_as(command, false)
    }

    fn start_as(mut command: Command, is_said: bool) -> Self {
        if !is_said {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        let mut process = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().expect("the program runs");
        let mut said = BufReader::new(process.stderr.take().expect("its log"));
        let mut first = String::new();
        said.read_line(&mut first).expect("its first line");
        let at = first.trim().strip_prefix("pg_queue_web: listening on ");
        let at = at.unwrap_or_else(|| {
            let mut rest = String::new();
            drop(said.read_to_string(&mut rest));
            panic!("it did not start: {first}{rest}")
        });
        let address = match at.strip_prefix("http://") {
            Some(rest) => Address::Tcp(rest.split('/').next().unwrap().to_owned()),
            None => Address::Unix(at.into()),
        };
        let log = Arc::new(Mutex::new(first));
        let kept = log.clone();
        std::thread::spawn(move || {
            for line in said.lines().map_while(Result::ok) {
                let mut log = kept.lock().unwrap();
                log.push_str(&line);
                log.push('\n');
            }
        });
        Self { process: KilledAtEnd(process), address, log }
    }

    /// Returns the address of its page.
    pub fn site(&self) -> String {
        match &self.address {
            Address::Tcp(address) => format!("http://{address}/"),
            Address::Unix(path) => panic!("no browser comes to {}", path.display()),
        }
    }

    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Waits for a line of the audit that has all these words. Returns it.
    pub fn wait_audit(&self, words: &[&str]) -> String {
        wait::until(&format!("the audit has {words:?}"), || {
            let log = self.log();
            let mut lines = log.lines().filter(|line| line.starts_with("pg_queue_web: audit "));
            lines.find(|line| words.iter().all(|word| line.contains(word))).map(str::to_owned)
        })
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Returns its resident memory in megabytes.
    pub fn megabytes(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("its status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory");
        line.split_whitespace().next().unwrap().parse::<usize>().unwrap() / 1024
    }

    /// Terminates it and waits for its end. Returns true if its exit status is 0.
    pub fn terminate(&mut self) -> bool {
        let killed = Command::new("kill").args(["-TERM", &self.pid().to_string()]).status();
        assert!(killed.expect("kill").success());
        self.process.wait().expect("its end").success()
    }
}

impl Deref for Web {
    type Target = Address;

    fn deref(&self) -> &Address {
        &self.address
    }
}

/// Starts a cluster with database `app`. Returns it with a session.
pub fn place() -> (Cluster, Client) {
    Cluster::new().start_with_database(DATABASE)
}

/// Returns the text in the encoding of URLs.
pub fn encoded(text: &str) -> String {
    text.bytes()
        .map(|byte| if byte.is_ascii_alphanumeric() { (byte as char).to_string() } else { format!("%{byte:02X}") })
        .collect()
}
