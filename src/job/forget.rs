//! Erases the contents of an ended job, wherever its rows lie.
//!
//! Invariant: this is the only place that changes rows of the logs, because a promise of privacy is worth more than a
//! log that is only appended to. A payload that other jobs share stays for them.

use pgrx::pg_sys;

use crate::catalog::{self, ids, queue, spi};
use crate::error::{self, Error, Result};
use crate::job::find::{self, Found};
use crate::job::rerun;
use crate::job::retry::lock_ended;
use crate::log::reader::Reader;
use crate::log::segment;
use crate::pg::{lock, transaction};

/// Erases the contents of a job that has ended, with the commit. Takes the lock of the storage duty, and waits for it.
///
/// Errors: 22023, P0002, 42501; 25001 at REPEATABLE READ or above, 55000 if the job has not ended, 55006 if an open
/// transaction is in the way.
pub fn forget(job_id: i64) -> Result<()> {
    ids::job_id(job_id)?;
    if transaction::uses_one_snapshot() {
        return Err(Error::new(error::IN_TRANSACTION, "queue.forget cannot run at REPEATABLE READ or above")
            .hint("It would leave what has been written since the transaction began."));
    }
    check_ended(job_id)?;
    // No row is copied to history while this session erases it in a segment: the storage duty skips its turn. This lock
    // waits for other sessions that erase, so the next lock waits only for sessions that revive jobs.
    lock::lock(catalog::pinned().segment_log, pg_sys::ShareUpdateExclusiveLock);
    lock_ended(job_id, pg_sys::ExclusiveLock)?;
    // The job may have been revived before this transaction got the locks.
    check_ended(job_id)?;
    let mut ids = Reader::new().all_ids(job_id);
    ids.extend(holders(&ids)?);
    for segment in segment::plannable() {
        for statement in [
            "UPDATE queue_internal.attempt_N SET payload = '{}', payload_of = NULL, headers = NULL, last_error = NULL, \
                progress = NULL",
            "UPDATE queue_internal.outcome_N SET result = NULL, error = NULL",
            "UPDATE queue_internal.note_N SET body = NULL, headers = NULL",
        ] {
            let sql =
                format!("{statement} WHERE id OPERATOR(pg_catalog.=) ANY ($1)").replace("_N", &format!("_{segment}"));
            spi::run(&sql, &[ids.clone().into()])?;
        }
    }
    spi::run(
        "UPDATE queue_internal.history
         SET payload = '{}', headers = NULL, error = NULL, last_error = NULL, result = NULL,
            progress = NULL
         WHERE job_id OPERATOR(pg_catalog.=) $1",
        &[job_id.into()],
    )?;
    Ok(())
}

/// Returns the rows whose payloads only these attempts refer to. A payload that other jobs share stays for them.
fn holders(attempts: &[i64]) -> Result<Vec<i64>> {
    let mut found = Vec::new();
    for segment in segment::plannable() {
        // Only attempts of the payload's own segment refer to it.
        let sql = "SELECT DISTINCT a.payload_of FROM queue_internal.attempt_N AS a
             WHERE a.id OPERATOR(pg_catalog.=) ANY ($1) AND a.payload_of IS NOT NULL
               AND NOT EXISTS (SELECT FROM queue_internal.attempt_N AS b
                               WHERE b.payload_of OPERATOR(pg_catalog.=) a.payload_of
                                 AND NOT b.id OPERATOR(pg_catalog.=) ANY ($1))";
        found.extend(spi::i64_column(&sql.replace("_N", &format!("_{segment}")), &[attempts.to_vec().into()])?);
    }
    Ok(found)
}

/// Checks that a job has ended for good.
///
/// Errors: 55000 if it has not ended, 55006 if the background worker still has to make a requested run.
fn check_ended(job_id: i64) -> Result<()> {
    let found = find::managed(job_id)?;
    // A job that ran when its queue was dropped has no outcome, and none can be made.
    if found.outcome().is_none() && queue::by_lane(found.lane())?.is_some() {
        return Err(Error::new(error::WRONG_STATE, format!("job {job_id} has not ended"))
            .hint("Cancel it first; queue.forget erases what an ended job leaves."));
    }
    match &found {
        Found::Here(job) if rerun::may_be_owed(&job.attempt) => Err(find::in_use(job_id)),
        _ => Ok(()),
    }
}
