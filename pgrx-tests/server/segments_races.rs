//! What may go wrong while segments are closed, moved out of, copied and emptied: each meeting of the storage
//! duty with somebody else, one by one. The background worker is switched off where its steps are to be seen one
//! at a time: `queue.maintain()` does one step a call.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use postgres::Client;
use queue_tests::error;
use queue_tests::{Cluster, wait};

use crate::random::{self, Random};
use crate::segments::{StopAtEnd, cluster, fillings, int};

/// Attempts after which a segment is closed.
const ROWS: i64 = 1000;

/// A server on which nothing happens to the segments but by `maintain`.
fn still(lines: &[&str]) -> Cluster {
    let lines: Vec<&str> = ["pg_queue.worker = off"].iter().chain(lines).copied().collect();
    cluster(&lines)
}

/// One step of the storage duty, and whatever else is due.
fn maintain(client: &mut Client) {
    client.batch_execute("SELECT queue.maintain()").unwrap();
}

/// Makes steps until a condition is true.
fn drive(client: &mut Client, what: &str, condition: &str) {
    wait::until(what, || {
        if is(client, condition) {
            return Some(());
        }
        maintain(client);
        None
    });
}

fn is(client: &mut Client, condition: &str) -> bool {
    client.query_one(&format!("SELECT {condition}"), &[]).unwrap_or_else(|e| panic!("{condition}: {e}")).get(0)
}

fn run(client: &mut Client, sql: &str) {
    client.batch_execute(sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
}

/// A condition: the segment is in one of these states now.
fn in_state(segment: i64, states: &str) -> String {
    format!("(SELECT state IN ({states}) FROM queue.segment_log WHERE segment = {segment} ORDER BY entry DESC LIMIT 1)")
}

/// The young segment that is open.
fn open_segment(client: &mut Client) -> i64 {
    int(
        client,
        "SELECT segment::bigint FROM (SELECT DISTINCT ON (segment) segment, state FROM queue.segment_log
         ORDER BY segment, entry DESC) AS s WHERE state = 'o' AND segment < 8",
    )
}

/// Enqueues so many jobs in one transaction.
fn enqueue(client: &mut Client, count: i64, options: &str) {
    let sql = format!(
        "SELECT count(*) FROM queue.enqueue_many('q', array_fill('{{}}'::jsonb, ARRAY[$1::bigint::int]){options})"
    );
    client.query(&sql, &[&count]).unwrap();
}

/// Claims up to so many and completes them.
fn work_off(client: &mut Client, count: i64) -> i64 {
    let sql = "SELECT count(*) FROM queue.complete_many(ARRAY(SELECT id FROM queue.claim('q', $1::bigint::int)))";
    client.query_one(sql, &[&count]).unwrap().get(0)
}

/// Fills the open segment with jobs that are done, so that it will be closed at the next step.
fn fill(client: &mut Client) {
    enqueue(client, ROWS, ", priority => -5");
    assert_eq!(work_off(client, ROWS), ROWS);
}

/// Fills the open segment and has the ring turn, with or without a worker, until it was filled so many times.
fn turn(client: &mut Client, times: i64) {
    for _ in 0..times {
        let before = fillings(client);
        fill(client);
        wait::until("the next segment is open", || {
            maintain(client);
            (fillings(client) > before).then_some(())
        });
    }
}

fn claim_one(client: &mut Client) -> Option<(i64, i64)> {
    client.query_opt("SELECT id, job_id FROM queue.claim('q')", &[]).unwrap().map(|row| (row.get(0), row.get(1)))
}

/// A payload that is stored outside its row.
const LARGE: &str =
    "(SELECT jsonb_build_object('text', string_agg(md5(n::text), '')) FROM generate_series(1, $SIZE) AS n)";

fn large(pieces: i64) -> String {
    LARGE.replace("$SIZE", &pieces.to_string())
}

