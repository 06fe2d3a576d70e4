//! How SQL calls Rust: one macro per function, arguments by position, sets of rows, and the raising of
//! our own errors outside every Rust frame.
//!
//! A SQL function `queue.x` is `AS 'MODULE_PATHNAME', 'pg_queue_x'`; its declaration lies in
//! `sql/schema`. No function is STRICT: each says itself what NULL means.

use std::borrow::Cow;
use std::ffi::c_char;

use pgrx::pg_sys;
use pgrx::pg_sys::Datum;

use crate::error::{self, Error, Result};

/// Declares the C symbols of a SQL function: `sql_function!(pg_queue_complete => complete)`, where
/// `complete` is `fn(&Call) -> Result<Option<Datum>>` (`None` is NULL).
///
/// Without shared memory it raises 55000; with `run_unloaded` behind the body it is called nevertheless.
macro_rules! sql_function {
    ($symbol:ident, $info:ident => $body:path) => {
        $crate::call::sql_function!($symbol, $info => $body, $crate::call::run);
    };
    ($symbol:ident, $info:ident => $body:path, $run:path) => {
        #[doc(hidden)]
        #[unsafe(no_mangle)]
        pub extern "C" fn $info() -> &'static pgrx::pg_sys::Pg_finfo_record {
            const V1: pgrx::pg_sys::Pg_finfo_record = pgrx::pg_sys::Pg_finfo_record { api_version: 1 };
            &V1
        }

        #[doc(hidden)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $symbol(fcinfo: pgrx::pg_sys::FunctionCallInfo) -> pgrx::pg_sys::Datum {
            // SAFETY: Postgres calls this with a valid call info; nothing in this frame needs a drop.
            unsafe { $run(fcinfo, $body) }
        }
    };
}
pub(crate) use sql_function;

/// What a function that returns void returns: something, so that it is not NULL.
pub const VOID: Datum = Datum::null();

/// An error whose texts lie in Postgres's memory, so that nothing of Rust is left to drop.
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
        let mut code = *b"XX000";
        if error.code.len() == 5 {
            code.copy_from_slice(error.code.as_bytes());
        }
        let null = std::ptr::null();
        Self {
            code,
            message: copy(&error.message),
            detail: error.detail.as_deref().map_or(null, copy),
            hint: error.hint.as_deref().map_or(null, copy),
        }
    }
}

/// Runs the body of a SQL function.
///
/// # Safety
/// Only from the C symbol of a SQL function: `fcinfo` is valid and the caller's frame has no drops.
pub unsafe fn run(fcinfo: pg_sys::FunctionCallInfo, body: Body) -> Datum {
    let loaded = |call: &Call| if crate::shmem::is_there() { body(call) } else { Err(Error::not_loaded()) };
    // SAFETY: the caller's promise.
    unsafe { run_unloaded(fcinfo, loaded) }
}

/// The body of a SQL function.
pub type Body = fn(&Call) -> Result<Option<Datum>>;

/// As `run`, also where the library was not preloaded and there is no shared memory.
///
/// # Safety
/// As `run`; the body has nothing to drop.
pub unsafe fn run_unloaded(
    fcinfo: pg_sys::FunctionCallInfo,
    body: impl Fn(&Call) -> Result<Option<Datum>> + Copy,
) -> Datum {
    // SAFETY: the guard turns panics and caught errors into Postgres errors; the closure's captures are
    // plain pointers.
    let outcome =
        unsafe { pg_sys::submodules::panic::pgrx_extern_c_guard(|| body(&Call(fcinfo)).map_err(Raised::from)) };
    match outcome {
        Ok(Some(datum)) => datum,
        Ok(None) => {
            // SAFETY: valid for the call.
            unsafe { (*fcinfo).isnull = true };
            Datum::from(0)
        }
        // SAFETY: all texts lie in Postgres's memory, this frame holds nothing to drop.
        Err(e) => unsafe { crate::sys::raise(e.code, e.message, e.detail, e.hint) },
    }
}

/// An interval as Postgres stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// Months and years.
    pub months: i32,
    /// Days and weeks.
    pub days: i32,
    /// The rest, in microseconds.
    pub time: i64,
}

impl Interval {
    /// Its length in microseconds: a day has 24 hours, a month 30 days.
    pub fn us(self) -> i64 {
        const DAY: i64 = 86_400_000_000;
        (i64::from(self.months).saturating_mul(30).saturating_add(i64::from(self.days)))
            .saturating_mul(DAY)
            .saturating_add(self.time)
    }

    /// The interval a datum of that type points to.
    pub fn read(datum: Datum) -> Self {
        // SAFETY: a datum of type interval points to one.
        let raw = unsafe { &*datum.cast_mut_ptr::<pg_sys::Interval>() };
        Self { months: raw.month, days: raw.day, time: raw.time }
    }

