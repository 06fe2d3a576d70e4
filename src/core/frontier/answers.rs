//! The answers of the frontier.

use super::rank::Rank;
use super::ready::Ready;
use super::running::Running;

/// The answer of [`super::Frontier::take_to`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// Attempts were taken.
    Some {
        /// How many.
        taken: usize,
        /// Whether the caller should refill: `ready` is less than half full, and the index has more.
        refill: bool,
    },
    /// Memory has nothing, and P is not at the end. The caller should refill.
    Refill,
    /// Memory has nothing, and another session is reading. The caller should wait and look again.
    Refilling,
    /// Nothing is ready.
    Empty,
    /// There is a job, but `running` has no place for one more of this lane, of this instance, or at all.
    NoPlace,
    /// There is a job, but no slot for its group. No wake-up reports a free slot, so the caller must not wait for one.
    Full,
    /// There is no slot for the lane: sessions that wait or refill use all slots.
    NoLane,
    /// A limit of the queue is reached.
    Closed,
    /// There is no slot for the gate that counts a limited queue.
    NoGate,
    /// It is a group's turn. The caller serves the group and calls [`super::Frontier::turn_end`], also after an error.
    Turn(Turn),
    /// The next attempt must wait for its group and is not in the groups' index yet. The caller continues with
    /// [`super::Frontier::index_begin`].
    Index,
}

/// The answer of [`super::Frontier::collect`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collect {
    /// The caller must take what is there, and call [`super::Frontier::stop_waiting`] afterwards.
    Take,
    /// Memory may not know all jobs. The caller should refill, and ask again.
    Read,
    /// The session is listed.
    Sleep {
        /// The monotonic time at which the batch is due. `None`: another session collects it.
        due: Option<i64>,
        /// A session to wake.
        next: Option<u32>,
    },
}

/// What is known of a lane before a claim from several lanes takes from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The rank of the next attempt. For a group's turn it is a lower bound.
    Ready(Rank),
    /// Memory has nothing, and P is not at the end: only a refill can say.
    Unread,
    /// Memory has nothing, and this claim cannot read on: another session is reading, or P is at the end.
    Nothing,
}

/// The turn of a group. The session takes a snapshot after this answer and reads the group's index behind `after`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The hash of the group.
    pub group: i64,
    /// Everything up to this rank has been read already.
    pub after: Rank,
    /// The urgency with which the group came first. Attempts of this priority are taken in any case.
    pub urgency: i32,
    /// The largest priority to take. Before larger ones, unread attempts or another lane may come.
    pub up_to: i32,
    /// True if an attempt of a strict group that must run before all others may be waiting. The session looks for it.
    pub must_look: bool,
    /// How many attempts the group may start now, at most as many as the session asks for. The session need not read
    /// more, except for `ahead`.
    pub wanted: usize,
    /// How many attempts beyond those the session should read: later claims take them.
    pub ahead: usize,
}

/// The attempts that a session has found for a group's turn.
#[derive(Clone, Copy, Debug)]
pub struct Served<'a> {
    /// The turn, as the session has got it.
    pub turn: Turn,
    /// The waiting attempts, in order.
    pub found: &'a [Ready],
    /// The session has read everything up to this rank. [`Rank::MAX`]: everything.
    pub read_to: Rank,
    /// Whether an attempt that is not due must run before all others.
    pub is_held: bool,
    /// True if the session has looked for an attempt that must run before all others, and there is none.
    pub is_free: bool,
}

/// The answer to a request to take one given attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeOne {
    /// The caller's transaction has it now.
    Taken,
    /// It is already taken. Its entry says by which session.
    Busy,
    /// `running` is full.
    Full,
}

/// The answer to a request to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The session stands in the lists of all its lanes and may sleep.
    Sleep,
    /// One of the lanes may have a job now. The session should look again.
    Look,
    /// There is no slot for one of the lanes. Either sessions that wait or refill, this one included, use all slots, or
    /// the instance has used up its share of lanes that are waited for.
    NoLane,
}

/// The answer to a session that asks for an attempt, to end it or to write about it.
#[derive(Clone, Copy, Debug)]
pub enum Hold {
    /// The caller may do so.
    Yours(Running),
    /// The caller has no right to the attempts of this lane.
    Denied(i32),
    /// Another open transaction has taken it, mostly by a claim.
    Taken(Running),
    /// The caller's own transaction has ended it.
    Mine,
    /// Another open transaction is ending it. The entry has the process id of the claimer.
    Busy(Running),
    /// Its deadline is later than the one that the caller has seen.
    Later,
    /// Memory does not have it, or no session has claimed it. The caller must read the logs.
    Unknown,
}
