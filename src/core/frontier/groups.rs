//! Groups with a limit: only a few of their jobs run at the same time, or start within a period.
//!
//! A group with running jobs, or one that was served recently, has a slot and is **managed**. Its waiting attempts are
//! *parked* behind its position and not kept in `ready`, and it takes *turns*. The order of turns is in
//! docs/internals/limits.md.
//!
//! Invariant: every committed waiting attempt of a managed group that is due is in `ready`, in `running` or behind P,
//! or it ranks behind the group's position and is in the group's index. A group that has room and attempts behind its
//! position stands among the turns, or a session serves it, or it is *held*. If only its rate leaves no room, it
//! *rests*, or its starts are open. If its lane has no slot, everything is behind P.

use super::group::{Group, GroupSlot, List, key_of};
use super::lane::{LaneSlot, Lists};
use super::limits::GateSlot;
use super::memory::Frontier;
use super::rank::Rank;
use super::ready::Ready;

/// After this many hand-outs of its lane a group is treated as if it had never been served.
const RECENT: u64 = 64;

/// The attempt that a lane hands out next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// This entry of `ready`.
    Ready(Ready),
    /// This attempt of the group in this slot, which was read ahead.
    Ahead(GroupSlot, Ready),
    /// An attempt of the group in this slot.
    Turn(GroupSlot),
    /// Memory knows of no attempt.
    Nothing,
    /// Not known yet: another session is still reading.
    Later,
    /// There is an attempt, but no slot for its group.
    Full,
    /// The head of `ready` must be parked, and is not in the groups' index yet.
    Index,
}

