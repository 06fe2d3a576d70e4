//! The taken attempts: entries of `running` from the claim to the end, with their places, deadlines and requests.
//!
//! Invariant: only `add_running` makes an entry and only `forget_running` forgets one, because limits and shares are
//! counted there.

use super::answers::{End, TakeOne};
use super::deadlines;
use super::disconnect::Disconnect;
use super::limits::GateSlot;
use super::memory::{DeadlineRoot, Frontier};
use super::rank::Place;
use super::ready::Ready;
use super::running::{MISSED_CANCEL, MISSED_RERUN, Running, RunningSlot, State};
use crate::share;

impl Frontier<'_> {
    /// True if there is no room for another entry. The index has twice as many buckets as there are slots. They suffice
    /// for the counts of the parties, too, unless nearly every entry belongs to another lane.
    pub(super) fn running_is_full(&self) -> bool {
        let buckets = (self.head.running + self.head.parties) as usize + 3;
        self.head.running as usize == self.running.len() || buckets >= self.running_index.buckets.len()
    }

    pub(super) fn free_places(&self) -> usize {
        if self.running_is_full() { 0 } else { self.running.len() - self.head.running as usize }
    }

    /// Returns how many more attempts of a lane may be claimed within its share of the places in `running`.
    pub fn places(&self, instance: u32, lane: i32) -> u32 {
        share::room_of(self.running_index.buckets, instance, lane.cast_unsigned(), self.free_places())
    }

    /// Returns how many attempts of a lane are taken, and how many of its instance.
    pub fn held(&self, instance: u32, lane: i32) -> (u32, u32) {
        let index = &*self.running_index.buckets;
        (share::held_of(index, instance, lane.cast_unsigned()), share::held(index, instance))
    }

    pub(super) fn add_running(&mut self, entry: Running) -> Option<RunningSlot> {
        if self.running_is_full() {
            return None;
        }
        let slot = self.head.running_slots.take(&mut self.running)?;
        self.running[slot] = entry;
        self.head.running += 1;
        self.running_index.insert(entry.instance, entry.id, slot);
        self.head.parties += share::enter_of(self.running_index.buckets, entry.instance, entry.lane.cast_unsigned());
        Some(slot)
    }

    pub(super) fn forget_running(&mut self, root: &mut DeadlineRoot, slot: RunningSlot) -> Running {
        deadlines::remove(&mut self.running, root, slot);
        self.count_out(slot);
        let entry = self.running[slot];
        self.running_index.remove(entry.instance, entry.id);
        self.head.parties -= share::leave_of(self.running_index.buckets, entry.instance, entry.lane.cast_unsigned());
        self.running[slot] = Running::default();
        self.head.running_slots.give(&mut self.running, slot);
        self.head.running -= 1;
        entry
    }

    pub(super) fn running_slot(&self, instance: u32, id: i64) -> Option<RunningSlot> {
        self.running_index.find(instance, id)
    }

    /// Returns the entry of a taken attempt.
    pub fn entry(&self, instance: u32, id: i64) -> Option<Running> {
        self.running_slot(instance, id).map(|slot| self.running[slot])
    }

    /// Takes one given waiting attempt as a claim does, so that no other transaction can take it. If `is_due` is false,
    /// a rollback does not put it into `ready`. If it awaits its cancel, the caller gets it to cancel it.
    #[allow(clippy::too_many_arguments, reason = "which, where, what")]
    pub fn take_one(
        &mut self,
        root: &mut DeadlineRoot,
        instance: u32,
        lane: i32,
        owner: u32,
        pid: i32,
        entry: Ready,
        is_due: bool,
    ) -> TakeOne {
        if let Some(slot) = self.running_slot(instance, entry.id) {
            if !self.running[slot].awaits_cancel() {
                return TakeOne::Busy;
            }
            deadlines::remove(&mut self.running, root, slot);
            let entry = &mut self.running[slot];
            (entry.state, entry.owner, entry.session, entry.pid) = (State::Taken, owner, owner + 1, pid);
            return TakeOne::Taken;
        }
        // The lane's share does not count here, because a waiting job that is being ended is not kept for long.
        if self.running_is_full() {
            return TakeOne::Full;
        }
        if let Some(slot) = self.lane_slot(instance, lane) {
            let mut ring = self.ring(slot);
            if let Ok(at) = ring.search(entry.rank)
                && ring.get(at).id == entry.id
            {
                ring.remove(at);
            }
        }
        let taken = Running::taken(instance, lane, owner, pid, entry);
        self.add_running(Running { system: 1, early: u8::from(!is_due), ..taken });
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
        let slot = self.running_slot(instance, id)?;
        self.settle_token(slot, deadline - lease);
        let Running { lane, group, .. } = self.running[slot];
        self.retry_left(instance, lane, group, id);
        let entry = &mut self.running[slot];
        entry.claimed = 1;
        entry.lease = lease;
        entry.longest = entry.longest.max(lease);
        entry.deadline = entry.deadline.max(deadline);
        entry.disconnect = disconnect;
        if entry.state == State::Taken {
            entry.state = State::Running;
            entry.owner = 0;
            deadlines::insert(&mut self.running, root, slot);
        }
        Some(&mut self.running[slot])
    }

    /// Notes that a taken attempt is to be cancelled. Returns false if the attempt is not in memory.
    pub fn request_cancel(&mut self, instance: u32, id: i64) -> bool {
        let Some(slot) = self.running_slot(instance, id) else { return false };
        let entry = &mut self.running[slot];
        entry.cancel = 1;
        entry.note_missed(MISSED_CANCEL);
        true
    }

    /// Notes that the time by which a taken attempt must start has come. Returns false if the attempt runs or no
    /// transaction has it: then there is nothing to note.
    pub fn mark_late(&mut self, instance: u32, id: i64) -> bool {
        let Some(slot) = self.running_slot(instance, id) else { return false };
        let entry = &mut self.running[slot];
        let is_open = entry.claimed == 0 && matches!(entry.state, State::Taken | State::Ending);
        entry.late |= u8::from(is_open);
        is_open
    }

    /// Notes that the job of a taken attempt is to run once more after it. Returns false if the attempt is not in
    /// memory.
    pub fn request_rerun(&mut self, instance: u32, id: i64) -> bool {
        let Some(slot) = self.running_slot(instance, id) else { return false };
        let entry = &mut self.running[slot];
        entry.rerun = 1;
        entry.note_missed(MISSED_RERUN);
        true
    }

    /// Gives a taken attempt back to `ready` after its claim was rolled back, with or without its end. Returns a
    /// session to wake. If the attempt is to be cancelled, it stays as if its lease had ended: the background worker
    /// takes it ([`Self::take_one`]) and cancels it. Its worker may have begun, so it counts for the rate until a
    /// period after `now`.
    pub fn give_back(&mut self, root: &mut DeadlineRoot, instance: u32, id: i64, now: i64) -> Option<u32> {
        let slot = self.running_slot(instance, id)?;
        let entry = &mut self.running[slot];
        if entry.claimed != 0 {
            return None;
        }
        self.settle_token(slot, now);
        let gate = self.running[slot].gate;
        let entry = &mut self.running[slot];
        if entry.cancel != 0 {
            (entry.state, entry.owner, entry.deadline, entry.system) = (State::Running, 0, i64::MIN, 1);
            deadlines::remove(&mut self.running, root, slot);
            deadlines::insert(&mut self.running, root, slot);
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
        let slot = self.running_slot(instance, id)?;
        self.leave(root, slot).1
    }

    /// Drops a taken entry whose attempt does not wait according to the logs. If a push of the attempt was held back
    /// meanwhile, the owner may have read the logs too early, so the attempt is pushed. Returns a session to wake.
    pub fn discard_stale(&mut self, root: &mut DeadlineRoot, instance: u32, id: i64) -> Option<u32> {
        let slot = self.running_slot(instance, id)?;
        if self.running[slot].push_held == 0 {
            return self.leave(root, slot).1;
        }
        let gate = self.running[slot].gate;
        let entry = self.forget_running(root, slot);
        let pushed = self.push(instance, entry.lane, entry.ready());
        pushed.or_else(|| self.wake_after(gate, &entry))
    }

    /// Forgets an entry. Returns the entry, and a session to wake because another job may start now.
    pub(super) fn leave(&mut self, root: &mut DeadlineRoot, slot: RunningSlot) -> (Running, Option<u32>) {
        let gate = self.running[slot].gate;
        let entry = self.forget_running(root, slot);
        (entry, self.wake_after(gate, &entry))
    }

    /// Wakes a session for a job that may start because an entry is gone: a job of the same limited queue, of the same
    /// group, or any job that had no place.
    pub(super) fn wake_after(&mut self, gate: Option<GateSlot>, entry: &Running) -> Option<u32> {
        let woken = match gate {
            Some(gate) => self.wake_at_gate(gate),
            None if entry.group != 0 && self.head.groups > 0 => self.pass_on(entry.instance, entry.lane),
            None => None,
        };
        woken.or_else(|| self.wake_for_place())
    }

    /// Keeps an attempt that is to be cancelled, with a deadline that has passed, so that the background worker takes
    /// it. The attempt was running when its cancel was requested, and is not running any more. If it waits, it is kept
    /// as [`Self::give_back`] keeps it. Returns false if there is no place.
    pub fn expire_now(&mut self, root: &mut DeadlineRoot, instance: u32, lane: i32, entry: Ready) -> bool {
        if self.take_one(root, instance, lane, 0, 0, entry, true) != TakeOne::Taken {
            return false;
        }
        let Some(slot) = self.running_slot(instance, entry.id) else { return false };
        let expired = &mut self.running[slot];
        (expired.state, expired.session, expired.cancel, expired.deadline) = (State::Running, 0, 1, i64::MIN);
        deadlines::insert(&mut self.running, root, slot);
        true
    }

    /// Adds an attempt whose claim was found in the log. An existing entry stays as it is. Returns false if `running`
    /// is full.
    pub fn recover(&mut self, root: &mut DeadlineRoot, entry: Running) -> bool {
        if self.running_slot(entry.instance, entry.id).is_some() {
            return true;
        }
        let unlinked = Running {
            claimed: 1,
            timed: 0,
            child: None,
            next: None,
            prev: None,
            gate: None,
            grouped: 0,
            token: 0,
            ..entry
        };
        let Some(slot) = self.add_running(unlinked) else {
            return false;
        };
        if let Some(gate) = self.gate_of(entry.instance, entry.lane) {
            self.count_in(gate, slot);
        }
        if entry.state == State::Running {
            deadlines::insert(&mut self.running, root, slot);
        }
        true
    }

    /// Gives an attempt to the caller's transaction, which ends it. While the transaction is open, the attempt has no
    /// deadline.
    pub fn end(&mut self, root: &mut DeadlineRoot, instance: u32, id: i64, owner: u32) -> End {
        self.end_expired(root, instance, id, owner, i64::MAX).unwrap_or(End::Unknown)
    }

    /// As [`Self::end`], for an attempt that the caller has seen with this expired deadline. `None`: its deadline is a
    /// later one now.
    pub fn end_expired(
        &mut self,
        root: &mut DeadlineRoot,
        instance: u32,
        id: i64,
        owner: u32,
        deadline: i64,
    ) -> Option<End> {
        let Some(slot) = self.running_slot(instance, id) else { return Some(End::Unknown) };
        let entry = self.running[slot];
        match entry.state {
            State::Running if entry.awaits_cancel() => return Some(End::Unknown),
            State::Running if entry.deadline > deadline => return None,
            State::Running => {}
            State::Taken if entry.owner == owner => {}
            _ => return Some(End::Busy(entry)),
        }
        deadlines::remove(&mut self.running, root, slot);
        let this = &mut self.running[slot];
        this.state = State::Ending;
        this.owner = owner;
        this.missed = 0;
        Some(End::Yours(entry))
    }

    /// Forgets an attempt whose outcome is committed. Returns its entry, and a session to wake.
    pub fn ended(&mut self, root: &mut DeadlineRoot, instance: u32, id: i64) -> Option<(Running, Option<u32>)> {
        let slot = self.running_slot(instance, id)?;
        let Running { lane, group, .. } = self.running[slot];
        self.retry_left(instance, lane, group, id);
        Some(self.leave(root, slot))
    }

    /// Notes where the row of a taken attempt lies now.
    pub fn relocate(&mut self, instance: u32, id: i64, place: Place) {
        if let Some(slot) = self.running_slot(instance, id) {
            self.running[slot].place = place;
        }
    }

    /// Undoes [`Self::end`] after the outcome was rolled back. The deadline counts again.
    pub fn undo_end(&mut self, root: &mut DeadlineRoot, instance: u32, id: i64) {
        let Some(slot) = self.running_slot(instance, id) else { return };
        let entry = &mut self.running[slot];
        if entry.state != State::Ending {
            return;
        }
        if entry.claimed == 0 {
            entry.state = State::Taken;
            return;
        }
        entry.state = State::Running;
        entry.owner = 0;
        deadlines::insert(&mut self.running, root, slot);
    }

    /// Sets a new deadline for an attempt whose deadline has passed.
    pub fn postpone(&mut self, root: &mut DeadlineRoot, instance: u32, id: i64, now: i64, until: i64) {
        let entry = self.running_slot(instance, id).map(|slot| self.running[slot]);
        if entry.is_some_and(|entry| entry.deadline <= now) {
            self.extend(root, instance, id, 0, until);
        }
    }

    /// Sets a new deadline, and keeps the longest `lease`. Returns the new entry. `None`: the attempt is not in memory,
    /// is being ended, or only awaits its cancel.
    pub fn extend(
        &mut self,
        root: &mut DeadlineRoot,
        instance: u32,
        id: i64,
        lease: i64,
        deadline: i64,
    ) -> Option<Running> {
        let slot = self.running_slot(instance, id)?;
        let Running { state, .. } = self.running[slot];
        if state == State::Ending || self.running[slot].awaits_cancel() {
            return None;
        }
        let timed = state == State::Running;
        if timed {
            deadlines::remove(&mut self.running, root, slot);
        }
        let entry = &mut self.running[slot];
        entry.deadline = deadline;
        entry.disconnect.note_extended();
        entry.longest = entry.longest.max(lease);
        let entry = *entry;
        if timed {
            deadlines::insert(&mut self.running, root, slot);
        }
        Some(entry)
    }

    /// Notes that the log has a lease of this length. A heartbeat of up to this length then needs no other note. The
    /// lease lasts until `deadline` at least.
    pub fn lengthen(&mut self, root: &mut DeadlineRoot, instance: u32, id: i64, lease: i64, deadline: i64) {
        let Some(slot) = self.running_slot(instance, id) else { return };
        let entry = &mut self.running[slot];
        entry.longest = entry.longest.max(lease);
        if entry.deadline >= deadline {
            return;
        }
        if entry.state == State::Ending {
            // The deadline counts again if the end is rolled back.
            entry.deadline = deadline;
            entry.disconnect.note_extended();
        } else {
            self.extend(root, instance, id, lease, deadline);
        }
    }

    /// Returns the earliest deadline of the instance.
    pub fn next_deadline(&self, root: DeadlineRoot) -> Option<i64> {
        root.map(|slot| self.running[slot].deadline)
    }

    /// Returns the running attempt with the earliest deadline, if that deadline has passed.
    pub fn expired(&self, root: DeadlineRoot, now: i64) -> Option<Running> {
        let entry = self.running[root?];
        (entry.deadline <= now).then_some(entry)
    }

    /// Brings the deadlines of a session's claims forward, as each claim asks for, because its connection has ended at
    /// `now`. `has_broken`: the client has not said goodbye. If another transaction is ending an attempt, the new
    /// deadline counts after a rollback of that transaction. Returns the earliest new deadline of running attempts.
    pub fn session_ended(
        &mut self,
        root: &mut DeadlineRoot,
        instance: u32,
        session: u32,
        now: i64,
        has_broken: bool,
    ) -> Option<i64> {
        let mut earliest = None;
        for slot in self.head.running_slots.used_from(0) {
            let entry = &mut self.running[slot];
            if entry.state == State::Free || entry.instance != instance || entry.session != session + 1 {
                continue;
            }
            entry.session = 0;
            let Some(deadline) = entry.disconnect.deadline(now, has_broken).filter(|&at| at < entry.deadline) else {
                continue;
            };
            let timed = entry.state == State::Running;
            deadlines::remove(&mut self.running, root, slot);
            let entry = &mut self.running[slot];
            entry.deadline = deadline;
            entry.disconnect.note_broken();
            if timed {
                deadlines::insert(&mut self.running, root, slot);
                earliest = Some(earliest.map_or(deadline, |at: i64| at.min(deadline)));
            }
        }
        earliest
    }

    /// Returns the next entry of an instance at slot `from` or behind it, and the slot at which the next call begins.
    pub fn next_running(&self, instance: u32, from: u32) -> Option<(u32, Running)> {
        self.head.running_slots.used_from(from).find_map(|slot| {
            let entry = self.running[slot];
            (entry.state != State::Free && entry.instance == instance).then_some((slot.number() + 1, entry))
        })
    }
}
