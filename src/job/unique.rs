//! Jobs with a unique key: at most one job of each key lives. Decides what each call of a producer does, while the
//! producer holds the keys: it makes a new job, returns the existing one, gives new contents to a waiting one, or
//! leaves a note about a running one.
//!
//! Invariant: a session decides only while it holds the key, and reads the logs only after it has acquired the key. So
//! it sees all jobs of earlier producers. Several calls for one key in one batch have the effect that they would have
//! one after the other.

use std::collections::HashMap;
use std::rc::Rc;

use pg_queue_core::id;
use pgrx::pg_sys::Datum;

use crate::catalog::queue::Queue;
use crate::error::{self, Error, Result};
use crate::job::debounce::{self, Bound};
use crate::job::options::{OnDuplicate, Options, Unique};
use crate::job::outcomes::end_unrun;
use crate::job::take::{self, TakeWaiting};
use crate::job::timing;
use crate::job::{after, find, flow, keys, rerun, start_by};
use crate::log::attempt::{self, Attempt, New};
use crate::log::edge;
pub use crate::log::key::Known;
use crate::log::key::{self, Keys};
use crate::log::note::Rerun;
use crate::log::outcome::{self, Kind};
use crate::log::unique::{Lookup, Newest, State};
use crate::log::{claim, retried};
use crate::pg::scan::Probe;
use crate::pg::time::LAST_TIME;
use crate::pg::{datum, memory, process, transaction};
use crate::shmem::{self, here};

/// The holder of a key.
enum Holder {
    /// No job.
    NoJob,
    /// The job that the call of this position makes.
    New(usize),
    /// A living job, or an ended job that will run once more.
    Live(Box<Newest>),
    /// An ended job. The key is taken for a while (unique_for).
    Ended(i64),
}

/// A key, while its calls are decided.
struct Slot {
    key: Datum,
    holder: Holder,
    known: Option<Known>,
    version: Option<i64>,
    taken_until: Option<i64>,
    /// The last call that counts.
    last_call: Option<usize>,
    /// True if facts about the key must be kept after the job's end.
    is_remembered: bool,
}

/// The job that a call returns.
#[derive(Clone, Copy)]
enum Answer {
    /// The job that the call of this position makes.
    New(usize),
    /// An existing job.
    Job(i64),
}

/// The decisions on the calls of a producer. This session holds the keys of the calls that have keys.
pub struct Plan<'a> {
    queue: &'a Queue,
    jobs: &'a [(Datum, Options)],
    now: i64,
    lookup: Lookup,
    keys: Keys,
    slots: Vec<Slot>,
    /// One for each call.
    answers: Vec<Answer>,
    /// The jobs to insert: new jobs, and jobs without a key.
    pub new: Vec<(Datum, Options)>,
}

/// Returns the existing job under the key of a single call, if the call does nothing about it. It does not hold the
/// key.
///
/// Errors: 23505 on 'error'.
pub fn is_there(queue: &Queue, jobs: &[(Datum, Options)]) -> Result<Option<i64>> {
    let [(_, Options { unique: Some(unique), .. })] = jobs else { return Ok(None) };
    match unique.on_duplicate {
        OnDuplicate::Skip => Ok(peek(queue, unique)),
        OnDuplicate::Error if unique.version.is_none() => {
            peek(queue, unique).map_or(Ok(None), |job_id| Err(taken(unique, Some(job_id))))
        }
        OnDuplicate::Error | OnDuplicate::Renew => Ok(None),
    }
}

