//! Jobs with predecessors: they are held until those have ended, then released or skipped.

use crate::shared::*;

/// Returns a database in which only `maintain` does the duties, with queue `q`.
pub fn database() -> (Database, Client) {
    let (database, mut client) =
        Database::without_worker().with_queue("q", "max_attempts => 1, lease => '1 hour', backoff_base => '0'");
    create(&mut client, "witness", "");
    (database, client)
}

/// Does the duties until the successors of all jobs that ended one by one are served.
pub fn maintain(client: &mut Client) {
    let before = client.enqueue("witness");
    let held: i64 = client.value(&format!("SELECT queue.enqueue('witness', after => '{{{before}}}', upon => 'ended')"));
    client.run(&format!("SELECT queue.cancel({before})"));
    client.maintain_until(&format!("(SELECT state FROM queue.job({held})) = 'ready'"));
    client.run(&format!("SELECT queue.cancel({held})"));
}

/// Does the duties until the successors of all purged and dropped jobs are served. The duty may pause first. Meanwhile
/// it serves single ends.
pub fn maintain_everything(client: &mut Client) {
    create(client, "gone", "");
    let before = client.enqueue("gone");
    let held: i64 = client.value(&format!("SELECT queue.enqueue('witness', after => '{{{before}}}', upon => 'ended')"));
    client.run("SELECT queue.drop('gone', force => true)");
    client.maintain_until(&format!("(SELECT state FROM queue.job({held})) = 'ready'"));
    client.run(&format!("SELECT queue.cancel({held})"));
}

/// Enqueues a job after these jobs.
pub fn after(client: &mut Client, jobs: &[i64], upon: &str) -> i64 {
    client.query_one("SELECT queue.enqueue('q', after => $1, upon => $2)", &[&jobs, &upon]).unwrap().get(0)
}

/// Ends a waiting job in the given way.
pub fn end(client: &mut Client, job: i64, how: &str) {
    if how == "skipped" {
        // A skipped job ends by the cancellation of its predecessor.
        return;
    }
    if how == "cancelled" {
        client.run(&format!("SELECT queue.cancel({job})"));
        return;
    }
    let row = client.query_one("SELECT id, job_id FROM queue.claim('q')", &[]).unwrap();
    assert_eq!(row.get::<_, i64>(1), job);
    let id: i64 = row.get(0);
    client.run(&match how {
        "completed" => format!("SELECT queue.complete({id})"),
        "dead" => format!("SELECT queue.fail({id}, 'no', fatal => true)"),
        other => panic!("{other} is no end"),
    });
}

/// Makes a job that can end as `how`. Also returns the predecessor that it needs for that, if any.
fn predecessor(client: &mut Client, how: &str) -> (i64, Option<i64>) {
    if how == "expired" {
        return (client.value("SELECT queue.enqueue('q', start_within => '1 ms')"), None);
    }
    if how == "skipped" {
        let first = client.enqueue("q");
        return (after(client, &[first], "completed"), Some(first));
    }
    (client.enqueue("q"), None)
}

/// Ends a predecessor unless it ends by itself.
fn end_predecessor(client: &mut Client, (job, first): (i64, Option<i64>), how: &str) {
    match first {
        Some(first) => {
            end(client, first, "cancelled");
            maintain(client);
            assert_eq!(client.state(job), "skipped");
        }
        None if how == "expired" => client.maintain_until(&format!("(SELECT state FROM queue.job({job})) = 'expired'")),
        None => end(client, job, how),
    }
}

/// For each kind of end: the state of the successor under each condition.
const TABLE: [(&str, [(&str, &str); 4]); 5] = [
    ("completed", [("completed", "ready"), ("any", "ready"), ("failed", "skipped"), ("ended", "ready")]),
    ("dead", [("completed", "held"), ("any", "held"), ("failed", "ready"), ("ended", "ready")]),
    ("cancelled", [("completed", "skipped"), ("any", "skipped"), ("failed", "skipped"), ("ended", "ready")]),
    ("skipped", [("completed", "skipped"), ("any", "skipped"), ("failed", "skipped"), ("ended", "ready")]),
    ("expired", [("completed", "skipped"), ("any", "skipped"), ("failed", "skipped"), ("ended", "ready")]),
];

