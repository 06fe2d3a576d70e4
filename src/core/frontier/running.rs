//! One entry per attempt that is taken: by an open transaction, by a worker that runs it, or by a
//! transaction that ends it.
//!
//! ```text
//! (absent) --take--> Taken --claim commits--> Running --end--> Ending --commits--> (absent)
//!             ^        |                         ^               |
//!             +-abort--+                         +----abort------+
//! ```
//!
//! A claim that ends in its own transaction goes from Taken to Ending and is `is_claimed` only after
//! the commit.

use super::{Place, Rank};

/// What the entry's owner is doing.
#[repr(u8)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// The slot is in the free list.
    #[default]
    Free,
    /// An open transaction has it and means to insert its claim.
    Taken,
    /// Its claim is committed; a worker runs it.
    Running,
    /// An open transaction means to insert its outcome.
    Ending,
}

/// A slot of the array; all zero is free.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Running {
    /// The attempt's id.
    pub id: i64,
    /// The instance (database and extension) it belongs to.
    pub instance: u32,
    /// Its lane.
    pub lane: i32,
    /// Its rank, to give it back in its place.
    pub rank: Rank,
    /// Where its row lies.
    pub place: Place,
    /// The longest lease it was given, in microseconds.
    pub lease: i64,
    /// When the lease ends, monotonic microseconds; counts only while `state` is `Running`.
    pub deadline: i64,
    /// The session whose open transaction has it (`Taken`, `Ending`).
    pub owner: u32,
    /// The session that claimed it; 0 when that is unknown or its connection has ended.
    pub session: u32,
    /// Process id of the claimer, for people.
    pub pid: i32,
    /// What is being done with it.
    pub state: State,
    /// 1: the claim ends with the claimer's connection.
    pub bound: u8,
    /// 1: the claim is committed.
    pub claimed: u8,
    pub(super) timed: u8,
    pub(super) child: u32,
    pub(super) next: u32,
    pub(super) prev: u32,
}
