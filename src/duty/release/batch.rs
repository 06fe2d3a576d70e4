//! The decisions of one transaction of the duty about held attempts, and their rows.
//!
//! Not responsible for deciding from the fates of several jobs (`core::after`), nor for edges themselves (`log::edge`).
//!
//! Invariant: the key of `claim` decides between a release and any other end of a held attempt.

use std::collections::{HashMap, HashSet};
use std::iter;
use std::rc::Rc;

use pg_queue_core::after::{Fate, Time, Upon, Verdict, verdict};
use pg_queue_core::{id, totals};
use pgrx::pg_sys::Datum;

use crate::catalog::queue::{self, Queue};
use crate::catalog::{drops, ids};
use crate::duty::care::Care;
use crate::duty::release::known;
use crate::duty::release::work::Position;
use crate::error::{Error, Result};
use crate::job::{after, dead_letter, flow, hold};
use crate::log::attempt::{self, Attempt, New};
use crate::log::claim;
use crate::log::edge::{self, Edge, Edges};
use crate::log::outcome::{self, Kind};
use crate::log::segment::{self, Home, Target, is_far};
use crate::log::tables::Tables;
use crate::pg::datum::{self, text_datum};
use crate::pg::fault::fault;
use crate::pg::scan::{Key, Probe, Snapshot};
use crate::pg::{memory, process, time};
use crate::shmem;
use crate::transaction::{self, FlowStep, QueueStep, SegmentStep, Step};

/// At most this many held attempts are released or skipped in one transaction.
const MAX_ACTS: usize = 1_000;
/// At most this many held attempts are looked at in one transaction.
const MAX_LOOKS: usize = 5_000;

/// A session looks at this many held attempts before it commits the end of their predecessor. So its cost is bounded,
/// and the duty serves the others.
const MAX_LOOKS_AT_COMMIT: usize = 64;

/// The decision about a held attempt.
pub enum Decision {
    /// The attempt is released to this lane.
    Release(i32),
    /// The attempt is skipped because of this edge and the fate of its job.
    Skip(Option<(Edge, Fate)>),
    /// A flow completes because its members have completed.
    Complete,
    /// A flow is cancelled because its members are.
    Cancel(Option<String>),
    /// A flow has expired, and its members are cancelled.
    Expire,
    /// A flow dies with this error, and its remaining members are cancelled.
    Die(String),
}

/// A held attempt that is released or ends.
pub struct Act {
    pub attempt: Attempt,
    pub queue: Rc<Queue>,
    pub decision: Decision,
    /// The time at which it runs after its release. `None`: it may run immediately.
    pub run_at: Option<i64>,
    /// The job that was handed over and led to this attempt.
    pub because: i64,
}

impl Act {
    /// Returns the lane to which it is released. `None`: it ends.
    fn lane(&self) -> Option<i32> {
        if let Decision::Release(lane) = self.decision { Some(lane) } else { None }
    }
}

/// The work of one transaction.
pub struct Batch<'a> {
    /// True if this transaction completes the jobs. Then it only makes plain releases, and leaves the rest to the duty.
    is_at_commit: bool,
    care: &'a Care,
    /// Jobs that were handed over and led to a write that failed.
    pub failed: Vec<i64>,
    /// The fates of jobs, each with whether the job is a flow that waits.
    fates: HashMap<i64, (Fate, bool)>,
    acts: Vec<Act>,
    /// The attempts of `acts`.
    decided: HashSet<i64>,
    /// The claims of segments, open to read and to write.
    claims: [Option<claim::Writer>; id::SEGMENTS],
    /// Edges that were found met. A note will record that.
    met: Vec<(Home, Edge)>,
    pub looked: usize,
    /// The time up to which jobs are due. It is not earlier than the time up to which they were handed over.
    due_to: i64,
    /// Jobs that must be looked at again, because an open transaction blocks them.
    pub again: Vec<i64>,
}

impl<'a> Batch<'a> {
    pub fn new(care: &'a Care) -> Self {
        let read = shmem::with_awaited(|awaited, instance| (instance.due.to, awaited.epoch()));
        let (cursor, epoch) = read.unwrap_or((i64::MIN, 0));
        known::catch_up(epoch);
        Self {
            is_at_commit: false,
            care,
            failed: Vec::new(),
            fates: HashMap::new(),
            acts: Vec::new(),
            decided: HashSet::new(),
            claims: std::array::from_fn(|_| None),
            met: Vec::new(),
            looked: 0,
            due_to: time::now_us().max(cursor),
            again: Vec::new(),
        }
    }

