//! How a transaction gets hold of an attempt to end it: the fence.
//!
//! `running` (a claimed attempt, for complete, fail, …) asks the frontier first, the logs when memory does
//! not know, and probes the outcome's key last. `waiting` (an unclaimed one, for cancel, reprioritize, …)
//! takes it in the frontier as a claimer would.
//!
//! Invariant: nobody waits. What another open transaction holds is "in use" (55006). Only who meets an attempt
//! while its segment is being reclaimed waits for the milliseconds of the move, and follows it.

use std::rc::Rc;

use pg_queue_core::frontier::{End, Frontier, Running, State, TakeOne};
use pg_queue_core::id::{self, Kind};
use pg_queue_core::tally::End as Ended;

use pgrx::pg_sys::Datum;

use crate::error::{self, Error, Result};
use crate::instance::Catalog;
use crate::log::attempt::{Attempt, Reader};
use crate::log::table::Probe;
use crate::log::{claim, history, note, outcome};
use crate::permission::{self, Privilege, Rights};
use crate::segment::{self, Home};
use crate::transaction::{self, Step};
use crate::{guc, late, queue, shmem, sys};

/// An attempt that this transaction may end.
pub struct Held {
    pub id: i64,
    pub home: Home,
    pub entry: Running,
}

impl Held {
    /// Whether somebody has asked for it to be cancelled; memory may not know yet what its notes say.
    pub fn is_unwanted(&self, notes: &note::Summary) -> bool {
        self.entry.cancel != 0 || notes.cancel().is_some()
    }
}

/// Why an attempt cannot be ended.
pub enum Refusal {
    /// It is not the caller's any more: `complete_many` and its like leave it out.
    Lost(Error),
    /// Another open transaction has it: likewise.
    Busy(Error),
    /// The id makes no sense: an error even among many.
    Wrong(Error),
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Lost(e) | Refusal::Busy(e) | Refusal::Wrong(e) => e,
        }
    }
}

/// Checks that an id names an attempt.
///
/// Errors: 22023 for anything else, with a hint when it is a job's.
pub fn attempt_id(id: i64) -> Result<u8> {
    match id::kind(id) {
        Kind::Attempt(segment) => Ok(segment),
        Kind::Job => Err(Error::invalid(format!("{id} is the id of a job, not of an attempt"))
            .hint("Use the column \"id\" that queue.claim returned, not \"job_id\".")),
        Kind::Neither => Err(Error::invalid(format!("{id} is not the id of an attempt"))
            .hint("Use the column \"id\" that queue.claim returned.")),
    }
}

/// Checks that an id names a job.
///
/// Errors: 22023 for anything else, with a hint when it is an attempt's.
pub fn job_id(id: i64) -> Result<i64> {
    match id::kind(id) {
        Kind::Job => Ok(id),
        Kind::Attempt(_) => Err(Error::invalid(format!("{id} is the id of an attempt, not of a job"))
            .hint("Use the column \"job_id\" that queue.claim returned, or what queue.enqueue returned.")),
        Kind::Neither => Err(Error::invalid(format!("{id} is not the id of a job"))),
    }
}

fn lost(id: i64, detail: impl Into<String>) -> Refusal {
    Refusal::Lost(
        Error::new(error::LOST_LEASE, format!("lost lease on attempt {id}"))
            .detail(detail)
            .hint("Somebody else may be running this job, or it has ended; roll back what was done for it."),
    )
}

fn busy(id: i64, entry: Option<Running>) -> Refusal {
    let error = Error::new(error::IN_USE, format!("attempt {id} is being ended by another transaction"));
    Refusal::Busy(match entry {
        Some(entry) if entry.pid != 0 => error.detail(format!(
            "It was claimed by process {}; the transaction that is ending it has not committed yet.",
            entry.pid
        )),
        _ => error,
    })
}

fn ended(id: i64, outcome: &outcome::Outcome) -> Refusal {
    let next = outcome.next_id.map(|next| format!(" The job went on as attempt {next}.")).unwrap_or_default();
    lost(id, format!("This attempt was {} at {}.{next}", outcome.kind.words(), timestamp(outcome.ended_at)))
}

