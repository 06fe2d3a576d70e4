//! Keeps the logs small: closes young segments, moves the living attempts out of those with few living ones, copies
//! ended attempts to history, and empties the segments. It does one bounded step per transaction. The next step follows
//! from shared memory, which the log of segments restores after a start. This file chooses the step.
//!
//! Not responsible for the steps themselves (`move_living`, `copy`, `empty`), nor for the states of a segment
//! (`shmem::segments`).
//!
//! Invariant: a crash after any step does no harm, and no session waits longer than milliseconds for a lock that a step
//! holds. A step waits for no lock on a table that it has read: it takes the lock of a writer before it reads, or gives
//! up. See `docs/internals/segments.md`.

use std::cell::Cell;

use pg_queue_core::awaited::Awaited;
use pg_queue_core::id::SEGMENTS;
use pgrx::pg_sys;

use crate::catalog;
use crate::duty::care::Care;
use crate::duty::storage::states::{BLOCKED_PAUSE_US, SegmentStates, StepResult};
use crate::duty::{Duty, Work};
use crate::error::Result;
use crate::log::segment;
use crate::pg::fault::fault;
use crate::pg::scan::Snapshot;
use crate::pg::table::Relation;
use crate::pg::{self, lock, session, time};
use crate::shmem::here;
use crate::shmem::segments::{Filling, OLD, State};
use crate::transaction::{self, hooks};
use crate::{guc, shmem};

pub mod copy;
pub mod empty;
pub mod move_batch;
pub mod move_living;
pub mod move_marks;
pub mod states;

/// The duty.
pub const DUTY: Duty = Duty {
    name: "storage",
    is_due: Some(is_due),
    next_at: |memory| memory.instance.storage.look_at,
    work: Work::Items(run),
};

thread_local! {
    /// The settings at the last look of this process.
    static SETTINGS: Cell<(i32, i32, bool)> = const { Cell::new((0, 0, false)) };
    /// The instance whose segments this process is looking at. 0: none.
    static LOOKING: Cell<u32> = const { Cell::new(0) };
}

fn is_due() -> bool {
    // The settings of the last look decided the time of the next one. Other settings need a new look.
    let settings = (guc::SEGMENT_ROWS.get(), guc::SEGMENT_AGE.get(), guc::RECLAIM.get());
    if SETTINGS.get() != settings {
        return true;
    }
    let now = time::monotonic_us();
    shmem::with_instance(|_, instance| instance.storage.look_at <= now).unwrap_or(false)
}

/// Makes another process look. Called if this process ends by an error that runs no destructors, maybe in the middle of
/// a step. Returns the latch of the worker that looks. The caller holds the frontier's lock.
fn abandon(instances: &mut [shmem::Instance], _: &mut [Awaited]) -> Option<*mut pg_sys::Latch> {
    let number = LOOKING.take();
    let instance = instances.iter_mut().find(|i| number != 0 && i.number == number)?;
    instance.storage.look_at = i64::MIN;
    Some(instance.worker.latch)
}

fn run(care: &Care) -> Result<i64> {
    transaction::register();
    // A second step in the same transaction would rely on a step that is not committed.
    if pg::transaction::in_transaction_block() || pg::transaction::has_xid() {
        return Ok(0);
    }
    let watch = Watch::begin();
    // This lock excludes all other processes that do this duty. Otherwise only autovacuum takes it.
    if !lock::try_lock(catalog::pinned().segment_log, pg_sys::ShareUpdateExclusiveLock) {
        watch.end(BLOCKED_PAUSE_US);
        return Ok(0);
    }
    let Some(states) = read_states() else { return Ok(0) };
    let began = time::monotonic_us();
    Ok(match step(&states, care)? {
        // The commit of the step changes the states of the segments.
        StepResult::Did(count) => {
            watch.end(0);
            count
        }
        StepResult::DidPart(count) => {
            let elapsed = time::monotonic_us() - began;
            watch.end((pace(&states, count, time::now_us()) - elapsed).max(0));
            count
        }
        StepResult::Later(pause) => {
            watch.end(pause);
            0
        }
    })
}

