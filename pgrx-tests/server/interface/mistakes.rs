//! A list of mistakes and the reaction to each: an SQLSTATE or a severity, a part of the message, and a part of the
//! hint. To add a mistake, add a row.
//!
//! Mistakes that take more than a statement are below the list. Mistakes in names and places of arguments are in
//! `advice`.

use std::sync::Arc;

use crate::shared::*;

/// A statement, an SQLSTATE or a severity, a part of the message, a part of the hint. `#` is a claimed attempt, `@` its
/// job, `~` a waiting job.
type Row = (&'static str, &'static str, &'static str, &'static str);

const MISTAKES: &[Row] = &[
    // Times of a job.
    ("queue.enqueue('q', start_witin => '1 h')", "42883", "", "it has start_within"),
    ("queue.enqueue('q', startWithin => '1 h')", "42883", "", "it has start_within"),
    ("queue.enqueue('q', startby => now())", "42883", "", "it has start_by"),
    ("queue.enqueue_sql('q', 'SELECT 1', maxDelay => '1 h')", "42883", "", "it has max_delay"),
    ("queue.enqueue_many('q', '{\"{}\"}', start_whitin => '1 h')", "42883", "", "it has start_within"),
    ("queue.publish('t', strat_by => now())", "42883", "", "it has start_by"),
    ("queue.schedule('s', 'q', every => '1 h', startwithin => '1 h')", "42883", "", "it has start_within"),
    (
        r#"queue.enqueue_batch('q', '[{"startWithin": "1 h"}]')"#,
        "22023",
        "jobs[0]: unknown field \"startWithin\"",
        "If you mean \"start_within\", write it so.",
    ),
    (
        r#"queue.enqueue_flow('q', '[{"task": "a", "start_wthin": "1 h"}]')"#,
        "22023",
        "tasks[0]: unknown field \"start_wthin\"",
        "If you mean \"start_within\", write it so.",
    ),
    ("queue.enqueue('q', max_delay => '1 h')", "22023", "max_delay needs a unique_key", "on_duplicate => 'replace'"),
    ("queue.enqueue_batch('q', '[{\"max_delay\": \"1 h\"}]')", "22023", "jobs[0]: max_delay needs", "unique_key"),
    ("queue.enqueue('q', headers => '[1]')", "22023", "headers must be a JSON object", "headers => '{\"trace\""),
    ("queue.enqueue('q', headers => '\"x\"')", "22023", "headers must be a JSON object", "headers => '{\"trace\""),
    ("queue.enqueue_batch('q', '[{\"headers\": 7}]')", "22023", "jobs[0]: headers must be a JSON object", "trace"),
    ("queue.publish('t', headers => '[]')", "22023", "headers must be a JSON object", "trace"),
    ("queue.schedule('s', 'q', every => '1 h', headers => '[]')", "22023", "headers must be a JSON object", "trace"),
    (
        r#"queue.enqueue_batch('q', '[{"start_within": 300}]')"#,
        "22023",
        "jobs[0]: field \"start_within\" must be an interval",
        r#""start_within": "30 seconds""#,
    ),
    (
        r#"queue.enqueue_batch('q', '[{"start_by": 300}]')"#,
        "22023",
        "jobs[0]: field \"start_by\" must be a timestamp",
        r#""start_by": "2030-01-31 12:00:00+00""#,
    ),
    ("queue.enqueue('q', ttl => '1 h')", "42883", "", "start_within"),
    ("queue.enqueue('q', max_retries => 3)", "42883", "", "it has max_attempts"),
    // Nothing to wait for.
    ("queue.suspend(#)", "22023", "there is nothing to wait for", "flow => the job_id of this job"),
    ("queue.suspend(#, upon => 'completed')", "22023", "there is nothing to wait for", "flow =>"),
    ("queue.suspend(#, after => '{}')", "22023", "there is nothing to wait for", "flow =>"),
    ("queue.suspend(#, after => ARRAY[@])", "22023", "a job cannot wait for itself", "Leave out after"),
    // Ids.
    ("queue.complete(99999999)", "22023", "99999999 has the form of a job's id, not of an attempt's", "\"job_id\""),
    ("queue.complete(@)", "22023", "has the form of a job's id", "the column \"id\""),
    ("queue.cancel(#)", "22023", "has the form of an attempt's id, not of a job's", "\"job_id\""),
    ("queue.job(992)", "22023", "992 has the form of an attempt's id", "\"job_id\""),
    ("queue.complete(99999984)", "QJ001", "lost lease on attempt 99999984", ""),
    ("queue.complete(7)", "22023", "7 is not the id of an attempt", ""),
    ("queue.complete(15)", "22023", "15 is not the id of an attempt", ""),
    ("queue.cancel(7)", "22023", "7 is not the id of a job", ""),
    ("queue.cancel(1)", "22023", "1 is not the id of a job", ""),
    // A choice for duplicates, without a key.
    ("queue.enqueue('q', on_duplicate => 'replace')", "22023", "on_duplicate needs a unique_key", ""),
    ("queue.enqueue('q', on_duplicate => 'rerun')", "22023", "on_duplicate needs a unique_key", ""),
    ("queue.enqueue_batch('q', '[{\"on_duplicate\": \"error\"}]')", "22023", "jobs[0]: on_duplicate needs", ""),
    // Values out of range.
    ("queue.enqueue('q', priority => 10000000000)", "42883", "", "a whole number from -2147483648 to 2147483647"),
    ("queue.enqueue('q', priority => 1.5)", "42883", "", "write a whole number"),
    ("queue.create('short', lease => '10 ms')", "NOTICE", "a lease of 00:00:00.01 is very short", "30 seconds"),
    ("queue.alter('q', lease => '500 ms')", "NOTICE", "a lease of 00:00:00.5 is very short", "30 seconds"),
    // Names.
    ("queue.enqueue_batch('q', '[{\"Delay\": \"1 h\"}]')", "22023", "unknown field \"Delay\"", "you mean \"delay\""),
    // The error compares no name of a megabyte with others.
    (
        "queue.enqueue_batch('q', jsonb_build_array(jsonb_build_object(repeat('delay', 200000), 1)))",
        "22023",
        "unknown field \"delaydelay",
        "A job may have: payload",
    ),
    ("queue.alter('q', reset => '{leese}')", "22023", "unknown option \"leese\"", "There is the option 'lease'."),
    ("queue.release(#, error => 'no key')", "42883", "", "It has: id, delay, reason"),
    ("queue.schedule('s', 'q', every => '1 h', max_delay => '1 h')", "42883", "", "has no argument max_delay. It has"),
    // Dead jobs.
    ("queue.retry_dead('q')", "42883", "", "queue.search('q', states => '{dead}')"),
    ("queue.redrive('q')", "42883", "", "queue.search('q', states => '{dead}')"),
];

