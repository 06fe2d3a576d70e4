//! `queue.cancel_many`, `retry_many`, `reprioritize_many` and `reschedule_many` do for each job what the single verb
//! does, and return an answer for each. Searches and jobs beyond memory are in `operations::listing`.

use crate::shared::*;

/// For each verb: the call for many jobs, the call for one job, and the answers that mean success.
const VERBS: [(&str, &str, &[&str]); 6] = [
    ("cancel_many($, 'no need')", "cancel($, 'no need')", &["cancelled", "cancelling"]),
    ("cancel_many($, force => true)", "cancel($, force => true)", &["cancelled"]),
    ("retry_many($)", "retry($)", &["retried"]),
    ("retry_many($, '2100-01-01')", "retry($, '2100-01-01')", &["retried"]),
    ("reprioritize_many($, -7)", "reprioritize($, -7)", &["reprioritized"]),
    ("reschedule_many($, '2100-01-01')", "reschedule($, '2100-01-01')", &["rescheduled"]),
];

/// Makes a job of each kind in a queue. Returns their ids.
fn of_each_kind(client: &mut Client, q: &str) -> Vec<i64> {
    let mut jobs = Vec::new();
    for end in [
        "complete($, '1')",
        "fail($, 'no', fatal => true)",
        "fail($, 'again', '1 hour')",
        "release($, '1 hour')",
        "extend($)",
        "cancel(#)",
        "cancel(#, force => true)",
        "suspend($, until => 'epoch')",
    ] {
        let job = client.enqueue(q);
        let id = client.claim(q);
        client.run(&format!("SELECT queue.{}", end.replace('$', &id.to_string()).replace('#', &job.to_string())));
        if end.starts_with("suspend") {
            // The job goes on immediately, because its time has passed.
            queue_tests::wait::until_true("it goes on", || client.state(job) == "ready");
            client.run(&format!("SELECT queue.reschedule({job}, '2090-01-01')"));
        }
        jobs.push(job);
    }
    let before: i64 = client.value(&format!("SELECT queue.enqueue('{q}', delay => '1 day')"));
    jobs.push(client.value(&format!("SELECT queue.enqueue('{q}', after => ARRAY[{before}])")));
    jobs.push(before);
    jobs.push(client.value(&format!("SELECT queue.enqueue('{q}', delay => '1 day', priority => 3)")));
    jobs.push(client.enqueue(q));
    // Another living job has taken this job's key.
    let keyed: i64 = client.value(&format!("SELECT queue.enqueue('{q}', unique_key => 'k')"));
    client.run(&format!(
        "SELECT queue.cancel({keyed}); SELECT queue.enqueue('{q}', unique_key => 'k', delay => '1 day')"
    ));
    jobs.push(keyed);
    jobs
}

/// Returns everything that the views show of each job, without ids and current times.
fn known(client: &mut Client, jobs: &[i64]) -> Vec<String> {
    client.column(&format!(
        "SELECT concat_ws(' ', state, priority, attempt, error, result, CASE WHEN run_at > '2080-01-01' THEN run_at END,
                    (SELECT string_agg(a.state, ',' ORDER BY a.id) FROM queue.job_attempts(j.job_id) AS a))
         FROM unnest(ARRAY{jobs:?}) WITH ORDINALITY AS i (job, n), queue.job(i.job) AS j ORDER BY i.n"
    ))
}

#[test]
fn each_job_changes_as_the_single_verb_would_change_it() {
    for (many, one, done) in VERBS {
        let (mut client, q) = queue("");
        let other = format!("{q} other");
        create(&mut client, &other, "");
        let (jobs, others) = (of_each_kind(&mut client, &q), of_each_kind(&mut client, &other));
        assert_eq!(known(&mut client, &jobs), known(&mut client, &others));
        let mut singly = Vec::new();
        for job in &others {
            let sql = format!("SELECT queue.{}::text", one.replace('$', &job.to_string()));
            singly.push(match client.query_one(&sql, &[]) {
                Ok(row) => (row.get::<_, String>(0), String::new()),
                Err(e) => {
                    let failure = crate::shared::Failure::from(&e);
                    assert!(["55000", "23505"].contains(&failure.code.as_str()), "{one}: {failure:?}");
                    let detail =
                        if failure.detail.is_empty() { String::new() } else { format!(": {}", failure.detail) };
                    ("refused".to_owned(), format!("{}{detail}", failure.message).replace(&job.to_string(), "#"))
                }
            });
        }
        // A NULL id gets no answer.
        let list = format!("ARRAY[NULL, {}, NULL]::bigint[]", format!("{jobs:?}").trim_matches(['[', ']']));
        let rows =
            client.query(&format!("SELECT id, outcome, reason FROM queue.{}", many.replace('$', &list)), &[]).unwrap();
        assert_eq!(rows.len(), jobs.len(), "{many}");
        for (job, (outcome, reason)) in jobs.iter().zip(singly) {
            let row = rows.iter().find(|row| row.get::<_, i64>(0) == *job).expect("an answer");
            let found: &str = row.get(1);
            if outcome == "refused" {
                let found_reason = row.get::<_, Option<String>>(2).unwrap_or_default();
                let same = |text: &str| text.chars().filter(|c| !c.is_ascii_digit()).collect::<String>();
                assert_eq!(
                    (found, same(&found_reason.replace(&job.to_string(), "#"))),
                    ("refused", same(&reason)),
                    "{many}"
                );
            } else {
                assert!(done.contains(&found) && row.get::<_, Option<&str>>(2).is_none(), "{many}: {row:?}");
                assert!(outcome.is_empty() || outcome == found, "{many}: {row:?}, and of one {outcome}");
            }
        }
        assert_eq!(known(&mut client, &jobs), known(&mut client, &others), "{many}");
    }
}

