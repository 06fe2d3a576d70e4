//! Paths and predicates in the SQL/JSON path language, compiled once and evaluated many times.
//!
//! Responsible for keeping a compiled path after the call that read it, and for evaluating it. Not responsible for the
//! documents (`job::publish`).
//!
//! Invariant: the caller can continue whatever a path does with a value. An error counts as no answer, and a path that
//! may be costly has a budget. Only a cancel, or the end of the session, is raised.

use std::ffi::{CString, c_char};
use std::panic::AssertUnwindSafe;

use pgrx::pg_sys::panic::CaughtError;
use pgrx::pg_sys::{self, Datum};
use pgrx::{PgSqlErrorCode, PgTryBuilder, direct_function_call_as_datum};

use crate::pg::{budget, datum, jsonb, memory, time};

/// A compiled path, in its own memory.
pub struct Path {
    words: Box<[u64]>,
    /// True if its cost may grow faster than the value on which it is evaluated.
    is_costly: bool,
}

/// The processor time, in microseconds, that costly paths may use together.
pub struct Budget {
    left: i64,
    /// True if a path has used more than was left.
    pub is_overdrawn: bool,
}

impl Budget {
    pub fn of(microseconds: i64) -> Self {
        Self { left: microseconds, is_overdrawn: false }
    }

    /// Returns a budget with which no costly path runs.
    pub fn none() -> Self {
        Self { left: 0, is_overdrawn: false }
    }

    /// Runs a function that may be cancelled, and subtracts its processor time from the budget. `None`: no answer, or
    /// too late.
    fn spend(&mut self, f: impl FnMut() -> Option<Datum>) -> Option<Datum> {
        if self.left <= 0 {
            return None;
        }
        let began = time::processor_us();
        let answer = budget::within(self.left, f);
        self.left -= time::processor_us() - began;
        self.is_overdrawn |= answer.is_err();
        answer.unwrap_or(None)
    }
}

/// A stored path may be this long, in bytes of its text.
pub const MAX_PATH_BYTES: usize = 2_000;
/// A path that is read may be this long. The text of a stored path may have grown.
const MAX_READ_BYTES: usize = 64_000;
/// `first_text` returns at most this many bytes of a value.
const MAX_VALUE_BYTES: usize = 4_000;

/// True if a path may take longer than reading some members of a value. It does not if it only compares members with
/// literals. Then each comparison has one path, without subscripts, wildcards, filters, methods and arithmetic.
fn is_costly(text: &str) -> bool {
    let (mut bare, mut in_string, mut chars) = (memory::text(text.len()), false, text.chars());
    while let Some(c) = chars.next() {
        match c {
            '"' => in_string = !in_string,
            '\\' if in_string => _ = chars.next(),
            c if !in_string => bare.push(c),
            _ => {}
        }
    }
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "$._ ()!=<>&|".contains(c);
    let words = ["like_regex", "starts", "exists", "keyvalue", "datetime", " to "];
    let has_one_path = |part: &str| part.matches('$').count() <= 1;
    !bare.chars().all(is_plain)
        || words.iter().any(|word| bare.contains(word))
        || !bare.replace("||", "&&").split("&&").all(has_one_path)
}

impl Path {
    /// Reads a path from its text. A path that cannot be read, or not within the budget, has no answer to anything.
    /// Reading compiles regular expressions, so it may be costly.
    pub fn parse(text: &str, budget: &mut Budget) -> Self {
        let broken = Self { words: Box::default(), is_costly: true };
        let Ok(stored) = CString::new(text) else { return broken };
        let read = || quietly(pg_sys::jsonpath_in, &[Some(Datum::from(stored.as_ptr() as *mut c_char))]);
        let path = if text.len() > MAX_READ_BYTES { None } else { budget.spend(read) };
        path.map_or(broken, |path| Self { words: words_of(path), is_costly: is_costly(text) })
    }

    /// True if the path could not be read.
    pub fn is_broken(&self) -> bool {
        self.words.is_empty()
    }

    fn datum(&self) -> Datum {
        Datum::from(self.words.as_ptr())
    }

    /// True if the path uses a budget.
    pub fn is_costly(&self) -> bool {
        self.is_costly
    }

    /// Evaluates a predicate on a value. `None`: neither true nor false, or the budget is overdrawn.
    pub fn is_true(&self, of: Datum, budget: &mut Budget) -> Option<bool> {
        self.ask(pg_sys::jsonb_path_match, of, budget).map(|answer| answer.value() & 1 != 0)
    }

    /// Returns the first value to which a path leads, as text: a string without quotes, cut to `MAX_VALUE_BYTES`.
    /// `None`: it leads to nothing, to null, or to a large array or object.
    pub fn first_text(&self, of: Datum, budget: &mut Budget) -> Option<String> {
        let found = self.ask(pg_sys::jsonb_path_query_first, of, budget)?;
        match jsonb::scalar(found) {
            Some(value) if value.is_null() => None,
            Some(value) => Some(value.begin(MAX_VALUE_BYTES).unwrap_or_else(|| jsonb::text(found))),
            None => datum::is_small(found, MAX_VALUE_BYTES).then(|| jsonb::text(found)),
        }
    }

