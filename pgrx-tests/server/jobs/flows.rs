//! Flows (jobs that wait for their members), events, suspended jobs, and steps.

use crate::shared::*;
use crate::storage::segments::{cluster, fillings};

/// Returns a database in which only `maintain` does the duties, with queue `q` for members and queue `f` for flows.
fn database() -> (Database, Client) {
    let (database, mut client) =
        Database::without_worker().with_queue("q", "max_attempts => 1, lease => '1 hour', backoff_base => '0'");
    create(&mut client, "f", "max_attempts => 1, lease => '1 hour'");
    (database, client)
}

/// Enqueues a flow into `f` with these options.
pub fn flow(client: &mut Client, options: &str) -> i64 {
    client.value(&format!("SELECT queue.enqueue_flow('f', {options})"))
}

/// Enqueues this many members into `q`.
pub fn members(client: &mut Client, flow: i64, count: usize) -> Vec<i64> {
    let payloads = format!("array_fill('{{}}'::jsonb, ARRAY[{count}])");
    client.column(&format!("SELECT queue.enqueue_many('q', {payloads}, flow => {flow})"))
}

/// Makes a flow with this many members in one transaction.
fn flow_of(client: &mut Client, options: &str, count: usize) -> (i64, Vec<i64>) {
    client.run("BEGIN");
    let flow = flow(client, options);
    let members = members(client, flow, count);
    client.run("COMMIT");
    (flow, members)
}

/// Ends the next job of `q`, which must be this one.
fn end(client: &mut Client, job: i64, how: &str) {
    let (id, next): (i64, i64) = client.row("SELECT id, job_id FROM queue.claim('q')");
    assert_eq!(next, job);
    client.run(&match how {
        "completed" => format!("SELECT queue.complete({id}, '\"done\"')"),
        "dead" => format!("SELECT queue.fail({id}, 'no', fatal => true)"),
        other => panic!("{other} is no end"),
    });
}

#[test]
fn a_flow_ends_by_itself_or_runs_when_its_members_have_completed() {
    let (_database, mut client) = database();
    for (options, done) in [("runs => false", "completed"), ("runs => true", "ready")] {
        let (flow, jobs) = flow_of(&mut client, options, 3);
        stays(&mut client, flow, "held");
        assert_eq!(client.count("SELECT FROM queue.claim('f', 10)"), 0);
        for &job in &jobs {
            assert_eq!(client.state(flow), "held");
            end(&mut client, job, "completed");
        }
        becomes(&mut client, flow, done);
        assert_eq!(client.count(&format!("SELECT FROM queue.members({flow}, 'completed')")), 3);
    }
    assert_eq!(client.count("SELECT FROM queue.claim('f', 10)"), 1);
    let counts = "SELECT concat_ws(' ', held, completed, dead) FROM queue.stats WHERE queue_name = 'f'";
    assert_eq!(client.value::<String>(counts), "0 1 0");
    let rejected = flow(&mut client, "open => true");
    client.run(&format!("SELECT queue.reject({rejected}, 'no')"));
    assert_eq!(client.value::<String>(counts), "0 1 1");
    client.check();
}

#[test]
fn a_flow_without_members_ends_when_it_is_sealed() {
    let (_database, mut client) = database();
    let at_once = flow(&mut client, "open => false");
    becomes(&mut client, at_once, "completed");
    let open = flow(&mut client, "open => true");
    stays(&mut client, open, "held");
    client.run(&format!("BEGIN; SELECT queue.seal({open}); ROLLBACK"));
    stays(&mut client, open, "held");
    client.run(&format!("SELECT queue.seal({open}); SELECT queue.seal({open})"));
    becomes(&mut client, open, "completed");
}

