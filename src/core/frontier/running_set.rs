//! The entries of taken attempts: their places, deadlines and requests.
//!
//! Responsible for the entries and their index. Not responsible for the limits that count them: only
//! [`super::Frontier`] makes and forgets entries of workers, because it counts them at their gates.
//!
//! Invariant: an attempt has at most one entry. The shares of a lane and its instance count each entry.

use super::answers::Hold;
use super::deadlines;
use super::index::Bucket;
use super::rank::Place;
use super::running::{DeadlineRoot, MISSED_CANCEL, MISSED_RERUN, Running, State};
use super::slot::{RunningSlot, of};
use super::slots::{FreeSlots, SlotIndex, Slots, indexed_by_slot};
use crate::share;

/// Counts of taken attempts. All zero: none is taken.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RunningHead {
    pub(super) slots: FreeSlots<of::Running>,
    /// How many entries are in use.
    pub(super) used: u32,
    /// How many buckets of the index hold counts of parties ([`crate::share`]).
    pub(super) parties: u32,
}

/// The taken attempts.
pub struct RunningSet<'a> {
    entries: Slots<'a, Running>,
    index: SlotIndex<'a, of::Running>,
    head: &'a mut RunningHead,
}

impl<'a> RunningSet<'a> {
    #[inline]
    pub(super) fn new(head: &'a mut RunningHead, entries: &'a mut [Running], index: &'a mut [Bucket]) -> Self {
        Self { entries: Slots::new(entries), index: SlotIndex::new(index), head }
    }

    // ---- places

    /// Returns how many attempts are taken, and for how many there is room.
    pub fn in_use(&self) -> (usize, usize) {
        (self.head.used as usize, self.entries.len())
    }

    /// True if there is no room for another entry. The index has twice as many buckets as there are slots. They suffice
    /// for the counts of the parties, too, unless nearly every entry belongs to another lane.
    pub(super) fn is_full(&self) -> bool {
        let buckets = (self.head.used + self.head.parties) as usize + 3;
        self.head.used as usize == self.entries.len() || buckets >= self.index.buckets.len()
    }

    fn free_places(&self) -> usize {
        if self.is_full() { 0 } else { self.entries.len() - self.head.used as usize }
    }

    /// Returns how many more attempts of a lane may be claimed within its share of the places in `running`.
    pub fn places(&self, instance: u32, lane: i32) -> u32 {
        share::room_of(self.index.buckets, instance, lane.cast_unsigned(), self.free_places())
    }

    /// Returns how many attempts of a lane are taken, and how many of its instance.
    pub fn held(&self, instance: u32, lane: i32) -> (u32, u32) {
        let index = &*self.index.buckets;
        (share::held_of(index, instance, lane.cast_unsigned()), share::held(index, instance))
    }

    // ---- entries

    /// Adds an entry. `None`: there is no place.
    pub(super) fn add(&mut self, entry: Running) -> Option<RunningSlot> {
        if self.is_full() {
            return None;
        }
        let slot = self.head.slots.take(&mut self.entries)?;
        self.entries[slot] = entry;
        self.head.used += 1;
        self.index.insert(entry.instance, entry.id, slot);
        self.head.parties += share::enter_of(self.index.buckets, entry.instance, entry.lane.cast_unsigned());
        Some(slot)
    }

    /// Forgets an entry that has no deadline and that no gate counts.
    pub(super) fn remove(&mut self, slot: RunningSlot) -> Running {
        let entry = self.entries[slot];
        self.index.remove(entry.instance, entry.id);
        self.head.parties -= share::leave_of(self.index.buckets, entry.instance, entry.lane.cast_unsigned());
        self.entries[slot] = Running::default();
        self.head.slots.give(&mut self.entries, slot);
        self.head.used -= 1;
        entry
    }

    #[inline]
    pub(super) fn find(&self, instance: u32, id: i64) -> Option<RunningSlot> {
        self.index.find(instance, id)
    }

    /// Returns the entry of a taken attempt.
    pub fn entry(&self, instance: u32, id: i64) -> Option<Running> {
        self.find(instance, id).map(|slot| self.entries[slot])
    }

