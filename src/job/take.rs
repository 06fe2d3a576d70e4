//! Takes a waiting attempt that no worker has, to end it or to replace it, and forgets entries that the logs proved
//! wrong.

use pg_queue_core::frontier::{Owner, State, TakeOne};

use crate::error::Result;
use crate::job::held;
use crate::log::attempt::Attempt;
use crate::log::claim;
use crate::log::segment::BoundedWait;
use crate::pg::fault::fault;
use crate::pg::scan::Probe;
use crate::pg::{session, time};
use crate::shmem::{self, here};
use crate::transaction::{self, Step};

/// Drops an entry that the logs proved wrong.
pub fn forget_entry(id: i64) {
    forget_unless(id, |_| false);
}

/// Drops the entry of an attempt that has ended according to the logs. If another session is ending the attempt, its
/// callback removes the entry: requests until then have to find it.
pub fn forget_ended(id: i64) {
    forget_unless(id, |state| state == State::Ending);
}

/// Drops an entry unless its state says that it is needed.
fn forget_unless(id: i64, is_wanted: impl FnOnce(State) -> bool) {
    let woken = shmem::with_instance(|frontier, instance| {
        if frontier.entry(here::number(), id).is_some_and(|entry| is_wanted(entry.state)) {
            return (None, None);
        }
        let worker = instance.entry_leaves(frontier, id);
        (frontier.discard(&mut instance.deadlines, here::number(), id), worker)
    });
    wake(woken);
}

/// Wakes a session and the background worker.
fn wake(woken: Option<(Option<u32>, Option<*mut pgrx::pg_sys::Latch>)>) {
    let (session, worker) = woken.unwrap_or((None, None));
    if let Some(session) = session {
        shmem::wake(session);
    }
    if let Some(latch) = worker {
        shmem::wake_latch(latch);
    }
}

/// The result of taking a waiting attempt.
pub enum TakeWaiting {
    /// This transaction has the attempt, by a claim of the system. A step is recorded.
    Taken,
    /// A worker has the attempt.
    Running,
    /// An open transaction is claiming or ending the attempt.
    InUse,
    /// The attempt was claimed, and memory did not know. The caller looks again.
    Stale,
}

/// Takes a waiting attempt by a claim of the system, to end it unrun. The caller inserts the outcome.
///
/// Errors: 53400 when `running` is full.
pub fn take_waiting(attempt: &Attempt) -> Result<TakeWaiting> {
    let ready = attempt.ready();
    transaction::reserve(1);
    let owner = Owner { session: session::session(), pid: session::pid() };
    let taken = shmem::with_instance(|frontier, instance| {
        let is_due = attempt.run_at().is_none_or(|at| at <= instance.due.to);
        frontier.take_one(&mut instance.deadlines, here::number(), attempt.lane(), owner, ready, is_due)
    });
    match taken.unwrap_or(TakeOne::Full) {
        TakeOne::Taken => {
            transaction::record(Step::EndedUnrun { id: ready.id, lane: attempt.lane() });
        }
        TakeOne::Full => return Err(held::running_full()),
        TakeOne::Busy => {
            let entry = shmem::with(|shared| shared.frontier.entry(here::number(), ready.id));
            return Ok(match entry {
                Some(entry) if entry.state == State::Running => TakeWaiting::Running,
                Some(_) => TakeWaiting::InUse,
                None => TakeWaiting::Stale,
            });
        }
    }
    fault!("waiting.taken");
    // If its segment was emptied, the attempt has moved.
    let mut seen = Probe::Moved;
    if let Some(writer) = claim::Writer::open_home(attempt.home) {
        // The probe avoids a dead row.
        seen = writer.probe(ready.id);
        if seen == Probe::Absent
            && writer.insert(&[claim::New::plain(ready.id, 0)], time::now_us(), claim::Kind::System, None).is_empty()
        {
            return Ok(TakeWaiting::Taken);
        }
        seen = BoundedWait::default().settled(|| writer.probe(ready.id));
    }
    if matches!(seen, Probe::Moved | Probe::Moving) {
        keep_waiting(attempt);
    }
    forget_taken(ready.id);
    Ok(TakeWaiting::Stale)
}

/// Lets a taken attempt that waits in another place go back to `ready` when its entry is forgotten. The move may have
/// told the frontier of the attempt before it was taken.
fn keep_waiting(attempt: &Attempt) {
    shmem::with_instance(|frontier, instance| {
        // A push of a taken attempt is held back until its entry goes.
        if attempt.run_at().is_none_or(|at| at <= instance.due.to) {
            frontier.push_quietly(here::number(), attempt.lane(), attempt.ready());
        }
    });
}

/// Gives an attempt back that this transaction has taken and not claimed. It does not count as a start for the rate of
/// its queue. If a cancellation was requested meanwhile, the background worker cancels it.
pub fn give_back(attempt: &Attempt) {
    let id = attempt.id();
    transaction::unrecord(id);
    let now = time::monotonic_us();
    let woken = shmem::with_instance(|frontier, instance| {
        if frontier.entry(here::number(), id).is_some_and(|entry| entry.cancel != 0) {
            return (frontier.give_back(&mut instance.deadlines, here::number(), id, now), None);
        }
        // A push of a taken attempt is held back until its entry goes. The entry then counts as no start.
        let worker = instance.entry_leaves(frontier, id);
        frontier.push_quietly(here::number(), attempt.lane(), attempt.ready());
        (frontier.discard_stale(&mut instance.deadlines, here::number(), id), worker)
    });
    wake(woken);
}

/// Drops an attempt that was taken after the time by which it had to start. The background worker ends it.
pub fn forget_expired(attempt: &Attempt) {
    let at = attempt.start_by().unwrap_or_default();
    shmem::with_instance(|_, instance| instance.expiry.drops(at));
    forget_taken(attempt.id());
}

/// Drops an attempt that was taken although the log knows a claim of it.
pub fn forget_taken(id: i64) {
    transaction::unrecord(id);
    let woken = shmem::with_instance(|frontier, instance| {
        let worker = instance.entry_leaves(frontier, id);
        (frontier.discard_stale(&mut instance.deadlines, here::number(), id), worker)
    });
    wake(woken);
}
