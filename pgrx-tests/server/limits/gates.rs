//! Limits of a queue: `max_running`, `rate_limit`, `max_waiting`. The log shows that they hold at every moment.

use crate::shared::*;

fn fill(client: &mut Client, queue: &str, jobs: usize) {
    client.run(&format!("SELECT count(*) FROM queue.enqueue_many('{queue}', array_fill('1'::jsonb, '{{{jobs}}}'))"));
}

/// Claims up to this many jobs. Returns the attempts' ids.
pub fn claim(client: &mut Client, queue: &str, most: usize) -> Vec<i64> {
    client.column(&format!("SELECT id FROM queue.claim('{queue}', {most})"))
}

/// Turns the ring with jobs of queue `churn` until the log has lost this claim. After that, only the minutes of the
/// claims that count for a rate are known.
pub fn forget_claim(client: &mut Client, id: i64) {
    for _ in 0..12 {
        client.pass_through("churn", 1000);
    }
    let gone = format!("SELECT NOT EXISTS (SELECT FROM queue_internal.claim_{} WHERE id = {id})", id & 15);
    wait::until_true("the ring turns", || client.value::<bool>(&gone));
}

#[test]
fn open_transactions_count_and_rollbacks_do_not() {
    let (mut client, queue) = queue("max_running => 2");
    fill(&mut client, &queue, 5);
    let mut other = connect();
    let mut tx = other.transaction().unwrap();
    assert_eq!(tx.query(&format!("SELECT id FROM queue.claim('{queue}', 5)"), &[]).unwrap().len(), 2);
    assert!(claim(&mut client, &queue, 5).is_empty());
    let mut savepoint = tx.savepoint("s").unwrap();
    assert_eq!(savepoint.query(&format!("SELECT id FROM queue.claim('{queue}', 5)"), &[]).unwrap().len(), 0);
    savepoint.rollback().unwrap();
    tx.rollback().unwrap();
    assert_eq!(claim(&mut client, &queue, 5).len(), 2);
    assert!(claim(&mut other, &queue, 5).is_empty());
}

#[test]
fn a_worker_that_finishes_and_claims_in_one_call_does_not_block_itself() {
    let (mut client, queue) = queue("max_running => 1");
    fill(&mut client, &queue, 10);
    let mut id = client.claim(&queue);
    for _ in 1..10 {
        let next: Vec<i64> =
            client.column(&format!("SELECT id FROM queue.claim('{queue}', 5, completed => ARRAY[{id}]::bigint[])"));
        assert_eq!(next.len(), 1);
        id = next[0];
    }
    // The same holds in a transaction. Its rollback undoes both the completion and the claim.
    fill(&mut client, &queue, 2);
    let mut tx = client.transaction().unwrap();
    tx.batch_execute(&format!("SELECT queue.complete({id})")).unwrap();
    assert_eq!(tx.query(&format!("SELECT id FROM queue.claim('{queue}', 2)"), &[]).unwrap().len(), 1);
    tx.rollback().unwrap();
    assert!(claim(&mut client, &queue, 1).is_empty());
    client.run(&format!("SELECT queue.complete({id})"));
    assert_eq!(claim(&mut client, &queue, 2).len(), 1);
}

/// A transaction that claims and ends in turn does not block itself, over savepoints and while limits change. For other
/// sessions its ended attempts run until it commits.
#[test]
fn attempts_that_a_transaction_has_ended_do_not_block_it() {
    for (limit, more, at_once) in [
        ("max_running => 2", "max_running => 3", [2, 3]),
        ("max_running_per_group => 1", "max_running_per_group => 2", [3, 6]),
        ("max_running => 2, max_running_per_group => 1", "max_running => 5", [2, 3]),
    ] {
        let (mut client, queue) = queue(limit);
        client.run(&format!(
            "SELECT count(queue.enqueue('{queue}', group_key => (n % 3)::text)) FROM generate_series(1, 300) AS n"
        ));
        let mut worker = connect();
        worker.run("BEGIN");
        let turn = |worker: &mut Client, most: usize| {
            let ids = claim(worker, &queue, 10);
            assert_eq!(ids.len(), most, "{limit}");
            assert!(claim(worker, &queue, 10).is_empty(), "{limit}");
            ids.iter().for_each(|id| worker.run(&format!("SELECT queue.complete({id})")));
        };
        (0..10).for_each(|_| turn(&mut worker, at_once[0]));
        worker.run("SAVEPOINT s");
        (0..3).for_each(|_| turn(&mut worker, at_once[0]));
        worker.run("ROLLBACK TO s");
        (0..3).for_each(|_| turn(&mut worker, at_once[0]));
        assert!(claim(&mut client, &queue, 10).is_empty(), "{limit}");
        client.run(&format!("SELECT queue.alter('{queue}', {more})"));
        (0..3).for_each(|_| turn(&mut worker, at_once[1]));
        worker.run("COMMIT");
        assert_eq!(claim(&mut client, &queue, 10).len(), at_once[1], "{limit}");
        let done = 13 * at_once[0] + 3 * at_once[1];
        let found = client.value::<i64>(&format!("SELECT completed FROM queue.stats WHERE queue_name = '{queue}'"));
        assert_eq!(found, done as i64);
    }
}

