//! Paths and predicates in the SQL/JSON path language, compiled once and asked many times.
//!
//! Responsible for keeping a path beyond the call in which it was read, and for what it says of a value. Not responsible for what
//! is asked (`job::publish`).
//!
//! Invariant: whatever a path does with a value, the caller goes on: an error counts as no answer. Only a cancel, or the end of the
//! session, is raised.

use std::ffi::{CString, c_char};
use std::panic::AssertUnwindSafe;

use pgrx::pg_sys::panic::CaughtError;
use pgrx::pg_sys::{self, Datum};
use pgrx::{PgSqlErrorCode, PgTryBuilder, direct_function_call_as_datum};

use crate::pg::{datum, jsonb};

/// A compiled path, in memory of its own.
pub struct Path(Box<[u64]>);

impl Path {
    /// Reads a path from its text.
    ///
    /// Raises: 42601 if it is none.
    pub fn parse(text: &str) -> Option<Self> {
        let text = CString::new(text).ok()?;
        // SAFETY: an input function of one argument.
        let path = unsafe {
            direct_function_call_as_datum(pg_sys::jsonpath_in, &[Some(Datum::from(text.as_ptr() as *mut c_char))])
        };
        path.map(Self::of)
    }

    /// Keeps a datum of type jsonpath.
    fn of(path: Datum) -> Self {
        let path = datum::owned(path);
        let pointer: *const pg_sys::varlena = path.cast_mut_ptr();
        // SAFETY: `owned` returns a plain datum with a header of four bytes, which counts itself. It is copied to memory of the
        // alignment that the type wants.
        unsafe {
            let size = pgrx::varlena::varsize(pointer);
            let mut words = vec![0_u64; size.div_ceil(8)].into_boxed_slice();
            std::ptr::copy_nonoverlapping(pointer.cast::<u8>(), words.as_mut_ptr().cast::<u8>(), size);
            Self(words)
        }
    }

    fn datum(&self) -> Datum {
        Datum::from(self.0.as_ptr())
    }

    /// What a predicate says of a value. `None`: neither true nor false.
    pub fn is_true(&self, of: Datum) -> Option<bool> {
        self.ask(pg_sys::jsonb_path_match, of).map(|answer| answer.value() & 1 != 0)
    }

    /// The first value that a path leads to, as text: a string without its quotes. `None`: it leads to none, or to null.
    pub fn first_text(&self, of: Datum) -> Option<String> {
        let found = self.ask(pg_sys::jsonb_path_query_first, of)?;
        let whole = jsonb::object_of("v", Some(found))?;
        let value = jsonb::field(whole, "v")?;
        if value.is_null() {
            return None;
        }
        Some(value.as_str().unwrap_or_else(|| jsonb::text(found)))
    }

    /// Asks one of Postgres's functions of value, path, variables and silence. They touch nothing but memory, so nothing is
    /// left to be cleaned up after an error.
    fn ask(&self, function: unsafe fn(pg_sys::FunctionCallInfo) -> Datum, of: Datum) -> Option<Datum> {
        let arguments = [Some(of), Some(self.datum()), Some(jsonb::empty_object()), Some(Datum::from(true))];
        PgTryBuilder::new(AssertUnwindSafe(|| {
            // SAFETY: a function of these four arguments; the path outlives the call.
            unsafe { direct_function_call_as_datum(function, &arguments) }
        }))
        .catch_others(|error| {
            let is_end = matches!(
                &error,
                CaughtError::PostgresError(report) | CaughtError::ErrorReport(report)
                    if [PgSqlErrorCode::ERRCODE_QUERY_CANCELED, PgSqlErrorCode::ERRCODE_ADMIN_SHUTDOWN]
                        .contains(&report.sql_error_code())
            );
            if is_end { error.rethrow() } else { None }
        })
        .execute()
    }
}

/// The text of a datum of type jsonpath.
pub fn text(path: Datum) -> String {
    // SAFETY: the output function of the type, which returns a C string.
    unsafe {
        direct_function_call_as_datum(pg_sys::jsonpath_out, &[Some(path)])
            .map_or_else(String::new, |text| datum::c_text(text.cast_mut_ptr()))
    }
}
