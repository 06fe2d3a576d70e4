//! Problems of queues, topics and schedules that `queue.doctor()` finds.

use std::cell::Cell;

use crate::operations::doctor::{finding, impatient, until_ill, until_well};
use crate::shared::*;

#[test]
fn the_doctor_reports_schedules_whose_jobs_all_die() {
    let (_database, mut client) =
        Database::without_worker().with_queue("reports", "max_attempts => 1, dead_retention => '1 day'");
    create(&mut client, "late", "");
    client.run(
        "SELECT queue.schedule('nightly', 'reports', every => '1 day'),
                queue.schedule('other', 'late', every => '1 day')",
    );
    // Each call adds a day with one slot, however long the test takes.
    let days = Cell::new(0);
    let fire = |client: &mut Client| {
        days.set(days.get() + 1);
        client.run(&format!("SET pg_queue.clock_offset = {}", days.get() * 86_400));
        let before: i64 = client.value("SELECT count(*) FROM queue.jobs WHERE queue_name = 'reports'");
        client.maintain_until(&format!("(SELECT count(*) > {before} FROM queue.jobs WHERE queue_name = 'reports')"));
    };
    let end = |client: &mut Client, how: &str| {
        fire(client);
        client.run(&format!("SELECT {how} FROM queue.claim('reports', 100)"));
    };
    let die = "queue.fail(id, 'boom', fatal => true)";
    end(&mut client, die);
    end(&mut client, die);
    assert!(finding(&mut client, "schedules").is_ok);
    end(&mut client, die);
    let hint =
        until_ill(&mut client, "schedules", &["The last 3 jobs of \"nightly\", of queue \"reports\", have died."]);
    assert!(hint.contains("queue.errors"));
    // The next slot comes.
    fire(&mut client);
    until_ill(&mut client, "schedules", &["\"nightly\", of queue \"reports\""]);
    client.run("SELECT queue.pause_schedule('nightly')");
    until_well(&mut client, "schedules");
    client.run("SELECT queue.resume_schedule('nightly')");
    until_ill(&mut client, "schedules", &["\"nightly\", of queue \"reports\""]);
    // One completed job is enough, even if it was dead before.
    client.run("SELECT queue.complete(id) FROM queue.claim('reports', 100)");
    until_well(&mut client, "schedules");
    end(&mut client, die);
    end(&mut client, die);
    end(&mut client, die);
    until_ill(&mut client, "schedules", &["\"nightly\", of queue \"reports\""]);
    client.run("SELECT queue.pause_schedule('nightly')");
    client.run(&retry_dead("reports"));
    client.run("SELECT queue.complete(id) FROM queue.claim('reports', 100)");
    client.run("SELECT queue.resume_schedule('nightly')");
    until_well(&mut client, "schedules");
}

/// Zones and years in which the library's data may differ from the server's. The test computes the expected result from
/// the server's data, with schedules at noon.
#[test]
fn the_doctor_reports_time_zones_that_differ_from_those_of_postgres() {
    let database = Database::without_worker();
    let mut client = impatient(database.connect());
    create(&mut client, "q", "");
    assert!(finding(&mut client, "time_zones").is_ok);
    let version: String = client.value("SHOW pg_queue.timezone_version");
    assert!(finding(&mut client, "time_zones").detail.contains(&version) && version.as_str() >= "2026f");
    let mut found = [0, 0];
    for (zone, year) in [
        ("UTC", 2026),
        ("Europe/Berlin", 2026),
        ("Europe/Berlin", 2100),
        ("America/Havana", 2026),
        ("Africa/Casablanca", 2026),
        ("Asia/Kathmandu", 2026),
        ("Europe/Berlin", 1941),
        ("Europe/Oslo", 1941),
        ("Europe/Stockholm", 1941),
        ("Europe/Amsterdam", 1941),
        ("Atlantic/Reykjavik", 1941),
        ("Pacific/Chuuk", 1941),
    ] {
        client.run(&format!(
            "SELECT set_config('pg_queue.clock_offset', extract(epoch FROM '{year}-01-01Z'::timestamptz - now())::text,
                false);
             SELECT queue.schedule('noon', 'q', cron => '0 12 * * *', timezone => '{zone}')"
        ));
        let differs: bool = client.value(&format!(
            "SELECT bool_or(extract(hour FROM upcoming AT TIME ZONE '{zone}') <> 12) FROM queue.upcoming('noon', 365)"
        ));
        let finding = finding(&mut client, "time_zones");
        assert_eq!(!finding.is_ok, differs, "{zone} in {year}: {}", finding.detail);
        assert!(
            !differs || finding.detail.contains(&format!("Zone \"{zone}\" of schedule \"noon\" is at ")),
            "{}",
            finding.detail
        );
        found[usize::from(differs)] += 1;
    }
    assert!(found[0] > 0, "{found:?}");
    eprintln!("{found:?}");
}