/// Every way to free a place wakes a session that waits for it.
#[test]
fn a_freed_place_wakes_a_sleeper() {
    let (mut client, queue) = queue("max_running => 1, backoff_base => '0'");
    fill(&mut client, &queue, 20);
    let ways: [(&str, &str); 7] = [
        ("complete", "SELECT queue.complete($)"),
        ("fail", "SELECT queue.fail($, 'no', retry_in => '1 hour')"),
        ("release", "SELECT queue.release($, '1 hour')"),
        ("cancel", "SELECT queue.cancel((SELECT job_id FROM queue.attempts WHERE id = $), force => true)"),
        ("time out", "SELECT queue.extend($, '1 ms')"),
        ("end the claimer's transaction", ""),
        ("alter", "SELECT queue.alter('@', max_running => 2)"),
    ];
    for (way, sql) in ways {
        let mut worker = connect();
        let mut tx = worker.transaction().unwrap();
        let id: i64 = tx.query_one(&format!("SELECT id FROM queue.claim('{queue}')"), &[]).unwrap().get(0);
        let mut tx = Some(tx);
        if !sql.is_empty() {
            tx.take().unwrap().commit().unwrap();
        }
        let statement = format!("SELECT id FROM queue.claim('{queue}', wait => '10 s')");
        let sleeper = asleep::<i64>(&mut client, connect(), statement);
        match tx {
            Some(tx) => tx.rollback().unwrap(),
            None => client.run(&sql.replace('$', &id.to_string()).replace('@', &queue)),
        }
        let start = Instant::now();
        let got = sleeper.join().unwrap();
        assert_eq!(got.len(), 1, "{way}");
        assert!(start.elapsed() < Duration::from_secs(8), "{way}");
        client.run(&format!("SELECT queue.complete({})", got[0]));
    }
}

/// A limit below the number of running jobs applies to new starts. Removing a limit opens the queue.
#[test]
fn limits_change_while_jobs_run() {
    let (mut client, queue) = queue("");
    fill(&mut client, &queue, 10);
    let running = claim(&mut client, &queue, 4);
    client.run(&format!("SELECT queue.alter('{queue}', max_running => 3)"));
    let mut other = connect();
    assert!(claim(&mut other, &queue, 1).is_empty());
    client.run(&format!("SELECT queue.complete({})", running[0]));
    assert!(claim(&mut other, &queue, 1).is_empty());
    client.run(&format!("SELECT queue.complete({})", running[1]));
    assert_eq!(claim(&mut other, &queue, 5).len(), 1);
    client.run(&format!("SELECT queue.alter('{queue}', reset => '{{max_running}}')"));
    assert_eq!(claim(&mut other, &queue, 10).len(), 5);
}

#[test]
fn a_rolled_back_claim_has_used_up_the_rate() {
    let (mut client, queue) = queue("rate_limit => 2, rate_period => '1 hour'");
    fill(&mut client, &queue, 5);
    let mut tx = client.transaction().unwrap();
    assert_eq!(tx.query(&format!("SELECT id FROM queue.claim('{queue}')"), &[]).unwrap().len(), 1);
    tx.rollback().unwrap();
    assert_eq!(claim(&mut client, &queue, 5).len(), 1);
    assert!(claim(&mut client, &queue, 5).is_empty());
    // A job that ends without a run does not count as started.
    client.run(&format!("SELECT queue.alter('{queue}', rate_limit => 4)"));
    client.run(&format!(
        "SELECT queue.cancel(job_id) \
        FROM (SELECT job_id FROM queue.jobs WHERE queue_name = '{queue}' AND state = 'ready' LIMIT 2) AS j"
    ));
    assert_eq!(claim(&mut client, &queue, 5).len(), 2);
}

