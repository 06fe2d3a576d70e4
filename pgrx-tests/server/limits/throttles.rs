//! Throttles: after one worker's 429 no worker starts jobs of the queue or of the group.

use crate::shared::*;

fn throttle(client: &mut Client, arguments: &str) -> Option<f64> {
    client.value(&format!("SELECT extract(epoch FROM queue.throttle({arguments}) - clock_timestamp())::float8"))
}

fn groups(client: &mut Client, queue: &str, most: usize) -> Vec<String> {
    client.column(&format!("SELECT coalesce(group_key, '') FROM queue.claim('{queue}', {most})"))
}

#[test]
fn no_session_starts_a_job_until_the_time_has_come() {
    let (mut client, queue) = queue("lease => '1 hour'");
    client.run(&format!("SELECT count(queue.enqueue('{queue}')) FROM generate_series(1, 10)"));
    // A rollback of the transaction that throttles does not end the throttle.
    client.run(&format!("BEGIN; SELECT queue.throttle('{queue}', '2 s'); ROLLBACK"));
    let since = Instant::now();
    assert_eq!(connect().count(&format!("SELECT FROM queue.claim('{queue}')")), 0);
    assert_eq!(connect().count(&format!("SELECT FROM queue.claim_any(ARRAY['{queue}'])")), 0);
    // A sleeping claim gets its job when the time has come. Producers do not wait.
    client.enqueue(&queue);
    let claimed = client.count(&format!("SELECT FROM queue.claim('{queue}', wait => '60 s')"));
    let waited = since.elapsed();
    assert!(claimed == 1 && waited >= Duration::from_millis(1_900) && waited < Duration::from_secs(30), "{waited:?}");
    // The later of two throttles counts, and 0 ends it. `queue.load` and the metric show it.
    let shown = |client: &mut Client, until: &str| -> bool {
        client.value(&format!("SELECT coalesce(throttled_until {until}, false) FROM queue.load('{queue}')"))
    };
    let metric = format!(
        "SELECT value FROM queue.metrics() WHERE name = 'pg_queue_throttled_seconds' AND labels ->> 'queue' = '{queue}'"
    );
    assert!(shown(&mut client, "IS NULL"));
    assert_eq!(client.value::<f64>(&metric), 0.0);
    assert!(throttle(&mut client, &format!("'{queue}', '1 hour'")).unwrap() > 3_500.0);
    assert!(shown(&mut client, "> now() + interval '58 minutes'"));
    assert!(client.value::<f64>(&metric) > 3_500.0);
    assert!(throttle(&mut client, &format!("'{queue}', '1 s'")).unwrap() > 3_500.0);
    let claim = format!("SELECT id FROM queue.claim('{queue}', wait => '60 s')");
    let sleeper = asleep::<i64>(&mut client, connect(), claim);
    assert_eq!(throttle(&mut client, &format!("'{queue}', '0'")), None);
    assert_eq!(sleeper.join().unwrap().len(), 1);
}

#[test]
fn a_throttled_group_waits_and_the_others_go_on() {
    for options in ["fair_share => 'jobs'", "max_running_per_group => 5", "rate_limit_per_group => 1000"] {
        let (mut client, queue) = queue(&format!("lease => '1 hour', {options}"));
        for group in ["a", "b"] {
            client.run(&format!(
                "SELECT count(queue.enqueue('{queue}', group_key => '{group}')) FROM generate_series(1, 5)"
            ));
        }
        assert!(throttle(&mut client, &format!("'{queue}', '1 hour', 'a'")).unwrap() > 3_500.0);
        assert_eq!(groups(&mut client, &queue, 10), ["b"; 5], "{options}");
        client.run(&format!("SELECT queue.enqueue('{queue}', group_key => 'a')"));
        assert_eq!(groups(&mut client, &queue, 10), [""; 0], "{options}");
        let shown = format!("SELECT throttled_until > now() FROM queue.groups('{queue}') WHERE group_key = 'a'");
        assert!(client.value::<bool>(&shown), "{options}");
        assert_eq!(throttle(&mut client, &format!("'{queue}', '0', 'a'")), None);
        // A group without waiting jobs can be throttled too.
        throttle(&mut client, &format!("'{queue}', '1 s', 'c'"));
        client.run(&format!("SELECT queue.enqueue('{queue}', group_key => 'c')"));
        let mut claimed = groups(&mut client, &queue, 10);
        claimed.sort_unstable();
        assert!(claimed.iter().all(|group| group == "a"), "{options}: {claimed:?}");
        wait::until_true("the group goes on", || groups(&mut client, &queue, 10).contains(&"c".to_owned()));
    }
}

