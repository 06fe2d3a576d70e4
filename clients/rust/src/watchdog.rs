//! Ends a process whose worker makes no progress, so that its supervisor starts another one.
//!
//! A blocked runtime sends no heartbeats: its leases expire, and other workers get its jobs. The watchdog is a thread
//! of its own, because tasks on that runtime would be blocked, too. The log may be what blocks them, so a second thread
//! writes the last message, and the process ends without it if need be.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// The exit status of the process: `EX_SOFTWARE`.
const STATUS: i32 = 70;

/// How long the end of the process waits for its last message.
const LAST_MESSAGE_TIME: Duration = Duration::from_secs(1);

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
            let mut looked = now();
            while !over.load(Ordering::Acquire) {
                let before = std::mem::replace(&mut looked, now());
                if u128::from(looked - before) > limit.as_millis() / 2 {
                    last.store(looked, Ordering::Relaxed); // the whole process had stood still
                }
                let silent = now().saturating_sub(last.load(Ordering::Relaxed));
                if u128::from(silent) > limit.as_millis() {
                    end("its runtime is blocked");
                }
                if is_stuck(limit) {
                    end("all its handlers go on after they were told to stop");
                }
                std::thread::park_timeout(limit / 8);
            }
        });
        Self { is_over, thread: thread.thread().clone(), pulse }
    }
}

/// Writes why to stderr and to the log, and ends the process.
fn end(reason: &'static str) -> ! {
    // Dropped when the thread ends, also by a panic of the logger, or if it does not start.
    let (writing, written) = mpsc::channel::<()>();
    let write = move || {
        let _writing = writing;
        let line = format!("pg_queue: the worker makes no progress: {reason}; its process ends\n");
        let _ = std::io::stderr().write_all(line.as_bytes());
        log::error!(target: "pg_queue", "the worker makes no progress: {reason}; its process ends");
    };
    let _ = std::thread::Builder::new().spawn(write);
    let _ = written.recv_timeout(LAST_MESSAGE_TIME);
    std::process::exit(STATUS)
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        self.thread.unpark();
        self.pulse.abort();
    }
}
