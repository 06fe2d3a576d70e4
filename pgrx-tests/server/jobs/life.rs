//! A job's life: retries, backoff, death, release, progress, cancellation, and what the views show of it.

use crate::shared::{self, *};

/// Returns the seconds since 1970 by the server's clock.
fn clock(client: &mut Client) -> f64 {
    client.value("SELECT extract(epoch FROM clock_timestamp())::float8")
}

/// Fails an attempt. Returns bounds of the delay after which the job runs again, in seconds.
fn delay_after(client: &mut Client, fail: &str) -> (f64, f64) {
    let before = clock(client);
    let run_at: f64 = client.value(&format!("SELECT extract(epoch FROM queue.{fail})::float8"));
    let after = clock(client);
    (run_at - after, run_at - before)
}

/// Returns these columns of `queue.job` for the job as text.
fn look(client: &mut Client, job_id: i64, columns: &str) -> String {
    client.value(&format!("SELECT ROW({columns})::text FROM queue.job({job_id})"))
}

/// Claims the job that was just retried by hand.
fn claim_again(client: &mut Client, q: &str, job_id: i64) -> i64 {
    client.run(&format!("SELECT queue.retry({job_id})"));
    client.claim(q)
}

#[test]
fn a_job_is_claimed_run_and_completed() {
    let (mut client, q) = queue("");
    let job: i64 = client.value(&format!(
        "SELECT queue.enqueue('{q}', '{{\"to\": 7}}', priority => 3, headers => '{{\"trace\": \"t1\"}}')"
    ));
    assert_eq!(look(&mut client, job, "state, priority, attempt, run_at, claimed_at, finished_at"), "(ready,3,1,,,)");
    let (text, id, job_id): (String, i64, i64) =
        client.row(&format!("SELECT c::text, c.id, c.job_id FROM queue.claim('{q}', worker => 'w1') AS c"));
    assert_eq!(job_id, job);
    let start = format!(r#"({id},{job},{q},,"{{""to"": 7}}","{{""trace"": ""t1""}}",1,20,3,,,,,"#);
    assert!(text.starts_with(&start), "{text}");
    let running = look(&mut client, job, "state, worker, claimed_at IS NULL, finished_at, lease_expires_at IS NULL");
    assert_eq!(running, "(running,w1,f,,f)");
    let left = lease_left_of_job(&mut client, job);
    assert!((290.0..=300.0).contains(&left), "the lease of 5 minutes: {left}");

    client.run(&format!("SELECT queue.complete({id}, '{{\"sent\": true}}')"));
    let ended = "state, worker, error, result, headers, claimed_at < finished_at, lease_expires_at";
    assert_eq!(look(&mut client, job, ended), r#"(completed,w1,,"{""sent"": true}","{""trace"": ""t1""}",t,)"#);
    let attempts: Vec<String> = client.column(&format!(
        "SELECT ROW(id, attempt, state, worker, claimed_at < finished_at, error)::text FROM queue.attempts \
            WHERE job_id = {job}"
    ));
    assert_eq!(attempts, [format!("({id},1,completed,w1,t,)")]);
    // `queue.jobs` shows the same job.
    let same: bool = client.value(&format!(
        "SELECT (SELECT j FROM queue.job({job}) AS j)::text = (SELECT j FROM queue.jobs AS j \
            WHERE job_id = {job})::text"
    ));
    assert!(same);
}

#[test]
fn a_failed_job_is_retried_until_its_attempts_are_used_up() {
    let (mut client, q) = queue("max_attempts => 3, backoff_base => '0'");
    let job = client.enqueue(&q);
    for n in 1..=3 {
        let (id, attempt, most, last): (i64, i32, i32, Option<String>) =
            client.row(&format!("SELECT id, attempt, max_attempts, last_error FROM queue.claim('{q}')"));
        assert_eq!((attempt, most), (n, 3));
        assert_eq!(last, (n > 1).then(|| format!("boom {}", n - 1)));
        let runs_again: bool = client.value(&format!("SELECT queue.fail({id}, 'boom {n}') IS NOT NULL"));
        assert_eq!(runs_again, n < 3);
    }
    assert_eq!(look(&mut client, job, "state, attempt, max_attempts, error"), r#"(dead,3,3,"boom 3")"#);
    assert_eq!(client.count(&format!("SELECT FROM queue.claim('{q}')")), 0);
    let attempts: Vec<String> = client
        .column(&format!("SELECT ROW(attempt, state, error)::text FROM queue.job_attempts({job}) ORDER BY attempt"));
    assert_eq!(attempts, [r#"(1,failed,"boom 1")"#, r#"(2,failed,"boom 2")"#, r#"(3,dead,"boom 3")"#]);
}

#[test]
fn a_fatal_failure_needs_no_more_attempts() {
    let (mut client, q) = queue("");
    let job = client.enqueue(&q);
    let id = client.claim(&q);
    assert!(client.value::<bool>(&format!("SELECT queue.fail({id}, 'hopeless', fatal => true) IS NULL")));
    assert_eq!(look(&mut client, job, "state, attempt, error"), "(dead,1,hopeless)");
    let jobs = [client.enqueue(&q), client.enqueue(&q)];
    client.run(&format!("SELECT queue.fail_many(array_agg(id), 'both', fatal => true) FROM queue.claim('{q}', 2)"));
    for job in jobs {
        assert_eq!(look(&mut client, job, "state, error"), "(dead,both)");
    }
}

#[test]
fn timeouts_count_as_attempts() {
    let (mut client, q) = queue("max_attempts => 2");
    let job = client.enqueue(&q);
    let mut seen = Vec::new();
    for n in 1..=2 {
        seen.push(client.value::<i32>(&format!("SELECT attempt FROM queue.claim('{q}', lease => '5 ms')")));
        let ended = format!("SELECT FROM queue.job_attempts({job}) WHERE state = 'timed_out'");
        client.maintain_until(&format!("(SELECT count(*) = {n} FROM ({ended}) AS ended)"));
    }
    assert_eq!(seen, [1, 2]);
    assert_eq!(look(&mut client, job, "state, attempt, error"), r#"(dead,2,"the lease expired")"#);
}

#[test]
fn the_delay_grows_by_the_queue_s_curve() {
    let (mut client, _) = queue("");
    for (curve, delays) in [
        ("constant", [10.0, 10.0, 10.0, 10.0, 10.0]),
        ("linear", [10.0, 20.0, 30.0, 40.0, 45.0]),
        ("exponential", [10.0, 20.0, 40.0, 45.0, 45.0]),
    ] {
        let q = format!("curve_{curve}");
        create(
            &mut client,
            &q,
            &format!("backoff => '{curve}', backoff_base => '10 s', backoff_max => '45 s', backoff_jitter => 0"),
        );
        let job = client.enqueue(&q);
        let mut id = client.claim(&q);
        for (n, expected) in delays.iter().enumerate() {
            let (least, most) = delay_after(&mut client, &format!("fail({id}, 'boom')"));
            assert!(least <= expected + 1e-5 && expected - 1e-5 <= most, "{curve} {n}: {expected} in {least}..{most}");
            assert_eq!(look(&mut client, job, "state, attempt"), format!("(retrying,{})", n + 2));
            assert_eq!(client.count(&format!("SELECT FROM queue.claim('{q}')")), 0);
            id = claim_again(&mut client, &q, job);
        }
    }
}

#[test]
fn jitter_spreads_the_delay_to_both_sides_and_no_further() {
    let (mut client, q) = queue("backoff => 'constant', backoff_base => '100 s', backoff_jitter => 0.5");
    client.run(&format!("SELECT queue.enqueue_many('{q}', array_fill('1'::jsonb, ARRAY[40]))"));
    let before = clock(&mut client);
    client.run(&format!("SELECT queue.fail_many(array_agg(id), 'boom') FROM queue.claim('{q}', 40)"));
    let after = clock(&mut client);
    let delays: Vec<f64> = client.column(&format!(
        "SELECT extract(epoch FROM run_at)::float8 FROM queue.jobs WHERE queue_name = '{q}' AND state = 'retrying'"
    ));
    assert_eq!(delays.len(), 40);
    assert!(delays.iter().all(|at| at - after <= 150.0 && at - before >= 50.0), "{delays:?}");
    // With 40 draws, one side stays empty in one of 10^12 runs.
    assert!(delays.iter().any(|at| at - before < 100.0) && delays.iter().any(|at| at - after > 100.0));
}

#[test]
fn the_worker_can_say_when_to_retry() {
    let (mut client, q) = queue("");
    let job = client.enqueue(&q);
    let id = client.claim(&q);
    let (least, most) = delay_after(&mut client, &format!("fail({id}, 'later', retry_in => '1 hour')"));
    assert!(least <= 3600.0 && 3600.0 <= most + 1e-5, "{least}..{most}");
    let id = claim_again(&mut client, &q, job);
    client.run(&format!("SELECT queue.fail({id}, 'at once', retry_in => '0')"));
    assert_eq!(look(&mut client, job, "state, attempt, run_at, error"), r#"(ready,3,,"at once")"#);
    client.claim(&q);
}

#[test]
fn the_job_s_own_limits_win_over_the_queue_s() {
    let (mut client, q) = queue("max_attempts => 9, lease => '1 hour', backoff_base => '0'");
    let job: i64 = client.value(&format!("SELECT queue.enqueue('{q}', max_attempts => 2, lease => '10 min')"));
    let near = |left: f64, seconds: f64| (seconds - 20.0..=seconds).contains(&left);
    let id = client.claim(&q);
    assert!(near(lease_left(&mut client, id), 600.0));
    // An extension without a length has the length of the claim.
    client.run(&format!("SELECT queue.extend({id}, '2 hours')"));
    assert!(near(lease_left(&mut client, id), 7200.0));
    client.run(&format!("SELECT queue.fail({id}, 'boom')"));
    // The claim's own lease counts before both settings. The next attempt does not keep it.
    let id: i64 = client.value(&format!("SELECT id FROM queue.claim('{q}', lease => '30 min')"));
    assert!(near(lease_left(&mut client, id), 1800.0));
    assert!(client.value::<bool>(&format!("SELECT queue.fail({id}, 'boom') IS NULL")));
    assert_eq!(look(&mut client, job, "state, attempt, max_attempts"), "(dead,2,2)");
    client.enqueue(&q);
    let id = client.claim(&q);
    assert!(near(lease_left(&mut client, id), 3600.0));
}

#[test]
fn jobs_run_by_priority_and_then_in_the_order_of_enqueueing() {
    let (mut client, q) = queue("");
    let mut order: Vec<(i32, i64)> = Vec::new();
    for priority in [0, 5, -5, 0, i32::MAX, -5, i32::MIN, 5, 0] {
        let job: i64 = client.value(&format!("SELECT queue.enqueue('{q}', priority => ({priority}))"));
        order.push((priority, job));
    }
    order.sort_unstable();
    let expected: Vec<i64> = order.iter().map(|(_, job)| *job).collect();
    assert_eq!(client.column::<i64>(&format!("SELECT job_id FROM queue.claim('{q}', 100)")), expected);
}

#[test]
fn a_released_or_retried_job_keeps_its_place() {
    let (mut client, q) = queue("backoff_base => '0'");
    let jobs: Vec<i64> = (0..3).map(|_| client.enqueue(&q)).collect();
    let first = client.claim(&q);
    client.run(&format!("SELECT queue.release({first})"));
    let again = format!("SELECT ROW(job_id, attempt)::text FROM queue.claim('{q}')");
    assert_eq!(client.value::<String>(&again), format!("({},1)", jobs[0]), "a release does not count");
    let second = client.claim(&q);
    client.run(&format!("SELECT queue.fail({second}, 'boom')"));
    assert_eq!(client.value::<String>(&again), format!("({},2)", jobs[1]), "a failure does");
    assert_eq!(client.value::<String>(&again), format!("({},1)", jobs[2]));
}

#[test]
fn a_release_with_delay_snoozes() {
    let (mut client, q) = queue("");
    let job = client.enqueue(&q);
    let id = client.claim(&q);
    client.run(&format!("SELECT queue.release({id}, '1 hour')"));
    assert_eq!(look(&mut client, job, "state, attempt, error"), "(scheduled,1,)");
    let wait: f64 =
        client.value(&format!("SELECT extract(epoch FROM run_at - clock_timestamp())::float8 FROM queue.job({job})"));
    assert!((3590.0..=3600.0).contains(&wait), "{wait}");
    assert_eq!(client.count(&format!("SELECT FROM queue.claim('{q}')")), 0);
}

#[test]
fn progress_goes_on_to_the_next_attempt_however_this_one_ends() {
    let (mut client, q) = queue("backoff_base => '0'");
    let job = client.enqueue(&q);
    let mut expected: Option<i32> = None;
    for end in ["fail($, 'boom')", "release($)", "timeout", "fail($, 'boom')", "crash", "release($)"] {
        let lease = if end == "timeout" { "2 s" } else { "1 hour" };
        let row = client
            .query_one(&format!("SELECT id, (progress->>'n')::int FROM queue.claim('{q}', lease => '{lease}')"), &[])
            .unwrap();
        let id: i64 = row.get(0);
        assert_eq!(row.get::<_, Option<i32>>(1), expected, "before {end}");
        if end != "crash" {
            // If a worker reports twice, the last report counts. A rolled-back report does not count.
            let n = expected.unwrap_or(0) + 1;
            let report = |n: i32| format!("SELECT queue.progress({id}, '{{\"n\": {n}}}')");
            if end != "timeout" {
                client.run(&report(99));
            }
            client.run(&report(n));
            client.run(&format!("BEGIN; {}; ROLLBACK", report(77)));
            expected = Some(n);
        }
        match end {
            "timeout" => client.maintain_until(&format!("(SELECT state = 'ready' FROM queue.job({job}))")),
            "crash" => client.run(&format!("SELECT queue.release({id})")),
            _ => client.run(&format!("SELECT queue.{}", end.replace('$', &id.to_string()))),
        }
        assert_eq!(look(&mut client, job, "progress->>'n'"), format!("({})", expected.unwrap()), "after {end}");
    }
}

#[test]
fn a_large_payload_goes_through_retries_uncopied() {
    // The database is the test's own, so that no other test closes the open segment.
    let (_database, mut client) = Database::new().with_queue("q", "backoff_base => '0'");
    let q = "q";
    // The payload has ten megabytes and cannot be compressed.
    client.run(
        "CREATE TEMP TABLE big AS
         SELECT jsonb_build_object('x', string_agg(md5(i::text), '')) AS payload FROM generate_series(1, 330000) AS i",
    );
    let digest: String = client.value("SELECT md5(payload::text) FROM big");
    let job: i64 = client.value(&format!("SELECT queue.enqueue('{q}', payload) FROM big"));
    for end in ["fail(id, 'boom')", "release(id)", "fail(id, 'boom')", "fail(id, 'boom', fatal => true)"] {
        let got: String =
            client.value(&format!("SELECT md5(payload::text), queue.{end}::text FROM queue.claim('{q}')"));
        assert_eq!(got, digest, "{end}");
    }
    let (rows, bytes): (i64, i64) = {
        let sql = format!(
            "SELECT count(*), sum(coalesce(pg_column_size(payload), 0)) FROM queue_internal.attempt_0
             WHERE job_id = {job}"
        );
        client.row(&sql)
    };
    assert_eq!(rows, 4);
    assert!((10_000_000..11_000_000).contains(&bytes), "{bytes} bytes for {rows} attempts");
    // A retry by hand stores another copy of the payload.
    client.run(&format!("SELECT queue.retry({job})"));
    assert_eq!(client.value::<String>(&format!("SELECT md5(payload::text) FROM queue.job({job})")), digest);
    assert_eq!(client.value::<String>(&format!("SELECT md5(payload::text) FROM queue.claim('{q}')")), digest);
}

#[test]
fn a_delayed_job_runs_when_its_time_has_come() {
    let (mut client, q) = queue("");
    let delayed: i64 = client.value(&format!("SELECT queue.enqueue('{q}', delay => '300 ms')"));
    let planned: i64 = client.value(&format!("SELECT queue.enqueue('{q}', run_at => now() + interval '1 day')"));
    let past: i64 = client.value(&format!("SELECT queue.enqueue('{q}', run_at => now() - interval '1 day')"));
    let none: i64 = client.value(&format!("SELECT queue.enqueue('{q}', delay => '0')"));
    assert_eq!(client.column::<i64>(&format!("SELECT job_id FROM queue.claim('{q}', 10)")), [past, none]);
    assert_eq!(client.state(planned), "scheduled");
    client.maintain_until(&format!("(SELECT count(*) = 1 FROM queue.claim('{q}', 10))"));
    let late: f64 =
        client.value(&format!("SELECT extract(epoch FROM claimed_at - enqueued_at)::float8 FROM queue.job({delayed})"));
    assert!(late >= 0.3, "{late}");
    assert_eq!(client.state(planned), "scheduled");
}

#[test]
fn a_waiting_job_can_be_cancelled() {
    let (mut client, q) = queue("");
    let ready = client.enqueue(&q);
    let later: i64 = client.value(&format!("SELECT queue.enqueue('{q}', delay => '1 day')"));
    for (job, force) in [(ready, false), (later, true)] {
        let cancel = format!("SELECT queue.cancel({job}, 'not wanted', force => {force})");
        assert_eq!(client.value::<String>(&cancel), "cancelled");
        // The second call changes nothing.
        assert_eq!(client.value::<String>(&cancel), "cancelled");
        let found = look(&mut client, job, "state, error, claimed_at, finished_at IS NULL");
        assert_eq!(found, r#"(cancelled,"not wanted",,f)"#);
    }
    assert_eq!(client.count(&format!("SELECT FROM queue.claim('{q}')")), 0);
}

#[test]
fn an_ended_job_cannot_be_cancelled_moved_or_delayed() {
    let (mut client, q) = queue("");
    let (done, dead) = (client.enqueue(&q), client.enqueue(&q));
    let ids: Vec<i64> = client.column(&format!("SELECT id FROM queue.claim('{q}', 2)"));
    client.run(&format!("SELECT queue.complete({}), queue.fail({}, 'boom', fatal => true)", ids[0], ids[1]));
    for (job, was) in [(done, "completed"), (dead, "failed")] {
        for verb in ["cancel($)", "cancel($, force => true)", "reprioritize($, 1)", "reschedule($, now())"] {
            let failure = client.refused(&format!("SELECT queue.{}", verb.replace('$', &job.to_string())), "55000");
            assert_eq!(failure.message, format!("job {job} has ended"));
            assert!(failure.detail.contains(was), "{verb}: {failure:?}");
            assert!(failure.hint.contains("queue.retry"), "{verb}: {failure:?}");
        }
    }
}

#[test]
fn an_ended_job_can_be_retried_from_the_start() {
    let (mut client, q) = queue("max_attempts => 2, backoff_base => '0'");
    for end in [
        "SELECT queue.complete($, '\"done\"')",
        "SELECT queue.fail($, 'boom', fatal => true)",
        "SELECT queue.cancel((SELECT job_id FROM queue.attempts WHERE id = $), force => true)",
    ] {
        let job: i64 = client.value(&format!("SELECT queue.enqueue('{q}', '{{\"keep\": 1}}', priority => 4)"));
        let id = client.claim(&q);
        client.run(&format!("SELECT queue.fail({id}, 'first')"));
        let id = client.claim(&q);
        client.run(&end.replace('$', &id.to_string()));
        client.run(&format!("SELECT queue.retry({job})"));
        let found = look(&mut client, job, "state, payload, priority, attempt, error, result, finished_at");
        assert_eq!(found, r#"(ready,"{""keep"": 1}",4,1,,,)"#, "{end}");
        // The retried job has all its attempts again.
        for n in 1..=2 {
            let row = client.query_one(&format!("SELECT id, attempt FROM queue.claim('{q}')"), &[]).unwrap();
            assert_eq!(row.get::<_, i32>(1), n);
            client.run(&format!("SELECT queue.fail({}, 'again')", row.get::<_, i64>(0)));
        }
        assert_eq!(client.state(job), "dead");
        client.run(&format!("SELECT queue.retry({job}, now() + interval '1 day')"));
        assert_eq!(look(&mut client, job, "state, run_at > now() + interval '23 hours'"), "(scheduled,t)");
        client.run(&format!("SELECT queue.purge('{q}')"));
    }
}

#[test]
fn a_waiting_job_can_be_retried_now_or_at_another_time() {
    let (mut client, q) = queue("");
    let planned: i64 = client.value(&format!("SELECT queue.enqueue('{q}', delay => '1 day')"));
    let failed = client.enqueue(&q);
    let id = client.claim(&q);
    client.run(&format!("SELECT queue.fail({id}, 'boom', '1 day')"));
    assert_eq!(client.state(failed), "retrying");
    for (job, attempt) in [(planned, 1), (failed, 2)] {
        client.run(&format!("SELECT queue.retry({job}, now() + interval '2 days')"));
        assert_eq!(look(&mut client, job, "run_at > now() + interval '47 hours'"), "(t)");
        client.run(&format!("SELECT queue.retry({job})"));
        let got: String = client.value(&format!("SELECT ROW(job_id, attempt)::text FROM queue.claim('{q}')"));
        assert_eq!(got, format!("({job},{attempt})"));
    }
}

#[test]
fn a_retry_with_an_old_snapshot_retries_the_job_in_its_present_state() {
    let (mut client, q) = queue("");
    client.enqueue(&q);
    let id = client.claim(&q);
    client.run(&format!("SELECT queue.fail({id}, 'no', fatal => true)"));
    let mut late = connect();
    late.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM queue.queues");
    // Another session retries the job first, and the job completes.
    assert_eq!(client.value::<i64>(&retry_dead(&q)), 1);
    let id = client.claim(&q);
    client.run(&format!("SELECT queue.complete({id})"));
    // The old snapshot still finds the job as dead. `retry` takes the job's id and retries an ended job in any final
    // state.
    assert_eq!(late.value::<i64>(&retry_dead(&q)), 1);
    late.run("COMMIT");
    assert_eq!(client.count(&format!("SELECT FROM queue.claim('{q}', 9)")), 1, "it runs once more, and once only");
}

#[test]
fn a_waiting_job_gets_another_priority_or_time() {
    let (mut client, q) = queue("");
    let jobs: Vec<i64> = (0..3).map(|_| client.enqueue(&q)).collect();
    let planned: i64 = client.value(&format!("SELECT queue.enqueue('{q}', delay => '1 day')"));
    client.run(&format!("SELECT queue.reprioritize({}, -1), queue.reprioritize({}, 9)", jobs[2], jobs[0]));
    client.run(&format!("SELECT queue.reprioritize({planned}, -2)"));
    assert_eq!(look(&mut client, planned, "state, priority, run_at > now()"), "(scheduled,-2,t)");
    client.run(&format!("SELECT queue.reschedule({}, now() + interval '1 day')", jobs[1]));
    assert_eq!(client.state(jobs[1]), "scheduled");
    assert_eq!(client.column::<i64>(&format!("SELECT job_id FROM queue.claim('{q}', 10)")), [jobs[2], jobs[0]]);
    client.run(&format!(
        "SELECT queue.reschedule({planned}, now() - interval '1 s'), queue.reschedule({}, now())",
        jobs[1]
    ));
    let rest: Vec<String> = client.column(&format!("SELECT ROW(job_id, attempt)::text FROM queue.claim('{q}', 10)"));
    assert_eq!(rest, [format!("({planned},1)"), format!("({},1)", jobs[1])]);
}

#[test]
fn a_purge_cancels_all_waiting_jobs_and_no_others() {
    let (mut client, q) = queue("");
    let (_, other) = queue("");
    client.enqueue(&other);
    let running = client.enqueue(&q);
    let id = client.claim(&q);
    client.run(&format!("SELECT queue.enqueue_many('{q}', array_fill('1'::jsonb, ARRAY[700]))"));
    client.run(&format!("SELECT queue.enqueue_many('{q}', array_fill('1'::jsonb, ARRAY[300]), delay => '1 day')"));
    client.run(&format!("BEGIN; SELECT queue.purge('{q}'); ROLLBACK"));
    assert_eq!(client.count(&format!("SELECT FROM queue.claim('{q}', 5)")), 5);
    assert_eq!(client.value::<i64>(&format!("SELECT queue.purge('{q}')")), 995);
    assert_eq!(client.value::<i64>(&format!("SELECT queue.purge('{q}')")), 0);
    assert_eq!(client.count(&format!("SELECT FROM queue.claim('{q}', 5)")), 0);
    assert_eq!(client.state(running), "running");
    client.run(&format!("SELECT queue.complete({id})"));
    client.enqueue(&q);
    client.claim(&q);
    client.claim(&other);
    let cancelled = format!("SELECT count(*) FROM queue.jobs WHERE queue_name = '{q}' AND state = 'cancelled'");
    assert_eq!(client.value::<i64>(&cancelled), 995);
}

#[test]
fn forget_removes_all_data_of_a_job() {
    let (mut client, q) = queue("backoff_base => '0'");
    let job: i64 = client
        .value(&format!("SELECT queue.enqueue('{q}', '{{\"name\": \"marker\"}}', headers => '{{\"h\": \"marker\"}}')"));
    let id = client.claim(&q);
    client.run(&format!("SELECT queue.progress({id}, '\"marker\"'), queue.fail({id}, 'marker')"));
    let id = client.claim(&q);
    client.run(&format!("SELECT queue.complete({id}, '\"marker\"')"));
    client.run(&format!("SELECT queue.forget({job})"));
    let got = look(&mut client, job, "state, payload, headers, error, result, progress, attempt");
    assert_eq!(got, "(completed,{},,,,,2)");
    for log in ["attempt", "outcome", "note"] {
        let found: i64 = client.value(&format!(
            "SELECT count(*) FROM queue_internal.{log}_0 AS l WHERE l.id IN (SELECT id FROM queue.attempts \
                WHERE job_id = {job}) AND l::text LIKE '%marker%'"
        ));
        assert_eq!(found, 0, "{log}");
    }
    client.run(&format!("SELECT queue.forget({job})"));
    assert_eq!(client.state(job), "completed");
}

#[test]
fn error_texts_are_cut_between_characters() {
    let (mut client, q) = queue("");
    let limited =
        shared::server().config().dbname("app").options("-c pg_queue.max_error_length=100").connect(postgres::NoTls);
    let mut limited = limited.unwrap();
    for (client, most) in [(&mut client, 8192), (&mut limited, 100)] {
        let job = client.enqueue(&q);
        let id = client.claim(&q);
        client.run(&format!("SELECT queue.fail({id}, repeat('é', 9000), fatal => true)"));
        let sql = format!("SELECT octet_length(error), replace(error, 'é', '') FROM queue.job({job})");
        let row = client.query_one(&sql, &[]).unwrap();
        assert_eq!((row.get::<_, i32>(0), row.get::<_, String>(1)), (most, String::new()));
    }
}

#[test]
fn a_batch_has_the_effect_of_single_enqueues() {
    let (mut client, q) = queue("");
    let many: Vec<i64> = client.column(&format!(
        "SELECT queue.enqueue_many('{q}', ARRAY['1', '2', 'null']::jsonb[], priority => 2, max_attempts => 3, \
            headers => '{{\"a\": 1}}')"
    ));
    let batch: Vec<i64> = client.column(&format!(
        "SELECT queue.enqueue_batch('{q}',
            '[{{\"payload\": 4, \"priority\": 1, \"max_attempts\": 9, \"lease\": \"1 min\", \"headers\": {{}}}},
            {{}}, {{\"payload\": null, \"priority\": null, \"delay\": null, \"on_duplicate\": \"skip\"}},
            {{\"delay\": \"1 day\"}}, {{\"run_at\": \"2100-01-01\"}}]')"
    ));
    let mut all: Vec<i64> = many.iter().chain(&batch).copied().collect();
    assert_eq!((many.len(), batch.len()), (3, 5));
    assert!(all.is_sorted(), "{all:?}");
    all.dedup();
    assert_eq!(all.len(), 8);
    let rows: Vec<String> = client.column(&format!(
        "SELECT ROW(job_id, payload, priority, max_attempts, headers)::text FROM queue.claim('{q}', 100)"
    ));
    let expected = [
        format!("({},{{}},0,20,)", batch[1]),
        format!("({},null,0,20,)", batch[2]),
        format!("({},4,1,9,{{}})", batch[0]),
        format!(r#"({},1,2,3,"{{""a"": 1}}")"#, many[0]),
        format!(r#"({},2,2,3,"{{""a"": 1}}")"#, many[1]),
        format!(r#"({},null,2,3,"{{""a"": 1}}")"#, many[2]),
    ];
    assert_eq!(rows, expected);
    assert_eq!(client.state(batch[3]), "scheduled");
    assert_eq!(look(&mut client, batch[4], "run_at"), r#"("2100-01-01 00:00:00+00")"#);
}
