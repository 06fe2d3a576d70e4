//! Schedules: their plans, the jobs that they enqueue, and changes of schedules. No test waits for a clock:
//! `pg_queue.clock_offset` sets the time in a session that does the worker's duties.

use crate::operations::doctor::finding;
use crate::shared::*;

/// A database without a worker, and a session that sets the time and does the duties.
pub struct Stage {
    pub client: Client,
    pub database: Database,
}

impl Stage {
    /// Makes a stage with a queue `q` at this time.
    pub fn at(time: &str) -> Self {
        let (database, client) = Database::without_worker().with_queue("q", "");
        let mut stage = Self { client, database };
        stage.set(time);
        stage
    }

    /// Sets the time.
    pub fn set(&mut self, time: &str) {
        set_clock(&mut self.client, time);
    }

    /// Does the worker's duties at this time.
    pub fn fire(&mut self, time: &str) {
        self.set(time);
        maintain(&mut self.client);
    }

    pub fn schedule(&mut self, arguments: &str) -> Option<String> {
        self.client.value(&format!("SELECT queue.schedule({arguments})::text"))
    }

    /// Returns the slots of the enqueued jobs in order.
    pub fn slots(&mut self) -> Vec<String> {
        self.client.column("SELECT headers->>'slot' FROM queue.jobs ORDER BY job_id")
    }

    /// Returns a column of the view as text.
    pub fn shown(&mut self, column: &str) -> Option<String> {
        self.client.value(&format!("SELECT {column}::text FROM queue.schedules"))
    }
}

/// Sets the time for the schedules of this session.
pub fn set_clock(client: &mut Client, time: &str) {
    client.run(&format!(
        "SELECT set_config('pg_queue.clock_offset', extract(epoch \
            FROM timestamptz '{time}' - clock_timestamp())::text, false)"
    ));
}

/// Does the duties of schedules until none is due.
pub fn maintain(client: &mut Client) {
    while client.value::<i64>("SELECT sum(did)::bigint FROM queue.maintain() WHERE duty ~ 'schedules'") > 0 {}
}

#[test]
fn a_slot_enqueues_a_job_with_all_options_of_its_schedule() {
    let mut stage = Stage::at("2026-01-05 10:00:30Z");
    let next = stage.schedule(
        "'s', 'q', '{\"n\": 1}', cron => '*/5 * * * *', priority => 7, max_attempts => 3, \
            headers => '{\"a\": 2, \"slot\": 0}'",
    );
    assert_eq!(next.as_deref(), Some("2026-01-05 10:05:00+00"));
    assert_eq!(stage.shown("next_run_at"), next);
    assert_eq!(stage.shown("last_job_id"), None);
    stage.fire("2026-01-05 10:04:59Z");
    assert_eq!(stage.slots(), [""; 0]);
    stage.fire("2026-01-05 10:05:00Z");
    maintain(&mut stage.client);
    let job: String = stage
        .client
        .value("SELECT concat_ws(' ', payload, priority, max_attempts, headers, state, queue_name) FROM queue.jobs");
    assert_eq!(job, "{\"n\": 1} 7 3 {\"a\": 2, \"slot\": \"2026-01-05T10:05:00Z\", \"schedule\": \"s\"} ready q");
    assert_eq!(stage.shown("next_run_at").as_deref(), Some("2026-01-05 10:10:00+00"));
    assert_eq!(stage.shown("date_trunc('minute', last_run_at)").as_deref(), Some("2026-01-05 10:05:00+00"));
    assert_eq!(
        stage.client.count("SELECT FROM queue.schedules AS s JOIN queue.jobs AS j ON j.job_id = s.last_job_id"),
        1
    );
}

