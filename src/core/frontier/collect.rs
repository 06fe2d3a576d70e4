//! Collects jobs into batches: a call that lingers sleeps beside fewer jobs than it wants, for some time.
//!
//! Responsible for who collects, and for when the batch is due. Not responsible for how a session sleeps (`waiters`).
//!
//! A lane has at most one **collector**. The first job wakes it. It sleeps on until its batch is full or due, and takes
//! what is there. Then the next session collects, so that no two calls divide a batch.
//!
//! Invariant: if sessions sleep beside jobs of a lane that is open, one of them is the collector, or a woken session is
//! to become it. The collector lingers no longer than any other session that sleeps there. So a claim that does not
//! linger never waits for one that does.

use super::answers::Collect;
use super::lane::{Collected, Lane};
use super::memory::Frontier;
use super::slot::{LaneSlot, SessionSlot};

impl Frontier<'_> {
    /// Wakes the collector if its batch is full. A lane without collector gets one: the session that lingers least, and
    /// of several the first one.
    pub(super) fn wake_collector(&mut self, slot: LaneSlot) -> Option<u32> {
        if let Some(collector) = self.backlog.lanes[slot].collected.collector {
            let enough = self.backlog.lanes[slot].collected.batch.min(self.room_now(slot));
            let is_full = self.backlog.startable(slot, enough).is_none_or(|count| count >= enough);
            let is_asleep = self.sessions[collector].waiting != 0;
            return (is_full && is_asleep).then(|| self.sessions.wake(&mut self.backlog.lanes, collector, slot));
        }
        let lanes = &mut self.backlog.lanes;
        let woken = self.sessions.least_lingering(lanes, slot)?;
        self.sessions.wake(lanes, woken, slot);
        if self.sessions[woken].linger > 0 {
            lanes[slot].collected.collector = Some(woken);
        }
        Some(woken.number())
    }

    /// Returns how many jobs of a lane may start now at most, whatever is ready.
    fn room_now(&mut self, lane: LaneSlot) -> u32 {
        let Lane { instance, id, gate, .. } = self.backlog.lanes[lane];
        let (places, now) = (self.running.places(instance, id), *self.backlog.now);
        let Some(gate) = gate else { return places };
        let gate = &mut self.backlog.gates[gate];
        gate.window.expire(gate.limits.period, now);
        let left = |limit: u32, used: u32| if limit == 0 { u32::MAX } else { limit.saturating_sub(used) };
        places
            .min(left(gate.limits.running, gate.running))
            .min(left(gate.limits.rate, u32::try_from(gate.window.sum()).unwrap_or(u32::MAX)))
    }

    /// Decides whether a session sleeps to collect up to `want` jobs of a lane, for at most `linger` microseconds after
    /// the first one. `now` is the present time. The session listens for no other lane. A batch is no larger than
    /// `ready`: of jobs beyond that, memory does not know how many there are.
    pub fn collect(&mut self, number: u32, instance: u32, lane: i32, want: u32, linger: i64, now: i64) -> Collect {
        let Some(slot) = self.backlog.lane_or_create(instance, lane) else { return Collect::Take };
        *self.backlog.now = now.max(*self.backlog.now);
        let session = SessionSlot::new(number);
        let known = self.backlog.known(slot, want);
        let lanes = &mut self.backlog.lanes;
        lanes.head.collected += u32::from(lanes[slot].collected.batch == 0);
        let collected = &mut lanes[slot].collected;
        if collected.batch == 0 {
            *collected = Collected { batch: want, collector: None, since: now, count: known, first_since: now };
        }
        // Others may have taken jobs of the newest batch. And calls before this one may have wanted smaller batches.
        collected.count = collected.count.min(known);
        let begun = if known > collected.count { collected.first_since } else { collected.since };
        let due = begun.saturating_add(linger);
        let is_closed = self.is_closed_for_now(slot);
        let enough = want.min(self.room_now(slot)).min(self.backlog.lanes.capacity() as u32);
        let unread = &self.backlog.lanes[slot];
        if now < due && !is_closed && unread.has_more() && !unread.is_read() && unread.len < enough {
            return Collect::Read;
        }
        let count = self.backlog.startable(slot, enough).filter(|_| !is_closed);
        let waits = count.is_some_and(|count| count > 0 && count < enough) && now < due;
        if !waits || !self.backlog.lanes.may_be_waited_for(slot) {
            return Collect::Take;
        }
        let was_woken = self.sessions.is_woken(number);
        let lanes = &mut self.backlog.lanes;
        self.sessions.delist(lanes, session);
        self.sessions.enlist(lanes, session, 0, slot);
        self.sessions.sleep(session, false, linger);
        let collected = &mut lanes[slot].collected;
        let other = collected.collector.filter(|&other| other != session);
        let is_behind = other.is_some_and(|other| self.sessions[other].linger <= linger);
        if !is_behind {
            *collected = Collected { batch: want, collector: Some(session), since: begun, count: known, ..*collected };
        }
        // A gate that has woken it may let jobs of other lanes start.
        let gate = self.backlog.lanes[slot].gate.filter(|_| was_woken);
        Collect::Sleep { due: (!is_behind).then_some(due), next: gate.and_then(|gate| self.wake_at_gate(gate)) }
    }
}
