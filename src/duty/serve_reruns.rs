//! Makes the runs that were requested too late for the session that ended the previous run.
//!
//! Not responsible for which requests were missed (`core::missed`), for the walk over them (`duty::missed`), nor for
//! what another run is (`job::rerun`).
//!
//! Invariant: a request is settled only while this transaction holds the job's unique key, or after a newer attempt
//! serves it.

use std::rc::Rc;

use crate::catalog::{Catalog, queue};
use crate::duty::missed::{Done, Kind};
use crate::duty::{Duty, Work};
use crate::error::Result;
use crate::job::take::{self, TakeWaiting};
use crate::job::unique::{rerun_ended, supersede};
use crate::job::{flow, keys, rerun};
use crate::log::attempt::Attempt;
use crate::log::reader::Reader;
use crate::log::unique::{Lookup, Newest, State};
use crate::log::{note, outcome};
use crate::pg::datum;
use crate::pg::fault::fault;

/// The duty.
pub const DUTY: Duty = Duty {
    name: "serve_reruns",
    is_due: None,
    next_at: |memory| memory.instance.missed.reruns.look_at(),
    work: Work::Items(|number, _| RERUNS.run(number)),
};

const RERUNS: Kind = Kind {
    requests: |instance| &mut instance.missed.reruns,
    noted: note::with_rerun,
    may_be_owed: rerun::may_be_owed,
    serve,
};

fn serve(catalog: &Rc<Catalog>, id: i64) -> Result<Done> {
    let Some(about) = Reader::new(catalog).by_id(id) else { return Ok(Done::Nothing) };
    let Some(queue) = queue::by_lane(catalog, about.lane())? else { return Ok(Done::Nothing) };
    let Some(key) = about.unique_key().map(datum::plain) else { return Ok(Done::Nothing) };
    fault!("reruns.found");
    // The first look does not take the key, because that costs the transaction an id.
    let Some(owed) = Owed::find(catalog, &about) else { return Ok(record_served(catalog, &about)) };
    if let Some(done) = owed.served_by_running(catalog) {
        return Ok(done);
    }
    if !keys::try_acquire(catalog, keys::hash(queue.id, datum::bytes_of(&key))) {
        return Ok(Done::Busy);
    }
    fault!("reruns.held");
    match Owed::find(catalog, &about) {
        Some(owed) => owed.serve(catalog).inspect(|done| {
            // A running attempt gets the request, so it is recorded as served here.
            if matches!(done, Done::Made) {
                record_served(catalog, &about);
            }
        }),
        None => Ok(record_served(catalog, &about)),
    }
}

/// Records that the request is served. The newer attempt that serves it may be deleted before this one.
fn record_served(catalog: &Catalog, about: &Attempt) -> Done {
    // If the attempt still runs, another run may be requested again. The session that ends it looks by itself.
    let has_ended = outcome::find(catalog, about.home.segment, about.id()).is_some();
    if has_ended && rerun::mark_served(catalog, about) { Done::Made } else { Done::Nothing }
}

/// A run that is owed after an attempt, and the newest attempt under its key, which does not serve it.
struct Owed {
    newest: Newest,
    asked: note::Asked,
}

impl Owed {
    fn find(catalog: &Catalog, about: &Attempt) -> Option<Self> {
        let newest = Lookup::new(catalog).newest_beside(about.lane(), about.unique_key()?)?;
        let asked = rerun::owed(catalog, &newest, about)?;
        Some(Self { newest, asked })
    }

    /// Returns a result if the session that ends the running attempt will serve the request, once memory has passed it
    /// on. `None`: this duty must serve it.
    fn served_by_running(&self, catalog: &Catalog) -> Option<Done> {
        let attempt = &self.newest.attempt;
        if !matches!(self.newest.state, State::Running) || !rerun::is_noted(catalog, attempt, &self.asked.rerun()) {
            return None;
        }
        Some(if rerun::flag_running(catalog, attempt.id()) { Done::Nothing } else { Done::Busy })
    }

    /// Serves the request. The transaction holds the key.
    fn serve(&self, catalog: &Rc<Catalog>) -> Result<Done> {
        if let Some(done) = self.served_by_running(catalog) {
            return Ok(done);
        }
        let (attempt, request) = (&self.newest.attempt, self.asked.rerun());
        let is_done = match self.newest.state {
            // The flow is about to end. Then the job runs again.
            State::Waiting if flow::check_goes_on(catalog, attempt).is_err() => false,
            State::Waiting => match take::take_waiting(catalog, attempt)? {
                TakeWaiting::Taken => {
                    supersede(catalog, attempt, &request)?;
                    true
                }
                // The attempt runs, waits again or has ended. The next look decides.
                TakeWaiting::Running | TakeWaiting::InUse | TakeWaiting::Stale => false,
            },
            // The job continued as another attempt, which did not get the request.
            State::Running => rerun::ask(catalog, attempt, &request)?,
            State::Ended => rerun_ended(catalog, attempt, &request)?,
        };
        Ok(if is_done { Done::Made } else { Done::Busy })
    }
}
