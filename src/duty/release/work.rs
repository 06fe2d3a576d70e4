//! The jobs that this process has taken and still has to serve.
//!
//! Invariant: each of these jobs is served, or handed over again by a rollback or by the end of the process.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};

/// The position of a walk over the successors of a job: after this attempt of this segment.
#[derive(Clone, Copy)]
pub struct Position {
    pub segment: u8,
    pub attempt: i64,
}

/// The jobs that this process has taken.
#[derive(Default)]
pub struct Work {
    /// The jobs that remain to be served, each with the position at which to continue.
    pub left: VecDeque<(i64, Option<Position>)>,
    /// Flows that must be looked at, each with the earliest monotonic time.
    pub later: HashMap<i64, i64>,
    /// The jobs that the open transaction serves.
    pub taken: Vec<i64>,
    /// True if memory knows that this process has something to serve.
    pub is_serving: bool,
}

thread_local! {
    pub static WORK: RefCell<Work> = RefCell::default();
}

/// Makes this process look at a flow, not before a monotonic time.
pub fn look_later(flow: i64, at: i64) {
    WORK.with_borrow_mut(|work| {
        let known = work.later.entry(flow).or_insert(at);
        *known = at.min(*known);
    });
}