/// Decides what the calls do, and holds their keys until the transaction ends. Waits for open transactions that hold
/// one.
///
/// Errors: 23505 on 'error', 53400 when too many keys are held.
pub fn plan<'a>(queue: &'a Queue, jobs: &'a [(Datum, Options)], now: i64) -> Result<Plan<'a>> {
    let uniques = || jobs.iter().filter_map(|(_, options)| options.unique.as_ref());
    let mut hashes = memory::collect(uniques().map(|unique| keys::hash(queue.id, datum::bytes_of(&unique.key))));
    keys::acquire(&mut hashes)?;
    if keys::may_miss_holders()? {
        for unique in uniques() {
            while let Some(producer) = Lookup::new().open_producer(queue.living_lanes(), unique.key) {
                transaction::wait_for_transaction(producer);
            }
        }
    }
    let (lookup, keys) = (Lookup::new(), Keys::open());
    let (slots, answers, new) = (memory::list(jobs.len()), memory::list(jobs.len()), Vec::new());
    let mut plan = Plan { queue, jobs, now, lookup, keys, slots, answers, new };
    plan.decide_all()?;
    Ok(plan)
}

/// Returns the living job under a key, without holding the key, for a call that would do nothing about the job.
fn peek(queue: &Queue, unique: &Unique) -> Option<i64> {
    let newest = Lookup::new().newest(queue.living_lanes(), unique.key)?;
    newest.is_live().then(|| newest.attempt.job_id())
}

fn taken(unique: &Unique, job_id: Option<i64>) -> Error {
    let key = crate::pg::datum::text(unique.key);
    let holder = job_id.map_or_else(|| "an earlier job of the same call".to_owned(), |id| format!("job {id}"));
    Error::new(error::UNIQUE, "duplicate unique_key")
        .detail(format!("Key \"{key}\" is held by {holder}."))
        .hint("Use on_duplicate => 'skip', 'replace' or 'rerun' where this is to be expected.")
}

