//! The control: tells the server what the claimer does not. One heartbeat for all that is held, and what has ended.
//!
//! The worker sends each end until the server has answered: it counts, or the attempt is lost. `busy` is no answer:
//! another open transaction has the attempt. It may be the handler's own, which the server is still rolling back.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};
use tokio_postgres::types::Type;

use crate::connection::{Refusal, code, text};
use crate::endings::Ending;
use crate::engine::{Backoff, Ended, Engine};
use crate::event::EventKind;
use crate::outcome::StopReason;

/// How long a completion waits for a claim to take it along.
const GATHER: Duration = Duration::from_millis(20);

const EXTEND: &str = "SELECT id, outcome, is_cancelled FROM queue.extend_many($1)";

const END: &str = "SELECT id, outcome, reason FROM queue.end_batch($1::json)";

/// The classes of SQLSTATEs that blame an end itself, which the server will never take: bad data, or too much.
const AT_FAULT: [&str; 2] = ["22", "54"];

impl Engine {
    pub async fn control_all(self: Arc<Self>) -> Ended {
        let mut backoff = Backoff::default();
        loop {
            {
                let state = self.lock();
                if state.is_closing && state.is_told() {
                    return Ok(());
                }
            }
            self.until_due().await;
            let result = match self.heartbeat().await {
                Ok(()) => self.flush().await,
                gone => gone,
            };
            match result {
                Ok(()) => backoff = Backoff::default(),
                Err(error) => {
                    if backoff.is_news(&error) {
                        log::warn!(target: "pg_queue", "no connection for heartbeats, the worker tries again: {error}");
                    }
                    sleep(backoff.next()).await;
                }
            }
        }
    }

    /// Waits until a heartbeat is due, or something is to be sent that no claim takes along.
    async fn until_due(&self) {
        loop {
            let until = {
                let state = self.lock();
                if !state.outbox.is_empty() || (state.is_closing && !state.done.is_empty()) {
                    return;
                }
                let beat_at = state.beating().map(|held| held.beat_at).min();
                let gathered = (!state.done.is_empty()).then(|| state.done_since + GATHER);
                let again = state.later.iter().map(|(at, _)| *at).min();
                [beat_at, gathered, again].into_iter().flatten().min()
            };
            match until {
                Some(until) if until <= Instant::now() => return,
                Some(until) => drop(timeout_at(until, self.due.notified()).await),
                None => self.due.notified().await,
            }
            if self.lock().is_closing {
                return;
            }
        }
    }

    pub fn beat(&self, lease: Duration) -> Duration {
        (lease / 3).min(self.settings.heartbeat)
    }

    async fn heartbeat(&self) -> Result<(), String> {
        let begun = Instant::now();
        let asked: Vec<i64> = {
            let state = self.lock();
            if state.beating().all(|held| held.beat_at > begun) {
                return Ok(());
            }
            state.beating().map(|held| held.shared.facts.id).collect()
        };
        let rows = match self.control.fetch(EXTEND, &[(&asked, Type::INT8_ARRAY)], &|| {}).await {
            Ok(rows) => rows,
            Err(Refusal::Gone(error)) => return Err(error),
            Err(Refusal::Refused(error)) => {
                log::error!(target: "pg_queue", "a heartbeat has failed: {}", text(&error));
                let mut state = self.lock();
                for id in asked {
                    if let Some(held) = state.held.get_mut(&id) {
                        held.beat_at = begun + self.beat(held.lease).min(Duration::from_secs(1));
                    }
                }
                return Ok(());
            }
        };
        for row in &rows {
            let (id, outcome, is_cancelled) = (row.get(0), row.get(1), row.get::<_, Option<bool>>(2) == Some(true));
            self.extended(id, begun, outcome);
            if is_cancelled || outcome == "lost" {
                self.stop_job(id, if is_cancelled { StopReason::Cancelled } else { StopReason::Lost });
            }
        }
        Ok(())
    }

    /// Starts the lease anew. A busy attempt does not expire: an open transaction is ending it, mostly the handler's
    /// own. The worker asks for it again soon.
    fn extended(&self, id: i64, begun: Instant, outcome: &str) {
        if let Some(held) = self.lock().held.get_mut(&id)
            && outcome != "lost"
        {
            held.expires_at = begun + held.lease;
            let beat = self.beat(held.lease);
            held.beat_at = begun + if outcome == "busy" { beat.min(Duration::from_secs(1)) } else { beat };
        }
    }

    pub fn send(&self, endings: impl IntoIterator<Item = Ending>) {
        self.lock().outbox.extend(endings.into_iter().map(|ending| (ending.id(), ending)));
        self.due.notify_one();
    }

    /// Sends what has ended. After an error it sends each half, so that an end which is at fault keeps no other.
    async fn flush(&self) -> Result<(), String> {
        let mut batches = {
            let mut guard = self.lock();
            let state = &mut *guard;
            let now = Instant::now();
            let due = state.later.extract_if(.., |(at, _)| *at <= now).map(|(_, ending)| ending);
            state.outbox.extend(state.done.drain(..).chain(due).map(|ending| (ending.id(), ending)));
            vec![state.outbox.keys().copied().collect::<Vec<i64>>()]
        };
        while let Some(batch) = batches.pop().filter(|batch| !batch.is_empty()) {
            let ends = {
                let state = self.lock();
                let ends: Vec<String> = batch.iter().map(|id| state.outbox[id].json()).collect();
                format!("[{}]", ends.join(","))
            };
            match self.control.fetch(END, &[(&ends, Type::TEXT)], &|| {}).await {
                Ok(rows) => rows.iter().for_each(|row| self.take_answer(row.get(0), row.get(1), row.get(2))),
                Err(Refusal::Gone(error)) => return Err(error),
                Err(Refusal::Refused(_)) if batch.len() > 1 => {
                    let (first, second) = batch.split_at(batch.len() / 2);
                    batches.extend([second.to_vec(), first.to_vec()]);
                }
                Err(Refusal::Refused(error)) => {
                    let is_at_fault = AT_FAULT.iter().any(|class| code(&error).starts_with(class));
                    self.take_answer(batch[0], if is_at_fault { "refused" } else { "error" }, Some(&text(&error)));
                }
            }
            self.changed.notify_one();
        }
        Ok(())
    }

    fn take_answer(&self, id: i64, outcome: &str, reason: Option<&str>) {
        let ending = self.lock().outbox.remove(&id);
        if let Some(ending) = ending {
            self.answered(ending, outcome, reason.unwrap_or_default());
        }
    }

    /// Settles an end that the server has answered, or sends it again, or a failure in its place.
    pub fn answered(&self, mut ending: Ending, outcome: &str, reason: &str) {
        let facts = &ending.shared.facts;
        if outcome == "refused" || (outcome == "error" && ending.pauses == 0) {
            log::error!(target: "pg_queue", "{facts} could not end by {}: {reason}", ending.kind);
        }
        match outcome {
            "busy" | "error" => {
                let at = Instant::now() + ending.pause();
                self.lock().later.push((at, ending));
                self.due.notify_one();
            }
            "refused" if !ending.is_last_resort() => {
                let error = ending.error().filter(|error| !error.is_empty()).unwrap_or(reason);
                let mut failure = Ending::failure(&ending.shared, error, None, false);
                failure.time = ending.time;
                self.send([failure]);
            }
            "lost" | "refused" => self.settle(&ending, EventKind::Lost),
            _ => self.settle(&ending, ending.event()),
        }
    }
}
