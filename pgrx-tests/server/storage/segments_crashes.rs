//! Crashes, restarts and promotions after each step of the storage duty.

use std::fs;

use crate::shared::*;
use crate::storage::segments::{cluster, fillings, has_turned};
use crate::storage::segments_races::{
    ROWS, drive, enqueue, fill, in_state, is, large, maintain, open_segment, still, turn, wait_completed,
};

#[test]
fn nothing_is_lost_by_a_crash_after_any_step() {
    for commit in ["on", "off"] {
        // WAL is written only when a process must flush it.
        let cluster = still(&[
            &format!("synchronous_commit = {commit}"),
            "wal_writer_delay = '10s'",
            "wal_writer_flush_after = '1GB'",
            "full_page_writes = on",
        ]);
        let mut client = cluster.connect();
        client.run("CREATE EXTENSION amcheck");
        client.run(&format!("SELECT queue.enqueue('q', {}, priority => 9)", large(300)));
        enqueue(&mut client, 20, ", priority => 9");
        let claimed = client.query("SELECT id FROM queue.claim('q', 5)", &[]).unwrap();
        let ids: Vec<i64> = claimed.iter().map(|row| row.get(0)).collect();
        client.run(&format!("SELECT queue.fail({}, 'once')", ids[0]));
        client.run(&format!("SELECT queue.progress({}, '7')", ids[1]));
        fill(&mut client);
        client.run(
            "CREATE TABLE expected AS SELECT job_id, state, attempt, progress, md5(payload::text) AS payload \
            FROM queue.jobs WHERE state IN ('ready', 'running', 'retrying')",
        );
        // All changes up to the checkpoint are durable. With asynchronous commits, a crash loses whole steps after it.
        client.run("CHECKPOINT");
        let differences = "SELECT count(*) FROM (
            (TABLE expected EXCEPT ALL SELECT job_id, state, attempt, progress, md5(payload::text) AS payload
            FROM queue.jobs WHERE state IN ('ready', 'running', 'retrying'))
            UNION ALL
            (SELECT job_id, state, attempt, progress, md5(payload::text) AS payload FROM queue.jobs
            WHERE state IN ('ready', 'running', 'retrying') EXCEPT ALL TABLE expected)) AS d";
        let mut crashes = 0;
        // With asynchronous commits each crash undoes all steps that were not flushed.
        while !is(&mut client, &in_state(0, "'f'")) && (commit == "on" || crashes < 3) {
            for _ in 0..if commit == "on" { 1 } else { 12 } {
                maintain(&mut client);
            }
            drop(client);
            cluster.restart_killed();
            client = cluster.connect();
            crashes += 1;
            assert!(crashes < 20, "the ring does not go on");
            let differ = differences.replacen("count(*)", "coalesce(string_agg(d::text, '; '), '')", 1);
            let differ = client.query_one(&differ, &[]).unwrap();
            assert_eq!(differ.get::<_, &str>(0), "", "synchronous_commit {commit}, after crash {crashes}");
            let completed = client.value::<i64>("SELECT count(*) FROM queue.jobs WHERE state = 'completed'");
            assert_eq!(completed, ROWS, "synchronous_commit {commit}, after crash {crashes}");
        }
        assert!(commit == "off" || crashes >= 5, "{crashes} crashes");
        drive(&mut client, "the segment is empty", &in_state(0, "'f'"));
        client.run(
            "SELECT count(bt_index_check(i.indexrelid, heapallindexed => true)) FROM pg_index AS i
         JOIN pg_class AS t ON t.oid = i.indrelid
         WHERE t.relnamespace = 'queue_internal'::regnamespace AND t.relname ~ '_[0-9]$'",
        );
        turn(&mut client, 10);
        assert_eq!(client.value::<i64>(differences), 0, "commit {commit}, at the end");
        for id in &ids[1..] {
            client.run(&format!("SELECT queue.complete({id})"));
        }
        assert_eq!(client.work_off("q", 100), 17);
    }
}

