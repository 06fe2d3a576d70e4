//! An attempt's id works until the attempt has ended or its timeout is committed. Each test makes one thing happen to
//! an attempt and then tries every verb.

use crate::shared::*;

/// The verbs that end or keep one attempt. `$` is its id.
const ONE: [&str; 5] = [
    "SELECT queue.complete($)",
    "SELECT queue.fail($, 'boom')",
    "SELECT queue.release($)",
    "SELECT queue.extend($)",
    "SELECT queue.progress($, '1')",
];

/// The verbs for many attempts, one of `queue.end_batch` for each kind of element. They answer for each attempt.
const MANY: [&str; 10] = [
    "SELECT outcome, reason FROM queue.complete_many(ARRAY[$])",
    "SELECT outcome, reason FROM queue.fail_many(ARRAY[$], 'boom')",
    "SELECT outcome, reason FROM queue.release_many(ARRAY[$])",
    "SELECT outcome, reason FROM queue.extend_many(ARRAY[$])",
    "SELECT outcome, reason FROM queue.end_batch(json_build_array(json_build_object('complete', \
        json_build_object('id', $))))",
    "SELECT outcome, reason FROM queue.end_batch(json_build_array(json_build_object('fail', \
        json_build_object('id', $, 'error', 'boom'))))",
    "SELECT outcome, reason FROM queue.end_batch(json_build_array(json_build_object('release', \
        json_build_object('id', $))))",
    "SELECT outcome, reason FROM queue.end_batch(json_build_array(json_build_object('advance', \
        json_build_object('id', $))))",
    "SELECT outcome, reason FROM queue.end_batch(json_build_array(json_build_object('suspend', \
        json_build_object('id', $, 'until', 'epoch'))))",
    "SELECT outcome, reason FROM queue.end_batch(json_build_array(json_build_object('extend', \
        json_build_object('id', $))))",
];

/// The verbs for one job and for many jobs.
const JOBS: [&str; 10] = [
    "cancel($)",
    "retry($)",
    "reprioritize($, 1)",
    "reschedule($, now())",
    "forget($)",
    "job($)",
    "cancel_many(ARRAY[$])",
    "retry_many(ARRAY[$])",
    "reprioritize_many(ARRAY[$], 1)",
    "reschedule_many(ARRAY[$], now())",
];

pub fn with(sql: &str, id: i64) -> String {
    sql.replace('$', &format!("('{id}'::bigint)"))
}

/// Returns the outcome and the reason of the only answer.
pub fn answer(client: &mut Client, sql: &str) -> (String, String) {
    let row = client.query_one(sql, &[]).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    (row.get("outcome"), row.get::<_, Option<String>>("reason").unwrap_or_default())
}

/// Asserts that every verb refuses the attempt as lost, with this reason.
fn assert_lost(client: &mut Client, id: i64, why: &str) {
    for verb in ONE {
        let failure = client.refused(&with(verb, id), "QJ001");
        assert_eq!(failure.message, format!("lost lease on attempt {id}"), "{verb}");
        assert!(failure.detail.contains(why), "{verb}: {failure:?} should say {why}");
    }
    for verb in MANY {
        let (outcome, reason) = answer(client, &with(verb, id));
        assert_eq!(outcome, "lost", "{verb}: {reason}");
        assert!(reason.starts_with(&format!("lost lease on attempt {id}: ")), "{verb}: {reason}");
        assert!(reason.contains(why), "{verb}: {reason} should say {why}");
    }
}

/// Asserts that every verb refuses the attempt as busy and does not wait for the transaction that holds it.
fn assert_busy(client: &mut Client, id: i64) {
    // If a session waits for a transaction, it waits for a lock.
    client.run("SET lock_timeout = '20 s'");
    for verb in ONE {
        let failure = client.refused(&with(verb, id), "55006");
        assert_eq!(failure.message, format!("attempt {id} is being ended by another transaction"), "{verb}");
    }
    for verb in MANY {
        let (outcome, reason) = answer(client, &with(verb, id));
        assert_eq!(outcome, "busy", "{verb}: {reason}");
        assert!(reason.starts_with(&format!("attempt {id} is being ended by another transaction")), "{verb}: {reason}");
    }
    client.run("RESET lock_timeout");
}

