//! Queues that are paused or dropped, options that are set and reset, and the counts in the views.

use crate::shared::*;

#[test]
fn a_paused_queue_hands_out_nothing_and_loses_nothing() {
    let (mut client, q) = queue("");
    let job = client.enqueue(&q);
    let id = client.claim(&q);
    client.run(&format!("SELECT queue.pause('{q}')"));
    client.run(&format!("SELECT queue.pause('{q}')"));
    client.enqueue(&q);
    assert_eq!(client.count(&format!("SELECT FROM queue.claim('{q}')")), 0);
    assert_eq!(connect().count(&format!("SELECT FROM queue.claim('{q}')")), 0);
    assert!(client.value::<bool>(&format!("SELECT is_paused FROM queue.queues WHERE queue_name = '{q}'")));
    // The running job goes on.
    client.run(&format!("SELECT queue.extend({id})"));
    client.run(&format!("SELECT queue.complete({id})"));
    assert_eq!(client.state(job), "completed");
    client.run(&format!("BEGIN; SELECT queue.resume('{q}'); ROLLBACK"));
    assert_eq!(client.count(&format!("SELECT FROM queue.claim('{q}')")), 0);
    client.run(&format!("SELECT queue.resume('{q}')"));
    assert_eq!(connect().count(&format!("SELECT FROM queue.claim('{q}')")), 1);
}

#[test]
fn a_queue_with_live_jobs_is_dropped_only_by_force() {
    let (mut client, q) = queue("");
    let drop = format!("SELECT queue.drop('{q}')");
    let refused = |client: &mut Client| {
        let failure = client.refused(&drop, "55000");
        assert_eq!(failure.message, format!("queue \"{q}\" has live jobs"));
        assert!(failure.hint.contains("force => true"));
    };
    client.run(&format!("SELECT queue.enqueue('{q}', delay => '1 day')"));
    refused(&mut client);
    client.run(&format!("SELECT queue.purge('{q}')"));
    let job = client.enqueue(&q);
    refused(&mut client);
    let id = client.claim(&q);
    refused(&mut client);
    client.run(&format!("SELECT queue.complete({id})"));
    client.run(&format!("BEGIN; {drop}; ROLLBACK"));
    client.enqueue(&q);
    let id = client.claim(&q);
    client.run(&format!("SELECT queue.drop('{q}', force => true)"));
    for sql in [format!("SELECT queue.enqueue('{q}')"), format!("SELECT queue.claim('{q}')"), drop.clone()] {
        assert_eq!(client.refused(&sql, "42704").message, format!("queue \"{q}\" does not exist"));
    }
    assert_eq!(client.count(&format!("SELECT FROM queue.queues WHERE queue_name = '{q}'")), 0);
    assert_eq!(client.count(&format!("SELECT FROM queue.job({job})")), 0);
    client.run("SELECT FROM queue.maintain()");
    // A queue created again under the same name is a new queue.
    create(&mut client, &q, "");
    assert_eq!(client.count(&format!("SELECT FROM queue.claim('{q}')")), 0);
    client.enqueue(&q);
    let fresh = client.claim(&q);
    client.run(&format!("SELECT queue.complete({fresh})"));
    let failure = client.refused(&format!("SELECT queue.complete({id})"), "QJ001");
    assert!(failure.detail.contains("queue was dropped"), "{failure:?}");
}

