//! Releases or skips held jobs when their predecessors have ended.
//!
//! Commits hand over the jobs in question (`core::awaited`). This duty takes them, finds out their fates and those of
//! the held jobs' other predecessors, and acts. A released job continues as another attempt, in the lane where it
//! should begin. A skipped job ends unrun, which hands it over in turn. docs/internals/after.md has the protocol, and
//! shows why no job is stranded.
//!
//! Not responsible for what is decided about a held job (`core::after::judge`), for reading it (`look`), nor for
//! writing what follows (`changes`).
//!
//! Invariant: a job is looked at after it was taken, so by rows that are newer than its hand-over. A taken job is
//! served, or handed over again by a rollback or by the end of the process.

use std::cell::Cell;

use pg_queue_core::awaited::Awaited;
use pgrx::pg_sys::Latch;

use crate::duty::care::{Care, PUT_OFF_US};
use crate::duty::release::look::Look;
use crate::duty::release::work::{Position, WORK, Work};
use crate::duty::{self, Duty, Memory, start_due};
use crate::error::Result;
use crate::log::edge::{self, Edges};
use crate::log::living;
use crate::log::segment;
use crate::log::tables::Tables;
use crate::pg::fault::fault;
use crate::pg::scan::{Key, Snapshot};
use crate::pg::{self, memory, process, session, time};
use crate::shmem::{self, Instance, awake, here};
use crate::transaction::{self, hooks};

mod changes;
pub mod ender;
mod known;
mod look;
mod members;
mod work;

/// The duty.
pub const DUTY: Duty = Duty { name: "release", is_due: None, next_at, work: duty::Work::Items(run) };

/// If an open transaction blocks a job, the next look is after this many microseconds.
const BLOCKED_PAUSE_US: i64 = 100_000;
/// Looks at everything take at most a tenth of the time, however often they are ordered: a pause lasts this many times
/// as long as the look before it.
const PAUSES_PER_LOOK: i64 = 10;
/// The longest pause after a look at everything, in microseconds.
const MAX_PAUSE_US: i64 = 60_000_000;

thread_local! {
    /// The instance to which `WORK` belongs. 0: none.
    static OF: Cell<u32> = const { Cell::new(0) };
    /// True if this process is looking at everything.
    static IS_LOOKING: Cell<bool> = const { Cell::new(false) };
}

fn next_at(memory: &Memory<'_, '_>) -> i64 {
    own_at().min(memory.awaited.look_at())
}

/// Returns the monotonic time at which this process has something to serve that it has taken.
fn own_at() -> i64 {
    let number = here::number();
    if OF.get() != number {
        return i64::MAX;
    }
    WORK.with_borrow(|work| {
        if work.left.is_empty() { work.later.values().copied().min().unwrap_or(i64::MAX) } else { i64::MIN }
    })
}

/// True if every end so far was looked at, so that ended jobs may be deleted. Sessions that have ended jobs hold locks
/// until they have handed the jobs over.
pub fn is_idle() -> bool {
    shmem::with_awaited(|awaited, _| awaited.is_quiet() || awaited.is_idle()).unwrap_or(true)
}

/// Hands over again the jobs that the rolled-back transaction has served. Also hands over the remaining jobs, unless
/// this is the worker, which will serve them later.
fn undone() {
    WORK.with_borrow_mut(|work| {
        // A look at a flow without need does no harm.
        let mut jobs = std::mem::take(&mut work.taken);
        shmem::with_awaited_of(OF.get(), |awaited, instance| {
            if instance.worker.pid != session::pid() {
                jobs.extend(std::mem::take(&mut work.left).into_iter().map(|(job_id, _)| job_id));
                jobs.extend(std::mem::take(&mut work.later).into_keys());
            }
            jobs.iter().for_each(|job_id| _ = awaited.hand_over(*job_id));
        });
    });
}

/// At the end of a transaction, clears the mark in memory that this process is serving, if nothing is left to serve.
fn settled() {
    let is_done = WORK.with_borrow_mut(|work| work.left.is_empty() && std::mem::take(&mut work.is_serving));
    if is_done {
        shmem::with_awaited_of(OF.get(), |awaited, _| awaited.serve(false));
    }
}

