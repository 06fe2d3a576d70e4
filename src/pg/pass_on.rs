//! SQL functions that pass their call on to another function, with the same arguments, for the same caller, into the
//! same result.
//!
//! Responsible for looking the other function up, for the privilege to execute it, and for the call. Not responsible
//! for choosing it (`api::cluster`).
//!
//! Invariant: the other function is called as if the caller's query had called it. It gets the same arguments, and
//! raises its errors past this one, which holds nothing that must be dropped.

use std::ffi::CString;

use pgrx::pg_sys::{self, Datum};

use crate::error::{self, Error, Result};
use crate::pg::function::{Call, guarded};
use crate::pg::{role, syscache};

/// The schema of the extension's own functions.
const SCHEMA: &std::ffi::CStr = c"queue";

/// The function to which a call is passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// The function of the same name in schema `queue`.
    Home,
    /// `away_NAME` in the schema of the function that was called.
    Away,
}

/// How a call is passed on.
#[derive(Clone, Copy)]
pub struct Way {
    pub to: To,
    /// The function at home lacks this many of the last arguments.
    pub left_out: usize,
    /// The `interval` at this position is passed on as 0.
    pub zeroed: Option<usize>,
    /// True if `To::Away` is called, too, when the function at home returns an empty set.
    pub is_first: bool,
}

impl Way {
    /// Returns the way that passes all arguments to one function.
    pub const fn plain(to: To) -> Self {
        Self { to, left_out: 0, zeroed: None, is_first: false }
    }
}

/// What the calls of one query keep: both functions, once they were looked up.
struct Kept {
    home: pg_sys::FmgrInfo,
    away: pg_sys::FmgrInfo,
}

static NOTHING: pg_sys::Interval = pg_sys::Interval { time: 0, day: 0, month: 0 };

/// Passes a call on to the function that `choose` names.
///
/// # Safety
/// Called only from the C symbol of a SQL function: `fcinfo` is valid, and the caller's frame has no drops.
pub unsafe fn run(fcinfo: pg_sys::FunctionCallInfo, choose: fn(&Call) -> Result<Way>) -> Datum {
    // SAFETY: the caller's promise. The called function raises past this frame and the caller's, which hold nothing.
    unsafe {
        let (way, function) = guarded(fcinfo, |call| {
            let way = choose(call)?;
            Ok((way, look_up(fcinfo, way.to, way.left_out)?))
        });
        let answer = call(fcinfo, function, &way);
        if !way.is_first || !is_empty(fcinfo) {
            return answer;
        }
        let function = guarded(fcinfo, |_| look_up(fcinfo, To::Away, 0));
        call(fcinfo, function, &Way::plain(To::Away))
    }
}

/// Calls a function in place of the one that was called.
///
/// # Safety
/// As `run`. The function takes the arguments that the way leaves.
unsafe fn call(fcinfo: pg_sys::FunctionCallInfo, function: *mut pg_sys::FmgrInfo, way: &Way) -> Datum {
    // SAFETY: the call info has room for the arguments, in memory that outlives the call. The function was looked up by
    // the types of these arguments, and gets the place for its result that the caller prepared.
    unsafe {
        let given = (*fcinfo).nargs as usize - way.left_out;
        let size = size_of::<pg_sys::FunctionCallInfoBaseData>() + given * size_of::<pg_sys::NullableDatum>();
        let next: pg_sys::FunctionCallInfo = pg_sys::palloc0(size).cast();
        (*next).flinfo = function;
        (*next).context = (*fcinfo).context;
        (*next).resultinfo = (*fcinfo).resultinfo;
        (*next).fncollation = (*fcinfo).fncollation;
        (*next).nargs = given as _;
        (*next).args.as_mut_ptr().copy_from_nonoverlapping((*fcinfo).args.as_ptr(), given);
        if let Some(place) = way.zeroed {
            (*(*next).args.as_mut_ptr().add(place)).value = Datum::from(&raw const NOTHING);
        }
        let Some(code) = (*function).fn_addr else { return Datum::from(0) };
        let answer = code(next);
        (*fcinfo).isnull = (*next).isnull;
        answer
    }
}