#[test]
fn members_come_until_the_flow_has_ended() {
    let (database, mut client) = database();
    let open = flow(&mut client, "open => true, runs => true");
    let first = members(&mut client, open, 1)[0];
    end(&mut client, first, "completed");
    stays(&mut client, open, "held");
    // A sealed flow accepts members while other members live. An uncommitted member holds it up.
    let second = members(&mut client, open, 1)[0];
    client.run(&format!("SELECT queue.seal({open})"));
    let mut other = database.connect();
    other.run("BEGIN");
    let third = members(&mut other, open, 1)[0];
    end(&mut client, second, "completed");
    stays(&mut client, open, "held");
    other.run("COMMIT");
    stays(&mut client, open, "held");
    other.run("BEGIN");
    members(&mut other, open, 1);
    end(&mut client, third, "completed");
    stays(&mut client, open, "held");
    other.run("ROLLBACK");
    becomes(&mut client, open, "ready");
    client.refused(&format!("SELECT queue.enqueue('q', flow => {open})"), "55000");
    client.run("SELECT queue.complete(id) FROM queue.claim('f')");
    client.refused(&format!("SELECT queue.enqueue('q', flow => {open})"), "55000");
    client.refused(&format!("SELECT queue.seal({open})"), "55000");
}

#[test]
fn a_dead_member_holds_its_flow_up_until_it_is_retried_and_completes() {
    let (_database, mut client) = database();
    let (flow, jobs) = flow_of(&mut client, "runs => true", 3);
    let failure: i64 = client.value(&format!("SELECT queue.enqueue('f', after => '{{{flow}}}', upon => 'failed')"));
    end(&mut client, jobs[0], "dead");
    // The first death releases the job that is after the flow upon `failed`.
    becomes(&mut client, failure, "ready");
    end(&mut client, jobs[1], "completed");
    end(&mut client, jobs[2], "completed");
    stays(&mut client, flow, "held");
    client.run(&format!("SELECT queue.retry({flow})"));
    assert_eq!(client.state(jobs[0]), "ready");
    end(&mut client, jobs[0], "completed");
    becomes(&mut client, flow, "ready");
}

#[test]
fn successors_of_a_flow_wait_for_its_end() {
    let (_database, mut client) = database();
    let (first, jobs) = flow_of(&mut client, "runs => false", 2);
    let next = flow(&mut client, &format!("after => '{{{first}}}', runs => true"));
    let last: i64 = client.value(&format!("SELECT queue.enqueue('f', after => '{{{next}}}')"));
    end(&mut client, jobs[0], "completed");
    stays(&mut client, next, "held");
    end(&mut client, jobs[1], "completed");
    becomes(&mut client, first, "completed");
    becomes(&mut client, next, "ready");
    client.run("SELECT queue.complete(id) FROM queue.claim('f')");
    becomes(&mut client, last, "ready");
}

#[test]
fn upon_counts_for_members_too() {
    let (_database, mut client) = database();
    let (ended, jobs) = flow_of(&mut client, "runs => true, upon => 'ended'", 2);
    end(&mut client, jobs[0], "dead");
    end(&mut client, jobs[1], "completed");
    becomes(&mut client, ended, "ready");
    let (failed, jobs) = flow_of(&mut client, "runs => true, upon => 'failed'", 2);
    stays(&mut client, failed, "held");
    end(&mut client, jobs[0], "dead");
    becomes(&mut client, failed, "ready");
    client.run("SELECT queue.purge('q')");
    let (failed, jobs) = flow_of(&mut client, "runs => true, upon => 'failed'", 1);
    end(&mut client, jobs[0], "completed");
    becomes(&mut client, failed, "skipped");
}