/// Every limit, rate and cost counts what started before a crash: at first by the log, and when that has been emptied
/// by the minutes that are kept of it.
#[test]
fn limits_rates_and_costs_hold_from_the_first_claim_after_a_crash() {
    let (cluster, mut client) =
        Cluster::with(&["pg_queue.segment_rows = 1000", "pg_queue.reclaim_delay = 0"]).start_with_extension();
    create(&mut client, "churn", "retention => '0'");
    // A queue, its limit, the costs of its jobs in each of two groups, and the number of jobs that start.
    let queues = [
        ("few", "max_running => 2", vec![1; 5], 2),
        ("few_of_group", "max_running_per_group => 1", vec![1; 5], 2),
        ("slow", "rate_limit => 3", vec![1; 5], 3),
        ("slow_group", "rate_limit_per_group => 3", vec![1; 5], 6),
        ("dear", "rate_limit => 100", vec![40, 20], 3),
        ("dear_group", "rate_limit_per_group => 100", vec![40, 45, 20], 4),
    ];
    let mut started: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    for (queue, limit, costs, starts) in &queues {
        let rate = if limit.contains("rate") { ", rate_period => '1 day'" } else { "" };
        let cost = if queue.contains("dear") { ", rate_cost => '$.payload.tokens'" } else { "" };
        create(&mut client, queue, &format!("{limit}{rate}{cost}, lease => '1 day', retention => '0'"));
        client.run(&format!(
            "SELECT queue.enqueue('{queue}', jsonb_build_object('tokens', cost), group_key => g)
             FROM unnest(ARRAY{costs:?}) WITH ORDINALITY AS c (cost, n), unnest('{{a, b}}'::text[]) AS g ORDER BY n, g"
        ));
        let ids = claim(&mut client, queue, 100);
        assert_eq!(ids.len(), *starts, "{queue}");
        started.insert(queue, ids);
    }
    // What has ended counts for rates. One attempt of each queue runs on and moves: it counts once.
    for queue in ["slow", "slow_group", "dear", "dear_group"] {
        let (_, ended) = started[queue].split_first().unwrap();
        client.run(&format!("SELECT queue.complete_many(ARRAY{ended:?}::bigint[])"));
    }
    for round in 0..3 {
        if round == 1 {
            forget_claim(&mut client, *started["slow"].last().unwrap());
            let known = "SELECT string_agg(queue_name || ' ' || claimed, ', ' ORDER BY queue_name)
                         FROM (SELECT lane, sum(claimed) AS claimed FROM queue_internal.group_start GROUP BY lane) AS s
                         JOIN queue_internal.lane USING (lane) JOIN queue_internal.queue USING (queue_id)";
            assert_eq!(client.value::<String>(known), "dear 60, dear_group 130, slow_group 5");
        }
        drop(client);
        if round < 2 {
            cluster.restart_killed();
        } else {
            cluster.restart();
        }
        client = cluster.connect();
        for (queue, ..) in &queues {
            assert!(claim(&mut client, queue, 100).is_empty(), "{queue} in round {round}");
        }
    }
    client.run(&format!("SELECT queue.complete_many(ARRAY[{}, {}])", started["few"][0], started["few_of_group"][0]));
    for (queue, limit, starts) in [
        ("few", "max_running => 2", 1),
        ("few_of_group", "max_running_per_group => 1", 1),
        ("slow", "rate_limit => 3", 0),
        ("slow", "rate_limit => 4", 1),
        ("slow_group", "rate_limit_per_group => 3", 0),
        ("slow_group", "rate_limit_per_group => 4", 2),
        ("dear", "rate_limit => 119", 0),
        ("dear", "rate_limit => 120", 1),
        ("dear_group", "rate_limit_per_group => 104", 0),
        ("dear_group", "rate_limit_per_group => 105", 2),
    ] {
        client.run(&format!("SELECT queue.alter('{queue}', {limit})"));
        assert_eq!(claim(&mut client, queue, 100).len(), starts, "{queue}: {limit}");
    }
    // Expired starts are deleted with the next reclaimed segment.
    for (queue, option) in
        [("slow_group", "rate_limit_per_group"), ("dear", "rate_limit"), ("dear_group", "rate_limit_per_group")]
    {
        client.run(&format!("SELECT queue.alter('{queue}', reset => '{{{option}}}')"));
    }
    wait::within("nothing is kept", Duration::from_secs(60), || {
        client.pass_through("churn", 1000);
        client.value::<bool>("SELECT NOT EXISTS (SELECT FROM queue_internal.group_start)").then_some(())
    });
}

/// Claims until the rate allows another start. No period of four seconds has seen four starts.
fn assert_rate_goes_on(client: &mut Client, queue: &str) {
    assert_eq!(client.count(&format!("SELECT FROM queue.claim('{queue}', 1, wait => '30 s')")), 1);
    let early = format!(
        "SELECT FROM (SELECT claimed_at, lag(claimed_at, 3) OVER (ORDER BY claimed_at) AS before
                      FROM queue.attempts WHERE queue_name = '{queue}') AS c
         WHERE claimed_at < before + interval '4 s'"
    );
    assert_eq!(client.count(&early), 0);
}

