//! Race conditions between two sessions that only a debugger could produce. A fault point holds one session in a claim,
//! an end or a commit. Meanwhile another session does what could go wrong there.

use crate::faults::held::{begin, claim_all, hold, hold_session, release};
use crate::shared::*;

/// Returns the background worker of this connection's database.
fn worker(client: &mut Client) -> i32 {
    wait::until("the worker runs", || {
        client
            .column::<i32>(
                "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND backend_type LIKE 'pg_queue%'",
            )
            .first()
            .copied()
    })
}

#[test]
fn a_job_committed_while_a_refill_reads_is_claimed_once() {
    for point in ["refill.begun", "refill.read"] {
        // Memory does not know the lane, so the claim reads the index.
        let (database, mut client) = Database::new().with_queue("q", "");
        client.run("SELECT queue.enqueue('q', delay => '1 ms') FROM generate_series(1, 3)");
        client.run("CREATE TABLE got AS SELECT job_id FROM queue.jobs LIMIT 0");
        let claim = "INSERT INTO got SELECT job_id FROM queue.claim('q', 100)";
        let held = hold(&database.name, point, claim);
        let late = client.enqueue("q");
        assert_eq!(release(held), "");
        let rest = claim_all(&mut client, "q");
        let mut all: Vec<i64> = client.column("SELECT job_id FROM got");
        all.extend(rest);
        all.sort_unstable();
        assert_eq!(all, client.column::<i64>("SELECT job_id FROM queue.jobs ORDER BY 1"), "{point}");
        assert!(all.contains(&late), "{point}");
    }
}

#[test]
fn a_claim_before_the_enqueues_callback_and_the_callback_hand_a_job_out_once() {
    let (mut client, q) = queue("");
    let held = hold("app", "commit.visible", &format!("SELECT queue.enqueue('{q}')"));
    let early = claim_all(&mut client, &q);
    assert_eq!(release(held), "");
    let mut all = early;
    all.extend(claim_all(&mut client, &q));
    assert_eq!(all, client.column::<i64>(&format!("SELECT job_id FROM queue.jobs WHERE queue_name = '{q}'")));
}

#[test]
fn an_attempt_whose_claim_is_committed_but_not_settled_is_in_use() {
    let (mut client, q) = queue("");
    let job = client.enqueue(&q);
    let held = hold("app", "commit.visible", &format!("SELECT FROM queue.claim('{q}')"));
    let id: i64 = client.value(&format!("SELECT id FROM queue.job_attempts({job})"));
    for verb in ["complete", "release", "extend"] {
        client.refused(&format!("SELECT queue.{verb}({id})"), "55006");
    }
    assert_eq!(release(held), "");
    client.run(&format!("SELECT queue.complete({id})"));
    assert_eq!(client.state(job), "completed");
}

#[test]
fn an_end_that_is_committed_but_not_settled_stands() {
    let (mut client, q) = queue("");
    let job = client.enqueue(&q);
    let id = client.claim(&q);
    let held = hold("app", "commit.visible", &format!("SELECT queue.complete({id})"));
    assert_eq!(client.state(job), "completed");
    for verb in [format!("complete({id})"), format!("fail({id}, 'no')"), format!("cancel({job}, force => true)")] {
        let failure = client.failure(&format!("SELECT queue.{verb}"));
        assert!(["55006", "55000", "QJ001"].contains(&failure.code.as_str()), "{verb}: {failure:?}");
    }
    assert_eq!(release(held), "");
    client.refused(&format!("SELECT queue.complete({id})"), "QJ001");
    assert_eq!(client.state(job), "completed");
    assert_eq!(client.value::<i64>(&format!("SELECT running FROM queue.stats WHERE queue_name = '{q}'")), 0);
}

#[test]
fn a_claim_that_is_rolled_back_but_not_settled_is_given_back_once() {
    let (mut client, q) = queue("");
    let job = client.enqueue(&q);
    let held = hold("app", "abort.begun", &format!("BEGIN; SELECT FROM queue.claim('{q}'); ROLLBACK"));
    let early = claim_all(&mut client, &q);
    assert_eq!(release(held), "");
    let mut all = early;
    all.extend(claim_all(&mut client, &q));
    assert_eq!(all, [job]);
}

