//! Jobs with a unique key: at most one job of each key lives. Holds the keys of a producer's calls, reads what is known
//! of them, and writes what the calls do: a call makes a new job, returns the existing one, gives new contents to a
//! waiting one, or leaves a note about a running one.
//!
//! Not responsible for the decisions (`core::keys`).
//!
//! Invariant: a session decides only while it holds the key, and reads the logs only after it has acquired the key. So
//! it sees all jobs of earlier producers.

use std::collections::HashMap;
use std::rc::Rc;

use pg_queue_core::id;
use pg_queue_core::keys::{Call, IfTaken, Job, Key, Plan, Recorded, Taken};
use pgrx::pg_sys::Datum;

use crate::catalog::queue::Queue;
use crate::error::{self, Error, Result};
use crate::job::debounce::{self, Bound};
use crate::job::options::{OnDuplicate, Options, Unique};
use crate::job::outcomes::end_unrun;
use crate::job::take::{self, TakeWaiting};
use crate::job::timing::{self, Timing};
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

/// The calls of a producer, and what they do. This session holds the keys of the calls that have keys.
pub struct Decided<'a> {
    queue: &'a Queue,
    calls: &'a [(Datum, Options)],
    now: i64,
    lookup: Lookup,
    /// The keys of the calls, in the order of `plan.keys`.
    keys: Vec<Datum>,
    plan: Plan,
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
            peek(queue, unique).map_or(Ok(None), |job_id| Err(taken(unique.key, Some(job_id))))
        }
        OnDuplicate::Error | OnDuplicate::Renew => Ok(None),
    }
}

/// Decides what the calls do, and holds their keys until the transaction ends. Waits for open transactions that hold
/// one.
///
/// Errors: 23505 on 'error', 53400 when too many keys are held.
pub fn plan<'a>(queue: &'a Queue, jobs: &'a [(Datum, Options)], now: i64) -> Result<Decided<'a>> {
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
    let mut numbers: HashMap<&[u8], usize> = memory::map(jobs.len());
    let (mut keys, mut calls) = (memory::list(jobs.len()), memory::list(jobs.len()));
    for (_, options) in jobs {
        calls.push(options.unique.as_ref().map(|unique| {
            let key = *numbers.entry(datum::bytes_of(&unique.key)).or_insert(keys.len());
            if key == keys.len() {
                keys.push(unique.key);
            }
            call(key, unique)
        }));
    }
    let (mut lookup, facts) = (Lookup::new(), Keys::open());
    let read = memory::collect(keys.iter().map(|&key| read_key(queue, &mut lookup, &facts, key, now)));
    let room = Plan { jobs: memory::list(jobs.len()), keys: read, new: memory::list(jobs.len()) };
    let plan = room.decide(&calls).map_err(|Taken { key, by }| {
        let job_id = if let Job::Live(job_id) | Job::Ended(job_id) = by { Some(job_id) } else { None };
        taken(keys[key], job_id)
    })?;
    let new = memory::collect(plan.new.iter().map(|new| {
        let key = new.key.map(|key| &plan.keys[key]);
        key.map_or_else(|| jobs[new.call].clone(), |key| bounded(contents(jobs, key, new.contents), now))
    }));
    Ok(Decided { queue, calls: jobs, now, lookup, keys, plan, new })
}

/// Returns what a call wants of its key, which has this position.
fn call(key: usize, unique: &Unique) -> Call {
    let if_taken = match unique.on_duplicate {
        OnDuplicate::Skip => IfTaken::Skip,
        OnDuplicate::Renew => IfTaken::Renew,
        OnDuplicate::Error => IfTaken::Error,
    };
    Call { key, if_taken, version: unique.version, taken_until: unique.taken_until }
}

/// Reads what is known of a key.
fn read_key(queue: &Queue, lookup: &mut Lookup, facts: &Keys, key: Datum, now: i64) -> Key {
    let recorded = facts.newest(queue.id, key).map(|known| {
        let Known { job_id, expires_at, taken_until, version, .. } = known;
        Recorded { job_id, expires_at, taken_until, version }
    });
    let live = lookup.newest(queue.living_lanes(), key).and_then(|newest| {
        let asked = rerun::owed(&newest, &newest.attempt);
        let version = newest.attempt.version().max(asked.as_ref().and_then(|asked| asked.rerun().version));
        (newest.is_live() || asked.is_some()).then(|| (newest.attempt.job_id(), version))
    });
    Key::new(live, recorded, now)
}

/// Returns the contents of the call of this position, with the newest known version of its key.
fn contents(calls: &[(Datum, Options)], key: &Key, position: usize) -> (Datum, Options) {
    let (payload, options) = calls[position].clone();
    let unique = options.unique.map(|unique| Unique { version: key.version, ..unique });
    (payload, Options { unique, ..options })
}

/// Returns the contents of a new job, with the bound that its call sets.
fn bounded((payload, mut options): (Datum, Options), now: i64) -> (Datum, Options) {
    if let Some(bound) = Bound::of_call(options.timing.as_deref()) {
        let (timing, run_at) = bound.apply(options.run_at, None, now);
        (options.timing, options.run_at) = (Some(Rc::new(timing)), run_at);
    }
    (payload, options)
}

/// Returns the living job under a key, without holding the key, for a call that would do nothing about the job.
fn peek(queue: &Queue, unique: &Unique) -> Option<i64> {
    let newest = Lookup::new().newest(queue.living_lanes(), unique.key)?;
    newest.is_live().then(|| newest.attempt.job_id())
}

