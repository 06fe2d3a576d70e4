//! The mirror of whether an instance is awake, which verbs read without a lock, and the end of a restore in memory.
//!
//! Responsible for the mirror. Not responsible for the states (`restore`), nor for noticing a restore and deciding that
//! it is over (`crate::restore`). `transaction::settle` also writes the mirror, when a foreign writer ends.
//!
//! Invariant: the mirror changes together with the state, under the frontier's lock.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use pg_queue_core::frontier::Frontier;

use crate::pg::time;
use crate::shmem::drops::Dropping;
use crate::shmem::here::{self, Here};
use crate::shmem::instance::Instance;
use crate::shmem::ledger::Ledger;
use crate::shmem::restore::{RestoreState, State};
use crate::shmem::{lock, words};

thread_local! {
    /// The state of the segments, as the adopting transaction read it.
    pub static LEDGER: Cell<Option<Ledger>> = const { Cell::new(None) };
}

/// True if the instance that this process works for may be used, as far as memory knows. False also if memory does not
/// know yet. True if the instance was dropped: the caller's next step finds that out. If the mirror says that it is
/// awake, the call costs one atomic load. Otherwise it takes the frontier's lock, so it must not be called under that
/// lock.
pub fn is_awake() -> bool {
    let Here { number, slot } = here::here();
    if words::awake(slot).load(Ordering::Acquire) == number && number != 0 {
        return true;
    }
    // If the instance was dropped, the caller's next step finds that out.
    lock::with_instance(|_, instance| instance.restore.is_awake()).unwrap_or(true)
}

/// Returns the slot of an instance. `None`: the instance was dropped.
fn slot_of(instances: &[Instance], number: u32) -> Option<usize> {
    instances.iter().position(|i| number != 0 && i.number == number)
}

/// Runs `f`, which changes whether an instance is awake, and updates the mirror, both in one hold of the frontier's
/// lock. `None`: the instance was dropped.
pub fn change<R>(number: u32, f: impl FnOnce(&mut Frontier<'_>, &mut Instance) -> R) -> Option<R> {
    lock::with(|shared| {
        let slot = slot_of(shared.instances, number)?;
        let instance = &mut shared.instances[slot];
        let result = f(&mut shared.frontier, instance);
        words::awake(slot).store(if instance.restore.is_awake() { number } else { 0 }, Ordering::Release);
        Some(result)
    })
}

/// Ends a restore in memory. Called when the adopting transaction has committed and all sessions have been told of
/// changed queues. Everything in memory will be read again from the logs, except which session holds which attempt.
/// Returns false and does nothing if a foreign write came meanwhile (`marks` has changed), or the instance was dropped.
/// Takes the frontier's lock. Cannot fail.
pub fn wake(number: u32, marks: u64) -> bool {
    let now = time::now_us();
    let is_awake = change(number, |frontier, instance| {
        if instance.restore.marks != marks {
            return false;
        }
        let was_awake = instance.restore.is_awake();
        instance.restore = RestoreState { state: State::Awake, marks, is_suspect: true, ..RestoreState::default() };
        (instance.ids.next, instance.ids.limit) = (0, 0);
        // As at the server's start, every attempt that is due now lies behind its lane's position.
        (instance.due.to, instance.due.next) = (now, i64::MIN);
        instance.expiry.invalidate();
        // What has started is read anew, too: a gate that a claim has made meanwhile does not know it.
        instance.recovered_at = 0;
        frontier.drop_gates(number, None);
        instance.missed.scan();
        instance.schedules.invalidate();
        instance.invalidate_counters();
        // If the instance was awake, the ring of segments may have turned after the ledger was read.
        if let Some(ledger) = LEDGER.take().filter(|_| !was_awake) {
            ledger.apply(instance);
        }
        // The restore may have brought lanes of dropped queues back into use.
        instance.drops.marks.iter_mut().for_each(Dropping::forget_dropped);
        frontier.forget_ready(number);
        true
    });
    lock::with_awaited_of(number, |awaited, _| awaited.order());
    is_awake.unwrap_or(false)
}