#[test]
fn an_expired_lease_does_not_end_an_attempt_that_is_being_completed() {
    let (mut client, q) = queue("lease => '5 s'");
    let job = client.enqueue(&q);
    let id = client.claim(&q);
    let held = hold("app", "end.held", &format!("SELECT queue.complete({id})"));
    client.run("SELECT pg_sleep(5)");
    // Once the worker has ended another lease with a later deadline, it has also checked this one.
    client.enqueue(&q);
    client.run(&format!("SELECT FROM queue.claim('{q}', lease => '1 ms')"));
    wait::until_true("the worker has ended the later lease", || {
        let sql = format!("SELECT count(*) FROM queue.attempts WHERE queue_name = '{q}' AND state = 'timed_out'");
        client.value::<i64>(&sql) == 1
    });
    assert_eq!(release(held), "");
    assert_eq!(client.state(job), "completed");
}

#[test]
fn an_attempt_that_is_completed_while_the_worker_is_about_to_end_its_lease_is_completed() {
    let (_database, mut client) = Database::new().with_queue("q", "");
    let job = client.enqueue("q");
    let fault = server().fault_of(worker(&mut client), "expire.found", "wait");
    let id: i64 = client.value("SELECT id FROM queue.claim('q', lease => '20 ms')");
    fault.wait_reached();
    client.run(&format!("SELECT queue.complete({id})"));
    drop(fault);
    let next = client.enqueue("q");
    client.run("SELECT FROM queue.claim('q', lease => '1 ms')");
    wait::until_true("the worker has gone on", || {
        client.value::<i32>(&format!("SELECT attempt FROM queue.job({next})")) > 1
    });
    assert_eq!(client.state(job), "completed");
}

#[test]
fn a_wake_up_of_a_sleeper_that_is_terminated_goes_to_the_next() {
    let (mut client, q) = queue("");
    let sql = format!("SELECT FROM queue.claim('{q}', wait => '60 s')");
    let mut first = connect();
    let pid = first.pid();
    let held = hold_session(server(), first, "wait.listed", &sql);
    let mut second = connect();
    let second_pid = second.pid();
    let second = begin(second, sql);
    wait_asleep(&mut client, second_pid);
    // The commit wakes the first session in the list. That session does not sleep yet and never will.
    client.run(&format!("SELECT pg_terminate_backend({pid})"));
    let job = client.enqueue(&q);
    assert_eq!(release(held), "57P01");
    assert_eq!(second.join().unwrap().1, "");
    assert_eq!(client.state(job), "running");
}

#[test]
fn a_job_committed_before_a_session_stands_in_the_list_keeps_it_from_sleeping() {
    let (mut client, q) = queue("");
    let held = hold("app", "wait.begun", &format!("SELECT FROM queue.claim('{q}', wait => '60 s')"));
    let job = client.enqueue(&q);
    assert_eq!(release(held), "");
    assert_eq!(client.state(job), "running");
}

#[test]
fn a_cancel_whose_callback_comes_after_the_attempts_failure_is_served() {
    let (mut client, q) = queue("max_attempts => 5, backoff_base => '0'");
    let job = client.enqueue(&q);
    let id = client.claim(&q);
    let held = hold("app", "commit.visible", &format!("SELECT queue.cancel({job})"));
    client.run(&format!("SELECT queue.fail({id}, 'no')"));
    assert_eq!(release(held), "");
    wait::until_true("the job is cancelled", || client.state(job) == "cancelled");
}

#[test]
fn a_cancel_that_is_served_while_the_next_attempt_is_claimed_reaches_it() {
    let (database, mut client) = Database::new().with_queue("q", "max_attempts => 5, backoff_base => '0'");
    let job = client.enqueue("q");
    let id = client.claim("q");
    let fault = server().fault_of(worker(&mut client), "cancels.found", "wait");
    let mut late = database.connect();
    late.run(&format!("BEGIN; SELECT queue.cancel({job})"));
    client.run(&format!("SELECT queue.fail({id}, 'no')"));
    late.run("COMMIT");
    fault.wait_reached();
    let next = client.claim("q");
    drop(fault);
    wait::until_true("the worker is told", || {
        client.value::<bool>(&format!("SELECT is_cancelled FROM queue.extend({next})"))
    });
    client.run(&format!("SELECT queue.release({next})"));
    assert_eq!(client.state(job), "cancelled");
}

