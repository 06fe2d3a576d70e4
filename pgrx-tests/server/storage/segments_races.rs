//! What may go wrong while segments are closed, moved out of, copied and emptied: each meeting of the storage
//! duty with somebody else, one by one. The background worker is switched off where its steps are to be seen one
//! at a time: `queue.maintain()` does one step a call.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use postgres::Client;
use queue_tests::error;
use queue_tests::{Cluster, StopAtEnd, wait};

use crate::random::{self, Random};
use crate::shared::{Sql, retry_dead};
use crate::storage::segments::{cluster, fillings};

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
    client.query_one(&format!("SELECT {condition}"), &[]).unwrap_or_else(|e| panic!("{condition}: {e:?}")).get(0)
}

/// A condition: the segment is in one of these states now.
fn in_state(segment: i64, states: &str) -> String {
    format!("(SELECT state IN ({states}) FROM queue.segment_log WHERE segment = {segment} ORDER BY entry DESC LIMIT 1)")
}

/// The young segment that is open.
fn open_segment(client: &mut Client) -> i64 {
    client.value::<i64>(
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
    let sql = "SELECT count(*) FROM queue.complete_many(ARRAY(SELECT id FROM queue.claim('q', $1::bigint::int))) \
        WHERE outcome = 'completed'";
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

/// Waits until the views show so many completed jobs. With reclaim_delay = 0 a segment may be emptied while a
/// statement reads, which misses its jobs then; the next one finds them in history.
fn wait_completed(client: &mut Client, count: i64) {
    let sql = "SELECT count(*) FROM queue.jobs WHERE state = 'completed'";
    let mut last = 0;
    wait::until(&format!("{count} jobs are seen to be completed"), || {
        let found = client.value::<i64>(sql);
        if found != last {
            eprintln!("{found} are completed");
            last = found;
        }
        (found == count).then_some(())
    });
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
        let job = client.value::<i64>(&sql);
        let payload = large(pieces);
        let (id, _) = claim_one(&mut client).unwrap();
        let first = open_segment(&mut client);
        fill(&mut client);
        drive(&mut client, "the segment is closed", &in_state(first, "'c'"));
        client.run(&format!("SELECT queue.fail({id}, 'once')"));
        let (second, _) = claim_one(&mut client).unwrap();
        client.run(&format!("SELECT queue.complete({second})"));
        let is_whole = format!("(SELECT payload = {payload} FROM queue.job({job}))");
        drive(&mut client, "the first attempt's segment is empty", &in_state(first, "'f'"));
        assert!(is(&mut client, &is_whole), "{pieces}: the view");
        // The second attempt's segment goes to history, with the payload.
        let segment = open_segment(&mut client);
        fill(&mut client);
        drive(&mut client, "the second attempt's segment is empty", &in_state(segment, "'f'"));
        assert!(is(&mut client, &is_whole), "{pieces}: history");
        client.run(&format!("SELECT queue.retry({job})"));
        let sql = format!("SELECT id, payload = {payload} FROM queue.claim('q')");
        let row = client.query_one(&sql, &[]).unwrap();
        assert!(row.get::<_, Option<bool>>(1).unwrap_or(false), "{pieces}: the retried job has lost its payload");
        client.run(&format!("SELECT queue.complete({})", row.get::<_, i64>(0)));
        assert_eq!(client.value::<i64>(&format!("SELECT count(*) FROM queue.jobs WHERE job_id = {job}")), 1);
    }
}

#[test]
fn a_payload_that_moved_with_its_attempt_is_that_of_the_next_ones() {
    let cluster = still(&[]);
    let mut client = cluster.connect();
    let payload = large(300);
    let job = client.value::<i64>(&format!("SELECT queue.enqueue('q', {payload})"));
    let is_whole = format!("(SELECT payload = {payload} FROM queue.job({job}))");
    let fail = |client: &mut Client| {
        let sql = format!("SELECT id, coalesce(payload = {payload}, false) FROM queue.claim('q')");
        let row = client.query_one(&sql, &[]).unwrap();
        assert!(row.get::<_, bool>(1), "the worker did not get the payload");
        client.run(&format!("SELECT queue.fail({}, 'again')", row.get::<_, i64>(0)));
    };
    fail(&mut client);
    client.run(&format!("SELECT queue.reprioritize({job}, 3)"));
    fill(&mut client);
    drive(&mut client, "the segment is drained", &in_state(0, "'d'"));
    // The second attempt has moved with its payload; its old row is there still.
    assert!(is(&mut client, &is_whole));
    fail(&mut client);
    assert!(is(&mut client, &is_whole));
    fail(&mut client);
    drive(&mut client, "the segment is empty", &in_state(0, "'f'"));
    fail(&mut client);
    turn(&mut client, 2);
    fail(&mut client);
    assert!(is(&mut client, &is_whole));
}

#[test]
fn a_payload_that_several_jobs_share_is_there_for_each_as_long_as_it_needs_it() {
    let cluster = still(&[]);
    let mut client = cluster.connect();
    client.run("SELECT queue.create('ends', retention => '0'), queue.create('kept'), queue.create('late')");
    client.run("SELECT queue.create_topic('t')");
    client.run(
        "SELECT queue.bind('t', queue_name, delay => CASE queue_name WHEN 'late' THEN interval '1 hour' END)
         FROM unnest('{q,ends,kept,late}'::text[]) AS queue_name",
    );
    let payload = large(10_000);
    let jobs = format!("SELECT job_id FROM queue.publish('t', {payload}) ORDER BY queue_name");
    let &[ends, kept, late, fails] = &client.column::<i64>(&jobs)[..] else { panic!("four jobs") };
    let written: i64 = client.value("SELECT count(*) FROM queue.attempt_0 WHERE payload IS NOT NULL AND job_id > 0");
    assert_eq!(written, 1, "the payload is written once");
    assert!(client.count("SELECT FROM queue.check()") == 0);
    let is_whole = |client: &mut Client, job: i64| {
        let sql = format!("(SELECT coalesce(payload = {payload}, false) FROM queue.job({job}))");
        is(client, &sql)
    };
    let fail = |client: &mut Client| {
        let sql = format!("SELECT id, coalesce(payload = {payload}, false) FROM queue.claim('q')");
        let row = client.query_one(&sql, &[]).unwrap();
        assert!(row.get::<_, bool>(1), "the worker did not get the payload");
        client.run(&format!("SELECT queue.fail({}, 'again')", row.get::<_, i64>(0)));
    };
    fail(&mut client);
    for queue in ["ends", "kept"] {
        client.run(&format!("SELECT queue.complete(id) FROM queue.claim('{queue}')"));
    }
    assert!([kept, late, fails].iter().all(|&job| is_whole(&mut client, job)));
    fill(&mut client);
    drive(&mut client, "the segment is drained", &in_state(0, "'d'"));
    fail(&mut client);
    drive(&mut client, "the segment is empty", &in_state(0, "'f'"));
    for _ in 0..3 {
        turn(&mut client, 1);
        fail(&mut client);
        assert!([kept, late, fails].iter().all(|&job| is_whole(&mut client, job)));
    }
    assert_eq!(client.count(&format!("SELECT FROM queue.jobs WHERE job_id = {ends}")), 0);
    // One copy is forgotten, the others are not.
    client.run(&format!("SELECT queue.forget({kept})"));
    assert!(!is_whole(&mut client, kept));
    assert!([late, fails].iter().all(|&job| is_whole(&mut client, job)));
    assert!(client.count("SELECT FROM queue.check()") == 0);
}

#[test]
fn what_is_forgotten_of_a_shared_payload_goes_with_the_last_job_that_has_it() {
    let cluster = still(&[]);
    let mut client = cluster.connect();
    client.run(
        "SELECT queue.create('a'), queue.create('b'), queue.create_topic('t'), queue.bind('t', 'a'), \
        queue.bind('t', 'b')",
    );
    let payload = large(10_000);
    let jobs = client.column::<i64>(&format!("SELECT job_id FROM queue.publish('t', {payload}) ORDER BY queue_name"));
    for queue in ["a", "b"] {
        client.run(&format!("SELECT queue.complete(id) FROM queue.claim('{queue}')"));
    }
    let is_there = format!("SELECT FROM queue.attempt_0 WHERE payload = {payload}");
    client.run(&format!("SELECT queue.forget({})", jobs[0]));
    assert_eq!(client.count(&is_there), 1);
    assert!(is(&mut client, &format!("(SELECT payload = {payload} FROM queue.job({}))", jobs[1])));
    client.run(&format!("SELECT queue.forget({})", jobs[1]));
    assert_eq!(client.count(&is_there), 0);
}

#[test]
fn a_request_that_came_too_late_for_an_attempt_is_served_before_the_attempts_segment_is_emptied() {
    let cluster = still(&[]);
    let mut client = cluster.connect();
    let (mut worker, mut next_worker) = (cluster.connect(), cluster.connect());
    client.run("SELECT queue.enqueue('q', '{}')");
    let (id, job) = claim_one(&mut worker).unwrap();
    let first = open_segment(&mut client);
    fill(&mut client);
    drive(&mut client, "the segment is closed", &in_state(first, "'c'"));
    let mut canceller = cluster.connect();
    canceller.run("BEGIN");
    assert!(is(&mut canceller, &format!("queue.cancel({job}) = 'cancelling'")));
    worker.run(&format!("SELECT queue.fail({id}, 'once')"));
    canceller.run("COMMIT");
    // The next attempt lies in another segment; nobody can cancel it while its claim is open.
    next_worker.run("BEGIN");
    assert_eq!(claim_one(&mut next_worker).unwrap().1, job);
    drive(&mut client, "the segment is being reclaimed", &in_state(first, "'m', 'd', 'p', 'e', 'f'"));
    for _ in 0..20 {
        maintain(&mut client);
    }
    assert!(is(&mut client, &in_state(first, "'m'")), "the segment goes on with the request in it");
    next_worker.run("ROLLBACK");
    let is_cancelled = format!("(SELECT state = 'cancelled' FROM queue.jobs WHERE job_id = {job})");
    drive(&mut client, "the job is cancelled", &is_cancelled);
    drive(&mut client, "the segment is empty", &in_state(first, "'f'"));
}

#[test]
fn the_ring_goes_on_without_the_segment_of_a_slow_producer() {
    let cluster = cluster(&[]);
    let mut client = cluster.connect();
    let mut slow = [cluster.connect(), cluster.connect()];
    for slow in &mut slow {
        let sql = "BEGIN; SAVEPOINT s; SELECT queue.enqueue('q', '{}'); ROLLBACK TO s; SELECT queue.enqueue('q', '{}')";
        slow.run(sql);
    }
    turn(&mut client, 11);
    assert!(is(&mut client, &in_state(0, "'c'")), "the segment has been moved out of");
    slow[0].run("COMMIT");
    slow[1].run("ROLLBACK");
    drive(&mut client, "the slow producers' segment is empty", &in_state(0, "'f', 'o'"));
    assert!(claim_one(&mut client).is_some());
    assert!(claim_one(&mut client).is_none());
}

#[test]
fn the_ring_goes_on_without_the_segment_of_slow_workers() {
    let cluster = cluster(&[]);
    let mut client = cluster.connect();
    let mut workers = Vec::new();
    for inside in ["claim", "complete", "fail", "progress"] {
        for end in ["COMMIT", "ROLLBACK"] {
            let mut worker = cluster.connect();
            client.run("SELECT queue.enqueue('q', '{}')");
            if inside == "claim" {
                worker.run("BEGIN");
            }
            let (id, job) = claim_one(&mut worker).unwrap();
            match inside {
                "claim" => {}
                "complete" => worker.run(&format!("BEGIN; SELECT queue.complete({id})")),
                "fail" => worker.run(&format!("BEGIN; SELECT queue.fail({id}, 'no', fatal => true)")),
                _ => worker.run(&format!("BEGIN; SELECT queue.progress({id}, '7')")),
            }
            workers.push((worker, inside, end, id, job));
        }
    }
    turn(&mut client, 11);
    for (worker, _, end, ..) in &mut workers {
        assert!(!is(&mut client, &in_state(0, "'f', 'o'")), "the segment was emptied under a lock");
        worker.run(end);
    }
    drive(&mut client, "the slow workers' segment is empty", &in_state(0, "'f', 'o'"));
    let mut given_back = 0;
    for (worker, inside, end, id, job) in &mut workers {
        let what = format!("{inside}, {end}");
        let sql = format!("SELECT state, coalesce(progress::text, '') FROM queue.job({job})");
        let row = client.query_one(&sql, &[]).unwrap();
        let expected = match (*inside, *end) {
            ("claim", "ROLLBACK") => "ready",
            ("complete", "COMMIT") => "completed",
            ("fail", "COMMIT") => "dead",
            _ => "running",
        };
        assert_eq!(row.get::<_, &str>(0), expected, "{what}");
        let progress = if (*inside, *end) == ("progress", "COMMIT") { "7" } else { "" };
        assert_eq!(row.get::<_, &str>(1), progress, "{what}: the note");
        if expected == "running" {
            worker.run(&format!("SELECT queue.complete({id})"));
        }
        given_back += i64::from(expected == "ready");
        assert_eq!(client.value::<i64>(&format!("SELECT count(*) FROM queue.jobs WHERE job_id = {job}")), 1, "{what}");
    }
    assert_eq!(work_off(&mut client, 100), given_back);
}

#[test]
fn prepared_producers_fill_segments_too_and_hold_them() {
    let cluster = cluster(&["max_prepared_transactions = 10"]);
    let mut client = cluster.connect();
    client.run("BEGIN; SELECT queue.enqueue('q', '{}'); PREPARE TRANSACTION 'slow'");
    for n in 0..10 {
        let before = fillings(&mut client);
        client.run("BEGIN");
        enqueue(&mut client, ROWS, "");
        client.run(&format!("PREPARE TRANSACTION 'p{n}'"));
        client.run(&format!("COMMIT PREPARED 'p{n}'"));
        assert_eq!(work_off(&mut client, ROWS), ROWS);
        wait::until("the next segment is open", || (fillings(&mut client) > before).then_some(()));
    }
    assert!(is(&mut client, &in_state(0, "'c'")));
    drop(client);
    // Its locks are there again after a crash.
    cluster.kill_server();
    cluster.start_again();
    let mut client = cluster.connect();
    turn(&mut client, 2);
    assert!(is(&mut client, &in_state(0, "'c'")));
    client.run("COMMIT PREPARED 'slow'");
    drive(&mut client, "the segment is empty", &in_state(0, "'f', 'o'"));
    assert!(claim_one(&mut client).is_some());
    assert!(claim_one(&mut client).is_none());
}

#[test]
fn a_step_that_is_rolled_back_is_done_again() {
    let cluster = still(&[]);
    let mut client = cluster.connect();
    // Those that live come first, and the first batch does not come to the end.
    client.run("BEGIN");
    enqueue(&mut client, 400, ", priority => 5");
    enqueue(&mut client, 11_600, "");
    client.run("COMMIT");
    assert_eq!(work_off(&mut client, 11_600), 11_600);
    drive(&mut client, "the living begin to move", &in_state(0, "'m'"));
    for _ in 0..3 {
        let sql = "SELECT count(*) / (count(*) - count(*)) FROM queue.maintain()";
        let error = client.query(sql, &[]).unwrap_err();
        assert_eq!(error::code(&error), "22012");
    }
    assert!(is(&mut client, &in_state(0, "'m'")));
    drive(&mut client, "the segment is empty", &in_state(0, "'f'"));
    assert_eq!(client.value::<i64>("SELECT ready FROM queue.stats"), 400);
    assert_eq!(work_off(&mut client, 12_000), 400);
}

#[test]
fn a_claim_that_passes_by_a_batch_which_is_rolled_back_finds_its_jobs_later() {
    let cluster = still(&[]);
    let mut client = cluster.connect();
    client.run("BEGIN");
    enqueue(&mut client, 400, ", priority => 5");
    enqueue(&mut client, 11_600, "");
    client.run("COMMIT");
    assert_eq!(work_off(&mut client, 11_600), 11_600);
    drive(&mut client, "the living begin to move", &in_state(0, "'m'"));
    drop(client);
    // Memory knows nothing, so that a claim reads the logs.
    cluster.restart();
    let mut client = cluster.connect();
    // The batch stays open, its marks with it.
    let mut mover = cluster.connect();
    let pid = mover.value::<i64>("SELECT pg_backend_pid()::bigint");
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
        client.run(&format!("SELECT pg_cancel_backend({pid})"));
    });
    assert_eq!(work_off(&mut client, 12_000), 400);
}

