//! The slots of the executors, one for each process, for all databases, and their lock.
//!
//! Responsible for the lock and for lending the slots. Not responsible for which process gets which job
//! (`executor::table`).
//!
//! Invariant: while the lock is held, no code runs that could raise an error, sleep or take another lock.

pub use crate::shmem::executor::{Executor, Head, Latch, Refused, Starving, State};
use crate::shmem::layout::{BASE, Header, LAYOUT};
use crate::shmem::lock::LockGuard;

/// Runs `f` under the executors' lock. `f` must be short and must not call Postgres.
pub fn with<R>(f: impl FnOnce(&mut Head, &mut [Executor]) -> R) -> R {
    // SAFETY: as in `lock::with`, for the data of this lock.
    unsafe {
        let base = BASE;
        let Some(layout) = LAYOUT else { unreachable!("shared memory is used before it is there") };
        let header = base.cast::<Header>();
        let _guard = LockGuard::take((*header).executors_lock);
        let (at, count) = layout.executors;
        f(&mut (*header).executors, std::slice::from_raw_parts_mut(base.add(at).cast::<Executor>(), count))
    }
}
