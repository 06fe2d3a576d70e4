//! The four logs: their rows, and how they are written and read. No verb updates or deletes a row; every change of
//! state is an insert, guarded by a key. Ended attempts go to `history` when their segment is reclaimed.
//!
//! | log | one row says | key |
//! |---|---|---|
//! | `attempt` | this job may be run | `id` |
//! | `claim` | this attempt was taken, by a worker or by the system | `id` of the attempt |
//! | `outcome` | this attempt ended | `id` of the attempt |
//! | `note` | something about a running attempt that must survive a crash, or what a held one is after | none |

pub mod attempt;
pub mod claim;
pub mod dead;
pub mod depth;
pub mod edge;
pub mod firing;
pub mod group_start;
pub mod history;
pub mod key;
pub mod keyed;
pub mod lane_counts;
pub mod listing;
pub mod living;
pub mod member;
pub mod note;
pub mod outcome;
pub mod parked;
pub mod reader;
pub mod recent;
pub mod retried;
pub mod rollup;
pub mod segment;
pub mod tables;
pub mod unique;
pub mod waiting;
pub mod walk;
