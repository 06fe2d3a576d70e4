//! The data that the launcher and the workers share, behind a separate lock.
//!
//! Responsible for the lock and for lending the data. Not responsible for changes of a database's state
//! (`worker::table`).
//!
//! Invariant: while the lock is held, no code runs that could raise an error, sleep or take another lock.

use pgrx::pg_sys;

use crate::shmem::databases::Database;
use crate::shmem::layout::{BASE, Header, LAYOUT};
use crate::shmem::lock::LockGuard;
use crate::shmem::prepared::{Prepared, Table};

/// The data that the launcher's lock protects.
pub struct Launcher<'a> {
    /// The databases of the server, as the launcher sees them.
    pub databases: &'a mut [Database],
    /// The launcher's latch. Null: no launcher.
    pub latch: &'a mut *mut pg_sys::Latch,
    /// The launcher's process id. 0: no launcher.
    pub pid: &'a mut i32,
    pub prepared: Table<'a>,
}

/// Runs `f` under the launcher's lock. `f` must be short and must not call Postgres.
pub fn with_launcher<R>(f: impl FnOnce(&mut Launcher<'_>) -> R) -> R {
    // SAFETY: as in `lock::with`, for the fields that this lock protects.
    unsafe {
        let base = BASE;
        let Some(layout) = LAYOUT else { unreachable!("shared memory is used before it is there") };
        let header = base.cast::<Header>();
        let _guard = LockGuard::take((*header).launcher_lock);
        f(&mut Launcher {
            databases: std::slice::from_raw_parts_mut(
                base.add(layout.databases.0).cast::<Database>(),
                layout.databases.1,
            ),
            latch: &mut (*header).launcher_latch,
            pid: &mut (*header).launcher_pid,
            prepared: Table {
                last_serial: &mut (*header).prepared_serial,
                entries: std::slice::from_raw_parts_mut(
                    base.add(layout.prepared.0).cast::<Prepared>(),
                    layout.prepared.1,
                ),
            },
        })
    }
}
