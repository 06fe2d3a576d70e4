//! The worker of one database: does the duties when they are due and sleeps in between.
//!
//! It knows nothing of any duty but its name, and decides nothing by memory of its own: killed at any
//! point, the next one goes on from the logs and from shared memory.
//!
//! Invariant: between resetting its latch and sleeping it looks at everything that a latch may be set
//! for, so that no wake-up is lost; and it sleeps in no transaction.

use std::cell::Cell;
use std::ffi::c_int;
use std::panic::AssertUnwindSafe;

use pgrx::pg_sys::panic::{CaughtError, ErrorReport};
use pgrx::pg_sys::{Datum, Oid};
use pgrx::{PgLogLevel, PgSqlErrorCode, PgTryBuilder, pg_guard};

use super::table::{self, Exit};
use crate::duty::{self, Duty};
use crate::shmem::Pulse;
use crate::{guc, instance, shmem, sys};

/// First and longest pause, in microseconds, of a duty that fails.
const PAUSE: std::ops::RangeInclusive<i64> = 1_000_000..=60_000_000;
/// Longest sleep, in milliseconds, while something is due that cannot be done: others find `wakes_at`
/// in the past and leave the waking to it.
const LONGEST_LULL: i64 = 200;

thread_local! {
    /// What `on_exit` tells the table.
    static EXIT: Cell<Exit> = const { Cell::new(Exit::Failed) };
    static DATABASE: Cell<Oid> = const { Cell::new(Oid::INVALID) };
    static STARTED_AT: Cell<i64> = const { Cell::new(0) };
    /// The instance whose worker this is; 0: none yet.
    static INSTANCE: Cell<u32> = const { Cell::new(0) };
}

/// Where the postmaster enters.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn pg_queue_worker_main(arg: Datum) {
    let database = Oid::from(u32::try_from(arg.value()).unwrap_or(0));
    DATABASE.set(database);
    STARTED_AT.set(sys::monotonic_us());
    super::receive_signals();
    // Before it connects: then the exit runs when others no longer count it among the connections.
    sys::at_exit(on_exit);
    if !table::came(database, sys::my_latch()) {
        return;
    }
    sys::unblock_signals();
    sys::connect(Some(database));
    let name = sys::in_transaction(|| sys::database_name(database));
    settle(&name);
    let exit = match attach() {
        Some(number) => {
            // After the table knows, so that whoever sees the line finds the worker in its place.
            table::found(database);
            pgrx::log!("pg_queue worker of database \"{name}\" has started");
            let exit = Worker::new(database, number).run();
            sys::forget_termination();
            pgrx::log!("pg_queue worker of database \"{name}\" has stopped{}", exit.reason());
            exit
        }
        None => Exit::NoExtension,
    };
    EXIT.set(exit);
}

impl Exit {
    /// How the log line of the end goes on.
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
        // In the middle of a duty Postgres ends the process by an error.
        Exit::Failed if super::was_terminated() => Exit::Asked,
        exit => exit,
    };
    table::left(DATABASE.get(), exit, sys::monotonic_us() - STARTED_AT.get());
}

/// Settings that a duty must not depend on, whatever was set for the database.
fn settle(database: &str) {
    sys::set_application_name(&super::worker_name(database));
    sys::set_option(c"search_path", c"pg_catalog, pg_temp");
    sys::set_option(c"default_transaction_isolation", c"read committed");
    sys::set_option(c"default_transaction_read_only", c"off");
    sys::set_option(c"default_transaction_deferrable", c"off");
    sys::set_option(c"role", c"none");
    sys::set_option(c"temp_file_limit", c"-1");
    // One duty that waits holds up all: rather fail and come back.
    sys::set_option(c"lock_timeout", c"2s");
    sys::set_option(c"statement_timeout", c"0");
    sys::set_option(c"idle_in_transaction_session_timeout", c"0");
    #[cfg(any(feature = "pg17", feature = "pg18"))]
    sys::set_option(c"transaction_timeout", c"0");
}

/// Finds the extension and becomes the worker of its instance; `None`: there is no extension (any
/// more). Errors end the process.
fn attach() -> Option<u32> {
    let number = sys::in_transaction(instance::attach);
    let before = INSTANCE.get();
    if number != Some(before) && before != 0 {
        detach();
        instance::release(before);
    }
    if let Some(number) = number {
        INSTANCE.set(number);
        let (latch, now) = (sys::my_latch(), sys::monotonic_us());
        shmem::with_instance(number, |_, instance| {
            instance.worker_latch = latch;
            instance.worker_pid = sys::pid();
            // Not that of the one before, who may have been silent for long.
            instance.pulse = Pulse { at: now, ..Pulse::default() };
        });
    }
    number
}

/// Is no instance's worker any more.
fn detach() {
    shmem::with_instance(INSTANCE.replace(0), |_, instance| {
        if instance.worker_pid == sys::pid() {
            instance.worker_latch = std::ptr::null_mut();
            instance.worker_pid = 0;
        }
    });
}