#[test]
fn a_rerun_whose_callback_comes_after_the_end_runs_once() {
    let (mut client, q) = queue("");
    let enqueue = format!("SELECT queue.enqueue('{q}', unique_key => 'k', on_duplicate => 'rerun')");
    client.run(&enqueue);
    let id = client.claim(&q);
    let held = hold("app", "commit.visible", &enqueue);
    client.run(&format!("SELECT queue.complete({id})"));
    assert_eq!(release(held), "");
    let id = wait::until("it runs once more", || {
        client.column::<i64>(&format!("SELECT id FROM queue.claim('{q}')")).first().copied()
    });
    client.run(&format!("SELECT queue.complete({id})"));
    assert!(claim_all(&mut client, &q).is_empty());
    let sql = format!("SELECT count(*) FROM queue.jobs WHERE queue_name = '{q}' AND state <> 'completed'");
    assert_eq!(client.value::<i64>(&sql), 0);
}

#[test]
fn no_job_is_lost_between_a_drops_commit_and_its_message() {
    for point in ["commit.visible", "commit.settled", "commit.untold"] {
        let (database, _client) = Database::new().with_queue("q", "");
        // This session has used the queue before.
        let mut producer = database.connect();
        producer.enqueue("q");
        let id = producer.claim("q");
        producer.run(&format!("SELECT queue.complete({id})"));
        let held = hold(&database.name, point, "SELECT queue.drop('q')");
        let failure = producer.failure("SELECT queue.enqueue('q')");
        assert!(["55006", "42704"].contains(&failure.code.as_str()), "{point}: {failure:?}");
        assert_eq!(release(held), "", "{point}");
        assert_eq!(producer.failure("SELECT queue.enqueue('q')").code, "42704", "{point}");
    }
}

#[test]
fn if_a_drop_and_an_enqueue_meet_one_of_them_is_refused() {
    for point in ["drop.watched", "row.attempt.before", "row.attempt.after", "commit.begun", "drop.unseen"] {
        let (database, mut client) = Database::new().with_queue("q", "");
        let held = hold(&database.name, point, "SELECT queue.enqueue('q')");
        let dropped = client.batch_execute("SELECT queue.drop('q')").is_ok();
        client.wait_rolled_back();
        let code = release(held);
        assert_eq!(code.is_empty(), !dropped, "{point}: the producer's {code:?}, dropped: {dropped}");
        assert_eq!(client.count("SELECT FROM queue.jobs"), usize::from(!dropped), "{point}");
    }
}

#[test]
fn a_limit_holds_while_claims_with_old_and_new_settings_meet() {
    let (database, mut client) = Database::new().with_queue("q", "max_running => 2");
    client.run("SELECT queue.enqueue('q') FROM generate_series(1, 10)");
    for point in ["claim.taken", "row.claim.after", "commit.visible"] {
        let held = hold(&database.name, point, "SELECT FROM queue.claim('q', 2)");
        client.run("SELECT queue.alter('q', max_running => 3)");
        claim_all(&mut client, "q");
        assert_eq!(release(held), "", "{point}");
        claim_all(&mut client, "q");
        let running = "SELECT count(*) FROM queue.attempts WHERE state = 'running'";
        assert_eq!(client.value::<i64>(running), 3, "{point}");
        client.run("SELECT count(queue.release(id)) FROM queue.attempts WHERE state = 'running'");
        client.run("SELECT queue.alter('q', max_running => 2)");
    }
}

