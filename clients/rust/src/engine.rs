//! Runs a worker: it claims for all slots on one connection, and sends everything else on a second connection.
//!
//! The *claimer* (`claimer`) claims as many jobs as there is room for. The *control* (`control`) sends one heartbeat
//! for all held attempts, and the ends that no claim has carried. A handler runs in a task of its own.
//!
//! An attempt is held from its claim until its handler has ended. The worker sends each end until the server has
//! answered, over new connections if necessary. If the server does not answer for the length of the lease, the worker
//! has lost the lease.
//!
//! An attempt whose completion is committed on another server *rides back*: it is extended until the completion has
//! arrived. If that takes too long, the worker sends the completion itself.

use std::collections::{HashMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::{Notify, watch};
use tokio::task::{AbortHandle, JoinError, JoinHandle};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use crate::batch::{Batch, Each};
use crate::connection::{Link, Pool, Pools, SILENCE};
use crate::endings::{Ending, Ride};
use crate::event::{Event, EventKind};
use crate::job::Job;
use crate::outcome::{Done, Failure, StopReason};
use crate::settings::{Call, Calls, Settings, WorkerError};
use crate::shared::{Facts, Shared};
use crate::state::{Held, State};
use crate::tracing;
use crate::watchdog::Watchdog;

/// How long a completion waits for a claim to carry it.
pub(crate) const GATHER: Duration = Duration::from_millis(20);

/// How long handlers have to react to `check` after the shutdown timeout.
const GRACE: Duration = Duration::from_secs(1);

/// How long a completion may ride back, unless the lease is shorter.
const MAX_RIDE: Duration = Duration::from_secs(30);

/// How long a worker that shuts down tries to send the last ends.
const FAREWELL: Duration = Duration::from_secs(5);

/// Longer than any worker runs.
pub(crate) const FOREVER: Duration = Duration::from_secs(1_000_000_000);

/// One run of a worker, from its first claim to the release of the remaining jobs.
pub(crate) struct Engine {
    pub settings: Arc<Settings>,
    calls: HashMap<String, Calls>,
    pub is_drain: bool,
    state: Mutex<State>,
    /// How often it was told to stop.
    pub stops: watch::Receiver<u32>,
    /// Wakes the claimer: there is room, or the worker stops.
    pub changed: Notify,
    /// Wakes the control: there is something to send.
    pub due: Notify,
    pub claims: Link,
    pub control: Link,
    pub pools: Pools,
}

/// The result of the claimer and of the control. An error means that the worker could not start.
pub(crate) type Ended = Result<(), WorkerError>;

/// Ends the tasks of an engine whose run was dropped before it ended. Its leases expire.
struct Tasks(Vec<JoinHandle<Ended>>, Arc<Engine>);

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
        self.1.lock().held.values().filter_map(|held| held.task.as_ref()).for_each(|task| task.abort());
        self.1.claims.abandon();
        self.1.control.abandon();
    }
}

