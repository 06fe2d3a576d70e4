//! Steps about the rows of segments.
//!
//! Responsible for the counts, the states and the places that memory keeps of segments. Not responsible for the
//! segments themselves (`log::segment`), nor for their states' changes (`duty::storage`).
//!
//! Invariant: a rollback undoes nothing, because memory changes at the commit only.

use pg_queue_core::frontier::Place;

use crate::pg::time;
use crate::shmem::segments::State;
use crate::transaction::target::Target;

#[derive(Clone, Copy, Debug)]
pub enum SegmentStep {
    /// The row of a claimed attempt was moved to another place.
    Relocated { id: i64, place: Place },
    /// Rows that no other step counts: attempts added, and attempts ended. A note counts as both.
    Counted { segment: u8, attempts: i64, ended: i64 },
    /// The segment's state changed.
    Changed { segment: u8, generation: i64, state: State, copied_to: i64 },
}

impl SegmentStep {
    pub(super) fn commit(self, to: &mut Target<'_, '_>) {
        match self {
            Self::Relocated { id, place } => to.frontier.running.relocate(to.number, id, place),
            Self::Counted { segment, attempts, ended } => to.count_rows(segment, attempts, ended),
            Self::Changed { segment, generation, state, copied_to } => {
                to.instance.storage.changed(segment, generation, state, copied_to, time::now_us());
                // The step of the storage duty that changed the state was one of several: the worker does the next one.
                to.wake_worker();
            }
        }
    }
}
