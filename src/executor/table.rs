//! The slots of the executors. Each change of a slot in shared memory is one function here.
//!
//! Responsible for the slots' states. Not responsible for the memory and its lock (`shmem::executors`), for deciding
//! which queue needs a process (`duty::dispatch`), nor for what a process does with a job (`job`).
//!
//! Invariant: while a slot has a `pid`, that process exists. It takes the slot itself and gives it up as its last act,
//! both under the lock. So a process that holds the lock can signal that process and hits no other. Functions return
//! latches from under the lock, and set them after it.

use pgrx::pg_sys::{self, Oid};

use crate::pg::{memory, process, session, time};
use crate::shmem::executors::{self, Executor, Head, Latch, Refused, Starving, State};
use crate::shmem::{self, launcher};

/// A process that does not appear within this time, in microseconds, counts as failed.
const MAX_START_US: i64 = 10_000_000;
/// A queue that found no slot is preferred for this long, in microseconds.
const PREFERENCE_US: i64 = 1_000_000;
/// After a start for which the server had no slot, the number of processes is limited for this long, in microseconds.
const LIMITED_US: i64 = 60_000_000;
/// The server frees the slot of a process within this time after the process's last act, in microseconds.
const MAX_REAP_US: i64 = 1_000_000;
/// If a statement does not end within this time after it was cancelled, its process is ended. In microseconds.
const MAX_CANCEL_US: i64 = 5_000_000;

/// The database and role for which a process runs jobs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub database: Oid,
    pub instance: u32,
    pub role: Oid,
}

impl Place {
    fn has(self, slot: &Executor) -> bool {
        (slot.database, slot.instance, slot.role) == (self.database, self.instance, self.role)
    }
}

/// The answer to a request for a process.
pub enum Asked {
    /// An idle process was told of the lane.
    Told,
    /// The slot was taken for a new process. The caller starts it.
    Start { slot: usize, start: u32 },
    /// An idle process for another place leaves to make room.
    Later,
    /// All processes are busy.
    Full,
}

/// Returns how many executors the server can have: `max_worker_processes` without the workers and without two
/// launchers, the extension's and logical replication's. Takes the launcher's lock.
fn server_room() -> usize {
    let workers = launcher::with_launcher(|launcher| launcher.databases.iter().filter(|d| d.pid != 0).count());
    process::max_background().saturating_sub(2 + workers)
}

/// True if a role may have `own` processes when `left` places remain. One place remains for roles without a process;
/// two remain if there are four or more places. In addition one place remains for each seven that the role has. So no
/// role can keep all others waiting while its jobs run.
fn is_within_share(own: usize, left: usize, places: usize) -> bool {
    left >= if places < 4 { 1 } else { 2 } && own <= 7 * left
}

/// Finds a process for a lane: an idle one, or a slot for a new one. `may_try`: true if a start may be tried although
/// the server recently had no slot. Takes the launcher's lock, then the executors' lock.
pub fn find_process(place: Place, lane: i32, may_try: bool) -> Asked {
    let now = time::monotonic_us();
    let server_room = server_room();
    let (asked, latch) = executors::with(|head, slots| {
        let is_mine = (head.starving.database, head.starving.lane) == (place.database, lane);
        if !is_mine && is_starving(head, now) {
            return (Asked::Full, Latch::default());
        }
        let is_idle = |slot: &&mut Executor| slot.state == State::Idle && !slot.must_leave;
        if let Some(slot) = slots.iter_mut().filter(is_idle).find(|slot| place.has(slot)) {
            (slot.state, slot.lane, slot.since) = (State::Looking, lane, now);
            (slot.has_news, slot.is_awaited, slot.told_at) = (false, true, now);
            head.starving = Starving::default();
            return (Asked::Told, slot.latch);
        }
        let used = slots.iter().filter(|slot| !is_free(slot, now)).count();
        let own = slots.iter().filter(|slot| !is_free(slot, now) && slot.role == place.role).count();
        let room = room(head, now).min(slots.len());
        let may_start = match own {
            0 => may_try || used < room,
            _ => {
                let places = room.min(server_room);
                may_try && is_within_share(own + 1, places.saturating_sub(used + 1), places)
            }
        };
        if used < room && !may_start {
            if is_mine {
                head.starving = Starving::default();
            }
            return (Asked::Full, Latch::default());
        }
        if let Some(slot) = (0..slots.len()).find(|&n| may_start && is_free(&slots[n], now)) {
            head.starts = head.starts.wrapping_add(1).max(1);
            head.starving = Starving::default();
            let Place { database, instance, role } = place;
            let start = head.starts;
            slots[slot] = Executor {
                state: State::Starting,
                is_awaited: true,
                database,
                instance,
                role,
                lane,
                start,
                since: now,
                told_at: now,
                ..Default::default()
            };
            return (Asked::Start { slot, start }, Latch::default());
        }
        // A queue that has its own process waits for that process.
        if slots.iter().any(|slot| place.has(slot) && slot.lane == lane) {
            return (Asked::Full, Latch::default());
        }
        head.starving = Starving { database: place.database, lane, at: now };
        match slots.iter_mut().find(is_idle) {
            Some(slot) => {
                slot.must_leave = true;
                (Asked::Later, slot.latch)
            }
            None => (Asked::Full, Latch::default()),
        }
    });
    shmem::wake_latch(latch.0);
    asked
}