fn timestamp(at: i64) -> String {
    // SAFETY: prints a timestamptz into memory of the current context.
    unsafe {
        pgrx::direct_function_call_as_datum(pgrx::pg_sys::timestamptz_out, &[Some(at.into())])
            .map_or_else(|| at.to_string(), |text| sys::text(text.cast_mut_ptr()))
    }
}

/// Gets hold of a claimed attempt to end it in more than one row: its outcome's key was free a moment ago.
/// On success a step is remembered, so that a rollback undoes the hold; until then no deadline fires.
pub fn running(outcomes: &mut Outcomes, id: i64) -> std::result::Result<Held, Refusal> {
    let held = grasp(&outcomes.catalog, id)?;
    sure(outcomes, held)
}

/// What was grasped, when its outcome's key is free.
pub fn sure(outcomes: &mut Outcomes, mut held: Held) -> std::result::Result<Held, Refusal> {
    loop {
        if outcomes.probe(&held) == Probe::Absent {
            return Ok(held);
        }
        held = beaten(outcomes, held)?;
    }
}

/// Gets hold of a claimed attempt, as `running`, but leaves it to the insert of the outcome to find that
/// its key is taken; then call `beaten`.
pub fn grasp(catalog: &Catalog, id: i64) -> std::result::Result<Held, Refusal> {
    let born = attempt_id(id).map_err(Refusal::Wrong)?;
    let rights = permission::rights(catalog);
    let mut asked_logs = false;
    loop {
        transaction::reserve(1);
        let answer = shmem::with_instance(catalog.number, |frontier, instance| {
            foreign(frontier, catalog.number, id, &rights).map_or_else(
                || {
                    let end = frontier.end(&mut instance.deadlines, catalog.number, id, sys::session());
                    // Place and generation belong together as long as the lock is held.
                    let home = match end {
                        End::Yours(entry) => Home::of(instance, entry.place.segment),
                        _ => Home::nowhere(born),
                    };
                    Ok((end, home))
                },
                Err,
            )
        });
        let answer = answer.transpose().map_err(|lane| denied(catalog, id, lane))?;
        let (answer, home) = answer.map_or((None, None), |(end, home)| (Some(end), Some(home)));
        match answer {
            Some(End::Yours(entry)) => {
                // So nearly all end; `Outcomes::add` knows better.
                let end = Ended::COMPLETED;
                transaction::remember(catalog.number, Step::Ending { id, lane: entry.lane, end });
                let home = home.unwrap_or(Home::nowhere(born));
                return Ok(Held { id, home, entry });
            }
            Some(End::Busy(entry)) if entry.state == State::Taken => {
                return Err(lost(id, "The attempt is being claimed by another transaction."));
            }
            Some(End::Busy(entry)) if entry.owner == sys::session() => {
                return Err(lost(id, "This attempt was already ended in this transaction."));
            }
            Some(End::Busy(entry)) => return Err(busy(id, Some(entry))),
            Some(End::Unknown) | None if asked_logs => {
                // `running` is full: the outcome's key alone decides.
                let (entry, home) = locate(catalog, id);
                let (lane, end) = (entry.lane, Ended::COMPLETED);
                transaction::remember(catalog.number, Step::EndingUnknown { id, lane, end });
                return Ok(Held { id, home: home.unwrap_or(Home::nowhere(born)), entry });
            }
            Some(End::Unknown) | None => {
                recover(catalog, id, &rights)?;
                asked_logs = true;
                continue;
            }
        }
    }
}

/// The lane of an attempt that memory knows, if the user may not consume it. Under the frontier's lock.
fn foreign(frontier: &Frontier<'_>, number: u32, id: i64, rights: &Rights) -> Option<i32> {
    if rights.everywhere(Privilege::Consume) {
        return None;
    }
    frontier.entry(number, id).map(|entry| entry.lane).filter(|&lane| !rights.on_lane(lane, Privilege::Consume))
}

