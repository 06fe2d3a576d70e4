//! Groups: `max_running_per_group`, turns, `strict_order`.

use crate::faults::held::{begin, hold, release};
use crate::shared::*;

/// Claims up to this many jobs. Returns their groups and attempts in order.
pub fn claim(client: &mut Client, queue: &str, most: usize) -> Vec<(String, i64)> {
    let sql = format!("SELECT coalesce(group_key, ''), id FROM queue.claim('{queue}', {most})");
    client.rows(&sql)
}

pub fn names(claimed: &[(String, i64)]) -> Vec<&str> {
    let mut names: Vec<&str> = claimed.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    names
}

fn fill(client: &mut Client, queue: &str, group: &str, jobs: usize) {
    client.run(&format!(
        "SELECT count(*) FROM queue.enqueue_many('{queue}', array_fill('1'::jsonb, '{{{jobs}}}'), \
            group_key => '{group}')"
    ));
}

pub fn complete(client: &mut Client, claimed: &[(String, i64)]) {
    let ids: Vec<i64> = claimed.iter().map(|(_, id)| *id).collect();
    let done = client.query("SELECT FROM queue.complete_many($1) WHERE outcome = 'completed'", &[&ids]).unwrap();
    assert_eq!(done.len(), ids.len());
}

#[test]
fn a_group_runs_no_more_than_its_limit() {
    let (mut client, queue) = queue("max_running_per_group => 2");
    for group in ["a", "b"] {
        fill(&mut client, &queue, group, 5);
    }
    client.enqueue(&queue);
    let first = claim(&mut client, &queue, 100);
    assert_eq!(names(&first), ["", "a", "a", "b", "b"]);
    assert_eq!(claim(&mut connect(), &queue, 100), []);
    let a: Vec<_> = first.iter().filter(|(name, _)| name == "a").take(1).cloned().collect();
    complete(&mut client, &a);
    let second = claim(&mut client, &queue, 100);
    assert_eq!(names(&second), ["a"]);
    // The same call completes a job and claims the next of its group.
    let next: Vec<String> = client.column(&format!(
        "SELECT group_key FROM queue.claim('{queue}', 100, completed => ARRAY[{}]::bigint[])",
        second[0].1
    ));
    assert_eq!(next, ["a"]);
}

#[test]
fn within_a_group_the_order_is_kept() {
    let (mut client, queue) = queue("max_running_per_group => 1");
    for (n, priority) in [(1, 5), (2, 5), (3, 0), (4, 5), (5, 0)] {
        client.run(&format!("SELECT queue.enqueue('{queue}', '{n}', priority => {priority}, group_key => 'g')"));
    }
    let mut seen = Vec::new();
    loop {
        let rows = client.query(&format!("SELECT payload::text, id FROM queue.claim('{queue}', 10)"), &[]).unwrap();
        let [row] = &rows[..] else { break };
        seen.push(row.get::<_, String>(0));
        client.run(&format!("SELECT queue.complete({})", row.get::<_, i64>(1)));
    }
    assert_eq!(seen, ["3", "5", "1", "2", "4"]);
}