#[test]
fn options_are_set_changed_and_reset() {
    let (mut client, q) = queue("");
    let settings = format!(
        "SELECT ROW(max_attempts, lease, backoff, backoff_base, backoff_max, backoff_jitter, retention, dead_retention,
             dead_letter, max_running, max_running_per_group, strict_order, rate_limit, rate_period, max_waiting,
             stages,
             notify, is_paused)::text FROM queue.queues WHERE queue_name = '{q}'"
    );
    let defaults = r#"(20,00:05:00,exponential,00:00:10,"1 day",0.1,"1 day","90 days",,,,f,,00:00:01,,,f,f)"#;
    assert_eq!(client.value::<String>(&settings), defaults);
    let failure = client.refused(&format!("SELECT queue.create('{q}')"), "42710");
    assert_eq!(failure.message, format!("queue \"{q}\" already exists"));

    client.run(&format!(
        "SELECT queue.create('{q}', max_attempts => 5, lease => '1 min', backoff => 'linear', if_not_exists => true)"
    ));
    client.run(&format!(
        "SELECT queue.alter('{q}', backoff_base => '1 s', backoff_max => '1 h', backoff_jitter => 0.25,
            retention => '-1',
             dead_retention => '0', rate_period => '2 s', notify => true)"
    ));
    let all = r#"(5,00:01:00,linear,00:00:01,01:00:00,0.25,-00:00:01,00:00:00,,,,f,,00:00:02,,,t,f)"#;
    assert_eq!(client.value::<String>(&settings), all);
    client.run(&format!("SELECT queue.alter('{q}')"));
    assert_eq!(client.value::<String>(&settings), all);
    client.run(&format!("SELECT queue.alter('{q}', max_attempts => 7, reset => ARRAY['lease', 'backoff'])"));
    let some = r#"(7,00:05:00,exponential,00:00:01,01:00:00,0.25,-00:00:01,00:00:00,,,,f,,00:00:02,,,t,f)"#;
    assert_eq!(client.value::<String>(&settings), some);
    // Another session uses the new settings immediately.
    let mut other = connect();
    other.enqueue(&q);
    client.run(&format!("SELECT queue.alter('{q}', max_attempts => 8)"));
    assert_eq!(other.value::<i32>(&format!("SELECT max_attempts FROM queue.claim('{q}')")), 8);
    for (alter, code) in [
        ("reset => ARRAY['nonsense']", "22023"),
        ("reset => ARRAY[NULL]", "22004"),
        ("max_attempts => 1, reset => ARRAY['max_attempts']", "22023"),
        ("max_attempts => 0", "22023"),
        ("lease => '0'", "22023"),
        ("lease => '-1 s'", "22023"),
        ("lease => '11 years'", "22023"),
        ("backoff => 'cubic'", "22023"),
        ("backoff_base => '-1 s'", "22023"),
        ("backoff_max => '-1 s'", "22023"),
        ("backoff_jitter => 1.1", "22023"),
        ("backoff_jitter => -0.1", "22023"),
        ("backoff_jitter => 'NaN'", "22023"),
        ("rate_period => '0'", "22023"),
    ] {
        client.refused(&format!("SELECT queue.alter('{q}', {alter})"), code);
        if !alter.contains("reset") {
            client.refused(&format!("SELECT queue.create('{q}_other', {alter})"), code);
        }
    }
    client.refused("SELECT queue.alter('nowhere')", "42704");
}

#[test]
fn the_views_show_counts_and_ages() {
    let (mut client, q) = queue("backoff_base => '0'");
    let stats = format!(
        "SELECT ROW(ready, scheduled, retrying, running, dead, oldest_ready_age IS NULL, enqueued, claimed, completed,
            failed,
             timed_out, died)::text FROM queue.stats WHERE queue_name = '{q}' AND stage IS NULL"
    );
    assert_eq!(client.value::<String>(&stats), "(0,0,0,0,0,t,0,0,0,0,0,0)");
    client.run(&format!("SELECT queue.enqueue_many('{q}', array_fill('1'::jsonb, ARRAY[6]))"));
    client.run(&format!("SELECT queue.enqueue('{q}', delay => '1 day')"));
    assert_eq!(client.value::<String>(&stats), "(6,1,0,0,0,f,7,0,0,0,0,0)");
    let ids: Vec<i64> = client.column(&format!("SELECT id FROM queue.claim('{q}', 5, worker => 'w')"));
    client.run(&format!(
        "SELECT queue.complete({}), queue.fail({}, 'later', '1 day'), queue.fail({}, 'never', fatal => true), \
            queue.release({})",
        ids[0], ids[1], ids[2], ids[3]
    ));
    assert_eq!(client.value::<String>(&stats), "(2,1,1,1,1,f,7,5,1,2,0,1)");
    let age: bool = client.value(&format!(
        "SELECT oldest_ready_age BETWEEN interval '0' AND interval '1 minute' FROM queue.stats WHERE queue_name = '{q}'"
    ));
    assert!(age);

    let pid = client.pid();
    let workers: Vec<String> = client.column(&format!(
        "SELECT ROW(worker, pid, queue_name, running, oldest_claim BETWEEN interval '0' AND interval '1 minute')::text
         FROM queue.workers WHERE queue_name = '{q}'"
    ));
    assert_eq!(workers, [format!("(w,{pid},{q},1,t)")]);

    let errors: Vec<String> = client.column(&format!(
        "SELECT ROW(error, jobs, first_seen <= last_seen, example_job_id = (SELECT min(job_id) FROM queue.jobs AS j
             WHERE j.error = e.error AND j.queue_name = '{q}'))::text
         FROM queue.errors AS e WHERE queue_name = '{q}' ORDER BY error"
    ));
    assert_eq!(errors, ["(later,1,t,t)", "(never,1,t,t)"]);
    client.run(&format!("SELECT queue.complete({})", ids[4]));
    assert_eq!(client.count(&format!("SELECT FROM queue.workers WHERE queue_name = '{q}'")), 0);
}