#[test]
fn each_end_of_a_predecessor_releases_or_skips_its_successor_as_the_table_says() {
    let (_database, mut client) = database();
    for (how, row) in TABLE {
        for (upon, becomes) in row {
            let before = predecessor(&mut client, how);
            let held = after(&mut client, &[before.0], upon);
            // A job that is to expire may already have expired.
            if how != "expired" {
                maintain(&mut client);
                assert_eq!(client.state(held), "held", "after {how}, upon {upon}: it has not ended yet");
            }
            client.run("BEGIN");
            assert!(!client.column::<i64>("SELECT job_id FROM queue.claim('q', 10)").contains(&held), "{how}, {upon}");
            client.run("ROLLBACK");
            end_predecessor(&mut client, before, how);
            maintain(&mut client);
            assert_eq!(client.state(held), becomes, "after {how}, upon {upon}");
            client.run("SELECT queue.complete(id) FROM queue.claim('q', 10); SELECT queue.purge('q')");
        }
    }
}

#[test]
fn an_enqueue_after_the_end_of_its_predecessor_has_the_same_result_as_before_it() {
    let (_database, mut client) = database();
    for (how, row) in TABLE {
        for (upon, becomes) in row {
            let before = predecessor(&mut client, how);
            end_predecessor(&mut client, before, how);
            let held = after(&mut client, &[before.0], upon);
            if becomes == "ready" {
                assert_eq!(client.state(held), "ready", "after {how}, upon {upon}: at once");
            }
            maintain(&mut client);
            assert_eq!(client.state(held), becomes, "after {how}, upon {upon}");
            client.run("SELECT queue.complete(id) FROM queue.claim('q', 10); SELECT queue.purge('q')");
        }
    }
}

/// Enqueues a job that runs after this delay unless this job has ended well before.
pub fn overdue(client: &mut Client, job: i64, delay: &str) -> i64 {
    client.value(&format!("SELECT queue.enqueue('q', after => '{{{job}}}', upon => 'overdue', delay => '{delay}')"))
}

#[test]
fn an_overdue_job_runs_at_its_time_unless_all_has_ended_well_before() {
    let (_database, mut client) = database();
    let table = [
        ("completed", "skipped"),
        ("cancelled", "skipped"),
        ("skipped", "skipped"),
        ("expired", "skipped"),
        ("dead", "held"),
    ];
    for (how, becomes) in table {
        for is_late in [false, true] {
            let before = predecessor(&mut client, how);
            let mut held = 0;
            if !is_late {
                held = overdue(&mut client, before.0, "1 hour");
                assert_eq!(client.state(held), "held", "after {how}");
                if how != "expired" {
                    maintain(&mut client);
                    assert_eq!(client.state(held), "held", "after {how}");
                }
            }
            end_predecessor(&mut client, before, how);
            if is_late {
                held = overdue(&mut client, before.0, "1 hour");
            }
            maintain(&mut client);
            assert_eq!(client.state(held), becomes, "after {how}");
            if becomes == "held" {
                client.run(&format!("SELECT queue.reschedule({held}, now() - interval '1 s')"));
                maintain(&mut client);
                assert_eq!(client.state(held), "ready", "after {how}");
            }
            client.run("SELECT queue.complete(id) FROM queue.claim('q', 10); SELECT queue.purge('q')");
        }
    }
    // The successor runs while its predecessor waits. A later end of the predecessor changes nothing.
    let before = client.enqueue("q");
    let held = overdue(&mut client, before, "20 ms");
    client.maintain_until(&format!("(SELECT state FROM queue.job({held})) = 'ready'"));
    client.run(&format!("SELECT queue.cancel({before})"));
    maintain(&mut client);
    assert_eq!(client.state(held), "ready");
    // A time in the past means now.
    let before = client.enqueue("q");
    let held: i64 = client.value(&format!(
        "SELECT queue.enqueue('q', after => '{{{before}}}', upon => 'overdue', run_at => now() - interval '1 s')"
    ));
    maintain(&mut client);
    assert_eq!(client.state(held), "ready");
    client.check();
}

