//! The parts of the frontier, and their memory, which is the caller's.
//!
//! Responsible for which parts there are. Not responsible for what a slot holds: see the file of each slot type.
//!
//! Invariant: all zero is a valid start.

use super::ahead::Ahead;
use super::gate_set::{GateSet, GatesHead};
use super::group::Group;
use super::group_set::{GroupSet, GroupsHead};
use super::index::Bucket;
use super::lane::Lane;
use super::lane_set::{LaneSet, LanesHead};
use super::limits::Gate;
use super::ready::Ready;
use super::retries::Retrying;
use super::running::Running;
use super::running_set::{RunningHead, RunningSet};
use super::session::Session;
use super::session_set::{SessionSet, SessionsHead};
use super::start_set::{StartSet, StartsHead};
use super::starts::{Rate, Starts};

/// The present time, and for each part its counts of used slots and its free lists. All zero is a valid start.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Head {
    /// The present time, in monotonic microseconds. The caller sets it before each call if [`Self::needs_now`].
    pub now: i64,
    pub(super) lanes: LanesHead,
    pub(super) running: RunningHead,
    pub(super) groups: GroupsHead,
    pub(super) gates: GatesHead,
    pub(super) starts: StartsHead,
    pub(super) sessions: SessionsHead,
}

impl Head {
    /// True if `now` must be set before each call.
    pub fn needs_now(&self) -> bool {
        self.starts.used > 0 || self.lanes.collected > 0 || self.lanes.opens_at != 0 || self.groups.throttled > 0
    }
}

/// The arrays of the frontier, in memory of the caller.
pub struct Arrays<'a> {
    /// Counts of used slots, free lists, and the clock.
    pub head: &'a mut Head,
    /// The slots of lanes.
    pub lanes: &'a mut [Lane],
    /// The index of `lanes`, with as many buckets as [`super::index::buckets_for`] says.
    pub lane_index: &'a mut [Bucket],
    /// The `ready` of all lanes, an equal part for each.
    pub ready: &'a mut [Ready],
    /// An entry for each taken attempt.
    pub running: &'a mut [Running],
    /// The index of `running`, with as many buckets as [`super::index::buckets_for`] says.
    pub running_index: &'a mut [Bucket],
    /// The sessions that may wait.
    pub sessions: &'a mut [Session],
    /// The gates of limited queues.
    pub gates: &'a mut [Gate],
    /// The managed groups: they have running jobs, or were served recently, or wait for a turn.
    pub groups: &'a mut [Group],
    /// The index of `groups`, with as many buckets as [`super::index::buckets_for`] says.
    pub group_index: &'a mut [Bucket],
    /// The attempts that turns of groups have read ahead.
    pub ahead: &'a mut [Ahead],
    /// The starts of groups that have a rate.
    pub rates: &'a mut [Rate],
    /// The index of `rates`, with as many buckets as [`super::index::buckets_for`] says.
    pub rate_index: &'a mut [Bucket],
    /// The pool of older starts.
    pub starts: &'a mut [Starts],
    /// The retrying groups of strict queues.
    pub retrying: &'a mut [Retrying],
    /// The index of `retrying`, with as many buckets as [`super::index::buckets_for`] says.
    pub retrying_index: &'a mut [Bucket],
}

/// What waits, and what of it may start: all parts but the taken attempts and the sessions.
pub struct Backlog<'a> {
    /// The present time, in monotonic microseconds.
    pub(super) now: &'a mut i64,
    /// The lanes.
    pub lanes: LaneSet<'a>,
    /// The managed groups.
    pub(super) groups: GroupSet<'a>,
    /// The gates of limited queues.
    pub gates: GateSet<'a>,
    /// What has started of groups that have a rate.
    pub starts: StartSet<'a>,
}

/// The frontier, in memory of the caller. See the head of `frontier`.
pub struct Frontier<'a> {
    /// What waits.
    pub backlog: Backlog<'a>,
    /// The taken attempts.
    pub running: RunningSet<'a>,
    /// The sessions that may wait.
    pub sessions: SessionSet<'a>,
}

impl<'a> Frontier<'a> {
    /// Lays the frontier over its arrays.
    #[inline]
    pub fn over(arrays: Arrays<'a>) -> Self {
        let Head { now, lanes, running, groups, gates, starts, sessions } = arrays.head;
        let backlog = Backlog {
            now,
            lanes: LaneSet::new(lanes, arrays.lanes, arrays.lane_index, arrays.ready),
            groups: GroupSet::new(groups, arrays.groups, arrays.group_index, arrays.ahead),
            gates: GateSet::new(gates, arrays.gates, arrays.retrying, arrays.retrying_index),
            starts: StartSet::new(starts, arrays.rates, arrays.rate_index, arrays.starts),
        };
        Self {
            backlog,
            running: RunningSet::new(running, arrays.running, arrays.running_index),
            sessions: SessionSet::new(sessions, arrays.sessions),
        }
    }
}
