//! Counts how many jobs of each lane wait and run, and how attempts have ended since the queue was created. Each event
//! is counted when it happens, so that no query has to count rows.
//!
//! Like the frontier this is a cache of the logs in memory of the caller. It allocates nothing and cannot fail. A
//! *recount* reads the logs through one snapshot, and a [`Horizon`] says which commits that snapshot already has. See
//! docs/internals/counting.md.
//!
//! Invariant: while the counters of an instance are known, they equal what a snapshot taken now would count in the
//! logs. Only transactions are missing that are visible and whose callback has not run yet.

use crate::frontier::Rank;
use crate::frontier::index::{self, Bucket};
use crate::minutes::Minutes;
use crate::totals::{End, Totals};

/// What happened to an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It was inserted and is waiting.
    Enqueued {
        /// Whether it is its job's first attempt.
        is_first: bool,
    },
    /// A worker has claimed it.
    Claimed,
    /// This many waiting attempts were ended without a run.
    EndedUnrun(i64),
    /// It ran and has ended.
    Ended(End),
    /// It has ended in this way without a run. Another event counts that it waits no longer.
    Told(End),
}

impl End {
    /// The most frequent end: the attempt has completed and the job is done.
    pub const COMPLETED: End = End { outcome: b'c', has_next: false };
}

/// The numbers that are counted for a lane. All zero means that nothing has happened.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Attempts that are waiting, due or not.
    pub waiting: i64,
    /// Attempts that workers are running.
    pub running: i64,
    /// What has happened since the lane was created.
    pub totals: Totals,
}

impl Counts {
    /// Counts an event.
    pub fn record(&mut self, event: Event) {
        match event {
            Event::Enqueued { is_first } => {
                self.waiting += 1;
                self.totals.enqueued += i64::from(is_first);
            }
            Event::Claimed => {
                self.waiting -= 1;
                self.running += 1;
                self.totals.claimed += 1;
            }
            Event::EndedUnrun(count) => self.waiting -= count,
            Event::Ended(end) => {
                self.running -= 1;
                self.totals.end(end);
            }
            Event::Told(end) => self.totals.end(end),
        }
    }

    /// Adds other counts.
    pub fn add(&mut self, other: &Self) {
        self.waiting += other.waiting;
        self.running += other.running;
        self.totals.add(&other.totals);
    }
}

/// What is known of one lane.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    /// The numbers that are counted.
    pub counts: Counts,
    /// No waiting attempt ranks at or before this.
    pub floor: Rank,
    /// When a worker last claimed an attempt, in the caller's unit of time. `i64::MIN`: not known.
    pub claimed_at: i64,
    /// How long the attempts that have ended had run, in microseconds. After a recount it begins at 0.
    pub busy_us: i64,
}

impl Counter {
    /// A counter that has counted nothing; no attempt waits.
    pub const NONE: Counter = Counter {
        counts: Counts { waiting: 0, running: 0, totals: Totals::NONE },
        floor: Rank::MAX,
        claimed_at: i64::MIN,
        busy_us: 0,
    };

    /// Lowers the floor for a waiting attempt of this rank.
    pub fn lower(&mut self, rank: Rank) {
        self.floor = self.floor.min(rank.before());
    }

    /// Adds another counter.
    pub fn add(&mut self, other: &Self) {
        self.counts.add(&other.counts);
        self.floor = self.floor.min(other.floor);
        self.claimed_at = self.claimed_at.max(other.claimed_at);
        self.busy_us = self.busy_us.saturating_add(other.busy_us);
    }
}

/// The slot of a lane's counter. All zero is a free slot.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Slot {
    instance: u32,
    lane: i32,
    counter: Counter,
    minutes: Minutes,
}

/// The counters of all lanes, in memory of the caller.
pub struct Counters<'a> {
    /// One per lane.
    pub slots: &'a mut [Slot],
    /// Finds the slot of a lane. It has [`index::buckets_for`] as many buckets as there are slots.
    pub index: &'a mut [Bucket],
    /// The number of the first slot that was never used. All slots behind it were never used either.
    pub top: &'a mut u32,
}

