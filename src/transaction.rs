//! What the open transaction will do to the frontier when it commits, and undo when it aborts.
//!
//! Postgres makes a commit visible, then runs the callback here, then releases locks; on abort the rows
//! are dead before the callback runs. So whatever the frontier learns here, the logs already say.
//!
//! Invariant: the callbacks cannot fail: they take the frontier's lock, walk a list, set latches. They
//! allocate nothing and run no SQL. A step is remembered *before* the frontier is changed.

use std::cell::{Cell, LazyCell, RefCell};

use pg_queue_core::frontier::{Frontier, LATE_CANCEL, LATE_RERUN, Place, Ready};
use pg_queue_core::tally::End;
use pgrx::pg_guard;
use pgrx::pg_sys;

use crate::duty::{start_due, storage};
use crate::segment::{self, State};
use crate::shmem::{self, Instance};
use crate::tally::{self, Books};
use crate::{dormant, dropping, key, late, queue, rerun, sys};

/// One step of the open transaction.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// An attempt was inserted. It may run from `run_at` on; 0: at once. One that has moved here was there before.
    Enqueued { lane: i32, ready: Ready, run_at: i64, has_moved: bool },
    /// An attempt was taken for a worker, under a lease in microseconds.
    Taken { id: i64, lane: i32, lease: i64, bound: bool },
    /// An attempt was taken by the system, to end it unrun.
    Ended { id: i64, lane: i32 },
    /// So many waiting attempts were ended unrun, and the frontier has forgotten them already.
    Purged { lane: i32, count: i64 },
    /// An attempt seemed to be claimed by an open transaction, and by this one's vain claim seems so to others.
    Missed { lane: i32, ready: Ready },
    /// A running attempt is being ended.
    Ending { id: i64, lane: i32, end: End },
    /// The same of one that the frontier has no room for.
    EndingUnknown { id: i64, lane: i32, end: End },
    /// A longer lease than any before was noted for a running attempt.
    Lengthened { id: i64, lease: i64 },
    /// A claimed attempt was moved: its row lies elsewhere now.
    Relocated { id: i64, place: Place },
    /// Rows of a segment that no other step counts.
    Counted { segment: u8, attempts: i64, ended: i64 },
    /// A segment's state changed.
    Segment { segment: u8, generation: i64, state: State, copied_to: i64 },
    /// Somebody asked for a running attempt to be cancelled.
    CancelRequested { lane: i32, ready: Ready },
    /// Another run was asked for after that of an attempt which somebody has.
    RerunAsked { id: i64 },
    /// Rows of this lane were claimed without telling the frontier each: when that is undone it must look again.
    Unseen { lane: i32 },
    /// The lane's waiters should look again: its queue was resumed, altered or paused.
    LaneChanged { lane: i32, paused: bool },
    /// The limits of the queue with this lane were altered.
    LimitsAltered { lane: i32 },
    /// Schedules were made, changed or removed; the lane that one enqueues into, or 0.
    SchedulesChanged { lane: i32 },
    /// Slots of schedules were looked at, and what is due dealt with.
    SlotsTaken,
    /// A queue was dropped.
    LaneDropped { lane: i32 },
    /// A stage was removed from its queue; what has ended there stays.
    LaneClosed { lane: i32 },
    /// The extension was dropped.
    InstanceDropped,
    /// The extension was created where it had been dropped.
    InstanceMade,
    /// A queue that asks for NOTIFY got jobs.
    Notify { lane: i32 },
    /// That was told; if the telling is rolled back it is to be done again.
    Notified { lane: i32 },
    /// The tables were written by SQL.
    ForeignWrite,
    /// What is in the tables by now is adopted, unless there were more foreign writes than so many.
    Adopted { marks: u64 },
}

#[derive(Clone, Copy)]
struct Pending {
    instance: u32,
    subtransaction: pg_sys::SubTransactionId,
    step: Step,
}

