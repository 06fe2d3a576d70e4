//! What a call tells the user beside its answer: that something it was given has no effect. NOTICEs, each once in a session
//! and for each queue: a worker makes such calls all day.
//!
//! Not responsible for what is wrong, which is an error.

use std::cell::RefCell;
use std::collections::HashSet;

use crate::catalog::queue::Queue;
use crate::error::{Error, NOTICE};
use crate::guc;

thread_local! {
    /// The queues whose jobs were given groups without effect, and 0 if a wait was cut.
    static TOLD: RefCell<HashSet<i32>> = RefCell::default();
}

fn is_first(what: i32) -> bool {
    TOLD.with_borrow_mut(|told| told.insert(what))
}

/// The queue has neither limits of groups nor an order in them.
pub fn group_without_limits(queue: &Queue) {
    if is_first(queue.id) {
        Error::new(NOTICE, format!("queue \"{}\" does not limit groups, so group_key has no effect there", queue.name))
            .hint("Set max_running_per_group, rate_limit_per_group or strict_order with queue.alter.")
            .notice();
    }
}

/// If a call asks for a longer sleep than the setting allows. `wait` is in microseconds.
pub fn wait_is_cut(wait: i64) {
    let most = i64::from(guc::MAX_WAIT.get());
    if wait > most * 1_000 && is_first(0) {
        Error::new(NOTICE, format!("the call waits for {most} ms at most, not for {} ms", wait / 1_000))
            .detail("The setting pg_queue.max_wait bounds how long one call sleeps, as that holds back vacuum.")
            .hint("Call again when it returns without a job, as a worker does anyway, or raise the setting.")
            .notice();
    }
}

/// `queue.drop` with `if_exists`.
pub fn no_queue_to_drop(name: &str) {
    Error::new(NOTICE, format!("queue \"{name}\" does not exist, skipping")).notice();
}
