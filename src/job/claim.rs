//! Claims jobs: takes attempts in the frontier, reads their rows, inserts their claims.
//!
//! Invariant: the claim's key decides. An attempt that the frontier hands out and the key refuses is taken back.

use pg_queue_core::frontier::{Claimer, Disconnect, GATE_LANES, Lanes, Owner, Ready, Take};
use pg_queue_core::id::SEGMENTS;
use pgrx::pg_sys::Datum;

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
use crate::pg::{memory, process, session, time};
use crate::shmem::{self, here};
use crate::transaction::{self, Step};

/// Attempts taken in one hold of the lock.
const ATTEMPTS_PER_HOLD: usize = 64;
/// Attempts of groups whose claims are inserted together.
const CLAIMS_TOGETHER: usize = 256;

/// What the worker asks for.
pub struct ClaimRequest<'a> {
    pub max_jobs: usize,
    pub lease: Option<i64>,
    pub worker: Option<String>,
    /// What the end of the connection does to the claims.
    pub disconnect: Disconnect,
    /// Which attempts the caller takes. The claim stops at the first other one. `None`: all.
    pub accepts: Option<&'a dyn Fn(&Attempt) -> bool>,
}

impl ClaimRequest<'_> {
    fn kind(&self) -> Kind {
        if self.disconnect.expires() { Kind::Bound } else { Kind::Worker }
    }
}

/// A claimed attempt, as it is handed to the caller.
pub struct ClaimedAttempt<'a> {
    pub queue: &'a Queue,
    /// The queue's name as a datum.
    pub queue_name: Datum,
    pub reader: &'a mut Reader,
    pub attempt: &'a Attempt,
    pub expires_at: i64,
}

/// Receives claimed attempts.
pub type Sink<'a> = &'a dyn Fn(ClaimedAttempt<'_>) -> Result<()>;

/// The result of an attempt to claim jobs.
pub enum Claimed {
    /// This many were claimed.
    To(usize),
    /// No job was claimed: there are jobs, but no places for them.
    NoPlace,
    /// No job was claimed so far. The caller reads the settings anew before it goes on. Otherwise two calls that know
    /// different limits of a queue make its gate anew in turns, and each undoes the other's work.
    Stale,
}

/// Returns whether the call should give up, because another session may keep different settings for any length of time.
pub fn is_in_vain(since: &mut Option<i64>) -> bool {
    /// Microseconds. A refill that passes very many attempts takes much less.
    const MAX_REFILL_US: i64 = 10_000_000;
    let now = time::monotonic_us();
    process::check_for_interrupts();
    now.saturating_sub(*since.get_or_insert(now)) > MAX_REFILL_US
}

/// Claims from the first queue that has jobs.
pub fn claim_first(known: &ClaimScope, request: &ClaimRequest<'_>, rows: Sink<'_>) -> Result<Claimed> {
    let mut last = Claimed::To(0);
    for (queue, lanes) in known.each().filter(|(queue, _)| !queue.is_paused) {
        match claim_from(queue, lanes, request, rows)? {
            Claimed::To(0) => {}
            // Another queue may have jobs.
            Claimed::NoPlace => last = Claimed::NoPlace,
            came => return Ok(came),
        }
    }
    Ok(last)
}

fn claim_from(queue: &Queue, lanes: &[i32], request: &ClaimRequest<'_>, rows: Sink<'_>) -> Result<Claimed> {
    /// The loop may give up after this many turns without a job.
    const TURNS_BEFORE_STALE: usize = 64;
    let check = LimitCheck::of(queue)?;
    let mut turns = 0;
    let mut taking = ClaimBatch::new(queue, lanes, request, rows);
    let mut lacks_place = false;
    loop {
        if taking.is_full() {
            taking.claim()?;
        }
        if taking.count == request.max_jobs || taking.is_refused {
            break;
        }
        turns += 1;
        if turns > TURNS_BEFORE_STALE && taking.is_empty() && check.is_some() {
            fault!("claim.in_vain");
            return Ok(Claimed::Stale);
        }
        let mut chunk = [Ready::default(); ATTEMPTS_PER_HOLD];
        let want = taking.wanted().min(ATTEMPTS_PER_HOLD);
        let claimer = check.as_ref().map(LimitCheck::claimer);
        let Some(Taken { answer, lane, due_to }) = taking.take(claimer.as_ref(), &mut chunk[..want]) else { break };
        match answer {
            Take::Some { taken, .. } => {
                fault!("claim.taken");
                taking.taken.extend(&chunk[..taken]);
            }
            Take::Turn(turn) => {
                let Some(claimer) = &claimer else { break };
                let taken = GroupTurn::new(lane, claimer, turn, due_to).serve(&mut chunk[..want]);
                taking.remember(&[lane; ATTEMPTS_PER_HOLD], &chunk[..taken]);
                fault!("claim.served");
                taking.taken.extend(&chunk[..taken]);
                process::check_for_interrupts();
            }
            Take::Index => index_ready(lane),
            // What was taken is claimed before this session waits or reads on, and may prove stale, which leaves room.
            _ if !taking.taken.is_empty() => taking.claim()?,
            Take::Refill => refill(lane)?,
            Take::Refilling => wait::wait_for_refill(lane)?,
            Take::Empty => taking.lanes.done(lane),
            Take::NoPlace => {
                lacks_place = true;
                taking.lanes.done(lane);
            }
            Take::Full if taking.count == 0 => return Err(held::running_full()),
            Take::NoLane if taking.count == 0 => return Err(wait::lanes_full()),
            Take::NoGate if taking.count == 0 => return Err(limits::gates_full()),
            Take::Closed | Take::Full | Take::NoLane | Take::NoGate => break,
        }
    }
    taking.claim()?;
    taking.hand_over()?;
    fault!("claim.done");
    for lane in taking.to_refill {
        refill(lane)?;
    }
    Ok(if taking.count == 0 && lacks_place { Claimed::NoPlace } else { Claimed::To(taking.count) })
}

/// The result of one hold of the lock.
struct Taken {
    answer: Take,
    /// The lane that gave the answer. It counts only if the answer is not `Some`.
    lane: i32,
    /// The wall time up to which jobs were due then.
    due_to: i64,
}

/// The claims of one call from one queue, and what the call has open.
struct ClaimBatch<'a> {
    queue: &'a Queue,
    lanes: Lanes,
    /// Lanes that have less than half of their ready attempts left in memory.
    to_refill: Vec<i32>,
    request: &'a ClaimRequest<'a>,
    rows: Sink<'a>,
    /// True if an attempt came that the caller does not take.
    is_refused: bool,
    reader: Reader,
    writers: [Option<claim::Writer>; SEGMENTS],
    queue_name: Datum,
    default_lease: i64,
    /// Attempts that the frontier has given and that are not claimed yet.
    taken: Vec<Ready>,
    /// How many were claimed.
    count: usize,
    /// Claimed attempts that are not yet handed over, each with the end of its lease. They are sorted first, because
    /// turns of groups come in another order.
    claimed: Vec<(Attempt, i64)>,
    /// How long the call waits for moves, over all attempts.
    bounded_wait: BoundedWait,
}