#[test]
fn wrong_throttles_are_refused() {
    let (mut client, queue) = queue("");
    for (arguments, code) in [
        (format!("'{queue}', '-1 s'"), "22023"),
        (format!("'{queue}', '25 hours'"), "22023"),
        (format!("'{queue}', NULL"), "22004"),
        ("NULL, '1 s'".to_owned(), "22004"),
        ("'nowhere', '1 s'".to_owned(), "42704"),
        (format!("'{queue}', '1 s', 'a'"), "55000"),
    ] {
        client.refused(&format!("SELECT queue.throttle({arguments})"), code);
    }
    client.run(&format!("SELECT queue.alter('{queue}', fair_share => 'jobs')"));
    client.refused(&format!("SELECT queue.throttle('{queue}', '1 s', repeat('x', 3000))"), "22023");
    client.refused(&format!("SELECT * FROM queue.groups('{queue}', 0)"), "22023");
    client.refused(&format!("SELECT * FROM queue.groups('{queue}', 1001)"), "22023");
}

/// A release that throttles for its delay neither ends another worker's throttle nor fails because of a long delay.
#[test]
fn a_release_throttles_for_its_delay_at_most_a_day() {
    let (mut client, queue) = queue("lease => '1 hour'");
    client.run(&format!("SELECT count(queue.enqueue('{queue}')) FROM generate_series(1, 5)"));
    let release = |client: &mut Client, id: i64, delay: &str| {
        let ends = format!(r#"[{{"release": {{"id": {id}, "throttle": "queue"{delay}}}}}]"#);
        client.run(&format!("SELECT queue.end_batch('{ends}')"));
    };
    let ids: Vec<i64> = client.column(&format!("SELECT id FROM queue.claim('{queue}', 2)"));
    throttle(&mut client, &format!("'{queue}', '1 hour'"));
    release(&mut client, ids[0], "");
    assert_eq!(groups(&mut client, &queue, 5).len(), 0);
    throttle(&mut client, &format!("'{queue}', '0'"));
    release(&mut client, ids[1], r#", "delay": "3 days""#);
    let left = throttle(&mut client, &format!("'{queue}', '1 s'")).unwrap();
    assert!((86_000.0..86_401.0).contains(&left), "{left}");
}

/// Throttles stay while other queues and groups come and go. The throttles of one queue leave room for those of others.
#[test]
fn throttles_stay_while_memory_is_short_and_leave_room() {
    let settings = ["pg_queue.max_lanes = 16", "pg_queue.max_running = 64", "pg_queue.max_rated_groups = 16"];
    let (_cluster, mut client) = Cluster::with(&settings).start_with_extension();
    for n in 0..40 {
        create(&mut client, &format!("q{n}"), "");
        client.enqueue(&format!("q{n}"));
    }
    throttle(&mut client, "'q0', '1 hour'");
    for n in 1..40 {
        assert_eq!(groups(&mut client, &format!("q{n}"), 1).len(), 1);
    }
    assert_eq!(groups(&mut client, "q0", 1).len(), 0);
    create(&mut client, "many", "max_running_per_group => 1");
    create(&mut client, "few", "max_running_per_group => 1");
    client.run("SELECT queue.enqueue('few', group_key => 'a')");
    let mut throttled = 0;
    while client.batch_execute(&format!("SELECT queue.throttle('many', '1 hour', 'g{throttled}')")).is_ok() {
        throttled += 1;
    }
    assert!(throttled > 20, "{throttled}");
    assert!(throttle(&mut client, "'few', '1 hour', 'a'").is_some());
    client.run("SELECT count(queue.enqueue('few', group_key => 'n' || n)) FROM generate_series(1, 100) AS n");
    for _ in 0..10 {
        let ids: Vec<(String, i64)> = client.rows("SELECT group_key, id FROM queue.claim('few', 10)");
        assert!(ids.iter().all(|(group, _)| group != "a"));
        ids.iter().for_each(|(_, id)| client.run(&format!("SELECT queue.complete({id})")));
    }
}
