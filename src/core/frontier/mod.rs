//! The frontier: which attempt is next, what is running, which sessions wait. It is a cache of the logs and may be
//! thrown away at any time; the keys of the logs are the guard. The caller holds one lock around every call. Nothing
//! here allocates memory or fails.
//!
//! Each **lane** (instance, queue, stage) has a bounded list `ready` and the scan position P. How both are kept, by
//! *pushes*, *spills* and *refills*, is in docs/internals/frontier.md.
//!
//! Invariant: every committed waiting attempt that is due is in `ready`, or in `running`, or ranks behind P in the
//! lane's index. A lane without a slot reads as P before everything.

mod claims;
mod deadlines;
mod ending;
mod gate;
mod group_index;
mod groups;
pub mod index;
mod lanes;
mod push;
mod rates;
mod ready;
mod refill;
mod running;
mod serving;
mod several;
mod take;
mod turns;
mod waiters;
mod window;

pub use ending::Ending;
pub use gate::{Claimer, GATE_LANES, Gate, Limits};
use groups::Lists;
pub use groups::{Group, Served, Turn};
use index::Bucket;
pub use rates::{NODES_PER_RATE, PastStart, Rate, Starts};
pub use ready::Ready;
pub use running::{MISSED_CANCEL, MISSED_RERUN, Running, State};
pub use several::Lanes;
use turns::Turns;
pub use waiters::{LANES as WAIT_LANES, Session};

/// The order in which ready attempts run: smaller first.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// The job's priority.
    pub priority: i32,
    /// The job's id. Jobs run in the order in which they were enqueued, and a retried job keeps its place.
    pub job_id: i64,
}

impl Rank {
    /// Before every attempt.
    pub const MIN: Rank = Rank { priority: i32::MIN, job_id: i64::MIN };
    /// Behind every attempt.
    pub const MAX: Rank = Rank { priority: i32::MAX, job_id: i64::MAX };

    /// The position that lies just before this rank.
    pub fn before(self) -> Rank {
        Rank { priority: self.priority, job_id: self.job_id - 1 }
    }
}

/// Where an attempt's row lies: segment, block and offset.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Block number in the segment's attempt table.
    pub block: u32,
    /// Line pointer in the block.
    pub offset: u16,
    /// The segment.
    pub segment: u8,
    /// Whether the row there is in its group's index.
    pub is_indexed: bool,
}

/// A lane's slot. All zero is a free slot.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Lane {
    instance: u32,
    id: i32,
    used: u8,
    paused: u8,
    position: Rank,
    /// The flag of a refill: the number of the session that reads, plus one. 0: the flag is down.
    refiller: u32,
    /// The refill has read everything up to this rank.
    read: Rank,
    /// The smallest position to which spills would have moved P since the flag went up.
    spill: Rank,
    /// 1: the lane was invalidated after the flag went up, or the refill goes on where such a refill ended.
    invalidated: u8,
    /// 1: the last refill was overtaken by an invalidation and has found nothing, so the next one begins at `lenient`.
    /// Otherwise no refill would get past many ended attempts while memory is invalidated again and again.
    goes_on: u8,
    /// 1: a refill has ended since the lane was invalidated, and nothing was handed out since.
    is_fresh: u8,
    /// If the lane was invalidated during the last refill: how far that has read. Entries up to this rank are handed
    /// out nevertheless, as otherwise no session would get a job while memory is invalidated again and again.
    lenient: Rank,
    head: u32,
    len: u32,
    waiters_first: u32,
    waiters_last: u32,
    last_used: u64,
    /// The slot of its queue's gate, plus one. 0: there is none, or no claim from this lane has passed it yet.
    gate: u32,
    groups: Lists,
}

impl Lane {
    fn is_used(&self) -> bool {
        self.used != 0
    }

    /// Whether something may lie behind P.
    fn has_more(&self) -> bool {
        self.position < Rank::MAX
    }

    /// Whether a session is reading what may be taken next, so that it is too early to say that there is nothing.
    fn is_read(&self) -> bool {
        self.refiller != 0 || self.groups.serving != 0
    }

    /// Moves P, or during a refill its spill mark, back to this position, so that everything behind it is read again.
    fn go_back(&mut self, position: Rank) {
        let mark = if self.refiller != 0 { &mut self.spill } else { &mut self.position };
        *mark = (*mark).min(position);
        self.lenient = self.lenient.min(position);
    }

