//! Passes: which of the groups with jobs of the same priority is next.
//!
//! The method is start-time fair queueing (Goyal, Vin, Cheng 1996). Each group has a *pass*, which grows by a charge
//! for each job that it starts. Of the groups with the smallest urgency the one with the smallest pass has the next
//! turn. A group that comes, or comes back, gets at least the smallest pass of those that wait, so it is next, or next
//! but one, and has no credit for the time without jobs. What it has started beyond the others counts for as long as
//! its slot is remembered.
//!
//! With fair shares the charge is [`UNIT`] over the group's weight, and a group that stands aside because of a limit
//! earns nothing. Without, a pass counts rounds in [`UNIT`]s. Within a round the groups start in the order of the jobs
//! that they started last, and a group that stands aside may be up to [`MAX_CREDIT`] behind. So groups whose jobs lie
//! mixed come back into step after a worker has stalled, and a batch gets jobs that lie beside each other.
//!
//! Responsible for passes. Not responsible for turns (`serving`) and for slots (`managed`).

use super::group::Group;
use super::limits::Claimer;
use super::memory::Backlog;
use super::ready::Ready;
use super::slot::{GroupSlot, LaneSlot};
use crate::id;

/// The charge of a job of a group with the weight 1.
const UNIT: u64 = 1 << 20;
/// How far a group without fair shares may be behind the others when it may start jobs again.
const MAX_CREDIT: u64 = 64 * UNIT;

/// Returns the charge of a job of a group with this weight.
pub fn charge_of(weight: f64) -> u64 {
    ((UNIT as f64 / weight) as u64).max(1)
}

impl Claimer<'_> {
    /// Returns the charge of a job of this group.
    pub(super) fn charge(&self, group: i64) -> u64 {
        self.charges.binary_search_by_key(&group, |&(hash, _)| hash).map_or(UNIT, |nth| self.charges[nth].1)
    }
}

impl Backlog<'_> {
    /// Makes the slot of a group that takes part in fair shares and gets its first waiting job. `None`: its queue has
    /// no fair shares, or no slot is free and none of an idle group of this lane.
    pub(super) fn new_fair_group(&mut self, lane: LaneSlot, entry: &Ready) -> Option<GroupSlot> {
        let here = &self.lanes[lane];
        let gate = here.gate.filter(|&gate| self.gates[gate].limits.is_fair && entry.group != 0)?;
        let has_room = !self.groups.is_full() || here.groups.idle.0.is_some();
        let (instance, id) = (here.instance, here.id);
        if has_room { self.group_or_create(instance, id, gate, entry.group) } else { None }
    }

    /// True if the groups of a lane are known to have fair shares.
    pub(super) fn has_fair_shares(&self, lane: LaneSlot) -> bool {
        self.lanes[lane].gate.is_some_and(|gate| self.gates[gate].limits.is_fair)
    }

    /// Returns how many jobs a group that is in no list may start in one turn. With fair shares another group comes
    /// after one job, if one has a turn.
    pub(super) fn most_in_turn(&self, group: GroupSlot) -> usize {
        let is_fair = self.limits_of(&self.groups[group]).is_fair;
        let lane = self.lane_of(group).filter(|_| is_fair);
        if lane.is_some_and(|lane| !self.lanes[lane].groups.turns.is_empty()) { 1 } else { u32::MAX as usize }
    }

    /// Returns how many jobs of a lane may start, of those that memory knows, or a number that is at least `enough`. A
    /// group without fair shares that has a turn counts as one.
    pub(super) fn known(&self, lane: LaneSlot, enough: u32) -> u32 {
        let here = &self.lanes[lane];
        if !self.has_fair_shares(lane) {
            return here.known();
        }
        let mut known = here.len;
        for slot in self.groups.in_turn(here.groups.turns) {
            known = known.saturating_add(self.groups.parked(slot).unwrap_or(enough));
            if known >= enough {
                break;
            }
        }
        known
    }

    /// As [`Self::known`]. `None`: there may be more.
    pub(super) fn startable(&self, lane: LaneSlot, enough: u32) -> Option<u32> {
        let here = &self.lanes[lane];
        (!here.has_more() && !here.is_read()).then(|| self.known(lane, enough))
    }

    /// Moves the pass of a group that comes, before its first job is parked. `priority`: that of the job.
    pub(super) fn catch_up(&mut self, lane: LaneSlot, slot: GroupSlot, priority: i32) {
        let now = self.pass_now(lane, priority);
        // Nothing of it waits, so it stands in no tree.
        let group = &mut self.groups[slot];
        group.pass = group.pass.max(now);
    }

    /// Moves the pass of a group that may start jobs again, and stands in no tree yet.
    pub(super) fn come_back(&mut self, slot: GroupSlot) {
        let Some(lane) = self.lane_of(slot) else { return };
        let credit = if self.limits_of(&self.groups[slot]).is_fair { 0 } else { MAX_CREDIT };
        let now = self.pass_now(lane, self.groups[slot].urgency);
        let group = &mut self.groups[slot];
        group.pass = group.pass.max(now.saturating_sub(credit));
    }

    /// Returns the smallest pass of the groups that have a turn with this urgency. If there is none, that of the last
    /// hand-out.
    fn pass_now(&self, lane: LaneSlot, urgency: i32) -> u64 {
        let lists = &self.lanes[lane].groups;
        let first = self.groups.first_with(lists.turns, i64::from(urgency));
        first.map_or(lists.pass, |first| self.groups[first].pass)
    }

    /// Charges a group for the job that it starts. The group is in no tree.
    pub(super) fn charge(&mut self, slot: GroupSlot, claimer: &Claimer<'_>, entry: &Ready) {
        let group = self.groups[slot];
        let Some(lane) = self.lane_of(slot) else { return };
        let lists = &mut self.lanes[lane].groups;
        lists.pass = group.pass;
        let charge = if !self.limits_of(&group).is_fair {
            // To the next round, and there to the place of the job.
            UNIT - group.pass % UNIT + id::count(entry.rank.job_id).cast_unsigned() % UNIT
        } else if group.was_charged {
            claimer.charge(group.hash)
        } else {
            // The first charge differs from group to group, so that groups which came together do not stay in step: a
            // group that comes later would have to wait for all of them.
            let charge = claimer.charge(group.hash);
            charge / 2 + spread(group.hash, self.lanes[lane].groups.served, charge)
        };
        let pass = group.pass.saturating_add(charge);
        self.groups[slot] = Group { pass, was_charged: true, ..group };
    }
}

/// Returns a pseudo-random number below `charge` (the finalizer of MurmurHash3, by Appleby).
fn spread(hash: i64, served: u64, charge: u64) -> u64 {
    let mut x = hash.cast_unsigned() ^ served.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ (x >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    (x ^ (x >> 33)) % charge.max(1)
}
