//! Claims attempts that the frontier has given to this session: reads their rows, and inserts their claims.
//!
//! Not responsible for taking attempts (`taker`), nor for what the caller gets of them (`claim`).
//!
//! Invariant: the claim's key decides. An attempt that the key refuses is taken back.

use pg_queue_core::frontier::{Disconnect, Ready, gone};
use pg_queue_core::id::SEGMENTS;

use crate::catalog::queue::Queue;
use crate::job::limits::LimitCheck;
use crate::job::{cost, take};
use crate::log::attempt::Attempt;
use crate::log::claim::{self, Kind, Writer};
use crate::log::reader::Reader;
use crate::log::segment::BoundedWait;
use crate::pg::fault::fault;
use crate::pg::scan::Probe;
use crate::pg::{memory, time};
use crate::shmem::{self, here};
use crate::transaction::{self, Step};

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

/// The claims of one call from one queue.
pub struct Claims<'a> {
    queue: &'a Queue,
    request: &'a ClaimRequest<'a>,
    check: Option<&'a LimitCheck<'a>>,
    pub reader: Reader,
    writers: [Option<Writer>; SEGMENTS],
    /// How long the call waits for moves, over all attempts.
    bounded_wait: BoundedWait,
    /// True if an attempt came that the caller does not take.
    pub is_refused: bool,
}

impl<'a> Claims<'a> {
    /// Returns a value without claims.
    pub fn new(queue: &'a Queue, request: &'a ClaimRequest<'a>, check: Option<&'a LimitCheck<'a>>) -> Self {
        Self {
            queue,
            request,
            check,
            reader: Reader::new(),
            writers: std::array::from_fn(|_| None),
            bounded_wait: BoundedWait::short(),
            is_refused: false,
        }
    }

    /// Claims taken attempts. Returns the claimed ones, each with the end of its lease. The others are given back, or
    /// dropped from memory.
    pub fn insert(&mut self, taken: &[Ready]) -> Vec<(Attempt, i64)> {
        let mut claimed = memory::list(taken.len());
        // No claim has a later time than the one at which it is known that the attempt may start.
        let now = time::now_us();
        for ready in taken {
            if let Some(found) = self.read(ready, now) {
                claimed.push(found);
            }
        }
        let (costs, refused) = cost::price_all(self.queue, self.check, &mut self.reader, &mut claimed);
        refused.iter().for_each(|(attempt, _)| self.give_back(attempt));
        fault!("claim.priced");
        // A start counts for the rates from the time at which it was admitted; no claim is late.
        let last = claimed.iter().filter_map(|(attempt, _)| attempt.start_by()).min();
        let now = if costs.is_empty() { now } else { time::now_us().min(last.map_or(i64::MAX, |at| at - 1)) };
        let lost = self.insert_found(&mut claimed, &costs, now);
        claimed.retain(|(attempt, _)| !lost.contains(&attempt.id()));
        claimed.iter_mut().for_each(|(_, lease)| *lease = now.saturating_add(*lease));
        claimed
    }

    /// Reads the row of a taken attempt. Returns it with its lease. `None`: the session does not claim it.
    fn read(&mut self, ready: &Ready, now: i64) -> Option<(Attempt, i64)> {
        let Some(attempt) = self.reader.fetch_now(ready) else {
            take::forget_taken(ready.id);
            return None;
        };
        if self.request.accepts.is_some_and(|accepts| !accepts(&attempt)) {
            self.is_refused = true;
            take::give_back(&attempt);
            return None;
        }
        if attempt.start_by().is_some_and(|at| at <= now) {
            take::forget_expired(&attempt);
            return None;
        }
        let place = attempt.ready().place;
        if place != ready.place {
            // The attempt has moved since the frontier was told. A session that ends the attempt looks in its new
            // place.
            shmem::with(|shared| shared.frontier.running.relocate(here::number(), ready.id, place));
        }
        let lease = match (self.request.lease, attempt.lease()) {
            (Some(wanted), _) => wanted,
            (None, Some(own)) => {
                transaction::set_lease(ready.id, own.us());
                own.us()
            }
            (None, None) => self.queue.lease,
        };
        Some((attempt, lease))
    }

    /// Inserts the claims, those of one segment together. `costs`: what each costs; empty: each counts as 1. Returns
    /// the attempts that were claimed before.
    fn insert_found(&mut self, found: &mut [(Attempt, i64)], costs: &[i32], now: i64) -> Vec<i64> {
        let request = self.request;
        let used = found.iter().fold(0u32, |used, (attempt, _)| used | 1 << attempt.home.segment);
        let mut met = Vec::new();
        for segment in (0..SEGMENTS as u8).filter(|segment| used >> segment & 1 != 0) {
            let mut claims = memory::list(found.len());
            let of_segment = found.iter().enumerate().filter(|(_, (attempt, _))| attempt.home.segment == segment);
            claims.extend(of_segment.map(|(nth, (attempt, lease))| claim::New {
                id: attempt.id(),
                lease_us: *lease,
                cost: costs.get(nth).copied(),
            }));
            // Turns of groups come in another order, and keys that ascend find the same leaf more often.
            if self.queue.has_groups() {
                claims.sort_unstable();
            }
            let taken = self.writer(segment).insert(&claims, now, request.kind(), request.worker.as_deref());
            met.extend(taken.into_iter().map(|n| claims[n].id));
        }
        let mut lost = Vec::new();
        if !met.is_empty() {
            for (nth, (attempt, lease)) in found.iter_mut().enumerate() {
                if met.contains(&attempt.id()) && !self.follow(attempt, *lease, costs.get(nth).copied(), now) {
                    self.drop_claimed(attempt);
                    lost.push(attempt.id());
                }
            }
        }
        lost
    }

    /// Gives an attempt back for which a rate has no room. Memory may not know yet that it has another claim.
    fn give_back(&mut self, attempt: &Attempt) {
        let seen = self.writer(attempt.home.segment).probe(attempt.id());
        if matches!(seen, Probe::Committed | Probe::InProgress) {
            shmem::with(|shared| gone(&mut shared.frontier, here::number(), attempt.id()));
            self.drop_claimed(attempt);
        } else {
            take::give_back(attempt);
        }
    }

    /// Drops an attempt that has another claim.
    fn drop_claimed(&mut self, attempt: &Attempt) {
        if self.writer(attempt.home.segment).probe(attempt.id()) != Probe::Committed {
            // The transaction that has written the other row may roll back, and other sessions meet this session's row
            // until this transaction ends.
            let (lane, ready) = (attempt.lane(), attempt.ready());
            transaction::record(Step::Missed { lane, ready });
        }
        take::forget_taken(attempt.id());
    }

    /// The generation need not be checked. While the frontier lends the attempt to this session and the reader has its
    /// segment open, the segment is not truncated.
    fn writer(&mut self, segment: u8) -> &Writer {
        self.writers[segment as usize].get_or_insert_with(|| Writer::open(segment))
    }

    /// Claims an attempt that has moved, in its new place. Returns false if it has not moved, or is lost.
    fn follow(&mut self, attempt: &mut Attempt, lease_us: i64, cost: Option<i32>, now: i64) -> bool {
        let id = attempt.id();
        let claim = claim::New { id, lease_us, cost };
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
            if writer.insert(&[claim], now, request.kind(), request.worker.as_deref()).is_empty() {
                return true;
            }
        }
    }
}
