//! Values bound to a statement, each with its type, so that no text is parsed.
//!
//! Responsible for turning Rust values into parameters. Not responsible for running statements (`catalog::spi`).
//!
//! Invariant: a datum has the type that is stored with it.

use pgrx::datum::DatumWithOid;
use pgrx::{IntoDatum, pg_sys};

/// A value, or NULL, and the oid of its type.
#[derive(Clone, Copy)]
pub struct Parameter(Option<pg_sys::Datum>, pg_sys::Oid);

impl Parameter {
    /// Makes a parameter of a datum of a type. `None` is NULL.
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

/// Returns the parameters as pgrx's SPI takes them.
pub fn arguments(parameters: &[Parameter]) -> Vec<DatumWithOid<'static>> {
    parameters
        .iter()
        // SAFETY: the datum has the type that is stored with it.
        .map(|p| unsafe {
            match p.0 {
                Some(datum) => DatumWithOid::new(datum, p.1),
                None => DatumWithOid::null_oid(p.1),
            }
        })
        .collect()
}
