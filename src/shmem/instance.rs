//! `Instance`: the extension in one database.
//!
//! Responsible for an instance's data. Not responsible for creating and freeing one (`catalog::instance`), for the
//! moment of a change (`transaction::steps`, the duties), nor for reading words without the lock (`words`).
//!
//! Invariant: an instance is changed only under the frontier's lock.

use pg_queue_core::due;
use pg_queue_core::expiry::Expiry;
use pg_queue_core::frontier::{DeadlineRoot, Frontier};
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

/// A database in which the extension is in use. The fields that every call and every commit reads come first. They take
/// two cache lines.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub struct Instance {
    /// The number of the instance, never reused while the server runs. 0: the slot is free.
    pub number: u32,
    /// The database.
    pub database: pg_sys::Oid,
    /// The oid of the extension's row in pg_extension. It changes after DROP and CREATE EXTENSION.
    pub extension: pg_sys::Oid,
    /// The root of the frontier's deadlines of this instance.
    pub deadlines: DeadlineRoot,
    pub ids: Ids,
    pub due: Due,
    /// The state of its counters. Only methods of `Instance` and `recount` change it.
    pub counting: CounterState,
    /// The state of restores: awake or being restored. Only `awake`, `restore` and `transaction` change it.
    pub restore: RestoreState,
    pub schedules: Schedules,
    pub worker: Worker,
    /// The monotonic time at which memory knew all claims. The worker, or a session in its place, reads the claims from
    /// before the start or the promotion. Memory knows all later claims itself. 0: the claims have not been read yet.
    pub recovered_at: i64,
    /// The number of changes of queues since the start. A change is counted when every session was told.
    pub changes: u64,
    pub rights: RightsChanges,
    pub drops: Drops,
    /// Lanes that got jobs and whose queues ask for NOTIFY. 0: a free place.
    pub notify: [i32; 32],
    pub storage: Storage,
    pub missed: Missed,
    pub keys: KeyHalves,
    /// The counts of published events.
    pub topics: Topics,
    /// Failures that objects of one role have caused for others.
    pub troubles: Troubles,
    /// How far waiting attempts have expired.
    pub expiry: Expiry,
}

/// The ids that sessions hand out. Zero is the state at the start.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Ids {
    /// The next id to hand out. Ids up to `limit` were taken from the sequence. Ids `next` and above were not handed
    /// out yet.
    pub next: i64,
    /// The last id taken from the sequence.
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
    /// True if an attempt with this wall time is due. Called when the transaction that added it was committed. If the
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
    /// The number of these that have begun to commit.
    pub begun: SharedWord,
    /// The number of these that all sessions were told of.
    pub told: SharedWord,
}

/// Requests about attempts that had ended, or were not known, when the requests came.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Missed {
    /// Ended attempts for which another run of the job was requested too late.
    pub reruns: MissedRequests,
    /// Ended attempts for which a cancellation was requested too late.
    pub cancels: MissedRequests,
}

impl Missed {
    /// No requests.
    pub const NONE: Self = Self { reruns: MissedRequests::NEW, cancels: MissedRequests::NEW };

    /// Makes the worker search all notes for missed requests. The caller holds the frontier's lock.
    pub fn scan(&mut self) {
        self.reruns.scan();
        self.cancels.scan();
    }
}

impl Instance {
    /// True if memory knows every claim without an outcome.
    pub fn is_recovered(&self) -> bool {
        self.recovered_at != 0
    }

    /// Asks the background worker to look for another run after this attempt. Returns the worker's latch, to be set
    /// after the lock was released. Null: no worker. The caller holds the frontier's lock.
    pub fn miss_rerun(&mut self, id: i64) -> *mut pg_sys::Latch {
        self.missed.reruns.add(id);
        self.worker.latch
    }

    /// Asks the background worker to cancel the attempts that follow this one. Otherwise as `miss_rerun`.
    pub fn miss_cancel(&mut self, id: i64) -> *mut pg_sys::Latch {
        self.missed.cancels.add(id);
        self.worker.latch
    }

    /// Hands to the worker what an entry of `running` knows: the requests about its attempt, and that the attempt has
    /// expired. Must be called before the entry is removed in a way that does not know of these. Returns the worker's
    /// latch if there was anything. The caller holds the frontier's lock.
    pub fn entry_leaves(&mut self, frontier: &Frontier<'_>, id: i64) -> Option<*mut pg_sys::Latch> {
        let entry = frontier.entry(self.number, id)?;
        let rerun = (entry.rerun != 0).then(|| self.miss_rerun(id));
        let cancel = (entry.cancel != 0).then(|| self.miss_cancel(id));
        let late = (entry.late != 0).then(|| {
            self.expiry.gives_back();
            self.worker.latch
        });
        rerun.or(cancel).or(late)
    }

    /// Records that a committed note requests another run. The session that holds the attempt gets the request. If the
    /// frontier has no entry of the attempt, the worker gets it, and the function returns the worker's latch. The
    /// caller holds the frontier's lock.
    pub fn rerun_asked(&mut self, frontier: &mut Frontier<'_>, id: i64) -> Option<*mut pg_sys::Latch> {
        if frontier.running.request_rerun(self.number, id) { None } else { Some(self.miss_rerun(id)) }
    }

    /// Makes the counters unknown after a change that no callback reports. A recount in progress becomes void. The
    /// caller holds the frontier's lock.
    pub fn invalidate_counters(&mut self) {
        let counting = &mut self.counting;
        counting.state = counting::State::Unknown;
        counting.invalidations += 1;
    }

    /// Notes that a transaction that has enqueued was prepared. The caller holds the frontier's lock.
    pub fn enqueued_in_prepared(&mut self) {
        self.counting.has_prepared = true;
    }

    /// Called after COMMIT PREPARED or ROLLBACK PREPARED. If a transaction that has enqueued may have been prepared,
    /// the counters become unknown. The caller holds the frontier's lock.
    pub fn prepared_ended(&mut self) {
        if self.counting.has_prepared {
            self.invalidate_counters();
        }
    }

    /// Stops counting until the next start, because there are more lanes than counters. The caller holds the frontier's
    /// lock.
    pub fn give_up_counting(&mut self) {
        self.invalidate_counters();
        self.counting.is_full = true;
    }
}
