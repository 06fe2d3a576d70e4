//! Waits for the end of a job: what a session sees of the job, and how it sleeps and is woken.
//!
//! The commit callback of the transaction that ends the job wakes the sessions that wait for it (`core::watchers`). The
//! protocol is in docs/internals/after.md.
//!
//! Invariant: a session is noted in memory before it looks, so it sees the end or is woken by it.

use pgrx::pg_sys::Datum;

use crate::catalog::permission::{self, Privilege};
use crate::catalog::queue;
use crate::error::Result;
use crate::job::find::{self, Doing, Found};
use crate::log::{history, outcome};
use crate::pg::fault::fault;
use crate::pg::snapshot::ActiveSnapshot;
use crate::pg::{datum, process, session, time};
use crate::shmem::{self, here};

/// What a session sees of a job.
pub struct Seen {
    /// The state, as `queue.jobs` names it.
    pub state: &'static str,
    pub has_ended: bool,
    /// `None` also for a user who may not see it.
    pub result: Option<Datum>,
}

/// Reads a job as it is now.
///
/// Errors: 22023 when the id is not the id of a job, P0002 when there is no such job, 42501 when the user may neither
/// produce for its queue nor consume or observe it, 55000 when the queue was dropped.
pub fn read(job_id: i64) -> Result<Seen> {
    // A result may lie in a toast table.
    let _snapshot = ActiveSnapshot::latest();
    loop {
        process::check_for_interrupts();
        let found = find::find_settled(job_id)?;
        let lane = found.lane();
        permission::wait_for_news();
        let rights = permission::rights();
        let may = |privilege| rights.on_lane(lane, privilege);
        let may_read = may(Privilege::Observe) || may(Privilege::Consume);
        if !may_read && !may(Privilege::Produce) {
            return Err(permission::denied_lane(lane, Privilege::Observe)?);
        }
        let Some(queue) = queue::by_lane(lane)? else { return Err(find::of_dropped(job_id)) };
        let ended = found.outcome();
        let (doing, result) = match &found {
            Found::Here(job) => {
                let result = match ended {
                    Some(_) => outcome::result(job.attempt.home.segment, job.attempt.id()),
                    None => Some(None),
                };
                // The job went to history a moment ago.
                let Some(result) = result else { continue };
                let (run_at, has_failed) = (job.attempt.run_at(), job.attempt.last_error().is_some());
                (Doing { outcome: None, is_claimed: job.is_claimed, run_at, has_failed }, result)
            }
            Found::Past(past) => {
                let result = past.get(history::column::RESULT).map(datum::owned);
                (Doing { outcome: None, is_claimed: true, run_at: None, has_failed: false }, result)
            }
        };
        let doing = Doing { outcome: ended.map(|outcome| outcome.kind), ..doing };
        return Ok(Seen {
            state: doing.state_of_job(queue.is_held(lane)),
            has_ended: ended.is_some(),
            result: result.filter(|_| may_read),
        });
    }
}

/// This session's place among the sessions that wait for the end of a job. It is given up when the value is dropped.
pub struct Watcher {
    number: u32,
}

impl Watcher {
    /// Notes the session in memory. A later end of the job wakes it.
    pub fn begin(job_id: i64) -> Self {
        let number = here::number();
        shmem::with(|shared| shared.watchers.watch(session::session(), number, job_id));
        let watcher = Self { number };
        fault!("await.begun");
        watcher
    }

    /// Sleeps until the session is woken, or until the deadline on the monotonic clock. Does not sleep if the extension
    /// was dropped: memory knows of that a moment before this session does. Returns false if the client has gone.
    pub fn sleep(&mut self, deadline: i64) -> bool {
        let has_news = || {
            shmem::with(|shared| {
                let is_there = shared.instances.iter().any(|instance| instance.number == self.number);
                !is_there || shared.watchers.is_woken(session::session())
            })
        };
        while !has_news() {
            let left = deadline - time::monotonic_us();
            if left <= 0 {
                break;
            }
            if !process::sleep_for_client((left + 999) / 1_000) {
                return false;
            }
        }
        true
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        shmem::with(|shared| shared.watchers.leave(session::session()));
    }
}
