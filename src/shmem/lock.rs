//! The locks of shared memory and the data that each one guards: the frontier with instances and counters, the
//! launcher's table (`launcher`), and the holders of keys (`keys`).
//!
//! Responsible for taking a lock and for lending its data. Not responsible for Postgres's heavyweight locks
//! (`pg::lock`), nor for words that are read without a lock (`words`).
//!
//! Invariant: while `with` holds the lock, no code runs that could raise an error, allocate Postgres memory, sleep or
//! take another lock. The only exception is `pg::snapshot::ActiveSnapshot::take`.

use pg_queue_core::awaited::Awaited;
use pg_queue_core::counter::{Counters, Horizon};
use pg_queue_core::frontier::{Arrays, Frontier, Running, Sleeper};
use pg_queue_core::minutes::Minutes;
use pg_queue_core::watchers::Watchers;
use pgrx::pg_sys;

use crate::pg::time;
use crate::shmem::here;
use crate::shmem::instance::Instance;
use crate::shmem::layout::{BASE, Header, LAYOUT};

/// An exclusive lock of shared memory, released when the value is dropped.
pub struct LockGuard(*mut pg_sys::LWLock);

impl LockGuard {
    /// Takes a lock. Waits for it.
    pub fn take(lock: *mut pg_sys::LWLock) -> Self {
        // SAFETY: a lock of the extension's tranche, initialized by Postgres. A process that reaches this has a PGPROC.
        // The call has no guard of pgrx, because that costs more than the lock. The call fails only if a backend holds
        // 200 locks (MAX_SIMUL_LWLOCKS).
        unsafe { crate::pg::raw::LWLockAcquire(lock, pg_sys::LWLockMode::LW_EXCLUSIVE) };
        Self(lock)
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        // SAFETY: taken by `take`. After an error Postgres may already have released all locks and reset the count.
        // Then nothing is left to release. pgrx's own guard decides in the same way.
        unsafe {
            if pg_sys::InterruptHoldoffCount > 0 {
                crate::pg::raw::LWLockRelease(self.0);
            }
        }
    }
}

/// The data that the frontier's lock protects.
pub struct Shared<'a> {
    /// The frontier of all databases.
    pub frontier: Frontier<'a>,
    /// The databases with the extension.
    pub instances: &'a mut [Instance],
    /// For each instance's slot, the jobs that have successors.
    pub awaited: &'a mut [Awaited],
    /// The sessions that wait for the end of a job.
    pub watchers: Watchers<'a>,
    /// The last number given to an instance. The next instance gets this plus one.
    pub next_instance: &'a mut u32,
    /// The counters of the lanes of all databases.
    pub counters: Counters<'a>,
    /// The ids of transactions that were in progress for the snapshots of recounts. Each instance's slot has an equal
    /// share.
    pub horizons: &'a mut [u32],
}

impl Shared<'_> {
    /// Returns the share of `horizons` that belongs to an instance's slot. `instances` is the number of slots.
    pub fn horizon_share(instances: usize, horizons: &mut [u32], slot: usize) -> &mut [u32] {
        let share = horizons.len() / instances;
        &mut horizons[slot * share..][..share]
    }

    /// Returns what the snapshot of the last recount sees, for the instance in this slot.
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

