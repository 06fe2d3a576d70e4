//! Finds the members of a flow, by the index of attempts by flow, and in history.
//!
//! Responsible for the state of members in the rows. Not responsible for what follows for the flow (`core::after`,
//! `duty::release`).
//!
//! Invariant: a member whose queue was dropped does not live, whatever its rows say. A search uses one snapshot, which
//! is taken after the segments were opened. So an ended attempt is not seen without the next attempt of its job, and a
//! segment whose rows are being copied is read either in place or in history. An attempt that has ended without its
//! job's death never holds its flow up again. The next attempt has a greater id.

use std::cell::Cell;

use crate::catalog::tables::attempt as columns;
use crate::catalog::{self, queue};
use crate::log::outcome::{self, Kind, has_moved_claim};
use crate::log::tables::{self, Tables};
use crate::log::{claim, history, retried};
use crate::pg::process;
use crate::pg::scan::{Key, Scan, Snapshot};
use crate::pg::snapshot::ActiveSnapshot;
use crate::pg::table::Relation;
use crate::shmem::ledger::Ledger;

/// The standing of a member's attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// Its job has not ended.
    Living,
    /// Its job has died, and was not retried.
    Dead,
    /// Its job has died, and its queue was dropped.
    Buried,
    /// Its job was cancelled, was skipped or has expired.
    Unrun,
    /// Its job has completed, and may have run again since.
    Completed,
    /// Its job goes on with another attempt, or it has moved. Or its queue was dropped before it ended.
    Past,
}

impl Standing {
    /// True if the job has died.
    fn is_dead(self) -> bool {
        matches!(self, Self::Dead | Self::Buried)
    }
}

/// A member that blocks its flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Blocker {
    pub job_id: i64,
    pub standing: Standing,
}

/// The members that block a flow, as far as they were searched.
#[derive(Debug)]
pub struct Blockers {
    /// The first member in each segment that blocks the flow, and one in history.
    pub members: Vec<Blocker>,
    /// No attempt up to this id will block the flow again.
    pub passed: i64,
    /// True if there were more attempts than the search may read.
    pub is_cut: bool,
}

/// The tables that a search reads, by one snapshot.
struct Members {
    segments: Vec<OfSegment>,
    retried: retried::Reader,
    ledger: Ledger,
    /// The lane that was looked up last, and whether its queue exists. Most members of a flow are in one lane.
    last_lane: Cell<(i32, bool)>,
    _snapshot: ActiveSnapshot,
}

impl Members {
    fn open() -> Self {
        let tables = Tables::open_all(tables::ALL);
        let snapshot = ActiveSnapshot::with_own();
        let catalog = catalog::pinned();
        let ledger = Ledger::read(catalog.segment_log, catalog.segment_log_pkey, Snapshot::Statement);
        let mut segments = Vec::new();
        for tables in tables.into_iter().filter(|t| ledger.is_read_here(t.home.segment) && !t.is_empty()) {
            let by_flow = Relation::read_index(catalog::segment(tables.home.segment).attempt_flow);
            segments.push(OfSegment { tables, by_flow });
        }
        let retried = retried::Reader::open(Snapshot::Statement);
        Self { segments, retried, ledger, last_lane: Cell::new((0, false)), _snapshot: snapshot }
    }

    /// Returns the standing of an attempt of a segment.
    fn standing(&self, segment: &OfSegment, of: &Member) -> Standing {
        match segment.tables.outcomes().find(of.id, Snapshot::Statement).as_ref().map(outcome::read) {
            Some(outcome) => self.of_outcome(&outcome, of),
            None => {
                let claim = segment.tables.claims().find(of.id, Snapshot::Statement).as_ref().map(claim::read);
                let is_past = has_moved_claim(claim.as_ref(), None) || !self.has_queue(of.lane);
                if is_past { Standing::Past } else { Standing::Living }
            }
        }
    }

    fn of_outcome(&self, outcome: &outcome::Outcome, of: &Member) -> Standing {
        let standing = match outcome.kind {
            _ if outcome.is_death() => Standing::Dead,
            Kind::Cancelled | Kind::Skipped | Kind::Expired if outcome.next_id.is_none() => Standing::Unrun,
            Kind::Completed if outcome.next_id.is_none() => return Standing::Completed,
            _ => return Standing::Past,
        };
        match standing {
            _ if self.retried.has(of.id) => Standing::Past,
            Standing::Dead if !self.has_queue(of.lane) => Standing::Buried,
            standing => standing,
        }
    }

