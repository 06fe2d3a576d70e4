//! How many jobs of each lane wait and run, and what has become of attempts since the queue was made: counted as
//! it happens, so that nobody has to count rows to know.
//!
//! Like the frontier this is a cache of the logs, laid over memory of the caller, takes no memory and cannot
//! fail. A *recount* reads the logs through one snapshot and tells from a [`Horizon`] which commits are in that
//! already.
//!
//! Invariant, while an instance's tallies are known: what they say is what the logs say to a snapshot taken now,
//! but for transactions that have become visible and have not come to tell it yet.

use crate::frontier::Rank;
use crate::frontier::index::{self, Bucket};

/// What happened to an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It was inserted, to wait.
    Enqueued {
        /// Whether it is its job's first.
        is_first: bool,
    },
    /// It waited, and a worker has it.
    Claimed,
    /// So many waited, and were ended unrun.
    EndedUnrun(i64),
    /// It ran, and ended.
    Ended(End),
}

/// How an attempt ended that ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// As the log has it: `c` completed, `a` advanced, `f` failed, `d` dead, `t` timed out; others are not counted.
    pub outcome: u8,
    /// Whether another attempt goes on with the job.
    pub has_next: bool,
}

impl End {
    /// The end of nearly all.
    pub const COMPLETED: End = End { outcome: b'c', has_next: false };
}

/// What is counted; all zero is nothing.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Attempts that wait, due or not.
    pub waiting: i64,
    /// Attempts that workers have.
    pub running: i64,
    /// Jobs, ever.
    pub enqueued: i64,
    /// Attempts claimed by workers, ever.
    pub claimed: i64,
    /// Attempts completed or advanced, ever.
    pub completed: i64,
    /// Attempts failed, ever, the last ones of their jobs too.
    pub failed: i64,
    /// Attempts whose lease or connection ended, ever.
    pub timed_out: i64,
    /// Attempts that ended badly and were the last ones of their jobs, ever.
    pub died: i64,
}

impl Counts {
    /// Counts what happened.
    pub fn record(&mut self, event: Event) {
        match event {
            Event::Enqueued { is_first } => {
                self.waiting += 1;
                self.enqueued += i64::from(is_first);
            }
            Event::Claimed => {
                self.waiting -= 1;
                self.running += 1;
                self.claimed += 1;
            }
            Event::EndedUnrun(count) => self.waiting -= count,
            Event::Ended(end) => {
                self.running -= 1;
                self.end(end);
            }
        }
    }

    /// Counts an end, in the totals only.
    pub fn end(&mut self, End { outcome, has_next }: End) {
        match outcome {
            b'c' | b'a' => self.completed += 1,
            b'f' => self.failed += 1,
            b'd' => {
                self.failed += 1;
                self.died += 1;
            }
            b't' => {
                self.timed_out += 1;
                self.died += i64::from(!has_next);
            }
            _ => {}
        }
    }

    /// Adds others.
    pub fn add(&mut self, other: &Self) {
        self.waiting += other.waiting;
        self.running += other.running;
        self.enqueued += other.enqueued;
        self.claimed += other.claimed;
        self.completed += other.completed;
        self.failed += other.failed;
        self.timed_out += other.timed_out;
        self.died += other.died;
    }
}

/// A lane's tally.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// What is counted.
    pub counts: Counts,
    /// No attempt waits that ranks at or before this.
    pub floor: Rank,
    /// When a worker claimed one last, as the caller counts time; before everything when nobody knows.
    pub claimed_at: i64,
}

impl Tally {
    /// Nothing is counted, nothing waits.
    pub const NONE: Tally = Tally {
        counts: Counts {
            waiting: 0,
            running: 0,
            enqueued: 0,
            claimed: 0,
            completed: 0,
            failed: 0,
            timed_out: 0,
            died: 0,
        },
        floor: Rank::MAX,
        claimed_at: i64::MIN,
    };

    /// An attempt of this rank waits.
    pub fn lower(&mut self, rank: Rank) {
        self.floor = self.floor.min(rank.before());
    }

    /// Adds another one.
    pub fn add(&mut self, other: &Self) {
        self.counts.add(&other.counts);
        self.floor = self.floor.min(other.floor);
        self.claimed_at = self.claimed_at.max(other.claimed_at);
    }
}

/// A slot; all zero is free.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Slot {
    instance: u32,
    lane: i32,
    tally: Tally,
}

/// All tallies, laid over memory of the caller.
pub struct Tallies<'a> {
    /// One per lane.
    pub slots: &'a mut [Slot],
    /// Index of slots, [`index::buckets_for`] as many.
    pub index: &'a mut [Bucket],
    /// Slots from here on were never used.
    pub top: &'a mut u32,
}

impl Tallies<'_> {
    /// A lane's tally.
    pub fn find(&mut self, instance: u32, lane: i32) -> Option<&mut Tally> {
        let slot = index::find(self.index, instance, i64::from(lane))?;
        Some(&mut self.slots[slot as usize].tally)
    }

    /// A lane's tally, to be read.
    pub fn get(&self, instance: u32, lane: i32) -> Option<&Tally> {
        index::find(self.index, instance, i64::from(lane)).map(|slot| &self.slots[slot as usize].tally)
    }

    /// A lane's tally, made if there is none; `None`: all slots are in use.
    pub fn find_or_make(&mut self, instance: u32, lane: i32) -> Option<&mut Tally> {
        let slot = match index::find(self.index, instance, i64::from(lane)) {
            Some(slot) => slot as usize,
            None => {
                let free = self.slots.iter().position(|slot| slot.instance == 0)?;
                *self.top = (*self.top).max(free as u32 + 1);
                self.slots[free] = Slot { instance, lane, tally: Tally::NONE };
                index::insert(self.index, instance, i64::from(lane), free as u32);
                free
            }
        };
        Some(&mut self.slots[slot].tally)
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

    /// The lanes of an instance with their tallies.
    pub fn of(&self, instance: u32) -> impl Iterator<Item = (i32, &Tally)> {
        let used = &self.slots[..*self.top as usize];
        used.iter().filter(move |slot| slot.instance == instance).map(|slot| (slot.lane, &slot.tally))
    }
}

