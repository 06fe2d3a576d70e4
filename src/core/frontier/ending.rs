//! What an open transaction is ending of one queue: it counts for other sessions' claims, not for its own.
//!
//! Responsible for how many that are, in all and of each group, so that a transaction that claims and ends many by
//! turns looks at each of them once.
//!
//! Invariant: what is counted is what the queue's gate counts of these attempts. The entry of an attempt that is being
//! ended stays as long as its transaction is open; when a gate is made or thrown away, all are counted anew.

use std::cell::RefCell;

/// The attempts of one queue that a transaction is ending. It is dropped when one of them is so no longer.
#[derive(Clone, Debug, Default)]
pub struct Ending(pub(super) RefCell<Counts>);

#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    pub(super) ids: Vec<i64>,
    /// How many of them were looked at, and how often gates had changed then.
    pub(super) looked: usize,
    pub(super) gate_changes: u32,
    /// How many count at the gate.
    pub(super) running: u32,
    /// The lane and the hash of each group that some of them are in, in this order, and how many. There is room for
    /// all.
    pub(super) groups: Vec<((i32, i64), u32)>,
}

impl Ending {
    /// Adds an attempt. Allocates, so that counting need not.
    pub fn add(&self, id: i64) {
        let mut counts = self.0.borrow_mut();
        counts.ids.push(id);
        let all = counts.ids.len();
        let known = counts.groups.len();
        counts.groups.reserve(all - known);
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.borrow().ids.is_empty()
    }

    /// How many of them the gate counts.
    pub(super) fn running(&self) -> u32 {
        self.0.borrow().running
    }

    /// How many of them are counted in a group.
    pub(super) fn of_group(&self, lane: i32, hash: i64) -> u32 {
        let counts = self.0.borrow();
        counts.groups.binary_search_by_key(&(lane, hash), |group| group.0).map_or(0, |at| counts.groups[at].1)
    }

    /// Calls `f` with the hash of each of their groups in a lane.
    pub(super) fn each_group(&self, lane: i32, mut f: impl FnMut(i64)) {
        let counts = self.0.borrow();
        let from = counts.groups.partition_point(|group| group.0.0 < lane);
        counts.groups[from..].iter().take_while(|group| group.0.0 == lane).for_each(|group| f(group.0.1));
    }
}
