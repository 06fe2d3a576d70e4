//! The storage duty meets other sessions while segments are closed, moved, copied and emptied. Each test has one case.
//! If single steps matter, the worker is off, and a call of `queue.maintain()` does one step.

use crate::faults::held::{hold_session, release};
use crate::shared::*;
use crate::storage::segments::{cluster, fillings, has_turned};

/// The number of attempts after which a segment is closed.
pub const ROWS: i64 = 1000;

/// A server on which only `maintain` changes segments.
pub fn still(lines: &[&str]) -> Cluster {
    let lines: Vec<&str> = ["pg_queue.worker = off"].iter().chain(lines).copied().collect();
    cluster(&lines)
}

/// Does one step of the storage duty, and all other due duties.
pub fn maintain(client: &mut Client) {
    client.run("SELECT queue.maintain()");
}

/// Does steps until the condition is true.
pub fn drive(client: &mut Client, what: &str, condition: &str) {
    wait::until(what, || {
        if is(client, condition) {
            return Some(());
        }
        maintain(client);
        None
    });
}

pub fn is(client: &mut Client, condition: &str) -> bool {
    client.value(&format!("SELECT {condition}"))
}

/// Returns the condition that the segment is in one of these states.
pub fn in_state(segment: i64, states: &str) -> String {
    format!(
        "(SELECT state IN ({states}) FROM queue_internal.segment_log WHERE segment = {segment}
         ORDER BY entry DESC LIMIT 1)"
    )
}

/// Does steps until the living jobs of segment 0 begin to move. The history table for the next step exists after that.
pub fn drive_to_move(client: &mut Client) {
    let has_table = "EXISTS (SELECT FROM pg_inherits WHERE inhparent = 'queue_internal.history'::regclass)";
    drive(client, "the living begin to move", &format!("{} AND {has_table}", in_state(0, "'m'")));
}

/// Returns the open young segment.
pub fn open_segment(client: &mut Client) -> i64 {
    client.value::<i64>(
        "SELECT segment::bigint FROM (SELECT DISTINCT ON (segment) segment, state FROM queue_internal.segment_log
         ORDER BY segment, entry DESC) AS s WHERE state = 'o' AND segment < 8",
    )
}

/// Enqueues this many jobs in one transaction.
pub fn enqueue(client: &mut Client, count: i64, options: &str) {
    let sql = format!(
        "SELECT count(*) FROM queue.enqueue_many('q', array_fill('{{}}'::jsonb, ARRAY[$1::bigint::int]){options})"
    );
    client.query(&sql, &[&count]).unwrap();
}

/// Fills the open segment with completed jobs, so that the next step closes it.
pub fn fill(client: &mut Client) {
    enqueue(client, ROWS, ", priority => -5");
    assert_eq!(client.work_off("q", ROWS), ROWS);
}

/// Fills the open segment and turns the ring this many times, with or without a worker.
pub fn turn(client: &mut Client, times: i64) {
    for _ in 0..times {
        let before = fillings(client);
        fill(client);
        wait::until_true("the next segment is open", || {
            maintain(client);
            has_turned(client, before)
        });
    }
}

/// Fills the open segment with 400 living jobs and many ended ones. The living ones come first, and the first batch of
/// a move does not reach the last of them.
fn leave_living(client: &mut Client) {
    client.run("BEGIN");
    enqueue(client, 400, ", priority => 5");
    enqueue(client, 11_600, "");
    client.run("COMMIT");
    assert_eq!(client.work_off("q", 11_600), 11_600);
}

pub fn claim_one(client: &mut Client) -> Option<(i64, i64)> {
    client.query_opt("SELECT id, job_id FROM queue.claim('q')", &[]).unwrap().map(|row| (row.get(0), row.get(1)))
}

/// Waits until the views show this many completed jobs. If reclaim_delay is 0, a segment may be emptied during a query,
/// which then misses its jobs. The next query finds them in history.
pub fn wait_completed(client: &mut Client, count: i64) {
    let sql = "SELECT count(*) FROM queue.jobs WHERE state = 'completed'";
    let mut last = 0;
    wait::until_true(&format!("{count} jobs are seen to be completed"), || {
        let found = client.value::<i64>(sql);
        if found != last {
            eprintln!("{found} are completed");
            last = found;
        }
        found == count
    });
}

/// Returns a payload that is stored outside its row.
pub fn large(pieces: i64) -> String {
    format!("(SELECT jsonb_build_object('text', string_agg(md5(n::text), '')) FROM generate_series(1, {pieces}) AS n)")
}

