//! Reads the text of a cron expression.
//!
//! ```text
//! expression  [second] minute hour day-of-month month day-of-week, or @yearly and so on
//! field       item {, item}
//! item        * | value | value-value, each with /step if wanted; value/step is up to the field's largest value
//! day of month also    ? (as *), L, L-n, LW, nW
//! day of week also     ? (as *), dL, d#n
//! ```
//!
//! Letters may be of either case. Invariant: any other text is refused, with the place of the fault. A misread schedule
//! would be noticed only when a job does not run.

use std::fmt;
use std::ops::Range;

use super::fields::{Cron, DaysOfMonth, DaysOfWeek};

/// The longest expression, in bytes. An expression that names each value of each field is shorter.
const MAX_LENGTH: usize = 1000;

/// What is wrong with a cron expression, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// The fault in a few words, without a full stop.
    pub message: String,
    /// The wrong bytes of the expression. If the whole expression is wrong, all bytes.
    pub position: Range<usize>,
    /// How to correct it, as a full sentence.
    pub hint: Option<String>,
}

impl ParseError {
    fn new(piece: Piece<'_>, message: impl Into<String>) -> Self {
        Self { message: message.into(), position: piece.at..piece.at + piece.text.len(), hint: None }
    }

    fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at character {}", self.message, self.position.start + 1)
    }
}

impl std::error::Error for ParseError {}

/// A part of the text, and the byte where it begins.
#[derive(Clone, Copy)]
struct Piece<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Piece<'a> {
    /// Returns the part that begins at this byte.
    fn from(self, start: usize) -> Self {
        Self { text: &self.text[start..], at: self.at + start }
    }

    fn until(self, end: usize) -> Self {
        Self { text: &self.text[..end], ..self }
    }

    /// Returns the parts before and after the first `separator`.
    fn split(self, separator: char) -> Option<(Self, Self)> {
        let place = self.text.find(separator)?;
        Some((self.until(place), self.from(place + separator.len_utf8())))
    }

    fn split_all(self, is_separator: impl Fn(char) -> bool) -> impl Iterator<Item = Self> {
        let whole = self;
        let mut next = Some(0);
        std::iter::from_fn(move || {
            let start = next?;
            let rest = whole.from(start);
            let end = rest.text.find(&is_separator);
            // A separator is one byte long.
            next = end.map(|end| start + end + 1);
            Some(end.map_or(rest, |end| rest.until(end)))
        })
    }

    fn is(self, word: &str) -> bool {
        self.text.eq_ignore_ascii_case(word)
    }

    /// Returns the text without this last letter, of either case.
    fn without_last(self, letter: char) -> Option<Self> {
        let last = self.text.chars().next_back().filter(|last| last.eq_ignore_ascii_case(&letter))?;
        Some(self.until(self.text.len() - last.len_utf8()))
    }
}

/// The values that a field may have.
struct Field {
    name: &'static str,
    plural: &'static str,
    min: u32,
    max: u32,
    /// The names of the values, beginning with `min`.
    names: &'static [&'static str],
    /// The values, in words.
    range: &'static str,
}

const SECOND: Field = Field { name: "second", plural: "seconds", min: 0, max: 59, names: &[], range: "0 to 59" };
const MINUTE: Field = Field { name: "minute", plural: "minutes", min: 0, max: 59, names: &[], range: "0 to 59" };
const HOUR: Field = Field { name: "hour", plural: "hours", min: 0, max: 23, names: &[], range: "0 to 23" };
const DAY_OF_MONTH: Field =
    Field { name: "day of month", plural: "days of the month", min: 1, max: 31, names: &[], range: "1 to 31" };
const MONTH: Field = Field {
    name: "month",
    plural: "months",
    min: 1,
    max: 12,
    names: &["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"],
    range: "1 to 12 or JAN to DEC",
};
const DAY_OF_WEEK: Field = Field {
    name: "day of week",
    plural: "days of the week",
    min: 0,
    max: 7,
    names: &["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"],
    range: "0 to 7 or SUN to SAT (Sunday is 0 and 7)",
};

/// The words that stand for an expression, and the expression.
const WORDS: [(&str, &str); 7] = [
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];