/// What a snapshot sees: the transactions before `xmin`, and those before `xmax` that were not in progress.
/// Transaction ids wrap around; all in question lie within half of their circle.
#[derive(Clone, Copy, Debug)]
pub struct Horizon<'a> {
    /// Before it all have ended.
    pub xmin: u32,
    /// From it on none had ended.
    pub xmax: u32,
    /// Those that had not ended, in between.
    pub in_progress: &'a [u32],
}

impl Horizon<'_> {
    /// Whether the snapshot sees a transaction that has committed by now.
    pub fn sees(&self, xid: u32) -> bool {
        let precedes = |a: u32, b: u32| (a.wrapping_sub(b) as i32) < 0;
        precedes(xid, self.xmin) || precedes(xid, self.xmax) && !self.in_progress.contains(&xid)
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
        for outcome in *b"cfdtraxs" {
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
                    let of_rollup = Counts {
                        waiting: 0,
                        running: 0,
                        enqueued: e.enqueued,
                        claimed: e.claimed,
                        completed: e.completed,
                        failed: e.failed,
                        timed_out: e.timed_out,
                        died: e.died,
                    };
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
    fn a_horizon_wraps_around() {
        let horizon = Horizon { xmin: u32::MAX - 1, xmax: 5, in_progress: &[u32::MAX - 1, 3] };
        let seen: Vec<bool> =
            [u32::MAX - 2, u32::MAX - 1, u32::MAX, 3, 4, 5, 6].into_iter().map(|xid| horizon.sees(xid)).collect();
        assert_eq!(seen, [true, false, true, false, true, false, false]);
    }

    /// What a history of commits comes to with a recount in the middle of it.
    #[derive(Clone, Debug)]
    struct Commit {
        lane: i32,
        enqueued: bool,
        /// 0: told before the recount begins. 1: visible by then, told later. 2: visible later.
        when: u8,
    }

    fn commit() -> impl Strategy<Value = Commit> {
        (1..4_i32, any::<bool>(), 0..3_u8).prop_map(|(lane, enqueued, when)| Commit { lane, enqueued, when })
    }

    proptest! {
        #[test]
        fn behaves_like_a_map(steps in prop::collection::vec((0u8..8, 1u32..3, 1i32..6), 0..200)) {
            let (mut slots, mut index) = (vec![Slot::default(); 6], vec![Bucket::default(); index::buckets_for(6)]);
            let mut top = 0;
            let mut tallies = Tallies { slots: &mut slots, index: &mut index, top: &mut top };
            let mut model: BTreeMap<(u32, i32), i64> = BTreeMap::new();
            for (what, instance, lane) in steps {
                match what {
                    0..=4 => {
                        let fits = model.len() < 6 || model.contains_key(&(instance, lane));
                        let found = tallies.find_or_make(instance, lane);
                        prop_assert_eq!(found.is_some(), fits);
                        if let Some(tally) = found {
                            tally.counts.record(Event::Enqueued { is_first: true });
                            *model.entry((instance, lane)).or_default() += 1;
                        }
                    }
                    5 | 6 => {
                        tallies.forget(instance, lane);
                        model.remove(&(instance, lane));
                    }
                    _ => {
                        tallies.forget_instance(instance);
                        model.retain(|key, _| key.0 != instance);
                    }
                }
                for instance in 1..3 {
                    let found: BTreeMap<_, _> =
                        tallies.of(instance).map(|(lane, tally)| ((instance, lane), tally.counts.waiting)).collect();
                    let known = model.iter().filter(|(key, _)| key.0 == instance).map(|(k, v)| (*k, *v)).collect();
                    prop_assert_eq!(found, known);
                }
            }
        }

        #[test]
        fn a_recount_misses_nothing_and_doubles_nothing(commits in prop::collection::vec(commit(), 0..60)) {
            // Over the end of the circle.
            let xid = |n: usize| (u32::MAX - 30).wrapping_add(n as u32);
            let event = |commit: &Commit| if commit.enqueued {
                Event::Enqueued { is_first: true }
            } else {
                Event::Claimed
            };
            let in_progress: Vec<u32> =
                (0..commits.len()).filter(|&n| commits[n].when == 2).map(xid).collect();
            let horizon = Horizon { xmin: xid(0), xmax: xid(59).wrapping_add(1), in_progress: &in_progress };
            let (mut counted, mut whole) = (BTreeMap::<i32, Counts>::new(), BTreeMap::<i32, Counts>::new());
            for (n, commit) in commits.iter().enumerate() {
                whole.entry(commit.lane).or_default().record(event(commit));
                // The walk.
                if commit.when < 2 {
                    counted.entry(commit.lane).or_default().record(event(commit));
                }
                // What is told from the recount's begin on.
                if commit.when > 0 && !horizon.sees(xid(n)) {
                    counted.entry(commit.lane).or_default().record(event(commit));
                }
            }
            prop_assert_eq!(counted, whole);
        }
    }
}