thread_local! {
    static PENDING: RefCell<Vec<Pending>> = const { RefCell::new(Vec::new()) };
    static REGISTERED: Cell<bool> = const { Cell::new(false) };
    /// What is told only when the other sessions can know of it: see `on_resource_release`.
    static LATER: RefCell<Vec<(u32, Step)>> = const { RefCell::new(Vec::new()) };
    /// The instance in which this session has made a claim bound to its connection; 0: none.
    static HAS_BOUND: Cell<u32> = const { Cell::new(0) };
    /// See `added`.
    static SUMMED: Cell<Option<Summed>> = const { Cell::new(None) };
    /// There may be a `LimitsAltered` among what is pending.
    static HAS_ALTERED: Cell<bool> = const { Cell::new(false) };
}

/// Registers this session's callbacks, once. Every verb that changes anything calls it first.
pub fn register() {
    if REGISTERED.replace(true) {
        return;
    }
    shmem::announce_session(sys::session());
    // SAFETY: once per backend, functions with the signatures Postgres asks for.
    unsafe {
        pg_sys::RegisterXactCallback(Some(on_transaction), std::ptr::null_mut());
        pg_sys::RegisterSubXactCallback(Some(on_subtransaction), std::ptr::null_mut());
        pg_sys::RegisterResourceReleaseCallback(Some(on_resource_release), std::ptr::null_mut());
        // After the abort of an open transaction (that is a before_shmem_exit callback), before the
        // process gives its slot back.
        pg_sys::on_shmem_exit(Some(on_exit), pg_sys::Datum::from(0));
    }
}

/// Remembers a step; call it before the frontier is changed.
pub fn remember(instance: u32, step: Step) {
    if let Step::Taken { bound: true, .. } = step {
        HAS_BOUND.set(instance);
    }
    if let Step::LimitsAltered { .. } = step {
        HAS_ALTERED.set(true);
    }
    if let Step::LaneChanged { .. }
    | Step::LaneDropped { .. }
    | Step::LaneClosed { .. }
    | Step::InstanceDropped
    | Step::Adopted { .. } = step
    {
        // The place for it now: a commit allocates nothing.
        LATER.with_borrow_mut(|later| {
            let steps = PENDING.with_borrow(Vec::len) + 1;
            later.reserve(steps);
        });
    }
    let subtransaction = sys::subtransaction();
    PENDING.with_borrow_mut(|pending| pending.push(Pending { instance, subtransaction, step }));
}

/// Remembers many steps.
pub fn remember_all(instance: u32, steps: impl Iterator<Item = Step>) {
    let subtransaction = sys::subtransaction();
    PENDING.with_borrow_mut(|pending| {
        pending.extend(steps.map(|step| {
            if let Step::Taken { bound: true, .. } = step {
                HAS_BOUND.set(instance);
            }
            Pending { instance, subtransaction, step }
        }));
    });
}

/// Makes room, so that many steps are remembered at one go.
pub fn reserve(count: usize) {
    PENDING.with_borrow_mut(|pending| pending.reserve(count));
}

/// Forgets the last step of this kind for this id: it turned out not to be needed.
pub fn forget(id: i64) {
    PENDING.with_borrow_mut(|pending| {
        let found = pending.iter().rposition(|p| {
            matches!(p.step, Step::Taken { id: i, .. } | Step::Ended { id: i, .. } | Step::Ending { id: i, .. }
                             | Step::EndingUnknown { id: i, .. } if i == id)
        });
        if let Some(at) = found {
            pending.remove(at);
            SUMMED.set(None);
        }
    });
}

/// Says how an attempt ends that this transaction holds. Call it soon after it got hold of it: the list is
/// searched from its end.
pub fn set_end(id: i64, end: End) {
    PENDING.with_borrow_mut(|pending| {
        for p in pending.iter_mut().rev() {
            match &mut p.step {
                Step::Ending { id: i, end: known, .. } | Step::EndingUnknown { id: i, end: known, .. } if *i == id => {
                    *known = end;
                    break;
                }
                // Ended unrun, which counts as nothing else.
                Step::Ended { id: i, .. } if *i == id => break,
                _ => {}
            }
        }
    });
}

/// Sets the lease of an attempt that this transaction has taken. False: it has not.
pub fn set_lease(id: i64, lease: i64) -> bool {
    PENDING.with_borrow_mut(|pending| {
        let found = pending.iter_mut().rev().find_map(|p| match &mut p.step {
            Step::Taken { id: i, lease, .. } if *i == id => Some(lease),
            _ => None,
        });
        found.map(|known| *known = lease).is_some()
    })
}

