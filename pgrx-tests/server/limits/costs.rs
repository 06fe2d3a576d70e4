//! Costs: a number in a job's headers or payload says how much the job counts for the rates of its queue.

use std::sync::atomic::AtomicUsize;

use super::gates::{claim, forget_claim};
use crate::shared::*;

const TOKENS: &str = "rate_cost => '$.headers.tokens', rate_period => '1 day', lease => '1 hour'";

/// Enqueues a job for each cost.
fn fill(client: &mut Client, queue: &str, group: Option<&str>, costs: &[i64]) -> Vec<i64> {
    let headers = "jsonb_build_object('tokens', cost)";
    let jobs = format!("unnest(ARRAY{costs:?}::bigint[]) WITH ORDINALITY AS c (cost, n)");
    let group = group.map_or("NULL".to_owned(), |group| format!("'{group}'"));
    let enqueue = format!("queue.enqueue('{queue}', group_key => {group}, headers => {headers})");
    client.column(&format!("SELECT {enqueue} FROM {jobs} ORDER BY n"))
}

/// A session that sleeps until it can claim a job.
fn sleeper(client: &mut Client, queue: &str) -> JoinHandle<Vec<i64>> {
    asleep(client, connect(), format!("SELECT id FROM queue.claim('{queue}', wait => '60 s')"))
}

/// The costs of the claimed jobs.
fn start(client: &mut Client, queue: &str) -> Vec<i64> {
    let tokens = "(headers ->> 'tokens')::float8::bigint";
    client.column(&format!("SELECT {tokens} FROM queue.claim('{queue}', 100)"))
}

#[test]
fn a_rate_counts_the_costs_of_jobs() {
    let (mut client, queue) = queue(&format!("rate_limit => 100, {TOKENS}"));
    fill(&mut client, &queue, None, &[40, 40, 40, 5]);
    assert_eq!(start(&mut client, &queue), [40, 40]);
    // The next job does not fit, and a cheaper job behind it does not pass it.
    for _ in 0..3 {
        assert!(start(&mut client, &queue).is_empty());
    }
    client.run(&format!("SELECT queue.alter('{queue}', rate_limit => 124)"));
    assert_eq!(start(&mut client, &queue), [40]);
    assert!(start(&mut client, &queue).is_empty());
    client.run(&format!("SELECT queue.alter('{queue}', rate_limit => 125)"));
    assert_eq!(start(&mut client, &queue), [5]);
}

#[test]
fn any_value_gives_a_cost() {
    for (value, cost) in [
        ("'{}'", 1),
        ("NULL", 1),
        ("'{\"tokens\": 2.01}'", 3),
        ("'{\"tokens\": 0}'", 0),
        ("'{\"tokens\": -7}'", 0),
        ("'{\"tokens\": \"8\"}'", 1),
        ("'{\"tokens\": true}'", 1),
        ("'{\"tokens\": null}'", 1),
        ("'{\"tokens\": [4, 5]}'", 1),
        ("'{\"tokens\": {\"n\": 4}}'", 1),
        ("'{\"tokens\": 1e400}'", i64::from(i32::MAX)),
        ("'{\"tokens\": 1e-300}'", 1),
    ] {
        let (mut client, queue) = queue(&format!("rate_limit => 100, {TOKENS}"));
        client.run(&format!("SELECT queue.enqueue('{queue}', headers => {value})"));
        fill(&mut client, &queue, None, &[50, 50, 50]);
        let expected = 1 + (100 - cost).max(0) / 50;
        let started = claim(&mut client, &queue, 100).len() as i64;
        assert_eq!(started, expected, "{value}");
    }
}

#[test]
fn a_job_that_costs_more_than_the_rate_starts_alone() {
    let (mut client, queue) = queue(&format!("rate_limit => 10, {TOKENS}"));
    fill(&mut client, &queue, None, &[1000, 1, 1]);
    assert_eq!(start(&mut client, &queue), [1000]);
    assert!(start(&mut client, &queue).is_empty());
    let (mut client, queue) = self::queue_with_period("300 ms");
    fill(&mut client, &queue, None, &[1, 1000, 1]);
    let mut all = Vec::new();
    wait::until_true("all have started", || {
        let got = start(&mut client, &queue);
        assert!(got.len() == 1 || !got.contains(&1000), "{got:?}");
        all.extend(got);
        all.len() == 3
    });
    assert_eq!(all, [1, 1000, 1]);
}

