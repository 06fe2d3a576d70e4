//! Handles the lack of memory in Rust: an error 53200, as Postgres's own allocations raise it. The process must not
//! end, because that would end all sessions of the server.
//!
//! Rust ends the process when an allocation fails, and no stable feature changes that: an allocator must not unwind. So
//! if a user decides the size of an allocation, the memory is asked for first ([`room_for`], [`grow`] and what is made
//! of it: [`list`], [`collect`], [`map`]). Clippy refuses the functions of the standard library that reserve memory.
//! All other allocations are small, and a reserve serves them once. The next call of a verb allocates the reserve again
//! or is refused.
//!
//! An allocation of Postgres that fails raises an error. pgrx catches it and copies the message, which needs memory
//! too. An error within an error, five deep, ends the server. So the reserve is also freed while Postgres makes such a
//! message ([`give_reserve_on_error`]). docs/decisions/out-of-memory.md has the alternatives.
//!
//! Not responsible for Postgres's contexts, whose allocations raise by themselves.
//!
//! Invariant: nothing here raises an error while it allocates.

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::{HashMap, HashSet};
use std::ffi::{c_int, c_void};
use std::hash::Hash;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use pgrx::{PgSqlErrorCode, pg_sys};

use crate::error::{self, Error};
use crate::pg::raw;

/// Bytes reserved for small allocations.
const RESERVE_BYTES: usize = 8 << 20;
/// Smaller requests, in bytes, are not checked: the reserve has room for several of them.
const SMALL_BYTES: usize = 1 << 20;
/// While an element of an array becomes a job, an outcome or the like, it takes at most this many bytes beside its own.
const BYTES_PER_ELEMENT: usize = 1_000;
/// An error that quotes a text makes at most this many copies of it.
const MAX_COPIES: usize = 4;

struct Reserved;

#[global_allocator]
static ALLOCATOR: Reserved = Reserved;

/// The reserve. Null: it was freed, or never allocated.
static RESERVED: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
/// True if the reserve was freed.
static IS_SHORT: AtomicBool = AtomicBool::new(false);

/// The layout of the reserve.
const LAYOUT: Layout = match Layout::from_size_align(RESERVE_BYTES, 16) {
    Ok(layout) => layout,
    Err(_) => unreachable!(),
};

/// Frees the reserve. False: it was free already.
fn give_reserve() -> bool {
    let reserve = RESERVED.swap(ptr::null_mut(), Ordering::Relaxed);
    if reserve.is_null() {
        return false;
    }
    IS_SHORT.store(true, Ordering::Relaxed);
    // SAFETY: `keep_reserve` allocated it with this layout. After the swap only this call has the pointer.
    unsafe { System.dealloc(reserve, LAYOUT) };
    true
}

/// Allocates the reserve if there is none. False: not enough memory.
pub fn keep_reserve() -> bool {
    if !RESERVED.load(Ordering::Relaxed).is_null() {
        return true;
    }
    // SAFETY: the layout has a size.
    let reserve = unsafe { System.alloc(LAYOUT) };
    if reserve.is_null() {
        return false;
    }
    RESERVED.store(reserve, Ordering::Relaxed);
    IS_SHORT.store(false, Ordering::Relaxed);
    true
}

// SAFETY: this is the system's allocator, tried a second time after some memory was freed.
unsafe impl GlobalAlloc for Reserved {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        let found = unsafe { System.alloc(layout) };
        // SAFETY: as above.
        if found.is_null() && give_reserve() { unsafe { System.alloc(layout) } } else { found }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        let found = unsafe { System.alloc_zeroed(layout) };
        // SAFETY: as above.
        if found.is_null() && give_reserve() { unsafe { System.alloc_zeroed(layout) } } else { found }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise.
        let found = unsafe { System.realloc(at, layout, size) };
        // SAFETY: as above. A failed call leaves the block unchanged.
        if found.is_null() && give_reserve() { unsafe { System.realloc(at, layout, size) } } else { found }
    }
}

/// Allocates the reserve again if it was freed. Called at the beginning of each verb.
///
/// Errors: 53200, raised, if there is not enough memory.
pub fn check() {
    if IS_SHORT.load(Ordering::Relaxed) && !keep_reserve() {
        out_of_memory(RESERVE_BYTES);
    }
}

/// Runs `f`. If Postgres raises 53200 meanwhile, the reserve is freed before the error is caught.
pub fn give_reserve_on_error<R>(f: impl FnOnce() -> R) -> R {
    let mut callback = pg_sys::ErrorContextCallback {
        // SAFETY: the session's own stack of callbacks.
        previous: unsafe { pg_sys::error_context_stack },
        callback: Some(on_error),
        arg: ptr::null_mut(),
    };
    // SAFETY: the callback lives until the stack is restored. If `f` raises, Postgres or pgrx restores the stack before
    // this frame ends.
    unsafe {
        pg_sys::error_context_stack = &raw mut callback;
        let result = f();
        pg_sys::error_context_stack = callback.previous;
        result
    }
}

