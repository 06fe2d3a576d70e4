//! Jobs with a unique key: of each key one job lives at a time. What a producer's call comes to is decided here, key by
//! key, while he holds the keys: a new job, the one that is there, a waiting one with new contents, or a note about a
//! running one.
//!
//! Invariant: who decides holds the key and has looked after he had it, so that he has seen whatever the producers
//! before him have made. Several calls for one key in one batch come to what they would one after the other.

use std::collections::HashMap;
use std::rc::Rc;

use pg_queue_core::id;
use pgrx::pg_sys::Datum;

use crate::api::cancel::end_unrun;
use crate::api::enqueue::Options;
use crate::api::job;
use crate::call::Interval;
use crate::error::{self, Error, Result};
use crate::hold::{self, Waiting};
use crate::instance::Catalog;
use crate::log::attempt::{self, Attempt, New};
use crate::log::memory::{self, Known, Memory};
use crate::log::note::Rerun;
use crate::log::outcome::{self, Kind};
use crate::log::table::Probe;
use crate::log::unique::{Lookup, Newest, State};
use crate::log::{claim, successor};
use crate::queue::Queue;
use crate::{key, rerun, sys};

/// What to do about a live job with the same key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnDuplicate {
    /// Nothing.
    #[default]
    Skip,
    /// A waiting one gets new contents, after a running one it runs once more.
    Renew,
    /// Raise.
    Error,
}

impl OnDuplicate {
    /// By its name.
    ///
    /// Errors: 22023 when there is no such.
    pub fn parse(name: &str) -> Result<Self> {
        match name {
            "skip" => Ok(Self::Skip),
            "replace" | "rerun" => Ok(Self::Renew),
            "error" => Ok(Self::Error),
            other => Err(Error::invalid(format!("invalid value for on_duplicate: \"{other}\""))
                .hint("Use 'skip', 'replace', 'rerun' or 'error'.")),
        }
    }
}

/// What a producer says of a job's key.
#[derive(Clone, Copy)]
pub struct Unique {
    key: Datum,
    on_duplicate: OnDuplicate,
    version: Option<i64>,
    /// Until when the key is taken at least.
    taken_until: Option<i64>,
}

impl Unique {
    /// Bytes of the longest key: it must fit into an index.
    const LONGEST: usize = 1024;

    /// From the arguments of a call; `None`: it has no key.
    ///
    /// Errors: 22023 when the key is too long, unique_for negative, or one of the two is given without a key.
    pub fn new(
        key: Option<Datum>,
        on_duplicate: OnDuplicate,
        version: Option<i64>,
        unique_for: Option<Interval>,
        now: i64,
    ) -> Result<Option<Self>> {
        let Some(key) = key else {
            let given = [("version", version.is_some()), ("unique_for", unique_for.is_some())];
            return match given.into_iter().find(|(_, is_given)| *is_given) {
                Some((name, _)) => Err(Error::invalid(format!("{name} needs a unique_key"))),
                None => Ok(None),
            };
        };
        let key = sys::plain(key);
        let length = sys::bytes_of(&key).len();
        if length > Self::LONGEST {
            return Err(Error::invalid(format!("unique_key must have at most {} bytes", Self::LONGEST))
                .detail(format!("It has {length}."))
                .hint("Use a hash of it, for instance sha256(…)."));
        }
        let taken_until = match unique_for {
            Some(span) => crate::api::in_future("unique_for", span, now)?,
            None => None,
        };
        Ok(Some(Self { key, on_duplicate, version, taken_until }))
    }

    /// The key.
    pub fn key(&self) -> Datum {
        self.key
    }

    /// The version.
    pub fn version(&self) -> Option<i64> {
        self.version
    }
}

/// Who has a key.
enum Holder {
    /// Nobody.
    Nobody,
    /// The job that the call of this position makes.
    New(usize),
    /// A live job, or one that has ended and will run once more.
    Live(Box<Newest>),
    /// A job that has ended; the key is taken for a while (unique_for).
    Ended(i64),
}

/// A key while its calls are gone through.
struct Slot {
    key: Datum,
    holder: Holder,
    known: Option<Known>,
    version: Option<i64>,
    taken_until: Option<i64>,
    /// The last call that counts.
    wish: Option<usize>,
    /// Whether something is to be remembered beyond the job's end.
    is_remembered: bool,
}

