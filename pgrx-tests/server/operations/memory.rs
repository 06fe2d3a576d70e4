//! Memory so small that everything overflows. Order and exactness hold, and shortages are reported.

use crate::shared::*;

fn tiny() -> Cluster {
    Cluster::with(&["pg_queue.max_ready = 2", "pg_queue.max_running = 3", "pg_queue.max_lanes = 2"]).start()
}

#[test]
fn the_order_is_exact_with_more_queues_than_lanes_and_more_jobs_than_memory() {
    let cluster = tiny();
    let seed = random::seed("limits");
    let mut random = Random::new(seed);
    let mut client = cluster.create_database("app");
    let queues = ["a", "b", "c", "d"];
    let mut waiting: BTreeMap<&str, BTreeSet<(i32, i64)>> = BTreeMap::new();
    for queue in queues {
        create(&mut client, queue, "");
        waiting.insert(queue, BTreeSet::new());
    }
    for step in 0..900 {
        let queue = random.one_of(&queues);
        let jobs = waiting.get_mut(queue).unwrap();
        match random.below(10) {
            0..4 => {
                let priority = random.between(-3, 3) as i32;
                let sql = format!("SELECT queue.enqueue('{queue}', priority => {priority})");
                jobs.insert((priority, client.value(&sql)));
            }
            4 => {
                let priority = random.between(-3, 3) as i32;
                let sql = format!(
                    "SELECT * FROM queue.enqueue_many('{queue}', array_fill(jsonb '1', ARRAY[7]), \
                        priority => {priority})"
                );
                jobs.extend(client.column::<i64>(&sql).into_iter().map(|id| (priority, id)));
            }
            what => {
                let count = random.between(1, 3) as usize;
                let expected: Vec<(i32, i64)> = jobs.iter().copied().take(count).collect();
                client.run("BEGIN");
                let sql = format!("SELECT priority, job_id, id FROM queue.claim('{queue}', {count})");
                let rows = client.query(&sql, &[]).unwrap_or_else(|e| panic!("seed {seed}, step {step}: {e:?}"));
                let claimed: Vec<(i32, i64)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
                assert_eq!(claimed, expected, "seed {seed}, step {step}");
                let ids: Vec<i64> = rows.iter().map(|row| row.get(2)).collect();
                if what == 5 {
                    client.run("ROLLBACK");
                    continue;
                }
                client.run("COMMIT");
                if what == 6 {
                    // These jobs are released and not completed.
                    client.query("SELECT queue.release_many($1)", &[&ids]).unwrap();
                } else {
                    client.query("SELECT queue.complete_many($1)", &[&ids]).unwrap();
                    expected.iter().for_each(|job| assert!(jobs.remove(job)));
                }
            }
        }
    }
}

#[test]
fn a_claim_beyond_max_running_gets_fewer_jobs_and_then_an_error_that_names_the_setting() {
    let cluster = tiny();
    let mut client = cluster.create_database("app");
    create(&mut client, "q", "");
    for _ in 0..6 {
        client.enqueue("q");
    }
    let ids: Vec<i64> = client.column("SELECT id FROM queue.claim('q', 10)");
    assert_eq!(ids.len(), 3);
    let full = client.refused("SELECT FROM queue.claim('q')", "53400");
    assert!(full.hint.contains("pg_queue.max_running"), "{full:?}");
    client.run(&format!("SELECT queue.complete({})", ids[1]));
    assert_eq!(client.count("SELECT FROM queue.claim('q', 10)"), 1);
    // A transaction that ends an attempt has room for the next attempt only after its commit.
    client.run(&format!("SELECT queue.fail({}, 'no', retry_in => '0')", ids[0]));
    assert_eq!(client.count("SELECT FROM queue.claim('q', 10)"), 1);
    assert_eq!(client.value::<i64>("SELECT count(*) FROM queue.jobs WHERE state = 'ready'"), 2);
    // What a call has completed is not undone for want of a place.
    assert_eq!(client.count(&format!("SELECT FROM queue.claim('q', completed => '{{{}}}')", ids[2])), 0);
    assert_eq!(client.count("SELECT FROM queue.claim('q', completed => '{}')"), 1);
    client.refused("SELECT FROM queue.claim('q', completed => '{}')", "53400");
}