fn next_of(client: &mut Client, job_id: i64) -> i64 {
    client.value(&format!("SELECT id FROM queue.job_attempts({job_id}) WHERE finished_at IS NULL"))
}

#[test]
fn an_ended_attempt_is_lost_and_the_error_says_how_it_ended() {
    let (mut client, q) = queue("");
    let ends = [
        ("SELECT queue.complete($)", "completed at 20"),
        ("SELECT queue.fail($, 'boom')", "failed at 20"),
        ("SELECT queue.fail($, 'boom', fatal => true)", "failed at 20"),
        ("SELECT queue.release($)", "released at 20"),
        ("SELECT queue.cancel((SELECT job_id FROM queue.attempts WHERE id = $), force => true)", "cancelled at 20"),
    ];
    for (end, why) in ends {
        client.enqueue(&q);
        let id = client.claim(&q);
        client.run(&with(end, id));
        assert_lost(&mut client, id, why);
        // A session that has not seen the attempt end gets the same answer.
        assert_lost(&mut connect(), id, why);
        client.run(&format!("SELECT queue.purge('{q}')"));
    }
}

#[test]
fn a_timed_out_attempt_is_lost_and_the_next_one_is_not() {
    let (mut client, q) = queue("");
    let job = client.enqueue(&q);
    let id: i64 = client.value(&format!("SELECT id FROM queue.claim('{q}', lease => '10 ms', worker => 'slow')"));
    client.maintain_until(&format!("EXISTS (SELECT FROM queue.attempts WHERE id = {id} AND state = 'timed_out')"));
    let next = next_of(&mut client, job);
    assert_lost(&mut client, id, "timed out at 20");
    assert_lost(&mut client, id, &format!("The job went on as attempt {next}."));

    assert_eq!(client.claim(&q), next);
    assert_lost(&mut client, id, "timed out at 20");
    client.run(&format!("SELECT queue.complete({next})"));
    assert_lost(&mut client, id, "timed out at 20");
    assert_lost(&mut client, next, "completed at 20");
    assert_eq!(client.state(job), "completed");
}

#[test]
fn between_its_deadline_and_its_timeout_an_attempt_can_still_end() {
    let database = Database::without_worker();
    let mut client = database.connect();
    client.run("SELECT queue.create('q')");
    for (verb, state) in [
        ("SELECT queue.complete($)", "completed"),
        ("SELECT queue.fail($, 'boom')", "failed"),
        ("SELECT queue.release($)", "released"),
        ("SELECT queue.progress($, '1'), queue.complete($)", "completed"),
        (MANY[0], "completed"),
        (MANY[1], "failed"),
        (MANY[2], "released"),
        (MANY[4], "completed"),
        (MANY[5], "failed"),
        (MANY[6], "released"),
        (MANY[8], "suspended"),
    ] {
        client.enqueue("q");
        let id: i64 = client.value("SELECT id FROM queue.claim('q', lease => '1 ms')");
        wait::until_true("the lease is over", || lease_left(&mut client, id) < 0.0);
        assert_eq!(client.count(&with(verb, id)), 1, "{verb}");
        client.run("SELECT FROM queue.maintain()");
        let found = client.value::<String>(&format!("SELECT state FROM queue.attempts WHERE id = {id}"));
        assert_eq!(found, state, "{verb}");
        client.run("SELECT queue.purge('q')");
    }
}

#[test]
fn the_id_of_a_job_is_refused_with_a_hint() {
    let (mut client, q) = queue("");
    let job = client.enqueue(&q);
    let id = client.claim(&q);
    for verb in ONE.iter().chain(&MANY) {
        let failure = client.refused(&with(verb, job), "22023");
        assert_eq!(failure.message, format!("{job} has the form of a job's id, not of an attempt's"), "{verb}");
        assert!(failure.hint.contains("queue.claim"), "{verb}: {failure:?}");
    }
    for verb in JOBS {
        let sql = format!("SELECT queue.{}", with(verb, id));
        let failure = client.refused(&sql, "22023");
        assert_eq!(failure.message, format!("{id} has the form of an attempt's id, not of a job's"), "{sql}");
        assert!(failure.hint.contains("job_id"), "{sql}: {failure:?}");
    }
    client.run(&format!("SELECT queue.complete({id})"));
}

