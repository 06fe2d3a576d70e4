//! An attempt that a worker has.

use crate::ledger::{What, now};
use crate::session::{Done, Session};

/// An attempt that the worker has, as far as the worker knows.
#[derive(Debug, Clone)]
pub struct Held {
    pub attempt: i64,
    pub job: i64,
    pub queue: usize,
    pub stage: Option<String>,
    pub is_flow: bool,
}

/// Notes that the fence refused the attempt.
pub fn refused<T>(session: &mut Session<'_>, one: &Held, answer: Done<T>) -> Done<T> {
    if answer.as_ref().is_err_and(|failure| failure.code == "QJ001") {
        let time = now();
        session.note(What::Refused { attempt: one.attempt }, time, time);
    }
    answer
}