#[test]
fn all_of_several_predecessors_count() {
    let (_database, mut client) = database();
    for (upon, ends, becomes) in [
        ("completed", ["completed", "completed"], ["held", "ready"]),
        ("completed", ["completed", "dead"], ["held", "held"]),
        ("completed", ["dead", "cancelled"], ["held", "skipped"]),
        ("completed", ["cancelled", "completed"], ["skipped", "skipped"]),
        ("any", ["completed", "dead"], ["ready", "ready"]),
        ("any", ["cancelled", "completed"], ["held", "ready"]),
        ("any", ["dead", "completed"], ["held", "ready"]),
        ("any", ["dead", "cancelled"], ["held", "held"]),
        ("any", ["cancelled", "cancelled"], ["held", "skipped"]),
        ("failed", ["completed", "completed"], ["held", "skipped"]),
        ("failed", ["cancelled", "dead"], ["held", "ready"]),
        ("failed", ["dead", "completed"], ["ready", "ready"]),
        ("ended", ["dead", "cancelled"], ["held", "ready"]),
    ] {
        let jobs = [client.enqueue("q"), client.enqueue("q")];
        let held = after(&mut client, &[jobs[0], jobs[1], jobs[0]], upon);
        for n in 0..2 {
            if n == 1 && becomes[0] == "ready" {
                break;
            }
            end(&mut client, jobs[n], ends[n]);
            maintain(&mut client);
            assert_eq!(client.state(held), becomes[n], "{upon}: {ends:?}, {n}");
        }
        client.run("SELECT queue.complete(id) FROM queue.claim('q', 10); SELECT queue.purge('q')");
    }
}

#[test]
fn a_chain_of_one_transaction_runs_in_order() {
    let (_database, mut client) = database();
    client.run("BEGIN");
    let mut jobs = vec![client.enqueue("q")];
    for _ in 0..5 {
        let last = jobs[jobs.len() - 1];
        jobs.push(after(&mut client, &[last], "completed"));
    }
    client.run("COMMIT");
    for job in &jobs {
        maintain(&mut client);
        let claimed: Vec<(i64, i64)> = client.rows("SELECT id, job_id FROM queue.claim('q', 10)");
        assert_eq!(claimed.iter().map(|(_, job)| *job).collect::<Vec<_>>(), [*job]);
        client.run(&format!("SELECT queue.complete({})", claimed[0].0));
    }
    // The same for a chain of cancellations: each cancelled job skips the next successor.
    let first = client.enqueue("q");
    let mut last = first;
    for _ in 0..5 {
        last = after(&mut client, &[last], "completed");
    }
    client.run(&format!("SELECT queue.cancel({first})"));
    client.maintain_until(&format!("(SELECT state FROM queue.job({last})) = 'skipped'"));
    assert_eq!(client.count("SELECT FROM queue.jobs WHERE state = 'skipped'"), 5);
    let reason: String = client.value(&format!("SELECT error FROM queue.job({last})"));
    assert!(reason.ends_with("which was cancelled, was skipped or has expired"), "{reason}");
}

#[test]
fn a_retry_of_a_dead_predecessor_lets_its_successors_go_on() {
    let (_database, mut client) = database();
    let before = client.enqueue("q");
    let held = after(&mut client, &[before], "completed");
    let next = after(&mut client, &[held], "completed");
    end(&mut client, before, "dead");
    maintain(&mut client);
    assert_eq!((client.state(held), client.state(next)), ("held".into(), "held".into()));
    client.run(&format!("SELECT queue.retry({before})"));
    end(&mut client, before, "completed");
    maintain(&mut client);
    end(&mut client, held, "completed");
    maintain(&mut client);
    assert_eq!(client.state(next), "ready");
    // The predecessor completes once more. Its successor does not run again.
    client.run(&format!("SELECT queue.retry({before})"));
    client.run("SELECT queue.complete(id) FROM queue.claim('q', 10)");
    maintain(&mut client);
    assert_eq!(client.count("SELECT FROM queue.claim('q', 10)"), 0);
}