#[test]
fn the_first_death_ends_a_flow_that_fails_fast() {
    let (_database, mut client) = database();
    create(&mut client, "graves", "");
    client.run("SELECT queue.alter('f', dead_letter => 'graves')");
    let (flow, jobs) = flow_of(&mut client, "fail_fast => true", 300);
    let running: i64 = client.value("SELECT id FROM queue.claim('q')");
    let nested: i64 = client.value(&format!("SELECT queue.enqueue_flow('f', open => true, flow => {flow})"));
    end(&mut client, jobs[1], "dead");
    // The running member gets a request to stop, and the flow waits for it.
    client.maintain_until(&format!("(SELECT is_cancelled FROM queue.extend({running}))"));
    becomes(&mut client, jobs[299], "cancelled");
    becomes(&mut client, nested, "cancelled");
    assert_eq!(client.state(flow), "held");
    client.refused(&format!("SELECT queue.enqueue('q', flow => {flow})"), "55000");
    client.run(&format!("SELECT queue.release({running})"));
    becomes(&mut client, flow, "dead");
    let error: String = client.value(&format!("SELECT error FROM queue.job({flow})"));
    assert_eq!(error, format!("job {} is dead: no", jobs[1]));
    assert_eq!(client.count("SELECT FROM queue.claim('graves')"), 1);
    // The retry runs all members that have not completed. The flow waits for them.
    client.run(&format!("SELECT queue.retry({flow})"));
    assert_eq!(client.state(flow), "held");
    assert_eq!(client.count(&format!("SELECT FROM queue.members({flow}, 'ready', max_jobs => 1000)")), 300);
    client.run(&format!("SELECT queue.resolve({nested})"));
    client.work_off("q", 300);
    becomes(&mut client, flow, "completed");
    // `retry_many` does the same.
    let (flow, jobs) = flow_of(&mut client, "fail_fast => true", 2);
    end(&mut client, jobs[0], "dead");
    becomes(&mut client, flow, "dead");
    assert_eq!(client.value::<i64>(&retry_dead("f")), 1);
    assert_eq!(client.state(flow), "held");
    client.work_off("q", 300);
    becomes(&mut client, flow, "completed");
}

#[test]
fn a_cancelled_flow_cancels_its_members_first() {
    let (_database, mut client) = database();
    for is_forced in [false, true] {
        let (flow, jobs) = flow_of(&mut client, "runs => true", 4);
        let after: i64 = client.value(&format!("SELECT queue.enqueue('f', after => '{{{flow}}}')"));
        end(&mut client, jobs[0], "completed");
        let running: i64 = client.value("SELECT id FROM queue.claim('q')");
        let held: i64 = client.value(&format!("SELECT queue.enqueue('q', flow => {flow}, after => '{{{}}}')", jobs[1]));
        let answer: String = client.value(&format!("SELECT queue.cancel({flow}, 'enough', {is_forced})"));
        assert_eq!(answer, "cancelling");
        becomes(&mut client, held, "cancelled");
        becomes(&mut client, jobs[3], "cancelled");
        if !is_forced {
            stays(&mut client, flow, "held");
            for change in ["retry($)", "reprioritize($, 1)", "reschedule($, now())"] {
                client.refused(&format!("SELECT queue.{}", change.replace('$', &flow.to_string())), "55000");
            }
            client.run(&format!("SELECT queue.complete({running})"));
        }
        becomes(&mut client, flow, "cancelled");
        becomes(&mut client, after, "skipped");
        assert_eq!(client.value::<String>(&format!("SELECT error FROM queue.job({flow})")), "enough");
        assert_eq!(client.state(jobs[0]), "completed");
        assert_eq!(client.state(jobs[1]), if is_forced { "cancelled" } else { "completed" });
    }
    // Until the flow has ended, an enqueue with its key does not change its contents.
    let (flow, jobs) = flow_of(&mut client, "unique_key => 'k'", 1);
    let running: i64 = client.value("SELECT id FROM queue.claim('q')");
    assert_eq!(client.value::<i64>(&format!("SELECT job_id FROM queue.attempts WHERE id = {running}")), jobs[0]);
    client.run(&format!("SELECT queue.cancel({flow})"));
    let replace = "SELECT queue.enqueue('f', unique_key => 'k', on_duplicate => 'replace')";
    client.refused(replace, "55000");
    client.run(&format!("SELECT queue.complete({running})"));
    becomes(&mut client, flow, "cancelled");
    assert_ne!(client.value::<i64>(replace), flow);
    // A member that is cancelled alone leaves its flow.
    let (flow, jobs) = flow_of(&mut client, "runs => true", 2);
    client.run(&format!("SELECT queue.cancel({})", jobs[0]));
    end(&mut client, jobs[1], "completed");
    becomes(&mut client, flow, "ready");
}

