//! What pg_queue decides without a server: plain Rust, no Postgres, no `unsafe`.
//!
//! * [`after`]: what follows for a job that waits for others.
//! * [`awaited`]: which jobs others wait for, and which of them are to be looked at.
//! * [`backoff`]: when a failed attempt runs again.
//! * [`calls`]: what a call that Postgres does not find may have meant.
//! * [`counter`]: how many jobs wait and run, counted as it happens.
//! * [`day`]: when the records of ended attempts expire.
//! * [`due`]: up to when delayed jobs are due.
//! * [`frontier`]: which attempt is next, what is running, which sessions wait; a cache of the logs in memory that the
//!   caller gives (shared memory in the server, vectors in the tests).
//! * [`holders`]: which open transaction holds which unique key.
//! * [`id`]: how ids of jobs and attempts are made and told apart.
//! * [`minutes`]: what a lane has done in each minute of the last hour.
//! * [`missed`]: requests about an attempt that came too late for its end.
//! * [`rollup`]: what a queue did in each minute.
//! * [`schedule`]: when a recurring job is planned.
//! * [`share`]: how much of a shared resource one queue or database may hold.
//! * [`totals`]: what a lane has done since the start.
//! * [`watchers`]: which sessions wait for the end of which job.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod advice;
pub mod after;
pub mod awaited;
pub mod backoff;
pub mod calls;
pub mod counter;
pub mod day;
pub mod due;
pub mod frontier;
pub mod holders;
pub mod id;
pub mod minutes;
pub mod missed;
pub mod rollup;
pub mod schedule;
pub mod share;
pub mod synonyms;
pub mod topic;
pub mod totals;
pub mod watchers;

/// How a property is tested: with so many random cases, and with two under miri, which is a thousand times slower.
#[cfg(test)]
fn cases(cases: u32) -> proptest::test_runner::Config {
    let cases = if cfg!(miri) { 2 } else { cases };
    proptest::test_runner::Config { cases, failure_persistence: None, ..Default::default() }
}

/// How many steps a random case has: fewer than this, and fewer than ten under miri.
#[cfg(test)]
fn length(below: usize) -> std::ops::Range<usize> {
    0..if cfg!(miri) { 10 } else { below }
}
