//! Steps about schedules.
//!
//! Responsible for making void what memory knows of the next slot. Not responsible for firing (`duty::fire_schedules`).
//!
//! Invariant: after a change of schedules, and after a rolled-back firing, the worker looks for the next slot again.

use crate::transaction::target::Target;

#[derive(Clone, Copy, Debug)]
pub enum ScheduleStep {
    /// Schedules were made, changed or removed. `lane`: such a schedule enqueues into it, or 0.
    Changed { lane: i32 },
    /// Slots were looked at, and those that were due were dealt with.
    SlotsTaken,
}

impl ScheduleStep {
    pub(super) fn commit(self, to: &mut Target<'_, '_>) {
        if let Self::Changed { .. } = self {
            look_again(to);
        }
    }

    pub(super) fn roll_back(self, to: &mut Target<'_, '_>) {
        if let Self::SlotsTaken = self {
            look_again(to);
        }
    }
}

fn look_again(to: &mut Target<'_, '_>) {
    to.instance.schedules.invalidate();
    to.wake_worker();
}
