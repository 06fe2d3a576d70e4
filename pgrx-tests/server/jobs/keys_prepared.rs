//! Unique keys of prepared transactions are held until these end, even over a restart.

use crate::jobs::keys_races::{enqueue, jobs, later, wait_until_it_waits};
use crate::shared::*;

#[test]
fn a_prepared_transaction_holds_its_keys_until_it_ends() {
    for end in ["COMMIT PREPARED", "ROLLBACK PREPARED"] {
        let (mut client, q) = queue("");
        client.run(&format!("BEGIN; {}; PREPARE TRANSACTION '{q}'", enqueue(&q, "k", "skip")));
        let (pid, answer) = later(enqueue(&q, "k", "skip"));
        wait_until_it_waits(&mut client, pid);
        client.run(&format!("{end} '{q}'"));
        let job = answer.recv().unwrap().unwrap();
        assert_eq!(jobs(&mut client, &q), 1, "{end}");
        assert_eq!(client.value::<i64>(&enqueue(&q, "k", "skip")), job);
    }
}

#[test]
fn a_run_requested_in_a_prepared_transaction_is_made() {
    let (mut client, q) = queue("");
    let job: i64 = client.value(&enqueue(&q, "k", "skip"));
    let id = client.claim(&q);
    client.run(&format!(
        "BEGIN; SELECT queue.enqueue('{q}', '2', unique_key => 'k', on_duplicate => 'rerun'); PREPARE TRANSACTION '{q}'"
    ));
    client.run(&format!("SELECT queue.complete({id})"));
    assert_eq!(client.state(job), "completed");
    client.run(&format!("COMMIT PREPARED '{q}'"));
    wait::until_true("it runs once more", || client.state(job) == "ready");
    // A transaction that has taken a waiting job cannot be prepared.
    client.run(&format!("BEGIN; {}", enqueue(&q, "k", "replace")));
    client.refused(&format!("PREPARE TRANSACTION '{q}'"), "0A000");
}

#[test]
fn a_key_of_a_prepared_transaction_is_held_over_a_restart() {
    let (cluster, mut client) = Cluster::new().conf("max_prepared_transactions = 4").start_with_database("app");
    create(&mut client, "q", "");
    let enqueue = "SELECT queue.enqueue('q', unique_key => 'k')";
    client.run("BEGIN");
    let first: i64 = client.value(enqueue);
    client.run("PREPARE TRANSACTION 'a'");
    client.run("BEGIN; SELECT queue.enqueue('q', unique_key => 'gone'); PREPARE TRANSACTION 'b'");
    cluster.restart_killed();
    let mut client = cluster.connect_to("app");
    client.run("SET lock_timeout = '1 s'");
    client.refused(enqueue, "55P03");
    // Sessions with another key do not wait for it.
    client.run("SELECT queue.enqueue('q', unique_key => 'other')");
    let second = blocked::<i64>(&mut client, cluster.connect_to("app"), enqueue);
    client.run("COMMIT PREPARED 'a'");
    assert_eq!(second.join().unwrap().unwrap(), first);
    client.run("ROLLBACK PREPARED 'b'");
    client.run("SELECT queue.enqueue('q', unique_key => 'gone')");
    assert_eq!(client.count("SELECT FROM queue.jobs WHERE state = 'ready'"), 3);
}

#[test]
fn a_run_requested_in_a_prepared_transaction_holds_its_key_over_a_restart() {
    let (cluster, mut client) = Cluster::new().conf("max_prepared_transactions = 4").start_with_database("app");
    create(&mut client, "q", "");
    let rerun = |payload: i32, version: i32| {
        format!(
            "SELECT queue.enqueue('q', '{payload}', unique_key => 'k', on_duplicate => 'rerun',
                 version => timestamptz '2026-01-01Z' + interval '{version} days', unique_for => '1 hour')"
        )
    };
    let job: i64 = client.value(&rerun(1, 1));
    let id = client.claim("q");
    // The transaction leaves a note and a key row, but no attempt.
    client.run(&format!("BEGIN; {}; PREPARE TRANSACTION 'newest'", rerun(3, 3)));
    cluster.restart_killed();
    let mut client = cluster.connect_to("app");
    client.run("SET lock_timeout = '1 s'");
    client.refused(&rerun(2, 2), "55P03");
    let older = blocked::<i64>(&mut client, cluster.connect_to("app"), rerun(2, 2));
    client.run("COMMIT PREPARED 'newest'");
    assert_eq!(older.join().unwrap().unwrap(), job, "the call counts for nothing");
    assert_eq!(client.value::<i64>(&rerun(2, 2)), job);
    client.run(&format!("SELECT queue.complete({id})"));
    wait::until_true("it runs once more", || client.state(job) == "ready");
    assert_eq!(client.column::<String>("SELECT payload::text FROM queue.claim('q', 10)"), ["3"]);
}
