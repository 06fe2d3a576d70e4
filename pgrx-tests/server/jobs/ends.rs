//! `queue.end_batch`: each attempt ends as the single verb would end it, or is refused and keeps running. A malformed
//! element is an error of the call and ends nothing.

use crate::security::permissions::{Roles, grant};
use crate::shared::*;

/// The id, outcome and reason of each answer, in order.
type Answers = Vec<(i64, String, Option<String>)>;

/// Calls `queue.end_batch` with this array.
fn call(client: &mut Client, ends: &str) -> Result<Answers, postgres::Error> {
    let rows = client.query("SELECT id, outcome, reason FROM queue.end_batch($1::text::json)", &[&ends])?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect())
}

/// Calls `queue.end_batch` with these objects.
pub fn end(client: &mut Client, ends: &[String]) -> Answers {
    let ends = format!("[{}]", ends.join(", "));
    call(client, &ends).unwrap_or_else(|e| panic!("{ends}: {e:?}"))
}

/// Returns the outcomes of these objects in order. Each object has an id of its own.
pub fn outcomes(client: &mut Client, ends: &[(i64, String)]) -> Vec<String> {
    let objects: Vec<String> = ends.iter().map(|(_, object)| object.clone()).collect();
    let answers = end(client, &objects);
    assert_eq!(answers.len(), ends.len(), "{answers:?}");
    for (_, outcome, reason) in &answers {
        let is_done = !["lost", "busy", "refused"].contains(&outcome.as_str());
        assert_eq!(is_done, reason.is_none(), "{answers:?}");
    }
    ends.iter().map(|(id, _)| answers.iter().find(|answer| answer.0 == *id).expect("an answer").1.clone()).collect()
}

/// Enqueues a job and claims it. Returns the job and the attempt.
pub fn running(client: &mut Client, queue: &str) -> (i64, i64) {
    let job = client.enqueue(queue);
    let id = client.claim(queue);
    assert_eq!(client.value::<i64>(&format!("SELECT job_id FROM queue.attempts WHERE id = {id}")), job);
    (job, id)
}

/// Returns everything that the views show of a job and its attempts, without ids and times. Delays count in hours.
fn known(client: &mut Client, job: i64) -> String {
    client.value(&format!(
        "SELECT jsonb_build_array(
             jsonb_build_array(j.stage, j.state, j.payload, j.priority, j.attempt, j.max_attempts, j.error, j.result,
             j.progress,
                 round(extract(epoch FROM j.run_at - now()) / 3600)),
             (SELECT jsonb_agg(jsonb_build_array(a.stage, a.attempt, a.state, a.error, a.worker) ORDER BY a.id)
              FROM queue.job_attempts(j.job_id) AS a))::text
         FROM queue.job({job}) AS j"
    ))
}

