//! The limits of a queue, the slot that counts for them, and the settings of a claim from such a queue.
//!
//! Responsible for these types. Not responsible for counting (`gate`, `rates`).

use super::dear::Dear;
use super::ending::Ending;
use super::retries::Retries;
use super::slot::of;
use super::slots::Entry;
use super::window::Window;

/// How many lanes a gate can count: those of a queue and its stages.
pub const GATE_LANES: usize = 33;

/// The limits in a queue's settings. Zero is no limit.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// How many jobs may run at the same time.
    pub running: u32,
    /// How many jobs of each group may run at the same time, in each lane.
    pub group: u32,
    /// Whether the jobs of a group run one by one, so that a job that is waiting for its retry blocks the others.
    pub is_strict: bool,
    /// Whether groups start jobs of the same priority in proportion to their weights.
    pub is_fair: bool,
    /// How many jobs may start within any `period`.
    pub rate: u32,
    /// How many jobs of each group may start within any `period`, in each lane.
    pub group_rate: u32,
    /// The period of the rates, in microseconds.
    pub period: i64,
    /// A hash of where jobs have what they count for the rates. 0: each counts as one.
    pub costs: u64,
}

impl Limits {
    /// Whether groups take turns.
    pub fn has_groups(&self) -> bool {
        self.group > 0 || self.group_rate > 0 || self.is_fair
    }

    /// Returns how many jobs of each group may run at the same time.
    pub(super) fn most_of_group(&self) -> u32 {
        if self.group == 0 { u32::MAX } else { self.group }
    }
}

/// The settings that a claim from a limited queue gives to the frontier.
#[derive(Clone, Copy, Debug)]
pub struct Claimer<'a> {
    /// The queue.
    pub queue: i32,
    /// Its limits.
    pub limits: Limits,
    /// Its lanes, at most [`GATE_LANES`].
    pub lanes: &'a [i32],
    /// The charges of groups with a weight other than 1, by the groups' hashes in order.
    pub charges: &'a [(i64, u64)],
    /// The attempts of the queue that the claim's open transaction is ending. They count for other sessions' claims,
    /// not for this one. `None`: there are none.
    pub ending: Option<&'a Ending>,
    /// The present time, in monotonic microseconds.
    pub now: i64,
}

/// The gate of a limited queue. All zero is a free slot.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Gate {
    pub(super) instance: u32,
    pub(super) queue: i32,
    pub(super) limits: Limits,
    pub(super) running: u32,
    /// How many groups point to this gate.
    pub(super) groups: u32,
    /// How many records of groups' starts belong to it.
    pub(super) rates: u32,
    pub(super) retries: Retries,
    pub(super) lanes: [i32; GATE_LANES],
    pub(super) len: u32,
    /// The monotonic time until which the rate keeps the gate closed for sleeping sessions. 0: the rate has not closed
    /// it.
    pub(super) opens_at: i64,
    pub(super) window: Window,
    /// The job that waits until as much of the rate as it costs is free.
    pub(super) dear: Dear,
    /// What a job costs: the mean of the last few, at least 1.
    pub(super) usual_cost: u32,
}

impl Entry for Gate {
    type Of = of::Gate;
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            instance: 0,
            queue: 0,
            limits: Limits::default(),
            running: 0,
            groups: 0,
            rates: 0,
            retries: Retries::default(),
            lanes: [0; GATE_LANES],
            len: 0,
            opens_at: 0,
            window: Window::default(),
            dear: Dear::default(),
            usual_cost: 0,
        }
    }
}

impl Gate {
    pub(super) fn lanes(&self) -> &[i32] {
        &self.lanes[..self.len as usize]
    }

    /// Whether groups take turns.
    pub(super) fn has_groups(&self) -> bool {
        self.limits.has_groups()
    }

    pub(super) fn is_full(&self) -> bool {
        self.limits.running > 0 && self.running >= self.limits.running
    }

    /// Returns how many jobs of the usual cost this much is enough for, at least one. If none is left, 0.
    pub(super) fn jobs_in(&self, left: u32) -> u32 {
        let jobs = left / self.usual_cost.max(1);
        if self.limits.costs != 0 { jobs.max(left.min(1)) } else { left }
    }

    /// Learns what jobs cost.
    pub(super) fn learn(&mut self, cost: u32) {
        let mean = (u64::from(self.usual_cost) * 7 + u64::from(cost)) / 8;
        self.usual_cost = if self.usual_cost == 0 { cost.max(1) } else { (mean as u32).max(1) };
    }

    /// True if a claim whose transaction is ending nothing would find the gate closed.
    pub(super) fn is_closed(&self) -> bool {
        self.is_full() || self.opens_at != 0
    }
}
