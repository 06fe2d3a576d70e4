//! Stages under limits, crashes and moves, and stages that are added and removed while there are jobs.

use crate::jobs::stages::{THREE, attempts, claim_in, stage_of};
use crate::shared::*;
use crate::storage::segments;

#[test]
fn limits_hold_over_all_stages() {
    let (mut client, q) = queue(&format!("{THREE}, max_running => 2"));
    for stage in ["fetch", "parse", "store", "fetch"] {
        client.run(&format!("SELECT queue.enqueue('{q}', stage => '{stage}')"));
    }
    let first = claim_in(&mut client, &q, "fetch");
    let second = claim_in(&mut client, &q, "store");
    for stage in ["'fetch'", "'parse'", "NULL"] {
        assert_eq!(client.count(&format!("SELECT FROM queue.claim('{q}', 10, stage => {stage})")), 0, "{stage}");
    }
    // An end in one stage wakes a session that waits for a job of another stage.
    let sql = format!("SELECT id FROM queue.claim('{q}', 10, wait => '10 s', stage => 'parse')");
    let waiting = asleep::<i64>(&mut client, connect(), sql);
    client.run(&format!("SELECT queue.complete({second})"));
    assert_eq!(waiting.join().unwrap().len(), 1);
    assert_eq!(client.count(&format!("SELECT FROM queue.claim('{q}', 10)")), 0);
    // The worker's transaction advances this job and claims the next.
    client.run(&format!("BEGIN; SELECT queue.advance({first}, 'store')"));
    assert_eq!(client.count(&format!("SELECT FROM queue.claim('{q}', 10)")), 1);
    client.run("COMMIT");
    let found = client.value::<i64>(&format!("SELECT sum(running)::bigint FROM queue.stats WHERE queue_name = '{q}'"));
    assert_eq!(found, 2);

    let (mut client, q) = queue(&format!("{THREE}, rate_limit => 3, rate_period => '1 hour', max_waiting => 4"));
    for stage in ["fetch", "parse", "store", "fetch"] {
        client.run(&format!("SELECT queue.enqueue('{q}', stage => '{stage}')"));
    }
    client.refused(&format!("SELECT queue.enqueue('{q}', stage => 'store')"), "53400");
    assert_eq!(client.count(&format!("SELECT FROM queue.claim('{q}', 10)")), 3);
    assert_eq!(client.count(&format!("SELECT FROM queue.claim('{q}', 10, stage => 'fetch')")), 0);
}

#[test]
fn each_stage_has_its_own_groups_and_keeps_their_order() {
    let (mut client, q) = queue(&format!("{THREE}, strict_order => true"));
    let jobs: Vec<i64> = client.column(&format!("SELECT queue.enqueue_many('{q}', '{{1, 2, 3}}', group_key => 'g')"));
    let mut seen: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for _ in 0..9 {
        let rows = client.query(&format!("SELECT id, job_id, stage FROM queue.claim('{q}', 10)"), &[]).unwrap();
        for row in &rows {
            let (id, job, stage): (i64, i64, String) = (row.get(0), row.get(1), row.get(2));
            seen.entry(stage.clone()).or_default().push(job);
            let verb = if stage == "store" { "complete" } else { "advance" };
            client.run(&format!("SELECT queue.{verb}({id})"));
        }
        let stages: Vec<&str> = rows.iter().map(|row| row.get(2)).collect();
        let mut distinct = stages.clone();
        distinct.dedup();
        assert_eq!(stages, distinct, "one at a time in each stage");
    }
    assert_eq!(seen.len(), 3);
    assert!(seen.values().all(|order| *order == jobs), "{seen:?}");

    // A forced cancel lets the next job of the group start.
    let jobs: Vec<i64> =
        client.column(&format!("SELECT queue.enqueue_many('{q}', '{{1, 2}}', group_key => 'g', stage => 'parse')"));
    claim_in(&mut client, &q, "parse");
    assert_eq!(client.count(&format!("SELECT FROM queue.claim('{q}')")), 0);
    client.run(&format!("SELECT queue.cancel({}, force => true)", jobs[0]));
    assert_eq!(client.column::<i64>(&format!("SELECT job_id FROM queue.claim('{q}')")), [jobs[1]]);
}

