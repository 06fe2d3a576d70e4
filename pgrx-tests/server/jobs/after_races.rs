//! Predecessors under load: many last predecessors, ends at the same time as enqueues, more jobs than memory lists.

use std::sync::atomic::AtomicU64;
use std::sync::mpsc;

use crate::shared::*;

/// Returns the number in the environment variable, which is for a run by hand, or else the usual number.
fn many(variable: &str, usually: u64) -> u64 {
    random::number(variable).unwrap_or(usually)
}

#[test]
fn the_last_of_sixty_four_predecessors_releases_once() {
    const SESSIONS: usize = 64;
    let rounds = many("QUEUE_AFTER_ROUNDS", 20);
    let (cluster, mut client) =
        Cluster::with(&["max_connections = 90", "pg_queue.max_ready = 512"]).start_with_database("app");
    create(&mut client, "p", "lease => '1 hour'");
    create(&mut client, "q", "lease => '1 hour'");
    let barrier = Barrier::new(SESSIONS + 1);
    // Each session gets the attempts that it has to end. A negative id ends all rounds.
    let (tasks, inboxes): (Vec<_>, Vec<_>) = (0..SESSIONS).map(|_| mpsc::channel::<i64>()).unzip();
    let failures = AtomicU64::new(0);
    let seed = random::seed("the_last_of_sixty_four");
    thread::scope(|scope| {
        for (n, inbox) in inboxes.into_iter().enumerate() {
            let (barrier, failures, cluster) = (&barrier, &failures, &cluster);
            scope.spawn(move || {
                let mut random = Random::new(seed + n as u64);
                let mut session = cluster.connect_to("app");
                for id in inbox {
                    let complete = format!("SELECT queue.complete({id})");
                    let mut sql = String::from("BEGIN; SAVEPOINT s");
                    if random.percent(25) {
                        sql += &format!("; {complete}; ROLLBACK TO s");
                    }
                    if random.percent(25) {
                        sql += &format!("; {complete}; ROLLBACK; BEGIN; SAVEPOINT s");
                    }
                    sql += &format!("; {complete}; RELEASE s; COMMIT");
                    barrier.wait();
                    // The session must reach the barrier again even after an error.
                    if let Err(e) = session.batch_execute(&sql) {
                        eprintln!("{sql}: {e:?}");
                        failures.fetch_add(1, Ordering::Relaxed);
                    }
                    barrier.wait();
                }
            });
        }
        let mut late_session = cluster.connect_to("app");
        for _ in 0..rounds {
            let jobs: Vec<i64> =
                client.column(&format!("SELECT queue.enqueue('p') FROM generate_series(1, {SESSIONS})"));
            let claimed: Vec<i64> = client.column(&format!("SELECT id FROM queue.claim('p', {SESSIONS})"));
            let enqueue = format!("SELECT queue.enqueue('q', after => '{{{}}}')", list(&jobs));
            let early: i64 = client.value(&enqueue);
            tasks.iter().zip(&claimed).for_each(|(task, id)| task.send(*id).expect("its session"));
            barrier.wait();
            // This successor is enqueued while its predecessors end.
            let late = late_session.query_one(&enqueue, &[]);
            barrier.wait();
            if failures.load(Ordering::Relaxed) > 0 {
                break;
            }
            let expected = BTreeSet::from([early, late.expect("an enqueue after living jobs").get(0)]);
            let mut ran: Vec<i64> = Vec::new();
            let begun = Instant::now();
            while ran.len() < 2 && begun.elapsed() < Duration::from_secs(60) {
                ran.extend(claim_and_complete(&mut client, "q", 10));
            }
            ran.extend(claim_and_complete(&mut client, "q", 10));
            if ran.len() != 2 || ran.iter().copied().collect::<BTreeSet<_>>() != expected {
                eprintln!("{expected:?} were to run, and {ran:?} did");
                failures.fetch_add(1, Ordering::Relaxed);
                break;
            }
        }
        drop(tasks);
    });
    assert_eq!(failures.load(Ordering::Relaxed), 0);
    client.check();
}

