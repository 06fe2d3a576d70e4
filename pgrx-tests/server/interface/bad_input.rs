//! Invalid arguments, unusual sizes and unusual places of a claim give a result or a helpful error, and never half an
//! effect.

use crate::shared::*;

fn assert_fails(client: &mut Client, sql: &str, code: &str, message: &str) {
    let failure = client.failure(sql);
    assert_eq!((failure.code.as_str(), failure.message.as_str()), (code, message), "{sql}: {failure:?}");
}

pub fn jobs(client: &mut Client, q: &str) -> i64 {
    client.value(&format!("SELECT count(*) FROM queue.jobs WHERE queue_name = '{q}'"))
}

#[test]
fn an_unknown_queue_is_an_error_with_a_hint() {
    let mut client = connect();
    for call in [
        "alter('no''where')",
        "pause('no''where')",
        "resume('no''where')",
        "purge('no''where')",
        "enqueue('no''where')",
        "enqueue_many('no''where', '{1}')",
        "enqueue_batch('no''where', '[{}]')",
        "claim('no''where')",
        "claim('no''where', wait => '10 s')",
        "claim_any('{no''where}')",
        "search('no''where')",
    ] {
        let failure = client.refused(&format!("SELECT queue.{call}"), "42704");
        assert_eq!(failure.message, "queue \"no'where\" does not exist", "{call}");
        assert!(failure.hint.contains("SELECT queue.create('no''where')"), "{call}: {failure:?}");
    }
}

/// Errors and the server's log repeat only a part of an argument.
#[test]
fn an_error_repeats_no_long_argument() {
    let (mut client, q) = queue("");
    let long = "repeat('x', 1000000)";
    for call in [
        format!("claim({long})"),
        format!("claim('{q}', stage => {long})"),
        format!("claim_any(ARRAY['{q}'], stages => ARRAY[{long}])"),
        format!("enqueue({long})"),
        format!("publish({long})"),
        format!("create({long})"),
        format!("alter('{q}', dead_letter => {long})"),
        format!("schedule('s', '{q}', cron => {long})"),
        format!("schedule('s', '{q}', cron => '* * * * *', timezone => {long})"),
        format!("unschedule({long})"),
        format!("grant('{q}', 'postgres', {long})"),
        format!("enqueue('{q}', after => '{{1}}', upon => {long})"),
        format!("end_batch(to_json({long}))"),
        format!("end_batch(('[{{\"' || {long} || '\": 1}}]')::json)"),
    ] {
        let failure = client.failure(&format!("SELECT queue.{call}"));
        let bytes = failure.message.len() + failure.detail.len() + failure.hint.len();
        assert!(bytes < 30_000 && failure.code != "XX000", "{call}: {bytes} bytes, {}", failure.code);
    }
}

