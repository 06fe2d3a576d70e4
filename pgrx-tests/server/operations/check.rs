//! `queue.check()` reports each planted fault, repairs the faults that it can, and reports nothing else.

use crate::shared::*;

/// A fault in the check's result: its name, its attempt, and whether it is repaired.
type Said = (String, Option<i64>, bool);

fn said(client: &mut Client, arguments: &str) -> Vec<Said> {
    let rows = client.query(&format!("SELECT * FROM queue.check({arguments})"), &[]).unwrap();
    rows.iter()
        .map(|row| {
            assert!(!row.get::<_, &str>("problem").is_empty());
            (row.get("name"), row.get("attempt_id"), row.get("is_repaired"))
        })
        .collect()
}

#[track_caller]
fn is_well(client: &mut Client) {
    let rows = client.query("SELECT format('%s', c) FROM queue.check() AS c", &[]).unwrap();
    let found: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(found, Vec::<String>::new());
}

/// Runs statements without the extension's knowledge, as a hardware fault or a bug would act.
fn plant(database: &Database, sql: &str) {
    let mut client = database.connect();
    client.run("SET allow_system_table_mods = on");
    client.run("UPDATE pg_trigger SET tgenabled = 'D' WHERE tgfoid = 'queue_internal.foreign_write()'::regprocedure");
    database.connect().run(sql);
    client.run("UPDATE pg_trigger SET tgenabled = 'A' WHERE tgfoid = 'queue_internal.foreign_write()'::regprocedure");
}

/// Returns a database whose jobs memory knows.
fn known() -> (Database, Client) {
    let (database, mut client) =
        Database::without_worker().with_queue("q", "max_attempts => 3, backoff_base => '0', backoff_jitter => 0");
    client.run("SELECT FROM queue.maintain()");
    (database, client)
}

/// Plants a fault in the rows of a job and checks that it is reported. `before` and `sql` contain JOB, ATTEMPT and
/// SEGMENT. Returns whether the fault was repaired, and the connection.
#[track_caller]
fn report(name: &str, before: &str, sql: &str) -> (bool, Client) {
    let (database, mut client) = known();
    client.run("SELECT queue.enqueue('q', '\"other\"')");
    let job = client.enqueue("q");
    let attempt: i64 = client.value(&format!("SELECT id FROM queue.job_attempts({job})"));
    let fill = |sql: &str| {
        sql.replace("JOB", &job.to_string())
            .replace("ATTEMPT", &attempt.to_string())
            .replace("SEGMENT", &(attempt & 15).to_string())
    };
    client.run(&fill(before));
    is_well(&mut client);
    plant(&database, &fill(sql));
    let found = said(&mut client, "");
    assert!(found.iter().any(|(found, ..)| found == name), "{found:?}");
    assert!(found.iter().all(|(_, _, is_repaired)| !is_repaired), "{found:?}");
    let repaired = said(&mut client, "repair => true");
    let is_repaired = repaired.iter().any(|(found, _, is_repaired)| found == name && *is_repaired);
    client.run("SELECT FROM queue.maintain()");
    if is_repaired {
        is_well(&mut client);
    } else {
        assert!(said(&mut client, "").iter().any(|(found, ..)| found == name));
    }
    drop(client);
    let client = database.connect();
    std::mem::forget(database);
    (is_repaired, client)
}

#[test]
fn rows_without_their_attempt_are_deleted() {
    let gone = "ATTEMPT + 1600000";
    for (name, sql) in [
        ("orphan_claim", format!("INSERT INTO queue_internal.claim_SEGMENT VALUES ({gone}, now(), 1, 1, 'w')")),
        ("orphan_outcome", format!("INSERT INTO queue_internal.outcome_SEGMENT VALUES ({gone}, now(), 'c')")),
        ("orphan_note", format!("INSERT INTO queue_internal.note_SEGMENT VALUES ({gone}, now(), 'p')")),
        ("orphan_successor", format!("INSERT INTO queue_internal.successor VALUES ({gone}, ATTEMPT, now())")),
    ] {
        let (is_repaired, mut client) = report(name, "", &sql);
        assert!(is_repaired, "{name}");
        assert_eq!(client.count("SELECT FROM queue.claim('q', 10)"), 2, "{name}: no job is lost");
    }
}

