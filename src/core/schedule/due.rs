//! Decides which past slots are run and which are skipped.
//!
//! A slot that is processed soon after its time is on time and runs. All other slots were *missed*, because the server
//! was down or its clock was set forward. The schedule's setting says what happens to missed slots.
//!
//! Invariant: a handled slot never runs again, because the next call begins after `Due::last`.

use std::ops::RangeInclusive;

use super::bounds::SECOND;
use super::plan::Plan;

/// A slot is on time until this many microseconds after its time.
const GRACE: i64 = 5 * SECOND;
/// The most missed slots that are run.
pub const MAX_MISSED_SLOTS: usize = 1000;

/// What happens to missed slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missed {
    /// Missed slots are not run.
    Skip,
    /// The last missed slot is run for all of them, unless a slot is on time.
    Once,
    /// All missed slots are run, the oldest first, but at most [`MAX_MISSED_SLOTS`].
    All,
}

impl Missed {
    /// Reads `skip`, `once` or `all`.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "skip" => Some(Self::Skip),
            "once" => Some(Self::Once),
            "all" => Some(Self::All),
            _ => None,
        }
    }
}

/// What to do about the slots up to now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    /// The slots to run, in this order.
    pub run: Vec<i64>,
    /// The last slot that is handled, run or skipped. `None`: there was no slot.
    pub last: Option<i64>,
    /// The first and the last slot that are skipped because `all` would run too many.
    pub too_many: Option<RangeInclusive<i64>>,
}

impl Plan {
    /// Returns what to do at `now` about the slots after `handled`.
    pub fn due(&self, handled: i64, now: i64, missed: Missed) -> Due {
        let on_time_from = now.saturating_sub(GRACE);
        let late = self.between(handled, on_time_from - 1);
        let on_time = self.between(handled.max(on_time_from - 1), now);
        let last_late = late.clone().next_back();
        let mut run: Vec<i64> = match missed {
            Missed::Skip => Vec::new(),
            Missed::Once if on_time.clone().next().is_some() => Vec::new(),
            Missed::Once => last_late.into_iter().collect(),
            Missed::All => late.take(MAX_MISSED_SLOTS).collect(),
        };
        let first_left = run.last().and_then(|&slot| self.next_after(slot));
        let too_many = first_left.zip(last_late).filter(|(first, last)| missed == Missed::All && first <= last);
        run.extend(on_time);
        let last = run.last().copied().max(last_late);
        Due { run, last, too_many: too_many.map(|(first, last)| first..=last) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Period, Zone};
    use super::*;

    /// A plan with a slot every ten seconds, beginning at 0.
    fn plan() -> Plan {
        let period = Period::new(0, 0, 10 * SECOND).expect("a period");
        Plan::every(period, 0, Zone::find("UTC").expect("a zone"))
    }

    fn due(handled: i64, now: i64, missed: Missed) -> Due {
        plan().due(handled * SECOND, now * SECOND, missed)
    }

    fn seconds(slots: &[i64]) -> Vec<i64> {
        slots.iter().map(|slot| slot / SECOND).collect()
    }

    const POLICIES: [Missed; 3] = [Missed::Skip, Missed::Once, Missed::All];

    #[test]
    fn nothing_is_due_before_its_time() {
        for missed in POLICIES {
            for (handled, now) in [(0, 0), (0, 9), (20, 20), (20, 15), (20, -5)] {
                let expected = Due { run: vec![], last: None, too_many: None };
                assert_eq!(due(handled, now, missed), expected, "{handled} {now}");
            }
        }
    }

    #[test]
    fn what_is_on_time_runs_whatever_is_wanted_of_the_missed() {
        for missed in POLICIES {
            for now in [10, 12, 15] {
                let due = due(0, now, missed);
                assert_eq!((seconds(&due.run), due.last), (vec![10], Some(10 * SECOND)), "{now}");
            }
        }
    }

    #[test]
    fn missed_slots_run_as_the_schedule_says() {
        // 10 to 50 were missed.
        let late = |missed| due(0, 56, missed);
        assert_eq!(seconds(&late(Missed::Skip).run), [0_i64; 0]);
        assert_eq!(seconds(&late(Missed::Once).run), [50]);
        assert_eq!(seconds(&late(Missed::All).run), [10, 20, 30, 40, 50]);
        // At 61 the slot of 60 is on time.
        let late = |missed| due(0, 61, missed);
        assert_eq!(seconds(&late(Missed::Skip).run), [60]);
        assert_eq!(seconds(&late(Missed::Once).run), [60]);
        assert_eq!(seconds(&late(Missed::All).run), [10, 20, 30, 40, 50, 60]);
        for missed in POLICIES {
            assert_eq!(due(0, 56, missed).last, Some(50 * SECOND));
            assert_eq!(due(0, 61, missed).last, Some(60 * SECOND));
            assert_eq!(due(0, 61, missed).too_many, None);
        }
    }

    #[test]
    fn all_are_not_more_than_a_thousand() {
        let due = due(0, 20_057, Missed::All);
        assert_eq!(due.run.len(), MAX_MISSED_SLOTS);
        assert_eq!((due.run[0], due.run[MAX_MISSED_SLOTS - 1]), (10 * SECOND, 10_000 * SECOND));
        assert_eq!(due.too_many, Some(10_010 * SECOND..=20_050 * SECOND));
        assert_eq!(due.last, Some(20_050 * SECOND));
        let exact = plan().due(0, 10_006 * SECOND, Missed::All);
        assert_eq!((exact.run.len(), exact.too_many), (MAX_MISSED_SLOTS, None));
    }
}