#[test]
fn ids_that_were_never_handed_out_are_refused() {
    let (mut client, q) = queue("lease => '1 hour'");
    client.enqueue(&q);
    let id = client.claim(&q);
    for nonsense in [0, -1, -16, i64::MIN, i64::MAX, 1 << 53, (1 << 53) + 16, 10, 13, 14] {
        for verb in ONE.iter().chain(&MANY) {
            let failure = client.failure(&with(verb, nonsense));
            assert_eq!(failure.code, "22023", "{verb} {nonsense}: {failure:?}");
            assert_eq!(failure.message, format!("{nonsense} is not the id of an attempt"), "{verb}");
        }
        for verb in JOBS {
            client.refused(&format!("SELECT queue.{}", with(verb, nonsense)), "22023");
        }
    }
    // These ids are well-formed but belong to no attempt.
    for unknown in [id + (1 << 40), id + (127 << 46)] {
        assert_lost(&mut client, unknown, "There is no such attempt");
    }
    for verb in ["cancel($)", "retry($)", "reprioritize($, 1)", "reschedule($, now())", "forget($)"] {
        client.refused(&format!("SELECT queue.{}", with(verb, (id | 15) + (1 << 40))), "P0002");
    }
    for verb in JOBS.iter().filter(|verb| verb.contains("_many")) {
        let unknown = (id | 15) + (1 << 40);
        let (outcome, reason) = answer(&mut client, &format!("SELECT * FROM queue.{}", with(verb, unknown)));
        assert_eq!((outcome.as_str(), reason.contains(&unknown.to_string())), ("missing", true), "{verb}: {reason}");
    }
    assert_eq!(client.count(&format!("SELECT FROM queue.job({})", (id | 15) + (1 << 40))), 0);
    client.run(&format!("SELECT queue.complete({id})"));
}

#[test]
fn an_attempt_that_was_never_claimed_cannot_be_ended() {
    let (mut client, q) = queue("");
    let job = client.enqueue(&q);
    let id = next_of(&mut client, job);
    assert_lost(&mut client, id, "The attempt waits to be claimed");
    // A rolled-back claim leaves the attempt unclaimed.
    client.run(&format!("BEGIN; SELECT FROM queue.claim('{q}'); ROLLBACK"));
    assert_lost(&mut client, id, "The attempt waits to be claimed");
    assert_eq!(client.claim(&q), id);
    client.run(&format!("SELECT queue.complete({id})"));
}

#[test]
fn an_attempt_claimed_in_another_open_transaction_is_refused() {
    let (mut client, q) = queue("");
    let job = client.enqueue(&q);
    let id = next_of(&mut client, job);
    let mut other = connect();
    other.run("BEGIN");
    assert_eq!(other.claim(&q), id);
    client.run("SET lock_timeout = '20 s'");
    assert_lost(&mut client, id, "The attempt is being claimed by another transaction");
    // The attempt belongs to the other session, which has not committed.
    for verb in ["extend($)", "progress($, '1')", "complete($)"] {
        other.run(&format!("SELECT queue.{}", with(verb, id)));
    }
    other.run("COMMIT");
    assert_lost(&mut client, id, "completed at 20");
}

#[test]
fn an_attempt_that_another_transaction_is_ending_is_in_use_until_that_ends() {
    let (mut client, q) = queue("");
    let mut other = connect();
    for end in [
        "SELECT queue.complete($)",
        "SELECT queue.fail($, 'boom')",
        "SELECT queue.release($)",
        "SELECT queue.cancel((SELECT job_id FROM queue.attempts WHERE id = $), force => true)",
        "SELECT FROM queue.claim('none', completed => ARRAY[$])",
    ] {
        let end = end.replace("'none'", &format!("'{q}'"));
        let job = client.enqueue(&q);
        let id = client.claim(&q);
        other.run(&format!("BEGIN; {}", with(&end, id)));
        assert_busy(&mut client, id);
        let failure = client.failure(&format!("SELECT queue.cancel({job}, force => true)"));
        assert_eq!(failure.code, "55006", "{end}: {failure:?}");
        other.run("ROLLBACK");
        client.run(&format!("SELECT queue.extend({id})"));

        other.run(&format!("BEGIN; {}", with(&end, id)));
        assert_busy(&mut client, id);
        other.run("COMMIT");
        assert_lost(&mut client, id, "This attempt was ");
        client.run(&format!("SELECT queue.purge('{q}')"));
    }
}

