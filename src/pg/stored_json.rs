//! Which jsonb may be stored: all that users store is read again by workers, views and dumps.
//!
//! Responsible for the depth and the length as text. Not responsible for the meaning of values.
//!
//! Invariant: Postgres can write as text whatever passes the check, a row of five such values included.

use pgrx::pg_sys::{self, Datum, JsonbIteratorToken as Token, JsonbValue, jbvType};
use serde::Deserialize;

use crate::error::{Error, Result};
use crate::guc;
use crate::pg::jsonb::{self, root};
use crate::pg::{datum, memory, raw};

/// Arrays and objects that users store may be nested this deep. Reading a deeper value again, inside another value or
/// by a path, could exhaust the stack.
pub const MAX_DEPTH: usize = 1_000;

/// Each level takes eight bytes: the header of a container and the header of its one element.
const LEVEL_BYTES: usize = 8;

/// A stored byte becomes fewer characters of text than this. The worst case is a number: `1e131071` with 16,383 decimal
/// places takes 14 bytes.
const MAX_TEXT_PER_BYTE: usize = 11_000;

/// How deep a jsonb is nested, and how long it is as text.
struct Extent {
    depth: usize,
    text_bytes: usize,
}

/// Returns the elements of a JSON array, unread. `None`: it is no array, or has an element of another form.
pub fn elements<'a, T: Deserialize<'a>>(array: &'a str) -> Option<Vec<T>> {
    // An element ends with a comma, or the array does.
    memory::room_for_elements(array.bytes().filter(|byte| *byte == b',').count() + 1, array.len());
    serde_json::from_str(array).ok()
}

/// Returns JSON as it is stored.
///
/// Errors: 22023 when Postgres cannot store it: a zero character, half of a surrogate pair, or a number out of range.
/// Also those of [`check`].
pub fn parse(json: &str, name: &str) -> Result<Datum> {
    let stored = jsonb::of_text(json).ok_or_else(|| {
        Error::invalid(format!("{name} cannot be stored as jsonb"))
            .detail("It has a zero character, half of a surrogate pair, or a number that is too large.")
    })?;
    check(stored, name)?;
    Ok(stored)
}

/// Checks a jsonb that will be stored.
///
/// Errors: 22023 if it is nested deeper than `MAX_DEPTH`, or longer as text than `pg_queue.max_payload`.
pub fn check(jsonb: Datum, name: &str) -> Result<()> {
    let max_bytes = usize::try_from(guc::MAX_PAYLOAD.get()).unwrap_or(0);
    if datum::is_small(jsonb, (max_bytes / MAX_TEXT_PER_BYTE).min(MAX_DEPTH * LEVEL_BYTES)) {
        return Ok(());
    }
    let Extent { depth, text_bytes } = measure(jsonb);
    check_extent(name, depth)?;
    if text_bytes > max_bytes {
        return Err(Error::invalid(format!("{name} has {text_bytes} bytes as text, more than {max_bytes}"))
            .hint("Store larger values in a table or a file, and their keys here. Or raise pg_queue.max_payload."));
    }
    Ok(())
}

/// Checks only the depth. For a list of values that are checked by themselves.
///
/// Errors: 22023 if it is nested deeper than `MAX_DEPTH`.
pub fn check_depth(jsonb: Datum, name: &str) -> Result<()> {
    if datum::is_small(jsonb, MAX_DEPTH * LEVEL_BYTES) {
        return Ok(());
    }
    check_extent(name, measure(jsonb).depth)
}

fn check_extent(name: &str, depth: usize) -> Result<()> {
    if depth <= MAX_DEPTH {
        return Ok(());
    }
    Err(Error::invalid(format!("{name} is nested deeper than {MAX_DEPTH} levels"))
        .hint("Store deeper values as a string, or in a table of your own."))
}

/// Returns how many bytes a jsonb has as text, without writing the text.
pub fn text_length(jsonb: Datum) -> usize {
    measure(jsonb).text_bytes
}

