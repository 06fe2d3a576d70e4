//! SQL from Rust, for the rare verbs only. Not for frequent verbs, which read and write rows directly (`pg::table`).
//!
//! Invariant: every name and operator in a statement is qualified, because it runs under the caller's search_path; only
//! the doctor's checks run under one that `view::doctor` sets. A statement runs with the rights of the tables' owner,
//! because what the caller may do was checked before; only `texts` and `holds_for_user` run with those of the current
//! user.

use std::cell::Cell;

use pgrx::spi::{Spi, SpiHeapTupleData};

use crate::catalog;
use crate::error::{Error, Result};
use crate::pg::parameter::{self, Parameter};
use crate::pg::role;

thread_local! {
    /// How many of the extension's own statements are under way.
    pub static OWN: Cell<u32> = const { Cell::new(0) };
}

/// Runs the extension's own SQL: what it writes to the tables does not count as foreign.
pub fn own_write<R>(f: impl FnOnce() -> R) -> R {
    struct Guard;
    impl Drop for Guard {
        fn drop(&mut self) {
            OWN.set(OWN.get() - 1);
        }
    }
    OWN.set(OWN.get() + 1);
    let _guard = Guard;
    f()
}

fn failed(error: pgrx::spi::Error) -> Error {
    Error::internal(format!("a statement of the extension failed: {error}"))
}

/// Runs `f` with the rights of the tables' owner.
fn as_owner<T>(f: impl FnOnce() -> std::result::Result<T, pgrx::spi::Error>) -> Result<T> {
    role::as_owner(catalog::current()?.queue, f).map_err(failed)
}

/// Runs a statement that writes, and returns how many rows it touched. The triggers on the extension's tables take it
/// for the extension's own.
pub fn run(sql: &str, parameters: &[Parameter]) -> Result<usize> {
    as_owner(|| {
        own_write(|| {
            Spi::connect_mut(|client| {
                client.update(sql, None, &parameter::arguments(parameters)).map(|rows| rows.len())
            })
        })
    })
}

/// Returns the first column of the first row, a `text`; `None`: there is no row, or it is NULL.
pub fn text(sql: &str, parameters: &[Parameter]) -> Result<Option<String>> {
    as_owner(|| {
        Spi::connect_mut(|client| {
            let mut rows = client.update(sql, Some(1), &parameter::arguments(parameters))?;
            match rows.next() {
                Some(row) => row.get::<String>(1),
                None => Ok(None),
            }
        })
    })
}

/// Returns the first column, a `bigint`, of all rows where it is not NULL.
pub fn i64_column(sql: &str, parameters: &[Parameter]) -> Result<Vec<i64>> {
    as_owner(|| {
        Spi::connect_mut(|client| {
            let rows = client.update(sql, None, &parameter::arguments(parameters))?;
            rows.map(|row| row.get::<i64>(1)).filter_map(std::result::Result::transpose).collect()
        })
    })
}

/// Does what `i64_column` does for a query that only reads. It gives the transaction no id.
pub fn read_i64_column(sql: &str, parameters: &[Parameter]) -> Result<Vec<i64>> {
    as_owner(|| {
        Spi::connect(|client| {
            let rows = client.select(sql, None, &parameter::arguments(parameters))?;
            rows.map(|row| row.get::<i64>(1)).filter_map(std::result::Result::transpose).collect()
        })
    })
}

/// Returns whether a query has a row. It gives the transaction no id either.
pub fn has_row(sql: &str, parameters: &[Parameter]) -> Result<bool> {
    as_owner(|| {
        Spi::connect(|client| {
            client.select(sql, Some(1), &parameter::arguments(parameters)).map(|rows| !rows.is_empty())
        })
    })
}

/// Returns whether this condition holds for the current user.
pub fn holds_for_user(condition: &str) -> Result<bool> {
    Ok(!texts(&format!("SELECT 'it does' WHERE {condition}"), &[])?.is_empty())
}

/// Returns the first column, a `text`, of all rows of a query that only reads, where it is not NULL. The query runs
/// with the rights of the current user, and gives the transaction no id either.
pub fn texts(sql: &str, parameters: &[Parameter]) -> Result<Vec<String>> {
    Spi::connect(|client| {
        let rows = client.select(sql, None, &parameter::arguments(parameters))?;
        let texts = rows.map(|row| row.get::<String>(1)).filter_map(std::result::Result::transpose);
        texts.collect::<std::result::Result<_, pgrx::spi::Error>>()
    })
    .map_err(failed)
}

/// Returns what `read` makes of each row of a query that only reads, by the active snapshot. The query gives the
/// transaction no id.
pub fn read_rows<T>(
    sql: &str,
    parameters: &[Parameter],
    mut read: impl FnMut(&SpiHeapTupleData<'_>) -> std::result::Result<T, pgrx::spi::Error>,
) -> Result<Vec<T>> {
    as_owner(|| {
        Spi::connect(|client| {
            let rows = client.select(sql, None, &parameter::arguments(parameters))?;
            rows.map(|row| read(&row)).collect()
        })
    })
}
