//! The slots of lanes, and `ready` of each.
//!
//! Responsible for which lane has which slot, and for changes of one lane's `ready`. Not responsible for groups
//! (`group_set`), nor for sessions that wait (`session_set`).
//!
//! Invariant: a lane without a slot reads as P before everything, so a lane may be forgotten at any time.

use super::index::Bucket;
use super::lane::Lane;
use super::rank::Rank;
use super::ready::{Ready, Ring};
use super::slot::{LaneSlot, of};
use super::slots::{SlotIndex, Slots, indexed_by_slot};
use crate::{id, share};

/// Counts of lanes, and the clock of their use. All zero: no lane is in memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct LanesHead {
    clock: u64,
    /// How many lanes are in use.
    pub(super) used: u32,
    /// How many lanes a call has lingered for.
    pub(super) collected: u32,
    /// How many lanes have waiting sessions.
    pub(super) waited: u32,
    /// A monotonic time before which no throttled lane opens. 0: no lane is throttled.
    pub(super) opens_at: i64,
}

/// The lanes in memory.
pub struct LaneSet<'a> {
    lanes: Slots<'a, Lane>,
    index: SlotIndex<'a, of::Lane>,
    ready: &'a mut [Ready],
    pub(super) head: &'a mut LanesHead,
}

impl<'a> LaneSet<'a> {
    #[inline]
    pub(super) fn new(
        head: &'a mut LanesHead,
        lanes: &'a mut [Lane],
        index: &'a mut [Bucket],
        ready: &'a mut [Ready],
    ) -> Self {
        Self { lanes: Slots::new(lanes), index: SlotIndex::new(index), ready, head }
    }

    /// Returns how many lanes are in use, and for how many there is room.
    pub fn in_use(&self) -> (usize, usize) {
        (self.head.used as usize, self.lanes.len())
    }

    #[inline]
    pub(super) fn slots(&self) -> impl DoubleEndedIterator<Item = LaneSlot> + use<> {
        self.lanes.slots()
    }

    /// Notes the time at which the first throttled lane opens.
    pub(super) fn find_opening(&mut self) {
        let times = self.lanes.iter().map(|lane| lane.closed_until).filter(|&at| at != 0);
        self.head.opens_at = times.min().unwrap_or(0);
    }

    /// Returns the monotonic time until which a lane is throttled. `None`: it is not.
    pub fn throttled_until(&self, instance: u32, lane: i32) -> Option<i64> {
        self.find(instance, lane).map(|slot| self.lanes[slot].closed_until).filter(|&at| at != 0)
    }

    /// Returns the first lane that `is_it`.
    pub(super) fn first(&self, is_it: impl Fn(&Lane) -> bool) -> Option<LaneSlot> {
        self.lanes.find(is_it)
    }

    /// Returns a lane's slot. `None`: it has none.
    #[inline]
    pub(super) fn find(&self, instance: u32, lane: i32) -> Option<LaneSlot> {
        self.index.find(instance, i64::from(lane))
    }

    /// As [`Self::find`], and notes that the lane is used now.
    #[inline]
    pub(super) fn use_now(&mut self, instance: u32, lane: i32) -> Option<LaneSlot> {
        self.head.clock += 1;
        let slot = self.find(instance, lane)?;
        self.lanes[slot].last_used = self.head.clock;
        Some(slot)
    }

    /// Returns a free slot, or else that of the least recently used lane that no session waits for or reads. `None`:
    /// there is no such lane.
    pub(super) fn least_used(&self) -> Option<LaneSlot> {
        let is_unused = |lane: &Lane| !lane.is_used() || (lane.waiters_first.is_none() && !lane.is_read());
        let slots = self.lanes.slots().filter(|&slot| is_unused(&self.lanes[slot]));
        // A throttle ends with its slot.
        slots.min_by_key(|&slot| {
            let lane = &self.lanes[slot];
            (lane.is_used(), lane.closed_until != 0, lane.last_used)
        })
    }

    /// Gives a free slot to a lane.
    pub(super) fn add(&mut self, slot: LaneSlot, instance: u32, lane: i32) {
        self.lanes[slot] = Lane {
            instance,
            id: lane,
            used: 1,
            position: Rank::MIN,
            lenient: Rank::MIN,
            last_used: self.head.clock,
            ..Lane::default()
        };
        self.head.used += 1;
        self.index.insert(instance, i64::from(lane), slot);
    }

    /// Frees the slot of a lane that has no groups.
    pub(super) fn remove(&mut self, slot: LaneSlot) {
        let lane = std::mem::take(&mut self.lanes[slot]);
        self.head.collected -= u32::from(lane.collected.batch != 0);
        self.index.remove(lane.instance, i64::from(lane.id));
        self.head.used -= 1;
    }

    /// Orders every lane of the instance to be read again from its index.
    pub(super) fn invalidate(&mut self, instance: u32) {
        let is_own = |lane: &&mut Lane| lane.is_used() && lane.instance == instance;
        self.lanes.iter_mut().filter(is_own).for_each(Lane::invalidate);
    }

