//! Several sessions create, alter and drop queues at the same time, at all isolation levels, with open transactions and
//! savepoints.

use std::sync::mpsc;

use crate::shared::*;

const LEVELS: [&str; 3] = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];

/// Opens a session with this isolation level.
fn session(database: &Database, level: &str) -> Client {
    let mut client = database.connect();
    client.run(&format!("SET default_transaction_isolation = '{}'", level.to_lowercase()));
    client
}

/// Runs a statement in a new session and thread. Returns when the statement waits for another transaction. The receiver
/// gets its success or SQLSTATE.
fn waits(database: &Database, level: &str, sql: &str) -> mpsc::Receiver<Result<(), String>> {
    let mut client = session(database, level);
    let (pid, sql) = (client.pid(), sql.to_owned());
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        let _ = send.send(client.simple_query(&sql).map(drop).map_err(|e| Failure::from(&e).code));
    });
    wait_blocked(&mut connect(), pid);
    receive
}

fn max_attempts(client: &mut Client, name: &str) -> i32 {
    client.value(&format!("SELECT max_attempts FROM queue.queues WHERE queue_name = '{name}'"))
}

#[test]
fn eight_sessions_that_make_a_queue_unless_it_exists_all_succeed() {
    const SESSIONS: usize = 8;
    const ROUNDS: usize = 40;
    let database = Database::without_worker();
    for level in LEVELS {
        // Without options, because a transaction with an older snapshot cannot alter queues that other transactions
        // have made since.
        let options = if level == "READ COMMITTED" { ", max_attempts => 7" } else { "" };
        let barrier = Barrier::new(SESSIONS);
        thread::scope(|scope| {
            for _ in 0..SESSIONS {
                scope.spawn(|| {
                    let mut client = session(&database, level);
                    let failed: Vec<_> = (0..ROUNDS)
                        .filter_map(|n| {
                            barrier.wait();
                            let sql = format!("SELECT queue.create('{level} {n}'{options}, if_not_exists => true)");
                            client.simple_query(&sql).err().map(|e| Failure::from(&e).code)
                        })
                        .collect();
                    assert!(failed.is_empty(), "{level}: {failed:?}");
                });
            }
        });
        let made = format!("SELECT FROM queue.queues WHERE queue_name LIKE '{level} %'");
        assert_eq!(database.connect().count(&made), ROUNDS, "{level}");
    }
}

#[test]
fn a_session_that_makes_a_queue_waits_for_an_open_transaction_that_makes_it() {
    let database = Database::without_worker();
    let mut client = database.connect();
    for level in LEVELS {
        for (end, is_there) in [("COMMIT", true), ("ROLLBACK", false), ("ROLLBACK TO before; COMMIT", false)] {
            let sees_it = level == "READ COMMITTED" || !is_there;
            for (n, (options, answer, after)) in [
                ("", if is_there { Err("42710") } else { Ok(()) }, if is_there { 3 } else { 20 }),
                (", if_not_exists => true", Ok(()), if is_there { 3 } else { 20 }),
                (
                    ", max_attempts => 9, if_not_exists => true",
                    if sees_it { Ok(()) } else { Err("40001") },
                    if sees_it { 9 } else { 3 },
                ),
            ]
            .into_iter()
            .enumerate()
            {
                let name = format!("{level} {end} {n}");
                client.run("BEGIN; SAVEPOINT before");
                create(&mut client, &name, "max_attempts => 3");
                let waiter = waits(&database, level, &format!("SELECT queue.create('{name}'{options})"));
                client.run(end);
                let answered = waiter.recv().unwrap();
                assert_eq!(answered.as_ref().map_err(String::as_str).copied(), answer, "{name}{options}");
                assert_eq!(max_attempts(&mut client, &name), after, "{name}{options}");
            }
        }
    }
}

