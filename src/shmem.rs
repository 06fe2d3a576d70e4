//! What is shared between the sessions, and why: the frontier (a cache of the logs), one `Instance`
//! per database with the extension (its ids, its worker), the launcher's table of databases, and each
//! session's latch.
//!
//! All sizes are fixed at start by the settings; everything is plain data whose zero bytes are a valid
//! start, so that a crash restart begins with an empty cache.
//!
//! Invariant: while `with` holds the lock nothing runs that could raise an error, allocate Postgres
//! memory, sleep, or take another lock.

use std::mem::{align_of, size_of};
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use pg_queue_core::frontier::{self, Frontier, Gate, Group, Lane, Ready, Running, Session, index};
use pg_queue_core::holders::{self, Holders};
use pg_queue_core::id::SEGMENTS;
use pg_queue_core::tally::{self, Horizon, Tallies};
use pgrx::pg_guard;
use pgrx::pg_sys;

use crate::dormant::Dormancy;
use crate::guc;
use crate::late::Late;
use crate::tally::Counting;

/// One database in which the extension is in use. First what every call and every commit looks at: two cache lines.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub struct Instance {
    /// Never used twice while the server runs; 0: the slot is free.
    pub number: u32,
    /// The database.
    pub database: pg_sys::Oid,
    /// The extension's row in pg_extension: another one after DROP and CREATE.
    pub extension: pg_sys::Oid,
    /// The frontier's deadlines of this instance.
    pub deadlines: u32,
    /// Ids up to `id_limit` were taken from the sequence, those from `id_next` on are not handed out.
    pub id_next: i64,
    /// See `id_next`.
    pub id_limit: i64,
    /// Attempts that fell due up to this wall time were pushed (or lie behind their lane's position).
    pub due_to: i64,
    /// No attempt is known to fall due between `due_to` and this wall time.
    pub next_due: i64,
    /// Whether its tallies can be relied on. Only `tally` changes it.
    pub counting: Counting,
    /// Whether it may be used, or is being restored. Only `dormant` changes it.
    pub dormancy: Dormancy,
    /// What is known of schedules.
    pub schedules: Schedules,
    /// The worker's latch and process; null and 0 when there is none.
    pub worker_latch: *mut pg_sys::Latch,
    /// See `worker_latch`.
    pub worker_pid: i32,
    /// The monotonic time at which the worker wakes by itself.
    pub wakes_at: i64,
    /// What the worker tells of itself.
    pub pulse: Pulse,
    /// The worker (or anyone in its place) has read the claims of before the start into memory.
    pub is_recovered: bool,
    /// Changes of queues since the start, counted when every session was told.
    pub changes: u64,
    /// Drops of queues begun since the start: read and written as `words`.
    pub drops: u64,
    /// The lanes of the last ones. See `dropping`.
    pub dropping: [Dropping; 64],
    /// Lanes whose queues ask for NOTIFY and got jobs; 0 is none.
    pub notify: [i32; 32],
    /// What each segment is doing, as a word that is read without the lock, and written under it by `set_word`.
    /// See `segment`.
    pub words: [u64; SEGMENTS],
    /// The open young segment and, in the next byte, the open half of old: read and written as `words`.
    pub open: u64,
    /// What else is known of the segments.
    pub segments: [Filling; SEGMENTS],
    /// The number of the last row of queue.segment_log.
    pub last_entry: i64,
    /// The largest generation.
    pub last_generation: i64,
    /// Attempts due later than so many microseconds go to old at once.
    pub far: i64,
    /// When the storage duty shall look again, monotonic time.
    pub storage_at: i64,
    /// Attempts after which another run of the job was asked for, when they had ended.
    pub reruns: Late,
    /// Attempts that were to be cancelled, when they had ended.
    pub cancels: Late,
    /// The half of the keys' memory that is written to, read and written as `words`. See `log::memory`.
    pub memory_half: u64,
    /// So many blocks a half of the keys' memory has when it is time for the other.
    pub memory_limit: u32,
    /// One half is being copied from and emptied.
    pub memory_is_turning: bool,
    /// Counts turns to the other half, and whatever else makes void what a process has copied.
    pub memory_turns: u64,
    /// The files of the attempts and of the indexes of groups; 0: not known. Only `log::parked` changes them.
    pub parked_files: [[u32; 2]; SEGMENTS],
}

