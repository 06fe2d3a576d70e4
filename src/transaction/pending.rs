//! The steps of the open transaction: the changes of shared memory that its commit applies, and that its rollback
//! undoes.
//!
//! Responsible for the list of steps, and for questions of verbs about it in the same transaction. Not responsible for
//! applying the steps (`settle`), nor for the moment at which that happens (`callbacks`).
//!
//! Invariant: a step is recorded *before* the frontier is changed. All memory that the end of the transaction needs is
//! allocated when the step is recorded: a commit allocates nothing.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use pg_queue_core::frontier::{Disconnect, Ending, Frontier, Ready};
use pg_queue_core::totals::End;
use pgrx::pg_sys;

use crate::pg::{memory, transaction};
use crate::shmem::here;
use crate::transaction::steps::{ExpiryStep, ExtensionStep, QueueStep, ScheduleStep, Step};
use crate::transaction::tell::TO_TELL;

#[derive(Clone, Copy)]
pub struct Pending {
    pub instance: u32,
    pub subtransaction: pg_sys::SubTransactionId,
    pub step: Step,
}

thread_local! {
    static PENDING: RefCell<Vec<Pending>> = const { RefCell::new(Vec::new()) };
    /// See `instance_to_disconnect`.
    static TO_DISCONNECT: Cell<u32> = const { Cell::new(0) };
    /// See `added`.
    static SUMMED: Cell<Option<Summed>> = const { Cell::new(None) };
    /// See `ending`.
    static ENDS: RefCell<Ends> =
        const { RefCell::new(Ends { instance: 0, lanes: Vec::new(), steps: 0, ending: None }) };
    /// True if this transaction may have changed rights.
    static HAS_CHANGED_RIGHTS: Cell<bool> = const { Cell::new(false) };
    /// True if there may be a `LimitsAltered` among the steps.
    static HAS_ALTERED: Cell<bool> = const { Cell::new(false) };
    /// True if there may be an attempt among the steps for which others of its group wait in strict order.
    static HAS_RETRIES: Cell<bool> = const { Cell::new(false) };
}

/// Records a step. The caller calls it before it changes the frontier. Returns the step's place in the list. Later the
/// step may have a smaller place, because steps before it are removed.
pub fn record(step: impl Into<Step>) -> usize {
    record_of(here::number(), step)
}

/// As `record`, about an instance that need not be the one that this process works for.
pub fn record_of(instance: u32, step: impl Into<Step>) -> usize {
    let step = step.into();
    note_disconnect(instance, step);
    if let Step::Queue(QueueStep::LimitsAltered { .. }) = step {
        HAS_ALTERED.set(true);
    }
    if step.is_told_later() {
        // The room is made here, because a commit allocates nothing.
        TO_TELL.with_borrow_mut(|later| {
            let steps = PENDING.with_borrow(Vec::len) + 1;
            memory::grow(later, steps);
        });
    }
    let subtransaction = transaction::subtransaction();
    PENDING.with_borrow_mut(|pending| {
        memory::grow(pending, 1);
        pending.push(Pending { instance, subtransaction, step });
        pending.len() - 1
    })
}

fn note_disconnect(instance: u32, step: Step) {
    if let Step::Taken { disconnect, .. } = step
        && disconnect != Disconnect::KEEPS
    {
        TO_DISCONNECT.set(instance);
    }
}

/// Records many steps. They must not be of the kinds for which `record` makes room to tell them later, nor
/// `LimitsAltered`. All attempts are recorded by this function. Returns the place of the first one, as `record` does.
pub fn record_all<S: Into<Step>>(steps: impl Iterator<Item = S>) -> usize {
    let (instance, subtransaction) = (here::number(), transaction::subtransaction());
    PENDING.with_borrow_mut(|pending| {
        memory::grow(pending, steps.size_hint().0);
        let first = pending.len();
        for step in steps.map(Into::into) {
            note_disconnect(instance, step);
            if let Step::Enqueued { is_retry: true, .. } = step {
                HAS_RETRIES.set(true);
            }
            memory::grow(pending, 1);
            pending.push(Pending { instance, subtransaction, step });
        }
        first
    })
}

