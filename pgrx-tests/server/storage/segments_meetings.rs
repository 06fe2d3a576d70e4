//! The storage duty at the same time as sessions that read, dump, end jobs or drop a queue.

use crate::shared::*;
use crate::storage::segments::{cluster, fillings};
use crate::storage::segments_races::{
    ROWS, claim_one, drive, enqueue, fill, in_state, is, large, load, maintain, open_segment, still, turn,
    wait_completed,
};

#[test]
fn readers_and_waiters_do_not_stop_the_ring_and_see_no_job_twice() {
    let cluster = cluster(&["max_connections = 80"]);
    let mut client = cluster.connect();
    client.run("SELECT queue.create('empty')");
    enqueue(&mut client, 50, ", priority => 9");
    // Dashboards keep their transactions open.
    let mut dashboards: Vec<Client> = Vec::new();
    for sql in
        ["TABLE queue.jobs", "TABLE queue.stats", "TABLE queue.attempts", "TABLE queue.errors", "TABLE queue.workers"]
    {
        let mut dashboard = cluster.connect();
        dashboard.run(&format!("BEGIN; {sql}"));
        dashboards.push(dashboard);
    }
    let mut repeatable = cluster.connect();
    repeatable.run("BEGIN ISOLATION LEVEL REPEATABLE READ");
    let twice = "SELECT count(*) - count(DISTINCT job_id) FROM queue.jobs";
    assert_eq!(repeatable.value::<i64>(twice), 0);
    // A session locks tables of a segment. These are not emptied, but the other segments turn.
    let mut holder = cluster.connect();
    holder.run(
        "BEGIN; LOCK TABLE queue_internal.attempt_0 IN ACCESS SHARE MODE;
         DECLARE c CURSOR FOR TABLE queue_internal.claim_0; \
        FETCH 1 FROM c",
    );
    thread::scope(|scope| {
        for _ in 0..50 {
            let cluster = &cluster;
            scope.spawn(move || {
                let mut sleeper = cluster.connect();
                assert!(sleeper.query("SELECT id FROM queue.claim('empty', wait => '20 s')", &[]).unwrap().len() <= 1);
            });
        }
        wait::until_true("all sleep", || {
            let sql = "(SELECT count(*) = 50 FROM pg_stat_activity WHERE query ~ 'empty' AND wait_event = 'Extension')";
            is(&mut client, sql)
        });
        for _ in 0..10 {
            turn(&mut client, 1);
            assert_eq!(repeatable.value::<i64>(twice), 0);
            for dashboard in &mut dashboards {
                assert_eq!(dashboard.value::<i64>(twice), 0);
            }
        }
        assert!(is(&mut client, &in_state(0, "'h'")), "emptied under a lock, or not copied");
        client.query("SELECT queue.enqueue_many('empty', array_fill('{}'::jsonb, ARRAY[50]))", &[]).unwrap();
    });
    holder.run("COMMIT");
    wait::until_true("the segment is empty", || is(&mut client, &in_state(0, "'f', 'o'")));
}