/// What a worker tells of itself, for those who look. Only `worker::database` changes it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Pulse {
    /// When it was last between two duties, monotonic time.
    pub at: i64,
    /// It was told to do no duties (`pg_queue.worker`).
    pub is_off: bool,
    /// The duties that failed and pause, a bit each in the order of `duty::ALL`.
    pub failing: u32,
}

/// What is known of an instance's schedules. Only `duty::fire_schedules` and `transaction` change it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Schedules {
    /// The time of the next slot; before everything while nobody knows.
    pub next_slot: i64,
    /// Counts whatever makes void what a process knows of schedules.
    pub changes: u64,
    /// The process that has fired last.
    pub firer: i32,
}

impl Schedules {
    /// What is known at the start.
    pub const NOTHING: Self = Self { next_slot: i64::MIN, changes: 0, firer: 0 };

    /// Somebody has to look at all of them.
    pub fn doubt(&mut self) {
        self.changes += 1;
        self.next_slot = i64::MIN;
    }
}

/// What is known of a segment beside its state. Only `segment` and the storage duty care.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct Filling {
    /// When it got its state, as `timestamptz`.
    pub since: i64,
    /// When it was opened, as `timestamptz`.
    pub opened_at: i64,
    /// Attempts in it, and how many of them have ended or moved: estimates.
    pub attempts: i64,
    /// See `attempts`.
    pub ended: i64,
    /// What was counted by a look at the tables, after a start.
    pub is_counted: bool,
    /// Up to which attempt it was copied to history.
    pub copied_to: i64,
}

impl Filling {
    /// How many attempts live in it: an estimate.
    pub fn living(&self) -> i64 {
        (self.attempts - self.ended).max(0)
    }

    /// Whether so few live in it, one in twenty, that it is reclaimed without need.
    pub fn is_nearly_done(&self) -> bool {
        self.living() * 20 <= self.attempts
    }
}

/// A lane whose queue is being dropped, or was dropped a short while ago.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Dropping {
    /// The lane; 0: none.
    pub lane: i32,
    /// The transaction that drops it is open.
    pub is_open: bool,
}

/// A database as the launcher sees it. Only `worker::table` changes it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Database {
    /// The database; invalid: the slot is free.
    pub oid: pg_sys::Oid,
    /// What the launcher knows.
    pub state: DatabaseState,
    /// The worker's process, from its first act to its last; 0: none.
    pub pid: i32,
    /// The worker's latch; null when `pid` is 0.
    pub latch: *mut pg_sys::Latch,
    /// When `state` was set, monotonic time.
    pub since: i64,
    /// Before this monotonic time no worker is started.
    pub retry_at: i64,
    /// How many workers in a row have died young.
    pub deaths: u32,
    /// How many transactions want the database without a worker.
    pub blockers: u32,
    /// The worker shall look again whether the extension is there.
    pub must_look: bool,
    /// The worker shall leave; it is started again if the database still wants one.
    pub must_leave: bool,
    /// The server had no slot for the worker when it was to be started last.
    pub is_short: bool,
}

/// The launcher's states; the drawing is in `src/worker/README.md`.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DatabaseState {
    /// No worker; the launcher may start one.
    Idle = 0,
    /// A worker was asked for, and has not yet found the extension.
    Starting,
    /// The worker does its duties.
    Running,
    /// The worker looked, found no extension and left.
    NoExtension,
    /// A command needs the database without connections: no worker may start.
    Blocked,
}

#[repr(C)]
struct Header {
    frontier_lock: *mut pg_sys::LWLock,
    launcher_lock: *mut pg_sys::LWLock,
    keys_lock: *mut pg_sys::LWLock,
    frontier: frontier::Head,
    holders: holders::Head,
    next_instance: u32,
    tally_top: u32,
    launcher_latch: *mut pg_sys::Latch,
    launcher_pid: i32,
    /// When the memory was made, monotonic time.
    born_at: i64,
    worker_left: pg_sys::ConditionVariable,
}

/// Where the arrays lie behind the header.
#[derive(Clone, Copy)]
struct Layout {
    instances: (usize, usize),
    awake: (usize, usize),
    databases: (usize, usize),
    latches: (usize, usize),
    lanes: (usize, usize),
    lane_index: (usize, usize),
    ready: (usize, usize),
    running: (usize, usize),
    running_index: (usize, usize),
    sessions: (usize, usize),
    gates: (usize, usize),
    groups: (usize, usize),
    group_index: (usize, usize),
    tallies: (usize, usize),
    tally_index: (usize, usize),
    horizons: (usize, usize),
    holders: (usize, usize),
    bytes: usize,
}