#[test]
fn setting_the_clock_doubles_no_slot() {
    let mut stage = Stage::at("2026-01-05 10:00:30Z");
    stage.schedule("'s', 'q', cron => '*/10 * * * *', missed => 'all'");
    stage.fire("2026-01-05 10:20:00Z");
    let slots = ["2026-01-05T10:10:00Z", "2026-01-05T10:20:00Z"];
    assert_eq!(stage.slots(), slots);
    // The clock goes back. No slot fires twice, not even in a session that has not seen the first firing.
    for time in ["2026-01-05 09:55:00Z", "2026-01-05 10:10:00Z", "2026-01-05 10:19:59Z", "2026-01-05 10:20:01Z"] {
        let mut other = stage.database.connect();
        set_clock(&mut other, time);
        maintain(&mut other);
        stage.fire(time);
        assert_eq!(stage.slots(), slots, "{time}");
        // The view shows the slots that will fire.
        let next = Some("2026-01-05 10:30:00+00".to_owned());
        assert_eq!(stage.shown("next_run_at"), next, "{time}");
        let upcoming = stage.client.column::<String>("SELECT u::text FROM queue.upcoming('s', 1) AS u").pop();
        assert_eq!(upcoming, next, "{time}");
        let silent = finding(&mut stage.client, "schedules").detail.contains("is silent until 2026-01-05T10:30:00Z");
        assert_eq!(silent, time < "2026-01-05 10:15:00Z", "{time}");
    }
    stage.fire("2026-01-05 10:30:00Z");
    // The clock goes forward, as after an outage.
    stage.fire("2026-01-05 11:00:30Z");
    assert_eq!(stage.slots().len(), 6);
    assert_eq!(stage.client.value::<i64>("SELECT count(DISTINCT headers->>'slot') FROM queue.jobs"), 6);
}

/// Sets each hour of these days in turn. Returns the fired slots, in this zone.
fn fired(zone: &str, cron: &str, from: &str, hours: i32) -> Vec<String> {
    let mut stage = Stage::at(from);
    stage.schedule(&format!("'s', 'q', cron => '{cron}', timezone => '{zone}', missed => 'all'"));
    for hour in 1..=hours {
        let time: String = stage.client.value(&format!("SELECT (timestamptz '{from}' + interval '{hour} h')::text"));
        stage.fire(&time);
    }
    stage.client.run(&format!("SET timezone = '{zone}'"));
    stage.client.column("SELECT (headers->>'slot')::timestamptz::text FROM queue.jobs ORDER BY job_id")
}

#[test]
fn schedules_follow_daylight_saving_in_berlin() {
    let forward = |cron| fired("Europe/Berlin", cron, "2026-03-28 22:59:59Z", 9);
    let back = |cron| fired("Europe/Berlin", cron, "2026-10-24 21:59:59Z", 9);
    assert_eq!(forward("30 2 * * *"), ["2026-03-29 03:00:00+02"]);
    assert_eq!(back("30 2 * * *"), ["2026-10-25 02:30:00+02"]);
    assert_eq!(forward("*/30 2 * * *"), [""; 0]);
    assert_eq!(
        back("*/30 2 * * *"),
        ["2026-10-25 02:00:00+02", "2026-10-25 02:30:00+02", "2026-10-25 02:00:00+01", "2026-10-25 02:30:00+01"]
    );
    assert_eq!(
        forward("30 0-4/1 * * *"),
        ["2026-03-29 00:30:00+01", "2026-03-29 01:30:00+01", "2026-03-29 03:30:00+02", "2026-03-29 04:30:00+02"]
    );
}

#[test]
fn every_counts_from_the_planned_time() {
    let mut stage = Stage::at("2026-01-30 00:00:00Z");
    let next = stage.schedule("'month', 'q', every => '1 month', starts_at => '2026-01-31 12:00Z', missed => 'all'");
    assert_eq!(next.as_deref(), Some("2026-01-31 12:00:00+00"));
    assert_eq!(
        stage.client.column::<String>("SELECT t::text FROM queue.upcoming('month', 4) AS t"),
        ["2026-01-31 12:00:00+00", "2026-02-28 12:00:00+00", "2026-03-31 12:00:00+00", "2026-04-30 12:00:00+00"]
    );
    // The slot is right, however late the duty runs.
    for time in ["2026-01-31 12:00:03Z", "2026-02-28 12:00:02Z", "2026-03-31 19:00Z"] {
        stage.fire(time);
    }
    assert_eq!(stage.slots(), ["2026-01-31T12:00:00Z", "2026-02-28T12:00:00Z", "2026-03-31T12:00:00Z"]);
    assert_eq!(stage.shown("next_run_at").as_deref(), Some("2026-04-30 12:00:00+00"));
}

