//! Reads held attempts and the fates of their predecessors, and collects what follows.
//!
//! Not responsible for the decision (`core::after::judge`), for flows that end early and for members (`members`), nor
//! for writing what follows (`changes`).
//!
//! Invariant: a fate is read at most once in one look, so that all decisions of a transaction agree.

use std::collections::HashMap;
use std::rc::Rc;

use pg_queue_core::after::judge::{Act, Decider, Held, Wait, WaitsFor};
use pg_queue_core::after::{Fate, Time, Upon};

use crate::catalog::queue::{self, Queue};
use crate::duty::release::changes::{Change, Changes, EarlyEnd, Next};
use crate::duty::release::known;
use crate::duty::release::work::Position;
use crate::error::Result;
use crate::job::{after, flow};
use crate::log::attempt::Attempt;
use crate::log::edge::{self, Edge, Edges};
use crate::log::segment;
use crate::log::tables::Tables;
use crate::pg::scan::{Key, Probe, Snapshot};
use crate::pg::{datum, memory, process, time};
use crate::shmem;

/// The duty releases or skips at most this many held attempts in one transaction.
const MAX_CHANGES: usize = 1_000;
/// The duty looks at most at this many held attempts in one transaction.
const MAX_LOOKS: usize = 5_000;
/// A session looks at this many held attempts before it commits the end of their predecessor. So its cost is bounded,
/// and the duty serves the others.
const MAX_LOOKS_AT_COMMIT: usize = 64;
/// The cost of a search for a job or for members, in looks at held attempts.
pub const LOOKS_PER_SEARCH: usize = 10;

/// The look of one transaction at held attempts.
pub struct Look {
    /// The most attempts that change, and the most that are looked at.
    limits: (usize, usize),
    /// The fates of jobs, each with whether the job is a flow that waits.
    fates: HashMap<i64, (Fate, bool)>,
    /// How many held attempts were looked at.
    pub looked: usize,
    /// The time up to which jobs are due. It is not earlier than the time up to which they were handed over.
    due_to: i64,
    /// What follows.
    pub changes: Changes,
}

impl Look {
    fn new(decider: Decider, limits: (usize, usize)) -> Self {
        let read = shmem::with_awaited(|awaited, instance| (instance.due.to, awaited.epoch()));
        let (cursor, epoch) = read.unwrap_or((i64::MIN, 0));
        known::catch_up(epoch);
        let due_to = time::now_us().max(cursor);
        Self { limits, fates: HashMap::new(), looked: 0, due_to, changes: Changes::new(decider) }
    }

    /// Begins the look of the duty.
    pub fn by_duty() -> Self {
        Self::new(Decider::Duty, (MAX_CHANGES, MAX_LOOKS))
    }

    /// Begins the look of the open transaction, which completes these jobs.
    pub fn by_commit(jobs: &[i64]) -> Self {
        let mut look = Self::new(Decider::Commit, (MAX_LOOKS_AT_COMMIT, MAX_LOOKS_AT_COMMIT));
        look.fates.extend(jobs.iter().map(|job_id| (*job_id, (Fate::Completed, false))));
        look
    }

    /// Returns whether the transaction has looked at or changes as many attempts as it may.
    pub fn is_full(&self) -> bool {
        let (changes, looks) = self.limits;
        self.changes.count() >= changes || self.looked >= looks
    }