impl<'a> ClaimBatch<'a> {
    fn new(queue: &'a Queue, lanes: &[i32], request: &'a ClaimRequest<'a>, rows: Sink<'a>) -> Self {
        Self {
            queue,
            lanes: Lanes::new(lanes),
            to_refill: Vec::new(),
            request,
            rows,
            is_refused: false,
            reader: Reader::new(),
            writers: std::array::from_fn(|_| None),
            queue_name: text_datum(&queue.name),
            default_lease: request.lease.unwrap_or(queue.lease),
            taken: Vec::new(),
            count: 0,
            claimed: Vec::new(),
            bounded_wait: BoundedWait::short(),
        }
    }

    /// Takes attempts in the frontier and records the steps that a rollback undoes. `None`: no lane has an attempt.
    fn take(&mut self, claimer: Option<&Claimer<'_>>, out: &mut [Ready]) -> Option<Taken> {
        transaction::reserve(out.len());
        let number = here::number();
        let owner = Owner { session: session::session(), pid: session::pid() };
        let mut of_lane = [0; ATTEMPTS_PER_HOLD];
        let mut low = [0; GATE_LANES];
        let mut lows = 0;
        let lanes = &mut self.lanes;
        // If the queue has groups, lanes are taken one by one, because a turn that `take` announces is served alone.
        let is_one_by_one = self.queue.has_groups();
        let mut worker = None;
        let mut opened = [None; 8];
        // The check for a restore is made under the same lock, so that no restored attempt is handed out.
        let took = shmem::with_instance(|frontier, instance| {
            if !instance.restore.is_awake() {
                return None;
            }
            // The background worker does this, too, but perhaps later.
            if let Some(claimer) = claimer {
                transaction::tell_retries(number, frontier);
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
                let answer = frontier.take_to(number, lane, owner, claimer, up_to, &mut out[all..]);
                let due_to = instance.due.to;
                let took = |answer| Some(Taken { answer, lane, due_to });
                let Take::Some { taken, refill } = answer else {
                    // Other sessions may have slept there since before the gate was closed. The worker opens it for
                    // them.
                    if claimer.is_some()
                        && let Some(at) = frontier.next_opening()
                    {
                        worker = instance.worker.wake_by(at);
                    }
                    // The taken attempts are claimed first. The next hold of the lock sees the same turn.
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
        // The instance is gone: the refill raises the error.
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
    fn remember(&self, lanes: &[i32; ATTEMPTS_PER_HOLD], taken: &[Ready]) {
        let (lease, disconnect, started_at) = (self.default_lease, self.request.disconnect, time::now_us());
        let step = |(&lane, ready): (&i32, &Ready)| Step::Taken { id: ready.id, lane, lease, started_at, disconnect };
        transaction::record_all(lanes.iter().zip(taken).map(step));
    }

    /// Returns how many more attempts the call asks for.
    fn wanted(&self) -> usize {
        self.request.max_jobs - self.count - self.taken.len()
    }

    /// True if nothing was taken.
    fn is_empty(&self) -> bool {
        self.count + self.taken.len() == 0
    }

    /// True if the taken attempts should be claimed now. Turns of groups give a few attempts each, and the claims of
    /// several turns cost less together.
    fn is_full(&self) -> bool {
        let most = if self.queue.has_groups() { CLAIMS_TOGETHER } else { 1 };
        self.taken.len() >= most || self.wanted() == 0
    }

    /// Claims the taken attempts.
    fn claim(&mut self) -> Result<()> {
        let taken = std::mem::take(&mut self.taken);
        if taken.is_empty() {
            return Ok(());
        }
        let mut found = memory::list(taken.len());
        // No claim has a later time than the one at which it is known that the attempt may start.
        let now = time::now_us();
        for ready in &taken {
            let Some(attempt) = self.reader.fetch_now(ready) else {
                take::forget_taken(ready.id);
                continue;
            };
            if self.request.accepts.is_some_and(|accepts| !accepts(&attempt)) {
                self.is_refused = true;
                take::give_back(&attempt);
                continue;
            }
            if attempt.start_by().is_some_and(|at| at <= now) {
                take::forget_expired(&attempt);
                continue;
            }
            let place = attempt.ready().place;
            if place != ready.place {
                // The attempt has moved since the frontier was told. A session that ends the attempt looks in its new
                // place.
                shmem::with(|shared| shared.frontier.running.relocate(here::number(), ready.id, place));
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
        let lost = self.insert(&mut found, now);
        found.retain(|(attempt, _)| !lost.contains(&attempt.id()));
        found.iter_mut().for_each(|(_, lease)| *lease = now.saturating_add(*lease));
        self.count += found.len();
        if self.claimed.is_empty() {
            self.claimed = found;
        } else {
            self.claimed.append(&mut found);
        }
        if !self.queue.has_groups() {
            self.hand_over()?;
        }
        process::check_for_interrupts();
        Ok(())
    }

    /// Hands over the rows of the claimed attempts, in the order in which they are to run.
    fn hand_over(&mut self) -> Result<()> {
        let mut claimed = std::mem::take(&mut self.claimed);
        if self.queue.has_groups() {
            claimed.sort_by_key(|(attempt, _)| attempt.ready().rank);
        }
        claimed.iter().try_for_each(|(attempt, expires_at)| self.add_row(attempt, *expires_at))
    }

    /// Inserts the claims, those of one segment together. Returns the attempts that were claimed before.
    fn insert(&mut self, found: &mut [(Attempt, i64)], now: i64) -> Vec<i64> {
        let request = self.request;
        let used = found.iter().fold(0u32, |used, (attempt, _)| used | 1 << attempt.home.segment);
        let mut met = Vec::new();
        for segment in (0..SEGMENTS as u8).filter(|segment| used >> segment & 1 != 0) {
            let mut claims = memory::list(found.len());
            let of_segment = found.iter().filter(|(attempt, _)| attempt.home.segment == segment);
            claims.extend(of_segment.map(|(attempt, lease)| (attempt.id(), *lease)));
            // Turns of groups come in another order, and keys that ascend find the same leaf more often.
            if self.queue.has_groups() {
                claims.sort_unstable();
            }
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
                // The transaction that has written the other row may roll back, and other sessions meet this session's
                // row until this transaction ends.
                let (lane, ready) = (attempt.lane(), attempt.ready());
                transaction::record(Step::Missed { lane, ready });
            }
            take::forget_taken(attempt.id());
            lost.push(attempt.id());
        }
        lost
    }

    /// The generation need not be checked. While the frontier lends the attempt to this session and the reader has its
    /// segment open, the segment is not truncated.
    fn writer(&mut self, segment: u8) -> &claim::Writer {
        self.writers[segment as usize].get_or_insert_with(|| claim::Writer::open(segment))
    }

    /// Claims an attempt that has moved, in its new place. Returns false if it has not moved, or is lost.
    fn follow(&mut self, attempt: &mut Attempt, lease: i64, now: i64) -> bool {
        let id = attempt.id();
        loop {
            match self.writer(attempt.home.segment).probe(id) {
                Probe::Committed | Probe::InProgress => return false,
                Probe::Moving if self.bounded_wait.wait() => continue,
                Probe::Moving => return false,
                // The transaction that was in the way was rolled back.
                Probe::Absent => {}
                Probe::Moved => match self.reader.by_id(id) {
                    Some(now) => *attempt = now,
                    None => return false,
                },
            }
            let place = attempt.ready().place;
            shmem::with(|shared| shared.frontier.running.relocate(here::number(), id, place));
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
