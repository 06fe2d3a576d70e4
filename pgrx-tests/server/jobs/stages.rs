//! Pipelines: a job passes through its queue's stages, keeps its id, and runs once in each stage.

use crate::interface::stumbles::{listening, taken};
use crate::shared::*;

pub const THREE: &str = "stages => '{fetch, parse, store}'";

/// Claims a job of a stage. There must be one. Returns the attempt's id.
pub fn claim_in(client: &mut Client, q: &str, stage: &str) -> i64 {
    client.value(&format!("SELECT id FROM queue.claim('{q}', stage => '{stage}')"))
}

pub fn stage_of(client: &mut Client, job: i64) -> Option<String> {
    client.value(&format!("SELECT stage FROM queue.job({job})"))
}

/// Returns the stage, number and state of a job's attempts, in order.
pub fn attempts(client: &mut Client, job: i64) -> Vec<String> {
    client.column(&format!(
        "SELECT concat_ws(' ', stage, attempt, state) FROM queue.job_attempts({job}) ORDER BY id >> 4"
    ))
}

#[test]
fn a_job_goes_through_the_stages_with_its_id() {
    let (mut client, q) = queue(&format!("{THREE}, backoff_base => '0', backoff_jitter => 0"));
    let large = "x".repeat(5000);
    let job: i64 = client.value(&format!(
        "SELECT queue.enqueue('{q}', jsonb_build_object('n', '{large}'), 3, headers => '{{\"h\": 1}}', \
            group_key => 'g', max_attempts => 2)"
    ));
    assert_eq!(stage_of(&mut client, job).as_deref(), Some("fetch"));
    for other in ["parse", "store"] {
        assert_eq!(client.count(&format!("SELECT FROM queue.claim('{q}', stage => '{other}')")), 0);
    }
    let first = claim_in(&mut client, &q, "fetch");
    client.run(&format!("SELECT queue.progress({first}, '7'), queue.fail({first}, 'no')"));
    let row =
        client.query_one(&format!("SELECT id, attempt, stage, progress::text FROM queue.claim('{q}')"), &[]).unwrap();
    assert_eq!((row.get(1), row.get(2), row.get(3)), (2, "fetch", "7"));
    let second: i64 = row.get(0);
    client.run(&format!("SELECT queue.advance({second})"));

    // The next stage starts with attempt 1 and the job's data.
    let row = client
        .query_one(
            &format!(
                "SELECT id, job_id, attempt, stage, max_attempts, priority, group_key, headers::text, last_error,
                    progress::text,
                     length(payload ->> 'n') FROM queue.claim('{q}')"
            ),
            &[],
        )
        .unwrap();
    assert_eq!((row.get(1), row.get(2), row.get(3), row.get(4)), (job, 1, "parse", 2));
    assert_eq!((row.get(5), row.get(6), row.get(7)), (3, "g", "{\"h\": 1}"));
    assert_eq!((row.get(8), row.get(9), row.get(10)), (None::<&str>, None::<&str>, 5000));
    let third: i64 = row.get(0);
    client.run(&format!("SELECT queue.advance({third}, payload => '{{\"small\": 1}}')"));
    let row = client.query_one(&format!("SELECT id, stage, payload::text FROM queue.claim('{q}')"), &[]).unwrap();
    assert_eq!((row.get(1), row.get(2)), ("store", "{\"small\": 1}"));
    let last: i64 = row.get(0);
    let failure = client.refused(&format!("SELECT queue.advance({last})"), "55000");
    assert!(failure.message.contains("\"store\" is the last"), "{failure:?}");
    assert!(failure.hint.contains("queue.complete"), "{failure:?}");
    client.run(&format!("SELECT queue.complete({last}, '\"done\"')"));
    assert_eq!(client.state(job), "completed");
    assert_eq!(stage_of(&mut client, job).as_deref(), Some("store"));
    let found = attempts(&mut client, job);
    assert_eq!(found, ["fetch 1 failed", "fetch 2 advanced", "parse 1 advanced", "store 1 completed"]);
    for late in [first, second, third, last] {
        for verb in ["advance", "complete"] {
            client.refused(&format!("SELECT queue.{verb}({late})"), "QJ001");
        }
    }
}

