//! Memory of Rust, where there is no more of it: an error 53200 as Postgres's own allocations raise it, and never the
//! end of the process, which would end all sessions of the server.
//!
//! Rust ends the process when an allocation fails, and nothing that is stable can change that: an allocator must not
//! unwind. So whatever a user decides the size of is asked for first ([`room_for`], [`grow`]), and all else is small
//! and is served from a reserve, once. The next call of a verb makes the reserve again or is refused.
//!
//! An allocation of Postgres that fails raises. pgrx catches that and copies the message, for which there must be
//! memory too: an error within an error, five deep, ends the server. So the reserve is also freed while Postgres makes
//! such a message ([`give_reserve_on_error`]). docs/decisions/out-of-memory.md has the alternatives.
//!
//! Not responsible for Postgres's contexts, whose allocations raise by themselves.
//!
//! Invariant: nothing here raises while it allocates.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use pgrx::{PgSqlErrorCode, pg_sys};

use crate::error::{self, Error};
use crate::pg::raw;

/// Bytes that are kept for small allocations.
const RESERVE: usize = 8 << 20;
/// Bytes below which nothing is asked: the reserve has room for several times as many.
const SMALL: usize = 1 << 20;
/// Bytes that an element of an array takes at most while it becomes a job, an outcome or the like, beside its own.
const PER_ELEMENT: usize = 1_000;
/// How many copies of a text are made at most, in the error that quotes it.
const COPIES: usize = 4;

struct Reserved;

#[global_allocator]
static ALLOCATOR: Reserved = Reserved;

/// The reserve; null: there is none.
static RESERVED: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
/// Whether the reserve was given away.
static IS_SHORT: AtomicBool = AtomicBool::new(false);

/// The layout of the reserve.
const LAYOUT: Layout = match Layout::from_size_align(RESERVE, 16) {
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
    // SAFETY: allocated by `keep_reserve` with this layout; the swap has made it this call's alone.
    unsafe { System.dealloc(reserve, LAYOUT) };
    true
}

/// Makes the reserve if there is none. False: there is no memory for it.
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

// SAFETY: the system's allocator, asked a second time after some memory was freed.
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
        // SAFETY: as above; what failed has left the block as it was.
        if found.is_null() && give_reserve() { unsafe { System.realloc(at, layout, size) } } else { found }
    }
}

/// Makes the reserve again if it was given away. Called at the begin of each verb.
///
/// Errors: 53200, raised, if there is no memory for it.
pub fn check() {
    if IS_SHORT.load(Ordering::Relaxed) && !keep_reserve() {
        out_of_memory(RESERVE);
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
    // SAFETY: the callback lives until the stack is set back. If `f` raises, Postgres, or pgrx, sets it back before
    // this frame is gone.
    unsafe {
        pg_sys::error_context_stack = &raw mut callback;
        let result = f();
        pg_sys::error_context_stack = callback.previous;
        result
    }
}

/// Is called by Postgres for each message that is made.
unsafe extern "C-unwind" fn on_error(_arg: *mut c_void) {
    // SAFETY: a message is being made.
    if unsafe { raw::geterrcode() } == PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY as c_int {
        give_reserve();
    }
}

/// Asks whether so many bytes can be had, together with what is in use.
///
/// Errors: 53200, raised, if not.
pub fn room_for(bytes: usize) {
    if bytes < SMALL {
        return;
    }
    let Ok(layout) = Layout::from_size_align(bytes, 16) else { out_of_memory(bytes) };
    // SAFETY: the layout has a size; the block is freed as it was had. The call cannot be left out by the compiler: it
    // is the C library's.
    unsafe {
        let probe = System.alloc(layout);
        if probe.is_null() {
            out_of_memory(bytes);
        }
        System.dealloc(std::hint::black_box(probe), layout);
    }
}

/// As `room_for`, for what is made of an array of so many elements and bytes.
pub fn room_for_elements(count: usize, bytes: usize) {
    room_for(count.saturating_mul(PER_ELEMENT).saturating_add(bytes.saturating_mul(COPIES)));
}

/// As `room_for`, for what is made of a text of so many bytes.
pub fn room_for_text(bytes: usize) {
    room_for(bytes.saturating_mul(COPIES));
}

/// Makes room in a list for more elements.
///
/// Errors: 53200, raised, if there is no memory for it.
pub fn grow<T>(list: &mut Vec<T>, more: usize) {
    if list.capacity() - list.len() < more && list.try_reserve(more).is_err() && list.try_reserve_exact(more).is_err() {
        out_of_memory(more.saturating_mul(size_of::<T>()));
    }
}

#[cold]
fn out_of_memory(bytes: usize) -> ! {
    Error::new(error::OUT_OF_MEMORY, "out of memory").detail(format!("Failed on request of size {bytes}.")).report()
}
