//! Claims jobs of queues: takes attempts in the frontier, claims them, and hands their rows over.
//!
//! Not responsible for taking attempts (`taker`), for the rows of their claims (`claims`), nor for sleeping (`wait`).
//!
//! Invariant: each attempt that the frontier has handed out is claimed, given back or forgotten before the call ends.

use pg_queue_core::frontier::Ready;
use pgrx::pg_sys::Datum;

use crate::catalog::queue::Queue;
use crate::error::Result;
pub use crate::job::claims::ClaimRequest;
use crate::job::claims::Claims;
use crate::job::limits::LimitCheck;
use crate::job::taker::{ATTEMPTS_PER_HOLD, Chunk, Progress, Taker};
use crate::job::wait::ClaimScope;
use crate::log::attempt::Attempt;
use crate::log::reader::Reader;
use crate::pg::datum::text_datum;
use crate::pg::fault::fault;
use crate::pg::{process, time};

/// Attempts of groups whose claims are inserted together.
const CLAIMS_TOGETHER: usize = 256;

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
            claimed => return Ok(claimed),
        }
    }
    Ok(last)
}

fn claim_from(queue: &Queue, lanes: &[i32], request: &ClaimRequest<'_>, rows: Sink<'_>) -> Result<Claimed> {
    let check = LimitCheck::of(queue)?;
    let mut taker = Taker::new(queue, lanes, request, check.as_ref());
    let mut batch = ClaimBatch::new(queue, request, check.as_ref(), rows);
    let mut chunk = [Ready::default(); ATTEMPTS_PER_HOLD];
    loop {
        if batch.is_full() {
            batch.claim()?;
        }
        if batch.is_done() {
            break;
        }
        match taker.next(batch.progress, &mut chunk)? {
            Chunk::Taken(taken) => batch.add(&chunk[..taken]),
            Chunk::ClaimFirst => batch.claim()?,
            Chunk::Stale => return Ok(Claimed::Stale),
            Chunk::End => break,
        }
    }
    batch.claim()?;
    batch.hand_over()?;
    fault!("claim.done");
    let (count, lacks_place) = (batch.progress.claimed, taker.lacks_place);
    taker.refill()?;
    Ok(if count == 0 && lacks_place { Claimed::NoPlace } else { Claimed::To(count) })
}

/// What one call has taken and claimed from one queue.
struct ClaimBatch<'a> {
    queue: &'a Queue,
    queue_name: Datum,
    request: &'a ClaimRequest<'a>,
    rows: Sink<'a>,
    claims: Claims<'a>,
    progress: Progress,
    /// Attempts that are not claimed yet.
    taken: Vec<Ready>,
    /// Claimed attempts that are not yet handed over, each with the end of its lease. They are sorted first, because
    /// turns of groups come in another order.
    claimed: Vec<(Attempt, i64)>,
}

impl<'a> ClaimBatch<'a> {
    fn new(queue: &'a Queue, request: &'a ClaimRequest<'a>, check: Option<&'a LimitCheck<'a>>, rows: Sink<'a>) -> Self {
        Self {
            queue,
            queue_name: text_datum(&queue.name),
            request,
            rows,
            claims: Claims::new(queue, request, check),
            progress: Progress { claimed: 0, unclaimed: 0 },
            taken: Vec::new(),
            claimed: Vec::new(),
        }
    }

    /// Adds attempts that the frontier has handed out.
    fn add(&mut self, taken: &[Ready]) {
        self.taken.extend(taken);
        self.progress.unclaimed += taken.len();
    }

    /// True if the taken attempts should be claimed now. Turns of groups give a few attempts each, and the claims of
    /// several turns cost less together.
    fn is_full(&self) -> bool {
        let most = if self.queue.has_groups() { CLAIMS_TOGETHER } else { 1 };
        let Progress { claimed, unclaimed } = self.progress;
        unclaimed >= most || claimed + unclaimed == self.request.max_jobs
    }

    /// True if the call takes no more attempts.
    fn is_done(&self) -> bool {
        self.progress.claimed == self.request.max_jobs || self.claims.is_refused
    }

    /// Claims the taken attempts.
    fn claim(&mut self) -> Result<()> {
        let taken = std::mem::take(&mut self.taken);
        if taken.is_empty() {
            return Ok(());
        }
        let mut claimed = self.claims.insert(&taken);
        self.progress.claimed += claimed.len();
        self.progress.unclaimed = 0;
        if self.claimed.is_empty() {
            self.claimed = claimed;
        } else {
            self.claimed.append(&mut claimed);
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
        claimed.iter().try_for_each(|(attempt, expires_at)| {
            let (queue, queue_name, expires_at) = (self.queue, self.queue_name, *expires_at);
            (self.rows)(ClaimedAttempt { queue, queue_name, reader: &mut self.claims.reader, attempt, expires_at })
        })
    }
}
