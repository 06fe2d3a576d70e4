//! The extension's instance that this session uses, and what exists in it. The instance is found by the oids of
//! database and extension, so that DROP and CREATE of either never meet old state.
//!
//! Responsible for the catalogs and for the tables that say what exists: queues, topics, schedules, privileges. Not
//! responsible for the rows in the logs (`log`), nor for how a table is opened (`pg::table`).
//!
//! Invariant: a call sees one catalog (`pin`).

use pgrx::pg_sys::Oid;

pub use crate::catalog::pin::{current, pinned, segment};
pub use crate::catalog::read::shapes;
pub use crate::catalog::relations::Segment;
use crate::error;
use crate::pg::relcache;

pub mod arguments;
pub mod drops;
pub mod dump;
pub mod grants;
pub mod ids;
pub mod instance;
pub mod noted;
pub mod objects;
pub mod permission;
pub mod pin;
pub mod procedure;
pub mod queue;
pub mod read;
pub mod relations;
pub mod rights;
pub mod rows;
pub mod run_as;
pub mod schedule;
pub mod spi;
pub mod tables;
pub mod topic;
pub mod triggers;
pub mod unlogged;

/// Returns whether this is one of the extension's tables into which rows are inserted other than by SQL.
pub fn is_written_directly(table: Oid) -> bool {
    current().is_ok_and(|catalog| catalog.is_written_directly(table))
}

/// Returns the number of this database's instance; `None`: the extension is not installed. Called by the worker at its
/// start, in a transaction. Any other error is raised.
pub fn attach() -> Option<u32> {
    relcache::invalidate();
    match current() {
        Ok(catalog) => Some(catalog.number),
        Err(error) if error.code == error::UNDEFINED => None,
        // The worker dies of the error, which is logged, and comes back after a growing pause.
        Err(error) => error.report(),
    }
}
