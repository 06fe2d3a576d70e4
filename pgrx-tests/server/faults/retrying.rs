//! Strict order while memory learns which groups have a failed job that waits for its retry.

use crate::faults::held::{claim_all, hold, release};
use crate::shared::*;

#[test]
fn while_a_failure_commits_no_other_job_of_its_group_starts() {
    for point in ["commit.visible", "commit.retries", "commit.settled"] {
        let (mut client, q) = queue("strict_order => true, backoff_base => '1 hour'");
        let enqueue = |group: &str| format!("SELECT queue.enqueue('{q}', group_key => '{group}')");
        let first: i64 = client.value(&enqueue("g"));
        client.run(&enqueue("g"));
        let other: i64 = client.value(&enqueue("other"));
        let id = client.claim(&q);
        let held = hold("app", point, &format!("SELECT queue.fail({id}, 'no')"));
        assert_eq!(claim_all(&mut client, &q), [other], "{point}");
        assert_eq!(release(held), "", "{point}");
        assert!(claim_all(&mut client, &q).is_empty(), "{point}");
        client.run(&format!("SELECT queue.cancel({first})"));
        assert_eq!(claim_all(&mut client, &q).len(), 1, "{point}");
    }
}

#[test]
fn while_retrying_groups_are_read_no_job_passes_a_failed_one() {
    for point in ["retries.begun", "retries.read"] {
        let (mut client, q) = queue("strict_order => true, backoff_base => '1 hour'");
        for group in ["a", "b"] {
            client.run(&format!("SELECT FROM generate_series(1, 2), queue.enqueue('{q}', group_key => '{group}')"));
        }
        let [a, b] = [client.claim(&q), client.claim(&q)];
        client.run(&format!("SELECT queue.fail({a}, 'no')"));
        // The change makes memory forget the retrying groups.
        client.run(&format!("SELECT queue.alter('{q}', max_running => 100)"));
        // Memory waits some time before it reads them again, so the test claims until that happens.
        let b_failed = format!("SELECT count(*) = 2 FROM queue.jobs WHERE queue_name = '{q}' AND error = 'no'");
        let claims =
            format!("DO $$BEGIN LOOP PERFORM FROM queue.claim('{q}'); EXIT WHEN ({b_failed}); END LOOP; END$$");
        let held = hold("app", point, &claims);
        client.run(&format!("SELECT queue.fail({b}, 'no')"));
        assert!(claim_all(&mut client, &q).is_empty(), "{point}");
        assert_eq!(release(held), "", "{point}");
        assert!(claim_all(&mut client, &q).is_empty(), "{point}");
    }
}
