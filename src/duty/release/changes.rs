//! What one transaction writes about held attempts: their releases and ends, and notes about met edges.
//!
//! Not responsible for the decisions (`core::after::judge`), nor for reading what they follow from (`look`).
//!
//! Invariant: the key of `claim` decides between a release and any other end of a held attempt.
//!
//! Read next: `log::edge`.

use std::collections::{HashMap, HashSet};
use std::iter;
use std::rc::Rc;

use pg_queue_core::after::judge::Decider;
use pg_queue_core::after::{Fate, Upon};
use pg_queue_core::{id, totals};
use pgrx::pg_sys::Datum;

use crate::catalog::queue::Queue;
use crate::catalog::{drops, ids};
use crate::duty::care::Care;
use crate::error::{Error, Result};
use crate::job::{after, dead_letter, hold};
use crate::log::attempt::{self, Attempt, New};
use crate::log::claim;
use crate::log::edge::{self, Edge};
use crate::log::outcome::{self, Kind};
use crate::log::segment::{Home, Target, is_far};
use crate::pg::datum::text_datum;
use crate::pg::fault::fault;
use crate::pg::scan::Probe;
use crate::pg::{memory, time};
use crate::transaction::{self, FlowStep, QueueStep, SegmentStep, Step};

/// What becomes of a held attempt.
pub enum Next {
    /// It is released to this lane. `run_at`: the time at which it runs. `None`: it may run immediately.
    Release { lane: i32, run_at: Option<i64> },
    /// It is skipped because of this edge and the fate of its job.
    Skip(Edge, Fate),
    /// A flow completes because its members have completed.
    Complete,
    /// A flow is cancelled because its members are.
    Cancel(Option<String>),
    /// A flow has expired, and its members are cancelled.
    Expire,
    /// A flow dies with this error, and its remaining members are cancelled.
    Die(String),
}

/// The end of a flow before its members have ended.
pub enum EarlyEnd {
    /// The attempt is no flow, or its members decide.
    No,
    /// The flow must end, but some of its members live. It is looked at again.
    UnderWay,
    /// None of its members lives.
    Now(Next),
}

/// A held attempt that is released or ends.
pub struct Change {
    pub attempt: Attempt,
    pub queue: Rc<Queue>,
    pub next: Next,
    /// The job that was handed over and led to this attempt.
    pub because: i64,
}

impl Change {
    /// Returns the lane to which it is released, and its time. `None`: it ends.
    fn release(&self) -> Option<(i32, Option<i64>)> {
        if let Next::Release { lane, run_at } = self.next { Some((lane, run_at)) } else { None }
    }
}

/// The changes of one transaction.
pub struct Changes {
    decider: Decider,
    list: Vec<Change>,
    /// The attempts of `list`.
    attempts: HashSet<i64>,
    /// Edges that were found met. A note will record that.
    met: Vec<(Home, Edge)>,
    /// The claims of segments, open to read and to write.
    claims: [Option<claim::Writer>; id::SEGMENTS],
    /// Jobs that must be looked at again, because an open transaction blocks them.
    pub again: Vec<i64>,
    /// Jobs that were handed over and led to a write that failed.
    pub failed: Vec<i64>,
}

impl Changes {
    /// Returns no changes, for the transaction that decides.
    pub fn new(decider: Decider) -> Self {
        Self {
            decider,
            list: Vec::new(),
            attempts: HashSet::new(),
            met: Vec::new(),
            claims: std::array::from_fn(|_| None),
            again: Vec::new(),
            failed: Vec::new(),
        }
    }

    /// Returns the transaction that decides.
    pub fn decider(&self) -> Decider {
        self.decider
    }

    /// Returns how many attempts change.
    pub fn count(&self) -> usize {
        self.list.len()
    }

    /// Returns whether this attempt changes.
    pub fn has(&self, attempt: i64) -> bool {
        self.attempts.contains(&attempt)
    }

