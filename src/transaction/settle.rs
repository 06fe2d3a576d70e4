//! Applies the steps of a transaction at its end, under the frontier's lock.
//!
//! Responsible for the order of the steps, for how many are applied under one hold of the lock, and for waking sessions
//! afterwards. Not responsible for when that happens (`callbacks`), for what a step does (`steps`), nor for what a
//! commit counts (`commit_counts`).
//!
//! Invariant: nothing here can fail: it takes the lock, walks a list and sets latches; it allocates nothing and runs no
//! SQL.

use std::cell::LazyCell;

use crate::pg::fault::fault_quietly;
use crate::pg::{session, time, transaction};
use crate::shmem::{self, keys};
use crate::transaction::commit_counts::CommitCounts;
use crate::transaction::pending::{self, Pending};
use crate::transaction::steps::Step;
use crate::transaction::target::{Target, Wake};
use crate::transaction::tell::{TO_TELL, wake_all};

/// How many steps are applied under one hold of the lock.
const STEPS_PER_HOLD: usize = 256;

/// Makes the frontier and the worker look again after COMMIT PREPARED or ROLLBACK PREPARED: jobs may have appeared that
/// no callback pushed. Called only for a transaction that may have done something of the extension's.
pub fn prepared_ended() {
    fault_quietly!("prepared.ended");
    keys::prepared_ended();
    let database = session::database();
    let mut worker = std::ptr::null_mut();
    let mut number = 0;
    shmem::with(|shared| {
        let shmem::Shared { frontier, instances, watchers, .. } = shared;
        if let Some(instance) = instances.iter_mut().find(|i| i.number != 0 && i.database == database) {
            watchers.ended_unknown(instance.number);
            frontier.invalidate(instance.number);
            instance.prepared_ended();
            // Requests to cancel are never prepared.
            instance.missed.reruns.scan();
            instance.due.next = i64::MIN;
            instance.expiry.invalidate();
            worker = instance.worker.latch;
            number = instance.number;
        }
    });
    shmem::wake_latch(worker);
    shmem::wake_watchers();
    wake_all(|shared| shared.frontier.wake_any_lane(number));
}

/// Tells the frontier of attempts for which others of their groups wait in strict order. This comes before all other
/// steps of a commit: one of them frees the group's place, and no claim may come in between. Cannot fail.
pub fn tell_retries(steps: &[Pending]) {
    for steps in steps.chunks(STEPS_PER_HOLD) {
        shmem::with(|shared| {
            for (instance, lane, ready) in pending::retries(steps) {
                shared.frontier.retry_waits(instance, lane, ready.group, ready.id);
            }
        });
    }
    fault_quietly!("commit.retries");
}

/// Applies these steps, the first one first at a commit, the last one first at a rollback. Takes the frontier's lock
/// for [`STEPS_PER_HOLD`] steps at a time, and wakes sessions after each. Cannot fail.
pub fn settle(pending: &[Pending], committed: bool) {
    // The clock is read only if a step asks for it; most do not.
    let now: LazyCell<i64> = LazyCell::new(time::monotonic_us);
    let xid = if committed { transaction::transaction_id() } else { 0 };
    let apply = |steps: &mut dyn Iterator<Item = &Pending>| {
        let mut wake = Wake::default();
        shmem::with(|shared| {
            // It is opened under each hold of the lock: a recount may have begun since the last one.
            let mut counts = CommitCounts::open(xid);
            for p in steps {
                let Some(slot) = shared.instances.iter().position(|i| i.number == p.instance) else { continue };
                let mut to = Target::new(shared, slot, &now, &mut wake);
                if committed {
                    p.step.commit(&mut to);
                    let busy_us = to.busy_us;
                    if p.step.is_told_later() {
                        // `pending::record` has made the room.
                        TO_TELL.with_borrow_mut(|later| later.push((p.instance, p.step)));
                    }
                    let shmem::Shared { instances, horizons, counters, .. } = shared;
                    counts.enter(instances, slot, horizons, counters, p.step, busy_us);
                } else {
                    p.step.roll_back(&mut to);
                }
                if shared.instances[slot].number == 0 {
                    shared.counters.forget_instance(p.instance);
                }
            }
            counts.close(shared.instances, &mut shared.counters);
            // Groups may be at their rate from now on; the worker lets them start again.
            if let Some(at) = shared.frontier.next_opening()
                && let Some(p) = pending.last()
                && let Some(instance) = shared.instances.iter_mut().find(|i| i.number == p.instance)
                && let Some(latch) = instance.worker.wake_by(at)
            {
                wake.worker = Some(latch);
            }
        });
        wake.go();
    };
    if committed {
        pending.chunks(STEPS_PER_HOLD).for_each(|chunk| apply(&mut chunk.iter()));
    } else {
        pending.rchunks(STEPS_PER_HOLD).for_each(|chunk| apply(&mut chunk.iter().rev()));
    }
}

/// Counts the rows of a transaction that is being prepared. COMMIT PREPARED counts nothing, and the rows are there,
/// committed or not.
pub fn count_prepared(pending: &[Pending]) {
    let now: LazyCell<i64> = LazyCell::new(time::monotonic_us);
    let mut wake = Wake::default();
    shmem::with(|shared| {
        for p in pending {
            if let Step::Enqueued { ready, .. } = p.step
                && let Some(slot) = shared.instances.iter().position(|i| i.number == p.instance)
            {
                Target::new(shared, slot, &now, &mut wake).count_rows(ready.place.segment, 1, 0);
            }
        }
    });
    wake.go();
}
