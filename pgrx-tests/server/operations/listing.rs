//! Pages of jobs, search, groups of errors, activity, and verbs for many jobs. Each agrees with the views, reads no
//! more than documented, and shows no queue that the user may not observe.

use crate::security::permissions::{Roles, grant};
use crate::shared::*;

const STATES: [&str; 9] =
    ["running", "retrying", "dead", "held", "scheduled", "skipped", "cancelled", "ready", "completed"];

/// Makes jobs of queue `q` in all states, several of each.
pub fn varied(client: &mut Client) {
    create(client, "q", "max_attempts => 2, backoff_base => '1 hour'");
    create(client, "other", "");
    for n in 0..7 {
        client.run(&format!(
            "SELECT queue.enqueue('q', '{{\"n\": {n}}}', priority => {n} % 3), queue.enqueue('other'),
                    queue.enqueue('q', '{{\"late\": {n}}}', delay => '{} hours')",
            n / 2 + 1
        ));
        let mut ended = |how: &str| {
            let job = client.value::<i64>("SELECT queue.enqueue('q', '\"end\"', priority => -1)");
            let id = client.claim("q");
            client.run(&format!("SELECT {}", how.replace('$', &id.to_string())));
            job
        };
        ended("queue.complete($, '1')");
        ended(&format!("queue.fail($, 'bad {}', fatal => true)", n % 2));
        ended("queue.fail($, 'try again')");
        ended("1");
        let cancelled = client.value::<i64>("SELECT queue.enqueue('q')");
        client.run(&format!("SELECT queue.cancel({cancelled}, 'no need')"));
        let before = client.value::<i64>("SELECT queue.enqueue('other')");
        client.run(&format!("SELECT queue.enqueue('q', after => ARRAY[{before}::bigint])"));
    }
}

/// Returns all jobs of a state, page by page.
fn pages(client: &mut Client, state: &str, size: i32, mut between: impl FnMut(&mut Client)) -> Vec<i64> {
    let (mut found, mut beyond) = (Vec::new(), "NULL".to_owned());
    loop {
        let sql = format!(
            "SELECT job_id, here::text, state FROM queue.search('q', states => '{{{state}}}', \
            beyond => {beyond}, max_jobs => {size})"
        );
        let rows = client.query(sql.as_str(), &[]).unwrap();
        assert!(rows.len() <= size as usize + 1);
        for row in &rows {
            if let Some(job_id) = row.get::<_, Option<i64>>(0) {
                assert_eq!(row.get::<_, &str>(2), state);
                found.push(job_id);
            }
        }
        let Some(here) = rows.last().and_then(|row| row.get::<_, Option<String>>(1)) else { return found };
        beyond = format!("'{}'", here.replace('\'', "''"));
        between(client);
    }
}

fn by_view(client: &mut Client, state: &str, order: &str) -> Vec<i64> {
    let sql = format!("SELECT job_id FROM queue.jobs WHERE queue_name = 'q' AND state = '{state}' ORDER BY {order}");
    client.query(sql.as_str(), &[]).unwrap().iter().map(|row| row.get(0)).collect()
}

fn assert_lists_are_the_view(client: &mut Client) {
    for state in STATES {
        let order = match state {
            "ready" | "held" => "priority, job_id",
            "scheduled" | "retrying" => "run_at, job_id",
            "running" => "claimed_at",
            _ => "finished_at DESC",
        };
        let expected = by_view(client, state, order);
        for size in [1, 3, 100] {
            let found = pages(client, state, size, |_| {});
            if matches!(state, "scheduled" | "retrying") {
                // Jobs with the same time come in the order of their rows.
                assert_eq!(found.iter().collect::<BTreeSet<_>>(), expected.iter().collect(), "{state}");
                assert_eq!(found.len(), expected.len(), "{state}");
            } else {
                assert_eq!(found, expected, "{state} by {size}");
            }
        }
    }
    for state in STATES.iter().filter(|state| **state != "skipped") {
        assert_eq!(by_view(client, state, "job_id").len(), 7, "{state}");
    }
    // A row has the same values as the view's.
    let [listed, viewed] =
        ["queue.search('q', states => '{dead}', max_jobs => 100)", "queue.jobs WHERE state = 'dead'"].map(|from| {
            let row = "to_jsonb(j) - 'here' - 'rows_read'";
            client.value::<String>(&format!(
                "SELECT jsonb_agg({row} ORDER BY job_id)::text FROM (SELECT * FROM {from}) AS j"
            ))
        });
    assert_eq!(listed, viewed);
    let [by_job, viewed] = [
        "queue.jobs AS j, LATERAL (SELECT * FROM queue.job_attempts(j.job_id) ORDER BY id DESC) AS a",
        "queue.attempts AS a",
    ]
    .map(|from| client.value::<String>(&format!("SELECT jsonb_agg(to_jsonb(a) ORDER BY a.id)::text FROM {from}")));
    assert_eq!(by_job, viewed);
}

