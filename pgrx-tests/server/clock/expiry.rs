//! The time by which a job must start: no claim takes an overdue job, overdue jobs expire, and they leave nothing
//! behind.

use crate::faults::held::{hold, release};
use crate::shared::*;

/// Returns a database without a worker, with queue `q`.
fn quiet(options: &str) -> (Database, Client) {
    Database::without_worker().with_queue("q", options)
}

/// Enqueues a job into `q` with this option.
fn enqueue(client: &mut Client, option: &str, value: &str) -> i64 {
    client.value(&format!("SELECT queue.enqueue('q', {option} => {value})"))
}

/// Waits until this job's time has passed.
fn pass(client: &mut Client, job: i64) {
    let sql = format!("SELECT count(*) FROM queue.job({job}) WHERE start_by <= clock_timestamp()");
    wait::until_true("its time has come", || client.value::<i64>(&sql) == 1);
}

/// Waits until all jobs' times have passed.
fn pass_all(client: &mut Client) {
    let sql = "SELECT count(*) FROM queue.jobs WHERE start_by > clock_timestamp()";
    wait::until_true("all times have come", || client.value::<i64>(sql) == 0);
}

/// Ends the expired jobs. Returns their number.
fn expire(client: &mut Client) -> i64 {
    let mut all = 0;
    loop {
        let sql = "SELECT coalesce(sum(did), 0)::bigint FROM queue.maintain() WHERE duty = 'expire_waiting'";
        match client.value::<i64>(sql) {
            0 => return all,
            did => all += did,
        }
    }
}

fn becomes(client: &mut Client, job: i64, state: &str) {
    wait::until_true(&format!("job {job} is {state}"), || client.state(job) == state);
}

#[test]
fn a_job_that_no_worker_has_claimed_in_time_expires_and_all_views_say_so() {
    let (database, mut client) = quiet("max_attempts => 1");
    client.run("SELECT queue.alter('q', start_within => '1 hour')");
    let living = client.enqueue("q");
    let jobs = [
        enqueue(&mut client, "start_within", "'1 ms'"),
        enqueue(&mut client, "start_by", "clock_timestamp()"),
        enqueue(&mut client, "start_by", "'2001-01-01 00:00:00+00'"),
    ];
    jobs.iter().for_each(|&job| pass(&mut client, job));
    let within: bool = client.value(&format!(
        "SELECT start_by BETWEEN enqueued_at + '1 hour' AND enqueued_at + '1 hour 1 minute' FROM queue.job({living})"
    ));
    assert!(within, "as the queue says");
    assert_eq!(expire(&mut client), 3);
    for job in jobs {
        assert_eq!(client.state(job), "expired");
        let told: (i32, bool, bool) = {
            let sql = format!("SELECT attempt, claimed_at IS NULL, finished_at >= start_by FROM queue.job({job})");
            client.row(&sql)
        };
        assert_eq!(told, (1, true, true), "no attempt was begun");
        assert_eq!(client.value::<String>(&format!("SELECT state FROM queue.job_attempts({job})")), "expired");
        let awaited = database.connect().query_one(&format!("CALL queue.await({job})"), &[]).unwrap();
        assert_eq!(awaited.get::<_, &str>(0), "expired");
        assert_eq!(client.failure(&format!("SELECT queue.cancel({job})")).detail, "It was expired.");
    }
    for (what, sql) in [
        ("jobs", "SELECT count(*) FROM queue.jobs WHERE state = 'expired' AND start_by IS NOT NULL"),
        ("list", "SELECT count(*) FROM queue.search('q', states => '{expired}') WHERE start_by IS NOT NULL"),
        ("search", "SELECT count(*) FROM queue.search('q', '$.timing.start_by', states => '{expired}') + 1"),
        ("stats", "SELECT expired FROM queue.stats"),
        ("throughput", "SELECT sum(expired)::bigint FROM queue.throughput"),
        ("throughput_by", "SELECT sum(expired)::bigint FROM queue.throughput_by()"),
        ("metrics", "SELECT value::bigint FROM queue_internal.metric WHERE name = 'pg_queue_expired_total'"),
        ("recounted", "SELECT sum(expired)::bigint FROM queue_internal.tallies(true)"),
    ] {
        assert_eq!(client.value::<i64>(&sql.replace("') + 1", "')")), if what == "search" { 2 } else { 3 }, "{what}");
    }
    assert_eq!(client.column::<i64>("SELECT job_id FROM queue.claim('q', 10)"), [living]);
    integrity::check(&mut client);
}

