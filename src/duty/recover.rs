//! After a start, reads the claims without an outcome into memory, so that their leases can end. The leases begin
//! anew, with the longest length they were given; claims bound to a connection are due at once.
//!
//! Not here: the reading itself (`job::recover`). This file only says when it is due.
//!
//! Until this is done everything else works: a completion asks the logs about a claim that memory does not know.

use crate::duty::{Duty, Memory};
use crate::job::recover;

/// The duty.
pub const DUTY: Duty = Duty { name: "recover", is_due: None, next_at, run: recover::recover_all };

fn next_at(memory: &Memory<'_, '_>) -> i64 {
    if memory.instance.is_recovered() { i64::MAX } else { recover::next_try() }
}