#[test]
fn a_job_is_found_where_it_ended_last_and_not_where_it_began() {
    let cluster = still(&[]);
    let mut client = cluster.connect();
    client.run("SELECT queue.create('short', retention => '0', dead_retention => '0', backoff_base => '0')");
    let mut jobs = Vec::new();
    for name in ["q", "short"] {
        // The first attempt lies in old, which is not emptied for a long time.
        let job = client.value::<i64>(&format!("SELECT queue.enqueue('{name}', '{{\"n\": 1}}', delay => '10 days')"));
        client.run(&format!("SELECT queue.reschedule({job}, now() + interval '11 days')"));
        client.run(&format!("SELECT queue.reschedule({job}, now())"));
        let id: i64 = client.query_one("SELECT id FROM queue.claim($1)", &[&name]).unwrap().get(0);
        client.run(&format!("SELECT queue.complete({id})"));
        jobs.push(job);
    }
    turn(&mut client, 1);
    drive(&mut client, "the young segment is empty", &in_state(0, "'f'"));
    let [kept, gone] = jobs[..] else { unreachable!() };
    let count = |client: &mut Client, job| {
        client.value::<i64>(&format!("SELECT count(*) FROM queue.jobs WHERE job_id = {job}"))
    };
    assert_eq!((count(&mut client, kept), count(&mut client, gone)), (1, 0));
    let error = client.query("SELECT queue.retry($1)", &[&gone]).unwrap_err();
    assert_eq!(error::code(&error), "P0002");
    let error = client.query("SELECT queue.cancel($1)", &[&kept]).unwrap_err();
    assert_eq!(error::detail(&error), Some("It was already completed."));
    client.run(&format!("SELECT queue.retry({kept})"));
    assert_eq!(count(&mut client, kept), 1);
    assert!(is(&mut client, &format!("(SELECT state = 'ready' FROM queue.job({kept}))")));
    let (id, job) = claim_one(&mut client).unwrap();
    assert_eq!(job, kept);
    client.run(&format!("SELECT queue.complete({id})"));
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
    client.run("ALTER SYSTEM SET pg_queue.reclaim = on");
    client.run("SELECT pg_reload_conf()");
    wait::until("the ring has turned", || (fillings(&mut client) > 9).then_some(()));
}