/// Makes later requests for a look count. If an error ends this run, the next one is after `BLOCKED_PAUSE_US`.
struct Watch(());

impl Watch {
    fn begin() -> Self {
        SETTINGS.set((guc::SEGMENT_ROWS.get(), guc::SEGMENT_AGE.get(), guc::RECLAIM.get()));
        hooks::at_exit(abandon);
        LOOKING.set(here::number());
        shmem::with_instance(|_, instance| instance.storage.look_at = i64::MAX);
        Self(())
    }

    fn end(self, pause: i64) {
        again(pause);
        std::mem::forget(self);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        again(BLOCKED_PAUSE_US);
    }
}

fn again(pause: i64) {
    LOOKING.set(0);
    if pause < i64::MAX {
        let at = time::monotonic_us().saturating_add(pause);
        let worker = shmem::with_instance(|_, instance| {
            instance.storage.look_by(at);
            // The worker itself computes its sleep again.
            if instance.worker.pid == session::pid() { None } else { instance.worker.wake_by(at) }
        });
        if let Some(latch) = worker.flatten() {
            shmem::wake_latch(latch);
        }
    }
}

/// Returns the states of the segments.
fn read_states() -> Option<SegmentStates> {
    shmem::with_instance(|_, instance| SegmentStates {
        words: std::array::from_fn(|n| instance.storage.word(n as u8)),
        fillings: instance.storage.fillings,
        young: instance.storage.young(),
        old: instance.storage.old(),
    })
}

/// Counts the rows of one segment that memory does not know, as after a start. False: memory knows all segments.
///
/// Sessions continue meanwhile. Their changes since the count began are added to it, so that nothing is missing from
/// the sum. A transaction that commits in the middle may be counted twice, and then a segment of few jobs seems to have
/// one that lives. So the count is repeated a few times if one has.
fn count_one() -> bool {
    const MAX_COUNTS: usize = 3;
    let unknown = shmem::with_instance(|_, instance| {
        let storage = &mut instance.storage;
        let is_inhabited = |n: usize| storage.word(n as u8).state().is_inhabited();
        (0..SEGMENTS).find(|&n| !storage.fillings[n].is_counted && is_inhabited(n))
    });
    let Some(segment) = unknown.flatten() else { return false };
    for left in (0..MAX_COUNTS).rev() {
        shmem::with_instance(|_, instance| {
            let filling = &mut instance.storage.fillings[segment];
            (filling.attempts, filling.ended) = (0, 0);
        });
        fault!("segment.counting");
        let (attempts, ended) = count_rows(segment);
        fault!("segment.counted");
        let is_counted = shmem::with_instance(|_, instance| {
            let filling = &mut instance.storage.fillings[segment];
            filling.is_counted = left == 0 || (filling.attempts, filling.ended) == (0, 0);
            filling.attempts += attempts;
            filling.ended += ended;
            filling.is_counted
        });
        if is_counted.unwrap_or(true) {
            break;
        }
    }
    true
}

/// Returns how many attempts a segment has, and how many of them have ended, both with notes.
fn count_rows(segment: usize) -> (i64, i64) {
    const MAX_ATTEMPTS: i64 = 200_000;
    let catalog = catalog::pinned();
    let oids = &catalog.segments[segment];
    let table = Relation::read(oids.attempt);
    let mut attempts = table.line_pointers();
    let mut ended = Relation::read(oids.outcome).line_pointers();
    let notes = Relation::read(oids.note).line_pointers();
    // In a larger segment, and only after a start, attempts of open and aborted transactions do not matter.
    if attempts <= MAX_ATTEMPTS {
        let index = Relation::read_index(oids.attempt_pkey);
        let visible = |snapshot| {
            let mut scan = table.scan(&index, &[], snapshot);
            std::iter::from_fn(|| scan.next()).count() as i64
        };
        // Aborted attempts never end, and so count as ended. Attempts of open transactions are counted when these end.
        let aborted = (attempts - visible(Snapshot::Dirty)).max(0);
        attempts = visible(Snapshot::Now) + aborted;
        ended += aborted;
    }
    (attempts + notes, ended + notes)
}

