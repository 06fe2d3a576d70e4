//! Whether a dump may be running.
//!
//! pg_dump reads an extension's tables late, and looks other tables up a moment before it locks them, but it holds a
//! lock on `pg_extension` from its begin to its end.
//!
//! Invariant: only a role that may read one of the extension's tables, itself or as a role that it may become, can be
//! dumping. Any other role may lock `pg_extension` for as long as it likes, and nothing waits for that.

use pgrx::pg_sys;

use crate::catalog::{self, spi};
use crate::error::Result;
use crate::pg::lock;

/// Returns whether a dump may be running. Must run in a transaction.
pub fn is_running() -> Result<bool> {
    Ok(!sessions()?.is_empty())
}

/// Returns the processes that may be dumping: they hold a lock on `pg_extension`, and may read the tables. Must run in
/// a transaction.
pub fn sessions() -> Result<Vec<i64>> {
    if lock::lock_holders(pg_sys::ExtensionRelationId, pg_sys::AccessExclusiveLock) == 0 {
        return Ok(Vec::new());
    }
    // Before 16 any member of a role may become it.
    let becomes = if cfg!(not(feature = "from16")) { "MEMBER" } else { "USAGE, SET" };
    spi::read_i64_column(
        "SELECT l.pid::pg_catalog.int8 FROM pg_catalog.pg_locks AS l
         JOIN pg_catalog.pg_stat_get_activity(NULL) AS s ON s.pid OPERATOR(pg_catalog.=) l.pid
         WHERE l.locktype OPERATOR(pg_catalog.=) 'relation' AND l.granted
           AND l.relation OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass
           AND l.database OPERATOR(pg_catalog.=) (SELECT d.oid FROM pg_catalog.pg_database AS d
                                                  WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database())
           AND l.pid OPERATOR(pg_catalog.<>) pg_catalog.pg_backend_pid()
           AND EXISTS (SELECT FROM pg_catalog.pg_roles AS r
                       WHERE pg_catalog.pg_has_role(s.usesysid, r.oid, $2)
                         AND EXISTS (SELECT FROM pg_catalog.pg_class AS c
                                     WHERE c.relnamespace OPERATOR(pg_catalog.=) (
                                             SELECT q.relnamespace FROM pg_catalog.pg_class AS q
                                             WHERE q.oid OPERATOR(pg_catalog.=) $1::pg_catalog.oid)
                                       AND c.relkind OPERATOR(pg_catalog.=) ANY ('{r,p}')
                                       AND pg_catalog.has_table_privilege(r.oid, c.oid, 'SELECT')))",
        &[i64::from(u32::from(catalog::pinned().queue)).into(), becomes.to_owned().into()],
    )
}
