//! The mark of a lane whose queue is being dropped, or was dropped recently.
//!
//! Responsible for its form in shared memory. Not responsible for setting and reading marks (`catalog::drops`).
//!
//! Invariant: a mark is changed only under the frontier's lock, and a lane has at most one.

use crate::shmem::shared_word::SharedWord;

/// At most this many lanes of a database have marks.
pub const MAX_MARKS: usize = 256;

/// The mark of a lane. Its queue, or the lane as a stage, is being dropped or was dropped recently.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Dropping {
    /// The lane. 0: the mark is free.
    pub lane: i32,
    /// How many drops of the lane are in open transactions.
    open: u32,
    /// The session that made the mark.
    session: u32,
    /// True if a drop was committed, and the lane is not in use again.
    is_dropped: bool,
}

impl Dropping {
    /// True if a transaction that drops the lane is still open.
    pub fn is_open(&self) -> bool {
        self.open != 0
    }

    fn clear_if_void(&mut self) {
        if self.open == 0 && !self.is_dropped {
            *self = Self::default();
        }
    }

    /// Clears the note that a drop was committed, because the lane is in use again.
    pub fn forget_dropped(&mut self) {
        self.is_dropped = false;
        self.clear_if_void();
    }

    /// Notes that a drop of the lane has ended. If it was committed, the mark stays for a while.
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
    /// The number of drops that have begun since the start.
    pub begun: SharedWord,
    /// The lanes of the latest drops. See `catalog::drops`.
    pub marks: [Dropping; MAX_MARKS],
}

impl Drops {
    /// No drops.
    pub fn new() -> Self {
        Self { begun: SharedWord::default(), marks: [Dropping::default(); MAX_MARKS] }
    }

    /// Returns true if a lane has a mark.
    pub fn has(&self, lane: i32) -> bool {
        self.marks.iter().any(|mark| mark.lane == lane)
    }

    /// Clears the committed drop in a lane's mark: a stage that was removed belongs to its queue again. The caller
    /// holds the frontier's lock.
    pub fn forget(&mut self, lane: i32) {
        self.marks.iter_mut().filter(|mark| mark.lane == lane).for_each(Dropping::forget_dropped);
    }

    /// Ends the mark of a lane when the transaction that drops it ends. If it was committed, the mark stays for a
    /// while. Otherwise the mark is removed. The caller holds the frontier's lock.
    pub fn end(&mut self, lane: i32, committed: bool) {
        if let Some(mark) = self.marks.iter_mut().find(|mark| mark.lane == lane && mark.is_open()) {
            mark.end(committed);
        }
    }

    /// Marks a lane for an open transaction of a session. Returns false if no place is free, or the session already has
    /// half of the places.
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
        // The search begins where the marks of the latest committed drops stay longest.
        let from = self.begun.get() as usize % MAX_MARKS;
        match (from..MAX_MARKS).chain(0..from).find(|&n| !marks[n].is_open()) {
            Some(at) if own < free => {
                marks[at] = Dropping { lane, open: 1, session, is_dropped: false };
                true
            }
            _ => false,
        }
    }
}
