//! Hands out the attempts that are next.
//!
//! Invariant: only attempts that rank at or before the horizon are handed out, and none while an attempt of a smaller
//! priority may run.

use super::answers::{Next, Take};
use super::ending::Ending;
use super::lane::Lane;
use super::lane_set::LaneSet;
use super::limits::Claimer;
use super::managed::Choice;
use super::memory::{Backlog, Frontier};
use super::rank::Rank;
use super::ready::Ready;
use super::running::Owner;
use super::slot::{GateSlot, GroupSlot, LaneSlot};

/// A claim that takes attempts of one lane.
struct Taking<'c> {
    lane: LaneSlot,
    /// The gate of a limited queue that limits groups.
    groups_gate: Option<GateSlot>,
    /// The attempts that the claim's transaction is ending, if groups are limited.
    ending: Option<&'c Ending>,
    session: u32,
    up_to: Rank,
    /// How many attempts may be taken.
    room: usize,
    /// How many places the lane has in `running`.
    places: usize,
    taken: usize,
    /// The group whose turn only this claim may have.
    own: Option<GroupSlot>,
    /// True if the last attempt was read ahead of its group.
    was_ahead: bool,
}

/// What a claim does next.
enum Step {
    /// It takes this attempt, which was read ahead of this group if there is one.
    Take(Ready, Option<GroupSlot>),
    /// It takes no more.
    Stop,
    /// It takes no more. If it has taken nothing, this is the answer.
    Answer(Take),
}

impl Taking<'_> {
    /// Returns what comes next in the lane.
    fn choose(&mut self, backlog: &mut Backlog<'_>) -> Choice {
        let Some(gate) = self.groups_gate else {
            return backlog.lanes.first_ready(self.lane).map_or(Choice::Nothing, Choice::Ready);
        };
        let unread = backlog.lanes[self.lane].len;
        let choice = backlog.choose(self.lane, gate);
        if self.ending.is_none() {
            return choice;
        }
        // The own turn can have changed only if an attempt may have been parked since, or was read ahead.
        if self.taken == 0 || self.was_ahead || backlog.lanes[self.lane].len != unread {
            // No unread attempt, and none that another session serves, may come before it.
            let most = backlog.known_to(self.lane).min(backlog.free_to(self.lane));
            self.own = backlog.own_turn(self.lane, self.ending, most);
        }
        // This holds also if nothing was chosen because more must be read first.
        let next = backlog.next_priority(self.lane);
        let is_first = |&own: &GroupSlot| next.is_none_or(|next| backlog.groups[own].urgency < next);
        match self.own.filter(is_first) {
            Some(own) => backlog.turn_or_ready(self.lane, own),
            None => choice,
        }
    }

    /// Returns what the claim does about a choice. If that is the turn of a group, begins it.
    fn step(&self, backlog: &mut Backlog<'_>, choice: Choice) -> Step {
        let is_first = self.taken == 0;
        match choice {
            Choice::Ready(entry) if is_first || entry.rank <= self.up_to => Step::Take(entry, None),
            Choice::Ahead(group, entry) if is_first || entry.rank.priority <= self.up_to.priority => {
                Step::Take(entry, Some(group))
            }
            // The caller gets the taken attempts first.
            Choice::Ready(_) | Choice::Ahead(..) | Choice::Nothing => Step::Stop,
            _ if !is_first => Step::Stop,
            Choice::Turn(_) if self.places == 0 => Step::Answer(Take::NoPlace),
            Choice::Turn(group) => {
                let up_to = self.up_to.priority;
                Step::Answer(Take::Turn(backlog.serve(group, self.session, self.ending, self.room, up_to)))
            }
            // Another session may be writing these entries.
            Choice::Index if backlog.lanes[self.lane].refiller.is_some() => Step::Stop,
            Choice::Index => Step::Answer(Take::Index),
            Choice::Later => Step::Answer(Take::Refilling),
            Choice::Full => Step::Answer(Take::Full),
        }
    }

    /// Returns what there is to say when no more can be taken.
    fn answer(&self, lanes: &mut LaneSet<'_>) -> Take {
        let half = (lanes.capacity() as u32).div_ceil(2);
        let lane = &mut lanes[self.lane];
        lane.is_fresh &= u8::from(self.taken == 0);
        let (more, flag) = (lane.has_more(), lane.refiller.is_some());
        match (self.taken, more, flag) {
            (0, _, true) => Take::Refilling,
            (0, true, false) => Take::Refill,
            (0, false, false) if lane.is_read() => Take::Refilling,
            (0, false, false) => Take::Empty,
            (taken, ..) => Take::Some { taken, refill: more && !flag && lane.len < half },
        }
    }
}

