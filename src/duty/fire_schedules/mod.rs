//! Enqueues the jobs of schedules whose slots have come.
//!
//! One transaction inserts a slot's job and its row in the log of firings, and the next slot follows from the rows
//! alone. So no crash, restart or promotion doubles a slot or loses one. One process fires at a time. A process that
//! does not get the token leaves the work to the other.
//!
//! Invariant: shared memory knows the next slot, or that a process must look. A commit that changes a schedule sets it
//! to "look", and so does a firing that is rolled back. Only the process that fires sets it to a later time, and only
//! when it has finished. So a worker that reads it meanwhile does not fall asleep.

use std::cell::Cell;
use std::collections::BTreeMap;

use agenda::{Agenda, Entry};
use pg_queue_core::schedule::{Due, MAX_MISSED_SLOTS};
use pgrx::pg_sys::Datum;

use crate::catalog::schedule::Schedule;
use crate::catalog::{self, queue};
use crate::duty::care::{self, Care};
use crate::duty::{self, Duty, Memory, rotate_firings};
use crate::error::{self, Result};
use crate::job::options::Options;
use crate::job::schedule::Goal;
use crate::job::{self, find, limits};
use crate::log::firing::{self, Firing, Kind, Owed};
use crate::pg::{self, datum, session, time};
use crate::shmem;
use crate::transaction::{self, ScheduleStep};

pub mod agenda;

/// The duty.
pub const DUTY: Duty = Duty { name: "fire_schedules", is_due: None, next_at, work: duty::Work::Items(run) };

/// At most this many schedules per transaction, and so about as many jobs. The slots that one schedule must catch up
/// with are not divided.
const BATCH_SCHEDULES: usize = 1000;
/// The jobs of one schedule may have this many bytes of payloads in one transaction.
const MAX_BYTES: usize = 16 << 20;

fn next_at(memory: &Memory<'_, '_>) -> i64 {
    memory.at_wall(memory.instance.schedules.next_slot, catalog::schedule::now_us())
}

thread_local! {
    /// What this process knows of schedules. It is taken out while the process works, so that an error discards it.
    static AGENDA: Cell<Agenda> = Cell::default();
}

fn run(_: &Care) -> Result<i64> {
    transaction::register();
    // A slot must be committed before any process fires the next one.
    if pg::transaction::in_transaction_block() || !firing::try_lock() {
        return Ok(0);
    }
    transaction::record(ScheduleStep::SlotsTaken);
    let pid = session::pid();
    let changes = shmem::with_instance(|_, instance| {
        let known = &mut instance.schedules;
        if std::mem::replace(&mut known.firer, pid) != pid {
            known.changes += 1;
        }
        known.changes
    });
    let Some(changes) = changes else { return Ok(0) };
    let mut agenda = AGENDA.take().current(changes);
    let now = catalog::schedule::now_us();
    let done = fire_due(&mut agenda, now);
    let next = agenda.next_at(now);
    shmem::with_instance(|_, instance| {
        // The condition fails if a commit has set it to "look" meanwhile.
        if instance.schedules.changes == changes {
            instance.schedules.next_slot = next;
        }
    });
    AGENDA.set(agenda);
    Ok(done)
}

/// Fires the due schedules together. If that fails, fires them one by one. Schedules that failed before are also fired
/// one by one. Returns how many slots were handled.
fn fire_due(agenda: &mut Agenda, now: i64) -> i64 {
    let due = agenda.due(now, BATCH_SCHEDULES);
    let (alone, together): (Vec<usize>, Vec<usize>) = due.into_iter().partition(|&n| agenda.entries[n].has_failed());
    let mut done = 0;
    if !together.is_empty() {
        match datum::Scratch::new().lend(|| attempt(agenda, &together, now, usize::MAX)) {
            Ok(count) => done += count,
            Err(_) => together.iter().for_each(|&n| done += fire_alone(agenda, n, now)),
        }
    }
    alone.into_iter().for_each(|n| done += fire_alone(agenda, n, now));
    done
}

fn fire_alone(agenda: &mut Agenda, n: usize, now: i64) -> i64 {
    /// If the queue has no room for all slots, this many are tried, then half as many, and so on.
    const MAX_SLOTS: usize = 512;
    let mut most = usize::MAX;
    let mut scratch = datum::Scratch::new();
    loop {
        match scratch.lend(|| attempt(agenda, &[n], now, most)) {
            Ok(count) => return count,
            // The queue has room for fewer jobs. As many as fit are fired, the oldest first.
            Err(error) if error.code == error::LIMIT && most > 1 => most = MAX_SLOTS.min(most / 2),
            Err(error) => {
                agenda.entries[n].failed(&error, now);
                return 0;
            }
        }
    }
}

/// Fires all chosen schedules in a subtransaction, or none of them: at most `most` slots of each.
fn attempt(agenda: &mut Agenda, chosen: &[usize], now: i64, most: usize) -> Result<i64> {
    let works = care::apart(|| {
        let works = chosen.iter().filter_map(|&n| Work::of(n, &agenda.entries[n], now, most).transpose());
        let mut works = works.collect::<Result<Vec<_>>>()?;
        enqueue(&mut works)?;
        let firings: Vec<Firing> = works.iter().flat_map(|work| work.firings(now)).collect();
        firing::insert(&firings)?;
        rotate_firings::inserted(firings.len());
        Ok(works)
    })?;
    // `works` leaves out schedules that have changed since. They are not due before the agenda is read again.
    chosen.iter().for_each(|&n| agenda.entries[n].next = None);
    let mut done = 0;
    for work in &works {
        if let Some(range) = &work.too_many {
            agenda::warn_of_too_many(&work.schedule.name(), range);
        }
        agenda.entries[work.entry].fired(work.handled, work.last_job(now), work.owed);
        done += work.slots.len().max(1) as i64;
    }
    Ok(done)
}