#[test]
fn a_run_is_skipped_while_the_last_ones_job_is_live() {
    let mut stage = Stage::at("2026-01-05 10:00:30Z");
    stage.schedule("'s', 'q', cron => '* * * * *', overlap => false");
    stage.fire("2026-01-05 10:01:00Z");
    stage.fire("2026-01-05 10:02:00Z");
    stage.client.run("SELECT FROM queue.claim('q')");
    // The same holds in a session that has not seen the last run.
    let mut other = stage.database.connect();
    set_clock(&mut other, "2026-01-05 10:03:00Z");
    maintain(&mut other);
    assert_eq!(stage.slots(), ["2026-01-05T10:01:00Z"]);
    assert_eq!(stage.shown("next_run_at").as_deref(), Some("2026-01-05 10:04:00+00"));
    assert_eq!(stage.shown("date_trunc('minute', last_run_at)").as_deref(), Some("2026-01-05 10:01:00+00"));
    stage.client.run("SELECT queue.fail(id, 'not now') FROM queue.attempts WHERE state = 'running'");
    stage.fire("2026-01-05 10:04:00Z");
    assert_eq!(stage.slots().len(), 1, "a job that waits for its next attempt is live");
    stage.client.run("SELECT queue.cancel(job_id) FROM queue.jobs");
    stage.fire("2026-01-05 10:05:00Z");
    assert_eq!(stage.slots(), ["2026-01-05T10:01:00Z", "2026-01-05T10:05:00Z"]);
    stage.client.run("SELECT queue.complete(id) FROM queue.claim('q')");
    stage.fire("2026-01-05 10:06:00Z");
    assert_eq!(stage.slots().len(), 3);
    // Only the first of several missed slots runs.
    stage.client.run("SELECT queue.complete(id) FROM queue.claim('q')");
    stage.schedule("'s', 'q', cron => '* * * * *', overlap => false, missed => 'all'");
    stage.fire("2026-01-05 10:10:30Z");
    assert_eq!(stage.slots()[3..], ["2026-01-05T10:07:00Z"]);
    assert_eq!(stage.shown("next_run_at").as_deref(), Some("2026-01-05 10:11:00+00"));
}

#[test]
fn slots_of_a_pause_are_not_missed() {
    let mut stage = Stage::at("2026-01-05 10:00:30Z");
    stage.schedule("'s', 'q', cron => '* * * * *', missed => 'all'");
    stage.client.run("SELECT queue.pause_schedule('s')");
    assert_eq!((stage.shown("next_run_at"), stage.shown("is_paused").as_deref()), (None, Some("true")));
    stage.fire("2026-01-05 10:05:30Z");
    // A repeated `queue.schedule` does not end the pause.
    assert_eq!(stage.schedule("'s', 'q', cron => '* * * * *', missed => 'all'"), None);
    stage.fire("2026-01-05 10:06:30Z");
    stage.client.run("SELECT queue.resume_schedule('s'), queue.resume_schedule('s')");
    stage.fire("2026-01-05 10:06:40Z");
    assert_eq!(stage.slots(), [""; 0]);
    stage.fire("2026-01-05 10:07:00Z");
    assert_eq!(stage.slots(), ["2026-01-05T10:07:00Z"]);
}

