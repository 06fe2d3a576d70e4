//! The place of everything in the block of shared memory. Also requests the block and finds it.
//!
//! Responsible for sizes and offsets. Not responsible for access (`lock`, `launcher`, `keys`, `words`, `latch`), nor
//! for the elements of the arrays (`pg_queue_core`, `instance`, `databases`).
//!
//! Invariant: sizes depend on settings that only a restart changes.

use std::mem::{align_of, size_of};
use std::ptr;
use std::sync::atomic::AtomicU32;

use pg_queue_core::awaited::Awaited;
use pg_queue_core::frontier::{
    self, Ahead, Gate, Group, Lane, NODES_PER_RATE, Rate, Ready, Retrying, Running, Session, Starts, index,
};
use pg_queue_core::{counter, holders, watchers};
use pgrx::{pg_guard, pg_sys};

use crate::guc;
use crate::shmem::databases::Database;
use crate::shmem::executor::{self, Executor};
use crate::shmem::instance::Instance;
use crate::shmem::prepared::Prepared;

/// The beginning of the block: locks, heads of the structures, and the launcher.
#[repr(C)]
pub struct Header {
    pub frontier_lock: *mut pg_sys::LWLock,
    pub launcher_lock: *mut pg_sys::LWLock,
    pub keys_lock: *mut pg_sys::LWLock,
    pub executors_lock: *mut pg_sys::LWLock,
    pub frontier: frontier::Head,
    pub holders: holders::Head,
    pub watchers: watchers::Head,
    pub next_instance: u32,
    pub counter_top: u32,
    pub launcher_latch: *mut pg_sys::Latch,
    pub launcher_pid: i32,
    pub prepared_serial: u64,
    /// The monotonic time at which the memory was created.
    pub born_at: i64,
    /// True if the server was not shut down in order before that. Then commits that were not durable may be lost.
    pub is_after_crash: bool,
    pub worker_left: pg_sys::ConditionVariable,
    pub executors: executor::Head,
    #[cfg(feature = "lock-times")]
    pub lock_times: crate::shmem::lock_times::Times,
}

/// The places of the arrays behind the header: the offset of each in bytes, and its number of elements.
#[derive(Clone, Copy)]
pub struct Layout {
    pub instances: (usize, usize),
    pub awaited: (usize, usize),
    pub awake: (usize, usize),
    pub databases: (usize, usize),
    pub latches: (usize, usize),
    pub lanes: (usize, usize),
    pub lane_index: (usize, usize),
    pub ready: (usize, usize),
    pub running: (usize, usize),
    pub running_index: (usize, usize),
    pub sessions: (usize, usize),
    pub watchers: (usize, usize),
    pub watched: (usize, usize),
    pub gates: (usize, usize),
    pub groups: (usize, usize),
    pub group_index: (usize, usize),
    pub ahead: (usize, usize),
    pub rates: (usize, usize),
    pub rate_index: (usize, usize),
    pub starts: (usize, usize),
    pub retrying: (usize, usize),
    pub retrying_index: (usize, usize),
    pub counters: (usize, usize),
    pub counter_index: (usize, usize),
    pub horizons: (usize, usize),
    pub holders: (usize, usize),
    pub executors: (usize, usize),
    pub prepared: (usize, usize),
    bytes: usize,
}

impl Layout {
    /// Computes the layout from the settings.
    fn of_settings() -> Self {
        let size = |setting: i32| usize::try_from(setting).unwrap_or(1);
        let lanes = size(guc::MAX_LANES.get());
        let running = size(guc::MAX_RUNNING.get());
        let databases = size(guc::MAX_DATABASES.get());
        let sessions = max_sessions();
        // A counter is small and never evicted. So there are four times as many counters as lanes in memory.
        let counters = lanes * 4;
        // Each running attempt may be of a different group, and each group with a record of its starts may be at its
        // rate.
        let rates = size(guc::MAX_RATED_GROUPS.get());
        let groups = running.next_multiple_of(64) + rates;
        let retrying = (running / 4).max(64);
        let mut bytes = size_of::<Header>();
        fn place<T>(bytes: &mut usize, count: usize) -> (usize, usize) {
            *bytes = bytes.next_multiple_of(align_of::<T>().max(64));
            let at = *bytes;
            *bytes += size_of::<T>() * count;
            (at, count)
        }
        Self {
            instances: place::<Instance>(&mut bytes, databases),
            awaited: place::<Awaited>(&mut bytes, databases),
            awake: place::<AtomicU32>(&mut bytes, databases),
            // The launcher lists every database, including those without the extension.
            databases: place::<Database>(&mut bytes, databases.max(64) * 4),
            latches: place::<*mut pg_sys::Latch>(&mut bytes, sessions),
            lanes: place::<Lane>(&mut bytes, lanes),
            // The index also counts the lanes for which an instance's sessions wait, in one bucket for each instance.
            lane_index: place::<index::Bucket>(&mut bytes, index::buckets_for(lanes + 1)),
            ready: place::<Ready>(&mut bytes, lanes * size(guc::MAX_READY.get())),
            running: place::<Running>(&mut bytes, running),
            running_index: place::<index::Bucket>(&mut bytes, index::buckets_for(running.max(32))),
            sessions: place::<Session>(&mut bytes, sessions),
            watchers: place::<watchers::Watcher>(&mut bytes, sessions),
            watched: place::<u32>(&mut bytes, sessions),
            gates: place::<Gate>(&mut bytes, lanes),
            groups: place::<Group>(&mut bytes, groups),
            group_index: place::<index::Bucket>(&mut bytes, index::buckets_for(groups)),
            ahead: place::<Ahead>(&mut bytes, (running / 16).max(64)),
            rates: place::<Rate>(&mut bytes, rates),
            rate_index: place::<index::Bucket>(&mut bytes, index::buckets_for(rates)),
            starts: place::<Starts>(&mut bytes, rates * NODES_PER_RATE),
            retrying: place::<Retrying>(&mut bytes, retrying),
            retrying_index: place::<index::Bucket>(&mut bytes, index::buckets_for(retrying)),
            counters: place::<counter::Slot>(&mut bytes, counters),
            counter_index: place::<index::Bucket>(&mut bytes, index::buckets_for(counters)),
            horizons: place::<u32>(&mut bytes, databases * (sessions + max_prepared())),
            holders: place::<index::Bucket>(&mut bytes, index::buckets_for(size(guc::MAX_KEYS.get()).max(32))),
            executors: place::<Executor>(&mut bytes, usize::try_from(guc::MAX_EXECUTORS.get()).unwrap_or(0)),
            prepared: place::<Prepared>(&mut bytes, max_prepared()),
            bytes,
        }
    }
}

