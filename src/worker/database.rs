//! The worker of one database: runs the duties when they are due, and sleeps in between.
//!
//! Responsible for the process's loop, for duties that fail, and for its place in the table. Not responsible for what a
//! duty does or when it is due (`duty`), nor for its own start (`launcher`). It knows nothing of a duty but its name.
//!
//! Invariant: the worker decides nothing by memory of its own. If it is killed at any point, the next worker continues
//! from the logs and from shared memory. Between resetting its latch and sleeping it checks everything for which a
//! latch may be set, so that no wake-up is lost. It never sleeps in a transaction.

use std::cell::Cell;
use std::ffi::c_int;
use std::panic::AssertUnwindSafe;

use pgrx::pg_sys::panic::{CaughtError, ErrorReport};
use pgrx::pg_sys::{Datum, Oid};
use pgrx::{PgLogLevel, PgSqlErrorCode, PgTryBuilder, pg_guard};

use crate::catalog::{self, instance};
use crate::duty::{Duty, all};
use crate::pg::fault::fault;
use crate::pg::{lock, process, session, syscache, time, transaction};
use crate::shmem::worker::WorkerStatus;
use crate::worker::table::{self, Exit};
use crate::{guc, shmem, worker};

/// The first and the longest pause of a duty that fails, in microseconds.
const RETRY_PAUSE_US: std::ops::RangeInclusive<i64> = 1_000_000..=60_000_000;
/// The longest sleep, in milliseconds, while something is due that cannot be done. Then sessions find `wakes_at` in the
/// past and do not wake the worker, so it must wake by itself.
const MAX_MIN_SLEEP_MS: i64 = 200;

thread_local! {
    /// The reason of the exit, which `on_exit` reports to the table.
    static EXIT: Cell<Exit> = const { Cell::new(Exit::Failed) };
    static DATABASE: Cell<Oid> = const { Cell::new(Oid::INVALID) };
    static STARTED_AT: Cell<i64> = const { Cell::new(0) };
    /// The instance that this worker serves. 0: none yet.
    static INSTANCE: Cell<u32> = const { Cell::new(0) };
}

/// The main function of the process, called by the postmaster.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn pg_queue_worker_main(arg: Datum) {
    let database = Oid::from(u32::try_from(arg.value()).unwrap_or(0));
    DATABASE.set(database);
    STARTED_AT.set(time::monotonic_us());
    worker::receive_signals();
    // The callback is registered before the worker connects. So it runs when the worker no longer counts as a
    // connection.
    process::at_exit(on_exit);
    if !table::came(database, process::my_latch()) {
        return;
    }
    process::unblock_signals();
    process::connect(Some(database));
    let name = transaction::in_transaction(|| syscache::database_name(database));
    set_session_options(&name);
    let exit = match attach() {
        Some(number) => {
            // The entry in the table comes before the log line, so that a reader of the log finds the worker in its
            // place.
            table::found(database);
            pgrx::log!("pg_queue worker of database \"{name}\" has started");
            let exit = Worker::new(database, number).run();
            process::forget_termination();
            pgrx::log!("pg_queue worker of database \"{name}\" has stopped{}", exit.reason());
            exit
        }
        None => Exit::NoExtension,
    };
    EXIT.set(exit);
}

