//! The verbs in all kinds of transactions: isolation levels, a large transaction, savepoints, PL/pgSQL's exception
//! blocks, two-phase commit.

use postgres::IsolationLevel;

use crate::shared::*;

const LEVELS: [&str; 3] = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];

fn at(level: &str) -> Client {
    let mut client = connect();
    client.run(&format!("SET default_transaction_isolation = '{}'", level.to_lowercase()));
    client
}

#[test]
fn every_verb_works_at_every_isolation_level() {
    for level in LEVELS {
        let (_, q) = queue("backoff_base => '0'");
        let mut client = at(level);
        let mut other = connect();
        let mut verb = |client: &mut Client, sql: &str| {
            // The transaction's snapshot is older than the rows that the verb must see.
            client.run("BEGIN; SELECT count(*) FROM pg_class");
            other.run(&format!("SELECT queue.enqueue('{q}')"));
            let rows: Vec<Option<String>> = client.column(sql);
            client.run("COMMIT");
            rows.into_iter().map(Option::unwrap_or_default).collect::<Vec<String>>()
        };
        let claim = format!("SELECT id::text FROM queue.claim('{q}')");
        let number = |rows: &[String]| -> i64 {
            assert_eq!(rows.len(), 1, "{level}");
            rows[0].parse().unwrap()
        };
        let id = number(&verb(&mut client, &claim));
        verb(&mut client, &format!("SELECT lease_expires_at::text FROM queue.extend({id})"));
        verb(&mut client, &format!("SELECT queue.progress({id}, '7')::text"));
        assert_eq!(
            verb(&mut client, &format!("SELECT (queue.fail({id}, 'boom') <= clock_timestamp())::text")),
            ["true"]
        );
        let id = number(&verb(&mut client, &claim));
        verb(&mut client, &format!("SELECT queue.release({id})::text"));
        let id = number(&verb(&mut client, &claim));
        assert_eq!(
            number(&verb(
                &mut client,
                &format!("SELECT id::text FROM queue.complete_many(ARRAY[{id}]) WHERE outcome = 'completed'")
            )),
            id
        );
        let job = number(&verb(&mut client, &format!("SELECT queue.enqueue('{q}')::text")));
        verb(&mut client, &format!("SELECT queue.reprioritize({job}, -1)::text"));
        verb(&mut client, &format!("SELECT queue.reschedule({job}, 'tomorrow')::text"));
        verb(&mut client, &format!("SELECT queue.retry({job})::text"));
        let id = number(&verb(&mut client, &claim));
        assert_eq!(client.value::<i64>(&format!("SELECT job_id FROM queue.attempts WHERE id = {id}")), job);
        assert_eq!(verb(&mut client, &format!("SELECT queue.cancel({job})")), ["cancelling"]);
        assert_eq!(verb(&mut client, &format!("SELECT queue.cancel({job}, force => true)")), ["cancelled"]);
        verb(&mut client, &format!("SELECT queue.retry({job})::text"));
        assert_eq!(verb(&mut client, &format!("SELECT queue.cancel({job})")), ["cancelled"]);
        if level == "READ COMMITTED" {
            verb(&mut client, &format!("SELECT queue.forget({job})::text"));
        } else {
            // The old snapshot does not see all rows that must be forgotten.
            client.refused(&format!("SELECT queue.forget({job})"), "25001");
        }
        verb(&mut client, &format!("SELECT queue.pause('{q}')::text"));
        assert!(verb(&mut client, &claim).is_empty());
        verb(&mut client, &format!("SELECT queue.resume('{q}')::text"));
        verb(&mut client, &format!("SELECT queue.alter('{q}', max_attempts => 3)::text"));
        verb(&mut client, "SELECT duty FROM queue.maintain()");
        assert!(number(&verb(&mut client, &format!("SELECT queue.purge('{q}')::text"))) > 0, "{level}");
        verb(&mut client, &format!("SELECT queue.drop('{q}', force => true)::text"));
    }
}

