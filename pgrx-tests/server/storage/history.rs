//! `queue_internal.history`: what is kept of ended jobs, during the copy and after it. Only `queue.maintain()` does
//! duties here. A call does one step of the storage duty.

use std::sync::LazyLock;
use std::sync::atomic::AtomicU32;

use crate::shared::*;

pub static SERVER: LazyLock<Cluster> = LazyLock::new(|| {
    Cluster::with(&[
        "pg_queue.segment_age = 1",
        "pg_queue.segment_rows = 1000000",
        "pg_queue.reclaim_delay = 0",
        "pg_queue.restore_quiet = 1",
        "pg_queue.max_databases = 64",
        "max_worker_processes = 60",
    ])
    .start()
});

/// Makes a database for one test with the extension. Returns a connection and the name.
pub fn database() -> (Client, String) {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let name = format!("d{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    (named_database(&name), name)
}

fn named_database(name: &str) -> Client {
    SERVER.create_database_with(name, "ALTER DATABASE $ SET pg_queue.worker = off")
}

/// Returns the number of attempts in the young segments.
fn young(client: &mut Client) -> i64 {
    let tables: Vec<String> = (0..8).map(|n| format!("SELECT FROM queue_internal.attempt_{n}")).collect();
    client.value(&format!("SELECT count(*) FROM ({}) AS a", tables.join(" UNION ALL ")))
}

/// Does steps and calls `look` after each, until the young segments are empty and all ended attempts are in history.
fn reclaim_and(client: &mut Client, mut look: impl FnMut(&mut Client)) {
    wait::within("the young segments are empty", Duration::from_secs(60), || {
        client.run("SELECT FROM queue.maintain()");
        look(client);
        (young(client) == 0).then_some(())
    });
}

/// Does what `reclaim_and` does, even if many jobs live. The filler makes them less than a twentieth of their segment,
/// so that it is reclaimed without need.
pub fn reclaim(client: &mut Client) {
    client.run("SELECT queue.create('filler', retention => '0', if_not_exists => true)");
    client.pass_through("filler", 500);
    reclaim_and(client, |_| {});
}

/// Jobs without the ends of leases. Two queries compute those from two clocks and differ by some microseconds.
pub const JOBS: &str = "
    SELECT (to_jsonb(j) || jsonb_build_object('lease_expires_at',
    date_trunc('minute', lease_expires_at + interval '30 s')))::text
    FROM queue.jobs AS j ORDER BY job_id";

pub const ATTEMPTS: &str = "SELECT to_jsonb(a)::text FROM queue.attempts AS a ORDER BY id";

const ERRORS: &str = "SELECT to_jsonb(e)::text FROM queue.errors AS e ORDER BY queue_name, error";

/// Makes jobs in all states, with all kinds of data. A backoff of 0 makes failed jobs ready immediately.
pub fn varied(client: &mut Client, queue: &str) {
    let options =
        "max_attempts => 3, backoff_base => '0', backoff_jitter => 0, lease => '1 hour', dead_retention => '2 days'";
    create(client, queue, options);
    let words = [
        // Ready, scheduled, running (with progress), and retrying jobs.
        "enqueue('$', '{\"n\": 1}', priority => 9, headers => '{\"h\": 1}')",
        "enqueue('$', '{\"n\": 2}', delay => '1 day', max_attempts => 7)",
    ];
    for word in words {
        client.run(&format!("SELECT queue.{}", word.replace('$', queue)));
    }
    let big = "(SELECT jsonb_agg(md5(n::text)) FROM generate_series(1, 20000) AS n)";
    let mid = "(SELECT jsonb_agg(md5(n::text)) FROM generate_series(1, 100) AS n)";
    let mut next = |payload: &str, more: &str| -> (i64, i64) {
        let job = client.value(&format!("SELECT queue.enqueue('{queue}', {payload}{more})"));
        (job, client.value(&format!("SELECT id FROM queue.claim('{queue}', worker => 'w ' || {job})")))
    };
    // Jobs with all kinds of ends, small and large, at the first attempt and after failures.
    let (_, running) = next("'3'", "");
    let (_, done) = next(big, ", headers => '{\"trace\": \"x\"}', priority => 2");
    let (_, dead) = next(big, "");
    let (_, fatal) = next(mid, ", priority => 1");
    let (_, twice) = next(mid, "");
    let (stopped, stop) = next(mid, "");
    let (_, later) = next("'9'", "");
    let (_, moved) = next("'11'", "");
    let (waiting, _) = (client.enqueue(queue), ());
    client.run(&format!(
        "SELECT queue.progress({running}, '{{\"half\": true}}'); SELECT queue.extend({running}, '2 hours')"
    ));
    client.run(&format!("SELECT queue.progress({done}, {big})"));
    client.run(&format!("SELECT queue.complete({done}, {big})"));
    client.run(&format!("SELECT queue.fail({fatal}, repeat('no ', 2000), fatal => true)"));
    client.run(&format!("SELECT queue.fail({later}, 'later', retry_in => '1 day')"));
    client.run(&format!("SELECT queue.cancel({stopped}, 'unwanted'); SELECT queue.release({stop})"));
    client.run(&format!("SELECT queue.cancel({waiting}, 'not now')"));
    client.run(&format!("SELECT queue.release({moved}, '1 day')"));
    client.run(&format!("SELECT queue.progress({dead}, '7')"));
    for (id, error) in [(dead, "one"), (twice, "once")] {
        client.run(&format!("SELECT queue.fail({id}, '{error}')"));
    }
    // Both jobs are at their second attempt and run at the same time.
    let again = client.column::<i64>(&format!("SELECT id FROM queue.claim('{queue}', 2) ORDER BY job_id"));
    client.run(&format!("SELECT queue.fail({}, 'two'); SELECT queue.complete({}, 'null')", again[0], again[1]));
    let last = client.claim(queue);
    client.run(&format!("SELECT queue.fail({last}, 'three')"));
    // This job was retried by hand and waits.
    let once_more = client.enqueue(queue);
    let id = client.claim(queue);
    client.run(&format!("SELECT queue.complete({id}); SELECT queue.retry({once_more}, now() + interval '1 day')"));
    // This job was retried by hand and completed again.
    let again = client.enqueue(queue);
    let id = client.claim(queue);
    client.run(&format!("SELECT queue.fail({id}, 'at first', fatal => true); SELECT queue.retry({again})"));
    let id = client.claim(queue);
    client.run(&format!("SELECT queue.complete({id}, '\"at last\"')"));
    let counts: Vec<String> = client.column(&format!(
        "SELECT state || ' ' || count(*) FROM queue.jobs WHERE queue_name = '{queue}' GROUP BY state ORDER BY state"
    ));
    assert_eq!(
        counts,
        ["cancelled 2", "completed 3", "dead 2", "ready 1", "retrying 1", "running 1", "scheduled 3"],
        "the test has what it wants"
    );
}

#[test]
fn each_step_on_the_way_shows_each_job_once_and_whole() {
    let (mut client, _) = database();
    varied(&mut client, "q");
    // The copy takes several batches.
    create(&mut client, "many", "");
    client.pass_through("many", 5000);
    let (jobs, attempts, errors) =
        (client.column::<String>(JOBS), client.column::<String>(ATTEMPTS), client.column::<String>(ERRORS));
    let one_by_one = "
        SELECT (to_jsonb(k) - 'lease_expires_at')::text
        FROM (SELECT job_id FROM queue.jobs WHERE queue_name = 'q') AS j, queue.job(j.job_id) AS k ORDER BY 1";
    let of_q = "SELECT (to_jsonb(j) - 'lease_expires_at')::text FROM queue.jobs AS j WHERE queue_name = 'q' ORDER BY 1";
    let (by_job, mut half) = (client.column::<String>(one_by_one), 0);
    assert_eq!(by_job, client.column::<String>(of_q), "queue.job and queue.jobs");
    reclaim_and(&mut client, |client| {
        let is_half = "SELECT count(*) FROM queue_internal.segment_log AS l WHERE copied_to > 0 AND state IN ('m', 'd')
                       AND NOT EXISTS (SELECT FROM queue_internal.segment_log AS n WHERE n.entry > l.entry)";
        half += client.value::<i64>(is_half);
        let step = client.column::<String>(
            "SELECT segment || state::text FROM queue_internal.segment_log ORDER BY entry DESC LIMIT 1",
        );
        for (name, sql, before) in
            [("jobs", JOBS, &jobs), ("attempts", ATTEMPTS, &attempts), ("errors", ERRORS, &errors)]
        {
            let now = client.column::<String>(sql);
            let odd = || now.iter().find(|row| !before.contains(row)).map(|row| &row[..row.len().min(3000)]);
            assert!(now == *before, "{name} after {step:?}: {} rows of {}: {:?}", now.len(), before.len(), odd());
        }
        let now = client.column::<String>(one_by_one);
        let odd = || now.iter().find(|row| !by_job.contains(row)).map(|row| &row[..row.len().min(3000)]);
        assert!(now == by_job, "queue.job after {step:?}: {} rows of {}: {:?}", now.len(), by_job.len(), odd());
    });
    assert!(half > 0, "never seen half copied");
    assert!(client.count("SELECT FROM queue_internal.history") > 5000);
    assert_eq!(client.count("SELECT FROM queue_internal.history GROUP BY id HAVING count(*) > 1"), 0);
    // A shared payload is kept once.
    let kept = "SELECT FROM queue_internal.history WHERE payload IS NOT NULL AND next_id IS NOT NULL";
    assert_eq!(client.count(kept), 0, "payloads of attempts that were not the last");
}

/// Returns the number of history rows for each day until which they are kept. Days are counted from today (UTC).
pub fn kept(client: &mut Client) -> Vec<String> {
    client.column(
        "SELECT q.queue_name || ' ' || h.outcome::text || ' ' || CASE WHEN c.relname LIKE 'history\\_forever%'
            THEN 'forever' ELSE
                    (to_date(substr(c.relname, 9, 8), 'YYYYMMDD') - (now() AT TIME ZONE 'UTC')::date)::text END || ' '
                    || count(*)
         FROM queue_internal.history AS h JOIN pg_class AS c ON c.oid = h.tableoid
         JOIN queue_internal.lane AS l USING (lane) JOIN queue_internal.queue AS q USING (queue_id)
         GROUP BY q.queue_name, h.outcome, c.relname ORDER BY 1",
    )
}

/// Makes two jobs: one completes at the second attempt, the other one dies at the second.
fn two_jobs(client: &mut Client, queue: &str) {
    client.run(&format!("SELECT queue.enqueue('{queue}', to_jsonb(n)) FROM generate_series(1, 2) AS n"));
    client.run(&format!("SELECT queue.fail(id, 'first') FROM queue.claim('{queue}', 2)"));
    client.run(&format!("SELECT queue.complete(id) FROM queue.claim('{queue}')"));
    client.run(&format!("SELECT queue.fail(id, 'second') FROM queue.claim('{queue}')"));
}

#[test]
fn each_queue_has_its_own_retention() {
    let (mut client, _) = database();
    for (name, options) in [
        ("as_ever", ""),
        ("nothing", "retention => '0', dead_retention => '0'"),
        ("only_dead", "retention => '0'"),
        ("no_dead", "dead_retention => '0', retention => '3 days'"),
        ("for_ever", "retention => '-1', dead_retention => '-1'"),
        ("very_long", "retention => '20000 years', dead_retention => '150000 years'"),
        ("dropped", ""),
    ] {
        let more = if options.is_empty() { "" } else { ", " };
        create(&mut client, name, &format!("max_attempts => 2, backoff_base => '0'{more}{options}"));
        two_jobs(&mut client, name);
    }
    // If the retention is 0, a retried job leaves no trace, whether it is retried before or after the copy.
    let revive = |client: &mut Client, queue: &str| {
        let job: i64 = client.enqueue(queue);
        client.run(&format!("SELECT queue.complete(id) FROM queue.claim('{queue}')"));
        client.run(&format!("SELECT queue.retry({job})"));
        client.run(&format!("SELECT queue.complete(id) FROM queue.claim('{queue}')"));
        job
    };
    let gone = revive(&mut client, "nothing");
    let there = revive(&mut client, "as_ever");
    client.run("SELECT queue.drop('dropped')");
    reclaim(&mut client);
    assert_eq!(
        kept(&mut client),
        [
            // Failed attempts are deleted with their job.
            "as_ever c 1 3",
            "as_ever d 90 1",
            "as_ever f 1 1",
            "as_ever f 90 1",
            "for_ever c forever 1",
            "for_ever d forever 1",
            "for_ever f forever 2",
            "no_dead c 3 1",
            "no_dead f 3 1",
            "only_dead d 90 1",
            "only_dead f 90 1",
            "very_long c forever 1",
            "very_long d forever 1",
            "very_long f forever 2",
        ]
    );
    assert_eq!(client.count("SELECT FROM queue_internal.history"), 18, "nothing is kept of a dropped queue");
    assert_eq!(client.count(&format!("SELECT FROM queue.job({gone})")), 0);
    client.refused(&format!("SELECT queue.retry({gone})"), "P0002");
    assert_eq!(client.state(there), "completed");
    assert_eq!(client.column::<i64>("SELECT id | 15 FROM queue_internal.successor"), [there], "no orphan");
    assert_eq!(client.count("SELECT FROM queue.jobs WHERE queue_name = 'nothing'"), 0);
    assert_eq!(client.count("SELECT FROM queue.attempts WHERE queue_name = 'nothing'"), 0);

    // Another retention affects later copies.
    client.run("SELECT queue.alter('as_ever', retention => '5 days', dead_retention => '10 days')");
    client.run("SELECT queue.alter('nothing', reset => '{retention}')");
    client.run("SELECT queue.alter('for_ever', retention => '0', dead_retention => '0')");
    for queue in ["as_ever", "nothing", "for_ever"] {
        two_jobs(&mut client, queue);
    }
    reclaim(&mut client);
    let now = kept(&mut client);
    for wanted in [
        "as_ever c 1 3",
        "as_ever c 5 1",
        "as_ever d 10 1",
        "as_ever f 10 1",
        "as_ever f 5 1",
        "nothing c 1 1",
        "nothing f 1 1",
        "for_ever f forever 2",
    ] {
        assert!(now.iter().any(|row| row == wanted), "{wanted}: {now:?}");
    }
    assert!(!now.iter().any(|row| row.starts_with("nothing d")), "{now:?}");

    // A dropped queue is not shown. Its rows are deleted with their day.
    let before = client.count("SELECT FROM queue_internal.history");
    client.run("SELECT queue.drop('for_ever')");
    assert_eq!(client.count("SELECT FROM queue.jobs WHERE queue_name = 'for_ever'"), 0);
    assert_eq!(client.count("SELECT FROM queue_internal.history"), before);
}

#[test]
fn a_successor_is_kept_when_its_job_has_left_the_segment() {
    let (mut client, _) = database();
    create(&mut client, "q", "");
    let (waiting, running) = (client.enqueue("q"), client.enqueue("q"));
    let id = client.claim("q");
    assert_eq!(id | 15, waiting);
    client.run("SELECT queue.create('filler', retention => '0')");
    client.pass_through("filler", 500);
    wait::until_true("they have moved", || {
        client.run("SELECT FROM queue.maintain()");
        client.count("SELECT FROM queue_internal.segment_log WHERE state = 'd'") > 0
    });
    // The attempts end in another segment and run again, while their old segment is copied and emptied.
    client.run(&format!("SELECT queue.complete({id}); SELECT queue.complete(id) FROM queue.claim('q')"));
    client.run(&format!(
        "SELECT queue.retry({waiting}, now() + interval '1 day'); \
        SELECT queue.retry({running}, now() + interval '1 day')"
    ));
    let states = "SELECT job_id || ' ' || state FROM queue.jobs WHERE queue_name = 'q' ORDER BY job_id";
    let wanted = [format!("{waiting} scheduled"), format!("{running} scheduled")];
    assert_eq!(client.column::<String>(states), wanted);
    wait::until_true("it is emptied", || {
        client.run("SELECT FROM queue.maintain()");
        assert_eq!(client.column::<String>(states), wanted);
        client.count("SELECT FROM queue_internal.attempt_0") == 0
    });
}

#[test]
fn a_job_without_retention_is_gone_when_its_segment_is_copied() {
    let (mut client, _) = database();
    create(&mut client, "q", "retention => '0'");
    let job = client.enqueue("q");
    client.run("SELECT queue.complete(id) FROM queue.claim('q')");
    // The holder's lock, which is that of a dump, delays the last step.
    let mut holder = client_of(&mut client);
    holder.run("BEGIN; LOCK TABLE pg_extension IN ACCESS SHARE MODE");
    let is_copied = "SELECT FROM (SELECT DISTINCT ON (segment) state FROM queue_internal.segment_log ORDER BY segment, \
        entry DESC) AS s WHERE state = 'h'";
    wait::until_true("it is copied", || {
        client.run("SELECT FROM queue.maintain()");
        client.count(is_copied) > 0
    });
    // Neither verbs nor views find the jobs, although their rows still exist.
    assert_eq!(client.count("SELECT FROM queue.jobs"), 0);
    client.refused(&format!("SELECT queue.retry({job})"), "P0002");
    holder.run("COMMIT");
    reclaim(&mut client);
    assert_eq!(client.count("SELECT FROM queue_internal.successor"), 0);
}

/// Opens another connection to the same database.
pub fn client_of(client: &mut Client) -> Client {
    SERVER.connect_to(&client.value::<String>("SELECT current_database()::text"))
}

#[test]
fn verbs_find_jobs_in_history() {
    let (mut client, _) = database();
    create(&mut client, "q", "max_attempts => 2, backoff_base => '0'");
    two_jobs(&mut client, "q");
    let jobs: Vec<i64> = client.column("SELECT job_id FROM queue.jobs ORDER BY job_id");
    let [done, dead] = jobs[..] else { panic!("{jobs:?}") };
    let secret = client.value::<i64>("SELECT queue.enqueue('q', '{\"secret\": 1}', headers => '{\"secret\": 2}')");
    client.run("SELECT queue.progress(id, '{\"secret\": 3}') FROM queue.claim('q')");
    let id: i64 = client.value("SELECT id FROM queue.attempts WHERE state = 'running'");
    client.run(&format!("SELECT queue.complete({id}, '{{\"secret\": 4}}')"));
    let attempts = client.query("SELECT id, state FROM queue.attempts", &[]).unwrap();
    assert_eq!(attempts.len(), 5);
    reclaim(&mut client);
    assert_eq!(client.count("SELECT FROM queue_internal.history"), 5);

    for row in &attempts {
        let (id, state): (i64, String) = (row.get(0), row.get(1));
        let what = match state.as_str() {
            "completed" => "This attempt was already completed at 20",
            "failed" | "dead" => "This attempt was already failed at 20",
            other => panic!("{other}"),
        };
        for verb in ["complete($)", "fail($, 'x')", "release($)", "extend($)", "progress($, '1')"] {
            let lost = client.failure(&format!("SELECT queue.{}", verb.replace('$', &id.to_string())));
            assert_eq!(
                (lost.code.as_str(), lost.message.as_str()),
                ("QJ001", format!("lost lease on attempt {id}").as_str())
            );
            assert!(lost.detail.starts_with(what), "{verb}: {lost:?}");
            assert_eq!(lost.detail.contains("went on"), state == "failed", "{lost:?}");
        }
        let answer: String =
            client.value(&format!("SELECT outcome || ' ' || reason FROM queue.complete_many('{{{id}}}')"));
        assert!(answer.starts_with(&format!("lost lost lease on attempt {id}: {what}")), "{answer}");
    }
    for verb in ["cancel($)", "reprioritize($, 1)", "reschedule($, now())"] {
        let ended = client.failure(&format!("SELECT queue.{}", verb.replace('$', &done.to_string())));
        assert_eq!(ended.code, "55000", "{ended:?}");
    }

    client.run(&format!("SELECT queue.forget({secret})"));
    let left =
        "SELECT FROM queue.job($) WHERE payload = '{}' AND headers IS NULL AND result IS NULL AND progress IS NULL";
    assert_eq!(client.count(&left.replace('$', &secret.to_string())), 1);
    assert_eq!(client.count("SELECT FROM queue_internal.history WHERE history::text LIKE '%secret%'"), 0);

    // The job runs again with its payload, and the views show its new place.
    client.run(&format!("SELECT queue.retry({done})"));
    assert_eq!(client.state(done), "ready");
    assert_eq!(
        client.count(
            r#"SELECT FROM queue.retry_many(ARRAY(
                         SELECT job_id FROM queue.search('q', '$.error starts with "sec"', '{dead}')))
                         WHERE outcome = 'retried'"#
        ),
        1
    );
    assert_eq!(client.value::<i64>(&retry_dead("q")), 0);
    assert_eq!(client.count("SELECT FROM queue.jobs"), 3);
    let claimed: Vec<String> =
        client.column("SELECT job_id || ' ' || payload FROM queue.claim('q', 5) ORDER BY job_id");
    assert_eq!(claimed, [format!("{done} 1"), format!("{dead} 2")]);
    client.refused(&format!("SELECT queue.retry({done})"), "55000");
    client.run("SELECT queue.complete(id) FROM queue.attempts WHERE state = 'running'");
    reclaim(&mut client);
    assert_eq!(client.column::<String>("SELECT state FROM queue.jobs"), ["completed"; 3]);
    assert_eq!(client.count("SELECT FROM queue.attempts"), 7);

    // If two retries run at the same time, one succeeds.
    client.run(&format!("BEGIN; SELECT queue.retry({done})"));
    let mut other = client_of(&mut client);
    other.refused(&format!("SELECT queue.retry({done})"), "55006");
    client.run("ROLLBACK");
    other.run(&format!("SELECT queue.retry({done})"));
    assert_eq!(client.state(done), "ready");
}

