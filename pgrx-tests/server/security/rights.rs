//! If a transaction revokes a role's privilege, the role must not get the work of that transaction.

use crate::faults::held::{begin, hold_session, release};
use crate::shared::*;

/// Statements by which `spy` loses its privilege on the queue `late`, and by which it gets it back.
const WAYS: &[(&str, &str)] = &[
    ("SELECT queue.revoke('late', 'spy', 'consume')", "SELECT queue.grant('late', 'spy', 'consume')"),
    ("REVOKE readers FROM spy", "GRANT readers TO spy"),
];

fn cluster() -> (Cluster, Client) {
    let (cluster, mut admin) = Cluster::new().start_with_database("app");
    admin.run("CREATE ROLE readers; CREATE ROLE spy LOGIN");
    create(&mut admin, "late", "");
    // With this grant `spy` may still call the functions without a privilege on `late`.
    create(&mut admin, "other", "");
    admin.run("SELECT queue.grant('other', 'spy', 'consume')");
    (cluster, admin)
}

/// Gives `spy` the privilege in this way only.
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

/// Opens a session of `spy` that has read its privileges.
fn spy(cluster: &Cluster) -> Client {
    let mut spy = cluster.connect_as("app", "spy");
    spy.run("SELECT FROM queue.claim('late')");
    spy
}

#[test]
fn a_claim_gets_no_job_of_the_transaction_that_revokes_its_right() {
    let (cluster, mut admin) = cluster();
    for (revoke, grant) in WAYS {
        // The commit wakes a sleeping claim, or a claim comes before sessions are notified of the commit.
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
