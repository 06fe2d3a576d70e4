//! `Instance`: the extension in one database, and every change of it that needs nothing but memory.
//!
//! Responsible for an instance's data. Not responsible for making and freeing one (`catalog::instance`), for when a
//! change happens (`transaction::settle`, the duties), nor for reading words without the lock (`words`).
//!
//! Invariant: an instance is changed under the frontier's lock only; words that are read without it are written by
//! `set_word`.

use std::sync::atomic::{AtomicU64, Ordering};

use pg_queue_core::due;
use pg_queue_core::frontier::Frontier;
use pg_queue_core::id::SEGMENTS;
use pgrx::pg_sys;

use crate::guc;
use crate::pg::time;
use crate::shmem::counting::{self, CounterState};
use crate::shmem::drops::{self, Dropping};
use crate::shmem::restore::RestoreState;
use crate::shmem::segments::{self, Filling, OLD, Word};
use crate::shmem::topics::Topics;
use crate::shmem::troubles::Troubles;
use pg_queue_core::missed::MissedRequests;

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
    /// The next id to hand out. Ids up to `id_limit` were taken from the sequence; those from `id_next` on were not
    /// handed out yet.
    pub id_next: i64,
    /// The last id that was taken from the sequence. See `id_next`.
    pub id_limit: i64,
    /// The wall time up to which attempts that fell due were pushed to the frontier, or lie behind their lane's
    /// position.
    pub due_to: i64,
    /// No attempt is known to fall due after `due_to` and before this wall time.
    pub next_due: i64,
    /// Whether its counters can be relied on. Only methods of `Instance` and `recount` change it.
    pub counting: CounterState,
    /// Whether it may be used, or is being restored. Only `awake`, `restore` and `transaction` change it.
    pub restore: RestoreState,
    /// The state of its schedules.
    pub schedules: Schedules,
    /// The worker's latch; null if there is no worker.
    pub worker_latch: *mut pg_sys::Latch,
    /// The worker's process id; 0 if there is no worker.
    pub worker_pid: i32,
    /// The monotonic time at which the worker wakes by itself.
    pub wakes_at: i64,
    /// The status that the worker reports of itself.
    pub worker_status: WorkerStatus,
    /// The monotonic time at which the claims of before the start, or of before the promotion, had been read into
    /// memory, by the worker or by a session in its place: memory knows of every claim from then on. 0: they are still
    /// to be read.
    pub recovered_at: i64,
    /// The number of changes of queues since the start. A change is counted once every session was told.
    pub changes: u64,
    /// The number of transactions that have changed rights and something else, counted before their commits, and those
    /// of which all sessions were told. They are read and written as `words` are. See `catalog::permission`.
    pub rights_begun: u64,
    /// See `rights_begun`.
    pub rights_told: u64,
    /// The number of drops of queues that were begun since the start. It is read and written as `words` are.
    pub drops: u64,
    /// The lanes of the last drops. See `catalog::drops`.
    pub dropping: [Dropping; drops::MARKS],
    /// Lanes whose queues ask for NOTIFY and which got jobs; 0 is a free place.
    pub notify: [i32; 32],
    /// Generation and state of each segment (`segments::Word`), as a word that is read without the lock and written
    /// under it by `set_word`. See `log::segment`.
    pub words: [u64; SEGMENTS],
    /// The open young segment and, in the next byte, the open half of old. It is read and written as `words` are.
    pub open: u64,
    /// The other facts about each segment.
    pub segments: [Filling; SEGMENTS],
    /// The number of the last row of queue.segment_log.
    pub last_entry: i64,
    /// The largest generation.
    pub last_generation: i64,
    /// The time in microseconds: an attempt that is due later than this from now goes to old at once.
    pub far: i64,
    /// The monotonic time at which the storage duty must look again.
    pub storage_at: i64,
    /// Attempts after whose end another run of the job was requested.
    pub reruns: MissedRequests,
    /// Attempts after whose end a cancellation was requested.
    pub cancels: MissedRequests,
    /// The half of the keys' tables that is written to: 0 or 1. It is read and written as `words` are. See `log::key`.
    pub key_half: u64,
    /// The number of blocks above which the open half of the keys' tables gives way to the other one.
    pub key_limit: u32,
    /// Whether one half is being copied from and emptied.
    pub memory_is_turning: bool,
    /// Counts turns to the other half, and the other events that make void what a process has copied: ends of foreign
    /// writers.
    pub key_turns: u64,
    /// The monotonic time at which a session had seen that all of the closed half is copied; 0: none has in this turn.
    pub keys_copied_at: i64,
    /// The file numbers of each segment's attempts and of its index of groups; 0 if not known. Only `log::parked`
    /// changes them.
    pub parked_files: [[u32; 2]; SEGMENTS],
    /// What was published on topics.
    pub topics: Topics,
    /// What objects of users were kept from doing to others.
    pub troubles: Troubles,
}