#[test]
fn each_attempt_ends_as_the_single_verb_would_end_it() {
    let (mut client, q) =
        queue("backoff => 'constant', backoff_base => '5 hours', backoff_jitter => 0, max_attempts => 2");
    let staged = format!("{q} staged");
    create(&mut client, &staged, "stages => '{a, b, c}'");
    let before = client.enqueue(&format!("{q} staged"));
    client.run(&format!("SELECT queue.reschedule({before}, '2100-01-01')"));
    // For each case: the queue, statements before the end, the verb, the object, and the outcome. `$i` is the attempt,
    // `$j` the job, `$b` a waiting job.
    let cases = [
        (&q, "", "complete($i)", r#"{"complete": {"id": $i}}"#, "completed"),
        (&q, "", "complete($i, '[1, {}]')", r#"{"complete": {"id": $i, "result": [1, {}]}}"#, "completed"),
        (&q, "", "complete($i, NULL)", r#"{"complete": {"result": null, "id": $i}}"#, "completed"),
        (&q, "", "complete($i, 'null')", r#"{"complete": {"id": $i, "result": null}}"#, "completed"),
        (&q, "progress($i, '4')", "complete($i)", r#"{"complete": {"id": $i}}"#, "completed"),
        (&q, "cancel($j)", "complete($i)", r#"{"complete": {"id": $i}}"#, "completed"),
        (&q, "", "fail($i, 'boom')", r#"{"fail": {"id": $i, "error": "boom"}}"#, "failed"),
        (&q, "", "fail($i, 'ä\"\n')", r#"{"fail": {"error": "\u00e4\"\n", "id": $i}}"#, "failed"),
        (&q, "", "fail($i, '', '7 hours')", r#"{"fail": {"id": $i, "error": "", "retry_in": "7 hours"}}"#, "failed"),
        (
            &q,
            "",
            "fail($i, 'x', '0')",
            r#"{"fail": {"id": $i, "error": "x", "retry_in": "0", "fatal": false}}"#,
            "failed",
        ),
        (&q, "", "fail($i, 'x')", r#"{"fail": {"id": $i, "error": "x", "retry_in": null, "fatal": null}}"#, "failed"),
        (&q, "", "fail($i, 'x', fatal => true)", r#"{"fail": {"id": $i, "error": "x", "fatal": true}}"#, "dead"),
        (&q, "cancel($j)", "fail($i, 'x')", r#"{"fail": {"id": $i, "error": "x"}}"#, "cancelled"),
        (&q, "", "release($i)", r#"{"release": {"id": $i}}"#, "released"),
        (&q, "progress($i, '4')", "release($i)", r#"{"release": {"id": $i, "delay": null}}"#, "released"),
        (&q, "", "release($i, '3 hours')", r#"{"release": {"id": $i, "delay": "3 hours"}}"#, "released"),
        (&q, "cancel($j)", "release($i)", r#"{"release": {"id": $i}}"#, "cancelled"),
        (&staged, "", "advance($i)", r#"{"advance": {"id": $i}}"#, "advanced"),
        (&staged, "", "advance($i, 'c')", r#"{"advance": {"id": $i, "stage": "c"}}"#, "advanced"),
        (&staged, "", "advance($i, 'a')", r#"{"advance": {"id": $i, "stage": "a", "payload": null}}"#, "advanced"),
        (
            &staged,
            "",
            "advance($i, NULL, '[7]')",
            r#"{"advance": {"id": $i, "payload": [7], "stage": null}}"#,
            "advanced",
        ),
        (&staged, "", "advance($i, delay => '2 hours')", r#"{"advance": {"id": $i, "delay": "2 hours"}}"#, "advanced"),
        (&staged, "cancel($j)", "advance($i)", r#"{"advance": {"id": $i}}"#, "cancelled"),
        (&q, "", "suspend($i, until => 'epoch')", r#"{"suspend": {"id": $i, "until": "epoch"}}"#, "suspended"),
        (&q, "", "suspend($i, ARRAY[$b])", r#"{"suspend": {"id": $i, "after": [$b]}}"#, "suspended"),
        (
            &q,
            "",
            "suspend($i, ARRAY[$b], 'completed')",
            r#"{"suspend": {"id": $i, "after": [$b], "upon": "completed"}}"#,
            "suspended",
        ),
        (
            &q,
            "",
            "suspend($i, ARRAY[$b], progress => '[1]')",
            r#"{"suspend": {"id": $i, "after": [$b], "progress": [1]}}"#,
            "suspended",
        ),
        (
            &q,
            "progress($i, '4')",
            "suspend($i, until => 'epoch')",
            r#"{"suspend": {"id": $i, "after": null, "upon": null, "progress": null, "until": "epoch"}}"#,
            "suspended",
        ),
        (&q, "cancel($j)", "suspend($i)", r#"{"suspend": {"id": $i}}"#, "cancelled"),
    ];
    let (mut singly, mut batch) = (Vec::new(), Vec::new());
    for (queue, first, verb, object, outcome) in cases {
        let with = |sql: &str, (job, id): (i64, i64)| {
            sql.replace("$i", &id.to_string()).replace("$j", &job.to_string()).replace("$b", &before.to_string())
        };
        let one = running(&mut client, queue);
        let other = running(&mut client, queue);
        for pair in [one, other] {
            if !first.is_empty() {
                client.run(&format!("SELECT queue.{}", with(first, pair)));
            }
        }
        // A result of JSON null is stored as SQL NULL.
        let verb = if verb.contains("'null'") { "complete($i)" } else { verb };
        singly.push(format!("SELECT queue.{}", with(verb, one)));
        batch.push((one.0, other, with(object, other), outcome));
    }
    let ends: Vec<(i64, String)> = batch.iter().map(|(_, (_, id), object, _)| (*id, object.clone())).collect();
    let expected: Vec<&str> = batch.iter().map(|(.., outcome)| *outcome).collect();
    // After these ends the test claims no job.
    singly.iter().for_each(|sql| client.run(sql));
    assert_eq!(outcomes(&mut client, &ends), expected);
    for (one, (other, id), object, outcome) in batch {
        // A job that was suspended for its own members has none, so the release duty releases it.
        if outcome == "suspended" && !object.contains(r#""after": ["#) {
            wait::until_true("both go on", || [one, other].iter().all(|job| client.state(*job) == "ready"));
        }
        assert_eq!(known(&mut client, other), known(&mut client, one), "{object}");
        let state: String = client.value(&format!("SELECT state FROM queue.attempts WHERE id = {id}"));
        assert_eq!(state, outcome, "{object}");
        assert_eq!(client.failure(&format!("SELECT queue.complete({id})")).code, "QJ001", "{object}");
    }
}

#[test]
fn values_are_stored_as_they_were_written() {
    let (mut client, q) = queue("stages => '{a, b}'");
    let deep = format!("{}{}", "[".repeat(900), "]".repeat(900));
    for value in [
        "12345678901234567890.10",
        "1e400",
        "-0.000000000000000000000000000001",
        "9223372036854775808",
        r#""\uD83D\uDE80 \u00e4 \" \\""#,
        r#"{"b": 1, "a": [null, true, {"a": "x"}], "": 1.0}"#,
        &deep,
    ] {
        let is_same = |sql: &str| format!("SELECT ({sql}) = $1::text::jsonb AND ({sql})::text = $1::text::jsonb::text");
        let check = |client: &mut Client, sql: &str| {
            assert!(client.query_one(&is_same(sql), &[&value]).unwrap().get::<_, bool>(0), "{sql}: {value}");
        };
        let (job, id) = running(&mut client, &q);
        end(&mut client, &[format!(r#"{{"advance": {{"id": {id}, "payload": {value}}}}}"#)]);
        check(&mut client, &format!("SELECT payload FROM queue.job({job})"));
        let id = client.claim(&q);
        end(&mut client, &[format!(r#"{{"suspend": {{"id": {id}, "progress": {value}, "until": "epoch"}}}}"#)]);
        check(&mut client, &format!("SELECT progress FROM queue.job({job})"));
        let id =
            wait::until("it goes on", || client.column::<i64>(&format!("SELECT id FROM queue.claim('{q}')")).pop());
        end(&mut client, &[format!(r#"{{"complete": {{"id": {id}, "result": {value}}}}}"#)]);
        check(&mut client, &format!("SELECT result FROM queue.job({job})"));
    }
}

#[test]
fn an_error_is_stored_as_a_text_can_hold_it() {
    let (mut client, q) = queue("");
    for (error, stored) in [
        (r"a\u0000b".to_owned(), "ab".to_owned()),
        (r"\uD83D\uDE80".to_owned(), "\u{1f680}".to_owned()),
        (r"x\ud800y".to_owned(), "x\u{fffd}y".to_owned()),
        ("ä".repeat(10_000), "ä".repeat(4096)),
    ] {
        let (_, id) = running(&mut client, &q);
        let object = format!(r#"{{"fail": {{"id": {id}, "error": "{error}", "fatal": true}}}}"#);
        assert_eq!(outcomes(&mut client, &[(id, object)]), ["dead"]);
        let found: String = client.value(&format!("SELECT error FROM queue.attempts WHERE id = {id}"));
        assert_eq!(found, stored);
    }
}

#[test]
fn attempts_that_cannot_end_in_this_way_are_refused_and_the_others_end() {
    let (mut client, q) = queue("max_attempts => 1");
    let staged = format!("{q} staged");
    create(&mut client, &staged, "stages => '{a, b}', max_attempts => 1");
    let last = format!("{q} last");
    create(&mut client, &last, "stages => '{a, b}', max_attempts => 1");
    let too_deep = format!("{}1{}", "[".repeat(2000), "]".repeat(2000));
    let too_many: Vec<String> = (1..=101).map(|n| (n * 16 + 15).to_string()).collect();
    let values = [r#""\u0000""#, r#""\ud800""#, r#"{"\u0000": 1}"#, "1e400000", &too_deep];
    let spans =
        ["-1 s", "-1 month", "infinity", "-infinity", "300000 years", "-300000 years", "soon", "", "1 s\\u0000"];
    // For each case: the queue, the object, and a word of the reason.
    let mut cases: Vec<(&str, String, &str)> = Vec::new();
    for value in values {
        cases.push((&q, format!(r#"{{"complete": {{"id": $, "result": {value}}}}}"#), "result "));
        cases.push((&staged, format!(r#"{{"advance": {{"id": $, "payload": {value}}}}}"#), "payload "));
        cases.push((&q, format!(r#"{{"suspend": {{"id": $, "progress": {value}}}}}"#), "progress "));
    }
    for span in spans {
        cases.push((&q, format!(r#"{{"fail": {{"id": $, "error": "x", "retry_in": "{span}"}}}}"#), "retry_in "));
        cases.push((&q, format!(r#"{{"release": {{"id": $, "delay": "{span}"}}}}"#), "delay "));
        cases.push((&staged, format!(r#"{{"advance": {{"id": $, "delay": "{span}"}}}}"#), "delay "));
    }
    for (queue, object, word) in [
        (&staged, r#"{"complete": {"id": $}}"#, "stage \"a\""),
        (&staged, r#"{"advance": {"id": $, "stage": "nowhere"}}"#, "has no stage \"nowhere\""),
        (&staged, r#"{"advance": {"id": $, "stage": "a\u0000"}}"#, "has no stage"),
        (&staged, r#"{"advance": {"id": $, "stage": ""}}"#, "has no stage"),
        (&last, r#"{"advance": {"id": $}}"#, "is the last of"),
        (&q, r#"{"advance": {"id": $}}"#, "has no stages"),
        (&q, r#"{"advance": {"id": $, "stage": "a"}}"#, "has no stage"),
        (&q, r#"{"suspend": {"id": $, "upon": "perhaps"}}"#, "upon"),
        (&q, r#"{"suspend": {"id": $, "upon": "\u0000"}}"#, "upon"),
        (&q, r#"{"suspend": {"id": $, "after": []}}"#, "nothing to wait for"),
        (&q, r#"{"suspend": {"id": $, "after": [#]}}"#, "cannot wait for itself"),
        (&q, r#"{"suspend": {"id": $, "after": [16]}}"#, "16"),
        (&q, r#"{"suspend": {"id": $, "after": [0]}}"#, "0"),
        (&q, r#"{"suspend": {"id": $, "after": [9007199254740975]}}"#, "9007199254740975"),
    ] {
        cases.push((queue, object.to_owned(), word));
    }
    cases.push((&q, format!(r#"{{"suspend": {{"id": $, "after": [{}]}}}}"#, too_many.join(", ")), "100"));
    let mut ends = Vec::new();
    let mut refused = Vec::new();
    let mut done = Vec::new();
    let mut held = Vec::new();
    for (queue, object, word) in &cases {
        let (job, mut id) = running(&mut client, queue);
        if *queue == last {
            client.run(&format!("SELECT queue.advance({id})"));
            id = client.claim(queue);
        }
        // The successors keep waiting, because attempts that were held for a moment have not ended.
        held.push(client.value::<i64>(&format!("SELECT queue.enqueue('{q}', after => ARRAY[{job}], upon => 'ended')")));
        refused.push((job, id, object.clone(), *word));
        ends.push(object.replace('$', &id.to_string()).replace('#', &job.to_string()));
        // Beside each refused attempt there is one that ends.
        let (_, other) = running(&mut client, &q);
        done.push(other);
        ends.push(format!(r#"{{"complete": {{"id": {other}}}}}"#));
    }
    let answers = end(&mut client, &ends);
    assert_eq!(answers.len(), ends.len());
    for (job, id, object, word) in &refused {
        let (_, outcome, reason) = answers.iter().find(|answer| answer.0 == *id).expect("an answer");
        assert_eq!(outcome, "refused", "{object}: {reason:?}");
        let reason = reason.as_deref().expect("a reason");
        assert!(reason.contains(word) && !reason.contains('\n'), "{object}: {reason} should have {word}");
        assert_eq!(client.state(*job), "running", "{object}");
    }
    for id in &done {
        let answer = answers.iter().find(|answer| answer.0 == *id);
        assert_eq!(answer, Some(&(*id, "completed".to_owned(), None)));
    }
    client.run("SELECT FROM queue.maintain()");
    let waits = format!("SELECT FROM queue.jobs WHERE job_id = ANY (ARRAY{held:?}) AND state = 'held'");
    assert_eq!(client.count(&waits), held.len());
    // The workers still have the attempts and can fail them.
    let ends: Vec<(i64, String)> =
        refused.iter().map(|(_, id, ..)| (*id, format!(r#"{{"fail": {{"id": {id}, "error": "refused"}}}}"#))).collect();
    let outcomes = outcomes(&mut client, &ends);
    assert!(outcomes.iter().all(|outcome| outcome == "dead"), "{outcomes:?}");
    wait::until_true("what waited for them goes on", || client.count(&waits) == 0);
}

#[test]
fn a_role_may_not_wait_for_jobs_or_end_attempts_of_other_queues() {
    let (database, mut client) = Database::without_worker().with_queue("mine", "");
    create(&mut client, "theirs", "");
    let roles = Roles::new(&database);
    let role = roles.make("worker", "");
    grant(&mut client, "mine", &role, "consume");
    let (_, mine) = running(&mut client, "mine");
    let (job, theirs) = running(&mut client, "theirs");
    client.run(&format!("SET ROLE {role}"));
    let suspend = format!(r#"[{{"suspend": {{"id": {mine}, "after": [{job}]}}}}]"#);
    let answers = call(&mut client, &suspend);
    let single = client.failure(&format!("SELECT queue.suspend({mine}, ARRAY[{job}])"));
    match answers {
        Ok(answers) => {
            assert_eq!((answers[0].0, answers[0].1.as_str()), (mine, "refused"), "{answers:?}");
            assert!(
                answers[0].2.as_ref().is_some_and(|reason| reason.contains(&single.message)),
                "{answers:?}: {single:?}"
            );
        }
        Err(e) => panic!("{e:?}, and of one: {single:?}"),
    }
    for object in ["complete", "release", "advance", "suspend"] {
        let ends = format!(r#"[{{"complete": {{"id": {mine}}}}}, {{"{object}": {{"id": {theirs}}}}}]"#);
        let failure = call(&mut client, &ends).expect_err(object);
        assert_eq!(queue_tests::error::code(&failure), "42501", "{object}: {failure:?}");
    }
    client.run("RESET ROLE");
    assert_eq!(client.count("SELECT FROM queue.jobs WHERE state = 'running'"), 2);
    client.run(&format!("SELECT queue.extend({mine}), queue.extend({theirs})"));
}

#[test]
fn a_malformed_element_is_named_and_no_attempt_ends() {
    let (mut client, q) = queue("");
    let (job, id) = running(&mut client, &q);
    let list = "ends must be a JSON array of objects";
    for ends in ["null", "1", "\"x\"", "{}", r#"{"complete": {"id": $}}"#, "true"] {
        let ends = ends.replace('$', &id.to_string());
        let failure = client.failure(&format!("SELECT queue.end_batch('{ends}')"));
        assert_eq!((failure.code.as_str(), failure.message.as_str()), ("22023", list), "{ends}: {failure:?}");
        assert!(failure.hint.contains(r#"{"complete": {"id": 16}}"#), "{failure:?}");
    }
    client.refused("SELECT queue.end_batch(NULL)", "22004");
    assert_eq!(call(&mut client, "[]").unwrap(), []);
    let (other_job, other) = running(&mut client, &q);
    for element in [
        "null",
        "1",
        "\"complete\"",
        "[]",
        r#"["complete", {"id": $}]"#,
        "{}",
        r#"{"complete": {"id": $}, "release": {"id": $}}"#,
        r#"{"complete": {"id": $}, "complete": {"id": $}}"#,
        r#"{"Complete": {"id": $}}"#,
        r#"{"complete ": {"id": $}}"#,
        r#"{"cancel": {"id": $}}"#,
        r#"{"id": $}"#,
        r#"{"complete": null}"#,
        r#"{"complete": $}"#,
        r#"{"complete": true}"#,
        r#"{"complete": "$"}"#,
        r#"{"complete": []}"#,
        r#"{"complete": {}}"#,
        r#"{"complete": {"id": null}}"#,
        r#"{"complete": {"id": "$"}}"#,
        r#"{"complete": {"id": $.0}}"#,
        r#"{"complete": {"id": 1e400}}"#,
        r#"{"complete": {"id": 9223372036854775808}}"#,
        r#"{"complete": {"id": [$]}}"#,
        r#"{"complete": {"id": $, "id": $}}"#,
        r#"{"complete": [$, 5]}"#,
        r#"{"release": [$, null]}"#,
        r#"{"complete": {"id": $, "Result": 1}}"#,
        r#"{"complete": {"id": $, "error": "x"}}"#,
        r#"{"complete": {"result": 1}}"#,
        r#"{"fail": {"id": $}}"#,
        r#"{"fail": {"id": $, "error": null}}"#,
        r#"{"fail": {"id": $, "error": 1}}"#,
        r#"{"fail": {"id": $, "error": {"message": "x"}}}"#,
        r#"{"fail": {"id": $, "error": "x", "retry_in": 5}}"#,
        r#"{"fail": {"id": $, "error": "x", "fatal": "true"}}"#,
        r#"{"fail": {"id": $, "error": "x", "fatal": 1}}"#,
        r#"{"fail": {"id": $, "error": "x", "delay": "1 s"}}"#,
        r#"{"release": {"id": $, "delay": 0}}"#,
        r#"{"release": {"id": $, "retry_in": "0"}}"#,
        r#"{"advance": {"id": $, "stage": 1}}"#,
        r#"{"advance": {"id": $, "delay": {}}}"#,
        r#"{"suspend": {"id": $, "after": 31}}"#,
        r#"{"suspend": {"id": $, "after": "{31}"}}"#,
        r#"{"suspend": {"id": $, "after": [31, null]}}"#,
        r#"{"suspend": {"id": $, "after": [31.5]}}"#,
        r#"{"suspend": {"id": $, "upon": 1}}"#,
    ] {
        for n in [0, 2] {
            let good = format!(r#"{{"complete": {{"id": {id}}}}}"#);
            let mut elements = vec![good.clone(); n];
            elements.push(element.replace('$', &other.to_string()));
            elements.push(good);
            let failure = client.failure(&format!("SELECT queue.end_batch('[{}]')", elements.join(",")));
            assert_eq!(failure.code, "22023", "{element}: {failure:?}");
            assert!(failure.message.starts_with(&format!("ends[{n}]: ")), "{element}: {failure:?}");
            assert!(failure.hint.contains(r#"{"complete": …}"#), "{element}: {failure:?}");
        }
    }
    // These ids belong to no attempt.
    for wrong in [job, 0, -16, i64::MIN, i64::MAX, (1 << 53) + 16] {
        for object in ["complete", "release", "advance", "suspend"] {
            let ends = format!(r#"[{{"complete": {{"id": {id}}}}}, {{"{object}": {{"id": {wrong}}}}}]"#);
            let failure = client.refused(&format!("SELECT queue.end_batch('{ends}')"), "22023");
            assert!(failure.message.contains(&wrong.to_string()), "{ends}: {failure:?}");
        }
    }
    for (job, id) in [(job, id), (other_job, other)] {
        assert_eq!(client.state(job), "running");
        client.run(&format!("SELECT queue.complete({id})"));
    }
}

#[test]
fn if_an_attempt_is_given_twice_its_first_end_counts() {
    let (mut client, q) = queue("stages => '{a, b}'");
    let (job, id) = running(&mut client, &q);
    let answers = end(
        &mut client,
        &[
            // A refused end has no effect, so a later end of the same attempt counts.
            format!(r#"{{"complete": {{"id": {id}}}}}"#),
            format!(r#"{{"advance": {{"id": {id}, "stage": "c"}}}}"#),
            format!(r#"{{"suspend": {{"id": {id}, "after": [{job}]}}}}"#),
            format!(r#"{{"advance": {{"id": {id}}}}}"#),
            format!(r#"{{"fail": {{"id": {id}, "error": "too late", "fatal": true}}}}"#),
            format!(r#"{{"complete": {{"id": {id}, "result": "\u0000"}}}}"#),
            format!(r#"{{"release": {{"id": {id}}}}}"#),
        ],
    );
    let outcomes: Vec<&str> = answers.iter().map(|(_, outcome, _)| outcome.as_str()).collect();
    assert_eq!(outcomes, ["refused", "refused", "refused", "advanced", "lost", "refused", "lost"]);
    assert_eq!(client.value::<String>(&format!("SELECT stage || ' ' || state FROM queue.job({job})")), "b ready");
    assert_eq!(client.count(&format!("SELECT FROM queue.job_attempts({job})")), 2);
}

#[test]
fn a_job_with_a_requested_run_runs_again_however_its_attempt_ends() {
    for (kind, outcome) in [
        (r#"{"complete": {"id": $, "result": 5}}"#, "completed"),
        (r#"{"fail": {"id": $, "error": "x"}}"#, "failed"),
        (r#"{"fail": {"id": $, "error": "x", "fatal": true}}"#, "failed"),
        (r#"{"release": {"id": $, "delay": "1 hour"}}"#, "released"),
        (r#"{"suspend": {"id": $, "until": "epoch"}}"#, "suspended"),
    ] {
        let (mut client, q) = queue("");
        let enqueue =
            |n: i32| format!("SELECT queue.enqueue('{q}', '{n}', unique_key => 'k', on_duplicate => 'rerun')");
        let job: i64 = client.value(&enqueue(1));
        let id = client.claim(&q);
        client.run(&enqueue(2));
        let (_, beside) = running(&mut client, &q);
        let ends =
            [(id, kind.replace('$', &id.to_string())), (beside, format!(r#"{{"complete": {{"id": {beside}}}}}"#))];
        client.run("BEGIN");
        assert_eq!(outcomes(&mut client, &ends), [outcome, "completed"], "{kind}");
        client.run("ROLLBACK");
        assert_eq!(outcomes(&mut client, &ends), [outcome, "completed"], "{kind}");
        let state: String = client.value(&format!("SELECT state FROM queue.attempts WHERE id = {id}"));
        assert_eq!(state, outcome, "{kind}");
        let rows: Vec<String> =
            client.column(&format!("SELECT concat_ws(' ', job_id, payload, attempt) FROM queue.claim('{q}', 9)"));
        assert_eq!(rows, [format!("{job} 2 1")], "{kind}");
    }
}

#[test]
fn an_end_wakes_sessions_that_await_the_job() {
    let (mut client, q) = queue("max_attempts => 1");
    let before: Vec<(i64, i64)> = (0..3).map(|_| running(&mut client, &q)).collect();
    let after: Vec<i64> = before
        .iter()
        .zip(["completed", "failed", "ended"])
        .map(|((job, _), upon)| {
            client.value(&format!("SELECT queue.enqueue('{q}', after => ARRAY[{job}], upon => '{upon}')"))
        })
        .collect();
    let ends = [
        (before[0].1, format!(r#"{{"complete": {{"id": {}}}}}"#, before[0].1)),
        (before[1].1, format!(r#"{{"fail": {{"id": {}, "error": "x"}}}}"#, before[1].1)),
        (before[2].1, format!(r#"{{"fail": {{"id": {}, "error": "x", "fatal": true}}}}"#, before[2].1)),
    ];
    assert_eq!(outcomes(&mut client, &ends), ["completed", "dead", "dead"]);
    for job in after {
        wait::until_true("it is ready", || client.state(job) == "ready");
    }
}

#[test]
fn attempts_are_extended_beside_others_that_end() {
    let (mut client, q) = queue("lease => '10 seconds'");
    let attempts: Vec<(i64, i64)> = (0..5).map(|_| running(&mut client, &q)).collect();
    let [(_, plain), (_, longer), (job, cancelled), (_, done), (_, gone)] = attempts[..] else { unreachable!() };
    client.run(&format!("SELECT queue.cancel({job}), queue.complete({gone})"));
    let extend = |id: i64, more: &str| (id, format!(r#"{{"extend": {{"id": {id}{more}}}}}"#));
    let ends = [
        extend(plain, ""),
        extend(longer, r#", "lease": "1 hour""#),
        extend(cancelled, r#", "lease": null"#),
        (done, format!(r#"{{"complete": {{"id": {done}}}}}"#)),
        extend(gone, ""),
    ];
    assert_eq!(outcomes(&mut client, &ends), ["extended", "extended", "cancelling", "completed", "lost"]);
    assert!(lease_left(&mut client, plain) <= 10.0);
    assert!((3_000.0..=3_600.0).contains(&lease_left(&mut client, longer)));
    // An invalid lease refuses this attempt and no other.
    let ends = [
        extend(plain, r#", "lease": "soon""#),
        extend(longer, r#", "lease": "0""#),
        (cancelled, format!(r#"{{"release": {{"id": {cancelled}}}}}"#)),
    ];
    assert_eq!(outcomes(&mut client, &ends), ["refused", "refused", "cancelled"]);
    assert!((3_000.0..=3_600.0).contains(&lease_left(&mut client, longer)));
    for wrong in [r#"{"extend": {"id": 31}}"#, r#"{"extend": {"id": 16, "until": "now"}}"#, r#"{"extend": 16}"#] {
        client.refused(&format!("SELECT queue.end_batch('[{wrong}]')"), "22023");
    }
}