#[test]
fn a_purge_needs_room_for_one_job_only() {
    let (_cluster, mut client) = Cluster::new().conf("pg_queue.max_running = 3").start_with_database("app");
    create(&mut client, "q", "");
    client.run("SELECT count(*) FROM queue.enqueue_many('q', array_fill(jsonb '1', ARRAY[42]))");
    let running: Vec<i64> = client.column("SELECT id FROM queue.claim('q', 2)");
    client.run("BEGIN");
    assert_eq!(client.value::<i64>("SELECT queue.purge('q')"), 40);
    client.run("ROLLBACK");
    assert_eq!(client.value::<i64>("SELECT ready FROM queue.stats"), 40);
    assert_eq!(client.value::<i64>("SELECT queue.purge('q')"), 40);
    assert_eq!(client.count("SELECT FROM queue.jobs WHERE state = 'cancelled'"), 40);
    assert_eq!(client.value::<i64>("SELECT ready FROM queue.stats"), 0);
    assert_eq!(client.count("SELECT FROM queue.claim('q')"), 0);
    client.run(&format!("SELECT count(*) FROM queue.complete_many(ARRAY{running:?})"));
    // If there is no room at all, the purge is an error.
    client.run("SELECT count(*) FROM queue.enqueue_many('q', array_fill(jsonb '1', ARRAY[5]))");
    assert_eq!(client.count("SELECT FROM queue.claim('q', 3)"), 3);
    client.refused("SELECT queue.purge('q')", "53400");
    assert_eq!(client.value::<i64>("SELECT ready FROM queue.stats"), 2);
}

#[test]
fn jobs_that_run_beyond_memory_after_a_restart_with_smaller_limits_are_not_forgotten() {
    let (cluster, mut client) = Cluster::new().start_with_database("app");
    create(&mut client, "q", "lease => '1 s'");
    client.run("SELECT count(*) FROM queue.enqueue_many('q', array_fill(jsonb '1', ARRAY[9]))");
    let ids: Vec<i64> = client.column("SELECT id FROM queue.claim('q', 9)");
    cluster.stop_immediate();
    cluster.append_conf("pg_queue.max_running = 3\npg_queue.max_ready = 2\npg_queue.max_lanes = 1");
    cluster.start_again();

    let mut client = cluster.connect_to("app");
    client.run("SELECT FROM queue.maintain()");
    // One of these attempts is in memory, the other beyond it.
    client.run(&format!("SELECT queue.complete({})", ids[8]));
    client.run(&format!("SELECT queue.complete({})", ids[0]));
    for id in [ids[8], ids[0]] {
        client.refused(&format!("SELECT queue.complete({id})"), "QJ001");
    }
    wait::within("all leases have ended", Duration::from_secs(25), || {
        // Each session is new, because a session that found memory full retries only after a while.
        cluster.connect_to("app").run("SELECT FROM queue.maintain()");
        (client.value::<i64>("SELECT count(*) FROM queue.jobs WHERE state = 'ready' AND attempt = 2") == 7)
            .then_some(())
    });
    let mut done = 0;
    while done < 7 {
        let count = client.count("SELECT queue.complete(id) FROM queue.claim('q', 10)");
        assert!(count > 0, "only {done} of 7 could be claimed");
        done += count;
    }
}

fn refused(client: &mut Client) {
    let full = client.refused("SELECT queue.create('q')", "53400");
    assert!(full.hint.contains("pg_queue.max_databases"), "{full:?}");
}