/// A turn reads more attempts of a group than may start. Before these start, they may end, move or get another
/// priority, and other jobs may come before them.
#[test]
fn attempts_read_ahead_of_a_group_follow_later_changes() {
    let (cluster, mut client) = Cluster::new().conf("autovacuum = off").start_with_extension();
    for (queue, options) in [("loose", "max_running_per_group => 1"), ("strict", "strict_order => true")] {
        create(&mut client, queue, &format!("{options}, max_attempts => 3, backoff_base => '0'"));
        let sql = format!(
            "SELECT queue.enqueue('{queue}', to_jsonb(n), group_key => 'g', priority => 5) \
             FROM generate_series(1, 30) AS n"
        );
        let jobs: Vec<i64> = client.column(&sql);
        let next = |client: &mut Client, end: &str| -> String {
            let sql = format!("SELECT id, payload::text FROM queue.claim('{queue}', 100)");
            let rows = client.query(&sql, &[]).unwrap();
            let [row] = &rows[..] else { panic!("{} jobs of one group", rows.len()) };
            client.run(&end.replace('$', &row.get::<_, i64>(0).to_string()));
            row.get(1)
        };
        let complete = "SELECT queue.complete($)";
        // The second claim has a turn, which reads ahead.
        assert_eq!(next(&mut client, complete), "1");
        assert_eq!(next(&mut client, complete), "2");
        client.run(&format!("SELECT queue.cancel({})", jobs[2]));
        client.run(&format!("SELECT queue.reprioritize({}, 9)", jobs[3]));
        client.run(&format!("SELECT queue.reprioritize({}, 1)", jobs[9]));
        assert_eq!(next(&mut client, complete), "10");
        assert_eq!(next(&mut client, complete), "5");
        client.run(&format!("SELECT queue.enqueue('{queue}', '0', group_key => 'g', priority => 0)"));
        assert_eq!(next(&mut client, complete), "0");
        // A failed job keeps its place. A job whose claim is rolled back keeps it too.
        assert_eq!(next(&mut client, "SELECT queue.fail($, 'no', '0')"), "6");
        assert_eq!(next(&mut client, complete), "6");
        client.run("BEGIN");
        assert_eq!(next(&mut client, "ROLLBACK"), "7");
        assert_eq!(next(&mut client, complete), "7");
        // Another session ends one job, and the rows move to other places.
        cluster.connect().run(&format!("SELECT queue.cancel({})", jobs[7]));
        client.run("VACUUM FULL queue_internal.attempt_0");
        assert_eq!(next(&mut client, complete), "9");
        client.run("REINDEX TABLE queue_internal.parked_0");
        assert_eq!(next(&mut client, complete), "11");
        client.run(&format!("SELECT queue.reschedule({}, now() + interval '1 hour')", jobs[11]));
        assert_eq!(next(&mut client, complete), "13");
        let rest: Vec<String> = (14..=30).map(|_| next(&mut client, complete)).collect();
        assert_eq!(rest, (14..=30).map(|n| n.to_string()).collect::<Vec<_>>());
        assert_eq!(next(&mut client, complete), "4");
        assert_eq!(claim(&mut client, queue, 100), []);
    }
    client.check();
}

/// One group has very many jobs. Two small groups come later.
#[test]
fn groups_take_turns() {
    let (_database, mut client) = Database::new().with_queue("q", "max_running_per_group => 1");
    fill(&mut client, "q", "hog", 3_000);
    for group in ["b", "c"] {
        fill(&mut client, "q", group, 20);
    }
    // First one job at a time, then two: the large group does not delay the others.
    for size in [1, 2] {
        let mut seen = [0; 3];
        for _ in 0..30 / size {
            let claimed = claim(&mut client, "q", size);
            assert_eq!(claimed.len(), size);
            for name in names(&claimed) {
                seen[["hog", "b", "c"].iter().position(|n| *n == name).unwrap()] += 1;
            }
            complete(&mut client, &claimed);
        }
        assert!(seen.iter().all(|n| (5..=20).contains(n)), "{seen:?} of hog, b, c with {size} at once");
    }
}

/// Memory holds two thousand ready jobs of a lane by default.
#[test]
fn a_blocked_group_delays_no_other_job() {
    let (_cluster, mut client) = Cluster::new().start_with_extension();
    create(&mut client, "q", "max_running_per_group => 1, lease => '1 hour'");
    fill(&mut client, "q", "blocked", 100_000);
    let blocker = claim(&mut client, "q", 10);
    assert_eq!(names(&blocker), ["blocked"]);
    let mut slowest = Duration::ZERO;
    for n in 0..300 {
        client.run(&format!("SELECT queue.enqueue('q', group_key => 'g{n}')"));
        if n % 3 == 0 {
            fill(&mut client, "q", "blocked", 10);
        }
        let start = Instant::now();
        let got = claim(&mut client, "q", 1);
        slowest = slowest.max(start.elapsed());
        assert_eq!(names(&got), [format!("g{n}")]);
        complete(&mut client, &got);
    }
    assert!(slowest < Duration::from_secs(3), "{slowest:?}");
    complete(&mut client, &blocker);
    assert_eq!(names(&claim(&mut client, "q", 10)), ["blocked"]);
}

