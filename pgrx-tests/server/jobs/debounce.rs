//! A debounced job with `max_delay` runs in time, however often its key is enqueued and whatever else happens to the
//! job.

use crate::durability::restore;
use crate::jobs::timing::segments;
use crate::shared::*;
use crate::storage::segments_races::turn;

/// Enqueues under key `k`. Returns the job.
fn call(client: &mut Client, q: &str, delay: &str, more: &str) -> i64 {
    client.value(&format!(
        "SELECT queue.enqueue('{q}', unique_key => 'k', on_duplicate => 'replace', delay => '{delay}'{more})"
    ))
}

const HOUR: &str = ", max_delay => '1 hour'";

/// Makes the first enqueue under the key. It would delay the job by a day.
fn first(client: &mut Client, q: &str) -> i64 {
    call(client, q, "1 day", HOUR)
}

/// Returns the start of the job's `max_delay`.
fn since(client: &mut Client, job: i64) -> String {
    client.value(&format!("SELECT timing ->> 'delayed_since' FROM queue.job({job})"))
}

/// Returns the time from the start of the job's `max_delay` until the job is due.
fn put_off(client: &mut Client, job: i64) -> String {
    client.value(&format!("SELECT (run_at - (timing ->> 'delayed_since')::timestamptz)::text FROM queue.job({job})"))
}

/// Checks that another enqueue keeps the bound of the first one.
#[track_caller]
fn check_bound(client: &mut Client, q: &str, job: i64, known: &str) {
    assert_eq!(call(client, q, "1 day", HOUR), job);
    assert_eq!((since(client, job).as_str(), put_off(client, job).as_str()), (known, "01:00:00"));
}

/// Checks that another enqueue starts a new bound.
#[track_caller]
fn check_anew(client: &mut Client, q: &str, job: i64, known: &str) {
    assert_eq!(call(client, q, "1 day", HOUR), job);
    assert_ne!(since(client, job), known);
    assert_eq!(put_off(client, job), "01:00:00");
}

#[test]
fn the_bound_counts_from_the_first_call() {
    let (mut client, q) = queue("");
    let job = first(&mut client, &q);
    let known = since(&mut client, job);
    assert_eq!(put_off(&mut client, job), "01:00:00", "the first call is bounded, too");
    check_bound(&mut client, &q, job, &known);
    // Each enqueue has its own bound, counted from the same start.
    assert_eq!(call(&mut client, &q, "1 day", ", max_delay => '2 hours', headers => '{\"a\": 1}'"), job);
    assert_eq!((since(&mut client, job), put_off(&mut client, job)), (known.clone(), "02:00:00".to_owned()));
    assert_eq!(client.value::<String>(&format!("SELECT headers ->> 'a' FROM queue.job({job})")), "1");
    // A shorter delay is kept as it is.
    call(&mut client, &q, "1 second", HOUR);
    assert!(client.value::<bool>(&format!("SELECT run_at < now() + '2 s'::interval FROM queue.job({job})")));
    // If the bound has passed, the job is due immediately.
    client.run("SELECT pg_sleep(0.01)");
    assert_eq!(call(&mut client, &q, "1 day", ", max_delay => '10 ms'"), job);
    assert_eq!(client.state(job), "ready");
    // An enqueue without `max_delay` has no bound. The next one with `max_delay` starts a new bound.
    call(&mut client, &q, "1 day", "");
    assert!(client.value::<bool>(&format!("SELECT run_at > now() + '23 hours'::interval FROM queue.job({job})")));
    check_anew(&mut client, &q, job, &known);
}

#[test]
fn a_job_runs_while_calls_keep_coming() {
    let (mut client, q) = queue("");
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        let calls = || {
            let mut producer = connect();
            while !stop.load(Ordering::Relaxed) {
                call(&mut producer, &q, "10 minutes", ", max_delay => '1 second'");
            }
        };
        scope.spawn(calls);
        // Without the bound the job would never be due.
        let claim = format!("SELECT id FROM queue.claim('{q}', wait => '10 s')");
        let found = client.query(&claim, &[]).unwrap();
        assert_eq!(found.len(), 1, "it is claimed");
        let id: i64 = found[0].get(0);
        // An enqueue during the run requests another run, which is bounded too.
        thread::sleep(Duration::from_millis(200));
        client.run(&format!("SELECT queue.complete({id})"));
        assert_eq!(client.query(&claim, &[]).unwrap().len(), 1);
    });
}

