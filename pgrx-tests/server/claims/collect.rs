//! Claims with `linger` collect full batches, wait no longer than `linger`, and make no other claim wait.

use super::waiting::Sleeper;
use crate::faults::held::hold_session;
use crate::shared::*;

/// Starts a call that would take four jobs. If it answers within seconds, its time has not run out.
fn collecting(queue: &str) -> Sleeper {
    lingering(queue, 4, "40 s")
}

fn lingering(queue: &str, max_jobs: usize, linger: &str) -> Sleeper {
    Sleeper::new(&format!("SELECT id FROM queue.claim('{queue}', {max_jobs}, wait => '50 s', linger => '{linger}')"))
}

#[test]
fn a_call_sleeps_until_its_batch_is_full() {
    let (mut client, q) = queue("");
    let (first, second) = (collecting(&q), collecting(&q));
    for _ in 0..3 {
        client.enqueue(&q);
        first.assert_asleep(&mut client);
        second.assert_asleep(&mut client);
    }
    client.enqueue(&q);
    assert_eq!(first.answer().unwrap().len(), 4);
    second.assert_asleep(&mut client);
    // The next call gets the next batch, even if its jobs come in one commit.
    client.run(&format!("SELECT count(*) FROM queue.enqueue_many('{q}', array_fill('1'::jsonb, '{{5}}'))"));
    assert_eq!(second.answer().unwrap().len(), 4);
}

#[test]
fn a_batch_is_collected_though_other_queues_change() {
    let (mut client, q) = queue("");
    let (_, other) = queue("");
    client.enqueue(&q);
    // The call has looked up the queues, but not its jobs.
    let call = format!("SELECT FROM queue.claim('{q}', 2, wait => '50 s', linger => '40 s')");
    let mut session = connect();
    let pid = session.pid();
    session.run("SET pg_queue.max_wait = '1min'");
    let (fault, held) = hold_session(server(), session, "collect.before", &call);
    client.run(&format!("SELECT queue.alter('{other}', max_attempts => 3)"));
    drop(fault);
    wait_asleep(&mut client, pid);
    client.enqueue(&q);
    assert_eq!(held.join().unwrap().1, "");
    let claimed = format!("SELECT FROM queue.attempts WHERE queue_name = '{q}' AND state = 'running'");
    assert_eq!(client.count(&claimed), 2);
}

#[test]
fn a_call_takes_fewer_jobs_once_the_first_has_been_ready_for_the_linger_time() {
    let (mut client, q) = queue("");
    for linger in ["1 s", "50 s", "300000 years"] {
        // The later calls return because of their `wait`.
        let call = format!("SELECT id FROM queue.claim('{q}', 4, wait => '3 s', linger => '{linger}')");
        let sleeper = Sleeper::new(&call);
        client.enqueue(&q);
        client.enqueue(&q);
        sleeper.assert_asleep(&mut client);
        assert_eq!(sleeper.answer().unwrap().len(), 2, "{linger}");
    }
    // Jobs that fall due are collected as well.
    let sleeper = lingering(&q, 4, "2 s");
    client.run(&format!("SELECT queue.enqueue('{q}', delay => '100 ms') FROM generate_series(1, 2)"));
    assert_eq!(sleeper.answer().unwrap().len(), 2);
}

#[test]
fn a_call_that_may_not_sleep_takes_the_jobs_that_are_ready() {
    let (mut client, q) = queue("");
    client.enqueue(&q);
    client.run("BEGIN");
    client.enqueue(&q);
    let claim = format!("SELECT FROM queue.claim('{q}', 4, wait => '50 s', linger => '40 s')");
    assert_eq!(client.count(&claim), 1);
    client.run("COMMIT");
    // A call for a single job does not linger either.
    assert_eq!(client.count(&format!("SELECT FROM queue.claim('{q}', wait => '50 s', linger => '40 s')")), 1);
}

#[test]
fn no_other_call_waits_for_one_that_lingers() {
    let (mut client, q) = queue("");
    // A call that does not linger takes the jobs that another call collects.
    let collector = collecting(&q);
    client.enqueue(&q);
    collector.assert_asleep(&mut client);
    assert_eq!(client.count(&format!("SELECT FROM queue.claim('{q}', 4)")), 1);
    // A sleeping claim gets the first job immediately, even though another call lingers.
    for plain in [Sleeper::claiming(&q), Sleeper::claiming(&q)] {
        client.enqueue(&q);
        plain.claimed();
        collector.assert_asleep(&mut client);
    }
    // A call with a shorter `linger` does the same.
    let less = lingering(&q, 4, "1 s");
    client.enqueue(&q);
    assert_eq!(less.answer().unwrap().len(), 1);
    collector.assert_asleep(&mut client);
    client.enqueue(&q);
    assert_eq!(client.count(&format!("SELECT FROM queue.claim('{q}', 4, wait => '50 s', linger => '1 s')")), 1);
    client.run(&format!("SELECT pg_terminate_backend({})", collector.pid));
}

#[test]
fn a_collector_that_leaves_hands_its_jobs_on() {
    let (mut client, q) = queue("");
    for leave in ["pg_terminate_backend", "pg_cancel_backend"] {
        let collector = collecting(&q);
        let next = lingering(&q, 1, "45 s");
        client.enqueue(&q);
        collector.assert_asleep(&mut client);
        next.assert_asleep(&mut client);
        client.run(&format!("SELECT {leave}({})", collector.pid));
        assert!(collector.answer().is_err());
        next.claimed();
    }
}