    /// Returns a batch for the open transaction, which completes these jobs.
    pub fn of_commit(care: &'a Care, jobs: &[i64]) -> Self {
        let mut batch = Self::new(care);
        batch.is_at_commit = true;
        batch.fates.extend(jobs.iter().map(|job_id| (*job_id, (Fate::Completed, false))));
        batch
    }

    /// Returns how many held attempts one transaction releases or skips, and how many it looks at.
    fn limits(&self) -> (usize, usize) {
        if self.is_at_commit { (MAX_LOOKS_AT_COMMIT, MAX_LOOKS_AT_COMMIT) } else { (MAX_ACTS, MAX_LOOKS) }
    }

    pub fn is_full(&self) -> bool {
        let (acts, looks) = self.limits();
        self.acts.len() >= acts || self.looked >= looks
    }

    /// Returns the fate of an edge's job. If the successor waits for a death, a waiting flow with a dead member counts
    /// as dead.
    fn fate(&mut self, edge: &Edge) -> Result<Fate> {
        let known = self.fates.get(&edge.job_id).copied();
        let (fate, is_flow) = match known {
            Some(known) => known,
            None => self.note_fate(edge.job_id, &after::fate(edge.job_id)?),
        };
        let has_failed = is_flow && edge.upon == Upon::Failed && self.dead_member(edge.job_id)?.is_some();
        Ok(if has_failed { Fate::Dead } else { fate })
    }

    fn note_fate(&mut self, job_id: i64, job: &after::Predecessor) -> (Fate, bool) {
        let known = (job.fate, job.held.as_ref().is_some_and(flow::is_flow));
        self.fates.insert(job_id, known);
        known
    }

    /// Adds a decision about a held attempt.
    pub fn act(&mut self, act: Act) {
        self.decided.insert(act.attempt.id());
        self.acts.push(act);
    }

    /// Looks at a job itself, if it is held, and at its held successors, if it has ended. Returns the position at which
    /// to continue, if there are more.
    pub fn walk(&mut self, job_id: i64, from: Option<Position>) -> Result<Option<Position>> {
        // Finding the job costs about as much as looking at some attempts.
        self.looked += 10;
        let job = after::fate(job_id)?;
        let (fate, is_flow) = self.note_fate(job_id, &job);
        if let Some(attempt) = &job.held
            && from.is_none()
        {
            self.decide_by_own_time(attempt)?;
        }
        if fate == Fate::Living && !is_flow {
            return Ok(None);
        }
        if let Some(flow) = job.flow.filter(|_| fate != Fate::Living) {
            known::ended(flow, job_id, fate);
        }
        self.walk_after(job_id, from)
    }

    /// Looks at the held successors of a job. Returns the position at which to continue, if there are more.
    pub fn walk_after(&mut self, job_id: i64, from: Option<Position>) -> Result<Option<Position>> {
        let (most, _) = self.limits();
        // In this order, an attempt that moves meanwhile is met at least once.
        let segments: Vec<u8> = segment::inhabited().collect();
        let start = from.and_then(|from| segments.iter().position(|segment| *segment == from.segment));
        let mut after = from.filter(|_| start.is_some()).map_or(0, |from| from.attempt);
        for &segment in &segments[start.unwrap_or(0)..] {
            let Some(edges) = Edges::open(segment) else { continue };
            let tables = Tables::open(segment);
            loop {
                let mut found = Vec::new();
                edges.each_after(job_id, after, |edge| {
                    found.push(edge);
                    found.len() < most
                });
                let has_more = found.len() == most;
                for edge in found {
                    if self.is_full() {
                        return Ok(Some(Position { segment, attempt: after }));
                    }
                    self.look_at(&tables, &edges, edge.id, job_id, Some(edge))?;
                    after = edge.id;
                }
                if !has_more {
                    break;
                }
                process::check_for_interrupts();
            }
            after = 0;
        }
        Ok(None)
    }

