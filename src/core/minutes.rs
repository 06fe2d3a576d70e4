//! Counts what happened in a lane in each minute of the last hour. It is a ring beside the lane's counter, so that no
//! query has to read the logs.
//!
//! Invariant: the ring's valid minutes lie within the hour before the newest one. Older minutes are overwritten or
//! passed over.

use crate::totals::Totals;

/// How many minutes are kept.
pub const KEPT: i64 = 60;
/// A minute in microseconds.
pub const MINUTE_US: i64 = 60_000_000;

/// A lane's last hour. All zero: nothing was counted yet.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Minutes {
    /// The minute in which counting began, counted from some fixed time and larger than 0. Only a part of it was
    /// counted.
    since: i64,
    /// The newest minute in which something happened.
    newest: i64,
    ring: [[u32; 7]; KEPT as usize],
    /// For each minute, how long the attempts that ended in it had run, in milliseconds.
    busy_ms: [u32; KEPT as usize],
    /// The running time that is not in `busy_ms` yet, because it is less than a millisecond. In microseconds.
    rest_us: u32,
}

impl Default for Minutes {
    fn default() -> Self {
        const KEPT: usize = self::KEPT as usize;
        Self { since: 0, newest: 0, ring: [[0; 7]; KEPT], busy_ms: [0; KEPT], rest_us: 0 }
    }
}

impl Minutes {
    /// Adds what happened in a minute. `busy_us`: how long the ended attempts had run. If the clock was set back, adds
    /// it to the newest minute.
    pub fn add(&mut self, minute: i64, totals: &Totals, busy_us: i64) {
        if self.since == 0 {
            (self.since, self.newest) = (minute, minute);
        }
        if minute > self.newest {
            let from = (self.newest + 1).max(minute - KEPT + 1);
            for empty in (from..=minute).map(place) {
                (self.ring[empty], self.busy_ms[empty]) = ([0; 7], 0);
            }
            self.newest = minute;
        }
        let counts = &mut self.ring[place(self.newest)];
        for (count, more) in counts.iter_mut().zip(totals.values()) {
            *count = count.saturating_add(u32::try_from(more).unwrap_or(0));
        }
        if busy_us > 0 {
            let us = busy_us.saturating_add(self.rest_us.into());
            let busy_ms = &mut self.busy_ms[place(self.newest)];
            *busy_ms = busy_ms.saturating_add(u32::try_from(us / 1000).unwrap_or(u32::MAX));
            self.rest_us = (us % 1000) as u32;
        }
    }

    /// Returns what happened in the last `minutes` minutes, at most an hour, and how long the attempts that ended in
    /// them had run, in microseconds. The last minutes end at `now_us`, the time in microseconds. So the minute in
    /// which they begin counts in part, as if its events were spread over it evenly.
    pub fn last(&self, minutes: i64, now_us: i64) -> ([f64; 7], f64) {
        let now = now_us.div_euclid(MINUTE_US);
        let begun = now_us.rem_euclid(MINUTE_US) as f64 / MINUTE_US as f64;
        let (mut counts, mut busy_us) = ([0.0; 7], 0.0);
        let from = (now - minutes).max(self.newest - KEPT + 1).max(self.since);
        for minute in from..=self.newest {
            let share = if minute == now - minutes { 1.0 - begun } else { 1.0 };
            for (sum, count) in counts.iter_mut().zip(self.ring[place(minute)]) {
                *sum += share * f64::from(count);
            }
            busy_us += share * 1000.0 * f64::from(self.busy_ms[place(minute)]);
        }
        (counts, busy_us)
    }

    /// Returns the minute in which counting began. `None`: nothing was counted yet.
    pub fn since(&self) -> Option<i64> {
        (self.since != 0).then_some(self.since)
    }

    /// Returns the minutes of the hour up to `now` in which something happened, with their totals.
    pub fn of_the_hour(&self, now: i64) -> impl Iterator<Item = (i64, Totals)> {
        let from = (now - KEPT + 1).max(self.newest - KEPT + 1).max(self.since);
        (from..=self.newest).filter_map(|minute| {
            let counts = self.ring[place(minute)];
            (counts != [0; 7]).then(|| (minute, Totals::of(counts.map(i64::from))))
        })
    }
}

fn place(minute: i64) -> usize {
    minute.rem_euclid(KEPT) as usize
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn one(n: i64) -> Totals {
        Totals { enqueued: n, died: 2 * n, ..Totals::NONE }
    }

    proptest! {
        #![proptest_config(crate::cases(256))]

        #[test]
        fn the_last_hour_is_exact(steps in prop::collection::vec((0_i64..90, 1_i64..5), crate::length(100))) {
            let (mut minutes, mut model) = (Minutes::default(), BTreeMap::<i64, i64>::new());
            let mut now = 1000;
            for (pause, n) in steps {
                now += if pause > 70 { pause } else { pause / 30 };
                minutes.add(now, &one(n), 0);
                *model.entry(now).or_default() += n;
                for later in [0, 10, 59, 60] {
                    let known: Vec<_> = minutes.of_the_hour(now + later).collect();
                    let last = model.range(now + later - 59..).map(|(minute, n)| (*minute, one(*n)));
                    prop_assert_eq!(known, last.collect::<Vec<_>>());
                }
            }
        }
    }

    #[test]
    fn a_clock_that_is_set_back_loses_nothing() {
        let mut minutes = Minutes::default();
        minutes.add(100, &one(1), 0);
        minutes.add(40, &one(1), 0);
        assert_eq!(minutes.of_the_hour(100).collect::<Vec<_>>(), [(100, one(2))]);
        assert_eq!(minutes.since(), Some(100));
    }

    #[test]
    fn the_minute_in_which_a_span_begins_counts_in_part() {
        let mut minutes = Minutes::default();
        minutes.add(100, &one(60), 1_500);
        minutes.add(101, &one(10), 1_500);
        let at = |second: i64| minutes.last(1, 101 * MINUTE_US + second * 1_000_000);
        assert_eq!(at(0), ([70.0, 0.0, 0.0, 0.0, 0.0, 140.0, 0.0], 3_000.0));
        assert_eq!(at(45).0[0], 25.0);
        assert_eq!(minutes.last(1, 102 * MINUTE_US + 30_000_000).0[0], 5.0);
        assert_eq!(minutes.last(1, 103 * MINUTE_US).0[0], 0.0);
        // A clock that was set back finds what was counted.
        assert_eq!(minutes.last(1, 50 * MINUTE_US).0[0], 70.0);
    }

    #[test]
    fn running_times_below_a_millisecond_are_not_lost() {
        let mut minutes = Minutes::default();
        (0..5_000).for_each(|_| minutes.add(100, &Totals::NONE, 300));
        assert_eq!(minutes.last(1, 100 * MINUTE_US).1, 1_500_000.0);
        minutes.add(160, &Totals::NONE, 0);
        assert_eq!(minutes.last(60, 160 * MINUTE_US).1, 0.0);
    }
}
