//! The copy to history: attempts, notes, payloads, and the order of groups.

use queue_tests::EARLIER;

use crate::shared::*;
use crate::storage::history::{SERVER, children, database, reclaim};
use crate::storage::segments_races::{claim_one, drive, drive_to_move, enqueue, in_state, maintain, still};

#[test]
fn payloads_are_shown_however_long_a_query_takes() {
    let (mut client, name) = database();
    create(&mut client, "q", "max_attempts => 2, backoff_base => '0'");
    client.run(
        "SELECT count(*) FROM queue.enqueue_many('q', ARRAY(SELECT to_jsonb(n) FROM generate_series(1, 30) AS n))",
    );
    client.work_off("q", 10);
    // These attempts go on while the cursor reads them.
    let running: Vec<i64> = client.column("SELECT id FROM queue.claim('q', 10)");
    let mut looker = SERVER.connect_to(&name);
    looker.run("BEGIN; DECLARE look CURSOR FOR SELECT payload::text::int FROM queue.jobs WHERE queue_name = 'q'");
    let mut seen: Vec<Option<i32>> = looker.column("FETCH 1 FROM look");
    client.query("SELECT queue.fail_many($1, 'x')", &[&running]).unwrap();
    client.work_off("q", 30);
    reclaim(&mut client);
    seen.extend(looker.column::<Option<i32>>("FETCH ALL FROM look"));
    seen.sort_unstable();
    assert_eq!(seen, (1..=30).map(Some).collect::<Vec<_>>());
}

#[test]
fn a_job_with_very_many_attempts_is_copied_without_reading_them_all_for_each() {
    const ATTEMPTS: i64 = 400;
    let (mut client, _) = database();
    create(&mut client, "q", "max_attempts => 1000, backoff => 'constant', backoff_base => '0', backoff_jitter => 0");
    client.enqueue("q");
    client.run(&format!(
        "DO $$ BEGIN FOR n IN 1..{ATTEMPTS} LOOP
             PERFORM queue.fail(id, 'oh') FROM queue.claim('q');
             COMMIT;
         END LOOP; END $$"
    ));
    let entries = |client: &mut Client| -> i64 {
        client.flush_statistics();
        client.value(
            "SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes WHERE indexrelname ~ '^attempt_._job_idx'",
        )
    };
    let before = entries(&mut client);
    reclaim(&mut client);
    let read = entries(&mut client) - before;
    assert_eq!(client.count("SELECT FROM queue_internal.history"), ATTEMPTS as usize);
    assert!(read > 0 && read < 20 * ATTEMPTS, "{read} entries were read for {ATTEMPTS} attempts");
}

#[test]
fn only_notes_that_still_count_move() {
    let (mut client, _) = database();
    create(&mut client, "q", "lease => '1 minute'");
    let job_id = client.enqueue("q");
    let id = client.claim("q");
    client.run(&format!("SELECT queue.progress({id}, to_jsonb(n)) FROM generate_series(1, 50) AS n"));
    client.run(&format!("SELECT queue.extend({id}, '3 hours')"));
    client.run(&format!("SELECT queue.extend({id}, '2 hours')"));
    client.run(&format!("SELECT queue.cancel({job_id}, 'why')"));
    reclaim(&mut client);
    let kinds = "SELECT string_agg(kind::text, '' ORDER BY kind) \
        FROM (SELECT * FROM queue_internal.note_8 UNION ALL SELECT * FROM queue_internal.note_9) AS n";
    assert_eq!(client.value::<String>(kinds), "clp");
    let moved: String = client.value(&format!(
        "SELECT format('%s %s', j.progress, e.is_cancelled) FROM queue.job({job_id}) AS j, queue.extend({id}) AS e"
    ));
    assert_eq!(moved, "50 t");
    // After a start of the server the longest noted lease counts.
    let lease: i64 = client.value(
        "SELECT max(lease_us) FROM (SELECT * FROM queue_internal.note_8 UNION ALL SELECT *
            FROM queue_internal.note_9) AS n",
    );
    assert_eq!(lease, 3 * 3600 * 1_000_000);
}

