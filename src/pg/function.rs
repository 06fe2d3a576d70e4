//! How SQL calls Rust: the call, sets of rows, and raising the extension's own errors outside every Rust
//! frame.
//!
//! Responsible for one call of one function. A SQL function `queue.x` is `AS 'MODULE_PATHNAME', 'pg_queue_x'`. Not
//! responsible for its declaration (`sql/schema`), for its C symbol (the macro in `api`), nor for the checks that come
//! before a verb (`api`). No function is STRICT: each one handles NULL itself.
//!
//! Invariant: an error is raised only when no Rust value is left to drop.

use std::ffi::{CStr, CString, c_char, c_int};

use pgrx::pg_sys::{self, Datum};

use crate::error::{self, Error, Result};
use crate::pg::{memory, unbound};

/// The result of a function that returns void: a datum, so that the result is not NULL.
pub const VOID: Datum = Datum::null();

/// An error whose texts lie in Postgres's memory. So it has nothing to drop when it is raised.
struct Raised {
    code: [u8; 5],
    message: *const c_char,
    detail: *const c_char,
    hint: *const c_char,
}

impl Raised {
    fn from(error: Error) -> Self {
        fn copy(text: &str) -> *const c_char {
            let text: Vec<u8> = text.bytes().filter(|b| *b != 0).chain([0]).collect();
            // SAFETY: a C string, copied into the current memory context.
            unsafe { pg_sys::pstrdup(text.as_ptr().cast()) }
        }
        let null = std::ptr::null();
        Self {
            code: error::characters(error.code),
            message: copy(&error.message),
            detail: error.detail.as_deref().map_or(null, copy),
            hint: error.hint.as_deref().map_or(null, copy),
        }
    }
}

/// The body of a SQL function.
pub type Body = fn(&Call) -> Result<Option<Datum>>;

/// Runs the body of a SQL function, and raises the error that it returns. Also works if the library was not preloaded
/// and shared memory does not exist. `api::run` refuses that case and then calls this.
///
/// # Safety
/// Postgres has called a function with this `fcinfo`. `body` has nothing to drop.
pub unsafe fn run_unloaded(
    fcinfo: pg_sys::FunctionCallInfo,
    body: impl Fn(&Call) -> Result<Option<Datum>> + Copy,
) -> Datum {
    // SAFETY: the caller's promise.
    unsafe { guarded(fcinfo, body) }.unwrap_or_else(|| {
        // SAFETY: `fcinfo` is valid for the call.
        unsafe { (*fcinfo).isnull = true };
        Datum::from(0)
    })
}

/// Runs a part of a SQL function under the guard. Raises the error that it returns, when no Rust frame is left.
///
/// # Safety
/// As `run_unloaded`. The result of the part has nothing to drop, either.
pub unsafe fn guarded<R: Copy>(fcinfo: pg_sys::FunctionCallInfo, part: impl Fn(&Call) -> Result<R> + Copy) -> R {
    // SAFETY: the guard turns panics and caught errors into Postgres errors; the closure's captures are
    // plain pointers.
    let outcome = unsafe {
        memory::give_reserve_on_error(|| {
            pg_sys::submodules::panic::pgrx_extern_c_guard(|| {
                memory::check();
                part(&Call(fcinfo)).map_err(Raised::from)
            })
        })
    };
    match outcome {
        Ok(value) => value,
        // SAFETY: all texts lie in Postgres's memory, this frame holds nothing to drop.
        Err(e) => unsafe { raise(e.code, e.message, e.detail, e.hint) },
    }
}

/// One call of a SQL function. How its arguments are read: `argument`.
pub struct Call(pg_sys::FunctionCallInfo);

impl Call {
    /// Returns the raw datum of an argument by its position.
    pub fn raw(&self, n: usize) -> Option<Datum> {
        // SAFETY: Postgres passes as many arguments as the function declares, and no others are read.
        unsafe {
            if n >= self.count() {
                return None;
            }
            let argument = &*(*self.0).args.as_ptr().add(n);
            (!argument.isnull).then_some(argument.value)
        }
    }

    /// Returns how many arguments the function declares.
    pub fn count(&self) -> usize {
        // SAFETY: the call info is valid while the function runs.
        unsafe { (*self.0).nargs as usize }
    }