/// The work for one schedule.
struct Work {
    /// The index of the schedule in the agenda.
    entry: usize,
    schedule: Schedule,
    /// The payload, read once for all jobs.
    payload: Datum,
    goal: Goal,
    /// The slots whose jobs are enqueued.
    slots: Vec<i64>,
    /// The ids of their jobs. 0: no job, because no queue is bound to the topic.
    job_ids: Vec<i64>,
    /// The last slot that is handled, run or skipped.
    handled: i64,
    /// The last job before these slots, and when it was enqueued.
    before: Option<(i64, i64)>,
    /// The missed slots that are skipped and reported in the log now.
    too_many: Option<std::ops::RangeInclusive<i64>>,
    /// The missed slots after `handled` that remain to run or to skip.
    owed: Option<Owed>,
}

impl Work {
    /// Plans at most `most` jobs of a schedule. `None`: nothing is due, or the schedule has changed meanwhile.
    fn of(n: usize, entry: &Entry, now: i64, most: usize) -> Result<Option<Self>> {
        let Some(schedule) = catalog::schedule::by_id(entry.id).filter(|found| found.version() == entry.version) else {
            return Ok(None);
        };
        let due = match entry.owed {
            // Slots that were missed later come after these.
            Some(owed) => {
                let run: Vec<i64> = entry.plan()?.between(entry.handled, owed.run_to).take(MAX_MISSED_SLOTS).collect();
                Due { run, last: Some(owed.run_to), too_many: None }
            }
            None => entry.plan()?.due(entry.handled, now, schedule.missed()),
        };
        let Some(mut handled) = due.last else { return Ok(None) };
        let goal = job::schedule::goal(&schedule)?;
        let (mut slots, too_many, mut owed) = (due.run, due.too_many, entry.owed);
        if !schedule.may_overlap() {
            let is_live = match entry.last {
                Some((_, job_id)) => is_live(job_id)?,
                None => false,
            };
            // When the other slots would run, the first slot's job still waits or runs.
            slots.truncate(usize::from(!is_live));
        }
        let payload = schedule.payload();
        // The jobs of one transaction, with all their payloads, lie in memory together.
        let most = most.min((MAX_BYTES / datum::bytes_of(&payload).len().max(1)).max(1));
        if slots.len() > most {
            // The later slots are handled by a later transaction. Of the missed slots it runs exactly those that would
            // have run now.
            if let Some(skipped) = &too_many {
                let run_to = slots.iter().copied().rfind(|slot| slot < skipped.start()).unwrap_or(handled);
                owed = Some(Owed { run_to, skip_to: *skipped.end() });
            }
            slots.truncate(most);
            handled = slots.last().copied().unwrap_or(handled);
        }
        let (before, job_ids) = (entry.last, Vec::new());
        Ok(Some(Self { entry: n, schedule, payload, goal, slots, job_ids, handled, before, too_many, owed }))
    }

    fn last_job(&self, now: i64) -> Option<(i64, i64)> {
        self.job_ids.iter().rfind(|&&job_id| job_id != 0).map(|&job_id| (now, job_id)).or(self.before)
    }

    fn firings(&self, now: i64) -> impl Iterator<Item = Firing> {
        let schedule = self.schedule.id();
        let firing = move |slot, last, kind| Firing { schedule, slot, last, kind, owed: None };
        let run = move |(&slot, &job_id): (&i64, &i64)| match job_id {
            // The event was published, and no queue got it.
            0 => firing(slot, self.before, Kind::Skipped),
            job_id => firing(slot, Some((now, job_id)), Kind::Run),
        };
        let is_last_run = self.slots.last() == Some(&self.handled);
        let skipped = firing(self.handled, self.last_job(now), Kind::Skipped);
        let owed = self.too_many.as_ref().and(self.owed).map(|owed| Firing::owed(schedule, owed));
        self.slots.iter().zip(&self.job_ids).map(run).chain((!is_last_run).then_some(skipped)).chain(owed)
    }
}

fn is_live(job_id: i64) -> Result<bool> {
    match find::find_any(job_id) {
        // If its queue is dropped before a job has ended, the job never gets an outcome.
        Ok(found) => Ok(found.outcome().is_none() && queue::by_lane(found.lane())?.is_some()),
        // An open transaction is ending the job, or makes its next attempt.
        Err(error) if error.code == error::IN_USE => Ok(true),
        Err(error) if error.code == error::NO_DATA => Ok(false),
        Err(error) => Err(error),
    }
}

/// Enqueues the jobs, those of each queue or topic together.
fn enqueue(works: &mut [Work]) -> Result<()> {
    let now = time::now_us();
    let mut goals: BTreeMap<i32, Vec<usize>> = BTreeMap::new();
    for (n, work) in works.iter().enumerate() {
        goals.entry(work.goal.id()).or_default().push(n);
    }
    for members in goals.values() {
        let goal = works[members[0]].goal.clone();
        if let Goal::Queue(queue) = &goal
            && let Some(most) = queue.max_waiting
        {
            // This is checked before anything is made for jobs that do not fit.
            limits::has_room(queue, most, members.iter().map(|&n| works[n].slots.len()).sum())?;
        }
        let jobs: Vec<(Datum, Options)> = members
            .iter()
            .flat_map(|&n| works[n].slots.iter().map(move |&slot| (n, slot)))
            .map(|(n, slot)| (works[n].payload, works[n].schedule.options(Some(slot))))
            .collect();
        let mut ids = goal.produce(&jobs, now)?.into_iter();
        for &n in members {
            works[n].job_ids = ids.by_ref().take(works[n].slots.len()).collect();
        }
    }
    Ok(())
}
