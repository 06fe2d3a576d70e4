//! Sums up what happened in a queue in each minute: counts, and how long jobs waited and ran.
//!
//! Invariant: the merged rollups of the parts of a log equal the rollup of the whole log. So each part can be summed up
//! before it is removed, and a query adds the remaining parts.

mod times;

use std::collections::BTreeMap;

pub use times::{MAX_ERROR, Times};

use crate::totals::{End, Totals};

/// A minute in microseconds.
pub const MINUTE: i64 = 60_000_000;

/// The life of an attempt according to the logs. Points in time are microseconds since 2000-01-01, as in `timestamptz`.
#[derive(Clone, Copy, Debug)]
pub struct Life {
    /// The lane in which it waited.
    pub lane: i32,
    /// Whether it is its job's first attempt.
    pub is_first_attempt: bool,
    /// When its job was enqueued.
    pub enqueued_at: i64,
    /// When it became ready to be claimed. `None`: not known.
    pub ready_at: Option<i64>,
    /// When a worker claimed it. `None`: no worker has claimed it. The system's own claims, which end an attempt
    /// without a run, do not count.
    pub claimed_at: Option<i64>,
    /// When it ended. `None`: it has not.
    pub ended_at: Option<i64>,
    /// How it ended, by the log's letter: `c` completed, `a` advanced, `f` failed, `d` dead, `t` timed out,
    /// `e` expired. Others are not counted.
    pub outcome: Option<u8>,
    /// Whether the job goes on with another attempt.
    pub has_next: bool,
}

/// One minute of one lane.
#[derive(Clone, Debug, Default)]
pub struct Entry {
    /// What happened in it.
    pub totals: Totals,
    /// How long the attempts claimed in this minute had waited.
    pub wait: Times,
    /// How long the attempts that ended in this minute had run, if their outcome counts.
    pub run: Times,
}

impl Entry {
    fn merge(&mut self, other: &Self) {
        self.totals.add(&other.totals);
        self.wait.merge(&other.wait);
        self.run.merge(&other.run);
    }
}

/// The minutes of lanes in which something happened.
#[derive(Clone, Debug, Default)]
pub struct Rollup {
    entries: BTreeMap<(i64, i32), Entry>,
}

impl Rollup {
    /// Adds an attempt to the minutes in which it was enqueued, claimed and ended.
    pub fn add(&mut self, life: &Life) {
        if life.is_first_attempt {
            self.at(life.enqueued_at, life.lane).totals.enqueued += 1;
        }
        if let Some(claimed_at) = life.claimed_at {
            let entry = self.at(claimed_at, life.lane);
            entry.totals.claimed += 1;
            if let Some(ready_at) = life.ready_at {
                entry.wait.record(duration(ready_at, claimed_at));
            }
        }
        if let (Some(ended_at), Some(outcome @ (b'c' | b'a' | b'f' | b'd' | b't' | b'e'))) =
            (life.ended_at, life.outcome)
        {
            let entry = self.at(ended_at, life.lane);
            entry.totals.end(End { outcome, has_next: life.has_next });
            if let Some(claimed_at) = life.claimed_at {
                entry.run.record(duration(claimed_at, ended_at));
            }
        }
    }

    /// Adds everything from another rollup.
    pub fn merge(&mut self, other: &Self) {
        for (&(minute, lane), entry) in &other.entries {
            self.at(minute, lane).merge(entry);
        }
    }

    /// Returns the entries, each with the start of its minute and its lane, in this order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (i64, i32, &Entry)> {
        self.entries.iter().map(|(&(minute, lane), entry)| (minute, lane, entry))
    }

    /// True if nothing has happened.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn at(&mut self, time: i64, lane: i32) -> &mut Entry {
        // `rem_euclid` rounds down before the year 2000, too.
        self.entries.entry((time.saturating_sub(time.rem_euclid(MINUTE)), lane)).or_default()
    }
}

