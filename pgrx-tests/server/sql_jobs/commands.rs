//! Commands: what they are, their outcomes, and what they leave behind.

use crate::security::permissions::{Roles, grant};
use crate::shared::*;

/// A database with a queue `sql` that runs commands, and a role that may do everything with the queue.
struct Bed<'a> {
    client: Client,
    role: String,
    roles: Roles<'a>,
}

impl<'a> Bed<'a> {
    fn new(database: &'a Database, options: &str) -> Self {
        let mut client = database.connect();
        let roles = Roles::new(database);
        let role = roles.make("writer", "");
        create(
            &mut client,
            "sql",
            &format!("{options}{}executor => 'sql', backoff_base => '0', backoff_jitter => 0", comma(options)),
        );
        grant(&mut client, "sql", &role, "manage");
        client.run(&format!(
            "CREATE TABLE t (n integer); GRANT ALL ON t TO {role}; GRANT CREATE ON SCHEMA public TO {role}"
        ));
        Self { client, role, roles }
    }

    /// Enqueues a command as the role, with further arguments of `queue.enqueue_sql`.
    fn enqueue(&mut self, command: &str, more: &str) -> i64 {
        enqueue_as(&mut self.client, &self.role, command, more)
    }

    /// Waits for a job's end. Returns its state, result and error.
    fn end(&mut self, job: i64) -> (String, Option<String>, String) {
        ended(&mut self.client, job)
    }

    /// Runs a command that must succeed. Returns its result.
    fn result(&mut self, command: &str, more: &str) -> String {
        let job = self.enqueue(command, more);
        let (state, result, error) = self.end(job);
        assert_eq!(state, "completed", "{command}: {error}");
        result.unwrap_or_default()
    }

    /// Runs a command that must fail. Returns its error.
    fn error(&mut self, command: &str, more: &str) -> String {
        let comma = comma(more);
        let job = self.enqueue(command, &format!("{more}{comma}max_attempts => 1"));
        let (state, _, error) = self.end(job);
        assert_eq!(state, "dead", "{command}");
        error
    }
}

/// Returns the separator before further arguments if there are any.
fn comma(more: &str) -> &'static str {
    if more.is_empty() { "" } else { ", " }
}

/// Enqueues a command as a role, with further arguments of `queue.enqueue_sql`. Returns its job.
pub fn enqueue_as(client: &mut Client, role: &str, command: &str, more: &str) -> i64 {
    let comma = comma(more);
    client.run(&format!("SET ROLE {role}"));
    let job = client.value(&format!("SELECT queue.enqueue_sql('sql', $sql${command}$sql${comma}{more})"));
    client.run("RESET ROLE");
    job
}

/// Waits for a job's end. Returns its state, result and error.
pub fn ended(client: &mut Client, job: i64) -> (String, Option<String>, String) {
    wait::until(&format!("job {job} has ended"), || {
        let row =
            client.query_one("SELECT state, result::text, coalesce(error, '') FROM queue.job($1)", &[&job]).unwrap();
        let state: String = row.get(0);
        ["completed", "dead", "cancelled", "skipped"].contains(&state.as_str()).then(|| (state, row.get(1), row.get(2)))
    })
}

