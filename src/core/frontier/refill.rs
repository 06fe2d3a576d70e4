//! The flag and the marks of a refill: a session reads on behind P. The reading itself is in `job/refill.rs`.
//!
//! Invariant: while the flag is up, every commit pushes its attempts. One step both sets P and lowers the flag.

use super::lane::Lane;
use super::memory::Frontier;
use super::rank::Rank;
use super::ready::Ready;
use super::slot::SessionSlot;

impl Frontier<'_> {
    /// Raises the lane's flag. Returns the position behind which the caller reads the index, with a snapshot taken
    /// *after* this call. `None` if another session is refilling, if there is nothing to read, or if there is no slot.
    pub fn refill_begin(&mut self, instance: u32, lane: i32, session: u32) -> Option<Rank> {
        let slot = self.backlog.lane_or_create(instance, lane)?;
        let lane = &mut self.backlog.lanes[slot];
        if lane.refiller.is_some() || lane.position == Rank::MAX {
            return None;
        }
        let after = if lane.goes_on != 0 { lane.lenient.max(lane.position) } else { lane.position };
        lane.goes_on = 0;
        // Attempts before this position are still unread, as if the lane were invalidated only now.
        lane.invalidated = u8::from(after > lane.position);
        lane.refiller = Some(SessionSlot::new(session));
        lane.read = after;
        lane.spill = Rank::MAX;
        Some(after)
    }

    /// Hands over waiting attempts that were read, in order. The session has read everything up to `read_to`: the
    /// position just before the next row ([`Rank::before`]), because attempts of one job have the same rank, or
    /// [`Rank::MAX`] if there is no next row. Returns false if `ready` is full of these attempts, so that the refill
    /// should stop. Changes the order of `found`.
    pub fn refill_push(&mut self, instance: u32, lane: i32, session: u32, found: &mut [Ready], read_to: Rank) -> bool {
        let Some(slot) = self.backlog.lanes.find(instance, lane) else { return false };
        if self.backlog.lanes[slot].refiller != Some(SessionSlot::new(session)) {
            return false;
        }
        // The attempts to be put into `ready` move to the front, until they fill it.
        let mut kept = 0;
        for nth in 0..found.len() {
            let entry = found[nth];
            let is_taken = self.running.hold_push(instance, entry.id);
            if is_taken || entry.place.is_indexed && self.backlog.park(slot, &entry) {
                continue;
            }
            let lanes = &mut self.backlog.lanes;
            let ring = lanes.ring(slot);
            if kept >= ring.capacity() - ring.len() {
                lanes.put_all(slot, &found[..kept]);
                kept = 0;
                let ring = lanes.ring(slot);
                if ring.is_full() && ring.last().is_some_and(|last| last.rank < entry.rank) {
                    lanes[slot].read = entry.rank.before();
                    return false;
                }
            }
            found[kept] = entry;
            kept += 1;
        }
        let lanes = &mut self.backlog.lanes;
        lanes.put_all(slot, &found[..kept]);
        lanes[slot].read = read_to;
        let ring = lanes.ring(slot);
        !ring.is_full() || ring.last().is_some_and(|last| last.rank > read_to)
    }

    /// Lowers the flag and sets P in one step. The caller may also end a refill after an error, because the attempts
    /// that it has read were read in order. Returns whether it was this session's refill. If so, the caller goes on
    /// with [`Self::refill_wake`].
    pub fn refill_end(&mut self, instance: u32, lane: i32, session: u32) -> bool {
        let Some(slot) = self.backlog.lanes.find(instance, lane) else { return false };
        let first = self.backlog.lanes.ring(slot).first().map(|entry| entry.rank);
        let lane = &mut self.backlog.lanes[slot];
        if lane.refiller != Some(SessionSlot::new(session)) {
            return false;
        }
        lane.refiller = None;
        let read = lane.read.min(lane.spill);
        let was_overtaken = lane.invalidated != 0;
        (lane.position, lane.lenient) = if was_overtaken { (Rank::MIN, read) } else { (read, Rank::MIN) };
        let hands_out_nothing = first.is_none_or(|first| first > read);
        lane.goes_on = u8::from(was_overtaken && hands_out_nothing && read < Rank::MAX);
        (lane.invalidated, lane.is_fresh) = (0, 1);
        true
    }

    /// Wakes one session that waited for the end of a refill. The caller repeats it until it returns `None`. Then it
    /// calls [`Self::pass_on`], also after an error, because sessions that wait for jobs may have relied on the refill.
    pub fn refill_wake(&mut self, instance: u32, lane: i32) -> Option<u32> {
        let slot = self.backlog.lanes.find(instance, lane)?;
        self.sessions.wake_refill_waiter(&mut self.backlog.lanes, slot)
    }

    /// Ends the refill of a session that is going away. Returns its lane. The caller wakes sessions there as after any
    /// refill.
    pub fn refill_abandon(&mut self, session: u32) -> Option<(u32, i32)> {
        let reader = Some(SessionSlot::new(session));
        let slot = self.backlog.lanes.first(|lane| lane.is_used() && lane.refiller == reader)?;
        let Lane { instance, id, .. } = self.backlog.lanes[slot];
        self.refill_end(instance, id, session);
        Some((instance, id))
    }
}
