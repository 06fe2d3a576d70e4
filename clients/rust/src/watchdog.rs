//! Ends a process whose worker makes no progress, so that what supervises it starts another.
//!
//! A runtime that is blocked sends no heartbeats: its leases end, and other workers get its jobs. The watchdog is a
//! thread of its own, since nothing that runs on that runtime can be relied on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// What the process ends with: `EX_SOFTWARE`.
const STATUS: i32 = 70;

/// What is watched.
pub(crate) trait Watched: Send + Sync + 'static {
    /// When it began.
    fn begun(&self) -> Instant;
    /// When its runtime last ran, in milliseconds since it began.
    fn pulse(&self) -> &AtomicU64;
    /// Whether all handlers go on for longer than this after they were told to stop.
    fn is_stuck(&self, limit: Duration) -> bool;
}

/// Watches until it is dropped.
pub(crate) struct Watchdog {
    is_over: Arc<AtomicBool>,
    thread: std::thread::Thread,
    pulse: tokio::task::JoinHandle<()>,
}

impl Watchdog {
    pub fn start<W: Watched>(watched: &Arc<W>, limit: Duration) -> Self {
        let (beating, watched) = (watched.clone(), watched.clone());
        let now = |watched: &W| Instant::now().duration_since(watched.begun()).as_millis() as u64;
        let pulse = tokio::spawn(async move {
            loop {
                beating.pulse().store(now(&beating), Ordering::Relaxed);
                sleep(limit / 8).await;
            }
        });
        watched.pulse().store(now(&watched), Ordering::Relaxed);
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        let thread = std::thread::spawn(move || {
            while !over.load(Ordering::Acquire) {
                let silent = now(&watched).saturating_sub(watched.pulse().load(Ordering::Relaxed));
                let reason = if u128::from(silent) > limit.as_millis() {
                    "its runtime is blocked"
                } else if watched.is_stuck(limit) {
                    "all its handlers go on after they were told to stop"
                } else {
                    std::thread::park_timeout(limit / 8);
                    continue;
                };
                log::error!(target: "pg_queue", "the worker makes no progress: {reason}; its process ends");
                eprintln!("pg_queue: the worker makes no progress: {reason}; its process ends");
                std::process::exit(STATUS);
            }
        });
        Self { is_over, thread: thread.thread().clone(), pulse }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        self.thread.unpark();
        self.pulse.abort();
    }
}
