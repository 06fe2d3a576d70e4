//! After a crash, a restart or a promotion: committed work exists, running jobs keep running, and no id is used twice.

use crate::shared::*;

/// A server with room for prepared transactions. It is not started.
pub fn cluster() -> Cluster {
    Cluster::new().conf("max_prepared_transactions = 10")
}

/// Kills all processes of the server, starts it again and connects.
fn kill(cluster: &Cluster) -> Client {
    cluster.restart_killed();
    cluster.connect_to("app")
}

#[test]
fn the_first_claim_after_a_crash_with_a_large_backlog_takes_less_than_a_second() {
    let (cluster, mut client) = cluster().start_with_database("app");
    create(&mut client, "q", "");
    for _ in 0..20 {
        client.run(
            "SELECT count(*) FROM queue.enqueue_many('q', \
            (SELECT array_agg(jsonb '{}') FROM generate_series(1, 50000)))",
        );
    }
    // Some of the jobs have ended, and some run.
    client.run("SELECT queue.complete(id) FROM queue.claim('q', 20000)");
    client.run("SELECT count(*) FROM queue.claim('q', 5000)");
    let mut claimed: i64 = client.value("SELECT job_id FROM queue.claim('q')");

    // A busy machine may stop a session for a second, so one quick attempt is enough.
    for attempt in 1..=3 {
        cluster.restart_killed();
        let start = Instant::now();
        client = cluster.connect_to("app");
        let next: i64 = client.value("SELECT job_id FROM queue.claim('q')");
        let took = start.elapsed();
        eprintln!("the first claim took {took:?}");
        assert!(next > claimed, "{next} ranks before {claimed}, which is running");
        claimed = next;
        if took < Duration::from_secs(1) {
            break;
        }
        assert!(attempt < 3, "the first claim took {took:?}");
    }
    let in_order: Vec<i64> = client.column("SELECT job_id FROM queue.claim('q', 5000)");
    assert!(in_order.is_sorted(), "after a crash the order is the same");
    assert_eq!(in_order.len(), 5000);
    assert_eq!(in_order[0], claimed + 16);
}

