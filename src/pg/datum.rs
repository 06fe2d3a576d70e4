//! Values as Postgres passes them, copied or read in place: texts, bytes, arrays, intervals, lists.
//!
//! Responsible for single values. Not responsible for rows (`row`), jsonb (`jsonb`), nor the arguments of a call
//! (`function`).
//!
//! Invariant: a returned `String` or `Vec` is a copy. Only `bytes_of` and `fetched` or `plain` datums borrow Postgres's
//! memory.

use std::ffi::{CStr, c_char};

use pgrx::PgTryBuilder;
use pgrx::pg_sys::{self, Datum};

use crate::pg::memory;

/// An interval in the three parts that Postgres stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// Months and years.
    pub months: i32,
    /// Days and weeks.
    pub days: i32,
    /// The remaining time, in microseconds.
    pub time: i64,
}

impl Interval {
    /// An interval of length zero.
    pub const ZERO: Self = Self { months: 0, days: 0, time: 0 };

    /// Returns the length in microseconds. A day counts as 24 hours, a month as 30 days. On overflow returns the
    /// largest or smallest number.
    pub fn us(self) -> i64 {
        const DAY: i64 = 86_400_000_000;
        (i64::from(self.months).saturating_mul(30).saturating_add(i64::from(self.days)))
            .saturating_mul(DAY)
            .saturating_add(self.time)
    }

    /// Reads the interval to which a datum of type interval points.
    pub fn read(datum: Datum) -> Self {
        // SAFETY: a datum of type interval points to one.
        let raw = unsafe { &*datum.cast_mut_ptr::<pg_sys::Interval>() };
        Self { months: raw.month, days: raw.day, time: raw.time }
    }

    /// Returns the interval as a datum, in the current memory context.
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

    /// Returns the interval in the format of the session's setting `intervalstyle`.
    pub fn text(self) -> String {
        // SAFETY: a plain function of one value. It returns a new C string.
        unsafe {
            let text = pgrx::direct_function_call_as_datum(pg_sys::interval_out, &[Some(self.datum())]);
            text.map_or_else(String::new, |text| CStr::from_ptr(text.cast_mut_ptr()).to_string_lossy().into_owned())
        }
    }

    /// Returns `from`, a `timestamptz` in microseconds, plus this interval, by the calendar of the session's time zone.
    /// Raises 22008 on overflow.
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

    /// As `after`, but returns `otherwise` on overflow.
    pub fn after_or(self, from: i64, otherwise: i64) -> i64 {
        // The function allocates memory and changes nothing else, so nothing needs cleaning up.
        PgTryBuilder::new(|| self.after(from)).catch_others(|_| otherwise).execute()
    }
}

/// Returns a `bigint[]` in the current memory context.
pub fn bigint_array(elements: &[i64]) -> Datum {
    let count = i32::try_from(elements.len()).unwrap_or(i32::MAX);
    let values = elements.as_ptr().cast::<Datum>().cast_mut();
    // SAFETY: `count` values of eight bytes, which are passed by value, so that they are datums. They are only read.
    unsafe { pg_sys::construct_array(values, count, pg_sys::INT8OID, 8, true, pg_sys::TYPALIGN_DOUBLE as _).into() }
}

/// Returns the elements of a `bigint[]` that are not NULL.
pub fn i64_array(datum: Datum) -> Vec<i64> {
    array(datum, pg_sys::INT8OID, 8, true, b'd').into_iter().flatten().map(|d| d.value() as i64).collect()
}

/// Returns a `text[]` in the current memory context.
pub fn text_array_datum(elements: &[&str]) -> Datum {
    let mut elements: Vec<Datum> = memory::collect(elements.iter().map(|element| text_datum(element)));
    let count = i32::try_from(elements.len()).unwrap_or(i32::MAX);
    // SAFETY: `count` texts.
    unsafe {
        pg_sys::construct_array(elements.as_mut_ptr(), count, pg_sys::TEXTOID, -1, false, pg_sys::TYPALIGN_INT as _)
            .into()
    }
}

/// Returns the elements of an array of a fixed-length or variable-length type. A NULL element is `None`.
pub fn array(datum: Datum, element: pg_sys::Oid, length: i16, by_value: bool, align: u8) -> Vec<Option<Datum>> {
    // SAFETY: a datum of an array of `element`. deconstruct_array fills the three outputs with memory of the current
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
        memory::room_for_elements(count as usize, pgrx::varsize_any(array.cast()));
        memory::collect((0..count as usize).map(|i| (!*nulls.add(i)).then(|| *elements.add(i))))
    }
}

/// Returns the elements of a `text[]`. A NULL element is `None`.
pub fn text_array(datum: Datum) -> Vec<Option<String>> {
    let elements = array(datum, pg_sys::TEXTOID, -1, false, b'i');
    memory::collect(elements.into_iter().map(|e| e.map(text)))
}

/// True if a value of a variable-length type is neither toasted nor compressed.
///
/// # Safety
/// `stored` is a value of a variable-length type.
pub unsafe fn is_plain(stored: *const pg_sys::varlena) -> bool {
    // SAFETY: the caller's promise; only its header is read.
    unsafe { pgrx::varatt_is_4b_u(stored) || pgrx::varatt_is_1b(stored) && !pgrx::varatt_is_1b_e(stored) }
}

/// Returns the text of a datum of type text. Bytes that are not UTF-8 are replaced.
pub fn text(datum: Datum) -> String {
    // SAFETY: a datum of type text. A toasted or compressed value is unpacked into the current context, and the text is
    // copied from there.
    unsafe {
        let stored = datum.cast_mut_ptr::<pg_sys::varlena>();
        let plain = if is_plain(stored) { stored } else { pg_sys::pg_detoast_datum_packed(stored) };
        let bytes = pgrx::varlena_to_byte_slice(plain);
        memory::room_for_text(bytes.len());
        let text = String::from_utf8_lossy(bytes).into_owned();
        if plain != stored {
            pg_sys::pfree(plain.cast());
        }
        text
    }
}