/// Moves ended jobs to history. Jobs that end immediately leave almost no living jobs in the open segment. Otherwise
/// its age could not close it.
pub fn reclaim(client: &mut Client) {
    client.run("SELECT queue.create('filler', retention => '0', if_not_exists => true)");
    client.pass_through("filler", 3000);
    client.run("ALTER SYSTEM SET pg_queue.segment_age = 1");
    client.run("SELECT pg_reload_conf()");
    wait::within("jobs have gone to history", Duration::from_secs(60), || {
        client.run("SELECT FROM queue.maintain()");
        (client.count("SELECT FROM queue_internal.history WHERE outcome IN ('c', 'd', 'x') AND payload IS NOT NULL")
            >= 21)
            .then_some(())
    });
}

#[test]
fn pages_show_what_the_view_shows_in_logs_in_history_after_a_restart_and_on_a_standby() {
    let cluster = Cluster::new().conf("pg_queue.reclaim_delay = 0").start();
    let mut client = cluster.create_database_with("app", "ALTER DATABASE $ SET pg_queue.worker = off");
    varied(&mut client);
    client.run("SELECT FROM queue.maintain()");
    assert_lists_are_the_view(&mut client);
    // Jobs move to history between two pages. None is left out.
    let dead = by_view(&mut client, "dead", "job_id");
    let mut is_first = true;
    let found = pages(&mut client, "dead", 2, |client| {
        if std::mem::take(&mut is_first) {
            reclaim(client);
        }
    });
    assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), dead.into_iter().collect());
    assert_lists_are_the_view(&mut client);
    let standby = cluster.standby();
    standby.wait_replayed(&cluster);
    let mut reader = standby.connect_to("app");
    for state in STATES {
        let found: BTreeSet<i64> = pages(&mut reader, state, 2, |_| {}).into_iter().collect();
        assert_eq!(found, by_view(&mut client, state, "job_id").into_iter().collect(), "{state} on the standby");
    }
    assert_eq!(reader.count("SELECT FROM queue.search('q', '$.error starts with \"bad\"') WHERE job_id > 0"), 7);
    assert_eq!(reader.value::<i64>("SELECT sum(jobs)::bigint FROM queue.error_groups('q')"), 14);
    let dead = "ARRAY(SELECT job_id FROM queue.search('q', states => '{dead}'))";
    for verb in [
        format!("cancel_many({dead})"),
        format!("retry_many({dead})"),
        format!("reprioritize_many({dead}, 1)"),
        format!("reschedule_many({dead}, now())"),
        "end_batch('[]')".to_owned(),
    ] {
        reader.refused(&format!("SELECT queue.{verb}"), "25006");
    }
    reader.run("SELECT count(*) FROM queue.activity(since => '-infinity')");
    drop((client, reader));
    cluster.restart();
    let mut client = cluster.connect_to("app");
    for state in STATES {
        let found: BTreeSet<i64> = pages(&mut client, state, 2, |_| {}).into_iter().collect();
        assert_eq!(found, by_view(&mut client, state, "job_id").into_iter().collect(), "{state} after a start");
    }
    client.run("SELECT FROM queue.maintain()");
    assert_lists_are_the_view(&mut client);
}

