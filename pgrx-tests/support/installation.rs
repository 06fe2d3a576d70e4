//! The installed server under test: where its programs are, and which user runs them.
//!
//! `PG_CONFIG` names it. Without `PG_CONFIG`, the tests use the private copy that `make stage` leaves in the target
//! folder. So they neither need nor change the system's own installation.

use std::ffi::OsStr;
use std::io::Read as _;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The directories of the server under test, as `pg_config` prints them.
#[derive(Debug)]
pub struct Installation {
    /// Where `postgres`, `psql` and the other programs are.
    pub bindir: PathBuf,
    /// Where `extension/pg_queue.control` is.
    pub sharedir: PathBuf,
    /// Where libraries such as `pg_queue.so` are.
    pub pkglibdir: PathBuf,
    /// Where `pg_regress` and `pg_isolation_regress` are, in folders `regress` and `isolation`.
    pub test_tools: PathBuf,
    /// The major version, such as 15.
    pub major: u32,
}

impl Installation {
    /// Returns the installation of this `pg_config`. Panics if it lacks pg_queue, and says what to do.
    pub fn of(pg_config: &Path) -> Self {
        let found = Self::plain(pg_config);
        assert!(
            found.has_extension(),
            "pg_queue is not installed in the server of {}: run `make stage`",
            pg_config.display()
        );
        found
    }

    /// Returns the installation of this `pg_config`, with or without pg_queue.
    pub fn plain(pg_config: &Path) -> Self {
        let tell = |what: &str| output(Command::new(pg_config).arg(what)).trim().to_owned();
        let dir = |what| PathBuf::from(tell(what));
        let version = tell("--version");
        Self {
            bindir: dir("--bindir"),
            sharedir: dir("--sharedir"),
            pkglibdir: dir("--pkglibdir"),
            test_tools: dir("--pgxs").with_file_name("../test"),
            major: version
                .split(|c: char| !c.is_ascii_digit())
                .find_map(|number| number.parse().ok())
                .unwrap_or_else(|| panic!("no version in {version:?}")),
        }
    }

    /// True if pg_queue is installed in it.
    pub fn has_extension(&self) -> bool {
        self.sharedir.join("extension/pg_queue.control").exists()
    }

    /// Returns a command for a program in the installation's `bindir`. It runs as [`account`] in a clean environment.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.bindir.join(program));
        clean(&mut command);
        as_account(&mut command);
        command
    }
}

/// Returns the installation under test. Panics if there is none or it lacks pg_queue, and says what to do.
pub fn installation() -> &'static Installation {
    static FOUND: OnceLock<Installation> = OnceLock::new();
    FOUND.get_or_init(|| Installation::of(&pg_config()))
}

/// Returns plain servers of other major versions on this machine, with or without pg_queue: packages, and the results
/// of `build-postgres` and `fetch-postgres`.
pub fn others() -> Vec<&'static Installation> {
    let home = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    let folders = [Some("/usr/lib/postgresql".into()), Some("/var/cache/pg_queue-tests".into())];
    let folders = folders.into_iter().chain([home.map(|home| home.join("pg_queue-tests"))]).flatten();
    let servers = folders.filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten();
    let mut found: Vec<&Installation> = Vec::new();
    for pg_config in servers.map(|server| server.path().join("bin/pg_config")).filter(|path| path.exists()) {
        let other = Installation::plain(&pg_config);
        if other.major >= 15 && other.major != installation().major && found.iter().all(|o| o.major != other.major) {
            found.push(Box::leak(Box::new(other)));
        }
    }
    found
}

/// Returns `PG_CONFIG`, or else the link that `make stage` leaves.
fn pg_config() -> PathBuf {
    if let Some(named) = std::env::var_os("PG_CONFIG") {
        return named.into();
    }
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or("target".into());
    let staged = workspace.join(target).join("debug/server/pg_config");
    assert!(staged.exists(), "there is no server to test at {}: run `make stage`, or set PG_CONFIG", staged.display());
    staged
}

/// [`Installation::command`] of the installation under test.
pub fn command(program: &str) -> Command {
    installation().command(program)
}

/// Removes all variables from the command's environment that would change a server or a client.
pub(crate) fn clean(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"PG") {
            command.env_remove(name);
        }
    }
    command.env("LC_ALL", "C");
}

/// Makes the command run as the server's account, in a folder that this account can enter.
pub(crate) fn as_account(command: &mut Command) -> &mut Command {
    command.current_dir("/");
    if let Some((uid, gid)) = account() {
        command.uid(uid).gid(gid);
    }
    command
}

/// Returns the user and group that the server runs as. `None` means this user. Postgres refuses to run as root, so root
/// uses the account `postgres` or `nobody`.
pub fn account() -> Option<(u32, u32)> {
    static FOUND: OnceLock<Option<(u32, u32)>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let id = |args: &[&str]| -> Option<u32> {
            let answer = Command::new("id").args(args).output().expect("the program `id`");
            String::from_utf8_lossy(&answer.stdout).trim().parse().ok()
        };
        if id(&["-u"]) != Some(0) {
            return None;
        }
        ["postgres", "nobody"]
            .iter()
            .find_map(|user| Some((id(&["-u", user])?, id(&["-g", user])?)))
            .or_else(|| panic!("root has neither `postgres` nor `nobody` to run a server as"))
    })
}

/// Runs the command and returns its stdout. Panics with its stderr if it fails.
pub fn output(command: &mut Command) -> String {
    let program = command.get_program().to_owned();
    let args: Vec<_> = command.get_args().map(OsStr::to_owned).collect();
    let done = command.output().unwrap_or_else(|error| panic!("could not run {}: {error}", program.display()));
    assert!(
        done.status.success(),
        "{} {args:?}: {}\n{}{}",
        program.display(),
        done.status,
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr),
    );
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// Runs the command and returns its stdout and stderr, in order, whether or not it succeeds.
pub fn printed(mut command: Command) -> String {
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    command.stdout(writer.try_clone().expect("a second end of the pipe")).stderr(writer);
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    // The command still holds our ends of the pipe. A read from the pipe ends when all of them are closed.
    drop(command);
    let mut printed = String::new();
    reader.read_to_string(&mut printed).expect("text");
    child.wait().expect("its end");
    printed
}

/// Runs the command. It must succeed and print nothing to stderr.
pub fn run(command: &mut Command) {
    let done = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let printed = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && printed.is_empty(), "{command:?}: {}\n{printed}", done.status);
}
