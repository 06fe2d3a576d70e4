//! `CALL queue.await`: what wakes it, what it returns, which locks it holds, and which calls it refuses.

use std::thread::JoinHandle;

use crate::shared::*;
use crate::storage::segments;

/// The answer of a call: state and result.
type Answer = Result<(String, Option<String>), postgres::Error>;

/// A session in a call of `queue.await`.
struct Awaiter {
    pid: i32,
    thread: JoinHandle<Answer>,
}

impl Awaiter {
    fn begin(mut client: Client, job: i64) -> Self {
        let pid = client.pid();
        let thread = std::thread::spawn(move || call(&mut client, job, "1 minute"));
        Self { pid, thread }
    }

    /// Begins to wait in this session. Returns when the session sleeps.
    fn with(client: Client, job: i64, observer: &mut Client) -> Self {
        let awaiter = Self::begin(client, job);
        wait_asleep(observer, awaiter.pid);
        awaiter
    }

    fn new(job: i64) -> Self {
        Self::with(connect(), job, &mut connect())
    }

    /// Returns the answer, which must come long before the timeout.
    fn answer(self) -> Answer {
        wait::within("it returned", Duration::from_secs(20), || self.thread.is_finished().then_some(()));
        self.thread.join().expect("the session's thread")
    }

    fn state(self) -> String {
        self.answer().expect("the call").0
    }
}

