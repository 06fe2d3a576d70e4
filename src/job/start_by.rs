//! The time by which a job must start: given by a call, or by its queue.
//!
//! Responsible for that time of each new attempt. Not responsible for what a call may say (`timing`), for refusing late
//! claims (`claim`), nor for ending jobs that have expired (`duty::expire_waiting`).
//!
//! Invariant: an attempt that is made from another one of a job that has started gets no time from its queue.

use crate::catalog::queue::Queue;
use crate::error::{self, Error, Result};
use crate::job::timing::{self, StartBy};
use crate::log::attempt::New;
use crate::pg::time::LAST_TIME;

/// The time that a held attempt has if its release must not give it one: the job has started before.
pub const NEVER: i64 = i64::MAX;

/// Checks that a waiting job may start before the time by which it must.
///
/// Errors: 55000 otherwise.
pub fn check_goes_on(job_id: i64, start_by: Option<i64>, run_at: Option<i64>) -> Result<()> {
    check_after(start_by, run_at).map_err(|_| {
        Error::new(error::WRONG_STATE, format!("job {job_id} would expire before it may start"))
            .detail("It must start before that time: start_by of view queue.jobs.")
            .hint("Give an earlier time, or cancel it and enqueue another one.")
    })
}

/// Checks that a new job may start before the time by which it must.
///
/// Errors: 22023 otherwise.
pub fn check_after(start_by: Option<i64>, run_at: Option<i64>) -> Result<()> {
    match (start_by, run_at) {
        (Some(start_by), Some(run_at)) if run_at >= start_by => {
            Err(Error::invalid("the job would expire before it may start")
                .detail("Its start_by is not after its run_at.")
                .hint("Give a later start_by, or an earlier run_at."))
        }
        _ => Ok(()),
    }
}

/// Returns the time by which a new job must start. `None`: it may start at any time.
pub fn of_new(queue: &Queue, own: Option<StartBy>, run_at: Option<i64>, now: i64) -> Option<i64> {
    let wanted = own.or(queue.start_within.map(StartBy::Within))?;
    Some(match wanted {
        StartBy::At(at) => at,
        StartBy::Within(span) => span.after_or(run_at.unwrap_or(now), LAST_TIME).min(LAST_TIME),
    })
}

/// Returns the time for an attempt that is held: the one that its producer gave. A span begins with its release.
pub fn of_held(own: Option<StartBy>) -> Option<i64> {
    match own {
        Some(StartBy::At(at)) => Some(at),
        Some(StartBy::Within(_)) | None => None,
    }
}

/// Returns the time for an attempt that is released, made from a held one.
pub fn of_released(queue: &Queue, held: &New, now: i64) -> Option<i64> {
    match held.start_by {
        Some(NEVER) => None,
        Some(at) => Some(at),
        None => of_new(queue, timing::start_by(held.timing), held.run_at, now),
    }
}