/// Returns the time between two points. It is never negative, even if the clock was set back.
fn duration(from: i64, to: i64) -> u64 {
    u64::try_from(to.saturating_sub(from)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const S: i64 = 1_000_000;

    const LIFE: Life = Life {
        lane: 1,
        is_first_attempt: true,
        enqueued_at: 30 * S,
        ready_at: Some(90 * S),
        claimed_at: Some(150 * S),
        ended_at: Some(210 * S),
        outcome: Some(b'c'),
        has_next: false,
    };

    fn of(lives: &[Life]) -> Rollup {
        let mut rollup = Rollup::default();
        lives.iter().for_each(|life| rollup.add(life));
        rollup
    }

    /// Minute, lane, counts, wait and run times (count and sum).
    type Flat = (i64, i32, [i64; 7], [(u64, u128); 2], [Vec<u8>; 2]);

    fn flat(rollup: &Rollup) -> Vec<Flat> {
        let entries = rollup.iter().map(|(minute, lane, e)| {
            let times = [&e.wait, &e.run];
            (
                minute / MINUTE,
                lane,
                e.totals.values(),
                times.map(|times| (times.count(), times.sum())),
                times.map(Times::to_bytes),
            )
        });
        entries.collect()
    }

    fn counts(lives: &[Life]) -> Vec<(i64, [i64; 7])> {
        flat(&of(lives)).into_iter().map(|(minute, _, counts, ..)| (minute, counts)).collect()
    }

    #[test]
    fn each_event_counts_in_its_own_minute() {
        let rollup = flat(&of(&[LIFE]));
        let in_short: Vec<_> = rollup.iter().map(|(minute, _, counts, times, _)| (*minute, *counts, *times)).collect();
        let minute = 60_000_000;
        assert_eq!(
            in_short,
            [
                (0, [1, 0, 0, 0, 0, 0, 0], [(0, 0), (0, 0)]),
                (2, [0, 1, 0, 0, 0, 0, 0], [(1, minute), (0, 0)]),
                (3, [0, 0, 1, 0, 0, 0, 0], [(0, 0), (1, minute)]),
            ]
        );
    }

    #[test]
    fn outcomes_count_as_documented() {
        let ended = |outcome, has_next| {
            let life = Life { outcome: Some(outcome), has_next, is_first_attempt: false, claimed_at: None, ..LIFE };
            counts(&[life]).first().map(|(_, counts)| *counts)
        };
        assert_eq!(ended(b'c', false), Some([0, 0, 1, 0, 0, 0, 0]));
        assert_eq!(ended(b'a', true), Some([0, 0, 1, 0, 0, 0, 0]));
        assert_eq!(ended(b'f', true), Some([0, 0, 0, 1, 0, 0, 0]));
        assert_eq!(ended(b'd', false), Some([0, 0, 0, 1, 0, 1, 0]));
        assert_eq!(ended(b't', true), Some([0, 0, 0, 0, 1, 0, 0]));
        assert_eq!(ended(b't', false), Some([0, 0, 0, 0, 1, 1, 0]));
        for uncounted in *b"rxs" {
            assert_eq!(ended(uncounted, true), None);
        }
    }

    #[test]
    fn no_time_is_below_zero_and_an_unknown_one_is_left_out() {
        let back = Life { ready_at: Some(151 * S), ended_at: Some(149 * S), ..LIFE };
        let unknown = Life { ready_at: None, ..LIFE };
        let rollup = of(&[back, unknown]);
        let wait: Vec<_> = rollup.iter().map(|(.., entry)| entry.wait.count()).collect();
        assert_eq!(wait, [0, 1, 0]);
        assert!(rollup.iter().all(|(.., entry)| entry.wait.sum() == 0));
        assert_eq!(counts(&[unknown])[1].1, [0, 1, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn minutes_begin_before_2000_and_at_the_ends_of_time() {
        let at = |enqueued_at| {
            let life = Life { enqueued_at, claimed_at: None, ended_at: None, ..LIFE };
            of(&[life]).iter().next().map(|(minute, ..)| minute)
        };
        assert_eq!(at(-1), Some(-MINUTE));
        assert_eq!(at(59 * S), Some(0));
        assert!(at(i64::MIN).is_some() && at(i64::MAX).is_some());
    }

    fn life() -> impl Strategy<Value = Life> {
        let time = || -200 * S..600 * S;
        let outcome = prop::sample::select(b"cfdtraxs".as_slice());
        (
            1..4_i32,
            any::<bool>(),
            time(),
            prop::option::of(time()),
            prop::option::of(time()),
            prop::option::of((time(), outcome)),
            any::<bool>(),
        )
            .prop_map(|(lane, is_first_attempt, enqueued_at, ready_at, claimed_at, end, has_next)| Life {
                lane,
                is_first_attempt,
                enqueued_at,
                ready_at,
                claimed_at,
                ended_at: end.map(|(at, _)| at),
                outcome: end.map(|(_, outcome)| outcome),
                has_next,
            })
    }

    proptest! {
        #![proptest_config(crate::cases(100))]

        #[test]
        fn the_parts_make_the_whole(
            parts in prop::collection::vec(prop::collection::vec(life(), crate::length(60)), 0..6)
        ) {
            let mut merged = Rollup::default();
            parts.iter().for_each(|part| merged.merge(&of(part)));
            prop_assert_eq!(flat(&merged), flat(&of(&parts.concat())));
        }

        #[test]
        fn entries_come_in_order_and_count_everything(lives in prop::collection::vec(life(), crate::length(200))) {
            let rollup = of(&lives);
            let keys: Vec<_> = rollup.iter().map(|(minute, lane, _)| (minute, lane)).collect();
            prop_assert!(keys.is_sorted());
            let count = |wanted: fn(&Life) -> bool| lives.iter().filter(|life| wanted(life)).count() as i64;
            let sum = |of: fn(&Entry) -> i64| rollup.iter().map(|(.., entry)| of(entry)).sum::<i64>();
            prop_assert_eq!(sum(|e| e.totals.enqueued), count(|l| l.is_first_attempt));
            prop_assert_eq!(sum(|e| e.totals.claimed), count(|l| l.claimed_at.is_some()));
            prop_assert_eq!(sum(|e| e.totals.completed), count(|l| matches!(l.outcome, Some(b'c' | b'a'))));
            prop_assert_eq!(sum(|e| e.totals.failed), count(|l| matches!(l.outcome, Some(b'f' | b'd'))));
            prop_assert_eq!(sum(|e| e.totals.timed_out), count(|l| l.outcome == Some(b't')));
        }
    }
}
