//! Releases jobs that are after others, or skips them, when those have ended.
//!
//! Commits hand over the jobs in question (`core::awaited`); this duty takes them, looks what has become of them and of
//! whatever else the held jobs are after, and acts. A released job goes on as another attempt, in the lane where it was to
//! begin; a skipped one ends unrun, which hands it over in turn. The protocol, and why nothing is stranded, is
//! docs/internals/after.md.
//!
//! Not here: what follows from the ends of several jobs (`core::after`), and edges themselves (`log::edge`).
//!
//! Invariant: a job is looked at after it was taken, so by rows that are younger than its hand-over. What was taken is
//! served, or handed over again by a rollback and by the end of the process. The key of `claim` decides between a release
//! and whatever else ends a held attempt.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet, VecDeque};
use std::rc::Rc;

use pg_queue_core::after::{Fate, Upon, Verdict, verdict};
use pg_queue_core::awaited::Awaited;
use pg_queue_core::id;
use pgrx::pg_sys::{Datum, Latch};

use crate::catalog::queue::{self, Queue};
use crate::catalog::{self, Catalog, ids};
use crate::duty::{Duty, start_due};
use crate::error::{Error, Result};
use crate::job::{after, hold};
use crate::log::attempt::{self, Attempt, New};
use crate::log::edge::{self, Edge, Edges};
use crate::log::outcome::{self, Kind};
use crate::log::segment::{self, Home, Target};
use crate::log::tables::Tables;
use crate::log::{claim, segment::is_far};
use crate::pg::datum::text_datum;
use crate::pg::fault::fault;
use crate::pg::scan::{Key, Snapshot};
use crate::pg::{self, process, session, time};
use crate::shmem::{self, Instance, awake};
use crate::transaction::{self, Step, hooks};

/// The duty.
pub const DUTY: Duty = Duty { name: "release", is_due, run };

/// Held attempts released or skipped in one transaction.
const BATCH: usize = 1_000;
/// Held attempts looked at in one transaction.
const LOOK: usize = 5_000;
/// If an open transaction is in the way, the next look is after this many microseconds.
const PAUSE: i64 = 100_000;
/// However often everything is to be looked at, that takes at most a tenth of the time.
const SHARE: i64 = 10;
/// The longest pause, in microseconds, after a look at everything.
const LONGEST: i64 = 60_000_000;

/// How far a walk over the attempts after a job has come: behind this attempt of this segment.
#[derive(Clone, Copy)]
struct Position {
    segment: u8,
    attempt: i64,
}

/// What this process has taken.
#[derive(Default)]
struct Work {
    /// The jobs that are still to be served, each with where to go on.
    left: VecDeque<(i64, Option<Position>)>,
    /// Those that the open transaction serves.
    taken: Vec<i64>,
    /// Whether memory knows that this process has something to serve.
    is_serving: bool,
}

thread_local! {
    static WORK: RefCell<Work> = RefCell::default();
    /// The instance that `WORK` is about; 0: none.
    static OF: Cell<u32> = const { Cell::new(0) };
    /// Whether this process looks at everything.
    static IS_LOOKING: Cell<bool> = const { Cell::new(false) };
}

/// Returns when there is something to do, on the monotonic clock.
pub fn next_at(number: u32) -> i64 {
    if OF.get() == number && WORK.with_borrow(|work| !work.left.is_empty()) {
        return i64::MIN;
    }
    shmem::with_awaited(number, |awaited, _| awaited.look_at()).unwrap_or(i64::MAX)
}

/// Whether every end by now was looked at, so that ended jobs may go. Sessions that have ended jobs hold locks until
/// they have handed them over.
pub fn is_idle(number: u32) -> bool {
    shmem::with_awaited(number, |awaited, _| awaited.is_quiet() || awaited.is_idle()).unwrap_or(true)
}

fn is_due(number: u32) -> bool {
    next_at(number) <= time::monotonic_us()
}

/// Hands over again what the transaction has served that is rolled back.
fn undone() {
    let taken = WORK.with_borrow_mut(|work| std::mem::take(&mut work.taken));
    shmem::with_awaited(OF.get(), |awaited, _| taken.iter().for_each(|job_id| _ = awaited.hand_over(*job_id)));
}

/// Tells memory at the end of a transaction whether this process has anything left to serve.
fn settled() {
    let is_done = WORK.with_borrow_mut(|work| work.left.is_empty() && std::mem::take(&mut work.is_serving));
    if is_done {
        shmem::with_awaited(OF.get(), |awaited, _| awaited.serve(false));
    }
}