    /// Looks at a job itself, if it is held, and at its held successors, if it has ended. Returns the position at which
    /// to continue, if there are more.
    pub fn walk(&mut self, job_id: i64, from: Option<Position>) -> Result<Option<Position>> {
        self.looked += LOOKS_PER_SEARCH;
        let job = after::fate(job_id)?;
        let (fate, is_flow) = self.note_fate(job_id, &job);
        if let Some(attempt) = &job.held
            && from.is_none()
        {
            self.look_at_itself(attempt)?;
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
        let (most, _) = self.limits;
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
                    self.look_at((&tables, &edges), edge.id, job_id, Some(edge))?;
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

    /// Looks at a held attempt whose own time may have come.
    fn look_at_itself(&mut self, attempt: &Attempt) -> Result<()> {
        let segment = attempt.home.segment;
        let Some(edges) = Edges::open(segment) else { return Ok(()) };
        let tables = Tables::open(segment);
        if tables.home != attempt.home {
            self.changes.again.push(attempt.job_id());
            return Ok(());
        }
        self.look_at((&tables, &edges), attempt.id(), attempt.job_id(), None)
    }

    /// Looks at an attempt because of a job that was handed over, and adds what follows. `by`: the edge by which it was
    /// found.
    fn look_at(&mut self, (tables, edges): (&Tables, &Edges), id: i64, because: i64, by: Option<Edge>) -> Result<()> {
        self.looked += 1;
        if self.changes.has(id) {
            return Ok(());
        }
        let Some((attempt, queue)) = self.find_held(tables, id, because)? else { return Ok(()) };
        let own = waiting_edges(edges, &attempt, by);
        let is_until = own.iter().any(|edge| edge.until.is_some());
        let mut held = Held {
            decider: self.changes.decider(),
            upon: own.first().map_or(Upon::Completed, |edge| edge.upon),
            time: Time::of(attempt.run_at(), is_until, self.due_to),
            ends_by_itself: own.iter().any(|edge| edge.is_own && edge.lane == 0),
            waits: memory::list(own.len()),
        };
        held.waits.extend(own.iter().map(wait));
        let (because, next) = match self.end_early(&held, &attempt, edges, &own)? {
            EarlyEnd::UnderWay => return Ok(()),
            EarlyEnd::Now(next) => (attempt.job_id(), next),
            EarlyEnd::No => {
                if !self.read_fates(&mut held, &own)? {
                    return Ok(());
                }
                let next = match held.judge() {
                    Act::Release => Next::Release {
                        lane: after::lane_of_release(&queue, &own),
                        run_at: attempt.run_at().filter(|_| !is_until),
                    },
                    Act::Complete => Next::Complete,
                    Act::Skip(position, fate) => Next::Skip(own[position], fate),
                    Act::Hold => {
                        held.newly_met().for_each(|position| self.changes.add_met(tables.home, own[position]));
                        return Ok(());
                    }
                    Act::Leave => {
                        self.changes.again.push(because);
                        return Ok(());
                    }
                };
                (because, next)
            }
        };
        self.changes.add(Change { attempt, queue, next, because });
        Ok(())
    }

    /// Returns a held attempt and its queue. `None`: it is not held any more, or its queue was dropped. Also if an open
    /// transaction has claimed the attempt or is moving it: then it is looked at again.
    fn find_held(&mut self, tables: &Tables, id: i64, because: i64) -> Result<Option<(Attempt, Rc<Queue>)>> {
        let claim = self.changes.probe_claim(tables.home, id);
        // The other transaction may be rolled back.
        if claim.is_none_or(|claim| matches!(claim, Probe::InProgress | Probe::Moving)) {
            self.changes.again.push(because);
        }
        if claim != Some(Probe::Absent) {
            return Ok(None);
        }
        let mut attempts = tables.attempt.scan(tables.by_id(), &[Key::eq_i64(1, id)], Snapshot::Now);
        if attempts.next().is_none() {
            return Ok(None);
        }
        let attempt = Attempt::new(attempts.row(), tables.home);
        drop(attempts);
        let queue = queue::by_lane(attempt.lane())?.filter(|queue| queue.is_held(attempt.lane()));
        Ok(queue.map(|queue| (attempt, queue)))
    }

    /// Reads the fates that the decision needs. Returns false if one cannot be read now. Then it is looked at again.
    fn read_fates(&mut self, held: &mut Held, edges: &[Edge]) -> Result<bool> {
        if held.is_left() {
            return Ok(true);
        }
        for (position, edge) in edges.iter().enumerate() {
            if !held.needs_fate(position) {
                continue;
            }
            let fate = if edge.is_own { self.members(edge.job_id, edge.upon)? } else { Some(self.fate(edge)?) };
            let Some(fate) = fate else { return Ok(false) };
            held.waits[position].fate = fate;
        }
        Ok(true)
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
}

/// Returns the edges for which a held attempt waits. A sealed flow depends on its members alone. `by`: the edge by
/// which the attempt was found.
fn waiting_edges(edges: &Edges, attempt: &Attempt, by: Option<Edge>) -> Vec<Edge> {
    if let Some(edge) = by.filter(|edge| is_only_edge(attempt, edge)) {
        return vec![edge];
    }
    let mut own = edges.of(attempt.id());
    own.retain(|edge| edge.job_id != edge::SEAL || !edge.is_met);
    own
}

/// True if this edge is the only note that matters for a verdict. The attempt is no flow and has one predecessor. No
/// note says that the edge is met, because then the attempt would already be released.
fn is_only_edge(attempt: &Attempt, edge: &Edge) -> bool {
    edge.upon == Upon::Completed
        && attempt.own_flow().is_none()
        && attempt.after().is_some_and(|after| datum::i64_array(after) == [edge.job_id])
}

/// Returns what an edge says, before the fate of its job was read.
fn wait(edge: &Edge) -> Wait {
    let is_for = if edge.is_own {
        WaitsFor::Members
    } else if edge.job_id == edge::SEAL {
        WaitsFor::Seal
    } else {
        WaitsFor::Job
    };
    Wait { is_for, is_met: edge.is_met, fate: Fate::Living }
}