#[test]
fn pages_neither_repeat_nor_skip_jobs_while_others_are_added_and_removed() {
    let (_database, mut client) = Database::without_worker().with_queue("q", "");
    client.run("SELECT count(*) FROM queue.enqueue_many('q', array_fill('1'::jsonb, '{60}'))");
    client.work_off("q", 30);
    for state in ["ready", "completed"] {
        let before: BTreeSet<i64> = by_view(&mut client, state, "job_id").into_iter().collect();
        let found = pages(&mut client, state, 4, |client| {
            client.run("SELECT queue.enqueue('q', priority => 1)");
            let id = client.claim("q");
            client.run(&format!("SELECT queue.complete({id})"));
        });
        let after: BTreeSet<i64> = by_view(&mut client, state, "job_id").into_iter().collect();
        let once: BTreeSet<i64> = found.iter().copied().collect();
        assert_eq!(once.len(), found.len(), "{state}");
        assert!(before.intersection(&after).all(|job| once.contains(job)), "{state}");
    }
}

#[test]
fn a_search_reads_no_more_rows_than_it_reports_and_can_be_continued() {
    let (_database, mut client) = Database::without_worker().with_queue("q", "");
    create(&mut client, "crowd", "");
    client.run("SELECT queue.enqueue('q', '{\"n\": 1}')");
    let id = client.claim("q");
    client.run(&format!("SELECT queue.complete({id})"));
    client.pass_through("crowd", 45_000);
    // The job lies behind jobs of other queues. Each call reads a part of them.
    let (mut beyond, mut calls) = ("NULL".to_owned(), 0);
    loop {
        let sql = format!(
            "SELECT job_id, here::text, rows_read FROM queue.search('q', states => '{{completed}}', \
            beyond => {beyond})"
        );
        let rows = client.query(sql.as_str(), &[]).unwrap();
        calls += 1;
        assert!(rows.iter().all(|row| row.get::<_, i64>(2) <= 20_000));
        if rows.iter().any(|row| row.get::<_, Option<i64>>(0).is_some()) {
            break;
        }
        beyond = format!("'{}'", rows[0].get::<_, &str>(1));
    }
    assert!(calls >= 3, "{calls}");
    let found = client.value::<String>(
        "SELECT concat_ws(' ', count(job_id), max(rows_read))
         FROM queue.search('crowd', '$.payload == 1', '{completed}', max_rows => 300, max_jobs => 1000)",
    );
    assert_eq!(found, "300 300");
    let flow = client.value::<i64>("SELECT queue.enqueue_flow('q', '[{\"task\": \"a\"}]')");
    assert_eq!(client.value::<i64>("SELECT job_id FROM queue.search('q', '$.is_flow', '{held,ready}')"), flow);
    // A position gives no access, because it only says where to read.
    for (beyond, code) in [("1", "22023"), ("{}", "22023"), ("{\"state\": 1, \"at\": 2}", "22023")] {
        client.refused(&format!("SELECT queue.search('q', states => '{{dead}}', beyond => '{beyond}')"), code);
    }
    for beyond in [
        "{\"state\": \"completed\", \"at\": {\"until\": \"x\", \"at\": {\"s1\": [4294967296, -7], \"h1\": 3}}}",
        "{\"state\": \"completed\", \"at\": {\"at\": {\"s1\": [9223372036854775807, 9223372036854775807]}}}",
        "{\"state\": \"completed\", \"at\": 7}",
    ] {
        let sql = format!("SELECT FROM queue.search('q', states => '{{completed}}', beyond => '{beyond}')");
        assert!(client.count(&sql) <= 1);
    }
    for state in STATES {
        client.run(&format!(
            "SELECT count(*) FROM queue.search('q', states => '{{{state}}}',
                 beyond => '{{\"state\": \"{state}\", \"at\": {{\"id\": -1,
                 \"lane\": 1, \"at\": [99999999999, -1], \"run_at\": 9223372036854775807}}}}')"
        ));
    }
    client.refused("SELECT queue.search('q', states => '{gone}')", "22023");
    client.refused("SELECT queue.search('nowhere', states => '{dead}')", "42704");
    client.refused("SELECT queue.search('q', states => '{dead}', max_jobs => 0)", "22023");
}

