//! Many sessions: no wake-up is lost, jobs run in order, and each job of a deep backlog is claimed once.

use std::sync::atomic::AtomicUsize;

use crate::shared::*;

#[test]
fn no_wake_up_is_lost_among_sixteen_claimers_that_sleep() {
    const JOBS: usize = 1500;
    let (cluster, mut client) =
        Cluster::with(&["max_connections = 60", "pg_queue.max_ready = 64"]).start_with_database("app");
    let seed = random::seed("wake-ups");
    create(&mut client, "q", "");
    let done = AtomicUsize::new(0);
    let slowest = Mutex::new(Duration::ZERO);
    thread::scope(|scope| {
        for n in 0..16 {
            let (cluster, done) = (&cluster, &done);
            scope.spawn(move || {
                let mut random = Random::new(seed + 1000 + n);
                let mut client = cluster.connect_to("app");
                while done.load(Ordering::Relaxed) < JOBS {
                    let most = random.one_of(&[1, 1, 1, 3]);
                    let rolls_back = random.percent(10);
                    let mut tx = client.transaction().unwrap();
                    let sql = "SELECT queue.complete(id) FROM queue.claim('q', $1, wait => '10 s')";
                    let count = tx.query(sql, &[&most]).unwrap().len();
                    if rolls_back {
                        tx.rollback().unwrap();
                        continue;
                    }
                    tx.commit().unwrap();
                    if done.fetch_add(count, Ordering::Relaxed) + count >= JOBS {
                        // Wakes the other sessions, which sleep.
                        cluster
                            .connect_to("app")
                            .run("SELECT queue.enqueue_many('q', array_fill(jsonb '1', ARRAY[64]))");
                    }
                }
            });
        }
        let mut random = Random::new(seed);
        let mut made = 0;
        while made < JOBS {
            let start = Instant::now();
            let count = (random.one_of(&[1, 1, 1, 10, 40]) as usize).min(JOBS - made);
            let sql = format!("SELECT count(*) FROM queue.enqueue_many('q', array_fill(jsonb '1', ARRAY[{count}]))");
            client.run(&sql);
            made += count;
            // Only if claimers overtake the producer do they sleep now and then.
            wait::within(&format!("seed {seed}: {made} jobs are claimed"), Duration::from_secs(5), || {
                (done.load(Ordering::Relaxed) >= made).then_some(())
            });
            let mut slowest = slowest.lock().unwrap();
            *slowest = (*slowest).max(start.elapsed());
        }
    });
    let slowest = slowest.into_inner().unwrap();
    eprintln!("the slowest claim came after {slowest:?}");
}

#[test]
fn a_deep_backlog_is_shared_by_many_claimers_without_a_gap_or_a_double() {
    let (cluster, mut client) = Cluster::new().conf("max_connections = 60").start_with_database("app");
    create(&mut client, "q", "");
    for _ in 0..4 {
        client.run("SELECT count(*) FROM queue.enqueue_many('q', array_fill(jsonb '1', ARRAY[50000]))");
    }
    let first: i64 = client.value("SELECT min(job_id) FROM queue.jobs");
    let claimed = Mutex::new(Vec::new());
    let start = Instant::now();
    thread::scope(|scope| {
        for n in 0..8 {
            let (cluster, claimed) = (&cluster, &claimed);
            scope.spawn(move || {
                let mut client = cluster.connect_to("app");
                for k in 0..40 {
                    let most = [1, 30, 100][(n + k) % 3];
                    let some: Vec<i64> = client.column(&format!("SELECT job_id FROM queue.claim('q', {most})"));
                    assert_eq!(some.len(), most, "a claim got fewer although many wait");
                    claimed.lock().unwrap().extend(some);
                }
            });
        }
    });
    let claimed = claimed.into_inner().unwrap();
    eprintln!("{} claimed in {:?}", claimed.len(), start.elapsed());
    let expected: BTreeSet<i64> = client
        .column(&format!(
            "SELECT job_id FROM queue.jobs WHERE job_id >= {first} ORDER BY job_id LIMIT {}",
            claimed.len()
        ))
        .into_iter()
        .collect();
    assert_eq!(claimed.len(), expected.len());
    let claimed: BTreeSet<i64> = claimed.into_iter().collect();
    assert_eq!(claimed, expected, "the first ones, each once");
}

