//! The attempts of one queue that an open transaction is ending. They count for other sessions' claims, not for the
//! transaction's own.
//!
//! Responsible for their number, in total and in each group. A transaction that claims and ends many by turns looks at
//! each of them once.
//!
//! Invariant: the counts equal what the queue's gate counts of these attempts. The entry of an attempt stays while the
//! transaction that ends it is open. When a gate is made or thrown away, all attempts are counted anew.

use std::cell::RefCell;

/// The attempts of one queue that a transaction is ending. The caller drops it when the end of one of them is undone.
#[derive(Clone, Debug, Default)]
pub struct Ending(pub(super) RefCell<Counts>);

#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    pub(super) ids: Vec<i64>,
    /// How many of `ids` were counted so far. `gate_changes` is how often gates had changed at that time.
    pub(super) looked: usize,
    pub(super) gate_changes: u32,
    /// How many of them the gate counts.
    pub(super) running: u32,
    /// For each group its lane, its hash and how many of them it has, in the order of lane and hash. There is room for
    /// all.
    pub(super) groups: Vec<((i32, i64), u32)>,
}

impl Ending {
    /// Adds an attempt. Allocates here, so that counting never does.
    pub fn add(&self, id: i64) {
        let mut counts = self.0.borrow_mut();
        counts.ids.push(id);
        let all = counts.ids.len();
        let known = counts.groups.len();
        counts.groups.reserve(all - known);
    }

    /// True if the transaction is ending none.
    pub fn is_empty(&self) -> bool {
        self.0.borrow().ids.is_empty()
    }

    /// Returns how many of them the gate counts.
    pub(super) fn running(&self) -> u32 {
        self.0.borrow().running
    }

    /// Returns how many of them are counted in a group.
    pub(super) fn of_group(&self, lane: i32, hash: i64) -> u32 {
        let counts = self.0.borrow();
        counts.groups.binary_search_by_key(&(lane, hash), |group| group.0).map_or(0, |at| counts.groups[at].1)
    }

    /// Calls `f` with the hash of each group that some of them are in, in one lane.
    pub(super) fn each_group(&self, lane: i32, mut f: impl FnMut(i64)) {
        let counts = self.0.borrow();
        let from = counts.groups.partition_point(|group| group.0.0 < lane);
        counts.groups[from..].iter().take_while(|group| group.0.0 == lane).for_each(|group| f(group.0.1));
    }
}
