//! Steps about the times by which attempts must start.
//!
//! Responsible for telling the cursor over these times what a transaction has added and ended. Not responsible for the
//! cursor (`core::expiry`), nor for ending attempts (`duty::expire_waiting`).
//!
//! Invariant: if a look of the worker is rolled back, the cursor goes back to where that look began.

use pg_queue_core::expiry::Position;

use crate::transaction::target::Target;

#[derive(Clone, Copy, Debug)]
pub enum ExpiryStep {
    /// Attempts were inserted. This is the earliest wall time at which one of them expires.
    Waits { at: i64 },
    /// The transaction ends what has expired behind this place.
    Ends { from: Position },
}

impl ExpiryStep {
    pub(super) fn commit(self, to: &mut Target<'_, '_>) {
        if let Self::Waits { at } = self
            && to.instance.expiry.waits(at)
        {
            to.wake_worker();
        }
    }

    pub(super) fn roll_back(self, to: &mut Target<'_, '_>) {
        if let Self::Ends { from } = self {
            to.instance.expiry.go_back(from);
            to.wake_worker();
        }
    }
}