#[test]
fn only_a_role_that_may_read_the_tables_holds_up_the_emptying_of_segments() {
    let cluster = still(&["max_prepared_transactions = 4"]);
    let mut client = cluster.connect();
    client.run(
        "CREATE ROLE nobody LOGIN; CREATE ROLE producer LOGIN; SELECT queue.grant('q', 'producer', 'manage');
         CREATE ROLE reader LOGIN IN ROLE pg_read_all_data; CREATE ROLE deputy LOGIN NOINHERIT IN ROLE pg_read_all_data;
         CREATE ROLE grantee LOGIN; GRANT SELECT ON queue_internal.history TO grantee;
         CREATE TABLE of_nobody (n int); ALTER TABLE of_nobody OWNER TO nobody; GRANT ALL ON of_nobody TO producer",
    );
    let begin = |role: &str, sql: &str| {
        let mut session = cluster.config().user(role).connect(postgres::NoTls).unwrap();
        session.run(&format!("BEGIN; {sql}"));
        session
    };
    let mut open = Vec::new();
    for (n, role) in ["nobody", "producer"].into_iter().enumerate() {
        for sql in [
            "SELECT FROM pg_extension",
            "SELECT FROM pg_extension, pg_class, pg_namespace, pg_depend, pg_init_privs LIMIT 1",
            "DECLARE c CURSOR FOR SELECT * FROM pg_extension; FETCH c",
            "LOCK TABLE pg_extension IN ACCESS SHARE MODE",
            "LOCK TABLE of_nobody IN SHARE MODE; SELECT FROM pg_extension",
            "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE READ ONLY; SELECT FROM pg_extension",
        ] {
            open.push(begin(role, sql));
        }
        begin(role, &format!("SELECT FROM pg_extension; PREPARE TRANSACTION 'p{n}'"));
    }
    turn(&mut client, 12);
    for role in ["postgres", "reader", "deputy", "grantee"] {
        let others_are_free =
            "(SELECT count(*) = 7 FROM (SELECT DISTINCT ON (segment) segment, state FROM queue_internal.segment_log
                                ORDER BY segment, entry DESC) AS s WHERE state = 'f' OR segment > 7)";
        drive(&mut client, "the next segments are free", others_are_free);
        let segment = open_segment(&mut client);
        let mut dump = begin(role, "SELECT FROM pg_extension");
        fill(&mut client);
        drive(&mut client, &format!("the segment is copied beside {role}"), &in_state(segment, "'h'"));
        for _ in 0..20 {
            maintain(&mut client);
        }
        assert!(is(&mut client, &in_state(segment, "'h'")), "emptied while {role} may be dumping");
        dump.run("COMMIT");
        drive(&mut client, "the segment is empty", &in_state(segment, "'f'"));
    }
}

#[test]
fn a_dump_that_is_held_up_has_exactly_the_jobs_of_its_snapshot() {
    let cluster = cluster(&["pg_queue.reclaim_delay = 500"]);
    let mut client = cluster.connect();
    client.run("CREATE TABLE plain (n int)");
    let stop = AtomicBool::new(false);
    let live = "SELECT coalesce(string_agg(j::text, ';' ORDER BY job_id), '') FROM (
        SELECT job_id, state, payload, priority, attempt, run_at, enqueued_at FROM queue.jobs
        WHERE state IN ('ready', 'running', 'scheduled', 'retrying')) AS j";
    let (dump, expected) = thread::scope(|scope| {
        let (cluster, stop) = (&cluster, &stop);
        let _stop = StopAtEnd(stop);
        scope.spawn(move || load(cluster, stop));
        wait::until_true("the ring turns", || fillings(&mut client) > 12);
        let mut blocker = cluster.connect();
        blocker.run("BEGIN; LOCK TABLE plain IN ACCESS EXCLUSIVE MODE");
        let mut exporter = cluster.connect();
        exporter.run("BEGIN ISOLATION LEVEL REPEATABLE READ");
        let snapshot: String = exporter
            // The session takes the lock of a dump, so it does not matter when the dump itself begins.
            .query_one("SELECT pg_export_snapshot() FROM pg_extension LIMIT 1", &[])
            .unwrap()
            .get(0);
        let expected: String = exporter.value(live);
        let argument = format!("--snapshot={snapshot}");
        let dump = scope.spawn(move || cluster.pg_dump(&[&argument]));
        wait::until_true("the dump waits", || {
            is(&mut client, "(SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND relation = 'plain'::regclass)")
        });
        exporter.run("COMMIT");
        // The ring turns as far as possible. The snapshot's jobs move and end.
        let copied = "(SELECT count(*) >= 7 FROM (SELECT DISTINCT ON (segment) state FROM queue_internal.segment_log
                       ORDER BY segment, entry DESC) AS s WHERE state = 'h')";
        wait::within("segments wait for the dump", Duration::from_secs(60), || is(&mut client, copied).then_some(()));
        assert_eq!(
            client.value::<i64>("SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'plain'::regclass"),
            1
        );
        blocker.run("COMMIT");
        (dump.join().unwrap(), expected)
    });
    // After the dump the ring turns again.
    let before = fillings(&mut client);
    turn(&mut client, 9);
    assert!(fillings(&mut client) >= before + 9);
    let restored = Cluster::new().start();
    let printed = restored.psql(&dump);
    assert!(!printed.contains("ERROR"), "{printed}");
    let mut there = restored.connect();
    there.run("SELECT queue.adopt()");
    let found: String = there.value(live);
    if found != expected {
        let (mut found, mut expected): (Vec<&str>, Vec<&str>) =
            (found.split(';').collect(), expected.split(';').collect());
        let (all_found, all_expected) = (found.clone(), expected.clone());
        found.retain(|job| !all_expected.contains(job));
        expected.retain(|job| !all_found.contains(job));
        panic!("not expected: {found:?}\nnot found: {expected:?}");
    }
    assert_eq!(there.value::<i64>("SELECT count(*) - count(DISTINCT job_id) FROM queue.jobs"), 0);
    // The ring of the restored database turns as well.
    let low = there.value::<i64>("SELECT count(*) FROM queue.jobs WHERE state = 'ready'");
    assert_eq!(there.query("SELECT id FROM queue.claim('q', 100000)", &[]).unwrap().len() as i64, low);
}