#[test]
fn sessions_that_make_other_queues_do_not_wait() {
    let database = Database::without_worker();
    let (mut client, mut other) = (database.connect(), database.connect());
    create(&mut client, "there", "");
    client.run("BEGIN");
    create(&mut client, "mine", "");
    client.run("SELECT queue.create('there', if_not_exists => true)");
    other.run("SET lock_timeout = '20 s'");
    create(&mut other, "other", "");
    other.run("SELECT queue.create('there', max_attempts => 2, if_not_exists => true)");
    other.run("SET lock_timeout = '1 s'");
    other.refused("SELECT queue.create('mine')", "55P03");
    client.run("COMMIT");
}

#[test]
fn a_queue_that_a_snapshot_does_not_see_is_not_reported_as_changed() {
    let database = Database::without_worker();
    let (mut client, mut late) = (database.connect(), database.connect());
    create(&mut client, "old", "");
    for level in &LEVELS[1..] {
        late.run(&format!("BEGIN ISOLATION LEVEL {level}; SELECT FROM queue.queues"));
        create(&mut client, "new", "");
        client.run("SELECT queue.alter('old', lease => '1 min')");
        for verb in [
            "queue.create('new', max_attempts => 7, if_not_exists => true)",
            "queue.alter('new', max_attempts => 7)",
            "queue.alter('new', stages => '{a, b}')",
            "queue.pause('new')",
            "queue.drop('new')",
            "queue.alter('old', max_attempts => 7)",
        ] {
            late.run("SAVEPOINT here");
            assert_eq!(late.failure(&format!("SELECT {verb}")).code, "40001", "{level}: {verb}");
            late.run("ROLLBACK TO here");
        }
        // A call that asks for no change succeeds: the queue exists and is not paused.
        late.run("SELECT queue.create('new', if_not_exists => true), queue.alter('new'), queue.resume('new')");
        assert_eq!(late.failure("SELECT queue.create('new')").code, "42710", "{level}");
        late.run("ROLLBACK");
        assert_eq!(max_attempts(&mut client, "new"), 20, "{level}");
        client.run("SELECT queue.drop('new')");
    }
}

#[test]
fn a_queue_that_is_dropped_meanwhile_is_made_again_or_reported_as_missing() {
    let database = Database::without_worker();
    let mut client = database.connect();
    for (call, answer) in [
        ("create('q', max_attempts => 9, if_not_exists => true)", Ok(())),
        ("create('q', stages => '{a}', max_attempts => 9, if_not_exists => true)", Ok(())),
        ("alter('q', max_attempts => 9)", Err("42704".to_owned())),
        ("alter('q', stages => '{a}')", Err("42704".to_owned())),
        ("pause('q')", Err("42704".to_owned())),
        ("drop('q')", Err("42704".to_owned())),
    ] {
        create(&mut client, "q", "");
        client.run("BEGIN; SELECT queue.drop('q')");
        let waiter = waits(&database, "READ COMMITTED", &format!("SELECT queue.{call}"));
        client.run("COMMIT");
        assert_eq!(waiter.recv().unwrap(), answer, "{call}");
        if answer.is_ok() {
            assert_eq!(max_attempts(&mut client, "q"), 9, "{call}");
            client.run("SELECT queue.drop('q')");
        }
    }
}

#[test]
fn a_change_counts_for_the_rest_of_its_own_statement() {
    let (_database, mut client) = Database::new().with_queue("q", "");
    let is_paused = "SELECT is_paused FROM queue.queues WHERE queue_name = 'q'";
    client.run("SELECT queue.pause('q'), queue.resume('q')");
    assert!(!client.value::<bool>(is_paused));
    client.run("SELECT queue.pause('q'), queue.resume('q'), queue.pause('q')");
    assert!(client.value::<bool>(is_paused));
    client.run("BEGIN; SELECT queue.resume('q'), queue.pause('q'), queue.resume('q'); ROLLBACK");
    assert!(client.value::<bool>(is_paused));
    client.run("SELECT queue.drop('q'), queue.create('q', max_attempts => 7)");
    assert_eq!(max_attempts(&mut client, "q"), 7);
}
