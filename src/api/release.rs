//! `queue.release`, `release_many`: give attempts back, uncounted, for a shutdown or a snooze.
//!
//! Not responsible for how an attempt is given back (`job::release`).

use pgrx::pg_sys::Datum;

use crate::api::answers::Answers;
use crate::api::{self, sql_function};
use crate::catalog::arguments as args;
use crate::error::Result;
use crate::job::hold;
use crate::job::options::in_future;
use crate::job::outcomes::{Kind, Outcomes};
use crate::job::release::{self, Back};
use crate::pg::datum::Interval;
use crate::pg::function::{Call, VOID};
use crate::pg::time;

sql_function!(pg_queue_release, pg_finfo_pg_queue_release => release);
sql_function!(pg_queue_release_many, pg_finfo_pg_queue_release_many => release_many);

/// Reads how the attempts are given back.
///
/// Errors: 22023 for a delay that is negative or infinite.
fn back<'a>(call: &Call, reason: Option<&'a str>) -> Result<Back<'a>> {
    let delay = call.get(args::release::DELAY).unwrap_or(Interval::ZERO);
    in_future("delay", delay, time::now_us())?;
    Ok(Back { delay, reason })
}

/// `queue.release(id, delay, reason)`. If `delay` is NULL, the next attempt is ready immediately.
fn release(call: &Call) -> Result<Option<Datum>> {
    api::writable("release")?;
    let id = call.need(args::release::ID)?;
    let reason = call.str(args::release::REASON);
    let back = back(call, reason.as_deref())?;
    let mut outcomes = Outcomes::new();
    let held = hold::hold_for_end(&mut outcomes, id)?;
    release::give_back(&mut outcomes, &held, back)?;
    outcomes.insert()?;
    Ok(Some(VOID))
}

/// `queue.release_many(ids, delay, reason)`.
fn release_many(call: &Call) -> Result<Option<Datum>> {
    api::writable("release")?;
    let answers = Answers::begin(call)?;
    let ids = call.need(args::release_many::IDS)?;
    let reason = call.str(args::release_many::REASON);
    let back = back(call, reason.as_deref())?;
    let mut outcomes = Outcomes::new();
    for id in ids.into_iter().flatten() {
        let ended =
            hold::hold_for_end(&mut outcomes, id).and_then(|held| release::give_back(&mut outcomes, &held, back));
        answers.ended(id, ended.map(Kind::name))?;
    }
    outcomes.insert()?;
    Ok(None)
}