impl Counters<'_> {
    /// Returns a lane's counter for a change.
    pub fn find(&mut self, instance: u32, lane: i32) -> Option<&mut Counter> {
        let slot = index::find(self.index, instance, i64::from(lane))?;
        Some(&mut self.slots[slot as usize].counter)
    }

    /// Returns a lane's counter for reading.
    pub fn get(&self, instance: u32, lane: i32) -> Option<&Counter> {
        index::find(self.index, instance, i64::from(lane)).map(|slot| &self.slots[slot as usize].counter)
    }

    /// Returns a lane's counter, and makes it if there is none. `None` if all slots are in use.
    pub fn find_or_make(&mut self, instance: u32, lane: i32) -> Option<&mut Counter> {
        let slot = match index::find(self.index, instance, i64::from(lane)) {
            Some(slot) => slot as usize,
            None => self.make(instance, lane)?,
        };
        Some(&mut self.slots[slot].counter)
    }

    /// Makes the counter of a lane that has none. Returns its slot; `None` if all are in use.
    fn make(&mut self, instance: u32, lane: i32) -> Option<usize> {
        let free = self.slots.iter().position(|slot| slot.instance == 0)?;
        *self.top = (*self.top).max(free as u32 + 1);
        self.slots[free] = Slot { instance, lane, counter: Counter::NONE, minutes: Minutes::default() };
        index::insert(self.index, instance, i64::from(lane), free as u32);
        Some(free)
    }

    /// Adds the counts of a commit in this minute to a lane's counter. Makes the counter if the lane has none. Returns
    /// false if there is no room for a new counter.
    pub fn add(&mut self, instance: u32, lane: i32, counter: &Counter, minute: i64) -> bool {
        let known = index::find(self.index, instance, i64::from(lane)).map(|slot| slot as usize);
        let Some(slot) = known.or_else(|| self.make(instance, lane)) else { return false };
        let slot = &mut self.slots[slot];
        slot.counter.add(counter);
        slot.minutes.add(minute, &counter.counts.totals, counter.busy_us);
        true
    }

    /// Returns the minutes of a lane.
    pub fn minutes_of(&self, instance: u32, lane: i32) -> Option<&Minutes> {
        index::find(self.index, instance, i64::from(lane)).map(|slot| &self.slots[slot as usize].minutes)
    }

    /// Forgets a lane.
    pub fn forget(&mut self, instance: u32, lane: i32) {
        if let Some(slot) = index::find(self.index, instance, i64::from(lane)) {
            self.slots[slot as usize] = Slot::default();
            index::remove(self.index, instance, i64::from(lane));
        }
    }

    /// Forgets all lanes of an instance.
    pub fn forget_instance(&mut self, instance: u32) {
        for n in 0..*self.top as usize {
            if instance != 0 && self.slots[n].instance == instance {
                self.forget(instance, self.slots[n].lane);
            }
        }
    }

    /// Returns the lanes of an instance with their counters.
    pub fn of(&self, instance: u32) -> impl Iterator<Item = (i32, &Counter)> {
        let used = &self.slots[..*self.top as usize];
        used.iter().filter(move |slot| slot.instance == instance).map(|slot| (slot.lane, &slot.counter))
    }
}

/// The transactions that a snapshot sees: those before `xmin`, and those before `xmax` that were not in progress.
#[derive(Clone, Copy, Debug)]
pub struct Horizon<'a> {
    /// All transactions before this one had ended. With its epoch.
    pub xmin: u64,
    /// No transaction had ended that has this id or a later one. With its epoch.
    pub xmax: u64,
    /// The transactions in between that had not ended, without epochs.
    pub in_progress: &'a [u32],
}