#[test]
fn one_database_too_many_gets_an_error_and_then_the_place_of_a_dropped_one() {
    let (cluster, mut one) = Cluster::new().conf("pg_queue.max_databases = 2").start_with_database("one");
    create(&mut one, "q", "");
    let mut two = cluster.create_database("two");
    create(&mut two, "q", "");
    let mut three = cluster.create_database("three");
    refused(&mut three);
    one.enqueue("q");
    one.claim("q");

    two.run("DROP EXTENSION pg_queue");
    wait::until("the place of the dropped extension is free", || three.batch_execute("SELECT queue.create('q')").ok());
    three.enqueue("q");
    three.claim("q");

    two.run("CREATE EXTENSION pg_queue");
    refused(&mut two);
    drop(three);
    cluster.connect().run("DROP DATABASE three WITH (FORCE)");
    wait::until("the place of the dropped database is free", || two.batch_execute("SELECT queue.create('q')").ok());
    two.enqueue("q");
    two.claim("q");
}

#[test]
fn a_heartbeat_of_an_attempt_beyond_memory_returns_its_lease_and_its_cancellation() {
    let (cluster, mut client) = Cluster::new().start_with_database("app");
    create(&mut client, "q", "");
    client.run("SELECT count(*) FROM queue.enqueue_many('q', array_fill(jsonb '1', ARRAY[9]))");
    let running: Vec<(i64, i64)> = client.rows("SELECT id, job_id FROM queue.claim('q', 9, lease => '10 min')");
    cluster.append_conf("pg_queue.max_running = 3");
    cluster.restart();
    let mut client = cluster.connect_to("app");
    client.run("SELECT FROM queue.maintain()");
    for (id, job) in running {
        client.run(&format!("SELECT queue.cancel({job})"));
        let beat =
            format!("SELECT lease_expires_at > now() + interval '9 min' AND is_cancelled FROM queue.extend({id})");
        assert!(client.value::<bool>(&beat), "{id}");
    }
}

/// Enqueues this number of jobs.
fn fill(client: &mut Client, queue: &str, jobs: usize) {
    client.run(&format!("SELECT count(*) FROM queue.enqueue_many('{queue}', array_fill(jsonb '1', ARRAY[{jobs}]))"));
}

#[test]
fn one_role_with_one_queue_cannot_take_all_places() {
    let (cluster, mut owner) = Cluster::new().conf("pg_queue.max_running = 1000").start_with_database("app");
    for queue in ["greedy", "other", "third"] {
        create(&mut owner, queue, "");
        fill(&mut owner, queue, 1000);
    }
    let mut foreign = cluster.create_database("foreign");
    create(&mut foreign, "q", "");
    fill(&mut foreign, "q", 1000);
    owner.run("CREATE ROLE greedy; CREATE ROLE modest");
    owner.run("SELECT queue.grant('greedy', 'greedy', 'consume'), queue.grant('other', 'modest', 'consume')");
    let session = |role: &str| {
        let mut client = cluster.connect_to("app");
        client.run(&format!("SET ROLE {role}"));
        client
    };

    // The greedy role uses several sessions and transactions, open and committed ones.
    let mut greedy: Vec<Client> = (0..4).map(|_| session("greedy")).collect();
    greedy[0].run("BEGIN");
    let first = greedy[0].count("SELECT FROM queue.claim('greedy', 2147483647)");
    assert!((800..1000).contains(&first), "{first}");
    for client in &mut greedy[1..] {
        client.refused("SELECT FROM queue.claim('greedy')", "53400");
    }
    // Another queue and another database still have room, even for a second claim.
    let mut modest = session("modest");
    let other = modest.count("SELECT FROM queue.claim('other', 1000)");
    assert!(other > 20, "{other}");
    assert!(owner.count("SELECT FROM queue.claim('third', 1000)") > 0);
    let foreign_got = foreign.count("SELECT FROM queue.claim('q', 1000)");
    assert!(foreign_got > 20, "{foreign_got}");
    assert!(first + other + foreign_got < 1000);
    // Ends need no room. Waiting jobs can be cancelled and purged.
    assert!(owner.value::<i64>("SELECT queue.purge('third')") > 0);
    let running =
        "SELECT count(*) FROM queue.complete_many(ARRAY(SELECT id FROM queue.attempts WHERE queue_name = 'other'
        AND state = 'running'))";
    assert_eq!(owner.value::<i64>(running), other as i64);

    // A rollback, in part or as a whole, frees the places again.
    greedy[0].run("ROLLBACK");
    let all = cluster.connect_to("app").count("SELECT FROM queue.claim('greedy', 5000)");
    assert!((800..=first).contains(&all), "{all}");
    greedy[1].run("BEGIN; SAVEPOINT a");
    owner.run(
        "SELECT count(*) FROM queue.complete_many(ARRAY(SELECT id FROM queue.attempts WHERE queue_name = 'greedy'
        AND state = 'running'))",
    );
    let savepoint = greedy[1].count("SELECT FROM queue.claim('greedy', 100)");
    assert_eq!(savepoint, 100);
    greedy[1].run("ROLLBACK TO SAVEPOINT a");
    assert_eq!(greedy[2].count("SELECT FROM queue.claim('greedy', 100)"), 100);
    greedy[1].run("COMMIT");

    // Dropping a queue frees its places, and so does dropping a database.
    owner.run("SELECT queue.drop('greedy', force => true)");
    foreign.run("DROP EXTENSION pg_queue");
    wait::until_true("the places are free", || {
        let used: f64 = owner.value(
            "SELECT value FROM queue.metrics() WHERE name = 'pg_queue_memory_used'
             AND labels ->> 'setting' = 'pg_queue.max_running'",
        );
        used < 100.0
    });
    create(&mut owner, "new", "");
    fill(&mut owner, "new", 1000);
    let new = owner.count("SELECT FROM queue.claim('new', 1000)");
    assert!(new > 700, "{new}");
}