    /// Returns the claims of a segment, open to write. `None`: the segment has another filling now.
    fn claims(&mut self, home: Home) -> Option<&claim::Writer> {
        let opened = &mut self.claims[home.segment as usize];
        if opened.is_none() {
            *opened = claim::Writer::open_home(home);
        }
        opened.as_ref()
    }

    /// Decides about an attempt whose own time may have come.
    fn decide_by_own_time(&mut self, attempt: &Attempt) -> Result<()> {
        let segment = attempt.home.segment;
        let Some(edges) = Edges::open(segment) else { return Ok(()) };
        let tables = Tables::open(segment);
        if tables.home != attempt.home {
            self.again.push(attempt.job_id());
            return Ok(());
        }
        self.look_at(&tables, &edges, attempt.id(), attempt.job_id(), None)
    }

    /// Decides about an attempt because of a job that was handed over. `by`: the edge by which it was found.
    fn look_at(&mut self, tables: &Tables, edges: &Edges, id: i64, job_id: i64, by: Option<Edge>) -> Result<()> {
        self.looked += 1;
        if self.decided.contains(&id) {
            return Ok(());
        }
        let seen = self.claims(tables.home).map(|claims| claims.probe(id));
        // The other transaction may be rolled back.
        if seen.is_none_or(|seen| matches!(seen, Probe::InProgress | Probe::Moving)) {
            self.again.push(job_id);
        }
        if seen != Some(Probe::Absent) {
            return Ok(());
        }
        let mut attempts = tables.attempt.scan(tables.by_id(), &[Key::eq_i64(1, id)], Snapshot::Now);
        if attempts.next().is_none() {
            return Ok(());
        }
        let attempt = Attempt::new(attempts.row(), tables.home);
        drop(attempts);
        let Some(queue) = queue::by_lane(attempt.lane())? else { return Ok(()) };
        if !queue.is_held(attempt.lane()) {
            return Ok(());
        }
        let mut own = match by.filter(|edge| is_only_edge(&attempt, edge)) {
            Some(edge) => vec![edge],
            None => edges.of(id),
        };
        // A sealed flow depends on its members alone.
        own.retain(|edge| edge.job_id != edge::SEAL || !edge.is_met);
        let is_open = own.iter().any(|edge| edge.job_id == edge::SEAL);
        let of_flow = flow::own_edge(&own);
        if self.is_at_commit && of_flow.is_some() {
            self.again.push(job_id);
            return Ok(());
        }
        let attempt = match &of_flow {
            Some(of_flow) => match self.is_ending(attempt, edges, of_flow)? {
                Some(attempt) => attempt,
                None => return Ok(()),
            },
            None => attempt,
        };
        let has_until = own.iter().any(|edge| edge.until.is_some());
        let time = match attempt.run_at() {
            Some(at) if at > self.due_to => Time::Ahead,
            _ if has_until => Time::Over,
            _ => Time::Due,
        };
        let mut fates = memory::list(own.len());
        for edge in &own {
            fates.push(if edge.is_met || time == Time::Over {
                Fate::Completed
            } else if is_open && (edge.job_id == edge::SEAL || edge.is_own) {
                Fate::Living
            } else if edge.is_own {
                match self.members(edge.job_id, edge.upon)? {
                    Some(fate) => fate,
                    None => return Ok(()),
                }
            } else {
                self.fate(edge)?
            });
        }
        let upon = own.first().map_or(Upon::Completed, |edge| edge.upon);
        let verdict = verdict(upon, &fates, time);
        // If the ending transaction rolls back, any other verdict may become wrong, above all one that follows from a
        // death. And while another predecessor lives, its end may be in progress and not see this one's end.
        let is_final = verdict == Verdict::Release
            && match upon {
                Upon::Any => fates.contains(&Fate::Completed),
                _ => fates.iter().all(|fate| *fate == Fate::Completed),
            };
        if self.is_at_commit && !is_final {
            self.again.push(job_id);
            return Ok(());
        }
        let decision = match verdict {
            Verdict::Release if of_flow.is_some_and(|edge| edge.lane == 0) => Decision::Complete,
            Verdict::Release => Decision::Release(after::lane_of_release(&queue, &own)),
            Verdict::Skip => {
                let decisive = fates.iter().position(|fate| fate.is_lost()).unwrap_or(0);
                Decision::Skip(own.get(decisive).map(|edge| (*edge, fates[decisive])))
            }
            Verdict::Hold => {
                // When the other predecessors have ended, this one may have been deleted. So a note records that its
                // edge is met.
                let is_new = |edge: &Edge, fate: Fate| !edge.is_met && !edge.is_own && edge.upon.is_met_by(fate);
                let new = own.iter().zip(&fates).filter(|(edge, fate)| is_new(edge, **fate));
                self.met.extend(new.map(|(edge, _)| (tables.home, *edge)));
                return Ok(());
            }
        };
        let run_at = attempt.run_at().filter(|_| !has_until);
        self.act(Act { attempt, queue, decision, run_at, because: job_id });
        Ok(())
    }