#[test]
fn running_jobs_keep_running_over_a_crash_with_their_longest_lease() {
    let (cluster, mut client) = cluster().start_with_database("app");
    create(&mut client, "q", "lease => '30 s'");
    for _ in 0..5 {
        client.enqueue("q");
    }
    let claimed: Vec<(i64, i64)> = client.rows("SELECT id, job_id FROM queue.claim('q', 5)");
    let [plain, long, shortened, cancelled, reported] = claimed[..] else { panic!("{claimed:?}") };
    client.run(&format!("SELECT queue.extend({}, '1 hour')", long.0));
    client.run(&format!("SELECT queue.extend({}, '2 hours')", shortened.0));
    client.run(&format!("SELECT queue.extend({}, '1 second')", shortened.0));
    client.run(&format!("SELECT queue.cancel({}, 'enough')", cancelled.1));
    client.run(&format!("SELECT queue.progress({}, '{{\"page\": 7}}')", reported.0));
    let (own, later) = (client.enqueue("q"), client.enqueue("q"));
    client.run("BEGIN");
    let id = client.claim("q");
    client.run(&format!("SELECT queue.extend({id}, '1 hour'); COMMIT"));
    let id = client.claim("q");
    client.run(&format!("BEGIN; SELECT queue.extend({id}, '1 hour'); ROLLBACK"));
    client.run(&format!("SELECT queue.extend({id}, '1 hour')"));
    create(&mut client, "brief", "lease => '1 s'");
    let brief = client.enqueue("brief");
    client.claim("brief");

    let mut client = kill(&cluster);
    let up = Instant::now();
    client.run("SELECT FROM queue.maintain()");
    assert_eq!(client.count("SELECT FROM queue.claim('q', 10)"), 0, "all of them are still running");
    for (what, job_id, from, to) in [
        ("plain", plain.1, 20.0, 30.0),
        ("long", long.1, 3500.0, 3600.0),
        ("shortened", shortened.1, 7100.0, 7200.0),
        ("extended in its own transaction", own, 3500.0, 3600.0),
        ("extended after a rollback", later, 3500.0, 3600.0),
    ] {
        let left = lease_left_of_job(&mut client, job_id);
        assert!(from < left && left <= to, "{what}: the lease lasts {left} s");
    }
    assert!(client.value::<bool>(&format!("SELECT is_cancelled FROM queue.extend({})", cancelled.0)));
    assert!(!client.value::<bool>(&format!("SELECT is_cancelled FROM queue.extend({})", plain.0)));

    // The workers have survived and end these jobs.
    client.run(&format!("SELECT queue.complete({})", plain.0));
    client.run(&format!("SELECT queue.fail({}, 'no')", cancelled.0));
    assert_eq!(client.state(cancelled.1), "cancelled");
    client.run(&format!("SELECT queue.fail({}, 'no', retry_in => '0')", reported.0));
    let again: String = client.value("SELECT progress::text FROM queue.claim('q')");
    assert_eq!(again, r#"{"page": 7}"#);
    client.refused(&format!("SELECT queue.complete({})", plain.0), "QJ001");
    // A lease that ends after the crash is noticed.
    let again: (i64, i32) = wait::within("it is offered again", Duration::from_secs(10), || {
        client.run("SELECT FROM queue.maintain()");
        client.rows("SELECT job_id, attempt FROM queue.claim('brief')").pop()
    });
    assert_eq!(again, (brief, 2));
    assert!(up.elapsed() > Duration::from_millis(900), "the lease started anew with the server");
}

#[test]
fn a_crash_gives_back_jobs_with_a_span_of_zero_and_forgets_other_spans() {
    let (cluster, mut client) = cluster().start_with_database("app");
    create(&mut client, "q", "lease => '1 hour'");
    let job_id = client.enqueue("q");
    let id: i64 = client.value("SELECT id FROM queue.claim('q', disconnect => '0')");
    let with_span = client.enqueue("q");
    client.run("SELECT FROM queue.claim('q', disconnect => '1 ms')");
    let mut client = kill(&cluster);
    let again = wait::within("it is offered again", Duration::from_secs(10), || {
        client.run("SELECT FROM queue.maintain()");
        client.query_opt("SELECT id, job_id FROM queue.claim('q')", &[]).unwrap()
    });
    assert_eq!(again.get::<_, i64>(1), job_id);
    let lost = client.refused(&format!("SELECT queue.complete({id})"), "QJ001");
    assert!(lost.detail.contains("timed out"), "{lost:?}");
    // A crash forgets any other `disconnect` span: the worker may come back within its lease.
    assert!(lease_left_of_job(&mut client, with_span) > 3500.0);
}

#[test]
fn a_request_to_cancel_that_came_too_late_survives_a_crash() {
    let (cluster, mut client) = cluster().start_with_database("app");
    client.switch_worker_off();
    cluster.restart();
    let mut client = cluster.connect_to("app");
    create(&mut client, "q", "");
    let mut worker = cluster.connect_to("app");
    // These attempts ended and their jobs went on, or they were never claimed. There are more of them than memory has
    // room for.
    let jobs: Vec<i64> = (0..150).map(|_| client.enqueue("q")).collect();
    let ids: Vec<i64> = worker.column("SELECT id FROM queue.claim('q', 100)");
    worker.run("BEGIN");
    assert_eq!(worker.count("SELECT FROM queue.claim('q', 50)"), 50);
    client.run("BEGIN");
    client.query("SELECT queue.cancel(job) FROM unnest($1::bigint[]) AS job", &[&jobs]).unwrap();
    worker.run("ROLLBACK");
    assert_eq!(
        worker.query("SELECT FROM queue.fail_many($1, 'x', '0') WHERE outcome = 'failed'", &[&ids]).unwrap().len(),
        100
    );
    client.run("COMMIT");
    let mut client = kill(&cluster);
    client.run("ALTER DATABASE app RESET pg_queue.worker");
    wait::until_true("all are cancelled", || {
        client.run("SELECT FROM queue.maintain()");
        client.count("SELECT FROM queue.jobs WHERE state = 'cancelled'") == jobs.len()
    });
}

#[test]
fn a_clean_restart_keeps_everything() {
    let (cluster, mut client) = cluster().start_with_database("app");
    create(&mut client, "q", "lease => '1 hour'");
    create(&mut client, "paused", "");
    client.run("SELECT queue.enqueue('q', '{\"n\": 1}')");
    let running = client.claim("q");
    client.run("SELECT queue.enqueue('q', '{\"n\": 2}'), queue.enqueue('q', '{\"n\": 3}', priority => -1)");
    client.run("SELECT queue.enqueue('q', '{\"n\": 4}', delay => '500 ms')");
    client.run("SELECT queue.enqueue('paused'); SELECT queue.pause('paused')");
    cluster.restart();
    let mut client = cluster.connect_to("app");
    let order: Vec<String> = client.column("SELECT payload ->> 'n' FROM queue.claim('q', 2)");
    assert_eq!(order, ["3", "2"]);
    let due: String = wait::until("the scheduled job is due", || {
        client.run("SELECT FROM queue.maintain()");
        client.column("SELECT payload ->> 'n' FROM queue.claim('q')").pop()
    });
    assert_eq!(due, "4");
    assert_eq!(client.count("SELECT FROM queue.claim('paused')"), 0);
    client.run(&format!("SELECT queue.complete({running})"));
}

/// Takes this number of ids in transactions that roll back, which shows more ids than commits do.
fn take_ids(client: &mut Client, count: i64, seen: &mut BTreeSet<i64>) {
    for end in ["ROLLBACK", "COMMIT"] {
        client.run("BEGIN");
        let sql =
            format!("SELECT queue.enqueue_many('q', (SELECT array_agg(jsonb '1') FROM generate_series(1, {count})))");
        for id in client.column::<i64>(&sql) {
            assert!(seen.insert(id), "id {id} was handed out twice");
        }
        client.run(end);
    }
}

#[test]
fn no_id_is_handed_out_twice_over_crashes_with_asynchronous_commit() {
    let (cluster, mut client) =
        Cluster::with(&["synchronous_commit = off", "wal_writer_delay = '10s'"]).start_with_database("app");
    create(&mut client, "q", "");
    let mut seen = BTreeSet::new();
    take_ids(&mut client, 10, &mut seen);
    client.run("CHECKPOINT");
    for count in [1, 9000, 100, 20_000, 1] {
        take_ids(&mut client, count, &mut seen);
        client = kill(&cluster);
    }
    take_ids(&mut client, 10_000, &mut seen);
}

#[test]
fn no_id_is_handed_out_twice_after_the_promotion_of_a_standby_that_lags() {
    let (primary, mut client) = cluster().start_with_database("app");
    create(&mut client, "q", "");
    let mut seen = BTreeSet::new();
    take_ids(&mut client, 100, &mut seen);
    let standby = primary.standby();
    standby.wait_replayed(&primary);
    standby.connect().run("ALTER SYSTEM SET primary_conninfo = ''");
    standby.reload();
    let mut observer = standby.connect();
    wait::until_true("the standby is cut off", || observer.count("SELECT FROM pg_stat_wal_receiver") == 0);
    take_ids(&mut client, 30_000, &mut seen);

    standby.promote();
    let mut client = standby.connect_to("app");
    wait::until_true("the standby is a primary", || !client.value::<bool>("SELECT pg_is_in_recovery()"));
    take_ids(&mut client, 10_000, &mut seen);
    // This session is new and has not seen the first ids.
    take_ids(&mut standby.connect_to("app"), 10, &mut seen);
    standby.restart();
    take_ids(&mut standby.connect_to("app"), 10, &mut seen);
}

#[test]
fn jobs_of_prepared_transactions_appear_when_those_commit_also_after_a_crash() {
    let (cluster, mut client) = cluster().start_with_database("app");
    create(&mut client, "q", "");
    let first: i64 = client.enqueue("q");
    for name in ["yes", "no", "early"] {
        client.run(&format!("BEGIN; SELECT queue.enqueue('q', '{{\"of\": \"{name}\"}}')"));
        client.run(&format!("PREPARE TRANSACTION '{name}'"));
    }
    let found = client.column::<i64>("SELECT job_id FROM queue.claim('q', 10)");
    assert_eq!(found, [first], "the others are not there yet");
    client.run("COMMIT PREPARED 'early'");
    assert_eq!(client.column::<String>("SELECT payload ->> 'of' FROM queue.claim('q', 10)"), ["early"]);

    let mut client = kill(&cluster);
    assert_eq!(client.count("SELECT FROM queue.claim('q', 10)"), 0, "the others are still not there");
    let sql = "SELECT payload ->> 'of' FROM queue.claim('q', 10, wait => '10 s')";
    let thread = asleep::<String>(&mut client, cluster.connect_to("app"), sql);
    let start = Instant::now();
    client.run("ROLLBACK PREPARED 'no'");
    client.run("COMMIT PREPARED 'yes'");
    assert_eq!(thread.join().unwrap(), ["yes"]);
    assert!(start.elapsed() < Duration::from_secs(5), "COMMIT PREPARED wakes what waits");
    assert_eq!(client.count("SELECT FROM queue.claim('q', 10)"), 0, "what was rolled back does not appear");
}

#[test]
fn a_session_that_is_ended_while_it_starts_due_jobs_leaves_none_behind() {
    let (cluster, mut client) = cluster().start_with_database("app");
    client.switch_worker_off();
    create(&mut client, "q", "");
    // Memory knows that the lane's index was read to its end.
    assert_eq!(client.count("SELECT FROM queue.claim('q')"), 0);
    client.run("SELECT FROM queue.maintain()");
    const JOBS: usize = 60_000;
    client.run(&format!(
        "SELECT count(*) FROM queue.enqueue_many('q', (SELECT array_agg(jsonb '{{}}') \
            FROM generate_series(1, {JOBS})), delay => '100 ms')"
    ));
    client.run("SELECT pg_sleep(0.2)");
    // The session is ended while it starts due jobs. Any number of them may have been started.
    for _ in 0..3 {
        let mut other = cluster.connect_to("app");
        let pid = other.pid();
        let thread = thread::spawn(move || other.batch_execute("SELECT FROM queue.maintain()"));
        wait::until_true("it has begun", || {
            let sql = format!(
                "SELECT FROM pg_stat_activity WHERE pid = {pid} AND state = 'active' AND query LIKE '%maintain%'"
            );
            client.count(&sql) == 1 || thread.is_finished()
        });
        client.run(&format!("SELECT pg_terminate_backend({pid})"));
        if let Err(e) = thread.join().unwrap() {
            assert!(e.is_closed() || error::code(&e) == "57P01", "{e:?}");
        }
    }
    client.run("SELECT FROM queue.maintain()");
    let mut claimed = 0;
    loop {
        let count = client.count("SELECT queue.complete(id) FROM queue.claim('q', 5000)");
        claimed += count;
        if count == 0 {
            break;
        }
    }
    assert_eq!(claimed, JOBS);
}

#[test]
fn ids_can_be_taken_where_the_log_ends_with_a_page() {
    // The record that makes a block of ids durable may end just before a page header, which is a special case.
    let (_cluster, mut client) =
        Cluster::with(&["autovacuum = off", "checkpoint_timeout = '1h'"]).start_with_database("app");
    create(&mut client, "q", "");
    const BLOCK: i64 = 8192;
    let offset =
        |client: &mut Client| client.value::<i64>("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint % 8192");
    let mut hits = 0;
    for _ in 0..40 {
        // Uses all but the last few ids of the block, so that the next call takes another block.
        let used: i64 = client.value("SELECT queue.enqueue('q')");
        let left = BLOCK - (used >> 4) % BLOCK;
        client.run(&format!("SELECT count(*) FROM queue.enqueue_many('q', array_fill(jsonb '1', ARRAY[{left}]))"));
        // A message's overhead depends on its length, so it is measured.
        let mut beside = 64;
        for _ in 0..6 {
            let before = offset(&mut client);
            let text = 8192 - before - beside;
            if text < 300 {
                client.run("SELECT pg_logical_emit_message(false, '', repeat('x', 4000))");
                continue;
            }
            client.run(&format!("SELECT pg_logical_emit_message(false, '', repeat('x', {text}))"));
            let now = offset(&mut client);
            // If the next page has not begun, the reported insert position is after its header.
            if now == 24 {
                hits += 1;
                break;
            }
            beside = if now > before { now - before - text } else { 8192 - 24 + now - before - text };
            client.run("SELECT pg_logical_emit_message(false, '', repeat('x', 4000))");
        }
        client.enqueue("q");
        if hits >= 3 {
            return;
        }
    }
    panic!("the log never ended with a page");
}

#[test]
fn an_unreadable_page_affects_only_its_own_database() {
    let (cluster, mut good) = Cluster::new().start_with_database("good");
    create(&mut good, "q", "lease => '1 s'");
    let mut bad = cluster.create_database("bad");
    create(&mut bad, "q", "lease => '1 s'");
    bad.run("SELECT count(*) FROM queue.enqueue_many('q', array_fill('1'::jsonb, '{5000}'))");
    let file: String = bad.value("SELECT pg_relation_filepath('queue_internal.attempt_0')");
    drop((good, bad));
    cluster.stop_fast();
    let file = cluster.data().join(file);
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[8192..3 * 8192].fill(0xa5);
    std::fs::write(&file, bytes).unwrap();
    cluster.start_again();

    let mut bad = cluster.connect_to("bad");
    for _ in 0..5 {
        bad.refused("SELECT count(*) FROM queue.claim('q', 1000)", "XX001");
    }
    let mut good = cluster.connect_to("good");
    let job = good.enqueue("q");
    good.claim("q");
    wait::until_true("the lease has ended", || good.state(job) == "ready" || good.state(job) == "retrying");
    let log = cluster.log();
    assert!(!log.contains("terminated by signal"), "{log}");
}

#[test]
fn an_attempt_that_cannot_be_ended_does_not_keep_others_from_ending() {
    let (cluster, mut client) = Cluster::new().start_with_database("app");
    create(&mut client, "q", "lease => '1 s'");
    let broken = client.enqueue("q");
    let id = client.claim("q");
    let job = client.enqueue("q");
    client.claim("q");
    assert_ne!(broken, job);
    // The index makes the call raise an error for this attempt.
    client.run(&format!("CREATE INDEX ON queue_internal.outcome_0 ((1 / (id - {id})))"));
    wait::until_true("the lease of the other has ended", || client.state(job) != "running");
    wait::until_true("that is told", || cluster.log().contains(&format!("attempt {id} could not be ended")));
}

#[test]
fn a_job_with_more_attempts_than_a_refill_looks_at_is_passed() {
    let (cluster, mut client) = Cluster::new().start_with_database("app");
    create(&mut client, "q", "");
    let hot = client.enqueue("q");
    // In the test library a refill looks at 2,000 ids.
    client.run(&format!("DO $$ BEGIN FOR i IN 1..4500 LOOP PERFORM queue.reschedule({hot}, now()); END LOOP; END $$"));
    let next = client.enqueue("q");
    cluster.restart();
    let mut client = cluster.connect_to("app");
    client.run("SET statement_timeout = '20 s'");
    let claimed: Vec<i64> = client.column("SELECT job_id FROM queue.claim('q', 10)");
    assert_eq!(claimed, [hot, next]);
}

#[test]
fn ids_have_the_number_of_their_server_and_are_used_up_with_an_error() {
    let (cluster, mut client) = Cluster::new().conf("pg_queue.node_id = 5").start_with_database("app");
    create(&mut client, "q", "");
    let job = client.enqueue("q");
    assert_eq!((job >> 46, client.claim("q") >> 46), (5, 5), "{job}");
    cluster.append_conf("pg_queue.node_id = 127");
    cluster.reload();
    wait::until_true("another number", || client.enqueue("q") >> 46 == 127);
    client.run("SELECT setval('queue_internal.id_seq', (1::bigint << 42) - 8192 * 2)");
    let mut client = cluster.connect_to("app");
    let mut last = 0;
    let failure = loop {
        match client.query("SELECT queue.enqueue_many('q', array_fill('1'::jsonb, '{1000}'))", &[]) {
            Ok(rows) => last = rows[999].get::<_, i64>(0),
            Err(e) => break Failure::from(&e),
        }
    };
    assert_eq!(failure.code, "54000", "{failure:?}");
    assert!(last >> 46 == 127 && last < 1 << 53, "{last}");
    // Existing jobs go on, and the hint's advice helps.
    client.run("SELECT queue.complete(id) FROM queue.claim('q', 10)");
    cluster.append_conf("pg_queue.node_id = 6");
    cluster.reload();
    client.run("ALTER SEQUENCE queue_internal.id_seq RESTART");
    wait::until_true("ids of the new number", || {
        let row = client.query_one("SELECT queue.enqueue('q')", &[]);
        row.is_ok_and(|row| row.get::<_, i64>(0) >> 46 == 6)
    });
}
