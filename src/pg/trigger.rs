//! The error that is raised instead of inserting into a table with a row trigger, since direct inserts would pass it
//! by.
//!
//! Responsible for the texts. Not responsible for finding such triggers (`table::Relation::refuse_triggers`,
//! `catalog::triggers`).
//!
//! Invariant: the extension's own triggers on its tables are statement triggers, and never raise this.

use std::ffi::CStr;

use pgrx::pg_sys::Oid;

use crate::error::{self, Error};
use crate::pg::syscache;

/// Raises 55000: nothing is inserted while this trigger is on the table. Needs an open transaction.
pub fn stop((table, trigger): (Oid, &CStr)) -> ! {
    let (name, trigger) = (syscache::table_name(table).unwrap_or_default(), trigger.to_string_lossy());
    Error::new(error::WRONG_STATE, format!("table \"queue.{name}\" has trigger \"{trigger}\""))
        .detail("Rows are inserted directly, so it would not see them.")
        .hint(DROP_IT)
        .report()
}

/// The hint: how to get rid of such a trigger.
pub const DROP_IT: &str = "Drop what is there; if it belongs to a tool that moves the table, end that first, \
    and do not let \
                        it put its copy into the table's place.";
