//! One node: an etcd, a Patroni and the server that Patroni runs.

use std::fmt;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::Mutex;
use std::time::Duration;

use queue_tests::installation::output;
use serde_json::Value;

use crate::log;
use crate::place::{NODES, Place};

/// The configuration in `docs/failover.md`. Its words in capitals are filled in.
const PATRONI: &str = include_str!("../../docs/recipes/patroni.yml");

/// For all roles: only the drill can reach these servers.
pub const PASSWORD: &str = "drilled";

/// Debian's Python, which has what Patroni needs. Another Python may come first in the PATH.
const PYTHON: &str = "/usr/bin/python3";

/// One of the three nodes.
pub struct Node<'a> {
    place: &'a Place,
    number: usize,
    dir: PathBuf,
    etcd: Mutex<Option<Child>>,
    patroni: Mutex<Option<Child>>,
}

impl<'a> Node<'a> {
    /// Writes the configuration of a node.
    pub fn new(place: &'a Place, number: usize) -> Self {
        let dir = place.dir.join(format!("node{number}"));
        let mut make = place.command(number, "mkdir");
        assert!(make.arg(&dir).status().is_ok_and(|done| done.success()), "a folder for the node");
        let node = Self { place, number, dir, etcd: Mutex::new(None), patroni: Mutex::new(None) };
        let hosts: Vec<String> = (0..NODES).map(|other| format!("{}:2379", place.address(other))).collect();
        let mut text = PATRONI.to_owned();
        for (word, value) in [
            ("NODE", format!("node{number}")),
            ("ADDRESS", node.address()),
            ("ETCD_HOSTS", hosts.join(",")),
            ("DATA", node.data().display().to_string()),
            ("BIN", place.bindir.display().to_string()),
            ("PASSWORD", PASSWORD.to_owned()),
            ("NETWORK", place.network().to_owned()),
        ] {
            let mut filled: Vec<String> = Vec::new();
            for line in text.lines() {
                let is_comment = line.trim_start().starts_with('#');
                filled.push(if is_comment { line.to_owned() } else { line.replace(word, &value) });
            }
            text = filled.join("\n");
        }
        text += &format!(
            "\n  parameters:\n    log_line_prefix: '%n [%p] '\n    unix_socket_directories: {}\n",
            node.dir.display()
        );
        fs::write(node.dir.join("patroni.yml"), text).expect("a writable folder");
        node
    }

    pub fn address(&self) -> String {
        self.place.address(self.number)
    }

    pub fn name(&self) -> String {
        format!("node{}", self.number)
    }

    fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    fn spawn(&self, mut command: Command, log: &str) -> Child {
        let file = File::options().create(true).append(true).open(self.dir.join(log)).expect("a log");
        let copy = file.try_clone().expect("a log");
        command.stdout(file).stderr(copy).spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"))
    }

    /// Starts the node's etcd.
    pub fn start_etcd(&self) {
        let members: Vec<String> =
            (0..NODES).map(|other| format!("node{other}=http://{}:2380", self.place.address(other))).collect();
        let (peers, clients) = (format!("http://{}:2380", self.address()), format!("http://{}:2379", self.address()));
        let mut command = self.place.command(self.number, "etcd");
        command.args(["--name", &self.name(), "--initial-cluster", &members.join(","), "--logger", "zap"]);
        command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
        command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
        command.arg("--data-dir").arg(self.dir.join("etcd"));
        *self.etcd.lock().expect("one user") = Some(self.spawn(command, "etcd.log"));
    }

    /// Starts the node's Patroni, which starts the server.
    pub fn start_patroni(&self) {
        let mut command = self.place.command(self.number, PYTHON);
        command.args(["-m", "patroni"]).arg(self.dir.join("patroni.yml"));
        if let Some(package) = &self.place.patroni {
            command.env("PYTHONPATH", package);
        }
        // Patroni keeps its passwords in its home.
        command.env("HOME", &self.dir);
        *self.patroni.lock().expect("one user") = Some(self.spawn(command, "log"));
    }

    /// Ends a leftover server immediately, as `docs/failover.md` does before Patroni starts. Sessions that wait for
    /// their commits get no answer.
    pub fn fence(&self) {
        let mut stop = self.place.command(self.number, self.place.bindir.join("pg_ctl"));
        stop.args(["stop", "-m", "immediate", "-D"]).arg(self.data());
        output(&mut stop);
    }

