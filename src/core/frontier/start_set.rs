//! The records of when jobs of groups have started within a sliding period, for a rate per group.
//!
//! As in [`super::window`], starts close to each other are kept as one span with the time of the last of them. A start
//! counts from the taking of the job until one period after the commit or rollback of its claim. Each group has its
//! newest starts in its record and the older ones in nodes of a pool that all groups share. If more than half of the
//! pool is in use, a start may count for an eighth of the period too long. If the pool is full, it may count for a
//! whole period too long.
//!
//! Responsible for records and nodes. Not responsible for when a record may be forgotten (`rates`).
//!
//! Invariant: never do more jobs of one group than the limit start within any period. A node is in the list of one
//! record or in the free list.

use super::dear::Dear;
use super::group::key_of;
use super::index::Bucket;
use super::limits::Limits;
use super::slot::{GateSlot, RateSlot, of};
use super::slots::{FreeSlots, SlotIndex, Slots, indexed_by_slot};
use super::starts::{Rate, Starts};
use super::window::{self, Span};

/// The grain while the pool has room, and when it is short.
const FINE: Grain = Grain { parts: window::PART, apart: window::APART };
const COARSE: Grain = Grain { parts: 8, apart: 2 };

struct Grain {
    parts: i64,
    apart: u32,
}

/// Counts of records and nodes. All zero: there are none.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct StartsHead {
    /// How many records are in use.
    pub(super) used: u32,
    slots: FreeSlots<of::Rate>,
    /// The slot at which the next search for expired records begins.
    hand: u32,
    /// If no record was free, none is before this monotonic time.
    pub(super) free_at: i64,
    /// How many nodes are in use.
    nodes: u32,
    node_slots: FreeSlots<of::Start>,
}

/// The records of starts, and the pool of older starts.
pub struct StartSet<'a> {
    rates: Slots<'a, Rate>,
    index: SlotIndex<'a, of::Rate>,
    pool: Slots<'a, Starts>,
    pub(super) head: &'a mut StartsHead,
}

impl<'a> StartSet<'a> {
    #[inline]
    pub(super) fn new(
        head: &'a mut StartsHead,
        rates: &'a mut [Rate],
        index: &'a mut [Bucket],
        pool: &'a mut [Starts],
    ) -> Self {
        Self { rates: Slots::new(rates), index: SlotIndex::new(index), pool: Slots::new(pool), head }
    }

    /// Returns how many groups have a record of starts, and for how many there is room.
    pub fn in_use(&self) -> (usize, usize) {
        (self.head.used as usize, self.rates.len())
    }

    /// Returns the slots that may have a record.
    pub(super) fn slots(&self) -> impl Iterator<Item = RateSlot> + use<> {
        self.head.slots.used_from(0)
    }

    pub(super) fn find(&self, gate: GateSlot, lane: i32, group: i64) -> Option<RateSlot> {
        if self.head.used == 0 {
            return None;
        }
        self.index.find(gate.number(), key_of(lane, group))
    }

    /// Returns the spans of a record, the oldest first.
    fn spans(&self, rate: &Rate) -> impl Iterator<Item = Span> {
        let mut next = rate.older.0;
        let older = std::iter::from_fn(move || {
            let node = &self.pool[next?];
            next = node.next;
            Some(node.span)
        });
        older.take(rate.len as usize).chain((rate.sum > 0).then_some(rate.newest))
    }

    /// Returns what counts of a record's starts now, the open ones included.
    pub(super) fn used(&self, slot: RateSlot, period: i64, now: i64) -> u64 {
        let rate = self.rates[slot];
        let from = now.saturating_sub(period);
        let expired: u64 = self.spans(&rate).take_while(|span| span.last <= from).map(|span| span.count).sum();
        rate.sum - expired + rate.open
    }

    /// Returns how much of its rate a record's group may use now.
    pub(super) fn room(&self, slot: RateSlot, limits: &Limits, now: i64) -> u32 {
        self.rates[slot].dear.room(limits.group_rate, self.used(slot, limits.period, now))
    }

    /// Returns when the next job of a record's group may start, because enough of its starts have expired. `None`: too
    /// many starts are open, or there is none.
    pub(super) fn opens_at(&self, slot: RateSlot, limits: &Limits, now: i64) -> Option<i64> {
        let from = now.saturating_sub(limits.period);
        let rate = &self.rates[slot];
        let many = rate.dear.must_free(limits.group_rate, self.used(slot, limits.period, now)).max(1);
        let mut freed = 0;
        let mut counting = self.spans(rate).filter(|span| span.last > from);
        let found = counting.find(|span| {
            freed += span.count;
            freed >= many
        });
        found.map(|span| span.last.saturating_add(limits.period))
    }

    /// As [`super::window::Window::take_back`], for a record.
    pub(super) fn take_back(&mut self, slot: RateSlot, at: i64, mut count: u64) {
        let rate = &mut self.rates[slot];
        let mut next = rate.older.0;
        for _ in 0..rate.len {
            let Some(node) = next else { break };
            let older = &mut self.pool[node];
            rate.sum -= older.span.take_back(at, &mut count);
            next = older.next;
        }
        if rate.sum > 0 {
            rate.sum -= rate.newest.take_back(at, &mut count);
        }
    }

