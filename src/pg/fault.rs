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
//! | `error 53100` | as `error`, but Postgres raises it, with this SQLSTATE, a detail and a hint |
//! | `terminate` | it is told to end, as by `pg_terminate_backend` |
//! | `crash` | it is killed with SIGKILL, and the server restarts |
//! | `stop` | the server shuts down immediately, as by `pg_ctl stop -m immediate` |
//!
//! The file `delays` of that folder acts again and again, on all processes. It has two numbers, N and M: in N of 1,000
//! cases, a process that reaches any point first pauses for up to M milliseconds. So processes meet in windows that are
//! too short otherwise.

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
    use std::ffi::{CStr, CString};
    use std::path::Path;
    use std::time::Duration;

    use pgrx::pg_sys::panic::ErrorReport;
    use pgrx::{PgLogLevel, PgSqlErrorCode, pg_sys};

    use crate::pg::{process, unbound};

    /// The folder of the files, relative to the data directory, which is the working directory of every server process.
    const FOLDER: &str = "pg_queue_faults";

    /// Performs the action for which a test has armed this point, if any. Raises only if `may_raise`.
    pub fn reach(point: &str, may_raise: bool) {
        // Nearly every call ends here, many times for each job.
        if !Path::new(FOLDER).exists() {
            return;
        }
        if let Ok(rule) = std::fs::read_to_string(Path::new(FOLDER).join("delays")) {
            delay(&rule);
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
        if let Some(code) = action.trim().strip_prefix("error ").filter(|_| may_raise) {
            raise_by_postgres(point, code);
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

    /// Pauses, if chance wants it.
    fn delay(rule: &str) {
        let mut numbers = rule.split_whitespace().filter_map(|number| number.parse().ok());
        let (Some(cases), Some(most_ms)) = (numbers.next(), numbers.next()) else { return };
        if fastrand::u64(..1000) < cases {
            std::thread::sleep(Duration::from_millis(fastrand::u64(..=most_ms)));
        }
    }

    /// Raises an error that differs from every message of the extension.
    fn raise(point: &str) -> ! {
        let text = format!("fault point \"{point}\" was reached");
        ErrorReport::new(PgSqlErrorCode::ERRCODE_SYSTEM_ERROR, text, "fault").report(PgLogLevel::ERROR);
        unreachable!("an error was reported")
    }

    /// Raises an error as Postgres's own code does. pgrx treats such an error in another way than one of Rust.
    fn raise_by_postgres(point: &str, code: &str) {
        let text = CString::new(format!("fault point \"{point}\" was reached")).unwrap_or_default();
        let packed = code.bytes().rev().fold(0, |packed, char| packed << 6 | (i32::from(char) - 48) & 0x3f);
        // SAFETY: the calls are those of ereport(), with constant formats. The error unwinds from the guard.
        unsafe {
            pg_sys::ffi::pg_guard_ffi_boundary(|| {
                unbound::errstart(PgLogLevel::ERROR as i32, std::ptr::null());
                unbound::errcode(packed);
                unbound::errmsg(c"%s".as_ptr(), text.as_ptr());
                unbound::errdetail(c"A test has armed it.".as_ptr());
                unbound::errhint(c"Release it.".as_ptr());
                unbound::errfinish(c"pg_queue".as_ptr(), 0, c"".as_ptr());
            });
        }
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
