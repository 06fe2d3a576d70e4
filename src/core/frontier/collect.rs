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
use super::lane::{Collected, Lane, LaneSlot};
use super::memory::Frontier;
use super::session::{Session, SessionSlot};

impl Frontier<'_> {
    /// Returns how many jobs of a lane may start, of those that memory knows. A group that has a turn counts as one.
    fn known(&self, lane: LaneSlot) -> u32 {
        let lane = &self.lanes[lane];
        lane.len + lane.groups.turns.len()
    }

    /// As [`Self::known`]. `None`: there may be more.
    fn startable(&self, lane: LaneSlot) -> Option<u32> {
        let unread = &self.lanes[lane];
        (!unread.has_more() && !unread.is_read()).then(|| self.known(lane))
    }

    /// Counts a job that comes. If it is the first one of a batch, the batch begins. What a claim takes does not count
    /// here, as it may take a batch in several holds of the lock.
    pub(super) fn count_in_batch(&mut self, lane: LaneSlot) {
        let is_alone = self.known(lane) == 0;
        let collected = &mut self.lanes[lane].collected;
        if is_alone {
            collected.first_since = self.head.now;
        }
        if is_alone || collected.count >= collected.batch {
            (collected.since, collected.count) = (self.head.now, 0);
        }
        collected.count += 1;
    }

    /// Wakes the collector if its batch is full. A lane without collector gets one: the session that lingers least, and
    /// of several the first one.
    pub(super) fn wake_collector(&mut self, lane: LaneSlot) -> Option<u32> {
        let collected = self.lanes[lane].collected;
        if let Some(collector) = collected.collector {
            let is_full = self.startable(lane).is_none_or(|count| count >= collected.batch.min(self.room_now(lane)));
            let is_asleep = self.sessions[collector].waiting != 0;
            return (is_full && is_asleep).then(|| self.wake(collector, lane));
        }
        let mut at = self.lanes[lane].waiters_first;
        let mut first: Option<SessionSlot> = None;
        while let Some(node) = at {
            let session = node.session();
            let linger = |session: SessionSlot| self.sessions[session].linger;
            if first.is_none_or(|first| linger(session) < linger(first)) {
                first = Some(session);
            }
            if linger(session) == 0 {
                break;
            }
            at = self.sessions[session].nodes[node.nth()].next;
        }
        let woken = first?;
        self.wake(woken, lane);
        if self.sessions[woken].linger > 0 {
            self.lanes[lane].collected.collector = Some(woken);
        }
        Some(woken.number())
    }

    /// Returns how many jobs of a lane may start now at most, whatever is ready.
    fn room_now(&mut self, lane: LaneSlot) -> u32 {
        let Lane { instance, id, gate, .. } = self.lanes[lane];
        let (places, now) = (self.places(instance, id), self.head.now);
        let Some(gate) = gate else { return places };
        let gate = &mut self.gates[gate];
        gate.window.expire(gate.limits.period, now);
        let left = |limit: u32, used: u32| if limit == 0 { u32::MAX } else { limit.saturating_sub(used) };
        places.min(left(gate.limits.running, gate.running)).min(left(gate.limits.rate, gate.window.sum()))
    }

    /// Decides whether a session sleeps to collect up to `want` jobs of a lane, for at most `linger` microseconds after
    /// the first one. `now` is the present time. The session listens for no other lane. A batch is no larger than
    /// `ready`: of jobs beyond that, memory does not know how many there are.
    pub fn collect(&mut self, number: u32, instance: u32, lane: i32, want: u32, linger: i64, now: i64) -> Collect {
        let Some(slot) = self.lane_or_create(instance, lane) else { return Collect::Take };
        self.head.now = self.head.now.max(now);
        let session = SessionSlot::new(number);
        let known = self.known(slot);
        let collected = &mut self.lanes[slot].collected;
        if collected.batch == 0 {
            *collected = Collected { batch: want, collector: None, since: now, count: known, first_since: now };
            self.head.collected += 1;
        }
        // Others may have taken jobs of the newest batch. And calls before this one may have wanted smaller batches.
        collected.count = collected.count.min(known);
        let begun = if known > collected.count { collected.first_since } else { collected.since };
        let due = begun.saturating_add(linger);
        let is_closed = self.is_closed_for_now(slot);
        let enough = want.min(self.room_now(slot)).min(self.ring(slot).capacity() as u32);
        let unread = &self.lanes[slot];
        if now < due && !is_closed && unread.has_more() && !unread.is_read() && unread.len < enough {
            return Collect::Read;
        }
        let count = self.startable(slot).filter(|_| !is_closed);
        let waits = count.is_some_and(|count| count > 0 && count < enough) && now < due;
        if !waits || !self.may_be_waited_for(slot) {
            return Collect::Take;
        }
        let was_woken = self.is_woken(number);
        self.delist(session);
        self.enlist(session, 0, slot);
        self.sleep(session, false, linger);
        let collected = &mut self.lanes[slot].collected;
        let other = collected.collector.filter(|&other| other != session);
        let is_behind = other.is_some_and(|other| self.sessions[other].linger <= linger);
        if !is_behind {
            *collected = Collected { batch: want, collector: Some(session), since: begun, count: known, ..*collected };
        }
        // A gate that has woken it may let jobs of other lanes start.
        let gate = self.lanes[slot].gate.filter(|_| was_woken);
        Collect::Sleep { due: (!is_behind).then_some(due), next: gate.and_then(|gate| self.wake_at_gate(gate)) }
    }

    /// Lets a session that has gone to sleep for some lanes be woken before their collectors, if these linger longer.
    pub(super) fn yield_to(&mut self, session: SessionSlot) {
        if self.head.collected == 0 {
            return;
        }
        let sleeper = self.sessions[session];
        for node in &sleeper.nodes[..usize::from(sleeper.waiting)] {
            let Some(lane) = node.lane else { continue };
            let collector = self.lanes[lane].collected.collector;
            if collector.is_some_and(|other| sleeper.linger < self.sessions[other].linger) {
                self.lanes[lane].collected.collector = None;
            }
        }
    }

    /// Ends a session's turn to collect. If only the time has woken the session, it counts as woken from now on: it
    /// answers for the jobs that it leaves.
    pub(super) fn stop_collecting(&mut self, session: SessionSlot) {
        if self.head.collected == 0 {
            return;
        }
        let Session { woken_for, nodes, .. } = &self.sessions[session];
        let is_collected = |lane: &LaneSlot| self.lanes[*lane].collected.collector == Some(session);
        let lanes = [*woken_for, nodes[0].lane].into_iter().flatten();
        let Some(lane) = lanes.into_iter().find(is_collected) else { return };
        self.lanes[lane].collected.collector = None;
        if self.sessions[session].woken_for.is_none() {
            self.wake(session, lane);
        }
    }
}