impl Layout {
    fn of_settings() -> Self {
        let size = |setting: i32| usize::try_from(setting).unwrap_or(1);
        let lanes = size(guc::MAX_LANES.get());
        let running = size(guc::MAX_RUNNING.get());
        let databases = size(guc::MAX_DATABASES.get());
        let sessions = max_sessions();
        // Small, and never evicted: with room for more lanes than are kept in memory otherwise.
        let tallies = lanes * 4;
        // Everything that runs may be of a group of its own.
        let groups = running.next_multiple_of(64);
        let mut bytes = size_of::<Header>();
        fn place<T>(bytes: &mut usize, count: usize) -> (usize, usize) {
            *bytes = bytes.next_multiple_of(align_of::<T>().max(64));
            let at = *bytes;
            *bytes += size_of::<T>() * count;
            (at, count)
        }
        Self {
            instances: place::<Instance>(&mut bytes, databases),
            awake: place::<AtomicU32>(&mut bytes, databases),
            // The launcher lists every database, also those without the extension.
            databases: place::<Database>(&mut bytes, databases.max(64) * 4),
            latches: place::<*mut pg_sys::Latch>(&mut bytes, sessions),
            lanes: place::<Lane>(&mut bytes, lanes),
            lane_index: place::<index::Bucket>(&mut bytes, index::buckets_for(lanes)),
            ready: place::<Ready>(&mut bytes, lanes * size(guc::MAX_READY.get())),
            running: place::<Running>(&mut bytes, running),
            running_index: place::<index::Bucket>(&mut bytes, index::buckets_for(running)),
            sessions: place::<Session>(&mut bytes, sessions),
            gates: place::<Gate>(&mut bytes, lanes),
            groups: place::<Group>(&mut bytes, groups),
            group_index: place::<index::Bucket>(&mut bytes, index::buckets_for(groups)),
            tallies: place::<tally::Slot>(&mut bytes, tallies),
            tally_index: place::<index::Bucket>(&mut bytes, index::buckets_for(tallies)),
            horizons: place::<u32>(&mut bytes, databases * (sessions + max_prepared())),
            holders: place::<index::Bucket>(&mut bytes, index::buckets_for(size(guc::MAX_KEYS.get()))),
            bytes,
        }
    }
}

/// How many sessions there can be.
fn max_sessions() -> usize {
    // SAFETY: settings that are fixed by now (15 and later compute MaxBackends before the request hook).
    #[cfg(not(feature = "pg14"))]
    let backends = unsafe { pg_sys::MaxBackends };
    // SAFETY: as above; 14 has not yet computed the sum when libraries are loaded.
    #[cfg(feature = "pg14")]
    let backends = unsafe {
        pg_sys::MaxConnections
            + crate::sys::raw::autovacuum_max_workers
            + 1
            + pg_sys::max_worker_processes
            + pg_sys::max_wal_senders
    };
    usize::try_from(backends).unwrap_or(0) + 1
}

/// How many prepared transactions there can be.
fn max_prepared() -> usize {
    // SAFETY: a setting that is fixed by now.
    usize::try_from(unsafe { crate::sys::raw::max_prepared_xacts }).unwrap_or(0)
}

/// Set in the postmaster at start and inherited by every backend.
static mut BASE: *mut u8 = ptr::null_mut();
static mut LAYOUT: Option<Layout> = None;
#[cfg(not(feature = "pg14"))]
static mut PREVIOUS_REQUEST: pg_sys::shmem_request_hook_type = None;
static mut PREVIOUS_STARTUP: pg_sys::shmem_startup_hook_type = None;

const TRANCHE: &std::ffi::CStr = c"pg_queue";

/// Asks for the memory; called once, while preloading, after the settings are defined.
pub fn install() {
    // SAFETY: the postmaster, single-threaded, while it loads libraries: hooks are chained as Postgres
    // documents.
    unsafe {
        #[cfg(not(feature = "pg14"))]
        {
            PREVIOUS_REQUEST = pg_sys::shmem_request_hook;
            pg_sys::shmem_request_hook = Some(on_request);
        }
        #[cfg(feature = "pg14")]
        request();
        PREVIOUS_STARTUP = pg_sys::shmem_startup_hook;
        pg_sys::shmem_startup_hook = Some(on_startup);
    }
}

