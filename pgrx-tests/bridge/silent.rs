//! Sources that do not answer. Each call gives up with the error of an unreachable source, and the next call works.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use queue_tests::installation::installation;
use queue_tests::sql::{Failure, Sql};
use queue_tests::wait;

use crate::pair::Pair;

/// The error of a connection that was given up.
const GIVEN_UP: (&str, &str) = ("08001", "could not establish connection");

/// A pair whose contacts give up a connection after a few seconds.
fn impatient() -> Pair {
    let pair = Pair::new();
    pair.server().run("UPDATE queue_bridge.source SET conninfo = conninfo || ' connect_timeout=2'");
    pair
}

fn told(failure: &Failure) -> (&str, &str) {
    (&failure.code, &failure.message)
}

/// A stopped postmaster. Connections to it succeed, but it does not answer.
struct Stopped<'a>(&'a Pair);

impl<'a> Stopped<'a> {
    fn new(pair: &'a Pair) -> Self {
        pair.primary.signal("STOP", pair.primary.postmaster_pid());
        Self(pair)
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.primary.signal("CONT", self.0.primary.postmaster_pid());
    }
}

#[test]
fn each_call_gives_up_on_a_source_that_takes_connections_and_does_not_answer() {
    let pair = impatient();
    let mut server = pair.server();
    let stopped = Stopped::new(&pair);
    let conninfo = format!("{} connect_timeout=2", pair.conninfo());
    for call in [
        "SELECT queue_bridge.contact('shop')",
        "SELECT queue_bridge.repair('shop')",
        "SELECT queue_bridge.disconnect('shop')",
        "SELECT * FROM queue_bridge.outbox_of('shop')",
        &format!("SELECT queue_bridge.connect('other', '{conninfo}')"),
    ] {
        assert_eq!(told(&server.failure(call)), GIVEN_UP, "{call}");
    }
    // A shorter limit of the session counts. dblink of 15 notices it only when the connection is given up.
    server.run("SET statement_timeout = '1s'");
    let failure = server.failure("SELECT queue_bridge.contact('shop')");
    assert_eq!(failure.code, if installation().major > 15 { "57014" } else { "08001" }, "{failure:?}");
    server.run("RESET statement_timeout");
    drop(stopped);
    assert_eq!(pair.contact(), None);
    // The same session can go on: no cancel and no connection was left behind.
    assert_eq!(server.value::<Option<String>>("SELECT queue_bridge.contact('shop')"), None);
    assert_eq!(server.value::<i64>("SELECT copied FROM queue_bridge.repair('shop')"), 0);
}

#[test]
fn the_schedule_says_that_a_source_does_not_answer_and_speaks_with_it_again() {
    let pair = impatient();
    let mut server = pair.server();
    let contact = "SELECT queue.enqueue('queue_bridge_shop', '{\"source\": \"shop\"}')";
    let stopped = Stopped::new(&pair);
    let job: i64 = server.value(contact);
    wait::until("the contact has ended", || (server.state(job) == "completed").then_some(()));
    let problem = "SELECT problem FROM queue_bridge.sources";
    let expected = "there is no contact: could not establish connection";
    assert_eq!(server.value::<Option<String>>(problem).as_deref(), Some(expected));
    let doctor = "SELECT detail FROM queue.doctor() WHERE name = 'bridge' AND NOT ok";
    assert!(server.value::<String>(doctor).contains(expected));
    drop(stopped);
    let job: i64 = server.value(contact);
    wait::until("the next contact has ended", || (server.state(job) == "completed").then_some(()));
    assert_eq!(server.value::<Option<String>>(problem), None);
}

#[test]
fn a_source_that_does_not_answer_while_it_is_copied_can_be_disconnected() {
    let pair = impatient();
    let mut server = pair.server();
    pair.wait_streaming();
    // With this setting the outbox is never copied.
    pair.server.append_conf("max_sync_workers_per_subscription = 0");
    pair.server.reload();
    server.run("SELECT queue_bridge.repair('shop')");
    let copying = "SELECT FROM queue_bridge.sources WHERE state = 'copying'";
    wait::until("the copy is wanted", || (server.count(copying) == 1).then_some(()));
    let _stopped = Stopped::new(&pair);
    server.run("SELECT queue_bridge.disconnect('shop', force => true)");
    assert_eq!(server.count("SELECT FROM pg_subscription"), 0);
    assert_eq!(server.count("SELECT FROM queue_bridge.sources"), 0);
}

/// How far a program that imitates a server goes.
#[derive(Clone, Copy)]
enum Until {
    /// It accepts connections.
    Connected,
    /// It begins a session and reads nothing after that.
    Ready,
}

/// Listens at a port until the test ends. Returns the connection string.
fn speak(until: Until) -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let port = listener.local_addr().expect("its number").port();
    std::thread::spawn(move || {
        let mut connections = Vec::new();
        for connection in listener.incoming() {
            let mut connection = connection.expect("a connection");
            if matches!(until, Until::Ready) {
                // Ignores the error of a client that has given up.
                let _ = begin_session(&mut connection);
            }
            connections.push(connection);
        }
    });
    format!("host=127.0.0.1 port={port} user=taker dbname=shop sslmode=disable gssencmode=disable connect_timeout=2")
}

