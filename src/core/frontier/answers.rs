//! What the frontier answers.

use super::rank::Rank;
use super::ready::Ready;
use super::running::Running;

/// The answer of [`Frontier::take`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// Attempts were taken.
    Some {
        /// How many.
        taken: usize,
        /// Whether the caller should refill: less than half of `ready` is left, and the index has more.
        refill: bool,
    },
    /// Nothing is in memory, and P is not at the end. The caller should refill.
    Refill,
    /// Nothing is in memory, and another session is reading. The caller should wait, then look again.
    Refilling,
    /// Nothing is ready.
    Empty,
    /// There is a job, but no place in `running` for one more of this lane, of this instance, or at all.
    NoPlace,
    /// There is a job, but no slot for its group. As no wake-up reports a free one, the caller must not wait for it.
    Full,
    /// There is no slot for the lane: all are in use by sessions that wait or refill.
    NoLane,
    /// A limit of the queue is reached.
    Closed,
    /// There is no slot for the gate that counts a limited queue.
    NoGate,
    /// It is a group's turn. The caller serves it and calls [`Frontier::turn_end`], also after an error.
    Turn(Turn),
    /// What comes next has to wait for its group and is not yet in the group's index. The caller continues with
    /// [`Frontier::index_begin`].
    Index,
}

/// What is known of a lane before a claim takes from it, for a claim from several lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The rank of what comes next. If that belongs to a group whose turn it is, it does not rank before this.
    Ready(Rank),
    /// Nothing is known in memory, and P is not at the end: a refill will tell.
    Unread,
    /// Nothing is known, and this claim cannot read on: another session does, or P is at the end.
    Nothing,
}

/// The turn of a group. The session reads the group's index behind `after`, with a snapshot that it takes later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The hash of the group.
    pub group: i64,
    /// Everything up to this rank was read before.
    pub after: Rank,
    /// The urgency with which the group came first: what has it is taken in any case.
    pub urgency: i32,
    /// Nothing of a larger priority is taken, as something unread, or another lane, may come first.
    pub up_to: i32,
}

/// What a session has found for a group's turn.
#[derive(Clone, Copy, Debug)]
pub struct Served<'a> {
    /// The waiting attempts, in order.
    pub found: &'a [Ready],
    /// Everything up to this rank was looked at. [`Rank::MAX`]: all.
    pub read_to: Rank,
    /// Whether an attempt that is not due has to run before all others.
    pub is_held: bool,
}

/// The answer to a request to take one given attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeOne {
    /// The caller's transaction has it now.
    Taken,
    /// It is already taken: see its entry.
    Busy,
    /// `running` is full.
    Full,
}

/// The answer to a request to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The session stands in the lists of all its lanes and may sleep.
    Sleep,
    /// One of the lanes may have a job by now. The session should look again.
    Look,
    /// There is no slot for one of the lanes: all are in use by sessions that wait or refill, this one included; or
    /// sessions of this instance wait for so many lanes that the others are left to other instances.
    NoLane,
}

/// The answer to a request to end an attempt.
#[derive(Clone, Copy, Debug)]
pub enum End {
    /// The caller may insert the outcome.
    Yours(Running),
    /// Another open transaction has it. Its process id is in the entry.
    Busy(Running),
    /// It is not in memory, or no session has claimed it: the logs have the answer.
    Unknown,
}
