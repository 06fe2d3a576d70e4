//! `CALL queue.wait(queue_name, timeout)`: sleeps until the queue has a job.
//!
//! Not responsible for sleeping and waking (`job::wait`), nor for claiming with a wait (`api::claim`).
//!
//! Invariant: it sleeps without a snapshot, and so does not hold back vacuum.

use pgrx::pg_sys::Datum;

use crate::api::{self, sql_function};
use crate::catalog::arguments as args;
use crate::error::{self, Error, Result};
use crate::job::wait::{ClaimScope, Waiter, Wanted, longest_wait};
use crate::job::{limits, notice, refill};
use crate::pg::datum::Interval;
use crate::pg::function::Call;
use crate::pg::{session, snapshot, time};
use crate::shmem::{self, here};

sql_function!(pg_queue_wait, pg_finfo_pg_queue_wait => wait);

/// How long a call without a timeout waits.
const DEFAULT_TIMEOUT_US: i64 = 30_000_000;

/// `CALL queue.wait(queue_name, timeout, INOUT has_jobs)`: returns whether there are jobs. If `timeout` is NULL, it is
/// 30 seconds.
///
/// Errors: 25001 inside a transaction block or a function, 22023 if the timeout is negative.
fn wait(call: &Call) -> Result<Option<Datum>> {
    if session::in_recovery() {
        api::writable("wait")?;
    }
    crate::transaction::register();
    let wanted = [Wanted { queue_name: call.need(args::wait::QUEUE_NAME)?, stages: vec![None] }];
    let timeout = call.get(args::wait::TIMEOUT).map_or(DEFAULT_TIMEOUT_US, Interval::us);
    if timeout < 0 {
        let given = call.get(args::wait::TIMEOUT).map_or_else(String::new, Interval::text);
        return Err(Error::invalid("timeout cannot be negative").detail(format!("It is {given}.")));
    }
    if call.is_atomic() {
        return Err(Error::new(
            error::IN_TRANSACTION,
            "queue.wait cannot run inside a transaction block or a function",
        )
        .hint("Call it on its own, or use queue.claim with wait."));
    }
    // The default timeout is longer than the default of `pg_queue.max_wait`, so it gets no notice.
    if timeout != DEFAULT_TIMEOUT_US {
        notice::wait_is_cut(timeout);
    }
    let deadline = time::monotonic_us().saturating_add(longest_wait(timeout));
    let has_jobs = loop {
        let known = ClaimScope::now(&wanted, true)?;
        if has_jobs(&known)? {
            break true;
        }
        if time::monotonic_us() >= deadline {
            break false;
        }
        if let Some(mut sleeper) = Waiter::begin(&known, 0)? {
            drop(known);
            snapshot::drop_snapshots();
            if !sleeper.sleep(deadline) {
                break false;
            }
        }
    };
    call.result_row(&mut [has_jobs.into()], &mut [false]).map(Some)
}

fn has_jobs(known: &ClaimScope) -> Result<bool> {
    let number = here::number();
    for (queue, lanes) in known.each().filter(|(queue, _)| !queue.is_paused && !known.is_dormant) {
        let claimer = queue.limits.map(|limits| limits::without_claims(queue, limits));
        for &lane in lanes {
            refill::refill(lane)?;
            let has_jobs = shmem::with(|shared| {
                shared.frontier.update_gate(number, lane, claimer.as_ref());
                shared.frontier.has_jobs(number, lane)
            });
            if has_jobs {
                return Ok(true);
            }
        }
    }
    Ok(false)
}