impl Plan<'_> {
    fn decide_all(&mut self) -> Result<()> {
        let mut numbers: HashMap<&[u8], usize> = memory::map(self.jobs.len());
        for (at, (_, options)) in self.jobs.iter().enumerate() {
            let Some(unique) = &options.unique else {
                self.answers.push(Answer::New(at));
                continue;
            };
            let number = *numbers.entry(datum::bytes_of(&unique.key)).or_insert(self.slots.len());
            if number == self.slots.len() {
                let slot = self.slot_of(unique.key);
                self.slots.push(slot);
            }
            self.answers.push(decide(&mut self.slots[number], at, unique)?);
        }
        let mut slots: HashMap<usize, &Slot> = memory::map(self.slots.len());
        slots.extend(
            self.slots
                .iter()
                .filter_map(|slot| if let Holder::New(at) = slot.holder { Some((at, slot)) } else { None }),
        );
        let job = |at| match slots.get(&at) {
            Some(slot) => self.put_off(self.contents(slot, slot.last_call.unwrap_or(at))),
            None => self.jobs[at].clone(),
        };
        self.new = memory::collect(self.places().map(job));
        Ok(())
    }

    /// Returns the positions of the calls that make new jobs, in order.
    fn places(&self) -> impl Iterator<Item = usize> {
        let is_new = |(at, answer): &(usize, &Answer)| matches!(answer, Answer::New(made_by) if made_by == at);
        self.answers.iter().enumerate().filter(is_new).map(|(at, _)| at)
    }

    /// Changes existing jobs and remembers keys, after the new jobs were inserted. `new`: the ids of the new jobs, in
    /// order. Returns an id for each call.
    ///
    /// Errors: 55006 when a job keeps changing.
    pub fn finish(mut self, new: Vec<i64>) -> Result<Vec<i64>> {
        let mut ids = memory::filled(0, self.answers.len());
        self.places().zip(new).for_each(|(at, job_id)| ids[at] = job_id);
        let slots = std::mem::take(&mut self.slots);
        for slot in &slots {
            if let (Holder::Live(_), Some(at)) = (&slot.holder, slot.last_call) {
                ids[at] = self.renew(slot, at)?;
            }
        }
        self.remember(&slots, &ids)?;
        let id_of = |answer: &Answer| match answer {
            Answer::New(other) => ids[*other],
            Answer::Job(job_id) => *job_id,
        };
        Ok(memory::collect(self.answers.iter().map(id_of)))
    }

    /// Returns the slot of a key, with its holder.
    fn slot_of(&mut self, key: Datum) -> Slot {
        let known = self.keys.newest(self.queue.id, key).filter(|known| known.expires_at > self.now);
        let newest = self.lookup.newest(self.queue.living_lanes(), key);
        let asked = newest.as_ref().and_then(|newest| rerun::owed(newest, &newest.attempt));
        let of_attempt = newest.as_ref().and_then(|newest| newest.attempt.version());
        let taken_until = known.and_then(|known| known.taken_until);
        let holder = match newest {
            Some(newest) if newest.is_live() || asked.is_some() => Holder::Live(Box::new(newest)),
            _ if taken_until.is_some_and(|until| until > self.now) => {
                known.map_or(Holder::NoJob, |known| Holder::Ended(known.job_id))
            }
            _ => Holder::NoJob,
        };
        let of_live = if let Holder::Live(_) = holder {
            of_attempt.max(asked.and_then(|asked| asked.rerun().version))
        } else {
            None
        };
        let version = of_live.max(known.and_then(|known| known.version));
        Slot { key, holder, known, version, taken_until, last_call: None, is_remembered: false }
    }

    /// Returns the contents of the call of this position, with the newest known version.
    fn contents(&self, slot: &Slot, at: usize) -> (Datum, Options) {
        let (payload, options) = self.jobs[at].clone();
        let unique = options.unique.map(|unique| Unique { version: slot.version, ..unique });
        (payload, Options { unique, ..options })
    }

    /// Returns the contents of a new job, with the bound that its call sets.
    fn put_off(&self, (payload, mut options): (Datum, Options)) -> (Datum, Options) {
        if let Some(bound) = Bound::of_call(options.timing.as_deref()) {
            let (timing, run_at) = bound.apply(options.run_at, None, self.now);
            (options.timing, options.run_at) = (Some(Rc::new(timing)), run_at);
        }
        (payload, options)
    }

    /// Gives a living job the contents of a call: immediately if it waits, after this run if it runs. Returns the job's
    /// id.
    fn renew(&mut self, slot: &Slot, at: usize) -> Result<i64> {
        let (payload, options) = self.contents(slot, at);
        let bound = Bound::of_call(options.timing.as_deref());
        let asked = rerun::fresh_number()?;
        let put_off = |since: Option<i64>| {
            let as_given = (options.timing.as_deref().copied(), options.run_at);
            let (timing, run_at) = bound.map_or(as_given, |bound| {
                let (timing, run_at) = bound.apply(options.run_at, since, self.now);
                (Some(timing), run_at)
            });
            Rerun {
                asked,
                payload: Some(payload),
                headers: options.headers,
                timing: timing.map(|timing| timing.stored),
                priority: options.priority,
                run_at,
                version: slot.version,
                max_attempts: options.max_attempts,
                lease: options.lease,
                run_as: options.run_as,
            }
        };
        for _ in 0..100 {
            let Some(newest) = self.lookup.newest(self.queue.living_lanes(), slot.key) else { break };
            let attempt = &newest.attempt;
            let after_run = || {
                let asked = bound.and_then(|_| rerun::owed(&newest, attempt));
                put_off(asked.and_then(|asked| timing::since(asked.rerun().timing)))
            };
            let is_done = match newest.state {
                State::Waiting => {
                    let rerun = put_off(bound.and_then(|_| debounce::since_of(self.queue, attempt)));
                    renew_waiting(attempt, &rerun, after_run)?
                }
                State::Running => rerun::ask(attempt, &after_run())?,
                State::Ended => rerun_ended(attempt, &after_run())?,
            };
            if is_done {
                return Ok(attempt.job_id());
            }
            process::check_for_interrupts();
        }
        Err(Error::new(error::IN_USE, "the job under this unique_key keeps changing").hint("Try again."))
    }

    /// Records the facts that must be known after the job has ended.
    fn remember(&self, slots: &[Slot], ids: &[i64]) -> Result<()> {
        /// The shortest time for which a version is known: an hour.
        const MIN_RETENTION_US: i64 = 3_600_000_000;
        let retention = if self.queue.retention < 0 { i64::MAX } else { self.queue.retention.max(MIN_RETENTION_US) };
        let mut rows = Vec::new();
        for slot in slots.iter().filter(|slot| slot.is_remembered) {
            let Some(at) = slot.last_call else { continue };
            let of_version = slot.version.map_or(self.now, |_| self.now.saturating_add(retention));
            let expires_at = of_version.max(slot.taken_until.unwrap_or(self.now));
            let first = if let Holder::New(first) = slot.holder { first } else { at };
            let known = Known {
                entry: id::count(rerun::fresh_number()?),
                job_id: ids[first],
                expires_at: if expires_at > LAST_TIME { i64::MAX } else { expires_at },
                taken_until: slot.taken_until,
                version: slot.version,
            };
            memory::push(&mut rows, key::New { queue_id: self.queue.id, key: slot.key, known });
        }
        key::insert(&rows);
        Ok(())
    }
}

