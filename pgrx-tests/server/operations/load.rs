//! `queue.load` measures the work of workers from the first job, even over restarts, and says how many workers the
//! limits allow.

use crate::shared::*;

/// Returns a column of a queue's row, or of the sum over its stages.
fn load(client: &mut Client, queue: &str, column: &str) -> Option<f64> {
    client.value(&format!("SELECT ({column})::float8 FROM queue.load('{queue}')"))
}

fn run_mean(client: &mut Client, queue: &str) -> Option<f64> {
    load(client, queue, "extract(epoch FROM sum(run_mean))")
}

fn needed(client: &mut Client, queue: &str) -> f64 {
    load(client, queue, "sum(needed)").unwrap()
}

/// Returns a database that memory has counted, so that minutes are known from the first job.
fn counted() -> (Database, Client) {
    let (database, mut client) = Database::new().with_queue("idle", "");
    // A lane without jobs is not counted.
    client.run("SELECT queue.enqueue('idle', delay => '1 day')");
    client.wait_counted();
    (database, client)
}

/// Fills a queue and completes this number of its jobs, each after 50 ms.
fn work(client: &mut Client, queue: &str, jobs: i64, ended: i64) {
    client.run(&format!("SELECT count(*) FROM queue.enqueue_many('{queue}', array_fill('{{}}'::jsonb, '{{{jobs}}}'))"));
    for _ in 0..ended {
        let id: i64 = client.value(&format!("SELECT id FROM queue.claim('{queue}')"));
        thread::sleep(Duration::from_millis(50));
        client.run(&format!("SELECT queue.complete({id})"));
    }
}

#[test]
fn load_shows_the_backlog_and_how_long_jobs_run() {
    let (_database, mut client) = counted();
    create(&mut client, "q", "");
    assert_eq!(needed(&mut client, "q"), 0.0);
    work(&mut client, "q", 100, 0);
    assert_eq!(needed(&mut client, "q"), 1.0, "one worker finds out how long a job runs");
    work(&mut client, "q", 0, 10);
    client.run("SELECT queue.enqueue('q', delay => '20 s'), queue.enqueue('q', delay => '1 hour')");
    let numbers: String = client.value(
        "SELECT concat_ws(' ', l.ready, l.due_soon, l.running, l.ready = s.ready, l.running = s.running,
                abs(extract(epoch FROM l.oldest_age - s.oldest_ready_age)) < 5)
         FROM queue.load('q') AS l, queue.stats AS s WHERE s.queue_name = 'q'",
    );
    assert_eq!(numbers, "90 1 0 t t t");
    let mean = run_mean(&mut client, "q").unwrap();
    assert!((0.05..0.5).contains(&mean), "{mean}");
    // (arrivals + 91 / 30) x mean: 102 jobs came in a minute or two.
    let arrivals = load(&mut client, "q", "arrivals").unwrap();
    assert!((0.8..=1.71).contains(&arrivals), "{arrivals}");
    assert_eq!(needed(&mut client, "q"), ((arrivals + 91.0 / 30.0) * mean - 1e-6).max(1.0).ceil());
    let faster: i64 = client.value("SELECT needed FROM queue.load('q', '1 s')");
    assert_eq!(faster as f64, ((arrivals + 90.0) * mean - 1e-6).ceil());
    assert_eq!(needed(&mut client, "idle"), 0.0);
    assert_eq!(run_mean(&mut client, "idle"), None);
    assert_eq!(client.column::<String>("SELECT queue_name FROM queue.load() ORDER BY 1"), ["idle", "q"]);
}

#[test]
fn a_run_within_one_transaction_counts_and_so_does_a_failed_one() {
    let (_database, mut client) = counted();
    create(&mut client, "q", "max_attempts => 1");
    create(&mut client, "other", "");
    for end in ["queue.complete(id)", "queue.fail(id, 'no')"] {
        client.run("SELECT queue.enqueue('q')");
        client.run(&format!(
            "BEGIN; CREATE TEMPORARY TABLE mine AS SELECT id FROM queue.claim('q');
             SELECT pg_sleep(0.3); SELECT {end} FROM mine; COMMIT; DROP TABLE mine"
        ));
        let mean = run_mean(&mut client, "q").unwrap();
        assert!((0.3..1.0).contains(&mean), "{mean}");
    }
    // A released attempt has taken a worker's time, although no job has ended.
    client.run("SELECT queue.enqueue('other')");
    client.run("SELECT queue.release(id) FROM queue.claim('other')");
    assert_eq!(run_mean(&mut client, "other"), None);
    assert_eq!(load(&mut client, "q", "ends").map(|ends| (ends * 60.0).round()), Some(2.0));
}