#[test]
fn a_job_with_only_early_attempts_in_history_is_gone() {
    let (mut client, _) = database();
    create(&mut client, "q", "max_attempts => 2, backoff_base => '0', retention => '0'");
    // The first attempt is copied before its job has ended.
    let job = client.enqueue("q");
    client.run("SELECT queue.fail(id, 'first', retry_in => '1 day') FROM queue.claim('q')");
    // This job was retried by hand after its death.
    let revived = client.enqueue("q");
    client.run("SELECT queue.fail(id, 'dead', fatal => true) FROM queue.claim('q')");
    reclaim(&mut client);
    assert_eq!(client.count("SELECT FROM queue_internal.history"), 2);
    client.run(&format!("SELECT queue.retry({job}); SELECT queue.retry({revived})"));
    client.run("SELECT queue.complete(id) FROM queue.claim('q', 2)");
    reclaim(&mut client);
    // The rows are in old segments or were there.
    wait::within("old is reclaimed", Duration::from_secs(60), || {
        client.run("SELECT FROM queue.maintain()");
        (client.count("SELECT FROM queue_internal.attempt_8 UNION ALL SELECT FROM queue_internal.attempt_9") == 0)
            .then_some(())
    });
    assert_eq!(client.count("SELECT FROM queue_internal.history WHERE outcome IN ('f', 'd')"), 2);
    for job in [job, revived] {
        assert_eq!(client.count(&format!("SELECT FROM queue.jobs WHERE job_id = {job}")), 0);
        for verb in ["retry($)", "cancel($)", "forget($)"] {
            let gone = client.failure(&format!("SELECT queue.{}", verb.replace('$', &job.to_string())));
            assert_eq!(gone.code, "P0002", "{verb}: {gone:?}");
        }
    }
}