#[test]
fn nothing_is_shown_of_a_queue_that_the_role_may_not_observe() {
    let database = Database::without_worker();
    let mut client = database.connect();
    varied(&mut client);
    let hidden: BTreeMap<&str, Vec<i64>> =
        STATES.iter().map(|state| (*state, by_view(&mut client, state, "job_id"))).collect();
    let roles = Roles::new(&database);
    let user = roles.make("user", "");
    grant(&mut client, "other", &user, "manage");
    client.run(&format!("SET ROLE {user}"));
    for queue in ["q", "nowhere"] {
        for state in STATES {
            assert_eq!(client.count(&format!("SELECT FROM queue.search('{queue}', states => '{{{state}}}')")), 0);
        }
        // Neither the result of a filter nor its cost reveals hidden jobs.
        assert_eq!(client.count(&format!("SELECT FROM queue.search('{queue}', '$.job_id')")), 0);
        assert_eq!(client.count(&format!("SELECT FROM queue.error_groups('{queue}')")), 0);
        assert_eq!(client.count(&format!("SELECT FROM queue.activity('{queue}')")), 0);
    }
    let all = "queue.error_groups() WHERE queue_name = 'q'";
    assert_eq!(client.count(&format!("SELECT FROM {all}")), 0);
    assert_eq!(client.count("SELECT FROM queue.activity() WHERE queue_name <> 'other'"), 0);
    // Verbs change none of them, even if the call also names a job of a queue that the role manages.
    let theirs =
        client.value::<i64>("SELECT min(job_id) FROM queue.jobs WHERE queue_name = 'other' AND state = 'ready'");
    for verb in ["cancel_many($)", "retry_many($)", "reprioritize_many($, 1)", "reschedule_many($, now())"] {
        // No job is skipped.
        for state in STATES.iter().filter(|state| **state != "skipped") {
            let [first, ..] = hidden[state][..] else { panic!("no job is {state}") };
            let call = verb.replace('$', &format!("ARRAY[{theirs}, {first}]"));
            let failure = client.failure(&format!("SELECT queue.{call}"));
            assert_eq!(
                (failure.code.as_str(), failure.message.contains("queue \"q\"")),
                ("42501", true),
                "{verb} {failure:?}"
            );
        }
    }
    assert_eq!(client.state(theirs), "ready");
    assert!(client.count("SELECT FROM queue.search('other', states => '{ready}')") > 0);
    client.run("RESET ROLE");
}

