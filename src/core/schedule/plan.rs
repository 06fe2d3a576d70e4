//! A plan: a rule, a zone, and the time during which it holds.
//!
//! Invariant: as in the head of `schedule`.

use super::bounds::{EARLIEST, LATEST, SECOND};
use super::cron::{self, Cron};
use super::every::{Every, Period};
use super::zone::Zone;

/// When a recurring job is planned.
///
/// An expression whose hours and minutes have neither `*` nor a step has a fixed time of day. When the clock changes,
/// it runs as often as without the change. Any other expression follows the elapsed time: it runs whenever the local
/// time matches. Seconds do not matter for this. Vixie cron does the same. Here it holds for every change of a zone's
/// offset, whether of half an hour or of a day. docs/schedules.md has tables.
///
/// Months and days of a [`Period`] are calendar months and days. They end at a local time that is treated like a fixed
/// time of day. The microseconds of a period are elapsed time: `1 day` runs at the same time of day all year, `24
/// hours` does not.
#[derive(Clone, Debug)]
pub struct Plan {
    rule: Rule,
    zone: Zone,
    starts_at: i64,
    ends_at: i64,
}

#[derive(Clone, Debug)]
enum Rule {
    Cron(Cron),
    Every(Every),
}

impl Plan {
    /// Returns a plan with a slot whenever the local time in `zone` matches the expression.
    pub fn cron(cron: Cron, zone: Zone) -> Self {
        Self::new(Rule::Cron(cron), zone)
    }

    /// Returns a plan with slots at `anchor + n × period` for n = 0, 1, 2, …, with months and days in the calendar of
    /// `zone`.
    ///
    /// The n-th slot is counted from the anchor, not from the previous slot. One month after January 31st is the last
    /// day of February, two months after it is March 31st.
    pub fn every(period: Period, anchor: i64, zone: Zone) -> Self {
        Self::new(Rule::Every(Every::new(period, anchor)), zone)
    }

    fn new(rule: Rule, zone: Zone) -> Self {
        Self { rule, zone, starts_at: EARLIEST, ends_at: LATEST + 1 }
    }

    /// Leaves out the slots before `starts_at`, and the slots at `ends_at` and after it. `None` leaves out nothing.
    ///
    /// If the end is not after the start, no slot is left.
    pub fn within(self, starts_at: Option<i64>, ends_at: Option<i64>) -> Self {
        let starts_at = starts_at.unwrap_or(EARLIEST).max(EARLIEST);
        let ends_at = ends_at.unwrap_or(i64::MAX).min(LATEST + 1);
        Self { starts_at, ends_at, ..self }
    }

    /// Returns the first slot after `instant`. `None` if there is none.
    ///
    /// If the clock always skips the matching local times for a hundred years, a cron expression has no further slot.
    pub fn next_after(&self, instant: i64) -> Option<i64> {
        let instant = instant.max(self.starts_at - 1);
        if instant >= self.ends_at {
            return None;
        }
        let slot = match &self.rule {
            Rule::Cron(cron) => cron::next_after(cron, &self.zone, instant.div_euclid(SECOND))?.checked_mul(SECOND)?,
            Rule::Every(every) => every.next_after(&self.zone, instant)?,
        };
        (slot < self.ends_at).then_some(slot)
    }

    /// Returns the last slot at `instant` or before it. `None` if there is none.
    pub fn previous_or_at(&self, instant: i64) -> Option<i64> {
        let instant = instant.min(self.ends_at - 1);
        if instant < self.starts_at {
            return None;
        }
        let slot = match &self.rule {
            Rule::Cron(cron) => {
                cron::previous_or_at(cron, &self.zone, instant.div_euclid(SECOND))?.checked_mul(SECOND)?
            }
            Rule::Every(every) => every.previous_or_at(&self.zone, instant)?,
        };
        (slot >= self.starts_at).then_some(slot)
    }

    /// Returns the slots after `from`, up to and including `to`. If slot `from` was the last one that ran and it is
    /// `to` now, these are the missed slots.
    ///
    /// The iterator works from both ends and computes each slot when it reaches it. There may be billions, so the
    /// caller takes only as many as it needs.
    pub fn between(&self, from: i64, to: i64) -> Slots<'_> {
        Slots { plan: self, after: from, until: to }
    }
}

/// The slots of a plan in a stretch of time. See [`Plan::between`].
#[derive(Clone, Debug)]
pub struct Slots<'a> {
    plan: &'a Plan,
    after: i64,
    until: i64,
}

impl Iterator for Slots<'_> {
    type Item = i64;

    fn next(&mut self) -> Option<i64> {
        let slot = self.plan.next_after(self.after).filter(|&slot| slot <= self.until);
        self.after = slot.unwrap_or(self.until);
        slot
    }
}

impl DoubleEndedIterator for Slots<'_> {
    fn next_back(&mut self) -> Option<i64> {
        let slot = self.plan.previous_or_at(self.until).filter(|&slot| slot > self.after);
        self.until = slot.map_or(self.after, |slot| slot - 1);
        slot
    }
}

impl std::iter::FusedIterator for Slots<'_> {}