fn measure(jsonb: Datum) -> Extent {
    let container = root(jsonb);
    let (mut depth, mut found) = (0, Extent { depth: 0, text_bytes: 0 });
    // SAFETY: the container lies in a detoasted jsonb. The iterator does not recurse, and frees itself at the end. Each
    // token says which member of the value is set. An error inside becomes an unwinding at the guard.
    unsafe {
        pg_sys::ffi::pg_guard_ffi_boundary(|| {
            let mut it = raw::JsonbIteratorInit(container);
            let mut value = JsonbValue { type_: 0, val: std::mem::zeroed() };
            loop {
                let token = raw::JsonbIteratorNext(&raw mut it, &raw mut value, false) as u32;
                found.text_bytes += match token {
                    Token::WJB_DONE => break,
                    Token::WJB_BEGIN_ARRAY if value.val.array.rawScalar => 0,
                    Token::WJB_BEGIN_ARRAY => 2 + 2 * (value.val.array.nElems.max(1) as usize - 1),
                    Token::WJB_BEGIN_OBJECT => 2 + 2 * (value.val.object.nPairs.max(1) as usize - 1),
                    Token::WJB_KEY => scalar_length(&value) + 2,
                    Token::WJB_VALUE | Token::WJB_ELEM => scalar_length(&value),
                    _ => 0,
                };
                match token {
                    Token::WJB_BEGIN_ARRAY | Token::WJB_BEGIN_OBJECT => depth += 1,
                    Token::WJB_END_ARRAY | Token::WJB_END_OBJECT => depth -= 1,
                    _ => {}
                }
                found.depth = found.depth.max(depth);
            }
        });
    }
    found
}

/// Returns how many bytes a scalar has as text.
fn scalar_length(value: &JsonbValue) -> usize {
    // SAFETY: the type says which member of the union is set; the bytes of a string lie in the jsonb.
    unsafe {
        match value.type_ {
            jbvType::jbvString => {
                let string = value.val.string;
                string_length(std::slice::from_raw_parts(string.val.cast::<u8>(), string.len as usize))
            }
            jbvType::jbvNumeric => number_length(value.val.numeric.cast::<u8>()),
            jbvType::jbvBool if !value.val.boolean => "false".len(),
            _ => "null".len(),
        }
    }
}

/// Returns how many bytes a string has between quotes, escaped as Postgres does.
fn string_length(bytes: &[u8]) -> usize {
    let more = |byte: &u8| match byte {
        b'"' | b'\\' | 0x08 | b'\t' | b'\n' | 0x0c | b'\r' => 1,
        0..=0x1f => 5,
        _ => 0,
    };
    2 + bytes.len() + bytes.iter().map(more).sum::<usize>()
}

/// Returns how many characters a finite numeric has. Its form is that of numeric.c, with a header of four bytes as in
/// every jsonb. A word with sign and scale follows, for large numbers another one with the weight, and then digits to
/// the base 10,000.
///
/// # Safety
///
/// A numeric that is not toasted.
unsafe fn number_length(numeric: *const u8) -> usize {
    const IS_SHORT: u16 = 0x8000;
    // SAFETY: the header gives the length of the numeric, and all words lie within it.
    let (size, word) =
        unsafe { (pgrx::varlena::varsize_any(numeric.cast()), |n: usize| numeric.add(4 + 2 * n).cast::<u16>().read()) };
    let words = (size - 4) / 2;
    let head = word(0);
    let (is_negative, scale, weight, header_words) = if head & IS_SHORT != 0 {
        // Six bits of the weight and its sign.
        let weight = i32::from(head & 0x3f) - if head & 0x40 != 0 { 0x40 } else { 0 };
        (head & 0x2000 != 0, (head & 0x1f80) >> 7, weight, 1)
    } else {
        (head & 0x4000 != 0, head & 0x3fff, i32::from(word(1) as i16), 2)
    };
    let whole = match usize::try_from(weight) {
        Ok(weight) if words > header_words => {
            4 * weight + word(header_words).checked_ilog10().unwrap_or(0) as usize + 1
        }
        _ => 1,
    };
    usize::from(is_negative) + whole + if scale > 0 { 1 + usize::from(scale) } else { 0 }
}