/// What a call comes to.
#[derive(Clone, Copy)]
enum Answer {
    /// The job that the call of this position makes.
    New(usize),
    /// A job that was there.
    Job(i64),
}

struct Batch<'a> {
    catalog: &'a Rc<Catalog>,
    queue: &'a Queue,
    jobs: &'a [(Datum, Options)],
    now: i64,
    lookup: Lookup<'a>,
    memory: Memory,
}

/// Does what calls come to, of which some have keys; `insert` adds new jobs. Returns the jobs' ids in order.
///
/// Errors: 23505 on 'error', 53400 when too many keys are held.
pub fn produce(
    catalog: &Rc<Catalog>,
    queue: &Queue,
    jobs: &[(Datum, Options)],
    now: i64,
    insert: impl Fn(&[(Datum, Options)]) -> Result<Vec<i64>>,
) -> Result<Vec<i64>> {
    if let [(_, Options { unique: Some(unique), .. })] = jobs
        && (unique.on_duplicate == OnDuplicate::Skip
            || unique.on_duplicate == OnDuplicate::Error && unique.version.is_none())
        && let Some(job_id) = peek(catalog, queue, unique)
    {
        return if unique.on_duplicate == OnDuplicate::Skip {
            Ok(vec![job_id])
        } else {
            Err(taken(unique, Some(job_id)))
        };
    }
    let uniques = || jobs.iter().filter_map(|(_, options)| options.unique.as_ref());
    let mut hashes: Vec<u64> = uniques().map(|unique| key::hash(queue.id, sys::bytes_of(&unique.key))).collect();
    key::acquire(catalog, &mut hashes)?;
    if key::may_miss_holders()? {
        for unique in uniques() {
            while let Some(producer) = Lookup::new(catalog).open_producer(queue.lanes(), unique.key) {
                sys::wait_for_transaction(producer);
            }
        }
    }
    let (lookup, memory) = (Lookup::new(catalog), Memory::open(catalog));
    Batch { catalog, queue, jobs, now, lookup, memory }.produce(insert)
}

/// The live job under a key, seen without holding it: for who would do nothing about it.
fn peek(catalog: &Catalog, queue: &Queue, unique: &Unique) -> Option<i64> {
    let newest = Lookup::new(catalog).newest(queue.lanes(), unique.key)?;
    newest.is_live().then(|| newest.attempt.job_id())
}

fn taken(unique: &Unique, job_id: Option<i64>) -> Error {
    let key = crate::call::text(unique.key);
    let holder = job_id.map_or_else(|| "an earlier job of the same call".to_owned(), |id| format!("job {id}"));
    Error::new(error::UNIQUE, "duplicate unique_key")
        .detail(format!("Key \"{key}\" is held by {holder}."))
        .hint("Use on_duplicate => 'skip', 'replace' or 'rerun' where this is to be expected.")
}

