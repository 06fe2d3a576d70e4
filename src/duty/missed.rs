//! Serves requests that missed the end of their attempt (see `core::missed`). It takes the requests in memory one by
//! one. After a start, or if there were too many for memory, it searches all notes.
//!
//! Not responsible for what serving means for each kind (`duty::serve_cancels`, `duty::serve_reruns`).
//!
//! Invariant: a request is removed from memory only when a transaction without own writes has seen that it is served.

use std::cell::RefCell;
use std::collections::HashMap;

use crate::duty::care::{self, PUT_OFF_US};
use crate::error::{self, Result};
use crate::log::attempt::Attempt;
use crate::log::reader::Reader;
use crate::log::segment;
use crate::pg::{self, process, time};
use crate::shmem::{self, Instance};
use crate::transaction;
use pg_queue_core::missed::MissedRequests;

/// At most this many requests are served in one transaction.
const BATCH_REQUESTS: usize = 200;
/// If another transaction blocks a request, the next look is after this many microseconds.
const BLOCKED_PAUSE_US: i64 = 100_000;

thread_local! {
    /// The attempts whose requests could not be served, each with the monotonic time of the next try.
    static FAILED: RefCell<HashMap<i64, i64>> = RefCell::default();
}

/// True if requests about an attempt have failed and are not retried yet.
fn is_put_off(id: i64) -> bool {
    FAILED.with_borrow_mut(|failed| {
        let now = time::monotonic_us();
        failed.retain(|_, until| *until > now);
        failed.contains_key(&id)
    })
}

/// A kind of missed requests.
pub struct Kind {
    /// Returns the requests in memory.
    pub requests: fn(&mut Instance) -> &mut MissedRequests,
    /// Returns the attempts of a segment that have such notes.
    pub noted: fn(u8) -> Vec<i64>,
    /// True if work may be left to do after an attempt with such a note.
    pub may_be_owed: fn(&Attempt) -> bool,
    /// Does the work after the attempt with this id.
    pub serve: fn(i64) -> Result<Done>,
}

/// The result of serving one request.
pub enum Done {
    /// No work was left: the request is served, or the session that ends the running attempt will serve it.
    Nothing,
    /// The work is done, and counts with the commit.
    Made,
    /// Another transaction blocks it.
    Busy,
}

impl Kind {
    fn with<T>(&self, f: impl FnOnce(&mut MissedRequests) -> T) -> Option<T> {
        shmem::with_instance(|_, instance| f((self.requests)(instance)))
    }

    /// Serves up to `BATCH_REQUESTS` requests. Returns how many it has served.
    pub fn run(&self) -> Result<i64> {
        transaction::register();
        let (mut made, mut is_busy) = (0, false);
        for (id, call) in self.todo() {
            if is_put_off(id) {
                is_busy = true;
                continue;
            }
            match self.serve_one(id) {
                // A request is removed from memory only if a transaction without writes sees it served: this
                // transaction could still roll back its own changes.
                Ok(Done::Nothing) if pg::transaction::has_xid() => {}
                Ok(Done::Nothing) => {
                    self.with(|requests| requests.remove(id, call));
                }
                Ok(Done::Made) => made += 1,
                Ok(Done::Busy) => is_busy = true,
                Err(error) => {
                    care::put_off(&format!("a request about attempt {id} could not be served"), error);
                    let until = time::monotonic_us().saturating_add(PUT_OFF_US);
                    FAILED.with_borrow_mut(|failed| failed.insert(id, until));
                    is_busy = true;
                }
            }
            if made == BATCH_REQUESTS {
                break;
            }
            process::check_for_interrupts();
        }
        if made == 0 && is_busy {
            let at = time::monotonic_us().saturating_add(BLOCKED_PAUSE_US);
            self.with(|requests| requests.put_off(at));
        }
        Ok(made as i64)
    }

    /// Serves one request in a subtransaction. If another open transaction or full memory blocks it, its changes are
    /// rolled back, and the request waits. The other requests are still served.
    fn serve_one(&self, id: i64) -> Result<Done> {
        match care::apart(|| (self.serve)(id)) {
            Err(error) if matches!(error.code, error::IN_USE | error::LIMIT) => Ok(Done::Busy),
            other => other,
        }
    }

    /// Returns the attempts to look at, see `MissedRequests::to_look_at`. If a search of all notes is ordered, the
    /// attempts found there are first added to those in memory.
    fn todo(&self) -> Vec<(i64, u32)> {
        if self.with(MissedRequests::take_scan).unwrap_or(false) {
            let guard = Scanning(self);
            let mut reader = Reader::new();
            for segment in segment::inhabited() {
                for id in (self.noted)(segment) {
                    process::check_for_interrupts();
                    if reader.by_id(id).is_some_and(|attempt| (self.may_be_owed)(&attempt)) {
                        self.with(|requests| requests.add(id));
                    }
                }
            }
            std::mem::forget(guard);
        }
        self.with(|requests| requests.to_look_at()).unwrap_or_default()
    }
}

/// If an error ends this search, makes the next run search all notes again.
struct Scanning<'a>(&'a Kind);

impl Drop for Scanning<'_> {
    fn drop(&mut self) {
        self.0.with(MissedRequests::scan);
    }
}