impl Engine {
    pub fn new(settings: Arc<Settings>, is_drain: bool, stops: watch::Receiver<u32>) -> Arc<Self> {
        let (connector, limit) = (settings.connector.clone(), settings.max_connections.unwrap_or(usize::MAX));
        let pools = Pools {
            own: Arc::new(Pool::new(connector.clone(), limit)),
            effects: settings.effects.clone().map(|effects| Arc::new(Pool::new(effects, limit))),
        };
        Arc::new(Self {
            calls: settings.calls(),
            is_drain,
            state: Mutex::default(),
            stops,
            changed: Notify::new(),
            due: Notify::new(),
            claims: Link::new(connector.clone(), settings.wait + SILENCE, pools.own.clone()),
            control: Link::new(connector, SILENCE, pools.own.clone()),
            pools,
            settings,
        })
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_stopping(&self) -> bool {
        *self.stops.borrow() > 0
    }

    pub async fn told_to_stop(&self, times: u32) {
        let mut stops = self.stops.clone();
        // Without a sender, no further stop can come.
        if stops.wait_for(|&count| count >= times).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Works until it is told to stop, or until no job is left when it drains. Returns the events if it drains.
    ///
    /// Errors: a queue does not exist when the worker starts.
    pub async fn serve(self: Arc<Self>) -> Result<Vec<Event>, WorkerError> {
        let watched = self.clone();
        let is_stuck = move |limit| watched.is_stuck(limit);
        let _watchdog = self.settings.stall_timeout.map(|limit| Watchdog::start(limit, is_stuck));
        let both = vec![tokio::spawn(self.clone().claim_all()), tokio::spawn(self.clone().control_all())];
        let mut tasks = Tasks(both, self.clone());
        let (mut stopped_at, claimer) = (None, &mut tasks.0[0]);
        let ended = loop {
            tokio::select! {
                result = &mut *claimer => break raise(result),
                () = self.told_to_stop(1), if stopped_at.is_none() => {
                    self.changed.notify_one();
                    stopped_at = Some(Instant::now());
                }
                () = sleep(Duration::from_millis(200)), if stopped_at.is_some() => {}
            }
            // If the server has not begun the claim, it ignores the request. So the request is repeated until the claim
            // has ended.
            self.claims.cancel().await;
            if stopped_at.is_some_and(|at| at.elapsed() > FAREWELL) {
                self.claims.sever(); // in case the server does not answer
            }
        };
        self.shut_down(&mut tasks.0[1]).await;
        ended.map(|()| std::mem::take(&mut self.lock().events))
    }

    /// Returns the handler of a job, and the stage if the handler is for that stage only. `None`: there is none.
    pub fn call<'a>(&'a self, job: &'a Job) -> Option<(&'a Call, Option<&'a str>)> {
        self.calls.get(&*job.queue)?.get(job.stage.as_deref())
    }

    pub fn start(self: &Arc<Self>) {
        self.expire();
        let mut state = self.lock();
        while state.running() < self.settings.concurrency && !self.is_stopping() {
            let Some(job) = state.ready.pop_front() else { break };
            let (call, stage) = self.call(&job).expect("a job without a handler is not held");
            let (call, stage) = (call.clone(), stage.map(str::to_owned));
            let mut jobs = vec![job];
            if let Call::Batch { size, .. } = call {
                let most = size.min(self.settings.concurrency + 1 - state.running());
                let (ready, queue) = (std::mem::take(&mut state.ready), jobs[0].queue.clone());
                for job in ready {
                    let is_alike =
                        job.queue == queue && self.call(&job).is_some_and(|(_, own)| own == stage.as_deref());
                    if is_alike && jobs.len() < most { jobs.push(job) } else { state.ready.push_back(job) }
                }
            }
            let shared: Vec<Arc<Shared>> = jobs.iter().map(|job| job.shared.clone()).collect();
            let task = tokio::spawn(self.clone().run(call, jobs));
            let limit = self.limit(&shared);
            for one in shared {
                if let Some(held) = state.held.get_mut(&one.facts.id) {
                    (held.task, held.limit) = (Some(task.abort_handle()), limit.clone());
                }
            }
        }
        // If a job ends the process, the attempts of jobs that have not begun would count.
        let is_wary = self.settings.prefetch > 0 && !state.ready.is_empty() && state.is_wary();
        let ready = if is_wary { std::mem::take(&mut state.ready) } else { VecDeque::new() };
        drop(state);
        ready.iter().for_each(|job| self.end(Ending::new(&job.shared, "release", [])));
    }

    /// Lets attempts fail if their handler takes too long. If it goes on although it was told to stop, they fail
    /// nevertheless, and it keeps its slots.
    fn limit(self: &Arc<Self>, shared: &[Arc<Shared>]) -> Option<AbortHandle> {
        let settings = &self.settings;
        let limit = settings.timeouts.get(&*shared.first()?.facts.queue).copied().or(settings.timeout)?;
        let (engine, shared) = (self.clone(), shared.to_vec());
        let task = tokio::spawn(async move {
            sleep(limit).await;
            let is_on = |one: &&Arc<Shared>| !one.ended.load(Ordering::Acquire);
            for one in shared.iter().filter(is_on) {
                _ = one.limit.set(limit);
                engine.stop_job(one.facts.id, StopReason::Timeout);
            }
            sleep(GRACE).await;
            shared.iter().filter(is_on).for_each(|one| engine.fail_late(one));
        });
        Some(task.abort_handle())
    }

    fn fail_late(&self, shared: &Arc<Shared>) {
        let mut state = self.lock();
        let Some(held) = state.held.get_mut(&shared.facts.id) else { return };
        if shared.reason() == Some(StopReason::Timeout) {
            held.is_over = true;
            held.expires_at = Instant::now() + FOREVER;
            held.beat_at = held.expires_at;
            drop(state);
            self.send(Ending::stopped(shared), Duration::ZERO);
        }
    }

    // A handler.

    async fn run(self: Arc<Self>, call: Call, jobs: Vec<Job>) {
        let jobs = if jobs.iter().all(Job::is_ready) { jobs } else { Box::pin(self.decoded(jobs)).await };
        let begun = Instant::now();
        let shared: Vec<Arc<Shared>> = jobs.iter().map(|job| job.shared.clone()).collect();
        for one in &shared {
            self.tell(EventKind::Started, Some(one), Duration::ZERO, None);
        }
        let answer = if jobs.is_empty() { Ok(Each::All) } else { self.guarded(&shared, self.handle(call, jobs)).await };
        let time = begun.elapsed();
        let mut answers: Vec<Result<Done, Failure>> = match answer {
            Ok(Each::One(answers)) if answers.len() == shared.len() => answers,
            Ok(Each::One(answers)) => {
                let error = format!("{} answers for {} jobs", answers.len(), shared.len());
                vec![Err(Failure::Retry { error, delay: None }); shared.len()]
            }
            Ok(Each::All) => vec![Ok(().into()); shared.len()],
            Err(failure) => vec![Err(failure); shared.len()],
        };
        if shared.len() > 1 {
            // The server's answer for each attempt says which lease is lost.
            let is_ours = |text: &str| shared.iter().any(|one| text.ends_with(&format!(" {}", one.facts.id)));
            let is_loss = |answer: &&mut _| matches!(&**answer, Err(Failure::Lost(text)) if is_ours(text));
            let lost = answers.iter_mut().filter(is_loss);
            lost.for_each(|answer| *answer = Err(Failure::Snooze(Duration::ZERO)));
        }
        for (one, answer) in shared.iter().zip(&mut answers) {
            if matches!(answer, Err(Failure::AlreadyDone(done)) if !done.contains(&one.facts.job_id)) {
                *answer = Err(Failure::Snooze(Duration::ZERO));
            }
        }
        for (one, mut answer) in shared.iter().zip(answers) {
            if !self.settings.codec.is_none() && !one.ended.load(Ordering::Acquire) {
                let encoded = async { Ok(self.settings.codec.done(answer?, &one.facts.queue).await?) };
                answer = Box::pin(self.guarded(std::slice::from_ref(one), encoded)).await;
            }
            self.end_by(one, answer, time);
        }
        self.start();
        // Without room, the claimer would only wait again.
        if self.lock().room(&self.settings, 0) > 0 {
            self.changed.notify_one();
        }
    }

    /// Decodes what the jobs carry. Ends the jobs that cannot be read, and returns the others.
    async fn decoded(&self, jobs: Vec<Job>) -> Vec<Job> {
        let mut rest = Vec::new();
        for mut job in jobs {
            let shared = job.shared.clone();
            match self.guarded(std::slice::from_ref(&shared), job.decode()).await {
                Ok(()) => rest.push(job),
                Err(failure) => {
                    if matches!(failure, Failure::Retry { .. }) {
                        self.tell(EventKind::Started, Some(&shared), Duration::ZERO, None);
                    }
                    self.end_by(&shared, Err(failure), Duration::ZERO);
                }
            }
        }
        rest
    }

    /// Calls the handler.
    async fn handle(&self, call: Call, jobs: Vec<Job>) -> Result<Each, Failure> {
        let (facts, headers) = (jobs[0].shared.facts.clone(), jobs[0].headers.clone());
        match call {
            Call::One(call) => {
                let job = jobs.into_iter().next().expect("a job has a handler's call of its own");
                tracing::within(facts, headers, call(job)).await.map(|done| Each::One(vec![Ok(done)]))
            }
            Call::Batch { call, .. } => {
                let batch = Batch { jobs };
                tracing::within(facts, None, call(batch)).await
            }
        }
    }

    /// Returns what code of the user's returns. A panic fails the attempts. If all of them are to stop, it is dropped.
    async fn guarded<T>(
        &self,
        shared: &[Arc<Shared>],
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        tokio::select! {
            biased;
            answer = AssertUnwindSafe(work).catch_unwind() => answer.unwrap_or_else(|panic| Err(panicked(&*panic))),
            () = self.until_stopped(shared) => Err(Failure::Stopped),
        }
    }

    fn end_by(&self, one: &Arc<Shared>, answer: Result<Done, Failure>, time: Duration) {
        let has_ended = one.ended.load(Ordering::Acquire);
        match &answer {
            Err(Failure::Retry { error, .. } | Failure::Fatal(error) | Failure::Lost(error)) if has_ended => {
                warn(&one.facts, format_args!("has ended, and its handler has failed since: {error}"));
            }
            Err(Failure::Retry { error, .. } | Failure::Fatal(error) | Failure::Lost(error)) => {
                warn(&one.facts, format_args!("has failed: {error}"));
            }
            Ok(Done::Complete(result)) if has_ended && !result.is_null() => {
                let text = "its handler has ended it and returned a result, which is not kept";
                warn(&one.facts, format_args!("{text}"));
            }
            _ => {}
        }
        let mut ending = match answer {
            Err(Failure::Unknown(error)) if !has_ended => self.for_another(&mut self.lock(), one, &error),
            answer => Ending::of(one, answer),
        };
        ending.time = time;
        self.end(ending);
    }

    /// Waits until all of these are to stop. A job whose lease has expired is lost.
    async fn until_stopped(&self, shared: &[Arc<Shared>]) {
        for one in shared {
            loop {
                let stopped = one.stopped.notified(); // before the look at the reason
                let expires_at = self.lock().held.get(&one.facts.id).map(|held| held.expires_at);
                let Some(expires_at) = expires_at.filter(|_| one.reason().is_none()) else { break };
                if timeout_at(expires_at, stopped).await.is_err() {
                    self.expire();
                }
            }
        }
    }

    /// Stops the handlers of attempts whose lease has expired.
    fn expire(&self) {
        let (now, mut state) = (Instant::now(), self.lock());
        if state.expires_at.is_none_or(|first| first > now) {
            return;
        }
        let expired = state.held.values().filter(|held| held.expires_at <= now);
        let expired: Vec<i64> = expired.map(|held| held.shared.facts.id).collect();
        state.expires_at = state.held.values().map(|held| held.expires_at).filter(|&time| time > now).min();
        drop(state);
        expired.into_iter().for_each(|id| self.stop_job(id, StopReason::Lost));
    }

    fn end(&self, ending: Ending) {
        let mut state = self.lock();
        // The attempt was released in its place and has ended.
        let Some(held) = state.held.remove(&ending.id()) else { return };
        let Held { shared, lease, limit, is_over, .. } = held;
        state.suspects -= usize::from(held.is_suspect);
        limit.iter().for_each(AbortHandle::abort);
        if is_over {
            return; // its end is on the way
        }
        if let Some(result) = shared.committed.get() {
            // Whatever the handler has done since then.
            let mut riding = Ending::new(&shared, "complete", [("result", result.clone())]);
            riding.time = ending.time;
            riding.ride = Some(Ride { lease, beat_at: Instant::now() + GATHER });
            state.send(riding, lease.min(MAX_RIDE));
            drop(state);
            self.due.notify_one();
        } else if ending.kind == "none" {
            drop(state);
            let is_lost =
                ending.shared.reason() == Some(StopReason::Lost) && !ending.shared.ended.load(Ordering::Acquire);
            self.settle(&ending, if is_lost { EventKind::Lost } else { ending.event() });
        } else {
            // A claim that completes does not sleep, so a claim that lingers carries no ends.
            let delay = if ending.is_carried() && !self.settings.lingers() { GATHER } else { Duration::ZERO };
            if state.send(ending, delay) {
                self.due.notify_one();
            }
        }
    }

    /// Tells the handler to stop. If it has not begun, the attempt ends immediately.
    pub fn stop_job(&self, id: i64, reason: StopReason) {
        let mut state = self.lock();
        let Some(held) = state.held.get_mut(&id) else { return };
        if reason == StopReason::Lost {
            // The lease has expired.
            held.expires_at = Instant::now() + FOREVER;
            held.beat_at = held.expires_at;
            if held.shared.ended.load(Ordering::Acquire) {
                return; // the handler has ended the attempt, and goes on
            }
        }
        if !held.shared.stop(reason) {
            return;
        }
        held.stopped_at.get_or_insert_with(Instant::now);
        let (shared, has_begun) = (held.shared.clone(), held.task.is_some());
        warn(&shared.facts, format_args!("is to stop: {reason}"));
        if !has_begun {
            state.ready.retain(|job| job.id != id);
            drop(state);
            self.end(Ending::stopped(&shared));
            self.changed.notify_one();
        }
    }

    /// Returns whether all slots are taken by handlers that should have ended at least `limit` ago.
    fn is_stuck(&self, limit: Duration) -> bool {
        let state = self.lock();
        let is_late = |held: &&Held| held.stopped_at.is_some_and(|at| at.elapsed() >= limit);
        let running = state.running();
        running >= self.settings.concurrency && state.held.values().filter(is_late).count() >= running
    }

    // The end.

    async fn shut_down(&self, control: &mut JoinHandle<Ended>) {
        let ready = std::mem::take(&mut self.lock().ready);
        ready.iter().for_each(|job| self.end(Ending::stopped(&job.shared)));
        self.wait_for_handlers(self.settings.shutdown_timeout, true).await;
        let left: Vec<i64> = self.lock().held.keys().copied().collect();
        left.into_iter().for_each(|id| self.stop_job(id, StopReason::Shutdown));
        self.wait_for_handlers(GRACE, false).await;
        // Handlers that do not reach an `await`.
        let deaf: Vec<Arc<Shared>> = self.lock().held.values().map(|held| held.shared.clone()).collect();
        for shared in deaf {
            warn(&shared.facts, format_args!("is still running; it is released"));
            self.end(Ending::stopped(&shared));
        }
        {
            let mut state = self.lock();
            state.is_closing = true;
            let soon = Instant::now() + GRACE;
            for ending in state.ended.values_mut().filter(|ending| ending.ride.is_some()) {
                ending.due = ending.due.min(soon);
            }
        }
        self.due.notify_one();
        if let Ok(result) = timeout(FAREWELL, &mut *control).await {
            drop(raise(result));
        }
        for ending in self.lock().ended.values() {
            log::error!(target: "pg_queue", "{}: the server did not confirm its end", ending.shared.facts);
        }
        self.pools.close();
        self.claims.close();
        self.control.close();
    }

    /// If `is_hurried` is true, a second call of stop ends the wait.
    async fn wait_for_handlers(&self, limit: Duration, is_hurried: bool) {
        let end = Instant::now() + limit;
        while !self.lock().held.is_empty() && Instant::now() < end {
            tokio::select! {
                () = self.told_to_stop(2), if is_hurried => return,
                () = self.changed.notified() => {}
                () = sleep_until(end) => {}
            }
        }
    }
}

/// Passes a panic of the worker's own code to the caller.
fn raise(result: Result<Ended, JoinError>) -> Ended {
    result.unwrap_or_else(|error| error.try_into_panic().map_or(Ok(()), |panic| std::panic::resume_unwind(panic)))
}

/// Logs a message about a job, with its queue and ids as fields.
pub(crate) fn warn(facts: &Facts, what: std::fmt::Arguments<'_>) {
    log::warn!(target: "pg_queue", queue = &*facts.queue, job_id = facts.job_id, attempt_id = facts.id;
        "{facts} {what}");
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> Failure {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    Failure::Retry { error: format!("panicked: {}", text.unwrap_or("without a text")), delay: None }
}
