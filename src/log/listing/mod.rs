//! The jobs of a queue that are in a state, a page at a time: by the indexes and the memory that have these jobs and
//! hardly others, so that a page costs the same at any depth.
//!
//! Responsible for candidates, in order, and for where a walk has come to. Not responsible for what is shown of a job,
//! nor for whether it is still in that state when it is shown (`view::list`).
//!
//! Invariant: each step of a walk reads a bounded number of rows, and `here` says how to go on behind it.

use serde_json::Value;

mod ends;
mod future;
mod ranked;
mod taken;
mod walk;

pub use walk::{Found, Opened, State, Walk, Wanted, Where};

impl Wanted<'_> {
    /// Begins to walk, behind where another walk has come to. What cannot be understood there counts as the begin.
    pub fn walk<'a>(&'a self, opened: &'a Opened, beyond: Option<&Value>) -> Box<dyn Walk + 'a> {
        match self.state {
            State::Ready | State::Held => Box::new(ranked::Ranked::new(self, opened, beyond)),
            State::Scheduled | State::Retrying => Box::new(future::Future::new(self, opened, beyond)),
            State::Running => taken::walk(self, opened, beyond),
            State::Dead | State::Completed | State::Cancelled | State::Skipped => {
                Box::new(ends::Ends::new(self, opened, beyond))
            }
        }
    }
}
