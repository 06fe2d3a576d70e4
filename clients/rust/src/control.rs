//! The control: sends one heartbeat for all held attempts, and the ends that no claim carries.
//!
//! The worker sends each end until the server has answered: it counts, or the attempt is lost. `busy` does not count as
//! an answer: another open transaction has the attempt. It may be the handler's own, which the server is still rolling
//! back.
//!
//! A completion that rides back from another server has arrived when its attempt cannot be extended any more. If that
//! takes too long, the control sends it.
//!
//! If the server refuses a call, the control splits it, by queue and then in halves, until each faulty attempt is
//! alone. Invariant: between two calls for faulty parts there is one for the attempts without a known fault, if that is
//! due.

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};
use tokio_postgres::types::Type;

use crate::backoff::Backoff;
use crate::connection::Refusal;
use crate::endings::{Ending, RETRY_PAUSE, Ride};
use crate::engine::{Ended, Engine, FOREVER, GATHER, warn};
use crate::event::{Event, EventKind};
use crate::outcome::StopReason;
use crate::shared::{Facts, Shared};
use crate::state::State;

const REPORT: &str = "SELECT id, outcome, reason FROM queue.end_batch($1::json)";

/// The classes of SQLSTATEs for an end that the server will never accept: invalid data, or too much data.
const AT_FAULT: [&str; 2] = ["22", "54"];

/// A heartbeat or an end, as `REPORT` takes it.
struct Entry {
    id: i64,
    queue: Arc<str>,
    json: String,
    is_end: bool,
}

impl Entry {
    fn new(facts: &Facts, json: String, is_end: bool) -> Self {
        Self { id: facts.id, queue: facts.queue.clone(), json, is_end }
    }
}

impl Engine {
    pub async fn control_all(self: Arc<Self>) -> Ended {
        let mut backoff = Backoff::default();
        loop {
            {
                let state = self.lock();
                if state.is_closing && state.ended.is_empty() {
                    return Ok(());
                }
            }
            self.until_due().await;
            match self.report().await {
                Ok(()) => backoff = Backoff::default(),
                Err(refusal) => {
                    if refusal.is_silent() {
                        self.claims.renew();
                    }
                    sleep(backoff.failed("heartbeat", &refusal).min(self.beat(FOREVER))).await;
                }
            }
        }
    }

    /// Waits until a heartbeat is due, or an end that no claim carries.
    async fn until_due(&self) {
        let until = {
            let mut state = self.lock();
            let beats = state.held.values().map(|held| held.beat_at);
            let rides = state.ended.values().filter_map(|ending| ending.ride).map(|ride| ride.beat_at);
            state.wakes_at = beats.chain(rides).chain(state.ended.values().map(|ending| ending.due)).min();
            state.wakes_at
        };
        let _ = timeout_at(until.unwrap_or_else(|| Instant::now() + FOREVER), self.due.notified()).await;
    }

    pub fn beat(&self, lease: Duration) -> Duration {
        // The server may find out at any time that a connection has broken, also long after the worker has another one.
        let disconnect = self.settings.disconnect.filter(|time| !time.is_zero());
        (disconnect.unwrap_or(lease).min(lease) / 3).min(self.settings.heartbeat)
    }

    fn ride_on(&self, id: i64, outcome: &str, begun: Instant) {
        let mut state = self.lock();
        let Some(ending) = state.ended.get_mut(&id) else { return };
        let Some(Ride { lease, .. }) = ending.ride else { return };
        if outcome != "lost" {
            let beat_at = begun + ending.pause().max(GATHER).min(self.beat(lease));
            ending.ride = Some(Ride { lease, beat_at });
        } else if let Some(ending) = state.ended.remove(&id) {
            drop(state);
            self.settle(&ending, ending.event());
            self.changed.notify_one();
        }
    }

    pub fn send(&self, ending: Ending, delay: Duration) {
        if self.lock().send(ending, delay) {
            self.due.notify_one();
        }
    }

    /// Extends all leases if a heartbeat is due, and sends the ends that are due: those of part 0, in which no fault is
    /// known, and those of one other part. The other parts take turns.
    async fn report(&self) -> Result<(), Refusal> {
        let begun = Instant::now();
        let mut entries: Vec<(usize, Entry)> = {
            let mut guard = self.lock();
            let State { held, ended, parts, .. } = &mut *guard;
            parts.retain(|id, _| held.contains_key(id) || ended.contains_key(id));
            let beats = guard
                .extended(begun)
                .into_iter()
                .map(|facts| Entry::new(facts, format!("{{\"extend\":{{\"id\":{}}}}}", facts.id), false));
            let ends = guard.due_ends(begun).map(|ending| Entry::new(&ending.shared.facts, ending.json(), true));
            beats.chain(ends).map(|entry| (guard.part(entry.id), entry)).collect()
        };
        let parts: BTreeSet<usize> = entries.iter().map(|(part, _)| *part).collect();
        for part in parts.into_iter().take(2) {
            let of_part = entries.extract_if(.., |(own, _)| *own == part);
            let of_part: Vec<Entry> = of_part.map(|(_, entry)| entry).collect();
            self.report_part(&of_part, begun).await?;
        }
        Ok(())
    }

    /// Makes parts of a part that the server has refused: one for each queue, or two halves. They are sent after all
    /// other parts.
    fn split(&self, entries: &[Entry]) {
        let mut state = self.lock();
        let (new, half) = (state.parts.values().max().map_or(1, |last| last + 1), entries.len().div_ceil(2));
        let queues: BTreeSet<&str> = entries.iter().map(|entry| &*entry.queue).collect();
        let of_queue = |entry: &Entry| queues.iter().take_while(|queue| **queue < &*entry.queue).count();
        let number = |n: usize, entry: &Entry| if queues.len() > 1 { of_queue(entry) } else { n / half };
        state.parts.extend(entries.iter().enumerate().map(|(n, entry)| (entry.id, new + number(n, entry))));
    }