#[test]
fn stages_are_added_and_removed_while_there_are_jobs() {
    let (mut client, q) = queue("");
    let before = client.enqueue(&q);
    client.run(&format!("SELECT queue.alter('{q}', {THREE})"));
    // Jobs from before the queue got stages have no stage. Claims of all stages find them.
    assert_eq!(stage_of(&mut client, before), None);
    let id = client.claim(&q);
    client.run(&format!("SELECT queue.advance({id})"));
    assert_eq!(stage_of(&mut client, before).as_deref(), Some("fetch"));
    for job in [before, client.enqueue(&q)] {
        let id = claim_in(&mut client, &q, "fetch");
        client.run(&format!("SELECT queue.advance({id})"));
        assert_eq!(stage_of(&mut client, job).as_deref(), Some("parse"));
    }
    for list in ["fetch, store", "fetch, store, pack", "parsed"] {
        let failure = client.refused(&format!("SELECT queue.alter('{q}', stages => '{{{list}}}')"), "55000");
        assert!(failure.message.contains("stage \"parse\""), "{failure:?}");
        // While memory does not know the number of jobs, the error names one of them.
        assert!(failure.detail == "Live jobs: 2." || failure.detail.contains("One of them is job"), "{failure:?}");
    }
    client.refused(&format!("SELECT queue.alter('{q}', reset => '{{stages}}')"), "55000");
    client.run(&format!("SELECT queue.alter('{q}', stages => '{{parse, pack, fetch}}')"));
    let found = client.value::<String>(&format!("SELECT stages::text FROM queue.queues WHERE queue_name = '{q}'"));
    assert_eq!(found, "{parse,pack,fetch}");
    let id = client.claim(&q);
    client.run(&format!("SELECT queue.advance({id})"));
    assert_eq!(stage_of(&mut client, before).as_deref(), Some("pack"));
    let id = claim_in(&mut client, &q, "pack");
    client.run(&format!("SELECT queue.advance({id})"));
    let id = claim_in(&mut client, &q, "fetch");
    client.run(&format!("SELECT queue.complete({id})"));
    let id = client.claim(&q);
    client.run(&format!("SELECT queue.fail({id}, 'no', fatal => true)"));
    // Without living jobs all stages can be removed. Their ended jobs are still known.
    client.run(&format!("SELECT queue.alter('{q}', reset => '{{stages}}')"));
    client.refused(&format!("SELECT queue.enqueue('{q}', stage => 'parse')"), "22023");
    assert_eq!(stage_of(&mut client, before).as_deref(), Some("fetch"));
    assert_eq!(attempts(&mut client, before).len(), 5);
    // A job whose stage was removed starts in the first stage.
    assert_eq!(client.value::<i64>(&retry_dead(&q)), 1);
    assert_eq!(
        client.value::<i64>(&format!("SELECT count(*) FROM queue.jobs WHERE queue_name = '{q}' AND stage IS NULL")),
        1
    );
    let id = client.claim(&q);
    client.run(&format!("SELECT queue.complete({id})"));
    // The stages can be added again.
    client.run(&format!("SELECT queue.alter('{q}', {THREE})"));
    client.run(&format!("SELECT queue.retry({before})"));
    assert_eq!(stage_of(&mut client, before).as_deref(), Some("fetch"));
    let id = claim_in(&mut client, &q, "fetch");
    client.run(&format!("SELECT queue.advance({id}, 'store')"));
    assert_eq!(
        client.value::<i64>(&format!(
            "SELECT enqueued::bigint FROM queue.stats WHERE queue_name = '{q}' AND stage = 'fetch'"
        )),
        1
    );
}

#[test]
fn a_stage_is_not_removed_under_an_open_transaction_nor_entered_after() {
    let (mut client, q) = queue(THREE);
    let mut producer = connect();
    producer.run(&format!("BEGIN; SELECT queue.enqueue('{q}', stage => 'store')"));
    client.refused(&format!("SELECT queue.alter('{q}', stages => '{{fetch, parse}}')"), "55000");
    producer.run("ROLLBACK");
    client.run(&format!("BEGIN; SELECT queue.alter('{q}', stages => '{{fetch, parse}}')"));
    producer.refused(&format!("SELECT queue.enqueue('{q}', stage => 'store')"), "55006");
    let id = {
        producer.enqueue(&q);
        producer.claim(&q)
    };
    producer.refused(&format!("SELECT queue.advance({id}, 'store')"), "55006");
    client.run("ROLLBACK");
    producer.run(&format!("SELECT queue.advance({id}, 'store')"));
    let id = producer.claim(&q);
    producer.run(&format!("SELECT queue.complete({id})"));
    client.run(&format!("SELECT queue.alter('{q}', stages => '{{fetch, parse}}')"));
    producer.refused(&format!("SELECT queue.enqueue('{q}', stage => 'store')"), "22023");
}

