//! Makes the runs that were asked for too late for whoever ended the run before. See `rerun`.

use std::rc::Rc;

use crate::api::unique::{revive, supersede};
use crate::duty::Duty;
use crate::duty::wishes::{Done, Kind};
use crate::error::Result;
use crate::hold::{self, Waiting};
use crate::instance::Catalog;
use crate::log::attempt::{Attempt, Reader};
use crate::log::unique::{Lookup, Newest, State};
use crate::log::{note, outcome};
use crate::queue;
use crate::{key, rerun, sys};

/// The duty.
pub const DUTY: Duty =
    Duty { name: "serve_reruns", is_due: |number| RERUNS.is_due(number), run: |number| RERUNS.run(number) };

const RERUNS: Kind =
    Kind { late: |instance| &mut instance.reruns, noted: note::with_rerun, may_be_owed: rerun::may_be_owed, serve };

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