fn request() {
    // SAFETY: called at the only time Postgres allows it.
    unsafe {
        pg_sys::RequestAddinShmemSpace(Layout::of_settings().bytes);
        pg_sys::RequestNamedLWLockTranche(TRANCHE.as_ptr(), 3);
    }
}

#[cfg(not(feature = "pg14"))]
#[pg_guard]
unsafe extern "C-unwind" fn on_request() {
    // SAFETY: the hook that was there before us.
    unsafe {
        if let Some(previous) = PREVIOUS_REQUEST {
            previous();
        }
    }
    request();
}

#[pg_guard]
unsafe extern "C-unwind" fn on_startup() {
    /// AddinShmemInitLock in lwlocknames.h, the same number in 14 to 18.
    const ADDIN_SHMEM_INIT_LOCK: usize = 21;
    // SAFETY: the startup hook: named tranches exist, the lock guards the first creation. Zeroed memory
    // is a valid value of everything that lies in it, but for the two pointers and the condition
    // variable, which are set at once.
    unsafe {
        if let Some(previous) = PREVIOUS_STARTUP {
            previous();
        }
        let layout = Layout::of_settings();
        let lock = &raw mut (*pg_sys::MainLWLockArray.add(ADDIN_SHMEM_INIT_LOCK)).lock;
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
            (*header).born_at = crate::sys::monotonic_us();
            pg_sys::ConditionVariableInit(&raw mut (*header).worker_left);
        }
        BASE = base;
        LAYOUT = Some(layout);
        pg_sys::LWLockRelease(lock);
    }
}

/// Whether the library was preloaded, so that there is shared memory.
pub fn is_there() -> bool {
    // SAFETY: written once, before any backend exists.
    unsafe { !BASE.is_null() }
}

struct LockGuard(*mut pg_sys::LWLock);

impl LockGuard {
    fn take(lock: *mut pg_sys::LWLock) -> Self {
        // SAFETY: a lock of our tranche, initialized by Postgres; backends that reach this have a PGPROC.
        // Without pgrx's guard, which costs more than the lock: it fails only when a backend holds 200 locks.
        unsafe { crate::sys::raw::LWLockAcquire(lock, pg_sys::LWLockMode::LW_EXCLUSIVE) };
        Self(lock)
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        // SAFETY: taken by `take`. After an error Postgres may have released all locks and reset the
        // count already; then there is nothing to release (as pgrx's own guard does).
        unsafe {
            if pg_sys::InterruptHoldoffCount > 0 {
                crate::sys::raw::LWLockRelease(self.0);
            }
        }
    }
}

/// What the frontier's lock protects.
pub struct Shared<'a> {
    /// The frontier of all databases.
    pub frontier: Frontier<'a>,
    /// The databases with the extension.
    pub instances: &'a mut [Instance],
    /// The number the next instance gets, minus one.
    pub next_instance: &'a mut u32,
    /// What is counted of all databases.
    pub tallies: Tallies<'a>,
    /// What the snapshots of recounts do not see, the same share for each instance's slot.
    pub horizons: &'a mut [u32],
}

impl Shared<'_> {
    /// The share of `horizons` that belongs to an instance's slot.
    pub fn horizon_share(instances: usize, horizons: &mut [u32], slot: usize) -> &mut [u32] {
        let share = horizons.len() / instances;
        &mut horizons[slot * share..][..share]
    }

    /// What the snapshot of the recount sees that is under way for the instance in this slot.
    pub fn horizon<'h>(instances: &[Instance], horizons: &'h [u32], slot: usize) -> Horizon<'h> {
        let share = horizons.len() / instances.len();
        let counting = &instances[slot].counting;
        Horizon {
            xmin: counting.xmin,
            xmax: counting.xmax,
            in_progress: &horizons[slot * share..][..counting.in_progress as usize],
        }
    }
}

