//! Limits of queues: how many of their jobs run at the same time, and how many start within a period. The limits of
//! groups are in `groups` and `rates`.
//!
//! A **gate** counts the attempts of one limited queue that workers have taken, in all its lanes. Queues without limits
//! have no gate. The first claim with limits makes the gate from `running`, so a gate that counts nothing may be thrown
//! away. See docs/internals/limits.md.
//!
//! Invariant: a gate's `running` is the number of entries of the frontier's `running` that point to it. Every entry
//! that a worker has taken in one of its lanes points to it. Their number never exceeds the limit, except for attempts
//! that a session is ending while it has claimed others instead. A rollback undoes both.

use super::ending::Ending;
use super::lane::LaneSlot;
use super::limits::{Claimer, GATE_LANES, Gate, GateSlot};
use super::memory::Frontier;
use super::rates::{OF_GROUP, OF_QUEUE};
use super::running::{Running, RunningSlot, State};
use super::starts::PastStart;

impl Frontier<'_> {
    /// Counts the attempts of `ending` that were not counted yet, or all if gates have changed since. A claim calls it
    /// after it has passed the gate.
    pub(super) fn count_ending(&self, instance: u32, gate: GateSlot, ending: Option<&Ending>) {
        let Some(ending) = ending else { return };
        let counts = &mut *ending.0.borrow_mut();
        if counts.gate_changes != self.head.gate_changes {
            counts.groups.clear();
            (counts.looked, counts.running, counts.gate_changes) = (0, 0, self.head.gate_changes);
        }
        for &id in &counts.ids[counts.looked..] {
            let is_counted = |entry: &Running| entry.gate == Some(gate) && entry.state == State::Ending;
            let Some(entry) = self.entry(instance, id).filter(is_counted) else { continue };
            counts.running += 1;
            if entry.grouped != 0 {
                let key = (entry.lane, entry.group);
                match counts.groups.binary_search_by_key(&key, |group| group.0) {
                    Ok(at) => counts.groups[at].1 += 1,
                    Err(at) => counts.groups.insert(at, (key, 1)),
                }
            }
        }
        counts.looked = counts.ids.len();
    }

    fn gate_at(&mut self, slot: GateSlot) -> &mut Gate {
        &mut self.gates[slot]
    }

    /// Returns the gate of a lane, even if the lane has no slot.
    pub(super) fn gate_of(&self, instance: u32, lane: i32) -> Option<GateSlot> {
        if self.head.gates == 0 {
            return None;
        }
        let is_it = |gate: &Gate| gate.instance == instance && gate.len > 0 && gate.lanes().contains(&lane);
        self.gates.find(is_it)
    }

    /// Returns the gate that a claim has to pass, updated to the claim's settings. `Err`: there is no slot for the
    /// gate.
    pub(super) fn pass(
        &mut self,
        instance: u32,
        lane: LaneSlot,
        claimer: Option<&Claimer<'_>>,
    ) -> Result<Option<GateSlot>, ()> {
        let known = self.lanes[lane].gate;
        if let Some(claimer) = claimer {
            self.head.now = self.head.now.max(claimer.now);
        }
        match (known, claimer) {
            (None, None) => Ok(None),
            (Some(gate), None) => {
                self.drop_gate(gate);
                Ok(None)
            }
            (Some(gate), Some(claimer)) if self.is_as(gate, claimer) => Ok(Some(gate)),
            (_, Some(claimer)) => {
                let gate = self.set_gate(instance, claimer).ok_or(())?;
                self.lanes[lane].gate = Some(gate);
                Ok(Some(gate))
            }
        }
    }

    /// Updates the lane's gate, if it has one, to its queue's settings. For a session that looks and claims nothing.
    pub fn update_gate(&mut self, instance: u32, lane: i32, claimer: Option<&Claimer<'_>>) {
        if let Some(slot) = self.lane_slot(instance, lane)
            && self.lanes[slot].gate.is_some()
        {
            // It cannot fail, because the gate has its slot.
            let _ = self.pass(instance, slot, claimer);
        }
    }

    fn is_as(&self, gate: GateSlot, claimer: &Claimer<'_>) -> bool {
        let gate = &self.gates[gate];
        gate.limits == claimer.limits && gate.lanes() == claimer.lanes
    }

    pub(super) fn set_gate(&mut self, instance: u32, claimer: &Claimer<'_>) -> Option<GateSlot> {
        let is_it = |gate: &Gate| gate.len > 0 && gate.instance == instance && gate.queue == claimer.queue;
        let slot = match self.gates.find(is_it) {
            Some(slot) if self.is_as(slot, claimer) => return Some(slot),
            Some(slot) => slot,
            None => {
                let slot = self.free_gate(claimer.now)?;
                self.head.gates += 1;
                slot
            }
        };
        self.head.gate_changes = self.head.gate_changes.wrapping_add(1);
        self.clear_groups(slot);
        self.forget_retries(slot);
        if claimer.limits.group_rate == 0 {
            self.drop_rates(slot);
        }
        let gate = self.gate_at(slot);
        gate.opens_at = 0;
        (gate.instance, gate.queue, gate.limits, gate.running) = (instance, claimer.queue, claimer.limits, 0);
        gate.len = claimer.lanes.len().min(GATE_LANES) as u32;
        gate.lanes[..gate.len as usize].copy_from_slice(&claimer.lanes[..gate.len as usize]);
        for n in self.head.running_slots.used_from(0) {
            let entry = self.running[n];
            // This includes entries in a lane that an earlier claim knew and this one does not know.
            let is_own =
                entry.instance == instance && (entry.gate == Some(slot) || claimer.lanes.contains(&entry.lane));
            if entry.state != State::Free && is_own && entry.system == 0 {
                self.count_in(slot, n);
            }
        }
        Some(slot)
    }

    /// Returns a slot for a gate: a free one, or the slot of a gate that counts nothing.
    fn free_gate(&mut self, now: i64) -> Option<GateSlot> {
        if let Some(free) = self.gates.find(|gate| gate.len == 0) {
            return Some(free);
        }
        // A gate with groups is the last choice: its groups are forgotten, and their lanes are read again.
        let idle = [false, true].into_iter().find_map(|with_groups| {
            self.gates.slots().find(|&slot| {
                let gate = &mut self.gates[slot];
                gate.window.expire(gate.limits.period, now);
                let is_idle = gate.running == 0 && gate.window.is_empty();
                let is_idle = is_idle && (gate.groups == 0 || with_groups && self.groups_are_idle(slot));
                is_idle && self.rates_are_over(slot)
            })
        })?;
        self.drop_gate(idle);
        Some(idle)
    }

    /// True if no job of the gate's groups runs and no session serves one of these groups.
    fn groups_are_idle(&self, gate: GateSlot) -> bool {
        self.groups
            .iter()
            .filter(|group| group.gate == Some(gate))
            .all(|group| group.running == 0 && group.server.is_none())
    }

    /// Forgets a gate whose queue has no limits any more or was dropped.
    pub(super) fn drop_gate(&mut self, slot: GateSlot) {
        self.head.gate_changes = self.head.gate_changes.wrapping_add(1);
        self.clear_groups(slot);
        self.drop_rates(slot);
        self.forget_retries(slot);
        for n in self.head.running_slots.used_from(0) {
            let entry = &mut self.running[n];
            if entry.gate == Some(slot) {
                (entry.gate, entry.token) = (None, 0);
            }
        }
        for lane in self.lanes.iter_mut().filter(|lane| lane.gate == Some(slot)) {
            lane.gate = None;
        }
        *self.gate_at(slot) = Gate::default();
        self.head.gates -= 1;
    }

    /// Forgets the gates of an instance, or only the gate that counts the given lane.
    pub(super) fn drop_gates(&mut self, instance: u32, lane: Option<i32>) {
        for slot in self.gates.slots() {
            let gate = &self.gates[slot];
            let is_it = lane.is_none_or(|lane| gate.lanes().contains(&lane));
            if gate.len > 0 && gate.instance == instance && is_it {
                self.drop_gate(slot);
            }
        }
    }

    /// Forgets a gate's groups and orders their lanes to be read again.
    fn clear_groups(&mut self, slot: GateSlot) {
        if !self.gates[slot].has_groups() {
            return;
        }
        for n in self.groups.slots() {
            if self.groups[n].gate == Some(slot) {
                self.forget_group(n);
            }
        }
        for n in self.lanes.slots() {
            if self.lanes[n].gate == Some(slot) {
                self.lanes[n].invalidate();
            }
        }
    }

    /// Counts an entry of `running`. If groups are limited, the entry's group must have a slot or there must be a free
    /// one.
    pub(super) fn count_in(&mut self, gate: GateSlot, slot: RunningSlot) {
        let entry = &mut self.running[slot];
        entry.gate = Some(gate);
        let (instance, lane, group) = (entry.instance, entry.lane, entry.group);
        self.gate_at(gate).running += 1;
        if group != 0
            && self.gates[gate].has_groups()
            && let Some(group) = self.group_or_create(instance, lane, gate, group)
        {
            self.enter_group(group);
            self.running[slot].grouped = 1;
        }
    }

    /// Ends the counting of an entry of `running`.
    pub(super) fn count_out(&mut self, slot: RunningSlot) {
        let entry = &mut self.running[slot];
        let (gate, grouped) = (entry.gate, entry.grouped);
        (entry.gate, entry.grouped) = (None, 0);
        let entry = *entry;
        if let Some(slot) = gate {
            let gate = self.gate_at(slot);
            gate.running = gate.running.saturating_sub(1);
            if entry.token & OF_QUEUE != 0 {
                // The attempt has not started.
                gate.window.open -= 1;
                gate.opens_at = 0;
            }
            if entry.token & OF_GROUP != 0 {
                self.close_start(slot, &entry, None);
            }
        }
        self.running[slot].token = 0;
        if entry.group != 0
            && let Some(group) = self.group_slot(entry.instance, entry.lane, entry.group)
        {
            self.leave_group(group, grouped != 0);
        }
    }

    /// Turns an entry's open start into a start at `now`, the latest time at which it may have happened.
    pub(super) fn settle_token(&mut self, slot: RunningSlot, now: i64) {
        let entry = &mut self.running[slot];
        if entry.token == 0 {
            return;
        }
        let token = std::mem::take(&mut entry.token);
        let entry = *entry;
        let Some(slot) = entry.gate else { return };
        if token & OF_QUEUE != 0 {
            let gate = self.gate_at(slot);
            gate.window.open -= 1;
            gate.window.add(gate.limits.period, now, 1);
        }
        if token & OF_GROUP != 0 {
            self.close_start(slot, &entry, Some(now));
            if let Some(group) = self.group_slot(entry.instance, entry.lane, entry.group) {
                self.relist(group);
            }
        }
    }

    /// Returns how many more attempts a claim may take. Its own ends must be counted before. 0: the gate is closed to
    /// it.
    pub(super) fn room(&mut self, gate_slot: GateSlot, claimer: &Claimer<'_>) -> u32 {
        let limits = self.gates[gate_slot].limits;
        let mut room = u32::MAX;
        if limits.running > 0 {
            let most = limits.running.saturating_add(claimer.ending.map_or(0, Ending::running));
            room = most.saturating_sub(self.gates[gate_slot].running);
        }
        if limits.rate > 0 && room > 0 {
            let gate = self.gate_at(gate_slot);
            gate.window.expire(limits.period, claimer.now);
            let left = limits.rate.saturating_sub(gate.window.sum());
            if left == 0 {
                // If attempts may start, `opens_at` stays: the clock wakes the sessions that sleep at the gate.
                let opens_at = gate.window.frees_at(limits.period, claimer.now);
                self.close_until(gate_slot, opens_at);
            }
            room = room.min(left);
        }
        if limits.group_rate > 0 && room > 0 {
            room = match self.rates_room(gate_slot) {
                Ok(left) => room.min(left),
                Err(free_at) => {
                    self.close_until(gate_slot, free_at);
                    0
                }
            };
        }
        room
    }

    fn close_until(&mut self, gate: GateSlot, opens_at: i64) {
        self.gate_at(gate).opens_at = opens_at;
        if self.head.opens_at == 0 || opens_at < self.head.opens_at {
            self.head.opens_at = opens_at;
        }
    }

    /// Enters the starts from before the server's start that the logs have, each as a monotonic time and a number.
    /// Starts of groups are given once more by their group. They must come in the order of time, before the first
    /// claim. Returns false if there is no room for all groups, and forgets the gate.
    pub fn seed_rate(
        &mut self,
        instance: u32,
        claimer: &Claimer<'_>,
        starts: &[(i64, u32)],
        of_groups: &[PastStart],
    ) -> bool {
        self.head.now = self.head.now.max(claimer.now);
        let Some(slot) = self.set_gate(instance, claimer) else { return true };
        let gate = self.gate_at(slot);
        for &(at, count) in starts {
            gate.window.add(claimer.limits.period, at, count);
        }
        let all_fit = self.seed_rates(claimer, slot, of_groups);
        if !all_fit {
            self.drop_gate(slot);
        }
        all_fit
    }

    /// True if the queue has a gate.
    pub fn has_gate(&self, instance: u32, queue: i32) -> bool {
        self.gates.iter().any(|gate| gate.len > 0 && gate.instance == instance && gate.queue == queue)
    }

    /// Returns a monotonic time before which no gate opens that a rate has closed, over all instances.
    pub fn next_opening(&self) -> Option<i64> {
        let of_gate = (self.head.opens_at != 0).then_some(self.head.opens_at);
        let of_group = self.head.resting.first().map(|slot| self.groups[slot].order);
        of_gate.into_iter().chain(of_group).min()
    }

    /// Opens the gates whose time has come, and gives turns to groups whose rest has ended. Returns a session to wake.
    /// The caller repeats it until it returns `None`.
    pub fn open_gates(&mut self, now: i64) -> Option<u32> {
        self.head.now = self.head.now.max(now);
        while let Some(slot) = self.head.resting.first().filter(|&slot| self.groups[slot].order <= now) {
            let group = self.groups[slot];
            self.unlist(slot);
            self.relist(slot);
            if let Some(session) = self.pass_on(group.instance, group.lane) {
                return Some(session);
            }
        }
        if self.head.opens_at == 0 || self.head.opens_at > now {
            return None;
        }
        for slot in self.gates.slots() {
            let gate = self.gate_at(slot);
            if gate.opens_at != 0 && gate.opens_at <= now {
                gate.opens_at = 0;
                if let Some(session) = self.wake_at_gate(slot) {
                    return Some(session);
                }
            }
        }
        self.head.opens_at = self.gates.iter().map(|gate| gate.opens_at).filter(|&at| at != 0).min().unwrap_or(0);
        None
    }

    /// If the gate is open, wakes a session that waits for one of its lanes and may find a job there.
    pub(super) fn wake_at_gate(&mut self, slot: GateSlot) -> Option<u32> {
        let gate = self.gates[slot];
        if gate.is_closed() {
            return None;
        }
        gate.lanes().iter().find_map(|&lane| {
            let lane = self.lane_slot(gate.instance, lane)?;
            self.wake_next(lane)
        })
    }
}
