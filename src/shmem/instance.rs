//! `Instance`: the extension in one database.
//!
//! Responsible for an instance's data. Not responsible for making and freeing one (`catalog::instance`), for when a
//! change happens (`transaction::steps`, the duties), nor for reading words without the lock (`words`).
//!
//! Invariant: an instance is changed under the frontier's lock only.

use pg_queue_core::due;
use pg_queue_core::frontier::Frontier;
use pg_queue_core::missed::MissedRequests;
use pgrx::pg_sys;

use crate::pg::time;
use crate::shmem::counting::{self, CounterState};
use crate::shmem::drops::Drops;
use crate::shmem::key_halves::KeyHalves;
use crate::shmem::restore::RestoreState;
use crate::shmem::schedules::Schedules;
use crate::shmem::segments::Storage;
use crate::shmem::shared_word::SharedWord;
use crate::shmem::topics::Topics;
use crate::shmem::troubles::Troubles;
use crate::shmem::worker::Worker;

/// One database in which the extension is in use. The fields that every call and every commit reads come first: they
/// take two cache lines.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub struct Instance {
    /// The number of the instance, which is never used twice while the server runs; 0 if the slot is free.
    pub number: u32,
    /// The database.
    pub database: pg_sys::Oid,
    /// The oid of the extension's row in pg_extension, which is another one after DROP and CREATE EXTENSION.
    pub extension: pg_sys::Oid,
    /// The root of the frontier's deadlines of this instance.
    pub deadlines: u32,
    pub ids: Ids,
    pub due: Due,
    /// Whether its counters can be relied on. Only methods of `Instance` and `recount` change it.
    pub counting: CounterState,
    /// Whether it may be used, or is being restored. Only `awake`, `restore` and `transaction` change it.
    pub restore: RestoreState,
    pub schedules: Schedules,
    pub worker: Worker,
    /// The monotonic time at which the claims of before the start, or of before the promotion, had been read into
    /// memory, by the worker or by a session in its place. Memory knows of every claim since then. 0: they are still to
    /// be read.
    pub recovered_at: i64,
    /// The number of changes of queues since the start. A change is counted once every session was told.
    pub changes: u64,
    pub rights: RightsChanges,
    pub drops: Drops,
    /// Lanes whose queues ask for NOTIFY and which got jobs; 0 is a free place.
    pub notify: [i32; 32],
    pub storage: Storage,
    pub missed: Missed,
    pub keys: KeyHalves,
    /// What was published on topics.
    pub topics: Topics,
    /// What objects of users were kept from doing to others.
    pub troubles: Troubles,
}

/// The ids that sessions hand out. Zero is the state at the start.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Ids {
    /// The next id to hand out. Ids up to `limit` were taken from the sequence, and none of `next` and above was handed
    /// out.
    pub next: i64,
    /// The last id that was taken from the sequence.
    pub limit: i64,
}

/// How far attempts have fallen due.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Due {
    /// The wall time up to which attempts that fell due were pushed to the frontier, or lie behind their lane's
    /// position.
    pub to: i64,
    /// No attempt is known to fall due after `to` and before this wall time.
    pub next: i64,
}

impl Due {
    /// True if an attempt for this wall time is due, for a transaction that has added it and was committed. If the
    /// clock was set back, the cursor `to` was not moved since, and is moved here. The caller holds the frontier's
    /// lock.
    pub fn is_passed(&mut self, run_at: i64) -> bool {
        if run_at > self.to {
            return false;
        }
        let to = due::cursor(self.to, time::now_us());
        if to < self.to {
            (self.to, self.next) = (to, i64::MIN);
        }
        run_at <= to
    }
}

/// The transactions that have changed rights and something else. See `catalog::permission`. Zero is the state at the
/// start.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct RightsChanges {
    /// How many have begun to commit.
    pub begun: SharedWord,
    /// Of how many all sessions were told.
    pub told: SharedWord,
}

/// Requests about attempts that had ended, or were not known, when the requests came.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Missed {
    /// Attempts after whose end another run of the job was requested.
    pub reruns: MissedRequests,
    /// Attempts after whose end a cancellation was requested.
    pub cancels: MissedRequests,
}

impl Missed {
    /// No requests.
    pub const NONE: Self = Self { reruns: MissedRequests::NEW, cancels: MissedRequests::NEW };

    /// Asks that all notes be looked through for missed requests. The caller holds the frontier's lock.
    pub fn scan(&mut self) {
        self.reruns.scan();
        self.cancels.scan();
    }
}

impl Instance {
    /// Whether memory knows of every claim without an outcome.
    pub fn is_recovered(&self) -> bool {
        self.recovered_at != 0
    }

    /// Asks the background worker to look for another run after this attempt. Returns the worker's latch, to be set
    /// after the lock was released; null if there is no worker. The caller holds the frontier's lock.
    pub fn miss_rerun(&mut self, id: i64) -> *mut pg_sys::Latch {
        self.missed.reruns.add(id);
        self.worker.latch
    }

    /// Asks the background worker to cancel the attempts that follow this one. Otherwise it is as `miss_rerun`.
    pub fn miss_cancel(&mut self, id: i64) -> *mut pg_sys::Latch {
        self.missed.cancels.add(id);
        self.worker.latch
    }

    /// Hands the requests about an entry of `running` over to the worker, if that entry goes by another way than by an
    /// end that knows of the requests. Must be called before the entry goes. Returns the worker's latch if there was a
    /// request. The caller holds the frontier's lock.
    pub fn miss_of_entry(&mut self, frontier: &Frontier<'_>, id: i64) -> Option<*mut pg_sys::Latch> {
        let entry = frontier.entry(self.number, id)?;
        let rerun = (entry.rerun != 0).then(|| self.miss_rerun(id));
        let cancel = (entry.cancel != 0).then(|| self.miss_cancel(id));
        rerun.or(cancel)
    }

    /// Tells the session that has the attempt that another run was requested, as a transaction that has left such a
    /// note was committed. If the frontier has no entry of it, tells the worker, and returns the worker's latch. The
    /// caller holds the frontier's lock.
    pub fn rerun_asked(&mut self, frontier: &mut Frontier<'_>, id: i64) -> Option<*mut pg_sys::Latch> {
        if frontier.request_rerun(self.number, id) { None } else { Some(self.miss_rerun(id)) }
    }

    /// Makes the counters unknown, as there was a change that no callback reports. A recount in progress
    /// becomes void. The caller holds the frontier's lock.
    pub fn invalidate_counters(&mut self) {
        let counting = &mut self.counting;
        counting.state = counting::State::Unknown;
        counting.invalidations += 1;
    }

    /// Notes that a transaction that has enqueued was prepared. The caller holds the frontier's lock.
    pub fn enqueued_in_prepared(&mut self) {
        self.counting.has_prepared = true;
    }

    /// Is called when COMMIT PREPARED or ROLLBACK PREPARED has run. If a transaction that has enqueued may have been
    /// prepared, the counters become unknown. The caller holds the frontier's lock.
    pub fn prepared_ended(&mut self) {
        if self.counting.has_prepared {
            self.invalidate_counters();
        }
    }

    /// Gives up counting until the next start, as there are more lanes than counters. The caller holds the frontier's
    /// lock.
    pub fn give_up_counting(&mut self) {
        self.invalidate_counters();
        self.counting.is_full = true;
    }
}
