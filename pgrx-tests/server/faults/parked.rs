//! The groups' index is replaced while a session has written into it and not committed.

use std::sync::Arc;

use crate::faults::held::begin;
use crate::shared::*;

/// Completes the running jobs of these groups and claims the queue's next jobs. Returns the number of claimed jobs.
fn turn(client: &mut postgres::Client, groups: &str) -> usize {
    client.run(&format!(
        "SELECT queue.complete(a.id) FROM queue.attempts AS a, queue.job(a.job_id) AS j
         WHERE a.state = 'running' AND j.group_key = ANY ('{groups}')"
    ));
    client.count("SELECT FROM queue.claim('g', 3)")
}

#[test]
fn no_job_is_stuck_if_a_move_wrote_its_entry_into_an_index_that_is_replaced() {
    let (cluster, mut client) =
        Cluster::with(&["pg_queue.max_ready = 16", "pg_queue.segment_age = 1"]).start_with_database("app");
    client.switch_worker_off();
    let mut client = cluster.connect_to("app");
    create(&mut client, "g", "max_running_per_group => 1, lease => '1 hour'");
    create(&mut client, "p", "");
    let enqueue = |client: &mut postgres::Client, group: &str, count: i64| {
        client.run(&format!(
            "SELECT count(*) FROM queue.enqueue_many('g', array_fill('1'::jsonb, '{{{count}}}'),
                 group_key => '{group}')"
        ));
    };
    client.run("SELECT count(*) FROM queue.enqueue_many('p', array_fill('1'::jsonb, '{3000}'))");
    enqueue(&mut client, "a", 60);
    enqueue(&mut client, "b", 40);
    client.run("SELECT count(queue.complete(id)) FROM queue.claim('p', 3000)");
    assert_eq!(client.count("SELECT FROM queue.claim('g', 2)") + client.count("SELECT FROM queue.claim('g')"), 2);
    // Few attempts live in the first segment, so the duty moves them.
    wait::until_true("the first segment is being moved", || {
        client.run("SELECT FROM queue.maintain() WHERE duty = 'storage'");
        let state = "SELECT state::text FROM queue_internal.segment_log WHERE segment = 0 ORDER BY entry DESC LIMIT 1";
        client.value::<String>(state) == "m"
    });
    enqueue(&mut client, "c", 80);
    client.run("SELECT FROM queue.claim('g'); SELECT FROM queue.claim('g')");

    let (mut snapshot, mut builder) = (cluster.connect_to("app"), cluster.connect_to("app"));
    snapshot.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT");
    let phase = format!("SELECT phase FROM pg_stat_progress_create_index WHERE pid = {}", builder.pid());
    let mut looker = cluster.connect_to("app");
    let mut reaches = |wanted: &str| {
        wait::until_true(wanted, || looker.column::<String>(&phase).iter().any(|phase| phase == wanted));
    };
    let built = begin(builder, "REINDEX INDEX CONCURRENTLY queue_internal.parked_8_idx".to_owned());
    reaches("waiting for old snapshots");
    let mut session = cluster.connect_to("app");
    let held = cluster.fault_of(session.pid(), "move.written", "wait");
    let is_over = Arc::new(AtomicBool::new(false));
    let mover = thread::spawn({
        let is_over = Arc::clone(&is_over);
        move || {
            // The storage duty pauses between its steps.
            while !is_over.load(Ordering::Relaxed) {
                session.run("SELECT FROM queue.maintain()");
                thread::sleep(Duration::from_millis(20));
            }
        }
    });
    held.wait_reached();
    snapshot.run("COMMIT");
    reaches("waiting for readers before marking dead");
    // Turns of the third group use the new index, which is empty.
    (0..40).for_each(|_| {
        turn(&mut client, "{c}");
    });
    is_over.store(true, Ordering::Relaxed);
    drop(held);
    mover.join().unwrap();
    assert_eq!(built.join().unwrap().1, "");
    while turn(&mut client, "{a,b,c}") > 0 {}
    assert_eq!(client.count("SELECT FROM queue.jobs WHERE queue_name = 'g' AND state <> 'completed'"), 0);
}
