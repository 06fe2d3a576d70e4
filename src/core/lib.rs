//! What pg_queue decides without a server: plain Rust, no Postgres, no `unsafe`.
//!
//! * [`backoff`]: when a failed attempt runs again.
//! * [`counter`]: how many jobs wait and run, counted as it happens.
//! * [`day`]: when the records of ended attempts expire.
//! * [`due`]: up to when delayed jobs are due.
//! * [`frontier`]: which attempt is next, what is running, which sessions wait; a cache of the logs in memory that the
//!   caller gives (shared memory in the server, vectors in the tests).
//! * [`holders`]: which open transaction holds which unique key.
//! * [`id`]: how ids of jobs and attempts are made and told apart.
//! * [`rollup`]: what a queue did in each minute.
//! * [`schedule`]: when a recurring job is planned.
//! * [`share`]: how much of a shared resource one queue or database may hold.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod backoff;
pub mod counter;
pub mod day;
pub mod due;
pub mod frontier;
pub mod holders;
pub mod id;
pub mod rollup;
pub mod schedule;
pub mod share;