/// Returns a copy of the bytes of a datum of type bytea.
pub fn bytes(datum: Datum) -> Vec<u8> {
    // SAFETY: a datum of type bytea, which is detoasted if necessary, and copied.
    unsafe {
        let bytes = pgrx::varlena_to_byte_slice(pg_sys::pg_detoast_datum_packed(datum.cast_mut_ptr()));
        memory::room_for_text(bytes.len());
        bytes.to_vec()
    }
}

/// Makes a datum of type bytea, in the current memory context.
pub fn bytes_datum(bytes: &[u8]) -> Datum {
    // SAFETY: copies the bytes; a text and a bytea have the same form.
    unsafe { Datum::from(pg_sys::cstring_to_text_with_len(bytes.as_ptr().cast(), bytes.len() as i32)) }
}

/// Makes a datum of type text, in the current memory context.
pub fn text_datum(text: &str) -> Datum {
    // SAFETY: copies the bytes.
    unsafe { Datum::from(pg_sys::cstring_to_text_with_len(text.as_ptr().cast(), text.len() as i32)) }
}

/// True if a datum of a variable-length type is neither toasted nor compressed and has at most `bytes` bytes. Reads
/// only its header.
pub fn is_small(datum: Datum, bytes: usize) -> bool {
    let stored = datum.cast_mut_ptr::<pg_sys::varlena>();
    // SAFETY: a datum of a variable-length type; the header of a plain one gives its length.
    unsafe { is_plain(stored) && pgrx::varlena::varsize_any(stored) <= bytes }
}

/// Returns how many bytes a datum of a variable-length type takes as stored, which may be compressed or toasted.
pub fn stored_size(datum: Datum) -> usize {
    // SAFETY: a datum of a variable-length type; only its header is read.
    unsafe { pgrx::pg_sys::toast_datum_size(datum) }
}

/// Returns how many bytes a datum of a variable-length type takes when it is neither compressed nor toasted.
pub fn whole_size(datum: Datum) -> usize {
    // SAFETY: a datum of a variable-length type; only its header is read.
    unsafe { pgrx::pg_sys::toast_raw_datum_size(datum) }
}

/// Returns a datum of a variable-length type with no part in a toast table. That table may be truncated while the
/// datum is in use. A copy lies in the current memory context.
pub fn fetched(datum: pg_sys::Datum) -> pg_sys::Datum {
    let pointer: *mut pg_sys::varlena = datum.cast_mut_ptr();
    // SAFETY: a datum of a variable-length type; its header tells where it is.
    unsafe {
        if pgrx::varlena::varatt_is_1b_e(pointer) { pg_sys::detoast_external_attr(pointer).into() } else { datum }
    }
}

/// Returns a datum of a variable-length type, whole and not compressed. A copy lies in the current memory context.
pub fn plain(datum: pg_sys::Datum) -> pg_sys::Datum {
    // SAFETY: a datum of a variable-length type.
    unsafe { pg_sys::pg_detoast_datum_packed(datum.cast_mut_ptr()).into() }
}

/// Returns the bytes of a datum that `plain` returned. They are valid as long as the datum.
pub fn bytes_of(datum: &pg_sys::Datum) -> &[u8] {
    // SAFETY: a datum of a variable-length type that is neither toasted nor compressed, by the caller's promise.
    unsafe { pgrx::varlena_to_byte_slice(datum.cast_mut_ptr()) }
}

/// A memory context for short-lived values, used many times over.
pub struct Scratch(pgrx::PgMemoryContexts);

impl Scratch {
    /// Makes an empty context.
    pub fn new() -> Self {
        Self(pgrx::PgMemoryContexts::new("pg_queue scratch"))
    }

    /// Runs `f` with this as the current memory context, and then frees everything allocated in it. The result of `f`
    /// must not point into it.
    pub fn lend<R>(&mut self, f: impl FnOnce() -> R) -> R {
        // SAFETY: the previous context is restored. Nothing points into this one any more, by the caller's promise.
        unsafe {
            let result = self.0.switch_to(|_| f());
            self.0.reset();
            result
        }
    }
}

/// Returns a copy of a datum of a variable-length type in the current memory context. It is whole and not compressed,
/// with no part in a toast table.
pub fn owned(datum: pg_sys::Datum) -> pg_sys::Datum {
    // SAFETY: a datum of a variable-length type.
    unsafe { pg_sys::pg_detoast_datum_copy(datum.cast_mut_ptr()).into() }
}

/// Returns the text of a C string of Postgres. Bytes that are not UTF-8 are replaced.
///
/// # Safety
/// `text` is a valid C string.
pub unsafe fn c_text(text: *const i8) -> String {
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    memory::room_for_text(text.count_bytes());
    text.to_string_lossy().into_owned()
}

/// Returns the cells of a Postgres list of pointers.
///
/// # Safety
/// `list` is null, or a list of pointers that does not change during the iteration.
pub unsafe fn list(list: *mut pg_sys::List) -> impl Iterator<Item = *mut std::ffi::c_void> {
    // SAFETY: the caller's promise; a list has `length` cells at `elements`.
    let length = if list.is_null() { 0 } else { unsafe { (*list).length } };
    // SAFETY: as above.
    (0..usize::try_from(length).unwrap_or(0)).map(move |at| unsafe { (*(*list).elements.add(at)).ptr_value })
}
