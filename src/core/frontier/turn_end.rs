//! Ends turns of groups: takes what the session has found, and lists the group again. See docs/internals/limits.md.
//!
//! Invariant: nothing of a group passes an attempt of it that ranks before, if the group keeps strict order. Nothing is
//! taken while an attempt of a smaller priority may start.

use super::answers::Served;
use super::group::{Group, Standing};
use super::limits::Claimer;
use super::memory::{Backlog, Frontier};
use super::rank::Rank;
use super::ready::Ready;
use super::running::Owner;
use super::slot::{GateSlot, GroupSlot, LaneSlot, SessionSlot};

/// The end of a turn: what the session may take of what it has found.
struct TurnEnd<'s> {
    served: &'s Served<'s>,
    claimer: &'s Claimer<'s>,
    group: GroupSlot,
    gate: GateSlot,
    /// The lane, if nothing may pass an earlier attempt of the group that is not parked.
    ordered: Option<LaneSlot>,
    /// How many more attempts may be taken.
    room: u32,
    /// The largest priority that may be taken.
    up_to: i32,
    taken: usize,
}

impl TurnEnd<'_> {
    /// Returns the earlier attempt of the entry's group in `ready` that comes first, because the session knows that no
    /// failed one must. The attempt is removed from `ready`. A stale one is removed, too.
    fn earlier(&self, frontier: &mut Frontier<'_>, instance: u32, entry: &Ready) -> Option<Ready> {
        let lane = self.ordered.filter(|_| self.served.is_free)?;
        let first = frontier.backlog.lanes.first_of_group(lane, entry.group, entry.rank.before())?;
        let is_stale = frontier.running.find(instance, first.id).is_some();
        let may_start = self.room > 0
            && first.rank.priority <= self.up_to
            && first.rank <= frontier.backlog.groups[self.group].spill()
            && frontier.backlog.is_known_to(lane, first.rank);
        if is_stale || may_start {
            frontier.backlog.lanes.remove_ready(lane, &first);
        }
        (may_start && !is_stale).then_some(first)
    }

    /// True if an attempt that was found may be taken now.
    fn may_take(&self, backlog: &mut Backlog<'_>, entry: &Ready) -> bool {
        // An attempt that came during the reading and ranks before this one must be read first.
        let is_overtaking = backlog.groups[self.group].spill() < entry.rank
            || self.ordered.is_some_and(|lane| backlog.would_pass(lane, entry));
        self.room > 0 && !is_overtaking && entry.rank.priority <= self.up_to
    }

    /// Takes the attempts that were found, as far as there is room. Returns those that are left.
    fn take(&mut self, frontier: &mut Frontier<'_>, group: &Group, owner: Owner, out: &mut [Ready]) -> &[Ready] {
        let Group { instance, lane, .. } = *group;
        for (nth, &entry) in self.served.found.iter().enumerate() {
            if frontier.running.hold_push(instance, entry.id) {
                continue;
            }
            if let Some(first) = self.earlier(frontier, instance, &entry) {
                frontier.backlog.charge(self.group, self.claimer, &first);
                let cost = frontier.add_claimed(instance, lane, owner, first, Some(self.gate));
                self.add(first, cost, out);
            }
            if !self.may_take(&mut frontier.backlog, &entry) {
                let group = &mut frontier.backlog.groups[self.group];
                group.position = group.position.min(entry.rank.before());
                return &self.served.found[nth..];
            }
            frontier.backlog.charge(self.group, self.claimer, &entry);
            let cost = frontier.add_claimed(instance, lane, owner, entry, Some(self.gate));
            self.add(entry, cost, out);
        }
        &[]
    }

    fn add(&mut self, entry: Ready, cost: u32, out: &mut [Ready]) {
        out[self.taken] = entry;
        (self.taken, self.room) = (self.taken + 1, if cost > 1 { 0 } else { self.room - 1 });
    }
}

