//! `queue.throughput`: exact counts and means, percentiles within the histogram's error, pruning of old minutes.

use crate::shared::*;

/// The relative error that the documentation promises.
const ERROR: f64 = 0.016;

/// Returns the sum of a column of the view for a queue.
fn sum(client: &mut Client, column: &str, queue: &str) -> i64 {
    client
        .value(&format!("SELECT coalesce(sum({column}), 0)::bigint FROM queue.throughput WHERE queue_name = '{queue}'"))
}

/// Returns counts of the view over all minutes: enqueued, claimed, completed, failed, timed_out, died.
fn counts(client: &mut Client, queue: &str) -> [i64; 6] {
    ["enqueued", "claimed", "completed", "failed", "timed_out", "died"].map(|column| sum(client, column, queue))
}

/// Returns the same counts from `queue.attempts`.
fn counts_of_attempts(client: &mut Client, queue: &str) -> [i64; 6] {
    let mut count = |what: &str| -> i64 {
        client.value(&format!("SELECT {what} FROM queue.attempts AS a WHERE queue_name = '{queue}'"))
    };
    [
        count("count(DISTINCT job_id)"),
        count("count(claimed_at)"),
        count("count(*) FILTER (WHERE state = 'completed')"),
        count("count(*) FILTER (WHERE state IN ('failed', 'dead'))"),
        count("count(*) FILTER (WHERE state = 'timed_out')"),
        count(
            "count(*) FILTER (WHERE state = 'dead' OR state = 'timed_out'
                 AND NOT EXISTS (SELECT FROM queue.attempts AS b WHERE b.job_id = a.job_id AND b.id > a.id))",
        ),
    ]
}

/// Enqueues 12 jobs and gives them all outcomes.
fn busy(client: &mut Client, queue: &str) {
    client.run(&format!("SELECT queue.enqueue('{queue}') FROM generate_series(1, 12)"));
    // 4 jobs complete.
    client.run(&format!("SELECT queue.complete(id) FROM queue.claim('{queue}', 4)"));
    // 2 jobs fail and complete the next time. 1 job dies.
    client.run(&format!("SELECT queue.fail(id, 'boom', retry_in => '0') FROM queue.claim('{queue}', 2)"));
    client.run(&format!("SELECT queue.complete(id) FROM queue.claim('{queue}', 2)"));
    client.run(&format!("SELECT queue.fail(id, 'boom', fatal => true) FROM queue.claim('{queue}', 1)"));
    // One job times out twice, and then is dead.
    for ended in [1, 2] {
        client.run(&format!("SELECT FROM queue.claim('{queue}', lease => '1 millisecond')"));
        client.maintain_until(&format!(
            "(SELECT count(*) = {ended} FROM queue.attempts WHERE queue_name = '{queue}' AND state = 'timed_out')"
        ));
    }
    // 1 job is released and cancelled, 1 is cancelled by force while it runs, 1 runs, 1 waits.
    client.run(&format!(
        "SELECT queue.release(id), queue.cancel(job_id) FROM queue.claim('{queue}');
         SELECT queue.cancel(job_id, force => true) FROM queue.claim('{queue}');
         SELECT FROM queue.claim('{queue}')"
    ));
}

#[test]
fn counts_agree_with_the_attempts() {
    let database = Database::without_worker();
    let mut client = database.connect();
    for queue in ["one", "other", "idle"] {
        create(&mut client, queue, "max_attempts => 2");
    }
    for queue in ["one", "other"] {
        busy(&mut client, queue);
        assert_eq!(counts(&mut client, queue), [12, 14, 6, 3, 2, 2], "{queue}");
        assert_eq!(counts(&mut client, queue), counts_of_attempts(&mut client, queue), "{queue}");
    }
    assert_eq!(client.count("SELECT FROM queue.throughput WHERE queue_name = 'idle'"), 0);

    // Every event is in its minute.
    let wrong = client.count(
        "SELECT FROM (SELECT date_trunc('minute', claimed_at) AS minute, count(*) AS n FROM queue.attempts
                      WHERE claimed_at IS NOT NULL AND queue_name = 'one' GROUP BY 1) AS a
         FULL JOIN (SELECT * FROM queue.throughput WHERE queue_name = 'one' AND claimed > 0) AS t USING (minute)
         WHERE a.n IS DISTINCT FROM t.claimed",
    );
    assert_eq!(wrong, 0);

    // Rows that were summed up count as if they still existed.
    client.run(
        "INSERT INTO queue_internal.rollup
         SELECT minute, 7, enqueued, claimed, completed, failed, timed_out, died, lane, wait, run
         FROM queue_internal.throughput_live()",
    );
    assert_eq!(counts(&mut client, "one"), [24, 28, 12, 6, 4, 4]);

    // A dropped queue has no rows.
    client.run("SELECT queue.drop('other', force => true)");
    assert_eq!(client.count("SELECT FROM queue.throughput WHERE queue_name = 'other'"), 0);
}

