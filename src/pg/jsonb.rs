//! Reads the jsonb that describes jobs without printing or parsing it. Payloads pass through unchanged.
//!
//! Responsible for single values and fields, and for the texts of intervals and times in them. Not responsible for the
//! meaning of a field, for which fields are allowed (`api::enqueue`), nor for what may be stored (`stored_json`).
//!
//! Invariant: an error of an input function becomes `None`, and leaves only allocated memory behind.

use std::ffi::{CString, c_char, c_int};

use pgrx::pg_sys::JsonbIteratorToken::{self, WJB_DONE, WJB_ELEM, WJB_KEY, WJB_VALUE};
use pgrx::pg_sys::{self, Datum, JsonbContainer, JsonbValue, jbvType};
use pgrx::{PgSqlErrorCode, PgTryBuilder, direct_function_call_as_datum};

use crate::pg::datum::{self, Interval};
use crate::pg::{memory, raw};

/// A value inside a jsonb. It is valid as long as the detoasted jsonb, that is, during the call of the SQL function.
#[derive(Clone, Copy)]
pub struct Value(JsonbValue);

/// Returns the tokens of the top level of an array or object, in order. A nested array or object is one value.
fn walk(container: *mut JsonbContainer) -> Vec<(JsonbIteratorToken::Type, JsonbValue)> {
    // SAFETY: the header says how many elements or pairs there are.
    let count = unsafe { (*container).header } & pg_sys::JB_CMASK;
    memory::room_for_elements(2 * count as usize, 0);
    let mut found = Vec::new();
    // SAFETY: the container lies in a detoasted jsonb. With skip_nested the iterator stays on the top level, and frees
    // itself at the end. An error inside becomes an unwinding at the guard.
    unsafe {
        pg_sys::ffi::pg_guard_ffi_boundary(|| {
            let mut it = raw::JsonbIteratorInit(container);
            let mut value = JsonbValue { type_: 0, val: std::mem::zeroed() };
            loop {
                match raw::JsonbIteratorNext(&raw mut it, &raw mut value, true) {
                    WJB_DONE => break,
                    token @ (WJB_KEY | WJB_VALUE | WJB_ELEM) => memory::push(&mut found, (token, value)),
                    // The other tokens are the brackets of the top level. A nested array or object comes as one value.
                    _ => {}
                }
            }
        });
    }
    found
}

/// Returns the elements of a jsonb that is an array. `None` if it is no array.
pub fn elements(jsonb: Datum) -> Option<Vec<Value>> {
    let root = root(jsonb);
    // SAFETY: a detoasted jsonb has a root container.
    let header = unsafe { (*root).header };
    if header & pg_sys::JB_FARRAY == 0 || header & pg_sys::JB_FSCALAR != 0 {
        return None;
    }
    Some(walk(root).into_iter().map(|(_, value)| Value(value)).collect())
}

/// Returns the name and value of each field of a jsonb that is an object. Empty: it is no object.
pub fn fields(jsonb: Datum) -> Vec<(String, Value)> {
    if !is_object(jsonb) {
        return Vec::new();
    }
    let parts = walk(root(jsonb)).into_iter().map(|(_, value)| value).collect::<Vec<_>>();
    memory::collect(parts.chunks_exact(2).filter_map(|pair| Some((string(&pair[0])?, Value(pair[1])))))
}

/// Returns an object with one field, in the current memory context. NULL becomes null. `None`: Postgres refuses the
/// name, for instance one with a zero character.
pub fn object_of(name: &str, value: Option<Datum>) -> Option<Datum> {
    let object = of(&serde_json::json!({ name: null }))?;
    let Some(value) = value else { return Some(object) };
    // SAFETY: a function of jsonb, text[], jsonb and boolean that changes nothing but memory.
    unsafe {
        let path = super::datum::text_array_datum(&[name]);
        direct_function_call_as_datum(pg_sys::jsonb_set, &[Some(object), Some(path), Some(value), Some(true.into())])
    }
}

/// Returns a field of a jsonb that is an object. `None` if the jsonb is no object, has no such field, or the field is
/// no string.
pub fn text_field(jsonb: Datum, name: &str) -> Option<String> {
    field(jsonb, name)?.as_str()
}

/// Returns a field of a jsonb that is an object. `None` if the jsonb is no object, or has no such field.
pub fn field(jsonb: Datum, name: &str) -> Option<Value> {
    let root = root(jsonb);
    // SAFETY: a detoasted jsonb has a root container.
    if unsafe { (*root).header & pg_sys::JB_FOBJECT == 0 } {
        return None;
    }
    // SAFETY: an object, a name with its length, and a place for the value. The function raises nothing.
    unsafe {
        let mut value = JsonbValue { type_: 0, val: std::mem::zeroed() };
        let found = raw::getKeyJsonValueFromContainer(root, name.as_ptr().cast(), name.len() as c_int, &raw mut value);
        (!found.is_null()).then_some(Value(value))
    }
}

