//! Short cuts into b-trees: many entries that belong to one leaf go there at once, with one WAL record, and an entry
//! that comes behind all others finds the last leaf without a descent.
//!
//! Responsible for the plain case. Not responsible for splits, equal keys and the check for uniqueness: nbtree does all
//! that is not plain.
//!
//! Invariant: an index looks as if nbtree had made all of its entries.

pub mod leaf;
#[cfg(all(any(feature = "pg15", feature = "pg17", feature = "pg18"), target_endian = "little"))]
pub mod page;
pub mod rightmost;