/// Why the user may not end an attempt of this lane.
fn denied(catalog: &Catalog, id: i64, lane: i32) -> Refusal {
    match queue::by_lane(catalog, lane) {
        Ok(None) => dropped(id),
        _ => permission::denied_lane(catalog, lane, Privilege::Consume).map_or_else(Refusal::Wrong, Refusal::Wrong),
    }
}

fn dropped(id: i64) -> Refusal {
    lost(id, "The queue was dropped, and its jobs with it.")
}

/// `grasp` for many, in as few holds of the lock as can be; those that are lost or in use are left out.
///
/// Errors: 22023 when one is not the id of an attempt; then nothing is held. 42501 when one is of a queue that the user
/// may not consume; what is held then the rollback lets go.
pub fn grasp_many(catalog: &Catalog, ids: &[i64]) -> Result<Vec<Held>> {
    /// Attempts in one hold of the lock.
    const CHUNK: usize = 64;
    for &id in ids {
        attempt_id(id)?;
    }
    let rights = permission::rights(catalog);
    let session = sys::session();
    let mut held = Vec::with_capacity(ids.len());
    for chunk in ids.chunks(CHUNK) {
        let mut yours: [Option<(Running, Home)>; CHUNK] = [None; CHUNK];
        transaction::reserve(chunk.len());
        shmem::with_instance(catalog.number, |frontier, instance| {
            for (&id, yours) in chunk.iter().zip(&mut yours) {
                if foreign(frontier, catalog.number, id, &rights).is_none()
                    && let End::Yours(entry) = frontier.end(&mut instance.deadlines, catalog.number, id, session)
                {
                    *yours = Some((entry, Home::of(instance, entry.place.segment)));
                }
            }
        });
        let step =
            |(entry, _): &(Running, Home)| Step::Ending { id: entry.id, lane: entry.lane, end: Ended::COMPLETED };
        transaction::remember_all(catalog.number, yours.iter().flatten().map(step));
        for (&id, yours) in chunk.iter().zip(yours) {
            match yours {
                Some((entry, home)) => held.push(Held { id, home, entry }),
                None => match grasp(catalog, id) {
                    Ok(one) => held.push(one),
                    Err(Refusal::Lost(_) | Refusal::Busy(_)) => {}
                    Err(Refusal::Wrong(e)) => return Err(e),
                },
            }
        }
    }
    Ok(held)
}

/// The attempt that this transaction holds has an outcome already, or is being given one: lets go of it. Or
/// it has moved: then it is held on, where it is now, for another try.
pub fn beaten(outcomes: &mut Outcomes, held: Held) -> std::result::Result<Held, Refusal> {
    let catalog = Rc::clone(&outcomes.catalog);
    let id = held.id;
    match outcomes.probe(&held) {
        // Who was in the way has rolled back.
        Probe::Absent => return Ok(held),
        Probe::Moved | Probe::Moving => return follow(&catalog, outcomes, held),
        Probe::InProgress => {
            undo(&catalog, id);
            return Err(busy(id, None));
        }
        Probe::Committed => {}
    }
    transaction::forget(id);
    discard(&catalog, id);
    Err(match outcome::find(&catalog, held.home.segment, id) {
        Some(found) => ended(id, &found),
        None => lost(id, "This attempt was already ended in this transaction."),
    })
}

/// A held attempt is not where it was: waits for the end of the move, and finds it where it is now.
fn follow(catalog: &Catalog, outcomes: &mut Outcomes, mut held: Held) -> std::result::Result<Held, Refusal> {
    let mut patience = Patience::default();
    while outcomes.probe(&held) == Probe::Moving {
        if !patience.wait() {
            undo(catalog, held.id);
            return Err(busy(held.id, None));
        }
    }
    let Some(attempt) = Reader::new(catalog).by_id(held.id) else {
        transaction::forget(held.id);
        discard(catalog, held.id);
        return Err(gone(catalog, held.id, &permission::rights(catalog)));
    };
    held.home = attempt.home;
    held.entry.place = attempt.ready().place;
    shmem::with(|shared| shared.frontier.relocate(catalog.number, held.id, held.entry.place));
    Ok(held)
}

