//! Prevents that `queue.drop` or the removal of a stage loses a job. A transaction that adds jobs or a schedule to a
//! queue, and one that drops the queue or the stage, do not both commit, and neither waits for the other.
//!
//! The dropper marks the lane in shared memory, and only then looks for live jobs, including those of open
//! transactions. The producer asks for marks before it inserts and once more before it commits. So either the dropper
//! sees the producer's row and refuses, or the producer sees the mark and refuses. The marks of committed drops stay
//! for a while, for sessions that have not heard of them yet.
//!
//! Not responsible for looking for live jobs, nor for removing rows: `api::queues` does both.

use std::cell::{Cell, RefCell};

use crate::catalog::queue;
use crate::error::{self, Error, Result};
use crate::pg::fault::fault;
use crate::pg::session;
use crate::shmem::{self, drops, here, words};
use crate::transaction::{self, hooks};

thread_local! {
    /// The instance whose drops this transaction watches, and how many drops there had been when it began to watch.
    static WATCHED: Cell<Option<(u32, u64)>> = const { Cell::new(None) };
    /// A lane that had no mark: its instance, the number of drops at that time, and the lane.
    static UNMARKED: Cell<(u32, u64, i32)> = const { Cell::new((0, 0, 0)) };
    /// Lanes to which `admits` lets this transaction add jobs.
    static ADMITTED: RefCell<Vec<i32>> = const { RefCell::new(Vec::new()) };
}

fn in_use() -> Error {
    Error::new(error::IN_USE, "the queue is being dropped, or the stage removed")
        .hint("Try again when that transaction has ended.")
}

/// Refuses a producer that is about to insert into a lane that is being dropped. Otherwise the lane is checked again
/// before the transaction commits.
///
/// Errors: 55006 when the lane's queue is being dropped, or was a moment ago. Takes the frontier's lock, unless there
/// were no drops, or none since this session found the same lane unmarked.
pub fn watch(lane: i32) -> Result<()> {
    let number = here::number();
    let mut drops = words::drops_word();
    // Each mark changes the number of drops, so most looks need no lock.
    if drops != 0 && UNMARKED.get() != (number, drops, lane) {
        let seen = shmem::with_instance(|_, instance| (instance.drops.begun.get(), instance.drops.has(lane)));
        let (now, is_marked) = seen.unwrap_or((0, true));
        if is_marked {
            return Err(in_use());
        }
        drops = now;
        UNMARKED.set((number, drops, lane));
    }
    fault!("drop.watched");
    if WATCHED.get().is_none_or(|(watched, ..)| watched != number) {
        WATCHED.set(Some((number, drops)));
        hooks::before_commit(check);
        hooks::at_end(forget);
    }
    Ok(())
}

/// Returns whether a job that no producer of this transaction adds may go into a lane: a copy of an event or of a dead
/// job, or a released job. False: the lane is being dropped. After this call a drop of the lane does not refuse this
/// transaction. It ends the job with the queue.
pub fn admits(lane: i32) -> bool {
    let is_marked =
        words::drops_word() != 0 && shmem::with_instance(|_, instance| instance.drops.has(lane)).unwrap_or(true);
    if !is_marked {
        hooks::at_end(forget);
        ADMITTED.with_borrow_mut(|lanes| {
            if lanes.last() != Some(&lane) {
                lanes.push(lane);
            }
        });
    }
    !is_marked
}

/// Returns whether a drop has begun since this transaction began to watch. A session that marks after this check finds
/// the transaction's rows, because they are in their tables before the check.
fn has_news() -> bool {
    WATCHED.get().is_some_and(|(_, drops)| words::drops_word() != drops)
}

/// Runs before the commit of a transaction that has added jobs, and checks their lanes if there were drops meanwhile.
///
/// Errors: 55006 when one of their queues is being dropped, 42704 when it is gone.
fn check() -> Result<()> {
    if !has_news() {
        fault!("drop.unseen");
        return Ok(());
    }
    fault!("drop.seen");
    let lanes = transaction::lanes_added();
    WATCHED.set(None);
    let Some(drops) = shmem::with_instance(|_, instance| instance.drops) else { return Ok(()) };
    session::accept_invalidations();
    let mut checked = 0;
    for lane in lanes {
        if lane == checked || ADMITTED.with_borrow(|lanes| lanes.contains(&lane)) {
            continue;
        }
        checked = lane;
        if drops.marks.iter().any(|mark| mark.lane == lane && mark.is_open()) {
            return Err(in_use());
        }
        let Some(queue) = queue::by_lane(lane)? else {
            return Err(Error::new(error::UNDEFINED, "the queue was dropped before its jobs were committed"));
        };
        if !queue.has_lane(lane) {
            return Err(Error::new(error::UNDEFINED, "the stage was removed before its jobs were committed"));
        }
        // The lane was dropped a moment ago, and this session has not been told.
        if drops.has(lane) {
            return Err(in_use());
        }
    }
    Ok(())
}

/// Ends the watch at the end of the transaction.
fn forget() {
    WATCHED.set(None);
    ADMITTED.with_borrow_mut(Vec::clear);
}

/// Marks a lane for a transaction that drops it. The dropper calls this before it looks for live jobs.
///
/// Errors: 53400 when too many queues are being dropped in open transactions, or this one drops more than its share.
/// Takes the frontier's lock.
pub fn mark(lane: i32) -> Result<()> {
    let session = session::session();
    let marked = shmem::with_instance(|_, instance| {
        let is_marked = instance.drops.mark(lane, session);
        if is_marked {
            instance.drops.begun.increment();
        }
        is_marked
    });
    if marked == Some(true) {
        return Ok(());
    }
    Err(Error::new(error::LIMIT, "too many queues are being dropped at the same time")
        .detail(format!(
            "Open transactions of one database can drop {} queues and stages at the same time, and one of them half of \
             what the others leave.",
            drops::MAX_MARKS
        ))
        .hint("Drop them in smaller transactions."))
}