/// Orders a look at everything if this process ends with something left. Returns the latch of the worker.
fn abandon(instances: &mut [Instance], awaited: &mut [Awaited]) -> Option<*mut Latch> {
    let slot = instances.iter().position(|i| i.number == OF.get() && i.number != 0)?;
    let awaited = &mut awaited[slot];
    let is_serving = WORK.try_with(|work| work.try_borrow().is_ok_and(|work| work.is_serving)).unwrap_or(true);
    if IS_LOOKING.take() {
        awaited.give_up_look();
    } else if !is_serving {
        return None;
    }
    if is_serving {
        awaited.serve(false);
        awaited.order();
    }
    Some(instances[slot].worker_latch)
}

fn run(number: u32) -> i64 {
    transaction::register();
    let Some(catalog) = catalog::of_duty(number) else { return 0 };
    // What a transaction block takes would wait for its end.
    if pg::transaction::in_transaction_block() {
        return 0;
    }
    if OF.replace(number) != number {
        WORK.set(Work::default());
    }
    hooks::at_exit(abandon);
    hooks::on_rollback(undone);
    hooks::at_end(settled);
    WORK.with_borrow_mut(|work| work.taken.clear());
    match serve(&catalog) {
        Ok(did) => did,
        Err(error) => error.report(),
    }
}

/// Serves what memory has and what is left, as much as fits into a transaction.
fn serve(catalog: &Rc<Catalog>) -> Result<i64> {
    if !take(catalog) {
        return Ok(0);
    }
    fault!("release.taken");
    let mut batch = Batch::new(catalog);
    let mut did = 0;
    while !batch.is_full()
        && let Some((job_id, from)) = WORK.with_borrow_mut(|work| {
            let next = work.left.pop_front();
            work.taken.extend(next.map(|(job_id, _)| job_id));
            next
        })
    {
        did += 1;
        if let Some(position) = batch.walk(job_id, from)? {
            WORK.with_borrow_mut(|work| work.left.push_front((job_id, Some(position))));
        }
        process::check_for_interrupts();
    }
    fault!("release.looked");
    let again = batch.write()?;
    fault!("release.written");
    let at = time::monotonic_us().saturating_add(PAUSE);
    shmem::with_awaited(catalog.number, |awaited, instance| {
        again.iter().for_each(|job_id| awaited.put_off(*job_id, at));
        // Only the worker comes back for what is left.
        if instance.worker_pid != session::pid() {
            let left = WORK.with_borrow_mut(|work| std::mem::take(&mut work.left));
            left.iter().for_each(|(job_id, _)| _ = awaited.hand_over(*job_id));
        }
    });
    Ok(did)
}

/// Takes what memory has. False: there is nothing to do now.
///
/// What was handed over comes before what is left: after a start that may be all that is held, of which most has to wait.
fn take(catalog: &Rc<Catalog>) -> bool {
    let number = catalog.number;
    let now = time::monotonic_us();
    let mut is_look = false;
    let mut jobs = Vec::with_capacity(Awaited::ROOM);
    shmem::with_awaited(number, |awaited, _| {
        awaited.take(now, &mut jobs);
        is_look = jobs.is_empty() && WORK.with_borrow(|work| work.left.is_empty()) && awaited.begin_look(now);
        IS_LOOKING.set(is_look);
    });
    if is_look {
        jobs = look_at_everything(catalog);
    }
    WORK.with_borrow_mut(|work| {
        jobs.into_iter().rev().for_each(|job_id| work.left.push_front((job_id, None)));
        if !work.left.is_empty() && !std::mem::replace(&mut work.is_serving, true) {
            shmem::with_awaited(number, |awaited, _| awaited.serve(true));
        }
        is_look || !work.left.is_empty()
    })
}

/// Gives up a look at everything that an error ends.
struct Look(u32);

impl Drop for Look {
    fn drop(&mut self) {
        if IS_LOOKING.take() {
            shmem::with_awaited(self.0, |awaited, _| awaited.give_up_look());
        }
    }
}