#[test]
fn a_rate_holds_over_a_crash_however_long_reading_the_logs_takes() {
    let (cluster, mut client) = Cluster::new().start_with_extension();
    create(&mut client, "q", "rate_limit => 3, rate_period => '4 s'");
    fill(&mut client, "q", 10);
    assert_eq!(claim(&mut client, "q", 10).len(), 3);
    cluster.restart_killed();
    let fault = cluster.fault("limits.read", "wait");
    thread::scope(|scope| {
        let claims = scope.spawn(|| assert_rate_goes_on(&mut cluster.connect(), "q"));
        fault.wait_reached();
        // The starts that are read get older.
        thread::sleep(Duration::from_secs(2));
        fault.release();
        claims.join().unwrap();
    });
}

#[test]
fn rates_hold_over_a_promotion() {
    let (primary, mut client) = Cluster::new().start_with_database("app");
    for (queue, limit) in [("q", "rate_limit"), ("groups", "rate_limit_per_group")] {
        create(&mut client, queue, &format!("{limit} => 3, rate_period => '4 s'"));
        client.run(&format!("SELECT queue.enqueue('{queue}', group_key => 'g') FROM generate_series(1, 10)"));
    }
    let standby = primary.standby();
    standby.wait_replayed(&primary);
    // The standby has run for longer than the period.
    let age = "SELECT now() > pg_postmaster_start_time() + interval '5 s'";
    let mut there = standby.connect_to("app");
    wait::until_true("an old standby", || there.value::<bool>(age));
    drop(there);
    for queue in ["q", "groups"] {
        assert_eq!(claim(&mut client, queue, 10).len(), 3);
    }
    standby.wait_replayed(&primary);
    primary.kill_server();
    standby.promote();
    for queue in ["q", "groups"] {
        assert_rate_goes_on(&mut standby.connect_to("app"), queue);
    }
}

#[test]
fn the_enqueues_of_a_transaction_count_for_itself_step_by_step() {
    let (mut client, q) = queue("max_waiting => 5");
    let (_, other) = queue("max_waiting => 5");
    let enqueue = format!("SELECT queue.enqueue('{q}')");
    let fails = |client: &mut Client| {
        client.run("SAVEPOINT before_it");
        client.refused(&enqueue, "53400");
        client.run("ROLLBACK TO before_it");
    };
    client.run("BEGIN");
    client.run(&format!(
        "{enqueue}; {enqueue}; SELECT queue.enqueue('{other}'); {enqueue}; SAVEPOINT here; {enqueue}; {enqueue}"
    ));
    fails(&mut client);
    client.run(&format!("ROLLBACK TO here; {enqueue}; RELEASE here; {enqueue}"));
    fails(&mut client);
    // Undone enqueues free their places again.
    client.run("COMMIT; BEGIN");
    client.run(&format!("SELECT queue.purge('{q}'); {enqueue}; {enqueue}; {enqueue}; {enqueue}; {enqueue}"));
    fails(&mut client);
    client.run("ROLLBACK; BEGIN");
    fails(&mut client);
    client.run("ROLLBACK");
}

#[test]
fn a_full_queue_refuses_more() {
    let (mut client, queue) = queue("max_waiting => 5");
    fill(&mut client, &queue, 4);
    let refused = client.refused(&format!("SELECT queue.enqueue_many('{queue}', ARRAY['1', '2']::jsonb[])"), "53400");
    assert!(refused.message.contains("is full") && !refused.hint.is_empty(), "{refused:?}");
    client.enqueue(&queue);
    client.refused(&format!("SELECT queue.enqueue('{queue}')"), "53400");
    // A claim in the same transaction makes room for as many enqueues.
    let mut tx = client.transaction().unwrap();
    let mut savepoint = tx.savepoint("s").unwrap();
    assert!(savepoint.batch_execute(&format!("SELECT queue.enqueue('{queue}')")).is_err());
    savepoint.rollback().unwrap();
    tx.batch_execute(&format!("SELECT queue.claim('{queue}', 2)")).unwrap();
    tx.batch_execute(&format!("SELECT queue.enqueue('{queue}'), queue.enqueue('{queue}')")).unwrap();
    assert!(tx.batch_execute(&format!("SELECT queue.enqueue('{queue}')")).is_err());
    drop(tx);
    assert_eq!(claim(&mut client, &queue, 9).len(), 5);
    // Running jobs do not wait.
    fill(&mut client, &queue, 5);
    client.refused(&format!("SELECT queue.enqueue('{queue}')"), "53400");
    client.run(&format!("SELECT queue.alter('{queue}', reset => '{{max_waiting}}')"));
    client.enqueue(&queue);
}

