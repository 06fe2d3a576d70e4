//! Look-ups in the system catalogs: databases, tables, indexes, owners, the extension.
//!
//! Responsible for reading single facts. Not responsible for roles (`role`), for caching results, nor for the
//! extension's own tables and their oids (`catalog`).
//!
//! Invariant: a row of a system cache is released before the function returns.

use std::ffi::{CStr, c_char, c_int};

use pgrx::pg_sys;

use crate::pg::{datum, raw};

/// Returns the tables that inherit from this one. Takes no lock.
pub fn children(table: pg_sys::Oid) -> Vec<pg_sys::Oid> {
    // SAFETY: a look-up in the catalogs. The list is one of oids.
    unsafe {
        let found = raw::find_inheritance_children(table, pg_sys::NoLock as pg_sys::LOCKMODE);
        if found.is_null() {
            return Vec::new();
        }
        let count = usize::try_from((*found).length).unwrap_or(0);
        (0..count).map(|n| (*(*found).elements.add(n)).oid_value).collect()
    }
}

/// Makes a table depend on the extension, so that both are dropped together although the table is no member. Must run
/// in a transaction.
pub fn depend_on_our_extension(table: pg_sys::Oid) {
    let address =
        |class_id, object_id| pg_sys::ObjectAddress { classId: class_id, objectId: object_id, objectSubId: 0 };
    // SAFETY: both objects exist.
    unsafe {
        let extension = pg_sys::get_extension_oid(c"pg_queue".as_ptr(), false);
        let (this, that) =
            (address(pg_sys::RelationRelationId, table), address(pg_sys::ExtensionRelationId, extension));
        let kind = pg_sys::DependencyType::DEPENDENCY_AUTO_EXTENSION;
        pg_sys::recordDependencyOn(&raw const this, &raw const that, kind);
    }
}

/// Returns the name of a table. `None`: it was dropped.
pub fn table_name(table: pg_sys::Oid) -> Option<String> {
    // SAFETY: a look-up in the catalogs; null when there is none.
    unsafe {
        let name = pg_sys::get_rel_name(table);
        (!name.is_null()).then(|| datum::c_text(name))
    }
}

/// Returns the name of a table or view with that of its schema, as `queue_internal.lane`. Empty: it was dropped. Must
/// run in a transaction.
pub fn qualified_name(table: pg_sys::Oid) -> String {
    let cache = pg_sys::SysCacheIdentifier::RELOID;
    let schema = by_oid(cache, table, |row: &pg_sys::FormData_pg_class| row.relnamespace);
    // SAFETY: a look-up in the catalogs; null when there is none.
    let schema = schema.map(|schema| unsafe { pg_sys::get_namespace_name(schema) }).filter(|name| !name.is_null());
    match (schema, table_name(table)) {
        // SAFETY: a C string of this memory context.
        (Some(schema), Some(name)) => format!("{}.{name}", unsafe { datum::c_text(schema) }),
        _ => String::new(),
    }
}

/// Returns the toast table of a table. `None`: it has none or was dropped.
pub fn toast_table(table: pg_sys::Oid) -> Option<pg_sys::Oid> {
    let cache = pg_sys::SysCacheIdentifier::RELOID;
    by_oid(cache, table, |row: &pg_sys::FormData_pg_class| row.reltoastrelid).filter(|&oid| oid != pg_sys::Oid::INVALID)
}

/// True if the index exists and is valid, so that queries may use it.
pub fn is_valid_index(index: pg_sys::Oid) -> bool {
    let cache = pg_sys::SysCacheIdentifier::INDEXRELID;
    by_oid(cache, index, |row: &pg_sys::FormData_pg_index| row.indisvalid) == Some(true)
}

/// True if the index exists and rows get entries in it.
pub fn is_live_index(index: pg_sys::Oid) -> bool {
    let cache = pg_sys::SysCacheIdentifier::INDEXRELID;
    by_oid(cache, index, |row: &pg_sys::FormData_pg_index| row.indislive) == Some(true)
}

