//! Slots at equal distances from an anchor.
//!
//! Invariant: the n-th slot is counted from the anchor and never lies before slot n - 1.

use jiff::civil::Date;

use super::bounds::{DAY, EARLIEST, LATEST, SECOND};
use super::zone::{Zone, civil, local};

/// The shortest period, in microseconds.
const SHORTEST: i64 = 100_000;

/// The time from one slot to the next: months, days and microseconds, as in a Postgres interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    months: i64,
    days: i64,
    microseconds: i64,
}

/// Why an interval is no period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeriodError {
    /// Its months, days or microseconds are negative.
    Negative,
    /// It is shorter than 100 milliseconds.
    TooShort,
}

impl Period {
    /// # Errors
    ///
    /// One of the three is negative, even if the others outweigh it, or all together are less than 100 milliseconds.
    pub fn new(months: i32, days: i32, microseconds: i64) -> Result<Self, PeriodError> {
        if months < 0 || days < 0 || microseconds < 0 {
            return Err(PeriodError::Negative);
        }
        if months == 0 && days == 0 && microseconds < SHORTEST {
            return Err(PeriodError::TooShort);
        }
        Ok(Self { months: i64::from(months), days: i64::from(days), microseconds })
    }

    /// Returns the length in microseconds, with this many days in a month and hours in a day.
    fn length(&self, days: i64, hours: i64) -> i128 {
        let whole_days = i128::from(self.months) * i128::from(days) + i128::from(self.days);
        whole_days * i128::from(hours * 3600 * SECOND) + i128::from(self.microseconds)
    }
}

/// The slots `anchor + n × period`, n = 0, 1, 2, …
#[derive(Clone, Copy, Debug)]
pub(super) struct Every {
    period: Period,
    anchor: i64,
}

impl Every {
    pub fn new(period: Period, anchor: i64) -> Self {
        Self { period, anchor }
    }

    /// Returns the first slot after `instant`.
    pub fn next_after(&self, zone: &Zone, instant: i64) -> Option<i64> {
        if instant < self.anchor {
            return self.slot(zone, 0);
        }
        self.slot(zone, self.slots_until(zone, instant.min(LATEST)))
    }

    /// Returns the last slot at `instant` or before it.
    pub fn previous_or_at(&self, zone: &Zone, instant: i64) -> Option<i64> {
        if instant < self.anchor {
            return None;
        }
        self.slot(zone, self.slots_until(zone, instant.min(LATEST)) - 1)
    }

    /// Returns how many slots lie at `instant` or before it. `instant` must not be before the anchor.
    fn slots_until(&self, zone: &Zone, instant: i64) -> i64 {
        let elapsed = i128::from(instant) - i128::from(self.anchor);
        if self.period.months == 0 && self.period.days == 0 {
            return narrow(elapsed / i128::from(self.period.microseconds)) + 1;
        }
        // A month has 28 to 31 days. All changes of a zone's offset together are less than two days.
        let slack = i128::from(2 * DAY * SECOND);
        let mut low = narrow((elapsed - slack).max(0) / self.period.length(31, 24));
        let mut high = narrow((elapsed + slack) / self.period.length(28, 24)) + 1;
        // Slots below `low` count, slot `high` and later ones do not. A slot never lies before an earlier one.
        while low < high {
            let n = low + (high - low) / 2;
            if self.slot(zone, n).is_some_and(|slot| slot <= instant) {
                low = n + 1;
            } else {
                high = n;
            }
        }
        low
    }

    /// Returns the n-th slot. `None` if it is beyond the slots' range.
    fn slot(&self, zone: &Zone, n: i64) -> Option<i64> {
        let Period { months, days, microseconds } = self.period;
        let date = if n == 0 || months == 0 && days == 0 {
            self.anchor
        } else {
            self.date(zone, months.checked_mul(n)?, days.checked_mul(n)?)?
        };
        let slot = date.checked_add(microseconds.checked_mul(n)?)?;
        (EARLIEST..=LATEST).contains(&slot).then_some(slot)
    }

    /// Returns the anchor's time of day, this many months and then days later.
    fn date(&self, zone: &Zone, months: i64, days: i64) -> Option<i64> {
        let anchor = civil(zone.local(self.anchor.div_euclid(SECOND)));
        let month = i64::from(anchor.month() - 1).checked_add(months)?;
        let year = i16::try_from(i64::from(anchor.year()).checked_add(month.div_euclid(12))?).ok()?;
        let first = Date::new(year, i8::try_from(month.rem_euclid(12)).ok()? + 1, 1).ok()?;
        let day = anchor.day().min(first.days_in_month());
        let date = first.with().day(day).build().ok()?;
        let clock = local(date.to_datetime(anchor.time()))?.checked_add(days.checked_mul(DAY)?)?;
        let instant = zone.instant(clock);
        let is_shown = zone.local(instant) == clock;
        // If the clock skips the time, the slot is the end of the gap, without the anchor's fraction of a second.
        let fraction = if is_shown { self.anchor.rem_euclid(SECOND) } else { 0 };
        instant.checked_mul(SECOND)?.checked_add(fraction)
    }
}

/// Converts a number of slots. A number that does not fit leads beyond the slots' range anyway.
fn narrow(n: i128) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX - 1)
}
