//! Claiming: takes attempts in the frontier, reads their rows, inserts their claims.
//!
//! Invariant: the claim's key decides. What the frontier hands out and the key refuses is taken back.

use std::rc::Rc;

use pg_queue_core::frontier::{Claimer, GATE_LANES, Lanes, Ready, Take};
use pg_queue_core::id::SEGMENTS;
use pgrx::pg_sys::Datum;

use crate::catalog::Catalog;
use crate::catalog::queue::Queue;
use crate::error::Result;
use crate::job::group_turn::GroupTurn;
use crate::job::limits::{self, LimitCheck};
use crate::job::refill::{index_ready, refill};
use crate::job::wait::{self, ClaimScope};
use crate::job::{held, take};
use crate::log::attempt::Attempt;
use crate::log::claim::{self, Kind};
use crate::log::reader::Reader;
use crate::log::segment::BoundedWait;
use crate::pg::datum::text_datum;
use crate::pg::fault::fault;
use crate::pg::scan::Probe;
use crate::pg::{process, session, time};
use crate::shmem;
use crate::transaction::{self, Step};

/// Attempts taken in one hold of the lock.
const CHUNK: usize = 64;

/// What a worker asks for.
pub struct ClaimRequest<'a> {
    pub max_jobs: usize,
    pub lease: Option<i64>,
    pub worker: Option<String>,
    /// Whether the claims end with the connection.
    pub is_bound: bool,
    /// Which attempts it takes: at the first other one it stops. `None`: all.
    pub accepts: Option<&'a dyn Fn(&Attempt) -> bool>,
}

impl ClaimRequest<'_> {
    fn kind(&self) -> Kind {
        if self.is_bound { Kind::Bound } else { Kind::Worker }
    }
}

/// An attempt that was claimed, as it is handed over.
pub struct ClaimedAttempt<'a, 'b> {
    pub queue: &'a Queue,
    /// Its name as a datum.
    pub queue_name: Datum,
    pub reader: &'a mut Reader<'b>,
    pub attempt: &'a Attempt,
    pub expires_at: i64,
}

/// Where what was claimed goes.
pub type Sink<'a> = &'a dyn Fn(ClaimedAttempt<'_, '_>) -> Result<()>;

/// The result of a look for jobs.
pub enum Claimed {
    /// This many were claimed.
    To(usize),
    /// None: there are jobs, but no places for them.
    NoPlace,
    /// None so far. The caller reads the settings anew before it goes on: two calls that know different limits of a
    /// queue make its gate anew in turns, and each undoes what the other has found.
    Stale,
}

/// Whether it is time to give up, as another session may keep settings of its own for any time.
pub fn is_in_vain(since: &mut Option<i64>) -> bool {
    /// Microseconds; a refill that passes very many attempts is done with that much sooner.
    const MAX_REFILL_US: i64 = 10_000_000;
    let now = time::monotonic_us();
    process::check_for_interrupts();
    now.saturating_sub(*since.get_or_insert(now)) > MAX_REFILL_US
}

/// Claims from the first queue that has jobs.
pub fn claim_first(known: &ClaimScope, request: &ClaimRequest<'_>, rows: Sink<'_>) -> Result<Claimed> {
    let mut last = Claimed::To(0);
    for (queue, lanes) in known.each().filter(|(queue, _)| !queue.is_paused) {
        match claim_from(&known.catalog, queue, lanes, request, rows)? {
            Claimed::To(0) => {}
            // Another queue may have some.
            Claimed::NoPlace => last = Claimed::NoPlace,
            came => return Ok(came),
        }
    }
    Ok(last)
}