/// Holds the next step of the duty open for a while, in a session of its own: its batch is neither committed
/// nor rolled back while `meanwhile` runs.
fn during_a_step(cluster: &Cluster, client: &mut Client, seconds: f64, meanwhile: impl FnOnce(&mut Client)) {
    let mut mover = cluster.connect();
    let pid = mover.value::<i64>("SELECT pg_backend_pid()::bigint");
    thread::scope(|scope| {
        scope.spawn(move || {
            mover.query(&format!("SELECT count(*), pg_sleep({seconds}) FROM queue.maintain()"), &[]).unwrap();
        });
        wait::until("the step is open", || {
            let sql =
                format!("(SELECT coalesce(wait_event = 'PgSleep', false) FROM pg_stat_activity WHERE pid = {pid})");
            is(client, &sql).then_some(())
        });
        meanwhile(client);
    });
}

#[test]
fn whoever_meets_a_job_on_the_move_follows_it() {
    let cluster = still(&[]);
    let mut client = cluster.connect();
    // First attempts and later ones, waiting and running.
    enqueue(&mut client, 30, ", priority => 5");
    let claimed: Vec<i64> =
        client.query("SELECT id FROM queue.claim('q', 30)", &[]).unwrap().iter().map(|row| row.get(0)).collect();
    client.query("SELECT queue.fail_many($1, 'once', retry_in => '0')", &[&claimed]).unwrap();
    enqueue(&mut client, 30, ", priority => 6");
    fill(&mut client);
    fill(&mut client);
    // Every other job of either kind runs.
    let jobs: Vec<i64> = client
        .query("SELECT job_id FROM queue.jobs WHERE state = 'ready' ORDER BY 1", &[])
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect();
    assert_eq!(jobs.len(), 60);
    for &job in jobs.iter().skip(1).step_by(2) {
        client.run(&format!("SELECT queue.reprioritize({job}, -9)"));
    }
    let claimed = client.query("SELECT id, job_id FROM queue.claim('q', 30)", &[]).unwrap();
    let running: Vec<(i64, i64)> = claimed.iter().map(|row| (row.get(0), row.get(1))).collect();
    let waiting: Vec<i64> = jobs.iter().copied().step_by(2).collect();
    drive(&mut client, "the living begin to move", &in_state(0, "'m'"));
    let all: Vec<i64> = waiting.iter().copied().chain(running.iter().map(|&(_, job)| job)).collect();
    during_a_step(&cluster, &mut client, 1.0, |_| {
        let (waiting, running) = (&waiting, &running);
        let verb = |sql: String| {
            let mut session = cluster.connect();
            move || session.run(&sql)
        };
        thread::scope(|scope| {
            for offset in [0, 15] {
                scope.spawn(verb(format!("SELECT queue.cancel({})", waiting[offset])));
                scope.spawn(verb(format!("SELECT queue.reprioritize({}, 1)", waiting[offset + 1])));
                scope
                    .spawn(verb(format!("SELECT queue.reschedule({}, now() + interval '1 day')", waiting[offset + 2])));
                scope.spawn(verb(format!("SELECT queue.retry({})", waiting[offset + 3])));
                scope.spawn(verb(format!("SELECT queue.complete({}, '1')", running[offset].0)));
                scope.spawn(verb(format!("SELECT queue.fail({}, 'no', fatal => true)", running[offset + 1].0)));
                scope.spawn(verb(format!("SELECT queue.release({})", running[offset + 2].0)));
                scope.spawn(verb(format!("SELECT queue.progress({}, '7')", running[offset + 3].0)));
                scope.spawn(verb(format!("SELECT queue.extend({}, '2 days')", running[offset + 4].0)));
                scope.spawn(verb(format!("SELECT queue.cancel({}, 'stop')", running[offset + 5].1)));
                scope.spawn(verb(format!("SELECT queue.cancel({}, 'stop', force => true)", running[offset + 6].1)));
                scope.spawn(verb(format!("SELECT queue.complete_many(ARRAY[{}])", running[offset + 7].0)));
                // Each end of a batch, those of all kinds in one call.
                let ids: Vec<i64> = running[offset + 8..offset + 12].iter().map(|&(id, _)| id).collect();
                scope.spawn(verb(format!(
                    r#"SELECT queue.end_batch('[{{"complete": {{"id": {}, "result": 3}}}},
                           {{"fail": {{"id": {}, "error": "no", "fatal": true}}}},
                           {{"release": {{"id": {}}}}}, {{"suspend": {{"id": {}, "after": [{}], "progress": 5}}}}]')"#,
                    ids[0],
                    ids[1],
                    ids[2],
                    ids[3],
                    waiting[offset + 8]
                )));
                let many: Vec<i64> = waiting[offset + 4..offset + 8].to_vec();
                scope.spawn(verb(format!("SELECT queue.cancel_many(ARRAY[{}])", many[0])));
                scope.spawn(verb(format!("SELECT queue.reprioritize_many(ARRAY[{}], 2)", many[1])));
                scope
                    .spawn(verb(format!("SELECT queue.reschedule_many(ARRAY[{}], now() + interval '1 day')", many[2])));
                scope.spawn(verb(format!("SELECT queue.retry_many(ARRAY[{}])", many[3])));
            }
        });
    });
    drive(&mut client, "the segment is empty", &in_state(0, "'f'"));
    // What was noted is known after a crash, too.
    drop(client);
    cluster.kill_server();
    cluster.start_again();
    let mut client = cluster.connect();
    maintain(&mut client);
    let state = |client: &mut Client, job: i64, condition: &str| {
        let sql = format!("coalesce((SELECT {condition} FROM queue.job({job})), false)");
        assert!(
            is(client, &sql),
            "{job} is not {condition}: {:?}",
            client.query_one(&format!("SELECT j::text FROM queue.job({job}) AS j"), &[]).unwrap().get::<_, String>(0)
        );
    };
    for offset in [0, 15] {
        state(&mut client, waiting[offset], "state = 'cancelled'");
        state(&mut client, waiting[offset + 1], "state = 'ready' AND priority = 1");
        state(&mut client, waiting[offset + 2], "state IN ('scheduled', 'retrying')");
        state(&mut client, waiting[offset + 3], "state = 'ready'");
        state(&mut client, running[offset].1, "state = 'completed' AND result = '1'");
        state(&mut client, running[offset + 1].1, "state = 'dead'");
        state(&mut client, running[offset + 2].1, "state = 'ready'");
        state(&mut client, running[offset + 3].1, "state = 'running' AND progress = '7'");
        state(&mut client, running[offset + 4].1, "state = 'running' AND lease_expires_at > now() + interval '1 day'");
        state(&mut client, running[offset + 5].1, "state = 'running'");
        let sql = format!("(SELECT is_cancelled FROM queue.extend({}))", running[offset + 5].0);
        assert!(is(&mut client, &sql), "the request to cancel is lost");
        state(&mut client, running[offset + 6].1, "state = 'cancelled'");
        state(&mut client, running[offset + 7].1, "state = 'completed'");
        state(&mut client, running[offset + 8].1, "state = 'completed' AND result = '3'");
        state(&mut client, running[offset + 9].1, "state = 'dead'");
        state(&mut client, running[offset + 10].1, "state = 'ready'");
        state(&mut client, running[offset + 11].1, "state = 'held' AND progress = '5'");
        state(&mut client, waiting[offset + 4], "state = 'cancelled'");
        state(&mut client, waiting[offset + 5], "state = 'ready' AND priority = 2");
        state(&mut client, waiting[offset + 6], "state IN ('scheduled', 'retrying')");
        state(&mut client, waiting[offset + 7], "state = 'ready'");
    }
    let sql = "SELECT count(*) FROM queue.jobs WHERE job_id = ANY ($1)";
    assert_eq!(client.query_one(sql, &[&all]).unwrap().get::<_, i64>(0), 60);
}

