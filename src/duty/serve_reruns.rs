//! Makes the runs that were asked for too late for whoever ended the run before. After a start, or when there were too
//! many to be kept in memory, it looks through all notes. See `rerun`.

use std::rc::Rc;

use crate::api::unique::{revive, supersede};
use crate::duty::Duty;
use crate::error::{self, Result};
use crate::hold::{self, Waiting};
use crate::instance::{self, Catalog};
use crate::log::attempt::{Attempt, Reader};
use crate::log::unique::{Lookup, Newest, State};
use crate::log::{note, outcome};
use crate::queue;
use crate::{key, rerun, segment, shmem, sys, transaction};

/// The duty.
pub const DUTY: Duty = Duty { name: "serve_reruns", is_due, run };

/// Runs made in one transaction.
const BATCH: usize = 200;
/// Where somebody is in the way: look again after this many microseconds.
const PAUSE: i64 = 100_000;

fn is_due(number: u32) -> bool {
    let now = sys::monotonic_us();
    shmem::with_instance(number, |_, instance| instance.reruns.look_at() <= now).unwrap_or(false)
}

/// What there was to do after an attempt.
enum Done {
    /// Nothing: it is served, or whoever ends the running one will do it.
    Nothing,
    /// It counts with the commit.
    Made,
    /// Somebody is in the way.
    Busy,
}

fn run(number: u32) -> i64 {
    transaction::register();
    let Some(catalog) = instance::of_duty(number) else { return 0 };
    let (mut made, mut is_busy) = (0, false);
    for id in todo(&catalog) {
        match serve_one(&catalog, id) {
            // Only what is seen to be done is forgotten, by eyes that do not see what may be rolled back here.
            Ok(Done::Nothing) if sys::has_xid() => {}
            Ok(Done::Nothing) => {
                shmem::with_instance(number, |_, instance| instance.reruns.remove(id));
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
        shmem::with_instance(number, |_, instance| instance.reruns.put_off(at));
    }
    made as i64
}

/// As `serve`. What an open transaction of somebody else stands in the way of is undone, and has to wait; the others not.
fn serve_one(catalog: &Rc<Catalog>, id: i64) -> Result<Done> {
    match sys::in_subtransaction(|| serve(catalog, id)) {
        Err(error) if error.code == error::IN_USE => Ok(Done::Busy),
        other => other,
    }
}

/// The attempts to look at; those that are found by a look through all notes are put with them.
fn todo(catalog: &Catalog) -> Vec<i64> {
    let must_scan = shmem::with_instance(catalog.number, |_, instance| instance.reruns.take_scan()).unwrap_or(false);
    if must_scan {
        let guard = Scanning(catalog.number);
        let mut reader = Reader::new(catalog);
        for segment in segment::inhabited(catalog) {
            for id in note::with_rerun(catalog, segment) {
                sys::check_for_interrupts();
                let attempt = reader.by_id(id);
                if attempt.is_some_and(|attempt| rerun::may_be_owed(catalog, &attempt)) {
                    shmem::with_instance(catalog.number, |_, instance| rerun::hand_over(instance, id));
                }
            }
        }
        std::mem::forget(guard);
    }
    shmem::with_instance(catalog.number, |_, instance| instance.reruns.ids().to_vec()).unwrap_or_default()
}

/// A look through all notes that an error ends is to be made again.
struct Scanning(u32);

impl Drop for Scanning {
    fn drop(&mut self) {
        shmem::with_instance(self.0, |_, instance| instance.reruns.scan());
    }
}

fn serve(catalog: &Rc<Catalog>, id: i64) -> Result<Done> {
    let Some(about) = Reader::new(catalog).by_id(id) else { return Ok(Done::Nothing) };
    let Some(queue) = queue::by_lane(catalog, about.lane())? else { return Ok(Done::Nothing) };
    let Some(key) = about.unique_key().map(sys::plain) else { return Ok(Done::Nothing) };
    // Without the key first, which costs the transaction an id.
    let Some(owed) = Owed::look(catalog, &about) else { return Ok(settle(catalog, &about)) };
    if let Some(done) = owed.is_seen_to(catalog) {
        return Ok(done);
    }
    if !key::try_acquire(catalog, key::hash(queue.id, sys::bytes_of(&key))) {
        return Ok(Done::Busy);
    }
    match Owed::look(catalog, &about) {
        Some(owed) => owed.serve(catalog).inspect(|done| {
            // A running one is told of it, and it is settled there.
            if matches!(done, Done::Made) {
                settle(catalog, &about);
            }
        }),
        None => Ok(settle(catalog, &about)),
    }
}

/// A newer attempt serves it, and may be gone before this one is: says so.
fn settle(catalog: &Catalog, about: &Attempt) -> Done {
    // One that runs on may be asked again; whoever ends it looks by himself.
    let has_ended = outcome::find(catalog, about.home.segment, about.id()).is_some();
    if has_ended && rerun::settle(catalog, about) { Done::Made } else { Done::Nothing }
}

/// What is owed after an attempt, and the newest one under its key, which does not serve it.
struct Owed {
    newest: Newest,
    asked: note::Asked,
}

impl Owed {
    fn look(catalog: &Catalog, about: &Attempt) -> Option<Self> {
        let newest = Lookup::new(catalog).newest_beside(about.lane(), about.unique_key()?)?;
        let asked = rerun::owed(catalog, &newest, about)?;
        Some(Self { newest, asked })
    }

    /// When whoever ends the running attempt will do it, once he knows.
    fn is_seen_to(&self, catalog: &Catalog) -> Option<Done> {
        let attempt = &self.newest.attempt;
        if !matches!(self.newest.state, State::Running) || !rerun::is_noted(catalog, attempt, &self.asked.rerun()) {
            return None;
        }
        Some(if rerun::tell(catalog, attempt.id()) { Done::Nothing } else { Done::Busy })
    }

    /// Does it, while this transaction holds the key.
    fn serve(&self, catalog: &Rc<Catalog>) -> Result<Done> {
        if let Some(done) = self.is_seen_to(catalog) {
            return Ok(done);
        }
        let (attempt, wish) = (&self.newest.attempt, self.asked.rerun());
        let is_done = match self.newest.state {
            State::Waiting => match hold::waiting(catalog, attempt)? {
                Waiting::Taken => {
                    supersede(catalog, attempt, &wish)?;
                    true
                }
                // It will run, or wait again, or have ended.
                Waiting::Running | Waiting::InUse | Waiting::Stale => false,
            },
            // The job went on as another attempt, which has not heard of it.
            State::Running => rerun::ask(catalog, attempt, &wish)?,
            State::Ended => revive(catalog, attempt, &wish)?,
        };
        Ok(if is_done { Done::Made } else { Done::Busy })
    }
}