#[test]
fn an_attempt_whose_timeout_is_not_committed_is_in_use() {
    let database = Database::without_worker();
    let (mut client, mut other) = (database.connect(), database.connect());
    client.run("SELECT queue.create('q')");
    client.enqueue("q");
    let id: i64 = client.value("SELECT id FROM queue.claim('q', lease => '1 ms')");
    other.run("BEGIN");
    wait::until_true("the timeout is written", || {
        other.value::<i64>("SELECT did FROM queue.maintain() WHERE duty = 'expire'") > 0
    });
    assert_busy(&mut client, id);
    other.run("ROLLBACK");
    client.run(&format!("SELECT queue.complete({id})"));
    assert_lost(&mut client, id, "completed at 20");
}

#[test]
fn a_deadline_does_not_fire_while_the_attempt_is_being_ended() {
    let database = Database::without_worker();
    let (mut client, mut other) = (database.connect(), database.connect());
    client.run("SELECT queue.create('q')");
    let over = |client: &mut Client, id: i64| {
        wait::until_true("the lease is over", || {
            let sql = format!("SELECT claimed_at + '1 ms' < clock_timestamp() FROM queue.attempts WHERE id = {id}");
            client.value::<bool>(&sql)
        });
    };
    for end in ["COMMIT", "ROLLBACK"] {
        let job = client.enqueue("q");
        let id: i64 = client.value("SELECT id FROM queue.claim('q', lease => '1 ms')");
        client.run(&format!("BEGIN; SELECT queue.complete({id})"));
        over(&mut other, id);
        assert_eq!(other.value::<i64>("SELECT did FROM queue.maintain() WHERE duty = 'expire'"), 0);
        assert_eq!(other.count("SELECT FROM queue.claim('q')"), 0);
        client.run(end);
        if end == "COMMIT" {
            assert_eq!(client.state(job), "completed");
        } else {
            client.maintain_until(&format!(
                "EXISTS (SELECT FROM queue.attempts WHERE id = {id} AND state = 'timed_out')"
            ));
            assert_lost(&mut client, id, "timed out at 20");
        }
    }
}

#[test]
fn within_one_transaction_an_attempt_ends_once() {
    let (mut client, q) = queue("");
    client.enqueue(&q);
    let id = client.claim(&q);
    client.run(&format!("BEGIN; SELECT queue.complete({id})"));
    for verb in ONE {
        client.run("SAVEPOINT s");
        let failure = client.refused(&with(verb, id), "QJ001");
        assert!(failure.detail.contains("already ended in this transaction"), "{verb}: {failure:?}");
        client.run("ROLLBACK TO s");
    }
    for verb in MANY {
        let (outcome, reason) = answer(&mut client, &with(verb, id));
        assert_eq!(outcome, "lost", "{verb}: {reason}");
        assert!(reason.contains("already ended in this transaction"), "{verb}: {reason}");
    }
    client.run("COMMIT");
    assert_lost(&mut client, id, "completed at 20");
}

