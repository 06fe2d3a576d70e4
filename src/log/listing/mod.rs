//! Lists the jobs of a queue in one state, page by page. It reads indexes and memory that hold these jobs and few
//! others, so the cost of a page does not depend on the number of jobs.
//!
//! Responsible for candidates, in order, and for the position of a walk. Not responsible for what is shown of a job,
//! nor for whether the job is still in that state then (`view::list`).
//!
//! Invariant: each step of a walk reads a bounded number of rows, and `here` returns the position behind it.

use serde_json::Value;

mod ends;
mod future;
mod ranked;
mod taken;
mod walk;

pub use walk::{Found, JobState, Opened, Walk, Wanted, Where};

impl Wanted<'_> {
    /// Begins a walk behind the position of another walk. An invalid position counts as the begin.
    pub fn walk<'a>(&'a self, opened: &'a Opened, beyond: Option<&Value>) -> Box<dyn Walk + 'a> {
        match self.state {
            JobState::Ready | JobState::Held => Box::new(ranked::Ranked::new(self, opened, beyond)),
            JobState::Scheduled | JobState::Retrying => Box::new(future::Future::new(self, opened, beyond)),
            JobState::Running => taken::walk(self, opened, beyond),
            JobState::Dead | JobState::Completed | JobState::Cancelled | JobState::Skipped | JobState::Expired => {
                Box::new(ends::Ends::new(self, opened, beyond))
            }
        }
    }
}