#[test]
fn calls_of_one_batch_have_the_effect_of_single_calls_in_order() {
    let (mut client, q) = queue("");
    let one = r#"{"unique_key": "k", "on_duplicate": "replace", "delay": "1 day", "max_delay": "1 hour"}"#;
    let ids: Vec<i64> = client.column(&format!("SELECT queue.enqueue_batch('{q}', '[{one}, {one}]')"));
    assert_eq!(ids[0], ids[1]);
    assert_eq!(put_off(&mut client, ids[0]), "01:00:00");
    let known = since(&mut client, ids[0]);
    client.run(&format!("SELECT queue.enqueue_batch('{q}', '[{one}, {one}]')"));
    check_bound(&mut client, &q, ids[0], &known);
}

#[test]
fn a_run_ends_the_bound_and_calls_during_it_start_a_new_one() {
    let (mut client, q) = queue("");
    let job = first(&mut client, &q);
    let known = since(&mut client, job);
    let now = |client: &mut Client| client.run(&format!("SELECT queue.reschedule({job}, now())"));
    // A failed run: its retry keeps the start, and the next enqueue starts a new bound.
    now(&mut client);
    let id = client.claim(&q);
    client.run(&format!("SELECT queue.fail({id}, 'no', retry_in => '1 day')"));
    assert_eq!(since(&mut client, job), known, "a retry keeps it");
    check_anew(&mut client, &q, job, &known);
    // After a run, the first enqueue during the run is the start.
    let known = since(&mut client, job);
    now(&mut client);
    let id = client.claim(&q);
    assert_eq!(first(&mut client, &q), job);
    let during: String = client.value("SELECT clock_timestamp()::text");
    client.run("SELECT pg_sleep(0.01)");
    first(&mut client, &q);
    client.run(&format!("SELECT queue.complete({id})"));
    assert_eq!(put_off(&mut client, job), "01:00:00");
    let second = since(&mut client, job);
    assert_ne!(second, known);
    assert!(client.value::<bool>(&format!("SELECT '{second}'::timestamptz <= '{during}'")), "{second} {during}");
    check_bound(&mut client, &q, job, &second);
    // An uncommitted claim also counts as a run.
    now(&mut client);
    let mut worker = connect();
    worker.run("BEGIN");
    let id = worker.claim(&q);
    first(&mut client, &q);
    worker.run(&format!("SELECT queue.complete({id}); COMMIT"));
    assert_eq!(put_off(&mut client, job), "01:00:00");
    assert_ne!(since(&mut client, job), second);
    // A released job counts as not run.
    let known = since(&mut client, job);
    now(&mut client);
    let id = client.claim(&q);
    client.run(&format!("SELECT queue.release({id}, '1 day')"));
    check_bound(&mut client, &q, job, &known);
}

#[test]
fn an_open_change_of_the_waiting_job_does_not_put_it_off_further() {
    let (mut client, q) = queue("");
    let job = first(&mut client, &q);
    let known = since(&mut client, job);
    for end in ["COMMIT", "ROLLBACK"] {
        let mut manager = connect();
        manager.run(&format!("BEGIN; SELECT queue.reprioritize({job}, 5)"));
        assert_eq!(first(&mut client, &q), job);
        manager.run(end);
        client.maintain_until(&format!("priority = 0 AND attempt = 1 FROM queue.job({job})"));
        assert_eq!((since(&mut client, job), put_off(&mut client, job)), (known.clone(), "01:00:00".to_owned()));
    }
}

