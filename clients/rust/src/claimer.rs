//! The claimer: claims as many jobs as there is room for.
//!
//! Its claims carry completions without a result as `completed`, so that a busy worker needs one transaction for both.
//! They name the queues and stages that have a handler, so that the worker gets no other jobs.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, timeout};
use tokio_postgres::Row;

use crate::backoff::Backoff;
use crate::connection::Refusal;
use crate::effects;
use crate::endings::Ending;
use crate::engine::{Ended, Engine};
use crate::event::EventKind;
use crate::job::Job;
use crate::ready::{ask, cannot_start};
use crate::settings::{OnUnknown, WorkerError};
use crate::shared::Shared;
use crate::sql::interval;
use crate::state::{Held, State};

/// The SQLSTATEs for a missing queue, stage, extension or privilege.
const REFUSALS: [&str; 5] = ["42704", "3F000", "42883", "42501", "22023"];

/// How the server says that the process with the last attempt may have died.
const TIMED_OUT: [&str; 2] = ["the lease expired", "the connection of the worker ended"];

/// For how long a job is released if this worker does not have its codec or key.
const UNKNOWN_PAUSE: Duration = Duration::from_secs(30);

/// How many different codecs and keys the log names.
const MAX_UNKNOWN: usize = 1000;

impl Engine {
    pub async fn claim_all(self: Arc<Self>) -> Ended {
        let (mut backoff, mut has_claimed) = (Backoff::default(), false);
        if let Some(effects) = &self.pools.effects {
            effects::check(effects).await.map_err(|text| WorkerError(text.into()))?;
        }
        while !self.is_stopping() {
            self.pools.prune();
            let room = {
                let state = self.lock();
                state.room(&self.settings, state.due_ends(Instant::now()).count())
            };
            if room == 0 {
                self.changed.notified().await;
                continue;
            }
            if !self.control.is_open() && !self.reach_control(&mut backoff, has_claimed).await? {
                continue;
            }
            let (completed, is_idle) = {
                let (mut state, now) = (self.lock(), Instant::now());
                // The control sends the ends that are due.
                let carried = state.ended.extract_if(.., |_, ending| ending.is_carried() && ending.due > now);
                let completed: Vec<Ending> = carried.map(|(_, ending)| ending).collect();
                // If an attempt ends during the claim, that may make a job ready that the claim does not see.
                (completed, state.is_idle())
            };
            let rows = match self.claim(room, &completed, has_claimed).await {
                Ok(rows) => rows,
                Err(refusal) => {
                    // One of them may be the cause; the control finds out which.
                    completed.into_iter().for_each(|ending| self.send(ending, Duration::ZERO));
                    let Refusal { code, text } = &refusal;
                    if code == "57014" {
                        continue;
                    }
                    if !has_claimed && REFUSALS.contains(&code.as_str()) {
                        return Err(cannot_start(text));
                    }
                    if refusal.is_silent() {
                        self.control.renew();
                    }
                    self.back_off(&mut backoff, &refusal).await;
                    continue;
                }
            };
            backoff = Backoff::default();
            has_claimed = true;
            let (is_empty, had_none) = (rows.is_empty(), completed.is_empty());
            // An attempt that could not be completed has a row without a job.
            let (jobs, answers): (Vec<&Row>, Vec<&Row>) =
                rows.iter().partition(|row| row.get::<_, Option<i64>>(1).is_some());
            let answers: HashMap<i64, Value> = answers.iter().map(|row| (row.get(0), row.get(5))).collect();
            for ending in completed {
                let answer = answers.get(&ending.id()).unwrap_or(&Value::Null);
                let outcome = answer["outcome"].as_str().unwrap_or("completed");
                self.answered(ending, outcome, answer["reason"].as_str().unwrap_or_default());
            }
            self.accept(&jobs);
            if self.is_drain && is_empty && had_none {
                if is_idle {
                    return Ok(());
                }
                self.changed.notified().await;
            }
        }
        Ok(())
    }

    /// Connects the control. Returns false if it could not, or if the worker is to stop. Without a connection for
    /// heartbeats nothing is claimed: handlers may take all connections that the server has.
    async fn reach_control(&self, backoff: &mut Backoff, has_claimed: bool) -> Result<bool, WorkerError> {
        let asked = tokio::select! {
            () = self.told_to_stop(1) => return Ok(false),
            asked = ask(&self.control) => asked,
        };
        let refusal = match asked {
            Ok(None) => return Ok(true),
            Ok(Some(reason)) if !has_claimed => return Err(cannot_start(&reason)),
            Ok(Some(text)) => Refusal { code: REFUSALS[1].to_owned(), text },
            Err(refusal) => refusal,
        };
        self.back_off(backoff, &refusal).await;
        Ok(false)
    }

    /// Waits after a claim that has failed, until the worker is told to stop.
    async fn back_off(&self, backoff: &mut Backoff, refusal: &Refusal) {
        if refusal.is_gone() {
            self.tell(EventKind::Disconnected, None, Duration::ZERO, Some(refusal.text.clone()));
        }
        let _ = timeout(backoff.failed("claim", refusal), self.told_to_stop(1)).await;
    }

    async fn claim(&self, room: usize, completed: &[Ending], has_claimed: bool) -> Result<Vec<Row>, Refusal> {
        let (sql, parameters) = self.settings.claim(room, has_claimed && !self.is_drain, completed);
        let connected = || self.tell(EventKind::Connected, None, Duration::ZERO, None);
        self.claims.fetch(&sql, &parameters.list(), &connected).await
    }

    fn accept(self: &Arc<Self>, rows: &[&Row]) {
        let (now, mut has_news) = (Instant::now(), false);
        let mut state = self.lock();
        for row in rows {
            let job = Job::new(row, self.pools.clone(), self.settings.codec.clone(), self.stops.clone());
            let lease = Duration::from_secs_f64(row.get::<_, f64>(14).clamp(0.001, 1e9));
            let held = Held {
                shared: job.shared.clone(),
                lease,
                beat_at: now + self.beat(lease),
                expires_at: now + lease,
                task: None,
                stopped_at: None,
                limit: None,
                is_over: false,
                errors: 0,
                is_suspect: job.last_error.as_deref().is_some_and(|error| TIMED_OUT.contains(&error)),
            };
            has_news |= state.wakes_after(held.beat_at);
            state.suspects += usize::from(held.is_suspect);
            state.expires_at = state.expires_at.into_iter().chain([held.expires_at]).min();
            state.held.insert(job.id, held);
            state.ready.push_back(job);
        }
        drop(state);
        if has_news {
            self.due.notify_one(); // the control takes the new leases into account
        }
        self.start();
    }

    /// Returns how a job ends that another worker may run, but not this one. Logs each error once.
    pub fn for_another(&self, state: &mut State, shared: &Arc<Shared>, error: &str) -> Ending {
        let fails = self.settings.on_unknown == OnUnknown::Fail;
        if state.unknown.len() < MAX_UNKNOWN && state.unknown.insert(error.to_owned()) {
            let pause = UNKNOWN_PAUSE.as_secs();
            let then =
                if fails { "its jobs fail".into() } else { format!("its jobs are released for {pause} seconds") };
            log::warn!(target: "pg_queue", "{error}: {then}");
        }
        if fails {
            return Ending::failure(shared, error, None, false);
        }
        let delay = interval(UNKNOWN_PAUSE);
        Ending::new(shared, "release", [("delay", delay.into()), ("reason", error.into())])
    }
}
