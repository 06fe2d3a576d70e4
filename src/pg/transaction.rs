//! The open transaction: its ids, its subtransactions, and whether other transactions are in progress.
//!
//! Responsible for asking Postgres, and for running code in a transaction or subtransaction. Not responsible for what
//! the transaction's end does to shared memory (the folder `transaction`), nor for snapshots (`snapshot`).
//!
//! Invariant: a subtransaction that is begun here (`look`, `in_subtransaction`) is ended on every way out.

use std::ffi::c_int;
use std::panic::AssertUnwindSafe;

use pgrx::pg_sys::panic::CaughtError;
use pgrx::{PgSqlErrorCode, PgTryBuilder, pg_sys};

use crate::error::{self, Error, Result};
use crate::pg::raw;

/// Returns the number of the innermost open subtransaction.
pub fn subtransaction() -> pg_sys::SubTransactionId {
    // SAFETY: reads this backend's transaction state.
    unsafe { raw::GetCurrentSubTransactionId() }
}

/// Returns how many rows this transaction has inserted, updated or deleted in a table, as the statistics count them.
/// Rows of savepoints that were rolled back count, too. `None`: the statistics are switched off (`track_counts`).
pub fn rows_written(table: pg_sys::Oid) -> Option<i64> {
    let counters = [
        pg_sys::F_PG_STAT_GET_XACT_TUPLES_INSERTED,
        pg_sys::F_PG_STAT_GET_XACT_TUPLES_UPDATED,
        pg_sys::F_PG_STAT_GET_XACT_TUPLES_DELETED,
    ];
    // SAFETY: a plain global; functions of the server that take an oid and return a bigint.
    unsafe {
        pg_sys::pgstat_track_counts.then(|| {
            let count = |f| pg_sys::OidFunctionCall1Coll(pg_sys::Oid::from(f), pg_sys::InvalidOid, table.into());
            counters.iter().map(|&f| count(f).value() as i64).sum()
        })
    }
}

/// True if the transaction reads by one snapshot from its beginning to its end (REPEATABLE READ, SERIALIZABLE).
pub fn uses_one_snapshot() -> bool {
    // SAFETY: a plain global of this backend.
    unsafe { pg_sys::XactIsoLevel >= pg_sys::XACT_REPEATABLE_READ as c_int }
}

/// True if the transaction has an id, that is, has written something.
pub fn has_xid() -> bool {
    // SAFETY: reads this backend's transaction state.
    unsafe { pg_sys::GetTopTransactionIdIfAny() != pg_sys::TransactionId::from(0) }
}

/// Returns the transaction's top-level id, with its epoch. 0: it has written nothing. Can be called while the
/// transaction is committing.
pub fn transaction_id() -> u64 {
    // SAFETY: reads this backend's transaction state.
    unsafe { raw::GetTopFullTransactionIdIfAny() }.value
}

/// Returns the id of the innermost open subtransaction, and assigns one if it has none. Can raise.
pub fn subtransaction_xid() -> u32 {
    // SAFETY: in a transaction that may write.
    unsafe { pg_sys::GetCurrentTransactionId() }.into()
}

/// True if this is the id of this session's open transaction, or of a subtransaction of it that was not rolled back.
pub fn is_current(xid: u32) -> bool {
    // SAFETY: reads this backend's transaction state.
    unsafe { pg_sys::TransactionIdIsCurrentTransactionId(xid.into()) }
}

/// True if a transaction of another session, or a prepared one, is open.
pub fn is_in_progress(xid: u32) -> bool {
    // SAFETY: reads shared memory.
    unsafe { pg_sys::TransactionIdIsInProgress(xid.into()) }
}

/// Waits until a transaction of another session has ended, as an UPDATE waits for a row's lock. pg_locks shows the
/// wait. Cancel, lock_timeout and deadlock end it by an error.
pub fn wait_for_transaction(xid: u32) {
    // SAFETY: without a relation the call needs no row. An error then says only that it waited for a transaction.
    unsafe {
        pg_sys::XactLockTableWait(xid.into(), std::ptr::null_mut(), std::ptr::null_mut(), pg_sys::XLTW_Oper::XLTW_None);
    }
}

/// True if the server allows prepared transactions (`max_prepared_transactions` above 0).
pub fn has_prepared_transactions() -> bool {
    // SAFETY: the setting is fixed after the server's start.
    unsafe { pg_sys::max_prepared_xacts > 0 }
}

/// Makes the whole write-ahead log that exists now durable. Waits for the disk.
pub fn flush_log() {
    const PAGE: u64 = pg_sys::XLOG_BLCKSZ as u64;
    const HEADER: u64 = size_of::<pg_sys::XLogPageHeaderData>() as u64;
    const FIRST_HEADER: u64 = size_of::<pg_sys::XLogLongPageHeaderData>() as u64;
    // SAFETY: reads shared memory and a plain global, and waits for the disk. If the log ends with a page, the insert
    // position lies behind the header of the next page. That header does not exist yet, so flushing up to the position
    // would be an error. No record ends directly behind a header, so an insert position there always means this case.
    unsafe {
        let at = pg_sys::GetXLogInsertRecPtr();
        let is_first = at % (pg_sys::wal_segment_size as u64) < PAGE;
        let header = if is_first { FIRST_HEADER } else { HEADER };
        pg_sys::XLogFlush(if at % PAGE == header { at - header } else { at });
    }
}

/// True if the session is in a transaction block or in a subtransaction.
pub fn in_transaction_block() -> bool {
    // SAFETY: reads this backend's transaction state.
    unsafe { pg_sys::IsTransactionBlock() || pg_sys::GetCurrentTransactionNestLevel() > 1 }
}