#[test]
fn a_worker_without_a_slot_is_woken_when_one_is_free() {
    let (cluster, mut client) =
        Cluster::with(&["pg_queue.max_running = 100", "pg_queue.max_wait = '60 s'"]).start_with_database("app");
    for queue in ["q", "r"] {
        create(&mut client, queue, "lease => '1 hour'");
        fill(&mut client, queue, 200);
    }
    let q: Vec<i64> = client.column("SELECT id FROM queue.claim('q', 200)");
    assert!(q.len() < 100, "{}", q.len());
    client.run("SELECT FROM queue.claim('r', 200)");
    while client.batch_execute("SELECT FROM queue.claim('r', 200)").is_ok() {}
    // No session can claim another job. Claims that wait sleep.
    let sleepers = ["r", "q", "r"].map(|queue| {
        let sql = format!("SELECT id FROM queue.claim('{queue}', wait => '60 seconds')");
        asleep::<i64>(&mut client, cluster.connect_to("app"), sql)
    });
    let begun = Instant::now();
    // Room for all: most jobs of the first queue.
    client.run(&format!("SELECT count(*) FROM queue.complete_many(ARRAY{:?}::bigint[])", &q[..80]));
    for sleeper in sleepers {
        assert_eq!(sleeper.join().unwrap().len(), 1);
    }
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
}

#[test]
fn a_queue_without_room_does_not_keep_a_claim_from_another_queue() {
    let (_cluster, mut client) = Cluster::new().conf("pg_queue.max_running = 100").start_with_database("app");
    for queue in ["a", "b"] {
        create(&mut client, queue, "");
        fill(&mut client, queue, 200);
    }
    client.run("SELECT FROM queue.claim('a', 200)");
    client.refused("SELECT FROM queue.claim('a')", "53400");
    let queue: String = client.value("SELECT queue_name FROM queue.claim_any('{a, b}')");
    assert_eq!(queue, "b");
}