#[test]
fn verbs_for_many_change_what_a_search_finds_within_bounds() {
    let database = Database::without_worker();
    let mut client = database.connect();
    varied(&mut client);
    // Returns a statement that counts the answers of a verb for the jobs of a search.
    let answers = |verb: &str, found: &str, rest: &str| {
        format!(
            "SELECT concat_ws(' ', outcome, count(*)) FROM queue.{verb}(ARRAY(SELECT job_id
                FROM queue.search('q', {found})){rest})
             GROUP BY outcome ORDER BY outcome"
        )
    };
    let bad = answers("retry_many", "'$.error == \"bad 1\"'", "");
    // A job in another state is refused.
    let of_each = "queue.jobs AS j WHERE queue_name = 'q' \
        AND job_id = (SELECT min(job_id) FROM queue.jobs AS k WHERE k.queue_name = 'q' AND k.state = j.state)";
    for (verb, refused) in [
        ("retry_many($)", &["running"][..]),
        ("reprioritize_many($, 1)", &["cancelled", "completed", "dead", "running"]),
        ("reschedule_many($, now() + interval '1 hour')", &["cancelled", "completed", "dead", "running"]),
        ("cancel_many($)", &["completed", "dead"]),
    ] {
        let call = verb.replace('$', &format!("ARRAY(SELECT job_id FROM {of_each})"));
        let states = format!("SELECT job_id, state FROM {of_each}");
        client.run("BEGIN");
        let states: BTreeMap<i64, String> = client.rows(&states).into_iter().collect();
        let rows = client.query(&format!("SELECT id, outcome, reason FROM queue.{call}"), &[]).unwrap();
        assert_eq!(rows.len(), states.len());
        let mut found: Vec<&str> = Vec::new();
        for row in &rows {
            let (id, outcome, reason): (i64, &str, Option<&str>) = (row.get(0), row.get(1), row.get(2));
            let is_refused = outcome == "refused";
            assert_eq!(is_refused, reason.is_some_and(|reason| reason.contains(&id.to_string())), "{verb}: {row:?}");
            if outcome == "refused" {
                found.push(&states[&id]);
            }
        }
        found.sort_unstable();
        assert_eq!(found, refused, "{verb}: {states:?}");
        client.run("ROLLBACK");
    }
    // The verb runs in a transaction that is rolled back, and in one that commits.
    client.run("BEGIN");
    assert_eq!(client.column::<String>(&bad), ["retried 3"]);
    assert_eq!(client.column::<String>(&bad), [""; 0]);
    client.run("ROLLBACK");
    assert_eq!(by_view(&mut client, "dead", "job_id").len(), 7);
    assert_eq!(client.column::<String>(&bad), ["retried 3"]);
    assert_eq!(by_view(&mut client, "dead", "job_id").len(), 4);
    // The search returns the jobs in parts. Each part begins behind the previous one.
    let (mut parts, mut beyond) = (Vec::new(), "NULL".to_owned());
    loop {
        let sql = format!(
            "SELECT job_id, here::text FROM queue.search('q', states => '{{ready}}', beyond => {beyond}, max_jobs => 4)"
        );
        let rows = client.query(&sql, &[]).unwrap();
        let found: Vec<i64> = rows.iter().filter_map(|row| row.get(0)).collect();
        let sql = "SELECT FROM queue.cancel_many($1, 'too many') WHERE outcome = 'cancelled' AND reason IS NULL";
        parts.push(client.query(sql, &[&found]).unwrap().len());
        let Some(here) = rows.last().and_then(|row| row.get::<_, Option<String>>(1)) else { break };
        beyond = format!("'{here}'");
    }
    assert_eq!(parts, [4, 4, 2]);
    assert_eq!(by_view(&mut client, "ready", "job_id").len(), 0);
    assert_eq!(client.count("SELECT FROM queue.jobs WHERE state = 'cancelled' AND error = 'too many'"), 10);
    let late = answers("reprioritize_many", "'$.payload.late < 3'", ", 5");
    assert_eq!(client.column::<String>(&late), ["reprioritized 3"]);
    assert_eq!(client.count("SELECT FROM queue.jobs WHERE state = 'scheduled' AND priority = 5"), 3);
    let again = answers("retry_many", "states => '{retrying,cancelled}'", "");
    assert_eq!(client.column::<String>(&again), ["retried 24"]);
    // Jobs that another transaction holds stay as they are, and the answer says so.
    let mut other = database.connect();
    other.run("BEGIN");
    let taken = other.claim("q");
    let taken: i64 = other.value(&format!("SELECT job_id FROM queue.attempts WHERE id = {taken}"));
    let ready = by_view(&mut client, "ready", "job_id");
    let sql = "SELECT id, outcome, reason IS NULL FROM queue.reprioritize_many($1, 7)";
    for row in client.query(sql, &[&ready]).unwrap() {
        let expected = if row.get::<_, i64>(0) == taken { ("busy", false) } else { ("reprioritized", true) };
        assert_eq!((row.get(1), row.get(2)), expected);
    }
    other.run("ROLLBACK");
    assert_eq!(client.count("SELECT FROM queue.jobs WHERE state = 'ready' AND priority = 7"), ready.len() - 1);
    client.refused("SELECT queue.search('q', max_jobs => 0)", "22023");
    client.refused("SELECT queue.search('nowhere')", "42704");
    // Workers of running jobs are asked to stop, or they lose their jobs.
    let running = by_view(&mut client, "running", "job_id");
    let stop = answers("cancel_many", "states => '{running}'", "");
    assert_eq!(client.column::<String>(&stop), ["cancelling 7"]);
    assert_eq!(by_view(&mut client, "running", "job_id"), running);
    let force = answers("cancel_many", "states => '{running}'", ", 'enough', true");
    assert_eq!(client.column::<String>(&force), ["cancelled 7"]);
    assert_eq!(client.count("SELECT FROM queue.jobs WHERE state = 'cancelled' AND error = 'enough'"), 7);
}