impl Cron {
    /// Reads an expression of five fields, of six with the seconds in front, or a word such as `@daily`.
    ///
    /// If both the day of the month and the day of the week are restricted, the expression matches a day that fits
    /// either. If one of the two fields begins with `*` (also `*/2`), it counts as unrestricted, and a day must fit
    /// both, as in Vixie cron.
    ///
    /// # Errors
    ///
    /// The text is no such expression, or it matches no day of any year, such as February 30th.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let whole = Piece { text, at: 0 };
        if text.len() > MAX_LENGTH {
            return Err(ParseError::new(whole, format!("cron expression is longer than {MAX_LENGTH} bytes")));
        }
        let fields: Vec<Piece<'_>> =
            whole.split_all(|c| c.is_ascii_whitespace()).filter(|piece| !piece.text.is_empty()).collect();
        let cron = match fields[..] {
            [word] if word.text.starts_with('@') => return Self::word(word),
            [word, ..] if word.text.starts_with('@') => return Err(unknown_word(word)),
            [minute, hour, day, month, weekday] => Self::fields(None, minute, hour, day, month, weekday)?,
            [second, minute, hour, day, month, weekday] => {
                Self::fields(Some(second), minute, hour, day, month, weekday)?
            }
            [] => {
                return Err(ParseError::new(whole, "empty cron expression")
                    .hint("For instance '0 3 * * *': at 3:00 every day."));
            }
            _ => {
                let superfluous = fields.get(6).map_or(whole, |seventh| whole.from(seventh.at));
                let n = fields.len();
                let error = ParseError::new(superfluous, format!("cron expression has {n} fields instead of 5 or 6"));
                return Err(error.hint(
                    "The fields are: second (may be left out), minute, hour, day of month, month, \
                        day of week. For a period give every instead, such as every => '5 minutes'.",
                ));
            }
        };
        if cron.is_never() {
            return Err(ParseError::new(whole, "cron expression never matches: no month has such a day"));
        }
        Ok(cron)
    }

    fn word(word: Piece<'_>) -> Result<Self, ParseError> {
        match WORDS.iter().find(|(name, _)| word.is(name)) {
            Some((_, expression)) => Self::parse(expression),
            None => Err(unknown_word(word)),
        }
    }

    fn fields(
        second: Option<Piece<'_>>,
        minute: Piece<'_>,
        hour: Piece<'_>,
        day: Piece<'_>,
        month: Piece<'_>,
        weekday: Piece<'_>,
    ) -> Result<Self, ParseError> {
        let is_elapsed = [minute, hour].iter().any(|field| field.text.contains(['*', '/']));
        Ok(Self {
            seconds: second.map_or(Ok(1), |second| SECOND.set(second))?,
            minutes: MINUTE.set(minute)?,
            hours: HOUR.set(hour)?,
            days: days_of_month(day)?,
            months: MONTH.set(month)?,
            weekdays: days_of_week(weekday)?,
            is_elapsed,
        })
    }
}

fn days_of_month(field: Piece<'_>) -> Result<DaysOfMonth, ParseError> {
    let mut found = DaysOfMonth { is_any: field.text.starts_with(['*', '?']), ..DaysOfMonth::default() };
    if field.text == "?" {
        found.days = DAY_OF_MONTH.all();
        return Ok(found);
    }
    for item in items(field) {
        if item.is("L") {
            found.from_end |= 1;
        } else if item.is("LW") {
            found.last_working = true;
        } else if let Some(("L" | "l", before)) = item.split('-').map(|(l, before)| (l.text, before)) {
            let before = number(before).filter(|before| (1..=30).contains(before));
            let before =
                before.ok_or_else(|| unknown(item, "day of month").hint("L-1 to L-30 are counted from the end."))?;
            found.from_end |= 1 << before;
        } else if let Some(day) = item.without_last('W') {
            found.near |= 1 << DAY_OF_MONTH.value(day, item)?;
        } else {
            found.days |= DAY_OF_MONTH.item(item)?;
        }
    }
    Ok(found)
}