/// True if the returned set is empty. Then it is freed, so that another one can be returned.
///
/// # Safety
/// As `run`. A function that returns a set was called.
unsafe fn is_empty(fcinfo: pg_sys::FunctionCallInfo) -> bool {
    // SAFETY: such a function got a ReturnSetInfo, and has put its set or nothing there.
    unsafe {
        let info = (*fcinfo).resultinfo.cast::<pg_sys::ReturnSetInfo>();
        if (*info).setResult.is_null() {
            return true;
        }
        if pg_sys::tuplestore_tuple_count((*info).setResult) > 0 {
            return false;
        }
        pg_sys::tuplestore_end((*info).setResult);
        (*info).setResult = std::ptr::null_mut();
        true
    }
}

/// Returns the function to which the call is passed on. It is looked up once for each calling query.
///
/// Errors: 42883 if the function does not exist; 42501 if the user may not execute it.
fn look_up(fcinfo: pg_sys::FunctionCallInfo, to: To, left_out: usize) -> Result<*mut pg_sys::FmgrInfo> {
    // SAFETY: the call info is valid, as `run` was promised. The kept functions live as long as the caller's own
    // function info. Only these functions use them.
    unsafe {
        let own = (*fcinfo).flinfo;
        if (*own).fn_extra.is_null() {
            (*own).fn_extra = pg_sys::MemoryContextAllocZero((*own).fn_mcxt, size_of::<Kept>());
        }
        let kept = &mut *(*own).fn_extra.cast::<Kept>();
        let function = match to {
            To::Home => &raw mut kept.home,
            To::Away => &raw mut kept.away,
        };
        // fmgr_info_cxt sets the oid only if it succeeds.
        if (*function).fn_oid == pg_sys::Oid::INVALID {
            let oid = find((*own).fn_oid, to, left_out)?;
            pg_sys::fmgr_info_cxt(oid, function, (*own).fn_mcxt);
        }
        Ok(function)
    }
}

/// Finds the other function by the name and the arguments of the called one.
fn find(called: pg_sys::Oid, to: To, left_out: usize) -> Result<pg_sys::Oid> {
    use pg_sys::SysCacheIdentifier::{PROCNAMEARGSNSP, PROCOID};
    let row = |row: &pg_sys::FormData_pg_proc| {
        // SAFETY: a row of pg_proc has as many types as it says.
        let types = unsafe { row.proargtypes.values.as_slice(row.proargtypes.dim1 as usize) };
        (syscache::name(&row.proname), row.pronamespace, types[..types.len().saturating_sub(left_out)].to_vec())
    };
    let (name, schema, types) = syscache::by_oid(PROCOID, called, row)
        .ok_or_else(|| Error::internal("the function that was called is gone"))?;
    let name = if to == To::Home { name } else { format!("away_{name}") };
    let c_name = CString::new(name.as_str()).unwrap_or_default();
    // SAFETY: look-ups in the catalogs, by keys of the types that the cache has.
    let oid = unsafe {
        let schema = if to == To::Home { pg_sys::get_namespace_oid(SCHEMA.as_ptr(), false) } else { schema };
        let types = pg_sys::buildoidvector(types.as_ptr(), types.len() as i32);
        let oid_column = pg_sys::Anum_pg_proc_oid as pg_sys::AttrNumber;
        let (name, schema) = (Datum::from(c_name.as_ptr()), Datum::from(schema));
        pg_sys::GetSysCacheOid(PROCNAMEARGSNSP as _, oid_column, name, Datum::from(types), schema, Datum::from(0))
    };
    if oid == pg_sys::Oid::INVALID {
        return Err(Error::new(error::NO_FUNCTION, format!("there is no function \"{name}\" with these arguments"))
            .detail("The versions of pg_queue and pg_queue_cluster do not fit.")
            .hint("ALTER EXTENSION pg_queue UPDATE; ALTER EXTENSION pg_queue_cluster UPDATE."));
    }
    if !role::may_execute(oid) {
        return Err(Error::new(error::DENIED, format!("permission denied for function {name}")));
    }
    Ok(oid)
}
