//! The worker as its user sees it: its options, its handlers, and how to run it. `engine` runs it.

use std::collections::HashMap;
use std::future::Future;
use std::str::FromStr as _;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{Config, NoTls, Socket};

use crate::batch::{Batch, Each};
use crate::codec::Codec;
use crate::connection::connector;
use crate::engine::Engine;
use crate::event::Event;
use crate::hooks::Hooks;
use crate::job::Job;
use crate::outcome::{Done, Failure};
use crate::settings::{BatchCall, Call, Next, OnUnknown, Settings, WorkerError};

/// Stops a worker, from any task or thread.
#[derive(Clone, Debug)]
pub struct Stopper(Arc<watch::Sender<u32>>);

impl Stopper {
    /// Begins to shut down. A second call ends the wait for the handlers.
    pub fn stop(&self) {
        self.0.send_modify(|count| *count += 1);
    }
}

/// Runs the jobs of up to eight queues, within a tokio runtime of either kind.
pub struct Worker {
    settings: Settings,
    stops: Arc<watch::Sender<u32>>,
}

impl Worker {
    /// Returns a worker that connects as the text says. If it names several hosts, the worker uses the first one that
    /// accepts writes.
    pub fn new(config: &str) -> Result<Self, tokio_postgres::Error> {
        Ok(Self::with_tls(&Config::from_str(config)?, NoTls))
    }