/// Reads which jobs held ones are after, and makes memory know them. Returns them, since some may have ended, and held
/// jobs whose time may have come.
fn look_at_everything(catalog: &Rc<Catalog>) -> Vec<i64> {
    /// Jobs made known in one hold of the lock.
    const CHUNK: usize = 256;
    let number = catalog.number;
    let look = Look(number);
    let began = time::monotonic_us();
    fault!("release.begun");
    let mut awaited: Vec<i64> = Vec::new();
    let mut due: Vec<i64> = Vec::new();
    for segment in segment::inhabited(catalog) {
        let Some(edges) = Edges::open(catalog, segment) else { continue };
        let tables = Tables::open(catalog, segment);
        let mut n = 0_u32;
        edges.each(|edge| {
            let is_known = awaited.last() == Some(&edge.job_id);
            if !is_known && tables.claims().find(edge.id, Snapshot::Now).is_none() {
                awaited.push(edge.job_id);
            }
            if edge.upon == Upon::Overdue {
                let mut attempts = tables.attempt.scan(tables.by_id(), &[Key::eq_i64(1, edge.id)], Snapshot::Now);
                due.extend(attempts.next().map(|_| attempts.columns(2).0[1].value() as i64));
            }
            n += 1;
            if n.is_multiple_of(1024) && awake::is_awake(number) {
                start_due::catch_up(number);
            }
        });
    }
    awaited.sort_unstable();
    awaited.dedup();
    for chunk in awaited.chunks(CHUNK) {
        shmem::with_awaited(number, |known, _| chunk.iter().for_each(|job_id| known.found(*job_id)));
    }
    let now = time::monotonic_us();
    let pause = (now - began).saturating_mul(SHARE).min(LONGEST);
    shmem::with_awaited(number, |awaited, _| awaited.looked(now.saturating_add(pause)));
    IS_LOOKING.set(false);
    drop(look);
    due.sort_unstable();
    due.dedup();
    awaited.extend(due);
    awaited
}

/// A held attempt that is released or skipped.
struct Act {
    attempt: Attempt,
    queue: Rc<Queue>,
    /// The lane that it goes to; `None`: it is skipped.
    lane: Option<i32>,
    /// The job that was handed over.
    because: i64,
    /// A job that it was after, and what has become of that.
    blamed: Option<(i64, Fate)>,
}

/// What one transaction does.
struct Batch<'a> {
    catalog: &'a Rc<Catalog>,
    fates: HashMap<i64, Fate>,
    acts: Vec<Act>,
    /// The attempts of `acts`.
    decided: HashSet<i64>,
    /// Edges of which it is to be remembered that they are met.
    met: Vec<(Home, Edge)>,
    looked: usize,
    /// Up to when jobs are due: not before the moment up to which they were handed over.
    due_to: i64,
    /// Jobs to be looked at once more, as an open transaction is in the way.
    again: Vec<i64>,
}

impl<'a> Batch<'a> {
    fn new(catalog: &'a Rc<Catalog>) -> Self {
        let cursor = shmem::with_instance(catalog.number, |_, instance| instance.due_to).unwrap_or(i64::MIN);
        Self {
            catalog,
            fates: HashMap::new(),
            acts: Vec::new(),
            decided: HashSet::new(),
            met: Vec::new(),
            looked: 0,
            due_to: time::now_us().max(cursor),
            again: Vec::new(),
        }
    }

    fn is_full(&self) -> bool {
        self.acts.len() >= BATCH || self.looked >= LOOK
    }

    fn fate(&mut self, job_id: i64) -> Result<Fate> {
        if let Some(&fate) = self.fates.get(&job_id) {
            return Ok(fate);
        }
        let (fate, _) = after::fate(self.catalog, job_id)?;
        self.fates.insert(job_id, fate);
        Ok(fate)
    }

    /// Looks at a job itself, if it is held, and at the held attempts that are after it, if it has ended. Returns where to go
    /// on, if there are more.
    fn walk(&mut self, job_id: i64, from: Option<Position>) -> Result<Option<Position>> {
        // The look for it is worth as much as some looks at attempts.
        self.looked += 10;
        let (fate, own) = after::fate(self.catalog, job_id)?;
        self.fates.insert(job_id, fate);
        if let Some(attempt) = own {
            self.look_at_itself(&attempt)?;
        }
        if fate == Fate::Living {
            return Ok(None);
        }
        // In this order an attempt that moves meanwhile is met at least once.
        let segments: Vec<u8> = segment::inhabited(self.catalog).collect();
        let start = from.and_then(|from| segments.iter().position(|segment| *segment == from.segment));
        let mut after = from.filter(|_| start.is_some()).map_or(0, |from| from.attempt);
        for &segment in &segments[start.unwrap_or(0)..] {
            let Some(edges) = Edges::open(self.catalog, segment) else { continue };
            let tables = Tables::open(self.catalog, segment);
            loop {
                let mut ids = Vec::new();
                edges.each_after(job_id, after, |id| {
                    ids.push(id);
                    ids.len() < BATCH
                });
                let Some(&last) = ids.last() else { break };
                for id in ids {
                    if self.is_full() {
                        return Ok(Some(Position { segment, attempt: after }));
                    }
                    self.look_at(&tables, &edges, id, job_id)?;
                    after = id;
                }
                after = last;
                process::check_for_interrupts();
            }
            after = 0;
        }
        Ok(None)
    }