/// Drops an entry that the logs proved wrong.
pub fn discard(catalog: &Catalog, id: i64) {
    let woken = shmem::with_instance(catalog.number, |frontier, instance| {
        let worker = late::leave(frontier, instance, id);
        (frontier.discard(&mut instance.deadlines, catalog.number, id), worker)
    });
    wake(woken);
}

/// Wakes a session and the background worker.
fn wake(woken: Option<(Option<u32>, Option<*mut pgrx::pg_sys::Latch>)>) {
    let (session, worker) = woken.unwrap_or((None, None));
    if let Some(session) = session {
        shmem::wake(session);
    }
    if let Some(latch) = worker {
        shmem::wake_latch(latch);
    }
}

fn removed(id: i64) -> Refusal {
    lost(id, "There is no such attempt: it was rolled back, or has ended and was removed.")
}

/// Waits for a move, which takes milliseconds; not for ever, should the mover be stopped.
pub struct Patience(u32);

impl Default for Patience {
    /// For who has nothing else to do.
    fn default() -> Self {
        Self(2_000)
    }
}

impl Patience {
    /// For who may do without.
    pub fn short() -> Self {
        Self(500)
    }

    /// Sleeps a millisecond. False: that was often enough.
    pub fn wait(&mut self) -> bool {
        let Some(left) = self.0.checked_sub(1) else { return false };
        self.0 = left;
        sys::sleep(1);
        true
    }
}

/// What the logs say of a claimed attempt that memory has no room for.
fn locate(catalog: &Catalog, id: i64) -> (Running, Option<Home>) {
    let mut entry = Running::of(id);
    let found = Reader::new(catalog).by_id(id);
    if let Some(attempt) = &found {
        let ready = attempt.ready();
        (entry.lane, entry.rank, entry.place, entry.claimed) = (attempt.lane(), ready.rank, ready.place, 1);
        // Nobody has told it: the notes know.
        entry.rerun = 1;
        if let Some(claim) = claim::find(catalog, attempt.home.segment, id) {
            let notes = note::summary(catalog, attempt.home.segment, id);
            (entry.lease, entry.longest) = (claim.lease, claim.lease.max(notes.lease()));
            entry.cancel = u8::from(notes.cancel().is_some());
        }
    }
    (entry, found.map(|attempt| attempt.home))
}

/// Gives a held attempt back: it turned out that nothing is to be done with it.
pub fn undo(catalog: &Catalog, id: i64) {
    transaction::forget(id);
    shmem::with_instance(catalog.number, |frontier, instance| {
        frontier.unend(&mut instance.deadlines, catalog.number, id);
    });
}

/// Memory does not know a claimed attempt (it was claimed before the server's start and the worker has not
/// come to it, or memory is full): asks the logs and tells memory.
fn recover(catalog: &Catalog, id: i64, rights: &Rights) -> std::result::Result<(), Refusal> {
    let (attempt, claim) = loop {
        let Some(attempt) = Reader::new(catalog).by_id(id) else { return Err(gone(catalog, id, rights)) };
        if !rights.on_lane(attempt.lane(), Privilege::Consume) {
            return Err(denied(catalog, id, attempt.lane()));
        }
        let outcome = outcome::find(catalog, attempt.home.segment, id);
        let claim = claim::find(catalog, attempt.home.segment, id);
        match (outcome, claim) {
            // It moved between the looks.
            (Some(outcome::Outcome { kind: outcome::Kind::Moved, .. }), _)
            | (_, Some(claim::Claim { kind: claim::Kind::Moved, .. })) => sys::check_for_interrupts(),
            (Some(found), _) => return Err(ended(id, &found)),
            (None, None) => {
                return Err(lost(id, "The attempt waits to be claimed: its claim was rolled back, or never made."));
            }
            (None, Some(claim)) => break (attempt, claim),
        }
    };
    if claim.kind == claim::Kind::System {
        return Err(lost(id, "The attempt was ended before it was run."));
    }
    if queue::by_lane(catalog, attempt.lane()).map_err(Refusal::Wrong)?.is_none() {
        return Err(dropped(id));
    }
    remember_claim(catalog, &attempt, &claim);
    Ok(())
}