#[test]
fn a_worker_names_the_stage_and_may_wait_before_it() {
    let (mut client, q) = queue(THREE);
    client.enqueue(&q);
    let id = client.claim(&q);
    client.run(&format!("SELECT queue.advance({id}, 'store', delay => '1 hour')"));
    assert_eq!(client.count(&format!("SELECT FROM queue.claim('{q}')")), 0);
    let row = client
        .query_one(&format!("SELECT job_id, state, stage FROM queue.jobs WHERE queue_name = '{q}'"), &[])
        .unwrap();
    assert_eq!((row.get(1), row.get(2)), ("scheduled", "store"));
    let job: i64 = row.get(0);
    client.run(&format!("SELECT queue.reschedule({job}, now())"));
    assert_eq!(stage_of(&mut client, job).as_deref(), Some("store"));
    // A job can go back to an earlier stage.
    let id = claim_in(&mut client, &q, "store");
    client.run(&format!("SELECT queue.advance({id}, 'fetch')"));
    let id = claim_in(&mut client, &q, "fetch");
    client.run(&format!("SELECT queue.release({id})"));
    assert_eq!(stage_of(&mut client, job).as_deref(), Some("fetch"));
}

#[test]
fn a_stage_is_checked_everywhere() {
    let (mut client, q) = queue(THREE);
    let (_, plain) = queue("");
    for (sql, code, words) in [
        (format!("enqueue('{q}', stage => 'prase')"), "22023", "no stage \"prase\""),
        (format!("enqueue_many('{q}', '{{1}}', stage => 'prase')"), "22023", "no stage \"prase\""),
        (format!("claim('{q}', stage => 'prase')"), "22023", "no stage \"prase\""),
        (format!("claim_any('{{{q}, {plain}}}', stages => '{{prase, parse}}')"), "22023", "no stage \"parse\""),
        (format!("claim_any(array_fill('{q}'::text, '{{265}}'))"), "22023", "at most 264"),
        (format!("claim_any('{{{q}, {q}}}', stages => '{{parse}}')"), "22023", "as many elements as queue_names"),
        (format!("claim_any('{{{q}}}', stages => '{{}}')"), "22023", "as many elements as queue_names"),
        (format!("enqueue('{plain}', stage => 'parse')"), "22023", "no stage"),
        (format!("claim('{plain}', stage => '')"), "22023", "no stage"),
        ("create('other', stages => '{}')".into(), "22023", "1 to 32"),
        ("create('other', stages => '{a, b, a}')".into(), "22023", "named twice"),
        ("create('other', stages => '{a, NULL}')".into(), "22004", "stages[2]"),
        ("create('other', stages => ARRAY[''])".into(), "22023", "1 to 200"),
        ("create('other', stages => ARRAY[repeat('a', 201)])".into(), "22023", "1 to 200"),
        (
            "create('other', stages => ARRAY(SELECT 's' || n FROM generate_series(1, 33) AS n))".into(),
            "22023",
            "1 to 32",
        ),
    ] {
        let failure = client.refused(&format!("SELECT queue.{sql}"), code);
        assert!(failure.message.contains(words), "{sql}: {failure:?}");
    }
    let failure = client.failure(&format!("SELECT queue.enqueue('{q}', stage => 'prase')"));
    assert_eq!(failure.detail, "Its stages are \"fetch\", \"parse\", \"store\".");
    client.enqueue(&q);
    client.enqueue(&plain);
    let id = client.claim(&q);
    client.refused(&format!("SELECT queue.advance({id}, 'prase')"), "22023");
    client.refused(&format!("SELECT queue.advance({id}, delay => '-1 s')"), "22023");
    let failure = client.refused(&format!("SELECT queue.complete({id})"), "55000");
    assert!(failure.hint.contains("queue.advance"), "{failure:?}");
    // A batch refuses this attempt, which keeps running. The other attempts complete.
    for (columns, verb) in [
        ("outcome, reason", "complete_many($)"),
        ("headers->>'outcome', headers->>'reason'", "claim('Q', completed => $)"),
        (
            "outcome, reason",
            "end_batch((SELECT json_agg(json_build_object('complete', json_build_object('id', id))) \
                FROM unnest($) AS id))",
        ),
    ] {
        client.enqueue(&plain);
        let beside = client.claim(&plain);
        let call = verb.replace('$', &format!("ARRAY[{id}, {beside}]::bigint[]")).replace('Q', &q);
        let rows = client.query(&format!("SELECT {columns}, id FROM queue.{call} ORDER BY id"), &[]).unwrap();
        let refused = rows.iter().find(|row| row.get::<_, i64>(2) == id).expect("an answer");
        assert_eq!(refused.get::<_, &str>(0), "refused", "{verb}");
        assert!(refused.get::<_, &str>(1).contains("stage \"fetch\""), "{verb}: {refused:?}");
        client.run(&format!("SELECT queue.extend({id})"));
        let state = format!("SELECT state FROM queue.attempts WHERE id = {beside}");
        assert_eq!(client.value::<String>(&state), "completed", "{verb}");
    }
    client.run(&format!("SELECT queue.advance({id})"));
    let id = client.claim(&plain);
    let failure = client.failure(&format!("SELECT queue.advance({id})"));
    assert_eq!((failure.code.as_str(), failure.hint.as_str()), ("55000", "Use queue.complete."));
    client.run(&format!("SELECT queue.complete({id})"));
}

