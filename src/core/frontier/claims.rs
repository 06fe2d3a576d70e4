//! The taken attempts, from the claim to the end: what has to be done beside their entries (`running_set`).
//!
//! Invariant: only `add_running` makes an entry and only `forget_running` forgets one, because limits are counted
//! there.

use super::answers::TakeOne;
use super::costs;
use super::disconnect::Disconnect;
use super::memory::Frontier;
use super::ready::Ready;
use super::running::{DeadlineRoot, Owner, Running, State};
use super::slot::{GateSlot, RunningSlot};

impl Frontier<'_> {
    /// Makes the entry of an attempt that a worker's transaction takes, and counts the entry at the gate. Returns what
    /// it counts for the rates. If that is more than 1, the caller takes nothing else: the rates may have no more room.
    pub(super) fn add_claimed(
        &mut self,
        instance: u32,
        lane: i32,
        owner: Owner,
        entry: Ready,
        gate: Option<GateSlot>,
    ) -> u32 {
        let slot = self.running.add(Running::taken(instance, lane, owner, entry));
        let (Some(slot), Some(gate)) = (slot, gate) else { return 0 };
        // The start is counted first, because the list of the group depends on how much it may still start.
        let (token, cost) = costs::open_start(&mut self.backlog, gate, lane, &entry);
        (self.running[slot].token, self.running[slot].cost) = (token, cost);
        self.count_in(gate, slot);
        let backlog = &mut self.backlog;
        if let Some(lane) = backlog.lanes.find(instance, lane) {
            backlog.lanes[lane].groups.handed_out();
        }
        cost
    }

    pub(super) fn forget_running(&mut self, root: &mut DeadlineRoot, slot: RunningSlot) -> Running {
        self.running.stop_clock(root, slot);
        self.count_out(slot);
        self.running.remove(slot)
    }

    /// Takes one given waiting attempt as a claim does, so that no other transaction can take it. If `is_due` is false,
    /// a rollback does not put it into `ready`. If it awaits its cancel, the caller gets it to cancel it.
    pub fn take_one(
        &mut self,
        root: &mut DeadlineRoot,
        instance: u32,
        lane: i32,
        owner: Owner,
        entry: Ready,
        is_due: bool,
    ) -> TakeOne {
        if let Some(slot) = self.running.find(instance, entry.id) {
            if !self.running[slot].awaits_cancel() {
                return TakeOne::Busy;
            }
            self.running.stop_clock(root, slot);
            let entry = &mut self.running[slot];
            (entry.owner, entry.session, entry.pid) = (owner.session, owner.session + 1, owner.pid);
            entry.state = State::Taken;
            return TakeOne::Taken;
        }
        // The lane's share does not count here, because a waiting job that is being ended is not kept for long.
        if self.running.is_full() {
            return TakeOne::Full;
        }
        self.withdraw(instance, lane, entry);
        costs::leaves(&mut self.backlog, instance, lane, &entry);
        let taken = Running::taken(instance, lane, owner, entry);
        self.running.add(Running { system: 1, early: u8::from(!is_due), ..taken });
        TakeOne::Taken
    }

    /// Notes that the claim of a taken attempt is committed, so that the lease starts. A longer lease that was already
    /// granted stays. A transaction that has both claimed and ended the attempt calls this before [`Self::ended`]. A
    /// session that finds the attempt stale may take it once more after that. Returns the entry.
    pub fn claimed(
        &mut self,
        root: &mut DeadlineRoot,
        instance: u32,
        id: i64,
        lease: i64,
        deadline: i64,
        disconnect: Disconnect,
    ) -> Option<&mut Running> {
        let slot = self.running.find(instance, id)?;
        self.settle_token(slot, deadline - lease);
        let Running { lane, group, .. } = self.running[slot];
        self.backlog.retry_left(instance, lane, group, id);
        let entry = &mut self.running[slot];
        entry.claimed = 1;
        entry.lease = lease;
        entry.longest = entry.longest.max(lease);
        entry.deadline = entry.deadline.max(deadline);
        entry.disconnect = disconnect;
        if entry.state == State::Taken {
            entry.state = State::Running;
            entry.owner = 0;
            self.running.start_clock(root, slot);
        }
        Some(&mut self.running[slot])
    }

    /// Returns the entry of a taken attempt.
    pub fn entry(&self, instance: u32, id: i64) -> Option<Running> {
        self.running.entry(instance, id)
    }

    /// Gives a taken attempt back to `ready` after its claim was rolled back, with or without its end. Returns a
    /// session to wake. If the attempt is to be cancelled, it stays as if its lease had ended: the background worker
    /// takes it ([`Self::take_one`]) and cancels it. Its worker may have begun, so it counts for the rate until a
    /// period after `now`.
    pub fn give_back(&mut self, root: &mut DeadlineRoot, instance: u32, id: i64, now: i64) -> Option<u32> {
        let slot = self.running.find(instance, id)?;
        if self.running[slot].claimed != 0 {
            return None;
        }
        self.settle_token(slot, now);
        let entry = &mut self.running[slot];
        let gate = entry.gate;
        if entry.cancel != 0 {
            (entry.state, entry.owner, entry.deadline, entry.system) = (State::Running, 0, i64::MIN, 1);
            self.running.stop_clock(root, slot);
            self.running.start_clock(root, slot);
            self.count_out(slot);
            let entry = self.running[slot];
            return self.wake_after(gate, &entry);
        }
        let entry = self.forget_running(root, slot);
        // An early attempt may have become due while it was taken.
        let is_due = entry.early == 0 || entry.push_held != 0;
        let pushed = if is_due { self.push(instance, entry.lane, entry.ready()) } else { None };
        pushed.or_else(|| self.wake_after(gate, &entry))
    }

    /// Drops an entry that contradicts the logs, without giving the attempt back to `ready`. Returns a session to wake.
    pub fn discard(&mut self, root: &mut DeadlineRoot, instance: u32, id: i64) -> Option<u32> {
        let slot = self.running.find(instance, id)?;
        self.leave(root, slot).1
    }

    /// Drops a taken entry whose attempt does not wait according to the logs. If a push of the attempt was held back
    /// meanwhile, the owner may have read the logs too early, so the attempt is pushed. Returns a session to wake.
    pub fn discard_stale(&mut self, root: &mut DeadlineRoot, instance: u32, id: i64) -> Option<u32> {
        let slot = self.running.find(instance, id)?;
        if self.running[slot].push_held == 0 {
            return self.leave(root, slot).1;
        }
        let gate = self.running[slot].gate;
        let entry = self.forget_running(root, slot);
        let pushed = self.push(instance, entry.lane, entry.ready());
        pushed.or_else(|| self.wake_after(gate, &entry))
    }

    /// Forgets an entry. Returns the entry, and a session to wake because another job may start now.
    fn leave(&mut self, root: &mut DeadlineRoot, slot: RunningSlot) -> (Running, Option<u32>) {
        let gate = self.running[slot].gate;
        let entry = self.forget_running(root, slot);
        (entry, self.wake_after(gate, &entry))
    }

    /// Wakes a session for a job that may start because an entry is gone: a job of the same limited queue, of the same
    /// group, or any job that had no place.
    fn wake_after(&mut self, gate: Option<GateSlot>, entry: &Running) -> Option<u32> {
        // The end of a waiting job may let others start: they did not pass it.
        let of_costs = || self.backlog.gates.of_lane(entry.instance, entry.lane).filter(|_| entry.system != 0);
        let woken = match gate.or_else(of_costs) {
            Some(gate) => self.wake_at_gate(gate),
            None if entry.group != 0 && self.backlog.groups.head.used > 0 => self.pass_on(entry.instance, entry.lane),
            None => None,
        };
        woken.or_else(|| self.wake_for_place())
    }

    /// Keeps an attempt that is to be cancelled, with a deadline that has passed, so that the background worker takes
    /// it. The attempt was running when its cancel was requested, and is not running any more. If it waits, it is kept
    /// as [`Self::give_back`] keeps it. Returns false if there is no place.
    pub fn expire_now(&mut self, root: &mut DeadlineRoot, instance: u32, lane: i32, entry: Ready) -> bool {
        let nobody = Owner { session: 0, pid: 0 };
        if self.take_one(root, instance, lane, nobody, entry, true) != TakeOne::Taken {
            return false;
        }
        let Some(slot) = self.running.find(instance, entry.id) else { return false };
        let expired = &mut self.running[slot];
        (expired.state, expired.session, expired.cancel, expired.deadline) = (State::Running, 0, 1, i64::MIN);
        self.running.start_clock(root, slot);
        true
    }

    /// Adds an attempt whose claim was found in the log. An existing entry stays as it is. Returns false if `running`
    /// is full.
    pub fn recover(&mut self, root: &mut DeadlineRoot, entry: Running) -> bool {
        if self.running.find(entry.instance, entry.id).is_some() {
            return true;
        }
        let Some(slot) = self.running.add(entry.unlinked()) else {
            return false;
        };
        if let Some(gate) = self.backlog.gates.of_lane(entry.instance, entry.lane) {
            self.count_in(gate, slot);
        }
        if entry.state == State::Running {
            self.running.start_clock(root, slot);
        }
        true
    }

    /// Forgets an attempt whose outcome is committed. Returns its entry, and a session to wake.
    pub fn ended(&mut self, root: &mut DeadlineRoot, instance: u32, id: i64) -> Option<(Running, Option<u32>)> {
        let slot = self.running.find(instance, id)?;
        let Running { lane, group, .. } = self.running[slot];
        self.backlog.retry_left(instance, lane, group, id);
        Some(self.leave(root, slot))
    }
}