#[test]
fn contradictory_rows_are_reported() {
    let ended = "INSERT INTO queue_internal.claim_SEGMENT VALUES (ATTEMPT, now(), 1, 1, 's');
                 INSERT INTO queue_internal.outcome_SEGMENT (id, ended_at, outcome, next_id)
                 VALUES (ATTEMPT, now(), 'f', NEXT)";
    let copy = "INSERT INTO queue_internal.attempt_SEGMENT (id, job_id, enqueued_at, lane, priority, attempt, run_at,
        payload_of, unique_key)
                SELECT ID, JOB_ID, enqueued_at, lane, priority, attempt, now() + interval '1 hour', PAYLOAD, KEY
                FROM queue_internal.attempt_SEGMENT WHERE id = ATTEMPT";
    let copy = |id: &str, job: &str, payload: &str, key: &str| {
        copy.replace("SELECT ID", &format!("SELECT {id}"))
            .replace("JOB_ID", job)
            .replace("PAYLOAD", payload)
            .replace("KEY", key)
    };
    for (name, before, sql) in [
        ("no_claim", "", "INSERT INTO queue_internal.outcome_SEGMENT VALUES (ATTEMPT, now(), 'c')".to_owned()),
        ("half_ended", "", "INSERT INTO queue_internal.claim_SEGMENT VALUES (ATTEMPT, now(), 1, 1, 's')".to_owned()),
        (
            "no_edge",
            "",
            "UPDATE queue_internal.attempt_SEGMENT SET lane = (SELECT lane FROM queue_internal.lane WHERE is_held)
             WHERE id = ATTEMPT"
                .to_owned(),
        ),
        ("wrong_segment", "", "UPDATE queue_internal.attempt_SEGMENT SET id = id + 1 WHERE id = ATTEMPT".to_owned()),
        ("two_living", "", copy("ATTEMPT + 160", "JOB", "NULL", "NULL")),
        ("lost_next", "", ended.replace("NEXT", "ATTEMPT + 160")),
        ("dead_end", "", ended.replace("NEXT", "NULL")),
        ("lost_payload", "", copy("ATTEMPT + 160", "JOB + 160", "ATTEMPT + 1600", "NULL")),
        (
            "shared_key",
            "SELECT queue.enqueue('q', unique_key => 'k')",
            copy("ATTEMPT + 160", "JOB + 160", "NULL", "'k'"),
        ),
        (
            "ended_twice",
            "SELECT queue.enqueue('q', priority => -1); SELECT queue.complete(id) FROM queue.claim('q')",
            "UPDATE queue_internal.attempt_SEGMENT SET job_id = JOB
             WHERE id = (SELECT id FROM queue_internal.outcome_SEGMENT)"
                .to_owned(),
        ),
        ("lost_successor", "SELECT queue.complete(id) FROM queue.claim('q', 2)", {
            "INSERT INTO queue_internal.successor VALUES (ATTEMPT, ATTEMPT + 160, now())".to_owned()
        }),
        ("lane", "", "INSERT INTO queue_internal.lane VALUES (9999, 9999)".to_owned()),
        ("open_segments", "", "INSERT INTO queue_internal.segment_log VALUES (1000, 9, 1000, 'o', now())".to_owned()),
    ] {
        let (is_repaired, _client) = report(name, before, &sql);
        assert!(!is_repaired, "{name} cannot be mended for certain");
    }
}

#[test]
fn an_attempt_in_two_places_stays_in_one() {
    let (is_repaired, mut client) = report(
        "two_places",
        "",
        "INSERT INTO queue_internal.attempt_8 SELECT * FROM queue_internal.attempt_SEGMENT WHERE id = ATTEMPT",
    );
    assert!(is_repaired);
    assert_eq!(client.count("SELECT FROM queue.claim('q', 10)"), 2);
    assert_eq!(client.count("SELECT FROM queue.claim('q', 10)"), 0);
}

