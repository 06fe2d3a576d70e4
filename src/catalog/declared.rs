//! The declarations in the SQL of the extension.
//!
//! Responsible for the text. Not responsible for reading a declaration (`core::calls`).

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
