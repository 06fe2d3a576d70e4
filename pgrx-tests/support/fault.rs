//! Fault points of the extension's test build: places at which a test holds, fails or kills a process.
//!
//! Responsible for arming points and reporting that one was reached. Not responsible for the actions: see
//! `src/pg/fault.rs`, which lists them.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::cluster::Cluster;
use crate::wait;

/// Held by the test that makes or empties a folder of faults.
static CHANGING: Mutex<()> = Mutex::new(());

/// An armed fault point. Dropping it disarms the point and releases the held process.
#[derive(Debug)]
pub struct Fault {
    folder: PathBuf,
    point: String,
    /// The process that the fault is for. `None` means the first one that reaches the point.
    pid: Option<i32>,
}

impl Cluster {
    /// Arms a fault point for the first process that reaches it: `"wait"`, `"error"`, `"error 53100"`, `"terminate"`,
    /// `"crash"` or `"stop"`.
    pub fn fault(&self, point: &str, action: &str) -> Fault {
        Fault::arm(self.data(), point, None, action)
    }

    /// Makes processes pause at fault points, in `cases` of 1,000 cases, for up to `most_ms` milliseconds. This
    /// includes standbys made of the server later.
    pub fn delay_points(&self, cases: u32, most_ms: u32) {
        let _changing = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = Fault::folder(self.data());
        fs::write(folder.join("delays"), format!("{cases} {most_ms}")).expect("a writable folder");
    }

    /// Arms a fault point for one process of the server.
    pub fn fault_of(&self, pid: i32, point: &str, action: &str) -> Fault {
        Fault::arm(self.data(), point, Some(pid), action)
    }
}

impl Fault {
    /// Returns the folder of a server's faults. Makes it if it does not exist.
    fn folder(data: PathBuf) -> PathBuf {
        let folder = data.join("pg_queue_faults");
        fs::create_dir_all(&folder).expect("a writable data directory");
        // The server's account renames files in it.
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).expect("the folder just made");
        folder
    }

    fn arm(data: PathBuf, point: &str, pid: Option<i32>, action: &str) -> Self {
        let _changing = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
        let fault = Self { folder: Self::folder(data), point: point.to_owned(), pid };
        // The file gets its final name when it is complete.
        let draft = fault.folder.join(format!("{}.draft", fault.file()));
        fs::write(&draft, action).expect("a writable folder");
        fs::set_permissions(&draft, fs::Permissions::from_mode(0o644)).expect("the file just written");
        fs::rename(&draft, fault.folder.join(fault.file())).expect("the file just written");
        fault
    }

    fn file(&self) -> String {
        self.pid.map_or(self.point.clone(), |pid| format!("{}@{pid}", self.point))
    }

    /// Returns the process that has reached the point, or `None`.
    pub fn reached_by(&self) -> Option<i32> {
        if let Some(pid) = self.pid {
            return self.folder.join(format!("{}.{pid}", self.point)).exists().then_some(pid);
        }
        let files = fs::read_dir(&self.folder).expect("the folder of the faults").flatten();
        let names = files.filter_map(|file| file.file_name().into_string().ok());
        names.filter_map(|name| name.strip_prefix(&self.point)?.strip_prefix('.')?.parse().ok()).next()
    }

    /// Waits until a process has reached the point, and returns it.
    pub fn wait_reached(&self) -> i32 {
        wait::until(&format!("fault point {} is reached", self.point), || self.reached_by())
    }

    /// Disarms the point and releases the held process. Returns whether the point was reached.
    pub fn release(self) -> bool {
        self.reached_by().is_some()
    }
}

impl Drop for Fault {
    fn drop(&mut self) {
        let _changing = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = fs::remove_file(self.folder.join(self.file()));
        if let Some(pid) = self.reached_by() {
            let _ = fs::remove_file(self.folder.join(format!("{}.{pid}", self.point)));
        }
        // The folder stays while it has other faults. Without the folder, points do not look for faults.
        let _ = fs::remove_dir(&self.folder);
    }
}

/// Returns all fault points that the source names, including those of each duty, but not `row.TABLE.before` and
/// `row.TABLE.after`.
pub fn points() -> BTreeSet<String> {
    let (mut points, mut duties) = (BTreeSet::new(), Vec::new());
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src");
    each_file(&source, &mut |text| {
        let named = |marker: &str, each: &mut dyn FnMut(&str)| {
            text.match_indices(marker).for_each(|(at, _)| each(&text[at + marker.len()..]));
        };
        let mut add = |rest: &str| {
            let call = rest.split(");").next().unwrap_or_default();
            points.extend(call.split('"').skip(1).step_by(2).filter(|name| name.contains('.')).map(str::to_owned));
        };
        named("fault!(", &mut add);
        named("fault_quietly!(", &mut add);
        named("Duty { name: \"", &mut |rest| duties.extend(rest.split('"').next().map(str::to_owned)));
    });
    let (patterns, mut points): (BTreeSet<_>, BTreeSet<_>) = points.into_iter().partition(|p| p.contains("{}"));
    for pattern in &patterns {
        points.extend(duties.iter().map(|duty| pattern.replace("{}", duty)));
    }
    points
}

fn each_file(folder: &Path, each: &mut dyn FnMut(&str)) {
    for entry in fs::read_dir(folder).expect("the source").flatten() {
        let path = entry.path();
        if path.is_dir() {
            each_file(&path, each);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            each(&fs::read_to_string(&path).expect("a source file"));
        }
    }
}
