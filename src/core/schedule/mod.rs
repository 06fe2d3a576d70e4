//! Computes when a recurring job is planned: by a cron expression or a period, in a time zone.
//!
//! Points in time are microseconds since 2000-01-01 00:00 UTC, as in `timestamptz`. A point in time at which a job is
//! planned is a *slot*. Slots follow from the plan only, not from what has run, so any process can compute them in any
//! order. That takes microseconds, however far away the slot is.
//!
//! Invariant: no two slots of a plan are equal. [`Plan::next_after`] of a slot is the next slot, and
//! [`Plan::previous_or_at`] of a slot is that slot. Slots lie between [`EARLIEST`] and [`LATEST`].

mod bounds;
mod cron;
mod due;
mod every;
mod plan;
mod zone;

pub use bounds::{EARLIEST, LATEST};
pub use cron::{Ambiguity, Cron, ParseError};
pub use due::{Due, MAX_MISSED_SLOTS, Missed};
pub use every::{Period, PeriodError};
pub use plan::{Plan, Slots};
pub use zone::{Zone, rfc3339};

#[cfg(test)]
mod tests;
