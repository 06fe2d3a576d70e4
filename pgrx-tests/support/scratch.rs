//! The folder under /tmp that holds all clusters of one test binary, and who cleans it up.
//!
//! Its path is short, because it is also where the sockets are (a socket's path may have 107 bytes). A small
//! shell process outlives the test binary, however that ends, stops what still runs and removes the folder;
//! clusters marked with a file `keep` stay.

use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::installation::{account, command, output};

/// Waits for the end of its input, that is, of the test binary. A stale postmaster.pid may name a process that
/// is none of ours: hence the look at its working directory, where the system can tell it.
const JANITOR: &str = r#"
cat >/dev/null
for file in "$1"/*/data/postmaster.pid; do
    [ -f "$file" ] || continue
    pid=$(head -n 1 "$file")
    [ -e /proc/self/cwd ] && [ "$(readlink "/proc/$pid/cwd")" != "${file%/*}" ] && continue
    kill -QUIT "$pid"
    for _ in 1 2 3 4 5 6 7 8 9 10; do kill -0 "$pid" && sleep 0.2; done
done
for cluster in "$1"/*; do
    [ -e "$cluster/keep" ] || rm -rf "$cluster"
done
rmdir "$1"
"#;

struct Scratch {
    dir: PathBuf,
    /// Holds the pipe that the system closes when this process ends, which is what the janitor waits for.
    _janitor: Child,
}

/// The folder of this test binary, made at the first call.
fn scratch() -> &'static Path {
    static SCRATCH: OnceLock<Scratch> = OnceLock::new();
    &SCRATCH
        .get_or_init(|| {
            let dir = make_base();
            let janitor = Command::new("sh")
                .args(["-c", JANITOR, "janitor"])
                .arg(&dir)
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .current_dir("/")
                // Ctrl-C is for the tests; the janitor cleans up after it.
                .process_group(0)
                .spawn()
                .expect("a shell");
            Scratch { dir, _janitor: janitor }
        })
        .dir
}

/// Makes a folder that nobody had, owned by the server's account.
fn make_base() -> PathBuf {
    let pid = std::process::id();
    // A kept folder of an earlier process may have the name.
    for attempt in 0.. {
        let dir = PathBuf::from(format!("/tmp/queue-{pid}-{attempt}"));
        match std::fs::DirBuilder::new().mode(0o700).create(&dir) {
            Ok(()) => {
                if let Some((uid, gid)) = account() {
                    chown(&dir, Some(uid), Some(gid)).expect("root may chown");
                }
                return dir;
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => panic!("could not create {}: {error}", dir.display()),
        }
    }
    unreachable!("some number is free")
}

/// Makes an empty folder for one more cluster.
pub(crate) fn new_folder() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let dir = scratch().join(NEXT.fetch_add(1, Ordering::Relaxed).to_string());
    std::fs::DirBuilder::new().mode(0o755).create(&dir).expect("a folder in our own folder");
    if let Some((uid, gid)) = account() {
        chown(&dir, Some(uid), Some(gid)).expect("root may chown");
    }
    dir
}

/// A data directory fresh from initdb, to be copied: initdb takes a second, a copy a twentieth of it.
pub(crate) fn template() -> &'static Path {
    static TEMPLATE: OnceLock<PathBuf> = OnceLock::new();
    TEMPLATE.get_or_init(|| {
        let data = scratch().join("template");
        let options = ["-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "--no-sync"];
        output(command("initdb").args(options).arg("-D").arg(&data));
        data
    })
}