#[test]
fn one_queue_cannot_hold_all_keys() {
    let (cluster, mut greedy) = Cluster::new().conf("pg_queue.max_keys = 1000").start_with_database("app");
    create(&mut greedy, "greedy", "");
    create(&mut greedy, "other", "");
    let mut other = cluster.connect_to("app");
    let mut foreign = cluster.create_database("foreign");
    create(&mut foreign, "q", "");
    let keys = |queue: &str, first: i32, last: i32| {
        format!("SELECT queue.enqueue('{queue}', unique_key => n::text) FROM generate_series({first}, {last}) AS n")
    };
    greedy.run("BEGIN");
    greedy.run(&keys("greedy", 1, 850));
    let full = other.refused(&keys("greedy", 1001, 1100), "53400");
    assert!(full.hint.contains("pg_queue.max_keys"), "{full:?}");
    other.run(&keys("other", 1, 20));
    foreign.run(&keys("q", 1, 20));
    // A rollback frees the keys that it undoes.
    greedy.run("ROLLBACK");
    other.run(&format!("BEGIN; SAVEPOINT a; {}; ROLLBACK TO SAVEPOINT a", keys("greedy", 1, 850)));
    greedy.run(&format!("BEGIN; {}; COMMIT", keys("greedy", 1, 850)));
}

#[test]
fn sessions_of_one_database_cannot_use_up_the_memory_for_waiting() {
    let (cluster, mut client) =
        Cluster::with(&["pg_queue.max_lanes = 40", "pg_queue.max_wait = '60 s'"]).start_with_database("app");
    let mut foreign = cluster.create_database("foreign");
    create(&mut foreign, "q", "");
    foreign.enqueue("q");
    let mut waiting = Vec::new();
    thread::scope(|scope| {
        let mut refused = 0;
        for n in 0..50 {
            create(&mut client, &format!("q{n}"), "");
            let mut sleeper = cluster.connect_to("app");
            let pid = sleeper.pid();
            waiting.push(pid);
            let ended = scope.spawn(move || {
                sleeper.batch_execute(&format!("SELECT FROM queue.claim('q{n}', wait => '60 s')")).err()
            });
            let sleeps = format!(
                "SELECT coalesce(wait_event_type = 'Extension', false) FROM pg_stat_activity WHERE pid = {pid}"
            );
            wait::until_true("it sleeps or is refused", || {
                client.column::<bool>(&sleeps) == [true] || ended.is_finished()
            });
            if ended.is_finished() {
                assert_eq!(error::code(&ended.join().unwrap().unwrap()), "53400");
                refused += 1;
            }
        }
        assert!((10..=15).contains(&refused), "{refused}");
        foreign.claim("q");
        client.run(&format!("SELECT pg_cancel_backend(pid) FROM unnest(ARRAY{waiting:?}) AS pid"));
    });
}

#[test]
fn shared_memory_has_the_size_of_the_documented_formula() {
    for (lanes, ready, running, keys, databases, connections) in
        [(256, 2048, 65536, 262_144, 16, 100), (32, 512, 1024, 4096, 2, 20), (1024, 512, 65536, 1000, 64, 60)]
    {
        let cluster = Cluster::with(&[
            &format!("pg_queue.max_lanes = {lanes}"),
            &format!("pg_queue.max_ready = {ready}"),
            &format!("pg_queue.max_running = {running}"),
            &format!("pg_queue.max_keys = {keys}"),
            &format!("pg_queue.max_databases = {databases}"),
            &format!("max_connections = {connections}"),
        ])
        .start();
        let size: i64 = cluster
            .connect()
            .value("SELECT sum(allocated_size)::bigint FROM pg_shmem_allocations WHERE name LIKE 'pg_queue%'");
        // The formula of docs/settings.md, with the default of max_rated_groups
        let rated = 30_000;
        let power_of_two = |bytes: u64| i64::try_from(bytes.next_power_of_two()).unwrap();
        let sessions = connections + 40;
        let said = lanes * ready * 40
            + i64::try_from(running * 298).unwrap()
            + power_of_two(32 * running)
            + power_of_two(32 * (running + rated))
            + i64::try_from(rated * 456).unwrap()
            + power_of_two(32 * rated)
            + lanes * 10_400
            + power_of_two(32 * keys)
            + databases * (136_600 + 4 * sessions)
            + sessions * 806;
        let ratio = size as f64 / said as f64;
        assert!((0.9..1.1).contains(&ratio), "{size} bytes, {said} by the formula, {lanes} lanes");
    }
}