#[test]
fn jobs_committed_after_the_snapshot_can_be_claimed_and_completed() {
    for level in LEVELS {
        let (mut other, q) = queue("");
        let mut client = at(level);
        client.run("BEGIN; SELECT count(*) FROM pg_class");
        let job = other.enqueue(&q);
        assert_eq!(client.value::<i64>(&format!("SELECT job_id FROM queue.claim('{q}')")), job, "{level}");
        client.run("COMMIT");
        // Another session claims after this transaction's snapshot.
        client.run("BEGIN; SELECT count(*) FROM pg_class");
        let job = other.enqueue(&q);
        let id = other.claim(&q);
        client.run(&format!("SELECT queue.complete({id}); COMMIT"));
        assert_eq!(other.state(job), "completed", "{level}");
        other.refused(&format!("SELECT queue.complete({id})"), "QJ001");
    }
}

#[test]
fn concurrent_serializable_workers_never_fail_to_serialize() {
    let (mut client, q) = queue("");
    client.run(&format!("CREATE TABLE done_{q} (job_id bigint PRIMARY KEY)"));
    client.run(&format!("SELECT queue.enqueue_many('{q}', array_fill('1'::jsonb, ARRAY[200]))"));
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let q = q.clone();
            std::thread::spawn(move || {
                let mut client = connect();
                let mut done = 0;
                loop {
                    let mut transaction =
                        client.build_transaction().isolation_level(IsolationLevel::Serializable).start().unwrap();
                    let claim = format!("SELECT id, job_id FROM queue.claim('{q}', 3)");
                    let rows = transaction.query(&claim, &[]).unwrap();
                    for row in &rows {
                        let job_id: i64 = row.get(1);
                        transaction.execute(&format!("INSERT INTO done_{q} VALUES ($1)"), &[&job_id]).unwrap();
                        transaction.query("SELECT queue.complete($1)", &[&row.get::<_, i64>(0)]).unwrap();
                    }
                    transaction.commit().unwrap();
                    done += rows.len();
                    if rows.is_empty() {
                        return done;
                    }
                }
            })
        })
        .collect();
    let done: usize = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
    assert_eq!(done, 200);
    assert_eq!(client.value::<i64>(&format!("SELECT completed FROM queue.stats WHERE queue_name = '{q}'")), 200);
}

#[test]
fn claim_work_and_complete_share_a_transaction() {
    for level in LEVELS {
        let (_, q) = queue("");
        let mut client = at(level);
        let job = client.enqueue(&q);
        for end in ["ROLLBACK", "COMMIT"] {
            client.run("BEGIN");
            let id = client.claim(&q);
            client.run(&format!("SELECT queue.extend({id}, '1 hour')"));
            client.run(&format!("SELECT queue.progress({id}, '1')"));
            client.run(&format!("SELECT queue.complete({id})"));
            client.run(end);
            let state = if end == "COMMIT" { "completed" } else { "ready" };
            assert_eq!(client.state(job), state, "{level}");
        }
        assert_eq!(client.count(&format!("SELECT FROM queue.claim('{q}')")), 0);
    }
}

#[test]
fn own_jobs_cannot_be_claimed_before_their_commit() {
    let (mut client, q) = queue("");
    let mut other = connect();
    for _ in 0..2 {
        client.run("BEGIN");
        let jobs = [client.enqueue(&q), client.enqueue(&q)];
        client.run(&format!("SELECT queue.enqueue('{q}', delay => '1 us')"));
        client.run("SELECT FROM queue.maintain()");
        // Even the first claim, which reads the logs, gets no job.
        assert_eq!(client.count(&format!("SELECT FROM queue.claim('{q}')")), 0);
        assert_eq!(other.count(&format!("SELECT FROM queue.claim('{q}')")), 0);
        client.run("COMMIT");
        assert_eq!(other.column::<i64>(&format!("SELECT job_id FROM queue.claim('{q}', 2)")), jobs);
        other.maintain_until(&format!("EXISTS (SELECT FROM queue.claim('{q}'))"));
    }
}

