//! A longer lease after a crash, and a longer lease of an attempt for which memory had no room.

use crate::faults::held::{begin, hold_session, release};
use crate::shared::*;

#[test]
fn a_lease_that_was_lengthened_is_that_long_after_a_crash_at_any_point_behind_the_commit() {
    let (cluster, mut client) = Cluster::new().start_with_database("app");
    create(&mut client, "q", "lease => '1 minute'");
    for (point, is_kept) in
        [("row.note.after", false), ("commit.checked", false), ("commit.visible", true), ("commit.settled", true)]
    {
        client.enqueue("q");
        let id = client.claim("q");
        let mut session = cluster.connect_to("app");
        let fault = cluster.fault_of(session.pid(), point, "crash");
        let (_, code) = begin(session, format!("SELECT queue.extend({id}, '1 hour')")).join().unwrap();
        assert_eq!(code, "57P01", "{point}: the call has answered");
        assert!(fault.release(), "{point}");
        // The server ends all connections before it restarts.
        wait::until_true("the server has noticed the crash", || client.simple_query("").is_err());
        cluster.wait_ready();
        client = cluster.connect_to("app");
        client.run("SELECT FROM queue.maintain()");
        let left = lease_left(&mut client, id);
        assert_eq!(left > 3500.0, is_kept, "{point}: the lease lasts {left} s");
        assert!(is_kept || left > 50.0, "{point}: the lease lasts {left} s");
        client.run(&format!("SELECT queue.complete({id})"));
    }
}

/// Starts a server with more running attempts than memory has room for, each with a lease of a minute. Returns an
/// attempt outside memory and one inside.
fn full() -> (Cluster, Client, i64, i64) {
    let (cluster, mut client) =
        Cluster::with(&["pg_queue.worker = off", "pg_queue.max_running = 40"]).start_with_database("app");
    create(&mut client, "q", "lease => '1 minute'");
    client.run("SELECT queue.enqueue('q') FROM generate_series(1, 20)");
    assert_eq!(client.count("SELECT FROM queue.claim('q', 20)"), 20);
    cluster.append_conf("pg_queue.max_running = 8");
    drop(client);
    cluster.restart();
    let mut client = cluster.connect_to("app");
    client.run("SELECT FROM queue.maintain()");
    let known = "SELECT id FROM queue.attempts WHERE state = 'running' AND queue_internal.lease_expires_at(id) IS";
    let inside: i64 = client.value(&format!("{known} NOT NULL ORDER BY id LIMIT 1"));
    let outside: i64 = client.value(&format!("{known} NULL ORDER BY id LIMIT 1"));
    (cluster, client, outside, inside)
}

#[test]
fn a_longer_lease_of_an_attempt_that_comes_into_memory_before_the_commit_lasts() {
    let (cluster, mut client, outside, inside) = full();
    let mut session = cluster.connect_to("app");
    session.run(&format!("BEGIN; SELECT queue.extend({outside}, '1 hour')"));
    client.run(&format!("SELECT queue.complete({inside})"));
    cluster.connect_to("app").run("SELECT FROM queue.maintain()");
    assert!(lease_left(&mut client, outside) < 61.0, "memory has it by now, without the note");
    session.run("COMMIT");
    let left = lease_left(&mut client, outside);
    assert!(left > 3500.0, "the lease lasts {left} s");
}

#[test]
fn a_longer_lease_that_is_committed_while_its_attempt_is_read_into_memory_lasts() {
    let (cluster, mut client, outside, inside) = full();
    let recover = cluster.connect_to("app");
    let held = hold_session(&cluster, recover, "recover.read", "SELECT FROM queue.maintain()");
    cluster.connect_to("app").run(&format!("SELECT queue.extend({outside}, '1 hour')"));
    client.run(&format!("SELECT queue.complete({inside})"));
    assert_eq!(release(held), "");
    let left = lease_left(&mut client, outside);
    assert!(left > 3500.0, "the lease lasts {left} s");
}