/// More groups wait than memory has slots for. No group is forgotten, and no group runs two jobs at the same time.
#[test]
fn more_groups_than_memory_has_room_for() {
    let (_cluster, mut client) =
        Cluster::with(&["pg_queue.max_running = 40", "pg_queue.max_ready = 32", "pg_queue.max_lanes = 4"])
            .start_with_extension();
    create(&mut client, "q", "max_running_per_group => 1");
    client.run("SELECT queue.enqueue('q', group_key => 'g' || n % 500) FROM generate_series(1, 2000) AS n");
    let mut done = 0;
    while done < 2000 {
        let claimed = claim(&mut client, "q", 30);
        assert!(!claimed.is_empty(), "nothing left after {done}");
        let mut unique = names(&claimed);
        unique.dedup();
        assert_eq!(unique.len(), claimed.len(), "a group runs twice");
        complete(&mut client, &claimed);
        done += claimed.len();
    }
    assert_eq!(claim(&mut client, "q", 30), []);
}

#[test]
fn strict_order_waits_for_the_failed_job() {
    let (mut client, queue) = queue("strict_order => true, max_attempts => 3, backoff_base => '0'");
    for group in ["a", "b"] {
        for n in 0..3 {
            client
                .run(&format!("SELECT queue.enqueue('{queue}', '{n}', group_key => '{group}', priority => {})", 5 - n));
        }
    }
    let first = claim(&mut client, &queue, 10);
    assert_eq!(names(&first), ["a", "b"]);
    let of = |claimed: &[(String, i64)], name: &str| claimed.iter().find(|(n, _)| n == name).unwrap().1;
    client.run(&format!("SELECT queue.fail({}, 'no', retry_in => '1 hour')", of(&first, "a")));
    client.run(&format!("SELECT queue.complete({})", of(&first, "b")));
    // Group a waits for its retry, even if a more urgent job comes.
    client.run(&format!("SELECT queue.enqueue('{queue}', '9', group_key => 'a', priority => -100)"));
    assert_eq!(names(&claim(&mut client, &queue, 10)), ["b"]);
    let job: i64 = client.value(&format!("SELECT job_id FROM queue.attempts WHERE id = {}", of(&first, "a")));
    client.run(&format!("SELECT queue.reschedule({job}, now())"));
    let again = client.query(&format!("SELECT job_id, attempt, id FROM queue.claim('{queue}', 10)"), &[]).unwrap();
    assert_eq!(again.len(), 1);
    assert_eq!((again[0].get::<_, i64>(0), again[0].get::<_, i32>(1)), (job, 2));
    // The failed job dies. The other jobs go on, the urgent one first.
    client.run(&format!("SELECT queue.fail({}, 'no', fatal => true)", again[0].get::<_, i64>(2)));
    let payloads: Vec<String> = client.column(&format!("SELECT payload::text FROM queue.claim('{queue}', 10)"));
    assert_eq!(payloads, ["9"]);
}

#[test]
fn strict_order_survives_a_crash_and_the_failed_job_may_be_cancelled() {
    let (cluster, mut client) = Cluster::new().start_with_extension();
    create(&mut client, "q", "strict_order => true, lease => '1 hour'");
    for group in ["held", "running", "free"] {
        fill(&mut client, "q", group, 3);
    }
    let first = claim(&mut client, "q", 10);
    assert_eq!(first.len(), 3);
    let of = |name: &str| first.iter().find(|(n, _)| n == name).unwrap().1;
    client.run(&format!(
        "SELECT queue.fail({}, 'no', retry_in => '1 hour'), queue.complete({})",
        of("held"),
        of("free")
    ));
    drop(client);
    cluster.restart_killed();
    let mut client = cluster.connect();
    assert_eq!(names(&claim(&mut client, "q", 10)), ["free"]);
    let job: i64 = client.value("SELECT job_id FROM queue.jobs WHERE state = 'retrying'");
    // An uncommitted cancellation may be undone, so no job of the group starts.
    let mut canceller = cluster.connect();
    let mut tx = canceller.transaction().unwrap();
    tx.batch_execute(&format!("SELECT queue.cancel({job})")).unwrap();
    assert_eq!(claim(&mut client, "q", 10), []);
    tx.rollback().unwrap();
    assert_eq!(claim(&mut client, "q", 10), []);
    client.run(&format!("SELECT queue.cancel({job})"));
    assert_eq!(names(&claim(&mut client, "q", 10)), ["held"]);
    // The same holds for a purge.
    let running: Vec<i64> = client.column("SELECT id FROM queue.attempts WHERE state = 'running'");
    for id in running {
        client.run(&format!("SELECT queue.fail({id}, 'no', retry_in => '1 hour')"));
    }
    assert_eq!(claim(&mut client, "q", 10), []);
    client.run("SELECT queue.purge('q')");
    fill(&mut client, "q", "held", 2);
    assert_eq!(names(&claim(&mut client, "q", 10)), ["held"]);
}