#[test]
fn the_doctor_reports_jobs_that_no_worker_claims() {
    let database = Database::new();
    let mut client = impatient(database.connect());
    create(&mut client, "idle", "");
    create(&mut client, "staged", "stages => '{first, last}'");
    client.run("SELECT queue.enqueue('idle'), queue.enqueue('staged'), queue.enqueue('idle', delay => '1 day')");
    let words = ["Queue \"idle\" has had a ready job for", "Queue \"staged\", stage \"first\", has had"];
    until_ill(&mut client, "unclaimed", &words);
    client.run("SELECT queue.throttle('staged', '1 hour')");
    let id = client.claim("idle");
    until_well(&mut client, "unclaimed");
    client.run(&format!("SELECT queue.complete({id}), queue.throttle('staged', '0'), queue.pause('staged')"));
    until_well(&mut client, "unclaimed");
    client.run("SELECT queue.resume('staged')");
    until_ill(&mut client, "unclaimed", &["Queue \"staged\""]);
    client.run("SELECT FROM queue.claim('staged')");
    until_well(&mut client, "unclaimed");
}

#[test]
fn the_doctor_reports_queues_whose_jobs_expire() {
    let database = Database::new();
    let mut client = impatient(database.connect());
    create(&mut client, "q", "");
    client.run("SELECT queue.enqueue('q', delay => '1 day')");
    client.wait_counted();
    until_well(&mut client, "expiring");
    client.run("SELECT queue.enqueue('q', start_within => '1 us') FROM generate_series(1, 10)");
    until_ill(&mut client, "expiring", &["In the last hour 10 jobs of queue \"q\" expired, and workers claimed 0."]);
    client.run("SELECT count(*) FROM queue.enqueue_many('q', array_fill('1'::jsonb, ARRAY[100]))");
    client.run("SELECT count(*) FROM queue.claim('q', 100)");
    until_well(&mut client, "expiring");
}

#[test]
fn the_doctor_reports_dead_jobs_that_pile_up() {
    let (_database, mut client) = Database::new().with_queue("q", "");
    client.run("SELECT count(*) FROM queue.enqueue_many('q', array_fill('1'::jsonb, '{1000}'))");
    client
        .run("SELECT count(*) FROM queue.fail_many(ARRAY(SELECT id FROM queue.claim('q', 999)), 'no', fatal => true)");
    until_well(&mut client, "dead");
    client.run("SELECT queue.fail(id, 'no', fatal => true) FROM queue.claim('q')");
    let hint = until_ill(&mut client, "dead", &["Queue \"q\" has 1000 dead jobs"]);
    // The statement in the hint can be run.
    let statement = hint.split_once(". SELECT").and_then(|(_, rest)| rest.split_once(" runs them again"));
    let (statement, _) = statement.expect("the hint has a statement");
    client.run(&format!("SELECT {statement}"));
    until_well(&mut client, "dead");
}