/// Answers the first message of a client as a server that asks for no password.
fn begin_session(connection: &mut TcpStream) -> std::io::Result<()> {
    let mut length = [0; 4];
    connection.read_exact(&mut length)?;
    connection.read_exact(&mut vec![0; u32::from_be_bytes(length) as usize - 4])?;
    let mut answer = b"R\0\0\0\x08\0\0\0\0".to_vec();
    for (name, value) in [("client_encoding", "UTF8"), ("server_version", "18.0")] {
        answer.push(b'S');
        answer.extend((4 + name.len() as u32 + 1 + value.len() as u32 + 1).to_be_bytes());
        answer.extend(format!("{name}\0{value}\0").into_bytes());
    }
    answer.extend(b"Z\0\0\0\x05I");
    connection.write_all(&answer)
}

#[test]
fn a_source_may_fall_silent_at_any_point_of_a_conversation() {
    let pair = Pair::new();
    let mut server = pair.server();
    let mute = speak(Until::Connected);
    assert_eq!(told(&server.failure(&format!("SELECT queue_bridge.ask('{mute}', 'SELECT 1')"))), GIVEN_UP);
    // The source falls silent before a question, or in the middle of one that is longer than the network's buffers.
    let deaf = speak(Until::Ready);
    for question in ["'SELECT 1'", "repeat(' ', 32000000)"] {
        let ask = format!("SELECT queue_bridge.ask('{deaf}', {question}, '1 second')");
        server.refused(&ask, "08006");
    }
    // The session can ask again.
    let ask = format!("SELECT queue_bridge.ask('{}', 'SELECT to_jsonb(7)')::text", pair.conninfo());
    assert_eq!(server.value::<String>(&ask), "7");
}

#[test]
fn a_machine_that_is_gone_does_not_hide_the_next_one_of_the_connection_string() {
    let pair = Pair::new();
    let mut server = pair.server();
    let (gone, _connections) = unreachable();
    let there = pair.primary.dir().display().to_string();
    let conninfo = format!("host=127.0.0.1,{there} port={},5432 user=taker dbname=shop connect_timeout=2", gone.port());
    let ask = format!("SELECT queue_bridge.ask('{conninfo}', 'SELECT to_jsonb(7)')::text");
    let since = Instant::now();
    assert_eq!(server.value::<String>(&ask), "7");
    assert!(since.elapsed() > Duration::from_secs(1), "the first host was not tried");
}

/// Returns an address that does not even answer the first packet of a connection, as if its machine were gone. It
/// listens, but its backlog of connections is full.
fn unreachable() -> (SocketAddr, (TcpListener, Vec<TcpStream>)) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let address = listener.local_addr().expect("its address");
    let mut waiting = Vec::new();
    while let Ok(connection) = TcpStream::connect_timeout(&address, Duration::from_millis(500)) {
        waiting.push(connection);
    }
    (address, (listener, waiting))
}

#[test]
fn a_connection_string_says_when_it_gives_up() {
    let pair = Pair::new();
    let mut server = pair.server();
    for (conninfo, with, limit) in [
        (
            "host=a dbname=b",
            "connect_timeout=10 keepalives_idle=30 tcp_user_timeout=10000 client_encoding=UTF8 host=a dbname=b",
            Some("00:00:20"),
        ),
        (
            "host=a,b connect_timeout = '5'",
            "keepalives_idle=30 tcp_user_timeout=5000 client_encoding=UTF8 host=a,b connect_timeout = '5'",
            Some("00:00:20"),
        ),
        (
            "host=a connect_timeout=0 tcp_user_timeout=7 keepalives_idle=8 client_encoding=UTF8",
            "host=a connect_timeout=0 tcp_user_timeout=7 keepalives_idle=8 client_encoding=UTF8",
            None,
        ),
        ("host=a connect_timeout=-1", "keepalives_idle=30 client_encoding=UTF8 host=a connect_timeout=-1", None),
        (
            "postgresql://a/b",
            "postgresql://a/b?connect_timeout=10&keepalives_idle=30&tcp_user_timeout=10000&client_encoding=UTF8",
            Some("00:00:20"),
        ),
        (
            "postgres://a/b?connect_timeout=1",
            "postgres://a/b?connect_timeout=1&keepalives_idle=30&tcp_user_timeout=2000&client_encoding=UTF8",
            Some("00:00:04"),
        ),
    ] {
        let of = |function: &str| format!("SELECT queue_bridge.{function}('{}')::text", conninfo.replace('\'', "''"));
        assert_eq!(server.value::<String>(&of("with_timeout")), with);
        assert_eq!(server.value::<Option<String>>(&of("connect_limit")).as_deref(), limit, "{conninfo}");
    }
}
