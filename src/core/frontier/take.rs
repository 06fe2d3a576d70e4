//! Hands out the attempts that are next.
//!
//! Invariant: only attempts that rank at or before the horizon are handed out, and none while an attempt of a smaller
//! priority may run.

use super::answers::{Next, Take};
use super::group::GroupSlot;
use super::groups::Choice;
use super::lane::LaneSlot;
use super::limits::{Claimer, GateSlot};
use super::memory::Frontier;
use super::rank::Rank;
use super::rates::OF_QUEUE;
use super::ready::Ready;
use super::running::Running;

impl Frontier<'_> {
    /// Returns the entry of `ready` that may be handed out next.
    pub(super) fn first_ready(&mut self, slot: LaneSlot) -> Option<Ready> {
        let limit = self.lanes[slot].limit();
        self.ring(slot).first().filter(|entry| entry.rank <= limit)
    }

    /// Returns the attempt of a lane that would be handed out next, if memory knows it and no turn of a group may come
    /// before it. Changes nothing.
    pub fn peek(&mut self, instance: u32, lane: i32) -> Option<Ready> {
        let slot = self.lane_slot(instance, lane)?;
        if self.turn_rank(slot).is_some() {
            return None;
        }
        self.first_ready(slot).filter(|entry| self.running_index.find(instance, entry.id).is_none())
    }

    /// Takes up to `out.len()` attempts for the open transaction of `owner`. `claimer` has the limits of a limited
    /// queue.
    pub fn take(
        &mut self,
        instance: u32,
        lane: i32,
        owner: u32,
        pid: i32,
        claimer: Option<&Claimer<'_>>,
        out: &mut [Ready],
    ) -> Take {
        self.take_to(instance, lane, owner, pid, claimer, Rank::MAX, out)
    }

    /// Returns what is known of a lane's next attempt. A lane without a slot is unread.
    pub fn next_in(&mut self, instance: u32, lane: i32) -> Next {
        let Some(slot) = self.lane_slot(instance, lane) else { return Next::Unread };
        let first = self.first_ready(slot).map(|entry| entry.rank);
        // Beyond the limit, an unread attempt may come before the group's turn.
        let limit = self.lanes[slot].limit();
        let turn = self.turn_rank(slot).filter(|turn| turn.priority <= limit.priority);
        match first.into_iter().chain(turn).min() {
            Some(rank) => Next::Ready(rank),
            None if self.lanes[slot].refiller.is_none() && self.lanes[slot].has_more() => Next::Unread,
            None => Next::Nothing,
        }
    }

    /// As [`Self::take`], but stops at attempts that come after `up_to`, because another lane comes first there. The
    /// first attempt is taken in any case. After it, entries of `ready` must not rank behind `up_to`, and attempts of a
    /// group must not have a larger priority.
    #[allow(clippy::too_many_arguments, reason = "which, where, what")]
    pub fn take_to(
        &mut self,
        instance: u32,
        lane: i32,
        owner: u32,
        pid: i32,
        claimer: Option<&Claimer<'_>>,
        up_to: Rank,
        out: &mut [Ready],
    ) -> Take {
        let Some(slot) = self.lane_or_create(instance, lane) else { return Take::NoLane };
        let Ok(gate) = self.pass(instance, slot, claimer) else { return Take::NoGate };
        let mut room = out.len();
        let mut has_groups = false;
        if let (Some(gate), Some(claimer)) = (gate, claimer) {
            self.count_ending(instance, gate, claimer.ending);
            room = room.min(self.room(gate, claimer) as usize);
            if room == 0 {
                return Take::Closed;
            }
            has_groups = self.gates[gate].has_groups();
        }
        let places = self.places(instance, lane) as usize;
        let mut taken = 0;
        let ending = claimer.and_then(|claimer| claimer.ending).filter(|ending| has_groups && !ending.is_empty());
        let mut own = None;
        // The group of the entry, if the entry was read ahead.
        let mut ahead = None;
        while taken < room {
            let unread = self.lanes[slot].len;
            let mut choice = match gate {
                Some(gate) if has_groups => self.choose(slot, gate),
                _ => self.first_ready(slot).map_or(Choice::Nothing, Choice::Ready),
            };
            if ending.is_some() {
                // The own turn can have changed only if an attempt may have been parked since, or was read ahead.
                if taken == 0 || ahead.is_some() || self.lanes[slot].len != unread {
                    // No unread attempt, and none that another session serves, may come before it.
                    own = self.own_turn(slot, ending, self.known_to(slot).min(self.free_to(slot)));
                }
                // This holds also if nothing was chosen because more must be read first.
                let next = self.next_priority(slot);
                let is_first = |&own: &GroupSlot| next.is_none_or(|next| self.groups[own].urgency < next);
                if let Some(own) = own.filter(is_first) {
                    choice = self.turn_or_ready(slot, own);
                }
            }
            ahead = None;
            let entry = match choice {
                Choice::Ready(entry) if taken > 0 && entry.rank > up_to => break,
                Choice::Ready(entry) => entry,
                Choice::Ahead(_, entry) if taken > 0 && entry.rank.priority > up_to.priority => break,
                Choice::Ahead(group, entry) => {
                    ahead = Some(group);
                    entry
                }
                Choice::Turn(_) if taken > 0 => break,
                Choice::Turn(_) if places == 0 => return Take::NoPlace,
                Choice::Turn(group) => return Take::Turn(self.serve(group, owner, ending, room, up_to.priority)),
                Choice::Index if taken == 0 && self.lanes[slot].refiller.is_none() => return Take::Index,
                // The caller gets the taken attempts first, or another session is just writing these entries.
                Choice::Index | Choice::Nothing => break,
                Choice::Later if taken == 0 => return Take::Refilling,
                Choice::Later => break,
                Choice::Full if taken == 0 => return Take::Full,
                Choice::Full => break,
            };
            if let Some(known) = self.running_index.find(instance, entry.id) {
                match ahead {
                    Some(group) => {
                        self.running[known].push_held = 1;
                        self.pop_ahead(group);
                        self.relist(group);
                    }
                    None => self.remove_ready(slot, &entry),
                }
                continue;
            }
            if taken == places {
                if taken == 0 {
                    return Take::NoPlace;
                }
                break;
            }
            let has_group = match gate {
                Some(gate) if has_groups && entry.group != 0 => {
                    self.group_or_create(instance, lane, gate, entry.group).is_some()
                }
                _ => true,
            };
            if !has_group {
                if taken == 0 {
                    return Take::Full;
                }
                break;
            }
            match ahead {
                Some(group) => self.pop_ahead(group),
                None => self.remove_ready(slot, &entry),
            }
            self.add_claimed(instance, lane, owner, pid, entry, gate);
            out[taken] = entry;
            taken += 1;
        }
        let share = (self.ready.len() / self.lanes.len()) as u32;
        let lane = &mut self.lanes[slot];
        lane.is_fresh &= u8::from(taken == 0);
        let (more, flag) = (lane.position < Rank::MAX, lane.refiller.is_some());
        match (taken, more, flag) {
            (0, _, true) => Take::Refilling,
            (0, true, false) => Take::Refill,
            (0, false, false) if lane.is_read() => Take::Refilling,
            (0, false, false) => Take::Empty,
            _ => Take::Some { taken, refill: more && !flag && lane.len < share.div_ceil(2) },
        }
    }

    /// Removes an entry, which is mostly the first one.
    pub(super) fn remove_ready(&mut self, slot: LaneSlot, entry: &Ready) {
        let mut ring = self.ring(slot);
        if ring.first().is_some_and(|first| first.rank == entry.rank) {
            ring.pop();
        } else if let Ok(nth) = ring.search(entry.rank) {
            ring.remove(nth);
        }
    }

    /// Makes the entry of an attempt that a worker's transaction takes, and counts the entry at the gate.
    pub(super) fn add_claimed(
        &mut self,
        instance: u32,
        lane: i32,
        owner: u32,
        pid: i32,
        entry: Ready,
        gate: Option<GateSlot>,
    ) {
        let slot = self.add_running(Running::taken(instance, lane, owner, pid, entry));
        let (Some(slot), Some(gate)) = (slot, gate) else { return };
        // The start is counted first, because the list of the group depends on how much it may still start.
        self.open_start(gate, slot);
        self.count_in(gate, slot);
        let gate = &mut self.gates[gate];
        if gate.limits.rate > 0 {
            gate.take_token();
            self.running[slot].token |= OF_QUEUE;
        }
        if let Some(lane) = self.lane_slot(instance, lane) {
            self.handed_out(lane);
        }
    }
}