#[test]
fn a_late_request_is_served_before_the_segment_of_its_attempt_is_emptied() {
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
    // The next attempt lies in another segment. It cannot be cancelled while its claim is open.
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
    assert_eq!(client.work_off("q", 100), given_back);
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
        assert_eq!(client.work_off("q", ROWS), ROWS);
        wait::until_true("the next segment is open", || has_turned(&mut client, before));
    }
    assert!(is(&mut client, &in_state(0, "'c'")));
    drop(client);
    // The recovery after a crash restores the locks of the prepared transaction.
    cluster.restart_killed();
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
    leave_living(&mut client);
    drive(&mut client, "the living begin to move", &in_state(0, "'m'"));
    for _ in 0..3 {
        client.refused("SELECT count(*) / (count(*) - count(*)) FROM queue.maintain()", "22012");
    }
    assert!(is(&mut client, &in_state(0, "'m'")));
    drive(&mut client, "the segment is empty", &in_state(0, "'f'"));
    assert_eq!(client.value::<i64>("SELECT ready FROM queue.stats"), 400);
    assert_eq!(client.work_off("q", 12_000), 400);
}

#[test]
fn a_claim_finds_the_jobs_of_a_rolled_back_batch_later() {
    let cluster = still(&[]);
    let mut client = cluster.connect();
    leave_living(&mut client);
    drive_to_move(&mut client);
    drop(client);
    // After the restart memory knows no jobs, so a claim reads the logs.
    cluster.restart();
    let mut client = cluster.connect();
    // The batch has written its marks and stays open.
    let mut mover = cluster.connect();
    let pid = mover.value::<i64>("SELECT pg_backend_pid()::bigint");
    thread::scope(|scope| {
        scope.spawn(move || {
            mover.query("SELECT count(*), pg_sleep(60) FROM queue.maintain()", &[]).unwrap_err();
        });
        wait::until_true("the batch is open", || {
            let sql =
                format!("(SELECT coalesce(wait_event = 'PgSleep', false) FROM pg_stat_activity WHERE pid = {pid})");
            is(&mut client, &sql)
        });
        assert!(claim_one(&mut client).is_none(), "a job was claimed while its mark was open");
        client.run(&format!("SELECT pg_cancel_backend({pid})"));
    });
    assert_eq!(client.work_off("q", 12_000), 400);
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
    client.refused(&format!("SELECT queue.retry({gone})"), "P0002");
    assert_eq!(client.failure(&format!("SELECT queue.cancel({kept})")).detail, "It was already completed.");
    client.run(&format!("SELECT queue.retry({kept})"));
    assert_eq!(count(&mut client, kept), 1);
    assert!(is(&mut client, &format!("(SELECT state = 'ready' FROM queue.job({kept}))")));
    let (id, job) = claim_one(&mut client).unwrap();
    assert_eq!(job, kept);
    client.run(&format!("SELECT queue.complete({id})"));
    assert_eq!(count(&mut client, kept), 1);
}

#[test]
fn the_ring_turns_again_once_it_is_allowed_to() {
    let cluster = cluster(&["pg_queue.reclaim = off"]);
    let mut client = cluster.connect();
    for _ in 0..12 {
        fill(&mut client);
    }
    wait::until_true("all segments are full", || fillings(&mut client) == 9);
    for _ in 0..3 {
        fill(&mut client);
    }
    client.run("ALTER SYSTEM SET pg_queue.reclaim = on");
    client.run("SELECT pg_reload_conf()");
    wait::until_true("the ring has turned", || fillings(&mut client) > 9);
}

/// Holds the duty's next step open for this time in a session of its own. `meanwhile` runs before the batch is
/// committed.
fn during_a_step(cluster: &Cluster, client: &mut Client, seconds: f64, meanwhile: impl FnOnce(&mut Client)) {
    let mut mover = cluster.connect();
    let pid = mover.value::<i64>("SELECT pg_backend_pid()::bigint");
    thread::scope(|scope| {
        scope.spawn(move || {
            mover.query(&format!("SELECT count(*), pg_sleep({seconds}) FROM queue.maintain()"), &[]).unwrap();
        });
        wait::until_true("the step is open", || {
            let sql =
                format!("(SELECT coalesce(wait_event = 'PgSleep', false) FROM pg_stat_activity WHERE pid = {pid})");
            is(client, &sql)
        });
        meanwhile(client);
    });
}