#[test]
fn a_strict_groups_order_holds_while_its_jobs_move() {
    const JOBS: usize = 4_000;
    let (mut client, name) = database();
    create(&mut client, "q", "strict_order => true");
    client.run(&format!(
        "SELECT queue.enqueue_batch('q', (SELECT jsonb_agg('{{\"group_key\": \"g\"}}'::jsonb) \
            FROM generate_series(1, {JOBS})))"
    ));
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let order: Vec<i64> = thread::scope(|scope| {
        scope.spawn(|| {
            let mut mover = SERVER.connect_to(&name);
            while !is_over.load(Ordering::Relaxed) {
                // The filler closes segments, so that rows move.
                mover.run("SELECT queue.create('filler', retention => '0', if_not_exists => true)");
                mover.pass_through("filler", 10);
                mover.run("SELECT FROM queue.maintain()");
            }
        });
        let moving = "SELECT EXISTS (SELECT FROM queue_internal.segment_log WHERE state = 'm')";
        wait::until_true("they move", || client.value::<bool>(moving));
        let mut order = Vec::new();
        let start = Instant::now();
        while order.len() < JOBS && start.elapsed() < Duration::from_secs(15) {
            order
                .extend(client.column::<i64>(
                    "SELECT job_id FROM (SELECT job_id, queue.complete(id) FROM queue.claim('q')) AS c",
                ));
        }
        is_over.store(true, Ordering::Relaxed);
        order
    });
    assert!(order.len() > 100, "{}", order.len());
    let overtaken = order.windows(2).filter(|pair| pair[0] > pair[1]).count();
    assert_eq!(overtaken, 0, "of {}", order.len());
}

#[test]
fn indexes_that_users_add_to_history_are_not_used() {
    let (mut client, _) = database();
    create(&mut client, "q", "");
    let end = |client: &mut Client, fatal: bool| {
        client.enqueue("q");
        let end = if fatal { "queue.fail(id, 'x', fatal => true)" } else { "queue.complete(id)" };
        client.run(&format!("SELECT {end} FROM queue.claim('q')"));
    };
    end(&mut client, false);
    end(&mut client, true);
    reclaim(&mut client);
    for child in children(&mut client) {
        let name = child.trim_start_matches("queue_internal.");
        client.run(&format!("CREATE INDEX {name}_mine ON {child} (lane) WHERE outcome = 'c'"));
        client.run(&format!("CREATE INDEX {name}_hash ON {child} USING hash (job_id)"));
        // With REINDEX the extension's index gets a larger oid than the user's.
        client.run(&format!("REINDEX INDEX CONCURRENTLY {child}_lane_idx"));
        client.run(&format!("REINDEX INDEX CONCURRENTLY {child}_job_id_idx"));
    }
    client.pass_through("q", 500);
    end(&mut client, true);
    reclaim(&mut client);
    assert_eq!(client.value::<i64>("SELECT dead FROM queue.stats WHERE queue_name = 'q'"), 2);
    assert_eq!(client.value::<i64>(&retry_dead("q")), 2);
}