fn days_of_week(field: Piece<'_>) -> Result<DaysOfWeek, ParseError> {
    let mut found = DaysOfWeek { is_any: field.text.starts_with(['*', '?']), ..DaysOfWeek::default() };
    if field.text == "?" {
        found.days = DAY_OF_WEEK.all();
    } else {
        for item in items(field) {
            if item.is("L") {
                return Err(unknown(item, "day of week")
                    .hint("Write 6L for the last Saturday of the month, 6 for every Saturday."));
            } else if let Some((day, nth)) = item.split('#') {
                let nth = number(nth).filter(|nth| (1..=5).contains(nth));
                let nth = nth.ok_or_else(|| {
                    unknown(item, "day of week")
                        .hint("A number from 1 to 5 follows #: MON#2 is the second Monday of the month.")
                })?;
                found.nth[nth as usize - 1] |= 1 << DAY_OF_WEEK.value(day, item)?;
            } else if let Some(day) = item.without_last('L') {
                found.last |= 1 << DAY_OF_WEEK.value(day, item)?;
            } else {
                found.days |= DAY_OF_WEEK.item(item)?;
            }
        }
    }
    // Sunday is both 0 and 7.
    for days in found.nth.iter_mut().chain([&mut found.days, &mut found.last]) {
        *days = (*days | *days >> 7) & 0x7f;
    }
    Ok(found)
}

impl Field {
    fn all(&self) -> u64 {
        (self.min..=self.max).fold(0, |set, value| set | 1 << value)
    }

    /// Returns the values of a field that has no letters of its own.
    fn set(&self, field: Piece<'_>) -> Result<u64, ParseError> {
        items(field).try_fold(0, |set, item| Ok(set | self.item(item)?))
    }

    fn item(&self, item: Piece<'_>) -> Result<u64, ParseError> {
        let (range, step) = match item.split('/') {
            Some((range, step)) => (range, Some(step)),
            None => (item, None),
        };
        let (first, last) = if range.text == "*" {
            (self.min, self.max)
        } else if let Some((first, last)) = range.split('-') {
            self.range(range, first, last)?
        } else {
            let value = self.value(range, item)?;
            (value, if step.is_some() { self.max } else { value })
        };
        let step = step.map_or(Ok(1), |step| self.step(step, item))?;
        Ok((first..=last).step_by(step).fold(0, |set, value| set | 1 << value))
    }

    fn range(&self, range: Piece<'_>, first: Piece<'_>, last: Piece<'_>) -> Result<(u32, u32), ParseError> {
        let (start, mut end) = (self.value(first, range)?, self.value(last, range)?);
        // FRI-SUN is valid: Sunday is both the first and the last day of a week.
        if last.is("SUN") && start > 0 {
            end = 7;
        }
        if start > end {
            let (first, last) = (first.text, last.text);
            return Err(ParseError::new(range, format!("range of {} goes backwards: \"{first}-{last}\"", self.plural))
                .hint(format!("Write it as two ranges, {first}-{} and {}-{last}.", self.max, self.min)));
        }
        Ok((start, end))
    }

    fn step(&self, step: Piece<'_>, item: Piece<'_>) -> Result<usize, ParseError> {
        let largest = self.max - self.min;
        let steps = number(step).filter(|steps| (1..=largest).contains(steps));
        steps.map(|steps| steps as usize).ok_or_else(|| {
            let blamed = if step.text.is_empty() { item } else { step };
            unknown(blamed, &format!("step of {}", self.plural)).hint(format!(
                "A step is 1 to {largest}. For a longer time, give a period instead of a cron expression."
            ))
        })
    }

    /// Returns a single value. If the text is empty, the error position is that of `around`.
    fn value(&self, value: Piece<'_>, around: Piece<'_>) -> Result<u32, ParseError> {
        let named = (self.min..).zip(self.names).find(|(_, name)| value.is(name));
        let found = named.map(|(value, _)| value).or_else(|| number(value));
        found.filter(|found| (self.min..=self.max).contains(found)).ok_or_else(|| {
            let blamed = if value.text.is_empty() { around } else { value };
            unknown(blamed, self.name).hint(format!("The allowed {} are {}.", self.plural, self.range))
        })
    }
}