#[test]
fn verbs_for_many_answer_for_each_attempt_and_end_those_they_can() {
    let (mut client, q) = queue("backoff_base => '0'");
    let mut other = connect();
    for (verb, done) in [
        ("queue.complete_many($)", "completed"),
        ("queue.fail_many($, 'boom')", "failed"),
        ("queue.fail_many($, 'boom', fatal => true)", "dead"),
        ("queue.release_many($)", "released"),
        ("queue.extend_many($)", "extended"),
        (
            "queue.end_batch((SELECT json_agg(json_build_object('suspend', \
                json_build_object('id', id, 'until', 'epoch'))) \
                FROM unnest($) AS id WHERE id > 0))",
            "suspended",
        ),
    ] {
        client.run(&format!("SELECT queue.enqueue_many('{q}', array_fill('{{}}'::jsonb, ARRAY[6]))"));
        let mut ids: Vec<i64> = client.column(&format!("SELECT id FROM queue.claim('{q}', 5)"));
        assert_eq!(ids.len(), 5);
        let waiting: i64 =
            client.value(&format!("SELECT id FROM queue.attempts WHERE queue_name = '{q}' AND state = 'ready'"));
        client.run(&format!("SELECT queue.complete({})", ids[1]));
        other.run(&format!("BEGIN; SELECT queue.complete({})", ids[3]));
        // The list has an id twice, an ended attempt, a waiting job, a busy attempt and NULL, in an arbitrary order.
        let list = format!(
            "ARRAY[{},{waiting},{},NULL,{},{},{},{}]::bigint[]",
            ids[4], ids[0], ids[1], ids[3], ids[2], ids[0]
        );
        client.run("SET lock_timeout = '20 s'");
        let sql = format!("SELECT id, outcome, reason IS NULL FROM {}", verb.replace('$', &list));
        let mut got: Vec<(i64, String, bool)> = client.rows(&sql);
        got.sort();
        let answer = |id: i64, outcome: &str| (id, outcome.to_owned(), outcome == done);
        let again = if done == "extended" { done } else { "lost" };
        let mut expected = vec![
            answer(ids[4], done),
            answer(waiting, "lost"),
            answer(ids[0], done),
            answer(ids[1], "lost"),
            answer(ids[3], "busy"),
            answer(ids[2], done),
            answer(ids[0], again),
        ];
        expected.sort();
        assert_eq!(got, expected, "{verb}");
        other.run("ROLLBACK");
        if done != "extended" {
            assert_lost(&mut client, ids[4], "This attempt was ");
        }
        client.run(&format!("SELECT queue.complete({})", ids.remove(3)));
        client.run(&format!(
            "SELECT queue.complete(id) FROM queue.attempts WHERE queue_name = '{q}' AND state = 'running'"
        ));
        client.run(&format!("SELECT queue.purge('{q}')"));
    }
}

#[test]
fn verbs_for_many_say_which_jobs_have_a_request_to_cancel() {
    let (mut client, q) = queue("");
    for verb in [MANY[1], MANY[2], MANY[5], MANY[6], MANY[8]] {
        let job = client.enqueue(&q);
        let id = client.claim(&q);
        client.run(&format!("SELECT queue.cancel({job})"));
        assert_eq!(answer(&mut client, &with(verb, id)), ("cancelled".to_owned(), String::new()), "{verb}");
        assert_eq!(client.state(job), "cancelled", "{verb}");
    }
}

#[test]
fn claim_completes_the_callers_attempts_and_answers_for_the_others() {
    let (mut client, q) = queue("");
    client.run(&format!("SELECT queue.enqueue_many('{q}', array_fill('{{}}'::jsonb, ARRAY[4]))"));
    let ids: Vec<i64> = client.column(&format!("SELECT id FROM queue.claim('{q}', 3)"));
    client.run(&format!("SELECT queue.fail({}, 'boom', fatal => true)", ids[1]));
    let sql = format!(
        "SELECT id FROM queue.claim('{q}', completed => ARRAY[{},{},NULL,{}]) WHERE job_id IS NOT NULL",
        ids[0], ids[1], ids[2]
    );
    let next: i64 = client.value(&sql);
    assert!(!ids.contains(&next));
    for (id, why) in [(ids[0], "completed at"), (ids[1], "failed at"), (ids[2], "completed at")] {
        assert_lost(&mut client, id, why);
    }
    client.run(&format!("SELECT queue.complete({next})"));
}