#[test]
fn more_jobs_than_fit_into_memory_are_changed_in_several_transactions() {
    let cluster = Cluster::with(&["pg_queue.max_running = 200", "pg_queue.worker = off"]).start();
    let mut client = cluster.create_database_with("app", "");
    create(&mut client, "q", "");
    client.run("SELECT count(*) FROM queue.enqueue_many('q', array_fill('1'::jsonb, '{1000}'))");
    let all = by_view(&mut client, "ready", "job_id");
    for (verb, done, condition) in [
        ("reprioritize_many($1, 3)", "reprioritized", "state = 'ready' AND priority = 3"),
        ("reschedule_many($1, '2100-01-01')", "rescheduled", "state = 'scheduled' AND run_at = '2100-01-01'"),
        ("retry_many($1)", "retried", "state = 'ready' AND run_at IS NULL"),
        ("cancel_many($1, 'all of them')", "cancelled", "state = 'cancelled' AND error = 'all of them'"),
        ("retry_many($1)", "retried", "state = 'ready'"),
    ] {
        let sql = format!("SELECT id, outcome, reason FROM queue.{verb}");
        let (mut left, mut calls) = (all.clone(), 0);
        while !left.is_empty() {
            calls += 1;
            assert!(calls < 50, "{verb}: {} are left", left.len());
            client.run("BEGIN");
            let rows = client.query(&sql, &[&left]).unwrap();
            assert_eq!(rows.len(), left.len(), "{verb}");
            let full: Vec<i64> =
                rows.iter().filter(|row| row.get::<_, &str>(1) == "full").map(|row| row.get(0)).collect();
            for row in &rows {
                let (outcome, reason): (&str, Option<&str>) = (row.get(1), row.get(2));
                assert!(
                    outcome == done && reason.is_none() || outcome == "full" && reason.is_some(),
                    "{verb}: {row:?}"
                );
            }
            assert!(full.len() < left.len(), "{verb}: a transaction has place for some");
            // The same transaction has no room for the others. The next one has.
            if !full.is_empty() {
                let again = client.query(&sql, &[&full]).unwrap();
                assert!(again.iter().all(|row| row.get::<_, &str>(1) == "full"), "{verb}");
            }
            client.run("COMMIT");
            let changed = format!("SELECT FROM queue.jobs WHERE {condition}");
            assert_eq!(client.count(&changed), all.len() - full.len(), "{verb}: what is answered is what was done");
            left = full;
        }
        assert!(calls > 2 || verb.starts_with("retry"), "{verb}: {calls}");
    }
}

#[test]
fn errors_are_grouped_and_the_last_hour_is_exact() {
    let database = Database::without_worker();
    let mut client = database.connect();
    varied(&mut client);
    let groups = client.query(
        "SELECT error, jobs, dead, retrying, is_complete FROM queue.error_groups() WHERE queue_name = 'q' \
            ORDER BY error",
        &[],
    );
    let groups: Vec<(String, i64, i64, i64, bool)> =
        groups.unwrap().iter().map(|r| (r.get(0), r.get(1), r.get(2), r.get(3), r.get(4))).collect();
    let group = |error: &str, dead, retrying| (error.to_owned(), dead + retrying, dead, retrying, true);
    assert_eq!(groups, [group("bad 0", 4, 0), group("bad 1", 3, 0), group("try again", 0, 7)]);
    assert!(!client.value::<bool>("SELECT bool_or(is_complete) FROM queue.error_groups('q', 3)"));
    client.maintain_until("(SELECT bool_and(is_counted) FROM queue_internal.tallies())");
    let sums =
        "sum(enqueued)::bigint, sum(claimed)::bigint, sum(completed)::bigint, sum(failed)::bigint, sum(died)::bigint";
    let mut of = |from: &str| {
        let row = client.query_one(format!("SELECT {sums} FROM {from}").as_str(), &[]).unwrap();
        std::array::from_fn::<i64, 5, _>(|n| row.get::<_, Option<i64>>(n).unwrap_or(0))
    };
    let begun = of("queue.activity('other')");
    let mut other = database.connect();
    for _ in 0..5 {
        other.enqueue("other");
        let id = other.claim("other");
        other.run(&format!("SELECT queue.complete({id})"));
    }
    let after = of("queue.activity('other')");
    let more: Vec<i64> = after.iter().zip(begun).map(|(after, before)| after - before).collect();
    assert_eq!(more, [5, 5, 5, 0, 0]);
    assert_eq!(of("queue.activity('other', period => '1 day')"), after);
    client.refused("SELECT queue.activity(period => '1 month')", "0A000");
    client.refused("SELECT queue.activity(period => '0')", "22008");
}