#[test]
fn a_schedule_of_the_same_name_is_replaced() {
    let mut stage = Stage::at("2026-01-05 10:00:30Z");
    create(&mut stage.client, "r", "");
    let first = stage.schedule("'s', 'q', '1', every => '1 hour'");
    assert_eq!(first.as_deref().map(|next| &next[..16]), Some("2026-01-05 11:00"));
    // The same plan keeps its slots when other options change.
    stage.set("2026-01-05 10:59:00Z");
    assert_eq!(stage.schedule("'s', 'r', '2', every => '1 hour', timezone => 'utc', priority => 1"), first);
    stage.fire("2026-01-05 11:00:31Z");
    assert_eq!(stage.client.column::<String>("SELECT concat(queue_name, payload, priority) FROM queue.jobs"), ["r21"]);
    // Another plan begins now. It has no slot of the old plan and misses none of its own.
    stage.set("2026-01-05 12:30:00Z");
    let next = stage.schedule("'s', 'q', '3', cron => '0 * * * *', missed => 'all'");
    assert_eq!(next.as_deref(), Some("2026-01-05 13:00:00+00"));
    stage.fire("2026-01-05 12:59:00Z");
    assert_eq!(stage.slots().len(), 1);
    stage.fire("2026-01-05 13:00:00Z");
    assert_eq!(stage.client.count("SELECT FROM queue.schedules"), 1);
    assert_eq!(stage.client.column::<String>("SELECT payload::text FROM queue.jobs ORDER BY job_id"), ["2", "3"]);
    // A due slot that has not fired yet is not lost.
    stage.set("2026-01-05 14:00:01Z");
    let next = stage.schedule("'s', 'q', '4', cron => '0 * * * *'");
    assert_eq!(next.as_deref(), Some("2026-01-05 14:00:00+00"));
    maintain(&mut stage.client);
    assert_eq!(stage.slots().last().map(String::as_str), Some("2026-01-05T14:00:00Z"));
    // If the new plan has the same slot, the slot does not fire twice.
    stage.schedule("'s', 'q', '5', cron => '*/10 * * * *'");
    maintain(&mut stage.client);
    assert_eq!(stage.slots().len(), 3);
}

#[test]
fn a_schedule_fires_no_slot_before_its_start_or_after_its_end() {
    let mut stage = Stage::at("2026-01-05 10:00:30Z");
    let next = stage.schedule(
        "'s', 'q', cron => '* * * * *', missed => 'all', starts_at => '2026-01-05 10:03Z', \
            ends_at => '2026-01-05 10:05Z'",
    );
    assert_eq!(next.as_deref(), Some("2026-01-05 10:03:00+00"));
    for minute in 1..8 {
        stage.fire(&format!("2026-01-05 10:0{minute}:00Z"));
    }
    assert_eq!(stage.slots(), ["2026-01-05T10:03:00Z", "2026-01-05T10:04:00Z"]);
    assert_eq!(stage.shown("next_run_at"), None);
    assert_eq!(stage.client.count("SELECT FROM queue.upcoming('s')"), 0);
    // An ended schedule with a new end continues, without the slots in between.
    let next = stage.schedule(
        "'s', 'q', cron => '* * * * *', missed => 'all', starts_at => '2026-01-05 10:03Z', \
            ends_at => '2026-01-05 10:30Z'",
    );
    assert_eq!(next.as_deref(), Some("2026-01-05 10:08:00+00"));
    assert_eq!(stage.schedule("'never', 'q', cron => '* * * * *', ends_at => '2026-01-05 10:00Z'"), None);
}

#[test]
fn a_rolled_back_schedule_or_firing_has_no_effect() {
    let mut stage = Stage::at("2026-01-05 10:00:30Z");
    stage.schedule("'s', 'q', cron => '* * * * *'");
    stage
        .client
        .run("BEGIN; SELECT queue.unschedule('s'); SELECT queue.schedule('t', 'q', cron => '* * * * *'); ROLLBACK");
    assert_eq!(stage.client.column::<String>("SELECT name FROM queue.schedules"), ["s"]);
    stage.fire("2026-01-05 10:01:00Z");
    assert_eq!(stage.client.column::<String>("SELECT headers->>'schedule' FROM queue.jobs"), ["s"]);
    // A rolled-back firing is repeated.
    stage.set("2026-01-05 10:02:00Z");
    let sql = "SELECT duty, did, 1 / (did - 1) FROM queue.maintain() WHERE duty = 'fire_schedules'";
    stage.client.refused(sql, "22012");
    assert_eq!(stage.slots().len(), 1);
    maintain(&mut stage.client);
    assert_eq!(stage.slots(), ["2026-01-05T10:01:00Z", "2026-01-05T10:02:00Z"]);
    // In a transaction block nothing fires: no other session could fire the next slot until it ends.
    stage.set("2026-01-05 10:03:00Z");
    stage.client.run("BEGIN; SELECT FROM queue.maintain(); COMMIT");
    assert_eq!(stage.slots().len(), 2);
    stage.client.run("SELECT queue.unschedule('s')");
    maintain(&mut stage.client);
    assert_eq!((stage.slots().len(), stage.client.count("SELECT FROM queue.schedules")), (2, 0));
}

