//! The order of attempts, and where their rows lie.
//!
//! Invariant: the order of `Rank` is that of the lane's index in the logs.

/// The order in which ready attempts run: smaller first.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// The job's priority.
    pub priority: i32,
    /// The job's id. Jobs run in the order in which they were enqueued. A retried job keeps its place.
    pub job_id: i64,
}

impl Rank {
    /// Before every attempt.
    pub const MIN: Rank = Rank { priority: i32::MIN, job_id: i64::MIN };
    /// Behind every attempt.
    pub const MAX: Rank = Rank { priority: i32::MAX, job_id: i64::MAX };

    /// Returns the position just before this rank.
    pub fn before(self) -> Rank {
        Rank { priority: self.priority, job_id: self.job_id - 1 }
    }
}

/// Where an attempt's row lies: segment, block and offset.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Block number in the segment's attempt table.
    pub block: u32,
    /// Line pointer in the block.
    pub offset: u16,
    /// The segment.
    pub segment: u8,
    /// Whether the row there is in its group's index.
    pub is_indexed: bool,
}