/// True if a slot can be taken: it is free, or its database's worker never collected the failure.
fn is_free(slot: &Executor, now: i64) -> bool {
    let is_forgotten = now - slot.since > 2 * MAX_START_US;
    match slot.state {
        State::Free => true,
        State::Failed => is_forgotten,
        State::Starting => slot.pid == 0 && is_forgotten,
        _ => false,
    }
}

/// True if a queue was recently seen that has jobs but no process.
fn is_starving(head: &Head, now: i64) -> bool {
    head.starving.database != Oid::INVALID && now - head.starving.at < PREFERENCE_US
}

/// Returns how many processes there can be, by recent failed starts.
fn room(head: &Head, now: i64) -> usize {
    if head.room_at != 0 && now - head.room_at < LIMITED_US { head.room as usize } else { usize::MAX }
}

/// Undoes a start for which the server had no slot.
pub fn not_started(slot: usize) {
    let now = time::monotonic_us();
    executors::with(|head, slots| {
        slots[slot] = Executor::default();
        head.failures += 1;
        if head.short_since == 0 {
            head.short_since = now;
        }
        if now - head.left_at > MAX_REAP_US {
            head.room = slots.iter().filter(|slot| !is_free(slot, now)).count() as u32;
            head.room_at = now;
        }
    });
}

/// True if a process was told of one of these lanes and has not answered. The process will wake the worker when it
/// answers.
pub fn is_in_flight(instance: u32, lanes: &[i32]) -> bool {
    executors::with(|_, slots| {
        let mut is_one = false;
        for slot in slots.iter_mut().filter(|slot| slot.instance == instance && lanes.contains(&slot.lane)) {
            if matches!(slot.state, State::Starting | State::Looking) {
                slot.is_awaited = true;
                is_one = true;
            }
        }
        is_one
    })
}

/// True if a slot has changed and the worker has not seen it, or a process did not appear in time.
pub fn has_news(instance: u32) -> bool {
    let now = time::monotonic_us();
    executors::with(|_, slots| {
        slots.iter().any(|slot| slot.instance == instance && (slot.has_news || is_missing(slot, now)))
    })
}

/// True if a process that was started has not appeared in time.
fn is_missing(slot: &Executor, now: i64) -> bool {
    slot.state == State::Starting && slot.pid == 0 && now - slot.since >= MAX_START_US
}

/// Takes the news and frees the slots of processes that failed or never appeared. Returns the roles as which no process
/// could connect.
pub fn take_news(instance: u32) -> Vec<Oid> {
    let now = time::monotonic_us();
    let mut failed = memory::list(8);
    executors::with(|head, slots| {
        for slot in slots.iter_mut().filter(|slot| slot.instance == instance) {
            slot.has_news = false;
            if slot.state == State::Failed || is_missing(slot, now) {
                head.failures += 1;
                if (head.refused.database, head.refused.role) != (slot.database, slot.role) {
                    head.refused = Refused { database: slot.database, role: slot.role, since: now };
                }
                if failed.len() < failed.capacity() {
                    failed.push(slot.role);
                }
                *slot = Executor::default();
            } else if slot.state == State::Free {
                *slot = Executor::default();
            }
        }
    });
    failed
}

/// True if an attempt must be stopped by `is_unwanted` and its process was not signalled yet. Also true if a signalled
/// process has not answered in time.
pub fn has_unwanted(instance: u32, is_unwanted: impl Fn(i64) -> bool) -> bool {
    let now = time::monotonic_us();
    running(instance).into_iter().any(|(attempt, is_signalled, signalled_at)| match is_signalled {
        true => now - signalled_at > MAX_CANCEL_US,
        false => is_unwanted(attempt),
    })
}

