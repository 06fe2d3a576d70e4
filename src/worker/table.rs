//! The launcher's table of databases. Every change of a `DatabaseState` is one function here; `README.md` beside this
//! file has a drawing of the states. Not responsible for the memory and its lock: see `shmem::databases` and
//! `shmem::launcher`.
//!
//! Invariant: while an entry has a `pid`, that process exists. It takes the entry itself and gives it back as its last
//! act, both under the lock. So a process that holds the lock can signal that process and hits no other. No function
//! waits or fails under the lock. Functions return latches from under the lock, and set them after it.

use pgrx::pg_sys::{self, Oid};

use crate::pg::fault::fault_quietly;
use crate::pg::{memory, process, session, time};
use crate::shmem::databases::{Database, DatabaseState};
use crate::shmem::launcher::{self, Launcher};
use crate::shmem::{self, latch};

/// At most this many databases are looked into together. Each look takes a worker slot of the server, even if the
/// database has no extension.
const MAX_LOOKING: usize = 4;
/// A start that takes longer than this, in microseconds, no longer delays the starts of other workers.
const SLOW_START_US: i64 = 10_000_000;
/// A worker that has lived this long, in microseconds, does not count as having died young.
const MIN_LIFE_US: i64 = 60_000_000;
/// The longest pause before a worker that keeps dying is restarted, in microseconds.
const MAX_RETRY_PAUSE_US: i64 = 60_000_000;

/// Why a worker leaves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// It was asked to leave, by a signal or by the table.
    Asked,
    /// The database has no extension.
    NoExtension,
    /// An error ended it.
    Failed,
}

/// What a worker must do next.
#[derive(Clone, Copy, Default)]
pub struct Orders {
    /// It must look again whether the extension is there.
    pub look: bool,
    /// It must leave.
    pub leave: bool,
}

/// What the launcher can do about the databases that lack a worker.
pub enum Next {
    /// Start a worker in this database. The entry already says so.
    Start(Oid),
    /// Nothing before this monotonic time, in microseconds. `None`: nothing until it is woken.
    Wait(Option<i64>),
}

fn find(databases: &mut [Database], oid: Oid) -> Option<&mut Database> {
    databases.iter_mut().find(|d| d.oid == oid && oid != Oid::INVALID)
}

/// Returns the database's entry, and creates it if it is missing. `None`: the table is full.
fn enter(databases: &mut [Database], oid: Oid) -> Option<&mut Database> {
    let at =
        databases.iter().position(|d| d.oid == oid).or_else(|| databases.iter().position(|d| d.oid == Oid::INVALID))?;
    let database = &mut databases[at];
    if database.oid == Oid::INVALID {
        *database = Database {
            oid,
            state: DatabaseState::Idle,
            pid: 0,
            latch: std::ptr::null_mut(),
            since: time::monotonic_us(),
            retry_at: 0,
            deaths: 0,
            blockers: 0,
            must_look: false,
            must_leave: false,
            is_short: false,
        };
    }
    Some(database)
}

impl Database {
    /// Returns true if a worker was asked for and has not come.
    fn is_awaited(&self) -> bool {
        self.state == DatabaseState::Starting && self.pid == 0
    }

    /// Returns true if the current worker may stay.
    fn wants_worker(&self) -> bool {
        matches!(self.state, DatabaseState::Starting | DatabaseState::Running) && !self.must_leave
    }

    fn set(&mut self, state: DatabaseState) {
        self.state = state;
        self.since = time::monotonic_us();
    }

    /// Frees the entry for a new worker and forgets past deaths.
    fn forgive(&mut self) {
        self.set(DatabaseState::Idle);
        self.deaths = 0;
        self.retry_at = 0;
    }

    /// Frees the entry for a new worker: immediately after the first death, after a growing pause after further ones.
    /// `lived`: how long the worker lived, in microseconds.
    fn died(&mut self, lived: i64) {
        let now = time::monotonic_us();
        self.set(DatabaseState::Idle);
        self.deaths = if lived > MIN_LIFE_US { 1 } else { self.deaths.saturating_add(1) };
        let pause = match self.deaths {
            0 | 1 => 0,
            more => (1_000_000 << (more - 2).min(6)).min(MAX_RETRY_PAUSE_US),
        };
        self.retry_at = now + pause;
    }
}

// ----- the launcher

/// Takes the launcher's place. Workers that an earlier launcher asked for are asked for again. If both workers come,
/// the second one finds the place taken and leaves.
pub fn launcher_came(latch: *mut pg_sys::Latch) {
    launcher::with_launcher(|launcher| {
        *launcher.latch = latch;
        *launcher.pid = session::pid();
        for database in launcher.databases.iter_mut() {
            if database.is_awaited() {
                database.set(DatabaseState::Idle);
            }
        }
    });
}

