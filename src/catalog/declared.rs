//! The declarations in the SQL of the extension, and the names of the arguments of each function.
//!
//! Responsible for the text, and for positions as constants. Not responsible for reading a declaration (`core::calls`).
//!
//! Invariant: a name that the SQL does not declare does not compile.

use pg_queue_core::calls;

/// The SQL that makes what users call and read.
pub const SCRIPT: &str = concat!(
    include_str!("../../sql/schema/functions.sql"),
    include_str!("../../sql/schema/permissions.sql"),
    include_str!("../../sql/schema/rollup.sql"),
    include_str!("../../sql/schema/topics.sql"),
    include_str!("../../sql/schema/schedules.sql"),
    include_str!("../../sql/schema/restore.sql"),
    include_str!("../../sql/schema/views.sql"),
    include_str!("../../sql/schema/doctor.sql"),
    include_str!("../../sql/schema/tables.sql"),
);

/// The position of no argument. No call has this many.
pub const NONE: usize = usize::MAX;

/// Returns where the arguments of a function begin in the text. For constants.
pub const fn arguments_of(function: &str) -> usize {
    calls::arguments_of(SCRIPT, function).expect("the SQL declares the function")
}

/// Returns the position of an argument among those that begin there, or `NONE`. For constants.
pub const fn position(list: usize, argument: &str) -> usize {
    match calls::position(SCRIPT, list, argument) {
        Some(n) => n,
        None => NONE,
    }
}

/// The position of an argument, as a constant: `argument!(enqueue_flow, fail_fast)`.
macro_rules! argument {
    ($function:ident, $argument:ident) => {{
        use $crate::catalog::declared::{NONE, arguments_of, position};
        const POSITION: usize = position(arguments_of(stringify!($function)), stringify!($argument));
        const { assert!(POSITION != NONE, "the SQL declares no such argument") };
        POSITION
    }};
}
pub(crate) use argument;