/// Returns the child tables of history.
pub fn children(client: &mut Client) -> Vec<String> {
    client.column(
        "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'queue_internal.history'::regclass
         ORDER BY 1",
    )
}

#[test]
fn what_is_being_erased_is_not_revived_and_what_is_being_revived_is_not_erased() {
    let (database, mut client) = Database::new().with_queue("q", "");
    let jobs: Vec<i64> = (0..3).map(|_| client.value("SELECT queue.enqueue('q', '{\"secret\": 1}')")).collect();
    client.run("SELECT queue.fail(id, 'x', fatal => true) FROM queue.claim('q', 3)");
    let mut eraser = database.connect();
    eraser.run(&format!("BEGIN; SELECT queue.forget({})", jobs[0]));
    client.refused(&format!("SELECT queue.retry({})", jobs[0]), "55006");
    // The second session waits for the first, and its job is revived meanwhile.
    let erased = blocked::<i64>(&mut client, database.connect(), format!("SELECT queue.forget({})", jobs[1]));
    client.run(&format!("SELECT queue.retry({})", jobs[1]));
    eraser.run("COMMIT");
    assert_eq!(erased.join().unwrap().unwrap_err().code, "55000");
    assert_eq!(client.value::<i64>(&retry_dead("q")), 2);
    let payloads = "SELECT payload::text FROM queue.claim('q', 10) ORDER BY job_id";
    assert_eq!(client.column::<String>(payloads), ["{}", "{\"secret\": 1}", "{\"secret\": 1}"]);

    client.run(&format!("SELECT queue.cancel({}, force => true)", jobs[2]));
    eraser.run(&format!("BEGIN; SELECT queue.retry({})", jobs[2]));
    // Calls for many jobs answer that the job is busy.
    let answer: String = client.value(&format!("SELECT outcome FROM queue.retry_many(ARRAY[{}])", jobs[2]));
    assert_eq!(answer, "busy");
    client.refused(&format!("SELECT queue.forget({})", jobs[2]), "55006");
    eraser.run("COMMIT");
    client.refused(&format!("SELECT queue.forget({})", jobs[2]), "55000");
}