fn list(jobs: &[i64]) -> String {
    jobs.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn claim_and_complete(client: &mut Client, queue: &str, most: usize) -> Vec<i64> {
    let sql = format!("SELECT job_id FROM queue.claim('{queue}', {most}) WHERE queue.complete(id) IS NOT NULL");
    client.query(&sql, &[]).expect("a claim").iter().map(|row| row.get(0)).collect()
}

/// Waits in a loop, because a sleep would last longer than the race conditions.
fn spin(random: &mut Random, most: u64) {
    let until = Instant::now() + Duration::from_micros(random.below(most + 1));
    while Instant::now() < until {
        std::hint::spin_loop();
    }
}

#[test]
fn no_successor_is_stranded_when_its_enqueue_races_with_an_end() {
    const PARTNERS: u64 = 8;
    const BATCH: u64 = 50;
    let pairs = many("QUEUE_AFTER_PAIRS", 8_000).next_multiple_of(PARTNERS * BATCH);
    let (database, mut client) =
        Database::new().with_queue("p", "lease => '1 hour', retention => '1 hour', max_attempts => 1");
    create(&mut client, "q", "lease => '1 hour', retention => '0'");
    let seed = random::seed("an_enqueue_and_the_end");
    let ran = thread::scope(|scope| {
        for n in 0..PARTNERS {
            let (tell, told) = mpsc::channel::<(i64, &str)>();
            let database = &database;
            // One session ends the jobs after which another session enqueues. Either session may be late or roll back
            // first.
            scope.spawn(move || {
                let mut random = Random::new(seed + n);
                let mut session = database.connect();
                for _ in 0..pairs / PARTNERS / BATCH {
                    let enqueue =
                        "SELECT count(*) FROM queue.enqueue_many('p', array_fill('1'::jsonb, ARRAY[$1::int]))";
                    session.execute(enqueue, &[&(BATCH as i32)]).expect("an enqueue");
                    let claim = "SELECT id, job_id FROM queue.claim('p', $1)";
                    for row in session.query(claim, &[&(BATCH as i32)]).expect("a claim") {
                        let (id, job): (i64, i64) = (row.get(0), row.get(1));
                        let (end, upon) = random.one_of(&[
                            ("SELECT queue.complete(@)", "completed"),
                            ("SELECT queue.complete(@)", "ended"),
                            ("SELECT queue.fail(@, 'no')", "failed"),
                            ("SELECT queue.fail(@, 'no')", "ended"),
                            ("SELECT queue.cancel(#, force => true)", "ended"),
                        ]);
                        let end = end.replace('@', &id.to_string()).replace('#', &job.to_string());
                        tell.send((job, upon)).expect("its partner");
                        if random.percent(10) {
                            session.batch_execute(&format!("BEGIN; {end}; ROLLBACK")).expect("an end");
                        }
                        spin(&mut random, 300);
                        session.batch_execute(&end).expect("an end");
                    }
                }
            });
            scope.spawn(move || {
                let mut random = Random::new(seed + n + PARTNERS);
                let mut session = database.connect();
                for (job, upon) in told {
                    let enqueue = format!("SELECT queue.enqueue('q', after => '{{{job}}}', upon => '{upon}')");
                    if random.percent(10) {
                        session.batch_execute(&format!("BEGIN; {enqueue}; ROLLBACK")).expect("an enqueue");
                    }
                    spin(&mut random, 300);
                    session.batch_execute(&enqueue).expect("an enqueue");
                }
            });
        }
        let mut ran: Vec<i64> = Vec::new();
        let mut since = Instant::now();
        // Each job must run once. If nothing runs for a minute, some jobs are stranded.
        while (ran.len() as u64) < pairs && since.elapsed() < Duration::from_secs(60) {
            let jobs = claim_and_complete(&mut client, "q", 500);
            if jobs.is_empty() {
                thread::sleep(Duration::from_millis(5));
            } else {
                since = Instant::now();
            }
            ran.extend(jobs);
        }
        ran
    });
    assert_eq!(ran.len() as u64, pairs, "some are stranded");
    assert_eq!(ran.iter().collect::<BTreeSet<_>>().len(), ran.len(), "some ran twice");
    assert_eq!(claim_and_complete(&mut client, "q", 10), [0; 0]);
    let found: Vec<String> = client.column("SELECT c::text FROM queue.check() AS c");
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn more_ends_than_memory_lists_may_commit_together() {
    const JOBS: usize = 4_500;
    let (database, mut client) = Database::without_worker().with_queue("p", "lease => '1 hour'");
    create(&mut client, "q", "lease => '1 hour'");
    let states = "(SELECT held = $h AND ready = $r FROM queue.stats WHERE queue_name = 'q')";
    let are = |held: usize, ready: usize| states.replace("$h", &held.to_string()).replace("$r", &ready.to_string());
    // Each database has its own list, so no other test disturbs this one.
    let enqueue = format!(
        "WITH p AS (SELECT job_id FROM queue.enqueue_many('p', array_fill('1'::jsonb, ARRAY[{JOBS}])) AS p (job_id))
         SELECT count(queue.enqueue('q', after => ARRAY[job_id])) FROM p"
    );
    // The commit of the enqueues fills the list.
    client.run(&enqueue);
    client.maintain_until("(SELECT bool_and(did = 0) FROM queue.maintain() WHERE duty = 'release')");
    assert!(client.value::<bool>(&format!("SELECT {}", are(JOBS, 0))));
    // The commit of the ends also fills the list.
    client.run(&format!("SELECT count(*) FROM queue.complete_many(ARRAY(SELECT id FROM queue.claim('p', {JOBS})))"));
    client.maintain_until(&are(0, JOBS));
    // Enqueues and ends both commit while the worker looks at all held jobs.
    client.run(&enqueue);
    let mut other = database.connect();
    client.run("BEGIN");
    client.run(&format!("SELECT count(*) FROM queue.complete_many(ARRAY(SELECT id FROM queue.claim('p', {JOBS})))"));
    other.run("SELECT FROM queue.maintain()");
    client.run("COMMIT");
    client.maintain_until(&are(0, 2 * JOBS));
    client.check();
    wait::until_true("all ran", || claim_and_complete(&mut client, "q", 1000).is_empty());
    assert_eq!(client.value::<i64>("SELECT completed FROM queue.stats WHERE queue_name = 'q'"), 2 * JOBS as i64);
}
