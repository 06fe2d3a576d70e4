//! The rows that functions return.
//!
//! Made by `make generate` from sql/schema: do not edit. Not responsible for rows of tables: see `tables`.
//!
//! Invariant: a row has the columns that the SQL declares, in its order.

use pgrx::pg_sys::Datum;

/// `queue_internal.live`.
#[derive(Clone, Copy, Default)]
pub struct LifeRow {
    pub id: Option<Datum>,
    pub job_id: Option<Datum>,
    pub enqueued_at: Option<Datum>,
    pub lane: Option<Datum>,
    pub priority: Option<Datum>,
    pub attempt: Option<Datum>,
    pub max_attempts: Option<Datum>,
    pub run_at: Option<Datum>,
    pub payload_of: Option<Datum>,
    pub headers: Option<Datum>,
    pub group_key: Option<Datum>,
    pub unique_key: Option<Datum>,
    pub last_error: Option<Datum>,
    pub progress: Option<Datum>,
    pub claimed_at: Option<Datum>,
    pub lease_us: Option<Datum>,
    pub pid: Option<Datum>,
    pub claim_kind: Option<Datum>,
    pub worker: Option<Datum>,
    pub ended_at: Option<Datum>,
    pub outcome: Option<Datum>,
    pub next_id: Option<Datum>,
    pub result: Option<Datum>,
    pub error: Option<Datum>,
    pub is_newest: Option<Datum>,
    pub flow: Option<Datum>,
    pub task: Option<Datum>,
    pub after: Option<Datum>,
    pub upon: Option<Datum>,
    pub own_flow: Option<Datum>,
    pub start_by: Option<Datum>,
    pub timing: Option<Datum>,
}

impl LifeRow {
    pub const COUNT: usize = 32;

    /// Returns the columns in their order.
    pub fn columns(&self) -> [Option<Datum>; Self::COUNT] {
        [
            self.id,
            self.job_id,
            self.enqueued_at,
            self.lane,
            self.priority,
            self.attempt,
            self.max_attempts,
            self.run_at,
            self.payload_of,
            self.headers,
            self.group_key,
            self.unique_key,
            self.last_error,
            self.progress,
            self.claimed_at,
            self.lease_us,
            self.pid,
            self.claim_kind,
            self.worker,
            self.ended_at,
            self.outcome,
            self.next_id,
            self.result,
            self.error,
            self.is_newest,
            self.flow,
            self.task,
            self.after,
            self.upon,
            self.own_flow,
            self.start_by,
            self.timing,
        ]
    }
}

/// `queue.listed_job`.
#[derive(Clone, Copy, Default)]
pub struct ListedJob {
    pub job_id: Option<Datum>,
    pub queue_name: Option<Datum>,
    pub stage: Option<Datum>,
    pub state: Option<Datum>,
    pub payload: Option<Datum>,
    pub priority: Option<Datum>,
    pub attempt: Option<Datum>,
    pub max_attempts: Option<Datum>,
    pub run_at: Option<Datum>,
    pub enqueued_at: Option<Datum>,
    pub claimed_at: Option<Datum>,
    pub finished_at: Option<Datum>,
    pub lease_expires_at: Option<Datum>,
    pub worker: Option<Datum>,
    pub error: Option<Datum>,
    pub result: Option<Datum>,
    pub progress: Option<Datum>,
    pub unique_key: Option<Datum>,
    pub group_key: Option<Datum>,
    pub headers: Option<Datum>,
    pub flow: Option<Datum>,
    pub task: Option<Datum>,
    pub after: Option<Datum>,
    pub upon: Option<Datum>,
    pub here: Option<Datum>,
    pub rows_read: Option<Datum>,
    pub start_by: Option<Datum>,
    pub timing: Option<Datum>,
}

impl ListedJob {
    pub const COUNT: usize = 28;

    /// Returns the columns in their order.
    pub fn columns(&self) -> [Option<Datum>; Self::COUNT] {
        [
            self.job_id,
            self.queue_name,
            self.stage,
            self.state,
            self.payload,
            self.priority,
            self.attempt,
            self.max_attempts,
            self.run_at,
            self.enqueued_at,
            self.claimed_at,
            self.finished_at,
            self.lease_expires_at,
            self.worker,
            self.error,
            self.result,
            self.progress,
            self.unique_key,
            self.group_key,
            self.headers,
            self.flow,
            self.task,
            self.after,
            self.upon,
            self.here,
            self.rows_read,
            self.start_by,
            self.timing,
        ]
    }
}

/// `queue.claimed_job`.
#[derive(Clone, Copy, Default)]
pub struct ClaimedJob {
    pub id: Option<Datum>,
    pub job_id: Option<Datum>,
    pub queue_name: Option<Datum>,
    pub stage: Option<Datum>,
    pub payload: Option<Datum>,
    pub headers: Option<Datum>,
    pub attempt: Option<Datum>,
    pub max_attempts: Option<Datum>,
    pub priority: Option<Datum>,
    pub unique_key: Option<Datum>,
    pub group_key: Option<Datum>,
    pub progress: Option<Datum>,
    pub last_error: Option<Datum>,
    pub enqueued_at: Option<Datum>,
    pub lease_expires_at: Option<Datum>,
}

impl ClaimedJob {
    pub const COUNT: usize = 15;

    /// Returns the columns in their order.
    pub fn columns(&self) -> [Option<Datum>; Self::COUNT] {
        [
            self.id,
            self.job_id,
            self.queue_name,
            self.stage,
            self.payload,
            self.headers,
            self.attempt,
            self.max_attempts,
            self.priority,
            self.unique_key,
            self.group_key,
            self.progress,
            self.last_error,
            self.enqueued_at,
            self.lease_expires_at,
        ]
    }
}
