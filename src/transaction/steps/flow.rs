//! Steps about jobs whose successors wait for their end.
//!
//! Responsible for telling memory which jobs are awaited, and which have ended although the frontier did not know them.
//! Not responsible for the release of successors (`duty::release`).
//!
//! Invariant: a rollback undoes nothing. A job that is no longer awaited costs at most one false positive.

use crate::transaction::target::Target;

#[derive(Clone, Copy, Debug)]
pub enum FlowStep {
    /// A successor of this job was enqueued. `mark`: the job was announced then, and lived.
    Awaited { job_id: i64, mark: Option<u64> },
    /// A job was ended unrun that the frontier does not know. 0: many jobs were, and it is not known which.
    JobEnded { job_id: i64 },
}

impl FlowStep {
    pub(super) fn commit(self, to: &mut Target<'_, '_>) {
        match self {
            Self::Awaited { job_id, mark } => {
                let wakes_worker = match mark {
                    Some(mark) => to.awaited.add_announced(job_id, mark),
                    None => to.awaited.add(job_id),
                };
                if wakes_worker {
                    to.wake_worker();
                }
            }
            Self::JobEnded { job_id } => to.job_ended(job_id),
        }
    }
}