fn claim_from(
    catalog: &Rc<Catalog>,
    queue: &Queue,
    lanes: &[i32],
    request: &ClaimRequest<'_>,
    rows: Sink<'_>,
) -> Result<Claimed> {
    /// After this many turns without a job the loop may give up.
    const TURNS: usize = 64;
    let check = LimitCheck::of(catalog, queue)?;
    let mut turns = 0;
    let mut taking = ClaimBatch::new(catalog, queue, lanes, request, rows);
    let mut claimed = 0;
    let mut lacks_place = false;
    while claimed < request.max_jobs {
        turns += 1;
        if turns > TURNS && claimed == 0 && check.is_some() {
            fault!("claim.in_vain");
            return Ok(Claimed::Stale);
        }
        let mut chunk = [Ready::default(); CHUNK];
        let want = (request.max_jobs - claimed).min(CHUNK);
        let claimer = check.as_ref().map(LimitCheck::claimer);
        let Some(Taken { answer, lane, due_to }) = taking.take(claimer.as_ref(), &mut chunk[..want]) else { break };
        match answer {
            Take::Some { taken, .. } => {
                fault!("claim.taken");
                claimed += taking.claim(&chunk[..taken])?;
                if taking.is_refused {
                    break;
                }
            }
            Take::Turn(turn) => {
                let Some(claimer) = &claimer else { break };
                let taken = GroupTurn::new(catalog, lane, claimer, turn, due_to).serve(&mut chunk[..want]);
                taking.remember(&[lane; CHUNK], &chunk[..taken]);
                fault!("claim.served");
                claimed += taking.claim(&chunk[..taken])?;
                if taking.is_refused {
                    break;
                }
                process::check_for_interrupts();
            }
            Take::Refill => refill(catalog, lane)?,
            Take::Index => index_ready(catalog, lane),
            Take::Refilling => wait::wait_for_refill(catalog, lane)?,
            Take::Empty => taking.lanes.done(lane),
            Take::NoPlace => {
                lacks_place = true;
                taking.lanes.done(lane);
            }
            Take::Full if claimed == 0 => return Err(held::running_full()),
            Take::NoLane if claimed == 0 => return Err(wait::lanes_full()),
            Take::NoGate if claimed == 0 => return Err(limits::gates_full()),
            Take::Closed | Take::Full | Take::NoLane | Take::NoGate => break,
        }
    }
    taking.hand_over()?;
    fault!("claim.done");
    for lane in taking.to_refill {
        refill(catalog, lane)?;
    }
    Ok(if claimed == 0 && lacks_place { Claimed::NoPlace } else { Claimed::To(claimed) })
}

/// The result of one hold of the lock.
struct Taken {
    answer: Take,
    /// Why nothing was taken; it counts if the answer is not `Some`.
    lane: i32,
    /// Up to when jobs were due then.
    due_to: i64,
}

/// The claims of one call from one queue: what it has open.
struct ClaimBatch<'a> {
    catalog: &'a Rc<Catalog>,
    queue: &'a Queue,
    lanes: Lanes,
    /// Lanes that have less than half of their ready attempts left in memory.
    to_refill: Vec<i32>,
    request: &'a ClaimRequest<'a>,
    rows: Sink<'a>,
    /// Whether something came that the caller does not take.
    is_refused: bool,
    reader: Reader<'a>,
    writers: [Option<claim::Writer>; SEGMENTS],
    queue_name: Datum,
    default_lease: i64,
    /// What is claimed and not yet handed over, with the end of its lease: the turns of groups come in another order.
    claimed: Vec<(Attempt, i64)>,
    /// How long the call waits for moves, all attempts together.
    bounded_wait: BoundedWait,
}

impl<'a> ClaimBatch<'a> {
    fn new(
        catalog: &'a Rc<Catalog>,
        queue: &'a Queue,
        lanes: &[i32],
        request: &'a ClaimRequest<'a>,
        rows: Sink<'a>,
    ) -> Self {
        Self {
            catalog,
            queue,
            lanes: Lanes::new(lanes),
            to_refill: Vec::new(),
            request,
            rows,
            is_refused: false,
            reader: Reader::new(catalog),
            writers: std::array::from_fn(|_| None),
            queue_name: text_datum(&queue.name),
            default_lease: request.lease.unwrap_or(queue.lease),
            claimed: Vec::new(),
            bounded_wait: BoundedWait::short(),
        }
    }

