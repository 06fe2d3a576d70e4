//! Cancels jobs whose cancellation was asked for too late for whoever ended the attempt that ran: he has made another
//! one, which waits, or runs by now and is asked to stop. See `late`.

use std::rc::Rc;

use crate::api::cancel;
use crate::call::text_datum;
use crate::duty::Duty;
use crate::duty::wishes::{Done, Kind};
use crate::error::Result;
use crate::hold::{self, Refusal, Waiting};
use crate::instance::Catalog;
use crate::log::attempt::{Attempt, Reader};
use crate::log::outcome::{self, New};
use crate::log::{claim, note};

/// The duty.
pub const DUTY: Duty =
    Duty { name: "serve_cancels", is_due: |number| CANCELS.is_due(number), run: |number| CANCELS.run(number) };

const CANCELS: Kind = Kind {
    late: |instance| &mut instance.cancels,
    noted: note::with_cancel,
    may_be_owed: |catalog, about| owed(catalog, &mut Reader::new(catalog), about).is_some(),
    serve,
};

/// The attempt that goes on with the job although it was to be cancelled, and of which nobody has been told. Not one
/// that was made since somebody wanted another run.
fn owed(catalog: &Catalog, reader: &mut Reader<'_>, about: &Attempt) -> Option<Attempt> {
    let asked = about.unique_key().map(|_| about.asked());
    let mut newest = reader.by_id(about.id())?;
    while let Some(outcome) = outcome::find(catalog, newest.home.segment, newest.id()) {
        newest = reader.by_id(outcome.next_id?)?;
        if asked.is_some_and(|asked| newest.asked() != asked) {
            return None;
        }
    }
    let is_told = claim::find(catalog, newest.home.segment, newest.id()).is_some()
        && note::summary(catalog, newest.home.segment, newest.id()).cancel().is_some();
    (!is_told).then_some(newest)
}

fn serve(catalog: &Rc<Catalog>, id: i64) -> Result<Done> {
    let mut reader = Reader::new(catalog);
    let Some(about) = reader.by_id(id) else { return Ok(Done::Nothing) };
    let request = note::summary(catalog, about.home.segment, id);
    let Some(request) = request.cancel() else { return Ok(Done::Nothing) };
    let Some(newest) = owed(catalog, &mut reader, &about) else { return Ok(Done::Nothing) };
    Ok(match hold::waiting(catalog, &newest)? {
        Waiting::Taken => {
            let reason = request.reason();
            cancel::end_unrun(
                catalog,
                &newest,
                New { error: reason.as_deref().map(text_datum), ..New::of(newest.id(), outcome::Kind::Cancelled) },
            )?;
            Done::Made
        }
        Waiting::Running => match cancel::ask(catalog, &newest, request.body()) {
            Ok(()) => Done::Made,
            Err(Refusal::Lost(_) | Refusal::Busy(_)) => Done::Busy,
            Err(Refusal::Wrong(e)) => return Err(e),
        },
        Waiting::InUse | Waiting::Stale => Done::Busy,
    })
}