#[test]
fn a_session_that_meets_a_moved_job_follows_it() {
    let cluster = still(&[]);
    let mut client = cluster.connect();
    // These are first and later attempts, some waiting and some running.
    enqueue(&mut client, 30, ", priority => 5");
    let claimed: Vec<i64> =
        client.query("SELECT id FROM queue.claim('q', 30)", &[]).unwrap().iter().map(|row| row.get(0)).collect();
    client.query("SELECT queue.fail_many($1, 'once', retry_in => '0')", &[&claimed]).unwrap();
    enqueue(&mut client, 30, ", priority => 6");
    fill(&mut client);
    fill(&mut client);
    // Half of the jobs of each kind run.
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
    let running: Vec<(i64, i64)> = client.rows("SELECT id, job_id FROM queue.claim('q', 30)");
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
                // One call ends many jobs, with each kind of end.
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
    // Notes are also known after a crash.
    drop(client);
    cluster.restart_killed();
    let mut client = cluster.connect();
    maintain(&mut client);
    let state = |client: &mut Client, job: i64, condition: &str| {
        let sql = format!("coalesce((SELECT {condition} FROM queue.job({job})), false)");
        assert!(
            is(client, &sql),
            "{job} is not {condition}: {:?}",
            client.value::<String>(&format!("SELECT j::text FROM queue.job({job}) AS j"))
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
fn the_ring_waits_for_readers_of_a_toast_table_and_blocks_no_other_session() {
    let cluster = still(&[]);
    let mut client = cluster.connect();
    client.run(&format!("SELECT queue.enqueue('q', {})", large(30_000)));
    assert_eq!(client.work_off("q", 1), 1);
    let sql = "SELECT reltoastrelid::regclass::text FROM pg_class WHERE oid = 'queue_internal.attempt_0'::regclass";
    let toast: String = client.value(sql);
    let mut reader = cluster.connect();
    reader.run(&format!("BEGIN; SELECT count(*) FROM {toast}"));
    fill(&mut client);
    drive(&mut client, "history has it", &in_state(0, "'h'"));
    client.run("SET statement_timeout = '5s'");
    for _ in 0..5 {
        maintain(&mut client);
    }
    assert!(is(&mut client, &in_state(0, "'h'")));
    assert!(is(&mut client, "(SELECT count(*) > 0 FROM queue_internal.attempt_0)"));
    reader.run("COMMIT");
    drive(&mut client, "the segment is empty", &in_state(0, "'f'"));
}

#[test]
fn rolled_back_rows_are_emptied_too() {
    let cluster = cluster(&["pg_queue.segment_age = 1"]);
    let mut client = cluster.connect();
    client.run("BEGIN");
    enqueue(&mut client, 10, "");
    client.run("ROLLBACK");
    wait::until_true("the dead rows are gone", || is(&mut client, "pg_relation_size('queue_internal.attempt_0') = 0"));
}

/// Enqueues and completes jobs and leaves a few of them living until it is stopped. Some segments turn each second.
pub fn load(cluster: &Cluster, stop: &AtomicBool) {
    let mut client = cluster.connect();
    while !stop.load(Ordering::Relaxed) {
        enqueue(&mut client, 195, "");
        enqueue(&mut client, 5, ", priority => 9");
        enqueue(&mut client, 1, ", delay => '20 days'");
        client.work_off("q", 195);
        thread::sleep(Duration::from_millis(40));
    }
}

#[test]
fn jobs_that_commit_while_a_start_counts_the_rows_are_counted() {
    let cluster = still(&["pg_queue.segment_age = 1"]);
    let mut client = cluster.connect();
    let held = hold_session(&cluster, cluster.connect(), "segment.counted", "SELECT queue.maintain()");
    enqueue(&mut client, 1, "");
    assert_eq!(client.work_off("q", 1), 1);
    assert_eq!(release(held), "");
    // If the count missed this job, the segment would stay open until the next job.
    drive(&mut client, "history has the job", "(SELECT count(*) = 1 FROM queue_internal.history)");
}

#[test]
fn jobs_of_an_open_transaction_count_as_living_after_a_start_has_counted_the_rows() {
    // The open transaction has its jobs before the count, or adds them during the count.
    for comes_late in [false, true] {
        let cluster = still(&[]);
        let mut client = cluster.connect();
        let mut open = cluster.connect();
        open.run("BEGIN");
        if comes_late {
            let held = hold_session(&cluster, cluster.connect(), "segment.counting", "SELECT queue.maintain()");
            enqueue(&mut open, ROWS, "");
            assert_eq!(release(held), "");
        } else {
            enqueue(&mut open, ROWS, "");
        }
        // The count covers both open segments, a young and an old one.
        (0..5).for_each(|_| maintain(&mut client));
        open.run("COMMIT");
        drive(&mut client, "the segment is closed", &in_state(0, "'c'"));
        // More than a twentieth of the jobs live. If fewer did, the segment would be moved without need.
        client.work_off("q", ROWS * 92 / 100);
        (0..5).for_each(|_| maintain(&mut client));
        assert!(is(&mut client, &in_state(0, "'c'")), "the segment is moved");
        client.work_off("q", ROWS * 4 / 100);
        drive(&mut client, "the segment is moved", &in_state(0, "'m', 'd', 'h', 'e', 'f'"));
    }
}
