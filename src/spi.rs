//! SQL from Rust, for the rare verbs only. Every name and operator in the statements is qualified, because
//! they run under the caller's search_path; and with the rights of the tables' owner, because what the caller may do was
//! checked before.

use pgrx::IntoDatum;
use pgrx::datum::DatumWithOid;
use pgrx::pg_sys;
use pgrx::spi::Spi;

use crate::error::{Error, Result};
use crate::{dormant, instance, sys};

/// A parameter.
pub struct Parameter(Option<pg_sys::Datum>, pg_sys::Oid);

impl Parameter {
    /// A datum of a given type.
    pub fn raw(datum: Option<pg_sys::Datum>, oid: pg_sys::Oid) -> Self {
        Self(datum, oid)
    }
}

macro_rules! parameter {
    ($($kind:ty),*) => {$(
        impl From<$kind> for Parameter {
            fn from(value: $kind) -> Self {
                Self(value.into_datum(), <$kind>::type_oid())
            }
        }
    )*};
}
parameter!(i64, i32, f64, bool, String, Option<i64>, Option<i32>, Option<String>, Vec<i64>, Vec<String>);

fn arguments(parameters: &[Parameter]) -> Vec<DatumWithOid<'static>> {
    parameters
        .iter()
        // SAFETY: the datum is of the type that stands beside it.
        .map(|p| unsafe {
            match p.0 {
                Some(datum) => DatumWithOid::new(datum, p.1),
                None => DatumWithOid::null_oid(p.1),
            }
        })
        .collect()
}

fn failed(error: pgrx::spi::Error) -> Error {
    Error::internal(format!("a statement of the extension failed: {error}"))
}

/// Runs `f` with the rights of the tables' owner.
fn as_owner<T>(f: impl FnOnce() -> std::result::Result<T, pgrx::spi::Error>) -> Result<T> {
    sys::as_owner(instance::current()?.queue, f).map_err(failed)
}

/// Runs a statement that writes; how many rows it touched. To the triggers on our tables it is our own.
pub fn run(sql: &str, parameters: &[Parameter]) -> Result<usize> {
    as_owner(|| {
        dormant::own_write(|| {
            Spi::connect_mut(|client| client.update(sql, None, &arguments(parameters)).map(|rows| rows.len()))
        })
    })
}

/// The first column of the first row, a `text`.
pub fn text(sql: &str, parameters: &[Parameter]) -> Result<Option<String>> {
    as_owner(|| {
        Spi::connect_mut(|client| {
            let mut rows = client.update(sql, Some(1), &arguments(parameters))?;
            match rows.next() {
                Some(row) => row.get::<String>(1),
                None => Ok(None),
            }
        })
    })
}

/// The first column, a `bigint`, of all rows.
pub fn optional_i64_column(sql: &str, parameters: &[Parameter]) -> Result<Vec<Option<i64>>> {
    as_owner(|| {
        Spi::connect_mut(|client| {
            let rows = client.update(sql, None, &arguments(parameters))?;
            rows.map(|row| row.get::<i64>(1)).collect()
        })
    })
}

/// The first column, a `bigint`, of all rows where it is not NULL.
pub fn i64_column(sql: &str, parameters: &[Parameter]) -> Result<Vec<i64>> {
    Ok(optional_i64_column(sql, parameters)?.into_iter().flatten().collect())
}

/// As `i64_column`, for a query that only reads: it gives the transaction no id.
pub fn read_i64_column(sql: &str, parameters: &[Parameter]) -> Result<Vec<i64>> {
    as_owner(|| {
        Spi::connect(|client| {
            let rows = client.select(sql, None, &arguments(parameters))?;
            rows.map(|row| row.get::<i64>(1)).filter_map(std::result::Result::transpose).collect()
        })
    })
}

/// Whether a query has a row. It gives the transaction no id either.
pub fn has_row(sql: &str, parameters: &[Parameter]) -> Result<bool> {
    as_owner(|| Spi::connect(|client| client.select(sql, Some(1), &arguments(parameters)).map(|rows| !rows.is_empty())))
}

/// Whether this condition holds for the current user.
pub fn holds_for_user(condition: &str) -> Result<bool> {
    Ok(!texts(&format!("SELECT 'it does' WHERE {condition}"), &[])?.is_empty())
}

/// The first column, a `text`, of all rows of a query that only reads, with the rights of the current user; gives the
/// transaction no id either.
pub fn texts(sql: &str, parameters: &[Parameter]) -> Result<Vec<String>> {
    Spi::connect(|client| {
        let rows = client.select(sql, None, &arguments(parameters))?;
        let texts = rows.map(|row| row.get::<String>(1)).filter_map(std::result::Result::transpose);
        texts.collect::<std::result::Result<_, pgrx::spi::Error>>()
    })
    .map_err(failed)
}
