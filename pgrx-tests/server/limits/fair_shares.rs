//! Fair shares: groups start jobs in proportion to their weights, however many jobs other groups have waiting.

use super::groups::{claim, complete};
use crate::security::permissions::Roles;
use crate::shared::*;

const OPTIONS: &str = "fair_share => 'jobs', lease => '1 hour'";

/// Makes a queue on a server of its own. On the shared server many groups may be in use, and memory knows only some of
/// them.
fn alone() -> (Cluster, Client, String) {
    let (cluster, mut client) = Cluster::new().start_with_extension();
    create(&mut client, "q", OPTIONS);
    (cluster, client, "q".to_owned())
}

fn fill(client: &mut Client, queue: &str, group: Option<&str>, jobs: usize) {
    let group = group.map_or("NULL".to_owned(), |group| format!("'{group}'"));
    client.run(&format!(
        "SELECT count(*) FROM queue.enqueue_many('{queue}', array_fill('1'::jsonb, '{{{jobs}}}'), group_key => {group})"
    ));
}

fn weigh(client: &mut Client, queue: &str, group: &str, weight: &str) {
    client.run(&format!("SELECT queue.weigh('{queue}', '{group}', {weight})"));
}

/// Claims and completes this many jobs, `batch` at a time. Returns how many each group has started.
fn start(client: &mut Client, queue: &str, jobs: usize, batch: usize) -> BTreeMap<String, usize> {
    let mut started = BTreeMap::new();
    for _ in 0..jobs / batch {
        let claimed = claim(client, queue, batch);
        assert_eq!(claimed.len(), batch);
        claimed.iter().for_each(|(group, _)| *started.entry(group.clone()).or_default() += 1);
        complete(client, &claimed);
    }
    started
}

fn is_near(started: &BTreeMap<String, usize>, expected: &[(&str, usize)]) {
    let near = |&(group, jobs): &(&str, usize)| started.get(group).copied().unwrap_or(0).abs_diff(jobs) <= 2;
    assert!(started.len() == expected.len() && expected.iter().all(near), "{started:?} instead of {expected:?}");
}

#[test]
fn groups_start_jobs_in_proportion_to_their_weights() {
    for batch in [1, 9, 45] {
        let (_cluster, mut client, queue) = alone();
        weigh(&mut client, &queue, "b", "3");
        weigh(&mut client, &queue, "c", "0.5");
        for (group, jobs) in [("a", 300), ("b", 300), ("c", 300)] {
            fill(&mut client, &queue, Some(group), jobs);
        }
        is_near(&start(&mut client, &queue, 90, batch), &[("a", 20), ("b", 60), ("c", 10)]);
        // A changed weight counts from the next claim.
        weigh(&mut client, &queue, "b", "NULL");
        weigh(&mut client, &queue, "c", "1");
        is_near(&start(&mut client, &queue, 90, batch), &[("a", 30), ("b", 30), ("c", 30)]);
        // A group that is alone gets everything.
        client.run(&format!(
            "SELECT queue.cancel(job_id) \
             FROM queue.search('{queue}', '$.group_key != \"c\"', states => '{{ready}}', max_jobs => 1000) \
             WHERE job_id IS NOT NULL"
        ));
        is_near(&start(&mut client, &queue, 90, batch), &[("c", 90)]);
    }
}

#[test]
fn the_job_of_a_quiet_group_is_next_or_next_but_one() {
    let (_cluster, mut client, queue) = alone();
    fill(&mut client, &queue, Some("loud"), 10_000);
    start(&mut client, &queue, 10, 1);
    for _ in 0..5 {
        fill(&mut client, &queue, Some("quiet"), 1);
        let claimed = claim(&mut client, &queue, 2);
        assert!(claimed.iter().any(|(group, _)| group == "quiet"), "{claimed:?}");
        complete(&mut client, &claimed);
        start(&mut client, &queue, 4, 2);
    }
    // A smaller priority comes before all groups.
    client.run(&format!("SELECT queue.enqueue('{queue}', group_key => 'urgent', priority => -1)"));
    assert_eq!(claim(&mut client, &queue, 1)[0].0, "urgent");
}

#[test]
fn jobs_without_a_key_are_one_group() {
    let (_cluster, mut client, queue) = alone();
    fill(&mut client, &queue, None, 400);
    fill(&mut client, &queue, Some("a"), 400);
    fill(&mut client, &queue, Some("b"), 400);
    is_near(&start(&mut client, &queue, 90, 3), &[("", 30), ("a", 30), ("b", 30)]);
    // A failed job stays in the group of jobs without a key.
    let (_, id) = claim(&mut client, &queue, 3).into_iter().find(|(group, _)| group.is_empty()).unwrap();
    client.run(&format!("SELECT queue.fail({id}, 'no', '0')"));
    is_near(&start(&mut client, &queue, 90, 1), &[("", 30), ("a", 30), ("b", 30)]);
}