/// Locks the extension against DROP EXTENSION until the transaction ends. False: that has come before; it would
/// wait for what a duty locks one by one, and the duty for what it has locked.
fn may_work(instance: u32) -> bool {
    let extension = shmem::with_instance(instance, |_, instance| instance.extension);
    extension.is_some_and(sys::try_lock_extension)
}

/// How it goes with one duty.
struct Health {
    duty: &'static Duty,
    /// Not before this monotonic time.
    retry_at: i64,
    /// The pause that led to `retry_at`; 0: the last run was good.
    pause: i64,
}

struct Worker {
    database: Oid,
    instance: u32,
    duties: Vec<Health>,
    /// How long, in milliseconds, to sleep at least; grows while nothing that is due can be done.
    lull: i64,
}

impl Worker {
    fn new(database: Oid, instance: u32) -> Self {
        let health = |duty| Health { duty, retry_at: 0, pause: 0 };
        Self { database, instance, duties: duty::ALL.iter().map(health).collect(), lull: 0 }
    }

    /// Works until it is not wanted any more.
    fn run(&mut self) -> Exit {
        loop {
            sys::reset_latch();
            if super::was_terminated() {
                return Exit::Asked;
            }
            super::attend_to_server();
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
            self.tell();
            if !guc::WORKER.get() {
                self.sleep(None);
            } else if self.round() {
                self.lull = 0;
            } else {
                let sleep = self.sleep_ms();
                self.sleep(sleep);
            }
        }
    }

    /// Tells those who look how it goes.
    fn tell(&self) {
        let failing =
            (0..).zip(&self.duties).filter(|(_, health)| health.pause > 0).fold(0, |bits, (n, _)| bits | 1 << n);
        let pulse = Pulse { at: sys::monotonic_us(), is_off: !guc::WORKER.get(), failing };
        shmem::with_instance(self.instance, |_, instance| instance.pulse = pulse);
    }

    /// Gives each duty that is due its turn; whether any did something.
    fn round(&mut self) -> bool {
        let mut did_something = false;
        for n in 0..self.duties.len() {
            if super::was_terminated() {
                break;
            }
            if !self.duties[n].is_due(self.instance) {
                continue;
            }
            self.tell();
            let health = &mut self.duties[n];
            match health.run(self.instance) {
                Ok(did) => did_something |= did,
                // What fails because the extension is going away is no news.
                Err(_) if table::has_orders(self.database) => break,
                Err(failure) => health.pause(failure),
            }
        }
        did_something
    }

    /// How long to sleep, in milliseconds; `None`: until woken.
    fn sleep_ms(&mut self) -> Option<i64> {
        let sleep = duty::sleep_ms(self.instance);
        if sleep.is_none_or(|sleep| sleep > 0) {
            self.lull = 0;
            return self.paused_ms().into_iter().chain(sleep).min();
        }
        // Something is due and was not done: it failed and pauses, or it has to wait for something. As
        // nobody wakes the worker for what is due later than that, it has to look by itself.
        self.lull = (self.lull * 2).clamp(1, LONGEST_LULL);
        Some(self.lull)
    }

    /// For how long, in milliseconds, the duties pause that have failed.
    fn paused_ms(&self) -> Option<i64> {
        let now = sys::monotonic_us();
        let until = self.duties.iter().filter(|health| health.pause > 0).map(|health| health.retry_at);
        until.filter(|at| *at > now).min().map(|at| sys::milliseconds(at - now))
    }

    fn sleep(&self, milliseconds: Option<i64>) {
        sys::flush_statistics();
        sys::report_activity(None);
        sys::wait_latch(milliseconds);
    }
}

impl Health {
    fn is_due(&self, instance: u32) -> bool {
        (self.pause == 0 || self.retry_at <= sys::monotonic_us()) && self.duty.is_due(instance)
    }

    /// Does one batch in a transaction of its own; whether it did something.
    fn run(&mut self, instance: u32) -> Result<bool, Failure> {
        sys::report_activity_text(self.duty.name);
        let run = self.duty.run;
        let did = attempt(|| sys::in_transaction(|| if may_work(instance) { run(instance) } else { 0 }))?;
        self.pause = 0;
        Ok(did > 0)
    }

    /// Logs why a batch failed and keeps the duty from its next turn for a while.
    fn pause(&mut self, failure: Failure) {
        self.pause = (self.pause * 2).clamp(*PAUSE.start(), *PAUSE.end());
        self.retry_at = sys::monotonic_us() + self.pause;
        failure.log(self.duty.name, self.pause);
    }
}

/// What is known of an error.
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
                        format!("{detail}\nThe duty is tried again in {seconds} s; others go on.")
                    }
                    None => format!("The duty is tried again in {seconds} s; others go on."),
                });
        if let Some(hint) = self.hint {
            report = report.set_hint(hint);
        }
        report.report(PgLogLevel::WARNING);
    }
}

/// Runs `f` and catches any error and any panic; whatever it left open is aborted then.
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
        sys::abort_after_error();
    }
    result
}
