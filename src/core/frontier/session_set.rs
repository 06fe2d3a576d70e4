//! The sessions that may sleep, and for which lanes each of them sleeps. Sessions are woken in the order in which they
//! came.
//!
//! A session waits for at most [`WAIT_LANES`] lanes and stands in the list of each. A wake-up removes it from all
//! lists, so that one job wakes one session.
//!
//! Responsible for these lists, whose ends the lanes keep. Not responsible for when a session is woken (`waiters`).

use super::lane_set::LaneSet;
use super::session::{Node, Session, Sleeper, WAIT_LANES};
use super::slot::{LaneSlot, NodeSlot, SessionSlot};
use super::slots::{Slots, indexed_by_slot};

/// What is known of all waiting sessions. All zero: nothing.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct SessionsHead {
    /// 1: a session may be sleeping although there is a job, because `running` had no place.
    pub(super) is_short: u8,
}

/// The sessions that may wait.
pub struct SessionSet<'a> {
    sessions: Slots<'a, Session>,
    pub(super) head: &'a mut SessionsHead,
}

impl<'a> SessionSet<'a> {
    #[inline]
    pub(super) fn new(head: &'a mut SessionsHead, sessions: &'a mut [Session]) -> Self {
        Self { sessions: Slots::new(sessions), head }
    }

    pub(super) fn slots(&self) -> impl DoubleEndedIterator<Item = SessionSlot> + use<> {
        self.sessions.slots()
    }

    fn node(&mut self, slot: NodeSlot) -> &mut Node {
        &mut self.sessions[slot.session()].nodes[slot.nth()]
    }

    /// Returns the session that stands behind this one in its lane's list.
    fn next(&self, slot: NodeSlot) -> Option<NodeSlot> {
        self.sessions[slot.session()].nodes[slot.nth()].next
    }

    /// Adds a session to the end of a lane's list. The lane is the `nth` one that the session waits for.
    pub(super) fn enlist(&mut self, lanes: &mut LaneSet<'_>, session: SessionSlot, nth: usize, lane: LaneSlot) {
        let this = NodeSlot::of(session, nth);
        let last = lanes[lane].waiters_last.replace(this);
        *self.node(this) = Node { lane: Some(lane), prev: last, next: None };
        match last {
            Some(last) => self.node(last).next = Some(this),
            None => {
                lanes[lane].waiters_first = Some(this);
                lanes.count_waited(lane);
            }
        }
        self.sessions[session].waiting = nth as u8 + 1;
    }

    /// Completes the session's entry after it has looked at all its lanes. If `for_refill` is true, the end of a refill
    /// wakes it even if the refill has found nothing.
    pub(super) fn sleep(&mut self, session: SessionSlot, for_refill: bool, linger: i64) {
        let entry = &mut self.sessions[session];
        (entry.woken_for, entry.for_refill, entry.linger) = (None, u8::from(for_refill), linger);
    }

    /// Removes a session from all lists.
    pub(super) fn delist(&mut self, lanes: &mut LaneSet<'_>, session: SessionSlot) {
        let entry = &mut self.sessions[session];
        (entry.pid, entry.since) = (0, 0);
        let count = std::mem::take(&mut entry.waiting);
        for nth in 0..usize::from(count) {
            let Node { lane, prev, next } = std::mem::take(&mut self.sessions[session].nodes[nth]);
            let Some(lane) = lane else { continue };
            match prev {
                Some(prev) => self.node(prev).next = next,
                None => lanes[lane].waiters_first = next,
            }
            match next {
                Some(next) => self.node(next).prev = prev,
                None => lanes[lane].waiters_last = prev,
            }
            if prev.is_none() && next.is_none() {
                lanes.count_unwaited(lane);
            }
        }
    }

    /// Wakes a session for a lane. Returns its number. The caller sets its latch.
    pub(super) fn wake(&mut self, lanes: &mut LaneSet<'_>, session: SessionSlot, lane: LaneSlot) -> u32 {
        self.delist(lanes, session);
        self.sessions[session].woken_for = Some(lane);
        session.number()
    }

    /// Wakes the first session that waits for this lane.
    pub(super) fn wake_first(&mut self, lanes: &mut LaneSet<'_>, lane: LaneSlot) -> Option<u32> {
        let first = lanes[lane].waiters_first?;
        Some(self.wake(lanes, first.session(), lane))
    }

