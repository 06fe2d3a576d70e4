//! A transaction revokes a role's right. The role must not get that transaction's work.

use crate::faults::held::{begin, hold_session, release};
use crate::shared::*;

/// How `spy` loses its right on the queue `late`, and how it gets it back.
const WAYS: &[(&str, &str)] = &[
    ("SELECT queue.revoke('late', 'spy', 'consume')", "SELECT queue.grant('late', 'spy', 'consume')"),
    ("REVOKE readers FROM spy", "GRANT readers TO spy"),
];

fn cluster() -> (Cluster, Client) {
    let (cluster, mut admin) = Cluster::new().start_with_database("app");
    admin.run("CREATE ROLE readers; CREATE ROLE spy LOGIN");
    create(&mut admin, "late", "");
    // So that it may still call the functions without its right on `late`.
    create(&mut admin, "other", "");
    admin.run("SELECT queue.grant('other', 'spy', 'consume')");
    (cluster, admin)
}

/// Gives `spy` the right in this way alone.
fn allow(admin: &mut Client, way: &str) {
    admin.run(
        "SELECT queue.revoke('late', 'spy', 'consume'), queue.revoke('late', 'readers', 'consume'); \
        REVOKE readers FROM spy",
    );
    if way.contains("readers") {
        admin.run("SELECT queue.grant('late', 'readers', 'consume')");
    }
    admin.run(way);
}

/// A session of `spy` that knows its rights.
fn spy(cluster: &Cluster) -> Client {
    let mut spy = cluster.connect_as("app", "spy");
    spy.run("SELECT FROM queue.claim('late')");
    spy
}

#[test]
fn a_claim_gets_nothing_of_the_transaction_that_takes_its_right_away() {
    let (cluster, mut admin) = cluster();
    for (revoke, grant) in WAYS {
        // A sleeping claim that the commit wakes, and a claim before sessions are told of the commit.
        for wait in ["10 s", "0"] {
            allow(&mut admin, grant);
            let mut session = spy(&cluster);
            let pid = session.pid();
            let rechecked = cluster.fault_of(pid, "claim.rechecked", "wait");
            let claim = format!("SELECT payload FROM queue.claim('late', wait => '{wait}')");
            let change = format!("BEGIN; {revoke}; SELECT queue.enqueue('late', '\"s3cret\"'); COMMIT");
            let commit = || hold_session(&cluster, cluster.connect_to("app"), "commit.settled", &change);
            let (held, running) = if wait == "0" {
                (commit(), begin(session, claim))
            } else {
                let listed = cluster.fault_of(pid, "wait.listed", "wait");
                let running = begin(session, claim);
                listed.wait_reached();
                drop(listed);
                (commit(), running)
            };
            rechecked.wait_reached();
            assert_eq!(release(held), "");
            assert_eq!(release((rechecked, running)), "42501", "{revoke}, {wait}");
            assert_eq!(admin.count("SELECT FROM queue.claim('late')"), 1);
        }
    }
}

#[test]
fn a_wait_does_not_show_the_result_of_the_transaction_that_revokes_its_right() {
    let (cluster, mut admin) = cluster();
    for (revoke, grant) in WAYS {
        allow(&mut admin, grant);
        let job = admin.enqueue("late");
        let id = admin.claim("late");
        let mut session = spy(&cluster);
        let held = hold_session(
            &cluster,
            cluster.connect_to("app"),
            "commit.visible",
            &format!("BEGIN; {revoke}; SELECT queue.complete({id}, '\"s3cret\"'); COMMIT"),
        );
        let pid = session.pid();
        let running = begin(session, format!("CALL queue.await({job}, '10 s')"));
        wait_asleep(&mut admin, pid);
        assert_eq!(release(held), "");
        assert_eq!(running.join().expect("the session's thread").1, "42501", "{revoke}");
    }
}