    /// Decides about an attempt whose own time may have come.
    fn look_at_itself(&mut self, attempt: &Attempt) -> Result<()> {
        let segment = attempt.home.segment;
        let Some(edges) = Edges::open(self.catalog, segment) else { return Ok(()) };
        let tables = Tables::open(self.catalog, segment);
        if tables.home != attempt.home {
            self.again.push(attempt.job_id());
            return Ok(());
        }
        self.look_at(&tables, &edges, attempt.id(), attempt.job_id())
    }

    /// Decides about an attempt, because of a job that was handed over.
    fn look_at(&mut self, tables: &Tables, edges: &Edges, id: i64, job_id: i64) -> Result<()> {
        self.looked += 1;
        if self.decided.contains(&id) {
            return Ok(());
        }
        let mut claims = tables.claims().scan(&[Key::eq_i64(1, id)], Snapshot::Dirty);
        if claims.next().is_some() {
            // That transaction may be rolled back.
            if claims.is_in_progress() {
                self.again.push(job_id);
            }
            return Ok(());
        }
        drop(claims);
        let mut attempts = tables.attempt.scan(tables.by_id(), &[Key::eq_i64(1, id)], Snapshot::Now);
        if attempts.next().is_none() {
            return Ok(());
        }
        let attempt = Attempt::new(attempts.row(), tables.home);
        drop(attempts);
        let Some(queue) = queue::by_lane(self.catalog, attempt.lane())? else { return Ok(()) };
        if !queue.is_held(attempt.lane()) {
            return Ok(());
        }
        let own = edges.of(id);
        let mut fates = Vec::with_capacity(own.len());
        for edge in &own {
            fates.push(if edge.is_met { Fate::Completed } else { self.fate(edge.job_id)? });
        }
        let upon = own.first().map_or(Upon::Completed, |edge| edge.upon);
        let is_due = attempt.run_at().is_none_or(|at| at <= self.due_to);
        let lane = match verdict(upon, &fates, is_due) {
            Verdict::Release => Some(after::lane_of_release(&queue, &own)),
            Verdict::Skip => None,
            Verdict::Hold => {
                // By the time that the others have ended, it may be gone.
                let new = own.iter().zip(&fates).filter(|(edge, fate)| !edge.is_met && edge.upon.is_met_by(**fate));
                self.met.extend(new.map(|(edge, _)| (tables.home, *edge)));
                return Ok(());
            }
        };
        self.decided.insert(id);
        let is_to_blame = |fate: &Fate| matches!(fate, Fate::Cancelled | Fate::Gone);
        let decisive = fates.iter().position(is_to_blame).unwrap_or(0);
        let blamed = own.get(decisive).map(|edge| (edge.job_id, fates[decisive]));
        self.acts.push(Act { attempt, queue, lane, because: job_id, blamed });
        Ok(())
    }

    /// Writes what was decided. Returns the jobs to be looked at once more.
    fn write(mut self) -> Result<Vec<i64>> {
        for (home, edge) in std::mem::take(&mut self.met) {
            self.remember(home, &edge);
        }
        let mut acts = std::mem::take(&mut self.acts);
        // The queue of a lane may be about to be dropped.
        let mut lanes: HashMap<i32, bool> = HashMap::new();
        let catalog = self.catalog;
        acts.retain(|act| {
            let is_there =
                act.lane.is_none_or(|lane| *lanes.entry(lane).or_insert_with(|| after::watch(catalog, lane).is_ok()));
            if !is_there {
                self.again.push(act.because);
            }
            is_there
        });
        let mut of_segments: Vec<Vec<Act>> = (0..id::SEGMENTS).map(|_| Vec::new()).collect();
        acts.into_iter().for_each(|act| of_segments[act.attempt.home.segment as usize].push(act));
        for acts in of_segments.into_iter().filter(|acts| !acts.is_empty()) {
            self.write_segment(acts)?;
        }
        Ok(self.again)
    }