fn call(client: &mut Client, job: i64, timeout: &str) -> Answer {
    // In the simple protocol the result comes as text.
    let messages = client.simple_query(&format!("CALL queue.await({job}, '{timeout}')"))?;
    let row = messages.iter().find_map(|message| match message {
        postgres::SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    let row = row.expect("a row");
    Ok((row.get(0).expect("a state").to_owned(), row.get(1).map(str::to_owned)))
}

#[test]
fn every_end_of_the_job_wakes_await() {
    let (mut client, q) = queue("max_attempts => 1");
    // For each case: statements before the end ($j is the job, $i its attempt), the statement that ends the job, and
    // its final state.
    for (before, end, state) in [
        ("", "SELECT queue.complete($i)", "completed"),
        ("", "SELECT queue.complete_many(ARRAY[$i])", "completed"),
        ("", "SELECT FROM queue.claim('$q', completed => ARRAY[$i])", "completed"),
        ("", "BEGIN; SAVEPOINT s; SELECT queue.complete($i); RELEASE s; COMMIT", "completed"),
        ("", "SELECT queue.fail($i, 'no')", "dead"),
        ("", "SELECT queue.fail_many(ARRAY[$i], 'no')", "dead"),
        (
            "",
            "SELECT queue.end_batch(json_build_array(json_build_object('complete', json_build_object('id', $i))))",
            "completed",
        ),
        (
            "",
            "SELECT queue.end_batch(json_build_array(json_build_object('fail', \
                json_build_object('id', $i, 'error', 'no'))))",
            "dead",
        ),
        ("", "SELECT queue.cancel_many(ARRAY[$j], force => true)", "cancelled"),
        ("", "SELECT queue.cancel($j, force => true)", "cancelled"),
        ("SELECT queue.release($i)", "SELECT queue.cancel($j)", "cancelled"),
        ("SELECT queue.release($i)", "SELECT queue.purge('$q')", "cancelled"),
        ("SELECT queue.release($i, '1 day')", "SELECT queue.cancel($j)", "cancelled"),
        ("", "SELECT queue.extend($i, '300 ms')", "dead"),
    ] {
        let job = client.enqueue(&q);
        let id = client.claim(&q);
        let with =
            |sql: &str| sql.replace("$i", &format!("{id}::bigint")).replace("$j", &job.to_string()).replace("$q", &q);
        client.run(&with(before));
        let awaiter = Awaiter::new(job);
        client.run(&with(end));
        assert_eq!(awaiter.state(), state, "{before}; {end}");
        assert_eq!(client.state(job), state, "{before}; {end}");
    }
    // The release duty skips the job.
    let first = client.enqueue(&q);
    let second: i64 = client.value(&format!("SELECT queue.enqueue('{q}', after => '{{{first}}}')"));
    let awaiter = Awaiter::new(second);
    client.run(&format!("SELECT queue.cancel({first})"));
    assert_eq!(awaiter.state(), "skipped");
}

#[test]
fn other_changes_of_the_job_do_not_wake_await() {
    let (mut client, q) = queue("max_attempts => 1, backoff_base => '0', stages => '{a,b}'");
    let job = client.enqueue(&q);
    let other = client.enqueue(&q);
    let id = client.claim(&q);
    let awaiter = Awaiter::new(job);
    // If a death is undone before the session looks, the session sleeps on.
    server().signal("STOP", awaiter.pid);
    client.run(&format!("SELECT queue.fail({id}, 'no'); SELECT queue.cancel({other})"));
    client.run(&format!("SELECT queue.retry({job})"));
    server().signal("CONT", awaiter.pid);
    wait_asleep(&mut client, awaiter.pid);
    let id = client.claim(&q);
    client.run(&format!("SELECT queue.release({id})"));
    let id = client.claim(&q);
    client.run(&format!("SELECT queue.advance({id}, 'b')"));
    let id = client.claim(&q);
    client.run(&format!("BEGIN; SELECT queue.complete({id}); ROLLBACK"));
    wait_asleep(&mut client, awaiter.pid);
    assert!(!awaiter.thread.is_finished());
    client.run(&format!("SELECT queue.complete({id}, '[1, 2]')"));
    assert_eq!(awaiter.answer().unwrap(), ("completed".into(), Some("[1, 2]".into())));
}

#[test]
fn await_returns_the_state_of_the_job_after_the_timeout() {
    let (mut client, q) = queue("backoff_base => '1 day'");
    let job = client.enqueue(&q);
    let is = |state: &str, client: &mut Client| {
        for timeout in ["0", "20 ms"] {
            assert_eq!(call(client, job, timeout).unwrap(), (state.to_owned(), None));
        }
    };
    is("ready", &mut client);
    let id = client.claim(&q);
    is("running", &mut client);
    client.run(&format!("SELECT queue.fail({id}, 'no')"));
    is("retrying", &mut client);
    let later: i64 = client.value(&format!("SELECT queue.enqueue('{q}', delay => '1 day')"));
    assert_eq!(call(&mut client, later, "0").unwrap().0, "scheduled");
    let held: i64 = client.value(&format!("SELECT queue.enqueue('{q}', after => '{{{job}}}')"));
    assert_eq!(call(&mut client, held, "0").unwrap().0, "held");
    // `max_wait` does not limit the call. A shorter `statement_timeout` does.
    client.run("SET pg_queue.max_wait = '1 ms'");
    let begun = Instant::now();
    call(&mut client, held, "150 ms").unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(150));
    client.run("SET statement_timeout = '3 s'");
    let begun = Instant::now();
    assert_eq!(call(&mut client, held, "1 hour").unwrap().0, "held");
    assert!(begun.elapsed() > Duration::from_secs(1), "{:?}", begun.elapsed());
}

#[test]
fn await_returns_the_result_of_an_ended_job_immediately() {
    let cluster = segments::cluster(&["pg_queue.segment_age = 3600"]);
    let mut client = cluster.connect();
    let job = client.enqueue("q");
    // The result is stored outside its row.
    let large = "SELECT jsonb_agg(md5(n::text)) FROM generate_series(1, 3000) AS n";
    client.run(&format!("SELECT queue.complete(id, ({large})) FROM queue.claim('q')"));
    let large: String = client.value(&format!("SELECT ({large})::text"));
    let dead = client.enqueue("q");
    client.run("SELECT queue.fail(id, 'no', fatal => true) FROM queue.claim('q')");
    let is_in_history = format!("SELECT FROM queue_internal.history WHERE job_id IN ({job}, {dead})");
    let mut looks = 0;
    wait::until_true("they are in history", || {
        assert_eq!(call(&mut client, job, "1 minute").unwrap(), ("completed".into(), Some(large.clone())));
        assert_eq!(call(&mut client, dead, "1 minute").unwrap(), ("dead".into(), None));
        looks += 1;
        client
            .run("SELECT count(*) FROM queue.enqueue_many('q', ARRAY(SELECT '1'::jsonb FROM generate_series(1, 500)))");
        client.run("SELECT count(queue.complete(id)) FROM queue.claim('q', 500)");
        client.count(&is_in_history) == 2 && looks > 3
    });
    assert_eq!(call(&mut client, job, "1 minute").unwrap(), ("completed".into(), Some(large)));
    client.run(&format!("SELECT queue.forget({job})"));
    assert_eq!(call(&mut client, job, "1 minute").unwrap(), ("completed".into(), None));
}

#[test]
fn await_sleeps_without_snapshot_transaction_id_and_lock() {
    let (mut client, q) = queue("");
    let job = client.enqueue(&q);
    let awaiter = Awaiter::new(job);
    let holds: bool = client.value(&format!(
        "SELECT backend_xmin IS NOT NULL OR backend_xid IS NOT NULL FROM pg_stat_activity WHERE pid = {}",
        awaiter.pid
    ));
    assert!(!holds, "a snapshot");
    let locks = format!("SELECT FROM pg_locks WHERE pid = {} AND locktype <> 'virtualxid'", awaiter.pid);
    assert_eq!(client.count(&locks), 0);
    client.run(&format!("SELECT queue.cancel({job})"));
    assert_eq!(awaiter.state(), "cancelled");
}

#[test]
fn the_end_of_a_session_that_waits_is_the_end_of_its_wait_only() {
    let (mut client, q) = queue("");
    let job = client.enqueue(&q);
    let others = [Awaiter::new(job), Awaiter::new(job)];
    for (end, code) in [("pg_cancel_backend", "57014"), ("pg_terminate_backend", "57P01")] {
        let awaiter = Awaiter::new(job);
        assert!(client.value::<bool>(&format!("SELECT {end}({})", awaiter.pid)));
        let e = awaiter.answer().unwrap_err();
        assert!(error::code(&e) == code || (code == "57P01" && e.is_closed()), "{e:?}");
    }
    // The session is terminated while it is woken.
    let awaiter = Awaiter::new(job);
    server().signal("STOP", awaiter.pid);
    client.run(&format!("SELECT queue.cancel({job})"));
    assert!(client.value::<bool>(&format!("SELECT pg_terminate_backend({})", awaiter.pid)));
    server().signal("CONT", awaiter.pid);
    let _ = awaiter.answer();
    for other in others {
        assert_eq!(other.state(), "cancelled");
    }
}

#[test]
fn a_restart_ends_await_with_an_error() {
    let (cluster, mut client) = Cluster::new().conf("max_connections = 30").start_with_database("app");
    client.run("SELECT queue.create('q')");
    let job = client.enqueue("q");
    for is_crash in [false, true] {
        let awaiter = Awaiter::with(cluster.connect_to("app"), job, &mut client);
        let begun = Instant::now();
        if is_crash {
            cluster.stop_immediate();
        } else {
            cluster.stop_fast();
        }
        assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
        awaiter.answer().unwrap_err();
        cluster.start_again();
        client = cluster.connect_to("app");
        assert_eq!(call(&mut client, job, "0").unwrap().0, "ready");
    }
}

#[test]
fn await_misses_no_end_in_any_race() {
    let (mut client, q) = queue("");
    for (point, holds_ender) in [("await.begun", false), ("await.looked", false), ("commit.visible", true)] {
        let job = client.enqueue(&q);
        let complete = format!("SELECT queue.complete({})", client.claim(&q));
        let (mut ender, session) = (connect(), connect());
        let awaiter = if holds_ender {
            // The end is visible, but its commit callback has not run.
            let fault = server().fault_of(ender.pid(), point, "wait");
            let thread = std::thread::spawn(move || ender.run(&complete));
            fault.wait_reached();
            let awaiter = Awaiter::begin(session, job);
            drop(fault);
            thread.join().expect("the end");
            awaiter
        } else {
            let mut session = session;
            let fault = server().fault_of(session.pid(), point, "wait");
            let awaiter = Awaiter::begin(session, job);
            fault.wait_reached();
            ender.run(&complete);
            drop(fault);
            awaiter
        };
        assert_eq!(awaiter.state(), "completed", "{point}");
    }
}

#[test]
fn await_is_woken_when_its_job_is_removed() {
    let (mut client, q) = queue("");
    let awaiter = Awaiter::new(client.enqueue(&q));
    client.run(&format!("SELECT queue.drop('{q}', force => true)"));
    assert_eq!(error::code(&awaiter.answer().unwrap_err()), "55000");
    let (database, mut client) = Database::new().with_queue("q", "");
    let job = client.enqueue("q");
    let awaiter = Awaiter::with(database.connect(), job, &mut connect());
    client.run("DROP EXTENSION pg_queue");
    awaiter.answer().unwrap_err();
}

#[test]
fn await_sleeps_while_the_database_is_dormant() {
    let (database, mut client) = Database::new().with_queue("q", "");
    let job = client.enqueue("q");
    let awaiter = Awaiter::with(database.connect(), job, &mut client);
    client.run("UPDATE queue_internal.queue SET notify = notify");
    client.refused(&format!("CALL queue.await({job})"), "55000");
    client.run("SELECT queue.adopt()");
    client.run(&format!("SELECT queue.cancel({job})"));
    assert_eq!(awaiter.state(), "cancelled");
}

#[test]
fn await_refuses_wrong_calls() {
    let (mut client, q) = queue("");
    let job = client.enqueue(&q);
    let attempt = client.claim(&q);
    client.run("BEGIN");
    let unseen = client.enqueue(&q);
    for (arguments, code) in [
        (format!("{job}, '-1 s'"), "22023"),
        (format!("{attempt}"), "22023"),
        ("7".to_owned(), "22023"),
        ("NULL".to_owned(), "22004"),
        (unseen.to_string(), "P0002"),
    ] {
        connect().refused(&format!("CALL queue.await({arguments})"), code);
    }
    client.refused(&format!("CALL queue.await({job})"), "25001");
    client.run("ROLLBACK");
    let within = |before: &str| {
        format!("DO 'DECLARE s text; r jsonb; BEGIN {before}; CALL queue.await({job}, ''10 ms'', s, r); END'")
    };
    client.run(&within("PERFORM 1"));
    client.run(&within(&format!("PERFORM queue.enqueue(''{q}''); COMMIT")));
    client.refused(&within(&format!("PERFORM queue.enqueue(''{q}'')")), "25001");
    client.run(&format!(
        "CREATE FUNCTION awaiting_{q}() RETURNS text LANGUAGE plpgsql AS
         'DECLARE s text; r jsonb; BEGIN CALL queue.await({job}, ''10 ms'', s, r); RETURN s; END'"
    ));
    client.refused(&format!("SELECT awaiting_{q}()"), "25001");
}

#[test]
fn await_shows_results_only_to_roles_that_may_read_jobs() {
    let (mut client, q) = queue("");
    let job = client.enqueue(&q);
    client.run(&format!("CREATE ROLE awaits_{q} LOGIN"));
    let mut other = connect();
    other.run(&format!("SET ROLE awaits_{q}"));
    assert_eq!(error::code(&call(&mut other, job, "0").unwrap_err()), "42501");
    client.run(&format!("SELECT queue.complete(id, '7') FROM queue.claim('{q}')"));
    for (privilege, result) in
        [("produce", None), ("consume", Some("7")), ("observe", Some("7")), ("manage", Some("7"))]
    {
        client.run(&format!("SELECT queue.grant('{q}', 'awaits_{q}', '{privilege}')"));
        let answer = call(&mut other, job, "0").unwrap();
        assert_eq!(answer, ("completed".into(), result.map(str::to_owned)), "{privilege}");
        client.run(&format!("SELECT queue.revoke('{q}', 'awaits_{q}', '{privilege}')"));
    }
    let job = client.enqueue(&q);
    client.run(&format!("SELECT queue.grant('{q}', 'awaits_{q}', 'produce')"));
    let awaiter = Awaiter::with(other, job, &mut client);
    // A session that lost its privilege while it slept does not see the result.
    client.run(&format!("SELECT queue.revoke('{q}', 'awaits_{q}', 'produce')"));
    client.run(&format!("SELECT queue.cancel({job})"));
    assert_eq!(error::code(&awaiter.answer().unwrap_err()), "42501");
    client.run(&format!("DROP OWNED BY awaits_{q}; DROP ROLE awaits_{q}"));
}

#[test]
fn procedures_and_blocks_of_code_can_await_one_job_after_the_other() {
    let (mut client, q) = queue("");
    client.run(&format!("CREATE TABLE awaited_{q} (state text, result jsonb)"));
    let body = format!(
        "DECLARE job bigint; state text; result jsonb;
         BEGIN
             FOR i IN 1..3 LOOP
                 job := queue.enqueue('{q}');
                 COMMIT;
                 CALL queue.await(job, '10 ms', state, result);
                 INSERT INTO awaited_{q} VALUES (state, result);
                 PERFORM queue.complete(id, to_jsonb(i)) FROM queue.claim('{q}');
                 COMMIT;
                 CALL queue.await(job, '10 ms', state, result);
                 INSERT INTO awaited_{q} VALUES (state, result);
                 COMMIT;
             END LOOP;
         END"
    );
    client.run(&format!("DO $$ {body} $$"));
    client.run(&format!("CREATE PROCEDURE awaiting_{q}() LANGUAGE plpgsql AS $$ {body} $$"));
    client.run(&format!("CALL awaiting_{q}()"));
    let said: Vec<String> = client.column(&format!("SELECT concat(state, ' ', result) FROM awaited_{q}"));
    let once = ["ready ", "completed 1", "ready ", "completed 2", "ready ", "completed 3"];
    assert_eq!(said, [once, once].concat());
}