/// Returns the items of a field's list. An empty item is returned as the whole field with its commas, which no value
/// can be.
fn items(field: Piece<'_>) -> impl Iterator<Item = Piece<'_>> {
    field.split_all(|c| c == ',').map(move |item| if item.text.is_empty() { field } else { item })
}

/// Reads a number of decimal digits only.
fn number(piece: Piece<'_>) -> Option<u32> {
    let is_number = piece.text.bytes().all(|byte| byte.is_ascii_digit());
    piece.text.parse().ok().filter(|_| is_number)
}

fn unknown_word(word: Piece<'_>) -> ParseError {
    let words = WORDS.map(|(word, _)| word).join(", ");
    let error = unknown(word, "word");
    if word.is("@every") {
        return error.hint("Give every instead of cron, such as every => '5 minutes'.");
    }
    error.hint(format!("The words are {words}."))
}

fn unknown(piece: Piece<'_>, what: &str) -> ParseError {
    ParseError::new(piece, format!("invalid {what} \"{}\" in cron expression", piece.text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cron(text: &str) -> Cron {
        Cron::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn set(values: impl IntoIterator<Item = u32>) -> u64 {
        values.into_iter().fold(0, |set, value| set | 1 << value)
    }

    #[test]
    fn five_fields_and_six() {
        let five = cron("5 4 3 2 1");
        assert_eq!((five.seconds, five.minutes, five.hours), (1, set([5]), set([4])));
        assert_eq!((five.days.days, five.months, five.weekdays.days), (set([3]), set([2]), set([1])));
        assert_eq!(cron("0 5 4 3 2 1"), five);
        assert_eq!(cron("17 5 4 3 2 1").seconds, set([17]));
        assert_eq!(cron(" \t5  4 3\n2 1 "), five);
    }

    #[test]
    fn items_of_a_field() {
        for (text, minutes) in [
            ("*", set(0..60)),
            ("0", set([0])),
            ("059", set([59])),
            ("1,2,50", set([1, 2, 50])),
            ("10-13", set(10..14)),
            ("*/20", set([0, 20, 40])),
            ("10-30/7", set([10, 17, 24])),
            ("50/3", set([50, 53, 56, 59])),
            ("5,*/30,7-8", set([0, 5, 7, 8, 30])),
            ("9-9", set([9])),
        ] {
            assert_eq!(cron(&format!("{text} 0 * * *")).minutes, minutes, "{text}");
        }
    }

    #[test]
    fn names_of_any_case() {
        assert_eq!(cron("0 0 1 JAN,jun-Aug,12 *").months, set([1, 6, 7, 8, 12]));
        assert_eq!(cron("0 0 * * mon-FRI").weekdays.days, set(1..6));
        assert_eq!(cron("0 0 * * FRI-SUN").weekdays.days, set([5, 6, 0]));
        assert_eq!(cron("0 0 * * SUN-TUE").weekdays.days, set(0..3));
        assert_eq!(cron("0 0 * * SUN-SUN").weekdays.days, set([0]));
        assert_eq!(cron("0 0 * * 7").weekdays.days, set([0]));
        assert_eq!(cron("0 0 * * 5-7").weekdays.days, set([5, 6, 0]));
    }

    #[test]
    fn letters_of_the_days() {
        let days = |text: &str| cron(&format!("0 0 {text} * *")).days;
        assert_eq!(days("L").from_end, set([0]));
        assert_eq!(days("l-2,L,3").from_end, set([0, 2]));
        assert_eq!(days("15W,1w").near, set([1, 15]));
        assert!(days("LW").last_working);
        assert_eq!(days("?"), days("*"));
        let weekdays = |text: &str| cron(&format!("0 0 * * {text}")).weekdays;
        assert_eq!(weekdays("5L"), weekdays("FRIL"));
        assert_eq!(weekdays("friL,1").last, set([5]));
        assert_eq!(weekdays("7L"), weekdays("SUNL"));
        assert_eq!(weekdays("MON#2,3#5").nth, [0, set([1]), 0, 0, set([3])]);
        assert_eq!(weekdays("7#1").nth, weekdays("0#1").nth);
        assert_eq!(weekdays("?"), weekdays("*"));
    }

    #[test]
    fn words() {
        for (word, text) in [
            ("@yearly", "0 0 1 1 *"),
            ("@Annually", "0 0 1 1 *"),
            ("@monthly", "0 0 1 * *"),
            ("@weekly", "0 0 * * SUN"),
            ("@DAILY", "0 0 * * *"),
            (" @midnight ", "0 0 * * *"),
            ("@hourly", "0 * * * *"),
        ] {
            assert_eq!(cron(word), cron(text));
        }
    }

    #[test]
    fn an_error_shows_its_place() {
        for (text, blamed) in [
            ("60 * * * *", "60"),
            ("0 24 * * *", "24"),
            ("0 0 0 * *", "0"),
            ("0 0 32 * *", "32"),
            ("0 0 * 13 *", "13"),
            ("0 0 * * 8", "8"),
            ("60 0 0 * * *", "60"),
            ("1,2,x,4 * * * *", "x"),
            ("MON * * * *", "MON"),
            ("0 0 * MON *", "MON"),
            ("0 0 1MON * *", "1MON"),
            ("0 0 * * SUNMON", "SUNMON"),
            ("0 0 * * MONDAY", "MONDAY"),
            ("0 0 * JANUARY *", "JANUARY"),
            ("5-x * * * *", "x"),
            ("5-61 * * * *", "61"),
            ("30-20 * * * *", "30-20"),
            ("0 0 * * FRI-MON", "FRI-MON"),
            ("0 22-2 * * *", "22-2"),
            ("*/0 * * * *", "0"),
            ("*/60 * * * *", "60"),
            ("*/ * * * *", "*/"),
            ("*/5/5 * * * *", "5/5"),
            ("1-2-3 * * * *", "2-3"),
            ("*5 * * * *", "*5"),
            ("*-5 * * * *", "*"),
            ("- * * * *", "-"),
            ("-5 * * * *", "-5"),
            ("+5 * * * *", "+5"),
            ("5- * * * *", "5-"),
            ("1,,2 * * * *", "1,,2"),
            (", * * * *", ","),
            ("* * * * *,", "*,"),
            ("L * * * *", "L"),
            ("5W * * * *", "5W"),
            ("0 0 W * *", "W"),
            ("0 0 32W * *", "32"),
            ("0 0 1-5W * *", "1-5"),
            ("0 0 L-31 * *", "L-31"),
            ("0 0 L-0 * *", "L-0"),
            ("0 0 5L * *", "5L"),
            ("0 0 *,? * *", "?"),
            ("? 0 * * *", "?"),
            ("0 0 * * L", "L"),
            ("0 0 * * 5W", "5W"),
            ("0 0 * * MON#6", "MON#6"),
            ("0 0 * * MON#0", "MON#0"),
            ("0 0 * * #1", "#1"),
            ("0 0 * * 1-5#1", "1-5"),
            ("0 0 * * 1-5L", "1-5"),
            ("0 0 * * *#1", "*"),
            ("H * * * *", "H"),
            ("٣ * * * *", "٣"),
            ("0 0 ٣W * *", "٣"),
            ("0 0 * * ٣L", "٣"),
            ("99999999999999999999 * * * *", "99999999999999999999"),
            ("@reboot", "@reboot"),
            ("@", "@"),
            ("@every 5m", "@every"),
            ("", ""),
            (" ", " "),
            ("* * * *", "* * * *"),
            ("0 0 0 1 1 * 2030", "2030"),
            ("0 0 0 1 1 * 2030 2031", "2030 2031"),
            ("0 0 30 2 *", "0 0 30 2 *"),
            ("0 0 31 4,6,9,11 *", "0 0 31 4,6,9,11 *"),
            ("0 0 L-30 2 *", "0 0 L-30 2 *"),
            ("0 0 31W FEB ?", "0 0 31W FEB ?"),
            ("0 0 30 2 */2", "0 0 30 2 */2"),
        ] {
            let error = Cron::parse(text).expect_err(text);
            assert_eq!(text.get(error.position.clone()), Some(blamed), "{text}: {error:?}");
            assert!(!error.message.is_empty() && !error.message.ends_with('.'), "{error:?}");
            assert!(error.hint.is_none_or(|hint| hint.ends_with('.')));
        }
    }

    #[test]
    fn messages_say_what_and_where() {
        let error = Cron::parse("0 25 * * *").expect_err("an hour too many");
        assert_eq!(error.to_string(), "invalid hour \"25\" in cron expression at character 3");
        assert_eq!(error.hint.as_deref(), Some("The allowed hours are 0 to 23."));
        let error = Cron::parse("0 22-2 * * *").expect_err("a range that wraps");
        assert_eq!(error.message, "range of hours goes backwards: \"22-2\"");
        assert_eq!(error.hint.as_deref(), Some("Write it as two ranges, 22-23 and 0-2."));
        assert!(Cron::parse(&"0,".repeat(600)).is_err_and(|error| error.message.contains("longer")));
    }

    #[test]
    fn what_never_matches_is_refused_and_what_seldom_matches_is_not() {
        for seldom in ["0 0 29 2 *", "0 0 30 2 1", "0 0 */28 2 */7", "0 0 29 2 */7", "0 0 31 1,2 *", "0 0 * 2 MON#5"] {
            cron(seldom);
        }
    }
}
