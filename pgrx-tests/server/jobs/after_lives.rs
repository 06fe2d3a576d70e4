//! Held jobs survive a dropped queue, a move to another segment, a restart and a crash, and more of them than memory
//! lists.

use crate::jobs::after::{after, database, end, maintain, maintain_everything, overdue};
use crate::shared::*;
use crate::storage::segments::cluster;

#[test]
fn a_dropped_queue_skips_the_successors_of_its_jobs() {
    let (_database, mut client) = database();
    create(&mut client, "other", "");
    let before = client.enqueue("other");
    let held = after(&mut client, &[before], "completed");
    let cleanup = after(&mut client, &[before], "ended");
    let back: i64 = client.value(&format!("SELECT queue.enqueue('other', after => '{{{held}}}')"));
    maintain(&mut client);
    assert_eq!(client.state(held), "held");
    assert_eq!(client.failure("SELECT queue.drop('other')").code, "55000", "held jobs live");
    client.run("SELECT queue.drop('other', force => true)");
    maintain_everything(&mut client);
    assert_eq!((client.state(held), client.state(cleanup)), ("skipped".into(), "ready".into()));
    assert_eq!(client.count(&format!("SELECT FROM queue.job({back})")), 0);
}

#[test]
fn held_jobs_move_together_with_their_predecessors() {
    let cluster = cluster(&["pg_queue.segment_age = 3600"]);
    let mut client = cluster.connect();
    create(&mut client, "brief", "retention => '0', lease => '1 hour'");
    let jobs: Vec<i64> = client.column("SELECT queue.enqueue('brief') FROM generate_series(1, 3)");
    let held = after(&mut client, &jobs, "completed");
    let waiting = after(&mut client, &jobs[2..], "completed");
    client.run("SELECT queue.complete(id) FROM queue.claim('brief', 2)");
    // The ring turns until the two completed jobs are in no segment.
    wait::until_true("their retention is over", || {
        client.run(
            "SELECT count(*) FROM queue.enqueue_many('brief', ARRAY(SELECT '1'::jsonb FROM generate_series(1, 500)), \
                priority => -9)",
        );
        client.run("SELECT count(queue.complete(id)) FROM queue.claim('brief', 500)");
        client.count(&format!("SELECT FROM queue.job({})", jobs[0])) == 0
    });
    assert_eq!((client.state(held), client.state(waiting)), ("held".into(), "held".into()));
    client.check();
    client.run("SELECT queue.complete(id) FROM queue.claim('brief')");
    for job in [held, waiting] {
        wait::until_true("it is released", || client.state(job) == "ready");
    }
}

#[test]
fn a_restart_and_a_crash_leave_no_job_held_without_reason() {
    let (cluster, mut client) = Cluster::new().conf("max_connections = 30").start_with_database("app");
    client.run("SELECT queue.create('q', max_attempts => 1, lease => '1 hour', backoff_base => '0')");
    let mut expected = Vec::new();
    for round in 0..3 {
        let before: Vec<i64> = client.column("SELECT queue.enqueue('q') FROM generate_series(1, 4)");
        let held: Vec<i64> = before.iter().map(|job| after(&mut client, &[*job], "completed")).collect();
        let all = after(&mut client, &before, "ended");
        let first = after(&mut client, &before, "any");
        let none = after(&mut client, &before[1..3], "any");
        client.switch_worker_off();
        end(&mut client, before[0], "completed");
        end(&mut client, before[1], "cancelled");
        match round {
            0 => drop(client),
            _ => client.run("CHECKPOINT"),
        }
        match round {
            0 => cluster.restart(),
            1 => cluster.kill_server(),
            _ => cluster.stop_immediate(),
        }
        if round > 0 {
            cluster.start_again();
        }
        client = cluster.connect_to("app");
        client.run("ALTER DATABASE app RESET pg_queue.worker");
        for (n, becomes) in [(0, "ready"), (1, "skipped")] {
            wait::until_true(becomes, || client.state(held[n]) == becomes);
        }
        wait::until_true("one has completed", || client.state(first) == "ready");
        assert_eq!((client.state(held[2]), client.state(all)), ("held".into(), "held".into()));
        assert_eq!(client.state(none), "held");
        for job in &before[2..] {
            client.run(&format!("SELECT queue.cancel({job})"));
        }
        wait::until_true("all have ended", || client.state(all) == "ready");
        wait::until_true("none can complete", || client.state(none) == "skipped");
        expected.extend([held[0], all, first]);
        client.run("SELECT queue.complete(id) FROM queue.claim('q', 10)");
    }
    for job in expected {
        assert_eq!(client.state(job), "completed");
    }
}

#[test]
fn an_overdue_job_is_not_missed_in_a_long_transaction_nor_over_a_restart() {
    let (cluster, mut client) = Cluster::new().conf("max_connections = 30").start_with_database("app");
    client.run("SELECT queue.create('q')");
    let before = client.enqueue("q");
    client.run("BEGIN");
    let slow = overdue(&mut client, before, "10 ms");
    // Meanwhile the worker's cursor passes the job's time.
    let mut other = cluster.connect_to("app");
    let passing: i64 = other.value("SELECT queue.enqueue('q', delay => '50 ms')");
    wait::until_true("time passes", || other.state(passing) == "ready");
    client.run("COMMIT");
    wait::until_true("it is released", || client.state(slow) == "ready");
    let waiting = overdue(&mut client, before, "1 s");
    drop((client, other));
    cluster.restart();
    let mut client = cluster.connect_to("app");
    wait::until_true("it is released", || client.state(waiting) == "ready");
}

#[test]
fn more_than_memory_lists_may_be_handed_over_at_once() {
    const JOBS: usize = 4_500;
    let (database, mut client) = Database::without_worker().with_queue("p", "lease => '1 hour'");
    create(&mut client, "q", "lease => '1 hour'");
    let states = "(SELECT held = $h AND ready = $r FROM queue.stats WHERE queue_name = 'q')";
    let are = |held: usize, ready: usize| states.replace("$h", &held.to_string()).replace("$r", &ready.to_string());
    // Each database has its own list: no other test disturbs this one.
    let enqueue = format!(
        "WITH p AS (SELECT job_id FROM queue.enqueue_many('p', array_fill('1'::jsonb, ARRAY[{JOBS}])) AS p (job_id))
         SELECT count(queue.enqueue('q', after => ARRAY[job_id])) FROM p"
    );
    // The commit of the enqueues fills the list.
    client.run(&enqueue);
    client.maintain_until("(SELECT bool_and(did = 0) FROM queue.maintain() WHERE duty = 'release')");
    assert!(client.value::<bool>(&format!("SELECT {}", are(JOBS, 0))));
    // The commit of the ends fills it, too.
    client.work_off("p", JOBS as i64);
    client.maintain_until(&are(0, JOBS));
    // Enqueues and ends both commit while the worker looks at all held jobs.
    client.run(&enqueue);
    let mut other = database.connect();
    client.run("BEGIN");
    client.work_off("p", JOBS as i64);
    other.run("SELECT FROM queue.maintain()");
    client.run("COMMIT");
    client.maintain_until(&are(0, 2 * JOBS));
    assert_eq!(client.count("SELECT FROM queue.check()"), 0);
    wait::until_true("all ran", || client.work_off("q", 1000) == 0);
    assert_eq!(client.value::<i64>("SELECT completed FROM queue.stats WHERE queue_name = 'q'"), 2 * JOBS as i64);
}
