//! A job keeps the times that its producer has set: `start_by`, `start_within`, `max_delay`.

use crate::durability::restore;
use crate::jobs::flows::reclaim;
use crate::shared::*;
use crate::storage::segments_races::turn;

/// Returns these times as `queue.job` shows them.
fn timing(client: &mut Client, job: i64) -> Option<String> {
    client.value(&format!("SELECT timing::text FROM queue.job({job})"))
}

/// True if the job must start within this span from now, with a minute of tolerance.
fn starts_within(client: &mut Client, job: i64, span: &str) -> bool {
    client.value(&format!(
        "SELECT start_by BETWEEN now() + '{span}' - interval '1 minute' AND now() + '{span}' FROM queue.job({job})"
    ))
}

/// Returns the segments in which the rows of these jobs lie.
pub fn segments(client: &mut Client, jobs: &[i64]) -> Vec<i32> {
    let tables: Vec<String> =
        (0..10).map(|n| format!("SELECT {n} AS n, job_id FROM queue_internal.attempt_{n}")).collect();
    client.column(&format!(
        "SELECT DISTINCT n FROM ({}) AS a WHERE job_id = ANY ('{{{}}}') ORDER BY n",
        tables.join(" UNION ALL "),
        jobs.iter().map(i64::to_string).collect::<Vec<_>>().join(",")
    ))
}