impl Frontier<'_> {
    /// Ends the turn of a group: takes the attempts that were found, as [`Frontier::take_to`] does, as far as there is
    /// room. Returns how many were taken. After an error the caller says that nothing was found up to the position
    /// where the turn began. In both cases it goes on with [`Frontier::refill_wake`], as after a refill.
    pub fn turn_end(
        &mut self,
        instance: u32,
        lane: i32,
        owner: Owner,
        claimer: &Claimer<'_>,
        served: &Served<'_>,
        out: &mut [Ready],
    ) -> usize {
        let turn = &served.turn;
        let Some(slot) = self.backlog.group_slot(instance, lane, turn.group) else { return 0 };
        if self.backlog.groups[slot].served_by() != Some(SessionSlot::new(owner.session)) {
            return 0;
        }
        self.backlog.groups[slot].position = served.read_to;
        let gate = self.backlog.groups[slot].gate();
        let lane_slot = self.backlog.lanes.find(instance, lane);
        self.count_ending(instance, gate, claimer.ending);
        // The gate has the claim's settings, because the claim has just passed it.
        // A worker may have throttled the lane since the turn began.
        let open = lane_slot.filter(|&lane| self.backlog.lanes[lane].closed_until <= *self.backlog.now);
        let mut room = open.map_or(0, |_| self.backlog.room(gate, claimer));
        room = room.min(self.backlog.room_of(slot, claimer.ending));
        room = room.min(self.running.places(instance, lane)).min(out.len() as u32);
        // If the group is less urgent than expected, all other known attempts count.
        self.backlog.unlist(slot);
        let others = lane_slot.map_or(i32::MAX, |lane| self.backlog.next_of_others(lane, claimer.ending));
        let group = self.backlog.groups[slot];
        room = room.min(self.backlog.most_in_turn(slot) as u32);
        // An attempt that must run first may have come while the session looked for one.
        if served.is_free && !self.backlog.gates.retrying_is_over(gate, lane, group.hash) {
            room = 0;
        }
        // In strict order nothing may pass an earlier attempt of its group that is not parked. An attempt that must run
        // first passes all.
        let is_first = turn.must_look && !served.is_free;
        let ordered = lane_slot.filter(|_| self.backlog.is_strict(&group) && !is_first);
        let up_to = others.min(turn.up_to).max(turn.urgency);
        let mut end = TurnEnd { served, claimer, group: slot, gate, ordered, room, up_to, taken: 0 };
        let left = end.take(self, &group, owner, out);
        let kept = if is_first { &[] } else { left };
        let next = left.first().map(|entry| entry.rank.priority);
        self.backlog.turn_over(slot, served, next, kept);
        end.taken
    }

    /// Ends a turn of a session that is going away. Returns its lane, where other sessions may have waited for the end.
    /// The caller repeats it until it returns `None`.
    pub fn turn_abandon(&mut self, session: u32) -> Option<(u32, i32)> {
        let groups = &self.backlog.groups;
        if groups.head.served == 0 {
            return None;
        }
        let by = SessionSlot::new(session);
        let slot = groups.first(|group| group.gate.is_some() && group.served_by() == Some(by))?;
        let Group { instance, lane, .. } = groups[slot];
        self.backlog.stop_serving(slot);
        self.backlog.relist(slot);
        Some((instance, lane))
    }
}

impl Backlog<'_> {
    /// Lists a group again after a turn. `next`: the priority of the first attempt that was found and not taken.
    /// `kept`: the attempts that are kept as read ahead.
    fn turn_over(&mut self, slot: GroupSlot, served: &Served<'_>, next: Option<i32>, kept: &[Ready]) {
        let group = &self.groups[slot];
        let read_to: Rank = served.read_to.min(group.spill());
        let has_news = matches!(group.standing, Standing::Served { has_news: true, .. });
        self.stop_serving(slot);
        self.groups.keep_ahead(slot, kept, read_to);
        let group = &mut self.groups[slot];
        if served.is_held {
            group.position = group.position.min(served.turn.after);
            if !has_news {
                group.standing = Standing::Held;
            }
        }
        group.urgency = next.filter(|_| !has_news).unwrap_or(group.position.priority);
        self.relist(slot);
    }
}
