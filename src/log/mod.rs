//! The four logs: what their rows say, and how they are written and read. Nothing in them is ever updated
//! or deleted by a verb; every state change is an insert, guarded by a key.
//!
//! | log | one row says | key |
//! |---|---|---|
//! | `attempt` | this job may be run | `id` |
//! | `claim` | this attempt was taken, by a worker or by the system | `id` of the attempt |
//! | `outcome` | this attempt ended | `id` of the attempt |
//! | `note` | something about a running attempt that must survive a crash | none |
//!
//! What has ended goes to `history` when its segment is reclaimed.

pub mod attempt;
pub mod census;
pub mod claim;
pub mod firing;
pub mod history;
mod leaf;
pub mod memory;
pub mod note;
pub mod outcome;
#[cfg(all(any(feature = "pg15", feature = "pg17", feature = "pg18"), target_endian = "little"))]
mod page;
pub mod parked;
pub mod recent;
mod rightmost;
pub mod rollup;
pub mod successor;
pub mod table;
pub mod unique;
pub mod walk;

/// Whether the marks say that an attempt has moved from where its claim and outcome were read.
pub fn has_moved(claim: Option<&claim::Claim>, outcome: Option<&outcome::Outcome>) -> bool {
    claim.is_some_and(|claim| claim.kind == claim::Kind::Moved)
        || outcome.is_some_and(|outcome| outcome.kind == outcome::Kind::Moved)
}
