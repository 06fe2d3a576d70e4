//! After a start, reads the claims without an outcome into memory, so that their leases can expire. The leases begin
//! again, with the longest length they were given. Claims that end with a connection are due immediately.
//!
//! Not responsible for the reading itself (`job::recover`). This file only says when it is due.
//!
//! Everything else works before this is done: if memory does not know a claim, a completion reads it from the logs.

use crate::duty::{Duty, Memory, Work};
use crate::job::recover;

/// The duty.
pub const DUTY: Duty = Duty { name: "recover", is_due: None, next_at, work: Work::Own(|| Ok(recover::recover_all())) };

fn next_at(memory: &Memory<'_, '_>) -> i64 {
    if memory.instance.is_recovered() { i64::MAX } else { recover::next_try() }
}