/// Returns the running attempts: the attempt, whether its process was signalled, and when.
fn running(instance: u32) -> Vec<(i64, bool, i64)> {
    let mut found = memory::list(executors::with(|_, slots| slots.len()));
    executors::with(|_, slots| {
        let runs = slots.iter().filter(|slot| slot.instance == instance && slot.attempt != 0);
        found.extend(runs.map(|slot| (slot.attempt, slot.is_signalled, slot.signalled_at)));
    });
    found
}

/// Cancels the statements of unwanted attempts, and ends the processes that did not answer. Returns how many it has
/// signalled.
pub fn stop(instance: u32, is_unwanted: impl Fn(i64) -> bool) -> i64 {
    let mut stopped = 0;
    for (attempt, is_signalled, _) in running(instance) {
        if !is_signalled && !is_unwanted(attempt) {
            continue;
        }
        let now = time::monotonic_us();
        executors::with(|_, slots| {
            let Some(slot) = slots.iter_mut().find(|s| s.instance == instance && s.attempt == attempt && s.pid != 0)
            else {
                return;
            };
            if !slot.is_signalled {
                (slot.is_signalled, slot.signalled_at) = (true, now);
                process::signal(slot.pid, libc::SIGINT);
                stopped += 1;
            } else if now - slot.signalled_at > MAX_CANCEL_US {
                slot.signalled_at = now;
                process::terminate(slot.pid);
                stopped += 1;
            }
        });
    }
    stopped
}

/// Returns the monotonic time at which the worker must check its processes again.
pub fn next_at(instance: u32) -> i64 {
    executors::with(|_, slots| {
        let mine = slots.iter().filter(|slot| slot.instance == instance);
        let at = |slot: &Executor| match slot.state {
            State::Starting if slot.pid == 0 => slot.since + MAX_START_US,
            State::Running if slot.is_signalled => slot.signalled_at + MAX_CANCEL_US,
            _ => i64::MAX,
        };
        mine.map(at).min().unwrap_or(i64::MAX)
    })
}

/// Tells all processes of a database to leave. `also_running`: processes that run a job are terminated, too.
pub fn retire(database: Oid, also_running: bool) {
    let mut latches = memory::list(executors::with(|_, slots| slots.len()));
    executors::with(|_, slots| {
        for slot in slots.iter_mut().filter(|slot| slot.database == database && slot.state != State::Free) {
            slot.must_leave = true;
            latches.push(slot.latch);
            if also_running && slot.pid != 0 {
                process::terminate(slot.pid);
            }
        }
    });
    latches.into_iter().for_each(|latch| shmem::wake_latch(latch.0));
}

/// True if a database has a process, or one is being started for it.
pub fn has_any(database: Oid) -> bool {
    executors::with(|_, slots| {
        slots.iter().any(|s| s.database == database && (s.pid != 0 || s.state == State::Starting))
    })
}

// ----- the process

/// What a process must do next.
pub enum Order {
    Leave,
    /// Look for a job in this lane's queue.
    Look(i32),
    Wait,
}

/// Takes the slot. This is the first act of the process. `None`: the process is not wanted any more.
pub fn came(slot: usize, start: u32, latch: *mut pg_sys::Latch) -> Option<Place> {
    executors::with(|_, slots| {
        let slot = slots.get_mut(slot).filter(|s| s.start == start && s.state == State::Starting && s.pid == 0)?;
        slot.pid = session::pid();
        slot.latch = Latch(latch);
        let Executor { database, instance, role, .. } = *slot;
        Some(Place { database, instance, role })
    })
}

/// Changes the slot of this process. Returns true if the worker must be woken.
fn change(slot: usize, f: impl FnOnce(&mut Executor)) -> bool {
    let now = time::monotonic_us();
    executors::with(|_, slots| {
        let slot = &mut slots[slot];
        let before = slot.state;
        f(slot);
        if slot.state != before {
            slot.since = now;
        }
        // The process has answered what it was told.
        slot.has_news |= std::mem::take(&mut slot.is_awaited) && slot.state != State::Looking;
        slot.has_news
    })
}

/// Notes that the process is connected and looks for its first job.
pub fn connected(slot: usize) {
    let now = time::monotonic_us();
    executors::with(|head, slots| {
        head.short_since = 0;
        if slots.iter().filter(|slot| !is_free(slot, now)).count() > room(head, now) {
            head.room_at = 0;
        }
        let slot = &mut slots[slot];
        if (head.refused.database, head.refused.role) == (slot.database, slot.role) {
            head.refused = Refused::default();
        }
        slot.state = State::Looking;
    });
}

