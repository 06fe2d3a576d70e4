//! The launcher: a process without a database that keeps one worker in each database that has the extension. It can
//! list the databases. Only a worker can see whether a database has the extension, so the launcher sends one to look.
//!
//! It sleeps until it is woken. The postmaster wakes it when a worker has started or ended. A worker wakes it when it
//! has found the extension or leaves. A session wakes it if its transaction changed the list of databases or created an
//! extension. The launcher has a time-out only while it must wait before a start.
//!
//! Invariant: at most one process per database was asked for and has not ended. An error ends the launcher, and the
//! postmaster restarts it. So all that must outlive it is in `worker::table`.

use std::ffi::c_int;

use pgrx::pg_sys::panic::ErrorReport;
use pgrx::pg_sys::{self, Datum, Oid};
use pgrx::{PgLogLevel, PgSqlErrorCode, pg_guard};

use crate::catalog::instance;
use crate::pg::{process, syscache, time, transaction};
use crate::worker::table::{self, Next};
use crate::{shmem, worker};

/// The first and the longest pause after the server had no slot for a worker, in microseconds.
const SHORTAGE_PAUSE_US: std::ops::RangeInclusive<i64> = 1_000_000..=60_000_000;

/// A database that wants a worker.
struct Listed {
    oid: Oid,
    name: String,
}

/// A worker that was asked for.
struct Asked {
    database: Oid,
    handle: *mut pg_sys::BackgroundWorkerHandle,
}

#[derive(Default)]
struct Launcher {
    asked: Vec<Asked>,
    /// Set while the server has no slot for a worker: the monotonic time of the next try, and the pause before it. Both
    /// in microseconds.
    shortage: Option<(i64, i64)>,
    /// True if the log already says that the table has no room for all databases.
    has_warned: bool,
}

/// The main function of the process, called by the postmaster.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn pg_queue_launcher_main(_arg: Datum) {
    worker::receive_signals();
    process::at_exit(on_exit);
    table::launcher_came(process::my_latch());
    process::unblock_signals();
    process::connect(None);
    process::report_activity(None);
    let mut launcher = Launcher::default();
    loop {
        process::reset_latch();
        if worker::was_terminated() {
            // After exit code 0 the postmaster would not restart it.
            process::exit(1);
        }
        worker::attend_to_server();
        let wake_at = launcher.round();
        process::wait_latch(wake_at.map(|at| time::milliseconds(at - time::monotonic_us())));
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn on_exit(_code: c_int, _arg: Datum) {
    table::launcher_left();
}

impl Launcher {
    /// Brings the table up to date and starts the workers that are missing. Returns the monotonic time, in
    /// microseconds, of the next round if nothing wakes the launcher earlier.
    fn round(&mut self) -> Option<i64> {
        // The instances are read before the databases. So if the list lacks an instance's database, that database was
        // dropped; it cannot be one that was created meanwhile.
        let instances = instances();
        self.forget_ended();
        let (listed, existing) = databases();
        for (number, database) in instances {
            if !existing.contains(&database) {
                instance::release(number);
            }
        }
        let wanted: Vec<Oid> = listed.iter().map(|database| database.oid).collect();
        self.warn_of_missing_room(table::list(&wanted));
        if let Some((at, _)) = self.shortage.filter(|(at, _)| *at > time::monotonic_us()) {
            return Some(at);
        }
        loop {
            let asked: Vec<Oid> = self.asked.iter().map(|asked| asked.database).collect();
            match table::choose(&asked) {
                Next::Start(oid) => {
                    let name = listed.iter().find(|d| d.oid == oid).map_or("", |d| d.name.as_str());
                    match process::in_lasting_memory(|| worker::start(oid, name)) {
                        Some(handle) => self.asked.push(Asked { database: oid, handle }),
                        None => {
                            table::not_asked(oid);
                            return Some(self.no_slot(name));
                        }
                    }
                }
                Next::Wait(at) => {
                    self.shortage = None;
                    return at;
                }
            }
        }
    }

    /// Forgets workers that have ended. While the last worker of a database has not ended, no other is asked for: the
    /// old one holds a slot that the new one may need.
    fn forget_ended(&mut self) {
        let before = self.asked.len();
        self.asked.retain(|asked| {
            let has_ended = process::has_ended(asked.handle);
            if has_ended {
                table::ended(asked.database);
                // SAFETY: Postgres allocated it for this process alone, and it is removed from the list here.
                unsafe { process::free(asked.handle) };
            }
            !has_ended
        });
        if self.asked.len() < before {
            // The slot of the ended worker may be the missing one.
            if let Some((at, _)) = &mut self.shortage {
                *at = 0;
            }
        }
    }

    /// Logs that the server had no slot, but only the first time. Returns the monotonic time of the next try.
    fn no_slot(&mut self, database: &str) -> i64 {
        let pause = match self.shortage {
            Some((_, pause)) => (pause * 2).min(*SHORTAGE_PAUSE_US.end()),
            None => {
                ErrorReport::new(
                    PgSqlErrorCode::ERRCODE_INSUFFICIENT_RESOURCES,
                    format!("could not start the pg_queue worker of database \"{database}\""),
                    "pg_queue",
                )
                .set_detail("The server has no free slot for a background worker.")
                .set_hint("Raise max_worker_processes and restart the server. Until then the launcher keeps trying.")
                .report(PgLogLevel::WARNING);
                *SHORTAGE_PAUSE_US.start()
            }
        };
        let at = time::monotonic_us() + pause;
        self.shortage = Some((at, pause));
        at
    }

    /// Logs once that some databases have no worker.
    fn warn_of_missing_room(&mut self, has_room: bool) {
        if !has_room && !self.has_warned {
            ErrorReport::new(
                PgSqlErrorCode::ERRCODE_CONFIGURATION_LIMIT_EXCEEDED,
                "too many databases for the pg_queue launcher",
                "pg_queue",
            )
            .set_detail("Some databases have no pg_queue worker.")
            .set_hint("Raise pg_queue.max_databases and restart the server.")
            .report(PgLogLevel::WARNING);
        }
        self.has_warned = !has_room;
    }
}

/// Returns the instances in shared memory and their databases. Takes the frontier's lock.
fn instances() -> Vec<(u32, Oid)> {
    shmem::with(|shared| shared.instances.iter().filter(|i| i.number != 0).map(|i| (i.number, i.database)).collect())
}

/// Returns the databases that want a worker, and all databases that exist.
fn databases() -> (Vec<Listed>, Vec<Oid>) {
    let mut listed = Vec::new();
    let mut existing = Vec::new();
    process::report_activity(Some(c"listing databases"));
    transaction::in_transaction(|| {
        syscache::each_database(|row| {
            existing.push(row.oid);
            // Nothing may run in a template, and no session can connect to the other databases that are left out.
            let is_wanted =
                !row.datistemplate && row.datallowconn && row.datconnlimit != pg_sys::DATCONNLIMIT_INVALID_DB;
            if is_wanted {
                listed.push(Listed { oid: row.oid, name: syscache::name(&row.datname) });
            }
        });
    });
    process::report_activity(None);
    (listed, existing)
}
