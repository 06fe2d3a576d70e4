//! The instance that this process works for: that of the pinned catalog (`catalog::pin`), or the one that a background
//! worker serves. What changes memory for a call takes the number from here.
//!
//! Not responsible for which one it is.
//!
//! Invariant: 0 only before the first use of the extension in this process.

use std::cell::Cell;

/// An instance: its number, and its slot in shared memory.
#[derive(Clone, Copy)]
pub struct Here {
    pub number: u32,
    pub slot: usize,
}

thread_local! {
    static HERE: Cell<Here> = const { Cell::new(Here { number: 0, slot: 0 }) };
}

/// Returns the instance that the process works for.
#[inline]
pub fn here() -> Here {
    HERE.get()
}

/// Returns the number of the instance. 0: none yet.
#[inline]
pub fn number() -> u32 {
    HERE.get().number
}

/// Makes this the instance that the process works for. Returns the one before.
#[inline]
pub fn enter(here: Here) -> Here {
    HERE.replace(here)
}