/// Returns the error of a call whose key is taken. `job_id`: the job that has it. `None`: a job of the same call.
fn taken(key: Datum, job_id: Option<i64>) -> Error {
    let key = datum::text(key);
    let holder = job_id.map_or_else(|| "an earlier job of the same call".to_owned(), |id| format!("job {id}"));
    Error::new(error::UNIQUE, "duplicate unique_key")
        .detail(format!("Key \"{key}\" is held by {holder}."))
        .hint("Use on_duplicate => 'skip', 'replace' or 'rerun' where this is to be expected.")
}

impl Decided<'_> {
    /// Changes existing jobs and records facts of keys, after the new jobs were inserted. `new`: the ids of the new
    /// jobs, in order. Returns an id for each call.
    ///
    /// Errors: 55006 when a job keeps changing.
    pub fn finish(mut self, new: Vec<i64>) -> Result<Vec<i64>> {
        let mut ids = memory::filled(0, self.calls.len());
        self.plan.new.iter().zip(new).for_each(|(new, job_id)| ids[new.call] = job_id);
        for (key, call) in self.plan.renewed() {
            let state = &self.plan.keys[key];
            let renewal = Renewal::new(contents(self.calls, state, call), state.version, self.now)?;
            ids[call] = renewal.give(self.queue, &mut self.lookup, self.keys[key])?;
        }
        self.record(&ids)?;
        let id_of = |job: &Job| match job {
            Job::New(call) => ids[*call],
            Job::Live(job_id) | Job::Ended(job_id) => *job_id,
        };
        Ok(memory::collect(self.plan.jobs.iter().map(id_of)))
    }

    /// Records the facts that must be known after the job has ended.
    fn record(&self, ids: &[i64]) -> Result<()> {
        /// The shortest time for which a version is known: an hour.
        const MIN_RETENTION_US: i64 = 3_600_000_000;
        let retention = if self.queue.retention < 0 { i64::MAX } else { self.queue.retention.max(MIN_RETENTION_US) };
        let mut rows = Vec::new();
        for (&key, state) in self.keys.iter().zip(&self.plan.keys).filter(|(_, state)| state.is_recorded) {
            let Some(last_call) = state.last_call else { continue };
            let expires_at = state.expires_at(self.now, retention);
            let made_by = if let Some(Job::New(call)) = state.holder { call } else { last_call };
            let known = Known {
                entry: id::count(rerun::fresh_number()?),
                job_id: ids[made_by],
                expires_at: if expires_at > LAST_TIME { i64::MAX } else { expires_at },
                taken_until: state.taken_until,
                version: state.version,
            };
            memory::push(&mut rows, key::New { queue_id: self.queue.id, key, known });
        }
        key::insert(&rows);
        Ok(())
    }
}

/// The contents that a call gives to a living job.
struct Renewal {
    payload: Datum,
    options: Options,
    bound: Option<Bound>,
    /// The number of the call.
    asked: i64,
    version: Option<i64>,
    now: i64,
}

impl Renewal {
    fn new((payload, options): (Datum, Options), version: Option<i64>, now: i64) -> Result<Self> {
        let bound = Bound::of_call(options.timing.as_deref());
        Ok(Self { payload, options, bound, asked: rerun::fresh_number()?, version, now })
    }

    /// Gives the contents to the living job under a key: immediately if it waits, after this run if it runs. Returns
    /// the job's id.
    ///
    /// Errors: 55006 when the job keeps changing.
    fn give(&self, queue: &Queue, lookup: &mut Lookup, key: Datum) -> Result<i64> {
        for _ in 0..100 {
            let Some(newest) = lookup.newest(queue.living_lanes(), key) else { break };
            let attempt = &newest.attempt;
            let after_run = || self.after_run(&newest);
            let is_done = match newest.state {
                State::Waiting => renew_waiting(attempt, &self.of_waiting(queue, attempt), after_run)?,
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

    /// Returns the request for a waiting job.
    fn of_waiting(&self, queue: &Queue, attempt: &Attempt) -> Rerun {
        self.request(self.bound.and_then(|_| debounce::since_of(queue, attempt)))
    }

    /// Returns the request for a run after the job's present or last one.
    fn after_run(&self, newest: &Newest) -> Rerun {
        let asked = self.bound.and_then(|_| rerun::owed(newest, &newest.attempt));
        self.request(asked.and_then(|asked| timing::since(asked.rerun().timing)))
    }

    /// `since`: when the job was put off first. `None`: it is put off now.
    fn request(&self, since: Option<i64>) -> Rerun {
        let Self { payload, options, bound, asked, version, now } = self;
        let as_given = (options.timing.as_deref().copied(), options.run_at);
        let (timing, run_at): (Option<Timing>, Option<i64>) = bound.map_or(as_given, |bound| {
            let (timing, run_at) = bound.apply(options.run_at, since, *now);
            (Some(timing), run_at)
        });
        Rerun {
            asked: *asked,
            payload: Some(*payload),
            headers: options.headers,
            timing: timing.map(|timing| timing.stored),
            priority: options.priority,
            run_at,
            version: *version,
            max_attempts: options.max_attempts,
            lease: options.lease,
            run_as: options.run_as,
        }
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
            Err(taken(key, Some(newest.attempt.job_id())).hint("The job cannot be retried while that job is live."))
        }
        None => Ok(()),
    }
}