    /// The interval as a datum, in the current memory context.
    pub fn datum(self) -> Datum {
        // SAFETY: fresh memory of the right size.
        unsafe {
            let raw = pg_sys::palloc(size_of::<pg_sys::Interval>()).cast::<pg_sys::Interval>();
            (*raw).month = self.months;
            (*raw).day = self.days;
            (*raw).time = self.time;
            Datum::from(raw)
        }
    }

    /// `from` plus this interval, by the calendar of the session's time zone.
    pub fn after(self, from: i64) -> i64 {
        // SAFETY: a plain function of two values; it raises on overflow.
        unsafe {
            pgrx::direct_function_call_as_datum(
                pg_sys::timestamptz_pl_interval,
                &[Some(Datum::from(from)), Some(self.datum())],
            )
        }
        .map_or(from, |d| d.value() as i64)
    }
}

/// One call of a SQL function. Arguments are read by position; `None` is NULL or not given.
pub struct Call(pg_sys::FunctionCallInfo);

impl Call {
    /// The raw datum of an argument.
    pub fn datum(&self, n: usize) -> Option<Datum> {
        // SAFETY: Postgres passes as many arguments as the function declares, and we read no others.
        unsafe {
            if n >= (*self.0).nargs as usize {
                return None;
            }
            let argument = &*(*self.0).args.as_ptr().add(n);
            (!argument.isnull).then_some(argument.value)
        }
    }

    /// A `bigint`.
    pub fn i64(&self, n: usize) -> Option<i64> {
        self.datum(n).map(|d| d.value() as i64)
    }

    /// An `integer`.
    pub fn i32(&self, n: usize) -> Option<i32> {
        self.datum(n).map(|d| d.value() as i32)
    }

    /// A `boolean`.
    pub fn bool(&self, n: usize) -> Option<bool> {
        self.datum(n).map(|d| d.value() & 1 != 0)
    }

    /// A `double precision`.
    pub fn f64(&self, n: usize) -> Option<f64> {
        self.datum(n).map(|d| f64::from_bits(d.value() as u64))
    }

    /// A `timestamptz`, in microseconds as Postgres counts them.
    pub fn timestamp(&self, n: usize) -> Option<i64> {
        self.i64(n)
    }

    /// An `interval`.
    pub fn interval(&self, n: usize) -> Option<Interval> {
        self.datum(n).map(Interval::read)
    }

    /// A `text`.
    pub fn text(&self, n: usize) -> Option<String> {
        self.str(n).map(Cow::into_owned)
    }

    /// A `text`, where it lies if that is possible.
    pub fn str(&self, n: usize) -> Option<Cow<'_, str>> {
        let stored = self.datum(n)?.cast_mut_ptr::<pg_sys::varlena>();
        // SAFETY: an argument of type text, which stays where it is as long as the call.
        unsafe {
            if is_plain(stored) {
                Some(String::from_utf8_lossy(pgrx::varlena_to_byte_slice(stored)))
            } else {
                Some(Cow::Owned(text(stored.into())))
            }
        }
    }

    /// A `bigint[]`.
    pub fn i64_array(&self, n: usize) -> Option<Vec<Option<i64>>> {
        let elements = array(self.datum(n)?, pg_sys::INT8OID, 8, true, b'd');
        Some(elements.into_iter().map(|e| e.map(|d| d.value() as i64)).collect())
    }

    /// A `text[]`.
    pub fn text_array(&self, n: usize) -> Option<Vec<Option<String>>> {
        self.datum(n).map(text_array)
    }

    /// A `jsonb[]`, elements as they are.
    pub fn jsonb_array(&self, n: usize) -> Option<Vec<Option<Datum>>> {
        Some(array(self.datum(n)?, pg_sys::JSONBOID, -1, false, b'i'))
    }

    /// A `bytea[]`.
    pub fn bytes_array(&self, n: usize) -> Option<Vec<Option<Vec<u8>>>> {
        let elements = array(self.datum(n)?, pg_sys::BYTEAOID, -1, false, b'i');
        Some(elements.into_iter().map(|e| e.map(bytes)).collect())
    }

    /// A required argument.
    pub fn required<T>(&self, name: &str, value: Option<T>) -> Result<T> {
        value.ok_or_else(|| Error::null(name))
    }

    /// Whether this is a CALL inside a transaction block or a function, where a procedure cannot end
    /// its snapshot.
    pub fn is_atomic(&self) -> bool {
        // SAFETY: for a procedure the context, when it is there, is a CallContext node.
        unsafe {
            let context = (*self.0).context;
            context.is_null()
                || (*context).type_ != pg_sys::NodeTag::T_CallContext
                || (*context.cast::<pg_sys::CallContext>()).atomic
        }
    }

    /// Whether this is the call of a trigger.
    pub fn is_trigger(&self) -> bool {
        // SAFETY: the context, when it is there, is a node.
        unsafe {
            let context = (*self.0).context;
            !context.is_null() && (*context).type_ == pg_sys::NodeTag::T_TriggerData
        }
    }

    /// The type of the composite result, for functions that return one row.
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

    /// Begins to return a set.
    pub fn rows(&self) -> Result<Rows> {
        // SAFETY: what InitMaterializedSRF of 15 does, also for 14: the tuplestore lives in the query's memory,
        // as the expected descriptor does.
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
            let old = pg_sys::MemoryContextSwitchTo((*(*info).econtext).ecxt_per_query_memory);
            let random = (*info).allowedModes & pg_sys::SetFunctionReturnMode::SFRM_Materialize_Random as i32 != 0;
            let store = pg_sys::tuplestore_begin_heap(random, false, pg_sys::work_mem);
            pg_sys::MemoryContextSwitchTo(old);
            (*info).returnMode = pg_sys::SetFunctionReturnMode::SFRM_Materialize;
            (*info).setResult = store;
            // No descriptor of ours: the rows are of the expected one, so there is nothing to compare.
            let desc = (*info).expectedDesc;
            Ok(Rows { store, desc, columns: (*desc).natts as usize })
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
    /// Adds a row; there must be a value for each declared column.
    pub fn add(&self, values: &mut [Datum], nulls: &mut [bool]) -> Result<()> {
        if values.len() != self.columns || nulls.len() != self.columns {
            return Err(Error::internal(format!("a row of {} columns for a set of {}", values.len(), self.columns)));
        }
        // SAFETY: as many values as the descriptor has attributes; the store copies them.
        unsafe { pg_sys::tuplestore_putvalues(self.store, self.desc, values.as_mut_ptr(), nulls.as_mut_ptr()) };
        Ok(())
    }

    /// Adds a row of optional values.
    pub fn add_options<const COLUMNS: usize>(&self, row: &[Option<Datum>; COLUMNS]) -> Result<()> {
        let mut values = row.map(|value| value.unwrap_or(Datum::from(0)));
        let mut nulls = row.map(|value| value.is_none());
        self.add(&mut values, &mut nulls)
    }
}