/// A power failure during the rebuild of an index can leave only a part of its first page.
#[test]
fn an_index_broken_by_a_power_failure_is_rebuilt() {
    let cluster = still(&[]);
    let mut client = cluster.connect();
    client.run("CREATE EXTENSION amcheck");
    fill(&mut client);
    drive(&mut client, "the segment is being emptied", &in_state(0, "'e'"));
    let sql = "SELECT pg_relation_filepath(i.indexrelid) FROM pg_index AS i JOIN pg_class AS t ON t.oid = i.indrelid
               WHERE (t.relname ~ '^(attempt|claim|outcome|note|parked)_0$'
                      OR t.oid IN (SELECT reltoastrelid FROM pg_class WHERE relname ~ '^(attempt|outcome|note)_0$'))
                 AND pg_relation_size(i.indexrelid) = 8192";
    let small: Vec<String> = client.column(sql);
    assert!(small.len() > 5, "most indexes of a segment have no entries: {small:?}");
    // The pages are not restored from the log.
    client.run("CHECKPOINT");
    drop(client);
    cluster.kill_server();
    for file in &small {
        fs::write(cluster.data().join(file), [0; 8192]).unwrap();
    }
    cluster.start_again();
    let mut client = cluster.connect();
    drive(&mut client, "the segment is empty", &in_state(0, "'f'"));
    client.run(
        "SELECT bt_index_check(i.indexrelid) FROM pg_index AS i JOIN pg_class AS t ON t.oid = i.indrelid
         WHERE t.relnamespace IN ('queue_internal'::regnamespace, 'pg_toast'::regnamespace)",
    );
    turn(&mut client, 10);
}

/// An emptied table stays empty, but other sessions learn of that only at the commit. If that transaction fails and the
/// next one finds the table empty, they must learn of it nevertheless.
#[test]
fn a_session_from_before_a_failed_emptying_can_write_to_the_segment_again() {
    let cluster = still(&[]);
    let mut client = cluster.connect();
    let mut writer = cluster.connect();
    // The writer has cached the root of each index.
    enqueue(&mut writer, ROWS, ", priority => -5");
    writer.run(&format!("SELECT queue.enqueue('q', {}, priority => -5)", large(2000)));
    assert_eq!(writer.work_off("q", ROWS + 1), ROWS + 1);
    drive(&mut client, "the segment may be emptied", &in_state(0, "'h'"));
    let mut failures = 0;
    wait::until_true("the segment is empty", || {
        let _fault = cluster.fault("truncate.after", "error");
        failures += i64::from(client.batch_execute("SELECT queue.maintain()").is_err());
        is(&mut client, &in_state(0, "'f'"))
    });
    assert!(failures >= 3, "each table that has rows is emptied by a transaction that fails: {failures}");
    for _ in 0..10 {
        let before = fillings(&mut client);
        fill(&mut writer);
        writer.run(&format!("SELECT queue.enqueue('q', {}, priority => -5)", large(2000)));
        assert_eq!(writer.work_off("q", 1), 1);
        wait::until_true("the next segment is open", || {
            maintain(&mut client);
            has_turned(&mut client, before)
        });
    }
    let log = cluster.log();
    assert!(!log.contains("could not read block"), "{log}");
}

#[test]
fn a_table_whose_emptying_was_interrupted_is_emptied_again() {
    let cluster = still(&[]);
    let mut client = cluster.connect();
    client.run("CREATE EXTENSION amcheck");
    fill(&mut client);
    drive(&mut client, "the first table is empty", "pg_relation_size('queue_internal.attempt_0') = 0");
    assert!(is(&mut client, "pg_relation_size('queue_internal.claim_0') > 0"));
    let file: String = client.value("SELECT pg_relation_filepath('queue_internal.claim_0')");
    drop(client);
    cluster.stop_fast();
    // A crash can leave this state, in which the table is emptied and its index is not.
    std::fs::File::options().write(true).open(cluster.data().join(file)).unwrap().set_len(0).unwrap();
    cluster.start_again();
    let mut client = cluster.connect();
    drive(&mut client, "the segment is empty", &in_state(0, "'f'"));
    assert!(
        is(&mut client, "pg_relation_size('queue_internal.claim_0_pkey') = 8192"),
        "the index still has its entries"
    );
    turn(&mut client, 10);
    let check = "SELECT count(bt_index_check(i.indexrelid, heapallindexed => true)),
                        sum(pg_relation_size(i.indexrelid))::bigint FROM pg_index AS i
                 WHERE i.indrelid = 'queue_internal.claim_0'::regclass";
    assert_eq!(client.value::<i64>(check), 1);
}

/// Returns the files of a table and its indexes in the data directory.
fn files(client: &mut Client, table: &str) -> Vec<String> {
    let sql = "SELECT pg_relation_filepath($1::text::regclass) UNION ALL
               SELECT pg_relation_filepath(indexrelid) FROM pg_index WHERE indrelid = $1::text::regclass";
    client.query(sql, &[&table]).unwrap().iter().map(|row| row.get(0)).collect()
}

/// Makes the state that a crash leaves while a table is emptied: no rows, and indexes without their first pages.
fn cut_off(cluster: &Cluster, files: &[String]) {
    for file in files {
        std::fs::File::options().write(true).open(cluster.data().join(file)).unwrap().set_len(0).unwrap();
    }
}