#[test]
fn jobs_in_stages_move_with_their_segments() {
    let cluster = segments::cluster(&[]);
    let mut client = cluster.connect();
    client.run(&format!("SELECT queue.alter('q', {THREE}, lease => '1 hour')"));
    client.run("SELECT queue.create('filler', retention => '0')");
    let large = "x".repeat(3000);
    let job: i64 = client.value(&format!("SELECT queue.enqueue('q', jsonb_build_object('n', '{large}'))"));
    let running: i64 = client.value("SELECT queue.enqueue('q', stage => 'store')");
    let running_id = claim_in(&mut client, "q", "store");
    // The ring turns once, so living jobs have to move.
    let turn = |client: &mut Client| {
        let until = segments::fillings(client) + 10;
        wait::until_true("the ring turns", || {
            client.run("SELECT queue.enqueue_many('filler', array_fill(jsonb '1', ARRAY[700]))");
            client.run("SELECT count(*) FROM (SELECT queue.complete(id) FROM queue.claim('filler', 1000)) AS done");
            segments::fillings(client) >= until
        });
    };
    for (stage, verb) in [("fetch", "advance"), ("parse", "advance"), ("store", "complete")] {
        turn(&mut client);
        assert_eq!(stage_of(&mut client, job).as_deref(), Some(stage));
        let row = client
            .query_one(&format!("SELECT id, length(payload ->> 'n') FROM queue.claim('q', stage => '{stage}')"), &[])
            .unwrap();
        assert_eq!(row.get::<_, i32>(1), 3000);
        let id: i64 = row.get(0);
        turn(&mut client);
        client.run(&format!("SELECT queue.{verb}({id})"));
    }
    assert_eq!(client.state(job), "completed");
    assert_eq!(client.state(running), "running");
    client.run(&format!("SELECT queue.complete({running_id})"));
    turn(&mut client);
    assert_eq!(attempts(&mut client, job), ["fetch 1 advanced", "parse 1 advanced", "store 1 completed"]);
    assert_eq!(stage_of(&mut client, job).as_deref(), Some("store"));
}

#[test]
fn a_batch_for_several_stages_fails_if_one_of_them_is_being_removed() {
    let database = Database::new();
    let (mut client, mut other) = (database.connect(), database.connect());
    create(&mut client, "q", "stages => '{a, b}'");
    other.run("BEGIN; SELECT queue.alter('q', stages => '{a}')");
    let both = r#"SELECT count(*) FROM queue.enqueue_batch('q', '[{"stage": "a"}, {"stage": "b"}]')"#;
    client.refused(both, "55006");
    other.run("COMMIT");
    client.refused(both, "22023");
    assert_eq!(client.count("SELECT FROM queue.jobs"), 0);
}

#[test]
fn lanes_of_former_stages_are_freed_and_limited() {
    let (_database, mut client) = Database::new().with_queue("q", "stages => ARRAY['first']");
    let lanes = "SELECT FROM queue_internal.lane WHERE stage IS NOT NULL";
    // Lanes of removed stages without jobs are freed.
    for n in 0..30 {
        client.run(&format!(
            "SELECT queue.alter('q', stages => ARRAY(SELECT 's{n}_' || i FROM generate_series(1, 7) AS i))"
        ));
    }
    assert_eq!(client.count(lanes), 14);
    // Lanes with a job stay, and claims find them by their stage names.
    let job: i64 = client.value("SELECT queue.enqueue('q')");
    client.run("SELECT queue.cancel(job_id) FROM queue.jobs; SELECT queue.alter('q', stages => ARRAY['last'])");
    client.run("SELECT queue.alter('q', stages => ARRAY['end']); SELECT queue.alter('q', stages => ARRAY['last'])");
    assert_eq!(client.value::<String>(&format!("SELECT stage FROM queue.job({job})")), "s29_1");
    assert!(client.count(lanes) < 14);
    // The number of lanes is limited.
    let change = |n: i64| {
        format!("SELECT queue.alter('q', stages => ARRAY(SELECT 'u{n}_' || i FROM generate_series(1, 30) AS i))")
    };
    for n in 0..34 {
        client.run(&change(n));
        client.run(&format!(
            "SELECT queue.enqueue('q', stage => 'u{n}_' || i) FROM generate_series(1, 30) AS i; SELECT queue.purge('q')"
        ));
    }
    let failure = client.failure(&change(34));
    assert_eq!((failure.code.as_str(), failure.message.as_str()), ("53400", "queue \"q\" has had too many stages"));
    // Earlier stages can be added again.
    client.run(&change(3));
}