#[test]
fn a_completion_of_a_predecessor_counts_for_good() {
    let (_database, mut client) = database();
    let jobs = [client.enqueue("q"), client.enqueue("q")];
    let held = after(&mut client, &jobs, "completed");
    end(&mut client, jobs[0], "completed");
    maintain(&mut client);
    // The first predecessor completed, runs again and fails: the completion counts.
    client.run(&format!("SELECT queue.retry({}); SELECT queue.cancel({})", jobs[0], jobs[0]));
    maintain(&mut client);
    assert_eq!(client.state(held), "held");
    end(&mut client, jobs[1], "completed");
    maintain(&mut client);
    assert_eq!(client.state(held), "ready");
}

#[test]
fn a_held_job_keeps_its_options() {
    let (_database, mut client) = database();
    create(&mut client, "stages", "stages => '{a, b}', max_waiting => 1");
    let before = client.enqueue("q");
    let large = "x".repeat(5000);
    let held: i64 = client.value(&format!(
        "SELECT queue.enqueue('stages', jsonb_build_object('n', '{large}'), 7, headers => '{{\"h\": 1}}',
            group_key => 'g',
             stage => 'b', max_attempts => 4, lease => '1 min', unique_key => 'k', after => '{{{before}}}')"
    ));
    let told = |client: &mut Client| -> String {
        client.value(&format!("SELECT concat_ws(' ', after, upon) FROM queue.job({held})"))
    };
    assert_eq!(told(&mut client), format!("{{{before}}} completed"));
    // Held jobs do not count for max_waiting.
    client.run(&format!("SELECT queue.enqueue('stages', after => '{{{before}}}') FROM generate_series(1, 3)"));
    assert_eq!(
        client.value::<i64>("SELECT sum(held)::bigint FROM queue.stats WHERE queue_name = 'stages' AND stage = 'a'"),
        4
    );
    assert_eq!(client.value::<i64>("SELECT enqueued FROM queue.stats WHERE queue_name = 'stages' AND stage = 'a'"), 4);
    assert_eq!(client.count("SELECT FROM queue.claim('stages', 10)"), 0);
    end(&mut client, before, "completed");
    maintain(&mut client);
    assert_eq!(client.value::<i64>("SELECT sum(held)::bigint FROM queue.stats WHERE queue_name = 'stages'"), 0);
    assert_eq!(client.value::<i64>("SELECT ready FROM queue.stats WHERE queue_name = 'stages' AND stage = 'a'"), 3);
    let row = client
        .query_one(
            "SELECT job_id, length(payload ->> 'n'), priority, headers::text, group_key, attempt, max_attempts,
                unique_key,
                    lease_expires_at < now() + interval '2 min'
             FROM queue.claim('stages', stage => 'b')",
            &[],
        )
        .unwrap();
    assert_eq!((row.get(0), row.get(1), row.get(2)), (held, 5000, 7));
    assert_eq!((row.get(3), row.get(4), row.get(5), row.get(6)), ("{\"h\": 1}", "g", 1, 4));
    assert_eq!((row.get(7), row.get(8)), ("k", true));
    assert_eq!(told(&mut client), format!("{{{before}}} completed"));
    let states: Vec<String> = client.column(&format!("SELECT state FROM queue.job_attempts({held}) ORDER BY id"));
    assert_eq!(states, ["superseded", "running"]);
}