    /// Takes attempts in the frontier and records the steps that a rollback undoes. `None` if no lane has any.
    fn take(&mut self, claimer: Option<&Claimer<'_>>, out: &mut [Ready]) -> Option<Taken> {
        transaction::reserve(out.len());
        let (session, pid, number) = (session::session(), session::pid(), self.catalog.number);
        let mut of_lane = [0; CHUNK];
        let mut low = [0; GATE_LANES];
        let mut lows = 0;
        let lanes = &mut self.lanes;
        // A turn that was announced is served by itself.
        let is_one_by_one = self.queue.has_groups();
        let mut worker = None;
        let mut opened = [None; 8];
        // Under the same lock: what a restore brings in is not handed out.
        let took = shmem::with_instance(number, |frontier, instance| {
            if !instance.restore.is_awake() {
                return None;
            }
            // What the worker does when it finds the time.
            if let Some(claimer) = claimer {
                for session in &mut opened {
                    *session = frontier.open_gates(claimer.now);
                    if session.is_none() {
                        break;
                    }
                }
            }
            let mut all = 0;
            loop {
                let (lane, up_to) = lanes.next(frontier, number)?;
                let answer = frontier.take_to(number, lane, session, pid, claimer, up_to, &mut out[all..]);
                let due_to = instance.due.to;
                let took = |answer| Some(Taken { answer, lane, due_to });
                let Take::Some { taken, refill } = answer else {
                    // Other sessions may have slept there since before it was closed: the worker opens it for them.
                    if claimer.is_some()
                        && let Some(at) = frontier.next_opening()
                    {
                        worker = instance.worker.wake_by(at);
                    }
                    // What was taken comes first; the next hold of the lock sees the same.
                    return took(if all > 0 { Take::Some { taken: all, refill: false } } else { answer });
                };
                of_lane[all..all + taken].fill(lane);
                all += taken;
                if refill && !low[..lows].contains(&lane) {
                    low[lows] = lane;
                    lows += 1;
                }
                if all == out.len() || lanes.is_one() || is_one_by_one {
                    return took(Take::Some { taken: all, refill: false });
                }
            }
        });
        if let Some(latch) = worker {
            shmem::wake_latch(latch);
        }
        opened.into_iter().flatten().for_each(shmem::wake);
        // The instance is gone: the refill says so.
        let took = took.unwrap_or(Some(Taken { answer: Take::Refill, lane: self.queue.lane, due_to: 0 }))?;
        if let Take::Some { taken, .. } = took.answer {
            self.remember(&of_lane, &out[..taken]);
            let new = low[..lows].iter().filter(|lane| !self.to_refill.contains(lane)).copied();
            let new: Vec<i32> = new.collect();
            self.to_refill.extend(new);
        }
        Some(took)
    }

    /// Each attempt with its lane.
    fn remember(&self, lanes: &[i32; CHUNK], taken: &[Ready]) {
        let (lease, bound) = (self.default_lease, self.request.is_bound);
        let step = |(&lane, ready): (&i32, &Ready)| Step::Taken { id: ready.id, lane, lease, bound };
        transaction::record_all(self.catalog.number, lanes.iter().zip(taken).map(step));
    }

    /// Claims what was taken. Returns how many were really there.
    fn claim(&mut self, taken: &[Ready]) -> Result<usize> {
        let mut found = Vec::with_capacity(taken.len());
        for ready in taken {
            let Some(attempt) = self.reader.fetch_now(ready) else {
                take::forget_taken(self.catalog, ready.id);
                continue;
            };
            if self.request.accepts.is_some_and(|accepts| !accepts(&attempt)) {
                self.is_refused = true;
                take::give_back(self.catalog, &attempt);
                continue;
            }
            let place = attempt.ready().place;
            if place != ready.place {
                // The attempt has moved since the frontier was told; a session that ends it looks in its new place.
                shmem::with(|shared| shared.frontier.relocate(self.catalog.number, ready.id, place));
            }
            let lease = match (self.request.lease, attempt.lease()) {
                (None, Some(own)) => {
                    transaction::set_lease(ready.id, own.us());
                    own.us()
                }
                _ => self.default_lease,
            };
            found.push((attempt, lease));
        }
        let now = time::now_us();
        let lost = self.insert(&mut found, now);
        found.retain(|(attempt, _)| !lost.contains(&attempt.id()));
        found.iter_mut().for_each(|(_, lease)| *lease = now.saturating_add(*lease));
        let count = found.len();
        if self.claimed.is_empty() {
            self.claimed = found;
        } else {
            self.claimed.append(&mut found);
        }
        if !self.queue.has_groups() {
            self.hand_over()?;
        }
        process::check_for_interrupts();
        Ok(count)
    }