    /// Returns the next entry of an instance at slot `from` or behind it, and the slot at which the next call begins.
    pub fn next_running(&self, instance: u32, from: u32) -> Option<(u32, Running)> {
        self.head.slots.used_from(from).find_map(|slot| {
            let entry = self.entries[slot];
            (entry.state != State::Free && entry.instance == instance).then_some((slot.number() + 1, entry))
        })
    }

    /// Returns the slots that may have an entry.
    pub(super) fn slots(&self) -> impl Iterator<Item = RunningSlot> + use<> {
        self.head.slots.used_from(0)
    }

    /// If the attempt is taken, notes that a push of it was held back, and returns true.
    #[inline]
    pub(super) fn hold_push(&mut self, instance: u32, id: i64) -> bool {
        let slot = self.find(instance, id);
        slot.is_some_and(|slot| {
            self.entries[slot].push_held = 1;
            true
        })
    }

    /// Notes of all entries that they are not in the groups' index.
    pub(super) fn forget_indexed(&mut self) {
        self.entries.iter_mut().for_each(|entry| entry.place.is_indexed = false);
    }

    /// Notes where the row of a taken attempt lies now.
    pub fn relocate(&mut self, instance: u32, id: i64, place: Place) {
        if let Some(slot) = self.find(instance, id) {
            self.entries[slot].place = place;
        }
    }

    // ---- requests

    /// Notes that a taken attempt is to be cancelled. Returns false if the attempt is not in memory.
    pub fn request_cancel(&mut self, instance: u32, id: i64) -> bool {
        let Some(slot) = self.find(instance, id) else { return false };
        let entry = &mut self.entries[slot];
        entry.cancel = 1;
        entry.note_missed(MISSED_CANCEL);
        true
    }

    /// Notes that the time by which a taken attempt must start has come. Returns false if the attempt runs or no
    /// transaction has it: then there is nothing to note.
    pub fn mark_late(&mut self, instance: u32, id: i64) -> bool {
        let Some(slot) = self.find(instance, id) else { return false };
        let entry = &mut self.entries[slot];
        let is_open = entry.claimed == 0 && matches!(entry.state, State::Taken | State::Ending);
        entry.late |= u8::from(is_open);
        is_open
    }

    /// Notes that the job of a taken attempt is to run once more after it. Returns false if the attempt is not in
    /// memory.
    pub fn request_rerun(&mut self, instance: u32, id: i64) -> bool {
        let Some(slot) = self.find(instance, id) else { return false };
        let entry = &mut self.entries[slot];
        entry.rerun = 1;
        entry.note_missed(MISSED_RERUN);
        true
    }

    // ---- ends

    /// Returns whether the session `owner` may write about an attempt. Changes nothing. `may`: as for [`Self::end`].
    pub fn ask(&self, instance: u32, id: i64, owner: u32, may: impl FnOnce(i32) -> bool) -> Hold {
        self.find(instance, id).map_or(Hold::Unknown, |slot| hold_of(&self.entries[slot], owner, may))
    }

    /// Gives an attempt to the transaction of the session `owner`, which ends it. While the transaction is open, the
    /// attempt has no deadline. `deadline`: the caller has seen the attempt with this expired deadline; otherwise the
    /// largest number. `may` returns whether the caller has the right to a lane's attempts.
    pub fn end(
        &mut self,
        root: &mut DeadlineRoot,
        instance: u32,
        id: i64,
        owner: u32,
        deadline: i64,
        may: impl FnOnce(i32) -> bool,
    ) -> Hold {
        let Some(slot) = self.find(instance, id) else { return Hold::Unknown };
        let hold = hold_of(&self.entries[slot], owner, may);
        match hold {
            Hold::Yours(entry) if entry.state == State::Running && entry.deadline > deadline => return Hold::Later,
            Hold::Yours(_) => {}
            _ => return hold,
        }
        self.stop_clock(root, slot);
        let this = &mut self.entries[slot];
        this.state = State::Ending;
        this.owner = owner;
        this.missed = 0;
        hold
    }