#[test]
fn intervals_that_make_no_sense_are_refused_and_shown() {
    let (mut client, q) = queue("");
    let job = client.enqueue(&q);
    let id = client.claim(&q);
    for (call, detail) in [
        (format!("SELECT queue.enqueue('{q}', delay => '-7 s')"), "It is -00:00:07."),
        (format!("SELECT queue.enqueue('{q}', delay => '-1 month')"), "It is -1 mons."),
        (format!("SELECT queue.enqueue('{q}', lease => '0')"), "It is 00:00:00."),
        (format!("SELECT queue.enqueue('{q}', lease => '-1 s')"), "It is -00:00:01."),
        (format!("SELECT queue.enqueue('{q}', lease => '20 years')"), "It is 20 years."),
        (format!("SELECT queue.enqueue_many('{q}', '{{1}}', delay => '-1 us')"), "It is -00:00:00.000001."),
        (format!("SELECT queue.claim('{q}', wait => '-3 s')"), "It is -00:00:03."),
        (format!("SELECT queue.claim('{q}', lease => '0')"), "It is 00:00:00."),
        (format!("SELECT queue.claim('{q}', lease => '-1 s')"), "It is -00:00:01."),
        (format!("CALL queue.wait('{q}', '-1 min')"), "It is -00:01:00."),
        (format!("SELECT queue.fail({id}, 'boom', '-2 days')"), "It is -2 days."),
        (format!("SELECT queue.fail_many('{{{id}}}', 'boom', '-1 s')"), "It is -00:00:01."),
        (format!("SELECT queue.release({id}, '-1 s')"), "It is -00:00:01."),
        (format!("SELECT queue.release_many('{{{id}}}', '-1 s')"), "It is -00:00:01."),
        (format!("SELECT queue.extend({id}, '0')"), "It is 00:00:00."),
        (format!("SELECT queue.extend({id}, '-1 s')"), "It is -00:00:01."),
        (format!("SELECT queue.extend_many('{{{id}}}', '-1 s')"), "It is -00:00:01."),
        (format!("SELECT queue.retry_many('{{{job}}}', 'infinity')"), ""),
        (format!("SELECT queue.reschedule_many('{{{job}}}', '-infinity')"), ""),
        (format!("SELECT queue.alter('{q}', rate_period => '0')"), "It is 00:00:00."),
        (format!("SELECT queue.alter('{q}', backoff_base => '-1 s')"), "It is -00:00:01."),
        (format!("SELECT queue.alter('{q}', backoff_jitter => 2)"), "It is 2."),
        (format!("SELECT queue.alter('{q}', retention => '-2 s')"), "It is -00:00:02."),
        (format!("SELECT queue.alter('{q}', lease => '-1 s')"), "It is -00:00:01."),
    ] {
        assert_eq!(client.refused(&call, "22023").detail, detail, "{call}");
    }
    // Postgres itself refuses times beyond a timestamp's range.
    for call in [
        format!("enqueue('{q}', delay => '300000 years')"),
        format!("fail({id}, 'boom', '300000 years')"),
        format!("release({id}, '300000 years')"),
    ] {
        client.refused(&format!("SELECT queue.{call}"), "22008");
    }
    assert_eq!(jobs(&mut client, &q), 1);
    // None of these calls has ended the attempt.
    client.run(&format!("SELECT queue.complete({id})"));
    client.enqueue(&q);
    assert_eq!(client.count(&format!("SELECT FROM queue.claim('{q}', wait => '170000 years')")), 1);
}

#[test]
fn a_job_has_one_time_and_that_is_finite() {
    let (mut client, q) = queue("");
    let both = "delay and run_at cannot be given together";
    assert_fails(&mut client, &format!("SELECT queue.enqueue('{q}', delay => '1 s', run_at => now())"), "22023", both);
    for infinite in ["infinity", "-infinity"] {
        let finite = "run_at must be finite";
        assert_fails(&mut client, &format!("SELECT queue.enqueue('{q}', run_at => '{infinite}')"), "22023", finite);
        let batch = format!("SELECT queue.enqueue_batch('{q}', '[{{}}, {{\"run_at\": \"{infinite}\"}}]')");
        assert_fails(&mut client, &batch, "22023", &format!("jobs[1]: {finite}"));
        let job = client.enqueue(&q);
        for verb in ["retry", "reschedule"] {
            assert_fails(&mut client, &format!("SELECT queue.{verb}({job}, '{infinite}')"), "22023", finite);
        }
        client.run(&format!("SELECT queue.cancel({job})"));
    }
    client.run(&format!("SELECT queue.enqueue('{q}', run_at => '4000-01-01')"));
    client.run(&format!("SELECT queue.enqueue('{q}', run_at => '0001-01-01 BC')"));
    assert_eq!(client.count(&format!("SELECT FROM queue.claim('{q}', 9)")), 1);
}