/// What has been summed up of the steps: so that a transaction that enqueues one by one does not read them all each time.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Summed {
    instance: u32,
    /// The queue's first, and how many there are.
    lanes: (i32, usize),
    /// So many steps; they must not change without this being forgotten.
    steps: usize,
    added: i64,
}

/// How many more attempts wait in these lanes of a queue if this transaction commits.
pub fn added(instance: u32, lanes: &[i32]) -> i64 {
    let key = (lanes.first().copied().unwrap_or(0), lanes.len());
    let start = Summed { instance, lanes: key, steps: 0, added: 0 };
    let mut summed = SUMMED.get().filter(|known| (known.instance, known.lanes) == (instance, key)).unwrap_or(start);
    PENDING.with_borrow(|pending| {
        let new = pending[summed.steps..].iter().filter(|p| p.instance == instance);
        summed.added += new
            .map(|p| match p.step {
                Step::Enqueued { lane, has_moved: false, .. } if lanes.contains(&lane) => 1,
                Step::Ended { lane, .. } | Step::Taken { lane, .. } if lanes.contains(&lane) => -1,
                Step::Purged { lane, count } if lanes.contains(&lane) => -count,
                _ => 0,
            })
            .sum::<i64>();
        summed.steps = pending.len();
    });
    SUMMED.set(Some(summed));
    summed.added
}

/// The attempts of these lanes that this transaction is ending.
pub fn ending(instance: u32, lanes: &[i32]) -> Vec<i64> {
    PENDING.with_borrow(|pending| {
        let own = pending.iter().filter(|p| p.instance == instance);
        own.filter_map(|p| match p.step {
            Step::Ending { id, lane, .. } if lanes.contains(&lane) => Some(id),
            _ => None,
        })
        .collect()
    })
}

/// Whether this transaction has altered the limits of the queue with this lane.
pub fn has_altered_limits(instance: u32, lane: i32) -> bool {
    // Nearly always at once: every claim asks.
    HAS_ALTERED.get()
        && PENDING.with_borrow(|pending| {
            pending
                .iter()
                .any(|p| p.instance == instance && matches!(p.step, Step::LimitsAltered { lane: l } if l == lane))
        })
}

/// The lease of an attempt that this transaction has taken.
pub fn lease_of(id: i64) -> Option<i64> {
    PENDING.with_borrow(|pending| {
        pending.iter().rev().find_map(|p| match p.step {
            Step::Taken { id: i, lease, .. } if i == id => Some(lease),
            _ => None,
        })
    })
}

/// When this transaction commits, the instance is freed: its extension is being dropped.
pub fn on_commit_drop_instance(number: u32) {
    register();
    remember(number, Step::InstanceDropped);
}

/// Whether this transaction drops the extension of this instance.
pub fn is_dropping(number: u32) -> bool {
    PENDING
        .with_borrow(|pending| pending.iter().any(|p| p.instance == number && matches!(p.step, Step::InstanceDropped)))
}

/// Whether this transaction drops the extension.
pub fn has_dropped() -> bool {
    PENDING.with_borrow(|pending| pending.iter().any(|p| matches!(p.step, Step::InstanceDropped)))
}

/// The foreign writes and adoptions of this transaction, the last one first.
fn dormancy_steps<R>(instance: u32, f: impl FnOnce(&mut dyn Iterator<Item = Step>) -> R) -> R {
    PENDING.with_borrow(|pending| {
        let own = pending.iter().rev().filter(|p| p.instance == instance).map(|p| p.step);
        f(&mut own.filter(|step| matches!(step, Step::ForeignWrite | Step::Adopted { .. })))
    })
}

/// Whether this transaction was marked as one that writes to the tables by SQL, and has not adopted that.
pub fn is_foreign_writer(instance: u32) -> bool {
    dormancy_steps(instance, |steps| matches!(steps.next(), Some(Step::ForeignWrite)))
}

/// Whether this transaction adopts what is in the tables.
pub fn is_adopting(instance: u32) -> bool {
    dormancy_steps(instance, |steps| matches!(steps.next(), Some(Step::Adopted { .. })))
}

