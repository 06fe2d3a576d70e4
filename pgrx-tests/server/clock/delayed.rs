//! Delayed jobs start on time: many together, after a restart, behind many cancelled ones. Jobs with long delays are
//! not moved.

use std::time::SystemTime;

use crate::shared::*;

/// Claims and waits this long. Returns how late the claimed jobs were, in seconds.
fn claim_late(client: &mut Client, wait: &str) -> Vec<f64> {
    client.column(&format!(
        "SELECT extract(epoch FROM clock_timestamp() - (payload ->> 'at')::timestamptz)::float8
         FROM queue.claim('q', 1000, wait => '{wait}')"
    ))
}

/// Enqueues jobs for the time `after` from now. Their payload has the time.
fn enqueue(client: &mut Client, jobs: i64, after: &str) {
    client.run(&format!(
        "SELECT count(queue.enqueue('q', jsonb_build_object('at', at), run_at => at))
         FROM (SELECT clock_timestamp() + '{after}' AS at OFFSET 0) AS x, generate_series(1, {jobs})"
    ));
}

#[test]
fn more_jobs_than_fit_into_memory_fall_due_together_and_run_once_in_order() {
    let (_cluster, mut client) = Cluster::new().conf("pg_queue.max_ready = 16").start_with_database("app");
    create(&mut client, "q", "");
    // The lane has a job in memory, and the due jobs come to a position in the middle of the lane.
    client.run("SELECT queue.enqueue('q', priority => 50)");
    client.run(
        "SELECT count(*) FROM generate_series(1, 1000) AS n,
             queue.enqueue('q', priority => (n * 37 % 100)::int,
             run_at => now() + '300 ms' + n * 37 % 11 * '1 us'::interval)",
    );
    let due = "SELECT count(*) FROM queue.jobs WHERE run_at < now() AND state = 'ready'";
    wait::until_true("all are due", || client.value::<i64>(due) == 1000);
    let mut claimed: Vec<(i32, i64)> = Vec::new();
    wait::until_true("all are claimed", || {
        let rows = client.query("SELECT priority, job_id FROM queue.claim('q', 7)", &[]).unwrap();
        claimed.extend(rows.iter().map(|row| (row.get::<_, i32>(0), row.get::<_, i64>(1))));
        claimed.len() == 1001
    });
    assert!(claimed.is_sorted(), "{claimed:?}");
    claimed.dedup();
    assert_eq!(claimed.len(), 1001);
    assert_eq!(client.count("SELECT id FROM queue.claim('q')"), 0);
}

#[test]
fn sleeping_workers_get_all_of_many_jobs_that_fall_due_together() {
    let (cluster, mut client) = Cluster::new().conf("pg_queue.max_ready = 16").start_with_database("app");
    create(&mut client, "q", "");
    enqueue(&mut client, 1000, "500 ms");
    let claimed = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = cluster.connect_to("app");
                while claimed.load(std::sync::atomic::Ordering::SeqCst) < 1000 {
                    // The wait is so long that no claim gets a job by polling.
                    let ids: Vec<i64> = client.column("SELECT id FROM queue.claim('q', 5, wait => '8 s')");
                    let before = claimed.fetch_add(ids.len(), std::sync::atomic::Ordering::SeqCst);
                    assert!(!ids.is_empty() || before >= 1000, "slept with {before} of 1000 claimed");
                }
            });
        }
    });
    assert_eq!(claimed.into_inner(), 1000);
}

#[test]
fn jobs_that_fell_due_while_the_server_was_down_start_with_the_server() {
    let (cluster, mut client) = Cluster::new().start_with_database("app");
    create(&mut client, "q", "");
    for stop in [Cluster::stop_fast, Cluster::kill_server] {
        enqueue(&mut client, 3, "1 s");
        enqueue(&mut client, 2, "1 hour");
        let due = SystemTime::now() + Duration::from_secs(1);
        stop(&cluster);
        wait::until_true("the jobs are due", || SystemTime::now() > due);
        cluster.start_again();
        client = cluster.connect_to("app");
        // The job is claimed without the worker.
        assert_eq!(claim_late(&mut client, "0").len(), 3);
    }
}

