//! The turn of the memory of keys (`duty::rotate_keys`) by two processes at the same time, and by sessions one after
//! the other.

use crate::faults::held::{begin, hold_session, release};
use crate::shared::*;

/// Starts a server without a worker, with a queue whose memory of keys is large enough for a turn. Also returns the job
/// of its first key.
fn grown(reclaim_delay: &str) -> (Cluster, Client, i64) {
    let delay = format!("pg_queue.reclaim_delay = {reclaim_delay}");
    let (cluster, mut client) = Cluster::new().conf("pg_queue.worker = off").conf(&delay).start_with_extension();
    client.run("SELECT queue.create('q')");
    let first = remember(&mut client, "first");
    // The keys take more than 8 MB, and each is soon forgotten.
    client.run(
        "SELECT queue.enqueue_batch('q', (SELECT jsonb_agg(jsonb_build_object('unique_key', repeat(md5(n::text), 30),
             'unique_for', '1 ms')) FROM generate_series(1, 9000) AS n)); SELECT queue.purge('q')",
    );
    (cluster, client, first)
}

/// Makes memory keep a key for a day after its job.
fn remember(client: &mut Client, key: &str) -> i64 {
    let job = client.value(&format!("SELECT queue.enqueue('q', unique_key => '{key}', unique_for => '1 day')"));
    client.run("SELECT queue.purge('q')");
    job
}

/// Asserts that each key leads to its job.
fn are_remembered(client: &mut Client, keys: &[(&str, i64)]) {
    for &(key, job) in keys {
        assert_eq!(client.value::<i64>(&format!("SELECT queue.enqueue('q', unique_key => '{key}')")), job, "{key}");
    }
}

fn is_empty(client: &mut Client, half: u8) -> bool {
    client.value(&format!("SELECT pg_relation_size('queue_internal.key_{half}') = 0"))
}

/// Runs the duties in new sessions until this half is empty.
fn maintain_until_empty(client: &mut Client, half: u8) {
    wait::until_true(&format!("half {half} is empty"), || {
        client.run("SELECT FROM queue.maintain()");
        is_empty(client, half)
    });
}

#[test]
fn a_process_that_checked_before_another_one_turned_the_memory_of_keys_empties_nothing() {
    let (cluster, mut client, first) = grown("0");
    let held = hold_session(&cluster, cluster.connect(), "keys.looked", "SELECT FROM queue.maintain()");
    // The duties open half 1 and copy half 0. A reader keeps half 0 from being emptied.
    let mut reader = cluster.connect();
    reader.run("BEGIN; LOCK TABLE queue_internal.key_0 IN ACCESS SHARE MODE");
    for _ in 0..3 {
        client.run("SELECT FROM queue.maintain()");
    }
    let second = remember(&mut client, "second");
    assert!(!is_empty(&mut client, 1), "half 1 is open");
    assert_eq!(release(held), "");
    assert!(!is_empty(&mut client, 1), "the half that is open was emptied");
    reader.run("COMMIT");
    maintain_until_empty(&mut client, 0);
    are_remembered(&mut client, &[("first", first), ("second", second)]);
}

#[test]
fn a_process_that_looks_while_another_one_copies_the_memory_of_keys_passes_on() {
    let (cluster, mut client, first) = grown("0");
    let held = hold_session(&cluster, cluster.connect(), "keys.read", "SELECT FROM queue.maintain()");
    client.run("SELECT FROM queue.maintain()");
    assert!(is_empty(&mut client, 1), "nothing is copied yet");
    let second = remember(&mut client, "second");
    assert_eq!(release(held), "");
    maintain_until_empty(&mut client, 0);
    are_remembered(&mut client, &[("first", first), ("second", second)]);
}

#[test]
fn a_process_that_checks_while_another_one_empties_a_half_of_the_memory_of_keys_forgets_no_key() {
    for point in ["keys.copied", "keys.emptied"] {
        let (cluster, mut client, first) = grown("0");
        // The first call opens the other half and copies. Another transaction empties the remaining half.
        client.run("SELECT FROM queue.maintain()");
        let second = remember(&mut client, "second");
        let held = hold_session(&cluster, cluster.connect(), point, "SELECT FROM queue.maintain()");
        let mut other = cluster.connect();
        let pid = other.pid();
        let other = begin(other, "SELECT FROM queue.maintain()".to_owned());
        wait_blocked(&mut client, pid);
        assert_eq!(release(held), "", "{point}");
        assert_eq!(other.join().unwrap().1, "", "{point}");
        assert!(is_empty(&mut client, 0), "{point}");
        are_remembered(&mut client, &[("first", first), ("second", second)]);
    }
}

#[test]
fn a_worker_and_a_session_that_turn_the_memory_of_keys_together_forget_no_key() {
    let (cluster, mut client, first) = grown("0");
    let fault = cluster.fault("keys.read", "wait");
    client.run("ALTER SYSTEM SET pg_queue.worker = on");
    cluster.reload();
    let pid = fault.wait_reached();
    let kind: String = client.value(&format!("SELECT backend_type FROM pg_stat_activity WHERE pid = {pid}"));
    assert!(kind.starts_with("pg_queue"), "{kind}");
    client.run("SELECT FROM queue.maintain()");
    let second = remember(&mut client, "second");
    drop(fault);
    maintain_until_empty(&mut client, 0);
    are_remembered(&mut client, &[("first", first), ("second", second)]);
}

#[test]
fn sessions_that_come_one_after_the_other_empty_a_half_of_the_memory_of_keys() {
    let (cluster, mut client, first) = grown("100");
    wait::until_true("the half is empty", || {
        // Each session checks once and ends before the delay is over.
        cluster.connect().run("SELECT FROM queue.maintain()");
        is_empty(&mut client, 0)
    });
    are_remembered(&mut client, &[("first", first)]);
}