#[test]
fn one_statement_can_claim_and_end() {
    for level in LEVELS {
        let (_, q) = queue("backoff_base => '1 day'");
        let mut client = at(level);
        let fill = format!("SELECT queue.enqueue_many('{q}', array_fill('1'::jsonb, ARRAY[150]))");
        let count = |client: &mut Client, state: &str| -> i64 {
            client.value(&format!("SELECT count(*) FROM queue.jobs WHERE queue_name = '{q}' AND state = '{state}'"))
        };
        client.run(&fill);
        assert_eq!(client.count(&format!("SELECT queue.complete(id) FROM queue.claim('{q}', 100)")), 100);
        assert_eq!((count(&mut client, "completed"), count(&mut client, "running")), (100, 0), "{level}");
        client.run(&format!("SELECT queue.fail(id, 'boom') FROM queue.claim('{q}', 50)"));
        assert_eq!(count(&mut client, "retrying"), 50);
        client.run(&fill);
        client.run(&format!("SELECT queue.complete_many(array_agg(id)) FROM queue.claim('{q}', 150)"));
        assert_eq!(count(&mut client, "completed"), 250);
        client.run(&fill);
        client.run(&format!(
            "WITH c AS MATERIALIZED (SELECT id FROM queue.claim('{q}', 10)), r AS (SELECT queue.release(id) FROM c)
             SELECT count(*) FROM r"
        ));
        assert_eq!(count(&mut client, "ready"), 150);
    }
}

#[test]
fn a_completion_in_a_rolled_back_savepoint_leaves_the_job_running() {
    let (mut client, q) = queue("");
    let mut other = connect();
    let job = client.enqueue(&q);
    let id = client.claim(&q);
    for end in ["complete($)", "fail($, 'boom')", "release($)", "complete($), queue.progress($, '1')"] {
        let sql = format!("SELECT queue.{}", end.replace('$', &id.to_string()));
        client.run("BEGIN; SAVEPOINT s");
        if end.contains("progress") {
            client.failure(&sql);
        } else {
            client.run(&sql);
            other.refused(&format!("SELECT queue.extend({id})"), "55006");
        }
        client.run("ROLLBACK TO s");
        other.run(&format!("SELECT queue.extend({id})"));
        client.run("COMMIT");
        assert_eq!(client.state(job), "running", "{end}");
        assert_eq!(client.count(&format!("SELECT FROM queue.claim('{q}')")), 0, "{end}");
    }
    client.run(&format!("SELECT queue.complete({id})"));
    assert_eq!(client.state(job), "completed");
}

#[test]
fn nested_savepoints_undo_claims_and_ends_step_by_step() {
    let (mut client, q) = queue("");
    client.run(&format!("SELECT queue.enqueue_many('{q}', array_fill('1'::jsonb, ARRAY[4]))"));
    client.run("BEGIN");
    let first = client.claim(&q);
    client.run("SAVEPOINT a");
    let second = client.claim(&q);
    client.run("SAVEPOINT b");
    let third = client.claim(&q);
    // Attempts that were claimed before a savepoint end after it. Rollbacks to savepoints undo some of these ends.
    client.run(&format!("SELECT queue.complete({first})"));
    client.run("SAVEPOINT c");
    client.run(&format!("SELECT queue.complete({second}), queue.complete({third})"));
    client.run("ROLLBACK TO c");
    client.run("RELEASE b");
    client.run(&format!("SELECT queue.complete({third})"));
    client.run("ROLLBACK TO a");
    // Only the first claim remains, and its job runs.
    let again: Vec<i64> = client.column(&format!("SELECT id FROM queue.claim('{q}', 2)"));
    assert_eq!(again, [second, third]);
    client.run(&format!("SELECT queue.complete({first}), queue.complete({second}); COMMIT"));
    let states: Vec<String> =
        client.column(&format!("SELECT state FROM queue.attempts WHERE queue_name = '{q}' ORDER BY id"));
    assert_eq!(states, ["completed", "completed", "running", "ready"]);
}

