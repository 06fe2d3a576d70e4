//! A cursor over times in the logs, while a session moves it.
//!
//! Responsible for moving the cursor back if the session does not get to read the logs to the end, whatever ends it.
//! Not responsible for where the cursor lies in memory, nor for what is read.
//!
//! A session moves one cursor at a time.
//!
//! Invariant: the cursor moves first, under the lock, and only then the logs are read. Until `next` is set, every way
//! out moves it back.

use std::cell::Cell;

use pg_queue_core::awaited::Awaited;
use pg_queue_core::frontier::Frontier;
use pgrx::pg_sys::Latch;

use crate::pg::session;
use crate::shmem::{self, Instance, here};
use crate::transaction::hooks;

/// A place in the order of times, and of ids among equal times.
pub type Position = (i64, i64);

/// What a cursor is over.
pub struct Kind {
    /// Moves the cursor back to a place. The worker looks again.
    pub go_back: fn(&mut Instance, Position),
    /// Notes that everything was read, and that nothing comes before this time. Returns whether the worker has to look
    /// again at some time.
    pub ends: fn(&mut Instance, i64) -> bool,
}

thread_local! {
    /// The instance whose cursor this session is moving, what the cursor is over, and its position before.
    static MOVING: Cell<Option<(u32, &'static Kind, Position)>> = const { Cell::new(None) };
}

/// Moves the cursor back. Called if this process ends by an error that runs no destructors. Returns the worker's latch.
fn abandon(instances: &mut [Instance], _: &mut [Awaited]) -> Option<*mut Latch> {
    let (number, kind, from) = MOVING.take()?;
    let slot = instances.iter_mut().find(|i| i.number == number)?;
    (kind.go_back)(slot, from);
    Some(slot.worker.latch)
}

/// A cursor while the logs are read.
pub struct Cursor {
    kind: &'static Kind,
    /// The position before.
    pub from: Position,
    /// The time before which nothing else comes. `None` while the logs are being read.
    pub next: Option<i64>,
}

impl Cursor {
    /// Moves the cursor of an instance. `advance` does it, and returns the position before and what the caller wants to
    /// know. `None`: the instance is gone.
    pub fn advance<R>(
        kind: &'static Kind,
        advance: impl FnOnce(&mut Frontier<'_>, &mut Instance) -> (Position, R),
    ) -> Option<(Self, R)> {
        shmem::with_instance(|frontier, slot| {
            let (from, known) = advance(frontier, slot);
            hooks::at_exit(abandon);
            MOVING.set(Some((here::number(), kind, from)));
            (Self { kind, from, next: None }, known)
        })
    }
}

impl Drop for Cursor {
    fn drop(&mut self) {
        MOVING.set(None);
        let worker = shmem::with_instance(|_, slot| {
            let looks_again = match self.next {
                Some(next) => (self.kind.ends)(slot, next),
                None => {
                    (self.kind.go_back)(slot, self.from);
                    true
                }
            };
            // Another session may have done this, and the worker may have gone to sleep because nothing seemed to come.
            (looks_again && slot.worker.pid != session::pid()).then_some(slot.worker.latch)
        });
        if let Some(latch) = worker.flatten() {
            shmem::wake_latch(latch);
        }
    }
}