    /// Returns a worker with a configuration, and the driver's TLS connector.
    pub fn with_tls<T>(config: &Config, tls: T) -> Self
    where
        T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
        T::Stream: Send,
        T::TlsConnect: Send,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let settings = Settings {
            connector: connector(config, tls),
            effects: None,
            handlers: HashMap::new(),
            middleware: Vec::new(),
            concurrency: 10,
            prefetch: 0,
            max_connections: None,
            wait: Duration::from_secs(15),
            linger: Duration::ZERO,
            heartbeat: Duration::from_secs(10),
            lease: None,
            disconnect: Some(Duration::from_secs(5)),
            shutdown_timeout: Duration::from_secs(30),
            stall_timeout: None,
            timeout: None,
            timeouts: HashMap::new(),
            codec: Hooks::default(),
            on_unknown: OnUnknown::Release,
            name: format!("{}:{}", host.trim(), std::process::id()),
            on_event: None,
        };
        Self { settings, stops: Arc::new(watch::channel(0).0) }
    }

    /// How many jobs run at the same time. Default: 10.
    pub fn concurrency(mut self, jobs: usize) -> Self {
        self.settings.concurrency = jobs;
        self
    }

    /// How many further jobs are claimed ahead. Default: 0. Use it for short jobs, which then need fewer round trips.
    /// Beside jobs whose last attempt has timed out, none is claimed ahead.
    pub fn prefetch(mut self, jobs: usize) -> Self {
        self.settings.prefetch = jobs;
        self
    }

    /// How many connections handlers use at the same time, for [`Job::transaction`], steps and so on. They wait for
    /// each other. Default: as many as they ask for, and the server accepts.
    pub fn max_connections(mut self, connections: usize) -> Self {
        self.settings.max_connections = Some(connections);
        self
    }

    /// How long one claim sleeps, at most the server's `pg_queue.max_wait`. Default: 15 seconds.
    pub fn wait(mut self, time: Duration) -> Self {
        self.settings.wait = time;
        self
    }

    /// How long a claim collects a full batch, from when its first job is ready. For a worker with one handler, of
    /// batches. If its queue has stages, it is for one of them. Default: 0.
    pub fn linger(mut self, time: Duration) -> Self {
        self.settings.linger = time;
        self
    }

    /// The longest time between two heartbeats. Default: 10 seconds; a third of the lease or of `disconnect` if that is
    /// shorter. A handler learns within this time that its job is to be cancelled.
    pub fn heartbeat(mut self, time: Duration) -> Self {
        self.settings.heartbeat = time;
        self
    }

    /// How long a claim lasts. Default: the job's lease, else the queue's.
    pub fn lease(mut self, time: Duration) -> Self {
        self.settings.lease = Some(time);
        self
    }

    /// When the jobs of this worker run elsewhere after its connection has broken and not come back, as when the
    /// process is killed. Zero: immediately, however the connection ends; not behind a pooler. `None`: when their
    /// leases end. Default: 5 seconds.
    pub fn disconnect(mut self, time: impl Into<Option<Duration>>) -> Self {
        self.settings.disconnect = time.into();
        self
    }

    /// How long handlers may go on after `stop` or SIGTERM. Default: 30 seconds.
    pub fn shutdown_timeout(mut self, time: Duration) -> Self {
        self.settings.shutdown_timeout = time;
        self
    }

    /// Ends the process, with status 70, if for this long the runtime was blocked, or all slots were taken by handlers
    /// that did not stop when they were told to. The default is never.
    pub fn stall_timeout(mut self, time: Duration) -> Self {
        self.settings.stall_timeout = Some(time);
        self
    }

    /// How long a handler may take. Then it is told to stop, and the attempt fails. Default: as long as it likes.
    pub fn timeout(mut self, time: Duration) -> Self {
        self.settings.timeout = Some(time);
        self
    }

    /// How long a handler of this queue may take, in place of [`Self::timeout`].
    pub fn queue_timeout(mut self, queue: &str, time: Duration) -> Self {
        self.settings.timeouts.insert(queue.to_owned(), time);
        self
    }

    /// A second server, for [`Job::transaction`]: the primary of a bridge (docs/bridge.md). Effects there are committed
    /// once, however often the job runs. By default, `transaction` is on the queue's server.
    pub fn effects(self, config: &str) -> Result<Self, tokio_postgres::Error> {
        Ok(self.effects_with_tls(&Config::from_str(config)?, NoTls))
    }

    /// As [`Self::effects`], with a configuration and the driver's TLS connector.
    pub fn effects_with_tls<T>(mut self, config: &Config, tls: T) -> Self
    where
        T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
        T::Stream: Send,
        T::TlsConnect: Send,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    {
        self.settings.effects = Some(connector(config, tls));
        self
    }

    /// Encodes and decodes payloads, results, progress and steps, such as `AesGcm`.
    pub fn codec(mut self, codec: impl Codec + 'static) -> Self {
        self.settings.codec = Hooks::new(codec);
        self
    }

    /// What becomes of a job whose codec or key this worker does not have. The log says so once for each key. Default:
    /// it is released.
    pub fn on_unknown(mut self, what: OnUnknown) -> Self {
        self.settings.on_unknown = what;
        self
    }

    /// The worker's name in the views. Default: host and process id.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.settings.name = name.into();
        self
    }

    /// Calls this function with each event. It must not block.
    pub fn on_event(mut self, hook: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        self.settings.on_event = Some(Arc::new(hook));
        self
    }

    /// Lets the function run the jobs of this queue, of all stages without a handler of their own. It returns the job's
    /// result; an error fails the attempt.
    ///
    /// When the job is to stop, its future is dropped at its next `await`.
    pub fn handler<F, R, D>(self, queue: &str, handler: F) -> Self
    where
        F: Fn(Job) -> R + Send + Sync + 'static,
        R: Future<Output = Result<D, Failure>> + Send + 'static,
        D: Into<Done>,
    {
        self.with(queue, None, one(handler))
    }

    /// Lets the function run the jobs of this stage of a queue, as [`Self::handler`] does.
    pub fn stage_handler<F, R, D>(self, queue: &str, stage: &str, handler: F) -> Self
    where
        F: Fn(Job) -> R + Send + Sync + 'static,
        R: Future<Output = Result<D, Failure>> + Send + 'static,
        D: Into<Done>,
    {
        self.with(queue, Some(stage), one(handler))
    }

    /// Lets the function run up to `size` jobs of this queue together, as many as are claimed. Each job takes a slot of
    /// `concurrency`. Middleware is not called.
    pub fn batch_handler<F, R, E>(self, queue: &str, size: usize, handler: F) -> Self
    where
        F: Fn(Batch) -> R + Send + Sync + 'static,
        R: Future<Output = Result<E, Failure>> + Send + 'static,
        E: Into<Each>,
    {
        self.with(queue, None, many(size, handler))
    }

    /// Lets the function run up to `size` jobs of this stage of a queue together, as [`Self::batch_handler`] does.
    pub fn stage_batch_handler<F, R, E>(self, queue: &str, stage: &str, size: usize, handler: F) -> Self
    where
        F: Fn(Batch) -> R + Send + Sync + 'static,
        R: Future<Output = Result<E, Failure>> + Send + 'static,
        E: Into<Each>,
    {
        self.with(queue, Some(stage), many(size, handler))
    }

    fn with(mut self, queue: &str, stage: Option<&str>, call: Call) -> Self {
        let calls = self.settings.handlers.entry(queue.to_owned()).or_default();
        match stage {
            Some(stage) => _ = calls.by_stage.insert(stage.to_owned(), call),
            None => calls.of_queue = Some(call),
        }
        self
    }

    /// Calls this function around each handler, with the job and the next function to call. The first one is the
    /// outermost.
    pub fn middleware<F, R>(mut self, around: F) -> Self
    where
        F: Fn(Job, Next) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Done, Failure>> + Send + 'static,
    {
        self.settings.middleware.push(Arc::new(move |job, next| Box::pin(around(job, next))));
        self
    }

    /// Returns what stops the worker.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.stops.clone())
    }

    /// Works until SIGTERM, SIGINT or `stop`. Then it waits for the handlers, and releases the remaining jobs. A second
    /// signal ends the wait.
    ///
    /// Errors: a queue does not exist when the worker starts. If a queue is dropped later, the worker keeps trying.
    pub async fn run(self) -> Result<(), WorkerError> {
        let refused = WorkerError("signals cannot be heard: the runtime needs enable_io".into());
        let mut terminate = signal(SignalKind::terminate()).map_err(|_| refused.clone())?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(|_| refused)?;
        let stopper = self.stopper();
        let served = self.serve();
        tokio::pin!(served);
        loop {
            tokio::select! {
                result = &mut served => return result,
                _ = terminate.recv() => stopper.stop(),
                _ = interrupt.recv() => stopper.stop(),
            }
        }
    }

    /// Works until `stop`, and does not handle signals. If the future is dropped before, the leases of its jobs expire.
    pub async fn serve(self) -> Result<(), WorkerError> {
        self.start(false).await.map(drop)
    }

    /// Runs all jobs that are ready now, and returns the events. For tests, and for workers that cron starts.
    pub async fn drain(self) -> Result<Vec<Event>, WorkerError> {
        self.start(true).await
    }

    async fn start(mut self, is_drain: bool) -> Result<Vec<Event>, WorkerError> {
        let refusal = match self.settings.handlers.len() {
            0 => Some("a worker needs a handler"),
            1..=8 if self.settings.concurrency == 0 => Some("concurrency must be at least 1"),
            1..=8 if self.settings.max_connections == Some(0) => Some("max_connections must be at least 1"),
            1..=8 if self.settings.has_zero() => Some("heartbeat, timeout and stall_timeout must be above 0"),
            1..=8 if !self.settings.linger.is_zero() && self.settings.collected().is_none() => {
                Some("linger needs one handler, of batches; if its queue has stages, of one of them")
            }
            1..=8 => None,
            _ => Some("a worker has at most eight queues"),
        };
        if let Some(text) = refusal {
            return Err(WorkerError(text.into()));
        }
        if is_drain {
            self.settings.linger = Duration::ZERO;
        }
        Engine::new(Arc::new(self.settings), is_drain, self.stops.subscribe()).serve().await
    }
}

fn one<F, R, D>(handler: F) -> Call
where
    F: Fn(Job) -> R + Send + Sync + 'static,
    R: Future<Output = Result<D, Failure>> + Send + 'static,
    D: Into<Done>,
{
    let call: Next = Arc::new(move |job| {
        let running = handler(job);
        Box::pin(async move { running.await.map(Into::into) })
    });
    Call::One(call)
}

fn many<F, R, E>(size: usize, handler: F) -> Call
where
    F: Fn(Batch) -> R + Send + Sync + 'static,
    R: Future<Output = Result<E, Failure>> + Send + 'static,
    E: Into<Each>,
{
    let call: BatchCall = Arc::new(move |batch| {
        let running = handler(batch);
        Box::pin(async move { running.await.map(Into::into) })
    });
    Call::Batch { size: size.max(1), call }
}