    /// Empties `ready` of every lane of the instance.
    pub(super) fn empty_ready(&mut self, instance: u32) {
        for lane in self.lanes.iter_mut().filter(|lane| lane.is_used() && lane.instance == instance) {
            (lane.head, lane.len) = (0, 0);
            lane.go_back(Rank::MIN);
        }
    }

    // ---- the sessions that wait for a lane

    /// Counts a lane for which a first session waits.
    pub(super) fn count_waited(&mut self, slot: LaneSlot) {
        self.head.waited += 1;
        share::enter(self.index.buckets, self.lanes[slot].instance);
    }

    /// Counts a lane for which no session waits any more.
    pub(super) fn count_unwaited(&mut self, slot: LaneSlot) {
        self.head.waited -= 1;
        share::leave(self.index.buckets, self.lanes[slot].instance);
    }

    /// True if a session may wait for this lane: another session already does, or the instance's share has room for one
    /// more lane that cannot be evicted.
    pub(super) fn may_be_waited_for(&self, slot: LaneSlot) -> bool {
        let lane = &self.lanes[slot];
        let free = self.lanes.len() - self.head.waited as usize;
        lane.waiters_first.is_some()
            || share::room(share::ALPHA, free, share::held(self.index.buckets, lane.instance)) > 0
    }

    // ---- ready

    /// Returns for how many attempts `ready` of a lane has room.
    #[inline]
    pub(super) fn capacity(&self) -> usize {
        self.ready.len() / self.lanes.len()
    }

    #[inline]
    pub(super) fn ring(&mut self, slot: LaneSlot) -> Ring<'_> {
        let share = self.capacity();
        let lane = &mut self.lanes[slot];
        Ring { slots: &mut self.ready[slot.at() * share..][..share], head: &mut lane.head, len: &mut lane.len }
    }

    /// Returns the entry of `ready` that may be handed out next.
    pub(super) fn first_ready(&mut self, slot: LaneSlot) -> Option<Ready> {
        let limit = self.lanes[slot].limit();
        self.ring(slot).first().filter(|entry| entry.rank <= limit)
    }

    /// Returns the first entry of a group in `ready` that ranks at or before `up_to`.
    pub(super) fn first_of_group(&mut self, slot: LaneSlot, hash: i64, up_to: Rank) -> Option<Ready> {
        let ring = self.ring(slot);
        let mut entries = (0..ring.len()).map(|nth| ring.get(nth)).take_while(|entry| entry.rank <= up_to);
        entries.find(|entry| entry.group == hash)
    }

    /// Puts an entry into `ready`. If that is full, spills the largest entry.
    pub(super) fn put(&mut self, slot: LaneSlot, entry: Ready) {
        let mut ring = self.ring(slot);
        let at = match ring.search(entry.rank) {
            Err(at) => at,
            Ok(at) => {
                // Of two attempts of one job only the newer one lives. The same attempt may have moved.
                if id::count(entry.id) >= id::count(ring.get(at).id) {
                    ring.remove(at);
                    ring.insert(at, entry);
                }
                return;
            }
        };
        let spilled = if !ring.is_full() {
            ring.insert(at, entry);
            return;
        } else if at == ring.len() {
            entry.rank
        } else {
            let last = ring.remove(ring.len() - 1);
            ring.insert(at, entry);
            last.rank
        };
        self.lanes[slot].go_back(spilled.before());
    }

    /// Puts entries into `ready` whose ranks ascend. Those that belong into one gap move the others once.
    pub(super) fn put_all(&mut self, slot: LaneSlot, mut entries: &[Ready]) {
        while let Some(&first) = entries.first() {
            let run = self.ring(slot).insert_run(entries);
            if run == 0 {
                self.put(slot, first);
            }
            entries = &entries[run.max(1)..];
        }
    }

    /// Removes the entry of this rank, which is mostly the first one.
    pub(super) fn remove_ready(&mut self, slot: LaneSlot, entry: &Ready) {
        let mut ring = self.ring(slot);
        if ring.first().is_some_and(|first| first.rank == entry.rank) {
            ring.pop();
        } else if let Ok(nth) = ring.search(entry.rank) {
            ring.remove(nth);
        }
    }

    /// Removes this very attempt from `ready`.
    pub(super) fn remove_attempt(&mut self, slot: LaneSlot, entry: &Ready) {
        let mut ring = self.ring(slot);
        if let Ok(at) = ring.search(entry.rank)
            && ring.get(at).id == entry.id
        {
            ring.remove(at);
        }
    }

    /// Notes of all attempts in `ready` that they are not in the groups' index.
    pub(super) fn forget_indexed(&mut self) {
        self.ready.iter_mut().for_each(|entry| entry.place.is_indexed = false);
    }
}

indexed_by_slot!(LaneSet, LaneSlot, lanes: Lane);