#[test]
fn a_result_is_that_of_the_last_statement() {
    let database = Database::new();
    let mut bed = Bed::new(&database, "");
    assert_eq!(bed.result("INSERT INTO t SELECT generate_series(1, 7)", ""), r#"{"tag": "INSERT 0 7", "rows": 7}"#);
    assert_eq!(bed.result("SELECT n FROM t", ""), r#"{"tag": "SELECT 7", "rows": 7}"#);
    let some = bed.result("SELECT n FROM t ORDER BY n", "result_rows => 2");
    assert_eq!(some, r#"{"tag": "SELECT 7", "data": [{"n": 1}, {"n": 2}], "rows": 7}"#);
    assert_eq!(bed.result("SELECT '{\"a\": 1.10}'::jsonb", ""), r#"{"a": 1.10}"#);
    assert_eq!(bed.result("SELECT 1; SELECT 'x'; UPDATE t SET n = 0", ""), r#"{"tag": "UPDATE 7", "rows": 7}"#);
    assert_eq!(bed.result("", ""), r#"{"tag": "", "rows": 0}"#);
}

#[test]
fn arguments_are_bound_with_the_types_of_the_parameters() {
    let database = Database::new();
    let mut bed = Bed::new(&database, "");
    let values = r#"'[41, "it''s", null, {"k": [1]}, true, 12345678901234567890.5]'"#;
    let sql = "SELECT $1::integer + 1 AS a, $2 AS b, $3::text AS c, $4::jsonb AS d, $5::boolean AS e, $6::numeric AS f";
    let row = bed.result(sql, &format!("{values}, result_rows => 1"));
    let wanted = r#"{"a": 42, "b": "it's", "c": null, "d": {"k": [1]}, "e": true, "f": 12345678901234567890.5}"#;
    assert_eq!(row, format!(r#"{{"tag": "SELECT 1", "data": [{wanted}], "rows": 1}}"#));
    bed.client.run("INSERT INTO t VALUES (1)");
    bed.result("DELETE FROM t WHERE n = $1", "'[1]'");
    assert_eq!(bed.client.count("SELECT FROM t"), 0, "an argument gets its type from where it stands");
    assert!(bed.error("SELECT $1::text, $2::text", "'[1]'").starts_with("22023: the command has parameters up to $2"));
    assert!(bed.error("SELECT $1::integer", r#"'["x"]'"#).starts_with("22P02: "));
}

#[test]
fn one_statement_is_at_the_top_level_and_several_are_one_transaction() {
    let database = Database::new();
    let mut bed = Bed::new(&database, "");
    let role = bed.role.clone();
    bed.client.run(&format!("ALTER TABLE t OWNER TO {role}"));
    assert_eq!(bed.result("VACUUM t", ""), r#"{"tag": "VACUUM", "rows": 0}"#);
    assert_eq!(bed.result("CREATE INDEX CONCURRENTLY i ON t (n)", ""), r#"{"tag": "CREATE INDEX", "rows": 0}"#);
    assert!(bed.error("SELECT 1; VACUUM t", "").contains("VACUUM cannot"), "in a transaction of several");
    assert!(bed.error("INSERT INTO t VALUES (1); SELECT 1 / 0", "").starts_with("22012: "));
    assert_eq!(bed.client.count("SELECT FROM t"), 0, "nothing of the transaction is left");
    bed.result("INSERT INTO t VALUES (1); VACUUM t; SET work_mem = '1MB'", "autocommit => true");
    assert!(bed.error("INSERT INTO t VALUES (2); SELECT 1 / 0", "autocommit => true").starts_with("22012: "));
    assert_eq!(bed.client.column::<i32>("SELECT n FROM t ORDER BY n"), [1, 2], "each was a transaction");
    for refused in ["BEGIN", "COMMIT", "SAVEPOINT s", "SELECT 1; ROLLBACK", "PREPARE TRANSACTION 'x'"] {
        assert!(bed.error(refused, "").starts_with("2D000: "), "{refused}");
    }
    for refused in ["COPY t TO STDOUT", "COPY t FROM STDIN"] {
        assert!(bed.error(refused, "").starts_with("0A000: "), "{refused}");
    }
}

#[test]
fn a_procedure_may_commit_and_what_it_has_committed_stays() {
    let database = Database::new();
    let mut bed = Bed::new(&database, "");
    bed.client.run(
        "CREATE PROCEDURE p(most integer, INOUT j jsonb DEFAULT NULL) LANGUAGE plpgsql AS $$
         BEGIN
             FOR n IN 1..1000 LOOP
                 INSERT INTO t VALUES (n);
                 COMMIT;
                 IF n = most THEN PERFORM 1 / 0; END IF;
             END LOOP;
             j := '{\"done\": true}';
         END $$",
    );
    assert_eq!(bed.result("CALL p(0)", ""), r#"{"done": true}"#);
    assert_eq!(bed.client.count("SELECT FROM t"), 1000);
    assert!(bed.error("CALL p(3)", "").starts_with("22012: "));
    assert_eq!(bed.client.count("SELECT FROM t"), 1003);
}

#[test]
fn the_last_notices_of_a_command_are_kept() {
    let database = Database::new();
    let mut bed = Bed::new(&database, "");
    let job = bed.enqueue(
        "DO $$ BEGIN FOR n IN 1..20000 LOOP RAISE NOTICE 'number % %', n, repeat('x', 500); END LOOP; END $$",
        "",
    );
    assert_eq!(bed.end(job).0, "completed");
    let notices: Vec<String> = bed
        .client
        .column(&format!("SELECT left(jsonb_array_elements_text(progress -> 'notices'), 20) FROM queue.job({job})"));
    assert_eq!(notices.len(), 20);
    assert_eq!(notices[19], "NOTICE: number 20000");
}

#[test]
fn nothing_of_a_job_is_left_for_the_next() {
    let database = Database::new();
    let mut bed = Bed::new(&database, "max_running => 1");
    bed.result(
        "CREATE TEMP TABLE x (a integer); PREPARE pp AS SELECT 1; SET search_path = pg_catalog; SET work_mem = '1MB';
         SELECT pg_advisory_lock(7), set_config('my.secret', 'x', false)",
        "autocommit => true",
    );
    let left = bed.result(
        "SELECT jsonb_build_array(to_regclass('pg_temp.x'), (SELECT count(*) FROM pg_prepared_statements),
             current_setting('search_path'), current_setting('work_mem'),
             (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'),
             coalesce(current_setting('my.secret', true), ''),
             current_setting('application_name'))",
        "",
    );
    assert_eq!(left, r#"[null, 0, "\"$user\", public", "4MB", 0, "", "pg_queue sql"]"#);
}

#[test]
fn settings_are_those_of_the_role_then_the_queue_then_the_job() {
    let database = Database::new();
    let mut bed = Bed::new(&database, r#"settings => '{"work_mem": "2MB", "statement_timeout": 12345}'"#);
    let role = bed.role.clone();
    bed.client.run(&format!("ALTER ROLE {role} SET work_mem = '1MB'; ALTER ROLE {role} SET lock_timeout = 77"));
    let show = "SELECT jsonb_build_array(current_setting('work_mem'), current_setting('lock_timeout'), \
        current_setting('statement_timeout'))";
    assert_eq!(bed.result(show, ""), r#"["2MB", "77ms", "12345ms"]"#);
    assert_eq!(bed.result(show, r#"settings => '{"work_mem": "3MB"}'"#), r#"["3MB", "77ms", "12345ms"]"#);
    assert!(bed.error("SELECT 1", r#"settings => '{"log_statement": "all"}'"#).starts_with("42501: "));
    assert!(bed.error("SELECT pg_sleep(60)", r#"settings => '{"statement_timeout": 10}'"#).starts_with("57014: "));
    bed.client.run(&format!("SET ROLE {role}"));
    bed.client.refused(r#"SELECT queue.enqueue_sql('sql', 'SELECT 1', settings => '{"no_such": 1}')"#, "22023");
}

#[test]
fn a_command_is_parsed_when_it_is_enqueued() {
    let database = Database::new();
    let mut bed = Bed::new(&database, "");
    create(&mut bed.client, "plain", "");
    let role = bed.role.clone();
    bed.client.run(&format!("SELECT queue.grant('plain', '{role}', 'manage'); SET ROLE {role}"));
    for (sql, code) in [
        ("queue.enqueue_sql('sql', 'SELEC 1')", "42601"),
        ("queue.enqueue_sql('sql', NULL)", "22004"),
        ("queue.enqueue_sql('plain', 'SELECT 1')", "55000"),
        ("queue.enqueue_sql('sql', 'SELECT 1; SELECT 2', '[1]')", "22023"),
        ("queue.enqueue_sql('sql', 'SELECT 1', '{}')", "22023"),
        ("queue.enqueue_sql('sql', 'SELECT 1', result_rows => 10001)", "22023"),
        ("queue.alter('sql', executor => 'other')", "22023"),
        ("queue.alter('sql', run_as => 'postgres')", "22023"),
        ("queue.alter('plain', settings => '{}')", "22023"),
        ("queue.alter('plain', executor => 'call')", "22023"),
        ("queue.alter('plain', executor => 'call', procedure => 'no_such', run_as => 'postgres')", "42883"),
        ("queue.alter('plain', executor => 'call', procedure => 'jsonb_typeof', run_as => 'postgres')", "42501"),
        ("queue.alter('plain', executor => 'call', procedure => 'jsonb_typeof', run_as => 'no_such')", "42704"),
    ] {
        bed.client.refused(&format!("SELECT {sql}"), code);
    }
    for claim in
        ["SELECT * FROM queue.claim('sql')", "CALL queue.wait('sql')", "SELECT * FROM queue.claim_any('{plain,sql}')"]
    {
        bed.client.refused(claim, "55000");
    }
    // Arguments beside a command are checked in the same way in a batch, a flow and a schedule.
    for (beside, message) in [
        (r#""command": "SELEC 1""#, "syntax error"),
        (r#""command": 1"#, "field \"command\" must be a string"),
        (r#""command": "SELECT 1", "payload": 1"#, "the payload of a command must be an object"),
        (
            r#""command": "SELECT 1", "payload": {"argument": [1]}"#,
            "unknown field \"argument\" in the payload of a command",
        ),
        (r#""command": "SELECT 1", "payload": {"arguments": 1}"#, "arguments must be a JSON array"),
        (
            r#""command": "SELECT 1; SELECT 2", "payload": {"arguments": [1]}"#,
            "arguments need a command of one statement",
        ),
        (
            r#""command": "SELECT 1", "payload": {"autocommit": 1}"#,
            "field \"autocommit\" of the payload must be a boolean",
        ),
        (
            r#""command": "SELECT 1", "payload": {"result_rows": "1"}"#,
            "field \"result_rows\" of the payload must be an integer",
        ),
        (r#""command": "SELECT 1", "payload": {"result_rows": 10001}"#, "result_rows must be between 0 and 10000"),
        (r#""command": "SELECT 1", "payload": {"settings": {"no_such": 1}}"#, "there is no setting \"no_such\""),
        (r#""command": "SELECT 1", "payload": {"settings": {"work_mem": [1]}}"#, "settings must be a JSON object"),
    ] {
        for call in [
            format!("queue.enqueue_batch('sql', '[{{{beside}}}]')"),
            format!("queue.enqueue_flow('sql', '[{{{beside}}}]')"),
        ] {
            let failure = bed.client.failure(&format!("SELECT {call}"));
            assert!(["22023", "42601"].contains(&failure.code.as_str()), "{call}: {failure:?}");
            assert!(failure.message.contains(message), "{call}: {failure:?}");
        }
    }
    for (call, code) in [
        ("queue.enqueue_flow('sql', command => 'SELECT 1')", "22023"),
        ("queue.enqueue_flow('plain', command => 'SELECT 1', runs => true)", "55000"),
        ("queue.schedule('s', 'plain', command => 'SELECT 1', every => '1 hour')", "55000"),
        ("queue.schedule('s', 'sql', command => 'SELEC 1', every => '1 hour')", "42601"),
        (r#"queue.enqueue_batch('plain', '[{"command": "SELECT 1"}]')"#, "55000"),
    ] {
        bed.client.refused(&format!("SELECT {call}"), code);
    }
    let deep = format!("'[{}{}]'", "[".repeat(500), "]".repeat(500));
    let arguments =
        format!("SELECT queue.enqueue_sql('sql', 'SELECT jsonb_typeof($1::jsonb)', {deep}, result_rows => 1)");
    let job: i64 = bed.client.value(&arguments);
    let (state, result, error) = bed.end(job);
    assert_eq!(state, "completed", "{error}");
    assert!(result.unwrap_or_default().contains("array"));
    let flow: i64 = bed.client.value(
        r#"SELECT queue.enqueue_flow('sql',
            '[{"command": "INSERT INTO t VALUES ($1)", "payload": {"arguments": [41]}}]',
               runs => true, command => 'INSERT INTO t SELECT n + $1 FROM t', payload => '{"arguments": [1]}')"#,
    );
    assert_eq!(bed.end(flow).0, "completed");
    assert_eq!(bed.client.column::<i32>("SELECT n FROM t ORDER BY n"), [41, 42]);
}

#[test]
fn a_payload_is_handed_to_the_queue_s_procedure_as_its_role() {
    let database = Database::new();
    let mut bed = Bed::new(&database, "");
    let app = bed.roles.make("app", "");
    bed.client.run(&format!(
        "CREATE TABLE calls (who text, session text, payload jsonb); GRANT INSERT ON calls TO {app};
         CREATE PROCEDURE handle(INOUT job jsonb) LANGUAGE plpgsql AS $$
         BEGIN INSERT INTO calls VALUES (current_user, session_user, job); job := job || '{{\"ok\": true}}'; END $$;
         CREATE FUNCTION look(job jsonb) RETURNS void LANGUAGE sql AS $$ INSERT INTO calls
         VALUES (current_user, session_user, job) $$"
    ));
    create(&mut bed.client, "call", &format!("executor => 'call', procedure => 'handle', run_as => '{app}'"));
    create(&mut bed.client, "look", &format!("executor => 'call', procedure => 'public.look', run_as => '{app}'"));
    grant(&mut bed.client, "call", &bed.role, "produce");
    bed.client.run(&format!("SET ROLE {}", bed.role));
    let job: i64 = bed.client.value("SELECT queue.enqueue('call', '{\"id\": 7}')");
    bed.client.run("RESET ROLE");
    assert_eq!(bed.end(job).1.as_deref(), Some(r#"{"id": 7, "ok": true}"#));
    let job: i64 = bed.client.value("SELECT queue.enqueue('look', '{\"id\": 8}')");
    assert_eq!(bed.end(job).0, "completed");
    let calls: Vec<String> =
        bed.client.column("SELECT concat_ws(' ', who, session, payload) FROM calls ORDER BY payload");
    assert_eq!(calls, [format!("{app} {app} {{\"id\": 7}}"), format!("{app} {app} {{\"id\": 8}}")]);
    // The name is stored with its schema, so no search_path changes its meaning.
    let found = bed.client.column::<String>("SELECT procedure FROM queue.queues WHERE queue_name = 'call'");
    assert_eq!(found, ["\"public\".\"handle\""]);
    // A role that manages the queue does not get the rights of the queue's role in this way.
    grant(&mut bed.client, "call", &bed.role, "manage");
    bed.client.run(&format!("SET ROLE {}", bed.role));
    bed.client.refused("SELECT queue.alter('call', procedure => 'look')", "42501");
}

#[test]
fn a_cancelled_command_stops_immediately_at_any_point() {
    let database = Database::new();
    let mut bed = Bed::new(&database, "lease => '1 hour'");
    let mut other = database.connect();
    other.run("BEGIN; LOCK TABLE t");
    for command in [
        "SELECT pg_sleep(600)",
        "INSERT INTO t VALUES (1)",
        "SELECT count(*) FROM generate_series(1, 1000000) AS a, generate_series(1, 1000000) AS b",
    ] {
        let job = bed.enqueue(command, "");
        wait::until_true("it runs", || {
            bed.client.count(&format!("SELECT FROM queue.executors WHERE job_id = {job}")) == 1
        });
        let asked: String = bed.client.value(&format!("SELECT queue.cancel({job}, 'enough')"));
        assert_eq!(asked, "cancelling");
        let (state, _, error) = bed.end(job);
        assert_eq!((state.as_str(), error.as_str()), ("cancelled", "enough"), "{command}");
    }
    other.run("ROLLBACK");
    assert_eq!(bed.result("SELECT 1", ""), r#"{"tag": "SELECT 1", "rows": 1}"#, "the process is as good as before");
    // A forced cancel ends the job before its process knows.
    let job = bed.enqueue("SELECT pg_sleep(600)", "");
    wait::until_true("it runs", || bed.client.count(&format!("SELECT FROM queue.executors WHERE job_id = {job}")) == 1);
    assert_eq!(bed.client.value::<String>(&format!("SELECT queue.cancel({job}, force => true)")), "cancelled");
    wait::until_true("it is stopped", || {
        bed.client.count(
            "SELECT FROM pg_stat_activity WHERE query LIKE '%pg_sleep(600)' AND state = 'active' \
            AND backend_type = 'pg_queue executor'",
        ) == 0
    });
}

#[test]
fn a_command_may_run_as_long_as_its_lease() {
    let database = Database::new();
    let mut bed = Bed::new(&database, "lease => '1 s', max_attempts => 2");
    let job = bed.enqueue("INSERT INTO t VALUES (1); SELECT pg_sleep(600)", "");
    let (state, _, error) = bed.end(job);
    assert_eq!((state.as_str(), error.as_str()), ("dead", "the lease expired"));
    let attempts: Vec<String> =
        bed.client.column(&format!("SELECT state FROM queue.job_attempts({job}) ORDER BY attempt"));
    assert_eq!(attempts, ["timed_out", "timed_out"]);
    assert_eq!(bed.client.count("SELECT FROM t"), 0, "its transaction was rolled back");
    assert_eq!(bed.result("SELECT 1", ""), r#"{"tag": "SELECT 1", "rows": 1}"#);
}

#[test]
fn a_command_knows_its_job_and_may_end_it_itself() {
    let database = Database::new();
    let mut bed = Bed::new(&database, "");
    let job = bed.enqueue(
        "SELECT jsonb_build_object('id', job_id, 'payload', payload -> 'autocommit') FROM queue.current_job()",
        "autocommit => true",
    );
    assert_eq!(bed.end(job).1, Some(format!(r#"{{"id": {job}, "payload": true}}"#)));
    let job = bed.enqueue(
        "SELECT queue.progress(id, '\"half\"') FROM queue.current_job(); INSERT INTO t VALUES (1);
         SELECT queue.fail(id, 'as it says', fatal => true) FROM queue.current_job()",
        "",
    );
    let (state, _, error) = bed.end(job);
    assert_eq!((state.as_str(), error.as_str()), ("dead", "as it says"));
    assert_eq!(bed.client.count("SELECT FROM t"), 1, "its transaction has committed");
    assert_eq!(bed.client.value::<String>(&format!("SELECT progress::text FROM queue.job({job})")), "\"half\"");
    assert_eq!(bed.client.count("SELECT FROM queue.current_job()"), 0, "here no job runs");
    // Changes in a transaction after the job's end have no effect.
    let job = bed.enqueue(
        "SELECT queue.complete(id, '\"by itself\"') FROM queue.current_job(); INSERT INTO t VALUES (2)",
        "autocommit => true",
    );
    assert_eq!(bed.end(job).1.as_deref(), Some("\"by itself\""));
    assert_eq!(bed.result("SELECT 1", ""), r#"{"tag": "SELECT 1", "rows": 1}"#, "the process has come to the next");
    assert_eq!(bed.client.count("SELECT FROM t WHERE n = 2"), 0);
}

#[test]
fn a_command_goes_on_to_the_next_stage_by_itself() {
    let database = Database::new();
    let mut bed = Bed::new(&database, "stages => '{fetch, store}', max_attempts => 2");
    bed.client.run("CREATE TABLE went (stage text, attempt integer); GRANT ALL ON went TO public");
    let job = bed.enqueue("INSERT INTO went SELECT stage, attempt FROM queue.current_job()", "stage => 'fetch'");
    let (state, result, error) = bed.end(job);
    assert_eq!(
        (state.as_str(), result.as_deref()),
        ("completed", Some(r#"{"tag": "INSERT 0 1", "rows": 1}"#)),
        "{error}"
    );
    assert_eq!(bed.client.column::<String>("SELECT stage || attempt FROM went ORDER BY ctid"), ["fetch1", "store1"]);
    // A failed job stays in its stage.
    let job = bed.enqueue("SELECT 1 / 0", "stage => 'fetch'");
    let (state, _, error) = bed.end(job);
    assert!(state == "dead" && error.starts_with("22012: "), "{state} {error}");
    // A skip ends the job in its present stage.
    let skip = bed.enqueue(
        "SELECT queue.advance(id, 'store') FROM queue.current_job() WHERE stage = 'fetch'; SELECT 7 AS n",
        "stage => 'fetch'",
    );
    assert_eq!(bed.end(skip).1.as_deref(), Some(r#"{"tag": "SELECT 1", "rows": 1}"#));
}

#[test]
fn jobs_that_are_looked_at_but_not_started_do_not_count_for_the_rate() {
    let database = Database::new();
    let mut bed =
        Bed::new(&database, "rate_limit => 6, rate_period => '1 hour', max_running_per_group => 1, max_running => 1");
    let other = bed.roles.make("other", "");
    grant(&mut bed.client, "sql", &other, "produce");
    bed.client.run("SELECT queue.pause('sql')");
    let mut jobs = Vec::new();
    for n in 0..6 {
        bed.client.run(&format!("SET ROLE {}", if n % 2 == 0 { &bed.role } else { &other }));
        jobs.push(bed.client.value(&format!("SELECT queue.enqueue_sql('sql', 'SELECT {n}', group_key => 'g{n}')")));
        bed.client.run("RESET ROLE");
    }
    bed.client.run("SELECT queue.resume('sql')");
    for job in jobs {
        assert_eq!(bed.end(job).0, "completed");
    }
}

#[test]
fn an_error_says_where_in_the_command_it_is() {
    let database = Database::new();
    let mut bed = Bed::new(&database, "");
    let error = bed.error("SELECT 1; SELECT nowhere FROM t", "");
    assert!(error.starts_with("42703: ") && error.contains("At character 18 of the command."), "{error}");
    let error = bed.error("SELECT 1; SELECT 1 / 0; SELECT 2", "");
    assert!(error.starts_with("22012: ") && error.contains("In statement 2 of 3."), "{error}");
    let error = bed.error("SELECT 1 / 0", "");
    assert_eq!(error, "22012: division by zero");
    bed.client.run(&format!("SET ROLE {}", bed.role));
    let failure = bed.client.failure("SELECT queue.enqueue_sql('sql', 'SELECT 1; SELEC 2')");
    assert_eq!((failure.code.as_str(), failure.detail.as_str()), ("42601", "At character 11 of the command."));
}

#[test]
fn an_error_that_comes_at_commit_undoes_the_outcome() {
    let database = Database::new();
    let mut bed = Bed::new(&database, "");
    bed.client.run(
        "CREATE TABLE parent (id integer PRIMARY KEY);
         CREATE TABLE child (id integer REFERENCES parent DEFERRABLE INITIALLY DEFERRED); GRANT ALL ON parent,
         child TO public",
    );
    assert!(bed.error("INSERT INTO child VALUES (1)", "").starts_with("23503: "));
    assert_eq!(bed.client.count("SELECT FROM child"), 0);
}

#[test]
fn schedules_chains_limits_and_dead_letters_work_for_commands() {
    let database = Database::new();
    create(&mut database.connect(), "graves", "executor => 'sql', max_attempts => 1");
    let mut bed = Bed::new(&database, "max_running_per_group => 1, max_attempts => 1, dead_letter => 'graves'");
    let role = bed.role.clone();
    bed.client.run(&format!("SELECT queue.grant('graves', '{role}', 'observe'); SET ROLE {role}"));
    bed.client.run("SELECT queue.schedule('soon', 'sql', command => 'INSERT INTO t VALUES (1)', every => '100 ms')");
    wait::until_true("it has fired", || bed.client.count("SELECT FROM t WHERE n = 1") > 1);
    bed.client.run("SELECT queue.unschedule('soon')");
    let first: i64 = bed.client.value("SELECT queue.enqueue_sql('sql', 'INSERT INTO t VALUES (2)', group_key => 'g')");
    let second: i64 = bed.client.value(&format!(
        "SELECT queue.enqueue_sql('sql', 'INSERT INTO t SELECT 3 FROM t WHERE n = 2', after => ARRAY[{first}], \
            group_key => 'g')"
    ));
    assert_eq!(bed.end(second).1.as_deref(), Some(r#"{"tag": "INSERT 0 1", "rows": 1}"#));
    let flow: i64 = bed.client.value(
        "SELECT queue.enqueue_flow('sql', '[
             {\"task\": \"load\", \"command\": \"INSERT INTO t VALUES (4)\"},
             {\"task\": \"sum\", \"after\": [\"load\"], \"command\": \"INSERT INTO t SELECT 5 FROM t WHERE n = 4\"}]')",
    );
    assert_eq!(bed.end(flow).0, "completed");
    assert_eq!(bed.client.count("SELECT FROM t WHERE n = 5"), 1, "its members have run in their order");
    let fails: i64 = bed.client.value("SELECT queue.enqueue_sql('sql', 'INSERT INTO t VALUES (1 / 0)')");
    assert_eq!(bed.end(fails).0, "dead");
    bed.client.run("RESET ROLE");
    let copy: i64 = wait::until("its copy is there", || {
        bed.client.column("SELECT job_id FROM queue.jobs WHERE queue_name = 'graves'").first().copied()
    });
    let (state, _, error) = bed.end(copy);
    assert_eq!(state, "dead");
    assert!(error.starts_with("22023: the job is no command"), "{error}");
}

#[test]
fn without_a_free_process_jobs_wait() {
    let (cluster, mut client) =
        Cluster::with(&["max_worker_processes = 4", "pg_queue.max_executors = 4"]).start_with_database("app");
    client.run("CREATE ROLE writer LOGIN; CREATE TABLE t (n integer); GRANT ALL ON t TO public");
    create(&mut client, "sql", "executor => 'sql'");
    grant(&mut client, "sql", "writer", "produce");
    // The launchers and the worker take three of the four slots. The worker of the other database takes the last one.
    let mut other = cluster.create_database("other");
    wait::until_true("all slots are taken", || {
        other.count("SELECT FROM pg_stat_activity WHERE backend_type = 'pg_queue worker'") == 2
    });
    client.run("SET ROLE writer");
    client
        .run("SELECT queue.enqueue_sql('sql', 'INSERT INTO t VALUES (' || n || ')') FROM generate_series(1, 50) AS n");
    client.run("RESET ROLE; SET pg_queue.patience = 1");
    wait::until_true("the doctor says so", || {
        client.count(
            "SELECT FROM queue.doctor() WHERE name = 'executors' AND NOT ok AND hint LIKE '%max_worker_processes%'",
        ) == 1
    });
    assert_eq!(client.count("SELECT FROM queue.jobs WHERE state = 'ready' AND attempt = 1"), 50);
    other.run("DROP EXTENSION pg_queue");
    wait::within("they have run", 3 * wait::DEFAULT_LIMIT, || (client.count("SELECT FROM t") == 50).then_some(()));
    assert_eq!(client.column::<i32>("SELECT n FROM t ORDER BY ctid"), (1..=50).collect::<Vec<_>>(), "in order");
    assert_eq!(client.count("SELECT FROM queue.attempts WHERE attempt > 1"), 0);
}
