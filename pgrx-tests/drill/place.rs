//! The place of the drill: a folder, and, where the machine allows namespaces, a network for each node, from which the
//! node can be cut off.
//!
//! The program runs itself again inside a pid namespace. So no process outlives it, however it ends: the kernel kills
//! all of them. Where that is not allowed, the nodes are at three addresses of the loopback device, no node can be cut
//! off, and [`crate::node`] ends the processes.
//!
//! Servers and Patroni run from a copy of the installation under test. So a build during the drill changes nothing, and
//! all of them have the same library to the end.

use std::ffi::OsStr;
use std::os::unix::fs::{DirBuilderExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

use queue_tests::installation::{account, installation, output};
use queue_tests::wait;

/// The folder. It is set for the program inside.
const INSIDE: &str = "PG_QUEUE_DRILL_INSIDE";

/// How many nodes there are.
pub const NODES: usize = 3;

/// The message if nodes cannot be cut off, at the beginning and in the verdict.
pub const NO_SPLIT: &str = "this machine allows no network namespaces (they take root, unshare and ip), \
    so no split and no standstill was drilled";

/// The arguments of `unshare`: everything that is started inside ends with it.
const UNSHARE: [&str; 6] = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"];

/// Waits for the end of its input, which is the end of the program, and removes the folder.
const JANITOR: &str = "cat >/dev/null; for n in 1 2 3 4 5 6 7 8 9 10; do rm -rf \"$1\" && exit; sleep 0.5; done";

/// The place.
pub struct Place {
    pub dir: PathBuf,
    /// The servers' programs.
    pub bindir: PathBuf,
    /// Patroni's Python package, if it is not the system's.
    pub patroni: Option<PathBuf>,
    /// Processes that each hold a node's network namespace. Empty if there are none.
    holders: Vec<Child>,
}

/// Runs this program inside namespaces of its own and returns its status. `None` if we are inside already, or stay
/// outside because the machine allows none.
pub fn in_namespaces(keep: bool) -> Option<ExitCode> {
    if std::env::var_os(INSIDE).is_some() {
        return None;
    }
    let dir = PathBuf::from(format!("/tmp/queue-drill-{}", std::process::id()));
    std::fs::DirBuilder::new().mode(0o755).create(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    if let Some((uid, gid)) = account() {
        chown(&dir, Some(uid), Some(gid)).expect("root may chown");
    }
    let mut janitor = Command::new("sh");
    janitor.args(["-c", if keep { "cat >/dev/null" } else { JANITOR }, "janitor"]).arg(&dir);
    let mut janitor = janitor.stdin(Stdio::piped()).process_group(0).current_dir("/").spawn().expect("a shell");
    if keep {
        println!("the folder: {}", dir.display());
    }
    let allowed = Command::new("unshare").args(UNSHARE).args(["ip", "link", "add", "type", "bridge"]).output();
    let is_allowed = allowed.is_ok_and(|done| done.status.success());
    let program = std::env::current_exe().expect("this program");
    let mut inside = if is_allowed {
        let mut inside = Command::new("setpriv");
        inside.args(["--pdeathsig", "KILL", "unshare"]).args(UNSHARE);
        // The first process inside inherits servers whose parents have ended, and has to reap them.
        inside.args(["sh", "-c", "\"$@\"; exit $?", "init"]).arg(program);
        inside
    } else {
        println!("{NO_SPLIT}");
        Command::new(program)
    };
    inside.args(std::env::args_os().skip(1)).env(INSIDE, &dir).env("PG_QUEUE_DRILL_SPLIT", is_allowed.to_string());
    let status = inside.status().expect("this program");
    drop(janitor.stdin.take());
    let _ = janitor.wait();
    Some(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Place {
    /// Makes the networks. Copies the programs: a Patroni from this folder, or the system's.
    pub fn make(patroni: Option<&Path>) -> Self {
        let dir = PathBuf::from(std::env::var_os(INSIDE).expect("the folder"));
        let has_networks = std::env::var("PG_QUEUE_DRILL_SPLIT").is_ok_and(|said| said == "true");
        let bindir = copy_server(&dir.join("server"));
        let patroni = patroni.map(|from| {
            // The server's account may not enter the original folder.
            let copy = dir.join("patroni");
            output(Command::new("cp").arg("-a").arg(from).arg(&copy));
            copy
        });
        let mut place = Self { dir, bindir, patroni, holders: Vec::new() };
        if has_networks {
            place.make_networks();
        }
        place
    }

    fn make_networks(&mut self) {
        ip(&["link", "set", "lo", "up"]);
        ip(&["link", "add", "br0", "type", "bridge"]);
        ip(&["addr", "add", "10.77.0.254/24", "dev", "br0"]);
        ip(&["link", "set", "br0", "up"]);
        let own = std::fs::read_link("/proc/self/ns/net").expect("our network namespace");
        for node in 0..NODES {
            let holder = Command::new("unshare").args(["--net", "sleep", "infinity"]).spawn().expect("unshare");
            let pid = holder.id().to_string();
            self.holders.push(holder);
            let link = format!("/proc/{pid}/ns/net");
            wait::until("the node has a network", || std::fs::read_link(&link).ok().filter(|other| *other != own));
            let (outer, inner) = (format!("node{node}"), format!("inner{node}"));
            ip(&["link", "add", &outer, "type", "veth", "peer", "name", &inner]);
            ip(&["link", "set", &inner, "netns", &pid, "name", "eth0"]);
            ip(&["link", "set", &outer, "master", "br0", "up"]);
            self.ip_of(node, &["link", "set", "lo", "up"]);
            self.ip_of(node, &["addr", "add", &format!("{}/24", self.address(node)), "dev", "eth0"]);
            self.ip_of(node, &["link", "set", "eth0", "up"]);
        }
    }

    /// Returns true if nodes can be cut off.
    pub fn has_networks(&self) -> bool {
        !self.holders.is_empty()
    }

    /// Returns a node's address.
    pub fn address(&self, node: usize) -> String {
        if self.has_networks() { format!("10.77.0.{}", node + 1) } else { format!("127.0.77.{}", node + 1) }
    }

    /// Returns all addresses of nodes and clients.
    pub fn network(&self) -> &'static str {
        if self.has_networks() { "10.77.0.0/24" } else { "127.0.0.0/8" }
    }

    /// Returns a command that runs on a node, as the server's account.
    pub fn command(&self, node: usize, program: impl AsRef<OsStr>) -> Command {
        let mut command = match self.holders.get(node) {
            Some(holder) => {
                let mut command = Command::new("nsenter");
                command.arg(format!("--net=/proc/{}/ns/net", holder.id()));
                if let Some((uid, gid)) = account() {
                    command
                        .args(["setpriv", "--clear-groups"])
                        .arg(format!("--reuid={uid}"))
                        .arg(format!("--regid={gid}"));
                }
                command.arg(program);
                command
            }
            None => {
                let mut command = Command::new(program);
                if let Some((uid, gid)) = account() {
                    command.uid(uid).gid(gid);
                }
                command
            }
        };
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"PG") {
                command.env_remove(name);
            }
        }
        command.env("LC_ALL", "C").current_dir(&self.dir);
        command
    }

    /// Cuts a node off from the other nodes, and optionally from the clients, or reconnects it.
    pub fn cut_off(&self, node: usize, from_clients: bool, is_cut: bool) {
        if from_clients {
            ip(&["link", "set", &format!("node{node}"), if is_cut { "down" } else { "up" }]);
            return;
        }
        let verb = if is_cut { "add" } else { "del" };
        for other in (0..NODES).filter(|&other| other != node) {
            self.ip_of(node, &["route", verb, "blackhole", &format!("{}/32", self.address(other))]);
            self.ip_of(other, &["route", verb, "blackhole", &format!("{}/32", self.address(node))]);
        }
    }

    fn ip_of(&self, node: usize, args: &[&str]) {
        let namespace = format!("--net=/proc/{}/ns/net", self.holders[node].id());
        output(Command::new("nsenter").arg(namespace).arg("ip").args(args));
    }
}

/// Copies the installation under test. Returns the folder of the copied programs, which find their files by relative
/// paths.
fn copy_server(to: &Path) -> PathBuf {
    let from = installation();
    let parts = [&from.bindir, &from.pkglibdir, &from.sharedir];
    let is_above_all = |dir: &&Path| parts.iter().all(|part| part.starts_with(dir));
    let root = from.bindir.ancestors().find(is_above_all).expect("the root is above all");
    let place = |part: &Path| to.join(part.strip_prefix(root).expect("a part is below the root"));
    for part in parts {
        let copy = place(part);
        std::fs::create_dir_all(&copy).unwrap_or_else(|e| panic!("{}: {e}", copy.display()));
        output(Command::new("cp").arg("-a").arg(part.join(".")).arg(&copy));
    }
    place(&from.bindir)
}

impl Drop for Place {
    fn drop(&mut self) {
        for holder in &mut self.holders {
            let _ = holder.kill();
            let _ = holder.wait();
        }
    }
}

fn ip(args: &[&str]) {
    output(Command::new("ip").args(args));
}