    /// Adds the rows of what is claimed, in the order in which it is to run.
    fn hand_over(&mut self) -> Result<()> {
        let mut claimed = std::mem::take(&mut self.claimed);
        if self.queue.has_groups() {
            claimed.sort_by_key(|(attempt, _)| attempt.ready().rank);
        }
        claimed.iter().try_for_each(|(attempt, expires_at)| self.add_row(attempt, *expires_at))
    }

    /// Inserts the claims, a segment's all at once. Returns those that were claimed before.
    fn insert(&mut self, found: &mut [(Attempt, i64)], now: i64) -> Vec<i64> {
        let request = self.request;
        let used = found.iter().fold(0u32, |used, (attempt, _)| used | 1 << attempt.home.segment);
        let mut met = Vec::new();
        for segment in (0..SEGMENTS as u8).filter(|segment| used >> segment & 1 != 0) {
            let mut claims = Vec::with_capacity(found.len());
            let of_segment = found.iter().filter(|(attempt, _)| attempt.home.segment == segment);
            claims.extend(of_segment.map(|(attempt, lease)| (attempt.id(), *lease)));
            let taken = self.writer(segment).insert(&claims, now, request.kind(), request.worker.as_deref());
            met.extend(taken.into_iter().map(|n| claims[n].0));
        }
        if met.is_empty() {
            return met;
        }
        let mut lost = Vec::new();
        for (attempt, lease) in found.iter_mut().filter(|(attempt, _)| met.contains(&attempt.id())) {
            if self.follow(attempt, *lease, now) {
                continue;
            }
            if self.writer(attempt.home.segment).probe(attempt.id()) != Probe::Committed {
                // The transaction of the row that it met may roll back, and other sessions meet this session's row
                // until this transaction ends.
                let (lane, ready) = (attempt.lane(), attempt.ready());
                transaction::record(self.catalog.number, Step::Missed { lane, ready });
            }
            take::forget_taken(self.catalog, attempt.id());
            lost.push(attempt.id());
        }
        lost
    }

    /// Needs no look at the generation: while the frontier lends the attempt to this session and the reader has its
    /// segment open, the segment is not truncated.
    fn writer(&mut self, segment: u8) -> &claim::Writer {
        self.writers[segment as usize].get_or_insert_with(|| claim::Writer::open(self.catalog, segment))
    }

    /// Claims an attempt that has moved, where it is now. False: it has not moved, or is lost.
    fn follow(&mut self, attempt: &mut Attempt, lease: i64, now: i64) -> bool {
        let id = attempt.id();
        loop {
            match self.writer(attempt.home.segment).probe(id) {
                Probe::Committed | Probe::InProgress => return false,
                Probe::Moving if self.bounded_wait.wait() => continue,
                Probe::Moving => return false,
                // The transaction that was in the way has rolled back.
                Probe::Absent => {}
                Probe::Moved => match self.reader.by_id(id) {
                    Some(now) => *attempt = now,
                    None => return false,
                },
            }
            let place = attempt.ready().place;
            shmem::with(|shared| shared.frontier.relocate(self.catalog.number, id, place));
            let request = self.request;
            let writer = self.writer(attempt.home.segment);
            if writer.insert(&[(id, lease)], now, request.kind(), request.worker.as_deref()).is_empty() {
                return true;
            }
        }
    }

    fn add_row(&mut self, attempt: &Attempt, expires_at: i64) -> Result<()> {
        let (queue, queue_name) = (self.queue, self.queue_name);
        (self.rows)(ClaimedAttempt { queue, queue_name, reader: &mut self.reader, attempt, expires_at })
    }
}
