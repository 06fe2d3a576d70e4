//! Lanes as a whole: eviction, pauses, invalidation and drops.
//!
//! Invariant: a lane without a slot reads as P before everything, so a lane may be forgotten at any time.

use super::lane::Lane;
use super::memory::{Backlog, Frontier};
use super::rank::Rank;
use super::ready::Ready;
use super::running::{DeadlineRoot, Running, State};
use super::slot::LaneSlot;

impl Backlog<'_> {
    /// Returns the lane's slot. A lane without one gets a free slot, or else the slot of the least recently used lane
    /// that no session waits for or reads. `None`: there is no such lane.
    pub(super) fn lane_or_create(&mut self, instance: u32, lane: i32) -> Option<LaneSlot> {
        if let Some(slot) = self.lanes.use_now(instance, lane) {
            return Some(slot);
        }
        let slot = self.lanes.least_used()?;
        self.forget_lane(slot);
        self.lanes.add(slot, instance, lane);
        Some(slot)
    }

    fn forget_lane(&mut self, slot: LaneSlot) {
        if self.lanes[slot].is_used() {
            self.dissolve_lists(slot);
            self.lanes.remove(slot);
        }
    }
}

impl Frontier<'_> {
    /// Notes whether the lane's queue is paused. New jobs of a paused queue wake no session.
    pub fn set_paused(&mut self, instance: u32, lane: i32, paused: bool) {
        if let Some(slot) = self.backlog.lanes.find(instance, lane) {
            self.backlog.lanes[slot].paused = u8::from(paused);
        }
    }

    /// Wakes a session that waits for this lane, even if there is no job. The caller repeats it until it returns
    /// `None`.
    pub fn wake_any(&mut self, instance: u32, lane: i32) -> Option<u32> {
        let slot = self.backlog.lanes.find(instance, lane)?;
        self.sessions.wake_first(&mut self.backlog.lanes, slot)
    }

    /// Orders every lane of the instance to be read again from its index, after changes that no commit callback has
    /// reported. Sessions that wait for changed lanes must look, too: the caller wakes them with [`Self::pass_on`] or
    /// [`Self::wake_any_lane`].
    pub fn invalidate(&mut self, instance: u32) {
        self.backlog.lanes.invalidate(instance);
        self.release_held(instance);
        self.backlog.gates.forget_all_retries(instance);
    }

    /// As [`Self::invalidate`], and also empties `ready`, because its rows may be gone.
    pub fn forget_ready(&mut self, instance: u32) {
        self.invalidate(instance);
        self.backlog.lanes.empty_ready(instance);
    }

    /// Wakes a session that waits for any lane of the instance. The caller repeats it until it returns `None`.
    pub fn wake_any_lane(&mut self, instance: u32) -> Option<u32> {
        let waits = |lane: &Lane| lane.is_used() && lane.instance == instance && lane.waiters_first.is_some();
        let slot = self.backlog.lanes.first(waits)?;
        self.sessions.wake_first(&mut self.backlog.lanes, slot)
    }

    /// Forgets a lane of a dropped queue and all its running attempts. The caller must have woken its waiters before.
    /// Returns a session to wake.
    pub fn drop_lane(&mut self, root: &mut DeadlineRoot, instance: u32, lane: i32) -> Option<u32> {
        if self.backlog.gates.head.used > 0 {
            self.drop_gates(instance, Some(lane));
        }
        if let Some(slot) = self.backlog.lanes.find(instance, lane)
            && self.backlog.lanes[slot].waiters_first.is_none()
            && self.backlog.lanes[slot].refiller.is_none()
        {
            self.backlog.forget_lane(slot);
        }
        self.forget_all_running(root, |entry| entry.instance == instance && entry.lane == lane);
        self.wake_for_place()
    }

    /// Forgets an instance whose extension or database was dropped. Returns a session to wake.
    pub fn drop_instance(&mut self, root: &mut DeadlineRoot, instance: u32) -> Option<u32> {
        if self.backlog.gates.head.used > 0 {
            self.drop_gates(instance, None);
        }
        self.forget_all_running(root, |entry| entry.instance == instance);
        for slot in self.backlog.lanes.slots() {
            let lane = &self.backlog.lanes[slot];
            if lane.is_used() && lane.instance == instance && lane.waiters_first.is_none() {
                self.backlog.forget_lane(slot);
            }
        }
        self.wake_for_place()
    }

    fn forget_all_running(&mut self, root: &mut DeadlineRoot, is_it: impl Fn(&Running) -> bool) {
        for slot in self.running.slots() {
            let entry = &self.running[slot];
            if entry.state != State::Free && is_it(entry) {
                self.forget_running(root, slot);
            }
        }
    }

    /// True if a session is refilling the lane or serves one of its groups.
    pub fn is_refilling(&self, instance: u32, lane: i32) -> bool {
        self.backlog.lanes.find(instance, lane).is_some_and(|slot| self.backlog.lanes[slot].is_read())
    }

    /// Calls `each` with the attempts of a lane in `ready`, in order. Returns P, or `None` if the lane has no slot.
    pub fn each_ready(&mut self, instance: u32, lane: i32, mut each: impl FnMut(Ready)) -> Option<Rank> {
        let slot = self.backlog.lanes.find(instance, lane)?;
        let ring = self.backlog.lanes.ring(slot);
        (0..ring.len()).for_each(|nth| each(ring.get(nth)));
        Some(self.backlog.lanes[slot].position)
    }

    /// True if a claim may find a job in this lane, provided its transaction has done nothing yet.
    pub fn has_jobs(&self, instance: u32, lane: i32) -> bool {
        self.backlog.lanes.find(instance, lane).is_some_and(|slot| {
            self.backlog.lanes[slot].may_have_jobs() && !self.backlog.gate_is_closed(slot) && self.has_place(slot)
        })
    }
}

#[cfg(test)]
impl Frontier<'_> {
    /// Returns how many attempts of a lane are in `ready`, and P. `None` if the lane has no slot.
    pub fn lane_state(&self, instance: u32, lane: i32) -> Option<(usize, Rank)> {
        let slot = self.backlog.lanes.find(instance, lane)?;
        let lane = &self.backlog.lanes[slot];
        Some((lane.len as usize, lane.position))
    }
}
