//! The SQL functions, one file a verb; what they share: the checks that come before everything.

use crate::call::Interval;
use crate::error::{self, Error, Result};
use crate::{dormant, instance, sys};

pub mod adopt;
pub mod advance;
pub mod cancel;
pub mod claim;
pub mod complete;
pub mod doctor;
pub mod enqueue;
pub mod extend;
pub mod fail;
pub mod job;
pub mod live;
pub mod looking;
pub mod maintain;
pub mod move_job;
pub mod permissions;
pub mod progress;
pub mod queues;
pub mod release;
pub mod retry;
pub mod schedules;
pub mod stats;
pub mod throughput;
pub mod unique;
pub mod wait;

/// Refuses where nothing can be written, and while the tables are being restored.
///
/// Errors: 25006 on a standby and in a read-only transaction, 55000 during a restore.
pub fn writable(verb: &str) -> Result<()> {
    on_primary(verb)?;
    dormant::refuse(&*instance::current()?)
}

/// Refuses where nothing can be written.
///
/// Errors: 25006 on a standby and in a read-only transaction.
pub fn on_primary(verb: &str) -> Result<()> {
    if sys::in_recovery() {
        return Err(Error::new(error::READ_ONLY, format!("cannot {verb} on a standby")).hint("Connect to the primary."));
    }
    if sys::is_read_only() {
        return Err(Error::new(error::READ_ONLY, format!("cannot {verb} in a read-only transaction")));
    }
    crate::transaction::register();
    Ok(())
}

/// The length of a lease in microseconds.
///
/// Errors: 22023 unless it is between a millisecond and ten years.
pub fn lease_us(lease: Interval) -> Result<i64> {
    const TEN_YEARS: i64 = 3653 * 86_400_000_000;
    let us = lease.us();
    if (1_000..=TEN_YEARS).contains(&us) {
        return Ok(us);
    }
    Err(Error::invalid("lease must be between 1 millisecond and 10 years"))
}

/// The last `timestamptz` that Postgres takes.
pub const LAST_TIME: i64 = 9_223_371_331_199_999_999;

/// A span of time that must not be negative, as the time it ends: `None` when that is not in the future.
///
/// Errors: 22023 when it is negative or infinite.
pub fn in_future(name: &str, delay: Interval, now: i64) -> Result<Option<i64>> {
    let at = delay.after(now);
    if at < now {
        return Err(Error::invalid(format!("{name} cannot be negative")));
    }
    if at > LAST_TIME {
        return Err(Error::invalid(format!("{name} must be finite")));
    }
    Ok((at > now).then_some(at))
}

/// A point in time for a job to run: `None` when it is not in the future.
///
/// Errors: 22023 when it is infinite.
pub fn run_time(run_at: i64, now: i64) -> Result<Option<i64>> {
    if run_at == i64::MAX || run_at == i64::MIN {
        return Err(Error::invalid("run_at must be finite").hint("Leave run_at out to run the job at once."));
    }
    Ok((run_at > now).then_some(run_at))
}