pub fn order(slot: usize) -> Order {
    executors::with(|_, slots| match slots[slot] {
        Executor { must_leave: true, .. } => Order::Leave,
        Executor { state: State::Looking, lane, .. } => Order::Look(lane),
        _ => Order::Wait,
    })
}

/// True if the process may continue with its queue: no other queue or database waits for a process.
pub fn may_go_on(slot: usize) -> bool {
    let now = time::monotonic_us();
    executors::with(|head, slots| !slots[slot].must_leave && !is_starving(head, now))
}

/// Notes that the process runs an attempt.
pub fn runs(slot: usize, attempt: i64, job_id: i64) {
    let now = time::monotonic_us();
    let has_news = change(slot, |slot| {
        slot.state = State::Running;
        (slot.attempt, slot.job_id, slot.is_signalled) = (attempt, job_id, false);
    });
    executors::with(|head, slots| {
        if let told_at @ 1.. = std::mem::take(&mut slots[slot].told_at) {
            head.dispatches += 1;
            head.dispatch_us += now - told_at;
        }
    });
    wake_worker_if(has_news);
}

/// Notes that the attempt has ended. Returns true if the process was signalled meanwhile. The signal was sent before
/// this function returns.
pub fn ran(slot: usize) -> bool {
    executors::with(|_, slots| {
        let slot = &mut slots[slot];
        (slot.attempt, slot.job_id) = (0, 0);
        std::mem::take(&mut slot.is_signalled)
    })
}

/// Notes that the process has found no job.
pub fn idle(slot: usize) {
    change(slot, |slot| {
        slot.state = State::Idle;
        slot.has_news = true;
        slot.told_at = 0;
    });
    wake_worker_if(true);
}

/// Gives up the slot. This is the last act of the process.
pub fn give_up_slot(slot: usize, start: u32) {
    let now = time::monotonic_us();
    let instance = executors::with(|head, slots| {
        let slot = slots.get_mut(slot).filter(|s| s.start == start && s.pid == session::pid())?;
        let instance = slot.instance;
        let state = if slot.state == State::Starting { State::Failed } else { State::Free };
        let Executor { database, role, .. } = *slot;
        *slot = Executor { state, database, instance, role, has_news: true, since: now, ..Default::default() };
        head.left_at = now;
        // A queue of another database waits for this slot, so it is freed completely.
        if state == State::Free && head.starving.database != Oid::INVALID && head.starving.database != database {
            *slot = Executor::default();
        }
        Some(instance)
    });
    if let Some(instance) = instance {
        wake_worker(instance);
    }
}

fn wake_worker_if(has_news: bool) {
    if has_news {
        wake_worker(INSTANCE.get());
    }
}

thread_local! {
    /// The instance for which this process works.
    pub static INSTANCE: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// Wakes the worker of an instance.
fn wake_worker(instance: u32) {
    if let Some(latch) = shmem::with_instance_of(instance, |_, instance| instance.worker.latch) {
        shmem::wake_latch(latch);
    }
}

// ----- anyone

/// Returns a copy of the slots that are in use in this database.
pub fn all(instance: u32) -> Vec<Executor> {
    let mut found = memory::list(executors::with(|_, slots| slots.len()));
    executors::with(|_, slots| {
        found.extend(slots.iter().filter(|s| s.instance == instance && s.pid != 0));
    });
    found
}

/// Results of starts and orders since the start of the server, over all databases.
pub struct Counts {
    pub starts: u32,
    pub failures: u32,
    pub dispatches: i64,
    pub dispatch_us: i64,
    /// For how long no start has succeeded, in microseconds. `None`: the last start succeeded, or its result is
    /// unknown.
    pub short_for: Option<i64>,
}

pub fn counts() -> Counts {
    let now = time::monotonic_us();
    executors::with(|head, _| {
        let Head { starts, failures, dispatches, dispatch_us, short_since, .. } = *head;
        Counts { starts, failures, dispatches, dispatch_us, short_for: (short_since != 0).then(|| now - short_since) }
    })
}

/// Returns the role as which no process can connect to a database, and for how long, in microseconds.
pub fn refused(database: Oid) -> Option<(Oid, i64)> {
    let now = time::monotonic_us();
    executors::with(|head, _| {
        (head.refused.database == database).then(|| (head.refused.role, now - head.refused.since))
    })
}