impl Exit {
    /// Returns the reason as the log line of the exit ends with it.
    fn reason(self) -> &'static str {
        match self {
            Exit::NoExtension => ": the extension was dropped",
            Exit::Asked | Exit::Failed => "",
        }
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn on_exit(_code: c_int, _arg: Datum) {
    detach();
    let exit = match EXIT.get() {
        // If SIGTERM comes in the middle of a duty, Postgres ends the process by an error.
        Exit::Failed if worker::was_terminated() => Exit::Asked,
        exit => exit,
    };
    table::give_up_place(DATABASE.get(), exit, time::monotonic_us() - STARTED_AT.get());
}

/// Sets the options on which duties depend, regardless of the database's settings.
fn set_session_options(database: &str) {
    process::set_application_name(&worker::worker_name(database));
    session::set_option(c"search_path", c"pg_catalog, pg_temp");
    session::set_option(c"default_transaction_isolation", c"read committed");
    session::set_option(c"default_transaction_read_only", c"off");
    session::set_option(c"default_transaction_deferrable", c"off");
    session::set_option(c"role", c"none");
    session::set_option(c"temp_file_limit", c"-1");
    // A duty that waits would delay all others. So it fails instead, and is retried.
    session::set_option(c"lock_timeout", c"2s");
    session::set_option(c"statement_timeout", c"0");
    session::set_option(c"idle_in_transaction_session_timeout", c"0");
    #[cfg(feature = "from17")]
    session::set_option(c"transaction_timeout", c"0");
}

/// Finds the extension and becomes the worker of its instance. Returns the instance's number. `None`: the extension is
/// not there, or not any more. An error ends the process.
fn attach() -> Option<u32> {
    let number = transaction::in_transaction(catalog::attach);
    let before = INSTANCE.get();
    if number != Some(before) && before != 0 {
        detach();
        instance::release(before);
    }
    if let Some(number) = number {
        INSTANCE.set(number);
        let (latch, now) = (process::my_latch(), time::monotonic_us());
        shmem::with_instance_of(number, |_, instance| {
            instance.worker.latch = latch;
            instance.worker.pid = session::pid();
            // The status of the previous worker is discarded, because that worker may have been silent for long.
            instance.worker.status = WorkerStatus { at: now, ..WorkerStatus::default() };
        });
    }
    number
}

/// Gives up the place of the instance's worker.
fn detach() {
    shmem::with_instance_of(INSTANCE.replace(0), |_, instance| {
        if instance.worker.pid == session::pid() {
            instance.worker.latch = std::ptr::null_mut();
            instance.worker.pid = 0;
        }
    });
}

/// Locks the extension against DROP EXTENSION until the transaction ends. Returns false if DROP EXTENSION came first:
/// the two would deadlock, because the duty takes its locks one by one.
fn may_work(instance: u32) -> bool {
    let extension = shmem::with_instance_of(instance, |_, instance| instance.extension);
    extension.is_some_and(lock::try_lock_extension)
}

/// The state of one duty.
struct Health {
    duty: &'static Duty,
    /// The duty is not retried before this monotonic time, in microseconds.
    retry_at: i64,
    /// The pause that led to `retry_at`, in microseconds. 0: the last run succeeded.
    pause: i64,
}

struct Worker {
    database: Oid,
    instance: u32,
    duties: Vec<Health>,
    /// The shortest sleep, in milliseconds. It grows while nothing that is due can be done.
    min_sleep: i64,
}

impl Worker {
    fn new(database: Oid, instance: u32) -> Self {
        let health = |duty| Health { duty, retry_at: 0, pause: 0 };
        Self { database, instance, duties: all::ALL.iter().map(health).collect(), min_sleep: 0 }
    }

    /// Works until the worker is told to leave.
    fn run(&mut self) -> Exit {
        loop {
            process::reset_latch();
            if worker::was_terminated() {
                return Exit::Asked;
            }
            worker::attend_to_server();
            let orders = table::orders(self.database);
            if orders.leave {
                return Exit::Asked;
            }
            if orders.look {
                match attach() {
                    Some(number) => self.instance = number,
                    None => return Exit::NoExtension,
                }
            }
            self.publish_status();
            if !guc::WORKER.get() {
                self.sleep(None);
            } else if self.round() {
                self.min_sleep = 0;
            } else {
                let sleep = self.sleep_ms();
                self.sleep(sleep);
            }
        }
    }

    /// Publishes the state of the duties for the doctor.
    fn publish_status(&self) {
        let failing =
            (0..).zip(&self.duties).filter(|(_, health)| health.pause > 0).fold(0, |bits, (n, _)| bits | 1 << n);
        let status = WorkerStatus { at: time::monotonic_us(), is_off: !guc::WORKER.get(), failing };
        shmem::with_instance_of(self.instance, |_, instance| instance.worker.status = status);
    }

    /// Runs one batch of each duty that is due. Returns true if any duty did something.
    fn round(&mut self) -> bool {
        let mut did_something = false;
        for n in 0..self.duties.len() {
            if worker::was_terminated() {
                break;
            }
            if !self.duties[n].is_due() {
                continue;
            }
            self.publish_status();
            let health = &mut self.duties[n];
            match health.run(self.instance) {
                Ok(did) => did_something |= did,
                // A failure because the extension is being dropped is not reported.
                Err(_) if table::has_orders(self.database) => break,
                Err(failure) => health.pause(failure),
            }
        }
        did_something
    }