#[test]
fn cancel_and_move_can_be_rolled_back() {
    let (mut client, q) = queue("");
    let mut other = connect();
    let job = client.enqueue(&q);
    for verb in ["cancel($)", "reprioritize($, 5)", "reschedule($, 'tomorrow')", "retry($, 'tomorrow')"] {
        let sql = format!("SELECT queue.{}", verb.replace('$', &job.to_string()));
        for (begin, end) in [("BEGIN", "ROLLBACK"), ("BEGIN; SAVEPOINT s", "ROLLBACK TO s; COMMIT")] {
            client.run(begin);
            client.run(&sql);
            // Other sessions neither get the job nor wait for it.
            other.run("SET lock_timeout = '20 s'");
            assert_eq!(other.count(&format!("SELECT FROM queue.claim('{q}')")), 0, "{verb}");
            assert_eq!(other.failure(&sql).code, "55006", "{verb}");
            client.run(end);
            other.run("BEGIN");
            assert_eq!(other.value::<i64>(&format!("SELECT job_id FROM queue.claim('{q}')")), job, "{verb}");
            other.run("ROLLBACK");
        }
        assert_eq!(
            client.value::<String>(&format!("SELECT ROW(state, priority, run_at)::text FROM queue.job({job})")),
            "(ready,0,)"
        );
    }
    client.run(&format!("SELECT FROM queue.claim('{q}'); BEGIN; SELECT queue.cancel({job}); ROLLBACK"));
    assert_eq!(
        client.count(&format!(
            "SELECT FROM queue_internal.running_now() WHERE is_cancelled \
                AND id IN (SELECT id FROM queue_internal.life_of({job}) WHERE is_newest)"
        )),
        0
    );
}

#[test]
fn exception_blocks_undo_what_was_done_in_them() {
    let (mut client, q) = queue("");
    client.run(&format!("SELECT queue.enqueue_many('{q}', array_fill('1'::jsonb, ARRAY[3]))"));
    client.run(&format!(
        "DO $$
         DECLARE kept bigint; lost bigint; nested bigint;
         BEGIN
             SELECT id INTO kept FROM queue.claim('{q}');
             BEGIN
                 SELECT id INTO lost FROM queue.claim('{q}');
                 BEGIN
                     SELECT id INTO nested FROM queue.claim('{q}');
                     PERFORM queue.complete(lost);
                     PERFORM queue.complete(kept);
                     PERFORM 1 / 0;
                 EXCEPTION WHEN division_by_zero THEN
                     PERFORM queue.progress(lost, '1');
                 END;
                 PERFORM queue.fail(kept, 'boom');
                 -- An error of ours is caught as any other, by its code.
                 PERFORM queue.complete(nested);
             EXCEPTION WHEN SQLSTATE 'QJ001' THEN
                 PERFORM queue.complete(kept);
             END;
         END $$"
    ));
    let states: Vec<String> =
        client.column(&format!("SELECT state FROM queue.attempts WHERE queue_name = '{q}' ORDER BY id"));
    assert_eq!(states, ["completed", "ready", "ready"]);
    assert_eq!(connect().count(&format!("SELECT FROM queue.claim('{q}', 9)")), 2);
}

#[test]
fn an_error_anywhere_in_the_transaction_gives_everything_back() {
    let (mut client, q) = queue("");
    let (one, two) = (client.enqueue(&q), client.enqueue(&q));
    let id = client.claim(&q);
    client.run(&format!("BEGIN; SELECT queue.complete({id})"));
    client.claim(&q);
    let added = client.enqueue(&q);
    client.failure("SELECT 1 / 0");
    client.run("ROLLBACK");
    assert_eq!(client.state(one), "running");
    assert_eq!(client.value::<i64>(&format!("SELECT job_id FROM queue.claim('{q}', 9)")), two);
    assert_eq!(client.count(&format!("SELECT FROM queue.job({added})")), 0);
    client.run(&format!("SELECT queue.complete({id})"));
}