/// Why an attempt that the logs do not know cannot be ended.
fn gone(catalog: &Catalog, id: i64, rights: &Rights) -> Refusal {
    match history::find(catalog, id) {
        Some(past) if !rights.on_lane(past.lane(), Privilege::Consume) => denied(catalog, id, past.lane()),
        Some(past) => ended(id, &past.outcome()),
        None => removed(id),
    }
}

/// Tells memory of a committed claim without outcome: the lease starts anew, with the longest length it
/// was given; one bound to a connection has ended with it. False: memory is full.
pub fn remember_claim(catalog: &Catalog, attempt: &Attempt, claim: &claim::Claim) -> bool {
    let notes = note::summary(catalog, attempt.home.segment, claim.id);
    let longest = claim.lease.max(notes.lease());
    let ready = attempt.ready();
    // Claims of this server's life are in memory, so the connection of one that is not has ended.
    let deadline =
        if claim.kind == claim::Kind::Bound { i64::MIN } else { sys::monotonic_us().saturating_add(longest) };
    let mut entry = Running::of(claim.id);
    (entry.instance, entry.lane, entry.rank, entry.place) = (catalog.number, attempt.lane(), ready.rank, ready.place);
    entry.group = ready.group;
    (entry.lease, entry.longest, entry.deadline) = (claim.lease, longest, deadline);
    (entry.pid, entry.state) = (claim.pid, State::Running);
    entry.bound = u8::from(claim.kind == claim::Kind::Bound);
    entry.cancel = u8::from(notes.cancel().is_some());
    entry.rerun = u8::from(note::newest_rerun(catalog, attempt.home.segment, claim.id).is_some());
    let mut worker = None;
    let fits = shmem::with_instance(catalog.number, |frontier, instance| {
        worker = transaction::plan(instance, deadline);
        frontier.recover(&mut instance.deadlines, entry)
    });
    if let Some(latch) = worker {
        shmem::wake_latch(latch);
    }
    // Had it moved before the entry was there, nobody would have told the entry; and a place that is not true any
    // more would be taken for one in the segment's next filling.
    let segment = attempt.home.segment;
    if (!attempt.home.is_valid(catalog) || outcome::has_moved(catalog, segment, claim.id))
        && let Some(now) = Reader::new(catalog).by_id(claim.id)
    {
        shmem::with(|shared| shared.frontier.relocate(catalog.number, claim.id, now.ready().place));
    }
    fits.unwrap_or(false)
}

/// Looks at a claimed attempt without ending it, for `extend` and `progress`: it must be the caller's.
pub fn look(catalog: &Catalog, id: i64, rights: &Rights) -> std::result::Result<Held, Refusal> {
    let born = attempt_id(id).map_err(Refusal::Wrong)?;
    let mut asked_logs = false;
    loop {
        let entry = shmem::with_instance(catalog.number, |frontier, instance| {
            frontier.entry(catalog.number, id).map(|entry| (entry, Home::of(instance, entry.place.segment)))
        });
        let (entry, home) = entry.flatten().map_or((None, None), |(entry, home)| (Some(entry), Some(home)));
        let held = |entry| Held { id, home: home.unwrap_or(Home::nowhere(born)), entry };
        match entry {
            Some(entry) if !rights.on_lane(entry.lane, Privilege::Consume) => {
                return Err(denied(catalog, id, entry.lane));
            }
            Some(entry) if entry.state == State::Running => return Ok(held(entry)),
            Some(entry) if entry.state == State::Taken && entry.owner == sys::session() => return Ok(held(entry)),
            Some(entry) if entry.state == State::Taken => {
                return Err(lost(id, "The attempt is being claimed by another transaction."));
            }
            Some(entry) if entry.owner == sys::session() => {
                return Err(lost(id, "This attempt was already ended in this transaction."));
            }
            Some(entry) => return Err(busy(id, Some(entry))),
            None if asked_logs => {
                let (entry, home) = locate(catalog, id);
                return Ok(Held { id, home: home.unwrap_or(Home::nowhere(born)), entry });
            }
            None => {
                recover(catalog, id, rights)?;
                asked_logs = true;
            }
        }
    }
}

