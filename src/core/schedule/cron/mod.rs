//! Finds the local times that match a cron expression, and its slots in a zone.
//!
//! Invariant: a slot follows from the expression and the zone only, by the rules in the head of `schedule`.

mod ambiguity;
mod fields;
mod parse;

use jiff::civil::Date;

use super::bounds::DAY;
use super::zone::{FIRST, LAST, Zone, civil, local};

use fields::{DaysOfMonth, DaysOfWeek};

pub use ambiguity::Ambiguity;
pub use fields::Cron;
pub use parse::ParseError;

/// How far a slot is searched for: a hundred years, in seconds. February 29th falls on each weekday within forty years.
const HORIZON: i64 = 36_525 * DAY;

impl DaysOfMonth {
    /// Returns the days that match in a month of `length` days whose first day is the weekday `first`.
    fn in_month(&self, first: u32, length: u32) -> u64 {
        let weekday = |day: u32| (first + day - 1) % 7;
        let nearest = |day: u32| match weekday(day) {
            6 if day > 1 => day - 1,
            6 => day + 2,
            0 if day < length => day + 1,
            0 => day - 2,
            _ => day,
        };
        let last_working = match weekday(length) {
            6 => length - 1,
            0 => length - 2,
            _ => length,
        };
        let from_end = (1..=length).filter(|day| has(self.from_end, length - day));
        let near = (1..=length).filter(|&day| has(self.near, day)).map(nearest);
        let moving = from_end.chain(near).chain(self.last_working.then_some(last_working));
        self.days | moving.fold(0, |days, day| days | 1 << day)
    }
}

impl DaysOfWeek {
    /// Returns the days that match in a month, as [`DaysOfMonth::in_month`] does.
    fn in_month(&self, first: u32, length: u32) -> u64 {
        let is_in = |day: &u32| {
            let weekday = (first + day - 1) % 7;
            let nth = self.nth[(day - 1) as usize / 7];
            has(self.days | nth, weekday) || day + 7 > length && has(self.last, weekday)
        };
        (1..=length).filter(is_in).fold(0, |days, day| days | 1 << day)
    }
}

impl Cron {
    /// True if the expression never matches, as `0 0 30 2 *`.
    fn is_never(&self) -> bool {
        // 28 years contain every kind of year: each first weekday, leap year or not.
        (2000..2028).all(|year| (1..=12).all(|month| self.days_of(year, month).is_none_or(|(_, days)| days == 0)))
    }

    /// Returns the first day of a month, and the days that match.
    fn days_of(&self, year: i16, month: i8) -> Option<(Date, u64)> {
        let first = Date::new(year, month, 1).ok()?;
        if !has(self.months, u32::from(month.unsigned_abs())) {
            return Some((first, 0));
        }
        let weekday = u32::from(first.weekday().to_sunday_zero_offset().unsigned_abs());
        let length = u32::from(first.days_in_month().unsigned_abs());
        let by_month = self.days.in_month(weekday, length);
        let by_week = self.weekdays.in_month(weekday, length);
        let days = if self.days.is_any || self.weekdays.is_any { by_month & by_week } else { by_month | by_week };
        // Days beyond the end of a short month do not exist.
        Some((first, days & ((1 << (length + 1)) - 1)))
    }

    /// Returns the first local time in `from..until` that matches.
    fn first_in(&self, from: i64, until: i64) -> Option<i64> {
        let (mut day, mut time) = (from.div_euclid(DAY), from.rem_euclid(DAY));
        while day * DAY < until {
            let date = civil(day * DAY).date();
            let (first, days) = self.days_of(date.year(), date.month())?;
            let today = u32::from(date.day().unsigned_abs());
            let month_starts = local(first.to_datetime(jiff::civil::Time::midnight()))?.div_euclid(DAY);
            match at_or_above(days, today) {
                Some(matching) => {
                    let later = i64::from(matching - today);
                    if let Some(time) = self.time_from(if later > 0 { 0 } else { time }) {
                        return Some((day + later) * DAY + time).filter(|&found| found < until);
                    }
                    day += later + 1;
                }
                None => day = month_starts + i64::from(first.days_in_month()),
            }
            time = 0;
        }
        None
    }

    /// Returns the last local time in `from..=to` that matches.
    fn last_in(&self, from: i64, to: i64) -> Option<i64> {
        let (mut day, mut time) = (to.div_euclid(DAY), to.rem_euclid(DAY));
        while (day + 1) * DAY > from {
            let date = civil(day * DAY).date();
            let (first, days) = self.days_of(date.year(), date.month())?;
            let today = u32::from(date.day().unsigned_abs());
            let month_starts = local(first.to_datetime(jiff::civil::Time::midnight()))?.div_euclid(DAY);
            match at_or_below(days, today) {
                Some(matching) => {
                    let earlier = i64::from(today - matching);
                    if let Some(time) = self.time_to(if earlier > 0 { DAY - 1 } else { time }) {
                        return Some((day - earlier) * DAY + time).filter(|&found| found >= from);
                    }
                    day -= earlier + 1;
                }
                None => day = month_starts - 1,
            }
            time = DAY - 1;
        }
        None
    }

