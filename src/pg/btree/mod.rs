//! Short cuts into b-trees. Many entries for one leaf are inserted together, with one WAL record. An entry that belongs
//! behind all others finds the last leaf without a descent.
//!
//! Responsible for the plain case. Not responsible for splits, equal keys and the check for uniqueness: nbtree does
//! these.
//!
//! Invariant: an index looks as if nbtree had inserted all its entries.

pub mod leaf;
#[cfg(all(not(feature = "pg16"), target_endian = "little"))]
pub mod page;
pub mod rightmost;
pub mod search;
