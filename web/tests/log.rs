//! The program's output: each line is one write, and a log that accepts no lines blocks nothing.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::process::{Child, Stdio};
use std::time::Duration;

use queue_tests::sql::Sql as _;
use queue_tests::{KilledAtEnd, wait};
use serde_json::json;

use crate::http::Address;
use crate::place::{command, output, place};

/// Returns files that accept no lines: a full disk, and a pipe without a reader.
fn dead_ends() -> [(&'static str, OwnedFd); 2] {
    let full = File::options().write(true).open("/dev/full").expect("/dev/full");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    [("a full disk", full.into()), ("a closed pipe", writer.into())]
}

/// A datagram socket keeps writes apart.
#[test]
fn each_line_is_one_write_so_that_lines_of_several_programs_do_not_mix() {
    let (cluster, mut client) = place();
    client.run("SELECT queue.create('q')");
    let (said, writer) = UnixDatagram::pair().expect("a pair of sockets");
    said.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let read = || {
        let mut bytes = vec![0; 1 << 20];
        let size = said.recv(&mut bytes).expect("a line of the log");
        String::from_utf8(bytes[..size].to_vec()).unwrap()
    };
    let mut command = command(&cluster, &["--allow-actions", "--listen", "127.0.0.1:0"]);
    let _program = KilledAtEnd(command.stderr(OwnedFd::from(writer)).spawn().expect("the program runs"));
    let first = read();
    let at = first.strip_prefix("pg_queue_web: listening on http://").and_then(|at| at.strip_suffix("/\n"));
    let web = Address::Tcp(at.unwrap_or_else(|| panic!("{first:?}")).to_owned());
    web.act("enqueue", &json!({ "queue": "q", "payload": "{}", "unique_key": "one\ntwo" }), &[]).ok();
    web.act("pause", &json!({ "queue": "gone\n" }), &[]).refused(404);
    for verb in ["enqueue", "pause"] {
        let line = read();
        assert!(
            line.starts_with("pg_queue_web: audit {") && line.contains(&format!("\"verb\":\"{verb}\"")),
            "{line:?}"
        );
        assert_eq!(line.find('\n'), Some(line.len() - 1), "{line:?}");
    }
}

#[test]
fn a_log_that_accepts_no_lines_stops_no_request() {
    let (cluster, mut client) = place();
    client.run("SELECT queue.create('q')");
    for (number, (what, log)) in dead_ends().into_iter().enumerate() {
        let socket = cluster.dir().join(format!("web-{number}"));
        let mut command = command(&cluster, &["--allow-actions", "--listen", &format!("unix:{}", socket.display())]);
        let mut program = KilledAtEnd(command.stderr(log).spawn().expect("the program runs"));
        wait::until(&format!("it listens ({what})"), || {
            assert_eq!(program.try_wait().expect("its state"), None, "{what}");
            UnixStream::connect(&socket).ok()
        });
        let web = Address::Unix(socket);
        for _ in 0..3 {
            web.act("enqueue", &json!({ "queue": "q", "payload": "{}" }), &[]).ok();
            web.act("pause", &json!({ "queue": "gone" }), &[]).refused(404);
        }
        assert_eq!(web.get("/api/audit").ok().as_array().unwrap().len(), 6, "{what}");
    }
    for (what, log) in dead_ends() {
        let refused = command(&cluster, &["--nonsense"]).stderr(log).status();
        assert_eq!(refused.expect("the program runs").code(), Some(2), "{what}");
    }
}

#[test]
fn output_that_cannot_be_written_is_an_error_unless_the_reader_closed_the_pipe() {
    let (cluster, _client) = place();
    for args in [&["--once"][..], &["--help"], &["--version"]] {
        assert!(!output(&cluster, args).stdout.is_empty());
        for (what, answer) in dead_ends() {
            let done = command(&cluster, args).stdout(answer).stderr(Stdio::piped()).spawn();
            let done = done.and_then(Child::wait_with_output).expect("the program runs");
            let said = String::from_utf8(done.stderr).unwrap();
            match what {
                "a closed pipe" => {
                    assert!(done.status.success() && said.is_empty(), "{args:?}: {} {said}", done.status)
                }
                _ => {
                    assert!(!done.status.success(), "{args:?}");
                    assert!(said.starts_with("pg_queue_web: cannot print: ") && said.lines().count() == 1, "{said}");
                }
            }
        }
    }
}