#[test]
fn claim_answers_for_attempts_that_it_cannot_complete() {
    let (mut other, q) = queue("");
    create(&mut other, &format!("{q} stages"), "stages => '{a, b}'");
    let mut client = connect();
    client.enqueue(&format!("{q} stages"));
    let staged = client.claim(&format!("{q} stages"));
    other.run(&format!("SELECT queue.enqueue_many('{q}', array_fill('{{}}'::jsonb, ARRAY[5]))"));
    let ids: Vec<i64> = client.column(&format!("SELECT id FROM queue.claim('{q}', 4)"));
    // Rows without a job come first. They have only the answer about an attempt.
    let claim = |client: &mut Client, function: &str, done: &[i64]| {
        let sql = format!(
            "SELECT id, job_id, headers->>'outcome' AS outcome, headers->>'reason' AS reason,
                    jsonb_strip_nulls(to_jsonb(c)) - '{{id, headers}}'::text[] <> '{{}}' AS has_more,
                    (SELECT count(*) FROM jsonb_object_keys(headers)) AS headers
             FROM {function}, completed => ARRAY{done:?}::bigint[]) AS c"
        );
        let rows = client.query(&sql, &[]).unwrap();
        let without = rows.iter().take_while(|row| row.get::<_, Option<i64>>("job_id").is_none()).count();
        assert!(rows[without..].iter().all(|row| row.get::<_, Option<i64>>("job_id").is_some()), "{rows:?}");
        let jobs: Vec<i64> = rows[without..].iter().map(|row| row.get(0)).collect();
        let mut answers: Vec<(i64, String, String)> = Vec::new();
        for row in &rows[..without] {
            assert!(!row.get::<_, bool>("has_more"), "{row:?}");
            assert_eq!(row.get::<_, i64>("headers"), 2, "{row:?}");
            answers.push((row.get(0), row.get("outcome"), row.get("reason")));
        }
        answers.sort();
        (answers, jobs)
    };
    let one = format!("queue.claim('{q}'");
    other.run(&format!("SELECT queue.release({})", ids[1]));
    other.run(&format!("BEGIN; SELECT queue.complete({})", ids[2]));
    let (answers, jobs) = claim(&mut client, &one, &[ids[0], ids[1], ids[2], staged]);
    let expect = |answers: &[(i64, String, String)], expected: &[(i64, &str, &str)]| {
        let mut expected = expected.to_vec();
        expected.sort();
        assert_eq!(answers.len(), expected.len(), "{answers:?}");
        for (answer, (id, outcome, reason)) in answers.iter().zip(expected) {
            assert_eq!((answer.0, answer.1.as_str()), (id, outcome), "{answers:?}");
            assert!(answer.2.contains(reason), "{answers:?} should say {reason}");
        }
    };
    expect(
        &answers,
        &[
            (ids[1], "lost", "This attempt was released at 20"),
            (ids[2], "busy", "is being ended by another transaction: "),
            (staged, "refused", "stage \"a\""),
        ],
    );
    let [next] = jobs[..] else { panic!("{jobs:?}") };
    // The worker still has the refused attempts.
    client.run(&format!("SELECT queue.extend({staged})"));
    other.run("COMMIT");
    // A repeated call answers that all attempts have ended, and claims.
    other.enqueue(&q);
    let (answers, jobs) = claim(&mut client, &format!("queue.claim_any(ARRAY['{q}', '{q} stages']"), &ids[..3]);
    expect(
        &answers,
        &[
            (ids[0], "lost", "This attempt was already completed at 20"),
            (ids[1], "lost", "This attempt was released at 20"),
            (ids[2], "lost", "This attempt was already completed at 20"),
        ],
    );
    assert_eq!(jobs.len(), 1);
    // A claim returns no answer for attempts that it completes. If it finds no job, it may return only answers. Without
    // attempts to complete it returns no answers.
    assert_eq!(claim(&mut client, &one, &[next, ids[3]]).0, []);
    let (answers, jobs) = claim(&mut client, &one, &[next, next]);
    expect(&answers, &[(next, "lost", "already completed"), (next, "lost", "already completed")]);
    assert_eq!(jobs, [0_i64; 0]);
    assert_eq!(claim(&mut client, &one, &[]), (Vec::new(), Vec::new()));
    client.run(&format!("SELECT queue.release({staged})"));
    assert_eq!(
        client.count(&format!("SELECT FROM queue.claim_any(ARRAY['{q}', '{q} stages'], 9) WHERE job_id IS NULL")),
        0
    );
    // This function has no rows for answers, so a refusal is an error of the call.
    client.refused(&format!("SELECT FROM {one}, completed => ARRAY[15])"), "22023");
}