#[test]
fn the_times_of_a_job_survive_retries_moves_crashes_history_and_dumps() {
    let (cluster, mut client) =
        Cluster::with(&["pg_queue.segment_rows = 1000", "pg_queue.reclaim_delay = 0", "pg_queue.restore_quiet = 1"])
            .start_with_database("app");
    create(&mut client, "q", "");
    create(&mut client, "d", "max_attempts => 9, lease => '1 hour'");
    create(&mut client, "r", "lease => '1 hour'");
    let job = |client: &mut Client, more: &str| client.value::<i64>(&format!("SELECT queue.enqueue('d'{more})"));
    let within = job(&mut client, ", start_within => '1 month -1 day 2 hours'");
    let by = job(&mut client, ", start_by => '2100-01-01 00:00Z', priority => 1");
    let event: i64 = client.value("SELECT queue.enqueue_flow('d', open => true, start_within => '3 days')");
    let held = job(&mut client, &format!(", after => ARRAY[{event}], start_within => '-2 days 50 hours'"));
    let said: Vec<Option<String>> = [within, by, event, held].map(|job| timing(&mut client, job)).into();
    assert_eq!(said[0].as_deref(), Some(r#"{"start_within": "1 mon -1 days +02:00:00"}"#));
    assert_eq!(said[3].as_deref(), Some(r#"{"start_within": "-2 days +50:00:00"}"#));
    let check = |client: &mut Client, what: &str| {
        let now: Vec<Option<String>> = [within, by, event, held].map(|job| timing(client, job)).into();
        assert_eq!(now, said, "{what}");
    };

    // These verbs make a next attempt.
    let id = client.claim("d");
    client.run(&format!("SELECT queue.fail({id}, 'no', retry_in => '0')"));
    let id = client.claim("d");
    client.run(&format!("SELECT queue.release({id})"));
    client.run(&format!("SELECT queue.reprioritize({within}, -1), queue.reschedule({within}, now() + '1 ms')"));
    check(&mut client, "a retry, a release, another priority, another time");

    // A call during the run requests another run. Its note has the times of that call.
    let call = |client: &mut Client, more: &str| -> i64 {
        client.value(&format!("SELECT queue.enqueue('r', unique_key => 'k', on_duplicate => 'rerun'{more})"))
    };
    let again = call(&mut client, ", start_within => '5 hours'");
    let running = client.claim("r");
    assert_eq!(call(&mut client, ", delay => '1 day', start_within => '3 hours', max_delay => '1 hour'"), again);

    // The rows move to other segments, and the server crashes.
    let jobs = [within, by, event, held, again];
    let before = segments(&mut client, &jobs);
    turn(&mut client, 12);
    let after = segments(&mut client, &jobs);
    assert!(before.iter().any(|segment| !after.contains(segment)), "{before:?} {after:?}");
    check(&mut client, "moves");
    cluster.crash(client.pid());
    let mut client = cluster.connect_to("app");
    check(&mut client, "a crash");

    // A database with other settings restores the dump.
    let dump = cluster.pg_dump(&["app"]);
    cluster.connect().run("CREATE DATABASE copy");
    cluster.connect().run("ALTER DATABASE copy SET intervalstyle = 'sql_standard'");
    cluster.connect().run("ALTER DATABASE copy SET timezone = 'Asia/Tokyo'");
    cluster.psql_in("copy", &dump);
    let mut copy = cluster.connect_to("copy");
    restore::wait_awake(&mut copy);
    check(&mut copy, "a dump");
    for client in [&mut client, &mut copy] {
        client.run(&format!("SELECT queue.resolve({event})"));
        client.maintain_until(&format!("state = 'ready' FROM queue.job({held})"));
        assert!(starts_within(client, held, "2 hours"), "the span begins with the release");
    }

    // The requested run has the times of its call.
    client.run(&format!("SELECT queue.complete({running})"));
    client.maintain_until(&format!("state = 'scheduled' FROM queue.job({again})"));
    let is_so: bool = client.value(&format!(
        "SELECT start_by = run_at + '3 hours' AND run_at = (timing ->> 'delayed_since')::timestamptz + '1 hour'
                AND timing - 'delayed_since' = '{{\"start_within\": \"03:00:00\", \"max_delay\": \"01:00:00\"}}'
         FROM queue.job({again})"
    ));
    assert!(is_so, "{:?}", timing(&mut client, again));

    // The jobs go to history and are retried from there. Jobs that have moved stay in the segments of old jobs.
    let by = job(&mut client, ", start_by => '2200-01-01 00:00Z'");
    let put_off: i64 = client.value(
        "SELECT queue.enqueue('d', unique_key => 'k', start_within => '3 hours', max_delay => '1 hour',
             delay => '1 s')",
    );
    let jobs = [by, put_off];
    let said = jobs.map(|job| timing(&mut client, job));
    assert!(said[1].as_ref().unwrap().contains("delayed_since"));
    client.run(&format!("SELECT queue.cancel(job) FROM unnest(ARRAY{jobs:?}) AS job"));
    let kept = format!("SELECT FROM queue_internal.history WHERE job_id = ANY (ARRAY{jobs:?})");
    wait::until_true("they are in history", || {
        reclaim(&mut client, 1);
        client.count(&kept) == 2
    });
    assert_eq!(jobs.map(|job| timing(&mut client, job)), said);
    let found = "SELECT job_id FROM queue.search('d', '$.timing.start_by starts with \"2200\"')";
    assert_eq!(client.column::<Option<i64>>(found)[0], Some(by));
    client.run(&format!("SELECT queue.retry({by}), queue.retry({put_off})"));
    assert_eq!(timing(&mut client, by), said[0]);
    let renewed = r#"{"max_delay": "01:00:00", "start_within": "03:00:00"}"#;
    assert_eq!(timing(&mut client, put_off).as_deref(), Some(renewed), "it is put off anew");
    integrity::check(&mut client);
}

#[test]
fn a_copy_of_an_event_has_the_times_of_its_publisher_and_a_dead_letter_has_none() {
    let (mut client, q) = queue("max_attempts => 1");
    create(&mut client, &format!("{q}_dead"), "");
    create(&mut client, &format!("{q}_other"), "stages => '{a, b}'");
    client.run(&format!(
        "SELECT queue.alter('{q}', dead_letter => '{q}_dead'); SELECT queue.create_topic('t{q}');
         SELECT queue.bind('t{q}', '{q}'); SELECT queue.bind('t{q}', '{q}_other', delay => '1 hour')"
    ));
    let jobs: Vec<i64> = client.column(&format!(
        "SELECT job_id FROM queue.publish('t{q}', to_jsonb(repeat('x', 5000)), unique_key => 'k', start_within => '2 h',
             max_delay => '1 day') ORDER BY queue_name"
    ));
    for (&job, span) in jobs.iter().zip(["2 hours", "3 hours"]) {
        assert!(timing(&mut client, job).unwrap().contains("\"max_delay\": \"1 day\""));
        assert!(starts_within(&mut client, job, span), "{span}");
    }
    client.run(&format!("SELECT queue.fail(id, 'no') FROM queue.claim('{q}')"));
    let letter = format!("SELECT timing IS NULL AND start_by IS NULL FROM queue.jobs WHERE queue_name = '{q}_dead'");
    assert!(client.value::<bool>(&letter));
    // Each copy of each of many events has the time.
    assert_eq!(
        client.count(&format!("SELECT FROM queue.publish_many('t{q}', '{{1,2}}', start_by => '2100-01-01 00:00Z')")),
        4
    );
    let said = format!(
        "SELECT FROM queue.jobs WHERE queue_name IN ('{q}', '{q}_other') AND start_by = '2100-01-01 00:00Z'
             AND timing ? 'start_by'"
    );
    assert_eq!(client.count(&said), 4);
}

#[test]
fn another_call_replaces_the_times_of_a_job_even_if_it_is_held() {
    let (mut client, q) = queue("");
    let event: i64 = client.value(&format!("SELECT queue.enqueue_flow('{q}', open => true)"));
    let call = |client: &mut Client, more: &str| -> i64 {
        client.value(&format!("SELECT queue.enqueue('{q}', unique_key => 'k', on_duplicate => 'replace'{more})"))
    };
    let job = call(&mut client, &format!(", after => ARRAY[{event}], start_within => '1 hour'"));
    assert_eq!(call(&mut client, ", start_by => '2100-01-01 00:00Z'"), job);
    let by: bool = client.value(&format!("SELECT start_by = '2100-01-01 00:00Z' FROM queue.job({job})"));
    assert!(by, "a moment counts while it is held");
    assert_eq!(call(&mut client, ", start_within => '2 hours'"), job);
    assert_eq!(timing(&mut client, job).as_deref(), Some(r#"{"start_within": "02:00:00"}"#));
    assert!(client.value::<bool>(&format!("SELECT start_by IS NULL FROM queue.job({job})")));
    client.run(&format!("SELECT queue.resolve({event})"));
    client.maintain_until(&format!("state = 'ready' FROM queue.job({job})"));
    assert!(starts_within(&mut client, job, "2 hours"));
    assert_eq!(call(&mut client, ""), job);
    assert_eq!(timing(&mut client, job), None);
}

#[test]
fn the_jobs_of_a_call_and_the_tasks_of_a_flow_have_their_own_times() {
    let (mut client, q) = queue("executor => 'sql'");
    client.run(&format!("SET pg_queue.superuser_jobs = on; SELECT queue.pause('{q}')"));
    let command: i64 = client.value(&format!(
        "SELECT queue.enqueue_sql('{q}', 'SELECT 1', unique_key => 'k', start_within => '1 day', max_delay => '1 hour')"
    ));
    assert!(starts_within(&mut client, command, "24 hours"));
    let (mut client, q) = queue("");
    client.run(&format!("SELECT queue.enqueue_many('{q}', '{{1,2}}', start_within => '1 hour')"));
    client.run(&format!(
        r#"SELECT queue.enqueue_batch('{q}',
               '[{{}}, {{"start_within": "2 hours"}}, {{"start_by": "2100-01-01 00:00Z"}}]')"#
    ));
    client.run(&format!(
        r#"SELECT queue.enqueue_flow('{q}', '[{{"task": "a", "start_within": "3 hours"}}, {{"task": "b"}}]',
               start_within => '4 hours')"#
    ));
    let said: Vec<Option<String>> = client
        .column(&format!("SELECT timing ->> 'start_within' FROM queue.jobs WHERE queue_name = '{q}' ORDER BY job_id"));
    let said: Vec<_> = said.iter().map(Option::as_deref).collect();
    let [one, two, three, four] = [1, 2, 3, 4].map(|hours| format!("{hours:02}:00:00"));
    assert_eq!(said, [Some(&*one), Some(&*one), None, Some(&*two), None, Some(&*four), Some(&*three), None]);
}
