//! Named points at which a test can pause, fail or kill the process that reaches them.
//!
//! Responsible for the macros `fault!`, `fault_quietly!` and `row_fault!`, and for the actions. Not responsible for
//! where the points are: each is in the file whose window it opens.
//!
//! Invariant: without the feature `faults`, which only test builds have, a point compiles to nothing. With it, a point
//! that no test has armed changes nothing.
//!
//! A test arms a point with a file in `pg_queue_faults`, a folder in the data directory: `POINT@PID` for one process,
//! `POINT` for the first process that reaches it. The file contains the action. The process renames the file to
//! `POINT.PID`, so that a point acts once.
//!
//! | action | what happens |
//! |---|---|
//! | `wait` | the process pauses until the renamed file is removed |
//! | `error` | it raises an error; where it must not raise, nothing happens |
//! | `terminate` | it is told to end, as by `pg_terminate_backend` |
//! | `crash` | it is killed with SIGKILL, and the server restarts |
//! | `stop` | the server shuts down immediately, as by `pg_ctl stop -m immediate` |

/// Marks a point where an error may be raised and the process holds no lock of the extension.
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

    /// The folder of the files, relative to the data directory, which is the working directory of every server process.
    const FOLDER: &str = "pg_queue_faults";

    /// Performs the action for which a test has armed this point, if any. Raises only if `may_raise`.
    pub fn reach(point: &str, may_raise: bool) {
        // Nearly every call ends here, many times for each job.
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

    /// Raises an error that differs from every message of the extension.
    fn raise(point: &str) -> ! {
        let text = format!("fault point \"{point}\" was reached");
        ErrorReport::new(PgSqlErrorCode::ERRCODE_SYSTEM_ERROR, text, "fault").report(PgLogLevel::ERROR);
        unreachable!("an error was reported")
    }

    /// Returns the name of a point for the rows of an open relation.
    pub fn about_rows(relation: pg_sys::Relation, moment: &str) -> String {
        // SAFETY: the relation is open; its name is a C string.
        let name = unsafe { CStr::from_ptr((*(*relation).rd_rel).relname.data.as_ptr()) };
        let name = name.to_string_lossy();
        let kind = name.split(|c: char| c.is_ascii_digit()).next().unwrap_or_default();
        format!("row.{}.{moment}", kind.trim_end_matches('_'))
    }

    /// Pauses while the file exists, without taking interrupts, as a debugger would hold the process. The death of the
    /// postmaster ends the pause.
    fn hold(file: &Path) {
        let parent = std::os::unix::process::parent_id();
        while file.exists() && std::os::unix::process::parent_id() == parent {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[cfg(feature = "faults")]
pub use armed::{about_rows, reach};
