//! What is kept of ended jobs: `queue.history`, on the way there and after it. Nobody does the duties here but
//! `queue.maintain()`, which takes one step of the storage duty a call.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use postgres::Client;
use queue_tests::installation::run;
use queue_tests::{Cluster, wait};

use crate::shared::{Sql, create, retry_dead};

static SERVER: LazyLock<Cluster> = LazyLock::new(|| {
    Cluster::new()
        .conf("pg_queue.segment_age = 1")
        .conf("pg_queue.segment_rows = 1000000")
        .conf("pg_queue.reclaim_delay = 0")
        .conf("pg_queue.restore_quiet = 1")
        .conf("pg_queue.max_databases = 64")
        .conf("max_worker_processes = 60")
        .start()
});

/// A database with the extension, nobody's but the test's, and its name.
fn database() -> (Client, String) {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let name = format!("d{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    (named_database(&name), name)
}

fn named_database(name: &str) -> Client {
    SERVER.create_database_with(name, "ALTER DATABASE $ SET pg_queue.worker = off")
}

/// Attempts in the young segments.
fn young(client: &mut Client) -> i64 {
    let tables: Vec<String> = (0..8).map(|n| format!("SELECT FROM queue.attempt_{n}")).collect();
    client.value(&format!("SELECT count(*) FROM ({}) AS a", tables.join(" UNION ALL ")))
}

/// Takes steps, with a look after each, until the young segments are empty: all that has ended is in history.
fn reclaim_and(client: &mut Client, mut look: impl FnMut(&mut Client)) {
    wait::within("the young segments are empty", Duration::from_secs(60), || {
        client.run("SELECT FROM queue.maintain()");
        look(client);
        (young(client) == 0).then_some(())
    });
}

/// The same at once, also where many live: a segment is reclaimed without need when one in twenty does.
fn reclaim(client: &mut Client) {
    client.run("SELECT queue.create('filler', retention => '0', if_not_exists => true)");
    client.run("SELECT count(*) FROM queue.enqueue_many('filler', pg_catalog.array_fill('1'::jsonb, '{500}'))");
    client.run("SELECT count(*) FROM queue.complete_many(ARRAY(SELECT id FROM queue.claim('filler', 500)))");
    reclaim_and(client, |_| {});
}

/// When a lease ends is asked of two clocks, so that two looks differ by some microseconds.
const JOBS: &str = "
    SELECT (to_jsonb(j) || jsonb_build_object('lease_expires_at',
    date_trunc('minute', lease_expires_at + interval '30 s')))::text
    FROM queue.jobs AS j ORDER BY job_id";
const ATTEMPTS: &str = "SELECT to_jsonb(a)::text FROM queue.attempts AS a ORDER BY id";
const ERRORS: &str = "SELECT to_jsonb(e)::text FROM queue.errors AS e ORDER BY queue_name, error";

/// Jobs in all states, with all that a job can have. Backoff 0, so that a failed one is ready at once.
fn varied(client: &mut Client, queue: &str) {
    let options =
        "max_attempts => 3, backoff_base => '0', backoff_jitter => 0, lease => '1 hour', dead_retention => '2 days'";
    create(client, queue, options);
    let words = [
        // Ready, scheduled, running with progress, retrying.
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
    // Ended in all ways, small and large, at once and after failures.
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
    // Both are at their second attempt, and go on side by side.
    let again = client.column::<i64>(&format!("SELECT id FROM queue.claim('{queue}', 2) ORDER BY job_id"));
    client.run(&format!("SELECT queue.fail({}, 'two'); SELECT queue.complete({}, 'null')", again[0], again[1]));
    let last = client.claim(queue);
    client.run(&format!("SELECT queue.fail({last}, 'three')"));
    // Retried by hand, and waits.
    let once_more = client.enqueue(queue);
    let id = client.claim(queue);
    client.run(&format!("SELECT queue.complete({id}); SELECT queue.retry({once_more}, now() + interval '1 day')"));
    // Retried by hand, and done again.
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
    // Several batches of the copy.
    create(&mut client, "many", "");
    client.run("SELECT count(*) FROM queue.enqueue_many('many', array_fill('1'::jsonb, '{5000}'))");
    client.run("SELECT count(*) FROM queue.complete_many(ARRAY(SELECT id FROM queue.claim('many', 5000)))");
    let (jobs, attempts, errors) =
        (client.column::<String>(JOBS), client.column::<String>(ATTEMPTS), client.column::<String>(ERRORS));
    let one_by_one = "
        SELECT (to_jsonb(k) - 'lease_expires_at')::text
        FROM (SELECT job_id FROM queue.jobs WHERE queue_name = 'q') AS j, queue.job(j.job_id) AS k ORDER BY 1";
    let of_q = "SELECT (to_jsonb(j) - 'lease_expires_at')::text FROM queue.jobs AS j WHERE queue_name = 'q' ORDER BY 1";
    let (by_job, mut half) = (client.column::<String>(one_by_one), 0);
    assert_eq!(by_job, client.column::<String>(of_q), "queue.job and queue.jobs");
    reclaim_and(&mut client, |client| {
        let is_half = "SELECT count(*) FROM queue.segment_log AS l WHERE copied_to > 0 AND state = 'd'
                       AND NOT EXISTS (SELECT FROM queue.segment_log AS n WHERE n.entry > l.entry)";
        half += client.value::<i64>(is_half);
        let step =
            client.column::<String>("SELECT segment || state::text FROM queue.segment_log ORDER BY entry DESC LIMIT 1");
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
    assert!(client.count("SELECT FROM queue.history") > 5000);
    assert_eq!(client.count("SELECT FROM queue.history GROUP BY id HAVING count(*) > 1"), 0);
    // A payload is kept once.
    let kept = "SELECT FROM queue.history WHERE payload IS NOT NULL AND next_id IS NOT NULL";
    assert_eq!(client.count(kept), 0, "payloads of attempts that were not the last");
}

/// How many rows of history are kept until which day, seen from today (UTC).
fn kept(client: &mut Client) -> Vec<String> {
    client.column(
        "SELECT q.queue_name || ' ' || h.outcome::text || ' ' || CASE WHEN c.relname LIKE 'history\\_forever%'
            THEN 'forever' ELSE
                    (to_date(substr(c.relname, 9, 8), 'YYYYMMDD') - (now() AT TIME ZONE 'UTC')::date)::text END || ' '
                    || count(*)
         FROM queue.history AS h JOIN pg_class AS c ON c.oid = h.tableoid
         JOIN queue.lane AS l USING (lane) JOIN queue.queue AS q USING (queue_id)
         GROUP BY q.queue_name, h.outcome, c.relname ORDER BY 1",
    )
}

/// One job completed at the second attempt, one dead at the second.
fn two_jobs(client: &mut Client, queue: &str) {
    client.run(&format!("SELECT queue.enqueue('{queue}', to_jsonb(n)) FROM generate_series(1, 2) AS n"));
    client.run(&format!("SELECT queue.fail(id, 'first') FROM queue.claim('{queue}', 2)"));
    client.run(&format!("SELECT queue.complete(id) FROM queue.claim('{queue}')"));
    client.run(&format!("SELECT queue.fail(id, 'second') FROM queue.claim('{queue}')"));
}

#[test]
fn retention_is_the_queues() {
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
    // A retried job of which nothing is kept leaves no trace, be it retried before or after the copy.
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
            // Failed attempts go with their job.
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
    assert_eq!(client.count("SELECT FROM queue.history"), 18, "nothing is kept of a dropped queue");
    assert_eq!(client.count(&format!("SELECT FROM queue.job({gone})")), 0);
    assert_eq!(client.failure(&format!("SELECT queue.retry({gone})")).code, "P0002");
    assert_eq!(client.state(there), "completed");
    assert_eq!(client.column::<i64>("SELECT id | 15 FROM queue.successor"), [there], "no orphan");
    assert_eq!(client.count("SELECT FROM queue.jobs WHERE queue_name = 'nothing'"), 0);
    assert_eq!(client.count("SELECT FROM queue.attempts WHERE queue_name = 'nothing'"), 0);

    // Another retention counts for what is copied from then on.
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

    // A queue that is dropped later is not shown; its rows go with their day.
    let before = client.count("SELECT FROM queue.history");
    client.run("SELECT queue.drop('for_ever')");
    assert_eq!(client.count("SELECT FROM queue.jobs WHERE queue_name = 'for_ever'"), 0);
    assert_eq!(client.count("SELECT FROM queue.history"), before);
}

#[test]
fn a_successor_is_not_forgotten_with_a_place_that_its_job_has_left() {
    let (mut client, _) = database();
    create(&mut client, "q", "");
    let (waiting, running) = (client.enqueue("q"), client.enqueue("q"));
    let id = client.claim("q");
    assert_eq!(id | 15, waiting);
    client.run("SELECT queue.create('filler', retention => '0')");
    client.run("SELECT count(*) FROM queue.enqueue_many('filler', array_fill('1'::jsonb, '{500}'))");
    client.run("SELECT count(*) FROM queue.complete_many(ARRAY(SELECT id FROM queue.claim('filler', 500)))");
    wait::until("they have moved", || {
        client.run("SELECT FROM queue.maintain()");
        (client.count("SELECT FROM queue.segment_log WHERE state = 'd'") > 0).then_some(())
    });
    // They end elsewhere, and run once more, while their old place is copied and emptied.
    client.run(&format!("SELECT queue.complete({id}); SELECT queue.complete(id) FROM queue.claim('q')"));
    client.run(&format!(
        "SELECT queue.retry({waiting}, now() + interval '1 day'); \
        SELECT queue.retry({running}, now() + interval '1 day')"
    ));
    let states = "SELECT job_id || ' ' || state FROM queue.jobs WHERE queue_name = 'q' ORDER BY job_id";
    let wanted = [format!("{waiting} scheduled"), format!("{running} scheduled")];
    assert_eq!(client.column::<String>(states), wanted);
    wait::until("it is emptied", || {
        client.run("SELECT FROM queue.maintain()");
        assert_eq!(client.column::<String>(states), wanted);
        (client.count("SELECT FROM queue.attempt_0") == 0).then_some(())
    });
}

#[test]
fn a_job_of_which_nothing_is_kept_is_gone_when_its_segment_is_copied() {
    let (mut client, _) = database();
    create(&mut client, "q", "retention => '0'");
    let job = client.enqueue("q");
    client.run("SELECT queue.complete(id) FROM queue.claim('q')");
    // A dump holds up the last step.
    let mut holder = client_of(&mut client);
    holder.run("BEGIN; LOCK TABLE pg_extension IN ACCESS SHARE MODE");
    let is_copied = "SELECT FROM (SELECT DISTINCT ON (segment) state FROM queue.segment_log ORDER BY segment, \
        entry DESC) AS s WHERE state = 'h'";
    wait::until("it is copied", || {
        client.run("SELECT FROM queue.maintain()");
        (client.count(is_copied) > 0).then_some(())
    });
    // For the verbs as for the views, although its rows are there still.
    assert_eq!(client.count("SELECT FROM queue.jobs"), 0);
    assert_eq!(client.failure(&format!("SELECT queue.retry({job})")).code, "P0002");
    holder.run("COMMIT");
    reclaim(&mut client);
    assert_eq!(client.count("SELECT FROM queue.successor"), 0);
}

/// Another connection to the same database.
fn client_of(client: &mut Client) -> Client {
    SERVER.connect_to(&client.value::<String>("SELECT current_database()::text"))
}

#[test]
fn verbs_find_what_is_in_history() {
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
    assert_eq!(client.count("SELECT FROM queue.history"), 5);

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
    assert_eq!(client.count("SELECT FROM queue.history WHERE history::text LIKE '%secret%'"), 0);

    // Once more, with its payload; and the views show it where it is now.
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
    assert_eq!(client.failure(&format!("SELECT queue.retry({done})")).code, "55000");
    client.run("SELECT queue.complete(id) FROM queue.attempts WHERE state = 'running'");
    reclaim(&mut client);
    assert_eq!(client.column::<String>("SELECT state FROM queue.jobs"), ["completed"; 3]);
    assert_eq!(client.count("SELECT FROM queue.attempts"), 7);

    // Two at once: one of them.
    client.run("BEGIN");
    client.run(&format!("SELECT queue.retry({done})"));
    let mut other = client_of(&mut client);
    assert_eq!(other.failure(&format!("SELECT queue.retry({done})")).code, "55006");
    client.run("ROLLBACK");
    other.run(&format!("SELECT queue.retry({done})"));
    assert_eq!(client.state(done), "ready");
}

#[test]
fn a_job_of_which_only_early_attempts_are_left_is_gone() {
    let (mut client, _) = database();
    create(&mut client, "q", "max_attempts => 2, backoff_base => '0', retention => '0'");
    // The first attempt is copied while nobody knows how the job will end.
    let job = client.enqueue("q");
    client.run("SELECT queue.fail(id, 'first', retry_in => '1 day') FROM queue.claim('q')");
    // Retried by hand after its death.
    let revived = client.enqueue("q");
    client.run("SELECT queue.fail(id, 'dead', fatal => true) FROM queue.claim('q')");
    reclaim(&mut client);
    assert_eq!(client.count("SELECT FROM queue.history"), 2);
    client.run(&format!("SELECT queue.retry({job}); SELECT queue.retry({revived})"));
    client.run("SELECT queue.complete(id) FROM queue.claim('q', 2)");
    reclaim(&mut client);
    // Old has them, or had.
    wait::within("old is reclaimed", Duration::from_secs(60), || {
        client.run("SELECT FROM queue.maintain()");
        (client.count("SELECT FROM queue.attempt_8 UNION ALL SELECT FROM queue.attempt_9") == 0).then_some(())
    });
    assert_eq!(client.count("SELECT FROM queue.history WHERE outcome IN ('f', 'd')"), 2);
    for job in [job, revived] {
        assert_eq!(client.count(&format!("SELECT FROM queue.jobs WHERE job_id = {job}")), 0);
        for verb in ["retry($)", "cancel($)", "forget($)"] {
            let gone = client.failure(&format!("SELECT queue.{}", verb.replace('$', &job.to_string())));
            assert_eq!(gone.code, "P0002", "{verb}: {gone:?}");
        }
    }
}

/// The children of history.
fn children(client: &mut Client) -> Vec<String> {
    client.column(
        "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'queue.history'::regclass ORDER BY 1",
    )
}

/// Has the only child be one of yesterday.
fn make_old(client: &mut Client) -> String {
    let all = children(client);
    let [child] = &all[..] else { panic!("{all:?}") };
    let old: String =
        client.value("SELECT 'history_' || to_char((now() AT TIME ZONE 'UTC')::date - 1, 'YYYYMMDD') || '_0badcafe'");
    client.run(&format!("ALTER TABLE {child} RENAME TO {old}"));
    format!("queue.{old}")
}

#[test]
fn a_day_that_is_over_goes_when_nobody_reads_it_and_nobody_waits() {
    let (mut client, _) = database();
    create(&mut client, "q", "");
    let job = client.enqueue("q");
    client.run("SELECT queue.complete(id) FROM queue.claim('q')");
    client.run(&format!("SELECT queue.retry({job})"));
    client.run("SELECT queue.complete(id) FROM queue.claim('q')");
    reclaim(&mut client);
    let old = make_old(&mut client);
    assert_eq!(client.count("SELECT FROM queue.successor"), 1);
    let mut reader = client_of(&mut client);
    reader.run("BEGIN; SELECT count(*) FROM queue.history");
    // Another session does the duty, as it looks when it begins and each day anew.
    let mut duty = client_of(&mut client);
    let start = Instant::now();
    let forgot = "SELECT did FROM queue.maintain() WHERE duty = 'forget_history'";
    for _ in 0..3 {
        let mut duty = client_of(&mut client);
        assert_eq!(duty.value::<i64>(forgot), 0);
        assert_eq!(client.count("SELECT FROM queue.jobs"), 1, "others read meanwhile");
    }
    assert!(start.elapsed() < Duration::from_secs(5), "somebody waited");
    reader.run("COMMIT");
    // So does a dump.
    reader.run("BEGIN; LOCK TABLE pg_extension IN ACCESS SHARE MODE");
    assert_eq!(client_of(&mut client).value::<i64>(forgot), 0);
    reader.run("COMMIT");
    assert_eq!(children(&mut client), [old]);
    assert_eq!(duty.value::<i64>(forgot), 1);
    assert_eq!(children(&mut client), [""; 0]);
    assert_eq!(client.count("SELECT FROM queue.jobs"), 0);
    assert_eq!(client.count("SELECT FROM queue.successor"), 0);
    // The next one of that day is made anew.
    client.enqueue("q");
    client.run("SELECT queue.complete(id) FROM queue.claim('q')");
    reclaim(&mut client);
    assert_eq!(client.count("SELECT FROM queue.history"), 1);
}

#[test]
fn what_waits_for_a_dead_job_whose_day_is_over_is_told() {
    let (mut client, _) = database();
    create(&mut client, "q", "max_attempts => 1");
    let dead = client.enqueue("q");
    client.run("SELECT queue.fail(id, 'no') FROM queue.claim('q')");
    let living = client.enqueue("q");
    let mut after = |jobs: &str, upon: &str| -> i64 {
        client.value(&format!("SELECT queue.enqueue('q', after => '{{{jobs}}}', upon => '{upon}')"))
    };
    let held = after(&dead.to_string(), "completed");
    let both = after(&format!("{dead},{living}"), "ended");
    let late: i64 = after(&living.to_string(), "completed");
    reclaim(&mut client);
    assert_eq!(client.count(&format!("SELECT FROM queue.history WHERE job_id = {dead}")), 1);
    assert_eq!((client.state(held), client.state(both)), ("held".into(), "held".into()));
    make_old(&mut client);
    let mut duty = client_of(&mut client);
    wait::until("the day goes", || {
        let forgot: i64 = duty.value("SELECT sum(did)::bigint FROM queue.maintain() WHERE duty = 'forget_history'");
        duty = client_of(&mut client);
        (forgot == 1).then_some(())
    });
    assert_eq!(client.count(&format!("SELECT FROM queue.job({dead})")), 0);
    client.maintain_until(&format!("(SELECT state FROM queue.job({held})) = 'skipped'"));
    let error: String = client.value(&format!("SELECT error FROM queue.job({held})"));
    assert_eq!(error, format!("it was after job {dead}, which is known no more"));
    assert_eq!((client.state(both), client.state(late)), ("held".into(), "held".into()));
    client.run("SELECT queue.complete(id) FROM queue.claim('q')");
    client.maintain_until(&format!("(SELECT state FROM queue.job({both})) = 'ready'"));
    client.maintain_until(&format!("(SELECT state FROM queue.job({late})) = 'ready'"));
    assert_eq!(client.count("SELECT FROM queue.check()"), 0);
}

#[test]
fn a_lock_on_history_keeps_nobody_but_the_copy() {
    let (mut client, name) = database();
    create(&mut client, "q", "");
    create(&mut client, "short", "lease => '1 s'");
    client.enqueue("q");
    client.run("SELECT queue.complete(id) FROM queue.claim('q')");
    let mut holder = client_of(&mut client);
    holder.run("BEGIN; LOCK TABLE queue.history IN SHARE MODE");
    client.run("SET lock_timeout = '10 s'");
    client.run(&format!("ALTER DATABASE {name} RESET pg_queue.worker"));
    let already = SERVER.log().len();
    SERVER.reload();
    let is_drained = "SELECT FROM queue.segment_log WHERE state = 'd'";
    wait::within("it is to be copied", Duration::from_secs(20), || {
        client.run("SET pg_queue.worker = on; SELECT FROM queue.maintain()");
        (client.count(is_drained) > 0).then_some(())
    });
    // The other duties go on, in no time.
    let start = Instant::now();
    for _ in 0..20 {
        client.run("SELECT FROM queue.maintain()");
    }
    assert!(start.elapsed() < Duration::from_secs(2), "it waited for the lock");
    assert_eq!(client.count("SELECT FROM queue.history"), 0);
    holder.run("COMMIT");
    reclaim(&mut client);
    assert_eq!(client.count("SELECT FROM queue.history"), 1);
    let log = SERVER.log().split_off(already);
    assert!(!log.contains("lock timeout"), "{log}");
}

#[test]
fn strange_settings_make_no_strange_children() {
    let (mut client, name) = database();
    client.run(
        "CREATE ACCESS METHOD other TYPE TABLE HANDLER heap_tableam_handler; CREATE SCHEMA evil;
        CREATE TABLE evil.history (id bigint); CREATE FUNCTION evil.int8(oid) RETURNS bigint LANGUAGE sql AS
        'SELECT 1::bigint';
        CREATE FUNCTION evil.pg_get_userbyid(oid) RETURNS name LANGUAGE sql AS 'SELECT NULL::name';
        CREATE FUNCTION evil.int8shr(bigint, integer) RETURNS bigint LANGUAGE sql IMMUTABLE AS 'SELECT 1::bigint';
        CREATE OPERATOR evil.>> (LEFTARG = bigint, RIGHTARG = integer, FUNCTION = evil.int8shr)",
    );
    for setting in [
        "default_table_access_method = other",
        "search_path = evil, pg_catalog",
        "quote_all_identifiers = on",
        "DateStyle = 'German'",
        "timezone = 'Pacific/Kiritimati'",
        "IntervalStyle = 'iso_8601'",
        "row_security = off",
    ] {
        client.run(&format!("ALTER DATABASE {name} SET {setting}"));
    }
    let mut client = client_of(&mut client);
    create(&mut client, "q", "");
    client.run("SELECT queue.enqueue('q') FROM pg_catalog.generate_series(1, 3)");
    client.run("SELECT queue.complete(id) FROM queue.claim('q', 3)");
    reclaim(&mut client);
    assert_eq!(client.count("SELECT FROM queue.history"), 3);
    let odd = "SELECT FROM pg_class AS c JOIN pg_am AS a ON a.oid = c.relam
               WHERE c.relnamespace = 'queue'::regnamespace AND c.relkind = 'r' AND a.amname <> 'heap'";
    assert_eq!(client.count(odd), 0);
    let day: String = client.value(
        "SELECT substr(relname, 9, 8) FROM pg_class JOIN pg_inherits ON inhrelid = oid \
        WHERE inhparent = 'queue.history'::regclass",
    );
    let tomorrow: String = client.value("SELECT to_char((now() AT TIME ZONE 'UTC')::date + 1, 'YYYYMMDD')");
    assert_eq!(day, tomorrow);
}

#[test]
fn history_is_dumped_restored_and_dropped_with_the_extension() {
    let (mut client, name) = database();
    client.run("DO $$ BEGIN CREATE ROLE historian SUPERUSER; EXCEPTION WHEN duplicate_object THEN NULL; END $$");
    client.run("DROP EXTENSION pg_queue; SET ROLE historian; CREATE EXTENSION pg_queue; RESET ROLE");
    varied(&mut client, "q");
    reclaim(&mut client);
    let owners = "SELECT DISTINCT relowner::regrole::text FROM pg_class WHERE relnamespace = 'queue'::regnamespace";
    assert_eq!(client.column::<String>(owners), ["historian"], "all belongs to the extension's owner");
    let child = children(&mut client);
    assert_eq!(child.len(), 2, "{child:?}");
    let (jobs, attempts) = (client.column::<String>(JOBS), client.column::<String>(ATTEMPTS));

    let file = SERVER.dir().join("history-dump").display().to_string();
    run(SERVER.command("pg_dump").args(["-Fc", "-f", &file, &name]));
    let copy = format!("{name}_copy");
    SERVER.connect().run(&format!("CREATE DATABASE {copy}"));
    SERVER.connect().run(&format!("ALTER DATABASE {copy} SET pg_queue.worker = off"));
    run(SERVER.command("pg_restore").args(["-e", "-d", &copy, &file]));
    let mut copied = SERVER.connect_to(&copy);
    copied.run("SELECT queue.adopt()");
    assert_eq!(children(&mut copied), child);
    // The lease of what runs began anew.
    let without_lease =
        |rows: &[String]| -> Vec<String> { rows.iter().filter(|row| !row.contains("\"running\"")).cloned().collect() };
    assert_eq!(without_lease(&copied.column(JOBS)), without_lease(&jobs));
    assert_eq!(copied.column::<String>(ATTEMPTS), attempts);
    let dead: i64 = copied.value("SELECT job_id FROM queue.jobs WHERE state = 'dead' AND error = 'three'");
    assert_eq!(copied.count(&format!("SELECT FROM queue.job({dead})")), 1);
    // What ends there goes to the same history.
    copied.run("SELECT queue.complete(id) FROM queue.claim('q', 10)");
    reclaim(&mut copied);
    assert_eq!(copied.count(JOBS), jobs.len());

    for client in [&mut client, &mut copied] {
        let loose = "SELECT FROM pg_inherits AS i WHERE inhparent = 'queue.history'::regclass AND
                     (SELECT count(*) FROM pg_depend AS d WHERE d.objid = i.inhrelid AND d.deptype = 'x') <> 1";
        assert_eq!(client.count(loose), 0, "children that hang on the extension not once");
        client.run("DROP EXTENSION pg_queue");
        assert_eq!(client.count("SELECT FROM pg_namespace WHERE nspname = 'queue'"), 0);
        assert_eq!(client.count("SELECT FROM pg_class WHERE relname LIKE 'history\\_%'"), 0);
        client.run("CREATE EXTENSION pg_queue");
    }
}

#[test]
fn the_worker_goes_on_while_ddl_has_to_wait() {
    let (mut client, name) = database();
    create(&mut client, "q", "lease => '1 s', max_attempts => 100");
    client.enqueue("q");
    client.run("SELECT queue.complete(id) FROM queue.claim('q')");
    client.run(&format!("ALTER DATABASE {name} RESET pg_queue.worker"));
    // A worker that knows.
    client.run("DROP EXTENSION pg_queue; CREATE EXTENSION pg_queue");
    create(&mut client, "q", "lease => '300 ms', max_attempts => 100");
    // Before there is anything to copy: the worker may be quick.
    let mut holder = client_of(&mut client);
    holder.run("BEGIN; LOCK TABLE queue.history IN SHARE MODE");
    client.enqueue("q");
    client.run("SELECT queue.complete(id) FROM queue.claim('q')");
    wait::within("it is to be copied", Duration::from_secs(20), || {
        (client.count("SELECT FROM queue.segment_log WHERE state = 'd'") > 0).then_some(())
    });
    client.enqueue("q");
    let mut late = Vec::new();
    for _ in 0..5 {
        let start = Instant::now();
        let id: i64 = client.value("SELECT id FROM queue.claim('q', wait => '10 s')");
        late.push(start.elapsed());
        assert!(id > 0);
        thread::sleep(Duration::from_millis(50));
    }
    // A worker that waits for the lock is late each time; one that the machine has held up is so once.
    late.sort_unstable();
    assert!(late[2] < Duration::from_millis(1800), "leases ended late: {late:?}");
    holder.run("COMMIT");
    wait::within("it is copied", Duration::from_secs(20), || {
        (client.count("SELECT FROM queue.history WHERE outcome = 'c'") > 0).then_some(())
    });
}

#[test]
fn one_day_that_cannot_be_dropped_keeps_no_other() {
    let (mut client, _) = database();
    create(&mut client, "q", "");
    client.enqueue("q");
    client.run("SELECT queue.complete(id) FROM queue.claim('q')");
    reclaim(&mut client);
    let old = make_old(&mut client);
    client.run(&format!("CREATE VIEW mine AS SELECT * FROM {old}"));
    let other = old.replace("0badcafe", "1badcafe");
    client.run(&format!("CREATE TABLE {other} () INHERITS (queue.history)"));
    let mut duty = client_of(&mut client);
    wait::until("the other one is dropped", || {
        duty.run("SELECT FROM queue.maintain()");
        (!children(&mut client).contains(&other)).then_some(())
    });
    assert_eq!(children(&mut client), std::slice::from_ref(&old));
    client.run("DROP VIEW mine");
    let mut duty = client_of(&mut client);
    wait::until("and then this one", || {
        duty.run("SELECT FROM queue.maintain()");
        children(&mut client).is_empty().then_some(())
    });
}

#[test]
fn what_is_being_erased_is_not_revived_and_what_is_being_revived_is_not_erased() {
    let cluster = Cluster::new().start();
    let mut client = cluster.create_database("app");
    create(&mut client, "q", "");
    let jobs: Vec<i64> = (0..3).map(|_| client.value("SELECT queue.enqueue('q', '{\"secret\": 1}')")).collect();
    client.run("SELECT queue.fail(id, 'x', fatal => true) FROM queue.claim('q', 3)");
    let mut eraser = cluster.connect_to("app");
    eraser.run(&format!("BEGIN; SELECT queue.forget({})", jobs[0]));
    assert_eq!(client.failure(&format!("SELECT queue.retry({})", jobs[0])).code, "55006");
    // The second one waits for the first, and its job is revived meanwhile.
    thread::scope(|scope| {
        let mut second = cluster.connect_to("app");
        let pid: i32 = second.value("SELECT pg_backend_pid()");
        let erase = format!("SELECT queue.forget({})", jobs[1]);
        let erased = scope.spawn(move || second.failure(&erase));
        wait::until("it waits", || {
            let waits = format!("SELECT FROM pg_locks WHERE pid = {pid} AND NOT granted");
            (client.count(&waits) > 0).then_some(())
        });
        client.run(&format!("SELECT queue.retry({})", jobs[1]));
        eraser.run("COMMIT");
        assert_eq!(erased.join().unwrap().code, "55000");
    });
    assert_eq!(client.value::<i64>(&retry_dead("q")), 2);
    let payloads = "SELECT payload::text FROM queue.claim('q', 10) ORDER BY job_id";
    assert_eq!(client.column::<String>(payloads), ["{}", "{\"secret\": 1}", "{\"secret\": 1}"]);

    client.run(&format!("SELECT queue.cancel({}, force => true)", jobs[2]));
    eraser.run(&format!("BEGIN; SELECT queue.retry({})", jobs[2]));
    // Calls for many answer that it is busy.
    let answer: String = client.value(&format!("SELECT outcome FROM queue.retry_many(ARRAY[{}])", jobs[2]));
    assert_eq!(answer, "busy");
    assert_eq!(client.failure(&format!("SELECT queue.forget({})", jobs[2])).code, "55006");
    eraser.run("COMMIT");
    assert_eq!(client.failure(&format!("SELECT queue.forget({})", jobs[2])).code, "55000");
}

#[test]
fn a_job_whose_next_run_was_asked_for_is_not_erased_before_that_is_made() {
    let cluster = Cluster::new().start();
    let mut client = cluster.create_database("app");
    client.run("ALTER DATABASE app SET pg_queue.worker = off");
    create(&mut client, "q", "");
    let job: i64 = client.value("SELECT queue.enqueue('q', '{\"v\": 1}', unique_key => 'a')");
    let id: i64 = client.value("SELECT id FROM queue.claim('q')");
    let mut producer = cluster.connect_to("app");
    producer.run("BEGIN; SELECT queue.enqueue('q', '{\"v\": 2}', unique_key => 'a', on_duplicate => 'rerun')");
    client.run(&format!("SELECT queue.complete({id})"));
    assert_eq!(client.failure(&format!("SELECT queue.forget({job})")).code, "55006");
    producer.run("COMMIT");
    assert_eq!(client.failure(&format!("SELECT queue.forget({job})")).code, "55006");
    client.run("SELECT FROM queue.maintain()");
    assert_eq!(client.value::<String>("SELECT payload::text FROM queue.claim('q')"), "{\"v\": 2}");
}

#[test]
fn payloads_are_there_however_long_a_look_takes() {
    let (mut client, name) = database();
    create(&mut client, "q", "max_attempts => 2, backoff_base => '0'");
    client.run(
        "SELECT count(*) FROM queue.enqueue_many('q', ARRAY(SELECT to_jsonb(n) FROM generate_series(1, 30) AS n))",
    );
    client.run("SELECT queue.complete_many(ARRAY(SELECT id FROM queue.claim('q', 10)))");
    // These are handed on while they are looked at.
    let running: Vec<i64> = client.column("SELECT id FROM queue.claim('q', 10)");
    let mut looker = SERVER.connect_to(&name);
    looker.run("BEGIN; DECLARE look CURSOR FOR SELECT payload::text::int FROM queue.jobs WHERE queue_name = 'q'");
    let mut seen: Vec<Option<i32>> = looker.column("FETCH 1 FROM look");
    client.query("SELECT queue.fail_many($1, 'x')", &[&running]).unwrap();
    client.run("SELECT queue.complete_many(ARRAY(SELECT id FROM queue.claim('q', 30)))");
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
        client.run("SELECT pg_stat_force_next_flush()");
        client.value(
            "SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes WHERE indexrelname ~ '^attempt_._job_idx'",
        )
    };
    let before = entries(&mut client);
    reclaim(&mut client);
    let read = entries(&mut client) - before;
    assert_eq!(client.count("SELECT FROM queue.history"), ATTEMPTS as usize);
    assert!(read > 0 && read < 20 * ATTEMPTS, "{read} entries were read for {ATTEMPTS} attempts");
}

#[test]
fn of_many_notes_those_move_that_still_say_something() {
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
        FROM (SELECT * FROM queue.note_8 UNION ALL SELECT * FROM queue.note_9) AS n";
    assert_eq!(client.value::<String>(kinds), "clp");
    let moved: String = client.value(&format!(
        "SELECT format('%s %s', j.progress, e.is_cancelled) FROM queue.job({job_id}) AS j, queue.extend({id}) AS e"
    ));
    assert_eq!(moved, "50 t");
    // The longest lease counts after a start: it is what is noted.
    let lease: i64 = client
        .value("SELECT max(lease_us) FROM (SELECT * FROM queue.note_8 UNION ALL SELECT * FROM queue.note_9) AS n");
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
                // Something is closed, so that something moves.
                mover.run("SELECT queue.create('filler', retention => '0', if_not_exists => true)");
                mover.run("SELECT count(*) FROM queue.enqueue_many('filler', array_fill('1'::jsonb, '{10}'))");
                mover.run("SELECT count(*) FROM queue.complete_many(ARRAY(SELECT id FROM queue.claim('filler', 10)))");
                mover.run("SELECT FROM queue.maintain()");
            }
        });
        let moving = "SELECT EXISTS (SELECT FROM queue.segment_log WHERE state = 'm')";
        wait::until("they move", || client.value::<bool>(moving).then_some(()));
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
fn indexes_that_users_add_to_history_are_not_taken_for_ours() {
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
        let name = child.trim_start_matches("queue.");
        client.run(&format!("CREATE INDEX {name}_mine ON {child} (lane) WHERE outcome = 'c'"));
        client.run(&format!("CREATE INDEX {name}_hash ON {child} USING hash (job_id)"));
        // Ours get the larger numbers.
        client.run(&format!("REINDEX INDEX CONCURRENTLY {child}_lane_idx"));
        client.run(&format!("REINDEX INDEX CONCURRENTLY {child}_job_id_idx"));
    }
    client.run("SELECT count(*) FROM queue.enqueue_many('q', array_fill('1'::jsonb, '{500}'))");
    client.run("SELECT count(*) FROM queue.complete_many(ARRAY(SELECT id FROM queue.claim('q', 500)))");
    end(&mut client, true);
    reclaim(&mut client);
    let recounted = "SELECT dead FROM queue.stats WHERE queue_name = 'q'";
    assert_eq!(client.value::<i64>(recounted), 2);
    assert_eq!(client.value::<i64>(&retry_dead("q")), 2);
}