/// A delayed job does not hold its group up. Only a failed job does.
#[test]
fn a_delayed_job_lets_others_of_its_group_pass() {
    let (mut client, queue) = queue("strict_order => true");
    client.run(&format!("SELECT queue.enqueue('{queue}', '1', group_key => 'g', delay => '1 hour')"));
    client.run(&format!("SELECT queue.enqueue('{queue}', '2', group_key => 'g')"));
    let payloads: Vec<String> = client.column(&format!("SELECT payload::text FROM queue.claim('{queue}', 10)"));
    assert_eq!(payloads, ["2"]);
}

/// A transaction that fails a job does not claim a later job of its group.
#[test]
fn strict_order_holds_within_one_transaction() {
    let (mut client, queue) = queue("strict_order => true");
    fill(&mut client, &queue, "g", 3);
    let mut tx = client.transaction().unwrap();
    let claim = format!("SELECT id FROM queue.claim('{queue}', 10)");
    let id: i64 = tx.query_one(&claim, &[]).unwrap().get(0);
    tx.batch_execute(&format!("SELECT queue.fail({id}, 'no', retry_in => '1 hour')")).unwrap();
    assert_eq!(tx.query(&claim, &[]).unwrap().len(), 0);
    tx.commit().unwrap();
    assert_eq!(client.count(&claim), 0);
}

/// Completes the group's running job this many times. Checks that the right job comes next each time.
fn run_on(client: &mut Client, queue: &str, running: &mut i64, next: &mut i64, times: i64) {
    for _ in 0..times {
        client.run(&format!("SELECT queue.complete({running})"));
        let row = client.query_one(&format!("SELECT id, payload::text FROM queue.claim('{queue}', 100)"), &[]).unwrap();
        assert_eq!(row.get::<_, String>(1), next.to_string());
        (*running, *next) = (row.get(0), *next + 1);
    }
}