#[test]
fn the_outcome_of_a_job_in_history_is_shown_and_can_be_forgotten() {
    let cluster = still(&[]);
    let mut client = cluster.connect();
    let mut jobs = Vec::new();
    for _ in 0..2 {
        let job =
            client.value::<i64>(&format!("SELECT queue.enqueue('q', {}, headers => '{{\"secret\": 1}}')", large(300)));
        let (first, _) = claim_one(&mut client).unwrap();
        client.run(&format!("SELECT queue.progress({first}, '\"secret\"'); SELECT queue.fail({first}, 'secret')"));
        let (second, _) = claim_one(&mut client).unwrap();
        client.run(&format!("SELECT queue.complete({second}, '\"secret\"')"));
        jobs.push((job, first, second));
        if jobs.len() == 1 {
            turn(&mut client, 1);
            drive(&mut client, "the first job is in history", &in_state(0, "'f'"));
        }
    }
    for (job, first, second) in jobs {
        for (id, words) in
            [(first, "This attempt was already failed at "), (second, "This attempt was already completed at ")]
        {
            for verb in ["complete($)", "fail($, 'no')"] {
                let lost = client.refused(&format!("SELECT queue.{}", verb.replace('$', &id.to_string())), "QJ001");
                assert!(lost.detail.starts_with(words), "{lost:?}");
            }
        }
        // With an old snapshot the call would miss rows written since.
        client.run("BEGIN ISOLATION LEVEL REPEATABLE READ");
        client.refused(&format!("SELECT queue.forget({job})"), "25001");
        client.run("ROLLBACK");
        client.run(&format!("SELECT queue.forget({job})"));
        let job: String = client.value(&format!("SELECT string_agg(j::text, '') FROM queue.job({job}) AS j"));
        assert!(job.contains("completed") && !job.contains("secret") && !job.contains("text"), "{job}");
    }
    let everything = cluster.pg_dump(&["--data-only"]);
    assert!(!everything.contains("secret") && !everything.contains("c4ca4238"), "something is left");
}