/// Makes room for `count` steps, so that recording them allocates once.
pub fn reserve(count: usize) {
    PENDING.with_borrow_mut(|pending| memory::grow(pending, count));
}

/// Removes the last step that takes or ends this attempt, because it turned out not to be needed.
pub fn unrecord(id: i64) {
    PENDING.with_borrow_mut(|pending| {
        let found = pending.iter().rposition(|p| {
            matches!(p.step, Step::Taken { id: i, .. } | Step::EndedUnrun { id: i, .. } | Step::Ending { id: i, .. }
                             if i == id)
        });
        if let Some(at) = found {
            pending.remove(at);
            forget_sum();
        }
    });
}

/// Decides how an attempt ends that this transaction holds. `place`: what `record` has returned for the step.
pub fn decide(place: usize, id: i64, end: End) {
    PENDING.with_borrow_mut(|pending| {
        let mut places = pending.iter_mut().take(place.saturating_add(1)).rev();
        let undecided = places.find_map(|p| match &mut p.step {
            Step::Ending { id: i, end, .. } if *i == id => Some(end),
            _ => None,
        });
        if let Some(undecided) = undecided {
            *undecided = Some(end);
        }
    });
}

/// Returns whether this transaction completes an attempt, and its job with it.
pub fn completes(id: i64) -> bool {
    PENDING.with_borrow(|pending| {
        pending.iter().rev().any(|p| match p.step {
            Step::Ending { id: i, end, .. } => i == id && end == Some(End::COMPLETED),
            _ => false,
        })
    })
}

/// Sets the lease, in microseconds, of an attempt that this transaction has taken. Returns false if it has not taken
/// it.
pub fn set_lease(id: i64, lease: i64) -> bool {
    PENDING.with_borrow_mut(|pending| {
        let found = pending.iter_mut().rev().find_map(|p| match &mut p.step {
            Step::Taken { id: i, lease, .. } if *i == id => Some(lease),
            _ => None,
        });
        found.map(|known| *known = lease).is_some()
    })
}

/// A sum over the steps, so that a transaction that enqueues one by one does not read all of them each time.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Summed {
    instance: u32,
    /// The queue's first lane, and how many lanes there are.
    lanes: (i32, usize),
    /// How many steps were summed up. They must not change unless the sum is dropped.
    steps: usize,
    added: i64,
}

/// Returns how many more attempts wait in these lanes of a queue if this transaction commits.
pub fn added(instance: u32, lanes: &[i32]) -> i64 {
    let key = (lanes.first().copied().unwrap_or(0), lanes.len());
    let start = Summed { instance, lanes: key, steps: 0, added: 0 };
    let mut summed = SUMMED.get().filter(|known| (known.instance, known.lanes) == (instance, key)).unwrap_or(start);
    PENDING.with_borrow(|pending| {
        let new = pending[summed.steps..].iter().filter(|p| p.instance == instance);
        summed.added += new
            .map(|p| match p.step {
                Step::Enqueued { lane, has_moved: false, .. } if lanes.contains(&lane) => 1,
                Step::EndedUnrun { lane, .. } | Step::Taken { lane, .. } if lanes.contains(&lane) => -1,
                Step::Purged { lane, count } if lanes.contains(&lane) => -count,
                _ => 0,
            })
            .sum::<i64>();
        summed.steps = pending.len();
    });
    SUMMED.set(Some(summed));
    summed.added
}

/// The attempts of one queue that the steps end, so that a transaction that claims and ends by turns does not read all
/// steps each time.
#[derive(Default)]
struct Ends {
    instance: u32,
    lanes: Vec<i32>,
    /// How many steps were looked at. They must not change unless this is dropped.
    steps: usize,
    ending: Option<Rc<Ending>>,
}