#[test]
fn a_payload_referred_to_outlives_the_segment_that_it_lies_in_also_for_an_ended_job() {
    let cluster = still(&[]);
    let mut client = cluster.connect();
    for pieces in [70, 300, 30_000] {
        let sql = format!("SELECT queue.enqueue('q', {})", large(pieces));
        let job = int(&mut client, &sql);
        let payload = large(pieces);
        let (id, _) = claim_one(&mut client).unwrap();
        let first = open_segment(&mut client);
        fill(&mut client);
        drive(&mut client, "the segment is closed", &in_state(first, "'c'"));
        run(&mut client, &format!("SELECT queue.fail({id}, 'once')"));
        let (second, _) = claim_one(&mut client).unwrap();
        run(&mut client, &format!("SELECT queue.complete({second})"));
        let is_whole = format!("(SELECT payload = {payload} FROM queue.job({job}))");
        drive(&mut client, "the first attempt's segment is empty", &in_state(first, "'f'"));
        assert!(is(&mut client, &is_whole), "{pieces}: the view");
        // The second attempt's segment goes to history, with the payload.
        let segment = open_segment(&mut client);
        fill(&mut client);
        drive(&mut client, "the second attempt's segment is empty", &in_state(segment, "'f'"));
        assert!(is(&mut client, &is_whole), "{pieces}: history");
        run(&mut client, &format!("SELECT queue.retry({job})"));
        let sql = format!("SELECT id, payload = {payload} FROM queue.claim('q')");
        let row = client.query_one(&sql, &[]).unwrap();
        assert!(row.get::<_, Option<bool>>(1).unwrap_or(false), "{pieces}: the retried job has lost its payload");
        run(&mut client, &format!("SELECT queue.complete({})", row.get::<_, i64>(0)));
        assert_eq!(int(&mut client, &format!("SELECT count(*) FROM queue.jobs WHERE job_id = {job}")), 1);
    }
}

#[test]
fn the_ring_goes_on_without_the_segment_of_a_slow_producer() {
    for end in ["COMMIT", "ROLLBACK"] {
        let cluster = cluster(&[]);
        let mut client = cluster.connect();
        let mut slow = cluster.connect();
        run(
            &mut slow,
            "BEGIN; SAVEPOINT s; SELECT queue.enqueue('q', '{}'); ROLLBACK TO s; SELECT queue.enqueue('q', '{}')",
        );
        turn(&mut client, 20);
        assert!(is(&mut client, &in_state(0, "'c'")), "the segment has been moved out of");
        run(&mut slow, end);
        drive(&mut client, "the slow producer's segment is empty", &in_state(0, "'f', 'o'"));
        let found = claim_one(&mut client);
        assert_eq!(found.is_some(), end == "COMMIT", "{end}");
        assert!(claim_one(&mut client).is_none());
    }
}