/// If this process ends with something left, orders a look at everything. Returns the latch of the worker.
fn abandon(instances: &mut [Instance], awaited: &mut [Awaited]) -> Option<*mut Latch> {
    let slot = instances.iter().position(|i| i.number == OF.get() && i.number != 0)?;
    let awaited = &mut awaited[slot];
    let is_serving = WORK.try_with(|work| work.try_borrow().is_ok_and(|work| work.is_serving)).unwrap_or(true);
    let has_flows = WORK.try_with(|work| work.try_borrow().is_ok_and(|work| !work.later.is_empty())).unwrap_or(true);
    if IS_LOOKING.take() {
        awaited.give_up_look();
    } else if !is_serving && !has_flows {
        return None;
    }
    if is_serving {
        awaited.serve(false);
    }
    if is_serving || has_flows {
        awaited.order();
    }
    Some(instances[slot].worker.latch)
}

fn run(care: &Care) -> Result<i64> {
    let number = here::number();
    transaction::register();
    // Jobs that a transaction block takes would wait for its end.
    if pg::transaction::in_transaction_block() {
        return Ok(0);
    }
    if OF.replace(number) != number {
        WORK.set(Work::default());
        known::forget();
    }
    hooks::at_exit(abandon);
    hooks::on_rollback(undone);
    hooks::at_end(settled);
    WORK.with_borrow_mut(|work| work.taken.clear());
    serve(care)
}

/// Serves the jobs that memory has and the remaining ones, as many as fit into a transaction.
fn serve(care: &Care) -> Result<i64> {
    if !take_jobs() {
        return Ok(0);
    }
    fault!("release.taken");
    if care.is_careful() { serve_each(care) } else { serve_together(care) }
}

/// Serves jobs together. Returns how many.
fn serve_together(care: &Care) -> Result<i64> {
    let mut look = Look::by_duty();
    let mut did = 0;
    while !look.is_full()
        && let Some((job_id, from)) = next_left()
    {
        did += 1;
        walk(&mut look, job_id, from)?;
        process::check_for_interrupts();
    }
    fault!("release.looked");
    look.changes.write(care)?;
    fault!("release.written");
    leave_for_later(&look.changes.again, &look.changes.failed);
    Ok(did)
}

/// After an error, serves each job that was handed over by itself, and so each job that is held because of it. Returns
/// how many were served.
fn serve_each(care: &Care) -> Result<i64> {
    /// At most this many jobs are served by themselves in one transaction.
    const MAX_JOBS: i64 = 100;
    let (mut did, mut again, mut failed) = (0, Vec::new(), Vec::new());
    while did < MAX_JOBS
        && let Some((job_id, from)) = next_left()
    {
        did += 1;
        let what = || format!("what is after job {job_id} could not be looked at");
        let served = care.serve(what, || {
            let mut look = Look::by_duty();
            walk(&mut look, job_id, from)?;
            look.changes.write(care)?;
            // What the look has opened is closed here, before the subtransaction ends.
            Ok((look.changes.again, look.changes.failed))
        })?;
        if let Some((blocked, unwritten)) = served {
            again.extend(blocked);
            failed.extend(unwritten);
        } else {
            // The look may have remembered facts that were rolled back.
            known::forget();
            failed.push(job_id);
        }
        process::check_for_interrupts();
    }
    fault!("release.looked");
    fault!("release.written");
    leave_for_later(&again, &failed);
    Ok(did)
}

/// Returns the next job to serve.
fn next_left() -> Option<(i64, Option<Position>)> {
    WORK.with_borrow_mut(|work| {
        let next = work.left.pop_front();
        work.taken.extend(next.map(|(job_id, _)| job_id));
        next
    })
}

fn walk(look: &mut Look, job_id: i64, from: Option<Position>) -> Result<()> {
    if let Some(position) = look.walk(job_id, from)? {
        WORK.with_borrow_mut(|work| work.left.push_front((job_id, Some(position))));
    }
    Ok(())
}

/// Leaves jobs for later: a short while if an open transaction blocks them, a minute if they failed.
fn leave_for_later(again: &[i64], failed: &[i64]) {
    let now = time::monotonic_us();
    shmem::with_awaited(|awaited, instance| {
        again.iter().for_each(|job_id| awaited.put_off(*job_id, now.saturating_add(BLOCKED_PAUSE_US)));
        failed.iter().for_each(|job_id| awaited.put_off(*job_id, now.saturating_add(PUT_OFF_US)));
        // Only the worker will serve the remaining jobs later.
        if instance.worker.pid != session::pid() {
            let left = WORK.with_borrow_mut(|work| std::mem::take(&mut work.left));
            let later = WORK.with_borrow_mut(|work| std::mem::take(&mut work.later));
            let jobs = left.into_iter().map(|(job_id, _)| job_id).chain(later.into_keys());
            jobs.for_each(|job_id| _ = awaited.hand_over(job_id));
        }
    });
}