/// The elements of an array of a fixed-length or text type; one that is NULL is `None`.
fn array(datum: Datum, element: pg_sys::Oid, length: i16, by_value: bool, align: u8) -> Vec<Option<Datum>> {
    // SAFETY: a datum of an array of `element`; deconstruct_array fills the three outputs with memory of the current
    // context.
    unsafe {
        let array = pg_sys::pg_detoast_datum(datum.cast_mut_ptr()).cast::<pg_sys::ArrayType>();
        let (mut elements, mut nulls, mut count) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
        pg_sys::deconstruct_array(
            array,
            element,
            length.into(),
            by_value,
            align as c_char,
            &raw mut elements,
            &raw mut nulls,
            &raw mut count,
        );
        (0..count as usize).map(|i| (!*nulls.add(i)).then(|| *elements.add(i))).collect()
    }
}

/// The elements of a `text[]`.
pub fn text_array(datum: Datum) -> Vec<Option<String>> {
    let elements = array(datum, pg_sys::TEXTOID, -1, false, b'i');
    elements.into_iter().map(|e| e.map(text)).collect()
}

/// Whether a value of a variable-length type is neither toasted nor compressed.
///
/// # Safety
/// A value of such a type.
unsafe fn is_plain(stored: *const pg_sys::varlena) -> bool {
    // SAFETY: the caller's promise; looks at its header.
    unsafe { pgrx::varatt_is_4b_u(stored) || pgrx::varatt_is_1b(stored) && !pgrx::varatt_is_1b_e(stored) }
}

/// The text of a datum of type text.
pub fn text(datum: Datum) -> String {
    // SAFETY: a datum of type text; what is toasted or compressed is unpacked into the current context, and all is
    // copied from there.
    unsafe {
        let stored = datum.cast_mut_ptr::<pg_sys::varlena>();
        let plain = if is_plain(stored) { stored } else { pg_sys::pg_detoast_datum_packed(stored) };
        let text = String::from_utf8_lossy(pgrx::varlena_to_byte_slice(plain)).into_owned();
        if plain != stored {
            pg_sys::pfree(plain.cast());
        }
        text
    }
}

/// The bytes of a datum of type bytea.
fn bytes(datum: Datum) -> Vec<u8> {
    // SAFETY: a datum of type bytea, detoasted unless it is so already, and copied.
    unsafe { pgrx::varlena_to_byte_slice(pg_sys::pg_detoast_datum_packed(datum.cast_mut_ptr())).to_vec() }
}

/// A datum of type bytea, in the current memory context.
pub fn bytes_datum(bytes: &[u8]) -> Datum {
    // SAFETY: copies the bytes; a text and a bytea look alike.
    unsafe { Datum::from(pg_sys::cstring_to_text_with_len(bytes.as_ptr().cast(), bytes.len() as i32)) }
}

/// A datum of type text, in the current memory context.
pub fn text_datum(text: &str) -> Datum {
    // SAFETY: copies the bytes.
    unsafe { Datum::from(pg_sys::cstring_to_text_with_len(text.as_ptr().cast(), text.len() as i32)) }
}
