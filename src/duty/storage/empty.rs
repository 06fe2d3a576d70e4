//! Empties a segment after its ended attempts are in history.
//!
//! Not responsible for the truncation itself (`pg::emptying`), nor for the meaning of the states for readers
//! (`shmem::ledger`).
//!
//! Invariant: no session ever waits for it. Sessions open such a segment only to look up the fate of an attempt, for
//! microseconds. The step waits for sessions with older locks, and for every dump. It does so by retrying, outside the
//! queue of locks.

use pgrx::pg_sys;

use crate::catalog::{self, dump, spi};
use crate::duty::release;
use crate::duty::storage::states::{BLOCKED_PAUSE_US, SegmentStates, StepResult};
use crate::error::Result;
use crate::guc;
use crate::log::{retried, segment};
use crate::pg::emptying::{self, Trust};
use crate::pg::{lock, time, transaction};
use crate::shmem::segments::State;
use crate::transaction::{FlowStep, record};

/// Begins to empty a segment, empties one of its tables, or finishes. `now` is wall time in microseconds.
pub fn step(segment: u8, states: &SegmentStates, now: i64) -> Result<StepResult> {
    let has_begun = states.state(segment) == State::Emptying;
    // A dump takes its snapshot a moment before other sessions can see it.
    let delay = i64::from(guc::RECLAIM_DELAY.get()) * 1_000;
    let since = states.filling(segment).since;
    // If the clock was ahead and was set back, the delay counts as over.
    let left = if since > now { 0 } else { since.saturating_add(delay) - now };
    if !has_begun && left > 0 {
        return Ok(StepResult::Later(left));
    }
    if !has_begun && dump::is_running()? {
        return Ok(StepResult::Later(BLOCKED_PAUSE_US));
    }
    let is_owed = || !has_begun && !release::is_idle();
    if is_owed() {
        return Ok(StepResult::Later(BLOCKED_PAUSE_US));
    }
    let tables = Vec::from_iter(catalog::segment(segment).tables());
    if is_held(segment) || !lock::try_lock_whole(&tables, pg_sys::AccessExclusiveLock) {
        return Ok(StepResult::Later(BLOCKED_PAUSE_US));
    }
    // Sessions that have ended jobs here have now handed them over.
    if is_owed() {
        return Ok(StepResult::Later(BLOCKED_PAUSE_US));
    }
    if !has_begun {
        retried::forget(segment)?;
        // This is recorded before anything is emptied. If a crash leaves a table half emptied, the planner cannot even
        // read its indexes. The record tells every session which tables these are.
        let generation = states.words[segment as usize].generation();
        segment::record(segment, generation, State::Emptying, Some(0));
        return Ok(StepResult::Did(1));
    }
    // One table per transaction, because each waits for the disk a few times. The attempts come first, because without
    // an attempt no session reads the other rows. The record says which one is next. A table that is empty together
    // with its indexes is passed over: a crash may have left indexes of a table without rows.
    let filling = states.filling(segment);
    // A start of the server may follow a failure of the power during an earlier try.
    let trust = if filling.since >= time::server_start_us() { Trust::FirstPages } else { Trust::Nothing };
    let mut done = usize::try_from(filling.copied_to).unwrap_or(0);
    while trust == Trust::FirstPages && tables.get(done).is_some_and(|&table| emptying::leave_out_if_empty(table)) {
        done += 1;
    }
    if let Some(&table) = tables.get(done) {
        // The truncation is immediately final. So the rows that were moved and copied must be durable before it.
        transaction::flush_log();
        emptying::empty(table, trust);
        // The generation changes. A session that has found a row here earlier learns, when it has a lock, that the row
        // is no longer here.
        segment::record(segment, 0, State::Emptying, Some(done as i64 + 1));
    } else {
        segment::record(segment, 0, State::Free, None);
        // Jobs that were not kept may have successors.
        record(FlowStep::JobEnded { job_id: 0 });
        prune_log()?;
    }
    Ok(StepResult::Did(1))
}

/// True if a session holds a lock on one of the segment's tables, so that the segment cannot be emptied now.
pub fn is_held(segment: u8) -> bool {
    let segment = catalog::segment(segment);
    segment.tables().any(|table| lock::lock_holders(table, pg_sys::AccessExclusiveLock) > 0)
}

/// Deletes the rows of the log of segments for former generations. The first two rows stay, because every database's
/// log begins with them.
fn prune_log() -> Result<()> {
    spi::run(
        "DELETE FROM queue_internal.segment_log AS l
         WHERE l.entry OPERATOR(pg_catalog.>) 2 AND EXISTS (
             SELECT FROM queue_internal.segment_log AS later
             WHERE later.segment OPERATOR(pg_catalog.=) l.segment AND later.entry OPERATOR(pg_catalog.>) l.entry
               AND later.state OPERATOR(pg_catalog.=) 'f')",
        &[],
    )?;
    Ok(())
}