/// Returns the value of a jsonb that is a scalar. `None`: it is an object or an array.
pub fn scalar(jsonb: Datum) -> Option<Value> {
    let root = root(jsonb);
    // SAFETY: a detoasted jsonb has a root container.
    let is_scalar = unsafe { (*root).header & pg_sys::JB_FSCALAR != 0 };
    walk(root).first().filter(|_| is_scalar).map(|(_, value)| Value(*value))
}

/// Returns the outermost container of a jsonb, detoasted.
pub(super) fn root(jsonb: Datum) -> *mut JsonbContainer {
    // SAFETY: a datum of type jsonb.
    unsafe {
        let detoasted = pg_sys::pg_detoast_datum(jsonb.cast_mut_ptr()).cast::<pg_sys::Jsonb>();
        &raw mut (*detoasted).root
    }
}

impl Value {
    /// Returns the name and value of each field of an object. `None`: this is no object.
    pub fn fields(&self) -> Option<Vec<(String, Value)>> {
        if self.0.type_ != jbvType::jbvBinary {
            return None;
        }
        // SAFETY: the type says which member of the union is set.
        let container = unsafe { self.0.val.binary.data };
        // SAFETY: as above.
        if unsafe { (*container).header } & pg_sys::JB_FOBJECT == 0 {
            return None;
        }
        let parts = walk(container);
        let pairs = parts.chunks_exact(2).map(|pair| (string(&pair[0].1).unwrap_or_default(), Value(pair[1].1)));
        Some(pairs.collect())
    }

    /// True if this is JSON null.
    pub fn is_null(&self) -> bool {
        self.0.type_ == jbvType::jbvNull
    }

    /// Returns a boolean. `None`: this is no boolean.
    pub fn as_bool(&self) -> Option<bool> {
        if self.0.type_ != jbvType::jbvBool {
            return None;
        }
        // SAFETY: the type says which member is set.
        Some(unsafe { self.0.val.boolean })
    }

    /// True if this is an array or an object.
    pub fn is_container(&self) -> bool {
        self.0.type_ == jbvType::jbvBinary
    }

    /// Returns the text of a string. `None`: this is no string.
    pub fn as_str(&self) -> Option<String> {
        string(&self.0)
    }

    /// Returns the first `bytes` bytes of a string, or all if it is shorter. A character that is cut becomes U+FFFD.
    /// `None`: this is no string.
    pub fn begin(&self, bytes: usize) -> Option<String> {
        begin(&self.0, bytes)
    }

    /// Returns a number as an `integer`. `None`: this is no number, has a fraction or is out of range.
    pub fn as_i32(&self) -> Option<i32> {
        self.number()?.parse().ok()
    }

    /// Returns a number as a `bigint`. `None` as for `as_i32`.
    pub fn as_i64(&self) -> Option<i64> {
        self.number()?.parse().ok()
    }

    /// Returns a number as the nearest `double precision`. `None`: this is no number.
    pub fn as_f64(&self) -> Option<f64> {
        self.number()?.parse().ok()
    }

    /// Returns the digits of a number.
    fn number(&self) -> Option<String> {
        if self.0.type_ != jbvType::jbvNumeric {
            return None;
        }
        // SAFETY: the type says which member is set.
        let numeric = unsafe { self.0.val.numeric };
        let text = pure(|| {
            // SAFETY: prints a numeric.
            unsafe { direct_function_call_as_datum(pg_sys::numeric_out, &[Some(Datum::from(numeric))]) }
        })?;
        // SAFETY: numeric_out returns a C string.
        Some(unsafe { crate::pg::datum::c_text(text.cast_mut_ptr()) })
    }

    /// Returns the value in a few words: a scalar as in JSON, with strings cut to `bytes`.
    pub fn brief(&self, bytes: usize) -> String {
        let text = self.begin(bytes).map(|text| {
            let more = if self.as_str().is_some_and(|all| all.len() > text.len()) { "…" } else { "" };
            format!("\"{text}{more}\"")
        });
        let flag = || self.as_bool().map(|is_true| is_true.to_string());
        let other = || if self.fields().is_some() { "an object" } else { "an array" };
        let scalar = text.or_else(|| self.number()).or_else(flag);
        scalar.unwrap_or_else(|| if self.is_null() { "null" } else { other() }.to_owned())
    }

    /// Returns the value as a separate jsonb, in the current memory context.
    pub fn datum(&self) -> Datum {
        let mut value = self.0;
        // SAFETY: serializes into the current memory context. Errors unwind at the guard.
        unsafe { pg_sys::ffi::pg_guard_ffi_boundary(|| Datum::from(raw::JsonbValueToJsonb(&raw mut value))) }
    }
}

fn string(value: &JsonbValue) -> Option<String> {
    begin(value, usize::MAX)
}

fn begin(value: &JsonbValue, most: usize) -> Option<String> {
    if value.type_ != jbvType::jbvString {
        return None;
    }
    // SAFETY: the type says which member is set; the bytes lie in the jsonb.
    let bytes = unsafe {
        let string = value.val.string;
        std::slice::from_raw_parts(string.val.cast::<u8>(), most.min(string.len as usize))
    };
    memory::room_for_text(bytes.len());
    Some(String::from_utf8_lossy(bytes).into_owned())
}