#[test]
fn an_event_is_a_flow_that_is_resolved_or_rejected() {
    let (_database, mut client) = database();
    let approval = flow(&mut client, "open => true");
    let paid: i64 = client.value(&format!("SELECT queue.enqueue('q', after => '{{{approval}}}')"));
    let late: i64 = client
        .value(&format!("SELECT queue.enqueue('q', after => '{{{approval}}}', upon => 'overdue', delay => '1 hour')"));
    stays(&mut client, paid, "held");
    client.run(&format!("SELECT queue.resolve({approval}, '{{\"by\": \"eve\"}}')"));
    becomes(&mut client, paid, "ready");
    becomes(&mut client, late, "skipped");
    let (id, _) = (client.value::<i64>("SELECT id FROM queue.claim('q')"), ());
    let inputs: String =
        client.value(&format!("SELECT string_agg(state || ' ' || result, ',') FROM queue.inputs({id})"));
    assert_eq!(inputs, "completed {\"by\": \"eve\"}");
    client.refused(&format!("SELECT queue.resolve({approval})"), "55000");
    let refused = flow(&mut client, "open => true");
    let sorry: i64 = client.value(&format!("SELECT queue.enqueue('q', after => '{{{refused}}}', upon => 'failed')"));
    client.run(&format!("SELECT queue.reject({refused}, 'too dear')"));
    becomes(&mut client, sorry, "ready");
    assert_eq!(client.value::<String>(&format!("SELECT error FROM queue.job({refused})")), "too dear");
    let runs = flow(&mut client, "open => true, runs => true");
    client.refused(&format!("SELECT queue.resolve({runs})"), "55000");
    client.refused(&format!("SELECT queue.resolve({sorry})"), "55000");
    client.refused("SELECT queue.resolve(16000000015)", "P0002");
}

#[test]
fn tasks_of_one_call_run_in_the_order_that_their_names_give() {
    let (_database, mut client) = database();
    let tasks = r#"[{"task": "d", "queue": "q", "after": ["b", "c"]}, {"task": "a", "queue": "q", "payload": {"n": 1}},
        {"task": "b", "queue": "q", "after": ["a"], "priority": 1}, {"task": "c", "queue": "q", "after": ["a"]}]"#;
    let flow = flow(&mut client, &format!("'{tasks}', runs => true"));
    let mut done = Vec::new();
    for n in 0..4 {
        client.maintain_until("(SELECT ready FROM queue.stats WHERE queue_name = 'q') > 0");
        client.run("SELECT queue.maintain()");
        let (id, job): (i64, i64) = client.row("SELECT id, job_id FROM queue.claim('q')");
        done.push(client.value::<String>(&format!("SELECT task FROM queue.job({job}) WHERE flow = {flow}")));
        if n == 3 {
            let inputs = format!("SELECT string_agg(task || result, ',' ORDER BY task) FROM queue.inputs({id})");
            assert_eq!(client.value::<String>(&inputs), "b\"b\",c\"c\"");
        }
        client.run(&format!("SELECT queue.complete({id}, to_jsonb('{}'::text))", done[n]));
    }
    assert_eq!((done[0].as_str(), done[3].as_str()), ("a", "d"));
    becomes(&mut client, flow, "ready");
    let id: i64 = client.value("SELECT id FROM queue.claim('f')");
    assert_eq!(client.count(&format!("SELECT FROM queue.inputs({id})")), 4);
    let told: String = client.value(&format!(
        "SELECT concat_ws(' ', state, members, completed, running, share_ended) FROM queue.flows WHERE job_id = {flow}"
    ));
    assert_eq!(told, "running 4 4 0 1");
}