#[test]
fn a_full_queue_is_full_for_a_transaction_that_does_not_see_it() {
    let (database, mut client) = Database::without_worker().with_queue("q", "max_waiting => 2");
    let mut old = database.connect();
    old.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT");
    fill(&mut client, "q", 2);
    // After this memory has not counted the jobs.
    client.run("SELECT queue.adopt()");
    old.refused("SELECT queue.enqueue('q')", "53400");
    old.run("ROLLBACK");
    // The transaction's own jobs count once each.
    client.run("SELECT queue.purge('q')");
    client.run("SELECT queue.adopt()");
    client.run("BEGIN; SELECT queue.enqueue('q'); SELECT queue.enqueue('q'); ROLLBACK");
}

#[test]
fn limits_out_of_range_are_refused() {
    let (mut client, queue) = queue("");
    for (option, value) in [
        ("max_running", "0"),
        ("max_running_per_group", "-1"),
        ("rate_limit", "0"),
        ("rate_limit_per_group", "0"),
        ("max_waiting", "0"),
        ("rate_period", "'0'"),
    ] {
        let refused = client.failure(&format!("SELECT queue.alter('{queue}', {option} => {value})"));
        assert_eq!(refused.code, "22023", "{option}: {refused:?}");
        assert!(refused.message.contains(option), "{refused:?}");
    }
}

#[test]
fn the_first_claim_after_a_start_waits_like_any_other() {
    let (cluster, mut client) = Cluster::new().start_with_database("app");
    create(&mut client, "q", "rate_limit => 100, rate_period => '1 hour'");
    cluster.restart();
    let mut client = cluster.connect_to("app");
    let session = cluster.connect_to("app");
    let claim = asleep::<i64>(&mut client, session, "SELECT id FROM queue.claim('q', wait => '10 s')");
    client.enqueue("q");
    assert_eq!(claim.join().unwrap().len(), 1);
}

#[test]
fn a_worker_that_waited_before_the_gate_closed_is_woken_when_it_opens() {
    let (mut client, q) = queue("stages => '{a, b}', rate_limit => 1, rate_period => '2 seconds'");
    let sql = format!("SELECT id FROM queue.claim('{q}', wait => '10 s', stage => 'b')");
    let sleeper = asleep::<i64>(&mut client, connect(), sql);
    client.run(&format!("SELECT queue.enqueue('{q}', stage => 'a')"));
    let claim = format!("SELECT FROM queue.claim('{q}', stage => 'a')");
    assert_eq!((client.count(&claim), client.count(&claim)), (1, 0));
    client.run(&format!("SELECT queue.enqueue('{q}', stage => 'b')"));
    assert_eq!(sleeper.join().unwrap().len(), 1);
}

#[test]
fn queues_whose_groups_are_held_leave_room_for_others() {
    let (_cluster, mut client) = Cluster::new().conf("pg_queue.max_lanes = 4").start_with_database("app");
    for n in 0..8 {
        create(&mut client, &format!("t{n}"), "strict_order => true");
        for _ in 0..2 {
            client.run(&format!("SELECT queue.enqueue('t{n}', group_key => 'g')"));
        }
        let id = client.claim(&format!("t{n}"));
        client.run(&format!("SELECT queue.fail({id}, 'no', '1 hour')"));
        assert_eq!(client.count(&format!("SELECT FROM queue.claim('t{n}')")), 0);
    }
    create(&mut client, "limited", "max_running => 1");
    client.enqueue("limited");
    client.claim("limited");
}

/// A worker claims while a restored database is dormant. The gate must still know the earlier starts.
#[test]
fn a_rate_holds_over_a_restore_during_which_a_worker_claims() {
    let (cluster, mut client) = Cluster::new().start_with_database("app");
    create(&mut client, "q", "rate_limit => 5, rate_period => '1 day', lease => '1 hour'");
    fill(&mut client, "q", 20);
    assert_eq!(claim(&mut client, "q", 10).len(), 5);
    let mut copy = restore_copy(&cluster, "app");
    assert!(copy.column::<i64>("SELECT id FROM queue.claim('q', 10)").is_empty());
    wait::until_true("the restore is adopted", || copy.batch_execute("SELECT queue.adopt()").is_ok());
    assert!(claim(&mut copy, "q", 10).is_empty());
}