impl Frontier<'_> {
    /// Returns the attempt of a lane that would be handed out next, if memory knows it and no turn of a group may come
    /// before it. Changes nothing.
    pub fn peek(&mut self, instance: u32, lane: i32) -> Option<Ready> {
        let slot = self.backlog.lanes.find(instance, lane)?;
        if self.backlog.turn_rank(slot).is_some() {
            return None;
        }
        let first = self.backlog.lanes.first_ready(slot);
        first.filter(|entry| self.running.find(instance, entry.id).is_none())
    }

    /// Returns what is known of a lane's next attempt. A lane without a slot is unread.
    pub fn next_in(&mut self, instance: u32, lane: i32) -> Next {
        let backlog = &mut self.backlog;
        let Some(slot) = backlog.lanes.find(instance, lane) else { return Next::Unread };
        let first = backlog.lanes.first_ready(slot).map(|entry| entry.rank);
        // Beyond the limit, an unread attempt may come before the group's turn.
        let limit = backlog.known_to(slot);
        let turn = backlog.turn_rank(slot).filter(|turn| turn.priority <= limit);
        match first.into_iter().chain(turn).min() {
            Some(rank) => Next::Ready(rank),
            None if backlog.lanes[slot].refiller.is_none() && backlog.lanes[slot].has_more() => Next::Unread,
            None => Next::Nothing,
        }
    }

    /// Takes up to `out.len()` attempts for the open transaction of `owner`. `claimer` has the limits of a limited
    /// queue. Stops at attempts that come after `up_to`, because another lane comes first there. The first attempt is
    /// taken in any case. After it, entries of `ready` must not rank behind `up_to`, and attempts of a group must not
    /// have a larger priority.
    pub fn take_to(
        &mut self,
        instance: u32,
        lane: i32,
        owner: Owner,
        claimer: Option<&Claimer<'_>>,
        up_to: Rank,
        out: &mut [Ready],
    ) -> Take {
        let Some(slot) = self.backlog.lane_or_create(instance, lane) else { return Take::NoLane };
        let Ok(gate) = self.pass(instance, slot, claimer) else { return Take::NoGate };
        if self.backlog.lanes[slot].closed_until > *self.backlog.now {
            return Take::Closed;
        }
        let mut room = out.len();
        let mut groups_gate = None;
        if let (Some(gate), Some(claimer)) = (gate, claimer) {
            self.count_ending(instance, gate, claimer.ending);
            room = room.min(self.backlog.room(gate, claimer) as usize);
            if room == 0 {
                return Take::Closed;
            }
            groups_gate = Some(gate).filter(|&gate| self.backlog.gates[gate].has_groups());
        }
        let ending = claimer.and_then(|claimer| claimer.ending);
        let ending = ending.filter(|ending| groups_gate.is_some() && !ending.is_empty());
        let (session, places) = (owner.session, self.running.places(instance, lane) as usize);
        let (taken, own, was_ahead) = (0, None, false);
        let mut taking =
            Taking { lane: slot, groups_gate, ending, session, up_to, room, places, taken, own, was_ahead };
        while taking.taken < room {
            let choice = taking.choose(&mut self.backlog);
            let (entry, ahead) = match taking.step(&mut self.backlog, choice) {
                Step::Take(entry, ahead) => (entry, ahead),
                Step::Stop => break,
                Step::Answer(answer) => return answer,
            };
            taking.was_ahead = ahead.is_some();
            if self.drop_taken(slot, &entry, ahead) {
                continue;
            }
            let has_place = taking.taken < places;
            let groups_gate = groups_gate.filter(|_| entry.group != 0 && has_place);
            let group = groups_gate.and_then(|gate| self.backlog.group_or_create(instance, lane, gate, entry.group));
            let missing = match groups_gate {
                _ if !has_place => Some(Take::NoPlace),
                Some(_) if group.is_none() => Some(Take::Full),
                _ => None,
            };
            match missing {
                Some(answer) if taking.taken == 0 => return answer,
                Some(_) => break,
                None => {}
            }
            match ahead {
                Some(group) => self.backlog.pop_ahead(group),
                None => {
                    self.backlog.lanes.remove_ready(slot, &entry);
                    if let Some(group) = group {
                        // In strict order it can have a turn.
                        self.backlog.unlist(group);
                        self.backlog.catch_up(slot, group, entry.rank.priority);
                    }
                }
            }
            if let (Some(group), Some(claimer)) = (group, claimer) {
                self.backlog.charge(group, claimer, &entry);
            }
            let is_dear = self.add_claimed(instance, lane, owner, entry, gate) > 1;
            out[taking.taken] = entry;
            taking.taken += 1;
            if is_dear {
                break;
            }
        }
        taking.answer(&mut self.backlog.lanes)
    }

    /// If the attempt is already taken, removes it from what waits, and returns true.
    fn drop_taken(&mut self, lane: LaneSlot, entry: &Ready, ahead: Option<GroupSlot>) -> bool {
        let Lane { instance, .. } = self.backlog.lanes[lane];
        let Some(known) = self.running.find(instance, entry.id) else { return false };
        match ahead {
            Some(group) => {
                self.running[known].push_held = 1;
                self.backlog.pop_ahead(group);
                self.backlog.relist(group);
            }
            None => self.backlog.lanes.remove_ready(lane, entry),
        }
        true
    }
}

#[cfg(test)]
impl Frontier<'_> {
    /// As [`Self::take_to`], from one lane only.
    pub fn take(
        &mut self,
        instance: u32,
        lane: i32,
        session: u32,
        pid: i32,
        claimer: Option<&Claimer<'_>>,
        out: &mut [Ready],
    ) -> Take {
        self.take_to(instance, lane, Owner { session, pid }, claimer, Rank::MAX, out)
    }
}
