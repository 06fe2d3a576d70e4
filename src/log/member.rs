//! Finds the members of a flow, by the index of attempts by flow, and in history.
//!
//! Responsible for the state of members in the rows. Not responsible for what follows for the flow (`core::after`,
//! `duty::release`).
//!
//! Invariant: a search uses one snapshot, which is taken after the segments were opened. So an ended attempt is not
//! seen without the next attempt of its job, and a segment whose rows are being copied is read either in place or in
//! history. An attempt that has ended without its job's death never holds its flow up again. The next attempt has a
//! greater id.

use crate::catalog::Catalog;
use crate::catalog::tables::attempt as columns;
use crate::log::outcome::{self, Kind, has_moved_claim};
use crate::log::tables::{self, Tables};
use crate::log::{claim, history, retried};
use crate::pg::process;
use crate::pg::scan::{Key, Snapshot};
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
    /// Its job was cancelled, was skipped or has expired.
    Unrun,
    /// Its job has completed, and may have run again since.
    Completed,
    /// Its job goes on with another attempt, or it has moved.
    Past,
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

fn of_outcome(outcome: &outcome::Outcome, was_retried: impl FnOnce() -> bool) -> Standing {
    let standing = match outcome.kind {
        _ if outcome.is_death() => Standing::Dead,
        Kind::Cancelled | Kind::Skipped | Kind::Expired if outcome.next_id.is_none() => Standing::Unrun,
        Kind::Completed if outcome.next_id.is_none() => return Standing::Completed,
        _ => return Standing::Past,
    };
    if was_retried() { Standing::Past } else { standing }
}

/// The tables that a search reads, by one snapshot.
struct Members {
    segments: Vec<OfSegment>,
    retried: retried::Reader,
    ledger: Ledger,
    _snapshot: ActiveSnapshot,
}

impl Members {
    fn open(catalog: &Catalog) -> Self {
        let tables = Tables::open_all(catalog, tables::ALL);
        let snapshot = ActiveSnapshot::with_own();
        let ledger = Ledger::read(catalog.segment_log, catalog.segment_log_pkey, Snapshot::Statement);
        let mut segments = Vec::new();
        for tables in tables.into_iter().filter(|t| ledger.is_read_here(t.home.segment) && !t.is_empty()) {
            let by_flow = Relation::read_index(catalog.segments[tables.home.segment as usize].attempt_flow);
            segments.push(OfSegment { tables, by_flow });
        }
        let retried = retried::Reader::open(catalog, Snapshot::Statement);
        Self { segments, retried, ledger, _snapshot: snapshot }
    }

    /// Returns a dead member in history, if there is one.
    fn dead_in_history(&self, catalog: &Catalog, flow: i64) -> Option<i64> {
        let mut dead = None;
        self.each_in_history(catalog, flow, |job_id, standing| {
            if standing == Standing::Dead {
                dead = Some(job_id);
            }
        });
        dead
    }

    fn each_in_history(&self, catalog: &Catalog, flow: i64, mut each: impl FnMut(i64, Standing)) {
        history::each_of_flow(catalog, flow, &self.ledger, &mut |job_id, id, outcome| {
            each(job_id, of_outcome(outcome, || self.retried.has(id)));
        });
    }
}

/// A segment's attempts of flows, open to read.
struct OfSegment {
    tables: Tables,
    by_flow: Relation,
}

impl OfSegment {
    /// Returns the standing of an attempt.
    fn standing(&self, id: i64, retried: &retried::Reader) -> Standing {
        match self.tables.outcomes().find(id, Snapshot::Statement).as_ref().map(outcome::read) {
            Some(outcome) => of_outcome(&outcome, || retried.has(id)),
            None => {
                let claim = self.tables.claims().find(id, Snapshot::Statement).as_ref().map(claim::read);
                if has_moved_claim(claim.as_ref(), None) { Standing::Past } else { Standing::Living }
            }
        }
    }

    /// Calls `f` with id and job of each attempt of the flow above `from`, in this order, until it returns false.
    fn each(&self, flow: i64, from: i64, mut f: impl FnMut(i64, i64) -> bool) {
        let keys = [Key::eq_i64(1, flow), Key::gt_i64(2, from)];
        let mut scan = self.tables.attempt.scan(&self.by_flow, &keys, Snapshot::Statement);
        for n in 1_u32.. {
            if scan.next().is_none() {
                break;
            }
            let (values, _) = scan.columns(columns::JOB_ID + 1);
            if !f(values[columns::ID].value() as i64, values[columns::JOB_ID].value() as i64) {
                break;
            }
            if n.is_multiple_of(1024) {
                process::check_for_interrupts();
            }
        }
    }

    /// Returns the newest living attempt among the last few, with its job.
    fn newest_living(&self, flow: i64, retried: &retried::Reader) -> Option<(i64, i64)> {
        /// How many attempts are examined at most.
        const MAX_EXAMINED: usize = 64;
        let mut scan = self.tables.attempt.scan(&self.by_flow, &[Key::eq_i64(1, flow)], Snapshot::Statement);
        for _ in 0..MAX_EXAMINED {
            scan.previous()?;
            let (values, _) = scan.columns(columns::JOB_ID + 1);
            let id = values[columns::ID].value() as i64;
            if self.standing(id, retried) == Standing::Living {
                return Some((id, values[columns::JOB_ID].value() as i64));
            }
        }
        None
    }
}