#[test]
fn a_rolled_back_claim_and_an_open_one_do_not_count() {
    let database = Database::without_worker();
    let (mut client, mut other) = (database.connect(), database.connect());
    create(&mut client, "q", "");
    client.enqueue("q");
    client.run("BEGIN");
    client.claim("q");
    assert_eq!(sum(&mut client, "claimed", "q"), 1, "its own");
    assert_eq!(sum(&mut other, "claimed", "q"), 0, "another's");
    client.run("ROLLBACK");
    assert_eq!(counts(&mut client, "q"), [1, 0, 0, 0, 0, 0]);
}

#[test]
fn one_statement_sees_one_state() {
    let database = Database::without_worker();
    let (mut client, mut other) = (database.connect(), database.connect());
    create(&mut client, "q", "");
    client.run("BEGIN ISOLATION LEVEL REPEATABLE READ");
    assert_eq!(counts(&mut client, "q"), [0; 6]);
    other.enqueue("q");
    assert_eq!(counts(&mut client, "q"), [0; 6]);
    client.run("COMMIT");
    assert_eq!(counts(&mut client, "q"), [1, 0, 0, 0, 0, 0]);
}

/// Returns wait and run times of all events in microseconds: mean, p50, p95, p99. NaN if there are none.
fn found(client: &mut Client, queue: &str) -> [[f64; 4]; 2] {
    let times = |times: &str| {
        ["mean", "p50", "p95", "p99"]
            .map(|what| format!("(extract(epoch FROM {times}_{what}) * 1e6)::float8"))
            .join(", ")
    };
    let sql = format!(
        "SELECT {}, {} FROM queue.throughput_by('36500 days') WHERE queue_name = '{queue}'",
        times("wait"),
        times("run")
    );
    let row = client.query_one(&sql, &[]).unwrap();
    [0, 4].map(|first| [0, 1, 2, 3].map(|n| row.get::<_, Option<f64>>(first + n).unwrap_or(f64::NAN)))
}

/// Computes the same values from these exact times.
fn expected(mut times: Vec<i64>) -> [f64; 4] {
    times.sort_unstable();
    let of_rank = |q: f64| times[(q * times.len() as f64).ceil() as usize - 1] as f64;
    [times.iter().sum::<i64>() as f64 / times.len() as f64, of_rank(0.5), of_rank(0.95), of_rank(0.99)]
}

fn assert_near(found: [f64; 4], expected: [f64; 4]) {
    let [mean, quantiles @ ..] = found;
    let [exact, ranks @ ..] = expected;
    assert!((mean - exact).abs() <= 1.0, "mean {mean} for {exact}");
    for (found, exact) in quantiles.into_iter().zip(ranks) {
        assert!((found - exact).abs() <= exact * ERROR + 1.0, "{found:?} for {exact:?}: {expected:?}");
    }
}

#[test]
fn times_are_exact_on_average_and_near_in_percentiles() {
    let (_database, mut client) = Database::without_worker().with_queue("q", "");
    // Each event is in its own transaction, so that the times differ from 0.
    for _ in 0..300 {
        client.run("SELECT queue.enqueue('q')");
    }
    for n in 0..300 {
        let id = client.claim("q");
        client.run(if n % 3 == 0 { "SELECT pg_sleep(0.001)" } else { "" });
        client.run(&format!("SELECT queue.complete({id})"));
    }
    let us = |a: &str, b: &str| {
        format!(
            "SELECT (extract(epoch FROM {b} - {a}) * 1000000)::bigint FROM queue.attempts AS a \
                JOIN queue.jobs AS j USING (job_id)"
        )
    };
    let waits: Vec<i64> = client.column(&us("j.enqueued_at", "a.claimed_at"));
    let runs: Vec<i64> = client.column(&us("a.claimed_at", "a.finished_at"));
    assert_eq!((waits.len(), runs.len()), (300, 300));
    let [wait, run] = found(&mut client, "q");
    assert_near(wait, expected(waits));
    assert_near(run, expected(runs));
}

#[test]
fn waiting_begins_when_the_job_is_due() {
    let (_database, mut client) = Database::without_worker().with_queue("q", "");
    client.run("SELECT queue.enqueue('q', delay => '300 milliseconds')");
    client.maintain_until("EXISTS (SELECT FROM queue.claim('q'))");
    let wait: Vec<i64> = client.column(
        "SELECT (extract(epoch FROM claimed_at - greatest(run_at, enqueued_at)) * 1000000)::bigint FROM queue.jobs",
    );
    assert_near(found(&mut client, "q")[0], expected(wait.clone()));

    // It is unknown when a retry without a delay became ready. So the claim is counted, but its wait is not measured.
    client.run("SELECT queue.fail(id, 'boom', retry_in => '0') FROM queue.attempts");
    client.claim("q");
    assert_eq!(sum(&mut client, "claimed", "q"), 2);
    assert_near(found(&mut client, "q")[0], expected(wait));
}

