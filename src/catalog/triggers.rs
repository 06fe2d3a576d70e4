//! What cannot be on the tables into which rows are inserted directly: triggers, rules, foreign keys. None of them
//! would see a row, and a tool that moves a table by what its trigger has seen would lose jobs, or have them run twice.
//!
//! They are refused when they are made (`worker::hooks` sees that). One that was made while the library was not loaded
//! is found by the first insert into the table, which holds a lock that keeps other sessions from making one
//! (`pg::trigger`).

use pgrx::pg_sys::Oid;

use crate::catalog::{self, spi};
use crate::error::{self, Error, Result};
use crate::pg::{role, session, syscache};

/// Refuses a trigger, rule or foreign key that is being made for this table. What runs for a statement of the
/// extension's runs as the owner of the tables, so on none of them can another role have one, whatever it was granted.
///
/// Errors: 0A000 if rows are inserted into the table directly; 42501 if the table is one of the extension's, and not
/// the current user's.
pub fn refuse_at(table: Oid) -> Result<()> {
    // The triggers of the extension's own script see statements, and are there for SQL that is not the extension's.
    let is_ours = session::is_in_our_script() || spi::OWN.get() > 0;
    if session::is_binary_upgrade() || is_ours {
        return Ok(());
    }
    let name = syscache::table_name(table).unwrap_or_default();
    if syscache::is_in_our_schema(table) && !role::owns_table(table) {
        return Err(Error::new(
            error::DENIED,
            format!("\"queue.{name}\" takes triggers, rules and foreign keys of its owner only"),
        )
        .detail("They would run for other roles' statements, or refuse them.")
        .hint("Let triggers of your own tables call the functions of pg_queue."));
    }
    if !catalog::is_written_directly(table) {
        return Ok(());
    }
    Err(Error::new(error::NOT_SUPPORTED, format!("table \"queue.{name}\" cannot have triggers, rules or foreign keys"))
        .detail("Rows are inserted into it directly; triggers, rules and foreign keys would not see them.")
        .hint(
            "Leave the tables of pg_queue out, with pg_repack by --exclude-extension=pg_queue: they are emptied in \
             turns, and need no repacking.",
        ))
}

/// Returns SQL for the oid of the function of the extension's own triggers on its tables. By name it is found only by
/// roles that are let at its schema, and none is.
pub fn foreign_write() -> &'static str {
    "(SELECT f.oid FROM pg_catalog.pg_proc AS f
      JOIN pg_catalog.pg_namespace AS s ON s.oid OPERATOR(pg_catalog.=) f.pronamespace
      WHERE f.proname OPERATOR(pg_catalog.=) 'foreign_write' AND f.pronargs OPERATOR(pg_catalog.=) 0
        AND s.nspname OPERATOR(pg_catalog.=) 'queue_internal')"
}

/// Returns what is there all the same, a sentence each. `all`: also what would only never be served, such as rules and
/// foreign keys; otherwise only triggers for each row.
pub fn found(all: bool) -> Result<Vec<String>> {
    let ours = foreign_write();
    let sql = format!(
        "SELECT pg_catalog.format('Table queue.%I has %s.', c.relname, t.what)
         FROM pg_catalog.pg_class AS c
         CROSS JOIN LATERAL (
             SELECT pg_catalog.format('trigger %I', t.tgname) AS what
             FROM pg_catalog.pg_trigger AS t
             WHERE t.tgrelid OPERATOR(pg_catalog.=) c.oid AND NOT t.tgisinternal
               AND t.tgfoid OPERATOR(pg_catalog.<>) {ours}
               -- For each row.
               AND ($1 OR (t.tgtype::pg_catalog.int4 OPERATOR(pg_catalog.&) 1) OPERATOR(pg_catalog.=) 1)
             UNION ALL
             SELECT pg_catalog.format('rule %I', r.rulename) FROM pg_catalog.pg_rewrite AS r
             WHERE $1 AND r.ev_class OPERATOR(pg_catalog.=) c.oid
             UNION ALL
             SELECT pg_catalog.format('foreign key %I of table %s', k.conname, k.conrelid::pg_catalog.regclass)
             FROM pg_catalog.pg_constraint AS k
             WHERE $1 AND k.contype OPERATOR(pg_catalog.=) 'f'
               AND (k.conrelid OPERATOR(pg_catalog.=) c.oid OR k.confrelid OPERATOR(pg_catalog.=) c.oid)) AS t
         WHERE c.relnamespace OPERATOR(pg_catalog.=) 'queue'::pg_catalog.regnamespace
           AND c.relkind OPERATOR(pg_catalog.=) 'r'
           AND c.relname OPERATOR(pg_catalog.<>)
               ALL (ARRAY['queue', 'lane', 'permission', 'schedule']::pg_catalog.name[])
         ORDER BY c.relname, t.what"
    );
    spi::texts(&sql, &[all.into()])
}
