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

use super::{Place, Rank, Ready};

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
    /// The hash of its group; 0: it has none.
    pub group: i64,
    /// The lease of its claim, in microseconds: what a plain heartbeat grants again.
    pub lease: i64,
    /// The longest lease it was given; a longer one is noted in the log.
    pub longest: i64,
    /// When the lease ends, monotonic microseconds; counts only while `state` is `Running`.
    pub deadline: i64,
    /// The session whose open transaction has it (`Taken`, `Ending`).
    pub owner: u32,
    /// Number plus one of the session that claimed it; 0 when that is unknown or its connection has ended.
    pub session: u32,
    /// Process id of the claimer, for people.
    pub pid: i32,
    /// What is being done with it.
    pub state: State,
    /// 1: the claim ends with the claimer's connection.
    pub bound: u8,
    /// 1: the claim is committed.
    pub claimed: u8,
    /// 1: somebody asked for it to be cancelled.
    pub cancel: u8,
    /// 1: somebody asked for another run of the job.
    pub rerun: u8,
    /// What was asked after somebody had begun to end this one, who may not know of it: [`LATE_RERUN`], [`LATE_CANCEL`].
    pub late: u8,
    /// 1: nobody means to run it: it was taken to be ended.
    pub system: u8,
    /// 1: it was not due when it was taken.
    pub(super) early: u8,
    /// 1: it has not begun to use up its queue's rate.
    pub(super) token: u8,
    /// 1: its group counts it.
    pub(super) grouped: u8,
    /// Its queue's gate, which counts it: the slot plus one.
    pub(super) gate: u32,
    /// 1: while it was taken somebody wanted to push it.
    pub(super) again: u8,
    pub(super) timed: u8,
    pub(super) child: u32,
    pub(super) next: u32,
    pub(super) prev: u32,
}

/// In `Running::late`: another run of the job.
pub const LATE_RERUN: u8 = 1;
/// In `Running::late`: that it be cancelled.
pub const LATE_CANCEL: u8 = 2;

impl Running {
    /// Nobody claimed it, nobody is about to, and it is to be cancelled; kept here so that nobody takes it
    /// to run it.
    pub fn is_doomed(&self) -> bool {
        self.state == State::Running && self.claimed == 0
    }
}

impl Running {
    /// An attempt that the open transaction of `owner` takes.
    pub(super) fn taken(instance: u32, lane: i32, owner: u32, pid: i32, entry: Ready) -> Self {
        let Ready { rank, id, place, group } = entry;
        let session = owner + 1;
        Self { id, instance, lane, rank, place, group, owner, session, pid, state: State::Taken, ..Self::default() }
    }

    /// As it goes back to `ready`.
    pub fn ready(&self) -> Ready {
        Ready { rank: self.rank, id: self.id, place: self.place, group: self.group }
    }

    /// Something was asked, this very moment.
    pub(super) fn note_late(&mut self, what: u8) {
        if self.state == State::Ending {
            self.late |= what;
        }
    }

    /// An entry for this attempt that says nothing yet.
    pub fn of(id: i64) -> Self {
        Self { id, ..Self::default() }
    }
}
