//! Turns of groups: chooses the next group or attempt, and begins and ends the turn in which a session reads a group's
//! index (`job/group_turn.rs`). See docs/internals/limits.md.
//!
//! Invariant: of all attempts that may start, a smaller priority comes first. Groups of the same priority take turns.

use super::answers::Turn;
use super::ending::Ending;
use super::group::{Group, Standing};
use super::managed::Choice;
use super::memory::Backlog;
use super::rank::Rank;
use super::ready::Ready;
use super::slot::{GateSlot, GroupSlot, LaneSlot, SessionSlot};

impl Backlog<'_> {
    /// Returns the rank of the next turn in a lane: the urgency and the position of its group.
    pub(super) fn turn_rank(&self, lane: LaneSlot) -> Option<Rank> {
        let group = &self.groups[self.lanes[lane].groups.turns.first()?];
        Some(Rank { priority: group.urgency, ..group.position })
    }

    /// Returns the largest priority that may be handed out: no unread attempt has a smaller one.
    pub(super) fn known_to(&self, lane: LaneSlot) -> i32 {
        self.lanes[lane].limit().priority
    }

    /// Returns the largest priority that does not have to wait for the end of another session's turn.
    pub(super) fn free_to(&self, lane: LaneSlot) -> i32 {
        let first = self.lanes[lane].groups.in_way.first();
        first.map_or(i32::MAX, |slot| self.groups[slot].urgency)
    }

    /// Returns the priority of the next attempt. `None`: an unread attempt may come before it.
    pub(super) fn next_priority(&mut self, lane: LaneSlot) -> Option<i32> {
        let first = self.lanes.first_ready(lane).map(|entry| entry.rank.priority);
        let is_short = self.lanes[lane].groups.is_short != 0;
        let turn = self.turn_rank(lane).map(|rank| rank.priority);
        let turn = turn.filter(|&priority| is_short || priority <= self.known_to(lane) && self.first_is_known(lane));
        first.into_iter().chain(turn).min()
    }

    /// True if a look is useful although another session is still reading.
    pub(super) fn has_choice(&mut self, lane: LaneSlot) -> bool {
        let is_flag_up = self.lanes[lane].refiller.is_some();
        let Some(priority) = self.next_priority(lane) else {
            return !is_flag_up && self.lanes[lane].has_more();
        };
        let first = self.lanes.first_ready(lane).filter(|entry| entry.rank.priority == priority);
        let is_stuck = |entry: Ready| self.needs_entry(lane, &entry) && !self.has_other_turn(lane, &entry);
        priority <= self.free_to(lane) && !(is_flag_up && first.is_some_and(is_stuck))
    }

    /// True if an entry of `ready` must be parked, and is not in the groups' index yet.
    fn needs_entry(&self, lane: LaneSlot, entry: &Ready) -> bool {
        !entry.place.is_indexed && self.waits_for_group(lane, entry)
    }

    /// True if another group than the entry's has the next turn, and the same priority.
    fn has_other_turn(&self, lane: LaneSlot, entry: &Ready) -> bool {
        let turn = self.next_turn(lane, entry.rank.priority);
        turn.is_some() && turn != self.group_of(lane, entry)
    }

    /// Returns the group with the next turn if it has this urgency, and no unread attempt may come before it.
    fn next_turn(&self, lane: LaneSlot, priority: i32) -> Option<GroupSlot> {
        let lists = &self.lanes[lane].groups;
        let turn = lists.turns.first().filter(|&slot| self.groups[slot].urgency == priority)?;
        (lists.is_short != 0 || self.turn_is_known(lane, turn)).then_some(turn)
    }

    /// Parks the entries at the head of `ready` that must wait for their group, and returns what comes next.
    pub(super) fn choose(&mut self, lane: LaneSlot, gate: GateSlot) -> Choice {
        loop {
            let Some(priority) = self.next_priority(lane) else { return Choice::Nothing };
            if priority > self.free_to(lane) {
                return Choice::Later;
            }
            // An entry behind a turn need not be parked yet.
            let mut first = self.lanes.first_ready(lane).filter(|entry| entry.rank.priority == priority);
            if let Some(entry) = first
                && entry.group != 0
            {
                let (instance, id) = (self.lanes[lane].instance, self.lanes[lane].id);
                let is_managed = self.group_of(lane, &entry).is_some();
                if !is_managed
                    && (self.gates[gate].limits.is_fair
                        || self.gates.is_retrying(gate, id, entry.group)
                        || self.is_at_rate(gate, id, entry.group))
                {
                    // Only the logs say which job of a strict group must run first, so the session reads the group from
                    // them.
                    match self.group_or_create(instance, id, gate, entry.group) {
                        Some(group) => self.relist(group),
                        None => return Choice::Full,
                    }
                }
                if self.needs_entry(lane, &entry) {
                    if self.lanes[lane].refiller.is_none() || !self.has_other_turn(lane, &entry) {
                        return Choice::Index;
                    }
                    // While another session has the lane's flag, other groups need not wait for it.
                    first = None;
                } else if self.park(lane, &entry) {
                    self.lanes.ring(lane).pop();
                    continue;
                }
            }
            let turn = self.next_turn(lane, priority);
            let here = &mut self.lanes[lane];
            return match (first, turn) {
                (Some(entry), None) => Choice::Ready(entry),
                (Some(entry), Some(_)) if here.groups.is_groups_turn == 0 => Choice::Ready(entry),
                // There may be other groups behind P that have waited longer. But if there was no room for all of them,
                // reading on would only evict others.
                (None, Some(_))
                    if here.groups.is_groups_turn == 0
                        && here.groups.is_short == 0
                        && here.len == 0
                        && here.has_more() =>
                {
                    here.groups.is_groups_turn = 1;
                    Choice::Nothing
                }
                (_, Some(turn)) => self.turn_or_ready(lane, turn),
                (None, None) => Choice::Nothing,
            };
        }
    }

    /// Returns the turn of a group, or what was read ahead of it. If the group keeps strict order, and an entry of
    /// `ready` comes before everything that is parked, returns that entry.
    pub(super) fn turn_or_ready(&mut self, lane: LaneSlot, group: GroupSlot) -> Choice {
        let of = self.groups[group];
        if self.gates.is_retrying(of.gate(), of.lane, of.hash) {
            return Choice::Turn(group);
        }
        let next = self.groups.read_ahead(group).first().copied();
        let first = if self.is_strict(&of) {
            self.lanes.first_of_group(lane, of.hash, next.map_or(of.position, |next| next.rank))
        } else {
            None
        };
        match (first, next) {
            (Some(entry), _) => Choice::Ready(entry),
            (None, Some(next)) => Choice::Ahead(group, next),
            (None, None) => Choice::Turn(group),
        }
    }

    /// True if no unread attempt of the group with this turn can come before everything that is parked of it. Only
    /// strict order asks for that.
    fn turn_is_known(&self, lane: LaneSlot, group: GroupSlot) -> bool {
        let next = self.groups.read_ahead(group).first().map(|entry| entry.rank.before());
        let group = &self.groups[group];
        let limit = self.lanes[lane].limit();
        !self.is_strict(group) || group.urgency < limit.priority || next.unwrap_or(group.position) < limit
    }

    /// As `turn_is_known`, of the first of the turns.
    fn first_is_known(&self, lane: LaneSlot) -> bool {
        let first = self.lanes[lane].groups.turns.first();
        first.is_none_or(|group| self.turn_is_known(lane, group))
    }

    /// Returns the most urgent group that has room only for this claim, because the claim's own transaction is ending
    /// attempts of it. Its urgency is at most `most`.
    pub(super) fn own_turn(&self, lane: LaneSlot, ending: Option<&Ending>, most: i32) -> Option<GroupSlot> {
        let (instance, id) = (self.lanes[lane].instance, self.lanes[lane].id);
        let mut best: Option<GroupSlot> = None;
        ending?.each_group(id, |hash| {
            let Some(slot) = self.group_slot(instance, id, hash) else { return };
            let group = &self.groups[slot];
            let waits = group.position < Rank::MAX
                && !group.is_served()
                && group.standing != Standing::Held
                && !self.is_throttled(group)
                && group.urgency <= most;
            let is_first = best.is_none_or(|best| group.urgency < self.groups[best].urgency);
            let limits = self.limits_of(group);
            // This transaction is ending one of the running attempts, so there is room. They must be counted only if
            // too many run.
            let has_place = group.running <= limits.most_of_group() && limits.group_rate == 0;
            let is_known = self.lanes[lane].groups.is_short != 0 || self.turn_is_known(lane, slot);
            if waits && is_first && is_known && (has_place || self.room_of(slot, ending) > 0) {
                best = Some(slot);
            }
        });
        best
    }

    /// Returns how many attempts of a group may start, without counting those that the claim's own transaction is
    /// ending.
    pub(super) fn room_of(&self, slot: GroupSlot, ending: Option<&Ending>) -> u32 {
        let group = &self.groups[slot];
        self.room_for(group, ending.map_or(0, |ending| ending.of_group(group.lane, group.hash)))
    }

    /// Begins a session's turn with a group. The session wants `wanted` attempts of a priority of at most `up_to`.
    pub(super) fn serve(
        &mut self,
        slot: GroupSlot,
        session: u32,
        ending: Option<&Ending>,
        wanted: usize,
        up_to: i32,
    ) -> Turn {
        self.unlist(slot);
        let wanted = wanted.min(self.most_in_turn(slot)).min(self.room_of(slot, ending) as usize).max(1);
        self.groups.forget_ahead(slot);
        let known_to = self.lane_of(slot).map_or(i32::MAX, |lane| self.known_to(lane));
        self.count_served(slot);
        let group = &mut self.groups[slot];
        group.standing = Standing::Served {
            is_in_way: false,
            has_news: false,
            wanted: wanted.min(255) as u8,
            by: SessionSlot::new(session),
            spill: Rank::MAX,
        };
        let (Group { position: after, urgency, lane, hash, .. }, gate) = (*group, group.gate());
        let must_look = self.gates.is_retrying(gate, lane, hash);
        self.gates.retrying_is_read(gate, lane, hash);
        let ahead = if must_look { 0 } else { self.groups.room_ahead() };
        let turn = Turn { group: hash, after, urgency, up_to: up_to.min(known_to), must_look, wanted, ahead };
        self.relist(slot);
        turn
    }

    /// Ends the service of a group. The caller lists the group again.
    pub(super) fn stop_serving(&mut self, slot: GroupSlot) {
        self.unlist(slot);
        self.count_unserved(slot);
        let group = &mut self.groups[slot];
        (group.position, group.standing) = (group.from(), Standing::Blocked);
    }

    /// True if no unread attempt ranks before this, or if memory for groups is short and the order cannot be kept.
    pub(super) fn is_known_to(&self, lane: LaneSlot, rank: Rank) -> bool {
        let lane = &self.lanes[lane];
        lane.groups.is_short != 0 || rank <= lane.limit()
    }

    /// True if an earlier attempt of the entry's group is in `ready`, or may be unread.
    pub(super) fn would_pass(&mut self, lane: LaneSlot, entry: &Ready) -> bool {
        !self.is_known_to(lane, entry.rank)
            || self.lanes.first_of_group(lane, entry.group, entry.rank.before()).is_some()
    }

    /// Returns the smallest priority of what a lane may hand out beside a group that is in no list. Unlike
    /// [`Self::next_priority`], this counts all known attempts, also those behind the horizon.
    pub(super) fn next_of_others(&mut self, lane: LaneSlot, ending: Option<&Ending>) -> i32 {
        let first = self.lanes.ring(lane).first().map(|entry| entry.rank.priority);
        let group = self.turn_rank(lane).map(|rank| rank.priority);
        let own = self.own_turn(lane, ending, i32::MAX).map(|own| self.groups[own].urgency);
        let most = self.free_to(lane).min(self.known_to(lane));
        first.into_iter().chain(group).chain(own).fold(most, i32::min)
    }
}