#[test]
fn history_goes_on_over_an_upgrade() {
    let (mut client, _) = database();
    client.run(&format!("DROP EXTENSION pg_queue; CREATE EXTENSION pg_queue VERSION '{EARLIER}'"));
    create(&mut client, "q", "lease => '1 minute'");
    let dead = |client: &mut Client| -> i64 {
        let job = client.value(r#"SELECT queue.enqueue('q', '{"n": 1}', lease => '3 hours')"#);
        client.run("SELECT queue.fail(id, 'oh', fatal => true) FROM queue.claim('q')");
        reclaim(client);
        assert_eq!(client.count(&format!("SELECT FROM queue_internal.history WHERE job_id = {job}")), 1);
        job
    };
    let before = dead(&mut client);
    let known = "SELECT to_jsonb(j)::text FROM queue.jobs AS j ORDER BY job_id";
    let seen: Vec<String> = client.column(known);
    client.run("ALTER EXTENSION pg_queue UPDATE");
    assert_eq!(client.column::<String>(known), seen);
    let after = dead(&mut client);
    assert_eq!(client.value::<i64>(&retry_dead("q")), 2);
    let claimed: Vec<String> = client.column(
        "SELECT format('%s %s %s', job_id, payload ->> 'n', date_trunc('hour', lease_expires_at - now() + '1 minute'))
         FROM queue.claim('q', 2)",
    );
    assert_eq!(claimed, [format!("{before} 1 03:00:00"), format!("{after} 1 03:00:00")]);
}

#[test]
fn a_job_that_is_retried_has_its_last_progress_its_lease_and_its_version_wherever_it_lies() {
    let (_cluster, mut client) =
        Cluster::with(&["pg_queue.segment_age = 1", "pg_queue.reclaim_delay = 0"]).start_with_database("app");
    create(&mut client, "q", "");
    let versions: Vec<String> =
        (0..10).map(|n| format!("SELECT job_id, version FROM queue_internal.attempt_{n}")).collect();
    let versions = versions.join(" UNION ALL ");
    for is_past in [true, false] {
        let job: i64 = client.value(
            "SELECT queue.enqueue('q', unique_key => 'k' || clock_timestamp(), version => '2030-01-01', \
                lease => '3 hours')",
        );
        let id: i64 = client.value("SELECT id FROM queue.claim('q')");
        client.run(&format!("SELECT queue.progress({id}, '50'), queue.fail({id}, 'x', fatal => true)"));
        if is_past {
            let kept = format!("SELECT FROM queue_internal.history WHERE job_id = {job}");
            wait::until_true("it is in history", || client.count(&kept) > 0);
            wait::until_true("its segment is empty", || {
                client.value::<bool>(&format!("SELECT NOT EXISTS (SELECT FROM ({versions}) AS a)"))
            });
        }
        client.run(&format!("SELECT queue.retry({job})"));
        let claimed: String = client.value(
            "SELECT format('%s %s', progress, lease_expires_at BETWEEN now() + '2 hours' AND now() + '4 hours')
             FROM queue.claim('q')",
        );
        assert_eq!(claimed, "50 t", "past: {is_past}");
        let version = format!("SELECT max(version) = '2030-01-01' FROM ({versions}) AS a WHERE job_id = {job}");
        assert!(client.value::<bool>(&version), "past: {is_past}");
    }
}

#[test]
fn a_job_that_ends_while_its_segment_is_read_is_kept_completely() {
    // In one case a worker with an earlier claim writes the segment's first note and completes the job. In the other
    // case it also claims the job.
    for is_claimed_before in [true, false] {
        let cluster = still(&[]);
        let mut client = cluster.connect();
        // The job has the smallest id, so the first step reads it.
        enqueue(&mut client, 1, ", priority => 5");
        enqueue(&mut client, 11_999, "");
        assert_eq!(client.work_off("q", 11_999), 11_999);
        drive_to_move(&mut client);
        let mut claimed = if is_claimed_before { claim_one(&mut client) } else { None };
        let fault = cluster.fault("walk.claims_read", "wait");
        let mut mover = cluster.connect();
        thread::scope(|scope| {
            scope.spawn(move || maintain(&mut mover));
            wait::until("the duty has read claims", || fault.reached_by());
            claimed = claimed.or_else(|| claim_one(&mut client));
            let (id, _) = claimed.unwrap();
            if is_claimed_before {
                client.run(&format!("SELECT queue.progress({id}, '7')"));
            }
            client.run(&format!("SELECT queue.complete({id})"));
            fault.release();
        });
        drive(&mut client, "the segment is empty", &in_state(0, "'f'"));
        let sql = format!(
            "SELECT format('%s %s %s', state, progress, claimed_at IS NOT NULL) FROM queue.job({})",
            claimed.unwrap().1
        );
        let expected = if is_claimed_before { "completed 7 t" } else { "completed  t" };
        assert_eq!(client.value::<String>(&sql), expected);
        assert_eq!(client.value::<String>("SELECT format('%s %s', ready, running) FROM queue.stats"), "0 0");
        integrity::check(&mut client);
    }
}