    /// True if this is a CALL inside a transaction block or a function, where a procedure cannot release its snapshot.
    /// Also true for a plain function.
    pub fn is_atomic(&self) -> bool {
        // SAFETY: for a procedure the context, if it is there, is a CallContext node.
        unsafe {
            let context = (*self.0).context;
            context.is_null()
                || (*context).type_ != pg_sys::NodeTag::T_CallContext
                || (*context.cast::<pg_sys::CallContext>()).atomic
        }
    }

    /// Returns the table of a trigger's call, and whether that table is being truncated. `None`: this is not the call
    /// of a trigger.
    pub fn trigger(&self) -> Option<(pg_sys::Oid, bool)> {
        // SAFETY: the context, if it is there, is a node; that of a trigger has the open table.
        unsafe {
            let context = (*self.0).context;
            if context.is_null() || (*context).type_ != pg_sys::NodeTag::T_TriggerData {
                return None;
            }
            let data = &*context.cast::<pg_sys::TriggerData>();
            let is_truncate = data.tg_event & pg_sys::TRIGGER_EVENT_OPMASK == pg_sys::TRIGGER_EVENT_TRUNCATE;
            Some(((*data.tg_relation).rd_id, is_truncate))
        }
    }

    /// Makes the composite result of a function that returns one row, from a value for each declared column.
    pub fn result_row(&self, values: &mut [Datum], nulls: &mut [bool]) -> Result<Datum> {
        // SAFETY: get_call_result_type fills the descriptor for a function declared with OUT columns.
        unsafe {
            let mut desc = std::ptr::null_mut();
            if pg_sys::get_call_result_type(self.0, std::ptr::null_mut(), &raw mut desc)
                != pg_sys::TypeFuncClass::TYPEFUNC_COMPOSITE
            {
                return Err(Error::internal("the function is not declared to return a row"));
            }
            let desc = pg_sys::BlessTupleDesc(desc);
            let tuple = pg_sys::heap_form_tuple(desc, values.as_mut_ptr(), nulls.as_mut_ptr());
            Ok(pg_sys::HeapTupleHeaderGetDatum((*tuple).t_data))
        }
    }

    /// Begins to return a set, if the function returns one. What is added by `rows` later, in a subtransaction, lies in
    /// this set: its file is the caller's.
    pub fn begin_set(&self) -> Result<Option<Rows>> {
        // SAFETY: the call's own information. It is there if the function returns a set.
        let returns_set = unsafe {
            !(*self.0).resultinfo.is_null() && (*(*(*self.0).flinfo).fn_expr.cast::<pg_sys::FuncExpr>()).funcretset
        };
        returns_set.then(|| self.rows()).transpose()
    }

    /// Begins to return a set. Errors: 0A000 if the caller accepts no set.
    pub fn rows(&self) -> Result<Rows> {
        // SAFETY: as InitMaterializedSRF does: the tuplestore lives in the query's memory, as
        // the expected descriptor does.
        unsafe {
            let info = (*self.0).resultinfo.cast::<pg_sys::ReturnSetInfo>();
            if info.is_null()
                || (*info).type_ != pg_sys::NodeTag::T_ReturnSetInfo
                || (*info).allowedModes & pg_sys::SetFunctionReturnMode::SFRM_Materialize as i32 == 0
                || (*info).expectedDesc.is_null()
            {
                return Err(Error::new(
                    error::NOT_SUPPORTED,
                    "set-valued function called in context that cannot accept a set",
                ));
            }
            // The rows have the expected descriptor, so the set needs no descriptor of its own.
            let desc = (*info).expectedDesc;
            let columns = (*desc).natts as usize;
            if !(*info).setResult.is_null() {
                return Ok(Rows { store: (*info).setResult, desc, columns });
            }
            let old = pg_sys::MemoryContextSwitchTo((*(*info).econtext).ecxt_per_query_memory);
            let random = (*info).allowedModes & pg_sys::SetFunctionReturnMode::SFRM_Materialize_Random as i32 != 0;
            let store = pg_sys::tuplestore_begin_heap(random, false, pg_sys::work_mem);
            pg_sys::MemoryContextSwitchTo(old);
            (*info).returnMode = pg_sys::SetFunctionReturnMode::SFRM_Materialize;
            (*info).setResult = store;
            Ok(Rows { store, desc, columns })
        }
    }
}

/// The set that a function returns.
pub struct Rows {
    store: *mut pg_sys::Tuplestorestate,
    desc: pg_sys::TupleDesc,
    columns: usize,
}

