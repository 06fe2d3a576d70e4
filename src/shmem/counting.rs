//! The state of an instance's counters: *Unknown*, *Counting* or *Known*. It says whether they can be relied on. See
//! docs/internals/counting.md.
//!
//! Responsible for the state. Not responsible for a recount (`recount`), for what a commit adds
//! (`transaction::commit_counts`), nor for the counters themselves (`pg_queue_core::counter`).
//!
//! Invariant: a state changes only under the frontier's lock. In state *Known* the counters equal the logs, except for
//! commits whose callback has not yet taken the lock.

use std::cell::Cell;

/// How far the counters can be relied on.
///
/// ```text
/// Unknown --recount begins--> Counting --recount merges--> Known
///    ^                           |                           |
///    +--------invalidate---------+--------invalidate---------+
/// ```
///
/// A recount begins in one hold of the frontier's lock: it empties the counters and takes a snapshot. A commit becomes
/// visible before its callback takes the lock, and the whole recount may lie in between. So a callback that finds the
/// state *Counting* or *Known* belongs to one of two kinds of transactions. If the snapshot sees the transaction, the
/// recount has its rows, and the callback adds nothing. If the snapshot does not see it, the recount has none of its
/// rows, and the callback adds everything.
///
/// Changes that no callback reports invalidate the counters: changes before a start, foreign writes, prepared
/// transactions. Until the next recount is done, a query counts the rows.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum State {
    /// Nothing is known.
    #[default]
    Unknown = 0,
    /// The counters include the transactions that the recount's snapshot does not see. A session is counting the rows
    /// that the snapshot sees.
    Counting,
    /// The counters equal the logs.
    Known,
}

/// The state of an instance's counters. `Instance` and `recount` change it.
#[derive(Clone, Copy, Debug, Default)]
pub struct CounterState {
    pub state: State,
    /// Counts the invalidations, so that an invalidation voids a recount that began earlier.
    pub invalidations: u64,
    /// True if there are more lanes than counters, so that nothing is counted.
    pub is_full: bool,
    /// True if a transaction that has enqueued was prepared, and may still be committed.
    pub has_prepared: bool,
    /// The monotonic time before which no recount begins.
    pub next_at: i64,
    /// The xmin of the last recount's snapshot. The transactions in progress are in `Shared::horizons`.
    pub xmin: u64,
    /// The xmax of that snapshot.
    pub xmax: u64,
    /// The number of transactions in progress for that snapshot.
    pub in_progress: u32,
}

impl CounterState {
    /// True if the counters equal the logs.
    pub fn is_known(&self) -> bool {
        self.state == State::Known
    }

    /// True if there are more lanes than counters, so that nothing is counted.
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// Returns the monotonic time at which the worker should recount. `i64::MAX`: it should not.
    pub fn count_at(&self) -> i64 {
        if self.state == State::Unknown && !self.is_full { self.next_at } else { i64::MAX }
    }
}

thread_local! {
    /// The instance that this session is counting, by its number. 0: none.
    pub static COUNTING: Cell<u32> = const { Cell::new(0) };
}