    /// True if the queue of a lane exists. If that cannot be read, it counts as existing: the flow waits.
    fn has_queue(&self, lane: i32) -> bool {
        let (last, has) = self.last_lane.get();
        if last == lane {
            return has;
        }
        let has = queue::by_lane(lane).map_or(true, |queue| queue.is_some());
        self.last_lane.set((lane, has));
        has
    }

    /// Returns a member in history whose standing counts, if there is one.
    fn any_in_history(&self, flow: i64, counts: impl Fn(Standing) -> bool) -> Option<i64> {
        let mut found = None;
        self.each_in_history(flow, |job_id, standing| {
            if counts(standing) {
                found = Some(job_id);
            }
        });
        found
    }

    fn each_in_history(&self, flow: i64, mut each: impl FnMut(i64, Standing)) {
        history::each_of_flow(flow, &self.ledger, &mut |job_id, id, lane, outcome| {
            each(job_id, self.of_outcome(outcome, &Member { id, job_id, lane }));
        });
    }
}

/// An attempt of a member.
struct Member {
    id: i64,
    job_id: i64,
    lane: i32,
}

impl Member {
    /// Reads the attempt at which a scan is.
    fn at(scan: &mut Scan<'_>) -> Self {
        let (values, _) = scan.columns(columns::LANE + 1);
        Self {
            id: values[columns::ID].value() as i64,
            job_id: values[columns::JOB_ID].value() as i64,
            lane: values[columns::LANE].value() as i32,
        }
    }
}

/// A segment's attempts of flows, open to read.
struct OfSegment {
    tables: Tables,
    by_flow: Relation,
}

impl OfSegment {
    /// Calls `f` with each attempt of the flow above `from`, in the order of their ids, until it returns false.
    fn each(&self, flow: i64, from: i64, mut f: impl FnMut(&Member) -> bool) {
        let keys = [Key::eq_i64(1, flow), Key::gt_i64(2, from)];
        let mut scan = self.tables.attempt.scan(&self.by_flow, &keys, Snapshot::Statement);
        for n in 1_u32.. {
            if scan.next().is_none() {
                break;
            }
            if !f(&Member::at(&mut scan)) {
                break;
            }
            if n.is_multiple_of(1024) {
                process::check_for_interrupts();
            }
        }
    }

    /// Returns the newest living attempt among the last few.
    fn newest_living(&self, flow: i64, members: &Members) -> Option<Member> {
        /// How many attempts are examined at most.
        const MAX_EXAMINED: usize = 64;
        let mut scan = self.tables.attempt.scan(&self.by_flow, &[Key::eq_i64(1, flow)], Snapshot::Statement);
        for _ in 0..MAX_EXAMINED {
            scan.previous()?;
            let member = Member::at(&mut scan);
            if members.standing(self, &member) == Standing::Living {
                return Some(member);
            }
        }
        None
    }
}

/// Finds members that block a flow. `above`: attempts up to this one do not. `counts_dead`: dead members block it, too.
/// `most`: how many attempts are read at most.
pub fn find_blockers(flow: i64, above: i64, counts_dead: bool, most: usize) -> Blockers {
    let holds_up = |standing| match standing {
        Standing::Living => true,
        Standing::Dead => counts_dead,
        Standing::Buried | Standing::Unrun | Standing::Completed | Standing::Past => false,
    };
    let members = Members::open();
    let mut found = Blockers { members: Vec::new(), passed: i64::MAX, is_cut: false };
    let (mut looked, mut last) = (0, above);
    for segment in &members.segments {
        segment.each(flow, above, |member| {
            if looked == most {
                found.is_cut = true;
                found.passed = found.passed.min(member.id - 1);
                return false;
            }
            looked += 1;
            let standing = members.standing(segment, member);
            if holds_up(standing) {
                found.members.push(Blocker { job_id: member.job_id, standing });
                found.passed = found.passed.min(member.id - 1);
                return false;
            }
            last = last.max(member.id);
            true
        });
    }
    found.passed = found.passed.min(last);
    if counts_dead && found.members.is_empty() && !found.is_cut {
        let dead = members.any_in_history(flow, |standing| standing == Standing::Dead);
        found.members.extend(dead.map(|job_id| Blocker { job_id, standing: Standing::Dead }));
    }
    found
}

