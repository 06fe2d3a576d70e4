//! Empties a segment that history has: nobody opens it any more but who looks up what became of an attempt, for
//! microseconds. It waits for those who have held a lock since before, and for every dump, beside the queue of
//! locks, so that nobody ever waits for it.

use pgrx::pg_sys;

use super::{PAUSE, Picture, Step};
use crate::error::Result;
use crate::instance::Catalog;
use crate::log::successor;
use crate::segment::{self, State};
use crate::{guc, spi, sys};

/// One table, or the end of it.
pub fn step(catalog: &Catalog, segment: u8, picture: &Picture, now: i64) -> Result<Step> {
    let has_begun = picture.state(segment) == State::Emptying;
    // A dump takes its snapshot a moment before it can be seen.
    let delay = i64::from(guc::RECLAIM_DELAY.get()) * 1_000;
    let since = picture.filling(segment).since;
    // A clock that was ahead and was set back is not waited for.
    let left = if since > now { 0 } else { since.saturating_add(delay) - now };
    if !has_begun && left > 0 {
        return Ok(Step::Later(left));
    }
    if !has_begun && sys::is_being_dumped() {
        return Ok(Step::Later(PAUSE));
    }
    let tables = Vec::from_iter(catalog.segments[segment as usize].tables());
    if is_held(catalog, segment) || !sys::try_lock_whole(&tables, pg_sys::AccessExclusiveLock) {
        return Ok(Step::Later(PAUSE));
    }
    if !has_begun {
        successor::forget(catalog, segment)?;
    }
    // A table per transaction, because each waits for the disk a few times. The attempts first: without one nobody
    // asks for the rest. By what is on record, and not by what looks empty: a crash may have left the indexes.
    let done = if has_begun { picture.filling(segment).copied_to } else { 0 };
    if let Some(&table) = usize::try_from(done).ok().and_then(|done| tables.get(done)) {
        // What is emptied is gone at once: before, what was moved and copied must be as durable.
        sys::flush_log();
        sys::truncate(table);
        // Another generation: whoever found a row here before finds, with a lock, that it is not here any more.
        segment::record(catalog, segment, 0, State::Emptying, Some(done + 1));
    } else {
        segment::record(catalog, segment, 0, State::Free, None);
        prune_log()?;
    }
    Ok(Step::Did(1))
}

/// Whether somebody holds a lock on one of the segment's tables, so that it cannot be emptied now.
pub fn is_held(catalog: &Catalog, segment: u8) -> bool {
    let mut tables = catalog.segments[segment as usize].tables();
    tables.any(|table| sys::lock_holders(table, pg_sys::AccessExclusiveLock) > 0)
}

/// What the log says of fillings that are gone is of no use; but for the first rows, with which it begins in
/// every database.
fn prune_log() -> Result<()> {
    spi::run(
        "DELETE FROM queue.segment_log AS l
         WHERE l.entry OPERATOR(pg_catalog.>) 2 AND EXISTS (
             SELECT FROM queue.segment_log AS later
             WHERE later.segment OPERATOR(pg_catalog.=) l.segment AND later.entry OPERATOR(pg_catalog.>) l.entry
               AND later.state OPERATOR(pg_catalog.=) 'f')",
        &[],
    )?;
    Ok(())
}
