//! Runs SQL from Rust, for rare verbs only. Frequent verbs read and write rows directly (`pg::table`).
//!
//! Invariant: every name and operator in a statement is qualified, because statements run under the caller's
//! search_path. Only the doctor's checks run under a search_path that `view::doctor` sets. A statement runs with the
//! rights of the tables' owner, because the caller's rights were checked before. Only `texts`, `holds_for_user` and
//! `run_as_user` run with the rights of the current user.

use std::cell::Cell;

use pgrx::spi::{Spi, SpiHeapTupleData};

use crate::catalog;
use crate::error::{Error, Result};
use crate::pg::parameter::{self, Parameter};
use crate::pg::role;

thread_local! {
    /// How many of the extension's own statements are running, one inside the other.
    pub static OWN_STATEMENTS: Cell<u32> = const { Cell::new(0) };
}

/// Runs the extension's own SQL. Its writes to the tables do not count as foreign.
pub fn own_write<R>(f: impl FnOnce() -> R) -> R {
    struct Guard;
    impl Drop for Guard {
        fn drop(&mut self) {
            OWN_STATEMENTS.set(OWN_STATEMENTS.get() - 1);
        }
    }
    OWN_STATEMENTS.set(OWN_STATEMENTS.get() + 1);
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

/// Runs a statement that writes, and returns how many rows it touched. The triggers on the extension's tables treat it
/// as the extension's own.
pub fn run(sql: &str, parameters: &[Parameter]) -> Result<usize> {
    as_owner(|| {
        own_write(|| {
            Spi::connect_mut(|client| {
                client.update(sql, None, &parameter::arguments(parameters)).map(|rows| rows.len())
            })
        })
    })
}

/// Returns the first column of the first row, a `text`. `None` if there is no row, or if the column is NULL.
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

/// Does what `i64_column` does for a query that only reads. It does not assign a transaction id.
pub fn read_i64_column(sql: &str, parameters: &[Parameter]) -> Result<Vec<i64>> {
    as_owner(|| {
        Spi::connect(|client| {
            let rows = client.select(sql, None, &parameter::arguments(parameters))?;
            rows.map(|row| row.get::<i64>(1)).filter_map(std::result::Result::transpose).collect()
        })
    })
}

/// Returns whether a query has a row. It does not assign a transaction id.
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
/// with the rights of the current user, and does not assign a transaction id.
pub fn texts(sql: &str, parameters: &[Parameter]) -> Result<Vec<String>> {
    Spi::connect(|client| {
        let rows = client.select(sql, None, &parameter::arguments(parameters))?;
        let texts = rows.map(|row| row.get::<String>(1)).filter_map(std::result::Result::transpose);
        texts.collect::<std::result::Result<_, pgrx::spi::Error>>()
    })
    .map_err(failed)
}

/// Runs a statement that may write, with the rights of the current user.
pub fn run_as_user(sql: &str, parameters: &[Parameter]) -> Result<()> {
    Spi::connect_mut(|client| client.update(sql, None, &parameter::arguments(parameters)).map(|_| ())).map_err(failed)
}

/// Returns what `read` makes of each row of a query that only reads, under the active snapshot. The query does not
/// assign a transaction id.
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