    /// Notes that an edge is met.
    fn remember(&mut self, home: Home, edge: &Edge) {
        let catalog = self.catalog;
        let insert = |home: Home| {
            let is_in = edge::insert_met(catalog, home, edge);
            if is_in {
                let segment = home.segment;
                transaction::record(catalog.number, Step::Counted { segment, attempts: 1, ended: 1 });
            }
            is_in
        };
        match hold::note_where_it_is(catalog, edge.id, home, insert, |home| hold::probe_both(catalog, home, edge.id)) {
            hold::Noted::Moving => self.again.push(edge.job_id),
            hold::Noted::Here(_) | hold::Noted::Gone => {}
        }
    }

    fn write_segment(&mut self, mut acts: Vec<Act>) -> Result<()> {
        let Some(home) = acts.first().map(|act| act.attempt.home) else { return Ok(()) };
        let Some(claims) = claim::Writer::open_home(self.catalog, home) else {
            self.again.extend(acts.iter().map(|act| act.because));
            return Ok(());
        };
        let taken: Vec<(i64, i64)> = acts.iter().map(|act| (act.attempt.id(), 0)).collect();
        let lost = claims.insert(&taken, time::now_us(), claim::Kind::System, None);
        for n in lost.into_iter().rev() {
            let act = acts.swap_remove(n);
            self.again.push(act.because);
        }
        fault!("release.claimed");
        let mut counts = Vec::with_capacity(acts.len());
        ids::take(self.catalog, acts.len(), |count| counts.push(count))?;
        let now = time::now_us();
        let mut outcomes = Vec::with_capacity(acts.len());
        let mut reasons: HashMap<i64, Datum> = HashMap::new();
        for wants_far in [false, true] {
            let run_at = |act: &Act| act.attempt.run_at().filter(|&at| at > now);
            let far = |act: &Act| run_at(act).filter(|&at| is_far(self.catalog, at));
            let chosen = acts.iter().zip(&counts).filter(|(act, _)| act.lane.is_some());
            let mut chosen = chosen.filter(|(act, _)| far(act).is_some() == wants_far).peekable();
            let Some((first, _)) = chosen.peek() else { continue };
            let target = Target::open(self.catalog, far(first));
            let attempts: Vec<New> = chosen
                .map(|(act, &count)| {
                    let next_id = id::attempt(ids::node(), count, target.home.segment);
                    let superseded = outcome::New::of(act.attempt.id(), Kind::Superseded);
                    outcomes.push(outcome::New { next_id: Some(next_id), ..superseded });
                    after::released(&act.attempt, next_id, act.lane.unwrap_or_default(), run_at(act))
                })
                .collect();
            attempt::insert(self.catalog, &target, &attempts)?;
        }
        for act in acts.iter().filter(|act| act.lane.is_none()) {
            let error = act
                .blamed
                .map(|(job_id, fate)| *reasons.entry(job_id).or_insert_with(|| text_datum(&reason(job_id, fate))));
            outcomes.push(outcome::New { error, ..outcome::New::of(act.attempt.id(), Kind::Skipped) });
            transaction::record(self.catalog.number, Step::Settled { job_id: act.attempt.job_id() });
        }
        let writer = outcome::Writer::open_home(self.catalog, home);
        let lost = writer.map_or(outcomes.len(), |writer| writer.insert(&outcomes).len());
        if lost > 0 {
            return Err(Error::internal("a held attempt without a claim has an outcome"));
        }
        self.tell(home.segment, &acts);
        Ok(())
    }

    /// Records what the commit tells memory, but for the new attempts.
    fn tell(&self, segment: u8, acts: &[Act]) {
        let number = self.catalog.number;
        let mut lanes: HashMap<i32, i64> = HashMap::new();
        acts.iter().for_each(|act| *lanes.entry(act.attempt.lane()).or_default() += 1);
        transaction::record(number, Step::Counted { segment, attempts: 0, ended: acts.len() as i64 });
        transaction::record_all(number, lanes.into_iter().map(|(lane, count)| Step::Purged { lane, count }));
        let mut told = HashSet::new();
        for act in acts.iter().filter(|act| act.lane.is_some() && act.queue.notify) {
            if told.insert(act.queue.lane) {
                transaction::record(number, Step::Notify { lane: act.queue.lane });
            }
        }
    }
}

/// Why a job was skipped.
fn reason(job_id: i64, fate: Fate) -> String {
    let what = match fate {
        Fate::Living => "lives",
        Fate::Completed => "has completed",
        Fate::Dead => "is dead",
        Fate::Cancelled => "was cancelled or skipped",
        Fate::Gone => "is known no more",
    };
    format!("it was after job {job_id}, which {what}")
}