#[test]
fn a_delayed_job_that_is_claimed_while_it_falls_due_runs_once() {
    for point in ["due.read", "due.sifted"] {
        let (_database, mut client) = Database::new().with_queue("q", "");
        // The job falls due while the worker is held, and a claim reads the index.
        let fault = server().fault_of(worker(&mut client), point, "wait");
        let job: i64 = client.value("SELECT queue.enqueue('q', delay => '20 ms')");
        fault.wait_reached();
        let early = claim_all(&mut client, "q");
        drop(fault);
        wait::until_true("it runs", || client.state(job) == "running" || !claim_all(&mut client, "q").is_empty());
        client.run("SELECT count(queue.complete(id)) FROM queue.attempts WHERE state = 'running'");
        assert!(claim_all(&mut client, "q").is_empty(), "{point}: {early:?}");
        assert_eq!(client.state(job), "completed", "{point}");
    }
}

/// REINDEX CONCURRENTLY waits for snapshots from before it has read the table, and for locks on the table. It does not
/// wait for a call with a younger snapshot and no lock yet.
#[test]
fn an_index_that_was_replaced_under_a_call_is_not_used() {
    // When the call opens the old index, the index is gone, or no session writes into it any more.
    for is_gone in [false, true] {
        let (database, mut client) = Database::new().with_queue("q", "");
        let job = client.enqueue("q");
        let id = client.claim("q");
        let (mut snapshot, mut locks) = (database.connect(), [database.connect(), database.connect()]);
        snapshot.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT");
        let mut builder = database.connect();
        let phase = format!("SELECT phase FROM pg_stat_progress_create_index WHERE pid = {}", builder.pid());
        let mut reaches = |wanted: &str| {
            wait::until_true(wanted, || client.column::<String>(&phase).iter().any(|phase| phase == wanted));
        };
        let built = begin(builder, "REINDEX INDEX CONCURRENTLY queue_internal.outcome_0_pkey".to_owned());
        reaches("waiting for old snapshots");
        let held = hold(&database.name, "end.held", &format!("SELECT queue.complete({id})"));
        if is_gone {
            snapshot.run("COMMIT");
            assert_eq!(built.join().unwrap().1, "");
            assert_eq!(release(held), "");
        } else {
            let lock = "BEGIN; LOCK TABLE queue_internal.outcome_0 IN ACCESS SHARE MODE";
            locks[0].run(lock);
            snapshot.run("COMMIT");
            reaches("waiting for readers before marking dead");
            locks[1].run(lock);
            locks[0].run("COMMIT");
            reaches("waiting for readers before dropping");
            assert_eq!(release(held), "");
            locks[1].run("COMMIT");
            assert_eq!(built.join().unwrap().1, "");
        }
        assert_eq!(client.state(job), "completed", "{is_gone}");
        assert_eq!(client.failure(&format!("SELECT queue.complete({id})")).code, "QJ001", "{is_gone}");
        integrity::check(&mut client);
    }
}

#[test]
fn a_claim_that_gives_up_looking_reads_the_settings_anew() {
    // Memory knows nothing of the many lanes: the claim reads each of them, and looks again.
    let stages: Vec<String> = (0..32).map(|n| format!("s{n}")).collect();
    let options = format!("max_running => 5, stages => '{{{}}}'", stages.join(","));
    for (change, expected) in [
        ("SELECT queue.alter('q', max_running => 2)", Ok(2)),
        ("SELECT queue.alter('q', reset => '{max_running}')", Ok(8)),
        ("SELECT queue.pause('q')", Ok(0)),
        ("SELECT queue.drop('q', force => true)", Err("42704")),
    ] {
        let (database, mut client) = Database::new().with_queue("q", &options);
        client.run("CREATE TABLE got AS SELECT job_id FROM queue.jobs LIMIT 0");
        let claim = "INSERT INTO got SELECT job_id FROM queue.claim('q', 100)";
        let held = hold(&database.name, "claim.in_vain", claim);
        client.run("SELECT queue.enqueue('q', stage => 's' || n) FROM generate_series(1, 8) AS n");
        client.run(change);
        assert_eq!(release(held), expected.err().unwrap_or_default(), "{change}");
        let got: i64 = client.value("SELECT count(*) FROM got");
        assert_eq!(got, expected.unwrap_or(0), "{change}");
    }
}