#[test]
fn disk_is_bounded_and_nothing_dead_is_left_however_long_jobs_wait_under_a_pinned_snapshot() {
    let cluster = still(&["autovacuum = off"]);
    let mut client = cluster.connect();
    client.run("CREATE EXTENSION amcheck; SELECT queue.alter('q', retention => '0')");
    let mut holder = cluster.connect();
    holder.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM queue.jobs");
    let tables = "FROM pg_class WHERE relnamespace = 'queue_internal'::regnamespace
        AND relname ~ '^(attempt|claim|outcome|note)_[0-9]$'";
    let size = format!("SELECT sum(pg_total_relation_size(oid))::bigint {tables}");
    let empty = client.value::<i64>(&size);
    fill(&mut client);
    let of_one = client.value::<i64>(&size) - empty;
    const TURNS: i64 = 4;
    const WAITING: i64 = ROWS / 20;
    let (mut largest, mut living) = (0, 0);
    let seed = random::seed("disk is bounded");
    let mut random = Random::new(seed);
    for _ in 0..TURNS * 8 {
        // Some jobs wait for ever behind all others. Some have a time far in the future.
        enqueue(&mut client, WAITING - 5, &format!(", priority => {}", random.between(5, 7)));
        enqueue(&mut client, 5, ", delay => '30 days'");
        living += WAITING;
        turn(&mut client, 1);
        largest = largest.max(client.value::<i64>(&size));
    }
    // Each segment that waits for its turn has its own rows and the rows that were moved into old, which exist twice.
    let bound = empty + of_one * (10 + 4 * living / ROWS);
    assert!(largest < bound, "{largest} bytes, where {bound} were to be expected of {of_one} a segment");
    let far = client.value::<i64>("SELECT count(*) FROM queue.attempts WHERE state = 'scheduled' AND id & 15 >= 8");
    assert_eq!(far, 5 * TURNS * 8);
    client.run("CREATE EXTENSION pgstattuple");
    assert_eq!(client.value::<i64>(&format!("SELECT sum((pgstattuple(oid)).dead_tuple_count)::bigint {tables}")), 0);
    let check = "SELECT count(bt_index_check(i.indexrelid, heapallindexed => true)) FROM pg_index AS i
                 JOIN pg_class AS t ON t.oid = i.indrelid
                 WHERE t.relnamespace = 'queue_internal'::regnamespace AND t.relname ~ '_[0-9]$'";
    assert!(client.value::<i64>(check) >= 90);
    // Jobs with a far time run when that time comes. The others run in order.
    let jobs =
        client.query("SELECT job_id FROM queue.jobs WHERE state = 'scheduled' ORDER BY job_id LIMIT 20", &[]).unwrap();
    for job in &jobs {
        client.query("SELECT queue.reschedule($1, now())", &[&job.get::<_, i64>(0)]).unwrap();
    }
    let order: Vec<(i32, i64)> = client.rows("SELECT priority, job_id FROM queue.claim('q', 100000)");
    assert_eq!(order.len() as i64, (WAITING - 5) * TURNS * 8 + 20);
    assert!(order.is_sorted(), "seed {seed}: not in order");
}

#[test]
fn sessions_that_are_ended_in_the_middle_of_a_step_do_not_stop_the_ring() {
    let cluster = cluster(&[]);
    let mut client = cluster.connect();
    let seed = random::seed("sessions are ended");
    let mut random = Random::new(seed);
    let stop = AtomicBool::new(false);
    enqueue(&mut client, 30, ", priority => 9");
    thread::scope(|scope| {
        let (cluster, stop) = (&cluster, &stop);
        let _stop = StopAtEnd(stop);
        for _ in 0..2 {
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    // The session may be terminated at any moment.
                    let Ok(mut session) = cluster.config().connect(postgres::NoTls) else { continue };
                    while session.batch_execute("SELECT queue.maintain()").is_ok() && !stop.load(Ordering::Relaxed) {}
                }
            });
        }
        for n in 0..12 {
            let before = fillings(&mut client);
            fill(&mut client);
            wait::until_true("the next segment is open", || {
                if n < 9 {
                    let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                               WHERE query ~ 'queue.maintain' AND pid <> pg_backend_pid() AND random() < $1
                                  OR backend_type = 'pg_queue worker' AND random() < 0.05";
                    client.query(sql, &[&(random.between(1, 9) as f64 / 20.0)]).unwrap();
                }
                fillings(&mut client) > before
            });
        }
    });
    assert_eq!(client.work_off("q", 1000), 30, "seed {seed}");
    wait_completed(&mut client, 12 * ROWS + 30);
    assert_eq!(client.value::<i64>("SELECT count(*) - count(DISTINCT job_id) FROM queue.jobs"), 0);
}

/// Returns the number of log rows about attempts that do not exist.
fn strays(client: &mut Client) -> i64 {
    let logs = (0..10).flat_map(|n| ["claim", "outcome", "note"].map(|log| (log, n)));
    let rows = logs.map(|(log, n)| {
        format!(
            "SELECT FROM queue_internal.{log}_{n} AS o WHERE NOT EXISTS (SELECT FROM queue_internal.attempt_{n} AS a
             WHERE a.id = o.id)"
        )
    });
    client.value(&format!("SELECT count(*) FROM ({}) AS o", rows.collect::<Vec<_>>().join(" UNION ALL ")))
}

