//! `queue.end_batch` at the same time as other sessions: rollbacks, busy attempts, two sessions with the same attempts,
//! errors in the middle, an expired lease.

use crate::faults::held::{begin, hold, release};
use crate::jobs::ends::{end, outcomes, running};
use crate::shared::*;

/// Claims attempts in these queues. Returns each with an end of a different kind and the resulting state of its job.
fn of_each_kind(client: &mut Client, q: &str, staged: &str) -> Vec<(i64, i64, String, &'static str)> {
    let kinds = [
        (q, r#"{"complete": {"id": $, "result": 1}}"#, "completed"),
        (q, r#"{"fail": {"id": $, "error": "x"}}"#, "failed"),
        (q, r#"{"fail": {"id": $, "error": "x", "fatal": true}}"#, "dead"),
        (q, r#"{"release": {"id": $}}"#, "released"),
        (staged, r#"{"advance": {"id": $}}"#, "advanced"),
        (q, r#"{"suspend": {"id": $, "until": "epoch"}}"#, "suspended"),
    ];
    kinds
        .map(|(queue, object, outcome)| {
            let (job, id) = running(client, queue);
            (job, id, object.replace('$', &id.to_string()), outcome)
        })
        .into()
}

#[test]
fn a_rollback_takes_all_ends_back() {
    let (mut client, q) = queue("");
    let staged = format!("{q} staged");
    create(&mut client, &staged, "stages => '{a, b}'");
    let all = of_each_kind(&mut client, &q, &staged);
    let ends: Vec<(i64, String)> = all.iter().map(|(_, id, object, _)| (*id, object.clone())).collect();
    let expected: Vec<&str> = all.iter().map(|(.., outcome)| *outcome).collect();
    let assert_running = |client: &mut Client, of: &mut Client| {
        for (job, id, object, _) in &all {
            assert_eq!(client.state(*job), "running", "{object}");
            assert_eq!(of.count(&format!("SELECT FROM queue.job_attempts({job})")), 1, "{object}");
            client.run(&format!("SELECT queue.extend({id})"));
        }
    };
    let mut other = connect();
    client.run("BEGIN");
    assert_eq!(outcomes(&mut client, &ends), expected);
    client.run("ROLLBACK");
    assert_running(&mut client, &mut other);
    // An error follows the call, in the same statement or in the same block.
    let list: Vec<String> = ends.iter().map(|(_, object)| object.clone()).collect();
    client.refused(&format!("SELECT count(*) / 0 FROM queue.end_batch('[{}]')", list.join(",")), "22012");
    assert_running(&mut client, &mut other);
    client.run("BEGIN; SAVEPOINT s");
    for _ in 0..2 {
        assert_eq!(outcomes(&mut client, &ends), expected);
        client.run("ROLLBACK TO s");
    }
    client.run("SAVEPOINT t");
    assert_eq!(outcomes(&mut client, &ends[..2]), expected[..2]);
    client.run("RELEASE t; ROLLBACK TO s");
    assert_running(&mut client, &mut other);
    assert_eq!(outcomes(&mut client, &ends[..3]), expected[..3]);
    client.run("SAVEPOINT u");
    assert_eq!(outcomes(&mut client, &ends[3..]), expected[3..]);
    client.run("ROLLBACK TO u; COMMIT");
    for (n, (_, id, object, outcome)) in all.iter().enumerate() {
        let state: String = other.value(&format!("SELECT state FROM queue.attempts WHERE id = {id}"));
        assert_eq!(state, if n < 3 { outcome } else { "running" }, "{object}");
    }
    assert_eq!(outcomes(&mut client, &ends), [&["lost"; 3][..], &expected[3..]].concat());
}

#[test]
fn attempts_that_another_transaction_holds_are_busy_and_no_call_waits() {
    let mut other = connect();
    for by_other in ["complete", "cancel", "batch"] {
        let (mut client, q) = queue("");
        let staged = format!("{q} staged");
        create(&mut client, &staged, "stages => '{a, b}'");
        client.run("SET lock_timeout = '20 s'");
        let all = of_each_kind(&mut client, &q, &staged);
        let ends: Vec<(i64, String)> = all.iter().map(|(_, id, object, _)| (*id, object.clone())).collect();
        other.run("BEGIN");
        for (job, id, object, _) in all.iter().step_by(2) {
            match by_other {
                "complete" => other.run(&format!("SELECT queue.release({id})")),
                "cancel" => other.run(&format!("SELECT queue.cancel({job}, force => true)")),
                _ => assert_eq!(end(&mut other, std::slice::from_ref(object)).len(), 1),
            }
        }
        let expected: Vec<&str> =
            all.iter().enumerate().map(|(n, (.., outcome))| if n % 2 == 0 { "busy" } else { *outcome }).collect();
        assert_eq!(outcomes(&mut client, &ends), expected, "{by_other}");
        other.run("ROLLBACK");
        let expected: Vec<&str> =
            all.iter().enumerate().map(|(n, (.., outcome))| if n % 2 == 0 { *outcome } else { "lost" }).collect();
        assert_eq!(outcomes(&mut client, &ends), expected, "{by_other}");
    }
}

#[test]
fn two_sessions_that_end_the_same_attempts_end_each_once() {
    let (_database, mut client) = Database::new().with_queue("q", "backoff_base => '1 hour'");
    for round in 0..10 {
        client.run("SELECT queue.enqueue_many('q', array_fill('1'::jsonb, '{300}'))");
        let mut ids: Vec<i64> = client.column("SELECT id FROM queue.claim('q', 300)");
        let name: String = client.value("SELECT current_database()::text");
        let both = std::thread::scope(|scope| {
            let sessions = [0, 1].map(|n| {
                let mut ids = ids.clone();
                if n == 1 {
                    ids.reverse();
                }
                let name = &name;
                scope.spawn(move || {
                    let mut session = server().connect_to(name);
                    let kind = |id: i64| match id / 16 % 3 {
                        0 => format!(r#"{{"complete": {{"id": {id}}}}}"#),
                        1 => format!(r#"{{"fail": {{"id": {id}, "error": "x"}}}}"#),
                        _ => format!(r#"{{"release": {{"id": {id}, "delay": "1 hour"}}}}"#),
                    };
                    let ends: Vec<String> = ids.into_iter().map(kind).collect();
                    end(&mut session, &ends)
                })
            });
            sessions.map(|session| session.join().unwrap())
        });
        let mut done: Vec<i64> = Vec::new();
        for (id, outcome, _) in both.iter().flatten() {
            if !["lost", "busy"].contains(&outcome.as_str()) {
                done.push(*id);
            }
        }
        done.sort_unstable();
        ids.sort_unstable();
        assert_eq!(done, ids, "round {round}");
    }
    assert_eq!(client.count("SELECT FROM queue.jobs WHERE state = 'running'"), 0);
    assert_eq!(client.count("SELECT FROM queue.attempts GROUP BY job_id HAVING count(*) > 2"), 0);
}

#[test]
fn ten_thousand_attempts_end_in_one_call() {
    let (_database, mut client) = Database::new().with_queue("q", "backoff_base => '1 hour', max_attempts => 3");
    client.run("SELECT queue.enqueue_many('q', array_fill('1'::jsonb, '{10000}'))");
    client.run("CREATE TEMPORARY TABLE claimed AS SELECT id FROM queue.claim('q', 10000)");
    let sql = "SELECT outcome || ' ' || count(*) FROM queue.end_batch((SELECT json_agg(CASE id / 16 % 4
                   WHEN 0 THEN json_build_object('complete', json_build_object('id', id, 'result', id))
                   WHEN 1 THEN json_build_object('fail', json_build_object('id', id, 'error', 'no ' || id))
                   WHEN 2 THEN json_build_object('fail', json_build_object('id', id, 'error', 'no', 'fatal', true))
                   ELSE json_build_object('release', json_build_object('id', id, 'delay', '1 day')) END) FROM claimed))
               GROUP BY outcome ORDER BY outcome";
    client.run("BEGIN");
    let expected = ["completed 2500", "dead 2500", "failed 2500", "released 2500"];
    assert_eq!(client.column::<String>(sql), expected);
    client.run("ROLLBACK");
    assert_eq!(client.column::<String>(sql), expected);
    let states = "SELECT a.state || ' ' || count(*) FROM queue.attempts AS a JOIN claimed USING (id)
                  WHERE (a.error = 'no ' || id) IS NOT DISTINCT FROM nullif(a.state = 'failed', false)
                     OR a.state = 'dead' AND a.error = 'no' GROUP BY a.state ORDER BY a.state";
    assert_eq!(client.column::<String>(states), expected);
    let right = "SELECT FROM queue.jobs AS j JOIN queue.attempts AS a USING (job_id) WHERE j.state = 'completed' \
        AND j.result = to_jsonb(a.id)";
    assert_eq!(client.count(right), 2500);
    let stats = "SELECT format('%s %s %s %s', completed, dead, scheduled, retrying) FROM queue.stats";
    wait::until_true("all are counted", || client.value::<String>(stats) == "2500 2500 2500 2500");
}

#[test]
fn ends_that_fail_anywhere_leave_all_attempts_to_their_worker() {
    for point in
        ["end.held", "row.outcome.before", "row.outcome.after", "row.attempt.before", "commit.begun", "commit.checked"]
    {
        for action in ["error", "terminate"] {
            let (mut client, q) = queue("");
            let staged = format!("{q} staged");
            create(&mut client, &staged, "stages => '{a, b}'");
            let all = of_each_kind(&mut client, &q, &staged);
            let list: Vec<String> = all.iter().map(|(_, _, object, _)| object.clone()).collect();
            let mut session = connect();
            let fault = server().fault_of(session.pid(), point, action);
            let (_, code) = begin(session, format!("SELECT queue.end_batch('[{}]')", list.join(","))).join().unwrap();
            assert_eq!(code, if action == "error" { "58000" } else { "57P01" }, "{point}");
            assert!(fault.release(), "{point}");
            let ends: Vec<(i64, String)> = all.iter().map(|(_, id, object, _)| (*id, object.clone())).collect();
            let expected: Vec<&str> = all.iter().map(|(.., outcome)| *outcome).collect();
            // The other session may still be rolling back.
            wait::until_true("it has let go of them", || {
                client.run("BEGIN");
                let got = outcomes(&mut client, &ends);
                client.run(if got == expected { "COMMIT" } else { "ROLLBACK" });
                got == expected
            });
        }
    }
}

#[test]
fn an_expired_lease_does_not_end_an_attempt_that_a_batch_is_ending() {
    let (mut client, q) = queue("");
    let jobs: Vec<i64> = client.column(&format!("SELECT queue.enqueue('{q}') FROM generate_series(1, 3)"));
    let ids: Vec<i64> = client.column(&format!("SELECT id FROM queue.claim('{q}', 3, lease => '2 s')"));
    let list: Vec<String> = ids.iter().map(|id| format!(r#"{{"complete": {{"id": {id}}}}}"#)).collect();
    // The session holds the first attempt. The leases of the others expire before the session reaches them.
    let held = hold("app", "end.held", &format!("SELECT queue.end_batch('[{}]')", list.join(",")));
    wait::until_true("the worker has ended the leases of the others", || {
        let sql = format!("SELECT FROM queue.attempts WHERE id = ANY (ARRAY{ids:?}) AND state = 'timed_out'");
        client.count(&sql) == 2
    });
    assert_eq!(release(held), "");
    assert_eq!(client.state(jobs[0]), "completed");
    for (job, id) in jobs.iter().zip(&ids).skip(1) {
        assert_ne!(client.state(*job), "completed");
        let state: String = client.value(&format!("SELECT state FROM queue.attempts WHERE id = {id}"));
        assert_eq!(state, "timed_out");
    }
}

/// While a drop of its queue is open, an attempt cannot get a successor. Only such an attempt is refused.
#[test]
fn ends_in_a_queue_that_is_being_dropped_are_busy_and_all_others_end() {
    let (mut client, q) = queue("");
    let (other, staged) = (format!("{q} other"), format!("{q} staged"));
    create(&mut client, &other, "");
    create(&mut client, &staged, "stages => '{a, b, c}'");
    let mut changer = connect();
    let follow = |client: &mut Client| -> Vec<(i64, String)> {
        of_each_kind(client, &q, &staged)
            .into_iter()
            .filter(|(.., outcome)| ["failed", "released", "advanced", "suspended"].contains(outcome))
            .map(|(_, id, object, _)| (id, object))
            .collect()
    };
    let mut ends = follow(&mut client);
    changer
        .run(&format!("BEGIN; SELECT queue.drop('{q}', force => true); SELECT queue.drop('{staged}', force => true)"));
    let (_, id) = running(&mut client, &other);
    ends.push((id, format!(r#"{{"complete": {{"id": {id}}}}}"#)));
    let expected: Vec<&str> = ends.iter().map(|(own, _)| if *own == id { "completed" } else { "busy" }).collect();
    assert_eq!(outcomes(&mut client, &ends), expected);
    ends.pop();
    let (_, id) = running(&mut client, &other);
    let ids: Vec<i64> = ends.iter().map(|(own, _)| *own).chain([id]).collect();
    for verb in ["release_many($1)", "fail_many($1, 'x')"] {
        client.run("BEGIN");
        let answers = client.query(&format!("SELECT id, outcome FROM queue.{verb}"), &[&ids]).unwrap();
        for answer in answers {
            let (of, outcome): (i64, String) = (answer.get(0), answer.get(1));
            assert_eq!(outcome == "busy", of != id, "{verb}: {outcome}");
        }
        client.run("ROLLBACK");
    }
    changer.run("ROLLBACK");
    assert_eq!(outcomes(&mut client, &ends), ["failed", "released", "advanced", "suspended"]);
    // The same holds while a stage is being removed.
    client.enqueue(&staged);
    let id: i64 = client.value(&format!("SELECT id FROM queue.claim('{staged}', stage => 'a')"));
    let (_, beside) = running(&mut client, &other);
    changer.run(&format!("BEGIN; SELECT queue.alter('{staged}', stages => '{{a, b}}')"));
    let ends = [
        (id, format!(r#"{{"advance": {{"id": {id}, "stage": "c"}}}}"#)),
        (beside, format!(r#"{{"release": {{"id": {beside}}}}}"#)),
    ];
    assert_eq!(outcomes(&mut client, &ends), ["busy", "released"]);
    changer.run("ROLLBACK");
    assert_eq!(outcomes(&mut client, &ends[..1]), ["advanced"]);
}