#[test]
fn an_attempt_whose_timeout_is_postponed_ends_as_its_worker_says() {
    for (end, expected) in [("COMMIT", "completed"), ("ROLLBACK", "running"), ("ROLLBACK", "timed_out")] {
        let (database, mut client) = Database::new().with_queue("q", "max_attempts => 5");
        client.enqueue("q");
        let pid = worker(&mut client);
        let found = server().fault_of(pid, "expire.found", "wait");
        let postponed = server().fault_of(pid, "expire.postponed", "wait");
        let id: i64 = client.value("SELECT id FROM queue.claim('q', lease => '20 ms')");
        found.wait_reached();
        // The end begins after the worker has found the lease and before it takes the job.
        let mut session = database.connect();
        session.run(&format!("BEGIN; SELECT queue.complete({id})"));
        drop(found);
        postponed.wait_reached();
        session.run(end);
        if expected == "running" {
            session.run(&format!("SELECT queue.extend({id}, '1 hour')"));
        }
        drop(postponed);
        let state = format!("SELECT state FROM queue.attempts WHERE id = {id}");
        if expected == "timed_out" {
            wait::until_true("it is looked at again", || client.value::<String>(&state) == expected);
            continue;
        }
        // The worker ends the postponed lease within a second. It ends a lease with a later deadline after it.
        let other = client.enqueue("q");
        client.run("SELECT FROM queue.claim('q', lease => '1200 ms')");
        wait::until_true("the worker has ended a later lease", || {
            client.value::<i32>(&format!("SELECT attempt FROM queue.job({other})")) > 1
        });
        assert_eq!(client.value::<String>(&state), expected);
        if expected == "running" {
            let left = format!("SELECT queue_internal.lease_expires_at({id}) > now() + '50 minutes'");
            assert!(client.value::<bool>(&left), "the lease was shortened");
        }
    }
}

#[test]
fn a_limit_holds_while_claims_with_old_and_new_stages_meet() {
    let (database, mut client) = Database::new().with_queue("q", "max_running => 4, stages => '{a}'");
    client.run("SELECT queue.enqueue('q'), queue.enqueue('q')");
    // The call has taken two jobs. It goes on with the lanes that it has read.
    let held = hold(&database.name, "claim.taken", "SELECT FROM queue.claim('q', 100)");
    client.run("SELECT queue.alter('q', stages => '{a,b}')");
    client.run("SELECT queue.enqueue('q', stage => 'b') FROM generate_series(1, 5)");
    assert_eq!(claim_all(&mut client, "q").len(), 2);
    client.run("SELECT queue.enqueue('q') FROM generate_series(1, 5)");
    assert_eq!(release(held), "");
    assert!(claim_all(&mut client, "q").is_empty());
    let running = "SELECT count(*) FROM queue.attempts WHERE state = 'running'";
    assert_eq!(client.value::<i64>(running), 4);
    client.run("SELECT count(queue.complete(id)) FROM queue.attempts WHERE state = 'running' AND stage = 'b'");
    assert_eq!(claim_all(&mut client, "q").len(), 2);
}

/// Claims and completes the jobs of a strict group one by one, in this order. `claimed` are already running.
fn go_on(client: &mut Client, queue: &str, jobs: &[i64], claimed: &[i64], what: &str) {
    for &job in jobs {
        if claimed != [job] {
            let got =
                wait::until("a job is handed out", || Some(claim_all(client, queue)).filter(|got| !got.is_empty()));
            assert_eq!(got, [job], "{what}");
        }
        assert!(claim_all(client, queue).is_empty(), "{what}: beside {job}");
        let running = format!("SELECT id FROM queue.job_attempts({job}) WHERE state = 'running'");
        client.run(&format!("SELECT queue.complete(id) FROM ({running}) AS a"));
    }
}

