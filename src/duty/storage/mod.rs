//! Keeps the logs small: closes young segments, moves the living out of those that are nearly done with, copies
//! what has ended to history, and empties them. One bounded step per transaction; what to do next is read from
//! shared memory, which the log of segments restores after a start.
//!
//! Invariant: each step is safe to crash after, and holds no lock that anybody would wait for longer than
//! milliseconds. See `docs/internals/segments.md`.

use std::cell::Cell;
use std::rc::Rc;

use crate::duty::Duty;
use crate::instance::{self, Catalog};
use crate::log::table::{Relation, Snapshot};
use crate::segment::{self, OLD, State, Word};
use crate::shmem::Filling;
use crate::{guc, shmem, sys, transaction};
use pg_queue_core::id::SEGMENTS;
use pgrx::pg_sys;

mod copy;
mod empty;
mod move_living;

/// The duty.
pub const DUTY: Duty = Duty { name: "storage", is_due, run };

/// Where somebody is in the way: look again after this many microseconds.
const PAUSE: i64 = 100_000;

/// When the duty has something to do, monotonic time.
pub fn next_at(instance: &shmem::Instance) -> i64 {
    instance.storage_at
}

/// Asks for a look at the segments, not later than this monotonic time. Under the frontier's lock.
pub fn ask(instance: &mut shmem::Instance, at: i64) -> bool {
    let is_earlier = at < instance.storage_at;
    instance.storage_at = instance.storage_at.min(at);
    is_earlier
}

thread_local! {
    /// The settings by which this process has looked last.
    static SETTINGS: Cell<(i32, i32, bool)> = const { Cell::new((0, 0, false)) };
    /// The instance whose segments this process is looking at; 0: none.
    static LOOKING: Cell<u32> = const { Cell::new(0) };
}

fn is_due(number: u32) -> bool {
    // Nobody counts what other settings would have made of the segments.
    let settings = (guc::SEGMENT_ROWS.get(), guc::SEGMENT_AGE.get(), guc::RECLAIM.get());
    if SETTINGS.get() != settings {
        return true;
    }
    let now = sys::monotonic_us();
    shmem::with_instance(number, |_, instance| instance.storage_at <= now).unwrap_or(false)
}

/// A step was rolled back.
pub fn undone() {
    move_living::undone();
}

/// This process ends, by an error that runs no destructors, maybe in the middle of a step: another one looks.
/// Returns the latch of the worker who does. Under the frontier's lock.
pub fn abandon(instances: &mut [shmem::Instance]) -> Option<*mut pg_sys::Latch> {
    let number = LOOKING.take();
    let instance = instances.iter_mut().find(|i| number != 0 && i.number == number)?;
    instance.storage_at = i64::MIN;
    Some(instance.worker_latch)
}

/// What a step came to.
enum Step {
    /// Something was done; there may be more.
    Did(i64),
    /// Somebody is in the way: again after so many microseconds.
    Later(i64),
}

/// The segments, as they were when the step began.
struct Picture {
    words: [Word; SEGMENTS],
    fillings: [Filling; SEGMENTS],
    young: u8,
    old: u8,
}

impl Picture {
    fn state(&self, segment: u8) -> State {
        self.words[segment as usize].state()
    }

    fn filling(&self, segment: u8) -> &Filling {
        &self.fillings[segment as usize]
    }

    fn living(&self, segment: u8) -> i64 {
        self.filling(segment).living()
    }

    fn with(&self, state: State) -> impl Iterator<Item = u8> {
        (0..SEGMENTS as u8).filter(move |&n| self.state(n) == state)
    }
}

fn run(number: u32) -> i64 {
    transaction::register();
    let Some(catalog) = instance::of_duty(number) else { return 0 };
    // Two steps in one transaction would rely on what is not committed.
    if sys::in_transaction_block() || sys::has_xid() {
        return 0;
    }
    let watch = Watch::begin(number);
    // The mutex of all who do this duty, which nobody else wants but autovacuum.
    if !sys::try_lock(catalog.segment_log, pg_sys::ShareUpdateExclusiveLock) {
        watch.end(PAUSE);
        return 0;
    }
    if count_one(&catalog) {
        watch.end(0);
        return 1;
    }
    let Some(picture) = look(&catalog) else { return 0 };
    match step(&catalog, &picture) {
        // The commit of the step changes the picture.
        Ok(Step::Did(count)) => {
            watch.end(0);
            count
        }
        Ok(Step::Later(pause)) => {
            watch.end(pause);
            0
        }
        Err(error) => error.report(),
    }
}