fn queue_with_period(period: &str) -> (Client, String) {
    queue(&format!("rate_limit => 10, rate_cost => '$.headers.tokens', rate_period => '{period}', lease => '1 hour'"))
}

#[test]
fn a_costly_job_holds_up_only_its_group() {
    let (mut client, queue) = queue(&format!("rate_limit_per_group => 10, {TOKENS}"));
    fill(&mut client, &queue, Some("a"), &[6, 6, 1]);
    fill(&mut client, &queue, Some("b"), &[3, 3, 3, 3]);
    fill(&mut client, &queue, None, &[500, 500]);
    let mut started = Vec::new();
    for _ in 0..5 {
        started.extend(start(&mut client, &queue));
    }
    started.sort_unstable();
    assert_eq!(started, [3, 3, 3, 6, 500, 500]);
}

#[test]
fn a_worker_reports_the_actual_cost() {
    let (mut client, queue) = queue(&format!("rate_limit => 100, {TOKENS}"));
    fill(&mut client, &queue, None, &[60, 60, 30, 20]);
    let first = claim(&mut client, &queue, 1)[0];
    assert!(start(&mut client, &queue).is_empty());
    let sleeper = sleeper(&mut client, &queue);
    // It has used less, which a rollback does not undo.
    client.run(&format!("BEGIN; SELECT queue.charge({first}, 10); ROLLBACK"));
    assert_eq!(sleeper.join().unwrap().len(), 1);
    assert_eq!(start(&mut client, &queue), [30]);
    // The job has used more than its cost, even beyond the limit.
    client.run(&format!("SELECT queue.charge({first}, 25)"));
    assert!(start(&mut client, &queue).is_empty());
    client.run(&format!("SELECT queue.alter('{queue}', rate_limit => 134)"));
    assert!(start(&mut client, &queue).is_empty());
    client.run(&format!("SELECT queue.alter('{queue}', rate_limit => 135)"));
    assert_eq!(start(&mut client, &queue), [20]);
}

#[test]
fn wrong_costs_are_refused() {
    let (mut client, queue) = queue(&format!("rate_limit => 10, {TOKENS}"));
    for path in [
        "",
        "tokens",
        "$",
        "$.tokens",
        "$.headers.*",
        "$.headers.a + $.headers.b",
        "$.headers ? (@.a > 1)",
        "$.payload like_regex \".*\"",
        "$.headers.a[0]",
        "7",
        "$.key",
    ] {
        client.refused(&format!("SELECT queue.alter('{queue}', rate_cost => $p${path}$p$)"), "22023");
        client.refused(&format!("SELECT queue.create('x', rate_cost => $p${path}$p$)"), "22023");
    }
    client.refused(&format!("SELECT queue.alter('{queue}', rate_cost => '$.headers.' || repeat('x', 3000))"), "22023");
    client.enqueue(&queue);
    let id = claim(&mut client, &queue, 1)[0];
    for (call, code) in [
        (format!("{id}, -1"), "22023"),
        (format!("{id}, NULL"), "22004"),
        ("NULL, 1".to_owned(), "22004"),
        ("1, 1".to_owned(), "22023"),
        (format!("{}, 1", id + 16_000), "QJ001"),
    ] {
        client.refused(&format!("SELECT queue.charge({call})"), code);
    }
    client.run(&format!("SELECT queue.alter('{queue}', reset => '{{rate_cost}}')"));
    client.refused(&format!("SELECT queue.charge({id}, 1)"), "55000");
    client.run(&format!("SELECT queue.complete({id})"));
    client.refused(&format!("SELECT queue.charge({id}, 1)"), "QJ001");
}

#[test]
fn jobs_that_wait_follow_an_alter_of_their_cost() {
    let (mut client, queue) = queue("rate_limit => 10, rate_period => '1 day', lease => '1 hour'");
    fill(&mut client, &queue, None, &[4; 8]);
    assert_eq!(claim(&mut client, &queue, 2).len(), 2);
    client.run(&format!("SELECT queue.alter('{queue}', rate_cost => '$.headers.\"tokens\"')"));
    assert_eq!(start(&mut client, &queue), [4, 4]);
    assert!(start(&mut client, &queue).is_empty());
    client.run(&format!("SELECT queue.alter('{queue}', rate_limit => 12, reset => '{{rate_cost}}')"));
    assert_eq!(start(&mut client, &queue), [4, 4]);
}

