//! Serves requests that missed the end of their attempt (see `core::missed`), of both kinds: those that memory has
//! one by one. After a start, or if there were too many to be kept in memory, it looks through all notes.
//!
//! Not here: what serving means for a kind (`duty::serve_cancels`, `duty::serve_reruns`).
//!
//! Invariant: a request leaves memory only after a transaction without writes of its own has seen that it is served.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use crate::catalog::{self, Catalog};
use crate::duty::{PUT_OFF_FOR, put_off};
use crate::error::{self, Result};
use crate::log::attempt::Attempt;
use crate::log::reader::Reader;
use crate::log::segment;
use crate::pg::{self, process, time};
use crate::shmem::{self, Instance};
use crate::transaction;
use pg_queue_core::missed::MissedRequests;

/// Requests served in one transaction.
const BATCH: usize = 200;
/// If another transaction is in the way, the next look is after this many microseconds.
const PAUSE: i64 = 100_000;

thread_local! {
    /// The attempts about which requests could not be served, each with the monotonic time of the next try.
    static FAILED: RefCell<HashMap<i64, i64>> = RefCell::default();
}

/// Whether requests about an attempt are left alone, as they have failed.
fn is_put_off(id: i64) -> bool {
    FAILED.with_borrow_mut(|failed| {
        let now = time::monotonic_us();
        failed.retain(|_, until| *until > now);
        failed.contains_key(&id)
    })
}

/// A kind of missed requests.
pub struct Kind {
    /// The requests that memory has.
    pub requests: fn(&mut Instance) -> &mut MissedRequests,
    /// The attempts of a segment that have such notes.
    pub noted: fn(&Catalog, u8) -> Vec<i64>,
    /// Whether there may be something to be done after an attempt that has such a note.
    pub may_be_owed: fn(&Catalog, &Attempt) -> bool,
    /// Does what is to be done after the attempt with this id.
    pub serve: fn(&Rc<Catalog>, i64) -> Result<Done>,
}

/// The result of serving one request.
pub enum Done {
    /// Nothing was to be done: the request is served, or the session that ends the running attempt will serve it.
    Nothing,
    /// It is done, and counts with the commit.
    Made,
    /// Another transaction is in the way.
    Busy,
}

impl Kind {
    fn with<T>(&self, number: u32, f: impl FnOnce(&mut MissedRequests) -> T) -> Option<T> {
        shmem::with_instance(number, |_, instance| f((self.requests)(instance)))
    }

    /// Serves up to `BATCH` requests. Returns how many it has served.
    pub fn run(&self, number: u32) -> i64 {
        transaction::register();
        let Some(catalog) = catalog::of_duty(number) else { return 0 };
        let (mut made, mut is_busy) = (0, false);
        for (id, call) in self.todo(&catalog) {
            if is_put_off(id) {
                is_busy = true;
                continue;
            }
            match self.serve_one(&catalog, id) {
                // A request is removed from memory only if a transaction without writes sees it served: this one
                // could still roll back what it sees of its own.
                Ok(Done::Nothing) if pg::transaction::has_xid() => {}
                Ok(Done::Nothing) => {
                    self.with(number, |requests| requests.remove(id, call));
                }
                Ok(Done::Made) => made += 1,
                Ok(Done::Busy) => is_busy = true,
                Err(error) => {
                    put_off(&format!("a request about attempt {id} could not be served"), &error);
                    let until = time::monotonic_us().saturating_add(PUT_OFF_FOR);
                    FAILED.with_borrow_mut(|failed| failed.insert(id, until));
                    is_busy = true;
                }
            }
            if made == BATCH {
                break;
            }
            process::check_for_interrupts();
        }
        if made == 0 && is_busy {
            let at = time::monotonic_us().saturating_add(PAUSE);
            self.with(number, |requests| requests.put_off(at));
        }
        made as i64
    }

    /// Serves one request in a subtransaction. If another open transaction or full memory is in the way, its work is
    /// undone and the request waits; the other requests do not.
    fn serve_one(&self, catalog: &Rc<Catalog>, id: i64) -> Result<Done> {
        match pg::transaction::in_subtransaction(|| (self.serve)(catalog, id)) {
            Err(error) if matches!(error.code, error::IN_USE | error::LIMIT) => Ok(Done::Busy),
            other => other,
        }
    }

    /// Returns the attempts to look at, see `MissedRequests::to_look_at`. If all notes are to be looked through, the
    /// attempts found there are added to those in memory first.
    fn todo(&self, catalog: &Catalog) -> Vec<(i64, u32)> {
        if self.with(catalog.number, MissedRequests::take_scan).unwrap_or(false) {
            let guard = Scanning(self, catalog.number);
            let mut reader = Reader::new(catalog);
            for segment in segment::inhabited(catalog) {
                for id in (self.noted)(catalog, segment) {
                    process::check_for_interrupts();
                    if reader.by_id(id).is_some_and(|attempt| (self.may_be_owed)(catalog, &attempt)) {
                        self.with(catalog.number, |requests| requests.add(id));
                    }
                }
            }
            std::mem::forget(guard);
        }
        self.with(catalog.number, |requests| requests.to_look_at()).unwrap_or_default()
    }
}

/// Makes the next run look through all notes again if an error ends this look.
struct Scanning<'a>(&'a Kind, u32);

impl Drop for Scanning<'_> {
    fn drop(&mut self) {
        self.0.with(self.1, MissedRequests::scan);
    }
}
