//! The columns of rows that functions return, by number.
//!
//! Made by `make generate` from sql/schema: do not edit. Not responsible for columns of tables: see `tables`.
//!
//! Invariant: a row has as many columns as the SQL declares, in its order.

#![allow(dead_code, reason = "each column has its number, whether or not Rust writes it")]

/// `queue_internal.live`.
pub mod life {
    pub const ID: usize = 0;
    pub const JOB_ID: usize = 1;
    pub const ENQUEUED_AT: usize = 2;
    pub const LANE: usize = 3;
    pub const PRIORITY: usize = 4;
    pub const ATTEMPT: usize = 5;
    pub const MAX_ATTEMPTS: usize = 6;
    pub const RUN_AT: usize = 7;
    pub const PAYLOAD_OF: usize = 8;
    pub const HEADERS: usize = 9;
    pub const GROUP_KEY: usize = 10;
    pub const UNIQUE_KEY: usize = 11;
    pub const LAST_ERROR: usize = 12;
    pub const PROGRESS: usize = 13;
    pub const CLAIMED_AT: usize = 14;
    pub const LEASE_US: usize = 15;
    pub const PID: usize = 16;
    pub const CLAIM_KIND: usize = 17;
    pub const WORKER: usize = 18;
    pub const ENDED_AT: usize = 19;
    pub const OUTCOME: usize = 20;
    pub const NEXT_ID: usize = 21;
    pub const RESULT: usize = 22;
    pub const ERROR: usize = 23;
    pub const IS_NEWEST: usize = 24;
    pub const FLOW: usize = 25;
    pub const TASK: usize = 26;
    pub const AFTER: usize = 27;
    pub const UPON: usize = 28;
    pub const OWN_FLOW: usize = 29;
    pub const START_BY: usize = 30;
    pub const TIMING: usize = 31;
    pub const COUNT: usize = 32;
}

/// `queue.listed_job`.
pub mod listed_job {
    pub const JOB_ID: usize = 0;
    pub const QUEUE_NAME: usize = 1;
    pub const STAGE: usize = 2;
    pub const STATE: usize = 3;
    pub const PAYLOAD: usize = 4;
    pub const PRIORITY: usize = 5;
    pub const ATTEMPT: usize = 6;
    pub const MAX_ATTEMPTS: usize = 7;
    pub const RUN_AT: usize = 8;
    pub const ENQUEUED_AT: usize = 9;
    pub const CLAIMED_AT: usize = 10;
    pub const FINISHED_AT: usize = 11;
    pub const LEASE_EXPIRES_AT: usize = 12;
    pub const WORKER: usize = 13;
    pub const ERROR: usize = 14;
    pub const RESULT: usize = 15;
    pub const PROGRESS: usize = 16;
    pub const UNIQUE_KEY: usize = 17;
    pub const GROUP_KEY: usize = 18;
    pub const HEADERS: usize = 19;
    pub const FLOW: usize = 20;
    pub const TASK: usize = 21;
    pub const AFTER: usize = 22;
    pub const UPON: usize = 23;
    pub const HERE: usize = 24;
    pub const ROWS_READ: usize = 25;
    pub const START_BY: usize = 26;
    pub const TIMING: usize = 27;
    pub const COUNT: usize = 28;
}

/// `queue.claimed_job`.
pub mod claimed_job {
    pub const ID: usize = 0;
    pub const JOB_ID: usize = 1;
    pub const QUEUE_NAME: usize = 2;
    pub const STAGE: usize = 3;
    pub const PAYLOAD: usize = 4;
    pub const HEADERS: usize = 5;
    pub const ATTEMPT: usize = 6;
    pub const MAX_ATTEMPTS: usize = 7;
    pub const PRIORITY: usize = 8;
    pub const UNIQUE_KEY: usize = 9;
    pub const GROUP_KEY: usize = 10;
    pub const PROGRESS: usize = 11;
    pub const LAST_ERROR: usize = 12;
    pub const ENQUEUED_AT: usize = 13;
    pub const LEASE_EXPIRES_AT: usize = 14;
    pub const COUNT: usize = 15;
}
