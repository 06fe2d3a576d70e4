//! A span of time as text that every server reads in the same way, whatever its setting `intervalstyle` is.
//!
//! Not responsible for reading it: `interval_in` does.

use std::fmt::Write as _;

/// Returns a span as text, such as `1 mon 2 days 03:00:00`. `time`: microseconds.
///
/// Each number has its own sign: with `intervalstyle` `sql_standard`, a lone sign at the begin would count for all.
#[must_use]
pub fn text(months: i32, days: i32, time: i64) -> String {
    const SECOND: u64 = 1_000_000;
    let mut text = String::new();
    let mut is_below = false;
    for (number, unit) in [(months, "mon"), (days, "day")].into_iter().filter(|(number, _)| *number != 0) {
        let plus = if is_below && number > 0 { "+" } else { "" };
        let plural = if number == 1 { "" } else { "s" };
        // Writing into a string does not fail.
        _ = write!(text, "{plus}{number} {unit}{plural} ");
        is_below |= number < 0;
    }
    if time != 0 || text.is_empty() {
        let sign = match time {
            ..0 => "-",
            _ if is_below => "+",
            _ => "",
        };
        let (seconds, rest) = (time.unsigned_abs() / SECOND, time.unsigned_abs() % SECOND);
        _ = write!(text, "{sign}{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
        if rest != 0 {
            _ = write!(text, ".{rest:06}");
        }
    }
    text.truncate(text.trim_end().len());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_written_as_postgres_writes_it() {
        for (months, days, time, wanted) in [
            (0, 0, 0, "00:00:00"),
            (0, 0, 300_000_000, "00:05:00"),
            (0, 0, 1, "00:00:00.000001"),
            (0, 2, 0, "2 days"),
            (1, 1, 3_600_000_000, "1 mon 1 day 01:00:00"),
            (14, -3, 1_500_000, "14 mons -3 days +00:00:01.500000"),
            (-1, 40, 0, "-1 mons +40 days"),
            (2, 0, -86_400_000_000, "2 mons -24:00:00"),
            (i32::MAX, i32::MIN, i64::MAX, "2147483647 mons -2147483648 days +2562047788:00:54.775807"),
            (0, 0, i64::MIN, "-2562047788:00:54.775808"),
        ] {
            assert_eq!(text(months, days, time), wanted);
        }
    }
}
