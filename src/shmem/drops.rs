//! The mark of a lane whose queue is being dropped, or was dropped a short while ago.
//!
//! Responsible for its form in shared memory. Not responsible for marking and for asking for marks (`catalog::drops`).
//!
//! Invariant: a mark is changed under the frontier's lock only, and a lane has one at most.

use crate::shmem::shared_word::SharedWord;

/// How many lanes of a database have marks at the same time.
pub const MARKS: usize = 256;

/// The mark of a lane whose queue (or which, as a stage) is being dropped, or was dropped a short while ago.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Dropping {
    /// The lane; 0 if the mark is free.
    pub lane: i32,
    /// How often open transactions have dropped it.
    open: u32,
    /// The session that has made the mark.
    session: u32,
    /// Whether one of them was committed, and the lane has not come back since.
    is_dropped: bool,
}

impl Dropping {
    /// Whether a transaction that drops the lane is still open.
    pub fn is_open(&self) -> bool {
        self.open != 0
    }

    fn clear_if_void(&mut self) {
        if self.open == 0 && !self.is_dropped {
            *self = Self::default();
        }
    }

    /// Forgets that a drop was committed: the lane is in use again.
    pub fn forget_dropped(&mut self) {
        self.is_dropped = false;
        self.clear_if_void();
    }

    /// A drop of the lane has ended. If it was committed, the mark stays for a while.
    pub fn end(&mut self, committed: bool) {
        self.open = self.open.saturating_sub(1);
        self.is_dropped |= committed;
        self.clear_if_void();
    }
}

/// The drops of queues of an instance.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Drops {
    /// The number of drops that were begun since the start.
    pub begun: SharedWord,
    /// The lanes of the last drops. See `catalog::drops`.
    pub marks: [Dropping; MARKS],
}

impl Drops {
    /// No drops.
    pub fn new() -> Self {
        Self { begun: SharedWord::default(), marks: [Dropping::default(); MARKS] }
    }

    /// Returns whether a lane has a mark.
    pub fn has(&self, lane: i32) -> bool {
        self.marks.iter().any(|mark| mark.lane == lane)
    }

    /// Removes the mark of a committed drop from a lane: a stage that was removed belongs to its queue again. The
    /// caller holds the frontier's lock.
    pub fn forget(&mut self, lane: i32) {
        self.marks.iter_mut().filter(|mark| mark.lane == lane).for_each(Dropping::forget_dropped);
    }

    /// Ends the mark of a lane, as the transaction that drops it has ended. If it was committed, the mark stays for a
    /// while; otherwise it goes. The caller holds the frontier's lock.
    pub fn end(&mut self, lane: i32, committed: bool) {
        if let Some(mark) = self.marks.iter_mut().find(|mark| mark.lane == lane && mark.is_open()) {
            mark.end(committed);
        }
    }

    /// Marks a lane for an open transaction of a session. Returns false if there is no place for it, or if the session
    /// has half of the places that were free.
    pub fn mark(&mut self, lane: i32, session: u32) -> bool {
        let marks = &mut self.marks;
        if let Some(mark) = marks.iter_mut().find(|mark| mark.lane == lane) {
            if !mark.is_open() {
                mark.session = session;
            }
            mark.open += 1;
            return true;
        }
        let own = marks.iter().filter(|mark| mark.is_open() && mark.session == session).count();
        let free = marks.iter().filter(|mark| !mark.is_open()).count();
        // The marks of the last committed drops stay longest.
        let from = self.begun.get() as usize % MARKS;
        match (from..MARKS).chain(0..from).find(|&n| !marks[n].is_open()) {
            Some(at) if own < free => {
                marks[at] = Dropping { lane, open: 1, session, is_dropped: false };
                true
            }
            _ => false,
        }
    }
}