#[test]
fn jobs_that_a_claim_of_their_own_transaction_has_read_are_not_lost() {
    let (cluster, mut client) = Cluster::new().conf("pg_queue.max_ready = 8").start_with_database("app");
    create(&mut client, "q", "");
    let is_over = AtomicBool::new(false);
    let (made, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        let (cluster, is_over, made, done) = (&cluster, &is_over, &made, &done);
        for _ in 0..2 {
            scope.spawn(move || {
                let mut client = cluster.connect_to("app");
                // The claim reads the lane's index and finds this transaction's own jobs there.
                for _ in 0..400 {
                    let rows = client
                        .query(
                            "WITH e AS MATERIALIZED (SELECT count(*) FROM queue.enqueue_many('q',
                                array_fill(jsonb '1', ARRAY[5])))
                             SELECT queue.complete(c.id) FROM e, LATERAL (SELECT *
                             FROM queue.claim('q', 1 + (e.count * 0)::int)) AS c",
                            &[],
                        )
                        .unwrap();
                    made.fetch_add(5, Ordering::Relaxed);
                    done.fetch_add(rows.len(), Ordering::Relaxed);
                }
            });
        }
        for _ in 0..3 {
            scope.spawn(move || {
                let mut client = cluster.connect_to("app");
                loop {
                    let last = is_over.load(Ordering::Relaxed);
                    let count = client.count("SELECT queue.complete(id) FROM queue.claim('q', 3)");
                    done.fetch_add(count, Ordering::Relaxed);
                    if last && count == 0 {
                        break;
                    }
                }
            });
        }
        wait::until_true("all are made", || made.load(Ordering::Relaxed) == 4000);
        is_over.store(true, Ordering::Relaxed);
    });
    let left: i64 = client.value("SELECT count(*) FROM queue.jobs WHERE state <> 'completed'");
    assert_eq!((left, done.load(Ordering::Relaxed)), (0, 4000));
}

#[test]
fn waiting_workers_are_woken_when_a_purge_is_rolled_back() {
    let (database, mut client) = Database::new().with_queue("q", "");
    let job_id = client.enqueue("q");
    client.run("BEGIN");
    assert_eq!(client.value::<i64>("SELECT queue.purge('q')"), 1);
    let start = Instant::now();
    let sql = "SELECT job_id FROM queue.claim('q', wait => '10 s')";
    let thread = asleep::<i64>(&mut database.connect(), database.connect(), sql);
    client.run("ROLLBACK");
    assert_eq!(thread.join().unwrap(), [job_id]);
    assert!(start.elapsed() < Duration::from_secs(8), "it slept to its end");
}

#[test]
fn a_purge_that_is_rolled_back_gives_the_jobs_to_others_although_a_claimer_of_meanwhile_is_still_open() {
    let (database, mut client) = Database::new().with_queue("q", "");
    for _ in 0..3 {
        client.enqueue("q");
    }
    client.run("BEGIN");
    assert_eq!(client.value::<i64>("SELECT queue.purge('q')"), 3);
    let mut early = database.connect();
    early.run("BEGIN");
    assert_eq!(early.count("SELECT FROM queue.claim('q', 3)"), 0);
    client.run("ROLLBACK");
    assert_eq!(client.count("SELECT queue.complete(id) FROM queue.claim('q', 2)"), 2);
    early.run("COMMIT");
    assert_eq!(client.count("SELECT queue.complete(id) FROM queue.claim('q', 2)"), 1);
}

#[test]
fn a_job_whose_cancelling_commits_after_its_claim_was_rolled_back_is_cancelled() {
    let (database, mut client) = Database::new().with_queue("q", "");
    let mut worker = database.connect();
    let job_id = client.enqueue("q");
    worker.run("BEGIN");
    worker.claim("q");
    client.run("BEGIN");
    assert_eq!(client.value::<String>(&format!("SELECT queue.cancel({job_id})")), "cancelling");
    worker.run("ROLLBACK");
    client.run("COMMIT");
    worker.maintain_until(&format!("(SELECT state = 'cancelled' FROM queue.job({job_id}))"));
    assert_eq!(client.count("SELECT FROM queue.claim('q')"), 0);
}

/// Ends of a running attempt after which the job goes on. `{}` is the attempt.
const GO_ON: [&str; 4] = [
    "SELECT queue.fail({}, 'x', retry_in => '0')",
    "SELECT queue.release({})",
    "SELECT queue.release({}, '1 hour')",
    "SELECT queue.advance({})",
];