impl Horizon<'_> {
    /// True if the snapshot sees this transaction. The transaction must have committed. `xid`: with its epoch.
    pub fn sees(&self, xid: u64) -> bool {
        xid < self.xmin || xid < self.xmax && !self.in_progress.contains(&(xid as u32))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::rollup::{Life, Rollup};

    #[test]
    fn the_totals_are_those_of_the_rollup() {
        for outcome in *b"cfdtraxse" {
            for has_next in [false, true] {
                for is_first in [false, true] {
                    let mut counts = Counts::default();
                    counts.record(Event::Enqueued { is_first });
                    counts.record(Event::Claimed);
                    counts.record(Event::Ended(End { outcome, has_next }));
                    let mut rollup = Rollup::default();
                    rollup.add(&Life {
                        lane: 1,
                        is_first_attempt: is_first,
                        enqueued_at: 0,
                        ready_at: Some(0),
                        claimed_at: Some(0),
                        ended_at: Some(0),
                        outcome: Some(outcome),
                        has_next,
                    });
                    let Some((_, _, e)) = rollup.iter().next() else { panic!("nothing was counted") };
                    let of_rollup = Counts { totals: e.totals, ..Counts::default() };
                    assert_eq!(counts, of_rollup, "{} {has_next} {is_first}", char::from(outcome));
                }
            }
        }
    }

    #[test]
    fn what_waits_and_runs_is_followed() {
        let mut counts = Counts::default();
        let waiting_and_running = |counts: &Counts| (counts.waiting, counts.running);
        (0..3).for_each(|_| counts.record(Event::Enqueued { is_first: true }));
        assert_eq!(waiting_and_running(&counts), (3, 0));
        counts.record(Event::Claimed);
        assert_eq!(waiting_and_running(&counts), (2, 1));
        counts.record(Event::EndedUnrun(2));
        assert_eq!(waiting_and_running(&counts), (0, 1));
        counts.record(Event::Ended(End { outcome: b'r', has_next: true }));
        assert_eq!(waiting_and_running(&counts), (0, 0));
    }

    #[test]
    fn a_horizon_lies_across_two_epochs() {
        const EPOCH: u64 = 1 << 32;
        let horizon = Horizon { xmin: EPOCH - 2, xmax: EPOCH + 5, in_progress: &[u32::MAX - 1, 3] };
        let seen: Vec<bool> =
            [EPOCH - 3, EPOCH - 2, EPOCH - 1, EPOCH + 3, EPOCH + 4, EPOCH + 5, EPOCH + 6, 2 * EPOCH, 3 * EPOCH - 3]
                .into_iter()
                .map(|xid| horizon.sees(xid))
                .collect();
        assert_eq!(seen, [true, false, true, false, true, false, false, false, false]);
    }

    /// A commit of a history with a recount in the middle.
    #[derive(Clone, Debug)]
    struct Commit {
        lane: i32,
        enqueued: bool,
        /// 0: told before the recount begins. 1: visible before the recount begins, told later, perhaps after the
        /// recount's end. 2: visible later.
        when: u8,
    }

    fn commit() -> impl Strategy<Value = Commit> {
        (1..4_i32, any::<bool>(), 0..3_u8).prop_map(|(lane, enqueued, when)| Commit { lane, enqueued, when })
    }

    proptest! {
        #![proptest_config(crate::cases(256))]

        #[test]
        fn behaves_like_a_map(steps in prop::collection::vec((0u8..8, 1u32..3, 1i32..6), crate::length(200))) {
            let (mut slots, mut index) = (vec![Slot::default(); 6], vec![Bucket::default(); index::buckets_for(6)]);
            let mut top = 0;
            let mut counters = Counters { slots: &mut slots, index: &mut index, top: &mut top };
            let mut model: BTreeMap<(u32, i32), i64> = BTreeMap::new();
            for (what, instance, lane) in steps {
                match what {
                    0..=4 => {
                        let fits = model.len() < 6 || model.contains_key(&(instance, lane));
                        let found = counters.find_or_make(instance, lane);
                        prop_assert_eq!(found.is_some(), fits);
                        if let Some(counter) = found {
                            counter.counts.record(Event::Enqueued { is_first: true });
                            *model.entry((instance, lane)).or_default() += 1;
                        }
                    }
                    5 | 6 => {
                        counters.forget(instance, lane);
                        model.remove(&(instance, lane));
                    }
                    _ => {
                        counters.forget_instance(instance);
                        model.retain(|key, _| key.0 != instance);
                    }
                }
                for instance in 1..3 {
                    let of_instance = counters.of(instance);
                    let found: BTreeMap<_, _> =
                        of_instance.map(|(lane, counter)| ((instance, lane), counter.counts.waiting)).collect();
                    let known = model.iter().filter(|(key, _)| key.0 == instance).map(|(k, v)| (*k, *v)).collect();
                    prop_assert_eq!(found, known);
                }
            }
        }

        #[test]
        fn a_recount_misses_nothing_and_doubles_nothing(commits in prop::collection::vec(commit(), crate::length(60))) {
            // Into the next epoch.
            let xid = |n: usize| u64::from(u32::MAX - 30) + n as u64;
            let event = |commit: &Commit| if commit.enqueued {
                Event::Enqueued { is_first: true }
            } else {
                Event::Claimed
            };
            let in_progress: Vec<u32> =
                (0..commits.len()).filter(|&n| commits[n].when == 2).map(|n| xid(n) as u32).collect();
            let horizon = Horizon { xmin: xid(0), xmax: xid(commits.len()), in_progress: &in_progress };
            let (mut counted, mut whole) = (BTreeMap::<i32, Counts>::new(), BTreeMap::<i32, Counts>::new());
            for (n, commit) in commits.iter().enumerate() {
                whole.entry(commit.lane).or_default().record(event(commit));
                // The walk.
                if commit.when < 2 {
                    counted.entry(commit.lane).or_default().record(event(commit));
                }
                // The commits that are told after the recount has begun.
                if commit.when > 0 && !horizon.sees(xid(n)) {
                    counted.entry(commit.lane).or_default().record(event(commit));
                }
            }
            prop_assert_eq!(counted, whole);
        }
    }
}
