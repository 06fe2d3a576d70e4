//! Ends attempts whose lease has expired or whose connection has ended. The next attempt is offered immediately, or the
//! job is dead. If a cancel was requested while the claim was open, and the claim was rolled back, cancels the attempt.
//!
//! Not responsible for the deadlines (the frontier keeps them, `shmem` has them), nor for ending an attempt badly
//! (`job::fail`).
//!
//! Invariant: an attempt that cannot be ended is postponed and does not block others.

use pg_queue_core::frontier::Running;

use crate::duty::care::{Care, PUT_OFF_US};
use crate::duty::{Duty, Memory, Work};
use crate::error::{self, Result};
use crate::job::fail::{Failure, end_badly};
use crate::job::held::Refusal;
use crate::job::hold;
use crate::job::outcomes::{Outcomes, end_unrun};
use crate::job::take::{self, TakeWaiting};
use crate::log::outcome::{Kind, New};
use crate::log::reader::Reader;
use crate::pg::fault::fault;
use crate::pg::{process, time};
use crate::shmem::here;
use crate::{shmem, transaction};

/// The duty.
pub const DUTY: Duty = Duty { name: "expire", is_due: Some(is_due), next_at, work: Work::Items(run) };

/// At most this many attempts per transaction.
const BATCH_ATTEMPTS: usize = 200;
/// If another transaction is ending the attempt, the duty looks again after this many microseconds.
const RETRY_AFTER_US: i64 = 1_000_000;

fn expired() -> Option<Running> {
    let now = time::monotonic_us();
    shmem::with_instance(|frontier, instance| frontier.running.expired(instance.deadlines, now)).flatten()
}

fn next_at(memory: &Memory<'_, '_>) -> i64 {
    memory.frontier.running.next_deadline(memory.instance.deadlines).unwrap_or(i64::MAX)
}

fn is_due() -> bool {
    expired().is_some()
}

fn run(care: &Care) -> Result<i64> {
    transaction::register();
    let (mut together, mut ended) = (Outcomes::new(), 0);
    for _ in 0..BATCH_ATTEMPTS {
        let Some(entry) = expired() else { break };
        let end = || {
            if !care.is_careful() {
                return end_expired(&mut together, &entry);
            }
            let mut own = Outcomes::new();
            let is_done = end_expired(&mut own, &entry)?;
            own.insert()?;
            Ok(is_done)
        };
        match care.serve(|| format!("attempt {} could not be ended", entry.id), end)? {
            Some(is_done) => ended += i64::from(is_done),
            None => postpone(entry.id, PUT_OFF_US),
        }
        process::check_for_interrupts();
    }
    together.insert()?;
    Ok(ended)
}

fn end_expired(outcomes: &mut Outcomes, entry: &Running) -> Result<bool> {
    fault!("expire.found");
    if entry.claimed == 0 {
        return cancel_unclaimed(entry);
    }
    let held = match hold::expired(outcomes, entry.id, entry.deadline) {
        Ok(held) => held,
        // The attempt has ended, and memory has just learned of it. Or its worker has extended the lease.
        Err(Refusal::Lost(_)) => return Ok(false),
        Err(Refusal::Unfit(e) | Refusal::Wrong(e)) => return Err(e),
        Err(Refusal::Busy(_)) => {
            postpone(entry.id, RETRY_AFTER_US);
            return Ok(false);
        }
    };
    // All attempts get the same text, so that queue.errors counts them together.
    let error = if entry.disconnect.is_broken() || entry.disconnect.expires() && entry.deadline == i64::MIN {
        "the connection of the worker ended"
    } else {
        "the lease expired"
    };
    match end_badly(outcomes, &held, &Failure::TimedOut { error }) {
        Ok(_) => Ok(true),
        Err(Refusal::Lost(_)) => Ok(false),
        // An open transaction is dropping the queue in which the job would continue. Nothing was inserted. The other
        // attempts are still ended.
        Err(Refusal::Busy(e) | Refusal::Wrong(e)) if e.code == error::IN_USE => {
            hold::release_hold(entry.id);
            postpone(entry.id, RETRY_AFTER_US);
            Ok(false)
        }
        Err(e) => Err(e.into()),
    }
}

fn postpone(id: i64, by: i64) {
    fault!("expire.postponed");
    shmem::with_instance(|frontier, instance| {
        // The worker may have extended the lease meanwhile.
        let now = time::monotonic_us();
        frontier.running.postpone(&mut instance.deadlines, here::number(), id, now, now + by);
    });
}

/// Cancels an attempt whose claim was rolled back after a cancel request. False: there was nothing to cancel, or it
/// cannot be cancelled yet.
fn cancel_unclaimed(entry: &Running) -> Result<bool> {
    let Some(attempt) = Reader::new().fetch(&entry.ready()) else {
        take::forget_entry(entry.id);
        return Ok(false);
    };
    // If it cannot be taken, another transaction has it, or memory was corrected.
    if let TakeWaiting::Taken = take::take_waiting(&attempt)? {
        end_unrun(&attempt, New::of(entry.id, Kind::Cancelled))?;
        return Ok(true);
    }
    Ok(false)
}