    /// Sends heartbeats and ends in one call. If the server refuses it, splits the part.
    async fn report_part(&self, entries: &[Entry], begun: Instant) -> Result<(), Refusal> {
        let json: Vec<&str> = entries.iter().map(|entry| &*entry.json).collect();
        let ended: BTreeSet<i64> = entries.iter().filter(|entry| entry.is_end).map(|entry| entry.id).collect();
        let take_answer = |id: i64, outcome: &str, reason: Option<&str>| {
            if ended.contains(&id) {
                self.take_answer(id, outcome, reason);
            } else {
                self.beaten(id, outcome, reason, begun);
            }
        };
        match self.control.fetch(REPORT, &[(&format!("[{}]", json.join(",")), Type::TEXT)], &|| {}).await {
            Ok(rows) => {
                {
                    let mut state = self.lock();
                    entries.iter().for_each(|entry| _ = state.parts.remove(&entry.id));
                }
                rows.iter().for_each(|row| take_answer(row.get(0), row.get(1), row.get(2)));
            }
            Err(refusal) if refusal.is_gone() => return Err(refusal),
            Err(Refusal { code, text }) => {
                self.split(entries);
                let [Entry { id, is_end, .. }] = entries else { return Ok(()) };
                let is_at_fault = AT_FAULT.iter().any(|class| code.starts_with(class));
                take_answer(*id, if is_at_fault && *is_end { "refused" } else { "error" }, Some(&text));
            }
        }
        if !ended.is_empty() {
            self.changed.notify_one();
        }
        Ok(())
    }

    /// Handles the answer to a heartbeat. A busy attempt does not expire: an open transaction is ending it, mostly the
    /// handler's own. The worker extends it again soon, and also after an error, which does not renew the lease.
    fn beaten(&self, id: i64, outcome: &str, reason: Option<&str>, begun: Instant) {
        if let Some(held) = self.lock().held.get_mut(&id)
            && outcome != "lost"
        {
            held.errors = if outcome == "error" { held.errors + 1 } else { 0 };
            let beat = self.beat(held.lease);
            let pause = if outcome == "busy" { beat.min(Duration::from_secs(1)) } else { beat };
            let error_pause = RETRY_PAUSE * (1 << held.errors.min(10));
            held.beat_at = begun + if outcome == "error" { error_pause } else { pause };
            if outcome != "error" {
                held.expires_at = begun + held.lease;
            } else if held.errors == 2 {
                let (facts, reason) = (&held.shared.facts, reason.unwrap_or_default());
                log::error!(target: "pg_queue", "{facts} could not be extended: {reason}");
            }
        }
        self.ride_on(id, outcome, begun);
        match outcome {
            "cancelling" => self.stop_job(id, StopReason::Cancelled),
            "lost" => self.stop_job(id, StopReason::Lost),
            _ => {}
        }
    }

    fn take_answer(&self, id: i64, outcome: &str, reason: Option<&str>) {
        let ending = self.lock().ended.remove(&id);
        if let Some(ending) = ending {
            self.answered(ending, outcome, reason.unwrap_or_default());
        }
    }

    /// Handles the server's answer for an end: finishes it, sends it again, or sends a failure in its place.
    pub fn answered(&self, mut ending: Ending, outcome: &str, reason: &str) {
        let facts = &ending.shared.facts;
        ending.errors += u32::from(outcome == "error");
        if outcome == "refused" || (outcome == "error" && ending.errors == 2) {
            log::error!(target: "pg_queue", "{facts} could not end by {}: {reason}", ending.kind);
        }
        match outcome {
            "busy" | "error" => {
                let pause = ending.pause();
                self.send(ending, pause);
            }
            "refused" if !ending.is_last_resort() => {
                let error = ending.error().filter(|error| !error.is_empty()).unwrap_or(reason);
                let mut failure = Ending::failure(&ending.shared, error, None, false);
                failure.time = ending.time;
                self.send(failure, Duration::ZERO);
            }
            "lost" | "refused" if ending.ride.is_none() => self.settle(&ending, EventKind::Lost),
            _ => self.settle(&ending, ending.event()),
        }
    }

    // Events.

    /// Reports that the server has answered: this attempt has ended, or its lease was lost.
    pub fn settle(&self, ending: &Ending, kind: EventKind) {
        if kind == EventKind::Lost {
            warn(&ending.shared.facts, format_args!("has lost its lease"));
        }
        self.tell(kind, Some(&ending.shared), ending.time, ending.error().map(str::to_owned));
    }

    pub fn tell(&self, kind: EventKind, shared: Option<&Arc<Shared>>, time: Duration, error: Option<String>) {
        if self.settings.on_event.is_none() && !self.is_drain {
            return;
        }
        let facts = shared.map(|shared| &shared.facts);
        let event = Event {
            kind,
            queue: facts.map(|facts| facts.queue.to_string()).unwrap_or_default(),
            job_id: facts.map_or(0, |facts| facts.job_id),
            attempt_id: facts.map_or(0, |facts| facts.id),
            attempt: facts.map_or(0, |facts| facts.attempt),
            time,
            error,
        };
        if let Some(hook) = &self.settings.on_event
            && std::panic::catch_unwind(AssertUnwindSafe(|| hook(&event))).is_err()
        {
            log::error!(target: "pg_queue", "on_event has panicked");
        }
        if self.is_drain {
            self.lock().events.push(event);
        }
    }
}