#[test]
fn a_transaction_that_has_claimed_or_ended_jobs_cannot_be_prepared() {
    let (mut client, q) = queue("");
    let waiting = client.enqueue(&q);
    client.enqueue(&q);
    client.enqueue(&q);
    client.run(&format!("SELECT queue.reprioritize({waiting}, 9)"));
    let running: i64 = client.claim(&q);
    let job: i64 = client.value(&format!("SELECT job_id FROM queue.attempts WHERE id = {running}"));
    let done = client.claim(&q);
    let ended: i64 = client.value(&format!("SELECT job_id FROM queue.attempts WHERE id = {done}"));
    client.run(&format!("SELECT queue.complete({done})"));
    for verb in [
        format!("claim('{q}')"),
        format!("claim_any(ARRAY['{q}'])"),
        format!("claim('{q}', completed => ARRAY[{running}])"),
        format!("complete({running})"),
        format!("complete_many(ARRAY[{running}])"),
        format!("fail({running}, 'boom')"),
        format!("fail_many(ARRAY[{running}], 'boom')"),
        format!("release({running})"),
        format!("release_many(ARRAY[{running}])"),
        format!(r#"end_batch('[{{"complete": {{"id": {running}}}}}]')"#),
        format!(r#"end_batch('[{{"fail": {{"id": {running}, "error": "boom"}}}}]')"#),
        format!(r#"end_batch('[{{"release": {{"id": {running}}}}}]')"#),
        format!(r#"end_batch('[{{"suspend": {{"id": {running}, "until": "epoch"}}}}]')"#),
        format!("cancel_many(ARRAY[{waiting}, {job}])"),
        format!("retry_many(ARRAY[{waiting}])"),
        format!("reprioritize_many(ARRAY[{waiting}], 1)"),
        format!("reschedule_many(ARRAY[{waiting}], 'tomorrow')"),
        format!("cancel({waiting})"),
        format!("cancel({job})"),
        format!("cancel({job}, force => true)"),
        format!("retry({waiting})"),
        format!("reprioritize({waiting}, 1)"),
        format!("reschedule({waiting}, 'tomorrow')"),
        format!("purge('{q}')"),
        format!("pause('{q}')"),
        format!("resume('{q}')"),
        format!("alter('{q}', max_attempts => 2)"),
        format!("drop('{q}', force => true)"),
    ] {
        client.run(&format!("BEGIN; SELECT FROM queue.{verb}"));
        let failure = client.failure(&format!("PREPARE TRANSACTION 'p_{q}'"));
        assert_eq!(failure.code, "0A000", "{verb}: {failure:?}");
        assert_eq!(client.state(job), "running", "{verb}");
        assert_eq!(client.state(ended), "completed", "{verb}");
        client.run("BEGIN");
        assert_eq!(client.value::<i64>(&format!("SELECT job_id FROM queue.claim('{q}')")), waiting, "{verb}");
        client.run("ROLLBACK");
        client.run(&format!("SELECT queue.extend({running})"));
    }
}

#[test]
fn prepared_jobs_can_be_claimed_once_they_are_committed() {
    let (mut client, q) = queue("");
    let kinds = [
        format!("SELECT queue.enqueue('{q}')"),
        format!("SELECT queue.enqueue_many('{q}', ARRAY['1'::jsonb])"),
        format!("SELECT queue.enqueue_batch('{q}', '[{{}}]')"),
    ];
    for (n, enqueue) in kinds.iter().enumerate() {
        for end in ["ROLLBACK", "COMMIT"] {
            let mut session = connect();
            session.run("SET pg_queue.max_wait = '1min'");
            let sql = format!("SELECT job_id FROM queue.claim('{q}', wait => '1 minute')");
            let thread = asleep::<i64>(&mut client, session, sql);
            client.run("BEGIN");
            let job: i64 = client.value(enqueue);
            client.run(&format!("PREPARE TRANSACTION '{q}_{n}'"));
            assert_eq!(client.count(&format!("SELECT FROM queue.claim('{q}')")), 0);
            // Any session may end the prepared transaction.
            let mut other = connect();
            other.run(&format!("{end} PREPARED '{q}_{n}'"));
            if end == "COMMIT" {
                wait::until_true("the sleeper woke", || thread.is_finished());
                assert_eq!(thread.join().unwrap(), [job], "{enqueue}");
            } else {
                assert_eq!(client.count(&format!("SELECT FROM queue.job({job})")), 0);
                let after = client.enqueue(&q);
                wait::until_true("the sleeper woke", || thread.is_finished());
                assert_eq!(thread.join().unwrap(), [after]);
            }
        }
    }
}

#[test]
fn a_prepared_job_with_a_delay_starts_when_it_is_due() {
    let (mut client, q) = queue("");
    client.run(&format!("BEGIN; SELECT queue.enqueue('{q}', delay => '1 ms')"));
    client.run(&format!("PREPARE TRANSACTION 'late_{q}'"));
    client.run("SELECT FROM queue.maintain()");
    client.run(&format!("COMMIT PREPARED 'late_{q}'"));
    client.maintain_until(&format!("EXISTS (SELECT FROM queue.claim('{q}'))"));
}

#[test]
fn the_view_of_one_job_agrees_with_the_view_of_all() {
    let (mut other, q) = queue("backoff_base => '0'");
    let job = other.enqueue(&q);
    let mut client = at("REPEATABLE READ");
    let one = format!("SELECT ROW(state, attempt, error)::text FROM queue.job({job})");
    let all = format!("SELECT ROW(state, attempt, error)::text FROM queue.jobs WHERE job_id = {job}");
    for expected in ["(ready,1,)", "(ready,2,boom)"] {
        client.run("BEGIN; SELECT count(*) FROM pg_class");
        // The job goes on after the snapshot was taken.
        let id = other.claim(&q);
        other.run(&format!("SELECT queue.fail({id}, 'boom')"));
        assert_eq!(client.column::<String>(&all), [expected]);
        assert_eq!(client.column::<String>(&one), [expected]);
        client.run("COMMIT");
    }
    assert_eq!(client.column::<String>(&one), ["(ready,3,boom)"]);
}

#[test]
fn a_long_transaction_sees_changes_of_the_queue() {
    let (mut other, q) = queue("");
    for level in LEVELS {
        let mut client = at(level);
        other.enqueue(&q);
        let claim = format!("SELECT max_attempts FROM queue.claim('{q}')");
        client.run("BEGIN");
        // The session has read the queue's settings before the other session changes them.
        client.run(&format!("{claim}; ROLLBACK; BEGIN; SELECT count(*) FROM pg_class"));
        other.run(&format!("SELECT queue.pause('{q}')"));
        assert_eq!(client.count(&claim), 0, "{level}");
        other.run(&format!("SELECT queue.alter('{q}', max_attempts => 77), queue.resume('{q}')"));
        assert_eq!(client.value::<i32>(&claim), 77, "{level}");
        client.run("COMMIT");
        other.run(&format!("SELECT queue.alter('{q}', reset => ARRAY['max_attempts'])"));
    }
}

#[test]
fn a_queue_exists_for_its_own_transaction_immediately_and_for_others_after_the_commit() {
    let database = Database::new();
    let (mut client, mut other) = (database.connect(), database.connect());
    client.run("BEGIN; SELECT queue.create('q')");
    client.enqueue("q");
    other.refused("SELECT queue.enqueue('q')", "42704");
    client.run("ROLLBACK");
    client.refused("SELECT queue.enqueue('q')", "42704");
    client.run("BEGIN; SELECT queue.create('q')");
    client.enqueue("q");
    client.run("COMMIT");
    other.claim("q");
    client.run("BEGIN; SELECT queue.drop('q', force => true); ROLLBACK");
    client.enqueue("q");
    other.claim("q");
    client.run("BEGIN; SELECT queue.drop('q', force => true); SELECT queue.create('q', max_attempts => 3)");
    client.enqueue("q");
    client.run("COMMIT");
    assert_eq!(other.column::<i32>("SELECT max_attempts FROM queue.claim('q', 9)"), [3]);
}

/// A rolled-back cancel of a delayed job does not make it due.
#[test]
fn a_cancel_that_is_rolled_back_leaves_a_delayed_job_delayed() {
    let (mut client, queue) = queue("");
    let job: i64 = client.value(&format!("SELECT queue.enqueue('{queue}', delay => '1 hour')"));
    for verb in ["cancel($)", "reprioritize($, 1)", "reschedule($, now() + interval '2 hours')"] {
        let mut tx = client.transaction().unwrap();
        tx.batch_execute(&format!("SELECT queue.{}", verb.replace('$', &job.to_string()))).unwrap();
        tx.rollback().unwrap();
        assert_eq!(client.count(&format!("SELECT FROM queue.claim('{queue}')")), 0, "{verb}");
    }
}