#[test]
fn enqueue_many_and_enqueue_batch_take_after() {
    let (_database, mut client) = database();
    let before = client.enqueue("q");
    let held: Vec<i64> = client.column(&format!(
        "SELECT queue.enqueue_many('q', ARRAY['1', '2', '3']::jsonb[], after => '{{{before}}}')
         UNION ALL SELECT queue.enqueue_batch('q',
         '[{{\"after\": [{before}]}}, {{\"after\": [{before}], \"upon\": \"failed\"}},
           {{\"after\": [{before}], \"upon\": \"any\"}}, {{}}]')"
    ));
    let states = |client: &mut Client| held.iter().map(|job| client.state(*job)).collect::<Vec<_>>();
    assert_eq!(states(&mut client), ["held", "held", "held", "held", "held", "held", "ready"]);
    end(&mut client, before, "completed");
    maintain(&mut client);
    assert_eq!(states(&mut client), ["ready", "ready", "ready", "ready", "skipped", "ready", "ready"]);
}

#[test]
fn wrong_values_of_after_are_refused_with_a_reason() {
    let (_database, mut client) = database();
    let before = client.enqueue("q");
    let mut fails = |arguments: &str, code: &str| {
        client.refused(&format!("SELECT queue.enqueue('q', {arguments})"), code);
    };
    fails("after => '{16000015}'", "P0002");
    fails(&format!("after => '{{{}}}'", before & !15), "22023");
    fails("after => '{7}'", "22023");
    fails("after => '{NULL}'", "22004");
    fails(&format!("after => '{{{before}}}', upon => 'done'"), "22023");
    fails("after => ARRAY(SELECT n * 16 + 15 FROM generate_series(1, 101) AS n)", "22023");
    fails("after => '{}', upon => 'never'", "22023");
    fails(&format!("after => '{{{before}}}', upon => 'overdue'"), "22023");
    let prepared = format!("BEGIN; SELECT queue.enqueue('q', after => '{{{before}}}'); PREPARE TRANSACTION 'after'");
    client.refused(&prepared, "0A000");
    client.run("ROLLBACK");
    // An empty array names no predecessors.
    let job: i64 = client.value("SELECT queue.enqueue('q', after => '{}')");
    assert_eq!(client.state(job), "ready");
    // If a predecessor is rolled back, its successors are rolled back with it.
    client.run("BEGIN; SAVEPOINT s");
    let gone = client.enqueue("q");
    client.run("ROLLBACK TO s");
    client.refused(&format!("SELECT queue.enqueue('q', after => '{{{gone}}}')"), "P0002");
    client.run("ROLLBACK");
}

#[test]
fn after_needs_a_privilege_on_the_predecessors_queue() {
    let (database, mut client) = database();
    create(&mut client, "other", "");
    client.run(&format!("CREATE ROLE after_{0} LOGIN; SELECT queue.grant('q', 'after_{0}', 'produce')", database.name));
    let before = client.enqueue("other");
    let enqueue = format!("SELECT queue.enqueue('q', after => '{{{before}}}')");
    let role = format!("SET ROLE after_{}", database.name);
    client.run(&role);
    client.refused(&enqueue, "42501");
    for privilege in ["observe", "produce"] {
        client
            .run(&format!("RESET ROLE; SELECT queue.grant('other', 'after_{}', '{privilege}'); {role}", database.name));
        client.run(&enqueue);
        client.run(&format!(
            "RESET ROLE; SELECT queue.revoke('other', 'after_{}', '{privilege}'); {role}",
            database.name
        ));
        assert_eq!(client.failure(&enqueue).code, "42501", "without {privilege}");
    }
    client.run(&format!("RESET ROLE; DROP OWNED BY after_{0}; DROP ROLE after_{0}", database.name));
}

#[test]
fn a_held_job_can_be_changed() {
    let (_database, mut client) = database();
    let before = client.enqueue("q");
    let held = after(&mut client, &[before], "completed");
    client.run(&format!(
        "SELECT queue.reprioritize({held}, -5); SELECT queue.reschedule({held}, now() + interval '1 hour')"
    ));
    assert_eq!(client.state(held), "held");
    let keyed: i64 =
        client.value(&format!("SELECT queue.enqueue('q', '1', unique_key => 'k', after => '{{{before}}}')"));
    assert_eq!(client.value::<i64>("SELECT queue.enqueue('q', '2', unique_key => 'k')"), keyed);
    let found = client.value::<i64>("SELECT queue.enqueue('q', '3', unique_key => 'k', on_duplicate => 'replace')");
    assert_eq!(found, keyed);
    assert_eq!(client.state(keyed), "held");
    let cancelled = after(&mut client, &[before], "completed");
    assert_eq!(client.value::<String>(&format!("SELECT queue.cancel({cancelled})")), "cancelled");
    // A retry by hand releases a held job.
    let retried = after(&mut client, &[before], "completed");
    client.run(&format!("SELECT queue.retry({retried})"));
    assert_eq!(client.state(retried), "ready");
    client.run(&format!("SELECT queue.cancel({retried})"));
    end(&mut client, before, "completed");
    maintain(&mut client);
    assert_eq!(client.state(held), "scheduled", "both must hold: the time and what it is after");
    assert_eq!(client.value::<i32>(&format!("SELECT priority FROM queue.job({held})")), -5);
    assert_eq!(client.state(keyed), "ready");
    assert_eq!(client.value::<String>(&format!("SELECT payload::text FROM queue.job({keyed})")), "3");
    assert_eq!(client.state(cancelled), "cancelled");
    // A purge cancels held jobs and skips their successors.
    let first = client.enqueue("q");
    let second = after(&mut client, &[first], "completed");
    create(&mut client, "other", "");
    let third: i64 = client.value(&format!("SELECT queue.enqueue('other', after => '{{{second}}}')"));
    client.run("SELECT queue.purge('q')");
    maintain_everything(&mut client);
    assert_eq!((client.state(second), client.state(third)), ("cancelled".into(), "skipped".into()));
    // A skipped job that is retried runs.
    client.run(&format!("SELECT queue.retry({third})"));
    assert_eq!(client.value::<i64>("SELECT job_id FROM queue.claim('other')"), third);
    client.check();
}

/// Two successors, one of them enqueued meanwhile, and a flow of the same jobs. Every other round it is enough that
/// one of the jobs completes.
#[test]
fn no_successor_is_stranded_or_runs_twice_in_any_order_of_commits() {
    const SESSIONS: usize = 8;
    let (database, mut client) = Database::new().with_queue("q", "lease => '1 hour', max_attempts => 1");
    create(&mut client, "f", "lease => '1 hour'");
    for round in 0..40_u64 {
        let upon = ["completed", "any"][round as usize % 2];
        client.run("BEGIN");
        let flow: i64 = client.value(&format!("SELECT queue.enqueue_flow('f', runs => true, upon => '{upon}')"));
        let jobs: Vec<i64> = client.column(&format!(
            "SELECT queue.enqueue_many('q', array_fill('{{}}'::jsonb, '{{{SESSIONS}}}'), flow => {flow})"
        ));
        client.run("COMMIT");
        let claimed: Vec<i64> = client.column(&format!("SELECT id FROM queue.claim('q', {SESSIONS}) ORDER BY job_id"));
        let successor = format!("SELECT queue.enqueue('f', after => ARRAY{jobs:?}, upon => '{upon}')");
        let early: i64 = client.value(&successor);
        let barrier = Barrier::new(SESSIONS + 1);
        let late: i64 = thread::scope(|scope| {
            for (n, id) in claimed.iter().enumerate() {
                let (barrier, database) = (&barrier, &database);
                scope.spawn(move || {
                    let mut random = Random::new(round * 100 + n as u64);
                    let mut session = database.connect();
                    session.run("BEGIN; SAVEPOINT s");
                    barrier.wait();
                    if random.percent(25) {
                        session.run(&format!("SELECT queue.complete({id}); ROLLBACK TO s"));
                    }
                    if random.percent(25) {
                        session.run(&format!("SELECT queue.complete({id}); ROLLBACK; BEGIN"));
                    }
                    // At least one job completes.
                    let end = match upon == "any" && n > 0 && random.percent(40) {
                        true => format!("fail({id}, 'no')"),
                        false => format!("complete({id})"),
                    };
                    session.run(&format!("SELECT queue.{end}; COMMIT"));
                });
            }
            let mut session = database.connect();
            barrier.wait();
            session.value(&successor)
        });
        let expected = BTreeSet::from([flow, early, late]);
        let mut ran: Vec<i64> = Vec::new();
        wait::until_true("all are released", || {
            ran.extend(
                client.column::<i64>("SELECT job_id FROM queue.claim('f', 10) WHERE queue.complete(id) IS NOT NULL"),
            );
            ran.len() >= expected.len()
        });
        assert_eq!((ran.len(), ran.into_iter().collect()), (expected.len(), expected), "{round}");
        assert_eq!(client.count("SELECT FROM queue.claim('f', 10)"), 0, "{round}");
    }
    client.check();
}

#[test]
fn thousands_of_successors_are_released_together() {
    let (_database, mut client) = Database::new().with_queue("q", "lease => '1 hour'");
    let before = client.enqueue("q");
    client.run(&format!(
        "SELECT count(*) FROM queue.enqueue_many('q', ARRAY(SELECT to_jsonb(n) FROM generate_series(1, 5500) AS n), \
            after => '{{{before}}}')"
    ));
    end(&mut client, before, "completed");
    wait::until_true("all are ready", || {
        client.value::<i64>("SELECT ready FROM queue.stats WHERE queue_name = 'q'") == 5500
    });
    assert_eq!(client.value::<i64>("SELECT held FROM queue.stats WHERE queue_name = 'q'"), 0);
    let order: Vec<i32> = client.column(
        "SELECT (payload #>> '{}')::int FROM queue.claim('q', 6000) WITH ORDINALITY AS c ORDER BY c.ordinality",
    );
    assert_eq!(order, (1..=5500).collect::<Vec<_>>());
}

#[test]
fn a_successor_is_released_in_each_race_with_the_end_of_its_predecessor() {
    let (database, mut client) = Database::new().with_queue("q", "lease => '1 hour'");
    create(&mut client, "living", "");
    // A fault point holds one of two sessions while the other one works. The job may already wait for the same
    // predecessor. In that case the session that ends the predecessor releases it.
    let windows = [
        ("enqueue", "after.announced"),
        ("enqueue", "after.looked"),
        ("enqueue", "commit.begun"),
        ("enqueue", "commit.visible"),
        ("complete", "commit.begun"),
        ("complete", "commit.visible"),
        ("complete", "ender.counted"),
        ("complete", "ender.written"),
    ];
    for (what, point) in windows {
        for (has_other, upon) in [(false, "completed"), (true, "completed"), (false, "any"), (true, "any")] {
            if point.starts_with("ender") && !has_other {
                continue;
            }
            let before = client.enqueue("q");
            let id = client.claim("q");
            let mut jobs = vec![before];
            if upon == "any" {
                jobs.push(client.enqueue("living"));
            }
            let enqueue = format!("SELECT queue.enqueue('q', after => ARRAY{jobs:?}, upon => '{upon}')");
            if has_other {
                client.run(&enqueue);
            }
            let mut slow = database.connect();
            let fault = server().fault_of(slow.pid(), point, "wait");
            let complete = format!("SELECT queue.complete({id})");
            let (slow_does, quick_does) = if what == "enqueue" { (&enqueue, &complete) } else { (&complete, &enqueue) };
            thread::scope(|scope| {
                let slow = scope.spawn(move || slow.run(slow_does));
                fault.wait_reached();
                client.run(quick_does);
                drop(fault);
                slow.join().unwrap();
            });
            for _ in 0..1 + i32::from(has_other) {
                let end = "SELECT queue.complete(id) FROM queue.claim('q')";
                wait::until(&format!("it runs upon {upon}, with {what} at {point}"), || {
                    client.query_opt(end, &[]).unwrap()
                });
            }
        }
    }
}
