//! What this process has taken and has still to serve.
//!
//! Invariant: whatever is here is served, or handed over again by a rollback and by the end of the process.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};

/// How far a walk over the attempts after a job has come: behind this attempt of this segment.
#[derive(Clone, Copy)]
pub struct Position {
    pub segment: u8,
    pub attempt: i64,
}

/// What this process has taken.
#[derive(Default)]
pub struct Work {
    /// The jobs that are still to be served, each with where to go on.
    pub left: VecDeque<(i64, Option<Position>)>,
    /// Flows that are to be looked at, each from a monotonic time on.
    pub later: HashMap<i64, i64>,
    /// Those that the open transaction serves.
    pub taken: Vec<i64>,
    /// Whether memory knows that this process has something to serve.
    pub is_serving: bool,
}

thread_local! {
    pub static WORK: RefCell<Work> = RefCell::default();
}

/// Has this process look at a flow, from a monotonic time on.
pub fn look_later(flow: i64, at: i64) {
    WORK.with_borrow_mut(|work| {
        let known = work.later.entry(flow).or_insert(at);
        *known = at.min(*known);
    });
}