/// Runs `f` under the frontier's lock. `f` must be short and must not call Postgres.
pub fn with<R>(f: impl FnOnce(&mut Shared<'_>) -> R) -> R {
    // SAFETY: every verb checks `is_there` before its first call. The arrays lie where the layout put
    // them, are initialized (zeroed, or written under this lock), and are used by nobody else while the
    // lock is held, so that exclusive references are sound.
    unsafe {
        let base = BASE;
        let Some(layout) = LAYOUT else { unreachable!("shared memory is used before it is there") };
        let header = base.cast::<Header>();
        let _guard = LockGuard::take((*header).frontier_lock);
        fn slice<'a, T>(base: *mut u8, (at, count): (usize, usize)) -> &'a mut [T] {
            // SAFETY: see above.
            unsafe { std::slice::from_raw_parts_mut(base.add(at).cast::<T>(), count) }
        }
        f(&mut Shared {
            frontier: Frontier {
                head: &mut (*header).frontier,
                lanes: slice(base, layout.lanes),
                lane_index: slice(base, layout.lane_index),
                ready: slice(base, layout.ready),
                running: slice(base, layout.running),
                running_index: slice(base, layout.running_index),
                sessions: slice(base, layout.sessions),
                gates: slice(base, layout.gates),
                groups: slice(base, layout.groups),
                group_index: slice(base, layout.group_index),
            },
            instances: slice(base, layout.instances),
            next_instance: &mut (*header).next_instance,
            tallies: Tallies {
                slots: slice(base, layout.tallies),
                index: slice(base, layout.tally_index),
                top: &mut (*header).tally_top,
            },
            horizons: slice(base, layout.horizons),
        })
    }
}

/// Runs `f` on one instance under the frontier's lock; `None` when the instance is gone.
pub fn with_instance<R>(number: u32, f: impl FnOnce(&mut Frontier<'_>, &mut Instance) -> R) -> Option<R> {
    with(|shared| {
        let Shared { frontier, instances, .. } = shared;
        let instance = instances.iter_mut().find(|i| i.number == number && number != 0)?;
        Some(f(frontier, instance))
    })
}

/// For how many lanes there is room in the tallies.
pub fn tallies() -> usize {
    // SAFETY: written once, before any backend exists.
    unsafe { LAYOUT }.map_or(0, |layout| layout.tallies.1)
}

/// Runs `f` on the tallies under the frontier's lock; `None` when the instance's are not known.
pub fn with_tallies<R>(number: u32, f: impl FnOnce(&Tallies<'_>) -> R) -> Option<R> {
    with(|shared| {
        let instance = shared.instances.iter().find(|i| i.number == number && number != 0)?;
        instance.counting.is_known().then(|| f(&shared.tallies))
    })
}

/// How much of what a setting sizes is in use.
pub struct Use {
    /// The setting.
    pub setting: &'static str,
    /// How many are in use, and how many can be.
    pub used: usize,
    /// See `used`.
    pub size: usize,
}

/// How much of each kind of memory that can run full is in use, over all databases. What is ready is none of it: what
/// does not fit there stays where it is.
pub fn in_use() -> [Use; 4] {
    let held = with_holders(|holders| (holders.head.held as usize, holders.most));
    with(|shared| {
        let databases = shared.instances.iter().filter(|i| i.number != 0).count();
        let head = &shared.frontier.head;
        let of = |setting, (used, size)| Use { setting, used, size };
        [
            of("pg_queue.max_databases", (databases, shared.instances.len())),
            of("pg_queue.max_lanes", (head.lanes as usize, shared.frontier.lanes.len())),
            of("pg_queue.max_running", (head.running as usize, shared.frontier.running.len())),
            of("pg_queue.max_keys", held),
        ]
    })
}

/// What is taken of an instance, one in each hold of the lock: what comes or goes meanwhile may be among it or not.
pub fn each_running(number: u32) -> impl Iterator<Item = Running> {
    let mut from = 0;
    std::iter::from_fn(move || {
        crate::sys::check_for_interrupts();
        let (next, entry) = with(|shared| shared.frontier.next_running(number, from))?;
        from = next;
        Some(entry)
    })
}

/// A word of an instance, read without the lock; 0 when the slot is another instance's.
fn read_word(slot: usize, number: u32, word: impl FnOnce(*mut Instance) -> *mut u64) -> u64 {
    // SAFETY: the slot lies in the array, which is there for ever; words are aligned and only ever accessed
    // as atomics. The number is read beside it: a dropped instance's words mean nothing to anybody.
    unsafe {
        let Some(layout) = LAYOUT else { return 0 };
        assert!(slot < layout.instances.1, "slot out of range");
        let instance = BASE.add(layout.instances.0).cast::<Instance>().add(slot);
        let value = AtomicU64::from_ptr(word(instance)).load(Ordering::SeqCst);
        if (&raw const (*instance).number).read_volatile() == number { value } else { 0 }
    }
}

/// The word of a segment, without the lock.
pub fn segment_word(slot: usize, number: u32, segment: usize) -> u64 {
    // SAFETY: an address within the instance.
    read_word(slot, number, |instance| unsafe { &raw mut (*instance).words[segment] })
}

/// Which segments are open, without the lock.
pub fn open_word(slot: usize, number: u32) -> u64 {
    // SAFETY: an address within the instance.
    read_word(slot, number, |instance| unsafe { &raw mut (*instance).open })
}

/// The half of the keys' memory that is written to, without the lock.
pub fn memory_half(slot: usize, number: u32) -> u64 {
    // SAFETY: an address within the instance.
    read_word(slot, number, |instance| unsafe { &raw mut (*instance).memory_half })
}

/// How many drops of queues have begun, without the lock.
pub fn drops_word(slot: usize, number: u32) -> u64 {
    // SAFETY: an address within the instance.
    read_word(slot, number, |instance| unsafe { &raw mut (*instance).drops })
}

/// Writes a word that others read without the lock.
pub fn set_word(word: &mut u64, value: u64) {
    // SAFETY: an aligned word; the reference is exclusive among those that hold the lock.
    unsafe { AtomicU64::from_ptr(word) }.store(value, Ordering::SeqCst);
}

/// The number of the instance in this slot if that is awake; for whoever does not hold the lock. See `dormant`.
pub fn awake(slot: usize) -> &'static AtomicU32 {
    // SAFETY: every verb checks `is_there` before its first call. An array of atomics at its place in zeroed
    // memory, which is there for ever and is never borrowed in another way.
    unsafe {
        let Some(layout) = LAYOUT else { unreachable!("shared memory is used before it is there") };
        assert!(slot < layout.awake.1, "slot out of range");
        &*BASE.add(layout.awake.0).cast::<AtomicU32>().add(slot)
    }
}

/// What the launcher's lock protects.
pub struct Launcher<'a> {
    /// The databases of the server, as the launcher sees them.
    pub databases: &'a mut [Database],
    /// The launcher's latch; null when there is none.
    pub latch: &'a mut *mut pg_sys::Latch,
    /// The launcher's process.
    pub pid: &'a mut i32,
}

/// Runs `f` under the launcher's lock. `f` must be short and must not call Postgres.
pub fn with_launcher<R>(f: impl FnOnce(&mut Launcher<'_>) -> R) -> R {
    // SAFETY: as in `with`, for the fields that this lock protects.
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
        })
    }
}