/// Does the most urgent step. Returns `Later` with the shortest pause, in microseconds, if no step is possible now.
fn step(states: &SegmentStates, care: &Care) -> Result<StepResult> {
    let now = time::now_us();
    let mut later = i64::MAX;
    let consider = |step: StepResult, later: &mut i64| match step {
        StepResult::Did(_) | StepResult::DidPart(_) => Some(step),
        StepResult::Later(pause) => {
            *later = (*later).min(pause);
            None
        }
    };
    // Emptying that has begun is finished whatever the settings are: a crash may have interrupted it.
    for segment in states.with(State::Emptying) {
        if let Some(done) = consider(empty::step(segment, states, now)?, &mut later) {
            return Ok(done);
        }
    }
    if count_one() {
        return Ok(StepResult::Did(1));
    }
    if let Some(step) = rotate(states, now, &mut later) {
        return Ok(step);
    }
    if !guc::RECLAIM.get() {
        return Ok(StepResult::Later(later));
    }
    let mut consider = |step: StepResult| consider(step, &mut later);
    for segment in states.with(State::Copied) {
        if let Some(done) = consider(empty::step(segment, states, now)?) {
            return Ok(done);
        }
    }
    for segment in states.with(State::Drained) {
        if let Some(done) = consider(copy::step(segment, states, care)?) {
            return Ok(done);
        }
    }
    for segment in states.with(State::Moving) {
        if let Some(done) = consider(move_living::step(segment, states, care)?) {
            return Ok(done);
        }
    }
    if let Some(done) = choose(states, now, &mut later) {
        return Ok(done);
    }
    Ok(StepResult::Later(later))
}

/// Returns how long a step that has looked at `count` attempts should have taken, in microseconds: so long that a
/// segment is reclaimed in three quarters of the time in which the open one is being filled. So the sessions are slowed
/// down evenly, and not for a while after each turn. 0 if few segments are free. `now` is wall time.
fn pace(states: &SegmentStates, count: i64, now: i64) -> i64 {
    const MAX_US: i64 = 50_000;
    /// Each attempt is looked at twice: to move it, and to copy it.
    const LOOKS: i64 = 2;
    if states.with(State::Free).filter(|&n| n < OLD).count() <= 2 {
        return 0;
    }
    let open = states.filling(states.young);
    let age = (now - open.opened_at).max(0);
    (age.saturating_mul(count) / open.attempts.max(1) / LOOKS * 3 / 4).min(MAX_US)
}

/// Closes the open young segment if it is large or old enough. Closes the open half of old if half of it has ended, or
/// its ended attempts have waited long enough (`patience`).
fn rotate(states: &SegmentStates, now: i64, later: &mut i64) -> Option<StepResult> {
    let young = states.filling(states.young);
    let age_limit = i64::from(guc::SEGMENT_AGE.get()) * 1_000_000;
    if young.attempts > 0 {
        let is_full = young.attempts >= i64::from(guc::SEGMENT_ROWS.get());
        let left = young.opened_at.saturating_add(age_limit) - now;
        if !is_full && left > 0 {
            *later = (*later).min(left);
        } else if let Some(next) = (0..OLD).find(|&n| states.state(n) == State::Free) {
            open_next(states, states.young, next);
            return Some(StepResult::Did(1));
        }
    }
    let (old, other) = (states.old, if states.old == OLD { OLD + 1 } else { OLD });
    let filling = states.filling(old);
    if states.state(other) == State::Free && filling.ended > 0 {
        let is_worth_it =
            filling.ended >= i64::from(guc::SEGMENT_ROWS.get()) / 4 && filling.ended * 2 >= filling.attempts;
        let turns = age_limit * i64::from(OLD);
        let left = filling.opened_at.saturating_add(patience(filling, turns)) - now;
        if is_worth_it || left <= 0 {
            open_next(states, old, other);
            return Some(StepResult::Did(1));
        }
        // If more attempts end meanwhile, the time comes sooner. So the next look is after one turn at the latest.
        *later = (*later).min(left).min(turns);
    }
    None
}