    /// Undoes [`Self::end`] after the outcome was rolled back. The deadline counts again.
    pub fn undo_end(&mut self, root: &mut DeadlineRoot, instance: u32, id: i64) {
        let Some(slot) = self.find(instance, id) else { return };
        let entry = &mut self.entries[slot];
        if entry.state != State::Ending {
            return;
        }
        if entry.claimed == 0 {
            entry.state = State::Taken;
            return;
        }
        entry.state = State::Running;
        entry.owner = 0;
        self.start_clock(root, slot);
    }

    // ---- deadlines

    /// Lets the deadline of an entry count. It must not count yet.
    #[inline]
    pub(super) fn start_clock(&mut self, root: &mut DeadlineRoot, slot: RunningSlot) {
        deadlines::insert(&mut self.entries, root, slot);
    }

    /// Ends the counting of an entry's deadline, if it counts.
    #[inline]
    pub(super) fn stop_clock(&mut self, root: &mut DeadlineRoot, slot: RunningSlot) {
        deadlines::remove(&mut self.entries, root, slot);
    }

    /// Sets a new deadline for an attempt whose deadline has passed.
    pub fn postpone(&mut self, root: &mut DeadlineRoot, instance: u32, id: i64, now: i64, until: i64) {
        if self.entry(instance, id).is_some_and(|entry| entry.deadline <= now) {
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
        let slot = self.find(instance, id)?;
        let Running { state, .. } = self.entries[slot];
        if state == State::Ending || self.entries[slot].awaits_cancel() {
            return None;
        }
        let timed = state == State::Running;
        if timed {
            self.stop_clock(root, slot);
        }
        let entry = &mut self.entries[slot];
        entry.deadline = deadline;
        entry.disconnect.note_extended();
        entry.longest = entry.longest.max(lease);
        let entry = *entry;
        if timed {
            self.start_clock(root, slot);
        }
        Some(entry)
    }

    /// Notes that the log has a lease of this length. A heartbeat of up to this length then needs no other note. The
    /// lease lasts until `deadline` at least.
    pub fn lengthen(&mut self, root: &mut DeadlineRoot, instance: u32, id: i64, lease: i64, deadline: i64) {
        let Some(slot) = self.find(instance, id) else { return };
        let entry = &mut self.entries[slot];
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
        root.map(|slot| self.entries[slot].deadline)
    }

    /// Returns the running attempt with the earliest deadline, if that deadline has passed.
    pub fn expired(&self, root: DeadlineRoot, now: i64) -> Option<Running> {
        let entry = self.entries[root?];
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
        for slot in self.slots() {
            let entry = &mut self.entries[slot];
            if entry.state == State::Free || entry.instance != instance || entry.session != session + 1 {
                continue;
            }
            entry.session = 0;
            let Some(deadline) = entry.disconnect.deadline(now, has_broken).filter(|&at| at < entry.deadline) else {
                continue;
            };
            let timed = entry.state == State::Running;
            self.stop_clock(root, slot);
            let entry = &mut self.entries[slot];
            entry.deadline = deadline;
            entry.disconnect.note_broken();
            if timed {
                self.start_clock(root, slot);
                earliest = Some(earliest.map_or(deadline, |at: i64| at.min(deadline)));
            }
        }
        earliest
    }
}

/// Returns whether a session may have an attempt. `may` returns whether the session has the right to a lane's attempts.
#[inline]
fn hold_of(entry: &Running, session: u32, may: impl FnOnce(i32) -> bool) -> Hold {
    let is_own = entry.owner == session;
    match entry.state {
        _ if !may(entry.lane) => Hold::Denied(entry.lane),
        // The logs say that nobody has claimed it.
        State::Running if entry.awaits_cancel() => Hold::Unknown,
        State::Running => Hold::Yours(*entry),
        State::Taken if is_own => Hold::Yours(*entry),
        State::Taken => Hold::Taken(*entry),
        _ if is_own => Hold::Mine,
        _ => Hold::Busy(*entry),
    }
}

indexed_by_slot!(RunningSet, RunningSlot, entries: Running);