#[test]
fn no_claim_is_late_wherever_the_job_waits() {
    // No claim gets an expired job, whether the job waits in memory, beyond memory, in a group or in a stage.
    for options in
        ["", "max_running_per_group => 1", "strict_order => true", "rate_limit => 1000", "stages => '{a, b}'"]
    {
        let (_database, mut client) = quiet(options);
        let jobs = "SELECT count(queue.enqueue('q', group_key => (n % 3)::text, start_within => '400 ms'))
                    FROM generate_series(1, 30) AS n";
        client.run(jobs);
        let first = "SELECT count(*), coalesce(bool_and(j.claimed_at < j.start_by), true) FROM queue.claim('q', 3) AS c
                     JOIN LATERAL queue.job(c.job_id) AS j ON true";
        let row = client.query_one(first, &[]).unwrap();
        assert!(row.get::<_, i64>(0) > 0 && row.get::<_, bool>(1), "{options}");
        pass_all(&mut client);
        client.run("SELECT queue.enqueue('q', group_key => 'living')");
        let rest: i64 = client.value("SELECT count(*) FROM queue.claim('q', 100)");
        assert_eq!(rest, 1, "{options}");
        let waiting: i64 = client.value("SELECT ready FROM queue.stats WHERE ready > 0");
        assert_eq!(expire(&mut client), waiting, "{options}");
        assert_eq!(client.count("SELECT FROM queue.jobs WHERE state = 'ready'"), 0, "{options}");
        client.run("SELECT queue.enqueue('q', group_key => '1')");
        integrity::check(&mut client);
    }
}

#[test]
fn a_worker_that_sleeps_does_not_get_a_late_job_and_the_worker_ends_it_by_itself() {
    let (mut client, q) = queue("");
    let jobs: Vec<i64> = client.column(&format!(
        "SELECT queue.enqueue('{q}', delay => '200 ms', start_within => w)
         FROM unnest(ARRAY['1 us', '2 us', '1 hour']::interval[]) AS w"
    ));
    client.run(&format!("SELECT queue.pause('{q}')"));
    for job in &jobs[..2] {
        becomes(&mut client, *job, "expired");
    }
    assert_eq!(client.value::<i64>(&format!("SELECT sum(expired)::bigint FROM queue.activity('{q}')")), 2);
    client.run(&format!("SELECT queue.resume('{q}')"));
    assert_eq!(client.column::<i64>(&format!("SELECT job_id FROM queue.claim('{q}', 10, wait => '5 s')")), jobs[2..]);
}

