//! The slot of a lane: its part of `ready`, the scan position P, and its groups.
//!
//! Invariant: no unread attempt ranks before `horizon`.

use super::rank::Rank;
use super::slot::{GateSlot, GroupSlot, NodeSlot, SessionSlot, of};
use super::slots::Entry;
use super::turns::Turns;

/// A lane's slot. All zero is a free slot.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Lane {
    pub(super) instance: u32,
    pub(super) id: i32,
    pub(super) used: u8,
    pub(super) paused: u8,
    pub(super) position: Rank,
    /// The refill's flag: the session that reads. `None`: the flag is down.
    pub(super) refiller: Option<SessionSlot>,
    /// The refill has read everything up to this rank.
    pub(super) read: Rank,
    /// The smallest position to which spills would have moved P since the flag went up.
    pub(super) spill: Rank,
    /// 1: the lane was invalidated after the flag went up, or the refill goes on where such a refill ended.
    pub(super) invalidated: u8,
    /// 1: an invalidation came during the last refill, and no entry of `ready` ranks at or before what that refill has
    /// read, so the next one begins at `lenient`. Otherwise no refill would get past many ended attempts while memory
    /// is invalidated again and again.
    pub(super) goes_on: u8,
    /// 1: a refill has ended since the lane was invalidated, and nothing was handed out since.
    pub(super) is_fresh: u8,
    /// How far the last refill has read, if the lane was invalidated during it. Entries up to this rank are handed out
    /// nevertheless. Otherwise no session would get a job while memory is invalidated again and again.
    pub(super) lenient: Rank,
    pub(super) head: u32,
    pub(super) len: u32,
    pub(super) waiters_first: Option<NodeSlot>,
    pub(super) waiters_last: Option<NodeSlot>,
    pub(super) last_used: u64,
    /// The monotonic time until which no job of it starts: a worker has throttled its queue. 0: it is not throttled.
    pub(super) closed_until: i64,
    /// Its queue's gate. `None`: there is no gate, or no claim from this lane has passed it yet.
    pub(super) gate: Option<GateSlot>,
    pub(super) groups: Lists,
    pub(super) collected: Collected,
}

impl Entry for Lane {
    type Of = of::Lane;
}

impl Lane {
    pub(super) fn is_used(&self) -> bool {
        self.used != 0
    }

    /// True if attempts may lie behind P.
    pub(super) fn has_more(&self) -> bool {
        self.position < Rank::MAX
    }

    /// True if a session is reading attempts that may be taken next. Until it has ended, no session can know that there
    /// is no job.
    pub(super) fn is_read(&self) -> bool {
        self.refiller.is_some() || self.groups.serving != 0
    }

    /// Moves P back to this position, so that everything behind it is read again. During a refill it moves the spill
    /// mark instead.
    pub(super) fn go_back(&mut self, position: Rank) {
        let mark = if self.refiller.is_some() { &mut self.spill } else { &mut self.position };
        *mark = (*mark).min(position);
        self.lenient = self.lenient.min(position);
    }

    /// Moves P before everything, so that the whole index is read again. Attempts that the last refill has put into
    /// `ready` are handed out nevertheless, if no session has had the time to take any of them. This does not hold for
    /// entries behind an attempt that has left memory since.
    pub(super) fn invalidate(&mut self) {
        if self.is_fresh != 0 && self.len > 0 {
            let known_to = if self.refiller.is_some() { self.position.min(self.spill) } else { self.position };
            self.lenient = self.lenient.max(known_to);
        }
        self.is_fresh = 0;
        self.position = Rank::MIN;
        self.invalidated = u8::from(self.refiller.is_some());
    }

    /// Returns the horizon: no unread attempt ranks before it, so the entries of `ready` up to it are the smallest of
    /// the lane.
    pub(super) fn horizon(&self) -> Rank {
        if self.refiller.is_some() && self.invalidated == 0 { self.read.min(self.spill) } else { self.position }
    }

    /// Returns the rank up to which entries of `ready` are handed out.
    pub(super) fn limit(&self) -> Rank {
        self.horizon().max(self.lenient)
    }

    /// True if an attempt of this rank that is pushed now belongs into `ready`. Otherwise it ranks behind P, and no
    /// session is reading there.
    pub(super) fn keeps(&self, rank: Rank) -> bool {
        self.refiller.is_some() || rank <= self.position.max(self.lenient)
    }

    /// Returns how many jobs may start, of those that memory knows. A group that has a turn counts as one.
    pub(super) fn known(&self) -> u32 {
        self.len + self.groups.turns.len()
    }

    /// Counts a job that comes. If it is the first one of a batch, the batch begins. What a claim takes does not count
    /// here, as it may take a batch in several holds of the lock.
    pub(super) fn count_in_batch(&mut self, now: i64) {
        let is_alone = self.known() == 0;
        let collected = &mut self.collected;
        if is_alone {
            collected.first_since = now;
        }
        if is_alone || collected.count >= collected.batch {
            (collected.since, collected.count) = (now, 0);
        }
        collected.count += 1;
    }

    /// True if a look may find a job: in `ready`, in a group whose turn it is, or behind P.
    pub(super) fn may_have_jobs(&self) -> bool {
        self.len > 0 || self.position < Rank::MAX || !self.groups.turns.is_empty()
    }
}

/// How a lane's jobs are collected into batches: see `collect`. All zero: no call has lingered.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Collected {
    /// How many jobs make a batch. 0: no call has lingered.
    pub(super) batch: u32,
    /// The session that sleeps until there is a batch, or was woken for one. `None`: there is none.
    pub(super) collector: Option<SessionSlot>,
    /// The monotonic time at which the first job of the newest batch came.
    pub(super) since: i64,
    /// How many jobs of the newest batch have come.
    pub(super) count: u32,
    /// The monotonic time at which a job came while there was none.
    pub(super) first_since: i64,
}

/// The lists of a lane's groups.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Lists {
    /// The groups that may start a job.
    pub(super) turns: Turns,
    /// The groups that a session serves and that must come before larger priorities.
    pub(super) in_way: Turns,
    /// The first and the last group of the idle list.
    pub(super) idle: (Option<GroupSlot>, Option<GroupSlot>),
    /// How many of the lane's groups are being served.
    pub(super) serving: u32,
    /// How many attempts of this lane were handed out.
    pub(super) served: u64,
    /// The pass of the group whose job was handed out last, before the charge for it.
    pub(super) pass: u64,
    /// 1: if a group has a turn, the next hand-out is that group's.
    pub(super) is_groups_turn: u8,
    /// 1: a group was forgotten since the last hand-out to make room for another one.
    pub(super) is_short: u8,
}

impl Lists {
    /// Counts a hand-out.
    pub(super) fn handed_out(&mut self) {
        self.served += 1;
        self.is_groups_turn ^= 1;
        self.is_short = 0;
    }
}
