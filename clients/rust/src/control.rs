//! The control: sends one heartbeat for all held attempts, and the ends that no claim carries.
//!
//! The worker sends each end until the server has answered: it counts, or the attempt is lost. `busy` does not count as
//! an answer: another open transaction has the attempt. It may be the handler's own, which the server is still rolling
//! back.
//!
//! A completion that rides back from another server has arrived when its attempt cannot be extended any more. If that
//! takes too long, the control sends it.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};
use tokio_postgres::types::Type;

use crate::backoff::Backoff;
use crate::connection::Refusal;
use crate::endings::{Ending, Ride};
use crate::engine::{Ended, Engine, FOREVER, GATHER, warn};
use crate::event::{Event, EventKind};
use crate::outcome::StopReason;
use crate::shared::Shared;

const REPORT: &str = "SELECT id, outcome, reason FROM queue.end_batch($1::json)";

/// The classes of SQLSTATEs for an end that the server will never accept: invalid data, or too much data.
const AT_FAULT: [&str; 2] = ["22", "54"];

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
            let state = self.lock();
            let beats = state.held.values().map(|held| held.beat_at);
            let rides = state.ended.values().filter_map(|ending| ending.ride).map(|ride| ride.beat_at);
            beats.chain(rides).chain(state.ended.values().map(|ending| ending.due)).min()
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
        self.lock().send(ending, delay);
        self.due.notify_one();
    }

    /// Extends all leases if a heartbeat is due, and sends the ends that are due. After an error each end is sent by
    /// itself, so that a faulty end does not block the others.
    async fn report(&self) -> Result<(), Refusal> {
        let begun = Instant::now();
        let (beats, batches) = {
            let state = self.lock();
            let (fresh, again): (Vec<&Ending>, Vec<&Ending>) =
                state.due_ends(begun).partition(|ending| ending.errors == 0);
            let batches = std::iter::once(fresh).chain(again.into_iter().map(|ending| vec![ending]));
            let entries = |batch: Vec<&Ending>| batch.iter().map(|ending| (ending.id(), ending.json())).collect();
            (state.extended(begun), batches.map(entries).collect::<Vec<Vec<(i64, String)>>>())
        };
        let mut beats: Vec<String> = beats.iter().map(|id| format!("{{\"extend\":{{\"id\":{id}}}}}")).collect();
        for batch in batches {
            let (ids, ends): (Vec<i64>, Vec<String>) = batch.into_iter().unzip();
            let entries: Vec<String> = beats.drain(..).chain(ends).collect();
            if entries.is_empty() {
                continue;
            }
            match self.control.fetch(REPORT, &[(&format!("[{}]", entries.join(",")), Type::TEXT)], &|| {}).await {
                Ok(rows) => {
                    for row in &rows {
                        let (id, outcome, reason): (i64, &str, Option<&str>) = (row.get(0), row.get(1), row.get(2));
                        if ids.contains(&id) {
                            self.take_answer(id, outcome, reason);
                        } else {
                            self.beaten(id, outcome, begun);
                        }
                    }
                }
                Err(refusal) if refusal.is_gone() || ids.is_empty() => return Err(refusal),
                Err(Refusal { code, text }) => {
                    let is_at_fault = entries.len() == 1 && AT_FAULT.iter().any(|class| code.starts_with(class));
                    let outcome = if is_at_fault { "refused" } else { "error" };
                    ids.iter().for_each(|&id| self.take_answer(id, outcome, Some(&text)));
                }
            }
            if !ids.is_empty() {
                self.changed.notify_one();
            }
        }
        Ok(())
    }

    /// Handles the answer to a heartbeat. A busy attempt does not expire: an open transaction is ending it, mostly the
    /// handler's own. The worker extends it again soon.
    fn beaten(&self, id: i64, outcome: &str, begun: Instant) {
        if let Some(held) = self.lock().held.get_mut(&id)
            && outcome != "lost"
        {
            let beat = self.beat(held.lease);
            held.beat_at = begun + if outcome == "busy" { beat.min(Duration::from_secs(1)) } else { beat };
            held.expires_at = begun + held.lease;
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
