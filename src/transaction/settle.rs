//! What each step does at commit and at rollback, under the frontier's lock.
//!
//! Responsible for applying steps, and for waking the sessions and workers that they concern. Not responsible for when
//! that happens (`callbacks`), nor for what a commit counts (`commit_counts`).
//!
//! Postgres makes a commit visible, then runs the callback that leads here, then releases locks; on abort the rows are
//! dead before the callback runs. So whatever the frontier learns here, the logs already say.
//!
//! Invariant: nothing here can fail: it takes the lock, walks a list and sets latches; it allocates nothing and runs no
//! SQL.

use std::cell::LazyCell;
use std::sync::atomic::Ordering;

use pg_queue_core::awaited::Awaited;
use pg_queue_core::frontier::{Frontier, MISSED_CANCEL, MISSED_RERUN};
use pg_queue_core::watchers::Watchers;
use pgrx::pg_sys;

use crate::pg::fault::fault_quietly;
use crate::pg::{session, time, transaction};
use crate::shmem::{self, Instance, awake, keys, layout, words};
use crate::transaction::awaited_ends;
use crate::transaction::commit_counts::CommitCounts;
use crate::transaction::foreign::{HAS_WRITTEN, TOUCHED};
use crate::transaction::pending::{Pending, Step, TO_TELL};

/// Counts off a transaction with foreign writes, or a part of one, that has ended: its writes were committed, or rolled
/// back together with all that it had touched since. `rolled_back_to`: where in `TOUCHED` the part that was rolled back
/// begins; `None`: it was committed. If nothing was written and no other such transaction is open, calls `wake` for
/// each waiting session, for all may go on. The caller holds the frontier's lock. Cannot fail.
pub fn writer_ended(
    frontier: &mut Frontier<'_>,
    instance: &mut Instance,
    slot: usize,
    rolled_back_to: Option<usize>,
    mut wake: impl FnMut(u32),
) {
    if let Some(from) = rolled_back_to {
        TOUCHED.with_borrow_mut(|touched| touched.truncate(from));
    }
    let number = instance.number;
    if !instance.restore.writer_ended(rolled_back_to.is_none() && HAS_WRITTEN.get()) {
        return;
    }
    words::awake(slot).store(if instance.restore.is_awake() { number } else { 0 }, Ordering::Release);
    // What was read meanwhile may have met rows that were rolled back, and the duties have rested.
    frontier.invalidate(number);
    instance.invalidate_counters();
    instance.schedules.invalidate();
    instance.reruns.scan();
    instance.next_due = i64::MIN;
    instance.changes += 1;
    while let Some(session) = frontier.wake_any_lane(number) {
        wake(session);
    }
}

/// Makes the frontier and the worker look again after COMMIT PREPARED or ROLLBACK PREPARED: jobs may have appeared that
/// no callback pushed. Called only for a transaction that may have done something of the extension's.
pub fn prepared_ended() {
    fault_quietly!("prepared.ended");
    keys::prepared_ended();
    let database = session::database();
    let mut worker = std::ptr::null_mut();
    let mut number = 0;
    shmem::with(|shared| {
        let shmem::Shared { frontier, instances, watchers, .. } = shared;
        if let Some(instance) = instances.iter_mut().find(|i| i.number != 0 && i.database == database) {
            watchers.ended_unknown(instance.number);
            frontier.invalidate(instance.number);
            instance.prepared_ended();
            // Requests to cancel are never prepared.
            instance.reruns.scan();
            instance.next_due = i64::MIN;
            worker = instance.worker_latch;
            number = instance.number;
        }
    });
    shmem::wake_latch(worker);
    shmem::wake_watchers();
    // A session that looks and waits again stands at the end of the list: as many calls as there are sessions wake all
    // that were there.
    for _ in 0..layout::max_sessions() {
        match shmem::with(|shared| shared.frontier.wake_any_lane(number)) {
            Some(session) => shmem::wake(session),
            None => break,
        }
    }
}

/// The sessions to wake once the lock is free. They are a few; each of them wakes the next one if jobs are left.
#[derive(Default)]
pub struct Wake {
    sessions: [Option<u32>; 8],
    count: usize,
    /// The lane that jobs were pushed to last, and how many were woken for it.
    lane: (i32, usize),
    /// Whether sessions that wait for the end of a job are due.
    watchers: bool,
    pub worker: Option<*mut pg_sys::Latch>,
}

impl Wake {
    /// How many sessions are woken for the jobs of one lane that follow each other. They wake the other waiters.
    const IN_COMMIT: usize = 4;

    pub fn session(&mut self, session: Option<u32>) {
        if let Some(session) = session {
            if self.count < self.sessions.len() {
                self.sessions[self.count] = Some(session);
                self.count += 1;
            } else {
                // If the list is full, the session's own latch is set at once, under the lock; a spurious wake-up does
                // no harm.
                shmem::wake(session);
            }
        }
    }