/// The option is switched on and off while jobs wait, also together with limits of groups. No job is lost.
#[test]
fn jobs_that_wait_follow_an_alter() {
    let (mut client, queue) = queue("lease => '1 hour'");
    fill(&mut client, &queue, Some("a"), 3_000);
    fill(&mut client, &queue, Some("b"), 300);
    fill(&mut client, &queue, None, 30);
    assert_eq!(start(&mut client, &queue, 20, 10), BTreeMap::from([("a".to_owned(), 20)]));
    client.run(&format!("SELECT queue.alter('{queue}', fair_share => 'jobs')"));
    // Some claims later the walk meets the jobs of the second group.
    wait::until_true("both take turns", || start(&mut client, &queue, 20, 10).len() > 1);
    client.run(&format!("SELECT queue.alter('{queue}', max_running_per_group => 1)"));
    let claimed = claim(&mut client, &queue, 10);
    assert!(claimed.iter().filter(|(group, _)| group == "a").count() <= 1, "{claimed:?}");
    complete(&mut client, &claimed);
    client.run(&format!("SELECT queue.alter('{queue}', reset => '{{fair_share, max_running_per_group}}')"));
    let mut left = 0;
    loop {
        let claimed = claim(&mut client, &queue, 100);
        left += claimed.len();
        if claimed.is_empty() {
            break;
        }
        complete(&mut client, &claimed);
    }
    let state = format!("SELECT count(*) FROM queue.search('{queue}', states => '{{completed}}', max_jobs => 10000)");
    assert_eq!(client.value::<i64>(&state), 3_330, "{left} in the end");
}

#[test]
fn a_crash_forgets_the_passes_of_groups_and_no_job() {
    let (cluster, mut client) = Cluster::new().start_with_database("app");
    create(&mut client, "q", OPTIONS);
    weigh(&mut client, "q", "b", "4");
    for group in ["a", "b"] {
        fill(&mut client, "q", Some(group), 200);
    }
    client.run("SELECT queue.enqueue('q', group_key => 'late', delay => '9 s')");
    start(&mut client, "q", 50, 5);
    cluster.restart_killed();
    let mut client = cluster.connect_to("app");
    is_near(&start(&mut client, "q", 50, 1), &[("a", 10), ("b", 40)]);
    let late = "SELECT count(*) FROM queue.jobs WHERE group_key = 'late' AND state = 'completed'";
    let mut all = 100;
    wait::until_true("everything has run", || {
        let claimed = claim(&mut client, "q", 100);
        all += claimed.len();
        complete(&mut client, &claimed);
        all == 401 && client.value::<i64>(late) == 1
    });
    client.check();
}

#[test]
fn weights_are_checked_kept_and_dropped_with_their_queue() {
    let database = Database::without_worker();
    let mut client = database.connect();
    create(&mut client, "q", OPTIONS);
    for (call, code) in [
        ("'q', 'a', 0", "22023"),
        ("'q', 'a', 0.009", "22023"),
        ("'q', 'a', 100.1", "22023"),
        ("'q', 'a', 'NaN'", "22023"),
        ("'q', 'a', 'Infinity'", "22023"),
        ("'q', 'a', -1", "22023"),
        ("'q', repeat('x', 3000), 1", "22023"),
        ("'q', NULL, 1", "22004"),
        ("NULL, 'a', 1", "22004"),
        ("'p', 'a', 1", "42704"),
    ] {
        client.refused(&format!("SELECT queue.weigh({call})"), code);
    }
    client.refused("SELECT queue.create('p', fair_share => 'time')", "22023");
    let roles = Roles::new(&database);
    let user = roles.make("weigher", "");
    client.run(&format!("SELECT queue.grant('q', '{user}', 'consume'); SET ROLE {user}"));
    client.refused("SELECT queue.weigh('q', 'a', 2)", "42501");
    client.run("RESET ROLE");
    client.run("SELECT queue.weigh('q', 'g' || n, 2) FROM generate_series(1, 10000) AS n");
    client.refused("SELECT queue.weigh('q', 'one more', 2)", "53400");
    client.run("SELECT queue.weigh('q', 'g1', 3), queue.weigh('q', 'g2', NULL), queue.weigh('q', 'one more', 2)");
    // A rolled-back weight has no effect.
    client.run("BEGIN; SELECT queue.weigh('q', 'g3', 50); ROLLBACK");
    for group in ["g1", "g3"] {
        fill(&mut client, "q", Some(group), 200);
    }
    is_near(&start(&mut client, "q", 50, 5), &[("g1", 30), ("g3", 20)]);
    client.run("SELECT queue.drop('q', force => true)");
    assert_eq!(client.count("SELECT FROM queue_internal.weight"), 0);
}

/// A drop waits for an open transaction that has set a weight, and a weight cannot be set in a queue that is gone.
#[test]
fn no_weight_outlives_its_queue() {
    let (database, mut client) = Database::new().with_queue("q", "fair_share => 'jobs'");
    let mut other = database.connect();
    client.run("SET lock_timeout = '100 ms'");
    other.run("BEGIN; SELECT queue.weigh('q', 'a', 2)");
    client.refused("SELECT queue.drop('q')", "55P03");
    // Weights of other groups do not wait.
    client.run("SELECT queue.weigh('q', 'b', 2)");
    other.run("COMMIT; BEGIN; SELECT queue.drop('q')");
    client.refused("SELECT queue.weigh('q', 'c', 2)", "55P03");
    other.run("COMMIT");
    client.refused("SELECT queue.weigh('q', 'c', 2)", "42704");
    assert_eq!(client.count("SELECT FROM queue_internal.weight"), 0);
}