/// Finds members that block a flow. `above`: attempts up to this one do not. `counts_dead`: dead members block it, too.
/// `most`: how many attempts are read at most.
pub fn find_blockers(catalog: &Catalog, flow: i64, above: i64, counts_dead: bool, most: usize) -> Blockers {
    let holds_up = |standing| match standing {
        Standing::Living => true,
        Standing::Dead => counts_dead,
        Standing::Unrun | Standing::Completed | Standing::Past => false,
    };
    let members = Members::open(catalog);
    let mut found = Blockers { members: Vec::new(), passed: i64::MAX, is_cut: false };
    let (mut looked, mut last) = (0, above);
    for segment in &members.segments {
        segment.each(flow, above, |id, job_id| {
            if looked == most {
                found.is_cut = true;
                found.passed = found.passed.min(id - 1);
                return false;
            }
            looked += 1;
            let standing = segment.standing(id, &members.retried);
            if holds_up(standing) {
                found.members.push(Blocker { job_id, standing });
                found.passed = found.passed.min(id - 1);
                return false;
            }
            last = last.max(id);
            true
        });
    }
    found.passed = found.passed.min(last);
    if counts_dead && found.members.is_empty() && !found.is_cut {
        let dead = members.dead_in_history(catalog, flow);
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
pub fn find_completed(catalog: &Catalog, flow: i64, above: i64) -> Search {
    let members = Members::open(catalog);
    let mut found = Search { has_completed: false, open: Vec::new(), last: above };
    for segment in &members.segments {
        segment.each(flow, above, |id, job_id| {
            match segment.standing(id, &members.retried) {
                Standing::Completed => found.has_completed = true,
                Standing::Living | Standing::Dead => found.open.push(job_id),
                Standing::Unrun | Standing::Past => {}
            }
            found.last = found.last.max(id);
            !found.has_completed
        });
    }
    if above == i64::MIN && !found.has_completed {
        members.each_in_history(catalog, flow, |job_id, standing| match standing {
            Standing::Completed => found.has_completed = true,
            Standing::Living | Standing::Dead => found.open.push(job_id),
            Standing::Unrun | Standing::Past => {}
        });
    }
    found
}

/// Returns a flow's newest living member, if it is among the last that came into a segment.
pub fn newest_living(catalog: &Catalog, flow: i64) -> Option<i64> {
    let members = Members::open(catalog);
    let of_segments = members.segments.iter().filter_map(|segment| segment.newest_living(flow, &members.retried));
    of_segments.max().map(|(_, job_id)| job_id)
}

/// Returns a dead member, if there is one.
pub fn dead(catalog: &Catalog, flow: i64) -> Option<i64> {
    let members = Members::open(catalog);
    for segment in &members.segments {
        let mut found = None;
        segment.each(flow, i64::MIN, |id, job_id| {
            found = (segment.standing(id, &members.retried) == Standing::Dead).then_some(job_id);
            found.is_none()
        });
        if found.is_some() {
            return found;
        }
    }
    members.dead_in_history(catalog, flow)
}

/// Returns the living members of a flow above an attempt, at most `most` of each segment.
pub fn living(catalog: &Catalog, flow: i64, above: i64, most: usize) -> Vec<i64> {
    let members = Members::open(catalog);
    let mut jobs = Vec::new();
    for segment in &members.segments {
        let before = jobs.len();
        segment.each(flow, above, |id, job_id| {
            if segment.standing(id, &members.retried) == Standing::Living {
                jobs.push(job_id);
            }
            jobs.len() - before < most
        });
    }
    jobs.sort_unstable();
    jobs.dedup();
    jobs
}

/// Returns the members of a flow with one of these standings, in the logs and in history.
pub fn of_standing(catalog: &Catalog, flow: i64, wanted: &[Standing]) -> Vec<i64> {
    let members = Members::open(catalog);
    let mut jobs = Vec::new();
    for segment in &members.segments {
        segment.each(flow, i64::MIN, |id, job_id| {
            if wanted.contains(&segment.standing(id, &members.retried)) {
                jobs.push(job_id);
            }
            true
        });
    }
    members.each_in_history(catalog, flow, |job_id, standing| {
        if wanted.contains(&standing) {
            jobs.push(job_id);
        }
    });
    jobs.sort_unstable();
    jobs.dedup();
    jobs
}

/// Returns all known members of a flow, in the logs and in history, in their order.
pub fn all(catalog: &Catalog, flow: i64) -> Vec<i64> {
    let members = Members::open(catalog);
    let mut jobs = Vec::new();
    for segment in &members.segments {
        segment.each(flow, i64::MIN, |_, job_id| {
            jobs.push(job_id);
            true
        });
    }
    members.each_in_history(catalog, flow, |job_id, _| jobs.push(job_id));
    jobs.sort_unstable();
    jobs.dedup();
    jobs
}
