//! No job is lost to `queue.drop`, nor to the removal of a stage: a transaction that adds jobs or a schedule to a queue
//! and one that drops it, or the stage, do not both commit, and neither waits for the other.
//!
//! The dropper marks the lane in shared memory, and only then looks for live jobs, those of open
//! transactions included. The producer asks for marks before it inserts and once more before it commits.
//! So either the dropper sees the producer's row and refuses, or the producer sees the mark and does. The
//! marks of committed drops stay for a while, for sessions that have not heard of them yet.

use std::cell::Cell;

use crate::error::{self, Error, Result};
use crate::instance::Catalog;
use crate::{instance, queue, shmem};

thread_local! {
    /// The instance whose drops this transaction watches, its slot, and how many there were when it began to.
    static WATCHED: Cell<Option<(u32, usize, u64)>> = const { Cell::new(None) };
    /// A lane without a mark: its instance, how many drops there had been by then, and the lane.
    static UNMARKED: Cell<(u32, u64, i32)> = const { Cell::new((0, 0, 0)) };
}

fn in_use() -> Error {
    Error::new(error::IN_USE, "the queue is being dropped, or the stage removed")
        .hint("Try again when that transaction has ended.")
}

/// A producer is about to insert into this lane.
///
/// Errors: 55006 when its queue is being dropped, or was a moment ago.
pub fn watch(catalog: &Catalog, lane: i32) -> Result<()> {
    let number = catalog.number;
    let mut drops = shmem::drops_word(catalog.slot, number);
    // A mark comes with a new number of drops, so most looks need no lock.
    if drops != 0 && UNMARKED.get() != (number, drops, lane) {
        let seen = shmem::with_instance(number, |_, instance| {
            (instance.drops, instance.dropping.iter().any(|d| d.lane == lane))
        });
        let (now, is_marked) = seen.unwrap_or((0, true));
        if is_marked {
            return Err(in_use());
        }
        drops = now;
        UNMARKED.set((number, drops, lane));
    }
    if WATCHED.get().is_none_or(|(watched, ..)| watched != number) {
        WATCHED.set(Some((number, catalog.slot, drops)));
    }
    Ok(())
}

/// Whether a drop has begun since this transaction began to watch. Whoever marks after this look finds the
/// transaction's rows, for they are in their tables.
pub fn has_news() -> bool {
    WATCHED.get().is_some_and(|(number, slot, drops)| shmem::drops_word(slot, number) != drops)
}

/// Before the commit of a transaction that has added jobs to these lanes, when there are news.
///
/// Errors: 55006 when one of their queues is being dropped, 42704 when it is gone.
pub fn check(lanes: impl Iterator<Item = i32>) -> Result<()> {
    let Some((number, ..)) = WATCHED.take() else { return Ok(()) };
    let Some(dropping) = shmem::with_instance(number, |_, instance| instance.dropping) else { return Ok(()) };
    crate::sys::accept_invalidations();
    let catalog = instance::current()?;
    let mut checked = 0;
    for lane in lanes {
        if lane == checked {
            continue;
        }
        checked = lane;
        if dropping.iter().any(|d| d.lane == lane && d.is_open) {
            return Err(in_use());
        }
        let Some(queue) = queue::by_lane(&catalog, lane)? else {
            return Err(Error::new(error::UNDEFINED, "the queue was dropped before its jobs were committed"));
        };
        if !queue.has_lane(lane) {
            return Err(Error::new(error::UNDEFINED, "the stage was removed before its jobs were committed"));
        }
        // It was dropped a moment ago, and this session has not been told.
        if dropping.iter().any(|d| d.lane == lane) {
            return Err(in_use());
        }
    }
    Ok(())
}

/// The transaction has ended: it watches nothing any more.
pub fn forget() {
    WATCHED.set(None);
}

/// A dropper marks a lane; call it before looking for live jobs.
///
/// Errors: 53400 when too many queues are being dropped in open transactions.
pub fn mark(catalog: &Catalog, lane: i32) -> Result<()> {
    let marked = shmem::with_instance(catalog.number, |_, instance| {
        let at = instance.drops as usize % instance.dropping.len();
        let order = (at..instance.dropping.len()).chain(0..at);
        let slot = order.into_iter().find(|&n| !instance.dropping[n].is_open)?;
        instance.dropping[slot] = shmem::Dropping { lane, is_open: true };
        let drops = instance.drops + 1;
        shmem::set_word(&mut instance.drops, drops);
        Some(())
    });
    marked.flatten().ok_or_else(|| {
        Error::new(error::LIMIT, "too many queues are being dropped at once").hint("Drop them in smaller transactions.")
    })
}

/// The lane of a stage that was removed is one of its queue's again.
pub fn forget_mark(instance: &mut shmem::Instance, lane: i32) {
    instance.dropping.iter_mut().filter(|d| d.lane == lane && !d.is_open).for_each(|mark| mark.lane = 0);
}

/// The dropper's transaction has ended.
pub fn unmark(instance: &mut shmem::Instance, lane: i32, committed: bool) {
    if let Some(mark) = instance.dropping.iter_mut().find(|d| d.lane == lane && d.is_open) {
        mark.is_open = false;
        if !committed {
            mark.lane = 0;
        }
    }
}