/// Merges the facts that another server remembers of a key with those known here. The larger values count. Returns
/// false if all of them were known.
///
/// Errors: 55006 when an open transaction holds the key.
pub fn take_over(queue: &Queue, key: Datum, from: Known) -> Result<bool> {
    if !keys::try_acquire(keys::hash(queue.id, datum::bytes_of(&key))) {
        return Err(find::in_use(from.job_id));
    }
    let here = Keys::open().newest(queue.id, key);
    let known = here.map_or(from, |here| Known {
        expires_at: here.expires_at.max(from.expires_at),
        taken_until: here.taken_until.max(from.taken_until),
        version: here.version.max(from.version),
        ..from
    });
    let is_known = |here: Known| {
        (here.expires_at, here.taken_until, here.version) == (known.expires_at, known.taken_until, known.version)
    };
    if here.is_some_and(is_known) {
        return Ok(false);
    }
    let entry = id::count(rerun::fresh_number()?);
    key::insert(&[key::New { queue_id: queue.id, key, known: Known { entry, ..known } }]);
    Ok(true)
}

/// Decides what a call does, after the calls before it.
fn decide(slot: &mut Slot, at: usize, unique: &Unique) -> Result<Answer> {
    let there = match &slot.holder {
        Holder::NoJob => None,
        Holder::New(made_by) => Some(Answer::New(*made_by)),
        Holder::Live(newest) => Some(Answer::Job(newest.attempt.job_id())),
        Holder::Ended(job_id) => Some(Answer::Job(*job_id)),
    };
    if let (Some(version), Some(known)) = (unique.version, slot.version)
        && version <= known
        && let Some(answer) = there.or_else(|| slot.known.map(|known| Answer::Job(known.job_id)))
    {
        return Ok(answer);
    }
    let answer = match (there, unique.on_duplicate) {
        (None, _) => {
            slot.holder = Holder::New(at);
            Answer::New(at)
        }
        (Some(answer), OnDuplicate::Skip) => return Ok(answer),
        (Some(answer), OnDuplicate::Error) => {
            let job_id = if let Answer::Job(job_id) = answer { Some(job_id) } else { None };
            return Err(taken(unique, job_id));
        }
        // The job has ended, so it cannot be renewed, and no other job may run until the key is free.
        (Some(answer), OnDuplicate::Renew) if matches!(slot.holder, Holder::Ended(_)) => return Ok(answer),
        (Some(answer), OnDuplicate::Renew) => answer,
    };
    slot.last_call = Some(at);
    slot.version = slot.version.max(unique.version);
    slot.taken_until = slot.taken_until.max(unique.taken_until);
    slot.is_remembered |= unique.version.is_some() || unique.taken_until.is_some();
    Ok(answer)
}

