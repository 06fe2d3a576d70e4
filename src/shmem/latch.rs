//! The latch of each session, and waking sessions and workers.
//!
//! Responsible for the array of latches. Not responsible for which session to wake (`pg_queue_core::frontier`,
//! `pg_queue_core::watchers`), nor for sleeping (`pg::process`).
//!
//! Invariant: a stored address is the address of a latch in shared memory. It is the same in every process.

use pgrx::pg_sys;

use crate::shmem::layout::{BASE, Header, LAYOUT, Layout};
use crate::shmem::lock;

/// Returns the condition variable that is broadcast whenever a worker has left its database.
pub fn worker_left() -> *mut pg_sys::ConditionVariable {
    // SAFETY: only the address of a field of the header is taken, and the header is never freed.
    unsafe { &raw mut (*BASE.cast::<Header>()).worker_left }
}

/// Writes this session's latch into shared memory, so that other sessions can wake it. Call it once per session, before
/// the session waits.
pub fn announce_session(session: u32) {
    // SAFETY: the slot is this session's own. Its latch lies in shared memory at the same address in every process.
    unsafe {
        let Some(layout) = LAYOUT else { return };
        *latch_slot(layout, session) = &raw mut (*pg_sys::MyProc).procLatch;
    }
}

unsafe fn latch_slot(layout: Layout, session: u32) -> *mut *mut pg_sys::Latch {
    assert!((session as usize) < layout.latches.1, "session number out of range");
    // SAFETY: in range.
    unsafe { BASE.add(layout.latches.0).cast::<*mut pg_sys::Latch>().add(session as usize) }
}

/// Sets a session's latch. Cannot fail. Call it after the lock was released.
pub fn wake(session: u32) {
    // SAFETY: latches lie in shared memory and are never freed. If the latch now belongs to a later session with the
    // same number, that session wakes once without need.
    unsafe {
        let Some(layout) = LAYOUT else { return };
        let latch = *latch_slot(layout, session);
        if !latch.is_null() {
            pg_sys::SetLatch(latch);
        }
    }
}

/// Wakes the sessions that wait for the end of a job and are due. Cannot fail. Takes the frontier's lock for 32 of them
/// at a time.
pub fn wake_watchers() {
    loop {
        let mut due = [None; 32];
        lock::with(|shared| due.iter_mut().for_each(|session| *session = shared.watchers.next_due()));
        due.iter().flatten().for_each(|&session| wake(session));
        if due.last().is_none_or(Option::is_none) {
            break;
        }
    }
}

/// Sets a latch whose address was read from shared memory. Null: does nothing. Cannot fail. Call it after the lock was
/// released.
pub fn wake_latch(latch: *mut pg_sys::Latch) {
    if !latch.is_null() {
        // SAFETY: only addresses of latches in shared memory are stored.
        unsafe { pg_sys::SetLatch(latch) };
    }
}
