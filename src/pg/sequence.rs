//! Takes the next value of a sequence.
//!
//! Responsible for one call. Not responsible for which values are ids, nor for taking many together (`catalog::ids`).

use pgrx::pg_sys;

use crate::pg::raw;

/// Takes the next value of a sequence, without a check of permissions. Can raise: 42P01 or XX000 if the sequence was
/// dropped, 2200H if it is used up.
pub fn nextval(sequence: pg_sys::Oid) -> i64 {
    // SAFETY: the call raises if the sequence was dropped or is used up. The verb has checked permissions. The guard
    // turns an error into an unwinding.
    unsafe { pg_sys::ffi::pg_guard_ffi_boundary(|| raw::nextval_internal(sequence, false)) }
}
