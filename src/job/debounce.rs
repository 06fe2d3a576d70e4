//! The bound of a debounced job. Each call under the job's key replaces the waiting job and puts it off. The option
//! `max_delay` says for how long, counted from the first of these calls.
//!
//! The first call stores its time beside the job's other times (`timing`), and each later call takes the time over from
//! the waiting job, or from the last request for another run of a running one. So the time is wherever the job is: in
//! moved segments, dumps and other servers.
//!
//! Responsible for the time to which a call puts a job off. Not responsible for who has the key and what becomes of a
//! call (`unique`).

use crate::catalog::queue::Queue;
use crate::job::timing::{self, Timing};
use crate::log::attempt::Attempt;
use crate::pg::datum::Interval;
use crate::pg::time::LAST_TIME;

/// The bound that a call sets.
#[derive(Clone, Copy)]
pub struct Bound {
    timing: Timing,
    max_delay: Interval,
}

impl Bound {
    /// Returns the bound of a call. `None`: it sets none.
    pub fn of_call(timing: Option<&Timing>) -> Option<Self> {
        let timing = *timing?;
        Some(Self { timing, max_delay: timing.max_delay? })
    }

    /// Returns what is said of a job and the job's time. `since`: when the job was put off first. `None`: this call is
    /// the first one.
    pub fn apply(&self, run_at: Option<i64>, since: Option<i64>, now: i64) -> (Timing, Option<i64>) {
        let since = since.map_or(now, |since| since.min(now));
        let latest = self.max_delay.after_or(since, LAST_TIME).min(LAST_TIME);
        (self.timing.delayed_since(since), run_at.map(|at| at.min(latest)).filter(|&at| at > now))
    }
}

/// Returns since when a waiting job is put off. `None`: it has no bound, or it has run since, so that the next call is
/// the first one.
pub fn since_of(queue: &Queue, attempt: &Attempt) -> Option<i64> {
    // A job that was advanced waits in a later stage. One that has just been enqueued may have begun there.
    let is_at_begin = attempt.lane() == queue.entry() || queue.is_held(attempt.lane()) || attempt.is_first();
    if attempt.last_error().is_some() || !is_at_begin {
        return None;
    }
    timing::since(attempt.timing())
}
