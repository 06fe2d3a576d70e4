//! Groups with a limit: only a few of their jobs run at the same time, or start within a period.
//!
//! A group with running jobs, or one that was served recently, has a slot and is **managed**. Its waiting attempts are
//! *parked* behind its position and not kept in `ready`, and it takes *turns*. The order of turns, and the transitions
//! of a group's standing, are in docs/internals/limits.md.
//!
//! Responsible for which groups are managed and for their standing. Not responsible for slots and lists (`group_set`).
//!
//! Invariant: every committed waiting attempt of a managed group that is due is in `ready`, in `running` or behind P,
//! or it ranks behind the group's position and is in the group's index. A group that has room and attempts behind its
//! position stands among the turns, or a session serves it, or it is *held*. If only its rate leaves no room, it
//! *rests*, or its starts are open. If its lane has no slot, everything is behind P.

use super::group::{Group, Standing, key_of};
use super::lane::Lists;
use super::limits::Limits;
use super::memory::Backlog;
use super::rank::Rank;
use super::ready::Ready;
use super::slot::{GateSlot, GroupSlot, LaneSlot};

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

impl Backlog<'_> {
    // ---- slots and lists

    pub(super) fn group_slot(&self, instance: u32, lane: i32, hash: i64) -> Option<GroupSlot> {
        if self.groups.head.used == 0 {
            return None;
        }
        let slot = self.groups.find(self.gate_of(instance, lane)?, key_of(lane, hash))?;
        let group = &self.groups[slot];
        (group.lane == lane && group.hash == hash).then_some(slot)
    }

    pub(super) fn lane_of(&self, group: GroupSlot) -> Option<LaneSlot> {
        self.lanes.find(self.groups[group].instance, self.groups[group].lane)
    }

    /// Returns the lists of a group's lane. `None`: the lane has no slot.
    fn lists(&mut self, group: GroupSlot) -> Option<&mut Lists> {
        let slot = self.lane_of(group)?;
        Some(&mut self.lanes[slot].groups)
    }

    /// Returns the limits that count for a group.
    pub(super) fn limits_of(&self, group: &Group) -> &Limits {
        &self.gates[group.gate()].limits
    }

    /// Takes a group off its list.
    pub(super) fn unlist(&mut self, slot: GroupSlot) {
        match self.lane_of(slot) {
            Some(lane) => self.groups.unlist(slot, Some(&mut self.lanes[lane].groups)),
            None => self.groups.unlist(slot, None),
        }
    }

    pub(super) fn group_or_create(&mut self, instance: u32, lane: i32, gate: GateSlot, hash: i64) -> Option<GroupSlot> {
        if let Some(slot) = self.group_slot(instance, lane, hash) {
            return Some(slot);
        }
        self.forget_idle(instance, lane);
        let key = key_of(lane, hash);
        if self.groups.find(gate, key).is_some() {
            // A group of another stage has the same key. That is very rare, so this group may wait until the other one
            // ends.
            return None;
        }
        if self.groups.is_full() {
            self.evict_group(instance, lane);
        }
        let group = Group { key, instance, lane, hash, position: Rank::MAX, ..Group::default() };
        let slot = self.groups.add(gate, group)?;
        self.gates[gate].groups += 1;
        Some(slot)
    }

    /// Forgets idle groups that were served long ago: at most two a call, so that no call takes long.
    fn forget_idle(&mut self, instance: u32, lane: i32) {
        let Some(slot) = self.lanes.find(instance, lane) else { return };
        for _ in 0..2 {
            let lists = &self.lanes[slot].groups;
            let Some(first) = lists.idle.0 else { return };
            if lists.served.saturating_sub(self.groups[first].served_at) < RECENT {
                return;
            }
            self.forget_group(first);
        }
    }

    /// Makes room for another group: forgets one without running jobs, preferably one of this lane.
    fn evict_group(&mut self, instance: u32, lane: i32) {
        let own = self.lanes.find(instance, lane);
        let near = own.and_then(|own| self.groups.last_of(&self.lanes[own].groups));
        let near = near.filter(|&slot| self.groups[slot].may_be_evicted());
        // A throttle ends with its slot.
        let other = || self.groups.first(|group| group.may_be_evicted() && group.closed_until == 0);
        let any = || self.groups.first(Group::may_be_evicted);
        let Some(slot) = near.or_else(other).or_else(any) else { return };
        let group = self.groups[slot];
        self.forget_group(slot);
        for (instance, lane) in [(instance, lane), (group.instance, group.lane)] {
            if let Some(slot) = self.lanes.find(instance, lane) {
                self.lanes[slot].groups.is_short = 1;
            }
        }
    }

    /// Forgets a group. Its parked attempts lie behind P afterwards.
    pub(super) fn forget_group(&mut self, slot: GroupSlot) {
        self.unlist(slot);
        let group = self.groups[slot];
        if group.from() < Rank::MAX
            && let Some(lane) = self.lane_of(slot)
        {
            self.lanes[lane].go_back(group.from());
        }
        if group.is_served() {
            self.count_unserved(slot);
        }
        self.gates[group.gate()].groups -= 1;
        self.groups.remove(slot);
    }

    /// Forgets what is parked of a group whose lane has no slot: it lies behind P. If nothing of the group runs,
    /// forgets the group, too.
    fn lose_lane(&mut self, slot: GroupSlot) {
        if self.groups[slot].running == 0 {
            self.forget_group(slot);
        } else {
            self.groups[slot].unpark();
            self.groups.forget_ahead(slot);
        }
    }

    /// Dissolves the lists of a lane that loses its slot. All its attempts lie behind P afterwards.
    pub(super) fn dissolve_lists(&mut self, lane: LaneSlot) {
        loop {
            let lists = &self.lanes[lane].groups;
            let Some(slot) = lists.turns.first().or(lists.in_way.first()).or(lists.idle.0) else { break };
            self.unlist(slot);
            self.lose_lane(slot);
        }
        self.lanes[lane].groups = Lists::default();
    }

    // ---- parking

    pub(super) fn is_strict(&self, group: &Group) -> bool {
        self.limits_of(group).is_strict
    }

    /// True if one more job of a group may run, whatever its rate.
    fn has_place_for_one(&self, group: &Group) -> bool {
        group.running < self.limits_of(group).most_of_group()
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
    /// with nothing but a rate take turns only for attempts that had to wait. With fair shares all take turns.
    fn may_go_first(&self, lane: LaneSlot, group: GroupSlot) -> bool {
        let group = &self.groups[group];
        if self.limits_of(group).is_fair
            || self.is_throttled(group)
            || self.gates.is_retrying(group.gate(), group.lane, group.hash)
            || !self.has_place_for_one(group)
            || self.is_at_rate(group.gate(), group.lane, group.hash)
        {
            return false;
        }
        let has_rate_only = self.limits_of(group).group == 0;
        if has_rate_only && group.from() == Rank::MAX && !group.is_served() {
            return true;
        }
        let served = self.lanes[lane].groups.served;
        group.standing == Standing::Idle && served.saturating_sub(group.served_at) >= RECENT
    }

    /// True if an entry must be parked.
    pub(super) fn waits_for_group(&self, lane: LaneSlot, entry: &Ready) -> bool {
        entry.group != 0 && self.group_of(lane, entry).is_some_and(|group| !self.may_go_first(lane, group))
    }

    /// Parks a waiting attempt of a managed group: the group's position moves before it. The groups' index must have
    /// its entry. Returns false if the group is not managed or no longer managed, so that the attempt belongs into
    /// `ready`.
    pub(super) fn park(&mut self, lane: LaneSlot, entry: &Ready) -> bool {
        let Some(slot) = self.group_of(lane, entry).or_else(|| self.new_fair_group(lane, entry)) else { return false };
        if self.may_go_first(lane, slot) {
            if self.groups[slot].standing == Standing::Idle {
                self.forget_group(slot);
            }
            return false;
        }
        let group = &mut self.groups[slot];
        let is_only = group.from() == Rank::MAX && !group.is_served();
        if is_only {
            self.catch_up(lane, slot, entry.rank.priority);
        }
        self.groups[slot].go_back(entry.rank.before());
        if is_only {
            self.groups.keep_ahead(slot, &[*entry], Rank::MAX);
        } else {
            self.groups.add_ahead(slot, entry);
        }
        self.group_changed(slot);
        true
    }

    /// True if the group of a parked entry has a turn, so that a session should be woken.
    pub(super) fn has_turn(&self, lane: LaneSlot, entry: &Ready) -> bool {
        self.group_of(lane, entry).is_some_and(|slot| self.groups[slot].standing == Standing::Turn)
    }

    // ---- standing

    /// Updates a group after one of its attempts has come or gone: another attempt may have to run first now.
    pub(super) fn group_changed(&mut self, slot: GroupSlot) {
        let urgency = self.groups.parked_priority(slot);
        let group = &mut self.groups[slot];
        group.note_news();
        if urgency != group.urgency {
            self.unlist(slot);
            self.groups[slot].urgency = urgency;
        }
        self.relist(slot);
    }

    /// Returns the standing that a group has now, and its sort key in the list of that standing.
    fn standing_now(&self, group: &Group) -> (Standing, i64) {
        let waits = group.from() < Rank::MAX;
        let order = i64::from(group.urgency);
        let standing = match group.standing {
            Standing::Held => Standing::Held,
            Standing::Served { has_news, wanted, by, spill, .. } => {
                let is_in_way = waits && (spill < Rank::MAX || self.room_for(group, 0) > u32::from(wanted));
                Standing::Served { is_in_way, has_news, wanted, by, spill }
            }
            _ if self.is_throttled(group) => return (Standing::Resting, group.closed_until),
            _ if !waits || !self.has_place_for_one(group) => {
                if group.running == 0 {
                    Standing::Idle
                } else {
                    Standing::Blocked
                }
            }
            _ if !self.is_at_rate(group.gate(), group.lane, group.hash) => Standing::Turn,
            _ => match self.rate_opens_at(group.gate(), group.lane, group.hash) {
                Some(at) => return (Standing::Resting, at),
                // All its starts are open: the first one whose time is known lists the group.
                None => Standing::Blocked,
            },
        };
        (standing, order)
    }

    /// Gives a group the standing that it has now.
    pub(super) fn relist(&mut self, slot: GroupSlot) {
        let group = self.groups[slot];
        let (standing, order) = self.standing_now(&group);
        // A resting group may rest until another time now.
        if group.standing == standing && standing != Standing::Resting {
            return;
        }
        self.unlist(slot);
        if group.standing == Standing::Resting && standing == Standing::Turn {
            self.come_back(slot);
        }
        match self.lane_of(slot) {
            Some(lane) => self.groups.enlist(slot, standing, order, &mut self.lanes[lane].groups),
            // Without a slot of its lane a group is in no list.
            None if matches!(standing, Standing::Turn | Standing::Idle | Standing::Resting) => self.lose_lane(slot),
            None => {}
        }
    }

    /// Returns how many attempts of a group may start, if `own` of its running attempts do not count.
    pub(super) fn room_for(&self, group: &Group, own: u32) -> u32 {
        if self.is_throttled(group) {
            return 0;
        }
        let limit = self.limits_of(group).most_of_group();
        let places = limit.saturating_add(own).saturating_sub(group.running);
        places.min(self.rate_room(group.gate(), group.lane, group.hash))
    }

    /// Counts an attempt of a group that is taken.
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
        let group = &self.groups[slot];
        if group.standing == Standing::Blocked && group.from() < Rank::MAX {
            self.come_back(slot);
        }
        // The attempt may be the one that held the group.
        self.group_changed(slot);
    }

    /// Counts a group that a session begins to serve.
    pub(super) fn count_served(&mut self, slot: GroupSlot) {
        self.groups.head.served += 1;
        if let Some(lists) = self.lists(slot) {
            lists.serving += 1;
        }
    }

    /// Counts a group that no session serves any more.
    pub(super) fn count_unserved(&mut self, slot: GroupSlot) {
        self.groups.head.served -= 1;
        if let Some(lists) = self.lists(slot) {
            lists.serving = lists.serving.saturating_sub(1);
        }
    }

    /// Removes the first of the attempts that were read ahead of a group. The caller lists the group again.
    pub(super) fn pop_ahead(&mut self, group: GroupSlot) {
        self.unlist(group);
        self.groups.pop_ahead(group);
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

    pub(super) fn trees(&self) -> [(super::turns::Turns, bool); 2] {
        [(self.turns, true), (self.in_way, false)]
    }
}