#[test]
fn jobs_come_in_at_any_stage_and_claims_of_all_are_in_order() {
    let (mut client, q) = queue(THREE);
    let first: i64 = client.value(&format!("SELECT queue.enqueue('{q}', stage => 'store', priority => 1)"));
    let batch: Vec<i64> = client.column(&format!(
        "SELECT queue.enqueue_batch('{q}', '[{{\"stage\": \"parse\"}}, {{}}, {{\"stage\": null}}, \
            {{\"stage\": \"store\"}}, {{\"priority\": -1}}]')"
    ));
    let many: Vec<i64> = client.column(&format!("SELECT queue.enqueue_many('{q}', '{{1, 2}}', stage => 'parse')"));
    let stages: Vec<String> =
        client.column(&format!("SELECT stage FROM queue.jobs WHERE queue_name = '{q}' ORDER BY job_id"));
    assert_eq!(stages, ["store", "parse", "fetch", "fetch", "store", "fetch", "parse", "parse"]);
    let expected = [batch[4], batch[0], batch[1], batch[2], batch[3], many[0], many[1], first];
    client.run("BEGIN");
    assert_eq!(client.column::<i64>(&format!("SELECT job_id FROM queue.claim('{q}', 100)")), expected);
    client.run("ROLLBACK");
    for job in expected {
        assert_eq!(client.column::<i64>(&format!("SELECT job_id FROM queue.claim('{q}')")), [job]);
    }
}

#[test]
fn the_order_over_all_stages_is_exact_with_more_stages_than_lanes_and_more_jobs_than_memory() {
    let (_cluster, mut client) =
        Cluster::with(&["pg_queue.max_ready = 32", "pg_queue.max_lanes = 16"]).start_with_database("app");
    client.run("SELECT queue.create('q', stages => '{a, b, c}')");
    client.run(
        "SELECT queue.enqueue('q', priority => n * 7919 % 3, stage => (ARRAY['a', 'b', 'c'])[1 + n * 104729 % 3]) \
            FROM generate_series(1, 600) AS n",
    );
    let expected: Vec<i64> = client.column("SELECT job_id FROM queue.jobs ORDER BY priority, job_id");
    let mut found = Vec::new();
    for count in [1, 2, 100, 3, 70, 64, 65].into_iter().cycle() {
        let some: Vec<i64> = client.column(&format!("SELECT job_id FROM queue.claim('q', {count})"));
        if some.is_empty() {
            break;
        }
        found.extend(some);
    }
    assert_eq!(found, expected);

    // Memory has fewer lanes than stages. Each job is found nevertheless.
    let (_cluster, mut client) = Cluster::new().conf("pg_queue.max_lanes = 2").start_with_database("app");
    client.run("SELECT queue.create('q', stages => '{a, b, c, d}')");
    client.run(
        "SELECT queue.enqueue('q', stage => (ARRAY['a', 'b', 'c', 'd'])[1 + n % 4]) FROM generate_series(1, 40) AS n",
    );
    let mut jobs: Vec<i64> = Vec::new();
    loop {
        let some: Vec<i64> = client.column("SELECT job_id FROM queue.claim('q', 7)");
        if some.is_empty() {
            break;
        }
        jobs.extend(some);
    }
    jobs.sort_unstable();
    jobs.dedup();
    assert_eq!(jobs.len(), 40);
    client.refused("SELECT queue.claim('q', wait => '5 s')", "53400");
}

