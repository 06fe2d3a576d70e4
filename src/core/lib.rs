//! What pg_queue decides without a server: plain Rust, no Postgres, no `unsafe`.
//!
//! * [`id`]: how job ids and attempt ids are made, and how they are told apart.
//! * [`backoff`]: when a failed attempt runs again.
//! * [`day`]: when what is kept of it expires.
//! * [`due`]: up to when delayed jobs are due.
//! * [`frontier`]: which attempt is next, what is running, who waits; a cache of the logs that lives
//!   in memory given by the caller (shared memory in the server, vectors in the tests).
//! * [`holders`]: which open transaction holds which unique key.
//! * [`rollup`]: what a queue did in each minute.
//! * [`schedule`]: when a recurring job is planned.
//! * [`tally`]: how many jobs wait and run, counted as it happens.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod backoff;
pub mod day;
pub mod due;
pub mod frontier;
pub mod holders;
pub mod id;
pub mod rollup;
pub mod schedule;
pub mod tally;
