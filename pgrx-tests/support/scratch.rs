//! The folder that holds all clusters of one test binary, and the process that cleans it up.
//!
//! Clusters lie in memory if there is room. This is safe, since tests kill processes and never the machine. A server
//! makes and removes a thousand files for a database, which takes ten times as long on some disks. The clusters of the
//! demo and the benchmark lie on disk.
//!
//! The folder's path is short, because it also holds the sockets, and a socket's path may have 107 bytes. A small shell
//! process outlives the test binary, however that ends. It stops running servers and removes the folder, except
//! clusters marked with a file `keep`.

use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::installation::{Installation, account};

/// Waits for the end of its input, which is the end of the test binary. A stale postmaster.pid may name another
/// program's process. If the system can tell the working directory of the process, that is checked.
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

/// Where a cluster lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Medium {
    /// In memory if there is room, else on disk.
    Memory,
    Disk,
}

/// The file system in memory on Linux. Containers may have a small one.
const MEMORY: &str = "/dev/shm";

/// The kilobytes that must be free, as a file system and as memory. All server tests together use at most a quarter of
/// it at a time.
const ROOM_KB: u64 = 6 << 20;

const DISK: &str = "/tmp";

struct Scratch {
    dir: PathBuf,
    /// Holds the pipe that the janitor waits for. The system closes it when this process ends.
    _janitor: Child,
}

/// Returns the folder of this test binary. The first call for a medium makes it.
fn scratch(medium: Medium) -> &'static Path {
    static IN_MEMORY: OnceLock<Scratch> = OnceLock::new();
    static ON_DISK: OnceLock<Scratch> = OnceLock::new();
    let scratch = if medium == Medium::Memory { &IN_MEMORY } else { &ON_DISK };
    &scratch
        .get_or_init(|| {
            let dir = make_base(if medium == Medium::Memory { in_memory() } else { DISK });
            let janitor = Command::new("sh")
                .args(["-c", JANITOR, "janitor"])
                .arg(&dir)
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .current_dir("/")
                // Ctrl-C goes to the tests. The janitor cleans up after it.
                .process_group(0)
                .spawn()
                .expect("a shell");
            Scratch { dir, _janitor: janitor }
        })
        .dir
}

/// Returns the file system in memory if there is one with room, else the disk's.
fn in_memory() -> &'static str {
    let number = |text: &str| text.parse::<u64>().ok();
    let of_memory = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        number(line.split_whitespace().next()?)
    });
    let of_files = Command::new("df").args(["-Pk", MEMORY]).output().ok().and_then(|done| {
        let text = String::from_utf8_lossy(&done.stdout).into_owned();
        let fields: Vec<&str> = text.lines().nth(1)?.split_whitespace().collect();
        if fields.first() == Some(&"tmpfs") { number(fields.get(3)?) } else { None }
    });
    let has_room = |free: Option<u64>| free.is_some_and(|free| free >= ROOM_KB);
    if has_room(of_memory) && has_room(of_files) { MEMORY } else { DISK }
}

/// Makes a new folder owned by the server's account.
fn make_base(place: &str) -> PathBuf {
    let pid = std::process::id();
    // A kept folder of an earlier process may have this name.
    for attempt in 0.. {
        let dir = PathBuf::from(format!("{place}/queue-{pid}-{attempt}"));
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
pub(crate) fn new_folder(medium: Medium) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let dir = scratch(medium).join(NEXT.fetch_add(1, Ordering::Relaxed).to_string());
    make_folder(&dir);
    dir
}

/// Returns the folder from which clusters of the installation are copied. The first call fills it with `fill`.
pub(crate) fn template(medium: Medium, installation: &Installation, fill: impl FnOnce(PathBuf)) -> PathBuf {
    static FILLED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
    // If `fill` fails, its test reports that. Other tests try again.
    let mut filled = FILLED.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = scratch(medium).join(format!("template-{}", installation.major));
    if !filled.contains(&dir) {
        let _ = std::fs::remove_dir_all(&dir);
        make_folder(&dir);
        fill(dir.clone());
        filled.push(dir.clone());
    }
    dir
}

/// Makes an empty folder of the server's account.
fn make_folder(dir: &Path) {
    std::fs::DirBuilder::new().mode(0o755).create(dir).expect("a folder in our own folder");
    if let Some((uid, gid)) = account() {
        chown(dir, Some(uid), Some(gid)).expect("root may chown");
    }
}