#[test]
fn an_attempt_of_a_dropped_queue_cannot_be_ended_even_after_a_crash() {
    let cluster = cluster(&[]);
    let mut client = cluster.connect();
    client.run("SELECT queue.create('gone')");
    let mut ids = Vec::new();
    for _ in 0..5 {
        client.run("SELECT queue.enqueue('gone', '{}')");
        ids.push(client.value::<i64>("SELECT id FROM queue.claim('gone', lease => '1 hour')"));
    }
    client.run("SELECT queue.drop('gone', force => true)");
    drop(client);
    cluster.restart_killed();
    let mut client = cluster.connect();
    turn(&mut client, 10);
    let many = format!("{ids:?}");
    let batch = |end: &str| {
        format!(
            "end_batch((SELECT json_agg(json_build_object('{end}', json_build_object('id', id))) \
                FROM unnest(ARRAY{{}}) AS id))"
        )
    };
    for end in [
        "complete_many(ARRAY{})",
        "fail_many(ARRAY{}, 'no')",
        "release_many(ARRAY{})",
        "extend_many(ARRAY{})",
        &batch("complete"),
        &batch("release"),
        &batch("advance"),
        &batch("suspend"),
    ] {
        let sql = format!("SELECT DISTINCT outcome FROM queue.{}", end.replace("{}", &many));
        assert_eq!(client.column::<String>(&sql), ["lost"], "{sql}");
    }
    for (end, id) in
        ["complete({})", "fail({}, 'no')", "release({})", "extend({})", "progress({}, '1')"].iter().zip(&ids)
    {
        let sql = format!("SELECT queue.{}", end.replace("{}", &id.to_string()));
        let error = client.batch_execute(&sql).expect_err(&sql);
        assert_eq!(error::code(&error), "QJ001", "{sql}: {error:?}");
    }
    // When a segment is emptied, its attempts are deleted before the rows about them.
    wait::until_true("no row says something of attempts that are not there", || strays(&mut client) == 0);
}

#[test]
fn ending_many_jobs_while_their_queue_is_dropped_fails_only_with_known_codes() {
    let seed = random::seed("dropped");
    let cluster = cluster(&["pg_queue.segment_age = 1"]);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let (cluster, stop) = (&cluster, &stop);
        let _stop = StopAtEnd(stop);
        let workers = (0..3).map(|n| {
            scope.spawn(move || {
                let mut random = Random::new(seed + n);
                let mut client = cluster.connect();
                while !stop.load(Ordering::Relaxed) {
                    let end = random.one_of(&[
                        "fail_many({}, 'no')",
                        "release_many({})",
                        "complete_many({})",
                        "end_batch((SELECT json_agg(json_build_object('suspend', \
                            json_build_object('id', id, 'until', 'epoch'))) \
                            FROM unnest({}::bigint[]) AS id))",
                    ]);
                    let together = random.percent(30);
                    let run = |client: &mut Client| -> Result<(), postgres::Error> {
                        client.query(
                            "SELECT count(*) FROM queue.enqueue_many('s', array_fill('{}'::jsonb, ARRAY[300]))",
                            &[],
                        )?;
                        let mut transaction = client.transaction()?;
                        let claimed = transaction.query("SELECT id FROM queue.claim('s', 200)", &[])?;
                        if !together {
                            transaction.commit()?;
                            transaction = client.transaction()?;
                        }
                        let ids: Vec<i64> = claimed.iter().map(|row| row.get(0)).collect();
                        for ids in ids.chunks(40) {
                            transaction.query(&format!("SELECT queue.{}", end.replace("{}", "$1")), &[&ids])?;
                        }
                        transaction.commit()
                    };
                    if let Err(error) = run(&mut client) {
                        let code = error::code(&error);
                        assert!(["42704", "55006", "QJ001", "53400"].contains(&code), "seed {seed}: {end}: {error:?}");
                    }
                }
            })
        });
        let workers: Vec<_> = workers.collect();
        let mut client = cluster.connect();
        client.run("SELECT queue.create('s', backoff_base => '0')");
        let end = std::time::Instant::now() + random::length(4);
        let mut random = Random::new(seed + 10);
        while std::time::Instant::now() < end && workers.iter().all(|worker| !worker.is_finished()) {
            thread::sleep(Duration::from_micros(random.below(100_000)));
            match client.batch_execute("SELECT queue.drop('s', force => true)") {
                Ok(()) => client.run("SELECT queue.create('s', backoff_base => '0')"),
                Err(error) => assert_eq!(error::code(&error), "55006", "seed {seed}: {error:?}"),
            }
        }
    });
    let mut client = cluster.connect();
    wait::until_true("nothing is said of attempts that are not there", || strays(&mut client) == 0);
    assert!(!cluster.log().contains(" XX0"), "seed {seed}");
}