#[test]
fn the_writes_of_a_worker_and_its_advance_commit_together() {
    let (mut client, q) = queue(THREE);
    let job = client.enqueue(&q);
    client.run("CREATE TABLE IF NOT EXISTS stages_effects (job_id bigint, stage text)");
    let id = client.claim(&q);
    client.run(&format!("BEGIN; INSERT INTO stages_effects VALUES ({job}, 'fetch'); SELECT queue.advance({id})"));
    let mut other = connect();
    assert_eq!(other.count(&format!("SELECT FROM queue.claim('{q}')")), 0, "not before the commit");
    other.refused(&format!("SELECT queue.advance({id})"), "55006");
    client.run("ROLLBACK");
    assert_eq!(attempts(&mut client, job), ["fetch 1 running"]);
    client.run(&format!("BEGIN; SAVEPOINT s; SELECT queue.advance({id}, 'store'); ROLLBACK TO s"));
    client.run(&format!("INSERT INTO stages_effects VALUES ({job}, 'fetch'); SELECT queue.advance({id})"));
    client.refused(&format!("SELECT queue.advance({id})"), "QJ001");
    client.run("ROLLBACK");
    client
        .run(&format!("BEGIN; INSERT INTO stages_effects VALUES ({job}, 'fetch'); SELECT queue.advance({id}); COMMIT"));
    assert_eq!(client.value::<i64>(&format!("SELECT count(*) FROM stages_effects WHERE job_id = {job}")), 1);
    assert_eq!(attempts(&mut client, job), ["fetch 1 advanced", "parse 1 ready"]);
}

#[test]
fn a_late_worker_does_not_advance() {
    let (mut client, q) = queue(&format!("{THREE}, lease => '100 ms'"));
    let job = client.enqueue(&q);
    let late = client.claim(&q);
    let again: i64 = wait::until("the job is offered again", || {
        client.column(&format!("SELECT id FROM queue.claim('{q}', lease => '1 h')")).pop()
    });
    let failure = client.refused(&format!("SELECT queue.advance({late})"), "QJ001");
    assert!(failure.detail.contains("timed out"), "{failure:?}");
    client.run(&format!("SELECT queue.advance({again})"));
    let failure = client.failure(&format!("SELECT queue.advance({again})"));
    assert!(failure.detail.contains("This attempt was advanced"), "{failure:?}");
    assert_eq!(attempts(&mut client, job), ["fetch 1 timed_out", "fetch 2 advanced", "parse 1 ready"]);
}

#[test]
fn a_worker_that_waits_for_all_stages_is_woken_by_a_job_in_any() {
    let (mut client, q) = queue(THREE);
    for stage in ["fetch", "parse", "store"] {
        let sql = format!("SELECT stage FROM queue.claim('{q}', wait => '10 s')");
        let waiting = asleep::<String>(&mut client, connect(), sql);
        match stage {
            "fetch" => drop(client.enqueue(&q)),
            // The running attempt of the previous stage advances.
            _ => {
                let id: i64 = client
                    .value(&format!("SELECT id FROM queue.attempts WHERE queue_name = '{q}' AND state = 'running'"));
                client.run(&format!("SELECT queue.advance({id})"));
            }
        }
        assert_eq!(waiting.join().unwrap(), [stage]);
    }
    // A session that waits for another stage sleeps on. `CALL queue.wait` waits for all stages.
    let mut session = connect();
    let pid = session.pid();
    let sql = format!("SELECT stage FROM queue.claim('{q}', wait => '10 s', stage => 'parse')");
    let waiting = asleep::<String>(&mut client, session, sql);
    client.enqueue(&q);
    let has_jobs: bool = client.value(&format!("CALL queue.wait('{q}', '5 s')"));
    assert!(has_jobs);
    wait_asleep(&mut client, pid);
    client.run(&format!("SELECT queue.enqueue('{q}', stage => 'parse')"));
    assert_eq!(waiting.join().unwrap(), ["parse"]);

    // A stage that was added during the sleep also wakes the session.
    client.claim(&q);
    let sql = format!("SELECT stage FROM queue.claim('{q}', wait => '10 s')");
    let waiting = asleep::<String>(&mut client, connect(), sql);
    client.run(&format!("SELECT queue.alter('{q}', stages => '{{fetch, parse, store, ship}}')"));
    client.run(&format!("SELECT queue.enqueue('{q}', stage => 'ship')"));
    assert_eq!(waiting.join().unwrap(), ["ship"]);
}