/// Groups with equal weights start as many jobs each, although jobs that do not fit go back.
#[test]
fn shares_are_exact_beside_costs() {
    let options = "rate_limit => 20, rate_period => '50 ms', fair_share => 'jobs', lease => '1 hour'";
    let (mut client, queue) = queue(&format!("{options}, rate_cost => '$.payload.tokens'"));
    for (group, cost) in [("a", 7), ("b", 3), ("c", 13)] {
        client.run(&format!(
            "SELECT queue.enqueue('{queue}', '{{\"tokens\": {cost}}}', group_key => '{group}')
             FROM generate_series(1, 90)"
        ));
    }
    let mut started = BTreeMap::new();
    while started.values().sum::<usize>() < 90 {
        let claim = format!("SELECT group_key FROM queue.claim('{queue}', 30, wait => '5 s')");
        for group in client.column::<String>(&claim) {
            *started.entry(group).or_insert(0) += 1;
        }
        let (most, least) = (started.values().max().unwrap(), started.values().min().unwrap());
        assert!(most - least <= 3 && (started.len() == 3 || *most < 4), "{started:?}");
    }
}

/// Many sessions start jobs of all costs. No period exceeds the rates, and every job starts.
#[test]
fn no_period_exceeds_the_rate() {
    const JOBS: usize = 240;
    let rates = "rate_limit => 60, rate_limit_per_group => 40, rate_period => '250 ms'";
    let (mut client, queue) = queue(&format!("{rates}, rate_cost => '$.headers.tokens'"));
    client.run(&format!(
        "SELECT queue.enqueue('{queue}', group_key => nullif(n % 4, 0)::text,
                              headers => jsonb_build_object('tokens', n * 7 % 23))
         FROM generate_series(1, {JOBS}) AS n"
    ));
    let done = AtomicUsize::new(0);
    thread::scope(|scope| {
        for session in 0..6 {
            let (queue, done) = (&queue, &done);
            scope.spawn(move || {
                let mut client = connect();
                while done.load(Ordering::Relaxed) < JOBS {
                    let most = 1 + session % 3 * 4;
                    let claim = format!("SELECT id FROM queue.claim('{queue}', {most}, wait => '200 ms')");
                    let ids = client.column::<i64>(&claim);
                    client.run(&format!("SELECT queue.complete_many(ARRAY{ids:?}::bigint[])"));
                    done.fetch_add(ids.len(), Ordering::Relaxed);
                }
            });
        }
    });
    let starts = format!(
        "SELECT claimed_at, group_key, (headers ->> 'tokens')::bigint AS cost FROM queue.jobs
         WHERE queue_name = '{queue}'"
    );
    for (group, limit) in [("true", 60), ("a.group_key = b.group_key", 40)] {
        let sums = format!(
            "WITH a AS MATERIALIZED ({starts})
             SELECT coalesce(max((SELECT sum(cost) FROM a AS b WHERE {group} AND b.claimed_at <= a.claimed_at
                 AND b.claimed_at > a.claimed_at - interval '250 ms')), 0)::bigint FROM a"
        );
        let most: i64 = client.value(&sums);
        assert!((limit / 3..=limit).contains(&most), "{most} of {limit}");
    }
}

/// However much workers report as used, no sum overflows, in no session and for no other queue.
#[test]
fn the_largest_costs_overflow_no_sum() {
    let (mut client, queue) = queue("rate_limit => 100, rate_period => '300 ms', rate_cost => '$.headers.tokens'");
    let (mut other, plain) = self::queue("rate_limit => 100, rate_period => '1 s'");
    for (begin, end) in [("BEGIN", "COMMIT"), ("BEGIN", "ROLLBACK"), ("BEGIN; COMMIT; BEGIN", "COMMIT")] {
        client.run(&format!("SELECT count(queue.enqueue('{queue}')) FROM generate_series(1, 3)"));
        client.run(begin);
        let ids = wait::within("jobs", Duration::from_secs(20), || {
            let ids = claim(&mut client, &queue, 3);
            (!ids.is_empty()).then_some(ids)
        });
        for used in [i32::MAX, 1, i32::MAX] {
            ids.iter().for_each(|id| client.run(&format!("SELECT queue.charge({id}, {used})")));
        }
        client.run(end);
    }
    fill(&mut client, &queue, None, &[i64::from(i32::MAX); 4]);
    let waiting = format!("SELECT count(*) FROM queue.jobs WHERE queue_name = '{queue}' AND state = 'ready'");
    wait::until_true("all start", || {
        other.enqueue(&plain);
        assert_eq!(claim(&mut other, &plain, 10).len(), 1);
        thread::sleep(Duration::from_millis(50));
        claim(&mut client, &queue, 10);
        client.value::<i64>(&waiting) == 0
    });
}