/// Returns the indexes of a table.
///
/// # Safety
/// The relation is open.
pub unsafe fn index_oids(rel: pg_sys::Relation) -> Vec<pg_sys::Oid> {
    // SAFETY: the caller's promise. The list is one of oids, and a copy for the caller.
    unsafe {
        let list = pg_sys::RelationGetIndexList(rel);
        let count = if list.is_null() { 0 } else { usize::try_from((*list).length).unwrap_or(0) };
        let oids = (0..count).map(|n| (*(*list).elements.add(n)).oid_value).collect();
        pg_sys::list_free(list);
        oids
    }
}

/// Returns the table's valid b-tree on this column only, partial or not as `is_partial` says. Users may have added
/// others. If there are several, returns the one whose name ends with `name_end`, else the first. `None`: there is
/// none. The caller holds a lock on `table`.
pub fn index_on(table: pg_sys::Oid, column: i16, is_partial: bool, name_end: &str) -> Option<pg_sys::Oid> {
    // SAFETY: the caller has locked the relation. The list of its indexes is a copy for the caller. The rows of
    // pg_index are valid until released.
    let fitting: Vec<pg_sys::Oid> = unsafe {
        let rel = pg_sys::table_open(table, pg_sys::NoLock as pg_sys::LOCKMODE);
        let fits = |index: &pg_sys::Oid| {
            let cache = pg_sys::SysCacheIdentifier::INDEXRELID;
            let row = pg_sys::SearchSysCache1(cache as c_int, pg_sys::Datum::from(*index));
            if row.is_null() {
                return false;
            }
            let form = &*pg_sys::heap_tuple_get_struct::<pg_sys::FormData_pg_index>(row);
            let first = form.indkey.values.as_slice(1)[0];
            let mut no_condition = false;
            pg_sys::SysCacheGetAttr(cache as c_int, row, pg_sys::Anum_pg_index_indpred as i16, &raw mut no_condition);
            let fits = first == column && form.indnatts == 1 && form.indisvalid && no_condition != is_partial;
            pg_sys::ReleaseSysCache(row);
            fits && is_btree(*index)
        };
        let fitting = index_oids(rel).into_iter().filter(fits).collect();
        pg_sys::table_close(rel, pg_sys::NoLock as pg_sys::LOCKMODE);
        fitting
    };
    let is_ours = |index: &&pg_sys::Oid| table_name(**index).is_some_and(|name| name.ends_with(name_end));
    match fitting.as_slice() {
        [only] => Some(*only),
        several => several.iter().find(is_ours).or(several.first()).copied(),
    }
}

fn is_btree(index: pg_sys::Oid) -> bool {
    let cache = pg_sys::SysCacheIdentifier::RELOID;
    by_oid(cache, index, |row: &pg_sys::FormData_pg_class| row.relam == pg_sys::BTREE_AM_OID) == Some(true)
}

// ----- databases, owners and the extension

