//! The end of threads that work until they are told to stop.

use std::sync::atomic::{AtomicBool, Ordering};

/// Sets the flag when it is dropped, also by a panic: threads of a scope that look at it do not outlast the test.
pub struct StopAtEnd<'a>(pub &'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