    /// Moves P before everything, so that the whole index is read again. What the last refill has put into `ready` is
    /// handed out nevertheless, if no session has had the time to take any of it.
    fn invalidate(&mut self) {
        if self.is_fresh != 0 && self.len > 0 {
            self.lenient = self.lenient.max(self.position);
        }
        self.is_fresh = 0;
        self.position = Rank::MIN;
        self.invalidated = u8::from(self.refiller != 0);
    }

    /// The horizon: nothing that is unread ranks before it, so entries of `ready` up to it are the smallest there are.
    fn horizon(&self) -> Rank {
        if self.refiller != 0 && self.invalidated == 0 { self.read.min(self.spill) } else { self.position }
    }

    /// The rank up to which entries of `ready` are handed out.
    fn limit(&self) -> Rank {
        self.horizon().max(self.lenient)
    }

    /// Whether an attempt of this rank that is pushed now belongs into `ready`. Otherwise it is behind P, and no
    /// session is reading there.
    fn keeps(&self, rank: Rank) -> bool {
        self.refiller != 0 || rank <= self.position.max(self.lenient)
    }

    /// Whether a look may find a job: in `ready`, in a group whose turn it is, or behind P.
    fn may_have_jobs(&self) -> bool {
        self.len > 0 || self.position < Rank::MAX || !self.groups.turns.is_empty()
    }
}

/// Numbers of what is in use, and free lists. All zero is a valid start.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Head {
    clock: u64,
    /// The first free slot of `running` that was used before, plus one. 0: there is none.
    free: u32,
    /// The first slot of `running` that was never used, as are all behind it.
    fresh: u32,
    /// How many entries of `running` are in use.
    pub running: u32,
    /// How many lanes are in use.
    pub lanes: u32,
    /// How many gates are in use.
    pub gates: u32,
    /// How often a gate was made or thrown away.
    gate_changes: u32,
    /// How many groups are in use.
    pub groups: u32,
    /// How many groups a session serves.
    servers: u32,
    /// The same as `free` and `fresh`, for groups.
    free_group: u32,
    fresh_groups: u32,
    /// The present time, in monotonic microseconds. The caller sets it before each call while there are `rates`.
    pub now: i64,
    /// The monotonic time before which no gate opens that a rate has closed. 0: there is no such gate.
    opens_at: i64,
    /// The groups that have something waiting and are at their rate, of all lanes, in the order in which they may start
    /// something again.
    resting: Turns,
    /// How many records of groups' starts are in use; free lists as above; up to which slot the last look for old ones
    /// has come; before when none is free if there was none.
    pub rates: u32,
    free_rate: u32,
    fresh_rates: u32,
    rates_hand: u32,
    rates_free_at: i64,
    /// The same for the pool of older starts.
    starts: u32,
    free_start: u32,
    fresh_starts: u32,
    /// How many lanes have waiting sessions.
    waited: u32,
    /// How many buckets of the index of `running` count what parties hold ([`crate::share`]).
    parties: u32,
    /// 1: there may be a session that sleeps although there is a job, for want of a place in `running`.
    is_short: u8,
}

/// The root of one instance's deadlines. The caller keeps it in the instance's slot.
pub type DeadlineRoot = u32;

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

/// The frontier, laid over memory of the caller. See the head of this file.
pub struct Frontier<'a> {
    /// Numbers of what is in use, and free lists.
    pub head: &'a mut Head,
    /// The slots of lanes.
    pub lanes: &'a mut [Lane],
    /// The index of `lanes`, with as many buckets as [`index::buckets_for`] says.
    pub lane_index: &'a mut [Bucket],
    /// The `ready` of all lanes, an equal part for each.
    pub ready: &'a mut [Ready],
    /// An entry for each attempt that is taken.
    pub running: &'a mut [Running],
    /// The index of `running`, with as many buckets as [`index::buckets_for`] says.
    pub running_index: &'a mut [Bucket],
    /// The sessions that may wait.
    pub sessions: &'a mut [Session],
    /// The gates of limited queues.
    pub gates: &'a mut [Gate],
    /// The groups of which something runs, or that wait for their turn.
    pub groups: &'a mut [Group],
    /// The index of `groups`, with as many buckets as [`index::buckets_for`] says.
    pub group_index: &'a mut [Bucket],
    /// What has started of groups that have a rate.
    pub rates: &'a mut [Rate],
    /// The index of `rates`, with as many buckets as [`index::buckets_for`] says.
    pub rate_index: &'a mut [Bucket],
    /// The pool of older starts.
    pub starts: &'a mut [Starts],
}

#[cfg(test)]
mod tests;
