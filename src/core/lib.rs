//! What pg_queue decides without a server: plain Rust, no Postgres, no `unsafe`.
//!
//! * [`after`]: whether a job is released or skipped when its predecessors end.
//! * [`awaited`]: which jobs have successors, and which of them the worker must look at.
//! * [`backoff`]: when a failed attempt runs again.
//! * [`advice`]: what a call that Postgres rejected may have meant.
//! * [`counter`]: how many jobs wait and run, counted as it happens.
//! * [`day`]: when the records of ended attempts expire.
//! * [`due`]: the cursor up to which delayed jobs are due.
//! * [`frontier`]: which attempt is next, which are running, which sessions wait. It is a cache of the logs in memory
//!   of the caller: shared memory in the server, vectors in the tests.
//! * [`holders`]: which open transaction holds which unique key.
//! * [`id`]: how ids of jobs and attempts are made and told apart.
//! * [`keys`]: what the calls of a producer do under their unique keys.
//! * [`minutes`]: what happened in a lane in each minute of the last hour.
//! * [`missed`]: requests about an attempt that came after its end.
//! * [`rollup`]: what happened in a queue in each minute.
//! * [`schedule`]: when a recurring job is planned.
//! * [`share`]: how much of a shared resource one queue or database may hold.
//! * [`span`]: a span of time as text, in the same form whatever the settings are.
//! * [`totals`]: what has happened in a lane since it was created.
//! * [`watchers`]: which sessions wait for the end of which job.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod advice;
pub mod after;
pub mod awaited;
pub mod backoff;
pub mod counter;
pub mod day;
pub mod due;
pub mod expiry;
pub mod frontier;
pub mod holders;
pub mod id;
pub mod keys;
pub mod load;
pub mod minutes;
pub mod missed;
pub mod rollup;
pub mod schedule;
pub mod share;
pub mod span;
pub mod topic;
pub mod totals;
pub mod watchers;

/// Configures a property's test: this many random cases, or two under miri, which is a thousand times slower.
#[cfg(test)]
fn cases(cases: u32) -> proptest::test_runner::Config {
    let cases = if cfg!(miri) { 2 } else { cases };
    proptest::test_runner::Config { cases, failure_persistence: None, ..Default::default() }
}

/// How many steps a random case has: fewer than this, or fewer than ten under miri.
#[cfg(test)]
fn length(below: usize) -> std::ops::Range<usize> {
    0..if cfg!(miri) { 10 } else { below }
}