#[test]
fn a_claim_of_several_stages_takes_their_jobs_only() {
    let (mut client, q) = queue(THREE);
    let (_, other) = queue("stages => '{a, b}'");
    let (_, plain) = queue("");
    for (name, stage) in [(&q, "'fetch'"), (&q, "'store'"), (&q, "'parse'"), (&other, "'a'"), (&other, "'b'")] {
        client.run(&format!("SELECT queue.enqueue('{name}', stage => {stage})"));
    }
    client.run(&format!("SELECT queue.enqueue('{plain}')"));
    let mut other_client = connect();
    let mut claim = |names: &[&String], stages: &str| -> Vec<(String, Option<String>)> {
        let names: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
        let sql = format!(
            "SELECT queue_name, stage FROM queue.claim_any('{{{}}}', 9, stages => '{{{stages}}}')",
            names.join(",")
        );
        other_client.rows(&sql)
    };
    let of = |name: &String, stage: &str| (name.clone(), Some(stage.to_owned()));
    // The first named queue and stage that has a job is served.
    assert_eq!(claim(&[&other, &q, &other, &q], "b,fetch,b,store"), [of(&other, "b")]);
    assert_eq!(claim(&[&other, &q, &other, &q], "b,fetch,b,store"), [of(&q, "fetch"), of(&q, "store")]);
    assert_eq!(claim(&[&other, &q, &other, &q], "b,fetch,b,store"), []);
    // NULL means all stages, even beside a named stage.
    assert_eq!(claim(&[&plain, &q, &q], "NULL,fetch,NULL"), [(plain.clone(), None)]);
    assert_eq!(claim(&[&plain, &q, &q], "NULL,fetch,NULL"), [of(&q, "parse")]);
    assert_eq!(claim(&[&q, &other], "fetch,NULL"), [of(&other, "a")]);
    // A queue without the named stages does not hide the jobs of another queue.
    assert_eq!(claim(&[&q, &plain, &other], "none,parse,b"), []);
    client.run(&format!("SELECT queue.enqueue('{other}', stage => 'b')"));
    assert_eq!(claim(&[&q, &plain, &other], "none,parse,b"), [of(&other, "b")]);
}

#[test]
fn a_claim_of_several_stages_sleeps_until_one_of_them_has_a_job() {
    let (mut client, q) = queue(THREE);
    let database: String = client.value("SELECT current_database()");
    let (mut session, notices) = listening(&database);
    let pid = session.pid();
    let sql = format!(
        "SELECT stage FROM queue.claim_any('{{{q},{q},{q}}}', wait => '10 s', stages => '{{fetch,store,later}}')"
    );
    let waiting = asleep::<String>(&mut client, session, sql);
    client.run(&format!("SELECT queue.enqueue('{q}', stage => 'parse')"));
    wait_asleep(&mut client, pid);
    // This stage is added after the call has begun.
    client.run(&format!("SELECT queue.alter('{q}', stages => '{{fetch, parse, store, later}}')"));
    client.run(&format!("SELECT queue.enqueue('{q}', stage => 'later')"));
    assert_eq!(waiting.join().unwrap(), ["later"]);
    assert_eq!(taken(&notices), [format!("WARNING queue \"{q}\" has no stage \"later\"")]);
    assert_eq!(client.count(&format!("SELECT FROM queue.jobs WHERE queue_name = '{q}' AND state = 'ready'")), 1);
}