/// Jobs that wait for their group are found by an index. Its entries are written when the jobs begin to wait, and no
/// table contains them.
#[test]
fn those_who_wait_for_their_group_outlive_everything() {
    let cluster =
        Cluster::with(&["pg_queue.segment_rows = 1000", "pg_queue.reclaim_delay = 0", "pg_queue.max_ready = 64"])
            .start();
    let mut client = cluster.connect();
    client.run("CREATE EXTENSION pg_queue; CREATE EXTENSION amcheck");
    create(&mut client, "q", "max_running_per_group => 1, lease => '1 hour'");
    create(&mut client, "other", "retention => '0'");
    client.run("SELECT queue.enqueue('q', to_jsonb(n), group_key => 'g') FROM generate_series(1, 500) AS n");
    let (mut running, mut next) = (client.claim("q"), 2);
    run_on(&mut client, "q", &mut running, &mut next, 5);
    assert!(
        client.value::<i64>(
            "SELECT sum(pg_relation_size(indexrelid))::bigint FROM pg_index
                                 WHERE indrelid::regclass::text ~ 'queue_internal.parked_[0-9]'"
        ) > 10 * 8192
    );

    // amcheck accepts all indexes, because this one has no table rows.
    let check = "SELECT count(bt_index_check(indexrelid, heapallindexed => true)) FROM pg_index AS i
                 JOIN pg_class AS t ON t.oid = i.indrelid WHERE t.relnamespace = 'queue_internal'::regnamespace
                 AND relkind = 'r'";
    assert!(client.value::<i64>(check) > 100);

    // VACUUM and REINDEX treat the index as that of a table without rows.
    for n in 0..10 {
        client.run(&format!("VACUUM (INDEX_CLEANUP ON, FREEZE, ANALYZE) queue_internal.parked_{n}"));
    }
    run_on(&mut client, "q", &mut running, &mut next, 5);
    let mut other = cluster.connect();
    for n in 0..10 {
        other.run(&format!("REINDEX INDEX queue_internal.parked_{n}_idx"));
    }
    run_on(&mut client, "q", &mut running, &mut next, 5);
    other.run("VACUUM FULL queue_internal.parked_0");
    run_on(&mut client, "q", &mut running, &mut next, 5);

    // A crash loses parked jobs from memory, but not the index.
    cluster.restart_immediate();
    client = cluster.connect();
    run_on(&mut client, "q", &mut running, &mut next, 5);
    assert!(client.value::<i64>(check) > 100);

    // The rows move to another segment.
    let young = (0..8).map(|n| {
        format!(
            "SELECT claim_{n}.id, job_id FROM queue_internal.attempt_{n} LEFT JOIN queue_internal.claim_{n} USING (id)"
        )
    });
    let left = format!(
        "SELECT count(*) FROM ({}) AS a JOIN queue.jobs AS j USING (job_id) WHERE a.id IS NULL AND j.queue_name = 'q'",
        young.collect::<Vec<_>>().join(" UNION ALL ")
    );
    // All other segments have more living jobs.
    wait::until_true("they have moved", || {
        fill(&mut client, "other", "h", 1000);
        client.run("SELECT FROM queue.maintain()");
        client.value::<i64>(&left) == 0
    });
    run_on(&mut client, "q", &mut running, &mut next, 5);
    cluster.restart();
    client = cluster.connect();
    let rest = 500 - next + 1;
    run_on(&mut client, "q", &mut running, &mut next, rest);
    client.run(&format!("SELECT queue.complete({running})"));
    assert_eq!(client.count("SELECT FROM queue.claim('q', 100)"), 0);
    assert_eq!(
        client.value::<i64>(
            "SELECT count(DISTINCT payload) FROM queue.jobs WHERE queue_name = 'q' AND state = 'completed'"
        ),
        500
    );
}

/// Most groups never have more jobs than may run. Such jobs leave no entry in the index.
#[test]
fn a_job_that_never_waits_for_its_group_has_no_index_entry() {
    let (_cluster, mut client) = Cluster::new().start_with_extension();
    create(&mut client, "q", "max_running_per_group => 1");
    client.run("SELECT queue.enqueue('q', group_key => 'g' || n) FROM generate_series(1, 1000) AS n");
    let mut done = 0;
    while done < 1000 {
        let claimed = claim(&mut client, "q", 100);
        complete(&mut client, &claimed);
        done += claimed.len();
    }
    let pages = "SELECT sum(pg_relation_size(indexrelid) / 8192)::bigint FROM pg_index
                 WHERE indrelid::regclass::text ~ 'queue_internal.parked_[0-9]'";
    assert_eq!(client.value::<i64>(pages), 10, "each has its first page, and no other");
}

