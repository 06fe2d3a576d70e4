//! Steps about the extension itself: it is created or dropped, or its tables are written by SQL of others.
//!
//! Responsible for the end of an instance, and for waking an instance whose foreign writers have ended. Not responsible
//! for noticing foreign writes, nor for what an instance must do after them (`restore`).
//!
//! Invariant: an instance sleeps as long as a transaction with foreign writes is open in its database.

use std::sync::atomic::Ordering;

use crate::shmem::words;
use crate::transaction::foreign::{HAS_WRITTEN, TOUCHED};
use crate::transaction::target::Target;

#[derive(Clone, Copy, Debug)]
pub enum ExtensionStep {
    /// The extension was created where it had been dropped.
    Created,
    /// The extension was dropped.
    Dropped,
    /// The tables were written by SQL. `from`: where the tables touched by that begin in `foreign::TOUCHED`.
    ForeignWrite { from: usize },
    /// What is in the tables is adopted, unless there were more foreign writes than `marks`.
    Adopted { marks: u64 },
}

impl ExtensionStep {
    pub(super) fn is_told_later(self) -> bool {
        matches!(self, Self::Dropped | Self::Adopted { .. })
    }

    pub(super) fn commit(self, to: &mut Target<'_, '_>) {
        match self {
            Self::Dropped => {
                forget_instance(to);
                to.wake_worker();
            }
            Self::ForeignWrite { .. } => foreign_writer_ended(to, None),
            Self::Created | Self::Adopted { .. } => {}
        }
    }

    pub(super) fn roll_back(self, to: &mut Target<'_, '_>) {
        match self {
            Self::Created => forget_instance(to),
            Self::ForeignWrite { from } => foreign_writer_ended(to, Some(from)),
            Self::Dropped | Self::Adopted { .. } => {}
        }
    }
}

fn forget_instance(to: &mut Target<'_, '_>) {
    to.wake.session(to.frontier.drop_instance(&mut to.instance.deadlines, to.number));
    to.instance.number = 0;
}

/// Counts off a transaction with foreign writes, or a part of one, that has ended. `rolled_back_to`: where in `TOUCHED`
/// the part that was rolled back begins; `None`: it was committed. If it has written and no other such transaction is
/// open, all sessions look again.
fn foreign_writer_ended(to: &mut Target<'_, '_>, rolled_back_to: Option<usize>) {
    to.instance.keys.begin_turn();
    // The worker sets its timer by it.
    to.wake_worker();
    if let Some(from) = rolled_back_to {
        TOUCHED.with_borrow_mut(|touched| touched.truncate(from));
    }
    let instance = &mut *to.instance;
    if !instance.restore.writer_ended(rolled_back_to.is_none() && HAS_WRITTEN.get()) {
        return;
    }
    words::awake(to.slot).store(if instance.restore.is_awake() { to.number } else { 0 }, Ordering::Release);
    // What was read meanwhile may have met rows that were rolled back, and the duties have rested.
    to.frontier.invalidate(to.number);
    instance.invalidate_counters();
    instance.schedules.invalidate();
    instance.missed.reruns.scan();
    instance.due.next = i64::MIN;
    instance.expiry.invalidate();
    instance.changes += 1;
    while let Some(session) = to.frontier.wake_any_lane(to.number) {
        to.wake.session(Some(session));
    }
}