/// The members of a flow, searched for one that has completed.
#[derive(Debug)]
pub struct Search {
    pub has_completed: bool,
    /// The jobs that live or are dead. They may complete.
    pub open: Vec<i64>,
    /// The last attempt.
    pub last: i64,
}

/// Searches the members of a flow behind an attempt for one that has completed. `above`: `i64::MIN` reads history, too.
pub fn find_completed(flow: i64, above: i64) -> Search {
    let members = Members::open();
    let mut found = Search { has_completed: false, open: Vec::new(), last: above };
    for segment in &members.segments {
        segment.each(flow, above, |member| {
            match members.standing(segment, member) {
                Standing::Completed => found.has_completed = true,
                Standing::Living | Standing::Dead => found.open.push(member.job_id),
                Standing::Buried | Standing::Unrun | Standing::Past => {}
            }
            found.last = found.last.max(member.id);
            !found.has_completed
        });
    }
    if above == i64::MIN && !found.has_completed {
        members.each_in_history(flow, |job_id, standing| match standing {
            Standing::Completed => found.has_completed = true,
            Standing::Living | Standing::Dead => found.open.push(job_id),
            Standing::Buried | Standing::Unrun | Standing::Past => {}
        });
    }
    found
}

/// Returns a flow's newest living member, if it is among the last that came into a segment.
pub fn newest_living(flow: i64) -> Option<i64> {
    let members = Members::open();
    let of_segments = members.segments.iter().filter_map(|segment| segment.newest_living(flow, &members));
    of_segments.max_by_key(|member| member.id).map(|member| member.job_id)
}

/// Returns true if a flow has a member, in the logs or in history, whatever its standing.
pub fn has_any(flow: i64) -> bool {
    let members = Members::open();
    let mut has = false;
    for segment in &members.segments {
        segment.each(flow, i64::MIN, |_| {
            has = true;
            false
        });
        if has {
            return true;
        }
    }
    members.any_in_history(flow, |_| true).is_some()
}

/// Returns a dead member, if there is one. A death counts even if the queue was dropped since.
pub fn dead(flow: i64) -> Option<i64> {
    let members = Members::open();
    for segment in &members.segments {
        let mut found = None;
        segment.each(flow, i64::MIN, |member| {
            found = members.standing(segment, member).is_dead().then_some(member.job_id);
            found.is_none()
        });
        if found.is_some() {
            return found;
        }
    }
    members.any_in_history(flow, Standing::is_dead)
}

/// Returns the living members of a flow above an attempt, at most `most` of each segment.
pub fn living(flow: i64, above: i64, most: usize) -> Vec<i64> {
    let members = Members::open();
    let mut jobs = Vec::new();
    for segment in &members.segments {
        let before = jobs.len();
        segment.each(flow, above, |member| {
            if members.standing(segment, member) == Standing::Living {
                jobs.push(member.job_id);
            }
            jobs.len() - before < most
        });
    }
    jobs.sort_unstable();
    jobs.dedup();
    jobs
}

/// Returns the members of a flow with one of these standings, in the logs and in history.
pub fn of_standing(flow: i64, wanted: &[Standing]) -> Vec<i64> {
    let members = Members::open();
    let mut jobs = Vec::new();
    for segment in &members.segments {
        segment.each(flow, i64::MIN, |member| {
            if wanted.contains(&members.standing(segment, member)) {
                jobs.push(member.job_id);
            }
            true
        });
    }
    members.each_in_history(flow, |job_id, standing| {
        if wanted.contains(&standing) {
            jobs.push(job_id);
        }
    });
    jobs.sort_unstable();
    jobs.dedup();
    jobs
}

/// Returns all known members of a flow, in the logs and in history, in their order.
pub fn all(flow: i64) -> Vec<i64> {
    let members = Members::open();
    let mut jobs = Vec::new();
    for segment in &members.segments {
        segment.each(flow, i64::MIN, |member| {
            jobs.push(member.job_id);
            true
        });
    }
    members.each_in_history(flow, |job_id, _| jobs.push(job_id));
    jobs.sort_unstable();
    jobs.dedup();
    jobs
}
