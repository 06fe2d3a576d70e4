//! Tells other sessions of changes that they can know of only after the transaction's invalidation messages were sent.
//!
//! Responsible for waking all sessions that a change of a queue or of the extension concerns. Not responsible for the
//! moment at which that happens (`callbacks`).
//!
//! Invariant: a session that goes to sleep after `Instance::changes` was counted has read the new settings.

use std::cell::RefCell;

use crate::shmem::{self, Shared, awake, layout};
use crate::transaction::steps::{ExtensionStep, QueueStep, Step};

thread_local! {
    /// Steps that are told to other sessions only after these can know of the change, each with its instance.
    pub static TO_TELL: RefCell<Vec<(u32, Step)>> = const { RefCell::new(Vec::new()) };
}

/// Wakes the sessions that `wake` returns until it returns `None`, but no more than there are. A session that looks and
/// waits again stands at the end of the list: as many calls as there are sessions wake all that were there.
pub(super) fn wake_all(wake: impl Fn(&mut Shared<'_>) -> Option<u32>) {
    for _ in 0..layout::max_sessions() {
        match shmem::with(&wake) {
            Some(session) => shmem::wake(session),
            None => break,
        }
    }
}

/// Wakes all sessions that wait where something was changed, because each must read the settings anew. Called after the
/// transaction's invalidation messages were sent.
pub(super) fn tell(number: u32, step: Step) {
    if let Step::Extension(ExtensionStep::Adopted { marks }) = step
        && !awake::wake(number, marks)
    {
        return;
    }
    // From here on, no session goes to sleep with the old settings.
    let worker = shmem::with_instance_of(number, |_, instance| {
        instance.changes += 1;
        instance.worker.latch
    });
    let wake_worker = || worker.into_iter().for_each(shmem::wake_latch);
    match step {
        Step::Queue(QueueStep::Changed { lane, paused }) => {
            // The queue may have an executor now, or may run again.
            wake_worker();
            wake_all(|shared| {
                // It is set again: a session may have gone to sleep with the old settings meanwhile.
                shared.frontier.set_paused(number, lane, paused);
                shared.frontier.wake_any(number, lane)
            });
        }
        Step::Queue(QueueStep::Dropped { lane }) => {
            // Successors of the queue's jobs can no longer be met, and the worker can know now that it was dropped.
            if shmem::with_awaited_of(number, |awaited, _| awaited.ended_unknown()) == Some(true) {
                wake_worker();
            }
            wake_watchers(number);
            wake_all(|shared| shared.frontier.wake_any(number, lane));
            let woken = shmem::with_instance_of(number, |frontier, instance| {
                frontier.drop_lane(&mut instance.deadlines, number, lane)
            });
            woken.flatten().into_iter().for_each(shmem::wake);
        }
        Step::Queue(QueueStep::StageRemoved { lane }) => {
            wake_watchers(number);
            wake_all(|shared| shared.frontier.wake_any(number, lane));
        }
        _ => {
            if let Step::Extension(ExtensionStep::Adopted { .. }) = step {
                wake_worker();
            }
            wake_watchers(number);
            wake_all(|shared| shared.frontier.wake_any_lane(number));
        }
    }
}

/// Wakes the sessions that wait for the end of a job of which it is not known whether it exists.
fn wake_watchers(number: u32) {
    if shmem::with(|shared| shared.watchers.ended_unknown(number)) {
        shmem::wake_watchers();
    }
}
