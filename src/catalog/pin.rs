//! The pin: the instance that a call or a duty uses, taken once and the same until its end. What is below asks for it
//! and is not handed it.
//!
//! Responsible for which catalog is pinned. Not responsible for reading one (`read`).
//!
//! Invariant: between `begin` and the drop of what it returns, `pinned` returns one catalog, unless the call renews it
//! itself. A call within a call (a trigger, a statement of a verb) has its own pin.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::catalog::read::{self, Catalog};
use crate::catalog::relations::Segment;
use crate::error::Result;
use crate::shmem::here::{self, Here};

thread_local! {
    static PINNED: RefCell<Option<Rc<Catalog>>> = const { RefCell::new(None) };
    /// True between `begin` and its end.
    static IS_OPEN: Cell<bool> = const { Cell::new(false) };
}

/// A call that has a pin of its own. The drop gives back the pin of the call around it.
pub struct Call {
    around: Option<Rc<Catalog>>,
    was_open: bool,
    here: Here,
}

impl Drop for Call {
    fn drop(&mut self) {
        PINNED.set(self.around.take());
        IS_OPEN.set(self.was_open);
        // What follows the outermost call, such as its commit, is about the same instance.
        if self.was_open {
            here::enter(self.here);
        }
    }
}

/// Begins a call. Its first use of the instance pins it.
#[must_use]
pub fn begin() -> Call {
    Call { around: PINNED.take(), was_open: IS_OPEN.replace(true), here: here::here() }
}

/// Begins the work of a duty for the instance of this number. `None`: the database has another instance now, or none.
pub fn begin_duty(number: u32) -> Option<Call> {
    let call = begin();
    let is_ours = current().is_ok_and(|catalog| catalog.number == number);
    if !is_ours {
        here::enter(call.here);
    }
    is_ours.then_some(call)
}

/// Returns the instance of this database, and pins it. What was read is read again for the next call only, and only if
/// the session was told of a change. Outside a call nothing is pinned, and each use asks anew.
///
/// Errors: 42704 when the extension is not installed, 53400 when shared memory has no slot for this database, 55000
/// when the extension's SQL is of another version than the library.
#[inline]
pub fn current() -> Result<Rc<Catalog>> {
    PINNED.with_borrow(Clone::clone).map_or_else(pin, Ok)
}

#[cold]
fn pin() -> Result<Rc<Catalog>> {
    let catalog = read::newest()?;
    here::enter(Here { number: catalog.number, slot: catalog.slot });
    if IS_OPEN.get() {
        PINNED.set(Some(Rc::clone(&catalog)));
    }
    Ok(catalog)
}

/// Returns the pinned instance. What a call or duty has pinned needs no check: the errors of `current` are raised.
#[inline]
pub fn pinned() -> Rc<Catalog> {
    PINNED.with_borrow(Clone::clone).unwrap_or_else(|| pin().unwrap_or_else(|error| error.report()))
}

/// Returns the oids of a segment of the pinned instance.
pub fn segment(number: u8) -> Segment {
    let of = |catalog: &Catalog| catalog.segments[number as usize];
    PINNED.with_borrow(|pinned| pinned.as_deref().map(of)).unwrap_or_else(|| of(&pinned()))
}

/// Pins anew what there is by now, for a call that has slept. Errors: as `current`.
pub fn renew() -> Result<()> {
    PINNED.set(None);
    current().map(drop)
}