#[test]
fn a_claim_that_is_rolled_back_leaves_its_group_in_order() {
    let undo = "BEGIN; SAVEPOINT s; SELECT FROM queue.claim('$'); ROLLBACK TO s; COMMIT";
    let abort = "BEGIN; SELECT FROM queue.claim('$'); ROLLBACK";
    for (point, sql) in [
        ("claim.served", abort),
        ("abort.begun", abort),
        ("abort.settled", abort),
        ("savepoint.begun", undo),
        ("savepoint.settled", undo),
    ] {
        for has_failed in [false, true] {
            // Without a failed job the group has no turn of its own.
            let point = if point == "claim.served" && !has_failed { "claim.taken" } else { point };
            let (mut client, q) = queue("strict_order => true, backoff_base => '0'");
            let jobs: Vec<i64> =
                (0..3).map(|_| client.value(&format!("SELECT queue.enqueue('{q}', group_key => 'g')"))).collect();
            if has_failed {
                let id = client.claim(&q);
                client.run(&format!("SELECT queue.fail({id}, 'no')"));
            }
            let held = hold("app", point, &sql.replace('$', &q));
            let early = claim_all(&mut client, &q);
            assert!(early.is_empty() || early == jobs[..1], "{point}, {has_failed}: {early:?}");
            assert_eq!(release(held), "", "{point}");
            go_on(&mut client, &q, &jobs, &early, point);
        }
    }
}

#[test]
fn a_turn_of_a_group_after_a_rollback_keeps_the_order() {
    for point in ["turn.begun", "turn.found"] {
        let (mut client, q) = queue("strict_order => true, backoff_base => '0'");
        let enqueue = format!("SELECT queue.enqueue('{q}', group_key => 'g')");
        let jobs: [i64; 2] = [client.value(&enqueue), client.value(&enqueue)];
        // A group with a failed job starts jobs only in turns.
        let failed = client.claim(&q);
        client.run(&format!("SELECT queue.fail({failed}, 'no')"));
        client.run(&format!("CREATE TABLE got_{q} AS SELECT job_id FROM queue.jobs LIMIT 0"));
        let claim = format!("SELECT FROM queue.claim('{q}')");
        let mut session = connect();
        session.run(&format!("BEGIN; SAVEPOINT s; {claim}; ROLLBACK TO s"));
        let held = hold_session(server(), session, point, &format!("{claim}; ROLLBACK"));
        // The other session waits until the turn ends.
        let mut other = connect();
        let pid = other.pid();
        let other = begin(other, format!("INSERT INTO got_{q} SELECT job_id FROM queue.claim('{q}', 100)"));
        wait_asleep(&mut client, pid);
        assert_eq!(release(held), "", "{point}");
        assert_eq!(other.join().unwrap().1, "", "{point}");
        let early: Vec<i64> = client.column(&format!("SELECT job_id FROM got_{q}"));
        assert!(early.is_empty() || early == jobs[..1], "{point}: {early:?}");
        go_on(&mut client, &q, &jobs, &early, point);
    }
}

#[test]
fn a_change_of_a_flow_loses_no_cancel_or_seal() {
    let (database, mut client) = Database::new().with_queue("f", "");
    for point in ["row.claim.after", "row.outcome.before", "row.attempt.after", "commit.begun", "commit.visible"] {
        let flow: i64 = client.value("SELECT queue.enqueue_flow('f', '[{}]', open => true)");
        // The change looks for notes about the flow before it ends the attempt that it replaces.
        let held = hold(&database.name, point, &format!("SELECT queue.reprioritize({flow}, 3)"));
        let refused = |client: &mut Client, verb: &str| {
            client
                .query(&format!("SELECT queue.{verb}({flow})"), &[])
                .err()
                .map(|e| queue_tests::error::code(&e).to_owned())
        };
        let (sealed, cancelled) = (refused(&mut client, "seal"), refused(&mut client, "cancel"));
        // The server sends an error before it rolls back. Until the rollback the transaction's note may still commit.
        client.run("SELECT 1");
        let changed = release(held);
        // Either one of the two calls is refused, or both count.
        let in_use = |refused: &Option<String>| refused.as_deref().is_none_or(|code| code == "55006");
        assert!(in_use(&sealed) && in_use(&cancelled), "{point}: {sealed:?} {cancelled:?}");
        assert!(changed.is_empty() || cancelled.is_none(), "{point}: {changed}");
        if cancelled.is_some() {
            client.run(&format!("SELECT queue.cancel({flow})"));
        }
        wait::until_true("the flow ends", || client.state(flow) == "cancelled");
    }
}
