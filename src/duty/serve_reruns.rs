//! Makes the runs that were requested too late for the session that ended the previous run.
//!
//! Not responsible for which requests were missed (`core::missed`), for the walk over them (`duty::missed`), nor for
//! what another run is (`job::rerun`).
//!
//! Invariant: a request is settled only while this transaction holds the job's unique key, or after a newer attempt
//! serves it.

use crate::catalog::queue;
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
    work: Work::Items(|_| RERUNS.run()),
};

const RERUNS: Kind = Kind {
    requests: |instance| &mut instance.missed.reruns,
    noted: note::with_rerun,
    may_be_owed: rerun::may_be_owed,
    serve,
};

fn serve(id: i64) -> Result<Done> {
    let Some(about) = Reader::new().by_id(id) else { return Ok(Done::Nothing) };
    let Some(queue) = queue::by_lane(about.lane())? else { return Ok(Done::Nothing) };
    let Some(key) = about.unique_key().map(datum::plain) else { return Ok(Done::Nothing) };
    fault!("reruns.found");
    // The first look does not take the key, because that costs the transaction an id.
    let Some(owed) = Owed::find(&about) else { return Ok(record_served(&about)) };
    if let Some(done) = owed.served_by_running() {
        return Ok(done);
    }
    if !keys::try_acquire(keys::hash(queue.id, datum::bytes_of(&key))) {
        return Ok(Done::Busy);
    }
    fault!("reruns.held");
    match Owed::find(&about) {
        Some(owed) => owed.serve().inspect(|done| {
            // A running attempt gets the request, so it is recorded as served here.
            if matches!(done, Done::Made) {
                record_served(&about);
            }
        }),
        None => Ok(record_served(&about)),
    }
}

/// Records that the request is served. The newer attempt that serves it may be deleted before this one.
fn record_served(about: &Attempt) -> Done {
    // If the attempt still runs, another run may be requested again. The session that ends it looks by itself.
    let has_ended = outcome::find(about.home.segment, about.id()).is_some();
    if has_ended && rerun::mark_served(about) { Done::Made } else { Done::Nothing }
}

/// A run that is owed after an attempt, and the newest attempt under its key, which does not serve it.
struct Owed {
    newest: Newest,
    asked: note::Asked,
}

impl Owed {
    fn find(about: &Attempt) -> Option<Self> {
        let newest = Lookup::new().newest_beside(about.lane(), about.unique_key()?)?;
        let asked = rerun::owed(&newest, about)?;
        Some(Self { newest, asked })
    }

    /// Returns a result if the session that ends the running attempt will serve the request, once memory has passed it
    /// on. `None`: this duty must serve it.
    fn served_by_running(&self) -> Option<Done> {
        let attempt = &self.newest.attempt;
        if !matches!(self.newest.state, State::Running) || !rerun::is_noted(attempt, &self.asked.rerun()) {
            return None;
        }
        Some(if rerun::flag_running(attempt.id()) { Done::Nothing } else { Done::Busy })
    }

    /// Serves the request. The transaction holds the key.
    fn serve(&self) -> Result<Done> {
        if let Some(done) = self.served_by_running() {
            return Ok(done);
        }
        let (attempt, request) = (&self.newest.attempt, self.asked.rerun());
        let is_done = match self.newest.state {
            // The flow is about to end. Then the job runs again.
            State::Waiting if flow::check_goes_on(attempt).is_err() => false,
            State::Waiting => match take::take_waiting(attempt)? {
                TakeWaiting::Taken => {
                    supersede(attempt, &request)?;
                    true
                }
                // The attempt runs, waits again or has ended. The next look decides.
                TakeWaiting::Running | TakeWaiting::InUse | TakeWaiting::Stale => false,
            },
            // The job continued as another attempt, which did not get the request.
            State::Running => rerun::ask(attempt, &request)?,
            State::Ended => rerun_ended(attempt, &request)?,
        };
        Ok(if is_done { Done::Made } else { Done::Busy })
    }
}