#[test]
fn who_reads_a_toast_table_is_waited_for_and_makes_nobody_wait() {
    let cluster = still(&[]);
    let mut client = cluster.connect();
    client.run(&format!("SELECT queue.enqueue('q', {})", large(30_000)));
    assert_eq!(work_off(&mut client, 1), 1);
    let sql = "SELECT reltoastrelid::regclass::text FROM pg_class WHERE oid = 'queue.attempt_0'::regclass";
    let toast: String = client.query_one(sql, &[]).unwrap().get(0);
    let mut reader = cluster.connect();
    reader.run(&format!("BEGIN; SELECT count(*) FROM {toast}"));
    fill(&mut client);
    drive(&mut client, "history has it", &in_state(0, "'h'"));
    client.run("SET statement_timeout = '5s'");
    for _ in 0..5 {
        maintain(&mut client);
    }
    assert!(is(&mut client, &in_state(0, "'h'")));
    assert!(is(&mut client, "(SELECT count(*) > 0 FROM queue.attempt_0)"));
    reader.run("COMMIT");
    drive(&mut client, "the segment is empty", &in_state(0, "'f'"));
}

#[test]
fn what_is_rolled_back_is_emptied_too() {
    let cluster = cluster(&["pg_queue.segment_age = 1"]);
    let mut client = cluster.connect();
    client.run("BEGIN");
    enqueue(&mut client, 10, "");
    client.run("ROLLBACK");
    wait::until("the dead rows are gone", || is(&mut client, "pg_relation_size('queue.attempt_0') = 0").then_some(()));
}

#[test]
fn nothing_is_lost_by_a_crash_after_any_step() {
    for commit in ["on", "off"] {
        // Nothing is written to the log's files but what is flushed for a reason.
        let cluster = still(&[
            &format!("synchronous_commit = {commit}"),
            "wal_writer_delay = '10s'",
            "wal_writer_flush_after = '1GB'",
            "full_page_writes = on",
        ]);
        let mut client = cluster.connect();
        client.run("CREATE EXTENSION amcheck");
        client.run(&format!("SELECT queue.enqueue('q', {}, priority => 9)", large(300)));
        enqueue(&mut client, 20, ", priority => 9");
        let claimed = client.query("SELECT id FROM queue.claim('q', 5)", &[]).unwrap();
        let ids: Vec<i64> = claimed.iter().map(|row| row.get(0)).collect();
        client.run(&format!("SELECT queue.fail({}, 'once')", ids[0]));
        client.run(&format!("SELECT queue.progress({}, '7')", ids[1]));
        fill(&mut client);
        client.run(
            "CREATE TABLE expected AS SELECT job_id, state, attempt, progress, md5(payload::text) AS payload \
            FROM queue.jobs WHERE state IN ('ready', 'running', 'retrying')",
        );
        // All up to here is durable; from here on, with asynchronous commits, what a crash loses is whole steps.
        client.run("CHECKPOINT");
        let differences = "SELECT count(*) FROM (
            (TABLE expected EXCEPT ALL SELECT job_id, state, attempt, progress, md5(payload::text) AS payload
            FROM queue.jobs WHERE state IN ('ready', 'running', 'retrying'))
            UNION ALL
            (SELECT job_id, state, attempt, progress, md5(payload::text) AS payload FROM queue.jobs
            WHERE state IN ('ready', 'running', 'retrying') EXCEPT ALL TABLE expected)) AS d";
        let mut crashes = 0;
        // With asynchronous commits each crash takes all steps back but what was flushed: many at a time.
        while !is(&mut client, &in_state(0, "'f'")) && (commit == "on" || crashes < 3) {
            for _ in 0..if commit == "on" { 1 } else { 12 } {
                maintain(&mut client);
            }
            drop(client);
            cluster.kill_server();
            cluster.start_again();
            client = cluster.connect();
            crashes += 1;
            assert!(crashes < 20, "the ring does not go on");
            let differ = differences.replacen("count(*)", "coalesce(string_agg(d::text, '; '), '')", 1);
            let differ = client.query_one(&differ, &[]).unwrap();
            assert_eq!(differ.get::<_, &str>(0), "", "synchronous_commit {commit}, after crash {crashes}");
            let completed = client.value::<i64>("SELECT count(*) FROM queue.jobs WHERE state = 'completed'");
            assert_eq!(completed, ROWS, "synchronous_commit {commit}, after crash {crashes}");
        }
        assert!(commit == "off" || crashes >= 5, "{crashes} crashes");
        drive(&mut client, "the segment is empty", &in_state(0, "'f'"));
        client.run(
            "SELECT count(bt_index_check(i.indexrelid, heapallindexed => true)) FROM pg_index AS i
            JOIN pg_class AS t ON t.oid = i.indrelid
                           WHERE t.relnamespace = 'queue'::regnamespace AND t.relname ~ '_[0-9]$'",
        );
        turn(&mut client, 10);
        assert_eq!(client.value::<i64>(differences), 0, "commit {commit}, at the end");
        for id in &ids[1..] {
            client.run(&format!("SELECT queue.complete({id})"));
        }
        assert_eq!(work_off(&mut client, 100), 17);
    }
}