#[test]
fn a_job_whose_next_run_was_asked_for_is_not_erased_before_that_is_made() {
    let (database, mut client) = Database::without_worker().with_queue("q", "");
    let job: i64 = client.value("SELECT queue.enqueue('q', '{\"v\": 1}', unique_key => 'a')");
    let id: i64 = client.value("SELECT id FROM queue.claim('q')");
    let mut producer = database.connect();
    producer.run("BEGIN; SELECT queue.enqueue('q', '{\"v\": 2}', unique_key => 'a', on_duplicate => 'rerun')");
    client.run(&format!("SELECT queue.complete({id})"));
    client.refused(&format!("SELECT queue.forget({job})"), "55006");
    producer.run("COMMIT");
    client.refused(&format!("SELECT queue.forget({job})"), "55006");
    client.run("SELECT FROM queue.maintain()");
    assert_eq!(client.value::<String>("SELECT payload::text FROM queue.claim('q')"), "{\"v\": 2}");
}

#[test]
fn no_duty_fails_because_of_a_publication_of_all_tables() {
    let (_cluster, mut client) =
        Cluster::with(&["pg_queue.segment_age = 1", "pg_queue.reclaim_delay = 0"]).start_with_database("app");
    client.run("CREATE PUBLICATION everything FOR ALL TABLES");
    create(&mut client, "q", "");
    let job = client.enqueue("q");
    client.run("SELECT queue.complete(id) FROM queue.claim('q')");
    client.run(&format!("SELECT queue.forget({job})"));
    wait::until_true("it is in history", || client.count("SELECT FROM queue_internal.history") > 0);
    client.run(&format!("SELECT queue.forget({job})"));
    client.run(
        "BEGIN; DELETE FROM queue_internal.permission WHERE false; UPDATE queue_internal.lane
        SET stage = stage; COMMIT",
    );
    wait::until("it is awake again", || {
        client.run("SELECT queue.adopt()");
        client.batch_execute("SELECT queue.enqueue('q')").ok()
    });
    client.run("SELECT FROM queue.maintain()");
    // Tables with updates or deletes have the replica identity that a publication needs. The others only get inserts.
    let without = "SELECT DISTINCT regexp_replace(c.relname, '_[0-9]$', '') FROM pg_class AS c
                   WHERE c.relnamespace = 'queue_internal'::regnamespace AND c.relkind = 'r' AND c.relreplident <> 'f'
                     AND NOT EXISTS (SELECT FROM pg_index AS i WHERE i.indrelid = c.oid AND i.indisprimary) ORDER BY 1";
    assert_eq!(client.column::<String>(without), ["key", "parked", "timeline"]);
}