#[test]
fn a_run_by_hand_changes_no_plan() {
    let mut stage = Stage::at("2026-01-05 10:00:30Z");
    stage.schedule("'s', 'q', '1', cron => '* * * * *', overlap => false");
    stage.client.run("BEGIN; SELECT queue.run_schedule('s'); ROLLBACK; SELECT queue.pause_schedule('s')");
    let job: i64 = stage.client.value("SELECT queue.run_schedule('s')");
    stage.client.run("SELECT queue.resume_schedule('s')");
    assert_eq!(stage.shown("last_job_id"), None);
    let found = stage.client.value::<String>(&format!("SELECT payload || headers::text FROM queue.job({job})"));
    assert_eq!(found, "1{\"schedule\": \"s\"}");
    stage.fire("2026-01-05 10:01:00Z");
    assert_eq!(stage.client.count("SELECT FROM queue.jobs"), 2);
    assert_eq!(stage.shown(&format!("(last_job_id > {job})")).as_deref(), Some("true"));
}

#[test]
fn a_schedule_that_cannot_fire_neither_stops_nor_delays_the_others() {
    let mut stage = Stage::at("2026-01-05 10:00:30Z");
    for name in ["a", "broken", "z"] {
        create(&mut stage.client, &format!("q_{name}"), "");
        stage.schedule(&format!("'{name}', 'q_{name}', cron => '* * * * *', missed => 'all'"));
    }
    // While an open transaction drops the queue, the slot does not fire. It fires after the rollback.
    let mut dropper = stage.database.connect();
    dropper.run("BEGIN; SELECT queue.drop('q_broken', force => true)");
    stage.fire("2026-01-05 10:01:00Z");
    let fired = "SELECT headers->>'schedule' FROM queue.jobs ORDER BY 1";
    assert_eq!(stage.client.column::<String>(fired), ["a", "z"]);
    stage.fire("2026-01-05 10:02:00Z");
    assert_eq!(stage.client.column::<String>(fired), ["a", "a", "z", "z"]);
    dropper.run("ROLLBACK");
    stage.fire("2026-01-05 10:02:04Z");
    assert_eq!(stage.client.column::<String>(fired), ["a", "a", "broken", "broken", "z", "z"]);
    let warnings =
        || server().log().lines().filter(|line| line.contains("schedule \"broken\" could not be fired")).count();
    assert_eq!(warnings(), 1);
    // Only a write to the tables can leave a schedule without its queue.
    stage.client.run(
        "DELETE FROM queue_internal.lane AS l USING queue_internal.queue AS q WHERE q.queue_id = l.queue_id
         AND queue_name = 'q_broken'",
    );
    stage.client.run("SELECT queue.adopt()");
    for minute in 3..8 {
        stage.fire(&format!("2026-01-05 10:0{minute}:00Z"));
    }
    let found = stage.client.column::<i64>("SELECT count(*) FROM queue.jobs GROUP BY headers->>'schedule' ORDER BY 1");
    assert_eq!(found, [7, 7]);
    assert_eq!(warnings(), 2);
    let overdue = "SELECT next_run_at::text FROM queue.schedules WHERE name = 'broken'";
    assert_eq!(stage.client.value::<String>(overdue), "2026-01-05 10:03:00+00");
    stage.client.run("SELECT queue.unschedule('broken')");
    stage.fire("2026-01-05 10:08:00Z");
    let got = stage.client.column::<i64>("SELECT count(*) FROM queue.jobs GROUP BY headers->>'schedule' ORDER BY 1");
    assert_eq!(got, [8, 8]);
}

#[test]
fn errors_of_the_server_are_not_blamed_on_a_schedule() {
    let mut stage = Stage::at("2026-01-05 10:00:30Z");
    for name in ["troubled", "troubled_too"] {
        stage.schedule(&format!("'{name}', 'q', cron => '* * * * *', missed => 'all'"));
    }
    let mut other = stage.database.connect();
    other.run("BEGIN; LOCK TABLE queue_internal.attempt_0 IN EXCLUSIVE MODE");
    stage.set("2026-01-05 10:01:00Z");
    let maintain = "SELECT sum(did) FROM queue.maintain()";
    for (setting, code) in [("lock_timeout", "55P03"), ("statement_timeout", "57014")] {
        stage.client.run(&format!("SET {setting} = '50 ms'"));
        stage.client.refused(maintain, code);
        // No subtransaction is left open.
        stage.client.run(&format!("RESET {setting}"));
        assert_eq!(stage.slots(), [""; 0]);
    }
    other.run("ROLLBACK");
    stage.fire("2026-01-05 10:01:01Z");
    assert_eq!(stage.slots(), ["2026-01-05T10:01:00Z", "2026-01-05T10:01:00Z"]);
    assert!(!server().log().contains("schedule \"troubled"));
}