/// How often this transaction was marked as one that writes to the tables by SQL.
pub fn foreign_writes(instance: u32) -> usize {
    dormancy_steps(instance, |steps| steps.filter(|step| matches!(step, Step::ForeignWrite)).count())
}

/// COMMIT PREPARED or ROLLBACK PREPARED has run: jobs may have appeared that no callback pushed.
pub fn prepared_ended() {
    key::prepared_ended();
    let database = sys::database();
    let mut worker = std::ptr::null_mut();
    let mut number = 0;
    shmem::with(|shared| {
        let shmem::Shared { frontier, instances, .. } = shared;
        if let Some(instance) = instances.iter_mut().find(|i| i.number != 0 && i.database == database) {
            frontier.distrust(instance.number);
            tally::prepared_ended(instance);
            // Requests to cancel are never prepared.
            instance.reruns.scan();
            instance.next_due = i64::MIN;
            worker = instance.worker_latch;
            number = instance.number;
        }
    });
    shmem::wake_latch(worker);
    // Whoever looks and waits again stands at the end of the list: so many calls wake all who were there.
    // SAFETY: a plain global, set when the server starts.
    for _ in 0..unsafe { pg_sys::MaxBackends } {
        match shmem::with(|shared| shared.frontier.wake_any_lane(number)) {
            Some(session) => shmem::wake(session),
            None => break,
        }
    }
}

/// Sessions to wake once the lock is free; a few, each of whom wakes the next when jobs are left.
#[derive(Default)]
struct Wake {
    sessions: [Option<u32>; 8],
    count: usize,
    /// The lane that jobs were pushed to last, and how many were woken for it.
    lane: (i32, usize),
    worker: Option<*mut pg_sys::Latch>,
}

impl Wake {
    /// So many are woken for one lane's jobs that follow each other; they wake the others.
    const IN_COMMIT: usize = 4;

    fn session(&mut self, session: Option<u32>) {
        if let Some(session) = session {
            if self.count < self.sessions.len() {
                self.sessions[self.count] = Some(session);
                self.count += 1;
            } else {
                // The list is full: his own latch, at once; a spurious order does no harm.
                shmem::wake(session);
            }
        }
    }

    fn go(self) {
        self.sessions.iter().flatten().for_each(|&session| shmem::wake(session));
        if let Some(latch) = self.worker {
            shmem::wake_latch(latch);
        }
    }
}

/// The worker must wake not later than this monotonic time.
pub fn plan(instance: &mut Instance, at: i64) -> Option<*mut pg_sys::Latch> {
    if at < instance.wakes_at {
        instance.wakes_at = at;
        return Some(instance.worker_latch);
    }
    None
}