#[test]
fn a_job_that_an_open_transaction_holds_at_its_time_expires_only_after_that_ends() {
    for (begin, end, state) in [
        ("BEGIN; SELECT FROM queue.claim('q')", "COMMIT", "running"),
        ("BEGIN; SELECT FROM queue.claim('q')", "ROLLBACK", "expired"),
        ("BEGIN; SAVEPOINT a; SELECT FROM queue.claim('q')", "ROLLBACK TO a; COMMIT", "expired"),
        ("BEGIN; SELECT queue.complete(id) FROM queue.claim('q')", "ROLLBACK", "expired"),
        ("BEGIN; SELECT queue.cancel(job_id) FROM queue.jobs WHERE state = 'ready'", "ROLLBACK", "expired"),
        ("BEGIN; SELECT queue.reprioritize(job_id, 7) FROM queue.jobs WHERE state = 'ready'", "COMMIT", "expired"),
        ("BEGIN; SELECT queue.reprioritize(job_id, 7) FROM queue.jobs WHERE state = 'ready'", "ROLLBACK", "expired"),
        ("BEGIN; SELECT queue.purge('q')", "ROLLBACK", "expired"),
        ("BEGIN; SELECT queue.purge('q')", "COMMIT", "cancelled"),
    ] {
        let (database, mut client) = quiet("");
        let mut other = database.connect();
        let job = enqueue(&mut client, "start_within", "'300 ms'");
        other.run(begin);
        pass(&mut client, job);
        expire(&mut client);
        assert!(["ready", "running"].contains(&client.state(job).as_str()), "{begin}: {}", client.state(job));
        other.run(end);
        wait::until_true("it has its state", || {
            expire(&mut client);
            client.state(job) == state
        });
        assert_eq!(client.count("SELECT FROM queue.claim('q')"), 0, "{begin}; {end}");
        integrity::check(&mut client);
    }
}

#[test]
fn a_commit_after_the_time_is_not_handed_out_and_expires() {
    let (database, mut client) = quiet("start_within => '100 ms'");
    let mut other = database.connect();
    other.run("BEGIN");
    let job = other.enqueue("q");
    pass(&mut other, job);
    assert_eq!(expire(&mut client), 0);
    other.run("COMMIT");
    assert_eq!(client.count("SELECT FROM queue.claim('q')"), 0);
    assert_eq!((expire(&mut client), client.state(job).as_str()), (1, "expired"));
    integrity::check(&mut client);
}

#[test]
fn a_claim_that_holds_a_late_job_leaves_it_to_the_duty() {
    for point in ["claim.taken", "refill.read"] {
        let (database, mut client) = quiet("");
        let job = enqueue(&mut client, "start_within", "'300 ms'");
        let held = hold(&database.name, point, "SELECT FROM queue.claim('q')");
        pass(&mut client, job);
        expire(&mut client);
        assert_eq!(release(held), "", "{point}");
        wait::until_true("it has expired", || {
            expire(&mut client);
            client.state(job) == "expired"
        });
        integrity::check(&mut client);
    }
}

#[test]
fn a_failed_pass_of_the_duty_leaves_nothing_behind() {
    let (database, mut client) = quiet("");
    let job = enqueue(&mut client, "start_within", "'1 ms'");
    pass(&mut client, job);
    let held = hold(&database.name, "expire_waiting.taken", "SELECT FROM queue.maintain()");
    client.run(
        "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE '%queue.maintain()' \
         AND pid <> pg_backend_pid() AND datname = current_database()",
    );
    release(held);
    wait::until_true("it has expired", || {
        expire(&mut client);
        client.state(job) == "expired"
    });
    integrity::check(&mut client);
}

#[test]
fn a_retry_keeps_the_time_and_a_job_without_time_for_a_retry_is_dead() {
    let (_database, mut client) = quiet("backoff_base => '0', backoff_jitter => 0");
    let job = enqueue(&mut client, "start_within", "'1 hour'");
    let by = |client: &mut Client| client.value::<String>(&format!("SELECT start_by::text FROM queue.job({job})"));
    let first = by(&mut client);
    for end in ["queue.fail(id, 'oh')", "queue.release(id)"] {
        client.run(&format!("SELECT {end} FROM queue.claim('q')"));
        assert_eq!((client.state(job).as_str(), by(&mut client)), ("ready", first.clone()), "{end}");
    }
    client.run(&format!("SELECT queue.reprioritize({job}, -1)"));
    assert_eq!(by(&mut client), first);
    let next = client
        .value::<Option<String>>("SELECT queue.fail(id, 'boom', retry_in => '2 hours')::text FROM queue.claim('q')");
    assert_eq!((next, client.state(job).as_str()), (None, "dead"));
    assert_eq!(client.value::<String>(&format!("SELECT error FROM queue.job({job})")), "boom");
    // After a retry by hand the job has no such time.
    client.run(&format!("SELECT queue.retry({job})"));
    let never: bool = client.value(&format!("SELECT start_by IS NULL AND state = 'ready' FROM queue.job({job})"));
    assert!(never);
    client.run("SELECT queue.complete(id) FROM queue.claim('q')");

    let late = enqueue(&mut client, "start_within", "'300 ms'");
    let id = client.claim("q");
    pass(&mut client, late);
    client.run(&format!("SELECT queue.release({id})"));
    assert_eq!(client.count("SELECT FROM queue.claim('q')"), 0);
    assert_eq!((expire(&mut client), client.state(late).as_str()), (1, "expired"));
    client.run(&format!("SELECT queue.retry({late})"));
    assert_eq!(client.column::<i64>("SELECT job_id FROM queue.claim('q')"), [late]);
    integrity::check(&mut client);
}