#[test]
fn claim_completes_each_attempt_with_its_result() {
    let (mut client, q) = queue("");
    client.run(&format!("SELECT queue.enqueue_many('{q}', array_fill('{{}}'::jsonb, ARRAY[6]))"));
    let rows = client.query(&format!("SELECT id, job_id FROM queue.claim('{q}', 5)"), &[]).unwrap();
    let (ids, jobs): (Vec<i64>, Vec<i64>) = rows.iter().map(|row| (row.get::<_, i64>(0), row.get::<_, i64>(1))).unzip();
    for (arguments, why) in [
        ("results => '[1]'", "results needs completed"),
        ("completed => '{}', results => '{}'", "results must be a JSON array"),
        ("completed => '{}', results => '[1]'", "results must have as many elements as completed"),
        ("completed => $, results => '[1, 2]'", "results must have as many elements as completed"),
    ] {
        let arguments = arguments.replace('$', &format!("ARRAY{ids:?}"));
        let failure = client.failure(&format!("SELECT FROM queue.claim('{q}', {arguments})"));
        assert_eq!((&*failure.code, &*failure.message), ("22023", why), "{arguments}");
    }
    let rerun: i64 = client.value(&format!("SELECT queue.enqueue('{q}', '7', unique_key => 'k', priority => -1)"));
    let keyed: i64 = client.value(&format!("SELECT id FROM queue.claim('{q}') WHERE job_id = {rerun}"));
    client.run(&format!("SELECT queue.enqueue('{q}', '8', unique_key => 'k', on_duplicate => 'rerun')"));
    // If an id is given twice, its first result counts. A result for a NULL id is ignored.
    let deep = "[".repeat(1001) + &"]".repeat(1001);
    let refused: Vec<String> = client.column(&format!(
        "SELECT concat_ws(' ', id, headers->>'outcome') FROM queue.claim('{q}',
             completed => ARRAY[{}, NULL, {}, {}, {}, {}, {}, {keyed}],
             results => '[{{\"sent\": true}}, 5, null, \"\\u0000\", {deep}, 9, 7, [8]]')
         WHERE job_id IS NULL ORDER BY id",
        ids[0], ids[1], ids[2], ids[3], ids[0], ids[4]
    ));
    let outcomes = [(ids[0], "lost"), (ids[2], "refused"), (ids[3], "refused")];
    assert_eq!(refused, outcomes.map(|(id, outcome)| format!("{id} {outcome}")));
    let results: Vec<String> = client.column(&format!(
        "SELECT concat_ws(' ', state, result) FROM unnest(ARRAY{jobs:?}) WITH ORDINALITY AS i (job, n), queue.job(i.job)
         ORDER BY n"
    ));
    assert_eq!(results, [r#"completed {"sent": true}"#, "completed", "running", "running", "completed 7"]);
    assert_eq!(client.state(rerun), "ready");
    // The worker still has the attempts whose results could not be stored.
    client.run(&format!("SELECT queue.complete_many(ARRAY{:?})", &ids[2..4]));
}

#[test]
fn a_worker_that_lost_its_lease_changes_nothing() {
    let (mut client, q) = queue("");
    let job = client.enqueue(&q);
    let id: i64 = client.value(&format!("SELECT id FROM queue.claim('{q}')"));
    client.run(&format!("SELECT queue.release({id})"));
    let next = client.claim(&q);
    let before: String = client.value(&format!("SELECT j::text FROM queue.job({job}) AS j"));
    assert_lost(&mut client, id, "released at 20");
    let look = format!("SELECT (j.attempt, j.state, j.progress, j.error)::text FROM queue.job({job}) AS j");
    assert_eq!(client.value::<String>(&look), "(1,running,,)", "{before}");
    client.run(&format!("SELECT queue.complete({next})"));
}

#[test]
fn an_unclaimed_attempt_with_a_request_to_cancel_is_not_extended() {
    let database = Database::without_worker();
    let mut client = database.connect();
    create(&mut client, "q", "lease => '1 hour', backoff_base => '0'");
    let job = client.enqueue("q");
    let id = client.claim("q");
    // The request is committed after the end of the attempt, so it is about the next one. No worker serves it.
    let mut other = database.connect();
    other.run(&format!("BEGIN; SELECT queue.cancel({job})"));
    client.run(&format!("SELECT queue.fail({id}, 'x', retry_in => '0')"));
    other.run("COMMIT");
    let next: i64 = client.value(&format!("SELECT max(id) FROM queue.attempts WHERE job_id = {job}"));
    assert!(next > id);
    client.run("SET statement_timeout = '60 s'");
    for call in [format!("extend({next})"), format!("progress({next}, '{{}}')"), format!("complete({next})")] {
        let failure = client.refused(&format!("SELECT queue.{call}"), "QJ001");
        assert!(failure.detail.contains("waits to be claimed"), "{call}: {failure:?}");
    }
    client.run("SELECT queue.maintain()");
    assert_eq!(client.state(job), "cancelled");
}