/// Runs `f` under the frontier's lock, which is exclusive. `f` must be short and must not call Postgres: see the
/// invariant.
pub fn with<R>(f: impl FnOnce(&mut Shared<'_>) -> R) -> R {
    // SAFETY: every verb checks `layout::is_there` before its first call. The arrays lie where the layout has put them,
    // and are initialized (zeroed, or written under this lock). No other process uses them while the lock is held. So
    // exclusive references are sound. Words that are read without the lock are atomics (`words`).
    unsafe {
        let base = BASE;
        let Some(layout) = LAYOUT else { unreachable!("shared memory is used before it is there") };
        let header = base.cast::<Header>();
        let _guard = LockGuard::take((*header).frontier_lock);
        #[cfg(feature = "lock-times")]
        let _clock = crate::shmem::lock_times::Clock::start(&raw mut (*header).lock_times);
        if (*header).frontier.needs_now() {
            (*header).frontier.now = time::monotonic_us();
        }
        fn slice<'a, T>(base: *mut u8, (at, count): (usize, usize)) -> &'a mut [T] {
            // SAFETY: see above.
            unsafe { std::slice::from_raw_parts_mut(base.add(at).cast::<T>(), count) }
        }
        f(&mut Shared {
            frontier: Frontier::over(Arrays {
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
                ahead: slice(base, layout.ahead),
                rates: slice(base, layout.rates),
                rate_index: slice(base, layout.rate_index),
                starts: slice(base, layout.starts),
                retrying: slice(base, layout.retrying),
                retrying_index: slice(base, layout.retrying_index),
            }),
            instances: slice(base, layout.instances),
            awaited: slice(base, layout.awaited),
            watchers: Watchers {
                head: &mut (*header).watchers,
                buckets: slice(base, layout.watched),
                sessions: slice(base, layout.watchers),
            },
            next_instance: &mut (*header).next_instance,
            counters: Counters {
                slots: slice(base, layout.counters),
                index: slice(base, layout.counter_index),
                top: &mut (*header).counter_top,
            },
            horizons: slice(base, layout.horizons),
        })
    }
}

/// Runs `f` on one instance under the frontier's lock, as `with` does. `None`: the instance was dropped.
pub fn with_instance_of<R>(number: u32, f: impl FnOnce(&mut Frontier<'_>, &mut Instance) -> R) -> Option<R> {
    with(|shared| {
        let Shared { frontier, instances, .. } = shared;
        let instance = instances.iter_mut().find(|i| i.number == number && number != 0)?;
        Some(f(frontier, instance))
    })
}

/// As `with_instance_of`, on the instance that this process works for.
pub fn with_instance<R>(f: impl FnOnce(&mut Frontier<'_>, &mut Instance) -> R) -> Option<R> {
    with_instance_of(here::number(), f)
}

/// Runs `f` on the known jobs with successors of an instance, under the frontier's lock, as `with` does. `None`: the
/// instance was dropped.
pub fn with_awaited_of<R>(number: u32, f: impl FnOnce(&mut Awaited, &Instance) -> R) -> Option<R> {
    with(|shared| {
        let slot = shared.instances.iter().position(|i| i.number == number && number != 0)?;
        Some(f(&mut shared.awaited[slot], &shared.instances[slot]))
    })
}

/// As `with_awaited_of`, on the instance that this process works for.
pub fn with_awaited<R>(f: impl FnOnce(&mut Awaited, &Instance) -> R) -> Option<R> {
    with_awaited_of(here::number(), f)
}

/// Runs `f` on the instance that this process works for and its known jobs with successors, under the frontier's lock,
/// as `with` does. `None`: the instance was dropped.
pub fn with_instance_and_awaited<R>(f: impl FnOnce(&mut Frontier<'_>, &mut Instance, &Awaited) -> R) -> Option<R> {
    let number = here::number();
    with(|shared| {
        let slot = shared.instances.iter().position(|i| i.number == number && number != 0)?;
        Some(f(&mut shared.frontier, &mut shared.instances[slot], &shared.awaited[slot]))
    })
}

/// Returns for how many lanes the counters have room. 0: the library was not preloaded.
pub fn counters() -> usize {
    // SAFETY: written once, before any backend exists.
    unsafe { LAYOUT }.map_or(0, |layout| layout.counters.1)
}

/// Runs `f` on the counters under the frontier's lock, as `with` does. `None`: the instance was dropped, or its
/// counters are unknown.
pub fn with_counters<R>(f: impl FnOnce(&Counters<'_>) -> R) -> Option<R> {
    let number = here::number();
    with(|shared| {
        let instance = shared.instances.iter().find(|i| i.number == number && number != 0)?;
        instance.counting.is_known().then(|| f(&shared.counters))
    })
}

/// Returns a copy of what memory has counted of a lane in the last hour. `None`: nothing, or the counts are not known.
pub fn minutes_of(lane: i32) -> Option<Minutes> {
    with_counters(|counters| counters.minutes_of(here::number(), lane).copied()).flatten()
}

/// Returns the entries of `running` of the instance that this process works for, one in each hold of the frontier's
/// lock. An entry that is added or removed meanwhile may or may not be among them. Can raise a cancel between two
/// entries.
pub fn each_running() -> impl Iterator<Item = Running> {
    let mut from = 0;
    std::iter::from_fn(move || {
        crate::pg::process::check_for_interrupts();
        let (next, entry) = with(|shared| shared.frontier.running.next_running(here::number(), from))?;
        from = next;
        Some(entry)
    })
}

/// Returns the sessions of the instance that this process works for that sleep until there is a job, one in each hold
/// of the frontier's lock. Can raise a cancel between two sessions.
pub fn each_sleeper() -> impl Iterator<Item = Sleeper> {
    let mut from = 0;
    std::iter::from_fn(move || {
        crate::pg::process::check_for_interrupts();
        let (next, sleeper) = with(|shared| shared.frontier.next_sleeper(here::number(), from))?;
        from = next;
        Some(sleeper)
    })
}

/// Returns how often and for how long the frontier's lock was held.
#[cfg(feature = "lock-times")]
pub fn times() -> crate::shmem::lock_times::Times {
    // SAFETY: a part of the header, under the lock.
    with(|_| unsafe { (*BASE.cast::<Header>()).lock_times })
}

/// Returns when the shared memory was created, in monotonic microseconds. Memory knows nothing of the time before.
pub fn born_at() -> i64 {
    // SAFETY: a field of the header that was written before any backend existed.
    unsafe { (*BASE.cast::<Header>()).born_at }
}

/// True if the server was not shut down in order before the shared memory was created, or was a standby then.
pub fn is_after_crash() -> bool {
    // SAFETY: a field of the header that was written before any backend existed.
    unsafe { (*BASE.cast::<Header>()).is_after_crash }
}
