//! The frontier as it lies in memory of the caller.
//!
//! Responsible for what there is. Not responsible for what each slot holds: see the files of the slots.
//!
//! Invariant: all zero is a valid start.

use super::group::Group;
use super::index::Bucket;
use super::lane::Lane;
use super::limits::Gate;
use super::ready::Ready;
use super::running::Running;
use super::session::Session;
use super::starts::{Rate, Starts};
use super::turns::Turns;

/// Numbers of what is in use, and free lists. All zero is a valid start.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Head {
    pub(super) clock: u64,
    /// The first free slot of `running` that was used before, plus one. 0: there is none.
    pub(super) free: u32,
    /// The first slot of `running` that was never used, as are all behind it.
    pub(super) fresh: u32,
    /// How many entries of `running` are in use.
    pub running: u32,
    /// How many lanes are in use.
    pub lanes: u32,
    /// How many gates are in use.
    pub gates: u32,
    /// How often a gate was made or thrown away.
    pub(super) gate_changes: u32,
    /// How many groups are in use.
    pub groups: u32,
    /// How many groups a session serves.
    pub(super) servers: u32,
    /// The same as `free` and `fresh`, for groups.
    pub(super) free_group: u32,
    pub(super) fresh_groups: u32,
    /// The present time, in monotonic microseconds. The caller sets it before each call while there are `rates`.
    pub now: i64,
    /// The monotonic time before which no gate opens that a rate has closed. 0: there is no such gate.
    pub(super) opens_at: i64,
    /// The groups that have something waiting and are at their rate, of all lanes, in the order in which they may start
    /// something again.
    pub(super) resting: Turns,
    /// How many records of groups' starts are in use; free lists as above; up to which slot the last look for old ones
    /// has come; before when none is free if there was none.
    pub rates: u32,
    pub(super) free_rate: u32,
    pub(super) fresh_rates: u32,
    pub(super) rates_hand: u32,
    pub(super) rates_free_at: i64,
    /// The same for the pool of older starts.
    pub(super) starts: u32,
    pub(super) free_start: u32,
    pub(super) fresh_starts: u32,
    /// How many lanes have waiting sessions.
    pub(super) waited: u32,
    /// How many buckets of the index of `running` count what parties hold ([`crate::share`]).
    pub(super) parties: u32,
    /// 1: there may be a session that sleeps although there is a job, for want of a place in `running`.
    pub(super) is_short: u8,
}

/// The root of one instance's deadlines. The caller keeps it in the instance's slot.
pub type DeadlineRoot = u32;

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