#[test]
fn a_call_waits_for_at_most_64_lanes() {
    let (mut client, a) = queue("stages => ARRAY(SELECT 's' || n FROM generate_series(1, 32) AS n)");
    let (_, b) = queue("stages => ARRAY(SELECT 's' || n FROM generate_series(1, 32) AS n)");
    let failure = client.refused(&format!("SELECT queue.claim_any('{{{a}, {b}}}', wait => '1 s')"), "53400");
    assert!(failure.detail.contains("66 lanes"), "{failure:?}");
    assert_eq!(client.count(&format!("SELECT FROM queue.claim_any('{{{a}, {b}}}')")), 0);
    assert_eq!(
        client.count(&format!("SELECT FROM queue.claim_any('{{{a}, {b}}}', wait => '10 ms', stages => '{{s7,s7}}')")),
        0
    );
    client.run(&format!("SELECT queue.enqueue('{a}', stage => 's32')"));
    assert_eq!(client.count(&format!("SELECT FROM queue.claim('{a}', wait => '10 s')")), 1);
    client.run(&format!("SELECT queue.drop('{a}', force => true)"));
    client.run(&format!("SELECT queue.drop('{b}')"));
}

#[test]
fn a_job_with_a_cancellation_request_does_not_advance() {
    let (cluster, mut client) = Cluster::new().start_with_database("app");
    client.run("SELECT queue.create('q', stages => '{a, b}', lease => '1 hour')");
    let (job, forced) = (client.enqueue("q"), client.enqueue("q"));
    let ids: Vec<i64> = client.column("SELECT id FROM queue.claim('q', 2)");
    assert_eq!(client.value::<String>(&format!("SELECT queue.cancel({job}, 'enough')")), "cancelling");
    client.run(&format!("SELECT queue.advance({})", ids[1]));
    let id: i64 = client.value("SELECT id FROM queue.claim('q')");
    client.run(&format!("SELECT queue.cancel({forced}, force => true)"));
    client.refused(&format!("SELECT queue.advance({id}, 'a')"), "QJ001");
    cluster.restart_killed();
    let mut client = cluster.connect_to("app");
    client.run(&format!("SELECT queue.advance({})", ids[0]));
    assert_eq!((client.state(job), client.state(forced)), ("cancelled".into(), "cancelled".into()));
    assert_eq!(stage_of(&mut client, job).as_deref(), Some("a"));
    assert_eq!(client.count("SELECT FROM queue.claim('q')"), 0);
}

#[test]
fn the_views_distinguish_stages() {
    let (mut client, q) = queue(THREE);
    let rows = format!(
        "SELECT concat_ws(' ', stage, ready, running, enqueued, claimed, completed, failed) FROM queue.stats \
            WHERE queue_name = '{q}' ORDER BY stage"
    );
    assert_eq!(client.column::<String>(&rows), ["fetch 0 0 0 0 0 0", "parse 0 0 0 0 0 0", "store 0 0 0 0 0 0"]);
    for _ in 0..3 {
        client.enqueue(&q);
    }
    let ids: Vec<i64> = client.column(&format!("SELECT id FROM queue.claim('{q}', 2)"));
    client.run(&format!("SELECT queue.advance({}); SELECT queue.fail({}, 'no', '0')", ids[0], ids[1]));
    assert_eq!(client.column::<String>(&rows), ["fetch 2 0 3 2 1 1", "parse 1 0 0 0 0 0", "store 0 0 0 0 0 0"]);
    let id = claim_in(&mut client, &q, "parse");
    assert_eq!(client.column::<String>(&rows)[1], "parse 0 1 0 1 0 0");
    client.run(&format!("SELECT queue.advance({id})"));
    let parts: Vec<String> = client.column(&format!(
        "SELECT concat_ws(' ', stage, sum(enqueued), sum(claimed), sum(completed), sum(failed),
            bool_and(run_mean IS NOT NULL))
         FROM queue.throughput WHERE queue_name = '{q}' GROUP BY stage ORDER BY stage"
    ));
    assert_eq!(parts, ["fetch 3 2 1 1 t", "parse 0 1 1 0 t"]);
    // Counting the rows gives the same numbers.
    let counted = "SELECT string_agg(concat_ws(' ', lane, ready, running, enqueued, claimed, completed, failed), ','
        ORDER BY lane)
         FROM queue_internal.tallies(LEVEL) WHERE lane IN (SELECT lane FROM queue_internal.lane
         JOIN queue_internal.queue USING (queue_id) WHERE queue_name = 'Q') AND claimed > 0";
    let by = |level: &str| counted.replace("LEVEL", level).replace('Q', &q);
    assert_eq!(client.value::<String>(&by("true")), client.value::<String>(&by("false")));
    assert_eq!(client.value::<i64>(&format!("SELECT queue.purge('{q}')")), 3);
    client.run(&format!("SELECT queue.pause('{q}'); SELECT queue.enqueue('{q}', stage => 'store')"));
    assert_eq!(client.count(&format!("SELECT FROM queue.claim('{q}', stage => 'store')")), 0);
    client.run(&format!("SELECT queue.resume('{q}')"));
    client.refused(&format!("SELECT queue.drop('{q}')"), "55000");
    let id = claim_in(&mut client, &q, "store");
    client.run(&format!("SELECT queue.drop('{q}', force => true)"));
    client.refused(&format!("SELECT queue.complete({id})"), "QJ001");
    client.run(&format!("SELECT queue.create('{q}', {THREE})"));
    client.run(&format!("SELECT queue.enqueue('{q}', stage => 'store')"));
    claim_in(&mut client, &q, "store");
}