#[test]
fn the_ring_goes_on_without_the_segment_of_a_slow_worker() {
    for (before, inside) in [("", "claim"), ("claim", "complete"), ("claim", "fail"), ("claim", "progress")] {
        for end in ["COMMIT", "ROLLBACK"] {
            let cluster = cluster(&[]);
            let mut client = cluster.connect();
            let mut slow = cluster.connect();
            let job = int(&mut client, "SELECT queue.enqueue('q', '{}')");
            let mut id = 0;
            if before == "claim" {
                id = claim_one(&mut slow).unwrap().0;
            }
            run(&mut slow, "BEGIN");
            match inside {
                "claim" => id = claim_one(&mut slow).unwrap().0,
                "complete" => run(&mut slow, &format!("SELECT queue.complete({id})")),
                "fail" => run(&mut slow, &format!("SELECT queue.fail({id}, 'no', fatal => true)")),
                _ => run(&mut slow, &format!("SELECT queue.progress({id}, '7')")),
            }
            let what = format!("{before}, {inside}, {end}");
            turn(&mut client, 20);
            assert!(!is(&mut client, &in_state(0, "'f', 'o'")), "{what}: the segment was emptied under a lock");
            run(&mut slow, end);
            drive(&mut client, "the slow worker's segment is empty", &in_state(0, "'f', 'o'"));
            let state: String = client.query_one(&format!("SELECT state FROM queue.job({job})"), &[]).unwrap().get(0);
            let expected = match (inside, end) {
                ("claim", "ROLLBACK") => "ready",
                ("complete", "COMMIT") => "completed",
                ("fail", "COMMIT") => "dead",
                _ => "running",
            };
            assert_eq!(state, expected, "{what}");
            if inside == "progress" {
                let sql = format!("(SELECT progress IS NOT DISTINCT FROM $x FROM queue.job({job}))");
                let progress = if end == "COMMIT" { "'7'::jsonb" } else { "NULL" };
                assert!(is(&mut client, &sql.replace("$x", progress)), "{what}: the note");
            }
            if expected == "running" {
                run(&mut slow, &format!("SELECT queue.complete({id})"));
            } else if expected == "ready" {
                assert_eq!(claim_one(&mut client).map(|found| found.1), Some(job), "{what}");
            }
            assert!(claim_one(&mut client).is_none(), "{what}");
            assert_eq!(int(&mut client, &format!("SELECT count(*) FROM queue.jobs WHERE job_id = {job}")), 1);
        }
    }
}

#[test]
fn prepared_producers_fill_segments_too_and_hold_them() {
    let cluster = cluster(&["max_prepared_transactions = 10"]);
    let mut client = cluster.connect();
    run(&mut client, "BEGIN; SELECT queue.enqueue('q', '{}'); PREPARE TRANSACTION 'slow'");
    for n in 0..20 {
        let before = fillings(&mut client);
        run(&mut client, "BEGIN");
        enqueue(&mut client, ROWS, "");
        run(&mut client, &format!("PREPARE TRANSACTION 'p{n}'"));
        run(&mut client, &format!("COMMIT PREPARED 'p{n}'"));
        assert_eq!(work_off(&mut client, ROWS), ROWS);
        wait::until("the next segment is open", || (fillings(&mut client) > before).then_some(()));
    }
    assert!(is(&mut client, &in_state(0, "'c'")));
    drop(client);
    // Its locks are there again after a crash.
    cluster.kill_server();
    cluster.start_again();
    let mut client = cluster.connect();
    turn(&mut client, 9);
    assert!(is(&mut client, &in_state(0, "'c'")));
    run(&mut client, "COMMIT PREPARED 'slow'");
    drive(&mut client, "the segment is empty", &in_state(0, "'f', 'o'"));
    assert!(claim_one(&mut client).is_some());
    assert!(claim_one(&mut client).is_none());
}

#[test]
fn a_step_that_is_rolled_back_is_done_again() {
    let cluster = still(&[]);
    let mut client = cluster.connect();
    // Those that live come first, and the first batch does not come to the end.
    run(&mut client, "BEGIN");
    enqueue(&mut client, 400, ", priority => 5");
    enqueue(&mut client, 11_600, "");
    run(&mut client, "COMMIT");
    assert_eq!(work_off(&mut client, 11_600), 11_600);
    drive(&mut client, "the living begin to move", &in_state(0, "'m'"));
    for _ in 0..3 {
        let sql = "SELECT count(*) / (count(*) - count(*)) FROM queue.maintain()";
        let error = client.query(sql, &[]).unwrap_err();
        assert_eq!(error::code(&error), "22012");
    }
    assert!(is(&mut client, &in_state(0, "'m'")));
    drive(&mut client, "the segment is empty", &in_state(0, "'f'"));
    assert_eq!(int(&mut client, "SELECT ready FROM queue.stats"), 400);
    assert_eq!(work_off(&mut client, 12_000), 400);
}