impl Instance {
    /// Whether memory knows of every claim without an outcome.
    pub fn is_recovered(&self) -> bool {
        self.recovered_at != 0
    }

    /// Removes the mark of a committed drop from a lane: a stage that was removed belongs to its queue again. The
    /// caller holds the frontier's lock.
    pub fn forget_drop_mark(&mut self, lane: i32) {
        self.dropping.iter_mut().filter(|d| d.lane == lane).for_each(Dropping::forget_dropped);
    }

    /// Ends the mark of a lane, as the transaction that drops it has ended. If it was committed, the mark stays for a
    /// while; otherwise it goes. The caller holds the frontier's lock.
    pub fn end_drop_mark(&mut self, lane: i32, committed: bool) {
        if let Some(mark) = self.dropping.iter_mut().find(|d| d.lane == lane && d.is_open()) {
            mark.end(committed);
        }
    }

    /// Whether an attempt for this wall time is due, for a transaction that has added it and was committed. If the
    /// clock was set back, the cursor `due_to` was not moved since, and is moved here. The caller holds the frontier's
    /// lock.
    pub fn is_passed(&mut self, run_at: i64) -> bool {
        if run_at > self.due_to {
            return false;
        }
        let due_to = due::cursor(self.due_to, time::now_us());
        if due_to < self.due_to {
            (self.due_to, self.next_due) = (due_to, i64::MIN);
        }
        run_at <= due_to
    }

    /// Makes void what is known of copies out of the closed half of the keys' tables. The caller holds the frontier's
    /// lock.
    pub fn begin_key_turn(&mut self) {
        self.key_turns += 1;
        self.keys_copied_at = 0;
    }

    /// Asks the storage duty for a look at the segments, not later than this monotonic time. Returns whether that is
    /// earlier than before. The caller holds the frontier's lock.
    pub fn look_at_storage_by(&mut self, at: i64) -> bool {
        let is_earlier = at < self.storage_at;
        self.storage_at = self.storage_at.min(at);
        is_earlier
    }

    /// Asks the background worker to look for another run after this attempt. Returns the worker's latch, to be set
    /// after the lock was released; null if there is no worker. The caller holds the frontier's lock.
    pub fn miss_rerun(&mut self, id: i64) -> *mut pg_sys::Latch {
        self.reruns.add(id);
        self.worker_latch
    }

    /// Asks the background worker to cancel the attempts that follow this one. Otherwise it is as `miss_rerun`.
    pub fn miss_cancel(&mut self, id: i64) -> *mut pg_sys::Latch {
        self.cancels.add(id);
        self.worker_latch
    }