    /// Writes the decisions.
    pub fn write(&mut self) -> Result<()> {
        for (home, edge) in std::mem::take(&mut self.met) {
            self.remember(home, &edge);
        }
        let mut acts = std::mem::take(&mut self.acts);
        // A lane's queue may be about to be dropped.
        let mut lanes: HashMap<i32, bool> = HashMap::new();
        acts.retain(|act| {
            let is_there = act.lane().is_none_or(|lane| *lanes.entry(lane).or_insert_with(|| drops::admits(lane)));
            if !is_there {
                self.again.push(act.because);
            }
            is_there
        });
        let mut of_segments: Vec<Vec<Act>> = (0..id::SEGMENTS).map(|_| Vec::new()).collect();
        acts.into_iter().for_each(|act| of_segments[act.attempt.home.segment as usize].push(act));
        for acts in of_segments.into_iter().filter(|acts| !acts.is_empty()) {
            let care = self.care;
            let together = care.together(acts.len());
            let mut acts = acts.into_iter();
            while let Some(first) = acts.next() {
                let (because, job_id) = (first.because, first.attempt.job_id());
                let some: Vec<Act> = iter::once(first).chain(acts.by_ref().take(together - 1)).collect();
                let what = || format!("held job {job_id} could not be released or ended");
                if care.serve(what, || self.write_segment(some))?.is_none() {
                    // The rollback of the subtransaction has closed what was opened in it.
                    self.claims = std::array::from_fn(|_| None);
                    self.failed.push(because);
                }
            }
        }
        Ok(())
    }

    /// Writes a note that an edge is met.
    fn remember(&mut self, home: Home, edge: &Edge) {
        self.note(home, edge.id, edge.job_id, |home| edge::insert_met(home, edge));
    }

    /// Writes a note about a held attempt where the attempt is, with `insert`. If the attempt keeps moving for too
    /// long, hands the job over again.
    pub fn note(&mut self, home: Home, id: i64, job_id: i64, insert: impl Fn(Home) -> bool) {
        if let hold::Noted::Moving = hold::note_held(id, home, insert) {
            self.again.push(job_id);
        }
    }

