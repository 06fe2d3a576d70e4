//! Turns of groups: chooses the next group or attempt, and begins and ends the turn in which a session reads a group's
//! index (`job/group_turn.rs`). See docs/internals/limits.md.
//!
//! Invariant: of all attempts that may start, a smaller priority comes first. Groups of the same priority take turns.

use super::answers::{Served, Turn};
use super::ending::Ending;
use super::group::{Group, GroupSlot};
use super::groups::Choice;
use super::lane::LaneSlot;
use super::limits::GateSlot;
use super::memory::Frontier;
use super::rank::Rank;
use super::ready::Ready;
use super::session::SessionSlot;

impl Frontier<'_> {
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
        let first = self.lanes[lane].groups.served_now.first();
        first.map_or(i32::MAX, |slot| self.groups[slot].urgency)
    }

    /// Returns the priority of the next attempt. `None`: an unread attempt may come before it.
    pub(super) fn next_priority(&mut self, lane: LaneSlot) -> Option<i32> {
        let first = self.first_ready(lane).map(|entry| entry.rank.priority);
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
        let first = self.first_ready(lane).filter(|entry| entry.rank.priority == priority);
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
            let mut first = self.first_ready(lane).filter(|entry| entry.rank.priority == priority);
            if let Some(entry) = first
                && entry.group != 0
            {
                let (instance, id) = (self.lanes[lane].instance, self.lanes[lane].id);
                let is_managed = self.group_of(lane, &entry).is_some();
                if !is_managed && (self.is_retrying(gate, id, entry.group) || self.is_at_rate(gate, id, entry.group)) {
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
                    self.ring(lane).pop();
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
        if self.is_retrying(of.gate(), of.lane, of.hash) {
            return Choice::Turn(group);
        }
        let next = self.read_ahead(group).first().copied();
        let first = if self.is_strict(&of) {
            self.first_of_group(lane, of.hash, next.map_or(of.position, |next| next.rank))
        } else {
            None
        };
        match (first, next) {
            (Some(entry), _) => Choice::Ready(entry),
            (None, Some(next)) => Choice::Ahead(group, next),
            (None, None) => Choice::Turn(group),
        }
    }

    /// Returns the first entry of a group in `ready` that ranks at or before `up_to`.
    fn first_of_group(&mut self, lane: LaneSlot, hash: i64, up_to: Rank) -> Option<Ready> {
        let ring = self.ring(lane);
        let mut entries = (0..ring.len()).map(|nth| ring.get(nth)).take_while(|entry| entry.rank <= up_to);
        entries.find(|entry| entry.group == hash)
    }

    /// True if no unread attempt of the group with this turn can come before everything that is parked of it. Only
    /// strict order asks for that.
    fn turn_is_known(&self, lane: LaneSlot, group: GroupSlot) -> bool {
        let next = self.read_ahead(group).first().map(|entry| entry.rank.before());
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
            let waits =
                group.position < Rank::MAX && group.held == 0 && group.server.is_none() && group.urgency <= most;
            let is_first = best.is_none_or(|best| group.urgency < self.groups[best].urgency);
            let limits = self.gates[group.gate()].limits;
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
        let own = ending.map_or(0, |ending| ending.of_group(group.lane, group.hash));
        let limit = self.gates[group.gate()].limits.most_of_group();
        let places = limit.saturating_add(own).saturating_sub(group.running);
        places.min(self.rate_room(group.gate(), group.lane, group.hash))
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
        let wanted = wanted.min(self.room_of(slot, ending) as usize).max(1);
        self.unlist(slot);
        self.forget_ahead(slot);
        let known_to = self.lane_of(slot).map_or(i32::MAX, |lane| self.known_to(lane));
        self.head.servers += 1;
        if let Some(lists) = self.lists(slot) {
            lists.serving += 1;
        }
        let group = &mut self.groups[slot];
        (group.server, group.has_news, group.wanted) = (Some(SessionSlot::new(session)), 0, wanted.min(255) as u8);
        let (Group { position: after, urgency, lane, hash, .. }, gate) = (*group, group.gate());
        let must_look = self.is_retrying(gate, lane, hash);
        self.retrying_is_read(gate, lane, hash);
        let ahead = if must_look { 0 } else { self.room_ahead() };
        let turn = Turn { group: hash, after, urgency, up_to: up_to.min(known_to), must_look, wanted, ahead };
        self.relist(slot);
        turn
    }

    pub(super) fn stop_serving(&mut self, slot: GroupSlot) {
        self.unlist(slot);
        self.served(slot);
        let group = &mut self.groups[slot];
        (group.server, group.position, group.spill) = (None, group.from(), Rank::MAX);
    }

    pub(super) fn served(&mut self, slot: GroupSlot) {
        self.head.servers -= 1;
        if let Some(lists) = self.lists(slot) {
            lists.serving = lists.serving.saturating_sub(1);
        }
    }

    /// Ends the turn of a group: takes the attempts that were found, as [`Frontier::take`] does, as far as there is
    /// room. Returns how many were taken. After an error the caller says that nothing was found up to the position
    /// where the turn began. In both cases it goes on with [`Frontier::refill_wake`], as after a refill.
    #[allow(clippy::too_many_arguments, reason = "the arguments of take, and the attempts that were found")]
    pub fn turn_end(
        &mut self,
        instance: u32,
        lane: i32,
        owner: u32,
        pid: i32,
        claimer: &super::Claimer<'_>,
        turn: Turn,
        served: &Served<'_>,
        out: &mut [Ready],
    ) -> usize {
        let Some(slot) = self.group_slot(instance, lane, turn.group) else { return 0 };
        if self.groups[slot].server != Some(SessionSlot::new(owner)) {
            return 0;
        }
        self.groups[slot].position = served.read_to;
        let gate = self.groups[slot].gate();
        let lane_slot = self.lane_slot(instance, lane);
        self.count_ending(instance, gate, claimer.ending);
        let mut room = match lane_slot {
            // The gate has the claim's settings, because the claim has just passed it.
            Some(_) => self
                .room(gate, claimer)
                .min(self.room_of(slot, claimer.ending))
                .min(self.places(instance, lane))
                .min(out.len() as u32),
            None => 0,
        };
        // If the group is less urgent than expected, all other known attempts count, also those behind the horizon.
        self.unlist(slot);
        let others = lane_slot.map_or(i32::MAX, |lane| {
            let first = self.ring(lane).first().map(|entry| entry.rank.priority);
            let group = self.turn_rank(lane).map(|rank| rank.priority);
            let own = self.own_turn(lane, claimer.ending, i32::MAX).map(|own| self.groups[own].urgency);
            let most = self.free_to(lane).min(self.known_to(lane));
            first.into_iter().chain(group).chain(own).fold(most, i32::min)
        });
        let up_to = others.min(turn.up_to).max(turn.urgency);
        let of = self.groups[slot];
        // An attempt that must run first may have come while the session looked for one.
        if served.is_free && !self.retrying_is_over(gate, lane, of.hash) {
            room = 0;
        }
        // In strict order nothing may pass an earlier attempt of its group that is not parked. An attempt that must run
        // first passes all.
        let is_first = turn.must_look && !served.is_free;
        let ordered = lane_slot.filter(|_| self.is_strict(&of) && !is_first);
        let mut taken = 0;
        let mut left: &[Ready] = &[];
        for (nth, &entry) in served.found.iter().enumerate() {
            if let Some(known) = self.running_index.find(instance, entry.id) {
                self.running[known].push_held = 1;
                continue;
            }
            // The session knows that none must run first, so the first one in order may.
            if served.is_free
                && let Some(lane_slot) = ordered
                && let Some(first) = self.first_of_group(lane_slot, entry.group, entry.rank.before())
            {
                let is_stale = self.running_index.find(instance, first.id).is_some();
                let may_start = room > 0
                    && first.rank.priority <= up_to
                    && first.rank <= self.groups[slot].spill
                    && self.is_known_to(lane_slot, first.rank);
                if is_stale || may_start {
                    self.remove_ready(lane_slot, &first);
                }
                if may_start && !is_stale {
                    self.add_claimed(instance, lane, owner, pid, first, Some(gate));
                    out[taken] = first;
                    (taken, room) = (taken + 1, room - 1);
                }
            }
            // An attempt that came during the reading and ranks before this one must be read first.
            let is_overtaking =
                self.groups[slot].spill < entry.rank || ordered.is_some_and(|lane| self.would_pass(lane, &entry));
            if room == 0 || is_overtaking || up_to < entry.rank.priority {
                let group = &mut self.groups[slot];
                group.position = group.position.min(entry.rank.before());
                left = &served.found[nth..];
                break;
            }
            self.add_claimed(instance, lane, owner, pid, entry, Some(gate));
            out[taken] = entry;
            (taken, room) = (taken + 1, room - 1);
        }
        let read_to = served.read_to.min(self.groups[slot].spill);
        self.stop_serving(slot);
        if !is_first {
            self.keep_ahead(slot, left, read_to);
        }
        let group = &mut self.groups[slot];
        group.held = u8::from(served.is_held && group.has_news == 0);
        if served.is_held {
            group.position = group.position.min(turn.after);
        }
        let next = left.first().filter(|_| group.has_news == 0).map(|entry| entry.rank.priority);
        group.urgency = next.unwrap_or(group.position.priority);
        self.relist(slot);
        taken
    }

    /// True if no unread attempt ranks before this, or if memory for groups is short and the order cannot be kept.
    fn is_known_to(&self, lane: LaneSlot, rank: Rank) -> bool {
        let lane = &self.lanes[lane];
        lane.groups.is_short != 0 || rank <= lane.limit()
    }

    /// True if an earlier attempt of the entry's group is in `ready`, or may be unread.
    fn would_pass(&mut self, lane: LaneSlot, entry: &Ready) -> bool {
        !self.is_known_to(lane, entry.rank) || self.first_of_group(lane, entry.group, entry.rank.before()).is_some()
    }

    /// Ends a turn of a session that is going away. Returns its lane, where other sessions may have waited for the end.
    /// The caller repeats it until it returns `None`.
    pub fn turn_abandon(&mut self, session: u32) -> Option<(u32, i32)> {
        if self.head.servers == 0 {
            return None;
        }
        let slot = self.groups.find(|group| group.gate.is_some() && group.server == Some(SessionSlot::new(session)))?;
        let group = self.groups[slot];
        self.stop_serving(slot);
        self.relist(slot);
        Some((group.instance, group.lane))
    }

    /// Counts a hand-out of a lane.
    pub(super) fn handed_out(&mut self, lane: LaneSlot) {
        let lists = &mut self.lanes[lane].groups;
        lists.served += 1;
        lists.is_groups_turn ^= 1;
        lists.is_short = 0;
    }
}
