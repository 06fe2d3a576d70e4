//! The control: tells the server what the claimer does not. One heartbeat for all that is held, and what has ended.
//!
//! Each end goes to the server until that has answered: that it counts, or that the attempt is lost. That another open
//! transaction has the attempt is no answer. It may be the handler's own, which the server is still rolling back.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};
use tokio_postgres::types::Type;

use crate::connection::{BUSY, LOST, Refusal, code, text};
use crate::endings::{Ending, Kind, statement};
use crate::engine::{Backoff, Engine};
use crate::event::EventKind;
use crate::outcome::StopReason;

/// How long a completion waits for a claim to take it along.
const GATHER: Duration = Duration::from_millis(20);

impl Engine {
    pub async fn control_all(self: Arc<Self>) {
        let mut backoff = Backoff::default();
        loop {
            {
                let state = self.lock();
                if state.is_closing && state.is_told() {
                    return;
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
        let sql = "SELECT id, is_cancelled FROM queue.extend_many($1)";
        let rows = match self.control.fetch(sql, &[(&asked, Type::INT8_ARRAY)]).await {
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
        let answers: HashMap<i64, bool> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        for id in &asked {
            if let Some(is_cancelled) = answers.get(id) {
                self.extended(*id, begun, *is_cancelled);
            }
        }
        for id in asked.iter().filter(|id| !answers.contains_key(id)) {
            self.beat_alone(*id).await?;
        }
        Ok(())
    }

    fn extended(&self, id: i64, begun: Instant, is_cancelled: bool) {
        if let Some(held) = self.lock().held.get_mut(&id) {
            held.expires_at = begun + held.lease;
            held.beat_at = begun + self.beat(held.lease);
        }
        if is_cancelled {
            self.stop_job(id, StopReason::Cancelled);
        }
    }

    /// A heartbeat for one that the one for all has left out. It may be lost; or an open transaction is ending it, mostly the
    /// handler's own. Then its lease does not run out, and it is asked for again soon.
    async fn beat_alone(&self, id: i64) -> Result<(), String> {
        if !self.lock().held.contains_key(&id) {
            return Ok(());
        }
        let begun = Instant::now();
        match self.control.fetch("SELECT is_cancelled FROM queue.extend($1)", &[(&id, Type::INT8)]).await {
            Ok(rows) => self.extended(id, begun, rows.first().is_some_and(|row| row.get(0))),
            Err(Refusal::Gone(error)) => return Err(error),
            Err(Refusal::Refused(error)) if code(&error) == LOST => self.stop_job(id, StopReason::Lost),
            Err(Refusal::Refused(error)) => {
                if let Some(held) = self.lock().held.get_mut(&id) {
                    held.beat_at = begun + self.beat(held.lease).min(Duration::from_secs(1));
                    if code(&error) == BUSY {
                        held.expires_at = begun + held.lease;
                    }
                }
            }
        }
        Ok(())
    }

    pub fn send(&self, endings: Vec<Ending>) {
        self.lock().outbox.extend(endings);
        self.due.notify_one();
    }

    /// Another open transaction is in the way: the end goes to the server again after a while.
    pub fn send_later(&self, mut ending: Ending) {
        let at = Instant::now() + ending.delay();
        self.lock().later.push((at, ending));
        self.due.notify_one();
    }

    /// Sends what has ended: what is alike with one statement, and one by one if that is refused.
    async fn flush(&self) -> Result<(), String> {
        let mut endings = {
            let mut state = self.lock();
            let mut endings = std::mem::take(&mut state.done);
            endings.append(&mut state.outbox);
            let now = Instant::now();
            endings.extend(state.later.extract_if(.., |(at, _)| *at <= now).map(|(_, ending)| ending));
            state.sending = endings.len();
            endings
        };
        let mut result = Ok(());
        while let Some(first) = endings.first().cloned() {
            let (batch, rest) = endings.into_iter().partition::<Vec<_>, _>(|ending| ending.is_alike(&first));
            endings = rest;
            let unsent = self.send_batch(batch).await;
            if let Err((error, batch)) = unsent {
                self.lock().outbox.splice(0..0, batch.into_iter().chain(endings));
                result = Err(error);
                break;
            }
            self.lock().sending = endings.len();
        }
        self.lock().sending = 0;
        self.changed.notify_one();
        result
    }

    /// What could not be sent comes back, with what has gone wrong.
    async fn send_batch(&self, mut batch: Vec<Ending>) -> Result<(), (String, Vec<Ending>)> {
        if batch.len() > 1 {
            let (sql, parameters) = statement(&batch);
            match self.control.fetch(sql, &parameters.list()).await {
                Ok(_) => {
                    batch.iter().for_each(|ending| self.settle(ending, ending.event()));
                    return Ok(());
                }
                Err(Refusal::Gone(error)) => return Err((error, batch)),
                Err(Refusal::Refused(_)) => {}
            }
        }
        while let Some(ending) = batch.first() {
            let (sql, parameters) = statement(std::slice::from_ref(ending));
            match self.control.fetch(sql, &parameters.list()).await {
                Ok(_) => self.settle(ending, ending.event()),
                Err(Refusal::Gone(error)) => return Err((error, batch)),
                Err(Refusal::Refused(error)) => self.refused(ending, &error),
            }
            batch.remove(0);
        }
        Ok(())
    }

    fn refused(&self, ending: &Ending, error: &tokio_postgres::Error) {
        if code(error) == BUSY {
            self.send_later(ending.clone());
        } else if code(error) == LOST {
            self.settle(ending, EventKind::Lost);
        } else if let Kind::Fail { .. } = ending.kind {
            log::error!(target: "pg_queue", "{} could not be failed: {}", ending.shared.facts, text(error));
            self.settle(ending, EventKind::Lost);
        } else {
            // Such as a result that is no JSON to Postgres.
            let kind = Kind::Fail { error: text(error), delay: None, is_fatal: false };
            let mut failed = Ending::new(&ending.shared, kind);
            failed.time = ending.time;
            self.send(vec![failed]);
        }
    }
}