impl Batch<'_> {
    fn produce(mut self, insert: impl Fn(&[(Datum, Options)]) -> Result<Vec<i64>>) -> Result<Vec<i64>> {
        let jobs = self.jobs;
        let mut numbers: HashMap<&[u8], usize> = HashMap::with_capacity(jobs.len());
        let mut slots: Vec<Slot> = Vec::with_capacity(jobs.len());
        let mut answers = Vec::with_capacity(jobs.len());
        for (at, (_, options)) in jobs.iter().enumerate() {
            let Some(unique) = &options.unique else {
                answers.push(Answer::New(at));
                continue;
            };
            let number = *numbers.entry(sys::bytes_of(&unique.key)).or_insert(slots.len());
            if number == slots.len() {
                slots.push(self.look(unique.key));
            }
            answers.push(decide(&mut slots[number], at, unique)?);
        }
        let mut ids = self.insert(&slots, &answers, insert)?;
        for slot in &slots {
            if let (Holder::Live(_), Some(at)) = (&slot.holder, slot.wish) {
                ids[at] = self.renew(slot, at)?;
            }
        }
        self.remember(&slots, &ids)?;
        Ok(answers
            .iter()
            .map(|answer| match answer {
                Answer::New(other) => ids[*other],
                Answer::Job(job_id) => *job_id,
            })
            .collect())
    }

    /// What there is under a key.
    fn look(&mut self, key: Datum) -> Slot {
        let known = self.memory.newest(self.queue.id, key).filter(|known| known.expires_at > self.now);
        let newest = self.lookup.newest(self.queue.lanes(), key);
        let asked = newest.as_ref().and_then(|newest| rerun::owed(self.catalog, newest, &newest.attempt));
        let of_attempt = newest.as_ref().and_then(|newest| newest.attempt.version());
        let taken_until = known.and_then(|known| known.taken_until);
        let holder = match newest {
            Some(newest) if newest.is_live() || asked.is_some() => Holder::Live(Box::new(newest)),
            _ if taken_until.is_some_and(|until| until > self.now) => {
                known.map_or(Holder::Nobody, |known| Holder::Ended(known.job_id))
            }
            _ => Holder::Nobody,
        };
        let of_live = if let Holder::Live(_) = holder {
            of_attempt.max(asked.and_then(|asked| asked.rerun().version))
        } else {
            None
        };
        let version = of_live.max(known.and_then(|known| known.version));
        Slot { key, holder, known, version, taken_until, wish: None, is_remembered: false }
    }

    /// Adds the new jobs, those without a key among them. Returns the ids by the positions of their calls; 0: none.
    fn insert(
        &self,
        slots: &[Slot],
        answers: &[Answer],
        insert: impl Fn(&[(Datum, Options)]) -> Result<Vec<i64>>,
    ) -> Result<Vec<i64>> {
        let contents: HashMap<usize, &Slot> = slots
            .iter()
            .filter_map(|slot| if let Holder::New(at) = slot.holder { Some((at, slot)) } else { None })
            .collect();
        let is_new = |(at, answer): &(usize, &Answer)| matches!(answer, Answer::New(made_by) if made_by == at);
        let places: Vec<usize> = answers.iter().enumerate().filter(is_new).map(|(at, _)| at).collect();
        let jobs: Vec<(Datum, Options)> = places
            .iter()
            .map(|at| match contents.get(at) {
                Some(slot) => self.contents(slot, slot.wish.unwrap_or(*at)),
                None => self.jobs[*at],
            })
            .collect();
        let mut ids = vec![0; answers.len()];
        for (at, job_id) in places.into_iter().zip(insert(&jobs)?) {
            ids[at] = job_id;
        }
        Ok(ids)
    }

    /// What the call of this position says, with the newest version that is known.
    fn contents(&self, slot: &Slot, at: usize) -> (Datum, Options) {
        let (payload, options) = self.jobs[at];
        let unique = options.unique.map(|unique| Unique { version: slot.version, ..unique });
        (payload, Options { unique, ..options })
    }

    /// Gives a live job the contents of a call: now, if it waits; after this run, if it runs. Returns the job's id.
    fn renew(&mut self, slot: &Slot, at: usize) -> Result<i64> {
        let (payload, options) = self.contents(slot, at);
        let rerun = Rerun {
            asked: rerun::fresh_number(self.catalog)?,
            payload: Some(payload),
            headers: options.headers,
            priority: options.priority,
            run_at: options.run_at,
            version: slot.version,
            max_attempts: options.max_attempts,
            lease: options.lease,
        };
        for _ in 0..100 {
            let Some(newest) = self.lookup.newest(self.queue.lanes(), slot.key) else { break };
            let attempt = newest.attempt;
            let job_id = attempt.job_id();
            let is_done = match newest.state {
                State::Waiting => renew_waiting(self.catalog, &attempt, &rerun)?,
                State::Running => rerun::ask(self.catalog, &attempt, &rerun)?,
                State::Ended => revive(self.catalog, &attempt, &rerun)?,
            };
            if is_done {
                return Ok(job_id);
            }
            sys::check_for_interrupts();
        }
        Err(Error::new(error::IN_USE, "the job under this unique_key keeps changing").hint("Try again."))
    }

    /// Remembers what shall be known when the job has ended.
    fn remember(&self, slots: &[Slot], ids: &[i64]) -> Result<()> {
        /// At least so long a version is known; microseconds.
        const HOUR: i64 = 3_600_000_000;
        /// The last moment that Postgres has a date for, but for the end of time.
        const LAST: i64 = 9_223_371_331_199_999_999;
        let retention = if self.queue.retention < 0 { i64::MAX } else { self.queue.retention.max(HOUR) };
        let mut rows = Vec::new();
        for slot in slots.iter().filter(|slot| slot.is_remembered) {
            let Some(at) = slot.wish else { continue };
            let of_version = slot.version.map_or(self.now, |_| self.now.saturating_add(retention));
            let expires_at = of_version.max(slot.taken_until.unwrap_or(self.now));
            let first = if let Holder::New(first) = slot.holder { first } else { at };
            let known = Known {
                entry: id::count(rerun::fresh_number(self.catalog)?),
                job_id: ids[first],
                expires_at: if expires_at > LAST { i64::MAX } else { expires_at },
                taken_until: slot.taken_until,
                version: slot.version,
            };
            rows.push(memory::New { queue_id: self.queue.id, key: slot.key, known });
        }
        memory::insert(self.catalog, &rows);
        Ok(())
    }
}