/// Returns the attempts of these lanes of a queue that this transaction is ending. `None`: there are none.
pub fn ending(instance: u32, lanes: &[i32]) -> Option<Rc<Ending>> {
    /// Steps after which memory is asked for again.
    const BLOCK: usize = 16_384;
    ENDS.with_borrow_mut(|known| {
        if known.instance != instance || known.lanes != lanes {
            *known = Ends { instance, lanes: lanes.to_vec(), ..Ends::default() };
        }
        PENDING.with_borrow(|pending| {
            // The list of attempts grows by doubling.
            if pending.len() / BLOCK != known.steps / BLOCK {
                memory::room_for(pending.len().saturating_mul(64));
            }
            for p in pending[known.steps..].iter().filter(|p| p.instance == instance) {
                if let Step::Ending { id, lane, is_known: true, .. } = p.step
                    && lanes.contains(&lane)
                {
                    known.ending.get_or_insert_default().add(id);
                }
            }
            known.steps = pending.len();
        });
        known.ending.clone()
    })
}

/// Returns whether this transaction has altered the limits of the queue with this lane.
pub fn has_altered_limits(instance: u32, lane: i32) -> bool {
    // Every claim asks, and the answer is nearly always known without the list.
    HAS_ALTERED.get()
        && PENDING.with_borrow(|pending| {
            pending.iter().any(|p| {
                p.instance == instance
                    && matches!(p.step, Step::Queue(QueueStep::LimitsAltered { lane: l }) if l == lane)
            })
        })
}

/// Tells the frontier of attempts for which others of their groups wait in strict order, before a claim of this
/// transaction. Other sessions lose nothing by it.
pub fn tell_retries(instance: u32, frontier: &mut Frontier<'_>) {
    if HAS_RETRIES.get() {
        PENDING.with_borrow(|pending| {
            retries(pending).filter(|(number, ..)| *number == instance).for_each(|(_, lane, ready)| {
                frontier.retry_waits(instance, lane, ready.group, ready.id);
            });
        });
    }
}

/// Returns the attempts for which others of their groups wait in strict order: instance, lane and attempt.
pub fn retries(pending: &[Pending]) -> impl Iterator<Item = (u32, i32, Ready)> {
    pending.iter().filter_map(|p| match p.step {
        Step::Enqueued { lane, ready, is_retry: true, .. } => Some((p.instance, lane, ready)),
        _ => None,
    })
}

/// Returns the lease, in microseconds, of an attempt that this transaction has taken. `None`: it has not taken it.
pub fn lease_of(id: i64) -> Option<i64> {
    PENDING.with_borrow(|pending| {
        pending.iter().rev().find_map(|p| match p.step {
            Step::Taken { id: i, lease, .. } if i == id => Some(lease),
            _ => None,
        })
    })
}

/// Returns whether this transaction drops the extension of this instance.
pub fn is_dropping(number: u32) -> bool {
    PENDING.with_borrow(|pending| {
        pending.iter().any(|p| p.instance == number && matches!(p.step, Step::Extension(ExtensionStep::Dropped)))
    })
}

/// Returns whether this transaction drops the queue of this lane.
pub fn drops(lane: i32) -> bool {
    PENDING.with_borrow(|pending| {
        pending.iter().any(|p| matches!(p.step, Step::Queue(QueueStep::Dropped { lane: l }) if l == lane))
    })
}

/// Returns whether this transaction drops the extension.
pub fn has_dropped() -> bool {
    PENDING.with_borrow(|pending| pending.iter().any(|p| matches!(p.step, Step::Extension(ExtensionStep::Dropped))))
}

/// Calls `f` with the steps of foreign writes and adoptions of this transaction, the last one first.
fn dormancy_steps<R>(instance: u32, f: impl FnOnce(&mut dyn Iterator<Item = ExtensionStep>) -> R) -> R {
    PENDING.with_borrow(|pending| {
        let own = pending.iter().rev().filter(|p| p.instance == instance);
        f(&mut own.filter_map(|p| match p.step {
            Step::Extension(step @ (ExtensionStep::ForeignWrite { .. } | ExtensionStep::Adopted { .. })) => Some(step),
            _ => None,
        }))
    })
}