/// Gives up the launcher's place, if this process has it.
pub fn launcher_left() {
    launcher::with_launcher(|launcher| {
        if *launcher.pid == session::pid() {
            *launcher.latch = std::ptr::null_mut();
            *launcher.pid = 0;
        }
    });
}

/// Makes the table list exactly the databases that want a worker. Other databases keep their entry until their worker
/// has left and no command blocks them. Returns true if there was room for all.
pub fn list(wanted: &[Oid]) -> bool {
    let mut leaving = memory::list(8);
    let has_room = launcher::with_launcher(|launcher| {
        let unwanted = |d: &&mut Database| d.oid != Oid::INVALID && !wanted.contains(&d.oid);
        for database in launcher.databases.iter_mut().filter(unwanted) {
            if database.pid != 0 {
                database.must_leave = true;
                leaving.push(database.latch);
            } else if database.state != DatabaseState::Blocked {
                database.oid = Oid::INVALID;
            }
        }
        wanted.iter().all(|oid| enter(launcher.databases, *oid).is_some())
    });
    leaving.into_iter().for_each(shmem::wake_latch);
    has_room
}

/// Takes the next database that lacks a worker and marks it as being started. Skips the databases in `except`.
pub fn choose(except: &[Oid]) -> Next {
    launcher::with_launcher(|launcher| {
        let now = time::monotonic_us();
        let mut slow_at = None;
        let mut looking = 0;
        for database in launcher.databases.iter() {
            let slow = database.since + SLOW_START_US;
            if database.oid != Oid::INVALID && database.state == DatabaseState::Starting && slow > now {
                looking += 1;
                slow_at = earlier(slow_at, slow);
            }
        }
        let mut retry_at = None;
        for database in launcher.databases.iter_mut() {
            let lacks = database.oid != Oid::INVALID && database.state == DatabaseState::Idle && database.pid == 0;
            if !lacks || except.contains(&database.oid) {
                continue;
            }
            if database.retry_at > now {
                retry_at = earlier(retry_at, database.retry_at);
            } else if looking >= MAX_LOOKING {
                // The workers that are looking wake the launcher when they are done.
                return Next::Wait(slow_at);
            } else {
                database.set(DatabaseState::Starting);
                database.is_short = false;
                return Next::Start(database.oid);
            }
        }
        Next::Wait(retry_at)
    })
}

fn earlier(one: Option<i64>, other: i64) -> Option<i64> {
    Some(one.map_or(other, |one| one.min(other)))
}

/// Undoes the start that `choose` returned, because the server had no slot for the worker.
pub fn not_asked(oid: Oid) {
    launcher::with_launcher(|launcher| {
        if let Some(database) = find(launcher.databases, oid)
            && database.is_awaited()
        {
            database.set(DatabaseState::Idle);
            database.is_short = true;
        }
    });
}

/// Notes that a process has ended. If it never took its place, it died.
pub fn ended(oid: Oid) {
    launcher::with_launcher(|launcher| {
        if let Some(database) = find(launcher.databases, oid)
            && database.is_awaited()
        {
            database.died(0);
        }
    });
}

// ----- the worker

/// Takes the place of the database's worker. This is the first act of the worker's process. Returns false if no worker
/// is wanted there, or another one came first.
pub fn came(oid: Oid, latch: *mut pg_sys::Latch) -> bool {
    launcher::with_launcher(|launcher| {
        find(launcher.databases, oid).is_some_and(|database| {
            let is_wanted = database.is_awaited();
            if is_wanted {
                database.pid = session::pid();
                database.latch = latch;
                database.must_look = false;
                database.must_leave = false;
            }
            is_wanted
        })
    })
}

/// Notes that the worker has found the extension.
pub fn found(oid: Oid) {
    let launcher = launcher::with_launcher(|launcher| {
        if let Some(database) = mine(launcher, oid)
            && database.state == DatabaseState::Starting
        {
            database.set(DatabaseState::Running);
        }
        *launcher.latch
    });
    // Other databases may wait for their turn to be looked into.
    shmem::wake_latch(launcher);
}

/// Returns what the worker must do next, and takes the order to look.
pub fn orders(oid: Oid) -> Orders {
    launcher::with_launcher(|launcher| match mine(launcher, oid) {
        Some(database) => Orders { look: std::mem::take(&mut database.must_look), leave: !database.wants_worker() },
        None => Orders { look: false, leave: true },
    })
}

/// Returns true if `orders` would return any order. Leaves the orders as they are.
pub fn has_orders(oid: Oid) -> bool {
    launcher::with_launcher(|launcher| {
        mine(launcher, oid).is_none_or(|database| database.must_look || !database.wants_worker())
    })
}