/// What a call comes to, after those before it.
fn decide(slot: &mut Slot, at: usize, unique: &Unique) -> Result<Answer> {
    let there = match &slot.holder {
        Holder::Nobody => None,
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
        // Nothing of it is left to be renewed, and for a while nothing else shall run.
        (Some(answer), OnDuplicate::Renew) if matches!(slot.holder, Holder::Ended(_)) => return Ok(answer),
        (Some(answer), OnDuplicate::Renew) => answer,
    };
    slot.wish = Some(at);
    slot.version = slot.version.max(unique.version);
    slot.taken_until = slot.taken_until.max(unique.taken_until);
    slot.is_remembered |= unique.version.is_some() || unique.taken_until.is_some();
    Ok(answer)
}

/// Gives a waiting attempt other contents, or leaves a note about it. False: look again.
fn renew_waiting(catalog: &Rc<Catalog>, attempt: &Attempt, rerun: &Rerun) -> Result<bool> {
    let is_in_use = match hold::waiting(catalog, attempt)? {
        Waiting::Taken => {
            supersede(catalog, attempt, rerun)?;
            return Ok(true);
        }
        Waiting::Running | Waiting::InUse => true,
        // A purge does not tell memory what it has.
        Waiting::Stale => claim::probe(catalog, attempt.home.segment, attempt.id()) == Probe::InProgress,
    };
    // A worker has it, or an open transaction that may let go of it: nobody waits for that. Who ends it, or else the
    // background worker, will see the note.
    if is_in_use { rerun::ask(catalog, attempt, rerun) } else { Ok(false) }
}

/// Supersedes an attempt that this transaction has taken unrun by one with other contents.
pub fn supersede(catalog: &Rc<Catalog>, attempt: &Attempt, rerun: &Rerun) -> Result<()> {
    let (target, next) = rerun::renewed(catalog, attempt.copy(), rerun)?;
    let outcome = outcome::New { next_id: Some(next.id), ..outcome::New::of(attempt.id(), Kind::Superseded) };
    end_unrun(catalog, attempt, outcome)?;
    attempt::insert(catalog, &target, &[next])
}

/// Runs a job once more that has ended. False: look again.
pub fn revive(catalog: &Rc<Catalog>, attempt: &Attempt, rerun: &Rerun) -> Result<bool> {
    // The segment is not emptied before the successor is on record for all to see.
    if outcome::Writer::open_home(catalog, attempt.home).is_none() {
        return Ok(false);
    }
    let (target, next) = rerun::renewed(catalog, attempt.copy(), rerun)?;
    if !successor::insert(catalog, attempt.id(), next.id) {
        return Err(job::in_use(attempt.job_id()));
    }
    rerun::settle(catalog, attempt);
    attempt::insert(catalog, &target, &[next])?;
    Ok(true)
}

/// Before an ended job with a key is revived by hand: nobody else may have its key.
///
/// Errors: 23505 when another live job has it, 55006 when an open transaction holds it.
pub fn claim_key(catalog: &Catalog, queue: &Queue, ended: &New) -> Result<()> {
    let Some(key) = ended.unique_key else { return Ok(()) };
    let key = sys::plain(key);
    if !key::try_acquire(catalog, key::hash(queue.id, sys::bytes_of(&key))) {
        return Err(job::in_use(ended.job_id));
    }
    let live = Lookup::new(catalog).newest(queue.lanes(), key).filter(Newest::is_live);
    match live.filter(|newest| id::count(newest.attempt.job_id()) != id::count(ended.job_id)) {
        Some(newest) => {
            let unique = Unique { key, on_duplicate: OnDuplicate::Error, version: None, taken_until: None };
            Err(taken(&unique, Some(newest.attempt.job_id())).hint("The job cannot be retried while that one lives."))
        }
        None => Ok(()),
    }
}