#[test]
fn a_table_whose_emptying_was_cut_off_is_emptied_again() {
    let cluster = still(&[]);
    let mut client = cluster.connect();
    client.run("CREATE EXTENSION amcheck");
    fill(&mut client);
    drive(&mut client, "the first table is empty", "pg_relation_size('queue.attempt_0') = 0");
    assert!(is(&mut client, "pg_relation_size('queue.claim_0') > 0"));
    let file: String = client.query_one("SELECT pg_relation_filepath('queue.claim_0')", &[]).unwrap().get(0);
    drop(client);
    cluster.stop_fast();
    // What a crash leaves between the table and its index.
    std::fs::File::options().write(true).open(cluster.data().join(file)).unwrap().set_len(0).unwrap();
    cluster.start_again();
    let mut client = cluster.connect();
    drive(&mut client, "the segment is empty", &in_state(0, "'f'"));
    assert!(is(&mut client, "pg_relation_size('queue.claim_0_pkey') = 8192"), "the index still has its entries");
    turn(&mut client, 10);
    let check = "SELECT count(bt_index_check(i.indexrelid, heapallindexed => true)),
                        sum(pg_relation_size(i.indexrelid))::bigint FROM pg_index AS i
                 WHERE i.indrelid = 'queue.claim_0'::regclass";
    assert_eq!(client.query_one(check, &[]).unwrap().get::<_, i64>(0), 1);
}

/// The files of a table with its indexes, in the data directory.
fn files(client: &mut Client, table: &str) -> Vec<String> {
    let sql = "SELECT pg_relation_filepath($1::text::regclass) UNION ALL
               SELECT pg_relation_filepath(indexrelid) FROM pg_index WHERE indrelid = $1::text::regclass";
    client.query(sql, &[&table]).unwrap().iter().map(|row| row.get(0)).collect()
}

/// What a crash leaves in the middle of emptying a table: nothing in it, and its indexes without their first pages.
fn cut_off(cluster: &Cluster, files: &[String]) {
    for file in files {
        std::fs::File::options().write(true).open(cluster.data().join(file)).unwrap().set_len(0).unwrap();
    }
}

/// All that reads or writes the logs, but for the worker's steps.
fn use_everything(client: &mut Client, ended: i64, jobs: i64) {
    for view in ["jobs", "attempts", "stats", "errors", "workers", "throughput", "queues"] {
        client.run(&format!("SELECT count(*) FROM queue.{view}"));
    }
    assert_eq!(client.value::<i64>("SELECT count(*) FROM queue.jobs"), jobs);
    assert!(is(client, &format!("payload <> '{{}}' FROM queue.job({ended})")));
    client.run(&format!("SELECT queue.forget({ended})"));
    assert!(is(client, &format!("payload = '{{}}' FROM queue.job({ended})")));
    client.run("SELECT queue.adopt()");
    client.run(&retry_dead("q"));
    client.run("SELECT * FROM queue.doctor()");
    client.run("BEGIN; SELECT queue.enqueue('q', '{}'), queue.purge('q'); ROLLBACK");
}

#[test]
fn whatever_a_crash_leaves_of_a_segment_that_was_being_emptied_harms_nobody_and_is_emptied() {
    let cluster = still(&[]);
    let mut client = cluster.connect();
    // An ended attempt that was retried by hand is on record elsewhere, too.
    let again = "SELECT queue.enqueue('q', '{}', priority => -9)";
    let again: i64 = client.query_one(again, &[]).unwrap().get(0);
    client.run(&format!("SELECT queue.cancel({again}), queue.retry({again})"));
    let mut jobs = 1;
    // Cut off in the middle of each table.
    for (emptied, table) in ["attempt", "claim", "outcome", "note", "parked"].into_iter().enumerate() {
        let ended = "SELECT queue.enqueue('q', '{\"secret\": 1}', priority => -8)";
        let ended: i64 = client.query_one(ended, &[]).unwrap().get(0);
        let segment = open_segment(&mut client);
        fill(&mut client);
        assert!(work_off(&mut client, 10) >= 1);
        jobs += 1 + ROWS;
        let begun = format!(
            "(SELECT state = 'e' AND copied_to = {emptied} FROM queue.segment_log
              WHERE segment = {segment} ORDER BY entry DESC LIMIT 1)"
        );
        drive(&mut client, "the table is to be emptied next", &begun);
        let files = files(&mut client, &format!("queue.{table}_{segment}"));
        drop(client);
        cluster.stop_fast();
        cut_off(&cluster, &files);
        cluster.start_again();
        client = cluster.connect();
        use_everything(&mut client, ended, jobs);
        // What was begun is seen to its end, whatever the settings.
        client.run("ALTER SYSTEM SET pg_queue.reclaim = off");
        cluster.reload();
        let broken = |client: &mut Client| {
            client.batch_execute(&format!("SELECT count(*) FROM queue.{table}_{segment} WHERE false")).is_err()
        };
        assert!(table == "parked" || broken(&mut client), "nothing was cut off");
        drive(&mut client, "the segment is empty", &in_state(segment, "'f'"));
        assert!(!broken(&mut client));
        client.run("ALTER SYSTEM RESET pg_queue.reclaim");
        cluster.reload();
    }
    turn(&mut client, 10);
    client.run("CREATE EXTENSION amcheck");
    client.run(
        "SELECT count(bt_index_check(i.indexrelid, heapallindexed => true)) FROM pg_index AS i
         JOIN pg_class AS t ON t.oid = i.indrelid
         WHERE t.relnamespace = 'queue'::regnamespace AND t.relname ~ '_[0-9]$'",
    );
}

#[test]
fn a_standby_that_has_replayed_half_of_an_emptying_answers_and_heals_when_it_is_promoted() {
    let cluster = still(&[]);
    let mut client = cluster.connect();
    fill(&mut client);
    let begun =
        "(SELECT state = 'e' AND copied_to = 1 FROM queue.segment_log WHERE segment = 0 ORDER BY entry DESC LIMIT 1)";
    drive(&mut client, "the claims are to be emptied next", begun);
    let files = files(&mut client, "queue.claim_0");
    let standby = cluster.standby();
    standby.wait_replayed(&cluster);
    drop(client);
    cluster.kill_server();
    standby.stop_fast();
    cut_off(&standby, &files);
    standby.start_again();
    let mut there = standby.connect();
    assert_eq!(there.value::<i64>("SELECT count(*) FROM queue.jobs WHERE state = 'completed'"), ROWS);
    there.run("SELECT count(*) FROM queue.stats");
    standby.append_conf("pg_queue.worker = on");
    standby.reload();
    standby.promote();
    wait::until("the segment is empty", || is(&mut there, &in_state(0, "'f'")).then_some(()));
    there.run("SELECT count(*) FROM queue.claim_0");
}

#[test]
fn an_emptying_that_a_crash_cuts_off_goes_on_by_itself_wherever_that_was() {
    let seed = random::seed("emptying");
    let mut random = Random::new(seed);
    let cluster = cluster(&["wal_writer_delay = '10s'", "max_prepared_transactions = 4"]);
    let mut client = cluster.connect();
    let job: i64 = client.query_one("SELECT queue.enqueue('q', '{}', priority => -9)", &[]).unwrap().get(0);
    client.run(&format!("SELECT queue.cancel({job}), queue.retry({job})"));
    let mut crashes = 0;
    while crashes < 12 {
        fill(&mut client);
        let sql = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'pg_queue worker'";
        let worker: i32 = wait::until("there is a worker", || client.query_opt(sql, &[]).unwrap()).get(0);
        wait::until("a segment is being emptied", || {
            is(
                &mut client,
                "EXISTS (SELECT FROM (SELECT DISTINCT ON (segment) state FROM queue.segment_log ORDER BY segment,
                    entry DESC)
                         AS s WHERE state IN ('d', 'h', 'e'))",
            )
            .then_some(())
            .or_else(|| {
                fill(&mut client);
                None
            })
        });
        thread::sleep(Duration::from_micros(random.below(40_000)));
        crashes += i32::from(cluster.crash_if_there(worker));
        client = cluster.connect();
        client.run("SELECT count(*) FROM queue.jobs; SELECT queue.adopt()");
    }
    turn(&mut client, 10);
    let log = cluster.log();
    let broken: Vec<&str> =
        log.lines().filter(|line| line.contains("could not read block") || line.contains(" XX0")).collect();
    assert!(broken.is_empty(), "seed {seed}: {broken:#?}");
}