impl Frontier<'_> {
    // ---- slots and lists

    pub(super) fn group_slot(&self, instance: u32, lane: i32, hash: i64) -> Option<GroupSlot> {
        if self.head.groups == 0 {
            return None;
        }
        let gate = match self.lane_slot(instance, lane).and_then(|slot| self.lanes[slot].gate) {
            Some(gate) => gate,
            None => self.gate_of(instance, lane)?,
        };
        let slot = self.group_index.find(gate.number(), key_of(lane, hash))?;
        let group = &self.groups[slot];
        (group.lane == lane && group.hash == hash).then_some(slot)
    }

    pub(super) fn lane_of(&self, group: GroupSlot) -> Option<LaneSlot> {
        self.lane_slot(self.groups[group].instance, self.groups[group].lane)
    }

    pub(super) fn lists(&mut self, group: GroupSlot) -> Option<&mut Lists> {
        let slot = self.lane_of(group)?;
        Some(&mut self.lanes[slot].groups)
    }

    pub(super) fn unlist(&mut self, slot: GroupSlot) {
        let group = self.groups[slot];
        self.groups[slot].list = List::None;
        let lists = self.lane_of(slot).map(|lane| &mut self.lanes[lane].groups);
        match (group.list, lists) {
            (List::Resting, _) => self.head.resting.remove(&mut self.groups, slot),
            (List::None, _) | (_, None) => {}
            (List::Turns, Some(lists)) => lists.turns.remove(&mut self.groups, slot),
            (List::Served, Some(lists)) => lists.served_now.remove(&mut self.groups, slot),
            (List::Idle, Some(lists)) => {
                match group.prev {
                    Some(prev) => self.groups[prev].next = group.next,
                    None => lists.idle.0 = group.next,
                }
                match group.next {
                    Some(next) => self.groups[next].prev = group.prev,
                    None => lists.idle.1 = group.prev,
                }
            }
        }
        let group = &mut self.groups[slot];
        (group.next, group.prev, group.up) = (None, None, None);
    }

    /// Moves a group to the end of this list of its lane. Returns false if the lane has no slot.
    fn enlist_group(&mut self, slot: GroupSlot, list: List) -> bool {
        self.unlist(slot);
        let Some(lane) = self.lane_of(slot) else { return list == List::None };
        let group = &mut self.groups[slot];
        if list != List::Resting {
            group.order = i64::from(group.urgency);
        }
        let lists = &mut self.lanes[lane].groups;
        match list {
            List::None => {}
            List::Resting => self.head.resting.insert(&mut self.groups, slot),
            List::Turns => lists.turns.insert(&mut self.groups, slot),
            List::Served => lists.served_now.insert(&mut self.groups, slot),
            List::Idle => {
                let last = lists.idle.1.replace(slot);
                self.groups[slot].prev = last;
                match last {
                    Some(last) => self.groups[last].next = Some(slot),
                    None => lists.idle.0 = Some(slot),
                }
            }
        }
        // If the lane has lost its slot meanwhile, its count of hand-outs has begun anew.
        let group = &mut self.groups[slot];
        (group.list, group.served_at) = (list, group.served_at.min(lists.served));
        true
    }

    pub(super) fn group_or_create(&mut self, instance: u32, lane: i32, gate: GateSlot, hash: i64) -> Option<GroupSlot> {
        if let Some(slot) = self.group_slot(instance, lane, hash) {
            return Some(slot);
        }
        self.forget_idle(instance, lane);
        let key = key_of(lane, hash);
        if self.group_index.find(gate.number(), key).is_some() {
            // A group of another stage has the same key. That is very rare, so this group may wait until the other one
            // ends.
            return None;
        }
        let slot = self.free_group(instance, lane)?;
        self.groups[slot] = Group {
            key,
            instance,
            lane,
            hash,
            gate: Some(gate),
            position: Rank::MAX,
            spill: Rank::MAX,
            ..Group::default()
        };
        self.group_index.insert(gate.number(), key, slot);
        self.head.groups += 1;
        self.gates[gate].groups += 1;
        Some(slot)
    }

    fn free_group(&mut self, instance: u32, lane: i32) -> Option<GroupSlot> {
        if self.head.group_slots.is_empty(&self.groups) {
            self.evict_group(instance, lane);
        }
        self.head.group_slots.take(&mut self.groups)
    }

    /// Forgets idle groups that were served long ago: at most two a call, so that no call takes long.
    fn forget_idle(&mut self, instance: u32, lane: i32) {
        let Some(slot) = self.lane_slot(instance, lane) else { return };
        for _ in 0..2 {
            let lists = self.lanes[slot].groups;
            let Some(first) = lists.idle.0 else { return };
            if lists.served.saturating_sub(self.groups[first].served_at) < RECENT {
                return;
            }
            self.forget_group(first);
        }
    }

    /// Makes room for another group: forgets one without running jobs, preferably one of this lane.
    fn evict_group(&mut self, instance: u32, lane: i32) {
        let own = self.lane_slot(instance, lane).map(|slot| self.lanes[slot].groups);
        // The last of the turns would wait longest, and none of the remaining groups comes after it.
        let near = own.and_then(|lists| lists.idle.0.or_else(|| lists.turns.last(&self.groups)));
        // Resting groups are never forgotten for others: there is a slot for each group with a record of its starts.
        let is_idle = |group: &Group| {
            group.gate.is_some() && group.running == 0 && group.server.is_none() && group.list != List::Resting
        };
        let found = match near.filter(|&slot| is_idle(&self.groups[slot])) {
            Some(slot) => Some(slot),
            None => self.groups.find(is_idle),
        };
        if let Some(slot) = found {
            let group = self.groups[slot];
            self.forget_group(slot);
            for (instance, lane) in [(instance, lane), (group.instance, group.lane)] {
                if let Some(slot) = self.lane_slot(instance, lane) {
                    self.lanes[slot].groups.is_short = 1;
                }
            }
        }
    }

    /// Forgets a group. Its parked attempts lie behind P afterwards.
    pub(super) fn forget_group(&mut self, slot: GroupSlot) {
        self.unlist(slot);
        let group = self.groups[slot];
        if group.from() < Rank::MAX
            && let Some(lane) = self.lane_slot(group.instance, group.lane)
        {
            self.lanes[lane].go_back(group.from());
        }
        if group.server.is_some() {
            self.served(slot);
        }
        self.forget_ahead(slot);
        self.group_index.remove(group.gate().number(), group.key);
        self.gates[group.gate()].groups -= 1;
        self.groups[slot] = Group::default();
        self.head.group_slots.give(&mut self.groups, slot);
        self.head.groups -= 1;
    }

    /// Dissolves the lists of a lane that loses its slot. All its attempts lie behind P afterwards.
    pub(super) fn dissolve_lists(&mut self, lane: LaneSlot) {
        loop {
            let lists = &self.lanes[lane].groups;
            let idle = lists.idle.0;
            let Some(slot) = lists.turns.first().or(lists.served_now.first()).or(idle) else { break };
            self.unlist(slot);
            let group = &mut self.groups[slot];
            if group.running == 0 {
                self.forget_group(slot);
            } else {
                (group.position, group.spill) = (Rank::MAX, Rank::MAX);
                self.forget_ahead(slot);
            }
        }
        self.lanes[lane].groups = Lists::default();
    }

    // ---- parking

    pub(super) fn is_strict(&self, group: &Group) -> bool {
        self.gates[group.gate()].limits.is_strict
    }

    /// True if one more job of a group may run, whatever its rate.
    fn has_place_for_one(&self, group: &Group) -> bool {
        group.running < self.gates[group.gate()].limits.most_of_group()
    }

    fn has_room(&self, group: &Group) -> bool {
        self.has_place_for_one(group) && !self.is_at_rate(group.gate(), group.lane, group.hash)
    }

    /// True if the rate of a group lets no job start now.
    pub(super) fn is_at_rate(&self, gate: GateSlot, lane: i32, group: i64) -> bool {
        self.rate_room(gate, lane, group) == 0
    }

    /// Returns the slot of an entry's group, if the group is managed.
    pub(super) fn group_of(&self, lane: LaneSlot, entry: &Ready) -> Option<GroupSlot> {
        let lane = &self.lanes[lane];
        self.group_slot(lane.instance, lane.id, entry.group)
    }

    /// True if an entry of this group may be taken without a turn, because the group was not served recently. Groups
    /// with nothing but a rate take turns only for attempts that had to wait.
    fn may_go_first(&self, lane: LaneSlot, group: GroupSlot) -> bool {
        let group = &self.groups[group];
        if self.is_retrying(group.gate(), group.lane, group.hash) || !self.has_room(group) {
            return false;
        }
        let has_rate_only = self.gates[group.gate()].limits.group == 0;
        if has_rate_only && group.from() == Rank::MAX && group.server.is_none() {
            return true;
        }
        group.list == List::Idle && self.lanes[lane].groups.served.saturating_sub(group.served_at) >= RECENT
    }

    /// True if an entry must be parked.
    pub(super) fn waits_for_group(&self, lane: LaneSlot, entry: &Ready) -> bool {
        entry.group != 0 && self.group_of(lane, entry).is_some_and(|group| !self.may_go_first(lane, group))
    }

    /// Parks a waiting attempt of a managed group: the group's position moves before it. The groups' index must have
    /// its entry. Returns false if the group is not managed or no longer managed, so that the attempt belongs into
    /// `ready`.
    pub(super) fn park(&mut self, lane: LaneSlot, entry: &Ready) -> bool {
        let Some(slot) = self.group_of(lane, entry) else { return false };
        if self.may_go_first(lane, slot) {
            if self.groups[slot].list == List::Idle {
                self.forget_group(slot);
            }
            return false;
        }
        let group = &mut self.groups[slot];
        let is_only = group.from() == Rank::MAX && group.server.is_none();
        let mark = if group.server.is_some() { &mut group.spill } else { &mut group.position };
        *mark = (*mark).min(entry.rank.before());
        if is_only {
            self.keep_ahead(slot, &[*entry], Rank::MAX);
        } else {
            self.add_ahead(slot, entry);
        }
        self.group_changed(slot);
        true
    }

    /// True if the group of a parked entry has a turn, so that a session should be woken.
    pub(super) fn has_turn(&self, lane: LaneSlot, entry: &Ready) -> bool {
        self.group_of(lane, entry).is_some_and(|slot| self.groups[slot].list == List::Turns)
    }

    /// Updates a group after one of its attempts has come or gone: another attempt may have to run first now.
    pub(super) fn group_changed(&mut self, slot: GroupSlot) {
        let urgency = self.parked_priority(slot);
        let group = &mut self.groups[slot];
        (group.held, group.has_news) = (0, 1);
        if urgency != group.urgency {
            self.unlist(slot);
            self.groups[slot].urgency = urgency;
        }
        self.relist(slot);
    }

    /// Moves a group to the list in which it belongs now.
    pub(super) fn relist(&mut self, slot: GroupSlot) {
        let group = self.groups[slot];
        let waits = group.from() < Rank::MAX && group.held == 0;
        let list = if group.server.is_some() {
            let stands_in_the_way = waits && (group.spill < Rank::MAX || self.has_more_room(&group));
            if stands_in_the_way { List::Served } else { List::None }
        } else if waits && self.has_place_for_one(&group) {
            let gate = group.gate();
            if !self.is_at_rate(gate, group.lane, group.hash) {
                List::Turns
            } else if let Some(at) = self.rate_opens_at(gate, group.lane, group.hash) {
                if group.list != List::Resting {
                    self.unlist(slot);
                    self.groups[slot].order = at;
                }
                List::Resting
            } else {
                // All its starts are open: the first one that is settled lists the group.
                List::None
            }
        } else if group.running == 0 && group.held == 0 {
            List::Idle
        } else {
            List::None
        };
        if self.groups[slot].list == list || self.enlist_group(slot, list) || group.server.is_some() {
            return;
        }
        // The lane has no slot, so everything lies behind P.
        if group.running == 0 {
            self.forget_group(slot);
        } else {
            self.groups[slot].position = Rank::MAX;
            self.forget_ahead(slot);
        }
    }

    /// True if more attempts of a group may start than the serving session asks for.
    fn has_more_room(&self, group: &Group) -> bool {
        let places = self.gates[group.gate()].limits.most_of_group().saturating_sub(group.running);
        places.min(self.rate_room(group.gate(), group.lane, group.hash)) > u32::from(group.wanted)
    }

    pub(super) fn enter_group(&mut self, slot: GroupSlot) {
        self.groups[slot].running += 1;
        if let Some(lists) = self.lists(slot) {
            let served = lists.served;
            self.groups[slot].served_at = served;
        }
        self.relist(slot);
    }

    /// Notes that an attempt of a group is no longer taken. `was_running`: the group has counted it.
    pub(super) fn leave_group(&mut self, slot: GroupSlot, was_running: bool) {
        self.groups[slot].running -= u32::from(was_running);
        // The attempt may be the one that held the group.
        self.group_changed(slot);
    }

    /// Ends the hold of all groups of an instance, because the attempts that hold them may be gone.
    pub fn release_held(&mut self, instance: u32) {
        if self.head.groups == 0 {
            return;
        }
        for slot in self.groups.slots() {
            let group = &self.groups[slot];
            if group.gate.is_some() && group.instance == instance && (group.held != 0 || group.server.is_some()) {
                self.group_changed(slot);
            }
        }
    }
}

#[cfg(test)]
impl Lists {
    pub(super) fn idle_ends(&self) -> (Option<GroupSlot>, Option<GroupSlot>) {
        self.idle
    }

    pub(super) fn is_short(&self) -> bool {
        self.is_short != 0
    }

    pub(super) fn trees(&self) -> [(super::turns::Turns, List); 2] {
        [(self.turns, List::Turns), (self.served_now, List::Served)]
    }
}