/// Runs an input or output function that changes nothing but memory. `None`: it raised an error. No subtransaction
/// cleans up after the error, so this is sound only for such functions. A lack of memory is raised again.
fn pure(f: impl FnOnce() -> Option<Datum> + std::panic::UnwindSafe) -> Option<Datum> {
    PgTryBuilder::new(f)
        .catch_when(PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY, |error| error.rethrow())
        .catch_others(|_| None)
        .execute()
}

/// Runs `f`, which makes values in memory and changes nothing else. `None`: it raised an error, for instance because a
/// value is too large.
pub fn if_possible(f: impl FnOnce() -> Option<Datum>) -> Option<Datum> {
    pure(std::panic::AssertUnwindSafe(f))
}

type Input = unsafe fn(pg_sys::FunctionCallInfo) -> Datum;

/// Runs an input function of three arguments on a text. `None`: the function refuses the text.
fn input(function: Input, text: &str) -> Option<Datum> {
    let text = CString::new(text).ok()?;
    let argument = Datum::from(text.as_ptr() as *mut c_char);
    let typmod = Datum::from(-1_i32);
    pure(std::panic::AssertUnwindSafe(|| {
        // SAFETY: an input function of three arguments: text, an unused type, no modifier.
        unsafe { direct_function_call_as_datum(function, &[Some(argument), Some(Datum::from(0)), Some(typmod)]) }
    }))
}

/// Reads an interval in the syntax of type `interval`. `None`: the text is no interval.
pub fn interval(text: &str) -> Option<Interval> {
    input(pg_sys::interval_in, text).map(Interval::read)
}

/// Reads a time in the syntax of type `timestamptz`. Returns it in microseconds, as Postgres counts. `None`: the text
/// is no time.
pub fn timestamp(text: &str) -> Option<i64> {
    input(pg_sys::timestamptz_in, text).map(|d| d.value() as i64)
}

/// Returns the jsonb `{}`, in the current memory context.
pub fn empty_object() -> Datum {
    of_text("{}").unwrap_or(Datum::from(0))
}

/// Returns a value as a jsonb, in the current memory context. `None`: Postgres refuses it, for instance a string with a
/// zero character.
pub fn of(value: &serde_json::Value) -> Option<Datum> {
    of_text(&value.to_string())
}

/// Reads a jsonb from its text, into the current memory context. `None`: the text is no JSON.
pub fn of_text(text: &str) -> Option<Datum> {
    let text = CString::new(text).ok()?;
    let argument = Datum::from(text.as_ptr() as *mut c_char);
    pure(std::panic::AssertUnwindSafe(|| {
        // SAFETY: an input function of one argument.
        unsafe { direct_function_call_as_datum(pg_sys::jsonb_in, &[Some(argument)]) }
    }))
}

/// Returns a jsonb as text.
pub fn text(jsonb: Datum) -> String {
    // SAFETY: the output function of the type, which returns a C string.
    unsafe {
        direct_function_call_as_datum(pg_sys::jsonb_out, &[Some(jsonb)])
            .map_or_else(String::new, |text| crate::pg::datum::c_text(text.cast_mut_ptr()))
    }
}

/// True if a jsonb is an object.
pub fn is_object(jsonb: Datum) -> bool {
    // SAFETY: a detoasted jsonb has a root container.
    unsafe { (*root(jsonb)).header & pg_sys::JB_FOBJECT != 0 }
}

/// Returns an object with the fields of two objects. If both have a field, the value of the second counts.
pub fn merged(first: Datum, second: Datum) -> Datum {
    // SAFETY: a function of two jsonb that changes nothing but memory.
    unsafe { direct_function_call_as_datum(pg_sys::jsonb_concat, &[Some(first), Some(second)]) }.unwrap_or(second)
}

/// Returns an object with the fields of all objects, as `merged`. `None`: there are none. It joins neighbours first, so
/// that the time and the memory for many small objects do not grow with the square of their number.
pub fn joined(mut objects: Vec<Datum>) -> Option<Datum> {
    while objects.len() > 1 {
        objects = objects.chunks(2).map(|two| two.iter().copied().reduce(merged).unwrap_or(two[0])).collect();
    }
    objects.pop()
}

/// Returns an object without one of its fields.
pub fn without(object: Datum, name: &str) -> Datum {
    // SAFETY: a function of a jsonb object and a text that changes nothing but memory.
    unsafe { direct_function_call_as_datum(pg_sys::jsonb_delete, &[Some(object), Some(datum::text_datum(name))]) }
        .unwrap_or(object)
}

/// Copies a jsonb that lies in a row into the current memory context. The copy is neither compressed nor toasted.
pub fn copy(jsonb: Datum) -> Datum {
    // SAFETY: a datum of a variable-length type, as it is stored.
    Datum::from(unsafe { pg_sys::pg_detoast_datum_copy(jsonb.cast_mut_ptr()) })
}
