//! The SQL functions, one file for each verb or family. This file has the C symbols, and the checks that come before
//! everything else.
//!
//! Not responsible for changes of a job (`job`). A function reads its arguments, calls `job`, and returns.
//!
//! Invariant: no function runs its body without shared memory, unless it is declared with `run_unloaded`.

use pgrx::pg_sys::{self, Datum};

use crate::catalog::pin;
use crate::error::{self, Error, Result};
use crate::pg::function::{self, Body, Call, Rows};
use crate::pg::session;
use crate::restore;

pub mod adopt;
pub mod advance;
pub mod answers;
pub mod arrivals;
pub mod await_end;
pub mod bridge;
pub mod cancel;
pub mod charge;
pub mod check;
pub mod claim;
pub mod cluster;
pub mod command;
pub mod complete;
pub mod contacts;
pub mod end_batch;
pub mod enqueue;
pub mod enqueue_sql;
pub mod executors;
pub mod extend;
pub mod fail;
pub mod flow;
pub mod former_stages;
#[cfg(feature = "lock-times")]
mod lock_times;
pub mod maintain;
pub mod names;
pub mod permissions;
pub mod progress;
pub mod queue_options;
pub mod queues;
pub mod release;
pub mod reprioritize;
pub mod retry;
pub mod schedules;
pub mod suspend;
pub mod throttle;
pub mod topics;
pub mod wait;
pub mod weigh;

/// Raises an error if nothing can be written here, or while the tables are being restored. `verb` names the action in
/// the message.
///
/// Errors: 25006 on a standby and in a read-only transaction, 55000 during a restore.
pub fn writable(verb: &str) -> Result<()> {
    on_primary(verb)?;
    restore::refuse()
}

/// Raises an error if nothing can be written here. `verb` names the action in the message.
///
/// Errors: 25006 on a standby and in a read-only transaction.
pub fn on_primary(verb: &str) -> Result<()> {
    if session::in_recovery() {
        return Err(Error::new(error::READ_ONLY, format!("cannot {verb} on a standby")).hint("Connect to the primary."));
    }
    if session::is_read_only() {
        return Err(Error::new(error::READ_ONLY, format!("cannot {verb} in a read-only transaction"))
            .hint("Begin the transaction with READ WRITE, and look at default_transaction_read_only."));
    }
    crate::transaction::register();
    Ok(())
}

/// Declares the C symbols of a SQL function: `sql_function!(pg_queue_wait, pg_finfo_pg_queue_wait => wait)`, where
/// `wait` is `fn(&Call) -> Result<Option<Datum>>` (`None` is NULL).
///
/// Without shared memory the function raises 55000. With `run_unloaded` after the body it is called nevertheless.
macro_rules! sql_function {
    ($symbol:ident, $info:ident => $body:path) => {
        $crate::api::sql_function!($symbol, $info => $body, $crate::api::run);
    };
    ($symbol:ident, $info:ident => $body:path, $run:path) => {
        #[doc(hidden)]
        #[unsafe(no_mangle)]
        pub extern "C" fn $info() -> &'static pgrx::pg_sys::Pg_finfo_record {
            const V1: pgrx::pg_sys::Pg_finfo_record = pgrx::pg_sys::Pg_finfo_record { api_version: 1 };
            &V1
        }

        #[doc(hidden)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $symbol(fcinfo: pgrx::pg_sys::FunctionCallInfo) -> pgrx::pg_sys::Datum {
            // SAFETY: Postgres calls this with a valid call info; nothing in this frame needs a drop.
            unsafe { $run(fcinfo, $body) }
        }
    };
}
pub(crate) use sql_function;

/// As `run`, for a function that monitoring reads: it waits for no other session. While a session has locked a table
/// that it reads, it returns NULL, or no rows.
///
/// # Safety
/// As `run`.
pub unsafe fn run_briefly(fcinfo: pg_sys::FunctionCallInfo, body: Body) -> Datum {
    let brief = |call: &Call| {
        loaded()?;
        let _call = pin::begin();
        let set = call.begin_set()?;
        match session::without_waiting(|| pin::current().and_then(|_| body(call))) {
            Err(error) if error.code == error::LOCKED => {
                set.iter().for_each(Rows::clear);
                Ok(None)
            }
            other => other,
        }
    };
    // SAFETY: the caller's promise.
    unsafe { function::run_unloaded(fcinfo, brief) }
}

/// Pins the instance and runs the body of a SQL function. Without shared memory it raises 55000.
///
/// # Safety
/// Only from the C symbol of a SQL function: `fcinfo` is valid and the caller's frame has no drops.
pub unsafe fn run(fcinfo: pg_sys::FunctionCallInfo, body: Body) -> Datum {
    let pinned = |call: &Call| {
        loaded()?;
        let _call = pin::begin();
        pin::current()?;
        body(call)
    };
    // SAFETY: the caller's promise.
    unsafe { function::run_unloaded(fcinfo, pinned) }
}

/// As `run`, for a function that needs no instance, or works where there is none.
///
/// # Safety
/// As `run`.
pub unsafe fn run_unpinned(fcinfo: pg_sys::FunctionCallInfo, body: Body) -> Datum {
    let unpinned = |call: &Call| {
        loaded()?;
        let _call = pin::begin();
        body(call)
    };
    // SAFETY: the caller's promise.
    unsafe { function::run_unloaded(fcinfo, unpinned) }
}

fn loaded() -> Result<()> {
    if crate::shmem::layout::is_there() { Ok(()) } else { Err(Error::not_loaded()) }
}
