//! `rate_limit_per_group`: how many jobs of each group start within a period. The log shows that it holds at every
//! moment.

use crate::limits::gates::claim;
use crate::shared::*;

/// Enqueues this many jobs for each of this many groups, in turn.
fn fill(client: &mut Client, queue: &str, groups: usize, jobs: usize) {
    client.run(&format!(
        "SELECT queue.enqueue('{queue}', group_key => 'g' || g) FROM generate_series(1, {jobs}), \
            generate_series(1, {groups}) AS g"
    ));
}

/// Asserts that of any `rate + 1` consecutive claims of a group the last is at least a period after the first.
fn assert_rates(client: &mut Client, queue: &str, rate: usize, period: &str) {
    let sql = format!(
        "SELECT count(*) FROM (
             SELECT a.claimed_at, lag(a.claimed_at, {rate}) OVER (PARTITION BY j.group_key, a.stage
             ORDER BY a.claimed_at) AS before
             FROM queue.attempts AS a JOIN queue.jobs AS j USING (job_id)
             WHERE a.queue_name = '{queue}' AND a.claimed_at IS NOT NULL AND j.group_key IS NOT NULL) AS c
         WHERE claimed_at < before + interval '{period}'"
    );
    assert_eq!(client.value::<i64>(&sql), 0);
}

#[test]
fn a_group_at_its_rate_holds_up_no_other() {
    let (mut client, queue) = queue("rate_limit_per_group => 2, rate_period => '1 hour'");
    client.run(&format!(
        "SELECT queue.enqueue('{queue}', group_key => 'many', priority => -1) FROM generate_series(1, 5000)"
    ));
    client
        .run(&format!("SELECT queue.enqueue('{queue}', group_key => 'few', priority => 9) FROM generate_series(1, 5)"));
    client.run(&format!("SELECT queue.enqueue('{queue}', priority => 9)"));
    let taken = client.column::<Option<String>>(&format!("SELECT group_key FROM queue.claim('{queue}', 100)"));
    let of = |group: Option<&str>| taken.iter().filter(|other| other.as_deref() == group).count();
    assert_eq!((of(Some("many")), of(Some("few")), of(None)), (2, 2, 1));
    assert!(claim(&mut client, &queue, 100).is_empty());
    // A rate does not depend on running jobs, so an end frees nothing.
    client.run(&format!(
        "SELECT queue.complete_many(ARRAY(SELECT id FROM queue.attempts WHERE queue_name = '{queue}' \
        AND state = 'running'))"
    ));
    assert!(claim(&mut client, &queue, 100).is_empty());
    // A raised rate counts immediately, and earlier starts still count.
    client.run(&format!("SELECT queue.alter('{queue}', rate_limit_per_group => 3)"));
    assert_eq!(claim(&mut client, &queue, 100).len(), 2);
    client.run(&format!("SELECT queue.alter('{queue}', max_running => 50)"));
    assert!(claim(&mut client, &queue, 100).is_empty());
    client.run(&format!("SELECT queue.alter('{queue}', reset => '{{rate_limit_per_group}}')"));
    assert_eq!(claim(&mut client, &queue, 10).len(), 10);
}

