//! What a run brought.

use std::time::Duration;

use crate::server::Cost;
use crate::soak::storage::Sizes;

/// What a run brought.
pub struct Soaked {
    /// In order.
    pub windows: Vec<Window>,
    /// Jobs that should have ended and have not, some seconds after the last was sent.
    pub missing: i64,
    /// Jobs that ended twice.
    pub twice: u64,
    /// How many transactions the open snapshot had seen begin when it was closed, if there was one.
    pub snapshot_age: Option<i64>,
}

/// What happened between two looks.
pub struct Window {
    /// When it ended.
    pub end: Duration,
    /// How long it was.
    pub seconds: f64,
    /// Jobs sent.
    pub sent: u64,
    /// Jobs ended.
    pub done: u64,
    /// Jobs that should have ended by now and have not.
    pub overdue: i64,
    /// How long claims took, in milliseconds.
    pub claims: Vec<f64>,
    /// What the server has used, without the session that looks at it.
    pub cost: Cost,
    /// What lay on the disk.
    pub sizes: Sizes,
    /// Dead rows in the logs, if they were counted.
    pub dead: Option<i64>,
}
