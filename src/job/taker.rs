//! Takes attempts in the frontier, chunk by chunk. In between it does what the frontier asks for: it refills a lane,
//! waits for another session's refill, or serves a group's turn.
//!
//! Responsible for the steps by which a rollback gives the attempts back. Not responsible for their rows and claims
//! (`claims`).
//!
//! Invariant: whether the tables are being restored is checked under the lock under which attempts are taken. So no
//! restored attempt is handed out.

use pg_queue_core::frontier::{Claimer, Frontier, GATE_LANES, Lanes, Owner, Ready, Take};
use pgrx::pg_sys::Latch;

use crate::catalog::queue::Queue;
use crate::error::Result;
use crate::job::claims::ClaimRequest;
use crate::job::group_turn::GroupTurn;
use crate::job::limits::{self, LimitCheck};
use crate::job::refill::{index_ready, refill};
use crate::job::{held, wait};
use crate::pg::fault::fault;
use crate::pg::{process, session, time};
use crate::shmem::{self, Instance, here};
use crate::transaction::{self, Step};

/// Attempts taken in one hold of the lock.
pub const ATTEMPTS_PER_HOLD: usize = 64;

/// How far a call is.
#[derive(Clone, Copy)]
pub struct Progress {
    /// How many attempts were claimed.
    pub claimed: usize,
    /// How many were taken and are not claimed yet.
    pub unclaimed: usize,
}

/// What the frontier hands out next.
pub enum Chunk {
    /// This many attempts. They are at the beginning of the caller's array.
    Taken(usize),
    /// Nothing before this session waits or reads on. The caller first claims what it has taken. Some of it may prove
    /// stale, which leaves room.
    ClaimFirst,
    /// Nothing after many turns. The caller reads the settings anew.
    Stale,
    /// Nothing more.
    End,
}

/// Takes attempts of one queue, for one call.
pub struct Taker<'a> {
    queue: &'a Queue,
    request: &'a ClaimRequest<'a>,
    /// `None`: the queue has no limits.
    check: Option<&'a LimitCheck<'a>>,
    lanes: Lanes,
    /// Lanes that have less than half of their ready attempts left in memory.
    to_refill: Vec<i32>,
    turns: usize,
    /// True if a lane had a job and `running` had no place for it.
    pub lacks_place: bool,
}

impl<'a> Taker<'a> {
    /// Begins with these lanes of the queue. Takes nothing yet.
    pub fn new(
        queue: &'a Queue,
        lanes: &[i32],
        request: &'a ClaimRequest<'a>,
        check: Option<&'a LimitCheck<'a>>,
    ) -> Self {
        let lanes = Lanes::new(lanes);
        Self { queue, request, check, lanes, to_refill: Vec::new(), turns: 0, lacks_place: false }
    }

    /// Takes the next attempts into `out`, at most as many as the call still asks for.
    ///
    /// Errors: 53400 if shared memory has no room and nothing was claimed. As [`refill`].
    pub fn next(&mut self, progress: Progress, out: &mut [Ready; ATTEMPTS_PER_HOLD]) -> Result<Chunk> {
        /// The call may give up after this many turns without a job.
        const TURNS_BEFORE_STALE: usize = 64;
        let Progress { claimed, unclaimed } = progress;
        let wanted = self.request.max_jobs - claimed - unclaimed;
        let out = &mut out[..wanted.min(ATTEMPTS_PER_HOLD)];
        let check = self.check;
        loop {
            self.turns += 1;
            if self.turns > TURNS_BEFORE_STALE && claimed + unclaimed == 0 && check.is_some() {
                fault!("claim.in_vain");
                return Ok(Chunk::Stale);
            }
            let claimer = check.map(LimitCheck::claimer);
            let Some(Answer { take, lane, due_to }) = self.take(claimer.as_ref(), out) else { break };
            match take {
                Take::Some { taken, .. } => {
                    fault!("claim.taken");
                    return Ok(Chunk::Taken(taken));
                }
                Take::Turn(turn) => {
                    let Some(claimer) = &claimer else { break };
                    let taken = GroupTurn::new(lane, claimer, turn, due_to).serve(out);
                    self.record(&[lane; ATTEMPTS_PER_HOLD], &out[..taken]);
                    fault!("claim.served");
                    process::check_for_interrupts();
                    return Ok(Chunk::Taken(taken));
                }
                Take::Index => index_ready(lane),
                _ if unclaimed > 0 => return Ok(Chunk::ClaimFirst),
                Take::Refill => refill(lane)?,
                Take::Refilling => wait::wait_for_refill(lane)?,
                Take::Empty => self.lanes.done(lane),
                Take::NoPlace => {
                    self.lacks_place = true;
                    self.lanes.done(lane);
                }
                Take::Full if claimed == 0 => return Err(held::running_full()),
                Take::NoLane if claimed == 0 => return Err(wait::lanes_full()),
                Take::NoGate if claimed == 0 => return Err(limits::gates_full()),
                Take::Closed | Take::Full | Take::NoLane | Take::NoGate => break,
            }
        }
        Ok(Chunk::End)
    }