#[test]
fn a_job_that_has_started_has_no_time_in_its_next_stage_or_when_it_comes_back() {
    let (_database, mut client) = quiet("stages => '{a, b}', start_within => '300 ms'");
    let job = client.enqueue("q");
    client.run("SELECT queue.advance(id) FROM queue.claim('q')");
    let none =
        |client: &mut Client, job: i64| client.value::<bool>(&format!("SELECT start_by IS NULL FROM queue.job({job})"));
    assert!(none(&mut client, job));
    let other: i64 = client.value("SELECT queue.enqueue('q', priority => 9, start_within => '1 hour')");
    client.run(&format!("SELECT queue.suspend(id, ARRAY[{other}]) FROM queue.claim('q', stage => 'b')"));
    assert!(none(&mut client, job));
    client.run(&format!("SELECT queue.cancel({other})"));
    client.maintain_until(&format!("(SELECT state FROM queue.job({job})) = 'ready'"));
    assert!(none(&mut client, job), "its release gives it none");
    integrity::check(&mut client);
}

#[test]
fn a_held_job_has_its_time_from_its_release_unless_it_is_a_moment() {
    let (_database, mut client) = quiet("start_within => '1 hour'");
    let first = client.enqueue("q");
    let after = |client: &mut Client, upon: &str, more: &str| -> i64 {
        client.value(&format!("SELECT queue.enqueue('q', after => ARRAY[{first}], upon => '{upon}'{more})"))
    };
    let span = after(&mut client, "ended", ", start_within => '2 hours'");
    let by_queue = after(&mut client, "ended", "");
    let past = after(&mut client, "ended", ", start_by => '2001-01-01 00:00:00Z'");
    let after_past: i64 = client.value(&format!("SELECT queue.enqueue('q', after => ARRAY[{past}])"));
    let failed_past: i64 =
        client.value(&format!("SELECT queue.enqueue('q', after => ARRAY[{past}], upon => 'failed')"));
    let ended_past: i64 = client.value(&format!("SELECT queue.enqueue('q', after => ARRAY[{past}], upon => 'ended')"));
    assert_eq!(expire(&mut client), 1);
    client.maintain_until(&format!("(SELECT state FROM queue.job({ended_past})) = 'ready'"));
    let states: Vec<String> = [past, after_past, failed_past, span].map(|job| client.state(job)).into();
    assert_eq!(states, ["expired", "skipped", "skipped", "held"]);
    let nothing: bool = client.value("SELECT bool_and(start_by IS NULL) FROM queue.jobs WHERE state = 'held'");
    assert!(nothing);
    client.run("SELECT queue.complete(id) FROM queue.claim('q')");
    client.maintain_until(&format!("(SELECT state FROM queue.job({span})) = 'ready'"));
    for (job, hours) in [(span, 2), (by_queue, 1)] {
        let is_so: bool = client.value(&format!(
            "SELECT start_by - now() BETWEEN '{hours} hours' - interval '1 minute' AND '{hours} hours'
             FROM queue.job({job})"
        ));
        assert!(is_so, "{hours}");
    }
    integrity::check(&mut client);
}

