//! Named points at which a test holds, fails or kills the process that reaches them.
//!
//! Responsible for the macros `fault!`, `fault_quietly!` and `row_fault!`, and for what a point does. Not responsible
//! for where the points stand: each stands in the file whose window it opens.
//!
//! Invariant: without the feature `faults`, which only test builds have, a point is nothing at all. With it, a point
//! that no test has armed changes nothing.
//!
//! A test arms a point by a file in `pg_queue_faults`, a folder in the data directory: `POINT@PID` for one process,
//! `POINT` for the first one that comes. The file says what happens. The process takes the file away by renaming it to
//! `POINT.PID`, so that a point strikes once.
//!
//! | action | what happens |
//! |---|---|
//! | `wait` | the process stands still until the renamed file is removed |
//! | `error` | it raises an error; in places that must not raise, nothing happens |
//! | `terminate` | it is told to end, as by `pg_terminate_backend` |
//! | `crash` | it is killed with SIGKILL, and the server restarts |
//! | `stop` | the server shuts down at once, as by `pg_ctl stop -m immediate` |

/// Marks a point where an error may be raised, and where no lock of the extension's own is held.
macro_rules! fault {
    ($point:expr) => {
        #[cfg(feature = "faults")]
        $crate::pg::fault::reach($point, true);
    };
}

/// Marks a point where no error may be raised, as in the callbacks of a commit.
macro_rules! fault_quietly {
    ($point:expr) => {
        #[cfg(feature = "faults")]
        $crate::pg::fault::reach($point, false);
    };
}

/// Marks a point before or after rows of an open relation are inserted: `row.TABLE.before` or `row.TABLE.after`, where
/// TABLE is the relation's name without the number of its segment, half or day.
macro_rules! row_fault {
    ($relation:expr, $moment:literal) => {
        #[cfg(feature = "faults")]
        $crate::pg::fault::reach(&$crate::pg::fault::about_rows($relation, $moment), true);
    };
}

pub(crate) use {fault, fault_quietly, row_fault};

#[cfg(feature = "faults")]
mod armed {
    use std::ffi::CStr;
    use std::path::Path;
    use std::time::Duration;

    use pgrx::pg_sys::panic::ErrorReport;
    use pgrx::{PgLogLevel, PgSqlErrorCode, pg_sys};

    use crate::pg::process;

    /// Where the files lie, from the data directory, which is every server process's working directory.
    const FOLDER: &str = "pg_queue_faults";

    /// Does what a test has armed this point for, if it did. May raise, if `may_raise`.
    pub fn reach(point: &str, may_raise: bool) {
        // What nearly every point finds, many times for each job.
        if !Path::new(FOLDER).exists() {
            return;
        }
        let pid = std::process::id();
        let own = Path::new(FOLDER).join(format!("{point}@{pid}"));
        let anyones = Path::new(FOLDER).join(point);
        let Some((file, action)) = [own, anyones].into_iter().find_map(|file| {
            let action = std::fs::read_to_string(&file).ok()?;
            Some((file, action))
        }) else {
            return;
        };
        let taken = Path::new(FOLDER).join(format!("{point}.{pid}"));
        if std::fs::rename(&file, &taken).is_err() {
            return;
        }
        match action.trim() {
            "wait" => hold(&taken),
            "error" if may_raise => raise(point),
            "terminate" => process::signal_self(libc::SIGTERM),
            "crash" => process::signal_self(libc::SIGKILL),
            "stop" => {
                process::signal_parent(libc::SIGQUIT);
                hold(&taken);
            }
            _ => {}
        }
        if may_raise {
            process::check_for_interrupts();
        }
    }

    /// Raises an error that no message of the extension looks like.
    fn raise(point: &str) -> ! {
        let text = format!("fault point \"{point}\" was reached");
        ErrorReport::new(PgSqlErrorCode::ERRCODE_SYSTEM_ERROR, text, "fault").report(PgLogLevel::ERROR);
        unreachable!("an error was reported")
    }

    /// The name of a point about the rows of an open relation.
    pub fn about_rows(relation: pg_sys::Relation, moment: &str) -> String {
        // SAFETY: the relation is open; its name is a C string.
        let name = unsafe { CStr::from_ptr((*(*relation).rd_rel).relname.data.as_ptr()) };
        let name = name.to_string_lossy();
        let kind = name.split(|c: char| c.is_ascii_digit()).next().unwrap_or_default();
        format!("row.{}.{moment}", kind.trim_end_matches('_'))
    }

    /// Stands still as long as the file is there, without taking interrupts, as a debugger would hold the process. The
    /// death of the postmaster ends it.
    fn hold(file: &Path) {
        let parent = std::os::unix::process::parent_id();
        while file.exists() && std::os::unix::process::parent_id() == parent {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[cfg(feature = "faults")]
pub use armed::{about_rows, reach};
