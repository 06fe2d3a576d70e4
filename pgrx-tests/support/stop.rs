//! Ends the threads and processes that a test has started when the test is over.

use std::ops::{Deref, DerefMut};
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};

/// Sets the flag when it is dropped, also by a panic. Scoped threads that read the flag then end with the test.
pub struct StopAtEnd<'a>(pub &'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A process that is killed when the value is dropped, also by a panic.
pub struct KilledAtEnd(pub Child);

impl Deref for KilledAtEnd {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for KilledAtEnd {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for KilledAtEnd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