/// Returns where in `foreign::TOUCHED` the tables of this transaction begin, if it was marked as a foreign writer and
/// has not adopted its writes since.
pub fn foreign_writer(instance: u32) -> Option<usize> {
    dormancy_steps(instance, |steps| match steps.next() {
        Some(ExtensionStep::ForeignWrite { from }) => Some(from),
        _ => None,
    })
}

/// Returns whether this transaction adopts what is in the tables.
pub fn is_adopting(instance: u32) -> bool {
    dormancy_steps(instance, |steps| matches!(steps.next(), Some(ExtensionStep::Adopted { .. })))
}

/// Returns how often this transaction was marked as a foreign writer.
pub fn foreign_writes(instance: u32) -> usize {
    dormancy_steps(instance, |steps| steps.filter(|step| matches!(step, ExtensionStep::ForeignWrite { .. })).count())
}

/// Drops the sums over the steps, because the steps have changed.
pub fn forget_sum() {
    SUMMED.set(None);
    ENDS.with_borrow_mut(|ends| {
        if ends.steps != 0 {
            *ends = Ends::default();
        }
    });
}

/// Notes that this transaction changes rights: grants of the extension, or roles and their memberships.
pub fn rights_changed() {
    HAS_CHANGED_RIGHTS.set(true);
}

/// Returns the instance in which the commit of this transaction changes rights and something else.
pub fn rights_instance() -> Option<u32> {
    PENDING.with_borrow(|pending| pending.first().map(|p| p.instance)).filter(|_| HAS_CHANGED_RIGHTS.get())
}

/// Resets everything beside the list, at the end of the transaction.
pub fn ended() {
    HAS_CHANGED_RIGHTS.set(false);
    HAS_ALTERED.set(false);
    HAS_RETRIES.set(false);
    forget_sum();
}

/// Returns the instance in which this session has made a claim that the end of its connection changes; 0: none.
pub fn instance_to_disconnect() -> u32 {
    TO_DISCONNECT.get()
}

/// Calls `f` with the list of steps, taken out so that a callback cannot find it borrowed. Its memory is put back after
/// use.
pub fn with_pending(f: impl FnOnce(&mut Vec<Pending>)) {
    let mut pending = PENDING.take();
    f(&mut pending);
    PENDING.set(pending);
}

/// Returns the lanes to which this transaction adds jobs or schedules, except those that it drops itself. Jobs of a
/// queue that the same transaction drops go with the queue.
pub fn lanes_added() -> Vec<i32> {
    PENDING.with_borrow(|pending| {
        let enqueued = pending.iter().filter_map(|p| match p.step {
            Step::Enqueued { lane, .. } => Some(lane),
            Step::Schedule(ScheduleStep::Changed { lane }) if lane != 0 => Some(lane),
            _ => None,
        });
        let own = drops;
        let mut lanes: Vec<i32> = Vec::new();
        enqueued.for_each(|lane| {
            if lanes.last() != Some(&lane) && !own(lane) {
                lanes.push(lane);
            }
        });
        lanes
    })
}

/// Returns whether there may be attempts among the steps for which others of their groups wait in strict order.
pub fn has_retries() -> bool {
    HAS_RETRIES.get()
}

/// Returns whether this transaction has steps.
pub fn has_any() -> bool {
    PENDING.with_borrow(|pending| !pending.is_empty())
}

/// Refuses PREPARE TRANSACTION after anything but enqueuing. COMMIT PREPARED runs no callbacks of this session, so a
/// prepared claim or completion could never reach the frontier.
///
/// Errors: 0A000, raised.
pub fn refuse_prepare() {
    let only_enqueued = PENDING.with_borrow(|pending| {
        pending.iter().all(|p| {
            matches!(
                p.step,
                Step::Enqueued { .. }
                    | Step::Expiry(ExpiryStep::Waits { .. })
                    | Step::Queue(QueueStep::NotifyDue { .. })
                    | Step::RerunAsked { .. }
                    | Step::Extension(ExtensionStep::Dropped)
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