/// Calls `f` for each row of pg_database. Must run in a transaction. Works in a process that is connected to no
/// database.
pub fn each_database(mut f: impl FnMut(&pg_sys::FormData_pg_database)) {
    // SAFETY: a scan of a shared catalog, each row valid until the next one is read.
    unsafe {
        let table = pg_sys::table_open(pg_sys::DatabaseRelationId, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
        let scan = pg_sys::table_beginscan_catalog(table, 0, std::ptr::null_mut());
        loop {
            let row = pg_sys::heap_getnext(scan, pg_sys::ScanDirection::ForwardScanDirection);
            if row.is_null() {
                break;
            }
            f(&*pg_sys::heap_tuple_get_struct::<pg_sys::FormData_pg_database>(row));
        }
        pg_sys::heap_endscan(scan);
        pg_sys::table_close(table, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
    }
}

/// Returns a name in a catalog's row as text.
pub fn name(name: &pg_sys::NameData) -> String {
    // SAFETY: names end in a zero byte.
    unsafe { datum::c_text(name.data.as_ptr()) }
}

/// Returns the database of this name. `None`: it does not exist. Must run in a transaction.
///
/// # Safety
/// `name` is a valid C string.
pub unsafe fn database_oid(name: *const c_char) -> Option<pg_sys::Oid> {
    // SAFETY: the caller's promise.
    let oid = unsafe { pg_sys::get_database_oid(name, true) };
    (oid != pg_sys::Oid::INVALID).then_some(oid)
}

/// Returns the name of this database. Empty: it was dropped. Must run in a transaction.
pub fn database_name(database: pg_sys::Oid) -> String {
    // SAFETY: a look-up in the catalog; null when there is none.
    unsafe {
        let name = pg_sys::get_database_name(database);
        if name.is_null() { String::new() } else { datum::c_text(name) }
    }
}

/// Reads one row of a catalog by its oid and calls `f` with it. `None`: the row does not exist. `T` must be the type of
/// the cache's rows. Must run in a transaction.
pub fn by_oid<T, R>(cache: pg_sys::SysCacheIdentifier::Type, oid: pg_sys::Oid, f: impl FnOnce(&T) -> R) -> Option<R> {
    // SAFETY: callers name the row's type that belongs to the cache. The row is valid until released.
    unsafe {
        let row = pg_sys::SearchSysCache1(cache as c_int, pg_sys::Datum::from(oid));
        if row.is_null() {
            return None;
        }
        let result = f(&*pg_sys::heap_tuple_get_struct::<T>(row));
        pg_sys::ReleaseSysCache(row);
        Some(result)
    }
}

/// Returns the extension's table or index of this name. `None`: it does not exist. Must run in a transaction.
pub fn our_relation(name: &CStr) -> Option<pg_sys::Oid> {
    schema_of_tables().and_then(|schema| relation_in(schema, name))
}

/// Returns the owner of a table. `None`: the table was dropped. Must run in a transaction.
pub fn owner(table: pg_sys::Oid) -> Option<pg_sys::Oid> {
    by_oid(pg_sys::SysCacheIdentifier::RELOID, table, |row: &pg_sys::FormData_pg_class| row.relowner)
}

/// Returns the table that a statement names. `None`: it does not exist. Takes no lock. Must run in a transaction.
///
/// # Safety
/// `name` is a node of the parser.
pub unsafe fn table_oid(name: *const pg_sys::RangeVar) -> Option<pg_sys::Oid> {
    let if_there = pg_sys::RVROption::RVR_MISSING_OK;
    let no_lock = pg_sys::NoLock as pg_sys::LOCKMODE;
    // SAFETY: the caller's promise; a look-up in the catalog.
    let oid = unsafe { pg_sys::RangeVarGetRelidExtended(name, no_lock, if_there, None, std::ptr::null_mut()) };
    (oid != pg_sys::Oid::INVALID).then_some(oid)
}

/// Returns the table and the function of a trigger that this command has created. `None`: the trigger does not exist.
/// Must run in a transaction.
pub fn new_trigger(trigger: pg_sys::Oid) -> Option<(pg_sys::Oid, pg_sys::Oid)> {
    let lock = pg_sys::AccessShareLock as pg_sys::LOCKMODE;
    let mut key = pg_sys::ScanKeyData::default();
    // SAFETY: a scan of a catalog by its key. SnapshotSelf sees the rows of the command that is still running. The row
    // is valid until the scan ends.
    unsafe {
        pg_sys::ScanKeyInit(
            &raw mut key,
            pg_sys::Anum_pg_trigger_oid as i16,
            pg_sys::BTEqualStrategyNumber as u16,
            pg_sys::Oid::from(pg_sys::F_OIDEQ),
            trigger.into(),
        );
        let index = pg_sys::Oid::from(pg_sys::TriggerOidIndexId);
        let catalog = pg_sys::table_open(pg_sys::TriggerRelationId, lock);
        let scan = pg_sys::systable_beginscan(catalog, index, true, &raw mut pg_sys::SnapshotSelfData, 1, &raw mut key);
        let row = pg_sys::systable_getnext(scan);
        let found = (!row.is_null()).then(|| {
            let row = &*pg_sys::heap_tuple_get_struct::<pg_sys::FormData_pg_trigger>(row);
            (row.tgrelid, row.tgfoid)
        });
        pg_sys::systable_endscan(scan);
        pg_sys::table_close(catalog, lock);
        found
    }
}

/// Returns the oid of the extension in this database, as committed at this moment. `None`: it is not installed. Must
/// run in a transaction.
///
/// It does not use `get_extension_oid`. In 18 and later that reads a cache. A session that a commit has just woken may
/// look before its cache learns of that commit.
pub fn our_extension() -> Option<pg_sys::Oid> {
    let mut oid = None;
    // SAFETY: a scan of a catalog of few rows with a new snapshot, each row valid until the next one is read.
    unsafe {
        pg_sys::InvalidateCatalogSnapshot();
        let table = pg_sys::table_open(pg_sys::ExtensionRelationId, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
        let scan = pg_sys::table_beginscan_catalog(table, 0, std::ptr::null_mut());
        loop {
            let row = pg_sys::heap_getnext(scan, pg_sys::ScanDirection::ForwardScanDirection);
            if row.is_null() {
                break;
            }
            let extension = &*pg_sys::heap_tuple_get_struct::<pg_sys::FormData_pg_extension>(row);
            if CStr::from_ptr(extension.extname.data.as_ptr()) == c"pg_queue" {
                oid = Some(extension.oid);
            }
        }
        pg_sys::heap_endscan(scan);
        pg_sys::table_close(table, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
    }
    oid
}

/// True if this is the extension to which this library belongs. Must run in a transaction.
pub fn is_our_extension(extension: pg_sys::Oid) -> bool {
    // SAFETY: a look-up in the catalog; null when there is none.
    unsafe {
        let name = pg_sys::get_extension_name(extension);
        !name.is_null() && CStr::from_ptr(name) == c"pg_queue"
    }
}

/// True if a function belongs to this extension. Must run in a transaction.
pub fn is_our_function(function: pg_sys::Oid) -> bool {
    extension_of(function).is_some_and(is_our_extension)
}

/// True if a function belongs to any extension. Must run in a transaction.
pub fn is_of_extension(function: pg_sys::Oid) -> bool {
    extension_of(function).is_some()
}

fn extension_of(function: pg_sys::Oid) -> Option<pg_sys::Oid> {
    // SAFETY: a look-up in the catalog, which returns an invalid oid if the function belongs to no extension.
    let extension = unsafe { pg_sys::getExtensionOfObject(pg_sys::ProcedureRelationId, function) };
    (extension != pg_sys::Oid::INVALID).then_some(extension)
}

/// Returns the schema of the extension's tables. `None`: it does not exist. Must run in a transaction.
pub fn schema_of_tables() -> Option<pg_sys::Oid> {
    schema(c"queue_internal")
}

fn schema(name: &CStr) -> Option<pg_sys::Oid> {
    // SAFETY: a look-up in the catalogs; invalid when there is none.
    let schema = unsafe { pg_sys::get_namespace_oid(name.as_ptr(), true) };
    (schema != pg_sys::Oid::INVALID).then_some(schema)
}

/// Returns true if a table or view is in a schema of the extension. Must run in a transaction.
pub fn is_in_our_schema(table: pg_sys::Oid) -> bool {
    let cache = pg_sys::SysCacheIdentifier::RELOID;
    let found = by_oid(cache, table, |row: &pg_sys::FormData_pg_class| row.relnamespace);
    found.is_some() && (found == schema_of_tables() || found == schema(c"queue"))
}

/// Returns the relation of this name in a schema. `None`: it does not exist. Must run in a transaction.
pub fn relation_in(schema: pg_sys::Oid, name: &CStr) -> Option<pg_sys::Oid> {
    // SAFETY: a look-up in the catalogs; invalid when there is none.
    let oid = unsafe { pg_sys::get_relname_relid(name.as_ptr(), schema) };
    (oid != pg_sys::Oid::INVALID).then_some(oid)
}
