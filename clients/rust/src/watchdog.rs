//! Ends a process whose worker makes no progress, so that its supervisor starts another one.
//!
//! A blocked runtime sends no heartbeats: its leases expire, and other workers get its jobs. The watchdog is a thread
//! of its own, because tasks on that runtime would be blocked, too.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// The exit status of the process: `EX_SOFTWARE`.
const STATUS: i32 = 70;

/// Watches the runtime until it is dropped.
pub(crate) struct Watchdog {
    is_over: Arc<AtomicBool>,
    thread: std::thread::Thread,
    pulse: tokio::task::JoinHandle<()>,
}

impl Watchdog {
    /// Starts a thread that watches the runtime and `is_stuck`. That returns true if all handlers have not stopped for
    /// this long after they were told to.
    pub fn start(limit: Duration, is_stuck: impl Fn(Duration) -> bool + Send + 'static) -> Self {
        let begun = Instant::now();
        let now = move || begun.elapsed().as_millis() as u64;
        let last = Arc::new(AtomicU64::new(0)); // when the runtime last ran, in milliseconds
        let beating = last.clone();
        let pulse = tokio::spawn(async move {
            loop {
                beating.store(now(), Ordering::Relaxed);
                sleep(limit / 8).await;
            }
        });
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        let thread = std::thread::spawn(move || {
            while !over.load(Ordering::Acquire) {
                let silent = now().saturating_sub(last.load(Ordering::Relaxed));
                let reason = if u128::from(silent) > limit.as_millis() {
                    "its runtime is blocked"
                } else if is_stuck(limit) {
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