#[test]
fn a_job_that_is_given_twice_gets_two_answers() {
    let (mut client, q) = queue("");
    for (many, _, done) in VERBS {
        let (job, other) = (client.enqueue(&q), client.enqueue(&q));
        let call = many.replace('$', &format!("ARRAY[{job}, {other}, {job}]"));
        let sql = format!("SELECT id || ' ' || outcome FROM queue.{call}");
        let mut found: Vec<String> = client.column(&sql);
        found.sort_unstable();
        // A waiting job can be changed again, and a cancelled one cancelled again.
        let mut expected = [job, job, other].map(|id| format!("{id} {}", done[0]));
        expected.sort_unstable();
        assert_eq!(found, expected, "{many}");
        client.run(&format!("SELECT queue.purge('{q}')"));
    }
}

#[test]
fn ten_thousand_jobs_are_changed_in_one_call() {
    let (_database, mut client) = Database::new().with_queue("q", "");
    client.run("SELECT queue.enqueue_many('q', array_fill('1'::jsonb, '{10000}'))");
    let jobs: Vec<i64> = client.column("SELECT job_id FROM queue.jobs");
    for (verb, done, condition) in [
        ("reprioritize_many($1, 4)", "reprioritized", "state = 'ready' AND priority = 4"),
        ("reschedule_many($1, '2100-01-01')", "rescheduled", "state = 'scheduled' AND priority = 4"),
        ("retry_many($1)", "retried", "state = 'ready' AND priority = 4"),
        ("cancel_many($1, 'all')", "cancelled", "state = 'cancelled' AND error = 'all'"),
        ("retry_many($1)", "retried", "state = 'ready' AND attempt = 1"),
    ] {
        let sql = format!("SELECT FROM queue.{verb} WHERE outcome = '{done}' AND reason IS NULL");
        let there = format!("SELECT count(*) FROM queue.jobs WHERE {condition}");
        client.run("BEGIN");
        assert_eq!(client.query(&sql, &[&jobs]).unwrap().len(), jobs.len(), "{verb}");
        client.run("ROLLBACK");
        assert_eq!(client.query(&sql, &[&jobs]).unwrap().len(), jobs.len(), "{verb}");
        assert_eq!(client.value::<i64>(&there), 10_000, "{verb}");
    }
    assert_eq!(client.count("SELECT FROM queue.claim('q', 20000)"), 10_000);
}

#[test]
fn jobs_that_another_transaction_holds_are_busy_and_the_others_are_changed() {
    for (many, one, done) in VERBS {
        let (mut client, q) = queue("");
        let mut other = connect();
        client.run("SET lock_timeout = '20 s'");
        let jobs: Vec<i64> = (0..3).map(|_| client.enqueue(&q)).collect();
        other.run(&format!("BEGIN; SELECT queue.{}", one.replace('$', &jobs[1].to_string())));
        let sql = format!("SELECT outcome FROM queue.{} ORDER BY id", many.replace('$', &format!("ARRAY{jobs:?}")));
        assert_eq!(client.column::<String>(&sql), [done[0], "busy", done[0]], "{many}");
        other.run("ROLLBACK");
        assert_eq!(client.column::<String>(&sql), [done[0]; 3], "{many}");
    }
}

#[test]
fn a_rollback_takes_all_changes_back() {
    for (many, _, done) in VERBS {
        let (mut client, q) = queue("");
        let jobs: Vec<i64> = (0..3).map(|_| client.enqueue(&q)).collect();
        let before = known(&mut client, &jobs);
        let sql = format!("SELECT outcome FROM queue.{}", many.replace('$', &format!("ARRAY{jobs:?}")));
        client.run("BEGIN; SAVEPOINT s");
        assert_eq!(client.column::<String>(&sql), [done[0]; 3], "{many}");
        client.run("ROLLBACK TO s");
        assert_eq!(client.column::<String>(&sql), [done[0]; 3], "{many}");
        client.run("ROLLBACK");
        assert_eq!(known(&mut client, &jobs), before, "{many}");
        // An id that is not a job's is an error of the call, which changes nothing.
        let wrong = many.replace('$', &format!("ARRAY[{}, {}, 16]", jobs[0], jobs[1]));
        assert_eq!(client.failure(&format!("SELECT queue.{wrong}")).code, "22023", "{many}");
        assert_eq!(known(&mut client, &jobs), before, "{many}");
        assert_eq!(client.count(&format!("SELECT FROM queue.claim('{q}', 9)")), 3, "{many}");
    }
}