#[test]
fn a_batch_names_what_is_wrong_and_adds_nothing() {
    let (mut client, q) = queue("");
    let list = "jobs must be a JSON array of objects";
    let job = |n: usize, rest: &str| format!("jobs[{n}]{rest}");
    for (jobs, message) in [
        ("{}", list.to_owned()),
        ("1", list.to_owned()),
        ("\"x\"", list.to_owned()),
        ("null", list.to_owned()),
        (r#"{"0": {}}"#, list.to_owned()),
        ("[1]", job(0, " must be an object")),
        ("[{}, null]", job(1, " must be an object")),
        ("[{}, {}, []]", job(2, " must be an object")),
        ("[[{}]]", job(0, " must be an object")),
        (r#"[{}, {"pay_load": 1}]"#, job(1, r#": unknown field "pay_load""#)),
        (r#"[{"Priority": null}]"#, job(0, r#": unknown field "Priority""#)),
        (r#"[{"priority": "1"}]"#, job(0, r#": field "priority" must be an integer"#)),
        (r#"[{"priority": 1.5}]"#, job(0, r#": field "priority" must be an integer"#)),
        (r#"[{"priority": 3000000000}]"#, job(0, r#": field "priority" must be an integer"#)),
        (r#"[{"priority": 1e400}]"#, job(0, r#": field "priority" must be an integer"#)),
        (r#"[{"priority": [1]}]"#, job(0, r#": field "priority" must be an integer"#)),
        (r#"[{"max_attempts": true}]"#, job(0, r#": field "max_attempts" must be an integer"#)),
        (r#"[{"max_attempts": 0}]"#, job(0, ": max_attempts must be between 1 and 1000000")),
        (r#"[{"delay": 5}]"#, job(0, r#": field "delay" must be an interval, as a string"#)),
        (r#"[{"delay": "soon"}]"#, job(0, r#": field "delay" must be an interval, as a string"#)),
        (r#"[{"delay": "-1 s"}]"#, job(0, ": delay cannot be negative")),
        (r#"[{"lease": "x"}]"#, job(0, r#": field "lease" must be an interval, as a string"#)),
        (r#"[{"run_at": 5}]"#, job(0, r#": field "run_at" must be a timestamp, as a string"#)),
        (r#"[{"run_at": "soon"}]"#, job(0, r#": field "run_at" must be a timestamp, as a string"#)),
        (r#"[{"run_at": ""}]"#, job(0, r#": field "run_at" must be a timestamp, as a string"#)),
        (r#"[{}, {"run_at": "2030-01-01", "delay": "1 s"}]"#, job(1, ": delay and run_at cannot be given together")),
        (r#"[{"on_duplicate": "perhaps"}]"#, job(0, r#": invalid value for on_duplicate: "perhaps""#)),
        (r#"[{}, {"stage": "s"}]"#, job(1, &format!(": queue \"{q}\" has no stage \"s\""))),
        (r#"[{"stage": 1}]"#, job(0, r#": field "stage" must be a string"#)),
        (r#"[{"on_duplicate": 1}]"#, job(0, r#": field "on_duplicate" must be a string"#)),
        (r#"[{"unique_key": 1}]"#, job(0, r#": field "unique_key" must be a string"#)),
        (r#"[{"version": "2030-01-01"}]"#, job(0, ": version needs a unique_key")),
        (r#"[{"unique_key": "k", "version": 7}]"#, job(0, r#": field "version" must be a timestamp, as a string"#)),
        (r#"[{"unique_key": "k", "unique_for": "-1 s"}]"#, job(0, ": unique_for cannot be negative")),
    ] {
        assert_fails(&mut client, &format!("SELECT queue.enqueue_batch('{q}', '{jobs}')"), "22023", &message);
    }
    assert_eq!(jobs(&mut client, &q), 0);
}

#[test]
fn arrays_may_be_empty_and_elements_null_only_where_that_has_a_meaning() {
    let (mut client, q) = queue("");
    client.enqueue(&q);
    let id = client.claim(&q);
    for call in [
        format!("enqueue_many('{q}', '{{}}')"),
        format!("enqueue_batch('{q}', '[]')"),
        "complete_many('{}')".to_owned(),
        "complete_many('{NULL}')".to_owned(),
        "fail_many('{}', 'boom')".to_owned(),
        "fail_many('{NULL, NULL}', 'boom')".to_owned(),
        "release_many('{}')".to_owned(),
        "release_many('{NULL}')".to_owned(),
        "extend_many('{}')".to_owned(),
        "extend_many('{NULL}')".to_owned(),
        "end_batch('[]')".to_owned(),
        "cancel_many('{}')".to_owned(),
        "cancel_many('{NULL}')".to_owned(),
        "retry_many('{}')".to_owned(),
        "retry_many('{NULL}')".to_owned(),
        "reprioritize_many('{}', 1)".to_owned(),
        "reprioritize_many('{NULL}', 1)".to_owned(),
        "reschedule_many('{}', now())".to_owned(),
        "reschedule_many('{NULL}', now())".to_owned(),
        format!("claim('{q}', completed => '{{}}')"),
        format!("claim('{q}', completed => '{{NULL}}')"),
    ] {
        assert_eq!(client.count(&format!("SELECT * FROM queue.{call}")), 0, "{call}");
    }
    let sql = format!("SELECT queue.enqueue_many('{q}', ARRAY['1', NULL, '3']::jsonb[])");
    assert_fails(&mut client, &sql, "22004", "payloads[2] cannot be null");
    assert_eq!(jobs(&mut client, &q), 1);
    // The shapes and bounds of arrays do not matter.
    assert_eq!(client.count(&format!("SELECT queue.enqueue_many('{q}', '{{{{1,2}},{{3,4}}}}')")), 4);
    assert_eq!(client.count(&format!("SELECT queue.enqueue_many('{q}', '[5:6]={{1,2}}')")), 2);
    let answer: String = client.value(&format!("SELECT outcome FROM queue.complete_many('[-3:-3]={{{id}}}')"));
    assert_eq!(answer, "completed");
    assert_eq!(client.count(&format!("SELECT FROM queue.claim('{q}', 99)")), 6);
}

#[test]
fn max_jobs_is_positive_and_may_be_any_number() {
    let (mut client, q) = queue("");
    for n in ["0", "-1", "-2147483648"] {
        let message = "max_jobs must be at least 1";
        assert_fails(&mut client, &format!("SELECT FROM queue.claim('{q}', {n})"), "22023", message);
        assert_fails(&mut client, &format!("SELECT FROM queue.claim_any('{{{q}}}', {n})"), "22023", message);
    }
    client.run(&format!("SELECT queue.enqueue_many('{q}', array_fill('1'::jsonb, ARRAY[300]))"));
    assert_eq!(client.count(&format!("SELECT FROM queue.claim('{q}', 2147483647)")), 300);
    assert_eq!(client.count(&format!("SELECT FROM queue.claim('{q}', 2147483647)")), 0);
}

#[test]
fn names_of_queues_may_hold_anything_but_must_not_be_empty_or_too_long() {
    let database = Database::new();
    let mut client = database.connect();
    for name in ["", &"x".repeat(201), &"é".repeat(201)] {
        let failure = client.refused(&format!("SELECT queue.create('{name}')"), "22023");
        assert_eq!(failure.message, "queue_name must have 1 to 200 characters");
    }
    // In grants this name means all queues.
    assert_fails(&mut client, "SELECT queue.create('*')", "22023", "a queue cannot be called \"*\"");
    let names = [
        "O'Brien",
        "\"quoted\"",
        "'; DROP SCHEMA queue CASCADE; --",
        "queue_internal.queue",
        "Mixed Case",
        "mixed case",
        " ",
        "a\nb\tc",
        "$1",
        "%s %I",
        "\\",
        "\u{1f680}日本語",
        &"é".repeat(200),
    ];
    let enqueue = client.prepare("SELECT queue.enqueue($1)").unwrap();
    for name in names {
        client.query("SELECT queue.create($1)", &[&name]).unwrap();
        let job: i64 = client.query_one(&enqueue, &[&name]).unwrap().get(0);
        client.query("SELECT queue.pause($1)", &[&name]).unwrap();
        client.query("SELECT queue.resume($1)", &[&name]).unwrap();
        client.query("SELECT queue.alter($1, max_attempts => 3)", &[&name]).unwrap();
        client
            .query("SELECT queue.cancel_many(ARRAY(SELECT job_id FROM queue.search($1, states => '{dead}')))", &[&name])
            .unwrap();
        let claim = "SELECT job_id, queue_name, max_attempts FROM queue.claim_any(ARRAY[$1::text])";
        let row = client.query_one(claim, &[&name]).unwrap();
        assert_eq!((row.get::<_, i64>(0), row.get::<_, &str>(1), row.get::<_, i32>(2)), (job, name, 3));
        client.query("SELECT queue.enqueue($1)", &[&name]).unwrap();
        client.query("SELECT queue.purge($1)", &[&name]).unwrap();
        let found: String = client.query_one("SELECT queue_name FROM queue.job($1)", &[&job]).unwrap().get(0);
        assert_eq!(found, name);
    }
    assert_eq!(client.value::<i64>("SELECT count(*) FROM queue.stats WHERE claimed = 1"), names.len() as i64);
    for name in names {
        client.query("SELECT queue.drop($1, force => true)", &[&name]).unwrap();
    }
    assert_eq!(client.count("SELECT FROM queue.queues"), 0);
}

#[test]
fn texts_and_documents_may_be_large() {
    let (mut client, q) = queue("backoff_base => '0'");
    client.run(
        "CREATE TEMP TABLE big AS
         SELECT text, to_jsonb(text) AS json FROM (SELECT string_agg(md5(i::text), '')
         FROM generate_series(1, 33000) AS i) AS t(text);
         ANALYZE big",
    );
    let job: i64 =
        client.value(&format!("SELECT queue.enqueue('{q}', json, headers => jsonb_build_object('a', json)) FROM big"));
    let id: i64 = client.value(&format!("SELECT id FROM big, queue.claim('{q}', worker => left(text, 200))"));
    client.run(&format!("SELECT queue.progress({id}, json), queue.fail({id}, text) FROM big"));
    let sql = format!(
        "SELECT c.id FROM queue.claim('{q}') AS c, big WHERE c.payload = json AND c.headers -> 'a' = json \
            AND c.progress = json"
    );
    let id: i64 = client.value(&sql);
    client.run(&format!("SELECT queue.cancel({job}, text) FROM big"));
    client.run(&format!("SELECT queue.complete({id}, json) FROM big"));
    let same: bool = client.value(&format!(
        "SELECT j.result = json AND j.payload = json AND j.error = left(text, 8192)
             AND (SELECT a.worker FROM queue.job_attempts(j.job_id) AS a WHERE a.attempt = 1) = left(text,
             200)
         FROM queue.job({job}) AS j, big"
    ));
    assert!(same);
}

#[test]
fn a_hundred_thousand_jobs_fit_one_call() {
    let (_cluster, mut client) =
        Cluster::with(&["pg_queue.max_running = 120000", "work_mem = '64MB'"]).start_with_database("app");
    create(&mut client, "many", "");
    create(&mut client, "batch", "");
    let many = "SELECT count(*) FROM queue.enqueue_many('many', array_fill('{\"n\": 1}'::jsonb, ARRAY[100000]))";
    assert_eq!(client.value::<i64>(many), 100_000);
    let batch = "SELECT count(*) FROM queue.enqueue_batch('batch',
                     (SELECT jsonb_agg(jsonb_build_object('payload', i, 'priority', i % 10))
                     FROM generate_series(1, 100000) AS i))";
    assert_eq!(client.value::<i64>(batch), 100_000);
    // After a rollback all jobs exist again.
    client.run("BEGIN");
    assert_eq!(client.value::<i64>("SELECT count(*) FROM queue.claim('many', 100000)"), 100_000);
    client.run("ROLLBACK");
    let in_order = "SELECT count(*), bool_and(in_order) FROM (
        SELECT job_id > lag(job_id) OVER (ORDER BY n) IS NOT FALSE AS in_order
        FROM (SELECT job_id, row_number() OVER () AS n FROM queue.claim('many', 200000)) AS c) AS c";
    let row = client.query_one(in_order, &[]).unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, bool>(1)), (100_000, true));
    let ended = "SELECT count(*) FROM queue.complete_many((SELECT array_agg(id) FROM queue.attempts \
        WHERE state = 'running')) WHERE outcome = 'completed'";
    assert_eq!(client.value::<i64>(ended), 100_000);
    let failed = "SELECT count(*) FROM queue.fail_many((SELECT array_agg(id) FROM queue.claim('batch', 10000)), \
        'boom', '0') WHERE outcome = 'failed'";
    assert_eq!(client.value::<i64>(failed), 10_000);
    assert_eq!(client.value::<i64>("SELECT queue.purge('batch')"), 100_000);
}

/// Returns a call of each verb that changes a queue, one of its jobs, or a running attempt.
fn changes(q: &str, job: i64, id: i64) -> Vec<String> {
    vec![
        "create('other')".to_owned(),
        format!("alter('{q}')"),
        format!("drop('{q}')"),
        format!("pause('{q}')"),
        format!("resume('{q}')"),
        format!("purge('{q}')"),
        format!("enqueue('{q}')"),
        format!("enqueue_many('{q}', '{{1}}')"),
        format!("enqueue_batch('{q}', '[{{}}]')"),
        format!("claim('{q}')"),
        format!("claim_any('{{{q}}}')"),
        format!("complete({id})"),
        format!("complete_many('{{{id}}}')"),
        format!("fail({id}, 'boom')"),
        format!("fail_many('{{{id}}}', 'boom')"),
        format!("release({id})"),
        format!("release_many('{{{id}}}')"),
        format!("extend({id})"),
        format!("extend_many('{{{id}}}')"),
        format!("advance({id})"),
        format!("end_batch('[{{\"complete\": {{\"id\": {id}}}}}]')"),
        format!("progress({id}, '1')"),
        format!("cancel({job})"),
        format!("cancel_many('{{{job}}}')"),
        format!("retry({job})"),
        format!("retry_many('{{{job}}}')"),
        format!("reprioritize_many('{{{job}}}', 1)"),
        format!("reschedule_many('{{{job}}}', now())"),
        format!("reprioritize({job}, 1)"),
        format!("reschedule({job}, now())"),
        format!("forget({job})"),
        "maintain()".to_owned(),
    ]
}

#[test]
fn a_read_only_transaction_changes_nothing() {
    let (mut client, q) = queue("");
    let job = client.enqueue(&q);
    client.enqueue(&q);
    let id = client.claim(&q);
    client.run("SET default_transaction_read_only = on");
    for call in changes(&q, job, id) {
        let failure = client.refused(&format!("SELECT queue.{call}"), "25006");
        assert!(failure.message.contains("read-only transaction"), "{call}: {failure:?}");
    }
    // Reads and waits are allowed.
    for view in ["jobs", "attempts", "queues", "stats", "errors", "workers"] {
        client.run(&format!("SELECT FROM queue.{view}"));
    }
    assert_eq!(client.count(&format!("SELECT FROM queue.job({job})")), 1);
    assert!(client.value::<bool>(&format!("CALL queue.wait('{q}', '10 ms')")));
    client.run("RESET default_transaction_read_only");
    client.run(&format!("SELECT queue.complete({id})"));
}

#[test]
fn without_preloading_every_error_says_which_line_to_add() {
    let (cluster, mut client) = Cluster::new().start_with_database("app");
    create(&mut client, "q", "");
    let job = client.enqueue("q");
    let id = client.claim("q");
    drop(client);
    cluster.append_conf("shared_preload_libraries = ''");
    cluster.restart();
    let mut client = cluster.connect_to("app");
    let refused = |client: &mut Client, sql: &str| {
        let failure = client.refused(sql, "55000");
        assert_eq!(failure.message, "pg_queue is not in shared_preload_libraries", "{sql}");
        assert!(failure.hint.contains("shared_preload_libraries = 'pg_queue'"), "{sql}: {failure:?}");
    };
    let look = format!("job({job})");
    for call in changes("q", job, id).iter().chain([&look]) {
        refused(&mut client, &format!("SELECT queue.{call}"));
    }
    refused(&mut client, "CALL queue.wait('q')");
    refused(&mut client, "SELECT * FROM queue.workers");
    // The tables can be read, and the extension can be dropped, but not created.
    refused(&mut client, "SELECT * FROM queue.jobs");
    assert_eq!(client.value::<String>("SELECT queue_name FROM queue.queues"), "q");
    client.run("DROP EXTENSION pg_queue");
    refused(&mut client, "CREATE EXTENSION pg_queue");
    assert_eq!(client.count("SELECT FROM pg_namespace WHERE nspname = 'queue'"), 0);
}

/// Does everything that can happen to a job, one by one and in calls for many jobs.
fn use_all(client: &mut Client) {
    client.run(
        "SELECT queue.enqueue('q', '{}'), queue.enqueue('q', '{}', delay => '1 hour');
         SELECT count(*) FROM queue.enqueue_many('q', array_fill('{\"n\": 1}'::jsonb, ARRAY[50]));
         SELECT queue.progress(id, '1'), queue.fail(id, 'no') FROM queue.claim('q');
         SELECT count(*) FROM queue.release_many(ARRAY(SELECT id FROM queue.claim('q', 10)));
         SELECT count(*) FROM queue.end_batch((SELECT coalesce(json_agg(json_build_object('release',
         json_build_object('id', id))), '[]') FROM queue.claim('q', 10)));
         SELECT count(*) FROM queue.complete_many(ARRAY(SELECT id FROM queue.claim('q', 100)))",
    );
    assert_eq!(client.count("SELECT FROM queue.jobs WHERE payload IS NULL"), 0);
}

#[test]
fn an_altered_table_is_refused_until_it_is_restored() {
    let (cluster, mut owner) = Cluster::new().start_with_database("app");
    let mut client = cluster.connect_to("app");
    create(&mut client, "q", "");
    use_all(&mut client);
    for (table, column, there, back) in [
        ("attempt_0", "extra", "ADD COLUMN extra integer NOT NULL DEFAULT 7", "DROP COLUMN extra"),
        ("attempt_0", "lane", "ALTER COLUMN lane DROP NOT NULL", "ALTER COLUMN lane SET NOT NULL"),
        ("claim_0", "extra", "ADD COLUMN extra text", "DROP COLUMN extra"),
        ("claim_0", "worker", "ALTER COLUMN worker TYPE varchar", "ALTER COLUMN worker TYPE text"),
        ("outcome_0", "extra", "ADD COLUMN extra text, ADD COLUMN more text", "DROP COLUMN extra, DROP COLUMN more"),
        ("note_0", "extra", "ADD COLUMN extra text", "DROP COLUMN extra"),
        ("queue", "extra", "ADD COLUMN extra text", "DROP COLUMN extra"),
    ] {
        let all = "SELECT queue.enqueue('q', '{}'); SELECT queue.progress(id, '1'), queue.fail(id, 'no') \
            FROM queue.claim('q')";
        let what = format!("table \"queue_internal.{table}\" is not as pg_queue created it");
        let refused = |client: &mut Client| {
            let failure = client.failure(all);
            assert_eq!(
                (failure.code.as_str(), failure.message.as_str()),
                ("55000", what.as_str()),
                "{there}: {failure:?}"
            );
            assert!(failure.detail.contains(&format!("\"{column}\"")), "{there}: {failure:?}");
            assert!(failure.hint.starts_with("Undo the change"), "{there}: {failure:?}");
        };
        owner.run(&format!("BEGIN; ALTER TABLE queue_internal.{table} {there}"));
        refused(&mut owner);
        owner.run("ROLLBACK");
        use_all(&mut owner);
        client.run("BEGIN; SELECT 1");
        owner.run(&format!("ALTER TABLE queue_internal.{table} {there}"));
        refused(&mut client);
        client.run("ROLLBACK");
        refused(&mut client);
        let told = format!("SELECT FROM queue.doctor() WHERE name = 'tables' AND NOT ok AND detail ~ '\"{column}\"'");
        assert_eq!(client.count(&told), 1);
        owner.run(&format!("ALTER TABLE queue_internal.{table} {back}"));
        use_all(&mut client);
        assert_eq!(client.count("SELECT FROM queue.doctor() WHERE name = 'tables' AND ok"), 1);
    }
    // A dropped column of ours does not come back.
    owner.run("BEGIN; ALTER TABLE queue_internal.claim_0 DROP COLUMN worker");
    assert!(owner.failure("SELECT queue.claim('q')").detail.contains("was dropped"));
    owner.run("ROLLBACK");
    use_all(&mut owner);
}

#[test]
fn the_worker_notices_an_altered_table_and_goes_on_once_it_is_restored() {
    let (cluster, mut client) = Cluster::new().start_with_database("app");
    create(&mut client, "q", "");
    client.run("SELECT queue.enqueue('q', '{}')");
    client.run("SELECT FROM queue.claim('q', lease => '1 second')");
    client.run("ALTER TABLE queue_internal.outcome_0 ADD COLUMN extra text");
    let what = "55000 WARNING:  pg_queue duty \"expire\" failed: table \"queue_internal.outcome_0\" is not as \
        pg_queue created it";
    wait::until_true("the worker notices", || cluster.log().contains(what));
    client.run("ALTER TABLE queue_internal.outcome_0 DROP COLUMN extra");
    wait::until_true("the lease ends", || client.count("SELECT FROM queue.attempts WHERE state = 'timed_out'") == 1);
}
