//! Cancels jobs whose cancellation came too late for the session that ended the running attempt. That session has made
//! another attempt. If that one waits, it is cancelled. If it already runs, its worker is asked to stop.
//!
//! Not responsible for which requests were missed (`core::missed`), for the walk over them (`duty::missed`), nor for
//! cancelling itself (`job::cancel`).
//!
//! Invariant: an attempt that was made for another requested run is not cancelled by an older request.

use crate::duty::missed::{Done, Kind};
use crate::duty::{Duty, Work};
use crate::error::Result;
use crate::job::cancel;
use crate::job::held::Refusal;
use crate::job::outcomes::end_unrun;
use crate::job::take::{self, TakeWaiting};
use crate::log::attempt::Attempt;
use crate::log::outcome::{self, New};
use crate::log::reader::Reader;
use crate::log::{claim, note};
use crate::pg::datum::text_datum;
use crate::pg::fault::fault;
use crate::shmem::{self, here};

/// The duty.
pub const DUTY: Duty = Duty {
    name: "serve_cancels",
    is_due: None,
    next_at: |memory| memory.instance.missed.cancels.look_at(),
    work: Work::Items(|_| CANCELS.run()),
};

const CANCELS: Kind = Kind {
    requests: |instance| &mut instance.missed.cancels,
    noted: note::with_cancel,
    may_be_owed: |about| owed(&mut Reader::new(), about).is_some(),
    serve,
};

/// Returns the attempt that continues the job although a cancel was requested, and that did not get the request.
/// `None`: there is none, or the newest one was made because another run was requested since.
fn owed(reader: &mut Reader, about: &Attempt) -> Option<Attempt> {
    let asked = about.unique_key().map(|_| about.call());
    let mut newest = reader.by_id(about.id())?;
    while let Some(outcome) = outcome::find(newest.home.segment, newest.id()) {
        newest = reader.by_id(outcome.next_id?)?;
        if asked.is_some_and(|asked| newest.call() != asked) {
            return None;
        }
    }
    let is_told = claim::find(newest.home.segment, newest.id()).is_some()
        && note::summary(newest.home.segment, newest.id()).cancel().is_some();
    if is_told {
        // The note may be older than the claim. Then memory got the request before the attempt had an entry.
        shmem::with(|shared| shared.frontier.running.request_cancel(here::number(), newest.id()));
        return None;
    }
    Some(newest)
}

/// True if a cancel of a waiting attempt was requested, or may be. The duty that moves the attempt asks, because it
/// would leave the request behind. Makes sure that memory knows of the request.
pub(super) fn is_requested(about: &Attempt) -> bool {
    let request = note::cancel_even_open(about.home.segment, about.id());
    // The commit of an open request tells memory.
    if request == Some(false) {
        shmem::with_instance(|_, instance| instance.miss_cancel(about.id()));
    }
    request.is_some()
}

/// True if the job of an ended attempt continues although a cancel was requested, or may continue. The duty that
/// reclaims the attempt's segment, and the request with it, asks. Makes sure that memory knows of the request.
pub(super) fn may_be_owed(about: &Attempt) -> bool {
    match note::cancel_even_open(about.home.segment, about.id()) {
        None => false,
        Some(true) => true,
        Some(false) => owed(&mut Reader::new(), about).is_some() && is_requested(about),
    }
}

fn serve(id: i64) -> Result<Done> {
    let mut reader = Reader::new();
    let Some(about) = reader.by_id(id) else { return Ok(Done::Nothing) };
    let request = note::summary(about.home.segment, id);
    let Some(request) = request.cancel() else { return Ok(Done::Nothing) };
    let Some(newest) = owed(&mut reader, &about) else { return Ok(Done::Nothing) };
    fault!("cancels.found");
    Ok(match take::take_waiting(&newest)? {
        TakeWaiting::Taken => {
            let reason = request.reason();
            end_unrun(
                &newest,
                New { error: reason.as_deref().map(text_datum), ..New::of(newest.id(), outcome::Kind::Cancelled) },
            )?;
            Done::Made
        }
        TakeWaiting::Running => match cancel::ask(&newest, request.body()) {
            Ok(()) => Done::Made,
            Err(Refusal::Lost(_) | Refusal::Busy(_)) => Done::Busy,
            Err(Refusal::Unfit(e) | Refusal::Wrong(e)) => return Err(e),
        },
        TakeWaiting::InUse | TakeWaiting::Stale => Done::Busy,
    })
}