#[test]
fn verbs_that_change_a_waiting_job_keep_the_bound() {
    let (mut client, q) = queue("");
    let job = first(&mut client, &q);
    let known = since(&mut client, job);
    client.run(&format!("SELECT queue.reprioritize({job}, 5)"));
    check_bound(&mut client, &q, job, &known);
    // An operator may delay the job further. The next enqueue is bounded again.
    client.run(&format!("SELECT queue.reschedule({job}, now() + '2 days')"));
    assert!(client.value::<bool>(&format!("SELECT run_at > now() + '1 day'::interval FROM queue.job({job})")));
    check_bound(&mut client, &q, job, &known);
    client.run(&format!("SELECT queue.retry({job}, run_at => now() + '2 days')"));
    check_bound(&mut client, &q, job, &known);
    // A job that is retried by hand starts a new bound.
    client.run(&format!("SELECT queue.cancel({job})"));
    client.run(&format!("SELECT queue.retry({job}, run_at => now() + '2 days')"));
    let timing = format!("SELECT timing::text FROM queue.job({job})");
    assert_eq!(client.value::<String>(&timing), r#"{"max_delay": "01:00:00"}"#);
    check_anew(&mut client, &q, job, &known);
}

#[test]
fn a_later_stage_counts_as_a_run_and_a_held_job_does_not() {
    let (mut client, q) = queue("stages => '{a, b}'");
    let job = first(&mut client, &q);
    let known = since(&mut client, job);
    client.run(&format!("SELECT queue.reschedule({job}, now())"));
    let id = client.claim(&q);
    client.run(&format!("SELECT queue.advance({id})"));
    check_anew(&mut client, &q, job, &known);
    let (mut client, q) = queue("");
    let before = client.enqueue(&q);
    let held: i64 = client.value(&format!(
        "SELECT queue.enqueue('{q}', unique_key => 'k', delay => '1 day'{HOUR}, after => ARRAY[{before}])"
    ));
    let known = since(&mut client, held);
    check_bound(&mut client, &q, held, &known);
}

#[test]
fn copies_of_events_are_bounded() {
    let (mut client, q) = queue("");
    client.run(&format!("SELECT queue.create_topic('t{q}'); SELECT queue.bind('t{q}', '{q}')"));
    let publish = |client: &mut Client| -> i64 {
        client.value(&format!(
            "SELECT job_id FROM queue.publish('t{q}', unique_key => 'k', on_duplicate => 'replace', \
             delay => '1 day'{HOUR})"
        ))
    };
    let job = publish(&mut client);
    let known = since(&mut client, job);
    assert_eq!(publish(&mut client), job);
    assert_eq!((since(&mut client, job), put_off(&mut client, job)), (known, "01:00:00".to_owned()));
}

#[test]
fn the_bound_survives_crashes_moves_and_dumps() {
    let (cluster, mut client) =
        Cluster::with(&["pg_queue.segment_rows = 1000", "pg_queue.reclaim_delay = 0", "pg_queue.restore_quiet = 1"])
            .start_with_database("app");
    create(&mut client, "q", "");
    create(&mut client, "d", "");
    let job = first(&mut client, "d");
    let known = since(&mut client, job);
    // A due job lies in a segment that is reclaimed soon.
    call(&mut client, "d", "1 ms", HOUR);
    let before = segments(&mut client, &[job]);
    turn(&mut client, 12);
    let after = segments(&mut client, &[job]);
    assert!(!after.is_empty() && before.iter().any(|segment| !after.contains(segment)), "{before:?} {after:?}");
    check_bound(&mut client, "d", job, &known);
    cluster.crash(client.pid());
    let mut client = cluster.connect_to("app");
    check_bound(&mut client, "d", job, &known);
    let mut copy = restore_copy(&cluster, "app");
    restore::wait_awake(&mut copy);
    check_bound(&mut copy, "d", job, &known);
}

#[test]
fn wrong_values_of_max_delay_are_refused() {
    let (mut client, q) = queue("");
    let key = "unique_key => 'k', on_duplicate => 'replace'";
    for (more, message) in [
        (format!("{key}, max_delay => '0'"), "max_delay must be positive"),
        (format!("{key}, max_delay => '-1 s'"), "max_delay must be positive"),
        (format!("{key}, max_delay => '178000000 years'"), "max_delay must be finite"),
        ("max_delay => '1 s'".to_owned(), "max_delay needs a unique_key"),
    ] {
        assert_eq!(client.refused(&format!("SELECT queue.enqueue('{q}', {more})"), "22023").message, message);
    }
    // A very large `max_delay` is accepted.
    call(&mut client, &q, "1 day", ", max_delay => '200000 years'");
    client.refused(&format!("SELECT queue.enqueue_flow('{q}', unique_key => 'f', max_delay => '1 s')"), "42883");
}
