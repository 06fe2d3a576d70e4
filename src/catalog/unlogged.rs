//! Keeps the tables of the extensions logged. After a crash an unlogged table is empty, and its jobs are lost.
//!
//! Responsible for refusing the change (`worker::hooks` calls it) and for finding tables that were changed while the
//! library was not loaded (`doctor::storage`).

use pgrx::pg_sys::Oid;

use crate::catalog::spi;
use crate::error::{self, Error, Result};
use crate::pg::syscache;

/// Refuses to make this relation unlogged.
///
/// Errors: 0A000 if it is one of the extension's.
pub fn refuse(relation: Oid) -> Result<()> {
    if !syscache::is_in_our_schema(relation) {
        return Ok(());
    }
    let name = syscache::qualified_name(relation);
    Err(Error::new(error::NOT_SUPPORTED, format!("\"{name}\" cannot be unlogged"))
        .detail("After a crash it would be empty, and committed jobs lost.")
        .hint("SET synchronous_commit = off makes commits faster, and loses at most the last moment."))
}

/// Returns a sentence about each relation of the extensions that is unlogged nevertheless.
pub fn found() -> Result<Vec<String>> {
    spi::texts(
        "SELECT pg_catalog.format('%I.%I is unlogged: a crash empties it.', n.nspname, c.relname)
         FROM pg_catalog.pg_class AS c
         JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
         WHERE n.nspname OPERATOR(pg_catalog.=)
               ANY (ARRAY['queue', 'queue_internal', 'queue_bridge', 'queue_cluster']::pg_catalog.name[])
           AND c.relpersistence OPERATOR(pg_catalog.=) 'u' AND c.relkind OPERATOR(pg_catalog.=) 'r'
         ORDER BY n.nspname, c.relname",
        &[],
    )
}