#[test]
fn a_waiting_job_counts_among_the_errors_even_if_its_failed_attempt_is_not_kept() {
    let (_cluster, mut client) =
        Cluster::with(&["pg_queue.segment_age = 1", "pg_queue.reclaim_delay = 0"]).start_with_database("app");
    create(&mut client, "q", "dead_retention => '0'");
    client.enqueue("q");
    client.run("SELECT queue.fail(id, 'boom', retry_in => '1 hour') FROM queue.claim('q')");
    wait::until_true("the attempt is gone", || client.count("SELECT FROM queue.attempts WHERE state = 'failed'") == 0);
    assert_eq!(client.column::<String>("SELECT error || ' ' || jobs FROM queue.errors"), ["boom 1"]);
}

#[test]
fn what_ran_when_its_queue_was_dropped_can_be_erased() {
    let (_database, mut client) = Database::new().with_queue("q", "");
    let job: i64 = client.value("SELECT queue.enqueue('q', '{\"secret\": 1}')");
    client.run("SELECT FROM queue.claim('q'); SELECT queue.drop('q', force => true)");
    for verb in ["cancel($)", "cancel($, force => true)", "retry($)", "reprioritize($, 1)", "reschedule($, now())"] {
        let refused = client.failure(&format!("SELECT queue.{}", verb.replace('$', &job.to_string())));
        let expected = format!("the queue of job {job} was dropped");
        assert_eq!((refused.code, refused.message), ("55000".into(), expected), "{verb}");
    }
    client.run(&format!("SELECT queue.forget({job})"));
    assert_eq!(client.count("SELECT FROM queue_internal.attempt_0 WHERE payload::text LIKE '%secret%'"), 0);
}