/// Runs `f` in a transaction of its own with an active snapshot, and commits. Must be called between two transactions.
/// If it raises, the caller must call `abort_after_error`.
pub fn in_transaction<R>(f: impl FnOnce() -> R) -> R {
    // SAFETY: called between two transactions. `f` leaves the snapshot stack unchanged.
    unsafe {
        pg_sys::SetCurrentStatementStartTimestamp();
        pg_sys::StartTransactionCommand();
        pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
    }
    let result = f();
    // SAFETY: ends the transaction begun above.
    unsafe {
        pg_sys::PopActiveSnapshot();
        pg_sys::CommitTransactionCommand();
    }
    result
}

/// As `in_transaction`, but if `f` fails, the transaction stays open, and the caller must call `abort_after_error`.
pub fn try_in_transaction<R>(f: impl FnOnce() -> Result<R>) -> Result<R> {
    // SAFETY: as in `in_transaction`.
    unsafe {
        pg_sys::SetCurrentStatementStartTimestamp();
        pg_sys::StartTransactionCommand();
        pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
    }
    let result = f()?;
    // SAFETY: ends the transaction begun above.
    unsafe {
        pg_sys::PopActiveSnapshot();
        pg_sys::CommitTransactionCommand();
    }
    Ok(result)
}

/// Aborts the open transaction, if any, after an error was caught, as the main loop of a session does. Afterwards the
/// process is between two transactions.
pub fn abort_after_error() {
    // SAFETY: interrupts are held off, so that none of them raises an error meanwhile. The abort also releases locks,
    // buffers and other resources.
    unsafe {
        pg_sys::InterruptHoldoffCount += 1;
        pg_sys::QueryCancelPending = 0;
        pg_sys::AbortOutOfAnyTransaction();
        pg_sys::InterruptHoldoffCount -= 1;
    }
}

/// Runs `f` in a subtransaction. If `f` returns or raises an error, the subtransaction is rolled back and the error is
/// returned. Errors that are not the fault of `f` (cancel, lock_timeout, out of memory, disk full) are raised again.
pub fn in_subtransaction<R>(f: impl FnOnce() -> Result<R>) -> Result<R> {
    in_subtransaction_passing(f, |code| {
        matches!(
            code,
            PgSqlErrorCode::ERRCODE_QUERY_CANCELED
                | PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE
                | PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY
                | PgSqlErrorCode::ERRCODE_DISK_FULL
        )
    })
}

/// As `in_subtransaction`, but raises again the errors whose SQLSTATE `passes` accepts.
pub fn in_subtransaction_passing<R>(f: impl FnOnce() -> Result<R>, passes: fn(PgSqlErrorCode) -> bool) -> Result<R> {
    enclosed(f, true, passes)
}

/// As `in_subtransaction_passing`, but rolls the subtransaction back in any case.
pub fn in_undone_subtransaction<R>(f: impl FnOnce() -> Result<R>, passes: fn(PgSqlErrorCode) -> bool) -> Result<R> {
    enclosed(f, false, passes)
}

/// Runs `f`, which only reads, in a subtransaction that is always rolled back, so that no lock is kept. An error that
/// `f` raises is returned. A cancel is raised again.
pub fn look<R>(f: impl FnOnce() -> Result<R>) -> Result<R> {
    enclosed(f, false, |code| code == PgSqlErrorCode::ERRCODE_QUERY_CANCELED)
}

/// Runs `f` in a subtransaction. If `f` succeeds and `keep`, the subtransaction becomes part of the transaction.
/// Otherwise it is rolled back. A raised error is returned. If `passes` accepts its SQLSTATE, it is raised again
/// instead.
fn enclosed<R>(f: impl FnOnce() -> Result<R>, keep: bool, passes: fn(PgSqlErrorCode) -> bool) -> Result<R> {
    // SAFETY: in a transaction. As in PL/pgSQL, the memory context stays the same within the subtransaction. The
    // context and the resource owner are restored after it. `f` or the rollback closes what `f` opens.
    let (context, owner) = unsafe { (pg_sys::CurrentMemoryContext, pg_sys::CurrentResourceOwner) };
    // SAFETY: as above.
    unsafe {
        pg_sys::BeginInternalSubTransaction(std::ptr::null());
        pg_sys::CurrentMemoryContext = context;
    }
    let result = PgTryBuilder::new(AssertUnwindSafe(|| Ok(f()))).catch_others(|caught| Err(Box::new(caught))).execute();
    // SAFETY: as above.
    unsafe {
        pg_sys::CurrentMemoryContext = context;
        if keep && matches!(result, Ok(Ok(_))) {
            pg_sys::ReleaseCurrentSubTransaction();
        } else {
            pg_sys::RollbackAndReleaseCurrentSubTransaction();
        }
        pg_sys::CurrentMemoryContext = context;
        pg_sys::CurrentResourceOwner = owner;
    }
    result.unwrap_or_else(|caught| {
        let (CaughtError::PostgresError(report)
        | CaughtError::ErrorReport(report)
        | CaughtError::RustPanic { ereport: report, .. }) = &*caught;
        if passes(report.sql_error_code()) {
            // Postgres's own error is flushed by now, so a copy of it is raised.
            match *caught {
                CaughtError::PostgresError(report) => CaughtError::ErrorReport(report).rethrow(),
                other => other.rethrow(),
            }
        }
        Err(Error {
            code: error::state(report.sql_error_code()),
            message: report.message().to_owned(),
            detail: report.detail().map(str::to_owned),
            hint: report.hint().map(str::to_owned),
        })
    })
}
