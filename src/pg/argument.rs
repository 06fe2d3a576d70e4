//! The arguments of a SQL function: each has a position, a name and a kind, which is how it is read.
//!
//! Responsible for reading arguments. Not responsible for which there are (`catalog::arguments`), nor for the rest of a
//! call (`function`).
//!
//! Invariant: no function is STRICT. `None` means that an argument is NULL, or that the function does not declare it.

use std::borrow::Cow;
use std::marker::PhantomData;

use pgrx::pg_sys::{self, Datum};

use crate::error::{Error, Result};
use crate::pg::datum;
use crate::pg::function::Call;
use crate::pg::{memory, stored_json};

/// The position of no argument. No call has this many.
pub const NONE: usize = usize::MAX;

/// An argument of a SQL function.
pub struct Argument<K> {
    n: usize,
    pub name: &'static str,
    kind: PhantomData<fn() -> K>,
}

impl<K> Clone for Argument<K> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<K> Copy for Argument<K> {}

impl<K> Argument<K> {
    /// The argument at a position, from 0.
    pub const fn at(n: usize, name: &'static str) -> Self {
        Self { n, name, kind: PhantomData }
    }

    /// Returns its position.
    pub const fn place(self) -> usize {
        self.n
    }
}

/// Returns the position of a name in a list, or `NONE`. For constants.
pub const fn position(names: &[&str], wanted: &str) -> usize {
    let mut n = 0;
    while n < names.len() {
        if is_same(names[n].as_bytes(), wanted.as_bytes()) {
            return n;
        }
        n += 1;
    }
    NONE
}

const fn is_same(one: &[u8], other: &[u8]) -> bool {
    let mut n = 0;
    while n < one.len() && n < other.len() && one[n] == other[n] {
        n += 1;
    }
    n == one.len() && n == other.len()
}

/// How an argument is read.
pub trait Kind {
    /// Its type in SQL. Empty: any other one.
    const SQL: &'static str;
    type Value;
    /// Reads a datum of this kind, which is not NULL.
    fn read(datum: Datum) -> Self::Value;
}

