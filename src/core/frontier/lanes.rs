//! Lanes in memory: their slots, eviction, pauses, invalidation and drops.
//!
//! Invariant: a lane without a slot reads as P before everything, so a lane may be forgotten at any time.

use super::lane::{Lane, LaneSlot};
use super::memory::{DeadlineRoot, Frontier};
use super::rank::Rank;
use super::ready::{Ready, Ring};
use super::running::State;

impl Frontier<'_> {
    pub(super) fn lane_slot(&self, instance: u32, lane: i32) -> Option<LaneSlot> {
        self.lane_index.find(instance, i64::from(lane))
    }

    pub(super) fn ring(&mut self, slot: LaneSlot) -> Ring<'_> {
        let share = self.ready.len() / self.lanes.len();
        let lane = &mut self.lanes[slot];
        Ring {
            slots: &mut self.ready[slot.number() as usize * share..][..share],
            head: &mut lane.head,
            len: &mut lane.len,
        }
    }

    /// Returns the lane's slot. A lane without one gets a free slot, or else the slot of the least recently used lane
    /// that no session waits for or reads. `None`: there is no such lane.
    pub(super) fn lane_or_create(&mut self, instance: u32, lane: i32) -> Option<LaneSlot> {
        self.head.clock += 1;
        let clock = self.head.clock;
        if let Some(slot) = self.lane_slot(instance, lane) {
            self.lanes[slot].last_used = clock;
            return Some(slot);
        }
        let slot = self
            .lanes
            .slots()
            .filter(|&s| {
                let l = &self.lanes[s];
                !l.is_used() || (l.waiters_first.is_none() && l.refiller.is_none() && l.groups.serving == 0)
            })
            .min_by_key(|&s| {
                let l = &self.lanes[s];
                (l.is_used(), l.last_used)
            })?;
        self.forget_lane(slot);
        self.lanes[slot] = Lane {
            instance,
            id: lane,
            used: 1,
            position: Rank::MIN,
            lenient: Rank::MIN,
            last_used: clock,
            ..Lane::default()
        };
        self.head.lanes += 1;
        self.lane_index.insert(instance, i64::from(lane), slot);
        Some(slot)
    }

    pub(super) fn forget_lane(&mut self, slot: LaneSlot) {
        let lane = self.lanes[slot];
        if lane.is_used() {
            self.dissolve_lists(slot);
            self.head.collected -= u32::from(lane.collected.batch != 0);
            self.lane_index.remove(lane.instance, i64::from(lane.id));
            self.lanes[slot] = Lane::default();
            self.head.lanes -= 1;
        }
    }

    /// Notes whether the lane's queue is paused. New jobs of a paused queue wake no session.
    pub fn set_paused(&mut self, instance: u32, lane: i32, paused: bool) {
        if let Some(slot) = self.lane_slot(instance, lane) {
            self.lanes[slot].paused = u8::from(paused);
        }
    }

    /// Wakes a session that waits for this lane, even if there is no job. The caller repeats it until it returns
    /// `None`.
    pub fn wake_any(&mut self, instance: u32, lane: i32) -> Option<u32> {
        let slot = self.lane_slot(instance, lane)?;
        self.wake_first(slot)
    }

    /// Orders every lane of the instance to be read again from its index, after changes that no commit callback has
    /// reported. Sessions that wait for changed lanes must look, too: the caller wakes them with [`Self::pass_on`] or
    /// [`Self::wake_any_lane`].
    pub fn invalidate(&mut self, instance: u32) {
        for slot in self.lanes.slots() {
            let lane = &mut self.lanes[slot];
            if lane.is_used() && lane.instance == instance {
                lane.invalidate();
            }
        }
        self.release_held(instance);
        self.forget_all_retries(instance);
    }

    /// As [`Self::invalidate`], and also empties `ready`, because its rows may be gone.
    pub fn forget_ready(&mut self, instance: u32) {
        self.invalidate(instance);
        for lane in self.lanes.iter_mut().filter(|lane| lane.is_used() && lane.instance == instance) {
            (lane.head, lane.len) = (0, 0);
            lane.go_back(Rank::MIN);
        }
    }

    /// Wakes a session that waits for any lane of the instance. The caller repeats it until it returns `None`.
    pub fn wake_any_lane(&mut self, instance: u32) -> Option<u32> {
        let waits = |lane: &Lane| lane.is_used() && lane.instance == instance && lane.waiters_first.is_some();
        let slot = self.lanes.find(waits)?;
        self.wake_first(slot)
    }

    /// Forgets a lane of a dropped queue and all its running attempts. The caller must have woken its waiters before.
    /// Returns a session to wake.
    pub fn drop_lane(&mut self, root: &mut DeadlineRoot, instance: u32, lane: i32) -> Option<u32> {
        if self.head.gates > 0 {
            self.drop_gates(instance, Some(lane));
        }
        if let Some(slot) = self.lane_slot(instance, lane)
            && self.lanes[slot].waiters_first.is_none()
            && self.lanes[slot].refiller.is_none()
        {
            self.forget_lane(slot);
        }
        for slot in self.running.slots() {
            let entry = &self.running[slot];
            if entry.state != State::Free && entry.instance == instance && entry.lane == lane {
                self.forget_running(root, slot);
            }
        }
        self.wake_for_place()
    }

    /// Forgets an instance whose extension or database was dropped. Returns a session to wake.
    pub fn drop_instance(&mut self, root: &mut DeadlineRoot, instance: u32) -> Option<u32> {
        if self.head.gates > 0 {
            self.drop_gates(instance, None);
        }
        for slot in self.running.slots() {
            let entry = &self.running[slot];
            if entry.state != State::Free && entry.instance == instance {
                self.forget_running(root, slot);
            }
        }
        for slot in self.lanes.slots() {
            let lane = &self.lanes[slot];
            if lane.is_used() && lane.instance == instance && lane.waiters_first.is_none() {
                self.forget_lane(slot);
            }
        }
        self.wake_for_place()
    }

    /// True if a session is refilling the lane or serves one of its groups.
    pub fn is_refilling(&self, instance: u32, lane: i32) -> bool {
        self.lane_slot(instance, lane).is_some_and(|slot| self.lanes[slot].is_read())
    }

    /// Calls `each` with the attempts of a lane in `ready`, in order. Returns P, or `None` if the lane has no slot.
    pub fn each_ready(&mut self, instance: u32, lane: i32, mut each: impl FnMut(Ready)) -> Option<Rank> {
        let slot = self.lane_slot(instance, lane)?;
        let ring = self.ring(slot);
        (0..ring.len()).for_each(|nth| each(ring.get(nth)));
        Some(self.lanes[slot].position)
    }

    /// True if a claim may find a job in this lane, provided its transaction has done nothing yet.
    pub fn has_jobs(&self, instance: u32, lane: i32) -> bool {
        self.lane_slot(instance, lane)
            .is_some_and(|slot| self.lanes[slot].may_have_jobs() && !self.gate_is_closed(slot) && self.has_place(slot))
    }

    /// Returns how many attempts of a lane are in `ready`, and P. `None` if the lane has no slot.
    pub fn lane_state(&self, instance: u32, lane: i32) -> Option<(usize, Rank)> {
        let slot = self.lane_slot(instance, lane)?;
        let lane = &self.lanes[slot];
        Some((lane.len as usize, lane.position))
    }
}