    /// Calls a function of Postgres that takes value, path, variables and silence.
    fn ask(&self, function: Function, of: Datum, budget: &mut Budget) -> Option<Datum> {
        if self.is_broken() {
            budget.is_overdrawn = true;
            return None;
        }
        let arguments = [Some(of), Some(self.datum()), Some(jsonb::empty_object()), Some(Datum::from(true))];
        let ask = || quietly(function, &arguments);
        if self.is_costly { budget.spend(ask) } else { ask() }
    }
}

/// A path that only reads below one field of an object, compiled for that field's value.
pub struct FieldPath {
    /// The field.
    pub field: String,
    path: Path,
}

impl FieldPath {
    /// Reads a path. `Err`: what it is instead.
    pub fn parse(path: &str) -> Result<Self, &'static str> {
        /// Microseconds. A path without regular expressions is read much sooner.
        const READ_BUDGET_US: i64 = 1_000_000;
        if path.len() > MAX_PATH_BYTES {
            return Err("It is too long.");
        }
        let read = |text: &str| Path::parse(text, &mut Budget::of(READ_BUDGET_US));
        let whole = read(path);
        if whole.is_broken() {
            return Err("This is no jsonpath.");
        }
        if whole.is_costly() {
            return Err("This computes.");
        }
        let text = text(whole.datum());
        match <[String; 1]>::try_from(roots(&text)) {
            Ok([field]) => {
                let path = read(&text.replacen(&format!("$.\"{field}\""), "$", 1));
                Ok(Self { field, path })
            }
            Err(_) => Err("This does not begin with a field."),
        }
    }

    /// Returns the first number to which the path leads in the field's value.
    pub fn first_number(&self, of: Datum) -> Option<f64> {
        jsonb::scalar(self.path.ask(pg_sys::jsonb_path_query_first, of, &mut Budget::none())?)?.as_f64()
    }
}

/// A function of Postgres.
type Function = unsafe fn(pg_sys::FunctionCallInfo) -> Datum;

/// Calls a function that changes nothing but memory, so that nothing needs cleaning up after an error. An error counts
/// as no answer.
fn quietly(function: Function, arguments: &[Option<Datum>]) -> Option<Datum> {
    PgTryBuilder::new(AssertUnwindSafe(|| {
        // SAFETY: the function takes these arguments, which outlive the call.
        unsafe { direct_function_call_as_datum(function, arguments) }
    }))
    .catch_others(|error| {
        let is_end = matches!(
            &error,
            CaughtError::PostgresError(report) | CaughtError::ErrorReport(report)
                if [PgSqlErrorCode::ERRCODE_QUERY_CANCELED, PgSqlErrorCode::ERRCODE_ADMIN_SHUTDOWN]
                    .contains(&report.sql_error_code())
        );
        if is_end && !budget::has_rung() { error.rethrow() } else { None }
    })
    .execute()
}

/// True if a jsonpath matches a document. A condition matches if it is true. Any other path matches if it finds an item
/// that is not false or null. Errors in the document, such as a missing field, are no match.
pub fn matches(document: Datum, path: Datum) -> bool {
    let arguments = [Some(document), Some(path), Some(jsonb::empty_object()), Some(true.into())];
    let first = quietly(pg_sys::jsonb_path_query_first, &arguments);
    first.is_some_and(|first| !matches!(jsonb::text(first).as_str(), "false" | "null"))
}

/// Returns the fields that a path reads at its root, from the path's text: for `$."payload"."to"` it is `payload`.
pub fn roots(text: &str) -> Vec<String> {
    let mut roots = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(['"', '$']) {
        let is_root = rest[at..].starts_with("$.\"");
        let Some(begin) = rest[at..].find('"').filter(|_| is_root || rest[at..].starts_with('"')) else {
            rest = &rest[at + 1..];
            continue;
        };
        let quoted = &rest[at + begin + 1..];
        let mut is_escaped = false;
        let end = quoted.find(|c| {
            let ends = c == '"' && !is_escaped;
            is_escaped = c == '\\' && !is_escaped;
            ends
        });
        let Some(end) = end else { break };
        if is_root {
            roots.push(quoted[..end].to_owned());
        }
        rest = &quoted[end + 1..];
    }
    roots
}

/// Copies a datum of type jsonpath.
fn words_of(path: Datum) -> Box<[u64]> {
    let path = datum::owned(path);
    let pointer: *const pg_sys::varlena = path.cast_mut_ptr();
    // SAFETY: `owned` returns a plain datum with a header of four bytes, which counts itself. It is copied to memory
    // with the alignment of the type.
    unsafe {
        let size = pgrx::varlena::varsize(pointer);
        let mut words = vec![0_u64; size.div_ceil(8)].into_boxed_slice();
        std::ptr::copy_nonoverlapping(pointer.cast::<u8>(), words.as_mut_ptr().cast::<u8>(), size);
        words
    }
}

/// Returns the text of a datum of type jsonpath.
pub fn text(path: Datum) -> String {
    // SAFETY: the output function of the type, which returns a C string.
    unsafe {
        direct_function_call_as_datum(pg_sys::jsonpath_out, &[Some(path)])
            .map_or_else(String::new, |text| datum::c_text(text.cast_mut_ptr()))
    }
}
