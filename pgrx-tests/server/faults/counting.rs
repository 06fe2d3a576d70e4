//! Recounts of waiting, running and ended jobs at the same time as commits. A recount must neither miss a commit nor
//! count it twice. A fault point holds one of the two sessions.

use crate::faults::held::{hold, release};
use crate::shared::*;

#[test]
fn attempts_that_end_while_the_logs_are_counted_are_counted_once() {
    for point in ["count.begun", "count.read"] {
        let (database, mut client) = Database::without_worker().with_queue("q", "");
        client.run("SELECT queue.enqueue('q') FROM generate_series(1, 6)");
        let ids: Vec<i64> = client.column("SELECT id FROM queue.claim('q', 3)");
        // After a foreign write the cached counts are invalid.
        client.run("SELECT queue.adopt()");
        let held = hold(&database.name, point, "SELECT queue.maintain()");
        client.run(&format!("SELECT queue.complete({})", ids[0]));
        client.run(&format!("SELECT queue.fail({}, 'no')", ids[1]));
        client.enqueue("q");
        assert_eq!(release(held), "", "{point}");
        client.run("SELECT queue.maintain()");
        let counts: (i64, i64) = {
            let row =
                client.query_one("SELECT running, completed FROM queue.stats WHERE queue_name = 'q'", &[]).unwrap();
            (row.get(0), row.get(1))
        };
        assert_eq!(counts, (1, 1), "{point}");
    }
}

/// The commit that brings a lane its first jobs is visible, and its callback has not run. Another session claims and
/// ends one of these jobs.
#[test]
fn a_claim_before_the_first_commit_of_its_lane_is_counted_counts() {
    let (database, mut client) = Database::without_worker().with_queue("q", "");
    client.run("SELECT queue.maintain()");
    let held = hold(&database.name, "commit.visible", "SELECT queue.enqueue('q') FROM generate_series(1, 5)");
    let id = client.claim("q");
    assert_eq!(release(held), "");
    assert!(client.is_counted());
    client.check();
    client.run(&format!("SELECT queue.fail({id}, 'no', fatal => true)"));
    client.check();
    let row: (i64, i64) = client.row("SELECT ready, running FROM queue.stats WHERE queue_name = 'q'");
    assert_eq!(row, (4, 0));
}

/// Changes that a commit counts. `$n` is the nth running attempt.
const CHANGES: &[&str] = &[
    "SELECT queue.enqueue('q')",
    "SELECT queue.enqueue('q', delay => '1 h')",
    "SELECT FROM queue.claim('q', 2)",
    "SELECT queue.complete($1)",
    "SELECT queue.fail($1, 'no')",
    "SELECT queue.fail($1, 'no', fatal => true)",
    "SELECT queue.release($1)",
    "SELECT queue.complete(id) FROM queue.claim('q', 1, completed => '{$1}')",
    "SELECT queue.end_batch('[{\"complete\": {\"id\": $1}}, {\"fail\": {\"id\": $2, \"error\": \"no\"}}]')",
    "SELECT queue.cancel(job_id) FROM queue.jobs WHERE state = 'ready'",
    "SELECT queue.purge('q')",
    "BEGIN; SELECT queue.complete($1);
     SAVEPOINT s; SELECT FROM queue.claim('q', 1); ROLLBACK TO s; SELECT queue.complete($2); COMMIT",
];

#[test]
fn a_commit_whose_callback_comes_after_a_whole_recount_is_counted_once() {
    for change in CHANGES {
        let (database, mut client) = Database::without_worker().with_queue("dead", "");
        create(&mut client, "q", "dead_letter => 'dead'");
        client.run("SELECT queue.enqueue('q') FROM generate_series(1, 6)");
        let running: Vec<i64> = client.column("SELECT id FROM queue.claim('q', 3)");
        let change = change.replace("$1", &running[0].to_string()).replace("$2", &running[1].to_string());
        let held = hold(&database.name, "commit.visible", &change);
        client.run("SELECT queue.maintain()");
        assert!(client.is_counted(), "{change}");
        assert_eq!(release(held), "", "{change}");
        let faults: Vec<String> = client.column("SELECT c::text FROM queue.check() AS c");
        assert!(faults.is_empty(), "{change}: {faults:?}");
    }
}
