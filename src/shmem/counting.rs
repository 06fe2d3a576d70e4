//! Whether the counters of an instance can be relied on: *Unknown*, *Counting* or *Known*. See
//! docs/internals/counting.md.
//!
//! Responsible for the state. Not responsible for a recount (`recount`), for what a commit adds
//! (`transaction::commit_counts`), nor for the counters themselves (`pg_queue_core::counter`).
//!
//! Invariant: a state changes under the frontier's lock only. While it is *Known*, the counters say what the logs say,
//! but for commits whose callback has not yet taken the lock.

use std::cell::Cell;

/// How much is known of the counters.
///
/// ```text
/// Unknown --recount begins--> Counting --recount merges--> Known
///    ^                           |                           |
///    +--------invalidate---------+--------invalidate---------+
/// ```
///
/// A recount begins in one hold of the frontier's lock: it empties the counters and takes a snapshot. A commit becomes
/// visible before its callback takes the lock. So a callback that finds the state *Counting* belongs to one of two
/// kinds of transactions. If the snapshot sees the transaction, the recount has its rows, and the callback adds
/// nothing. If the snapshot does not see it, the recount has none of its rows, and the callback adds everything.
///
/// Changes that no callback reports invalidate the counters: those before a start, foreign
/// writes, prepared transactions. Until the next recount is done, a query counts the rows.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum State {
    /// Nothing is known.
    #[default]
    Unknown = 0,
    /// The counters have the transactions that a snapshot does not see, and a session is counting the rows that it
    /// sees.
    Counting,
    /// The counters say what the logs say.
    Known,
}

/// The state of an instance's counters. `Instance` and `recount` change it.
#[derive(Clone, Copy, Debug, Default)]
pub struct CounterState {
    pub state: State,
    /// Counts the invalidations, so that a recount that began before one is void.
    pub invalidations: u64,
    /// Whether there are more lanes than counters, so that counting is of no use.
    pub is_full: bool,
    /// Whether a transaction that has enqueued was prepared, and may still be committed.
    pub has_prepared: bool,
    /// The monotonic time before which there is no new recount.
    pub next_at: i64,
    /// The xmin of the recount's snapshot. The transactions in progress are in `Shared::horizons`.
    pub xmin: u32,
    /// The xmax of that snapshot.
    pub xmax: u32,
    /// How many transactions were in progress for that snapshot.
    pub in_progress: u32,
}

impl CounterState {
    /// Whether the counters say what the logs say.
    pub fn is_known(&self) -> bool {
        self.state == State::Known
    }

    /// Whether there are more lanes than counters, so that nothing is counted.
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// Returns when, on the monotonic clock, the worker should count anew. `i64::MAX` if it should not.
    pub fn count_at(&self) -> i64 {
        if self.state == State::Unknown && !self.is_full { self.next_at } else { i64::MAX }
    }
}

thread_local! {
    /// The number of the instance that this session is counting; 0 if there is none.
    pub static COUNTING: Cell<u32> = const { Cell::new(0) };
}