#[test]
fn a_job_that_was_to_be_cancelled_is_cancelled_also_when_its_attempt_ended_before_the_commit() {
    let (database, mut client) = Database::new().with_queue("q", "stages => '{a, b}'");
    let mut worker = database.connect();
    for how in GO_ON.map(Some).into_iter().chain([None]) {
        // Either the end commits before the request, or it commits after it, or the job runs again before it.
        for order in ["before", "after", "again"] {
            let job_id = client.enqueue("q");
            let id: i64 = worker.value("SELECT id FROM queue.claim('q', lease => '1 hour')");
            client.run("BEGIN");
            assert_eq!(client.value::<String>(&format!("SELECT queue.cancel({job_id}, 'no more')")), "cancelling");
            if let Some(how) = how {
                if order == "after" {
                    worker.run("BEGIN");
                }
                worker.run(&how.replace("{}", &id.to_string()));
            } else {
                worker.run(&format!("SELECT queue.extend({id}, '1 ms')"));
                worker.maintain_until(&format!("(SELECT state <> 'running' FROM queue.attempts WHERE id = {id})"));
                worker.run(&format!("SELECT queue.retry({job_id})"));
            }
            let again: Option<i64> =
                if order == "again" { worker.column("SELECT id FROM queue.claim('q')").pop() } else { None };
            client.run("COMMIT");
            if how.is_some() && order == "after" {
                worker.run("COMMIT");
            }
            if let Some(again) = again {
                worker.maintain_until(&format!("(SELECT is_cancelled FROM queue.extend({again}))"));
                worker.run(&format!("SELECT queue.fail({again}, 'stopped')"));
            }
            worker.maintain_until(&format!("(SELECT state = 'cancelled' FROM queue.job({job_id}))"));
            let error: Option<String> = client.value(&format!("SELECT error FROM queue.job({job_id})"));
            let expected = if again.is_some() { "stopped" } else { "no more" };
            assert_eq!(error.as_deref(), Some(expected), "{how:?} {order}");
        }
    }
    assert_eq!(client.count("SELECT FROM queue.claim('q')"), 0);
}

#[test]
fn a_job_that_was_wanted_once_more_since_is_not_cancelled() {
    let (database, mut client) = Database::new().with_queue("q", "");
    let mut worker = database.connect();
    let enqueue = "SELECT queue.enqueue('q', unique_key => 'k', on_duplicate => 'rerun')";
    let job_id: i64 = client.value(enqueue);
    let id = worker.claim("q");
    worker.run(enqueue);
    client.run("BEGIN");
    assert_eq!(client.value::<String>(&format!("SELECT queue.cancel({job_id})")), "cancelling");
    worker.run(&format!("SELECT queue.fail({id}, 'x')"));
    client.run("COMMIT");
    worker.maintain_until(
        "NOT EXISTS (SELECT FROM queue.maintain() AS m (duty, done) WHERE duty = 'serve_cancels' AND done > 0)",
    );
    assert_eq!(client.value::<i64>("SELECT job_id FROM queue.claim('q', wait => '5 s')"), job_id);
}

#[test]
fn limits_altered_under_work_stop_nobody() {
    let (database, mut client) = Database::new().with_queue("q", "strict_order => true, max_running_per_group => 1");
    client.run(
        "SELECT queue.enqueue_batch('q', (SELECT jsonb_agg(jsonb_build_object('group_key', 'g' || n % 8)) \
            FROM generate_series(1, 3000) AS n))",
    );
    let (claims, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut worker = database.connect();
                // A statement that never ends fails here.
                worker.run("SET statement_timeout = '30 s'");
                while !is_over.load(Ordering::Relaxed) {
                    let released = worker.count("SELECT queue.release(id) FROM queue.claim('q', wait => '100 ms')");
                    claims.fetch_add(released, Ordering::Relaxed);
                }
            });
        }
        for n in 0..12 {
            let before = claims.load(Ordering::Relaxed);
            wait::until_true("they work", || claims.load(Ordering::Relaxed) > before + 20);
            client.run(&format!("SELECT queue.alter('q', max_running => {})", 100 + n));
            let after = claims.load(Ordering::Relaxed);
            wait::until_true("they go on", || claims.load(Ordering::Relaxed) > after + 20);
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn limits_that_are_not_committed_are_nobody_elses() {
    let (database, mut client) = Database::new().with_queue("q", "max_running => 10");
    client.enqueue("q");
    client.claim("q");
    let sql = "SELECT id FROM queue.claim('q', wait => '60 s')";
    let sleeper = asleep::<i64>(&mut client, database.connect(), sql);
    let mut other = database.connect();
    other.run("BEGIN; SELECT queue.alter('q', max_running => 1)");
    let refused = other.failure("SELECT FROM queue.claim('q')");
    assert_eq!((refused.code.as_str(), refused.hint.as_str()), ("55000", "Claim in another transaction."));
    other.run("ROLLBACK");
    other.run("BEGIN; SELECT queue.alter('q', max_attempts => 3); SELECT FROM queue.claim('q'); ROLLBACK");
    client.enqueue("q");
    assert_eq!(sleeper.join().unwrap().len(), 1);
}

#[test]
fn a_notify_that_was_rolled_back_is_sent_again() {
    let (database, mut client) = Database::without_worker().with_queue("q", "notify => true");
    let mut listener = database.connect();
    listener.run("LISTEN pg_queue");
    client.enqueue("q");
    client.run("BEGIN; SELECT FROM queue.maintain(); ROLLBACK");
    client.run("SELECT FROM queue.maintain()");
    wait::until("the notification arrives", || {
        listener.run("SELECT 1");
        let mut notifications = listener.notifications();
        let next = postgres::fallible_iterator::FallibleIterator::next(&mut notifications.iter()).unwrap();
        next.filter(|n| n.channel() == "pg_queue" && n.payload() == "q")
    });
}
