//! How wishes are seen to that came too late for whoever ended the attempt (see `late`), of either kind: those that
//! memory has, one by one. After a start, or when there were too many to be kept there, all notes are looked through.

use std::rc::Rc;

use crate::error::{self, Result};
use crate::instance::{self, Catalog};
use crate::late::Late;
use crate::log::attempt::{Attempt, Reader};
use crate::shmem::Instance;
use crate::{segment, shmem, sys, transaction};

/// Seen to in one transaction.
const BATCH: usize = 200;
/// Where somebody is in the way: look again after this many microseconds.
const PAUSE: i64 = 100_000;

/// A kind of wishes.
pub struct Kind {
    /// Where memory has the attempts.
    pub late: fn(&mut Instance) -> &mut Late,
    /// The attempts of a segment that have such notes.
    pub noted: fn(&Catalog, u8) -> Vec<i64>,
    /// Whether there may be something to be done after one that has.
    pub may_be_owed: fn(&Catalog, &Attempt) -> bool,
    /// Does it.
    pub serve: fn(&Rc<Catalog>, i64) -> Result<Done>,
}

/// What there was to do after an attempt.
pub enum Done {
    /// Nothing: it is done, or whoever ends the running one will do it.
    Nothing,
    /// It counts with the commit.
    Made,
    /// Somebody is in the way.
    Busy,
}

impl Kind {
    /// Whether there is something to be done.
    pub fn is_due(&self, number: u32) -> bool {
        let now = sys::monotonic_us();
        self.with(number, |late| late.look_at() <= now).unwrap_or(false)
    }

    fn with<T>(&self, number: u32, f: impl FnOnce(&mut Late) -> T) -> Option<T> {
        shmem::with_instance(number, |_, instance| f((self.late)(instance)))
    }

    /// Does it; how much.
    pub fn run(&self, number: u32) -> i64 {
        transaction::register();
        let Some(catalog) = instance::of_duty(number) else { return 0 };
        let (mut made, mut is_busy) = (0, false);
        for id in self.todo(&catalog) {
            match self.serve_one(&catalog, id) {
                // Only what is seen to be done is forgotten, by eyes that do not see what may be rolled back here.
                Ok(Done::Nothing) if sys::has_xid() => {}
                Ok(Done::Nothing) => {
                    self.with(number, |late| late.remove(id));
                }
                Ok(Done::Made) => made += 1,
                Ok(Done::Busy) => is_busy = true,
                Err(error) => error.report(),
            }
            if made == BATCH {
                break;
            }
            sys::check_for_interrupts();
        }
        if made == 0 && is_busy {
            let at = sys::monotonic_us().saturating_add(PAUSE);
            self.with(number, |late| late.put_off(at));
        }
        made as i64
    }

    /// What an open transaction of somebody else stands in the way of, or memory that is full, is undone, and has to
    /// wait; the others not.
    fn serve_one(&self, catalog: &Rc<Catalog>, id: i64) -> Result<Done> {
        match sys::in_subtransaction(|| (self.serve)(catalog, id)) {
            Err(error) if matches!(error.code, error::IN_USE | error::LIMIT) => Ok(Done::Busy),
            other => other,
        }
    }

    /// The attempts to look at; those that are found by a look through all notes are put with them.
    fn todo(&self, catalog: &Catalog) -> Vec<i64> {
        if self.with(catalog.number, Late::take_scan).unwrap_or(false) {
            let guard = Scanning(self, catalog.number);
            let mut reader = Reader::new(catalog);
            for segment in segment::inhabited(catalog) {
                for id in (self.noted)(catalog, segment) {
                    sys::check_for_interrupts();
                    if reader.by_id(id).is_some_and(|attempt| (self.may_be_owed)(catalog, &attempt)) {
                        self.with(catalog.number, |late| late.add(id));
                    }
                }
            }
            std::mem::forget(guard);
        }
        self.with(catalog.number, |late| late.ids().to_vec()).unwrap_or_default()
    }
}

/// A look through all notes that an error ends is to be made again.
struct Scanning<'a>(&'a Kind, u32);

impl Drop for Scanning<'_> {
    fn drop(&mut self) {
        self.0.with(self.1, Late::scan);
    }
}
