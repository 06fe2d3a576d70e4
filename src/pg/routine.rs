//! Functions and procedures by their names.
//!
//! Responsible for looking them up. Not responsible for running them (`portal`).
//!
//! Invariant: a name that was found is stored with its schema, so that no search_path leads it elsewhere later.

use std::ffi::CString;

use pgrx::{PgTryBuilder, pg_sys};

use crate::pg::{datum, role, syscache};

/// A function or procedure of one jsonb.
pub struct Routine {
    /// Its name with its schema, as in SQL.
    pub name: String,
    /// Whether it is called by CALL.
    pub is_procedure: bool,
}

/// Returns the function or procedure of this name that takes one jsonb. The name is as in SQL. `None`: there is none, or
/// this is no name. Must run in a transaction.
pub fn find(name: &str) -> Option<Routine> {
    let name = CString::new(name).ok()?;
    // What is no name raises 42602; parsing it leaves nothing behind but memory.
    let names = PgTryBuilder::new(|| {
        // SAFETY: a C string; the list is made in the current memory context.
        #[cfg(any(feature = "pg14", feature = "pg15"))]
        let names = unsafe { pg_sys::stringToQualifiedNameList(name.as_ptr()) };
        // SAFETY: as above.
        #[cfg(not(any(feature = "pg14", feature = "pg15")))]
        let names = unsafe { pg_sys::stringToQualifiedNameList(name.as_ptr(), std::ptr::null_mut()) };
        Some(names)
    })
    .catch_others(|_| None)
    .execute()?;
    // SAFETY: a list of names; each candidate has as many types as arguments, of which one is asked for.
    let oid = unsafe {
        let mut candidate = pg_sys::FuncnameGetCandidates(names, 1, std::ptr::null_mut(), false, false, false, true);
        while !candidate.is_null() && *(*candidate).args.as_ptr() != pg_sys::JSONBOID {
            candidate = (*candidate).next;
        }
        candidate.as_ref()?.oid
    };
    let cache = pg_sys::SysCacheIdentifier::PROCOID;
    let row = |row: &pg_sys::FormData_pg_proc| (syscache::name(&row.proname), row.pronamespace, row.prokind);
    let (name, schema, kind) = syscache::by_oid(cache, oid, row)?;
    // SAFETY: a look-up in the catalog; null when there is none.
    let schema = unsafe {
        let schema = pg_sys::get_namespace_name(schema);
        (!schema.is_null()).then(|| datum::c_text(schema))?
    };
    Some(Routine {
        name: format!("{}.{}", role::quoted(&schema), role::quoted(&name)),
        is_procedure: kind as u8 == b'p',
    })
}