#[test]
fn a_queue_is_not_dropped_under_its_schedules() {
    let mut stage = Stage::at("2026-01-05 10:00:30Z");
    stage.schedule("'s', 'q', cron => '* * * * *'");
    let refused = stage.client.failure("SELECT queue.drop('q')");
    assert_eq!((refused.code.as_str(), refused.message.as_str()), ("55000", "queue \"q\" has schedules"));
    assert_eq!(refused.detail, "Schedule \"s\" enqueues into it.");
    stage.client.run("SELECT queue.drop('q', force => true)");
    assert_eq!(stage.client.count("SELECT FROM queue.schedules"), 0);
    stage.fire("2026-01-05 10:01:00Z");
    // Only one of the two transactions can succeed. Neither waits.
    create(&mut stage.client, "q", "");
    let mut other = stage.database.connect();
    other.run("BEGIN; SELECT queue.schedule('s', 'q', cron => '* * * * *')");
    stage.client.refused("SELECT queue.drop('q')", "55000");
    // The server sends the error before it rolls back. Until the rollback the queue is still being dropped.
    stage.client.run("SELECT");
    other.run("COMMIT");
    other.run("BEGIN; SELECT queue.drop('q', force => true)");
    stage.client.refused("SELECT queue.schedule('t', 'q', cron => '* * * * *')", "55006");
    other.run("ROLLBACK; BEGIN; SELECT queue.schedule('t', 'q', cron => '* * * * *')");
    stage.client.run("SELECT queue.drop('q', force => true)");
    other.refused("COMMIT", "42704");
    assert_eq!(stage.client.count("SELECT FROM queue_internal.schedule"), 0);
}

