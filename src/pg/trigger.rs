//! The error for an insert into a table with a row trigger, which direct inserts would not fire.
//!
//! Responsible for the texts. Not responsible for finding such triggers (`table::Relation::refuse_triggers`,
//! `catalog::triggers`).
//!
//! Invariant: the extension's own triggers on its tables are statement triggers, and never raise this.

use std::ffi::CStr;

use pgrx::pg_sys::Oid;

use crate::error::{self, Error};
use crate::pg::syscache;

/// Raises 55000: nothing is inserted while the table has this trigger. Needs an open transaction.
pub fn stop((table, trigger): (Oid, &CStr)) -> ! {
    let (name, trigger) = (syscache::table_name(table).unwrap_or_default(), trigger.to_string_lossy());
    Error::new(error::WRONG_STATE, format!("table \"queue_internal.{name}\" has trigger \"{trigger}\""))
        .detail("Rows are inserted directly, so it would not see them.")
        .hint(DROP_IT)
        .report()
}

/// The hint: how to remove such a trigger.
pub const DROP_IT: &str = "Drop it. If it belongs to a tool that moves the table, stop that tool first, \
    and do not let \
                        it replace the table by its copy.";
