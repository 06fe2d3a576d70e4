//! Values bound to a statement, each with its type, so that no text is parsed.
//!
//! Responsible for turning Rust values into parameters, and for reading one of the client's statement. Not responsible
//! for running statements (`catalog::spi`).
//!
//! Invariant: a datum has the type that is stored with it.

use std::ffi::CStr;

use pgrx::datum::DatumWithOid;
use pgrx::{IntoDatum, pg_sys};

use crate::pg::datum;

/// A value, or NULL, and the oid of its type.
#[derive(Clone, Copy)]
pub struct Parameter(Option<pg_sys::Datum>, pg_sys::Oid);

impl Parameter {
    /// Makes a parameter of a datum of a type. `None` is NULL.
    pub fn raw(datum: Option<pg_sys::Datum>, oid: pg_sys::Oid) -> Self {
        Self(datum, oid)
    }
}

/// Returns a parameter of the client's statement, if it is a text. `number`: from 1. `statement`: the statement's text.
/// For a message about it: when Postgres writes the message no portal is active, but the unnamed one is still there.
pub fn of_statement(statement: &str, number: usize) -> Option<String> {
    // SAFETY: the name is a C string, and a portal's source is one, or null. A portal keeps its parameters until it is
    // dropped, and each has its type. A list that is fetched piece by piece is left alone, and so is a toasted value,
    // because no table can be read now.
    unsafe {
        let portal = pg_sys::GetPortalByName(c"".as_ptr());
        if portal.is_null() || (*portal).portalParams.is_null() || (*portal).sourceText.is_null() {
            return None;
        }
        let list = &*(*portal).portalParams;
        let is_it = CStr::from_ptr((*portal).sourceText).to_bytes() == statement.as_bytes();
        if !is_it || list.paramFetch.is_some() || number == 0 || number > usize::try_from(list.numParams).ok()? {
            return None;
        }
        let given = &*list.params.as_ptr().add(number - 1);
        let is_text = [pg_sys::TEXTOID, pg_sys::VARCHAROID].contains(&given.ptype);
        let is_here = is_text && !given.isnull && datum::is_plain(given.value.cast_mut_ptr());
        is_here.then(|| datum::text(given.value))
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