    fn write_segment(&mut self, mut acts: Vec<Act>) -> Result<()> {
        let Some(home) = acts.first().map(|act| act.attempt.home) else { return Ok(()) };
        let taken: Vec<(i64, i64)> = acts.iter().map(|act| (act.attempt.id(), 0)).collect();
        let Some(claims) = self.claims(home) else {
            self.again.extend(acts.iter().map(|act| act.because));
            return Ok(());
        };
        let lost = claims.insert(&taken, time::now_us(), claim::Kind::System, None);
        for n in lost.into_iter().rev() {
            let act = acts.swap_remove(n);
            self.again.push(act.because);
        }
        fault!(if self.is_at_commit { "ender.claimed" } else { "release.claimed" });
        let mut counts = memory::list(acts.len());
        ids::take(acts.len(), |count| counts.push(count))?;
        let now = time::now_us();
        let mut outcomes = memory::list(acts.len());
        let mut reasons: HashMap<(i64, u8), Datum> = HashMap::new();
        for wants_far in [false, true] {
            let run_at = |act: &Act| act.run_at.filter(|&at| at > now);
            let far = |act: &Act| run_at(act).filter(|&at| is_far(at));
            let chosen = acts.iter().zip(&counts).filter(|(act, _)| act.lane().is_some());
            let mut chosen = chosen.filter(|(act, _)| far(act).is_some() == wants_far).peekable();
            let Some((first, _)) = chosen.peek() else { continue };
            let target = Target::open(far(first));
            let attempts: Vec<New> = chosen
                .map(|(act, &count)| {
                    let next_id = id::attempt(ids::node(), count, target.home.segment);
                    let superseded = outcome::New::of(act.attempt.id(), Kind::Superseded);
                    outcomes.push(outcome::New { next_id: Some(next_id), ..superseded });
                    let lane = act.lane().unwrap_or_default();
                    after::released(&act.queue, &act.attempt, next_id, lane, run_at(act), now)
                })
                .collect();
            attempt::insert_admitted(&target, &attempts);
        }
        for act in &acts {
            let (kind, error) = match &act.decision {
                Decision::Release(_) => continue,
                Decision::Skip(blamed) => {
                    let text = |(edge, fate): (Edge, Fate)| {
                        let key = (edge.job_id, edge.upon.char());
                        *reasons.entry(key).or_insert_with(|| text_datum(&reason(&edge, fate)))
                    };
                    (Kind::Skipped, blamed.map(text))
                }
                Decision::Complete => (Kind::Completed, None),
                Decision::Cancel(reason) => (Kind::Cancelled, reason.as_deref().map(text_datum)),
                Decision::Expire => (Kind::Expired, None),
                Decision::Die(error) => {
                    dead_letter::copy(&act.queue, &act.attempt, error);
                    (Kind::Dead, Some(text_datum(error)))
                }
            };
            outcomes.push(outcome::New { error, ..outcome::New::of(act.attempt.id(), kind) });
            if matches!(kind, Kind::Completed | Kind::Dead | Kind::Expired) {
                let end = totals::End { outcome: kind.char(), has_next: false };
                transaction::record(Step::EndCounted { lane: act.attempt.lane(), end });
            }
            let job_id = act.attempt.job_id();
            transaction::record(FlowStep::JobEnded { job_id });
            // The flow to which the job belongs may end with it.
            if kind == Kind::Dead && act.attempt.flow().is_some() {
                transaction::record(FlowStep::Awaited { job_id, mark: None });
            }
        }
        let writer = outcome::Writer::open_home(home);
        let lost = writer.map_or(outcomes.len(), |writer| writer.insert(&outcomes).len());
        if lost > 0 {
            return Err(Error::internal("a held attempt without a claim has an outcome"));
        }
        self.record_in_memory(home.segment, &acts);
        Ok(())
    }

    /// Records what the commit changes in memory, except for the new attempts.
    fn record_in_memory(&self, segment: u8, acts: &[Act]) {
        let mut lanes: HashMap<i32, i64> = HashMap::new();
        acts.iter().for_each(|act| *lanes.entry(act.attempt.lane()).or_default() += 1);
        transaction::record(SegmentStep::Counted { segment, attempts: 0, ended: acts.len() as i64 });
        transaction::record_all(lanes.into_iter().map(|(lane, count)| Step::Purged { lane, count }));
        let mut told = HashSet::new();
        for act in acts.iter().filter(|act| act.lane().is_some() && act.queue.notify) {
            if told.insert(act.queue.lane) {
                transaction::record(QueueStep::NotifyDue { lane: act.queue.lane });
            }
        }
    }
}

/// True if this edge is the only note that matters for a verdict. The attempt is no flow and has one predecessor. No
/// note says that the edge is met, because then the attempt would already be released.
fn is_only_edge(attempt: &Attempt, edge: &Edge) -> bool {
    edge.upon == Upon::Completed
        && attempt.own_flow().is_none()
        && attempt.after().is_some_and(|after| datum::i64_array(after) == [edge.job_id])
}

/// Returns why a job was skipped.
fn reason(edge: &Edge, fate: Fate) -> String {
    match (edge.upon, edge.is_own) {
        (Upon::Any, true) => return "none of its members has completed".to_owned(),
        (Upon::Any, false) => return "none of the jobs that it was after has completed".to_owned(),
        (_, true) => return "none of its members is dead".to_owned(),
        (_, false) => {}
    }
    let what = match fate {
        Fate::Living => "lives",
        Fate::Completed => "has completed",
        Fate::Dead => "is dead",
        Fate::Cancelled => "was cancelled, was skipped or has expired",
        Fate::Buried => "is dead, and whose queue was dropped",
        Fate::Gone => "is known no more",
    };
    format!("it was after job {}, which {what}", edge.job_id)
}
