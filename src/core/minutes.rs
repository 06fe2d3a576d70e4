//! Counts what happened in a lane in each minute of the last hour. It is a ring beside the lane's counter, so that no
//! query has to read the logs.
//!
//! Invariant: the ring's valid minutes lie within the hour before the newest one. Older minutes are overwritten or
//! passed over.

use crate::totals::Totals;

/// How many minutes are kept.
pub const KEPT: i64 = 60;

/// A lane's last hour. All zero: nothing was counted yet.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Minutes {
    /// The minute in which counting began, counted from some fixed time and larger than 0. Only a part of it was
    /// counted.
    since: i64,
    /// The newest minute in which something happened.
    newest: i64,
    ring: [[u32; 6]; KEPT as usize],
}

impl Default for Minutes {
    fn default() -> Self {
        Self { since: 0, newest: 0, ring: [[0; 6]; KEPT as usize] }
    }
}

impl Minutes {
    /// Adds what happened in a minute. If the clock was set back, adds it to the newest minute.
    pub fn add(&mut self, minute: i64, totals: &Totals) {
        if self.since == 0 {
            (self.since, self.newest) = (minute, minute);
        }
        if minute > self.newest {
            let from = (self.newest + 1).max(minute - KEPT + 1);
            (from..=minute).for_each(|empty| self.ring[place(empty)] = [0; 6]);
            self.newest = minute;
        }
        let counts = &mut self.ring[place(self.newest)];
        for (count, more) in counts.iter_mut().zip(totals.values()) {
            *count = count.saturating_add(u32::try_from(more).unwrap_or(0));
        }
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
            (counts != [0; 6]).then(|| (minute, Totals::of(counts.map(i64::from))))
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
                minutes.add(now, &one(n));
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
        minutes.add(100, &one(1));
        minutes.add(40, &one(1));
        assert_eq!(minutes.of_the_hour(100).collect::<Vec<_>>(), [(100, one(2))]);
        assert_eq!(minutes.since(), Some(100));
    }
}