/// A job that did not fit holds up no other job after it is removed or gets another place or cost.
#[test]
fn a_costly_job_that_is_removed_or_changed_lets_others_start() {
    for (limit, group) in [("rate_limit", None), ("rate_limit_per_group", Some("g"))] {
        for goes in [
            "queue.cancel({id})",
            "queue.reprioritize({id}, 10)",
            "queue.reschedule({id}, now() + interval '1 hour')",
            "queue.purge('{queue}')",
            "queue.alter('{queue}', rate_cost => '$.headers.none')",
        ] {
            let (mut client, queue) = queue(&format!("{limit} => 100, {TOKENS}"));
            let ids = fill(&mut client, &queue, group, &[50, 80]);
            assert_eq!(start(&mut client, &queue), [50]);
            assert!(start(&mut client, &queue).is_empty());
            if !goes.contains("purge") {
                fill(&mut client, &queue, group, &[10]);
            }
            let goes = goes.replace("{id}", &ids[1].to_string()).replace("{queue}", &queue);
            let sleeper = sleeper(&mut client, &queue);
            client.run(&format!("SELECT {goes}"));
            if goes.contains("purge") {
                fill(&mut client, &queue, group, &[10]);
            }
            assert_eq!(sleeper.join().unwrap().len(), 1, "{goes}");
        }
    }
}

#[test]
fn a_cost_that_is_corrected_before_the_commit_wakes_a_sleeper() {
    for (limit, group) in [("rate_limit", None), ("rate_limit_per_group", Some("g"))] {
        let (mut client, queue) = queue(&format!("{limit} => 100, {TOKENS}"));
        fill(&mut client, &queue, group, &[100, 50]);
        client.run("BEGIN");
        let id = claim(&mut client, &queue, 1)[0];
        let sleeper = sleeper(&mut connect(), &queue);
        client.run(&format!("SELECT queue.charge({id}, 10)"));
        client.run("COMMIT");
        assert_eq!(sleeper.join().unwrap().len(), 1);
    }
}

#[test]
fn costs_that_are_set_or_reset_count_after_a_restart_as_before() {
    let (cluster, mut client) =
        Cluster::with(&["pg_queue.segment_rows = 1000", "pg_queue.reclaim_delay = 0"]).start_with_extension();
    create(&mut client, "churn", "retention => '0'");
    create(&mut client, "set", "rate_limit => 105, rate_period => '1 day', retention => '0'");
    create(&mut client, "reset", &format!("rate_limit => 1000, retention => '0', {TOKENS}"));
    fill(&mut client, "set", None, &[100; 6]);
    fill(&mut client, "reset", None, &[100; 20]);
    let set = claim(&mut client, "set", 5);
    let mut reset = Vec::new();
    wait::until_true("the limit", || {
        reset.extend(claim(&mut client, "reset", 10));
        reset.len() == 10
    });
    let both: Vec<i64> = set.iter().chain(&reset).copied().collect();
    client.run(&format!("SELECT queue.complete_many(ARRAY{both:?}::bigint[])"));
    forget_claim(&mut client, both[0]);
    client.run(
        "SELECT queue.alter('set', rate_cost => '$.headers.tokens'), queue.alter('reset', reset => '{rate_cost}')",
    );
    for is_restarted in [false, true] {
        if is_restarted {
            drop(client);
            cluster.restart_killed();
            client = cluster.connect();
        }
        assert!(claim(&mut client, "reset", 10).is_empty());
        if !is_restarted {
            assert_eq!(claim(&mut client, "set", 10).len(), 1);
        }
        assert!(claim(&mut client, "set", 10).is_empty());
    }
}

#[test]
fn a_job_that_runs_over_a_restart_counts_once() {
    let (cluster, mut client) = Cluster::new().start_with_extension();
    create(&mut client, "q", &format!("rate_limit => 100, {TOKENS}"));
    fill(&mut client, "q", None, &[100, 50]);
    let id = claim(&mut client, "q", 1)[0];
    drop(client);
    cluster.restart();
    let mut client = cluster.connect();
    for used in [10, 40, 100] {
        client.run(&format!("SELECT queue.charge({id}, {used})"));
    }
    client.run("SELECT queue.alter('q', rate_limit => 149)");
    assert!(claim(&mut client, "q", 10).is_empty());
    client.run("SELECT queue.alter('q', rate_limit => 150)");
    assert_eq!(claim(&mut client, "q", 10).len(), 1);
}
