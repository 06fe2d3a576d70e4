//! Builds a call of one function or procedure by its oid instead of its name. So overloads, schemas and search_path do
//! not affect which routine is called.
//!
//! Responsible for the statement's tree. Not responsible for which routine is meant (`routine`), nor for running it
//! (`portal`).
//!
//! Invariant: the tree is the one that analysis of `CALL name($1)` or `SELECT name($1)` would build, with `$1` a jsonb.

use std::ffi::c_int;
use std::ptr;

use pgrx::pg_sys::{self, Datum, NodeTag, Oid};

use crate::pg::routine::Routine;

/// Returns a new node of a type of the parser.
///
/// # Safety
/// `T` is the type that `tag` says.
unsafe fn node<T>(tag: NodeTag) -> *mut T {
    // SAFETY: zeroed memory of that size; the tag comes first in each node.
    unsafe {
        let made = pg_sys::palloc0(size_of::<T>());
        *made.cast::<NodeTag>() = tag;
        made.cast()
    }
}

/// Returns the analyzed call of a routine, and the value of its parameter, in the current memory context. `text`: the
/// call's text in statistics.
pub fn statement(routine: &Routine, text: &str, argument: Datum) -> (*mut pg_sys::List, pg_sys::ParamListInfo) {
    // SAFETY: the nodes have the types that their tags say, as the analysis makes them. The catalog look-ups find an
    // existing routine, or raise errors.
    unsafe {
        let parameter = node::<pg_sys::Param>(NodeTag::T_Param);
        (*parameter).paramkind = pg_sys::ParamKind::PARAM_EXTERN;
        (*parameter).paramid = 1;
        (*parameter).paramtype = pg_sys::JSONBOID;
        (*parameter).paramtypmod = -1;
        (*parameter).location = -1;
        let result = pg_sys::get_func_rettype(routine.oid);
        let call = pg_sys::makeFuncExpr(
            routine.oid,
            result,
            pg_sys::lappend(ptr::null_mut(), parameter.cast()),
            pg_sys::get_typcollation(result),
            Oid::INVALID,
            pg_sys::CoercionForm::COERCE_EXPLICIT_CALL,
        )
        .cast::<pg_sys::FuncExpr>();
        (*call).funcretset = pg_sys::get_func_retset(routine.oid);
        let query = node::<pg_sys::Query>(NodeTag::T_Query);
        (*query).canSetTag = true;
        // Statistics distinguish statements by this id. 0 would mean no id.
        (*query).queryId = (super::session::hash(text) | 1) as _;
        if routine.is_procedure {
            let statement = node::<pg_sys::CallStmt>(NodeTag::T_CallStmt);
            (*statement).funcexpr = call;
            (*statement).outargs = results(routine.oid, parameter);
            (*query).commandType = pg_sys::CmdType::CMD_UTILITY;
            (*query).utilityStmt = statement.cast();
        } else {
            (*query).commandType = pg_sys::CmdType::CMD_SELECT;
            (*query).hasTargetSRFs = (*call).funcretset;
            (*query).jointree = pg_sys::makeFromExpr(ptr::null_mut(), ptr::null_mut());
            let name = pg_sys::pstrdup(c"result".as_ptr());
            let column = pg_sys::makeTargetEntry(call.cast(), 1, name, false);
            (*query).targetList = pg_sys::lappend(ptr::null_mut(), column.cast());
        }
        let list = pg_sys::makeParamList(1);
        let value = (*list).params.as_mut_ptr();
        (*value).value = argument;
        (*value).isnull = false;
        (*value).pflags = pg_sys::PARAM_FLAG_CONST as u16;
        (*value).ptype = pg_sys::JSONBOID;
        (pg_sys::lappend(ptr::null_mut(), query.cast()), list)
    }
}

/// Returns the results of a CALL: the parameter if it is INOUT, and NULL for each OUT.
unsafe fn results(procedure: Oid, parameter: *mut pg_sys::Param) -> *mut pg_sys::List {
    // SAFETY: the cache's row is released before the return. The arrays have as many elements as it says.
    unsafe {
        let mut all = ptr::null_mut();
        let row = pg_sys::SearchSysCache1(pg_sys::SysCacheIdentifier::PROCOID as c_int, procedure.into());
        if row.is_null() {
            return all;
        }
        let (mut types, mut names, mut modes) = (ptr::null_mut::<Oid>(), ptr::null_mut(), ptr::null_mut());
        let count = pg_sys::get_func_arg_info(row, &raw mut types, &raw mut names, &raw mut modes);
        for n in 0..usize::try_from(count).unwrap_or(0) {
            match if modes.is_null() { b'i' } else { *modes.add(n) as u8 } {
                b'b' => all = pg_sys::lappend(all, parameter.cast()),
                b'o' => {
                    let kind = *types.add(n);
                    let null = pg_sys::makeNullConst(kind, -1, pg_sys::get_typcollation(kind));
                    all = pg_sys::lappend(all, null.cast());
                }
                _ => {}
            }
        }
        pg_sys::ReleaseSysCache(row);
        all
    }
}