impl Rows {
    /// Removes all rows.
    pub fn clear(&self) {
        // SAFETY: the store of this call, to which nobody has a pointer into.
        unsafe { pg_sys::tuplestore_clear(self.store) };
    }

    /// Adds a row with a value for each declared column. If the numbers differ, returns an internal error.
    pub fn add(&self, values: &mut [Datum], nulls: &mut [bool]) -> Result<()> {
        if values.len() != self.columns || nulls.len() != self.columns {
            return Err(Error::internal(format!("a row of {} columns for a set of {}", values.len(), self.columns)));
        }
        // SAFETY: the values are as many as the descriptor's attributes. The store copies them.
        unsafe { pg_sys::tuplestore_putvalues(self.store, self.desc, values.as_mut_ptr(), nulls.as_mut_ptr()) };
        Ok(())
    }

    /// Adds a row, as `add` does. `None` is NULL. If the function is of an earlier version of the extension's SQL, it
    /// may lack the last columns.
    pub fn add_options<const COLUMNS: usize>(&self, row: &[Option<Datum>; COLUMNS]) -> Result<()> {
        let mut values = row.map(|value| value.unwrap_or(Datum::from(0)));
        let mut nulls = row.map(|value| value.is_none());
        let declared = self.columns.min(COLUMNS);
        self.add(&mut values[..declared], &mut nulls[..declared])
    }
}

impl Error {
    /// Writes the error to the log as a warning, and in a session also sends it to the client. Zero bytes are removed.
    /// Can raise a cancel.
    pub fn warn(self) {
        self.send_message(pgrx::PgLogLevel::WARNING);
    }

    /// Sends the error to the client as a NOTICE. Can raise a cancel.
    pub fn notice(self) {
        self.send_message(pgrx::PgLogLevel::NOTICE);
    }

    fn send_message(self, level: pgrx::PgLogLevel) {
        let text = |text: String| CString::new(text.replace('\0', "")).unwrap_or_default();
        let (message, detail, hint) = (text(self.message), self.detail.map(text), self.hint.map(text));
        send_message(level, error::characters(self.code), &message, detail.as_deref(), hint.as_deref());
    }
}

/// Raises a Postgres error from outside any Rust guard.
///
/// # Safety
/// The pointers are C strings in Postgres's memory that outlive the call; detail and hint may be null. No frame between
/// the caller's and Postgres's holds anything that must be dropped.
pub unsafe fn raise(code: [u8; 5], message: *const i8, detail: *const i8, hint: *const i8) -> ! {
    // SAFETY: the caller's promise.
    unsafe { report(pgrx::PgLogLevel::ERROR, code, message, detail, hint) };
    unreachable!("errfinish does not return")
}

/// Sends a message of this level, with any SQLSTATE. Can raise a cancel.
fn send_message(level: pgrx::PgLogLevel, code: [u8; 5], message: &CStr, detail: Option<&CStr>, hint: Option<&CStr>) {
    let pointer = |text: Option<&CStr>| text.map_or(std::ptr::null(), CStr::as_ptr);
    let (detail, hint) = (pointer(detail), pointer(hint));
    // SAFETY: the C strings outlive the call. An error becomes an unwinding at the guard.
    unsafe {
        pg_sys::ffi::pg_guard_ffi_boundary(|| {
            report(level, code, message.as_ptr(), detail, hint);
        });
    }
}

/// Reports a message as ereport() does. At level ERROR it does not return.
///
/// # Safety
/// As `raise`.
unsafe fn report(level: pgrx::PgLogLevel, code: [u8; 5], message: *const i8, detail: *const i8, hint: *const i8) {
    let packed = code.iter().rev().fold(0, |all, c| (all << 6) | ((c_int::from(*c) - 0x30) & 0x3f));
    // SAFETY: the calls are those of ereport(). Formats are constant, arguments are C strings.
    unsafe {
        // errstart returns false if neither the client nor the log wants the message.
        if !unbound::errstart(level as c_int, std::ptr::null()) {
            return;
        }
        unbound::errcode(packed);
        unbound::errmsg(c"%s".as_ptr(), message);
        if !detail.is_null() {
            unbound::errdetail(c"%s".as_ptr(), detail);
        }
        if !hint.is_null() {
            unbound::errhint(c"%s".as_ptr(), hint);
        }
        unbound::errfinish(c"pg_queue".as_ptr(), 0, c"".as_ptr());
    }
}
