//! Empties a segment that history has: nobody opens it any more but who looks up what became of an attempt, for
//! microseconds. It waits for those who have held a lock since before, and for every dump, beside the queue of
//! locks, so that nobody ever waits for it.

use pgrx::pg_sys;

use super::{PAUSE, Picture, Step};
use crate::error::Result;
use crate::instance::Catalog;
use crate::segment::{self, State};
use crate::{guc, spi, sys};

/// The whole of it.
pub fn step(catalog: &Catalog, segment: u8, picture: &Picture, now: i64) -> Result<Step> {
    // A dump takes its snapshot a moment before it can be seen.
    let delay = i64::from(guc::RECLAIM_DELAY.get()) * 1_000;
    let left = picture.filling(segment).since.saturating_add(delay) - now;
    if left > 0 {
        return Ok(Step::Later(left));
    }
    // pg_dump reads the extension's tables late, but holds a lock on pg_extension from its begin to its end.
    if sys::lock_holders(pg_sys::ExtensionRelationId, pg_sys::AccessExclusiveLock) > 0 {
        return Ok(Step::Later(PAUSE));
    }
    let oids = &catalog.segments[segment as usize];
    let tables = [oids.attempt, oids.claim, oids.outcome, oids.note];
    let is_free = |&table: &pg_sys::Oid| sys::lock_holders(table, pg_sys::AccessExclusiveLock) == 0;
    if !tables.iter().all(is_free) || !tables.iter().all(|&table| sys::try_lock(table, pg_sys::AccessExclusiveLock)) {
        return Ok(Step::Later(PAUSE));
    }
    forget_successors(segment)?;
    tables.into_iter().for_each(sys::truncate);
    // Another generation: whoever found a row here before finds, with a lock, that it is not here any more.
    segment::record(catalog, segment, 0, State::Free, None);
    prune_log()?;
    Ok(Step::Did(1))
}

/// An attempt that was retried after it was copied, or passed over since nothing is kept of it, may have a successor
/// on record that nobody asks for any more. Nobody is making one: that takes a lock on the outcomes.
fn forget_successors(segment: u8) -> Result<()> {
    spi::run(
        &format!(
            "DELETE FROM queue.successor AS s USING queue.attempt_{segment} AS a, queue.outcome_{segment} AS o
             WHERE a.id OPERATOR(pg_catalog.=) s.id AND o.id OPERATOR(pg_catalog.=) s.id
               -- Not one that went elsewhere before it ended.
               AND o.outcome OPERATOR(pg_catalog.<>) 'm' AND NOT EXISTS (
                 SELECT FROM queue.history AS h WHERE h.job_id OPERATOR(pg_catalog.=) a.job_id AND h.id OPERATOR(pg_catalog.=) a.id)"
        ),
        &[],
    )?;
    Ok(())
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