fn commit(frontier: &mut Frontier<'_>, instance: &mut Instance, step: Step, now: &LazyCell<i64>, wake: &mut Wake) {
    let number = instance.number;
    match step {
        Step::Enqueued { lane, ready, run_at, .. } => {
            count(instance, ready.place.segment, 1, 0, wake);
            let due_to = instance.due_to;
            let is_due = run_at == 0 || start_due::is_passed(instance, run_at);
            if instance.due_to != due_to {
                // The clock was set back: what falls due behind the cursor is to be found out.
                wake.worker = Some(instance.worker_latch);
            }
            if is_due {
                if wake.lane.0 != lane {
                    wake.lane = (lane, 0);
                }
                if wake.lane.1 < Wake::IN_COMMIT {
                    let woken = frontier.push(number, lane, ready);
                    wake.lane.1 += usize::from(woken.is_some());
                    wake.session(woken);
                } else {
                    frontier.push_quietly(number, lane, ready);
                }
            } else if run_at < instance.next_due {
                instance.next_due = run_at;
                wake.worker = Some(instance.worker_latch);
            }
        }
        Step::Taken { id, lease, bound, .. } => {
            let deadline = (**now).saturating_add(lease);
            frontier.claimed(&mut instance.deadlines, number, id, lease, deadline, bound);
            if let Some(latch) = plan(instance, deadline) {
                wake.worker = Some(latch);
            }
        }
        Step::Ended { id, .. } | Step::Ending { id, .. } => {
            if let Some((entry, woken)) = frontier.ended(&mut instance.deadlines, number, id) {
                count(instance, entry.place.segment, 0, 1, wake);
                wake.session(woken);
                // Who ended it has made the next run, unless he could not know that one was asked for.
                if entry.late & LATE_RERUN != 0 || entry.rerun != 0 && matches!(step, Step::Ended { .. }) {
                    wake.worker = Some(late::rerun(instance, id));
                }
                if entry.late & LATE_CANCEL != 0 {
                    wake.worker = Some(late::cancel(instance, id));
                }
            }
        }
        Step::Relocated { id, place } => frontier.relocate(number, id, place),
        Step::Counted { segment, attempts, ended } => count(instance, segment, attempts, ended, wake),
        Step::Segment { segment, generation, state, copied_to } => {
            segment::changed(instance, segment, generation, state, copied_to, sys::now_us());
            // The step that made it so was one of several.
            wake.worker = Some(instance.worker_latch);
        }
        Step::Missed { lane, ready } => wake.session(frontier.push(number, lane, ready)),
        Step::Lengthened { id, lease } => frontier.lengthen(number, id, lease),
        Step::RerunAsked { id } => {
            if let Some(latch) = rerun::committed(frontier, instance, id) {
                wake.worker = Some(latch);
            }
        }
        Step::CancelRequested { lane, ready } => {
            // Its claim may have been rolled back before this commit, or it has ended, and its job goes on.
            if !frontier.request_cancel(number, ready.id) {
                wake.worker = Some(if frontier.doom(&mut instance.deadlines, number, lane, ready) {
                    instance.worker_latch
                } else {
                    late::cancel(instance, ready.id)
                });
            }
        }
        Step::LaneChanged { lane, paused } => {
            dropping::forget_mark(instance, lane);
            frontier.set_paused(number, lane, paused);
            tell_later(number, step);
        }
        Step::LaneDropped { lane } | Step::LaneClosed { lane } => {
            dropping::unmark(instance, lane, true);
            tell_later(number, step);
        }
        Step::InstanceDropped => {
            frontier.drop_instance(&mut instance.deadlines, number);
            wake.worker = Some(instance.worker_latch);
            instance.number = 0;
            tell_later(number, step);
        }
        Step::Notify { lane } => notify(instance, lane, wake),
        Step::ForeignWrite => foreign_writer_ended(instance, wake),
        Step::Adopted { .. } => tell_later(number, step),
        Step::SchedulesChanged { .. } => {
            instance.schedules.doubt();
            wake.worker = Some(instance.worker_latch);
        }
        Step::Notified { .. } | Step::InstanceMade | Step::SlotsTaken | Step::LimitsAltered { .. } => {}
        // These only count: see `tally`.
        Step::Purged { .. } | Step::EndingUnknown { .. } => {}
        // What held a group may be among them.
        Step::Unseen { lane } => {
            frontier.release_held(number);
            wake.session(frontier.pass_on(number, lane));
        }
    }
}

/// Counts rows of a segment, and has the storage duty look when that makes a difference.
fn count(instance: &mut Instance, segment: u8, attempts: i64, ended: i64, wake: &mut Wake) {
    if let Some(at) = segment::count(instance, segment, attempts, ended)
        && storage::ask(instance, at)
    {
        wake.worker = Some(instance.worker_latch);
    }
}

/// The worker sends a NOTIFY for this lane.
fn notify(instance: &mut Instance, lane: i32, wake: &mut Wake) {
    if !instance.notify.contains(&lane) {
        // Full: one of many busy queues takes another's place; both are noisy enough.
        let free = instance.notify.iter().position(|&l| l == 0).unwrap_or(0);
        instance.notify[free] = lane;
        wake.worker = Some(instance.worker_latch);
    }
}

/// The worker sets its timer.
fn foreign_writer_ended(instance: &mut Instance, wake: &mut Wake) {
    instance.memory_turns += 1;
    instance.dormancy.writer_ended();
    wake.worker = Some(instance.worker_latch);
}

/// Notes a step whose sleepers must not be woken yet.
fn tell_later(number: u32, step: Step) {
    LATER.with_borrow_mut(|later| later.push((number, step)));
}

