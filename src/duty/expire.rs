//! Ends attempts whose lease is over, or whose connection has gone: the next attempt is offered at once,
//! or the job is dead. Also cancels those that were to be cancelled while their claim was open and rolled
//! back.

use std::cell::Cell;
use std::rc::Rc;

use pg_queue_core::frontier::Running;

use crate::api::cancel;
use crate::api::fail::{Failure, end_badly};
use crate::duty::Duty;
use crate::error::{self, Error, Result};
use crate::hold::{self, Outcomes, Refusal, Waiting};
use crate::instance::{self, Catalog};
use crate::log::attempt::Reader;
use crate::log::outcome::{Kind, New};
use crate::{shmem, sys, transaction};

/// The duty.
pub const DUTY: Duty = Duty { name: "expire", is_due, run };

/// Attempts per transaction.
const BATCH: usize = 200;
/// When another transaction is ending the attempt: look again after this many microseconds.
const LATER: i64 = 1_000_000;
/// And when it cannot be ended.
const MUCH_LATER: i64 = 60_000_000;

fn expired(number: u32) -> Option<Running> {
    let now = sys::monotonic_us();
    shmem::with_instance(number, |frontier, instance| frontier.expired(instance.deadlines, now)).flatten()
}

fn is_due(number: u32) -> bool {
    expired(number).is_some()
}

thread_local! {
    /// The last batch has begun and not ended: an error has undone it.
    static HAS_FAILED: Cell<bool> = const { Cell::new(false) };
}

fn run(number: u32) -> i64 {
    transaction::register();
    let Some(catalog) = instance::of_duty(number) else { return 0 };
    let ended = if HAS_FAILED.replace(true) { one_by_one(&catalog) } else { all_at_once(&catalog) };
    HAS_FAILED.set(false);
    ended
}

/// Each in a subtransaction of its own: one that cannot be ended is not to keep the others from it.
fn one_by_one(catalog: &Rc<Catalog>) -> i64 {
    let mut ended = 0;
    for _ in 0..BATCH {
        let Some(entry) = expired(catalog.number) else { break };
        let result = sys::in_subtransaction(|| {
            let mut outcomes = Outcomes::new(catalog);
            let is_done = end(catalog, &mut outcomes, &entry)?;
            outcomes.insert()?;
            Ok(is_done)
        });
        match result {
            Ok(is_done) => ended += i64::from(is_done),
            Err(error) => {
                let what = format!("attempt {} could not be ended: {}", entry.id, error.message);
                Error::new(error.code, what).detail("It is tried again in a minute.").warn();
                postpone(catalog, entry.id, MUCH_LATER);
            }
        }
        sys::check_for_interrupts();
    }
    ended
}

fn all_at_once(catalog: &Rc<Catalog>) -> i64 {
    let mut outcomes = Outcomes::new(catalog);
    let mut ended = 0;
    for _ in 0..BATCH {
        let Some(entry) = expired(catalog.number) else { break };
        match end(catalog, &mut outcomes, &entry) {
            Ok(true) => ended += 1,
            Ok(false) => {}
            Err(error) => error.report(),
        }
        sys::check_for_interrupts();
    }
    if let Err(error) = outcomes.insert() {
        error.report();
    }
    ended
}

fn end(catalog: &Rc<Catalog>, outcomes: &mut Outcomes, entry: &Running) -> Result<bool> {
    if entry.claimed == 0 {
        return cancel_unclaimed(catalog, entry);
    }
    let held = match hold::running(outcomes, entry.id) {
        Ok(held) => held,
        // It has ended; memory has learned that now.
        Err(Refusal::Lost(_)) => return Ok(false),
        Err(Refusal::Wrong(e)) => return Err(e),
        Err(Refusal::Busy(_)) => {
            postpone(catalog, entry.id, LATER);
            return Ok(false);
        }
    };
    // The same words for all, so that queue.errors counts them together.
    let error = if entry.bound != 0 && entry.deadline == i64::MIN {
        "the connection of the worker ended"
    } else {
        "the lease expired"
    };
    match end_badly(catalog, outcomes, &held, &Failure::TimedOut { error }) {
        Ok(_) => Ok(true),
        // Where the job is to go on is being dropped by an open transaction. Nothing was inserted; the others go on.
        Err(e) if e.code == error::IN_USE => {
            hold::undo(catalog, entry.id);
            postpone(catalog, entry.id, LATER);
            Ok(false)
        }
        Err(e) => Err(e),
    }
}

fn postpone(catalog: &Catalog, id: i64, by: i64) {
    shmem::with_instance(catalog.number, |frontier, instance| {
        // Its worker may have extended it meanwhile.
        let now = sys::monotonic_us();
        frontier.postpone(&mut instance.deadlines, catalog.number, id, now, now + by);
    });
}

/// Its claim was rolled back after somebody had asked for it to be cancelled.
fn cancel_unclaimed(catalog: &Rc<Catalog>, entry: &Running) -> Result<bool> {
    let Some(attempt) = Reader::new(catalog).fetch(&entry.ready()) else {
        hold::discard(catalog, entry.id);
        return Ok(false);
    };
    // Anything but Taken: another transaction has it, or memory has learned better.
    if let Waiting::Taken = hold::waiting(catalog, &attempt)? {
        cancel::end_unrun(catalog, &attempt, New::of(entry.id, Kind::Cancelled))?;
        return Ok(true);
    }
    Ok(false)
}