#[test]
fn a_flow_that_expires_first_cancels_its_members() {
    let (_database, mut client) = quiet("");
    let flow: i64 = client.value(
        r#"SELECT queue.enqueue_flow('q', '[{"task": "a"}, {"task": "b"}]', open => true,
                  start_within => '100 ms')"#,
    );
    let next: i64 = client.value(&format!("SELECT queue.enqueue('q', after => ARRAY[{flow}], upon => 'ended')"));
    pass(&mut client, flow);
    client.maintain_until(&format!("(SELECT state FROM queue.job({flow})) = 'expired'"));
    let members: Vec<String> = client.column(&format!("SELECT state || ': ' || error FROM queue.members({flow})"));
    assert_eq!(
        members,
        [format!("cancelled: its flow {flow} has expired"), format!("cancelled: its flow {flow} has expired")]
    );
    client.maintain_until(&format!("(SELECT state FROM queue.job({next})) = 'ready'"));
    assert_eq!(client.value::<i64>("SELECT expired FROM queue.stats"), 1);
    // An expired member does not hold up its flow. It counts as cancelled.
    let flow: i64 = client.value(r#"SELECT queue.enqueue_flow('q', '[{"task": "a", "start_within": "1 ms"}]')"#);
    client.maintain_until(&format!("(SELECT state FROM queue.job({flow})) = 'completed'"));
    assert_eq!(client.value::<i64>(&format!("SELECT expired FROM queue.flows WHERE job_id = {flow}")), 1);
    integrity::check(&mut client);
}

#[test]
fn an_event_with_a_time_limit_is_resolved_or_expires_and_its_successors_follow_their_conditions() {
    let (database, mut client) = quiet("max_attempts => 1");
    let event = |client: &mut Client, within: &str| -> i64 {
        client.value(&format!("SELECT queue.enqueue_flow('q', open => true, start_within => '{within}')"))
    };
    let after = |client: &mut Client, jobs: &[i64], upon: &str| -> i64 {
        let delay = if upon == "overdue" { ", delay => '1 hour'" } else { "" };
        client.value(&format!("SELECT queue.enqueue('q', after => ARRAY{jobs:?}, upon => '{upon}'{delay})"))
    };
    // The event comes in time.
    let resolved = event(&mut client, "2 days");
    let paid = after(&mut client, &[resolved], "completed");
    assert_eq!(expire(&mut client), 0);
    client.run(&format!("SELECT queue.resolve({resolved}, '{{\"by\": \"ada\"}}')"));
    client.maintain_until(&format!("(SELECT state FROM queue.job({paid})) = 'ready'"));
    assert_eq!(
        client.count(&format!("SELECT FROM queue.job({resolved}) WHERE start_by > now() + interval '47 hours'")),
        1
    );
    // The event does not come.
    let other = client.enqueue("q");
    let late = event(&mut client, "100 ms");
    let jobs = ["completed", "failed", "ended", "overdue", "any"].map(|upon| after(&mut client, &[late], upon));
    let either = after(&mut client, &[late, other], "any");
    create(&mut client, "own", "lease => '1 hour'");
    let waiting = client.enqueue("own");
    let id = client.claim("own");
    client.run(&format!("SELECT queue.suspend({id}, ARRAY[{late}])"));
    pass(&mut client, late);
    assert_eq!(expire(&mut client), 1);
    becomes(&mut client, late, "expired");
    for (job, state) in jobs.into_iter().zip(["skipped", "skipped", "ready", "skipped", "skipped"]) {
        client.maintain_until(&format!("(SELECT state FROM queue.job({job})) = '{state}'"));
    }
    assert_eq!(client.state(either), "held", "the other one may complete");
    client.run(&format!("SELECT queue.cancel({other})"));
    client.maintain_until(&format!("(SELECT state FROM queue.job({either})) = 'skipped'"));
    client.maintain_until(&format!("(SELECT state FROM queue.job({waiting})) = 'ready'"));
    let id = client.claim("own");
    assert_eq!(client.column::<String>(&format!("SELECT state FROM queue.inputs({id})")), ["expired"]);
    for verb in ["resolve", "seal"] {
        client.refused(&format!("SELECT queue.{verb}({late})"), "55000");
    }
    client.refused(&format!("SELECT queue.enqueue('q', flow => {late})"), "55000");
    // A resolve that commits late came in time. A rolled-back resolve did not.
    for commits in [true, false] {
        let event = event(&mut client, "50 ms");
        let next = after(&mut client, &[event], "completed");
        let mut session = database.connect();
        session.run(&format!("BEGIN; SELECT queue.resolve({event})"));
        pass(&mut client, event);
        expire(&mut client);
        assert_eq!(client.state(event), "held");
        session.run(if commits { "COMMIT" } else { "ROLLBACK" });
        let ends = if commits { ["completed", "ready"] } else { ["expired", "skipped"] };
        for (job, state) in [event, next].into_iter().zip(ends) {
            client.maintain_until(&format!("(SELECT state FROM queue.job({job})) = '{state}'"));
        }
    }
    client.check();
}