/// Calls everything that reads or writes the logs, except the worker's steps.
fn use_everything(client: &mut Client, ended: i64, jobs: i64) {
    for view in ["jobs", "attempts", "stats", "errors", "workers", "throughput", "queues"] {
        client.run(&format!("SELECT count(*) FROM queue.{view}"));
    }
    assert_eq!(client.value::<i64>("SELECT count(*) FROM queue.jobs"), jobs);
    assert!(is(client, &format!("payload <> '{{}}' FROM queue.job({ended})")));
    client.run(&format!("SELECT queue.forget({ended})"));
    assert!(is(client, &format!("payload = '{{}}' FROM queue.job({ended})")));
    client.run("SELECT queue.adopt()");
    client.run(&retry_dead("q"));
    client.run("SELECT * FROM queue.doctor()");
    client.run("BEGIN; SELECT queue.enqueue('q', '{}'), queue.purge('q'); ROLLBACK");
}

#[test]
fn a_segment_whose_emptying_a_crash_interrupted_harms_no_session_and_is_emptied() {
    let cluster = still(&[]);
    let mut client = cluster.connect();
    // An ended attempt that was retried by hand is also recorded in another place.
    let again = "SELECT queue.enqueue('q', '{}', priority => -9)";
    let again: i64 = client.value(again);
    client.run(&format!("SELECT queue.cancel({again}), queue.retry({again})"));
    client.run("SELECT queue.create('groups', max_running_per_group => 1)");
    let mut jobs = 1;
    // Makes a crash at the emptying of each table.
    for (emptied, table) in ["attempt", "claim", "outcome", "note", "parked"].into_iter().enumerate() {
        let ended = "SELECT queue.enqueue('q', '{\"secret\": 1}', priority => -8)";
        let ended: i64 = client.value(ended);
        let segment = open_segment(&mut client);
        // The duty skips empty tables, so the test makes notes and parked jobs.
        client.run("SELECT queue.enqueue('groups', group_key => 'a') FROM generate_series(1, 3)");
        for _ in 0..3 {
            let id: i64 = client.value("SELECT id FROM queue.claim('groups', 3)");
            client.run(&format!("SELECT queue.progress({id}, '1'); SELECT queue.complete({id})"));
        }
        fill(&mut client);
        assert!(client.work_off("q", 10) >= 1);
        jobs += 4 + ROWS;
        let begun = format!(
            "(SELECT state = 'e' AND copied_to = {emptied} FROM queue_internal.segment_log
              WHERE segment = {segment} ORDER BY entry DESC LIMIT 1)"
        );
        drive(&mut client, "the table is to be emptied next", &begun);
        let files = files(&mut client, &format!("queue_internal.{table}_{segment}"));
        drop(client);
        cluster.stop_fast();
        cut_off(&cluster, &files);
        cluster.start_again();
        client = cluster.connect();
        use_everything(&mut client, ended, jobs);
        // A step that has begun is completed, even if a setting now forbids it.
        client.run("ALTER SYSTEM SET pg_queue.reclaim = off");
        cluster.reload();
        let broken = |client: &mut Client| {
            client.batch_execute(&format!("SELECT count(*) FROM queue_internal.{table}_{segment} WHERE false")).is_err()
        };
        assert!(table == "parked" || broken(&mut client), "nothing was cut off");
        drive(&mut client, "the segment is empty", &in_state(segment, "'f'"));
        assert!(!broken(&mut client));
        client.run("ALTER SYSTEM RESET pg_queue.reclaim");
        cluster.reload();
    }
    turn(&mut client, 10);
    client.run("CREATE EXTENSION amcheck");
    client.run(
        "SELECT count(bt_index_check(i.indexrelid, heapallindexed => true)) FROM pg_index AS i
         JOIN pg_class AS t ON t.oid = i.indrelid
         WHERE t.relnamespace = 'queue_internal'::regnamespace AND t.relname ~ '_[0-9]$'",
    );
}

#[test]
fn a_standby_that_has_replayed_half_of_an_emptying_answers_and_heals_when_it_is_promoted() {
    let cluster = still(&[]);
    let mut client = cluster.connect();
    fill(&mut client);
    let begun = "(SELECT state = 'e' AND copied_to = 1 FROM queue_internal.segment_log WHERE segment = 0
        ORDER BY entry DESC LIMIT 1)";
    drive(&mut client, "the claims are to be emptied next", begun);
    let files = files(&mut client, "queue_internal.claim_0");
    let standby = cluster.standby();
    standby.wait_replayed(&cluster);
    drop(client);
    cluster.kill_server();
    standby.stop_fast();
    cut_off(&standby, &files);
    standby.start_again();
    let mut there = standby.connect();
    assert_eq!(there.value::<i64>("SELECT count(*) FROM queue.jobs WHERE state = 'completed'"), ROWS);
    there.run("SELECT count(*) FROM queue.stats");
    standby.append_conf("pg_queue.worker = on");
    standby.reload();
    standby.promote();
    wait::until_true("the segment is empty", || is(&mut there, &in_state(0, "'f'")));
    there.run("SELECT count(*) FROM queue_internal.claim_0");
}