#[test]
fn a_mark_that_leads_nowhere_is_repaired() {
    let (is_repaired, mut client) =
        report("lost_move", "", "INSERT INTO queue_internal.claim_SEGMENT VALUES (ATTEMPT, now(), 1, 1, 'm')");
    assert!(is_repaired);
    assert_eq!(client.count("SELECT FROM queue.claim('q', 10)"), 2);
}

#[test]
fn a_sequence_behind_the_rows_is_set() {
    let (database, mut client) = known();
    create(&mut client, "r", "");
    plant(&database, "SELECT setval('queue_internal.queue_id_seq', 1)");
    assert_eq!(said(&mut client, "repair => true"), [("sequence".to_owned(), None, true)]);
    create(&mut client, "s", "");
    is_well(&mut client);
}

#[test]
fn memory_that_lacks_rows_reads_them_again() {
    let (is_repaired, mut client) = report(
        "unknown_claim",
        "",
        "INSERT INTO queue_internal.claim_SEGMENT VALUES (ATTEMPT, now(), 60000000, 1, 'w')",
    );
    assert!(is_repaired);
    assert_eq!(client.value::<i64>("SELECT running FROM queue.stats"), 1);

    // All jobs were claimed, so the lane has been read to its end.
    let (is_repaired, mut client) = report(
        "unreachable",
        "SELECT queue.complete(id) FROM queue.claim('q', 10)",
        "INSERT INTO queue_internal.attempt_SEGMENT (id, job_id, enqueued_at, lane, priority, attempt, payload)
         SELECT id + 160, job_id + 160, now(), lane, priority, 1, '{}' FROM queue_internal.attempt_SEGMENT
         WHERE id = ATTEMPT",
    );
    assert!(is_repaired);
    assert_eq!(client.count("SELECT FROM queue.claim('q', 10)"), 1);

    let (is_repaired, mut client) = report(
        "stranger",
        "SELECT FROM queue.claim('q', 10, lease => '1 hour')",
        "DELETE FROM queue_internal.claim_SEGMENT WHERE id = ATTEMPT",
    );
    assert!(is_repaired);
    assert_eq!(client.count("SELECT FROM queue.claim('q', 10)"), 1, "it waits again");

    let (is_repaired, _client) = report(
        "counter",
        "",
        "INSERT INTO queue_internal.claim_SEGMENT VALUES (ATTEMPT, now(), 1, 1, 's');
         INSERT INTO queue_internal.outcome_SEGMENT VALUES (ATTEMPT, now(), 'x')",
    );
    assert!(is_repaired);
}

#[test]
fn orphaned_and_missing_rows_beside_the_jobs_are_reported() {
    for (name, before, sql) in [
        (
            "leftover",
            "",
            "INSERT INTO queue_internal.attempt_5 (id, job_id, enqueued_at, lane, priority, attempt, payload)
             SELECT ATTEMPT - SEGMENT + 165, job_id + 160, now(), lane, priority, 1, '{}'
             FROM queue_internal.attempt_SEGMENT
             WHERE id = ATTEMPT",
        ),
        ("segment_state", "", "INSERT INTO queue_internal.segment_log VALUES (1000, 5, 1000, 'c', now())"),
        (
            "lost_firing",
            "SELECT queue.schedule('s', 'q', every => '1 hour')",
            "INSERT INTO queue_internal.firing_0 (schedule_id, turn, slot, fired_at, job_id, kind)
             SELECT schedule_id, 1, now() + interval '1 day', now(), JOB + 1600, 'r' FROM queue_internal.schedule",
        ),
    ] {
        let (is_repaired, _client) = report(name, before, sql);
        assert!(!is_repaired, "{name} cannot be mended for certain");
    }
}

#[test]
fn a_table_of_history_that_has_left_the_extension_is_taken_back() {
    let (database, mut client) = known();
    plant(&database, "CREATE TABLE queue_internal.history_stray () INHERITS (queue_internal.history)");
    assert_eq!(said(&mut client, ""), [("history_table".to_owned(), None, false)]);
    assert_eq!(said(&mut client, "repair => true"), [("history_table".to_owned(), None, true)]);
    is_well(&mut client);
}

