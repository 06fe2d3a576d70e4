//! Enqueues the jobs of schedules whose slots have come.
//!
//! A slot's job and the row that says so are inserted by one transaction; what is fired follows from the rows alone.
//! So no crash, no restart and no promotion doubles a slot or drops one. One process fires at a time: whoever does
//! not get the token leaves it to the other.
//!
//! Invariant: shared memory knows the next slot, or that somebody must look. The commit of whatever changes a
//! schedule has it say "look", and so has a firing that is rolled back. Only who fires makes it later, when it is done:
//! so a worker that looks at it meanwhile does not fall asleep.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use pgrx::pg_sys::Datum;

use crate::api::enqueue::{self, Options};
use crate::api::{job, schedules};
use crate::duty::{Duty, turn_firings};
use crate::error::{self, Result};
use crate::instance::{self, Catalog};
use crate::log::firing::{self, Firing, Kind};
use crate::queue::Queue;
use crate::schedule::{self, Schedule};
use crate::transaction::{self, Step};
use crate::{clock, limits, queue, shmem, sys};

mod agenda;

use agenda::{Agenda, Entry};

/// The duty.
pub const DUTY: Duty = Duty { name: "fire_schedules", is_due, run };

/// Jobs per transaction, more or less: what one schedule has to catch up with is not divided.
const BATCH: usize = 1000;
/// Bytes of payloads that one schedule's jobs may have in one go.
const AT_ONCE: usize = 16 << 20;

fn is_due(number: u32) -> bool {
    let now = clock::now_us();
    shmem::with_instance(number, |_, instance| instance.schedules.next_slot <= now).unwrap_or(false)
}

thread_local! {
    /// What this process knows of schedules; taken out while it works, so that an error leaves nothing.
    static AGENDA: Cell<Agenda> = Cell::default();
}

fn run(number: u32) -> i64 {
    transaction::register();
    let Some(catalog) = instance::of_duty(number) else { return 0 };
    // A slot must be committed before the next one is fired, by whomever.
    if sys::in_transaction_block() || !firing::try_lock(&catalog) {
        return 0;
    }
    transaction::remember(number, Step::SlotsTaken);
    let pid = sys::pid();
    let changes = shmem::with_instance(number, |_, instance| {
        let known = &mut instance.schedules;
        if std::mem::replace(&mut known.firer, pid) != pid {
            known.changes += 1;
        }
        known.changes
    });
    let Some(changes) = changes else { return 0 };
    let mut agenda = AGENDA.take().current(&catalog, changes);
    let now = clock::now_us();
    let done = fire_due(&catalog, &mut agenda, now);
    let next = agenda.next_at(now);
    shmem::with_instance(number, |_, instance| {
        // Unless somebody has said meanwhile that one must look.
        if instance.schedules.changes == changes {
            instance.schedules.next_slot = next;
        }
    });
    AGENDA.set(agenda);
    done
}

/// Fires what is due, all at once; those that spoil it, and those that have failed before, one by one.
fn fire_due(catalog: &Rc<Catalog>, agenda: &mut Agenda, now: i64) -> i64 {
    let due = agenda.due(now, BATCH);
    let (alone, together): (Vec<usize>, Vec<usize>) = due.into_iter().partition(|&n| agenda.entries[n].has_failed());
    let mut done = 0;
    if !together.is_empty() {
        match sys::Scratch::new().lend(|| attempt(catalog, agenda, &together, now, usize::MAX)) {
            Ok(count) => done += count,
            Err(_) => together.iter().for_each(|&n| done += fire_alone(catalog, agenda, n, now)),
        }
    }
    alone.into_iter().for_each(|n| done += fire_alone(catalog, agenda, n, now));
    done
}

fn fire_alone(catalog: &Rc<Catalog>, agenda: &mut Agenda, n: usize, now: i64) -> i64 {
    /// What is tried when all are too many for the queue, and then half of it again and again.
    const SOME: usize = 512;
    let mut most = usize::MAX;
    let mut scratch = sys::Scratch::new();
    loop {
        match scratch.lend(|| attempt(catalog, agenda, &[n], now, most)) {
            Ok(count) => return count,
            // The queue is full with fewer: as many as fit, the oldest first.
            Err(error) if error.code == error::LIMIT && most > 1 => most = SOME.min(most / 2),
            Err(error) => {
                agenda.entries[n].failed(catalog, &error, now);
                return 0;
            }
        }
    }
}

/// Fires these, or none of them; of each at most so many slots.
fn attempt(catalog: &Rc<Catalog>, agenda: &mut Agenda, chosen: &[usize], now: i64, most: usize) -> Result<i64> {
    let works = sys::in_subtransaction(|| {
        let works = chosen.iter().filter_map(|&n| Work::of(catalog, n, &agenda.entries[n], now, most).transpose());
        let mut works = works.collect::<Result<Vec<_>>>()?;
        enqueue(catalog, &mut works)?;
        let firings: Vec<Firing> = works.iter().flat_map(|work| work.firings(now)).collect();
        firing::insert(catalog, &firings)?;
        turn_firings::inserted(firings.len());
        Ok(works)
    })?;
    // Those that were changed are looked at anew.
    chosen.iter().for_each(|&n| agenda.entries[n].next = None);
    let mut done = 0;
    for work in &works {
        if let Some(range) = &work.too_many {
            agenda::warn_of_too_many(&work.schedule.name(), range);
        }
        agenda.entries[work.entry].fired(work.handled, work.last_job(now));
        done += work.slots.len().max(1) as i64;
    }
    Ok(done)
}

