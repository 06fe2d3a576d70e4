//! Names the days on which the records of ended attempts expire.
//!
//! Days are days of UTC, whatever the time zone of a session or the server. They are counted from 2000-01-01, as
//! `timestamptz` counts microseconds.
//!
//! Invariant: nothing expires before its retention is over, and each day has one name.

/// Microseconds in a day.
const US: i64 = 86_400_000_000;
/// Days from 0000-03-01 to 2000-01-01.
const EPOCH: i64 = 730_425;
/// Days in four hundred years.
const ERA: i64 = 146_097;
/// 9999-12-31: names have room for four digits of a year.
const LAST: i64 = 2_921_939;

/// A day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Day(i64);

impl Day {
    /// The day that never comes: a record that expires on it is kept for ever.
    pub const NEVER: Self = Self(i64::MAX);

    /// Returns the day of a moment in microseconds.
    pub fn of(at: i64) -> Self {
        Self::new(at.div_euclid(US))
    }

    /// Returns this day, or `NEVER` if it is after the year 9999.
    fn new(day: i64) -> Self {
        if day > LAST { Self::NEVER } else { Self(day) }
    }

    /// Returns the day after which the record of an attempt that ended at `ended_at` may be dropped. A record is kept
    /// for `retention` microseconds. If that is negative, it is kept for ever.
    pub fn of_expiry(ended_at: i64, retention: i64) -> Self {
        if retention < 0 { Self::NEVER } else { Self::of(ended_at.saturating_add(retention)) }
    }

    /// Returns the moment at which the day is over, in microseconds.
    pub fn end(self) -> i64 {
        self.0.saturating_add(1).saturating_mul(US)
    }

    /// Returns the day as part of a table's name: `20261231` or `forever`.
    pub fn name(self) -> String {
        if self == Self::NEVER {
            return "forever".into();
        }
        // A year begins in March here, so that the leap day is its last.
        let (era, day) = ((self.0 + EPOCH).div_euclid(ERA), (self.0 + EPOCH).rem_euclid(ERA));
        let year = (day - day / 1_460 + day / 36_524 - day / (ERA - 1)) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let date = day - (153 * month + 2) / 5 + 1;
        let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
        format!("{:04}{month:02}{date:02}", era * 400 + year + next)
    }

    /// Returns the day with this name. `None`: the name is no day's.
    pub fn parse(name: &str) -> Option<Self> {
        if name == "forever" {
            return Some(Self::NEVER);
        }
        if name.len() != 8 || !name.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let part = |range: std::ops::Range<usize>| name.get(range)?.parse::<i64>().ok();
        let (year, month, date) = (part(0..4)?, part(4..6)?, part(6..8)?);
        let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
        let of_era = year.rem_euclid(400);
        let day = of_era * 365 + of_era / 4 - of_era / 100 + (153 * month + 2) / 5 + date - 1;
        let found = Self(year.div_euclid(400) * ERA + day - EPOCH);
        // A date that does not exist, such as the 30th of February, has another name.
        (found.name() == name).then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOUR: i64 = US / 24;

    #[test]
    fn days_have_names() {
        for (day, name) in [
            (0, "20000101"),
            (59, "20000229"),
            (-1, "19991231"),
            (366, "20010101"),
            (9_862, "20270101"),
            (36_583, "21000228"),
            (36_584, "21000301"),
            (LAST, "99991231"),
        ] {
            assert_eq!(Day(day).name(), name);
            assert_eq!(Day::parse(name), Some(Day(day)));
        }
        assert_eq!(Day::parse(&Day::NEVER.name()), Some(Day::NEVER));
        for name in ["", "2026", "20260230", "20261301", "20260100", "+2026101", "202601011", "2026010é"] {
            assert_eq!(Day::parse(name), None, "{name}");
        }
    }

    #[test]
    fn nothing_expires_early() {
        let noon = 9_823 * US + 12 * HOUR;
        assert_eq!(Day::of_expiry(noon, 0), Day(9_823));
        assert_eq!(Day::of_expiry(noon, 12 * HOUR - 1), Day(9_823));
        assert_eq!(Day::of_expiry(noon, 12 * HOUR), Day(9_824));
        assert_eq!(Day(9_823).end(), 9_824 * US);
        assert_eq!(Day::of_expiry(noon, -1), Day::NEVER);
        assert_eq!(Day::of_expiry(noon, i64::MAX), Day::NEVER);
        assert_eq!(Day::of_expiry(noon, (LAST - 9_823) * US), Day(LAST));
        assert_eq!(Day::of_expiry(noon, (LAST - 9_822) * US), Day::NEVER);
        assert_eq!(Day::NEVER.end(), i64::MAX);
    }

    proptest! {
        #![proptest_config(crate::cases(256))]

        #[test]
        fn a_name_is_of_one_day(day in 0..=LAST) {
            let name = Day(day).name();
            prop_assert_eq!(name.len(), 8);
            prop_assert_eq!(Day::parse(&name), Some(Day(day)));
            prop_assert!(day == LAST || name < Day(day + 1).name());
        }

        #[test]
        fn what_has_ended_outlives_its_retention(ended_at in 0..i64::MAX / 4, retention in 0..i64::MAX / 4) {
            let day = Day::of_expiry(ended_at, retention);
            prop_assert!(day.end() > ended_at + retention);
            prop_assert!(day == Day::NEVER || day.end() <= ended_at + retention + US);
        }
    }
}
