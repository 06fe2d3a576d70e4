//! Throttles: a worker has learnt that a queue or a group has to wait, and no session starts a job of it until then.
//!
//! A throttle is in memory only. It ends with the slot of its lane or group, and with the gate of its groups.
//!
//! Invariant: no job of a throttled lane or group starts. When its time comes, a sleeping session is woken.

use super::group::Group;
use super::limits::Claimer;
use super::memory::{Backlog, Frontier};
use super::slot::LaneSlot;
use crate::share;

impl Backlog<'_> {
    /// True if a worker has throttled the group.
    #[inline]
    pub(super) fn is_throttled(&self, group: &Group) -> bool {
        group.closed_until > *self.now
    }

    /// Opens the next throttled lane whose time has come. `None`: there is none.
    pub(super) fn open_lane(&mut self) -> Option<LaneSlot> {
        let (opens_at, now) = (self.lanes.head.opens_at, *self.now);
        if opens_at == 0 || opens_at > now {
            return None;
        }
        let slot = self.lanes.first(|lane| lane.closed_until != 0 && lane.closed_until <= now);
        match slot {
            Some(slot) => self.lanes[slot].closed_until = 0,
            None => self.lanes.find_opening(),
        }
        slot
    }
}

impl Frontier<'_> {
    /// Keeps the jobs of a lane from starting until this monotonic time, or until the later time that counts already.
    /// If the time is not after `now`, ends that. Returns the time that counts, and a session to wake. `None`: there is
    /// no slot for the lane.
    pub fn throttle(&mut self, instance: u32, lane: i32, until: i64, now: i64) -> Option<(i64, Option<u32>)> {
        *self.backlog.now = now.max(*self.backlog.now);
        let slot = self.backlog.lane_or_create(instance, lane)?;
        let closed = &mut self.backlog.lanes[slot].closed_until;
        *closed = if until > now { until.max(*closed) } else { 0 };
        let until = *closed;
        self.backlog.lanes.find_opening();
        Some((until, if until == 0 { self.wake_next(slot) } else { None }))
    }

    /// As [`Self::throttle`], for a group of the lane. `None`: there is no slot for the lane, its gate or its group.
    pub fn throttle_group(
        &mut self,
        instance: u32,
        lane: i32,
        claimer: &Claimer<'_>,
        group: i64,
        until: i64,
    ) -> Option<(i64, Option<u32>)> {
        let lane_slot = self.backlog.lane_or_create(instance, lane)?;
        let gate = self.pass(instance, lane_slot, Some(claimer)).ok()??;
        let (backlog, now) = (&mut self.backlog, claimer.now);
        let known = backlog.group_slot(instance, lane, group);
        if known.is_none() && until <= now {
            return Some((0, None));
        }
        // Others need groups, too.
        let left = share::room(share::ALPHA, backlog.groups.free(), backlog.gates[gate].groups);
        let has_room = known.is_some() || left > 0;
        let slot = has_room.then(|| backlog.group_or_create(instance, lane, gate, group))??;
        let closed = &mut backlog.groups[slot].closed_until;
        *closed = if until > now { until.max(*closed) } else { 0 };
        let until = *closed;
        backlog.groups.head.throttled += 1;
        backlog.relist(slot);
        Some((until, if until == 0 { self.wake_next(lane_slot) } else { None }))
    }
}