#[test]
fn limits_and_pauses_bound_the_number_of_needed_workers() {
    let (_database, mut client) = counted();
    create(&mut client, "q", "");
    create(&mut client, "staged", "stages => '{a, b}'");
    work(&mut client, "q", 20_000, 4);
    let free = needed(&mut client, "q");
    assert!(free > 30.0, "{free}");
    client.run("SELECT queue.alter('q', max_running => 7)");
    assert_eq!(needed(&mut client, "q"), 7.0);
    client.run("SELECT queue.alter('q', rate_limit => 20, reset => '{max_running}')");
    let mean = run_mean(&mut client, "q").unwrap();
    assert_eq!(needed(&mut client, "q"), (20.0 * mean - 1e-6).ceil());
    client.run("SELECT queue.pause('q')");
    assert_eq!(needed(&mut client, "q"), 0.0);
    client.run("SELECT queue.resume('q')");
    client.run("SELECT queue.alter('q', reset => '{rate_limit}')");
    client.run("SELECT FROM queue.claim('q', 3)");
    client.run("SELECT queue.pause('q')");
    assert_eq!(needed(&mut client, "q"), 3.0);
    // The stages share the running limit.
    client.run("SELECT count(*) FROM queue.enqueue_many('staged', array_fill('{}'::jsonb, '{20000}'))");
    client.run("SELECT queue.advance(id) FROM queue.claim('staged', 10000)");
    for stage in ["a", "b"] {
        client.run(&format!(
            "CREATE TEMPORARY TABLE {stage} AS SELECT id FROM queue.claim('staged', stage => '{stage}')"
        ));
    }
    thread::sleep(Duration::from_millis(100));
    client.run("SELECT queue.advance(id) FROM a; SELECT queue.complete(id) FROM b");
    client.run("SELECT queue.alter('staged', max_running => 1)");
    let shared = "SELECT string_agg(stage || needed, ' ' ORDER BY stage) FROM queue.load('staged')";
    assert_eq!(client.value::<String>(shared), "a1 b1", "each part is rounded up");
    client.run("SELECT queue.alter('staged', reset => '{max_running}')");
    assert_ne!(client.value::<String>(shared), "a1 b1");
}

#[test]
fn jobs_that_last_longer_than_the_mean_keep_their_workers() {
    let (_database, mut client) = counted();
    create(&mut client, "l", "lease => '1 hour'");
    let enqueue = |client: &mut Client, jobs: i64| {
        client.run(&format!("SELECT count(*) FROM queue.enqueue_many('l', array_fill('{{}}'::jsonb, '{{{jobs}}}'))"));
    };
    enqueue(&mut client, 10);
    assert_eq!(client.count("SELECT FROM queue.claim('l', 10)"), 10);
    enqueue(&mut client, 100);
    client.run("SELECT queue.complete_many(ARRAY(SELECT id FROM queue.claim('l', 100)))");
    let mean = run_mean(&mut client, "l").unwrap();
    wait::until_true("all ten have lasted longer than the mean", || needed(&mut client, "l") >= 10.0);
    assert!(mean < 1.0, "{mean}");
    enqueue(&mut client, 5);
    assert_eq!(needed(&mut client, "l"), 11.0);
    client.run("SELECT queue.alter('l', max_running => 10)");
    assert_eq!(needed(&mut client, "l"), 10.0);
}

#[test]
fn load_goes_on_over_a_crash_with_the_time_of_the_claim() {
    let (cluster, mut client) = Cluster::new().start_with_database("app");
    create(&mut client, "q", "lease => '1 hour'");
    client.run("SELECT count(*) FROM queue.enqueue_many('q', array_fill('{}'::jsonb, '{50}'))");
    client.run("SELECT queue.enqueue('q', delay => '20 s')");
    let id: i64 = client.value("SELECT id FROM queue.claim('q')");
    thread::sleep(Duration::from_millis(500));
    cluster.crash(client.value("SELECT pg_backend_pid()"));
    let mut client = cluster.connect_to("app");
    // Memory and the rows give the same numbers.
    let numbers = "SELECT concat_ws(' ', ready, due_soon, running, needed) FROM queue.load('q')";
    assert_eq!(client.value::<String>(numbers), "49 1 1 2");
    client.wait_counted();
    assert_eq!(client.value::<String>(numbers), "49 1 1 2");
    client.run(&format!("SELECT queue.complete({id})"));
    let mean = run_mean(&mut client, "q").unwrap();
    assert!((0.5..60.0).contains(&mean), "{mean}");
}

#[test]
fn before_memory_has_counted_the_rows_are_counted() {
    let (_database, mut client) = Database::without_worker().with_queue("q", "stages => '{a, b}'");
    client.run(
        "SELECT count(*) FROM queue.enqueue_many('q', array_fill('{}'::jsonb, '{5}'));
         SELECT queue.enqueue('q', delay => '20 s'), queue.enqueue('q', delay => '1 hour')",
    );
    client.run("SELECT FROM queue.claim('q', 2)");
    assert!(!client.value::<bool>("SELECT coalesce(bool_or(is_counted), false) FROM queue_internal.tallies()"));
    let numbers = "SELECT string_agg(concat_ws(' ', stage, ready, due_soon, running, needed), ', ' ORDER BY stage)
                   FROM queue.load('q')";
    assert_eq!(client.value::<String>(numbers), "a 3 1 2 3, b 0 0 0 0");
}

#[test]
fn bad_arguments_are_refused_and_other_queues_are_not_revealed() {
    let (_database, mut client) = Database::new().with_queue("q", "");
    client.refused("SELECT queue.load('none')", "42704");
    client.refused("SELECT queue.load('q', '0')", "22023");
    client.refused("SELECT queue.load('q', '-1 s')", "22023");
    assert_eq!(client.count("SELECT FROM queue.load(NULL, NULL)"), 1);
    assert_eq!(client.count("SELECT FROM queue.load('q', '178000000 years')"), 1);
}