#[test]
fn a_call_under_a_key_gives_a_waiting_job_the_time_of_that_call() {
    for verb in ["replace", "rerun"] {
        let (_database, mut client) = quiet("");
        let call = |client: &mut Client, within: &str| -> i64 {
            client.value(&format!(
                "SELECT queue.enqueue('q', unique_key => 'k', on_duplicate => '{verb}', start_within => {within})"
            ))
        };
        let by = |client: &mut Client, job: i64| {
            client.value::<Option<f64>>(&format!(
                "SELECT round(extract(epoch FROM start_by - now()) / 3600)::float8 FROM queue.job({job})"
            ))
        };
        let job = call(&mut client, "'1 hour'");
        assert_eq!(by(&mut client, job), Some(1.0));
        assert_eq!((call(&mut client, "'3 hours'"), by(&mut client, job)), (job, Some(3.0)));
        assert_eq!((call(&mut client, "NULL"), by(&mut client, job)), (job, None), "{verb}");
        let id = client.claim("q");
        call(&mut client, "'5 hours'");
        client.run(&format!("SELECT queue.complete({id})"));
        assert_eq!((client.state(job).as_str(), by(&mut client, job)), ("ready", Some(5.0)), "{verb}");
        // An expired job frees its key.
        client.run("SELECT queue.complete(id) FROM queue.claim('q')");
        let brief = call(&mut client, "'1 ms'");
        pass(&mut client, brief);
        assert_eq!(expire(&mut client), 1);
        assert_ne!(call(&mut client, "NULL"), brief);
        integrity::check(&mut client);
    }
}

#[test]
fn copies_of_events_and_jobs_of_schedules_have_a_start_by_and_dead_letters_have_none() {
    let (_database, mut client) = quiet("max_attempts => 1");
    create(&mut client, "dead", "");
    client.run("SELECT queue.alter('q', dead_letter => 'dead')");
    client.run("SELECT queue.create_topic('t'); SELECT queue.bind('t', 'q', '#')");
    client.run("SELECT queue.publish('t', start_within => '1 hour')");
    assert_eq!(client.count("SELECT FROM queue.jobs WHERE start_by > now() + '59 minutes'"), 1);
    client.run("SELECT queue.fail(id, 'x') FROM queue.claim('q')");
    let copy: bool = client.value(
        "SELECT start_by IS NULL AND timing IS NULL AND headers ? 'dead_letter' FROM queue.jobs
         WHERE queue_name = 'dead'",
    );
    assert!(copy);
    client.run("SELECT queue.schedule('s', 'q', every => '1 hour', start_within => '1 hour')");
    client.run("SELECT queue.run_schedule('s')");
    assert_eq!(client.count("SELECT FROM queue.jobs WHERE start_by > now() + '59 minutes' AND state = 'ready'"), 1);
    // An expired job is not copied.
    let brief = enqueue(&mut client, "start_within", "'1 ms'");
    pass(&mut client, brief);
    expire(&mut client);
    assert_eq!(client.count("SELECT FROM queue.jobs WHERE queue_name = 'dead'"), 1);
    integrity::check(&mut client);
}

