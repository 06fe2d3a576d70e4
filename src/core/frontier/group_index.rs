//! Says which attempts need an entry in the groups' index before they are parked, and recovers when that index is lost.
//!
//! Invariant: an attempt is parked only if its entry is in the groups' index.

use super::memory::{Backlog, Frontier};
use super::rank::Rank;
use super::ready::Ready;
use super::slot::SessionSlot;

impl Frontier<'_> {
    /// True if an attempt that a refill has read needs an entry in the groups' index before it is handed over: it is
    /// parked immediately. If its group has no parked attempt yet, that is decided when the attempt is next: a job that
    /// runs now will have ended.
    pub fn needs_index(&self, instance: u32, lane: i32, entry: &Ready) -> bool {
        let slot = self.backlog.group_slot(instance, lane, entry.group);
        let waits = |slot| {
            let group = &self.backlog.groups[slot];
            group.from() < Rank::MAX || group.is_served() || self.backlog.limits_of(group).is_fair
        };
        must_park(&self.backlog, instance, lane, entry) && slot.is_none_or(waits)
    }

    /// Raises the lane's flag as a refill does. Puts into `out` the first entries of `ready` that need an entry in the
    /// groups' index, and returns their number. 0: the flag was not raised. The caller writes the entries and calls
    /// [`Frontier::indexed`]. It always ends with [`Frontier::refill_end`] and the calls after it.
    pub fn index_begin(&mut self, instance: u32, lane: i32, session: u32, out: &mut [Ready]) -> usize {
        /// Of the entries behind these, only those are taken that follow one of their own group: the groups of others
        /// may change before they are next.
        const NEAR: usize = 32;
        let Some(slot) = self.backlog.lanes.find(instance, lane) else { return 0 };
        if self.backlog.lanes[slot].refiller.is_some() {
            return 0;
        }
        let mut found = 0;
        for nth in 0..self.backlog.lanes[slot].len as usize {
            let entry = self.backlog.lanes.ring(slot).get(nth);
            let follows = found > 0 && out[found - 1].group == entry.group;
            if found == out.len() || nth >= NEAR && !follows {
                break;
            }
            if must_park(&self.backlog, instance, lane, &entry) {
                out[found] = entry;
                found += 1;
            }
        }
        if found > 0 {
            let lane = &mut self.backlog.lanes[slot];
            lane.refiller = Some(SessionSlot::new(session));
            (lane.read, lane.spill) = (lane.position, Rank::MAX);
        }
        found
    }

    /// Notes that these attempts are now in the groups' index, or have moved away.
    pub fn indexed(&mut self, instance: u32, lane: i32, entries: &[Ready]) {
        let Some(slot) = self.backlog.lanes.find(instance, lane) else { return };
        for entry in entries {
            let mut ring = self.backlog.lanes.ring(slot);
            if let Ok(nth) = ring.search(entry.rank)
                && ring.get(nth) == *entry
            {
                ring.get_mut(nth).place.is_indexed = true;
            }
        }
    }

    /// Moves everything that was parked behind P. The caller has rebuilt the instance's groups' index, which is empty
    /// now.
    pub fn unpark_all(&mut self, instance: u32) {
        let backlog = &mut self.backlog;
        for slot in backlog.groups.slots() {
            let group = backlog.groups[slot];
            if group.gate.is_none() || group.instance != instance || group.from() == Rank::MAX {
                continue;
            }
            backlog.groups.forget_ahead(slot);
            if let Some(lane) = backlog.lane_of(slot) {
                backlog.lanes[lane].go_back(group.from());
            }
            // The session that serves the group will not find all its attempts.
            let this = &mut backlog.groups[slot];
            this.go_back(group.from());
            this.position = Rank::MAX;
            backlog.relist(slot);
        }
        // This includes other instances: there the entries are looked for once more than needed.
        backlog.lanes.forget_indexed();
        self.running.forget_indexed();
    }
}

/// True if an attempt must be parked, and is not in the groups' index yet.
fn must_park(backlog: &Backlog<'_>, instance: u32, lane: i32, entry: &Ready) -> bool {
    if entry.group == 0 || entry.place.is_indexed {
        return false;
    }
    let Some(slot) = backlog.lanes.find(instance, lane) else { return false };
    let gate = backlog.lanes[slot].gate;
    gate.is_some_and(|gate| backlog.gates.is_retrying(gate, lane, entry.group)) || backlog.waits_for_group(slot, entry)
}