/// Gives up the worker's place. This is the last act of its process. `lived`: how long it lived, in microseconds.
pub fn give_up_place(oid: Oid, exit: Exit, lived: i64) {
    let launcher = launcher::with_launcher(|launcher| {
        let database = mine(launcher, oid)?;
        database.pid = 0;
        database.latch = std::ptr::null_mut();
        match exit {
            _ if database.state == DatabaseState::Blocked => {}
            // The worker found no extension, but was told to look again meanwhile. So another one looks.
            Exit::NoExtension if !database.must_look => database.set(DatabaseState::NoExtension),
            Exit::NoExtension | Exit::Asked => database.forgive(),
            Exit::Failed => database.died(lived),
        }
        Some(*launcher.latch)
    });
    if let Some(latch) = launcher {
        process::broadcast(latch::worker_left());
        shmem::wake_latch(latch);
    }
}

/// Returns the database's entry if this process is its worker.
fn mine<'a>(launcher: &'a mut Launcher<'_>, oid: Oid) -> Option<&'a mut Database> {
    find(launcher.databases, oid).filter(|database| database.pid == session::pid())
}

// ----- any session

/// Returns the launcher's process id. 0: no launcher runs.
pub fn launcher() -> i32 {
    launcher::with_launcher(|launcher| *launcher.pid)
}

/// Returns a copy of a database's entry. `None`: it has none.
pub fn entry(oid: Oid) -> Option<Database> {
    launcher::with_launcher(|launcher| find(launcher.databases, oid).copied())
}

/// Returns true if the table has no room for another database.
pub fn is_full() -> bool {
    launcher::with_launcher(|launcher| launcher.databases.iter().all(|d| d.oid != Oid::INVALID))
}

/// Returns how many workers have started and have not yet found the extension.
pub fn looking() -> i64 {
    launcher::with_launcher(|launcher| {
        let looks = |d: &&Database| d.oid != Oid::INVALID && d.state == DatabaseState::Starting;
        launcher.databases.iter().filter(looks).count() as i64
    })
}

/// Returns the databases that have no worker because the server has no slot for one.
pub fn short() -> Vec<Oid> {
    launcher::with_launcher(|launcher| {
        let short = launcher.databases.iter().filter(|d| d.oid != Oid::INVALID && d.is_short);
        short.map(|d| d.oid).collect()
    })
}

/// Makes a worker look, because the extension may have been created in this database or dropped from it.
pub fn request_look(oid: Oid) {
    let (worker, launcher) = launcher::with_launcher(|launcher| {
        let mut latch = std::ptr::null_mut();
        if let Some(database) = find(launcher.databases, oid) {
            match database.state {
                DatabaseState::Idle | DatabaseState::NoExtension => database.forgive(),
                DatabaseState::Starting | DatabaseState::Running => {
                    database.must_look = true;
                    latch = database.latch;
                }
                DatabaseState::Blocked => {}
            }
        }
        (latch, *launcher.latch)
    });
    shmem::wake_latch(worker);
    shmem::wake_latch(launcher);
}

/// Makes the worker restart, because something that it reads at its start has changed.
pub fn renew(oid: Oid) {
    fault_quietly!("worker.renewed");
    let worker = launcher::with_launcher(|launcher| {
        let database = find(launcher.databases, oid).filter(|database| database.pid != 0)?;
        database.must_leave = true;
        Some(database.latch)
    });
    if let Some(latch) = worker {
        shmem::wake_latch(latch);
    }
}

/// Wakes the launcher, whose list of all databases is out of date.
pub fn wake_launcher() {
    shmem::wake_latch(launcher::with_launcher(|launcher| *launcher.latch));
}

/// Keeps workers out of the database until `unblock`, and tells the one that is there to end. Returns whether the
/// database is blocked now. It fails only if the table is full; then the database has no worker and gets none.
pub fn block(oid: Oid) -> bool {
    launcher::with_launcher(|launcher| {
        let Some(database) = enter(launcher.databases, oid) else {
            return false;
        };
        database.blockers += 1;
        database.set(DatabaseState::Blocked);
        if database.pid != 0 {
            process::terminate(database.pid);
        }
        true
    })
}

/// Returns true if the database still has a worker.
pub fn has_worker(oid: Oid) -> bool {
    launcher::with_launcher(|launcher| find(launcher.databases, oid).is_some_and(|database| database.pid != 0))
}

/// Ends what `block` began. The launcher starts a worker again if the database still exists.
pub fn unblock(oid: Oid) {
    let launcher = launcher::with_launcher(|launcher| {
        if let Some(database) = find(launcher.databases, oid) {
            database.blockers = database.blockers.saturating_sub(1);
            if database.blockers == 0 && database.state == DatabaseState::Blocked {
                database.forgive();
            }
        }
        *launcher.latch
    });
    shmem::wake_latch(launcher);
}