#[test]
fn jobs_that_come_back_or_are_resumed_fill_a_batch() {
    let (mut client, q) = queue("");
    client.run(&format!("SELECT count(*) FROM queue.enqueue_many('{q}', array_fill('1'::jsonb, '{{4}}'))"));
    let mut other = connect();
    other.run("BEGIN");
    assert_eq!(other.count(&format!("SELECT FROM queue.claim('{q}', 3)")), 3);
    let collector = collecting(&q);
    other.run("ROLLBACK");
    assert_eq!(collector.answer().unwrap().len(), 4);
    // A paused queue gives no job, however long a call lingers.
    let collector = lingering(&q, 4, "1 s");
    client.run(&format!("SELECT queue.pause('{q}')"));
    client.run(&format!("SELECT count(*) FROM queue.enqueue_many('{q}', array_fill('1'::jsonb, '{{4}}'))"));
    collector.assert_asleep(&mut client);
    client.run(&format!("SELECT queue.resume('{q}')"));
    assert_eq!(collector.answer().unwrap().len(), 4);
    // Cancelled jobs do not count.
    let collector = collecting(&q);
    let job = client.enqueue(&q);
    client.run(&format!("SELECT queue.cancel({job})"));
    wait::until_none_left("it is cancelled", || {
        client.value(&format!("SELECT count(*) FROM queue.jobs WHERE queue_name = '{q}' AND state = 'ready'"))
    });
    client.run(&format!("SELECT count(*) FROM queue.enqueue_many('{q}', array_fill('1'::jsonb, '{{4}}'))"));
    assert_eq!(collector.answer().unwrap().len(), 4);
}

#[test]
fn a_batch_is_no_larger_than_limits_allow() {
    let (mut client, q) = queue("max_running => 2");
    let collector = collecting(&q);
    client.enqueue(&q);
    collector.assert_asleep(&mut client);
    client.enqueue(&q);
    assert_eq!(collector.answer().unwrap().len(), 2);
    let (mut client, q) = queue("rate_limit => 3, rate_period => '1 hour'");
    let collector = collecting(&q);
    client.run(&format!("SELECT count(*) FROM queue.enqueue_many('{q}', array_fill('1'::jsonb, '{{5}}'))"));
    assert_eq!(collector.answer().unwrap().len(), 3);
    // Each group may start one job, so the batch has one job of each.
    let (mut client, q) = queue("max_running_per_group => 1");
    let collector = lingering(&q, 2, "40 s");
    client.run(&format!("SELECT queue.enqueue('{q}', group_key => g) FROM unnest('{{a,b}}'::text[]) AS g"));
    let ids = collector.answer().unwrap();
    assert_eq!(ids.len(), 2);
    client.run(&format!("SELECT queue.enqueue('{q}', group_key => g) FROM unnest('{{a,b}}'::text[]) AS g"));
    let collector = lingering(&q, 2, "40 s");
    client.run(&format!("SELECT count(*) FROM queue.complete_many('{{{},{}}}')", ids[0], ids[1]));
    assert_eq!(collector.answer().unwrap().len(), 2);
}

#[test]
fn a_batch_may_be_larger_than_memory() {
    let (mut client, q) = queue("");
    let jobs = client.value::<i64>("SELECT current_setting('pg_queue.max_ready')::bigint") + 1_000;
    client.run(&format!("SELECT count(*) FROM queue.enqueue_many('{q}', array_fill('1'::jsonb, '{{{jobs}}}'))"));
    client.run("SET statement_timeout = '40 s'");
    let claim = format!("SELECT FROM queue.claim('{q}', {}, wait => '50 s', linger => '50 s')", jobs + 1);
    assert_ne!(client.count(&claim), 0);
}

#[test]
fn a_job_that_is_collected_may_be_too_late_to_start() {
    let (mut client, q) = queue("start_within => '1 s'");
    let collector = lingering(&q, 4, "3 s");
    let job = client.enqueue(&q);
    collector.assert_asleep(&mut client);
    wait::until_none_left("it expires", || {
        client.value(&format!("SELECT count(*) FROM queue.job({job}) WHERE state <> 'expired'"))
    });
    client.run(&format!("SELECT count(*) FROM queue.enqueue_many('{q}', array_fill('1'::jsonb, '{{4}}'))"));
    assert_eq!(collector.answer().unwrap().len(), 4);
}

#[test]
fn arguments_without_meaning_are_refused() {
    const ONE: &str = "linger needs one queue or stage to collect from";
    let (mut client, q) = queue("");
    create(&mut client, &format!("{q} staged"), "stages => '{first, last}'");
    for (claim, message) in [
        (format!("queue.claim('{q}', 4, wait => '1 s', linger => '-1 s')"), "linger cannot be negative"),
        (format!("queue.claim('{q}', 4, linger => '1 s')"), "linger needs wait"),
        (format!("queue.claim('{q} staged', 4, wait => '1 s', linger => '1 s')"), ONE),
        (format!("queue.claim_any('{{{q},{q} staged}}', 4, wait => '1 s', linger => '1 s')"), ONE),
    ] {
        let failure = client.failure(&format!("SELECT FROM {claim}"));
        assert_eq!((&*failure.code, &*failure.message), ("22023", message));
    }
    assert_eq!(client.count(&format!("SELECT FROM queue.claim('{q}', 4, linger => '0')")), 0);
    let any = format!("SELECT FROM queue.claim_any('{{{q}}}', 4, wait => '1 s', linger => '100 ms')");
    client.enqueue(&q);
    assert_eq!(client.count(&any), 1);
    client.enqueue(&format!("{q} staged"));
    let staged = format!("SELECT FROM queue.claim('{q} staged', stage => 'first', wait => '1 s', linger => '1 s')");
    assert_eq!(client.count(&staged), 1);
}