/// Inserts a row of `queue_internal.rollup` for queue `q`: 5 enqueued jobs, and 1 run of this many microseconds (below
/// 64) in the histogram.
fn past(client: &mut Client, minute: &str, us: i64) {
    // The histogram has the format of `Times`: version, sum, gap, one event in the bucket.
    let gap = if us > 0 { format!("|| '\\x{:02x}'::bytea", us * 2 + 1) } else { String::new() };
    client.run(&format!(
        "INSERT INTO queue_internal.rollup SELECT '{minute}', 1, 5, 1, 1, 0, 0, 0, lane, NULL,
             '\\x01{us:02x}'::bytea {gap} || '\\x02'::bytea FROM queue_internal.lane WHERE NOT is_held"
    ));
}

#[test]
fn periods_are_those_of_the_session_s_calendar() {
    let (_database, mut client) = Database::without_worker().with_queue("q", "");
    past(&mut client, "2024-03-30 22:59:00+00", 1);
    past(&mut client, "2024-03-30 23:00:00+00", 3);
    past(&mut client, "2024-03-31 00:30:00+00", 3);
    past(&mut client, "2024-03-31 21:59:00+00", 4);
    past(&mut client, "2024-03-31 22:00:00+00", 6);
    let mut periods = |zone: &str, arguments: &str| -> Vec<String> {
        client.run(&format!("SET timezone = '{zone}'"));
        client.column(&format!(
            "SELECT starts_at::text || ' ' || enqueued || ' ' || (extract(epoch FROM run_mean) * 1e7)::int
             FROM queue.throughput_by({arguments}) ORDER BY starts_at"
        ))
    };
    // In Berlin the day on which summer time begins has 23 hours.
    let found = periods("Europe/Berlin", "'1 day'");
    assert_eq!(found, ["2024-03-30 00:00:00+01 5 10", "2024-03-31 00:00:00+01 15 30", "2024-04-01 00:00:00+02 5 60"]);
    assert_eq!(periods("UTC", "'1 day'"), ["2024-03-30 00:00:00+00 10 20", "2024-03-31 00:00:00+00 15 40"]);
    assert_eq!(periods("UTC", "'1 week'"), ["2024-03-25 00:00:00+00 25 30"]);
    // Hours begin at full hours of local time.
    let got = periods("Asia/Kolkata", "since => '2024-03-31 00:00:00+00'");
    assert_eq!(got, ["2024-03-31 06:00:00+05:30 5 30", "2024-04-01 03:00:00+05:30 10 50"]);
}

#[test]
fn old_minutes_are_pruned() {
    let (database, mut client) = Database::without_worker().with_queue("q", "");
    for age in ["91 days", "90 days 1 minute", "89 days 23 hours", "0"] {
        client.run(&format!(
            "INSERT INTO queue_internal.rollup SELECT now() - interval '{age}', 1, 5, 1, 1, 0, 0, 0, lane, NULL, NULL \
                FROM queue_internal.lane WHERE NOT is_held"
        ));
    }
    let did = "SELECT did FROM queue.maintain() WHERE duty = 'prune_statistics'";
    // A user with an open transaction would make the worker wait for these rows.
    client.run("BEGIN");
    assert_eq!(client.value::<i64>(did), 0);
    client.run("COMMIT");
    assert_eq!(client.value::<i64>("SELECT count(*) FROM queue_internal.rollup"), 4);
    assert_eq!(client.value::<i64>(did), 2);
    assert_eq!(client.value::<i64>("SELECT count(*) FROM queue_internal.rollup"), 2);
    assert_eq!(sum(&mut client, "enqueued", "q"), 10);
    // This session does not repeat the duty within an hour. Another session finds nothing, and needs no transaction id.
    assert_eq!(client.value::<i64>(did), 0);
    let mut other = database.connect();
    let took = "SELECT bool_and(did = 0) AND pg_current_xact_id_if_assigned() IS NULL
                FROM queue.maintain() WHERE duty = 'prune_statistics'";
    assert!(other.value::<bool>(took));
}

#[test]
fn a_dump_contains_the_minutes_of_throughput() {
    let (database, mut client) = Database::without_worker().with_queue("q", "");
    past(&mut client, "2024-03-30 22:59:00+00", 1);
    let dump = server().pg_dump(&["-a", "-t", "queue_internal.rollup", &database.name]);
    assert!(dump.contains("2024-03-30 22:59:00+00\t1\t5\t1\t1\t0\t0\t0\t"), "{dump}");
}

#[test]
fn an_invalid_histogram_is_refused() {
    let database = Database::without_worker();
    let mut client = database.connect();
    for bad in ["''", "'\\x02'", "'\\x0100ff'"] {
        client.refused(&format!("SELECT queue_internal.times(ARRAY[{bad}]::bytea[])"), "22023");
    }
    assert_eq!(
        client.count("SELECT FROM queue_internal.times(ARRAY[NULL, '\\x0100']::bytea[]) AS t WHERE t.mean IS NOT NULL"),
        0
    );
    let large: String = client.value("SELECT p99::text FROM queue_internal.times(ARRAY['\\x0100fd1d02']::bytea[])");
    assert!(large.contains(':'), "a duration beyond an interval is cut: {large}");
}