#[test]
fn the_doctor_reports_jobs_that_wait_for_dead_ones() {
    let database = Database::new();
    let mut client = impatient(database.connect());
    create(&mut client, "q", "max_attempts => 1");
    create(&mut client, "other", "");
    let jobs: Vec<i64> = client.column("SELECT queue.enqueue('q') FROM generate_series(1, 3)");
    for (queue, job, upon, many) in [
        ("q", jobs[0], "completed", 2),
        ("q", jobs[1], "completed", 3),
        ("other", jobs[1], "completed", 1),
        ("other", jobs[2], "completed", 1),
        ("q", jobs[1], "ended", 1),
    ] {
        client.run(&format!(
            "SELECT queue.enqueue('{queue}', after => '{{{job}}}', upon => '{upon}') FROM generate_series(1, {many})"
        ));
    }
    // The job waits for two predecessors. One of them has completed.
    client.run(&format!("SELECT queue.enqueue('other', after => '{{{}, {}}}')", jobs[0], jobs[2]));
    until_well(&mut client, "held");
    client.run("SELECT queue.fail(id, 'no') FROM queue.claim('q', 2); SELECT queue.complete(id) FROM queue.claim('q')");
    let words = format!(
        "7 held jobs wait for 2 dead ones. Most of them, 4, wait for job {} of queue \"q\", dead for ",
        jobs[1]
    );
    let hint = until_ill(&mut client, "held", &[&words]);
    assert!(hint.contains("queue.retry("), "{hint}");
    let metric = "SELECT string_agg(labels ->> 'queue' || value, ' ' ORDER BY labels) FROM queue.metrics()
                  WHERE name = 'pg_queue_held_by_dead'";
    assert_eq!(client.value::<String>(metric), "other2 q5");
    client.run(&format!("SELECT queue.retry({})", jobs[1]));
    until_ill(&mut client, "held", &["3 held jobs wait for 1 dead ones", &format!("for job {}", jobs[0])]);
    client.run(&retry_dead("q"));
    until_well(&mut client, "held");
    client.run("SELECT queue.complete(id) FROM queue.claim('q', 3)");
    assert_eq!(client.value::<String>(metric), "other0 q0");
}

#[test]
fn the_doctor_reports_topics_without_subscribers() {
    let database = Database::new();
    let mut client = impatient(database.connect());
    create(&mut client, "q", "");
    create(&mut client, "other", "");
    client.run("SELECT queue.create_topic('alone'), queue.create_topic('bound'), queue.bind('bound', 'q', 'a')");
    // An unused topic, and events that match no binding, are no problem.
    client.run("SELECT FROM queue.publish('bound', key => 'b')");
    until_well(&mut client, "topics");
    client.run("SELECT FROM queue.publish('alone'); SELECT FROM queue.publish('alone')");
    let hint = until_ill(
        &mut client,
        "topics",
        &["No queue is bound to topic \"alone\", and no queue got 2 events, the last of them "],
    );
    assert!(hint.contains("queue.bind"), "{hint}");
    client.run("SELECT queue.bind('alone', 'q')");
    until_well(&mut client, "topics");
    // A subscriber that stays paused is a problem. Another queue may stay paused.
    client.run("SELECT queue.pause('q'), queue.pause('other'), queue.enqueue('other')");
    client.run("SELECT FROM queue.publish('bound', key => 'a')");
    let words = ["Queue \"q\" is paused, has had a ready job for", "still gets the events of topic \"bound\""];
    until_ill(&mut client, "topics", &words);
    assert!(!finding(&mut client, "topics").detail.contains("other"));
    client.run("SELECT queue.unbind('bound', 'q'), queue.unbind('alone', 'q'), queue.drop('alone')");
    let hint = until_ill(&mut client, "topics", &["No queue is bound to topic \"bound\", and no queue got 1 events"]);
    assert!(hint.contains("or drop the topic"), "{hint}");
    // The problem is over once nothing has been published for a while.
    until_well(&mut client, "topics");
}