#[test]
fn invalid_times_to_start_are_refused() {
    let (mut client, q) = queue("");
    for (options, message) in [
        (&[("start_by", "infinity")][..], "start_by must be finite"),
        (&[("start_within", "0")], "start_within must be positive"),
        (&[("start_within", "-1 s")], "start_within must be positive"),
        (&[("start_within", "178000000 years")], "start_within must be finite"),
        (&[("start_within", "1 s"), ("start_by", "2030-01-01")], "start_by and start_within cannot be given together"),
        (&[("start_by", "2001-01-01")], "the job would expire before it may start"),
    ] {
        let arguments: Vec<_> = options.iter().map(|(name, value)| format!("{name} => '{value}'")).collect();
        let arguments = arguments.join(", ");
        for call in [
            format!("queue.enqueue('{q}', delay => '1 hour', {arguments})"),
            format!("queue.enqueue_many('{q}', '{{}}', delay => '1 hour', {arguments})"),
            format!("queue.enqueue_flow('{q}', delay => '1 hour', {arguments})"),
            format!("queue.publish('{q}', delay => '1 hour', {arguments})"),
            format!("queue.publish_many('{q}', '{{1}}', delay => '1 hour', {arguments})"),
        ] {
            let failure = client.failure(&format!("SELECT {call}"));
            assert_eq!((failure.code.as_str(), failure.message.as_str()), ("22023", message), "{call}");
        }
        let fields: Vec<_> = options.iter().map(|(name, value)| format!("\"{name}\": \"{value}\"")).collect();
        let one = format!("[{{\"delay\": \"1 hour\", {}}}]", fields.join(", "));
        let failure = client.failure(&format!("SELECT queue.enqueue_batch('{q}', '{one}')"));
        assert_eq!(failure.message, format!("jobs[0]: {message}"));
        let failure = client.failure(&format!("SELECT queue.enqueue_flow('{q}', '{one}')"));
        assert_eq!(failure.message, format!("tasks[0]: {message}"));
    }
    let null: i64 = client.value(&format!("SELECT queue.enqueue('{q}', start_by => NULL, start_within => NULL)"));
    assert_eq!(client.state(null), "ready");
    for value in ["0", "-1 s"] {
        let failure = client.failure(&format!("SELECT queue.alter('{q}', start_within => '{value}')"));
        assert_eq!((failure.code.as_str(), failure.message.as_str()), ("22023", "start_within must be positive"));
    }
    let job: i64 = client.value(&format!("SELECT queue.enqueue('{q}', start_within => '1 hour')"));
    let failure = client.refused(&format!("SELECT queue.reschedule({job}, now() + '2 hours')"), "55000");
    assert_eq!(failure.message, format!("job {job} would expire before it may start"));
    // In a call for many jobs only this job is refused.
    let other = client.enqueue(&q);
    let many =
        format!("SELECT outcome FROM queue.reschedule_many(ARRAY[{job}, {other}], now() + '2 hours') ORDER BY outcome");
    assert_eq!(client.column::<String>(&many), ["refused", "rescheduled"]);
    client.run(&format!("SELECT queue.reschedule({job}, now() + '30 minutes')"));
    let failure =
        client.failure(&format!("SELECT queue.schedule('{q}', '{q}', every => '1 h', start_within => '-1 s')"));
    assert_eq!(failure.message, "start_within must be positive");
}

