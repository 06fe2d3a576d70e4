//! Refuses triggers, rules and foreign keys on tables into which the library inserts rows directly. They would not see
//! those rows. A tool that copies a table with the help of a trigger would lose jobs or duplicate them.
//!
//! `worker::hooks` refuses them when they are created. If one was created while the library was not loaded, the first
//! insert into the table finds it (`pg::trigger`). That insert holds a lock that prevents other sessions from creating
//! one.

use pgrx::pg_sys::Oid;

use crate::catalog::{self, spi};
use crate::error::{self, Error, Result};
use crate::pg::{role, session, syscache};

/// Refuses a trigger, rule or foreign key that is being created on this table. A trigger on one of the extension's
/// tables would run as the owner of the tables. So no other role may create one, whatever it was granted. A trigger
/// whose function belongs to an extension is that of a tool that copies the table and puts the copy in its place.
///
/// Errors: 42501 if the table is the extension's and the current user does not own it. 0A000 if the library inserts
/// rows into the table directly, or if the trigger is that of another extension.
pub fn refuse_at(table: Oid, is_of_extension: bool) -> Result<()> {
    // The triggers of the extension's own script fire for statements, and notice SQL that is not the extension's.
    let is_ours = session::is_in_our_script() || spi::OWN_STATEMENTS.get() > 0;
    if session::is_binary_upgrade() || is_ours {
        return Ok(());
    }
    let name = syscache::qualified_name(table);
    let is_our_table = syscache::is_in_our_schema(table);
    if is_our_table && !role::owns_table(table) {
        return Err(Error::new(
            error::DENIED,
            format!("\"{name}\" takes triggers, rules and foreign keys of its owner only"),
        )
        .detail("They would run for other roles' statements, or refuse them.")
        .hint("Let triggers of your own tables call the functions of pg_queue."));
    }
    let (what, detail) = if catalog::is_written_directly(table) {
        (
            "triggers, rules or foreign keys",
            "Rows are inserted into it directly; triggers, rules and foreign keys would not see them.",
        )
    } else if is_our_table && is_of_extension {
        ("triggers of another extension", "A tool that copies tables and swaps them would take it from under sessions.")
    } else {
        return Ok(());
    };
    Err(Error::new(error::NOT_SUPPORTED, format!("table \"{name}\" cannot have {what}")).detail(detail).hint(
        "Leave the tables of pg_queue out, with pg_repack by --exclude-extension=pg_queue: they are emptied in \
             turns, and need no repacking.",
    ))
}

/// Returns SQL for the oid of the function of the extension's own triggers. It does not use the function's name,
/// because no role may use its schema.
pub fn foreign_write() -> &'static str {
    "(SELECT f.oid FROM pg_catalog.pg_proc AS f
      JOIN pg_catalog.pg_namespace AS s ON s.oid OPERATOR(pg_catalog.=) f.pronamespace
      WHERE f.proname OPERATOR(pg_catalog.=) 'foreign_write' AND f.pronargs OPERATOR(pg_catalog.=) 0
        AND s.nspname OPERATOR(pg_catalog.=) 'queue_internal')"
}

/// Returns a sentence about each trigger, rule and foreign key that exists nevertheless. If `all` is false, returns
/// only triggers for each row; the others would merely have no effect.
pub fn found(all: bool) -> Result<Vec<String>> {
    let ours = foreign_write();
    let sql = format!(
        "SELECT pg_catalog.format('Table queue_internal.%I has %s.', c.relname, t.what)
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
         WHERE c.relnamespace OPERATOR(pg_catalog.=) 'queue_internal'::pg_catalog.regnamespace
           AND c.relkind OPERATOR(pg_catalog.=) 'r'
           AND c.relname OPERATOR(pg_catalog.<>)
               ALL (ARRAY['queue', 'weight', 'lane', 'permission', 'schedule']::pg_catalog.name[])
         ORDER BY c.relname, t.what"
    );
    spi::texts(&sql, &[all.into()])
}