/// From here on whoever asks for a look is heard. Should an error end this run, there is another soon.
struct Watch(u32);

impl Watch {
    fn begin(number: u32) -> Self {
        SETTINGS.set((guc::SEGMENT_ROWS.get(), guc::SEGMENT_AGE.get(), guc::RECLAIM.get()));
        LOOKING.set(number);
        shmem::with_instance(number, |_, instance| instance.storage_at = i64::MAX);
        Self(number)
    }

    fn end(self, pause: i64) {
        again(self.0, pause);
        std::mem::forget(self);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        again(self.0, PAUSE);
    }
}

fn again(number: u32, pause: i64) {
    LOOKING.set(0);
    if pause < i64::MAX {
        let at = sys::monotonic_us().saturating_add(pause);
        let worker = shmem::with_instance(number, |_, instance| {
            ask(instance, at);
            // The worker itself plans its sleep anew.
            if instance.worker_pid == sys::pid() { None } else { transaction::plan(instance, at) }
        });
        if let Some(latch) = worker.flatten() {
            shmem::wake_latch(latch);
        }
    }
}

/// The picture of the segments.
fn look(catalog: &Catalog) -> Option<Picture> {
    shmem::with_instance(catalog.number, |_, instance| Picture {
        words: std::array::from_fn(|n| Word::of(instance.words[n])),
        fillings: instance.segments,
        young: instance.open as u8,
        old: (instance.open >> 8) as u8,
    })
}

/// After a start nobody knows how many rows the segments have: counts those of one. False: all is known.
fn count_one(catalog: &Catalog) -> bool {
    let unknown = shmem::with_instance(catalog.number, |_, instance| {
        (0..SEGMENTS as u8).find(|&n| {
            let filling = &instance.segments[n as usize];
            !filling.is_counted && Word::of(instance.words[n as usize]).state().is_inhabited()
        })
    });
    let Some(segment) = unknown.flatten() else { return false };
    let oids = &catalog.segments[segment as usize];
    let table = Relation::read(oids.attempt);
    let attempts = table.line_pointers();
    let mut ended = Relation::read(oids.outcome).line_pointers();
    // What was rolled back is not to be waited for. Among many, and after a start, it does not matter.
    const FEW_ENOUGH: i64 = 200_000;
    if attempts <= FEW_ENOUGH {
        let index = Relation::read_index(oids.attempt_pkey);
        let mut scan = table.scan(&index, &[], Snapshot::Now);
        ended += attempts - std::iter::from_fn(|| scan.next()).count() as i64;
    }
    shmem::with_instance(catalog.number, |_, instance| {
        let filling = &mut instance.segments[segment as usize];
        (filling.attempts, filling.ended, filling.is_counted) = (attempts, ended, true);
    });
    true
}

/// The most urgent thing to do.
fn step(catalog: &Rc<Catalog>, picture: &Picture) -> crate::error::Result<Step> {
    let now = sys::now_us();
    let mut later = i64::MAX;
    if let Some(step) = rotate(catalog, picture, now, &mut later) {
        return Ok(step);
    }
    if !guc::RECLAIM.get() {
        return Ok(Step::Later(later));
    }
    let mut consider = |step: Step| match step {
        Step::Did(count) => Some(Step::Did(count)),
        Step::Later(pause) => {
            later = later.min(pause);
            None
        }
    };
    for segment in picture.with(State::Emptying).chain(picture.with(State::Copied)) {
        if let Some(done) = consider(empty::step(catalog, segment, picture, now)?) {
            return Ok(done);
        }
    }
    for segment in picture.with(State::Drained) {
        if let Some(done) = consider(copy::step(catalog, segment, picture)?) {
            return Ok(done);
        }
    }
    for segment in picture.with(State::Moving) {
        if let Some(done) = consider(move_living::step(catalog, segment, picture)?) {
            return Ok(done);
        }
    }
    if let Some(done) = choose(catalog, picture, now, &mut later) {
        return Ok(done);
    }
    Ok(Step::Later(later))
}