/// Makes the kinds: name, type in SQL, what is read, how.
macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident $sql:literal: $value:ty, $read:expr;)*) => {
        pub mod kind {
            $($(#[$doc])* pub struct $name;)*
        }
        $(impl Kind for kind::$name {
            const SQL: &'static str = $sql;
            type Value = $value;
            fn read(datum: Datum) -> $value {
                let read: fn(Datum) -> $value = $read;
                read(datum)
            }
        })*
    };
}

kinds! {
    Integer "integer": i32, |datum| datum.value() as i32;
    Bigint "bigint": i64, |datum| datum.value() as i64;
    Boolean "boolean": bool, |datum| datum.value() & 1 != 0;
    Float "float8": f64, |datum| f64::from_bits(datum.value() as u64);
    Oid "oid": pg_sys::Oid, |datum| pg_sys::Oid::from(datum.value() as u32);
    /// In microseconds since 2000-01-01, as Postgres counts.
    Timestamp "timestamptz": i64, |datum| datum.value() as i64;
    Interval "interval": datum::Interval, datum::Interval::read;
    Text "text": String, |datum| borrowed(datum).into_owned();
    /// A NULL element is `None`.
    Bigints "bigint[]": Vec<Option<i64>>, |datum| {
        let elements = datum::array(datum, pg_sys::INT8OID, 8, true, b'd');
        elements.into_iter().map(|element| element.map(|datum| datum.value() as i64)).collect()
    };
    /// A NULL element is `None`.
    Texts "text[]": Vec<Option<String>>, datum::text_array;
    /// The elements as stored. A NULL element is `None`.
    Jsonbs "jsonb[]": Vec<Option<Datum>>, |datum| datum::array(datum, pg_sys::JSONBOID, -1, false, b'i');
    /// A NULL element is `None`.
    Byteas "bytea[]": Vec<Option<Vec<u8>>>, |datum| {
        let elements = datum::array(datum, pg_sys::BYTEAOID, -1, false, b'i');
        memory::collect(elements.into_iter().map(|element| element.map(datum::bytes)))
    };
    /// As it is stored. What will be stored is read by `Call::json`.
    Jsonb "jsonb": Datum, |datum| datum;
    Other "": Datum, |datum| datum;
}

/// Makes a module with a constant for each argument of a function, and the list `SIGNATURES`. The number before a list
/// is how many of its arguments have no default.
macro_rules! functions {
    ($($module:ident $function:literal $required:literal { $($constant:ident $name:literal $kind:ident),* })*) => {
        $(pub mod $module {
            use crate::pg::argument::{Argument, kind, position};
            pub const NAMES: &[&str] = &[$($name),*];
            $(pub const $constant: Argument<kind::$kind> = Argument::at(position(NAMES, $name), $name);)*
        })*

        /// The functions that take arguments.
        pub const SIGNATURES: &[pg_queue_core::advice::Signature] = &[$(pg_queue_core::advice::Signature {
            name: $function,
            required: $required,
            arguments: &[$(($name, <$crate::pg::argument::kind::$kind as $crate::pg::argument::Kind>::SQL)),*],
        }),*];
    };
}
pub(crate) use functions;

/// Returns a text. Copies it only if it is compressed, toasted or not UTF-8.
fn borrowed<'a>(datum: Datum) -> Cow<'a, str> {
    let stored = datum.cast_mut_ptr::<pg_sys::varlena>();
    // SAFETY: an argument of type text, which stays in its place during the call.
    unsafe {
        if datum::is_plain(stored) {
            let bytes = pgrx::varlena_to_byte_slice(stored);
            memory::room_for_text(bytes.len());
            String::from_utf8_lossy(bytes)
        } else {
            Cow::Owned(datum::text(stored.into()))
        }
    }
}

impl Call {
    /// Returns the raw datum of an argument.
    pub fn datum<K>(&self, argument: Argument<K>) -> Option<Datum> {
        self.raw(argument.n)
    }

    /// True if an argument was given and is not NULL.
    pub fn has<K>(&self, argument: Argument<K>) -> bool {
        self.datum(argument).is_some()
    }

    /// Returns the value of an argument.
    pub fn get<K: Kind>(&self, argument: Argument<K>) -> Option<K::Value> {
        self.datum(argument).map(K::read)
    }

    /// Returns the value of a required argument.
    ///
    /// Errors: 22004 when it is NULL.
    pub fn need<K: Kind>(&self, argument: Argument<K>) -> Result<K::Value> {
        self.required(argument, self.get(argument))
    }

    /// Returns the raw datum of a required argument.
    ///
    /// Errors: 22004 when it is NULL.
    pub fn need_datum<K>(&self, argument: Argument<K>) -> Result<Datum> {
        self.required(argument, self.datum(argument))
    }

    /// Returns a required text. Copies it only if it is compressed, toasted or not UTF-8.
    ///
    /// Errors: 22004 when it is NULL.
    pub fn need_str(&self, argument: Argument<kind::Text>) -> Result<Cow<'_, str>> {
        self.required(argument, self.str(argument))
    }

    /// Returns the value of a required argument, which was read before.
    ///
    /// Errors: 22004 when it is NULL.
    pub fn required<K, V>(&self, argument: Argument<K>, value: Option<V>) -> Result<V> {
        value.ok_or_else(|| Error::null(argument.name))
    }

    /// Returns a text. Copies it only if it is compressed, toasted or not UTF-8.
    pub fn str(&self, argument: Argument<kind::Text>) -> Option<Cow<'_, str>> {
        self.datum(argument).map(borrowed)
    }

    /// Returns a `jsonb` that will be stored.
    ///
    /// Errors: 22023 if it is nested too deeply, or too long as text.
    pub fn json(&self, argument: Argument<kind::Jsonb>) -> Result<Option<Datum>> {
        let Some(value) = self.datum(argument) else { return Ok(None) };
        stored_json::check(value, argument.name)?;
        Ok(Some(value))
    }

    /// Returns a `jsonb` that holds values that will be stored. The caller checks these by `stored_json::check`.
    ///
    /// Errors: 22023 if it is nested too deeply.
    pub fn json_list(&self, argument: Argument<kind::Jsonb>) -> Result<Option<Datum>> {
        let Some(value) = self.datum(argument) else { return Ok(None) };
        stored_json::check_depth(value, argument.name)?;
        Ok(Some(value))
    }
}