    /// Returns how long to sleep, in milliseconds. `None`: until woken.
    fn sleep_ms(&mut self) -> Option<i64> {
        let sleep = all::sleep_ms();
        if sleep.is_none_or(|sleep| sleep > 0) {
            self.min_sleep = 0;
            return self.paused_ms().into_iter().chain(sleep).min();
        }
        // Something is due and was not done: its duty failed and pauses, or it has to wait. Nothing wakes the worker
        // for anything that is due later, so the worker must look by itself.
        self.min_sleep = (self.min_sleep * 2).clamp(1, MAX_MIN_SLEEP_MS);
        Some(self.min_sleep)
    }

    /// Returns the shortest remaining pause of the duties that have failed, in milliseconds.
    fn paused_ms(&self) -> Option<i64> {
        let now = time::monotonic_us();
        let until = self.duties.iter().filter(|health| health.pause > 0).map(|health| health.retry_at);
        until.filter(|at| *at > now).min().map(|at| time::milliseconds(at - now))
    }

    fn sleep(&self, milliseconds: Option<i64>) {
        process::flush_statistics();
        process::report_activity(None);
        process::wait_latch(milliseconds);
    }
}

impl Health {
    fn is_due(&self) -> bool {
        (self.pause == 0 || self.retry_at <= time::monotonic_us()) && self.duty.is_due()
    }

    /// Runs one batch in a transaction of its own. Returns true if the batch did something.
    fn run(&mut self, instance: u32) -> Result<bool, Failure> {
        process::report_activity_text(self.duty.name);
        let did = attempt(|| transaction::in_transaction(|| if may_work(instance) { self.step() } else { 0 }))?;
        self.pause = 0;
        Ok(did > 0)
    }

    /// Runs one batch in the open transaction. Returns how much the batch did.
    fn step(&self) -> i64 {
        fault!(&format!("duty.{}.before", self.duty.name));
        let did = self.duty.run();
        fault!(&format!("duty.{}.after", self.duty.name));
        did
    }

    /// Logs why a batch failed, and starts the duty's pause.
    fn pause(&mut self, failure: Failure) {
        self.pause = (self.pause * 2).clamp(*RETRY_PAUSE_US.start(), *RETRY_PAUSE_US.end());
        self.retry_at = time::monotonic_us() + self.pause;
        failure.log(self.duty.name, self.pause);
    }
}

/// The parts of an error.
struct Failure {
    code: PgSqlErrorCode,
    message: String,
    detail: Option<String>,
    hint: Option<String>,
}

impl Failure {
    fn log(self, duty: &str, pause: i64) {
        let seconds = pause / 1_000_000;
        let mut report =
            ErrorReport::new(self.code, format!("pg_queue duty \"{duty}\" failed: {}", self.message), "pg_queue")
                .set_detail(match self.detail {
                    Some(detail) => {
                        format!("{detail}\nThe duty is retried in {seconds} s. The other duties continue.")
                    }
                    None => format!("The duty is retried in {seconds} s. The other duties continue."),
                });
        if let Some(hint) = self.hint {
            report = report.set_hint(hint);
        }
        report.report(PgLogLevel::WARNING);
    }
}

/// Runs `f` and catches any error and any panic. If there is one, aborts the open transaction.
fn attempt<R>(f: impl FnOnce() -> R) -> Result<R, Failure> {
    let result = PgTryBuilder::new(AssertUnwindSafe(|| Ok(f())))
        .catch_others(|caught| {
            let (CaughtError::PostgresError(report)
            | CaughtError::ErrorReport(report)
            | CaughtError::RustPanic { ereport: report, .. }) = &caught;
            Err(Failure {
                code: report.sql_error_code(),
                message: report.message().to_owned(),
                detail: report.detail().map(str::to_owned),
                hint: report.hint().map(str::to_owned),
            })
        })
        .execute();
    if result.is_err() {
        transaction::abort_after_error();
    }
    result
}