/// Gives other contents to a waiting attempt, or leaves a note about it. `after_run` makes the note if a worker is
/// claiming the attempt. Returns false if the caller must search again.
fn renew_waiting(attempt: &Attempt, rerun: &Rerun, after_run: impl Fn() -> Rerun) -> Result<bool> {
    let is_in_use = match take::take_waiting(attempt)? {
        TakeWaiting::Taken => {
            supersede(attempt, rerun)?;
            return Ok(true);
        }
        TakeWaiting::Running | TakeWaiting::InUse => true,
        // A purge does not tell memory which attempts it has taken.
        TakeWaiting::Stale => claim::probe(attempt.home.segment, attempt.id()) == Probe::InProgress,
    };
    // A worker has the attempt, or an open transaction has it and may release it. This session does not wait for
    // either. The session that ends the attempt sees the note, or else the background worker does.
    if !is_in_use {
        return Ok(false);
    }
    let is_claimed = shmem::with(|shared| shared.frontier.entry(here::number(), attempt.id()))
        .is_some_and(|entry| entry.system == 0);
    if is_claimed { rerun::ask(attempt, &after_run()) } else { rerun::ask(attempt, rerun) }
}

/// Replaces an attempt that this transaction has taken unrun by one with other contents. A held attempt stays held.
///
/// Errors: 55000 when it is a flow that is being cancelled, 55006 when an open transaction cancels it.
pub fn supersede(attempt: &Attempt, rerun: &Rerun) -> Result<()> {
    let (target, mut next) = rerun::renewed(attempt.copy(), rerun)?;
    let edges = after::edges_of(attempt)?;
    // The attempt is taken, so no other transaction writes about it.
    flow::check_goes_on(attempt)?;
    if !edges.is_empty() {
        next.lane = attempt.lane();
        if edges.iter().any(|edge| edge.until.is_some()) {
            next.run_at = attempt.run_at();
        }
        let ends_by_itself = flow::own_edge(&edges).is_some_and(|own| own.lane == 0);
        if !ends_by_itself {
            next.start_by = start_by::of_held(timing::start_by(next.timing));
        }
    }
    let outcome = outcome::New { next_id: Some(next.id), ..outcome::New::of(attempt.id(), Kind::Superseded) };
    end_unrun(attempt, outcome)?;
    attempt::insert(&target, &[next])?;
    after::insert_edges(&target, &edge::carried(&edges, next.id, next.run_at), |_| next.job_id, None);
    Ok(())
}

/// Makes another run of an ended job. Returns false if the caller must search again.
pub fn rerun_ended(attempt: &Attempt, rerun: &Rerun) -> Result<bool> {
    // The segment is not emptied before all sessions can see the row of the next attempt.
    if outcome::Writer::open_home(attempt.home).is_none() {
        return Ok(false);
    }
    let (target, next) = rerun::renewed(attempt.copy(), rerun)?;
    if !retried::insert(attempt.id(), next.id) {
        return Err(find::in_use(attempt.job_id()));
    }
    rerun::mark_served(attempt);
    attempt::insert(&target, &[next])?;
    Ok(true)
}

/// Checks that no other job has the key of an ended job that is revived by hand, and holds the key.
///
/// Errors: 23505 when another living job has it, 55006 when an open transaction holds it.
pub fn hold_key(queue: &Queue, ended: &New) -> Result<()> {
    let Some(key) = ended.unique_key else { return Ok(()) };
    let key = datum::plain(key);
    if !keys::try_acquire(keys::hash(queue.id, datum::bytes_of(&key))) {
        return Err(find::in_use(ended.job_id));
    }
    let live = Lookup::new().newest(queue.living_lanes(), key).filter(Newest::is_live);
    match live.filter(|newest| id::count(newest.attempt.job_id()) != id::count(ended.job_id)) {
        Some(newest) => {
            let unique = Unique { key, on_duplicate: OnDuplicate::Error, version: None, taken_until: None };
            Err(taken(&unique, Some(newest.attempt.job_id())).hint("The job cannot be retried while that job is live."))
        }
        None => Ok(()),
    }
}