#[test]
fn a_promoted_standby_goes_on_with_the_ring_where_its_primary_was() {
    let cluster = cluster(&[]);
    let mut client = cluster.connect();
    enqueue(&mut client, 7, ", priority => 9");
    let standby = cluster.standby();
    let mut there = standby.connect();
    // Memory learns of the segments here, as they are now.
    assert_eq!(there.value::<i64>("SELECT count(*) FROM queue.jobs"), 7);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let (cluster, stop) = (&cluster, &stop);
        scope.spawn(move || {
            let _stop = StopAtEnd(stop);
            turn(&mut client, 13);
        });
        while !stop.load(Ordering::Relaxed) {
            let row = there.query_one("SELECT count(*), count(DISTINCT job_id) FROM queue.jobs", &[]);
            let Ok(row) = row else { continue };
            assert_eq!(row.get::<_, i64>(0), row.get::<_, i64>(1));
        }
        standby.wait_replayed(cluster);
    });
    let sql = "SELECT count(*) FROM queue.jobs WHERE state = 'ready'";
    assert_eq!(there.value::<i64>(sql), 7);
    cluster.kill_server();
    standby.promote();
    wait::until("the standby writes", || there.batch_execute("SELECT queue.enqueue('q', '{}', priority => 8)").ok());
    turn(&mut there, 10);
    assert_eq!(there.value::<i64>(sql), 8);
    let sql = "SELECT count(*) - count(DISTINCT entry) FROM queue.segment_log";
    assert_eq!(there.value::<i64>(sql), 0, "states were recorded from an old memory");
    assert_eq!(work_off(&mut there, 100), 8);
    wait_completed(&mut there, 23 * ROWS + 8);
}

#[test]
fn an_adoption_that_comes_late_does_not_take_the_segments_back() {
    let cluster = cluster(&[]);
    let mut client = cluster.connect();
    let mut late = cluster.connect();
    late.run("BEGIN; SELECT queue.adopt()");
    turn(&mut client, 3);
    late.run("COMMIT");
    turn(&mut client, 9);
    let sql = "SELECT count(*) - count(DISTINCT entry) FROM queue.segment_log";
    assert_eq!(client.value::<i64>(sql), 0);
    wait_completed(&mut client, 12 * ROWS);
}

#[test]
fn who_looks_or_waits_does_not_stop_the_ring_and_sees_no_job_twice() {
    let cluster = cluster(&["max_connections = 80"]);
    let mut client = cluster.connect();
    client.run("SELECT queue.create('empty')");
    enqueue(&mut client, 50, ", priority => 9");
    // Dashboards that stay in their transactions.
    let mut dashboards: Vec<Client> = Vec::new();
    for sql in
        ["TABLE queue.jobs", "TABLE queue.stats", "TABLE queue.attempts", "TABLE queue.errors", "TABLE queue.workers"]
    {
        let mut dashboard = cluster.connect();
        dashboard.run(&format!("BEGIN; {sql}"));
        dashboards.push(dashboard);
    }
    let mut repeatable = cluster.connect();
    repeatable.run("BEGIN ISOLATION LEVEL REPEATABLE READ");
    let twice = "SELECT count(*) - count(DISTINCT job_id) FROM queue.jobs";
    assert_eq!(repeatable.value::<i64>(twice), 0);
    // One that holds locks on the tables: they are not emptied under it, and the others turn.
    let mut holder = cluster.connect();
    holder.run(
        "BEGIN; LOCK TABLE queue.attempt_0 IN ACCESS SHARE MODE; DECLARE c CURSOR FOR TABLE queue.claim_0; \
        FETCH 1 FROM c",
    );
    thread::scope(|scope| {
        for _ in 0..50 {
            let cluster = &cluster;
            scope.spawn(move || {
                let mut sleeper = cluster.connect();
                assert!(sleeper.query("SELECT id FROM queue.claim('empty', wait => '20 s')", &[]).unwrap().len() <= 1);
            });
        }
        wait::until("all sleep", || {
            let sql = "(SELECT count(*) = 50 FROM pg_stat_activity WHERE query ~ 'empty' AND wait_event = 'Extension')";
            is(&mut client, sql).then_some(())
        });
        for _ in 0..10 {
            turn(&mut client, 1);
            assert_eq!(repeatable.value::<i64>(twice), 0);
            for dashboard in &mut dashboards {
                assert_eq!(dashboard.value::<i64>(twice), 0);
            }
        }
        assert!(is(&mut client, &in_state(0, "'h'")), "emptied under a lock, or not copied");
        client.query("SELECT queue.enqueue_many('empty', array_fill('{}'::jsonb, ARRAY[50]))", &[]).unwrap();
    });
    holder.run("COMMIT");
    wait::until("the segment is empty", || is(&mut client, &in_state(0, "'f', 'o'")).then_some(()));
}

/// Keeps jobs coming and going, a few of which stay, until it is told to stop; a few segments a second.
fn load(cluster: &Cluster, stop: &AtomicBool) {
    let mut client = cluster.connect();
    while !stop.load(Ordering::Relaxed) {
        enqueue(&mut client, 195, "");
        enqueue(&mut client, 5, ", priority => 9");
        enqueue(&mut client, 1, ", delay => '20 days'");
        work_off(&mut client, 195);
        thread::sleep(Duration::from_millis(40));
    }
}

#[test]
fn only_a_role_that_may_read_the_tables_holds_up_the_emptying_of_segments() {
    let cluster = still(&["max_prepared_transactions = 4"]);
    let mut client = cluster.connect();
    client.run(
        "CREATE ROLE nobody LOGIN; CREATE ROLE producer LOGIN; SELECT queue.grant('q', 'producer', 'manage');
         CREATE ROLE reader LOGIN IN ROLE pg_read_all_data; CREATE ROLE deputy LOGIN NOINHERIT IN ROLE pg_read_all_data;
         CREATE ROLE grantee LOGIN; GRANT SELECT ON queue.history TO grantee;
         CREATE TABLE of_nobody (n int); ALTER TABLE of_nobody OWNER TO nobody; GRANT ALL ON of_nobody TO producer",
    );
    let begin = |role: &str, sql: &str| {
        let mut session = cluster.config().user(role).connect(postgres::NoTls).unwrap();
        session.run(&format!("BEGIN; {sql}"));
        session
    };
    let mut open = Vec::new();
    for (n, role) in ["nobody", "producer"].into_iter().enumerate() {
        for sql in [
            "SELECT FROM pg_extension",
            "SELECT FROM pg_extension, pg_class, pg_namespace, pg_depend, pg_init_privs LIMIT 1",
            "DECLARE c CURSOR FOR SELECT * FROM pg_extension; FETCH c",
            "LOCK TABLE pg_extension IN ACCESS SHARE MODE",
            "LOCK TABLE of_nobody IN SHARE MODE; SELECT FROM pg_extension",
            "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE READ ONLY; SELECT FROM pg_extension",
        ] {
            open.push(begin(role, sql));
        }
        begin(role, &format!("SELECT FROM pg_extension; PREPARE TRANSACTION 'p{n}'"));
    }
    turn(&mut client, 12);
    for role in ["postgres", "reader", "deputy", "grantee"] {
        let others_are_free =
            "(SELECT count(*) = 7 FROM (SELECT DISTINCT ON (segment) segment, state FROM queue.segment_log
                                ORDER BY segment, entry DESC) AS s WHERE state = 'f' OR segment > 7)";
        drive(&mut client, "the next segments are free", others_are_free);
        let segment = open_segment(&mut client);
        let mut dump = begin(role, "SELECT FROM pg_extension");
        fill(&mut client);
        drive(&mut client, &format!("the segment is copied beside {role}"), &in_state(segment, "'h'"));
        for _ in 0..20 {
            maintain(&mut client);
        }
        assert!(is(&mut client, &in_state(segment, "'h'")), "emptied while {role} may be dumping");
        dump.run("COMMIT");
        drive(&mut client, "the segment is empty", &in_state(segment, "'f'"));
    }
}