#[test]
fn jobs_that_fall_due_after_a_start_are_started_by_the_worker() {
    let (cluster, mut client) = Cluster::new().start_with_database("app");
    create(&mut client, "q", "");
    enqueue(&mut client, 1, "3 s");
    cluster.restart();
    let mut client = cluster.connect_to("app");
    // The second claim sleeps until the job's time, even if the first claim read the job early.
    let late = wait::until("the job is claimed", || claim_late(&mut client, "10 s").pop());
    assert!((0.0..5.0).contains(&late), "{late} s late");
}

#[test]
fn a_delayed_job_starts_in_time_behind_many_that_were_cancelled() {
    let (_database, mut client) = Database::new().with_queue("q", "");
    assert_eq!(claim_late(&mut client, "0").len(), 0);
    enqueue(&mut client, 500, "1 s");
    client.run("SELECT queue.cancel(job_id) FROM queue.jobs");
    enqueue(&mut client, 5, "2 s");
    let start = Instant::now();
    let late = claim_late(&mut client, "9 s");
    assert_eq!(late.len(), 5, "after {:?}", start.elapsed());
    assert!(late.iter().all(|late| (0.0..5.0).contains(late)), "{late:?}");
}

#[test]
fn many_long_delayed_jobs_are_not_moved_because_a_few_end() {
    let (_cluster, mut client) =
        Cluster::with(&["pg_queue.segment_age = 1", "pg_queue.reclaim_delay = 0"]).start_with_database("app");
    create(&mut client, "q", "");
    client.run("SELECT count(queue.enqueue('q', delay => '1 year')) FROM generate_series(1, 2000)");
    let half = "SELECT max(generation) FROM queue_internal.segment_log WHERE segment >= 8 AND state = 'o'";
    let turns = "SELECT max(generation) FROM queue_internal.segment_log WHERE segment < 8";
    let cancel = |client: &mut Client, many: i64| {
        let sql =
            "SELECT queue.cancel(job_id) FROM (SELECT job_id FROM queue.jobs WHERE state = 'scheduled' LIMIT $1) AS x";
        client.execute(sql, &[&many]).unwrap();
    };
    let turn = |client: &mut Client, what: &str, is_done: &mut dyn FnMut(&mut Client) -> bool| {
        wait::within(what, Duration::from_secs(60), || {
            client.enqueue("q");
            client.run("SELECT queue.complete(id) FROM queue.claim('q')");
            is_done(client).then_some(())
        });
    };
    let first: i64 = client.value(half);
    cancel(&mut client, 1);
    let begun: i64 = client.value(turns);
    // The ring turns for longer than the eight segments after which a half with few living jobs would be closed. So
    // many jobs live that the few extra jobs of a turn make no difference.
    turn(&mut client, "the ring has turned", &mut |client| client.value::<i64>(turns) >= begun + 12);
    assert_eq!(client.value::<i64>(half), first, "nearly two thousand were moved for a few that had ended");
    cancel(&mut client, 1200);
    turn(&mut client, "the half is closed", &mut |client| client.value::<i64>(half) > first);
    let ended = "SELECT count(*) FROM queue_internal.history WHERE outcome = 'x'";
    wait::until_true("history has what was cancelled", || client.value::<i64>(ended) == 1201);
    assert_eq!(client.value::<i64>("SELECT count(*) FROM queue.jobs WHERE state = 'scheduled'"), 799);
}

#[test]
fn a_delay_is_of_the_session_s_calendar() {
    let (mut client, q) = queue("");
    client.run("SET timezone = 'Europe/Berlin'");
    // At least one of these delays ends after a change of the clock.
    for delay in ["3 months", "6 months", "9 months"] {
        client.run("BEGIN");
        let (earliest, job): (SystemTime, i64) = {
            let sql = format!("SELECT clock_timestamp() + '{delay}', queue.enqueue('{q}', delay => '{delay}')");
            client.row(&sql)
        };
        client.run("COMMIT");
        let run_at: SystemTime = client.value(&format!("SELECT run_at FROM queue.job({job})"));
        let off = run_at.duration_since(earliest).unwrap_or_else(|early| early.duration());
        assert!(off < Duration::from_secs(600), "{delay}: off by {off:?}");
    }
}
