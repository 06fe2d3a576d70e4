//! Finds the members of a flow, by the index of the attempts that are of it, and in history.
//!
//! Responsible for what the rows say of them. Not responsible for what follows for the flow (`core::after`,
//! `duty::release`).
//!
//! Invariant: an attempt that has ended, and not as its job's death, holds its flow up never again. The attempt that goes
//! on with the job has a greater id, and can be seen as soon as the other has ended.

use crate::catalog::Catalog;
use crate::log::outcome::{self, Kind, has_moved_claim};
use crate::log::segment;
use crate::log::tables::Tables;
use crate::log::{claim, columns, history, successor};
use crate::pg::process;
use crate::pg::scan::{Key, Snapshot};
use crate::pg::table::Relation;

/// What has become of an attempt of a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// Its job has not ended.
    Living,
    /// Its job has died, and was not retried.
    Dead,
    /// Its job was cancelled or skipped.
    Unrun,
    /// It has completed, or its job goes on as another attempt, or elsewhere.
    Past,
}

/// A member that holds its flow up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Blocker {
    pub job_id: i64,
    pub standing: Standing,
}

/// The answer of a look at a flow's members.
#[derive(Debug)]
pub struct Look {
    /// The first one in each segment that holds the flow up; of history one.
    pub blockers: Vec<Blocker>,
    /// No attempt up to this id holds the flow up any more.
    pub passed: i64,
    /// Whether there were more attempts than were to be looked at.
    pub is_cut: bool,
}

fn of_outcome(outcome: &outcome::Outcome, has_successor: impl FnOnce() -> bool) -> Standing {
    let standing = match outcome.kind {
        _ if outcome.is_death() => Standing::Dead,
        Kind::Cancelled | Kind::Skipped if outcome.next_id.is_none() => Standing::Unrun,
        _ => Standing::Past,
    };
    if standing == Standing::Past || has_successor() { Standing::Past } else { standing }
}

/// A segment's attempts that are of flows, open to read.
struct Members<'a> {
    tables: Tables,
    by_flow: Relation,
    successors: &'a successor::Reader,
}

impl<'a> Members<'a> {
    /// Opens them; `None`: there are none.
    fn open(catalog: &Catalog, segment: u8, successors: &'a successor::Reader) -> Option<Self> {
        let tables = Tables::open(catalog, segment);
        if tables.is_empty() {
            return None;
        }
        let by_flow = Relation::read_index(catalog.segments[segment as usize].attempt_flow);
        Some(Self { tables, by_flow, successors })
    }

    /// Those of each segment that has some. In this order an attempt that moves meanwhile is met at least once.
    fn each_segment(catalog: &'a Catalog, successors: &'a successor::Reader) -> impl Iterator<Item = Self> {
        segment::inhabited(catalog).filter_map(|segment| Self::open(catalog, segment, successors))
    }

    /// What has become of an attempt.
    fn standing(&self, id: i64) -> Standing {
        match self.tables.outcomes().find(id, Snapshot::Now).as_ref().map(outcome::read) {
            Some(outcome) => of_outcome(&outcome, || self.successors.has(id)),
            None => {
                let claim = self.tables.claims().find(id, Snapshot::Now).as_ref().map(claim::read);
                if has_moved_claim(claim.as_ref(), None) { Standing::Past } else { Standing::Living }
            }
        }
    }

