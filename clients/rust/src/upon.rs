//! Which end of other jobs a job waits for.

/// Which end of other jobs a job waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Upon {
    /// All of them have completed.
    Completed,
    /// One of them has completed.
    Any,
    /// One of them is dead.
    Failed,
    /// All of them have ended, in any way.
    Ended,
    /// They have not ended by the job's own time.
    Overdue,
}

impl Upon {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Upon::Completed => "completed",
            Upon::Any => "any",
            Upon::Failed => "failed",
            Upon::Ended => "ended",
            Upon::Overdue => "overdue",
        }
    }
}