/// Called by Postgres for each message that it makes.
unsafe extern "C-unwind" fn on_error(_arg: *mut c_void) {
    // SAFETY: Postgres is making a message.
    if unsafe { raw::geterrcode() } == PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY as c_int {
        give_reserve();
    }
}

/// Checks that this many bytes can be allocated in addition to those in use.
///
/// Errors: 53200, raised, if not.
pub fn room_for(bytes: usize) {
    if bytes < SMALL_BYTES {
        return;
    }
    let Ok(layout) = Layout::from_size_align(bytes, 16) else { out_of_memory(bytes) };
    // SAFETY: the layout has a size, and the block is freed with it. The compiler cannot leave the call out, because it
    // is the C library's.
    unsafe {
        let probe = System.alloc(layout);
        if probe.is_null() {
            out_of_memory(bytes);
        }
        System.dealloc(std::hint::black_box(probe), layout);
    }
}

/// As `room_for`, for processing an array of this many elements and bytes.
pub fn room_for_elements(count: usize, bytes: usize) {
    room_for(count.saturating_mul(BYTES_PER_ELEMENT).saturating_add(bytes.saturating_mul(MAX_COPIES)));
}

/// As `room_for`, for processing a text of this many bytes.
pub fn room_for_text(bytes: usize) {
    room_for(bytes.saturating_mul(MAX_COPIES));
}

/// Reserves room in a list for `more` elements.
///
/// Errors: 53200, raised, if there is not enough memory.
#[inline]
pub fn grow<T>(list: &mut Vec<T>, more: usize) {
    if list.capacity() - list.len() < more && list.try_reserve(more).is_err() && list.try_reserve_exact(more).is_err() {
        out_of_memory(more.saturating_mul(size_of::<T>()));
    }
}

/// Returns an empty list with room for this many elements.
///
/// Errors: 53200, raised, if there is not enough memory.
#[inline]
pub fn list<T>(count: usize) -> Vec<T> {
    let mut list = Vec::new();
    if list.try_reserve_exact(count).is_err() {
        out_of_memory(count.saturating_mul(size_of::<T>()));
    }
    list
}

/// Returns a list of `count` equal elements.
///
/// Errors: as `list`.
pub fn filled<T: Clone>(value: T, count: usize) -> Vec<T> {
    let mut list = list(count);
    list.resize(count, value);
    list
}

/// Adds an element to a list of which a user decides the length.
///
/// Errors: as `list`.
#[inline]
pub fn push<T>(list: &mut Vec<T>, element: T) {
    grow(list, 1);
    list.push(element);
}

/// Collects elements of which a user decides the number.
///
/// Errors: as `list`.
pub fn collect<T>(elements: impl IntoIterator<Item = T>) -> Vec<T> {
    let elements = elements.into_iter();
    let mut list = list(elements.size_hint().0);
    elements.for_each(|element| push(&mut list, element));
    list
}

/// As `collect`, up to the first error.
pub fn try_collect<T, E>(elements: impl IntoIterator<Item = Result<T, E>>) -> Result<Vec<T>, E> {
    let elements = elements.into_iter();
    let mut list = list(elements.size_hint().1.unwrap_or(0));
    for element in elements {
        push(&mut list, element?);
    }
    Ok(list)
}

/// Returns an empty map with room for this many elements.
///
/// Errors: as `list`.
pub fn map<K: Eq + Hash, V>(count: usize) -> HashMap<K, V> {
    let mut map = HashMap::new();
    if map.try_reserve(count).is_err() {
        out_of_memory(count.saturating_mul(size_of::<(K, V)>()));
    }
    map
}

/// Returns an empty set with room for this many elements.
///
/// Errors: as `list`.
pub fn set<K: Eq + Hash>(count: usize) -> HashSet<K> {
    let mut set = HashSet::new();
    if set.try_reserve(count).is_err() {
        out_of_memory(count.saturating_mul(size_of::<K>()));
    }
    set
}

/// Returns an empty text with room for this many bytes.
///
/// Errors: as `list`.
pub fn text(bytes: usize) -> String {
    let mut text = String::new();
    if text.try_reserve(bytes).is_err() {
        out_of_memory(bytes);
    }
    text
}

#[cold]
fn out_of_memory(bytes: usize) -> ! {
    Error::new(error::OUT_OF_MEMORY, "out of memory").detail(format!("Failed on request of size {bytes}.")).report()
}
