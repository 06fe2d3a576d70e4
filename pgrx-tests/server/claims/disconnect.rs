//! `disconnect`: what happens to claimed jobs when the claim's connection ends.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};

use super::waiting::Sleeper;
use crate::shared::*;

/// A connected psql. When it is killed, the kernel closes its socket: the server gets no goodbye.
struct Psql {
    process: Child,
    /// The server process of the connection.
    pid: i32,
}

impl Psql {
    /// Runs the statements. Returns when they have run.
    fn run(sql: &str) -> Self {
        let mut command = server().command("psql");
        command.args(["-XAtq", "-v", "ON_ERROR_STOP=1", "-d", "app"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("psql");
        let input = process.stdin.as_mut().expect("its input");
        writeln!(input, "{sql};\nSELECT 'pid', pg_backend_pid();").expect("psql reads");
        let output = BufReader::new(process.stdout.as_mut().expect("its output"));
        let pid = output.lines().map_while(Result::ok).find_map(|line| line.strip_prefix("pid|")?.parse().ok());
        Self { process, pid: pid.expect("the statements have run") }
    }

    /// Kills psql with SIGKILL. Returns when the server's process has ended.
    fn kill(mut self) {
        self.process.kill().expect("it runs");
        self.process.wait().expect("it has ended");
        gone(self.pid);
    }
}

fn gone(pid: i32) {
    let mut client = connect();
    wait::until_true("the connection has ended", || {
        client.count(&format!("SELECT FROM pg_stat_activity WHERE pid = {pid}")) == 0
    });
}

fn say_goodbye(mut client: Client) {
    let pid = client.pid();
    drop(client);
    gone(pid);
}

fn terminate(mut client: Client) {
    let pid = client.pid();
    assert!(connect().value::<bool>(&format!("SELECT pg_terminate_backend({pid}, 10000)")));
    gone(pid);
}

#[test]
fn a_span_of_zero_gives_jobs_back_however_the_connection_ends() {
    let (mut client, q) = queue("");
    let endings: [fn(Client); 2] = [say_goodbye, terminate];
    for ending in endings {
        let (job, kept) = (client.enqueue(&q), client.enqueue(&q));
        let mut other = connect();
        let own: i64 = other.value(&format!("SELECT id FROM queue.claim('{q}', disconnect => '0')"));
        let other_own = other.claim(&q);
        let sleeper = Sleeper::claiming(&q);
        ending(other);
        client.maintain_until(&format!("(SELECT state = 'running' AND attempt = 2 FROM queue.job({job}))"));
        let next = sleeper.claimed();
        client.refused(&format!("SELECT queue.complete({own})"), "QJ001");
        let error: String = client.value(&format!("SELECT error FROM queue.job({job})"));
        assert_eq!(error, "the connection of the worker ended");
        assert_eq!(client.state(kept), "running");
        client.run(&format!("SELECT queue.complete_many(ARRAY[{next}, {other_own}])"));
    }
}

#[test]
fn an_ended_job_is_not_given_back() {
    let (mut client, q) = queue("");
    let job = client.enqueue(&q);
    let mut other = connect();
    let id: i64 = other.value(&format!("SELECT id FROM queue.claim('{q}', disconnect => '0')"));
    other.run(&format!("SELECT queue.complete({id})"));
    // The rollback alone offers the job again, with the same attempt number.
    let second = client.enqueue(&q);
    other.run(&format!("BEGIN; SELECT FROM queue.claim('{q}', disconnect => '0'); ROLLBACK"));
    say_goodbye(other);
    client.run("SELECT FROM queue.maintain()");
    assert_eq!(client.state(job), "completed");
    let attempt: i32 = client.value(&format!("SELECT attempt FROM queue.claim('{q}')"));
    assert_eq!(attempt, 1);
    assert_eq!(client.state(second), "running");
}

/// Ways in which a connection breaks after it has run some statements.
const BREAKS: [fn(&str); 3] = [
    |sql| Psql::run(sql).kill(),
    |sql| {
        let mut client = connect();
        client.run(sql);
        terminate(client);
    },
    // Postgres ends the connection itself.
    |sql| {
        let mut client = connect();
        let pid = client.pid();
        client.run(&format!("{sql}; SET idle_session_timeout = '10 ms'"));
        gone(pid);
    },
];

#[test]
fn the_jobs_of_a_broken_connection_run_again_after_the_span() {
    let (mut client, q) = queue("lease => '1 hour'");
    for (n, break_after) in BREAKS.iter().enumerate() {
        let job = client.enqueue(&q);
        break_after(&format!("SELECT FROM queue.claim('{q}', disconnect => '700 ms')"));
        let id = Sleeper::claiming(&q).claimed();
        client.run(&format!("SELECT queue.complete({id})"));
        let ends = "SELECT concat_ws(', ', state, error, finished_at - claimed_at >= '0.7 s')";
        let ends: Vec<String> = client.column(&format!("{ends} FROM queue.job_attempts({job}) ORDER BY attempt"));
        assert_eq!(ends[0], "timed_out, the connection of the worker ended, t", "{n}");
        assert!(ends[1].starts_with("completed"), "{n}: {ends:?}");
    }
}

#[test]
fn a_call_that_sleeps_ends_when_its_client_is_killed() {
    let (mut client, q) = queue("lease => '1 hour'");
    let job = client.enqueue(&q);
    let later: i64 = client.value(&format!("SELECT queue.enqueue('{q}', delay => '1 hour')"));
    let pause = format!("SELECT FROM queue.claim('{q}', disconnect => '700 ms')");
    for sleep in [
        format!("SELECT FROM queue.claim('{q}', wait => '1 hour')"),
        format!("SELECT FROM queue.claim('{q}', max_jobs => 2, wait => '1 hour', linger => '1 hour')"),
        format!("CALL queue.wait('{q}', '1 hour')"),
        format!("CALL queue.await({later}, '1 hour')"),
    ] {
        let mut psql = Psql::run(&format!("SET pg_queue.max_wait = '1h'; {pause}"));
        writeln!(psql.process.stdin.as_mut().expect("its input"), "{sleep};").expect("psql reads");
        wait::until_true("it sleeps", || {
            let asleep = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Extension' AND state = 'active'";
            client.count(&format!("{asleep} AND pid = {}", psql.pid)) == 1
        });
        // The job of its earlier claim runs again after the span, not after the sleep.
        psql.kill();
        let id = Sleeper::claiming(&q).claimed();
        client.run(&format!("SELECT queue.release({id})"));
        assert_eq!(client.state(job), "ready", "{sleep}");
    }
}

#[test]
fn a_goodbye_changes_no_lease_unless_the_span_is_zero() {
    let (mut client, q) = queue("lease => '1 hour'");
    for span in ["NULL", "'100 ms'"] {
        let job = client.enqueue(&q);
        let mut other = connect();
        other.run(&format!("SELECT FROM queue.claim('{q}', disconnect => {span})"));
        say_goodbye(other);
        assert!(lease_left_of_job(&mut client, job) > 3500.0, "{span}");
    }
    let job = client.enqueue(&q);
    BREAKS[0](&format!("SELECT FROM queue.claim('{q}')"));
    assert!(lease_left_of_job(&mut client, job) > 3500.0, "without a span");
}

#[test]
fn an_extension_after_the_break_keeps_the_job_and_one_before_it_does_not() {
    let (mut client, q) = queue("lease => '1 hour'");
    for verb in ["extend(id)", "extend_many(ARRAY[id])"] {
        let job = client.enqueue(&q);
        let extend = format!("SELECT queue.{verb} FROM queue.attempts WHERE job_id = {job}");
        let mut other = connect();
        other.run(&format!("SELECT FROM queue.claim('{q}', disconnect => '40 s')"));
        client.run(&extend);
        terminate(other);
        let left = lease_left_of_job(&mut client, job);
        assert!((1.0..=40.0).contains(&left), "{verb}: {left}");
        client.run(&extend);
        assert!(lease_left_of_job(&mut client, job) > 3500.0, "{verb}");
    }
    // A kept job does not depend on the connection any more. Only its lease can end it.
    let job = client.enqueue(&q);
    let mut other = connect();
    other.run(&format!("SELECT FROM queue.claim('{q}', disconnect => '40 s')"));
    terminate(other);
    client.run(&format!("SELECT queue.extend(id, '1 ms') FROM queue.attempts WHERE job_id = {job}"));
    client.maintain_until(&format!("(SELECT error IS NOT DISTINCT FROM 'the lease expired' FROM queue.job({job}))"));
}

#[test]
fn every_kind_of_claim_has_a_span() {
    let (mut client, q) = queue("lease => '1 hour'");
    let (_, groups) = queue("lease => '1 hour', max_running_per_group => 2");
    for claim in [
        format!("queue.claim('{q}', 3, disconnect => '40 s')"),
        format!("queue.claim_any('{{{q}}}', 3, disconnect => '40 s')"),
        format!("queue.claim('{q}', 3, wait => '10 s', linger => '100 ms', disconnect => '40 s')"),
        format!("queue.claim('{groups}', 3, disconnect => '40 s')"),
    ] {
        let name = if claim.contains(&groups) { &groups } else { &q };
        let enqueue = format!("SELECT queue.enqueue('{name}', group_key => n::text) FROM generate_series(1, 3) AS n");
        let jobs: Vec<i64> = client.column(&enqueue);
        let mut other = connect();
        assert_eq!(other.count(&format!("SELECT FROM {claim}")), 3, "{claim}");
        terminate(other);
        for job in jobs {
            assert!(lease_left_of_job(&mut client, job) < 40.1, "{claim}");
        }
    }
}

#[test]
fn a_claim_that_has_slept_has_a_span() {
    let (mut client, q) = queue("lease => '1 hour'");
    let job: i64 = client.value(&format!("SELECT queue.enqueue('{q}', delay => '500 ms')"));
    BREAKS[0](&format!("SELECT FROM queue.claim('{q}', wait => '10 s', disconnect => '40 s')"));
    assert!(lease_left_of_job(&mut client, job) < 40.1);
}

#[test]
fn a_span_lengthens_no_lease() {
    let (mut client, q) = queue("lease => '30 s'");
    let job = client.enqueue(&q);
    let mut other = connect();
    other.run(&format!("SELECT FROM queue.claim('{q}', disconnect => '20 days')"));
    terminate(other);
    assert!(lease_left_of_job(&mut client, job) < 30.1);
    let job = client.enqueue(&q);
    let mut other = connect();
    other.run(&format!("SELECT FROM queue.claim('{q}', lease => '1 ms', disconnect => '20 days')"));
    terminate(other);
    client.maintain_until(&format!("(SELECT error IS NOT DISTINCT FROM 'the lease expired' FROM queue.job({job}))"));
}

#[test]
fn a_rolled_back_claim_has_no_span_and_each_claim_has_its_own() {
    let (mut client, q) = queue("lease => '1 hour'");
    let jobs: Vec<i64> = (0..4).map(|_| client.enqueue(&q)).collect();
    let claim = |span: &str| format!("SELECT FROM queue.claim('{q}', disconnect => {span})");
    let mut other = connect();
    other.run(&format!(
        "BEGIN; {}; SAVEPOINT s; {}; ROLLBACK TO s; {}; COMMIT; {}",
        claim("'40 s'"),
        claim("'0'"),
        claim("NULL"),
        claim("'80 s'")
    ));
    let mut open = connect();
    open.run(&format!("BEGIN; {}", claim("'40 s'")));
    terminate(open);
    assert_eq!(client.state(jobs[3]), "ready");
    terminate(other);
    let left: Vec<f64> = jobs[..3].iter().map(|&job| lease_left_of_job(&mut client, job)).collect();
    assert!(left[0] < 40.1 && left[1] > 3500.0 && (40.1..80.1).contains(&left[2]), "{left:?}");
    // A later connection does not change these jobs, although it may have the same number.
    let mut later = connect();
    let job = later.enqueue(&q);
    later.run(&format!("{}; {}", claim("'1 s'"), claim("'1 s'")));
    terminate(later);
    assert!(lease_left_of_job(&mut client, job) < 1.1 || client.state(job) != "running");
    assert!(lease_left_of_job(&mut client, jobs[1]) > 3500.0);
}

#[test]
fn the_session_of_a_command_ends_like_that_of_a_client() {
    let (database, mut client) = Database::new().with_queue("q", "lease => '1 hour'");
    create(&mut client, "sql", "executor => 'sql'");
    let role = format!("claims_in_{}", database.name);
    client.run(&format!("CREATE ROLE {role} LOGIN; SELECT queue.grant('q', '{role}', 'consume')"));
    client.run(&format!("SELECT queue.grant('sql', '{role}', 'produce')"));
    let job = client.enqueue("q");
    let command = "SELECT FROM queue.claim(''q'', disconnect => ''40 s'')";
    client.run(&format!("SET ROLE {role}"));
    let call: i64 = client.value(&format!("SELECT queue.enqueue_sql('sql', '{command}')"));
    client.run("RESET ROLE");
    wait::until_true("the command has run", || client.state(call) == "completed");
    assert!(lease_left_of_job(&mut client, job) > 3500.0);
    // A process that is asked to end ends in order, which counts as a goodbye.
    let processes =
        format!("FROM pg_stat_activity WHERE backend_type LIKE 'pg_queue executor%' AND datname = '{}'", database.name);
    wait::until_true("the process has ended", || {
        client.run(&format!("SELECT pg_terminate_backend(pid) {processes}"));
        client.count(&format!("SELECT {processes}")) == 0
    });
    assert!(lease_left_of_job(&mut client, job) > 3500.0);
}

#[test]
fn a_span_must_be_between_zero_and_thirty_days() {
    let (mut client, q) = queue("");
    for span in ["-1 s", "31 days", "1000 years"] {
        let failure = client.refused(&format!("SELECT FROM queue.claim('{q}', disconnect => '{span}')"), "22023");
        assert_eq!(failure.message, "disconnect must be between 0 and 30 days");
        assert!(failure.detail.starts_with("It is ") && failure.hint.starts_with("NULL"), "{failure:?}");
    }
    if client.value("SELECT current_setting('server_version_num')::integer >= 170000") {
        client.refused(&format!("SELECT FROM queue.claim('{q}', disconnect => 'infinity')"), "22023");
    }
}
