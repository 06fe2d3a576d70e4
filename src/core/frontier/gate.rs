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
use super::group::{Group, Standing};
use super::limits::Claimer;
use super::memory::{Backlog, Frontier};
use super::rates::{OF_GROUP, OF_QUEUE};
use super::running::{Running, State};
use super::slot::{GateSlot, LaneSlot, RunningSlot};
use super::starts::PastStart;

impl Frontier<'_> {
    /// Counts the attempts of `ending` that were not counted yet, or all if gates have changed since. A claim calls it
    /// after it has passed the gate.
    pub(super) fn count_ending(&self, instance: u32, gate: GateSlot, ending: Option<&Ending>) {
        let Some(ending) = ending else { return };
        let counts = &mut *ending.0.borrow_mut();
        let changes = self.backlog.gates.head.changes;
        if counts.gate_changes != changes {
            counts.groups.clear();
            (counts.looked, counts.running, counts.gate_changes) = (0, 0, changes);
        }
        for &id in &counts.ids[counts.looked..] {
            let is_counted = |entry: &Running| entry.gate == Some(gate) && entry.state == State::Ending;
            let Some(entry) = self.running.entry(instance, id).filter(is_counted) else { continue };
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

    /// Returns the gate that a claim has to pass, updated to the claim's settings. `Err`: there is no slot for the
    /// gate.
    pub(super) fn pass(
        &mut self,
        instance: u32,
        lane: LaneSlot,
        claimer: Option<&Claimer<'_>>,
    ) -> Result<Option<GateSlot>, ()> {
        let known = self.backlog.lanes[lane].gate;
        if let Some(claimer) = claimer {
            *self.backlog.now = claimer.now.max(*self.backlog.now);
        }
        match (known, claimer) {
            (None, None) => Ok(None),
            (Some(gate), None) => {
                self.drop_gate(gate);
                Ok(None)
            }
            (Some(gate), Some(claimer)) if self.backlog.gates.is_as(gate, claimer) => Ok(Some(gate)),
            (_, Some(claimer)) => {
                let gate = self.set_gate(instance, claimer).ok_or(())?;
                self.backlog.lanes[lane].gate = Some(gate);
                Ok(Some(gate))
            }
        }
    }

    /// Updates the lane's gate, if it has one, to its queue's settings. For a session that looks and claims nothing.
    pub fn update_gate(&mut self, instance: u32, lane: i32, claimer: Option<&Claimer<'_>>) {
        if let Some(slot) = self.backlog.lanes.find(instance, lane)
            && self.backlog.lanes[slot].gate.is_some()
        {
            // It cannot fail, because the gate has its slot.
            let _ = self.pass(instance, slot, claimer);
        }
    }

    pub(super) fn set_gate(&mut self, instance: u32, claimer: &Claimer<'_>) -> Option<GateSlot> {
        let slot = match self.backlog.gates.of_queue(instance, claimer.queue) {
            Some(slot) if self.backlog.gates.is_as(slot, claimer) => return Some(slot),
            Some(slot) => slot,
            None => {
                let slot = self.free_gate(claimer.now)?;
                self.backlog.gates.head.used += 1;
                slot
            }
        };
        self.forget_limits(slot, claimer.limits.group_rate == 0);
        self.backlog.starts.forget_dear(slot);
        self.backlog.gates.set(slot, instance, claimer);
        for n in self.running.slots() {
            let entry = &self.running[n];
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
        let backlog = &mut self.backlog;
        if let Some(free) = backlog.gates.first(|gate| gate.len == 0) {
            return Some(free);
        }
        // A gate with groups is the last choice: its groups are forgotten, and their lanes are read again.
        let idle = [false, true].into_iter().find_map(|with_groups| {
            backlog.gates.slots().find(|&slot| {
                let gate = &mut backlog.gates[slot];
                gate.window.expire(gate.limits.period, now);
                let is_idle = gate.running == 0 && gate.window.is_empty();
                let is_idle = is_idle && (gate.groups == 0 || with_groups && backlog.groups_are_idle(slot));
                is_idle && backlog.records_are_over(slot)
            })
        })?;
        self.drop_gate(idle);
        Some(idle)
    }

    /// Forgets what is known of a gate's groups. `with_rates`: and which of their jobs have started.
    fn forget_limits(&mut self, slot: GateSlot, with_rates: bool) {
        let backlog = &mut self.backlog;
        backlog.gates.head.changes = backlog.gates.head.changes.wrapping_add(1);
        backlog.forget_groups(slot);
        backlog.gates.forget_retries(slot);
        if with_rates && backlog.gates[slot].rates > 0 {
            backlog.forget_records(slot);
            for n in self.running.slots() {
                if self.running[n].gate == Some(slot) {
                    self.running[n].token &= !OF_GROUP;
                }
            }
        }
    }

    /// Forgets a gate whose queue has no limits any more or was dropped.
    fn drop_gate(&mut self, slot: GateSlot) {
        self.forget_limits(slot, true);
        for n in self.running.slots() {
            let entry = &mut self.running[n];
            if entry.gate == Some(slot) {
                (entry.gate, entry.token) = (None, 0);
            }
        }
        self.backlog.leave_gate(slot);
        self.backlog.gates.remove(slot);
    }

    /// Forgets the gates of an instance, or only the gate that counts the given lane.
    pub fn drop_gates(&mut self, instance: u32, lane: Option<i32>) {
        for slot in self.backlog.gates.slots() {
            let gate = &self.backlog.gates[slot];
            let is_it = lane.is_none_or(|lane| gate.lanes().contains(&lane));
            if gate.len > 0 && gate.instance == instance && is_it {
                self.drop_gate(slot);
            }
        }
    }

    /// Counts an entry of `running`. If groups are limited, the entry's group must have a slot or there must be a free
    /// one.
    pub(super) fn count_in(&mut self, gate: GateSlot, slot: RunningSlot) {
        let entry = &mut self.running[slot];
        entry.gate = Some(gate);
        let backlog = &mut self.backlog;
        backlog.gates[gate].running += 1;
        if entry.group != 0
            && backlog.gates[gate].has_groups()
            && let Some(group) = backlog.group_or_create(entry.instance, entry.lane, gate, entry.group)
        {
            backlog.enter_group(group);
            entry.grouped = 1;
        }
    }

    /// Ends the counting of an entry of `running`.
    pub(super) fn count_out(&mut self, slot: RunningSlot) {
        let entry = &mut self.running[slot];
        let gate = entry.gate.take();
        let (grouped, token) = (std::mem::take(&mut entry.grouped), std::mem::take(&mut entry.token));
        let backlog = &mut self.backlog;
        if let Some(slot) = gate {
            let gate = &mut backlog.gates[slot];
            gate.running = gate.running.saturating_sub(1);
            if token & OF_QUEUE != 0 {
                // The attempt has not started.
                gate.window.open -= u64::from(entry.cost);
                gate.opens_at = 0;
            }
            if token & OF_GROUP != 0 {
                backlog.close_start(slot, entry, None);
            }
        }
        if entry.group != 0
            && let Some(group) = backlog.group_slot(entry.instance, entry.lane, entry.group)
        {
            backlog.leave_group(group, grouped != 0);
        }
    }

    /// Turns an entry's open start into a start at `now`, the latest time at which it may have happened.
    pub(super) fn settle_token(&mut self, slot: RunningSlot, now: i64) {
        let entry = &mut self.running[slot];
        if entry.token == 0 {
            return;
        }
        let token = std::mem::take(&mut entry.token);
        entry.counted_at = now;
        let Some(slot) = entry.gate else { return };
        let backlog = &mut self.backlog;
        if token & OF_QUEUE != 0 {
            let gate = &mut backlog.gates[slot];
            gate.window.open -= u64::from(entry.cost);
            gate.window.add(gate.limits.period, now, entry.cost.into());
        }
        if token & OF_GROUP != 0 {
            backlog.close_start(slot, entry, Some(now));
            if let Some(group) = backlog.group_slot(entry.instance, entry.lane, entry.group) {
                backlog.relist(group);
            }
        }
    }

    /// Enters the starts from before the server's start that the logs have, each as a monotonic time and a number.
    /// Starts of groups are given once more by their group. They must come in the order of time, before the first
    /// claim. Returns false if there is no room for all groups, and forgets the gate.
    pub fn seed_rate(
        &mut self,
        instance: u32,
        claimer: &Claimer<'_>,
        starts: &[(i64, u64)],
        of_groups: &[PastStart],
    ) -> bool {
        *self.backlog.now = claimer.now.max(*self.backlog.now);
        let Some(slot) = self.set_gate(instance, claimer) else { return true };
        let gate = &mut self.backlog.gates[slot];
        for &(at, count) in starts {
            gate.window.add(claimer.limits.period, at, count);
        }
        let all_fit = self.backlog.seed_records(claimer, slot, of_groups);
        if !all_fit {
            self.drop_gate(slot);
        }
        all_fit
    }

    /// True if the queue has a gate.
    pub fn has_gate(&self, instance: u32, queue: i32) -> bool {
        self.backlog.gates.of_queue(instance, queue).is_some()
    }

    /// Returns a monotonic time before which nothing opens that a rate or a worker has closed, over all instances.
    pub fn next_opening(&self) -> Option<i64> {
        let of_gate = Some(self.backlog.gates.head.opens_at).filter(|&at| at != 0);
        let of_group = self.backlog.groups.first_resting().map(|(_, at)| at);
        let of_lane = Some(self.backlog.lanes.head.opens_at).filter(|&at| at != 0);
        of_gate.into_iter().chain(of_group).chain(of_lane).min()
    }

    /// Opens the gates whose time has come, and gives turns to groups whose rest has ended. Returns a session to wake.
    /// The caller repeats it until it returns `None`.
    pub fn open_gates(&mut self, now: i64) -> Option<u32> {
        *self.backlog.now = now.max(*self.backlog.now);
        while let Some((slot, _)) = self.backlog.groups.first_resting().filter(|&(_, at)| at <= now) {
            let Group { instance, lane, closed_until, .. } = self.backlog.groups[slot];
            if closed_until <= now {
                self.backlog.groups[slot].closed_until = 0;
            }
            self.backlog.relist(slot);
            if let Some(session) = self.pass_on(instance, lane) {
                return Some(session);
            }
        }
        while let Some(slot) = self.backlog.open_lane() {
            if let Some(session) = self.wake_next(slot) {
                return Some(session);
            }
        }
        let opens_at = self.backlog.gates.head.opens_at;
        if opens_at == 0 || opens_at > now {
            return None;
        }
        for slot in self.backlog.gates.slots() {
            let gate = &mut self.backlog.gates[slot];
            if gate.opens_at != 0 && gate.opens_at <= now {
                gate.opens_at = 0;
                if let Some(session) = self.wake_at_gate(slot) {
                    return Some(session);
                }
            }
        }
        self.backlog.gates.find_opening();
        None
    }

    /// If the gate is open, wakes a session that waits for one of its lanes and may find a job there.
    pub(super) fn wake_at_gate(&mut self, slot: GateSlot) -> Option<u32> {
        if self.backlog.gates[slot].is_closed() {
            return None;
        }
        (0..self.backlog.gates[slot].lanes().len()).find_map(|nth| {
            let gate = &self.backlog.gates[slot];
            let lane = self.backlog.lanes.find(gate.instance, gate.lanes[nth])?;
            self.wake_next(lane)
        })
    }

    /// Ends the hold of all groups of an instance, because the attempts that hold them may be gone.
    pub fn release_held(&mut self, instance: u32) {
        let backlog = &mut self.backlog;
        if backlog.groups.head.used == 0 {
            return;
        }
        for slot in backlog.groups.slots() {
            let group = &backlog.groups[slot];
            let may_change = group.is_served() || group.standing == Standing::Held;
            if group.gate.is_some() && group.instance == instance && may_change {
                backlog.group_changed(slot);
            }
        }
    }
}

impl Backlog<'_> {
    /// Returns how many more attempts a claim may take. Its own ends must be counted before. 0: the gate is closed to
    /// it.
    pub(super) fn room(&mut self, slot: GateSlot, claimer: &Claimer<'_>) -> u32 {
        let gate = &mut self.gates[slot];
        let limits = gate.limits;
        let mut room = u32::MAX;
        if limits.running > 0 {
            let most = limits.running.saturating_add(claimer.ending.map_or(0, Ending::running));
            room = most.saturating_sub(gate.running);
        }
        if limits.rate > 0 && room > 0 {
            gate.window.expire(limits.period, claimer.now);
            let used = gate.window.sum();
            let left = gate.dear.room(limits.rate, used);
            if left == 0 {
                // If attempts may start, `opens_at` stays: the clock wakes the sessions that sleep at the gate.
                let many = gate.dear.must_free(limits.rate, used);
                let opens_at = gate.window.frees_at(limits.period, claimer.now, many);
                self.gates.close_until(slot, opens_at);
            }
            room = room.min(self.gates[slot].jobs_in(left));
        }
        if limits.group_rate > 0 && room > 0 {
            room = match self.records_room(slot) {
                Ok(left) => room.min(left),
                Err(free_at) => {
                    self.gates.close_until(slot, free_at);
                    0
                }
            };
        }
        room
    }

    /// True if the lane's gate is closed, or the lane is throttled.
    pub(super) fn gate_is_closed(&self, lane: LaneSlot) -> bool {
        self.lanes[lane].closed_until > *self.now
            || self.lanes[lane].gate.is_some_and(|gate| self.gates[gate].is_closed())
    }

    /// True if no job of the gate's groups runs and no session serves one of these groups.
    fn groups_are_idle(&self, gate: GateSlot) -> bool {
        let mut own = self.groups.iter().filter(|group| group.gate == Some(gate));
        own.all(|group| group.running == 0 && !group.is_served())
    }

    /// Forgets a gate's groups and orders their lanes to be read again.
    fn forget_groups(&mut self, gate: GateSlot) {
        if !self.gates[gate].has_groups() {
            return;
        }
        for slot in self.groups.slots() {
            if self.groups[slot].gate == Some(gate) {
                self.forget_group(slot);
            }
        }
        for slot in self.lanes.slots() {
            if self.lanes[slot].gate == Some(gate) {
                self.lanes[slot].invalidate();
            }
        }
    }

    /// Notes of a gate's lanes that they have none.
    fn leave_gate(&mut self, gate: GateSlot) {
        for slot in self.lanes.slots() {
            if self.lanes[slot].gate == Some(gate) {
                self.lanes[slot].gate = None;
            }
        }
    }
}