    /// Refills the lanes that have few ready attempts left in memory.
    pub fn refill(self) -> Result<()> {
        self.to_refill.into_iter().try_for_each(refill)
    }

    /// Takes attempts in one hold of the lock, and records the steps that a rollback undoes. `None`: no lane has an
    /// attempt.
    fn take(&mut self, claimer: Option<&Claimer<'_>>, out: &mut [Ready]) -> Option<Answer> {
        transaction::reserve(out.len());
        // If the queue has groups, lanes are taken one by one, because a turn that `take_to` announces is served alone.
        let mut round = Round::new(claimer, out, self.queue.has_groups());
        let lanes = &mut self.lanes;
        let answer = shmem::with_instance(|frontier, instance| {
            if !instance.restore.is_awake() {
                return None;
            }
            round.open_gates(frontier);
            round.fill(frontier, instance, lanes)
        });
        if let Some(latch) = round.worker {
            shmem::wake_latch(latch);
        }
        round.opened.into_iter().flatten().for_each(shmem::wake);
        // The instance is gone: the refill raises the error.
        let answer = answer.unwrap_or(Some(Answer { take: Take::Refill, lane: self.queue.lane, due_to: 0 }))?;
        if let Take::Some { taken, .. } = answer.take {
            self.record(&round.of_lane, &round.out[..taken]);
            for lane in &round.low[..round.lows] {
                if !self.to_refill.contains(lane) {
                    self.to_refill.push(*lane);
                }
            }
        }
        Some(answer)
    }

    /// Records the steps of taken attempts, each with its lane.
    fn record(&self, lanes: &[i32; ATTEMPTS_PER_HOLD], taken: &[Ready]) {
        let lease = self.request.lease.unwrap_or(self.queue.lease);
        let (disconnect, started_at) = (self.request.disconnect, time::now_us());
        let step = |(&lane, ready): (&i32, &Ready)| Step::Taken { id: ready.id, lane, lease, started_at, disconnect };
        transaction::record_all(lanes.iter().zip(taken).map(step));
    }
}

/// The answer of one hold of the lock.
struct Answer {
    take: Take,
    /// The lane that gave the answer. It counts only if the answer is not `Some`.
    lane: i32,
    /// The wall time up to which jobs were due then.
    due_to: i64,
}

/// One hold of the lock: what it takes, and what is to be done after it.
struct Round<'a> {
    claimer: Option<&'a Claimer<'a>>,
    owner: Owner,
    number: u32,
    is_one_by_one: bool,
    out: &'a mut [Ready],
    /// The lane of each taken attempt.
    of_lane: [i32; ATTEMPTS_PER_HOLD],
    /// Lanes to refill, and how many.
    low: [i32; GATE_LANES],
    lows: usize,
    /// The background worker, if it is to be woken.
    worker: Option<*mut Latch>,
    /// Sessions to wake.
    opened: [Option<u32>; 8],
}

impl<'a> Round<'a> {
    fn new(claimer: Option<&'a Claimer<'a>>, out: &'a mut [Ready], is_one_by_one: bool) -> Self {
        Self {
            claimer,
            owner: Owner { session: session::session(), pid: session::pid() },
            number: here::number(),
            is_one_by_one,
            out,
            of_lane: [0; ATTEMPTS_PER_HOLD],
            low: [0; GATE_LANES],
            lows: 0,
            worker: None,
            opened: [None; 8],
        }
    }

    /// Opens gates whose time has come. The background worker does this, too, but perhaps later.
    fn open_gates(&mut self, frontier: &mut Frontier<'_>) {
        let Some(claimer) = self.claimer else { return };
        transaction::tell_retries(self.number, frontier);
        for session in &mut self.opened {
            *session = frontier.open_gates(claimer.now);
            if session.is_none() {
                break;
            }
        }
    }

    /// Takes attempts until `out` is full or a lane gives another answer. `None`: no lane is left.
    fn fill(&mut self, frontier: &mut Frontier<'_>, instance: &mut Instance, lanes: &mut Lanes) -> Option<Answer> {
        let due_to = instance.due.to;
        let mut all = 0;
        loop {
            let (lane, up_to) = lanes.next(frontier, self.number)?;
            let take = frontier.take_to(self.number, lane, self.owner, self.claimer, up_to, &mut self.out[all..]);
            let Take::Some { taken, refill } = take else {
                // Other sessions may have slept there since before the gate was closed. The worker opens it for them.
                if self.claimer.is_some()
                    && let Some(at) = frontier.next_opening()
                {
                    self.worker = instance.worker.wake_by(at);
                }
                // The taken attempts are claimed first. The next hold of the lock sees the same turn.
                let take = if all > 0 { Take::Some { taken: all, refill: false } } else { take };
                return Some(Answer { take, lane, due_to });
            };
            self.of_lane[all..all + taken].fill(lane);
            all += taken;
            if refill && !self.low[..self.lows].contains(&lane) {
                self.low[self.lows] = lane;
                self.lows += 1;
            }
            if all == self.out.len() || lanes.is_one() || self.is_one_by_one {
                return Some(Answer { take: Take::Some { taken: all, refill: false }, lane, due_to });
            }
        }
    }
}