/// What is to be done for a schedule.
struct Work {
    /// Its place in the agenda.
    entry: usize,
    schedule: Schedule,
    /// Once for all its jobs.
    payload: Datum,
    queue: Rc<Queue>,
    /// The slots whose jobs are enqueued.
    slots: Vec<i64>,
    /// Their jobs.
    job_ids: Vec<i64>,
    /// The last slot that is dealt with.
    handled: i64,
    /// The last job before these, and when it was enqueued.
    before: Option<(i64, i64)>,
    too_many: Option<std::ops::RangeInclusive<i64>>,
}

impl Work {
    /// `None`: there is nothing to do, or the schedule has changed meanwhile.
    fn of(catalog: &Rc<Catalog>, n: usize, entry: &Entry, now: i64, most: usize) -> Result<Option<Self>> {
        let Some(schedule) = schedule::by_id(catalog, entry.id).filter(|found| found.version() == entry.version) else {
            return Ok(None);
        };
        let due = entry.plan()?.due(entry.handled, now, schedule.missed());
        let Some(mut handled) = due.last else { return Ok(None) };
        let queue = schedules::schedule_queue(catalog, &schedule)?;
        let mut slots = due.run;
        if !schedule.may_overlap() {
            let is_live = match entry.last {
                Some((_, job_id)) => is_live(catalog, job_id)?,
                None => false,
            };
            // The first one's job is live when the others' turn comes.
            slots.truncate(usize::from(!is_live));
        }
        let payload = schedule.payload();
        // The jobs of one go, with all their payloads, lie in memory together.
        let most = most.min((AT_ONCE / sys::bytes_of(&payload).len().max(1)).max(1));
        let mut too_many = due.too_many;
        if slots.len() > most {
            // What comes after them is dealt with later.
            slots.truncate(most);
            (handled, too_many) = (slots.last().copied().unwrap_or(handled), None);
        }
        let (before, job_ids) = (entry.last, Vec::new());
        Ok(Some(Self { entry: n, schedule, payload, queue, slots, job_ids, handled, before, too_many }))
    }

    fn last_job(&self, now: i64) -> Option<(i64, i64)> {
        self.job_ids.last().map(|&job_id| (now, job_id)).or(self.before)
    }

    fn firings(&self, now: i64) -> impl Iterator<Item = Firing> {
        let schedule = self.schedule.id();
        let run =
            move |(&slot, &job_id): (&i64, &i64)| Firing { schedule, slot, last: Some((now, job_id)), kind: Kind::Run };
        let is_last_run = self.slots.last() == Some(&self.handled);
        let skipped = Firing { schedule, slot: self.handled, last: self.last_job(now), kind: Kind::Skipped };
        self.slots.iter().zip(&self.job_ids).map(run).chain((!is_last_run).then_some(skipped))
    }
}

fn is_live(catalog: &Rc<Catalog>, job_id: i64) -> Result<bool> {
    match job::find_any(catalog, job_id) {
        // What has no end when its queue is dropped never gets one.
        Ok(found) => Ok(found.outcome().is_none() && queue::by_lane(catalog, found.lane())?.is_some()),
        // Somebody is ending it, or has it go on.
        Err(error) if error.code == error::IN_USE => Ok(true),
        Err(error) if error.code == error::NO_DATA => Ok(false),
        Err(error) => Err(error),
    }
}

/// Enqueues the jobs, a queue's all at once.
fn enqueue(catalog: &Catalog, works: &mut [Work]) -> Result<()> {
    let now = sys::now_us();
    let mut queues: BTreeMap<i32, Vec<usize>> = BTreeMap::new();
    for (n, work) in works.iter().enumerate() {
        queues.entry(work.queue.id).or_default().push(n);
    }
    for members in queues.values() {
        let queue = Rc::clone(&works[members[0]].queue);
        if let Some(most) = queue.max_waiting {
            // Before anything is made for those that it has no room for.
            limits::has_room(catalog, &queue, most, members.iter().map(|&n| works[n].slots.len()).sum())?;
        }
        let jobs: Vec<(Datum, Options)> = members
            .iter()
            .flat_map(|&n| works[n].slots.iter().map(move |&slot| (n, slot)))
            .map(|(n, slot)| (works[n].payload, works[n].schedule.options(Some(slot))))
            .collect();
        let mut ids = enqueue::insert(catalog, &queue, &jobs, now)?.into_iter();
        for &n in members {
            works[n].job_ids = ids.by_ref().take(works[n].slots.len()).collect();
        }
    }
    Ok(())
}