    /// Kills the node's Patroni and leaves the server alone.
    pub fn kill_patroni(&self) {
        if let Some(mut patroni) = self.patroni.lock().expect("one user").take() {
            patroni.kill().expect("a Patroni to kill");
            patroni.wait().expect("a Patroni");
        }
    }

    /// Kills the server: its first process, and the processes that have not noticed.
    pub fn kill_server(&self) {
        let postmaster = self.postmaster().expect("a server to kill");
        signal("KILL", postmaster);
        for process in self.processes() {
            signal("KILL", process);
        }
    }

    /// Stops all of the node's processes, or lets them continue.
    pub fn freeze(&self, is_frozen: bool) {
        let started = [&self.etcd, &self.patroni].map(|child| child.lock().expect("one user").as_ref().map(Child::id));
        let started = started.into_iter().flatten().filter_map(|pid| i32::try_from(pid).ok());
        for process in started.chain(self.processes()) {
            signal(if is_frozen { "STOP" } else { "CONT" }, process);
        }
    }

    fn postmaster(&self) -> Option<i32> {
        fs::read_to_string(self.data().join("postmaster.pid")).ok()?.lines().next()?.parse().ok()
    }

    /// The processes that work in the server's folder.
    fn processes(&self) -> Vec<i32> {
        let data = self.data();
        let all = fs::read_dir("/proc").into_iter().flatten().flatten();
        all.filter(|entry| fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd == data))
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .collect()
    }

    /// Returns the version of this node's Patroni, as it reports it.
    pub fn patroni_version(&self) -> Option<String> {
        let (_, answer) = self.ask("GET", "/patroni", "")?;
        let answer: Value = serde_json::from_str(&answer).ok()?;
        Some(answer["patroni"]["version"].as_str()?.to_owned())
    }

    /// Returns what Patroni and the server have logged.
    pub fn log(&self) -> String {
        log::read(&self.dir.join("log"))
    }

    /// Asks this node's Patroni. Returns the status and the answer.
    pub fn ask(&self, method: &str, path: &str, body: &str) -> Option<(u16, String)> {
        let address: SocketAddr = format!("{}:8008", self.address()).parse().expect("an address");
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_millis(500)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(30))).ok()?;
        let length = body.len();
        let head =
            format!("{method} {path} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n");
        stream.write_all((head + body).as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let status = answer.split(' ').nth(1)?.parse().ok()?;
        Some((status, answer.split_once("\r\n\r\n")?.1.to_owned()))
    }

    /// Returns what this node's Patroni knows of all nodes.
    pub fn members(&self) -> Vec<Member> {
        let answer = self.ask("GET", "/cluster", "").map(|(_, body)| body).unwrap_or_default();
        let Ok(Value::Object(answer)) = serde_json::from_str(&answer) else { return Vec::new() };
        let members = answer.get("members").and_then(Value::as_array).cloned().unwrap_or_default();
        let word = |member: &Value, name: &str| member[name].as_str().unwrap_or_default().to_owned();
        members
            .iter()
            .map(|member| Member {
                name: word(member, "name"),
                role: word(member, "role"),
                state: word(member, "state"),
                timeline: member["timeline"].as_i64().unwrap_or_default(),
            })
            .collect()
    }
}

impl Drop for Node<'_> {
    fn drop(&mut self) {
        self.kill_patroni();
        for process in self.postmaster().into_iter().chain(self.processes()) {
            // A stale file may name a process of another program.
            let is_ours = fs::read_link(format!("/proc/{process}/cwd")).is_ok_and(|cwd| cwd == self.data());
            if is_ours {
                signal("KILL", process);
            }
        }
        if let Some(mut etcd) = self.etcd.lock().expect("one user").take() {
            let _ = etcd.kill();
            let _ = etcd.wait();
        }
    }
}

/// A node as Patroni sees it.
#[derive(Clone)]
pub struct Member {
    pub name: String,
    pub role: String,
    pub state: String,
    pub timeline: i64,
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} {} {} on timeline {}", self.name, self.role, self.state, self.timeline)
    }
}

fn signal(name: &str, pid: i32) {
    let _ = Command::new("kill").args(["-s", name, &pid.to_string()]).stderr(std::process::Stdio::null()).status();
}