/// Writes a note about a claimed attempt, wherever that is, should it move meanwhile. The mover looks for notes
/// after he has marked the attempt, this looks for the mark after the note: one of the two sees the other.
pub fn write_note(
    catalog: &Catalog,
    id: i64,
    mut home: Home,
    kind: note::Kind,
    lease: Option<i64>,
    body: Option<Datum>,
) -> std::result::Result<(), Refusal> {
    let mut patience = Patience::default();
    loop {
        if note::insert(catalog, home, id, kind, lease, body) {
            loop {
                match outcome::probe(catalog, home.segment, id) {
                    Probe::Moved => break,
                    Probe::Moving if patience.wait() => {}
                    Probe::Moving => return Err(busy(id, None)),
                    Probe::Absent | Probe::Committed | Probe::InProgress => return Ok(()),
                }
            }
        }
        home = Reader::new(catalog).by_id(id).ok_or_else(|| removed(id))?.home;
    }
}

/// What a waiting attempt turned out to be when somebody wanted it.
pub enum Waiting {
    /// This transaction has it, by a claim of the system; a step is remembered.
    Taken,
    /// A worker has it.
    Running,
    /// An open transaction is claiming or ending it.
    InUse,
    /// It was claimed already, although memory did not know: look again.
    Stale,
}

/// Takes a waiting attempt by a claim of the system, to end it unrun. The caller inserts the outcome.
///
/// Errors: 53400 when `running` is full.
pub fn waiting(catalog: &Catalog, attempt: &Attempt) -> Result<Waiting> {
    let ready = attempt.ready();
    transaction::reserve(1);
    let (session, pid) = (sys::session(), sys::pid());
    let taken = shmem::with_instance(catalog.number, |frontier, instance| {
        let is_due = attempt.run_at().is_none_or(|at| at <= instance.due_to);
        frontier.take_one(&mut instance.deadlines, catalog.number, attempt.lane(), session, pid, ready, is_due)
    });
    match taken.unwrap_or(TakeOne::Full) {
        TakeOne::Taken => transaction::remember(catalog.number, Step::Ended { id: ready.id, lane: attempt.lane() }),
        TakeOne::Full => return Err(running_full()),
        TakeOne::Busy => {
            let entry = shmem::with(|shared| shared.frontier.entry(catalog.number, ready.id));
            return Ok(match entry {
                Some(entry) if entry.state == State::Running => Waiting::Running,
                Some(_) => Waiting::InUse,
                None => Waiting::Stale,
            });
        }
    }
    if let Some(writer) = claim::Writer::open_home(catalog, attempt.home) {
        // Looking first spares a row in vain.
        let seen = writer.probe(ready.id);
        if seen == Probe::Absent && writer.insert(&[(ready.id, 0)], sys::now_us(), claim::Kind::System, None).is_empty()
        {
            return Ok(Waiting::Taken);
        }
        let mut patience = Patience::default();
        while writer.probe(ready.id) == Probe::Moving && patience.wait() {}
    }
    drop_stale(catalog, ready.id);
    Ok(Waiting::Stale)
}

/// Drops an attempt that was taken although the log knows a claim of it.
pub fn drop_stale(catalog: &Catalog, id: i64) {
    transaction::forget(id);
    let woken = shmem::with_instance(catalog.number, |frontier, instance| {
        let worker = late::leave(frontier, instance, id);
        (frontier.discard_stale(&mut instance.deadlines, catalog.number, id), worker)
    });
    wake(woken);
}

/// The error for a full `running`.
pub fn running_full() -> Error {
    Error::new(error::LIMIT, "too many jobs are running at once")
        .detail(format!("Shared memory has room for {} running jobs.", guc::MAX_RUNNING.get()))
        .hint("Raise pg_queue.max_running and restart the server, or let workers claim fewer jobs.")
}