    /// Adds a change.
    pub fn add(&mut self, change: Change) {
        self.attempts.insert(change.attempt.id());
        self.list.push(change);
    }

    /// Adds a note that an edge of an attempt in this segment is met.
    pub fn add_met(&mut self, home: Home, edge: Edge) {
        self.met.push((home, edge));
    }

    /// Returns whether an attempt is claimed. `None`: the segment has another filling now.
    pub fn probe_claim(&mut self, home: Home, attempt: i64) -> Option<Probe> {
        self.claims(home).map(|claims| claims.probe(attempt))
    }

    /// Returns the claims of a segment, open to write. `None`: the segment has another filling now.
    fn claims(&mut self, home: Home) -> Option<&claim::Writer> {
        let opened = &mut self.claims[home.segment as usize];
        if opened.is_none() {
            *opened = claim::Writer::open_home(home);
        }
        opened.as_ref()
    }

    /// Writes a note about a held attempt where the attempt is, with `insert`. If the attempt keeps moving for too
    /// long, the job is looked at again.
    pub fn note(&mut self, home: Home, id: i64, job_id: i64, insert: impl Fn(Home) -> bool) {
        if let hold::Noted::Moving = hold::note_held(id, home, insert) {
            self.again.push(job_id);
        }
    }

    /// Writes the notes and the changes.
    pub fn write(&mut self, care: &Care) -> Result<()> {
        for (home, edge) in std::mem::take(&mut self.met) {
            self.note(home, edge.id, edge.job_id, |home| edge::insert_met(home, &edge));
        }
        for changes in self.by_segment().into_iter().filter(|changes| !changes.is_empty()) {
            let together = care.together(changes.len());
            let mut changes = changes.into_iter();
            while let Some(first) = changes.next() {
                let (because, job_id) = (first.because, first.attempt.job_id());
                let some: Vec<Change> = iter::once(first).chain(changes.by_ref().take(together - 1)).collect();
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

    /// Takes the changes, one list for each segment. Leaves out releases to a lane whose queue is being dropped.
    fn by_segment(&mut self) -> Vec<Vec<Change>> {
        let mut lanes: HashMap<i32, bool> = HashMap::new();
        let mut is_admitted = |lane: i32| *lanes.entry(lane).or_insert_with(|| drops::admits(lane));
        let mut of_segments: Vec<Vec<Change>> = (0..id::SEGMENTS).map(|_| Vec::new()).collect();
        for change in std::mem::take(&mut self.list) {
            if change.release().is_none_or(|(lane, _)| is_admitted(lane)) {
                of_segments[change.attempt.home.segment as usize].push(change);
            } else {
                self.again.push(change.because);
            }
        }
        of_segments
    }

    /// Writes changes of attempts that lie in one segment.
    fn write_segment(&mut self, mut changes: Vec<Change>) -> Result<()> {
        let Some(home) = changes.first().map(|change| change.attempt.home) else { return Ok(()) };
        let plain = |change: &Change| claim::New::plain(change.attempt.id(), 0);
        let taken: Vec<claim::New> = changes.iter().map(plain).collect();
        let Some(claims) = self.claims(home) else {
            self.again.extend(changes.iter().map(|change| change.because));
            return Ok(());
        };
        let lost = claims.insert(&taken, time::now_us(), claim::Kind::System, None);
        for n in lost.into_iter().rev() {
            let change = changes.swap_remove(n);
            self.again.push(change.because);
        }
        fault!(if self.decider == Decider::Commit { "ender.claimed" } else { "release.claimed" });
        let mut outcomes = memory::list(changes.len());
        insert_released(&changes, &mut outcomes)?;
        let mut reasons = HashMap::new();
        outcomes.extend(changes.iter().filter_map(|change| end(change, &mut reasons)));
        let writer = outcome::Writer::open_home(home);
        let lost = writer.map_or(outcomes.len(), |writer| writer.insert(&outcomes).len());
        if lost > 0 {
            return Err(Error::internal("a held attempt without a claim has an outcome"));
        }
        record_in_memory(home.segment, &changes);
        Ok(())
    }
}

/// Inserts the next attempts of those that are released. Adds the outcomes that name them.
fn insert_released(changes: &[Change], outcomes: &mut Vec<outcome::New>) -> Result<()> {
    let mut counts = memory::list(changes.len());
    ids::take(changes.len(), |count| counts.push(count))?;
    let now = time::now_us();
    for wants_far in [false, true] {
        let chosen = changes.iter().zip(&counts).filter_map(|(change, &count)| {
            let (lane, run_at) = change.release()?;
            let run_at = run_at.filter(|&at| at > now);
            (run_at.is_some_and(is_far) == wants_far).then_some((change, count, lane, run_at))
        });
        let mut chosen = chosen.peekable();
        let Some(&(.., run_at)) = chosen.peek() else { continue };
        let target = Target::open(run_at.filter(|_| wants_far));
        let attempts: Vec<New> = chosen
            .map(|(change, count, lane, run_at)| {
                let next_id = id::attempt(ids::node(), count, target.home.segment);
                let superseded = outcome::New::of(change.attempt.id(), Kind::Superseded);
                outcomes.push(outcome::New { next_id: Some(next_id), ..superseded });
                after::released(&change.queue, &change.attempt, next_id, lane, run_at, now)
            })
            .collect();
        attempt::insert_admitted(&target, &attempts);
    }
    Ok(())
}

/// Returns the outcome of an attempt that ends unrun, and records what the end changes in memory. `None`: it is
/// released. `reasons`: the texts of skips that were made before.
fn end(change: &Change, reasons: &mut HashMap<(i64, u8), Datum>) -> Option<outcome::New> {
    let (kind, error) = match &change.next {
        Next::Release { .. } => return None,
        Next::Skip(edge, fate) => {
            let key = (edge.job_id, edge.upon.char());
            (Kind::Skipped, Some(*reasons.entry(key).or_insert_with(|| text_datum(&reason(edge, *fate)))))
        }
        Next::Complete => (Kind::Completed, None),
        Next::Cancel(reason) => (Kind::Cancelled, reason.as_deref().map(text_datum)),
        Next::Expire => (Kind::Expired, None),
        Next::Die(error) => {
            dead_letter::copy(&change.queue, &change.attempt, error);
            (Kind::Dead, Some(text_datum(error)))
        }
    };
    if matches!(kind, Kind::Completed | Kind::Dead | Kind::Expired) {
        let end = totals::End { outcome: kind.char(), has_next: false };
        transaction::record(Step::EndCounted { lane: change.attempt.lane(), end });
    }
    let job_id = change.attempt.job_id();
    transaction::record(FlowStep::JobEnded { job_id });
    // The flow to which the job belongs may end with it.
    if kind == Kind::Dead && change.attempt.flow().is_some() {
        transaction::record(FlowStep::Awaited { job_id, mark: None });
    }
    Some(outcome::New { error, ..outcome::New::of(change.attempt.id(), kind) })
}

/// Records what the commit changes in memory, except for the new attempts.
fn record_in_memory(segment: u8, changes: &[Change]) {
    let mut lanes: HashMap<i32, i64> = HashMap::new();
    changes.iter().for_each(|change| *lanes.entry(change.attempt.lane()).or_default() += 1);
    transaction::record(SegmentStep::Counted { segment, attempts: 0, ended: changes.len() as i64 });
    transaction::record_all(lanes.into_iter().map(|(lane, count)| Step::Purged { lane, count }));
    let mut told = HashSet::new();
    for change in changes.iter().filter(|change| change.release().is_some() && change.queue.notify) {
        if told.insert(change.queue.lane) {
            transaction::record(QueueStep::NotifyDue { lane: change.queue.lane });
        }
    }
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