    /// Returns the slot that is checked for expiry next. `None`: no slot was ever used.
    pub(super) fn next_to_check(&mut self) -> Option<RateSlot> {
        let known = self.head.slots.ever_used();
        if known == 0 {
            return None;
        }
        self.head.hand = (self.head.hand + 1) % known;
        Some(RateSlot::new(self.head.hand))
    }

    /// Forgets which jobs of a gate's groups are dear: their costs may be others now.
    pub(super) fn forget_dear(&mut self, gate: GateSlot) {
        for slot in self.slots() {
            if self.rates[slot].gate == Some(gate) {
                self.rates[slot].dear = Dear::default();
            }
        }
    }

    /// Makes the record of a group. `None`: none is free.
    pub(super) fn add(&mut self, gate: GateSlot, lane: i32, group: i64) -> Option<RateSlot> {
        let slot = self.head.slots.take(&mut self.rates)?;
        let key = key_of(lane, group);
        self.rates[slot] = Rate { key, gate: Some(gate), ..Rate::default() };
        self.index.insert(gate.number(), key, slot);
        self.head.used += 1;
        Some(slot)
    }

    /// Forgets a record.
    pub(super) fn remove(&mut self, slot: RateSlot) {
        while self.rates[slot].len > 0 {
            self.forget_oldest(slot);
        }
        let rate = self.rates[slot];
        self.index.remove(rate.gate().number(), rate.key);
        self.rates[slot] = Rate::default();
        self.head.slots.give(&mut self.rates, slot);
        self.head.used -= 1;
    }

    /// Gives the oldest of the older starts back to the pool.
    fn forget_oldest(&mut self, slot: RateSlot) {
        let rate = &mut self.rates[slot];
        let Some(node) = rate.older.0 else { return };
        let Starts { span, next } = self.pool[node];
        rate.sum -= span.count;
        rate.len -= 1;
        rate.older = if rate.len == 0 { (None, None) } else { (next, rate.older.1) };
        self.head.node_slots.give(&mut self.pool, node);
        self.head.nodes -= 1;
    }

    /// Adds starts to a record.
    pub(super) fn add_starts(&mut self, slot: RateSlot, at: i64, count: u64, period: i64, now: i64) {
        if count == 0 {
            return;
        }
        let from = now.saturating_sub(period);
        while let Some(node) = self.rates[slot].older.0
            && self.pool[node].span.last <= from
        {
            self.forget_oldest(slot);
        }
        let grain = if self.head.nodes as usize * 2 < self.pool.len() { FINE } else { COARSE };
        let rate = self.rates[slot];
        // Callbacks need not run in the order of the commits.
        let at = at.max(rate.newest.last);
        let is_first = rate.sum == 0 || rate.len == 0 && rate.newest.last <= from;
        let is_close = at - rate.newest.first <= period / grain.parts && rate.len + 1 >= grain.apart;
        if is_first {
            self.rates[slot].sum = 0;
        } else if is_close || !self.age_newest(slot) {
            let rate = &mut self.rates[slot];
            rate.newest.last = at;
            rate.newest.count += count;
            rate.sum += count;
            return;
        }
        let rate = &mut self.rates[slot];
        rate.newest = Span { first: at, last: at, count };
        rate.sum += count;
    }

    /// Moves the newest starts of a record to a node of the pool. Returns false if no node is free.
    fn age_newest(&mut self, slot: RateSlot) -> bool {
        let Some(node) = self.head.node_slots.take(&mut self.pool) else { return false };
        self.head.nodes += 1;
        let rate = &mut self.rates[slot];
        self.pool[node] = Starts { span: rate.newest, next: None };
        match rate.older.1.replace(node) {
            Some(last) => self.pool[last].next = Some(node),
            None => rate.older.0 = Some(node),
        }
        rate.len += 1;
        true
    }
}

indexed_by_slot!(StartSet, RateSlot, rates: Rate);

#[cfg(test)]
impl StartSet<'_> {
    /// Checks that each node is in exactly one list, and that the sums are right. Returns how many records there are.
    pub(super) fn check(&self) -> u32 {
        let (mut rates, mut nodes) = (0, 0);
        for slot in self.rates.slots().filter(|&slot| self.rates[slot].gate.is_some()) {
            let rate = &self.rates[slot];
            assert_eq!(self.index.find(rate.gate().number(), rate.key), Some(slot));
            assert_eq!(self.spans(rate).map(|span| span.count).sum::<u64>(), rate.sum);
            assert!(self.spans(rate).is_sorted_by_key(|span| span.last));
            assert!(self.spans(rate).all(|span| span.first <= span.last));
            rates += 1;
            nodes += rate.len;
        }
        let free = self.head.node_slots.listed(&self.pool).len() as u32;
        assert_eq!((self.head.used, self.head.nodes), (rates, nodes));
        assert_eq!(self.head.node_slots.ever_used(), nodes + free);
        rates
    }
}