#[test]
fn bad_input_is_refused_and_the_error_shows_its_place() {
    const NEVER: &str = "the schedule would never fire";
    let mut stage = Stage::at("2026-01-05 10:00:30Z");
    for (arguments, code, message) in [
        ("NULL, 'q', cron => '* * * * *'", "22004", "name cannot be null"),
        ("'', 'q', cron => '* * * * *'", "22023", "name must have 1 to 200 characters"),
        ("repeat('x', 201), 'q', cron => '* * * * *'", "22023", "name must have 1 to 200 characters"),
        ("'s', NULL, cron => '* * * * *'", "22004", "queue_name cannot be null"),
        ("'s', 'p', cron => '* * * * *'", "42704", "queue \"p\" does not exist"),
        ("'s', 'q'", "22023", "neither cron nor every is given"),
        ("'s', 'q', cron => '* * * * *', every => '1 s'", "22023", "cron and every cannot be given together"),
        ("'s', 'q', every => '99 ms'", "22023", "the period of a schedule must be at least 100 milliseconds"),
        ("'s', 'q', every => '1 day -1 s'", "22023", "the period of a schedule cannot be negative, nor any part of it"),
        (
            "'s', 'q', cron => '* * * * *', timezone => 'Europe/Bonn'",
            "22023",
            "time zone \"Europe/Bonn\" not recognized",
        ),
        ("'s', 'q', cron => '* * * * *', missed => 'twice'", "22023", "invalid value for missed: \"twice\""),
        ("'s', 'q', every => '1 s', starts_at => 'infinity'", "22023", "starts_at must be finite"),
        ("'s', 'q', every => '1 s', ends_at => '-infinity'", "22023", "ends_at must be finite"),
        (
            "'s', 'q', every => '1 s', starts_at => '2026-01-02', ends_at => '2026-01-02'",
            "22023",
            "ends_at must be later than starts_at",
        ),
        ("'s', 'q', every => '1 s', starts_at => '294276-12-31'", "22023", NEVER),
        ("'s', 'q', cron => '* * * * * *', ends_at => '4713-01-01 BC'", "22023", NEVER),
        ("'s', 'q', every => '178000000 years'", "22023", NEVER),
        ("'s', 'q', every => make_interval(secs => 9223372036854)", "22023", NEVER),
        ("'s', 'q', cron => '0 0 29 2 *', starts_at => '2026-01-01', ends_at => '2027-12-31'", "22023", NEVER),
        ("'s', 'q', every => '1 s', max_attempts => 0", "22023", "max_attempts must be between 1 and 1000000"),
        ("'s', 'q', every => '1 s', headers => '[]'", "22023", "headers must be a JSON object"),
        ("'s', 'q', cron => ''", "22023", "empty cron expression"),
    ] {
        let failure = stage.client.failure(&format!("SELECT queue.schedule({arguments})"));
        assert_eq!((failure.code.as_str(), failure.message.as_str()), (code, message), "{arguments}");
    }
    let failure = stage.client.failure("SELECT queue.schedule('s', 'q', cron => '0 25 * * *')");
    assert_eq!((failure.code.as_str(), failure.message.as_str()), ("22023", "invalid hour \"25\" in cron expression"));
    assert_eq!(failure.detail, "At character 3 of the expression:\n0 25 * * *\n  ^^");
    assert_eq!(failure.hint, "The allowed hours are 0 to 23.");
    for (sql, code) in [
        ("SELECT queue.unschedule('s')", "42704"),
        ("SELECT queue.unschedule(NULL)", "22004"),
        ("SELECT queue.pause_schedule('s')", "42704"),
        ("SELECT queue.resume_schedule('s')", "42704"),
        ("SELECT queue.run_schedule('s')", "42704"),
        ("SELECT queue.upcoming('s')", "42704"),
        ("SELECT queue.upcoming('there', -1)", "22023"),
        ("SELECT queue.upcoming('there', 10001)", "22023"),
        ("BEGIN READ ONLY; SELECT queue.schedule('s', 'q', every => '1 s')", "25006"),
    ] {
        stage.schedule("'there', 'q', every => '1 s'");
        stage.client.refused(sql, code);
        stage.client.run("ROLLBACK");
    }
    assert_eq!(stage.client.count("SELECT FROM queue.upcoming('there', 0)"), 0);
    // The limits of the time range are accepted.
    for plan in [
        "every => '5000 years'",
        "every => '1 month 1 day 0.1 s', starts_at => '4713-01-01 BC'",
        "cron => '0 0 29 2 SUN#5', starts_at => '4713-01-01 BC', ends_at => '294276-12-31'",
    ] {
        for missed in ["skip", "once", "all"] {
            stage.schedule(&format!("'ends', 'q', {plan}, missed => '{missed}'"));
            stage.client.run("SELECT count(*) FROM queue.upcoming('ends')");
        }
    }
    stage.client.run("SELECT queue.unschedule('ends')");
    // NULL means the default for every argument.
    stage.schedule("'n', 'q', NULL, NULL, '1 s', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL");
    let sql =
        "SELECT concat_ws(' ', payload, timezone, missed, overlap, priority) FROM queue.schedules WHERE name = 'n'";
    assert_eq!(stage.client.value::<String>(sql), "{} UTC once t 0");
    assert_eq!(stage.client.count("SELECT FROM queue.upcoming('n', NULL)"), 10);
}

#[test]
fn the_jobs_of_a_schedule_are_in_its_group() {
    let (_database, mut client) = Database::without_worker().with_queue("q", "max_running_per_group => 1");
    client.run("SELECT queue.schedule('s', 'q', every => '1 hour', group_key => 'g')");
    for _ in 0..2 {
        client.run("SELECT queue.run_schedule('s')");
    }
    assert_eq!(client.column::<String>("SELECT group_key FROM queue.claim('q', 2)"), ["g"]);
}