/// Closes the open young segment when it is large or old enough, and the open half of old when half of it has
/// ended.
fn rotate(catalog: &Catalog, picture: &Picture, now: i64, later: &mut i64) -> Option<Step> {
    let young = picture.filling(picture.young);
    let age_limit = i64::from(guc::SEGMENT_AGE.get()) * 1_000_000;
    if young.attempts > 0 {
        let is_full = young.attempts >= i64::from(guc::SEGMENT_ROWS.get());
        let left = young.opened_at.saturating_add(age_limit) - now;
        if !is_full && left > 0 {
            *later = (*later).min(left);
        } else if let Some(next) = (0..OLD).find(|&n| picture.state(n) == State::Free) {
            open_next(catalog, picture, picture.young, next);
            return Some(Step::Did(1));
        }
    }
    let (old, other) = (picture.old, if picture.old == OLD { OLD + 1 } else { OLD });
    let filling = picture.filling(old);
    if picture.state(other) == State::Free && filling.ended > 0 {
        let is_worth_it =
            filling.ended >= i64::from(guc::SEGMENT_ROWS.get()) / 4 && filling.ended * 2 >= filling.attempts;
        let turns = age_limit * i64::from(OLD);
        let left = filling.opened_at.saturating_add(patience(filling, turns)) - now;
        if is_worth_it || left <= 0 {
            open_next(catalog, picture, old, other);
            return Some(Step::Did(1));
        }
        // When more have ended it is sooner.
        *later = (*later).min(left).min(turns);
    }
    None
}

/// For how long, in microseconds, the few that have ended in a half of old wait to be taken to history: a few turns of
/// the ring by age, and as many times that as living ones would have to be moved for each, but no longer than a day. So
/// jobs that wait for next year are not moved to and fro all the time because now and then one of them is cancelled.
fn patience(filling: &Filling, turns: i64) -> i64 {
    const DAY: i64 = 86_400_000_000;
    let moved_for_each = filling.living() / filling.ended.max(1);
    turns.saturating_mul(moved_for_each.max(1)).min(turns.max(DAY))
}

fn open_next(catalog: &Catalog, picture: &Picture, closing: u8, opening: u8) {
    let now = sys::now_us();
    let generation = shmem::with_instance(catalog.number, |_, instance| {
        if opening < OLD {
            // Two turns of the ring at the present speed.
            let age_limit = i64::from(guc::SEGMENT_AGE.get()) * 1_000_000;
            let fill = now - picture.filling(closing).opened_at;
            instance.far = (fill * 2 * i64::from(OLD)).clamp(60_000_000, age_limit.max(60_000_000) * i64::from(OLD));
        }
        instance.last_generation += 1;
        instance.last_generation
    });
    let Some(generation) = generation else { return };
    segment::record(catalog, closing, picture.words[closing as usize].generation(), State::Closed, None);
    segment::record(catalog, opening, generation, State::Open, None);
}

/// Begins to reclaim a closed segment: one that is nearly done with, a half of old, or, when none is free, the
/// one with the fewest living. Those that are moved out of already wait for somebody, or would have had their turn.
fn choose(catalog: &Catalog, picture: &Picture, now: i64, later: &mut i64) -> Option<Step> {
    let mut is_blocked = false;
    // Who holds a lock may still insert into it.
    let mut is_free = |n: &u8| {
        let is_free = sys::lock_holders(catalog.segments[*n as usize].attempt, pg_sys::ShareLock) == 0;
        is_blocked |= !is_free;
        is_free
    };
    let closed = |n: &u8| picture.state(*n) == State::Closed;
    let mut young: Vec<u8> = (0..OLD).filter(closed).collect();
    young.sort_by_key(|&n| picture.living(n));
    let nearly_done = |n: &u8| picture.filling(*n).is_nearly_done();
    let mut chosen = young.iter().copied().filter(nearly_done).find(&mut is_free);
    if chosen.is_none() {
        chosen = [OLD, OLD + 1].into_iter().filter(closed).find(&mut is_free);
    }
    // What will be free soon spares the others, but not what somebody holds.
    let is_soon_free = |n: u8| match picture.state(n) {
        State::Free | State::Drained => true,
        State::Copied | State::Emptying => !empty::is_held(catalog, n),
        State::Open | State::Closed | State::Moving => false,
    };
    if chosen.is_none() && !(0..OLD).any(is_soon_free) {
        let open = picture.filling(picture.young);
        let rows = i64::from(guc::SEGMENT_ROWS.get());
        let age_limit = i64::from(guc::SEGMENT_AGE.get()) * 1_000_000;
        // Where most live there is little to be won by moving them, until the open one has grown too large.
        let is_half_empty = |n: &u8| picture.living(*n) * 2 <= picture.filling(*n).attempts;
        let is_late = open.attempts >= rows * 2 || now - open.opened_at >= age_limit * 2;
        chosen = young.iter().copied().filter(|n| is_late || is_half_empty(n)).find(&mut is_free);
    }
    let Some(chosen) = chosen else {
        if is_blocked {
            *later = (*later).min(PAUSE);
        }
        return None;
    };
    segment::record(catalog, chosen, picture.words[chosen as usize].generation(), State::Moving, None);
    Some(Step::Did(1))
}
