//! Groups: `max_running_per_group`, by turns; `strict_order`.

use std::collections::HashMap;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use postgres::Client;
use queue_tests::{Cluster, wait};

use crate::random::{self, Random};
use crate::shared::{Sql, connect, create, database_with_queue, queue};

/// Claims and tells the groups of what was claimed, in order, with the attempts' ids.
fn claim(client: &mut Client, queue: &str, most: usize) -> Vec<(String, i64)> {
    let sql = format!("SELECT coalesce(group_key, ''), id FROM queue.claim('{queue}', {most})");
    client.query(&sql, &[]).unwrap().iter().map(|row| (row.get(0), row.get(1))).collect()
}

fn names(claimed: &[(String, i64)]) -> Vec<&str> {
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

fn complete(client: &mut Client, claimed: &[(String, i64)]) {
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
    // In the same call as well.
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
        let sql = format!("SELECT payload::text, id FROM queue.claim('{queue}', 10)");
        let rows = client.query(&sql, &[]).unwrap();
        let [row] = &rows[..] else { break };
        seen.push(row.get::<_, String>(0));
        client.run(&format!("SELECT queue.complete({})", row.get::<_, i64>(1)));
    }
    assert_eq!(seen, ["3", "5", "1", "2", "4"]);
}

/// A group with a great many jobs, and two small ones that come later.
#[test]
fn groups_take_turns() {
    let (_database, mut client) = database_with_queue("q", "max_running_per_group => 1");
    fill(&mut client, "q", "hog", 3_000);
    for group in ["b", "c"] {
        fill(&mut client, "q", group, 20);
    }
    // One worker, then two at a time: the hog does not keep the others waiting.
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

/// The default memory holds two thousand ready jobs of a lane.
#[test]
fn a_blocked_group_delays_nobody() {
    let cluster = Cluster::new().start();
    let mut client = cluster.connect();
    client.run("CREATE EXTENSION pg_queue");
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

/// More groups wait than memory has slots for; nobody is forgotten, none runs twice at once.
#[test]
fn more_groups_than_memory_has_room_for() {
    let lines = ["pg_queue.max_running = 40", "pg_queue.max_ready = 32", "pg_queue.max_lanes = 4"];
    let cluster = lines.iter().fold(Cluster::new(), |cluster, line| cluster.conf(line)).start();
    let mut client = cluster.connect();
    client.run("CREATE EXTENSION pg_queue");
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
fn strict_order_waits_for_the_one_that_failed() {
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
    // Group a waits for its hour, also when something more urgent comes.
    client.run(&format!("SELECT queue.enqueue('{queue}', '9', group_key => 'a', priority => -100)"));
    let second = claim(&mut client, &queue, 10);
    assert_eq!(names(&second), ["b"]);
    let job: i64 = client.value(&format!("SELECT job_id FROM queue.attempts WHERE id = {}", of(&first, "a")));
    client.run(&format!("SELECT queue.reschedule({job}, now())"));
    let again = client.query(&format!("SELECT job_id, attempt, id FROM queue.claim('{queue}', 10)"), &[]).unwrap();
    assert_eq!(again.len(), 1);
    assert_eq!((again[0].get::<_, i64>(0), again[0].get::<_, i32>(1)), (job, 2));
    // It dies: the others go on, the urgent one first.
    client.run(&format!("SELECT queue.fail({}, 'no', fatal => true)", again[0].get::<_, i64>(2)));
    let payloads: Vec<String> = client.column(&format!("SELECT payload::text FROM queue.claim('{queue}', 10)"));
    assert_eq!(payloads, ["9"]);
}

#[test]
fn strict_order_outlives_a_crash_and_what_holds_it_may_be_cancelled() {
    let cluster = Cluster::new().start();
    let mut client = cluster.connect();
    client.run("CREATE EXTENSION pg_queue");
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
    cluster.kill_server();
    cluster.start_again();
    let mut client = cluster.connect();
    let second = claim(&mut client, "q", 10);
    assert_eq!(names(&second), ["free"]);
    let job: i64 = client.value("SELECT job_id FROM queue.jobs WHERE state = 'retrying'");
    // While that is open it may be undone: so nobody goes on.
    let mut canceller = cluster.connect();
    let mut tx = canceller.transaction().unwrap();
    tx.batch_execute(&format!("SELECT queue.cancel({job})")).unwrap();
    assert_eq!(claim(&mut client, "q", 10), []);
    tx.rollback().unwrap();
    assert_eq!(claim(&mut client, "q", 10), []);
    client.run(&format!("SELECT queue.cancel({job})"));
    assert_eq!(names(&claim(&mut client, "q", 10)), ["held"]);
    // Purged: the same.
    let running: Vec<i64> = client.column("SELECT id FROM queue.attempts WHERE state = 'running'");
    for id in running {
        client.run(&format!("SELECT queue.fail({id}, 'no', retry_in => '1 hour')"));
    }
    assert_eq!(claim(&mut client, "q", 10), []);
    client.run("SELECT queue.purge('q')");
    fill(&mut client, "q", "held", 2);
    assert_eq!(names(&claim(&mut client, "q", 10)), ["held"]);
}

/// A delay of its own does not hold a group: only failure does.
#[test]
fn a_delayed_job_lets_others_of_its_group_pass() {
    let (mut client, queue) = queue("strict_order => true");
    client.run(&format!("SELECT queue.enqueue('{queue}', '1', group_key => 'g', delay => '1 hour')"));
    client.run(&format!("SELECT queue.enqueue('{queue}', '2', group_key => 'g')"));
    let payloads: Vec<String> = client.column(&format!("SELECT payload::text FROM queue.claim('{queue}', 10)"));
    assert_eq!(payloads, ["2"]);
}

/// The transaction that fails a job and claims on does not see past it.
#[test]
fn strict_order_within_one_transaction() {
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

/// Completes what runs of the only group, so many times, and sees that what comes next is the next.
fn run_on(client: &mut Client, queue: &str, running: &mut i64, next: &mut i64, times: i64) {
    for _ in 0..times {
        client.run(&format!("SELECT queue.complete({running})"));
        let row = client.query_one(&format!("SELECT id, payload::text FROM queue.claim('{queue}', 100)"), &[]).unwrap();
        assert_eq!(row.get::<_, String>(1), next.to_string());
        (*running, *next) = (row.get(0), *next + 1);
    }
}

/// What waits for its group is found by an index that is written when it has to wait; no table has it.
#[test]
fn those_who_wait_for_their_group_outlive_everything() {
    let lines = ["pg_queue.segment_rows = 1000", "pg_queue.reclaim_delay = 0", "pg_queue.max_ready = 64"];
    let cluster = lines.iter().fold(Cluster::new(), |cluster, line| cluster.conf(line)).start();
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
                                 WHERE indrelid::regclass::text ~ 'queue.parked_[0-9]'"
        ) > 10 * 8192
    );

    // The checker of Postgres misses nothing in any index, for none has to know these rows.
    let check = "SELECT count(bt_index_check(indexrelid, heapallindexed => true)) FROM pg_index AS i
                 JOIN pg_class AS t ON t.oid = i.indrelid WHERE t.relnamespace = 'queue'::regnamespace
                 AND relkind = 'r'";
    assert!(client.value::<i64>(check) > 100);

    // Somebody cleans up, and somebody builds the index anew, from a table without rows.
    for n in 0..10 {
        client.run(&format!("VACUUM (INDEX_CLEANUP ON, FREEZE, ANALYZE) queue.parked_{n}"));
    }
    run_on(&mut client, "q", &mut running, &mut next, 5);
    let mut other = cluster.connect();
    for n in 0..10 {
        other.run(&format!("REINDEX INDEX queue.parked_{n}_idx"));
    }
    run_on(&mut client, "q", &mut running, &mut next, 5);
    other.run("VACUUM FULL queue.parked_0");
    run_on(&mut client, "q", &mut running, &mut next, 5);

    // A crash forgets what was parked, but not the index.
    cluster.stop_immediate();
    cluster.start_again();
    client = cluster.connect();
    run_on(&mut client, "q", &mut running, &mut next, 5);
    assert!(client.value::<i64>(check) > 100);

    // They move to another segment.
    let young = (0..8)
        .map(|n| format!("SELECT claim_{n}.id, job_id FROM queue.attempt_{n} LEFT JOIN queue.claim_{n} USING (id)"));
    let left = format!(
        "SELECT count(*) FROM ({}) AS a JOIN queue.jobs AS j USING (job_id)
         WHERE a.id IS NULL AND j.queue_name = 'q'",
        young.collect::<Vec<_>>().join(" UNION ALL ")
    );
    // All other segments have more that lives.
    wait::until("they have moved", || {
        fill(&mut client, "other", "h", 1000);
        client.run("SELECT FROM queue.maintain()");
        (client.value::<i64>(&left) == 0).then_some(())
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

/// Most groups never have more jobs than may run: these leave no trace in the index.
#[test]
fn who_never_waits_for_his_group_pays_for_no_index() {
    let cluster = Cluster::new().start();
    let mut client = cluster.connect();
    client.run("CREATE EXTENSION pg_queue");
    create(&mut client, "q", "max_running_per_group => 1");
    client.run("SELECT queue.enqueue('q', group_key => 'g' || n) FROM generate_series(1, 1000) AS n");
    let mut done = 0;
    while done < 1000 {
        let claimed = claim(&mut client, "q", 100);
        complete(&mut client, &claimed);
        done += claimed.len();
    }
    let pages = "SELECT sum(pg_relation_size(indexrelid) / 8192)::bigint FROM pg_index
                 WHERE indrelid::regclass::text ~ 'queue.parked_[0-9]'";
    assert_eq!(client.value::<i64>(pages), 10, "each has its first page, and no other");
}

/// VACUUM knows nothing of the groups' index: what its entries point to may be another row by now, or nothing.
#[test]
fn a_vacuum_of_the_attempts_leads_no_group_astray() {
    let cluster = Cluster::new().start();
    let mut client = cluster.connect();
    client.run("CREATE EXTENSION pg_queue");
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

    // The places are another queue's.
    rolled_back(&mut client, 20);
    client.run("VACUUM queue.attempt_0");
    client.run("SELECT count(*) FROM queue.enqueue_many('secret', array_fill('0'::jsonb, '{20}'))");
    let reused = "SELECT FROM queue.attempt_0 WHERE ctid BETWEEN '(0,2)' AND '(0,21)' AND group_hash IS NULL";
    assert!(client.count(reused) > 10, "the rows are where others were");
    client.run(&format!("SELECT queue.complete({running})"));
    assert_eq!(claim(&mut client, "q", 100), []);
    assert_eq!(client.count("SELECT FROM queue.claim('secret', 100)"), 20);

    // They are the same group's, in another order.
    rolled_back(&mut client, 50);
    client.run("VACUUM queue.attempt_0");
    for n in [3, 5, 1, 4, 2] {
        let sql = format!("SELECT queue.enqueue('q', '{n}', group_key => 'g', priority => {n})");
        client.run(&sql);
    }
    for n in 1..=5 {
        let sql = "SELECT id, payload::text FROM queue.claim('q', 100)";
        let rows = client.query(sql, &[]).unwrap();
        let found: Vec<String> = rows.iter().map(|row| row.get(1)).collect();
        assert_eq!(found, [n.to_string()]);
        running = rows[0].get(0);
        client.run(&format!("SELECT queue.complete({running})"));
    }

    // They lie behind the end of the table.
    client.run("SELECT queue.enqueue('q', group_key => 'g')");
    rolled_back(&mut client, 2000);
    let size = "SELECT pg_relation_size('queue.attempt_0')";
    let before: i64 = client.value(size);
    client.run("VACUUM queue.attempt_0");
    assert!(client.value::<i64>(size) < before, "the end was cut off");
    let last = claim(&mut client, "q", 100);
    assert_eq!(names(&last), ["g"]);
    complete(&mut client, &last);
    assert_eq!(claim(&mut client, "q", 100), []);

    // All rows have other places; those of jobs that were tried before, too.
    client.run("SELECT queue.enqueue('q', to_jsonb(n), group_key => 'g') FROM generate_series(1, 300) AS n");
    client.run("SELECT queue.fail(id, 'no', '0') FROM queue.claim('q')");
    rolled_back(&mut client, 10);
    client.run("VACUUM FULL queue.attempt_0");
    let (mut running, mut next) = (client.claim("q"), 2);
    run_on(&mut client, "q", &mut running, &mut next, 20);
    client.run("VACUUM FULL queue.attempt_0");
    run_on(&mut client, "q", &mut running, &mut next, 279);
    client.run(&format!("SELECT queue.complete({running})"));
    assert_eq!(claim(&mut client, "q", 100), []);
    assert_eq!(client.count("SELECT FROM queue.jobs WHERE queue_name = 'q' AND state <> 'completed'"), 0);
}

/// The priorities of what the claims of one worker find, one after the other until there is nothing.
fn priorities(client: &mut Client, claim: &str) -> Vec<Vec<i32>> {
    let mut seen = Vec::new();
    let mut done: Vec<i64> = Vec::new();
    loop {
        let separately = !claim.contains("$1");
        let rows = if separately { client.query(claim, &[]) } else { client.query(claim, &[&done]) }.unwrap();
        if rows.is_empty() {
            return seen;
        }
        seen.push(rows.iter().map(|row| row.get("priority")).collect());
        done = rows.iter().map(|row| row.get("id")).collect();
        if separately {
            let sql = "SELECT FROM queue.complete_many($1) WHERE outcome = 'completed'";
            assert_eq!(client.query(sql, &[&done]).unwrap().len(), done.len());
        }
    }
}

/// However many others wait for their turn, and whichever of them was served last.
#[test]
fn between_groups_a_smaller_priority_comes_first() {
    for limit in ["strict_order => true", "max_running_per_group => 1", "max_running_per_group => 3"] {
        for (most, completed) in [(1, ""), (5, ""), (1, ", completed => $1"), (5, ", completed => $1")] {
            let (mut client, queue) = queue(limit);
            let case = format!("{limit}, {most}{completed}");
            let claim = format!("SELECT id, priority FROM queue.claim('{queue}', {most}{completed})");
            // Twice: the second time all groups are known.
            for _ in 0..2 {
                for (group, priority, jobs) in [("a", 0, 12), ("b", 1000, 6)] {
                    let group = if group == "a" { "'a'".to_owned() } else { format!("'{group}' || n") };
                    client.run(&format!(
                        "SELECT queue.enqueue('{queue}', priority => {priority}, group_key => {group})
                         FROM generate_series(1, {jobs}) AS n"
                    ));
                }
                let seen = priorities(&mut client, &claim);
                assert!(seen.iter().all(|rows| rows.is_sorted()), "{case}: {seen:?}");
                let all: Vec<i32> = seen.concat();
                assert_eq!(all.len(), 18, "{case}: {seen:?}");
                // Each claim takes as many of the first group as may run before it takes others.
                let per_claim = if limit.ends_with('3') { most.min(3) } else { 1 };
                let mut left = 12;
                for rows in &seen {
                    let first = rows.iter().filter(|&&priority| priority == 0).count();
                    assert_eq!(first, per_claim.min(left), "{case}: {seen:?}");
                    left -= first;
                }
            }
        }
    }
}

/// A job as its producer and its worker have seen it. What began may count from then, what returned counts.
struct Seen {
    group: u64,
    priority: i32,
    /// When its enqueue had returned.
    committed: Instant,
    /// The claim that got it.
    claim: usize,
    /// The call that completed it: a claim, if that, and when it had returned.
    ended_by: Option<usize>,
    ended: Instant,
}

/// When a claim of one job began and had returned, and the priority that it got.
struct Call {
    began: Instant,
    returned: Instant,
    priority: i32,
}

/// No job was passed over for one of a larger priority that was there when the claim began, and whose group had room
/// before and after it.
fn check_order(jobs: &HashMap<i64, Seen>, calls: &[Call], limit: usize, case: &str) {
    let mut by_group: HashMap<u64, Vec<(&i64, &Seen)>> = HashMap::new();
    for (id, job) in jobs {
        by_group.entry(job.group).or_default().push((id, job));
    }
    for (nth, call) in calls.iter().enumerate() {
        // A session that serves a group when something more urgent comes leaves the group and takes that.
        let overlaps = |other: &&Call| other.began < call.returned && other.returned > call.began;
        let others = calls.iter().enumerate().filter(|(other, _)| *other != nth).map(|(_, other)| other);
        let most_urgent = others.filter(overlaps).map(|other| other.priority).min().unwrap_or(i32::MAX);
        for members in by_group.values() {
            // What the claim completed itself makes room for it.
            let runs = |job: &Seen| {
                calls[job.claim].began < call.returned && job.ended > call.began && job.ended_by != Some(nth)
            };
            if members.iter().filter(|(_, job)| runs(job)).count() >= limit {
                continue;
            }
            let passed_over = members.iter().find(|(_, job)| {
                job.priority < call.priority
                    && job.committed < call.began
                    && calls[job.claim].began > call.returned
                    && most_urgent >= job.priority
            });
            if let Some((id, job)) = passed_over {
                panic!(
                    "{case}: claim {nth} got priority {}, and passed over job {id} of priority {} and group {}",
                    call.priority, job.priority, job.group
                );
            }
        }
    }
}

/// Producers and workers at once; some workers complete with the next claim.
#[test]
fn no_claim_passes_over_a_smaller_priority_whose_group_has_room() {
    const JOBS: usize = 600;
    const BACKLOG: usize = 200;
    let seed = random::seed("order of groups");
    for (limit, options) in
        [(1, "strict_order => true"), (1, "max_running_per_group => 1"), (2, "max_running_per_group => 2")]
    {
        let (mut client, queue) = queue(options);
        let case = format!("seed {seed}, {options}");
        let mut random = Random::new(seed);
        let enqueue = |client: &mut Client, random: &mut Random| {
            let (group, priority) = (random.below(30), random.between(-3, 3) as i32);
            let sql = format!("SELECT queue.enqueue('{queue}', priority => {priority}, group_key => 'g{group}')");
            let id: i64 = client.value(&sql);
            (id, group, priority, Instant::now())
        };
        let made: Mutex<Vec<_>> = Mutex::new((0..BACKLOG).map(|_| enqueue(&mut client, &mut random)).collect());
        let calls: Mutex<Vec<Call>> = Mutex::default();
        // Job, claim.
        let claims: Mutex<Vec<(i64, usize)>> = Mutex::default();
        // Job, the claim that completed it, when.
        let ends: Mutex<Vec<(i64, Option<usize>, Instant)>> = Mutex::default();
        thread::scope(|scope| {
            for n in 0..2 {
                let (made, enqueue) = (&made, &enqueue);
                scope.spawn(move || {
                    let (mut client, mut random) = (connect(), Random::new(seed + 1 + n));
                    for _ in 0..(JOBS - BACKLOG) / 2 {
                        let job = enqueue(&mut client, &mut random);
                        made.lock().unwrap().push(job);
                    }
                });
            }
            for n in 0..4 {
                let (calls, claims, ends, queue, case) = (&calls, &claims, &ends, &queue, &case);
                scope.spawn(move || {
                    let (mut client, mut random) = (connect(), Random::new(seed + 10 + n));
                    // Attempt and job.
                    let mut held: Vec<(i64, i64)> = Vec::new();
                    let deadline = Instant::now() + Duration::from_secs(60);
                    while ends.lock().unwrap().len() < JOBS {
                        assert!(Instant::now() < deadline, "{case}: {} have ended", ends.lock().unwrap().len());
                        let completed = if random.percent(50) { std::mem::take(&mut held) } else { Vec::new() };
                        let ids: Vec<i64> = completed.iter().map(|(id, _)| *id).collect();
                        let sql = format!("SELECT id, job_id, priority FROM queue.claim('{queue}', completed => $1)");
                        let began = Instant::now();
                        let rows = client.query(&sql, &[&ids]).unwrap();
                        let returned = Instant::now();
                        let mut nth = None;
                        if let [row] = &rows[..] {
                            let mut calls = calls.lock().unwrap();
                            nth = Some(calls.len());
                            calls.push(Call { began, returned, priority: row.get(2) });
                            claims.lock().unwrap().push((row.get(1), calls.len() - 1));
                            held.push((row.get(0), row.get(1)));
                        }
                        ends.lock().unwrap().extend(completed.iter().map(|(_, job)| (*job, nth, returned)));
                        if rows.is_empty() || held.len() > 3 {
                            for (id, job) in held.drain(..) {
                                client.run(&format!("SELECT queue.complete({id})"));
                                ends.lock().unwrap().push((job, None, Instant::now()));
                            }
                        }
                    }
                });
            }
        });
        let claims: HashMap<i64, usize> = claims.into_inner().unwrap().into_iter().collect();
        let ends = ends.into_inner().unwrap().into_iter().map(|(job, by, at)| (job, (by, at)));
        let ends: HashMap<i64, (Option<usize>, Instant)> = ends.collect();
        let jobs: HashMap<i64, Seen> = made
            .into_inner()
            .unwrap()
            .into_iter()
            .map(|(id, group, priority, committed)| {
                let (ended_by, ended) = ends[&id];
                (id, Seen { group, priority, committed, claim: claims[&id], ended_by, ended })
            })
            .collect();
        assert_eq!(jobs.len(), JOBS, "{case}");
        check_order(&jobs, &calls.into_inner().unwrap(), limit, &case);
    }
}

/// Both limits with which groups take turns.
const ONE_BY_ONE: [&str; 2] = ["strict_order => true", "max_running_per_group => 1"];

/// Enqueues a job of a group and tells its id.
fn enqueue(client: &mut Client, queue: &str, group: &str, priority: i32) -> i64 {
    client.value(&format!("SELECT queue.enqueue('{queue}', group_key => '{group}', priority => {priority})"))
}

/// Claims and completes one job after the other until there is none; tells their priorities.
fn in_order(client: &mut Client, queue: &str) -> Vec<i32> {
    priorities(client, &format!("SELECT id, priority FROM queue.claim('{queue}')")).concat()
}

#[test]
fn a_job_of_a_waiting_group_that_gets_another_priority_comes_by_that() {
    for options in ONE_BY_ONE {
        let (mut client, queue) = queue(options);
        let mut last = HashMap::new();
        for group in ["a", "b", "c"] {
            enqueue(&mut client, &queue, group, 0);
            last.insert(group, [enqueue(&mut client, &queue, group, 5), enqueue(&mut client, &queue, group, 6)]);
        }
        // All groups run, so what is left of them waits for their turns.
        let running = claim(&mut client, &queue, 10);
        assert_eq!(names(&running), ["a", "b", "c"]);
        client.run(&format!("SELECT queue.reprioritize({}, -7)", last["b"][1]));
        client.run(&format!("SELECT queue.reprioritize({}, 9)", last["a"][0]));
        complete(&mut client, &running);
        assert_eq!(in_order(&mut client, &queue), [-7, 5, 5, 6, 6, 9], "{options}");
    }
}

#[test]
fn a_released_job_comes_before_larger_priorities_of_other_groups() {
    for options in ONE_BY_ONE {
        let (mut client, queue) = queue(options);
        for (group, priority) in [("a", 1), ("a", 4), ("b", 2), ("b", 2), ("c", 0), ("c", 3)] {
            enqueue(&mut client, &queue, group, priority);
        }
        let running = claim(&mut client, &queue, 10);
        assert_eq!(running.iter().map(|(name, _)| &name[..]).collect::<Vec<_>>(), ["c", "a", "b"], "{options}");
        for (_, id) in &running[..2] {
            client.run(&format!("SELECT queue.release({id})"));
        }
        complete(&mut client, &running[2..]);
        assert_eq!(in_order(&mut client, &queue), [0, 1, 2, 3, 4], "{options}");
    }
}

/// It has to run before a smaller priority of its group, but not before one of another.
#[test]
fn a_strict_group_comes_by_the_priority_of_what_has_failed() {
    let (mut client, queue) = queue("strict_order => true");
    enqueue(&mut client, &queue, "a", 5);
    let failed = client.claim(&queue);
    enqueue(&mut client, &queue, "a", -1);
    for (group, priority) in [("b", 3), ("b", 6), ("c", 4), ("c", 7)] {
        enqueue(&mut client, &queue, group, priority);
    }
    client.run(&format!("SELECT queue.fail({failed}, 'no', retry_in => '0')"));
    assert_eq!(in_order(&mut client, &queue), [3, 4, 5, -1, 6, 7]);
}

/// A claim that names no stage takes the smallest priority of all of them.
#[test]
fn between_groups_of_all_stages_a_smaller_priority_comes_first() {
    for options in ONE_BY_ONE {
        let (mut client, queue) = queue(&format!("stages => '{{x, y}}', {options}"));
        for (group, priority) in [("a", 1), ("b", 3), ("c", 5), ("a", 0), ("b", 2), ("c", 6)] {
            enqueue(&mut client, &queue, group, priority);
        }
        // One of each group goes on to the second stage, where its group is another.
        let running = claim(&mut client, &queue, 10);
        assert_eq!(names(&running), ["a", "b", "c"]);
        for (_, id) in &running {
            client.run(&format!("SELECT queue.advance({id})"));
        }
        let mut seen: Vec<(i32, String)> = Vec::new();
        loop {
            let rows = client.query(&format!("SELECT priority, stage, id FROM queue.claim('{queue}')"), &[]).unwrap();
            let [row] = &rows[..] else { break };
            let (priority, stage, id): (i32, String, i64) = (row.get(0), row.get(1), row.get(2));
            let verb = if stage == "x" { "advance" } else { "complete" };
            client.run(&format!("SELECT queue.{verb}({id})"));
            seen.push((priority, stage));
        }
        let seen: Vec<String> = seen.iter().map(|(priority, stage)| format!("{priority}{stage}")).collect();
        assert_eq!(seen, ["0y", "1x", "1y", "2y", "3x", "3y", "5y", "6x", "6y"], "{options}");
    }
}

/// The group whose turn it is has lost what came first in it, so it has only something larger than it seems.
#[test]
fn a_claim_that_completes_takes_the_next_of_that_group_before_larger_priorities_of_others() {
    for options in ONE_BY_ONE {
        let (mut client, queue) = queue(options);
        enqueue(&mut client, &queue, "g", 0);
        enqueue(&mut client, &queue, "h", 0);
        let running = claim(&mut client, &queue, 2);
        assert_eq!(names(&running), ["g", "h"]);
        enqueue(&mut client, &queue, "g", 3);
        let first = enqueue(&mut client, &queue, "h", 0);
        enqueue(&mut client, &queue, "h", 5);
        // Both groups are known with what waits of them.
        assert_eq!(claim(&mut client, &queue, 1), []);
        let of = |name: &str| running.iter().find(|(n, _)| n == name).unwrap().1;
        client.run(&format!("SELECT queue.complete({})", of("h")));
        client.run(&format!("SELECT queue.cancel({first})"));
        let sql = format!("SELECT priority FROM queue.claim('{queue}', completed => ARRAY[{}]::bigint[])", of("g"));
        assert_eq!(client.value::<i32>(&sql), 3, "{options}");
        assert_eq!(in_order(&mut client, &queue), [5], "{options}");
    }
}
