//! Looks up functions and procedures of one jsonb by name and by oid.
//!
//! Responsible for the look-ups. Not responsible for running them (`portal`), nor for whether a stored routine is still
//! the intended one (`catalog::procedure`).
//!
//! Invariant: a name that was found is stored with its schema, so that no search_path can change its meaning later.

use std::ffi::CString;

use pgrx::{PgTryBuilder, pg_sys};

use crate::pg::{datum, role, syscache};

/// A function or procedure of one jsonb.
pub struct Routine {
    pub oid: pg_sys::Oid,
    /// Its name with its schema, as in SQL.
    pub name: String,
    /// True if it is called with CALL.
    pub is_procedure: bool,
    pub owner: pg_sys::Oid,
}

/// Returns the function or procedure of this name that takes one jsonb. The name is as in SQL. `None`: there is none,
/// or the text is no name. Must run in a transaction.
pub fn find(name: &str) -> Option<Routine> {
    let name = CString::new(name).ok()?;
    // A text that is no name raises 42602. Parsing it leaves only allocated memory behind.
    let names = PgTryBuilder::new(|| {
        // SAFETY: a C string; the list is made in the current memory context.
        #[cfg(not(feature = "from16"))]
        let names = unsafe { pg_sys::stringToQualifiedNameList(name.as_ptr()) };
        // SAFETY: as above.
        #[cfg(feature = "from16")]
        let names = unsafe { pg_sys::stringToQualifiedNameList(name.as_ptr(), std::ptr::null_mut()) };
        Some(names)
    })
    .catch_others(|_| None)
    .execute()?;
    #[cfg(feature = "from19")]
    let mut flags = 0; // why there is none
    // SAFETY: a list of names. Each candidate has one argument, as asked for, and so one type.
    let oid = unsafe {
        let none = std::ptr::null_mut();
        #[cfg(not(feature = "from19"))]
        let mut candidate = pg_sys::FuncnameGetCandidates(names, 1, none, false, false, false, true);
        #[cfg(feature = "from19")]
        let mut candidate = pg_sys::FuncnameGetCandidates(names, 1, none, false, false, false, true, &raw mut flags);
        while !candidate.is_null() && *(*candidate).args.as_ptr() != pg_sys::JSONBOID {
            candidate = (*candidate).next;
        }
        candidate.as_ref()?.oid
    };
    by_oid(oid)
}

/// Returns a function or procedure of one jsonb by its oid. `None`: there is none, or it is another kind of routine,
/// such as an aggregate. Must run in a transaction.
pub fn by_oid(oid: pg_sys::Oid) -> Option<Routine> {
    let cache = pg_sys::SysCacheIdentifier::PROCOID;
    let read = |row: &pg_sys::FormData_pg_proc| {
        // SAFETY: the vector has as many types as the row has arguments.
        let is_of_jsonb = row.pronargs == 1 && unsafe { *row.proargtypes.values.as_ptr() } == pg_sys::JSONBOID;
        is_of_jsonb.then(|| (syscache::name(&row.proname), row.pronamespace, row.prokind as u8, row.proowner))
    };
    let (name, schema, kind, owner) = syscache::by_oid(cache, oid, read)??;
    // SAFETY: a look-up in the catalog; null when there is none.
    let schema = unsafe {
        let schema = pg_sys::get_namespace_name(schema);
        (!schema.is_null()).then(|| datum::c_text(schema))?
    };
    matches!(kind, b'p' | b'f').then(|| Routine {
        oid,
        name: format!("{}.{}", role::quoted(&schema), role::quoted(&name)),
        is_procedure: kind == b'p',
        owner,
    })
}

/// Calls a function that takes three arguments. Raises its errors, and an error if it returns NULL.
pub fn call(function: pg_sys::Oid, [first, second, third]: [pg_sys::Datum; 3]) -> pg_sys::Datum {
    // SAFETY: the arguments are of the types that the function declares, as the caller knows.
    unsafe { pg_sys::OidFunctionCall3Coll(function, pg_sys::InvalidOid, first, second, third) }
}