/// A message to a client: the severity, the message, the hint and the detail.
type Told = (String, String, String, String);

/// Opens a connection that collects its notices and warnings.
fn told_client(config: &postgres::Config) -> (Client, Arc<Mutex<Vec<Told>>>) {
    let told = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&told);
    let mut config = config.clone();
    config.notice_callback(move |notice| {
        let [hint, detail] = [notice.hint(), notice.detail()].map(|text| text.unwrap_or_default().to_owned());
        heard.lock().unwrap().push((notice.severity().to_owned(), notice.message().to_owned(), hint, detail));
    });
    (config.connect(NoTls).unwrap(), told)
}

fn taken(told: &Arc<Mutex<Vec<Told>>>) -> Vec<Told> {
    std::mem::take(&mut told.lock().unwrap())
}

#[test]
fn each_mistake_has_an_answer_that_says_what_to_do() {
    let (database, mut client) = Database::new().with_queue("q", "lease => '1 hour'");
    client.run("SELECT queue.create_topic('t'); SELECT queue.bind('t', 'q')");
    client.run("SELECT queue.enqueue('q')");
    let (attempt, job): (i64, i64) = client.row("SELECT id, job_id FROM queue.claim('q')");
    let waiting = client.enqueue("q");
    let mut config = server().config();
    let (mut client, told) = told_client(config.dbname(&database.name));
    let mut wrong = Vec::new();
    for &(call, kind, message, hint) in MISTAKES {
        let call = call.replace('#', &attempt.to_string()).replace('@', &job.to_string());
        let sql = format!("SELECT {}", call.replace('~', &waiting.to_string()));
        if kind.len() == 5 {
            let failure = client.failure(&sql);
            let is_it = failure.code == kind && failure.message.contains(message) && failure.hint.contains(hint);
            wrong.extend((!is_it).then(|| format!("{sql}: {failure:?}")));
            continue;
        }
        client.run(&format!("BEGIN; {sql}; ROLLBACK"));
        let told = taken(&told);
        let is_it = told.len() == 1 && told[0].0 == kind && told[0].1.contains(message) && told[0].2.contains(hint);
        wrong.extend((!is_it).then(|| format!("{sql}: {told:?}")));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    // The worker still has its attempt.
    client.run(&format!("SELECT queue.complete({attempt})"));
}

#[test]
fn correct_calls_raise_no_notice() {
    let (database, _client) = Database::new().with_queue("q", "");
    let mut config = server().config();
    let (mut client, told) = told_client(config.dbname(&database.name));
    for call in [
        r#"queue.enqueue('q', headers => '{"start_within": 1, "max_delay": "soon", "start_by": {}}')"#,
        "queue.enqueue('q', start_within => '1 h')",
        "queue.enqueue('q', unique_key => 'k', on_duplicate => 'replace', delay => '1 h', max_delay => '1 h')",
        "queue.enqueue('q', headers => '{}')",
        "queue.enqueue('q', on_duplicate => 'skip')",
        "queue.enqueue('q', on_duplicate => NULL)",
        "queue.enqueue('q', delay => '1 h')",
        "queue.schedule('s', 'q', every => '1 h')",
        "queue.create('r', lease => '1 second')",
    ] {
        client.run(&format!("SELECT {call}"));
        assert_eq!(taken(&told), [], "{call}");
    }
}

#[test]
fn an_error_in_create_extension_says_which_schema_to_use() {
    let cluster = Cluster::new().start();
    cluster.connect().run("CREATE DATABASE own");
    let mut client = cluster.connect_to("own");
    client.run("CREATE SCHEMA queue");
    let failure = client.failure("CREATE EXTENSION pg_queue");
    assert!(failure.hint.contains("ALTER SCHEMA queue RENAME TO"), "{failure:?}");
}

#[test]
fn completing_an_uncommitted_claim_gives_a_hint_to_commit_it() {
    let (database, mut client) = Database::new().with_queue("q", "");
    let job = client.enqueue("q");
    client.run("BEGIN");
    let attempt = client.claim("q");
    let complete = format!("SELECT queue.complete({attempt})");
    let mut other = database.connect();
    let failure = other.refused(&complete, "QJ001");
    assert!(failure.hint.contains("Commit the claim"), "{failure:?}");
    client.run("ROLLBACK");
    wait::until("the claim's rollback is known", || {
        let failure = other.failure(&complete);
        failure.detail.contains("its claim was rolled back").then_some(failure.hint)
    });
    assert_eq!(other.state(job), "ready");
}

#[test]
fn suspending_a_job_with_nothing_to_wait_for_is_refused() {
    let (_database, mut client) = Database::new().with_queue("q", "lease => '1 hour'");
    create(&mut client, "members", "retention => '0'");
    client.run("SELECT queue.enqueue('q')");
    let (id, job): (i64, i64) = client.row("SELECT id, job_id FROM queue.claim('q')");
    client.refused(&format!("SELECT queue.suspend({id})"), "22023");
    // In a batch only this end is refused, and the worker keeps its job.
    let ends = format!(r#"[{{"suspend": {{"id": {id}}}}}]"#);
    let (outcome, reason): (String, String) =
        client.row(&format!("SELECT outcome, reason FROM queue.end_batch('{ends}')"));
    assert!(outcome == "refused" && reason.contains("there is nothing to wait for"), "{outcome}: {reason}");
    // A member that the same transaction adds counts.
    client.run(&format!("BEGIN; SELECT queue.enqueue('members', flow => {job}); SELECT queue.suspend({id}); ROLLBACK"));
    client.wait_rolled_back();
    // A member that has ended counts, even if its row is in history.
    client.run(&format!("SELECT queue.enqueue('members', flow => {job})"));
    client.run("SELECT queue.complete(id) FROM queue.claim('members')");
    client.run(&format!("SELECT queue.suspend({id})"));
    crate::shared::becomes(&mut client, job, "ready");
    // The job waited for members before, so it may do so again.
    let id = client.claim("q");
    client.run(&format!("SELECT queue.suspend({id})"));
    crate::shared::becomes(&mut client, job, "ready");
    let id = client.claim("q");
    // A time is enough, even a time in the past.
    client.run(&format!("SELECT queue.suspend({id}, until => now())"));
    crate::shared::becomes(&mut client, job, "ready");
    // A job with a request to cancel is cancelled, even if the call waits for something else.
    let other = client.enqueue("q");
    let ids: Vec<i64> = client.column("SELECT id FROM queue.claim('q', 2)");
    client.run(&format!("SELECT queue.cancel({other})"));
    client.run(&format!("SELECT queue.suspend({})", ids[1]));
    assert_eq!(client.state(other), "cancelled");
}

#[test]
fn a_member_that_another_transaction_is_adding_counts() {
    let (database, mut client) = Database::new().with_queue("q", "lease => '1 hour'");
    client.run("SELECT queue.enqueue('q')");
    let (id, job): (i64, i64) = client.row("SELECT id, job_id FROM queue.claim('q')");
    let mut other = database.connect();
    other.run(&format!("BEGIN; SELECT queue.enqueue('q', flow => {job})"));
    client.run(&format!("SELECT queue.suspend({id})"));
    other.run("COMMIT");
    assert_eq!(client.state(job), "held");
}

#[test]
fn the_reason_of_a_release_is_kept() {
    let (_database, mut client) = Database::new().with_queue("q", "");
    let job = client.enqueue("q");
    let shown = |client: &mut Client| -> (String, String, String) {
        client.row(
            "SELECT state, error, (SELECT string_agg(coalesce(error, '-'), ' ' ORDER BY id) FROM queue.attempts)
                 FROM queue.jobs",
        )
    };
    let id = client.claim("q");
    client.run(&format!("SELECT queue.release({id}, reason => 'no key k2')"));
    assert_eq!(shown(&mut client), ("ready".into(), "no key k2".into(), "no key k2 -".into()));
    let (id, attempt, last_error): (i64, i32, String) =
        client.row("SELECT id, attempt, last_error FROM queue.claim('q')");
    assert_eq!((attempt, last_error.as_str()), (1, "no key k2"));
    // Without a new reason the last reason stays.
    client.run(&format!("SELECT queue.release({id})"));
    assert_eq!(shown(&mut client).1, "no key k2");
    let id = client.claim("q");
    let outcome: String =
        client.value(&format!("SELECT outcome FROM queue.release_many(ARRAY[{id}], reason => 'many')"));
    assert_eq!((outcome.as_str(), shown(&mut client).1.as_str()), ("released", "many"));
    let id = client.claim("q");
    // A zero character and half a surrogate pair are left out.
    let ends = format!(r#"[{{"release": {{"id": {id}, "delay": "1 h", "reason": "no \u0000\ud800 key"}}}}]"#);
    let outcome: String = client.value(&format!("SELECT outcome FROM queue.end_batch('{ends}')"));
    assert_eq!((outcome.as_str(), shown(&mut client).1.as_str()), ("released", "no \u{fffd} key"));
    let error: String = client.value(&format!("SELECT error FROM queue.job({job})"));
    assert_eq!(error, "no \u{fffd} key");
    client.run("SELECT queue.retry(job_id) FROM queue.jobs");
    let id = client.claim("q");
    client.run(&format!(r#"SELECT * FROM queue.end_batch('[{{"release": {{"id": {id}, "reason": null}}}}]')"#));
    assert_eq!(client.state(job), "ready");
}

#[test]
fn calls_in_a_database_without_a_worker_raise_a_warning() {
    const SAYS: &str = "no background worker serves this database: ";
    let cluster = Cluster::new().conf("max_worker_processes = 3").start();
    // The launchers of pg_queue and of logical replication take two of the slots.
    cluster.create_database("first");
    let mut first = cluster.connect_to("first");
    wait::until_true("the worker has come", || {
        first.count("SELECT FROM queue.doctor() WHERE name = 'worker' AND ok") == 1
    });
    cluster.connect().run("CREATE DATABASE second");
    let mut config = cluster.config();
    config.dbname("second");
    let (mut client, told) = told_client(&config);
    client.run("CREATE EXTENSION pg_queue");
    let all = taken(&told);
    assert!(all.len() == 1 && all[0].0 == "WARNING" && all[0].1.starts_with(SAYS), "{all:?}");
    assert!(all[0].2.contains("max_worker_processes"), "{all:?}");
    client.run("SELECT queue.create('q'); SELECT queue.enqueue('q', delay => '1 h')");
    assert_eq!(taken(&told), [], "a session is told once");
    for call in [
        "queue.enqueue('q', delay => '1 h')",
        "queue.enqueue_many('q', '{\"{}\"}', run_at => now() + interval '1 h')",
        "queue.enqueue_batch('q', '[{\"delay\": \"1 h\"}]')",
        "queue.schedule('s', 'q', every => '1 h')",
        "queue.enqueue_flow('q', '[{}]')",
        "queue.claim('q', wait => '10 ms')",
    ] {
        wait::until("the launcher has found no slot", || {
            let (mut client, told) = told_client(&config);
            client.run(&format!("SELECT queue.enqueue('q'); SELECT {call}; SELECT {call}"));
            let all = taken(&told);
            assert!(all.len() < 2, "{call}: {all:?}");
            // The launcher may have begun another try.
            all.first().map(|all| assert!(all.1.contains("no free slot") && !all.2.is_empty(), "{call}: {all:?}"))
        });
    }
    // A session that does the duties itself needs no worker.
    let (mut client, told) = told_client(&config);
    client.run("SELECT queue.maintain(); SELECT queue.enqueue('q', delay => '1 h')");
    assert_eq!(taken(&told), []);
    drop(first);

    let off = Database::without_worker();
    let mut config = server().config();
    let (mut client, told) = told_client(config.dbname(&off.name));
    create(&mut client, "q", "");
    wait::until("the worker says that it is off", || {
        let (mut client, told) = told_client(&config);
        client.run("SELECT queue.enqueue('q', delay => '1 h')");
        let all = taken(&told);
        all.first().map(|all| assert!(all.1.contains("pg_queue.worker is off"), "{all:?}"))
    });
    drop(told);
}

#[test]
fn an_ambiguous_cron_expression_is_explained_when_it_is_new() {
    let (database, _client) = Database::new().with_queue("q", "");
    let mut config = server().config();
    let (mut client, told) = told_client(config.dbname(&database.name));
    client.run("SET timezone = 'UTC'");
    let mut schedule = |options: &str| {
        taken(&told);
        client.run(&format!("SELECT queue.schedule('s', 'q', starts_at => '2050-01-01', {options})"));
        let told = taken(&told);
        assert!(told.iter().all(|(severity, ..)| severity == "NOTICE"), "{told:?}");
        told.into_iter().map(|(_, message, hint, detail)| [message, detail, hint]).collect::<Vec<_>>()
    };
    let message = |cron: &str| format!("other tools may read the cron expression \"{cron}\" in another way");
    let hint = "If other times are meant, see docs/coming-from/cron-dialects.md.".to_owned();
    let either = "A day matches if it fits the day of the month or the day of the week.\n\
        The next times are 2050-01-07 00:00:00+00, 2050-01-13 00:00:00+00, 2050-01-14 00:00:00+00.";
    assert_eq!(schedule("cron => '0 0 * * FRI'"), [[""; 3]; 0]);
    assert_eq!(schedule("cron => '0 0 13 * FRI'"), [[message("0 0 13 * FRI"), either.to_owned(), hint.clone()]]);
    for same in [
        "cron => '0 0 13 * FRI'",
        "cron => ' 0  0 13 * fri '",
        "cron => '0 0 13 * FRI', timezone => 'Asia/Tokyo'",
        "every => '1 day'",
    ] {
        assert_eq!(schedule(same), [[""; 3]; 0], "{same}");
    }
    let ends = |ends_at: &str| format!("cron => '0 0 13 * SAT', ends_at => '{ends_at}'");
    assert!(schedule(&ends("2050-01-02"))[0][1].ends_with("\nThe next time is 2050-01-01 00:00:00+00."));
    let several = "The first of six fields is the second.\n\
        A step on one day of the week goes on to 7, which is Sunday.\n\
        The next times are 2050-01-01 21:00:05+00, 2050-01-06 21:00:05+00, 2050-01-07 21:00:05+00.";
    let text = "5 0 6 * * 5/1";
    let zone = format!("cron => '{text}', timezone => 'Asia/Tokyo'");
    assert_eq!(schedule(&zone), [[message(text), several.to_owned(), hint]]);
}