#[test]
fn a_promoted_standby_goes_on_with_the_ring_where_its_primary_was() {
    let cluster = cluster(&[]);
    let mut client = cluster.connect();
    enqueue(&mut client, 7, ", priority => 9");
    let standby = cluster.standby();
    let mut there = standby.connect();
    // The standby's memory learns the present state of the segments.
    assert_eq!(there.value::<i64>("SELECT count(*) FROM queue.jobs"), 7);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let (cluster, stop) = (&cluster, &stop);
        scope.spawn(move || {
            let _stop = StopAtEnd(stop);
            turn(&mut client, 13);
        });
        while !stop.load(Ordering::Relaxed) {
            let row = there.query_one("SELECT count(*), count(DISTINCT job_id) FROM queue.jobs", &[]);
            let Ok(row) = row else { continue };
            assert_eq!(row.get::<_, i64>(0), row.get::<_, i64>(1));
        }
        standby.wait_replayed(cluster);
    });
    let sql = "SELECT count(*) FROM queue.jobs WHERE state = 'ready'";
    assert_eq!(there.value::<i64>(sql), 7);
    cluster.kill_server();
    standby.promote();
    wait::until("the standby writes", || there.batch_execute("SELECT queue.enqueue('q', '{}', priority => 8)").ok());
    turn(&mut there, 10);
    assert_eq!(there.value::<i64>(sql), 8);
    let sql = "SELECT count(*) - count(DISTINCT entry) FROM queue_internal.segment_log";
    assert_eq!(there.value::<i64>(sql), 0, "states were recorded from an old memory");
    assert_eq!(there.work_off("q", 100), 8);
    wait_completed(&mut there, 23 * ROWS + 8);
}

#[test]
fn a_late_adoption_does_not_set_the_segments_back() {
    let cluster = cluster(&[]);
    let mut client = cluster.connect();
    let mut late = cluster.connect();
    late.run("BEGIN; SELECT queue.adopt()");
    turn(&mut client, 3);
    late.run("COMMIT");
    turn(&mut client, 9);
    assert_eq!(client.value::<i64>("SELECT count(*) - count(DISTINCT entry) FROM queue_internal.segment_log"), 0);
    wait_completed(&mut client, 12 * ROWS);
}

#[test]
fn an_attempt_skipped_in_the_middle_of_a_segment_is_copied_once_over_crashes() {
    let cluster = still(&[]);
    let mut client = cluster.connect();
    enqueue(&mut client, 12_000, "");
    assert_eq!(client.work_off("q", 8_000), 8_000);
    let held: i64 = client.value("SELECT id FROM queue.claim('q')");
    assert_eq!(client.work_off("q", 3_999), 3_999);
    drive(&mut client, "the living begin to move", &in_state(0, "'m'"));
    let sees_all = |client: &mut Client| {
        let sql =
            "SELECT count(*) || ' ' || count(DISTINCT job_id) || ' ' || count(*) FILTER (WHERE state <> 'completed')
                   FROM queue.jobs WHERE queue_name = 'q'";
        assert_eq!(client.value::<String>(sql), "12000 12000 1");
    };
    // While this transaction is open the duty skips the attempt. It copies the attempts before it and not those after
    // it.
    let mut other = cluster.connect();
    other.run(&format!("BEGIN; SELECT queue.complete({held})"));
    let mut client = cluster.connect();
    for _ in 0..12 {
        maintain(&mut client);
        sees_all(&mut client);
    }
    let copied = client.count("SELECT FROM queue_internal.history");
    assert!((1..=8_000).contains(&copied), "{copied}");
    assert!(is(&mut client, &format!("(SELECT max(id) < {held} FROM queue_internal.history)")));
    cluster.restart_killed();
    let mut client = cluster.connect();
    sees_all(&mut client);
    assert_eq!(client.count("SELECT FROM queue_internal.history"), copied);
    drive(&mut client, "the segment is empty", &in_state(0, "'f'"));
    sees_all(&mut client);
    let all = "SELECT count(*) || ' ' || count(DISTINCT job_id) FROM queue_internal.history WHERE lane > 0";
    assert_eq!(client.value::<String>(all), "11999 11999");
    client.run(&format!("SELECT queue.complete({held})"));
    integrity::check(&mut client);
}