    /// Calls `f` with id and job of each attempt of the flow above `from`, in this order, until it returns false.
    fn each(&self, flow: i64, from: i64, mut f: impl FnMut(i64, i64) -> bool) {
        let keys = [Key::eq_i64(1, flow), Key::gt_i64(2, from)];
        let mut scan = self.tables.attempt.scan(&self.by_flow, &keys, Snapshot::Now);
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

    /// The job of the newest attempt that lives, of the last few.
    fn newest_living(&self, flow: i64) -> Option<(i64, i64)> {
        /// Attempts to look at.
        const LAST: usize = 64;
        let mut scan = self.tables.attempt.scan(&self.by_flow, &[Key::eq_i64(1, flow)], Snapshot::Now);
        for _ in 0..LAST {
            scan.previous()?;
            let (values, _) = scan.columns(columns::JOB_ID + 1);
            let id = values[columns::ID].value() as i64;
            if self.standing(id) == Standing::Living {
                return Some((id, values[columns::JOB_ID].value() as i64));
            }
        }
        None
    }
}

/// Looks for members that hold a flow up, above an attempt up to which none does, at `most` so many attempts.
/// `counts_dead`: dead ones hold it up, too.
pub fn look(catalog: &Catalog, flow: i64, above: i64, counts_dead: bool, most: usize) -> Look {
    let holds_up = |standing| match standing {
        Standing::Living => true,
        Standing::Dead => counts_dead,
        Standing::Unrun | Standing::Past => false,
    };
    let successors = successor::Reader::open(catalog, Snapshot::Now);
    let mut look = Look { blockers: Vec::new(), passed: i64::MAX, is_cut: false };
    let (mut looked, mut last) = (0, above);
    for members in Members::each_segment(catalog, &successors) {
        members.each(flow, above, |id, job_id| {
            if looked == most {
                look.is_cut = true;
                look.passed = look.passed.min(id - 1);
                return false;
            }
            looked += 1;
            let standing = members.standing(id);
            if holds_up(standing) {
                look.blockers.push(Blocker { job_id, standing });
                look.passed = look.passed.min(id - 1);
                return false;
            }
            last = last.max(id);
            true
        });
    }
    look.passed = look.passed.min(last);
    if counts_dead && look.blockers.is_empty() && !look.is_cut {
        let dead = history::dead_of_flow(catalog, flow, &successors);
        look.blockers.extend(dead.map(|job_id| Blocker { job_id, standing: Standing::Dead }));
    }
    look
}

/// The job of a flow's newest living member, if it is among the last that came to a segment.
pub fn newest_living(catalog: &Catalog, flow: i64) -> Option<i64> {
    let successors = successor::Reader::open(catalog, Snapshot::Now);
    let of_segments = Members::each_segment(catalog, &successors).filter_map(|members| members.newest_living(flow));
    of_segments.max().map(|(_, job_id)| job_id)
}

/// A member that is dead, if one is.
pub fn dead(catalog: &Catalog, flow: i64) -> Option<i64> {
    let successors = successor::Reader::open(catalog, Snapshot::Now);
    for members in Members::each_segment(catalog, &successors) {
        let mut found = None;
        members.each(flow, i64::MIN, |id, job_id| {
            found = (members.standing(id) == Standing::Dead).then_some(job_id);
            found.is_none()
        });
        if found.is_some() {
            return found;
        }
    }
    history::dead_of_flow(catalog, flow, &successors)
}

/// The jobs of a flow's living members above an attempt, at most `most` of each segment.
pub fn living(catalog: &Catalog, flow: i64, above: i64, most: usize) -> Vec<i64> {
    let successors = successor::Reader::open(catalog, Snapshot::Now);
    let mut jobs = Vec::new();
    for members in Members::each_segment(catalog, &successors) {
        let before = jobs.len();
        members.each(flow, above, |id, job_id| {
            if members.standing(id) == Standing::Living {
                jobs.push(job_id);
            }
            jobs.len() - before < most
        });
    }
    jobs.sort_unstable();
    jobs.dedup();
    jobs
}

/// The jobs of a flow's members of which this became, in the logs and in history.
pub fn of_standing(catalog: &Catalog, flow: i64, wanted: &[Standing]) -> Vec<i64> {
    let successors = successor::Reader::open(catalog, Snapshot::Now);
    let mut jobs = Vec::new();
    for members in Members::each_segment(catalog, &successors) {
        members.each(flow, i64::MIN, |id, job_id| {
            if wanted.contains(&members.standing(id)) {
                jobs.push(job_id);
            }
            true
        });
    }
    history::each_of_flow(catalog, flow, &mut |job_id, id, outcome| {
        if wanted.contains(&of_outcome(outcome, || successors.has(id))) {
            jobs.push(job_id);
        }
    });
    jobs.sort_unstable();
    jobs.dedup();
    jobs
}

/// The jobs of all members of a flow that are known, in the logs and in history, in their order.
pub fn all(catalog: &Catalog, flow: i64) -> Vec<i64> {
    let successors = successor::Reader::open(catalog, Snapshot::Now);
    let mut jobs = Vec::new();
    for members in Members::each_segment(catalog, &successors) {
        members.each(flow, i64::MIN, |_, job_id| {
            jobs.push(job_id);
            true
        });
    }
    history::each_of_flow(catalog, flow, &mut |job_id, _, _| jobs.push(job_id));
    jobs.sort_unstable();
    jobs.dedup();
    jobs
}