#[test]
fn a_wrong_flow_is_refused_with_a_reason_and_without_effect() {
    let (_database, mut client) = database();
    let said = |client: &mut Client, call: &str| -> (String, String) {
        let error = client.failure(&format!("SELECT queue.{call}"));
        (error.code, format!("{} {}", error.message, error.detail))
    };
    let circle = r#"[{"task": "a", "after": ["c"]}, {"task": "b", "after": ["a"]}, {"task": "c", "after": ["b"]}]"#;
    let (code, words) = said(&mut client, &format!("enqueue_flow('f', '{circle}')"));
    assert_eq!((code.as_str(), words.contains("a is after c is after b is after a")), ("22023", true), "{words}");
    for (call, code) in [
        (r#"enqueue_flow('f', '[{"task": "a", "after": ["x"]}]')"#, "22023"),
        (r#"enqueue_flow('f', '[{"task": "a"}, {"task": "a"}]')"#, "22023"),
        (r#"enqueue_flow('f', '[{"task": 1}]')"#, "22023"),
        (r#"enqueue_flow('f', '[{"task": "a", "unique_key": "k"}]')"#, "22023"),
        (r#"enqueue_flow('f', '[{"task": "a", "nonsense": 1}]')"#, "22023"),
        (r#"enqueue_flow('f', '[{"task": "a", "upon": "never"}]')"#, "22023"),
        (r#"enqueue_flow('f', '[{"task": "a", "queue": "none"}]')"#, "42704"),
        (r#"enqueue_flow('f', '{}')"#, "22023"),
        (r#"enqueue_flow('f', upon => 'overdue')"#, "22023"),
        (r#"enqueue_flow('f', unique_key => 'k', on_duplicate => 'replace')"#, "22023"),
        ("enqueue('q', flow => 31)", "P0002"),
        ("enqueue('q', flow => 16)", "22023"),
        ("seal(31)", "P0002"),
        ("seal(NULL)", "22004"),
        ("reject(31, NULL)", "22004"),
        ("step(16, '')", "22023"),
        ("inputs(31)", "22023"),
        ("suspend(16)", "QJ001"),
    ] {
        assert_eq!(said(&mut client, call).0, code, "{call}");
    }
    assert_eq!(client.count("SELECT FROM queue.jobs"), 0);
    let job = client.enqueue("q");
    assert_eq!(said(&mut client, &format!("enqueue('q', flow => {job})")).0, "55000");
    assert_eq!(said(&mut client, &format!("seal({job})")).0, "55000");
    // A second call with the same key makes neither a second flow nor second tasks.
    let call = r#"SELECT queue.enqueue_flow('f', '[{"queue": "q"}]', unique_key => 'k')"#;
    assert_eq!(client.value::<i64>(call), client.value::<i64>(call));
    assert_eq!(client.count("SELECT FROM queue.jobs WHERE flow IS NOT NULL"), 1);
}

#[test]
fn a_suspended_job_waits_for_its_members_and_goes_on() {
    let (_database, mut client) = database();
    let job = client.enqueue("f");
    let id: i64 = client.value("SELECT id FROM queue.claim('f')");
    client.run(&format!("SELECT queue.step_done({id}, 'split', '3')"));
    client.run("BEGIN");
    let chunks = members(&mut client, job, 3);
    client.run(&format!("SELECT queue.suspend({id}, progress => '\"split\"'); COMMIT"));
    client.refused(&format!("SELECT queue.complete({id})"), "QJ001");
    stays(&mut client, job, "held");
    end(&mut client, chunks[0], "completed");
    end(&mut client, chunks[1], "dead");
    stays(&mut client, job, "held");
    end(&mut client, chunks[2], "completed");
    becomes(&mut client, job, "ready");
    let row = client.query_one("SELECT id, job_id, attempt, progress::text FROM queue.claim('f')", &[]).unwrap();
    let again: i64 = row.get(0);
    assert_eq!((row.get(1), row.get(2), row.get(3)), (job, 1, "\"split\""));
    let states: String =
        client.value(&format!("SELECT string_agg(state, ' ' ORDER BY job_id) FROM queue.inputs({again})"));
    assert_eq!(states, "completed dead completed");
    assert_eq!(client.value::<serde_json::Value>(&format!("SELECT queue.step({again}, 'split')")), 3);
    // The job may be suspended again and wait for any jobs.
    let other = client.enqueue("q");
    client.run(&format!("SELECT queue.suspend({again}, ARRAY[{other}], 'completed')"));
    stays(&mut client, job, "held");
    end(&mut client, other, "completed");
    becomes(&mut client, job, "ready");
    let last: i64 = client.value("SELECT id FROM queue.claim('f')");
    for (after, code) in
        [("'{}'", "22023"), ("ARRAY[16000000015]::bigint[]", "P0002"), (&*format!("ARRAY[{job}]"), "22023")]
    {
        client.refused(&format!("SELECT queue.suspend({last}, {after})"), code);
    }
    client.refused(&format!("SELECT queue.suspend({last}, upon => 'overdue')"), "22023");
    client.run(&format!("SELECT queue.complete({last})"));
    let states: Vec<String> = client.column(&format!("SELECT state FROM queue.job_attempts({job}) ORDER BY id"));
    assert_eq!(states, ["suspended", "superseded", "suspended", "superseded", "completed"]);
}

#[test]
fn steps_outlive_attempts_and_go_with_a_rollback() {
    let (_database, mut client) = database();
    create(&mut client, "s", "max_attempts => 5, backoff_base => '0', backoff_jitter => 0, stages => '{a, b}'");
    let job = client.enqueue("s");
    let claim = |client: &mut Client| -> i64 { client.value("SELECT id FROM queue.claim('s')") };
    let id = claim(&mut client);
    client.run(&format!("BEGIN; SELECT queue.step_done({id}, 'paid', '1'); ROLLBACK"));
    assert!(client.value::<bool>(&format!("SELECT queue.step({id}, 'paid') IS NULL")));
    client.run(&format!("SELECT queue.step_done({id}, 'paid', '{{\"receipt\": 7}}'), queue.step_done({id}, 'mailed')"));
    client.run(&format!("SELECT queue.fail({id}, 'oh')"));
    let id = claim(&mut client);
    let found = client.value::<serde_json::Value>(&format!("SELECT queue.step({id}, 'paid')"));
    assert_eq!(found, serde_json::json!({"receipt": 7}));
    let got = client.value::<serde_json::Value>(&format!("SELECT queue.step({id}, 'mailed')"));
    assert_eq!(got, serde_json::Value::Null);
    client.run(&format!("SELECT queue.step_done({id}, 'third', '3'); SELECT queue.release({id})"));
    let id = claim(&mut client);
    client.run(&format!("SELECT queue.advance({id})"));
    let id = claim(&mut client);
    let steps = format!("SELECT string_agg(name || '=' || result, ' ' ORDER BY name) FROM queue.job_steps({job})");
    let all = "mailed=null paid={\"receipt\": 7} third=3";
    assert_eq!(client.value::<String>(&steps), all);
    client.run(&format!("SELECT queue.fail({id}, 'end', fatal => true)"));
    assert_eq!(client.value::<String>(&steps), all);
    client.run(&format!("SELECT queue.retry({job})"));
    let id = claim(&mut client);
    assert_eq!(client.value::<serde_json::Value>(&format!("SELECT queue.step({id}, 'third')")), 3);
    let wrong = "x".repeat(1025);
    client.refused(&format!("SELECT queue.step_done({id}, '{wrong}')"), "22023");
}

#[test]
fn a_flow_outlives_crashes_moves_and_its_members_history() {
    let cluster = cluster(&[]);
    let mut client = cluster.connect();
    client.run("SELECT queue.alter('q', max_attempts => 1, lease => '1 hour')");
    create(&mut client, "f", "retention => '0'");
    client.run("BEGIN");
    let whole: i64 = client.value("SELECT queue.enqueue_flow('f', runs => true)");
    let jobs: Vec<i64> = client
        .column(&format!("SELECT queue.enqueue_many('q', array_fill('{{}}'::jsonb, ARRAY[20]), flow => {whole})"));
    client.run("COMMIT");
    let fast: i64 =
        client.value("SELECT queue.enqueue_flow('f', '[{\"queue\": \"q\"}, {\"queue\": \"q\"}]', fail_fast => true)");
    let dead: i64 = client.value("SELECT id FROM queue.claim('q')");
    client.run(&format!("SELECT queue.step_done({dead}, 'a', '1'); SELECT queue.fail({dead}, 'no')"));
    client.work_off("q", 10);
    reclaim(&mut client, 3);
    drop(client);
    cluster.restart_immediate();
    let mut client = cluster.connect();
    assert_eq!(client.state(whole), "held");
    client.work_off("q", 9);
    // Only the dead member remains. It is in history.
    wait::until_true("all but one have ended", || {
        client.count(&format!("SELECT FROM queue.members({whole}, 'completed')")) == 19
    });
    reclaim(&mut client, 3);
    assert_eq!(client.state(whole), "held");
    let steps: i64 = client.value(&format!("SELECT count(*) FROM queue.job_steps({})", jobs[0]));
    assert_eq!(steps, 1);
    client.run(&format!("SELECT queue.retry({whole})"));
    client.work_off("q", 1);
    wait::until_true("the flow is released", || client.state(whole) == "ready");
    // The other flow dies, and its second member is cancelled.
    client.run("SELECT queue.fail(id, 'no') FROM queue.claim('q')");
    wait::until_true("the flow is dead", || client.state(fast) == "dead");
    assert_eq!(client.count(&format!("SELECT FROM queue.members({fast}, 'cancelled')")), 1);
    client.check();
}

/// Turns the ring by this many segments.
pub fn reclaim(client: &mut Client, turns: i64) {
    client.run("SELECT queue.create('filler', retention => '0', if_not_exists => true)");
    let end = fillings(client) + turns;
    wait::until_true("the ring turns", || {
        client.pass_through("filler", 500);
        fillings(client) >= end
    });
}

#[test]
fn a_dead_member_holds_its_flow_up_while_it_is_being_copied_to_history() {
    let cluster = cluster(&["pg_queue.segment_age = 3600"]);
    let mut client = cluster.connect();
    create(&mut client, "f", "");
    create(&mut client, "filler", "retention => '0', lease => '1 hour'");
    let (flow, members) = flow_of(&mut client, "runs => true", 2);
    end(&mut client, members[0], "dead");
    let copied = cluster.fault("copy.begun", "wait");
    wait::until("the segment is drained", || {
        client.pass_through("filler", 500);
        copied.reached_by()
    });
    end(&mut client, members[1], "completed");
    for _ in 0..3 {
        client.run("SELECT FROM queue.maintain()");
        assert_eq!(client.state(flow), "held");
    }
    copied.release();
    wait::until_true("it is in history", || {
        let sql = format!("SELECT FROM queue_internal.history WHERE job_id = {}", members[0]);
        client.count(&sql) > 0
    });
    assert_eq!(client.state(flow), "held");
    client.run(&format!("SELECT queue.retry({})", members[0]));
    end(&mut client, members[0], "completed");
    wait::until_true("the flow is released", || client.state(flow) == "ready");
}

#[test]
fn a_seal_of_an_open_transaction_is_not_lost() {
    let cluster = cluster(&["pg_queue.segment_age = 3600"]);
    let (mut client, mut sealer) = (cluster.connect(), cluster.connect());
    create(&mut client, "f", "");
    create(&mut client, "filler", "retention => '0', lease => '1 hour'");
    let flow = flow(&mut client, "open => true");
    sealer.run(&format!("BEGIN; SELECT queue.seal({flow})"));
    // The attempt that would replace it would lose the seal.
    client.refused(&format!("SELECT queue.reprioritize({flow}, 3)"), "55006");
    wait::until_true("its segment is moved out of", || {
        client.pass_through("filler", 500);
        client.count("SELECT FROM queue_internal.segment_log WHERE state = 'm' AND segment = 0") > 0
    });
    for _ in 0..3 {
        client.run("SELECT FROM queue.maintain()");
    }
    sealer.run("COMMIT");
    wait::until_true("the flow ends", || client.state(flow) == "completed");
}