    pub fn go(self) {
        self.sessions.iter().flatten().for_each(|&session| shmem::wake(session));
        if let Some(latch) = self.worker {
            shmem::wake_latch(latch);
        }
        if self.watchers {
            shmem::wake_watchers();
        }
    }
}

/// Those that are told of the end of a job.
struct Ends<'a, 's> {
    awaited: &'a mut Awaited,
    watchers: &'a mut Watchers<'s>,
    number: u32,
    worker: *mut pg_sys::Latch,
}

impl Ends<'_, '_> {
    /// A job has ended. 0: it is not known which.
    fn tell(&mut self, job_id: i64, wake: &mut Wake) {
        let (wakes_worker, wakes_watchers) = match job_id {
            0 => (self.awaited.ended_unknown(), self.watchers.ended_unknown(self.number)),
            _ => {
                let is_awaited = !self.awaited.is_quiet()
                    && match awaited_ends::served(self.number, job_id) {
                        Some(adds) => self.awaited.ended_served(job_id, adds),
                        None => self.awaited.ended(job_id),
                    };
                (is_awaited, self.watchers.ended(self.number, job_id))
            }
        };
        if wakes_worker {
            wake.worker = Some(self.worker);
        }
        wake.watchers |= wakes_watchers;
    }
}

fn commit(shared: &mut shmem::Shared<'_>, slot: usize, step: Step, now: &LazyCell<i64>, wake: &mut Wake) {
    let shmem::Shared { frontier, instances, awaited, watchers, .. } = shared;
    let (instance, awaited) = (&mut instances[slot], &mut awaited[slot]);
    let number = instance.number;
    let mut ends = Ends { worker: instance.worker_latch, awaited, watchers, number };
    match step {
        Step::Enqueued { lane, ready, run_at, .. } => {
            count(instance, ready.place.segment, 1, 0, wake);
            let due_to = instance.due_to;
            let is_due = run_at == 0 || instance.is_passed(run_at);
            if instance.due_to != due_to {
                // The clock was set back: the worker has to find out what falls due behind the cursor.
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
            if let Some(latch) = instance.wake_worker_by(deadline) {
                wake.worker = Some(latch);
            }
        }
        Step::Ended { id, .. } | Step::Ending { id, .. } => {
            if let Some((entry, woken)) = frontier.ended(&mut instance.deadlines, number, id) {
                count(instance, entry.place.segment, 0, 1, wake);
                wake.session(woken);
                // Its command may run in the server yet, where the worker can stop it.
                if entry.bound != 0 && entry.session != session::session() + 1 {
                    wake.worker = Some(instance.worker_latch);
                }
                // The session that ended the attempt has made the next run, unless it could not know that one was asked
                // for.
                if entry.missed & MISSED_RERUN != 0 || entry.rerun != 0 && matches!(step, Step::Ended { .. }) {
                    wake.worker = Some(instance.miss_rerun(id));
                }
                if entry.missed & MISSED_CANCEL != 0 {
                    wake.worker = Some(instance.miss_cancel(id));
                }
                if ends_job(step) {
                    ends.tell(entry.rank.job_id, wake);
                }
            } else if ends_job(step) {
                ends.tell(0, wake);
            }
        }
        Step::Awaited { job_id, mark } => {
            let is_to_wake = match mark {
                Some(mark) => ends.awaited.add_announced(job_id, mark),
                None => ends.awaited.add(job_id),
            };
            if is_to_wake {
                wake.worker = Some(instance.worker_latch);
            }
        }
        Step::Settled { job_id } => ends.tell(job_id, wake),
        Step::Relocated { id, place } => frontier.relocate(number, id, place),
        Step::Counted { segment, attempts, ended } => count(instance, segment, attempts, ended, wake),
        Step::Segment { segment, generation, state, copied_to } => {
            instance.segment_changed(segment, generation, state, copied_to, time::now_us());
            // The storage duty's step that changed the state was one of several: the worker goes on with the next.
            wake.worker = Some(instance.worker_latch);
        }
        Step::Missed { lane, ready } => wake.session(frontier.push(number, lane, ready)),
        Step::Lengthened { id, lease, deadline } => {
            frontier.lengthen(&mut instance.deadlines, number, id, lease, deadline);
        }
        Step::RerunAsked { id } => {
            if let Some(latch) = instance.rerun_asked(frontier, id) {
                wake.worker = Some(latch);
            }
        }
        Step::CancelRequested { lane, ready } => {
            // The attempt is not running any more: its claim was rolled back before this commit, or it has ended and
            // its job goes on.
            if frontier.request_cancel(number, ready.id) {
                // Its command may run in the server, where the worker can stop it.
                wake.worker = Some(instance.worker_latch);
            } else {
                wake.worker = Some(if frontier.expire_now(&mut instance.deadlines, number, lane, ready) {
                    instance.worker_latch
                } else {
                    instance.miss_cancel(ready.id)
                });
            }
        }
        Step::LaneChanged { lane, paused } => {
            instance.forget_drop_mark(lane);
            frontier.set_paused(number, lane, paused);
            tell_later(number, step);
        }
        Step::LaneDropped { lane } | Step::LaneClosed { lane } => {
            instance.end_drop_mark(lane, true);
            tell_later(number, step);
        }
        Step::InstanceDropped => {
            wake.session(frontier.drop_instance(&mut instance.deadlines, number));
            wake.worker = Some(instance.worker_latch);
            instance.number = 0;
            tell_later(number, step);
        }
        Step::Notify { lane } => notify(instance, lane, wake),
        Step::Published { topic, counts } => instance.topics.add(topic, &counts),
        Step::TopicDropped { topic } => instance.topics.forget(topic),
        Step::ForeignWrite { .. } => foreign_writer_ended(frontier, instance, slot, None, wake),
        Step::Adopted { .. } => tell_later(number, step),
        Step::SchedulesChanged { .. } => {
            instance.schedules.invalidate();
            wake.worker = Some(instance.worker_latch);
        }
        Step::Notified { .. } | Step::InstanceMade | Step::SlotsTaken | Step::LimitsAltered { .. } => {}
        Step::EndingUnknown { .. } => {
            if ends_job(step) {
                ends.tell(0, wake);
            }
        }
        // It only counts: see `transaction::commit_counts`.
        Step::Purged { .. } | Step::Told { .. } => {}
        // Attempts that held up their group may be among the rows.
        Step::Unseen { lane } => {
            frontier.release_held(number);
            wake.session(frontier.pass_on(number, lane));
        }
    }
}

/// Whether a step that ends an attempt may end its job. Of an attempt that was ended unrun it is not known.
fn ends_job(step: Step) -> bool {
    match step {
        Step::Ending { end, .. } | Step::EndingUnknown { end, .. } => end.is_none_or(|end| !end.has_next),
        _ => true,
    }
}

/// Counts rows of a segment, and has the storage duty look at it when that makes a difference.
fn count(instance: &mut Instance, segment: u8, attempts: i64, ended: i64, wake: &mut Wake) {
    if let Some(at) = instance.count_rows(segment, attempts, ended)
        && instance.look_at_storage_by(at)
    {
        wake.worker = Some(instance.worker_latch);
    }
}

/// Has the worker send a NOTIFY for this lane.
fn notify(instance: &mut Instance, lane: i32, wake: &mut Wake) {
    if !instance.notify.contains(&lane) {
        // If the list is full, this lane takes the first place from another one. With so many busy queues, both will
        // soon ask again.
        let free = instance.notify.iter().position(|&l| l == 0).unwrap_or(0);
        instance.notify[free] = lane;
        wake.worker = Some(instance.worker_latch);
    }
}

/// Ends a foreign write, and wakes the worker, which sets its timer by it.
fn foreign_writer_ended(
    frontier: &mut Frontier<'_>,
    instance: &mut Instance,
    slot: usize,
    rolled_back_to: Option<usize>,
    wake: &mut Wake,
) {
    instance.begin_key_turn();
    writer_ended(frontier, instance, slot, rolled_back_to, |session| wake.session(Some(session)));
    wake.worker = Some(instance.worker_latch);
}

/// Notes a step that other sessions must not be told of yet: see `callbacks::on_resource_release`.
fn tell_later(number: u32, step: Step) {
    TO_TELL.with_borrow_mut(|later| later.push((number, step)));
}

/// Wakes all sessions that wait where something was changed, because each must read the settings anew. Called after the
/// transaction's invalidation messages were sent.
pub fn tell(number: u32, step: Step) {
    if let Step::Adopted { marks } = step
        && !awake::wake(number, marks)
    {
        return;
    }
    // From here on, no session goes to sleep with the old settings.
    let worker = shmem::with_instance(number, |_, instance| {
        instance.changes += 1;
        instance.worker_latch
    });
    let has_work = match step {
        Step::Adopted { .. } => true,
        // The queue may have an executor now, or may run again.
        Step::LaneChanged { .. } => true,
        // What was after the queue's jobs cannot come any more, and the worker knows by now that the queue was dropped.
        Step::LaneDropped { .. } => shmem::with_awaited(number, |awaited, _| awaited.ended_unknown()) == Some(true),
        _ => false,
    };
    if let Some(latch) = worker.filter(|_| has_work) {
        shmem::wake_latch(latch);
    }
    if !matches!(step, Step::LaneChanged { .. }) && shmem::with(|shared| shared.watchers.ended_unknown(number)) {
        shmem::wake_watchers();
    }
    // A session that looks and waits again stands at the end of the list: as many calls as there are sessions wake all
    // that were there.
    for _ in 0..layout::max_sessions() {
        let woken = shmem::with(|shared| match step {
            Step::LaneChanged { lane, paused } => {
                // It is set again: a session may have gone to sleep with the old settings meanwhile.
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
        let woken = shmem::with_instance(number, |frontier, instance| {
            frontier.drop_lane(&mut instance.deadlines, number, lane)
        });
        if let Some(session) = woken.flatten() {
            shmem::wake(session);
        }
    }
}

fn abort(
    frontier: &mut Frontier<'_>,
    instances: &mut [Instance],
    slot: usize,
    step: Step,
    now: &LazyCell<i64>,
    wake: &mut Wake,
) {
    let instance = &mut instances[slot];
    let number = instance.number;
    match step {
        Step::Taken { id, .. } | Step::Ended { id, .. } => {
            if let Some(latch) = instance.miss_of_entry(frontier, id) {
                wake.worker = Some(latch);
            }
            let woken = frontier.give_back(&mut instance.deadlines, number, id, **now);
            wake.session(woken);
            if frontier.next_deadline(instance.deadlines) == Some(i64::MIN) {
                wake.worker = Some(instance.worker_latch);
            }
        }
        // The dead row takes up space until the segment is emptied.
        Step::Enqueued { lane, ready, .. } => {
            frontier.withdraw(number, lane, ready);
            count(instance, ready.place.segment, 1, 1, wake);
        }
        Step::Missed { lane, ready } => wake.session(frontier.push(number, lane, ready)),
        Step::Ending { id, .. } => {
            frontier.undo_end(&mut instance.deadlines, number, id);
            if let Some(deadline) = frontier.next_deadline(instance.deadlines)
                && let Some(latch) = instance.wake_worker_by(deadline)
            {
                wake.worker = Some(latch);
            }
        }
        Step::Unseen { lane } => {
            frontier.invalidate(number);
            wake.session(frontier.pass_on(number, lane));
        }
        Step::LaneDropped { lane } | Step::LaneClosed { lane } => instance.end_drop_mark(lane, false),
        Step::Notified { lane } => notify(instance, lane, wake),
        Step::ForeignWrite { from } => foreign_writer_ended(frontier, instance, slot, Some(from), wake),
        Step::SlotsTaken => {
            instance.schedules.invalidate();
            wake.worker = Some(instance.worker_latch);
        }
        Step::InstanceMade => {
            wake.session(frontier.drop_instance(&mut instance.deadlines, number));
            instance.number = 0;
        }
        _ => {}
    }
}

/// How many steps are applied under one hold of the lock.
const BATCH: usize = 256;

/// Applies these steps, the first one first at a commit, the last one first at a rollback. Takes the frontier's lock
/// for [`BATCH`] steps at a time, and wakes sessions after each. Cannot fail.
pub fn settle(pending: &[Pending], committed: bool) {
    // The clock is read only if a step asks for it; most do not.
    let now: LazyCell<i64> = LazyCell::new(time::monotonic_us);
    let xid = if committed { transaction::transaction_id() } else { 0 };
    let apply = |steps: &mut dyn Iterator<Item = &Pending>| {
        let mut wake = Wake::default();
        shmem::with(|shared| {
            // It is opened under each hold of the lock: a recount may have begun since the last one.
            let mut counts = CommitCounts::open(xid);
            for p in steps {
                let Some(slot) = shared.instances.iter().position(|i| i.number == p.instance) else { continue };
                if committed {
                    commit(shared, slot, p.step, &now, &mut wake);
                    let shmem::Shared { instances, horizons, counters, .. } = shared;
                    counts.enter(instances, slot, horizons, counters, p.step);
                } else {
                    abort(&mut shared.frontier, shared.instances, slot, p.step, &now, &mut wake);
                }
                if shared.instances[slot].number == 0 {
                    shared.counters.forget_instance(p.instance);
                }
            }
            counts.close(shared.instances, &mut shared.counters);
            // Groups may be at their rate from now on; the worker lets them start again.
            if let Some(at) = shared.frontier.next_opening()
                && let Some(p) = pending.last()
                && let Some(instance) = shared.instances.iter_mut().find(|i| i.number == p.instance)
                && let Some(latch) = instance.wake_worker_by(at)
            {
                wake.worker = Some(latch);
            }
        });
        wake.go();
    };
    if committed {
        pending.chunks(BATCH).for_each(|chunk| apply(&mut chunk.iter()));
    } else {
        pending.rchunks(BATCH).for_each(|chunk| apply(&mut chunk.iter().rev()));
    }
}

/// Counts the rows of a transaction that is being prepared. COMMIT PREPARED counts nothing, and the rows are there,
/// committed or not.
pub fn count_prepared(pending: &[Pending]) {
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