#[test]
fn a_sleeping_claim_is_woken_when_its_group_may_go_on() {
    let (mut client, queue) = queue("rate_limit_per_group => 1, rate_period => '700 ms'");
    fill(&mut client, &queue, 1, 3);
    assert_eq!(claim(&mut client, &queue, 9).len(), 1);
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            let mut client = connect();
            let rows = client.query(&format!("SELECT id FROM queue.claim('{queue}', wait => '10 s')"), &[]).unwrap();
            rows.len()
        });
        assert_eq!(sleeper.join().unwrap(), 1);
    });
    // The session woke before its ten seconds were over.
    let waited = format!(
        "SELECT max(claimed_at) - min(claimed_at) < interval '5 s' FROM queue.attempts WHERE queue_name = '{queue}'"
    );
    assert!(client.value::<bool>(&waited));
    // A claim sleeps while the group's start is uncommitted. The start is then rolled back.
    let mut other = connect();
    let mut tx = other.transaction().unwrap();
    let mut taken = 0;
    wait::until_true("the last job", || {
        taken += tx.query(&format!("SELECT id FROM queue.claim('{queue}')"), &[]).unwrap().len();
        taken == 1
    });
    let claim = format!("SELECT id FROM queue.claim('{queue}', wait => '10 s')");
    let sleeper = asleep::<i64>(&mut client, connect(), claim);
    tx.rollback().unwrap();
    assert_eq!(sleeper.join().unwrap().len(), 1);
    assert_rates(&mut client, &queue, 1, "700 ms");
}

/// A group for which memory has no room waits until another group's period is over. Directly after a start it is an
/// error.
#[test]
fn groups_wait_if_memory_has_no_room_for_their_rates() {
    let (cluster, mut client) = Cluster::new().conf("pg_queue.max_rated_groups = 16").start_with_extension();
    create(&mut client, "q", "rate_limit_per_group => 1, rate_period => '2 s'");
    fill(&mut client, "q", 40, 2);
    let first = claim(&mut client, "q", 100);
    assert!((8..=16).contains(&first.len()), "{}", first.len());
    assert!(claim(&mut client, "q", 100).is_empty());
    let doctor =
        "SELECT count(*) FROM queue.doctor() WHERE name = 'memory' AND NOT ok AND detail LIKE '%max_rated_groups%'";
    let used: f64 = client.value(
        "SELECT value FROM queue.metrics() WHERE name = 'pg_queue_memory_used' \
        AND labels ->> 'setting' = 'pg_queue.max_rated_groups'",
    );
    assert_eq!(used as usize, first.len());
    assert_eq!(client.value::<i64>(doctor), i64::from(first.len() * 10 >= 16 * 9));
    let mut all = first.len();
    while all < 80 {
        all += claim_waiting(&mut client);
    }
    assert_rates(&mut client, "q", 1, "2 s");
    client.run("SELECT queue.create('wide', rate_limit_per_group => 1, rate_period => '1 day')");
    client.run("SELECT queue.enqueue('wide', group_key => 'g' || n) FROM generate_series(1, 40) AS n");
    // Earlier starts of these groups were not counted.
    client.run("SELECT queue.alter('wide', reset => '{rate_limit_per_group}')");
    assert_eq!(claim(&mut client, "wide", 40).len(), 40);
    client.run("SELECT queue.alter('wide', rate_limit_per_group => 2)");
    client.run("SELECT queue.enqueue('wide', group_key => 'h')");
    drop(client);
    cluster.restart_killed();
    let mut client = cluster.connect();
    assert_eq!(error::code(&client.query("SELECT id FROM queue.claim('wide')", &[]).unwrap_err()), "53400");
    drop(client);
    cluster.append_conf("pg_queue.max_rated_groups = 100");
    cluster.restart();
    assert_eq!(claim(&mut cluster.connect(), "wide", 9).len(), 1);
}

fn claim_waiting(client: &mut Client) -> usize {
    client.query("SELECT id FROM queue.claim('q', 100, wait => '10 s')", &[]).unwrap().len()
}

/// Each stage has a rate of its own.
#[test]
fn groups_of_stages_have_rates_of_their_own() {
    let (mut client, q) = queue("stages => '{a, b}', rate_limit_per_group => 1, rate_period => '1 hour'");
    fill(&mut client, &q, 1, 2);
    let id: i64 = client.value(&format!("SELECT id FROM queue.claim('{q}')"));
    client.run(&format!("SELECT queue.advance({id})"));
    assert_eq!(client.column::<String>(&format!("SELECT stage FROM queue.claim('{q}', 10)")), ["b"]);
    assert!(claim(&mut client, &q, 10).is_empty());
}