#[test]
fn a_key_holds_in_every_stage_and_new_contents_begin_anew() {
    let (mut client, q) = queue(THREE);
    let enqueue = |payload: u8, on: &str| {
        format!("SELECT queue.enqueue('{q}', '{payload}', unique_key => 'k', on_duplicate => '{on}')")
    };
    let job: i64 = client.value(&enqueue(1, "skip"));
    let id = client.claim(&q);
    client.run(&format!("SELECT queue.advance({id})"));
    assert_eq!(client.value::<i64>(&enqueue(2, "skip")), job);
    client.refused(&enqueue(2, "error"), "23505");
    assert_eq!(stage_of(&mut client, job).as_deref(), Some("parse"));
    // While the job waits, the enqueue takes effect immediately.
    assert_eq!(client.value::<i64>(&enqueue(3, "replace")), job);
    assert_eq!(stage_of(&mut client, job).as_deref(), Some("fetch"));
    let id = client.claim(&q);
    client.run(&format!("SELECT queue.advance({id}, 'store')"));
    let id = claim_in(&mut client, &q, "store");
    // While the job runs, the enqueue takes effect after this run. Then the key is free.
    assert_eq!(client.value::<i64>(&enqueue(4, "rerun")), job);
    client.run(&format!("SELECT queue.complete({id})"));
    for (stage, verb) in [("fetch", "advance"), ("parse", "advance"), ("store", "complete")] {
        let row =
            client.query_one(&format!("SELECT id, job_id, stage, payload::text FROM queue.claim('{q}')"), &[]).unwrap();
        assert_eq!((row.get(1), row.get(2), row.get(3)), (job, stage, "4"));
        client.run(&format!("SELECT queue.{verb}({})", row.get::<_, i64>(0)));
    }
    let other: i64 = client.value(&enqueue(5, "error"));
    assert_ne!(other, job);
    // If a job with new contents advances, it starts in the first stage.
    let id = client.claim(&q);
    assert_eq!(client.value::<i64>(&enqueue(6, "rerun")), other);
    client.run(&format!("SELECT queue.advance({id})"));
    assert_eq!(stage_of(&mut client, other).as_deref(), Some("fetch"));
    let id = client.claim(&q);
    client.run(&format!("SELECT queue.advance({id}, 'store')"));
    // An ended job is retried in its last stage if its key is free.
    let id = claim_in(&mut client, &q, "store");
    client.run(&format!("SELECT queue.complete({id})"));
    let third: i64 = client.value(&enqueue(7, "skip"));
    let id = client.claim(&q);
    client.run(&format!("SELECT queue.advance({id})"));
    client.refused(&format!("SELECT queue.retry({other})"), "23505");
    assert_eq!(stage_of(&mut client, third).as_deref(), Some("parse"));
}
