//! One recount of an instance's counters at a time: its beginning, end and abandonment.
//!
//! Responsible for the states of a recount, and for merging its result. Not responsible for reading the logs
//! (`log::lane_counts`), nor for when to count (`duty::count`).
//!
//! Invariant: a recount whose process disappears leaves the counters unknown, never wrong.

use pg_queue_core::counter::Counter;

use crate::pg::{snapshot, time};
use crate::shmem::counting::{COUNTING, State};
use crate::shmem::instance::Instance;
use crate::shmem::lock::{self, Shared};

/// Forgets that a transaction that has enqueued was prepared. The caller must look afterwards whether one exists, so
/// that none is missed.
pub fn forget_prepared() {
    lock::with_instance(|_, instance| instance.counting.has_prepared = false);
}

/// Voids the recount that this process has begun. Called when the process exits, because an exit may run no
/// destructors. The caller holds the frontier's lock.
pub fn abandon(instances: &mut [Instance]) {
    let number = COUNTING.take();
    if let Some(instance) = instances.iter_mut().find(|i| number != 0 && i.number == number)
        && instance.counting.state == State::Counting
    {
        instance.invalidate_counters();
    }
}

/// A recount in progress. If it is dropped before `end`, it is void.
pub struct Recount {
    number: u32,
    invalidations: u64,
}

impl Recount {
    /// Empties the counters and takes the snapshot by which the caller reads the logs, in one hold of the frontier's
    /// lock. `None`: the instance was dropped, another session is counting, or the transactions in progress do not fit.
    /// The caller's transaction must have written nothing.
    pub fn begin(number: u32) -> Option<(snapshot::ActiveSnapshot, Self)> {
        let (snapshot, invalidations) = snapshot::ActiveSnapshot::take(|take| {
            lock::with(|shared| {
                let Shared { instances, counters, horizons, .. } = shared;
                let slot = instances.iter().position(|i| number != 0 && i.number == number)?;
                if instances[slot].counting.state == State::Counting {
                    return None;
                }
                let share = Shared::horizon_share(instances.len(), horizons, slot);
                let seen = take(share);
                // Every process and every prepared transaction has a place, so this does not happen. If it did, there
                // would be no further recount.
                if seen.in_progress > share.len() {
                    instances[slot].counting.next_at = i64::MAX;
                    return None;
                }
                counters.forget_instance(number);
                let counting = &mut instances[slot].counting;
                counting.state = State::Counting;
                (counting.xmin, counting.xmax, counting.in_progress) = (seen.xmin, seen.xmax, seen.in_progress as u32);
                COUNTING.set(number);
                Some(counting.invalidations)
            })
        });
        invalidations.map(|invalidations| (snapshot, Self { number, invalidations }))
    }

    /// Adds the counts of all lanes. Then the counters are known. Returns false if they were invalidated meanwhile, if
    /// there are more lanes than counters, or if the instance was dropped. The next recount begins `pause` microseconds
    /// later at the earliest. Takes the frontier's lock.
    pub fn end(self, counted: impl Iterator<Item = (i32, Counter)>, pause: i64) -> bool {
        let at = time::monotonic_us().saturating_add(pause);
        let is_known = lock::with(|shared| {
            let Shared { instances, counters, .. } = shared;
            let instance = instances.iter_mut().find(|i| i.number == self.number)?;
            instance.counting.next_at = at;
            if instance.counting.invalidations != self.invalidations {
                return None;
            }
            for (lane, counter) in counted {
                let Some(known) = counters.find_or_make(self.number, lane) else {
                    instance.give_up_counting();
                    return None;
                };
                known.add(&counter);
            }
            instance.counting.state = State::Known;
            Some(())
        });
        is_known.is_some()
    }
}

impl Drop for Recount {
    fn drop(&mut self) {
        COUNTING.set(0);
        lock::with_instance_of(self.number, |_, instance| {
            if instance.counting.state == State::Counting {
                instance.invalidate_counters();
            }
        });
    }
}