#[test]
fn history_goes_on_over_an_upgrade() {
    let (mut client, _) = database();
    client.run("DROP EXTENSION pg_queue; CREATE EXTENSION pg_queue VERSION '0.3.0'");
    create(&mut client, "q", "lease => '1 minute'");
    let dead = |client: &mut Client| -> i64 {
        let job = client.value(r#"SELECT queue.enqueue('q', '{"n": 1}', lease => '3 hours')"#);
        client.run("SELECT queue.fail(id, 'oh', fatal => true) FROM queue.claim('q')");
        reclaim(client);
        assert_eq!(client.count(&format!("SELECT FROM queue.history WHERE job_id = {job}")), 1);
        job
    };
    let before = dead(&mut client);
    let known = "SELECT (to_jsonb(j) - '{started_at, claimed_at}'::text[])::text FROM queue.jobs AS j ORDER BY job_id";
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
    let cluster = Cluster::new().conf("pg_queue.segment_age = 1").conf("pg_queue.reclaim_delay = 0").start();
    let mut client = cluster.create_database("app");
    create(&mut client, "q", "");
    let versions: Vec<String> = (0..10).map(|n| format!("SELECT job_id, version FROM queue.attempt_{n}")).collect();
    let versions = versions.join(" UNION ALL ");
    for is_past in [true, false] {
        let job: i64 = client.value(
            "SELECT queue.enqueue('q', unique_key => 'k' || clock_timestamp(), version => '2030-01-01', \
                lease => '3 hours')",
        );
        let id: i64 = client.value("SELECT id FROM queue.claim('q')");
        client.run(&format!("SELECT queue.progress({id}, '50'), queue.fail({id}, 'x', fatal => true)"));
        if is_past {
            let kept = format!("SELECT FROM queue.history WHERE job_id = {job}");
            wait::until("it is in history", || (client.count(&kept) > 0).then_some(()));
            wait::until("its segment is empty", || {
                client.value::<bool>(&format!("SELECT NOT EXISTS (SELECT FROM ({versions}) AS a)")).then_some(())
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
fn nothing_of_ours_fails_for_a_publication_of_all_tables() {
    let cluster = Cluster::new().conf("pg_queue.segment_age = 1").conf("pg_queue.reclaim_delay = 0").start();
    let mut client = cluster.create_database("app");
    client.run("CREATE PUBLICATION everything FOR ALL TABLES");
    create(&mut client, "q", "");
    let job = client.enqueue("q");
    client.run("SELECT queue.complete(id) FROM queue.claim('q')");
    client.run(&format!("SELECT queue.forget({job})"));
    wait::until("it is in history", || (client.count("SELECT FROM queue.history") > 0).then_some(()));
    client.run(&format!("SELECT queue.forget({job})"));
    client.run("BEGIN; DELETE FROM queue.permission WHERE false; UPDATE queue.lane SET stage = stage; COMMIT");
    wait::until("it is awake again", || {
        client.run("SELECT queue.adopt()");
        client.batch_execute("SELECT queue.enqueue('q')").ok()
    });
    client.run("SELECT FROM queue.maintain()");
    // What may be updated or deleted, has what a publication wants. Into the rest rows are only inserted.
    let without = "SELECT DISTINCT regexp_replace(c.relname, '_[0-9]$', '') FROM pg_class AS c
                   WHERE c.relnamespace = 'queue'::regnamespace AND c.relkind = 'r' AND c.relreplident <> 'f'
                     AND NOT EXISTS (SELECT FROM pg_index AS i WHERE i.indrelid = c.oid AND i.indisprimary) ORDER BY 1";
    assert_eq!(client.column::<String>(without), ["key", "parked", "timeline"]);
}

#[test]
fn a_job_that_waits_after_a_failure_counts_among_the_errors_also_when_that_attempt_is_not_kept() {
    let cluster = Cluster::new().conf("pg_queue.segment_age = 1").conf("pg_queue.reclaim_delay = 0").start();
    let mut client = cluster.create_database("app");
    create(&mut client, "q", "dead_retention => '0'");
    client.enqueue("q");
    client.run("SELECT queue.fail(id, 'boom', retry_in => '1 hour') FROM queue.claim('q')");
    wait::until("the attempt is gone", || {
        (client.count("SELECT FROM queue.attempts WHERE state = 'failed'") == 0).then_some(())
    });
    assert_eq!(client.column::<String>("SELECT error || ' ' || jobs FROM queue.errors"), ["boom 1"]);
}

#[test]
fn calls_for_many_pass_over_what_somebody_else_revives() {
    let cluster = Cluster::new().start();
    let mut client = cluster.create_database("app");
    create(&mut client, "q", "");
    let busy = client.enqueue("q");
    client.enqueue("q");
    client.run("SELECT queue.fail(id, 'x', fatal => true) FROM queue.claim('q', 2)");
    let mut other = cluster.connect_to("app");
    other.run(&format!("BEGIN; SELECT queue.retry({busy})"));
    assert_eq!(client.value::<i64>(&retry_dead("q")), 1);
    other.run("ROLLBACK");
    assert_eq!(client.value::<i64>(&retry_dead("q")), 1);
    assert_eq!(client.count("SELECT FROM queue.claim('q', 10)"), 2);
}

#[test]
fn what_ran_when_its_queue_was_dropped_can_be_erased() {
    let cluster = Cluster::new().start();
    let mut client = cluster.create_database("app");
    create(&mut client, "q", "");
    let job: i64 = client.value("SELECT queue.enqueue('q', '{\"secret\": 1}')");
    client.run("SELECT FROM queue.claim('q'); SELECT queue.drop('q', force => true)");
    for verb in ["cancel($)", "cancel($, force => true)", "retry($)", "reprioritize($, 1)", "reschedule($, now())"] {
        let refused = client.failure(&format!("SELECT queue.{}", verb.replace('$', &job.to_string())));
        let expected = format!("the queue of job {job} was dropped");
        assert_eq!((refused.code, refused.message), ("55000".into(), expected), "{verb}");
    }
    client.run(&format!("SELECT queue.forget({job})"));
    assert_eq!(client.count("SELECT FROM queue.attempt_0 WHERE payload::text LIKE '%secret%'"), 0);
}