#[test]
fn a_dump_that_is_held_up_has_exactly_the_jobs_of_its_snapshot() {
    let cluster = cluster(&["pg_queue.reclaim_delay = 500"]);
    let mut client = cluster.connect();
    client.run("CREATE TABLE plain (n int)");
    let stop = AtomicBool::new(false);
    let live = "SELECT coalesce(string_agg(j::text, ';' ORDER BY job_id), '') FROM (
        SELECT job_id, state, payload, priority, attempt, run_at, enqueued_at FROM queue.jobs
        WHERE state IN ('ready', 'running', 'scheduled', 'retrying')) AS j";
    let (dump, expected) = thread::scope(|scope| {
        let (cluster, stop) = (&cluster, &stop);
        let _stop = StopAtEnd(stop);
        scope.spawn(move || load(cluster, stop));
        wait::until("the ring turns", || (fillings(&mut client) > 12).then_some(()));
        let mut blocker = cluster.connect();
        blocker.run("BEGIN; LOCK TABLE plain IN ACCESS EXCLUSIVE MODE");
        let mut exporter = cluster.connect();
        exporter.run("BEGIN ISOLATION LEVEL REPEATABLE READ");
        let snapshot: String = exporter
            // With a lock as a dump has it, so that the time until that begins does not matter.
            .query_one("SELECT pg_export_snapshot() FROM pg_extension LIMIT 1", &[])
            .unwrap()
            .get(0);
        let expected: String = exporter.query_one(live, &[]).unwrap().get(0);
        let argument = format!("--snapshot={snapshot}");
        let dump = scope.spawn(move || cluster.pg_dump(&[&argument]));
        wait::until("the dump waits", || {
            is(&mut client, "(SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND relation = 'plain'::regclass)")
                .then_some(())
        });
        exporter.run("COMMIT");
        // The ring turns as far as it can, and the jobs of the snapshot move and end.
        let copied = "(SELECT count(*) >= 7 FROM (SELECT DISTINCT ON (segment) state FROM queue.segment_log
                       ORDER BY segment, entry DESC) AS s WHERE state = 'h')";
        wait::within("segments wait for the dump", Duration::from_secs(60), || is(&mut client, copied).then_some(()));
        assert_eq!(
            client.value::<i64>("SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'plain'::regclass"),
            1
        );
        blocker.run("COMMIT");
        (dump.join().unwrap(), expected)
    });
    // The dump is over: the ring goes on.
    let before = fillings(&mut client);
    turn(&mut client, 9);
    assert!(fillings(&mut client) >= before + 9);
    let restored = Cluster::new().start();
    let printed = restored.psql(&dump);
    assert!(!printed.contains("ERROR"), "{printed}");
    let mut there = restored.connect();
    there.run("SELECT queue.adopt()");
    let found: String = there.query_one(live, &[]).unwrap().get(0);
    if found != expected {
        let (mut found, mut expected): (Vec<&str>, Vec<&str>) =
            (found.split(';').collect(), expected.split(';').collect());
        let (all_found, all_expected) = (found.clone(), expected.clone());
        found.retain(|job| !all_expected.contains(job));
        expected.retain(|job| !all_found.contains(job));
        panic!("not expected: {found:?}\nnot found: {expected:?}");
    }
    let twice = "SELECT count(*) - count(DISTINCT job_id) FROM queue.jobs";
    assert_eq!(there.value::<i64>(twice), 0);
    // And the copy's ring turns.
    let low = there.value::<i64>("SELECT count(*) FROM queue.jobs WHERE state = 'ready'");
    let claimed = there.query("SELECT id FROM queue.claim('q', 100000)", &[]).unwrap().len();
    assert_eq!(claimed as i64, low);
}

#[test]
fn what_became_of_a_job_in_history_is_told_and_can_be_forgotten() {
    let cluster = still(&[]);
    let mut client = cluster.connect();
    let mut jobs = Vec::new();
    for _ in 0..2 {
        let job =
            client.value::<i64>(&format!("SELECT queue.enqueue('q', {}, headers => '{{\"secret\": 1}}')", large(300)));
        let (first, _) = claim_one(&mut client).unwrap();
        client.run(&format!("SELECT queue.progress({first}, '\"secret\"'); SELECT queue.fail({first}, 'secret')"));
        let (second, _) = claim_one(&mut client).unwrap();
        client.run(&format!("SELECT queue.complete({second}, '\"secret\"')"));
        jobs.push((job, first, second));
        if jobs.len() == 1 {
            turn(&mut client, 1);
            drive(&mut client, "the first job is in history", &in_state(0, "'f'"));
        }
    }
    for (job, first, second) in jobs {
        for (id, words) in
            [(first, "This attempt was already failed at "), (second, "This attempt was already completed at ")]
        {
            let error = client.query("SELECT queue.complete($1)", &[&id]).unwrap_err();
            assert_eq!(error::code(&error), "QJ001");
            assert!(error::detail(&error).unwrap().starts_with(words), "{error:?}");
            let error = client.query("SELECT queue.fail($1, 'no')", &[&id]).unwrap_err();
            assert!(error::detail(&error).unwrap().starts_with(words), "{error:?}");
        }
        // An old snapshot would leave what has been written since.
        client.run("BEGIN ISOLATION LEVEL REPEATABLE READ");
        let error = client.query("SELECT queue.forget($1)", &[&job]).unwrap_err();
        assert_eq!(error::code(&error), "25001");
        client.run("ROLLBACK");
        client.run(&format!("SELECT queue.forget({job})"));
        let sql = format!("SELECT string_agg(j::text, '') FROM queue.job({job}) AS j");
        let job: String = client.query_one(&sql, &[]).unwrap().get(0);
        assert!(job.contains("completed") && !job.contains("secret") && !job.contains("text"), "{job}");
    }
    let everything = cluster.pg_dump(&["--data-only"]);
    assert!(!everything.contains("secret") && !everything.contains("c4ca4238"), "something is left");
}

#[test]
fn disk_is_bounded_and_nothing_dead_is_left_however_long_jobs_wait_under_a_pinned_snapshot() {
    let cluster = still(&["autovacuum = off"]);
    let mut client = cluster.connect();
    client.run("CREATE EXTENSION amcheck; SELECT queue.alter('q', retention => '0')");
    let mut holder = cluster.connect();
    holder.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM queue.jobs");
    let tables =
        "FROM pg_class WHERE relnamespace = 'queue'::regnamespace AND relname ~ '^(attempt|claim|outcome|note)_[0-9]$'";
    let size = format!("SELECT sum(pg_total_relation_size(oid))::bigint {tables}");
    let empty = client.value::<i64>(&size);
    fill(&mut client);
    let of_one = client.value::<i64>(&size) - empty;
    const TURNS: i64 = 4;
    const WAITING: i64 = ROWS / 20;
    let (mut largest, mut living) = (0, 0);
    let seed = random::seed("disk is bounded");
    let mut random = Random::new(seed);
    for _ in 0..TURNS * 8 {
        // Some wait behind all others, for ever; some for a time that is far.
        enqueue(&mut client, WAITING - 5, &format!(", priority => {}", random.between(5, 7)));
        enqueue(&mut client, 5, ", delay => '30 days'");
        living += WAITING;
        turn(&mut client, 1);
        largest = largest.max(client.value::<i64>(&size));
    }
    // Segments that wait for their turn, each of a filling and what was moved into old, which is twice there.
    let bound = empty + of_one * (10 + 4 * living / ROWS);
    assert!(largest < bound, "{largest} bytes, where {bound} were to be expected of {of_one} a segment");
    let far = client.value::<i64>("SELECT count(*) FROM queue.attempts WHERE state = 'scheduled' AND id & 15 >= 8");
    assert_eq!(far, 5 * TURNS * 8);
    client.run("CREATE EXTENSION pgstattuple");
    let dead = format!("SELECT sum((pgstattuple(oid)).dead_tuple_count)::bigint {tables}");
    assert_eq!(client.value::<i64>(&dead), 0);
    let check = "SELECT count(bt_index_check(i.indexrelid, heapallindexed => true)) FROM pg_index AS i
                 JOIN pg_class AS t ON t.oid = i.indrelid
                 WHERE t.relnamespace = 'queue'::regnamespace AND t.relname ~ '_[0-9]$'";
    assert!(client.value::<i64>(check) >= 90);
    // Those that are far run when their time has come, the others in their order.
    let jobs =
        client.query("SELECT job_id FROM queue.jobs WHERE state = 'scheduled' ORDER BY job_id LIMIT 20", &[]).unwrap();
    for job in &jobs {
        client.query("SELECT queue.reschedule($1, now())", &[&job.get::<_, i64>(0)]).unwrap();
    }
    let claimed = client.query("SELECT priority, job_id FROM queue.claim('q', 100000)", &[]).unwrap();
    let order: Vec<(i32, i64)> = claimed.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(order.len() as i64, (WAITING - 5) * TURNS * 8 + 20);
    assert!(order.is_sorted(), "seed {seed}: not in order");
}