/// A commit runs its callbacks *before* it sends the messages by which other sessions drop what they know of
/// queues. Whoever were woken there could look before the message arrives, believe the old settings, and sleep
/// on. The release of the transaction's locks comes after the messages.
unsafe extern "C-unwind" fn on_resource_release(
    phase: pg_sys::ResourceReleasePhase::Type,
    is_commit: bool,
    is_top: bool,
    _arg: *mut std::ffi::c_void,
) {
    // A transaction comes here many times and seldom has something to tell: that must cost no guard.
    let is_last = phase == pg_sys::ResourceReleasePhase::RESOURCE_RELEASE_AFTER_LOCKS && is_top;
    // Nor may it panic here, not even when the process is past its end.
    if is_last && LATER.try_with(|later| !later.borrow().is_empty()).unwrap_or(false) {
        // SAFETY: may be called at any time.
        unsafe { tell_all(is_commit) };
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn tell_all(is_commit: bool) {
    let mut later = LATER.take();
    if is_commit {
        for &(number, step) in &later {
            tell(number, step);
        }
    }
    later.clear();
    LATER.set(later);
}

/// Wakes all who wait where something was changed: each must read the settings anew.
fn tell(number: u32, step: Step) {
    if let Step::Adopted { marks } = step
        && !dormant::wake(number, marks)
    {
        return;
    }
    // From here on nobody goes to sleep with what he knew before.
    let worker = shmem::with_instance(number, |_, instance| {
        instance.changes += 1;
        matches!(step, Step::Adopted { .. }).then_some(instance.worker_latch)
    });
    if let Some(latch) = worker.flatten() {
        shmem::wake_latch(latch);
    }
    // Whoever looks and waits again stands at the end of the list: so many calls wake all who were there.
    // SAFETY: a plain global, set when the server starts.
    for _ in 0..unsafe { pg_sys::MaxBackends } {
        let woken = shmem::with(|shared| match step {
            Step::LaneChanged { lane, paused } => {
                // Again: somebody may have gone to sleep with the old settings meanwhile.
                shared.frontier.set_paused(number, lane, paused);
                shared.frontier.wake_any(number, lane)
            }
            Step::LaneDropped { lane } | Step::LaneClosed { lane } => shared.frontier.wake_any(number, lane),
            _ => shared.frontier.wake_any_lane(number),
        });
        match woken {
            Some(session) => shmem::wake(session),
            None => break,
        }
    }
    if let Step::LaneDropped { lane } = step {
        shmem::with_instance(number, |frontier, instance| {
            frontier.drop_lane(&mut instance.deadlines, number, lane);
        });
    }
}

fn abort(frontier: &mut Frontier<'_>, instance: &mut Instance, step: Step, now: &LazyCell<i64>, wake: &mut Wake) {
    let number = instance.number;
    match step {
        Step::Taken { id, .. } | Step::Ended { id, .. } => {
            if let Some(latch) = late::leave(frontier, instance, id) {
                wake.worker = Some(latch);
            }
            let woken = frontier.give_back(&mut instance.deadlines, number, id, **now);
            wake.session(woken);
            if frontier.next_deadline(instance.deadlines) == Some(i64::MIN) {
                wake.worker = Some(instance.worker_latch);
            }
        }
        // The dead row takes its place until the segment is emptied.
        Step::Enqueued { ready, .. } => count(instance, ready.place.segment, 1, 1, wake),
        Step::Missed { lane, ready } => wake.session(frontier.push(number, lane, ready)),
        Step::Ending { id, .. } => {
            frontier.unend(&mut instance.deadlines, number, id);
            if let Some(deadline) = frontier.next_deadline(instance.deadlines)
                && let Some(latch) = plan(instance, deadline)
            {
                wake.worker = Some(latch);
            }
        }
        Step::Unseen { lane } => {
            frontier.distrust(number);
            wake.session(frontier.pass_on(number, lane));
        }
        Step::LaneDropped { lane } | Step::LaneClosed { lane } => dropping::unmark(instance, lane, false),
        Step::Notified { lane } => notify(instance, lane, wake),
        Step::Counted { .. } | Step::Segment { .. } => storage::undone(),
        Step::ForeignWrite => foreign_writer_ended(instance, wake),
        Step::SlotsTaken => {
            instance.schedules.doubt();
            wake.worker = Some(instance.worker_latch);
        }
        Step::InstanceMade => {
            frontier.drop_instance(&mut instance.deadlines, number);
            instance.number = 0;
        }
        _ => {}
    }
}

/// Steps applied under one hold of the lock.
const AT_ONCE: usize = 256;

fn settle(pending: &[Pending], committed: bool) {
    // Most steps do not ask for it.
    let now: LazyCell<i64> = LazyCell::new(sys::monotonic_us);
    let xid = if committed { sys::transaction_id() } else { 0 };
    let apply = |steps: &mut dyn Iterator<Item = &Pending>| {
        let mut wake = Wake::default();
        shmem::with(|shared| {
            let shmem::Shared { frontier, instances, tallies, horizons, .. } = shared;
            // Opened under each hold of the lock: a recount may have begun since the last one.
            let mut books = Books::open(xid);
            for p in steps {
                let Some(slot) = instances.iter().position(|i| i.number == p.instance) else { continue };
                if committed {
                    commit(frontier, &mut instances[slot], p.step, &now, &mut wake);
                    books.enter(instances, slot, horizons, tallies, p.step);
                } else {
                    abort(frontier, &mut instances[slot], p.step, &now, &mut wake);
                }
                if instances[slot].number == 0 {
                    tallies.forget_instance(p.instance);
                }
            }
            books.close(instances, tallies);
        });
        wake.go();
    };
    if committed {
        pending.chunks(AT_ONCE).for_each(|chunk| apply(&mut chunk.iter()));
    } else {
        pending.rchunks(AT_ONCE).for_each(|chunk| apply(&mut chunk.iter().rev()));
    }
}

/// Takes the list out, so that the callback cannot find it borrowed, and puts its memory back after use.
fn with_pending(f: impl FnOnce(&mut Vec<Pending>)) {
    let mut pending = PENDING.take();
    f(&mut pending);
    PENDING.set(pending);
}

#[pg_guard]
unsafe extern "C-unwind" fn on_transaction(event: pg_sys::XactEvent::Type, _arg: *mut std::ffi::c_void) {
    match event {
        pg_sys::XactEvent::XACT_EVENT_COMMIT | pg_sys::XactEvent::XACT_EVENT_PARALLEL_COMMIT => end(true),
        pg_sys::XactEvent::XACT_EVENT_ABORT | pg_sys::XactEvent::XACT_EVENT_PARALLEL_ABORT => end(false),
        pg_sys::XactEvent::XACT_EVENT_PRE_COMMIT => check_dropped(),
        pg_sys::XactEvent::XACT_EVENT_PRE_PREPARE => {
            refuse_prepare();
            check_dropped();
        }
        // Only enqueued jobs are left: COMMIT PREPARED makes the frontier look for them.
        pg_sys::XactEvent::XACT_EVENT_PREPARE => with_pending(|pending| {
            count_prepared(pending);
            let enqueued = pending.iter().find(|p| matches!(p.step, Step::Enqueued { .. }));
            if let Some(p) = enqueued {
                shmem::with_instance(p.instance, |_, instance| tally::prepared(instance));
            }
            pending.clear();
            SUMMED.set(None);
            key::prepared();
        }),
        _ => {}
    }
}

/// The last moment at which a commit can still be refused: see `dropping`.
fn check_dropped() {
    if !dropping::has_news() {
        return;
    }
    let lanes: Vec<i32> = PENDING.with_borrow(|pending| {
        let enqueued = pending.iter().filter_map(|p| match p.step {
            Step::Enqueued { lane, .. } => Some(lane),
            Step::SchedulesChanged { lane } if lane != 0 => Some(lane),
            _ => None,
        });
        // Jobs of a queue that this very transaction drops go with it.
        let own = |lane| pending.iter().any(|p| matches!(p.step, Step::LaneDropped { lane: l } if l == lane));
        let mut lanes: Vec<i32> = Vec::new();
        enqueued.for_each(|lane| {
            if lanes.last() != Some(&lane) && !own(lane) {
                lanes.push(lane);
            }
        });
        lanes
    });
    if let Err(error) = dropping::check(lanes.into_iter()) {
        error.report();
    }
}

fn end(committed: bool) {
    dropping::forget();
    HAS_ALTERED.set(false);
    SUMMED.set(None);
    if !committed {
        queue::undone();
    }
    queue::settled();
    with_pending(|pending| {
        if !pending.is_empty() {
            settle(pending, committed);
            pending.clear();
            // A huge batch should not pin its memory for the session's life.
            if pending.capacity() > 65_536 {
                pending.shrink_to(1024);
            }
        }
    });
    // Last: who waits for a key finds that memory knows what was done.
    key::end();
}

/// Nobody counts at COMMIT PREPARED. The rows are there, committed or not.
fn count_prepared(pending: &[Pending]) {
    let mut wake = Wake::default();
    shmem::with(|shared| {
        for p in pending {
            if let Step::Enqueued { ready, .. } = p.step
                && let Some(instance) = shared.instances.iter_mut().find(|i| i.number == p.instance)
            {
                count(instance, ready.place.segment, 1, 0, &mut wake);
            }
        }
    });
    wake.go();
}

/// COMMIT PREPARED runs no callbacks, so a prepared claim or completion could never reach the frontier.
fn refuse_prepare() {
    let only_enqueued = PENDING.with_borrow(|pending| {
        pending.iter().all(|p| {
            matches!(
                p.step,
                Step::Enqueued { .. } | Step::Notify { .. } | Step::RerunAsked { .. } | Step::InstanceDropped
            )
        })
    });
    if !only_enqueued {
        crate::error::Error::new(
            crate::error::NOT_SUPPORTED,
            "cannot PREPARE a transaction that has claimed, ended or changed jobs, or changed queues or schedules",
        )
        .hint("Only queue.enqueue and its relatives can be used in a transaction that is prepared.")
        .report();
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn on_subtransaction(
    event: pg_sys::SubXactEvent::Type,
    this: pg_sys::SubTransactionId,
    parent: pg_sys::SubTransactionId,
    _arg: *mut std::ffi::c_void,
) {
    with_pending(|pending| {
        // Steps of a subtransaction and its finished children stand at the end of the list.
        let first = pending.iter().rposition(|p| p.subtransaction != this).map_or(0, |at| at + 1);
        match event {
            pg_sys::SubXactEvent::SUBXACT_EVENT_COMMIT_SUB => {
                key::subtransaction_ended(this, Some(parent));
                pending[first..].iter_mut().for_each(|p| p.subtransaction = parent);
            }
            pg_sys::SubXactEvent::SUBXACT_EVENT_ABORT_SUB => {
                queue::undone();
                settle(&pending[first..], false);
                pending.truncate(first);
                SUMMED.set(None);
                key::subtransaction_ended(this, None);
            }
            _ => {}
        }
    });
}

/// The connection ends, its transaction has ended: hand on what it held.
#[pg_guard]
unsafe extern "C-unwind" fn on_exit(_code: i32, _arg: pg_sys::Datum) {
    let session = sys::session();
    let mut wake = Wake::default();
    shmem::with(|shared| {
        let shmem::Shared { frontier, instances, .. } = shared;
        let refill = frontier.refill_abandon(session);
        if let Some((number, lane)) = refill {
            while let Some(waiter) = frontier.refill_wake(number, lane) {
                wake.session(Some(waiter));
            }
            wake.session(frontier.pass_on(number, lane));
        }
        while let Some((number, lane)) = frontier.turn_abandon(session) {
            while let Some(waiter) = frontier.refill_wake(number, lane) {
                wake.session(Some(waiter));
            }
            wake.session(frontier.pass_on(number, lane));
        }
        wake.session(frontier.stop_waiting(session));
        wake.worker = crate::duty::abandon(instances);
        tally::abandon(instances);
        let bound = HAS_BOUND.get();
        if let Some(instance) = instances.iter_mut().find(|i| bound != 0 && i.number == bound)
            && frontier.session_ended(&mut instance.deadlines, bound, session) > 0
        {
            wake.worker = Some(instance.worker_latch);
        }
    });
    wake.go();
}
