//! For what end of other jobs a job waits.

/// For what end of other jobs a job waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Upon {
    /// That all have completed.
    Completed,
    /// That one is dead.
    Failed,
    /// That all have ended, however.
    Ended,
    /// That they have not ended by the job's own time.
    Overdue,
}

impl Upon {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Upon::Completed => "completed",
            Upon::Failed => "failed",
            Upon::Ended => "ended",
            Upon::Overdue => "overdue",
        }
    }
}