    /// Returns the first matching time of day at `time` or after it, in seconds since midnight.
    fn time_from(&self, time: i64) -> Option<i64> {
        let [hour, minute, second] = parts(time);
        let hours = at_or_above(self.hours, hour)?;
        if hours > hour {
            return Some(seconds(hours, self.minutes.trailing_zeros(), self.seconds.trailing_zeros()));
        }
        match at_or_above(self.minutes, minute) {
            Some(minutes) if minutes > minute => Some(seconds(hour, minutes, self.seconds.trailing_zeros())),
            Some(_) => match at_or_above(self.seconds, second) {
                Some(second) => Some(seconds(hour, minute, second)),
                None => self.time_from(seconds(hour, minute + 1, 0)),
            },
            None => self.time_from(seconds(hour + 1, 0, 0)),
        }
    }

    /// Returns the last matching time of day at `time` or before it.
    fn time_to(&self, time: i64) -> Option<i64> {
        let [hour, minute, second] = parts(time);
        let hours = at_or_below(self.hours, hour)?;
        if hours < hour {
            return Some(seconds(hours, highest(self.minutes), highest(self.seconds)));
        }
        match at_or_below(self.minutes, minute) {
            Some(minutes) if minutes < minute => Some(seconds(hour, minutes, highest(self.seconds))),
            Some(_) => match at_or_below(self.seconds, second) {
                Some(second) => Some(seconds(hour, minute, second)),
                None if hour == 0 && minute == 0 => None,
                None => self.time_to(seconds(hour, minute, 0) - 1),
            },
            None if hour == 0 => None,
            None => self.time_to(seconds(hour, 0, 0) - 1),
        }
    }
}

/// Returns the first slot after `instant`, in seconds.
pub(super) fn next_after(cron: &Cron, zone: &Zone, instant: i64) -> Option<i64> {
    let mut from = instant.max(FIRST - 1) + 1;
    let horizon = from.saturating_add(HORIZON).min(LAST);
    while from <= horizon {
        let stretch = zone.stretch(from);
        let offset = stretch.offset;
        // The time that the clock showed just before the change at the stretch's begin.
        let before = stretch.start + stretch.offset_before;
        if from == stretch.start && !cron.is_elapsed && cron.first_in(before, from + offset).is_some() {
            return Some(from);
        }
        let shown = from + offset;
        let low = if cron.is_elapsed { shown } else { shown.max(before) };
        if let Some(found) = cron.first_in(low, stretch.end + offset) {
            return Some(found - offset);
        }
        from = stretch.end;
    }
    None
}

/// Returns the last slot at `instant` or before it, in seconds.
pub(super) fn previous_or_at(cron: &Cron, zone: &Zone, instant: i64) -> Option<i64> {
    let mut to = instant.min(LAST);
    let horizon = to.saturating_sub(HORIZON).max(FIRST);
    while to >= horizon {
        let stretch = zone.stretch(to);
        let offset = stretch.offset;
        let before = stretch.start + stretch.offset_before;
        let starts = stretch.start + offset;
        let low = if cron.is_elapsed { starts } else { starts.max(before) };
        if let Some(found) = cron.last_in(low, to + offset) {
            return Some(found - offset);
        }
        if !cron.is_elapsed && cron.first_in(before, starts).is_some() {
            return Some(stretch.start);
        }
        to = stretch.start - 1;
    }
    None
}

fn has(set: u64, value: u32) -> bool {
    set >> value & 1 == 1
}

/// Returns the smallest value in the set that is not below `value`. `value` is at most 64.
fn at_or_above(set: u64, value: u32) -> Option<u32> {
    let rest = set & u64::MAX.checked_shl(value)?;
    (rest != 0).then(|| rest.trailing_zeros())
}

/// Returns the largest value in the set that is not above `value`. `value` is below 64.
fn at_or_below(set: u64, value: u32) -> Option<u32> {
    let rest = set & u64::MAX >> (63 - value);
    (rest != 0).then(|| highest(rest))
}

/// Returns the largest value in a set. The set must not be empty.
fn highest(set: u64) -> u32 {
    63 - set.leading_zeros()
}

/// Returns hour, minute and second of a time of day. The hour may be 24.
fn parts(time: i64) -> [u32; 3] {
    [time / 3600, time / 60 % 60, time % 60].map(|part| part as u32)
}

fn seconds(hour: u32, minute: u32, second: u32) -> i64 {
    i64::from((hour * 60 + minute) * 60 + second)
}
