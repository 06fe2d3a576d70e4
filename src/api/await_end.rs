//! `CALL queue.await(job_id, timeout)`: sleeps until a job has ended.
//!
//! Not responsible for reading the job, sleeping and waking (`job::await_end`).
//!
//! Invariant: the session sleeps without a snapshot, a transaction id or a lock, so vacuum is not held back.

use pgrx::pg_sys::Datum;

use crate::api::{self, sql_function};
use crate::catalog::arguments as args;
use crate::catalog::{ids, pin};
use crate::error::{self, Error, Result};
use crate::job::await_end::{self, Watcher};
use crate::job::wait;
use crate::pg::datum::{Interval, text_datum};
use crate::pg::fault::fault;
use crate::pg::function::Call;
use crate::pg::{session, snapshot, time, transaction};
use crate::restore;

sql_function!(pg_queue_await, pg_finfo_pg_queue_await => await_end);

/// `CALL queue.await(job_id, timeout, INOUT state, INOUT result)`: returns the job's state, and the result if it has
/// ended. If `timeout` is NULL, it is 30 seconds.
///
/// Errors: 25001 inside a transaction block or a function and in a transaction that has written, 25006 on a standby,
/// 22023 if the timeout is negative or the id is no job's, P0002 when there is no such job, 42501, 55000 while the
/// tables are being restored or when the job's queue was dropped.
fn await_end(call: &Call) -> Result<Option<Datum>> {
    if session::in_recovery() {
        api::on_primary("await")?;
    }
    crate::transaction::register();
    let job_id = ids::job_id(call.need(args::r#await::JOB_ID)?)?;
    let timeout = call.get(args::r#await::TIMEOUT).map_or(30_000_000, Interval::us);
    if timeout < 0 {
        let given = call.get(args::r#await::TIMEOUT).map_or_else(String::new, Interval::text);
        return Err(Error::invalid("timeout cannot be negative").detail(format!("It is {given}.")));
    }
    if call.is_atomic() {
        return Err(Error::new(
            error::IN_TRANSACTION,
            "queue.await cannot run inside a transaction block or a function",
        )
        .hint("Call it on its own, or look at queue.job from time to time."));
    }
    // A job of this transaction would never end, and other sessions would wait for its locks.
    if transaction::has_xid() {
        return Err(Error::new(error::IN_TRANSACTION, "queue.await cannot run in a transaction that has written")
            .hint("Commit first."));
    }
    let deadline = time::monotonic_us().saturating_add(wait::within_statement(timeout));
    let seen = loop {
        // Privileges and queues may have changed while it slept.
        session::accept_invalidations();
        pin::renew()?;
        restore::refuse()?;
        let mut watcher = Watcher::begin(job_id);
        let seen = await_end::read(job_id)?;
        if seen.has_ended || time::monotonic_us() >= deadline {
            break seen;
        }
        snapshot::drop_snapshots();
        fault!("await.looked");
        if !watcher.sleep(deadline) {
            break seen;
        }
    };
    let result = seen.result;
    call.result_row(&mut [text_datum(seen.state), result.unwrap_or(Datum::from(0))], &mut [false, result.is_none()])
        .map(Some)
}