    /// Asks that all notes be looked through for missed requests. The caller holds the frontier's lock.
    pub fn scan_missed(&mut self) {
        self.reruns.scan();
        self.cancels.scan();
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

    /// Makes a segment the open one: of the young ones, or of the two halves of old. The caller holds the frontier's
    /// lock.
    pub fn set_open_segment(&mut self, segment: u8) {
        let (young, old) = (self.open as u8, (self.open >> 8) as u8);
        let (young, old) = if segment < OLD { (segment, old) } else { (young, segment) };
        set_word(&mut self.open, u64::from(young) | (u64::from(old) << 8));
    }

    /// Changes the state of a segment, as the transaction that has recorded the change was committed
    /// (`SegmentStep::Changed`). `now` is a `timestamptz`. The caller holds the frontier's lock.
    pub fn segment_changed(&mut self, segment: u8, generation: i64, state: segments::State, copied_to: i64, now: i64) {
        let n = segment as usize;
        let before = Word(self.words[n]).state();
        let filling = &mut self.segments[n];
        match state {
            segments::State::Open => *filling = Filling { opened_at: now, is_counted: true, ..Filling::default() },
            segments::State::Free => *filling = Filling { is_counted: true, ..Filling::default() },
            _ => filling.copied_to = copied_to,
        }
        if before != state {
            self.segments[n].since = now;
        }
        set_word(&mut self.words[n], Word::new(generation, state).0);
        if state == segments::State::Open {
            self.set_open_segment(segment);
        }
    }

    /// Counts rows of a segment: `attempts` were added, and `ended` have ended or moved. Returns the monotonic time at
    /// which the storage duty should look at the segment at the latest. `None` if it need not. The caller holds the
    /// frontier's lock.
    pub fn count_rows(&mut self, segment: u8, attempts: i64, ended: i64) -> Option<i64> {
        let state = Word(self.words[segment as usize]).state();
        let filling = &mut self.segments[segment as usize];
        let before = *filling;
        filling.attempts += attempts;
        filling.ended += ended;
        let crosses = |limit: i64, before: i64, now: i64| before < limit && now >= limit;
        let rows = i64::from(guc::SEGMENT_ROWS.get());
        let is_full =
            crosses(rows, before.attempts, filling.attempts) || crosses(rows * 2, before.attempts, filling.attempts);
        match state {
            segments::State::Open if is_full => Some(time::monotonic_us()),
            segments::State::Open if before.attempts == 0 && attempts > 0 => {
                filling.opened_at = time::now_us();
                Some(time::monotonic_us().saturating_add(i64::from(guc::SEGMENT_AGE.get()) * 1_000_000))
            }
            // The open half of old is looked at when a quarter of a segment's rows has ended in it, and when its first
            // attempt has ended.
            segments::State::Open
                if segment >= OLD && (before.ended == 0 || crosses(rows / 4, before.ended, filling.ended)) =>
            {
                (ended > 0).then(time::monotonic_us)
            }
            segments::State::Closed if !before.is_nearly_done() && filling.is_nearly_done() => {
                Some(time::monotonic_us())
            }
            _ => None,
        }
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

    /// Has the worker wake at this monotonic time at the latest. Returns its latch if it would have slept longer. The
    /// caller holds the frontier's lock.
    pub fn wake_worker_by(&mut self, at: i64) -> Option<*mut pg_sys::Latch> {
        if at < self.wakes_at {
            self.wakes_at = at;
            return Some(self.worker_latch);
        }
        None
    }
}

/// The status that a worker reports of itself, for the doctor. Only `worker::database` changes it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct WorkerStatus {
    /// The monotonic time at which the worker was last between two duties.
    pub at: i64,
    /// Whether the worker was told to do no duties (`pg_queue.worker`).
    pub is_off: bool,
    /// The duties that have failed and pause, as one bit each in the order of `duty::all::ALL`.
    pub failing: u32,
}

/// The state of an instance's schedules and of their log. Only `duty::fire_schedules`, `duty::rotate_firings`,
/// `transaction` and `awake` change it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Schedules {
    /// The wall time of the next slot; `i64::MIN` while it is not known.
    pub next_slot: i64,
    /// Counts the events that make void what a process knows of schedules.
    pub changes: u64,
    /// The id of the process that has fired last.
    pub firer: i32,
    /// The monotonic time since when the other half of the log of firings is known to wait to be emptied; 0: none is
    /// known to.
    pub left_at: i64,
}

impl Schedules {
    /// The state at the start: nothing is known.
    pub const NOTHING: Self = Self { next_slot: i64::MIN, changes: 0, firer: 0, left_at: 0 };

    /// Asks that all schedules be read again. The caller holds the frontier's lock.
    pub fn invalidate(&mut self) {
        self.changes += 1;
        self.next_slot = i64::MIN;
    }
}

/// Writes a word that other sessions read without the lock. The caller holds the frontier's lock.
pub fn set_word(word: &mut u64, value: u64) {
    // SAFETY: an aligned word; the reference is exclusive among the sessions that hold the lock, and readers without
    // the lock use atomics.
    unsafe { AtomicU64::from_ptr(word) }.store(value, Ordering::SeqCst);
}