#[test]
fn a_full_queue_gets_as_many_slots_as_it_has_room_for() {
    let mut stage = Stage::at("2026-01-01 00:00:00+00");
    stage.client.run("SELECT queue.alter('q', max_waiting => 3)");
    stage.schedule("'s', 'q', every => '1 minute', missed => 'all', starts_at => '2026-01-01 00:00:00+00'");
    let minutes = |slots: &[String]| slots.iter().map(|slot| slot[14..16].to_owned()).collect::<Vec<_>>();
    stage.fire("2026-01-01 00:20:30+00");
    assert_eq!(minutes(&stage.slots()), ["01", "02", "03"], "the oldest, as many as fit");
    // The slots are tried again. Those for which the queue has room enqueue their jobs.
    stage.client.run("SELECT queue.complete(id) FROM queue.claim('q', 2)");
    stage.fire("2026-01-01 00:22:30+00");
    assert_eq!(minutes(&stage.slots()), ["01", "02", "03", "04", "05"]);
    stage.client.run("SELECT queue.alter('q', reset => '{max_waiting}')");
    stage.fire("2026-01-01 00:24:30+00");
    assert_eq!(stage.slots().len(), 24, "{:?}", stage.slots());
}

#[test]
fn a_schedule_made_meanwhile_by_another_session_is_not_replaced() {
    let database = Database::without_worker();
    let (mut client, mut first) = (database.connect(), database.connect());
    client.run("SELECT queue.create('q1'), queue.create('q2')");
    client.run("CREATE ROLE manager_of_q2; SELECT queue.grant('q2', 'manager_of_q2', 'manage')");
    first.run("BEGIN; SELECT queue.schedule('x', 'q1', every => '1 hour')");
    let mut second = database.connect();
    second.run("SET ROLE manager_of_q2");
    let refused = blocked::<i64>(&mut client, second, "SELECT queue.schedule('x', 'q2', every => '1 hour')");
    first.run("COMMIT");
    assert_eq!(refused.join().unwrap().unwrap_err().code, "42501");
    assert_eq!(client.value::<String>("SELECT queue_name FROM queue.schedules"), "q1");
    client.run("DROP OWNED BY manager_of_q2; DROP ROLE manager_of_q2");
}

#[test]
fn a_schedule_that_is_made_while_another_one_of_its_name_is_removed_begins_now() {
    let mut stage = Stage::at("2026-01-05 10:00Z");
    let make = "'s', 'q', every => '1 minute', missed => 'all'";
    stage.schedule(make);
    stage.fire("2026-01-05 10:05:20Z");
    assert_eq!(stage.slots().len(), 5);
    let mut other = stage.database.connect();
    set_clock(&mut other, "2026-01-05 10:05:30Z");
    let pid = other.pid();
    stage.client.run("BEGIN; SELECT queue.unschedule('s')");
    std::thread::scope(|scope| {
        let made = scope.spawn(move || other.run(&format!("SELECT queue.schedule({make})")));
        wait_blocked(&mut stage.database.connect(), pid);
        stage.client.run("COMMIT");
        made.join().unwrap();
    });
    stage.fire("2026-01-05 10:06:40Z");
    assert_eq!(stage.slots().len(), 6, "{:?}", stage.slots());
}

#[test]
fn a_schedule_whose_last_job_went_with_its_queue_goes_on() {
    let mut stage = Stage::at("2026-01-05 10:00Z");
    create(&mut stage.client, "other", "");
    stage.schedule("'s', 'other', every => '1 minute', overlap => false");
    stage.fire("2026-01-05 10:01:30Z");
    assert_eq!(stage.slots().len(), 1);
    stage.schedule("'s', 'q', every => '1 minute', overlap => false");
    stage.client.run("SELECT queue.drop('other', force => true)");
    stage.fire("2026-01-05 10:02:30Z");
    assert_eq!(stage.client.count("SELECT FROM queue.jobs WHERE queue_name = 'q'"), 1);
}

#[test]
fn a_schedule_that_a_snapshot_does_not_see_is_not_reported_as_changed() {
    let mut stage = Stage::at("2026-01-05 10:00Z");
    let mut late = stage.database.connect();
    late.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM queue.schedules");
    stage.schedule("'s', 'q', every => '1 minute'");
    for verb in ["queue.unschedule('s')", "queue.pause_schedule('s')", "queue.schedule('s', 'q', every => '2 minutes')"]
    {
        late.run("SAVEPOINT here");
        late.refused(&format!("SELECT {verb}"), "40001");
        late.run("ROLLBACK TO here");
    }
    late.run("SELECT queue.resume_schedule('s'); COMMIT");
    assert_eq!(stage.shown("is_paused").as_deref(), Some("false"));
}