#[test]
fn sessions_that_are_ended_in_the_middle_of_a_step_do_not_stop_the_ring() {
    let cluster = cluster(&[]);
    let mut client = cluster.connect();
    let seed = random::seed("sessions are ended");
    let mut random = Random::new(seed);
    let stop = AtomicBool::new(false);
    enqueue(&mut client, 30, ", priority => 9");
    thread::scope(|scope| {
        let (cluster, stop) = (&cluster, &stop);
        let _stop = StopAtEnd(stop);
        for _ in 0..2 {
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    // It may be ended at any time.
                    let Ok(mut session) = cluster.config().connect(postgres::NoTls) else { continue };
                    while session.batch_execute("SELECT queue.maintain()").is_ok() && !stop.load(Ordering::Relaxed) {}
                }
            });
        }
        for n in 0..12 {
            let before = fillings(&mut client);
            fill(&mut client);
            wait::until("the next segment is open", || {
                if n < 9 {
                    let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                               WHERE query ~ 'queue.maintain' AND pid <> pg_backend_pid() AND random() < $1
                                  OR backend_type = 'pg_queue worker' AND random() < 0.05";
                    client.query(sql, &[&(random.between(1, 9) as f64 / 20.0)]).unwrap();
                }
                (fillings(&mut client) > before).then_some(())
            });
        }
    });
    assert_eq!(work_off(&mut client, 1000), 30, "seed {seed}");
    wait_completed(&mut client, 12 * ROWS + 30);
    assert_eq!(client.value::<i64>("SELECT count(*) - count(DISTINCT job_id) FROM queue.jobs"), 0);
}

/// How many rows say something of attempts that are not there.
fn strays(client: &mut Client) -> i64 {
    let logs = (0..10).flat_map(|n| ["claim", "outcome", "note"].map(|log| (log, n)));
    let rows = logs.map(|(log, n)| {
        format!(
            "SELECT FROM queue.{log}_{n} AS o WHERE NOT EXISTS (SELECT FROM queue.attempt_{n} AS a WHERE a.id = o.id)"
        )
    });
    client.value(&format!("SELECT count(*) FROM ({}) AS o", rows.collect::<Vec<_>>().join(" UNION ALL ")))
}

#[test]
fn an_attempt_that_went_with_its_queue_is_ended_by_nobody_also_after_a_crash() {
    let cluster = cluster(&[]);
    let mut client = cluster.connect();
    client.run("SELECT queue.create('gone')");
    let mut ids = Vec::new();
    for _ in 0..5 {
        client.run("SELECT queue.enqueue('gone', '{}')");
        ids.push(client.value::<i64>("SELECT id FROM queue.claim('gone', lease => '1 hour')"));
    }
    client.run("SELECT queue.drop('gone', force => true)");
    drop(client);
    cluster.kill_server();
    cluster.start_again();
    let mut client = cluster.connect();
    turn(&mut client, 10);
    let many = format!("{ids:?}");
    let batch = |end: &str| {
        format!(
            "end_batch((SELECT json_agg(json_build_object('{end}', json_build_object('id', id))) \
                FROM unnest(ARRAY{{}}) AS id))"
        )
    };
    for end in [
        "complete_many(ARRAY{})",
        "fail_many(ARRAY{}, 'no')",
        "release_many(ARRAY{})",
        "extend_many(ARRAY{})",
        &batch("complete"),
        &batch("release"),
        &batch("advance"),
        &batch("suspend"),
    ] {
        let sql = format!("SELECT DISTINCT outcome FROM queue.{}", end.replace("{}", &many));
        assert_eq!(client.column::<String>(&sql), ["lost"], "{sql}");
    }
    for (end, id) in
        ["complete({})", "fail({}, 'no')", "release({})", "extend({})", "progress({}, '1')"].iter().zip(&ids)
    {
        let sql = format!("SELECT queue.{}", end.replace("{}", &id.to_string()));
        let error = client.batch_execute(&sql).expect_err(&sql);
        assert_eq!(error::code(&error), "QJ001", "{sql}: {error:?}");
    }
    // Of a segment that is being emptied the attempts go first.
    wait::until("no row says something of attempts that are not there", || (strays(&mut client) == 0).then_some(()));
}

#[test]
fn whoever_ends_many_while_their_queue_is_dropped_is_told_no_nonsense() {
    let seed = random::seed("dropped");
    let cluster = cluster(&["pg_queue.segment_age = 1"]);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let (cluster, stop) = (&cluster, &stop);
        let _stop = StopAtEnd(stop);
        let workers = (0..3).map(|n| {
            scope.spawn(move || {
                let mut random = Random::new(seed + n);
                let mut client = cluster.connect();
                while !stop.load(Ordering::Relaxed) {
                    let end = random.one_of(&[
                        "fail_many({}, 'no')",
                        "release_many({})",
                        "complete_many({})",
                        "end_batch((SELECT json_agg(json_build_object('suspend', json_build_object('id', id))) \
                            FROM unnest({}::bigint[]) AS id))",
                    ]);
                    let together = random.percent(30);
                    let run = |client: &mut Client| -> Result<(), postgres::Error> {
                        client.query(
                            "SELECT count(*) FROM queue.enqueue_many('s', array_fill('{}'::jsonb, ARRAY[300]))",
                            &[],
                        )?;
                        let mut transaction = client.transaction()?;
                        let claimed = transaction.query("SELECT id FROM queue.claim('s', 200)", &[])?;
                        if !together {
                            transaction.commit()?;
                            transaction = client.transaction()?;
                        }
                        let ids: Vec<i64> = claimed.iter().map(|row| row.get(0)).collect();
                        for ids in ids.chunks(40) {
                            transaction.query(&format!("SELECT queue.{}", end.replace("{}", "$1")), &[&ids])?;
                        }
                        transaction.commit()
                    };
                    if let Err(error) = run(&mut client) {
                        let code = error::code(&error);
                        assert!(["42704", "55006", "QJ001", "53400"].contains(&code), "seed {seed}: {end}: {error:?}");
                    }
                }
            })
        });
        let workers: Vec<_> = workers.collect();
        let mut client = cluster.connect();
        client.run("SELECT queue.create('s', backoff_base => '0')");
        let end = std::time::Instant::now() + random::length(4);
        let mut random = Random::new(seed + 10);
        while std::time::Instant::now() < end && workers.iter().all(|worker| !worker.is_finished()) {
            thread::sleep(Duration::from_micros(random.below(100_000)));
            match client.batch_execute("SELECT queue.drop('s', force => true)") {
                Ok(()) => client.run("SELECT queue.create('s', backoff_base => '0')"),
                Err(error) => assert_eq!(error::code(&error), "55006", "seed {seed}: {error:?}"),
            }
        }
    });
    let mut client = cluster.connect();
    wait::until("nothing is said of attempts that are not there", || (strays(&mut client) == 0).then_some(()));
    assert!(!cluster.log().contains(" XX0"), "seed {seed}");
}
