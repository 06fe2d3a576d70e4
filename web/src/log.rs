//! Responsible for what the program prints: lines of its log on stderr, and the answer of `--once` or `--help` on
//! stdout. Not responsible for what the audit keeps (`audit`).
//! Invariant: each line of the log is one write, so programs that share a log do not mix their lines; and a log that
//! cannot be written (a full disk, a pipe without reader) stops nothing. `println!` and `eprintln!` panic there, so
//! lints refuse them.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write as _, stderr, stdout};

/// Writes a line to the log, with its line break. Errors are ignored: they could be written nowhere else.
pub fn say(line: Arguments) {
    let line = format!("pg_queue_web: {line}\n");
    drop(stderr().write_all(line.as_bytes()));
}

/// Prints an answer. Returns an error if it cannot be written, unless the reader has closed the pipe (`| head -1`).
pub fn print(answer: &str) -> Result<(), String> {
    let mut stdout = stdout().lock();
    match stdout.write_all(answer.as_bytes()).and_then(|()| stdout.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(format!("cannot print: {e}")),
        _ => Ok(()),
    }
}