/// Returns the maximal number of sessions, including background processes.
pub fn max_sessions() -> usize {
    // SAFETY: the settings are already fixed.
    let backends = unsafe { pg_sys::MaxBackends };
    usize::try_from(backends).unwrap_or(0) + 1
}

/// Returns the maximal number of prepared transactions.
fn max_prepared() -> usize {
    // SAFETY: the setting is already fixed.
    usize::try_from(unsafe { pg_sys::max_prepared_xacts }).unwrap_or(0)
}

/// The beginning of the shared memory. The postmaster sets it at start, and every backend inherits it.
pub static mut BASE: *mut u8 = ptr::null_mut();
/// The places of the arrays behind `BASE`.
pub static mut LAYOUT: Option<Layout> = None;
static mut PREVIOUS_REQUEST: pg_sys::shmem_request_hook_type = None;
static mut PREVIOUS_STARTUP: pg_sys::shmem_startup_hook_type = None;

/// The name of the block and of the tranche of locks.
const TRANCHE: &std::ffi::CStr = c"pg_queue";

/// Installs the hooks by which Postgres reserves the memory. Called once, while preloading, after the settings are
/// defined.
pub fn install() {
    // SAFETY: the postmaster, single-threaded, while it loads libraries: hooks are chained as Postgres
    // documents.
    unsafe {
        PREVIOUS_REQUEST = pg_sys::shmem_request_hook;
        pg_sys::shmem_request_hook = Some(on_request);
        PREVIOUS_STARTUP = pg_sys::shmem_startup_hook;
        pg_sys::shmem_startup_hook = Some(on_startup);
    }
}

/// Asks for the memory and for four locks.
#[pg_guard]
unsafe extern "C-unwind" fn on_request() {
    // SAFETY: the hook that was installed before this one, and the only time that Postgres allows for requests.
    unsafe {
        if let Some(previous) = PREVIOUS_REQUEST {
            previous();
        }
        pg_sys::RequestAddinShmemSpace(Layout::of_settings().bytes);
        pg_sys::RequestNamedLWLockTranche(TRANCHE.as_ptr(), 4);
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn on_startup() {
    // SAFETY: in the startup hook named tranches exist, and the lock guards the first creation. Zeroed memory is a
    // valid value of everything in it, except for the pointers to the locks and the condition variable. These are set
    // here.
    unsafe {
        if let Some(previous) = PREVIOUS_STARTUP {
            previous();
        }
        let layout = Layout::of_settings();
        let lock = &raw mut (*pg_sys::MainLWLockArray.add(crate::pg::unbound::ADDIN_SHMEM_INIT_LOCK)).lock;
        pg_sys::LWLockAcquire(lock, pg_sys::LWLockMode::LW_EXCLUSIVE);
        let mut found = false;
        let base = pg_sys::ShmemInitStruct(TRANCHE.as_ptr(), layout.bytes, &mut found).cast::<u8>();
        if !found {
            ptr::write_bytes(base, 0, layout.bytes);
            let header = base.cast::<Header>();
            let locks = pg_sys::GetNamedLWLockTranche(TRANCHE.as_ptr());
            (*header).frontier_lock = &raw mut (*locks).lock;
            (*header).launcher_lock = &raw mut (*locks.add(1)).lock;
            (*header).keys_lock = &raw mut (*locks.add(2)).lock;
            (*header).executors_lock = &raw mut (*locks.add(3)).lock;
            (*header).born_at = crate::pg::time::monotonic_us();
            (*header).is_after_crash = !was_shut_down();
            pg_sys::ConditionVariableInit(&raw mut (*header).worker_left);
        }
        BASE = base;
        LAYOUT = Some(layout);
        pg_sys::LWLockRelease(lock);
    }
}

/// True if the control file says that the primary was shut down in order. The startup process has not changed the file
/// yet. False if the file cannot be read.
fn was_shut_down() -> bool {
    const STATE_AT: usize = std::mem::offset_of!(pg_sys::ControlFileData, state);
    // The server's working directory is the data directory.
    let file = std::fs::read("global/pg_control").unwrap_or_default();
    file[..]
        .get(STATE_AT..)
        .and_then(|rest| rest.first_chunk())
        .is_some_and(|&state| u32::from_ne_bytes(state) == pg_sys::DBState::DB_SHUTDOWNED)
}

/// True if the library was preloaded, so that the shared memory exists.
pub fn is_there() -> bool {
    // SAFETY: written once, before any backend exists.
    unsafe { !BASE.is_null() }
}
