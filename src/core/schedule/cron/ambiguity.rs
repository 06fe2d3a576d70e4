//! Finds what tools read in different ways in a cron expression.
//!
//! Responsible for the constructs on which widespread tools disagree. Not responsible for which tool reads what:
//! docs/coming-from/cron-dialects.md.

use super::fields::Cron;

/// A construct that other tools read in another way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ambiguity {
    /// Six fields: the first is the second. Elsewhere the last may be the second or a year, or is ignored.
    Seconds,
    /// Both day fields are restricted: a day must fit either. Elsewhere it must fit both.
    EitherDay,
    /// One day field has a star with a step, or a list that begins with a star: a day must fit both. Elsewhere it
    /// must fit either.
    BothDays,
    /// A day field has all values, but no star: every day fits. Elsewhere such a field counts as a star.
    AllValues,
    /// A step on one weekday ends at 7, so it can include Sunday. Elsewhere it ends at 6, or the step is ignored.
    WeekdayStep,
}

impl Ambiguity {
    /// Says how the construct is read here, in a sentence.
    pub fn reading(self) -> &'static str {
        match self {
            Self::Seconds => "The first of six fields is the second.",
            Self::EitherDay => "A day matches if it fits the day of the month or the day of the week.",
            Self::BothDays => {
                "A day field that begins with * does not restrict, so a day must fit both the day of the month and \
                 the day of the week."
            }
            Self::AllValues => "A day field that names all days without * makes every day match.",
            Self::WeekdayStep => "A step on one day of the week goes on to 7, which is Sunday.",
        }
    }
}

impl Cron {
    /// Returns what other tools read in another way in this expression, whose text this is.
    pub fn ambiguities(&self, text: &str) -> Vec<Ambiguity> {
        let fields: Vec<&str> = text.split_ascii_whitespace().collect();
        let (day, weekday) = match fields[..] {
            [.., day, _, weekday] if fields.len() >= 5 => (day, weekday),
            _ => return Vec::new(),
        };
        let is_star = |field: &str| matches!(field, "*" | "?");
        let (has_day, has_weekday) = (!self.days.is_any, !self.weekdays.is_any);
        let has_all = self.days.days == ALL_DAYS || self.weekdays.days == ALL_WEEKDAYS;
        [
            (Ambiguity::Seconds, fields.len() == 6),
            (Ambiguity::EitherDay, has_day && has_weekday && !has_all),
            (Ambiguity::AllValues, has_day && has_weekday && has_all),
            (Ambiguity::BothDays, (!has_day || !has_weekday) && !is_star(day) && !is_star(weekday)),
            (Ambiguity::WeekdayStep, weekday.split(',').any(steps_on)),
        ]
        .into_iter()
        .filter_map(|(ambiguity, is_there)| is_there.then_some(ambiguity))
        .collect()
    }
}

/// True if an item of the days of the week is one day with a step that reaches another day.
fn steps_on(item: &str) -> bool {
    const NAMES: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];
    let Some((day, step)) = item.split_once('/') else { return false };
    let named = NAMES.iter().position(|name| name.eq_ignore_ascii_case(day));
    let day = named.or_else(|| day.parse().ok());
    day.zip(step.parse::<usize>().ok()).is_some_and(|(day, step)| day.saturating_add(step) <= 7)
}

/// The set of days 1 to 31.
const ALL_DAYS: u64 = u32::MAX as u64 & !1;
/// The set of weekdays 0 to 6.
const ALL_WEEKDAYS: u64 = 0x7f;

#[cfg(test)]
mod tests {
    use super::*;
    use Ambiguity::*;

    #[test]
    fn constructs_on_which_tools_disagree_are_found() {
        for (text, expected) in [
            ("* * * * *", vec![]),
            ("*/5 9-17 * * MON-FRI", vec![]),
            ("0 0 */2 * *", vec![]),
            ("0 0 * * */2", vec![]),
            ("0 0 1-31 * *", vec![]),
            ("0 0 ? * 1-7", vec![]),
            ("0 0 L * *", vec![]),
            ("0 0 * * 1-5/2", vec![]),
            ("@daily", vec![]),
            ("@yearly", vec![]),
            ("0 0 13 * FRI", vec![EitherDay]),
            ("0 0 L * MON#1", vec![EitherDay]),
            ("0 0 */2 * MON", vec![BothDays]),
            ("0 0 */1 * MON", vec![BothDays]),
            ("0 0 13 * */2", vec![BothDays]),
            ("0 0 *,13 * FRI", vec![BothDays]),
            ("0 0 */2 * */3", vec![BothDays]),
            ("0 0 1-31 * MON", vec![AllValues]),
            ("0 0 1 * 1-7", vec![AllValues]),
            ("0 0 1 * SUN-SAT", vec![AllValues]),
            ("0 0 1,* * MON", vec![AllValues]),
            ("0 0 * * 5/1", vec![WeekdayStep]),
            ("0 0 * * 0,mon/2", vec![WeekdayStep]),
            ("0 0 * * 1/6", vec![WeekdayStep]),
            ("0 0 * * 1/7", vec![]),
            ("0 0 * * 7/2", vec![]),
            ("0 0 * * SAT/2", vec![]),
            ("0 0 1 * 1/2", vec![EitherDay, WeekdayStep]),
            ("0 0 3 * * *", vec![Seconds]),
            ("*/5 0 3 13 * 5/2", vec![Seconds, EitherDay, WeekdayStep]),
        ] {
            let cron = Cron::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(cron.ambiguities(text), expected, "{text}");
        }
    }
}
