//! The parts of the frontier in memory of the caller.
//!
//! Responsible for which parts there are. Not responsible for what a slot holds: see the file of each slot type.
//!
//! Invariant: all zero is a valid start.

use super::ahead::Ahead;
use super::group::Group;
use super::index::Bucket;
use super::lane::Lane;
use super::limits::Gate;
use super::ready::Ready;
use super::retries::Retrying;
use super::running::{Running, RunningSlot};
use super::session::Session;
use super::slots::{FreeSlots, SlotIndex, Slots};
use super::starts::{Rate, Starts};
use super::turns::Turns;

/// Counts of used slots, free lists, and the clock. All zero is a valid start.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Head {
    pub(super) clock: u64,
    /// The free slots of `running`.
    pub(super) running_slots: FreeSlots<Running>,
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
    /// How many groups are being served by sessions.
    pub(super) servers: u32,
    pub(super) group_slots: FreeSlots<Group>,
    pub(super) ahead_slots: FreeSlots<Ahead>,
    /// The present time, in monotonic microseconds. The caller sets it before each call if [`Self::needs_now`].
    pub now: i64,
    /// The monotonic time before which no gate opens that a rate has closed. 0: no rate has closed a gate.
    pub(super) opens_at: i64,
    /// The groups of all lanes that have waiting jobs and are at their rate, in the order in which they may start jobs
    /// again.
    pub(super) resting: Turns,
    /// How many records of groups' starts are in use. `rates_hand` is the slot at which the next search for expired
    /// records begins. If none was free, none is before `rates_free_at`.
    pub rates: u32,
    pub(super) rate_slots: FreeSlots<Rate>,
    pub(super) rates_hand: u32,
    pub(super) rates_free_at: i64,
    /// As `rates`, for the pool of older starts.
    pub(super) starts: u32,
    pub(super) start_slots: FreeSlots<Starts>,
    /// How many groups are retrying.
    pub retrying: u32,
    pub(super) retrying_slots: FreeSlots<Retrying>,
    /// How many lanes a call has lingered for.
    pub(super) collected: u32,
    /// How many lanes have waiting sessions.
    pub(super) waited: u32,
    /// How many buckets of the index of `running` hold counts of parties ([`crate::share`]).
    pub(super) parties: u32,
    /// 1: a session may be sleeping although there is a job, because `running` had no place.
    pub(super) is_short: u8,
}

impl Head {
    /// True if `now` must be set before each call.
    pub fn needs_now(&self) -> bool {
        self.rates > 0 || self.collected > 0
    }
}

/// The root of one instance's deadlines. The caller keeps it in the instance's slot.
pub type DeadlineRoot = Option<RunningSlot>;

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

/// The frontier, in memory of the caller. See the head of `frontier`.
pub struct Frontier<'a> {
    /// Counts of used slots, free lists, and the clock.
    pub head: &'a mut Head,
    /// The slots of lanes.
    pub(super) lanes: Slots<'a, Lane>,
    /// The index of `lanes`.
    pub(super) lane_index: SlotIndex<'a, Lane>,
    /// The `ready` of all lanes, an equal part for each.
    pub ready: &'a mut [Ready],
    /// An entry for each taken attempt.
    pub(super) running: Slots<'a, Running>,
    /// The index of `running`.
    pub(super) running_index: SlotIndex<'a, Running>,
    /// The sessions that may wait.
    pub(super) sessions: Slots<'a, Session>,
    /// The gates of limited queues.
    pub(super) gates: Slots<'a, Gate>,
    /// The managed groups: they have running jobs, or were served recently, or wait for a turn.
    pub(super) groups: Slots<'a, Group>,
    /// The index of `groups`.
    pub(super) group_index: SlotIndex<'a, Group>,
    /// The attempts that turns of groups have read ahead.
    pub(super) ahead: Slots<'a, Ahead>,
    /// The starts of groups that have a rate.
    pub(super) rates: Slots<'a, Rate>,
    /// The index of `rates`.
    pub(super) rate_index: SlotIndex<'a, Rate>,
    /// The pool of older starts.
    pub(super) starts: Slots<'a, Starts>,
    /// The retrying groups of strict queues.
    pub(super) retrying: Slots<'a, Retrying>,
    /// The index of `retrying`.
    pub(super) retrying_index: SlotIndex<'a, Retrying>,
}

impl<'a> Frontier<'a> {
    /// Lays the frontier over its arrays.
    #[inline]
    pub fn over(arrays: Arrays<'a>) -> Self {
        Self {
            head: arrays.head,
            lanes: Slots::new(arrays.lanes),
            lane_index: SlotIndex::new(arrays.lane_index),
            ready: arrays.ready,
            running: Slots::new(arrays.running),
            running_index: SlotIndex::new(arrays.running_index),
            sessions: Slots::new(arrays.sessions),
            gates: Slots::new(arrays.gates),
            groups: Slots::new(arrays.groups),
            group_index: SlotIndex::new(arrays.group_index),
            ahead: Slots::new(arrays.ahead),
            rates: Slots::new(arrays.rates),
            rate_index: SlotIndex::new(arrays.rate_index),
            starts: Slots::new(arrays.starts),
            retrying: Slots::new(arrays.retrying),
            retrying_index: SlotIndex::new(arrays.retrying_index),
        }
    }
}