/// The outcomes of a call: the logs, opened as they are needed, and what is to be inserted together.
pub struct Outcomes {
    catalog: Rc<Catalog>,
    writers: [Option<(outcome::Writer, i64)>; id::SEGMENTS],
    pending: [Vec<outcome::New>; id::SEGMENTS],
    generations: [i64; id::SEGMENTS],
}

impl Outcomes {
    /// Nothing to insert yet.
    pub fn new(catalog: &Rc<Catalog>) -> Self {
        Self {
            catalog: Rc::clone(catalog),
            writers: std::array::from_fn(|_| None),
            pending: std::array::from_fn(|_| Vec::new()),
            generations: [0; id::SEGMENTS],
        }
    }

    /// The outcomes of a home; `None` when it is not what it was.
    fn writer(&mut self, home: Home) -> Option<&outcome::Writer> {
        let slot = &mut self.writers[home.segment as usize];
        if slot.is_none() {
            *slot = outcome::Writer::open_home(&self.catalog, home).map(|writer| (writer, home.generation));
        }
        slot.as_ref().filter(|(_, generation)| *generation == home.generation).map(|(writer, _)| writer)
    }

    /// What became of a held attempt: one whose home is not what it was has moved.
    fn probe(&mut self, held: &Held) -> Probe {
        self.writer(held.home).map_or(Probe::Moved, |writer| writer.probe(held.id))
    }

    /// Adds an outcome to be inserted.
    pub fn add(&mut self, home: Home, outcome: outcome::New) {
        if outcome.kind != outcome::Kind::Completed {
            let end = Ended { outcome: outcome.kind.char(), has_next: outcome.next_id.is_some() };
            transaction::set_end(outcome.id, end);
        }
        self.pending[home.segment as usize].push(outcome);
        self.generations[home.segment as usize] = home.generation;
    }

    /// Inserts them, a segment's all at once. Returns the ids of those whose key is taken; they get no row.
    #[must_use]
    pub fn try_insert(&mut self) -> Vec<i64> {
        let mut lost = Vec::new();
        for segment in 0..id::SEGMENTS {
            let mut outcomes = std::mem::take(&mut self.pending[segment]);
            if !outcomes.is_empty() {
                let home = Home { segment: segment as u8, generation: self.generations[segment] };
                let is_moving = segment::word(&self.catalog, home.segment).state() >= segment::State::Moving;
                match self.writer(home) {
                    // A look spares those that have moved a row in vain, which would be dead.
                    Some(writer) if is_moving => {
                        outcomes.retain(|new| {
                            let is_free = writer.probe(new.id) == Probe::Absent;
                            lost.extend((!is_free).then_some(new.id));
                            is_free
                        });
                        lost.extend(writer.insert(&outcomes).into_iter().map(|n| outcomes[n].id));
                    }
                    Some(writer) => lost.extend(writer.insert(&outcomes).into_iter().map(|n| outcomes[n].id)),
                    None => lost.extend(outcomes.iter().map(|new| new.id)),
                }
            }
        }
        lost
    }

    /// Inserts them; their keys were probed. What has moved since is followed.
    ///
    /// Errors: 55006 when one was taken since.
    pub fn insert(mut self) -> Result<()> {
        let all: Vec<outcome::New> = self.pending.iter().flatten().copied().collect();
        let mut patience = Patience::default();
        let mut lost = self.try_insert();
        while let Some(&id) = lost.first() {
            let Some(attempt) = Reader::new(&self.catalog).by_id(id) else { return Err(removed(id).into()) };
            let is_moving = match self.writer(attempt.home).map(|writer| writer.probe(id)) {
                Some(Probe::Committed | Probe::InProgress) => return Err(busy(id, None).into()),
                Some(Probe::Moving) => true,
                Some(Probe::Absent | Probe::Moved) | None => false,
            };
            if is_moving && !patience.wait() {
                return Err(busy(id, None).into());
            }
            lost.remove(0);
            if let Some(new) = all.iter().find(|new| new.id == id) {
                self.add(attempt.home, *new);
                lost.extend(self.try_insert());
            }
        }
        Ok(())
    }
}