#[test]
fn many_jobs_that_expire_together_all_end_and_later_jobs_run() {
    let (_database, mut client) = quiet("");
    client.run(
        "SELECT count(*) FROM (SELECT clock_timestamp() + '100 ms' AS at OFFSET 0) AS x,
             generate_series(1, 5000) AS n,
             LATERAL queue.enqueue('q', to_jsonb(n), start_by => at)",
    );
    let living = client.enqueue("q");
    pass_all(&mut client);
    assert_eq!(client.column::<i64>("SELECT job_id FROM queue.claim('q', 100)"), [living]);
    // One pass ends a thousand jobs. The next pass begins in the middle of jobs with the same time.
    let look = "SELECT coalesce(sum(did), 0)::bigint FROM queue.maintain() WHERE duty = 'expire_waiting'";
    let looks: Vec<i64> = (0..7).map(|_| client.value(look)).collect();
    assert_eq!(looks.iter().sum::<i64>(), 5000, "{looks:?}");
    assert_eq!(client.value::<i64>("SELECT expired FROM queue.stats"), 5000);
    integrity::check(&mut client);
}

#[test]
fn a_worker_that_leaves_time_to_running_jobs_ends_all_that_expire() {
    let (_database, mut client) = Database::new().with_queue("q", "");
    client.enqueue("q");
    assert_eq!(client.column::<i64>("SELECT id FROM queue.claim('q')").len(), 1);
    client.run(
        "SELECT count(*) FROM (SELECT clock_timestamp() + '100 ms' AS at OFFSET 0) AS x,
             generate_series(1, 5000) AS n,
             LATERAL queue.enqueue('q', to_jsonb(n), start_by => at)",
    );
    wait::until_true("all have expired, beside one that runs", || {
        client.value::<bool>("SELECT (expired, running) = (5000, 1) FROM queue.stats")
    });
    integrity::check(&mut client);
}

#[test]
fn times_to_start_outlast_a_crash_a_promotion_and_the_ring_of_segments() {
    let (cluster, mut client) =
        Cluster::with(&["pg_queue.segment_rows = 1000", "pg_queue.reclaim_delay = 0", "max_prepared_transactions = 5"])
            .start_with_database("app");
    create(&mut client, "q", "");
    create(&mut client, "other", "");
    let moved = "SELECT count(*) FROM (SELECT job_id FROM queue_internal.attempt_8 UNION SELECT job_id
         FROM queue_internal.attempt_9) AS a
                 WHERE job_id = $";
    let job = enqueue(&mut client, "start_within", "'20 s'");
    let kept = enqueue(&mut client, "start_within", "'1 day'");
    let late: i64 =
        client.value("SELECT queue.enqueue('q', priority => 9, delay => '1 day', start_within => '1 hour')");
    wait::within("it has moved to old", Duration::from_secs(60), || {
        client.pass_through("other", 1000);
        (client.value::<i64>(&moved.replace('$', &job.to_string())) == 1).then_some(())
    });
    drop(client);
    cluster.restart_killed();
    let mut client = cluster.connect_to("app");
    // Memory does not learn of the commit of a prepared enqueue.
    client.run("BEGIN");
    let prepared = enqueue(&mut client, "start_within", "'10 ms'");
    pass(&mut client, prepared);
    client.run("PREPARE TRANSACTION 'p'");
    client.run("COMMIT PREPARED 'p'");
    becomes(&mut client, prepared, "expired");
    let standby = cluster.standby();
    standby.wait_replayed(&cluster);
    assert_eq!(standby.connect_to("app").state(kept), "ready");
    drop(client);
    cluster.stop_immediate();
    standby.promote();
    let mut client = standby.connect_to("app");
    wait::until_true("it is a primary", || !client.value::<bool>("SELECT pg_is_in_recovery()"));
    wait::within("it has expired", Duration::from_secs(60), || (client.state(job) == "expired").then_some(()));
    assert_eq!((client.state(kept).as_str(), client.state(late).as_str()), ("ready", "scheduled"));
    assert_eq!(client.column::<i64>("SELECT job_id FROM queue.claim('q', 10)"), [kept]);
    integrity::check(&mut client);
}