/// Returns how long the few ended attempts in a half of old wait before they go to history, in microseconds. It is
/// `turns` (the ring's age limit times its segments) for each living attempt that must be moved for an ended one. The
/// maximum is a day, or `turns` if that is longer. So jobs scheduled for next year are not moved all the time because
/// now and then one of them is cancelled.
fn patience(filling: &Filling, turns: i64) -> i64 {
    const DAY_US: i64 = 86_400_000_000;
    let moved_for_each = filling.living() / filling.ended.max(1);
    turns.saturating_mul(moved_for_each.max(1)).min(turns.max(DAY_US))
}

fn open_next(states: &SegmentStates, closing: u8, opening: u8) {
    let now = time::now_us();
    let generation = shmem::with_instance(|_, instance| {
        if opening < OLD {
            // The duration of two turns of the ring at the present speed.
            let age_limit = i64::from(guc::SEGMENT_AGE.get()) * 1_000_000;
            let fill = now - states.filling(closing).opened_at;
            instance.storage.far =
                (fill * 2 * i64::from(OLD)).clamp(60_000_000, age_limit.max(60_000_000) * i64::from(OLD));
        }
        instance.storage.last_generation += 1;
        instance.storage.last_generation
    });
    let Some(generation) = generation else { return };
    segment::record(closing, states.words[closing as usize].generation(), State::Closed, None);
    segment::record(opening, generation, State::Open, None);
}

/// Begins to reclaim a closed segment: one with few living attempts, a half of old, or, if no segment is free, the one
/// with the fewest living attempts. `step` serves segments in state `Moving` before. If there is one now, it waits for
/// a session.
fn choose(states: &SegmentStates, now: i64, later: &mut i64) -> Option<StepResult> {
    let mut is_blocked = false;
    let catalog = catalog::pinned();
    // A session that holds a lock may still insert into the segment.
    let mut is_free = |n: &u8| {
        let is_free = lock::lock_holders(catalog.segments[*n as usize].attempt, pg_sys::ShareLock) == 0;
        is_blocked |= !is_free;
        is_free
    };
    let closed = |n: &u8| states.state(*n) == State::Closed;
    let mut young: Vec<u8> = (0..OLD).filter(closed).collect();
    young.sort_by_key(|&n| states.living(n));
    let nearly_done = |n: &u8| states.filling(*n).is_nearly_done();
    let mut chosen = young.iter().copied().filter(nearly_done).find(&mut is_free);
    if chosen.is_none() {
        chosen = [OLD, OLD + 1].into_iter().filter(closed).find(&mut is_free);
    }
    // If a segment will be free soon, no other needs to be moved. A segment that a session holds does not count as
    // such.
    let is_soon_free = |n: u8| match states.state(n) {
        State::Free | State::Drained => true,
        State::Copied | State::Emptying => !empty::is_held(n),
        State::Open | State::Closed | State::Moving => false,
    };
    if chosen.is_none() && !(0..OLD).any(is_soon_free) {
        let open = states.filling(states.young);
        let rows = i64::from(guc::SEGMENT_ROWS.get());
        let age_limit = i64::from(guc::SEGMENT_AGE.get()) * 1_000_000;
        // If most attempts of a segment live, moving them gains little. It is done when the open segment is too large.
        let is_half_empty = |n: &u8| states.living(*n) * 2 <= states.filling(*n).attempts;
        let is_late = open.attempts >= rows * 2 || now - open.opened_at >= age_limit * 2;
        chosen = young.iter().copied().filter(|n| is_late || is_half_empty(n)).find(&mut is_free);
    }
    let Some(chosen) = chosen else {
        if is_blocked {
            *later = (*later).min(BLOCKED_PAUSE_US);
        }
        return None;
    };
    segment::record(chosen, states.words[chosen as usize].generation(), State::Moving, None);
    Some(StepResult::Did(1))
}