/// Runs `f` under the lock of the holders of unique keys, which is taken while no other is held. `f` must be short
/// and must not call Postgres.
pub fn with_holders<R>(f: impl FnOnce(&mut Holders<'_>) -> R) -> R {
    // SAFETY: as in `with`, for the fields that this lock protects.
    unsafe {
        let base = BASE;
        let Some(layout) = LAYOUT else { unreachable!("shared memory is used before it is there") };
        let header = base.cast::<Header>();
        let _guard = LockGuard::take((*header).keys_lock);
        let (at, count) = layout.holders;
        f(&mut Holders {
            head: &mut (*header).holders,
            buckets: std::slice::from_raw_parts_mut(base.add(at).cast::<index::Bucket>(), count),
            most: usize::try_from(guc::MAX_KEYS.get()).unwrap_or(1),
        })
    }
}

/// Since when memory remembers, in monotonic microseconds.
pub fn born_at() -> i64 {
    // SAFETY: a field of the header that was written before any backend existed.
    unsafe { (*BASE.cast::<Header>()).born_at }
}

/// Told whenever a worker has left its database.
pub fn worker_left() -> *mut pg_sys::ConditionVariable {
    // SAFETY: only the address is taken, of a field of the header, which is there for ever.
    unsafe { &raw mut (*BASE.cast::<Header>()).worker_left }
}

/// Makes this session's latch known, so that others can wake it. Once per session, before it waits.
pub fn announce_session(session: u32) {
    // SAFETY: the slot is this session's own; its latch lies in shared memory at the same address in
    // every process.
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

/// Sets a session's latch. Never fails; call it after the lock was released.
pub fn wake(session: u32) {
    // SAFETY: latches lie in shared memory for ever; setting one that belongs to a later session of the
    // same number makes that one look once for nothing.
    unsafe {
        let Some(layout) = LAYOUT else { return };
        let latch = *latch_slot(layout, session);
        if !latch.is_null() {
            pg_sys::SetLatch(latch);
        }
    }
}

/// Sets a latch read from shared memory.
pub fn wake_latch(latch: *mut pg_sys::Latch) {
    if !latch.is_null() {
        // SAFETY: only addresses of latches in shared memory are ever stored.
        unsafe { pg_sys::SetLatch(latch) };
    }
}
