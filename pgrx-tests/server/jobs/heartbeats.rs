//! `queue.extend`: its answers and effects, also just before the end of a lease.

use crate::jobs::fencing::with;
use crate::shared::*;

#[test]
fn a_heartbeat_after_the_deadline_keeps_the_attempt() {
    let database = Database::without_worker();
    let mut client = database.connect();
    client.run("SELECT queue.create('q')");
    client.enqueue("q");
    let id: i64 = client.value("SELECT id FROM queue.claim('q', lease => '1 ms')");
    wait::until_true("the lease is over", || lease_left(&mut client, id) < 0.0);
    let left: f64 = client.value(&format!(
        "SELECT extract(epoch FROM lease_expires_at - clock_timestamp())::float8 FROM queue.extend({id}, '1 hour')"
    ));
    assert!((3590.0..=3600.0).contains(&left), "{left}");
    client.run("SELECT FROM queue.maintain()");
    client.run(&format!("SELECT queue.complete({id})"));
}

#[test]
fn a_heartbeat_stays_when_its_transaction_is_rolled_back() {
    let (mut client, q) = queue("");
    client.enqueue(&q);
    let id = client.claim(&q);
    client.run(&format!("BEGIN; SELECT queue.extend({id}, '1 day'); ROLLBACK"));
    let left = lease_left(&mut client, id);
    assert!((86_390.0..=86_400.0).contains(&left), "{left}");
}

#[test]
fn a_cancelled_worker_sees_it_at_its_heartbeat_and_may_still_complete() {
    let (mut client, q) = queue("");
    let heartbeat = |id: i64| format!("SELECT is_cancelled FROM queue.extend({id})");
    for (end, state) in [
        ("SELECT queue.complete($)", "completed"),
        ("SELECT queue.fail($, 'stopped')", "cancelled"),
        ("SELECT queue.release($)", "cancelled"),
    ] {
        let job = client.enqueue(&q);
        let id = client.claim(&q);
        assert!(!client.value::<bool>(&heartbeat(id)));
        let mut other = connect();
        other.run(&format!("BEGIN; SELECT queue.cancel({job}, 'changed my mind'); ROLLBACK"));
        assert!(!client.value::<bool>(&heartbeat(id)), "a rolled-back request is none");
        assert_eq!(other.value::<String>(&format!("SELECT queue.cancel({job}, 'changed my mind')")), "cancelling");
        assert!(client.value::<bool>(&heartbeat(id)));
        assert!(client.value::<bool>(&format!("SELECT is_cancelled FROM queue.extend_many(ARRAY[{id}])")));
        client.run(&with(end, id));
        assert_eq!(client.state(job), state, "{end}");
        assert_eq!(client.count(&format!("SELECT FROM queue.claim('{q}')")), 0, "{end}");
    }
}

#[test]
fn a_cancelled_attempt_that_times_out_is_cancelled() {
    let (mut client, q) = queue("");
    let job = client.enqueue(&q);
    client.run(&format!("SELECT FROM queue.claim('{q}', lease => '10 ms')"));
    // On a slow machine the lease may expire first. In that case the job waits again and is cancelled immediately.
    let answer: String = client.value(&format!("SELECT queue.cancel({job})"));
    assert!(["cancelling", "cancelled"].contains(&answer.as_str()), "{answer}");
    client.maintain_until(&format!("(SELECT state = 'cancelled' FROM queue.job({job}))"));
    assert_eq!(client.count(&format!("SELECT FROM queue.claim('{q}')")), 0);
}

#[test]
fn a_heartbeat_that_comes_after_the_end_of_the_lease_reports_no_new_lease() {
    let (cluster, mut client) = Cluster::new().start_with_database("app");
    create(&mut client, "q", "lease => '1 s'");
    client.run("SELECT queue.enqueue('q')");
    // A lease longer than all earlier ones needs a note, and the note has to wait.
    let mut locker = cluster.connect_to("app");
    let notes: Vec<String> = (0..8).map(|n| format!("queue_internal.note_{n}")).collect();
    locker.run(&format!("BEGIN; LOCK TABLE {} IN SHARE MODE", notes.join(", ")));
    let id: i64 = client.value("SELECT id FROM queue.claim('q')");
    std::thread::scope(|scope| {
        let mut worker = cluster.connect_to("app");
        let heartbeat = scope.spawn(move || {
            worker.value::<String>(&format!(
                "SELECT concat_ws(' ', outcome, lease_expires_at, is_cancelled) \
                    FROM queue.extend_many('{{{id}}}', '1 hour')"
            ))
        });
        wait::until_true("the lease is over", || {
            let ended = format!("SELECT FROM queue.attempts WHERE id = {id} AND state = 'timed_out'");
            client.count(&ended) == 1
        });
        locker.run("COMMIT");
        assert_eq!(heartbeat.join().unwrap(), "lost");
    });
}

#[test]
fn what_a_heartbeat_in_the_last_moment_says_is_so() {
    // A long lease, so that no heartbeat has to note anything.
    let (_database, mut client) = Database::new().with_queue("q", "lease => '1 hour', max_attempts => 1");
    for _ in 0..40 {
        client.run("SELECT queue.enqueue_batch('q', (SELECT jsonb_agg('{}'::jsonb) FROM generate_series(1, 200)))");
        let ids: Vec<i64> = client.column("SELECT id FROM queue.claim('q', 200)");
        let all = format!("ARRAY{ids:?}::bigint[]");
        client.run(&format!("SELECT FROM queue.extend_many({all}, '2 ms')"));
        let said = wait::until("the leases begin to end", || {
            let said: Vec<i64> =
                client.column(&format!("SELECT id FROM queue.extend_many({all}, '1 hour') WHERE outcome = 'extended'"));
            let (is_over, short) = (said.len() < ids.len(), format!("SELECT FROM queue.extend_many({all}, '1 ms')"));
            if !is_over {
                client.run(&short);
            }
            is_over.then_some(said)
        });
        let kept = format!("SELECT FROM queue.complete_many(ARRAY{said:?}::bigint[]) WHERE outcome = 'completed'");
        assert_eq!(client.count(&kept), said.len());
    }
}
