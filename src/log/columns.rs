//! The columns of `queue.attempt_N`, by number.

pub const ID: usize = 0;
pub const JOB_ID: usize = 1;
pub const ENQUEUED_AT: usize = 2;
pub const LANE: usize = 3;
pub const PRIORITY: usize = 4;
pub const ATTEMPT: usize = 5;
pub const MAX_ATTEMPTS: usize = 6;
pub const RUN_AT: usize = 7;
pub const GROUP_HASH: usize = 8;
pub const PAYLOAD_OF: usize = 9;
pub const PAYLOAD: usize = 10;
pub const LEASE: usize = 11;
pub const HEADERS: usize = 12;
pub const GROUP_KEY: usize = 13;
pub const UNIQUE_KEY: usize = 14;
pub const VERSION: usize = 15;
pub const LAST_ERROR: usize = 16;
pub const PROGRESS: usize = 17;
pub const ASKED: usize = 18;
pub const FLOW: usize = 19;
pub const TASK: usize = 20;
pub const AFTER: usize = 21;
pub const UPON: usize = 22;
pub const STEPS: usize = 23;
pub const COUNT: usize = 24;