/// Takes the jobs that memory has. False: there is nothing to do now.
///
/// Jobs that were handed over come before the remaining ones. After a start the remaining ones may be all held jobs,
/// and most of those must wait.
fn take_jobs() -> bool {
    let now = time::monotonic_us();
    let mut is_look = false;
    let mut jobs = memory::list(Awaited::ROOM);
    shmem::with_awaited(|awaited, _| {
        awaited.take(now, session::pid(), &mut jobs);
        is_look = WORK.with_borrow(|work| work.left.is_empty()) && awaited.begin_look(now);
        IS_LOOKING.set(is_look);
    });
    let add = |jobs: Vec<i64>, is_found: bool| {
        WORK.with_borrow_mut(|work| {
            let jobs = jobs.into_iter().map(|job_id| (job_id, None));
            if is_found {
                work.left.extend(jobs)
            } else {
                jobs.rev().for_each(|job| work.left.push_front(job))
            }
            if !work.left.is_empty() && !std::mem::replace(&mut work.is_serving, true) {
                shmem::with_awaited(|awaited, _| awaited.serve(true));
            }
        });
    };
    // These are added first, so that an error in the look does not lose them.
    add(jobs, false);
    add(WORK.with_borrow_mut(|work| work.later.extract_if(|_, at| *at <= now).map(|(flow, _)| flow).collect()), true);
    if is_look {
        add(look_at_everything(), true);
    }
    is_look || WORK.with_borrow(|work| !work.left.is_empty())
}

/// Gives up a look at everything if an error ends it.
struct FullLook(u32);

impl Drop for FullLook {
    fn drop(&mut self) {
        if IS_LOOKING.take() {
            shmem::with_awaited_of(self.0, |awaited, _| awaited.give_up_look());
        }
    }
}

/// Reads which jobs have held successors, and makes memory know them. Returns these, because some may have ended, and
/// held jobs whose time may have come.
fn look_at_everything() -> Vec<i64> {
    /// At most this many jobs are made known in one hold of the lock.
    const JOBS_PER_HOLD: usize = 256;
    let number = here::number();
    let look = FullLook(number);
    let began = time::monotonic_us();
    fault!("release.begun");
    let catch_up = || {
        process::check_for_interrupts();
        if awake::is_awake() {
            start_due::catch_up();
        }
    };
    let mut awaited: Vec<i64> = Vec::new();
    let mut due: Vec<i64> = Vec::new();
    for segment in segment::inhabited() {
        let Some(edges) = Edges::open(segment) else { continue };
        let tables = Tables::open(segment);
        let mut n = 0_u32;
        edges.each(|edge| {
            if edge.job_id == edge::SEAL {
                return;
            }
            // A flow lives as long as it waits, and its members are looked at.
            if edge.is_own {
                due.push(edge.job_id);
            }
            let is_known = awaited.last() == Some(&edge.job_id);
            if !is_known && tables.claims().find(edge.id, Snapshot::Now).is_none() {
                awaited.push(edge.job_id);
            }
            if edge.heeds_time() {
                let mut attempts = tables.attempt.scan(tables.by_id(), &[Key::eq_i64(1, edge.id)], Snapshot::Now);
                due.extend(attempts.next().map(|_| attempts.columns(2).0[1].value() as i64));
            }
            n += 1;
            if n.is_multiple_of(1024) {
                catch_up();
            }
        });
    }
    awaited.sort_unstable();
    awaited.dedup();
    for chunk in awaited.chunks(JOBS_PER_HOLD) {
        shmem::with_awaited(|known, _| chunk.iter().for_each(|job_id| known.found(*job_id)));
    }
    // If such a job lives, its end will hand it over.
    living::retain_others(&mut awaited, catch_up);
    let now = time::monotonic_us();
    let pause = (now - began).saturating_mul(PAUSES_PER_LOOK).min(MAX_PAUSE_US);
    shmem::with_awaited(|awaited, _| awaited.looked(now.saturating_add(pause)));
    IS_LOOKING.set(false);
    drop(look);
    due.sort_unstable();
    due.dedup();
    awaited.extend(due);
    awaited
}