#[test]
fn a_trigger_that_is_switched_off_is_reported() {
    let (_database, mut client) = known();
    client.run("SET allow_system_table_mods = on");
    let switch = |how: &str| {
        format!(
            "UPDATE pg_trigger SET tgenabled = '{how}'
             WHERE tgfoid = 'queue_internal.foreign_write()'::regprocedure
             AND tgrelid = 'queue_internal.claim_3'::regclass"
        )
    };
    client.run(&switch("D"));
    assert!(said(&mut client, "").iter().all(|(name, ..)| name == "trigger"));
    assert!(!said(&mut client, "repair => true").is_empty());
    client.run(&switch("A"));
    is_well(&mut client);
}

#[test]
fn changes_of_the_transaction_itself_are_not_reported() {
    let (_database, mut client) = known();
    client.enqueue("q");
    client.run("BEGIN");
    client.enqueue("q");
    let attempt = client.claim("q");
    client.run(&format!("SELECT queue.fail({attempt}, 'again')"));
    is_well(&mut client);
    client.run("COMMIT; BEGIN ISOLATION LEVEL SERIALIZABLE");
    is_well(&mut client);
    client.refused("SELECT FROM queue.check(repair => true)", "25001");
    client.run("ROLLBACK; BEGIN READ ONLY");
    is_well(&mut client);
    client.refused("SELECT FROM queue.check(repair => true)", "25006");
    client.run("ROLLBACK");
}

/// Memory forgets purged jobs before the commit. After a rollback it reads the rows again.
#[test]
fn a_purge_of_an_open_transaction_is_not_reported() {
    let (database, mut client) = known();
    client.run("SELECT count(*) FROM queue.enqueue_many('q', array_fill('1'::jsonb, '{20}'))");
    // Memory has read the lane.
    let id = client.claim("q");
    let mut other = database.connect();
    other.run("BEGIN; SELECT queue.purge('q')");
    is_well(&mut client);
    other.run("ROLLBACK");
    is_well(&mut client);
    client.run(&format!("SELECT queue.complete({id})"));
    assert_eq!(client.column::<i64>("SELECT id FROM queue.claim('q', 100)").len(), 19);
}

#[test]
fn check_keeps_no_lock_and_no_transaction_id() {
    let (_database, mut client) = known();
    client.enqueue("q");
    client.run("BEGIN");
    is_well(&mut client);
    let locks = "SELECT l.relation::regclass::text FROM pg_locks AS l JOIN pg_class AS c ON c.oid = l.relation
                 WHERE l.pid = pg_backend_pid() AND c.relnamespace = 'queue_internal'::regnamespace";
    assert_eq!(client.column::<String>(locks), Vec::<String>::new());
    assert!(client.value::<bool>("SELECT pg_current_xact_id_if_assigned() IS NULL"));
    client.run("COMMIT");
}

#[test]
fn in_the_middle_of_a_move_or_a_claim_nothing_is_reported() {
    let (cluster, mut client) =
        Cluster::with(&["pg_queue.segment_rows = 1000", "pg_queue.reclaim_delay = 0"]).start_with_database("app");
    client.switch_worker_off();
    create(&mut client, "q", "");
    client.run("SELECT FROM queue.maintain()");
    for point in ["move.chosen", "move.marked", "move.written", "count.begun"] {
        client.run("SELECT queue.enqueue_many('q', array_fill('1'::jsonb, '{1500}'))");
        client.run("SELECT queue.complete(id) FROM queue.claim('q', 1480)");
        let held = cluster.fault(point, "wait");
        let is_over = &AtomicBool::new(false);
        thread::scope(|scope| {
            let cluster = &cluster;
            let other = scope.spawn(move || {
                let mut other = cluster.connect_to("app");
                if point == "count.begun" {
                    other.run("SELECT queue.adopt()");
                }
                // This thread does not learn that the test has failed, so it ends by itself.
                let until = Instant::now() + Duration::from_secs(60);
                while !is_over.load(Ordering::Relaxed) && Instant::now() < until {
                    other.run("SELECT FROM queue.maintain()");
                }
            });
            held.wait_reached();
            is_well(&mut client);
            drop(held);
            is_over.store(true, Ordering::Relaxed);
            other.join().unwrap();
        });
        is_well(&mut client);
    }
}