    /// Wakes the first session that waits for the end of a refill of this lane.
    pub(super) fn wake_refill_waiter(&mut self, lanes: &mut LaneSet<'_>, lane: LaneSlot) -> Option<u32> {
        let mut at = lanes[lane].waiters_first;
        while let Some(this) = at {
            if self.sessions[this.session()].for_refill != 0 {
                return Some(self.wake(lanes, this.session(), lane));
            }
            at = self.next(this);
        }
        None
    }

    // ---- batches

    /// Returns the session that lingers least for a lane, and of several the first one.
    pub(super) fn least_lingering(&self, lanes: &LaneSet<'_>, lane: LaneSlot) -> Option<SessionSlot> {
        let mut at = lanes[lane].waiters_first;
        let mut first: Option<SessionSlot> = None;
        while let Some(this) = at {
            let linger = |session: SessionSlot| self.sessions[session].linger;
            if first.is_none_or(|first| linger(this.session()) < linger(first)) {
                first = Some(this.session());
            }
            if linger(this.session()) == 0 {
                break;
            }
            at = self.next(this);
        }
        first
    }

    /// Lets a session that has gone to sleep for some lanes be woken before their collectors, if these linger longer.
    pub(super) fn yield_to(&self, lanes: &mut LaneSet<'_>, session: SessionSlot) {
        if lanes.head.collected == 0 {
            return;
        }
        let sleeper = &self.sessions[session];
        for lane in sleeper.nodes[..usize::from(sleeper.waiting)].iter().filter_map(|node| node.lane) {
            let collector = lanes[lane].collected.collector;
            if collector.is_some_and(|other| sleeper.linger < self.sessions[other].linger) {
                lanes[lane].collected.collector = None;
            }
        }
    }

    /// Ends a session's turn to collect. If only the time has woken the session, it counts as woken from now on: it
    /// answers for the jobs that it leaves.
    pub(super) fn stop_collecting(&mut self, lanes: &mut LaneSet<'_>, session: SessionSlot) {
        if lanes.head.collected == 0 {
            return;
        }
        let Session { woken_for, nodes, .. } = &self.sessions[session];
        let is_collected = |lane: &LaneSlot| lanes[*lane].collected.collector == Some(session);
        let Some(lane) = [*woken_for, nodes[0].lane].into_iter().flatten().find(is_collected) else { return };
        lanes[lane].collected.collector = None;
        if self.sessions[session].woken_for.is_none() {
            self.wake(lanes, session, lane);
        }
    }

    // ---- what others ask

    /// Notes which process sleeps in this session, for [`super::Frontier::next_sleeper`]. Called after
    /// [`super::Frontier::wait`] or [`super::Frontier::collect`] has answered that the session sleeps. A wake-up, and
    /// the end of the wait, remove the note.
    pub fn note_sleeper(&mut self, session: u32, pid: i32, now: i64) {
        let entry = &mut self.sessions[SessionSlot::new(session)];
        (entry.pid, entry.since) = (pid, now);
    }

    /// Returns the first noted sleeper of an instance whose session number is at least `from`, and the number after it.
    pub(super) fn next_sleeper(&self, lanes: &LaneSet<'_>, instance: u32, from: u32) -> Option<(u32, Sleeper)> {
        (from..self.sessions.len() as u32).find_map(|number| {
            let session = &self.sessions[SessionSlot::new(number)];
            if session.pid == 0 {
                return None;
            }
            let mut sleeper = Sleeper { pid: session.pid, since: session.since, lanes: [0; WAIT_LANES], len: 0 };
            for lane in session.nodes[..usize::from(session.waiting)].iter().filter_map(|node| node.lane) {
                if lanes[lane].instance == instance {
                    sleeper.lanes[sleeper.len] = lanes[lane].id;
                    sleeper.len += 1;
                }
            }
            (sleeper.len > 0).then_some((number + 1, sleeper))
        })
    }

    /// True if the session was woken since it began to wait.
    pub fn is_woken(&self, session: u32) -> bool {
        self.sessions[SessionSlot::new(session)].woken_for.is_some()
    }
}

indexed_by_slot!(SessionSet, SessionSlot, sessions: Session);