#[test]
fn a_flow_with_a_busy_member_stays_as_it_is() {
    let (mut client, q) = queue("max_attempts => 1");
    let flow: i64 = client.value(&format!("SELECT queue.enqueue_flow('{q}', '[{{}}, {{}}, {{}}]')"));
    client.run(&format!("SELECT queue.fail(id, 'no') FROM queue.claim('{q}', 3)"));
    let members = format!("SELECT job_id FROM queue.members({flow}, 'dead') ORDER BY job_id");
    let dead: Vec<i64> = client.column(&members);
    let mut other = connect();
    other.run(&format!("BEGIN; SELECT queue.retry({})", dead[1]));
    assert_eq!(client.value::<String>(&format!("SELECT outcome FROM queue.retry_many(ARRAY[{flow}])")), "busy");
    other.run("ROLLBACK");
    assert_eq!(client.column::<i64>(&members), dead, "nothing was done");
    assert_eq!(client.value::<String>(&format!("SELECT outcome FROM queue.retry_many(ARRAY[{flow}])")), "retried");
    assert_eq!(client.count(&members), 0);
}

/// A job that is refused or busy stays as it was: a flow that is being cancelled, or a flow that another transaction
/// changes.
#[test]
fn refused_and_busy_jobs_stay_as_they_were() {
    let verbs =
        ["reprioritize_many($, 5)", "reschedule_many($, now() + interval '1 hour')", "retry_many($)", "cancel_many($)"];
    let cases = ["cancel", "seal", "resolve"].into_iter().flat_map(|change| verbs.map(|verb| (change, verb)));
    for (change, verb) in cases {
        for end in ["COMMIT", "ROLLBACK", ""] {
            let (mut client, q) = queue("");
            let flow: i64 =
                client.value(&format!("SELECT queue.enqueue_flow('{q}', '[{{\"task\": \"a\"}}]', open => true)"));
            let member = client.claim(&q);
            let mut other = connect();
            let begin = if end.is_empty() { "" } else { "BEGIN" };
            other.run(&format!("{begin}; SELECT queue.{change}({flow})"));
            let call = verb.replace('$', &format!("ARRAY[{flow}]::bigint[]"));
            let outcome: String = client.value(&format!("SELECT outcome FROM queue.{call}"));
            other.run(end);
            let case = format!("{change}, {end}, {call}: {outcome}");
            if !end.is_empty() {
                // A request to cancel is noted beside the other transaction's note.
                assert!(outcome == "busy" || verb.starts_with("cancel") && outcome == "cancelling", "{case}");
            }
            if end == "ROLLBACK" {
                // The flow ends as it would have ended without the call.
                let (more, ended) = if outcome == "busy" { ("seal", "completed") } else { ("job", "cancelled") };
                client.run(&format!("SELECT queue.{more}({flow}); SELECT queue.complete({member})"));
                wait::until_true(&case, || client.state(flow) == ended);
            }
            let found: Vec<String> =
                client.column(&format!("SELECT c::text FROM queue.check() AS c WHERE queue_name = '{q}'"));
            assert!(found.is_empty(), "{case}: {found:?}");
        }
    }
}

/// A transaction changes a job twice and is rolled back. Another session claims meanwhile. The next claim gets the job.
#[test]
fn a_job_that_was_changed_twice_is_ready_after_a_rollback() {
    let twice = [
        "retry_many(ARRAY[$, $])",
        "reprioritize_many(ARRAY[$, $], 0)",
        "reschedule_many(ARRAY[$, $], now() - interval '1 s')",
        "retry($), queue.retry($)",
        "retry($), queue.cancel($)",
        "retry($), queue.retry($), queue.retry($)",
    ];
    let options = ["", "strict_order => true", "max_running_per_group => 1"];
    for (change, options) in twice.into_iter().flat_map(|change| options.map(|options| (change, options))) {
        for savepoint in [false, true] {
            let (mut client, q) = queue(options);
            let job: i64 = client.value(&format!("SELECT queue.enqueue('{q}', group_key => 'g')"));
            let (begin, end) =
                if savepoint { ("BEGIN; SAVEPOINT a", "ROLLBACK TO a; COMMIT") } else { ("BEGIN", "ROLLBACK") };
            client.run(&format!("{begin}; SELECT queue.{}", change.replace('$', &job.to_string())));
            assert_eq!(connect().count(&format!("SELECT FROM queue.claim('{q}')")), 0);
            client.run(end);
            let claimed: Vec<i64> = client.column(&format!("SELECT job_id FROM queue.claim('{q}')"));
            assert_eq!(claimed, [job], "{change}, {options}, savepoint: {savepoint}");
        }
    }
}