#[test]
fn a_claim_that_passes_by_a_batch_which_is_rolled_back_finds_its_jobs_later() {
    let cluster = still(&[]);
    let mut client = cluster.connect();
    run(&mut client, "BEGIN");
    enqueue(&mut client, 400, ", priority => 5");
    enqueue(&mut client, 11_600, "");
    run(&mut client, "COMMIT");
    assert_eq!(work_off(&mut client, 11_600), 11_600);
    drive(&mut client, "the living begin to move", &in_state(0, "'m'"));
    drop(client);
    // Memory knows nothing, so that who claims reads the logs.
    cluster.restart();
    let mut client = cluster.connect();
    // The batch stays open, its marks with it.
    let mut mover = cluster.connect();
    let pid = int(&mut mover, "SELECT pg_backend_pid()::bigint");
    thread::scope(|scope| {
        scope.spawn(move || {
            mover.query("SELECT count(*), pg_sleep(60) FROM queue.maintain()", &[]).unwrap_err();
        });
        wait::until("the batch is open", || {
            let sql =
                format!("(SELECT coalesce(wait_event = 'PgSleep', false) FROM pg_stat_activity WHERE pid = {pid})");
            is(&mut client, &sql).then_some(())
        });
        assert!(claim_one(&mut client).is_none(), "a job was claimed while its mark was open");
        run(&mut client, &format!("SELECT pg_cancel_backend({pid})"));
    });
    assert_eq!(work_off(&mut client, 12_000), 400);
}

#[test]
fn a_job_is_found_where_it_ended_last_and_not_where_it_began() {
    let cluster = still(&[]);
    let mut client = cluster.connect();
    run(&mut client, "SELECT queue.create('short', retention => '0', dead_retention => '0', backoff_base => '0')");
    let mut jobs = Vec::new();
    for name in ["q", "short"] {
        // The first attempt lies in old, which is not emptied for a long time.
        let job = int(&mut client, &format!("SELECT queue.enqueue('{name}', '{{\"n\": 1}}', delay => '10 days')"));
        run(&mut client, &format!("SELECT queue.reschedule({job}, now() + interval '11 days')"));
        run(&mut client, &format!("SELECT queue.reschedule({job}, now())"));
        let id: i64 = client.query_one("SELECT id FROM queue.claim($1)", &[&name]).unwrap().get(0);
        run(&mut client, &format!("SELECT queue.complete({id})"));
        jobs.push(job);
    }
    turn(&mut client, 1);
    drive(&mut client, "the young segment is empty", &in_state(0, "'f'"));
    let [kept, gone] = jobs[..] else { unreachable!() };
    let count =
        |client: &mut Client, job| int(client, &format!("SELECT count(*) FROM queue.jobs WHERE job_id = {job}"));
    assert_eq!((count(&mut client, kept), count(&mut client, gone)), (1, 0));
    let error = client.query("SELECT queue.retry($1)", &[&gone]).unwrap_err();
    assert_eq!(error::code(&error), "P0002");
    let error = client.query("SELECT queue.cancel($1)", &[&kept]).unwrap_err();
    assert_eq!(error::detail(&error), Some("It was already completed."));
    run(&mut client, &format!("SELECT queue.retry({kept})"));
    assert_eq!(count(&mut client, kept), 1);
    assert!(is(&mut client, &format!("(SELECT state = 'ready' FROM queue.job({kept}))")));
    let (id, job) = claim_one(&mut client).unwrap();
    assert_eq!(job, kept);
    run(&mut client, &format!("SELECT queue.complete({id})"));
    assert_eq!(count(&mut client, kept), 1);
}

#[test]
fn the_ring_turns_again_when_it_may() {
    let cluster = cluster(&["pg_queue.reclaim = off"]);
    let mut client = cluster.connect();
    for _ in 0..12 {
        fill(&mut client);
    }
    wait::until("all segments are full", || (fillings(&mut client) == 9).then_some(()));
    for _ in 0..3 {
        fill(&mut client);
    }
    run(&mut client, "ALTER SYSTEM SET pg_queue.reclaim = on");
    run(&mut client, "SELECT pg_reload_conf()");
    wait::until("the ring has turned", || (fillings(&mut client) > 9).then_some(()));
}