#[test]
fn a_retried_job_is_shown_once_while_its_segment_is_copied() {
    let (_cluster, mut client) =
        Cluster::with(&["pg_queue.segment_rows = 1000", "pg_queue.reclaim_delay = 0"]).start_with_database("app");
    client.switch_worker_off();
    create(&mut client, "q", "max_attempts => 1, retention => '0', dead_retention => '0'");
    client.run("SELECT FROM queue.maintain()");
    let job = client.enqueue("q");
    client.run("SELECT queue.fail(id, 'oh') FROM queue.claim('q')");
    client.run(&format!("SELECT queue.retry({job}); SELECT queue.reschedule({job}, now() + interval '1 hour')"));
    // The segment is so large that its copy takes several transactions.
    client.pass_through("q", 5000);
    let mut halves = 0;
    client.maintain_until("EXISTS (SELECT FROM queue_internal.segment_log WHERE segment = 0 AND state = 'c')");
    while client
        .value::<bool>("SELECT EXISTS (SELECT FROM queue_internal.segment_log WHERE segment = 0 AND generation = 1)")
    {
        let found = client.column::<i64>("SELECT job_id FROM queue.jobs WHERE state = 'scheduled' OR state = 'dead'");
        assert_eq!(found, [job]);
        let copying =
            "SELECT EXISTS (SELECT FROM queue_internal.segment_log WHERE state IN ('m', 'd') AND copied_to > 0)
                          AND NOT EXISTS (SELECT FROM queue_internal.segment_log WHERE state = 'h')";
        if client.value::<bool>(copying) {
            is_well(&mut client);
            halves += 1;
        }
        client.run("SELECT FROM queue.maintain()");
        if client
            .value::<bool>("SELECT EXISTS (SELECT FROM queue_internal.segment_log WHERE segment = 0 AND state = 'f')")
        {
            break;
        }
    }
    assert!(halves > 0, "the copy takes several transactions");
    is_well(&mut client);
}

#[test]
fn a_dormant_database_is_not_checked() {
    let (database, mut client) = known();
    let mut other = database.connect();
    other.run("BEGIN; DELETE FROM queue_internal.claim_0");
    client.refused("SELECT FROM queue.check()", "55000");
    other.run("ROLLBACK");
    is_well(&mut client);
}

#[test]
fn a_check_on_a_standby_finds_the_faults_of_its_primary() {
    let (cluster, mut client) = Cluster::new().start_with_database("app");
    create(&mut client, "q", "");
    client.run("SELECT queue.enqueue_many('q', array_fill('1'::jsonb, '{100000}'))");
    client.work_off("q", 50000);
    is_well(&mut client);
    let standby = cluster.standby();
    standby.wait_replayed(&cluster);
    let mut there = standby.connect_to("app");
    is_well(&mut there);
    there.refused("SELECT FROM queue.check(repair => true)", "25006");
    client.run("SET allow_system_table_mods = on");
    client.run("UPDATE pg_trigger SET tgenabled = 'D' WHERE tgfoid = 'queue_internal.foreign_write()'::regprocedure");
    cluster.connect_to("app").run("INSERT INTO queue_internal.successor VALUES (160000000, 320000000, now())");
    client.run("UPDATE pg_trigger SET tgenabled = 'A' WHERE tgfoid = 'queue_internal.foreign_write()'::regprocedure");
    standby.wait_replayed(&cluster);
    let names = |said: Vec<Said>| said.into_iter().map(|(name, ..)| name).collect::<Vec<_>>();
    let here = names(said(&mut client, ""));
    assert!(here.contains(&"orphan_successor".to_owned()), "{here:?}");
    assert_eq!(names(said(&mut there, "")), here);
    // The former standby can repair.
    standby.promote();
    assert!(said(&mut there, "repair => true").contains(&("orphan_successor".to_owned(), Some(160_000_000), true)));
}