/// VACUUM does not know the groups' index, so an entry may point to another row or to none.
#[test]
fn a_vacuum_of_the_attempts_leads_no_group_astray() {
    let (_cluster, mut client) = Cluster::new().start_with_extension();
    create(&mut client, "q", "strict_order => true");
    create(&mut client, "secret", "");
    client.run("SELECT queue.enqueue('q', group_key => 'g')");
    let rolled_back = |client: &mut Client, jobs: usize| {
        client.run("BEGIN");
        client.run(&format!(
            "SELECT count(*) FROM queue.enqueue_many('q', array_fill('0'::jsonb, '{{{jobs}}}'), group_key => 'g', \
                priority => 1)"
        ));
        client.run("ROLLBACK");
    };
    let mut running = client.claim("q");

    // The places now have rows of another queue.
    rolled_back(&mut client, 20);
    client.run("VACUUM queue_internal.attempt_0");
    client.run("SELECT count(*) FROM queue.enqueue_many('secret', array_fill('0'::jsonb, '{20}'))");
    let reused = "SELECT FROM queue_internal.attempt_0 WHERE ctid BETWEEN '(0,2)' AND '(0,21)' AND group_hash IS NULL";
    assert!(client.count(reused) > 10, "the rows are where others were");
    client.run(&format!("SELECT queue.complete({running})"));
    assert_eq!(claim(&mut client, "q", 100), []);
    assert_eq!(client.count("SELECT FROM queue.claim('secret', 100)"), 20);

    // The places have rows of the same group in another order.
    rolled_back(&mut client, 50);
    client.run("VACUUM queue_internal.attempt_0");
    for n in [3, 5, 1, 4, 2] {
        client.run(&format!("SELECT queue.enqueue('q', '{n}', group_key => 'g', priority => {n})"));
    }
    for n in 1..=5 {
        let rows = client.query("SELECT id, payload::text FROM queue.claim('q', 100)", &[]).unwrap();
        let found: Vec<String> = rows.iter().map(|row| row.get(1)).collect();
        assert_eq!(found, [n.to_string()]);
        running = rows[0].get(0);
        client.run(&format!("SELECT queue.complete({running})"));
    }

    // The entries point beyond the end of the table.
    client.run("SELECT queue.enqueue('q', group_key => 'g')");
    rolled_back(&mut client, 2000);
    let size = "SELECT pg_relation_size('queue_internal.attempt_0')";
    let before: i64 = client.value(size);
    client.run("VACUUM queue_internal.attempt_0");
    assert!(client.value::<i64>(size) < before, "the end was cut off");
    let last = claim(&mut client, "q", 100);
    assert_eq!(names(&last), ["g"]);
    complete(&mut client, &last);
    assert_eq!(claim(&mut client, "q", 100), []);

    // All rows move, including those of jobs with earlier attempts.
    client.run("SELECT queue.enqueue('q', to_jsonb(n), group_key => 'g') FROM generate_series(1, 300) AS n");
    client.run("SELECT queue.fail(id, 'no', '0') FROM queue.claim('q')");
    rolled_back(&mut client, 10);
    client.run("VACUUM FULL queue_internal.attempt_0");
    let (mut running, mut next) = (client.claim("q"), 2);
    run_on(&mut client, "q", &mut running, &mut next, 20);
    client.run("VACUUM FULL queue_internal.attempt_0");
    run_on(&mut client, "q", &mut running, &mut next, 279);
    client.run(&format!("SELECT queue.complete({running})"));
    assert_eq!(claim(&mut client, "q", 100), []);
    assert_eq!(client.count("SELECT FROM queue.jobs WHERE queue_name = 'q' AND state <> 'completed'"), 0);
}

/// Enqueues a job of a group. Returns its id.
pub fn enqueue(client: &mut Client, queue: &str, group: &str, priority: i32) -> i64 {
    client.value(&format!("SELECT queue.enqueue('{queue}', group_key => '{group}', priority => {priority})"))
}

#[test]
fn while_a_group_gets_its_index_entries_another_group_has_its_turn_and_no_claim_misses_a_job() {
    let (mut client, q) = queue("max_running_per_group => 1");
    let enqueue = |client: &mut Client, group: &str| {
        client.run(&format!("SELECT queue.enqueue('{q}', group_key => '{group}') FROM generate_series(1, 3)"));
    };
    enqueue(&mut client, "g");
    enqueue(&mut client, "h");
    let claimed: Vec<i64> = client.column(&format!("SELECT id FROM queue.claim('{q}', 100)"));
    assert_eq!(claimed.len(), 2);
    client.run(&format!("SELECT queue.complete({})", claimed[1]));
    // The jobs wait for the running one.
    enqueue(&mut client, "g");
    let held = hold("app", "index.filled", &format!("SELECT FROM queue.claim('{q}')"));
    client.claim(&q);
    // No other group has a turn now.
    let mut other = connect();
    let pid = other.pid();
    let other = begin(other, format!("SELECT FROM queue.claim('{q}')"));
    wait_asleep(&mut client, pid);
    assert_eq!(release(held), "");
    assert_eq!(other.join().unwrap().1, "");
    let running = format!("SELECT FROM queue.attempts WHERE queue_name = '{q}' AND state = 'running'");
    assert_eq!(client.count(&running), 2);
}
